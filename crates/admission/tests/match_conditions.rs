//! Which objects the webhook's own configuration makes an API server send, evaluated on objects of all shapes. An
//! error in a condition would refuse the object, so there must be none.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what is wrong in a test ends it"
)]

use crate::common;

use std::sync::Arc;

use admission::{ClientConfig, Settings, webhook_configurations};
use cel::{Context, Env, Program, Value as Cel};
use common::vendors;
use serde_json::{Value, json};

const OWN: &str = "system:serviceaccount:vgpu-system:vgpu-scheduler";

fn client() -> ClientConfig {
    ClientConfig::Service {
        namespace: "vgpu-system".into(),
        name: "vgpu-webhook".into(),
        port: 443,
        ca_bundle: None,
    }
}

fn settings() -> Settings {
    Settings {
        own_accounts: vec![OWN.into()],
        ..Settings::default()
    }
}

/// The conditions of an entry, by the entry's name.
struct Conditions {
    env: Arc<Env>,
    programs: Vec<Program>,
}

impl Conditions {
    fn of(configuration: &Value, entry: &str) -> Self {
        let env = Arc::new(Env::stdlib());
        let entries = configuration["webhooks"].as_array().unwrap();
        let entry = entries.iter().find(|one| one["name"] == entry).unwrap();
        let programs = entry["matchConditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|condition| {
                env.compile(condition["expression"].as_str().unwrap())
                    .unwrap_or_else(|error| panic!("{condition}: {error:?}"))
            })
            .collect();
        Self { env, programs }
    }

    /// Whether the object is sent: all conditions hold.
    fn send(&self, object: &Value, old: &Value, user: &str) -> bool {
        let mut context = Context::with_env(self.env.clone());
        let request = json!({ "userInfo": { "username": user } });
        for (name, value) in [
            ("object", object),
            ("oldObject", old),
            ("request", &request),
        ] {
            context
                .add_variable(name, cel::to_value(value).unwrap())
                .unwrap();
        }
        self.programs
            .iter()
            .all(|program| match program.execute(&context) {
                Ok(Cel::Bool(holds)) => holds,
                other => panic!("{object}: {other:?}"),
            })
    }
}

fn pod(spec: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "p", "namespace": "team-a", "creationTimestamp": null },
        "spec": spec,
        "status": {},
    })
}

fn with_metadata(mut pod: Value, name: &str, entries: Value) -> Value {
    pod["metadata"][name] = entries;
    pod
}

fn container(rest: Value) -> Value {
    let mut container = json!({ "name": "c", "image": "x", "resources": {} });
    for (key, value) in rest.as_object().unwrap() {
        container[key] = value.clone();
    }
    container
}

