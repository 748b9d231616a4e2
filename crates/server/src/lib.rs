//! The parts that every daemon needs besides its own work: listening, serving, health, metrics, logging,
//! traces, and stopping on request.
//!
//! Knows no route or setting of a single daemon. Every wait for the other end of a connection has a
//! time limit.

#![forbid(unsafe_code)]

mod bodies;
mod crypto;
mod exposition;
pub mod flags;
mod health;
mod listen;
mod logging;
mod metrics;
mod patience;
mod program;
mod signal;
mod tls;
mod trace;

pub use bodies::{Bodies, error};
pub use crypto::{NotFips, choose_cryptography};
pub use exposition::{Format, prometheus_text};
pub use health::{Readiness, health};
pub use listen::{BindError, Listener, Manners};
pub use logging::{LogError, LogFormat, log_to_stderr};
pub use metrics::metrics;
pub use program::program;
pub use signal::asked_to_stop;
pub use tls::{Tls, TlsError, TlsFiles};
pub use trace::{Seconds, Span, TraceArgs, TraceContext, TraceError, Traces};
