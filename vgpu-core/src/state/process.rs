//! This process's knowledge of its container: the limits as they were last read, which device is which, and
//! the memory it holds. It lies in memory that a fork wipes. Decides no call: the rules ask here.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::limits::{DeviceLimit, Policy, Unlisted};

use crate::base::clock;
use crate::base::lock::Lock;
use crate::base::log::line;
use crate::driver::device::{Device, Fact, MAX_ORDINALS};
use crate::driver::{gpus, query};
use crate::figures::sizes;
use crate::guest::manners;
use crate::state::container::{Container, LimitsFrom};
use crate::state::holdings::{Holdings, Learn};
use crate::state::launches;

/// The part of a limit that may be memory of the device itself, bytes; 0 is all of it.
fn share_of_the_device(limit: &DeviceLimit) -> u64 {
    match (limit.resident_bytes, limit.memory_bytes) {
        (resident, 0) => resident,
        (resident, memory) if resident < memory => resident,
        _ => 0,
    }
}

/// The rest of a limit when the driver holds `unaccounted` bytes beyond the charges. 0 means no limit, so a limit
/// without any room left becomes 1.
fn room_of(limit: u64, unaccounted: u64) -> u64 {
    match limit {
        0 => 0,
        limit => limit.saturating_sub(unaccounted).max(1),
    }
}

/// A process looks after its slot and at its limits this often at most, nanoseconds.
const LOOK_EVERY_NS: u64 = 50_000_000;

/// State that dies with a fork: the kernel gives a child zeros in its place, and all zeros means "not set
/// up yet".
#[repr(C)]
pub(crate) struct ProcessState {
    /// How far it is set up (`standing.rs`).
    pub(crate) phase: AtomicU32,
    /// Differs between a process and its forked child, and is never 0 once set up.
    pub(crate) epoch: AtomicU32,
    /// When something was last looked at that costs a look, nanoseconds of the coarse clock.
    looked_at_ns: AtomicU64,
    /// A bit for each device into whose context a runtime is loading past the hooks, and another one for
    /// each of which a measurement is wanted.
    loading: AtomicU32,
    /// Held while loaded code is measured, by the library's own calls of the driver and of NVML.
    pub(crate) loaded_lock: Lock,
    /// Held while the limits are read from their file. No call of the driver is made meanwhile.
    limits_lock: Lock,
    limits_generation: AtomicU64,
    pub(crate) limits_known: AtomicU32,
    unlisted_allowed: AtomicU32,
    memory_bytes: [AtomicU64; MAX_DEVICES],
    core_percent: [AtomicU32; MAX_DEVICES],
    /// The policy's number.
    policy: AtomicU32,
    /// The part of `memory_bytes` that may be memory of the device itself; 0 is all.
    resident_bytes: [AtomicU64; MAX_DEVICES],
    /// Not 0: `cuInit` has succeeded in this process.
    started: AtomicU32,
    /// The same two, less what the driver holds for the container beyond its charges.
    room_bytes: [AtomicU64; MAX_DEVICES],
    resident_room: [AtomicU64; MAX_DEVICES],
    /// Memory that the driver holds for the container beyond its charges, bytes.
    unaccounted_bytes: [AtomicU64; MAX_DEVICES],
    /// Facts about a device that are found out once and never change.
    facts: [AtomicU32; MAX_DEVICES],
    devices: [AtomicU32; MAX_ORDINALS],
    /// Host-measured overhead that was last taken over, by device.
    targets_generation: AtomicU64,
    /// The memory that this process holds.
    pub(crate) holdings: Holdings,
    /// Its launches.
    pub(crate) compute: launches::State,
}

/// Not 0: a runtime of this process (or of the one that it was forked from) loads past the hooks.
static LOADS_PAST_US: AtomicU32 = AtomicU32::new(0);

/// Does a runtime of this process load modules past the hooks, once it has a context?
pub(crate) fn loads_past_us() -> bool {
    // Relaxed: guards no other memory.
    LOADS_PAST_US.load(Ordering::Relaxed) != 0
}

/// Notes that this process loads past our hooks.
pub(crate) fn load_past_us() {
    // Relaxed: guards no other memory.
    LOADS_PAST_US.store(1, Ordering::Relaxed);
}

