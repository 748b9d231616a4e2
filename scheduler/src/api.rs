//! All routes on one page. A handler decodes, calls the scheduler and encodes; it makes no decision that is not about
//! HTTP.

pub mod assigner;
mod extender;
pub mod simulator;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use admission::Admission;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use futures_util::FutureExt;

pub use crate::access::Access;
use crate::beside::Beside;
use crate::metrics::Choice;
use crate::{Scheduler, explain, metrics};

/// `/healthz` and `/readyz`, for the kubelet and for monitoring, and `/livez/kube-scheduler`, with which the kubelet
/// asks whether the kube-scheduler `beside` may go on.
pub fn health(scheduler: Scheduler, beside: Option<Beside>) -> Router {
    let asked = {
        let scheduler = scheduler.clone();
        get(async move || may_go_on(&scheduler, beside.as_ref()).await)
    };
    Router::new()
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .with_state(scheduler)
        .route("/livez/kube-scheduler", asked)
}

/// The routes that kube-scheduler calls.
pub fn verbs(scheduler: Scheduler) -> Router {
    let routes = Router::new()
        .route("/filter", post(extender::filter))
        .route("/prioritize", post(extender::prioritize))
        .route("/preempt", post(extender::preempt))
        .route("/bind", post(extender::bind))
        .with_state(scheduler.clone());
    routes.layer(from_fn_with_state(scheduler, own_up))
}

/// `/metrics` and `/explain`, for people and Prometheus: for all callers, or for those that `access` lets in.
pub fn figures(scheduler: &Scheduler, choice: Choice, access: Option<&Access>) -> Router {
    let meters = scheduler.meters().clone();
    let source: Arc<Scheduler> = Arc::new(scheduler.clone());
    let routes = metrics::routes(source.clone(), meters, choice).merge(explain::routes(source));
    match access {
        Some(access) => access.guard(routes),
        None => routes,
    }
}

/// All routes but those of [`health`], with `/webhook` if `admission` is given.
pub fn work(
    scheduler: &Scheduler,
    admission: Option<Arc<Admission>>,
    choice: Choice,
    access: Option<&Access>,
) -> Router {
    let routes = verbs(scheduler.clone()).merge(figures(scheduler, choice, access));
    match admission {
        Some(admission) => routes.merge(admission::routes(admission)),
        None => routes,
    }
}

/// All routes of one listener that only this machine reaches.
pub fn routes(scheduler: &Scheduler, admission: Option<Arc<Admission>>, legacy: bool) -> Router {
    let choice = Choice {
        legacy,
        ..Choice::FULL
    };
    health(scheduler.clone(), None).merge(work(scheduler, admission, choice, None))
}

/// A ledger that does not answer never will again, so the kubelet restarts the process.
async fn healthy(State(scheduler): State<Scheduler>) -> (StatusCode, String) {
    match scheduler.ledger_answers().await {
        Ok(()) => (StatusCode::OK, String::new()),
        Err(why) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not healthy: {why}\n"),
        ),
    }
}

/// Ready once the cluster has been read and while the ledger answers. A replica that stands by is also ready, and says
/// so. With `?answers` only the replica that answers is ready.
async fn ready(State(scheduler): State<Scheduler>, request: Request) -> (StatusCode, String) {
    let answers = scheduler.answers();
    let unready = match (&answers, request.uri().query()) {
        (Err(why), Some("answers")) => Some(why.to_string()),
        _ => why_unready(&scheduler).await,
    };
    match (unready, answers) {
        (Some(why), _) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: {why}\n"),
        ),
        (None, Ok(())) => (StatusCode::OK, "ready\n".into()),
        (None, Err(why)) => (StatusCode::OK, format!("ready, standing by: {why}\n")),
    }
}

/// Why the extender cannot serve; `None` if it can, or could as soon as it holds the Lease.
async fn why_unready(scheduler: &Scheduler) -> Option<String> {
    if !scheduler.is_synced() {
        let missing = scheduler.missing();
        return Some(format!("{missing} not read from the API server yet"));
    }
    let answered = scheduler.ledger_answers().await;
    answered.err().map(|why| why.to_string())
}

/// A kube-scheduler whose extender is not ready would keep the Lease, and with it the other replica, from work.
async fn may_go_on(scheduler: &Scheduler, beside: Option<&Beside>) -> (StatusCode, String) {
    if let Some(why) = why_unready(scheduler).await {
        let text = format!("vgpu-scheduler is not ready: {why}\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text);
    }
    let healthy = match beside {
        Some(beside) => beside.is_healthy().await,
        None => Ok(()),
    };
    match healthy {
        Ok(()) => (StatusCode::OK, "ok\n".into()),
        Err(why) => {
            let text = format!("kube-scheduler is not healthy: {why}\n");
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}

/// After a panic in our code: answers with an error, and has the ledger rebuilt, because it may be half changed.
async fn own_up(State(scheduler): State<Scheduler>, request: Request, next: Next) -> Response {
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            scheduler.break_off();
            server::error(
                StatusCode::INTERNAL_SERVER_ERROR,
                "a defect in the scheduler; its log has the place; the question can be asked again",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use kube_api::config::DeviceConfig;
    use kube_api::vendor::{Switches, Vendors};
    use tower::ServiceExt;

    use super::*;
    use crate::{Company, Settings};

    #[tokio::test]
    async fn panic_is_answered_and_the_ledger_built_again() {
        let cluster = embedded_cluster::Cluster::default();
        let switches = Switches {
            ascend: false,
            iluvatar: false,
        };
        let vendors = Arc::new(Vendors::new(DeviceConfig::standard(), switches).unwrap());
        let client = crate::embedded::client(&cluster);
        let scheduler = Scheduler::new(client, vendors, Settings::default(), Company::none());
        let following = scheduler.clone();
        let following = tokio::spawn(async move { following.follow().await });
        scheduler.may_answer().await.unwrap();
        async fn breaks() -> StatusCode {
            panic!("a defect, for this test");
        }
        let router = Router::new()
            .route("/filter", post(breaks))
            .layer(from_fn_with_state(scheduler.clone(), own_up));

        let request = Request::post("/filter").body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();

        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        assert!(body.starts_with(b"{\"Error\":\"a defect"), "{body:?}");
        assert!(!scheduler.is_synced());
        scheduler.may_answer().await.unwrap();
        following.abort();
    }
}
