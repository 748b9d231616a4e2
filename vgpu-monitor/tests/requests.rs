//! How often an agent asks the API server, over hours of simulated time: a cluster has thousands of them.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use embedded_cluster::Cluster;
use kube::api::Api;
use kube_api::object::Pod;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tower::ServiceExt as _;
use vgpu_monitor::follow::{Told, follow};
use vgpu_monitor::own_pods::OwnPods;

/// The requests so far: when, and which.
type Asked = Arc<Mutex<Vec<(Duration, &'static str)>>>;

/// What a request is about.
fn kind_of(request: &Request<kube::client::Body>) -> &'static str {
    let query = request.uri().query().unwrap_or_default();
    match (request.uri().path(), query.contains("watch=true")) {
        ("/version", _) => "version",
        (_, true) if query.contains("sendInitialEvents=true") => "streaming list",
        (_, true) => "watch",
        (_, false)
            if query.contains("resourceVersion=0&") || query.ends_with("resourceVersion=0") =>
        {
            "list from the cache"
        }
        (_, false) => "list",
    }
}

/// A cluster's API server that counts, calls itself this version, and may be away.
fn counted(
    cluster: &Cluster,
    version: &'static str,
    away: &Arc<AtomicBool>,
) -> (kube::Client, Asked) {
    let asked = Asked::default();
    let (router, counted, away) = (cluster.router(), Arc::clone(&asked), Arc::clone(away));
    let begun = Instant::now();
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (router, counted, away) = (router.clone(), Arc::clone(&counted), Arc::clone(&away));
        async move {
            let kind = kind_of(&request);
            counted.lock().push((begun.elapsed(), kind));
            if away.load(Ordering::SeqCst) {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
            }
            if kind == "version" {
                let (major, minor) = version.split_once('.').unwrap();
                let text = json!({ "major": major, "minor": minor, "gitVersion": "", "gitCommit": "",
                    "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "" });
                return Ok(Response::new(Body::from(text.to_string())));
            }
            Ok(router.oneshot(request.map(Body::new)).await.unwrap())
        }
    });
    (kube::Client::new(service, "default"), asked)
}

