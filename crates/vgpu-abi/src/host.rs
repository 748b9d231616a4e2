//! The usage region as the host sees it: plain values, read by `pread` from a file that a tenant
//! may have done anything to. Owns which values are trusted and which are clamped.
//!
//! Never maps the file, never follows a link, never blocks on a pipe, never takes a lock, and
//! never lets a number in it decide how much is read or allocated.

use std::fs::File;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::budget::{MOST_BYTES, bytes_in};
use crate::file::{self, Access, FileError, FileKind};
use crate::layout::{
    CALL_BYTES, ComputeUse, DeviceUse, GateWaits, HOOK_GROUPS, LOCK_FAMILY, LOCK_SLOTS,
    MAX_DEVICES, MAX_HOLDERS, MAX_OOMS, MAX_SHARED, MAX_SLOTS, OomEntry, OomHolder, RegionDevice,
    RegionHeader, RegionLayout, SHARED_LIVE, SLOT_USED, SLOT_WORDS, SharedObject, Slot, SlotHead,
};
use crate::region::{MemoryHolder, SharedKey, Why};
use crate::sys::{self, LockOwner};
use crate::uuid::DeviceUuid;
use crate::waits::Waits;

/// The charges of a dead process stay at most this long after another process of its container found it dead: a
/// driver that has not released the memory by then may never do so.
pub const KEEP_DEAD_NS: u64 = 2_000_000_000;

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

/// A region at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// When the region was made, nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// When this was read, nanoseconds of the monotonic clock.
    pub read_at_ns: u64,
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
    /// Size of a context as measured, bytes.
    pub context_bytes: u64,
    /// Size of a module as measured, bytes.
    pub module_bytes: u64,
    /// Compute credit, nanoseconds; below zero is debt.
    pub credit_ns: i64,
    /// GPU time that the container was charged for, living and dead processes together,
    /// nanoseconds.
    pub busy_ns: u64,
    /// Launches of processes that are gone.
    pub past: ComputeSnapshot,
    /// How long launches of all its processes, living and gone, waited at the gate.
    pub waits: Waits,
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
    /// Whether its record lock is held, as the kernel reports.
    pub alive: bool,
    /// The process that holds the lock, as the kernel says; `None` where it is not visible from here.
    pub host_pid: Option<u32>,
    /// When another process of the container found it dead, nanoseconds of the monotonic clock; 0: none has.
    pub gone_since_ns: u64,
    /// Whether a process that was forked from it is alive, as the kernel reports. That process holds its device
    /// memory too.
    pub has_family: bool,
    /// Its use of each device.
    pub devices: [DeviceUseSnapshot; MAX_DEVICES],
    /// Hooked calls by group.
    pub hook_calls: [u64; HOOK_GROUPS],
}

/// The use of a device by a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceUseSnapshot {
    /// Memory that the driver has given, bytes: buffers, contexts and modules.
    pub confirmed_bytes: u64,
    /// Memory that has been asked for, bytes.
    pub pending_bytes: u64,
    /// Of the confirmed: buffers, bytes.
    pub buffer_bytes: u64,
    /// Of the confirmed: contexts, bytes.
    pub context_bytes: u64,
    /// Of the confirmed: modules, bytes.
    pub module_bytes: u64,
    /// Of the confirmed: managed memory past the container's share of the device, bytes.
    pub oversubscribed_bytes: u64,
    /// Its launches.
    pub compute: ComputeSnapshot,
}

