//! Pods placed by kube-scheduler through filter and bind.

use std::collections::BTreeSet;

use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::objects::{
    ALLOCATED, Gpus, annotation, devices, gpu_with, memory_by_device, name, node, pod, uuids, whole,
};
use crate::programs::Pair;
use crate::world::within;

#[test]
fn a_pod_is_bound_with_its_devices_in_its_annotations() {
    within(async |world| {
        world.make_nodes(["a", "b"], &Gpus::default()).await;
        let _pair = Pair::start(world).await;

        world
            .make_pod(pod(
                "p",
                json!({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}),
            ))
            .await;

        let placed = world.until_placed("p").await;
        assert_eq!(annotation(&placed, "hami.io/vgpu-node"), node(&placed));
        let given = devices(&placed);
        assert_eq!(
            given.iter().map(|(_, memory)| *memory).collect::<Vec<_>>(),
            [3000, 3000]
        );
        let text = annotation(&placed, ALLOCATED).unwrap();
        assert_eq!(
            text,
            format!(
                "{},NVIDIA,3000,30:{},NVIDIA,3000,30:;",
                given[0].0, given[1].0
            )
        );
    });
}

#[test]
fn gpus_of_another_vendor_are_given_out_the_same_way() {
    within(async |world| {
        world.make_nodes(["a", "b"], &Gpus::default()).await;
        let register = "DCU-b-0,4,65536,100,DCU-BW,0,true:";
        let report = json!({"metadata": {"annotations": {"hami.io/node-dcu-register": register}}});
        let nodes = world.nodes();
        nodes
            .patch("b", &PatchParams::default(), &Patch::Merge(report))
            .await
            .unwrap();
        let _pair = Pair::start(world).await;

        // kube-scheduler knows of no node that has any of these.
        let limits =
            json!({"hygon.com/dcunum": 1, "hygon.com/dcumem": 2000, "hygon.com/dcucores": 20});
        world.make_pod(pod("p", limits)).await;

        let placed = world.until_placed("p").await;
        assert_eq!(node(&placed), Some("b"));
        assert_eq!(
            annotation(&placed, "hami.io/dcu-devices-allocated"),
            Some("DCU-b-0,DCU,2000,20:;")
        );
    });
}

#[test]
fn a_pod_without_gpus_is_placed_beside_those_with() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let _pair = Pair::start(world).await;

        world.make_pod(pod("plain", json!({"cpu": 1}))).await;

        let placed = world.until_placed("plain").await;
        assert_eq!(annotation(&placed, ALLOCATED), None);
    });
}

#[test]
fn the_only_free_node_of_three_hundred_is_found() {
    within(async |world| {
        let small = Gpus {
            memory_mib: 8000,
            ..Gpus::default()
        };
        world
            .make_nodes((0..299).map(|index| format!("full-{index}")), &small)
            .await;
        world.make_nodes(["free"], &Gpus::default()).await;
        let _pair = Pair::start(world).await;

        for index in 0..4 {
            world
                .make_pod(pod(&format!("p{index}"), gpu_with(20_000)))
                .await;
        }

        for index in 0..4 {
            let placed = world.until_placed(&format!("p{index}")).await;
            assert_eq!(node(&placed), Some("free"));
        }
    });
}

#[test]
fn forty_pods_for_eight_gpus_get_eight() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let _pair = Pair::start(world).await;

        world
            .make_pods(
                (0..40)
                    .map(|index| pod(&format!("p{index}"), whole(1)))
                    .collect(),
            )
            .await;

        let refused = async || {
            let mut refused = BTreeSet::new();
            for pod in world.all_pods().await {
                if world.refusal(name(&pod)).await.is_some() {
                    refused.insert(name(&pod).to_owned());
                }
            }
            refused
        };
        world
            .eventually("32 are refused", async || {
                (refused().await.len() == 32).then_some(())
            })
            .await;
        let placed = world.placed().await;
        assert_eq!(placed.len(), 8);
        assert_eq!(uuids(&placed).len(), 8, "no GPU was given twice");
        assert!(
            memory_by_device(&placed)
                .values()
                .all(|memory| *memory == 81559)
        );
    });
}

#[test]
fn a_pod_that_fits_nowhere_tells_its_owner_why() {
    within(async |world| {
        world
            .make_nodes(
                ["a", "b"],
                &Gpus {
                    memory_mib: 16000,
                    ..Gpus::default()
                },
            )
            .await;
        let _pair = Pair::start(world).await;

        world.make_pod(pod("p", gpu_with(20_000))).await;

        let said = world.until_refused("p").await;
        assert!(said.contains("CardInsufficientMemory"), "{said}");
        world
            .eventually("our own event names the nodes and the reason", async || {
                let events = world.events_of("p").await;
                events
                    .iter()
                    .any(|event| event.contains("CardInsufficientMemory") && event.contains("a,b"))
                    .then_some(())
            })
            .await;
    });
}
