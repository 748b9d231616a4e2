//! The routes of the GPU page, over a [`GpuSource`]. A handler asks the source and prints the answer. Nothing is
//! written.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::Stream;

use super::pages::{
    GpuOverviewPage, GpuOverviewPart, GpuPage, GpuPart, GpuPendingPage, GpuPendingPart, GpuPodPage,
    GpuPodPart, GpuPodsPage, GpuPodsPart, GpusPage, GpusPart, NamespacesPage, NamespacesPart,
};
use super::view::at;
use super::view::detail::{gpu_detail, pod_detail};
use super::view::gpus::gpu_list;
use super::view::namespaces::namespace_list;
use super::view::overview::{overview, pending};
use super::view::pods::pod_list;
use super::{GpuPod, GpuSource, Picture};
use crate::frame::{NavLink, Shell};
use crate::pages::{GonePart, ProblemPage, WhyPart};
use crate::serve::list::{ListQueryResult, addressed, asked};
use crate::serve::stream::stream;
use crate::serve::{dressed, print, shown};

/// The name of the site.
const BRAND: &str = "vgpu GPUs";

/// The topics of the stream.
const TOPICS: [&str; 1] = ["gpus"];

type SharedGpuSource = Arc<dyn GpuSource>;

/// All routes of the GPU page: `/`, and everything else below `/page/`.
pub fn router(source: Arc<dyn GpuSource>) -> Router {
    let routes = Router::new()
        .route("/", get(first))
        .route("/page/part/overview", get(first_part))
        .route("/page/gpus", get(gpus))
        .route("/page/part/gpus", get(gpus_part))
        .route("/page/gpus/{node}/{id}", get(gpu))
        .route("/page/part/gpus/{node}/{id}", get(gpu_part))
        .route("/page/pods", get(pods))
        .route("/page/part/pods", get(pods_part))
        .route("/page/pods/{namespace}/{pod}", get(pod))
        .route("/page/part/pods/{namespace}/{pod}", get(pod_part))
        .route("/page/namespaces", get(of_namespaces))
        .route("/page/part/namespaces", get(namespaces_part))
        .route("/page/pending", get(waiting))
        .route("/page/part/pending", get(pending_part))
        .route("/page/part/why/{namespace}/{pod}", get(why))
        .route("/page/events", get(events))
        .fallback(nowhere)
        .with_state(source);
    dressed(routes)
}

async fn events(
    State(site): State<SharedGpuSource>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let changed = site.changes();
    let version = changed.clone();
    stream(changed, &TOPICS, move || vec![*version.borrow()])
}

fn shell(title: &str, here: &str, picture: &Picture) -> Shell {
    let entry = |title: &str, href: &str| NavLink::new(title, href, href == here);
    let waiting = match picture.pending.len() {
        0 => "Pending".to_owned(),
        pods => format!("Pending ({pods})"),
    };
    Shell {
        title: format!("{title} – {BRAND}"),
        brand: BRAND,
        entries: vec![
            entry("Overview", "/"),
            entry("GPUs", at::GPUS),
            entry("Pods", at::PODS),
            entry("Namespaces", at::NAMESPACES),
            entry(&waiting, at::PENDING),
        ],
        seen: picture.version,
        topics: TOPICS.join(" "),
        ..Shell::default()
    }
}

fn missing(picture: &Picture, what: String) -> Response {
    let page = ProblemPage {
        shell: shell("Not found", "", picture),
        heading: "Not found".to_owned(),
        what,
    };
    print(StatusCode::NOT_FOUND, &page)
}

async fn nowhere(State(site): State<SharedGpuSource>) -> Response {
    let picture = site.picture().await;
    missing(&picture, "There is no such page.".to_owned())
}

fn history<'a>(site: &'a SharedGpuSource) -> impl Fn(&GpuPod) -> Vec<super::OfGpu> + 'a {
    |holder| site.history(&holder.namespace, &holder.pod)
}

async fn first(State(site): State<SharedGpuSource>) -> Response {
    let picture = site.picture().await;
    shown(&GpuOverviewPage {
        shell: shell("Overview", "/", &picture),
        page: overview(&picture),
    })
}

async fn first_part(State(site): State<SharedGpuSource>) -> Response {
    let page = overview(&*site.picture().await);
    shown(&GpuOverviewPart { page })
}

