//! What a pod holds, as its annotations say it: the seed's keys and the newer ones, for every vendor.

use std::collections::BTreeMap;

use placement::{NodeView, Placement};

use crate::object::Pod;
use crate::vendor::Vendors;

/// Why what a pod's annotations say cannot be read. The pod counts as holding nothing, and is told so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key}: {problem}")]
pub struct AllocationError {
    /// The annotation.
    pub key: String,
    /// What was read, what is accepted.
    pub problem: String,
}

/// What is written to a pod with its binding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// Annotations to set.
    pub annotations: BTreeMap<String, String>,
    /// Labels to set.
    pub labels: BTreeMap<String, String>,
}

/// What the pod holds on the node that it runs on (`spec.nodeName`, and where that is empty the node that the
/// annotations name); none when the annotations say nothing.
///
/// # Errors
///
/// When an annotation cannot be read.
pub fn read(pod: &Pod, vendors: &Vendors) -> Result<Option<Placement>, AllocationError> {
    let _ = (pod, vendors);
    unimplemented!()
}

/// What to write for this placement. `node` is where it lies (some vendors write a card's index or model), `unix_nanoseconds` is now.
pub fn write(
    pod: &Pod,
    placement: &Placement,
    node: Option<NodeView<'_>>,
    vendors: &Vendors,
    unix_nanoseconds: u64,
) -> Written {
    let _ = (pod, placement, node, vendors, unix_nanoseconds);
    unimplemented!()
}
