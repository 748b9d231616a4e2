//! `AdmissionReview` of both versions on the wire, in any shape, over HTTP.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what is wrong in a test ends it"
)]

use crate::common;

use std::sync::Arc;

use admission::{Answer, Reviewed, Settings, routes};
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use base64::Engine as _;
use common::admission;
use serde_json::{Value, json};
use tower::ServiceExt as _;

fn pod() -> Value {
    json!({
        "metadata": { "name": "p" },
        "spec": { "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpumem": "1Gi" } } }] },
    })
}

fn review(request: Value) -> Value {
    let mut review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "name": "p", "namespace": "team-a", "operation": "CREATE",
            "userInfo": { "username": "alice", "groups": ["system:authenticated"], "extra": { "x": ["y"] } },
            "object": pod(), "oldObject": null, "dryRun": false, "options": { "kind": "CreateOptions" },
        },
    });
    for (key, value) in request.as_object().unwrap() {
        review["request"][key] = value.clone();
    }
    review
}

fn ask(review: &Value) -> Value {
    match admission(Settings::default()).review(&serde_json::to_vec(review).unwrap()) {
        Answer::Reviewed(json) => serde_json::from_str(&json).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn patch(answer: &Value) -> Value {
    assert_eq!(answer["response"]["patchType"], "JSONPatch");
    let patch = answer["response"]["patch"].as_str().unwrap();
    serde_json::from_slice(
        &base64::engine::general_purpose::STANDARD
            .decode(patch)
            .unwrap(),
    )
    .unwrap()
}

#[test]
fn the_answer_has_the_version_and_the_uid_of_the_question() {
    for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
        let mut question = review(json!({}));
        question["apiVersion"] = json!(version);

        let answer = ask(&question);

        assert_eq!(answer["apiVersion"], version);
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["response"]["uid"], question["request"]["uid"]);
        assert_eq!(answer["response"]["allowed"], true);
        assert_eq!(patch(&answer).as_array().unwrap().len(), 3);
    }
}

#[test]
fn a_dry_run_is_answered_like_any_other() {
    assert_eq!(
        ask(&review(json!({ "dryRun": true }))),
        ask(&review(json!({})))
    );
}

#[test]
fn unchanged_pod_has_no_patch() {
    let plain = json!({ "metadata": {}, "spec": { "containers": [{ "name": "c" }] } });

    let answer = ask(&review(json!({ "object": plain })));

    assert_eq!(answer["response"]["allowed"], true);
    assert_eq!(answer["response"].get("patch"), None);
    assert_eq!(answer["response"].get("patchType"), None);
}

#[test]
fn a_refusal_has_a_code_a_reason_and_a_message() {
    let mut object = pod();
    object["spec"]["hostPID"] = json!(true);

    let answer = ask(&review(json!({ "object": object })));

    let status = &answer["response"]["status"];
    assert_eq!(answer["response"]["allowed"], false);
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&json!(403), &json!("Forbidden"))
    );
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .starts_with("spec.hostPID: "),
        "{status}"
    );
}

#[test]
fn other_objects_and_operations_are_let_in_unseen() {
    for request in [
        json!({ "resource": { "group": "apps", "version": "v1", "resource": "deployments" }, "object": 5 }),
        json!({ "resource": { "group": "example.com", "version": "v1", "resource": "pods" } }),
        json!({ "resource": null, "kind": { "group": "", "version": "v1", "kind": "Secret" } }),
        json!({ "operation": "DELETE", "object": null }),
        json!({ "operation": "CONNECT", "subResource": "exec", "object": { "kind": "PodExecOptions" } }),
        json!({ "subResource": "eviction", "object": { "kind": "Eviction" } }),
    ] {
        let answer = ask(&review(request.clone()));
        assert_eq!(answer["response"]["allowed"], true, "{request}");
        assert_eq!(answer["response"].get("patch"), None, "{request}");
    }
}

