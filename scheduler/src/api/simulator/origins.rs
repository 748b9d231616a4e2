//! The origins whose pages may call this API, and their hosts.

use std::sync::Arc;

use axum::http::HeaderValue;

/// The origins whose pages may call: `http://localhost:3000`, or `*` for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origins {
    origins: Arc<[String]>,
    /// Whether only clients with a token are served, under any name of this machine.
    pub(super) behind_token: bool,
}

impl Origins {
    /// Only these origins.
    pub fn new(origins: impl IntoIterator<Item = String>) -> Self {
        Self {
            origins: origins.into_iter().collect(),
            behind_token: false,
        }
    }

    /// Allows any `Host`, because every client has a token.
    #[must_use]
    pub fn behind_token(self) -> Self {
        Self {
            behind_token: true,
            ..self
        }
    }

    /// Whether the host belongs to one of the origins.
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

/// A host without its port: `[::1]:80`, `localhost:80`.
pub(super) fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    }
}
