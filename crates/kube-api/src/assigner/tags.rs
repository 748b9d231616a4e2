//! The labels of a GPU: those in its node's annotation, and those that follow from its agent's registration. Does not
//! decide which GPU a pod gets.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use placement::Device;
use serde_json::Value;

use super::{DEVICE_LABELS, LABELLED, Labels, is_request};
use crate::object::Node;
use crate::quantity::shortened;

/// The most devices that are read from one annotation, and the most labels of one device.
const MOST_DEVICES: usize = 1024;
const MOST_LABELS: usize = 256;

/// The contents of a node's annotation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceLabels {
    /// Labels by UUID.
    pub devices: Labels,
    /// The errors in it.
    pub problems: Vec<LabelProblem>,
}

/// An error in [`DEVICE_LABELS`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelProblem {
    /// The value is not base64.
    #[error(
        "annotation {DEVICE_LABELS} is no base64 ({0}); expected base64 of {{\"GPU UUID\":[\"fudo.org/gpu.NAME\"]}}"
    )]
    Base64(String),
    /// The value is not JSON, or not an object.
    #[error(
        "annotation {DEVICE_LABELS} holds no JSON object ({0}); expected {{\"GPU UUID\":[\"fudo.org/gpu.NAME\"]}}"
    )]
    Json(String),
    /// The labels of a device are not a list of texts.
    #[error(
        "annotation {DEVICE_LABELS}: the labels of {0} are no list of texts; this device has none of them"
    )]
    Labels(String),
    /// An identifier is not a UUID.
    #[error("annotation {DEVICE_LABELS}: {0:?} is no UUID of a device; it is left out")]
    Uuid(String),
    /// There are too many devices.
    #[error("annotation {DEVICE_LABELS} names {0} devices; {MOST_DEVICES} are read")]
    TooMany(usize),
}

/// Reads the annotation of a node. An error in one device affects no other device. A node without the annotation has
/// no labels and no problem.
pub fn device_labels(node: &Node) -> DeviceLabels {
    let mut read = DeviceLabels::default();
    let Some(text) = crate::register::annotation(node, DEVICE_LABELS) else {
        return read;
    };
    // The `base64` command breaks its lines.
    let text: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let bytes = match STANDARD.decode(&text) {
        Ok(bytes) => bytes,
        Err(problem) => {
            read.problems
                .push(LabelProblem::Base64(problem.to_string()));
            return read;
        }
    };
    let devices: BTreeMap<String, Value> = match serde_json::from_slice(&bytes) {
        Ok(devices) => devices,
        Err(problem) => {
            read.problems.push(LabelProblem::Json(problem.to_string()));
            return read;
        }
    };
    if devices.len() > MOST_DEVICES {
        read.problems.push(LabelProblem::TooMany(devices.len()));
    }
    for (uuid, labels) in devices.into_iter().take(MOST_DEVICES) {
        let unfit = |c: char| matches!(c, ',' | ':' | ';') || c.is_control() || c.is_whitespace();
        if uuid.is_empty() || uuid.len() > 253 || uuid.contains(unfit) {
            read.problems.push(LabelProblem::Uuid(shortened(&uuid)));
            continue;
        }
        let texts: Option<BTreeSet<String>> = labels.as_array().and_then(|labels| {
            let texts = labels.iter().take(MOST_LABELS);
            texts
                .map(|label| label.as_str().map(str::to_owned))
                .collect()
        });
        match texts {
            Some(texts) => {
                let known = texts.into_iter().filter(|label| is_request(label));
                read.devices.insert(uuid, known.collect());
            }
            None => {
                read.problems.push(LabelProblem::Labels(shortened(&uuid)));
                read.devices.insert(uuid, BTreeSet::new());
            }
        }
    }
    read
}