/// Launches on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ComputeSnapshot {
    /// Kernels launched.
    pub launches: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// GPU time charged, nanoseconds.
    pub busy_ns: u64,
    /// Estimated GPU time of the work in flight, nanoseconds.
    pub in_flight_ns: u64,
    /// When work was last launched, nanoseconds of the monotonic clock; 0 is never.
    pub last_launch_ns: u64,
    /// Time that launches have waited, nanoseconds.
    pub throttled_ns: u64,
    /// Since when a launch has been waiting, nanoseconds of the monotonic clock; 0: none is.
    pub waiting_since_ns: u64,
    /// Compute credit leased and not used yet, nanoseconds.
    pub leased_ns: u64,
    /// Launches that had to wait.
    pub waits: u64,
    /// Copies and fills put into streams.
    pub copies: u64,
    /// Bytes that they copied or filled.
    pub copy_bytes: u64,
    /// Host functions put into streams.
    pub host_functions: u64,
    /// Launches whose cost was not known.
    pub unknown_launches: u64,
    /// Time in which processes had work on the device, the turns of other processes included, nanoseconds.
    pub occupied_ns: u64,
    /// When the work in flight ought to have ended, nanoseconds of the monotonic clock, or later work of the process
    /// was last seen to end; 0: nothing is in flight. Of several processes the earliest.
    pub due_ns: u64,
}

impl ComputeSnapshot {
    /// The sum of two; times are the latest.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        let waiting = [self.waiting_since_ns, other.waiting_since_ns];
        let waiting = waiting.into_iter().filter(|since| *since != 0).min();
        let due = [self.due_ns, other.due_ns];
        let due = due.into_iter().filter(|at| *at != 0).min();
        Self {
            launches: self.launches.saturating_add(other.launches),
            graph_launches: self.graph_launches.saturating_add(other.graph_launches),
            busy_ns: self.busy_ns.saturating_add(other.busy_ns),
            in_flight_ns: self.in_flight_ns.saturating_add(other.in_flight_ns),
            last_launch_ns: self.last_launch_ns.max(other.last_launch_ns),
            throttled_ns: self.throttled_ns.saturating_add(other.throttled_ns),
            waiting_since_ns: waiting.unwrap_or(0),
            leased_ns: self.leased_ns.saturating_add(other.leased_ns),
            waits: self.waits.saturating_add(other.waits),
            copies: self.copies.saturating_add(other.copies),
            copy_bytes: self.copy_bytes.saturating_add(other.copy_bytes),
            host_functions: self.host_functions.saturating_add(other.host_functions),
            unknown_launches: self.unknown_launches.saturating_add(other.unknown_launches),
            occupied_ns: self.occupied_ns.saturating_add(other.occupied_ns),
            due_ns: due.unwrap_or(0),
        }
    }

    fn read(part: &Part, at: usize) -> Self {
        let word = |offset: usize| part.u64(at + offset);
        let expected_by_ns = word(offset_of!(ComputeUse, expected_by_ns));
        let due_ns = expected_by_ns.max(word(offset_of!(ComputeUse, progress_ns)));
        Self {
            launches: word(offset_of!(ComputeUse, launches)),
            graph_launches: word(offset_of!(ComputeUse, graph_launches)),
            busy_ns: word(offset_of!(ComputeUse, busy_ns)),
            in_flight_ns: word(offset_of!(ComputeUse, in_flight_ns)),
            last_launch_ns: word(offset_of!(ComputeUse, last_launch_ns)),
            throttled_ns: word(offset_of!(ComputeUse, throttled_ns)),
            waiting_since_ns: word(offset_of!(ComputeUse, waiting_since_ns)),
            leased_ns: word(offset_of!(ComputeUse, leased_ns)),
            waits: word(offset_of!(ComputeUse, waits)),
            copies: word(offset_of!(ComputeUse, copies)),
            copy_bytes: word(offset_of!(ComputeUse, copy_bytes)),
            host_functions: word(offset_of!(ComputeUse, host_functions)),
            unknown_launches: word(offset_of!(ComputeUse, unknown_launches)),
            occupied_ns: word(offset_of!(ComputeUse, occupied_ns)),
            due_ns: match word(offset_of!(ComputeUse, in_flight_ns)) {
                0 => 0,
                _ => due_ns.max(1),
            },
        }
    }
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
    /// The process that asked: its id in its own namespace.
    pub pid: u32,
    /// The refused call.
    pub call: String,
    /// The device's index.
    pub device: usize,
    /// Bytes asked for.
    pub asked: u64,
    /// The limit then, bytes.
    pub limit: u64,
    /// Memory used then, bytes.
    pub used: u64,
    /// Bytes that the driver held for the container and its charges did not have.
    pub unaccounted: u64,
    /// Why.
    pub why: Why,
    /// The largest holders, largest first.
    pub holders: Vec<MemoryHolder>,
}

