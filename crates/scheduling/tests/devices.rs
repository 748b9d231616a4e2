//! Shared devices: the placement engine's answers among the other plugins'.

use std::sync::Arc;

use kube_api::config::DeviceConfig;
use kube_api::request::Defaults;
use kube_api::vendor::{Switches, Vendors};
use scheduling::devices::Devices;
use scheduling::plugin::Plugin;
use scheduling::snapshot::Snapshot;
use serde_json::{Value, json};

use crate::world::{World, roomy, set, spec};

/// A node with `count` GPUs of 80 GiB.
fn devices(name: &str, count: usize) -> Value {
    let devices: String = (0..count)
        .map(|device| format!("GPU-{name}-{device},10,81920,100,NVIDIA-A100,0,true:"))
        .collect();
    set(
        roomy(name, ""),
        "/metadata/annotations",
        json!({"hami.io/node-nvidia-register": devices}),
    )
}

fn asking(name: &str, count: u32, memory_mib: u32, priority: i32) -> Value {
    let mut pod = spec(json!({"priority": priority}));
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["uid"] = json!(name);
    pod["spec"]["containers"][0]["resources"] = json!({"limits":
        {"nvidia.com/gpu": count, "nvidia.com/gpumem": memory_mib}});
    pod
}

fn world(nodes: &[Value]) -> World {
    let vendors = Vendors::new(
        DeviceConfig::standard(),
        Switches {
            ascend: false,
            iluvatar: false,
        },
    )
    .unwrap();
    let devices = Devices::new(Arc::new(vendors), Defaults::default());
    let profile = json!({"plugins": {"multiPoint": {"enabled":
        [{"name": "GpuFit"}, {"name": "GpuScore", "weight": 5}]}}});
    World::with(Snapshot::with_devices(devices), nodes, &profile)
}

/// Places the pod and lets it hold its devices. Returns the node.
fn place(world: &mut World, pod: &Value) -> String {
    let placed = world.run(pod).0.result.unwrap();
    let read = world.snapshot.read_pod(pod).unwrap();
    let devices = placed.devices.unwrap();
    world.snapshot.devices_mut().reserve(&read, devices);
    world.snapshot.assign(Arc::new(read), &placed.node);
    placed.node.to_string()
}

#[test]
fn engine_says_which_nodes_have_room_and_why_others_have_not() {
    let mut world = world(&[devices("a", 1), devices("b", 2), roomy("c", "")]);

    let two = world.run(&asking("p", 2, 1000, 0));
    let plain = world.run(&spec(json!({})));

    assert_eq!(two.fit(), "b");
    assert_eq!(
        two.filtered()["a"],
        "GpuFit: NodeInsufficientDevice (the node has fewer devices than the pod asks for)"
    );
    assert_eq!(
        two.filtered()["c"],
        "GpuFit: node unregistered (it reports no devices to share)"
    );
    let devices = two.0.result.unwrap().devices.unwrap();
    assert_eq!(devices.containers[0].grants.len(), 2);
    assert_eq!(plain.fit(), "a b c");
    assert_eq!(plain.scores(Plugin::GpuScore), "");
}

#[test]
fn shares_are_packed_until_a_device_is_full() {
    let mut world = world(&[devices("a", 1), devices("b", 1)]);

    let nodes: Vec<String> = ["p1", "p2", "p3"]
        .iter()
        .map(|name| place(&mut world, &asking(name, 1, 40_000, 0)))
        .collect();
    let fourth = place(&mut world, &asking("p4", 1, 40_000, 0));
    let fifth = world.run(&asking("p5", 1, 40_000, 0));

    assert_eq!(nodes, ["a", "a", "b"]);
    assert_eq!(fourth, "b");
    assert_eq!(
        fifth.filtered()["a"],
        "GpuFit: 1/1 CardInsufficientMemory (too little memory is free)"
    );
}

#[test]
fn fuller_devices_score_higher_when_packing() {
    let mut world = world(&[devices("a", 1), devices("b", 1)]);
    place(&mut world, &asking("p1", 1, 40_960, 0));

    let answers = world.run(&asking("p2", 1, 8_192, 0));

    // With the pod, a has 60 percent of its memory and 2 of 10 slots in use: 8 of 30. For b: 2 of 30.
    assert_eq!(answers.scores(Plugin::GpuScore), "a:27/135 b:7/35");
}

#[test]
fn several_containers_get_their_devices_together() {
    let mut world = world(&[devices("a", 1), devices("b", 2)]);
    let mut pod = asking("p", 1, 50_000, 0);
    let second = set(
        pod["spec"]["containers"][0].clone(),
        "/name",
        json!("second"),
    );
    pod["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(second);

    let answers = world.run(&pod);

    assert_eq!(answers.fit(), "b", "two halves and more need two devices");
    let devices = answers.0.result.unwrap().devices.unwrap();
    assert_eq!(devices.containers.len(), 2);
}

#[test]
fn pods_of_lower_priority_give_their_shares_up() {
    let mut world = world(&[devices("a", 1)]);
    place(&mut world, &asking("low", 1, 60_000, 1));

    let answers = world.run(&asking("high", 1, 60_000, 10));

    let failed = answers.0.result.unwrap_err();
    let victims = failed.preemption.unwrap();
    assert_eq!(&*victims.pods[0].key, "default/low");
    world.snapshot.remove_pod("default/low").unwrap();
    assert_eq!(place(&mut world, &asking("high", 1, 60_000, 10)), "a");
}

#[test]
fn devices_are_kept_for_pods_that_are_nominated() {
    let mut world = world(&[devices("a", 2)]);
    place(&mut world, &asking("runs", 1, 60_000, 1));
    let nominated = world.snapshot.read_pod(&asking("urgent", 1, 60_000, 10));
    world.snapshot.nominate(Arc::new(nominated.unwrap()), "a");

    let less = world.run(&asking("later", 1, 60_000, 5));
    let more = world.run(&asking("first", 1, 60_000, 20));
    let small = world.run(&asking("small", 1, 10_000, 5));
    let two = world.run(&asking("two", 2, 10_000, 5));

    assert!(less.filtered()["a"].contains("2/2 CardInsufficientMemory"));
    assert_eq!(
        more.fit(),
        "a",
        "it is more important than the nominated pod"
    );
    assert_eq!(small.fit(), "a");
    assert_eq!(two.fit(), "a");
    world.snapshot.clear_nomination("default/urgent");
    assert_eq!(world.run(&asking("later", 1, 60_000, 5)).fit(), "a");
}

#[test]
fn requests_that_cannot_be_read_fit_nowhere() {
    let mut world = world(&[devices("a", 1)]);
    let mut broken = asking("p", 1, 1000, 0);
    broken["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = json!("1500m");

    let answers = world.run(&broken);

    let said = answers.message();
    assert!(said.contains("container main: nvidia.com/gpumem"), "{said}");
}
