//! Random imports and scenarios on a simulator that schedules: the loop continues whatever is imported.

use std::time::Duration;

use proptest::prelude::*;
use scheduler::simulator::scenario::Scenario;
use serde_json::{Value, json};

use super::abuse::{broken, value};
use super::wire::{Served, node, pod};

/// A cluster with something for each plugin.
fn rich() -> Value {
    let register = json!([{ "id": "GPU-0", "index": 0, "count": 10, "devmem": 40_960, "devcore": 100,
        "type": "A100", "health": true, "mode": "hami-core" }]);
    let mut gpu = node("gpu");
    gpu["metadata"]["annotations"] =
        json!({ "hami.io/node-nvidia-register": register.to_string() });
    gpu["metadata"]["labels"] = json!({ "zone": "a", "kubernetes.io/hostname": "gpu" });
    gpu["spec"] = json!({ "taints": [{ "key": "gpu", "value": "x", "effect": "NoSchedule" }], "unschedulable": false });
    gpu["status"]["images"] = json!([{ "names": ["i"], "sizeBytes": 1000 }]);
    let mut one = pod("one");
    one["metadata"]["labels"] = json!({ "app": "a" });
    one["spec"]["tolerations"] =
        json!([{ "key": "gpu", "operator": "Exists", "effect": "NoSchedule" }]);
    one["spec"]["containers"][0]["resources"]["limits"] =
        json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000" });
    one["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 80, "hostPort": 80 }]);
    one["spec"]["volumes"] =
        json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "claim" } }]);
    let terms =
        json!([{ "labelSelector": { "matchLabels": { "app": "a" } }, "topologyKey": "zone" }]);
    one["spec"]["affinity"] = json!({
        "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a"] }] }] } },
        "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms },
    });
    one["spec"]["topologySpreadConstraints"] = json!([{ "maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": { "matchLabels": { "app": "a" } } }]);
    let mut other = pod("other");
    other["spec"]["schedulingGates"] = json!([{ "name": "later" }]);
    other["spec"]["priorityClassName"] = "high".into();
    json!({
        "namespaces": [{ "metadata": { "name": "team" } }],
        "priorityClasses": [{ "metadata": { "name": "high" }, "value": 10 }],
        "storageClasses": [{ "metadata": { "name": "late" }, "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer" }],
        "pvcs": [{ "metadata": { "name": "claim", "namespace": "default" }, "spec": { "storageClassName": "late",
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }],
        "pvs": [{ "metadata": { "name": "disk" }, "spec": { "capacity": { "storage": "2Gi" }, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "late", "csi": { "driver": "d", "volumeHandle": "h" }, "nodeAffinity": { "required": {
                "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a"] }] }] } } } }],
        "nodes": [gpu, node("plain")],
        "pods": [one, other],
    })
}

/// The values that break arithmetic and text handling, besides any.
fn nasty() -> impl Strategy<Value = Value> {
    let edge = [
        json!("9223372036854775807"),
        json!("-9223372036854775808"),
        json!("99999999999999999999Ei"),
        json!("1e2147483647"),
        json!("1e-2147483648"),
        json!("-0"),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(1e308),
        json!(u64::MAX),
        json!(0.1),
        json!("2026-11-21T12:07:49Z"),
        json!("9999-99-99T99:99:99Z"),
        json!("a/b/c"),
        json!("x".repeat(1000)),
        json!("\u{0}\u{202e}é"),
    ];
    prop_oneof![value(), prop::sample::select(edge.to_vec())]
}

fn paths() -> impl Strategy<Value = Vec<(Vec<usize>, Value)>> {
    let path = prop::collection::vec(any::<usize>(), 2..12);
    prop::collection::vec((path, nasty()), 1..4)
}

#[test]
fn no_import_ends_the_scheduling_loop() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let enabled = json!([{ "name": "GpuFit" }, { "name": "GpuScore", "weight": 1 }]);
    let setup = json!({ "profiles": [{ "plugins": { "multiPoint": { "enabled": enabled } } }] });
    let served = runtime.block_on(Served::scheduling(Some(&setup)));
    let rich = rich();
    let whole = runtime.block_on(served.import(&rich));
    assert_eq!(
        whole.code(),
        200,
        "{}",
        String::from_utf8_lossy(&whole.body)
    );
    let config = ProptestConfig {
        cases: 250,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(breaks in paths())| {
        let mut document = rich.clone();
        for (at, with) in &breaks {
            document = broken(&document, at, with);
        }
        runtime.block_on(async {
            let answer = served.post("/api/v1/import?replace=true", &document).await;
            match answer.code() {
                200 => {}
                400 | 500 => {
                    let message = answer.message();
                    prop_assert!(message.len() > 8 && !message.contains("panicked"), "{}", message);
                }
                other => prop_assert!(false, "{}: {}", other, String::from_utf8_lossy(&answer.body)),
            }
            for path in ["/", "/page/objects/pods", "/page/objects/nodes", "/page/pods/default/one"] {
                let page = served.send("GET", path, &[("Accept", "text/html")], None).await;
                prop_assert!(page.code() < 500, "{}: {}", path, document);
            }
            Ok(())
        })?;
    });
    runtime.block_on(async {
        let last = json!({ "nodes": [node("n")], "pods": [pod("alive")] });
        let imported = served.post("/api/v1/import?replace=true", &last).await;
        assert_eq!(imported.code(), 200);
        served
            .pod_once("alive", |pod| pod["spec"]["nodeName"] == "n")
            .await;
        drop(served);
    });
}

#[test]
fn no_scenario_breaks_off_without_a_reason() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let named = json!({ "typeMeta": { "apiVersion": "v1", "kind": "Node" }, "objectMeta": { "name": "n" } });
    let mut patch = named.clone();
    patch["patch"] = r#"{"spec":{"unschedulable":true}}"#.into();
    let typed = |kind: &str, mut object: Value| {
        object["apiVersion"] = "v1".into();
        object["kind"] = kind.into();
        json!({ "object": object })
    };
    let scenario = json!({ "kind": "Scenario", "spec": { "operations": [
        { "id": "a", "step": 1, "createOperation": typed("Node", node("n")) },
        { "id": "b", "step": 1, "createOperation": typed("Pod", pod("p")) },
        { "id": "c", "step": 2, "patchOperation": patch },
        { "id": "d", "step": 3, "deleteOperation": named },
        { "id": "e", "step": 4, "doneOperation": {} },
    ] } });
    let config = ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(breaks in paths())| {
        let mut document = scenario.clone();
        for (at, with) in &breaks {
            document = broken(&document, at, with);
        }
        match Scenario::read(&document) {
            Err(why) => prop_assert!(why.to_string().len() > 8, "{}", why),
            Ok(read) => runtime.block_on(async {
                let served = Served::scheduling(None).await;
                let report = served.simulator.play(&read, Duration::from_secs(3)).await;
                prop_assert!(report.phase == "Succeeded" || report.message.len() > 8, "{:?}", report);
                Ok(())
            })?,
        }
    });
}
