//! What this process knows of its container: the usage region, the limits, which device is which.
//! Set up at the first hooked call, again in a forked child (whose memory of it the kernel wipes),
//! and never in a constructor. Decides no call: the rules ask here.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::path::Path;

use vgpu_abi::host::KEEP_DEAD_NS;
use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::limits::{DeviceLimit, LimitsMap, LimitsValue, Policy, Unlisted};
use vgpu_abi::region::{Charge, Dead, Region};
use vgpu_abi::targets::{Target, TargetsMap, Unaccounted};

use crate::books;
use crate::cards;
use crate::clock;
use crate::compute;
use crate::driver;
use crate::guest;
use crate::ledger::{Learn, Ledger};
use crate::linker;
use crate::lock::{self, Lock, ProcessLock};
use crate::log::line;
use crate::map;
use crate::places;
use crate::query;
use crate::settings::{PeerLimits, Process as Here, Settings, Source, Surroundings};

/// How this process stands.
#[derive(Clone, Copy)]
pub(crate) enum Standing {
    /// There are limits, and they are understood.
    Ready(&'static Container, &'static Process),
    /// Nobody set a limit: every call goes to the driver unchanged.
    Transparent,
    /// There are limits that were not understood: nothing may be had.
    Closed,
}

/// The shared files. Survives a fork: the mappings are shared.
pub(crate) struct Container {
    /// Who uses what.
    pub(crate) region: Region,
    limits: LimitsFrom,
    targets: Option<TargetsMap>,
}

enum LimitsFrom {
    File(LimitsMap),
    Peers(Box<PeerLimits>),
}

/// A device as the rules see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The device at this index of limits and region.
    Limited(usize),
    /// Not named in the limits, which let such devices be used.
    Unlimited,
    /// Not named in the limits, which forbid such devices.
    Denied,
}

/// What a device can be asked once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// Managed memory that moves while kernels run, so that there may be more of it than memory.
    Pages,
    /// Contexts share it through MPS.
    Mps,
}

impl Fact {
    fn asked(self) -> u32 {
        match self {
            Self::Pages => 1,
            Self::Mps => 4,
        }
    }

    fn yes(self) -> u32 {
        self.asked() << 1
    }
}

/// What of a limit may be memory of the device itself, bytes; 0 is all of it.
fn share_of_the_device(limit: &DeviceLimit) -> u64 {
    match (limit.resident_bytes, limit.memory_bytes) {
        (resident, 0) => resident,
        (resident, memory) if resident < memory => resident,
        _ => 0,
    }
}

/// What is left of a limit when the driver holds so much beyond the books; 0 is no limit, and no
/// limit becomes none.
fn room_of(limit: u64, unaccounted: u64) -> u64 {
    match limit {
        0 => 0,
        limit => limit.saturating_sub(unaccounted).max(1),
    }
}

/// The charges of a dead process stay at most this long after it was seen to be dead. A driver lets
/// go within a second; one that hangs must not keep the room for ever.
pub(crate) const DEAD_NS: u64 = KEEP_DEAD_NS;

/// A host that has not written for so long is gone, and its word with it.
const SILENT_NS: u64 = 2_000_000_000;

/// Ordinals that the driver may number devices by.
pub(crate) const MAX_ORDINALS: usize = 64;

