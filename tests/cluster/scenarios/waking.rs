//! Pending pods, and the events that end their waiting. kube-scheduler tries a refused pod again when something changes
//! that it knows of, else after five minutes: without a notice, each of these tests would time out.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::http;
use crate::objects::{Gpus, from, gpu_with, node, pod, whole};
use crate::programs::{ONE, Pair, Tuning};
use crate::world::within;

fn one_gpu() -> Gpus {
    Gpus {
        count: 1,
        ..Gpus::default()
    }
}

#[test]
fn a_pod_takes_the_place_of_one_that_leaves() {
    within(async |world| {
        world.make_nodes(["a"], &one_gpu()).await;
        let _pair = Pair::start(world).await;
        world.make_pod(pod("p0", whole(1))).await;
        world.until_placed("p0").await;

        // Many times: kube-scheduler may ask before the extender has heard of the leaving, and not again.
        for round in 1..=12 {
            let next = format!("p{round}");
            world.make_pod(pod(&next, whole(1))).await;
            world.until_refused(&next).await;

            world.remove_pod(&format!("p{}", round - 1)).await;

            world.until_placed(&next).await;
        }
    });
}

#[test]
fn a_pod_that_has_finished_makes_room_for_the_next() {
    within(async |world| {
        world.make_nodes(["a"], &one_gpu()).await;
        let _pair = Pair::start(world).await;
        let jobs: Api<Job> = Api::default_namespaced(world.client.clone());
        let mut template = pod("ignored", whole(1));
        template["spec"]["restartPolicy"] = json!("Never");
        let job = json!({"metadata": {"name": "four"}, "spec": {"parallelism": 4, "completions": 4,
            "template": {"spec": template["spec"]}}});

        jobs.create(&PostParams::default(), &from(job))
            .await
            .unwrap();

        world
            .eventually("all four have finished", async || {
                let status = jobs.get("four").await.unwrap().status?;
                (status.succeeded == Some(4)).then_some(())
            })
            .await;
        jobs.delete("four", &DeleteParams::background())
            .await
            .unwrap();
    });
}

#[test]
fn pods_created_before_the_nodes_are_placed_when_nodes_appear() {
    within(async |world| {
        let _pair = Pair::start(world).await;
        for index in 0..6 {
            world.make_pod(pod(&format!("p{index}"), whole(1))).await;
            world.until_refused(&format!("p{index}")).await;
        }

        for index in 0..6 {
            world.make_nodes([format!("n{index}")], &one_gpu()).await;
            world
                .eventually("one more has a node", async || {
                    (world.placed().await.len() == index + 1).then_some(())
                })
                .await;
        }
    });
}

#[test]
fn a_node_whose_agent_comes_late_takes_pods_then() {
    within(async |world| {
        world.make_nodes(["a"], &one_gpu()).await;
        let nodes = world.nodes();
        let register = |value: serde_json::Value| {
            Patch::Merge(
                json!({"metadata": {"annotations": {"hami.io/node-nvidia-register": value}}}),
            )
        };
        nodes
            .patch("a", &PatchParams::default(), &register(json!(null)))
            .await
            .unwrap();
        let _pair = Pair::start(world).await;
        world.make_pod(pod("p", whole(1))).await;
        world.until_refused("p").await;

        nodes
            .patch(
                "a",
                &PatchParams::default(),
                &register(json!(one_gpu().register("a"))),
            )
            .await
            .unwrap();

        world.until_placed("p").await;
    });
}

/// The kubelet's number of the node's slots.
fn slots(count: usize) -> Patch<serde_json::Value> {
    let amount = json!({"nvidia.com/gpu": count.to_string()});
    Patch::Merge(json!({"status": {"capacity": amount, "allocatable": amount}}))
}

#[test]
fn pods_refused_during_a_plugin_update_are_placed_afterwards() {
    within(async |world| {
        world.make_nodes(["a"], &one_gpu()).await;
        let nodes = world.nodes();
        let params = PatchParams::default();
        let _pair = Pair::start(world).await;
        // Each round as an upgrade of the agent: kube-scheduler itself refuses the pods, and does not call the extender.
        for round in 0..4 {
            nodes.patch_status("a", &params, &slots(0)).await.unwrap();
            let names = [format!("p{round}"), format!("q{round}")];
            for name in &names {
                world.make_pod(pod(name, gpu_with(1000))).await;
                // A scheduler that has not heard of the update yet tries the pod: the extender refuses to bind it, and
                // kube-scheduler tries it again.
                world
                    .until_refused_for(name, "Insufficient nvidia.com/gpu")
                    .await;
            }

            nodes.patch_status("a", &params, &slots(10)).await.unwrap();

            for name in &names {
                world.until_placed(name).await;
            }
        }
    });
}

