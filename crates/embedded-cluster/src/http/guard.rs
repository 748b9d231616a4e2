//! Who may speak to the server: anybody on this machine, else only who has the token.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};

use super::Refused;
use crate::status::Status;

/// An address that others can reach, and no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} can be reached from other machines: the embedded cluster needs a token there, or a loopback address"
)]
pub struct TokenNeeded(pub SocketAddr);

/// The same routes, for those who may. Without a token only a loopback address is served; with one, it is asked for on
/// every address.
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
            let allowed = presented(&request).is_some_and(|given| same(given, &token));
            async move {
                if allowed {
                    next.run(request).await
                } else {
                    denied()
                }
            }
        })),
    )
}

fn presented(request: &Request) -> Option<&str> {
    let (scheme, token) = request
        .headers()
        .get(AUTHORIZATION)?
        .to_str()
        .ok()?
        .split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

/// In a time that does not tell how much of it is right.
fn same(given: &str, token: &str) -> bool {
    given.len() == token.len()
        && given
            .bytes()
            .zip(token.bytes())
            .fold(0, |odd, (a, b)| odd | (a ^ b))
            == 0
}

fn denied() -> Response {
    Refused(Status::unauthorized()).into_response()
}
