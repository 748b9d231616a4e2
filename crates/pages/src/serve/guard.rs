//! The rules for every answer and every write, whatever the route: no scripts but our own, and no write on behalf of
//! another site's page.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Only scripts, styles and requests of this server, nothing inline, and no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Adds the headers that every answer has.
pub(super) async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // `no-referrer` would make browsers send `Origin: null` with our own forms.
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Refuses a write that a browser makes for a page of another site.
pub(super) async fn same_origin(request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if reads || is_same_origin(request.headers()) {
        return next.run(request).await;
    }
    let why = "refused: the request comes from a page of another site\n";
    (StatusCode::FORBIDDEN, why).into_response()
}

/// Whether the browser says that the request comes from our own page. A client that is not a browser sends no such
/// header, and is allowed.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: header::HeaderName| headers.get(name)?.to_str().ok();
    if let Some(site) = headers.get("sec-fetch-site") {
        return matches!(site.as_bytes(), b"same-origin" | b"none");
    }
    match headers.get(header::ORIGIN) {
        None => true,
        Some(_) => {
            let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
            origin.is_some_and(|(_, host)| text(header::HOST) == Some(host))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(pairs: &[(&'static str, &'static str)]) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        is_same_origin(&headers)
    }

    #[test]
    fn only_our_own_pages_write() {
        assert!(judged(&[]));
        assert!(judged(&[
            ("sec-fetch-site", "same-origin"),
            ("origin", "null")
        ]));
        assert!(!judged(&[("sec-fetch-site", "cross-site")]));
        assert!(!judged(&[("sec-fetch-site", "same-site")]));
        assert!(judged(&[
            ("origin", "http://127.0.0.1:1212"),
            ("host", "127.0.0.1:1212")
        ]));
        assert!(!judged(&[
            ("origin", "http://evil.example"),
            ("host", "127.0.0.1:1212")
        ]));
        assert!(!judged(&[("origin", "null"), ("host", "127.0.0.1:1212")]));
    }
}
