//! Opening and checking a shared file, of whichever kind: never through a link, never waiting at a pipe, and only
//! when it is a regular file with the head and the size of its kind. Owns the errors that say what is wrong with a
//! file, and what to do about it.
//!
//! Never maps a file, never changes one, and reads no more than its first 16 bytes.

use std::ffi::c_int;
use std::fs::File;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fmt, io};

use crate::layout::{
    LIMITS_MAGIC, LIMITS_VERSION, LimitsLayout, MAX_DEVICES, REGION_MAGIC, REGION_VERSION,
    RegionLayout, TARGETS_MAGIC, TARGETS_VERSION, TargetsLayout,
};
use crate::sys::{self, CPath, Descriptor, Stat};

/// The kinds of shared files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// The limits of a container.
    Limits,
    /// The targets of a container.
    Targets,
    /// The usage region of a container.
    Region,
}

impl FileKind {
    /// The file begins with this number.
    #[must_use]
    pub fn magic(self) -> u64 {
        match self {
            Self::Limits => LIMITS_MAGIC,
            Self::Targets => TARGETS_MAGIC,
            Self::Region => REGION_MAGIC,
        }
    }

    /// The versions that this release can use.
    #[must_use]
    pub fn versions(self) -> RangeInclusive<u32> {
        match self {
            Self::Limits => 1..=LIMITS_VERSION,
            Self::Targets => 1..=TARGETS_VERSION,
            Self::Region => REGION_VERSION..=REGION_VERSION,
        }
    }

    /// The size of the file.
    #[must_use]
    pub fn bytes(self) -> u64 {
        let bytes = match self {
            Self::Limits => size_of::<LimitsLayout>(),
            Self::Targets => size_of::<TargetsLayout>(),
            Self::Region => size_of::<RegionLayout>(),
        };
        bytes as u64
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limits => "limits file",
            Self::Targets => "targets file",
            Self::Region => "usage region",
        })
    }
}

/// Why a shared file cannot be used or made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileError {
    /// There is no such file.
    Missing,
    /// There is one already.
    Exists,
    /// It is a directory, a link, a pipe, a socket or a device.
    NotRegular,
    /// It is too short or too long.
    WrongSize {
        /// The kind that was expected.
        kind: FileKind,
        /// Bytes found.
        found: u64,
    },
    /// The file is of another kind.
    WrongMagic {
        /// The kind that was expected.
        kind: FileKind,
    },
    /// The file was never finished.
    Unfinished {
        /// Its kind.
        kind: FileKind,
    },
    /// Another release wrote it.
    WrongVersion {
        /// Its kind.
        kind: FileKind,
        /// Its version.
        found: u32,
    },
    /// The file has the version of this release, but tables of other sizes.
    WrongTables {
        /// Its kind.
        kind: FileKind,
    },
    /// Neither of its two copies is valid.
    Corrupt {
        /// Its kind.
        kind: FileKind,
    },
    /// It became shorter while it was read.
    Truncated,
    /// More devices than [`MAX_DEVICES`].
    TooManyDevices {
        /// Devices asked for.
        asked: usize,
    },
    /// The path is too long, or holds a zero byte.
    BadPath,
    /// No room on the disk.
    NoSpace,
    /// The system refused; an `errno` value.
    System {
        /// The call that was refused.
        call: &'static str,
        /// `errno`.
        errno: i32,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const REMOVE: &str = "stop its container and remove the file";
        match *self {
            Self::Missing => write!(f, "no such file"),
            Self::Exists => write!(f, "the file exists already"),
            Self::NotRegular => write!(
                f,
                "not a regular file, but a directory, link, pipe, socket or device; {REMOVE}"
            ),
            Self::WrongSize { kind, found } => {
                let expected = kind.bytes();
                write!(
                    f,
                    "file of {found} bytes, but a {kind} has {expected}; {REMOVE}"
                )
            }
            Self::WrongMagic { kind } => {
                write!(
                    f,
                    "not a {kind}, but another kind of file; move it elsewhere"
                )
            }
            Self::Unfinished { kind } => write!(f, "{kind} that was never finished; {REMOVE}"),
            Self::WrongVersion { kind, found } => {
                let known = kind.versions();
                let (oldest, newest) = (known.start(), known.end());
                write!(f, "{kind} of version {found}, but this program knows ")?;
                if oldest == newest {
                    write!(f, "version {newest}")?;
                } else {
                    write!(f, "versions {oldest} to {newest}")?;
                }
                write!(f, "; use the release of vgpu that wrote the file")
            }
            Self::WrongTables { kind } => write!(
                f,
                "{kind} with tables of other sizes than this program's; use the release of vgpu that wrote the file"
            ),
            Self::Corrupt { kind } => write!(
                f,
                "both copies in the {kind} are damaged; write it again (`vgpu set`)"
            ),
            Self::Truncated => write!(f, "the file became shorter while it was read; try again"),
            Self::TooManyDevices { asked } => {
                write!(f, "{asked} devices, but at most {MAX_DEVICES} are possible")
            }
            Self::BadPath => write!(
                f,
                "the path must have at most 4095 bytes, at most 255 in each name, and no zero byte"
            ),
            Self::NoSpace => write!(f, "no space left on the disk"),
            Self::System { call, errno } => {
                write!(f, "{call}: {}", io::Error::from_raw_os_error(errno))
            }
        }
    }
}

