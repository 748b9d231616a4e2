//! The scheduling loop on the embedded cluster: the outcomes of pods, and the writes to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::wire::{Served, node, pod, recording};

const PREFIX: &str = "kube-scheduler-simulator.sigs.k8s.io/";

fn result(pod: &Value, name: &str) -> Value {
    let text = pod["metadata"]["annotations"][format!("{PREFIX}{name}")]
        .as_str()
        .unwrap();
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

fn bound(pod: &Value) -> bool {
    pod["spec"]["nodeName"].is_string()
}

fn condition(pod: &Value) -> &Value {
    let conditions = pod["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "PodScheduled")
        .unwrap_or(&Value::Null)
}

fn unscheduled(pod: &Value) -> bool {
    condition(pod)["status"] == "False"
}

fn asking(name: &str, cpu: &str, priority: i64) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu.into();
    pod["spec"]["priorityClassName"] = format!("p{priority}").into();
    pod
}

fn class(priority: i64) -> Value {
    json!({ "metadata": { "name": format!("p{priority}") }, "value": priority })
}

async fn events(served: &Served, reason: &str) -> Vec<Value> {
    let list = served.get("/api/v1/namespaces/default/events").await.json();
    let events = list["items"].as_array().unwrap().iter();
    events
        .filter(|event| event["reason"] == reason)
        .cloned()
        .collect()
}

#[tokio::test]
async fn pods_of_the_sample_are_placed_and_explained() {
    let mut sample = recording("export-sample.json");
    let recorded = sample["pods"].as_array().unwrap().clone();
    assert!(!recorded.is_empty(), "the sample has no pods");
    for pod in sample["pods"].as_array_mut().unwrap() {
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
        pod["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("annotations");
        pod.as_object_mut().unwrap().remove("status");
    }
    let served = Served::scheduling(None).await;

    let imported = served.import(&sample).await;
    assert_eq!(
        imported.code(),
        200,
        "{}",
        String::from_utf8_lossy(&imported.body)
    );

    for recorded in recorded {
        let name = recorded["metadata"]["name"].as_str().unwrap();
        let pod = served.pod_once(name, bound).await;
        let keys = |pod: &Value| -> Vec<String> {
            let keys = pod["metadata"]["annotations"].as_object().unwrap().keys();
            keys.filter(|key| key.starts_with(PREFIX))
                .cloned()
                .collect()
        };
        assert_eq!(keys(&pod), keys(&recorded));
        assert_eq!(result(&pod, "selected-node"), pod["spec"]["nodeName"]);
        assert_eq!(condition(&pod)["status"], "True");
        // The same nodes fit, and the same plugins were asked of each.
        for name in ["filter-result", "score-result", "finalscore-result"] {
            let shape = |pod: &Value| -> Vec<(String, Vec<String>)> {
                let nodes = result(pod, name);
                let plugins = |of: &Value| {
                    of.as_object()
                        .unwrap()
                        .keys()
                        .filter(|p| !p.starts_with("Gpu"))
                        .cloned()
                        .collect()
                };
                nodes
                    .as_object()
                    .unwrap()
                    .iter()
                    .map(|(node, of)| (node.clone(), plugins(of)))
                    .collect()
            };
            assert_eq!(shape(&pod), shape(&recorded), "{name}");
        }
        assert_eq!(result(&pod, "result-history").as_array().unwrap().len(), 1);
    }
    assert_eq!(events(&served, "Scheduled").await.len(), 2);
}

#[tokio::test]
async fn a_pending_pod_says_why_and_goes_once_there_is_room() {
    let served = Served::scheduling(None).await;
    let mut full = node("full");
    full["status"]["allocatable"]["cpu"] = "1".into();
    let import =
        json!({ "nodes": [full], "pods": [asking("big", "2", 0)], "priorityClasses": [class(0)] });
    assert_eq!(served.import(&import).await.code(), 200);

    let pending = served.pod_once("big", unscheduled).await;
    let why = condition(&pending);
    assert_eq!(why["reason"], "Unschedulable");
    let message = why["message"].as_str().unwrap();
    assert!(
        message.starts_with("0/1 nodes are available: 1 Insufficient cpu."),
        "{message}"
    );
    assert_eq!(
        result(&pending, "filter-result")["full"]["NodeResourcesFit"],
        "Insufficient cpu"
    );
    assert_eq!(result(&pending, "selected-node"), "");
    let told = events(&served, "FailedScheduling").await;
    assert_eq!((told.len(), &told[0]["message"]), (1, &why["message"]));

    assert_eq!(
        served
            .import(&json!({ "nodes": [node("roomy")] }))
            .await
            .code(),
        200
    );
    let placed = served.pod_once("big", bound).await;
    assert_eq!(placed["spec"]["nodeName"], "roomy");
    assert_eq!(
        result(&placed, "result-history").as_array().unwrap().len(),
        2
    );
}

#[tokio::test]
async fn a_higher_priority_evicts_and_takes_the_room() {
    let served = Served::scheduling(None).await;
    let import = json!({
        "nodes": [node("n")],
        "priorityClasses": [class(1), class(100)],
        "pods": [asking("low", "3", 1), asking("other", "1", 1)],
    });
    assert_eq!(served.import(&import).await.code(), 200);
    served.pod_once("low", bound).await;
    served.pod_once("other", bound).await;

    assert_eq!(
        served
            .import(&json!({ "pods": [asking("high", "3", 100)] }))
            .await
            .code(),
        200
    );

    let nominated = served.pod_once("high", unscheduled).await;
    assert_eq!(nominated["status"]["nominatedNodeName"], "n");
    assert_eq!(
        result(&nominated, "postfilter-result")["n"]["DefaultPreemption"],
        "preemption victim"
    );
    let high = served.pod_once("high", bound).await;
    assert_eq!(high["spec"]["nodeName"], "n");
    assert_eq!(
        served
            .get("/api/v1/namespaces/default/pods/low")
            .await
            .code(),
        404
    );
    assert_eq!(
        served
            .get("/api/v1/namespaces/default/pods/other")
            .await
            .code(),
        200
    );
    let told = events(&served, "Preempted").await;
    assert_eq!(told[0]["involvedObject"]["name"], "low");
}

#[tokio::test]
async fn each_profile_takes_its_own_pods() {
    let most = json!({ "name": "NodeResourcesFit", "args": { "scoringStrategy": {
        "type": "MostAllocated", "resources": [{ "name": "cpu", "weight": 1 }] } } });
    let only_fit =
        json!({ "multiPoint": { "disabled": [{ "name": "NodeResourcesBalancedAllocation" }] } });
    let configuration = json!({ "profiles": [
        { "schedulerName": "default-scheduler" },
        { "schedulerName": "packer", "plugins": only_fit, "pluginConfig": [most] },
    ] });
    let served = Served::scheduling(Some(&configuration)).await;
    let mut used = pod("used");
    used["spec"]["nodeName"] = "a".into();
    used["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2".into();
    let of = |name: &str, scheduler: &str| {
        let mut pod = pod(name);
        pod["spec"]["schedulerName"] = scheduler.into();
        pod
    };
    let pods = [
        used,
        of("spread", "default-scheduler"),
        of("pack", "packer"),
        of("orphan", "else"),
    ];
    let import = json!({ "nodes": [node("a"), node("b")], "pods": pods });
    assert_eq!(served.import(&import).await.code(), 200);

    assert_eq!(
        served.pod_once("spread", bound).await["spec"]["nodeName"],
        "b"
    );
    assert_eq!(
        served.pod_once("pack", bound).await["spec"]["nodeName"],
        "a"
    );
    let orphan = served
        .get("/api/v1/namespaces/default/pods/orphan")
        .await
        .json();
    assert_eq!(orphan["metadata"]["name"], "orphan", "{orphan}");
    assert!(!bound(&orphan) && condition(&orphan).is_null(), "{orphan}");
}

#[tokio::test]
async fn another_configuration_tries_pending_pods_again() {
    let served = Served::scheduling(None).await;
    let mut cordoned = node("cordoned");
    cordoned["spec"] = json!({ "unschedulable": true });
    assert_eq!(
        served
            .import(&json!({ "nodes": [cordoned], "pods": [pod("p")] }))
            .await
            .code(),
        200
    );
    served.pod_once("p", unscheduled).await;

    let disabled = json!({ "profiles": [{ "plugins": { "multiPoint": { "disabled": [{ "name": "NodeUnschedulable" }] } } }] });
    assert_eq!(
        served
            .post("/api/v1/schedulerconfiguration", &disabled)
            .await
            .code(),
        202
    );

    let placed = served.pod_once("p", bound).await;
    assert!(
        result(&placed, "filter-result")["cordoned"]
            .get("NodeUnschedulable")
            .is_none()
    );
}

#[tokio::test]
async fn a_reset_while_pods_are_scheduled_leaves_none() {
    let served = Served::scheduling(None).await;
    let pods: Vec<Value> = (0..60).map(|at| pod(&format!("p{at}"))).collect();
    for round in 0..3 {
        assert_eq!(
            served
                .import(&json!({ "nodes": [node("n")], "pods": pods }))
                .await
                .code(),
            200
        );
        tokio::time::sleep(Duration::from_millis(round * 15)).await;
        assert_eq!(
            served.send("PUT", "/api/v1/reset", &[], None).await.code(),
            202
        );
        let export = served.export().await;
        assert_eq!(
            (&export["pods"], &export["nodes"]),
            (&json!([]), &json!([]))
        );
    }
    served
        .import(&json!({ "nodes": [node("n")], "pods": [pod("after")] }))
        .await;
    served.pod_once("after", bound).await;
}

#[tokio::test]
async fn a_claim_that_waits_gets_a_volume_with_its_pod() {
    let served = Served::scheduling(None).await;
    let mut user = pod("user");
    user["spec"]["volumes"] =
        json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "claim" } }]);
    let import = json!({
        "nodes": [node("n")],
        "storageClasses": [{ "metadata": { "name": "late" }, "provisioner": "example.com/disk", "volumeBindingMode": "WaitForFirstConsumer" }],
        "pvcs": [{ "metadata": { "name": "claim", "namespace": "default" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "late", "resources": { "requests": { "storage": "1Gi" } } } }],
        "pods": [user],
    });
    assert_eq!(served.import(&import).await.code(), 200);

    served.pod_once("user", bound).await;

    let export = served.export().await;
    let (claim, volume) = (&export["pvcs"][0], &export["pvs"][0]);
    assert_eq!(claim["spec"]["volumeName"], volume["metadata"]["name"]);
    assert_eq!(volume["spec"]["claimRef"]["uid"], claim["metadata"]["uid"]);
    assert_eq!(claim["status"]["phase"], "Bound");
}

