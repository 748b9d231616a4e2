//! Pods as requests: amounts, defaults, annotations, and the errors of refused ones.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use crate::common;

use common::{MIB, all_vendors, asking, pod, vendors, vendors_with};
use kube_api::config::DeviceConfig;
use kube_api::request::{Defaults, RequestError, request};
use kube_api::vendor::Vendors;
use placement::{Ask, Compute, DevicePolicy, Key, Kind, Memory, NodePolicy, Request, Weights};
use proptest::prelude::*;
use serde_json::{Value, json};

fn ask_of(limits: Value, vendors: &Vendors) -> Result<Option<Ask>, RequestError> {
    let request = request(&asking(limits, json!({})), vendors, &Defaults::default())?;
    let mut asks = request.containers[0].asks.clone();
    assert!(asks.len() < 2);
    Ok(asks.pop())
}

/// `count memory cores`, memory in MiB or percent; `none`, or the error.
fn text_of(ask: Result<Option<Ask>, RequestError>) -> String {
    match ask {
        Err(error) => error.to_string(),
        Ok(None) => "none".to_owned(),
        Ok(Some(ask)) => {
            let memory = match ask.memory {
                Memory::Bytes(bytes) => (bytes / MIB).to_string(),
                Memory::Percent(percent) => format!("{percent}%"),
            };
            let Compute::Units(cores) = ask.compute else {
                panic!("NVIDIA counts units")
            };
            format!("{} {memory} {cores}", ask.count)
        }
    }
}

#[test]
fn amounts_are_read_as_the_documents_say() {
    let vendors = vendors();
    let check = |limits: &[(&str, &str)], expected: &str| {
        let limits = limits
            .iter()
            .map(|(name, amount)| (format!("nvidia.com/{name}"), json!(amount)))
            .collect::<serde_json::Map<_, _>>();
        let text = text_of(ask_of(Value::Object(limits.clone()), vendors));
        assert_eq!(text, expected, "{limits:?}");
    };

    check(&[], "none");
    check(&[("gpu", "0")], "none");
    check(&[("gpu", "-1"), ("gpumem", "100")], "none");
    check(&[("gpumem", "3000")], "none");
    check(&[("gpu", "1")], "1 100% 0");
    check(
        &[("gpu", "2"), ("gpumem", "3000"), ("gpucores", "30")],
        "2 3000 30",
    );
    check(&[("gpu", "1"), ("gpumem", "3k")], "1 3000 0");
    check(&[("gpu", "1"), ("gpumem", "3e3")], "1 3000 0");
    check(&[("gpu", "1"), ("gpumem", "16Gi")], "1 16384 0");
    check(&[("gpu", "1"), ("gpumem", "0")], "1 100% 0");
    check(
        &[("gpu", "1"), ("gpumem", "0"), ("gpumem-percentage", "50")],
        "1 50% 0",
    );
    check(
        &[("gpu", "1"), ("gpumem", "10"), ("gpumem-percentage", "50")],
        "1 10 0",
    );
    check(&[("gpu", "1"), ("gpumem-percentage", "150")], "1 100% 0");
    check(&[("gpu", "1"), ("gpumem-percentage", "-3")], "1 100% 0");
    check(&[("gpu", "1"), ("gpucores", "150")], "1 100% 100");
    check(&[("gpu", "1"), ("gpucores", "-50")], "1 100% 0");

    check(
        &[("gpu", "500m")],
        "container c: nvidia.com/gpu: 500m is no whole number; write one such as 1",
    );
    check(
        &[("gpu", "1"), ("gpumem", "-5")],
        "container c: nvidia.com/gpumem: -5 is below 0; write 0 for the whole device, or a number of MiB",
    );
    check(
        &[("gpu", "1"), ("gpumem", "1000Ki")],
        "container c: nvidia.com/gpumem: 1000Ki is no whole number of MiB; write one such as 16Gi or 512Mi",
    );
    check(
        &[("gpu", "1"), ("gpumem", "17179869184")],
        "container c: nvidia.com/gpumem: 17179869184 is more than 2147483647 MiB, the most of one device; a number without a suffix counts MiB, so write 16Gi for 16 GiB",
    );
    check(
        &[("gpu", "1"), ("gpumem", "lots")],
        "container c: nvidia.com/gpumem: \"lots\" is no amount; write a number such as 3000, 3k, 16Gi or 500m",
    );
}

#[test]
fn configuration_sets_the_defaults_of_a_request() {
    let gpu = || json!({"nvidia.com/gpu": "1"});
    let check = |vendors: &Vendors, limits: Value, expected: &str| {
        assert_eq!(text_of(ask_of(limits, vendors)), expected);
    };
    check(
        &vendors_with(|nvidia| nvidia.default_memory = 5000),
        gpu(),
        "1 5000 0",
    );
    check(
        &vendors_with(|nvidia| nvidia.default_cores = 30),
        gpu(),
        "1 100% 30",
    );
    let by_gib = || vendors_with(|nvidia| nvidia.memory_factor = 1024);
    check(
        &by_gib(),
        json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2"}),
        "1 2048 0",
    );
    check(
        &by_gib(),
        json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2Gi"}),
        "1 2048 0",
    );
}