/// What dies with a fork: the kernel gives a child zeros in its place, and all zeros means "not set
/// up yet".
#[repr(C)]
pub(crate) struct Process {
    phase: AtomicU32,
    /// Differs between a process and its forked child, and is never 0 once set up.
    pub(crate) epoch: AtomicU32,
    /// When something was last looked at that costs a look (milliseconds).
    looked_at_ms: AtomicU64,
    /// A bit for each device into whose context a runtime is loading past the hooks, and another one for
    /// each of which a measurement is wanted.
    loading: AtomicU32,
    /// Held while what was loaded is measured.
    pub(crate) loaded_lock: Lock,
    limits_lock: Lock,
    limits_generation: AtomicU64,
    limits_known: AtomicU32,
    unlisted_allowed: AtomicU32,
    memory_bytes: [AtomicU64; MAX_DEVICES],
    core_percent: [AtomicU32; MAX_DEVICES],
    /// The policy's number.
    policy: AtomicU32,
    /// Of `memory_bytes`, what may be memory of the device itself; 0 is all.
    resident_bytes: [AtomicU64; MAX_DEVICES],
    /// Not 0: `cuInit` has succeeded in this process.
    started: AtomicU32,
    /// The same two, less what the driver holds for the container beyond its books.
    room_bytes: [AtomicU64; MAX_DEVICES],
    resident_room: [AtomicU64; MAX_DEVICES],
    /// What the driver holds for the container beyond its books, bytes.
    unaccounted_bytes: [AtomicU64; MAX_DEVICES],
    /// What was found out about a device once and stays so.
    facts: [AtomicU32; MAX_DEVICES],
    devices: [AtomicU32; MAX_ORDINALS],
    /// Host-measured overhead that was last taken over, by device.
    targets_generation: AtomicU64,
    /// What this process holds.
    pub(crate) ledger: Ledger,
    /// What it launches.
    pub(crate) compute: compute::State,
}

const UNSET: u32 = 0;
const READY: u32 = 1;
const TRANSPARENT: u32 = 2;
const CLOSED: u32 = 3;

static CONTAINER: AtomicPtr<Container> = AtomicPtr::new(core::ptr::null_mut());
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());
static SET_UP: ProcessLock = ProcessLock::new();
static EPOCH: AtomicU32 = AtomicU32::new(0);
static ONCE: AtomicU32 = AtomicU32::new(0);

/// Not 0: a runtime of this process (or of the one that it was forked from) loads past the hooks.
static LOADS_PAST_US: AtomicU32 = AtomicU32::new(0);

/// Does a runtime of this process load modules past the hooks, once it has a context?
pub(crate) fn loads_past_us() -> bool {
    // Relaxed: guards no other memory.
    LOADS_PAST_US.load(Ordering::Relaxed) != 0
}

/// It does.
pub(crate) fn load_past_us() {
    // Relaxed: guards no other memory.
    LOADS_PAST_US.store(1, Ordering::Relaxed);
}

/// Another thread's set-up is waited for this long; it opens files, no more.
const LONGEST_SET_UP_MS: i64 = 10_000;

/// How this process stands. Sets it up at the first call.
#[inline]
pub(crate) fn standing() -> Standing {
    match process() {
        Some(process) => match process.phase.load(Ordering::Acquire) {
            READY => ready(process),
            TRANSPARENT => Standing::Transparent,
            CLOSED => Standing::Closed,
            _ => set_up(),
        },
        None => set_up(),
    }
}

/// This process and its container for a path that neither sets up nor waits. `None` before they are set
/// up; whether there are limits at all is not asked.
#[inline(always)]
pub(crate) fn known_now() -> Option<(&'static Container, &'static Process)> {
    let process = process()?;
    // Acquire: made before (or before the fork).
    let container = CONTAINER.load(Ordering::Acquire);
    // SAFETY: made once and never dropped.
    Some((unsafe { container.as_ref() }?, process))
}

/// Has this process been set up, and found that nobody set a limit?
#[inline]
pub(crate) fn is_transparent_now() -> bool {
    // Acquire: what the phase speaks of was made before.
    process().is_some_and(|process| process.phase.load(Ordering::Acquire) == TRANSPARENT)
}

#[inline]
fn process() -> Option<&'static Process> {
    // Acquire: the memory was mapped before.
    let process = PROCESS.load(Ordering::Acquire);
    // SAFETY: mapped once and never unmapped; all its words are atomics.
    unsafe { process.as_ref() }
}

