//! Arbitrary bodies and pods: never a panic, and an admitted pod is admitted unchanged a second time.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what is wrong in a test ends it"
)]

use crate::common;

use std::sync::LazyLock;

use admission::{Admission, Agent, Answer, Context, Operation, Settings, WebhookKind};
use kube_api::object::{EnvVar, Pod};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

/// With everything switched on that can be.
static BUSY: LazyLock<Admission> = LazyLock::new(|| {
    common::admission(Settings {
        devices_by_annotation: true,
        always_preload: true,
        agent: Agent::None,
        ..Settings::default()
    })
});
static PLAIN: LazyLock<Admission> = LazyLock::new(|| common::admission(Settings::default()));

/// Words that have a meaning for us, and some that have none.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => select(vec![
            "name", "containers", "initContainers", "ephemeralContainers", "resources", "limits", "requests", "env",
            "envFrom", "value", "valueFrom", "fieldRef", "fieldPath", "volumeMounts", "mountPath", "securityContext",
            "privileged", "capabilities", "add", "spec", "metadata", "annotations", "labels", "nodeName",
            "schedulerName", "hostPID", "object", "oldObject", "request", "uid", "operation", "subResource", "userInfo",
            "nvidia.com/gpu", "nvidia.com/gpumem", "hygon.com/dcunum", "hami.io/vgpu-node", "hami.io/webhook",
            "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "all", "1", "16Gi", "-1", "1e99", "CREATE", "UPDATE", "status",
            "ephemeralcontainers", "restartPolicy", "Always", "/etc/vgpu",
        ])
        .prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        word().prop_map(Value::String),
    ];
    leaf.prop_recursive(6, 60, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::Array),
            btree_map(word(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn amount() -> impl Strategy<Value = Value> {
    prop_oneof![
        8 => select(vec!["0", "1", "2", "30", "100", "3000", "3k", "1Gi", "16Gi", "512Mi"]).prop_map(|text| json!(text)),
        1 => (0..5000_i64).prop_map(|number| json!(number)),
        1 => select(vec!["500m", "-1", "1.5Gi", "x", "9999999999999", "1e3"]).prop_map(|text| json!(text)),
    ]
}

fn amounts() -> impl Strategy<Value = Value> {
    let names: Vec<String> = common::vendors("default")
        .resources()
        .map(|(name, _, _)| name.to_owned())
        .collect();
    let name = prop_oneof![
        4 => select(vec!["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/priority"])
            .prop_map(str::to_owned),
        1 => select(names),
        1 => Just("cpu".to_owned()),
    ];
    btree_map(name, amount(), 0..4).prop_map(|amounts| json!(amounts))
}

fn variable() -> impl Strategy<Value = Value> {
    let name = select(vec![
        "A",
        "LD_PRELOAD",
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_TASK_PRIORITY",
        "LD_AUDIT",
    ]);
    let value = select(vec![
        "",
        "void",
        "none",
        "a.so:b.so",
        "a.so /usr/local/vgpu/libvgpu.so",
        "0",
    ]);
    (name, option::of(value)).prop_map(|(name, value)| match value {
        Some(value) => json!({ "name": name, "value": value }),
        None => json!({ "name": name }),
    })
}

prop_compose! {
    fn container()(
        name in select(vec!["a", "b", "c"]),
        limits in option::of(amounts()),
        requests in option::weighted(0.2, amounts()),
        env in option::of(vec(variable(), 0..4)),
        unseen in any::<bool>(),
        future in option::weighted(0.1, anything()),
    ) -> Value {
        let mut container = json!({ "name": name, "resources": { "limits": limits, "requests": requests }, "env": env });
        if unseen {
            container["envFrom"] = json!([{ "secretRef": { "name": "s" } }]);
        }
        if let Some(future) = future {
            container["futureField"] = future;
        }
        container
    }
}

prop_compose! {
    fn pod()(
        init in option::of(vec(container(), 0..3)),
        app in vec(container(), 1..4),
        scheduler in option::of(select(vec!["", "default-scheduler", "hami-scheduler", "other"])),
        annotations in option::of(btree_map(select(vec!["team", "hami.io/gpu-scheduler-policy"]), "[a-z]{0,4}", 0..2)),
        class in option::of(Just("nvidia")),
    ) -> Value {
        json!({
            "metadata": { "name": "p", "annotations": annotations },
            "spec": {
                "initContainers": init, "containers": app, "schedulerName": scheduler, "runtimeClassName": class,
            },
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_body_makes_it_panic(bytes in vec(any::<u8>(), 0..300), value in anything(), object in anything()) {
        let review = json!({ "request": { "object": object, "oldObject": value, "operation": "UPDATE" } });
        let ephemeral = json!({ "request": {
            "object": { "metadata": value, "spec": object }, "operation": "UPDATE", "subResource": "ephemeralcontainers",
        } });
        let create = json!({ "request": { "object": { "metadata": value, "spec": { "containers": [object] } } } });
        for body in [&value, &review, &ephemeral, &create].map(|body| serde_json::to_vec(body).unwrap()) {
            for kind in [WebhookKind::Mutate, WebhookKind::Validate] {
                let answer = BUSY.review_at(kind, &body);
                prop_assert!(!matches!(answer, Answer::Failed(_)), "{answer:?}");
            }
        }
        let _ = BUSY.review(&bytes);
    }

    #[test]
    fn what_is_admitted_is_a_pod_and_is_not_changed_again(pod in pod()) {
        for admission in [&*PLAIN, &*BUSY] {
            let context = Context { operation: Operation::Create, namespace: "team-a", ..Context::default() };
            let Ok(admitted) = admission.admit(&pod, &context) else {
                continue;
            };
            let mut after = pod.clone();
            json_patch::patch(&mut after, &admitted.patch).unwrap();

            let before = Pod::deserialize(&pod).unwrap();
            let typed = Pod::deserialize(&after).unwrap();
            prop_assert_eq!(typed.spec.containers.len(), before.spec.containers.len());
            for (after, before) in typed.spec.containers.iter().zip(&before.spec.containers) {
                // No variable is removed but one by which another plugin names devices, and existing variables keep
                // their order.
                let names = |env: &[EnvVar]| -> Vec<String> {
                    let names = env.iter().map(|variable| variable.name.clone());
                    names.filter(|name| name != "NVIDIA_VISIBLE_DEVICES").collect()
                };
                let (after, before) = (names(&after.env), names(&before.env));
                prop_assert!(after.starts_with(&before), "{after:?} {before:?}");
            }
            let again = admission.admit(&after, &context).unwrap();
            prop_assert!(again.patch.is_empty(), "{:?}", again.patch);
            prop_assert_eq!(admission.validate(&after, &context), Ok(()));
            prop_assert_eq!(admission.passed(&after), Ok(()));
        }
    }
}
