//! Requests that only vendors other than NVIDIA have: required arrangements of devices, shares that may only share a
//! device with certain others, lanes, slices, and the bonus of a node for them.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use std::sync::Arc;

use placement::{
    Among, Appraisal, Arrange, Ask, Cluster, Company, Compute, Container, Device, Kind, Memory,
    MigProfile, Misfit, Node, NodePolicy, Placement, Pod, Request,
};

const MIB: u64 = 1 << 20;

/// Devices `0..count` of 1000 MiB, each changed by its index.
fn node(name: &str, count: u32, change: impl Fn(&mut Device)) -> Node {
    Node {
        name: name.to_owned(),
        devices: (0..count)
            .map(|index| {
                let mut device = Device::new("V", &format!("{name}-{index}"), "V", 1000 * MIB);
                device.index = index;
                device.group = None;
                change(&mut device);
                device
            })
            .collect(),
        pairs: Vec::new(),
    }
}

fn cluster(nodes: Vec<Node>) -> Cluster {
    let mut cluster = Cluster::new();
    for node in nodes {
        cluster.set_node(node).unwrap();
    }
    cluster
}

fn ask(count: u32, arrange: Arrange) -> Ask {
    let mut ask = Ask::new("V", count, Memory::Percent(100));
    ask.arrange = arrange;
    ask
}

fn request(name: &str, asks: Vec<Ask>) -> Request {
    Request {
        pod: Pod::named("default", name),
        containers: asks
            .into_iter()
            .map(|ask| Container {
                name: "c".to_owned(),
                kind: Kind::App,
                asks: vec![ask],
            })
            .collect(),
        node_policy: NodePolicy::Binpack,
        any: None,
    }
}

/// The node's name, and the indices of the devices of each container.
fn shown(placement: &Placement) -> String {
    let containers: Vec<String> = placement
        .containers
        .iter()
        .map(|granted| {
            let devices: Vec<&str> = granted
                .grants
                .iter()
                .map(|grant| grant.device.rsplit_once('-').unwrap().1)
                .collect();
            devices.join(" ")
        })
        .collect();
    format!("{}: {}", placement.node, containers.join("; "))
}

/// Places the pod and reserves the placement.
fn take(cluster: &mut Cluster, name: &str, ask: Ask) -> String {
    let request = request(name, vec![ask]);
    let placement = match cluster.place(&request, Among::All) {
        Ok(placement) => placement,
        Err(misfits) => return misfits[0].misfit.summary(),
    };
    let text = shown(&placement);
    cluster.reserve(request.pod, placement);
    text
}

/// Reserves these whole devices of the node for a pod.
fn occupy(cluster: &mut Cluster, node: &str, devices: &[u32]) {
    for index in devices {
        let mut ask = Ask::new("V", 1, Memory::Percent(100));
        ask.select.use_ids = vec![format!("{node}-{index}")];
        let request = request(&format!("{node}/{index}"), vec![ask]);
        let placement = cluster.place_on(&request, node).unwrap();
        cluster.reserve(request.pod, placement);
    }
}

#[test]
fn devices_come_from_the_group_with_most_free_ones_first() {
    let groups = [0, 0, 0, 1, 1, 1, 1, 2];
    let arrange = Arrange::LargestGroups { worth: 10 };
    let nodes = || {
        cluster(vec![node("n", 8, |device| {
            device.group = groups.get(device.index as usize).copied();
        })])
    };
    for (count, busy, expected) in [
        (1, &[][..], "n: 7"),
        (2, &[], "n: 6 5"),
        (5, &[], "n: 6 5 4 3 2"),
        (2, &[3, 4], "n: 2 1"),
        (8, &[], "n: 6 5 4 3 2 1 0 7"),
    ] {
        let mut cluster = nodes();
        occupy(&mut cluster, "n", busy);

        assert_eq!(take(&mut cluster, "p", ask(count, arrange)), expected);
    }
}

