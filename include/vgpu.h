/* The files that a GPU container and its host share: usage region, limits, targets.
 *
 * Made from crates/vgpu-abi/src/layout.rs by `cargo xtask header`; do not edit. Words that several
 * processes write are plain integers here: load them with __atomic_load_n, store them not at all,
 * and check what you read: the region is its tenant's to write. */

#ifndef VGPU_H
#define VGPU_H

#include <stdint.h>
#define VGPU_ALIGNED(n) __attribute__((aligned(n)))

// Devices that one container can have.
#define VGPU_MAX_DEVICES 16

// Processes that one container can have at a time.
#define VGPU_MAX_SLOTS 1024

// Objects that several processes hold together, at a time.
#define VGPU_MAX_SHARED 2048

// Refusals that are remembered.
#define VGPU_MAX_OOMS 64

// The largest holders that a refusal names.
#define VGPU_MAX_HOLDERS 5

// Bytes of a device's UUID text, zero-padded.
#define VGPU_UUID_BYTES 96

// Bytes of the name of the refused call, zero-padded.
#define VGPU_CALL_BYTES 48

// Groups of hooks that are counted apart.
#define VGPU_HOOK_GROUPS 16

// 64-bit words of a bitmap with one bit for each slot.
#define VGPU_SLOT_WORDS 16

// Lengths of waits at the gate that are counted apart.
#define VGPU_WAIT_LENGTHS 7

// Causes of waits at the gate that are counted apart.
#define VGPU_WAIT_CAUSES 4

// First eight bytes of a usage region: `vgpuREGN`.
#define VGPU_REGION_MAGIC 5640553278764771190

// Version of the usage region.
#define VGPU_REGION_VERSION 1

// First eight bytes of a limits file: `vgpuLIMT`.
#define VGPU_LIMITS_MAGIC 6074592065129310070

// Version of the limits file.
#define VGPU_LIMITS_VERSION 1

// First eight bytes of a targets file: `vgpuTRGT`.
#define VGPU_TARGETS_MAGIC 6072913145233434486

// Version of the targets file.
#define VGPU_TARGETS_VERSION 1

// A charge word (`confirmed`, `pending`): its low 44 bits are bytes.
#define VGPU_CHARGE_BYTES_MASK 17592186044415

// A charge word: from this bit on, ten bits count how often bytes were added, so that a reader
// sees whether two looks at it belong to one moment.
#define VGPU_CHARGE_COUNT_SHIFT 44

// A charge word: from this bit on, ten bits repeat the slot's generation, so that a write that
// was meant for the slot's former owner fails.
#define VGPU_CHARGE_TAG_SHIFT 54

// A slot that no process uses.
#define VGPU_SLOT_FREE 0

// A slot that a process is about to use.
#define VGPU_SLOT_JOINING 1

// A slot in use.
#define VGPU_SLOT_USED 2

// An unused place in the shared-object table.
#define VGPU_SHARED_FREE 0

// A place in the shared-object table that is being filled or cleared.
#define VGPU_SHARED_CHANGING 1

// A place in the shared-object table whose charge counts.
#define VGPU_SHARED_LIVE 2

// Record locks of a region lie beyond every byte of it: the one on this byte plus the slot says
// that the slot's owner lives.
#define VGPU_LOCK_SLOTS 1099511627776

// On this byte plus the device: held by the process that decides about a device that is full.
#define VGPU_LOCK_DEVICES 1099512676352

// On this byte: held by the process that changes the shared-object table.
#define VGPU_LOCK_SHARED 1099513724928

// On this byte plus the slot: read locks of living processes that were forked from the slot's
// owner. They keep its device memory, also after its death.
#define VGPU_LOCK_FAMILY 1099514773504

// SlotHead::abilities, bit 0: launches keep to the container's interval of the timetable.
#define VGPU_KEEPS_INTERVALS 1

