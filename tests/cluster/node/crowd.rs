//! Many pods at once on one node, without a lock: by the device plugin, and by claims.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures_util::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::agent;
use crate::dra;
use crate::world::{World, devices, idle_container, is_ready, pod_of, share, uid, within};

const PODS: usize = 50;

/// Makes them at once, and waits until all run; prints how long that took.
async fn run_all(world: &World, manner: &str, pod: impl Fn(usize) -> Value) -> Vec<Pod> {
    let began = Instant::now();
    stream::iter(0..PODS)
        .for_each_concurrent(16, async |index| drop(world.make_pod(pod(index)).await))
        .await;
    let made = began.elapsed();
    let all = world
        .eventually("all of them run", async || {
            let all = world.pods().list(&ListParams::default()).await.ok()?.items;
            (all.len() == PODS && all.iter().all(is_ready)).then_some(all)
        })
        .await;
    println!(
        "{PODS} pods at once on one node, {manner}: made in {:.1} s, all run after {:.1} s",
        made.as_secs_f64(),
        began.elapsed().as_secs_f64()
    );
    all
}

#[test]
fn fifty_pods_at_once_run_on_one_node_each_with_its_own_share() {
    within(async |world| {
        let all = run_all(world, "by the device plugin", |index| {
            let container = idle_container("work", &share(1000 + index as u64));
            pod_of(&format!("crowd-{index}"), &[container])
        })
        .await;

        let mut promised: BTreeMap<String, u64> = BTreeMap::new();
        for pod in &all {
            let [(uuid, memory)] = &devices(pod)[..] else {
                panic!("{:?}", devices(pod));
            };
            *promised.entry(uuid.clone()).or_default() += memory;
        }
        for gpu in 0..world.board.gpus() {
            let total = world.board.total_bytes(gpu) >> 20;
            let promised = promised.get(&world.board.uuid(gpu)).copied();
            assert!(
                promised.unwrap_or_default() <= total,
                "GPU {gpu}: {promised:?} of {total} MiB"
            );
        }
        let given: BTreeSet<String> = agent::all_given()
            .into_iter()
            .map(|given| given.pod_uid)
            .collect();
        let pods: BTreeSet<String> = all.iter().map(|pod| uid(pod).to_owned()).collect();
        assert!(
            pods.is_subset(&given),
            "{} of {PODS} have a directory",
            given.len()
        );

        // The plain run of the tests has a minute less to wait.
        if world.minor < 36 {
            println!("left out: as many by claims, which `scripts/test newest` measures");
            return;
        }
        if !world.has_claims() {
            return;
        }
        world.empty().await;
        dra::by_claims(world).await;
        dra::make_template(world, "crowd", 1000);
        run_all(world, "by claims", |index| {
            let container = idle_container("work", &json!({}));
            let source = json!({"resourceClaimTemplateName": "crowd"});
            dra::claim_pod(&format!("claim-{index}"), container, source)
        })
        .await;
        dra::nothing_is_charged_twice(world, PODS).await;
        let (above, within) = dra::median_of_prepare(world).await;
        println!("half of the claims were made ready in {above} to {within} ms");
    });
}