#[test]
fn device_without_a_group_leaves_the_order_to_the_policy() {
    let mut cluster = cluster(vec![node("n", 4, |device| {
        device.group = (device.index > 0).then_some(1);
    })]);

    let arrange = Arrange::LargestGroups { worth: 10 };

    assert_eq!(take(&mut cluster, "p", ask(2, arrange)), "n: 3 2");
}

#[test]
fn node_with_all_devices_in_one_group_wins_over_a_fuller_one() {
    let grouped = |device: &mut Device| device.group = Some(device.index / 2);
    let arrange = Arrange::LargestGroups { worth: 20 };
    for policy in [NodePolicy::Binpack, NodePolicy::Spread] {
        let mut cluster = cluster(vec![node("a", 4, grouped), node("b", 4, grouped)]);
        // On a, one device of each group is left.
        occupy(&mut cluster, "a", &[0, 2]);
        let mut request = request("p", vec![ask(2, arrange)]);
        request.node_policy = policy;

        let placement = cluster.place(&request, Among::All).unwrap();

        assert_eq!(shown(&placement), "b: 3 2", "{policy:?}");
    }
}

#[test]
fn modules_go_whole_or_not_at_all() {
    let arrange = Arrange::Modules { worth: 10 };
    for (count, busy, expected) in [
        (2, &[][..], "n: 7 6"),
        (2, &[7], "n: 5 4"),
        (4, &[1, 7], "n: 5 4 3 2"),
        (2, &[0, 2, 4, 6], "1/1 NumaNotFit"),
        (6, &[7, 0], "1/1 NumaNotFit"),
    ] {
        let mut cluster = cluster(vec![node("n", 8, |device| {
            device.module = Some(device.index / 2);
        })]);
        occupy(&mut cluster, "n", busy);

        assert_eq!(take(&mut cluster, "p", ask(count, arrange)), expected);
    }
}

#[test]
fn two_pods_share_halves_of_both_devices_of_a_module() {
    let mut cluster = cluster(vec![node("n", 4, |device| {
        device.module = Some(device.index / 2);
    })]);
    let half = || {
        let mut ask = Ask::new("V", 2, Memory::Bytes(500 * MIB));
        ask.arrange = Arrange::Modules { worth: 10 };
        ask.policy = placement::DevicePolicy::Binpack;
        ask
    };

    assert_eq!(take(&mut cluster, "a", half()), "n: 3 2");
    assert_eq!(take(&mut cluster, "b", half()), "n: 3 2");
    assert_eq!(take(&mut cluster, "c", half()), "n: 1 0");
}

#[test]
fn whole_devices_come_from_the_tightest_group_first() {
    let groups = [Some(1), Some(1), Some(1), Some(2), Some(2), None];
    let arrange = Arrange::TightestGroup { weigh: false };
    for (count, busy, expected) in [
        (2, &[][..], "n: 4 3"),
        (3, &[], "n: 2 1 0"),
        (4, &[], "n: 4 3 2 1"),
        (2, &[4], "n: 2 1"),
        (6, &[], "n: 4 3 2 1 0 5"),
    ] {
        let mut cluster = cluster(vec![node("n", 6, |device| {
            device.group = groups.get(device.index as usize).copied().flatten();
        })]);
        occupy(&mut cluster, "n", busy);

        assert_eq!(take(&mut cluster, "p", ask(count, arrange)), expected);
    }
}

#[test]
fn weighed_nodes_prefer_the_one_that_splits_no_group() {
    let zones = |of_four: bool| {
        move |device: &mut Device| {
            device.group = Some(if of_four { 1 } else { 1 + device.index / 2 });
        }
    };
    for (weigh, expected) in [(false, "a: 3 2"), (true, "b: 3 2")] {
        let mut cluster = cluster(vec![node("a", 4, zones(true)), node("b", 4, zones(false))]);

        let arrange = Arrange::TightestGroup { weigh };

        assert_eq!(take(&mut cluster, "p", ask(2, arrange)), expected);
    }
}

