//! The verbs over HTTP, request by request: codes, reasons and the stored result.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test's helpers, too"
)]

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use embedded_cluster::{
    Admission, BoxFuture, Cluster, Options, Review, Status, TokenNeeded, WebhookClient,
    WebhookError, guard,
};
use serde_json::{Value, json};
use tower::ServiceExt;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

async fn send(
    cluster: &Cluster,
    method: &str,
    path: &str,
    kind: &str,
    body: Value,
) -> (u16, Value) {
    let body = if body.is_null() {
        Body::empty()
    } else {
        Body::from(body.to_string())
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind)
        .body(body)
        .unwrap();
    let response = cluster.router().oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

async fn get(cluster: &Cluster, path: &str) -> (u16, Value) {
    send(cluster, "GET", path, JSON, Value::Null).await
}

async fn post(cluster: &Cluster, path: &str, body: Value) -> (u16, Value) {
    send(cluster, "POST", path, JSON, body).await
}

async fn patch(cluster: &Cluster, path: &str, kind: &str, body: Value) -> (u16, Value) {
    send(cluster, "PATCH", path, kind, body).await
}

/// The code and reason of a refusal.
fn refusal(answer: (u16, Value)) -> (u16, String) {
    assert_eq!(answer.1["kind"], "Status", "{answer:?}");
    assert_eq!(answer.1["code"], answer.0);
    (
        answer.0,
        answer.1["reason"].as_str().unwrap_or_default().to_owned(),
    )
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// All events of a watch that ends by itself.
async fn events(cluster: &Cluster, path: &str) -> Vec<Value> {
    let path = format!(
        "{path}{}watch=true&timeoutSeconds=1",
        if path.contains('?') { '&' } else { '?' }
    );
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = cluster.router().oneshot(request).await.unwrap();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let lines = std::str::from_utf8(&bytes).unwrap().lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn words(events: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    events
        .iter()
        .map(|event| {
            format!(
                "{} {}",
                text(&event["type"]),
                text(&event["object"]["metadata"]["name"])
            )
        })
        .collect()
}

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn refusals_have_the_codes_and_reasons_of_kubernetes() {
    let cluster = Cluster::default();
    post(&cluster, PODS, pod("p")).await;

    let cases = [
        (
            get(&cluster, "/api/v1/namespaces/default/pods/none").await,
            404,
            "NotFound",
        ),
        (get(&cluster, "/api/v1/nothings").await, 404, "NotFound"),
        (get(&cluster, "/apis/none/v1").await, 404, "NotFound"),
        (
            get(&cluster, "/api/v1/pods?fieldSelector=spec.odd=1").await,
            400,
            "BadRequest",
        ),
        (
            get(&cluster, "/api/v1/pods?labelSelector=a%20b").await,
            400,
            "BadRequest",
        ),
        (
            get(&cluster, "/api/v1/pods?resourceVersion=99999999").await,
            504,
            "Timeout",
        ),
        (
            get(&cluster, "/api/v1/pods?limit=x").await,
            400,
            "BadRequest",
        ),
        (
            get(&cluster, "/api/v1/pods?continue=zz").await,
            400,
            "BadRequest",
        ),
        (post(&cluster, PODS, pod("p")).await, 409, "AlreadyExists"),
        (post(&cluster, PODS, pod("UPPER")).await, 422, "Invalid"),
        (
            post(&cluster, PODS, json!({"metadata": {}})).await,
            422,
            "Invalid",
        ),
        (post(&cluster, PODS, json!([1])).await, 400, "BadRequest"),
        (
            post(
                &cluster,
                PODS,
                json!({"kind": "Node", "metadata": {"name": "x"}}),
            )
            .await,
            400,
            "BadRequest",
        ),
        (
            post(
                &cluster,
                PODS,
                json!({"metadata": {"name": "x", "namespace": "y"}}),
            )
            .await,
            400,
            "BadRequest",
        ),
        (
            post(
                &cluster,
                PODS,
                json!({"metadata": {"name": "x"}, "spec": {}}),
            )
            .await,
            422,
            "Invalid",
        ),
        (
            post(&cluster, "/api/v1/namespaces/none/pods", pod("p")).await,
            404,
            "NotFound",
        ),
        (
            send(&cluster, "POST", PODS, "text/plain", pod("q")).await,
            415,
            "UnsupportedMediaType",
        ),
        (
            send(&cluster, "PUT", PODS, JSON, pod("q")).await,
            405,
            "MethodNotAllowed",
        ),
        (
            patch(&cluster, &format!("{PODS}/p"), JSON, json!({})).await,
            415,
            "UnsupportedMediaType",
        ),
        (
            patch(
                &cluster,
                &format!("{PODS}/p"),
                JSON_PATCH,
                json!([{"op": "test", "path": "/kind", "value": "x"}]),
            )
            .await,
            422,
            "Invalid",
        ),
        (
            patch(&cluster, &format!("{PODS}/p"), JSON_PATCH, json!({"a": 1})).await,
            400,
            "BadRequest",
        ),
        (
            patch(
                &cluster,
                &format!("{PODS}/p"),
                MERGE,
                json!({"spec": {"schedulerName": "other"}}),
            )
            .await,
            422,
            "Invalid",
        ),
        (
            patch(
                &cluster,
                &format!("{PODS}/p"),
                MERGE,
                json!({"metadata": {"resourceVersion": "1"}}),
            )
            .await,
            409,
            "Conflict",
        ),
        (
            patch(
                &cluster,
                &format!("{PODS}/p"),
                MERGE,
                json!({"metadata": {"uid": "other"}}),
            )
            .await,
            409,
            "Conflict",
        ),
        (
            send(
                &cluster,
                "DELETE",
                "/api/v1/namespaces/kube-system",
                JSON,
                Value::Null,
            )
            .await,
            403,
            "Forbidden",
        ),
    ];

    for (at, (answer, code, reason)) in cases.into_iter().enumerate() {
        assert_eq!(refusal(answer), (code, reason.to_owned()), "case {at}");
    }
}

#[tokio::test]
async fn a_new_pod_has_what_the_server_gives_it() {
    let cluster = Cluster::default();

    let (code, made) = post(&cluster, PODS, json!({
        "metadata": {"generateName": "p-", "resourceVersion": "7"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": "Running"}
    })).await;

    assert_eq!(code, 201);
    assert_eq!(
        made["metadata"]["name"].as_str().unwrap().len(),
        "p-".len() + 5
    );
    assert_eq!(made["metadata"]["generation"], 1);
    assert!(
        made["metadata"]["uid"].is_string() && made["metadata"]["creationTimestamp"].is_string()
    );
    assert_eq!(made["status"]["phase"], "Pending");
    assert_eq!(made["spec"]["schedulerName"], "default-scheduler");
    assert_eq!(
        made["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"],
        "1"
    );
    assert_eq!(made["spec"]["containers"][0]["imagePullPolicy"], "Always");
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let cluster = Cluster::default();

    let (code, made) = post(&cluster, &format!("{PODS}?dryRun=All"), pod("p")).await;

    assert_eq!((code, made["metadata"]["name"].as_str()), (201, Some("p")));
    assert_eq!(get(&cluster, &format!("{PODS}/p")).await.0, 404);
    post(&cluster, PODS, pod("p")).await;
    send(
        &cluster,
        "DELETE",
        &format!("{PODS}/p?dryRun=All"),
        JSON,
        Value::Null,
    )
    .await;
    assert_eq!(get(&cluster, &format!("{PODS}/p")).await.0, 200);
}

#[tokio::test]
async fn update_of_an_old_version_is_a_conflict() {
    let cluster = Cluster::default();
    let (_, mut read) = post(&cluster, PODS, pod("p")).await;
    patch(
        &cluster,
        &format!("{PODS}/p/status"),
        STRATEGIC,
        json!({"status": {"phase": "Running"}}),
    )
    .await;

    assert_eq!(
        refusal(send(&cluster, "PUT", &format!("{PODS}/p"), JSON, read.clone()).await),
        (409, "Conflict".into())
    );
    read["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    read["metadata"]["labels"] = json!({"a": "b"});
    let (code, updated) = send(&cluster, "PUT", &format!("{PODS}/p"), JSON, read).await;

    assert_eq!(code, 200);
    assert_eq!(updated["status"]["phase"], "Running");
    assert_eq!(updated["metadata"]["labels"]["a"], "b");
    assert_eq!(updated["metadata"]["generation"], 1);
}

#[tokio::test]
async fn a_patch_that_changes_nothing_is_no_new_version() {
    let cluster = Cluster::default();
    let (_, made) = post(&cluster, PODS, pod("p")).await;
    let (_, same) = patch(
        &cluster,
        &format!("{PODS}/p"),
        MERGE,
        json!({"spec": {"restartPolicy": "Always"}}),
    )
    .await;
    assert_eq!(
        made["metadata"]["resourceVersion"],
        same["metadata"]["resourceVersion"]
    );
}

#[tokio::test]
async fn binding_merges_its_annotations_and_succeeds_once() {
    let cluster = Cluster::default();
    let (_, made) = post(&cluster, PODS, pod("p")).await;
    let binding = |uid: &Value| {
        json!({
            "metadata": {"name": "p", "uid": uid, "annotations": {"hami.io/vgpu-node": "n1"}},
            "target": {"kind": "Node", "name": "n1"}
        })
    };
    let path = format!("{PODS}/p/binding");

    assert_eq!(
        refusal(post(&cluster, &path, binding(&"other".into())).await),
        (409, "Conflict".into())
    );
    let version = cluster.resource_version();
    assert_eq!(
        post(&cluster, &path, binding(&made["metadata"]["uid"]))
            .await
            .0,
        201
    );

    assert_eq!(cluster.resource_version(), version + 1);
    let (_, bound) = get(&cluster, &format!("{PODS}/p")).await;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["metadata"]["annotations"]["hami.io/vgpu-node"], "n1");
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    assert_eq!(
        refusal(post(&cluster, &path, binding(&Value::Null)).await),
        (409, "Conflict".into())
    );
    let (code, _) = post(
        &cluster,
        "/api/v1/namespaces/default/bindings",
        binding(&Value::Null),
    )
    .await;
    assert_eq!(code, 409);
}

#[tokio::test]
async fn of_many_binders_one_wins() {
    let cluster = Cluster::default();
    post(&cluster, PODS, pod("p")).await;
    let bind = |node: usize| {
        let cluster = cluster.clone();
        async move {
            let binding = json!({"target": {"name": format!("n{node}")}});
            post(&cluster, &format!("{PODS}/p/binding"), binding)
                .await
                .0
        }
    };
    let codes: Vec<u16> =
        futures_util::future::join_all((0..20).map(|node| tokio::spawn(bind(node))))
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 1);
    assert_eq!(codes.iter().filter(|code| **code == 409).count(), 19);
}

#[tokio::test]
async fn pages_of_a_list_are_of_one_version() {
    let cluster = Cluster::default();
    for name in ["a", "b", "c", "d", "e"] {
        post(&cluster, PODS, pod(name)).await;
    }
    let names = |list: &Value| -> Vec<String> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };

    let (_, first) = get(&cluster, &format!("{PODS}?limit=2")).await;
    send(&cluster, "DELETE", &format!("{PODS}/d"), JSON, Value::Null).await;
    post(&cluster, PODS, pod("cc")).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, rest) = get(&cluster, &format!("{PODS}?limit=9&continue={token}")).await;

    assert_eq!(
        (
            names(&first),
            first["metadata"]["remainingItemCount"].as_i64()
        ),
        (vec!["a".into(), "b".into()], Some(3))
    );
    assert_eq!(names(&rest), ["c", "d", "e"]);
    assert_eq!(
        rest["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let (_, now) = get(&cluster, PODS).await;
    assert_eq!(names(&now), ["a", "b", "c", "cc", "e"]);
}

#[tokio::test(start_paused = true)]
async fn watch_reports_changes_since_a_version_and_lost_matches() {
    let cluster = Cluster::default();
    let version = cluster.resource_version();
    post(&cluster, PODS, pod("a")).await;
    post(
        &cluster,
        &format!("{PODS}/a/binding"),
        json!({"target": {"name": "n1"}}),
    )
    .await;
    patch(
        &cluster,
        &format!("{PODS}/a/status"),
        MERGE,
        json!({"status": {"phase": "Succeeded"}}),
    )
    .await;
    send(&cluster, "DELETE", &format!("{PODS}/a"), JSON, Value::Null).await;

    let all = events(&cluster, &format!("/api/v1/pods?resourceVersion={version}")).await;
    assert_eq!(
        words(&all),
        ["ADDED a", "MODIFIED a", "MODIFIED a", "DELETED a"]
    );
    let unbound = events(
        &cluster,
        &format!("/api/v1/pods?resourceVersion={version}&fieldSelector=spec.nodeName="),
    )
    .await;
    assert_eq!(words(&unbound), ["ADDED a", "DELETED a"]);
    let bound = events(
        &cluster,
        &format!("/api/v1/pods?resourceVersion={version}&fieldSelector=spec.nodeName=n1"),
    )
    .await;
    assert_eq!(words(&bound), ["ADDED a", "MODIFIED a", "DELETED a"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_begins_with_what_there_is_and_marks_the_end_of_that() {
    let cluster = Cluster::default();
    post(&cluster, PODS, pod("a")).await;

    assert_eq!(words(&events(&cluster, PODS).await), ["ADDED a"]);
    let list = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let streamed = events(&cluster, &format!("{PODS}?{list}")).await;

    assert_eq!(words(&streamed)[..2], ["ADDED a", "BOOKMARK "]);
    assert_eq!(
        streamed[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert_eq!(
        streamed[1]["object"]["metadata"]["resourceVersion"],
        cluster.resource_version().to_string()
    );
    let (code, _) = get(
        &cluster,
        &format!("{PODS}?watch=true&sendInitialEvents=true"),
    )
    .await;
    assert_eq!(code, 422);
}

#[tokio::test(start_paused = true)]
async fn watch_that_fell_behind_gets_version_expired() {
    let cluster = Cluster::new(Options {
        remembered_changes: 3,
        ..Options::default()
    });
    let version = cluster.resource_version();
    for name in ["a", "b", "c", "d", "e"] {
        post(&cluster, PODS, pod(name)).await;
    }

    let told = events(&cluster, &format!("{PODS}?resourceVersion={version}")).await;

    assert_eq!(
        (
            told.len(),
            told[0]["type"].as_str(),
            told[0]["object"]["code"].as_i64()
        ),
        (1, Some("ERROR"), Some(410))
    );
    assert_eq!(told[0]["object"]["reason"], "Expired");
    // Changes of other kinds do not push pods out of the memory.
    let version = cluster.resource_version();
    for name in ["a", "b", "c", "d", "e"] {
        post(
            &cluster,
            "/api/v1/nodes",
            json!({"metadata": {"name": name}}),
        )
        .await;
    }
    assert_eq!(
        events(&cluster, &format!("{PODS}?resourceVersion={version}"))
            .await
            .len(),
        0
    );
}

#[tokio::test]
async fn finalizers_and_preconditions_hold_a_deletion() {
    let cluster = Cluster::default();
    let mut held = pod("p");
    held["metadata"]["finalizers"] = json!(["a.io/b"]);
    post(&cluster, PODS, held).await;
    let path = format!("{PODS}/p");

    let other = json!({"preconditions": {"uid": "other"}});
    assert_eq!(
        refusal(send(&cluster, "DELETE", &path, JSON, other).await),
        (409, "Conflict".into())
    );
    let (code, marked) = send(&cluster, "DELETE", &path, JSON, Value::Null).await;
    assert_eq!(code, 200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(get(&cluster, &path).await.0, 200);
    patch(
        &cluster,
        &path,
        MERGE,
        json!({"metadata": {"finalizers": null}}),
    )
    .await;
    assert_eq!(get(&cluster, &path).await.0, 404);
}

#[tokio::test]
async fn where_a_kubelet_runs_a_bound_pod_waits_for_it() {
    let cluster = Cluster::new(Options {
        graceful_deletion: true,
        ..Options::default()
    });
    post(&cluster, PODS, pod("p")).await;
    post(
        &cluster,
        &format!("{PODS}/p/binding"),
        json!({"target": {"name": "n1"}}),
    )
    .await;
    let path = format!("{PODS}/p");

    let (_, marked) = send(&cluster, "DELETE", &path, JSON, Value::Null).await;
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(get(&cluster, &path).await.0, 200);
    send(
        &cluster,
        "DELETE",
        &format!("{path}?gracePeriodSeconds=0"),
        JSON,
        Value::Null,
    )
    .await;
    assert_eq!(get(&cluster, &path).await.0, 404);
}

#[tokio::test]
async fn a_namespace_goes_with_all_that_is_in_it() {
    let cluster = Cluster::default();
    post(
        &cluster,
        "/api/v1/namespaces",
        json!({"metadata": {"name": "x"}}),
    )
    .await;
    post(&cluster, "/api/v1/namespaces/x/pods", pod("p")).await;
    let mut held = json!({"metadata": {"name": "c", "finalizers": ["a.io/b"]}});
    post(&cluster, "/api/v1/namespaces/x/configmaps", held.take()).await;

    send(
        &cluster,
        "DELETE",
        "/api/v1/namespaces/x",
        JSON,
        Value::Null,
    )
    .await;

    assert_eq!(get(&cluster, "/api/v1/namespaces/x/pods/p").await.0, 404);
    let (_, namespace) = get(&cluster, "/api/v1/namespaces/x").await;
    assert_eq!(namespace["status"]["phase"], "Terminating");
    assert_eq!(
        refusal(post(&cluster, "/api/v1/namespaces/x/pods", pod("q")).await),
        (403, "Forbidden".into())
    );
    patch(
        &cluster,
        "/api/v1/namespaces/x/configmaps/c",
        MERGE,
        json!({"metadata": {"finalizers": null}}),
    )
    .await;
    assert_eq!(get(&cluster, "/api/v1/namespaces/x").await.0, 404);
}

#[tokio::test]
async fn an_eviction_asks_the_disruption_budget() {
    let cluster = Cluster::default();
    for name in ["a", "b"] {
        let mut pod = pod(name);
        pod["metadata"]["labels"] = json!({"app": "x"});
        post(&cluster, PODS, pod).await;
        patch(
            &cluster,
            &format!("{PODS}/{name}/status"),
            MERGE,
            json!({"status": {"phase": "Running"}}),
        )
        .await;
    }
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}});
    post(
        &cluster,
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        budget,
    )
    .await;
    let evict = |name: &str| {
        let (cluster, path) = (cluster.clone(), format!("{PODS}/{name}/eviction"));
        async move {
            post(
                &cluster,
                &path,
                json!({"apiVersion": "policy/v1", "kind": "Eviction"}),
            )
            .await
        }
    };

    assert_eq!(evict("a").await.0, 201);
    assert_eq!(refusal(evict("b").await), (429, "TooManyRequests".into()));
    assert_eq!(get(&cluster, &format!("{PODS}/a")).await.0, 404);
}

#[tokio::test]
async fn ephemeral_containers_are_added_by_their_own_subresource() {
    let cluster = Cluster::default();
    post(&cluster, PODS, pod("p")).await;
    let containers = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i"}], "schedulerName": "x"}});

    let (code, changed) = patch(
        &cluster,
        &format!("{PODS}/p/ephemeralcontainers"),
        STRATEGIC,
        containers,
    )
    .await;

    assert_eq!(
        (
            code,
            changed["spec"]["ephemeralContainers"][0]["name"].as_str()
        ),
        (200, Some("d"))
    );
    assert_eq!(changed["spec"]["schedulerName"], "default-scheduler");
}

#[tokio::test]
async fn server_side_apply_owns_fields_and_reports_conflicts() {
    let cluster = Cluster::default();
    let path = |manager: &str| {
        format!("/apis/apps/v1/namespaces/default/deployments/d?fieldManager={manager}")
    };
    let apply = |manager: &str, spec: Value| {
        let (cluster, path) = (cluster.clone(), path(manager));
        async move {
            let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec});
            patch(&cluster, &path, APPLY, object).await
        }
    };

    let (code, made) = apply("one", json!({"replicas": 1, "paused": true})).await;
    assert_eq!(
        (
            code,
            made["metadata"]["managedFields"][0]["manager"].as_str()
        ),
        (201, Some("one"))
    );
    let (_, same) = apply("one", json!({"replicas": 1, "paused": true})).await;
    assert_eq!(
        same["metadata"]["resourceVersion"],
        made["metadata"]["resourceVersion"]
    );
    let refused = apply("two", json!({"replicas": 2})).await;
    assert_eq!(refused.1["details"]["causes"][0]["field"], ".spec.replicas");
    assert_eq!(refusal(refused), (409, "Conflict".into()));
    // A field that two managers set to the same value is shared, and stays when one of them gives it up.
    apply("two", json!({"replicas": 1})).await;
    let (_, left) = apply("one", json!({})).await;
    assert_eq!(
        (&left["spec"]["replicas"], &left["spec"]["paused"]),
        (&json!(1), &Value::Null)
    );
    // A patch takes fields over; after that the applier must force.
    patch(
        &cluster,
        &path("kubectl"),
        MERGE,
        json!({"spec": {"replicas": 5}}),
    )
    .await;
    assert_eq!(apply("two", json!({"replicas": 1})).await.0, 409);
    let (code, forced) = patch(&cluster, &format!("{}&force=true", path("two")), APPLY,
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 1}})).await;
    assert_eq!((code, &forced["spec"]["replicas"]), (200, &json!(1)));
}

#[tokio::test]
async fn applied_containers_are_owned_one_by_one() {
    let cluster = Cluster::default();
    let path = "/apis/apps/v1/namespaces/default/deployments/d?fieldManager=";
    let with = |containers: Value| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"template": {"spec": {"containers": containers}}}})
    };

    patch(
        &cluster,
        &format!("{path}one"),
        APPLY,
        with(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}])),
    )
    .await;
    let (code, _) = patch(
        &cluster,
        &format!("{path}two"),
        APPLY,
        with(json!([{"name": "c", "image": "2"}])),
    )
    .await;
    assert_eq!(code, 200);
    let (_, left) = patch(
        &cluster,
        &format!("{path}one"),
        APPLY,
        with(json!([{"name": "b", "image": "1"}])),
    )
    .await;

    assert_eq!(
        left["spec"]["template"]["spec"]["containers"],
        json!([{"name": "b", "image": "1"}, {"name": "c", "image": "2"}])
    );
}

