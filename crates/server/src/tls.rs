//! The certificate of a TLS port: read from PEM in memory or from files, and replaceable while the
//! port is served.
//!
//! Certificates are not made here, and a key never appears in an error: errors name the place that
//! a key was read from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{InconsistentKeys, RootCertStore};

use crate::crypto::provider;

/// The certificate and client CAs of a TLS port. Clones share them: [`Tls::replace`] on one changes
/// the next handshake of all of them; open connections keep what they have.
#[derive(Clone)]
pub struct Tls {
    shared: Arc<TlsState>,
}

struct TlsState {
    /// `None` until there is a certificate; every handshake is refused until then.
    shown: RwLock<Option<Shown>>,
    source: Source,
    /// The PEMs that were given or last read from files, whether they could be used or not.
    read: RwLock<Option<Pems>>,
}

#[derive(Clone)]
struct Shown {
    config: Arc<ServerConfig>,
    /// The server's own certificate, without the intermediate ones.
    certificate: CertificateDer<'static>,
}

enum Source {
    /// The owner passes the certificate in; the CAs of clients still come from a file.
    Memory {
        client_ca: Option<PathBuf>,
    },
    Files(TlsFiles),
}

/// The files of a certificate. All are PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, then the intermediate ones.
    pub certificate: PathBuf,
    /// Its private key: PKCS#8, PKCS#1 or SEC1.
    pub key: PathBuf,
    /// The CAs of clients. With them, a client without a certificate of one of them is refused.
    pub client_ca: Option<PathBuf>,
}

/// The contents of [`TlsFiles`].
#[derive(Clone, PartialEq, Eq)]
struct Pems {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The PEM has no certificate, or a broken one.
    #[error(
        "{place} holds no certificate: {reason}; accepted: PEM, `-----BEGIN CERTIFICATE-----`, \
         the server's first, then the intermediate ones"
    )]
    Certificate {
        /// Where it was read.
        place: String,
        /// The error.
        reason: String,
    },
    /// The PEM has no private key, or one that cannot be used.
    #[error(
        "{place} holds no private key: {reason}; accepted: PEM of PKCS#8, PKCS#1 or SEC1 \
         without a pass phrase: ECDSA P-256 or P-384, Ed25519, RSA of 2048 bits or more"
    )]
    Key {
        /// Where it was read.
        place: String,
        /// The error.
        reason: String,
    },
    /// The key does not belong to the certificate.
    #[error(
        "the key in {key} is not that of the first certificate in {certificate}; replace both \
         together"
    )]
    Mismatch {
        /// Where the certificate was read.
        certificate: String,
        /// Where the key was read.
        key: String,
    },
    /// The clients' CAs cannot be used.
    #[error(
        "{place} holds no CA of clients: {reason}; accepted: PEM, `-----BEGIN CERTIFICATE-----`"
    )]
    ClientCa {
        /// Where it was read.
        place: String,
        /// The error.
        reason: String,
    },
}

impl Tls {
    /// Without a certificate: handshakes are refused until [`Tls::replace`].
    #[must_use]
    pub fn without_certificate() -> Self {
        Self::new(None, Source::Memory { client_ca: None }, None)
    }

    /// As [`Tls::without_certificate`], only for clients with a certificate of these CAs (PEM). A
    /// port that serves it checks the file for changes every ten seconds.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or holds no CA.
    pub fn for_clients_of(client_ca: PathBuf) -> Result<Self, TlsError> {
        client_verifier(&read(&client_ca)?, &client_ca, &provider())?;
        let client_ca = Some(client_ca);
        Ok(Self::new(None, Source::Memory { client_ca }, None))
    }

