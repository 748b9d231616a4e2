//! GPUs by ResourceClaims: what a pod's resources become, which pods cannot ask so, and which claims are refused.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what is wrong in a test ends it"
)]

use crate::common;

use admission::{Admission, Answer, Context, Operation, Settings};
use common::{admission, create, patched};
use kube_api::object::Pod;
use kube_api::shares::template::{SHAPES, Shape, named_by};
use serde_json::{Value, json};

const OWN: &str = "system:serviceaccount:vgpu-system:vgpu-scheduler";

fn by_claims() -> Admission {
    admission(Settings {
        by_claims: true,
        own_accounts: vec![OWN.into()],
        ..Settings::default()
    })
}

fn container(name: &str, limits: Value) -> Value {
    json!({"name": name, "image": "i", "resources": {"limits": limits}})
}

fn pod(containers: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team-a"},
        "spec": {"containers": containers}})
}

fn share(mib: u64, cores: u64) -> Value {
    json!({"cpu": "1", "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib.to_string(), "nvidia.com/gpucores": cores.to_string()})
}

fn shapes(pod: &Value) -> Vec<Shape> {
    let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
    named_by(&pod).unwrap().into_values().collect()
}

/// The claim of each container, by its name in the pod.
fn claims(pod: &Value, list: &str) -> Vec<Value> {
    let containers = pod["spec"][list].as_array().unwrap();
    containers
        .iter()
        .map(|container| container["resources"]["claims"].clone())
        .collect()
}

#[test]
fn resources_become_a_claim_by_a_template_of_this_shape() {
    let before = pod(json!([
        container("work", share(4096, 30)),
        container("side", json!({"cpu": "1"}))
    ]));

    let after = patched(&by_claims(), &before, &create());

    let shape = Shape {
        count: 1,
        memory_mib: Some(4096),
        cores: 30,
        ..Shape::default()
    };
    assert_eq!(
        after["spec"]["resourceClaims"],
        json!([{"name": "vgpu-0", "resourceClaimTemplateName": shape.name()}])
    );
    assert_eq!(shapes(&after), [shape]);
    assert_eq!(
        claims(&after, "containers"),
        [json!([{"name": "vgpu-0"}]), Value::Null]
    );
    assert_eq!(
        after["spec"]["containers"][0]["resources"]["limits"],
        json!({"cpu": "1"})
    );
    // Any kube-scheduler places it, and a container without a GPU sees none.
    assert_eq!(after["spec"]["schedulerName"], Value::Null);
    assert_eq!(
        after["spec"]["containers"][1]["env"],
        json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])
    );
}

#[test]
fn second_look_at_the_pod_changes_nothing_and_passes() {
    let before = pod(json!([container("work", share(4096, 30))]));
    for settings in [
        Settings::default(),
        Settings {
            hide_everywhere: true,
            ..Settings::default()
        },
    ] {
        let admission = admission(Settings {
            by_claims: true,
            ..settings
        });
        let after = patched(&admission, &before, &create());

        assert_eq!(admission.mutate(&after, &create()), Ok(Vec::new()));
        assert_eq!(admission.validate(&after, &create()), Ok(()));
    }
}

#[test]
fn defaults_and_options_are_in_the_shape() {
    let mut before = pod(json!([container(
        "work",
        json!({"nvidia.com/gpu": 2, "nvidia.com/priority": 1})
    )]));
    before["metadata"]["annotations"] = json!({"nvidia.com/use-gputype": "H100", "nvidia.com/numa-bind": "true",
        "hami.io/gpu-scheduler-policy": "binpack"});

    let admitted = by_claims().admit(&before, &create()).unwrap();

    let after = patched(&by_claims(), &before, &create());
    let shape = Shape {
        count: 2,
        cores: 100,
        priority: 1,
        one_numa_node: true,
        use_types: vec!["H100".into()],
        ..Shape::default()
    };
    assert_eq!(shapes(&after), [shape]);
    assert_eq!(admitted.warnings.len(), 1, "{:?}", admitted.warnings);
    assert!(
        admitted.warnings[0].contains("hami.io/gpu-scheduler-policy] has no effect"),
        "{:?}",
        admitted.warnings
    );
}

#[test]
fn node_policy_has_no_effect_without_the_scheduler_that_follows_it() {
    let mut before = pod(json!([container("work", json!({"nvidia.com/gpu": 1}))]));
    before["metadata"]["annotations"] = json!({"hami.io/node-scheduler-policy": "spread"});
    let warned = by_claims().admit(&before, &create()).unwrap().warnings;
    assert!(
        matches!(&warned[..], [one] if one.contains("\"hami-scheduler\" alone follows it")),
        "{warned:?}"
    );

    before["spec"]["schedulerName"] = json!("hami-scheduler");
    let admitted = by_claims().admit(&before, &create()).unwrap();
    assert_eq!(admitted.warnings, Vec::<String>::new());
}

