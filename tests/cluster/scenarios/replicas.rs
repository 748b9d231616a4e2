//! Two replicas, each an extender with its own kube-scheduler; a Lease decides which of the two works.

use nix::sys::signal::Signal;
use serde_json::json;

use crate::http;
use crate::objects::{Gpus, pod, uuids, whole};
use crate::programs::{ONE, Pair, TWO, Tuning};
use crate::world::within;

const QUICK: Tuning = Tuning {
    volume_seconds: None,
    quick_lease: true,
    hcs: false,
};

#[test]
fn the_other_replica_takes_over_with_all_that_was_given_out() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let mut first = Pair::start_with(world, &[], QUICK).await;
        let mut second = Pair::start_at(world, TWO, &[], QUICK);
        world
            .make_pods(
                (0..4)
                    .map(|index| pod(&format!("p{index}"), whole(1)))
                    .collect(),
            )
            .await;
        for index in 0..4 {
            world.until_placed(&format!("p{index}")).await;
        }
        let asked = json!({"Pod": pod("stray", whole(1)), "NodeNames": ["a"]});
        let (status, answer) = world
            .eventually("the second replica listens", async || {
                http::ask(TWO.extender, "POST", "/filter", Some(&asked)).await
            })
            .await;
        assert_eq!(status, 503, "{answer}");
        assert!(answer.contains("Error"), "{answer}");

        first.kube_scheduler.kill();
        first.extender.kill();
        world
            .make_pods(
                (4..12)
                    .map(|index| pod(&format!("p{index}"), whole(1)))
                    .collect(),
            )
            .await;

        second.answers(world).await;
        world
            .eventually("eight are placed", async || {
                (world.placed().await.len() >= 8).then_some(())
            })
            .await;
        world
            .eventually("four are refused", async || {
                let mut refused = 0;
                for index in 4..12 {
                    refused += usize::from(world.refusal(&format!("p{index}")).await.is_some());
                }
                (refused == 4).then_some(())
            })
            .await;
        let placed = world.placed().await;
        assert_eq!((placed.len(), uuids(&placed).len()), (8, 8));
    });
}

#[test]
fn a_replica_that_slept_through_its_lease_answers_no_more() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let first = Pair::start_with(world, &[], QUICK).await;
        let mut second = Pair::start_at(world, TWO, &[], QUICK);

        first.kube_scheduler.signal(Signal::SIGSTOP);
        first.extender.signal(Signal::SIGSTOP);
        second.answers(world).await;
        first.extender.signal(Signal::SIGCONT);

        let asked = json!({"Pod": pod("stray", whole(1)), "NodeNames": ["a"]});
        let (status, answer) = http::ask(ONE.extender, "POST", "/filter", Some(&asked))
            .await
            .unwrap();
        assert_eq!(status, 503, "{answer}");
        world.make_pod(pod("p", whole(1))).await;
        world.until_placed("p").await;
    });
}

#[test]
fn a_kube_scheduler_that_restarts_finds_its_extender_answering() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let mut pair = Pair::start_with(world, &[], QUICK).await;
        world.make_pod(pod("before", whole(1))).await;
        world.until_placed("before").await;

        pair.kube_scheduler.terminate();
        pair.kube_scheduler = crate::programs::start_kube_scheduler(world, ONE, QUICK);
        world.make_pod(pod("after", whole(1))).await;

        world.until_placed("after").await;
    });
}

#[test]
fn pods_wait_without_the_extender_and_are_placed_after() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let mut pair = Pair::start(world).await;
        pair.extender.kill();
        world
            .make_pods(
                (0..3)
                    .map(|index| pod(&format!("p{index}"), whole(1)))
                    .collect(),
            )
            .await;
        world.until_refused("p0").await;

        pair.extender = crate::programs::start_extender(world, ONE, &[]);

        for index in 0..3 {
            world.until_placed(&format!("p{index}")).await;
        }
    });
}
