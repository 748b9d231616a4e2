//! The parts besides placing, each by itself over the embedded cluster and on a clock that only these tests advance:
//! events, leadership, waking, metrics, explanations.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "helpers of tests are tests"
)]

mod events;
mod explain;
mod leader;
mod metrics;
mod oracle;
mod support;
mod wake;
