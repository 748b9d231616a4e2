//! Quotas: limits on what a namespace may hold of a vendor's devices.

use std::collections::{BTreeMap, HashMap};

use crate::inventory::Vendor;
use crate::reservation::Load;

/// A limit on what the pods of a namespace hold together. `None` means no limit; 0 allows nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Compute in the vendor's unit.
    pub cores: Option<u32>,
    /// Shares of devices.
    pub devices: Option<u32>,
}

impl Quota {
    /// The narrower limit of both, for each amount.
    fn and(self, other: Self) -> Self {
        fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            match (one, other) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            }
        }
        Self {
            memory_bytes: least(self.memory_bytes, other.memory_bytes),
            cores: least(self.cores, other.cores),
            devices: least(self.devices, other.devices),
        }
    }
}

/// The quotas of all namespaces and their present use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Quotas {
    /// By namespace, then by (name of the quota, vendor).
    limits: HashMap<String, BTreeMap<(String, Vendor), Quota>>,
    used: HashMap<String, Vec<(Vendor, Load)>>,
}

impl Quotas {
    pub(crate) fn set(&mut self, namespace: &str, name: &str, limits: &[(Vendor, Quota)]) {
        self.remove(namespace, name);
        let of_namespace = self.limits.entry(namespace.to_owned()).or_default();
        for (vendor, quota) in limits {
            of_namespace
                .entry((name.to_owned(), vendor.clone()))
                .and_modify(|before| *before = before.and(*quota))
                .or_insert(*quota);
        }
    }

    pub(crate) fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(of_namespace) = self.limits.get_mut(namespace) {
            of_namespace.retain(|(quota, _), _| quota != name);
            if of_namespace.is_empty() {
                self.limits.remove(namespace);
            }
        }
    }

    /// The narrowest limit for the vendor in the namespace.
    pub(crate) fn limit(&self, namespace: &str, vendor: &Vendor) -> Option<Quota> {
        self.limits
            .get(namespace)?
            .iter()
            .filter(|((_, of), _)| of == vendor)
            .map(|(_, quota)| *quota)
            .reduce(Quota::and)
    }

    /// Every namespace and vendor with a limit.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &Vendor, Quota, Load)> {
        self.limits
            .iter()
            .flat_map(move |(namespace, of_namespace)| {
                let mut vendors: Vec<&Vendor> =
                    of_namespace.keys().map(|(_, vendor)| vendor).collect();
                vendors.sort_unstable();
                vendors.dedup();
                vendors.into_iter().filter_map(move |vendor| {
                    let limit = self.limit(namespace, vendor)?;
                    Some((
                        namespace.as_str(),
                        vendor,
                        limit,
                        self.used(namespace, vendor),
                    ))
                })
            })
    }

    pub(crate) fn used(&self, namespace: &str, vendor: &Vendor) -> Load {
        self.used
            .get(namespace)
            .and_then(|of_namespace| of_namespace.iter().find(|(of, _)| of == vendor))
            .map(|(_, load)| *load)
            .unwrap_or_default()
    }

    pub(crate) fn charge(&mut self, namespace: &str, charge: &[(Vendor, Load)]) {
        if charge.is_empty() {
            return;
        }
        let of_namespace = self.used.entry(namespace.to_owned()).or_default();
        for (vendor, load) in charge {
            match of_namespace.iter_mut().find(|(of, _)| of == vendor) {
                Some((_, used)) => *used = used.plus(*load),
                None => of_namespace.push((vendor.clone(), *load)),
            }
        }
    }

    pub(crate) fn refund(&mut self, namespace: &str, charge: &[(Vendor, Load)]) {
        let Some(of_namespace) = self.used.get_mut(namespace) else {
            return;
        };
        for (vendor, load) in charge {
            if let Some((_, used)) = of_namespace.iter_mut().find(|(of, _)| of == vendor) {
                *used = used.minus(*load);
            }
        }
        of_namespace.retain(|(_, used)| *used != Load::default());
        if of_namespace.is_empty() {
            self.used.remove(namespace);
        }
    }
}
