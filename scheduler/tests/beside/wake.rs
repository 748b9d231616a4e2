use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, WatchEvent, WatchParams};
use scheduler::wake::Waker;
use serde_json::json;
use tokio::time::sleep;

use crate::beside::support::{self, Server};

fn api() -> support::Api {
    let nodes: Vec<_> = (0..40)
        .map(|number| json!({ "metadata": { "name": format!("n{number}") } }))
        .collect();
    support::Api::with(&json!({ "nodes": nodes }))
}

async fn freed(api: &support::Api, node: &str) -> Option<u64> {
    let nodes: Api<Node> = Api::all(api.direct());
    let node = nodes.get(node).await.unwrap();
    let annotations = node.metadata.annotations.unwrap_or_default();
    let value = annotations.get("vgpu.io/capacity-freed")?;
    Some(value.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_node_with_room_again_is_told_once_a_second_at_most() {
    let api = api();
    let waker = Waker::start(api.client());
    waker.waiting(1);
    for _ in 0..10 {
        waker.freed("n1");
    }
    sleep(Duration::from_millis(300)).await;
    let first = freed(&api, "n1").await.unwrap();
    assert_eq!(waker.woken(), 1);

    for _ in 0..10 {
        waker.freed("n1");
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(waker.woken(), 1, "within the first second");
    sleep(Duration::from_secs(1)).await;

    assert_eq!(waker.woken(), 2);
    assert!(freed(&api, "n1").await.unwrap() > first);
    assert_eq!(freed(&api, "n2").await, None);
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_woken_when_none_waits() {
    let api = api();
    let waker = Waker::start(api.client());
    waker.freed("n1");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(api.calls(), 0);

    // Room freed just before the pod was refused is still announced.
    waker.freed("n1");
    sleep(Duration::from_millis(50)).await;
    waker.waiting(1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(waker.woken(), 1);

    waker.waiting(0);
    waker.freed("n1");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(waker.woken(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_is_told_later() {
    for server in [Server::Away, Server::Hangs] {
        let api = api();
        let waker = Waker::start(api.client());
        waker.waiting(1);
        api.is(server);
        waker.freed("n1");
        sleep(Duration::from_secs(120)).await;
        assert_eq!(waker.woken(), 0);
        let calls = api.calls();
        assert!((3..=12).contains(&calls), "{server:?}: {calls}");

        api.is(Server::Up);
        sleep(Duration::from_secs(31)).await;
        assert_eq!(waker.woken(), 1, "{server:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_is_forgotten() {
    let api = api();
    let nodes: Api<Node> = Api::all(api.direct());
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    let waker = Waker::start(api.client());
    waker.waiting(1);
    waker.freed("n1");
    waker.freed("n2");
    sleep(Duration::from_secs(60)).await;

    assert_eq!((waker.woken(), api.calls()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_freed_cluster_is_announced_at_a_bounded_rate() {
    let api = api();
    let waker = Waker::start(api.client());
    waker.waiting(1);
    for number in 0..40 {
        waker.freed(&format!("n{number}"));
    }
    sleep(Duration::from_millis(1100)).await;
    let first_second = waker.woken();
    assert!((15..=22).contains(&first_second), "{first_second}");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(waker.woken(), 40);
}

/// An API server with a pod that kube-scheduler has refused.
fn with_refused_pod() -> (support::Api, placement::Pod) {
    let pod = json!({
        "metadata": { "name": "p", "namespace": "default", "uid": "uid-p" },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
        "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
    });
    let api = support::Api::with(&json!({ "pods": [pod] }));
    let known = placement::Pod {
        uid: "uid-p".to_owned(),
        ..placement::Pod::named("default", "p")
    };
    (api, known)
}

/// The pod's nominated node after each change.
async fn nominations(api: &support::Api) -> Vec<Option<String>> {
    use futures_util::TryStreamExt;
    let pods: Api<Pod> = Api::default_namespaced(api.direct());
    let params = WatchParams::default();
    let mut stream = std::pin::pin!(pods.watch(&params, "1").await.unwrap());
    let mut seen = Vec::new();
    while let Ok(Ok(Some(event))) =
        tokio::time::timeout(Duration::from_millis(10), stream.try_next()).await
    {
        if let WatchEvent::Modified(pod) = event {
            seen.push(pod.status.unwrap().nominated_node_name);
        }
    }
    seen
}

fn nominated_and_withdrawn(times: usize) -> Vec<Option<String>> {
    let both = || [Some("n1".to_owned()), None];
    std::iter::repeat_with(both).take(times).flatten().collect()
}

#[tokio::test(start_paused = true)]
async fn a_refused_pod_is_nominated_and_withdrawn_three_times_at_most() {
    let (api, pod) = with_refused_pod();
    let waker = Waker::start(api.client());
    for _ in 0..10 {
        waker.more_slots("n1", &pod);
    }
    sleep(Duration::from_millis(500)).await;
    assert_eq!(nominations(&api).await, nominated_and_withdrawn(1));
    assert_eq!(waker.woken(), 1);

    sleep(Duration::from_secs(60)).await;

    assert_eq!(nominations(&api).await, nominated_and_withdrawn(3));
    assert_eq!(waker.woken(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_needs_no_nudge_is_left_alone() {
    for change in [
        json!({ "status": { "nominatedNodeName": "n7" } }),
        json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "True" }] } }),
    ] {
        let (api, pod) = with_refused_pod();
        let pods: Api<Pod> = Api::default_namespaced(api.direct());
        let params = PatchParams::default();
        pods.patch_status("p", &params, &Patch::Merge(change))
            .await
            .unwrap();
        let waker = Waker::start(api.client());

        waker.more_slots("n1", &pod);
        sleep(Duration::from_secs(60)).await;

        assert_eq!((waker.woken(), api.calls()), (0, 1));
    }
    let (api, pod) = with_refused_pod();
    let waker = Waker::start(api.client());
    let other = placement::Pod {
        uid: "uid-of-another".to_owned(),
        ..pod
    };

    waker.more_slots("n1", &other);
    sleep(Duration::from_secs(60)).await;

    assert_eq!((waker.woken(), api.calls()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_nudge_waits_for_a_server_that_is_away() {
    for server in [Server::Away, Server::Hangs] {
        let (api, pod) = with_refused_pod();
        let waker = Waker::start(api.client());
        api.is(server);
        waker.more_slots("n1", &pod);
        sleep(Duration::from_secs(120)).await;
        assert_eq!(waker.woken(), 0);
        let calls = api.calls();
        assert!((3..=12).contains(&calls), "{server:?}: {calls}");

        api.is(Server::Up);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(
            nominations(&api).await,
            nominated_and_withdrawn(3),
            "{server:?}"
        );
    }
}