/// An extender that takes a while, refuses the node `a`, and prefers the node `c`.
async fn extender(delay: Duration) -> (String, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let filter = move |Json(args): Json<Value>| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::time::sleep(delay).await;
            let names = args["NodeNames"].as_array().unwrap().iter();
            let fit: Vec<&Value> = names.filter(|name| **name != "a").collect();
            Json(json!({ "nodenames": fit, "failedNodes": { "a": "not this one" } }))
        }
    };
    let prioritize = |Json(args): Json<Value>| async move {
        let names = args["NodeNames"].as_array().unwrap().iter();
        let rows =
            names.map(|name| json!({ "Host": name, "Score": if name == "c" { 10 } else { 0 } }));
        Json(Value::Array(rows.collect()))
    };
    let router = Router::new()
        .route("/ext/filter", post(filter))
        .route("/ext/prioritize", post(prioritize));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/ext/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, calls)
}

fn extended(url: &str, more: &Value) -> Value {
    let mut extender = json!({ "urlPrefix": url, "filterVerb": "filter", "prioritizeVerb": "prioritize",
        "weight": 100, "nodeCacheCapable": true });
    for (key, value) in more.as_object().unwrap() {
        extender[key] = value.clone();
    }
    json!({ "extenders": [extender] })
}

#[tokio::test]
async fn an_extender_refuses_and_prefers_nodes() {
    let (url, _) = extender(Duration::ZERO).await;
    let served = Served::scheduling(Some(&extended(&url, &json!({})))).await;
    let import = json!({ "nodes": [node("a"), node("b"), node("c")], "pods": [pod("p")] });
    assert_eq!(served.import(&import).await.code(), 200);

    let placed = served.pod_once("p", bound).await;

    assert_eq!(placed["spec"]["nodeName"], "c");
    let filter = result(&placed, "extender-filter-result");
    assert_eq!(filter[&url]["FailedNodes"], json!({ "a": "not this one" }));
    assert_eq!(filter[&url]["NodeNames"], json!(["b", "c"]));
    let scores = result(&placed, "extender-prioritize-result");
    assert_eq!(
        scores[&url],
        json!([{ "Host": "b", "Score": 0 }, { "Host": "c", "Score": 10_000 }])
    );
    assert_eq!(result(&placed, "extender-bind-result"), json!({}));
    // The same question over the simulator's own route.
    let asked = served
        .post(
            "/api/v1/extender/filter/0",
            &json!({ "NodeNames": ["a", "d"] }),
        )
        .await;
    assert_eq!(
        (asked.code(), &asked.json()["nodenames"]),
        (200, &json!(["d"]))
    );
    assert_eq!(
        served
            .post("/api/v1/extender/preempt/0", &json!({}))
            .await
            .code(),
        404
    );
}

