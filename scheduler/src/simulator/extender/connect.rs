//! The connection to an extender: its address, time limit and TLS settings, by kube-scheduler's rules (`makeTransport`
//! in `pkg/scheduler/extender.go`). Nothing is sent here.

use std::fmt::Display;
use std::time::Duration;

use axum::http::Uri;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::client::ConfigExt as _;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use scheduling::config;
use serde::Deserialize;

/// An extender's time limit if its configuration names none (`DefaultExtenderTimeout`).
const TIMEOUT: Duration = Duration::from_secs(5);

/// `tlsConfig` of an extender. Data is base64 of PEM.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Tls {
    insecure: bool,
    server_name: String,
    cert_file: String,
    key_file: String,
    ca_file: String,
    cert_data: Option<String>,
    key_data: Option<String>,
    ca_data: Option<String>,
}

/// A field of an extender's configuration with which the extender cannot be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub(crate) struct SettingsError {
    field: String,
    why: String,
}

fn wrong(field: impl Into<String>, why: impl Display) -> SettingsError {
    SettingsError {
        field: field.into(),
        why: why.to_string(),
    }
}

/// Whether the extender can be called.
pub(crate) fn check(settings: &config::Extender) -> Result<(), SettingsError> {
    timeout(settings)?;
    let config = config(settings)?;
    config
        .rustls_client_config()
        .map(drop)
        .map_err(|error| wrong("tlsConfig", error))
}

/// A client of the extender.
pub(super) fn client(settings: &config::Extender) -> Result<kube::Client, SettingsError> {
    kube::Client::try_from(config(settings)?).map_err(|error| wrong("tlsConfig", error))
}

/// The time limit for one answer.
pub(super) fn timeout(settings: &config::Extender) -> Result<Duration, SettingsError> {
    if settings.http_timeout.is_empty() {
        return Ok(TIMEOUT);
    }
    let asked = crate::parse::duration(&settings.http_timeout)
        .map_err(|why| wrong("httpTimeout", format!("{:?}: {why}", settings.http_timeout)))?;
    Ok(if asked.is_zero() { TIMEOUT } else { asked })
}

/// The configuration of the extender's client.
fn config(settings: &config::Extender) -> Result<kube::Config, SettingsError> {
    let prefix = &settings.url_prefix;
    let no_address = |why: &str| {
        let why = format!(
            "{prefix:?} {why}; expected an address such as http://127.0.0.1:8080/scheduler"
        );
        wrong("urlPrefix", why)
    };
    let url: Uri = prefix
        .trim_end_matches('/')
        .parse()
        .map_err(|error| no_address(&format!("is not a URL ({error})")))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none() {
        return Err(no_address("does not name a host by http or https"));
    }
    let timeout = timeout(settings)?;
    let mut config = kube::Config::new(url);
    config.default_retry = false;
    config.connect_timeout = Some(timeout);
    config.read_timeout = Some(timeout);
    let tls = match &settings.tls_config {
        Some(written) if !written.is_null() => {
            Tls::deserialize(written).map_err(|error| wrong("tlsConfig", error))?
        }
        _ => Tls::default(),
    };
    config.root_cert = authorities(&tls)?;
    config.accept_invalid_certs = tls.insecure;
    if tls.insecure && config.root_cert.is_some() {
        let why = "insecure and a CA (caFile, caData) exclude each other; remove one";
        return Err(wrong("tlsConfig", why));
    }
    if settings.enable_https && config.root_cert.is_none() {
        // kube-scheduler does not verify the certificate in this case, either.
        config.accept_invalid_certs = true;
    }
    if config.accept_invalid_certs {
        // The system's CAs are not needed, and need not exist.
        config.root_cert = Some(Vec::new());
    }
    config.tls_server_name = Some(tls.server_name).filter(|name| !name.is_empty());
    let file = |path: String| Some(path).filter(|path| !path.is_empty());
    config.auth_info.client_certificate_data = tls.cert_data;
    config.auth_info.client_certificate = file(tls.cert_file);
    config.auth_info.client_key_data = tls.key_data.map(Into::into);
    config.auth_info.client_key = file(tls.key_file);
    Ok(config)
}

/// The certificates in `caData`, or else `caFile`; `None` if neither is set.
fn authorities(tls: &Tls) -> Result<Option<Vec<Vec<u8>>>, SettingsError> {
    let (field, pem) = match &tls.ca_data {
        Some(data) if !data.is_empty() => {
            let pem = STANDARD.decode(data);
            let field = "tlsConfig.caData";
            let pem = pem.map_err(|error| wrong(field, format!("not base64: {error}")))?;
            (field, pem)
        }
        _ if tls.ca_file.is_empty() => return Ok(None),
        _ => {
            let field = "tlsConfig.caFile";
            let read = std::fs::read(&tls.ca_file);
            let pem = read.map_err(|error| wrong(field, format!("{}: {error}", tls.ca_file)))?;
            (field, pem)
        }
    };
    let certificates: Result<Vec<Vec<u8>>, _> = CertificateDer::pem_slice_iter(&pem)
        .map(|certificate| certificate.map(|der| der.to_vec()))
        .collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(Some(certificates)),
        Ok(_) => Err(wrong(field, "holds no certificate in PEM form")),
        Err(error) => Err(wrong(field, format!("not PEM: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn judged(more: Value) -> Result<kube::Config, SettingsError> {
        let mut written = json!({ "urlPrefix": "https://localhost:1/", "enableHTTPS": true });
        for (key, value) in more.as_object().unwrap() {
            written[key] = value.clone();
        }
        config(&serde_json::from_value(written).unwrap())
    }

    #[test]
    fn https_without_a_ca_is_not_verified_as_in_kube_scheduler() {
        assert!(judged(json!({})).unwrap().accept_invalid_certs);
        let named = json!({ "tlsConfig": { "insecure": false, "serverName": "e" } });
        let named = judged(named).unwrap();
        assert!(named.accept_invalid_certs);
        assert_eq!(named.tls_server_name.as_deref(), Some("e"));
        assert!(
            !judged(json!({ "enableHTTPS": false }))
                .unwrap()
                .accept_invalid_certs
        );
    }

    #[test]
    fn settings_that_cannot_work_name_their_field() {
        for (more, said) in [
            (json!({ "urlPrefix": "" }), "urlPrefix"),
            (json!({ "urlPrefix": "localhost:80" }), "urlPrefix"),
            (json!({ "urlPrefix": "ftp://e/" }), "http or https"),
            (json!({ "httpTimeout": "soon" }), "httpTimeout"),
            (
                json!({ "tlsConfig": { "caFile": "/no/such/file" } }),
                "tlsConfig.caFile",
            ),
            (
                json!({ "tlsConfig": { "caData": "&" } }),
                "tlsConfig.caData",
            ),
            (
                json!({ "tlsConfig": { "caData": "YQ==" } }),
                "no certificate",
            ),
            (json!({ "tlsConfig": { "caFiles": "a" } }), "caFiles"),
        ] {
            let why = judged(more).unwrap_err().to_string();
            assert!(why.contains(said), "{why}");
        }
    }
}
