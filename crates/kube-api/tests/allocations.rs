//! Allocations written to a pod, and read from a running one: ours, HAMi's with its lost slots, and garbage.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use crate::common;

use common::{MIB, asking, pod, vendors};
use kube_api::allocation::{read, write};
use kube_api::object::Pod;
use placement::{Grant, Granted, Instance, Kind, Placement, Span, Vendor};
use proptest::prelude::*;
use serde_json::{Value, json};

const NOW: u64 = 1_705_054_796_123_456_789;
const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
const MIG: &str = "hami.io/vgpu-mig-allocations";

fn grant(vendor: &str, device: &str, mib: u64, cores: u32) -> Grant {
    Grant::new(Vendor::new(vendor), device, mib * MIB, cores)
}

fn granted(kind: Kind, grants: Vec<Grant>) -> Granted {
    Granted { kind, grants }
}

fn placed(containers: Vec<Granted>) -> Placement {
    Placement {
        node: "n1".into(),
        containers,
    }
}

/// A pod with these containers: an init container is written `i`, a sidecar `s`, any other letter is an app
/// container; a `+` after it asks for a device.
fn of_containers(shape: &str, annotations: Value) -> Pod {
    let (mut before, mut beside) = (Vec::new(), Vec::new());
    for word in shape.split_whitespace() {
        let mut container = json!({"name": word.trim_end_matches('+')});
        if word.ends_with('+') {
            container["resources"] = json!({"limits": {"nvidia.com/gpu": "1"}});
        }
        match word.as_bytes()[0] {
            b'i' => before.push(container),
            b's' => {
                container["restartPolicy"] = "Always".into();
                before.push(container);
            }
            _ => beside.push(container),
        }
    }
    pod(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": annotations},
        "spec": {"nodeName": "n1", "initContainers": before, "containers": beside},
    }))
}

/// `kind device=MiB,cores[@profile+start]` for each container.
fn text_of(pod: &Pod) -> String {
    match read(pod, vendors()) {
        Err(error) => error.to_string(),
        Ok(None) => "nothing".to_owned(),
        Ok(Some(placement)) => placement
            .containers
            .iter()
            .map(|granted| {
                let mut text = format!("{:?}", granted.kind);
                for grant in &granted.grants {
                    let mib = grant.memory_bytes / MIB;
                    text += &format!(" {}={mib},{}", grant.device, grant.cores);
                    if let Some(instance) = &grant.instance {
                        text += &format!("@{}+{}", instance.profile, instance.span.start);
                    }
                }
                text
            })
            .collect::<Vec<_>>()
            .join(" | "),
    }
}

#[test]
fn allocation_is_under_the_seeds_key_and_the_references_two() {
    let pod = of_containers("i a+ b", json!({}));
    let placement = placed(vec![
        granted(Kind::Init, vec![]),
        granted(Kind::App, vec![grant("NVIDIA", "GPU-1", 5000, 30)]),
        granted(Kind::App, vec![]),
    ]);

    let written = write(&pod, &placement, None, vendors(), NOW);

    let text = ";GPU-1,NVIDIA,5000,30:;;";
    assert_eq!(
        serde_json::to_value(&written.annotations).unwrap(),
        json!({
            "hami.io/devices-to-allocate": text,
            "hami.io/vgpu-devices-to-allocate": text,
            "hami.io/vgpu-devices-allocated": text,
            "hami.io/vgpu-node": "n1",
            "hami.io/vgpu-time": "1705054796",
        })
    );
    assert_eq!(
        serde_json::to_value(&written.labels).unwrap(),
        json!({"hami.io/vgpu-node": "n1"})
    );
}

#[test]
fn memory_is_rounded_up_to_a_mib() {
    let mut grant = grant("NVIDIA", "GPU-1", 1, 0);
    grant.memory_bytes += 1;
    let placement = placed(vec![granted(Kind::App, vec![grant])]);

    let written = write(
        &of_containers("a+", json!({})),
        &placement,
        None,
        vendors(),
        NOW,
    );

    assert_eq!(written.annotations[ALLOCATED], "GPU-1,NVIDIA,2,0:;");
}

