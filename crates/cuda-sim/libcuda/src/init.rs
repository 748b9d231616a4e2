//! `cuInit`, the version, and what the codes are called.

use core::ffi::{CStr, c_char};

use cuda_api::driver::*;

use crate::{border, driver, exported, ours};

pub(crate) unsafe fn cuInit(flags: u32) -> CuResult {
    if flags != 0 {
        return CuResult::INVALID_VALUE;
    }
    border::answer(|| {
        driver::init()?;
        ours::board_work().inspect(|exec| ours::take_part(exec));
        Ok(())
    })
}

pub(crate) unsafe fn cuDriverGetVersion(version: *mut i32) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { border::put(version, driver_version()) })
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

pub(crate) unsafe fn cuGetErrorString(error: CuResult, text: *mut *const c_char) -> CuResult {
    // SAFETY: the caller's pointer.
    unsafe { tell(error.text(), text) }
}

pub(crate) unsafe fn cuGetErrorName(error: CuResult, text: *mut *const c_char) -> CuResult {
    // SAFETY: the caller's pointer.
    unsafe { tell(error.name(), text) }
}

unsafe fn tell(known: Option<&'static CStr>, out: *mut *const c_char) -> CuResult {
    border::answer(|| {
        // SAFETY: the caller's pointer.
        unsafe { border::put(out, known.map_or(std::ptr::null(), CStr::as_ptr)) }?;
        known.map(|_| ()).ok_or(CuResult::INVALID_VALUE)
    })
}
