//! Opening a file at a path where another user may have put anything: never through a link as the last part of its path,
//! never waiting at a pipe, and only when it is a regular file. Whose file it is, the caller checks.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat};

/// Why a file is not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is a link, a directory, a pipe, a socket or a device.
    #[error("not a regular file")]
    NotRegular,
    /// The system's error.
    #[error("{0}")]
    System(#[from] Errno),
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::NotRegular => Self::other(error),
            OpenError::System(errno) => errno.into(),
        }
    }
}

/// Opens a file to read it.
///
/// # Errors
/// It is missing, no regular file, or this process may not read it.
pub fn open(path: &Path) -> Result<File, OpenError> {
    open_at(AT_FDCWD, path, OFlag::O_RDONLY)
}

/// Opens a file below an open directory, with `access`.
///
/// # Errors
/// It is missing, no regular file, or this process may not open it so.
pub fn open_at(dir: impl AsFd, path: &Path, access: OFlag) -> Result<File, OpenError> {
    let flags = access | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = match openat(dir, path, flags, Mode::empty()) {
        Err(Errno::ELOOP) => return Err(OpenError::NotRegular),
        opened => opened?,
    };
    let kind = SFlag::from_bits_truncate(fstat(&file)?.st_mode) & SFlag::S_IFMT;
    if kind != SFlag::S_IFREG {
        return Err(OpenError::NotRegular);
    }
    Ok(file.into())
}

/// Reads the first `most` bytes of a file.
///
/// # Errors
/// It cannot be opened or read.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    first(open(path)?, most)
}

/// Reads the first `most` bytes of an open file.
///
/// # Errors
/// It cannot be read.
pub fn first(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_asked_for_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "0123456789").unwrap();

        assert_eq!(read(&path, 4).unwrap(), b"0123");
        assert_eq!(read(&path, 100).unwrap(), b"0123456789");
    }

    #[test]
    fn only_a_regular_file_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();

        assert!(open(&at("file")).is_ok());
        for name in ["link", "pipe", "."] {
            assert_eq!(
                open(&at(name)).unwrap_err(),
                OpenError::NotRegular,
                "{name}"
            );
        }
        let missing = open(&at("none")).unwrap_err();
        assert_eq!(missing, OpenError::System(Errno::ENOENT));
        assert_eq!(io::Error::from(missing).kind(), io::ErrorKind::NotFound);
    }
}
