//! The time to read a cluster's objects: nodes at the start and at each heartbeat, a pod for each request, and the body
//! of a request with whole nodes.
#![allow(missing_docs, reason = "criterion's macros make items without docs")]
#![allow(clippy::unwrap_used, reason = "a bench")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kube_api::allocation;
use kube_api::config::DeviceConfig;
use kube_api::extender::ExtenderArgs;
use kube_api::node::{report, same_report};
use kube_api::object::{Node, Pod};
use kube_api::request::{Defaults, request};
use kube_api::vendor::{Switches, Vendors};
use placement::Kind;
use serde_json::{Value, json};

fn node(at: usize, json_form: bool) -> Value {
    let mut devices = Vec::new();
    let mut colon = String::new();
    for device in 0..8 {
        let id = format!("GPU-{at:08x}-0000-0000-0000-{device:012x}");
        colon += &format!(
            "{id},10,81559,100,NVIDIA H100 80GB HBM3,{},true:",
            device / 4
        );
        devices.push(json!({
            "id": id, "index": device, "count": 10, "devmem": 81559, "devcore": 100,
            "type": "NVIDIA H100 80GB HBM3", "numa": device / 4, "mode": "hami-core", "health": true,
        }));
    }
    let register = if json_form {
        Value::from(devices).to_string()
    } else {
        colon
    };
    let offered = json!({"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "80"});
    json!({
        "metadata": {"name": format!("node-{at}"), "annotations": {
            "hami.io/node-nvidia-register": register,
            "hami.io/node-handshake": "Requesting_2026-01-01 00:00:00",
            "node.alpha.kubernetes.io/ttl": "0",
        }, "managedFields": [
            {"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:allocatable": {"f:cpu": {}, "f:memory": {}}}}},
        ]},
        "status": {"allocatable": offered, "capacity": offered},
    })
}

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": {
            "nvidia.com/use-gputype": "A100,H100",
            "hami.io/vgpu-devices-allocated": ";GPU-00000001-0000-0000-0000-000000000001,NVIDIA,3000,30:;",
        }},
        "spec": {"nodeName": "node-1", "containers": [
            {"name": "side", "resources": {"limits": {"cpu": "1"}}},
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30"}}},
        ]},
    }))
    .unwrap()
}

fn reading(criterion: &mut Criterion) {
    let switches = Switches {
        ascend: true,
        iluvatar: true,
    };
    let vendors = Vendors::new(DeviceConfig::standard(), switches).unwrap();
    let typed = |at, json_form| -> Node { serde_json::from_value(node(at, json_form)).unwrap() };
    let (one, colon) = (typed(1, true), typed(1, false));
    let pod = pod();
    let defaults = Defaults::default();

    criterion.bench_function("standard configuration", |bencher| {
        bencher.iter(|| Vendors::new(DeviceConfig::standard(), switches).unwrap());
    });
    criterion.bench_function("report, 8 devices, JSON", |bencher| {
        bencher.iter(|| report(black_box(&one), &vendors));
    });
    criterion.bench_function("report, 8 devices, colon", |bencher| {
        bencher.iter(|| report(black_box(&colon), &vendors));
    });
    let same = one.clone();
    criterion.bench_function("same report", |bencher| {
        bencher.iter(|| same_report(black_box(&one), black_box(&same), &vendors));
    });
    criterion.bench_function("request", |bencher| {
        bencher.iter(|| request(black_box(&pod), &vendors, &defaults).unwrap());
    });
    criterion.bench_function("allocation, read", |bencher| {
        bencher.iter(|| allocation::read(black_box(&pod), &vendors).unwrap());
    });
    let mut placement = allocation::read(&pod, &vendors).unwrap().unwrap();
    placement
        .containers
        .iter_mut()
        .for_each(|granted| granted.kind = Kind::App);
    criterion.bench_function("allocation, write", |bencher| {
        bencher.iter(|| allocation::write(black_box(&pod), &placement, None, &vendors, 1));
    });
    let whole: Vec<Value> = (0..5000).map(|at| node(at, true)).collect();
    let body = json!({"Pod": {"spec": {}}, "Nodes": {"items": whole}}).to_string();
    let mut group = criterion.benchmark_group("body of 5,000 whole nodes");
    group.sample_size(10);
    group.bench_function("decode", |bencher| {
        bencher.iter(|| serde_json::from_slice::<ExtenderArgs>(body.as_bytes()).unwrap());
    });
    group.bench_function("decode, and report each node", |bencher| {
        bencher.iter(|| {
            let args: ExtenderArgs = serde_json::from_slice(body.as_bytes()).unwrap();
            let nodes = args.nodes.unwrap();
            nodes
                .iter()
                .map(|node| report(&serde_json::from_str(node.get()).unwrap(), &vendors))
                .filter(|report| report.node.devices.len() == 8)
                .count()
        });
    });
    group.finish();
}

criterion_group!(benches, reading);
criterion_main!(benches);