    /// Uses this certificate (PEM: the server's first, then the intermediate ones) and its key
    /// (PEM).
    ///
    /// # Errors
    ///
    /// See [`TlsError`].
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let tls = Self::without_certificate();
        tls.replace(certificate, key)?;
        Ok(tls)
    }

    /// Uses the contents of the files. A port that serves it checks them for changes every ten
    /// seconds.
    ///
    /// # Errors
    ///
    /// See [`TlsError`].
    pub fn from_files(files: TlsFiles) -> Result<Self, TlsError> {
        let pems = Pems::read(&files)?;
        let shown = pems.shown(&files)?;
        Ok(Self::new(Some(shown), Source::Files(files), Some(pems)))
    }

    fn new(shown: Option<Shown>, source: Source, read: Option<Pems>) -> Self {
        Self {
            shared: Arc::new(TlsState {
                shown: RwLock::new(shown),
                source,
                read: RwLock::new(read),
            }),
        }
    }

    /// Shows this certificate from the next handshake on. After an error the previous one stays.
    ///
    /// # Errors
    ///
    /// See [`TlsError`].
    pub fn replace(&self, certificate: &[u8], key: &[u8]) -> Result<(), TlsError> {
        let places = self.places();
        let client_ca = match &self.shared.source {
            Source::Memory { client_ca } => client_ca.as_deref().map(read).transpose()?,
            Source::Files(_) => None,
        };
        let pems = Pems {
            certificate: certificate.to_vec(),
            key: key.to_vec(),
            client_ca,
        };
        self.show(pems.shown(&places)?);
        *self.read() = Some(pems);
        Ok(())
    }

    /// Reads the files again and shows the certificate in them. Returns whether it changed; in
    /// memory it never does. After an error the previous certificate stays, and the error is
    /// returned once for each content, because files that are replaced one after the other do not
    /// match for a moment.
    ///
    /// Reads files, so it must not run on a thread that serves.
    ///
    /// # Errors
    ///
    /// See [`TlsError`].
    pub fn look_again(&self) -> Result<bool, TlsError> {
        let found = match &self.shared.source {
            Source::Files(files) => Pems::read(files)?,
            Source::Memory { client_ca: None } => return Ok(false),
            Source::Memory {
                client_ca: Some(path),
            } => {
                let client_ca = Some(read(path)?);
                let Some(given) = self.read().clone() else {
                    return Ok(false);
                };
                Pems { client_ca, ..given }
            }
        };
        {
            let mut read = self.read();
            if read.as_ref() == Some(&found) {
                return Ok(false);
            }
            *read = Some(found.clone());
        }
        self.show(found.shown(&self.places())?);
        Ok(true)
    }

    /// The certificate on the port, as DER; `None` while there is none.
    #[must_use]
    pub fn certificate(&self) -> Option<Vec<u8>> {
        Some(self.shown()?.certificate.to_vec())
    }

    /// Whether there are files to check for changes.
    pub(crate) fn has_files(&self) -> bool {
        !matches!(self.shared.source, Source::Memory { client_ca: None })
    }

    /// The names of the sources, for errors.
    fn places(&self) -> TlsFiles {
        match &self.shared.source {
            Source::Files(files) => files.clone(),
            Source::Memory { client_ca } => TlsFiles {
                certificate: "the given certificate".into(),
                key: "the given key".into(),
                client_ca: client_ca.clone(),
            },
        }
    }

    fn read(&self) -> RwLockWriteGuard<'_, Option<Pems>> {
        self.shared
            .read
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration of the next handshake; `None` while there is no certificate.
    pub(crate) fn config(&self) -> Option<Arc<ServerConfig>> {
        Some(self.shown()?.config)
    }

    fn shown(&self) -> Option<Shown> {
        let shown = self
            .shared
            .shown
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        shown.clone()
    }

    fn show(&self, new: Shown) {
        // A new config instead of a new certificate in the old one: this way no session is resumed
        // that was agreed under the old certificate or by a client of an old CA.
        let mut shown = self
            .shared
            .shown
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *shown = Some(new);
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tls")
            .field("places", &self.places())
            .field("has_certificate", &self.shown().is_some())
            .finish_non_exhaustive()
    }
}

impl Pems {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            client_ca: files.client_ca.as_deref().map(read).transpose()?,
        })
    }

    fn shown(&self, from: &TlsFiles) -> Result<Shown, TlsError> {
        let provider = provider();
        let (certificate, certified) = self.certified(from, &provider)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("the provider speaks TLS 1.2 and 1.3");
        let builder = match (&self.client_ca, &from.client_ca) {
            (Some(pem), Some(path)) => {
                let verifier = client_verifier(pem, path, &provider)?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Shown {
            config: Arc::new(config),
            certificate,
        })
    }

    fn certified(
        &self,
        from: &TlsFiles,
        provider: &CryptoProvider,
    ) -> Result<(CertificateDer<'static>, CertifiedKey), TlsError> {
        let certificate_error = |reason: String| TlsError::Certificate {
            place: from.certificate.display().to_string(),
            reason,
        };
        let key_error = |reason: String| TlsError::Key {
            place: from.key.display().to_string(),
            reason,
        };
        let chain =
            certificates(&self.certificate).map_err(|error| certificate_error(told(&error)))?;
        let first = chain.first().cloned();
        let first = first.ok_or_else(|| certificate_error(NONE.to_owned()))?;
        let key =
            PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| key_error(told(&error)))?;
        let key = provider
            .key_provider
            .load_private_key(key)
            .map_err(|error| key_error(error.to_string()))?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            // The key cannot derive its public half. If it does not match, handshakes will fail.
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
                Ok((first, certified))
            }
            Err(rustls::Error::InconsistentKeys(_)) => Err(TlsError::Mismatch {
                certificate: from.certificate.display().to_string(),
                key: from.key.display().to_string(),
            }),
            Err(error) => Err(certificate_error(error.to_string())),
        }
    }
}

const NONE: &str = "there is none in it";

fn client_verifier(
    pem: &[u8],
    path: &Path,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let broken = |reason: String| TlsError::ClientCa {
        place: path.display().to_string(),
        reason,
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem).map_err(|error| broken(told(&error)))? {
        let added = roots.add(certificate);
        added.map_err(|error| broken(error.to_string()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|error| broken(error.to_string()))
}

/// All certificates of a PEM; at least one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found?;
    if found.is_empty() {
        return Err(pem::Error::NoItemsFound);
    }
    Ok(found)
}

fn told(error: &pem::Error) -> String {
    match error {
        pem::Error::NoItemsFound => NONE.to_owned(),
        error => error.to_string(),
    }
}

/// A longer file is not a certificate, and a device file has no end.
const LONGEST_FILE: u64 = 1 << 20;

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read;
    let read = || {
        let mut bytes = Vec::new();
        let mut file = std::fs::File::open(path)?.take(LONGEST_FILE + 1);
        file.read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LONGEST_FILE {
            return Err(std::io::Error::other("longer than 1 MiB"));
        }
        Ok(bytes)
    };
    read().map_err(|error| TlsError::Read {
        path: path.display().to_string(),
        error,
    })
}
