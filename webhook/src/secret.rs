//! The Secret in which the replicas agree on a CA. The first replica creates it; a replacement
//! succeeds only if nothing changed since it was read.
//!
//! `keeper` decides when a CA is replaced.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::authority::{Agreed, Authority, Broken, CaCertificate};

/// The CA that signs, PEM.
pub const CERTIFICATE: &str = "ca.crt";
/// Its private key, PEM.
pub const KEY: &str = "ca.key";
/// The replaced CAs that are still trusted, PEM, the newest first.
pub const OLD: &str = "old.crt";

/// When the newest of [`OLD`] was replaced, RFC 3339.
pub const SINCE: &str = "old.since";

/// The field manager's name, for `managedFields`.
pub(crate) const WRITER: &str = "vgpu-webhook";

/// The Secret's contents.
pub struct Kept {
    /// The CA and the replaced CAs, if they can be used.
    pub agreed: Result<Agreed, Broken>,
    /// The CA certificates in it, even where the rest cannot be used: replicas may show
    /// certificates that these CAs have signed.
    pub certificates: Vec<CaCertificate>,
    /// The resource version that was read; a replacement names it.
    pub version: String,
}

impl Kept {
    fn of(secret: Secret, now: Timestamp) -> Self {
        let data = secret.data.unwrap_or_default();
        let text = |key: &'static str| {
            let bytes = data.get(key).map(|ByteString(bytes)| bytes.as_slice());
            bytes
                .and_then(|bytes| std::str::from_utf8(bytes).ok())
                .ok_or(Broken::Missing(key))
        };
        let old = CaCertificate::read_all(text(OLD).unwrap_or_default());
        let current =
            text(CERTIFICATE).and_then(|certificate| Authority::read(certificate, text(KEY)?, now));
        let mut certificates = CaCertificate::read_all(text(CERTIFICATE).unwrap_or_default());
        certificates.extend(old.iter().cloned());
        Self {
            agreed: current.map(|current| {
                let since = text(SINCE).ok().and_then(|since| since.trim().parse().ok());
                // A time in the future would never be long enough ago.
                let since = since.filter(|since| *since <= now);
                Agreed {
                    since: since.unwrap_or_else(|| current.certificate().made()),
                    current,
                    old,
                }
            }),
            certificates,
            version: secret.metadata.resource_version.unwrap_or_default(),
        }
    }
}

/// Reads the Secret; `None` if it does not exist.
///
/// # Errors
///
/// The API server does not answer, or refuses.
pub async fn read(
    api: &Api<Secret>,
    name: &str,
    now: Timestamp,
) -> Result<Option<Kept>, kube::Error> {
    let secret = api.get_opt(name).await?;
    Ok(secret.map(|secret| Kept::of(secret, now)))
}

fn data(agreed: &Agreed) -> BTreeMap<String, ByteString> {
    let text = |text: &str| ByteString(text.as_bytes().to_vec());
    let old: String = agreed.old.iter().map(CaCertificate::pem).collect();
    BTreeMap::from([
        (
            CERTIFICATE.to_owned(),
            text(agreed.current.certificate().pem()),
        ),
        (KEY.to_owned(), text(agreed.current.key_pem())),
        (OLD.to_owned(), text(&old)),
        (SINCE.to_owned(), text(&agreed.since.to_string())),
    ])
}

/// Creates the Secret. Returns whether this replica created it; if another replica was faster, that
/// one's CA counts.
///
/// # Errors
///
/// The API server does not answer, or refuses.
pub async fn create(api: &Api<Secret>, name: &str, agreed: &Agreed) -> Result<bool, kube::Error> {
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels()),
            ..ObjectMeta::default()
        },
        data: Some(data(agreed)),
        ..Secret::default()
    };
    let params = PostParams {
        field_manager: Some(WRITER.to_owned()),
        ..PostParams::default()
    };
    match api.create(&params, &secret).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Replaces the Secret as it was read at this version. Returns false if it has changed since.
///
/// # Errors
///
/// The API server does not answer, or refuses.
pub async fn replace(
    api: &Api<Secret>,
    name: &str,
    version: &str,
    agreed: &Agreed,
) -> Result<bool, kube::Error> {
    // A merge patch, so that labels and annotations of other programs stay.
    let patch = json!({
        "metadata": { "resourceVersion": version, "labels": labels() },
        "data": data(agreed),
    });
    match api.patch(name, &writing(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) fn writing() -> PatchParams {
    PatchParams {
        field_manager: Some(WRITER.to_owned()),
        ..PatchParams::default()
    }
}

/// The labels that mark an object as this program's.
pub(crate) fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), WRITER.to_owned())])
}
