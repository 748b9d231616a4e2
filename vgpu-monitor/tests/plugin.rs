//! The device plugin between a kubelet and an API server, both in this process: whose slots are whose, whatever dies.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests stand outside of them"
)]

use crate::kubelet;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::waiting::{eventually, until_later};
use kube::api::DeleteParams;
use kubelet::world::{Asks, GPU, MIB, World, gpu, gpus, inventory, uid};
use placement::{MigProfile, Span};
use serde_json::Value;
use tokio::task::JoinSet;
use vgpu_monitor::delivery::Name;
use vgpu_monitor::node_gpus::{Health, Inventory, KnownGpu, Sick};
use vgpu_monitor::plugin::Served;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_containers_are_given_before_the_first_process_starts() {
    let world = World::new();
    let agent = world.up().await;
    let pod = world
        .pod(
            "p",
            &[
                ("prep", "init", &[(0, 1000), (1, 1000)]),
                ("load", "init", &[(2, 700)]),
                ("side", "sidecar", &[(0, 500)]),
                ("a", "app", &[(0, 3000)]),
                ("none", "app", &[]),
                ("b", "app", &[(1, 2000), (3, 2000)]),
            ],
        )
        .await;
    world.kubelet.admit(&pod).await.unwrap();

    world.kubelet.starts(uid(&pod), "prep").await.unwrap();

    let given = world.hands.of(uid(&pod));
    let names: Vec<&str> = given.keys().map(String::as_str).collect();
    assert_eq!(names, ["a", "b", "load", "prep", "side"]);
    assert_eq!(gpus(&given["prep"]), [("GPU-0", 1000), ("GPU-1", 1000)]);
    assert_eq!(gpus(&given["load"]), [("GPU-2", 700)]);
    assert_eq!(gpus(&given["side"]), [("GPU-0", 500)]);
    assert_eq!(gpus(&given["a"]), [("GPU-0", 3000)]);
    assert_eq!(gpus(&given["b"]), [("GPU-1", 2000), ("GPU-3", 2000)]);
    for container in ["load", "side", "b", "a", "a", "side"] {
        world.kubelet.starts(uid(&pod), container).await.unwrap();
    }
    assert_eq!(world.hands.of(uid(&pod)), given);
    assert_eq!(agent.plugin.allotments().len(), 5);
    let pods = world.pods();
    let mut annotations = BTreeMap::new();
    for _ in 0..500 {
        annotations = pods.get("p").await.unwrap().metadata.annotations.unwrap();
        if annotations["hami.io/bind-phase"] == "success" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(annotations["hami.io/bind-phase"], "success");
    assert_eq!(annotations["hami.io/vgpu-devices-to-allocate"], ";;;;;;");
    agent.stop().await;
    let left = std::fs::read_dir(world.kubelet.device_plugins()).unwrap();
    let ours = |name: &str| name.starts_with("vgpu-");
    assert_eq!(
        left.filter(|e| ours(e.as_ref().unwrap().file_name().to_str().unwrap()))
            .count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_parallel_pods_start_under_the_kubelets_rate_limit() {
    let world = World::new();
    let wide = (0..4).map(|index| {
        let mut gpu = gpu(index);
        gpu.device.slots = 20;
        gpu
    });
    world.inventory.send_replace(inventory(wide.collect()));
    world.kubelet.start();
    let agent = world.agent().await;
    world.is_known(80).await;
    let mut pods = Vec::new();
    for number in 0..50_u32 {
        let name = format!("p{number}");
        let pod = world
            .pod(
                &name,
                &[("main", "app", &[(number % 4, 100 + u64::from(number))])],
            )
            .await;
        world.kubelet.admit(&pod).await.unwrap();
        pods.push(pod);
    }
    world.kubelet.limit();

    let mut starting = JoinSet::new();
    for pod in &pods {
        let (kubelet, uid) = (world.kubelet.clone(), uid(pod).to_owned());
        starting.spawn(async move { kubelet.starts(&uid, "main").await.unwrap() });
    }
    starting.join_all().await;

    for (number, pod) in (0..50_u32).zip(&pods) {
        let given = world.hands.of(uid(pod));
        let gpu = format!("GPU-{}", number % 4);
        assert_eq!(
            gpus(&given["main"]),
            [(gpu.as_str(), 100 + u64::from(number))]
        );
    }
    let (asked, _) = world.kubelet.lists();
    assert!(asked < 40, "{asked} questions for 50 pods");
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_only_pod_is_found_in_the_kubelets_record() {
    let world = World::new();
    let agent = world.up().await;
    let mut pods = Vec::new();
    for name in ["x", "y", "z"] {
        let number = u32::try_from(pods.len()).unwrap();
        let pod = world.pod(name, &[("prep", "init", &[(number, 300)])]).await;
        world.kubelet.admit(&pod).await.unwrap();
        pods.push(pod);
    }

    for pod in pods.iter().rev() {
        world.kubelet.starts(uid(pod), "prep").await.unwrap();
    }

    for (number, pod) in pods.iter().enumerate() {
        let gpu = format!("GPU-{number}");
        assert_eq!(
            gpus(&world.hands.of(uid(pod))["prep"]),
            [(gpu.as_str(), 300)]
        );
    }
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_kubelet_gets_the_plugin_at_once() {
    let world = World::new();
    let agent = world.up().await;
    let pod = world.pod("p", &[("main", "app", &[(0, 100)])]).await;
    world.kubelet.admit(&pod).await.unwrap();

    for life in 2..4 {
        world.kubelet.kill().await;
        assert_eq!(world.kubelet.slots(GPU).0, 0);
        world.kubelet.start();
        world.is_known(40).await;
        assert!(world.kubelet.registrations() >= life);
        world.kubelet.starts(uid(&pod), "main").await.unwrap();
    }
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_may_start_before_kubelet_and_driver() {
    let world = World::new();
    let agent = world.up().await;
    agent.kill().await;
    world.kubelet.kill().await;
    // The driver takes its time: what was known when the agent last ran is told.
    world.inventory.send_replace(None);
    let agent = world.agent().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    world.kubelet.start();
    world.is_known(40).await;
    let pod = world.pod("p", &[("main", "app", &[(1, 100)])]).await;
    world.kubelet.admit(&pod).await.unwrap();

    let (kubelet, of) = (world.kubelet.clone(), uid(&pod).to_owned());
    let starting = tokio::spawn(async move { kubelet.starts(&of, "main").await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!starting.is_finished());
    world
        .inventory
        .send_replace(inventory((0..4).map(gpu).collect()));

    starting.await.unwrap().unwrap();
    assert_eq!(gpus(&world.hands.of(uid(&pod))["main"]), [("GPU-1", 100)]);
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_agent_continues_after_any_step() {
    let world = World::new();
    let agent = world.up().await;
    let pod = world
        .pod(
            "p",
            &[
                ("prep", "init", &[(0, 100)]),
                ("a", "app", &[(1, 200)]),
                ("b", "app", &[(2, 300)]),
            ],
        )
        .await;
    world.kubelet.admit(&pod).await.unwrap();
    // After Allocate.
    agent.kill().await;
    let agent = world.agent().await;
    until_later("it is known again", || world.kubelet.registrations() == 2).await;
    // Between writing down whose it is, and giving it.
    world.hands.hang(true);
    let (kubelet, of) = (world.kubelet.clone(), uid(&pod).to_owned());
    let starting = tokio::spawn(async move { kubelet.starts(&of, "prep").await });
    until_later("it gives", || {
        world.hands.waiting.load(Ordering::SeqCst) == 1
    })
    .await;
    agent.kill().await;
    assert!(starting.await.unwrap().is_err());
    assert!(world.hands.of(uid(&pod)).is_empty());
    world.hands.hang(false);
    let agent = world.agent().await;
    until_later("it is known again", || world.kubelet.registrations() == 3).await;

    world.kubelet.starts(uid(&pod), "prep").await.unwrap();
    let given = world.hands.of(uid(&pod));
    // After giving, before telling; and the next container starts with another process.
    agent.kill().await;
    let agent = world.agent().await;
    until_later("it is known again", || world.kubelet.registrations() == 4).await;
    for container in ["a", "b"] {
        world.kubelet.starts(uid(&pod), container).await.unwrap();
    }

    assert_eq!(gpus(&given["prep"]), [("GPU-0", 100)]);
    assert_eq!(gpus(&given["a"]), [("GPU-1", 200)]);
    assert_eq!(gpus(&given["b"]), [("GPU-2", 300)]);
    assert_eq!(world.hands.of(uid(&pod)), given);
    assert_eq!(world.hands.names.load(Ordering::SeqCst), 3);
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_allotments_are_restored_from_the_kubelets_record() {
    for damage in ["truncated", "garbled", "lost"] {
        let world = World::new();
        let agent = world.up().await;
        let containers: [Asks<'_>; 3] = [
            ("prep", "init", &[(0, 100)]),
            ("a", "app", &[(1, 200)]),
            ("b", "app", &[(2, 300)]),
        ];
        let pod = world.pod("p", &containers).await;
        world.kubelet.admit(&pod).await.unwrap();
        agent.kill().await;
        let file = world.folder.path().join("state/allotments.json");
        let text = std::fs::read(&file).unwrap();
        match damage {
            "truncated" => std::fs::write(&file, &text[..text.len() / 2]).unwrap(),
            "garbled" => {
                std::fs::write(&file, text.iter().map(|b| b ^ 1).collect::<Vec<_>>()).unwrap()
            }
            _ => std::fs::remove_file(&file).unwrap(),
        }

        let agent = world.agent().await;
        until_later("it is known again", || world.kubelet.registrations() == 2).await;
        world.kubelet.starts(uid(&pod), "prep").await.unwrap();

        let given = world.hands.of(uid(&pod));
        assert_eq!(gpus(&given["prep"]), [("GPU-0", 100)], "{damage}");
        assert_eq!(gpus(&given["a"]), [("GPU-1", 200)], "{damage}");
        assert_eq!(gpus(&given["b"]), [("GPU-2", 300)], "{damage}");
        let names: Vec<String> = world.hands.given.lock().keys().cloned().collect();
        assert_eq!(names, ["v0000", "v0001", "v0002"], "{damage}");
        agent.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_are_allotted_while_the_file_cannot_be_written() {
    let world = World::new();
    // Where the file would be stands a directory.
    std::fs::create_dir_all(world.folder.path().join("state/.allotments.json.new")).unwrap();
    let agent = world.up().await;
    let pod = world.pod("p", &[("main", "app", &[(0, 100)])]).await;

    world.kubelet.admit(&pod).await.unwrap();
    world.kubelet.starts(uid(&pod), "main").await.unwrap();

    assert_eq!(gpus(&world.hands.of(uid(&pod))["main"]), [("GPU-0", 100)]);
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_api_server_only_known_containers_start() {
    let world = World::new();
    let agent = world.up().await;
    let old = world.pod("old", &[("main", "app", &[(0, 100)])]).await;
    let new = world.pod("new", &[("main", "app", &[(1, 200)])]).await;
    world.kubelet.admit(&old).await.unwrap();
    world.kubelet.admit(&new).await.unwrap();
    world.kubelet.starts(uid(&old), "main").await.unwrap();
    // Another process, which has given nothing yet.
    agent.kill().await;
    let agent = world.agent().await;
    until_later("it is known again", || world.kubelet.registrations() == 2).await;
    world.away.store(true, Ordering::SeqCst);

    world.kubelet.starts(uid(&old), "main").await.unwrap();
    let refused = world.kubelet.starts(uid(&new), "main").await.unwrap_err();
    let text = refused.message();
    assert!(text.contains("the API server does not answer"), "{text}");
    assert!(world.hands.of(uid(&new)).is_empty());

    world.away.store(false, Ordering::SeqCst);
    world.kubelet.starts(uid(&new), "main").await.unwrap();
    assert_eq!(gpus(&world.hands.of(uid(&new))["main"]), [("GPU-1", 200)]);
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recreated_pod_gets_its_own_devices() {
    let world = World::new();
    // One slot: the new pod gets the old one's.
    let mut only = gpu(0);
    only.device.slots = 1;
    world.inventory.send_replace(inventory(vec![only, gpu(1)]));
    world.kubelet.start();
    let agent = world.agent().await;
    world.is_known(11).await;
    let first = world.pod("p", &[("main", "app", &[(0, 9000)])]).await;
    world.kubelet.admit(&first).await.unwrap();
    world.kubelet.starts(uid(&first), "main").await.unwrap();
    world.kubelet.end(uid(&first));
    let now = DeleteParams::default().grace_period(0);
    world.pods().delete("p", &now).await.unwrap();
    // The same GPU, and more than would be left of it beside the first.
    let second = world.pod("p", &[("main", "app", &[(0, 8000)])]).await;
    assert_ne!(uid(&first), uid(&second));
    world.kubelet.admit(&second).await.unwrap();

    world.kubelet.starts(uid(&second), "main").await.unwrap();

    assert_eq!(
        gpus(&world.hands.of(uid(&first))["main"]),
        [("GPU-0", 9000)]
    );
    assert_eq!(
        gpus(&world.hands.of(uid(&second))["main"]),
        [("GPU-0", 8000)]
    );
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pods_namesake_does_not_get_its_slots() {
    let world = World::new();
    let agent = world.up().await;
    let first = world.pod("p", &[("main", "app", &[(0, 9000)])]).await;
    world.kubelet.admit(&first).await.unwrap();
    // Deleted by force and made anew before its first container starts. The kubelet still holds the first one's slots,
    // and its list has no uids.
    let now = DeleteParams::default().grace_period(0);
    world.pods().delete("p", &now).await.unwrap();
    let second = world.pod("p", &[("main", "app", &[(1, 300)])]).await;

    let refused = world.kubelet.starts(uid(&first), "main").await.unwrap_err();

    let message = refused.message();
    assert!(message.contains("an earlier pod of this name"), "{message}");
    assert!(message.contains(uid(&first)), "{message}");
    assert!(world.hands.of(uid(&second)).is_empty());
    assert!(
        agent
            .plugin
            .allotments()
            .iter()
            .all(|lot| lot.recipient.is_none())
    );
    world.kubelet.end(uid(&first));
    world.kubelet.admit(&second).await.unwrap();
    world.kubelet.starts(uid(&second), "main").await.unwrap();
    let given = world.hands.of(uid(&second));
    assert_eq!(gpus(&given["main"]), [("GPU-1", 300)]);
    agent.kill().await;
}

/// A GPU in MIG mode that has room for so many instances of its one profile.
fn mig_gpu(index: u32, instances: u32) -> KnownGpu {
    let mut mig = gpu(index);
    mig.device.mode = "mig".to_owned();
    mig.device.mig_profiles = vec![MigProfile {
        name: "1g.5gb".to_owned(),
        memory_bytes: 4864 * MIB,
        cores: 14,
        slices: 1,
        placements: (0..instances)
            .map(|start| Span { start, size: 1 })
            .collect(),
    }];
    mig
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_is_noted_for_its_own_container_after_a_recovery() {
    let world = World::new();
    world
        .inventory
        .send_replace(inventory(vec![mig_gpu(0, 1), gpu(1)]));
    let agent = world.up_with(20).await;
    let cut = world.pod("cut", &[("main", "app", &[(0, 4864)])]).await;
    let instances = r#"[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-0","profile":"1g.5gb","placement":{"start":0,"size":1}}]"#;
    world
        .annotate("cut", "hami.io/vgpu-mig-allocations", instances)
        .await;
    world.kubelet.admit(&cut).await.unwrap();
    let lost = world.pod("lost", &[("main", "app", &[(1, 300)])]).await;
    world.kubelet.admit(&lost).await.unwrap();
    agent.kill().await;
    // The second allotment is missing from the agent's memory.
    let file = world.folder.path().join("state/allotments.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let (kept, _) = text.split_once('\n').unwrap();
    std::fs::write(&file, format!("{kept}\n")).unwrap();
    let agent = world.agent().await;
    until_later("it is known again", || world.kubelet.registrations() == 2).await;

    // While the driver makes the instance, the lost allotment is restored, as the older one.
    world.hands.hang(true);
    let starting = |pod: &Value| {
        let (kubelet, uid) = (world.kubelet.clone(), uid(pod).to_owned());
        tokio::spawn(async move { kubelet.starts(&uid, "main").await })
    };
    let waiting = |count: usize| {
        let hands = Arc::clone(&world.hands);
        move || hands.waiting.load(Ordering::SeqCst) == count
    };
    let first = starting(&cut);
    until_later("the instance is being made", waiting(1)).await;
    let second = starting(&lost);
    until_later("the other one is being given", waiting(2)).await;
    world.hands.hang(false);
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();

    let all = agent.plugin.allotments();
    let noted: Vec<(&str, &str, bool)> = all
        .iter()
        .map(|lot| {
            let recipient = lot.recipient.as_ref().unwrap();
            let cut = recipient.shares[0].instance.as_ref();
            let is_made = cut.is_some_and(|cut| cut.made.is_some());
            (lot.name.as_str(), recipient.pod.as_str(), is_made)
        })
        .collect();
    assert_eq!(noted, [("v0001", "lost", false), ("v0000", "cut", true)]);
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edited_annotations_gain_nothing() {
    let world = World::new();
    let agent = world.up().await;
    let key = "hami.io/vgpu-devices-allocated";
    let pod = world.pod("p", &[("main", "app", &[(0, 1000)])]).await;
    world.kubelet.admit(&pod).await.unwrap();
    // More than the spec asks for, before it starts.
    for (text, says) in [
        ("GPU-0,NVIDIA,9000,5:;", "9000 MiB"),
        ("GPU-0,NVIDIA,1000,90:;", "90 cores"),
        ("GPU-0,NVIDIA,1000,0:;", "0 cores"),
        ("GPU-0,NVIDIA,0,5:;", "no memory"),
        (
            "GPU-0,NVIDIA,1000,5:GPU-1,NVIDIA,1000,5:;",
            "2 GPUs, the spec asks for 1",
        ),
        (
            "GPU-9,NVIDIA,1000,5:;",
            "GPU-9 of the annotations is not on this node",
        ),
        ("GPU-0;rubbish,1", "fewer than the four fields"),
    ] {
        world.annotate("p", key, text).await;
        let refused = world.kubelet.starts(uid(&pod), "main").await.unwrap_err();
        assert!(
            refused.message().contains(says),
            "{text}: {}",
            refused.message()
        );
        world.events_say(says).await;
    }
    assert!(world.hands.of(uid(&pod)).is_empty());
    world.annotate("p", key, "GPU-0,NVIDIA,1000,5:;").await;
    world.kubelet.starts(uid(&pod), "main").await.unwrap();
    // Another GPU, after it started.
    world.annotate("p", key, "GPU-3,NVIDIA,1000,5:;").await;
    world.kubelet.starts(uid(&pod), "main").await.unwrap();

    assert_eq!(gpus(&world.hands.of(uid(&pod))["main"]), [("GPU-0", 1000)]);
    world.events_say("what was given first stays").await;
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpu_never_gives_more_than_it_has() {
    let world = World::new();
    let agent = world.up().await;
    let big = world.pod("big", &[("main", "app", &[(0, 9000)])]).await;
    let late = world.pod("late", &[("main", "app", &[(0, 9000)])]).await;
    for pod in [&big, &late] {
        world.kubelet.admit(pod).await.unwrap();
    }
    world.kubelet.starts(uid(&big), "main").await.unwrap();

    let refused = world.kubelet.starts(uid(&late), "main").await.unwrap_err();

    let text = refused.message();
    assert!(text.contains("18000 MiB of 16000 MiB"), "{text}");
    assert!(text.contains("default/big"), "{text}");
    world.kubelet.end(uid(&big));
    world.kubelet.starts(uid(&late), "main").await.unwrap();
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sick_gpu_removes_free_slots_first_and_starts_nothing() {
    let world = World::new();
    let agent = world.up().await;
    let pod = world
        .pod("p", &[("main", "app", &[(2, 100), (3, 100)])])
        .await;
    world.kubelet.admit(&pod).await.unwrap();
    let held = world.kubelet.held(uid(&pod), "main");
    let sick = |gpus: &[u32]| -> Health {
        let sick = Sick {
            reason: "XID 79: it fell off the bus".to_owned(),
            since: SystemTime::now(),
            recovers: false,
        };
        let gpus = gpus.iter();
        gpus.map(|gpu| (format!("GPU-{gpu}"), sick.clone()))
            .collect()
    };

    world.health.send_replace(Arc::new(sick(&[2])));
    until_later("ten slots are sick", || {
        world.kubelet.slots(GPU) == (40, 30)
    })
    .await;
    assert!(!held.is_empty());
    let withdrawn = world.kubelet.sick(GPU);
    assert_eq!(withdrawn.len(), 10, "{withdrawn:?}");
    assert!(
        held.iter().all(|id| !withdrawn.contains(id)),
        "{held:?} {withdrawn:?}"
    );
    let refused = world.kubelet.starts(uid(&pod), "main").await.unwrap_err();
    assert!(
        refused.message().contains("XID 79"),
        "{}",
        refused.message()
    );

    world.health.send_replace(Arc::default());
    until_later("all are well", || world.kubelet.slots(GPU) == (40, 40)).await;
    world.kubelet.starts(uid(&pod), "main").await.unwrap();
    world.health.send_replace(Arc::new(sick(&[0, 1, 2, 3])));
    until_later("all are sick", || world.kubelet.slots(GPU) == (40, 0)).await;
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn common_numa_node_of_all_gpus_is_reported_to_the_kubelet() {
    let world = World::new();
    let agent = world.up().await;
    assert_eq!(world.kubelet.numa(GPU), [Vec::<i64>::new()]);

    let with = |numa| {
        Some(Arc::new(Inventory {
            gpus: (0..4).map(gpu).collect(),
            numa,
            ..Inventory::default()
        }))
    };
    world.inventory.send_replace(with(Some(1)));

    until_later("node 1 is named", || world.kubelet.numa(GPU) == [vec![1]]).await;
    assert_eq!(world.kubelet.slots(GPU), (40, 40));
    // GPUs of another node were added.
    world.inventory.send_replace(with(None));
    until_later("no node is named", || {
        world.kubelet.numa(GPU) == [Vec::<i64>::new()]
    })
    .await;
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_resources_have_a_socket_each() {
    let mut world = World::new();
    world.served.push(Served {
        resource: "hygon.com/dcunum".to_owned(),
        vendor: "DCU".to_owned(),
    });
    let mut other = gpu(9);
    other.device = placement::Device::new("DCU", "DCU-0", "Z100", 32_000 * MIB);
    other.device.slots = 3;
    world.inventory.send_replace(inventory(vec![gpu(0), other]));
    let agent = world.up_with(10).await;
    until_later("the other is known", || {
        world.kubelet.slots("hygon.com/dcunum") == (3, 3)
    })
    .await;
    let mut registered = agent.plugin.registered();
    let both = registered.wait_for(|known| known.len() == 2);
    tokio::time::timeout(Duration::from_secs(20), both)
        .await
        .unwrap()
        .unwrap();
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instance_is_created_before_the_start_and_named_on_the_pod() {
    let world = World::new();
    world.inventory.send_replace(inventory(vec![mig_gpu(0, 2)]));
    let agent = world.up_with(10).await;
    let pod = world
        .pod("p", &[("prep", "init", &[]), ("main", "app", &[(0, 4864)])])
        .await;
    let instances = r#"[{"containerIndex":1,"deviceIndex":0,"gpuUUID":"GPU-0","profile":"1g.5gb","placement":{"start":1,"size":1}}]"#;
    world
        .annotate("p", "hami.io/vgpu-mig-allocations", instances)
        .await;
    world.kubelet.admit(&pod).await.unwrap();

    world.kubelet.starts(uid(&pod), "main").await.unwrap();

    let given = &world.hands.of(uid(&pod))["main"];
    assert_eq!(given.devices[0].uuid, "MIG-0");
    assert_eq!(given.devices[0].instance.as_ref().unwrap().gpu, "GPU-0");
    let pods = world.pods();
    let key = "hami.io/vgpu-mig-allocations";
    let mut text = String::new();
    for _ in 0..500 {
        text = pods.get("p").await.unwrap().metadata.annotations.unwrap()[key].clone();
        if text.contains("migUUID") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told[0]["migUUID"], "MIG-0");
    assert_eq!(told[0]["gpuInstanceID"], 1);
    assert_eq!(told[0]["computeInstanceID"], 0);
    // Another pod in the same place is refused.
    let thief = world.pod("thief", &[("main", "app", &[(0, 4864)])]).await;
    world
        .annotate(
            "thief",
            key,
            &instances.replace(":1,\"deviceIndex", ":0,\"deviceIndex"),
        )
        .await;
    world.kubelet.admit(&thief).await.unwrap();
    let refused = world.kubelet.starts(uid(&thief), "main").await.unwrap_err();
    assert!(
        refused.message().contains("same place"),
        "{}",
        refused.message()
    );
    let living = agent.plugin.pods().living().await.unwrap();
    let places: Vec<_> = living.instances.into_iter().collect();
    assert_eq!(places, [("GPU-0".to_owned(), Span { start: 1, size: 1 })]);
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn living_needs_both_sources_to_answer() {
    let world = World::new();
    let agent = world.up().await;
    let stays = world
        .pod(
            "stays",
            &[("prep", "init", &[(0, 100)]), ("main", "app", &[(0, 100)])],
        )
        .await;
    let goes = world.pod("goes", &[("main", "app", &[(1, 100)])]).await;
    for pod in [&stays, &goes] {
        world.kubelet.admit(pod).await.unwrap();
    }
    world.kubelet.starts(uid(&stays), "prep").await.unwrap();
    world.kubelet.starts(uid(&goes), "main").await.unwrap();
    let names = || async {
        agent
            .plugin
            .pods()
            .living()
            .await
            .map(|living| living.names.len())
    };
    assert_eq!(names().await, Ok(3));

    world.kubelet.end(uid(&goes));
    assert_eq!(names().await, Ok(3), "the API server still has it");
    world.away.store(true, Ordering::SeqCst);
    eventually("the API server does not answer", async || {
        names().await.is_err()
    })
    .await;
    world.away.store(false, Ordering::SeqCst);
    let now = DeleteParams::default().grace_period(0);
    world.pods().delete("goes", &now).await.unwrap();

    eventually("the API server says that it is gone", async || {
        names().await == Ok(2)
    })
    .await;
    agent.plugin.forget(&[Name("v0002".to_owned())]);
    assert_eq!(agent.plugin.allotments().len(), 2);
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unheld_slots_are_refused_with_a_reason() {
    let world = World::new();
    let agent = world.up().await;
    let pod = world.pod("p", &[("main", "app", &[(0, 100)])]).await;
    world.kubelet.admit(&pod).await.unwrap();
    world.kubelet.forget_holders();

    let patience = Duration::from_secs(4);
    let refused = world
        .kubelet
        .starts_within(uid(&pod), "main", patience)
        .await
        .unwrap_err();

    let text = refused.message();
    assert!(text.contains("names no pod that holds vgpu-"), "{text}");
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_container_keeps_what_it_was_given() {
    let world = World::new();
    let agent = world.up().await;
    let pod = world
        .pod(
            "p",
            &[
                ("a", "app", &[(0, 9000)]),
                ("b", "app", &[(1, 9000), (2, 9000)]),
            ],
        )
        .await;
    world.kubelet.admit(&pod).await.unwrap();
    world.kubelet.starts(uid(&pod), "a").await.unwrap();
    let given = world.hands.of(uid(&pod));
    // Another GPU than that of a is sick, all promise less than before, and the annotations say nothing.
    let sick = Sick {
        reason: "lost".to_owned(),
        since: SystemTime::now(),
        recovers: false,
    };
    world
        .health
        .send_replace(Arc::new([("GPU-1".to_owned(), sick)].into()));
    let smaller = (0..4).map(|index| {
        let mut gpu = gpu(index);
        gpu.device.memory_bytes = 1000 * MIB;
        gpu
    });
    world.inventory.send_replace(inventory(smaller.collect()));
    world
        .annotate("p", "hami.io/vgpu-devices-allocated", "rubbish,1")
        .await;

    world.kubelet.starts(uid(&pod), "a").await.unwrap();
    let refused = world.kubelet.starts(uid(&pod), "b").await.unwrap_err();

    assert!(refused.message().contains("lost"), "{}", refused.message());
    assert_eq!(world.hands.of(uid(&pod)), given);
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_shown_other_gpus_does_not_start() {
    let world = World::new();
    let agent = world.up().await;
    let pod = world
        .pod("p", &[("main", "app", &[(0, 100), (1, 100)])])
        .await;
    world.kubelet.admit(&pod).await.unwrap();
    let key = kube_api::keys::visible_devices("main");
    for shown in ["GPU-0,GPU-1", "all", "GPU-0,GPU-2", "GPU-0,GPU-1"] {
        world.annotate("p", &key, shown).await;

        let started = world.kubelet.starts(uid(&pod), "main").await;

        assert_eq!(started.is_ok(), shown == "GPU-0,GPU-1", "{shown}");
        if let Err(refused) = started {
            let text = refused.message();
            assert!(text.contains(&key) && text.contains(shown), "{text}");
        }
    }
    agent.kill().await;
}
