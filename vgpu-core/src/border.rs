//! What the caller's pointers point at, read and written the way the driver would: null is left alone.
//! The caller of a hook vouches for its arguments as it does to the driver.

use core::ffi::{CStr, c_char};

/// What stands there; `None` for null.
#[inline]
pub(crate) fn read<T: Copy>(from: *const T) -> Option<T> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the caller of a hook passes what the driver may read (or has just written).
    Some(unsafe { from.read_unaligned() })
}

/// Writes there, unless it is null.
#[inline]
pub(crate) fn write<T: Copy>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller of a hook passes what the driver may write (or has just written).
        unsafe { to.write_unaligned(value) };
    }
}

/// A C string that the caller passed.
pub(crate) fn text<'a>(from: *const c_char) -> Option<&'a CStr> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the caller of a hook passes a string that ends in a zero, as to the driver.
    Some(unsafe { CStr::from_ptr(from) })
}
