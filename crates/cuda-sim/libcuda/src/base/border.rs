//! The border to C: the pointers that a program passes, handles, and a call's outcome.
//!
//! The functions here take only arguments of driver functions. The program keeps to the driver's contract, by which
//! such a pointer is null or valid for one value (or for as many as the call says).

use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_api::driver::*;

/// A driver function's outcome before it becomes a code.
pub(crate) type Done<T = ()> = Result<T, CuResult>;

/// The code that a C caller gets.
pub(crate) fn answer(body: impl FnOnce() -> Done) -> CuResult {
    match body() {
        Ok(()) => CuResult::SUCCESS,
        Err(code) => code,
    }
}

/// Refuses a null pointer before anything is done.
pub(crate) fn check_out<T>(out: *const T) -> Done {
    invalid_if(out.is_null())
}

/// Refuses a call whose arguments the function does not accept.
pub(crate) fn invalid_if(condition: bool) -> Done {
    refuse_if(condition, CuResult::INVALID_VALUE)
}

/// Refuses a call with this code.
pub(crate) fn refuse_if(condition: bool, code: CuResult) -> Done {
    if condition { Err(code) } else { Ok(()) }
}

/// Writes an answer; null is refused.
pub(crate) fn write<T>(out: *mut T, value: T) -> Done {
    check_out(out)?;
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
    check_out(from)?;
    // SAFETY: an in argument of a driver function, not null.
    Ok(unsafe { from.read_unaligned() })
}

/// Reads an array; null is refused unless it is empty.
pub(crate) fn read_all<T: Copy>(from: *const T, count: usize) -> Done<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    check_out(from)?;
    // SAFETY: an array argument of a driver function, with the length that its caller states.
    let read = |index| unsafe { from.add(index).read_unaligned() };
    Ok((0..count).map(read).collect())
}

/// Reads a name; null is refused.
pub(crate) fn text(from: *const c_char) -> Done<String> {
    check_out(from)?;
    // SAFETY: a string argument of a driver function, not null.
    let text = unsafe { CStr::from_ptr(from) };
    Ok(text.to_string_lossy().into_owned())
}

/// A number as the handle that a program holds.
pub(crate) fn handle<T>(number: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(number)
}

/// The next multiple of a step, for memory that is taken in steps.
pub(crate) fn stepped(bytes: u64, step: u64) -> Done<u64> {
    let whole = bytes.checked_next_multiple_of(step);
    whole.ok_or(CuResult::OUT_OF_MEMORY)
}

/// Whether a part lies within so many bytes.
pub(crate) fn is_within(offset: u64, bytes: u64, whole: u64) -> bool {
    offset.checked_add(bytes).is_some_and(|end| end <= whole)
}

/// Locks a value that no panic leaves half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pointer of the program's that travels to the helper thread and comes back unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opaque(pub(crate) *mut c_void);

// SAFETY: nothing here reads through it; the program's function gets it as it came.
unsafe impl Send for Opaque {}

// SAFETY: a shared reference gives only the number; nothing here reads through it.
unsafe impl Sync for Opaque {}

/// Calls a program's host function, on the helper thread.
pub(crate) fn call_host(function: unsafe extern "C-unwind" fn(*mut c_void), data: Opaque) {
    // SAFETY: the program vouches for its function and its data until it has run.
    unsafe { function(data.0) };
}

/// A size or an address of either width: the first forms of the functions have 32 bits for both.
pub(crate) trait Number {
    fn wide(self) -> u64;
    /// The greatest number of this width, if it has no room for the value.
    fn of(value: u64) -> Self;
}

macro_rules! numbers {
    ($($ty:ty: |$own:ident| $wide:expr, |$value:ident| $narrow:expr;)*) => {$(
        impl Number for $ty {
            fn wide(self) -> u64 {
                let $own = self;
                $wide
            }
            fn of($value: u64) -> Self {
                $narrow
            }
        }
    )*};
}

numbers! {
    u32: |own| own.into(), |value| Self::try_from(value).unwrap_or(Self::MAX);
    u64: |own| own, |value| value;
    usize: |own| own as u64, |value| value as Self;
    CuDevicePtr: |own| own.0, |value| Self(value);
}

pub(crate) fn number(value: impl Number) -> u64 {
    value.wide()
}

/// Writes a size or an address in the caller's width; null is refused.
pub(crate) fn put<T: Number>(out: *mut T, value: u64) -> Done {
    write(out, T::of(value))
}

/// Whether a caller has room for an address of 32 bits only.
pub(crate) fn is_low<T>(_out: *const T) -> bool {
    size_of::<T>() == 4
}
