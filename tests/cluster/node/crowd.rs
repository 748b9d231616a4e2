//! Many pods at once on one node, without a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures_util::stream::{self, StreamExt};
use kube::api::ListParams;

use crate::agent;
use crate::world::{devices, idle_container, is_ready, pod_of, share, uid, within};

const PODS: usize = 50;

#[test]
fn fifty_pods_at_once_run_on_one_node_each_with_its_own_share() {
    within(async |world| {
        let began = Instant::now();
        stream::iter(0..PODS)
            .for_each_concurrent(16, async |index| {
                let pod = pod_of(
                    &format!("crowd-{index}"),
                    &[idle_container("work", &share(1000 + index as u64))],
                );
                drop(world.make_pod(pod).await);
            })
            .await;
        let made = began.elapsed();
        let all = world
            .eventually("all of them run", async || {
                let all = world.pods().list(&ListParams::default()).await.ok()?.items;
                (all.len() == PODS && all.iter().all(is_ready)).then_some(all)
            })
            .await;
        println!(
            "{PODS} pods at once on one node: made in {:.1} s, all run after {:.1} s",
            made.as_secs_f64(),
            began.elapsed().as_secs_f64()
        );

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
    });
}
