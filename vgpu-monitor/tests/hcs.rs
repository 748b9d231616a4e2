//! The ComputeNode and the ComputeTopology that an agent keeps on an API server: their content, what happens
//! when another writer changes them, and what happens when the server is away or lacks the kinds.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, too"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use axum::http::Method;
use embedded_cluster::Cluster;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube_api::config::DeviceConfig;
use kube_api::hcs::{ComputeNode, ComputeTopology, Phase, condition, crd};
use kube_api::vendor::{Switches, Vendors};
use placement::Device;
use serde_json::{Value, json};
use tokio::sync::watch;
use vgpu_monitor::hcs::{self, HcsSettings, ReportSources, WriteSeries, compose::Speed};
use vgpu_monitor::node_gpus::{Health, Inventory, KnownGpu, Nic, Scores, Sick, Wires};

use crate::harness::Server;
use crate::waiting::found_later;

const GIB: u64 = 1 << 30;

/// An API server, and an agent that reports to it.
struct World {
    client: kube::Client,
    /// The server answers 503.
    away: Arc<AtomicBool>,
    /// Writes to objects of hcs.io.
    writes: Arc<AtomicU64>,
    gpus: watch::Sender<Option<Arc<Inventory>>>,
    health: watch::Sender<Arc<Health>>,
    scores: watch::Sender<Arc<Scores>>,
    series: WriteSeries,
    settings: HcsSettings,
    agent: tokio::task::JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.agent.abort();
    }
}

fn gpu(index: u32) -> KnownGpu {
    let id = format!("GPU-{index}");
    let mut device = Device::new("NVIDIA", &id, "NVIDIA-NVIDIA A100-SXM4-80GB", 80 * GIB);
    device.index = index;
    device.numa = index / 2;
    KnownGpu {
        device,
        physical_bytes: 80 * GIB,
        pci_bus_id: format!("00000000:{:02X}:00.0", index + 1),
        minor: index,
    }
}

/// GPUs on an NVSwitch, each with twelve links to each other.
fn inventory(count: u32) -> Inventory {
    let uuid = |index: u32| format!("GPU-{index}");
    let wires = |index: u32| Wires {
        gpu: uuid(index),
        nvlinks: (0..count)
            .filter(|other| *other != index)
            .map(|other| (uuid(other), 12))
            .collect(),
        nvlink_count: 12,
        nvlink_version: "3.0".to_owned(),
        nvlink_mb_s: 50_000,
        pcie_mb_s: 64_000,
    };
    Inventory {
        gpus: (0..count).map(gpu).collect(),
        wires: (0..count).map(wires).collect(),
        nics: vec![Nic {
            name: "mlx5_0".to_owned(),
            port: 1,
            numa: Some(0),
            mb_s: 25_000,
        }],
        ..Inventory::default()
    }
}

fn sick(reason: &str) -> Sick {
    Sick {
        reason: reason.to_owned(),
        since: SystemTime::UNIX_EPOCH,
        recovers: false,
    }
}

/// The speeds in the tests' exchange table.
fn speed(model: &str, _memory_bytes: u64) -> Option<Speed> {
    model.contains("A100").then(|| Speed {
        model: "A100-80GB".to_owned(),
        gflops: [312_000, 19_500],
    })
}

fn vendors() -> Vendors {
    let switches = Switches {
        ascend: true,
        iluvatar: true,
    };
    Vendors::new(DeviceConfig::standard(), switches).unwrap()
}

impl World {
    async fn start(installed: bool) -> Self {
        let cluster = Cluster::default();
        let namespaces = json!({ "namespaces": [{ "metadata": { "name": "default" } }] });
        cluster.import(&namespaces).unwrap();
        let Server {
            client,
            away,
            writes,
        } = Server::start(&cluster, |request| {
            let path = request.uri().path();
            request.method() != Method::GET && path.starts_with("/apis/hcs.io/")
        });
        let (gpus, inventories) = watch::channel(None);
        let (health, healths) = watch::channel(Arc::default());
        let (scores, scored) = watch::channel(Arc::default());
        let settings = HcsSettings {
            // Nothing in these tests waits for a heartbeat unless it says so.
            heartbeat: Duration::from_secs(3600),
            settle: Duration::from_millis(5),
            pause: Duration::from_millis(20),
            absent: Duration::from_millis(50),
            ..HcsSettings::new("n1")
        };
        let series = WriteSeries::new("n1");
        let sources = ReportSources {
            inventories,
            healths,
            scores: scored,
            vendors: Arc::new(vendors()),
            speeds: Arc::new(speed),
        };
        let mut world = Self {
            client: client.clone(),
            away,
            writes,
            gpus,
            health,
            scores,
            series: series.clone(),
            settings: settings.clone(),
            agent: tokio::spawn(async {}),
        };
        if installed {
            world.install().await;
        }
        world.make_node().await;
        world.agent = tokio::spawn(hcs::keep(client, settings, sources, series));
        world
    }

