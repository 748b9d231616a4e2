//! A daemon's start and end: its log, its runtime, its exit code.

use std::fmt::Display;
use std::process::ExitCode;

use tokio::runtime::Builder;

use crate::crypto::choose_cryptography;
use crate::logging::{LogFormat, log_to_stderr};

/// Runs a daemon to its end. The result becomes the exit code and, for an error, a line on standard error that starts
/// with `name`. Tasks that still hang in a file system or a remote server do not keep the process alive.
pub fn program<E: Display>(
    name: &str,
    format: LogFormat,
    filter: &str,
    runtime: &mut Builder,
    run: impl Future<Output = Result<(), E>>,
) -> ExitCode {
    if let Err(error) = log_to_stderr(format, filter) {
        return complain(name, &error);
    }
    if let Err(error) = choose_cryptography() {
        return complain(name, &error);
    }
    if cfg!(feature = "fips") {
        tracing::info!("TLS by AWS-LC in FIPS mode");
    }
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(name, &format_args!("cannot start the runtime: {error}")),
    };
    let ended = runtime.block_on(run);
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(name, &error),
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the log may not be there, and the caller of the program must see the error"
)]
fn complain(name: &str, error: &dyn Display) -> ExitCode {
    eprintln!("{name}: {error:#}");
    ExitCode::FAILURE
}