#[test]
fn requests_count_where_limits_are_silent() {
    let pod = pod(json!({"spec": {"containers": [{"name": "c", "resources": {
        "limits": {"nvidia.com/gpu": 1},
        "requests": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "100"},
    }}]}}));

    let request = request(&pod, vendors(), &Defaults::default()).unwrap();

    let ask = &request.containers[0].asks[0];
    assert_eq!((ask.count, ask.memory), (1, Memory::Bytes(100 * MIB)));
}

fn with(annotations: Value, defaults: &Defaults) -> Result<Request, RequestError> {
    let pod = asking(json!({"nvidia.com/gpu": "1"}), annotations);
    request(&pod, vendors(), defaults)
}

#[test]
fn annotation_wins_over_flag_and_unknown_words_mean_default() {
    let flags = Defaults {
        node_policy: "spread".to_owned(),
        device_policy: "binpack".to_owned(),
    };
    let check = |annotations: Value, node: NodePolicy, device: DevicePolicy| {
        let request = with(annotations.clone(), &flags).unwrap();
        let ask = &request.containers[0].asks[0];
        assert_eq!(
            (request.node_policy, &ask.policy),
            (node, &device),
            "{annotations}"
        );
    };
    let (node, device) = (
        "hami.io/node-scheduler-policy",
        "hami.io/gpu-scheduler-policy",
    );

    check(json!({}), NodePolicy::Spread, DevicePolicy::Binpack);
    check(
        json!({node: "binpack", device: "mutex"}),
        NodePolicy::Binpack,
        DevicePolicy::Mutex,
    );
    check(
        json!({node: "", device: ""}),
        NodePolicy::Spread,
        DevicePolicy::Binpack,
    );
    check(
        json!({node: "nonsense", device: "nonsense"}),
        NodePolicy::Binpack,
        DevicePolicy::Spread,
    );
    check(
        json!({device: "topology-aware"}),
        NodePolicy::Spread,
        DevicePolicy::TopologyAware,
    );
    let chain = DevicePolicy::Chain(vec![Key::Binpack, Key::Numa]);
    check(json!({device: "binpack, numa"}), NodePolicy::Spread, chain);
}

#[test]
fn weights_are_all_three_or_an_error_in_the_references_words() {
    let key = "hami.io/device-scoring-weights";
    let check = |text: &str, expected: &str| {
        let error = with(json!({key: text}), &Defaults::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("invalid {key} annotation {text:?}: {expected}")
        );
    };
    let weights = with(
        json!({key: " memory=3, slot=1,core=0"}),
        &Defaults::default(),
    );
    assert_eq!(
        weights.unwrap().containers[0].asks[0].weights,
        Weights {
            slots: 1,
            cores: 0,
            memory: 3
        }
    );

    check("slot=1,core=1", "expected slot, core, and memory weights");
    check(
        "slot=0,core=0,memory=0",
        "at least one weight must be positive",
    );
    check(
        "slot=-1,core=1,memory=1",
        "\"-1\" is no weight; write a whole number of 0 or more",
    );
    check(
        "slot=1,slot=2,core=1,memory=1",
        "weight slot is given twice",
    );
    check(
        "slots=1",
        "unknown weight \"slots\"; accepted are slot, core and memory",
    );
    check("three", "\"three\" is no weight; write name=number");
}

#[test]
fn invalid_weights_do_not_stop_a_pod_without_devices() {
    let pod = asking(
        json!({"cpu": "1"}),
        json!({"hami.io/device-scoring-weights": "x"}),
    );

    let request = request(&pod, vendors(), &Defaults::default()).unwrap();

    assert!(!request.asks_for_devices());
}

#[test]
fn selections_are_trimmed_lists_and_empty_ones_are_no_rule() {
    let request = with(
        json!({
            "nvidia.com/use-gputype": "A100, H100,",
            "nvidia.com/nouse-gputype": " ",
            "nvidia.com/use-gpuuuid": "GPU-1",
            "nvidia.com/nouse-gpuuuid": "GPU-2,GPU-3",
            "nvidia.com/numa-bind": "t",
            "nvidia.com/vgpu-mode": "mig",
        }),
        &Defaults::default(),
    );

    let ask = &request.unwrap().containers[0].asks[0];
    assert_eq!(ask.select.use_types, ["A100", "H100"]);
    assert!(ask.select.nouse_types.is_empty());
    assert_eq!(ask.select.use_ids, ["GPU-1"]);
    assert_eq!(ask.select.nouse_ids, ["GPU-2", "GPU-3"]);
    assert_eq!(ask.select.mode.as_deref(), Some("mig"));
    assert!(ask.numa_bind);
    let not = with(json!({"nvidia.com/numa-bind": "yes"}), &Defaults::default());
    assert!(!not.unwrap().containers[0].asks[0].numa_bind);
}

