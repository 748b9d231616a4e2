//! What a cap of compute time means, in whole programs on the simulated GPU: each asserts what the board
//! knows, on a clock that all of them share, so a slow machine changes nothing but how long it takes.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a test's helpers fail and speak as its body does"
)]

#[path = "../support/mod.rs"]
mod support;

mod lab;

mod accuracy;
mod guest;
mod together;
mod ways;
