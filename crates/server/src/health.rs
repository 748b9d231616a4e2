//! `/healthz` (the process serves) and `/readyz` (it can do its work, or why not).
//!
//! Nothing is measured here: the parts of the daemon report their state through [`Readiness`].

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;

/// Whether the daemon can do its work. Clones share one state.
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

    /// Sets the state to ready.
    pub fn ready(&self) {
        *self.lock() = None;
    }

    /// Sets the state to not ready; `/readyz` shows the reason.
    pub fn not_ready(&self, reason: impl Into<String>) {
        *self.lock() = Some(reason.into());
    }

    /// Why the daemon is not ready; `None` if it is.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        // The text is replaced in one step, so a poisoned lock can be used.
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
