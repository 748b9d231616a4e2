//! A node around the plugin: a kubelet, an API server, GPUs, and hands that give nothing real.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::http;
use embedded_cluster::Cluster;
use events::Events;
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use kube::api::{Api, Patch, PatchParams};
use kube::client::Body;
use kube_api::config::DeviceConfig;
use kube_api::object::Pod;
use kube_api::vendor::{Switches, Vendors};
use parking_lot::{Condvar, Mutex};
use placement::{MigProfile, Span};
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tower::ServiceExt as _;
use vgpu_monitor::delivery::{Allotted, Given, Name};
use vgpu_monitor::front::{Behind, Front, Useless};
use vgpu_monitor::node_gpus::{Health, Inventory, KnownGpu};
use vgpu_monitor::plugin::{
    Giver, InstanceNames, NodePods, Plugin, PluginMetrics, PluginParts, PluginSettings, Served,
};

use super::Kubelet;
use crate::waiting::until_later;

pub(crate) const GPU: &str = "nvidia.com/gpu";
pub(crate) const MIB: u64 = 1 << 20;

/// A container of a pod: name, kind (`init`, `sidecar`, `app`), and its GPUs with MiB.
pub(crate) type Asks<'a> = (&'a str, &'a str, &'a [(u32, u64)]);

/// The deliveries so far, and the faults of the next ones.
#[derive(Default)]
pub(crate) struct Hands {
    pub(crate) names: AtomicUsize,
    pub(crate) given: Mutex<BTreeMap<String, Given>>,
    /// Giving and making instances wait, as on a disk or a driver that hangs.
    pub(crate) hangs: Mutex<bool>,
    /// So does allotting.
    pub(crate) allotting_hangs: AtomicBool,
    pub(crate) goes_on: Condvar,
    pub(crate) waiting: AtomicUsize,
    pub(crate) made: Mutex<Vec<(String, String, Span)>>,
}

impl Hands {
    pub(crate) fn of(&self, uid: &str) -> BTreeMap<String, Given> {
        let given = self.given.lock();
        let own = given.values().filter(|given| given.pod_uid == uid);
        own.map(|given| (given.container.clone(), given.clone()))
            .collect()
    }

