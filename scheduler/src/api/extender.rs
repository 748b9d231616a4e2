//! The verbs that kube-scheduler calls. Every answer has the shape that the caller reads, also where it is a refusal.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use kube_api::extender::ExtenderBindingResult;
use serde::Serialize;

use super::wire;
use crate::Scheduler;
use crate::filter::Answer;

/// A node that does not fit is an answer, not an error: kube-scheduler shows its reason to the user.
pub(super) async fn filter(State(scheduler): State<Scheduler>, body: Bytes) -> Response {
    let args = match wire::filter_args(&body) {
        Ok(args) => args,
        Err(why) => return json(StatusCode::BAD_REQUEST, &Answer::error(why)),
    };
    if let Err(why) = scheduler.may_answer().await {
        return json(
            StatusCode::SERVICE_UNAVAILABLE,
            &Answer::error(why.to_string()),
        );
    }
    let args = match scheduler.meet(args, &body).await {
        Ok(args) => args,
        Err(why) => return json(StatusCode::INTERNAL_SERVER_ERROR, &Answer::error(why)),
    };
    json(StatusCode::OK, &scheduler.filter(args).await)
}

pub(super) async fn prioritize(State(scheduler): State<Scheduler>, body: Bytes) -> Response {
    let args = match wire::filter_args(&body) {
        Ok(args) => args,
        Err(why) => return error(StatusCode::BAD_REQUEST, why),
    };
    if let Err(why) = scheduler.may_answer().await {
        return error(StatusCode::SERVICE_UNAVAILABLE, why.to_string());
    }
    scheduler.catch_up().await;
    match scheduler.prioritize(args) {
        Ok(scores) => json(StatusCode::OK, &scores),
        Err(why) => error(StatusCode::OK, why),
    }
}

pub(super) async fn preempt(State(scheduler): State<Scheduler>, body: Bytes) -> Response {
    let args = match wire::preemption_args(&body) {
        Ok(args) => args,
        Err(why) => return error(StatusCode::BAD_REQUEST, why),
    };
    if let Err(why) = scheduler.may_answer().await {
        return error(StatusCode::SERVICE_UNAVAILABLE, why.to_string());
    }
    scheduler.catch_up().await;
    match scheduler.preempt(args) {
        Ok(victims) => json(StatusCode::OK, &wire::preemption_result(victims)),
        Err(why) => error(StatusCode::BAD_REQUEST, why),
    }
}

pub(super) async fn bind(State(scheduler): State<Scheduler>, body: Bytes) -> Response {
    let args = match wire::binding_args(&body) {
        Ok(args) => args,
        Err(why) => return error(StatusCode::BAD_REQUEST, why),
    };
    if let Err(why) = scheduler.may_answer().await {
        return error(StatusCode::SERVICE_UNAVAILABLE, why.to_string());
    }
    scheduler.catch_up().await;
    let why = scheduler.bind(args).await.err().unwrap_or_default();
    error(StatusCode::OK, why)
}

fn error(status: StatusCode, error: String) -> Response {
    json(status, &ExtenderBindingResult { error })
}

fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(body) => (status, [(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(problem) => server::error(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("the answer cannot be written: {problem}"),
        ),
    }
}
