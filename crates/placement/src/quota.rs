//! Quotas: limits on what a namespace may hold of a vendor's devices.

use std::collections::{BTreeMap, HashMap};

use crate::inventory::Vendor;
use crate::request::{Pod, PodTraits};
use crate::reservation::{Load, Reservation};

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

/// A condition for a quota to count a pod. A quota counts the pods that meet all of its conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaScope {
    /// The pod has a deadline.
    Terminating,
    /// The pod has no deadline.
    NotTerminating,
    /// The pod asks for no processors or memory.
    BestEffort,
    /// The pod asks for some.
    NotBestEffort,
    /// The pod's affinity looks at other namespaces.
    CrossNamespacePodAffinity,
    /// The pod has a priority class.
    HasClass,
    /// The pod has none.
    HasNoClass,
    /// The pod has one of these priority classes.
    ClassIn(Vec<String>),
    /// The pod has none of these priority classes. A pod without a class meets this.
    ClassNotIn(Vec<String>),
    /// A condition that no pod meets, such as one on another kind of object.
    NoPod,
}

impl QuotaScope {
    /// Whether the pod meets this condition.
    pub fn counts(&self, pod: &PodTraits) -> bool {
        let class = &pod.priority_class;
        match self {
            Self::Terminating => pod.terminating,
            Self::NotTerminating => !pod.terminating,
            Self::BestEffort => pod.best_effort,
            Self::NotBestEffort => !pod.best_effort,
            Self::CrossNamespacePodAffinity => pod.cross_namespace_affinity,
            Self::HasClass => !class.is_empty(),
            Self::HasNoClass => class.is_empty(),
            Self::ClassIn(classes) => !class.is_empty() && classes.contains(class),
            Self::ClassNotIn(classes) => class.is_empty() || !classes.contains(class),
            Self::NoPod => false,
        }
    }
}

/// Whether a quota with these conditions counts the pod.
pub fn counts(scopes: &[QuotaScope], pod: &PodTraits) -> bool {
    scopes.iter().all(|scope| scope.counts(pod))
}

/// One quota.
#[derive(Debug, Clone, Default)]
struct Limits {
    scopes: Vec<QuotaScope>,
    by_vendor: Vec<(Vendor, Quota)>,
}

impl Limits {
    fn of(&self, vendor: &Vendor) -> Option<Quota> {
        let own = self.by_vendor.iter().filter(|(of, _)| of == vendor);
        own.map(|(_, quota)| *quota).reduce(Quota::and)
    }
}

/// The parts of a vendor's devices that the pods of one kind in a namespace hold.
#[derive(Debug, Clone)]
struct Use {
    vendor: Vendor,
    traits: PodTraits,
    load: Load,
}

/// The quotas of all namespaces and their present use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Quotas {
    /// By namespace, then by the quota's name.
    limits: HashMap<String, BTreeMap<String, Limits>>,
    used: HashMap<String, Vec<Use>>,
}

impl Quotas {
    pub(crate) fn set(
        &mut self,
        namespace: &str,
        name: &str,
        scopes: &[QuotaScope],
        limits: &[(Vendor, Quota)],
    ) {
        if limits.is_empty() {
            return self.remove(namespace, name);
        }
        let quota = Limits {
            scopes: scopes.to_vec(),
            by_vendor: limits.to_vec(),
        };
        self.limits
            .entry(namespace.to_owned())
            .or_default()
            .insert(name.to_owned(), quota);
    }

