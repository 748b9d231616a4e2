//! The columns that `kubectl get` prints.

use serde_json::{Value, json};

use crate::resource::Resource;

/// The content of `object` in a table's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Include {
    #[default]
    Metadata,
    Object,
    Nothing,
}

/// A `PartialObjectMetadata`.
pub(crate) fn metadata_only(object: &Value) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"] })
}

/// A column: its name, its type, and whether it is shown only by `-o wide`.
struct Column {
    name: String,
    kind: String,
    wide: bool,
    cell: Cell,
}

enum Cell {
    Made(fn(&Value) -> Value),
    Path(String),
}

/// A `Table` of these objects.
pub(crate) fn table(
    resource: &Resource,
    version: &str,
    objects: &[Value],
    include: Include,
    metadata: &Value,
    headed: bool,
) -> Value {
    let columns = columns(resource, version);
    let definitions: Vec<Value> = columns
        .iter()
        .map(|column| {
            let format = if column.name == "Name" { "name" } else { "" };
            json!({ "name": column.name, "type": column.kind, "format": format, "description": "", "priority": i32::from(column.wide) })
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let cells: Vec<Value> = columns.iter().map(|column| column.print(object)).collect();
            let shown = match include {
                Include::Metadata => metadata_only(object),
                Include::Object => object.clone(),
                Include::Nothing => Value::Null,
            };
            json!({ "cells": cells, "object": shown })
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": if headed { definitions } else { Vec::new() },
        "rows": rows,
    })
}

impl Column {
    fn print(&self, object: &Value) -> Value {
        match &self.cell {
            Cell::Made(make) => make(object),
            Cell::Path(path) => {
                let value = at_path(object, path);
                match (self.kind.as_str(), &value) {
                    ("date", Value::String(time)) => age(time).into(),
                    _ => value,
                }
            }
        }
    }
}

