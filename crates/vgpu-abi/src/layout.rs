//! The layout of the shared files, byte for byte: a wire format between two releases. Owns every
//! offset, size and magic number, and states them beside the types, so that a moved field does not
//! compile.
//!
//! Never holds a pointer, never means anything by padding, and never moves a field: a new field
//! takes reserved room and, where it would mislead an old reader, a new version.

use crate::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Devices that one container can have.
pub const MAX_DEVICES: usize = 16;
/// Processes that one container can have at a time.
pub const MAX_SLOTS: usize = 1024;
/// Objects that several processes hold together, at a time.
pub const MAX_SHARED: usize = 2048;
/// Refusals that are remembered.
pub const MAX_OOMS: usize = 64;
/// The largest holders that a refusal names.
pub const MAX_HOLDERS: usize = 5;
/// Bytes of a device's UUID text, zero-padded.
pub const UUID_BYTES: usize = 96;
/// Bytes of the name of the refused call, zero-padded.
pub const CALL_BYTES: usize = 48;
/// Groups of hooks that are counted apart.
pub const HOOK_GROUPS: usize = 16;
/// 64-bit words of a bitmap with one bit for each slot.
pub const SLOT_WORDS: usize = 16;
/// Lengths of waits at the gate that are counted apart.
pub const WAIT_LENGTHS: usize = 7;
/// Causes of waits at the gate that are counted apart.
pub const WAIT_CAUSES: usize = 4;

/// First eight bytes of a usage region: `vgpuREGN`.
pub const REGION_MAGIC: u64 = 0x4e47_4552_7570_6776;
/// Version of the usage region.
pub const REGION_VERSION: u32 = 1;
/// First eight bytes of a limits file: `vgpuLIMT`.
pub const LIMITS_MAGIC: u64 = 0x544d_494c_7570_6776;
/// Version of the limits file.
pub const LIMITS_VERSION: u32 = 1;
/// First eight bytes of a targets file: `vgpuTRGT`.
pub const TARGETS_MAGIC: u64 = 0x5447_5254_7570_6776;
/// Version of the targets file.
pub const TARGETS_VERSION: u32 = 1;

/// A charge word (`confirmed`, `pending`): its low 44 bits are bytes.
pub const CHARGE_BYTES_MASK: u64 = 0x0000_0fff_ffff_ffff;
/// A charge word: from this bit on, ten bits count how often bytes were added, so that a reader
/// sees whether two looks at it belong to one moment.
pub const CHARGE_COUNT_SHIFT: u32 = 44;
/// A charge word: from this bit on, ten bits repeat the slot's generation, so that a write that
/// was meant for the slot's former owner fails.
pub const CHARGE_TAG_SHIFT: u32 = 54;

/// A slot that no process uses.
pub const SLOT_FREE: u32 = 0;
/// A slot that a process is about to use.
pub const SLOT_JOINING: u32 = 1;
/// A slot in use.
pub const SLOT_USED: u32 = 2;

/// An unused place in the shared-object table.
pub const SHARED_FREE: u32 = 0;
/// A place in the shared-object table that is being filled or cleared.
pub const SHARED_CHANGING: u32 = 1;
/// A place in the shared-object table whose charge counts.
pub const SHARED_LIVE: u32 = 2;

/// Record locks of a region lie beyond every byte of it: the one on this byte plus the slot says
/// that the slot's owner lives.
pub const LOCK_SLOTS: u64 = 0x0000_0100_0000_0000;
/// On this byte plus the device: held by the process that decides about a device that is full.
pub const LOCK_DEVICES: u64 = 0x0000_0100_0010_0000;
/// On this byte: held by the process that changes the shared-object table.
pub const LOCK_SHARED: u64 = 0x0000_0100_0020_0000;
/// On this byte plus the slot: read locks of living processes that were forked from the slot's
/// owner. They keep its device memory, also after its death.
pub const LOCK_FAMILY: u64 = 0x0000_0100_0030_0000;

