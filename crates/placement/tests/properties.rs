//! Properties of every cluster and every request, on small random ones, compared with plain enumeration.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use placement::{
    Among, Ask, Change, Cluster, Compute, Container, Device, DevicePolicy, Kind, Load, Memory,
    MigProfile, Node, NodePolicy, PairScore, Placement, Pod, Quota, Remembered, Request, Selection,
    Span,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};

const MIB: u64 = 1 << 20;

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn device() -> impl Strategy<Value = Device> {
    (
        1_u64..9,
        1_u32..4,
        prop_oneof![Just(100_u32), Just(0)],
        0_u32..2,
        select(vec!["A100", "H100"]),
        prop::bool::weighted(0.9),
        prop::bool::weighted(0.1),
        prop::option::of(0_u32..2),
    )
        .prop_map(
            |(memory, slots, cores, numa, model, healthy, cordoned, group)| Device {
                slots,
                cores,
                numa,
                healthy,
                cordoned,
                group,
                ..Device::new("NVIDIA", "", model, memory * MIB)
            },
        )
}

fn mig_device() -> impl Strategy<Value = Device> {
    Just(Device {
        mode: "mig".to_owned(),
        slots: 7,
        mig_profiles: [
            ("1g.1", 1, 1),
            ("2g.2", 2, 2),
            ("3g.4", 4, 4),
            ("7g.8", 8, 8),
        ]
        .into_iter()
        .map(|(name, memory, size)| MigProfile {
            name: name.to_owned(),
            memory_bytes: memory * MIB,
            cores: if size == 8 { 100 } else { 14 * size },
            slices: size,
            placements: (0..8 / size)
                .map(|at| Span {
                    start: at * size,
                    size,
                })
                .collect(),
        })
        .collect(),
        ..Device::new("NVIDIA", "", "A100", 8 * MIB)
    })
}

fn node(name: &'static str, devices: impl Strategy<Value = Device>) -> impl Strategy<Value = Node> {
    (
        prop::collection::vec(devices, 1..4),
        prop::collection::vec((0_usize..3, 0_usize..3, 0_i32..3), 0..4),
    )
        .prop_map(move |(mut devices, pairs)| {
            for (index, device) in devices.iter_mut().enumerate() {
                device.id = format!("{name}-{index}");
                device.index = u32::try_from(index).unwrap();
            }
            Node {
                name: name.to_owned(),
                pairs: pairs
                    .into_iter()
                    .map(|(from, to, score)| PairScore {
                        from: format!("{name}-{from}"),
                        to: format!("{name}-{to}"),
                        score: score * 100,
                    })
                    .collect(),
                devices,
            }
        })
}

fn nodes() -> impl Strategy<Value = Vec<Node>> {
    let any = || prop_oneof![4 => device(), 1 => mig_device()];
    (node("a", any()), node("b", any()), node("c", any())).prop_map(|(a, b, c)| vec![a, b, c])
}

fn plain_nodes() -> impl Strategy<Value = Vec<Node>> {
    (node("a", device()), node("b", device())).prop_map(|(a, b)| vec![a, b])
}

fn policy() -> impl Strategy<Value = DevicePolicy> {
    select(vec![
        DevicePolicy::Spread,
        DevicePolicy::Binpack,
        DevicePolicy::Mutex,
        DevicePolicy::TopologyAware,
    ])
}

fn ask() -> impl Strategy<Value = Ask> {
    (
        1_u32..4,
        prop_oneof![
            4 => (0_u64..9).prop_map(|mib| Memory::Bytes(mib * MIB)),
            1 => (1_u32..101).prop_map(Memory::Percent)
        ],
        select(vec![0_u32, 0, 10, 50, 60, 100]),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        policy(),
        select(vec!["", "", "", "a100", "h100"]),
    )
        .prop_map(
            |(count, memory, cores, exclusive, numa_bind, prefer_group, policy, model)| Ask {
                compute: Compute::Units(cores),
                exclusive,
                numa_bind,
                prefer_group,
                policy,
                select: Selection {
                    use_types: vec![model.to_owned()],
                    ..Selection::default()
                },
                ..Ask::new("NVIDIA", count, memory)
            },
        )
}

