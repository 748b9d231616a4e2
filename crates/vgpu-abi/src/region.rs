//! The usage region as the container's processes see it: one mapped file, slots held by record
//! locks, and what must survive any death.
//!
//! Never allocates or panics after `open`, never waits longer than 100 ms, keeps no `std` lock, and
//! leaves nothing behind that a SIGKILL at any step would turn into a hang or a leak.

mod away;
mod dead;
mod imports;
mod private;
mod shared;
mod slots;

use std::ffi::c_int;
use std::fmt;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use self::private::{OwnUse, Private};
use self::slots::LOADING_NS;
use crate::budget::{
    self, Charges, Need, NotAdded, Refused, Room, SlotTag, Stale, bytes_in, tag_of,
};
use crate::crash::crash_point;
use crate::credit::{self, Compute};
use crate::layout::{
    CALL_BYTES, DeviceUse, LOCK_DEVICES, LOCK_FAMILY, LOCK_SHARED, LOCK_SLOTS, MAX_DEVICES,
    MAX_HOLDERS, MAX_OOMS, MAX_SHARED, MAX_SLOTS, OomEntry, REGION_MAGIC, REGION_VERSION,
    RegionHeader, RegionLayout, SLOT_USED, Slot, UUID_BYTES,
};
use crate::map::{PrivateMap, RegionMap};
use crate::sys::{self, CPath};
use crate::uuid::DeviceUuid;

pub use self::imports::{Family, Import};
pub use crate::budget::{Bounds, Charge, Kind, Refusal, Why};

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
pub struct OwnSlot {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObjectCharge {
    /// The device's index.
    pub device: usize,
    /// Its charge, bytes.
    pub bytes: u64,
}

/// A process that holds memory of a device, or all shared objects together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryHolder {
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
pub struct Region {
    map: RegionMap,
    private: PrivateMap<Private>,
    /// What the record locks are taken through; checked before use, opened again when lost.
    fd: AtomicI32,
    path: Box<CPath>,
    device: u64,
    inode: u64,
    on_overlay: bool,
    /// How long the charges of a dead process stay at most, nanoseconds.
    keep_dead_ns: AtomicU64,
    /// The packed slot of this process, and behind it those of the processes that it was forked
    /// from. A forked child finds it as it was.
    family: [AtomicU64; FAMILY_MOST],
}

/// A dead process whose charges stand until the driver has let go of its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dead {
    /// Its slot.
    pub slot: usize,
    /// Generation of the slot.
    pub generation: u64,
    /// Its process id in its own namespace.
    pub pid: u32,
    /// Inode of its pid namespace.
    pub pid_namespace: u64,
    /// A bit for each device on which it has charges.
    pub devices: u32,
    /// Whether a process lives that was forked from it: how long its memory stays is not known.
    pub has_family: bool,
}

/// Generations of forked processes whose device memory is followed.
const FAMILY_MOST: usize = 8;

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("slot", &self.own_slot())
            .finish_non_exhaustive()
    }
}

/// Our descriptor is not below this where the limit on descriptors lets us.
const LOWEST_FD: c_int = 1000;
/// How often a call joins again before it gives up.
const TRIES: usize = 4;
/// `tick` looks at most this often.
const TICK_NS: u64 = 50_000_000;

const PACKED_SLOT_BITS: u32 = 11;
const PACKED_SLOT_MASK: u64 = (1 << PACKED_SLOT_BITS) - 1;

fn pack(slot: usize, generation: u64) -> u64 {
    generation << PACKED_SLOT_BITS | (slot as u64 + 1)
}

/// The place of a packed slot; of no slot, one that is in no table.
#[inline]
fn slot_tag_of(packed: u64) -> SlotTag {
    let slot = (packed & PACKED_SLOT_MASK).wrapping_sub(1);
    SlotTag {
        slot: usize::try_from(slot).unwrap_or(usize::MAX),
        tag: tag_of(packed >> PACKED_SLOT_BITS),
    }
}

fn bump(counter: &AtomicU64) {
    // Relaxed: the counter guards no other memory.
    counter.fetch_add(1, Ordering::Relaxed);
}

fn store_text(to: &[AtomicU8], text: &[u8]) {
    // The last byte stays zero, so that C can print it. Relaxed: guarded by what is stored after.
    let last = to.len().saturating_sub(1);
    for (index, byte) in to.iter().enumerate() {
        let value = if index < last {
            text.get(index).copied().unwrap_or(0)
        } else {
            0
        };
        byte.store(value, Ordering::Relaxed);
    }
}

fn refused_by_system(call: &'static str, errno: i32) -> RegionError {
    match errno {
        libc::ENOENT | libc::ENOTDIR => RegionError::Missing,
        libc::EEXIST => RegionError::Exists,
        libc::ELOOP | libc::EISDIR | libc::ENXIO => RegionError::NotRegular,
        libc::ENOSPC | libc::EDQUOT => RegionError::NoSpace,
        libc::ENAMETOOLONG => RegionError::BadPath,
        errno => RegionError::System { call, errno },
    }
}

