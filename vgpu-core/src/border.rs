//! What the caller's pointers point at, read and written the way the driver would: null is left alone.
//! The caller of a hook vouches for its arguments as it does to the driver.

use core::ffi::{CStr, c_char};

use crate::modules;

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

/// `fatbinary` wrapper of the compiler: magic, version, and the address of the image.
const WRAPPER: u32 = 0x4662_43b1;

/// How long a module's image is, by what it says itself: a fat binary (wrapped or not), a cubin, or
/// text that ends in a zero.
pub(crate) fn image_bytes(image: *const core::ffi::c_void) -> u64 {
    let mut image = image.cast::<u8>();
    if magic(image) == WRAPPER {
        // SAFETY: a wrapper has two words and a pointer.
        let inner = unsafe { image.wrapping_add(8).cast::<*const u8>().read_unaligned() };
        if inner.is_null() {
            return 0;
        }
        image = inner;
    }
    let is_binary = matches!(magic(image), 0xba55_ed50 | 0x464c_457f);
    if !is_binary {
        // SAFETY: what is no binary is text that ends in a zero, as the driver reads it.
        let length = unsafe { libc::strnlen(image.cast(), modules::LONGEST_TEXT) };
        return modules::text_size(length);
    }
    // A fat binary's header has 16 bytes, and what follows is longer than the rest of 64.
    // SAFETY: an ELF header has 64 bytes; see above for the other.
    let header = unsafe { image.cast::<[u8; 64]>().read_unaligned() };
    modules::image_size(&header).unwrap_or(0)
}

/// The first four bytes, as far as there is no zero among them.
fn magic(image: *const u8) -> u32 {
    let mut word = [0u8; 4];
    for (at, byte) in word.iter_mut().enumerate() {
        // SAFETY: an image has four bytes, or is text that ends before.
        *byte = unsafe { image.wrapping_add(at).read() };
        if *byte == 0 {
            break;
        }
    }
    u32::from_le_bytes(word)
}
