//! The assigner's routes. Bodies are read up to a limit; refusals have the documented shapes.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use kube_api::assigner::Finalize;
use pages::assigner::DeviceSource;
use serde_json::{Value, json};
use server::Bodies;

use crate::assigner::page::DevicesPage;
use crate::assigner::{Assigner, review};

/// An API server sends at most an object and its previous version, 1.5 MiB each.
const BODIES: Bodies = Bodies {
    bytes: 8 << 20,
    time: std::time::Duration::from_secs(30),
    together: 64 << 20,
};

/// For the API server: `/mutate`, `/finalize`, `/devices`, and the process's health.
pub fn api(assigner: &Assigner) -> Router {
    let routes = Router::new()
        .route("/mutate", post(mutate))
        .with_state(assigner.clone());
    limited(routes).merge(both(assigner))
}

/// For people: the page, `/finalize` and `/devices`.
pub fn ui(assigner: &Assigner) -> Router {
    both(assigner).merge(pages::assigner::router(Arc::new(assigner.clone())))
}

/// The routes of both listeners.
fn both(assigner: &Assigner) -> Router {
    limited(shared(assigner))
        .merge(
            Router::new()
                .route("/healthz", get(StatusCode::OK))
                .route("/readyz", get(ready))
                .with_state(assigner.clone()),
        )
        .merge(server::metrics(
            assigner.meters().registry(Arc::new(assigner.clone())),
        ))
}

/// `/finalize` and `/devices`, to be merged into another listener's routes.
pub fn shared(assigner: &Assigner) -> Router {
    Router::new()
        .route("/finalize", post(finalize))
        .route("/devices", get(devices))
        .with_state(assigner.clone())
}

fn limited(routes: Router) -> Router {
    BODIES.limit_answering(routes, refusal)
}

fn refusal(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
}

async fn ready(State(assigner): State<Assigner>) -> (StatusCode, String) {
    match assigner.unready() {
        None => (StatusCode::OK, "ready\n".into()),
        Some(why) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: {why}\n"),
        ),
    }
}

async fn mutate(State(assigner): State<Assigner>, body: Bytes) -> Json<Value> {
    Json(assigner.mutate(&body).await)
}

async fn finalize(State(assigner): State<Assigner>, body: Bytes) -> Response {
    let (code, answer) = match serde_json::from_slice::<Value>(&body) {
        Ok(asked) if asked.get("kind").and_then(Value::as_str) == Some("AdmissionReview") => {
            return Json(assigner.finalize_review(&body).await).into_response();
        }
        Ok(asked) => match Finalize::read(&asked) {
            Ok(asked) => match assigner.finalize(asked).await {
                Ok(()) => (200, json!({ "status": "ok" })),
                Err(why) => (why.code(), json!({ "error": why.to_string() })),
            },
            Err(missing) => (400, json!({ "error": missing.to_string() })),
        },
        Err(problem) => {
            let error = format!("the body is no JSON: {problem}");
            (400, json!({ "error": error }))
        }
    };
    assigner.meters().asked_to_finalize(review::word(code));
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(answer)).into_response()
}

async fn devices(State(assigner): State<Assigner>) -> Response {
    match serde_json::to_vec(&DevicesPage(assigner.inventory())) {
        Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(problem) => refusal(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("the answer cannot be written: {problem}"),
        ),
    }
}
