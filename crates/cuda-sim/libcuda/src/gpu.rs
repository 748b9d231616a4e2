//! What streams, launches, modules and graphs ask of the rest of the driver: the context that is
//! current, the board's work, and the pointers that a C caller passes. It decides nothing.

use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cuda_api::driver::*;
use cuda_sim::exec::{Exec, ProcessId, Refused};

use crate::context::Context;
use crate::driver;

/// A driver function's outcome before it becomes a code.
pub(crate) type Done<T = ()> = Result<T, CuResult>;

/// A context; never freed, so that a handle can always be looked at.
pub(crate) type Ctx = &'static Context;

/// The board's work, and this process's place in it.
///
/// # Errors
/// When the board's file cannot be mapped, or has no room for this process.
pub(crate) fn work() -> Done<(&'static Exec, ProcessId)> {
    static WORK: OnceLock<Option<(&Exec, ProcessId)>> = OnceLock::new();
    driver::the()?;
    let work = WORK.get_or_init(|| {
        let exec = crate::ours::board_work()?;
        let process = exec.join().ok()?;
        Some((exec, process))
    });
    work.ok_or(CuResult::OPERATING_SYSTEM)
}

pub(crate) fn exec() -> Done<&'static Exec> {
    Ok(work()?.0)
}

pub(crate) fn process() -> Done<ProcessId> {
    Ok(work()?.1)
}

/// The board's refusal as the driver says it.
pub(crate) fn refused(refused: Refused) -> CuResult {
    match refused {
        Refused::Closed => CuResult::INVALID_HANDLE,
        Refused::NoRoom => CuResult::OUT_OF_MEMORY,
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number as the handle that a program holds.
pub(crate) fn handle<T>(number: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(number)
}

// The four below read and write through what a driver function was passed. They are for arguments
// of such functions only: their callers keep to the driver's contract, which makes these pointers
// null or good for one value (or `count` of them).

/// Writes an answer; null is refused.
pub(crate) fn write<T>(out: *mut T, value: T) -> Done {
    if out.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: an out argument of a driver function, not null.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// Writes an answer that the caller may not want.
pub(crate) fn write_if<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: an out argument of a driver function, not null.
        unsafe { out.write_unaligned(value) };
    }
}

/// Reads a structure; null is refused.
pub(crate) fn read<T: Copy>(from: *const T) -> Done<T> {
    if from.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: an in argument of a driver function, not null.
    Ok(unsafe { from.read_unaligned() })
}

/// Reads an array; null is refused unless it is empty.
pub(crate) fn read_all<T: Copy>(from: *const T, count: usize) -> Done<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if from.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: an array argument of a driver function, with the length that its caller states.
    Ok((0..count)
        .map(|index| unsafe { from.add(index).read_unaligned() })
        .collect())
}

/// Reads a name; null is refused.
pub(crate) fn text(from: *const c_char) -> Done<String> {
    if from.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: a string argument of a driver function, not null.
    Ok(unsafe { CStr::from_ptr(from) }
        .to_string_lossy()
        .into_owned())
}

/// A pointer of the program's that travels to the helper thread and comes back unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opaque(pub(crate) *mut c_void);

// SAFETY: nobody here reads through it; the program's function gets it as it came.
unsafe impl Send for Opaque {}
// SAFETY: as above.
unsafe impl Sync for Opaque {}
