//! Registration of a node's GPUs on an API server: the annotations, what happens when another writer changes
//! them, and what happens when the server is away.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, too"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use axum::http::Method;
use embedded_cluster::Cluster;
use events::Events;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube_api::config::DeviceConfig;
use kube_api::keys;
use kube_api::node::{RegisterFormat, Registered, decode, encode};
use kube_api::vendor::{Switches, Vendors};
use placement::{Device, MigProfile, PairScore, Span};
use serde_json::json;
use tokio::sync::watch;
use vgpu_monitor::inventory::{self, RegisterSettings, lease};
use vgpu_monitor::node_gpus::{Health, Inventory, KnownGpu, Sick};

use crate::harness::Server;
use crate::waiting::{eventually, found_later, until_later};

/// An API server, and an agent that registers with it.
struct World {
    client: kube::Client,
    nodes: Api<Node>,
    /// The server answers 503.
    away: Arc<AtomicBool>,
    /// Writes to nodes by any client.
    writes: Arc<AtomicU64>,
    gpus: watch::Sender<Option<Arc<Inventory>>>,
    health: watch::Sender<Arc<Health>>,
    agent: tokio::task::JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.agent.abort();
    }
}

fn node() -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": "n1", "annotations": { "other": "kept", "hami.io/device-cordon": "GPU-1" } },
        "status": { "allocatable": { "nvidia.com/gpu": "20" } },
    }))
    .unwrap()
}

fn device(index: u32) -> Device {
    let mut device = Device::new("NVIDIA", &format!("GPU-{index}"), "NVIDIA A", 16 << 30);
    device.index = index;
    device.numa = index;
    // The operator's, on the node.
    device.cordoned = index == 1;
    device
}

fn inventory(devices: Vec<Device>) -> Inventory {
    let gpu = |device: Device| KnownGpu {
        physical_bytes: device.memory_bytes,
        pci_bus_id: String::new(),
        minor: device.index,
        device,
    };
    Inventory {
        gpus: devices.into_iter().map(gpu).collect(),
        ..Inventory::default()
    }
}

impl World {
    async fn start(format: RegisterFormat) -> Self {
        let cluster = Cluster::default();
        let namespaces = json!({ "namespaces": [{ "metadata": { "name": "vgpu" } }, { "metadata": { "name": "default" } }] });
        cluster.import(&namespaces).unwrap();
        let Server {
            client,
            away,
            writes,
        } = Server::start(&cluster, |request| {
            let path = request.uri().path();
            request.method() == Method::PATCH && path.starts_with("/api/v1/nodes/")
        });
        let nodes: Api<Node> = Api::all(client.clone());
        nodes.create(&PostParams::default(), &node()).await.unwrap();
        let (gpus, inventories) = watch::channel(None);
        let (health, healths) = watch::channel(Arc::default());
        let settings = RegisterSettings {
            format,
            pause: Duration::from_millis(20),
            lease: lease::Terms {
                duration: Duration::from_secs(120),
                renew: Duration::from_millis(30),
            },
            ..RegisterSettings::new("n1", "vgpu", Events::start(client.clone(), "vgpu-monitor"))
        };
        let agent = tokio::spawn(inventory::register(
            client.clone(),
            settings,
            inventories,
            healths,
        ));
        Self {
            client,
            nodes,
            away,
            writes,
            gpus,
            health,
            agent,
        }
    }

    fn know(&self, inventory: Inventory) {
        self.gpus.send_replace(Some(Arc::new(inventory)));
    }

    /// Another client's merge patch of the node's annotations.
    async fn annotate(&self, annotations: serde_json::Value) {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        self.nodes
            .patch("n1", &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    async fn annotation(&self, key: &str) -> Option<String> {
        let node = self.nodes.get_opt("n1").await.unwrap()?;
        node.metadata.annotations?.get(key).cloned()
    }

    /// Waits until the annotation is so.
    async fn until(
        &self,
        key: &str,
        what: &str,
        is_so: impl Fn(Option<&str>) -> bool,
    ) -> Option<String> {
        let what = format!("{what}: {key}");
        found_later(&what, async || {
            let value = self.annotation(key).await;
            if is_so(value.as_deref()) {
                Ok(value)
            } else {
                Err(value)
            }
        })
        .await
    }

    async fn lease(&self) -> Option<Lease> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "vgpu");
        leases.get_opt("vgpu-agent-n1").await.unwrap()
    }
}

const REGISTER: &str = keys::NVIDIA_REGISTER;

