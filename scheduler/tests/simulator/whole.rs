//! Imports and resets are atomic: for readers, for open watches, and beside another writer.

use embedded_cluster::{Event, Happened, Selector, Start, Target, Watch};
use serde_json::{Value, json};

use super::wire::{Served, node, pod, recording, settled};

fn watch(served: &Served, plural: &str) -> Watch {
    let cluster = served.simulator.cluster();
    let target = Target::collection(&cluster.resource("", plural).unwrap(), "");
    let start = Start::After(cluster.resource_version());
    cluster.watch(&target, Selector::default(), start).unwrap()
}

fn told(watch: &mut Watch) -> Vec<(Happened, String)> {
    let mut told = Vec::new();
    while let Some(event) = watch.try_next().unwrap() {
        if let Event::Object(happened, object) = event {
            told.push((happened, object.name().to_owned()));
        }
    }
    told
}

#[tokio::test]
async fn an_import_with_one_bad_object_changes_nothing() {
    let served = Served::start(None).await;
    let (before, configuration) = (served.export().await, served.simulator.setup());
    let mut nodes = watch(&served, "nodes");
    let bad = [
        (
            json!({ "spec": {}, "metadata": { "name": "x" } }),
            "pods x: ",
        ),
        (
            json!({ "spec": { "containers": [] }, "metadata": { "name": "x", "namespace": "nope" } }),
            "pods nope/x: ",
        ),
        (
            json!({ "metadata": { "name": "Not_A_Name" }, "spec": { "containers": [{ "name": "c", "image": "i" }] } }),
            "Not_A_Name",
        ),
    ];

    for (object, named) in bad {
        let import =
            json!({ "nodes": [node("n1")], "pods": [pod("good"), object], "schedulerConfig": {} });
        let answer = served.import(&import).await;
        assert_eq!(answer.code(), 500);
        let message = answer.message();
        assert!(
            message.starts_with("nothing was imported: ") && message.contains(named),
            "{message}"
        );
    }

    assert_eq!(served.export().await, before);
    assert_eq!(served.simulator.setup(), configuration);
    assert_eq!(told(&mut nodes), []);
}

#[tokio::test]
async fn export_reset_import_gives_equal_objects() {
    let served = Served::start(None).await;
    let sample = recording("export-sample.json");
    assert_eq!(served.import(&sample).await.code(), 200);
    let all_kinds = json!({
        "namespaces": [{ "metadata": { "name": "team", "labels": { "a": "b" } } }],
        "priorityClasses": [{ "metadata": { "name": "high" }, "value": 1000, "globalDefault": false }],
        "storageClasses": [{ "metadata": { "name": "sc1" }, "provisioner": "kubernetes.io/no-provisioner" }],
        "pvcs": [{
            "metadata": { "name": "claim", "namespace": "team", "uid": "from-elsewhere" },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
                "storageClassName": "sc1", "volumeName": "pv1" },
            "status": { "phase": "Bound" }
        }],
        "pvs": [{
            "metadata": { "name": "pv1" },
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/x" },
                "claimRef": { "kind": "PersistentVolumeClaim", "namespace": "team", "name": "claim", "uid": "from-elsewhere" } },
            "status": { "phase": "Bound" }
        }],
        "pods": [{ "metadata": { "name": "homeless" }, "spec": { "priorityClassName": "high", "containers": [{ "name": "c", "image": "i" }] } }],
    });
    assert_eq!(served.import(&all_kinds).await.code(), 200);
    let exported = served.export().await;

    assert_eq!(
        served.send("PUT", "/api/v1/reset", &[], None).await.code(),
        202
    );
    assert_eq!(served.export().await["nodes"], json!([]));
    assert_eq!(served.import(&exported).await.code(), 200);
    let again = served.export().await;

    assert_eq!(settled(&again), settled(&exported));
    assert_eq!(exported["pods"].as_array().unwrap().len(), 3);
    let homeless = exported["pods"]
        .as_array()
        .unwrap()
        .iter()
        .find(|pod| pod["metadata"]["name"] == "homeless");
    assert_eq!(homeless.unwrap()["metadata"]["namespace"], "default");
    // A bound volume follows its claim, whose uid is another one each time.
    for export in [&exported, &again] {
        let claim = &export["pvcs"][0]["metadata"]["uid"];
        assert_eq!(&export["pvs"][0]["spec"]["claimRef"]["uid"], claim);
        assert!(
            claim
                .as_str()
                .is_some_and(|uid| !uid.is_empty() && uid != "from-elsewhere"),
            "{claim}"
        );
    }
    assert_ne!(
        exported["pvcs"][0]["metadata"]["uid"],
        again["pvcs"][0]["metadata"]["uid"]
    );
}