/// Head of the usage region. Everything is written by the tenant and judged by the host.
#[repr(C, align(64))]
pub struct RegionHeader {
    /// [`REGION_MAGIC`].
    pub magic: AtomicU64,
    /// [`REGION_VERSION`]; stored last, so 0 is a region that was never finished.
    pub version: AtomicU32,
    /// Size of this header.
    pub header_bytes: AtomicU32,
    /// Size of the file.
    pub region_bytes: AtomicU64,
    /// Devices in the table that mean something.
    pub device_count: AtomicU32,
    /// [`MAX_DEVICES`].
    pub device_capacity: AtomicU32,
    /// [`MAX_SLOTS`].
    pub slot_capacity: AtomicU32,
    /// Size of a [`Slot`].
    pub slot_bytes: AtomicU32,
    /// [`MAX_SHARED`].
    pub shared_capacity: AtomicU32,
    /// [`MAX_OOMS`].
    pub oom_capacity: AtomicU32,
    /// When the region was made, nanoseconds since 1970.
    pub created_unix_ns: AtomicU64,
    /// Room for what a later version says once.
    pub reserved_0: [AtomicU64; 9],
    /// Slots below this one were in use at some time; no other slot has ever been written.
    pub slots_high_water: AtomicU32,
    /// The same for the shared-object table.
    pub shared_high_water: AtomicU32,
    /// When a process last found the table's lock held, and the process that had it last: as in a
    /// [`RegionDevice`].
    pub shared_wanted_ns: AtomicU64,
    /// See `shared_wanted_ns`.
    pub shared_last: AtomicU64,
    /// Room that keeps the next field on a line of its own.
    pub reserved_1: [AtomicU64; 5],
    /// One bit for each slot: set before its first charge, cleared after its last.
    pub slots_in_use: [AtomicU64; SLOT_WORDS],
    /// Requests that were refused for want of room.
    pub refused: AtomicU64,
    /// Bounded waits for another party that ran out.
    pub waits_ran_out: AtomicU64,
    /// Slot locks that were lost (a program closed the file) and taken again.
    pub locks_retaken: AtomicU64,
    /// Processes that found their slot taken away and joined again.
    pub rejoined: AtomicU64,
    /// Slots of dead processes that were cleared.
    pub reaped: AtomicU64,
    /// Objects that found no place in the shared-object table.
    pub shared_full: AtomicU64,
    /// Refusals recorded so far; the last one is at this number less one, modulo [`MAX_OOMS`].
    pub ooms: AtomicU64,
    /// Processes that found no free slot.
    pub slots_full: AtomicU64,
    /// Hooked calls of processes that are gone, by group.
    pub past_hook_calls: [AtomicU64; HOOK_GROUPS],
    /// How long launches waited at the gate, by device. All zeros where an older library wrote the region.
    pub gate_waits: [GateWaits; MAX_DEVICES],
    /// Room for what a later version counts.
    pub reserved_2: [AtomicU64; 192],
}

/// How long launches of the container's processes, living and gone, waited at the gate of one device. A wait
/// is counted when it has ended.
#[repr(C, align(64))]
pub struct GateWaits {
    /// Waits by length: up to 100 µs, 1 ms, 10 ms, 100 ms, 1 s, 10 s, and longer.
    pub by_length: [AtomicU64; WAIT_LENGTHS],
    /// Time that launches waited, by cause, nanoseconds, summed over threads: for credit under the container's
    /// own cap; because the arbiter grants less than that; for work in flight; for a launch of unknown cost.
    pub ns_by_cause: [AtomicU64; WAIT_CAUSES],
    /// Room for more.
    pub reserved: [AtomicU64; 5],
}

