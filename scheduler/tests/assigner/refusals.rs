//! Bad input: the refusals with their texts, and that they change nothing.

use serde_json::{Value, json};

use super::support::{Combined, finalize_body, labelled, labels, review, wants};

async fn with_a_reservation() -> (Combined, Value) {
    let combined = Combined::start(&[labelled("a", &[&["x"], &["y"]])]).await;
    let pod = combined.make(&wants("mine", &["x"], 1)).await.1;
    (combined, pod)
}

#[tokio::test]
async fn finalize_names_the_fields_that_are_missing() {
    let (combined, pod) = with_a_reservation().await;
    let whole = finalize_body(&pod);
    let check = async |body: Value, expected: &str| {
        for router in [&combined.api, &combined.ui, &combined.router] {
            let answer = Combined::ask(router, "POST", "/finalize", body.to_string()).await;
            assert_eq!(answer, (400, json!({ "error": expected })));
        }
    };

    check(
        json!({}),
        "missing required fields: namespace, name, uid, reservation-id, gpu-uuid",
    )
    .await;
    check(
        json!([]),
        "missing required fields: namespace, name, uid, reservation-id, gpu-uuid",
    )
    .await;
    check(
        json!({"namespace": "default", "name": " ", "uid": 5, "reservation-id": null, "gpu-uuid": ","}),
        "missing required fields: name, uid, reservation-id, gpu-uuid",
    )
    .await;
    let mut body = whole.clone();
    body.as_object_mut().unwrap().remove("uid");
    check(body, "missing required fields: uid").await;
    let (status, answer) = Combined::ask(&combined.ui, "POST", "/finalize", "{").await;
    assert_eq!(status, 400);
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .starts_with("the body is no JSON")
    );
}

#[tokio::test]
async fn a_forged_finalize_changes_nothing() {
    let (combined, pod) = with_a_reservation().await;
    combined.cluster.import(&json!({"pods": [
        {"metadata": {"name": "mine", "namespace": "theirs", "uid": "t", "annotations": pod["metadata"]["annotations"]},
         "spec": {"containers": [{"name": "c"}]}},
        {"metadata": {"name": "bare", "namespace": "default", "uid": "b"}, "spec": {"containers": [{"name": "c"}]}},
    ]})).unwrap();
    let before = combined.leases().await;
    let check = async |changes: Value, code: u16| {
        let mut body = finalize_body(&pod);
        for (key, value) in changes.as_object().unwrap() {
            body[key] = value.clone();
        }
        let (status, answer) = combined.finalize(&body).await;
        assert_eq!(status, code, "{changes}: {answer}");
        assert_eq!(combined.leases().await, before, "{changes}");
    };

    check(json!({"reservation-id": "forged"}), 409).await;
    check(json!({"gpu-uuid": "a-gpu-1"}), 404).await;
    check(json!({"gpu-uuid": "GPU-ZZZ"}), 404).await;
    check(json!({"gpu-uuid": "../../../a"}), 404).await;
    check(json!({"namespace": "theirs", "uid": "t"}), 409).await;
    check(json!({"uid": "forged"}), 409).await;
    check(json!({"name": "bare", "uid": "b"}), 409).await;
    check(json!({"name": "unknown"}), 404).await;
    assert_eq!(combined.finalize(&finalize_body(&pod)).await.0, 200);
}

#[tokio::test]
async fn a_finalized_reservation_is_not_another_pods() {
    let (combined, pod) = with_a_reservation().await;
    combined.finalize(&finalize_body(&pod)).await;
    combined.cluster.import(&json!({"pods": [
        {"metadata": {"name": "copy", "namespace": "default", "uid": "c", "annotations": pod["metadata"]["annotations"]},
         "spec": {"containers": [{"name": "c"}]}},
    ]})).unwrap();
    let mut body = finalize_body(&pod);
    body["name"] = "copy".into();
    body["uid"] = "c".into();

    let (status, answer) = combined.finalize(&body).await;

    assert_eq!(status, 409, "{answer}");
    assert_eq!(combined.finalize(&finalize_body(&pod)).await.0, 200);
}

#[tokio::test]
async fn a_broken_annotation_is_one_nodes_loss() {
    let mut base64 = labelled("bad64", &[&["x"]]);
    base64["metadata"]["annotations"]["fudo.org/gpu.device.labels"] = "%%%".into();
    let mut no_object = labelled("badjson", &[&["x"]]);
    no_object["metadata"]["annotations"]["fudo.org/gpu.device.labels"] =
        labels(&json!(["x"])).into();
    let mut one_device = labelled("half", &[&["x"], &["x"]]);
    one_device["metadata"]["annotations"]["fudo.org/gpu.device.labels"] =
        labels(&json!({"half-gpu-0": "x", "half-gpu-1": ["fudo.org/gpu.x", "other"], "": ["fudo.org/gpu.x"]})).into();
    let combined = Combined::start(&[base64, no_object, one_device]).await;

    let devices = combined.get("/devices").await;
    let given = combined.mutate("u", &wants("p", &["x"], 1)).await;

    let derived = json!([
        "fudo.org/gpu.a100",
        "fudo.org/gpu.nvidia",
        "fudo.org/gpu.vram-40g"
    ]);
    for uuid in ["bad64-gpu-0", "badjson-gpu-0", "half-gpu-0"] {
        assert_eq!(devices[uuid]["labels"], derived, "{uuid}");
    }
    assert_eq!(given["allowed"], true);
    assert_eq!(combined.leases().await.len(), 1);
    let problems: Vec<String> = combined.scheduler.with_ledger(|ledger| {
        let problems = ledger.label_problems();
        problems
            .map(|(node, problem)| format!("{node}: {problem}"))
            .collect()
    });
    assert_eq!(problems.len(), 4, "{problems:#?}");
    assert!(problems[0].starts_with("bad64: annotation fudo.org/gpu.device.labels is no base64"));
}

