//! Why a region cannot be used, why a process has no slot, and what became of a request about a shared object.

use std::fmt;

use crate::layout::MAX_DEVICES;

/// Why a region cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionError {
    /// There is no such file.
    Missing,
    /// There is one already.
    Exists,
    /// It is a directory, a link, a pipe or a device.
    NotRegular,
    /// It is too short or too long.
    WrongSize {
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// It is another kind of file.
    WrongMagic,
    /// It was never finished.
    Unfinished,
    /// Another release wrote it.
    WrongVersion {
        /// Its version.
        found: u32,
        /// The version that is known here.
        known: u32,
    },
    /// More devices than [`MAX_DEVICES`].
    TooManyDevices {
        /// Devices asked for.
        asked: usize,
    },
    /// The path is longer than 4,095 bytes or holds a zero byte.
    BadPath,
    /// No room on the disk.
    NoSpace,
    /// The system refused; an `errno` value.
    System {
        /// What was refused.
        call: &'static str,
        /// `errno`.
        errno: i32,
    },
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Missing => write!(f, "no such file"),
            Self::Exists => write!(f, "exists already"),
            Self::NotRegular => write!(f, "not a regular file"),
            Self::WrongSize { found, expected } => {
                write!(f, "file of {found} bytes, expected {expected}")
            }
            Self::WrongMagic => write!(f, "not a usage region"),
            Self::Unfinished => write!(f, "a usage region that was never finished"),
            Self::WrongVersion { found, known } => {
                write!(f, "usage region of version {found}, known here is {known}")
            }
            Self::TooManyDevices { asked } => {
                write!(f, "{asked} devices, at most {MAX_DEVICES} are possible")
            }
            Self::BadPath => write!(f, "path of more than 4095 bytes or with a zero byte"),
            Self::NoSpace => write!(f, "no space left on the disk"),
            Self::System { call, errno } => {
                write!(f, "{call}: {}", std::io::Error::from_raw_os_error(errno))
            }
        }
    }
}

impl std::error::Error for RegionError {}

/// Why this process has no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinError {
    /// All slots are used by living processes.
    NoFreeSlot,
    /// The lock on a slot could not be taken; an `errno` value.
    System {
        /// `errno`.
        errno: i32,
    },
    /// A wait for another thread of this process ran out.
    TimedOut,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoFreeSlot => write!(f, "all slots of the usage region are in use"),
            Self::System { errno } => {
                write!(
                    f,
                    "record lock: {}",
                    std::io::Error::from_raw_os_error(errno)
                )
            }
            Self::TimedOut => write!(f, "a wait for another thread ran out"),
        }
    }
}

impl std::error::Error for JoinError {}

/// What became of a request about a shared object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareError {
    /// The table is full: the charge stays where it is.
    TableFull,
    /// No object of this name.
    Unknown,
    /// An object of this name stands there already.
    Exists,
    /// A bounded wait for another process ran out.
    TimedOut,
    /// This process has no slot.
    NoSlot,
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TableFull => "the table of shared objects is full",
            Self::Unknown => "no shared object of this name",
            Self::Exists => "a shared object of this name exists already",
            Self::TimedOut => "a wait for another process ran out",
            Self::NoSlot => "this process has no slot",
        })
    }
}

impl std::error::Error for ShareError {}
