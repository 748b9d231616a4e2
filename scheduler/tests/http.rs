//! The routes, as kube-scheduler and others call them, on an embedded cluster.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, too"
)]

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use scheduler::embedded::Admit;
use scheduler::{Company, Scheduler, Settings};
use serde_json::{Value, json};
use support::{Served, node, placed, pod, until, vendors};
use tower::ServiceExt;

fn state(nodes: &[Value]) -> Value {
    json!({ "nodes": nodes, "pods": [], "resourceQuotas": null })
}

#[tokio::test]
async fn a_pod_is_filtered_bound_and_shows_what_it_got() {
    let served = Served::start(state(&[node("n1", 2, 10, 10_000)])).await;
    assert_eq!(served.send("GET", "/healthz", "").await, (200, json!("")));

    assert_eq!(served.filter(&pod("p", 3000), &["n1"]).await.unwrap(), "n1");
    let before = served.pod("p").await;
    assert_eq!(served.bind(&pod("p", 3000), "n1").await, "");
    let after = served.pod("p").await;

    let annotations = &after["metadata"]["annotations"];
    assert_eq!(before["spec"]["nodeName"], json!(null));
    assert_eq!(after["spec"]["nodeName"], "n1");
    for key in [
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-devices-allocated",
        "hami.io/devices-to-allocate",
    ] {
        assert_eq!(annotations[key], "n1-gpu-1,NVIDIA,3000,0:;", "{key}");
        assert_eq!(before["metadata"]["annotations"][key], annotations[key]);
    }
    assert_eq!(annotations["hami.io/vgpu-node"], "n1");
    assert_eq!(annotations["hami.io/bind-phase"], "allocating");
    assert_eq!(after["metadata"]["labels"]["hami.io/vgpu-node"], "n1");
    // Asked again, it stays on its node.
    assert_eq!(served.bind(&pod("p", 3000), "n1").await, "");
    assert_eq!(served.filter(&pod("p", 3000), &["n1"]).await.unwrap(), "n1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn probes_fail_while_the_ledger_hangs() {
    let served = Served::start(state(&[node("n1", 1, 1, 1000)])).await;
    let probes = ["/healthz", "/readyz", "/livez/kube-scheduler"];
    for path in probes {
        assert_eq!(served.send("GET", path, "").await.0, 200, "{path}");
    }
    let hung = Arc::new(tokio::sync::Notify::new());
    let (release, hold) = std::sync::mpsc::channel();
    let hanging = {
        let (scheduler, hung) = (served.scheduler.clone(), Arc::clone(&hung));
        std::thread::spawn(move || {
            scheduler.with_ledger(|_| {
                hung.notify_one();
                hold.recv().ok()
            })
        })
    };
    hung.notified().await;

    for path in probes {
        let (status, text) = served.send("GET", path, "").await;
        assert_eq!(status, 503, "{path}");
        let text = text.as_str().unwrap_or_default();
        assert!(text.contains("the ledger did not answer for 2 s"), "{text}");
    }

    release.send(()).unwrap();
    hanging.join().unwrap();
    assert_eq!(served.send("GET", "/readyz", "").await.0, 200);
}

#[tokio::test]
async fn a_kube_scheduler_lives_while_it_and_its_extender_are_well() {
    let served = Served::start(state(&[node("n1", 1, 1, 1000)])).await;
    let healthy = Arc::new(AtomicBool::new(true));
    let kube_scheduler = {
        let healthy = Arc::clone(&healthy);
        axum::Router::new().route(
            "/healthz",
            axum::routing::get(async move || match healthy.load(Ordering::Relaxed) {
                true => (http::StatusCode::OK, "ok"),
                false => (
                    http::StatusCode::INTERNAL_SERVER_ERROR,
                    "leaderElection failed",
                ),
            }),
        )
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/healthz", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(listener, kube_scheduler).await });
    let beside = scheduler::beside::Beside::new(&address.parse().unwrap()).unwrap();
    let health = scheduler::api::health(served.scheduler.clone(), Some(beside));
    let probe = async || {
        let request = http::Request::get("/livez/kube-scheduler");
        let request = request.body(axum::body::Body::empty()).unwrap();
        let answer = health.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 16).await;
        (status, String::from_utf8(body.unwrap().to_vec()).unwrap())
    };

    assert_eq!(probe().await, (200, "ok\n".to_owned()));
    healthy.store(false, Ordering::Relaxed);
    let (status, text) = probe().await;
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("leaderElection failed"), "{text}");
    serving.abort();
    drop(serving.await);
    let (status, text) = probe().await;
    assert_eq!(status, 503, "{text}");
    assert!(
        text.starts_with("kube-scheduler is not healthy: "),
        "{text}"
    );
}

