//! The facts of a step of a recording, as lines of text: the same words for the reference's answer and for ours, so
//! that they can be compared as sets. Does not say which of two is right.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Lines, each of which is true or not.
pub(crate) type Facts = BTreeSet<String>;

/// Text by key.
pub(crate) type Texts = BTreeMap<String, String>;

/// The elements of a list; none when it is null or absent.
pub(crate) fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The text fields of an object; other fields are left out.
pub(crate) fn texts(value: &Value) -> Texts {
    let entries = value.as_object().into_iter().flatten();
    entries
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// JSON with its keys in order and nothing between them.
pub(crate) fn canonical(value: &Value) -> String {
    match value {
        Value::Object(entries) => {
            let sorted: BTreeMap<_, _> = entries.iter().collect();
            let inside: Vec<_> = sorted
                .iter()
                .map(|(key, value)| {
                    format!("{}:{}", Value::String((*key).clone()), canonical(value))
                })
                .collect();
            format!("{{{}}}", inside.join(","))
        }
        Value::Array(elements) => {
            let inside: Vec<_> = elements.iter().map(canonical).collect();
            format!("[{}]", inside.join(","))
        }
        other => other.to_string(),
    }
}

/// The answer to `/filter`: status, error or not, which nodes, and why not which.
pub(crate) fn filter(status: u16, answer: &Value) -> Facts {
    let mut facts = Facts::from([format!("status {status}")]);
    error_of(answer, &mut facts);
    for name in array(&answer["NodeNames"]) {
        facts.insert(format!("NodeNames {}", name.as_str().unwrap()));
    }
    for node in array(&answer["Nodes"]["items"]) {
        let name = node["metadata"]["name"].as_str().unwrap();
        facts.insert(format!("Nodes {name}"));
    }
    for key in ["FailedNodes", "FailedAndUnresolvableNodes"] {
        for (node, reason) in texts(&answer[key]) {
            facts.insert(format!("{key} {node}: {reason}"));
        }
    }
    facts
}

/// Whether there is an error; its text differs between the products.
pub(crate) fn error_of(answer: &Value, facts: &mut Facts) {
    let error = answer["Error"].as_str().unwrap_or_default();
    facts.insert(
        if error.is_empty() {
            "no error"
        } else {
            "error"
        }
        .to_owned(),
    );
}

/// The annotations that a pod or node has now and did not have at its creation.
pub(crate) fn carried(kind: &str, now: &Texts, at_first: &Texts, facts: &mut Facts) {
    for (key, value) in now {
        if at_first.get(key) == Some(value) {
            continue;
        }
        if is_allocation(key) {
            for (index, container) in value.split_terminator(';').enumerate() {
                facts.insert(format!("{kind} {key}[{index}] = {}", devices(container)));
            }
        } else {
            facts.insert(format!("{kind} {key} = {}", meaning(value)));
        }
    }
}

fn is_allocation(key: &str) -> bool {
    [
        "devices-allocated",
        "devices-to-allocate",
        "kunlun-allocated",
    ]
    .iter()
    .any(|end| key.ends_with(end))
        && key.starts_with("hami.io/")
}

/// The devices of one container, in their order.
fn devices(container: &str) -> String {
    let devices: Vec<String> = container
        .split_terminator(':')
        .map(|device| {
            let fields: Vec<&str> = device.split(',').collect();
            match fields[..] {
                [uuid, kind, memory, cores, ..] => {
                    format!("{uuid} {kind} {memory} MiB {cores} cores")
                }
                _ => format!("not a device: {device}"),
            }
        })
        .collect();
    if devices.is_empty() {
        "none".to_owned()
    } else {
        devices.join(" + ")
    }
}

/// A value without the parts that differ each time, and with JSON normalised.
fn meaning(value: &str) -> String {
    if let Ok(json @ (Value::Array(_) | Value::Object(_))) = serde_json::from_str(value) {
        return canonical(&json);
    }
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    if digits && value.len() == 10 {
        return "<unix-seconds>".to_owned();
    }
    if digits && value.len() == 19 {
        return "<unix-nanoseconds>".to_owned();
    }
    if value
        .strip_prefix("Requesting_")
        .is_some_and(|time| time.len() == "2006-01-02 15:04:05".len())
    {
        return "Requesting_<datetime>".to_owned();
    }
    value.to_owned()
}

/// The answer to `/webhook`: status, allowed or not with code and message, and every leaf of the pod as patched.
pub(crate) fn review(status: u16, answer: &Value, pod: Option<&Value>) -> Facts {
    let mut facts = Facts::from([format!("status {status}")]);
    let response = &answer["response"];
    let allowed = response["allowed"].as_bool() == Some(true);
    facts.insert(if allowed { "allowed" } else { "denied" }.to_owned());
    if !allowed {
        facts.insert(format!("code {}", response["status"]["code"]));
    }
    if let Some(message) = response["status"]["message"].as_str() {
        facts.insert(format!("message {message}"));
    }
    facts.insert(format!("uid {}", response["uid"]));
    facts.insert(format!("version {}", answer["apiVersion"]));
    if let (true, Some(pod)) = (allowed, pod) {
        leaves(pod, "pod ", &mut facts);
    }
    facts
}

/// Each leaf of a value by its path, as JSON pointers spell it.
pub(crate) fn leaves(value: &Value, path: &str, facts: &mut Facts) {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            for (key, value) in entries {
                let key = key.replace('~', "~0").replace('/', "~1");
                leaves(value, &format!("{path}/{key}"), facts);
            }
        }
        Value::Array(elements) if !elements.is_empty() => {
            for (index, value) in elements.iter().enumerate() {
                leaves(value, &format!("{path}/{index}"), facts);
            }
        }
        leaf => {
            facts.insert(format!("{path} = {leaf}"));
        }
    }
}