#[test]
fn bindings_are_looked_at_by_both_of_their_names() {
    let binding = json!({
        "kind": "Binding",
        "metadata": { "name": "p", "annotations": { "hami.io/vgpu-devices-allocated": ";" } },
        "target": { "name": "n1" },
    });
    let resource = |resource: &str| json!({ "group": "", "version": "v1", "resource": resource });
    let kind = json!({ "group": "", "version": "v1", "kind": "Binding" });
    for request in [
        json!({ "resource": resource("pods"), "subResource": "binding", "kind": kind, "object": binding }),
        json!({ "resource": resource("bindings"), "kind": kind, "object": binding }),
        json!({ "resource": null, "kind": kind, "object": binding }),
    ] {
        let answer = ask(&review(request.clone()));
        assert_eq!(answer["response"]["allowed"], false, "{request}");
    }
}

#[test]
fn missing_and_null_are_absent() {
    let sparse = json!({ "request": {
        "uid": null, "kind": null, "resource": {}, "subResource": null, "userInfo": null, "operation": null,
        "dryRun": null, "newField": { "x": 1 }, "object": pod(),
    } });

    let answer = ask(&sparse);

    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["response"]["uid"], "");
    assert_eq!(patch(&answer).as_array().unwrap().len(), 3);
}

#[test]
fn nulls_in_a_pod_are_absent() {
    let object = json!({
        "metadata": { "annotations": null, "labels": null },
        "spec": {
            "initContainers": null, "schedulerName": null, "nodeName": null, "hostPID": null,
            "containers": [
                { "name": "a", "env": null, "resources": null, "volumeMounts": null, "securityContext": null },
                { "name": "b", "resources": { "limits": { "nvidia.com/gpu": 1 }, "requests": null } },
            ],
        },
    });

    let answer = ask(&review(json!({ "object": object })));

    let mut after = object;
    let patch: json_patch::Patch = serde_json::from_value(patch(&answer)).unwrap();
    json_patch::patch(&mut after, &patch).unwrap();
    assert_eq!(after["spec"]["schedulerName"], "hami-scheduler");
    assert_eq!(after["spec"]["containers"][0]["env"][0]["value"], "void");
    assert_eq!(
        after["spec"]["containers"][1]["resources"]["limits"]["nvidia.com/gpucores"],
        "100"
    );
}

#[test]
fn an_object_that_is_no_pod_is_refused_with_400() {
    for object in [
        json!(null),
        json!("x"),
        json!([]),
        json!({ "spec": { "containers": {} } }),
    ] {
        let answer = ask(&review(json!({ "object": object })));
        assert_eq!(answer["response"]["allowed"], false, "{object}");
        assert_eq!(answer["response"]["status"]["code"], 400, "{object}");
    }
}

