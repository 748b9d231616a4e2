//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::multiple_unsafe_ops_per_block,
    reason = "tests at a C border: a panic is the failure"
)]

mod choices;
mod common;
mod compute;
mod exports;
mod lockstep;
mod memory;
mod newer;
mod processes;