#[test]
fn wings_are_broken_up_only_where_they_must_be() {
    for (count, busy, expected) in [
        (1, &[][..], "n: 0"),
        (1, &[0, 1, 2], "n: 3"),
        (1, &[4, 5, 6], "n: 7"),
        (1, &[0, 4, 5], "n: 1"),
        (2, &[], "n: 0 1"),
        (2, &[4, 5], "n: 6 7"),
        (2, &[4], "n: 5 6"),
        (2, &[0, 1, 2, 4, 5, 6], "n: 3 7"),
        (2, &[0, 1, 2, 5, 6, 7], "1/1 NumaNotFit"),
        (4, &[], "n: 0 1 2 3"),
        (4, &[0], "n: 4 5 6 7"),
        (4, &[2, 6], "n: 0 1 4 5"),
        (4, &[2, 3, 6, 7], "n: 0 1 4 5"),
        (4, &[1, 3, 5, 7], "n: 0 2 4 6"),
        (8, &[], "n: 0 1 2 3 4 5 6 7"),
        (3, &[], "1/1 NumaNotFit"),
        (8, &[5], "1/1 NumaNotFit"),
    ] {
        let mut cluster = cluster(vec![node("n", 8, |_| {})]);
        occupy(&mut cluster, "n", busy);

        let found = take(&mut cluster, "p", ask(count, Arrange::Wings));

        assert_eq!(found, expected, "{count} beside {busy:?}");
    }
}

#[test]
fn the_node_whose_wing_is_filled_up_is_worth_most() {
    let mut cluster = cluster(["a", "b", "c"].map(|name| node(name, 8, |_| {})).to_vec());
    occupy(&mut cluster, "b", &[0, 1]);
    occupy(&mut cluster, "c", &[0, 1, 2]);

    assert_eq!(take(&mut cluster, "p", ask(2, Arrange::Wings)), "b: 2 3");
}

#[test]
fn eviction_cannot_help_if_no_arrangement_is_large_enough() {
    let mut cluster = cluster(vec![node("n", 8, |_| {})]);
    occupy(&mut cluster, "n", &[0, 1, 2, 5, 6, 7]);
    let misfit = |count: u32| -> Misfit {
        let request = request("p", vec![ask(count, Arrange::Wings)]);
        cluster.place_on(&request, "n").unwrap_err()
    };

    assert!(misfit(2).is_cured_by_leaving());
    assert!(!misfit(3).is_cured_by_leaving());
}

#[test]
fn rows_begin_anywhere_in_a_ring_and_at_multiples_elsewhere() {
    for (ring, count, busy, expected) in [
        (true, 3, &[][..], "n: 0 1 2"),
        (true, 3, &[1], "n: 2 3 4"),
        (true, 1, &[], "n: 15"),
        (false, 4, &[1], "n: 4 5 6 7"),
        (false, 8, &[1], "n: 8 9 10 11 12 13 14 15"),
        (false, 16, &[], "n: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"),
        (false, 2, &[], "1/1 NumaNotFit"),
    ] {
        let mut cluster = cluster(vec![node("n", 16, |device| {
            if ring {
                device.tags.push(Device::RING.to_owned());
            }
        })]);
        occupy(&mut cluster, "n", busy);

        let found = take(&mut cluster, "p", ask(count, Arrange::Row));

        assert_eq!(found, expected, "{count} beside {busy:?}");
    }
}

#[test]
fn node_is_worth_its_own_appraisal() {
    let says = |score: i32, loss: i32| {
        move |device: &mut Device| {
            device.appraisal = Some(Arc::new(Appraisal {
                scores: [(2, score), (3, 1000 - score)].into(),
                losses: [(2, loss), (3, 1000 - loss)].into(),
            }));
        }
    };
    for (policy, count, expected) in [
        (NodePolicy::Binpack, 2, "b"),
        (NodePolicy::Binpack, 3, "a"),
        (NodePolicy::Spread, 2, "a"),
        (NodePolicy::Spread, 3, "b"),
        (NodePolicy::Binpack, 1, "a"),
    ] {
        let cluster = cluster(vec![
            node("a", 4, says(900, 800)),
            node("b", 4, says(100, 10)),
        ]);
        let mut request = request("p", vec![ask(count, Arrange::Appraised)]);
        request.node_policy = policy;

        let placement = cluster.place(&request, Among::All).unwrap();

        assert_eq!(&*placement.node, expected, "{policy:?} {count}");
    }
}

