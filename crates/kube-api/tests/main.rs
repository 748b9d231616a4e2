//! The tests of this crate's public API, in one program: linking one program costs a fraction of linking one for each
//! file.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that is wrong about its own world has failed"
)]

mod allocations;
mod bodies;
mod codecs;
mod common;
mod configuration;
mod nodes;
mod requests;
mod vendor_recordings;
mod vendor_reports;
mod vendor_rounds;
mod vendor_rules;
