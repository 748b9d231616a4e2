//! Claims of MIG instances on the simulated board: what is published of a GPU in MIG mode, and an instance from the
//! kubelet's first call to its last, over a restart of the driver and of the node.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, too"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use cuda_sim::board::Kind;
use cuda_sim::{Board, Config};
use k8s_openapi::api::resource::v1::ResourceSliceSpec;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use vgpu_abi::limits::{Limits, LimitsMap};
use vgpu_monitor::delivery::{self, Delivery, Manner};
use vgpu_monitor::dra::checkpoint::Checkpoint;
use vgpu_monitor::dra::claim::Asked;
use vgpu_monitor::dra::device_name;
use vgpu_monitor::dra::prepare::{Parts, Preparer, ReadyDevice};
use vgpu_monitor::dra::slices::{self, NodeFacts, Offer, Others};
use vgpu_monitor::inventory::mig::{Mig, OtherInstance};
use vgpu_monitor::inventory::{self, MigStrategy, Watcher};
use vgpu_monitor::node_gpus::Health;

use crate::harness::{alone, built};
use crate::waiting::until;

const GIB: u64 = 1 << 30;

/// The claims and the pod that the API server has, by path.
type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

async fn find(State(objects): State<Objects>, uri: Uri) -> Response {
    match objects.lock().get(uri.path()) {
        Some(object) => axum::Json(object.clone()).into_response(),
        None => {
            let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                "reason": "NotFound", "message": "it is not there"});
            (StatusCode::NOT_FOUND, axum::Json(gone)).into_response()
        }
    }
}

/// A node with one GPU in MIG mode, and the pod of its claims.
struct Node {
    home: PathBuf,
    board: Board,
    objects: Objects,
    gpus: Watcher,
}

/// One process of the driver.
struct Driver {
    preparer: Preparer,
    checkpoint: Arc<Checkpoint>,
    delivery: Arc<Delivery>,
}

