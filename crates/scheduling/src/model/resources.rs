//! Amounts of resources as whole numbers. Fractions are rounded up, as `resource.Quantity` does.

use std::collections::BTreeMap;

use kube_api::quantity::Quantity;

use super::ReadError;
use crate::names::{Names, Symbol};

/// Amounts of resources: the amounts that a node offers, or that pods ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU in thousandths of a core.
    pub cpu_milli: i64,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// Ephemeral storage in bytes.
    pub ephemeral_bytes: i64,
    /// Extended resources, huge pages and attachable volumes: name and amount, by name.
    pub scalars: Vec<(Symbol, i64)>,
}

impl Resources {
    /// The amount of an extended resource, or of huge pages; `None` if it is not named.
    pub fn scalar(&self, name: Symbol) -> Option<i64> {
        self.scalars
            .iter()
            .find(|(of, _)| *of == name)
            .map(|(_, amount)| *amount)
    }

    /// Adds amounts, saturating at what 64 bits hold.
    pub(crate) fn add(&mut self, other: &Self) {
        self.apply(other, i64::saturating_add);
    }

    /// Subtracts amounts that were added before.
    pub(crate) fn subtract(&mut self, other: &Self) {
        self.apply(other, i64::saturating_sub);
        self.scalars.retain(|(_, amount)| *amount != 0);
    }

    fn apply(&mut self, other: &Self, step: fn(i64, i64) -> i64) {
        self.cpu_milli = step(self.cpu_milli, other.cpu_milli);
        self.memory_bytes = step(self.memory_bytes, other.memory_bytes);
        self.ephemeral_bytes = step(self.ephemeral_bytes, other.ephemeral_bytes);
        for (name, amount) in &other.scalars {
            match self.scalars.iter_mut().find(|(of, _)| of == name) {
                Some((_, held)) => *held = step(*held, *amount),
                None if *amount != 0 => self.scalars.push((*name, step(0, *amount))),
                None => {}
            }
        }
    }

    /// Whether nothing is asked for.
    pub(crate) fn is_nothing(&self) -> bool {
        self.cpu_milli == 0
            && self.memory_bytes == 0
            && self.ephemeral_bytes == 0
            && self.scalars.is_empty()
    }
}

/// Exact amounts by resource name, in thousand millionths.
pub(crate) type Exact = BTreeMap<String, i128>;

const NANO: i128 = 1_000_000_000;
const MILLI: i128 = 1_000_000;

pub(crate) const CPU: &str = "cpu";
pub(crate) const MEMORY: &str = "memory";
pub(crate) const EPHEMERAL: &str = "ephemeral-storage";
pub(crate) const PODS: &str = "pods";

/// The amount that kube-scheduler assumes for a container that asks for no CPU: 100 thousandths of a core.
pub(crate) const DEFAULT_CPU: i128 = 100 * MILLI;
/// The amount that kube-scheduler assumes for a container that asks for no memory: 200 MiB.
pub(crate) const DEFAULT_MEMORY: i128 = 200 * 1024 * 1024 * NANO;

fn rounded_up(nano: i128, unit: i128) -> i64 {
    let rounded = nano.div_euclid(unit) + i128::from(nano.rem_euclid(unit) != 0);
    i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
}

/// Reads a map of amounts.
pub(crate) fn exact(
    object: &str,
    field: &str,
    amounts: &BTreeMap<String, Quantity>,
) -> Result<Exact, ReadError> {
    let mut read = Exact::new();
    for (name, amount) in amounts {
        let amount = amount.parse().map_err(|error| ReadError::Amount {
            object: object.to_owned(),
            field: format!("{field}.{name}"),
            problem: error.to_string(),
        })?;
        read.insert(name.clone(), amount.nano());
    }
    Ok(read)
}

/// The amounts as whole numbers, and the number of pods allowed. Names that no plugin counts are left out.
pub(crate) fn whole(names: &mut Names, amounts: &Exact) -> (Resources, i64) {
    let mut resources = Resources::default();
    let mut pods = 0;
    for (name, nano) in amounts {
        match name.as_str() {
            CPU => resources.cpu_milli = rounded_up(*nano, MILLI),
            MEMORY => resources.memory_bytes = rounded_up(*nano, NANO),
            EPHEMERAL => resources.ephemeral_bytes = rounded_up(*nano, NANO),
            PODS => pods = rounded_up(*nano, NANO),
            other if is_scalar(other) => {
                resources
                    .scalars
                    .push((names.intern(other), rounded_up(*nano, NANO)));
            }
            _ => {}
        }
    }
    (resources, pods)
}

/// Whether the resource is an extended one: its name has a domain other than `kubernetes.io`.
pub fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

/// Whether the scheduler counts the resource by its name: extended resources, huge pages, `kubernetes.io/…` resources
/// and attachable volumes.
pub fn is_scalar(name: &str) -> bool {
    is_extended(name)
        || name.starts_with("hugepages-")
        || name.contains("kubernetes.io/")
        || name.starts_with("attachable-volumes-")
}