fn columns(resource: &Resource, version: &str) -> Vec<Column> {
    let made = |name: &str, kind: &str, wide: bool, make: fn(&Value) -> Value| Column {
        name: name.into(),
        kind: kind.into(),
        wide,
        cell: Cell::Made(make),
    };
    let path = |name: &str, kind: &str, wide: bool, path: &str| Column {
        name: name.into(),
        kind: kind.into(),
        wide,
        cell: Cell::Path(path.into()),
    };
    let name = || path("Name", "string", false, ".metadata.name");
    let age = || path("Age", "date", false, ".metadata.creationTimestamp");
    let custom = resource
        .version(version)
        .map(|version| version.columns.as_slice())
        .unwrap_or_default();
    if !custom.is_empty() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let more = custom.iter().map(|column| Column {
            name: text(&column["name"]),
            kind: text(&column["type"]),
            wide: column["priority"].as_i64().unwrap_or(0) > 0,
            cell: Cell::Path(text(&column["jsonPath"])),
        });
        return std::iter::once(name()).chain(more).collect();
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => vec![
            name(),
            made("Ready", "string", false, pod_ready),
            made("Status", "string", false, pod_status),
            made("Restarts", "string", false, pod_restarts),
            age(),
            made("IP", "string", true, |pod| or_none(&pod["status"]["podIP"])),
            made("Node", "string", true, |pod| {
                or_none(&pod["spec"]["nodeName"])
            }),
            made("Nominated Node", "string", true, |pod| {
                or_none(&pod["status"]["nominatedNodeName"])
            }),
            made("Readiness Gates", "string", true, |_| "<none>".into()),
        ],
        ("", "nodes") => vec![
            name(),
            made("Status", "string", false, node_status),
            made("Roles", "string", false, node_roles),
            age(),
            path(
                "Version",
                "string",
                false,
                ".status.nodeInfo.kubeletVersion",
            ),
            made("Internal-IP", "string", true, |node| {
                let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
                let internal = addresses
                    .into_iter()
                    .find(|address| address["type"] == "InternalIP");
                or_none(internal.map_or(&Value::Null, |address| &address["address"]))
            }),
            path("OS-Image", "string", true, ".status.nodeInfo.osImage"),
            path(
                "Kernel-Version",
                "string",
                true,
                ".status.nodeInfo.kernelVersion",
            ),
            path(
                "Container-Runtime",
                "string",
                true,
                ".status.nodeInfo.containerRuntimeVersion",
            ),
        ],
        ("", "namespaces") => vec![
            name(),
            path("Status", "string", false, ".status.phase"),
            age(),
        ],
        (_, "events") => vec![
            made("Last Seen", "string", false, |event| {
                let times = [
                    "lastTimestamp",
                    "eventTime",
                    "deprecatedLastTimestamp",
                    "firstTimestamp",
                ];
                let time = times.iter().find_map(|field| event[*field].as_str());
                time.map_or_else(|| "<unknown>".into(), self::age).into()
            }),
            path("Type", "string", false, ".type"),
            path("Reason", "string", false, ".reason"),
            made("Object", "string", false, |event| {
                let about = if event["regarding"].is_object() {
                    &event["regarding"]
                } else {
                    &event["involvedObject"]
                };
                let text = |name: &str| about[name].as_str().unwrap_or_default();
                format!("{}/{}", text("kind").to_lowercase(), text("name")).into()
            }),
            made("Message", "string", false, |event| {
                event["message"]
                    .as_str()
                    .or(event["note"].as_str())
                    .unwrap_or_default()
                    .trim()
                    .into()
            }),
        ],
        ("", "configmaps" | "secrets") => {
            let mut columns = vec![name()];
            if resource.plural == "secrets" {
                columns.push(path("Type", "string", false, ".type"));
            }
            columns.push(made("Data", "integer", false, |object| {
                let count = |name: &str| object[name].as_object().map_or(0, serde_json::Map::len);
                (count("data") + count("binaryData")).into()
            }));
            columns.push(age());
            columns
        }
        ("", "services") => vec![
            name(),
            path("Type", "string", false, ".spec.type"),
            made("Cluster-IP", "string", false, |service| {
                or_none(&service["spec"]["clusterIP"])
            }),
            age(),
        ],
        ("coordination.k8s.io", "leases") => {
            vec![
                name(),
                path("Holder", "string", false, ".spec.holderIdentity"),
                age(),
            ]
        }
        ("scheduling.k8s.io", "priorityclasses") => vec![
            name(),
            path("Value", "integer", false, ".value"),
            made("Global-Default", "boolean", false, |class| {
                (class["globalDefault"] == Value::Bool(true)).into()
            }),
            age(),
        ],
        ("apps", "deployments" | "statefulsets" | "replicasets") => vec![
            name(),
            made("Ready", "string", false, |object| {
                let ready = object["status"]["readyReplicas"].as_i64().unwrap_or(0);
                format!(
                    "{ready}/{}",
                    object["spec"]["replicas"].as_i64().unwrap_or(1)
                )
                .into()
            }),
            age(),
        ],
        ("apps", "daemonsets") => vec![
            name(),
            path(
                "Desired",
                "integer",
                false,
                ".status.desiredNumberScheduled",
            ),
            path("Ready", "integer", false, ".status.numberReady"),
            age(),
        ],
        ("policy", "poddisruptionbudgets") => vec![
            name(),
            made("Min Available", "string", false, |budget| {
                or_na(&budget["spec"]["minAvailable"])
            }),
            made("Max Unavailable", "string", false, |budget| {
                or_na(&budget["spec"]["maxUnavailable"])
            }),
            path(
                "Allowed Disruptions",
                "integer",
                false,
                ".status.disruptionsAllowed",
            ),
            age(),
        ],
        ("admissionregistration.k8s.io", _) => vec![
            name(),
            made("Webhooks", "integer", false, |object| {
                object["webhooks"].as_array().map_or(0, Vec::len).into()
            }),
            age(),
        ],
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            vec![
                name(),
                path("Created At", "date", false, ".metadata.creationTimestamp"),
            ]
        }
        _ => vec![name(), age()],
    }
}

fn or_none(value: &Value) -> Value {
    match value.as_str() {
        Some(text) if !text.is_empty() => text.into(),
        _ => "<none>".into(),
    }
}

fn or_na(value: &Value) -> Value {
    match value {
        Value::Null => "N/A".into(),
        Value::String(text) => text.as_str().into(),
        other => other.to_string().into(),
    }
}

fn pod_ready(pod: &Value) -> Value {
    let all = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    let statuses = pod["status"]["containerStatuses"]
        .as_array()
        .into_iter()
        .flatten();
    let ready = statuses
        .filter(|status| status["ready"] == Value::Bool(true))
        .count();
    format!("{ready}/{all}").into()
}

