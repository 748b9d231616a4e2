//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.
//!
//! A process has one NVML, which reads its board's settings once. `answers` loads it in this process; every other test
//! that loads it runs itself again in a process of its own.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "also in what the tests share"
)]

mod answers;
mod figures;
mod mps;
mod symbols;
