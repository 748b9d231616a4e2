//! Clusters, pods and a scheduler to ask.
#![allow(dead_code, reason = "each test program uses what it needs")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, too"
)]

use std::sync::Arc;

use kube_api::config::DeviceConfig;
use kube_api::object::{Node, Pod};
use kube_api::vendor::{Switches, Vendors};
use serde_json::{Value, json};

pub(crate) fn vendors() -> Arc<Vendors> {
    let switches = Switches {
        ascend: true,
        iluvatar: true,
    };
    Arc::new(Vendors::new(DeviceConfig::standard(), switches).unwrap())
}

/// A node with so many GPUs of so many slots and so much memory.
pub(crate) fn node(name: &str, gpus: usize, slots: u32, mib: u32) -> Value {
    let register: Vec<Value> = (0..gpus)
        .map(|at| {
            json!({
                "id": format!("{name}-gpu-{at}"), "index": at, "count": slots, "devmem": mib, "devcore": 100,
                "type": "NVIDIA A100", "mode": "hami-core", "health": true,
            })
        })
        .collect();
    json!({
        "metadata": {
            "name": name,
            "annotations": { "hami.io/node-nvidia-register": Value::from(register).to_string() },
        },
        "status": { "allocatable": { "nvidia.com/gpu": gpus.to_string() } },
    })
}

/// A pod that asks for one share of so much memory.
pub(crate) fn pod(name: &str, mib: u32) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
        "spec": {
            "schedulerName": "hami-scheduler",
            "containers": [{
                "name": "c",
                "image": "i",
                "resources": { "limits": { "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib.to_string() } },
            }],
        },
    })
}

pub(crate) fn as_node(node: Value) -> Node {
    serde_json::from_value(node).unwrap()
}

pub(crate) fn as_pod(pod: Value) -> Pod {
    serde_json::from_value(pod).unwrap()
}

/// The same pod with these annotations, on this node (none for `""`).
pub(crate) fn placed(mut pod: Value, node: &str, annotations: &Value) -> Value {
    pod["spec"]["nodeName"] = node.into();
    pod["metadata"]["annotations"] = annotations.clone();
    pod
}
