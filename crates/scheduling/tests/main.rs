//! Tests of the framework's public API: recorded results, and properties of every cluster.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot read its own input has failed"
)]

mod compact;
mod config;
mod cycle;
mod devices;
mod differential;
mod plugins;
mod properties;
mod recorded;
mod volumes;
mod world;
