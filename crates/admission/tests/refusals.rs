//! Refusals: anything that would switch a limit off, and fields that only the scheduler may set. Each message names the
//! container, the field and the remedy.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what is wrong in a test ends it"
)]

use crate::common;

use std::sync::Arc;

use admission::{Admission, Context, Denied, Operation, Quotas, Settings};
use common::{admission, create};
use placement::{PodTraits, Quota, Vendor};
use serde_json::{Value, json};

const OWN: &str = "system:serviceaccount:vgpu-system:vgpu-monitor";

fn pod(spec: Value) -> Value {
    json!({ "metadata": { "name": "p" }, "spec": spec })
}

fn with(rest: Value, limits: Value) -> Value {
    let mut container = json!({ "name": "main", "resources": { "limits": limits } });
    for (key, value) in rest.as_object().unwrap() {
        container[key] = value.clone();
    }
    pod(json!({ "containers": [{ "name": "first" }, container] }))
}

fn gpu(rest: Value) -> Value {
    with(
        rest,
        json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "100" }),
    )
}

/// Checks for a refusal whose message contains these texts.
fn refused<T: std::fmt::Debug>(answer: Result<T, Denied>, texts: &[&str]) {
    let denied = answer.expect_err(&format!("{texts:?}"));
    let text = denied.to_string();
    assert_eq!(denied.code, 403, "{text}");
    for part in texts {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

#[test]
fn variables_that_switch_limits_off_are_refused() {
    let admission = admission(Settings::default());
    let secret = json!({ "secretKeyRef": { "name": "s", "key": "k" } });
    let says = |name: &str, value: &str| json!({ "name": name, "value": value });
    let hides = |name: &str| json!({ "name": name, "valueFrom": secret });
    for variable in [
        says("CUDA_DISABLE_CONTROL", "true"),
        says("CUDA_DISABLE_CONTROL", ""),
        says("CUDA_DISABLE_CONTROL", "yes"),
        hides("CUDA_DISABLE_CONTROL"),
        says("LD_AUDIT", "/tmp/x.so"),
        hides("LD_AUDIT"),
        hides("LD_PRELOAD"),
        says("VGPU_LIMITS", "/tmp/mine"),
        says("VGPU_REGION", "/tmp/mine"),
        says("VGPU_DEEPBIND_KEEP", "libcuda"),
        says("CUDA_DEVICE_MEMORY_LIMIT", "99g"),
        says("CUDA_DEVICE_MEMORY_LIMIT_0", "99g"),
        says("CUDA_DEVICE_SM_LIMIT", "100"),
        says("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/x"),
        says("CUDA_OVERSUBSCRIBE", "true"),
        says("HCS_VRAM_QUOTA", "99g"),
        says("GPU_CORE_UTILIZATION_POLICY", "disable"),
        says("GPU_CORE_UTILIZATION_POLICY", "$(P)"),
        hides("GPU_CORE_UTILIZATION_POLICY"),
    ] {
        let name = variable["name"].as_str().unwrap().to_owned();
        let field = format!("env[{name}]");
        let pod = gpu(json!({ "env": [{ "name": "A" }, variable] }));
        refused(
            admission.admit(&pod, &create()),
            &["container main", &field],
        );
        refused(
            admission.validate(&pod, &create()),
            &["container main", &field],
        );
        // A pod that asks for no device has no limit to protect.
        let plain = with(json!({ "env": [variable] }), json!({}));
        assert!(admission.admit(&plain, &create()).is_ok(), "{plain}");
    }
}

/// 0 MiB means the whole device, so it asks for one.
#[test]
fn a_pod_that_only_defaults_make_ask_is_looked_at_too() {
    let admission = admission(Settings::default());
    let pod = with(
        json!({ "env": [{ "name": "LD_AUDIT", "value": "x.so" }] }),
        json!({ "nvidia.com/gpumem": "0" }),
    );

    refused(
        admission.admit(&pod, &create()),
        &["container main", "env[LD_AUDIT]"],
    );
}

#[test]
fn variables_that_leave_limits_on_are_let_in() {
    let admission = admission(Settings::default());
    for (name, value) in [
        ("CUDA_DISABLE_CONTROL", "false"),
        ("LD_AUDIT", ""),
        ("LD_PRELOAD", "x.so"),
        ("NVIDIA_VISIBLE_DEVICES", "void"),
        ("NVIDIA_VISIBLE_DEVICES", "none"),
        ("NVIDIA_VISIBLE_DEVICES", ""),
        ("NVIDIA_DRIVER_CAPABILITIES", "all"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("CUDA_TASK_PRIORITY", "0"),
        ("GPU_CORE_UTILIZATION_POLICY", "force"),
        ("CUDA_DEVICE_MEMORY_LIMITS", "mine"),
        ("VGPU_LOG_LEVEL", "debug"),
        ("LIBCUDA_LOG_LEVEL", "3"),
    ] {
        let pod = gpu(json!({ "env": [{ "name": name, "value": value }] }));
        assert!(admission.admit(&pod, &create()).is_ok(), "{name}={value}");
    }
}

#[test]
fn mounts_over_what_the_agent_mounts_are_refused() {
    let admission = admission(Settings::default());
    let mounts = |path: &str| json!({ "volumeMounts": [{ "name": "v", "mountPath": path }] });
    for path in [
        "/etc/ld.so.preload",
        "/etc/vgpu",
        "/etc/vgpu/limits",
        "//etc/./x/../vgpu/",
        "/run/vgpu/region",
        "/var/run/vgpu",
        "/usr/local/vgpu",
        "usr/local/vgpu",
    ] {
        refused(
            admission.admit(&gpu(mounts(path)), &create()),
            &["container main", "volumeMounts", path],
        );
        assert!(
            admission
                .admit(&with(mounts(path), json!({})), &create())
                .is_ok(),
            "{path}"
        );
    }
    for path in [
        "/var/run/nvidia-container-devices/all",
        "/run/../run/nvidia-container-devices",
    ] {
        refused(
            admission.admit(&gpu(mounts(path)), &create()),
            &["container main", path],
        );
        refused(
            admission.admit(&with(mounts(path), json!({})), &create()),
            &["container main", path],
        );
    }
    for path in ["/etc/app", "/usr/local/lib", "/etc/vgpu2", "/data/etc/vgpu"] {
        assert!(
            admission.admit(&gpu(mounts(path)), &create()).is_ok(),
            "{path}"
        );
    }
}

#[test]
fn rights_over_the_host_are_refused_beside_devices() {
    let admission = admission(Settings::default());
    let mut host = gpu(json!({}));
    host["spec"]["hostPID"] = json!(true);
    let mut sidecar = gpu(json!({}));
    sidecar["spec"]["initContainers"] =
        json!([{ "name": "side", "securityContext": { "privileged": true } }]);
    let mut bound = gpu(json!({}));
    bound["spec"]["nodeName"] = json!("n1");

    refused(admission.admit(&host, &create()), &["spec.hostPID"]);
    refused(
        admission.admit(&sidecar, &create()),
        &["container side", "securityContext.privileged"],
    );
    refused(
        admission.admit(&bound, &create()),
        &["spec.nodeName", "n1", "nodeSelector"],
    );

    let lax = common::admission(Settings {
        allow_host_pid: true,
        ..Settings::default()
    });
    assert!(lax.admit(&host, &create()).is_ok());
}

#[test]
fn fields_of_the_scheduler_are_refused_from_all_others() {
    let settings = Settings {
        own_accounts: vec![OWN.into()],
        ..Settings::default()
    };
    let admission = admission(settings);
    let vendors = common::vendors("default");
    let bare = gpu(json!({}));
    let with_key = |name: &str, key: &str, value: &str| {
        let mut pod = bare.clone();
        pod["metadata"][name] = json!({ "team": value, key: value });
        pod
    };
    let mut keys: Vec<(&str, String)> = vendors
        .allocation_keys()
        .map(|key| ("annotations", key.to_owned()))
        .collect();
    for key in [
        "hami.io/vgpu-devices-allocated",
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/devices-to-allocate",
        "hami.io/dcu-devices-allocated",
        "hami.io/vgpu-mig-allocations",
        "hami.io/bind-phase",
        "hami.io/vgpu-node",
    ] {
        assert!(keys.iter().any(|(_, known)| known == key), "{key}");
    }
    keys.push(("annotations", "vgpu.io/visible-devices-0123456789".into()));
    keys.push(("labels", "hami.io/vgpu-node".into()));
    for (name, key) in &keys {
        let field = format!("metadata.{name}[{key}]");
        let (one, other) = (with_key(name, key, "1"), with_key(name, key, "2"));
        let update = |subresource, old, user| Context {
            operation: Operation::Update,
            subresource,
            old: Some(old),
            user,
            ..create()
        };
        refused(admission.admit(&one, &create()), &[&field, "remove it"]);
        refused(admission.validate(&one, &create()), &[&field]);
        for subresource in ["", "status", "ephemeralcontainers", "resize"] {
            for (old, new) in [(&bare, &one), (&one, &other), (&one, &bare)] {
                refused(
                    admission.validate(new, &update(subresource, old, "alice")),
                    &[&field],
                );
                assert_eq!(
                    admission.validate(new, &update(subresource, old, OWN)),
                    Ok(()),
                    "{field}"
                );
            }
            assert_eq!(
                admission.validate(&one, &update(subresource, &one, "alice")),
                Ok(()),
                "{field}"
            );
        }
        let binding = Context {
            subresource: "binding",
            ..create()
        };
        refused(admission.validate(&one, &binding), &[&field]);
        assert_eq!(
            admission.validate(
                &one,
                &Context {
                    user: OWN,
                    ..binding
                }
            ),
            Ok(())
        );
        // Without the object's previous state, everything counts as new.
        let blind = Context {
            operation: Operation::Update,
            ..create()
        };
        refused(admission.validate(&one, &blind), &[&field]);
    }
}

/// After a restart the scheduler learns only from these annotations what is taken.
#[test]
fn annotations_of_a_bound_pod_cannot_be_lowered() {
    let admission = admission(Settings {
        own_accounts: vec![OWN.into()],
        ..Settings::default()
    });
    let bound = |allocated: Option<&str>| {
        let mut pod = gpu(json!({}));
        pod["spec"]["nodeName"] = json!("n1");
        pod["status"] = json!({ "phase": "Running" });
        pod["metadata"]["annotations"] = json!({ "hami.io/vgpu-node": "n1" });
        if let Some(allocated) = allocated {
            pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = json!(allocated);
        }
        pod
    };
    let old = bound(Some("GPU-1,NVIDIA,8000,100:;"));
    for (new, cure) in [
        (bound(Some("GPU-1,NVIDIA,1,0:;")), "leave it as it is"),
        (bound(None), "delete the pod"),
    ] {
        for subresource in ["", "status"] {
            let by = |user| Context {
                operation: Operation::Update,
                subresource,
                old: Some(&old),
                user,
                ..create()
            };
            for user in [
                "alice",
                "system:node:n1",
                "kubernetes-admin",
                "system:serviceaccount:team-a:vgpu-monitor",
            ] {
                refused(
                    admission.validate(&new, &by(user)),
                    &["metadata.annotations[hami.io/vgpu-devices-allocated]", cure],
                );
            }
            assert_eq!(admission.validate(&new, &by(OWN)), Ok(()));
        }
    }
}

#[test]
fn annotations_of_users_are_theirs_to_change() {
    let admission = admission(Settings::default());
    let mut pod = gpu(json!({}));
    pod["metadata"]["annotations"] = json!({
        "hami.io/node-scheduler-policy": "spread", "nvidia.com/use-gpuuuid": "GPU-1", "hami.io/webhook-note": "x",
    });
    let old = gpu(json!({}));

    assert!(admission.admit(&pod, &create()).is_ok());
    let update = Context {
        operation: Operation::Update,
        old: Some(&old),
        ..create()
    };
    assert_eq!(admission.validate(&pod, &update), Ok(()));
}

#[test]
fn containers_that_are_attached_later_are_looked_at() {
    let admission = admission(Settings::default());
    let old = gpu(json!({}));
    let attached = |container: Value| {
        let mut pod = gpu(json!({}));
        pod["spec"]["ephemeralContainers"] = json!([container]);
        pod
    };
    let context = Context {
        operation: Operation::Update,
        subresource: "ephemeralcontainers",
        old: Some(&old),
        ..create()
    };
    for (container, text) in [
        (
            json!({ "name": "e", "securityContext": { "privileged": true } }),
            "privileged",
        ),
        (
            json!({ "name": "e", "env": [{ "name": "CUDA_DISABLE_CONTROL", "value": "1" }] }),
            "env[CUDA",
        ),
    ] {
        let pod = attached(container);
        refused(admission.admit(&pod, &context), &["container e", text]);
        // A pod that exists is not checked again, so that ephemeral containers can be attached.
        let again = Context {
            old: Some(&pod),
            ..context.clone()
        };
        assert!(admission.admit(&pod, &again).is_ok());
    }
}

#[test]
fn containers_whose_annotations_would_be_one_are_refused() {
    let admission = admission(Settings {
        devices_by_annotation: true,
        ..Settings::default()
    });
    let container =
        |name: &str| json!({ "name": name, "resources": { "limits": { "nvidia.com/gpu": "1" } } });
    // The hashes of both names begin with e37e0f74cd.
    let pod = pod(json!({ "containers": [container("c285129"), container("c806821")] }));

    refused(
        admission.admit(&pod, &create()),
        &["container c806821", "name", "c285129"],
    );
}

struct Left(Quota);

impl Quotas for Left {
    fn left(&self, namespace: &str, _: &PodTraits, vendor: &Vendor) -> Quota {
        assert_eq!(namespace, "team-a");
        if vendor.as_str() == "NVIDIA" {
            self.0
        } else {
            Quota::default()
        }
    }
}

#[test]
fn explicit_sizes_beyond_what_a_namespace_has_left_are_refused() {
    const MIB: u64 = 1 << 20;
    let check = |quota: Quota, pod: &Value| {
        let admission = Admission::new(Arc::new(common::vendors("default")), Settings::default());
        admission
            .with_quotas(Arc::new(Left(quota)))
            .admit(pod, &create())
    };
    let memory = |mib: u64| Quota {
        memory_bytes: Some(mib * MIB),
        ..Quota::default()
    };
    let cores = |cores: u32| Quota {
        cores: Some(cores),
        ..Quota::default()
    };
    let two = with(
        json!({}),
        json!({ "nvidia.com/gpu": "2", "nvidia.com/gpumem": "100", "nvidia.com/gpucores": "30" }),
    );
    let mut init = two.clone();
    init["spec"]["initContainers"] = json!([{
        "name": "init",
        "resources": { "limits": { "nvidia.com/gpu": "1", "nvidia.com/gpumem": "300" } },
    }]);
    let share = with(
        json!({}),
        json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50" }),
    );

    refused(
        check(memory(199), &two),
        &[
            "exceeding resource quota",
            "limits[nvidia.com/gpumem]",
            "200 MiB",
            "199 MiB",
            "main",
            "team-a",
        ],
    );
    assert!(check(memory(200), &two).is_ok());
    refused(
        check(cores(59), &two),
        &["limits[nvidia.com/gpucores]", "60 cores", "59 cores"],
    );
    let devices = Quota {
        devices: Some(1),
        ..Quota::default()
    };
    refused(
        check(devices, &two),
        &["limits[nvidia.com/gpu]", "2 devices", "1 devices"],
    );
    refused(check(memory(299), &init), &["300 MiB"]);
    assert!(check(memory(300), &init).is_ok());
    // Only the node knows the size of a share.
    assert!(check(memory(0), &share).is_ok());
    assert!(check(memory(0), &with(json!({}), json!({}))).is_ok());
}

#[test]
fn a_refusal_is_short_however_long_the_names_are() {
    let admission = admission(Settings::default());
    let long = "n".repeat(1 << 20);
    let pod = pod(json!({ "containers": [{
        "name": long,
        "resources": { "limits": { "nvidia.com/gpu": "1" } },
        "env": [{ "name": format!("VGPU_{long}"), "value": long }, { "name": "LD_AUDIT", "value": long }],
    }] }));

    let denied = admission.admit(&pod, &create()).unwrap_err();

    assert!(denied.to_string().len() < 4000);
}
