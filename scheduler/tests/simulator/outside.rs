//! Objects of a real cluster, which is another embedded one behind a listener.

use std::time::Duration;

use embedded_cluster::{Cluster, Target};
use scheduler::simulator::recording::{self, ReplayPace};
use scheduler::simulator::{Merge, outside};
use serde_json::{Value, json};

use super::wire::{Served, node, pod};

/// A cluster with objects that this one cannot have as they are, and a client of it.
async fn real() -> (Cluster, kube::Client) {
    let mut theirs = pod("theirs");
    theirs["spec"]["nodeName"] = "n1".into();
    theirs["spec"]["serviceAccountName"] = "builder".into();
    theirs["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u" }]);
    let mut labelled = node("n2");
    labelled["metadata"]["labels"] = json!({ "pool": "b" });
    let cluster = Cluster::default();
    let state = json!({
        "nodes": [node("n1"), labelled],
        "pods": [theirs, pod("waits")],
        "namespaces": [{ "metadata": { "name": "team" } }],
    });
    cluster.import(&state).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let routes = cluster.router();
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
    (cluster, client)
}

fn names(export: &Value, key: &str) -> Vec<String> {
    let objects = export[key].as_array().unwrap().iter();
    objects
        .map(|object| object["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn objects_of_a_real_cluster_are_taken_over() {
    let (_cluster, client) = real().await;
    let served = Served::start(None).await;

    let import = outside::read(&client, "").await.unwrap();
    served.simulator.import(&import, Merge::Keep).await.unwrap();

    let export = served.export().await;
    assert_eq!(names(&export, "nodes"), ["n1", "n2"]);
    assert_eq!(names(&export, "namespaces"), ["team"]);
    let theirs = &export["pods"][0];
    assert_eq!(theirs["spec"]["nodeName"], "n1");
    assert!(theirs["metadata"].get("ownerReferences").is_none());
    // The account "builder" exists only in the real cluster; without a name, admission gives a pod the default one.
    assert_eq!(theirs["spec"]["serviceAccountName"], "default");
    let chosen = outside::read(&client, "pool=b").await.unwrap();
    let other = Served::start(None).await;
    other.simulator.import(&chosen, Merge::Keep).await.unwrap();
    assert_eq!(names(&other.export().await, "nodes"), ["n2"]);
}

#[tokio::test]
async fn what_happens_in_a_real_cluster_happens_here() {
    let (cluster, client) = real().await;
    let served = Served::scheduling(None).await;
    let following = {
        let simulator = served.simulator.clone();
        tokio::spawn(async move { simulator.follow(&client, "", None).await })
    };
    let placed = served
        .pod_once("waits", |pod| pod["spec"]["nodeName"].is_string())
        .await;
    let here = placed["spec"]["nodeName"].clone();

    // The pod gets another node there: here it keeps its own.
    let elsewhere = if here == "n1" { "n2" } else { "n1" };
    let pods = cluster.resource("", "pods").unwrap();
    let binding =
        json!({ "metadata": { "name": "waits" }, "target": { "kind": "Node", "name": elsewhere } });
    let waits = Target::object(&pods, "default", "waits");
    cluster
        .bind(&waits, binding, &Default::default())
        .await
        .unwrap();
    cluster.import(&json!({ "nodes": [node("n3")] })).unwrap();
    let theirs = Target::object(&pods, "default", "theirs");
    cluster
        .delete(&theirs, &Default::default(), &Default::default())
        .await
        .unwrap();

    let followed = async {
        loop {
            let export = served.export().await;
            if names(&export, "nodes") == ["n1", "n2", "n3"] && names(&export, "pods") == ["waits"]
            {
                assert_eq!(export["pods"][0]["spec"]["nodeName"], here);
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), followed)
        .await
        .unwrap();
    following.abort();
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_is_named() {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = kube::Client::try_from(config).unwrap();

    let refused = outside::read(&client, "").await.unwrap_err();

    assert!(
        refused.to_string().contains("namespaces cannot be listed"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_recording_of_the_reference_is_replayed() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/vectors/simulator/recorder-sample.jsonl"
    );
    let lines = recording::read(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(lines.len() > 15, "{}", lines.len());
    let mut there = std::collections::BTreeSet::new();
    for line in &lines {
        let name = line.object["metadata"]["name"].as_str().unwrap().to_owned();
        match line.happening {
            recording::ChangeKind::Delete => drop(there.remove(&(line.kind.key, name))),
            _ => drop(there.insert((line.kind.key, name))),
        }
    }
    let served = Served::scheduling(None).await;

    let refused = served.simulator.replay(lines, ReplayPace::None).await;

    assert_eq!(refused, 0);
    let export = served.export().await;
    for key in ["nodes", "pods", "pvs", "pvcs", "storageClasses"] {
        let wanted: Vec<String> = there
            .iter()
            .filter(|(of, _)| *of == key)
            .map(|(_, name)| name.clone())
            .collect();
        assert_eq!(names(&export, key), wanted, "{key}");
    }
}

#[tokio::test]
async fn what_was_recorded_can_be_replayed() {
    let (cluster, client) = real().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.jsonl");
    let recorder = {
        let (client, path) = (client.clone(), path.clone());
        tokio::spawn(async move { outside::record(&client, "", &path).await })
    };
    let lines = async |wanted: usize| {
        loop {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let lines = recording::read(&text).unwrap_or_default();
            if lines.len() >= wanted {
                return lines;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // Two nodes, two pods, five namespaces, two priority classes.
    let wait = Duration::from_secs(10);
    tokio::time::timeout(wait, lines(11)).await.unwrap();
    let nodes = cluster.resource("", "nodes").unwrap();
    let second = Target::object(&nodes, "", "n2");
    cluster
        .delete(&second, &Default::default(), &Default::default())
        .await
        .unwrap();
    let recorded = tokio::time::timeout(wait, lines(12)).await.unwrap();
    recorder.abort();

    let served = Served::start(None).await;
    assert_eq!(
        served
            .simulator
            .replay(recorded, ReplayPace::Times(1000.0))
            .await,
        0
    );

    let export = served.export().await;
    assert_eq!(names(&export, "nodes"), ["n1"]);
    assert_eq!(names(&export, "pods"), ["theirs", "waits"]);
}
