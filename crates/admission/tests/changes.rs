//! The changes of a pod: as few operations as possible, none the second time, and independent of what the API server
//! itself then adds.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what is wrong in a test ends it"
)]

use crate::common;

use admission::{Admission, Agent, Context, Operation, Settings};
use common::{admission, create, patched};
use serde_json::{Value, json};

fn pod(spec: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" }, "spec": spec })
}

fn gpu(rest: Value) -> Value {
    let mut container = json!({
        "name": "c",
        "resources": { "limits": { "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000" } },
    });
    for (key, value) in rest.as_object().unwrap() {
        container[key] = value.clone();
    }
    container
}

fn one(container: Value) -> Value {
    pod(json!({ "schedulerName": "hami-scheduler", "containers": [container] }))
}

/// The pod as an API server stores it: with normalised amounts, and a request for each limit.
fn kept(mut pod: Value) -> Value {
    for list in ["containers", "initContainers"] {
        for container in pod["spec"]
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let Some(limits) = container
                .pointer_mut("/resources/limits")
                .and_then(Value::as_object_mut)
            else {
                continue;
            };
            for amount in limits.values_mut() {
                if let Some(thousands) = amount
                    .as_str()
                    .and_then(|amount| amount.strip_suffix("000"))
                {
                    *amount = json!(format!("{thousands}k"));
                }
            }
            let limits = limits.clone();
            let requests = &mut container["resources"]["requests"];
            if requests.is_null() {
                *requests = json!({});
            }
            for (name, amount) in limits {
                requests[name] = amount;
            }
        }
    }
    pod
}

/// The operations of admission on the pod, after checking that a second admission does nothing.
fn operations(admission: &Admission, pod: &Value) -> Value {
    let admitted = admission
        .admit(pod, &create())
        .unwrap_or_else(|denied| panic!("{denied}"));
    let after = patched(admission, pod, &create());
    for (name, again) in [("as patched", after.clone()), ("as kept", kept(after))] {
        assert_eq!(
            admission.admit(&again, &create()).unwrap().patch,
            [],
            "{name}: {again}"
        );
        assert_eq!(admission.validate(&again, &create()), Ok(()), "{name}");
        assert_eq!(admission.passed(&again), Ok(()), "{name}");
    }
    if !admitted.patch.is_empty() {
        assert!(admission.passed(&kept(pod.clone())).is_err(), "{pod}");
    }
    serde_json::to_value(admitted.patch).unwrap()
}

#[test]
fn amounts_become_what_the_api_server_and_the_scheduler_take() {
    let admission = admission(Settings::default());
    let limits = |limits: Value, requests: Value| {
        one(json!({ "name": "c", "resources": { "limits": limits, "requests": requests } }))
    };
    let at =
        |kind: &str, name: &str| format!("/spec/containers/0/resources/{kind}/nvidia.com~1{name}");
    for (name, pod, right) in [
        (
            "a binary suffix becomes MiB",
            limits(
                json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi" }),
                json!({}),
            ),
            json!([{ "op": "replace", "path": at("limits", "gpumem"), "value": "16384" }]),
        ),
        (
            "under requests too, which the API server filled in",
            limits(
                json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi" }),
                json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi", "cpu": "1" }),
            ),
            json!([
                { "op": "replace", "path": at("limits", "gpumem"), "value": "16384" },
                { "op": "replace", "path": at("requests", "gpumem"), "value": "16384" },
            ]),
        ),
        (
            "what is written otherwise is one amount",
            limits(
                json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": "3000" }),
                json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k" }),
            ),
            json!([]),
        ),
        (
            "what is only requested is limited",
            limits(
                json!({}),
                json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000", "cpu": "1" }),
            ),
            json!([
                { "op": "add", "path": at("limits", "gpu"), "value": "1" },
                { "op": "add", "path": at("limits", "gpumem"), "value": "1000" },
            ]),
        ),
        (
            "what has no effect counts for nothing",
            limits(
                json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000", "nvidia.com/gpumem-percentage": "90",
                    "nvidia.com/gpucores": "400" }),
                json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000", "nvidia.com/gpumem-percentage": "90",
                    "nvidia.com/gpucores": "400" }),
            ),
            json!([
                { "op": "replace", "path": at("limits", "gpucores"), "value": "100" },
                { "op": "replace", "path": at("limits", "gpumem-percentage"), "value": "0" },
                { "op": "replace", "path": at("requests", "gpucores"), "value": "100" },
                { "op": "replace", "path": at("requests", "gpumem-percentage"), "value": "0" },
            ]),
        ),
        (
            "memory alone is memory on one device",
            limits(json!({ "nvidia.com/gpumem": "1Gi" }), json!(null)),
            json!([
                { "op": "add", "path": at("limits", "gpu"), "value": "1" },
                { "op": "replace", "path": at("limits", "gpumem"), "value": "1024" },
            ]),
        ),
    ] {
        assert_eq!(operations(&admission, &pod), right, "{name}");
    }
}

