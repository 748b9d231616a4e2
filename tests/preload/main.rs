//! Whole programs under libvgpu.so on the simulated driver: one small program for each way that real
//! ones find the driver, and for each thing that they do to it. The board knows the truth.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test's helpers fail and speak as its body does"
)]

#[path = "../support/races.rs"]
mod races;
#[path = "../support/mod.rs"]
mod support;

mod checkpoint;
mod clocks;
mod ended;
mod environment;
mod external;
mod fence;
mod forged;
mod fuzz;
mod guest;
mod ipc;
mod kills;
mod lazy;
mod lies;
mod linkage;
mod memory;
mod mps;
mod offers;
mod overlay;
mod oversubscribe;
mod passes;
mod runtime;
mod sparse;
mod taking;
mod tries;
mod unasked;
mod versions;
mod vmm;
