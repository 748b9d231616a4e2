//! How fast and how large a cluster is: `load [NODES] [PODS] [PATCHES]`. Prints times, rates and resident memory.

use std::time::Instant;

use embedded_cluster::{Cluster, ListOptions, Patch, Selector, Start, Target, Write};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .map(|text| text.parse())
        .collect::<std::result::Result<_, _>>()?;
    let number = |at: usize, default| numbers.get(at).copied().unwrap_or(default);
    let (nodes, pods, patches) = (number(0, 5_000), number(1, 50_000), number(2, 100_000));
    let cluster = Cluster::default();
    say("empty", 0, Instant::now());

    let started = Instant::now();
    let state = json!({ "nodes": (0..nodes).map(node).collect::<Vec<_>>() });
    cluster.import(&state)?;
    drop(state);
    say("nodes imported", nodes, started);

    let (resource, write) = (cluster.resource("", "pods")?, Write::default());
    let all = Target::collection(&resource, "default");
    let mut watch = cluster.watch(&all, Selector::default(), Start::Now)?;
    let started = Instant::now();
    for at in 0..pods {
        cluster.create(&all, pod(at, nodes), &write).await?;
        while watch.try_next()?.is_some() {}
    }
    say("pods created, one watch", pods, started);

    let started = Instant::now();
    for at in 0..patches {
        let patch = Patch::Merge(
            json!({ "metadata": { "annotations": { "hami.io/vgpu-time": at.to_string() } } }),
        );
        cluster
            .patch(
                &Target::object(&resource, "default", &format!("pod-{}", at % pods.max(1))),
                &patch,
                &write,
            )
            .await?;
        while watch.try_next()?.is_some() {}
    }
    say("merge patches, one watch", patches, started);

    let started = Instant::now();
    let listed = cluster.list(&all, &ListOptions::default())?;
    say("pods listed", listed.items.len(), started);
    let started = Instant::now();
    let selector = Selector::parse("", "spec.nodeName=node-1")?;
    let listed = cluster.list(
        &all,
        &ListOptions {
            selector,
            ..ListOptions::default()
        },
    )?;
    say("pods of one node listed", listed.items.len(), started);
    Ok(())
}

#[allow(clippy::print_stdout, reason = "it prints what it measured")]
fn say(what: &str, count: usize, started: Instant) {
    let elapsed = started.elapsed();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap_or_default()
        .trim();
    let each = elapsed.as_nanos() / u128::try_from(count.max(1)).unwrap_or(1);
    println!("{what}: {count} in {elapsed:.1?}, {each} ns each, {resident} resident");
}

fn node(at: usize) -> Value {
    let devices: String = (0..8).map(|gpu| format!("GPU-{at:08x}-0000-0000-0000-00000000000{gpu},10,81559,100,NVIDIA H100 80GB HBM3,0,true:")).collect();
    json!({
        "metadata": {
            "name": format!("node-{at}"),
            "labels": { "gpu": "on", "kubernetes.io/hostname": format!("node-{at}") },
            "annotations": { "hami.io/node-nvidia-register": devices },
        },
        "status": {
            "allocatable": { "cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "80", "pods": "110" },
            "capacity": { "cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "80", "pods": "110" },
            "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }],
        },
    })
}

fn pod(at: usize, nodes: usize) -> Value {
    let node = format!("node-{}", at % nodes.max(1));
    json!({
        "metadata": {
            "name": format!("pod-{at}"),
            "labels": { "app": "train", "hami.io/vgpu-node": node },
            "annotations": { "hami.io/vgpu-node": node, "hami.io/vgpu-devices-to-allocate": "GPU-00000000-0000-0000-0000-000000000000,NVIDIA,3000,30:;" },
        },
        "spec": {
            "nodeName": node,
            "containers": [{
                "name": "main", "image": "registry.example/train:1",
                "resources": { "limits": { "cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000" } },
                "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
            }],
        },
    })
}
