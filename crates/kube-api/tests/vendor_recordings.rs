//! Recordings of the reference for vendors other than NVIDIA: the chosen devices, every written annotation, and the
//! webhook's changes and refusals.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use crate::common;

use std::collections::BTreeMap;

use kube_api::allocation;
use kube_api::config::DeviceConfig;
use kube_api::node;
use kube_api::object::{Node, Pod};
use kube_api::request::{self, Defaults};
use kube_api::vendor::{Edits, Vendors};
use placement::{Among, Cluster};
use serde_json::{Value, json};

const NOW: u64 = 1_700_000_000_123_456_789;

/// The table of the recordings' configuration.
fn recorded_vendors(recording: &Value) -> Vendors {
    let file = recording["deviceConfigFile"].as_str().unwrap();
    let text = std::fs::read_to_string(common::recordings().join(file)).unwrap();
    Vendors::new(DeviceConfig::parse(&text).unwrap(), common::all_vendors()).unwrap()
}

fn files() -> Vec<(String, Value)> {
    let mut files: Vec<(String, Value)> = std::fs::read_dir(common::recordings())
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let id = name.strip_suffix(".json")?.to_owned();
            Some((id.clone(), common::recording(&id)))
        })
        .collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    files
}

/// Replaces the parts that differ in each run by words.
fn settled(text: &str) -> String {
    text.replace(&NOW.to_string(), "<unix-nanoseconds>")
        .replace(&(NOW / 1_000_000_000).to_string(), "<unix-seconds>")
}

#[test]
fn every_annotation_of_every_vendor_is_written_as_recorded() {
    let mut compared = 0;
    for (id, recording) in files() {
        if !id.contains("-vendor-") {
            continue;
        }
        let vendors = recorded_vendors(&recording);
        let mut cluster = Cluster::new();
        for node in recording["cluster"]["nodes"].as_array().unwrap() {
            let node: Node = serde_json::from_value(node.clone()).unwrap();
            let report = node::report(&node, &vendors);
            assert_eq!(report.problems, [], "{id}");
            cluster.set_node(report.node).unwrap();
        }
        let step = &recording["steps"][0];
        let pod: Pod = serde_json::from_value(step["request"]["Pod"].clone()).unwrap();
        let expected = &recording["expect"]["steps"][0];
        let request = request::request(&pod, &vendors, &Defaults::default()).unwrap();

        let placement = cluster.place(&request, Among::All).unwrap();
        let view = cluster.node(&placement.node);
        let written = allocation::write(&pod, &placement, view, &vendors, NOW);

        assert_eq!(
            expected["response"]["NodeNames"],
            json!([*placement.node]),
            "{id}"
        );
        for (key, recorded) in expected["podAnnotationsPatched"].as_object().unwrap() {
            let ours = written.annotations.get(key).map(|text| settled(text));
            let mut recorded = recorded.as_str().unwrap().to_owned();
            if key.ends_with("-allocate") || key.ends_with("-allocated") {
                // Empty slots, which the reference omits if a pod has devices of two vendors.
                let text = ours.clone().unwrap_or_default();
                if recorded.matches(';').count() < text.matches(';').count() {
                    let slots = text.split_terminator(';').filter(|slot| !slot.is_empty());
                    recorded.clone_from(&text);
                    let lost: String = slots.map(|slot| format!("{slot};")).collect();
                    assert_eq!(expected["podAnnotationsPatched"][key], json!(lost), "{id}");
                }
            }
            assert_eq!(ours.as_deref(), Some(recorded.as_str()), "{id}: {key}");
            compared += 1;
        }
        let own = |key: &&String| {
            expected["podAnnotationsPatched"]
                .get(key.as_str())
                .is_none()
                && key.as_str() != "hami.io/devices-to-allocate"
        };
        let more: Vec<&String> = written.annotations.keys().filter(own).collect();
        assert!(more.is_empty(), "{id}: also writes {more:?}");
    }
    assert!(compared >= 60, "compared {compared} annotations only");
}

