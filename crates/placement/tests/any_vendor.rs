//! Requests for any vendor's devices: which vendor, how many devices, how much of each.

use std::sync::Arc;

use placement::exchange::{Maker, Table};
use placement::{
    Among, AnyVendor, Ask, Cluster, Compute, Container, Demand, Device, Family, Kind, Memory,
    Misfit, Node, NodePolicy, Pod, Request, Wish,
};

const GIB: u64 = 1 << 30;

/// A node with `count` devices of a model that the table knows.
fn node(name: &str, maker: Maker, model: &str, count: u32) -> Node {
    let table = Table::default();
    let profile = table.find(maker, model, 0).unwrap();
    let devices = (0..count)
        .map(|index| Device {
            index,
            gflops: profile.gflops(),
            ..Device::new(
                word(maker),
                &format!("{name}-{index}"),
                model,
                profile.vram_bytes,
            )
        })
        .collect();
    Node {
        name: name.to_owned(),
        devices,
        pairs: Vec::new(),
    }
}

fn word(maker: Maker) -> &'static str {
    match maker {
        Maker::Nvidia => "NVIDIA",
        Maker::Huawei => "Ascend910B3",
        Maker::Hygon => "DCU",
        Maker::Cambricon => "MLU",
    }
}

fn cluster(nodes: Vec<Node>) -> Cluster {
    let mut cluster = Cluster::new();
    for node in nodes {
        cluster.set_node(node).unwrap();
    }
    cluster
}

/// A pod of one container that accepts these vendors' devices, each with its tier.
fn request(name: &str, demand: Demand, makers: &[(Maker, u32)]) -> Request {
    let families = makers
        .iter()
        .map(|&(maker, tier)| Family {
            maker,
            vendor: word(maker).into(),
            tier,
            asks: vec![(1..=16).map(|count| ask(maker, demand, count)).collect()],
        })
        .collect();
    Request {
        pod: Pod::named("default", name),
        containers: vec![Container {
            name: "main".to_owned(),
            kind: Kind::App,
            asks: Vec::new(),
        }],
        node_policy: NodePolicy::Binpack,
        any: Some(Arc::new(AnyVendor {
            wishes: vec![Wish {
                container: 0,
                demand,
            }],
            families,
            near: false,
            table: Arc::new(Table::default()),
        })),
    }
}

fn ask(maker: Maker, demand: Demand, count: u32) -> Ask {
    let parts = u64::from(count);
    let mut ask = Ask::new(
        word(maker),
        count,
        Memory::Bytes(demand.memory_bytes.div_ceil(parts)),
    );
    ask.compute = Compute::Gflops {
        fp16: demand.fp16.div_ceil(parts),
        fp32: demand.fp32.div_ceil(parts),
    };
    ask
}

fn vram(gib: u64) -> Demand {
    Demand {
        memory_bytes: gib * GIB,
        ..Demand::default()
    }
}

const ALL: [(Maker, u32); 4] = [
    (Maker::Nvidia, 0),
    (Maker::Huawei, 0),
    (Maker::Hygon, 0),
    (Maker::Cambricon, 0),
];

/// Places and reserves: `node:grants of MiB/cores`, or the reasons.
fn place(cluster: &mut Cluster, request: &Request) -> String {
    match cluster.place(request, Among::All) {
        Ok(placement) => {
            let grants: Vec<String> = placement.containers[0]
                .grants
                .iter()
                .map(|grant| format!("{}/{}", grant.memory_bytes >> 20, grant.cores))
                .collect();
            let text = format!("{}:{}", placement.node, grants.join(","));
            cluster.reserve(request.pod.clone(), placement);
            text
        }
        Err(misfits) => {
            let texts: Vec<String> = misfits
                .iter()
                .map(|misfit| format!("{} {}", misfit.node, misfit.misfit.summary()))
                .collect();
            texts.join("; ")
        }
    }
}

#[test]
fn the_node_with_the_best_score_is_taken() {
    let mut cluster = cluster(vec![
        node("dcu", Maker::Hygon, "K100-64GB", 2),
        node("a100", Maker::Nvidia, "NVIDIA A100-SXM4-80GB", 2),
        node("v100", Maker::Nvidia, "Tesla V100-SXM2-32GB", 2),
    ]);

    assert_eq!(
        place(&mut cluster, &request("a", vram(16), &ALL)),
        "a100:16384/0"
    );
}