#[tokio::test]
async fn a_no_names_each_node_and_where_leaving_would_not_help() {
    let mut held = pod("held", 9000);
    held["metadata"]["annotations"] = json!({
        "hami.io/vgpu-node": "full", "hami.io/vgpu-devices-allocated": "full-gpu-0,NVIDIA,9000,0:;",
    });
    held["spec"]["nodeName"] = "full".into();
    let mut cluster = state(&[node("full", 1, 10, 10_000), node("small", 1, 10, 1000)]);
    cluster["pods"] = json!([held]);
    let served = Served::start(cluster).await;

    let answer = served
        .filter(&pod("p", 5000), &["full", "small", "unknown"])
        .await
        .unwrap_err();

    assert_eq!(
        answer,
        json!({
            "Nodes": null, "NodeNames": null, "Error": "",
            "FailedNodes": { "full": "1/1 CardInsufficientMemory" },
            "FailedAndUnresolvableNodes": {
                "small": "1/1 CardInsufficientMemory", "unknown": "node unregistered",
            },
        })
    );
    let empty = served.filter(&pod("p", 5000), &[]).await.unwrap_err();
    assert_eq!(empty["FailedNodes"], json!({}));
    let args = json!({ "Pod": pod("p", 5000), "NodeNames": ["full", "full"] });
    let twice = served.text("POST", "/filter", args.to_string()).await;
    assert_eq!(twice.matches("\"full\"").count(), 1, "{twice}");
}

#[tokio::test]
async fn a_pod_without_devices_may_go_anywhere() {
    let served = Served::start(state(&[node("n1", 1, 1, 1000)])).await;
    let mut plain = pod("plain", 1);
    plain["spec"]["containers"][0]["resources"] = json!({});

    let args = json!({ "pod": plain, "nodenames": ["n1", "n9"] });
    let names = served.post("/filter", &args).await;
    let nodes = json!({ "items": [{ "metadata": { "name": "n9" }, "x": [1.50] }] });
    let whole = served
        .post("/filter", &json!({ "Pod": plain, "Nodes": nodes }))
        .await;
    let nowhere = served.bind(&plain, "n9").await;
    let bound = served.bind(&plain, "n1").await;

    assert_eq!(names["NodeNames"], json!(["n1", "n9"]));
    assert_eq!(whole["Nodes"]["items"], nodes["items"]);
    assert_eq!(nowhere, "node \"n9\" not found");
    assert_eq!(bound, "");
    assert!(served.held().is_empty());
}

#[tokio::test]
async fn whole_nodes_are_judged_by_the_ledger_without_a_reservation() {
    let known = node("n1", 1, 10, 10_000);
    let served = Served::start(state(std::slice::from_ref(&known))).await;
    served.filter(&pod("a", 6000), &["n1"]).await.unwrap();
    let strange = node("n2", 1, 10, 10_000);
    let ask = |nodes: Vec<Value>| json!({ "Pod": pod("b", 6000), "Nodes": { "items": nodes } });

    let only_known = served.post("/filter", &ask(vec![known.clone()])).await;
    let both = served
        .post("/filter", &ask(vec![known, strange.clone()]))
        .await;

    assert_eq!(
        only_known["FailedNodes"]["n1"],
        "1/1 CardInsufficientMemory"
    );
    assert_eq!(both["Nodes"]["items"], json!([strange]));
    assert_eq!(both["NodeNames"], json!(null));
    assert_eq!(served.held(), ["a@n1"]);
}