// The abilities of the library of this release.
#define VGPU_ABILITIES VGPU_KEEPS_INTERVALS

// How long launches of the container's processes, living and gone, waited at the gate of one device. A wait
// is counted when it has ended.
typedef struct VGPU_ALIGNED(64) VgpuGateWaits {
  // Waits by length: up to 100 µs, 1 ms, 10 ms, 100 ms, 1 s, 10 s, and longer.
  uint64_t by_length[VGPU_WAIT_LENGTHS];
  // Time that launches waited, by cause, nanoseconds, summed over threads: for credit under the container's
  // own cap; because the arbiter grants less than that; for work in flight; for a launch of unknown cost.
  uint64_t ns_by_cause[VGPU_WAIT_CAUSES];
  // Room for more.
  uint64_t reserved[5];
} VgpuGateWaits;

// Head of the usage region. Everything is written by the tenant and judged by the host.
typedef struct VGPU_ALIGNED(64) VgpuRegionHeader {
  // REGION_MAGIC.
  uint64_t magic;
  // REGION_VERSION; stored last, so 0 is a region that was never finished.
  uint32_t version;
  // Size of this header.
  uint32_t header_bytes;
  // Size of the file.
  uint64_t region_bytes;
  // Devices in the table that mean something.
  uint32_t device_count;
  // MAX_DEVICES.
  uint32_t device_capacity;
  // MAX_SLOTS.
  uint32_t slot_capacity;
  // Size of a Slot.
  uint32_t slot_bytes;
  // MAX_SHARED.
  uint32_t shared_capacity;
  // MAX_OOMS.
  uint32_t oom_capacity;
  // When the region was made, nanoseconds since 1970.
  uint64_t created_unix_ns;
  // Room for what a later version says once.
  uint64_t reserved_0[9];
  // Slots below this one were in use at some time; no other slot has ever been written.
  uint32_t slots_high_water;
  // The same for the shared-object table.
  uint32_t shared_high_water;
  // When a process last found the table's lock held, and the process that had it last: as in a
  // RegionDevice.
  uint64_t shared_wanted_ns;
  // See `shared_wanted_ns`.
  uint64_t shared_last;
  // Room that keeps the next field on a line of its own.
  uint64_t reserved_1[5];
  // One bit for each slot: set before its first charge, cleared after its last.
  uint64_t slots_in_use[VGPU_SLOT_WORDS];
  // Requests that were refused for want of room.
  uint64_t refused;
  // Bounded waits for another party that ran out.
  uint64_t waits_ran_out;
  // Slot locks that were lost (a program closed the file) and taken again.
  uint64_t locks_retaken;
  // Processes that found their slot taken away and joined again.
  uint64_t rejoined;
  // Slots of dead processes that were cleared.
  uint64_t reaped;
  // Objects that found no place in the shared-object table.
  uint64_t shared_full;
  // Refusals recorded so far; the last one is at this number less one, modulo MAX_OOMS.
  uint64_t ooms;
  // Processes that found no free slot.
  uint64_t slots_full;
  // Hooked calls of processes that are gone, by group.
  uint64_t past_hook_calls[VGPU_HOOK_GROUPS];
  // How long launches waited at the gate, by device. All zeros where an older library wrote the region.
  struct VgpuGateWaits gate_waits[VGPU_MAX_DEVICES];
  // Room for what a later version counts.
  uint64_t reserved_2[192];
} VgpuRegionHeader;

