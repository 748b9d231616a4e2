//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.

mod allocations;
mod bodies;
mod codecs;
mod common;
mod configuration;
mod nodes;
mod requests;
mod vendor_recordings;
mod vendor_reports;
mod vendor_rounds;
mod vendor_rules;
