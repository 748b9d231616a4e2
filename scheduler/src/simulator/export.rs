//! Everything of a cluster that an import takes, as `GET /api/v1/export` prints it.

use embedded_cluster::{Cluster, Snapshot};
use serde::Serialize;
use serde_json::Value;

use super::kinds::{KINDS, without_type};
use super::shown::Shown;

/// The objects of the seven kinds and the configuration. An empty list is `[]`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Export {
    pods: Vec<Value>,
    nodes: Vec<Value>,
    pvs: Vec<Value>,
    pvcs: Vec<Value>,
    storage_classes: Vec<Value>,
    priority_classes: Vec<Value>,
    scheduler_config: Shown,
    namespaces: Vec<Value>,
}

impl Export {
    pub(super) fn of(cluster: &Cluster, shown: Shown) -> Self {
        let objects = cluster.snapshot();
        let list = |key| list(cluster, &objects, key);
        Self {
            pods: list("pods"),
            nodes: list("nodes"),
            pvs: list("pvs"),
            pvcs: list("pvcs"),
            storage_classes: list("storageClasses"),
            priority_classes: list("priorityClasses"),
            scheduler_config: shown,
            namespaces: list("namespaces"),
        }
    }
}

fn list(cluster: &Cluster, objects: &Snapshot, key: &str) -> Vec<Value> {
    let Some(kind) = KINDS.iter().find(|kind| kind.key == key) else {
        return Vec::new();
    };
    let Ok(resource) = kind.resource(cluster) else {
        return Vec::new();
    };
    let objects = objects
        .list(&resource)
        .filter(|object| !kind.is_given(object.name()));
    objects.map(|object| without_type(object.value())).collect()
}
