//! The routes that kube-scheduler calls. Every answer, including a refusal, has the shape that the caller reads.

use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use kube_api::extender::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderPreemptionArgs,
    ExtenderPreemptionResult, MetaVictims,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use server::TraceContext;
use tokio::runtime::Handle;

use crate::filter::Answer;
use crate::metrics::{Outcome, Verb};
use crate::{Scheduler, spans};

/// A larger body is handled on a blocking thread, away from the threads that serve: thousands of whole nodes take a
/// while.
const LARGE: usize = 1 << 20;

/// A node that does not fit is an answer, not an error: kube-scheduler shows its reason to the user.
pub(super) async fn filter(State(scheduler): State<Scheduler>, body: Bytes) -> Response {
    if body.len() <= LARGE {
        return filtered(&scheduler, &body).await;
    }
    let here = Handle::current();
    let beside = tokio::task::spawn_blocking(move || here.block_on(filtered(&scheduler, &body)));
    match beside.await {
        Ok(response) => response,
        Err(broken) => std::panic::resume_unwind(broken.into_panic()),
    }
}

async fn filtered(scheduler: &Scheduler, body: &[u8]) -> Response {
    let count = Count::of(scheduler, Verb::Filter);
    let args: ExtenderArgs = match decode(body) {
        Ok(args) => args,
        Err(why) => {
            count.ended(Outcome::BadRequest);
            return json(StatusCode::BAD_REQUEST, &Answer::error(why.to_string()));
        }
    };
    if let Err(why) = scheduler.may_answer().await {
        count.ended(Outcome::NotReady);
        let answer = Answer::error(why.to_string());
        return json(StatusCode::SERVICE_UNAVAILABLE, &answer);
    }
    let span = scheduler.filter_span(&args);
    let answer = match scheduler.meet(args, body).await {
        Ok(args) => scheduler.filter(args, body).await,
        Err(why) => Answer::error(why.to_string()),
    };
    let response = written(StatusCode::OK, &answer, answer.length());
    count.ended_in(answer.outcome(), spans::filtered(span, &answer));
    response
}

pub(super) async fn prioritize(State(scheduler): State<Scheduler>, body: Bytes) -> Response {
    let args: ExtenderArgs = match ready(&scheduler, Verb::Prioritize, &body).await {
        Ok(args) => args,
        Err(refusal) => return refusal,
    };
    scheduler.read_claims_of(&args).await;
    let count = Count::of(&scheduler, Verb::Prioritize);
    match scheduler.prioritize(args) {
        Ok(scores) => {
            count.ended(Outcome::Ok);
            json(StatusCode::OK, &scores)
        }
        Err(why) => {
            count.ended(Outcome::BadRequest);
            error(StatusCode::BAD_REQUEST, why.to_string())
        }
    }
}

pub(super) async fn preempt(State(scheduler): State<Scheduler>, body: Bytes) -> Response {
    let args: ExtenderPreemptionArgs = match ready(&scheduler, Verb::Preempt, &body).await {
        Ok(args) => args,
        Err(refusal) => return refusal,
    };
    let count = Count::of(&scheduler, Verb::Preempt);
    match scheduler.preempt(args) {
        Ok(victims) => {
            count.ended(if victims.is_empty() {
                Outcome::NoNode
            } else {
                Outcome::Ok
            });
            let node_name_to_meta_victims = victims
                .iter()
                .map(|(node, victims)| (node.clone(), MetaVictims::from(victims)))
                .collect();
            let answer = ExtenderPreemptionResult {
                node_name_to_meta_victims,
            };
            json(StatusCode::OK, &answer)
        }
        Err(why) => {
            count.ended(Outcome::BadRequest);
            error(StatusCode::BAD_REQUEST, why.to_string())
        }
    }
}

pub(super) async fn bind(State(scheduler): State<Scheduler>, body: Bytes) -> Response {
    let args: ExtenderBindingArgs = match ready(&scheduler, Verb::Bind, &body).await {
        Ok(args) => args,
        Err(refusal) => return refusal,
    };
    let count = Count::of(&scheduler, Verb::Bind);
    let span = scheduler.bind_span(&args);
    // An empty error says that the pod is bound.
    let (outcome, why) = match scheduler.bind(args).await {
        Ok(()) => (Outcome::Ok, String::new()),
        Err(why) => (Outcome::Failed, why.to_string()),
    };
    count.ended_in(outcome, spans::bound(span, &why));
    error(StatusCode::OK, why)
}

/// Decodes the question, once this replica may answer it.
async fn ready<T: DeserializeOwned>(
    scheduler: &Scheduler,
    verb: Verb,
    body: &[u8],
) -> Result<T, Response> {
    let count = Count::of(scheduler, verb);
    let args = match decode(body) {
        Ok(args) => args,
        Err(why) => {
            count.ended(Outcome::BadRequest);
            return Err(error(StatusCode::BAD_REQUEST, why.to_string()));
        }
    };
    if let Err(why) = scheduler.may_answer().await {
        count.ended(Outcome::NotReady);
        return Err(error(StatusCode::SERVICE_UNAVAILABLE, why.to_string()));
    }
    scheduler.catch_up().await;
    Ok(args)
}

/// The body of a request is not the JSON that the route takes.
#[derive(Debug, thiserror::Error)]
#[error("the request's body cannot be read: {0}")]
struct Unreadable(#[from] serde_json::Error);

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Unreadable> {
    Ok(serde_json::from_slice(body)?)
}

/// Counts a request when its outcome is known.
struct Count<'a> {
    scheduler: &'a Scheduler,
    verb: Verb,
    began: Instant,
}

impl<'a> Count<'a> {
    fn of(scheduler: &'a Scheduler, verb: Verb) -> Self {
        Self {
            scheduler,
            verb,
            began: Instant::now(),
        }
    }

    fn ended(self, outcome: Outcome) {
        self.ended_in(outcome, None);
    }

    fn ended_in(self, outcome: Outcome, trace: Option<TraceContext>) {
        let took = self.began.elapsed();
        let meters = self.scheduler.meters();
        meters.answered_in(self.verb, outcome, took, trace);
    }
}

fn error(status: StatusCode, error: String) -> Response {
    json(status, &ExtenderBindingResult { error })
}

fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    written(status, answer, 128)
}

fn written(status: StatusCode, answer: &impl Serialize, length: usize) -> Response {
    let mut body = Vec::with_capacity(length);
    match serde_json::to_writer(&mut body, answer) {
        Ok(()) => (status, [(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(problem) => server::error(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("the answer cannot be written: {problem}"),
        ),
    }
}