/// Pods that do not concern us and pods that do; the name says why.
fn corpus() -> Vec<(&'static str, bool, Value)> {
    let one = |rest: Value| pod(json!({ "containers": [container(rest)] }));
    let variable = |variable: Value| one(json!({ "env": [variable] }));
    vec![
        ("plain", false, one(json!({}))),
        (
            "without resources",
            false,
            pod(json!({ "containers": [{ "name": "c" }] })),
        ),
        (
            "without a spec",
            false,
            json!({ "metadata": { "name": "p" } }),
        ),
        ("no containers", false, pod(json!({ "containers": null }))),
        (
            "empty lists",
            false,
            pod(json!({ "containers": [], "initContainers": [] })),
        ),
        (
            "CPU and memory only",
            false,
            one(
                json!({ "resources": { "limits": { "cpu": "1" }, "requests": { "cpu": "1", "memory": "1Gi" } } }),
            ),
        ),
        (
            "annotations and labels of its own",
            false,
            with_metadata(
                with_metadata(
                    one(json!({})),
                    "annotations",
                    json!({ "hami.io/gpu-scheduler-policy": "binpack" }),
                ),
                "labels",
                json!({ "app": "x" }),
            ),
        ),
        (
            "another's devices",
            false,
            one(json!({ "resources": { "limits": { "example.com/fpga": "1" } } })),
        ),
        (
            "variables of its own",
            false,
            variable(json!({ "name": "LD_PRELOAD", "value": "x.so" })),
        ),
        (
            "hides devices",
            false,
            variable(json!({ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" })),
        ),
        (
            "empty variable",
            false,
            variable(json!({ "name": "NVIDIA_VISIBLE_DEVICES" })),
        ),
        (
            "mounts of its own",
            false,
            one(json!({ "volumeMounts": [{ "name": "v", "mountPath": "/data" }] })),
        ),
        (
            "asks under limits",
            true,
            one(json!({ "resources": { "limits": { "nvidia.com/gpu": "1" } } })),
        ),
        (
            "asks under requests",
            true,
            one(json!({ "resources": { "requests": { "nvidia.com/gpumem": "1" } } })),
        ),
        (
            "asks another vendor",
            true,
            one(json!({ "resources": { "limits": { "huawei.com/Ascend910B3": "1" } } })),
        ),
        (
            "asks in an init container",
            true,
            pod(json!({
                "containers": [container(json!({}))],
                "initContainers": [container(json!({ "resources": { "limits": { "nvidia.com/gpu": 1 } } }))],
            })),
        ),
        (
            "asks in the second container",
            true,
            pod(json!({
                "containers": [
                    container(json!({})),
                    container(json!({ "resources": { "limits": { "nvidia.com/gpucores": "10" } } })),
                ],
            })),
        ),
        (
            "shows all devices",
            true,
            variable(json!({ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" })),
        ),
        (
            "shows what it does not say",
            true,
            variable(
                json!({ "name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": { "fieldRef": { "fieldPath": "x" } } }),
            ),
        ),
        (
            "shows devices to a container that was attached",
            true,
            pod(json!({
                "containers": [container(json!({}))],
                "ephemeralContainers": [{ "name": "e", "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "0" }] }],
            })),
        ),
        (
            "names devices by mounts",
            true,
            one(json!({
                "volumeMounts": [{ "name": "v", "mountPath": "/var/run//nvidia-container-devices/all" }],
            })),
        ),
        (
            "says where it runs",
            true,
            with_metadata(
                one(json!({})),
                "annotations",
                json!({ "hami.io/vgpu-node": "n1" }),
            ),
        ),
        (
            "says what it holds",
            true,
            with_metadata(
                one(json!({})),
                "annotations",
                json!({ "hami.io/vgpu-devices-allocated": ";" }),
            ),
        ),
        (
            "says what a container sees",
            true,
            with_metadata(
                one(json!({})),
                "annotations",
                json!({ "vgpu.io/visible-devices-0123456789": "all" }),
            ),
        ),
        (
            "names a runtime class of its own",
            false,
            pod(json!({ "containers": [container(json!({}))], "runtimeClassName": "gvisor" })),
        ),
        (
            "names no runtime class",
            false,
            pod(json!({ "containers": [container(json!({}))], "runtimeClassName": null })),
        ),
        (
            "names NVIDIA's runtime class",
            true,
            pod(json!({ "containers": [container(json!({}))], "runtimeClassName": "nvidia" })),
        ),
        (
            "names devices by CDI",
            true,
            with_metadata(
                one(json!({})),
                "annotations",
                json!({ "nvidia.cdi.k8s.io/container.c": "management.nvidia.com/gpu=all" }),
            ),
        ),
        (
            "label of a node",
            true,
            with_metadata(
                one(json!({})),
                "labels",
                json!({ "hami.io/vgpu-node": "n1" }),
            ),
        ),
    ]
}

#[test]
fn only_pods_that_concern_us_are_sent_for_review() {
    let (mutating, validating) =
        webhook_configurations(&vendors("default"), &settings(), &client());
    let webhooks = [
        Conditions::of(&mutating, "mutate.pods.vgpu.io"),
        Conditions::of(&validating, "validate.pods.vgpu.io"),
    ];

    for (name, sent, pod) in corpus() {
        for webhook in &webhooks {
            assert_eq!(webhook.send(&pod, &Value::Null, "alice"), sent, "{name}");
        }
    }
}

#[test]
fn pods_that_name_templates_of_ours_are_sent() {
    let (mutating, validating) =
        webhook_configurations(&vendors("default"), &settings(), &client());
    let named = |claim: Value| {
        pod(
            json!({ "containers": [container(json!({}))], "resourceClaims": [{ "name": "a" }, claim] }),
        )
    };
    for (claim, sent) in [
        (
            json!({ "name": "b", "resourceClaimTemplateName": "vgpu-share-1xall-0c-0000000000" }),
            true,
        ),
        (
            json!({ "name": "b", "resourceClaimTemplateName": "mine" }),
            false,
        ),
        (json!({ "name": "b", "resourceClaimName": "mine" }), false),
    ] {
        let pod = named(claim);
        for webhook in [
            Conditions::of(&mutating, "mutate.pods.vgpu.io"),
            Conditions::of(&validating, "validate.pods.vgpu.io"),
        ] {
            assert_eq!(webhook.send(&pod, &Value::Null, "alice"), sent, "{pod}");
        }
    }
}

#[test]
fn only_claims_that_name_our_driver_are_sent() {
    let (_, validating) = webhook_configurations(&vendors("default"), &settings(), &client());
    let webhook = Conditions::of(&validating, "validate.claims.vgpu.io");
    let of = |class: &str| json!({ "deviceClassName": class });
    let exactly = |class: &str| json!({ "requests": [{ "name": "r" }, { "name": "g", "exactly": of(class) }] });
    let opaque = |driver: &str| json!({ "config": [{}, { "opaque": { "driver": driver, "parameters": {} } }] });
    let ours = "gpu.vgpu.io";

    for (devices, sent) in [
        (json!({}), false),
        (json!({ "requests": [], "config": [] }), false),
        (exactly("gpu.example.com"), false),
        (opaque("gpu.example.com"), false),
        (exactly("mig.example.com"), false),
        (exactly(ours), true),
        (exactly("mig.vgpu.io"), true),
        (opaque(ours), true),
        (json!({ "requests": [of(ours)] }), true),
        (json!({ "requests": [of("mig.vgpu.io")] }), true),
        (
            json!({ "requests": [{ "firstAvailable": [of("a"), of("mig.vgpu.io")] }] }),
            true,
        ),
        (
            json!({ "requests": [{ "firstAvailable": [of("a"), of(ours)] }] }),
            true,
        ),
        (
            json!({ "requests": [{ "firstAvailable": [of("a")] }] }),
            false,
        ),
    ] {
        let claim = json!({ "metadata": { "name": "c" }, "spec": { "devices": devices } });
        let template = json!({ "metadata": { "generateName": "c-" }, "spec": { "spec": { "devices": devices } } });
        for object in [&claim, &template] {
            assert_eq!(
                webhook.send(object, &Value::Null, "alice"),
                sent,
                "{object}"
            );
        }
    }
    let class = |spec: Value| json!({ "metadata": { "name": "c" }, "spec": spec });
    assert!(webhook.send(&class(opaque(ours)), &Value::Null, "alice"));
    assert!(!webhook.send(&class(json!({ "selectors": [] })), &Value::Null, "alice"));
    assert!(!webhook.send(
        &json!({ "metadata": { "name": "c" } }),
        &Value::Null,
        "alice"
    ));
    let name = json!({ "metadata": { "name": "vgpu-share-x" }, "spec": { "spec": {} } });
    assert!(webhook.send(&name, &Value::Null, "alice"));
}

#[test]
fn unsent_pods_would_have_been_left_unchanged() {
    let admission = common::admission(Settings::default());

    for (name, sent, pod) in corpus() {
        let answer = admission.admit(&pod, &common::create());
        if !sent && !matches!(name, "without a spec" | "no containers" | "empty lists") {
            assert_eq!(answer.unwrap().patch, [], "{name}");
        }
    }
}

#[test]
fn a_change_of_what_is_reserved_is_sent_and_no_other() {
    let (_, validating) = webhook_configurations(&vendors("default"), &settings(), &client());
    let webhook = Conditions::of(&validating, "reserved.pods.vgpu.io");
    let bare = pod(json!({ "containers": [container(json!({}))] }));
    let held = |what: &str| {
        with_metadata(
            bare.clone(),
            "annotations",
            json!({ "hami.io/vgpu-devices-allocated": what, "team": what }),
        )
    };
    let labelled = with_metadata(bare.clone(), "labels", json!({ "hami.io/vgpu-node": "n1" }));
    let own = with_metadata(bare.clone(), "annotations", json!({ "team": "a" }));
    let seen = with_metadata(
        bare.clone(),
        "annotations",
        json!({ "vgpu.io/visible-devices-0123456789": "" }),
    );

    let by_cdi = with_metadata(
        bare.clone(),
        "annotations",
        json!({ "cdi.k8s.io/mine": "nvidia.com/gpu=all" }),
    );

    for (name, old, new, sent) in [
        ("CDI devices written", &bare, &by_cdi, true),
        ("nothing", &bare, &bare, false),
        ("nothing of what is held", &held("x"), &held("x"), false),
        ("its own", &bare, &own, false),
        ("its own away", &own, &bare, false),
        ("written", &bare, &held("x"), true),
        ("changed", &held("x"), &held("y"), true),
        ("taken away", &held("x"), &bare, true),
        ("label written", &bare, &labelled, true),
        ("label taken away", &labelled, &bare, true),
        ("written empty", &bare, &seen, true),
        ("empty taken away", &seen, &bare, true),
    ] {
        assert_eq!(webhook.send(new, old, "alice"), sent, "{name}");
        assert!(!webhook.send(new, old, OWN), "{name} by ourselves");
    }
    let binding = |metadata: Value| json!({ "metadata": metadata, "target": { "name": "n1" } });
    let forged =
        binding(json!({ "name": "p", "annotations": { "hami.io/vgpu-devices-allocated": ";" } }));
    assert!(webhook.send(&forged, &Value::Null, "alice"));
    assert!(!webhook.send(&binding(json!({ "name": "p" })), &Value::Null, "alice"));
}

#[test]
fn other_pods_are_sent_only_if_changed_and_never_stopped() {
    let (mutating, _) = webhook_configurations(&vendors("overwriteenv"), &settings(), &client());
    let name = "hide-devices.pods.vgpu.io";
    let rest = Conditions::of(&mutating, name);
    let entry = &mutating["webhooks"][1];
    let asks = Conditions::of(&mutating, "mutate.pods.vgpu.io");

    for (case, _, pod) in corpus() {
        let both = rest.send(&pod, &Value::Null, "alice") && asks.send(&pod, &Value::Null, "alice");
        assert!(!both, "{case}");
    }
    let plain = pod(json!({ "containers": [container(json!({}))] }));
    assert!(rest.send(&plain, &Value::Null, "alice"));
    assert_eq!(entry["name"], name);
    assert_eq!(entry["failurePolicy"], "Ignore");
}

#[test]
fn runtime_classes_are_those_of_the_settings_and_of_the_device_configuration() {
    let of_class = |class: &str| {
        pod(json!({ "containers": [container(json!({}))], "runtimeClassName": class }))
    };
    let own = Settings {
        gpu_runtime_classes: vec!["gpus".into()],
        ..settings()
    };
    for (config, settings, sent) in [
        ("default", settings(), "nvidia"),
        ("default", own.clone(), "gpus"),
        // The class that this file gives pods with a GPU.
        ("runtimeclass", own, "nvidia"),
    ] {
        let vendors = vendors(config);
        let (mutating, validating) = webhook_configurations(&vendors, &settings, &client());
        let asked = of_class(sent);
        for (object, name) in [
            (&mutating, "mutate.pods.vgpu.io"),
            (&validating, "validate.pods.vgpu.io"),
        ] {
            let entry = Conditions::of(object, name);
            assert!(entry.send(&asked, &Value::Null, "alice"), "{config} {sent}");
            assert!(!entry.send(&of_class("gvisor"), &Value::Null, "alice"));
        }
        let admission = admission::Admission::new(Arc::new(vendors), settings);
        let patch = admission.mutate(&asked, &common::create()).unwrap();
        assert!(!patch.is_empty(), "{config} {sent}");
    }
}

#[test]
fn all_pods_see_no_gpu_where_nvidias_runtime_is_the_default() {
    let everywhere = Settings {
        hide_everywhere: true,
        ..settings()
    };
    let (mutating, _) = webhook_configurations(&vendors("default"), &everywhere, &client());
    let rest = Conditions::of(&mutating, "hide-devices.pods.vgpu.io");
    let plain = pod(json!({ "containers": [container(json!({}))] }));
    let mut attached = plain.clone();
    attached["spec"]["containers"][0]["env"] =
        json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" }]);
    attached["spec"]["ephemeralContainers"] = json!([{ "name": "debug" }]);
    let admission = common::admission(everywhere);

    for (asked, subresource, old) in [
        (&plain, "", None),
        (&attached, "ephemeralcontainers", Some(&plain)),
    ] {
        assert!(rest.send(asked, &Value::Null, "alice"));
        let context = admission::Context {
            operation: match old {
                None => admission::Operation::Create,
                Some(_) => admission::Operation::Update,
            },
            subresource,
            old,
            ..common::create()
        };
        let given = common::patched(&admission, asked, &context);
        assert!(given.to_string().contains("void"), "{given}");
        assert!(!rest.send(&given, &Value::Null, "alice"), "{given}");
    }
    assert_eq!(
        mutating["webhooks"][1]["rules"][1]["resources"],
        json!(["pods/ephemeralcontainers"])
    );
}

#[test]
fn a_label_of_a_namespace_can_be_made_to_count_for_nothing() {
    let named = |settings: &Settings| {
        let (mutating, validating) =
            webhook_configurations(&vendors("default"), settings, &client());
        let mut texts = Vec::new();
        for object in [mutating, validating] {
            for entry in object["webhooks"].as_array().unwrap() {
                texts.push(entry["namespaceSelector"].clone());
            }
        }
        assert!(texts.len() > 2, "{texts:?}");
        texts
    };
    let strict = Settings {
        ignore_namespace_label: false,
        ..settings()
    };
    for selector in named(&settings()) {
        assert!(
            selector.to_string().contains("hami.io/webhook"),
            "{selector}"
        );
    }
    for selector in named(&strict) {
        let exempt = json!([{
            "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "gpu-operator"],
        }]);
        assert_eq!(selector["matchExpressions"], exempt);
    }
    let none = Settings {
        exempt_namespaces: Vec::new(),
        ..strict
    };
    for selector in named(&none) {
        assert_eq!(selector, json!({}));
    }
}

#[test]
fn the_configuration_is_within_the_limits_of_the_api() {
    let is_label = |name: &str| {
        (1..=63).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !name.starts_with('-')
            && !name.ends_with('-')
    };
    for config in ["default", "overwriteenv"] {
        let (mutating, validating) =
            webhook_configurations(&vendors(config), &settings(), &client());
        let mut names = Vec::new();
        for object in [&mutating, &validating] {
            for entry in object["webhooks"].as_array().unwrap() {
                let name = entry["name"].as_str().unwrap();
                let parts: Vec<&str> = name.split('.').collect();
                assert!(
                    parts.len() >= 3 && parts.iter().all(|part| is_label(part)),
                    "{name}"
                );
                names.push(name);
                assert_eq!(entry["sideEffects"], "None");
                assert!((1..=30).contains(&entry["timeoutSeconds"].as_u64().unwrap()));
                let conditions = entry["matchConditions"].as_array().unwrap();
                assert!(conditions.len() <= 64);
                assert!(!conditions.is_empty(), "{name}");
                for condition in conditions {
                    assert!(is_label(condition["name"].as_str().unwrap()));
                    // The API server's parser accepts 100,000 characters.
                    assert!(condition["expression"].as_str().unwrap().len() < 50_000);
                }
            }
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

#[test]
fn without_match_conditions_a_webhook_that_is_down_is_ignored() {
    let old = Settings {
        match_conditions: false,
        ..settings()
    };

    let (mutating, validating) = webhook_configurations(&vendors("default"), &old, &client());

    for entry in [
        &mutating["webhooks"][0],
        &validating["webhooks"][0],
        &validating["webhooks"][1],
    ] {
        assert_eq!(entry["failurePolicy"], "Ignore");
        assert_eq!(entry["matchConditions"], Value::Null);
        assert_eq!(
            entry["namespaceSelector"]["matchExpressions"][1]["values"],
            json!(["kube-system", "gpu-operator"])
        );
    }
}

#[test]
fn a_name_with_quotes_cannot_leave_its_text() {
    let strange = "a'] || true || '' in ['\\\n";
    let settings = Settings {
        own_accounts: vec![strange.into()],
        ..Settings::default()
    };
    let (_, validating) = webhook_configurations(&vendors("default"), &settings, &client());
    let webhook = Conditions::of(&validating, "reserved.pods.vgpu.io");
    let bare = pod(json!({ "containers": [container(json!({}))] }));
    let forged = with_metadata(
        bare.clone(),
        "annotations",
        json!({ "hami.io/vgpu-node": "n1" }),
    );

    assert!(webhook.send(&forged, &bare, "alice"));
    assert!(!webhook.send(&forged, &bare, strange));
}
