//! HTTP to the collector: hyper with our own TLS. Answers are read up to a limit.

use std::fmt;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// The part of a collector's answer that is read; it says how many spans were refused.
const LONGEST_ANSWER: usize = 64 << 10;
/// Another CA to verify the collector with, PEM: OpenTelemetry's own variable.
const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";

/// Sends requests; the caller sets the time limit.
pub(super) struct Client(Hyper<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Client")
    }
}

impl Client {
    /// For `https`, trusts the CAs of this machine (`SSL_CERT_FILE` names others) and that of the variable.
    pub(super) fn for_url(url: &str) -> Result<Self, ClientError> {
        let roots = if url.starts_with("https:") {
            roots()?
        } else {
            RootCertStore::empty()
        };
        let config = ClientConfig::builder_with_provider(crate::crypto::provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Self(Hyper::builder(TokioExecutor::new()).build(connector)))
    }
}

/// Why there is no client for the collector.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The TLS library offers no version of the protocol.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    /// The file that the variable names.
    #[error("{CERTIFICATE}={path}: {why}")]
    File {
        /// The file.
        path: String,
        /// The problem with it.
        why: String,
    },
    /// There is nothing to verify the collector with.
    #[error(
        "this machine has no CA certificates ({known} found); {CERTIFICATE} names a file with the collector's"
    )]
    NoCertificates {
        /// The number of the machine's certificates that can be read.
        known: usize,
    },
}

fn roots() -> Result<RootCertStore, ClientError> {
    let mut roots = RootCertStore::empty();
    let (known, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let named = std::env::var(CERTIFICATE)
        .ok()
        .filter(|path| !path.is_empty());
    if let Some(path) = &named {
        let wrong = |why: &dyn fmt::Display| ClientError::File {
            path: path.clone(),
            why: why.to_string(),
        };
        let certificates = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| wrong(&error))?;
            roots.add(certificate).map_err(|error| wrong(&error))?;
        }
    }
    if roots.is_empty() {
        return Err(ClientError::NoCertificates { known });
    }
    Ok(roots)
}

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = self.0.request(request.map(Full::new)).await?.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    }
}