#[test]
fn a_preferred_vendor_comes_before_a_better_score() {
    let mut cluster = cluster(vec![
        node("a100", Maker::Nvidia, "NVIDIA A100-SXM4-80GB", 8),
        node("mlu", Maker::Cambricon, "MLU370-X8", 1),
    ]);
    let makers = [(Maker::Nvidia, 1), (Maker::Cambricon, 0)];

    let first = place(&mut cluster, &request("a", vram(40), &makers));
    let second = place(&mut cluster, &request("b", vram(40), &makers));

    assert_eq!(
        (first.as_str(), second.as_str()),
        ("mlu:40960/0", "a100:40960/0")
    );
}

#[test]
fn one_device_has_to_have_the_memory_not_the_node() {
    let mut cluster = cluster(vec![node("v100", Maker::Nvidia, "Tesla V100-SXM2-32GB", 8)]);
    let one = Demand {
        devices: 1,
        ..vram(60)
    };

    assert_eq!(
        place(&mut cluster, &request("a", one, &ALL)),
        "v100 8/8 CardInsufficientMemory"
    );
}

#[test]
fn a_demand_above_one_device_takes_as_many_as_its_model_needs() {
    let demand = Demand {
        fp16: 400_000,
        ..vram(32)
    };
    let mut a100 = cluster(vec![node(
        "a100",
        Maker::Nvidia,
        "NVIDIA A100-SXM4-80GB",
        8,
    )]);
    let mut h100 = cluster(vec![node(
        "h100",
        Maker::Nvidia,
        "NVIDIA H100 80GB HBM3",
        8,
    )]);

    // 200 of 312 TFLOPS on each of two, or 400 of 989 on one.
    assert_eq!(
        place(&mut a100, &request("a", demand, &ALL)),
        "a100:16384/65,16384/65"
    );
    assert_eq!(
        place(&mut h100, &request("a", demand, &ALL)),
        "h100:32768/41"
    );
}

#[test]
fn a_number_of_devices_that_is_named_is_kept() {
    let mut cluster = cluster(vec![node(
        "a100",
        Maker::Nvidia,
        "NVIDIA A100-SXM4-80GB",
        8,
    )]);
    let demand = Demand {
        devices: 4,
        ..vram(64)
    };

    assert_eq!(
        place(&mut cluster, &request("a", demand, &ALL)),
        "a100:16384/0,16384/0,16384/0,16384/0"
    );
}

#[test]
fn a_device_of_unknown_speed_gives_memory_and_no_tflops() {
    let mut strange = node("x", Maker::Nvidia, "A100-80GB", 1);
    strange.devices[0].model = "Prototype".to_owned();
    strange.devices[0].gflops = [0, 0];
    let mut cluster = cluster(vec![strange]);
    let fast = Demand {
        fp16: 1_000,
        ..vram(1)
    };

    assert_eq!(
        place(&mut cluster, &request("a", fast, &ALL)),
        "x 1/1 CardInsufficientCore"
    );
    assert_eq!(
        place(&mut cluster, &request("a", vram(1), &ALL)),
        "x:1024/0"
    );
}

#[test]
fn vendors_that_the_pod_does_not_take_say_so() {
    let cluster = cluster(vec![node("a100", Maker::Nvidia, "A100-80GB", 1)]);

    let only_huawei = request("a", vram(1), &[(Maker::Huawei, 0)]);
    let misfits = cluster.place(&only_huawei, Among::All).unwrap_err();
    assert_eq!(misfits[0].misfit, Misfit::NoVendor);

    let misfits = cluster
        .place(&request("a", vram(1), &ALL), Among::Names(&["gone"]))
        .unwrap_err();
    assert_eq!(misfits[0].misfit, Misfit::UnknownNode);
}

#[test]
fn fit_on_a_node_equals_its_placement() {
    let cluster = cluster(vec![
        node("a100", Maker::Nvidia, "A100-80GB", 1),
        node("k100", Maker::Hygon, "K100-64GB", 1),
    ]);
    let request = request("a", vram(70), &ALL);

    assert!(cluster.place_on(&request, "a100").is_ok());
    assert!(cluster.place_on(&request, "k100").is_err());
    let ranked = cluster.rank(&request, Among::All);
    assert_eq!(*ranked[0].1.as_ref().unwrap(), 80.0);
    assert!(ranked[1].1.is_err());
}

#[test]
fn advice_is_given_for_the_vendor_that_is_nearest() {
    let cluster = cluster(vec![node("a100", Maker::Nvidia, "A100-80GB", 1)]);
    let demand = Demand {
        devices: 1,
        ..vram(100)
    };

    let explanation = cluster
        .explain(&request("a", demand, &ALL), Among::All)
        .unwrap();

    assert_eq!(explanation.misfits.len(), 1);
    assert!(!explanation.advice.is_empty());
}
