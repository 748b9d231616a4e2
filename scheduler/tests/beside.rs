//! What stands beside placing, each by itself over the embedded cluster and on a clock that only these tests move:
//! events, leadership, waking, metrics, explanations.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "helpers of tests are tests"
)]

#[path = "beside/events.rs"]
mod events;
#[path = "beside/explain.rs"]
mod explain;
#[path = "beside/leader.rs"]
mod leader;
#[path = "beside/metrics.rs"]
mod metrics;
#[path = "beside/oracle.rs"]
mod oracle;
#[path = "beside/support.rs"]
mod support;
#[path = "beside/wake.rs"]
mod wake;
