//! When to stop: SIGTERM (Kubernetes, systemd) or SIGINT (a terminal).
//!
//! Never ends the process: the caller finishes what it does.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ready when the process is asked to stop; says by which signal. The handlers stand from the
/// call on, not from the first poll.
///
/// # Errors
/// The system gives no signal handler.
pub fn asked_to_stop() -> std::io::Result<impl Future<Output = &'static str> + Send + 'static> {
    let mut terminate: Signal = signal(SignalKind::terminate())?;
    let mut interrupt: Signal = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}