impl ProcessState {
    /// The memory limit of a device as of now, bytes; 0 is no cap.
    #[inline]
    pub(crate) fn memory_limit(&self, container: &Container, device: usize) -> u64 {
        if !self.knows_limits(container) {
            self.refresh_limits(container);
        }
        // Relaxed: one word, and any value that it had lately is right.
        self.memory_bytes
            .get(device)
            .map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// Are the limits that the process has taken over those of now?
    #[inline]
    pub(crate) fn knows_limits(&self, container: &Container) -> bool {
        // Acquire: the limits were stored before their generation.
        self.limits_generation.load(Ordering::Acquire) == container.limits_generation()
            && self.limits_known.load(Ordering::Relaxed) != 0
    }

    /// The most that may be charged of a device now, bytes: the limit less what the driver holds for the
    /// container beyond its charges; 0 is no cap.
    #[inline]
    pub(crate) fn room(&self, container: &Container, device: usize) -> u64 {
        if !self.knows_limits(container) {
            self.refresh_limits(container);
        }
        self.known_room(device)
    }

    /// [`ProcessState::room`] by the limits that the process has taken over last.
    #[inline]
    pub(crate) fn known_room(&self, device: usize) -> u64 {
        // Relaxed: one word, and any value that it had lately is right.
        self.room_bytes
            .get(device)
            .map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// The part of [`ProcessState::room`], which the caller has asked for before, that may be memory of the device itself,
    /// bytes; 0 is all of it.
    #[inline]
    pub(crate) fn resident_room(&self, device: usize) -> u64 {
        // Relaxed: as above.
        self.resident_room
            .get(device)
            .map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// Memory that the driver holds for the container beyond its charges, as the host said last, bytes.
    pub(crate) fn unaccounted(&self, device: usize) -> u64 {
        // Relaxed: as above.
        self.unaccounted_bytes
            .get(device)
            .map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// Takes over what the host says of memory beyond the charges. Returns whether any room changed.
    pub(crate) fn take_over_room(&self, container: &Container) -> bool {
        let mut changed = false;
        for device in 0..MAX_DEVICES {
            let bytes = container.unaccounted(device).bytes;
            let store = |to: &[AtomicU64], value: u64| {
                // Relaxed: one word each; any value that it had lately is right.
                to.get(device)
                    .is_some_and(|word| word.swap(value, Ordering::Relaxed) != value)
            };
            let load = |from: &[AtomicU64]| {
                // Relaxed: as above.
                from.get(device)
                    .map_or(0, |word| word.load(Ordering::Relaxed))
            };
            let limit = load(&self.memory_bytes);
            let resident = load(&self.resident_bytes);
            store(&self.unaccounted_bytes, bytes);
            changed |= store(&self.room_bytes, room_of(limit, bytes));
            changed |= store(&self.resident_room, room_of(resident, bytes));
        }
        changed
    }

    /// When the compute limit of a device counts, and what it is, percent; 0 and 100 are no cap.
    pub(crate) fn compute_limit(&self, container: &Container, device: usize) -> (Policy, u32) {
        // Acquire: the limits were stored before their generation.
        if self.limits_generation.load(Ordering::Acquire) != container.limits_generation() {
            self.refresh_limits(container);
        }
        // Relaxed: words of their own; a change of both is seen in one of two orders.
        let policy = Policy::of(self.policy.load(Ordering::Relaxed)).unwrap_or_default();
        let percent = self.core_percent.get(device);
        (
            policy,
            percent.map_or(0, |percent| percent.load(Ordering::Relaxed)),
        )
    }

    /// Differs between a process and its forked child.
    pub(crate) fn number(&self) -> u32 {
        // Relaxed: set once.
        self.epoch.load(Ordering::Relaxed)
    }

    /// How much of [`ProcessState::memory_limit`], which was asked for before, may be memory of the device
    /// itself, bytes; 0 is all of it.
    #[inline]
    pub(crate) fn resident_limit(&self, device: usize) -> u64 {
        // Relaxed: as above.
        self.resident_bytes
            .get(device)
            .map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// Is it so? Asked once for each device. Without an answer it returns false, and asks again at the next call.
    pub(crate) fn is(
        &self,
        device: usize,
        which: Fact,
        ask: impl FnOnce() -> Option<bool>,
    ) -> bool {
        let Some(word) = self.facts.get(device) else {
            return false;
        };
        // Relaxed: each bit says all of itself.
        let known = word.load(Ordering::Relaxed);
        if known & which.asked() != 0 {
            return known & which.yes() != 0;
        }
        let Some(answer) = manners::uncancelled(ask) else {
            return false;
        };
        let bits = which.asked() | if answer { which.yes() } else { 0 };
        // Relaxed: as above.
        word.fetch_or(bits, Ordering::Relaxed);
        answer
    }

    /// Reads the limits again.
    #[cold]
    pub(crate) fn refresh_limits(&self, container: &Container) {
        let Some(_held) = self.limits_lock.hold_briefly() else {
            return;
        };
        let generation = container.limits_generation();
        match &container.limits {
            LimitsFrom::File(map) => match map.load() {
                Ok(value) => {
                    for (word, limit) in self.memory_bytes.iter().zip(value.devices()) {
                        // Relaxed: the generation below publishes them.
                        word.store(limit.memory_bytes, Ordering::Relaxed);
                    }
                    for (word, limit) in self.core_percent.iter().zip(value.devices()) {
                        // Relaxed: as above.
                        word.store(limit.core_percent, Ordering::Relaxed);
                    }
                    // Relaxed: as above.
                    self.policy.store(value.policy.number(), Ordering::Relaxed);
                    for (word, limit) in self.resident_bytes.iter().zip(value.devices()) {
                        // Relaxed: as above.
                        word.store(share_of_the_device(limit), Ordering::Relaxed);
                    }
                    let allowed = u32::from(value.unlisted == Unlisted::Allow);
                    // Relaxed: as above.
                    self.unlisted_allowed.store(allowed, Ordering::Relaxed);
                    line!(Info, "limits of generation {} read", value.generation);
                }
                Err(error) => {
                    line!(Error, "limits: {error}");
                    // Relaxed: only this thread, or threads after it, ask.
                    if self.limits_known.load(Ordering::Relaxed) == 0 {
                        return;
                    }
                    // The limits that were read last stay in force.
                }
            },
            LimitsFrom::Peers(peers) => {
                for (word, &bytes) in self.memory_bytes.iter().zip(&peers.limits.memory_bytes) {
                    // Relaxed: as above.
                    word.store(bytes, Ordering::Relaxed);
                }
                for (word, &percent) in self.core_percent.iter().zip(&peers.limits.core_percent) {
                    // Relaxed: as above.
                    word.store(percent, Ordering::Relaxed);
                }
                // Relaxed: as above.
                self.policy
                    .store(peers.limits.policy.number(), Ordering::Relaxed);
            }
        }
        self.take_over_room(container);
        self.limits_known.store(1, Ordering::Relaxed);
        // Release: a thread that sees the generation sees the limits.
        self.limits_generation.store(generation, Ordering::Release);
    }

    /// The driver is about to read its environment, unless it has started in this process.
    pub(crate) fn driver_starts(&self) {
        // Relaxed: two threads that start the driver note the same.
        if self.started.load(Ordering::Relaxed) == 0 {
            gpus::note_visible();
        }
    }

    /// The driver has started: it never reads its environment again in this process.
    pub(crate) fn driver_started(&self) {
        // Relaxed: guards no other memory.
        self.started.store(1, Ordering::Relaxed);
    }

    /// Which device of the container the driver's ordinal is.
    #[inline]
    pub(crate) fn device(&self, container: &Container, ordinal: i32) -> Device {
        let slot = usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.devices.get(ordinal));
        let Some(slot) = slot else {
            return Device::Denied;
        };
        // Relaxed: the word says all.
        match slot.load(Ordering::Relaxed) {
            0 => self.find_device(container, ordinal, slot),
            word => Device::of_word(word),
        }
    }

    #[cold]
    fn find_device(&self, container: &Container, ordinal: i32, slot: &AtomicU32) -> Device {
        manners::uncancelled(|| self.look_for_device(container, ordinal, slot))
    }

    fn look_for_device(&self, container: &Container, ordinal: i32, slot: &AtomicU32) -> Device {
        // A device that cannot be asked for its name is asked again the next time.
        let found = match &container.limits {
            LimitsFrom::File(map) => {
                let known = map.load().ok().and_then(|it| gpus::in_file(&it, ordinal));
                let Some(found) = known else {
                    return Device::Denied;
                };
                found
            }
            LimitsFrom::Peers(_) => gpus::by_index(ordinal),
        };
        if query::device_uuids(ordinal).is_none() {
            return found;
        }
        if let Some(bytes) = query::device_granularity(ordinal) {
            sizes::note_granularity(bytes);
        }
        // Relaxed: the word says all.
        slot.store(found.to_word(), Ordering::Relaxed);
        line!(Info, "device {ordinal} of the driver is {found:?}");
        found
    }

    /// Is a runtime of this process loading past the hooks, on this device?
    pub(crate) fn is_loading(&self, device: usize) -> bool {
        // Relaxed: set by the thread that made the context, before the program knows of it.
        self.loading.load(Ordering::Relaxed) >> device & 1 != 0
    }

    /// Is something to be looked at before memory is given: a runtime that loads, or a measurement?
    #[inline]
    pub(crate) fn is_any_awaited(&self) -> bool {
        // Relaxed: as above.
        self.loading.load(Ordering::Relaxed) != 0
    }

    /// Is a measurement wanted of this device?
    pub(crate) fn is_wanted(&self, device: usize) -> bool {
        // Relaxed: as above.
        self.loading.load(Ordering::Relaxed) >> (device + MAX_DEVICES) & 1 != 0
    }

    /// Requests a measurement.
    pub(crate) fn want_measurement(&self, device: usize) {
        // Relaxed: as above.
        self.loading
            .fetch_or(1 << (device + MAX_DEVICES), Ordering::Relaxed);
    }

    /// Withdraws the request for a measurement.
    pub(crate) fn forget_wanted(&self, device: usize) {
        // Relaxed: as above.
        self.loading
            .fetch_and(!(1 << (device + MAX_DEVICES)), Ordering::Relaxed);
    }

    /// Notes that the runtime is loading.
    pub(crate) fn begin_loading(&self, device: usize) {
        // Relaxed: as above.
        self.loading.fetch_or(1 << device, Ordering::Relaxed);
    }

    /// Notes that the runtime is not loading any more.
    pub(crate) fn forget_loading(&self, device: usize) {
        // Relaxed: as above.
        self.loading.fetch_and(!(1 << device), Ordering::Relaxed);
    }

    /// At most every 50 ms: maintains this process's slot and clears those of dead processes. True when it did.
    #[inline]
    pub(crate) fn tick(&self, container: &Container) -> bool {
        let now = clock::coarse_ns();
        self.due(now)
            .is_some_and(|last| self.look(container, now, last))
    }

    /// Is there something to do for [`ProcessState::tick`]?
    #[inline(always)]
    pub(crate) fn is_tick_due(&self) -> bool {
        self.due(clock::coarse_ns()).is_some()
    }

    /// When it last looked, if that is long enough ago.
    #[inline(always)]
    fn due(&self, now: u64) -> Option<u64> {
        // Relaxed: a clock's word guards no other memory.
        let last = self.looked_at_ns.load(Ordering::Relaxed);
        (now.wrapping_sub(last) >= LOOK_EVERY_NS).then_some(last)
    }

    #[cold]
    fn look(&self, container: &Container, now: u64, last: u64) -> bool {
        // Relaxed: only one thread does the work.
        if self
            .looked_at_ns
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        container.region.tick(now);
        container.region.reap();
        container.bury_released();
        self.take_over_room(container);
        self.take_over_overhead(container);
        true
    }

    fn take_over_overhead(&self, container: &Container) {
        let Some(targets) = &container.targets else {
            return;
        };
        let generation = targets.generation();
        // Relaxed: to do it twice is harmless.
        if self.targets_generation.swap(generation, Ordering::Relaxed) == generation {
            return;
        }
        if let Some(target) = container.target() {
            let learn = if loads_past_us() {
                Learn::Runtime
            } else {
                Learn::Context
            };
            let is_loading = |device| self.is_loading(device);
            self.holdings.settle_overhead(
                &container.region,
                &target.overhead_bytes,
                learn,
                is_loading,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_as_large_as_the_limit_is_no_oversubscription() {
        for (memory_bytes, resident_bytes, share) in [
            (8, 4, 4),
            (8, 8, 0),
            (8, 9, 0),
            (8, 0, 0),
            (0, 4, 4),
            (0, 0, 0),
        ] {
            let limit = DeviceLimit {
                memory_bytes,
                resident_bytes,
                ..DeviceLimit::default()
            };
            assert_eq!(share_of_the_device(&limit), share, "{limit:?}");
        }
    }
}
