//! Several replicas, one after another and at the same time, on one API server that sometimes fails.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, too"
)]

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use embedded_cluster::Cluster;
use scheduler::leader::{self, Leadership};
use scheduler::{Company, embedded};
use serde_json::{Value, json};
use support::{Served, node, pod, until};

fn cluster(nodes: &[Value]) -> Cluster {
    let cluster = Cluster::default();
    cluster.import(&json!({ "nodes": nodes })).unwrap();
    cluster
}

async fn alone(cluster: &Cluster) -> Served {
    Served::replica(cluster, embedded::client(cluster), Company::none()).await
}

/// The fault of calls that bind.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Trouble {
    None,
    /// It happens, and the connection breaks before the answer.
    AnswerLost,
    /// The binding happens after the caller has stopped waiting for the answer.
    Slow,
    /// The server has trouble of its own, and nothing happens.
    Broken,
    /// It is forbidden.
    Forbidden,
}

/// A client of the cluster whose bindings fail as the number says.
fn troubled(cluster: &Cluster, trouble: &Arc<AtomicU8>) -> kube::Client {
    async fn meddle(
        State(trouble): State<Arc<AtomicU8>>,
        request: Request,
        next: Next,
    ) -> Response {
        let binds = request.method() == Method::POST && request.uri().path().ends_with("/binding");
        let trouble = trouble.load(Ordering::Relaxed);
        let failed = |status: StatusCode| {
            let code = status.as_u16();
            let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "trouble", "reason": "X"});
            (status, body.to_string()).into_response()
        };
        if !binds || trouble == Trouble::None as u8 {
            next.run(request).await
        } else if trouble == Trouble::AnswerLost as u8 {
            drop(next.run(request).await);
            failed(StatusCode::INTERNAL_SERVER_ERROR)
        } else if trouble == Trouble::Slow as u8 {
            let late = tokio::spawn(async move {
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                next.run(request).await
            });
            late.await.unwrap()
        } else if trouble == Trouble::Broken as u8 {
            failed(StatusCode::INTERNAL_SERVER_ERROR)
        } else {
            failed(StatusCode::FORBIDDEN)
        }
    }
    let router = cluster
        .router()
        .layer(from_fn_with_state(Arc::clone(trouble), meddle));
    kube::Client::new(router, "default")
}

#[tokio::test]
async fn a_restart_between_filter_and_bind_fits_the_pod_anew() {
    let cluster = cluster(&[node("n1", 1, 2, 10_000)]);
    let first = alone(&cluster).await;
    for name in ["bound", "reserved", "late"] {
        first.make(&pod(name, 4000));
    }
    first.filter(&pod("bound", 4000), &["n1"]).await.unwrap();
    assert_eq!(first.bind(&pod("bound", 4000), "n1").await, "");
    first.filter(&pod("reserved", 4000), &["n1"]).await.unwrap();
    drop(first);

    let second = alone(&cluster).await;
    assert_eq!(second.held(), ["bound@n1"]);
    // The first binding gets the device.
    assert_eq!(second.bind(&pod("late", 4000), "n1").await, "");
    let refused = second.bind(&pod("reserved", 4000), "n1").await;

    assert!(
        refused.contains("node n1 does not fit any more: 1/1 CardTimeSlicingExhausted"),
        "{refused}"
    );
    let shown = second.pod("late").await;
    assert_eq!(
        shown["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"],
        "n1-gpu-0,NVIDIA,4000,0:;"
    );
    assert_eq!(
        second.pod("reserved").await["spec"]["nodeName"],
        json!(null)
    );
    assert_eq!(second.held(), ["bound@n1", "late@n1"]);
}

#[tokio::test]
async fn a_binding_with_a_lost_answer_is_counted_once() {
    for (trouble, happens) in [
        (Trouble::AnswerLost, true),
        (Trouble::Slow, true),
        (Trouble::Broken, false),
    ] {
        let cluster = cluster(&[node("n1", 1, 1, 10_000), node("n2", 1, 1, 10_000)]);
        let now = Arc::new(AtomicU8::new(trouble as u8));
        let served = Served::replica(&cluster, troubled(&cluster, &now), Company::none()).await;
        served.make(&pod("p", 1000));
        served.make(&pod("q", 1000));
        served.filter(&pod("p", 1000), &["n1"]).await.unwrap();

        let said = served.bind(&pod("p", 1000), "n1").await;

        assert!(said.contains("it is not known"), "{trouble:?}: {said}");
        // Its devices are not given to another pod, whatever the outcome.
        assert!(
            served.filter(&pod("q", 1000), &["n1"]).await.is_err(),
            "{trouble:?}"
        );
        now.store(Trouble::None as u8, Ordering::Relaxed);
        if happens {
            until(|| served.scheduler.with_ledger(|ledger| ledger.reserved()) == 0).await;
        } else {
            let elsewhere = served.filter(&pod("p", 1000), &["n2"]).await.unwrap_err();
            let why = elsewhere["Error"].as_str().unwrap();
            assert!(why.contains("not known yet"), "{why}");
        }
        assert_eq!(
            served.filter(&pod("p", 1000), &["n1", "n2"]).await.unwrap(),
            "n1"
        );
        assert_eq!(served.bind(&pod("p", 1000), "n1").await, "", "{trouble:?}");
        assert_eq!(served.pod("p").await["spec"]["nodeName"], "n1");
        assert_eq!(served.held(), ["p@n1"]);
    }
}

