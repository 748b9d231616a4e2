//! What many agents ask of a real API server: each follows the pods of its node and its Node, registers its GPUs and
//! keeps its Lease, as the agent's program does, with a connection of its own.
//!
//! ```sh
//! cargo bench -p vgpu-monitor --bench agents --no-run
//! scripts/cluster up
//! scripts/cluster exec target/release/deps/agents-… --agents 1000 --seconds 1200
//! ```
//!
//! The API server counts the requests of all clients together, and kwok and the controllers list these nodes and pods,
//! too. So the agents' own requests are counted as they leave; the API server's figure stands beside them. The time is
//! divided into three windows; watches are renewed after five minutes, so a window of more than that has a renewal of
//! each watch.
//!
//! Without a cluster in KUBECONFIG it says so and ends.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a bench: a panic is its answer, and its figures are printed"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::Request;
use events::Events;
use futures_util::stream::{self, StreamExt as _};
use kube::api::{Api, Patch, PatchParams};
use kube::client::{Body, ClientBuilder};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::{Client, Config};
use kube_api::node::RegisterFormat;
use parking_lot::Mutex;
use placement::Device;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tower::util::MapRequestLayer;
use vgpu_monitor::inventory::{RegisterSettings, register};
use vgpu_monitor::node_gpus::{Inventory, KnownGpu};
use vgpu_monitor::own_pods::OwnPods;

/// As often as the garbage collection asks.
const LOOK: Duration = Duration::from_secs(30);
/// How many objects are made, and how many agents are started, at the same time.
const AT_ONCE: usize = 32;

/// Numbers of requests, by verb and resource.
type Counts = BTreeMap<String, f64>;

fn main() {
    if std::env::var_os("KUBECONFIG").is_none() {
        println!(
            "left out: KUBECONFIG names no cluster (scripts/cluster up, scripts/cluster exec)"
        );
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(argument("--agents", 200), argument("--seconds", 180)));
}

fn argument(name: &str, otherwise: u64) -> u64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    let value = arguments.nth(1);
    value.map_or(otherwise, |value| value.parse().unwrap())
}

async fn run(agents: u64, seconds: u64) {
    let client = Client::try_default().await.unwrap();
    let began = Instant::now();
    stream::iter(0..agents)
        .for_each_concurrent(AT_ONCE, async |number| objects(&client, number).await)
        .await;
    println!(
        "{agents} nodes with two pods each are there after {:.1} s",
        began.elapsed().as_secs_f64()
    );

    let mut seen = Seen::new(&client).await;
    let all: Vec<Agent> = stream::iter(0..agents)
        .map(|number| Agent::start(number, Arc::clone(&seen.own)))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    println!(
        "all of them know their pods after {:.1} s",
        seen.began.elapsed().as_secs_f64()
    );
    // Annotations and Leases are written.
    sleep(Duration::from_secs(20)).await;
    seen.report("the start", &client).await;

    for window in 1..=3 {
        let (mut well, mut away) = (0_u64, 0_u64);
        while seen.began.elapsed() < Duration::from_secs(seconds) / 3 {
            for agent in &all {
                match agent.pods.all().await {
                    Ok(pods) => {
                        assert_eq!(pods.len(), 2);
                        well += 1;
                    }
                    Err(_) => away += 1,
                }
            }
            seen.look(&client).await;
            sleep(LOOK.min(Duration::from_secs(seconds) / 3)).await;
        }
        println!("window {window}: {well} questions were answered, {away} were not");
        seen.report("the window", &client).await;
    }
    println!(
        "this process, with all agents: {} MiB at most",
        peak_memory_mib()
    );
}

struct Agent {
    pods: OwnPods,
    _inventory: watch::Sender<Option<Arc<Inventory>>>,
}

impl Agent {
    /// Starts, and knows its pods.
    async fn start(number: u64, counts: Arc<Mutex<Counts>>) -> Self {
        let client = counting(counts).await;
        let node = node(number);
        let gpu = KnownGpu {
            device: Device::new("NVIDIA", &format!("GPU-{number}"), "NVIDIA H100", 80 << 30),
            physical_bytes: 80 << 30,
            pci_bus_id: String::from("00000000:01:00.0"),
            minor: 0,
        };
        let inventory = watch::Sender::new(Some(Arc::new(Inventory {
            gpus: vec![gpu],
            ..Inventory::default()
        })));
        let pods = OwnPods::start(&client, &node);
        let events = Events::start(client.clone(), "vgpu-monitor");
        let settings = RegisterSettings {
            format: RegisterFormat::Auto,
            ..RegisterSettings::new(node, "kube-system".to_owned(), events)
        };
        let (healthy, healths) = watch::channel(Arc::default());
        let registering = register(client, settings, inventory.subscribe(), healths);
        tokio::spawn(async move {
            registering.await;
            drop(healthy);
        });
        let pods_known = async || loop {
            if let Ok(known) = pods.all().await {
                break known.len();
            }
        };
        assert_eq!(pods_known().await, 2);
        Self {
            pods,
            _inventory: inventory,
        }
    }
}

/// A client with a connection of its own, whose requests are counted.
async fn counting(counts: Arc<Mutex<Counts>>) -> Client {
    let count = move |request: Request<Body>| {
        let kind = kind(request.method().as_str(), request.uri());
        *counts.lock().entry(kind).or_default() += 1.0;
        request
    };
    let config = Config::infer().await.unwrap();
    let builder = ClientBuilder::try_from(config).unwrap();
    builder.with_layer(&MapRequestLayer::new(count)).build()
}

