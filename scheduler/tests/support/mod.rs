//! Clusters, pods and a scheduler to ask.
#![allow(dead_code, reason = "each test program uses what it needs")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, too"
)]

use std::sync::Arc;

use kube_api::config::DeviceConfig;
use kube_api::object::{Node, Pod};
use kube_api::vendor::{Switches, Vendors};
use serde_json::{Value, json};

pub(crate) fn vendors() -> Arc<Vendors> {
    let switches = Switches {
        ascend: true,
        iluvatar: true,
    };
    Arc::new(Vendors::new(DeviceConfig::standard(), switches).unwrap())
}

/// A node with `gpus` GPUs, each with this number of slots and this much memory.
pub(crate) fn node(name: &str, gpus: usize, slots: u32, mib: u32) -> Value {
    let register: Vec<Value> = (0..gpus)
        .map(|at| {
            json!({
                "id": format!("{name}-gpu-{at}"), "index": at, "count": slots, "devmem": mib, "devcore": 100,
                "type": "NVIDIA A100", "mode": "hami-core", "health": true,
            })
        })
        .collect();
    json!({
        "metadata": {
            "name": name,
            "annotations": { "hami.io/node-nvidia-register": Value::from(register).to_string() },
        },
        "status": { "allocatable": { "nvidia.com/gpu": gpus.to_string() } },
    })
}

/// A pod that asks for one share with this much memory.
pub(crate) fn pod(name: &str, mib: u32) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
        "spec": {
            "schedulerName": "hami-scheduler",
            "containers": [{
                "name": "c",
                "image": "i",
                "resources": { "limits": { "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib.to_string() } },
            }],
        },
    })
}

pub(crate) fn as_node(node: Value) -> Node {
    serde_json::from_value(node).unwrap()
}

pub(crate) fn as_pod(pod: Value) -> Pod {
    serde_json::from_value(pod).unwrap()
}

/// The same pod with these annotations, on this node (none for `""`).
pub(crate) fn placed(mut pod: Value, node: &str, annotations: &Value) -> Value {
    pod["spec"]["nodeName"] = node.into();
    pod["metadata"]["annotations"] = annotations.clone();
    pod
}

/// A scheduler on an embedded cluster, in this process.
pub(crate) struct Served {
    pub(crate) cluster: embedded_cluster::Cluster,
    pub(crate) scheduler: scheduler::Scheduler,
    pub(crate) router: axum::Router,
    following: tokio::task::JoinHandle<()>,
}

impl Served {
    /// On a cluster of this state.
    pub(crate) async fn start(state: Value) -> Self {
        let cluster = embedded_cluster::Cluster::new(embedded_cluster::Options {
            any_amount: true,
            ..embedded_cluster::Options::default()
        });
        cluster.import(&state).unwrap();
        let scheduler = scheduler::Scheduler::embedded(
            &cluster,
            vendors(),
            scheduler::Settings::default(),
            |_| scheduler::events::Events::silent(),
        );
        Self::with(cluster, scheduler).await
    }

    /// A replica that knows the cluster by this client, as a real one does.
    pub(crate) async fn replica(
        cluster: &embedded_cluster::Cluster,
        client: kube::Client,
        company: scheduler::Company,
    ) -> Self {
        let settings = scheduler::Settings {
            patience: std::time::Duration::from_secs(2),
            kube_timeout: std::time::Duration::from_millis(500),
            ..scheduler::Settings::default()
        };
        let scheduler = scheduler::Scheduler::new(client, vendors(), settings, company);
        Self::with(cluster.clone(), scheduler).await
    }

    /// With these settings, and admission on the same listener.
    pub(crate) async fn admitting(state: Value, settings: scheduler::Settings) -> Self {
        let cluster = embedded_cluster::Cluster::new(embedded_cluster::Options {
            any_amount: true,
            ..embedded_cluster::Options::default()
        });
        cluster.import(&state).unwrap();
        let traces = settings.traces.clone();
        let scheduler = scheduler::Scheduler::embedded(&cluster, vendors(), settings, |_| {
            scheduler::events::Events::silent()
        });
        let admission = admission::Admission::new(vendors(), admission::Settings::default());
        let admission = admission::routes(Arc::new(admission.with_traces(traces)));
        let mut served = Self::with(cluster, scheduler).await;
        served.router = served.router.clone().merge(admission);
        served
    }

