//! Pods that ask for no GPU get none, by whatever way NVIDIA's runtime gives them: the variable in an image, in the pod
//! or in a ConfigMap, annotations of CDI, containers attached later. And a volume over a parent of the agent's mounts,
//! by which a second container could detach them.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what is wrong in a test ends it"
)]

use crate::common;

use admission::{Agent, Context, Operation, Settings};
use common::{admission, create, patched};
use serde_json::{Value, json};

const VARIABLE: &str = "NVIDIA_VISIBLE_DEVICES";

fn pod(spec: Value) -> Value {
    json!({ "metadata": { "name": "p" }, "spec": spec })
}

fn says(value: &str) -> Value {
    json!({ "name": VARIABLE, "value": value })
}

fn gpu(rest: Value) -> Value {
    let mut container = json!({ "name": "gpu", "resources": { "limits": { "nvidia.com/gpu": "1", "nvidia.com/gpumem": "100" } } });
    for (key, value) in rest.as_object().unwrap() {
        container[key] = value.clone();
    }
    container
}

/// The value that a container of the patched pod sees; none if the variable is missing. The last one counts.
fn shown(pod: &Value, list: &str, index: usize) -> Option<Value> {
    let env = pod["spec"][list][index]["env"].as_array()?;
    let last = env.iter().rfind(|variable| variable["name"] == VARIABLE)?;
    Some(last.get("value").unwrap_or(&last["valueFrom"]).clone())
}

#[test]
fn an_image_that_asks_for_all_gpus_gets_none_under_nvidias_runtime() {
    let admission = admission(Settings::default());
    for class in ["nvidia", "nvidia-cdi", "nvidia-legacy"] {
        let asked = pod(json!({
            "runtimeClassName": class,
            "initContainers": [{ "name": "first" }],
            "containers": [
                { "name": "bare" },
                { "name": "own", "env": [{ "name": "A", "value": "1" }] },
                { "name": "taken", "envFrom": [{ "configMapRef": { "name": "m" } }] },
            ],
        }));

        let given = patched(&admission, &asked, &create());

        for (list, index) in [
            ("initContainers", 0),
            ("containers", 0),
            ("containers", 1),
            ("containers", 2),
        ] {
            assert_eq!(
                shown(&given, list, index),
                Some(json!("void")),
                "{class} {list} {index}"
            );
        }
        assert_eq!(
            admission.mutate(&given, &create()),
            Ok(vec![]),
            "a second pass changes nothing"
        );
        assert_eq!(admission.validate(&given, &create()), Ok(()));
        // Another webhook took the variable away again, or gave the pod its runtime class after ours had looked.
        let denied = admission
            .validate(&asked, &create())
            .unwrap_err()
            .to_string();
        assert!(
            denied.contains("container first") && denied.contains(VARIABLE),
            "{denied}"
        );
        // A pod of another scheduler is started by the same runtime.
        let mut other = asked.clone();
        other["spec"]["schedulerName"] = json!("volcano");
        let given = patched(&admission, &other, &create());
        assert_eq!(shown(&given, "containers", 0), Some(json!("void")));
    }
    let plain = pod(json!({ "runtimeClassName": "gvisor", "containers": [{ "name": "bare" }] }));
    assert_eq!(admission.mutate(&plain, &create()), Ok(vec![]));
}

#[test]
fn a_variable_beside_no_request_is_rewritten_and_not_refused() {
    let admission = admission(Settings::default());
    let secret = json!({ "secretKeyRef": { "name": "s", "key": "k" } });
    for env in [
        json!([says("all")]),
        json!([says("GPU-0")]),
        json!([says("$(OTHER)")]),
        json!([{ "name": VARIABLE, "valueFrom": secret }]),
        json!([says("all"), { "name": "A" }, says("0")]),
        json!([says("void"), says("all")]),
    ] {
        let asked = pod(json!({ "containers": [{ "name": "c", "env": env }] }));

        let given = patched(&admission, &asked, &create());

        for variable in given["spec"]["containers"][0]["env"].as_array().unwrap() {
            let expected = (variable["name"] == VARIABLE).then(|| says("void"));
            assert_eq!(
                expected.unwrap_or_else(|| variable.clone()),
                *variable,
                "{env}"
            );
        }
        assert_eq!(admission.mutate(&given, &create()), Ok(vec![]));
        // A value that another webhook writes after ours can only be refused.
        let denied = admission
            .validate(&asked, &create())
            .unwrap_err()
            .to_string();
        assert!(
            denied.contains("container c") && denied.contains(VARIABLE),
            "{denied}"
        );
        assert!(admission.passed(&asked).is_err());
    }
}

