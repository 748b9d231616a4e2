//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that is wrong about its own world has failed"
)]

mod attest;
mod common;
mod delivery;
mod dra_mig;
mod evict;
mod exposition;
mod fence;
mod first_kernel;
mod front;
mod harness;
mod hcs;
mod health;
mod hostile;
mod inventory;
mod kubelet;
mod plugin;
mod process;
mod registration;
mod requests;
mod waiting;

#[allow(clippy::print_stdout, reason = "a test that is left out says why")]
#[path = "../../tests/support/mod.rs"]
mod support;
