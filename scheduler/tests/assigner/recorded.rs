//! The reference's answers to the same questions, if it did as documented. Its defects are left out: docs/assigner.md
//! lists them.

use std::path::Path;

use serde_json::{Value, json};

use super::support::{Combined, LEASES, labels, patched};

/// The recorded case of this title.
fn recorded(title: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/vectors/assigner/mid-intended-client.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let found = cases.into_iter().find(|case| case["title"] == title);
    found.unwrap_or_else(|| panic!("no case {title}"))
}

/// The nodes of the recording.
async fn cluster() -> Combined {
    let node = |name: &str, devices: Value| {
        let annotations = json!({ "fudo.org/gpu.device.labels": labels(&devices) });
        json!({ "metadata": { "name": name, "annotations": annotations } })
    };
    Combined::start(&[
        node(
            "gpu-a",
            json!({"GPU-AAA": ["fudo.org/gpu.compute", "fudo.org/gpu.v100"],
                "GPU-BBB": ["fudo.org/gpu.compute", "fudo.org/gpu.a100"]}),
        ),
        node("gpu-b", json!({"GPU-CCC": ["fudo.org/gpu.v100"]})),
    ])
    .await
}

/// Sends the recording's request; returns the recorded response and ours.
async fn ask(combined: &Combined, title: &str) -> (Value, Value) {
    let case = recorded(title);
    let request = &case["request"];
    let (method, path) = (
        request["method"].as_str().unwrap(),
        request["path"].as_str().unwrap(),
    );
    let body = request["body"].to_string();
    let (status, ours) = Combined::ask(&combined.api, method, path, body).await;
    assert_eq!(case["response"]["status"], status, "{title}");
    let theirs = case["response"]["body"].as_str().unwrap();
    (serde_json::from_str(theirs).unwrap(), ours)
}

#[tokio::test]
async fn devices_are_listed_as_meant() {
    let combined = cluster().await;
    let mut meant = recorded(
        "core/device-inventory value, nothing assigned (what /devices is meant to return)",
    )["value"]
        .clone();
    for device in meant.as_object_mut().unwrap().values_mut() {
        let labels = device["labels"].as_array_mut().unwrap();
        labels.sort_by_key(ToString::to_string);
    }

    assert_eq!(combined.get("/devices").await, meant);
}

#[tokio::test]
async fn a_dry_run_is_answered_as_recorded() {
    let (theirs, ours) = ask(&cluster().await, "mutate: dryRun").await;

    assert_eq!(ours, theirs);
}

#[tokio::test]
async fn a_pod_and_its_lease_are_written_as_recorded() {
    let combined = cluster().await;
    let title = "mutate: label a100 -> GPU-BBB on gpu-a";

    let (_, ours) = ask(&combined, title).await;

    let case = recorded(title);
    let pod = patched(
        &case["request"]["body"]["request"]["object"],
        &ours["response"],
    );
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["keep"], "me");
    assert_eq!(annotations["fudo.org/gpu.uuid"], "GPU-BBB");
    assert_eq!(annotations["fudo.org/gpu.node"], "gpu-a");
    assert_eq!(
        annotations["cdi.k8s.io/gpu-assignment"],
        "nvidia.com/gpu=UUID=GPU-BBB"
    );
    let theirs = &case["lease-writes"][0]["body"];
    let lease = &combined.get(LEASES).await["items"][0];
    assert_eq!(lease["metadata"]["name"], theirs["metadata"]["name"]);
    assert_eq!(lease["metadata"]["labels"], theirs["metadata"]["labels"]);
    assert_eq!(
        lease["metadata"]["annotations"],
        theirs["metadata"]["annotations"]
    );
    for field in ["holderIdentity", "leaseDurationSeconds"] {
        assert_eq!(lease["spec"][field], theirs["spec"][field], "{field}");
    }
    let time = |lease: &Value| lease["spec"]["renewTime"].as_str().unwrap().len();
    assert_eq!(time(lease), time(theirs));
}

#[tokio::test]
async fn a_refusal_begins_with_the_recorded_words() {
    let combined = cluster().await;
    let (theirs, ours) = ask(&combined, "mutate: unknown label -> none free").await;

    let (theirs, ours) = (&theirs["response"], &ours["response"]);
    assert_eq!(ours["allowed"], false);
    assert_eq!(ours["status"]["code"], theirs["status"]["code"]);
    let begins = theirs["status"]["message"].as_str().unwrap();
    let said = ours["status"]["message"].as_str().unwrap();
    assert!(said.starts_with(&format!("{begins}: ")), "{said}");
    assert!(combined.leases().await.is_empty());
}
