//! How many pods a second, measured and printed: nothing here fails by the clock.

use std::collections::BTreeMap;
use std::time::Instant;

use futures_util::TryStreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;

use crate::http;
use crate::objects::{Gpus, gpu_with, memory_by_device, name, node, pod};
use crate::programs::{Handover, ONE, Tuning, start_extender, start_kube_scheduler};
use crate::world::{SYSTEM, World, within};

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
            http::status(ONE.extender, "/healthz").await
        })
        .await;
    let mut seen: BTreeMap<String, Instant> = BTreeMap::new();
    let mut changes = std::pin::pin!(
        watcher(world.pods(), watcher::Config::default())
            .default_backoff()
            .applied_objects()
    );

    let tuning = Tuning {
        lease: Handover::Never,
        ..Tuning::default()
    };
    let kube_scheduler = start_kube_scheduler(world, ONE, tuning);
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
fn packing_a_thousand_pods_overfills_no_gpu() {
    within(async |world| measure(world, "binpack", 1000).await);
}

#[test]
fn spreading_a_thousand_pods_overfills_no_gpu() {
    within(async |world| measure(world, "spread", 1000).await);
}

/// Tests run in the order of their names, and by its name this one is the last on its cluster: no test has to wait until five
/// thousand nodes are removed.
#[test]
fn start_with_five_thousand_nodes_is_measured_to_its_first_fit() {
    within(async |world| {
        let names: Vec<String> = (0..5000).map(|index| format!("n{index}")).collect();
        world.make_nodes(&names, &Gpus::default()).await;
        let kube_scheduler = start_kube_scheduler(world, ONE, Tuning::default());
        let leases: Api<Lease> = Api::namespaced(world.client.clone(), SYSTEM);
        world
            .eventually("kube-scheduler leads", async || {
                leases
                    .get_opt("hami-scheduler")
                    .await
                    .unwrap()?
                    .spec?
                    .holder_identity
            })
            .await;
        let mut asking = pod("first", gpu_with(1000));
        asking["spec"]["schedulerName"] = json!("no-scheduler");
        let asking = world.make_pod(asking).await;
        let question = json!({"Pod": asking, "NodeNames": names});

        let began = Instant::now();
        let extender = start_extender(world, ONE, &[]);
        let answer = world
            .eventually("the first pod has a node", async || {
                match http::ask(ONE.extender, "POST", "/filter", Some(&question)).await {
                    Some((200, answer)) => Some(answer),
                    _ => None,
                }
            })
            .await;

        println!(
            "measured: first fit after a start with 5000 nodes x 8 GPUs: {:.2} s; {} at its peak",
            began.elapsed().as_secs_f64(),
            extender.peak_memory()
        );
        assert!(answer.contains(r#""NodeNames":["n"#), "{answer:.300}");
        drop(kube_scheduler);
    });
}
