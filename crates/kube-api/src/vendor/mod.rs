//! The vendors: one row for each in a table, and code only for what a row cannot say. A family is one file.

use std::collections::BTreeMap;

use placement::{Ask, Device, Granted, NodeView, Placement};

use crate::allocation::AllocationError;
use crate::config::{ConfigError, DeviceConfig};
use crate::node::Problem;
use crate::object::{Container, Node, Pod};
use crate::request::{Defaults, RequestError};

/// Which vendors are looked at besides those that always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switches {
    /// Huawei Ascend.
    pub ascend: bool,
    /// Iluvatar.
    pub iluvatar: bool,
}

/// All vendors of a configuration, in a fixed order: NVIDIA first.
#[derive(Debug)]
pub struct Vendors {
    config: DeviceConfig,
    rows: Vec<Row>,
}

/// What a resource of a vendor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// How many cards, or shares of cards.
    Count,
    /// Memory on each.
    Memory,
    /// Memory on each, in hundredths of the card.
    MemoryPercent,
    /// Compute on each.
    Cores,
    /// Priority of the task on the card.
    Priority,
}

/// One vendor.
#[derive(Debug)]
pub struct Row {
    /// The word under which the engine and the annotations know it (`NVIDIA`, `DCU`, `Ascend910B3`).
    pub word: String,
    // resources by role, memory unit, annotation keys, kind of registration, rounding, family ...
}

/// What admission changes of a container for its vendor's sake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits {
    /// Limits to set, by resource name.
    pub limits: BTreeMap<String, String>,
    /// Environment to add, where the name is not there yet.
    pub env: Vec<(String, String)>,
    /// Annotations of the pod to add, where the key is not there yet.
    pub annotations: BTreeMap<String, String>,
    /// Runtime class of the pod, where it has none.
    pub runtime_class: Option<String>,
}

/// A container that cannot be admitted: which field, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("container {container}: {field}: {problem}")]
pub struct Rejection {
    /// Name of the container.
    pub container: String,
    /// Which field or resource (`resources.limits[nvidia.com/gpumem-percentage]`).
    pub field: String,
    /// What was read, what is accepted, and what to do.
    pub problem: String,
}

impl Vendors {
    /// The table of this configuration.
    ///
    /// # Errors
    ///
    /// When two vendors claim one resource name, or a template cannot be used.
    pub fn new(config: DeviceConfig, switches: Switches) -> Result<Self, ConfigError> {
        let _ = (config, switches);
        unimplemented!()
    }

    /// The configuration that it was made of.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// All vendors, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter()
    }

    /// The vendor of this word.
    pub fn get(&self, word: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.word == word)
    }

    /// Whose resource this is, and what it says.
    pub fn of_resource(&self, name: &str) -> Option<(&Row, Role)> {
        let _ = name;
        unimplemented!()
    }

    /// Every resource name, with its vendor and what it says.
    pub fn resources(&self) -> impl Iterator<Item = (&str, &Row, Role)> {
        std::iter::empty()
    }

    /// Every pod annotation that only the scheduler and the agents write.
    pub fn allocation_keys(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }
}

impl Row {
    /// What the container asks of this vendor; none when it asks for nothing of it.
    pub(crate) fn ask(
        &self,
        container: &Container,
        pod: &Pod,
        defaults: &Defaults,
    ) -> Result<Option<Ask>, RequestError> {
        let _ = (container, pod, defaults);
        unimplemented!()
    }

    /// The vendor's devices on the node; none where the node does not report any.
    pub(crate) fn devices(&self, node: &Node) -> Result<Vec<Device>, Problem> {
        let _ = node;
        unimplemented!()
    }

    /// Adds the annotations that say what the pod got of this vendor.
    pub(crate) fn annotate(
        &self,
        pod: &Pod,
        placement: &Placement,
        node: Option<NodeView<'_>>,
        into: &mut BTreeMap<String, String>,
    ) {
        let _ = (pod, placement, node, into);
        unimplemented!()
    }

    /// What the pod's annotations say that it got of this vendor, by container (init containers first).
    pub(crate) fn granted(&self, pod: &Pod) -> Result<Option<Vec<Granted>>, AllocationError> {
        let _ = pod;
        unimplemented!()
    }

    /// What admission changes of this container.
    ///
    /// # Errors
    ///
    /// When what it asks for cannot be given in any cluster.
    pub fn admit(&self, container: &Container, pod: &Pod) -> Result<Edits, Rejection> {
        let _ = (container, pod);
        unimplemented!()
    }
}
