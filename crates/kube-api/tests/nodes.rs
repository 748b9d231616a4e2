//! Nodes as inventory: forms, cordons, heartbeats, and broken annotations.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use crate::common;

use common::{node, reporting, vendors};
use expect_test::{Expect, expect};
use kube_api::node::{report, same_report};
use kube_api::object::Node;
use proptest::prelude::*;
use serde_json::{Value, json};

const REGISTER: &str = "hami.io/node-nvidia-register";

fn two_devices() -> Value {
    json!([
        {"id": "GPU-0", "count": 10, "devmem": 81920, "devcore": 100, "type": "NVIDIA A100", "health": true},
        {"id": "GPU-1", "index": 1, "count": 10, "devmem": 81920, "devcore": 100, "type": "NVIDIA A100", "numa": 1, "health": true},
    ])
}

/// `vendor id#index slots×MiB cores numa [mode] [sick] [cordoned]` for each device, then the problems.
fn text_of(node: &Node) -> String {
    let report = report(node, vendors());
    let mut text = String::new();
    for device in &report.node.devices {
        text += &format!(
            "{} {}#{} {}x{} {} {}",
            device.vendor,
            device.id,
            device.index,
            device.slots,
            device.memory_bytes >> 20,
            device.cores,
            device.numa
        );
        if device.mode != "hami-core" {
            text += &format!(" {}", device.mode);
        }
        text += if device.healthy { "" } else { " sick" };
        text += if device.cordoned { " cordoned\n" } else { "\n" };
    }
    for pair in &report.node.pairs {
        text += &format!("{}-{}: {}\n", pair.from, pair.to, pair.score);
    }
    for problem in &report.problems {
        text += &format!("{problem}\n");
    }
    text
}

fn check(annotations: Value, allocatable: Value, expected: Expect) {
    expected.assert_eq(&text_of(&reporting(annotations, allocatable)));
}

