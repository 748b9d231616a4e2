//! `cuInit`, the version, and what the codes are called.

use core::ffi::{CStr, c_char};

use cuda_api::driver::*;
use cuda_sim::Config;

use crate::{border, driver, ours};

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
    use std::sync::atomic::{AtomicI32, Ordering};
    static READ: AtomicI32 = AtomicI32::new(0);
    // Relaxed: one number, the same whoever reads it.
    match READ.load(Ordering::Relaxed) {
        0 => {
            let joined = cuda_sim::Board::open(&cuda_sim::config::board_path())
                .map(|board| board.driver_version());
            let version = joined
                .unwrap_or_else(|_| Config::from_env().unwrap_or_default().driver_version)
                as i32;
            READ.store(version, Ordering::Relaxed);
            version
        }
        version => version,
    }
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
