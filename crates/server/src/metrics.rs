//! `/metrics`: a registry that is encoded at each scrape.
//!
//! One encoding runs at a time, off the threads that serve, because collectors read files. No
//! answer is cached: a scrape shows the state at its time.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::sync::{AcquireError, Semaphore};
use tokio::time::timeout;

use crate::exposition::{Format, prometheus_text};

/// Prometheus gives up after 10 s by default, so a later answer would be lost.
const PATIENCE: Duration = Duration::from_secs(9);

struct Exposition {
    registry: Registry,
    turn: Arc<Semaphore>,
}

/// `/metrics` for the registry; its collectors run at each scrape.
pub fn metrics(registry: Registry) -> Router {
    let exposition = Exposition {
        registry,
        turn: Arc::new(Semaphore::new(1)),
    };
    Router::new()
        .route("/metrics", get(scrape))
        .with_state(Arc::new(exposition))
}

async fn scrape(State(exposition): State<Arc<Exposition>>, headers: HeaderMap) -> Response {
    let accept = headers
        .get_all(ACCEPT)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    let format = Format::wanted(accept);
    match timeout(PATIENCE, encode(exposition, format)).await {
        Ok(Ok(text)) => {
            let headers = [
                (CONTENT_TYPE, format.content_type()),
                (CACHE_CONTROL, "no-store"),
                (VARY, "accept"),
            ];
            (headers, text).into_response()
        }
        Ok(Err(reason)) => {
            tracing::error!(%reason, "no metrics");
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("no metrics: {reason}\n"),
            )
                .into_response()
        }
        Err(_elapsed) => {
            let seconds = PATIENCE.as_secs();
            tracing::error!(seconds, "no metrics in time");
            let text = format!("no metrics within {seconds} seconds; an earlier scrape may hang\n");
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

/// Why there are no metrics.
#[derive(Debug, thiserror::Error)]
enum EncodeError {
    #[error("a collector failed")]
    Failed,
    #[error("a collector panicked")]
    Panicked,
    /// Cannot happen: the semaphore is never closed.
    #[error(transparent)]
    Turn(#[from] AcquireError),
}

async fn encode(exposition: Arc<Exposition>, format: Format) -> Result<String, EncodeError> {
    let turn = Arc::clone(&exposition.turn);
    // The permit moves into the task, so that a scraper that gives up does not let a second
    // encoding start beside a first one that hangs.
    let permit = turn.acquire_owned().await?;
    let task = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &exposition.registry)
            .map_err(|_| EncodeError::Failed)?;
        Ok(match format {
            Format::OpenMetrics => text,
            Format::PrometheusText => prometheus_text(&text),
        })
    });
    task.await.unwrap_or(Err(EncodeError::Panicked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::DescriptorEncoder;
    use prometheus_client::metrics::counter::Counter;
    use tower::ServiceExt;

    async fn get(router: &Router, accept: &str) -> (StatusCode, String, String) {
        let request = Request::get("/metrics")
            .header(ACCEPT, accept)
            .body(Body::empty())
            .unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let kind = response
            .headers()
            .get(CONTENT_TYPE)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, kind, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn each_scraper_gets_its_format_with_its_type() {
        let mut registry = Registry::default();
        registry.register("calls", "Calls", Counter::<u64>::default());
        let router = metrics(registry);

        let (_, kind, text) = get(&router, "application/openmetrics-text").await;
        assert_eq!(
            kind,
            "application/openmetrics-text; version=1.0.0; charset=utf-8"
        );
        assert_eq!(
            text,
            "# HELP calls Calls.\n# TYPE calls counter\ncalls_total 0\n# EOF\n"
        );

        let (_, kind, text) = get(&router, "*/*").await;
        assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
        assert_eq!(
            text,
            "# HELP calls_total Calls.\n# TYPE calls_total counter\ncalls_total 0\n"
        );
    }

    #[derive(Debug)]
    struct Panics;

    impl Collector for Panics {
        fn encode(&self, _: DescriptorEncoder) -> Result<(), std::fmt::Error> {
            panic!("a collector of this test panics");
        }
    }

    #[tokio::test]
    async fn a_collector_that_panics_costs_its_scrape_and_nothing_more() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Panics));
        let router = metrics(registry);

        for _ in 0..2 {
            let (status, _, text) = get(&router, "*/*").await;
            assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
            assert_eq!(text, "no metrics: a collector panicked\n");
        }
    }

    #[derive(Debug)]
    struct Hangs(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

    impl Collector for Hangs {
        fn encode(&self, _: DescriptorEncoder) -> Result<(), std::fmt::Error> {
            // Ends when the test drops the other end.
            assert!(
                self.0.lock().unwrap().recv().is_err(),
                "the sender stays silent"
            );
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_collector_gets_an_answer_and_blocks_a_second_run() {
        let (release, hang) = std::sync::mpsc::channel();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Hangs(std::sync::Mutex::new(hang))));
        let router = metrics(registry);

        // The paused clock does not move while a blocking task runs, so the test moves it.
        let scrapes = async { tokio::join!(get(&router, "*/*"), get(&router, "*/*")) };
        let clock = async {
            for _ in 0..20 {
                tokio::task::yield_now().await;
                tokio::time::advance(Duration::from_secs(1)).await;
            }
        };
        let ((first, second), ()) = tokio::join!(scrapes, clock);

        assert_eq!(first.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(second.0, StatusCode::SERVICE_UNAVAILABLE);
        drop(release);
    }
}