/// The pod after the edits of all vendors, with only the parts that vendors change.
fn edited(pod: &Value, edits: &[(usize, Edits)]) -> Value {
    let mut pod = pod.clone();
    for (at, edits) in edits {
        let container = &mut pod["spec"]["containers"][at];
        for (name, amount) in &edits.limits {
            container["resources"]["limits"][name] = json!(amount);
            if container["resources"]["requests"].get(name).is_some() {
                container["resources"]["requests"][name] = json!(amount);
            }
        }
        for (name, amount) in &edits.requests {
            container["resources"]["requests"][name] = json!(amount);
        }
        for (name, value) in &edits.env {
            let env = &mut container["env"];
            if env.is_null() {
                *env = json!([]);
            }
            env.as_array_mut()
                .unwrap()
                .push(json!({"name": name, "value": value}));
        }
        for (key, value) in &edits.annotations {
            pod["metadata"]["annotations"][key] = json!(value);
        }
        if let Some(class) = &edits.runtime_class {
            pod["spec"]["runtimeClassName"] = json!(class);
        }
    }
    pod
}

/// The pod after the recorded patch, with only the parts that vendors change.
fn patched(pod: &Value, patch: &Value) -> Value {
    let mut pod = pod.clone();
    for operation in patch.as_array().unwrap() {
        let path = operation["path"].as_str().unwrap();
        if path == "/status" || path == "/spec/schedulerName" {
            continue;
        }
        let (parent, name) = path.rsplit_once('/').unwrap();
        let name = name.replace("~1", "/").replace("~0", "~");
        pod.pointer_mut(parent).unwrap()[name] = operation["value"].clone();
    }
    pod
}

#[test]
fn the_webhook_changes_and_refuses_what_was_recorded() {
    let (mut changed, mut refused) = (0, 0);
    for (id, recording) in files() {
        let number: u32 = id.split('-').next().unwrap().parse().unwrap();
        if !(205..=221).contains(&number) {
            continue;
        }
        let vendors = recorded_vendors(&recording);
        let object = &recording["steps"][0]["request"]["request"]["object"];
        let pod: Pod = serde_json::from_value(object.clone()).unwrap();
        let expected = &recording["expect"]["steps"][0];

        let mut edits = Vec::new();
        let mut rejection = None;
        for (at, container) in pod.spec.containers.iter().enumerate() {
            for row in vendors.iter() {
                match row.admit(container, &pod) {
                    Ok(wanted) => edits.push((at, wanted)),
                    Err(error) => rejection = Some(error),
                }
            }
        }

        let response = &expected["response"]["response"];
        match (response["allowed"].as_bool().unwrap(), rejection) {
            (true, None) => {
                let recorded = patched(object, &expected["decodedPatchSorted"]);
                assert_eq!(edited(object, &edits), recorded, "{id}");
                changed += 1;
            }
            (false, Some(error)) => {
                let recorded = response["status"]["message"].as_str().unwrap();
                assert!(
                    error.problem.contains(recorded),
                    "{id}: {error}: {recorded}"
                );
                assert_eq!(error.container, "c0", "{id}");
                refused += 1;
            }
            (allowed, rejection) => panic!("{id}: recorded {allowed}, ours {rejection:?}"),
        }
    }
    assert_eq!((changed, refused), (5, 5));
}

#[test]
fn where_a_handshake_is_recorded_the_row_names_its_annotation() {
    let recording =
        common::recording("130-reg-handshake-written-on-every-node-for-every-handshake-vend");
    let vendors = recorded_vendors(&recording);
    let recorded: BTreeMap<String, String> =
        serde_json::from_value(recording["expect"]["steps"][0]["nodeAnnotations"]["cpu1"].clone())
            .unwrap();

    let mut ours: Vec<&str> = vendors
        .iter()
        .filter_map(|row| row.keys.handshake.as_deref())
        .collect();
    ours.sort_unstable();

    assert_eq!(
        ours,
        recorded.keys().map(String::as_str).collect::<Vec<_>>()
    );
}
