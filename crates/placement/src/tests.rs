//! The engine's guarantees, by example.

use crate::*;

const GIB: u64 = 1 << 30;

pub(crate) fn node(name: &str, memories: &[u64]) -> Node {
    Node {
        name: name.to_owned(),
        devices: memories
            .iter()
            .enumerate()
            .map(|(index, gib)| Device {
                index: u32::try_from(index).unwrap(),
                ..Device::new("NVIDIA", &format!("GPU-{index}"), "NVIDIA A100", gib * GIB)
            })
            .collect(),
        pairs: Vec::new(),
    }
}

fn cluster(nodes: &[Node]) -> Cluster {
    let mut cluster = Cluster::new();
    for node in nodes {
        cluster.set_node(node.clone()).unwrap();
    }
    cluster
}

pub(crate) fn asking(name: &str, asks: &[Ask]) -> Request {
    Request {
        pod: Pod::named("default", name),
        containers: vec![Container {
            name: "main".to_owned(),
            kind: Kind::App,
            asks: asks.to_vec(),
        }],
        node_policy: NodePolicy::Binpack,
        any: None,
    }
}

pub(crate) fn gib(count: u32, gib: u64) -> Ask {
    Ask::new("NVIDIA", count, Memory::Bytes(gib * GIB))
}

/// `node:device,device;device` for each container's devices.
fn text(placement: &Placement) -> String {
    let containers: Vec<String> = placement
        .containers
        .iter()
        .map(|granted| {
            let devices: Vec<&str> = granted
                .grants
                .iter()
                .map(|grant| grant.device.strip_prefix("GPU-").unwrap_or(&grant.device))
                .collect();
            devices.join(",")
        })
        .collect();
    format!("{}:{}", placement.node, containers.join(";"))
}

fn place(cluster: &mut Cluster, request: &Request) -> String {
    match cluster.place(request, Among::All) {
        Ok(placement) => {
            let text = text(&placement);
            cluster.reserve(request.pod.clone(), placement);
            text
        }
        Err(misfits) => misfits
            .iter()
            .map(|misfit| format!("{}: {}", misfit.node, misfit.misfit.summary()))
            .collect::<Vec<_>>()
            .join("\n"),
    }
}

#[test]
fn pod_gets_a_device_with_room_and_reserve_takes_it() {
    let mut cluster = cluster(&[node("n1", &[80, 80])]);

    assert_eq!(place(&mut cluster, &asking("a", &[gib(1, 50)])), "n1:1");
    assert_eq!(place(&mut cluster, &asking("b", &[gib(1, 50)])), "n1:0");
    assert_eq!(
        place(&mut cluster, &asking("c", &[gib(1, 50)])),
        "n1: 2/2 CardInsufficientMemory"
    );
}

#[test]
fn released_devices_can_be_taken_again() {
    let mut cluster = cluster(&[node("n1", &[80])]);
    place(&mut cluster, &asking("a", &[gib(1, 50)]));

    let released = cluster.release("default/a").unwrap();

    assert_eq!(released.load().memory_bytes, 50 * GIB);
    assert_eq!(place(&mut cluster, &asking("b", &[gib(1, 80)])), "n1:0");
}

#[test]
fn a_pods_own_reservation_does_not_stand_in_its_way() {
    let mut cluster = cluster(&[node("n1", &[80])]);
    place(&mut cluster, &asking("a", &[gib(1, 50)]));

    assert_eq!(place(&mut cluster, &asking("a", &[gib(1, 60)])), "n1:0");
    let used = cluster.node("n1").unwrap().devices().next().unwrap().used();
    assert_eq!(used.memory_bytes, 60 * GIB);
}

/// A cluster of one node with these devices.
fn one(devices: Vec<Device>) -> Cluster {
    let devices = devices
        .into_iter()
        .enumerate()
        .map(|(index, device)| Device {
            index: u32::try_from(index).unwrap(),
            id: format!("GPU-{index}"),
            ..device
        })
        .collect();
    cluster(&[Node {
        name: "n".to_owned(),
        devices,
        pairs: Vec::new(),
    }])
}

fn device(gib: u64) -> Device {
    Device::new("NVIDIA", "", "NVIDIA A100", gib * GIB)
}