#[inline]
fn ready(process: &'static Process) -> Standing {
    // Acquire: made before the phase was set (or before the fork).
    let container = CONTAINER.load(Ordering::Acquire);
    // SAFETY: made once and never dropped.
    unsafe { container.as_ref() }.map_or(Standing::Closed, |it| Standing::Ready(it, process))
}

#[cold]
#[inline(never)]
fn set_up() -> Standing {
    guest::uncancelled(set_up_once)
}

fn set_up_once() -> Standing {
    let Some(_held) = SET_UP.hold(LONGEST_SET_UP_MS) else {
        return Standing::Closed;
    };
    once_for_a_family();
    let Some(process) = process().or_else(map_process) else {
        return Standing::Closed;
    };
    // Relaxed: under the lock.
    match process.phase.load(Ordering::Relaxed) {
        UNSET => {}
        READY => return ready(process),
        TRANSPARENT => return Standing::Transparent,
        _ => return Standing::Closed,
    }
    // Relaxed: the phase publishes it.
    let number = EPOCH.fetch_add(1, Ordering::Relaxed) + 1;
    process.epoch.store(number, Ordering::Relaxed);
    process.compute.set_up(number);
    let phase = match open() {
        Ok(Some(container)) => {
            if let Err(error) = container.region.join() {
                line!(Error, "no slot: {error}");
            }
            process.refresh_limits(container);
            // Limits that could not be read are not "no limit".
            // Relaxed: stored by this thread.
            match process.limits_known.load(Ordering::Relaxed) {
                0 => CLOSED,
                _ => READY,
            }
        }
        Ok(None) => TRANSPARENT,
        Err(()) => CLOSED,
    };
    // Release: whoever sees the phase sees what was made before.
    process.phase.store(phase, Ordering::Release);
    match phase {
        READY => ready(process),
        TRANSPARENT => Standing::Transparent,
        _ => Standing::Closed,
    }
}

/// What forked children inherit and must not repeat.
fn once_for_a_family() {
    // Relaxed: under the lock of the set-up.
    if ONCE.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    guest::silence_panics();
    guest::watch_threads();
    if let Some((path, level)) = Settings::log_of(&Here) {
        crate::log::write_to(&path, level);
    }
    // Not linked: musl has no such symbol, and there we must load, too.
    if let Some(register) = linker::libc_function(c"__register_atfork") {
        type Handler = Option<unsafe extern "C" fn()>;
        type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> i32;
        // SAFETY: glibc defines it so; its name and signature are part of its ABI.
        let register = unsafe { core::mem::transmute::<*mut c_void, Register>(register) };
        // SAFETY: the handler lives as long as the process (the library is never unloaded).
        unsafe { register(None, None, Some(in_forked_child), core::ptr::null_mut()) };
    }
}

/// For kernels that cannot wipe the memory themselves (before Linux 4.14). Does not run in a `vfork`
/// child, which shares its parent's memory and must not touch it.
unsafe extern "C" fn in_forked_child() {
    // Relaxed: a forked child has one thread.
    let process = PROCESS.load(Ordering::Relaxed);
    if !process.is_null() {
        // SAFETY: our own mapping of that size, for which all zeros is a value.
        unsafe { process.write_bytes(0, 1) };
    }
    // Relaxed: as above.
    let container = CONTAINER.load(Ordering::Relaxed);
    // SAFETY: made once and never dropped.
    if let Some(container) = unsafe { container.as_ref() } {
        container.region.after_fork_in_child();
    }
}

/// Keeps a charge of this process whose call was left by a thread that has ended since.
pub(crate) fn keep_left_behind(charge: Charge) {
    if let Standing::Ready(container, process) = standing() {
        process.ledger.keep_left_behind(container, charge);
    }
}

fn map_process() -> Option<&'static Process> {
    let size = size_of::<Process>();
    let Some(memory) = map::zeroed(size) else {
        line!(Error, "no memory for the ledger");
        return None;
    };
    // An older kernel refuses; the handler at fork does it then.
    // SAFETY: our own mapping.
    unsafe { libc::madvise(memory, size, libc::MADV_WIPEONFORK) };
    // Release: whoever sees the pointer sees the zeros.
    PROCESS.store(memory.cast(), Ordering::Release);
    process()
}

