//! Which web pages may call this API: CORS, with the headers of the reference.

use std::sync::Arc;

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
use super::browsers::{judge, without_port};

const METHODS: HeaderValue = HeaderValue::from_static("GET,HEAD,PUT,PATCH,POST,DELETE");

/// Origins whose pages may call: `http://localhost:3000`, or `*` for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origins {
    origins: Arc<[String]>,
    /// Whether only clients with a token are served, under any name of this machine.
    pub(super) behind_token: bool,
}

impl Origins {
    /// These, and no other.
    pub fn new(origins: impl IntoIterator<Item = String>) -> Self {
        Self {
            origins: origins.into_iter().collect(),
            behind_token: false,
        }
    }

    /// The same where every client has a token: then any `Host` will do.
    #[must_use]
    pub fn behind_token(self) -> Self {
        Self {
            behind_token: true,
            ..self
        }
    }

    /// Whether a host is that of one of the origins.
    pub(super) fn names_host(&self, host: &str) -> bool {
        self.origins.iter().any(|origin| {
            let of = origin.split_once("://").map(|(_, host)| host);
            let same = |of| without_port(of).eq_ignore_ascii_case(without_port(host));
            origin == "*" || of.is_some_and(same)
        })
    }

    pub(super) fn allowed(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        let any = self.origins.iter().any(|allowed| allowed == "*");
        let this = self
            .origins
            .iter()
            .any(|allowed| allowed.as_bytes() == origin.as_bytes());
        match (this, any) {
            (true, _) => Some(origin.clone()),
            (false, true) => Some(HeaderValue::from_static("*")),
            (false, false) => None,
        }
    }
}

/// Every answer says how it depends on the origin; a preflight is answered here. Reads of other origins are served, and
/// their pages do not get to see the answer; their writes, and what comes under a foreign name, are refused.
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
        error(StatusCode::FORBIDDEN, &why)
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
