//! A cluster with the assigner in the scheduler's process, as `--embedded --admit --assigner` has it.

use std::sync::Arc;

use axum::Router;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube_api::vendor::Vendors;
use scheduler::assigner::{Assigner, AssignerSettings};
use scheduler::embedded::Admit;
use scheduler::{ClaimSettings, Scheduler, api};
use serde_json::{Value, json};

use crate::support::{node, until, vendors};

pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/gpu-claims/leases";

/// The value of a node's annotation that gives these devices labels.
pub(crate) fn labels(devices: &Value) -> String {
    STANDARD.encode(devices.to_string())
}

/// A node whose devices, named `NODE-gpu-N`, have labels `fudo.org/gpu.LABEL` besides those that follow from the
/// model.
pub(crate) fn labelled(name: &str, devices: &[&[&str]]) -> Value {
    let mut node = node(name, devices.len(), 10, 40_000);
    let by_uuid: serde_json::Map<String, Value> = devices
        .iter()
        .enumerate()
        .map(|(at, names)| {
            let names: Vec<String> = names
                .iter()
                .map(|one| format!("fudo.org/gpu.{one}"))
                .collect();
            (format!("{name}-gpu-{at}"), json!(names))
        })
        .collect();
    node["metadata"]["annotations"]["fudo.org/gpu.device.labels"] =
        labels(&Value::Object(by_uuid)).into();
    node
}

/// A pod with labels `fudo.org/gpu.LABEL` that asks for `gpus` GPUs.
pub(crate) fn wants(name: &str, names: &[&str], gpus: u32) -> Value {
    let of = |name: &&str| (format!("fudo.org/gpu.{name}"), json!("true"));
    let labels: serde_json::Map<String, Value> = names.iter().map(of).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "labels": labels, "annotations": { "keep": "me" } },
        "spec": { "containers": [{
            "name": "app",
            "image": "x",
            "resources": { "limits": { "nvidia.com/gpu": gpus.to_string() } },
        }] },
    })
}

/// An `AdmissionReview` of a pod that is made.
pub(crate) fn review(uid: &str, pod: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": uid,
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "operation": "CREATE",
            "namespace": "default",
            "object": pod,
        },
    })
}

/// One process with the extender and the assigner.
pub(crate) struct Combined {
    pub(crate) cluster: embedded_cluster::Cluster,
    pub(crate) scheduler: Scheduler,
    pub(crate) assigner: Assigner,
    pub(crate) router: Router,
    pub(crate) api: Router,
    pub(crate) ui: Router,
    following: tokio::task::JoinHandle<()>,
}

impl Combined {
    /// On a cluster of these nodes.
    pub(crate) async fn start(nodes: &[Value]) -> Self {
        Self::pinning(nodes, AssignerSettings::default()).await
    }

    /// With these settings.
    pub(crate) async fn pinning(nodes: &[Value], settings: AssignerSettings) -> Self {
        Self::of(nodes, settings, vendors()).await
    }

    /// With these settings, for pods that ask for devices of these vendors.
    pub(crate) async fn of(
        nodes: &[Value],
        settings: AssignerSettings,
        vendors: Arc<Vendors>,
    ) -> Self {
        let cluster = embedded_cluster::Cluster::default();
        cluster.import(&json!({ "nodes": nodes })).unwrap();
        let scheduler = Scheduler::embedded(
            &cluster,
            Arc::clone(&vendors),
            scheduler::Settings {
                claims: Some(ClaimSettings::default()),
                ..scheduler::Settings::default()
            },
            |_| scheduler::events::Events::silent(),
        );
        let assigner = scheduler.assigner(settings).unwrap();
        let admission = admission::Admission::new(vendors, admission::Settings::default())
            .with_quotas(Arc::new(scheduler.clone()));
        let admit = Admit::new(Arc::new(admission)).after(Some(assigner.clone()));
        cluster.admit_with(Arc::new(admit));
        let router = api::routes(&scheduler, None, false)
            .merge(cluster.api_routes())
            .merge(api::assigner::shared(&assigner));
        let following = {
            let scheduler = scheduler.clone();
            tokio::spawn(async move { scheduler.follow().await })
        };
        let combined = Self {
            cluster,
            router,
            api: api::assigner::api(&assigner),
            ui: api::assigner::ui(&assigner),
            scheduler,
            assigner,
            following,
        };
        until(|| combined.scheduler.is_synced()).await;
        combined
    }