/// One device of the container, in the order in which the container sees them.
#[repr(C, align(64))]
pub struct RegionDevice {
    /// UUID text, zero-padded; empty where the region was made without knowing it.
    pub uuid: [AtomicU8; UUID_BYTES],
    /// Room that keeps the next field on a line of its own.
    pub reserved_0: [AtomicU64; 4],
    /// Bytes of all shared objects on this device: a charge word without a tag.
    pub shared: AtomicU64,
    /// Size of a context as measured, bytes; 0 where it was not measured yet.
    pub context_bytes: AtomicU64,
    /// Size of a module as measured, bytes; 0 where it was not measured yet.
    pub module_bytes: AtomicU64,
    /// Size of the device, bytes; 0 where it is not known.
    pub physical_bytes: AtomicU64,
    /// When a process last found the device's lock held, nanoseconds of the monotonic clock; 0 once it has
    /// the lock. The process that had the lock last lets it go first.
    pub wanted_ns: AtomicU64,
    /// The process that had the device's lock last: slot and generation, packed.
    pub last: AtomicU64,
    /// The most that contexts and modules were seen to take, bytes, of a process whose runtime loads
    /// past the driver's public interface; 0 where none was measured.
    pub runtime_bytes: AtomicU64,
    /// Room for the rest of the line.
    pub reserved_1: [AtomicU64; 1],
    /// Compute credit of the container on this device, nanoseconds, two's complement.
    pub credit_ns: AtomicU64,
    /// When credit was last refilled, nanoseconds of the monotonic clock.
    pub credit_at_ns: AtomicU64,
    /// GPU time that the container was charged for, living and dead processes together,
    /// nanoseconds.
    pub busy_ns: AtomicU64,
    /// Credit that threads hold beyond what they have asked for, nanoseconds.
    pub leased_ns: AtomicU64,
    /// The process that has a launch of unknown cost in flight: slot and generation, packed; 0 is none.
    pub unknown: AtomicU64,
    /// When that launch was made, nanoseconds of the monotonic clock.
    pub unknown_at_ns: AtomicU64,
    /// GPU time that was used and is paid for later, out of an eighth of what is earned, nanoseconds.
    pub owed_ns: AtomicU64,
    /// Room for compute.
    pub reserved_2: [AtomicU64; 1],
    /// Launches of processes that are gone.
    pub past: ComputeUse,
}

/// The owner of a slot.
#[repr(C, align(64))]
pub struct SlotHead {
    /// [`SLOT_FREE`], [`SLOT_JOINING`] or [`SLOT_USED`].
    pub state: AtomicU32,
    /// Process id in the owner's own namespace.
    pub pid: AtomicU32,
    /// Raised whenever the slot changes hands; its low ten bits tag the charge words.
    pub generation: AtomicU64,
    /// Start time of the process, in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_time: AtomicU64,
    /// Inode of the process's pid namespace; 0 where it could not be read.
    pub pid_namespace: AtomicU64,
    /// Where the process's stack starts (`/proc/PID/stat`, field 28): another value under the
    /// same pid and start time is another program after `exec`. 0 where it could not be read.
    pub start_stack: AtomicU64,
    /// When the slot was taken, nanoseconds since 1970.
    pub joined_unix_ns: AtomicU64,
    /// Name of the program (`/proc/PID/comm`), zero-padded.
    pub name: [AtomicU8; 16],
    /// Hooked calls by group.
    pub hook_calls: [AtomicU64; HOOK_GROUPS],
    /// Random bytes of the program image: others under the same pid after `exec`.
    pub image: AtomicU64,
    /// When the owner was first seen to be gone while the slot still had charges, nanoseconds of the
    /// monotonic clock; 0 as long as it lives. The charges stay until the driver has let go.
    pub gone_since_ns: AtomicU64,
    /// The abilities of the process's library: see [`ABILITIES`]; 0 of an earlier release.
    pub abilities: AtomicU64,
    /// Room for what a later version knows of a process.
    pub reserved: [AtomicU64; 5],
}

/// [`SlotHead::abilities`], bit 0: launches keep to the container's interval of the timetable.
pub const KEEPS_INTERVALS: u64 = 1;
/// The abilities of the library of this release.
pub const ABILITIES: u64 = KEEPS_INTERVALS;

