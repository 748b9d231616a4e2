//! The figures of the simulated GPU that more than one module needs.

use core::ffi::CStr;

/// The name of every simulated GPU.
pub(crate) const NAME: &CStr = c"Simulated GPU";
pub(crate) const MULTIPROCESSORS: i32 = 132;
