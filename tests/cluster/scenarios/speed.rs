//! How many pods a second, measured and printed: nothing here fails by the clock.

use std::collections::BTreeMap;
use std::time::Instant;

use futures_util::TryStreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;

use crate::objects::{Gpus, memory_by_device, name, node, pod};
use crate::programs::{ONE, Tuning, start_extender, start_kube_scheduler};
use crate::world::{World, within};

/// Bound pods per second once it runs: all pods wait before kube-scheduler starts.
async fn measure(world: &World, policy: &str, pods: usize) {
    world
        .make_nodes((0..100).map(|index| format!("n{index}")), &Gpus::default())
        .await;
    let asked = json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 7000, "nvidia.com/gpucores": 10});
    world
        .make_pods(
            (0..pods)
                .map(|index| pod(&format!("p{index}"), asked.clone()))
                .collect(),
        )
        .await;
    let extender = start_extender(world, ONE, &[&format!("--node-scheduler-policy={policy}")]);
    world
        .eventually("the extender listens", async || {
            crate::http::status(ONE.extender, "/healthz").await
        })
        .await;
    let mut seen: BTreeMap<String, Instant> = BTreeMap::new();
    let mut changes = std::pin::pin!(
        watcher(world.pods(), watcher::Config::default())
            .default_backoff()
            .applied_objects()
    );

    let kube_scheduler = start_kube_scheduler(world, ONE, Tuning::default());
    while seen.len() < pods {
        let pod = changes.try_next().await.unwrap().unwrap();
        if node(&pod).is_some() {
            seen.entry(name(&pod).to_owned())
                .or_insert_with(Instant::now);
        }
    }

    let first = seen.values().min().unwrap();
    let last = seen.values().max().unwrap();
    let seconds = (*last - *first).as_secs_f64();
    println!(
        "measured: {pods} pods bound on 100 nodes x 8 GPUs, {policy}: {:.0} a second",
        (pods - 1) as f64 / seconds
    );
    let placed = world.placed().await;
    assert!(
        memory_by_device(&placed)
            .values()
            .all(|memory| *memory <= 81559)
    );
    drop((extender, kube_scheduler));
}

#[test]
fn pods_bound_per_second_when_packing() {
    within(async |world| measure(world, "binpack", 1000).await);
}

#[test]
fn pods_bound_per_second_when_spreading() {
    within(async |world| measure(world, "spread", 1000).await);
}