#[tokio::test]
async fn scheduler_reads_the_registered_gpus() {
    let pair = |from: &str, to: &str| PairScore {
        from: from.to_owned(),
        to: to.to_owned(),
        score: 450,
    };
    let mut mig = device(3);
    mig.mode = "mig".to_owned();
    mig.slots = 7;
    mig.mig_profiles = vec![MigProfile {
        name: "1g.5gb".to_owned(),
        memory_bytes: 4864 << 20,
        cores: 15,
        slices: 1,
        placements: vec![Span { start: 0, size: 1 }, Span { start: 6, size: 1 }],
    }];
    let vendors = Vendors::new(
        DeviceConfig::standard(),
        Switches {
            ascend: false,
            iluvatar: false,
        },
    )
    .unwrap();
    for (format, devices, begins) in [
        (
            RegisterFormat::Auto,
            vec![device(0), device(1)],
            "GPU-0,10,16384,100,NVIDIA A,0,true:",
        ),
        // An index that is not counted.
        (
            RegisterFormat::Auto,
            vec![device(0), device(2)],
            "GPU-0,10,16384,100,NVIDIA A,0,true,0,hami-core:",
        ),
        (
            RegisterFormat::Auto,
            vec![device(1), mig],
            r#"[{"id":"GPU-1","index":1,"#,
        ),
        (
            RegisterFormat::Json,
            vec![device(0), device(1)],
            r#"[{"id":"GPU-0","count":10,"#,
        ),
    ] {
        let world = World::start(format).await;
        world.know(Inventory {
            pairs: vec![pair("GPU-0", "GPU-1"), pair("GPU-1", "GPU-0")],
            ..inventory(devices.clone())
        });

        let text = world
            .until(REGISTER, "registered", |value| value.is_some())
            .await
            .unwrap();
        assert!(text.starts_with(begins), "{text}");
        let node = world.nodes.get("n1").await.unwrap();
        let node: kube_api::object::Node =
            serde_json::from_value(serde_json::to_value(node).unwrap()).unwrap();
        let report = kube_api::node::report(&node, &vendors);
        assert_eq!(report.problems, []);
        assert_eq!(report.node.devices, devices);
        assert_eq!(report.node.pairs.len(), 2);
        let said = world.annotation(keys::SEED_HANDSHAKE).await.unwrap();
        assert!(said.starts_with("Reported 20"), "{said}");
        assert_eq!(world.annotation("other").await.as_deref(), Some("kept"));
    }
}

#[tokio::test]
async fn foreign_changes_are_corrected_and_foreign_keys_stay() {
    let world = World::start(RegisterFormat::Auto).await;
    world.know(inventory(vec![device(0)]));
    let good = world
        .until(REGISTER, "registered", |value| value.is_some())
        .await;

    world
        .annotate(json!({ REGISTER: null, "other": "his" }))
        .await;
    world
        .until(REGISTER, "put back", |value| value == good.as_deref())
        .await;
    world
        .annotate(json!({ REGISTER: "GPU-9,1,1,1,x,0,true:", keys::CORDON: "GPU-0" }))
        .await;
    world
        .until(REGISTER, "put right", |value| value == good.as_deref())
        .await;
    // A scheduler of old that wants to know is told.
    world
        .annotate(json!({ keys::SEED_HANDSHAKE: "Requesting_2024-01-23 04:30:04" }))
        .await;
    let is_told = |value: Option<&str>| value.is_some_and(|it| it.starts_with("Reported "));
    world.until(keys::SEED_HANDSHAKE, "answered", is_told).await;
    assert_eq!(world.annotation("other").await.as_deref(), Some("his"));
    assert_eq!(
        world.annotation(keys::CORDON).await.as_deref(),
        Some("GPU-0")
    );

    // The node object is made anew, as a kubelet does that was told to.
    world
        .nodes
        .delete("n1", &DeleteParams::default())
        .await
        .unwrap();
    world
        .nodes
        .create(&PostParams::default(), &node())
        .await
        .unwrap();
    world
        .until(REGISTER, "registered anew", |value| {
            value == good.as_deref()
        })
        .await;
}

#[tokio::test]
async fn nothing_is_written_while_nothing_changes() {
    let world = World::start(RegisterFormat::Auto).await;
    world.know(inventory(vec![device(0)]));
    world
        .until(REGISTER, "registered", |value| value.is_some())
        .await;

    // The same again, other annotations, another agent: no reason to write.
    world.know(inventory(vec![device(0)]));
    for round in 0..5 {
        world.annotate(json!({ "other": round.to_string() })).await;
    }
    let renewed = world.lease().await;
    eventually("the lease is renewed", async || {
        world.lease().await != renewed
    })
    .await;

    let lease = world.lease().await.unwrap();
    assert_ne!(Some(&lease), renewed.as_ref());
    let spec = lease.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("n1"));
    assert_eq!(spec.lease_duration_seconds, Some(120));
    let labels = lease.metadata.labels.unwrap();
    assert_eq!(labels.get("vgpu.io/node").map(String::as_str), Some("n1"));
    // Five are the test's own.
    assert_eq!(world.writes.load(Ordering::Relaxed), 6);
}

