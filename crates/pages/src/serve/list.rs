//! What the lists of all sites share over HTTP: how a query is read from an address, and how the address of the page
//! follows what is typed.

use axum::extract::Query as InAddress;
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use serde::Deserialize;

use crate::view::query::Query;

/// What an address may ask of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    q: String,
    show: String,
    sort: String,
    page: String,
}

/// The query of an address, if it can be read.
pub(crate) type Asking = Result<InAddress<Asked>, QueryRejection>;

/// What is asked for. What cannot be read asks for nothing.
pub(crate) fn asked(query: Asking) -> Query {
    let asked = query.map(|InAddress(asked)| asked).unwrap_or_default();
    Query {
        page: asked.page.parse().unwrap_or(1),
        text: asked.q,
        show: asked.show,
        sort: asked.sort,
    }
}

/// Where the form above a list asked, the browser's address becomes that of the list as it now is: a reload and a copied
/// address show the same. Links of the list change the address by themselves, and a live change keeps it.
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
