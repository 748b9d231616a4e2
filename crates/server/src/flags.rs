//! Flags that several programs take, and how they are written. A program names its own environment variables for them
//! (`mut_arg`). Nothing here acts on them except to load the certificate.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::{LogFormat, Tls, TlsError, TlsFiles};

/// The text is no address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "accepted: an address with a port, such as 127.0.0.1:8080, [::]:8080, localhost:8080, or :8080 for every address"
)]
pub struct AddressError;

/// An address to listen on: `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`, or, as Go programs write it, `:8080` for
/// every address.
///
/// # Errors
///
/// The text is none of these.
pub fn address(text: &str) -> Result<SocketAddr, AddressError> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = text.rsplit_once(':').ok_or(AddressError)?;
    let port: u16 = port.parse().map_err(|_| AddressError)?;
    let host: IpAddr = match host {
        "" => Ipv4Addr::UNSPECIFIED.into(),
        "localhost" => Ipv4Addr::LOCALHOST.into(),
        _ => return Err(AddressError),
    };
    Ok(SocketAddr::new(host, port))
}

/// The log (`#[command(flatten)]`).
#[derive(Debug, Clone, clap::Args)]
pub struct LogArgs {
    /// Log level: error, warn, info or debug, or directives such as warn,kube=debug.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log: String,

    /// The format of log lines.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// The certificate of a listener (`#[command(flatten)]`).
#[derive(Debug, Clone, clap::Args)]
pub struct CertificateArgs {
    /// Certificate for HTTPS, PEM; with --key_file. Read again when it changes.
    #[arg(
        long = "cert_file",
        alias = "cert-file",
        value_name = "FILE",
        requires = "key_file"
    )]
    pub cert_file: Option<PathBuf>,

    /// Private key of the certificate, PEM.
    #[arg(
        long = "key_file",
        alias = "key-file",
        value_name = "FILE",
        requires = "cert_file"
    )]
    pub key_file: Option<PathBuf>,
}

/// The files of `--cert_file` and `--key_file` cannot be read, or do not belong together.
#[derive(Debug, thiserror::Error)]
#[error("--cert_file, --key_file")]
pub struct CertificateError(#[source] TlsError);

impl CertificateArgs {
    /// The certificate with its key; `None` if the flags name none. Clients show a certificate of `client_ca`, if there
    /// is one.
    ///
    /// # Errors
    ///
    /// One of the files cannot be read, or they do not belong together.
    pub fn tls(&self, client_ca: Option<PathBuf>) -> Result<Option<Tls>, CertificateError> {
        let (Some(certificate), Some(key)) = (&self.cert_file, &self.key_file) else {
            return Ok(None);
        };
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca,
        };
        Tls::from_files(files).map(Some).map_err(CertificateError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_go_programs_write_them() {
        for (text, read) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:443", "[::1]:443"),
            (":9395", "0.0.0.0:9395"),
            ("localhost:1", "127.0.0.1:1"),
        ] {
            assert_eq!(address(text), Ok(read.parse().unwrap()), "{text}");
        }
        for text in [
            "",
            "0",
            "443",
            "localhost",
            "0.0.0.0",
            ":",
            ":70000",
            "0.0.0.0:port",
            "[::]",
            "example.com:80",
        ] {
            assert_eq!(address(text), Err(AddressError), "{text}");
        }
    }
}
