//! Why a process has no slot, and what became of a request about a shared object.

use std::fmt;

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

/// The outcome of a request about a shared object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareError {
    /// The table is full: the charge stays where it is.
    TableFull,
    /// No object of this name.
    Unknown,
    /// An object of this name is there already.
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
