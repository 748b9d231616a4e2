//! A program that keeps a GPU busy in a known way, on a real GPU and on a simulated one, and what it
//! really used there. `vgpu bench` runs it under limits and compares.
//!
//! Never limits anything, and knows nothing of the library that does: it calls the driver as any
//! program does.

mod driver;
mod kernels;
mod truth;
mod worker;

pub use driver::{DriverError, is_simulated};
pub use truth::{BIN_NS, Bins, Simulated};
pub use worker::{Job, Kind, Report, WorkError, run};