// The launches of one process on one device.
typedef struct VGPU_ALIGNED(64) VgpuComputeUse {
  // Kernels launched.
  uint64_t launches;
  // Graphs launched.
  uint64_t graph_launches;
  // GPU time charged, nanoseconds.
  uint64_t busy_ns;
  // Estimated GPU time of the work in flight, nanoseconds.
  uint64_t in_flight_ns;
  // When work was last launched, nanoseconds of the monotonic clock; 0 is never. Only kept where
  // the process's launches are measured.
  uint64_t last_launch_ns;
  // Time that launches have waited for credit or for a turn, nanoseconds.
  uint64_t throttled_ns;
  // Since when a launch has been waiting, nanoseconds of the monotonic clock; 0: none is.
  uint64_t waiting_since_ns;
  // Compute credit leased and not used yet, nanoseconds.
  uint64_t leased_ns;
  // Launches that had to wait.
  uint64_t waits;
  // Copies and fills put into streams.
  uint64_t copies;
  // Bytes that they copied or filled.
  uint64_t copy_bytes;
  // Host functions put into streams.
  uint64_t host_functions;
  // Launches whose cost was not known.
  uint64_t unknown_launches;
  // Time in which the process had work on the device, as its events saw it: includes the turns that
  // other processes had meanwhile. Nanoseconds; 0 where an older library wrote the region.
  uint64_t occupied_ns;
  // When the work in flight ought to be done, though others had their turns, nanoseconds of the
  // monotonic clock.
  uint64_t expected_by_ns;
  // When work was last seen to end, nanoseconds of the monotonic clock.
  uint64_t progress_ns;
} VgpuComputeUse;

// One device of the container, in the order in which the container sees them.
typedef struct VGPU_ALIGNED(64) VgpuRegionDevice {
  // UUID text, zero-padded; empty where the region was made without knowing it.
  uint8_t uuid[VGPU_UUID_BYTES];
  // Room that keeps the next field on a line of its own.
  uint64_t reserved_0[4];
  // Bytes of all shared objects on this device: a charge word without a tag.
  uint64_t shared;
  // Size of a context as measured, bytes; 0 where it was not measured yet.
  uint64_t context_bytes;
  // Size of a module as measured, bytes; 0 where it was not measured yet.
  uint64_t module_bytes;
  // Size of the device, bytes; 0 where it is not known.
  uint64_t physical_bytes;
  // When a process last found the device's lock held, nanoseconds of the monotonic clock; 0 once it has
  // the lock. The process that had the lock last lets it go first.
  uint64_t wanted_ns;
  // The process that had the device's lock last: slot and generation, packed.
  uint64_t last;
  // The most that contexts and modules were seen to take, bytes, of a process whose runtime loads
  // past the driver's public interface; 0 where none was measured.
  uint64_t runtime_bytes;
  // Room for the rest of the line.
  uint64_t reserved_1[1];
  // Compute credit of the container on this device, nanoseconds, two's complement.
  uint64_t credit_ns;
  // When credit was last refilled, nanoseconds of the monotonic clock.
  uint64_t credit_at_ns;
  // GPU time that the container was charged for, living and dead processes together,
  // nanoseconds.
  uint64_t busy_ns;
  // Credit that threads hold beyond what they have asked for, nanoseconds.
  uint64_t leased_ns;
  // The process that has a launch of unknown cost in flight: slot and generation, packed; 0 is none.
  uint64_t unknown;
  // When that launch was made, nanoseconds of the monotonic clock.
  uint64_t unknown_at_ns;
  // GPU time that was used and is paid for later, out of an eighth of what is earned, nanoseconds.
  uint64_t owed_ns;
  // Room for compute.
  uint64_t reserved_2[1];
  // Launches of processes that are gone.
  struct VgpuComputeUse past;
} VgpuRegionDevice;

// A process that held memory when a request was refused, or all shared objects together.
typedef struct VgpuOomHolder {
  // Process id in its own namespace; 0 ends the list; `UINT32_MAX` means shared objects.
  uint32_t pid;
  // Its slot.
  uint32_t slot;
  // The memory it held, bytes.
  uint64_t bytes;
} VgpuOomHolder;

