//! The driver as the kubelet meets it: over its two sockets, with an API server of a few objects and a node in a
//! directory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use vgpu_abi::limits::LimitsMap;

use super::checkpoint::Checkpoint;
use super::prepare::{Parts, Preparer};
use super::service::Service;
use super::*;

mod claims;
mod killed;
mod protocol;
mod records;
mod refused;

use crate::delivery::tests::{GPUS, NodeDir};
use crate::delivery::{Delivery, Manner};
use crate::inventory::mig::Mig;
use crate::node_gpus::{Health, Inventories, Sick};
use crate::plugin::connect;
use crate::proto::dra_v1::dra_plugin_client::DraPluginClient;
use crate::proto::dra_v1::{
    Claim, Device, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};

#[test]
fn device_names_are_dns_labels() {
    let uuid = "GPU-3F0e7b5c-0000-4000-8000-00000000000A";
    assert_eq!(
        device_name(uuid),
        "gpu-3f0e7b5c-0000-4000-8000-00000000000a"
    );
    assert_eq!(device_name("_a.b_"), "a-b");
    assert!(device_name(&"x".repeat(80)).len() <= 63);
}

#[test]
fn parts_are_found_by_the_whole_uid() {
    let names = ["claim-u1", "claim-u1-1", "claim-u12", "claim-u1-x", "v01"];
    let names = names.map(|name| Name(name.to_owned())).to_vec();

    let parts = parts_of("u1", names);

    assert_eq!(parts, [part_name("u1", 0), part_name("u1", 1)]);
}

/// A container's claims, each with the request that it names.
type Claims<'a> = &'a [(&'a str, Option<&'a str>)];

/// The objects of an API server by their path, or its absence.
#[derive(Clone, Default)]
struct Objects(
    Arc<Mutex<Option<BTreeMap<String, Value>>>>,
    /// Questions about claims are answered when as many of them have come.
    Option<Arc<tokio::sync::Barrier>>,
);

impl Objects {
    fn router(&self) -> Router {
        async fn find(State(objects): State<Objects>, Path(path): Path<String>) -> Response {
            if let Some(barrier) = objects.1.filter(|_| path.contains("/resourceclaims/")) {
                barrier.wait().await;
            }
            let all = objects.0.lock();
            let Some(all) = all.as_ref() else {
                return StatusCode::SERVICE_UNAVAILABLE.into_response();
            };
            match all.get(&path) {
                Some(object) => axum::Json(object.clone()).into_response(),
                None => {
                    let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                        "reason": "NotFound", "message": format!("{path} is not there")});
                    (StatusCode::NOT_FOUND, axum::Json(gone)).into_response()
                }
            }
        }
        Router::new()
            .route("/{*path}", get(find))
            .with_state(self.clone())
    }

    fn put(&self, path: &str, object: Value) {
        let mut all = self.0.lock();
        all.get_or_insert_default().insert(path.to_owned(), object);
    }

    fn remove(&self, path: &str) {
        self.0.lock().get_or_insert_default().remove(path);
    }

    /// Claim, with results: request, GPU, MiB, cores.
    fn claim(&self, name: &str, results: &[(&str, usize, u64, u32)]) {
        let results = results.iter().map(|(request, gpu, mib, cores)| {
            json!({
                "request": request, "driver": DRIVER, "pool": "n1", "device": device_name(GPUS[*gpu]),
                "shareID": format!("s-{request}"),
                "consumedCapacity": {"memory": format!("{mib}Mi"), "cores": cores.to_string(), "shares": "1"},
            })
        });
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": format!("u-{name}")},
            "spec": {"devices": {"requests": []}},
            "status": {
                "allocation": {"devices": {"results": results.collect::<Vec<_>>()}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-uid"}],
            },
        });
        self.put(&claim_path(name), claim);
    }

    /// The pod of the claims: its containers, with claim and request of each.
    fn pod(&self, containers: &[(&str, Claims)]) {
        let container = |(name, claims): &(&str, Claims)| {
            let claims = claims
                .iter()
                .map(|(claim, request)| json!({"name": claim, "request": request}));
            json!({"name": name, "resources": {"claims": claims.collect::<Vec<_>>()}})
        };
        let mut names: Vec<&str> = containers
            .iter()
            .flat_map(|(_, claims)| claims.iter().map(|(claim, _)| *claim))
            .collect();
        names.sort_unstable();
        names.dedup();
        let claims = names
            .iter()
            .map(|name| json!({"name": name, "resourceClaimName": name}));
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "uid": "pod-uid", "labels": {"team": "vision"}},
            "spec": {
                "containers": containers.iter().map(container).collect::<Vec<_>>(),
                "resourceClaims": claims.collect::<Vec<_>>(),
            },
        });
        self.put("api/v1/namespaces/default/pods/p", pod);
    }
}

fn claim_path(name: &str) -> String {
    format!("apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}")
}

fn asked(name: &str) -> Claim {
    Claim {
        namespace: String::from("default"),
        uid: format!("u-{name}"),
        name: name.to_owned(),
    }
}

