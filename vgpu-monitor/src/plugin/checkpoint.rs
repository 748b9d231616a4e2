//! The kubelet's own record of which container of which pod holds which slots, `kubelet_internal_checkpoint`
//! beside its sockets. Read only, and only where its API is silent: its list has no uids and no plain init
//! containers. The plugin's lost state can be restored from the record, since the kubelet keeps the answers of
//! `Allocate`.
//!
//! The format is not part of any API: what cannot be read counts as absent.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use prost::Message as _;
use serde::Deserialize;

use crate::proto::device_plugin::ContainerAllocateResponse;

/// Name of the file in the kubelet's folder of device plugins.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// A file larger than this is not read.
const MOST_BYTES: u64 = 64 << 20;

/// One container's slots.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointEntry {
    /// The pod's uid.
    pub uid: String,
    /// The container.
    pub container: String,
    /// The resource.
    pub resource: String,
    /// The slots, sorted.
    pub ids: Vec<String>,
    /// The answer to `Allocate`, where it can be read.
    pub answer: Option<ContainerAllocateResponse>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wire {
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    #[serde(default)]
    pod_device_entries: Option<Vec<PodDevices>>,
}

#[derive(Deserialize)]
struct PodDevices {
    #[serde(rename = "PodUID")]
    uid: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// By NUMA node.
    #[serde(rename = "DeviceIDs", default)]
    ids: Option<BTreeMap<String, Option<Vec<String>>>>,
    /// Base64.
    #[serde(rename = "AllocResp", default)]
    answer: Option<String>,
}

/// The entries of the text; `None` if it is no checkpoint.
pub fn decode(text: &[u8]) -> Option<Vec<CheckpointEntry>> {
    let wire: Wire = serde_json::from_slice(text).ok()?;
    let entries = wire.data.pod_device_entries.unwrap_or_default();
    let entry = |entry: PodDevices| {
        let ids = entry.ids.unwrap_or_default();
        let mut ids: Vec<String> = ids.into_values().flatten().flatten().collect();
        ids.sort();
        ids.dedup();
        CheckpointEntry {
            uid: entry.uid,
            container: entry.container,
            resource: entry.resource,
            ids,
            answer: entry
                .answer
                .and_then(|text| base64(&text))
                .and_then(|bytes| ContainerAllocateResponse::decode(bytes.as_slice()).ok()),
        }
    };
    Some(entries.into_iter().map(entry).collect())
}

/// Reads the record below the kubelet's folder of device plugins. Blocks for as long as the file takes.
pub fn read(folder: &Path) -> Option<Vec<CheckpointEntry>> {
    let mut text = Vec::new();
    let file = std::fs::File::open(folder.join(FILE)).ok()?;
    file.take(MOST_BYTES).read_to_end(&mut text).ok()?;
    let entries = decode(&text);
    if entries.is_none() {
        tracing::debug!("the kubelet's record of devices cannot be read");
    }
    entries
}

/// Base64 as Go's JSON writes bytes: the standard alphabet, padded.
fn base64(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_record_is_read_and_invalid_data_is_ignored() {
        // A checkpoint of a node with containerd, shortened: an answer with one CDI device.
        let text = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["vgpu-3"],"0":["vgpu-1"]},"AllocResp":"KhYKFHZncHUuaW8vY29udGFpbmVyPXYx"},{"PodUID":"x","ContainerName":"y","ResourceName":"r","DeviceIDs":null,"AllocResp":null}],"RegisteredDevices":{"nvidia.com/gpu":["vgpu-1"]}},"Checksum":7}"#;
        let entries = decode(text.as_bytes()).unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].ids, ["vgpu-1", "vgpu-3"]);
        let answer = entries[0].answer.as_ref().unwrap();
        assert_eq!(answer.cdi_devices[0].name, "vgpu.io/container=v1");
        assert_eq!(entries[1].answer, None);
        for nonsense in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"Data":{"PodDeviceEntries":[1]}}"#,
            "\u{0}",
        ] {
            assert_eq!(decode(nonsense.as_bytes()), None, "{nonsense}");
        }
        assert_eq!(decode(br#"{"Data":{}}"#), Some(Vec::new()));
    }
}
