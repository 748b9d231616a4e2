//! What the webhook serves: admission's routes behind a limit for bodies, counted and timed, and
//! how it is.
//!
//! Never looks into a review.

use std::sync::Arc;
use std::time::{Duration, Instant};

use admission::{Admission, Reviewed};
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use server::{Bodies, Manners, Readiness};

use crate::metrics::Meters;

/// What API servers may draw out. They come over HTTP/1.1, one connection for each review in
/// flight, perhaps all from one address, and keep idle ones for 90 s.
#[must_use]
pub fn manners() -> Manners {
    Manners {
        connections: 4096,
        connections_per_address: 1024,
        head_timeout: Duration::from_secs(120),
        ..Manners::default()
    }
}

/// For the TLS port: reviews, and everything of [`plain`].
pub fn tls(admission: Arc<Admission>, meters: &Meters, readiness: Readiness) -> Router {
    let bodies = Bodies {
        together: 128 << 20,
        ..Bodies::default()
    };
    let reviews = bodies
        .limit(admission::routes(admission))
        .layer(from_fn_with_state(meters.clone(), measure));
    reviews.merge(plain(meters, readiness))
}

/// For the port without TLS: `/metrics`, `/healthz`, `/readyz`.
pub fn plain(meters: &Meters, readiness: Readiness) -> Router {
    server::metrics(meters.registry()).merge(server::health(readiness))
}

async fn measure(State(meters): State<Meters>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let response = next.run(request).await;
    let (operation, outcome) = what(&response);
    meters.reviewed(operation, outcome, began.elapsed());
    response
}

/// What it was and what came of it. Without a word from admission it never got there: a body that
/// was too long or broke off, a path that there is not.
fn what(response: &Response) -> (&'static str, &'static str) {
    match response.extensions().get::<Reviewed>() {
        Some(reviewed) => (reviewed.operation, reviewed.outcome),
        None => ("unknown", "broken"),
    }
}
