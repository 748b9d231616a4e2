//! Properties of devices of every kind, for any sequence of pods: a lane belongs to one pod, slices are not promised
//! twice, and shares are only on devices whose other shares they accept.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use std::collections::BTreeMap;

use placement::{
    Among, Arrange, Ask, Cluster, Company, Compute, Container, Device, Grant, Kind, Load, Memory,
    MigProfile, Node, NodePolicy, Pod, Request,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// Eight devices of each kind: with lanes, with slices, and with neither.
fn node(name: &str) -> Node {
    let mut devices = Vec::new();
    for index in 0..8 {
        let device = |vendor: &str| {
            let id = format!("{name}-{vendor}-{index}");
            let mut device = Device::new(vendor, &id, vendor, 1000 * MIB);
            device.index = index;
            device.slots = 4;
            device.group = Some(index / 3);
            device.module = Some(index / 2);
            device
        };
        let mut lanes = device("lanes");
        lanes.cores = 0b1111;
        lanes.tags.push(Device::RING.to_owned());
        let mut slices = device("slices");
        slices.slots = 6;
        slices.mig_profiles = [1, 2, 3, 6]
            .map(|slices| MigProfile {
                name: format!("{slices}g"),
                memory_bytes: u64::from(slices) * 1000 / 6 * MIB,
                cores: (slices * 100_u32).div_ceil(6),
                slices,
                placements: Vec::new(),
            })
            .to_vec();
        devices.extend([lanes, slices, device("shares")]);
    }
    Node {
        name: name.to_owned(),
        devices,
        pairs: Vec::new(),
    }
}

fn cluster(names: &[&str]) -> Cluster {
    let mut cluster = Cluster::new();
    for name in names {
        cluster.set_node(node(name)).unwrap();
    }
    cluster
}

/// Class `b` may share with `a` and `b`, `a` only with `a`, and `c` with no class.
fn accepts(class: &str) -> &'static [&'static str] {
    match class {
        "a" => &["a", "b"],
        "b" => &["a", "b"],
        _ => &[],
    }
}

fn asks() -> impl Strategy<Value = Ask> {
    let arranges = prop_oneof![
        Just(Arrange::Anyhow),
        Just(Arrange::LargestGroups { worth: 10 }),
        Just(Arrange::TightestGroup { weigh: true }),
        Just(Arrange::Wings),
        Just(Arrange::Apart),
    ];
    let lanes = (1_u32..4, 1_u32..6).prop_map(|(count, lanes)| {
        let mut ask = Ask::new("lanes", count, Memory::Bytes(0));
        ask.compute = Compute::Lanes(lanes);
        ask.arrange = Arrange::Row;
        ask
    });
    let slices = (1_u32..3, 1_u32..5, any::<bool>()).prop_map(|(count, size, exact)| {
        let mut ask = Ask::new("slices", count, Memory::Bytes(u64::from(size) * 150 * MIB));
        ask.slices = exact.then_some(size);
        ask
    });
    let shares = (
        1_u32..5,
        prop_oneof![Just(250_u64), Just(500)],
        prop_oneof![Just("a"), Just("b"), Just("c")],
        any::<bool>(),
        arranges,
    )
        .prop_map(|(count, mib, class, even, arrange)| {
            let mut ask = Ask::new("shares", count, Memory::Bytes(mib * MIB));
            ask.arrange = arrange;
            if even {
                ask.even = true;
                ask.company = None;
            } else {
                ask.company = Some(Company {
                    class: class.into(),
                    accepts: accepts(class).iter().map(|&class| class.into()).collect(),
                });
            }
            ask
        });
    let modules = (1_u32..4).prop_map(|modules| {
        let mut ask = Ask::new("shares", modules * 2, Memory::Percent(100));
        ask.arrange = Arrange::Modules { worth: 10 };
        ask
    });
    prop_oneof![lanes, slices, shares, modules]
}

fn request(name: usize, asks: Vec<Ask>, policy: NodePolicy) -> Request {
    Request {
        pod: Pod::named("default", &format!("pod-{name}")),
        containers: asks
            .into_iter()
            .map(|ask| Container {
                name: "c".to_owned(),
                kind: Kind::App,
                asks: vec![ask],
            })
            .collect(),
        node_policy: policy,
        any: None,
    }
}

fn used(cluster: &Cluster) -> Vec<(String, Load)> {
    cluster
        .nodes()
        .flat_map(|node| node.devices().collect::<Vec<_>>())
        .map(|device| (device.id().to_owned(), device.used()))
        .collect()
}

