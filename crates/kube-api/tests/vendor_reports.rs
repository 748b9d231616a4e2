//! A node's report in each vendor's form.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use crate::common;

use kube_api::node;
use kube_api::object::Node;
use kube_api::vendor::Vendors;
use placement::Device;
use serde_json::{Value, json};

use common::MIB;

fn devices(vendors: &Vendors, node: &Node) -> Vec<String> {
    let report = node::report(node, vendors);
    let mut lines: Vec<String> = report.node.devices.iter().map(line).collect();
    lines.extend(
        report
            .problems
            .iter()
            .map(|problem| format!("problem: {}", problem.key)),
    );
    lines
}

/// A device in a line: identifier, slots, memory, compute, and anything unusual.
fn line(device: &Device) -> String {
    let mut text = format!(
        "{} {} {} {}",
        device.id,
        device.slots,
        device.memory_bytes / MIB,
        device.cores
    );
    if device.numa > 0 {
        text += &format!(" numa={}", device.numa);
    }
    if let Some(group) = device.group {
        text += &format!(" group={group}");
    }
    if let Some(module) = device.module {
        text += &format!(" module={module}");
    }
    if device.core_step > 1 {
        text += &format!(" step={}", device.core_step);
    }
    if !device.tags.is_empty() {
        text += &format!(" {}", device.tags.join("+"));
    }
    if !device.healthy {
        text += " sick";
    }
    if device.mode != "hami-core" {
        text += &format!(" {}", device.mode);
    }
    text
}

