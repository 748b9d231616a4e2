//! The codecs, compared with recordings of the reference's codecs and with themselves.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use crate::common;

use kube_api::allocation::{self, MigAllocation, MigSpan, Slot};
use kube_api::lock;
use kube_api::node::{self, RegisterFormat, Registered, RegisteredProfile, RegisteredSpan};
use placement::PairScore;
use proptest::prelude::*;
use serde_json::{Value, json};

/// The input of a step, and the reference's output.
fn steps(recording: &Value) -> Vec<(&str, &Value)> {
    let inputs = recording["steps"].as_array().unwrap().iter();
    let results = recording["expect"]["steps"].as_array().unwrap().iter();
    inputs
        .map(|step| step["input"].as_str().unwrap())
        .zip(results)
        .collect()
}

#[test]
fn the_colon_form_is_read_as_the_reference_reads_it() {
    let recording = common::recording("259-codec-node-register-colon-format");
    let steps = steps(&recording);
    assert!(steps.len() >= 11);
    for (input, expected) in steps {
        let read = node::decode_colon(input);
        if expected.get("error").is_some() {
            assert!(
                read.is_err(),
                "{input:?} is an error there, and {read:?} here"
            );
            continue;
        }
        let ours = serde_json::to_value(read.unwrap()).unwrap();
        let theirs = match &expected["devices"] {
            Value::Null => json!([]),
            devices => devices.clone(),
        };
        assert_eq!(ours, theirs, "{input:?}");
    }
}

#[test]
fn an_allocation_is_read_as_the_reference_reads_it() {
    let recording = common::recording("261-codec-pod-allocation-annotation");
    let steps = steps(&recording);
    assert!(steps.len() >= 10);
    for (input, expected) in steps {
        let annotations: Value = serde_json::from_str(input).unwrap();
        let text = annotations["hami.io/vgpu-devices-allocated"]
            .as_str()
            .unwrap();
        let read = allocation::decode(text);
        if expected.get("error").is_some() {
            assert!(
                read.is_err(),
                "{text:?} is an error there, and {read:?} here"
            );
            continue;
        }
        let mut ours: Vec<Value> = read
            .unwrap()
            .iter()
            .map(|slots| {
                slots
                    .iter()
                    .map(|slot| json!([slot.device, slot.kind, slot.memory_mib, slot.cores]))
                    .collect()
            })
            .collect();
        let theirs: Vec<Value> = expected["podDevices"]["NVIDIA"]
            .as_array()
            .unwrap()
            .iter()
            .map(|container| {
                let devices = container.as_array().unwrap().iter();
                devices
                    .map(|d| json!([d["UUID"], d["Type"], d["Usedmem"], d["Usedcores"]]))
                    .collect()
            })
            .collect();
        // The reference counts the text after the last separator as one more container.
        if ours.len() + 1 == theirs.len() && theirs.last() == Some(&json!([])) {
            ours.push(json!([]));
        }
        assert_eq!(ours, theirs, "{text:?}");
    }
}

#[test]
fn a_node_lock_is_read_as_the_reference_reads_it() {
    let recording = common::recording("262-codec-node-lock-value");
    let steps = steps(&recording);
    assert!(steps.len() >= 7);
    for (input, expected) in steps {
        let read = lock::parse(input);
        if expected.get("error").is_some() {
            assert!(
                read.is_err(),
                "{input:?} is an error there, and {read:?} here"
            );
            continue;
        }
        let read = read.unwrap();
        let (namespace, name) = read.owner.unwrap_or_default();
        let ours = json!({"namespace": namespace, "name": name, "time": read.time.to_string()});
        assert_eq!(&ours, expected, "{input:?}");
    }
}

#[test]
fn a_lock_that_is_nearly_a_time_is_none() {
    for value in [
        "2026-06-14 15:05:03Z",
        "2026-06-14T15:05:03Z[UTC]",
        "2026-06-14",
        ",,",
    ] {
        assert!(lock::parse(value).is_err(), "{value}");
    }
}

