//! Clusters, pods and bodies of any size, the same ones each time.

use bytes::Bytes;
use serde_json::{Value, json};

const GPUS: usize = 8;
const MEMORY_MIB: usize = 81_920;
/// Memory of a placed pod: small, so that 100 on each GPU leave room.
const PLACED_MIB: usize = 500;

pub(crate) fn node_names(nodes: usize) -> Vec<String> {
    (0..nodes).map(|node| format!("node-{node:05}")).collect()
}

fn uuid(node: usize, gpu: usize) -> String {
    format!("GPU-{node:08x}-0000-4000-8000-{gpu:012x}")
}

/// A state file: nodes of eight GPUs of 80 GiB and 100 slots, and pods that run on them.
pub(crate) fn state(nodes: usize, placed: usize) -> Value {
    let names = node_names(nodes);
    let nodes_json: Vec<Value> = names
        .iter()
        .enumerate()
        .map(|(node, name)| {
            let register: Vec<Value> = (0..GPUS)
                .map(|gpu| {
                    json!({
                        "id": uuid(node, gpu), "index": gpu, "count": 100, "devmem": MEMORY_MIB,
                        "devcore": 100, "type": "NVIDIA H100 80GB HBM3", "numa": gpu / 4,
                        "mode": "hami-core", "health": true,
                    })
                })
                .collect();
            let slots = (GPUS * 100).to_string();
            json!({
                "metadata": {
                    "name": name,
                    "annotations": {"hami.io/node-nvidia-register": Value::from(register).to_string()},
                    "labels": {"gpu": "on", "kubernetes.io/hostname": name},
                },
                "status": {
                    "allocatable": {"cpu": "96", "memory": "1Ti", "pods": "800", "nvidia.com/gpu": slots},
                    "capacity": {"cpu": "96", "memory": "1Ti", "pods": "800", "nvidia.com/gpu": slots},
                },
            })
        })
        .collect();
    let pods: Vec<Value> = (0..placed)
        .map(|pod| {
            let node = pod % nodes.max(1);
            let gpu = (pod / nodes.max(1)) % GPUS;
            let share = format!("{},NVIDIA,{PLACED_MIB},0:;", uuid(node, gpu));
            json!({
                "metadata": {
                    "name": format!("placed-{pod:06}"), "namespace": "default", "uid": format!("placed-{pod:06}"),
                    "annotations": {
                        "hami.io/vgpu-node": names.get(node), "hami.io/vgpu-time": "1700000000",
                        "hami.io/vgpu-devices-allocated": share, "hami.io/vgpu-devices-to-allocate": share,
                    },
                },
                "spec": {
                    "nodeName": names.get(node), "schedulerName": "hami-scheduler",
                    "containers": [container(&json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": PLACED_MIB.to_string()}))],
                },
                "status": {"phase": "Running"},
            })
        })
        .collect();
    json!({"nodes": nodes_json, "pods": pods, "resourceQuotas": []})
}

/// Nodes of 32 cores, of which one in five has eight GPUs of 80 GiB, and pods without a node. One pod in ten has
/// affinity or a spread constraint. One in five asks for a GPU: with `shares` for 8,000 MiB of one, which only the
/// product's plugins understand, otherwise for the device as an extended resource. Every pod fits.
pub(crate) fn mixed(nodes: usize, pods: usize, shares: bool) -> Value {
    let nodes: Vec<Value> = (0..nodes).map(mixed_node).collect();
    let pods: Vec<Value> = (0..pods).map(|at| mixed_pod(at, shares)).collect();
    json!({"nodes": nodes, "pods": pods})
}

fn mixed_node(at: usize) -> Value {
    let name = format!("node-{at:05}");
    let mut allocatable = json!({"cpu": "32", "memory": "128Gi", "pods": "110"});
    let mut annotations = json!({});
    if at.is_multiple_of(5) {
        let entry = |gpu| {
            let id = uuid(at, gpu);
            format!("{id},10,{MEMORY_MIB},100,NVIDIA-A100,{},true:", gpu / 4)
        };
        let entries: String = (0..GPUS).map(entry).collect();
        annotations = json!({"hami.io/node-nvidia-register": entries});
        allocatable =
            json!({"cpu": "32", "memory": "128Gi", "pods": "110", "nvidia.com/gpu": "80"});
    }
    json!({
        "metadata": {
            "name": name,
            "annotations": annotations,
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": format!("zone-{}", at % 12),
                "disk": if at.is_multiple_of(3) { "ssd" } else { "hdd" },
            },
        },
        "spec": {},
        "status": {"allocatable": allocatable, "capacity": allocatable},
    })
}

fn mixed_pod(at: usize, shares: bool) -> Value {
    let app = format!("app-{}", at % 200);
    let cpu = format!("{}m", 100 + at % 7 * 100);
    let requests = match (at % 5, shares) {
        (1, true) => {
            json!({"cpu": cpu, "memory": "512Mi", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"})
        }
        (1, false) => json!({"cpu": cpu, "memory": "512Mi", "nvidia.com/gpu": "1"}),
        _ => json!({"cpu": cpu, "memory": "512Mi"}),
    };
    let selector = json!({"matchLabels": {"app": app}});
    let (affinity, spread) = match at % 30 {
        0 => (
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                [{"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}]}}),
            json!([]),
        ),
        10 => (
            json!({"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm":
                {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": selector}}]}}),
            json!([]),
        ),
        20 => (
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
                [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]}}}),
            json!([{"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": selector}]),
        ),
        _ => (json!({}), json!([])),
    };
    json!({
        "metadata": {"name": format!("pod-{at:05}"), "namespace": "default", "labels": {"app": app}},
        "spec": {
            "containers": [{
                "name": "main", "image": "registry.example/app:1",
                "resources": {"limits": requests, "requests": requests},
            }],
            "affinity": affinity,
            "topologySpreadConstraints": spread,
        },
    })
}

fn container(limits: &Value) -> Value {
    json!({
        "name": "main", "image": "registry.example/train:1", "command": ["python", "train.py"],
        "env": [{"name": "EPOCHS", "value": "10"}, {"name": "DATA", "value": "/data"}],
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    })
}

fn pod(name: &str, limits: &Value) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": "load"},
            "annotations": {},
        },
        "spec": {
            "schedulerName": "hami-scheduler", "containers": [container(limits)],
            "volumes": [{"name": "data", "emptyDir": {}}], "restartPolicy": "Never",
        },
        "status": {"phase": "Pending"},
    })
}

pub(crate) fn filter_body(name: &str, limits: &Value, nodes: &[String]) -> Bytes {
    Bytes::from(
        json!({"Pod": pod(name, limits), "Nodes": null, "NodeNames": nodes})
            .to_string()
            .into_bytes(),
    )
}

pub(crate) fn reviews() -> Vec<(&'static str, Bytes)> {
    let review = |limits: Value| {
        Bytes::from(
            json!({
                "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                "request": {
                    "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
                    "kind": {"group": "", "version": "v1", "kind": "Pod"},
                    "resource": {"group": "", "version": "v1", "resource": "pods"},
                    "operation": "CREATE", "namespace": "default", "name": "p",
                    "userInfo": {"username": "a-user", "groups": ["system:authenticated"]},
                    "object": pod("p", &limits), "oldObject": null, "dryRun": false,
                },
            })
            .to_string()
            .into_bytes(),
        )
    };
    vec![
        (
            "a pod with a GPU",
            review(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"})),
        ),
        ("a pod without", review(json!({"cpu": "1"}))),
    ]
}