/// The launches of one process on one device.
#[repr(C, align(64))]
pub struct ComputeUse {
    /// Kernels launched.
    pub launches: AtomicU64,
    /// Graphs launched.
    pub graph_launches: AtomicU64,
    /// GPU time charged, nanoseconds.
    pub busy_ns: AtomicU64,
    /// Estimated GPU time of the work in flight, nanoseconds.
    pub in_flight_ns: AtomicU64,
    /// When work was last launched, nanoseconds of the monotonic clock; 0 is never. Only kept where
    /// the process's launches are measured.
    pub last_launch_ns: AtomicU64,
    /// Time that launches have waited for credit or for a turn, nanoseconds.
    pub throttled_ns: AtomicU64,
    /// Since when a launch has been waiting, nanoseconds of the monotonic clock; 0: none is.
    pub waiting_since_ns: AtomicU64,
    /// Compute credit leased and not used yet, nanoseconds.
    pub leased_ns: AtomicU64,
    /// Launches that had to wait.
    pub waits: AtomicU64,
    /// Copies and fills put into streams.
    pub copies: AtomicU64,
    /// Bytes that they copied or filled.
    pub copy_bytes: AtomicU64,
    /// Host functions put into streams.
    pub host_functions: AtomicU64,
    /// Launches whose cost was not known.
    pub unknown_launches: AtomicU64,
    /// Time in which the process had work on the device, as its events saw it: includes the turns that
    /// other processes had meanwhile. Nanoseconds; 0 where an older library wrote the region.
    pub occupied_ns: AtomicU64,
    /// When the work in flight ought to be done, though others had their turns, nanoseconds of the
    /// monotonic clock.
    pub expected_by_ns: AtomicU64,
    /// When work was last seen to end, nanoseconds of the monotonic clock.
    pub progress_ns: AtomicU64,
}

/// The use of one device by one process. Only its own process and, once that is dead, a reaper
/// write it.
#[repr(C, align(64))]
pub struct DeviceUse {
    /// Charge word: what the driver has given.
    pub confirmed: AtomicU64,
    /// Of `confirmed`: contexts, bytes.
    pub contexts: AtomicU64,
    /// Of `confirmed`: modules, bytes.
    pub modules: AtomicU64,
    /// Charge word: of `confirmed` and `pending`, managed memory past the container's share of the
    /// device.
    pub oversubscribed: AtomicU64,
    /// Since when the process's runtime has been loading what no call of the driver's public
    /// interface names, nanoseconds of the monotonic clock; 0: it is not.
    pub loading_since_ns: AtomicU64,
    /// The bytes that a checkpoint has taken off `confirmed`, with the tag of its charge words; 0: nothing.
    pub away: AtomicU64,
    /// The bytes that its runtime is assumed to load as long as no such process of the container was measured;
    /// counts only while `loading_since_ns` does.
    pub loading_bytes: AtomicU64,
    /// Room for more kinds.
    pub reserved_0: [AtomicU64; 1],
    /// Charge word: what has been asked of the driver and is not answered yet.
    pub pending: AtomicU64,
    /// Room that keeps the next field on a line of its own.
    pub reserved_1: [AtomicU64; 7],
    /// Its launches.
    pub compute: ComputeUse,
}

/// A process: its identity, and what it uses of each device.
#[repr(C, align(64))]
pub struct Slot {
    /// Its identity.
    pub head: SlotHead,
    /// Its use of each device.
    pub devices: [DeviceUse; MAX_DEVICES],
}

/// An object that several processes may hold, with its one charge.
#[repr(C, align(64))]
pub struct SharedObject {
    /// [`SHARED_FREE`], [`SHARED_CHANGING`] or [`SHARED_LIVE`].
    pub state: AtomicU32,
    /// Index of the device.
    pub device: AtomicU32,
    /// Its name, the same in every process.
    pub key: [AtomicU64; 2],
    /// Its charge, bytes.
    pub bytes: AtomicU64,
    /// When it came into the table: monotonic nanoseconds, different for each object.
    pub sequence: AtomicU64,
    /// How it is passed between processes; the highest bit is set if its name does not distinguish it from other
    /// objects.
    pub family: AtomicU64,
    /// Room that keeps the next field on a line of its own.
    pub reserved: [AtomicU64; 2],
    /// One bit for each slot that holds it.
    pub holders: [AtomicU64; SLOT_WORDS],
}

/// A process that held memory when a request was refused, or all shared objects together.
#[repr(C)]
pub struct OomHolder {
    /// Process id in its own namespace; 0 ends the list; `UINT32_MAX` means shared objects.
    pub pid: AtomicU32,
    /// Its slot.
    pub slot: AtomicU32,
    /// The memory it held, bytes.
    pub bytes: AtomicU64,
}