fn company(class: &str, accepts: &[&str]) -> Ask {
    let mut ask = Ask::new("V", 1, Memory::Bytes(100 * MIB));
    ask.company = Some(Company {
        class: class.into(),
        accepts: accepts.iter().map(|&class| class.into()).collect(),
    });
    ask
}

#[test]
fn device_is_shared_only_with_accepted_classes() {
    let mut cluster = cluster(vec![node("n", 2, |_| {})]);

    assert_eq!(take(&mut cluster, "a", company("x", &["x"])), "n: 1");
    assert_eq!(take(&mut cluster, "b", company("y", &["y"])), "n: 0");
    assert_eq!(take(&mut cluster, "c", company("x", &["x"])), "n: 1");
    assert_eq!(
        take(&mut cluster, "d", company("z", &["z"])),
        "2/2 CardQosPolicyMismatch"
    );
    cluster.release("default/b");
    assert_eq!(take(&mut cluster, "d", company("z", &["z", "y"])), "n: 0");
    cluster.release("default/a");
    assert_eq!(
        take(&mut cluster, "e", company("y", &["y", "z"])),
        "n: 0",
        "x is still on the other device"
    );
}

#[test]
fn containers_of_one_pod_keep_their_classes_apart_too() {
    let cluster = cluster(vec![node("n", 2, |_| {})]);
    let request = request("p", vec![company("x", &["x"]), company("y", &["y"])]);

    let placement = cluster.place(&request, Among::All).unwrap();

    assert_eq!(shown(&placement), "n: 1; 0");
    let classes: Vec<Option<&str>> = placement
        .containers
        .iter()
        .map(|granted| granted.grants[0].class.as_deref())
        .collect();
    assert_eq!(classes, [Some("x"), Some("y")]);
}

#[test]
fn online_pods_avoid_each_other_and_then_offline_pods() {
    let mut cluster = cluster(vec![node("n", 3, |_| {})]);
    let first = || {
        let mut ask = company("first", &["first", "last"]);
        ask.arrange = Arrange::Apart;
        ask.compute = Compute::Unchecked;
        ask
    };
    let last = || {
        let mut ask = company("last", &["last"]);
        ask.compute = Compute::Units(100);
        ask.select.use_ids = vec!["n-2".to_owned()];
        ask
    };

    assert_eq!(take(&mut cluster, "a", last()), "n: 2");
    assert_eq!(take(&mut cluster, "b", first()), "n: 1");
    assert_eq!(take(&mut cluster, "c", first()), "n: 0");
    assert_eq!(take(&mut cluster, "d", first()), "n: 1");
    cluster.release("default/b");
    cluster.release("default/c");
    cluster.release("default/d");
    // All of the device's compute is promised to a container that yields.
    let mut only = first();
    only.select.use_ids = vec!["n-2".to_owned()];
    assert_eq!(take(&mut cluster, "e", only), "n: 2");
    assert_eq!(
        take(&mut cluster, "f", company("last", &["last"])),
        "n: 1",
        "one that gives way does not go where it would stop at once"
    );
}

