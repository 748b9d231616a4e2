//! The effect of a cap of compute time on whole programs on the simulated GPU. Each test asserts the board's own
//! figures, on a clock that all programs share, so a slow machine changes only the duration of the test.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a test's helpers fail and speak as its body does"
)]

#[path = "../support/mod.rs"]
mod support;

#[macro_use]
mod boards;
mod lab;

mod accuracy;
mod apart;
mod division;
mod guest;
mod hostile;
mod priority;
mod together;
mod ways;