#[tokio::test]
async fn a_refused_binding_gives_back_what_was_reserved() {
    let cluster = cluster(&[node("n1", 1, 1, 10_000)]);
    let now = Arc::new(AtomicU8::new(Trouble::Forbidden as u8));
    let served = Served::replica(&cluster, troubled(&cluster, &now), Company::none()).await;
    served.make(&pod("p", 1000));

    served.filter(&pod("p", 1000), &["n1"]).await.unwrap();
    assert_eq!(served.bind(&pod("p", 1000), "n1").await, "trouble");
    assert!(served.held().is_empty());

    // A pod that does not exist, an unknown node, another pod of that name.
    now.store(Trouble::None as u8, Ordering::Relaxed);
    served.filter(&pod("ghost", 1000), &["n1"]).await.unwrap();
    let said = served.bind(&pod("ghost", 1000), "n1").await;
    assert!(said.contains("\"ghost\" not found"), "{said}");
    assert!(served.held().is_empty());
    served.filter(&pod("p", 1000), &["n1"]).await.unwrap();
    assert_eq!(
        served.bind(&pod("p", 1000), "n9").await,
        "node \"n9\" not found"
    );
    assert!(served.held().is_empty());
    let mut other = pod("p", 1000);
    other["metadata"]["uid"] = "another".into();
    served.filter(&other, &["n1"]).await.unwrap();
    let said = served.bind(&other, "n1").await;
    assert!(said.contains("UID in precondition: another"), "{said}");
    assert!(served.held().is_empty());
}

#[tokio::test]
async fn a_pod_that_another_scheduler_bound_has_what_is_written_there() {
    let cluster = cluster(&[node("n1", 2, 1, 10_000)]);
    let one = alone(&cluster).await;
    let two = alone(&cluster).await;
    one.make(&pod("p", 1000));
    one.filter(&pod("p", 1000), &["n1"]).await.unwrap();
    two.filter(&pod("p", 1000), &["n1"]).await.unwrap();

    assert_eq!(one.bind(&pod("p", 1000), "n1").await, "");
    // The same devices were chosen, so it is as if both had bound it.
    assert_eq!(two.bind(&pod("p", 1000), "n1").await, "");

    let bound = two.pod("p").await;
    let written = &bound["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"];
    let held = two.scheduler.with_ledger(|ledger| {
        let held = ledger.cluster().reservation("uid-p").unwrap();
        held.placement.containers[0].grants[0].device.to_string()
    });
    assert!(
        written.as_str().unwrap().starts_with(&held),
        "{written} {held}"
    );
}

/// The Lease of the neighbouring kube-schedulers, held by this host from now on.
async fn hold(client: &kube::Client, host: &str) {
    let now = jiff::Timestamp::now();
    let patch = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": "hami-scheduler" },
        "spec": {
            "holderIdentity": format!("{host}_1"),
            "leaseDurationSeconds": 15,
            "renewTime": format!("{now:.6}"),
        },
    });
    let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> =
        kube::Api::namespaced(client.clone(), "kube-system");
    let params = kube::api::PatchParams::apply("test").force();
    leases
        .patch("hami-scheduler", &params, &kube::api::Patch::Apply(patch))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_second_replica_takes_over_with_everything_held() {
    let cluster = cluster(&[node("n1", 1, 3, 10_000)]);
    let client = embedded::client(&cluster);
    hold(&client, "host-a").await;
    let replica = async |host: &str| {
        let settings = leader::LeaderSettings::new("kube-system", "hami-scheduler", host);
        let company = Company {
            leadership: Leadership::follow(client.clone(), settings),
            ..Company::none()
        };
        Served::replica(&cluster, client.clone(), company).await
    };
    let (a, b) = (replica("host-a").await, replica("host-b").await);
    for name in ["one", "two", "three", "four"] {
        a.make(&pod(name, 1000));
    }
    let ask = |name: &str| json!({ "Pod": pod(name, 1000), "NodeNames": ["n1"] }).to_string();

    assert_eq!(a.filter(&pod("one", 1000), &["n1"]).await.unwrap(), "n1");
    assert_eq!(a.bind(&pod("one", 1000), "n1").await, "");
    assert_eq!(a.filter(&pod("two", 1000), &["n1"]).await.unwrap(), "n1");
    let (status, answer) = b.send("POST", "/filter", ask("two")).await;
    assert_eq!(status, 503, "{answer}");
    assert!(
        answer["Error"]
            .as_str()
            .unwrap()
            .contains("another replica")
    );
    let (ready, text) = b.send("GET", "/readyz", "").await;
    assert_eq!(ready, 200, "{text}");
    assert_eq!(b.send("GET", "/readyz?answers", "").await.0, 503);

    hold(&client, "host-b").await;
    // The first question after the takeover is answered, and knows the bound pods.
    for (name, fits) in [("two", true), ("three", true), ("four", false)] {
        let node = b.filter(&pod(name, 1000), &["n1"]).await;
        assert_eq!(node.is_ok(), fits, "{name}: {node:?}");
        if fits {
            assert_eq!(b.bind(&pod(name, 1000), "n1").await, "");
        }
    }
    until(|| a.scheduler.answers().is_err()).await;
    let (status, _) = a.send("POST", "/filter", ask("four")).await;
    assert_eq!(status, 503);
    until(|| a.held() == ["one@n1", "three@n1", "two@n1"]).await;
    assert_eq!(b.held(), ["one@n1", "three@n1", "two@n1"]);
}
