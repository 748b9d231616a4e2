//! `cuInit`, the version, and the names of the error codes.

use core::ffi::{CStr, c_char};

use cuda_api::driver::*;

use crate::base::border::{Done, invalid_if, write};
use crate::process::driver;
use crate::process::exported;
use crate::process::ours;

calls! {
    cuInit(flags) => {
        invalid_if(flags != 0)?;
        driver::init()?;
        ours::board_work().inspect(|exec| ours::take_part(exec));
        Ok(())
    };
    cuDriverGetVersion(version) => write(version, driver_version());
    cuGetErrorString(error, text) => tell(error.text(), text);
    cuGetErrorName(error, text) => tell(error.name(), text);
}

/// The version that the driver reports: the board's, or before `cuInit` the one that a new board would get.
#[must_use]
pub(crate) fn driver_version() -> i32 {
    match driver::get() {
        Some(driver) => driver.board.driver_version() as i32,
        None => exported::wanted().version as i32,
    }
}

fn tell(known: Option<&'static CStr>, out: *mut *const c_char) -> Done {
    write(out, known.map_or(std::ptr::null(), CStr::as_ptr))?;
    known.map(|_| ()).ok_or(CuResult::INVALID_VALUE)
}
