//! The parts of lists that all sites share over HTTP: reading a query from an address, and keeping the address of the
//! page in step with the form.

use axum::extract::Query as InAddress;
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use serde::Deserialize;

use crate::view::query::Query;

/// The query parameters of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ListParameters {
    q: String,
    show: String,
    sort: String,
    page: String,
}

/// The query of an address, if it can be read.
pub(crate) type ListQueryResult = Result<InAddress<ListParameters>, QueryRejection>;

/// The query. Parameters that cannot be read count as absent.
pub(crate) fn asked(query: ListQueryResult) -> Query {
    let asked = query.map(|InAddress(asked)| asked).unwrap_or_default();
    Query {
        page: asked.page.parse().unwrap_or(1),
        text: asked.q,
        show: asked.show,
        sort: asked.sort,
    }
}

/// When the form above a list sends a request, the answer sets the browser's address to that of the new list, so that a
/// reload or a copied address shows the same. Links of the list set the address by themselves, and a live change keeps
/// it.
pub(crate) fn addressed(
    headers: &HeaderMap,
    query: &Query,
    path: &str,
    mut response: Response,
) -> Response {
    let by_form = headers
        .get("hx-source")
        .is_some_and(|source| source.as_bytes().starts_with(b"form"));
    if by_form && let Ok(address) = HeaderValue::from_str(&query.at(path, query.page)) {
        response.headers_mut().insert("hx-replace-url", address);
    }
    response
}