impl std::error::Error for FileError {}

/// The system refused a call on a shared file.
pub(crate) fn refused(call: &'static str) -> impl Fn(i32) -> FileError {
    move |errno| match errno {
        libc::ENOENT | libc::ENOTDIR => FileError::Missing,
        libc::EEXIST => FileError::Exists,
        libc::ELOOP | libc::EISDIR | libc::ENXIO | libc::ENODEV => FileError::NotRegular,
        libc::ENOSPC | libc::EDQUOT => FileError::NoSpace,
        libc::ENAMETOOLONG => FileError::BadPath,
        errno => FileError::System { call, errno },
    }
}

/// As [`refused`].
pub(crate) fn refused_io(call: &'static str) -> impl Fn(io::Error) -> FileError {
    move |error| match error.kind() {
        io::ErrorKind::UnexpectedEof => FileError::Truncated,
        _ => refused(call)(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// An error of a call that reads.
impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        refused_io("read")(error)
    }
}

/// The access that a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading.
    Read,
    /// For reading and writing.
    ReadWrite,
}

/// Opens a regular file of any kind: not through a link, and without waiting at a pipe.
///
/// # Errors
/// See [`FileError`].
pub fn open_regular(path: &Path, access: Access) -> Result<File, FileError> {
    let (descriptor, _) = open_at(&c_path(path)?, access)?;
    Ok(descriptor.into_file())
}

/// Opens a shared file, and checks that it is one of this kind.
///
/// # Errors
/// See [`FileError`].
pub fn open(path: &Path, kind: FileKind, access: Access) -> Result<File, FileError> {
    let file = open_regular(path, access)?;
    check(&file, kind)?;
    Ok(file)
}

/// Checks that an open file is a shared file of this kind, as far as its head and its size say.
///
/// # Errors
/// See [`FileError`].
pub fn check(file: &File, kind: FileKind) -> Result<(), FileError> {
    check_at(file.as_raw_fd(), kind)
}

/// A path as the kernel takes it.
pub(crate) fn c_path(path: &Path) -> Result<CPath, FileError> {
    CPath::new(path.as_os_str().as_bytes()).ok_or(FileError::BadPath)
}

/// As [`open_regular`], by calls that no preloaded library sees.
pub(crate) fn open_at(path: &CPath, access: Access) -> Result<(Descriptor, Stat), FileError> {
    let access = match access {
        Access::Read => libc::O_RDONLY,
        Access::ReadWrite => libc::O_RDWR,
    };
    let flags = access | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let descriptor = sys::open(path, flags).map_err(refused("open"))?;
    let descriptor = Descriptor::own(descriptor);
    let stat = regular(descriptor.number())?;
    Ok((descriptor, stat))
}