    fn wait_while_hanging(&self) {
        let mut hangs = self.hangs.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while *hangs {
            self.goes_on.wait(&mut hangs);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn hang(&self, hangs: bool) {
        *self.hangs.lock() = hangs;
        self.goes_on.notify_all();
    }
}

/// Of one process, which may be dead.
struct Fake(Arc<Hands>, Arc<AtomicBool>);

impl Giver for Fake {
    fn allot(&self) -> anyhow::Result<(Name, Allotted)> {
        if self.0.allotting_hangs.load(Ordering::SeqCst) {
            self.0.wait_while_hanging();
        }
        let number = self.0.names.fetch_add(1, Ordering::SeqCst);
        let name = Name(format!("v{number:04}"));
        let allotted = Allotted {
            env: vec![("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned())],
            cdi_devices: vec![format!("vgpu.io/container={}", name.0)],
            ..Allotted::default()
        };
        Ok((name, allotted))
    }

    fn give(&self, name: &Name, given: &Given) -> anyhow::Result<()> {
        self.0.wait_while_hanging();
        if self.1.load(Ordering::SeqCst) {
            anyhow::bail!("dead");
        }
        let mut all = self.0.given.lock();
        if let Some(before) = all.insert(name.0.clone(), given.clone()) {
            assert_eq!(&before, given, "{name:?} was another container's");
        }
        Ok(())
    }

    fn make(&self, gpu: &str, profile: &MigProfile, span: Span) -> anyhow::Result<InstanceNames> {
        self.0.wait_while_hanging();
        let mut made = self.0.made.lock();
        let one = (gpu.to_owned(), profile.name.clone(), span);
        let at = made.iter().position(|known| *known == one);
        let at = at.unwrap_or_else(|| {
            made.push(one);
            made.len() - 1
        });
        let number = u32::try_from(at).unwrap();
        Ok(InstanceNames {
            uuid: format!("MIG-{number}"),
            gpu_instance: number + 1,
            compute_instance: 0,
        })
    }

    fn known(&self) -> Vec<Name> {
        Vec::new()
    }
}

/// A node.
pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) kubelet: Kubelet,
    pub(crate) cluster: Cluster,
    pub(crate) away: Arc<AtomicBool>,
    pub(crate) hands: Arc<Hands>,
    pub(crate) inventory: watch::Sender<Option<Arc<Inventory>>>,
    pub(crate) health: watch::Sender<Arc<Health>>,
    pub(crate) served: Vec<Served>,
}

/// The agent's two processes: all that each has begun ends with its runtime.
pub(crate) struct Running {
    fronts: Runtime,
    front: Front,
    behind: Behind,
    number: u64,
    process: Process,
    pub(crate) plugin: Plugin,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// The plugin's process.
struct Process {
    runtime: Runtime,
    dead: Arc<AtomicBool>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Process {
    async fn kill(self) {
        self.dead.store(true, Ordering::SeqCst);
        self.runtime.shutdown_background();
        drop(self.task.await);
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

impl Running {
    /// Both, as by a signal that cannot be caught.
    pub(crate) async fn kill(self) {
        drop(self.behind);
        self.fronts.shutdown_background();
        drop(self.task.await);
        self.process.kill().await;
    }

    /// The plugin alone, as by a signal that cannot be caught.
    pub(crate) async fn crash(self) -> Crashed {
        self.process.kill().await;
        drop(self.behind);
        Crashed {
            fronts: self.fronts,
            front: self.front,
            number: self.number,
            stop: self.stop,
            task: self.task,
        }
    }

    /// Why the plugin is of no use to the front; waits until it is of none.
    pub(crate) async fn useless(&self) -> Useless {
        self.behind.useless().await
    }

    pub(crate) async fn stop(self) {
        drop(self.stop);
        self.task.await.unwrap();
        drop(self.process.stop);
        self.process.task.await.unwrap();
        self.fronts.shutdown_background();
        self.process.runtime.shutdown_background();
    }
}

/// A front with nothing behind it.
pub(crate) struct Crashed {
    fronts: Runtime,
    front: Front,
    number: u64,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Crashed {
    /// Another plugin behind the same front.
    pub(crate) async fn again(self, world: &World) -> Running {
        let (process, plugin, stream) = world.process();
        let number = self.number + 1;
        let behind = self.front.put(stream, number).await.unwrap();
        Running {
            fronts: self.fronts,
            front: self.front,
            behind,
            number,
            process,
            plugin,
            stop: self.stop,
            task: self.task,
        }
    }
}

pub(crate) fn gpu(index: u32) -> KnownGpu {
    let id = format!("GPU-{index}");
    KnownGpu {
        device: placement::Device {
            index,
            ..placement::Device::new("NVIDIA", &id, "NVIDIA H100", 16_000 * MIB)
        },
        physical_bytes: 16_000 * MIB,
        pci_bus_id: format!("00000000:0{index}:00.0"),
        minor: index,
    }
}

pub(crate) fn inventory(gpus: Vec<KnownGpu>) -> Option<Arc<Inventory>> {
    Some(Arc::new(Inventory {
        gpus,
        ..Inventory::default()
    }))
}

/// A body that breaks off when the API server goes away, as an open watch does.
fn until_away(body: axum::body::Body, away: Arc<AtomicBool>) -> axum::body::Body {
    let parts = (body.into_data_stream(), away);
    axum::body::Body::from_stream(unfold(parts, async |(mut data, away)| {
        loop {
            match tokio::time::timeout(Duration::from_millis(10), data.next()).await {
                Ok(next) => return Some((next?, (data, away))),
                Err(_) if away.load(Ordering::SeqCst) => {
                    let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                    return Some((Err(axum::Error::new(gone)), (data, away)));
                }
                Err(_) => {}
            }
        }
    }))
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = Kubelet::new(folder.path());
        std::fs::create_dir_all(folder.path().join("state")).unwrap();
        let cluster = Cluster::default();
        let nodes = json!({"nodes": [{"metadata": {"name": "n1"}}]});
        cluster.import(&nodes).unwrap();
        let served = Served {
            resource: GPU.to_owned(),
            vendor: "NVIDIA".to_owned(),
        };
        Self {
            kubelet,
            cluster,
            away: Arc::default(),
            hands: Arc::default(),
            inventory: watch::Sender::new(inventory((0..4).map(gpu).collect())),
            health: watch::Sender::default(),
            served: vec![served],
            folder,
        }
    }

    pub(crate) fn client(&self) -> kube::Client {
        kube::Client::new(self.cluster.router(), "default")
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), "default")
    }

    /// A front and a plugin behind it.
    pub(crate) async fn agent(&self) -> Running {
        let resources = self.served.iter().map(|served| served.resource.clone());
        let front = Front::new(self.kubelet.device_plugins(), resources.collect());
        let (stop, stopped) = oneshot::channel::<()>();
        let (fronts, serving) = (runtime(), front.clone());
        let task = fronts.spawn(async move {
            serving.serve(async { drop(stopped.await) }).await;
        });
        let number = 0;
        let nothing = Crashed {
            fronts,
            front,
            number,
            stop,
            task,
        };
        nothing.again(self).await
    }

    /// The plugin, and the front's end of the connection to it.
    fn process(&self) -> (Process, Plugin, UnixStream) {
        let (own, its) = std::os::unix::net::UnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        its.set_nonblocking(true).unwrap();
        let own = UnixStream::from_std(own).unwrap();
        let runtime = runtime();
        let within = runtime.enter();
        let its = UnixStream::from_std(its).unwrap();
        let dead = Arc::new(AtomicBool::new(false));
        let (router, away) = (self.cluster.router(), Arc::clone(&self.away));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (router, away) = (router.clone(), Arc::clone(&away));
            async move {
                if away.load(Ordering::SeqCst) {
                    return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
                }
                let request = request.map(axum::body::Body::new);
                let answer = router.oneshot(request).await.unwrap();
                Ok(answer.map(|body| until_away(body, away)))
            }
        });
        let client = kube::Client::new(service, "default");
        let switches = Switches {
            ascend: false,
            iluvatar: false,
        };
        let vendors = Vendors::new(DeviceConfig::standard(), switches).unwrap();
        let settings = PluginSettings {
            node: "n1".to_owned(),
            served: self.served.clone(),
            state: self.folder.path().join("state"),
            device_plugins: self.kubelet.device_plugins(),
            pod_resources: self.kubelet.pod_resources(),
            team_label: "team".to_owned(),
        };
        let vendors = Arc::new(vendors);
        let (events, metrics) = (
            Events::start(client.clone(), "vgpu-monitor"),
            PluginMetrics::new("n1"),
        );
        let pods = NodePods::open(&settings, &client, &vendors, &events, &metrics);
        let plugin = Plugin::start(
            settings,
            PluginParts {
                vendors,
                pods,
                giver: Arc::new(Fake(Arc::clone(&self.hands), Arc::clone(&dead))),
                events,
                client,
                inventories: self.inventory.subscribe(),
                healths: self.health.subscribe(),
                metrics,
                traces: server::Traces::off(),
            },
        );
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = plugin.clone();
        let task = runtime.spawn(async move {
            serving.serve(its, async { drop(stopped.await) }).await;
        });
        drop(within);
        let process = Process {
            runtime,
            dead,
            stop,
            task,
        };
        (process, plugin, own)
    }

    /// A kubelet and an agent that know each other.
    pub(crate) async fn up(&self) -> Running {
        self.kubelet.start();
        let agent = self.agent().await;
        self.is_known(40).await;
        agent
    }

    pub(crate) async fn is_known(&self, slots: usize) {
        until_later("the kubelet knows the slots", || {
            self.kubelet.slots(GPU).0 == slots
        })
        .await;
    }

    /// Makes a pod of these containers: name, kind and GPUs with MiB. Placed as it says.
    pub(crate) async fn pod(&self, name: &str, containers: &[Asks<'_>]) -> Value {
        let mut text = String::new();
        let (mut init, mut beside) = (Vec::new(), Vec::new());
        for (name, kind, gpus) in containers {
            let mut container = json!({"name": name, "image": "i"});
            if let Some((_, mib)) = gpus.first() {
                let limits = json!({GPU: gpus.len().to_string(), "nvidia.com/gpumem": mib.to_string(), "nvidia.com/gpucores": "5"});
                container["resources"] = json!({"limits": limits});
            }
            for (gpu, mib) in *gpus {
                text += &format!("GPU-{gpu},NVIDIA,{mib},5:");
            }
            text.push(';');
            match *kind {
                "init" => init.push(container),
                "sidecar" => {
                    container["restartPolicy"] = json!("Always");
                    init.push(container);
                }
                _ => beside.push(container),
            }
        }
        if beside.is_empty() {
            beside.push(json!({"name": "plain", "image": "i"}));
        }
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "annotations": {
                "hami.io/vgpu-node": "n1", "hami.io/bind-phase": "allocating",
                "hami.io/vgpu-devices-to-allocate": text, "hami.io/vgpu-devices-allocated": text,
            }},
            "spec": {"nodeName": "n1", "initContainers": init, "containers": beside},
        });
        self.cluster.import(&json!({"pods": [pod]})).unwrap();
        let made = self.pods().get(name).await.unwrap();
        let mut made = serde_json::to_value(made).unwrap();
        for list in ["initContainers", "containers"] {
            // The kubelet sees counts of our resource alone: the scheduler keeps the others from it.
            let containers = made["spec"][list].as_array_mut();
            for container in containers.into_iter().flatten() {
                if let Some(limits) = container["resources"]["limits"].as_object_mut() {
                    limits.retain(|name, _| self.served.iter().any(|s| s.resource == *name));
                }
            }
        }
        made
    }

    pub(crate) async fn annotate(&self, name: &str, key: &str, text: &str) {
        let patch = json!({"metadata": {"annotations": {key: text}}});
        let (pods, params) = (self.pods(), PatchParams::default());
        pods.patch(name, &params, &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    pub(crate) async fn events_say(&self, part: &str) {
        let events: Api<k8s_openapi::api::core::v1::Event> =
            Api::namespaced(self.client(), "default");
        for _ in 0..500 {
            let said = events.list(&Default::default()).await.unwrap();
            let mut messages = said
                .items
                .iter()
                .filter_map(|event| event.message.as_deref());
            if messages.any(|message| message.contains(part)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("no event says {part:?}");
    }
}

pub(crate) fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap()
}

pub(crate) fn gpus(given: &Given) -> Vec<(&str, u64)> {
    let devices = given.devices.iter();
    devices
        .map(|device| (device.uuid.as_str(), device.memory_bytes / MIB))
        .collect()
}

impl World {
    pub(crate) async fn up_with(&self, slots: usize) -> Running {
        self.kubelet.start();
        let agent = self.agent().await;
        self.is_known(slots).await;
        agent
    }
}
