//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.

mod client;
mod fuzz;
mod kubectl;
mod support;
mod verbs;