/// A refusal.
#[repr(C, align(64))]
pub struct OomEntry {
    /// Twice its number plus two; odd while it is being written; stored last.
    pub sequence: AtomicU64,
    /// Nanoseconds since 1970.
    pub time_unix_ns: AtomicU64,
    /// The process that asked: its id in its own namespace.
    pub pid: AtomicU32,
    /// Index of the device.
    pub device: AtomicU32,
    /// How many bytes were asked for.
    pub asked: AtomicU64,
    /// The limit then.
    pub limit: AtomicU64,
    /// Memory used then.
    pub used: AtomicU64,
    /// Why: 0 full, 1 a wait ran out, 2 closed, 3 only memory of the device itself would have done
    /// (then `limit` and `used` are of the container's share of that).
    pub why: AtomicU32,
    /// Room.
    pub reserved_0: AtomicU32,
    /// The refused call, zero-padded.
    pub call: [AtomicU8; CALL_BYTES],
    /// The largest holders, largest first.
    pub holders: [OomHolder; MAX_HOLDERS],
    /// Bytes that the driver held for the container beyond its charges: this part of `limit` could not be given.
    pub unaccounted: AtomicU64,
    /// Room.
    pub reserved_1: [AtomicU64; 8],
}

/// The usage region: one file, written by the container, `pread` by the host.
#[repr(C, align(64))]
pub struct RegionLayout {
    /// Magic number, version and sizes.
    pub header: RegionHeader,
    /// Its devices.
    pub devices: [RegionDevice; MAX_DEVICES],
    /// The last refusals, a ring.
    pub ooms: [OomEntry; MAX_OOMS],
    /// Objects that several processes hold.
    pub shared: [SharedObject; MAX_SHARED],
    /// Processes.
    pub slots: [Slot; MAX_SLOTS],
}

/// Head of a file that the host owns (limits, targets). Two copies of the content follow.
#[repr(C, align(64))]
pub struct HostFileHeader {
    /// [`LIMITS_MAGIC`] or [`TARGETS_MAGIC`].
    pub magic: AtomicU64,
    /// Version of the content; stored last.
    pub version: AtomicU32,
    /// Size of one copy.
    pub copy_bytes: AtomicU32,
    /// Size of the file.
    pub file_bytes: AtomicU64,
    /// Generation times two, plus which copy holds it: one store flips both.
    pub current: AtomicU64,
    /// When the owner last looked after the file, nanoseconds of the monotonic clock.
    pub heartbeat_ns: AtomicU64,
    /// Of the targets: what the compute arbiter saw of the container, by device, for programs that show
    /// it. Thousandths plus one, 0 is no word: bits 0-15 the share that it grants, bits 16-31 the
    /// share that was used in the last second; bits 32-47: thousandths of the last second that
    /// launches have waited; bit 48: others work on the device too; bit 49: it waits for its turn.
    pub seen: [AtomicU64; MAX_DEVICES],
    /// Of the targets, by device: bytes that the driver holds for the container's processes and the
    /// region's charges do not have. The library subtracts them from the limit.
    pub unaccounted: [AtomicU64; MAX_DEVICES],
    /// Of the targets, by device: the sum of the charges that `unaccounted` was measured against.
    pub unaccounted_beside: [AtomicU64; MAX_DEVICES],
    /// Of the targets, by device: the container's interval of each period of the timetable by which containers work
    /// one after the other; 0 is none. Bits 0-15 the period in milliseconds, bits 16-39 where in the period the interval
    /// begins and bits 40-63 how long it is, both in microseconds. A period begins whenever the monotonic clock is a
    /// multiple of it.
    pub intervals: [AtomicU64; MAX_DEVICES],
    /// Room.
    pub reserved: [AtomicU64; 443],
}

/// The limits of a container on one device.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsDevice {
    /// UUID text, zero-padded; empty means "the device at this index".
    pub uuid: [u8; UUID_BYTES],
    /// Memory limit, bytes; 0 is no cap.
    pub memory_bytes: u64,
    /// Size of the device, bytes; 0 where it is not known.
    pub physical_bytes: u64,
    /// Expected size of a context, bytes; 0 where it is not known.
    pub context_bytes: u64,
    /// Expected size of a module, bytes; 0 where it is not known.
    pub module_bytes: u64,
    /// Share of compute time, percent; 0 and 100 are no cap.
    pub core_percent: u32,
    /// Share of compute time that the container gets whenever it wants it, percent; 0 is none.
    pub floor_percent: u32,
    /// Of `memory_bytes`, what may be memory of the device; the rest is managed memory. 0 is all:
    /// no oversubscription.
    pub resident_bytes: u64,
    /// Room.
    pub reserved_1: [u64; 6],
}