async fn post(path: &str, body: Vec<u8>) -> (StatusCode, Vec<u8>) {
    let router = routes(Arc::new(admission(Settings::default())));
    let request = Request::post(path).body(Body::from(body)).unwrap();
    let response = router.oneshot(request).await.unwrap();
    let status = response.status();
    (
        status,
        to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap()
            .to_vec(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn all_routes_answer_and_the_validating_one_changes_nothing() {
    let body = serde_json::to_vec(&review(json!({}))).unwrap();
    for path in ["/webhook", "/mutate", "/mutate-v1-pod", "/validate-v1-pod"] {
        let (status, answer) = post(path, body.clone()).await;

        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(status, StatusCode::OK, "{path}");
        assert_eq!(answer["response"]["allowed"], true, "{path}");
        assert_eq!(
            answer["response"].get("patch").is_none(),
            path == "/validate-v1-pod",
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_response_carries_the_outcome_of_its_review() {
    let router = routes(Arc::new(admission(Settings::default())));
    let mut refused = pod();
    refused["spec"]["hostPID"] = json!(true);
    let plain = json!({ "spec": { "containers": [{ "name": "c" }] } });
    for (body, operation, outcome) in [
        (review(json!({})), "CREATE", "mutated"),
        (review(json!({ "object": plain })), "CREATE", "allowed"),
        (review(json!({ "object": refused })), "CREATE", "denied"),
        (review(json!({ "object": 5 })), "CREATE", "broken"),
        (
            review(json!({ "operation": "DELETE" })),
            "DELETE",
            "allowed",
        ),
        (review(json!({ "operation": "ELSE" })), "unknown", "allowed"),
        (json!([]), "unknown", "broken"),
    ] {
        let body = Body::from(serde_json::to_vec(&body).unwrap());
        let response = router
            .clone()
            .oneshot(Request::post("/webhook").body(body).unwrap())
            .await
            .unwrap();
        assert_eq!(
            response.extensions().get(),
            Some(&Reviewed {
                operation,
                outcome,
                trace: None,
            })
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn body_without_a_review_is_answered_with_400() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [
        "",
        "{",
        "no",
        "[]",
        "\u{0}",
        r#"{"request": 5}"#,
        r#"{"request": {"uid": 5}}"#,
        r#"{"apiVersion": "admission.k8s.io/v2", "request": {}}"#,
        r#"{"kind": "Pod", "apiVersion": "v1"}"#,
        &deep,
        &format!(r#"{{"request": {{"object": {deep}}}}}"#),
    ] {
        let (status, answer) = post("/webhook", body.into()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body:.100}");
        assert!(!answer.is_empty() && answer.len() < 1000, "{body:.100}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_are_read_up_to_a_limit() {
    let large = |bytes: usize| {
        let mut review = review(json!({}));
        review["request"]["object"]["metadata"]["annotations"] =
            json!({ "team": "x".repeat(bytes) });
        serde_json::to_vec(&review).unwrap()
    };

    let (status, answer) = post("/webhook", large(8 << 20)).await;
    assert_eq!(status, StatusCode::OK);
    assert!(serde_json::from_slice::<Value>(&answer).unwrap()["response"]["allowed"] == true);

    assert_eq!(
        post("/webhook", large(64 << 20)).await.0,
        StatusCode::PAYLOAD_TOO_LARGE
    );
}

/// About as many containers as an object of 1.5 MiB can hold: no step may be quadratic in them.
#[test]
fn a_pod_of_very_many_containers_is_answered() {
    const COUNT: usize = 20_000;
    let of = |asking: usize| {
        let containers: Vec<Value> = (0..COUNT)
            .map(|index| {
                let limits = if index < asking {
                    json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1Gi" })
                } else {
                    json!({})
                };
                json!({
                    "name": format!("c{index}"), "resources": { "limits": limits },
                    "env": [{ "name": "LD_PRELOAD" }],
                })
            })
            .collect();
        ask(&review(
            json!({ "object": { "spec": { "containers": containers } } }),
        ))
    };

    // Memory and the library for each of the first containers, no device for each of the others, and the scheduler.
    let most = of(64);
    assert_eq!(
        patch(&most).as_array().unwrap().len(),
        2 * 64 + (COUNT - 64) + 1
    );
    let too_many = of(65);
    assert_eq!(too_many["response"]["allowed"], false);
    let text = too_many["response"]["status"]["message"].as_str().unwrap();
    assert!(
        text.contains("at most 64 containers of a pod may"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn other_methods_and_paths_have_their_own_answers() {
    let router = routes(Arc::new(admission(Settings::default())));
    for (method, path, status) in [
        ("GET", "/webhook", StatusCode::METHOD_NOT_ALLOWED),
        ("PUT", "/validate-v1-pod", StatusCode::METHOD_NOT_ALLOWED),
        ("POST", "/other", StatusCode::NOT_FOUND),
    ] {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::empty())
            .unwrap();
        assert_eq!(
            router.clone().oneshot(request).await.unwrap().status(),
            status
        );
    }
}
