//! The written allocation of every vendor is read back correctly: a restarted scheduler decides as the one before it
//! would have.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use crate::common;

use kube_api::object::{Node, Pod};
use kube_api::request::{self, Defaults};
use kube_api::vendor::Vendors;
use kube_api::{allocation, node};
use placement::{Among, Cluster, Load, Placement};
use serde_json::{Value, json};

const NOW: u64 = 1_700_000_000_000_000_000;

/// A node that has about eight devices of every vendor.
fn everything() -> Node {
    let list = |word: &str, each: &dyn Fn(u32) -> Value| -> Value {
        let devices: Vec<Value> = (0..8)
            .map(|index| {
                let mut device = json!({
                    "id": format!("{word}-{index}"), "index": index, "count": 4, "devmem": 65536,
                    "devcore": 100, "type": word, "health": true,
                });
                for (key, value) in each(index).as_object().unwrap() {
                    device[key] = value.clone();
                }
                device
            })
            .collect();
        json!(serde_json::to_string(&devices).unwrap())
    };
    let metax: Vec<Value> = (0..8)
        .map(|index| {
            json!({"uuid": format!("MX-{index}"), "totalDevCount": 16, "totalCompute": 100,
                "totalVRam": 65536, "healthy": true, "linkZone": index / 4})
        })
        .collect();
    let network = |index: u32| json!({"devcore": 20, "custominfo": {"NetworkID": index / 4}});
    let drs = json!({
        "devices": [{"index": "0", "minor": "0", "capacity": "6"}, {"index": "1", "minor": "4", "capacity": "6"}],
        "profiles": {"1g.8gb": "0", "3g.24gb": "1", "6g.48gb": "2"},
    });
    let mut annotations = json!({
        "hami.io/node-nvidia-register": list("NVIDIA H100", &|_| json!({})),
        "hami.io/node-dcu-register": "DCU-0,4,32768,100,DCU-Z100,0,true:DCU-1,4,32768,100,DCU-Z100,0,true:",
        "hami.io/node-BI-V150-register": "BI-0,4,32768,100,BI-V150,0,true:BI-1,4,32768,100,BI-V150,0,true:",
        "hami.io/node-register-Ascend910B3": list("Ascend910B3", &network),
        "hami.io/node-register-Ascend910C": list("Ascend910C", &network),
        "hami.io/node-register-xpu": list("XPU", &|_| json!({"devmem": 98304})),
        "hami.io/node-va-register": list("Vastai", &|index| {
            json!({"custominfo": {"DeviceStrategy": "die", "AIC": format!("{}", index / 4)}})
        }),
        "hami.io/node-biren-register": list("Biren", &|_| json!({})),
        "metax-tech.com/node-gpu-devices": serde_json::to_string(&metax).unwrap(),
        "metax-tech.com/gpu.topology.losses": r#"{"1":10,"2":20}"#,
        "enflame.com/gcu-drs-capacity": serde_json::to_string(&drs).unwrap(),
    });
    annotations["hami.io/node-amd-register"] =
        list("AMD Instinct MI300X", &|_| json!({"devcore": 304}));
    common::node(json!({
        "metadata": {
            "name": "n1",
            "labels": {"node.kubernetes.io/instance-type": "inf2.48xlarge"},
            "annotations": annotations,
        },
        "status": {"capacity": {
            "cambricon.com/mlu.smlu.vcore": 400, "cambricon.com/mlu.smlu.vmemory": 400,
            "mthreads.com/sgpu-core": 64, "mthreads.com/sgpu-memory": 384,
            "metax-tech.com/gpu": 8, "enflame.com/gcu": 4, "kunlunxin.com/xpu": 8,
            "aws.amazon.com/neuron": 8, "aws.amazon.com/neuroncore": 16, "amd.com/gpu": 8,
        }},
    }))
}

/// A pod with an init container, a container without devices, and two with devices.
fn pod(name: &str, limits: &Value, annotations: &Value) -> Value {
    let container =
        |name: &str, limits: &Value| json!({"name": name, "resources": {"limits": limits}});
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": annotations},
        "spec": {
            "initContainers": [container("before", limits)],
            "containers": [
                container("none", &json!({})),
                container("first", limits),
                container("second", limits),
            ],
        },
    })
}

struct World {
    vendors: &'static Vendors,
    cluster: Cluster,
}

impl World {
    fn new() -> Self {
        let vendors = common::vendors();
        let report = node::report(&everything(), vendors);
        assert_eq!(report.problems, []);
        let mut cluster = Cluster::new();
        cluster.set_node(report.node).unwrap();
        Self { vendors, cluster }
    }

