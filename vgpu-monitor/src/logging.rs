//! The flags of the log, which both processes take.

use server::LogFormat;

/// The log (`#[command(flatten)]`).
#[derive(Debug, Clone, clap::Args)]
pub struct LogArgs {
    /// Log level: error, warn, info, debug, or directives such as warn,vgpu_monitor=debug.
    #[arg(
        long,
        env = "VGPU_MONITOR_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub log: String,

    /// Format of log lines.
    #[arg(long, env = "VGPU_MONITOR_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}
