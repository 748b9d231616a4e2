//! The calls of the API server that the plugin makes for the exporter, which has no token: over a socket that only the
//! agent's two containers share. Owns what the exporter may ask: the pods of this node, events of the agent, whether a pod
//! of this node may be evicted, and its deletion. Never decides when it asks.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path as PathParts, RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post};
use axum::{Json, Router};
use kube::api::Api;
use kube_api::object::Pod;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::time::timeout;

use crate::own_pods::OwnPods;

/// The name of the agent in its events.
const COMPONENT: &str = "vgpu-monitor";
/// How long a call of the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest body, in bytes: an event has at most 1 KiB of text.
const MOST_BYTES: usize = 64 << 10;

struct Calls {
    client: kube::Client,
    node: String,
    pods: OwnPods,
}

/// Listens on the socket. An older one of that name is replaced: the plugin before this one has ended.
///
/// # Errors
///
/// When the socket cannot be made.
pub(crate) fn listen(socket: &Path) -> anyhow::Result<UnixListener> {
    let said = || format!("--exporter-socket {}", socket.display());
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(said);
        }
        _ => {}
    }
    let listener = UnixListener::bind(socket).with_context(said)?;
    let only_root = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(socket, only_root).with_context(said)?;
    Ok(listener)
}

/// Serves the exporter until the task is aborted.
pub(crate) async fn serve(
    listener: UnixListener,
    client: kube::Client,
    node: String,
    pods: OwnPods,
) {
    if let Err(error) = axum::serve(listener, routes(client, node, pods)).await {
        tracing::error!(%error, "the exporter is no longer served: its events and evictions are lost");
    }
}

/// The API server's own paths, so that the exporter's client is an ordinary one.
fn routes(client: kube::Client, node: String, pods: OwnPods) -> Router {
    Router::new()
        .route("/api/v1/pods", get(list_pods))
        .route("/api/v1/namespaces/{namespace}/events", post(make_event))
        .route(
            "/api/v1/namespaces/{namespace}/events/{name}",
            patch(repeat_event),
        )
        .route(
            "/api/v1/namespaces/{namespace}/pods/{name}/eviction",
            post(may_evict),
        )
        .route(
            "/api/v1/namespaces/{namespace}/pods/{name}",
            delete(end).fallback(async || refused("the exporter has no such right")),
        )
        .fallback(async || refused("the exporter has no such right"))
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .with_state(Arc::new(Calls { client, node, pods }))
}

/// The metadata of the pods of this node, whichever were asked for: from the plugin's own watch, so that no question of
/// the exporter is a list of the API server's.
async fn list_pods(State(calls): State<Arc<Calls>>) -> Response {
    match calls.pods.all().await {
        Ok(pods) => {
            let items: Vec<Value> = pods
                .iter()
                .map(|pod| {
                    json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": pod.metadata })
                })
                .collect();
            Json(json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {},
                "items": items }))
            .into_response()
        }
        Err(why) => answer(503, &format!("the pods of this node are not known: {why}")),
    }
}

async fn make_event(
    State(calls): State<Arc<Calls>>,
    PathParts(namespace): PathParts<String>,
    body: Bytes,
) -> Response {
    let Ok(event) = serde_json::from_slice::<Value>(&body) else {
        return refused("the event is not JSON");
    };
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str);
    let is_own = text("/source/component") == Some(COMPONENT)
        && match text("/involvedObject/kind") {
            Some("Pod") => text("/involvedObject/namespace") == Some(namespace.as_str()),
            Some("Node") => text("/involvedObject/name") == Some(calls.node.as_str()),
            _ => false,
        };
    if !is_own || !is_name(&namespace) {
        return refused("the exporter writes events about pods and about its own Node");
    }
    let path = format!("/api/v1/namespaces/{namespace}/events");
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    forward(&calls, request, body.to_vec()).await
}

async fn repeat_event(
    State(calls): State<Arc<Calls>>,
    PathParts((namespace, name)): PathParts<(String, String)>,
    body: Bytes,
) -> Response {
    let change = serde_json::from_slice::<Value>(&body).unwrap_or_default();
    let repeats = change.as_object().is_some_and(|change| {
        let known = ["count", "lastTimestamp", "message"];
        change.keys().all(|key| known.contains(&key.as_str()))
    });
    if !repeats || !is_name(&namespace) || !is_name(&name) {
        return refused("the exporter changes the count, the time and the message of an event");
    }
    let path = format!("/api/v1/namespaces/{namespace}/events/{name}");
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(path)
        .header(CONTENT_TYPE, "application/merge-patch+json");
    forward(&calls, request, body.to_vec()).await
}