#[test]
fn each_vendor_has_its_own_keys_with_all_empty_slots() {
    let placement = placed(vec![
        granted(Kind::App, vec![grant("NVIDIA", "GPU-0", 100, 0)]),
        granted(Kind::App, vec![grant("DCU", "DCU-0", 100, 100)]),
    ]);

    let written = write(
        &of_containers("a+ b", json!({})),
        &placement,
        None,
        vendors(),
        NOW,
    );

    assert_eq!(written.annotations[ALLOCATED], "GPU-0,NVIDIA,100,0:;;");
    assert_eq!(
        written.annotations["hami.io/dcu-devices-allocated"],
        ";DCU-0,DCU,100,100:;"
    );
    assert!(
        vendors()
            .allocation_keys()
            .any(|key| key == "hami.io/dcu-devices-allocated")
    );
}

#[test]
fn instance_is_written_with_its_placement_and_stale_one_emptied() {
    let mut cut = grant("NVIDIA", "GPU-1", 9728, 14);
    cut.instance = Some(Instance {
        profile: "1g.10gb".into(),
        span: Span { start: 6, size: 1 },
    });
    let shared = grant("NVIDIA", "GPU-0", 100, 0);
    let placement = placed(vec![granted(Kind::App, vec![shared.clone(), cut])]);
    let write = |pod: &Pod, placement: &Placement| {
        write(pod, placement, None, vendors(), NOW)
            .annotations
            .get(MIG)
            .cloned()
    };

    let written = write(&of_containers("a+", json!({})), &placement).unwrap();

    assert_eq!(
        written,
        r#"[{"containerIndex":0,"deviceIndex":1,"gpuUUID":"GPU-1","profile":"1g.10gb","placement":{"start":6,"size":1}}]"#
    );
    let elsewhere = placed(vec![granted(Kind::App, vec![shared])]);
    let again = of_containers("a+", json!({MIG: written}));
    assert_eq!(write(&again, &elsewhere).as_deref(), Some("[]"));
    assert_eq!(write(&of_containers("a+", json!({})), &elsewhere), None);
}

#[test]
fn container_gets_its_own_devices_and_no_others() {
    let key = kube_api::keys::visible_devices("a");
    let pod = pod(json!({"spec": {"containers": [
        {"name": "a", "env": [{"name": "NVIDIA_VISIBLE_DEVICES",
            "valueFrom": {"fieldRef": {"fieldPath": format!("metadata.annotations['{key}']")}}}]},
        {"name": "b", "env": [{"name": "X", "valueFrom": null}]},
    ]}}));
    let devices = || {
        vec![
            grant("NVIDIA", "GPU-1", 1, 0),
            grant("NVIDIA", "GPU-0", 1, 0),
        ]
    };
    let placement = placed(vec![
        granted(Kind::App, devices()),
        granted(Kind::App, devices()),
    ]);

    let written = write(&pod, &placement, None, vendors(), NOW).annotations;

    assert_eq!(written[&key], "GPU-1,GPU-0");
    assert!(!written.contains_key(&kube_api::keys::visible_devices("b")));
}

