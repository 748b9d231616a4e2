//! The webhook's HTTP routes: admission's routes behind a limit for bodies, with counters and
//! timing, and the health and metrics routes.
//!
//! Nothing here reads a review's contents.

use std::sync::Arc;
use std::time::{Duration, Instant};

use admission::{Admission, Reviewed};
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use server::{Bodies, Manners, Readiness};

use crate::metrics::Meters;

/// Limits on the connections of API servers. They use HTTP/1.1 with one connection for each review
/// in flight, perhaps all from one address, and keep idle connections for 90 s.
#[must_use]
pub fn manners() -> Manners {
    Manners {
        connections: 4096,
        connections_per_address: 1024,
        head_timeout: Duration::from_secs(120),
        ..Manners::default()
    }
}

/// The routes of the TLS port: reviews, and everything of [`plain`].
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

/// The routes of the port without TLS: `/metrics`, `/healthz`, `/readyz`.
pub fn plain(meters: &Meters, readiness: Readiness) -> Router {
    server::metrics(meters.registry()).merge(server::health(readiness))
}

async fn measure(State(meters): State<Meters>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let response = next.run(request).await;
    let Reviewed {
        operation,
        outcome,
        trace,
    } = what(&response);
    meters.reviewed(operation, outcome, began.elapsed(), trace);
    response
}

/// The operation and outcome of a review. A response without admission's extension never reached
/// admission: its body was too long or broke off, or the path does not exist.
fn what(response: &Response) -> Reviewed {
    let nothing = Reviewed {
        operation: "unknown",
        outcome: "broken",
        trace: None,
    };
    response.extensions().get().copied().unwrap_or(nothing)
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::StatusCode;
    use kube_api::config::DeviceConfig;
    use kube_api::vendor::{Switches, Vendors};
    use tower::ServiceExt;

    use super::*;

    fn router() -> Router {
        let switches = Switches {
            ascend: true,
            iluvatar: true,
        };
        let vendors = Vendors::new(DeviceConfig::standard(), switches).unwrap();
        let admission = Admission::new(Arc::new(vendors), admission::Settings::default());
        tls(
            Arc::new(admission),
            &Meters::default(),
            Readiness::waiting_for("the first look"),
        )
    }

    async fn ask(router: &Router, method: &str, path: &str, body: Body) -> (StatusCode, String) {
        let request = Request::builder().method(method).uri(path);
        let response = router.clone().oneshot(request.body(body).unwrap());
        let (parts, body) = response.await.unwrap().into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        (parts.status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn body_without_a_review_is_answered_and_counted() {
        let router = router();
        let mib = axum::body::Bytes::from(vec![b' '; 1 << 20]);
        let long = |mibs| {
            let parts = std::iter::repeat_n(mib.clone(), mibs);
            let parts = parts.map(Ok::<_, std::convert::Infallible>);
            Body::from_stream(futures_util::stream::iter(parts))
        };

        let (status, text) = ask(&router, "POST", "/webhook", long(65)).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(text.starts_with("{\"Error\":"), "{text}");
        let (status, _) = ask(&router, "POST", "/webhook", long(64)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        for body in ["", "{", "[]", "null", "\u{1}", "{\"kind\":\"Pod\"}"] {
            let (status, _) = ask(&router, "POST", "/validate-v1-pod", body.into()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        }
        let (status, _) = ask(&router, "GET", "/mutate", Body::empty()).await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);

        let (_, metrics) = ask(&router, "GET", "/metrics", Body::empty()).await;
        let series = "vgpu_webhook_reviews_total{operation=\"unknown\",outcome=\"broken\"} 9";
        assert!(metrics.contains(series), "{metrics}");
        let (status, text) = ask(&router, "GET", "/readyz", Body::empty()).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text, "not ready: the first look\n");
    }
}
