//! Which web pages may call this API: CORS, with the reference's headers.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_REQUEST_HEADERS, ORIGIN, VARY,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use super::answers::error;
use super::browsers::judge;
use super::origins::Origins;

const METHODS: HeaderValue = HeaderValue::from_static("GET,HEAD,PUT,PATCH,POST,DELETE");

/// Every answer says how it depends on the origin; a preflight is answered here. Reads of other origins are served, but
/// the browser hides the answer from their pages. Their writes, and requests under a foreign host name, are refused.
pub(super) fn allow(origins: Origins, router: Router) -> Router {
    router.layer(from_fn_with_state(origins, answer))
}

async fn answer(State(origins): State<Origins>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(ORIGIN);
    let allowed = origin.and_then(|origin| origins.allowed(origin));
    let preflight = request.method() == Method::OPTIONS;
    let asked = request
        .headers()
        .get(ACCESS_CONTROL_REQUEST_HEADERS)
        .cloned();
    let mut response = if preflight {
        StatusCode::NO_CONTENT.into_response()
    } else if let Err(why) = judge(&origins, request.method(), request.headers()) {
        error(StatusCode::FORBIDDEN, &why.to_string())
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.append(VARY, HeaderValue::from_static("Origin"));
    let Some(allowed) = allowed else {
        return response;
    };
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
    headers.insert(
        ACCESS_CONTROL_ALLOW_CREDENTIALS,
        HeaderValue::from_static("true"),
    );
    if preflight {
        for name in [
            "Access-Control-Request-Method",
            "Access-Control-Request-Headers",
        ] {
            headers.append(VARY, HeaderValue::from_static(name));
        }
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        if let Some(asked) = asked {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked);
        }
    }
    response
}