fn refused_by_io(call: &'static str) -> impl Fn(std::io::Error) -> RegionError {
    move |error| refused_by_system(call, error.raw_os_error().unwrap_or(libc::EIO))
}

/// The header and the device table of a new region, as bytes.
fn new_head(devices: &[RegionDevice]) -> Vec<u8> {
    use std::mem::offset_of;

    const DEVICE: usize = size_of::<crate::layout::RegionDevice>();
    let mut head = vec![0; offset_of!(RegionLayout, devices) + DEVICE * devices.len()];
    let mut put = |offset: usize, bytes: &[u8]| {
        for (to, from) in head.iter_mut().skip(offset).zip(bytes) {
            *to = *from;
        }
    };
    let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).to_ne_bytes();
    put(offset_of!(RegionHeader, magic), &REGION_MAGIC.to_ne_bytes());
    put(
        offset_of!(RegionHeader, header_bytes),
        &small(size_of::<RegionHeader>()),
    );
    let bytes = size_of::<RegionLayout>() as u64;
    put(offset_of!(RegionHeader, region_bytes), &bytes.to_ne_bytes());
    put(
        offset_of!(RegionHeader, device_count),
        &small(devices.len()),
    );
    put(
        offset_of!(RegionHeader, device_capacity),
        &small(MAX_DEVICES),
    );
    put(offset_of!(RegionHeader, slot_capacity), &small(MAX_SLOTS));
    put(
        offset_of!(RegionHeader, slot_bytes),
        &small(size_of::<Slot>()),
    );
    put(
        offset_of!(RegionHeader, shared_capacity),
        &small(MAX_SHARED),
    );
    put(offset_of!(RegionHeader, oom_capacity), &small(MAX_OOMS));
    put(
        offset_of!(RegionHeader, created_unix_ns),
        &sys::unix_ns().to_ne_bytes(),
    );
    for (index, device) in devices.iter().enumerate() {
        let at = offset_of!(RegionLayout, devices) + DEVICE * index;
        put(
            at + offset_of!(crate::layout::RegionDevice, uuid),
            device.uuid.bytes(),
        );
        let physical = at + offset_of!(crate::layout::RegionDevice, physical_bytes);
        put(physical, &device.physical_bytes.to_ne_bytes());
    }
    head
}

/// A descriptor that is given back unless it is kept.
struct Opened(c_int);

impl Opened {
    fn keep(self) -> c_int {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// Opens the region and moves the descriptor to where a program that closes what it did not open
/// hardly looks.
fn open_high(path: &CPath) -> Result<Opened, i32> {
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let low = Opened(sys::open(path, flags)?);
    for lowest in [LOWEST_FD, 512, 256, 64] {
        if let Ok(high) = sys::duplicate(low.0, lowest) {
            return Ok(Opened(high));
        }
    }
    Ok(low)
}

impl Region {
    /// Makes the file and gives it its room on the disk; it must not exist. It appears finished or
    /// not at all. `mode` is the file's permission bits, whatever the umask says.
    ///
    /// # Errors
    /// See [`RegionError`]; [`RegionError::NoSpace`] where the disk is full.
    pub fn create(path: &Path, devices: &[RegionDevice], mode: u32) -> Result<(), RegionError> {
        if devices.len() > MAX_DEVICES {
            return Err(RegionError::TooManyDevices {
                asked: devices.len(),
            });
        }
        let Some(name) = path.file_name() else {
            return Err(RegionError::BadPath);
        };
        if path.symlink_metadata().is_ok() {
            return Err(RegionError::Exists);
        }
        let mut new = std::ffi::OsString::from(".");
        new.push(name);
        new.push(format!(".{}.{}.new", sys::process_id(), sys::unix_ns()));
        let new = path.with_file_name(new);
        let made = Self::create_at(&new, devices, mode).and_then(|()| {
            // A link, not a rename: it never replaces a file that another process made meanwhile.
            match std::fs::hard_link(&new, path) {
                Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP)) => {
                    std::fs::rename(&new, path).map_err(refused_by_io("rename"))
                }
                linked => linked.map_err(refused_by_io("link")),
            }
        });
        // It is gone already where it was renamed, or was never made.
        let _gone = std::fs::remove_file(&new);
        made
    }