    /// On a cluster of this state, with these vendors. Pods made over the API go through admission.
    pub(crate) async fn of(state: Value, vendors: Arc<Vendors>) -> Self {
        let cluster = embedded_cluster::Cluster::default();
        cluster.import(&state).unwrap();
        let settings = scheduler::Settings::default();
        let scheduler =
            scheduler::Scheduler::embedded(&cluster, Arc::clone(&vendors), settings, |_| {
                scheduler::events::Events::silent()
            });
        let admission = admission::Admission::new(vendors, admission::Settings::default())
            .with_quotas(Arc::new(scheduler.clone()));
        cluster.admit_with(Arc::new(scheduler::embedded::Admit::new(Arc::new(
            admission,
        ))));
        Self::with(cluster, scheduler).await
    }

    async fn with(cluster: embedded_cluster::Cluster, scheduler: scheduler::Scheduler) -> Self {
        let router = scheduler::api::routes(&scheduler, None, false).merge(cluster.api_routes());
        let following = {
            let scheduler = scheduler.clone();
            tokio::spawn(async move { scheduler.follow().await })
        };
        let served = Self {
            cluster,
            scheduler,
            router: server::Bodies::default().limit(router),
            following,
        };
        until(|| served.scheduler.is_synced()).await;
        served
    }

    /// Sends a body as it is.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Vec<u8>>,
    ) -> (u16, Value) {
        self.call(method, path, "application/json", body.into())
            .await
    }

    /// Patches an object by a merge.
    pub(crate) async fn patch(&self, path: &str, patch: &Value) -> (u16, Value) {
        let kind = "application/merge-patch+json";
        self.call("PATCH", path, kind, patch.to_string().into())
            .await
    }

    /// The answer as it is written.
    pub(crate) async fn text(&self, method: &str, path: &str, body: String) -> String {
        let kind = "application/json";
        let (_, body) = self.raw(method, path, kind, body.into()).await;
        String::from_utf8(body).unwrap()
    }

    async fn call(&self, method: &str, path: &str, kind: &str, body: Vec<u8>) -> (u16, Value) {
        let (status, body) = self.raw(method, path, kind, body).await;
        let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
        (
            status,
            serde_json::from_slice(&body).unwrap_or_else(|_| text()),
        )
    }

    async fn raw(&self, method: &str, path: &str, kind: &str, body: Vec<u8>) -> (u16, Vec<u8>) {
        use tower::ServiceExt;
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(axum::body::Body::from(body))
            .unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
        (status, body.to_vec())
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.send("POST", path, body.to_string()).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.send("GET", path, "").await.1
    }

    /// The node that the pod gets, or the answer.
    pub(crate) async fn filter(&self, pod: &Value, names: &[&str]) -> Result<String, Value> {
        let answer = self
            .post("/filter", &json!({ "Pod": pod, "NodeNames": names }))
            .await;
        match answer["NodeNames"][0].as_str() {
            Some(node) => Ok(node.to_owned()),
            None => Err(answer),
        }
    }

    /// Empty, or why it is not bound.
    pub(crate) async fn bind(&self, pod: &Value, node: &str) -> String {
        let meta = &pod["metadata"];
        let args = json!({
            "PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node,
        });
        let answer = self.post("/bind", &args).await;
        answer["Error"].as_str().unwrap().to_owned()
    }

    /// The pod as the API has it.
    pub(crate) async fn pod(&self, name: &str) -> Value {
        self.get(&format!("/api/v1/namespaces/default/pods/{name}"))
            .await
    }

    /// Makes the pod in the API.
    pub(crate) fn make(&self, pod: &Value) {
        self.cluster.import(&json!({ "pods": [pod] })).unwrap();
    }

    /// The reservations, as `name@node`.
    pub(crate) fn held(&self) -> Vec<String> {
        let mut held: Vec<String> = self.scheduler.with_ledger(|ledger| {
            ledger
                .cluster()
                .reservations()
                .map(|held| format!("{}@{}", held.pod.name, held.placement.node))
                .collect()
        });
        held.sort();
        held
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.following.abort();
    }
}

/// Waits for something that happens soon.
pub(crate) async fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("it does not happen");
}