#[test]
fn a_pod_that_no_node_could_take_is_placed_on_one_that_comes() {
    within(async |world| {
        world.make_nodes(["full"], &one_gpu()).await;
        let nodes = world.nodes();
        let params = PatchParams::default();
        nodes
            .patch_status("full", &params, &slots(0))
            .await
            .unwrap();
        let _pair = Pair::start(world).await;
        world.make_pod(pod("p", gpu_with(1000))).await;
        world
            .until_refused_for("p", "Insufficient nvidia.com/gpu")
            .await;

        world.make_nodes(["new"], &one_gpu()).await;

        let placed = world.until_placed("p").await;
        assert_eq!(node(&placed), Some("new"));
    });
}

#[test]
fn an_unused_reservation_ends_and_the_waiting_pod_is_told() {
    within(async |world| {
        world.make_nodes(["a"], &one_gpu()).await;
        let _pair = Pair::start_with(world, &["--reservation-timeout=8s"], Tuning::default()).await;
        // Asked for as kube-scheduler asks, and never bound.
        let mut forgotten = pod("forgotten", whole(1));
        forgotten["spec"]["schedulerName"] = json!("no-scheduler");
        let forgotten = world.make_pod(forgotten).await;
        let (status, answer) = http::ask(
            ONE.extender,
            "POST",
            "/filter",
            Some(&json!({"Pod": forgotten, "NodeNames": ["a"]})),
        )
        .await
        .unwrap();
        assert_eq!(
            (status, answer.contains(r#""NodeNames":["a"]"#)),
            (200, true),
            "{answer}"
        );
        world.make_pod(pod("waiting", whole(1))).await;
        world.until_refused("waiting").await;

        // No pod and no node changes now.
        let waiting = world.until_placed("waiting").await;

        assert_eq!(node(&waiting), Some("a"));
    });
}

#[test]
fn a_pod_held_back_by_a_quota_is_placed_when_the_quota_grows() {
    within(async |world| {
        world.make_nodes(["a"], &one_gpu()).await;
        let quotas: Api<ResourceQuota> = Api::default_namespaced(world.client.clone());
        let hard = |mib: u32| json!({"metadata": {"name": "memory"}, "spec": {"hard": {"limits.nvidia.com/gpumem": mib.to_string()}}});
        quotas
            .create(&PostParams::default(), &from(hard(5000)))
            .await
            .unwrap();
        let _pair = Pair::start(world).await;
        world.make_pod(pod("within", gpu_with(4000))).await;
        world.until_placed("within").await;
        world.make_pod(pod("beyond", gpu_with(4000))).await;
        world.until_refused("beyond").await;

        quotas
            .patch("memory", &PatchParams::default(), &Patch::Merge(hard(8000)))
            .await
            .unwrap();

        world.until_placed("beyond").await;
    });
}

#[test]
fn a_quota_for_a_priority_class_holds_back_no_other_pod() {
    within(async |world| {
        world.make_priorities().await;
        world.make_nodes(["a"], &one_gpu()).await;
        let quotas: Api<ResourceQuota> = Api::default_namespaced(world.client.clone());
        let low = json!({"metadata": {"name": "low"}, "spec": {
            "hard": {"limits.nvidia.com/gpumem": "5000"},
            "scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}]}}});
        quotas
            .create(&PostParams::default(), &from(low))
            .await
            .unwrap();
        let _pair = Pair::start(world).await;
        let of_class = |name: &str, class: &str, mib: u64| {
            let mut pod = pod(name, gpu_with(mib));
            pod["spec"]["priorityClassName"] = json!(class);
            pod
        };

        world.make_pod(of_class("high", "high", 6000)).await;
        world.until_placed("high").await;
        // The pod of the other class does not count, either.
        world.make_pod(of_class("within", "low", 4000)).await;
        world.until_placed("within").await;
        world.make_pod(of_class("beyond", "low", 2000)).await;
        world.until_refused("beyond").await;
        world.make_pod(pod("classless", gpu_with(2000))).await;
        world.until_placed("classless").await;
    });
}