    fn create_at(path: &Path, devices: &[RegionDevice], mode: u32) -> Result<(), RegionError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path).map_err(refused_by_io("open"))?;
        sys::allocate_or_write(file.as_raw_fd(), size_of::<RegionLayout>() as u64)
            .map_err(|errno| refused_by_system("fallocate", errno))?;
        file.write_all_at(&new_head(devices), 0)
            .map_err(refused_by_io("write"))?;
        // Last: a region without a version was never finished.
        let version = std::mem::offset_of!(RegionHeader, version) as u64;
        file.write_all_at(&REGION_VERSION.to_ne_bytes(), version)
            .map_err(refused_by_io("write"))?;
        let permissions = std::fs::Permissions::from_mode(mode);
        file.set_permissions(permissions)
            .map_err(refused_by_io("chmod"))
    }

    /// Maps a file that exists.
    ///
    /// # Errors
    /// See [`RegionError`].
    pub fn open(path: &Path) -> Result<Self, RegionError> {
        let path = std::path::absolute(path).map_err(refused_by_io("getcwd"))?;
        let path = CPath::new(path.as_os_str().as_bytes()).ok_or(RegionError::BadPath)?;
        let fd = open_high(&path).map_err(|errno| refused_by_system("open", errno))?;
        let stat = sys::fstat(fd.0).map_err(|errno| refused_by_system("fstat", errno))?;
        if !stat.regular {
            return Err(RegionError::NotRegular);
        }
        let expected = size_of::<RegionLayout>() as u64;
        if stat.bytes != expected {
            return Err(RegionError::WrongSize {
                found: stat.bytes,
                expected,
            });
        }
        if stat.allocated_bytes < expected {
            // A hole that the disk has no room for would kill us when we write to it.
            match sys::allocate(fd.0, expected) {
                Ok(()) | Err(libc::EOPNOTSUPP | libc::ENOSYS) => {}
                Err(errno) => return Err(refused_by_system("fallocate", errno)),
            }
        }
        let map = RegionMap::map(fd.0).map_err(|errno| refused_by_system("mmap", errno))?;
        let private = PrivateMap::new().map_err(|errno| refused_by_system("mmap", errno))?;
        Self::check(&map.layout().header)?;
        let on_overlay = sys::on_overlay(fd.0);
        Ok(Self {
            map,
            private,
            fd: AtomicI32::new(fd.keep()),
            path: Box::new(path),
            device: stat.device,
            inode: stat.inode,
            on_overlay,
            keep_dead_ns: AtomicU64::new(0),
            family: std::array::from_fn(|_| AtomicU64::new(0)),
        })
    }

    /// From here on the charges of a dead process stay until [`Region::let_go`] is told that the
    /// driver has let go of its memory, and at most this long; as long as a process lives that was
    /// forked from it, they stay in any case. Without this call they go with the process.
    pub fn keep_dead_for(&self, ns: u64) {
        // Relaxed: a setting; it guards nothing.
        self.keep_dead_ns.store(ns, Ordering::Relaxed);
    }

    fn check(header: &RegionHeader) -> Result<(), RegionError> {
        // Acquire: the version was stored last.
        let found = header.version.load(Ordering::Acquire);
        // Relaxed from here on: written before the version.
        let magic = header.magic.load(Ordering::Relaxed);
        if magic != REGION_MAGIC {
            return Err(if magic == 0 {
                RegionError::Unfinished
            } else {
                RegionError::WrongMagic
            });
        }
        if found == 0 {
            return Err(RegionError::Unfinished);
        }
        let same = header.region_bytes.load(Ordering::Relaxed) == size_of::<RegionLayout>() as u64
            && header.slot_bytes.load(Ordering::Relaxed) as usize == size_of::<Slot>()
            && header.slot_capacity.load(Ordering::Relaxed) as usize == MAX_SLOTS;
        if found != REGION_VERSION || !same {
            return Err(RegionError::WrongVersion {
                found,
                known: REGION_VERSION,
            });
        }
        Ok(())
    }

    /// Maps the file, and makes it first where there is none. Several processes may do so at once.
    ///
    /// # Errors
    /// See [`RegionError`].
    pub fn open_or_create(
        path: &Path,
        devices: &[RegionDevice],
        mode: u32,
    ) -> Result<Self, RegionError> {
        match Self::open(path) {
            Err(RegionError::Missing) => {}
            opened => return opened,
        }
        match Self::create(path, devices, mode) {
            Ok(()) | Err(RegionError::Exists) => Self::open(path),
            Err(error) => Err(error),
        }
    }

    /// Whether the file lies on an overlay file system, where another container would not see it.
    #[must_use]
    pub fn on_overlay(&self) -> bool {
        self.on_overlay
    }

    #[inline]
    fn layout(&self) -> &RegionLayout {
        self.map.layout()
    }

    #[inline]
    fn private(&self) -> &Private {
        self.private.get()
    }

    #[inline]
    fn slot_device(&self, packed: u64, device: usize) -> Option<(&DeviceUse, u64)> {
        let place = slot_tag_of(packed);
        Some((self.cells(place.slot, device)?, place.tag))
    }

    /// Takes a slot for this process, unless it has one. Every call that needs a slot does this by
    /// itself, also in a forked child; this one tells why it cannot be done.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join(&self) -> Result<OwnSlot, JoinError> {
        // Acquire: the slot was filled before the word was stored.
        let packed = match self.private().packed.load(Ordering::Acquire) {
            0 => self.take_slot(0)?,
            packed => packed,
        };
        Ok(OwnSlot {
            slot: slot_tag_of(packed).slot,
            generation: packed >> PACKED_SLOT_BITS,
        })
    }

    /// This process's slot, if it has one.
    #[must_use]
    pub fn own_slot(&self) -> Option<OwnSlot> {
        // Acquire: as in `join`.
        match self.private().packed.load(Ordering::Acquire) {
            0 => None,
            packed => Some(OwnSlot {
                slot: slot_tag_of(packed).slot,
                generation: packed >> PACKED_SLOT_BITS,
            }),
        }
    }

    /// The packed slot; joins where there is none. 0 when that fails.
    #[inline]
    fn packed_slot(&self) -> u64 {
        // Acquire: as in `join`.
        match self.private().packed.load(Ordering::Acquire) {
            0 => self.take_slot(0).unwrap_or(0),
            packed => packed,
        }
    }

    /// Tells a forked child that it is one: it holds the device memory of its parent from here on,
    /// and where the kernel cannot wipe (before Linux 4.14) it forgets what it has not charged.
    pub fn after_fork_in_child(&self) {
        self.private().reset();
        self.follow_family();
    }

    /// Devices that the region was made for.
    #[must_use]
    pub fn device_count(&self) -> usize {
        // Relaxed: written before the version, which `open` has seen.
        let count = self.layout().header.device_count.load(Ordering::Relaxed);
        (count as usize).min(MAX_DEVICES)
    }

    /// The device at this index, as it was named when the region was made.
    #[must_use]
    pub fn device(&self, device: usize) -> Option<RegionDevice> {
        if device >= self.device_count() {
            return None;
        }
        let entry = self.layout().devices.get(device)?;
        let mut uuid = [0; UUID_BYTES];
        for (to, from) in uuid.iter_mut().zip(&entry.uuid) {
            // Relaxed: written before the version, which `open` has seen.
            *to = from.load(Ordering::Relaxed);
        }
        Some(RegionDevice {
            uuid: DeviceUuid::from_bytes(&uuid),
            // Relaxed: as above.
            physical_bytes: entry.physical_bytes.load(Ordering::Relaxed),
        })
    }

    /// Reserves room before the driver is asked. `bounds` may be a limit alone, in bytes; 0 is no cap.
    ///
    /// At no moment does what is charged of the device's own memory exceed `bounds.resident`, nor
    /// all that is charged `bounds.limit`, however many processes race; what is charged without
    /// being asked for ([`Region::charge`]) is left aside.
    ///
    /// # Errors
    /// [`Refusal`]; it is counted, and nothing is charged.
    #[inline]
    pub fn reserve(
        &self,
        device: usize,
        bytes: u64,
        bounds: impl Into<Bounds>,
    ) -> Result<Charge, Refusal> {
        self.reserve_as(device, bytes, bounds.into(), false)
    }

    /// As [`Region::reserve`], for memory that the driver can also give as managed memory: it gets room past
    /// `bounds.resident`, too, and its charge says so ([`Charge::is_beyond`]).
    ///
    /// # Errors
    /// As [`Region::reserve`].
    #[inline]
    pub fn reserve_pageable(
        &self,
        device: usize,
        bytes: u64,
        bounds: Bounds,
    ) -> Result<Charge, Refusal> {
        self.reserve_as(device, bytes, bounds, true)
    }

    #[inline]
    fn reserve_as(
        &self,
        device: usize,
        bytes: u64,
        bounds: Bounds,
        pageable: bool,
    ) -> Result<Charge, Refusal> {
        let ask =
            |packed| budget::reserve(self, slot_tag_of(packed), device, bytes, bounds, pageable);
        let packed = self.packed_slot();
        match (ask(packed), u32::try_from(device)) {
            (Ok(room), Ok(device)) => Ok(Charge {
                device,
                beyond: room == Room::Beyond,
                bytes,
                packed,
            }),
            (Err(refused), _) => self.ask_again(device, bytes, bounds, packed, refused, ask),
            (Ok(_), Err(_)) => Err(Refusal {
                limit: bounds.limit,
                used: 0,
                asked: bytes,
                unaccounted: 0,
                why: Why::Closed,
            }),
        }
    }

    /// As `reserve`, for the context of a process whose runtime loads modules past the driver's
    /// public interface: reserves what such processes were seen to take, `least` or more. From here
    /// until `loaded` the others leave that much free for it, also what is learned meanwhile; not
    /// for longer than a minute.
    ///
    /// # Errors
    /// [`Refusal`]; it is counted, and nothing is charged.
    pub fn reserve_loading(
        &self,
        device: usize,
        least: u64,
        bounds: Bounds,
    ) -> Result<Charge, Refusal> {
        let need = Need { least, guess: 0 };
        self.reserve_need(device, need, bounds, sys::now_ns())
    }

    fn reserve_need(
        &self,
        device: usize,
        need: Need,
        bounds: Bounds,
        since_ns: u64,
    ) -> Result<Charge, Refusal> {
        let mut packed = self.packed_slot();
        let mut refused = Refused::Stale;
        for _try in 0..TRIES {
            match budget::reserve_loading(self, slot_tag_of(packed), device, need, bounds, since_ns)
            {
                Ok(bytes) => {
                    return Ok(Charge {
                        device: u32::try_from(device).unwrap_or(u32::MAX),
                        beyond: false,
                        bytes,
                        packed,
                    });
                }
                Err(Refused::Stale) => match self.take_slot(packed) {
                    Ok(next) => packed = next,
                    Err(_) => break,
                },
                Err(other) => {
                    refused = other;
                    break;
                }
            }
        }
        let asked = need.least.max(self.learned_runtime_bytes(device));
        Err(self.refusal(device, asked, bounds, refused))
    }

    /// A runtime of this process is about to make its context and to load, both past the driver's
    /// public interface: keeps room for it, as much as such processes were seen to take, or `guess`
    /// bytes before one was seen. Not for longer than `for_ns`, unless [`Region::loading`] follows. The room is kept
    /// from here on, so the charge is to be refunded at once.
    ///
    /// # Errors
    /// [`Refusal`]; it is counted, and nothing is kept.
    pub fn keep_for_loading(
        &self,
        device: usize,
        guess: u64,
        bounds: Bounds,
        for_ns: u64,
    ) -> Result<Charge, Refusal> {
        let least = match self.learned_runtime_bytes(device) {
            0 => guess,
            learned => learned,
        };
        let need = Need {
            least,
            guess: least,
        };
        let since_ns = sys::now_ns().saturating_sub(LOADING_NS.saturating_sub(for_ns));
        self.reserve_need(device, need, bounds, since_ns.max(1))
    }

    /// Room that is kept for runtimes that are loading, bytes, beyond what their books have.
    #[must_use]
    pub fn kept(&self, device: usize) -> u64 {
        let mut sum = 0_u64;
        budget::each_slot(self, |slot| {
            if let Some(cells) = self.cells(slot, device) {
                sum = sum.saturating_add(budget::kept(self, cells, device));
            }
        });
        sum
    }

    /// A context of this process was made past the driver's public interface, and its runtime loads
    /// there, too: as after `reserve_loading`.
    pub fn loading(&self, device: usize) {
        if let Some((cells, _)) = self.slot_device(self.packed_slot(), device) {
            // SeqCst: as in `budget::reserve_loading`.
            cells
                .loading_since_ns
                .store(sys::now_ns(), Ordering::SeqCst);
        }
    }

    /// What this process's runtime has loaded stands in the books, or its context is gone.
    pub fn loaded(&self, device: usize) {
        // Acquire: as in `join`.
        let packed = self.private().packed.load(Ordering::Acquire);
        if let Some((cells, _)) = self.slot_device(packed, device) {
            // SeqCst: after the charges that it stood for.
            cells.loading_since_ns.store(0, Ordering::SeqCst);
        }
    }

    /// The rare ends of `reserve`: a slot that was taken away, a refusal.
    #[cold]
    fn ask_again(
        &self,
        device: usize,
        bytes: u64,
        bounds: Bounds,
        mut packed: u64,
        mut refused: Refused,
        ask: impl Fn(u64) -> Result<Room, Refused>,
    ) -> Result<Charge, Refusal> {
        for _try in 0..TRIES {
            if refused != Refused::Stale {
                break;
            }
            packed = match self.take_slot(packed) {
                Ok(packed) => packed,
                Err(_) => break,
            };
            match ask(packed) {
                Ok(room) => {
                    let device = u32::try_from(device).unwrap_or(u32::MAX);
                    return Ok(Charge {
                        device,
                        beyond: room == Room::Beyond,
                        bytes,
                        packed,
                    });
                }
                Err(again) => refused = again,
            }
        }
        Err(self.refusal(device, bytes, bounds, refused))
    }

    /// Takes back the count of a refusal: the request is made again.
    pub fn ask_once_more(&self) {
        let less = |count: u64| Some(count.saturating_sub(1));
        let refused = &self.layout().header.refused;
        // Relaxed: the counter guards no other memory.
        let _old = refused.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Counts a refusal, and says what it stands on.
    fn refusal(&self, device: usize, asked: u64, bounds: Bounds, refused: Refused) -> Refusal {
        bump(&self.layout().header.refused);
        let (limit, used, why) = match refused {
            Refused::Full { used } => (bounds.limit, used, Why::Full),
            Refused::TimedOut { used } => (bounds.limit, used, Why::TimedOut),
            Refused::NotPageable { used } => (bounds.resident, used, Why::NotPageable),
            Refused::Stale | Refused::NoSuchDevice => {
                (bounds.limit, self.used(device), Why::Closed)
            }
        };
        Refusal {
            limit,
            used,
            asked,
            unaccounted: 0,
            why,
        }
    }

    /// What is refused although no sum was too large: the driver cannot page it. Counted as any
    /// other refusal; `asked` bytes are what it was about, `resident` is the container's share.
    pub fn refuse_not_pageable(&self, device: usize, asked: u64, resident: u64) -> Refusal {
        bump(&self.layout().header.refused);
        let past = self.oversubscribed(device);
        Refusal {
            limit: resident,
            used: self.used(device).saturating_sub(past),
            asked,
            unaccounted: 0,
            why: Why::NotPageable,
        }
    }

    /// The driver has given what was reserved.
    #[inline]
    pub fn confirm(&self, charge: Charge, kind: Kind) {
        // Acquire: as in `join`.
        let packed = self.private().packed.load(Ordering::Acquire);
        if packed == charge.packed
            && let Some((cells, tag)) = self.slot_device(packed, charge.device())
            && budget::confirm(cells, tag, charge.bytes, kind).is_ok()
            && let Some(own) = self.private().own.get(charge.device())
            && note(own, tag, charge.bytes, kind).is_ok()
        {
            return;
        }
        // The slot was taken away, or this is a forked child: what the driver gave is charged to
        // the slot that we have. What was pending went with the old one.
        self.charge(charge.device(), charge.bytes, kind);
    }

    /// The driver has refused what was reserved.
    #[inline]
    pub fn refund(&self, charge: Charge) {
        // Acquire: as in `join`.
        let packed = self.private().packed.load(Ordering::Acquire);
        if packed == charge.packed
            && let Some((cells, tag)) = self.slot_device(packed, charge.device())
        {
            // A slot that was taken away took the pending charge with it.
            if charge.beyond {
                let _stale = budget::not_beyond(cells, tag, charge.bytes);
            }
            let _stale = budget::refund(cells, tag, charge.bytes);
        }
    }

    /// The driver has taken back what was confirmed. Never goes below zero.
    #[inline]
    pub fn release(&self, device: usize, bytes: u64, kind: Kind) {
        self.on_own(device, |cells, own, tag| {
            budget::release(cells, tag, bytes, kind)?;
            crash_point!("release:slot");
            forget(own, tag, bytes, kind)
        });
    }

    /// As [`Region::release`], of what was charged past the container's share of the device
    /// ([`Charge::is_beyond`]).
    pub fn release_beyond(&self, device: usize, bytes: u64, kind: Kind) {
        // Acquire: as in `join`. A process that had to join again has nothing there: what it had is
        // counted as memory of the device from then on, which errs on the safe side.
        let packed = self.private().packed.load(Ordering::Acquire);
        if let Some((cells, tag)) = self.slot_device(packed, device) {
            let _stale = budget::not_beyond(cells, tag, bytes);
        }
        self.release(device, bytes, kind);
    }

    /// Charges what the driver holds already (an estimate that is settled): no limit is looked at.
    pub fn charge(&self, device: usize, bytes: u64, kind: Kind) {
        self.on_own(device, |cells, own, tag| {
            budget::charge(cells, tag, bytes, kind)?;
            note(own, tag, bytes, kind)
        });
    }

    /// Settles an estimate: `from` bytes are charged, `to` is what it turned out to be.
    pub fn adjust(&self, device: usize, kind: Kind, from: u64, to: u64) {
        if to > from {
            self.charge(device, to - from, kind);
        } else if from > to {
            self.release(device, from - to, kind);
        }
    }

    /// Changes this process's slot and its own sum alike. When the slot turns out to be taken away
    /// between the two, what was done to the old one is lost with it and is done to the new one.
    #[inline]
    fn on_own(
        &self,
        device: usize,
        change: impl Fn(&DeviceUse, &OwnUse, u64) -> Result<(), Stale>,
    ) {
        let mut packed = self.packed_slot();
        for _try in 0..TRIES {
            let Some((cells, tag)) = self.slot_device(packed, device) else {
                return;
            };
            let Some(own) = self.private().own.get(device) else {
                return;
            };
            if change(cells, own, tag).is_ok() {
                return;
            }
            packed = self.take_slot(packed).unwrap_or(0);
        }
    }

    /// Confirmed charges of all processes and of shared objects on this device, and what is kept for
    /// runtimes that are loading, bytes. Pending ones are not counted.
    #[must_use]
    pub fn used(&self, device: usize) -> u64 {
        budget::confirmed(self, device)
    }

    /// Confirmed charges of this process on this device, bytes; shared objects left out.
    #[must_use]
    pub fn used_by_me(&self, device: usize) -> u64 {
        // Relaxed: a number for a report.
        let own = self.private().own.get(device);
        own.map_or(0, |own| bytes_in(own.confirmed.load(Ordering::Relaxed)))
    }

    /// Pending charges of all processes on this device, bytes.
    #[must_use]
    pub fn pending(&self, device: usize) -> u64 {
        let mut sum = 0_u64;
        budget::each_slot(self, |slot| {
            if let Some(cells) = self.cells(slot, device) {
                // Relaxed: a number for a report.
                sum = sum.saturating_add(bytes_in(cells.pending.load(Ordering::Relaxed)));
            }
        });
        sum
    }

    /// The container's compute credit on this device, and the words of this process. Nothing for a
    /// process without a slot.
    #[inline]
    #[must_use]
    pub fn compute(&self, device: usize) -> Option<Compute<'_>> {
        // Relaxed: numbers; what is counted in a slot that was just given away is counted.
        let packed = self.private().packed.load(Ordering::Relaxed);
        let slot = self.layout().slots.get(slot_tag_of(packed).slot)?;
        Some(Compute {
            device: self.layout().devices.get(device)?,
            own: &slot.devices.get(device)?.compute,
            packed,
        })
    }

    /// Managed memory of all processes past the container's share of this device, bytes: confirmed
    /// or asked for.
    #[must_use]
    pub fn oversubscribed(&self, device: usize) -> u64 {
        budget::oversubscribed(self, device)
    }

    /// Of this process's memory on this device: managed memory past the container's share, bytes.
    #[must_use]
    pub fn oversubscribed_by_me(&self, device: usize) -> u64 {
        // Relaxed: a number for a report.
        let packed = self.private().packed.load(Ordering::Relaxed);
        self.slot_device(packed, device).map_or(0, |(cells, _)| {
            bytes_in(cells.oversubscribed.load(Ordering::Relaxed))
        })
    }

    /// Whether work of any process of the container, on any device, is overdue by more than
    /// `patience_ns`: what runs may be waiting for a launch that waits. Answers what tells this state
    /// from another one; 0 is no.
    #[must_use]
    pub fn overdue(&self, now_ns: u64, patience_ns: u64) -> u64 {
        let mut sum = 0_u64;
        budget::each_slot(self, |slot| {
            for device in 0..self.device_count() {
                if let Some(cells) = self.cells(slot, device) {
                    let since_ns = credit::overdue(&cells.compute, now_ns, patience_ns);
                    sum = sum.rotate_left(7) ^ since_ns;
                }
            }
        });
        sum
    }

    /// Counts hooked calls; `group` is below [`HOOK_GROUPS`](crate::layout::HOOK_GROUPS).
    #[inline]
    pub fn count_hooks(&self, group: usize, calls: u64) {
        // Relaxed: the counter guards no other memory, nor does the packed slot here: a call counted in
        // a slot that was just given away is a call counted.
        let place = slot_tag_of(self.private().packed.load(Ordering::Relaxed));
        let slot = self
            .layout()
            .slots
            .get(place.slot)
            .map(|slot| &slot.head.hook_calls);
        let counters = slot.unwrap_or(&self.layout().header.past_hook_calls);
        if let Some(counter) = counters.get(group) {
            // Relaxed: as above.
            counter.fetch_add(calls, Ordering::Relaxed);
        }
    }

    /// Remembers a refusal, with the largest holders as they are now. `call` is the name of the
    /// refused function, cut at 47 bytes; `time_unix_ns` is nanoseconds since 1970.
    pub fn record_oom(&self, call: &str, device: usize, refusal: &Refusal, time_unix_ns: u64) {
        let holders = self.holders(device);
        let header = &self.layout().header;
        // Relaxed: takes a number; the entry says by itself when it is finished.
        let number = header.ooms.fetch_add(1, Ordering::Relaxed);
        let index = usize::try_from(number % MAX_OOMS as u64).unwrap_or(0);
        let Some(entry) = self.layout().ooms.get(index) else {
            return;
        };
        // Release twice: odd before the fields, even after them.
        entry
            .sequence
            .store(number.wrapping_mul(2).wrapping_add(1), Ordering::Release);
        crash_point!("oom:begun");
        fill_oom(entry, call, device, refusal, time_unix_ns);
        for (to, from) in entry.holders.iter().zip(&holders) {
            // Relaxed: the sequence is stored after.
            to.pid.store(from.pid, Ordering::Relaxed);
            to.slot.store(from.slot, Ordering::Relaxed);
            to.bytes.store(from.bytes, Ordering::Relaxed);
        }
        crash_point!("oom:filled");
        entry
            .sequence
            .store(number.wrapping_mul(2).wrapping_add(2), Ordering::Release);
        crash_point!("oom:done");
    }

    /// The largest holders of this device, largest first.
    #[must_use]
    pub fn holders(&self, device: usize) -> [MemoryHolder; MAX_HOLDERS] {
        let mut largest = [MemoryHolder::default(); MAX_HOLDERS];
        let mut rank = |mut next: MemoryHolder| {
            for place in &mut largest {
                if next.bytes > place.bytes {
                    std::mem::swap(&mut next, place);
                }
            }
        };
        for process in self.processes() {
            let bytes = process.used_bytes.get(device).copied().unwrap_or(0);
            let slot = u32::try_from(process.slot).unwrap_or(u32::MAX);
            rank(MemoryHolder {
                pid: process.pid,
                slot,
                bytes,
            });
        }
        // Relaxed: a number for a report.
        let shared = self
            .shared_word(device)
            .map_or(0, |word| word.load(Ordering::Relaxed));
        rank(MemoryHolder {
            pid: u32::MAX,
            slot: u32::MAX,
            bytes: bytes_in(shared),
        });
        largest
    }

    /// The processes that have a slot.
    pub fn processes(&self) -> impl Iterator<Item = ProcessUse> + '_ {
        let above = self.high_water_slots();
        let slots = self.layout().slots.iter().enumerate().take(above);
        slots.filter_map(|(index, slot)| {
            // Acquire: the identity was stored before the state. Relaxed below: numbers for a
            // report.
            if slot.head.state.load(Ordering::Acquire) != SLOT_USED {
                return None;
            }
            let used = |device: usize| {
                let cells = slot.devices.get(device);
                cells.map_or(0, |c| bytes_in(c.confirmed.load(Ordering::Relaxed)))
            };
            Some(ProcessUse {
                slot: index,
                generation: slot.head.generation.load(Ordering::Relaxed),
                pid: slot.head.pid.load(Ordering::Relaxed),
                pid_namespace: slot.head.pid_namespace.load(Ordering::Relaxed),
                used_bytes: std::array::from_fn(used),
            })
        })
    }

    fn high_water_slots(&self) -> usize {
        // SeqCst: raised before anything is written to a slot; sums stand on it.
        let above = self.layout().header.slots_high_water.load(Ordering::SeqCst);
        (above as usize).min(MAX_SLOTS)
    }

    fn shared_word(&self, device: usize) -> Option<&AtomicU64> {
        self.layout()
            .devices
            .get(device)
            .map(|device| &device.shared)
    }

    fn learned(&self, device: usize, of: fn(&crate::layout::RegionDevice) -> &AtomicU64) -> u64 {
        // Relaxed: an estimate; it guards nothing.
        self.layout()
            .devices
            .get(device)
            .map_or(0, |d| of(d).load(Ordering::Relaxed))
    }

    fn learn(&self, device: usize, of: fn(&crate::layout::RegionDevice) -> &AtomicU64, bytes: u64) {
        if let Some(device) = self.layout().devices.get(device) {
            // Relaxed: an estimate; it guards nothing.
            of(device).store(bytes, Ordering::Relaxed);
        }
    }

    /// What a context was seen to take on this device, bytes; 0 where it was not measured yet.
    #[must_use]
    pub fn learned_context_bytes(&self, device: usize) -> u64 {
        self.learned(device, |d| &d.context_bytes)
    }

    /// Remembers what a context was seen to take.
    pub fn learn_context_bytes(&self, device: usize, bytes: u64) {
        self.learn(device, |d| &d.context_bytes, bytes);
    }

    /// The most that contexts and modules were seen to take on this device, bytes, of a process whose
    /// runtime loads past the driver's public interface; 0 where it was not measured yet.
    #[must_use]
    pub fn learned_runtime_bytes(&self, device: usize) -> u64 {
        self.layout().devices.get(device).map_or(0, |device| {
            // SeqCst: as in `budget::reserve_loading`.
            bytes_in(device.runtime_bytes.load(Ordering::SeqCst))
        })
    }

    /// Remembers what contexts and modules of such a process were seen to take.
    pub fn learn_runtime_bytes(&self, device: usize, bytes: u64) {
        if let Some(device) = self.layout().devices.get(device) {
            // SeqCst: as in `budget::reserve_loading`.
            device
                .runtime_bytes
                .fetch_max(bytes.min(budget::MOST_BYTES), Ordering::SeqCst);
        }
    }

    /// What a module was seen to take on this device, bytes; 0 where it was not measured yet.
    #[must_use]
    pub fn learned_module_bytes(&self, device: usize) -> u64 {
        self.learned(device, |d| &d.module_bytes)
    }

    /// Remembers what a module was seen to take.
    pub fn learn_module_bytes(&self, device: usize, bytes: u64) {
        self.learn(device, |d| &d.module_bytes, bytes);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.leave();
        if let Some(fd) = self.descriptor_as_is() {
            sys::close(fd);
        }
    }
}