/// Whether the answer has an error text. A missing `Error` is not one.
fn names_an_error(answer: &Value) -> bool {
    answer["Error"]
        .as_str()
        .is_some_and(|text| !text.is_empty())
}

#[tokio::test]
async fn what_cannot_be_read_is_answered_in_the_shape_of_the_verb() {
    let served = Served::start(state(&[node("n1", 1, 1, 1000)])).await;
    let keys = [
        "Nodes",
        "NodeNames",
        "FailedNodes",
        "FailedAndUnresolvableNodes",
        "Error",
    ];
    for body in [
        "",
        "{",
        "[]",
        "\"x\"",
        "{\"Pod\": 3}",
        "{\"NodeNames\": [1]}",
    ] {
        for path in ["/filter", "/bind", "/preempt", "/prioritize"] {
            let (status, answer) = served.send("POST", path, body).await;
            let fits_bind = path == "/bind" && !["", "{", "[]", "\"x\""].contains(&body);
            if !fits_bind {
                assert_eq!(status, 400, "{path} {body}: {answer}");
            }
            assert!(names_an_error(&answer), "{path} {body}: {answer}");
            if path == "/filter" {
                for key in keys {
                    assert!(answer.get(key).is_some(), "{body}: {answer}");
                }
            }
        }
    }
    for (body, why) in [
        (json!({ "NodeNames": ["n1"] }), "extender args missing pod"),
        (
            json!({ "Pod": pod("p", 1) }),
            "extender args have neither NodeNames nor Nodes",
        ),
    ] {
        assert_eq!(served.post("/filter", &body).await["Error"], why);
    }
    let (status, answer) = served
        .send("POST", "/filter", vec![b' '; (64 << 20) + 1])
        .await;
    assert_eq!(status, 413);
    assert!(names_an_error(&answer), "{answer}");
    assert_eq!(served.send("GET", "/filter", "").await.0, 405);
    assert_eq!(served.send("GET", "/nothing", "").await.0, 404);
}