#[test]
fn register_uses_the_seeds_form_if_it_can_express_the_devices() {
    let plain = Registered {
        id: "GPU-0".to_owned(),
        index: Some(0),
        count: 10,
        devmem: 32768,
        devcore: 100,
        kind: "NVIDIA-Tesla V100-PCIE-32GB".to_owned(),
        mode: "hami-core".to_owned(),
        health: true,
        ..Registered::default()
    };
    let second = Registered {
        id: "GPU-1".to_owned(),
        index: Some(3),
        ..plain.clone()
    };
    let cut = Registered {
        mode: "mig".to_owned(),
        mig_profiles: vec![RegisteredProfile {
            name: "1g.10gb".to_owned(),
            memory_mib: 9728,
            core: 14,
            slice_count: 1,
            placements: vec![RegisteredSpan { start: 0, size: 1 }],
        }],
        ..plain.clone()
    };
    let auto = |devices: &[Registered]| node::encode(devices, RegisterFormat::Auto);

    assert_eq!(
        auto(std::slice::from_ref(&plain)),
        "GPU-0,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
    );
    assert_eq!(
        auto(&[plain.clone(), second]),
        "GPU-0,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true,0,hami-core:\
         GPU-1,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true,3,hami-core:"
    );
    assert_eq!(
        auto(&[cut]),
        r#"[{"id":"GPU-0","count":10,"devmem":32768,"devcore":100,"type":"NVIDIA-Tesla V100-PCIE-32GB","mode":"mig","migProfiles":[{"name":"1g.10gb","memoryMB":9728,"core":14,"sliceCount":1,"placements":[{"start":0,"size":1}]}],"health":true}]"#
    );
    assert_eq!(
        node::encode(&[plain], RegisterFormat::Json),
        r#"[{"id":"GPU-0","count":10,"devmem":32768,"devcore":100,"type":"NVIDIA-Tesla V100-PCIE-32GB","mode":"hami-core","health":true}]"#
    );
}

#[test]
fn an_empty_slot_is_always_written() {
    let one = Slot {
        device: "GPU-1".to_owned(),
        kind: "NVIDIA".to_owned(),
        memory_mib: 5000,
        cores: 0,
    };
    let containers = [vec![], vec![one.clone(), one], vec![]];

    let text = allocation::encode(&containers);

    assert_eq!(text, ";GPU-1,NVIDIA,5000,0:GPU-1,NVIDIA,5000,0:;;");
    assert_eq!(allocation::decode(&text).unwrap(), containers);
}