/// The container's files: `None` when nobody set a limit.
fn open() -> Result<Option<&'static Container>, ()> {
    // Relaxed: under the lock of the set-up.
    let known = CONTAINER.load(Ordering::Relaxed);
    // SAFETY: made once and never dropped.
    if let Some(container) = unsafe { known.as_ref() } {
        return Ok(Some(container));
    }
    if driver::elder().is_some() {
        line!(Info, "another copy of the library keeps the books");
        return Ok(None);
    }
    let settings = Settings::read(&Here)
        .inspect_err(|error| line!(Error, "nothing may be had: {error}"))
        .map_err(|_| ())?;
    let container = match settings.source {
        Source::None => return Ok(None),
        Source::Files {
            limits,
            targets,
            region,
        } => {
            let map = LimitsMap::open(&limits).map_err(|error| closed(&limits, &error))?;
            map.load().map_err(|error| closed(&limits, &error))?;
            Container {
                region: Region::open(&region).map_err(|error| closed(&region, &error))?,
                limits: LimitsFrom::File(map),
                targets: TargetsMap::open(&targets).ok(),
            }
        }
        Source::Peers(peers) => {
            if peers.is_oversubscribed {
                line!(
                    Info,
                    "CUDA_OVERSUBSCRIBE names no share of the card: the limits are of the card's own memory"
                );
            }
            let region = places::open(&peers).map_err(|(path, error)| closed(&path, &error))?;
            Container {
                region,
                limits: LimitsFrom::Peers(peers),
                targets: None,
            }
        }
    };
    container.region.keep_dead_for(DEAD_NS);
    let container = Box::leak(Box::new(container));
    // Release: whoever sees the pointer sees the container.
    CONTAINER.store(container, Ordering::Release);
    Ok(Some(container))
}

/// Does the file belong to this user (and not to somebody who was first in a shared directory)?
pub(crate) fn is_own(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).is_ok_and(|file| file.uid() == Here.user())
}

fn closed(path: &Path, error: &impl core::fmt::Display) {
    line!(Error, "nothing may be had: {}: {error}", path.display());
}

impl Container {
    /// What the host measured of this process, once it has.
    pub(crate) fn target(&self) -> Option<Target> {
        let seat = self.region.seat()?;
        self.targets.as_ref()?.target(seat.slot, seat.generation)
    }

    /// What the host knows of the process that has this slot in this generation.
    pub(crate) fn target_of(&self, slot: usize, generation: u64) -> Option<Target> {
        self.targets.as_ref()?.target(slot, generation)
    }

    /// The limits as they stand, for what is not cached.
    pub(crate) fn limits(&self) -> Option<LimitsValue> {
        match &self.limits {
            LimitsFrom::File(map) => map.load().ok(),
            LimitsFrom::Peers(_) => None,
        }
    }

    /// Whether the host has seen that the driver holds nothing more for a dead process.
    pub(crate) fn is_released(&self, dead: &Dead) -> bool {
        let target = self.target_of(dead.slot, dead.generation);
        target.is_some_and(|target| target.released)
    }

    /// Clears the slots of those dead processes. Makes no call to the driver.
    fn bury_released(&self) {
        for dead in self.region.dead() {
            if self.is_released(&dead) {
                self.region.let_go(&dead);
            }
        }
    }

    /// What the host says that the driver holds for this container beyond its books: nothing where it
    /// has not looked for a while.
    pub(crate) fn unaccounted(&self, device: usize) -> Unaccounted {
        let none = Unaccounted::default();
        let Some(targets) = &self.targets else {
            return none;
        };
        let said = targets.unaccounted(device);
        if said.bytes == 0 {
            return none;
        }
        let age_ns = clock::now_ns().saturating_sub(targets.heartbeat_ns());
        if age_ns < SILENT_NS { said } else { none }
    }

