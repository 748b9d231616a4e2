//! The usage region as the host sees it: plain values, read by `pread` from a file that a tenant
//! may have done anything to. Owns what is believed and what is clamped.
//!
//! Never maps the file, never follows a link, never blocks on a pipe, never takes a lock, and
//! never lets a number in it decide how much is read or allocated.

use std::fmt;
use std::path::Path;

use crate::layout::{HOOK_GROUPS, MAX_DEVICES};
use crate::limits::DeviceUuid;
use crate::region::{Holder, SharedKey, Why};

/// Names of the groups in which hooked calls are counted; the rest of [`HOOK_GROUPS`] is room.
pub const HOOK_GROUP_NAMES: [&str; 9] = [
    "alloc",
    "report",
    "context",
    "launch",
    "sync",
    "dispatch",
    "visibility",
    "capture",
    "pass",
];

/// Why there is no snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotError {
    /// There is no such file.
    Missing,
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
    /// It became shorter while it was read.
    Truncated,
    /// The system refused; an `errno` value.
    System {
        /// What was refused.
        call: &'static str,
        /// `errno`.
        errno: i32,
    },
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Missing => write!(f, "no such file"),
            Self::NotRegular => write!(f, "not a regular file"),
            Self::WrongSize { found, expected } => {
                write!(f, "file of {found} bytes, expected {expected}")
            }
            Self::WrongMagic => write!(f, "not a usage region"),
            Self::Unfinished => write!(f, "a usage region that was never finished"),
            Self::WrongVersion { found, known } => {
                write!(f, "usage region of version {found}, known here is {known}")
            }
            Self::Truncated => write!(f, "became shorter while it was read"),
            Self::System { call, errno } => {
                write!(f, "{call}: {}", std::io::Error::from_raw_os_error(errno))
            }
        }
    }
}

impl std::error::Error for SnapshotError {}

/// A region at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// When the region was made, nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// Devices in the order in which the container sees them.
    pub devices: Vec<DeviceSnapshot>,
    /// Slots in use.
    pub slots: Vec<SlotSnapshot>,
    /// Objects that several processes hold.
    pub shared: Vec<SharedSnapshot>,
    /// The last refusals, oldest first.
    pub ooms: Vec<OomSnapshot>,
    /// Counters.
    pub counters: Counters,
}

/// A device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceSnapshot {
    /// Its UUID; may be empty.
    pub uuid: DeviceUuid,
    /// Its size, bytes; 0 where it is not known.
    pub physical_bytes: u64,
    /// Bytes of all shared objects on it.
    pub shared_bytes: u64,
    /// What a context was seen to take, bytes.
    pub context_bytes: u64,
    /// What a module was seen to take, bytes.
    pub module_bytes: u64,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSnapshot {
    /// Its slot.
    pub slot: usize,
    /// Generation of the slot.
    pub generation: u64,
    /// Process id in its own namespace, as it says.
    pub pid: u32,
    /// Start time in clock ticks since boot, as it says.
    pub start_time: u64,
    /// Inode of its pid namespace, as it says.
    pub pid_namespace: u64,
    /// Name of the program, as it says.
    pub name: String,
    /// When it joined, nanoseconds since 1970, as it says.
    pub joined_unix_ns: u64,
    /// Whether its record lock is held: the kernel says so.
    pub alive: bool,
    /// Who holds the lock, as the kernel says; nothing where the holder is not visible from here.
    pub host_pid: Option<u32>,
    /// What it uses, by device.
    pub devices: [DeviceUseSnapshot; MAX_DEVICES],
    /// Hooked calls by group.
    pub hook_calls: [u64; HOOK_GROUPS],
}

/// What a process uses of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceUseSnapshot {
    /// What the driver has given, bytes: buffers, contexts and modules.
    pub confirmed_bytes: u64,
    /// What has been asked for, bytes.
    pub pending_bytes: u64,
    /// Of the confirmed: buffers, bytes.
    pub buffer_bytes: u64,
    /// Of the confirmed: contexts, bytes.
    pub context_bytes: u64,
    /// Of the confirmed: modules, bytes.
    pub module_bytes: u64,
    /// Launches.
    pub launches: u64,
    /// GPU time used, nanoseconds.
    pub busy_ns: u64,
    /// Share of the device in the last window, thousandths.
    pub busy_permille: u32,
}

/// A shared object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedSnapshot {
    /// Its name.
    pub key: SharedKey,
    /// The device's index.
    pub device: usize,
    /// Its charge, bytes.
    pub bytes: u64,
    /// The slots that hold it.
    pub holders: Vec<usize>,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomSnapshot {
    /// Its number, from 0.
    pub number: u64,
    /// Nanoseconds since 1970.
    pub time_unix_ns: u64,
    /// Who asked: process id in its own namespace.
    pub pid: u32,
    /// The refused call.
    pub call: String,
    /// The device's index.
    pub device: usize,
    /// Bytes asked for.
    pub asked: u64,
    /// The limit then, bytes.
    pub limit: u64,
    /// What was used then, bytes.
    pub used: u64,
    /// Why.
    pub why: Why,
    /// The largest holders, largest first.
    pub holders: Vec<Holder>,
}

/// What a region counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Requests refused for want of room.
    pub refused: u64,
    /// Bounded waits that ran out.
    pub waits_ran_out: u64,
    /// Slot locks lost and taken again.
    pub locks_retaken: u64,
    /// Processes that joined again.
    pub rejoined: u64,
    /// Slots of dead processes cleared.
    pub reaped: u64,
    /// Objects that found no place in the shared-object table.
    pub shared_full: u64,
    /// Refusals recorded.
    pub ooms: u64,
    /// Processes that found no free slot.
    pub slots_full: u64,
    /// Hooked calls by group, living and dead processes together.
    pub hook_calls: [u64; HOOK_GROUPS],
}

impl Snapshot {
    /// Confirmed charges of living processes and of shared objects on a device, bytes.
    #[must_use]
    pub fn used_bytes(&self, device: usize) -> u64 {
        let slots = self.slots.iter().filter(|s| s.alive);
        let own = slots
            .filter_map(|s| s.devices.get(device))
            .map(|d| d.confirmed_bytes);
        let shared = self.devices.get(device).map_or(0, |d| d.shared_bytes);
        own.fold(shared, u64::saturating_add)
    }
}

/// Reads a region.
///
/// # Errors
/// See [`SnapshotError`].
pub fn snapshot(_path: &Path) -> Result<Snapshot, SnapshotError> {
    todo!()
}

/// Reads a region below an open directory, so that nothing between can be swapped.
///
/// # Errors
/// See [`SnapshotError`].
pub fn snapshot_at(
    _directory: std::os::fd::BorrowedFd<'_>,
    _name: &str,
) -> Result<Snapshot, SnapshotError> {
    todo!()
}
