//! Scenarios, run by the program as CI would: its output and its exit code.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::wire::{node, pod};

fn played(scenario: &Value, flags: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.yaml");
    std::fs::write(&path, scenario.to_string()).unwrap();
    Command::new(env!("CARGO_BIN_EXE_vgpu-scheduler"))
        .args(["simulator", "--log", "error", "--scenario"])
        .arg(&path)
        .args(flags)
        .env_remove("KUBE_SCHEDULER_CONFIG_PATH")
        .output()
        .unwrap()
}

fn operation(step: u32, name: &str, what: Value) -> Value {
    json!({ "id": format!("{name}-{step}"), "step": step, name: what })
}

fn typed(kind: &str, mut object: Value) -> Value {
    object["apiVersion"] = "v1".into();
    object["kind"] = kind.into();
    json!({ "object": object })
}

fn scenario(more: &[Value]) -> Value {
    let named = json!({ "typeMeta": { "apiVersion": "v1", "kind": "Node" }, "objectMeta": { "name": "small" } });
    let mut uncordon = named.clone();
    uncordon["patch"] = r#"{"spec":{"unschedulable":false}}"#.into();
    let mut cordoned = node("small");
    cordoned["spec"] = json!({ "unschedulable": true });
    let mut operations = vec![
        operation(1, "createOperation", typed("Node", cordoned)),
        operation(1, "createOperation", typed("Pod", pod("p"))),
        operation(2, "patchOperation", uncordon),
        operation(3, "deleteOperation", named),
    ];
    operations.extend_from_slice(more);
    operations.push(operation(4, "doneOperation", json!({})));
    json!({ "kind": "Scenario", "metadata": { "name": "s" }, "spec": { "operations": operations } })
}

#[test]
fn each_step_waits_until_the_scheduler_rests() {
    let output = played(&scenario(&[]), &[]);

    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["phase"], "Succeeded");
    let steps: Vec<(u64, u64)> = report["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| {
            (
                step["placed"].as_u64().unwrap(),
                step["pending"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(steps, [(0, 1), (1, 0), (1, 0), (1, 0)]);
    let reasons = report["steps"][0]["reasons"].as_object().unwrap();
    assert!(
        reasons.keys().next().unwrap().contains("unschedulable"),
        "{reasons:?}"
    );
}

#[test]
fn exit_code_tells_pending_pods_and_refused_operations() {
    let mut late = pod("late");
    late["spec"]["nodeSelector"] = json!({ "no": "where" });
    let pending = scenario(&[operation(4, "createOperation", typed("Pod", late))]);
    let refused = scenario(&[operation(4, "createOperation", typed("Pod", pod("p")))]);

    let output = played(&pending, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("1 pods have no node"),
        "{output:?}"
    );
    assert_eq!(
        played(&pending, &["--allow-pending"]).status.code(),
        Some(0)
    );
    let output = played(&refused, &[]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("operation createOperation-4 of step 4: pods \"p\" already exists"),
        "{error}"
    );
    let output = played(&json!({ "spec": {} }), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("spec.operations is missing"));
}
