//! The C border: writes answers to the caller's memory, and reads the caller's texts. Nothing else in this library
//! touches a caller's pointer.

use std::ffi::CStr;

use cuda_api::nvml::{NvmlReturn, c_char};

/// The result of every function of the library.
pub(crate) type Answer = Result<(), NvmlReturn>;

/// Writes one value; a NULL pointer is an invalid argument.
pub(crate) fn put<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    // SAFETY: not NULL; that it points to a writable `T` is what the C function asks of its caller.
    unsafe { out.write(value) };
    Ok(())
}

/// Reads one value (a request, a count) from the caller's memory.
pub(crate) fn get<T: Copy>(from: *const T) -> Result<T, NvmlReturn> {
    if from.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    // SAFETY: not NULL; that it points to an initialised `T` is what the C function asks of its caller.
    Ok(unsafe { from.read() })
}

/// Writes text with its closing zero into a buffer of `length` bytes.
pub(crate) fn put_text(out: *mut c_char, length: u32, text: &str) -> Answer {
    if out.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(NvmlReturn::INSUFFICIENT_SIZE);
    }
    // SAFETY: the buffer has `length` bytes (the caller's word), and the text with its zero fits.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len()) };
    // `text.len()` is below `length`, so this is still within the buffer.
    put(out.wrapping_add(text.len()), 0)
}

/// Text as a field of a structure: cut to the field's length, always ended by a zero.
pub(crate) fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (slot, byte) in field.iter_mut().take(N - 1).zip(text.bytes()) {
        *slot = byte as c_char;
    }
    field
}

/// Text that the caller hands in.
pub(crate) fn text(from: *const c_char) -> Result<String, NvmlReturn> {
    if from.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    // SAFETY: not NULL; that it ends in a zero is what the C function asks of its caller.
    let text = unsafe { CStr::from_ptr(from) };
    Ok(text.to_string_lossy().into_owned())
}

/// Writes a list by NVML's protocol: `count` is the caller's room, and becomes the number of entries; if there is too
/// little room, no entry is written.
pub(crate) fn put_list<T: Copy>(count: *mut u32, array: *mut T, list: &[T]) -> Answer {
    let room = get(count)? as usize;
    put(count, list.len() as u32)?;
    if list.is_empty() {
        return Ok(());
    }
    if room < list.len() || array.is_null() {
        return Err(NvmlReturn::INSUFFICIENT_SIZE);
    }
    // SAFETY: the array has room for `room` entries (the caller's word), and the list is no longer.
    unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), array, list.len()) };
    Ok(())
}
