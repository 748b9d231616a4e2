//! Recorded calls of a codec, made directly with `kube_api`'s functions, because no HTTP answer shows them.

use kube_api::{allocation, lock, node};
use serde_json::Value;

use super::facts::{Facts, texts};

/// Whether the step calls a codec and needs no program.
pub(crate) fn is_codec(step: &Value) -> bool {
    matches!(
        step["op"].as_str(),
        Some("decodeNodeDevices" | "decodePodDevices" | "parseNodeLock")
    )
}

/// The codec's answer: a value, or the fact that it is an error.
pub(crate) fn decode(step: &Value) -> Facts {
    let input = step["input"].as_str().unwrap();
    let facts = match step["op"].as_str().unwrap() {
        "decodeNodeDevices" => devices(input),
        "decodePodDevices" => containers(input),
        "parseNodeLock" => lock_of(input),
        other => panic!("unknown codec {other}"),
    };
    facts.unwrap_or_else(|| Facts::from(["error".to_owned()]))
}

fn devices(input: &str) -> Option<Facts> {
    let devices = node::decode_colon(input).ok()?;
    let facts = devices.iter().map(|device| {
        format!(
            "device {} {} = {} slots {} MiB {} cores of {:?} numa {} mode {:?} {}",
            device.index.unwrap_or_default(),
            device.id,
            device.count,
            device.devmem,
            device.devcore,
            device.kind,
            device.numa,
            device.mode,
            if device.health { "healthy" } else { "sick" },
        )
    });
    Some(facts.collect())
}

fn containers(input: &str) -> Option<Facts> {
    let annotations = texts(&serde_json::from_str(input).unwrap());
    let containers = allocation::decode(&annotations["hami.io/vgpu-devices-allocated"]).ok()?;
    let facts = containers.iter().enumerate().map(|(index, container)| {
        let devices: Vec<String> = container
            .iter()
            .map(|slot| {
                format!(
                    "{} {} MiB {} cores",
                    slot.device, slot.memory_mib, slot.cores
                )
            })
            .collect();
        format!("NVIDIA[{index}] = {}", devices.join(" + "))
    });
    Some(facts.collect())
}

fn lock_of(input: &str) -> Option<Facts> {
    let lock = lock::parse(input).ok()?;
    let (namespace, name) = lock.owner.unwrap_or_default();
    Some(Facts::from([
        format!("namespace {namespace:?}"),
        format!("name {name:?}"),
        format!("time \"{}\"", lock.time),
    ]))
}
