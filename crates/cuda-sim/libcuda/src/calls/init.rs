//! `cuInit`, the version, and what the codes are called.

use core::ffi::{CStr, c_char};
use cuda_api::driver::*;

use crate::base::border::{Done, write};
use crate::process::driver;
use crate::process::exported;
use crate::process::ours;

pub(crate) fn cuInit(flags: u32) -> Done {
    if flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    driver::init()?;
    ours::board_work().inspect(|exec| ours::take_part(exec));
    Ok(())
}

pub(crate) fn cuDriverGetVersion(version: *mut i32) -> Done {
    write(version, driver_version())
}

/// The version that the driver reports: the board's, or before `cuInit` what it would be made with.
#[must_use]
pub(crate) fn driver_version() -> i32 {
    match driver::get() {
        Some(driver) => driver.board.driver_version() as i32,
        None => early_version(),
    }
}

fn early_version() -> i32 {
    exported::wanted().version as i32
}

pub(crate) fn cuGetErrorString(error: CuResult, text: *mut *const c_char) -> Done {
    tell(error.text(), text)
}

pub(crate) fn cuGetErrorName(error: CuResult, text: *mut *const c_char) -> Done {
    tell(error.name(), text)
}

fn tell(known: Option<&'static CStr>, out: *mut *const c_char) -> Done {
    write(out, known.map_or(std::ptr::null(), CStr::as_ptr))?;
    known.map(|_| ()).ok_or(CuResult::INVALID_VALUE)
}