/// The counters of a region.
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

impl SlotSnapshot {
    /// Whether this is a dead process whose charges the library still counts. `released` is read from the container's
    /// targets: whether the driver has released the process's memory; `None` if the targets do not say.
    #[must_use]
    pub fn is_kept(&self, released: Option<bool>, now_ns: u64) -> bool {
        if self.alive || self.devices.iter().all(|used| used.confirmed_bytes == 0) {
            return false;
        }
        let is_recent = self.gone_since_ns != 0
            && now_ns
                .checked_sub(self.gone_since_ns)
                .is_some_and(|ns| ns < KEEP_DEAD_NS);
        self.has_family || released.map_or(is_recent, |released| !released)
    }
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
/// See [`FileError`].
pub fn snapshot(path: &Path) -> Result<Snapshot, FileError> {
    read(&file::open(path, FileKind::Region, Access::Read)?)
}

/// Reads a region below an open directory, so that nothing between can be swapped. `name` is one
/// name, not a path.
///
/// # Errors
/// See [`FileError`].
pub fn snapshot_at(directory: BorrowedFd<'_>, name: &str) -> Result<Snapshot, FileError> {
    if name.contains('/') || name == ".." {
        return Err(FileError::Missing);
    }
    // The same as `openat`, without a call of our own: the descriptor's directory as a path.
    let directory = format!("/proc/self/fd/{}", directory.as_raw_fd());
    snapshot(&Path::new(&directory).join(name))
}

fn read(file: &File) -> Result<Snapshot, FileError> {
    let head = Part::read(file, 0, HEAD_BYTES)?;
    let slots = in_use(&head)
        .map(|slot| read_slot(file, slot))
        .filter_map(Result::transpose);
    let slots = slots.collect::<Result<Vec<_>, _>>()?;
    let mut snapshot = Snapshot {
        created_unix_ns: head.u64(offset_of!(RegionHeader, created_unix_ns)),
        read_at_ns: sys::now_ns(),
        devices: devices(&head),
        shared: shared(file, &head)?,
        ooms: ooms(&head),
        counters: counters(&head),
        slots,
    };
    for slot in &snapshot.slots {
        for (sum, calls) in snapshot.counters.hook_calls.iter_mut().zip(slot.hook_calls) {
            *sum = sum.saturating_add(calls);
        }
    }
    Ok(snapshot)
}

/// Header, devices and refusals: always read as a whole.
const HEAD_BYTES: usize = offset_of!(RegionLayout, shared);

/// A part of the file, as it was at one `pread`.
struct Part(Vec<u8>);

impl Part {
    fn read(file: &File, offset: usize, bytes: usize) -> Result<Self, FileError> {
        let mut buffer = vec![0; bytes];
        file.read_exact_at(&mut buffer, offset as u64)?;
        Ok(Self(buffer))
    }

    fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let bytes = self.0.get(offset..).and_then(|rest| rest.first_chunk());
        bytes.copied().unwrap_or([0; N])
    }

    fn u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(offset))
    }

    fn u32(&self, offset: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(offset))
    }

    /// Text that a tenant wrote, for a terminal or a metric: printable ASCII only.
    fn text<const N: usize>(&self, offset: usize) -> String {
        let bytes: [u8; N] = self.bytes(offset);
        let text = bytes.iter().take_while(|byte| **byte != 0);
        let printable = |byte: &u8| {
            let fine = byte.is_ascii_graphic() || *byte == b' ';
            if fine { char::from(*byte) } else { '?' }
        };
        text.map(printable).collect()
    }
}

/// No GPU and no counter is as large; a larger number is noise. Sums of 1,024 such fit 64 bits.
fn bytes_at(part: &Part, offset: usize) -> u64 {
    part.u64(offset).min(MOST_BYTES)
}

