//! Recorded calls of a codec, made of `kube_api`'s functions directly.

use serde_json::Value;

use super::facts::Facts;

/// Whether the step calls a codec and needs no program.
pub(crate) fn is_codec(step: &Value) -> bool {
    matches!(
        step["op"].as_str(),
        Some("decodeNodeDevices" | "decodePodDevices" | "parseNodeLock")
    )
}

/// What the codec answers.
pub(crate) fn decode(step: &Value) -> Facts {
    let _ = step;
    Facts::from(["not there yet".to_owned()])
}