#[tokio::test]
async fn an_import_merges_unless_it_is_to_replace() {
    let served = Served::start(None).await;
    served
        .import(&json!({ "nodes": [node("a")], "pods": [pod("p")] }))
        .await;
    let names = |export: &Value| -> Vec<String> {
        let nodes = export["nodes"].as_array().unwrap().iter();
        nodes
            .map(|node| node["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };

    assert_eq!(
        served.import(&json!({ "nodes": [node("b")] })).await.code(),
        200
    );
    assert_eq!(names(&served.export().await), ["a", "b"]);
    let mut watch = watch(&served, "nodes");
    let replaced = served
        .post(
            "/api/v1/import?replace=true",
            &json!({ "nodes": [node("b"), node("c")] }),
        )
        .await;
    assert_eq!(replaced.code(), 200);
    let export = served.export().await;

    assert_eq!(names(&export), ["b", "c"]);
    assert_eq!(export["pods"], json!([]));
    let told = told(&mut watch);
    assert!(
        told.contains(&(Happened::Deleted, "a".into()))
            && told.contains(&(Happened::Added, "c".into())),
        "{told:?}"
    );
    let wrong = served
        .post("/api/v1/import?replace=perhaps", &json!({}))
        .await;
    assert_eq!(wrong.code(), 400);
    assert!(wrong.message().contains("perhaps"));
}

#[tokio::test]
async fn an_import_of_a_stale_object_is_refused() {
    let served = Served::start(None).await;
    served.import(&json!({ "nodes": [node("a")] })).await;
    let stale = served.export().await;
    let mut changed = node("a");
    changed["metadata"]["labels"] = json!({ "zone": "z" });
    served.import(&json!({ "nodes": [changed] })).await;

    let answer = served.import(&stale).await;

    assert_eq!(answer.code(), 500);
    assert!(
        answer.message().contains("nodes a: "),
        "{}",
        answer.message()
    );
}

#[tokio::test]
async fn a_reset_is_one_step_for_readers_and_watches() {
    let served = Served::start(None).await;
    served
        .import(&json!({ "nodes": [node("kept"), node("gone")] }))
        .await;
    served.simulator.start_from_here().await;
    let start = served.export().await;
    let cluster = served.simulator.cluster().clone();
    let mut changed = node("kept");
    changed["metadata"]["labels"] = json!({ "zone": "z" });
    served
        .import(&json!({ "nodes": [changed, node("new")] }))
        .await;
    let gone = Target::object(&cluster.resource("", "nodes").unwrap(), "", "gone");
    cluster
        .delete(&gone, &Default::default(), &Default::default())
        .await
        .unwrap();
    let posted = json!({ "profiles": [{ "schedulerName": "other" }] });
    assert_eq!(
        served
            .post("/api/v1/schedulerconfiguration", &posted)
            .await
            .code(),
        202
    );
    let mut watch = watch(&served, "nodes");

    // Readers that look as often as they can see the state before or the state after.
    let reader = {
        let simulator = served.simulator.clone();
        tokio::task::spawn_blocking(move || {
            let mut seen = Vec::new();
            for _ in 0..300 {
                let export = serde_json::to_value(simulator.export()).unwrap();
                let nodes = export["nodes"].as_array().unwrap().iter();
                let names: Vec<String> = nodes
                    .map(|n| n["metadata"]["name"].as_str().unwrap().to_owned())
                    .collect();
                if seen.last() != Some(&names) {
                    seen.push(names);
                }
            }
            seen
        })
    };
    assert_eq!(
        served.send("PUT", "/api/v1/reset", &[], None).await.code(),
        202
    );
    let seen = reader.await.unwrap();

    assert!(!seen.is_empty(), "the reader saw no state");
    for names in seen {
        assert!(
            names == ["kept", "new"] || names == ["gone", "kept"],
            "{names:?}"
        );
    }
    let end = served.export().await;
    assert_eq!(settled(&end), settled(&start));
    for at in 0..2 {
        assert_eq!(
            end["nodes"][at]["metadata"]["uid"],
            start["nodes"][at]["metadata"]["uid"]
        );
    }
    let event = |happened, name: &str| (happened, name.to_owned());
    let mut told = told(&mut watch);
    told.sort_by_key(|(happened, name)| (name.clone(), *happened == Happened::Added));
    assert_eq!(
        told,
        [
            event(Happened::Added, "gone"),
            event(Happened::Deleted, "kept"),
            event(Happened::Added, "kept"),
            event(Happened::Deleted, "new"),
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_imports_at_once_are_both_whole() {
    let served = Served::start(None).await;
    let state = |writer: &str| -> Value {
        let nodes: Vec<Value> = (0..20)
            .map(|at| {
                let mut node = node(&format!("n{at}"));
                node["metadata"]["labels"] = json!({ "writer": writer });
                node
            })
            .collect();
        json!({ "nodes": nodes, "schedulerConfig": { "profiles": [{ "schedulerName": writer }] } })
    };
    let (left, right) = (state("left"), state("right"));

    for _ in 0..5 {
        let (one, other) = tokio::join!(served.import(&left), served.import(&right));
        assert_eq!((one.code(), other.code()), (200, 200));
        let export = served.export().await;
        let last = export["schedulerConfig"]["profiles"][0]["schedulerName"].clone();
        let nodes = export["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 20);
        for node in nodes {
            assert_eq!(node["metadata"]["labels"]["writer"], last);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_beside_a_client_of_the_cluster_loses_nothing() {
    let served = Served::start(None).await;
    served.import(&json!({ "nodes": [node("shared")] })).await;
    let client = async {
        for at in 0..50 {
            let answer = served
                .send(
                    "PATCH",
                    "/api/v1/nodes/shared",
                    &[("Content-Type", "application/merge-patch+json")],
                    Some(
                        json!({ "metadata": { "annotations": { format!("a{at}"): "x" } } })
                            .to_string()
                            .as_bytes(),
                    ),
                )
                .await;
            assert_eq!(answer.code(), 200);
        }
    };
    let importer = async {
        let mut refused = 0;
        for at in 0..20 {
            let mut changed = node("shared");
            changed["metadata"]["labels"] = json!({ "round": at.to_string() });
            let answer = served
                .import(&json!({ "nodes": [changed, node(&format!("own{at}"))] }))
                .await;
            if answer.code() == 500 {
                assert!(
                    answer.message().contains("at the same time"),
                    "{}",
                    answer.message()
                );
                refused += 1;
            }
        }
        refused
    };

    let ((), refused) = tokio::join!(client, importer);

    let export = served.export().await;
    let nodes = export["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 21 - refused);
    let shared = nodes
        .iter()
        .find(|node| node["metadata"]["name"] == "shared")
        .unwrap();
    assert_eq!(
        shared["metadata"]["annotations"].as_object().unwrap().len(),
        50
    );
}