// A refusal.
typedef struct VGPU_ALIGNED(64) VgpuOomEntry {
  // Twice its number plus two; odd while it is being written; stored last.
  uint64_t sequence;
  // Nanoseconds since 1970.
  uint64_t time_unix_ns;
  // The process that asked: its id in its own namespace.
  uint32_t pid;
  // Index of the device.
  uint32_t device;
  // How many bytes were asked for.
  uint64_t asked;
  // The limit then.
  uint64_t limit;
  // Memory used then.
  uint64_t used;
  // Why: 0 full, 1 a wait ran out, 2 closed, 3 only memory of the device itself would have done
  // (then `limit` and `used` are of the container's share of that).
  uint32_t why;
  // Room.
  uint32_t reserved_0;
  // The refused call, zero-padded.
  uint8_t call[VGPU_CALL_BYTES];
  // The largest holders, largest first.
  struct VgpuOomHolder holders[VGPU_MAX_HOLDERS];
  // Bytes that the driver held for the container beyond its charges: this part of `limit` could not be given.
  uint64_t unaccounted;
  // Room.
  uint64_t reserved_1[8];
} VgpuOomEntry;

// An object that several processes may hold, with its one charge.
typedef struct VGPU_ALIGNED(64) VgpuSharedObject {
  // SHARED_FREE, SHARED_CHANGING or SHARED_LIVE.
  uint32_t state;
  // Index of the device.
  uint32_t device;
  // Its name, the same in every process.
  uint64_t key[2];
  // Its charge, bytes.
  uint64_t bytes;
  // When it came into the table: monotonic nanoseconds, different for each object.
  uint64_t sequence;
  // How it is passed between processes; the highest bit is set if its name does not distinguish it from other
  // objects.
  uint64_t family;
  // Room that keeps the next field on a line of its own.
  uint64_t reserved[2];
  // One bit for each slot that holds it.
  uint64_t holders[VGPU_SLOT_WORDS];
} VgpuSharedObject;

// The owner of a slot.
typedef struct VGPU_ALIGNED(64) VgpuSlotHead {
  // SLOT_FREE, SLOT_JOINING or SLOT_USED.
  uint32_t state;
  // Process id in the owner's own namespace.
  uint32_t pid;
  // Raised whenever the slot changes hands; its low ten bits tag the charge words.
  uint64_t generation;
  // Start time of the process, in clock ticks since boot (`/proc/PID/stat`, field 22).
  uint64_t start_time;
  // Inode of the process's pid namespace; 0 where it could not be read.
  uint64_t pid_namespace;
  // Where the process's stack starts (`/proc/PID/stat`, field 28): another value under the
  // same pid and start time is another program after `exec`. 0 where it could not be read.
  uint64_t start_stack;
  // When the slot was taken, nanoseconds since 1970.
  uint64_t joined_unix_ns;
  // Name of the program (`/proc/PID/comm`), zero-padded.
  uint8_t name[16];
  // Hooked calls by group.
  uint64_t hook_calls[VGPU_HOOK_GROUPS];
  // Random bytes of the program image: others under the same pid after `exec`.
  uint64_t image;
  // When the owner was first seen to be gone while the slot still had charges, nanoseconds of the
  // monotonic clock; 0 as long as it lives. The charges stay until the driver has let go.
  uint64_t gone_since_ns;
  // The abilities of the process's library: see ABILITIES; 0 of an earlier release.
  uint64_t abilities;
  // Room for what a later version knows of a process.
  uint64_t reserved[5];
} VgpuSlotHead;