/// One copy of the limits.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsCopy {
    /// [`LIMITS_VERSION`].
    pub version: u32,
    /// Devices that mean something.
    pub device_count: u32,
    /// Raised with every change.
    pub generation: u64,
    /// Priority, 0 is the highest.
    pub priority: u32,
    /// 0 default, 1 force, 2 floor, 3 disable.
    pub policy: u32,
    /// Devices that are not named: 0 deny, 1 allow.
    pub unlisted: u32,
    /// Room.
    pub reserved_0: [u32; 9],
    /// The container's limits, by device.
    pub devices: [LimitsDevice; MAX_DEVICES],
    /// Room.
    pub reserved_1: [u64; 119],
    /// Over everything before it.
    pub checksum: u64,
}

/// The limits: one file, written by the host, mapped read-only by the container.
#[repr(C, align(64))]
pub struct LimitsLayout {
    /// Kind and version, and which copy counts.
    pub header: HostFileHeader,
    /// The copies.
    pub copies: [LimitsCopy; 2],
}

/// The host's knowledge of one process.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetsEntry {
    /// Generation of the file's content that this entry belongs to.
    pub generation: u64,
    /// Generation of the slot that it speaks of.
    pub slot_generation: u64,
    /// Process id on the host; 0 where it is not known.
    pub host_pid: u32,
    /// 1: the slot's owner is dead, and the driver holds nothing for it any more.
    pub released: u32,
    /// Memory that the driver takes for contexts and modules beyond the process's own allocations, by
    /// device, bytes.
    pub overhead_bytes: [u64; MAX_DEVICES],
    /// The compute arbiter's grants, by device; 0 means that it has granted nothing. Bits 0-9: thousandths of
    /// the device plus one; bit 10: others work on the device too; bit 11: the work is to be
    /// measured although nothing caps it; bit 12: the first launch after each publication rings the doorbell (opens
    /// the file beside this one); bits 13-14: how much work may be in flight, 0 the usual amount, 1 a little or
    /// one launch, 2 any, 3 up to a second; bits 16-31: what a nanosecond that the process has
    /// measured counts for, in parts of 4096.
    pub grants: [u32; MAX_DEVICES],
    /// Of a measured interval that other processes' turns may lie in: the part that is the process's own, by
    /// device, in parts of 4096; 0 is no word of it. `grants` has this factor in it.
    pub own_parts: [u16; MAX_DEVICES],
    /// Over everything before it.
    pub checksum: u64,
}

/// One copy of the targets.
#[repr(C, align(64))]
pub struct TargetsCopy {
    /// By slot. Only those in use are written.
    pub entries: [TargetsEntry; MAX_SLOTS],
}

/// The targets: one file, written by the host, mapped read-only by the container.
#[repr(C, align(64))]
pub struct TargetsLayout {
    /// Kind and version, and which copy counts.
    pub header: HostFileHeader,
    /// The copies.
    pub copies: [TargetsCopy; 2],
}

/// States a layout beside its type: a change that moves a field does not compile.
///
/// loom's atomics have a size of their own, so under loom nothing is stated.
macro_rules! assert_layout {
    ($type:ident: size $size:expr, align $align:expr $(, $field:ident @ $offset:expr)* $(,)?) => {
        #[cfg(not(loom))]
        const _: () = {
            assert!(size_of::<$type>() == $size, concat!("size of ", stringify!($type)));
            assert!(align_of::<$type>() == $align, concat!("alignment of ", stringify!($type)));
            $(assert!(
                std::mem::offset_of!($type, $field) == $offset,
                concat!("offset of ", stringify!($type), ".", stringify!($field)),
            );)*
        };
    };
}