#[test]
fn broken_mig_instances_are_distinguished() {
    let check = |text: &str, expected: &str| {
        let error = allocation::decode_instances(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let one = r#"{"containerIndex":0,"deviceIndex":0,"gpuUUID":"G","profile":"1g"}"#;
    check("{", "no list of MIG instances");
    check(
        &format!("[{one},{one}]"),
        "two instances for device 0 of container 0",
    );
    check(
        r#"[{"gpuUUID":"G","profile":"1g","migUUID":"M"}]"#,
        "only some of migUUID",
    );
    check(r#"[{"containerIndex":-1}]"#, "no list of MIG instances");
}

fn word() -> impl Strategy<Value = String> {
    "[A-Za-z0-9 ._/-]{1,20}".prop_map(|text| text.trim().to_owned())
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0..200_u32, 0..=2_147_483_647_u32]
}

prop_compose! {
    fn registered()(
        id in "[A-Za-z0-9-]{1,40}", index in proptest::option::of(0..64_u32),
        count in number(), devmem in number(), devcore in number(), numa in 0..8_u32,
        kind in word(), health: bool,
        mode in prop_oneof![Just("hami-core".to_owned()), Just("mig".to_owned()), Just("mps".to_owned())],
        profiles in proptest::collection::vec((word(), number(), 0..8_u32), 0..3),
    ) -> Registered {
        Registered {
            id, index, count, devmem, devcore, kind, numa, mode, health,
            mig_profiles: profiles.into_iter().map(|(name, memory_mib, start)| RegisteredProfile {
                name, memory_mib, core: 14, slice_count: 1,
                placements: vec![RegisteredSpan { start, size: 1 }],
            }).collect(),
            custom_info: None,
        }
    }
}

fn as_inventory(devices: &[Registered]) -> Vec<placement::Device> {
    devices
        .iter()
        .map(|device| device.device("NVIDIA"))
        .collect()
}

proptest! {
    #[test]
    fn a_register_is_read_as_it_was_written(
        mut devices in proptest::collection::vec(registered(), 0..6), json: bool,
    ) {
        // Devices without an index are numbered from 0.
        for (at, device) in devices.iter_mut().enumerate() {
            device.index = device.index.or(u32::try_from(at).ok());
        }
        let format = if json { RegisterFormat::Json } else { RegisterFormat::Auto };

        let text = node::encode(&devices, format);

        let read = node::decode(&text).unwrap();
        if devices.iter().any(|device| device.index != Some(0)) {
            prop_assert_eq!(as_inventory(&read), as_inventory(&devices));
            let again: Vec<Registered> = as_inventory(&devices).iter().map(Registered::from).collect();
            prop_assert_eq!(again, devices);
        } else {
            // JSON leaves zeros out: if all are 0, they are numbered.
            prop_assert_eq!(read.len(), devices.len());
        }
    }

    #[test]
    fn an_allocation_is_read_as_it_was_written(
        containers in proptest::collection::vec(proptest::collection::vec(
            ("[A-Za-z0-9-]{1,40}", word(), number(), number()), 0..4), 0..5),
    ) {
        let containers: Vec<Vec<Slot>> = containers.into_iter().map(|slots| slots.into_iter().map(
            |(device, kind, memory, cores)| Slot { device, kind, memory_mib: u64::from(memory), cores },
        ).collect()).collect();

        prop_assert_eq!(allocation::decode(&allocation::encode(&containers)).unwrap(), containers);
    }

    #[test]
    fn mig_instances_are_read_as_they_were_written(
        instances in proptest::collection::btree_map((0..9_usize, 0..9_usize), (word(), word(), 0..8_u32, proptest::option::of((word(), 0..9_u32))), 0..6),
    ) {
        let instances: Vec<MigAllocation> = instances.into_iter().map(
            |((container_index, device_index), (gpu_uuid, profile, start, made))| MigAllocation {
                container_index, device_index, gpu_uuid, profile,
                placement: MigSpan { start, size: 1 },
                gpu_instance_id: made.as_ref().map(|(_, id)| *id),
                compute_instance_id: made.as_ref().map(|(_, id)| *id),
                mig_uuid: made.map(|(uuid, _)| uuid),
            },
        ).collect();
        let text = serde_json::to_string(&instances).unwrap();

        prop_assert_eq!(allocation::decode_instances(&text).unwrap(), instances);
    }

    #[test]
    fn scores_are_read_as_they_were_written(
        pairs in proptest::collection::btree_map(("[a-f]{1,3}", "[a-f]{1,3}"), -9..900_i32, 0..12),
    ) {
        let pairs: Vec<PairScore> = pairs.into_iter()
            .map(|((from, to), score)| PairScore { from, to, score }).collect();

        prop_assert_eq!(node::decode_scores(&node::encode_scores(&pairs)).unwrap(), pairs);
    }

    #[test]
    fn no_text_makes_a_codec_panic(text in "[\\PC,:;\\[\\]{}\"0-9-]{0,80}") {
        node::decode(&text).ok();
        node::decode_colon(&text).ok();
        node::decode_scores(&text).ok();
        allocation::decode(&text).ok();
        allocation::decode_instances(&text).ok();
        lock::parse(&text).ok();
    }

    #[test]
    fn codecs_do_not_panic_on_changed_letters(
        devices in proptest::collection::vec(registered(), 1..4), json: bool,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let format = if json { RegisterFormat::Json } else { RegisterFormat::Colon };
        let mut bytes = node::encode(&devices, format).into_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let text = String::from_utf8_lossy(&bytes);

        if let Ok(devices) = node::decode(&text) {
            as_inventory(&devices);
        }
    }
}