fn devices(head: &Part) -> Vec<DeviceSnapshot> {
    let count = head.u32(offset_of!(RegionHeader, device_count)) as usize;
    let device = |index: usize| {
        let at = offset_of!(RegionLayout, devices) + index * size_of::<RegionDevice>();
        DeviceSnapshot {
            uuid: DeviceUuid::from_bytes(&head.bytes(at + offset_of!(RegionDevice, uuid))),
            physical_bytes: bytes_at(head, at + offset_of!(RegionDevice, physical_bytes)),
            shared_bytes: bytes_in(head.u64(at + offset_of!(RegionDevice, shared))),
            context_bytes: bytes_at(head, at + offset_of!(RegionDevice, context_bytes)),
            module_bytes: bytes_at(head, at + offset_of!(RegionDevice, module_bytes)),
            credit_ns: head
                .u64(at + offset_of!(RegionDevice, credit_ns))
                .cast_signed(),
            busy_ns: head.u64(at + offset_of!(RegionDevice, busy_ns)),
            past: ComputeSnapshot::read(head, at + offset_of!(RegionDevice, past)),
            waits: waits(head, index),
        }
    };
    (0..count.min(MAX_DEVICES)).map(device).collect()
}

/// More waits than any container had: even the shortest would take centuries. A larger number is noise, and
/// sums of all lengths fit 64 bits.
const MOST_WAITS: u64 = 1 << 48;

fn waits(head: &Part, device: usize) -> Waits {
    let at = offset_of!(RegionHeader, gate_waits) + device * size_of::<GateWaits>();
    let word = |field: usize, index: usize| head.u64(at + field + index * 8);
    Waits {
        by_length: std::array::from_fn(|length| {
            word(offset_of!(GateWaits, by_length), length).min(MOST_WAITS)
        }),
        ns_by_cause: std::array::from_fn(|cause| word(offset_of!(GateWaits, ns_by_cause), cause)),
    }
}

fn counters(head: &Part) -> Counters {
    let past = offset_of!(RegionHeader, past_hook_calls);
    Counters {
        refused: head.u64(offset_of!(RegionHeader, refused)),
        waits_ran_out: head.u64(offset_of!(RegionHeader, waits_ran_out)),
        locks_retaken: head.u64(offset_of!(RegionHeader, locks_retaken)),
        rejoined: head.u64(offset_of!(RegionHeader, rejoined)),
        reaped: head.u64(offset_of!(RegionHeader, reaped)),
        shared_full: head.u64(offset_of!(RegionHeader, shared_full)),
        ooms: head.u64(offset_of!(RegionHeader, ooms)),
        slots_full: head.u64(offset_of!(RegionHeader, slots_full)),
        hook_calls: std::array::from_fn(|group| head.u64(past + group * 8)),
    }
}

/// The slots that the header calls used.
fn in_use(head: &Part) -> impl Iterator<Item = usize> + '_ {
    let above = head.u32(offset_of!(RegionHeader, slots_high_water)) as usize;
    (0..above.min(MAX_SLOTS)).filter(|slot| {
        let word = offset_of!(RegionHeader, slots_in_use) + slot / 64 * 8;
        head.u64(word) & 1 << (slot % 64) != 0
    })
}