fn mig_device() -> Device {
    let profile = |name: &str, gib: u64, cores: u32, slices: u32, starts: &[u32], size: u32| {
        let placements = starts.iter().map(|&start| Span { start, size }).collect();
        MigProfile {
            name: name.to_owned(),
            memory_bytes: gib * GIB,
            cores,
            slices,
            placements,
        }
    };
    Device {
        mode: "mig".to_owned(),
        slots: 7,
        mig_profiles: vec![
            profile("1g.10gb", 10, 15, 1, &[0, 1, 2, 3, 4, 5, 6], 1),
            profile("2g.20gb", 20, 29, 2, &[0, 2, 4], 2),
            profile("3g.40gb", 40, 43, 3, &[0, 4], 4),
            profile("7g.80gb", 80, 100, 7, &[0], 8),
        ],
        ..device(80)
    }
}

fn pod(name: &str, containers: &[(Kind, Ask)]) -> Request {
    Request {
        pod: Pod::named("default", name),
        containers: containers
            .iter()
            .map(|(kind, ask)| Container {
                name: String::new(),
                kind: *kind,
                asks: vec![ask.clone()],
            })
            .collect(),
        node_policy: NodePolicy::Binpack,
        any: None,
    }
}

fn used_gib(cluster: &Cluster) -> Vec<u64> {
    cluster
        .nodes()
        .flat_map(|node| node.devices().collect::<Vec<_>>())
        .map(|device| device.used().memory_bytes / GIB)
        .collect()
}

