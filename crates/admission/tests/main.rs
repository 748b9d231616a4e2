//! The tests of this crate's public API, in one program: linking one program costs a fraction of linking one for each
//! file.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that is wrong about its own world has failed"
)]

mod anything;
mod changes;
mod claims;
mod common;
mod hcs;
mod match_conditions;
mod recordings;
mod refusals;
mod reviews;
mod unasked;
