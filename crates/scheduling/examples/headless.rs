//! Places many pods on many nodes as fast as it can, and prints the time and the memory that it took: `cargo run
//! --release -p scheduling --example headless -- 5000 10000 0`. The arguments are the number of nodes, the number of
//! pods, and `percentageOfNodesToScore` (0 derives it from the number of nodes, as kube-scheduler does by default).
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a program that a developer runs by hand"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use kube_api::config::DeviceConfig;
use kube_api::request::Defaults;
use kube_api::vendor::{Switches, Vendors};
use scheduling::config::Configuration;
use scheduling::cycle::Options;
use scheduling::devices::Devices;
use scheduling::model::Pod;
use scheduling::profile::Framework;
use scheduling::snapshot::Snapshot;
use serde_json::{Value, json};

/// One node in five has eight GPUs.
fn node(at: usize) -> Value {
    let mut node = json!({
        "metadata": {
            "name": format!("node-{at:05}"),
            "labels": {
                "kubernetes.io/hostname": format!("node-{at:05}"),
                "topology.kubernetes.io/zone": format!("zone-{}", at % 12),
                "disk": if at.is_multiple_of(3) { "ssd" } else { "hdd" },
            },
        },
        "spec": {},
        "status": {"allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"}},
    });
    if at.is_multiple_of(5) {
        let devices: Vec<String> = (0..8)
            .map(|device| {
                format!(
                    "GPU-{at}-{device},10,81920,100,NVIDIA-A100,{},true:",
                    device / 4
                )
            })
            .collect();
        node["metadata"]["annotations"] = json!({"hami.io/node-nvidia-register": devices.concat()});
        node["status"]["allocatable"]["nvidia.com/gpu"] = json!("80");
    }
    node
}

/// One pod in ten has affinity, one in five asks for a share of a GPU.
fn pod(at: usize) -> Value {
    let app = format!("app-{}", at % 200);
    let mut requests = json!({"cpu": format!("{}m", 100 + at % 7 * 100), "memory": "512Mi"});
    if at % 5 == 1 {
        requests["nvidia.com/gpu"] = json!("1");
        requests["nvidia.com/gpumem"] = json!("8000");
    }
    let mut pod = json!({
        "metadata": {"name": format!("pod-{at:05}"), "labels": {"app": app}},
        "spec": {"containers": [{
            "name": "main",
            "image": "registry.example/app:1",
            "resources": {"limits": requests.clone(), "requests": requests},
        }]},
    });
    let selector = json!({"matchLabels": {"app": app}});
    match at % 30 {
        0 => {
            pod["spec"]["affinity"] = json!({"podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution":
                    [{"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}],
            }});
        }
        10 => {
            pod["spec"]["affinity"] = json!({"podAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm":
                    {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": selector}}],
            }});
        }
        20 => {
            pod["spec"]["topologySpreadConstraints"] = json!([{
                "maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector,
            }]);
            pod["spec"]["affinity"] = json!({"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
                    [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]},
            }});
        }
        _ => {}
    }
    pod
}

fn memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    peak.unwrap_or_default() / 1024
}

fn main() {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .map(|text| text.parse().unwrap())
        .collect();
    let of = |at: usize, default: usize| numbers.get(at).copied().unwrap_or(default);
    let (nodes, pods, percentage) = (of(0, 5_000), of(1, 10_000), of(2, 0));
    let vendors = Vendors::new(
        DeviceConfig::standard(),
        Switches {
            ascend: false,
            iluvatar: false,
        },
    )
    .unwrap();
    let devices = Devices::new(Arc::new(vendors), Defaults::default());
    let mut snapshot = Snapshot::with_devices(devices);
    let configuration = Configuration::read(&json!({
        "percentageOfNodesToScore": percentage,
        "profiles": [{"plugins": {"multiPoint": {"enabled":
            [{"name": "GpuFit"}, {"name": "GpuScore", "weight": 2}]}}}],
    }))
    .unwrap();
    let framework = Framework::all(&configuration, snapshot.names_mut()).remove(0);

    let began = Instant::now();
    for at in 0..nodes {
        let node = snapshot.read_node(&node(at)).unwrap();
        snapshot.set_node(node);
    }
    let waiting: Vec<Arc<Pod>> = (0..pods)
        .map(|at| Arc::new(snapshot.read_pod(&pod(at)).unwrap()))
        .collect();
    println!(
        "{nodes} nodes and {pods} pods read in {:.2?}",
        began.elapsed()
    );

    let began = Instant::now();
    let mut start = 0;
    let (mut placed, mut shares, mut looked) = (0, 0, 0);
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for pod in waiting {
        let options = Options {
            start,
            record: false,
        };
        let outcome = framework.schedule(&snapshot, &pod, options);
        start = outcome.next_start;
        match outcome.result {
            Ok(found) => {
                placed += 1;
                looked += found.evaluated;
                if let Some(placement) = found.devices {
                    shares += 1;
                    snapshot.devices_mut().reserve(&pod, placement);
                }
                snapshot.assign(pod, &found.node);
            }
            Err(failed) => *reasons.entry(failed.message).or_default() += 1,
        }
    }
    println!(
        "{placed} placed ({shares} with shares of devices) in {:.2?}, {looked} nodes looked at, {} MiB at most",
        began.elapsed(),
        memory_mib()
    );
    for (reason, count) in reasons {
        println!("{count} pods: {reason}");
    }
}