fn request(kinds: Vec<Kind>) -> impl Strategy<Value = Request> {
    (
        prop::collection::vec((select(kinds), ask()), 1..4),
        select(vec![NodePolicy::Binpack, NodePolicy::Spread]),
    )
        .prop_map(|(asks, node_policy)| Request {
            pod: Pod::default(),
            containers: asks
                .into_iter()
                .map(|(kind, ask)| Container {
                    name: String::new(),
                    kind,
                    asks: vec![ask],
                })
                .collect(),
            node_policy,
            any: None,
        })
}

fn any_request() -> impl Strategy<Value = Request> {
    request(vec![Kind::App, Kind::App, Kind::Init, Kind::Sidecar])
}

fn named(request: &Request, at: usize) -> Request {
    Request {
        pod: Pod::named("default", &format!("pod-{at}")),
        ..request.clone()
    }
}

fn cluster(nodes: &[Node]) -> Cluster {
    let mut cluster = Cluster::new();
    for node in nodes {
        cluster.set_node(node.clone()).unwrap();
    }
    cluster
}

/// The use of every device, and its instances.
fn used(cluster: &Cluster) -> Vec<(String, Load, Vec<Span>)> {
    cluster
        .nodes()
        .flat_map(|node| node.devices().collect::<Vec<_>>())
        .map(|device| {
            let mut spans: Vec<Span> = device.instances().iter().map(|held| held.span).collect();
            spans.sort();
            (device.id().to_owned(), device.used(), spans)
        })
        .collect()
}

