//! What every daemon of ours does besides its work: listen, serve, say that it lives, show its
//! metrics, log, stop when it is told to.
//!
//! Never knows a route or a setting of one daemon, and never waits without an end for whoever is
//! at the other end of a connection.

#![forbid(unsafe_code)]

mod bodies;
mod exposition;
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
pub use exposition::{Format, prometheus_text};
pub use health::{Readiness, health};
pub use listen::{BindError, Listener, Manners};
pub use logging::{LogError, LogFormat, log_to_stderr};
pub use metrics::metrics;
pub use program::program;
pub use signal::asked_to_stop;
pub use tls::{Tls, TlsError, TlsFiles};
pub use trace::{Seconds, Span, TraceArgs, TraceContext, TraceError, Traces};
