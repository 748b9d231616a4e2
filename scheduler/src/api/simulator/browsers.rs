//! Decides which requests of browsers are served. A page of another site must neither change anything here, nor read it
//! under a host name that its owner has pointed at this machine (DNS rebinding). Clients other than browsers are not
//! restricted.

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Method};

use super::origins::{Origins, without_port};

/// Why a browser's request is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ForeignPage {
    #[error(
        "the Host header says \"{0}\"; expected localhost or a loopback address, or the host of one of \
         --cors-allowed-origins"
    )]
    Host(String),
    #[error(
        "a page of {0} asks to change something here; expected a page of this server, or of one of \
         --cors-allowed-origins"
    )]
    Origin(String),
}

/// Whether the request may be served.
pub(super) fn judge(
    origins: &Origins,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(), ForeignPage> {
    if !origins.behind_token {
        for host in texts(headers, HOST) {
            if !is_this_machine(host) && !origins.names_host(host) {
                return Err(ForeignPage::Host(host.to_owned()));
            }
        }
    }
    let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let site = texts(headers, HeaderName::from_static("sec-fetch-site")).next();
    if reads || matches!(site, Some("same-origin" | "none")) {
        return Ok(());
    }
    let host = texts(headers, HOST).next();
    for origin in headers.get_all(ORIGIN) {
        let same = origin
            .to_str()
            .ok()
            .and_then(|origin| origin.split_once("://"))
            .is_some_and(|(_, of)| Some(of) == host);
        if !same && origins.allowed(origin).is_none() {
            let origin = String::from_utf8_lossy(origin.as_bytes());
            return Err(ForeignPage::Origin(origin.into_owned()));
        }
    }
    Ok(())
}

fn texts(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter();
    values.map(|value| value.to_str().unwrap_or("?"))
}

/// `localhost`, or an address of the loopback network, with any port.
fn is_this_machine(host: &str) -> bool {
    let name = without_port(host);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || address
            .parse()
            .is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn judged(origins: &Origins, method: Method, pairs: &[(&'static str, &'static str)]) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        judge(origins, &method, &headers).is_ok()
    }

    #[test]
    fn only_names_of_this_machine_are_hosts() {
        let origins = Origins::new(["http://ui.example:8080".to_owned()]);
        let get = |host| judged(&origins, Method::GET, &[("host", host)]);

        for right in [
            "localhost",
            "LOCALHOST:1212",
            "127.0.0.1:1212",
            "127.9.9.9",
            "[::1]:80",
            "a.localhost:1",
            "ui.example",
        ] {
            assert!(get(right), "{right}");
        }
        for wrong in [
            "evil.example:1212",
            "localhost.evil.example",
            "10.0.0.1",
            "[fe80::1]",
            "",
            "127.0.0.1.evil.example",
        ] {
            assert!(!get(wrong), "{wrong}");
        }
        assert!(judged(&origins, Method::GET, &[]));
        assert!(judged(
            &origins.clone().behind_token(),
            Method::GET,
            &[("host", "evil.example")]
        ));
        let all = Origins::new(["*".to_owned()]);
        assert!(judged(&all, Method::GET, &[("host", "evil.example")]));
    }

    #[test]
    fn pages_of_other_sites_change_nothing() {
        let origins = Origins::new(["http://localhost:3000".to_owned()]);
        let host = ("host", "localhost:1212");
        let with = |method: Method, origin| judged(&origins, method, &[host, ("origin", origin)]);

        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(with(method.clone(), "http://localhost:3000"));
            assert!(with(method.clone(), "http://localhost:1212"));
            assert!(!with(method.clone(), "http://localhost:8080"));
            assert!(!with(method.clone(), "http://evil.example"));
            assert!(!with(method.clone(), "null"));
            assert!(judged(&origins, method, &[host]));
        }
        assert!(with(Method::GET, "http://evil.example"));
        assert!(with(Method::OPTIONS, "http://evil.example"));
        let own_form = [host, ("origin", "null"), ("sec-fetch-site", "same-origin")];
        assert!(judged(&origins, Method::POST, &own_form));
    }
}
