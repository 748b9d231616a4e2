//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that is wrong about its own world has failed"
)]

mod bad_input;
mod bench;
mod common;
mod containers;
mod doctor;
mod explain;
mod fence;
mod manage;
mod program;
mod run;
mod sim;
mod terminal;
mod users;
