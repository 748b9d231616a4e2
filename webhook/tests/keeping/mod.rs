//! Replicas of the webhook on one cluster: what they agree on, what they correct, and what they do without an API
//! server. The cluster is in memory, the clock is the test's, the TLS clients are real.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

mod ca;
mod configurations;
mod failures;
mod support;