/// The pods with which `scripts/test autoscaler` asks the autoscalers' simulations.
#[test]
fn recorded_pods_of_the_autoscaler_tests_are_what_admission_makes() {
    let vectors = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/vectors/autoscaler.json"
    );
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(vectors).unwrap()).unwrap();
    let admission = admission(Settings::default());
    let pods = vectors["pods"].as_object().unwrap();
    assert!(pods.len() > 2, "the recording has {} pods", pods.len());
    for (name, recorded) in pods {
        let asked = one(json!({ "name": "c", "resources": { "limits": recorded["asked"] } }));
        operations(&admission, &asked);
        let after = patched(&admission, &asked, &create());
        let limits = &after["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(limits, &recorded["admitted"], "{name}");
    }
}

#[test]
fn pods_with_a_gpu_state_whether_autoscalers_may_evict() {
    let at = "/metadata/annotations/cluster-autoscaler.kubernetes.io~1safe-to-evict";
    let stays = "/metadata/annotations/karpenter.sh~1do-not-disrupt";
    let said = |said: Value| {
        let mut pod = one(gpu(json!({})));
        pod["metadata"]["annotations"] = said;
        pod
    };
    let own = json!({ "karpenter.sh/do-not-disrupt": "false" });
    for (setting, pod, right) in [
        (None, said(json!({ "a": "b" })), json!([])),
        (
            Some(true),
            said(json!({ "a": "b" })),
            json!([{ "op": "add", "path": at, "value": "true" }]),
        ),
        (
            Some(false),
            said(json!({ "a": "b" })),
            json!([{ "op": "add", "path": at, "value": "false" }, { "op": "add", "path": stays, "value": "true" }]),
        ),
        (Some(false), said(own), json!([])),
        (
            Some(false),
            one(json!({ "name": "c", "resources": { "limits": { "cpu": "1" } } })),
            json!([]),
        ),
    ] {
        let admission = admission(Settings {
            safe_to_evict: setting,
            ..Settings::default()
        });
        assert_eq!(operations(&admission, &pod), right, "{setting:?}");
    }
}