fn advice(cluster: &Cluster, request: &Request) -> Vec<String> {
    cluster
        .explain(request, Among::All)
        .unwrap()
        .advice
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn init_containers_hold_their_peak_until_they_end() {
    let mut cluster = one(vec![device(80)]);
    let request = pod(
        "a",
        &[
            (Kind::Init, gib(1, 60)),
            (Kind::Init, gib(1, 70)),
            (Kind::App, gib(1, 30)),
        ],
    );

    assert_eq!(place(&mut cluster, &request), "n:0;0;0");
    assert_eq!(used_gib(&cluster), [70]);

    assert!(cluster.initialised("default/a"));
    assert_eq!(used_gib(&cluster), [30]);
}

#[test]
fn sidecar_counts_with_later_init_and_app_containers() {
    let containers = |init: u64, app: u64| {
        pod(
            "a",
            &[
                (Kind::Init, gib(1, 70)),
                (Kind::Sidecar, gib(1, 20)),
                (Kind::Init, gib(1, init)),
                (Kind::App, gib(1, app)),
            ],
        )
    };

    assert_eq!(
        place(&mut one(vec![device(80)]), &containers(60, 60)),
        "n:0;0;0;0"
    );
    for (init, app) in [(61, 60), (60, 61)] {
        let mut cluster = one(vec![device(80)]);
        let answer = place(&mut cluster, &containers(init, app));
        assert_eq!(answer, "n: 1/1 CardInsufficientMemory");
    }
}

#[test]
fn container_that_leaves_no_room_for_the_next_is_moved() {
    let mut cluster = one(vec![device(80), device(40)]);
    let request = pod(
        "a",
        &[
            (
                Kind::App,
                Ask {
                    policy: DevicePolicy::Spread,
                    ..gib(1, 30)
                },
            ),
            (Kind::App, gib(1, 80)),
        ],
    );

    assert_eq!(place(&mut cluster, &request), "n:1;0");
}

#[test]
fn exclusive_request_gets_only_an_unused_device() {
    let mut cluster = one(vec![device(80), device(80)]);
    place(&mut cluster, &asking("a", &[gib(1, 1)]));
    let exclusive = Ask {
        exclusive: true,
        ..gib(1, 10)
    };

    assert_eq!(
        place(&mut cluster, &asking("b", std::slice::from_ref(&exclusive))),
        "n:0"
    );
    assert_eq!(place(&mut cluster, &asking("c", &[gib(1, 1)])), "n:1");
    assert_eq!(
        place(&mut cluster, &asking("d", &[exclusive])),
        "n: 1/2 CardTimeSlicingExhausted, 1/2 ExclusiveDeviceAllocateConflict"
    );
}

#[test]
fn an_instance_is_as_large_as_memory_and_compute_ask() {
    let mut cluster = one(vec![mig_device()]);
    let half = Ask {
        compute: Compute::Units(30),
        ..gib(1, 8)
    };

    let placement = cluster.place(&asking("a", &[half]), Among::All).unwrap();

    let grant = &placement.containers[0].grants[0];
    assert_eq!(grant.memory_bytes, 40 * GIB);
    assert_eq!(grant.cores, 43);
    let instance = grant.instance.clone().unwrap();
    assert_eq!((&*instance.profile, instance.span.start), ("3g.40gb", 4));
    cluster.reserve(Pod::named("default", "a"), placement);
    assert_eq!(
        place(
            &mut cluster,
            &asking("b", &[Ask::new("NVIDIA", 1, Memory::Percent(100))])
        ),
        "n: 1/1 CardInsufficientMemory"
    );
}

#[test]
fn another_choice_takes_several_instances_of_one_device() {
    let mig = Device {
        slots: 2,
        ..mig_device()
    };
    let cluster = one(vec![mig, device(16), device(8)]);
    let only_the_second = Ask {
        select: Selection {
            use_ids: vec!["GPU-1".to_owned()],
            ..Selection::default()
        },
        ..gib(1, 9)
    };
    let request = pod("a", &[(Kind::App, gib(3, 8)), (Kind::App, only_the_second)]);

    // The first container leaves the second device free only if it takes both instances of the first one.
    let placement = cluster.place(&request, Among::All).unwrap();

    assert_eq!(text(&placement), "n:0,0,2;1");
}

#[test]
fn a_request_for_less_memory_fits_where_one_for_more_does() {
    let profile = |name: &str, gib: u64, slices: u32, starts: &[u32], size: u32| MigProfile {
        name: name.to_owned(),
        memory_bytes: gib * GIB,
        cores: slices * 50,
        slices,
        placements: starts.iter().map(|&start| Span { start, size }).collect(),
    };
    let mig = Device {
        mode: "mig".to_owned(),
        slots: 3,
        mig_profiles: vec![
            profile("1g.half", 8, 1, &[0, 1], 1),
            profile("2g.whole", 16, 2, &[0], 2),
        ],
        ..device(16)
    };
    let cluster = one(vec![mig.clone(), mig, device(8)]);
    for (percent, is_packed) in (1..=50).flat_map(|percent| [(percent, true), (percent, false)]) {
        // The second container needs a whole MIG device: the first one has to take two instances of the other.
        let three = Ask {
            policy: if is_packed {
                DevicePolicy::Binpack
            } else {
                DevicePolicy::Spread
            },
            ..Ask::new("NVIDIA", 3, Memory::Percent(percent))
        };
        let request = pod("a", &[(Kind::App, three), (Kind::App, gib(1, 9))]);

        let placement = cluster.place(&request, Among::All);

        assert!(placement.is_ok(), "{percent} %, packed: {is_packed}");
    }
}

#[test]
fn app_container_reuses_its_init_containers_instance() {
    let cluster = one(vec![mig_device()]);
    let request = pod("a", &[(Kind::Init, gib(1, 70)), (Kind::App, gib(1, 70))]);

    let placement = cluster.place(&request, Among::All).unwrap();

    let instances: Vec<_> = placement
        .containers
        .iter()
        .map(|granted| granted.grants[0].instance.clone())
        .collect();
    assert_eq!(instances[0], instances[1]);
}

#[test]
fn device_with_a_mode_conflict_takes_no_new_pods() {
    let mut cluster = one(vec![device(80)]);
    let mut placement = cluster
        .place(&asking("a", &[gib(1, 10)]), Among::All)
        .unwrap();
    placement.containers[0].grants[0].instance = Some(Instance {
        profile: "1g.10gb".into(),
        span: Span { start: 0, size: 1 },
    });
    cluster.reserve(Pod::named("default", "a"), placement);

    let b = asking("b", &[gib(1, 1)]);
    assert_eq!(place(&mut cluster, &b), "n: 1/1 CardNotHealth");
    cluster.release("default/a");
    assert_eq!(place(&mut cluster, &b), "n:0");
}

#[test]
fn one_container_gets_devices_of_several_vendors() {
    let mut cluster = one(vec![device(80), Device::new("DCU", "", "Z100", 32 * GIB)]);
    let dcu = Ask::new("DCU", 1, Memory::Bytes(GIB));

    assert_eq!(
        place(&mut cluster, &asking("a", &[gib(1, 1), dcu])),
        "n:0,1"
    );
    assert_eq!(
        place(
            &mut cluster,
            &asking("b", &[Ask::new("MLU", 1, Memory::Percent(50))])
        ),
        "n: NodeInsufficientDevice"
    );
}

#[test]
fn flops_become_the_compute_that_the_device_needs_for_them() {
    let fast = Device {
        gflops: [300_000, 20_000],
        ..device(80)
    };
    let mut cluster = one(vec![fast, device(80)]);
    let compute = Compute::Gflops {
        fp16: 100_000,
        fp32: 5_000,
    };

    let placement = cluster
        .place(
            &asking(
                "a",
                &[Ask {
                    compute,
                    ..gib(1, 1)
                }],
            ),
            Among::All,
        )
        .unwrap();

    assert_eq!(text(&placement), "n:0");
    assert_eq!(placement.containers[0].grants[0].cores, 34);
    let two = asking(
        "b",
        &[Ask {
            compute,
            ..gib(2, 1)
        }],
    );
    let answer = place(&mut cluster, &two);
    assert_eq!(
        answer,
        "n: 1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientCore"
    );
}

#[test]
fn several_devices_come_from_the_group_with_least_to_spare() {
    let of = |group| Device {
        group: Some(group),
        ..device(80)
    };
    let mut cluster = one(vec![of(0), of(0), of(1), of(1), of(1)]);
    let pair = Ask {
        prefer_group: true,
        ..gib(2, 1)
    };

    assert_eq!(place(&mut cluster, &asking("a", &[pair])), "n:1,0");
}

#[test]
fn tags_are_all_required() {
    let of = |tags: &[&str]| Device {
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        ..device(80)
    };
    let mut cluster = one(vec![of(&["big"]), of(&["big", "fast"])]);
    let mut ask = gib(1, 1);
    ask.select.tags = vec!["fast".to_owned(), "big".to_owned()];

    assert_eq!(place(&mut cluster, &asking("a", &[ask.clone()])), "n:1");
    ask.select.tags.push("new".to_owned());
    let b = asking("b", &[ask]);
    assert_eq!(
        advice(&cluster, &b),
        ["fits on n if container 0 does without the label new"]
    );
}

/// The limits of a quota of so much of the vendor's memory.
fn limit_of(vendor: &Vendor, gib: u64) -> Vec<(Vendor, Quota)> {
    let quota = Quota {
        memory_bytes: Some(gib * GIB),
        ..Quota::default()
    };
    vec![(vendor.clone(), quota)]
}

#[test]
fn all_quotas_of_a_namespace_hold_and_release_refunds_them() {
    let mut cluster = one(vec![device(80), device(80)]);
    let nvidia = Vendor::new("NVIDIA");
    let limit = |gib| limit_of(&nvidia, gib);
    cluster.set_quota("default", "wide", &[], &limit(60));
    cluster.set_quota("default", "narrow", &[], &limit(40));
    place(&mut cluster, &asking("a", &[gib(1, 30)]));

    let b = asking("b", &[gib(1, 20)]);
    assert_eq!(place(&mut cluster, &b), "n: 2/2 ResourceQuotaNotFit");
    assert_eq!(
        advice(&cluster, &b),
        [
            "fits on n if container 0 asks for 10240 MiB instead of 20480 MiB of memory (10240 MiB less)",
            "fits on n if the quota allows 10240 MiB, 0 cores and 0 devices more",
            "fits on n if default/a leaves",
        ]
    );
    cluster.remove_quota("default", "narrow");
    assert_eq!(place(&mut cluster, &b), "n:0");
    cluster.release("default/a");
    cluster.release("default/b");
    assert_eq!(cluster.quota_use("default", &nvidia), Load::default());
}

#[test]
fn a_quota_for_some_pods_limits_and_counts_no_others() {
    let mut cluster = one(vec![device(80), device(80)]);
    let nvidia = Vendor::new("NVIDIA");
    let limit = |gib| limit_of(&nvidia, gib);
    let low = [QuotaScope::ClassIn(vec!["low".to_owned()])];
    cluster.set_quota("default", "low", &low, &limit(40));
    cluster.set_quota("default", "all", &[], &limit(100));
    let of_class = |name: &str, class: &str, gigabytes: u64| {
        let mut request = asking(name, &[gib(1, gigabytes)]);
        request.pod.traits.priority_class = class.to_owned();
        request
    };

    assert_eq!(place(&mut cluster, &of_class("high", "high", 60)), "n:1");
    // The pod of the other class does not count against 40 GiB, and does against 100 GiB.
    let low = of_class("low", "low", 30);
    assert_eq!(place(&mut cluster, &low), "n:0");
    let more = of_class("more", "low", 20);
    assert_eq!(place(&mut cluster, &more), "n: 2/2 ResourceQuotaNotFit");
    assert_eq!(
        cluster
            .quota(&more.pod, &nvidia)
            .map(|(limit, used)| { (limit.memory_bytes.unwrap() - used.memory_bytes) / GIB }),
        Some(10)
    );
    let other = of_class("other", "", 20);
    assert_eq!(place(&mut cluster, &other), "n: 2/2 ResourceQuotaNotFit");
    assert_eq!(place(&mut cluster, &of_class("small", "", 10)), "n:0");
    // Its own pod leaves, and the quota for all still holds.
    cluster.release("default/low");
    assert_eq!(
        cluster
            .quota(&more.pod, &nvidia)
            .map(|(limit, used)| { (limit.memory_bytes.unwrap() - used.memory_bytes) / GIB }),
        Some(30)
    );
}

#[test]
fn reservations_on_an_unknown_node_count_when_it_appears() {
    let mut cluster = Cluster::new();
    let known = one(vec![device(80)]);
    let placement = known
        .place(&asking("a", &[gib(1, 50)]), Among::All)
        .unwrap();
    cluster.reserve(Pod::named("default", "a"), placement);

    cluster
        .set_node(Node {
            name: "n".to_owned(),
            devices: vec![Device {
                id: "GPU-0".to_owned(),
                ..device(80)
            }],
            pairs: Vec::new(),
        })
        .unwrap();

    assert_eq!(used_gib(&cluster), [50]);
}

#[test]
fn node_that_reports_a_device_twice_is_refused() {
    let mut cluster = cluster(&[node("n1", &[80])]);
    let mut twice = node("n1", &[40, 40]);
    twice.devices[1].id = "GPU-0".to_owned();

    let error = cluster.set_node(twice).unwrap_err();

    assert_eq!(error.to_string(), "node n1 reports device GPU-0 twice");
    assert_eq!(place(&mut cluster, &asking("a", &[gib(1, 80)])), "n1:0");
}

#[test]
fn unknown_names_are_answered_one_by_one() {
    let cluster = cluster(&[node("n1", &[80])]);

    let misfits = cluster
        .place(&asking("a", &[gib(1, 90)]), Among::Names(&["n1", "ghost"]))
        .unwrap_err();

    let texts: Vec<String> = misfits
        .iter()
        .map(|misfit| format!("{}: {}", misfit.node, misfit.misfit.summary()))
        .collect();
    assert_eq!(
        texts,
        ["ghost: node unregistered", "n1: 1/1 CardInsufficientMemory"]
    );
    assert!(
        misfits
            .iter()
            .all(|misfit| !misfit.misfit.is_cured_by_leaving())
    );
}

#[test]
fn leaving_pods_cure_lack_of_room_but_not_exclusion_by_a_rule() {
    let mut cluster = one(vec![
        device(80),
        Device {
            healthy: false,
            ..device(80)
        },
    ]);
    place(&mut cluster, &asking("a", &[gib(1, 50)]));

    let cured = |count: u32| {
        let misfit = cluster
            .place_on(&asking("b", &[gib(count, 50)]), "n")
            .unwrap_err();
        misfit.is_cured_by_leaving()
    };

    assert!(cured(1));
    assert!(!cured(2));
    assert!(
        cluster
            .place_without(&asking("b", &[gib(1, 50)]), "n", &["default/a"])
            .is_ok()
    );
}

#[test]
fn advice_names_amounts_models_pods_and_devices() {
    let h100 = Device {
        model: "NVIDIA H100".to_owned(),
        cordoned: true,
        ..device(80)
    };
    let mut cluster = one(vec![
        device(40),
        Device {
            model: "NVIDIA L40S".to_owned(),
            ..device(80)
        },
        h100,
    ]);
    place(&mut cluster, &asking("a", &[gib(1, 15)]));
    let mut first = gib(1, 10);
    first.select.use_types = vec!["A100".to_owned()];
    place(&mut cluster, &asking("b", &[first]));
    let mut ask = gib(1, 35);
    ask.select.use_types = vec!["a100".to_owned()];

    assert_eq!(
        advice(&cluster, &asking("c", &[ask])),
        [
            "fits on n if container 0 asks for 30720 MiB instead of 35840 MiB of memory (5120 MiB less)",
            "fits on n if the type rules of container 0 allow NVIDIA L40S",
            "fits on n if default/b leaves",
        ]
    );
}

#[test]
fn advice_combines_changes_if_no_single_one_is_enough() {
    let mut cluster = one(vec![device(80)]);
    let filler = Ask {
        compute: Compute::Units(80),
        ..gib(1, 70)
    };
    place(&mut cluster, &asking("a", &[filler]));
    let ask = Ask {
        compute: Compute::Units(120),
        ..gib(1, 90)
    };

    assert_eq!(
        advice(&cluster, &asking("b", &[ask])),
        [
            "fits on n if container 0 asks for 10240 MiB instead of 92160 MiB of memory (81920 MiB less) and container 0 asks for 20 instead of 120 cores"
        ]
    );
}