/// Whether a pod of this node may be evicted. Only a dry run, whatever is asked for: the API server does not tell its
/// policies on which node the pod of an eviction is, so it lets an agent make no other.
async fn may_evict(
    State(calls): State<Arc<Calls>>,
    PathParts((namespace, name)): PathParts<(String, String)>,
    body: Bytes,
) -> Response {
    if let Some(refusal) = not_of_this_node(&calls, &namespace, &name).await {
        return refusal;
    }
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction?dryRun=All");
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    forward(&calls, request, body.to_vec()).await
}

/// Deletes a pod of this node.
async fn end(
    State(calls): State<Arc<Calls>>,
    PathParts((namespace, name)): PathParts<(String, String)>,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Response {
    if let Some(refusal) = not_of_this_node(&calls, &namespace, &name).await {
        return refusal;
    }
    let query = dry_run(query.as_deref());
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}{query}");
    let request = Request::delete(path).header(CONTENT_TYPE, "application/json");
    forward(&calls, request, body.to_vec()).await
}

/// The only part of a query that is passed on: `dryRun`.
fn dry_run(query: Option<&str>) -> &'static str {
    let mut words = query.unwrap_or_default().split('&');
    if words.any(|word| word.starts_with("dryRun=")) {
        "?dryRun=All"
    } else {
        ""
    }
}

async fn not_of_this_node(calls: &Calls, namespace: &str, name: &str) -> Option<Response> {
    if !is_name(namespace) || !is_name(name) {
        return Some(refused("this is no pod's name"));
    }
    let pods: Api<Pod> = Api::namespaced(calls.client.clone(), namespace);
    match timeout(PATIENCE, pods.get(name)).await {
        Ok(Ok(pod)) if pod.spec.node_name == calls.node => None,
        Ok(Ok(_)) => Some(refused(
            "the exporter has only pods of its own node evicted",
        )),
        Ok(Err(kube::Error::Api(status))) => Some(answer(status.code, &status.message)),
        Ok(Err(error)) => Some(answer(502, &error.to_string())),
        Err(_elapsed) => Some(late()),
    }
}

/// A name of an object that changes no path.
fn is_name(text: &str) -> bool {
    let letter =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(letter)
}

async fn forward(calls: &Calls, request: axum::http::request::Builder, body: Vec<u8>) -> Response {
    let request = match request.body(kube::client::Body::from(body)) {
        Ok(request) => request,
        Err(error) => return answer(400, &error.to_string()),
    };
    match timeout(PATIENCE, calls.client.send(request)).await {
        Ok(Ok(response)) => response.map(Body::new),
        Ok(Err(error)) => answer(502, &format!("the API server cannot be asked: {error}")),
        Err(_elapsed) => late(),
    }
}

fn refused(text: &str) -> Response {
    answer(403, text)
}

fn late() -> Response {
    let text = format!(
        "no answer from the API server within {} s",
        PATIENCE.as_secs()
    );
    answer(504, &text)
}

/// As the API server refuses.
fn answer(code: u16, message: &str) -> Response {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": "", "message": message });
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY);
    (code, Json(status)).into_response()
}

/// A client whose API server is the plugin at this socket. Each call makes a new connection, so a plugin that was
/// restarted is found again.
#[must_use]
pub fn client(socket: PathBuf) -> kube::Client {
    let calls = tower::service_fn(move |request: Request<kube::client::Body>| {
        let socket = socket.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(&socket).await?;
            let stream = hyper_util::rt::TokioIo::new(stream);
            let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
            tokio::spawn(async move {
                // Its end is seen by the call that uses it.
                drop(connection.await);
            });
            Ok::<_, tower::BoxError>(sender.send_request(request).await?)
        }
    });
    kube::Client::new(calls, "default")
}

