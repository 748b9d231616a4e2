//! The way in: what happens around every driver call before its module sees it. Whether the driver is
//! there at all, whose default stream is meant, what the call costs, which call is to fail.

use std::cell::Cell;

use cuda_api::driver::CuResult;

use crate::driver;

thread_local! {
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether stream 0 of the call that runs means the thread's own stream (`_ptsz`, `_ptds`) rather
/// than the legacy one.
#[must_use]
pub(crate) fn default_stream_is_per_thread() -> bool {
    PER_THREAD.with(Cell::get)
}

/// Runs one driver call.
#[inline]
pub(crate) fn call(
    name: &'static str,
    needs_init: bool,
    per_thread: bool,
    body: impl FnOnce() -> CuResult,
) -> CuResult {
    if needs_init {
        // A forked child of an initialised process cannot use the driver, as with the real one.
        let Some(driver) = driver::get() else {
            return CuResult::NOT_INITIALIZED;
        };
        driver.wait_while_locked();
        if let Err(refused) = driver.toll(name) {
            return refused;
        }
        crate::launch::call_costs(name);
        if let Err(refused) = crate::capture::admits(name) {
            return refused;
        }
    }
    let outer = PER_THREAD.replace(per_thread);
    let result = body();
    PER_THREAD.set(outer);
    result
}

/// Writes through a pointer that a caller gave, or says that it gave none.
///
/// # Safety
/// `out` is null or valid for a write.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Result<(), CuResult> {
    if out.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the caller vouches for it.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// The same where a null pointer means that the caller does not want to know.
///
/// # Safety
/// `out` is null or valid for a write.
pub(crate) unsafe fn put_if<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: the caller vouches for it.
        unsafe { out.write_unaligned(value) };
    }
}

/// Reads a structure that a caller gave.
///
/// # Safety
/// `from` is null or valid for a read.
pub(crate) unsafe fn get<T: Copy>(from: *const T) -> Result<T, CuResult> {
    if from.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the caller vouches for it.
    Ok(unsafe { from.read_unaligned() })
}

/// A body that ends early with `?`, as the code that a C caller gets.
pub(crate) fn answer(body: impl FnOnce() -> Result<(), CuResult>) -> CuResult {
    match body() {
        Ok(()) => CuResult::SUCCESS,
        Err(code) => code,
    }
}

/// Says no to a null pointer before anything is done.
///
/// # Errors
/// When the pointer is null.
pub(crate) fn check_out<T>(out: *const T) -> Result<(), CuResult> {
    if out.is_null() {
        Err(CuResult::INVALID_VALUE)
    } else {
        Ok(())
    }
}
