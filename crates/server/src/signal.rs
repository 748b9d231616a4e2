//! The signals to stop: SIGTERM (Kubernetes, systemd) and SIGINT (a terminal).
//!
//! The process is not ended here: the caller finishes its work first.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ready when the process is asked to stop; returns the signal's name. The handlers are installed
/// by the call, not by the first poll.
///
/// # Errors
///
/// The system installs no signal handler.
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
