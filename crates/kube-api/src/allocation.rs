//! A pod's allocation, read from and written to its annotations, for every vendor. Does not decide whether the pod may
//! hold it.

use std::collections::BTreeMap;

use placement::{Granted, NodeView, Placement};

use crate::fields::annotation;
use crate::keys;
use crate::object::Pod;
use crate::vendor::{Vendors, Writing};

pub use crate::slots::{
    AllocationError, DecodeError, MigAllocation, MigSpan, Slot, decode, decode_instances, encode,
};

/// The annotations and labels that are written with a pod's binding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BindingMarks {
    /// Annotations to set.
    pub annotations: BTreeMap<String, String>,
    /// Labels to set.
    pub labels: BTreeMap<String, String>,
}

/// The devices that the pod holds on its node (`spec.nodeName`, or if that is empty the node in its annotations);
/// `None` without allocation annotations.
///
/// # Errors
///
/// When an annotation cannot be read.
pub fn read(pod: &Pod, vendors: &Vendors) -> Result<Option<Placement>, AllocationError> {
    let Some(node) = node_of(pod) else {
        return Ok(None);
    };
    let mut containers: Vec<Granted> = Vec::new();
    for row in vendors.iter() {
        let Some(granted) = row.granted(pod)? else {
            continue;
        };
        if containers.len() < granted.len() {
            containers.resize(granted.len(), Granted::default());
        }
        for (into, from) in containers.iter_mut().zip(granted) {
            into.kind = from.kind;
            into.grants.extend(from.grants);
        }
    }
    let holds = containers.iter().any(|granted| !granted.grants.is_empty());
    Ok(holds.then(|| Placement {
        node: node.into(),
        containers,
    }))
}

fn node_of(pod: &Pod) -> Option<&str> {
    if pod.spec.node_name.is_empty() {
        annotation(pod, keys::VGPU_NODE)
    } else {
        Some(&pod.spec.node_name)
    }
}

/// The annotations and labels for this placement. `node` is the pod's node (some vendors write a device's index or
/// model), `unix_nanoseconds` is the present time.
pub fn write(
    pod: &Pod,
    placement: &Placement,
    node: Option<NodeView<'_>>,
    vendors: &Vendors,
    unix_nanoseconds: u64,
) -> BindingMarks {
    const NANOSECONDS: u64 = 1_000_000_000;
    let writing = Writing {
        pod,
        placement,
        node,
        unix_nanoseconds,
    };
    let mut written = BindingMarks::default();
    for row in vendors.iter() {
        let grants = placement
            .containers
            .iter()
            .flat_map(|granted| &granted.grants);
        if grants
            .clone()
            .any(|grant| grant.vendor.as_str() == row.word)
        {
            row.annotate(&writing, &mut written.annotations);
        }
    }
    let seconds = unix_nanoseconds / NANOSECONDS;
    let annotations = &mut written.annotations;
    annotations.insert(keys::VGPU_NODE.to_owned(), placement.node.to_string());
    annotations.insert(keys::VGPU_TIME.to_owned(), seconds.to_string());
    // A node's name may be too long for a label, and the API server would then refuse the whole request.
    if placement.node.len() <= MOST_LABEL_LETTERS {
        written
            .labels
            .insert(keys::VGPU_NODE.to_owned(), placement.node.to_string());
    }
    written
}

/// The longest value of a label.
const MOST_LABEL_LETTERS: usize = 63;
