//! `/healthz` (the process serves) and `/readyz` (it can do its work, or why not).
//!
//! Never looks at anything itself: whoever knows says so through [`Readiness`].

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;

/// Whether the daemon can do its work. Clones share one answer.
#[derive(Debug, Clone)]
pub struct Readiness {
    reason: Arc<Mutex<Option<String>>>,
}

impl Readiness {
    /// Not ready yet, for this reason.
    pub fn waiting_for(reason: impl Into<String>) -> Self {
        Self {
            reason: Arc::new(Mutex::new(Some(reason.into()))),
        }
    }

    /// Ready from here on.
    pub fn ready(&self) {
        *self.lock() = None;
    }

    /// Not ready from here on; the reason is what `/readyz` shows.
    pub fn not_ready(&self, reason: impl Into<String>) {
        *self.lock() = Some(reason.into());
    }

    /// Why it is not ready; nothing when it is.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        // A text cannot be half written: a panic elsewhere does not spoil it.
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `/healthz` and `/readyz`.
pub fn health(readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .with_state(readiness)
}

async fn ready(State(readiness): State<Readiness>) -> (StatusCode, String) {
    match readiness.reason() {
        None => (StatusCode::OK, "ready\n".into()),
        Some(reason) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: {reason}\n"),
        ),
    }
}