#[cfg(test)]
mod tests {
    use embedded_cluster::Cluster;
    use k8s_openapi::api::core::v1::{self as core, Event, Node, Secret};
    use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};

    use super::*;

    fn code<T: std::fmt::Debug>(answer: kube::Result<T>) -> u16 {
        match answer {
            Ok(_) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => panic!("{error}"),
        }
    }

    /// A cluster of two nodes with a pod each, and the exporter's client on the first node.
    async fn exporter_on_n1(folder: &Path) -> kube::Client {
        let cluster = Cluster::default();
        let pod = |name: &str, node: &str| {
            json!({"metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}})
        };
        cluster
            .import(&json!({
                "namespaces": [{"metadata": {"name": "default"}}],
                "nodes": [{"metadata": {"name": "n1"}}, {"metadata": {"name": "n2"}}],
                "pods": [pod("here", "n1"), pod("there", "n2")],
            }))
            .unwrap();
        let socket = folder.join("socket");
        let api = kube::Client::new(cluster.router(), "default");
        let listener = listen(&socket).unwrap();
        let pods = OwnPods::start(&api, "n1");
        tokio::spawn(serve(listener, api, "n1".to_owned(), pods));
        client(socket)
    }

    #[tokio::test]
    async fn the_exporter_gets_what_it_needs_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let client = exporter_on_n1(folder.path()).await;
        let pods: Api<core::Pod> = Api::default_namespaced(client.clone());
        let everywhere: Api<Pod> = Api::all(client.clone());

        // Whatever it asks for, it sees the pods of its node.
        for fields in ["spec.nodeName=n1", "spec.nodeName=n2", ""] {
            let asked = ListParams::default().fields(fields);
            let seen = everywhere.list_metadata(&asked).await.unwrap();
            let names: Vec<_> = seen
                .items
                .iter()
                .map(|pod| pod.metadata.name.as_deref())
                .collect();
            assert_eq!(names, [Some("here")], "{fields}");
        }
        assert_eq!(
            code(pods.evict("there", &EvictParams::default()).await),
            403
        );
        assert_eq!(
            code(pods.evict("nothing", &EvictParams::default()).await),
            404
        );
        assert_eq!(code(pods.get("here").await), 403);
        let (earnest, dry) = (DeleteParams::default(), DeleteParams::default().dry_run());
        assert_eq!(code(pods.delete("there", &earnest).await), 403);
        let dry_eviction = EvictParams {
            post_options: PostParams {
                dry_run: true,
                ..PostParams::default()
            },
            ..EvictParams::default()
        };
        assert_eq!(code(pods.evict("here", &dry_eviction).await), 200);
        // It is told whether the pod would be evicted, whatever it asks for.
        assert_eq!(code(pods.evict("here", &EvictParams::default()).await), 200);
        assert_eq!(code(pods.delete("here", &dry).await), 200);
        let is_here = async || {
            let listed = everywhere.list_metadata(&ListParams::default()).await;
            !listed.unwrap().items.is_empty()
        };
        assert!(is_here().await, "a dry run has ended it");
        assert_eq!(code(pods.delete("here", &earnest).await), 200);
        // The watch delivers it.
        while is_here().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let secrets: Api<Secret> = Api::default_namespaced(client.clone());
        assert_eq!(code(secrets.list(&ListParams::default()).await), 403);
        let nodes: Api<Node> = Api::all(client.clone());
        let change = Patch::Merge(json!({"spec": {"unschedulable": true}}));
        assert_eq!(
            code(nodes.patch("n1", &PatchParams::default(), &change).await),
            403
        );
    }

    #[tokio::test]
    async fn events_are_the_agents_own() {
        let folder = tempfile::tempdir().unwrap();
        let client = exporter_on_n1(folder.path()).await;
        let events: Api<Event> = Api::default_namespaced(client.clone());
        let pod = json!({"kind": "Pod", "name": "here", "namespace": "default"});
        for (component, about, expected) in [
            ("vgpu-monitor", pod.clone(), 200),
            ("vgpu-monitor", json!({"kind": "Node", "name": "n1"}), 200),
            ("vgpu-monitor", json!({"kind": "Node", "name": "n2"}), 403),
            (
                "vgpu-monitor",
                json!({"kind": "Pod", "name": "p", "namespace": "kube-system"}),
                403,
            ),
            (
                "vgpu-monitor",
                json!({"kind": "Secret", "name": "s", "namespace": "default"}),
                403,
            ),
            ("kubelet", pod, 403),
        ] {
            let event: Event = serde_json::from_value(json!({"metadata": {"generateName": "e"},
                "source": {"component": component}, "involvedObject": about}))
            .unwrap();
            let made = events.create(&PostParams::default(), &event).await;
            assert_eq!(code(made), expected, "{event:?}");
        }
        let name = "here.1";
        let event: Event = serde_json::from_value(json!({"metadata": {"name": name},
            "source": {"component": "vgpu-monitor"},
            "involvedObject": {"kind": "Pod", "name": "here", "namespace": "default"}}))
        .unwrap();
        events.create(&PostParams::default(), &event).await.unwrap();
        for (change, expected) in [
            (json!({"count": 2, "message": "again"}), 200),
            (json!({"involvedObject": {"name": "there"}}), 403),
            (json!([]), 403),
        ] {
            let change = Patch::Merge(change);
            let changed = events.patch(name, &PatchParams::default(), &change).await;
            assert_eq!(code(changed), expected, "{change:?}");
        }
    }

    #[tokio::test]
    async fn the_socket_is_roots_alone_and_replaces_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        drop(listen(&socket).unwrap());

        let _listener = listen(&socket).unwrap();

        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let nowhere = folder.path().join("none/socket");
        let error = listen(&nowhere).unwrap_err().to_string();
        assert!(error.contains("--exporter-socket"), "{error}");
    }
}