#[tokio::test]
async fn a_definition_brings_a_resource_and_takes_it_along() {
    let cluster = Cluster::default();
    let definition = json!({
        "metadata": {"name": "quotas.hcs.io"},
        "spec": {"group": "hcs.io", "scope": "Namespaced", "names": {"plural": "quotas", "kind": "Quota", "shortNames": ["hq"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1}}},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}]}
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, made) = post(&cluster, definitions, definition).await;
    assert_eq!(code, 201, "{made}");
    assert!(
        made["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|condition| condition["type"] == "Established")
    );

    let objects = "/apis/hcs.io/v1/namespaces/default/quotas";
    let object =
        json!({"metadata": {"name": "q"}, "spec": {"size": 2, "odd": 1}, "status": {"x": 1}});
    let (code, made) = post(&cluster, objects, object).await;
    assert_eq!(
        (code, &made["spec"], &made["status"]),
        (201, &json!({"size": 2}), &Value::Null)
    );
    assert_eq!(
        patch(
            &cluster,
            &format!("{objects}/q"),
            MERGE,
            json!({"spec": {"size": 0}})
        )
        .await
        .0,
        422
    );
    let (_, changed) = patch(
        &cluster,
        &format!("{objects}/q/status"),
        MERGE,
        json!({"status": {"x": 2}, "spec": {"size": 9}}),
    )
    .await;
    assert_eq!(
        (
            &changed["spec"]["size"],
            &changed["status"]["x"],
            &changed["metadata"]["generation"]
        ),
        (&json!(2), &json!(2), &json!(1))
    );
    assert_eq!(
        patch(&cluster, &format!("{objects}/q"), STRATEGIC, json!({}))
            .await
            .0,
        415
    );
    assert_eq!(
        get(&cluster, "/apis/hcs.io/v1").await.1["resources"][0]["shortNames"][0],
        "hq"
    );
    send(
        &cluster,
        "DELETE",
        &format!("{definitions}/quotas.hcs.io"),
        JSON,
        Value::Null,
    )
    .await;
    assert_eq!(get(&cluster, objects).await.0, 404);
}