#[test]
fn both_forms_are_read_for_every_vendor() {
    check(
        json!({
            REGISTER: two_devices().to_string(),
            "hami.io/node-dcu-register": "DCU-0,4,32768,100,DCU-Z100,0,true:DCU-1,4,32768,60,DCU-Z100,1,false:",
        }),
        json!({"nvidia.com/gpu": "20"}),
        expect![[r#"
            NVIDIA GPU-0#0 10x81920 100 0
            NVIDIA GPU-1#1 10x81920 100 1
            DCU DCU-0#0 4x32768 100 0
            DCU DCU-1#1 4x32768 60 1 sick
        "#]],
    );
    check(
        json!({
            REGISTER: "GPU-a,10,32768,100,NVIDIA-T4,0,true,3,mig:",
            "hami.io/node-dcu-register": r#"[{"id":"DCU-9","index":9,"count":4,"devmem":1,"health":true}]"#,
        }),
        json!({}),
        expect![[r#"
            NVIDIA GPU-a#3 10x32768 100 0 mig
            DCU DCU-9#9 4x1 0 0
        "#]],
    );
}

#[test]
fn a_device_that_says_nothing_of_its_health_is_not_used() {
    check(
        json!({REGISTER: r#"[{"id":"GPU-a","count":10,"devmem":1000,"type":"NVIDIA A"}]"#}),
        json!({}),
        expect![[r#"
            NVIDIA GPU-a#0 10x1000 0 0 sick
        "#]],
    );
}

#[test]
fn a_system_without_numa_nodes_is_one_node() {
    for text in [
        r#"[{"id":"GPU-a","count":1,"devmem":1,"devcore":1,"numa":-1,"health":true}]"#,
        "GPU-a,1,1,1,,-1,true:",
    ] {
        check(
            json!({REGISTER: text}),
            json!({}),
            expect![[r#"
                NVIDIA GPU-a#0 1x1 1 0
            "#]],
        );
    }
}

#[test]
fn a_cordon_takes_devices_out_by_their_whole_identifier() {
    check(
        json!({REGISTER: two_devices().to_string(), "hami.io/device-cordon": " GPU-1 ,GPU-"}),
        json!({}),
        expect![[r#"
            NVIDIA GPU-0#0 10x81920 100 0
            NVIDIA GPU-1#1 10x81920 100 1 cordoned
        "#]],
    );
}

#[test]
fn node_has_no_devices_if_its_kubelet_offers_none() {
    let register = two_devices().to_string();
    let empty = || expect![""];
    check(
        json!({REGISTER: register}),
        json!({"nvidia.com/gpu": "0"}),
        empty(),
    );
    let stamp = "Requesting_2026-01-02 03:04:05";
    let key = "hami.io/node-handshake";
    check(json!({REGISTER: register, key: stamp}), json!({}), empty());

    let here = || {
        expect![[r#"
            NVIDIA GPU-0#0 10x81920 100 0
            NVIDIA GPU-1#1 10x81920 100 1
        "#]]
    };
    check(
        json!({REGISTER: register, key: stamp}),
        json!({"nvidia.com/gpu": "20"}),
        here(),
    );
    for old in [
        "Reported 2024-01-23 04:30:04",
        "Requesting_soon",
        "Deleted_2024-01-01 00:00:00",
    ] {
        check(json!({REGISTER: register, key: old}), json!({}), here());
    }
}

#[test]
fn broken_annotation_takes_out_one_vendor_with_a_reason() {
    let dcu = "DCU-0,4,32768,100,DCU-Z100,0,true:";
    let check = |text: &str, expected: Expect| {
        let all = text_of(&reporting(
            json!({REGISTER: text, "hami.io/node-dcu-register": dcu}),
            json!({}),
        ));
        let (kept, problems) = all.split_at(all.find("annotation").unwrap());
        assert_eq!(kept, "DCU DCU-0#0 4x32768 100 0\n");
        expected.assert_eq(problems);
    };
    check(
        "[{bad",
        expect![[r#"
            annotation hami.io/node-nvidia-register: no list of devices: key must be a string at line 1 column 3
        "#]],
    );
    check(
        "{}",
        expect![[r#"
            annotation hami.io/node-nvidia-register: no list of devices: invalid type: map, expected a sequence at line 1 column 0
        "#]],
    );
    check(
        r#"[{"id":"GPU-a","count":-1}]"#,
        expect![[r#"
            annotation hami.io/node-nvidia-register: no list of devices: invalid value: integer `-1`, expected u32 at line 1 column 25
        "#]],
    );
    check(
        "GPU-a,10",
        expect![[r#"
            annotation hami.io/node-nvidia-register: no device ends with a colon; write id,count,memory,cores,type,numa,health: for each
        "#]],
    );
    check(
        "GPU-a,ten,1,100,T,0,true:",
        expect![[r#"
            annotation hami.io/node-nvidia-register: device "GPU-a": count is "ten"; write a whole number from 0 to 2147483647
        "#]],
    );
    check(
        r#"[{"id":"GPU-a"},{"id":"GPU-a"}]"#,
        expect![[r#"
            annotation hami.io/node-nvidia-register: reports device GPU-a twice; each needs an identifier of its own
        "#]],
    );
    check(
        r#"[{"id":"a:;b"}]"#,
        expect![[r#"
            annotation hami.io/node-nvidia-register: "a:;b" is no identifier of a device; it needs letters, none of , : ; and no control characters
        "#]],
    );
    check(
        r#"[{"id":"a\u0000b"}]"#,
        expect![[r#"
            annotation hami.io/node-nvidia-register: "a\0b" is no identifier of a device; it needs letters, none of , : ; and no control characters
        "#]],
    );
    let many: Vec<Value> = (0..2000)
        .map(|at| json!({"id": format!("GPU-{at}")}))
        .collect();
    check(
        &Value::from(many).to_string(),
        expect![[r#"
            annotation hami.io/node-nvidia-register: reports 2000 devices, at most 1024 are read of one node
        "#]],
    );
}

#[test]
fn pair_scores_are_read_and_broken_ones_take_the_vendor_out() {
    let scores =
        r#"[{"uuid":"GPU-0","score":{"GPU-1":100}},{"uuid":"GPU-1","score":{"GPU-0":100}}]"#;
    check(
        json!({REGISTER: two_devices().to_string(), "hami.io/node-nvidia-score": scores}),
        json!({}),
        expect![[r#"
            NVIDIA GPU-0#0 10x81920 100 0
            NVIDIA GPU-1#1 10x81920 100 1
            GPU-0-GPU-1: 100
            GPU-1-GPU-0: 100
        "#]],
    );
    check(
        json!({REGISTER: two_devices().to_string(), "hami.io/node-nvidia-score": "{bad"}),
        json!({}),
        expect![[r#"
            annotation hami.io/node-nvidia-score: no list of devices: invalid type: map, expected a sequence at line 1 column 0
        "#]],
    );
}

#[test]
fn mig_profiles_come_with_their_places() {
    let register = json!([{
        "id": "GPU-0", "count": 7, "devmem": 81920, "devcore": 100, "type": "NVIDIA H100", "mode": "mig", "health": true,
        "migProfiles": [{"name": "3g.40gb", "memoryMB": 40448, "core": 42, "sliceCount": 3,
            "placements": [{"start": 0, "size": 4}, {"start": 4, "size": 4}]}, {"name": "odd", "placements": null}],
    }]);
    let node = reporting(json!({REGISTER: register.to_string()}), json!({}));

    let devices = report(&node, vendors()).node.devices;

    let profile = &devices[0].mig_profiles[0];
    assert!(devices[0].is_mig());
    assert_eq!(
        (
            profile.name.as_str(),
            profile.memory_bytes >> 20,
            profile.cores,
            profile.slices
        ),
        ("3g.40gb", 40448, 42, 3)
    );
    assert_eq!(profile.placements.len(), 2);
}

#[test]
fn heartbeat_is_the_same_report_and_a_real_change_is_not() {
    let vendors = vendors();
    let before = reporting(
        json!({REGISTER: two_devices().to_string()}),
        json!({"nvidia.com/gpu": "20"}),
    );
    let mut heartbeat = before.clone();
    heartbeat.metadata.resource_version = Some("7".to_owned());
    let annotations = heartbeat.metadata.annotations.as_mut().unwrap();
    annotations.insert("other".to_owned(), "text".to_owned());
    assert!(same_report(&before, &heartbeat, vendors));

    let changed = |annotations: Value, allocatable: Value| {
        !same_report(&before, &reporting(annotations, allocatable), vendors)
    };
    assert!(changed(
        json!({REGISTER: "[]"}),
        json!({"nvidia.com/gpu": "20"})
    ));
    assert!(changed(
        json!({REGISTER: two_devices().to_string()}),
        json!({"nvidia.com/gpu": "0"})
    ));
    assert!(changed(
        json!({REGISTER: two_devices().to_string(), "hami.io/device-cordon": "GPU-0"}),
        json!({"nvidia.com/gpu": "20"})
    ));
}

/// Values of node annotations: valid, truncated and garbled.
fn annotation() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(two_devices().to_string()),
        Just("GPU-a,10,32768,100,T,0,true:".to_owned()),
        "[\\PC,:\\[{\"]{0,30}",
        ("[0-9]{1,12}", "[a-z0-9]{0,5}")
            .prop_map(|(number, word)| format!("{word},{number},{number},100,T,0,true:")),
        (0..200_usize).prop_map(|end| two_devices().to_string().chars().take(end).collect()),
    ]
}

fn some_node() -> impl Strategy<Value = Node> {
    let keys: Vec<String> = vendors()
        .iter()
        .flat_map(|row| {
            let keys = &row.keys;
            let read = keys
                .register
                .iter()
                .chain(&keys.score)
                .chain(&keys.handshake);
            read.chain(&keys.also_read).cloned().collect::<Vec<_>>()
        })
        .collect();
    let names: Vec<String> = vendors()
        .resources()
        .map(|(name, _, _)| name.to_owned())
        .collect();
    (
        proptest::collection::vec((prop::sample::select(keys), annotation()), 0..4),
        proptest::collection::vec((prop::sample::select(names), "[0-9]{1,3}|[a-z]"), 0..4),
    )
        .prop_map(|(annotations, capacity)| {
            let annotations: std::collections::BTreeMap<_, _> = annotations.into_iter().collect();
            let capacity: std::collections::BTreeMap<_, _> = capacity.into_iter().collect();
            node(json!({
                "metadata": {"name": "n", "annotations": annotations},
                "status": {"allocatable": capacity, "capacity": capacity},
            }))
        })
}

proptest! {
    #[test]
    fn no_node_panics_and_the_engine_takes_every_report(node in some_node()) {
        let report = report(&node, vendors());

        placement::Cluster::new().set_node(report.node).unwrap();
    }

    #[test]
    fn nodes_of_the_same_report_report_the_same(one in some_node(), other in some_node()) {
        let vendors = vendors();
        prop_assert!(same_report(&one, &one, vendors));
        if same_report(&one, &other, vendors) {
            prop_assert_eq!(report(&one, vendors), report(&other, vendors));
        }
    }
}
