//! Request bodies, read whole before the handler runs, so that a body that is too long, too slow or
//! broken off is refused in one place and in one form, `{"Error": "…"}`.
//!
//! The contents are not examined.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

/// Limits on bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bodies {
    /// Bytes of one body; a longer one is answered with 413.
    pub bytes: usize,
    /// The time for a whole body to arrive; a slower one is answered with 408.
    pub time: Duration,
    /// Bytes of all bodies at a time, beyond the first [`Bodies::FREE`] of each. A request that
    /// would exceed this waits, and is answered with 503 when its time is over. So the long bodies
    /// of one client cannot take all memory, and short bodies never wait.
    pub together: usize,
}

impl Default for Bodies {
    /// 64 MiB: kube-scheduler's arguments with 5,000 whole nodes fit.
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            time: Duration::from_secs(60),
            together: 256 << 20,
        }
    }
}

impl Bodies {
    /// The first bytes of a body; they do not count against [`Bodies::together`].
    pub const FREE: usize = 1 << 20;

    /// Wraps the router in these limits.
    ///
    /// Its handlers get bodies that have arrived in full; axum's own limit (2 MiB) is off.
    pub fn limit(self, router: Router) -> Router {
        self.limit_answering(router, error)
    }

    /// As [`Bodies::limit`], with refusals in the caller's form.
    pub fn limit_answering(
        self,
        router: Router,
        answer: fn(StatusCode, &str) -> Response,
    ) -> Router {
        let intake = Arc::new(Intake {
            limits: self,
            answer,
            room: Arc::new(Semaphore::new(self.together.min(Semaphore::MAX_PERMITS))),
        });
        router
            .layer(DefaultBodyLimit::disable())
            .layer(from_fn_with_state(intake, pass))
    }
}

struct Intake {
    limits: Bodies,
    /// Encodes a refusal.
    answer: fn(StatusCode, &str) -> Response,
    /// One permit is one byte.
    room: Arc<Semaphore>,
}

/// A body that has arrived, with its part of the shared room for as long as its request lasts.
struct Arrived {
    bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

async fn pass(State(intake): State<Arc<Intake>>, request: Request, next: Next) -> Response {
    let (parts, mut body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(Request::from_parts(parts, body)).await;
    }
    match intake.take_in(&parts.headers, &mut body).await {
        Ok(arrived) => {
            let request = Request::from_parts(parts, Body::from(arrived.bytes));
            let response = next.run(request).await;
            drop(arrived.room);
            response
        }
        Err(refusal) => {
            // A client that sent `Expect` waits for the answer before it sends, and reads it. A
            // client that is already sending reads the answer only if the connection stays open.
            if refusal == Refusal::TooLong && !parts.headers.contains_key(EXPECT) {
                tokio::spawn(swallow(body, intake.limits));
            }
            refusal.answer(intake.limits, intake.answer)
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Refusal {
    TooLong,
    TooSlow,
    NoRoom,
    Broken(String),
}

impl Refusal {
    fn answer(self, limits: Bodies, answer: fn(StatusCode, &str) -> Response) -> Response {
        let seconds = limits.time.as_secs();
        let (status, text) = match self {
            Self::TooLong => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!(
                    "the request's body is longer than the {} bytes that are accepted",
                    limits.bytes
                ),
            ),
            Self::TooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                format!("the request's body did not arrive within {seconds} seconds"),
            ),
            Self::NoRoom => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too many long bodies at a time; try again".to_owned(),
            ),
            Self::Broken(reason) => (
                StatusCode::BAD_REQUEST,
                format!("the request's body broke off: {reason}"),
            ),
        };
        let mut response = answer(status, &text);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, 1.into());
        }
        response
    }
}

/// An answer in the form that HAMi's clients read: `{"Error": "…"}`.
#[must_use]
pub fn error(status: StatusCode, text: &str) -> Response {
    let mut json = String::with_capacity(text.len() + 16);
    json.push_str("{\"Error\":\"");
    for letter in text.chars() {
        match letter {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            letter if u32::from(letter) < 0x20 => {
                json.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            letter => json.push(letter),
        }
    }
    json.push_str("\"}\n");
    (status, [(CONTENT_TYPE, "application/json")], json).into_response()
}

impl Intake {
    async fn take_in(&self, headers: &HeaderMap, body: &mut Body) -> Result<Arrived, Refusal> {
        let limits = self.limits;
        // hyper has checked that it is a number, and ends the body there.
        let declared: Option<u64> = headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let declared = match declared.map(usize::try_from) {
            None => None,
            Some(Ok(length)) if length <= limits.bytes => Some(length),
            Some(_) => return Err(Refusal::TooLong),
        };
        let deadline = Instant::now() + limits.time;
        let mut arrived = Arrived {
            bytes: Vec::with_capacity(declared.unwrap_or(0).min(Bodies::FREE)),
            room: None,
        };
        loop {
            let Ok(frame) = timeout_at(deadline, next_frame(body)).await else {
                return Err(Refusal::TooSlow);
            };
            let Some(frame) = frame else {
                return Ok(arrived);
            };
            let part = frame.map_err(|error| Refusal::Broken(error.to_string()))?;
            let length = arrived.bytes.len() + part.len();
            if length > limits.bytes {
                // The memory of the body is released before the answer is sent.
                return Err(Refusal::TooLong);
            }
            if length > arrived.bytes.capacity() {
                let room = self.grow(&mut arrived, length, declared, deadline);
                room.await?;
            }
            arrived.bytes.extend_from_slice(&part);
        }
    }

    /// Room for `length` bytes and for more to come: twice as much, or the declared length. The
    /// declaration counts only after the first mebibyte has arrived.
    async fn grow(
        &self,
        arrived: &mut Arrived,
        length: usize,
        declared: Option<usize>,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let wanted = length
            .max(declared.unwrap_or(2 * length))
            .max(16 << 10)
            .min(self.limits.bytes);
        let has = arrived
            .room
            .as_ref()
            .map_or(0, OwnedSemaphorePermit::num_permits);
        let needs = wanted.saturating_sub(Bodies::FREE).saturating_sub(has);
        let needs = u32::try_from(needs).map_err(|_| Refusal::NoRoom)?;
        if needs > 0 {
            let permits = Arc::clone(&self.room).acquire_many_owned(needs);
            let Ok(Ok(permits)) = timeout_at(deadline, permits).await else {
                return Err(Refusal::NoRoom);
            };
            match &mut arrived.room {
                Some(room) => room.merge(permits),
                room => *room = Some(permits),
            }
        }
        arrived.bytes.reserve_exact(wanted - arrived.bytes.len());
        Ok(())
    }
}

/// The next bytes of the body; none at its end. Trailers are dropped.
async fn next_frame(body: &mut Body) -> Option<Result<Bytes, axum::Error>> {
    loop {
        match std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await? {
            Ok(frame) => match frame.into_data() {
                Ok(bytes) => return Some(Ok(bytes)),
                Err(_trailers) => {}
            },
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Reads and discards the rest, for a limited time and up to four times the accepted length: a
/// client that writes the whole body before it reads would lose the answer to a connection reset.
async fn swallow(mut body: Body, limits: Bodies) {
    let reading = async {
        let mut read = 0;
        while let Some(Ok(part)) = next_frame(&mut body).await {
            read += part.len();
            if read / 4 > limits.bytes {
                break;
            }
        }
    };
    drop(timeout(limits.time.min(Duration::from_secs(10)), reading).await);
}