fn regular(fd: c_int) -> Result<Stat, FileError> {
    let stat = sys::fstat(fd).map_err(refused("fstat"))?;
    if stat.regular {
        Ok(stat)
    } else {
        Err(FileError::NotRegular)
    }
}

/// As [`check`].
pub(crate) fn check_at(fd: c_int, kind: FileKind) -> Result<(), FileError> {
    let found = regular(fd)?.bytes;
    let mut head = [[0; 8]; 2];
    let read = sys::read_at(fd, head.as_flattened_mut(), 0).map_err(refused("read"))?;
    let [magic, rest] = head.map(u64::from_ne_bytes);
    // The head first: a file of another release may have another size.
    if read == size_of_val(&head) {
        // The low half, of a little-endian word.
        let [a, b, c, d, ..] = rest.to_ne_bytes();
        let version = u32::from_ne_bytes([a, b, c, d]);
        check_head(kind, magic, version)?;
    }
    if found == kind.bytes() {
        Ok(())
    } else {
        Err(FileError::WrongSize { kind, found })
    }
}

/// Whether a file that begins with these is of this kind.
fn check_head(kind: FileKind, magic: u64, version: u32) -> Result<(), FileError> {
    if magic != kind.magic() && magic != 0 {
        Err(FileError::WrongMagic { kind })
    } else if magic == 0 || version == 0 {
        // The version is written last.
        Err(FileError::Unfinished { kind })
    } else if kind.versions().contains(&version) {
        Ok(())
    } else {
        let found = version;
        Err(FileError::WrongVersion { kind, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [FileKind; 3] = [FileKind::Limits, FileKind::Targets, FileKind::Region];

    #[test]
    fn head_says_the_kind_and_the_version() {
        for kind in KINDS {
            let magic = kind.magic();
            let newest = *kind.versions().end();
            for (magic, version, is) in [
                (magic, newest, Ok(())),
                (magic, 0, Err(FileError::Unfinished { kind })),
                (0, newest, Err(FileError::Unfinished { kind })),
                (magic ^ 1, newest, Err(FileError::WrongMagic { kind })),
                (
                    magic,
                    newest + 1,
                    Err(FileError::WrongVersion {
                        kind,
                        found: newest + 1,
                    }),
                ),
            ] {
                assert_eq!(check_head(kind, magic, version), is, "{kind} {version}");
            }
        }
    }

    #[test]
    fn file_of_another_kind_is_refused_by_each() {
        let dir = tempfile::tempdir().unwrap();
        for found in KINDS {
            let path = dir.path().join(found.to_string());
            let mut bytes = vec![0; usize::try_from(found.bytes()).unwrap()];
            bytes[..8].copy_from_slice(&found.magic().to_ne_bytes());
            bytes[8..12].copy_from_slice(&found.versions().end().to_ne_bytes());
            std::fs::write(&path, bytes).unwrap();
            for kind in KINDS {
                let is = if kind == found {
                    Ok(())
                } else {
                    Err(FileError::WrongMagic { kind })
                };
                assert_eq!(open(&path, kind, Access::Read).map(drop), is);
            }
        }
    }

    #[test]
    fn errors_say_what_was_read_what_is_accepted_and_what_to_do() {
        let kind = FileKind::Region;
        for (error, text) in [
            (
                FileError::WrongSize { kind, found: 7 },
                format!(
                    "file of 7 bytes, but a usage region has {}; stop its container and remove the file",
                    kind.bytes()
                ),
            ),
            (
                FileError::WrongVersion { kind, found: 9 },
                "usage region of version 9, but this program knows version 1; use the release of vgpu that wrote \
                 the file"
                    .to_owned(),
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}