impl Node {
    fn new(home: &Path) -> Self {
        let config = Config {
            memory_bytes: vec![40 * GIB],
            mig: String::from("0=on"),
            ..Config::default()
        };
        let board = Board::create(&home.join("board"), &config).unwrap();
        let gpus = inventory::start(inventory::InventorySettings {
            library: Some(built("libnvidia_ml.so")),
            mig_strategy: MigStrategy::Mixed,
            sysfs: home.join("sys"),
            ..inventory::InventorySettings::new("n1", home.join("var/lib/vgpu"))
        })
        .unwrap();
        until("an inventory", || gpus.inventories.borrow().is_some());
        std::fs::create_dir_all(home.join("etc/cdi")).unwrap();
        let vendor = json!({
            "cdiVersion": "0.6.0", "kind": "nvidia.com/gpu",
            "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
            "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}]},
        });
        std::fs::write(home.join("etc/cdi/nvidia.json"), vendor.to_string()).unwrap();
        // The kernel's description of every instance that there may be.
        for number in 1..8 {
            let gpu = home.join(format!(
                "proc/driver/nvidia/capabilities/gpu0/mig/gi{number}"
            ));
            std::fs::create_dir_all(gpu.join("ci0")).unwrap();
            let access = |minor: u32| format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\n");
            std::fs::write(gpu.join("access"), access(20 + number)).unwrap();
            std::fs::write(gpu.join("ci0/access"), access(40 + number)).unwrap();
        }
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "uid": "pod-uid"},
            "spec": {"containers": [{"name": "work", "resources": {"claims": [{"name": "part"}]}}],
                "resourceClaims": [{"name": "part", "resourceClaimName": "part"}]},
        });
        let objects = Objects::default();
        let path = String::from("/api/v1/namespaces/default/pods/p");
        objects.lock().insert(path, pod);
        Self {
            home: home.to_owned(),
            board,
            objects,
            gpus,
        }
    }

    /// The claim was given these devices: request, and the end of the device's name.
    fn claim(&self, name: &str, given: &[(&str, &str)]) {
        let gpu = device_name(&self.board.uuid(0));
        let results = given.iter().map(|(request, end)| {
            json!({"request": request, "driver": "gpu.vgpu.io", "pool": "n1", "device": format!("{gpu}-{end}")})
        });
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": format!("u-{name}")},
            "spec": {"devices": {"requests": []}},
            "status": {"allocation": {"devices": {"results": results.collect::<Vec<_>>()}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-uid"}]},
        });
        let path = format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}");
        self.objects.lock().insert(path, claim);
    }

    fn driver(&self) -> Driver {
        let state = self.home.join("var/lib/vgpu");
        let delivery = Delivery::new(delivery::DeliverySettings {
            host_prefix: self.home.clone(),
            library: built("libnvidia_ml.so"),
            ..delivery::DeliverySettings::new(Manner::Claim, self.gpus.inventories.clone())
        })
        .unwrap();
        let delivery = Arc::new(delivery);
        let checkpoint = Arc::new(Checkpoint::open(&state).unwrap());
        let router = Router::new()
            .fallback(find)
            .with_state(Arc::clone(&self.objects));
        let preparer = Preparer::new(Parts {
            node: String::from("n1"),
            client: kube::Client::new(router, "default"),
            delivery: Arc::clone(&delivery),
            checkpoint: Arc::clone(&checkpoint),
            inventories: self.gpus.inventories.clone(),
            healths: watch::Sender::default().subscribe(),
            team_label: String::from("team"),
            mig: Mig::start(&state, Some(built("libnvidia_ml.so"))).unwrap(),
        });
        Driver {
            preparer,
            checkpoint,
            delivery,
        }
    }

    /// The slices of this node, where other programs have made these instances.
    fn published(&self, foreign: &[OtherInstance]) -> Vec<ResourceSliceSpec> {
        slices::slices(&Offer {
            node: "n1",
            inventory: &self.gpus.inventories.borrow().clone().unwrap(),
            health: &Health::new(),
            facts: &NodeFacts::default(),
            taken: &BTreeSet::new(),
            others: &Others::new(),
            foreign,
            taints: true,
            counters: true,
        })
    }

    /// UUID, memory, physical memory and cap of the devices in a claim's limits.
    fn limits(&self, name: &str) -> Vec<(String, u64, u64, u32)> {
        let path = format!("var/lib/vgpu/containers/claim-u-{name}/limits");
        let map = LimitsMap::open(&self.home.join(path)).unwrap();
        let limits = Limits::from(&map.load().unwrap());
        let devices = limits.devices.iter().map(|it| {
            let uuid = it.uuid.as_str().to_owned();
            (uuid, it.memory_bytes, it.physical_bytes, it.core_percent)
        });
        devices.collect()
    }

    /// The device nodes that a claim's first device has of its own.
    fn nodes(&self, name: &str) -> Vec<String> {
        let path = format!("var/run/cdi/vgpu-claim-u-{name}.json");
        let spec: Value =
            serde_json::from_slice(&std::fs::read(self.home.join(path)).unwrap()).unwrap();
        let nodes = spec["devices"][0]["containerEdits"]["deviceNodes"].as_array();
        let paths = nodes.unwrap().iter().map(|node| node["path"].as_str());
        paths.map(|path| path.unwrap().to_owned()).collect()
    }

    /// First slice and sevenths of each instance on the board.
    fn cut(&self) -> BTreeSet<(u32, u32)> {
        let there = self.board.gpu_instances(0);
        there.iter().map(|it| (it.start, it.sevenths)).collect()
    }
}

fn asked(name: &str) -> Asked {
    Asked {
        namespace: String::from("default"),
        name: name.to_owned(),
        uid: format!("u-{name}"),
    }
}

impl Driver {
    async fn prepare(&self, name: &str) -> Result<Vec<ReadyDevice>, String> {
        let asked = asked(name);
        let ready = self.preparer.prepare(&asked, std::slice::from_ref(&asked));
        ready.await.map_err(|why| why.to_string())
    }

    async fn unprepare(&self, name: &str) {
        self.preparer.unprepare(&asked(name)).await.unwrap();
    }
}

#[test]
fn gpu_in_mig_mode_is_published_as_its_instances() {
    let Some(home) = alone("dra_mig::gpu_in_mig_mode_is_published_as_its_instances") else {
        return;
    };
    let node = Node::new(&home);

    let published = node.published(&[]);

    let devices = published[0].devices.as_ref().unwrap();
    let gpu = device_name(&node.board.uuid(0));
    let has = |end: &str| devices.iter().any(|it| it.name == format!("{gpu}-{end}"));
    assert!(has("1g-5gb-6") && has("3g-20gb-4") && has("7g-40gb-0"));
    assert!(devices.iter().all(|it| it.consumes_counters.is_some()));
    assert_eq!(published[1].shared_counters.as_ref().unwrap()[0].name, gpu);
}

