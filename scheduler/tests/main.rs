//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that is wrong about its own world has failed"
)]

mod assigner;
mod beside;
mod clients;
mod compute_nodes;
mod conformance;
mod crashes;
mod documents;
mod hcs;
mod http;
mod ledger;
mod replicas;
mod simulator;
mod support;
mod traces;
