//! Any request gets a valid answer: never a panic, never a 500, and the server keeps running.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test's helpers, too"
)]

use axum::body::{Body, to_bytes};
use axum::http::Request;
use embedded_cluster::Cluster;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tower::ServiceExt;

/// Words that have a meaning somewhere, so that random input gets far.
fn word() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "metadata",
        "name",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "spec",
        "status",
        "containers",
        "env",
        "ports",
        "conditions",
        "type",
        "nodeName",
        "managedFields",
        "fieldsV1",
        "f:spec",
        "k:{\"name\":\"c\"}",
        "manager",
        "operation",
        "webhooks",
        "rules",
        "clientConfig",
        "versions",
        "schema",
        "openAPIV3Schema",
        "names",
        "plural",
        "kind",
        "group",
        "apiVersion",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$deleteFromPrimitiveList/finalizers",
        "delete",
        "replace",
        "p",
        "c",
        "d",
        "target",
        "op",
        "path",
        "value",
        "add",
        "/metadata/labels",
        "uid",
        "resourceVersion",
        "generateName",
        "resources",
        "limits",
        "replicas",
        "data",
        "stringData",
        "deletionTimestamp",
        "priorityClassName",
        "volumes",
        "tolerations",
        "v1",
        "Pod",
    ]);
    prop_oneof![9 => known.prop_map(str::to_owned), 1 => ".{0,6}"]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((word(), inner), 0..5)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// A random value merged over a valid object.
fn object() -> impl Strategy<Value = Value> {
    let good = prop::sample::select(vec![
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": ["a/b"]}}),
        json!({"metadata": {"name": "d.g"}, "spec": {"group": "g", "scope": "Cluster", "names": {"plural": "d", "kind": "D"}, "versions": [{"name": "v1", "served": true, "storage": true}]}}),
        json!({"metadata": {"name": "w"}, "webhooks": [{"name": "a"}]}),
        json!({"target": {"name": "n"}}),
        json!([]),
    ]);
    (good, value(), any::<bool>()).prop_map(|(mut good, odd, over)| match (&mut good, odd) {
        (Value::Object(_), odd) if over => {
            json_patch::merge(&mut good, &odd);
            good
        }
        (_, odd) => {
            if over {
                good
            } else {
                odd
            }
        }
    })
}

fn path() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "/api/v1/namespaces/default/pods",
        "/api/v1/namespaces/default/pods/p",
        "/api/v1/namespaces/default/pods/p/status",
        "/api/v1/namespaces/default/pods/p/binding",
        "/api/v1/namespaces/default/pods/p/eviction",
        "/api/v1/namespaces/default/pods/p/ephemeralcontainers",
        "/api/v1/namespaces/default/pods/p/resize",
        "/api/v1/nodes",
        "/api/v1/nodes/p",
        "/api/v1/namespaces",
        "/api/v1/namespaces/p",
        "/api/v1/namespaces/p/finalize",
        "/api/v1/namespaces/default/events",
        "/apis/events.k8s.io/v1/namespaces/default/events/p",
        "/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/secrets/p",
        "/apis/apps/v1/namespaces/default/deployments",
        "/apis/apps/v1/namespaces/default/deployments/p",
        "/apis/apps/v1/namespaces/default/deployments/p/scale",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/d.g",
        "/apis/g/v1/d",
        "/apis/g/v1/d/p",
        "/apis/g/v1/d/p/status",
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        "/api",
        "/apis/g",
        "/version",
        "/openapi/v3",
        "/openapi/v3/api/v1",
    ]);
    prop_oneof![12 => known.prop_map(str::to_owned), 1 => "/api/v1/[a-z/%.]{0,12}", 1 => "/[a-z/]{0,12}"]
}

fn query() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "",
        "?dryRun=All",
        "?limit=1",
        "?continue=312f61",
        "?fieldManager=m",
        "?fieldManager=m&force=true",
        "?fieldManager=n",
        "?labelSelector=a%20in%20(b",
        "?fieldSelector=metadata.name%3Dp",
        "?resourceVersion=3",
        "?resourceVersion=3&resourceVersionMatch=Exact",
        "?gracePeriodSeconds=0",
        "?propagationPolicy=Foreground",
    ]);
    prop_oneof![6 => known.prop_map(str::to_owned), 1 => "\\?[a-zA-Z=&%0-9]{0,16}"]
}

#[derive(Debug, Clone)]
struct Sent {
    method: &'static str,
    uri: String,
    kind: &'static str,
    accept: &'static str,
    body: Vec<u8>,
}

fn sent() -> impl Strategy<Value = Sent> {
    let body = prop_oneof![
        8 => object().prop_map(|object| object.to_string().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..64),
        1 => Just(Vec::new()),
    ];
    let kind = prop::sample::select(vec![
        "application/json",
        "application/json",
        "application/yaml",
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "text/plain",
        "application/vnd.kubernetes.protobuf",
    ]);
    let accept = prop::sample::select(vec![
        "application/json",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "*/*",
    ]);
    let method = prop::sample::select(vec![
        "GET", "POST", "POST", "PUT", "PATCH", "PATCH", "DELETE",
    ]);
    (method, path(), query(), kind, accept, body).prop_map(
        |(method, path, query, kind, accept, body)| Sent {
            method,
            uri: format!("{path}{query}"),
            kind,
            accept,
            body,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_requests_are_answered(requests in prop::collection::vec(sent(), 1..24)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let cluster = Cluster::default();
            let good = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
            let first = Request::post("/api/v1/namespaces/default/pods").body(Body::from(good.to_string())).unwrap();
            assert_eq!(cluster.router().oneshot(first).await.unwrap().status(), 201);
            for sent in requests {
                let Ok(request) = Request::builder()
                    .method(sent.method)
                    .uri(&sent.uri)
                    .header("content-type", sent.kind)
                    .header("accept", sent.accept)
                    .body(Body::from(sent.body.clone()))
                else { continue };
                let response = cluster.router().oneshot(request).await.unwrap();
                let code = response.status().as_u16();
                let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
                assert_ne!(code, 500, "{sent:?}: {}", String::from_utf8_lossy(&body));
                let answer = serde_json::from_slice::<Value>(&body);
                assert!(answer.is_ok() || code == 404 || code == 405, "{sent:?} {code}");
            }
            drop(cluster.export());
        });
    }
}