fn fill_oom(entry: &OomEntry, call: &str, device: usize, refusal: &Refusal, time_unix_ns: u64) {
    // Relaxed: the sequence is stored after.
    let order = Ordering::Relaxed;
    entry.time_unix_ns.store(time_unix_ns, order);
    entry.pid.store(sys::process_id(), order);
    entry
        .device
        .store(u32::try_from(device).unwrap_or(u32::MAX), order);
    entry.asked.store(refusal.asked, order);
    entry.limit.store(refusal.limit, order);
    entry.used.store(refusal.used, order);
    entry.unaccounted.store(refusal.unaccounted, order);
    let why = match refusal.why {
        Why::Full => 0,
        Why::TimedOut => 1,
        Why::Closed => 2,
        Why::NotPageable => 3,
    };
    entry.why.store(why, order);
    let call = call.as_bytes();
    store_text(&entry.call, call.get(..CALL_BYTES - 1).unwrap_or(call));
}

/// Adds to this process's own sum.
#[inline]
fn note(own: &OwnUse, tag: u64, bytes: u64, kind: Kind) -> Result<(), Stale> {
    match budget::add(&own.confirmed, tag, bytes) {
        Err(NotAdded::Stale) => return Err(Stale),
        // A sum beyond all cards; the slot's word is full too.
        Ok(()) | Err(NotAdded::Overflow) => {}
    }
    if let Some(word) = part(own, kind) {
        // Relaxed: a breakdown for a report.
        word.fetch_add(bytes, Ordering::Relaxed);
    }
    Ok(())
}

/// Takes from this process's own sum.
#[inline]
fn forget(own: &OwnUse, tag: u64, bytes: u64, kind: Kind) -> Result<(), Stale> {
    budget::take(&own.confirmed, tag, bytes)?;
    if let Some(word) = part(own, kind) {
        let less = |old: u64| Some(old.saturating_sub(bytes));
        // Relaxed: a breakdown for a report.
        let _old = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
    Ok(())
}

fn part(own: &OwnUse, kind: Kind) -> Option<&AtomicU64> {
    match kind {
        Kind::Buffer => None,
        Kind::Context => Some(&own.contexts),
        Kind::Module => Some(&own.modules),
    }
}