#[test]
fn node_reports_are_read_in_each_vendors_form() {
    let vendors = common::vendors();
    let none = json!({});
    let cases: Vec<(Value, Value, &[&str])> = vec![
        (
            none.clone(),
            json!({"cambricon.com/mlu.smlu.vcore": 200, "cambricon.com/mlu.smlu.vmemory": 96}),
            &[
                "n1-cambricon-mlu-0 100 12288 100",
                "n1-cambricon-mlu-1 100 12288 100",
            ],
        ),
        (
            none.clone(),
            json!({"mthreads.com/sgpu-core": 32, "mthreads.com/sgpu-memory": 192}),
            &["n1-mthreads-0 100 49152 16", "n1-mthreads-1 100 49152 16"],
        ),
        (
            none.clone(),
            json!({"metax-tech.com/gpu": 1}),
            &["n1-metax-0 1 65536 100"],
        ),
        (
            json!({"metax-tech.com/node-gpu-devices": r#"[{"uuid":"MX-0","totalDevCount":16,"totalCompute":100,"totalVRam":65536,"numa":1,"healthy":true,"linkZone":2},{"uuid":"MX-1","totalDevCount":16,"totalCompute":100,"totalVRam":65536,"linkZone":0}]"#}),
            none.clone(),
            &["MX-0 16 65536 100 numa=1 group=2", "MX-1 16 65536 100 sick"],
        ),
        (
            json!({"metax-tech.com/node-gpu-devices": "[{"}),
            none.clone(),
            &["problem: metax-tech.com/node-gpu-devices"],
        ),
        (
            none.clone(),
            json!({"enflame.com/gcu": 2}),
            &["n1-GCU-0 1 100 100", "n1-GCU-1 1 100 100"],
        ),
        (
            json!({"enflame.com/gcu-drs-capacity": r#"{"devices":[{"index":"2","minor":"3","capacity":"6"},{"capacity":4}],"profiles":{"1g.8gb":"0","3g.24gb":"1","odd":"7"}}"#}),
            none.clone(),
            &[
                "n1-enflame-drs-2 6 24576 100 minor=3+profile 1g.8gb=0+profile 3g.24gb=1+profile odd=7 drs",
                "n1-enflame-drs-1 4 24576 100 minor=1+profile 1g.8gb=0+profile 3g.24gb=1+profile odd=7 drs",
            ],
        ),
        (
            json!({"enflame.com/gcu-drs-capacity": r#"{"devices":[{"index":"0","capacity":"none"}],"profiles":{"1g.8gb":"0"}}"#}),
            none.clone(),
            &["problem: enflame.com/gcu-drs-capacity"],
        ),
        (
            json!({"enflame.com/gcu-drs-capacity": r#"{"devices":[{"index":"0","capacity":"6"}]}"#}),
            none.clone(),
            &["problem: enflame.com/gcu-drs-capacity"],
        ),
        (
            none.clone(),
            json!({"kunlunxin.com/xpu": 2}),
            &["n1-kunlun-0 1 98304 100", "n1-kunlun-1 1 98304 100 numa=1"],
        ),
        (
            json!({"hami.io/node-register-xpu": r#"[{"id":"K-0","count":4,"devmem":98304,"devcore":100,"type":"XPU","health":true}]"#}),
            none.clone(),
            &["K-0 4 98304 100"],
        ),
        (
            none.clone(),
            json!({"aws.amazon.com/neuron": 1, "aws.amazon.com/neuroncore": 4}),
            &["n1-AWSNeuron-0 4 0 15"],
        ),
        (
            json!({"hami.io/node-amd-register": r#"[{"id":"A-0","count":10,"devmem":196608,"devcore":304,"type":"AMD Instinct MI300X","health":true,"custominfo":{"cuPerWGP":2}}]"#}),
            json!({"amd.com/gpu": 1}),
            &["A-0 10 196608 304 step=2"],
        ),
        (
            json!({"hami.io/node-va-register": r#"[{"id":"0-0","count":1,"devmem":100,"type":"Vastai","health":true,"custominfo":{"DeviceStrategy":"die","AIC":"x"}},{"id":"0-1","count":1,"devmem":100,"type":"Vastai","health":true,"custominfo":{"DeviceStrategy":"die","AIC":"y"}},{"id":"0-2","count":1,"devmem":100,"type":"Vastai","health":true,"custominfo":{"DeviceStrategy":"die","AIC":"x"}}]"#}),
            none.clone(),
            &[
                "0-0 1 100 100 group=0",
                "0-1 1 100 100 group=1",
                "0-2 1 100 100 group=0",
            ],
        ),
        (
            json!({"hami.io/node-biren-register": r#"[{"id":"b","count":1,"devmem":100,"type":"Biren","health":true}]"#}),
            none.clone(),
            &["b 1 100 100"],
        ),
        (
            json!({"hami.io/node-MR-V50-register": "I-0,4,16384,100,MR-V50,1,true:"}),
            none.clone(),
            &["I-0 4 16384 100 numa=1"],
        ),
        (
            json!({"hami.io/node-register-Ascend910C": r#"[{"id":"a","index":0,"count":1,"devmem":65536,"devcore":20,"type":"Ascend910C","health":true,"custominfo":{"NetworkID":7}},{"id":"b","index":3,"count":1,"devmem":65536,"devcore":20,"type":"Ascend910C","health":true}]"#}),
            none.clone(),
            &[
                "a 1 65536 20 group=7 module=0 template",
                "b 1 65536 20 module=1 template",
            ],
        ),
        (
            json!({"hami-vnpu-core": "true", "hami.io/node-register-Ascend910B3": r#"[{"id":"a","count":1,"devmem":65536,"devcore":20,"type":"Ascend910B3","health":true}]"#}),
            none.clone(),
            &["a 1 65536 100"],
        ),
        // An absurd number removes the vendor's devices, and the report says so.
        (
            none.clone(),
            json!({"metax-tech.com/gpu": "9E"}),
            &["problem: metax-tech.com/gpu"],
        ),
    ];
    for (annotations, capacity, expected) in cases {
        let text = format!("{annotations} {capacity}");
        let node = common::reporting(annotations, capacity);
        let found = devices(vendors, &node);

        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn ring_follows_from_the_kind_of_machine() {
    let vendors = common::vendors();
    for (kind, ring) in [("inf2.48xlarge", true), ("trn1.32xlarge", false)] {
        let node: Node = common::node(json!({
            "metadata": {"name": "n1", "labels": {"node.kubernetes.io/instance-type": kind}},
            "status": {"capacity": {"aws.amazon.com/neuron": 2, "aws.amazon.com/neuroncore": 4}},
        }));

        let report = node::report(&node, vendors);

        let mut later = node.clone();
        later.metadata.labels = None;
        assert!(node::same_report(&node, &node, vendors));
        assert!(
            !node::same_report(&later, &node, vendors),
            "the label may come later"
        );
        let tagged = |device: &Device| device.tags.iter().any(|tag| tag == Device::RING);
        assert!(
            report
                .node
                .devices
                .iter()
                .all(|device| tagged(device) == ring)
        );
        assert_eq!(report.node.devices.len(), 2);
    }
}
