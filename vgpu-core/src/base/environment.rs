//! The environment of the program, read and never changed. The variables that decide limits are read once
//! (`guest/settings.rs`); few others are read when they are needed.

use core::ffi::CStr;

/// The value of a variable now; `None` where it is not set.
///
/// `read` gets the value and must not keep a reference to it: the program may change its environment after this.
pub(crate) fn read<T>(name: &CStr, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
    // SAFETY: `name` ends in a zero. A program that changes its environment in another thread meanwhile
    // breaks the C library's contract for every reader, its own included.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: not null, so a string of the environment, which ends in a zero.
    Some(read(unsafe { CStr::from_ptr(value) }.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_that_is_not_set_is_nothing() {
        assert_eq!(read(c"VGPU_NO_SUCH_VARIABLE", <[u8]>::len), None);
        assert_eq!(read(c"PATH", |path| !path.is_empty()), Some(true));
    }
}