#[test]
fn each_container_has_its_claim_and_init_containers_share_one() {
    let mut before = pod(json!([
        container("a", share(1000, 10)),
        container("b", share(1000, 10))
    ]));
    before["spec"]["resourceClaims"] = json!([{"name": "vgpu-0", "resourceClaimName": "mine"}]);
    before["spec"]["initContainers"] = json!([
        container("same", share(1000, 10)),
        container("more", share(2000, 10)),
        container("again", share(2000, 10)),
    ]);

    let after = patched(&by_claims(), &before, &create());

    assert_eq!(
        claims(&after, "containers"),
        [json!([{"name": "vgpu-1"}]), json!([{"name": "vgpu-2"}])]
    );
    assert_eq!(
        claims(&after, "initContainers"),
        [
            json!([{"name": "vgpu-1"}]),
            json!([{"name": "vgpu-3"}]),
            json!([{"name": "vgpu-3"}])
        ]
    );
    assert_eq!(after["spec"]["resourceClaims"].as_array().unwrap().len(), 4);
    assert_eq!(shapes(&after).len(), 2);
}

#[test]
fn what_no_claim_can_ask_for_is_refused_with_what_to_write() {
    let cases = [
        (
            json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}),
            json!({}),
            "resources.limits[nvidia.com/gpumem-percentage]: 50 is a percentage",
        ),
        (
            json!({"nvidia.com/gpu": 33}),
            json!({}),
            "33 GPUs are more than one claim can have",
        ),
        (
            json!({"nvidia.com/gpu": 1, "nvidia.com/priority": 10}),
            json!({}),
            "10 is no priority",
        ),
        (
            json!({"nvidia.com/gpu": 1}),
            json!({"nvidia.com/vgpu-mode": "mig"}),
            "metadata.annotations[nvidia.com/vgpu-mode]: \"mig\"",
        ),
        (
            json!({"nvidia.com/gpu": 1, "cambricon.com/vmlu": 1}),
            json!({}),
            "use a pod for each vendor",
        ),
    ];
    for (limits, annotations, says) in cases {
        let mut before = pod(json!([container("work", limits)]));
        before["metadata"]["annotations"] = annotations;
        let why = by_claims()
            .admit(&before, &create())
            .unwrap_err()
            .to_string();
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn pods_of_other_schedulers_and_without_gpus_are_left_alone() {
    let mut other = pod(json!([container("work", share(4096, 30))]));
    other["spec"]["schedulerName"] = json!("volcano");
    for before in [other, pod(json!([container("work", json!({"cpu": "1"}))]))] {
        let after = patched(&by_claims(), &before, &create());
        assert_eq!(
            after["spec"]["containers"][0]["resources"],
            before["spec"]["containers"][0]["resources"]
        );
        assert_eq!(after["spec"]["resourceClaims"], Value::Null);
    }
}

#[test]
fn forged_description_of_a_template_is_refused() {
    let before = pod(json!([container("work", share(4096, 30))]));
    let good = patched(&by_claims(), &before, &create());
    let text = good["metadata"]["annotations"][SHAPES].as_str().unwrap();
    for forged in [text.replace("4096,", "8192,"), "{}".into(), "x".into()] {
        assert_ne!(forged, text);
        let mut bad = good.clone();
        bad["metadata"]["annotations"][SHAPES] = json!(forged);
        for judged in [
            by_claims().mutate(&bad, &create()).map(drop),
            by_claims().validate(&bad, &create()),
        ] {
            let why = judged.unwrap_err().to_string();
            assert!(
                why.starts_with("metadata.annotations[vgpu.io/shares]: "),
                "{why}"
            );
        }
    }
}

#[test]
fn container_with_a_claim_of_ours_is_held_to_what_a_container_with_a_gpu_is() {
    let before = pod(json!([container("work", share(4096, 30))]));
    let good = patched(&by_claims(), &before, &create());
    let with = |path: &str, value: Value| {
        let mut bad = good.clone();
        bad["spec"]["containers"][0][path] = value;
        by_claims().validate(&bad, &create()).map_err(|it| it.field)
    };

    let variable = json!([{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]);
    assert_eq!(
        with("env", variable),
        Err("env[CUDA_DISABLE_CONTROL]".into())
    );
    let mount = json!([{"name": "v", "mountPath": "/etc/vgpu"}]);
    assert_eq!(
        with("volumeMounts", mount),
        Err("volumeMounts[/etc/vgpu]".into())
    );
    let rights = json!({"privileged": true});
    assert_eq!(
        with("securityContext", rights),
        Err("securityContext.privileged".into())
    );
}

fn template(name: &str, priority: u32) -> Value {
    json!({"metadata": {"name": name, "namespace": "team-a"}, "spec": {"spec": {"devices": {
        "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.vgpu.io"}}],
        "config": [{"opaque": {"driver": "gpu.vgpu.io", "parameters": {"apiVersion": "gpu.vgpu.io/v1",
            "kind": "ShareParameters", "priority": priority}}}]}}}})
}

