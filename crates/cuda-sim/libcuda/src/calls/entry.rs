//! The checks around every driver call before its function runs: whether the driver exists at all, which default
//! stream is meant, the call's cost, and injected failures.

use cuda_api::driver::CuResult;

use crate::base::border::{Done, answer};
use crate::process::driver;
use crate::streams::capturing;
use crate::streams::launching;
use crate::streams::stream;

/// Runs one driver call. An unsafe one may not be made during a capture (`UNSAFE_IN_CAPTURE` in build.rs).
#[inline]
pub(crate) fn call(
    name: &'static str,
    needs_init: bool,
    is_unsafe: bool,
    per_thread: bool,
    body: impl FnOnce() -> Done,
) -> CuResult {
    answer(|| {
        if needs_init {
            // A forked child of an initialised process cannot use the driver, as with the real one.
            let driver = driver::get().ok_or(CuResult::NOT_INITIALIZED)?;
            driver.wait_while_locked();
            driver.toll(name)?;
            launching::call_costs(name);
            if is_unsafe {
                capturing::unsafe_call()?;
            }
        }
        stream::with_default(per_thread, body)
    })
}