fn read_slot(file: &File, index: usize) -> Result<Option<SlotSnapshot>, FileError> {
    let offset = offset_of!(RegionLayout, slots) + index * size_of::<Slot>();
    let slot = Part::read(file, offset, size_of::<Slot>())?;
    if slot.u32(offset_of!(SlotHead, state)) != SLOT_USED {
        return Ok(None);
    }
    let owner = sys::lock_owner(file.as_raw_fd(), LOCK_SLOTS + index as u64).map_err(|errno| {
        FileError::System {
            call: "F_GETLK",
            errno,
        }
    })?;
    // Only a dead process's family counts, and most processes are alive.
    let has_family = owner == LockOwner::None && family_lives(file, index);
    let device = |device: usize| {
        let at = offset_of!(Slot, devices) + device * size_of::<DeviceUse>();
        let confirmed = bytes_in(slot.u64(at + offset_of!(DeviceUse, confirmed)));
        let contexts = slot
            .u64(at + offset_of!(DeviceUse, contexts))
            .min(confirmed);
        let modules = slot
            .u64(at + offset_of!(DeviceUse, modules))
            .min(confirmed - contexts);
        DeviceUseSnapshot {
            confirmed_bytes: confirmed,
            pending_bytes: bytes_in(slot.u64(at + offset_of!(DeviceUse, pending))),
            buffer_bytes: confirmed - contexts - modules,
            context_bytes: contexts,
            module_bytes: modules,
            oversubscribed_bytes: bytes_in(slot.u64(at + offset_of!(DeviceUse, oversubscribed)))
                .min(confirmed),
            compute: ComputeSnapshot::read(&slot, at + offset_of!(DeviceUse, compute)),
        }
    };
    let calls = offset_of!(SlotHead, hook_calls);
    Ok(Some(SlotSnapshot {
        slot: index,
        generation: slot.u64(offset_of!(SlotHead, generation)),
        pid: slot.u32(offset_of!(SlotHead, pid)),
        start_time: slot.u64(offset_of!(SlotHead, start_time)),
        pid_namespace: slot.u64(offset_of!(SlotHead, pid_namespace)),
        name: slot.text::<16>(offset_of!(SlotHead, name)),
        joined_unix_ns: slot.u64(offset_of!(SlotHead, joined_unix_ns)),
        alive: owner != LockOwner::None,
        gone_since_ns: slot.u64(offset_of!(SlotHead, gone_since_ns)),
        has_family,
        host_pid: match owner {
            LockOwner::Process(pid) if pid > 0 => Some(pid),
            _ => None,
        },
        devices: std::array::from_fn(device),
        hook_calls: std::array::from_fn(|group| slot.u64(calls + group * 8)),
    }))
}

/// Whether processes live that were forked from the owner of a slot.
fn family_lives(file: &File, slot: usize) -> bool {
    matches!(
        sys::lock_owner(file.as_raw_fd(), LOCK_FAMILY + slot as u64),
        Ok(owner) if owner != LockOwner::None
    )
}

fn shared(file: &File, head: &Part) -> Result<Vec<SharedSnapshot>, FileError> {
    const OBJECT: usize = size_of::<SharedObject>();
    let above = head.u32(offset_of!(RegionHeader, shared_high_water)) as usize;
    let above = above.min(MAX_SHARED);
    let table = Part::read(file, offset_of!(RegionLayout, shared), above * OBJECT)?;
    let object = |index: usize| {
        let at = index * OBJECT;
        let device = table.u32(at + offset_of!(SharedObject, device)) as usize;
        let live = table.u32(at + offset_of!(SharedObject, state)) == SHARED_LIVE;
        if !live || device >= MAX_DEVICES {
            return None;
        }
        let key = at + offset_of!(SharedObject, key);
        let holders_of = |word: usize| {
            let mut bits = table.u64(at + offset_of!(SharedObject, holders) + word * 8);
            std::iter::from_fn(move || {
                let slot = (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize);
                bits &= bits.wrapping_sub(1);
                slot
            })
        };
        Some(SharedSnapshot {
            key: SharedKey([table.u64(key), table.u64(key + 8)]),
            device,
            bytes: bytes_at(&table, at + offset_of!(SharedObject, bytes)),
            holders: (0..SLOT_WORDS).flat_map(holders_of).collect(),
        })
    };
    Ok((0..above).filter_map(object).collect())
}