    /// The answer of a router.
    pub(crate) async fn ask(
        router: &Router,
        method: &str,
        path: &str,
        body: impl Into<Vec<u8>>,
    ) -> (u16, Value) {
        use tower::ServiceExt;
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(axum::body::Body::from(body.into()))
            .unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        let body = body.unwrap();
        let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
        (
            status,
            serde_json::from_slice(&body).unwrap_or_else(|_| text()),
        )
    }

    /// Makes a pod over the Kubernetes API.
    pub(crate) async fn make(&self, pod: &Value) -> (u16, Value) {
        let path = "/api/v1/namespaces/default/pods";
        Self::ask(&self.router, "POST", path, pod.to_string()).await
    }

    /// Asks the assigner's webhook about a pod.
    pub(crate) async fn mutate(&self, uid: &str, pod: &Value) -> Value {
        let body = review(uid, pod).to_string();
        let (status, answer) = Self::ask(&self.api, "POST", "/mutate", body).await;
        assert_eq!(status, 200);
        answer["response"].clone()
    }

    pub(crate) async fn finalize(&self, body: &Value) -> (u16, Value) {
        Self::ask(&self.ui, "POST", "/finalize", body.to_string()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        Self::ask(&self.router, "GET", path, "").await.1
    }

    /// Leases as `name state holder`.
    pub(crate) async fn leases(&self) -> Vec<String> {
        let list = self.get(LEASES).await;
        let leases = list["items"].as_array().cloned().unwrap_or_default();
        leases
            .iter()
            .map(|lease| {
                let meta = &lease["metadata"];
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let state = text(&meta["labels"]["fudo.org/gpu.reservation-state"]);
                let holder = text(&lease["spec"]["holderIdentity"]);
                format!("{} {state} {holder}", text(&meta["name"]))
            })
            .collect()
    }

    /// The node that the extender gives the pod, or why none does.
    pub(crate) async fn filter(&self, pod: &Value, names: &[&str]) -> Result<String, Value> {
        let body = json!({ "Pod": pod, "NodeNames": names }).to_string();
        let (_, answer) = Self::ask(&self.router, "POST", "/filter", body).await;
        match answer["NodeNames"][0].as_str() {
            Some(node) => Ok(node.to_owned()),
            None => Err(answer),
        }
    }

    /// Empty, or why it is not bound.
    pub(crate) async fn bind(&self, pod: &Value, node: &str) -> String {
        let meta = &pod["metadata"];
        let body = json!({
            "PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node,
        });
        let (_, answer) = Self::ask(&self.router, "POST", "/bind", body.to_string()).await;
        answer["Error"].as_str().unwrap().to_owned()
    }
}

impl Drop for Combined {
    fn drop(&mut self) {
        self.following.abort();
    }
}

/// The documented body for a pod that was made.
pub(crate) fn finalize_body(pod: &Value) -> Value {
    let meta = &pod["metadata"];
    json!({
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
        "reservation-id": meta["annotations"]["fudo.org/gpu.reservation-id"],
        "gpu-uuid": meta["annotations"]["fudo.org/gpu.uuid"],
    })
}

/// The pod as a review's answer makes it.
pub(crate) fn patched(pod: &Value, answer: &Value) -> Value {
    let patch = STANDARD.decode(answer["patch"].as_str().unwrap()).unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &patch).unwrap();
    patched
}
