//! How long a question takes, by the number of nodes, the number of pods placed, and the kind of request. One
//! question at a time; the measured time is the thread's own CPU time, so other load on the machine does not count.
#![allow(missing_docs, reason = "criterion's macros make items without docs")]

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use nix::time::{ClockId, clock_gettime};
use placement::{
    Among, Arrange, Ask, Cluster, Compute, Container, Device, DevicePolicy, Kind, Memory, Node,
    NodePolicy, PairScore, Pod, Request,
};

const GIB: u64 = 1 << 30;
const DEVICES: u32 = 8;

/// The CPU time of this thread.
struct CoreTime;

fn core_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .expect("every Linux has this clock")
        .into()
}

impl Measurement for CoreTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        core_time()
    }

    fn end(&self, start: Duration) -> Duration {
        core_time().saturating_sub(start)
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

fn cluster(nodes: u32) -> (Cluster, Vec<String>) {
    let mut cluster = Cluster::new();
    let mut names = Vec::new();
    for at in 0..nodes {
        let name = format!("node-{at:05}");
        let id = |index: u32| format!("GPU-{at:05}-{index}");
        let mut pairs = Vec::new();
        for from in 0..DEVICES {
            for to in 0..from {
                pairs.push(PairScore {
                    from: id(from),
                    to: id(to),
                    score: if from / 4 == to / 4 { 200 } else { 20 },
                });
            }
        }
        let model = [
            "NVIDIA A100-SXM4-80GB",
            "NVIDIA H100 80GB HBM3",
            "NVIDIA L40S",
        ];
        let node = Node {
            name: name.clone(),
            devices: (0..DEVICES)
                .map(|index| Device {
                    index,
                    numa: index / 4,
                    ..Device::new(
                        "NVIDIA",
                        &id(index),
                        model.get(at as usize % 3).expect("three models"),
                        80 * GIB,
                    )
                })
                .collect(),
            pairs,
        };
        cluster.set_node(node).expect("a valid node");
        names.push(name);
    }
    (cluster, names)
}

fn request(name: &str, asks: &[Ask], node_policy: NodePolicy) -> Request {
    Request {
        pod: Pod::named("default", name),
        containers: vec![Container {
            name: "main".to_owned(),
            kind: Kind::App,
            asks: asks.to_vec(),
        }],
        node_policy,
        any: None,
    }
}

fn share(count: u32, gib: u64, cores: u32) -> Ask {
    Ask {
        compute: Compute::Units(cores),
        ..Ask::new("NVIDIA", count, Memory::Bytes(gib * GIB))
    }
}

/// Pods of 4 GiB and 5 cores each.
fn fill(cluster: &mut Cluster, pods: u32) {
    for at in 0..pods {
        let request = request(&format!("pod-{at}"), &[share(1, 4, 5)], NodePolicy::Spread);
        let placement = cluster.place(&request, Among::All).expect("room");
        cluster.reserve(request.pod, placement);
    }
}

fn filter(criterion: &mut Criterion<CoreTime>) {
    let mut group = criterion.benchmark_group("filter");
    for (nodes, pods) in [
        (1_000, 0),
        (1_000, 5_000),
        (5_000, 0),
        (5_000, 5_000),
        (5_000, 50_000),
        (15_000, 0),
    ] {
        let (mut cluster, names) = cluster(nodes);
        fill(&mut cluster, pods);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut ask = |what: &str, request: &Request, fits: bool| {
            let id = BenchmarkId::new(what, format!("{nodes} nodes, {pods} pods"));
            group.bench_function(id, |bencher| {
                bencher.iter(|| {
                    let outcome = cluster.place(black_box(request), Among::Names(&names));
                    assert_eq!(outcome.is_ok(), fits);
                    outcome
                });
            });
        };
        let one = [share(1, 10, 20)];
        ask("packing", &request("new", &one, NodePolicy::Binpack), true);
        ask("spreading", &request("new", &one, NodePolicy::Spread), true);
        let four = [Ask {
            policy: DevicePolicy::TopologyAware,
            ..share(4, 10, 20)
        }];
        ask(
            "four devices by topology",
            &request("new", &four, NodePolicy::Binpack),
            true,
        );
        let weighed = [Ask {
            arrange: Arrange::TightestGroup { weigh: true },
            ..share(4, 10, 20)
        }];
        ask(
            "every node weighed",
            &request("new", &weighed, NodePolicy::Binpack),
            true,
        );
        let huge = [share(1, 81, 0)];
        ask(
            "fits nowhere",
            &request("new", &huge, NodePolicy::Binpack),
            false,
        );
        let mut typed = share(1, 10, 20);
        typed.select.use_types = vec!["B200".to_owned()];
        ask(
            "no such type",
            &request("new", &[typed], NodePolicy::Binpack),
            false,
        );
        let mut two = request("new", &[share(8, 50, 0)], NodePolicy::Binpack);
        two.containers.push(Container {
            name: "beside".to_owned(),
            kind: Kind::App,
            asks: vec![share(1, 40, 0)],
        });
        ask("two containers, not together", &two, false);
    }
    group.finish();
}

fn change(criterion: &mut Criterion<CoreTime>) {
    let (mut cluster, _) = cluster(5_000);
    fill(&mut cluster, 50_000);
    let request = request("new", &[share(2, 10, 20)], NodePolicy::Binpack);
    let placement = cluster.place(&request, Among::All).expect("room");
    criterion.bench_function("reserve and release", |bencher| {
        bencher.iter(|| {
            cluster.reserve(request.pod.clone(), placement.clone());
            cluster.release(&request.pod.uid)
        });
    });
}

fn explain(criterion: &mut Criterion<CoreTime>) {
    let (mut cluster, _) = cluster(5_000);
    fill(&mut cluster, 50_000);
    let request = request("new", &[share(2, 78, 20)], NodePolicy::Binpack);
    criterion.bench_function("explain, 5000 nodes, 50000 pods", |bencher| {
        bencher.iter(|| cluster.explain(black_box(&request), Among::All));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CoreTime);
    targets = filter, change, explain
}
criterion_main!(benches);
