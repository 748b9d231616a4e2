//! The parts of a recording's steps that both sides read.

use serde_json::Value;

use super::facts::{Texts, array, texts};

/// Name of an object. All pods of the recordings are in namespaces where names do not repeat.
pub(crate) fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Namespace of an object.
pub(crate) fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"]
        .as_str()
        .unwrap_or("default")
}

/// The pod of ExtenderArgs, whose keys may be in any case, and its key.
pub(crate) fn pod_of(request: &Value) -> Option<(&str, &Value)> {
    request
        .as_object()?
        .iter()
        .find(|(key, pod)| key.eq_ignore_ascii_case("pod") && pod.is_object())
        .map(|(key, pod)| (key.as_str(), pod))
}

/// A node's annotations when the cluster was created.
pub(crate) fn node_annotations(case: &Value, node: &str) -> Texts {
    array(&case["cluster"]["nodes"])
        .iter()
        .find(|there| name(there) == node)
        .map(|there| texts(&there["metadata"]["annotations"]))
        .unwrap_or_default()
}

/// The number of containers of this step's pod, including init containers; 0 if the step has no pod.
pub(crate) fn containers(case: &Value, step: &Value) -> usize {
    let request = &step["request"];
    let wanted = match pod_of(request) {
        Some((_, pod)) => name(pod),
        None => request["PodName"].as_str().unwrap_or_default().to_owned(),
    };
    let asked = array(&case["steps"])
        .iter()
        .filter_map(|step| Some(pod_of(&step["request"])?.1));
    array(&case["cluster"]["pods"])
        .iter()
        .chain(asked)
        .find(|pod| name(pod) == wanted)
        .map_or(0, |pod| {
            ["initContainers", "containers"]
                .iter()
                .map(|list| array(&pod["spec"][list]).len())
                .sum()
        })
}
