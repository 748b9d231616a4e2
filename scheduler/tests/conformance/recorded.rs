//! The reference's behaviour at each step of a recording, as facts.

use std::collections::BTreeMap;

use serde_json::Value;

use super::facts::{self, Facts, Texts, array, texts};
use super::steps;

/// Facts of each step; several answers if the reference leaves one to chance.
pub(crate) fn answers(case: &Value) -> Vec<Vec<Facts>> {
    match case["expect"]["alternatives"].as_array() {
        Some(alternatives) => alternatives
            .iter()
            .map(|alternative| run(case, array(&alternative["steps"])))
            .collect(),
        None => vec![run(case, array(&case["expect"]["steps"]))],
    }
}

/// An object's annotations, now and at its creation.
#[derive(Default)]
struct Carries {
    at_first: [Texts; 2],
    now: [Texts; 2],
}

impl Carries {
    fn of(object: &Value) -> Self {
        let both = ["annotations", "labels"].map(|key| texts(&object["metadata"][key]));
        Self {
            at_first: both.clone(),
            now: both,
        }
    }

    fn patch(&mut self, which: usize, patch: &Value) {
        for (key, value) in patch.as_object().into_iter().flatten() {
            match value.as_str() {
                Some(text) => self.now[which].insert(key.clone(), text.to_owned()),
                None => self.now[which].remove(key),
            };
        }
    }

    fn tell(&self, facts: &mut Facts) {
        facts::carried("annotation", &self.now[0], &self.at_first[0], facts);
        facts::carried("label", &self.now[1], &self.at_first[1], facts);
    }
}

fn run(case: &Value, results: &[Value]) -> Vec<Facts> {
    let mut pods: BTreeMap<String, Carries> = array(&case["cluster"]["pods"])
        .iter()
        .map(|pod| (steps::name(pod), Carries::of(pod)))
        .collect();
    let mut all = Vec::new();
    for (step, result) in array(&case["steps"]).iter().zip(results) {
        let status = u16::try_from(result["httpStatus"].as_u64().unwrap_or(0)).unwrap();
        let mut facts = Facts::new();
        match step["op"].as_str().unwrap() {
            "filter" if result["transportError"].is_string() => {
                facts.insert("no answer".to_owned());
            }
            "filter" => {
                facts = facts::filter(status, &result["response"]);
                if let Some((_, pod)) = steps::pod_of(&step["request"]) {
                    let pod = pods
                        .entry(steps::name(pod))
                        .or_insert_with(|| Carries::of(pod));
                    pod.patch(0, &result["podAnnotationsPatched"]);
                    pod.patch(1, &result["podLabelsPatched"]);
                    pod.tell(&mut facts);
                }
            }
            "bind" => {
                facts.insert(format!("status {status}"));
                facts::error_of(&result["response"], &mut facts);
                let asked = &step["request"];
                let calls = array(&result["apiCalls"]);
                if calls.iter().any(|call| call == "create pods/binding") {
                    facts.insert(format!("bound to {}", asked["Node"].as_str().unwrap()));
                }
                let name = asked["PodName"].as_str().unwrap();
                if let Some(pod) = pods.get_mut(name) {
                    pod.patch(0, &result["podAnnotationsPatched"]);
                    pod.tell(&mut facts);
                }
                nodes_patched(&result["nodeAnnotationsPatched"], &mut facts);
            }
            "webhook" => {
                let pod = &step["request"]["request"]["object"];
                let mut patched = pod.clone();
                if let Some(operations) = result["decodedPatchSorted"].as_array() {
                    let operations = Value::Array(operations.clone());
                    let patch: json_patch::Patch = serde_json::from_value(operations).unwrap();
                    json_patch::patch(&mut patched, &patch).unwrap();
                }
                facts = facts::review(status, &result["response"], Some(&patched));
            }
            "get" => {
                let body = result["body"].as_str().unwrap();
                facts.insert(format!("status {status}"));
                facts.insert(format!("body {body:?}"));
            }
            "createPod" | "updatePod" => {
                let pod = &step["pod"];
                let annotations = &pod["metadata"]["annotations"];
                let entry = pods
                    .entry(steps::name(pod))
                    .or_insert_with(|| Carries::of(pod));
                if annotations.is_object() {
                    entry.now[0] = texts(annotations);
                }
            }
            "register" => nodes_patched(&result["nodeAnnotationsPatched"], &mut facts),
            "nodes" => {
                for (node, annotations) in result["nodeAnnotations"].as_object().unwrap() {
                    let at_first = steps::node_annotations(case, node);
                    let kind = format!("node {node}");
                    facts::carried(&kind, &texts(annotations), &at_first, &mut facts);
                }
            }
            "usage" => usage(result, &mut facts),
            "decodeNodeDevices" | "decodePodDevices" | "parseNodeLock" => {
                decoded(result, &mut facts);
            }
            "updateNode" | "deletePod" => {}
            other => panic!("unknown step {other}"),
        }
        all.push(facts);
    }
    all
}