#[test]
fn a_variable_beside_a_request_is_rewritten_and_not_refused() {
    let asked = pod(
        json!({ "containers": [gpu(json!({ "env": [says("all"), { "name": "A" }, says("all")] }))] }),
    );

    let ours = admission(Settings::default());
    let given = patched(&ours, &asked, &create());
    assert_eq!(
        given["spec"]["containers"][0]["env"],
        json!([says("void"), { "name": "A" }, says("void")])
    );
    assert_eq!(ours.mutate(&given, &create()), Ok(vec![]));
    assert_eq!(ours.validate(&given, &create()), Ok(()));
    assert!(ours.validate(&asked, &create()).is_err());

    let by_annotation = admission(Settings {
        devices_by_annotation: true,
        ..Settings::default()
    });
    let given = patched(&by_annotation, &asked, &create());
    let from = &shown(&given, "containers", 0).unwrap()["fieldRef"]["fieldPath"];
    assert!(
        from.as_str().unwrap().contains("vgpu.io/visible-devices-"),
        "{given}"
    );
    assert_eq!(by_annotation.mutate(&given, &create()), Ok(vec![]));

    // Another plugin gives the devices in the same variable, and one in the pod would override it.
    for agent in [Agent::Peer, Agent::None] {
        let peer = admission(Settings {
            agent,
            ..Settings::default()
        });
        let given = patched(&peer, &asked, &create());
        assert_eq!(shown(&given, "containers", 0), None, "{agent:?}");
    }
}

/// NVIDIA's own plugin gives MIG instances under names of its own, on other nodes than ours.
#[test]
fn a_device_of_another_plugin_is_left_to_it() {
    let admission = admission(Settings::default());
    let asked = |node: Option<&str>| {
        let mut asked = pod(json!({
            "runtimeClassName": "nvidia",
            "containers": [
                { "name": "mig", "env": [says("all")], "resources": { "limits": { "nvidia.com/mig-1g.5gb": "1" } } },
                { "name": "beside" },
            ],
        }));
        if let Some(node) = node {
            asked["spec"]["nodeName"] = json!(node);
        }
        asked
    };

    let given = patched(&admission, &asked(None), &create());
    assert_eq!(shown(&given, "containers", 0), None);
    assert_eq!(shown(&given, "containers", 1), Some(json!("void")));
    assert_eq!(admission.validate(&given, &create()), Ok(()));
    // No scheduler has looked for the resource, and a kubelet drops one that its node does not have.
    let given = patched(&admission, &asked(Some("n1")), &create());
    assert_eq!(shown(&given, "containers", 0), Some(json!("void")));
}

#[test]
fn annotations_that_name_cdi_devices_are_refused_at_creation_and_later() {
    let admission = admission(Settings::default());
    let plain = pod(json!({ "containers": [{ "name": "c" }] }));
    for (key, value) in [
        (
            "nvidia.cdi.k8s.io/container.c",
            "management.nvidia.com/gpu=all",
        ),
        ("nvidia.cdi.k8s.io/pod", "runtime.nvidia.com/gpu=all"),
        ("cdi.k8s.io/mine", "nvidia.com/gpu=0"),
        ("cdi.k8s.io/vgpu", "vgpu.io/container=x"),
        ("cdi.k8s.io/gpu-assignment", "nvidia.com/gpu=all"),
        (
            "cdi.k8s.io/gpu-assignment",
            "nvidia.com/gpu=UUID=GPU-1,nvidia.com/gpu=0",
        ),
    ] {
        let mut asked = plain.clone();
        asked["metadata"]["annotations"] = json!({ key: value });
        let field = format!("metadata.annotations[{key}]");

        for answer in [
            admission.mutate(&asked, &create()).map(drop),
            admission.validate(&asked, &create()),
        ] {
            let denied = answer.unwrap_err().to_string();
            assert!(
                denied.contains(&field) && denied.contains("resources.limits"),
                "{denied}"
            );
        }
        // The runtime reads it when a container is made, which a pod with a scheduling gate can put off.
        let later = |old| Context {
            operation: Operation::Update,
            old: Some(old),
            ..create()
        };
        assert!(admission.validate(&asked, &later(&plain)).is_err(), "{key}");
        assert_eq!(admission.validate(&asked, &later(&asked)), Ok(()), "{key}");
        // A pod that has one from before may lose it.
        assert_eq!(admission.validate(&plain, &later(&asked)), Ok(()), "{key}");
        let binding = Context {
            subresource: "binding",
            ..create()
        };
        assert!(admission.validate(&asked, &binding).is_err(), "{key}");
    }
}