// The use of one device by one process. Only its own process and, once that is dead, a reaper
// write it.
typedef struct VGPU_ALIGNED(64) VgpuDeviceUse {
  // Charge word: what the driver has given.
  uint64_t confirmed;
  // Of `confirmed`: contexts, bytes.
  uint64_t contexts;
  // Of `confirmed`: modules, bytes.
  uint64_t modules;
  // Charge word: of `confirmed` and `pending`, managed memory past the container's share of the
  // device.
  uint64_t oversubscribed;
  // Since when the process's runtime has been loading what no call of the driver's public
  // interface names, nanoseconds of the monotonic clock; 0: it is not.
  uint64_t loading_since_ns;
  // The bytes that a checkpoint has taken off `confirmed`, with the tag of its charge words; 0: nothing.
  uint64_t away;
  // The bytes that its runtime is assumed to load as long as no such process of the container was measured;
  // counts only while `loading_since_ns` does.
  uint64_t loading_bytes;
  // Room for more kinds.
  uint64_t reserved_0[1];
  // Charge word: what has been asked of the driver and is not answered yet.
  uint64_t pending;
  // Room that keeps the next field on a line of its own.
  uint64_t reserved_1[7];
  // Its launches.
  struct VgpuComputeUse compute;
} VgpuDeviceUse;

// A process: its identity, and what it uses of each device.
typedef struct VGPU_ALIGNED(64) VgpuSlot {
  // Its identity.
  struct VgpuSlotHead head;
  // Its use of each device.
  struct VgpuDeviceUse devices[VGPU_MAX_DEVICES];
} VgpuSlot;

// The usage region: one file, written by the container, `pread` by the host.
typedef struct VGPU_ALIGNED(64) VgpuRegionLayout {
  // Magic number, version and sizes.
  struct VgpuRegionHeader header;
  // Its devices.
  struct VgpuRegionDevice devices[VGPU_MAX_DEVICES];
  // The last refusals, a ring.
  struct VgpuOomEntry ooms[VGPU_MAX_OOMS];
  // Objects that several processes hold.
  struct VgpuSharedObject shared[VGPU_MAX_SHARED];
  // Processes.
  struct VgpuSlot slots[VGPU_MAX_SLOTS];
} VgpuRegionLayout;

// Head of a file that the host owns (limits, targets). Two copies of the content follow.
typedef struct VGPU_ALIGNED(64) VgpuHostFileHeader {
  // LIMITS_MAGIC or TARGETS_MAGIC.
  uint64_t magic;
  // Version of the content; stored last.
  uint32_t version;
  // Size of one copy.
  uint32_t copy_bytes;
  // Size of the file.
  uint64_t file_bytes;
  // Generation times two, plus which copy holds it: one store flips both.
  uint64_t current;
  // When the owner last looked after the file, nanoseconds of the monotonic clock.
  uint64_t heartbeat_ns;
  // Of the targets: what the compute arbiter saw of the container, by device, for programs that show
  // it. Thousandths plus one, 0 is no word: bits 0-15 the share that it grants, bits 16-31 the
  // share that was used in the last second; bits 32-47: thousandths of the last second that
  // launches have waited; bit 48: others work on the device too; bit 49: it waits for its turn.
  uint64_t seen[VGPU_MAX_DEVICES];
  // Of the targets, by device: bytes that the driver holds for the container's processes and the
  // region's charges do not have. The library subtracts them from the limit.
  uint64_t unaccounted[VGPU_MAX_DEVICES];
  // Of the targets, by device: the sum of the charges that `unaccounted` was measured against.
  uint64_t unaccounted_beside[VGPU_MAX_DEVICES];
  // Of the targets, by device: the container's interval of each period of the timetable by which containers work
  // one after the other; 0 is none. Bits 0-15 the period in milliseconds, bits 16-39 where in the period the interval
  // begins and bits 40-63 how long it is, both in microseconds. A period begins whenever the monotonic clock is a
  // multiple of it.
  uint64_t intervals[VGPU_MAX_DEVICES];
  // Room.
  uint64_t reserved[443];
} VgpuHostFileHeader;

