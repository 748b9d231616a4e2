//! A daemon's log: standard error, as lines for people or JSON for collectors.
//!
//! Standard output is for answers and gets no log line.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts to log to standard error. `filter` is `info`, or directives such as
/// `warn,vgpu_monitor=debug`. Colours only on a terminal.
///
/// # Errors
///
/// The filter cannot be read, or the process logs already.
pub fn log_to_stderr(format: LogFormat, filter: &str) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(filter).map_err(|error| LogError::Filter {
        filter: filter.to_owned(),
        reason: error.to_string(),
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match format {
        LogFormat::Text => builder.finish().try_init(),
        LogFormat::Json => builder.json().finish().try_init(),
    };
    started.map_err(|_| LogError::Twice)
}

/// Why logging could not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The filter cannot be read.
    #[error(
        "log level {filter:?}: {reason}; accepted: error, warn, info, debug, trace, or \
         directives such as warn,vgpu_monitor=debug"
    )]
    Filter {
        /// The filter as given.
        filter: String,
        /// The error in it.
        reason: String,
    },
    /// The process logs already.
    #[error("the process logs already")]
    Twice,
}