#[tokio::test]
async fn instance_lives_as_long_as_its_claim() {
    let Some(home) = alone("dra_mig::instance_lives_as_long_as_its_claim") else {
        return;
    };
    let node = Node::new(&home);
    node.claim("part", &[("gpu", "3g-20gb-4")]);
    let driver = node.driver();

    let given = driver.prepare("part").await.unwrap();

    assert_eq!(node.cut(), BTreeSet::from([(4, 3)]));
    let uuid = node.board.instance_uuid(0, 0);
    let whole = (uuid.clone(), 20 * GIB, 20 * GIB, 0);
    assert_eq!(node.limits("part"), std::slice::from_ref(&whole));
    assert_eq!(
        node.nodes("part"),
        [
            "/dev/nvidia0",
            "/dev/nvidia-caps/nvidia-cap21",
            "/dev/nvidia-caps/nvidia-cap41"
        ]
    );
    // Again, and by a driver that has just begun: the same instance. What others need is not taken away.
    assert_eq!(driver.prepare("part").await.unwrap(), given);
    drop(driver);
    let driver = node.driver();
    driver.preparer.clear_instances().await;
    assert_eq!(driver.prepare("part").await.unwrap(), given);
    assert_eq!(node.limits("part"), [whole]);

    // The node was restarted: GPUs come without instances, and the first one that is made has the old name.
    let (_, there) = node.board.instance_named(&uuid).unwrap();
    node.board.destroy_compute_instance(0, there.index).unwrap();
    node.board.destroy_gpu_instance(0, there.index).unwrap();
    std::fs::remove_dir_all(home.join("var/run")).unwrap();
    let foreign = node.board.create_gpu_instance(0, 1, Some(0)).unwrap();
    node.board
        .create_compute_instance(0, foreign.index)
        .unwrap();
    drop(driver);
    let driver = node.driver();
    assert_eq!(driver.prepare("part").await.unwrap(), given);
    let (_, there) = node
        .board
        .instance_named(&node.limits("part")[0].0)
        .unwrap();
    assert_eq!((there.start, there.sevenths), (4, 3));
    assert_ne!(node.limits("part")[0].0, uuid);
    assert_eq!(node.nodes("part")[1], "/dev/nvidia-caps/nvidia-cap22");

    driver.unprepare("part").await;
    // The administrator's instance stays.
    assert_eq!(node.cut(), BTreeSet::from([(0, 1)]));
    assert_eq!(driver.checkpoint.count(), 0);
    assert!(driver.delivery.known().unwrap().is_empty());
    driver.unprepare("part").await;
}

#[tokio::test]
async fn what_overlaps_an_administrators_instance_is_not_offered() {
    let Some(home) = alone("dra_mig::what_overlaps_an_administrators_instance_is_not_offered")
    else {
        return;
    };
    let node = Node::new(&home);
    let driver = node.driver();
    let (state, library) = (home.join("var/lib/vgpu"), built("libnvidia_ml.so"));
    // As the driver's publisher asks: by the same journal.
    let foreign = || {
        let mig = Mig::start(&state, Some(library.clone())).unwrap();
        mig.others(vec![node.board.uuid(0)]).unwrap()
    };
    let gpu = device_name(&node.board.uuid(0));
    let offered = |foreign: &[OtherInstance]| -> BTreeSet<String> {
        let published = node.published(foreign);
        let devices = published.iter().flat_map(|it| it.devices.iter().flatten());
        devices
            .map(|it| it.name.strip_prefix(&format!("{gpu}-")).unwrap().to_owned())
            .collect()
    };
    let all = offered(&[]);
    // Ours is in the way of none: the counters know it.
    node.claim("part", &[("gpu", "3g-20gb-0")]);
    driver.prepare("part").await.unwrap();
    assert_eq!(foreign(), []);

    // nvidia-smi mig -cgi: 1g.5gb at slice 6.
    let made = node.board.create_gpu_instance(0, 1, Some(6)).unwrap();
    node.board.create_compute_instance(0, made.index).unwrap();

    let there = foreign();
    assert_eq!(there.len(), 1, "{there:?}");
    assert_eq!((&*there[0].profile, there[0].is_whole), ("1g.5gb", true));
    let left = offered(&there);
    let gone: BTreeSet<&str> = all.difference(&left).map(String::as_str).collect();
    assert_eq!(gone, BTreeSet::from(["3g-20gb-4", "7g-40gb-0"]));
    // A claim that has it gets it as it is, and it stays the administrator's.
    assert!(left.contains("1g-5gb-6"));
    node.claim("same", &[("gpu", "1g-5gb-6")]);
    driver.prepare("same").await.unwrap();
    assert_eq!(foreign(), there);
    driver.unprepare("same").await;
    driver.unprepare("part").await;
    assert_eq!(node.cut(), BTreeSet::from([(6, 1)]));

    node.board.destroy_compute_instance(0, made.index).unwrap();
    node.board.destroy_gpu_instance(0, made.index).unwrap();
    assert_eq!(offered(&foreign()), all);
}

