//! CUDA driver and NVML types, and the one table of C signatures.
//! Hooks, simulator and tests are made from the same rows, so they cannot disagree. Calls nothing,
//! decides nothing, depends on nothing.
#![cfg_attr(not(test), no_std)]

mod classes;
pub mod driver;
mod driver_structs;
mod driver_table;
mod driver_types;
mod generated;
pub mod nvml;
mod nvml_structs;
mod nvml_types;

pub use classes::{Class, class_of, symbols_of};
pub use driver::*;
pub use generated::{DRIVER_SYMBOLS, NVML_SYMBOLS, PROC_ADDRESSES};

/// One answer of `cuGetProcAddress`: from driver version `since` on (12040 is 12.4), the name asked
/// for means this symbol, in this stream mode. The newest row not above the version asked for counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcAddress {
    /// The name that programs ask for, without a version.
    pub name: &'static str,
    /// The first driver version with this answer.
    pub since: i32,
    /// Whether the answer is for per-thread default streams.
    pub per_thread: bool,
    /// The symbol that the name means.
    pub symbol: &'static str,
}
