//! Replicas of the webhook on one cluster: what they agree on, what they put right, what they do
//! without an API server. A cluster in memory, a clock of the test's, real TLS clients.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

mod ca;
mod configurations;
mod failures;
mod support;
