//! The seven kinds of the simulator's own API, and the objects that exports and imports leave out.

use embedded_cluster::{Cluster, Resource, Status};
use serde_json::Value;
use std::sync::Arc;

/// One of the seven kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The API group; empty for the core.
    pub group: &'static str,
    /// The plural: `Kind` of a frame of the stream.
    pub plural: &'static str,
    /// Its key in an export.
    pub key: &'static str,
    /// The part before `LastResourceVersion` in the stream's parameters.
    pub short: &'static str,
}

/// In the order of an import: each may need those before it.
pub const KINDS: [Kind; 7] = [
    kind("", "namespaces", "namespaces", "namespace"),
    kind(
        "scheduling.k8s.io",
        "priorityclasses",
        "priorityClasses",
        "pcs",
    ),
    kind("storage.k8s.io", "storageclasses", "storageClasses", "scs"),
    kind("", "persistentvolumeclaims", "pvcs", "pvcs"),
    kind("", "nodes", "nodes", "nodes"),
    kind("", "pods", "pods", "pods"),
    kind("", "persistentvolumes", "pvs", "pvs"),
];

const fn kind(
    group: &'static str,
    plural: &'static str,
    key: &'static str,
    short: &'static str,
) -> Kind {
    Kind {
        group,
        plural,
        key,
        short,
    }
}

impl Kind {
    /// Its resource in a cluster.
    ///
    /// # Errors
    ///
    /// The cluster does not serve it.
    pub fn resource(&self, cluster: &Cluster) -> Result<Arc<Resource>, Status> {
        cluster.resource(self.group, self.plural)
    }

    /// Whether every cluster has an object with this name; such objects are in no export or import.
    pub fn is_given(&self, name: &str) -> bool {
        match self.plural {
            "namespaces" => name == "default" || name.starts_with("kube-"),
            "priorityclasses" => name.starts_with("system-"),
            _ => false,
        }
    }
}

/// The object without the two fields that the simulator's API leaves out.
pub(crate) fn without_type(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    object
}