async fn gpus(State(site): State<SharedGpuSource>, query: ListQueryResult) -> Response {
    let picture = site.picture().await;
    shown(&GpusPage {
        shell: shell("GPUs", at::GPUS, &picture),
        list: gpu_list(&picture, &asked(query)),
    })
}

async fn gpus_part(
    State(site): State<SharedGpuSource>,
    headers: HeaderMap,
    query: ListQueryResult,
) -> Response {
    let query = asked(query);
    let list = gpu_list(&*site.picture().await, &query);
    addressed(&headers, &query, at::GPUS, shown(&GpusPart { list }))
}

async fn pods(State(site): State<SharedGpuSource>, query: ListQueryResult) -> Response {
    let picture = site.picture().await;
    shown(&GpuPodsPage {
        shell: shell("Pods", at::PODS, &picture),
        list: pod_list(&picture, &asked(query), history(&site)),
    })
}

async fn pods_part(
    State(site): State<SharedGpuSource>,
    headers: HeaderMap,
    query: ListQueryResult,
) -> Response {
    let query = asked(query);
    let list = pod_list(&*site.picture().await, &query, history(&site));
    addressed(&headers, &query, at::PODS, shown(&GpuPodsPart { list }))
}

async fn of_namespaces(State(site): State<SharedGpuSource>, query: ListQueryResult) -> Response {
    let picture = site.picture().await;
    shown(&NamespacesPage {
        shell: shell("Namespaces", at::NAMESPACES, &picture),
        list: namespace_list(&picture, &asked(query)),
    })
}

async fn namespaces_part(
    State(site): State<SharedGpuSource>,
    headers: HeaderMap,
    query: ListQueryResult,
) -> Response {
    let query = asked(query);
    let list = namespace_list(&*site.picture().await, &query);
    addressed(
        &headers,
        &query,
        at::NAMESPACES,
        shown(&NamespacesPart { list }),
    )
}

async fn waiting(State(site): State<SharedGpuSource>, query: ListQueryResult) -> Response {
    let picture = site.picture().await;
    shown(&GpuPendingPage {
        shell: shell("Pending pods", at::PENDING, &picture),
        list: pending(&picture, &asked(query)),
    })
}

async fn pending_part(
    State(site): State<SharedGpuSource>,
    headers: HeaderMap,
    query: ListQueryResult,
) -> Response {
    let query = asked(query);
    let list = pending(&*site.picture().await, &query);
    addressed(
        &headers,
        &query,
        at::PENDING,
        shown(&GpuPendingPart { list }),
    )
}

async fn why(
    State(site): State<SharedGpuSource>,
    Path((namespace, pod)): Path<(String, String)>,
) -> Response {
    let why = site.why(&namespace, &pod).await;
    shown(&WhyPart { why })
}

async fn pod(
    State(site): State<SharedGpuSource>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let picture = site.picture().await;
    let history = site.history(&namespace, &name);
    match pod_detail(&picture, &namespace, &name, &history) {
        Some(pod) => shown(&GpuPodPage {
            shell: shell(&format!("Pod {name}"), at::PODS, &picture),
            pod,
        }),
        None => missing(&picture, format!("No pod {namespace}/{name} holds a GPU.")),
    }
}

async fn pod_part(
    State(site): State<SharedGpuSource>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let picture = site.picture().await;
    let history = site.history(&namespace, &name);
    match pod_detail(&picture, &namespace, &name, &history) {
        Some(pod) => shown(&GpuPodPart { pod }),
        None => shown(&GonePart {
            id: "pod",
            what: format!("Pod {name} holds no GPU any more."),
        }),
    }
}

async fn gpu(
    State(site): State<SharedGpuSource>,
    Path((node, id)): Path<(String, String)>,
) -> Response {
    let picture = site.picture().await;
    match gpu_detail(&picture, &node, &id, history(&site)) {
        Some(gpu) => shown(&GpuPage {
            shell: shell(&format!("{} on {node}", gpu.title), at::GPUS, &picture),
            gpu,
        }),
        None => missing(&picture, format!("Node {node} has no GPU {id}.")),
    }
}

async fn gpu_part(
    State(site): State<SharedGpuSource>,
    Path((node, id)): Path<(String, String)>,
) -> Response {
    let picture = site.picture().await;
    match gpu_detail(&picture, &node, &id, history(&site)) {
        Some(gpu) => shown(&GpuPart { gpu }),
        None => shown(&GonePart {
            id: "gpu",
            what: format!("Node {node} has this GPU no more."),
        })
        .into_response(),
    }
}