#[tokio::test]
async fn absent_server_gets_only_the_latest_state() {
    let world = World::start(RegisterFormat::Auto).await;
    world.know(inventory(vec![device(0)]));
    world
        .until(REGISTER, "registered", |value| value.is_some())
        .await;

    world.away.store(true, Ordering::Relaxed);
    world.know(inventory(vec![device(0), device(1)]));
    let before = world.writes.load(Ordering::Relaxed);
    until_later("two more writes", || {
        world.writes.load(Ordering::Relaxed) >= before + 2
    })
    .await;
    let sick = Sick {
        reason: "lost".to_owned(),
        since: SystemTime::UNIX_EPOCH,
        recovers: false,
    };
    world
        .health
        .send_replace(Arc::new(Health::from([("GPU-0".to_owned(), sick)])));
    world.away.store(false, Ordering::Relaxed);

    let expected = "GPU-0,10,16384,100,NVIDIA A,0,false:GPU-1,10,16384,100,NVIDIA A,1,true:";
    world
        .until(REGISTER, "sick", |value| value == Some(expected))
        .await;
    world.health.send_replace(Arc::default());
    let expected = expected.replace("false", "true");
    world
        .until(REGISTER, "well", |value| value == Some(&expected))
        .await;
}

#[tokio::test]
async fn inventory_problems_become_node_events_and_keep_gpus() {
    let world = World::start(RegisterFormat::Auto).await;
    world.know(inventory(vec![device(0)]));
    let good = world
        .until(REGISTER, "registered", |value| value.is_some())
        .await;

    world.know(Inventory {
        problems: vec!["per-node configuration: line 1, column 2: no".to_owned()],
        ..Inventory::default()
    });
    let events: Api<Event> = Api::all(world.client.clone());
    let said = found_later("an event", async || {
        let list = events.list(&ListParams::default()).await.unwrap();
        list.items.into_iter().next().ok_or("no event")
    })
    .await;
    assert_eq!(said.involved_object.kind.as_deref(), Some("Node"));
    assert_eq!(said.reason.as_deref(), Some("GpuInventory"));
    assert!(said.message.unwrap().contains("line 1, column 2"));
    assert_eq!(world.annotation(REGISTER).await, good);

    // A node that has no GPUs any more says so; `unregister` leaves nothing.
    world.know(inventory(Vec::new()));
    world
        .until(REGISTER, "taken off", |value| value.is_none())
        .await;
    assert_eq!(world.annotation(keys::SEED_HANDSHAKE).await, None);
    world.know(inventory(vec![device(0)]));
    world
        .until(REGISTER, "registered", |value| value.is_some())
        .await;
    world.agent.abort();
    while !world.agent.is_finished() {
        tokio::task::yield_now().await;
    }
    // A stopped agent leaves what stands there.
    assert_eq!(world.annotation(REGISTER).await, good);
    for _ in 0..2 {
        inventory::unregister(world.client.clone(), "n1", "vgpu")
            .await
            .unwrap();
    }
    assert_eq!(world.annotation(REGISTER).await, None);
    assert_eq!(world.lease().await, None);
    assert_eq!(
        world.annotation(keys::CORDON).await.as_deref(),
        Some("GPU-1")
    );
}

/// A node's capacity without what the cluster itself has.
async fn capacity(world: &World) -> (serde_json::Value, Option<String>) {
    let node = world.nodes.get("n1").await.unwrap();
    let noted = node.metadata.annotations.clone().unwrap_or_default();
    let status = node.status.unwrap();
    assert_eq!(
        status
            .capacity
            .clone()
            .unwrap_or_default()
            .get("nvidia.com/gpumem"),
        status
            .allocatable
            .clone()
            .unwrap_or_default()
            .get("nvidia.com/gpumem"),
        "capacity and allocatable differ"
    );
    let ours = |name: &String| name.starts_with("nvidia.com/") && name != "nvidia.com/gpu";
    let mut capacity = status.capacity.unwrap_or_default();
    capacity.retain(|name, _| ours(name));
    (json!(capacity), noted.get(keys::REPORTED_CAPACITY).cloned())
}

