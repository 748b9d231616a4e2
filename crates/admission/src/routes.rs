//! The routes of admission: bodies in, answers out.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};

use crate::admit::Admission;
use crate::review::{Answer, WebhookKind};

/// The largest body that is read. An API server sends an object and its previous version, 1.5 MiB each.
const BODY_LIMIT: usize = 64 << 20;
/// A larger body is reviewed on a blocking thread, away from the threads that serve.
const LARGE: usize = 1 << 20;

/// `POST /webhook`, `/mutate` and `/mutate-v1-pod` change pods; `/validate-v1-pod` and `/validate-claims` only allow or
/// deny. Each response has a [`Reviewed`](crate::Reviewed) among its extensions.
pub fn routes(admission: Arc<Admission>) -> Router {
    Router::new()
        .route("/webhook", post(mutate))
        .route("/mutate", post(mutate))
        .route("/mutate-v1-pod", post(mutate))
        .route("/validate-v1-pod", post(validate))
        .route("/validate-claims", post(validate))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(admission)
}

async fn mutate(State(admission): State<Arc<Admission>>, body: Bytes) -> Response {
    review(admission, WebhookKind::Mutate, body).await
}

async fn validate(State(admission): State<Arc<Admission>>, body: Bytes) -> Response {
    review(admission, WebhookKind::Validate, body).await
}

async fn review(admission: Arc<Admission>, kind: WebhookKind, body: Bytes) -> Response {
    let judged = if body.len() <= LARGE {
        Ok(admission.count_at(kind, &body))
    } else {
        tokio::task::spawn_blocking(move || admission.count_at(kind, &body)).await
    };
    match judged {
        Ok((answer, reviewed)) => (Extension(reviewed), answer).into_response(),
        Err(_) => Answer::Failed("this review could not be judged".into()).into_response(),
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        match self {
            Self::Reviewed(json) => {
                ([(header::CONTENT_TYPE, "application/json")], json).into_response()
            }
            Self::Unreadable(why) => (StatusCode::BAD_REQUEST, why).into_response(),
            Self::Failed(why) => (StatusCode::INTERNAL_SERVER_ERROR, why).into_response(),
        }
    }
}