#[tokio::test]
async fn events_are_seen_by_both_groups_in_their_own_words() {
    let cluster = Cluster::default();
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "note": "bound",
        "regarding": {"kind": "Pod", "name": "p"}, "reason": "Scheduled", "reportingController": "vgpu", "eventTime": "2026-01-01T00:00:00.000000Z"});

    assert_eq!(
        post(
            &cluster,
            "/apis/events.k8s.io/v1/namespaces/default/events",
            event
        )
        .await
        .0,
        201
    );

    let (_, list) = get(
        &cluster,
        "/api/v1/events?fieldSelector=involvedObject.name=p",
    )
    .await;
    assert_eq!(
        (
            &list["items"][0]["message"],
            &list["items"][0]["apiVersion"]
        ),
        (&json!("bound"), &json!("v1"))
    );
    let (_, new) = get(
        &cluster,
        "/apis/events.k8s.io/v1/namespaces/default/events/e",
    )
    .await;
    assert_eq!(
        (&new["note"], &new["regarding"]["name"]),
        (&json!("bound"), &json!("p"))
    );
}

struct Defaults;

impl Admission for Defaults {
    fn mutate<'a>(&'a self, review: &'a Review) -> BoxFuture<'a, Result<Option<Value>, Status>> {
        Box::pin(async move {
            let Some(mut object) = review.object.clone().filter(|_| review.resource == "pods")
            else {
                return Ok(None);
            };
            object["metadata"]["labels"]["seen"] = review.operation.as_str().into();
            Ok(Some(object))
        })
    }

