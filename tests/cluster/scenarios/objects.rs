//! Nodes and pods as the tests write them, and the fields that they read back.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

/// The annotation of a placed pod in which the tests look its devices up.
pub(crate) const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";

/// The identical GPUs of a node.
#[derive(Debug, Clone)]
pub(crate) struct Gpus {
    pub(crate) count: usize,
    pub(crate) memory_mib: u64,
    /// How many pods may share one.
    pub(crate) slots: usize,
    pub(crate) model: &'static str,
}

impl Default for Gpus {
    fn default() -> Self {
        Self {
            count: 8,
            memory_mib: 81559,
            slots: 10,
            model: "NVIDIA H100 80GB HBM3",
        }
    }
}

impl Gpus {
    /// The node agent's annotation.
    pub(crate) fn register(&self, node: &str) -> String {
        (0..self.count)
            .map(|gpu| {
                format!(
                    "GPU-{node}-{gpu},{},{},100,{},{},true:",
                    self.slots,
                    self.memory_mib,
                    self.model,
                    2 * gpu / self.count
                )
            })
            .collect()
    }

    /// A node with these, as its kubelet and its agent make it.
    pub(crate) fn node(&self, name: &str) -> Node {
        let capacity = json!({"cpu": "128", "memory": "1Ti", "pods": "1000",
            "nvidia.com/gpu": (self.count * self.slots).to_string()});
        from(json!({
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name},
                "annotations": {"hami.io/node-nvidia-register": self.register(name)},
            },
            "status": {"capacity": capacity, "allocatable": capacity,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
        }))
    }
}

/// A pod of one container for our scheduler, with these limits.
pub(crate) fn pod(name: &str, limits: Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": "hami-scheduler",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "work", "image": "example/work:1", "resources": {"limits": limits}}],
        },
    })
}

/// Limits of one GPU with this much of its memory.
pub(crate) fn gpu_with(memory_mib: u64) -> Value {
    json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory_mib})
}

/// Limits of whole GPUs.
pub(crate) fn whole(gpus: usize) -> Value {
    json!({"nvidia.com/gpu": gpus, "nvidia.com/gpumem-percentage": 100})
}

/// A typed object from its JSON.
pub(crate) fn from<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap()
}

/// The pod's node.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    Some(pod.metadata.annotations.as_ref()?.get(key)?.as_str())
}

/// UUID and MiB of each device that the pod was given.
pub(crate) fn devices(pod: &Pod) -> Vec<(String, u64)> {
    let text = annotation(pod, ALLOCATED).unwrap_or_default();
    text.split([';', ':'])
        .filter_map(|device| {
            let mut fields = device.split(',');
            Some((fields.next()?.to_owned(), fields.nth(1)?.parse().unwrap()))
        })
        .collect()
}

/// The UUIDs of all devices that these pods were given.
pub(crate) fn uuids<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeSet<String> {
    pods.into_iter()
        .flat_map(devices)
        .map(|(uuid, _)| uuid)
        .collect()
}

/// Memory in MiB that these pods have on each device.
pub(crate) fn memory_by_device<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
) -> BTreeMap<String, u64> {
    let mut used = BTreeMap::new();
    for (uuid, memory) in pods.into_iter().flat_map(devices) {
        *used.entry(uuid).or_default() += memory;
    }
    used
}