struct World {
    node: NodeDir,
    objects: Objects,
    health: watch::Sender<Arc<Health>>,
    inventories: Inventories,
}

/// One process of the driver.
struct Running {
    delivery: Arc<Delivery>,
    preparer: Preparer,
    checkpoint: Arc<Checkpoint>,
    sockets: Sockets,
    calls: PathBuf,
    finding: PathBuf,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl World {
    fn new() -> Self {
        let node = NodeDir::new();
        let inventories = node.settings(Manner::Claim).gpus;
        Self {
            node,
            objects: Objects::default(),
            health: watch::Sender::default(),
            inventories,
        }
    }

    /// The claims `one` and `two`, each of a pod of its own and on a GPU of its own.
    fn has_two_claims(&self) {
        self.objects
            .pod(&[("x", &[("one", None)]), ("y", &[("two", None)])]);
        self.objects.claim("one", &[("gpu", 0, 1024, 0)]);
        self.objects.claim("two", &[("gpu", 1, 2048, 0)]);
    }

    fn makes_sick(&self, gpu: usize) {
        let sick = Sick {
            reason: String::from("XID 79"),
            since: std::time::UNIX_EPOCH,
            recovers: false,
        };
        self.health
            .send_replace(Arc::new(Health::from([(GPUS[gpu].to_owned(), sick)])));
    }

    async fn driver(&self) -> Running {
        let delivery = Arc::new(self.node.delivery(Manner::Claim));
        let state = self.node.path("var/lib/vgpu");
        let checkpoint = Arc::new(Checkpoint::open(&state).unwrap());
        let preparer = Preparer::new(Parts {
            node: String::from("n1"),
            client: kube::Client::new(self.objects.router(), "default"),
            delivery: Arc::clone(&delivery),
            checkpoint: Arc::clone(&checkpoint),
            inventories: self.inventories.clone(),
            healths: self.health.subscribe(),
            team_label: String::from("team"),
            mig: Mig::start(&state, None).unwrap(),
        });
        let service = Service {
            preparer: preparer.clone(),
            checkpoint: Arc::clone(&checkpoint),
            node: String::from("n1"),
            inventories: self.inventories.clone(),
            healths: self.health.subscribe(),
            metrics: Metrics::new("n1"),
        };
        let kubelet = self.node.path("kubelet");
        let sockets = Sockets::new(&kubelet).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = sockets.clone();
        let task = tokio::spawn(async move {
            serving.serve(service, async { drop(stopped.await) }).await;
        });
        let running = Running {
            delivery,
            preparer,
            checkpoint,
            sockets,
            calls: kubelet.join("plugins/gpu.vgpu.io/dra@vgpu.sock"),
            finding: kubelet.join("plugins_registry/gpu.vgpu.io@reg.sock"),
            stop,
            task,
        };
        eventually(|| running.finding.exists() && running.calls.exists()).await;
        running
    }

    fn description(&self, name: &str) -> Option<Value> {
        let path = self.node.path(&format!("var/run/cdi/vgpu-{name}.json"));
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    /// Memory and cores of each device in a directory's limits.
    fn limits(&self, name: &str) -> Vec<(String, u64, u32)> {
        let path = self
            .node
            .path(&format!("var/lib/vgpu/containers/{name}/limits"));
        let map = LimitsMap::open(&path).unwrap();
        let limits = vgpu_abi::limits::Limits::from(&map.load().unwrap());
        let device = |it: &vgpu_abi::limits::DeviceLimit| {
            (
                it.uuid.as_str().to_owned(),
                it.memory_bytes,
                it.core_percent,
            )
        };
        limits.devices.iter().map(device).collect()
    }
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("in vain");
}

impl Running {
    async fn prepare(&self, names: &[&str]) -> BTreeMap<String, Result<Vec<Device>, String>> {
        let mut client = DraPluginClient::new(connect(&self.calls).await.unwrap());
        let claims = names.iter().map(|name| asked(name)).collect();
        let request = NodePrepareResourcesRequest { claims };
        let answers = client.node_prepare_resources(request).await.unwrap();
        let answers = answers.into_inner().claims.into_iter();
        let answers = answers.map(|(uid, answer)| {
            let given = match answer.error.as_str() {
                "" => Ok(answer.devices),
                error => Err(error.to_owned()),
            };
            (uid, given)
        });
        answers.collect()
    }

    async fn prepare_one(&self, name: &str) -> Result<Vec<Device>, String> {
        let mut all = self.prepare(&[name]).await;
        all.remove(&format!("u-{name}")).unwrap()
    }

    async fn unprepare(&self, name: &str) -> String {
        let mut client = DraPluginClient::new(connect(&self.calls).await.unwrap());
        let claims = vec![asked(name)];
        let request = NodeUnprepareResourcesRequest { claims };
        let answers = client.node_unprepare_resources(request).await.unwrap();
        let mut answers = answers.into_inner().claims;
        answers.remove(&format!("u-{name}")).unwrap().error
    }

    async fn end(self) {
        drop(self.stop);
        self.task.await.unwrap();
    }
}