fn pod_status(pod: &Value) -> Value {
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return "Terminating".into();
    }
    let statuses = pod["status"]["containerStatuses"]
        .as_array()
        .into_iter()
        .flatten();
    let waiting = statuses
        .filter_map(|status| status["state"]["waiting"]["reason"].as_str())
        .next();
    let gated = pod["spec"]["schedulingGates"]
        .as_array()
        .is_some_and(|gates| !gates.is_empty());
    let reason = pod["status"]["reason"]
        .as_str()
        .filter(|reason| !reason.is_empty());
    match (waiting, reason) {
        (Some(reason), _) | (None, Some(reason)) => reason.into(),
        _ if gated => "SchedulingGated".into(),
        _ => pod["status"]["phase"].as_str().unwrap_or("Unknown").into(),
    }
}

fn pod_restarts(pod: &Value) -> Value {
    let statuses = pod["status"]["containerStatuses"]
        .as_array()
        .into_iter()
        .flatten();
    let restarts = statuses
        .filter_map(|status| status["restartCount"].as_i64())
        .fold(0, i64::saturating_add);
    restarts.to_string().into()
}

fn node_status(node: &Value) -> Value {
    let conditions = node["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let ready = conditions
        .into_iter()
        .find(|condition| condition["type"] == "Ready");
    let mut status = match ready.and_then(|ready| ready["status"].as_str()) {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if node["spec"]["unschedulable"] == Value::Bool(true) {
        status.push_str(",SchedulingDisabled");
    }
    status.into()
}

fn node_roles(node: &Value) -> Value {
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    let roles: Vec<&str> = labels
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    if roles.is_empty() {
        "<none>".into()
    } else {
        roles.join(",").into()
    }
}

/// The simple paths of `additionalPrinterColumns`: names, quoted names in brackets, indices.
fn at_path(object: &Value, path: &str) -> Value {
    let mut at = object;
    for step in steps(path) {
        at = match step.parse::<usize>() {
            Ok(index) if at.is_array() => &at[index],
            _ => &at[step.as_str()],
        };
    }
    match at {
        Value::Object(_) | Value::Array(_) => at.to_string().into(),
        plain => plain.clone(),
    }
}

fn steps(path: &str) -> Vec<String> {
    let (mut steps, mut step, mut bracket) = (Vec::new(), String::new(), false);
    for character in path.chars() {
        match character {
            '.' | '[' | ']' if !bracket || character == ']' => {
                steps.push(std::mem::take(&mut step));
                bracket = character == '[';
            }
            '\'' | '"' | '{' | '}' | '\\' => {}
            other => step.push(other),
        }
    }
    steps.push(step);
    steps.retain(|step| !step.is_empty() && step != "$");
    steps
}

/// The age, in the short form of `kubectl`.
fn age(time: &str) -> String {
    let Ok(then) = time.parse::<jiff::Timestamp>() else {
        return "<unknown>".into();
    };
    duration(jiff::Timestamp::now().as_second() - then.as_second())
}

fn duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    let two = |big: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        small => format!("{big}{unit}{small}{small_unit}"),
    };
    let s = seconds.max(0);
    match s {
        _ if s < 2 * MINUTE => format!("{s}s"),
        _ if s < 10 * MINUTE => two(s / MINUTE, "m", s % MINUTE, "s"),
        _ if s < 3 * HOUR => format!("{}m", s / MINUTE),
        _ if s < 8 * HOUR => two(s / HOUR, "h", s % HOUR / MINUTE, "m"),
        _ if s < 2 * DAY => format!("{}h", s / HOUR),
        _ if s < 8 * DAY => two(s / DAY, "d", s % DAY / HOUR, "h"),
        _ if s < 2 * 365 * DAY => format!("{}d", s / DAY),
        _ => two(s / (365 * DAY), "y", s % (365 * DAY) / DAY, "d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_printed_as_kubectl_prints_them() {
        let cases = [
            (5, "5s"),
            (119, "119s"),
            (125, "2m5s"),
            (3600, "60m"),
            (3 * 3600 + 60, "3h1m"),
            (9 * 3600, "9h"),
            (3 * 86400, "3d"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn printer_columns_find_their_values() {
        let object = json!({"spec": {"a": [{"b": 1}], "x.y": "z"}});
        assert_eq!(at_path(&object, ".spec.a[0].b"), 1);
        assert_eq!(at_path(&object, ".spec['x.y']"), "z");
        assert_eq!(at_path(&object, ".spec.none.at.all"), Value::Null);
    }
}
