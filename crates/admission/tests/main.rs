//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.

mod anything;
mod changes;
mod common;
mod match_conditions;
mod recordings;
mod refusals;
mod reviews;
