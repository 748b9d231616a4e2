//! The parts of a node that plugins read. The pods on it are in the snapshot.

use std::sync::Arc;

use serde::Deserialize as _;
use serde_json::Value;

use super::resources::{self, Resources};
use super::selector::Labels;
use super::{ReadError, wire};
use crate::names::{Names, Symbol};

/// The effect of a taint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Pods that do not tolerate it are not placed.
    NoSchedule,
    /// Pods that do not tolerate it are placed on another node if possible.
    PreferNoSchedule,
    /// Pods that do not tolerate it are not placed, and running ones are evicted.
    NoExecute,
    /// An effect that this release does not know.
    Other,
}

impl Effect {
    pub(crate) fn read(text: &str) -> Self {
        match text {
            "NoSchedule" => Self::NoSchedule,
            "PreferNoSchedule" => Self::PreferNoSchedule,
            "NoExecute" => Self::NoExecute,
            _ => Self::Other,
        }
    }
}

/// A taint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: Symbol,
    /// Its value.
    pub value: Symbol,
    /// Its effect.
    pub effect: Effect,
}

/// A node.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Its name as a symbol.
    pub symbol: Symbol,
    /// Its labels.
    pub labels: Labels,
    /// Its taints, in the order in which they are written.
    pub taints: Box<[Taint]>,
    /// Whether it is cordoned (`spec.unschedulable`).
    pub unschedulable: bool,
    /// The resources that it offers to pods.
    pub allocatable: Resources,
    /// How many pods it takes.
    pub allowed_pods: i64,
    /// The images on it, by name, with their size in bytes.
    pub images: Box<[(Symbol, i64)]>,
    /// Its shared devices for `placement`, and the parts of its report that cannot be read.
    pub devices: Option<Arc<placement::Node>>,
}

impl Node {
    /// Reads a node.
    ///
    /// # Errors
    ///
    /// When it has no name, when a field has another type than Kubernetes gives it, or when an amount cannot be read.
    pub fn read(names: &mut Names, object: &Value) -> Result<Self, ReadError> {
        let written =
            wire::NodeObject::deserialize(object).map_err(|error| ReadError::Malformed {
                object: wire::named("node", object),
                problem: error.to_string(),
            })?;
        if written.metadata.name.is_empty() {
            return Err(ReadError::Nameless { kind: "node" });
        }
        let subject = format!("node {}", written.metadata.name);
        // As in the API server, a node without allocatable amounts offers its capacity.
        let (field, amounts) = if written.status.allocatable.is_empty() {
            ("status.capacity", &written.status.capacity)
        } else {
            ("status.allocatable", &written.status.allocatable)
        };
        let exact = resources::exact(&subject, field, amounts)?;
        let (allocatable, allowed_pods) = resources::whole(names, &exact);
        let labels = &written.metadata.labels;
        let mut images: Vec<(Symbol, i64)> = Vec::new();
        for image in &written.status.images {
            for name in &image.names {
                images.push((names.intern(name), image.size_bytes));
            }
        }
        images.sort_unstable();
        images.dedup_by_key(|(name, _)| *name);
        Ok(Self {
            symbol: names.intern(&written.metadata.name),
            labels: Labels::new(names, labels.iter().map(|(key, value)| (&**key, &**value))),
            taints: written
                .spec
                .taints
                .iter()
                .map(|taint| Taint {
                    key: names.intern(&taint.key),
                    value: names.intern(taint.value.as_deref().unwrap_or_default()),
                    effect: Effect::read(&taint.effect),
                })
                .collect(),
            unschedulable: written.spec.unschedulable,
            allocatable,
            allowed_pods,
            images: images.into(),
            devices: None,
            name: written.metadata.name.into(),
        })
    }
}
