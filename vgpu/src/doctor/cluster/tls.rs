//! Certificates of the webhook: which there are, and until when. Values in, values out.

use base64::Engine;
use x509_parser::pem::Pem;

/// A certificate as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Certificate {
    /// Its bytes: two are the same when these are.
    pub(super) der: Vec<u8>,
    /// Seconds since 1970.
    pub(super) from: i64,
    /// Seconds since 1970.
    pub(super) until: i64,
}

/// Text in base64.
pub(super) fn decoded(text: &str) -> Option<String> {
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(text)
        .ok()?;
    String::from_utf8(bytes)
        .ok()
        .filter(|text| !text.is_empty())
}

/// The certificates of a PEM text that can be read.
pub(super) fn certificates(pem: &str) -> Vec<Certificate> {
    let found = Pem::iter_from_buffer(pem.as_bytes()).filter_map(Result::ok);
    found
        .filter_map(|pem| {
            let read = pem.parse_x509().ok()?;
            let (from, until) = (read.validity().not_before, read.validity().not_after);
            let (from, until) = (from.timestamp(), until.timestamp());
            Some(Certificate {
                der: pem.contents.clone(),
                from,
                until,
            })
        })
        .collect()
}