fn nodes_patched(patches: &Value, facts: &mut Facts) {
    for (node, patch) in patches.as_object().into_iter().flatten() {
        for (key, value) in patch.as_object().unwrap() {
            if value.is_null() {
                facts.insert(format!("node {node} {key} removed"));
            }
        }
        // The owner and the time of a lock are in its text; only its existence is a fact.
        let mut patch = texts(patch);
        if let Some(lock) = patch.get_mut("hami.io/mutex.lock") {
            "held".clone_into(lock);
        }
        facts::carried(&format!("node {node}"), &patch, &Texts::new(), facts);
    }
}

fn usage(result: &Value, facts: &mut Facts) {
    for (node, devices) in result["usage"].as_object().unwrap() {
        for device in array(devices) {
            facts.insert(format!(
                "usage {node} {} = {} slots {} MiB {} cores",
                device["id"].as_str().unwrap(),
                device["used"],
                device["usedmem"],
                device["usedcores"],
            ));
        }
    }
    for (namespace, resources) in result["quota"].as_object().into_iter().flatten() {
        for (resource, quota) in resources.as_object().unwrap() {
            let limit = if quota["limitSet"] == true {
                quota["limit"].to_string()
            } else {
                "none".to_owned()
            };
            facts.insert(format!(
                "quota {namespace} {resource} = {} of {limit}",
                quota["used"]
            ));
        }
    }
}

/// A codec's value, or that it is an error (whose text is each product's own).
fn decoded(result: &Value, facts: &mut Facts) {
    if result["error"].is_string() {
        facts.insert("error".to_owned());
        return;
    }
    for device in array(&result["devices"]) {
        facts.insert(format!(
            "device {} {} = {} slots {} MiB {} cores of {} numa {} mode {} {}",
            device["index"].as_u64().unwrap_or(0),
            device["id"].as_str().unwrap(),
            device["count"],
            device["devmem"],
            device["devcore"],
            device["type"],
            device["numa"].as_u64().unwrap_or(0),
            device["mode"],
            if device["health"] == true {
                "healthy"
            } else {
                "sick"
            },
        ));
    }
    for (vendor, containers) in result["podDevices"].as_object().into_iter().flatten() {
        for (index, container) in array(containers).iter().enumerate() {
            let devices: Vec<String> = array(container)
                .iter()
                .map(|device| {
                    format!(
                        "{} {} MiB {} cores",
                        device["UUID"].as_str().unwrap(),
                        device["Usedmem"],
                        device["Usedcores"]
                    )
                })
                .collect();
            facts.insert(format!("{vendor}[{index}] = {}", devices.join(" + ")));
        }
    }
    for key in ["namespace", "name", "time"] {
        if let Some(text) = result[key].as_str() {
            facts.insert(format!("{key} {text:?}"));
        }
    }
}