    fn validate<'a>(&'a self, review: &'a Review) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if review.name == "bad" {
                Err(Status::denied(403, "no such name"))
            } else {
                Ok(())
            }
        })
    }
}

#[tokio::test]
async fn a_hook_in_this_process_changes_and_refuses() {
    let cluster = Cluster::default();
    cluster.admit_with(Arc::new(Defaults));
    let mut labelled = pod("p");
    labelled["metadata"]["labels"] = json!({});

    let (_, made) = post(&cluster, PODS, labelled).await;

    assert_eq!(made["metadata"]["labels"]["seen"], "CREATE");
    assert_eq!(
        refusal(
            post(
                &cluster,
                "/api/v1/nodes",
                json!({"metadata": {"name": "bad"}})
            )
            .await
        ),
        (403, "Forbidden".into())
    );
}

/// Answers like a webhook, and fails if the path says so.
struct Webhook;

impl WebhookClient for Webhook {
    fn call<'a>(
        &'a self,
        webhook: &'a Value,
        review: Value,
    ) -> BoxFuture<'a, Result<Option<Value>, WebhookError>> {
        Box::pin(async move {
            let uid = &review["request"]["uid"];
            // [{"op":"add","path":"/spec/schedulerName","value":"hami-scheduler"}]
            let patch = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL3NwZWMvc2NoZWR1bGVyTmFtZSIsInZhbHVlIjoiaGFtaS1zY2hlZHVsZXIifV0=";
            match webhook["clientConfig"]["url"].as_str() {
                Some("https://patches") => Ok(Some(
                    json!({"response": {"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": patch}}),
                )),
                Some("https://denies") => Ok(Some(
                    json!({"response": {"uid": uid, "allowed": false, "status": {"code": 403, "message": "container c is privileged"}}}),
                )),
                _ => Err(WebhookError::NoAnswer("connection refused".into())),
            }
        })
    }
}

