//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    clippy::let_underscore_must_use,
    clippy::exit,
    reason = "what goes wrong here is a test that fails, and it may say so"
)]

mod common;
mod guest;
mod header;
mod hostile;
mod imports;
mod processes;
mod region;
