//! Flags that several of the program's parts take. Nothing here acts on them except to load the certificate.

use std::path::PathBuf;

use anyhow::Context as _;
use server::{LogFormat, Tls, TlsFiles};

/// The log (`#[command(flatten)]`).
#[derive(Debug, Clone, clap::Args)]
pub struct LogArgs {
    /// Log level: error, warn, info or debug, or directives such as warn,scheduler=debug.
    #[arg(
        long,
        env = "VGPU_SCHEDULER_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub log: String,

    /// The format of log lines.
    #[arg(
        long,
        env = "VGPU_SCHEDULER_LOG_FORMAT",
        value_enum,
        default_value_t = LogFormat::Text
    )]
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

impl CertificateArgs {
    /// The certificate with its key; `None` if the flags name none.
    ///
    /// # Errors
    ///
    /// One of the files cannot be read, or they do not belong together.
    pub fn tls(&self) -> anyhow::Result<Option<Tls>> {
        let (Some(certificate), Some(key)) = (&self.cert_file, &self.key_file) else {
            return Ok(None);
        };
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: None,
        };
        Ok(Some(
            Tls::from_files(files).context("--cert_file, --key_file")?,
        ))
    }
}
