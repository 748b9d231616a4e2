//! What many agents ask of a real API server: each follows the pods of its node and its Node, registers its GPUs and
//! keeps its Lease, as the agent's program does, with a connection of its own. Counts are the API server's.
//!
//! ```sh
//! cargo bench -p vgpu-monitor --bench agents --no-run
//! scripts/cluster up
//! scripts/cluster exec target/release/deps/agents-… --agents 200 --seconds 180
//! ```
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
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube_api::node::RegisterFormat;
use placement::Device;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use vgpu_monitor::inventory::{RegisterSettings, register};
use vgpu_monitor::node_gpus::{Inventory, KnownGpu};
use vgpu_monitor::own_pods::OwnPods;

/// As often as the garbage collection asks.
const LOOK: Duration = Duration::from_secs(30);

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
    for number in 0..agents {
        objects(&client, number).await;
    }
    println!("{agents} nodes with two pods each are there");

    let before = counts(&client).await;
    let began = Instant::now();
    let mut all = Vec::new();
    for number in 0..agents {
        all.push(Agent::start(number).await);
    }
    for agent in &all {
        assert_eq!(agent.pods.all().await.unwrap().len(), 2);
    }
    println!(
        "all of them know their pods after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    // Annotations and Leases are written.
    sleep(Duration::from_secs(20)).await;
    let started = counts(&client).await;
    report("the start", &before, &started, began.elapsed());

    let mut before = started;
    for window in 1..=3 {
        let began = Instant::now();
        let (mut well, mut away) = (0_u64, 0_u64);
        while began.elapsed() < Duration::from_secs(seconds) / 3 {
            for agent in &all {
                match agent.pods.all().await {
                    Ok(pods) => {
                        assert_eq!(pods.len(), 2);
                        well += 1;
                    }
                    Err(_) => away += 1,
                }
            }
            sleep(LOOK.min(Duration::from_secs(seconds) / 3)).await;
        }
        println!("window {window}: {well} questions were answered, {away} were not");
        let after = counts(&client).await;
        report("the window", &before, &after, began.elapsed());
        before = after;
    }
}

struct Agent {
    pods: OwnPods,
    _inventory: watch::Sender<Option<Arc<Inventory>>>,
}

impl Agent {
    async fn start(number: u64) -> Self {
        // A connection of its own.
        let client = Client::try_default().await.unwrap();
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
        Self {
            pods,
            _inventory: inventory,
        }
    }
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

/// The API server's requests for pods and nodes so far, by verb and resource.
async fn counts(client: &Client) -> BTreeMap<String, f64> {
    let request = Request::get("/metrics").body(Vec::new()).unwrap();
    let text = client.request_text(request).await.unwrap();
    let mut counts = BTreeMap::new();
    let series = text
        .lines()
        .filter(|line| line.starts_with("apiserver_request_total{"));
    for line in series {
        let label = |name: &str| {
            let from = line.find(&format!("{name}=\""))? + name.len() + 2;
            line.get(from..)?.split('"').next()
        };
        let (Some(verb), Some(resource)) = (label("verb"), label("resource")) else {
            continue;
        };
        let value: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        if ["pods", "nodes", "leases"].contains(&resource) {
            *counts.entry(format!("{verb} {resource}")).or_default() += value;
        }
    }
    counts
}

fn report(
    what: &str,
    before: &BTreeMap<String, f64>,
    after: &BTreeMap<String, f64>,
    took: Duration,
) {
    println!(
        "{what} ({:.0} s), requests of all clients:",
        took.as_secs_f64()
    );
    for (key, value) in after {
        let more = value - before.get(key).copied().unwrap_or_default();
        // An API server that was restarted counts from the beginning.
        if more != 0.0 {
            println!("  {key}: {more}");
        }
    }
}