    pub(crate) fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(of_namespace) = self.limits.get_mut(namespace) {
            of_namespace.remove(name);
            if of_namespace.is_empty() {
                self.limits.remove(namespace);
            }
        }
    }

    /// The narrowest of the vendor's limits that count the pod, and the use on which it is based, without the pods that
    /// leave. Quotas with different scopes count different pods, so their uses differ. The answer has the largest of
    /// these uses, and raises each limit by as much as its own use is below that. So the difference of limit and use
    /// is what the narrowest quota leaves.
    pub(crate) fn limit(
        &self,
        pod: &Pod,
        vendor: &Vendor,
        leaving: &[&Reservation],
    ) -> Option<(Quota, Load)> {
        let counting = self.limits.get(&pod.namespace)?.values();
        counting
            .filter(|limits| counts(&limits.scopes, &pod.traits))
            .filter_map(|limits| {
                let used = self.used_of(&pod.namespace, vendor, &limits.scopes, leaving);
                Some((limits.of(vendor)?, used))
            })
            .reduce(narrower)
    }

    /// The limit of the quota of this name and its use, if it counts the pod.
    pub(crate) fn named(&self, pod: &Pod, name: &str, vendor: &Vendor) -> Option<(Quota, Load)> {
        let limits = self.limits.get(&pod.namespace)?.get(name)?;
        if !counts(&limits.scopes, &pod.traits) {
            return None;
        }
        let used = self.used_of(&pod.namespace, vendor, &limits.scopes, &[]);
        Some((limits.of(vendor)?, used))
    }

    /// Every namespace and vendor with a limit on all pods: the narrowest one, and the use of all pods.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &Vendor, Quota, Load)> {
        self.limits
            .iter()
            .flat_map(move |(namespace, of_namespace)| {
                let mut narrowest: BTreeMap<&Vendor, Quota> = BTreeMap::new();
                let plain = of_namespace
                    .values()
                    .filter(|limits| limits.scopes.is_empty());
                for (vendor, quota) in plain.flat_map(|limits| &limits.by_vendor) {
                    narrowest
                        .entry(vendor)
                        .and_modify(|before| *before = before.and(*quota))
                        .or_insert(*quota);
                }
                narrowest.into_iter().map(move |(vendor, quota)| {
                    let used = self.used_of(namespace, vendor, &[], &[]);
                    (namespace.as_str(), vendor, quota, used)
                })
            })
    }

    /// The devices that the namespace's pods with these conditions hold, without the pods that leave.
    pub(crate) fn used_of(
        &self,
        namespace: &str,
        vendor: &Vendor,
        scopes: &[QuotaScope],
        leaving: &[&Reservation],
    ) -> Load {
        let of_namespace = self.used.get(namespace).into_iter().flatten();
        let mut sum = of_namespace
            .filter(|used| used.vendor == *vendor && counts(scopes, &used.traits))
            .fold(Load::default(), |sum, used| sum.plus(used.load));
        for reservation in leaving {
            let pod = &reservation.pod;
            if pod.namespace == namespace && counts(scopes, &pod.traits) {
                for (of, load) in &reservation.charge {
                    if of == vendor {
                        sum = sum.minus(*load);
                    }
                }
            }
        }
        sum
    }

    pub(crate) fn charge(&mut self, pod: &Pod, charge: &[(Vendor, Load)]) {
        if charge.is_empty() {
            return;
        }
        let of_namespace = self.used.entry(pod.namespace.clone()).or_default();
        for (vendor, load) in charge {
            match of_namespace.iter_mut().find(|used| used.is(pod, vendor)) {
                Some(used) => used.load = used.load.plus(*load),
                None => of_namespace.push(Use {
                    vendor: vendor.clone(),
                    traits: pod.traits.clone(),
                    load: *load,
                }),
            }
        }
    }

    pub(crate) fn refund(&mut self, pod: &Pod, charge: &[(Vendor, Load)]) {
        let Some(of_namespace) = self.used.get_mut(&pod.namespace) else {
            return;
        };
        for (vendor, load) in charge {
            if let Some(used) = of_namespace.iter_mut().find(|used| used.is(pod, vendor)) {
                used.load = used.load.minus(*load);
            }
        }
        of_namespace.retain(|used| used.load != Load::default());
        if of_namespace.is_empty() {
            self.used.remove(&pod.namespace);
        }
    }
}

impl Use {
    fn is(&self, pod: &Pod, vendor: &Vendor) -> bool {
        self.vendor == *vendor && self.traits == pod.traits
    }
}