#[tokio::test]
async fn refused_claim_leaves_no_instance() {
    let Some(home) = alone("dra_mig::refused_claim_leaves_no_instance") else {
        return;
    };
    let node = Node::new(&home);
    let driver = node.driver();
    // The second instance lies where an administrator's does.
    let foreign = node.board.create_gpu_instance(0, 1, Some(6)).unwrap();
    node.board
        .create_compute_instance(0, foreign.index)
        .unwrap();
    node.claim("part", &[("a", "3g-20gb-0"), ("b", "3g-20gb-4")]);

    let why = driver.prepare("part").await.unwrap_err();

    assert!(
        why.contains("1g.5gb at slice 6 (created by another program)"),
        "{why}"
    );
    assert_eq!(node.cut(), BTreeSet::from([(6, 1)]));
    assert!(driver.delivery.known().unwrap().is_empty());
    // When that is gone, both are made.
    node.board
        .destroy_compute_instance(0, foreign.index)
        .unwrap();
    node.board.destroy_gpu_instance(0, foreign.index).unwrap();
    assert_eq!(driver.prepare("part").await.unwrap().len(), 2);
    assert_eq!(node.cut(), BTreeSet::from([(0, 3), (4, 3)]));
    driver.unprepare("part").await;
    assert_eq!(node.cut(), BTreeSet::new());
}

#[tokio::test]
async fn instance_that_a_process_still_uses_makes_way_later() {
    let Some(home) = alone("dra_mig::instance_that_a_process_still_uses_makes_way_later") else {
        return;
    };
    let node = Node::new(&home);
    let driver = node.driver();
    node.claim("part", &[("gpu", "1g-5gb-2")]);
    driver.prepare("part").await.unwrap();
    // A process that has no slot in the claim's region works on the instance.
    let member = node.board.join().unwrap();
    node.board.settle(member, 0);
    node.board.take(member, 0, 4096, Kind::Overhead).unwrap();

    driver.unprepare("part").await;

    assert_eq!(node.cut(), BTreeSet::from([(2, 1)]));
    node.claim("part", &[("gpu", "2g-10gb-2")]);
    let why = driver.prepare("part").await.unwrap_err();
    assert!(why.contains("overlaps 1g.5gb at slice 2"), "{why}");
    // The process has ended, and the next try finds room.
    node.board.leave(member);
    driver.prepare("part").await.unwrap();
    assert_eq!(node.cut(), BTreeSet::from([(2, 2)]));
    driver.unprepare("part").await;

    // A driver that was killed when it had made an instance, and before it wrote the record.
    let state = home.join("var/lib/vgpu");
    let mig = Mig::start(&state, Some(built("libnvidia_ml.so"))).unwrap();
    let place = placement::Span { start: 0, size: 1 };
    mig.make(&node.board.uuid(0), "1g.5gb", place).unwrap();
    drop((mig, driver));
    assert_eq!(node.cut(), BTreeSet::from([(0, 1)]));
    node.driver().preparer.clear_instances().await;
    assert_eq!(node.cut(), BTreeSet::new());
}
