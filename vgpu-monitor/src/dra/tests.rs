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
use super::service::{Registered, Service};
use super::*;

mod killed;

use crate::delivery::tests::{GIB, GPUS, NodeDir};
use crate::delivery::{Delivery, Manner};
use crate::exporter;
use crate::node_gpus::{Health, Inventories, Sick};
use crate::plugin::connect;
use crate::proto::dra_health::NodeWatchResourcesRequest;
use crate::proto::dra_health::dra_resource_health_client::DraResourceHealthClient;
use crate::proto::dra_health_v1;
use crate::proto::dra_health_v1::dra_resource_health_client::DraResourceHealthClient as DraResourceHealthClientV1;
use crate::proto::dra_v1::dra_plugin_client::DraPluginClient;
use crate::proto::dra_v1::{
    Claim, Device, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use crate::proto::dra_v1beta1;
use crate::proto::dra_v1beta1::dra_plugin_client::DraPluginClient as DraPluginClientV1beta1;
use crate::proto::plugin_registration::registration_client::RegistrationClient;
use crate::proto::plugin_registration::{InfoRequest, RegistrationStatus};
use crate::regions;

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

#[tokio::test]
async fn kubelet_finds_the_driver_and_takes_it() {
    let world = World::new();
    let driver = world.driver().await;
    let mut registration = driver.sockets.registration();
    let mut kubelet = RegistrationClient::new(connect(&driver.finding).await.unwrap());

    let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();

    assert_eq!(info.r#type, "DRAPlugin");
    assert_eq!(info.name, "gpu.vgpu.io");
    assert_eq!(info.endpoint, driver.calls.display().to_string());
    assert_eq!(
        info.supported_versions,
        [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth"
        ]
    );
    assert_eq!(*registration.borrow_and_update(), Registered::NotYet);
    let status = RegistrationStatus {
        plugin_registered: true,
        error: String::new(),
    };
    kubelet.notify_registration_status(status).await.unwrap();
    assert_eq!(*registration.borrow_and_update(), Registered::Accepted);

    // A kubelet that begins anew may clear its folder.
    std::fs::remove_file(&driver.finding).unwrap();
    eventually(|| driver.finding.exists()).await;
    let (finding, calls) = (driver.finding.clone(), driver.calls.clone());
    driver.end().await;
    assert!(!finding.exists() && !calls.exists());
}

#[tokio::test]
async fn floor_of_a_claim_and_memory_beyond_its_share_reach_the_limits() {
    let world = World::new();
    world.objects.claim("share", &[("gpu", 0, 4096, 30)]);
    world.objects.pod(&[("work", &[("share", None)])]);
    if let Some(all) = world.objects.0.lock().as_mut() {
        let claim = all.get_mut(&claim_path("share")).unwrap();
        let with = |source: &str, field: &str, value: Value| {
            json!({"source": source, "opaque": {"driver": DRIVER, "parameters": {
                "apiVersion": "gpu.vgpu.io/v1", "kind": "ShareParameters", field: value}}})
        };
        claim["status"]["allocation"]["devices"]["config"] = json!([
            with("FromClass", "oversubscribe", json!("2Gi")),
            with("FromClaim", "floor", json!(20)),
        ]);
    }
    let driver = world.driver().await;

    driver.prepare_one("share").await.unwrap();

    let limits = world
        .node
        .path("var/lib/vgpu/containers/claim-u-share/limits");
    let limits = LimitsMap::open(&limits).unwrap().load().unwrap();
    let limits = vgpu_abi::limits::Limits::from(&limits);
    let gpu = limits.devices[0];
    assert_eq!((gpu.memory_bytes, gpu.resident_bytes), (6 * GIB, 4 * GIB));
    assert_eq!((gpu.core_percent, gpu.floor_percent), (30, 20));
    driver.end().await;
}

#[tokio::test]
async fn claim_is_made_ready_again_and_taken_away() {
    let world = World::new();
    world.objects.claim("share", &[("gpu", 0, 4096, 30)]);
    world.objects.pod(&[("work", &[("share", None)])]);
    let driver = world.driver().await;

    let given = driver.prepare_one("share").await.unwrap();

    let device = Device {
        request_names: vec![String::from("gpu")],
        pool_name: String::from("n1"),
        device_name: device_name(GPUS[0]),
        cdi_device_ids: vec![String::from("vgpu.io/container=claim-u-share-0")],
        share_id: Some(String::from("s-gpu")),
    };
    assert_eq!(given, [device]);
    assert_eq!(
        world.limits("claim-u-share"),
        [(GPUS[0].to_owned(), 4 * GIB, 30)]
    );
    let spec = world.description("claim-u-share").unwrap();
    assert_eq!(spec["kind"], "vgpu.io/container");
    assert_eq!(spec["devices"][0]["name"], "claim-u-share-0");
    let nodes = &spec["devices"][0]["containerEdits"]["deviceNodes"];
    assert_eq!(nodes[0]["path"], "/dev/nvidia4");
    // What belongs to every container stands once, however many devices one gets.
    let common = &spec["containerEdits"];
    assert_eq!(common["deviceNodes"][0]["path"], "/dev/nvidiactl");
    assert_eq!(common["hooks"].as_array().unwrap().len(), 1);
    let variables = common["env"].as_array().unwrap();
    assert!(variables.contains(&json!("NVIDIA_VISIBLE_DEVICES=void")));
    let preloads = |mount: &Value| mount["containerPath"] == "/etc/ld.so.preload";
    assert!(common["mounts"].as_array().unwrap().iter().any(preloads));
    let labels = driver.delivery.labels(&part_name("u-share", 0)).unwrap();
    assert_eq!(
        (
            labels.pod.as_str(),
            labels.container.as_str(),
            labels.workload.team.as_str()
        ),
        ("p", "work", "vision")
    );
    // The exporter finds the claim's name where it finds the container.
    let containers = world.node.path("var/lib/vgpu/containers");
    let uid = nix::unistd::getuid().as_raw();
    let census = regions::read(&containers, None, uid, 0, regions::Budget::default()).unwrap();
    let shown: Vec<_> = census
        .found
        .iter()
        .map(|it| it.shown.claim.clone())
        .collect();
    let (name, uid) = (String::from("share"), String::from("u-share"));
    assert_eq!(shown, [Some(exporter::Claim { name, uid })]);

    // Again, as after a restart of the kubelet; and by an agent that has just begun, without an API server.
    assert_eq!(driver.prepare_one("share").await.unwrap(), given);
    driver.end().await;
    *world.objects.0.lock() = None;
    let spec = world.node.path("var/run/cdi/vgpu-claim-u-share.json");
    std::fs::remove_file(&spec).unwrap();
    let driver = world.driver().await;
    assert_eq!(driver.prepare_one("share").await.unwrap(), given);
    assert!(spec.exists(), "the reboot emptied /var/run");

    assert_eq!(driver.unprepare("share").await, "");
    assert!(!spec.exists());
    assert!(driver.delivery.known().unwrap().is_empty());
    // It may come again, and for a claim that was never known.
    assert_eq!(driver.unprepare("share").await, "");
    assert_eq!(driver.unprepare("unknown").await, "");
    let why = driver.prepare_one("share").await.unwrap_err();
    assert!(why.contains("was not ready before"), "{why}");
    driver.end().await;
}

#[tokio::test]
async fn older_kubelets_are_served_too() {
    let world = World::new();
    world.objects.claim("share", &[("gpu", 1, 1024, 0)]);
    world.objects.pod(&[("work", &[("share", None)])]);
    let driver = world.driver().await;
    let mut kubelet = DraPluginClientV1beta1::new(connect(&driver.calls).await.unwrap());
    let claim = || dra_v1beta1::Claim {
        namespace: String::from("default"),
        uid: String::from("u-share"),
        name: String::from("share"),
    };

    let request = dra_v1beta1::NodePrepareResourcesRequest {
        claims: vec![claim()],
    };
    let answer = kubelet.node_prepare_resources(request).await.unwrap();

    let answer = answer.into_inner().claims.remove("u-share").unwrap();
    assert_eq!(answer.error, "");
    assert_eq!(answer.devices[0].device_name, device_name(GPUS[1]));
    let request = dra_v1beta1::NodeUnprepareResourcesRequest {
        claims: vec![claim()],
    };
    let answer = kubelet.node_unprepare_resources(request).await.unwrap();
    assert_eq!(answer.into_inner().claims["u-share"].error, "");
    driver.end().await;
}

#[tokio::test]
async fn containers_with_requests_of_their_own_have_limits_of_their_own() {
    let world = World::new();
    world
        .objects
        .claim("share", &[("a", 0, 4096, 0), ("b", 0, 2048, 10)]);
    world.objects.pod(&[
        ("x", &[("share", Some("a"))]),
        ("y", &[("share", Some("b"))]),
    ]);
    let driver = world.driver().await;

    let given = driver.prepare_one("share").await.unwrap();

    let cdi = |at: usize| given[at].cdi_device_ids.clone();
    assert_eq!(cdi(0), ["vgpu.io/container=claim-u-share-0"]);
    assert_eq!(cdi(1), ["vgpu.io/container=claim-u-share-1-0"]);
    assert_eq!(world.limits("claim-u-share")[0].1, 4 * GIB);
    assert_eq!(world.limits("claim-u-share-1")[0].1, 2 * GIB);
    assert_eq!(driver.unprepare("share").await, "");
    assert!(driver.delivery.known().unwrap().is_empty());
    driver.end().await;
}

#[tokio::test]
async fn refused_claims_leave_nothing_and_say_why() {
    let world = World::new();
    world
        .objects
        .pod(&[("work", &[("one", None), ("two", None)])]);
    world.objects.claim("one", &[("gpu", 0, 1024, 0)]);
    world.objects.claim("two", &[("gpu", 1, 1024, 0)]);
    let driver = world.driver().await;

    // A container with two claims, both in one call.
    for (_, answer) in driver.prepare(&["one", "two"]).await {
        let why = answer.unwrap_err();
        assert!(
            why.contains("container work uses 2 claims of GPUs (one, two)"),
            "{why}"
        );
    }
    // A deleted claim, and another one of its name.
    let why = driver.prepare_one("gone").await.unwrap_err();
    assert!(why.contains("default/gone is gone"), "{why}");
    world.objects.pod(&[("work", &[("one", None)])]);
    let path = claim_path("one");
    let mut other = world.objects.0.lock().clone().unwrap()[&path].clone();
    other["metadata"]["uid"] = json!("u-later");
    let first = other.clone();
    world.objects.put(&path, first);
    let why = driver.prepare_one("one").await.unwrap_err();
    assert!(why.contains("u-later"), "{why}");
    // More than the GPU has.
    world.objects.claim("one", &[("gpu", 0, 17 << 10, 0)]);
    let why = driver.prepare_one("one").await.unwrap_err();
    assert!(why.contains("is more than is left of its 16Gi"), "{why}");
    // A sick GPU.
    world.objects.claim("one", &[("gpu", 0, 1024, 0)]);
    let sick = Sick {
        reason: String::from("XID 79"),
        since: std::time::UNIX_EPOCH,
        recovers: false,
    };
    world
        .health
        .send_replace(Arc::new(Health::from([(GPUS[0].to_owned(), sick)])));
    let why = driver.prepare_one("one").await.unwrap_err();
    assert!(why.contains("cannot be used now: XID 79"), "{why}");
    world.health.send_replace(Arc::default());
    // A pod that was deleted.
    world.objects.remove("api/v1/namespaces/default/pods/p");
    let why = driver.prepare_one("one").await.unwrap_err();
    assert!(why.contains("reserved for no pod"), "{why}");

    assert!(driver.delivery.known().unwrap().is_empty());
    assert_eq!(world.description("claim-u-one"), None);
    // The kubelet tries again, and by then it can be.
    world.objects.pod(&[("work", &[("one", None)])]);
    driver.prepare_one("one").await.unwrap();
    driver.end().await;
}

#[tokio::test]
async fn claim_that_cannot_be_written_is_refused_and_leaves_other_claims_alone() {
    let world = World::new();
    world
        .objects
        .pod(&[("x", &[("one", None)]), ("y", &[("two", None)])]);
    world.objects.claim("one", &[("gpu", 0, 1024, 0)]);
    world.objects.claim("two", &[("gpu", 1, 2048, 0)]);
    let driver = world.driver().await;
    driver.prepare_one("one").await.unwrap();
    let files = |name: &str| {
        let path = world.node.path("var/lib/vgpu/containers").join(name);
        let read = |file: &str| std::fs::read(path.join(file)).unwrap();
        (read("limits"), read("container.json"))
    };
    let before = files("claim-u-one");

    // A folder in the place of the record's new version: it cannot be written, by root either.
    let new = world.node.path("var/lib/vgpu/claims/.u-two.json.new");
    std::fs::create_dir(&new).unwrap();
    let why = driver.prepare_one("two").await.unwrap_err();
    assert!(why.contains("cannot write the claim's record"), "{why}");
    assert_eq!(world.description("claim-u-two"), None);
    assert_eq!(driver.delivery.known().unwrap(), [part_name("u-one", 0)]);
    std::fs::remove_dir(&new).unwrap();

    // The same in the place of the description.
    let cdi = world.node.path("var/run/cdi/.vgpu-claim-u-two.json.new");
    std::fs::create_dir(&cdi).unwrap();
    let why = driver.prepare_one("two").await.unwrap_err();
    assert!(why.contains(".vgpu-claim-u-two.json.new"), "{why}");
    assert_eq!(driver.delivery.known().unwrap(), [part_name("u-one", 0)]);
    std::fs::remove_dir(&cdi).unwrap();

    assert!(files("claim-u-one") == before, "the first claim's files");
    driver.prepare_one("two").await.unwrap();
    driver.end().await;
}

#[tokio::test]
async fn claim_in_use_is_neither_taken_away_nor_changed() {
    let world = World::new();
    world.objects.pod(&[("work", &[("share", None)])]);
    world.objects.claim("share", &[("gpu", 0, 1024, 0)]);
    let driver = world.driver().await;
    driver.prepare_one("share").await.unwrap();
    let limits = world.limits("claim-u-share");
    // A process holds a slot.
    let region = world
        .node
        .path("var/lib/vgpu/containers/claim-u-share/region");
    let slot = crate::delivery::tests::repair::lock(&region);

    let why = driver.unprepare("share").await;
    assert!(why.contains("a process still uses"), "{why}");
    // The scheduler has given the claim another GPU meanwhile.
    world.objects.claim("share", &[("gpu", 1, 2048, 0)]);
    let why = driver.prepare_one("share").await.unwrap_err();
    assert!(why.contains("was given other devices"), "{why}");
    assert_eq!(world.limits("claim-u-share"), limits);

    drop(slot);
    driver.prepare_one("share").await.unwrap();
    assert_eq!(
        world.limits("claim-u-share"),
        [(GPUS[1].to_owned(), 2 * GIB, 0)]
    );
    assert_eq!(driver.unprepare("share").await, "");
    driver.end().await;
}

#[tokio::test]
async fn lost_record_costs_no_running_container_its_files() {
    let world = World::new();
    world.objects.pod(&[("work", &[("share", None)])]);
    world.objects.claim("share", &[("gpu", 0, 1024, 0)]);
    let driver = world.driver().await;
    let given = driver.prepare_one("share").await.unwrap();
    driver.end().await;
    let record = world.node.path("var/lib/vgpu/claims/u-share.json");
    std::fs::remove_file(&record).unwrap();
    let folder = world.node.path("var/lib/vgpu/containers/claim-u-share");
    let slot = crate::delivery::tests::repair::lock(&folder.join("region"));
    let limits = std::fs::read(folder.join("limits")).unwrap();
    let driver = world.driver().await;

    // The record cannot be written, and the claim was given something else meanwhile.
    let new = world.node.path("var/lib/vgpu/claims/.u-share.json.new");
    std::fs::create_dir(&new).unwrap();
    let why = driver.prepare_one("share").await.unwrap_err();
    assert!(why.contains("cannot write the claim's record"), "{why}");
    std::fs::remove_dir(&new).unwrap();
    world.objects.claim("share", &[("gpu", 0, 2048, 0)]);
    let why = driver.prepare_one("share").await.unwrap_err();
    assert!(why.contains("which was given other devices"), "{why}");
    assert!(std::fs::read(folder.join("limits")).unwrap() == limits);
    assert!(world.description("claim-u-share").is_some());

    world.objects.claim("share", &[("gpu", 0, 1024, 0)]);
    assert_eq!(driver.prepare_one("share").await.unwrap(), given);
    assert!(record.exists());
    drop(slot);
    assert_eq!(driver.unprepare("share").await, "");
    driver.end().await;
}

#[tokio::test]
async fn claims_of_one_call_are_made_ready_at_the_same_time() {
    let mut world = World::new();
    world
        .objects
        .pod(&[("x", &[("one", None)]), ("y", &[("two", None)])]);
    world.objects.claim("one", &[("gpu", 0, 1024, 0)]);
    world.objects.claim("two", &[("gpu", 1, 2048, 0)]);
    // The API server shows the first claim when it is asked for the second.
    world.objects.1 = Some(Arc::new(tokio::sync::Barrier::new(2)));
    let driver = world.driver().await;

    let answers = driver.prepare(&["one", "two"]).await;

    assert_eq!(answers.len(), 2);
    for (uid, answer) in answers {
        assert!(answer.is_ok(), "{uid}: {answer:?}");
    }
    driver.end().await;
}

#[tokio::test]
async fn record_that_could_not_be_removed_is_removed_later() {
    let world = World::new();
    world
        .objects
        .pod(&[("x", &[("one", None)]), ("y", &[("two", None)])]);
    world.objects.claim("one", &[("gpu", 0, 1024, 0)]);
    world.objects.claim("two", &[("gpu", 1, 2048, 0)]);
    let driver = world.driver().await;
    driver.prepare_one("one").await.unwrap();
    driver.prepare_one("two").await.unwrap();
    // The garbage collection has cleared one claim, and the disk keeps its record.
    driver.delivery.remove(&part_name("u-one", 0)).unwrap();
    let record = world.node.path("var/lib/vgpu/claims/u-one.json");
    let text = std::fs::read(&record).unwrap();
    std::fs::remove_file(&record).unwrap();
    std::fs::create_dir(&record).unwrap();
    let known = || driver.checkpoint.all().into_keys().collect::<Vec<_>>();

    // Neither as long as the API server has it allocated, nor while that cannot be known.
    driver.preparer.forget_gone().await;
    let objects = world.objects.0.lock().take();
    driver.preparer.forget_gone().await;
    *world.objects.0.lock() = objects;
    assert_eq!(known(), ["u-one", "u-two"]);
    world.objects.remove(&claim_path("one"));
    world.objects.remove(&claim_path("two"));
    driver.preparer.forget_gone().await;
    assert_eq!(known(), ["u-one", "u-two"], "the disk keeps the record");

    std::fs::remove_dir(&record).unwrap();
    std::fs::write(&record, text).unwrap();
    driver.preparer.forget_gone().await;

    // The other claim has its directory, so the garbage collection decides about it.
    assert_eq!(known(), ["u-two"]);
    assert!(!record.exists());
    driver.end().await;
}

#[tokio::test]
async fn kubelet_hears_of_every_change_of_health() {
    let world = World::new();
    let driver = world.driver().await;
    let mut kubelet = DraResourceHealthClient::new(connect(&driver.calls).await.unwrap());
    let request = NodeWatchResourcesRequest {};
    let mut stream = kubelet
        .node_watch_resources(request)
        .await
        .unwrap()
        .into_inner();
    // The GPUs and their health are told as soon as there is a listener, perhaps twice.
    let first = stream.message().await.unwrap().unwrap();
    assert!(first.devices.iter().all(|it| it.health == 1));

    let sick = Sick {
        reason: String::from("XID 79"),
        since: std::time::UNIX_EPOCH,
        recovers: false,
    };
    world
        .health
        .send_replace(Arc::new(Health::from([(GPUS[1].to_owned(), sick)])));

    let told = async {
        loop {
            let next = stream.message().await.unwrap().unwrap();
            let health: Vec<i32> = next.devices.iter().map(|it| it.health).collect();
            if health == [1, 2] {
                return next.devices[1].message.clone();
            }
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(30), told).await;
    assert_eq!(told.unwrap(), "XID 79");
    // Newer kubelets ask for the same by another name.
    let mut newer = DraResourceHealthClientV1::new(connect(&driver.calls).await.unwrap());
    let request = dra_health_v1::NodeWatchResourcesRequest {};
    let stream = newer.node_watch_resources(request).await.unwrap();
    let first = stream.into_inner().message().await.unwrap().unwrap();
    let said = first.devices.iter();
    let said: Vec<(i32, &str)> = said.map(|it| (it.health, it.message.as_str())).collect();
    assert_eq!(said, [(1, ""), (2, "XID 79")]);
    driver.end().await;
}
