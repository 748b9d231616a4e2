//! A review as an API server sends it.

use serde_json::{Value, json};

pub(crate) fn review(pod: &Value) -> Vec<u8> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "namespace": "team-a", "operation": "CREATE",
            "userInfo": { "username": "system:serviceaccount:kube-system:job-controller" },
            "object": pod, "oldObject": null, "dryRun": false,
        },
    });
    serde_json::to_vec(&review).unwrap_or_default()
}

/// A pod as an API server sends it: defaults filled in, managed fields, a projected token.
pub(crate) fn pod(containers: usize, limits: &Value) -> Value {
    let environment: Vec<Value> = (0..12)
        .map(|index| json!({ "name": format!("SETTING_{index}"), "value": "some value or other" }))
        .collect();
    let containers: Vec<Value> = (0..containers)
        .map(|index| {
            json!({
                "name": format!("main-{index}"),
                "image": "registry.example.com/team-a/training:2026.11",
                "command": ["python", "train.py", "--epochs", "10"],
                "env": environment,
                "resources": { "limits": limits, "requests": limits },
                "volumeMounts": [{
                    "name": "kube-api-access-x7k2p", "readOnly": true,
                    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                }],
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            })
        })
        .collect();
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "generateName": "training-", "namespace": "team-a", "creationTimestamp": null,
            "labels": { "app": "training", "batch.kubernetes.io/controller-uid": "5b1f" },
            "annotations": { "team": "a" },
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": "training", "uid": "5b1f", "controller": true,
            }],
            "managedFields": [{
                "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": { "f:metadata": { "f:generateName": {} }, "f:spec": {} },
            }],
        },
        "spec": {
            "volumes": [{ "name": "kube-api-access-x7k2p", "projected": { "sources": [
                { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
                { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            ], "defaultMode": 420 } }],
            "containers": containers,
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "schedulerName": "default-scheduler",
            "tolerations": [{ "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute" }],
            "priority": 0, "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    })
}