#[test]
fn the_assigners_annotation_may_be_written_in_its_form() {
    let admission = admission(Settings::default());
    let mut assigned = pod(json!({ "containers": [{ "name": "c" }] }));
    assigned["metadata"]["annotations"] = json!({
        "cdi.k8s.io/gpu-assignment": "nvidia.com/gpu=UUID=GPU-1,nvidia.com/gpu=UUID=GPU-2"
    });

    assert_eq!(admission.mutate(&assigned, &create()).map(drop), Ok(()));
    assert_eq!(admission.validate(&assigned, &create()), Ok(()));
}

#[test]
fn a_container_attached_later_gets_none_either() {
    let admission = admission(Settings::default());
    for class in [None, Some("nvidia")] {
        for env in [Value::Null, json!([says("all")])] {
            let mut old = pod(json!({ "containers": [{ "name": "c", "env": [says("void")] }] }));
            if let Some(class) = class {
                old["spec"]["runtimeClassName"] = json!(class);
            }
            let mut asked = old.clone();
            asked["spec"]["ephemeralContainers"] = json!([{ "name": "debug", "env": env }]);
            let context = Context {
                operation: Operation::Update,
                subresource: "ephemeralcontainers",
                old: Some(&old),
                ..create()
            };

            let given = patched(&admission, &asked, &context);

            let expected = (class.is_some() || !env.is_null()).then(|| json!("void"));
            assert_eq!(
                shown(&given, "ephemeralContainers", 0),
                expected,
                "{class:?} {env}"
            );
            assert_eq!(admission.validate(&given, &context), Ok(()));
            assert_eq!(
                admission.validate(&asked, &context).is_err(),
                expected.is_some(),
                "{class:?} {env}"
            );
        }
    }
}

#[test]
fn a_volume_over_a_parent_of_what_the_agent_mounts_is_refused() {
    let admission = admission(Settings::default());
    let mounts = |path: &str| json!({ "volumeMounts": [{ "name": "v", "mountPath": path }] });
    for path in [
        "/",
        "/etc",
        "/etc/",
        "//etc/.",
        "/usr",
        "/usr/local",
        "/run",
        "/var/run",
        "etc",
        "/x/../etc",
    ] {
        let asked = pod(json!({ "containers": [gpu(mounts(path)), { "name": "beside" }] }));
        for answer in [
            admission.mutate(&asked, &create()).map(drop),
            admission.validate(&asked, &create()),
        ] {
            let denied = answer.expect_err(path).to_string();
            assert!(
                denied.contains("container gpu")
                    && denied.contains(&format!("volumeMounts[{path}]")),
                "{denied}"
            );
        }
        // The agent mounts nothing into a container without a GPU.
        let mut beside = json!({ "name": "beside" });
        beside["volumeMounts"] = mounts(path)["volumeMounts"].clone();
        let asked = pod(json!({ "containers": [gpu(json!({})), beside] }));
        assert!(admission.mutate(&asked, &create()).is_ok(), "{path}");
    }
    for path in [
        "/etc/app",
        "/usr/local/lib",
        "/run/app",
        "/var",
        "/data/etc",
        "/etcetera",
    ] {
        let asked = pod(json!({ "containers": [gpu(mounts(path))] }));
        assert!(admission.mutate(&asked, &create()).is_ok(), "{path}");
    }
}

/// GPU Operator's validator names NVIDIA's runtime and all GPUs, in the operator's own namespace.
#[test]
fn the_gpu_operators_namespace_works_as_delivered() {
    let validator = pod(json!({
        "runtimeClassName": "nvidia",
        "initContainers": [{ "name": "cuda-validation", "env": [says("all")], "securityContext": { "privileged": true } }],
        "containers": [{ "name": "nvidia-cuda-validator", "env": [says("all")] }],
    }));
    let context = Context {
        namespace: "gpu-operator",
        user: "system:serviceaccount:gpu-operator:nvidia-operator-validator",
        ..Context::default()
    };

    let admission = admission(Settings::default());

    assert_eq!(admission.mutate(&validator, &context), Ok(vec![]));
    assert_eq!(admission.validate(&validator, &context), Ok(()));
}
