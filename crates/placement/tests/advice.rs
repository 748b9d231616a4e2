//! Advice if several things are in the way, and if there are more possibilities than one search may try.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use placement::{
    Among, Ask, Change, Cluster, Compute, Container, Device, Kind, Memory, Node, NodePolicy, Pod,
    Quota, Request, Vendor,
};

const GIB: u64 = 1 << 30;

fn cluster(nodes: usize, devices: impl Fn(usize) -> Vec<Device>) -> Cluster {
    let mut cluster = Cluster::new();
    for number in 0..nodes {
        let node = Node {
            name: format!("n{number:04}"),
            devices: devices(number),
            pairs: Vec::new(),
        };
        cluster.set_node(node).unwrap();
    }
    cluster
}

fn asking(containers: Vec<Vec<Ask>>) -> Request {
    Request {
        pod: Pod::named("default", "p"),
        containers: containers
            .into_iter()
            .map(|asks| Container {
                name: String::new(),
                kind: Kind::App,
                asks,
            })
            .collect(),
        node_policy: NodePolicy::Binpack,
        any: None,
    }
}

#[test]
fn of_two_vendors_the_one_whose_quota_is_in_the_way_is_named() {
    let mut cluster = cluster(1, |_| {
        vec![
            Device::new("NVIDIA", "GPU-0", "A100", 80 * GIB),
            Device::new("DCU", "DCU-0", "Z100", 32 * GIB),
        ]
    });
    let limit = |gib: u64| Quota {
        memory_bytes: Some(gib * GIB),
        ..Quota::default()
    };
    let (nvidia, dcu) = (Vendor::new("NVIDIA"), Vendor::new("DCU"));
    cluster.set_quota(
        "default",
        "q",
        &[],
        &[(nvidia, limit(40)), (dcu.clone(), limit(2))],
    );
    let asks = vec![
        Ask::new("NVIDIA", 1, Memory::Bytes(4 * GIB)),
        Ask::new("DCU", 1, Memory::Bytes(5 * GIB)),
    ];

    let explanation = cluster.explain(&asking(vec![asks]), Among::All).unwrap();

    let raised: Vec<&Change> = explanation
        .advice
        .iter()
        .flat_map(|advice| &advice.changes)
        .filter(|change| matches!(change, Change::MoreQuota { .. }))
        .collect();
    let more = Change::MoreQuota {
        vendor: dcu,
        memory_bytes: 3 * GIB,
        cores: 0,
        devices: 0,
    };
    assert_eq!(raised, [&more]);
}

#[test]
fn a_pod_of_hundreds_of_containers_is_answered_for() {
    let cluster = cluster(200, |number| {
        (0..8)
            .map(|index| {
                let id = format!("GPU-{number}-{index}");
                let mut device = Device::new("NVIDIA", &id, "A100", 80 * GIB);
                device.index = index;
                device.healthy = index % 2 == 0;
                device
            })
            .collect()
    });
    let mut ask = Ask::new("NVIDIA", 8, Memory::Bytes(79 * GIB));
    ask.compute = Compute::Units(100);
    ask.select.use_types = vec!["H100".to_owned()];
    ask.numa_bind = true;
    let request = asking(vec![vec![ask]; 300]);

    let explanation = cluster.explain(&request, Among::All).unwrap();

    assert_eq!(explanation.misfits.len(), 200);
}
