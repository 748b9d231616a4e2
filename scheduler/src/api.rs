//! All routes on one page. A handler decodes, asks the scheduler, encodes; no branch in it is about anything but HTTP.

mod extender;
mod wire;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};

use crate::Scheduler;

/// The scheduler's own routes.
pub fn routes(scheduler: Scheduler) -> Router {
    Router::new()
        .route("/healthz", get(StatusCode::OK))
        .route("/readyz", get(ready))
        .route("/filter", post(extender::filter))
        .route("/prioritize", post(extender::prioritize))
        .route("/preempt", post(extender::preempt))
        .route("/bind", post(extender::bind))
        .with_state(scheduler)
}

/// Ready once the cluster has been read, whether it answers or stands by.
async fn ready(State(scheduler): State<Scheduler>) -> (StatusCode, String) {
    if scheduler.is_synced() {
        (StatusCode::OK, String::new())
    } else {
        let missing = scheduler.missing();
        (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: {missing} not read from the API server yet\n"),
        )
    }
}
