//! Recorded requests and annotations, damaged: every input is answered in the form of its verb, the program keeps
//! running, and no device is promised twice. Does not compare with the reference.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::exposition::Sample;
use super::facts::array;
use super::http;
use super::program::Program;

const JSON: &str = "application/json";

/// The values that replace a leaf, one after another.
fn wrong_values() -> [Value; 10] {
    [
        json!(null),
        json!(-1),
        json!(1e300),
        json!(true),
        json!(""),
        json!("\u{0},:;\u{7f}"),
        json!("9".repeat(400)),
        json!([]),
        json!({}),
        json!([[{ "a": [null] }]]),
    ]
}

/// The result.
#[derive(Default)]
pub(crate) struct Damage {
    /// How many damaged requests were sent.
    pub(crate) asked: usize,
    /// How many numbers of devices were checked.
    pub(crate) figures: usize,
    /// The failures.
    pub(crate) wrong: Vec<String>,
}

/// Sends each request of the recording with each of its leaves damaged, and truncated; then damages the nodes'
/// annotations.
pub(crate) fn check(case: &Value, program: &Program) -> Damage {
    let mut asked = 0;
    let mut wrong = Vec::new();
    let before = promised(program);
    let mut seed = 0;
    for step in array(&case["steps"]) {
        let path = match step["op"].as_str().unwrap() {
            "filter" => "/filter",
            "bind" => "/bind",
            "webhook" => "/webhook",
            _ => continue,
        };
        let request = &step["request"];
        let text = request.to_string();
        let mut bodies: Vec<Vec<u8>> = (0..text.len())
            .step_by(text.len() / 7 + 1)
            .map(|end| text.as_bytes()[..end].to_vec())
            .collect();
        for pointer in pointers(request) {
            let mut damaged = request.clone();
            let values = wrong_values();
            *damaged.pointer_mut(&pointer).unwrap() = values[seed % values.len()].clone();
            seed += 1;
            bodies.push(damaged.to_string().into_bytes());
        }
        asked += bodies.len();
        for body in bodies {
            if let Err(why) = ask(program, path, &body) {
                let body = String::from_utf8_lossy(&body);
                wrong.push(format!("{path}: {why}, for {body:.300}"));
            }
        }
    }
    wrong.extend(damaged_nodes(case, program));
    let now = promised(program);
    for (device, (used, limit)) in &now {
        let was = before.get(device).map_or(0.0, |(used, _)| *used);
        if *used > limit.max(was) {
            wrong.push(format!("{device} has {limit} and {used} are promised"));
        }
    }
    if program.printed().contains("panicked") {
        wrong.push(format!("a panic: {}", program.printed()));
    }
    Damage {
        asked,
        figures: now.len(),
        wrong,
    }
}

/// One question that has to be answered, in the shape of its verb.
fn ask(program: &Program, path: &str, body: &[u8]) -> Result<(), String> {
    let answer = http::send(program.address, "POST", path, JSON, body)
        .map_err(|error| format!("no answer: {error}"))?;
    if ![200, 400].contains(&answer.status) {
        return Err(format!("status {} {}", answer.status, answer.text()));
    }
    let said = answer.json();
    let shaped = match path {
        "/webhook" => answer.status == 400 || said["response"]["allowed"].is_boolean(),
        _ => said["Error"].is_string(),
    };
    let right = shaped && (answer.status == 200 || !answer.text().is_empty());
    right.then_some(()).ok_or_else(|| answer.text())
}

/// Each node's annotations cut in half, one at a time; questions are answered all the while.
fn damaged_nodes(case: &Value, program: &Program) -> Vec<String> {
    let mut wrong = Vec::new();
    let question = array(&case["steps"])
        .iter()
        .find(|step| step["op"] == "filter")
        .map(|step| step["request"].to_string());
    for node in array(&case["cluster"]["nodes"]) {
        let path = format!("/api/v1/nodes/{}", super::steps::name(node));
        for (key, text) in super::facts::texts(&node["metadata"]["annotations"]) {
            let half: String = text.chars().take(text.chars().count() / 2).collect();
            for value in [half, format!("{text}{text}"), "[".repeat(500), text] {
                let patch = json!({ "metadata": { "annotations": { (key.as_str()): value } } });
                let body = patch.to_string();
                let kind = "application/merge-patch+json";
                let patched =
                    http::send(program.address, "PATCH", &path, kind, body.as_bytes()).unwrap();
                if patched.status != 200 {
                    wrong.push(format!("PATCH {path}: {}", patched.text()));
                }
                if let Some(question) = &question
                    && let Err(why) = ask(program, "/filter", question.as_bytes())
                {
                    wrong.push(format!("/filter with {body:.300}: {why}"));
                }
            }
        }
    }
    wrong
}

/// The paths of a value's leaves.
fn pointers(value: &Value) -> Vec<String> {
    let mut leaves = super::facts::Facts::new();
    super::facts::leaves(value, "", &mut leaves);
    let places = leaves.iter().map(|leaf| leaf.split(" = ").next().unwrap());
    let mut places: Vec<String> = places.map(str::to_owned).collect();
    // Whole branches too.
    for place in places.clone() {
        let mut place = place.as_str();
        while let Some((parent, _)) = place.rsplit_once('/') {
            places.push(parent.to_owned());
            place = parent;
        }
    }
    places.sort();
    places.dedup();
    places
}

/// The promised part and the capacity of each device: memory in bytes, cores.
fn promised(program: &Program) -> BTreeMap<String, (f64, f64)> {
    let answer = http::send(program.address, "GET", "/metrics", "", b"").unwrap();
    let text = answer.text();
    let mut devices: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for sample in text.lines().filter_map(Sample::read) {
        let (what, is_limit) = match sample.name {
            "hami_gpu_memory_allocated_bytes" => ("memory", false),
            "hami_gpu_memory_limit_bytes" => ("memory", true),
            "hami_gpu_core_allocated_ratio" => ("cores", false),
            "hami_gpu_core_limit_ratio" => ("cores", true),
            _ => continue,
        };
        let (node, device) = (sample.label("node"), sample.label("device_uuid"));
        let entry = devices.entry(format!("{what} of {device} on {node}"));
        let (used, limit) = entry.or_default();
        *(if is_limit { limit } else { used }) = sample.value;
    }
    devices
}
