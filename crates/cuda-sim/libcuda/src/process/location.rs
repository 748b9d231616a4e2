//! The meaning of a memory location. A locality domain is a part of a device's memory.

use cuda_api::driver::*;

use crate::base::border::Done;
use crate::process::driver;

const DEVICE: u32 = 1;
const HOST: std::ops::RangeInclusive<u32> = 2..=4;

/// CUDA 13.4. The second word is two bytes then: the device, and the domain in it.
const DEVICE_LOCALITY_DOMAIN: u32 = 6;

/// The meaning of a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Location {
    /// The board's GPU.
    Gpu(usize),
    Host,
}

/// Reads a location.
///
/// # Errors
/// When it is none that this driver knows, or names no device of the process.
pub(crate) fn of(location: CuMemLocation) -> Done<Location> {
    let driver = driver::the()?;
    match location.kind {
        DEVICE => driver.gpu(CuDevice(location.id)).map(Location::Gpu),
        kind if HOST.contains(&kind) => Ok(Location::Host),
        DEVICE_LOCALITY_DOMAIN if driver.board.driver_version() >= 13_040 => {
            driver.gpu(CuDevice(location.id & 0xff)).map(Location::Gpu)
        }
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// The GPU of a location that has to be one.
///
/// # Errors
/// As for [`of`], and on the host.
pub(crate) fn gpu_of(location: CuMemLocation) -> Done<usize> {
    match of(location)? {
        Location::Gpu(gpu) => Ok(gpu),
        Location::Host => Err(CuResult::INVALID_VALUE),
    }
}