#[test]
fn running_containers_are_read_from_any_writer() {
    let check = |shape: &str, text: &str, expected: &str| {
        let pod = of_containers(shape, json!({ALLOCATED: text}));
        assert_eq!(text_of(&pod), expected, "{shape}: {text}");
    };
    let (one, two) = ("G1,NVIDIA,100,5:", "G2,NVIDIA,200,0:");

    check(
        "i+ a+",
        &format!("{one};{two};"),
        "Init G1=100,5 | App G2=200,0",
    );
    check("s+ a", &format!("{one};;"), "Sidecar G1=100,5 | App");
    check("a+", &format!("{one}{two};"), "App G1=100,5 G2=200,0");
    check("a+", "G1,NVIDIA,100,5", "App G1=100,5");
    // HAMi v2.10 omits empty slots.
    check("i a+", &format!("{one};"), "Init | App G1=100,5");
    check("a b+ c", &format!("{one};"), "App | App G1=100,5 | App");
    check(
        "i+ a b+",
        &format!("{one};{two};"),
        "Init G1=100,5 | App | App G2=200,0",
    );
    // The containers of these shares cannot be determined.
    check("a+ b+", &format!("{one};"), "App G1=100,5 | App");
    check(
        "a",
        &format!(";{one};{two};"),
        "App | App G1=100,5 | App G2=200,0",
    );
    // Recordings with negative cores, and parts that a decoder skips.
    check("a+", "G1,NVIDIA,-4,-50:;", "App G1=0,0");
    check("a+", "noise:G1,NVIDIA,100,5,more:;", "App G1=100,5");
    check("a+", ";;", "nothing");
    check("a+", "", "nothing");

    check(
        "a+",
        "G1,NVIDIA,100:;",
        "annotation hami.io/vgpu-devices-allocated: \"G1,NVIDIA,100\" has fewer than the four fields uuid,type,memory,cores",
    );
    check(
        "a+",
        "G1,NVIDIA,99999999999,0:;",
        "annotation hami.io/vgpu-devices-allocated: memory of G1 is \"99999999999\", and no whole number up to 2147483647",
    );
}

#[test]
fn allocated_key_wins_over_pending_and_seeds_key_comes_last() {
    let text = |name: &str| format!("{name},NVIDIA,1,0:;");
    let (to_allocate, seed) = (
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/devices-to-allocate",
    );
    let check = |annotations: Value, expected: &str| {
        assert_eq!(text_of(&of_containers("a+", annotations)), expected);
    };
    // The agent removes the part that it has given to containers.
    check(
        json!({ALLOCATED: text("A"), to_allocate: ";", seed: ";"}),
        "App A=1,0",
    );
    check(
        json!({to_allocate: text("T"), seed: text("S")}),
        "App T=1,0",
    );
    check(json!({seed: text("S")}), "App S=1,0");
}

#[test]
fn instances_find_their_devices_despite_a_wrong_count() {
    let text = "G1,NVIDIA,9728,14:;";
    let instance = |container: usize, device: usize, uuid: &str| {
        json!([{"containerIndex": container, "deviceIndex": device, "gpuUUID": uuid, "profile": "1g", "placement": {"start": 6, "size": 1}}]).to_string()
    };
    let check = |shape: &str, mig: &str, expected: &str| {
        let pod = of_containers(shape, json!({ALLOCATED: text, MIG: mig}));
        assert_eq!(text_of(&pod), expected, "{mig}");
    };
    check("a+", &instance(0, 0, "G1"), "App G1=9728,14@1g+6");
    check("a b+", &instance(0, 0, "G1"), "App | App G1=9728,14@1g+6");
    check("a+", "[]", "App G1=9728,14");
    check(
        "a+",
        &instance(0, 1, "G2"),
        "annotation hami.io/vgpu-mig-allocations: names an instance of G2 for device 1 of container 0, which holds no such device",
    );
}

#[test]
fn node_is_the_pods_node_or_else_the_annotations() {
    let node_of = |spec: Value, annotations: Value| {
        let pod = pod(json!({"metadata": {"annotations": annotations}, "spec": spec}));
        read(&pod, vendors())
            .unwrap()
            .map(|placement| placement.node.to_string())
    };
    let (text, node) = ("G,NVIDIA,1,0:;", "hami.io/vgpu-node");

    let annotated = json!({ALLOCATED: text, node: "there"});
    assert_eq!(
        node_of(json!({"nodeName": "here"}), annotated.clone()).as_deref(),
        Some("here")
    );
    assert_eq!(node_of(json!({}), annotated).as_deref(), Some("there"));
    assert_eq!(node_of(json!({}), json!({ALLOCATED: text})), None);
}