fn cluster() -> Cluster {
    let cluster = Cluster::default();
    let pod = |name: &str, node: &str| {
        json!({"metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}})
    };
    cluster
        .import(&json!({
            "namespaces": [{"metadata": {"name": "default"}}],
            "nodes": [{"metadata": {"name": "n1"}}, {"metadata": {"name": "n2"}}],
            "pods": [pod("a", "n1"), pod("b", "n1"), pod("c", "n2")],
        }))
        .unwrap();
    cluster
}

fn count(asked: &Asked, kind: &str) -> usize {
    asked.lock().iter().filter(|(_, its)| *its == kind).count()
}

async fn names(pods: &OwnPods) -> Vec<String> {
    let all = pods.all().await.unwrap();
    all.into_iter()
        .map(|pod| pod.metadata.name.unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn agent_lists_its_pods_once_in_an_hour_of_questions() {
    for (version, first) in [("1.35", "streaming list"), ("1.30", "list from the cache")] {
        let cluster = cluster();
        let (client, asked) = counted(&cluster, version, &Arc::default());
        let pods = OwnPods::start(&client, "n1");

        // As the garbage collection asks.
        for _ in 0..120 {
            assert_eq!(names(&pods).await, ["a", "b"]);
            sleep(Duration::from_secs(30)).await;
        }

        assert_eq!(count(&asked, first), 1, "{:?}", asked.lock());
        assert_eq!(count(&asked, "list"), 0);
        let watches = count(&asked, "watch");
        let all = asked.lock().len();
        // A watch lasts four minutes or more.
        assert!((12..=16).contains(&watches), "{watches} watches");
        assert_eq!(all, watches + 2, "{:?}", asked.lock());
    }
}

#[tokio::test(start_paused = true)]
async fn agents_come_back_apart_from_each_other_and_without_a_list() {
    let (cluster, away) = (cluster(), Arc::<AtomicBool>::default());
    let agents: Vec<_> = (0..20)
        .map(|_| {
            let (client, asked) = counted(&cluster, "1.35", &away);
            (OwnPods::start(&client, "n1"), asked)
        })
        .collect();
    for (pods, _) in &agents {
        assert_eq!(names(pods).await.len(), 2);
    }

    // The watches end while the API server is away for ten minutes.
    away.store(true, Ordering::SeqCst);
    sleep(Duration::from_secs(600)).await;
    for (pods, asked) in &agents {
        assert!(pods.all().await.is_err());
        let tries = count(asked, "watch");
        assert!(tries <= 16, "{tries} tries");
    }
    let back = agents.iter().map(|(_, asked)| asked.lock().len());
    let back: Vec<usize> = back.collect();
    away.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(120)).await;

    let mut moments = Vec::new();
    for ((pods, asked), before) in agents.iter().zip(back) {
        assert_eq!(names(pods).await.len(), 2);
        assert_eq!(count(asked, "streaming list"), 1, "{:?}", asked.lock());
        assert_eq!(
            count(asked, "list") + count(asked, "list from the cache"),
            0
        );
        moments.push(asked.lock()[before].0);
    }
    moments.sort();
    let spread = *moments.last().unwrap() - moments[0];
    assert!(spread > Duration::from_secs(10), "{moments:?}");
}

/// An API server whose past is lost at each watch, as one that has just been started: `lists` is what it can do.
#[tokio::test(start_paused = true)]
async fn expired_watches_list_again_spread_over_a_minute() {
    for (version, within) in [("1.35", 10), ("1.30", 60)] {
        let mut again = Vec::new();
        for _ in 0..20 {
            let lists = Asked::default();
            let (counted, begun) = (Arc::clone(&lists), Instant::now());
            let service = tower::service_fn(move |request: Request<kube::client::Body>| {
                let kind = kind_of(&request);
                counted.lock().push((begun.elapsed(), kind));
                let mark = json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Pod",
                    "metadata": {"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}}}});
                let gone = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired",
                    "message": "too old resource version", "status": "Failure"}});
                let text = match kind {
                    "version" => {
                        let (major, minor) = version.split_once('.').unwrap();
                        json!({ "major": major, "minor": minor, "gitVersion": "", "gitCommit": "", "gitTreeState": "",
                            "buildDate": "", "goVersion": "", "compiler": "", "platform": "" })
                        .to_string()
                    }
                    "streaming list" => format!("{mark}\n{gone}\n"),
                    "watch" => format!("{gone}\n"),
                    _ => json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": []})
                        .to_string(),
                };
                async move { Ok::<_, std::io::Error>(Response::new(Body::from(text))) }
            });
            let client = kube::Client::new(service, "default");
            let api: Api<Pod> = Api::all(client.clone());
            let mut told = follow(client, api, "spec.nodeName=n1");
            assert_eq!(told.recv().await, Some(Told::All(Vec::new())));
            assert!(matches!(told.recv().await, Some(Told::Down(_))));
            assert_eq!(told.recv().await, Some(Told::All(Vec::new())));
            let lists = lists.lock();
            let mut lists = lists.iter().filter(|(_, kind)| kind.contains("list"));
            let first = lists.next().unwrap().0;
            again.push(lists.next().unwrap().0 - first);
        }
        again.sort();
        let (first, last) = (again[0], again[19]);
        assert!(last <= Duration::from_secs(within), "{version}: {again:?}");
        assert!(
            last - first > Duration::from_secs(within) / 3,
            "{version}: {again:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn refused_streaming_list_becomes_a_list_from_the_cache_at_once() {
    let asked = Asked::default();
    let (counted, begun) = (Arc::clone(&asked), Instant::now());
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let kind = kind_of(&request);
        counted.lock().push((begun.elapsed(), kind));
        let (code, answer) = match kind {
            "version" => (
                200,
                json!({ "major": "1", "minor": "35", "gitVersion": "", "gitCommit": "",
                "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "" }),
            ),
            "streaming list" => (
                422,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "code": 422,
                "status": "Failure", "reason": "Invalid",
                "message": "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"}),
            ),
            "watch" => (
                200,
                json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Pod",
                "metadata": {"resourceVersion": "8"}}}),
            ),
            _ => (
                200,
                json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"},
                "items": []}),
            ),
        };
        let answer = Response::builder()
            .status(code)
            .body(Body::from(format!("{answer}\n")));
        async move { Ok::<_, std::io::Error>(answer.unwrap()) }
    });
    let client = kube::Client::new(service, "default");
    let api: Api<Pod> = Api::all(client.clone());

    let mut told = follow(client, api, "spec.nodeName=n1");

    assert_eq!(told.recv().await, Some(Told::All(Vec::new())));
    let asked: Vec<_> = asked
        .lock()
        .iter()
        .map(|(at, kind)| (at.as_secs(), *kind))
        .collect();
    let first = [
        (0, "version"),
        (0, "streaming list"),
        (0, "list from the cache"),
    ];
    assert_eq!(asked[..3], first, "{asked:?}");
}