/// One limit and one use that leave as little as the narrower of both, for each amount.
fn narrower(one: (Quota, Load), other: (Quota, Load)) -> (Quota, Load) {
    let ((quota, used), (other_quota, other_used)) = (one, other);
    let most = Load {
        slots: used.slots.max(other_used.slots),
        cores: used.cores.max(other_used.cores),
        memory_bytes: used.memory_bytes.max(other_used.memory_bytes),
    };
    let raised = |quota: Quota, used: Load| {
        let missing = most.minus(used);
        Quota {
            memory_bytes: quota
                .memory_bytes
                .map(|limit| limit.saturating_add(missing.memory_bytes)),
            cores: quota.cores.map(|limit| limit.saturating_add(missing.cores)),
            devices: quota
                .devices
                .map(|limit| limit.saturating_add(missing.slots)),
        }
    };
    (
        raised(quota, used).and(raised(other_quota, other_used)),
        most,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules of `podMatchesScopeFunc` in Kubernetes' `pkg/quota/v1/evaluator/core/pods.go`.
    #[test]
    fn scopes_count_the_pods_that_kubernetes_counts() {
        let plain = PodTraits::default();
        let ending = PodTraits {
            terminating: true,
            ..PodTraits::default()
        };
        let best = PodTraits {
            best_effort: true,
            ..PodTraits::default()
        };
        let low = PodTraits {
            priority_class: "low".to_owned(),
            ..PodTraits::default()
        };
        let high = PodTraits {
            priority_class: "high".to_owned(),
            ..PodTraits::default()
        };
        let across = PodTraits {
            cross_namespace_affinity: true,
            ..PodTraits::default()
        };
        let pods = [&plain, &ending, &best, &low, &high, &across];
        let low_only = || vec!["low".to_owned()];
        let table: [(&[QuotaScope], [bool; 6]); 13] = [
            // plain, ending, best effort, low, high, across
            (&[], [true; 6]),
            (
                &[QuotaScope::Terminating],
                [false, true, false, false, false, false],
            ),
            (
                &[QuotaScope::NotTerminating],
                [true, false, true, true, true, true],
            ),
            (
                &[QuotaScope::BestEffort],
                [false, false, true, false, false, false],
            ),
            (
                &[QuotaScope::NotBestEffort],
                [true, true, false, true, true, true],
            ),
            (
                &[QuotaScope::CrossNamespacePodAffinity],
                [false, false, false, false, false, true],
            ),
            (
                &[QuotaScope::HasClass],
                [false, false, false, true, true, false],
            ),
            (
                &[QuotaScope::HasNoClass],
                [true, true, true, false, false, true],
            ),
            (
                &[QuotaScope::ClassIn(low_only())],
                [false, false, false, true, false, false],
            ),
            (
                &[QuotaScope::ClassNotIn(low_only())],
                [true, true, true, false, true, true],
            ),
            (&[QuotaScope::NoPod], [false; 6]),
            (
                &[QuotaScope::NotTerminating, QuotaScope::NotBestEffort],
                [true, false, false, true, true, true],
            ),
            (
                &[QuotaScope::HasClass, QuotaScope::ClassNotIn(low_only())],
                [false, false, false, false, true, false],
            ),
        ];
        for (scopes, expected) in table {
            let found = pods.map(|pod| counts(scopes, pod));
            assert_eq!(found, expected, "{scopes:?}");
        }
    }

    #[test]
    fn narrower_limit_leaves_the_least_of_each_amount() {
        let quota = |memory, devices| Quota {
            memory_bytes: memory,
            devices,
            cores: None,
        };
        let used = |memory_bytes, slots| Load {
            slots,
            cores: 0,
            memory_bytes,
        };

        // 10 - 4 = 6 and 20 - 15 = 5 are left of memory, and 3 - 1 = 2 devices.
        let (limit, base) = narrower(
            (quota(Some(10), None), used(4, 5)),
            (quota(Some(20), Some(3)), used(15, 1)),
        );

        assert_eq!(limit.memory_bytes.unwrap() - base.memory_bytes, 5);
        assert_eq!(limit.devices.unwrap() - base.slots, 2);
        assert_eq!(limit.cores, None);
    }
}