/// Gives the devices of a node their labels, as tags: those that follow from model, memory and vendor, and those of
/// the node's annotation. A device that is only in the annotation is added with the vendor [`LABELLED`]. Returns the
/// errors in the annotation.
pub fn tag(report: &mut placement::Node, node: &Node) -> Vec<LabelProblem> {
    let mut said = device_labels(node);
    for device in &mut report.devices {
        let mut labels = derived(device);
        labels.extend(said.devices.remove(&device.id).unwrap_or_default());
        device.tags.extend(labels);
    }
    let known = report.devices.len();
    for (index, (uuid, labels)) in (known..).zip(said.devices) {
        if report.devices.len() >= MOST_DEVICES {
            said.problems.push(LabelProblem::TooMany(index));
            break;
        }
        let mut device = Device::new(LABELLED, &uuid, "", 0);
        device.index = u32::try_from(index).unwrap_or(u32::MAX);
        device.slots = 1;
        device.cores = 0;
        device.tags = labels.into_iter().collect();
        report.devices.push(device);
    }
    said.problems
}

/// Labels that follow from the agent's registration: the vendor (`gpu.nvidia`), the full and the short model
/// (`gpu.a100-sxm4-80gb`, `gpu.a100`), and the memory class (`gpu.vram-80g`).
fn derived(device: &Device) -> BTreeSet<String> {
    let vendor = slug(device.vendor.as_str());
    let full = slug(&device.model);
    let mut full = full.as_str();
    while let Some(rest) = full.strip_prefix(&vendor) {
        let rest = rest.trim_start_matches(['-', '.']);
        if rest.len() == full.len() {
            break;
        }
        full = rest;
    }
    let mut names: BTreeSet<String> = [vendor.clone(), full.to_owned()].into();
    names.extend(short(full));
    names.extend(memory_class(device.memory_bytes).map(|class| format!("vram-{class}g")));
    names
        .into_iter()
        // The name of a label has at most 63 characters.
        .filter(|name| !name.is_empty() && name.len() <= 59)
        .map(|name| format!("fudo.org/gpu.{name}"))
        .collect()
}

/// Lower case, with `-` for every run of characters other than letters, digits and dots.
fn slug(text: &str) -> String {
    let mut slug = String::new();
    for c in text.to_lowercase().chars() {
        if c.is_ascii_alphanumeric() || c == '.' {
            slug.push(c);
        } else if !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.trim_matches(['-', '.']).to_owned()
}

/// The short name of a model: the first word with a digit, prefixed with `rtx-` or `gtx-` if the full name has that.
fn short(full: &str) -> Option<String> {
    let mut before = "";
    for word in full.split('-') {
        let digit = word.chars().any(|c| c.is_ascii_digit());
        if digit && word.chars().any(|c| c.is_ascii_alphabetic()) {
            return Some(match before {
                "rtx" | "gtx" => format!("{before}-{word}"),
                _ => word.to_owned(),
            });
        }
        if digit {
            return matches!(before, "rtx" | "gtx").then(|| format!("{before}-{word}"));
        }
        before = word;
    }
    None
}

/// The advertised size in GB: the smallest usual size that is at least what the driver reports. The driver keeps some
/// memory for itself.
fn memory_class(bytes: u64) -> Option<u64> {
    const CLASSES: [u64; 26] = [
        2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 192,
        256, 288, 384,
    ];
    let mib = bytes >> 20;
    if mib == 0 {
        return None;
    }
    CLASSES
        .into_iter()
        .find(|class| class * 1024 >= mib)
        .or(Some(mib.div_ceil(1024)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(model: &str, mib: u64, expected: &[&str]) {
        let device = Device::new("NVIDIA", "GPU-1", model, mib << 20);
        let labels: Vec<String> = derived(&device).into_iter().collect();
        let expected: Vec<String> = expected
            .iter()
            .map(|name| format!("fudo.org/gpu.{name}"))
            .collect();
        assert_eq!(labels, expected, "{model}");
    }

    #[test]
    fn labels_follow_from_vendor_model_and_memory() {
        check(
            "NVIDIA-NVIDIA A100-SXM4-80GB",
            81_920,
            &["a100", "a100-sxm4-80gb", "nvidia", "vram-80g"],
        );
        check(
            "Tesla T4",
            15_360,
            &["nvidia", "t4", "tesla-t4", "vram-16g"],
        );
        check(
            "NVIDIA GeForce RTX 4090",
            24_564,
            &["geforce-rtx-4090", "nvidia", "rtx-4090", "vram-24g"],
        );
        check("NVIDIA L40S", 46_068, &["l40s", "nvidia", "vram-48g"]);
        check("NVIDIA H200", 143_771, &["h200", "nvidia", "vram-141g"]);
        check("", 0, &["nvidia"]);
    }
}