#[tokio::test]
async fn a_slow_extender_ends_the_try_unless_ignorable() {
    let (url, calls) = extender(Duration::from_secs(30)).await;
    let slow = json!({ "httpTimeout": "100ms", "prioritizeVerb": "" });
    let served = Served::scheduling(Some(&extended(&url, &slow))).await;
    assert_eq!(
        served
            .import(&json!({ "nodes": [node("b")], "pods": [pod("p")] }))
            .await
            .code(),
        200
    );

    let pending = served.pod_once("p", unscheduled).await;
    assert_eq!(condition(&pending)["reason"], "SchedulerError");
    let message = condition(&pending)["message"].as_str().unwrap();
    assert!(
        message.contains(&url) && message.contains("0.1 s"),
        "{message}"
    );
    assert!(calls.load(Ordering::SeqCst) > 0);

    let ignorable = json!({ "httpTimeout": "100ms", "prioritizeVerb": "", "ignorable": true });
    let posted = served
        .post(
            "/api/v1/schedulerconfiguration",
            &extended(&url, &ignorable),
        )
        .await;
    assert_eq!(posted.code(), 202);
    served.pod_once("p", bound).await;
}

#[tokio::test]
async fn an_extender_is_called_only_for_its_resources() {
    let (url, calls) = extender(Duration::ZERO).await;
    let managed =
        json!({ "managedResources": [{ "name": "example.com/x", "ignoredByScheduler": true }] });
    let served = Served::scheduling(Some(&extended(&url, &managed))).await;
    let mut theirs = pod("theirs");
    theirs["spec"]["containers"][0]["resources"]["limits"] = json!({ "example.com/x": "1" });
    theirs["spec"]["containers"][0]["resources"]["requests"]["example.com/x"] = "1".into();
    let import = json!({ "nodes": [node("a")], "pods": [pod("p")] });
    assert_eq!(served.import(&import).await.code(), 200);
    served.pod_once("p", bound).await;
    assert_eq!(calls.load(Ordering::SeqCst), 0);

    assert_eq!(
        served.import(&json!({ "pods": [theirs] })).await.code(),
        200
    );
    served.pod_once("theirs", unscheduled).await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}
