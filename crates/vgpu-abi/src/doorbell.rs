//! A container's doorbell: an empty file of the host's beside its limits. To open it is to ring: the host's kernel
//! notifies the arbiter that it was opened. Nothing is written, so nothing can block or raise a signal, and a
//! container that may only read rings as well.

use std::path::Path;

use crate::sys::{self, CPath};

/// The file's name in the directory of the targets.
pub const NAME: &str = "doorbell";

/// The library's side.
pub struct Doorbell(Box<CPath>);

impl Doorbell {
    /// The doorbell of the container with these targets. `None` if the path is too long.
    #[must_use]
    pub fn beside(targets: &Path) -> Option<Self> {
        use std::os::unix::ffi::OsStrExt;
        let path = targets.with_file_name(NAME);
        CPath::new(path.as_os_str().as_bytes()).map(|path| Self(Box::new(path)))
    }

    /// Rings: two system calls, neither of which waits, and no allocation. Without such a file, or without an arbiter,
    /// nothing happens.
    pub fn ring(&self) {
        let flags =
            libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_CLOEXEC;
        if let Ok(fd) = sys::open(&self.0, flags) {
            sys::close(fd);
        }
    }
}

impl std::fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Doorbell")
    }
}
