//! Shared by this crate's tests: the standard table of vendors, and short ways to write pods and nodes.

#![allow(
    dead_code,
    reason = "each test program takes what it needs of what they share"
)]

use std::path::PathBuf;
use std::sync::LazyLock;

use kube_api::config::DeviceConfig;
use kube_api::object::{Container, Node, Pod, ResourceQuota};
use kube_api::vendor::{Switches, Vendors};
use serde_json::{Value, json};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn all_vendors() -> Switches {
    Switches {
        ascend: true,
        iluvatar: true,
    }
}

/// The standard table, made once because reading YAML is slow in a debug build.
pub(crate) fn vendors() -> &'static Vendors {
    static TABLE: LazyLock<Vendors> =
        LazyLock::new(|| Vendors::new(DeviceConfig::standard(), all_vendors()).unwrap());
    &TABLE
}

/// The standard configuration with changes in NVIDIA's section.
pub(crate) fn vendors_with(change: impl FnOnce(&mut kube_api::config::Nvidia)) -> Vendors {
    let mut config = DeviceConfig::standard();
    change(config.nvidia.as_mut().unwrap());
    Vendors::new(config, all_vendors()).unwrap()
}

pub(crate) fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn node(value: Value) -> Node {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn quota(value: Value) -> ResourceQuota {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn container(limits: Value) -> Container {
    serde_json::from_value(json!({"name": "c", "resources": {"limits": limits}})).unwrap()
}

/// A pod of one container with these limits and annotations.
pub(crate) fn asking(limits: Value, annotations: Value) -> Pod {
    pod(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": annotations},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }))
}

/// A node with these annotations and these allocatable amounts.
pub(crate) fn reporting(annotations: Value, allocatable: Value) -> Node {
    node(json!({
        "metadata": {"name": "n1", "annotations": annotations},
        "status": {"allocatable": allocatable.clone(), "capacity": allocatable},
    }))
}

/// The directory of the reference's recordings.
pub(crate) fn recordings() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/hami")
}

pub(crate) fn recording(id: &str) -> Value {
    let text = std::fs::read_to_string(recordings().join(format!("{id}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}