#[test]
fn lanes_are_taken_from_the_lowest_and_given_back_one_by_one() {
    let mut cluster = cluster(vec![node("n", 1, |device| {
        device.cores = 0b1111;
        device.slots = 4;
    })]);
    let lanes = |cluster: &mut Cluster, name: &str, lanes: u32| {
        let mut ask = Ask::new("V", 1, Memory::Bytes(0));
        ask.compute = Compute::Lanes(lanes);
        let request = request(name, vec![ask]);
        let placement = cluster
            .place(&request, Among::All)
            .map_err(|misfits| misfits[0].misfit.summary())?;
        let cores = placement.containers[0].grants[0].cores;
        cluster.reserve(request.pod, placement);
        Ok::<u32, String>(cores)
    };

    assert_eq!(lanes(&mut cluster, "a", 1), Ok(0b0001));
    assert_eq!(lanes(&mut cluster, "b", 2), Ok(0b0110));
    assert_eq!(
        lanes(&mut cluster, "all", u32::MAX),
        Err("1/1 CardInsufficientCore".to_owned())
    );
    cluster.release("default/a");
    assert_eq!(lanes(&mut cluster, "c", 2), Ok(0b1001));
    assert_eq!(
        lanes(&mut cluster, "d", 1),
        Err("1/1 CardInsufficientCore".to_owned())
    );
    for pod in ["b", "c"] {
        cluster.release(&format!("default/{pod}"));
    }
    assert_eq!(lanes(&mut cluster, "all", u32::MAX), Ok(0b1111));
}

#[test]
fn hundredths_of_compute_are_whole_steps_and_at_least_one() {
    for (total, step, percent, expected) in [
        (304, 1, 50, 152),
        (304, 1, 100, 304),
        (64, 1, 5, 3),
        (64, 2, 5, 4),
        (64, 1, 1, 1),
        (2, 2, 50, 2),
        (4, u32::MAX, 75, 4),
    ] {
        let cluster = cluster(vec![node("n", 1, |device| {
            device.cores = total;
            device.core_step = step;
        })]);
        let mut ask = Ask::new("V", 1, Memory::Bytes(MIB));
        ask.compute = Compute::Percent(percent);

        let placement = cluster.place(&request("p", vec![ask]), Among::All).unwrap();

        assert_eq!(placement.containers[0].grants[0].cores, expected);
    }
}

#[test]
fn even_shares_of_a_device_have_one_size() {
    let mut cluster = cluster(vec![node("n", 2, |_| {})]);
    let even = |mib: u64| {
        let mut ask = Ask::new("V", 1, Memory::Bytes(mib * MIB));
        ask.even = true;
        ask
    };

    assert_eq!(take(&mut cluster, "a", even(250)), "n: 1");
    assert_eq!(take(&mut cluster, "b", even(500)), "n: 0");
    assert_eq!(take(&mut cluster, "c", even(250)), "n: 1");
    assert_eq!(take(&mut cluster, "d", even(500)), "n: 0");
    assert_eq!(
        take(&mut cluster, "e", even(500)),
        "1/2 CardInsufficientMemory, 1/2 CardQosPolicyMismatch"
    );
    cluster.release("default/a");
    cluster.release("default/c");
    assert_eq!(take(&mut cluster, "e", even(500)), "n: 1");
}

#[test]
fn advice_keeps_to_what_can_be_asked_for() {
    let advised = |cluster: &Cluster, ask: Ask| -> Vec<String> {
        let explanation = cluster
            .explain(&request("p", vec![ask]), Among::All)
            .unwrap();
        let advice = explanation.advice.iter();
        advice.map(ToString::to_string).collect()
    };
    let mut halves = cluster(vec![node("n", 1, |_| {})]);
    take(&mut halves, "a", Ask::new("V", 1, Memory::Bytes(450 * MIB)));
    let mut sized = Ask::new("V", 1, Memory::Bytes(1000 * MIB));
    sized.sizes = [250, 500, 1000].map(|mib| mib * MIB).to_vec();
    let mut wings = cluster(vec![node("n", 8, |_| {})]);
    occupy(&mut wings, "n", &[7]);

    assert!(advised(&halves, sized).contains(
        &"fits on n if container 0 asks for 500 MiB instead of 1000 MiB of memory (500 MiB less)"
            .to_owned()
    ));
    assert!(
        advised(&wings, ask(8, Arrange::Wings))
            .contains(&"fits on n if container 0 asks for 4 instead of 8 V devices".to_owned())
    );
}

