//! The eviction of a pod that holds a GPU past its limits, on an API server in this process: what its author may write
//! puts the end off for the stated grace, and no longer.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::waiting::found;
use axum::extract::Request;
use axum::middleware::{self, Next};
use embedded_cluster::{Cluster as Server, Options};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use serde_json::{Value, json};
use vgpu_monitor::attest::cluster::{Cluster, Evict};

const GRACE: Duration = Duration::from_secs(300);

struct World {
    cluster: Cluster,
    pods: Api<Pod>,
    runtime: tokio::runtime::Runtime,
    began: Instant,
    /// The agent's evictions and deletions, in their order: method, path and query.
    asked: Arc<Mutex<Vec<String>>>,
}

impl World {
    /// Pods of the namespace `ml` that take a day to end, each with its own uid, and disruption budgets over them.
    fn new(pods: &[(&str, Value)], budgets: &[(&str, &str)]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        // A pod that is deleted stays until its containers have ended, and none ends here.
        let server = Server::new(Options {
            graceful_deletion: true,
            ..Options::default()
        });
        let pods: Vec<Value> = pods
            .iter()
            .map(|(name, annotations)| {
                json!({
                    "metadata": {
                        "name": name, "namespace": "ml", "uid": format!("uid-of-{name}"),
                        "labels": { "app": name }, "annotations": annotations,
                    },
                    "spec": {
                        "nodeName": "n1", "terminationGracePeriodSeconds": 86_400,
                        "containers": [{ "name": "c", "image": "i" }],
                    },
                    "status": { "phase": "Running" },
                })
            })
            .collect();
        let namespaces = [json!({ "metadata": { "name": "ml" } })];
        server
            .import(&json!({ "namespaces": namespaces, "pods": pods }))
            .unwrap();
        let client = {
            let _inside = runtime.enter();
            kube::Client::new(server.router(), "default")
        };
        let api: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> =
            Api::namespaced(client.clone(), "ml");
        for (name, app) in budgets {
            let budget = serde_json::from_value(json!({
                "metadata": { "name": name },
                "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": app } } },
            }))
            .unwrap();
            let made = runtime.block_on(api.create(&Default::default(), &budget));
            made.unwrap();
        }
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = Arc::clone(&asked);
        let note = move |request: Request, next: Next| {
            if !request.method().is_safe() {
                let asks = format!("{} {}", request.method(), request.uri());
                noted.lock().unwrap().push(asks);
            }
            next.run(request)
        };
        let agents = server.router().layer(middleware::from_fn(note));
        let cluster = {
            let _inside = runtime.enter();
            Cluster::start(kube::Client::new(agents, "default"), "n1")
        };
        Self {
            cluster,
            pods: Api::namespaced(client, "ml"),
            runtime,
            began: Instant::now(),
            asked,
        }
    }

    fn evict(&self, pod: &str, after: Duration, more: impl FnOnce(&mut Evict)) {
        let mut evict = Evict {
            namespace: "ml".into(),
            pod: pod.into(),
            uid: format!("uid-of-{pod}"),
            dry_run: false,
            never_asked: true,
            grace: GRACE,
            at: self.began + after,
        };
        more(&mut evict);
        assert!(self.cluster.evict(evict));
    }

    /// How many seconds an ending pod has in all; none if it is not ending.
    fn ending(&self, pod: &str) -> Option<i64> {
        let pod = self.runtime.block_on(self.pods.get(pod)).unwrap();
        pod.metadata.deletion_grace_period_seconds
    }

    /// Waits until this pod ends: requests are carried out in their order.
    fn until_ending(&self, pod: &str) -> i64 {
        found(&format!("ending: {pod}"), || {
            self.ending(pod).ok_or("it stays")
        })
    }
}

#[test]
fn an_evicted_pod_ends_soon_whatever_its_author_wrote() {
    let world = World::new(&[("slow", json!({}))], &[]);

    world.evict("slow", Duration::ZERO, |_| {});

    assert_eq!(world.until_ending("slow"), 30);
}

/// The API server does not tell its policies on which node the pod of an eviction is. So they let an agent make none in
/// earnest.
#[test]
fn an_eviction_is_only_asked_about_and_the_pod_is_deleted() {
    let world = World::new(&[("one", json!({}))], &[]);

    world.evict("one", Duration::ZERO, |evict| evict.dry_run = true);
    world.evict("one", Duration::ZERO, |_| {});

    world.until_ending("one");
    let asks = "POST /api/v1/namespaces/ml/pods/one/eviction?&dryRun=All";
    assert_eq!(
        *world.asked.lock().unwrap(),
        [asks, asks, "DELETE /api/v1/namespaces/ml/pods/one?"]
    );
}

#[test]
fn without_a_grace_no_budget_counts() {
    let world = World::new(&[("one", json!({}))], &[("a", "one")]);

    world.evict("one", Duration::ZERO, |evict| evict.grace = Duration::ZERO);

    assert_eq!(world.until_ending("one"), 30);
}

#[test]
fn a_disruption_budget_puts_the_end_off_for_the_grace_alone() {
    let world = World::new(
        &[
            ("one", json!({})),
            ("two", json!({})),
            ("mark", json!({})),
            ("again", json!({})),
        ],
        // An eviction of a pod with several budgets is an error of the server's.
        &[("a", "one"), ("b", "two"), ("c", "two")],
    );
    for pod in ["one", "two"] {
        world.evict(pod, Duration::ZERO, |_| {});
        world.evict(pod, GRACE - Duration::from_secs(1), |_| {});
    }
    world.evict("mark", Duration::ZERO, |_| {});
    world.until_ending("mark");
    for pod in ["one", "two"] {
        assert_eq!(world.ending(pod), None, "{pod} ends before its grace");
    }

    for pod in ["one", "two"] {
        world.evict(pod, GRACE, |evict| evict.dry_run = true);
    }
    world.evict("again", GRACE, |_| {});
    world.until_ending("again");
    for pod in ["one", "two"] {
        assert_eq!(world.ending(pod), None, "{pod} ends in a dry run");
    }

    for pod in ["one", "two"] {
        world.evict(pod, GRACE, |_| {});
        assert_eq!(world.until_ending(pod), 30, "{pod}");
    }
}

#[test]
fn a_pod_of_another_uid_or_one_that_another_plugin_serves_stays() {
    let given = json!({ "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,0:;" });
    let world = World::new(
        &[("given", given), ("new", json!({})), ("mark", json!({}))],
        &[],
    );

    world.evict("given", Duration::ZERO, |_| {});
    world.evict("new", Duration::ZERO, |evict| {
        evict.uid = "uid-of-before".into()
    });
    world.evict("mark", Duration::ZERO, |_| {});

    world.until_ending("mark");
    assert_eq!(world.ending("given"), None);
    assert_eq!(world.ending("new"), None);
    // One that goes past the limits that it was given here is another matter.
    world.evict("given", Duration::ZERO, |evict| evict.never_asked = false);
    world.until_ending("given");
}