#[tokio::test]
async fn capacity_is_reported_put_right_and_taken_back() {
    let world = World::start(RegisterFormat::Auto).await;
    world.know(inventory(vec![device(0), device(1)]));
    let rules = inventory::Rules::parse(None, None, "n1", inventory::MigStrategy::None).unwrap();
    let (rules, ruled) = watch::channel(Some(Arc::new(rules)));
    let start = || {
        tokio::spawn(inventory::capacity::keep(
            world.client.clone(),
            "n1".to_owned(),
            Duration::from_millis(20),
            world.gpus.subscribe(),
            ruled.clone(),
        ))
    };
    let until = async |what: &str, expected: serde_json::Value| {
        found_later(what, async || {
            let stands = capacity(&world).await;
            if stands.0 == expected {
                Ok(stands.1)
            } else {
                Err(stands)
            }
        })
        .await
    };
    let reporting = start();
    let right = json!({ "nvidia.com/gpumem": "32768", "nvidia.com/gpumem-percentage": "200", "nvidia.com/gpucores": "200",
        "nvidia.com/priority": "2147483647" });
    let noted = until("reported", right.clone()).await;
    assert_eq!(
        noted.as_deref(),
        Some(
            "nvidia.com/gpucores,nvidia.com/gpumem,nvidia.com/gpumem-percentage,nvidia.com/priority"
        )
    );

    // A kubelet that has lost its record sets all extended resources to 0.
    let zero = json!({ "nvidia.com/gpumem": "0", "nvidia.com/gpucores": "0" });
    let patch = Patch::Merge(json!({ "status": { "capacity": zero, "allocatable": zero } }));
    let writing = PatchParams::default();
    world
        .nodes
        .patch_status("n1", &writing, &patch)
        .await
        .unwrap();
    until("put right", right.clone()).await;

    // Nothing is known of the GPUs for a while, then one has gone.
    world.know(Inventory {
        problems: vec!["the driver hangs".to_owned()],
        ..Inventory::default()
    });
    world.know(inventory(vec![device(0)]));
    let one = json!({ "nvidia.com/gpumem": "16384", "nvidia.com/gpumem-percentage": "100", "nvidia.com/gpucores": "100",
        "nvidia.com/priority": "2147483647" });
    until("of one GPU", one).await;

    // An agent that does not report takes back what another has, and leaves the slots and other programs' resources.
    reporting.abort();
    let other = json!({ "status": { "capacity": { "example.com/other": "1" } } });
    world
        .nodes
        .patch_status("n1", &writing, &Patch::Merge(other))
        .await
        .unwrap();
    for _ in 0..2 {
        inventory::capacity::take_back(
            world.client.clone(),
            "n1".to_owned(),
            Duration::from_millis(20),
        )
        .await;
        assert_eq!(capacity(&world).await, (json!({}), None));
    }
    let status = world.nodes.get("n1").await.unwrap().status.unwrap();
    assert!(status.capacity.unwrap().contains_key("example.com/other"));
    assert!(status.allocatable.unwrap().contains_key("nvidia.com/gpu"));

    // So does taking the product off the node.
    let reporting = start();
    until(
        "reported again",
        json!({ "nvidia.com/gpumem": "16384", "nvidia.com/gpumem-percentage": "100",
        "nvidia.com/gpucores": "100", "nvidia.com/priority": "2147483647" }),
    )
    .await;
    reporting.abort();
    world.agent.abort();
    inventory::unregister(world.client.clone(), "n1", "vgpu")
        .await
        .unwrap();
    assert_eq!(capacity(&world).await, (json!({}), None));
    drop(rules);
}

#[test]
fn reference_registers_round_trip() {
    let vectors = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/hami");
    let mut seen = 0;
    for entry in std::fs::read_dir(vectors).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let case: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for node in case["cluster"]["nodes"].as_array().into_iter().flatten() {
            let Some(text) = node["metadata"]["annotations"][REGISTER].as_str() else {
                continue;
            };
            // Some are malformed on purpose.
            let Ok(read) = decode(text) else { continue };
            let devices: Vec<Device> = read.iter().map(|it| it.device("NVIDIA")).collect();
            for format in [RegisterFormat::Auto, RegisterFormat::Json] {
                let written: Vec<Registered> = devices.iter().map(Registered::from).collect();
                let again = decode(&encode(&written, format)).unwrap();
                let again: Vec<Device> = again.iter().map(|it| it.device("NVIDIA")).collect();
                assert_eq!(again, devices, "{}", path.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen} registers");
}