/// Placements as the engine makes them: devices of one or two vendors, some as instances.
fn placement() -> impl Strategy<Value = Placement> {
    let instance = proptest::option::of(("[1-7]g[.][0-9]{1,2}gb", 0..8_u32, 1..8_u32));
    let device = ("GPU-[0-9a-f]{1,8}", 0..100_000_u64, 0..=100_u32, instance).prop_map(
        |(device, mib, cores, instance)| {
            let mut grant = grant("NVIDIA", &device, mib, cores);
            grant.instance = instance.map(|(profile, start, size)| Instance {
                profile: profile.as_str().into(),
                span: Span { start, size },
            });
            grant
        },
    );
    let other = ("DCU-[0-9]{1,3}", 0..100_000_u64, 0..=100_u32)
        .prop_map(|(device, mib, cores)| grant("DCU", &device, mib, cores));
    let granted = (
        prop::sample::select(vec![Kind::Init, Kind::Sidecar, Kind::App]),
        proptest::collection::vec(device, 0..3),
        proptest::collection::vec(other, 0..2),
    )
        .prop_map(|(kind, mut grants, others)| {
            grants.extend(others);
            granted(kind, grants)
        });
    proptest::collection::vec(granted, 1..5).prop_map(|mut containers| {
        containers.sort_by_key(|granted| granted.kind == Kind::App);
        placed(containers)
    })
}

fn shaped_like(placement: &Placement) -> Pod {
    let words: Vec<String> = placement
        .containers
        .iter()
        .enumerate()
        .map(|(at, granted)| match granted.kind {
            Kind::Init => format!("i{at}"),
            Kind::Sidecar => format!("s{at}"),
            Kind::App => format!("a{at}"),
        })
        .collect();
    of_containers(&words.join(" "), json!({}))
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(placement in placement()) {
        let mut pod = shaped_like(&placement);

        let written = write(&pod, &placement, None, vendors(), NOW);
        pod.metadata.annotations = Some(written.annotations);

        let read = read(&pod, vendors()).unwrap();
        let holds = placement.containers.iter().any(|granted| !granted.grants.is_empty());
        prop_assert_eq!(read, holds.then_some(placement));
    }

    #[test]
    fn no_annotation_makes_reading_panic(
        texts in proptest::collection::vec((any::<prop::sample::Index>(), "[\\PC,:;0-9\\[{\"]{0,40}"), 0..5),
        shape in "(i|s|a|b[+]| ){0,6}",
    ) {
        let keys: Vec<&str> = vendors().allocation_keys().collect();
        let annotations: std::collections::BTreeMap<_, _> = texts.into_iter()
            .map(|(at, text)| (keys[at.index(keys.len())], text)).collect();
        let pod = of_containers(&shape, json!(annotations));

        read(&pod, vendors()).ok();
    }
}

#[test]
fn a_node_whose_name_is_too_long_for_a_label_gets_none() {
    let mut placement = placed(vec![granted(Kind::App, vec![grant("NVIDIA", "G", 1, 0)])]);
    placement.node = "n".repeat(64).as_str().into();

    let written = write(
        &of_containers("a+", json!({})),
        &placement,
        None,
        vendors(),
        NOW,
    );

    assert!(written.labels.is_empty());
    assert_eq!(written.annotations["hami.io/vgpu-node"], "n".repeat(64));
}

#[test]
fn an_allocation_of_more_than_any_pod_holds_is_not_gone_through() {
    let text = text_of(&of_containers(
        "a+",
        json!({ALLOCATED: "G,N,1,1:".repeat(30_000)}),
    ));

    assert_eq!(
        text,
        "annotation hami.io/vgpu-devices-allocated: names more than 4096 shares of devices, the most of one pod"
    );
}

#[test]
fn a_pod_that_asks_for_nothing_holds_nothing() {
    assert_eq!(read(&asking(json!({}), json!({})), vendors()), Ok(None));
}
