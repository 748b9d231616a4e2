//! A program that keeps a GPU busy in a known way, on a real or a simulated GPU, and reports the time that it really
//! used. `vgpu bench` runs it under limits and compares.
//!
//! It limits nothing and does not know the library that does: it calls the driver as any program does.

mod chance;
mod driver;
mod kernels;
mod numbers;
mod service;
mod truth;
mod worker;

pub use driver::{DriverError, is_simulated};
pub use service::{Arrivals, BURST, Request, Service};
pub use truth::{BIN_NS, Bins, Simulated};
pub use worker::{Job, Kind, Report, Served, WorkError, run};
