//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.

mod bad_input;
mod bench;
mod common;
mod doctor;
mod explain;
mod manage;
mod program;
mod run;
mod sim;
mod terminal;
mod users;