    fn place(&self, pod: &Pod) -> Option<Placement> {
        let request = request::request(pod, self.vendors, &Defaults::default()).unwrap();
        self.cluster.place(&request, Among::All).ok()
    }

    /// Places the pod, reserves the placement, and returns the pod as it then is in the cluster.
    fn run(&mut self, pod: &Value) -> Option<(Pod, Placement)> {
        let asking: Pod = serde_json::from_value(pod.clone()).unwrap();
        let placement = self.place(&asking)?;
        let view = self.cluster.node(&placement.node);
        let written = allocation::write(&asking, &placement, view, self.vendors, NOW);
        let mut running = pod.clone();
        running["spec"]["nodeName"] = json!(*placement.node);
        for (key, value) in written.annotations {
            running["metadata"]["annotations"][key] = json!(value);
        }
        self.hold(&asking, placement.clone());
        Some((serde_json::from_value(running).unwrap(), placement))
    }

    fn hold(&mut self, pod: &Pod, placement: Placement) {
        self.cluster.reserve(request::identity(pod), placement);
    }

    fn used(&self) -> Vec<(String, Load)> {
        let node = self.cluster.node("n1").unwrap();
        node.devices()
            .map(|device| (device.id().to_owned(), device.used()))
            .collect()
    }
}

#[test]
fn annotations_of_every_vendor_read_back_and_decide_the_same() {
    let none = json!({});
    let soft = |policy: &str| json!({"metax-tech.com/sgpu-qos-policy": policy});
    let class = |class: &str| json!({"metax-tech.com/sgpu-app-class": class});
    let cases = [
        (
            json!({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}),
            none.clone(),
        ),
        (
            json!({"cambricon.com/vmlu": 1, "cambricon.com/mlu.smlu.vmemory": 20, "cambricon.com/mlu.smlu.vcore": 10}),
            none.clone(),
        ),
        (
            json!({"hygon.com/dcunum": 1, "hygon.com/dcumem": 2000, "hygon.com/dcucores": 20}),
            none.clone(),
        ),
        (
            json!({"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 10_000}),
            none.clone(),
        ),
        (json!({"huawei.com/Ascend910B3": 2}), none.clone()),
        (json!({"huawei.com/Ascend910C": 2}), none.clone()),
        (
            json!({"iluvatar.ai/BI-V150-vgpu": 1, "iluvatar.ai/BI-V150.vMem": 16, "iluvatar.ai/BI-V150.vCore": 20}),
            none.clone(),
        ),
        (
            json!({"mthreads.com/vgpu": 1, "mthreads.com/sgpu-memory": 16, "mthreads.com/sgpu-core": 4}),
            none.clone(),
        ),
        (json!({"metax-tech.com/gpu": 2}), none.clone()),
        (
            json!({"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": 4, "metax-tech.com/vcore": 20}),
            none.clone(),
        ),
        (
            json!({"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": 4, "metax-tech.com/vcore": 20}),
            soft("fixed-share"),
        ),
        (
            json!({"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": 4, "metax-tech.com/vcore": 20}),
            class("online"),
        ),
        (
            json!({"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": 4, "metax-tech.com/vcore": 20}),
            class("offline"),
        ),
        (json!({"metax-tech.com/sgpu": 2}), none.clone()),
        (json!({"enflame.com/gcu": 1}), none.clone()),
        (json!({"enflame.com/drs-gcu": 1}), none.clone()),
        (
            json!({"enflame.com/gcu-memory": 20, "enflame.com/gcu-core": 40}),
            none.clone(),
        ),
        (json!({"kunlunxin.com/xpu": 2}), none.clone()),
        (
            json!({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 1000}),
            none.clone(),
        ),
        (
            json!({"kunlunxin.com/vxpu": 2, "kunlunxin.com/vxpu-memory": 40_000}),
            none.clone(),
        ),
        (json!({"aws.amazon.com/neuron": 2}), none.clone()),
        (json!({"aws.amazon.com/neuroncore": 1}), none.clone()),
        (json!({"aws.amazon.com/neuroncore": 4}), none.clone()),
        (
            json!({"amd.com/gpu": 1, "amd.com/gpumem": 4096, "amd.com/gpucores": 33}),
            none.clone(),
        ),
        (json!({"vastaitech.com/va": 2}), none.clone()),
        (json!({"birentech.com/gpu": 2}), none.clone()),
        (
            json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "hygon.com/dcunum": 1, "hygon.com/dcumem": 2000, "hygon.com/dcucores": 20}),
            none,
        ),
    ];
    let mut placed = 0;
    for (limits, annotations) in cases {
        let mut before = World::new();
        let mut after = World::new();
        for round in 0..6 {
            let asking = pod(&format!("p{round}"), &limits, &annotations);
            let as_pod: Pod = serde_json::from_value(asking.clone()).unwrap();
            // Both decide the same, although the second knows the reservations only from annotations.
            assert_eq!(after.place(&as_pod), before.place(&as_pod), "{limits}");
            let Some((running, placement)) = before.run(&asking) else {
                assert!(round > 0, "{limits} {annotations}: fits nowhere");
                break;
            };

            let read = allocation::read(&running, after.vendors).unwrap().unwrap();

            assert_eq!(read, placement, "{limits} {annotations}");
            after.hold(&running, read);
            assert_eq!(after.used(), before.used(), "{limits}");
            placed += 1;
        }
    }
    assert!(placed > 60, "only {placed} pods were placed");
}

