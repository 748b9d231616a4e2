//! The usage region as the container's processes see it: one mapped file, slots held by record
//! locks, and what must survive any death. The only module that holds `unsafe`.
//!
//! Never allocates or panics after `open`, never waits longer than 100 ms, keeps no `std` lock, and
//! leaves nothing behind that a SIGKILL at any step would turn into a hang or a leak.

#[allow(unsafe_code, reason = "shared mappings become references here")]
pub(crate) mod map;
#[allow(unsafe_code, reason = "system calls are made here")]
pub(crate) mod sys;

use std::fmt;
use std::path::Path;

use crate::layout::{HOOK_GROUPS, MAX_DEVICES, MAX_HOLDERS};
use crate::limits::DeviceUuid;

pub use crate::budget::{Charge, Kind, Refusal, Why};

/// One device of a new region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RegionDevice {
    /// Its UUID; may be empty.
    pub uuid: DeviceUuid,
    /// Its size, bytes; 0 where it is not known.
    pub physical_bytes: u64,
}

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

/// This process's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Index of the slot.
    pub slot: usize,
    /// Its generation.
    pub generation: u64,
}

/// What names a shared object, the same in every process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedKey(pub [u64; 2]);

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

/// An object in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// The device's index.
    pub device: usize,
    /// Its charge, bytes.
    pub bytes: u64,
}

/// Somebody who holds memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holder {
    /// Process id in its own namespace; 0 ends the list; `u32::MAX` stands for shared objects.
    pub pid: u32,
    /// Its slot.
    pub slot: u32,
    /// What it holds, bytes.
    pub bytes: u64,
}

/// A process that has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessUse {
    /// Its slot.
    pub slot: usize,
    /// Generation of the slot.
    pub generation: u64,
    /// Process id in its own namespace.
    pub pid: u32,
    /// Inode of its pid namespace.
    pub pid_namespace: u64,
    /// Confirmed charges by device, bytes, shared objects left out.
    pub used_bytes: [u64; MAX_DEVICES],
}

/// The usage region, mapped. Usable from many threads, and from a forked child, which takes a slot
/// of its own.
pub struct Region {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").finish_non_exhaustive()
    }
}

impl Region {
    /// Makes the file and gives it its room on the disk; it must not exist. It appears finished or
    /// not at all. `mode` is the file's permission bits, whatever the umask says.
    ///
    /// # Errors
    /// See [`RegionError`]; [`RegionError::NoSpace`] where the disk is full.
    pub fn create(_path: &Path, _devices: &[RegionDevice], _mode: u32) -> Result<(), RegionError> {
        todo!()
    }

    /// Maps a file that exists.
    ///
    /// # Errors
    /// See [`RegionError`].
    pub fn open(_path: &Path) -> Result<Self, RegionError> {
        todo!()
    }

    /// Maps the file, and makes it first where there is none. Several processes may do so at once.
    ///
    /// # Errors
    /// See [`RegionError`].
    pub fn open_or_create(
        _path: &Path,
        _devices: &[RegionDevice],
        _mode: u32,
    ) -> Result<Self, RegionError> {
        todo!()
    }

    /// Whether the file lies on an overlay file system, where another container would not see it.
    #[must_use]
    pub fn on_overlay(&self) -> bool {
        todo!()
    }