/// All grants by device.
fn by_device(cluster: &Cluster) -> BTreeMap<String, Vec<Grant>> {
    let mut devices: BTreeMap<String, Vec<Grant>> = BTreeMap::new();
    for reservation in cluster.reservations() {
        for grant in reservation
            .placement
            .containers
            .iter()
            .flat_map(|granted| &granted.grants)
        {
            let device = devices.entry(grant.device.as_ref().to_owned()).or_default();
            device.push(grant.clone());
        }
    }
    devices
}

fn judge(cluster: &Cluster) -> Result<(), TestCaseError> {
    for (device, grants) in by_device(cluster) {
        let slots: u32 = grants.iter().map(|grant| grant.slots).sum();
        let memory: u64 = grants.iter().map(|grant| grant.memory_bytes).sum();
        prop_assert!(memory <= 1000 * MIB, "{device}: {memory} bytes");
        if device.contains("-lanes-") {
            let mut taken = 0;
            for grant in &grants {
                prop_assert!(grant.cores > 0 && grant.cores <= 0b1111, "{device}");
                prop_assert_eq!(taken & grant.cores, 0, "{}: one lane for two", device);
                taken |= grant.cores;
            }
            prop_assert!(slots <= 4, "{device}");
        } else if device.contains("-slices-") {
            prop_assert!(slots <= 6, "{device}: {slots} slices");
        } else {
            prop_assert!(slots <= 4, "{device}");
            let classes: Vec<&str> = grants
                .iter()
                .filter_map(|grant| grant.class.as_deref())
                .collect();
            for (at, class) in classes.iter().enumerate() {
                let others = classes.iter().enumerate().filter(|(other, _)| *other != at);
                for (_, other) in others {
                    prop_assert!(
                        accepts(class).contains(other),
                        "{device}: {class} beside {other}"
                    );
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_device_is_promised_twice_for_any_sequence_of_pods(
        steps in proptest::collection::vec((asks(), proptest::option::of(asks()), any::<bool>(), 0_usize..30), 1..30),
    ) {
        let mut cluster = cluster(&["n1", "n2"]);
        let mut backwards = self::cluster(&["n2", "n1"]);
        for (number, (first, second, spread, leaving)) in steps.into_iter().enumerate() {
            let policy = if spread { NodePolicy::Spread } else { NodePolicy::Binpack };
            let asks = [Some(first), second].into_iter().flatten().collect();
            let request = request(number, asks, policy);
            let before = used(&cluster);

            let placed = cluster.place(&request, Among::All);

            prop_assert_eq!(&placed, &backwards.place(&request, Among::All));
            if let Ok(placement) = placed {
                cluster.reserve(request.pod.clone(), placement.clone());
                judge(&cluster)?;
                // A released pod leaves no trace.
                cluster.release(&request.pod.uid);
                prop_assert_eq!(&before, &used(&cluster));
                cluster.reserve(request.pod.clone(), placement.clone());
                backwards.reserve(request.pod, placement);
            }
            if leaving < number && leaving % 3 == 0 {
                let uid = format!("default/pod-{leaving}");
                cluster.release(&uid);
                backwards.release(&uid);
            }
        }
    }

    #[test]
    fn of_weighed_nodes_the_best_is_taken(
        taken in proptest::collection::vec((0_usize..3, 0_u32..8), 0..14),
        count in 1_u32..5,
        spread in any::<bool>(),
    ) {
        // The bonus is checked by placing on each node alone and comparing the shares of the largest group.
        let mut cluster = cluster(&["n1", "n2", "n3"]);
        for (number, (node, index)) in taken.into_iter().enumerate() {
            let mut ask = Ask::new("shares", 1, Memory::Percent(100));
            ask.select.use_ids = vec![format!("n{}-shares-{index}", node + 1)];
            let request = request(100 + number, vec![ask], NodePolicy::Binpack);
            if let Ok(placement) = cluster.place(&request, Among::All) {
                cluster.reserve(request.pod, placement);
            }
        }
        let mut ask = Ask::new("shares", count, Memory::Percent(100));
        ask.arrange = Arrange::LargestGroups { worth: 1000 };
        let policy = if spread { NodePolicy::Spread } else { NodePolicy::Binpack };
        let request = request(0, vec![ask], policy);
        let share = |node: &str| -> Option<usize> {
            let placement = cluster.place_on(&request, node).ok()?;
            let mut groups: BTreeMap<u32, usize> = BTreeMap::new();
            for grant in &placement.containers[0].grants {
                let index: u32 = grant.device.rsplit_once('-').unwrap().1.parse().unwrap();
                *groups.entry(index / 3).or_default() += 1;
            }
            groups.values().max().copied()
        };
        let best = ["n1", "n2", "n3"].iter().filter_map(|node| share(node)).max();

        let placed = cluster.place(&request, Among::All).ok();

        prop_assert_eq!(placed.map(|placement| share(&placement.node).unwrap()), best);
    }
}