/// Verb and resource of a request, as the API server names them. Of what is no resource, method and path.
fn kind(method: &str, uri: &axum::http::Uri) -> String {
    let mut parts = uri.path().split('/').skip_while(|part| *part != "v1");
    let resource = match (parts.nth(1), parts.next()) {
        (Some("namespaces"), Some(_)) => parts.next().map(|part| (part, parts.next())),
        (Some(part), name) => Some((part, name)),
        (None, _) => None,
    };
    let Some((resource, name)) = resource else {
        return format!("{method} {}", uri.path());
    };
    let is_watch = uri.query().is_some_and(|query| query.contains("watch="));
    let verb = match (method, name) {
        ("GET", _) if is_watch => "WATCH",
        ("GET", None) => "LIST",
        (other, _) => other,
    };
    format!("{verb} {resource}")
}

fn node(number: u64) -> String {
    format!("agent-{number}")
}

/// A node that no controller plays, and two pods on it.
async fn objects(client: &Client, number: u64) {
    let node = node(number);
    put(
        client,
        "Node",
        None,
        json!({ "metadata": { "name": node } }),
    )
    .await;
    for pod in ["one", "two"] {
        let name = format!("{node}-{pod}");
        let pod = json!({ "metadata": { "name": name, "namespace": "default" }, "spec": { "nodeName": node,
            "tolerations": [{ "operator": "Exists" }], "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "c", "image": "i" }] } });
        put(client, "Pod", Some("default"), pod).await;
    }
}

async fn put(client: &Client, kind: &str, namespace: Option<&str>, mut object: Value) {
    let plural = format!("{}s", kind.to_lowercase());
    let resource = ApiResource {
        group: String::new(),
        version: String::from("v1"),
        api_version: String::from("v1"),
        kind: kind.to_owned(),
        plural,
    };
    object["apiVersion"] = "v1".into();
    object["kind"] = kind.into();
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    let params = PatchParams::apply("agents-bench").force();
    api.patch(&name, &params, &Patch::Apply(&object))
        .await
        .unwrap();
}

/// What has been counted since a report.
struct Seen {
    began: Instant,
    own: Arc<Mutex<Counts>>,
    own_before: Counts,
    before: Counts,
    /// The most memory that the API server was seen with, in MiB.
    memory_mib: f64,
}

impl Seen {
    async fn new(client: &Client) -> Self {
        let (before, memory_mib) = counts(client).await;
        Self {
            began: Instant::now(),
            own: Arc::default(),
            own_before: Counts::new(),
            before,
            memory_mib,
        }
    }

    /// Looks at the API server's memory.
    async fn look(&mut self, client: &Client) {
        let (_, memory_mib) = counts(client).await;
        self.memory_mib = self.memory_mib.max(memory_mib);
    }

    /// Prints what is new since the last report, and begins the next.
    async fn report(&mut self, what: &str, client: &Client) {
        let (after, memory_mib) = counts(client).await;
        let own = self.own.lock().clone();
        let seconds = self.began.elapsed().as_secs_f64();
        println!("{what} ({seconds:.0} s), requests of the agents, and of all clients:");
        let mut keys: Vec<&String> = after.keys().chain(own.keys()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let more = |now: &Counts, before: &Counts| {
                let of = |counts: &Counts| counts.get(key).copied().unwrap_or_default();
                of(now) - of(before)
            };
            // An API server that was restarted counts from the beginning.
            let (own, all) = (more(&own, &self.own_before), more(&after, &self.before));
            if own == 0.0 && all == 0.0 {
                continue;
            }
            let pace = if key.starts_with("LIST ") {
                let a_minute = |count: f64| count * 60.0 / seconds;
                format!(" ({:.2} and {:.2} a minute)", a_minute(own), a_minute(all))
            } else {
                String::new()
            };
            println!("  {key}: {own}, {all}{pace}");
        }
        println!(
            "  the API server's memory: {:.0} MiB at most",
            self.memory_mib.max(memory_mib)
        );
        self.began = Instant::now();
        self.own_before = own;
        self.before = after;
        self.memory_mib = memory_mib;
    }
}

fn peak_memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.unwrap().parse::<u64>().unwrap() / 1024
}

/// The API server's requests for pods, nodes and Leases so far, and its memory in MiB.
async fn counts(client: &Client) -> (Counts, f64) {
    let request = Request::get("/metrics").body(Vec::new()).unwrap();
    let text = client.request_text(request).await.unwrap();
    let mut counts = Counts::new();
    let mut memory = 0.0;
    for line in text.lines() {
        let value = || -> f64 { line.rsplit(' ').next().unwrap().parse().unwrap() };
        if line.starts_with("process_resident_memory_bytes ") {
            memory = value() / f64::from(1 << 20);
        }
        if !line.starts_with("apiserver_request_total{") {
            continue;
        }
        let label = |name: &str| {
            let from = line.find(&format!("{name}=\""))? + name.len() + 2;
            line.get(from..)?.split('"').next()
        };
        let (Some(verb), Some(resource)) = (label("verb"), label("resource")) else {
            continue;
        };
        if ["pods", "nodes", "leases"].contains(&resource) {
            *counts.entry(format!("{verb} {resource}")).or_default() += value();
        }
    }
    (counts, memory)
}
