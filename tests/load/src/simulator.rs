//! Many pods on many nodes at once: the simulator with all that it writes, and a real kube-scheduler on the same objects.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::http::Connection;
use crate::process::Scheduler;
use crate::world;

/// Pods without a node.
const PENDING: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3D";
/// A process that has not computed for so long is done.
const IDLE: Duration = Duration::from_secs(15);
/// The interval between two looks at it.
const OFTEN: Duration = Duration::from_millis(250);
/// No run takes longer.
const PATIENCE: Duration = Duration::from_secs(1800);

/// The cost of a run.
struct Run {
    placed: usize,
    wall: Duration,
    computed: Duration,
    peak_bytes: u64,
}

/// Prints a row for the simulator with and without shared GPUs and, if there is one, for kube-scheduler.
pub(crate) async fn run(
    program: &Path,
    kube: Option<&Path>,
    nodes: usize,
    pods: usize,
) -> Result<()> {
    println!(
        "| nodes | pods | what | placed | processor s | of that before the first pod | wall s | peak MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (what, shares) in [
        ("the simulator, shared GPUs", true),
        ("the simulator, default plugins", false),
    ] {
        let objects = world::mixed(nodes, pods, shares);
        let began = Instant::now();
        let simulator = Scheduler::simulator(program, &objects, &configuration(shares))?;
        simulator.answers("/api/v1/namespaces/default").await?;
        let before = simulator.computed()?;
        let run = until_placed(&simulator, &simulator, pods, began).await?;
        row(nodes, pods, what, &run, before);
    }
    if let Some(kube) = kube {
        let objects = world::mixed(nodes, pods, false);
        let absent = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{"schedulerName": "absent"}],
        });
        let api = Scheduler::simulator(program, &objects, &absent)?;
        api.answers("/api/v1/namespaces/default").await?;
        define_claims(&api).await?;
        let (began, served) = (Instant::now(), api.computed()?);
        let scheduler = Scheduler::kube(kube, &api)?;
        let run = until_placed(&scheduler, &api, pods, began).await;
        let run = run.with_context(|| format!("kube-scheduler said: {}", scheduler.said()))?;
        row(
            nodes,
            pods,
            "kube-scheduler, default plugins",
            &run,
            Duration::ZERO,
        );
        let served = api.computed()?.saturating_sub(served);
        println!(
            "\nThe API server beside it computed {:.1} s.",
            served.as_secs_f64()
        );
    }
    Ok(())
}

fn row(nodes: usize, pods: usize, what: &str, run: &Run, before: Duration) {
    println!(
        "| {nodes} | {pods} | {what} | {} | {:.1} | {:.1} | {:.1} | {} |",
        run.placed,
        run.computed.as_secs_f64(),
        before.as_secs_f64(),
        run.wall.as_secs_f64(),
        run.peak_bytes >> 20,
    );
}

fn configuration(shares: bool) -> Value {
    let enabled = if shares {
        json!([{"name": "GpuFit"}, {"name": "GpuScore", "weight": 2}])
    } else {
        json!([])
    };
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": {"multiPoint": {"enabled": enabled}}}],
    })
}

/// Waits until no pod is without a node, or the process has nothing to do any more.
async fn until_placed(
    measured: &Scheduler,
    api: &Scheduler,
    pods: usize,
    began: Instant,
) -> Result<Run> {
    let mut connection = Connection::open(api.port).await?;
    let mut last = (Instant::now(), measured.computed()?);
    loop {
        tokio::time::sleep(OFTEN).await;
        let (now, computed) = (Instant::now(), measured.computed()?);
        let first = pending(&mut connection, "&limit=1").await?;
        // A process that only checks for work uses a few ticks.
        if computed > last.1 + Duration::from_millis(20) {
            last = (now, computed);
        }
        if first > 0 && now - last.0 < IDLE {
            anyhow::ensure!(began.elapsed() < PATIENCE, "not done within half an hour");
            continue;
        }
        let left = if first > 0 {
            pending(&mut connection, "").await?
        } else {
            0
        };
        let (end, computed) = if first > 0 { last } else { (now, computed) };
        return Ok(Run {
            placed: pods.saturating_sub(left),
            wall: end - began,
            computed,
            peak_bytes: measured.memory()?.peak_bytes,
        });
    }
}

async fn pending(connection: &mut Connection, limit: &str) -> Result<usize> {
    let (status, body) = connection.get(&format!("{PENDING}{limit}")).await?;
    anyhow::ensure!(status == 200, "GET {PENDING}: {status}");
    let list: Value = serde_json::from_slice(&body)?;
    let items = list.get("items").and_then(Value::as_array);
    Ok(items.map_or(0, Vec::len))
}

/// The kinds of dynamic resource allocation, which kube-scheduler waits for and the cluster in memory does not have.
async fn define_claims(api: &Scheduler) -> Result<()> {
    let mut connection = Connection::open(api.port).await?;
    for (kind, plural, scope) in [
        ("DeviceClass", "deviceclasses", "Cluster"),
        ("ResourceSlice", "resourceslices", "Cluster"),
        ("ResourceClaim", "resourceclaims", "Namespaced"),
    ] {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.resource.k8s.io")},
            "spec": {
                "group": "resource.k8s.io",
                "scope": scope,
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }],
            },
        });
        let body = serde_json::to_vec(&definition)?.into();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let (status, answer) = connection.post(path, body).await?;
        let said = String::from_utf8_lossy(&answer);
        anyhow::ensure!(status == 201, "POST {path}: {status} {said}");
    }
    Ok(())
}