#[tokio::test]
async fn an_unreadable_request_fits_nowhere_with_a_reason() {
    let served = Served::start(state(&[node("n1", 1, 1, 1000)])).await;
    let mut wrong = pod("p", 1);
    wrong["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "-5".into();

    let answer = served.filter(&wrong, &["n1"]).await.unwrap_err();

    let text = answer["FailedAndUnresolvableNodes"]["n1"].as_str().unwrap();
    assert!(
        text.contains("nvidia.com/gpumem") && text.contains("-5"),
        "{text}"
    );
}

#[tokio::test]
async fn a_question_sees_earlier_changes_of_the_api() {
    let served = Served::start(state(&[])).await;
    for round in 0..20 {
        let name = format!("n{round}");
        let (made, answer) = served
            .send("POST", "/api/v1/nodes", node(&name, 1, 1, 1000).to_string())
            .await;
        assert_eq!(made, 201, "{answer}");
        let one = pod(&format!("one-{round}"), 1000);
        let two = pod(&format!("two-{round}"), 1000);
        assert_eq!(served.filter(&one, &[&name]).await.unwrap(), name);
        assert!(served.filter(&two, &[&name]).await.is_err());

        let path = format!("/api/v1/namespaces/default/pods/one-{round}");
        assert_eq!(served.send("DELETE", &path, "").await.0, 200);
        assert_eq!(served.filter(&two, &[&name]).await.unwrap(), name);
    }
}

#[tokio::test]
async fn nodes_are_ranked_by_their_policy_and_the_strange_ones_last() {
    let served = Served::start(state(&[
        node("empty", 1, 10, 10_000),
        node("used", 1, 10, 10_000),
    ]))
    .await;
    served.filter(&pod("a", 6000), &["used"]).await.unwrap();
    let names = ["empty", "used", "unknown"];
    let rank = async |policy: &str| {
        let mut asked = pod("b", 1000);
        asked["metadata"]["annotations"] = json!({ "hami.io/node-scheduler-policy": policy });
        let answer = served
            .post("/prioritize", &json!({ "Pod": asked, "NodeNames": names }))
            .await;
        let scores = answer.as_array().unwrap();
        assert!(
            scores
                .iter()
                .zip(names)
                .all(|(score, name)| score["Host"] == name)
        );
        scores
            .iter()
            .map(|score| score["Score"].as_i64().unwrap())
            .collect::<Vec<_>>()
    };

    let (binpack, spread) = (rank("binpack").await, rank("spread").await);

    assert!(binpack[1] > binpack[0] && spread[0] > spread[1]);
    assert_eq!((binpack[2], spread[2]), (0, 0));
}

#[tokio::test]
async fn only_pods_that_make_room_are_evicted() {
    let bound = |name: &str, gpu: usize, mib: u32, priority: i32| {
        let allocated = format!("n1-gpu-{gpu},NVIDIA,{mib},0:;");
        let annotations = json!({
            "hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": allocated,
        });
        let mut bound = placed(pod(name, mib), "n1", &annotations);
        bound["spec"]["priority"] = priority.into();
        bound
    };
    let mut cluster = state(&[node("n1", 2, 2, 10_000)]);
    cluster["pods"] = json!([
        bound("high-0", 0, 4000, 100),
        bound("low-0", 0, 4000, 0),
        bound("low-1a", 1, 5000, 0),
        bound("low-1b", 1, 4000, 0),
    ]);
    let served = Served::start(cluster).await;
    let preempt = async |mib: u32, named: &[&str]| {
        let mut asked = pod("urgent", mib);
        asked["spec"]["priority"] = 100.into();
        let pods: Vec<Value> = named
            .iter()
            .map(|name| json!({ "UID": format!("uid-{name}") }))
            .collect();
        let victims =
            json!({ "n1": { "Pods": pods, "NumPDBViolations": 1 }, "n9": { "Pods": pods } });
        let args = json!({ "Pod": asked, "NodeNameToMetaVictims": victims });
        let answer = served.post("/preempt", &args).await;
        let kept = answer["NodeNameToMetaVictims"].as_object().unwrap();
        assert!(!kept.contains_key("n9"));
        kept.get("n1").map(|victims| {
            assert_eq!(victims["NumPDBViolations"], 1);
            let mut uids: Vec<String> = victims["Pods"]
                .as_array()
                .unwrap()
                .iter()
                .map(|pod| pod["UID"].as_str().unwrap().to_owned())
                .collect();
            uids.sort();
            uids
        })
    };

    // A named victim that is enough stays named, also if it was named for reasons that are not ours.
    assert_eq!(preempt(5000, &["low-1a"]).await.unwrap(), ["uid-low-1a"]);
    assert_eq!(preempt(1000, &["low-0"]).await.unwrap(), ["uid-low-0"]);
    // A named one that frees nothing is let be for those that do.
    assert_eq!(
        preempt(10_000, &["low-0"]).await.unwrap(),
        ["uid-low-1a", "uid-low-1b"]
    );
    // In vain.
    assert_eq!(preempt(20_000, &["low-0"]).await, None);
}

/// kube-scheduler knows a pod's node before the extender hears that the binding has succeeded.
#[tokio::test]
async fn a_pod_whose_binding_is_not_confirmed_is_not_evicted_in_vain() {
    let victim = |name: &str| {
        let annotations = json!({
            "hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "n1-gpu-1,NVIDIA,4000,0:;",
        });
        placed(pod(name, 4000), "n1", &annotations)
    };
    let mut cluster = state(&[node("n1", 2, 2, 10_000)]);
    let mut high = placed(
        pod("high-0", 4000),
        "n1",
        &json!({
            "hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "n1-gpu-0,NVIDIA,4000,0:;",
        }),
    );
    high["spec"]["priority"] = 100.into();
    cluster["pods"] = json!([high, victim("low-1a"), victim("low-1b")]);
    let served = Served::start(cluster).await;
    // It is placed on the first GPU, and its binding is not over.
    served.filter(&pod("low-0", 4000), &["n1"]).await.unwrap();

    let mut urgent = pod("urgent", 10_000);
    urgent["spec"]["priority"] = 100.into();
    let named = json!({ "n1": { "Pods": [{ "UID": "uid-low-0" }], "NumPDBViolations": 0 } });
    let args = json!({ "Pod": urgent, "NodeNameToMetaVictims": named });
    let answer = served.post("/preempt", &args).await;

    let pods = &answer["NodeNameToMetaVictims"]["n1"]["Pods"];
    assert_eq!(
        *pods,
        json!([{ "UID": "uid-low-1a" }, { "UID": "uid-low-1b" }])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_forty_pods_at_once_eight_get_the_eight_free_slots() {
    let served = Served::start(state(&[node("a", 1, 4, 10_000), node("b", 1, 4, 10_000)])).await;
    let listener = server::Listener::bind("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let address = listener.address();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let manners = server::Manners {
        connections: 100,
        connections_per_address: 100,
        ..server::Manners::default()
    };
    let serving = tokio::spawn(listener.serve(served.router.clone(), manners, stopped));
    let url: http::Uri = format!("http://{address}").parse().unwrap();

    let callers: Vec<_> = (0..40)
        .map(|at| {
            let client = kube::Client::try_from(kube::Config::new(url.clone())).unwrap();
            tokio::spawn(async move {
                let ask = async |path: &str, body: Value| {
                    let request = http::Request::post(path)
                        .body(body.to_string().into_bytes())
                        .unwrap();
                    client.request::<Value>(request).await.unwrap()
                };
                let asked = pod(&format!("p{at}"), 1000);
                let args = json!({ "Pod": asked, "NodeNames": ["a", "b"] });
                let answer = ask("/filter", args).await;
                let Some(node) = answer["NodeNames"][0].as_str() else {
                    return false;
                };
                let args = json!({
                    "PodName": format!("p{at}"), "PodNamespace": "default",
                    "PodUID": format!("uid-p{at}"), "Node": node,
                });
                ask("/bind", args).await["Error"] == ""
            })
        })
        .collect();
    let mut placed = 0;
    for caller in callers {
        placed += usize::from(caller.await.unwrap());
    }

    assert_eq!(placed, 8);
    assert_eq!(served.held().len(), 8);
    stop.send(()).unwrap();
    serving.await.unwrap();
}

#[tokio::test]
async fn before_the_cluster_is_read_no_question_is_answered() {
    let service = tower::service_fn(async |_: http::Request<kube::client::Body>| {
        std::future::pending::<()>().await;
        Ok::<_, std::convert::Infallible>(http::Response::new(axum::body::Body::empty()))
    });
    let settings = Settings {
        patience: Duration::from_millis(50),
        ..Settings::default()
    };
    let client = kube::Client::new(service, "default");
    let scheduler = Scheduler::new(client, vendors(), settings, Company::none());
    let router = scheduler::api::routes(&scheduler, None, false);
    let ask = async |path: &str| {
        use tower::ServiceExt;
        let request = http::Request::post(path)
            .body(axum::body::Body::from("{}"))
            .unwrap();
        let response: axum::response::Response = router.clone().oneshot(request).await.unwrap();
        response.status().as_u16()
    };

    for path in ["/filter", "/bind", "/preempt", "/prioritize"] {
        assert_eq!(ask(path).await, 503, "{path}");
    }
}

#[tokio::test]
async fn one_broken_node_or_pod_does_not_take_the_others_along() {
    let mut broken = node("broken", 1, 1, 1000);
    broken["metadata"]["annotations"]["hami.io/node-nvidia-register"] = "\u{0}[[{".into();
    let junk = json!({"hami.io/vgpu-devices-allocated": "🙂,,,:;;;:", "hami.io/vgpu-node": "n1"});
    let mut cluster = state(&[broken, node("n1", 1, 1, 1000)]);
    cluster["pods"] = json!([placed(pod("junk", 1), "n1", &junk)]);
    let served = Served::start(cluster).await;

    let node = served.filter(&pod("p", 1000), &["broken", "n1"]).await;

    assert_eq!(node.unwrap(), "n1");
    assert_eq!(
        served
            .scheduler
            .with_ledger(scheduler::ledger::Ledger::broken),
        (1, 1)
    );
}

#[tokio::test]
async fn a_quota_that_comes_and_goes_counts_from_then_on() {
    let served = Served::start(state(&[node("n1", 1, 10, 10_000)])).await;
    let quota = json!({
        "metadata": { "name": "q", "namespace": "default" },
        "spec": { "hard": { "limits.nvidia.com/gpumem": "1000" } },
    });
    let path = "/api/v1/namespaces/default/resourcequotas";
    assert_eq!(served.send("POST", path, quota.to_string()).await.0, 201);

    let answer = served.filter(&pod("p", 2000), &["n1"]).await.unwrap_err();
    assert_eq!(answer["FailedNodes"]["n1"], "1/1 ResourceQuotaNotFit");
    served.send("DELETE", &format!("{path}/q"), "").await;

    let mut nowhere = pod("nowhere", 1);
    nowhere["metadata"]["namespace"] = Value::Null;
    assert_eq!(served.filter(&pod("p", 2000), &["n1"]).await.unwrap(), "n1");
    assert_eq!(served.filter(&nowhere, &["n1"]).await.unwrap(), "n1");
    let used = served.scheduler.with_ledger(|ledger| {
        let nvidia = "NVIDIA".into();
        ledger.cluster().quota_use("default", &nvidia).slots
    });
    assert_eq!(used, 2);
    until(|| {
        served
            .scheduler
            .with_ledger(|ledger| ledger.waiting().len())
            == 0
    })
    .await;
}

#[tokio::test]
async fn an_unadmitted_pod_fits_nowhere_where_webhooks_are_skipped() {
    let served = Served::start(state(&[node("n1", 1, 10, 10_000)])).await;
    let admission = Arc::new(admission::Admission::new(
        vendors(),
        admission::Settings::default(),
    ));
    served.scheduler.refuse_unadmitted(Arc::clone(&admission));
    let mut passed = pod("passed", 1000);
    let admitted = admission
        .admit(&passed, &admission::Context::default())
        .unwrap();
    json_patch::patch(&mut passed, &admitted.patch).unwrap();
    let mut forged = pod("forged", 1000);
    forged["spec"]["schedulerName"] = "default-scheduler".into();
    forged["spec"]["containers"][0]["env"] =
        json!([{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]);

    assert_eq!(served.filter(&passed, &["n1"]).await.unwrap(), "n1");
    let answer = served.filter(&forged, &["n1"]).await.unwrap_err();

    let text = &answer["FailedAndUnresolvableNodes"]["n1"];
    assert!(
        text.as_str().unwrap().contains("CUDA_DISABLE_CONTROL"),
        "{answer}"
    );
}

#[tokio::test]
async fn with_admit_pods_over_the_api_go_through_admission() {
    let served = Served::start(state(&[node("n1", 1, 10, 10_000)])).await;
    let admission = Arc::new(admission::Admission::new(
        vendors(),
        admission::Settings::default(),
    ));
    served.cluster.admit_with(Arc::new(Admit::new(admission)));
    let path = "/api/v1/namespaces/default/pods";
    let mut asks = pod("asks", 1000);
    asks["spec"]["schedulerName"] = "default-scheduler".into();
    let mut escapes = pod("escapes", 1000);
    escapes["metadata"]["annotations"] = json!({ "hami.io/vgpu-node": "n1" });

    let (made, shown) = served.send("POST", path, asks.to_string()).await;
    let (refused, why) = served.send("POST", path, escapes.to_string()).await;

    assert_eq!((made, refused), (201, 403), "{shown} {why}");
    assert_eq!(shown["spec"]["schedulerName"], "hami-scheduler");
    assert!(
        why["message"]
            .as_str()
            .unwrap()
            .contains("hami.io/vgpu-node"),
        "{why}"
    );
    // The scheduler's own writes are not refused.
    assert_eq!(served.filter(&shown, &["n1"]).await.unwrap(), "n1");
    assert_eq!(served.bind(&shown, "n1").await, "");
    let forged = json!({"metadata": {"annotations": {"hami.io/vgpu-devices-allocated": ";"}}});
    let (refused, _) = served.patch(&format!("{path}/asks"), &forged).await;
    assert_eq!(refused, 403);
}

/// JSON of any shape, often close to the expected one.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-zA-Z0-9,:;{}\\[\\]\"/.-]{0,24}".prop_map(Value::from),
        Just(json!("99999999999999999999Gi")),
        Just(json!("-1")),
        Just(json!("n1")),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        let key = prop_oneof![
            Just("Pod"),
            Just("pod"),
            Just("Nodes"),
            Just("NodeNames"),
            Just("items"),
            Just("metadata"),
            Just("name"),
            Just("namespace"),
            Just("uid"),
            Just("annotations"),
            Just("labels"),
            Just("spec"),
            Just("containers"),
            Just("initContainers"),
            Just("resources"),
            Just("limits"),
            Just("requests"),
            Just("nvidia.com/gpu"),
            Just("nvidia.com/gpumem"),
            Just("nvidia.com/gpucores"),
            Just("nvidia.com/use-gputype"),
            Just("hami.io/device-scoring-weights"),
            Just("hami.io/gpu-scheduler-policy"),
            Just("hami.io/node-nvidia-register"),
            Just("PodName"),
            Just("Node"),
            Just("PodUID"),
            Just("NodeNameToMetaVictims"),
            Just("NodeNameToVictims"),
            Just("Pods"),
            Just("status"),
            Just("conditions"),
            Just("priority"),
            Just("n1"),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..6).prop_map(|fields| {
                Value::Object(
                    fields
                        .into_iter()
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_body_makes_a_verb_panic(bodies in prop::collection::vec(anything(), 1..4), raw in prop::collection::vec(any::<u8>(), 0..64)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let served = Served::start(state(&[node("n1", 1, 2, 1000)])).await;
            let mut asked: Vec<Vec<u8>> = vec![raw];
            for body in bodies {
                let mut nearly = pod("p", 100);
                nearly["spec"]["containers"][0]["resources"]["limits"] = body.clone();
                nearly["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] = body.clone();
                asked.push(json!({ "Pod": nearly, "NodeNames": ["n1"] }).to_string().into_bytes());
                asked.push(json!({ "Pod": pod("p", 100), "Nodes": { "items": [body] } }).to_string().into_bytes());
                asked.push(body.to_string().into_bytes());
            }
            for body in asked {
                for path in ["/filter", "/bind", "/prioritize", "/preempt"] {
                    let (status, answer) = served.send("POST", path, body.clone()).await;
                    assert_ne!(status, 500, "{path}: {answer}");
                }
            }
        });
    }
}

/// The embedded cluster with these slices and claims, which it does not have itself.
fn with_claims(
    cluster: &embedded_cluster::Cluster,
    slices: &[Value],
    claims: &[Value],
) -> kube::Client {
    use axum::Json;
    use axum::body::{Body, Bytes};
    use axum::response::IntoResponse;
    use axum::routing::get;

    let listed = |objects: &[Value]| {
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": objects});
        get(async move |uri: http::Uri| {
            if uri.query().unwrap_or_default().contains("watch=true") {
                let silent = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
                Body::from_stream(silent).into_response()
            } else {
                Json(list).into_response()
            }
        })
    };
    let version = json!({"groupVersion": "resource.k8s.io/v1", "version": "v1"});
    let groups = json!({"groups": [{"name": "resource.k8s.io", "versions": [version]}]});
    let path = "/apis/resource.k8s.io/v1";
    let router = axum::Router::new()
        .route("/apis", get(async move || Json(groups)))
        .route(&format!("{path}/resourceslices"), listed(slices))
        .route(&format!("{path}/resourceclaims"), listed(claims))
        .fallback_service(cluster.router());
    kube::Client::new(router, "default")
}

#[tokio::test]
async fn nodes_are_scored_for_a_pod_with_claims_by_what_claims_hold_there() {
    let driver = "gpu.vgpu.io";
    let amounts =
        json!({"memory": {"value": "8Gi"}, "cores": {"value": "100"}, "shares": {"value": "10"}});
    let slices = ["empty", "used", "full"].map(|node| {
        json!({"metadata": {"name": node}, "spec": {"driver": driver, "nodeName": node,
            "pool": {"name": node, "generation": 1}, "devices": [{"name": "gpu-0", "capacity": amounts}]}})
    });
    let mut claims = ["used", "full"].map(|node| {
        let memory = if node == "full" { "7Gi" } else { "3Gi" };
        json!({"metadata": {"namespace": "default", "name": node}, "status": {"allocation": {"devices": {"results": [
            {"driver": driver, "pool": node, "device": "gpu-0",
                "consumedCapacity": {"memory": memory, "cores": "0", "shares": "1"}}]}}}})
    }).to_vec();
    for name in ["binpack", "spread"] {
        claims.push(
            json!({"metadata": {"namespace": "default", "name": format!("{name}-gpu"),
            "ownerReferences": [{"kind": "Pod", "name": name, "uid": name}]},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": driver,
                "capacity": {"requests": {"memory": "2Gi"}}}}]}}}),
        );
    }
    let cluster = embedded_cluster::Cluster::default();
    let settings = Settings {
        reads_resource_claims: true,
        ..Settings::default()
    };
    let client = with_claims(&cluster, &slices, &claims);
    let scheduler = Scheduler::new(client, vendors(), settings, Company::none());
    let router = scheduler::api::routes(&scheduler, None, false);
    let following = tokio::spawn({
        let scheduler = scheduler.clone();
        async move { scheduler.follow().await }
    });
    until(|| scheduler.is_synced()).await;
    let scores = async |policy: &str| {
        let pod = json!({"metadata": {"name": policy, "namespace": "default", "uid": policy,
            "annotations": {"hami.io/node-scheduler-policy": policy}},
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "share"}],
                "containers": [{"name": "work", "resources": {"claims": [{"name": "gpu"}]}}]}});
        let names = ["empty", "used", "full", "unknown"];
        let question = json!({"Pod": pod, "NodeNames": names});
        let request = http::Request::post("/prioritize");
        let request = request.body(axum::body::Body::from(question.to_string()));
        let answer = router.clone().oneshot(request.unwrap()).await.unwrap();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await;
        let scores: Vec<Value> = serde_json::from_slice(&body.unwrap()).unwrap();
        let score = scores.iter().map(|it| it["Score"].as_i64().unwrap());
        score.collect::<Vec<_>>()
    };

    let (binpack, spread) = (scores("binpack").await, scores("spread").await);

    assert!(binpack[1] == 10 && binpack[0] < 10, "{binpack:?}");
    assert!(spread[0] == 10 && spread[1] < 10, "{spread:?}");
    assert_eq!([&binpack[2..], &spread[2..]], [[0, 0], [0, 0]]);
    following.abort();
}
