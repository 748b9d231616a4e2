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
    waker.waiting(1, Vec::new);
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
    assert_eq!(api.calls(), 1, "the question for the server's version");

    // Room freed just before the pod was refused is still announced.
    waker.freed("n1");
    sleep(Duration::from_millis(50)).await;
    waker.waiting(1, Vec::new);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(waker.woken(), 1);

    waker.waiting(0, Vec::new);
    waker.freed("n1");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(waker.woken(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_is_told_later() {
    for server in [Server::Away, Server::Hangs] {
        let api = api();
        let waker = Waker::start(api.client());
        waker.waiting(1, Vec::new);
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
    waker.waiting(1, Vec::new);
    waker.freed("n1");
    waker.freed("n2");
    sleep(Duration::from_secs(60)).await;

    // Two annotations, after the question for the server's version.
    assert_eq!((waker.woken(), api.calls()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_freed_cluster_is_announced_at_a_bounded_rate() {
    let api = api();
    let waker = Waker::start(api.client());
    waker.waiting(1, Vec::new);
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

        // The server's version, and the pod.
        assert_eq!((waker.woken(), api.calls()), (0, 2));
    }
    let (api, pod) = with_refused_pod();
    let waker = Waker::start(api.client());
    let other = placement::Pod {
        uid: "uid-of-another".to_owned(),
        ..pod
    };

    waker.more_slots("n1", &other);
    sleep(Duration::from_secs(60)).await;

    assert_eq!((waker.woken(), api.calls()), (0, 2));
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

/// An API server of that version with a node and the pods `p0`, `p1`, …, and those pods.
fn older_with_pods(minor: &'static str, count: usize) -> (support::Api, Vec<placement::Pod>) {
    let of = |number: usize| placement::Pod {
        uid: format!("uid-p{number}"),
        ..placement::Pod::named("default", &format!("p{number}"))
    };
    let known: Vec<_> = (0..count).map(of).collect();
    let pods: Vec<_> = known
        .iter()
        .map(|pod| {
            json!({
                "metadata": { "name": pod.name, "namespace": pod.namespace, "uid": pod.uid },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            })
        })
        .collect();
    let api =
        support::Api::with(&json!({ "nodes": [{ "metadata": { "name": "n1" } }], "pods": pods }));
    (api.of_minor(minor), known)
}

async fn annotation_of(api: &support::Api, pod: &str) -> Option<u64> {
    let pods: Api<Pod> = Api::default_namespaced(api.direct());
    let annotations = pods.get(pod).await.unwrap().metadata.annotations?;
    Some(annotations.get("vgpu.io/capacity-freed")?.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn before_1_30_each_refused_pod_is_annotated_instead_of_the_node() {
    let (api, pods) = older_with_pods("28", 3);
    let waker = Waker::start(api.client());
    waker.waiting(1, || pods[..2].to_vec());
    waker.freed("n1");
    sleep(Duration::from_secs(1)).await;

    let first = annotation_of(&api, "p0").await.unwrap();
    assert!(annotation_of(&api, "p1").await.unwrap() > first);
    assert_eq!(annotation_of(&api, "p2").await, None, "it was not refused");
    assert_eq!(freed(&api, "n1").await, None);
    assert_eq!(waker.woken(), 1);

    waker.freed("n1");
    sleep(Duration::from_secs(2)).await;
    assert!(annotation_of(&api, "p0").await.unwrap() > first);
}

#[tokio::test(start_paused = true)]
async fn in_1_30_and_1_31_more_slots_are_told_to_pods_and_freed_room_to_nodes() {
    for minor in ["30", "31+"] {
        let (api, pods) = older_with_pods(minor, 1);
        let waker = Waker::start(api.client());
        waker.waiting(1, || pods.clone());

        waker.more_slots("n1", &pods[0]);
        sleep(Duration::from_millis(500)).await;
        let told = annotation_of(&api, "p0").await.unwrap();
        assert_eq!(freed(&api, "n1").await, None);
        assert_eq!(
            nominations(&api).await,
            [None],
            "the pod was annotated once"
        );

        sleep(Duration::from_secs(60)).await;
        let last = annotation_of(&api, "p0").await.unwrap();
        assert!(last > told, "kube-scheduler's watch may have been behind");
        waker.freed("n1");
        sleep(Duration::from_secs(1)).await;
        assert!(freed(&api, "n1").await.is_some());
        assert_eq!(annotation_of(&api, "p0").await, Some(last));
    }
}

#[tokio::test(start_paused = true)]
async fn pod_that_is_gone_or_another_by_now_does_not_keep_the_next_one_waiting() {
    let (api, mut pods) = older_with_pods("28", 3);
    "uid-of-another".clone_into(&mut pods[0].uid);
    let api_of_pods: Api<Pod> = Api::default_namespaced(api.direct());
    api_of_pods
        .delete("p1", &DeleteParams::default())
        .await
        .unwrap();
    let waker = Waker::start(api.client());
    waker.waiting(1, || pods.clone());
    waker.freed("n1");
    sleep(Duration::from_secs(60)).await;

    assert_eq!(annotation_of(&api, "p0").await, None);
    assert!(annotation_of(&api, "p2").await.is_some());
    // The version and one call for each pod.
    assert_eq!((waker.woken(), api.calls()), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn nodes_that_become_free_together_are_one_announcement_to_pods() {
    let (api, pods) = older_with_pods("28", 3);
    let waker = Waker::start(api.client());
    waker.waiting(1, || pods.clone());
    for number in 0..40 {
        waker.freed(&format!("n{number}"));
    }
    sleep(Duration::from_secs(60)).await;

    // The version and one call for each pod.
    assert_eq!((waker.woken(), api.calls()), (1, 4));
}
