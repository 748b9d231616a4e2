//! The flags of `vgpu-scheduler`: the reference's names where it has one, with what they mean here. Never acts on them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

/// The scheduler extender.
#[derive(Debug, Clone, Parser)]
#[command(name = "vgpu-scheduler", version)]
pub struct Args {
    /// Where to serve.
    #[arg(
        long = "http_bind",
        alias = "http-bind",
        default_value = "127.0.0.1:8080"
    )]
    pub http_bind: String,
    /// Run on a cluster in this process, made of this file: {"nodes":[…],"pods":[…],"resourceQuotas":[…]}. The file is
    /// read once and never written.
    #[arg(long, value_name = "STATE.json")]
    pub embedded: Option<PathBuf>,
}

impl Args {
    /// The address to serve on.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn address(&self) -> Result<SocketAddr, String> {
        self.http_bind
            .parse()
            .map_err(|error| format!("--http_bind {}: {error}", self.http_bind))
    }
}
