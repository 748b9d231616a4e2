//! Answers in the format of the reference's HTTP library: JSON with a line end, errors as `{"message":…}`.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;

use crate::simulator::{Frame, Refusal};

/// The least size of a chunk of a long body.
const CHUNK: usize = 64 << 10;

const JSON: &str = "application/json; charset=UTF-8";

pub(super) fn json<T: Serialize>(value: &T) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(CONTENT_TYPE, JSON)], text + "\n").into_response(),
        Err(why) => error(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string()),
    }
}

/// A JSON text that may be long, with a line end. A long one is sent while it is generated.
pub(super) fn pieces(pieces: impl Iterator<Item = String> + Send + 'static) -> Response {
    let mut pieces = pieces.chain(["\n".to_owned()]);
    let mut chunks = std::iter::from_fn(move || {
        let mut chunk = pieces.next()?;
        while chunk.len() < CHUNK
            && let Some(piece) = pieces.next()
        {
            chunk.push_str(&piece);
        }
        Some(chunk)
    });
    let head = [(CONTENT_TYPE, JSON)];
    match (chunks.next(), chunks.next()) {
        (Some(only), None) => (head, only).into_response(),
        (first, second) => {
            let chunks = first.into_iter().chain(second).chain(chunks);
            let body = Body::from_stream(stream::iter(chunks.map(Ok::<_, Infallible>)));
            (head, body).into_response()
        }
    }
}

/// An answer without a body, and so without a content type.
pub(super) fn empty(code: StatusCode) -> Response {
    code.into_response()
}

pub(super) fn error(code: StatusCode, message: &str) -> Response {
    let body = serde_json::json!({ "message": message }).to_string() + "\n";
    (code, [(CONTENT_TYPE, JSON)], body).into_response()
}

/// Server-Sent Events, each with the version of its object as its id, and a comment from time to time while nothing
/// happens.
pub(super) fn events(
    frames: impl Stream<Item = Frame> + Send + 'static,
    heartbeat: Duration,
) -> Response {
    let events = frames.map(|frame| {
        let event = Event::default()
            .id(frame.version.to_string())
            .data(frame.json);
        Ok::<_, Infallible>(event)
    });
    let alive = KeepAlive::new().interval(heartbeat).text("alive");
    Sse::new(events).keep_alive(alive).into_response()
}

/// A refusal as an HTTP answer.
#[derive(Debug)]
pub(super) struct Failed(Refusal);

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let code = match self.0 {
            Refusal::Unreadable(_) => StatusCode::BAD_REQUEST,
            Refusal::Impossible(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Refusal::Expired(_) => StatusCode::GONE,
        };
        error(code, &self.0.to_string())
    }
}