// The limits of a container on one device.
typedef struct VgpuLimitsDevice {
  // UUID text, zero-padded; empty means "the device at this index".
  uint8_t uuid[VGPU_UUID_BYTES];
  // Memory limit, bytes; 0 is no cap.
  uint64_t memory_bytes;
  // Size of the device, bytes; 0 where it is not known.
  uint64_t physical_bytes;
  // Expected size of a context, bytes; 0 where it is not known.
  uint64_t context_bytes;
  // Expected size of a module, bytes; 0 where it is not known.
  uint64_t module_bytes;
  // Share of compute time, percent; 0 and 100 are no cap.
  uint32_t core_percent;
  // Share of compute time that the container gets whenever it wants it, percent; 0 is none.
  uint32_t floor_percent;
  // Of `memory_bytes`, what may be memory of the device; the rest is managed memory. 0 is all:
  // no oversubscription.
  uint64_t resident_bytes;
  // Room.
  uint64_t reserved_1[6];
} VgpuLimitsDevice;

// One copy of the limits.
typedef struct VGPU_ALIGNED(64) VgpuLimitsCopy {
  // LIMITS_VERSION.
  uint32_t version;
  // Devices that mean something.
  uint32_t device_count;
  // Raised with every change.
  uint64_t generation;
  // Priority, 0 is the highest.
  uint32_t priority;
  // 0 default, 1 force, 2 floor, 3 disable.
  uint32_t policy;
  // Devices that are not named: 0 deny, 1 allow.
  uint32_t unlisted;
  // Room.
  uint32_t reserved_0[9];
  // The container's limits, by device.
  struct VgpuLimitsDevice devices[VGPU_MAX_DEVICES];
  // Room.
  uint64_t reserved_1[119];
  // Over everything before it.
  uint64_t checksum;
} VgpuLimitsCopy;

// The limits: one file, written by the host, mapped read-only by the container.
typedef struct VGPU_ALIGNED(64) VgpuLimitsLayout {
  // Kind and version, and which copy counts.
  struct VgpuHostFileHeader header;
  // The copies.
  struct VgpuLimitsCopy copies[2];
} VgpuLimitsLayout;

// The host's knowledge of one process.
typedef struct VGPU_ALIGNED(64) VgpuTargetsEntry {
  // Generation of the file's content that this entry belongs to.
  uint64_t generation;
  // Generation of the slot that it speaks of.
  uint64_t slot_generation;
  // Process id on the host; 0 where it is not known.
  uint32_t host_pid;
  // 1: the slot's owner is dead, and the driver holds nothing for it any more.
  uint32_t released;
  // Memory that the driver takes for contexts and modules beyond the process's own allocations, by
  // device, bytes.
  uint64_t overhead_bytes[VGPU_MAX_DEVICES];
  // The compute arbiter's grants, by device; 0 means that it has granted nothing. Bits 0-9: thousandths of
  // the device plus one; bit 10: others work on the device too; bit 11: the work is to be
  // measured although nothing caps it; bit 12: the first launch after each publication rings the doorbell (opens
  // the file beside this one); bits 13-14: how much work may be in flight, 0 the usual amount, 1 a little or
  // one launch, 2 any, 3 up to a second; bits 16-31: what a nanosecond that the process has
  // measured counts for, in parts of 4096.
  uint32_t grants[VGPU_MAX_DEVICES];
  // Of a measured interval that other processes' turns may lie in: the part that is the process's own, by
  // device, in parts of 4096; 0 is no word of it. `grants` has this factor in it.
  uint16_t own_parts[VGPU_MAX_DEVICES];
  // Over everything before it.
  uint64_t checksum;
} VgpuTargetsEntry;

// One copy of the targets.
typedef struct VGPU_ALIGNED(64) VgpuTargetsCopy {
  // By slot. Only those in use are written.
  struct VgpuTargetsEntry entries[VGPU_MAX_SLOTS];
} VgpuTargetsCopy;

// The targets: one file, written by the host, mapped read-only by the container.
typedef struct VGPU_ALIGNED(64) VgpuTargetsLayout {
  // Kind and version, and which copy counts.
  struct VgpuHostFileHeader header;
  // The copies.
  struct VgpuTargetsCopy copies[2];
} VgpuTargetsLayout;

#endif  /* VGPU_H */