#[tokio::test]
async fn a_mutated_pod_is_refused_in_words_that_help() {
    let combined = Combined::start(&[labelled("a", &[&["x"], &["y"]])]).await;
    let check = async |pod: &Value, code: u16, text: &str| {
        let answer = combined.mutate("u", pod).await;
        assert_eq!(answer["allowed"], false);
        assert_eq!(answer["status"]["code"], code, "{answer}");
        let said = answer["status"]["message"].as_str().unwrap();
        assert!(said.contains(text), "{said}");
        assert_eq!(combined.leases().await, Vec::<String>::new());
    };

    check(&wants("p", &["h100"], 1), 429, "no GPUs with requested labels free for pod default/p: no device has the label fudo.org/gpu.h100; devices have fudo.org/gpu.a100, ").await;
    check(
        &wants("p", &["x", "y"], 1),
        429,
        "no device has all of the labels fudo.org/gpu.x, fudo.org/gpu.y",
    )
    .await;
    check(&wants("p", &["a100"], 3), 429, "2 devices match, of which 0 reserved by label, 0 used by other pods, 0 out of service; no node has 3 that are free").await;
    let mut forged = wants("p", &[], 1);
    forged["metadata"]["annotations"]["fudo.org/gpu.reservation-id"] = "forged".into();
    check(&forged, 403, "only the device assigner writes it").await;
    check(&json!({"metadata": 5}), 400, "request.object is no pod").await;
}

#[tokio::test]
async fn a_review_that_is_none_is_answered_as_one() {
    let combined = Combined::start(&[labelled("a", &[&["x"]])]).await;
    let ask = async |body: String| {
        let (status, answer) = Combined::ask(&combined.api, "POST", "/mutate", body).await;
        assert_eq!(status, 200);
        assert_eq!(answer["kind"], "AdmissionReview");
        answer["response"].clone()
    };

    assert_eq!(ask("{nope".into()).await["status"]["code"], 400);
    let wrong = ask(json!({"kind": "Pod", "request": {"uid": "u-k"}}).to_string()).await;
    assert_eq!(
        wrong,
        json!({"uid": "u-k", "allowed": false,
            "status": {"code": 400, "message": "Unexpected request kind: Pod", "reason": "BadRequest"}})
    );
    let mut dry = review("u-dry", &wants("p", &["x"], 1));
    dry["request"]["dryRun"] = true.into();
    assert_eq!(
        ask(dry.to_string()).await,
        json!({"uid": "u-dry", "allowed": true, "status": {"code": 200, "message": "dry-run: no mutation"}})
    );
    assert_eq!(combined.leases().await, Vec::<String>::new());
    assert_eq!(
        ask(review("", &wants("p", &["x"], 1)).to_string()).await["status"]["code"],
        400
    );
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused() {
    let combined = Combined::start(&[labelled("a", &[&["x"]])]).await;
    let long = format!("{{\"namespace\":\"{}\"}}", "x".repeat(9 << 20));

    let (status, answer) = Combined::ask(&combined.ui, "POST", "/finalize", long).await;

    assert_eq!(status, 413, "{answer}");
    assert!(answer["error"].is_string());
}

#[tokio::test]
async fn the_review_form_of_finalize_answers_as_recorded() {
    let (combined, pod) = with_a_reservation().await;
    let ask = async |pod: &Value| {
        let body = json!({"kind": "AdmissionReview", "request": {"uid": "rv", "object": pod}});
        let (status, answer) = combined.finalize(&body).await;
        assert_eq!(status, 200);
        answer["response"].clone()
    };
    let mut wrong = pod.clone();
    wrong["metadata"]["annotations"]["cdi.k8s.io/gpu-assignment"] =
        "nvidia.com/gpu=UUID=GPU-WRONG".into();

    let refused = ask(&wrong).await;
    let done = ask(&pod).await;

    assert_eq!(
        refused,
        json!({"uid": "rv", "allowed": false, "status": {"code": 400, "reason": "BadRequest",
            "message": "pod is not using assigned GPU a-gpu-0 (annotation value: nvidia.com/gpu=UUID=GPU-WRONG)"}})
    );
    assert_eq!(
        done,
        json!({"uid": "rv", "allowed": true, "status": {"code": 200, "message": "reservation finalized"}})
    );
}