    /// Differs when the host has written its targets again.
    #[inline]
    pub(crate) fn targets_generation(&self) -> u64 {
        self.targets.as_ref().map_or(0, TargetsMap::generation)
    }

    /// When the host's arbiter last wrote, nanoseconds of the monotonic clock; nothing where there is
    /// none.
    pub(crate) fn arbiter_heartbeat_ns(&self) -> Option<u64> {
        self.targets.as_ref().map(TargetsMap::heartbeat_ns)
    }

    /// Differs when the limits have changed.
    #[inline]
    pub(crate) fn limits_generation(&self) -> u64 {
        match &self.limits {
            LimitsFrom::File(map) => map.generation(),
            LimitsFrom::Peers(_) => 1,
        }
    }
}

impl Process {
    /// The memory limit of a device as of now, bytes; 0 is no cap.
    #[inline]
    pub(crate) fn memory_limit(&self, container: &Container, device: usize) -> u64 {
        // Acquire: the limits were stored before their generation.
        if self.limits_generation.load(Ordering::Acquire) != container.limits_generation()
            || self.limits_known.load(Ordering::Relaxed) == 0
        {
            self.refresh_limits(container);
        }
        // Relaxed: one word, and any value that it had lately is right.
        self.memory_bytes
            .get(device)
            .map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// What may be charged of a device as of now, bytes: the limit less what the driver holds for the
    /// container beyond its books; 0 is no cap.
    #[inline]
    pub(crate) fn room(&self, container: &Container, device: usize) -> u64 {
        // Acquire: the limits were stored before their generation.
        if self.limits_generation.load(Ordering::Acquire) != container.limits_generation()
            || self.limits_known.load(Ordering::Relaxed) == 0
        {
            self.refresh_limits(container);
        }
        // Relaxed: one word, and any value that it had lately is right.
        self.room_bytes
            .get(device)
            .map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// Of [`Process::room`], which was asked for before: what may be memory of the device itself,
    /// bytes; 0 is all of it.
    #[inline]
    pub(crate) fn resident_room(&self, device: usize) -> u64 {
        // Relaxed: as above.
        self.resident_room
            .get(device)
            .map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// What the driver holds for the container beyond its books, as the host said last, bytes.
    pub(crate) fn unaccounted(&self, device: usize) -> u64 {
        // Relaxed: as above.
        self.unaccounted_bytes
            .get(device)
            .map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// Takes over what the host says of memory beyond the books. Tells whether any room changed.
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

    /// How much of [`Process::memory_limit`], which was asked for before, may be memory of the device
    /// itself, bytes; 0 is all of it.
    #[inline]
    pub(crate) fn resident_limit(&self, device: usize) -> u64 {
        // Relaxed: as above.
        self.resident_bytes
            .get(device)
            .map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// Is it so? Asked once for each device; what cannot be answered is not so, and asked again.
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
        let Some(answer) = guest::uncancelled(ask) else {
            return false;
        };
        let bits = which.asked() | if answer { which.yes() } else { 0 };
        // Relaxed: as above.
        word.fetch_or(bits, Ordering::Relaxed);
        answer
    }

    #[cold]
    fn refresh_limits(&self, container: &Container) {
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
                    // What was read last stays in force.
                }
            },
            LimitsFrom::Peers(peers) => {
                for (word, &bytes) in self.memory_bytes.iter().zip(&peers.memory_bytes) {
                    // Relaxed: as above.
                    word.store(bytes, Ordering::Relaxed);
                }
                for (word, &percent) in self.core_percent.iter().zip(&peers.core_percent) {
                    // Relaxed: as above.
                    word.store(percent, Ordering::Relaxed);
                }
                // Relaxed: as above.
                self.policy.store(peers.policy.number(), Ordering::Relaxed);
            }
        }
        self.take_over_room(container);
        self.limits_known.store(1, Ordering::Relaxed);
        // Release: whoever sees the generation sees the limits.
        self.limits_generation.store(generation, Ordering::Release);
    }

    /// The driver is about to read its environment, unless it has started in this process.
    pub(crate) fn driver_starts(&self) {
        // Relaxed: two threads that start the driver note the same.
        if self.started.load(Ordering::Relaxed) == 0 {
            cards::note_visible();
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
            code => decode(code),
        }
    }

    #[cold]
    fn find_device(&self, container: &Container, ordinal: i32, slot: &AtomicU32) -> Device {
        guest::uncancelled(|| self.look_for_device(container, ordinal, slot))
    }

    fn look_for_device(&self, container: &Container, ordinal: i32, slot: &AtomicU32) -> Device {
        // A device that cannot be asked for its name is asked again the next time.
        let found = match &container.limits {
            LimitsFrom::File(map) => {
                let known = map.load().ok().and_then(|it| cards::in_file(&it, ordinal));
                let Some(found) = known else {
                    return Device::Denied;
                };
                found
            }
            LimitsFrom::Peers(_) => cards::by_index(ordinal),
        };
        if query::device_uuids(ordinal).is_none() {
            return found;
        }
        if let Some(bytes) = query::device_granularity(ordinal) {
            books::note_granularity(bytes);
        }
        // Relaxed: the word says all.
        slot.store(encode(found), Ordering::Relaxed);
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

    /// One is wanted from here on.
    pub(crate) fn want_measurement(&self, device: usize) {
        // Relaxed: as above.
        self.loading
            .fetch_or(1 << (device + MAX_DEVICES), Ordering::Relaxed);
    }

    /// None is wanted any more.
    pub(crate) fn forget_wanted(&self, device: usize) {
        // Relaxed: as above.
        self.loading
            .fetch_and(!(1 << (device + MAX_DEVICES)), Ordering::Relaxed);
    }

    /// It loads from here on.
    pub(crate) fn begin_loading(&self, device: usize) {
        // Relaxed: as above.
        self.loading.fetch_or(1 << device, Ordering::Relaxed);
    }

    /// It does not load any more.
    pub(crate) fn forget_loading(&self, device: usize) {
        // Relaxed: as above.
        self.loading.fetch_and(!(1 << device), Ordering::Relaxed);
    }

    /// At most every 50 ms: looks after our slot and clears those of dead processes. True when it did.
    #[inline]
    pub(crate) fn tick(&self, container: &Container) -> bool {
        let now = lock::milliseconds().unsigned_abs();
        // Relaxed: a clock's word guards no other memory.
        let last = self.looked_at_ms.load(Ordering::Relaxed);
        now.wrapping_sub(last) >= 50 && self.look(container, now, last)
    }

    #[cold]
    fn look(&self, container: &Container, now: u64, last: u64) -> bool {
        // Relaxed: only one thread does the work.
        if self
            .looked_at_ms
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        container.region.tick(now.wrapping_mul(1_000_000));
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
        // Relaxed: a repetition harms nobody.
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
            self.ledger
                .settle_overhead(container, &target.overhead_bytes, learn, is_loading);
        }
    }
}

fn encode(device: Device) -> u32 {
    match device {
        Device::Limited(index) => u32::try_from(index).map_or(2, |index| index + 3),
        Device::Unlimited => 1,
        Device::Denied => 2,
    }
}

fn decode(code: u32) -> Device {
    match code {
        1 => Device::Unlimited,
        2 => Device::Denied,
        index => Device::Limited(index.saturating_sub(3) as usize),
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

    #[test]
    fn a_device_survives_its_word() {
        for device in [
            Device::Limited(0),
            Device::Limited(15),
            Device::Unlimited,
            Device::Denied,
        ] {
            assert_eq!(decode(encode(device)), device);
            assert_ne!(encode(device), 0);
        }
    }
}