#[test]
fn broken_annotations_of_a_vendor_are_reported_with_their_key() {
    let vendors = common::vendors();
    for (annotations, expected) in [
        (
            json!({"hami.io/dcu-devices-allocated": "DCU-0,DCU,many,1:;"}),
            "hami.io/dcu-devices-allocated",
        ),
        (
            json!({"hami.io/enflame-vgpu-devices-allocated": "n1-enflame-drs-0,Enflame,24576,50:;", "assigned-containers": "[]"}),
            "assigned-containers",
        ),
    ] {
        let mut pod = common::asking(json!({}), annotations);
        pod.spec.node_name = "n1".to_owned();

        let error = allocation::read(&pod, vendors).unwrap_err();

        assert_eq!(error.key, expected);
    }
}

#[test]
fn no_annotation_of_a_node_or_a_pod_stops_a_vendor() {
    let vendors = common::vendors();
    let texts = [
        "",
        ":",
        ";",
        "[]",
        "{}",
        "null",
        "[null]",
        "[{}]",
        "{\"devices\":[{}],\"profiles\":{\"3g.24gb\":\"1\"}}",
        "{\"devices\":[{\"index\":-1,\"capacity\":\"99999999999\"}],\"profiles\":{\"0g.0gb\":\"\",\"4294967295g.4294967295gb\":\"1\"}}",
        "a,b,c,d:;",
        "a,b,-1,-1:;",
        "a,b,2147483647,2147483647:;a,b,2147483647,2147483647:;",
        "{\"c\":{\"request\":4294967295}}",
        "\u{0}",
        "9999999999999999999999999999",
    ];
    let amounts = [
        "0",
        "-1",
        "1",
        "3",
        "500m",
        "1e3",
        "9E",
        "16Gi",
        "9223372036854775807",
        "x",
    ];
    let keys: Vec<String> = vendors
        .iter()
        .flat_map(|row| {
            let keys = row.keys.clone();
            let single = [
                keys.register,
                keys.score,
                keys.handshake,
                keys.to_allocate,
                keys.allocated,
            ];
            single
                .into_iter()
                .flatten()
                .chain(keys.also_read)
                .chain(keys.also_written)
                .collect::<Vec<_>>()
        })
        .collect();
    let resources: Vec<&str> = vendors.resources().map(|(name, _, _)| name).collect();
    for text in texts {
        let annotations: Value = keys.iter().map(|key| (key.clone(), json!(text))).collect();
        for amount in amounts {
            let amounts: Value = resources
                .iter()
                .map(|name| ((*name).to_owned(), json!(amount)))
                .collect();
            let node = common::reporting(annotations.clone(), amounts.clone());
            let report = node::report(&node, vendors);
            let mut cluster = Cluster::new();
            cluster.set_node(report.node).unwrap();
            for resource in &resources {
                let pod = common::asking(json!({*resource: amount}), annotations.clone());
                for row in vendors.iter() {
                    drop(row.admit(&pod.spec.containers[0], &pod));
                }
                let read = allocation::read(&pod, vendors);
                if let Ok(request) = request::request(&pod, vendors, &Defaults::default())
                    && let Ok(placement) = cluster.place(&request, Among::All)
                {
                    let view = cluster.node(&placement.node);
                    allocation::write(&pod, &placement, view, vendors, NOW);
                }
                if let Ok(Some(placement)) = read {
                    cluster.reserve(request::identity(&pod), placement);
                    cluster.release("u");
                }
            }
        }
    }
}