/// Adds up the placements for each moment of each pod's life, without the engine's help.
fn assert_within_capacity(cluster: &Cluster) {
    for node in cluster.nodes() {
        for device in node.devices() {
            let total = device.device();
            let mut sum = Load::default();
            for held in cluster.reservations_on(node.name()) {
                let containers = &held.placement.containers;
                let mut moments: Vec<Vec<usize>> = Vec::new();
                let mut sidecars: Vec<usize> = Vec::new();
                for (at, granted) in containers.iter().enumerate() {
                    match granted.kind {
                        Kind::Init if held.initialised => {}
                        Kind::Init => {
                            let mut moment = sidecars.clone();
                            moment.push(at);
                            moments.push(moment);
                        }
                        Kind::Sidecar => sidecars.push(at),
                        Kind::App => {}
                    }
                }
                let apps = (0..containers.len()).filter(|&at| containers[at].kind == Kind::App);
                moments.push(sidecars.into_iter().chain(apps).collect());
                let mut peak = Load::default();
                for moment in moments {
                    let mut load = Load::default();
                    let mut spans: Vec<Span> = Vec::new();
                    for grant in moment.iter().flat_map(|&at| &containers[at].grants) {
                        if *grant.device == *device.id() {
                            load.slots += grant.slots;
                            load.cores += grant.cores;
                            load.memory_bytes += grant.memory_bytes;
                            spans.extend(grant.instance.iter().map(|instance| instance.span));
                        }
                    }
                    for (at, span) in spans.iter().enumerate() {
                        assert!(!spans[at + 1..].iter().any(|other| other.overlaps(*span)));
                    }
                    peak.slots = peak.slots.max(load.slots);
                    peak.cores = peak.cores.max(load.cores);
                    peak.memory_bytes = peak.memory_bytes.max(load.memory_bytes);
                }
                sum.slots += peak.slots;
                sum.cores += peak.cores;
                sum.memory_bytes += peak.memory_bytes;
            }
            assert_eq!(device.used(), sum, "{}", device.id());
            assert!(sum.slots <= total.slots, "slots of {}", device.id());
            assert!(
                sum.memory_bytes <= total.memory_bytes,
                "memory of {}",
                device.id()
            );
            if total.is_mig() {
                let held = device.instances();
                for (at, one) in held.iter().enumerate() {
                    assert!(
                        !held[at + 1..]
                            .iter()
                            .any(|other| other.span.overlaps(one.span))
                    );
                }
            } else {
                assert!(sum.cores <= total.cores, "cores of {}", device.id());
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Place(Request),
    Release(Index),
    Initialised(Index),
    Report(Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any_request().prop_map(Step::Place),
        2 => any::<Index>().prop_map(Step::Release),
        1 => any::<Index>().prop_map(Step::Initialised),
        1 => any::<Index>().prop_map(Step::Report),
    ]
}

fn take_step(cluster: &mut Cluster, nodes: &[Node], at: usize, step: &Step) {
    match step {
        Step::Place(request) => {
            let request = named(request, at);
            if let Ok(placement) = cluster.place(&request, Among::All) {
                cluster.reserve(request.pod, placement);
            }
        }
        Step::Release(index) => {
            cluster.release(&format!("default/pod-{}", index.index(at + 1)));
        }
        Step::Initialised(index) => {
            cluster.initialised(&format!("default/pod-{}", index.index(at + 1)));
        }
        Step::Report(index) => {
            let node = nodes[index.index(nodes.len())].clone();
            cluster.remove_node(&node.name);
            cluster.set_node(node).unwrap();
        }
    }
}

/// The cluster after these steps.
fn after(nodes: &[Node], steps: &[Step]) -> Cluster {
    let mut cluster = cluster(nodes);
    for (at, step) in steps.iter().enumerate() {
        take_step(&mut cluster, nodes, at, step);
    }
    cluster
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..12)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn nothing_is_promised_twice(nodes in nodes(), steps in steps()) {
        assert_within_capacity(&after(&nodes, &steps));
    }

    #[test]
    fn what_is_remembered_changes_no_answer(
        nodes in nodes(),
        steps in steps(),
        questions in prop::collection::vec(any_request(), 1..12),
        quota in any::<bool>(),
    ) {
        let mut cluster = cluster(&nodes);
        if quota {
            let limit = Quota { memory_bytes: Some(9 * MIB), ..Quota::default() };
            cluster.set_quota("default", "q", &[], &[("NVIDIA".into(), limit)]);
        }
        let mut remembered = Remembered::default();
        for (at, step) in steps.iter().enumerate() {
            take_step(&mut cluster, &nodes, at, step);
            for (number, question) in questions.iter().enumerate() {
                // Some of them already hold something.
                let question = named(question, number);
                let names = ["b", "x", "a", "c"];
                for among in [Among::All, Among::Names(&names)] {
                    prop_assert_eq!(
                        cluster.place_again(&question, among, &mut remembered),
                        cluster.place(&question, among)
                    );
                }
            }
        }
    }

    #[test]
    fn release_undoes_reserve(nodes in nodes(), steps in steps(), request in any_request()) {
        let mut cluster = after(&nodes, &steps);
        let before = used(&cluster);
        let request = named(&request, 99);

        if let Ok(placement) = cluster.place(&request, Among::All) {
            cluster.reserve(request.pod.clone(), placement.clone());
            let taken = used(&cluster);
            let held = cluster.release(&request.pod.uid).unwrap();
            prop_assert_eq!(&held.placement, &placement);
            prop_assert_eq!(used(&cluster), before.clone());

            // Replacing a reservation by itself changes nothing, and returns the replaced one.
            cluster.reserve(request.pod.clone(), placement.clone());
            cluster.reserve(request.pod.clone(), placement);
            prop_assert_eq!(used(&cluster), taken);
            cluster.release(&request.pod.uid);
        }
        for uid in cluster.reservations().map(|held| held.pod.uid.clone()).collect::<Vec<_>>() {
            cluster.release(&uid);
        }
        for (_, load, spans) in used(&cluster) {
            prop_assert_eq!(load, Load::default());
            prop_assert_eq!(spans, vec![]);
        }
    }

    #[test]
    fn answer_does_not_depend_on_the_order_of_changes(
        nodes in nodes(),
        steps in steps(),
        request in any_request(),
        seed in any::<u64>(),
    ) {
        let told = after(&nodes, &steps);
        let request = named(&request, 99);
        let mut shuffled = Cluster::new();
        let mut held: Vec<_> = told.reservations().cloned().collect();
        held.sort_by_key(|held| (held.pod.uid.len(), held.pod.uid.clone()));
        let by = usize::try_from(seed % 7).unwrap().min(held.len());
        held.rotate_left(by);
        let mut others = nodes.clone();
        others.reverse();
        for node in &mut others {
            node.devices.reverse();
            node.pairs.reverse();
        }
        let late = others.split_off(usize::try_from(seed % 3).unwrap());
        for node in others {
            shuffled.set_node(node).unwrap();
        }
        for held in &held {
            shuffled.reserve(held.pod.clone(), held.placement.clone());
            if held.initialised {
                shuffled.initialised(&held.pod.uid);
            }
        }
        for node in late {
            shuffled.set_node(node).unwrap();
        }

        prop_assert_eq!(used(&shuffled), used(&told));
        let names = ["c", "a", "b"];
        let answer = shuffled.place(&request, Among::Names(&names));
        prop_assert_eq!(&answer, &told.place(&request, Among::All));
        prop_assert_eq!(
            shuffled.explain(&request, Among::Names(&names)),
            told.explain(&request, Among::All)
        );
    }

    #[test]
    fn the_chosen_node_is_the_best_of_those_that_fit(
        nodes in nodes(),
        steps in steps(),
        request in any_request(),
    ) {
        let cluster = after(&nodes, &steps);
        let request = named(&request, 99);
        let ranked = cluster.rank(&request, Among::All);
        let mut best: Option<(&str, f64)> = None;
        for (name, result) in &ranked {
            let Ok(score) = result else { continue };
            let better = best.is_none_or(|(_, so_far)| match request.node_policy {
                NodePolicy::Binpack => *score > so_far,
                NodePolicy::Spread => *score < so_far,
            });
            if better {
                best = Some((name, *score));
            }
        }
        let chosen = cluster.place(&request, Among::All);
        match &chosen {
            Ok(placement) => prop_assert_eq!(Some(&*placement.node), best.map(|(name, _)| name)),
            Err(misfits) => {
                prop_assert_eq!(best, None);
                prop_assert_eq!(misfits.len(), nodes.len());
            }
        }
        for node in &nodes {
            let alone = cluster.place_on(&request, &node.name);
            if let Ok(placement) = &chosen
                && *placement.node == *node.name
            {
                prop_assert_eq!(Ok(placement), alone.as_ref());
            }
        }
    }
}

/// Whether the pod fits on the node, by trying every assignment of devices to its containers. All of them run at the
/// same time, and no device is in MIG mode.
fn fits_somehow(cluster: &Cluster, node: &str, request: &Request) -> bool {
    let view = cluster.node(node).unwrap();
    let devices: Vec<(Device, Load)> = view
        .devices()
        .map(|device| (device.device().clone(), device.used()))
        .collect();
    let mut loads: Vec<Load> = devices.iter().map(|(_, used)| *used).collect();
    return go(&devices, &mut loads, &request.containers, 0);

    fn go(
        devices: &[(Device, Load)],
        loads: &mut Vec<Load>,
        containers: &[Container],
        at: usize,
    ) -> bool {
        let Some(container) = containers.get(at) else {
            return true;
        };
        let ask = &container.asks[0];
        let wanted = usize::try_from(ask.count).unwrap();
        (0_u32..1 << devices.len())
            .filter(|set| usize::try_from(set.count_ones()) == Ok(wanted))
            .any(|set| {
                let chosen: Vec<usize> = (0..devices.len())
                    .filter(|index| set & (1 << index) != 0)
                    .collect();
                let one_numa = chosen
                    .iter()
                    .all(|&index| devices[index].0.numa == devices[chosen[0]].0.numa);
                if ask.numa_bind && !one_numa {
                    return false;
                }
                let before = loads.clone();
                let fits = chosen
                    .iter()
                    .all(|&index| take(&devices[index].0, &mut loads[index], ask))
                    && go(devices, loads, containers, at + 1);
                *loads = before;
                fits
            })
    }

    fn take(device: &Device, load: &mut Load, ask: &Ask) -> bool {
        let memory = match ask.memory {
            Memory::Bytes(bytes) => bytes,
            Memory::Percent(percent) => {
                let part = device.memory_bytes * u64::from(percent) / 100;
                if part >= MIB { part / MIB * MIB } else { part }
            }
        };
        let Compute::Units(cores) = ask.compute else {
            return false;
        };
        let wanted = &ask.select.use_types;
        let alone = ask.exclusive || ask.policy == DevicePolicy::Mutex;
        let slots = if ask.exclusive { device.slots } else { 1 };
        let fits = device.healthy
            && !device.cordoned
            && (wanted.concat().is_empty()
                || wanted
                    .iter()
                    .any(|model| device.model.to_lowercase().contains(&model.to_lowercase())))
            && load.slots + slots <= device.slots
            && !(alone && load.slots > 0)
            && load.memory_bytes + memory <= device.memory_bytes
            && load.cores + cores <= device.cores
            && !(device.cores == 100 && cores == 100 && load.slots > 0)
            && !(device.cores > 0 && load.cores == device.cores && cores == 0);
        load.slots += slots;
        load.memory_bytes += memory;
        load.cores += cores;
        fits
    }
}

fn apps() -> impl Strategy<Value = Request> {
    request(vec![Kind::App])
}

fn placed(nodes: &[Node], requests: &[Request]) -> Cluster {
    let steps: Vec<Step> = requests.iter().cloned().map(Step::Place).collect();
    after(nodes, &steps)
}

fn fits(cluster: &Cluster, nodes: &[Node], request: &Request) -> bool {
    nodes
        .iter()
        .any(|node| fits_somehow(cluster, &node.name, request))
}

fn place(cluster: &Cluster, request: &Request) -> Option<Placement> {
    cluster.place(request, Among::All).ok()
}

/// The request with the first ask of a container changed.
fn with(request: &Request, container: usize, change: impl Fn(&mut Ask)) -> Request {
    let mut request = request.clone();
    change(&mut request.containers[container].asks[0]);
    request
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_pod_that_fits_in_some_way_is_placed(
        nodes in plain_nodes(),
        before in prop::collection::vec(apps(), 0..5),
        request in apps(),
    ) {
        let cluster = placed(&nodes, &before);
        let request = named(&request, 99);

        prop_assert_eq!(place(&cluster, &request).is_some(), fits(&cluster, &nodes, &request));
    }

    #[test]
    fn advice_works_and_nothing_smaller_does(
        nodes in plain_nodes(),
        before in prop::collection::vec(apps(), 0..5),
        request in apps(),
    ) {
        let cluster = placed(&nodes, &before);
        let request = named(&request, 99);
        let Ok(explanation) = cluster.explain(&request, Among::All) else {
            prop_assert!(fits(&cluster, &nodes, &request));
            return Ok(());
        };
        let fits_now = |request: &Request| fits(&cluster, &nodes, request);
        for advice in &explanation.advice {
            // The advice works.
            let mut changed = cluster.clone();
            for change in &advice.changes {
                match change {
                    Change::PodsLeave { pods } => {
                        for pod in pods {
                            changed.release(&pod.uid).unwrap();
                        }
                    }
                    Change::Uncordon { devices } | Change::Recover { devices } => {
                        for id in devices {
                            let mut node = nodes.iter().find(|node| node.name == *advice.node).unwrap().clone();
                            let others: Vec<Device> = changed
                                .node(&node.name)
                                .unwrap()
                                .devices()
                                .map(|device| device.device().clone())
                                .collect();
                            node.devices = others;
                            let device = node.devices.iter_mut().find(|device| *device.id == **id).unwrap();
                            device.healthy |= matches!(change, Change::Recover { .. });
                            device.cordoned &= !matches!(change, Change::Uncordon { .. });
                            changed.set_node(node).unwrap();
                        }
                    }
                    _ => {}
                }
            }
            let asked = advice.applied_to(&request);
            prop_assert!(place(&changed, &asked).is_some(), "{advice}");
            prop_assert!(fits_somehow(&changed, &advice.node, &asked), "{advice}");
            // If there are several changes, none is enough alone, at any amount.
            let [change] = advice.changes.as_slice() else {
                continue;
            };
            // No smaller change of the kind is enough.
            match change {
                Change::LessMemory { container, from: Memory::Bytes(from), to: Memory::Bytes(to), .. } => {
                    for mib in to / MIB + 1..from / MIB {
                        let less = with(&request, *container, |ask| ask.memory = Memory::Bytes(mib * MIB));
                        prop_assert!(!fits_now(&less), "{advice}, but {mib} MiB fits");
                    }
                }
                Change::LessMemory { container, from: Memory::Percent(from), to: Memory::Percent(to), .. } => {
                    for percent in to + 1..*from {
                        let less = with(&request, *container, |ask| ask.memory = Memory::Percent(percent));
                        prop_assert!(!fits_now(&less), "{advice}, but {percent} % fits");
                    }
                }
                Change::LessCores { container, from, to, .. } => {
                    for cores in to + 1..*from {
                        let less = with(&request, *container, |ask| ask.compute = Compute::Units(cores));
                        prop_assert!(!fits_now(&less), "{advice}, but {cores} cores fit");
                    }
                }
                Change::FewerDevices { container, from, to, .. } => {
                    for count in to + 1..*from {
                        let less = with(&request, *container, |ask| ask.count = count);
                        prop_assert!(!fits_now(&less), "{advice}, but {count} devices fit");
                    }
                }
                Change::PodsLeave { pods } => {
                    for node in &nodes {
                        for leaving in subsets(&cluster, &node.name) {
                            let mut fewer = cluster.clone();
                            for uid in &leaving {
                                fewer.release(uid);
                            }
                            let less = leaving.len() < pods.len();
                            prop_assert!(!(less && fits_somehow(&fewer, &node.name, &request)), "{advice}, but {leaving:?} is enough");
                        }
                    }
                }
                _ => {}
            }
        }
        // Every sufficient change is in the advice.
        let single = |is: &dyn Fn(&Change) -> bool| {
            explanation
                .advice
                .iter()
                .any(|advice| matches!(advice.changes.as_slice(), [change] if is(change)))
        };
        for container in 0..request.containers.len() {
            let ask = &request.containers[container].asks[0];
            let least = match ask.memory {
                Memory::Bytes(bytes) => Memory::Bytes(bytes.min(MIB)),
                Memory::Percent(_) => Memory::Percent(1),
            };
            if fits_now(&with(&request, container, |ask| ask.memory = least)) {
                let advised = single(&|change| matches!(change, Change::LessMemory { container: at, .. } if *at == container));
                prop_assert!(advised);
            }
            if fits_now(&with(&request, container, |ask| ask.compute = Compute::Units(0))) {
                let advised = single(&|change| matches!(change, Change::LessCores { container: at, .. } if *at == container));
                prop_assert!(advised);
            }
            if fits_now(&with(&request, container, |ask| ask.count = 1)) {
                let advised = single(&|change| matches!(change, Change::FewerDevices { container: at, .. } if *at == container));
                prop_assert!(advised);
            }
            if fits_now(&with(&request, container, |ask| ask.select.use_types = vec![String::new()])) {
                // Containers with the same type rules get the same advice.
                let advised = explanation.advice.iter().any(|advice| {
                    let of_models = |change: &Change| matches!(change, Change::AllowModel { .. });
                    let this = |change: &Change| matches!(change, Change::AllowModel { container: at, .. } if *at == container);
                    advice.changes.iter().all(of_models) && advice.changes.iter().any(this)
                });
                prop_assert!(advised);
            }
        }
        for node in &nodes {
            let mut empty = cluster.clone();
            for uid in subsets(&cluster, &node.name).last().unwrap() {
                empty.release(uid);
            }
            if fits_somehow(&empty, &node.name, &request) {
                let advised = single(&|change| matches!(change, Change::PodsLeave { .. }));
                prop_assert!(advised);
            }
        }
    }
}

/// All sets of pods on the node; the last is all of them.
fn subsets(cluster: &Cluster, node: &str) -> Vec<Vec<String>> {
    let uids: Vec<String> = cluster
        .reservations_on(node)
        .map(|held| held.pod.uid.clone())
        .collect();
    (0_u32..1 << uids.len())
        .map(|set| {
            (0..uids.len())
                .filter(|at| set & (1 << at) != 0)
                .map(|at| uids[at].clone())
                .collect()
        })
        .collect()
}
