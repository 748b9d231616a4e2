//! The tests of this crate's public API, in one program: linking one program costs a fraction of linking one for each
//! file.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that is wrong about its own world has failed"
)]

mod documents;
mod keeping;
mod process;