/// The API server's question and its answer: whether it is allowed, and the message.
fn review(object: &Value, old: &Value, operation: &str, user: &str) -> (bool, String) {
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": operation, "namespace": "team-a", "userInfo": {"username": user},
        "kind": {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaimTemplate"},
        "resource": {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaimtemplates"},
        "object": object, "oldObject": old}});
    let Answer::Reviewed(text) = by_claims().review(review.to_string().as_bytes()) else {
        panic!("no answer");
    };
    let answer: Value = serde_json::from_str(&text).unwrap();
    let response = &answer["response"];
    assert_eq!(response.get("patch"), None);
    let message = response["status"]["message"].as_str().unwrap_or_default();
    (response["allowed"].as_bool().unwrap(), message.to_owned())
}

#[test]
fn claims_that_the_driver_cannot_serve_are_refused_when_they_are_written() {
    let nothing = Value::Null;
    let (allowed, why) = review(&template("share", 10), &nothing, "CREATE", "alice");
    assert!(!allowed);
    assert!(
        why.starts_with(
            "spec.spec.devices.config[0].opaque.parameters: the parameters have the priority 10"
        ),
        "{why}"
    );
    assert_eq!(
        review(&template("share", 9), &nothing, "CREATE", "alice"),
        (true, String::new())
    );
    for (field, value, says) in [
        (
            "floor",
            json!(20),
            "parameters.floor: the parameters have the floor 20, and the cap",
        ),
        ("oversubscribe", json!("4Gi"), "only a DeviceClass may set"),
    ] {
        let mut bad = template("share", 9);
        bad["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"][field] = value;
        let (allowed, why) = review(&bad, &nothing, "CREATE", "alice");
        assert!(!allowed && why.contains(says), "{why}");
    }
    // Its finalizers can still be removed.
    let mut released = template("share", 10);
    released["metadata"]["labels"] = json!({"a": "b"});
    let before = template("share", 10);
    assert!(review(&released, &before, "UPDATE", "alice").0);
    assert!(!review(&released, &template("share", 9), "UPDATE", "alice").0);
}

#[test]
fn template_of_a_mig_instance_is_checked_as_one_of_a_gpu() {
    let with_class = |priority| {
        let mut template = template("instance", priority);
        template["spec"]["spec"]["devices"]["requests"][0]["exactly"] = json!({
            "deviceClassName": "mig.vgpu.io",
            "selectors": [{"cel": {"expression": "device.attributes[\"gpu.vgpu.io\"].profile == \"3g.40gb\""}}],
        });
        template
    };
    assert_eq!(
        review(&with_class(9), &Value::Null, "CREATE", "alice"),
        (true, String::new())
    );
    let mut floor = with_class(9);
    floor["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]["floor"] = json!(20);
    let mut shares = with_class(9);
    shares["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"] =
        json!({"requests": {"shares": "1"}});
    for (object, says) in [
        (with_class(10), "have the priority 10; accepted: "),
        (
            floor,
            "have the floor 20, but the hardware gives each MIG instance",
        ),
        (
            shares,
            "is no capacity of a MIG instance of gpu.vgpu.io; accepted: memory",
        ),
    ] {
        let (allowed, why) = review(&object, &Value::Null, "CREATE", "alice");
        assert!(!allowed && why.contains(says), "{why}");
    }
}

#[test]
fn names_of_the_schedulers_templates_are_kept_for_the_scheduler() {
    let ours = template("vgpu-share-1xall-100c-0000000000", 1);
    let (allowed, why) = review(&ours, &Value::Null, "CREATE", "alice");
    assert!(
        !allowed && why.starts_with("metadata.name: names that begin with vgpu-share-"),
        "{why}"
    );
    assert!(review(&ours, &Value::Null, "CREATE", OWN).0);
}

#[test]
fn without_the_mode_resources_stay_as_they_are() {
    let before = pod(json!([container("work", share(4096, 30))]));
    let plain = admission(Settings::default());
    let context = Context {
        operation: Operation::Create,
        ..create()
    };

    let after = patched(&plain, &before, &context);

    assert_eq!(after["spec"]["resourceClaims"], Value::Null);
    assert_eq!(
        after["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"],
        "4096"
    );
}