assert_layout!(RegionHeader: size 4096, align 64, magic @ 0, version @ 8, header_bytes @ 12,
    region_bytes @ 16, device_count @ 24, device_capacity @ 28, slot_capacity @ 32,
    slot_bytes @ 36, shared_capacity @ 40, oom_capacity @ 44, created_unix_ns @ 48,
    slots_high_water @ 128, shared_high_water @ 132, shared_wanted_ns @ 136, shared_last @ 144, slots_in_use @ 192, refused @ 320,
    waits_ran_out @ 328, locks_retaken @ 336, rejoined @ 344, reaped @ 352, shared_full @ 360,
    ooms @ 368, slots_full @ 376, past_hook_calls @ 384, gate_waits @ 512, reserved_2 @ 2560);
assert_layout!(GateWaits: size 128, align 64, by_length @ 0, ns_by_cause @ 56, reserved @ 88);
assert_layout!(RegionDevice: size 384, align 64, uuid @ 0, shared @ 128, context_bytes @ 136,
    module_bytes @ 144, physical_bytes @ 152, wanted_ns @ 160, last @ 168, runtime_bytes @ 176, credit_ns @ 192, credit_at_ns @ 200, busy_ns @ 208,
    leased_ns @ 216, unknown @ 224, unknown_at_ns @ 232, owed_ns @ 240, past @ 256);
assert_layout!(SlotHead: size 256, align 64, state @ 0, pid @ 4, generation @ 8, start_time @ 16,
    pid_namespace @ 24, start_stack @ 32, joined_unix_ns @ 40, name @ 48, hook_calls @ 64,
    image @ 192, gone_since_ns @ 200, abilities @ 208);
assert_layout!(ComputeUse: size 128, align 64, launches @ 0, graph_launches @ 8, busy_ns @ 16,
    in_flight_ns @ 24, last_launch_ns @ 32, throttled_ns @ 40, waiting_since_ns @ 48,
    leased_ns @ 56, waits @ 64, copies @ 72, copy_bytes @ 80, host_functions @ 88,
    unknown_launches @ 96, occupied_ns @ 104, expected_by_ns @ 112,
    progress_ns @ 120);
assert_layout!(DeviceUse: size 256, align 64, confirmed @ 0, contexts @ 8, modules @ 16,
    oversubscribed @ 24, loading_since_ns @ 32, away @ 40, loading_bytes @ 48, pending @ 64, compute @ 128);
assert_layout!(Slot: size 4352, align 64, head @ 0, devices @ 256);
assert_layout!(SharedObject: size 192, align 64, state @ 0, device @ 4, key @ 8, bytes @ 24,
    sequence @ 32, family @ 40, holders @ 64);
assert_layout!(OomHolder: size 16, align 8, pid @ 0, slot @ 4, bytes @ 8);
assert_layout!(OomEntry: size 256, align 64, sequence @ 0, time_unix_ns @ 8, pid @ 16,
    device @ 20, asked @ 24, limit @ 32, used @ 40, why @ 48, call @ 56, holders @ 104, unaccounted @ 184);
assert_layout!(RegionLayout: size 4_876_288, align 64, header @ 0, devices @ 4096, ooms @ 10_240,
    shared @ 26_624, slots @ 419_840);
assert_layout!(HostFileHeader: size 4096, align 64, magic @ 0, version @ 8, copy_bytes @ 12,
    file_bytes @ 16, current @ 24, heartbeat_ns @ 32, seen @ 40, unaccounted @ 168,
    unaccounted_beside @ 296, intervals @ 424);
assert_layout!(LimitsDevice: size 192, align 8, uuid @ 0, memory_bytes @ 96, physical_bytes @ 104,
    context_bytes @ 112, module_bytes @ 120, core_percent @ 128,
    floor_percent @ 132, resident_bytes @ 136);
assert_layout!(LimitsCopy: size 4096, align 64, version @ 0, device_count @ 4, generation @ 8,
    priority @ 16, policy @ 20, unlisted @ 24, devices @ 64, checksum @ 4088);
assert_layout!(LimitsLayout: size 12_288, align 64, header @ 0, copies @ 4096);
assert_layout!(TargetsEntry: size 256, align 64, generation @ 0, slot_generation @ 8,
    host_pid @ 16, released @ 20, overhead_bytes @ 24, grants @ 152, own_parts @ 216, checksum @ 248);
assert_layout!(TargetsCopy: size 262_144, align 64, entries @ 0);
assert_layout!(TargetsLayout: size 528_384, align 64, header @ 0, copies @ 4096);
