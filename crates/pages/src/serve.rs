//! The parts of an answer that all sites of this crate share: printing a page, the assets, the headers, the live
//! stream. Knows no page.

pub(crate) mod guard;
pub(crate) mod list;
pub(crate) mod stream;

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::assets;
use crate::source::Refused;

/// The HTTP status of a refusal.
pub(crate) fn code(refused: &Refused) -> StatusCode {
    StatusCode::from_u16(refused.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// A page as an answer.
pub(crate) fn print(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => {
            let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
            (status, kind, text).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "a template was not printed");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// A page with status 200.
pub(crate) fn shown(page: &impl Template) -> Response {
    print(StatusCode::OK, page)
}

/// The routes of a site, plus the assets and the rules for every answer and every write.
pub(crate) fn dressed(routes: Router) -> Router {
    routes
        .route("/page/assets/{name}", get(asset))
        .layer(middleware::from_fn(guard::same_origin))
        .layer(middleware::from_fn(guard::headers))
}

async fn asset(Path(name): Path<String>) -> Response {
    match assets::find(&name) {
        Some(asset) => {
            let headers = [
                (header::CONTENT_TYPE, asset.content_type),
                // The address contains a hash of the content.
                (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
            ];
            (headers, asset.bytes).into_response()
        }
        None => (StatusCode::NOT_FOUND, "no such file\n").into_response(),
    }
}
