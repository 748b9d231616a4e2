//! `GET /explain?pod=namespace/name`: JSON, or text for clients that accept `text/plain`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::BoxFuture;
use kube_api::object::Pod;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{AnswerDetail, View, explain};
use crate::calls::CallError;

/// How long a question waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why it is not known whether a pod exists.
#[derive(Debug, thiserror::Error)]
pub enum PodUnread {
    /// These kinds of objects have not been read yet.
    #[error("{0} not read from the API server yet")]
    NotSynced(String),
    /// The API server did not give the pod.
    #[error("the pod cannot be read: {0}")]
    Call(#[from] CallError),
}

/// The source of pods and of the view of the cluster.
pub trait ViewSource: Send + Sync + 'static {
    /// The pod of this namespace and name; `None` if it does not exist.
    fn pod<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Pod>, PodUnread>>;

    /// The current view for the pod, without its own reservations by label. Called on a blocking thread.
    fn view(&self, pod: &Pod) -> View;
}

#[derive(Deserialize)]
struct ExplainQuery {
    #[serde(default)]
    pod: String,
    #[serde(default)]
    all: Option<String>,
}

struct Explainer {
    source: Arc<dyn ViewSource>,
    /// An answer examines every node, so only one question is answered at a time. Otherwise frequent questions would
    /// slow down placing.
    turn: Arc<Semaphore>,
}

/// `GET /explain`.
pub fn routes(source: Arc<dyn ViewSource>) -> Router {
    let explainer = Explainer {
        source,
        turn: Arc::new(Semaphore::new(1)),
    };
    Router::new()
        .route("/explain", get(answer))
        .with_state(Arc::new(explainer))
}

async fn answer(
    State(explainer): State<Arc<Explainer>>,
    Query(asked): Query<ExplainQuery>,
    headers: HeaderMap,
) -> Response {
    let (namespace, name) = asked.pod.split_once('/').unwrap_or(("default", &asked.pod));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return refused(
            StatusCode::BAD_REQUEST,
            "which pod? GET /explain?pod=namespace/name[&all=true]",
        );
    }
    let detail = match asked.all.as_deref() {
        Some("false" | "0") | None => AnswerDetail::default(),
        Some(_) => AnswerDetail::all(),
    };
    let turn = Arc::clone(&explainer.turn);
    let Ok(Ok(permit)) = timeout(PATIENCE, turn.acquire_owned()).await else {
        return refused(
            StatusCode::SERVICE_UNAVAILABLE,
            "other questions are being answered; try again",
        );
    };
    let pod = match explainer.source.pod(namespace, name).await {
        Ok(Some(pod)) => pod,
        Ok(None) => {
            let text = format!("there is no pod {name} in namespace {namespace}");
            return refused(StatusCode::NOT_FOUND, &text);
        }
        Err(reason) => return refused(StatusCode::SERVICE_UNAVAILABLE, &reason.to_string()),
    };
    let source = Arc::clone(&explainer.source);
    let explained = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        explain(&source.view(&pod), &pod, detail)
    });
    let Ok(explained) = explained.await else {
        return refused(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the question could not be answered; the log says more",
        );
    };
    let wants_text = headers
        .get_all(ACCEPT)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("text/plain"));
    if wants_text {
        explained.to_string().into_response()
    } else {
        Json(explained).into_response()
    }
}

fn refused(status: StatusCode, text: &str) -> Response {
    (status, Json(json!({ "Error": text }))).into_response()
}
