//! The usage region as the container's processes see it: one mapped file, slots held by record
//! locks, and what must survive any death.
//!
//! Never allocates or panics after `open`, never waits longer than 100 ms, keeps no `std` lock, and
//! leaves nothing behind that a SIGKILL at any step would turn into a hang or a leak.

mod away;
mod charges;
mod dead;
mod errors;
mod files;
mod imports;
mod private;
mod report;
mod shared;
mod slots;

use std::fmt;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use self::private::Private;
use crate::budget::{Charges, SlotTag, tag_of};
use crate::credit::Compute;
use crate::layout::{
    DeviceUse, LOCK_DEVICES, LOCK_FAMILY, LOCK_SHARED, LOCK_SLOTS, MAX_DEVICES, MAX_SHARED,
    MAX_SLOTS, RegionLayout, UUID_BYTES,
};
use crate::map::{PrivateMap, RegionMap};
use crate::sys::{self, CPath};
use crate::uuid::DeviceUuid;

pub use self::errors::{JoinError, ShareError};
pub use self::imports::{Family, Import};
pub use crate::budget::{Bounds, Charge, Kind, Refusal, Why};

/// One device of a new region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewDevice {
    /// Its UUID; may be empty.
    pub uuid: DeviceUuid,
    /// Its size, bytes; 0 where it is not known.
    pub physical_bytes: u64,
}

/// This process's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnSlot {
    /// Index of the slot.
    pub slot: usize,
    /// Its generation.
    pub generation: u64,
}

/// The name of a shared object, the same in every process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedKey(pub [u64; 2]);

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
    /// Process id in its own namespace; 0 ends the list; `u32::MAX` means shared objects.
    pub pid: u32,
    /// Its slot.
    pub slot: u32,
    /// The memory it holds, bytes.
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
    /// The descriptor by which the record locks are taken; checked before use, opened again when lost.
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

impl Region {
    /// From here on the charges of a dead process stay until [`Region::let_go`] is told that the
    /// driver has let go of its memory, and at most this long; as long as a process lives that was
    /// forked from it, they stay in any case. Without this call they go with the process.
    pub fn keep_dead_for(&self, ns: u64) {
        // Relaxed: a setting; it guards nothing.
        self.keep_dead_ns.store(ns, Ordering::Relaxed);
    }

    /// Whether the file lies on an overlay file system, where another container would not see it.
    #[must_use]
    pub fn on_overlay(&self) -> bool {
        self.on_overlay
    }

    /// A number for the file, which distinguishes the regions of a host.
    #[must_use]
    pub fn file_number(&self) -> u64 {
        self.inode ^ self.device.rotate_left(32)
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
    /// itself, also in a forked child; this one returns why it cannot be done.
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
    pub fn device(&self, device: usize) -> Option<NewDevice> {
        if device >= self.device_count() {
            return None;
        }
        let entry = self.layout().devices.get(device)?;
        let mut uuid = [0; UUID_BYTES];
        for (to, from) in uuid.iter_mut().zip(&entry.uuid) {
            // Relaxed: written before the version, which `open` has seen.
            *to = from.load(Ordering::Relaxed);
        }
        Some(NewDevice {
            uuid: DeviceUuid::from_bytes(&uuid),
            // Relaxed: as above.
            physical_bytes: entry.physical_bytes.load(Ordering::Relaxed),
        })
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

    fn high_water_slots(&self) -> usize {
        // SeqCst: raised before anything is written to a slot; sums stand on it.
        let above = self.layout().header.slots_high_water.load(Ordering::SeqCst);
        (above as usize).min(MAX_SLOTS)
    }

    #[inline]
    fn shared_word(&self, device: usize) -> Option<&AtomicU64> {
        self.layout()
            .devices
            .get(device)
            .map(|device| &device.shared)
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