#[tokio::test]
async fn webhooks_are_called_by_their_rules_and_failure_policies() {
    let cluster = Cluster::default();
    cluster.call_webhooks_with(Arc::new(Webhook));
    let register = |kind: &'static str,
                    url: &'static str,
                    policy: &'static str,
                    namespace: &'static str| {
        let cluster = cluster.clone();
        async move {
            let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations");
            let name = format!(
                "{}-{}",
                policy.to_lowercase(),
                url.rsplit('/').next().unwrap()
            );
            let answer = post(&cluster, &path, json!({"metadata": {"name": name}, "webhooks": [{
                "name": "a.b.c", "clientConfig": {"url": url}, "failurePolicy": policy, "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]}]})).await;
            assert_eq!(answer.0, 201, "{answer:?}");
        }
    };
    for namespace in ["a", "b", "c"] {
        post(
            &cluster,
            "/api/v1/namespaces",
            json!({"metadata": {"name": namespace}}),
        )
        .await;
    }
    register("mutating", "https://patches", "Fail", "a").await;
    register("mutating", "https://nowhere", "Ignore", "a").await;
    register("validating", "https://denies", "Fail", "b").await;
    register("validating", "https://nowhere", "Fail", "c").await;

    let (_, patched) = post(&cluster, "/api/v1/namespaces/a/pods", pod("p")).await;
    assert_eq!(patched["spec"]["schedulerName"], "hami-scheduler");
    let denied = post(&cluster, "/api/v1/namespaces/b/pods", pod("p")).await;
    assert_eq!(
        denied.1["message"],
        "admission webhook \"a.b.c\" denied the request: container c is privileged"
    );
    assert_eq!(refusal(denied), (403, "Forbidden".into()));
    assert_eq!(
        refusal(post(&cluster, "/api/v1/namespaces/c/pods", pod("p")).await),
        (500, "InternalError".into())
    );
    assert_eq!(post(&cluster, PODS, pod("p")).await.0, 201);
}

#[tokio::test]
async fn a_state_goes_in_and_comes_out_alike() {
    let cluster = Cluster::default();
    let state = json!({
        "nodes": [{"metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-register": "x"}}, "status": {"allocatable": {"nvidia.com/gpu": "10"}}}],
        "pods": [{"metadata": {"name": "p", "namespace": "team", "uid": "u1"}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Running"}}],
        "resourceQuotas": [{"metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "1000"}}}]
    });

    cluster.import(&state).unwrap();
    let out = cluster.export();

    assert_eq!(out["pods"][0]["spec"]["nodeName"], "n1");
    assert_eq!(out["pods"][0]["metadata"]["uid"], "u1");
    assert_eq!(out["pods"][0]["status"]["phase"], "Running");
    assert_eq!(
        out["resourceQuotas"][0]["spec"],
        state["resourceQuotas"][0]["spec"]
    );
    assert_eq!(out["nodes"][0]["status"], state["nodes"][0]["status"]);
    assert_eq!(get(&cluster, "/api/v1/namespaces/team").await.0, 200);
    let again = Cluster::default();
    again.import(&out).unwrap();
    assert_eq!(again.export(), out);
    // All or nothing.
    let broken = json!({"nodes": [{"metadata": {"name": "n2"}}], "pods": [{"metadata": {"name": "p2"}, "spec": {"containers": 1}}]});
    assert!(cluster.import(&broken).is_err());
    assert_eq!(get(&cluster, "/api/v1/nodes/n2").await.0, 404);
    assert!(cluster.import(&state).is_err());
}

#[tokio::test]
async fn bodies_that_are_too_large_or_broken_are_refused() {
    let cluster = Cluster::new(Options {
        body_limit: 1000,
        ..Options::default()
    });
    let send = |kind: &'static str, body: Vec<u8>| {
        let router = cluster.router();
        async move {
            let request = Request::post(PODS)
                .header("content-type", kind)
                .body(Body::from(body))
                .unwrap();
            router.oneshot(request).await.unwrap().status().as_u16()
        }
    };
    assert_eq!(send(JSON, vec![b'x'; 1001]).await, 413);
    assert_eq!(send(JSON, vec![b'['; 900]).await, 400);
    assert_eq!(send(JSON, vec![0xff, 0xfe]).await, 400);
    assert_eq!(send(JSON, Vec::new()).await, 400);
    assert_eq!(
        send(
            "application/yaml",
            b"metadata: {name: made}\nspec: {containers: [{name: c, image: i}]}".to_vec()
        )
        .await,
        201
    );
    assert_eq!(send("application/yaml", b"a: [".to_vec()).await, 400);
    assert_eq!(Options::default().body_limit, 64 << 20);
}

#[tokio::test]
async fn other_addresses_than_loopback_need_a_token() {
    let open = "127.0.0.1:1".parse().unwrap();
    let far = "0.0.0.0:1".parse().unwrap();
    let cluster = Cluster::default();
    assert_eq!(
        guard(cluster.router(), far, None).map(drop),
        Err(TokenNeeded(far))
    );
    assert!(guard(cluster.router(), open, None).is_ok());

    let guarded = guard(cluster.router(), far, Some("secret")).unwrap();
    let ask = |header: &'static str| {
        let request = Request::get("/api/v1/nodes")
            .header("authorization", header)
            .body(Body::empty())
            .unwrap();
        let router = guarded.clone();
        async move { router.oneshot(request).await.unwrap().status().as_u16() }
    };
    assert_eq!(ask("Bearer secret").await, 200);
    assert_eq!(ask("Bearer other!").await, 401);
    assert_eq!(ask("").await, 401);
    // A browser's prompt: any user, with the token as password.
    assert_eq!(ask("Basic YW55OnNlY3JldA==").await, 200);
    assert_eq!(ask("Basic YW55Om90aGVy").await, 401);
    assert_eq!(ask("Basic c2VjcmV0").await, 401);
    let page = Request::get("/").header("accept", "text/html,*/*");
    let page = page.body(Body::empty()).unwrap();
    let refused = guarded.clone().oneshot(page).await.unwrap();
    assert_eq!(refused.status(), 401);
    let prompt = refused.headers()["www-authenticate"].to_str().unwrap();
    assert!(prompt.starts_with("Basic "), "{prompt}");
}

#[tokio::test]
async fn amounts_that_are_no_quantities_are_refused_with_their_field() {
    const NODES: &str = "/api/v1/nodes";
    let cluster = Cluster::default();
    let node =
        |amounts: Value| json!({ "metadata": { "name": "n" }, "status": { "capacity": amounts } });
    let message = |answer: &Value| answer["message"].as_str().unwrap_or_default().to_owned();
    for (amounts, code, said) in [
        (json!({ "cpu": "abc" }), 400, "status.capacity[cpu]"),
        (json!({ "cpu": "" }), 400, "quantities must match"),
        (json!({ "cpu": true }), 400, "status.capacity[cpu]"),
        (json!([]), 400, "status.capacity"),
        (
            json!({ "cpu": "-1" }),
            422,
            "must be greater than or equal to 0",
        ),
        (
            json!({ "example.com/gpu": "500m" }),
            422,
            "status.capacity[example.com/gpu]",
        ),
        (json!({ "pods": "1.5" }), 422, "must be an integer"),
    ] {
        let (status, answer) = post(&cluster, NODES, node(amounts.clone())).await;
        assert_eq!(status, code, "{amounts}");
        assert!(message(&answer).contains(said), "{}", message(&answer));
    }
    let mut wrong = pod("p");
    wrong["spec"]["containers"][0]["resources"] = json!({ "limits": { "memory": "1Gb" } });
    let (status, answer) = post(&cluster, PODS, wrong).await;
    assert_eq!(status, 400);
    let path = "spec.containers[0].resources.";
    assert!(message(&answer).contains(path), "{}", message(&answer));
    let right = json!({ "cpu": 4, "memory": "16Gi", "pods": "1e2", "hugepages-2Mi": "0", "example.com/gpu": "2k" });
    assert_eq!(post(&cluster, NODES, node(right)).await.0, 201);
    let patched = patch(
        &cluster,
        "/api/v1/nodes/n/status",
        "application/merge-patch+json",
        json!({ "status": { "allocatable": { "cpu": "1 core" } } }),
    )
    .await;
    assert_eq!(patched.0, 400);
}

#[tokio::test]
async fn a_table_is_made_for_those_who_ask() {
    let cluster = Cluster::default();
    post(&cluster, PODS, pod("p")).await;
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let request = Request::get(PODS)
        .header("accept", accept)
        .body(Body::empty())
        .unwrap();
    let response = cluster.router().oneshot(request).await.unwrap();
    let table: Value =
        serde_json::from_slice(&to_bytes(response.into_body(), usize::MAX).await.unwrap()).unwrap();
    assert_eq!(table["kind"], "Table");
    assert_eq!(
        table["rows"][0]["cells"].as_array().unwrap()[..3],
        [json!("p"), json!("0/1"), json!("Pending")]
    );
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
}