#[test]
fn the_scheduler_of_a_pod_with_devices_is_ours() {
    let spec = |scheduler: Option<&str>| {
        let mut spec = json!({ "containers": [gpu(json!({}))] });
        if let Some(scheduler) = scheduler {
            spec["schedulerName"] = json!(scheduler);
        }
        pod(spec)
    };
    let forced = admission(Settings::default());
    let path = "/spec/schedulerName";

    assert_eq!(
        operations(&forced, &spec(None)),
        json!([{ "op": "add", "path": path, "value": "hami-scheduler" }])
    );
    assert_eq!(
        operations(&forced, &spec(Some("default-scheduler"))),
        json!([{ "op": "replace", "path": path, "value": "hami-scheduler" }])
    );
    let other = forced.admit(&spec(Some("volcano")), &create()).unwrap();
    assert_eq!(other.patch, []);
    assert_eq!(
        other.message.as_deref(),
        Some("pod already has different scheduler assigned")
    );
    let mut strange = spec(Some("volcano"));
    strange["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = json!("0.5");
    assert!(forced.admit(&strange, &create()).is_ok());
    assert!(
        other.warnings[0].contains("volcano"),
        "{:?}",
        other.warnings
    );
}

#[test]
fn a_container_without_a_gpu_beside_one_with_a_gpu_sees_none() {
    let admission = admission(Settings::default());
    let bare = |name: &str| json!({ "name": name });
    let says = |value: Value| json!({ "name": "says", "env": [value] });
    let pod = pod(json!({
        "schedulerName": "hami-scheduler",
        "initContainers": [bare("init"), says(json!({ "name": "NVIDIA_VISIBLE_DEVICES", "value": "none" }))],
        "containers": [gpu(json!({})), says(json!({ "name": "A", "value": "1" })), bare("last")],
    }));

    let void = json!({ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" });
    assert_eq!(
        operations(&admission, &pod),
        json!([
            { "op": "add", "path": "/spec/initContainers/0/env", "value": [void] },
            { "op": "add", "path": "/spec/containers/1/env/-", "value": void },
            { "op": "add", "path": "/spec/containers/2/env", "value": [void] },
        ])
    );
}

#[test]
fn pod_with_another_vendors_devices_sees_no_nvidia_variable() {
    let admission = admission(Settings::default());
    let pod = pod(json!({
        "schedulerName": "hami-scheduler",
        "containers": [
            { "name": "a" },
            { "name": "b", "resources": { "limits": { "hygon.com/dcunum": "1", "hygon.com/dcumem": "100" } } },
        ],
    }));

    let operations = operations(&admission, &pod);

    assert!(
        !operations.to_string().contains("NVIDIA_VISIBLE_DEVICES"),
        "{operations}"
    );
}

#[test]
fn the_library_comes_first_where_the_pod_preloads_another() {
    let admission = admission(Settings::default());
    let preloads = |value: &str| {
        one(gpu(
            json!({ "env": [{ "name": "A" }, { "name": "LD_PRELOAD", "value": value }] }),
        ))
    };
    let library = "/usr/local/vgpu/libvgpu.so";
    for (before, after) in [
        ("a.so", format!("{library}:a.so")),
        ("a.so b.so", format!("{library}:a.so:b.so")),
        ("$(A):b.so", format!("{library}:$(A):b.so")),
        ("", library.to_owned()),
        ("a.so:/usr/local/vgpu/libvgpu.so", format!("{library}:a.so")),
    ] {
        assert_eq!(
            operations(&admission, &preloads(before)),
            json!([{ "op": "replace", "path": "/spec/containers/0/env/1/value", "value": after }]),
            "{before}"
        );
    }
    assert_eq!(
        operations(&admission, &preloads("/usr/local/vgpu/libvgpu.so a.so")),
        json!([])
    );
    assert_eq!(operations(&admission, &one(gpu(json!({})))), json!([]));
}

#[test]
fn the_library_is_preloaded_by_switch_and_without_an_agent() {
    let preload = json!([{
        "op": "add",
        "path": "/spec/containers/0/env",
        "value": [{ "name": "LD_PRELOAD", "value": "/usr/local/vgpu/libvgpu.so" }],
    }]);
    for settings in [
        Settings {
            always_preload: true,
            ..Settings::default()
        },
        Settings {
            agent: Agent::None,
            ..Settings::default()
        },
    ] {
        assert_eq!(
            operations(&admission(settings), &one(gpu(json!({})))),
            preload
        );
    }
}

#[test]
fn nodes_without_cdi_get_devices_from_the_pods_annotation() {
    let by_annotation = admission(Settings {
        devices_by_annotation: true,
        ..Settings::default()
    });
    let right = json!({
        "name": "NVIDIA_VISIBLE_DEVICES",
        "valueFrom": { "fieldRef": {
            "apiVersion": "v1",
            // printf c | sha256sum
            "fieldPath": "metadata.annotations['vgpu.io/visible-devices-2e7d2c03a9']",
        } },
    });

    assert_eq!(
        operations(&by_annotation, &one(gpu(json!({})))),
        json!([{ "op": "add", "path": "/spec/containers/0/env", "value": [right] }])
    );
    let void = json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" }]);
    assert_eq!(
        operations(&by_annotation, &one(gpu(json!({ "env": void })))),
        json!([{ "op": "replace", "path": "/spec/containers/0/env/0", "value": right }])
    );
}

#[test]
fn the_pods_own_variable_overrides_one_from_a_config_map() {
    let unseen = one(gpu(
        json!({ "envFrom": [{ "configMapRef": { "name": "m" } }] }),
    ));
    let void = json!({ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" });

    assert_eq!(
        operations(&admission(Settings::default()), &unseen),
        json!([{ "op": "add", "path": "/spec/containers/0/env", "value": [void] }])
    );
    // The reference's plugin sets the devices in that variable, and a value in the pod would override it.
    let peer = Settings {
        agent: Agent::Peer,
        ..Settings::default()
    };
    assert_eq!(operations(&admission(peer), &unseen), json!([]));
}

#[test]
fn ephemeral_container_gets_no_device_and_changes_no_other() {
    let admission = admission(Settings::default());
    let attached = |names: &[&str]| {
        let containers: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        pod(json!({ "containers": [gpu(json!({}))], "ephemeralContainers": containers }))
    };
    let old = attached(&["first"]);
    let context = Context {
        operation: Operation::Update,
        subresource: "ephemeralcontainers",
        old: Some(&old),
        ..create()
    };

    let patch = admission
        .mutate(&attached(&["first", "second"]), &context)
        .unwrap();

    assert_eq!(
        serde_json::to_value(patch).unwrap(),
        json!([{
            "op": "add",
            "path": "/spec/ephemeralContainers/1/env",
            "value": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" }],
        }])
    );
}

#[test]
fn a_vendors_start_hook_is_added_unless_the_pod_has_its_own() {
    let admission = admission(Settings::default());
    let share = |lifecycle: Value| {
        let mut pod = one(json!({
            "name": "c",
            "lifecycle": lifecycle,
            "resources": { "limits": { "huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "4096" } },
        }));
        pod["metadata"]["annotations"] = json!({ "huawei.com/vnpu-mode": "hami-core" });
        pod
    };
    let own = json!({ "postStart": { "exec": { "command": ["true"] } } });

    let put_in = patched(&admission, &share(json!({ "preStop": null })), &create());
    let kept = patched(&admission, &share(own.clone()), &create());

    let command = &put_in["spec"]["containers"][0]["lifecycle"]["postStart"]["exec"]["command"];
    assert!(
        command
            .as_array()
            .is_some_and(|command| !command.is_empty()),
        "{put_in}"
    );
    assert_eq!(kept["spec"]["containers"][0]["lifecycle"], own);
    operations(&admission, &share(Value::Null));
}

#[test]
fn fields_of_newer_api_servers_stay() {
    let admission = admission(Settings::default());
    let mut pod = one(gpu(json!({ "newField": [1, { "x": null }], "resources": {
        "limits": { "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1Gi" }, "claims": [{ "name": "c" }],
    } })));
    pod["spec"]["newField"] = json!({ "deep": { "er": 1.5 } });
    pod["newField"] = json!("x");

    let mut right = pod.clone();
    right["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = json!("1024");
    assert_eq!(patched(&admission, &pod, &create()), right);
}

#[test]
fn exempt_namespaces_and_accounts_bypass_admission() {
    let settings = Settings {
        exempt_namespaces: vec!["vgpu-system".into()],
        ignore_label_accounts: vec!["carol".into()],
        ..Settings::default()
    };
    let strict = admission(settings.clone());
    let lax = admission(Settings {
        ignore_label_for_all: true,
        ..settings
    });
    let mut pod = one(gpu(
        json!({ "env": [{ "name": "CUDA_DISABLE_CONTROL", "value": "true" }] }),
    ));
    let by = |namespace, user| Context {
        namespace,
        user,
        ..Context::default()
    };

    assert!(strict.admit(&pod, &by("team-a", "carol")).is_err());
    assert_eq!(strict.mutate(&pod, &by("vgpu-system", "alice")), Ok(vec![]));
    pod["metadata"]["labels"] = json!({ "hami.io/webhook": "ignore" });
    assert_eq!(strict.mutate(&pod, &by("team-a", "carol")), Ok(vec![]));
    assert!(strict.admit(&pod, &by("team-a", "alice")).is_err());
    assert_eq!(lax.mutate(&pod, &by("team-a", "alice")), Ok(vec![]));
    pod["spec"]["containers"][0]["env"] = json!([]);
    let admitted = strict.admit(&pod, &by("team-a", "alice")).unwrap();
    assert!(
        admitted.warnings[0].contains("hami.io/webhook"),
        "{:?}",
        admitted.warnings
    );
}

#[test]
fn capabilities_that_undo_mounts_are_named_and_let_in() {
    let admission = admission(Settings::default());
    let pod = one(gpu(
        json!({ "securityContext": { "capabilities": { "add": ["NET_RAW", "SYS_ADMIN"] } } }),
    ));

    let admitted = admission.admit(&pod, &create()).unwrap();

    assert!(
        admitted.warnings[0].contains("container c: securityContext.capabilities.add[SYS_ADMIN]")
    );
}
