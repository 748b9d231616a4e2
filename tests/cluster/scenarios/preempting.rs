//! Preemption: kube-scheduler proposes victims, and the extender says which evictions help. kube-scheduler counts
//! slots and knows nothing of memory, so its own proposals are often wrong.

use std::time::Duration;

use kube::api::PostParams;
use serde_json::{Value, json};

use crate::hcs;
use crate::objects::{Gpus, from, name, node, pod, uuids, whole};
use crate::programs::{Pair, Tuning};
use crate::world::{World, within};

/// Two GPUs of 16 GiB that two pods each may share: four slots, all of which these tests fill.
fn two_gpus() -> Gpus {
    Gpus {
        count: 2,
        memory_mib: 16384,
        slots: 2,
        ..Gpus::default()
    }
}

/// A pod of this priority with half of this GPU of node `a`.
fn half(name: &str, gpu: usize, priority: &str) -> Value {
    let mut pod = pod(
        name,
        json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000}),
    );
    pod["metadata"]["annotations"] = json!({"nvidia.com/use-gpuuuid": format!("GPU-a-{gpu}")});
    pod["spec"]["priorityClassName"] = json!(priority);
    pod
}

async fn fill(world: &World, pods: &[(&str, usize, &str)]) {
    for (name, gpu, priority) in pods {
        world.make_pod(half(name, *gpu, priority)).await;
        world.until_placed(name).await;
    }
}

async fn names(world: &World) -> Vec<String> {
    let mut names: Vec<String> = world
        .placed()
        .await
        .iter()
        .map(|pod| name(pod).to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_whole_gpu_is_freed_and_nothing_else() {
    within(async |world| {
        world.make_priorities().await;
        world.make_nodes(["a"], &two_gpus()).await;
        let _pair = Pair::start(world).await;
        fill(
            world,
            &[
                ("p0", 0, "low"),
                ("p1", 1, "low"),
                ("p2", 0, "low"),
                ("p3", 1, "low"),
            ],
        )
        .await;

        let mut urgent = pod("urgent", whole(1));
        urgent["spec"]["priorityClassName"] = json!("high");
        world.make_pod(urgent).await;

        let urgent = world.until_placed("urgent").await;
        assert_eq!(node(&urgent), Some("a"));
        let gpu = uuids([&urgent]);
        let left = names(world).await;
        let expected = if gpu.contains("GPU-a-0") {
            ["p1", "p3", "urgent"]
        } else {
            ["p0", "p2", "urgent"]
        };
        assert_eq!(left, expected, "it has {gpu:?}");
    });
}

#[test]
fn the_gpu_whose_pods_may_be_evicted_is_the_one_that_is_freed() {
    within(async |world| {
        world.make_priorities().await;
        world.make_nodes(["a"], &two_gpus()).await;
        let _pair = Pair::start(world).await;
        // The youngest pod shares a GPU with one that must not be evicted; kube-scheduler alone would evict it first.
        fill(
            world,
            &[
                ("low-1", 1, "low"),
                ("low-1b", 1, "low"),
                ("high-0", 0, "high"),
                ("low-0", 0, "low"),
            ],
        )
        .await;

        let mut urgent = pod("urgent", whole(1));
        urgent["spec"]["priorityClassName"] = json!("high");
        world.make_pod(urgent).await;

        let urgent = world.until_placed("urgent").await;
        assert!(uuids([&urgent]).contains("GPU-a-1"));
        assert_eq!(names(world).await, ["high-0", "low-0", "urgent"]);
    });
}

#[test]
fn no_pod_is_evicted_in_vain() {
    within(async |world| {
        world.make_priorities().await;
        world.make_nodes(["a"], &two_gpus()).await;
        let _pair = Pair::start(world).await;
        // Each GPU has a pod that must not be evicted, so no eviction frees a whole GPU, although it frees a slot.
        fill(
            world,
            &[
                ("high-0", 0, "high"),
                ("low-0", 0, "low"),
                ("high-1", 1, "high"),
                ("low-1", 1, "low"),
            ],
        )
        .await;

        for (name, limits) in [
            ("whole", whole(1)),
            (
                "larger-than-any",
                json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20000}),
            ),
        ] {
            let mut urgent = pod(name, limits);
            urgent["spec"]["priorityClassName"] = json!("high");
            world.make_pod(urgent).await;
            world.until_refused(name).await;
        }

        // Evictions follow the refusal; they are given time to happen.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(names(world).await, ["high-0", "high-1", "low-0", "low-1"]);
    });
}

/// A node with two Hygon DCUs and no NVIDIA GPU.
fn dcus(name: &str) -> Value {
    let dcus: Vec<Value> = (0..2)
        .map(|at| json!({"id": format!("DCU-{at}"), "index": at, "count": 4, "devmem": 65536, "devcore": 100,
            "type": "K100-64GB", "numa": 0, "health": true}))
        .collect();
    let mut node = json!(Gpus::default().node(name));
    node["metadata"]["annotations"] = json!({"hami.io/node-dcu-register": json!(dcus).to_string()});
    for resources in ["capacity", "allocatable"] {
        let amounts = node["status"][resources].as_object_mut().unwrap();
        amounts.remove("nvidia.com/gpu");
        amounts.insert("hygon.com/dcunum".to_owned(), json!("2"));
    }
    node
}

#[test]
fn pods_are_evicted_for_a_gpu_while_hcs_is_on() {
    within(async |world| {
        world.make_priorities().await;
        world.make_nodes(["a"], &two_gpus()).await;
        let second = world.nodes();
        let made = second
            .create(&PostParams::default(), &from(dcus("b")))
            .await;
        made.unwrap();
        let config = hcs::device_config(world);
        let tuning = Tuning {
            hcs: true,
            ..Tuning::default()
        };
        let _pair = Pair::start_with(world, &[&config], tuning).await;
        fill(
            world,
            &[
                ("p0", 0, "low"),
                ("p1", 1, "low"),
                ("p2", 0, "low"),
                ("p3", 1, "low"),
            ],
        )
        .await;

        let mut urgent = pod("urgent", whole(1));
        urgent["spec"]["priorityClassName"] = json!("high");
        world.make_pod(urgent).await;
        // As the webhook makes a pod that takes the devices of any vendor.
        let counts = json!({
            "ai.compute/vram": "4Gi", "nvidia.com/gpu": "1", "hygon.com/dcunum": "1",
        });
        let mut any = pod("any", counts);
        any["spec"]["schedulerName"] = json!("hami-scheduler-any-vendor");
        any["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "b"});
        world.make_pod(any).await;

        let urgent = world.until_placed("urgent").await;
        assert_eq!(node(&urgent), Some("a"));
        let any = world.until_placed("any").await;
        assert_eq!(node(&any), Some("b"));
        assert_eq!(names(world).await.len(), 4);
    });
}