    async fn install(&self) {
        for definition in crd::definitions() {
            self.post(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                &definition,
            )
            .await;
        }
    }

    async fn post(&self, path: &str, body: &Value) {
        let request = axum::http::Request::post(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(body).unwrap())
            .unwrap();
        self.client.request::<Value>(request).await.unwrap();
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    async fn make_node(&self) {
        let node = json!({ "metadata": { "name": "n1", "labels": {
            "kubernetes.io/hostname": "host-1", "topology.kubernetes.io/zone": "zone-a",
        } } });
        let node: Node = serde_json::from_value(node).unwrap();
        self.nodes()
            .create(&PostParams::default(), &node)
            .await
            .unwrap();
    }

    async fn cordon(&self, cordoned: bool) {
        let patch = Patch::Merge(json!({ "spec": { "unschedulable": cordoned } }));
        self.nodes()
            .patch("n1", &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    fn know(&self, inventory: Inventory) {
        self.gpus.send_replace(Some(Arc::new(inventory)));
    }

    fn judge(&self, sick: Health) {
        self.health.send_replace(Arc::new(sick));
    }

    fn computed(&self) -> Api<ComputeNode> {
        Api::all(self.client.clone())
    }

    async fn read(&self) -> Option<ComputeNode> {
        self.computed().get_opt("n1").await.ok().flatten()
    }

    /// Waits until the ComputeNode is so.
    async fn until(&self, what: &str, is_so: impl Fn(&ComputeNode) -> bool) -> ComputeNode {
        found_later(what, async || match self.read().await {
            Some(stands) if stands.status.is_some() && is_so(&stands) => Ok(stands),
            stands => Err(stands),
        })
        .await
    }

    async fn topology(&self) -> ComputeTopology {
        let api: Api<ComputeTopology> = Api::all(self.client.clone());
        found_later("a ComputeTopology", async || {
            match api.get_opt("n1").await {
                Ok(Some(stands)) if stands.status.is_some() => Ok(stands),
                stands => Err(stands),
            }
        })
        .await
    }

    /// A pod of the node that holds this much of these GPUs.
    async fn run_pod(&self, name: &str, shares: &[(u32, u64)]) {
        let held: String = shares
            .iter()
            .map(|(index, mib)| format!("GPU-{index},NVIDIA,{mib},0:"))
            .collect();
        let pod = json!({
            "metadata": { "name": name, "annotations": { "hami.io/vgpu-devices-allocated": format!("{held};") } },
            "spec": { "nodeName": "n1", "containers": [{ "name": "main", "image": "i" }] },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }

    async fn end_pod(&self, name: &str) {
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        let patch = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
        pods.patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    async fn delete_pod(&self, name: &str) {
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        let at_once = DeleteParams::default().grace_period(0);
        pods.delete(name, &at_once).await.unwrap();
    }
}

/// Status and reason of a condition.
fn said(node: &ComputeNode, kind: &str) -> (String, String) {
    let status = node.status.clone().unwrap();
    let condition = status.conditions.into_iter().find(|it| it.kind == kind);
    let condition = condition.unwrap();
    (condition.status, condition.reason)
}

fn said_all(node: &ComputeNode) -> Vec<String> {
    [
        condition::READY,
        condition::HARDWARE_HEALTHY,
        condition::AGENT_CONNECTED,
        condition::SCHEDULABLE,
    ]
    .map(|kind| {
        let (status, reason) = said(node, kind);
        format!("{kind}={status} {reason}")
    })
    .to_vec()
}

fn phase(node: &ComputeNode) -> Option<Phase> {
    node.status.as_ref().and_then(|status| status.phase)
}

fn allocated(node: &ComputeNode) -> Vec<String> {
    let devices = node.spec.devices.iter();
    devices.map(|it| it.vram_allocated.0.clone()).collect()
}

#[tokio::test]
async fn compute_node_matches_the_document() {
    let world = World::start(true).await;
    world.know(inventory(8));
    world.run_pod("a", &[(0, 16 * 1024)]).await;

    let stands = world
        .until("16Gi held", |it| allocated(it)[0] == "16Gi")
        .await;

    let spec = serde_json::to_value(&stands.spec).unwrap();
    assert_eq!(spec["vendor"], "nvidia");
    assert_eq!(
        spec["nodeSelector"],
        json!({ "kubernetes.io/hostname": "host-1" })
    );
    assert_eq!(
        spec["capacity"],
        json!({ "vram": "640Gi", "tflops-fp16": "2496", "tflops-fp32": "156" })
    );
    assert_eq!(
        spec["devices"][0],
        json!({
            "id": "0",
            "uuid": "GPU-0",
            "model": "A100-80GB",
            "vram": "80Gi",
            "vramAllocatable": "80Gi",
            "vramAllocated": "16Gi",
            "compute": { "fp16": "312", "fp32": "19.5" },
            "topology": {
                "busId": "0000:01:00.0",
                "numaNode": 0,
                "links": [
                    { "type": "nvlink", "peers": ["1", "2", "3", "4", "5", "6", "7"], "bandwidth": "600GB/s" },
                    { "type": "pcie", "peers": ["1", "2", "3", "4", "5", "6", "7"], "bandwidth": "64GB/s" },
                ],
            },
            "healthScore": 100,
        })
    );
    assert_eq!(
        spec["topology"],
        json!({ "interconnects": [
            { "type": "nvlink", "bandwidth": "600GB/s", "nvlinkVersion": "3.0" },
            { "type": "pcie", "bandwidth": "64GB/s" },
            { "type": "roce", "bandwidth": "25GB/s" },
        ] })
    );
    let labels = stands.metadata.labels.clone().unwrap();
    assert_eq!(labels["vendor"], "nvidia");
    assert_eq!(labels["topology.kubernetes.io/zone"], "zone-a");
    let owner = stands.metadata.owner_references.clone().unwrap();
    assert_eq!((&*owner[0].kind, &*owner[0].name), ("Node", "n1"));

    assert_eq!(
        said_all(&stands),
        [
            "Ready=True NodeReady",
            "HardwareHealthy=True AllDevicesHealthy",
            "AgentConnected=True AgentReports",
            "Schedulable=True NodeSchedulable",
        ]
    );
    assert_eq!(phase(&stands), Some(Phase::Ready));
    let status = stands.status.unwrap();
    assert_eq!(status.vram_allocated.unwrap().0, "16Gi");
    assert!(status.last_heartbeat.unwrap().ends_with('Z'));

    let topology = world.topology().await.spec;
    assert_eq!(topology.node_name, "n1");
    assert_eq!(topology.devices.len(), 8);
    // 28 pairs over NVLink, 28 over PCIe, and the port beside the two GPUs of its NUMA node.
    assert_eq!(topology.links.len(), 28 + 28 + 2);
    assert_eq!(topology.groups.len(), 1);
    assert_eq!(topology.groups[0].devices.len(), 8);
}

#[tokio::test]
async fn phases_follow_health_and_cordon() {
    let world = World::start(true).await;
    world.know(inventory(2));
    let first = world
        .until("ready", |it| phase(it) == Some(Phase::Ready))
        .await;
    let since = |node: &ComputeNode, kind: &str| {
        let conditions = node.status.clone().unwrap().conditions;
        let found = conditions.into_iter().find(|it| it.kind == kind).unwrap();
        found.last_transition_time.unwrap()
    };

    world.cordon(true).await;
    let stands = world
        .until("draining", |it| phase(it) == Some(Phase::Draining))
        .await;
    assert_eq!(said(&stands, "Schedulable").1, "NodeCordoned");
    assert_eq!(said(&stands, "Ready").0, "True");
    assert_eq!(since(&stands, "Ready"), since(&first, "Ready"));

    world.judge(Health::from([("GPU-1".to_owned(), sick("XID 79"))]));
    let stands = world
        .until("unhealthy", |it| said(it, "HardwareHealthy").0 == "False")
        .await;
    assert_eq!(phase(&stands), Some(Phase::Draining));
    assert_eq!(said(&stands, "HardwareHealthy").1, "DeviceUnhealthy");
    let conditions = stands.status.clone().unwrap().conditions;
    assert!(conditions.iter().any(|it| it.message == "device 1: XID 79"));
    assert!(stands.spec.devices[1].health_score < 60);
    assert_eq!(stands.spec.devices[1].vram_allocatable.0, "0");
    assert_eq!(stands.spec.devices[0].vram_allocatable.0, "80Gi");

    let both = ["GPU-0", "GPU-1"].map(|id| (id.to_owned(), sick("the GPU is lost")));
    world.judge(Health::from(both));
    let stands = world
        .until("not ready", |it| phase(it) == Some(Phase::NotReady))
        .await;
    assert_eq!(said(&stands, "Ready").1, "DeviceUnhealthy");
    assert_eq!(said(&stands, "AgentConnected").0, "True");

    world.cordon(false).await;
    world.judge(Health::new());
    world
        .until("well", |it| phase(it) == Some(Phase::Ready))
        .await;
}

#[tokio::test]
async fn nothing_is_written_while_nothing_changes() {
    let mut world = World::start(true).await;
    world.know(inventory(2));
    world.until("written", |_| true).await;
    world.topology().await;
    let mut written = world.writes.load(Ordering::Relaxed);
    // A created object, its status, and the same of the topology.
    assert_eq!(written, 4);

    // Changes that are no news: the same inventory, a label of the Node, a score that moved.
    world.know(inventory(2));
    let label = Patch::Merge(json!({ "metadata": { "annotations": { "other": "1" } } }));
    world
        .nodes()
        .patch("n1", &PatchParams::default(), &label)
        .await
        .unwrap();
    world
        .scores
        .send_replace(Arc::new(BTreeMap::from([("GPU-0".to_owned(), 90)])));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.writes.load(Ordering::Relaxed), written);

    // With the next change the score goes along.
    world.judge(Health::from([("GPU-1".to_owned(), sick("lost"))]));
    let stands = world
        .until("changed", |it| it.spec.devices[1].health_score == 0)
        .await;
    assert_eq!(stands.spec.devices[0].health_score, 90);
    written += 2;
    world
        .until("status", |it| said(it, "HardwareHealthy").0 == "False")
        .await;
    assert_eq!(world.writes.load(Ordering::Relaxed), written);
    assert_eq!(world.series.writes(), written);

    // A heartbeat is one write.
    world.agent.abort();
    let sources = ReportSources {
        inventories: world.gpus.subscribe(),
        healths: world.health.subscribe(),
        scores: world.scores.subscribe(),
        vendors: Arc::new(vendors()),
        speeds: Arc::new(speed),
    };
    world.settings.heartbeat = Duration::from_millis(1500);
    world.agent = tokio::spawn(hcs::keep(
        world.client.clone(),
        world.settings.clone(),
        sources,
        world.series.clone(),
    ));
    let before = stands.status.unwrap().last_heartbeat;
    let beaten = |it: &ComputeNode| it.status.clone().unwrap().last_heartbeat;
    let stands = world.until("beaten", |it| beaten(it) != before).await;
    let first = world.writes.load(Ordering::Relaxed);
    let before = beaten(&stands);
    world.until("beaten again", |it| beaten(it) != before).await;
    assert_eq!(world.writes.load(Ordering::Relaxed) - first, 1);
}

#[tokio::test]
async fn changes_by_other_writers_are_corrected() {
    let world = World::start(true).await;
    world.know(inventory(1));
    world.until("written", |_| true).await;

    let lie = Patch::Merge(
        json!({ "metadata": { "labels": { "mine": "1" } }, "spec": { "devices": [] } }),
    );
    world
        .computed()
        .patch("n1", &PatchParams::default(), &lie)
        .await
        .unwrap();
    world.run_pod("a", &[(0, 1024)]).await;
    let stands = world
        .until("put right", |it| {
            it.spec.devices.len() == 1 && allocated(it) == ["1Gi"]
        })
        .await;
    assert_eq!(stands.metadata.labels.unwrap()["mine"], "1");

    world
        .computed()
        .delete("n1", &DeleteParams::default())
        .await
        .unwrap();
    world.end_pod("a").await;
    world.until("made anew", |it| allocated(it) == ["0"]).await;

    // As the scheduler does of an agent that it has not heard of.
    let stands = world.read().await.unwrap();
    let gone =
        kube_api::hcs::observed::disconnected(&stands.status.unwrap(), 120, "2026-01-21T10:00:00Z");
    let gone = Patch::Merge(json!({ "status": gone }));
    let patched = world
        .computed()
        .patch_status("n1", &PatchParams::default(), &gone)
        .await
        .unwrap();
    assert_eq!(
        said(&patched, "Ready"),
        ("False".to_owned(), "AgentNotConnected".to_owned())
    );
    assert_eq!(phase(&patched), Some(Phase::NotReady));
    world.run_pod("b", &[(0, 2048)]).await;
    world
        .until("back", |it| phase(it) == Some(Phase::Ready))
        .await;
}

#[tokio::test]
async fn late_definitions_and_an_absent_server_are_tolerated() {
    let world = World::start(false).await;
    world.know(inventory(1));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(world.read().await.is_none());
    assert!(!world.agent.is_finished());

    world.install().await;
    world.until("written", |_| true).await;

    world.away.store(true, Ordering::Relaxed);
    world.know(inventory(3));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!world.agent.is_finished());
    world.away.store(false, Ordering::Relaxed);
    world
        .until("three GPUs", |it| it.spec.devices.len() == 3)
        .await;
}

#[tokio::test]
async fn deleted_node_gets_no_objects() {
    let world = World::start(true).await;
    world.know(inventory(1));
    world.until("written", |_| true).await;

    world
        .nodes()
        .delete("n1", &DeleteParams::default())
        .await
        .unwrap();
    // The garbage collector of a real cluster does this, since the Node owns it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(
        world
            .computed()
            .delete("n1", &DeleteParams::default())
            .await,
    );
    world.judge(Health::from([("GPU-0".to_owned(), sick("lost"))]));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(world.read().await.is_none());

    world.make_node().await;
    let stands = world
        .until("made anew", |it| phase(it) == Some(Phase::NotReady))
        .await;
    let node = world.nodes().get("n1").await.unwrap();
    let owner = stands.metadata.owner_references.unwrap();
    assert_eq!(Some(&owner[0].uid), node.metadata.uid.as_ref());
}

/// A small generator, so that a failure names its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Whatever happens to the node, in whatever order, what stands at last is what a plain account of it says.
#[tokio::test]
async fn random_histories_match_an_oracle() {
    for seed in [11_u64, 4711, 90_210] {
        let world = World::start(true).await;
        let mut dice = Dice(seed);
        let (mut gpus, mut cordoned) = (2_u32, false);
        let mut out: BTreeSet<u32> = BTreeSet::new();
        let mut pods: BTreeMap<String, (u32, u64)> = BTreeMap::new();
        world.know(inventory(gpus));
        for step in 0..60 {
            match dice.roll(9) {
                0 => {
                    gpus = 1 + u32::try_from(dice.roll(4)).unwrap();
                    world.know(inventory(gpus));
                }
                1 => {
                    cordoned = !cordoned;
                    world.cordon(cordoned).await;
                }
                2 | 3 => {
                    let index = u32::try_from(dice.roll(4)).unwrap();
                    if !out.remove(&index) {
                        out.insert(index);
                    }
                    let ill = out.iter().map(|it| (format!("GPU-{it}"), sick("lost")));
                    world.judge(ill.collect());
                }
                4..=6 => {
                    let name = format!("p{step}");
                    let share = (u32::try_from(dice.roll(4)).unwrap(), 1 + dice.roll(4096));
                    world.run_pod(&name, &[share]).await;
                    pods.insert(name, share);
                }
                7 => {
                    if let Some((name, _)) = pods.pop_first() {
                        if dice.roll(2) == 0 {
                            world.end_pod(&name).await;
                        } else {
                            world.delete_pod(&name).await;
                        }
                    }
                }
                _ => {
                    world.away.store(true, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(dice.roll(30))).await;
                    // The test's own calls need the server.
                    world.away.store(false, Ordering::Relaxed);
                }
            }
        }

        let held: Vec<u64> = (0..gpus)
            .map(|index| {
                let of_gpu = pods.values().filter(|(of, _)| *of == index);
                of_gpu.map(|(_, mib)| mib << 20).sum()
            })
            .collect();
        let healthy = (0..gpus).filter(|index| !out.contains(index)).count();
        let expected = match (healthy, cordoned) {
            (0, _) => Phase::NotReady,
            (_, true) => Phase::Draining,
            (_, false) => Phase::Ready,
        };
        let what = format!("seed {seed}: {gpus} GPUs, out {out:?}, {expected:?}, {held:?}");
        world
            .until(&what, |it| {
                let seen: Vec<u64> = it
                    .spec
                    .devices
                    .iter()
                    .map(|device| {
                        let amount = device.vram_allocated.parse().unwrap();
                        u64::try_from(amount.whole().unwrap()).unwrap()
                    })
                    .collect();
                let sum = it.status.clone().unwrap().vram_allocated.unwrap();
                let sum = u64::try_from(sum.parse().unwrap().whole().unwrap()).unwrap();
                seen == held
                    && sum == held.iter().sum::<u64>()
                    && phase(it) == Some(expected)
                    && (said(it, "HardwareHealthy").0 == "True")
                        == (healthy == usize::try_from(gpus).unwrap())
                    && (said(it, "Schedulable").0 == "True") == (expected == Phase::Ready)
                    && it
                        .spec
                        .devices
                        .iter()
                        .zip(0..)
                        .all(|(device, index)| (device.health_score < 60) == out.contains(&index))
            })
            .await;
    }
}
