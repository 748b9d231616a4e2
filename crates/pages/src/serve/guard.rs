//! What holds for every answer and every write, whatever the route: no script but our own, and no write on behalf of
//! another site's page.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// Scripts, styles and requests of this server only, nothing inline, and no frame around it.
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

/// The same routes, for clients that have the token: as a bearer token, or as the password of HTTP's basic
/// authentication, for which a browser asks its user. The name is not looked at.
pub(crate) fn with_token(router: Router, token: &str) -> Router {
    let token: Arc<str> = token.into();
    router.layer(from_fn(move |request: Request, next: Next| {
        let allowed = presented(request.headers()).is_some_and(|given| same(&given, &token));
        async move {
            if allowed {
                return next.run(request).await;
            }
            let ask = [(
                header::WWW_AUTHENTICATE,
                "Basic realm=\"vgpu\", charset=\"UTF-8\"",
            )];
            let text =
                "the token is missing or wrong: send it as a bearer token, or as the password\n";
            (StatusCode::UNAUTHORIZED, ask, text).into_response()
        }
    }))
}

/// The token that a client presents.
fn presented(headers: &HeaderMap) -> Option<String> {
    let (scheme, given) = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(given.trim().to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(given.trim()).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (_, password) = text.split_once(':')?;
    Some(password.to_owned())
}

/// In a time that does not tell how much of it is right.
fn same(given: &str, token: &str) -> bool {
    let pairs = given.bytes().zip(token.bytes());
    given.len() == token.len() && pairs.fold(0, |odd, (a, b)| odd | (a ^ b)) == 0
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

/// Whether a browser says that the request comes from our own page. A client that is no browser says nothing.
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
    #[test]
    fn a_token_comes_as_bearer_or_as_password() {
        let of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            presented(&headers)
        };

        assert_eq!(of("Bearer secret").as_deref(), Some("secret"));
        // me:se:cret
        assert_eq!(of("basic bWU6c2U6Y3JldA==").as_deref(), Some("se:cret"));
        assert_eq!(
            [of("Basic !"), of("Digest x"), of("Bearer")],
            [None, None, None]
        );
        assert!(same("secret", "secret"));
        assert!(!same("secre", "secret") && !same("secrex", "secret"));
    }
}
