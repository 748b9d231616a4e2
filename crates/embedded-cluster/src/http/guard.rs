//! Access to the server: without a token only from this machine, with a token only for requests that have it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::{ACCEPT, AUTHORIZATION, WWW_AUTHENTICATE};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};

use super::Refused;
use crate::admission::decode_base64;
use crate::status::Status;

/// Other machines can reach the address, and there is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} can be reached from other machines: the embedded cluster needs a token there, or a loopback address"
)]
pub struct TokenNeeded(pub SocketAddr);

/// The same routes, behind an access check. Without a token only a loopback address is allowed. With a token, every
/// request needs it, as a bearer token or as the password of a browser's prompt.
pub fn guard(
    router: Router,
    address: SocketAddr,
    token: Option<&str>,
) -> Result<Router, TokenNeeded> {
    let Some(token) = token.filter(|token| !token.is_empty()) else {
        return if address.ip().is_loopback() {
            Ok(router)
        } else {
            Err(TokenNeeded(address))
        };
    };
    let token: Arc<str> = token.into();
    Ok(
        router.layer(middleware::from_fn(move |request: Request, next: Next| {
            let allowed = presented(&request).is_some_and(|given| same(&given, &token));
            let browser = names_html(&request);
            async move {
                if allowed {
                    next.run(request).await
                } else {
                    denied(browser)
                }
            }
        })),
    )
}

/// The token that a request carries: `Bearer TOKEN`, or `Basic` with any user and the token as password.
fn presented(request: &Request) -> Option<String> {
    let (scheme, given) = request
        .headers()
        .get(AUTHORIZATION)?
        .to_str()
        .ok()?
        .split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(given.trim().to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = String::from_utf8(decode_base64(given.trim())?).ok()?;
    let (_, password) = pair.split_once(':')?;
    Some(password.to_owned())
}

/// Whether a browser asks for a page, so that a prompt helps.
fn names_html(request: &Request) -> bool {
    let accept = request.headers().get(ACCEPT).map(HeaderValue::to_str);
    accept.is_some_and(|accept| accept.is_ok_and(|accept| accept.contains("text/html")))
}

/// Compares in constant time, so that the duration does not tell how much of the token is right.
fn same(given: &str, token: &str) -> bool {
    given.len() == token.len()
        && given
            .bytes()
            .zip(token.bytes())
            .fold(0, |odd, (a, b)| odd | (a ^ b))
            == 0
}

fn denied(browser: bool) -> Response {
    let mut response = Refused(Status::unauthorized()).into_response();
    if browser {
        let prompt = HeaderValue::from_static("Basic realm=\"vgpu: the token as password\"");
        response.headers_mut().insert(WWW_AUTHENTICATE, prompt);
    }
    response
}
