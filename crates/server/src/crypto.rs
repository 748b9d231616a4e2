//! The cryptography of TLS: ring, or with the feature `fips` the FIPS module of AWS-LC. One choice for the listeners,
//! for the collector of traces, and for the API server's client, which takes the process's own.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// A program that was built with the feature `fips` cannot have it.
#[derive(Debug, thiserror::Error)]
#[error(
    "this program was built with the feature fips, and its cryptographic module is not in FIPS mode: another part of the \
     process has chosen one, or the module's self-test failed; use the build without the feature, or repair it"
)]
pub struct NotFips;

/// The crypto provider of every TLS configuration of vgpu.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    #[cfg(feature = "fips")]
    let provider = rustls::crypto::default_fips_provider();
    #[cfg(not(feature = "fips"))]
    let provider = rustls::crypto::ring::default_provider();
    Arc::new(provider)
}

/// Makes it the process's own: clients that name none take that one, and with two compiled in there is no other default.
///
/// # Errors
/// With the feature `fips`, if it is not in FIPS mode.
pub fn choose_cryptography() -> Result<(), NotFips> {
    // An error is the one that was chosen before; the next lines look at what holds.
    drop(CryptoProvider::install_default((*provider()).clone()));
    let holds = CryptoProvider::get_default().is_some_and(|it| it.fips());
    if cfg!(feature = "fips") && !holds {
        return Err(NotFips);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_is_fips_exactly_with_the_feature() {
        choose_cryptography().unwrap();
        let default = CryptoProvider::get_default().unwrap();

        assert_eq!(default.fips(), cfg!(feature = "fips"));
        let config = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::server::ResolvesServerCertUsingSni::new()));
        assert_eq!(config.fips(), cfg!(feature = "fips"));
        let config = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        assert_eq!(config.fips(), cfg!(feature = "fips"));
    }
}
