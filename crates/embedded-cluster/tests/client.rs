//! kube-rs, over HTTP, against the embedded cluster.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test's helpers, too"
)]

use crate::support;

use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod};
use kube::api::{
    Api, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use serde_json::json;
use support::{Served, node, pod};

#[tokio::test]
async fn a_pod_is_made_bound_watched_and_deleted() {
    let served = Served::start().await;
    let nodes: Api<Node> = Api::all(served.client());
    let pods: Api<Pod> = Api::namespaced(served.client(), "default");
    nodes
        .create(&PostParams::default(), &node("n1"))
        .await
        .unwrap();

    let made = pods
        .create(&PostParams::default(), &pod("p1"))
        .await
        .unwrap();
    let version = made.metadata.resource_version.clone().unwrap();
    let mut events = pods
        .watch(&WatchParams::default(), &version)
        .await
        .unwrap()
        .boxed();
    let binding = Binding {
        metadata: ObjectMeta {
            name: Some("p1".into()),
            annotations: Some([("hami.io/vgpu-node".to_owned(), "n1".to_owned())].into()),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            kind: Some("Node".into()),
            name: Some("n1".into()),
            ..ObjectReference::default()
        },
    };
    let _: serde_json::Value = pods
        .create_subresource("binding", "p1", &PostParams::default(), &binding)
        .await
        .unwrap();

    let Some(WatchEvent::Modified(bound)) = events.try_next().await.unwrap() else {
        panic!("no event")
    };
    assert_eq!(bound.spec.unwrap().node_name.as_deref(), Some("n1"));
    assert_eq!(
        bound.metadata.annotations.unwrap()["hami.io/vgpu-node"],
        "n1"
    );
    let again = pods
        .create_subresource::<_, serde_json::Value>(
            "binding",
            "p1",
            &PostParams::default(),
            &binding,
        )
        .await;
    let Err(kube::Error::Api(status)) = again else {
        panic!("bound twice")
    };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    let on_n1 = pods
        .list(&ListParams::default().fields("spec.nodeName=n1"))
        .await
        .unwrap();
    assert_eq!(on_n1.items.len(), 1);
    pods.delete("p1", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    assert!(matches!(
        events.try_next().await.unwrap(),
        Some(WatchEvent::Deleted(_))
    ));
    assert!(pods.get_opt("p1").await.unwrap().is_none());
}

#[tokio::test]
async fn patches_of_every_kind_change_what_they_name() {
    let served = Served::start().await;
    let pods: Api<Pod> = Api::namespaced(served.client(), "default");
    pods.create(&PostParams::default(), &pod("p1"))
        .await
        .unwrap();
    let params = PatchParams::default();

    pods.patch(
        "p1",
        &params,
        &Patch::Merge(json!({"metadata": {"annotations": {"a": "1"}}})),
    )
    .await
    .unwrap();
    pods.patch(
        "p1",
        &params,
        &Patch::Strategic(json!({"metadata": {"labels": {"b": "2"}}})),
    )
    .await
    .unwrap();
    let operations = serde_json::from_value(
        json!([{"op": "add", "path": "/metadata/annotations/c", "value": "3"}]),
    )
    .unwrap();
    let patched = pods
        .patch("p1", &params, &Patch::<()>::Json(operations))
        .await
        .unwrap();

    let annotations = patched.metadata.annotations.unwrap();
    assert_eq!(
        (annotations["a"].as_str(), annotations["c"].as_str()),
        ("1", "3")
    );
    assert_eq!(patched.metadata.labels.unwrap()["b"], "2");
}

#[tokio::test]
async fn a_reflector_follows_pods_by_streamed_lists_and_by_pages() {
    let served = Served::start().await;
    let pods: Api<Pod> = Api::namespaced(served.client(), "default");
    pods.create(&PostParams::default(), &pod("p1"))
        .await
        .unwrap();
    for config in [
        kube::runtime::watcher::Config::default().streaming_lists(),
        kube::runtime::watcher::Config::default().page_size(1),
    ] {
        let mut events = Box::pin(kube::runtime::watcher(pods.clone(), config));
        let mut seen = Vec::new();
        loop {
            match events.try_next().await.unwrap() {
                Some(kube::runtime::watcher::Event::InitDone) => break,
                Some(kube::runtime::watcher::Event::InitApply(pod)) => {
                    seen.push(pod.metadata.name.unwrap())
                }
                Some(_) => {}
                None => panic!("the watch ended"),
            }
        }
        assert_eq!(seen, ["p1"]);
    }
}
