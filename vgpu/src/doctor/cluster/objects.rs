//! Reads Kubernetes objects as JSON for the checks.

use std::sync::Arc;

use kube_api::config::DeviceConfig;
use kube_api::object::{Node, Pod};
use kube_api::vendor::{Role, Switches, Vendors};
use serde_json::Value;

use super::ClusterFacts;
use crate::doctor::check::{Finding, skip};

/// A field by its path (`/spec/nodeName`); empty if there is none.
pub(super) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The items of a list; empty if there is none.
pub(super) fn items<'a>(object: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    object
        .pointer(path)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

pub(super) fn number(object: &Value, path: &str) -> i64 {
    object
        .pointer(path)
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

pub(super) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub(super) fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

/// `NAMESPACE/NAME`.
pub(super) fn full_name(object: &Value) -> String {
    format!("{}/{}", namespace(object), name(object))
}

pub(super) fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    entry(object, "labels", key)
}

pub(super) fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    entry(object, "annotations", key)
}

fn entry<'a>(object: &'a Value, list: &str, key: &str) -> &'a str {
    let entry = object
        .get("metadata")
        .and_then(|metadata| metadata.get(list)?.get(key)?.as_str());
    entry.unwrap_or_default()
}

/// A whole-number quantity.
pub(super) fn amount(of: Option<&Value>) -> u64 {
    match of {
        Some(Value::Number(number)) => number.as_u64().unwrap_or_default(),
        Some(Value::String(text)) => match text.parse() {
            Ok(number) => number,
            Err(_) => text
                .strip_suffix('k')
                .and_then(|text| text.parse::<u64>().ok())
                .map_or(0, |thousands| thousands * 1_000),
        },
        _ => 0,
    }
}

/// Whether it is a part of this product (`scheduler`, `webhook`, `agent`).
pub(super) fn is_part(object: &Value, part: &str) -> bool {
    label(object, "app.kubernetes.io/name") == "vgpu"
        && label(object, "app.kubernetes.io/component") == part
}

/// Whether it is of the node agent: with the device plugin (`agent`), or with the DRA driver in its place (`dra`).
pub(super) fn is_agent(object: &Value) -> bool {
    is_part(object, "agent") || is_part(object, "dra")
}

pub(super) fn is_ours(object: &Value) -> bool {
    label(object, "app.kubernetes.io/name") == "vgpu"
}

/// A condition of the object, such as `Ready`.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    items(object, "/status/conditions").find(|condition| text(condition, "/type") == kind)
}

pub(super) fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").is_some_and(|ready| text(ready, "/status") == "True")
}

pub(super) fn is_over(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Whether it is being deleted.
pub(super) fn is_leaving(pod: &Value) -> bool {
    !text(pod, "/metadata/deletionTimestamp").is_empty()
}

/// All containers of a pod, init containers first.
pub(super) fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    items(pod, "/spec/initContainers").chain(items(pod, "/spec/containers"))
}

/// Commands and arguments of all containers.
pub(super) fn flag<'a>(object: &'a Value, flag: &str) -> Option<&'a str> {
    let words: Vec<&str> = containers(object)
        .flat_map(|container| items(container, "/command").chain(items(container, "/args")))
        .filter_map(Value::as_str)
        .collect();
    words.iter().enumerate().find_map(|(at, word)| {
        let rest = word.strip_prefix(flag)?;
        match rest.strip_prefix('=') {
            Some(value) => Some(value),
            None if rest.is_empty() => words.get(at + 1).copied(),
            None => None,
        }
    })
}

/// An API server's timestamp as seconds since 1970.
pub(super) fn unix(time: &str) -> Option<u64> {
    let time: jiff::Timestamp = time.parse().ok()?;
    u64::try_from(time.as_second()).ok()
}

impl ClusterFacts {
    /// The objects of this kind, unless listing them was refused.
    pub(super) fn read(&self, kinds: &[&str]) -> Result<(), Finding> {
        for kind in kinds {
            if let Some(why) = self.unread.get(*kind) {
                return Err(skip(format!("{kind} could not be listed: {why}")));
            }
        }
        Ok(())
    }

    /// Now, by the server's clock if known: times in objects are by that clock.
    pub(super) fn now(&self) -> u64 {
        self.server_unix.unwrap_or(self.asked_unix)
    }

    pub(super) fn pods_of(&self, part: &str) -> Vec<&Value> {
        self.pods
            .iter()
            .filter(|pod| is_part(pod, part) && !is_over(pod) && !is_leaving(pod))
            .collect()
    }

    /// The pods of a part, or why there are none to check.
    pub(super) fn need(&self, part: &str) -> Result<Vec<&Value>, Finding> {
        self.read(&["pods"])?;
        let pods = self.pods_of(part);
        if pods.is_empty() {
            return Err(skip(format!("no pod of the {part} was found (VGPU-K02)")));
        }
        Ok(pods)
    }

    /// The pods of node agents that give GPUs in either way, or why there are none to check.
    pub(super) fn agents(&self) -> Result<Vec<&Value>, Finding> {
        self.read(&["pods"])?;
        let mut pods = self.pods_of("agent");
        pods.extend(self.pods_of("dra"));
        if pods.is_empty() {
            return Err(skip("no pod of the agent was found (VGPU-K02)"));
        }
        Ok(pods)
    }

    /// The installation's namespace.
    pub(super) fn home(&self) -> Result<&str, Finding> {
        self.namespace
            .as_deref()
            .ok_or_else(|| skip("no part of vgpu was found (VGPU-K02)"))
    }

    /// The device configurations, by ConfigMap.
    pub(super) fn device_configs(&self) -> Vec<(&str, &str)> {
        let key = "/data/device-config.yaml";
        self.configmaps
            .iter()
            .filter(|map| map.pointer(key).is_some())
            .map(|map| (name(map), text(map, key)))
            .collect()
    }

    /// The scheduler's vendors; the standard ones without a device configuration.
    pub(super) fn vendors(&self) -> Arc<Vendors> {
        let scheduler = self.pods_of("scheduler");
        let on = |name: &str| {
            scheduler
                .first()
                .and_then(|pod| flag(pod, name))
                .is_some_and(|value| value == "true")
        };
        let switches = Switches {
            ascend: on("--enable-ascend"),
            iluvatar: on("--enable-iluvatar"),
        };
        let configs = self.device_configs();
        let written = configs
            .iter()
            .find_map(|(_, text)| DeviceConfig::parse(text).ok())
            .and_then(|config| Vendors::new(config, switches).ok());
        let standard = || {
            Vendors::new(DeviceConfig::standard(), switches)
                .expect("the standard configuration names no resource twice")
        };
        Arc::new(written.unwrap_or_else(standard))
    }

    /// The resource that counts NVIDIA GPUs.
    pub(super) fn resource(&self) -> String {
        let vendors = self.vendors();
        let row = vendors.iter().find(|row| row.word == "NVIDIA");
        row.and_then(|row| row.resource(Role::Count))
            .unwrap_or("nvidia.com/gpu")
            .to_owned()
    }

    /// The nodes, as the product reads them.
    pub(super) fn typed_nodes(&self) -> Vec<Node> {
        self.nodes
            .iter()
            .filter_map(|node| serde_json::from_value(node.clone()).ok())
            .collect()
    }
}

/// A pod, as the product reads it.
pub(super) fn typed_pod(pod: &Value) -> Option<Pod> {
    serde_json::from_value(pod.clone()).ok()
}
