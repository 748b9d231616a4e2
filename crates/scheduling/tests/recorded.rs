//! Results written by the recorded simulator, which has kube-scheduler 1.32 inside. For the cluster in the same
//! recording we must write the same values, byte for byte.

use std::collections::BTreeMap;
use std::sync::Arc;

use scheduling::annotations;
use scheduling::compact::{self, Kept, Pool};
use scheduling::config::Configuration;
use scheduling::cycle::{Options, Outcome};
use scheduling::profile::Framework;
use scheduling::record::Record;
use scheduling::snapshot::Snapshot;
use scheduling::status::Wording;
use serde_json::Value;

const PREFIX: &str = "kube-scheduler-simulator.sigs.k8s.io/";

fn vector(name: &str) -> Value {
    let root = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/vectors/simulator/"
    );
    serde_json::from_str(&std::fs::read_to_string(format!("{root}{name}")).unwrap()).unwrap()
}

/// The first value of this key as the file has it, without white space. The file's texts have none.
fn compact_text(name: &str, key: &str) -> String {
    let root = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/vectors/simulator/"
    );
    let text = std::fs::read_to_string(format!("{root}{name}")).unwrap();
    let (_, behind) = text.split_once(&format!("\"{key}\":")).unwrap();
    let mut values = serde_json::Deserializer::from_str(behind).into_iter::<Value>();
    values.next().unwrap().unwrap();
    let mut written = behind.get(..values.byte_offset()).unwrap().to_owned();
    written.retain(|letter| !letter.is_whitespace());
    written
}

fn list(value: &Value, key: &str) -> Vec<Value> {
    value[key].as_array().cloned().unwrap_or_default()
}

/// The nodes of an export.
fn cluster(export: &Value) -> Snapshot {
    let mut snapshot = Snapshot::new();
    for node in list(export, "nodes") {
        let node = snapshot.read_node(&node).unwrap();
        snapshot.set_node(node);
    }
    snapshot
}

fn schedule(snapshot: &mut Snapshot, pod: &Value) -> Outcome {
    let mut pod = pod.clone();
    // The pod as it was before it was placed.
    pod["spec"].as_object_mut().unwrap().remove("nodeName");
    let pod = Arc::new(snapshot.read_pod(&pod).unwrap());
    let framework = Framework::all(&Configuration::default(), snapshot.names_mut())
        .remove(0)
        .with_wording(Wording::V1_32);
    let options = Options {
        record: true,
        ..Options::default()
    };
    framework.schedule(snapshot, &pod, options)
}

fn recorded<'a>(recording: &'a Value, pod: &str) -> &'a Value {
    let pods = recording.as_array().unwrap();
    pods.iter().find(|entry| entry["name"] == pod).unwrap()
}

/// The recorded annotations of one cycle, by the part of their name after the prefix.
fn annotations_of(entry: &Value) -> BTreeMap<String, String> {
    let annotations = entry["annotations"].as_object().unwrap();
    annotations
        .iter()
        .map(|(key, value)| {
            let name = key.strip_prefix(PREFIX).unwrap().to_owned();
            (name, value.as_str().unwrap().to_owned())
        })
        .collect()
}

fn assert_same(record: &Record, entry: &Value) {
    let mut wanted = annotations_of(entry);
    let history = wanted.remove("result-history").unwrap();
    let made_of: BTreeMap<String, String> = annotations::render(record)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let kept: BTreeMap<&str, Kept> = compact::drafts(record)
        .into_iter()
        .map(|(name, draft)| (name, draft.keep(usize::MAX, &mut Pool::default())))
        .collect();
    let values = kept.iter().map(|(name, value)| (*name, value));

    assert_eq!(made_of, wanted);
    assert_eq!(
        format!("[{}]", annotations::history_entry(PREFIX, values)),
        history
    );
}

#[test]
fn placed_pods_have_the_recorded_annotations() {
    let recording = vector("pod-annotations-scheduled.json");
    let export = vector("export-sample.json");
    let mut snapshot = cluster(&export);
    for name in ["pod-1", "pod-gpu"] {
        let pod = list(&export, "pods")
            .into_iter()
            .find(|pod| pod["metadata"]["name"] == name)
            .unwrap();
        let entry = recorded(&recording, name);
        let node = entry["nodeName"].as_str().unwrap();

        let outcome = schedule(&mut snapshot, &pod);

        // kube-scheduler chose at random among equal nodes.
        let placed = outcome.result.unwrap();
        assert!(placed.ties.iter().any(|tie| &**tie == node), "{placed:?}");
        let mut record = outcome.record.unwrap();
        record.selected = Some(node.into());
        assert_same(&record, entry);
        let pod = snapshot.read_pod(&pod).unwrap();
        snapshot.assign(Arc::new(pod), node);
    }
}

#[test]
fn refused_pods_have_the_recorded_annotations_and_message() {
    let recording = vector("pod-annotations.json");
    let export = vector("export-not-ready.json");
    let mut snapshot = cluster(&export);
    let pods = list(&export, "pods");
    assert!(!pods.is_empty(), "the recording has no pod");
    for pod in pods {
        let entry = recorded(&recording, pod["metadata"]["name"].as_str().unwrap());

        let outcome = schedule(&mut snapshot, &pod);

        let failed = outcome.result.unwrap_err();
        assert_eq!(
            failed.message,
            entry["conditions"][0]["message"].as_str().unwrap()
        );
        assert_same(&outcome.record.unwrap(), entry);
    }
}

#[test]
fn default_configuration_is_printed_as_recorded() {
    let recording = vector("http-default-config.json");
    let body = &recording[0]["response"]["body_json"];

    let printed = serde_json::to_string(&Configuration::default()).unwrap();
    let read = Configuration::read(body).unwrap();

    assert_eq!(
        printed,
        compact_text("http-default-config.json", "body_json")
    );
    assert_eq!(read, Configuration::default());
}