    /// Takes a slot for this process, unless it has one. Every call that needs a slot does this by
    /// itself, also in a forked child; this one tells why it cannot be done.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join(&self) -> Result<Seat, JoinError> {
        todo!()
    }

    /// This process's slot, if it has one.
    #[must_use]
    pub fn seat(&self) -> Option<Seat> {
        todo!()
    }

    /// Gives the slot back with all its charges: at an orderly end of the process.
    pub fn leave(&self) {
        todo!()
    }

    /// Tells a forked child that it is one. Needed only where the kernel cannot (before Linux
    /// 4.14); harmless elsewhere.
    pub fn after_fork_in_child(&self) {
        todo!()
    }

    /// Devices that the region was made for.
    #[must_use]
    pub fn device_count(&self) -> usize {
        todo!()
    }

    /// The device at this index, as it was named when the region was made.
    #[must_use]
    pub fn device(&self, _device: usize) -> Option<RegionDevice> {
        todo!()
    }

    /// Reserves room before the driver is asked. `limit` is bytes; 0 is no cap.
    ///
    /// # Errors
    /// [`Refusal`]; it is counted, and nothing is charged.
    pub fn reserve(&self, _device: usize, _bytes: u64, _limit: u64) -> Result<Charge, Refusal> {
        todo!()
    }

    /// The driver has given what was reserved.
    pub fn confirm(&self, _charge: Charge, _kind: Kind) {
        todo!()
    }

    /// The driver has refused what was reserved.
    pub fn refund(&self, _charge: Charge) {
        todo!()
    }

    /// The driver has taken back what was confirmed. Never goes below zero.
    pub fn release(&self, _device: usize, _bytes: u64, _kind: Kind) {
        todo!()
    }

    /// Charges what the driver holds already (an estimate that is settled): no limit is looked at.
    pub fn charge(&self, _device: usize, _bytes: u64, _kind: Kind) {
        todo!()
    }

    /// Settles an estimate: `from` bytes are charged, `to` is what it turned out to be.
    pub fn adjust(&self, _device: usize, _kind: Kind, _from: u64, _to: u64) {
        todo!()
    }

    /// Confirmed charges of all processes and of shared objects on this device, bytes. Pending
    /// ones are not counted.
    #[must_use]
    pub fn used(&self, _device: usize) -> u64 {
        todo!()
    }

    /// Confirmed charges of this process on this device, bytes; shared objects left out.
    #[must_use]
    pub fn used_by_me(&self, _device: usize) -> u64 {
        todo!()
    }

    /// Pending charges of all processes on this device, bytes.
    #[must_use]
    pub fn pending(&self, _device: usize) -> u64 {
        todo!()
    }

    /// Clears the slots of dead processes; how many.
    pub fn reap(&self) -> usize {
        todo!()
    }

    /// Looks after the slot: takes a lost lock again, joins again where the slot was taken away.
    /// `now_ns` is any monotonic clock; does something at most every 50 ms. Call it on hooked
    /// calls. Tells whether it looked.
    pub fn tick(&self, _now_ns: u64) -> bool {
        todo!()
    }

    /// Moves a confirmed charge of this process into the shared-object table, held by this
    /// process.
    ///
    /// # Errors
    /// See [`ShareError`]; the charge then stays with this process.
    pub fn share(
        &self,
        _key: SharedKey,
        _device: usize,
        _bytes: u64,
        _kind: Kind,
    ) -> Result<(), ShareError> {
        todo!()
    }

    /// This process holds the object too. Each hold wants an `unhold`.
    ///
    /// # Errors
    /// See [`ShareError`].
    pub fn hold(&self, _key: SharedKey) -> Result<Shared, ShareError> {
        todo!()
    }

    /// This process holds the object once less. With the last holder of all the charge goes; then
    /// the answer is true.
    ///
    /// # Errors
    /// See [`ShareError`].
    pub fn unhold(&self, _key: SharedKey) -> Result<bool, ShareError> {
        todo!()
    }

    /// The object of this name.
    #[must_use]
    pub fn shared(&self, _key: SharedKey) -> Option<Shared> {
        todo!()
    }

    /// Counts hooked calls; `group` is below [`HOOK_GROUPS`].
    pub fn count_hooks(&self, _group: usize, _calls: u64) {
        let _groups = HOOK_GROUPS;
        todo!()
    }

    /// Remembers a refusal, with the largest holders as they are now. `call` is the name of the
    /// refused function, cut at 47 bytes; `time_unix_ns` is nanoseconds since 1970.
    pub fn record_oom(&self, _call: &str, _device: usize, _refusal: &Refusal, _time_unix_ns: u64) {
        todo!()
    }

    /// The largest holders of this device, largest first.
    #[must_use]
    pub fn holders(&self, _device: usize) -> [Holder; MAX_HOLDERS] {
        todo!()
    }

    /// The processes that have a slot.
    pub fn processes(&self) -> impl Iterator<Item = ProcessUse> + '_ {
        std::iter::empty()
    }

    /// What a context was seen to take on this device, bytes; 0 where nobody has looked yet.
    #[must_use]
    pub fn learned_context_bytes(&self, _device: usize) -> u64 {
        todo!()
    }

    /// Remembers what a context was seen to take.
    pub fn learn_context_bytes(&self, _device: usize, _bytes: u64) {
        todo!()
    }

    /// What a module was seen to take on this device, bytes; 0 where nobody has looked yet.
    #[must_use]
    pub fn learned_module_bytes(&self, _device: usize) -> u64 {
        todo!()
    }

    /// Remembers what a module was seen to take.
    pub fn learn_module_bytes(&self, _device: usize, _bytes: u64) {
        todo!()
    }
}
