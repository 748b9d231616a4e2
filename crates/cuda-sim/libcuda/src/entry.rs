//! The way in: what happens around every driver call before its function sees it. Whether the driver
//! is there at all, whose default stream is meant, what the call costs, which call is to fail.

use cuda_api::driver::CuResult;

use crate::border::{Done, answer};
use crate::{capture, driver, launch, stream};

/// Runs one driver call.
#[inline]
pub(crate) fn call(
    name: &'static str,
    needs_init: bool,
    per_thread: bool,
    body: impl FnOnce() -> Done,
) -> CuResult {
    answer(|| {
        if needs_init {
            // A forked child of an initialised process cannot use the driver, as with the real one.
            let driver = driver::get().ok_or(CuResult::NOT_INITIALIZED)?;
            driver.wait_while_locked();
            driver.toll(name)?;
            launch::call_costs(name);
            capture::admits(name)?;
        }
        stream::with_default(per_thread, body)
    })
}