/// A device of six slices.
fn sliced(device: &mut Device) {
    let profile = |name: &str, slices: u32, memory: u64, cores: u32| MigProfile {
        name: name.to_owned(),
        memory_bytes: memory * MIB,
        cores,
        slices,
        placements: Vec::new(),
    };
    device.mode = "drs".to_owned();
    device.slots = 6;
    device.mig_profiles = vec![
        profile("1g", 1, 166, 17),
        profile("3g", 3, 500, 50),
        profile("6g", 6, 1000, 100),
    ];
}

#[test]
fn six_slices_are_six_shares_whatever_their_compute_adds_up_to() {
    let mut cluster = cluster(vec![node("n", 1, sliced)]);
    let slices = |slices: u32| {
        let mut ask = Ask::new("V", 1, Memory::Bytes(0));
        ask.slices = Some(slices);
        ask
    };

    assert_eq!(take(&mut cluster, "a", slices(3)), "n: 0");
    for name in ["b", "c", "d"] {
        assert_eq!(take(&mut cluster, name, slices(1)), "n: 0");
    }
    assert_eq!(
        take(&mut cluster, "e", slices(1)),
        "1/1 CardTimeSlicingExhausted"
    );
    assert_eq!(take(&mut cluster, "f", slices(2)), "1/1 ModeNotFit");
    cluster.release("default/b");
    assert_eq!(
        take(&mut cluster, "g", slices(3)),
        "1/1 CardTimeSlicingExhausted"
    );
    assert_eq!(take(&mut cluster, "h", slices(1)), "n: 0");
}

#[test]
fn the_smallest_profile_that_is_large_enough_is_cut() {
    for (memory, cores, expected) in [
        (100, 0, 1),
        (167, 0, 3),
        (0, 18, 3),
        (500, 51, 6),
        (0, 0, 1),
    ] {
        let cluster = cluster(vec![node("n", 1, sliced)]);
        let mut ask = Ask::new("V", 1, Memory::Bytes(memory * MIB));
        ask.compute = Compute::Units(cores);

        let placement = cluster.place(&request("p", vec![ask]), Among::All).unwrap();

        assert_eq!(placement.containers[0].grants[0].slots, expected);
    }
}

#[test]
fn containers_that_belong_together_get_the_same_device() {
    let together = |mib: u64| {
        let mut ask = Ask::new("V", 1, Memory::Bytes(mib * MIB));
        ask.together = true;
        ask
    };
    let mut cluster = cluster(vec![node("n", 2, |_| {})]);
    let two = request("two", vec![together(400), together(400)]);

    let placement = cluster.place(&two, Among::All).unwrap();

    assert_eq!(shown(&placement), "n: 1; 1");
    cluster.reserve(two.pod, placement);
    // 200 MiB are left on one device and all on the other: the first container's first choice is not in the way.
    let pair = request("pair", vec![together(100), together(600)]);
    assert_eq!(shown(&cluster.place(&pair, Among::All).unwrap()), "n: 0; 0");
    let too_much = request("too-much", vec![together(900), together(150)]);
    let misfits = cluster.place(&too_much, Among::All).unwrap_err();
    assert_eq!(
        misfits[0].misfit.summary(),
        "1/2 CardInsufficientMemory, 1/2 CardNotFoundCustomFilterRule"
    );
}

#[test]
fn weighed_choice_does_not_depend_on_the_order_of_nodes() {
    let nodes: Vec<Node> = ["a", "b", "c", "d"]
        .iter()
        .zip([1, 2, 4, 2])
        .map(|(name, per_group)| {
            node(name, 4, |device| {
                device.group = Some(device.index / per_group)
            })
        })
        .collect();
    let request = request("p", vec![ask(2, Arrange::LargestGroups { worth: 10 })]);
    let mut told = nodes.clone();
    for _ in 0..told.len() {
        told.rotate_left(1);

        let placement = cluster(told.clone()).place(&request, Among::All).unwrap();

        assert_eq!(shown(&placement), "b: 3 2");
    }
}