#[test]
fn init_containers_come_first_and_each_vendor_has_its_own_ask() {
    let gpu = json!({"limits": {"nvidia.com/gpu": "1"}});
    let pod = pod(json!({
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {
            "initContainers": [
                {"name": "first", "resources": gpu},
                {"name": "beside", "restartPolicy": "Always", "resources": null},
            ],
            "containers": [
                {"name": "both", "resources": {"limits": {"nvidia.com/gpu": "1", "hygon.com/dcunum": "2", "hygon.com/dcumem": "100"}}},
                {"name": "none"},
            ],
        },
    }));

    let request = request(&pod, vendors(), &Defaults::default()).unwrap();

    let found: Vec<(&str, Kind, Vec<&str>)> = request
        .containers
        .iter()
        .map(|container| {
            let words = container.asks.iter().map(|ask| ask.vendor.as_str());
            (container.name.as_str(), container.kind, words.collect())
        })
        .collect();
    assert_eq!(
        found,
        [
            ("first", Kind::Init, vec!["NVIDIA"]),
            ("beside", Kind::Sidecar, vec![]),
            ("both", Kind::App, vec!["NVIDIA", "DCU"]),
            ("none", Kind::App, vec![]),
        ]
    );
    let traits = placement::PodTraits {
        best_effort: true,
        ..placement::PodTraits::default()
    };
    assert_eq!(
        request.pod,
        placement::Pod {
            traits,
            ..placement::Pod::named("n", "p")
        }
    );
}

#[test]
fn two_vendors_cannot_claim_one_resource() {
    let mut config = DeviceConfig::standard();
    config.hygon.as_mut().unwrap().resource_count_name = "nvidia.com/gpu".to_owned();

    let error = Vendors::new(config, all_vendors()).unwrap_err();

    assert_eq!(
        error.to_string(),
        "nvidia.com/gpu: is a resource of NVIDIA and of DCU; give each a name of its own"
    );
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[-+0-9.eEkKMGTPinum]{0,12}".prop_map(Value::from),
        "[\\PC,=:;\\[{]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-zA-Z]{0,10}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_amount_and_no_annotation_makes_a_request_panic(
        amounts in proptest::collection::vec(
            (any::<prop::sample::Index>(), "[-+]?[0-9]{0,30}[.]?[0-9]{0,12}([eE][-+]?[0-9]{1,9}|[numkKMGTPE]i?|)"), 0..8),
        annotations in proptest::collection::vec((any::<prop::sample::Index>(), "[\\PC,=]{0,24}"), 0..6),
    ) {
        let vendors = vendors();
        let names: Vec<&str> = vendors.resources().map(|(name, _, _)| name).collect();
        let mut keys: Vec<String> = vec![
            "hami.io/device-scoring-weights".to_owned(), "hami.io/gpu-scheduler-policy".to_owned(),
            "nvidia.com/numa-bind".to_owned(), "huawei.com/vnpu-mode".to_owned(),
            "metax-tech.com/sgpu-qos-policy".to_owned(),
        ];
        for row in vendors.iter() {
            keys.extend(row.keys.use_ids.iter().chain(&row.keys.use_types).cloned());
        }
        let limits: serde_json::Map<String, Value> = amounts.into_iter()
            .map(|(at, text)| (names[at.index(names.len())].to_owned(), text.into())).collect();
        let annotations: serde_json::Map<String, Value> = annotations.into_iter()
            .map(|(at, text)| (keys[at.index(keys.len())].clone(), text.into())).collect();
        let pod = asking(Value::Object(limits), Value::Object(annotations));

        if let Ok(request) = request(&pod, vendors, &Defaults::default()) {
            for ask in request.containers.iter().flat_map(|container| &container.asks) {
                prop_assert!(ask.count > 0);
                if let Memory::Bytes(bytes) = ask.memory {
                    prop_assert!(bytes <= (1 << 31) * MIB);
                }
            }
        }
        for row in vendors.iter() {
            for container in &pod.spec.containers {
                row.admit(container, &pod).ok();
            }
        }
    }

    #[test]
    fn no_json_makes_a_pod_panic(metadata in anything(), spec in anything(), resources in anything()) {
        for body in [
            json!({"metadata": metadata, "spec": spec}),
            json!({"spec": {"containers": [{"resources": resources}]}}),
            json!({"spec": {"containers": [{"resources": {"limits": resources}}]}}),
        ] {
            if let Ok(pod) = serde_json::from_value(body) {
                request(&pod, vendors(), &Defaults::default()).ok();
            }
        }
    }
}

#[test]
fn a_pod_asks_for_devices_in_at_most_64_containers() {
    let of = |containers: usize| {
        let container = |number| {
            json!({
                "name": format!("c{number}"),
                "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}},
            })
        };
        let containers: Vec<Value> = (0..containers).map(container).collect();
        let pod = pod(json!({"spec": {"containers": containers}}));
        request(&pod, vendors(), &Defaults::default()).map(|request| request.containers.len())
    };

    assert_eq!(of(64), Ok(64));
    let refused = of(65).unwrap_err().to_string();
    assert!(
        refused.starts_with(
            "container c64: nvidia.com/gpu: the pod asks for devices more than 64 times"
        ),
        "{refused}"
    );
}