/// The refusals that were finished and not overwritten since, oldest first.
fn ooms(head: &Part) -> Vec<OomSnapshot> {
    let end = head.u64(offset_of!(RegionHeader, ooms));
    let numbers = end.saturating_sub(MAX_OOMS as u64)..end;
    let oom = |number: u64| {
        let index = usize::try_from(number % MAX_OOMS as u64).unwrap_or(0);
        let at = offset_of!(RegionLayout, ooms) + index * size_of::<OomEntry>();
        let finished = number.wrapping_mul(2).wrapping_add(2);
        let device = head.u32(at + offset_of!(OomEntry, device)) as usize;
        let why = match head.u32(at + offset_of!(OomEntry, why)) {
            0 => Why::Full,
            1 => Why::TimedOut,
            3 => Why::NotPageable,
            _ => Why::Closed,
        };
        if head.u64(at + offset_of!(OomEntry, sequence)) != finished || device >= MAX_DEVICES {
            return None;
        }
        let holder = |index: usize| {
            let at = at + offset_of!(OomEntry, holders) + index * size_of::<OomHolder>();
            MemoryHolder {
                pid: head.u32(at + offset_of!(OomHolder, pid)),
                slot: head.u32(at + offset_of!(OomHolder, slot)),
                bytes: bytes_at(head, at + offset_of!(OomHolder, bytes)),
            }
        };
        Some(OomSnapshot {
            number,
            time_unix_ns: head.u64(at + offset_of!(OomEntry, time_unix_ns)),
            pid: head.u32(at + offset_of!(OomEntry, pid)),
            call: head.text::<CALL_BYTES>(at + offset_of!(OomEntry, call)),
            device,
            asked: head.u64(at + offset_of!(OomEntry, asked)),
            limit: head.u64(at + offset_of!(OomEntry, limit)),
            used: head.u64(at + offset_of!(OomEntry, used)),
            unaccounted: bytes_at(head, at + offset_of!(OomEntry, unaccounted)),
            why,
            holders: (0..MAX_HOLDERS)
                .map(holder)
                .take_while(|h| h.pid != 0)
                .collect(),
        })
    };
    numbers.filter_map(oom).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_NS: u64 = 10 * KEEP_DEAD_NS;

    /// A dead process that was charged for a byte, and was found dead at this time.
    fn dead(gone_since_ns: u64) -> SlotSnapshot {
        let mut devices = [DeviceUseSnapshot::default(); MAX_DEVICES];
        devices[1].confirmed_bytes = 1;
        SlotSnapshot {
            slot: 0,
            generation: 1,
            pid: 1,
            start_time: 0,
            pid_namespace: 0,
            name: String::new(),
            joined_unix_ns: 0,
            alive: false,
            host_pid: None,
            gone_since_ns,
            has_family: false,
            devices,
            hook_calls: [0; HOOK_GROUPS],
        }
    }

    #[test]
    fn dead_process_counts_for_a_bounded_time_after_it_is_found() {
        assert!(dead(NOW_NS).is_kept(None, NOW_NS));
        assert!(dead(NOW_NS - KEEP_DEAD_NS + 1).is_kept(None, NOW_NS));
        assert!(!dead(NOW_NS - KEEP_DEAD_NS).is_kept(None, NOW_NS));
        assert!(!dead(0).is_kept(None, NOW_NS), "no process has found it");
        assert!(!dead(NOW_NS + 1).is_kept(None, NOW_NS), "of another clock");
    }

    #[test]
    fn the_hosts_word_of_a_dead_process_goes_before_the_clock() {
        assert!(!dead(NOW_NS).is_kept(Some(true), NOW_NS));
        assert!(dead(0).is_kept(Some(false), NOW_NS));
    }

    #[test]
    fn a_living_child_keeps_the_charges_of_its_parent() {
        let parent = SlotSnapshot {
            has_family: true,
            ..dead(0)
        };
        assert!(parent.is_kept(Some(true), NOW_NS));
    }

    #[test]
    fn a_living_process_and_one_without_charges_are_not_kept() {
        let living = SlotSnapshot {
            alive: true,
            ..dead(NOW_NS)
        };
        assert!(!living.is_kept(Some(false), NOW_NS));
        let empty = SlotSnapshot {
            devices: [DeviceUseSnapshot::default(); MAX_DEVICES],
            ..dead(NOW_NS)
        };
        assert!(!empty.is_kept(Some(false), NOW_NS));
    }
}
