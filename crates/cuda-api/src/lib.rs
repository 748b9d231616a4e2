//! CUDA driver and NVML types, and the one table of C signatures.
//! Hooks, simulator and tests are made from the same rows, so they cannot disagree. Calls nothing,
//! decides nothing, depends on nothing.
#![cfg_attr(not(test), no_std)]

pub mod driver;
mod driver_structs;
mod driver_table;
pub mod nvml;
mod nvml_structs;

pub use driver::*;
