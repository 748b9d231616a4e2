//! The memory that this process holds: by allocation, context and pool; and the charges of its contexts
//! and modules. Lives in memory that a fork wipes, so a child begins with nothing and its
//! frees refund nothing. Keeps the region's charges right; decides no call.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::region::{Charge, Kind, Region};

use crate::base::growing::{self, Growing};
use crate::base::lock::{self, Lock};
use crate::base::map::Map;
use crate::driver::device::MAX_ORDINALS;
use crate::figures::room::Promised;
use crate::state::deferred_free_table::DeferredFreeTable;

/// A chore that waits (`Holdings::chores`): memory that was freed in the order of a stream.
pub(crate) const CHORE_DEFERRED_FREES: u32 = 1;
/// A chore that waits: pools that their owner has destroyed while they held memory.
pub(crate) const CHORE_POOLS: u32 = 2;
/// A chore that waits: measure what a call took that was left by a jump. From this bit on there is one for each
/// device.
const CHORE_MEASURE: u32 = 1 << 16;

/// See the module's text. All zeros is an empty one.
#[repr(C)]
pub(crate) struct Holdings {
    /// Everything that the driver gave a name.
    pub(crate) map: Map,
    /// Number of destroyed contexts. When it changes, all that was remembered of a context by its address is void.
    pub(crate) contexts_gone: AtomicU32,
    /// Numbers given to contexts so far.
    pub(crate) contexts_numbered: AtomicU32,
    /// Numbers given to libraries so far.
    pub(crate) libraries_numbered: AtomicU32,
    /// Held while `objects.rs` changes what this process holds. No call of the driver is made meanwhile.
    pub(crate) objects_lock: Lock,
    /// Numbers given to objects so far.
    pub(crate) objects_numbered: AtomicU64,
    /// Holds that end when the driver has done its work.
    pub(crate) endings: AtomicU32,
    /// Tiles of sparse arrays that memory lies under.
    pub(crate) sparse_parts: AtomicU64,
    /// Descriptors that keep memory.
    pub(crate) descriptors: AtomicU32,
    /// The charges of contexts and modules, by device.
    overhead: [Overhead; MAX_DEVICES],
    /// The primary contexts that are known, by the driver's ordinal: parts of one GPU are devices of the
    /// driver, each with a primary context of its own, and one device of the region.
    primaries: [AtomicU64; MAX_ORDINALS],
    /// Memory pools.
    pub(crate) pools: Growing<PoolCharge>,
    /// Held while a pool is entered into `pools`. No call of the driver is made meanwhile.
    pub(crate) pools_lock: Lock,
    /// Pools that have something charged; 0 means that no synchronisation needs a look.
    pub(crate) pools_in_use: AtomicU32,
    /// Memory of graphs, by device.
    pub(crate) graphs: [GraphMemory; MAX_DEVICES],
    /// Memory freed in the order of a stream.
    pub(crate) deferred_frees: DeferredFreeTable,
    /// The chores to do before room is given next; 0: none.
    chores: AtomicU32,
}

#[repr(C)]
struct Overhead {
    /// Held while the charges of contexts and modules are changed together; they are read, and added to,
    /// without it. No call of the driver is made meanwhile.
    lock: Lock,
    context_bytes: AtomicU64,
    module_bytes: AtomicU64,
    contexts: AtomicU32,
    /// Charges left by jumps since the first of these contexts was made, bytes.
    left_behind: AtomicU64,
    /// The host's last measurement.
    measured_bytes: AtomicU64,
    /// When this process measured by itself, milliseconds; 0: it has not.
    measured_here_ms: AtomicU64,
    /// Since when the process waits for the host's measurement of what a runtime has loaded, milliseconds; 0: it does
    /// not wait.
    awaited_ms: AtomicU64,
    /// When a measurement was last asked for, milliseconds.
    wanted_ms: AtomicU64,
    /// When one was last made because it was asked for.
    wanted_measured_ms: AtomicU64,
    /// The charges of the present modules when they were loaded, bytes.
    modules_named: AtomicU64,
    /// Not 0: their charge was lowered to what was measured, so it covers nothing that is loaded later.
    is_lowered: AtomicU32,
    /// Charged for modules of which the driver has not taken all yet, bytes.
    not_taken: AtomicU64,
    /// Memory in use beyond the charges when a context was made, bytes, plus one; 0: not known.
    baseline: AtomicU64,
}

/// The size that a measurement teaches the other processes of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learn {
    /// Nothing.
    Nothing,
    /// The size of a context.
    Context,
    /// The size of contexts and modules where a runtime loads past the hooks.
    Runtime,
}

/// A figure of the host is of a moment up to this long ago.
const HOST_LAG_MS: u64 = 1_000;
/// The host has looked at least once since then.
const HOST_LOOKS_MS: u64 = 500;

/// One memory pool of the driver.
#[repr(C)]
pub(crate) struct PoolCharge {
    /// The driver's handle; 0 is an unused place.
    pub(crate) handle: AtomicU64,
    /// Held while it is settled and while it is destroyed, which makes the library's own calls of the driver.
    pub(crate) lock: Lock,
    /// Region index of its device, or what else it is (`pools.rs`).
    pub(crate) device: AtomicU32,
    /// Its charge, bytes.
    pub(crate) charged: AtomicU64,
    /// The part of it that was named to other processes, bytes: its charge is in the table of shared objects.
    pub(crate) offered: AtomicU64,
    /// The part of the driver's reported room that calls under way were promised.
    pub(crate) promised: Promised,
    /// Its owner has destroyed it, while it held memory: the driver's pool is destroyed when it is empty.
    pub(crate) is_going: AtomicU32,
}

// SAFETY: atomics only, of which zeros are values; handle 0 is an unused place.
unsafe impl growing::Element for PoolCharge {}

/// The memory that the graphs of a device hold.
#[repr(C)]
pub(crate) struct GraphMemory {
    /// Held while it is settled, which makes the library's own calls of the driver.
    pub(crate) lock: Lock,
    /// The driver's ordinal of the device, plus one.
    pub(crate) ordinal: AtomicU32,
    /// Its charge, bytes: the memory that the driver holds, and the memory that launches under way have
    /// reserved in `advanced`.
    pub(crate) charged: AtomicU64,
    /// Confirmed ahead of the driver's figure, for launches under way that use several devices.
    pub(crate) advanced: Promised,
    /// The part of the driver's reported room that launches under way were promised.
    pub(crate) promised: Promised,
    /// Raised when memory was given back: a graph that was launched before may have none any more.
    pub(crate) trims: AtomicU32,
    /// Not 0: the driver's figure of what is in use leaves out what idle graphs have.
    pub(crate) counts_live: AtomicU32,
    /// Raised when memory of a graph was freed outside it.
    pub(crate) frees: AtomicU32,
    /// Raised when any graph that was launched before may have lost its memory to a launch.
    pub(crate) moves: AtomicU32,
    /// The same, where only graphs may have that had it together with others.
    pub(crate) shared_moves: AtomicU32,
    /// The stream of all launches since `moves` was raised, plus one; 0: there was none. `IN_STREAMS`:
    /// there were several.
    pub(crate) stream: AtomicU32,
    /// Raised when a launch begins and when it has come back.
    pub(crate) launches: AtomicU32,
}

/// The two kinds of overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverheadKind {
    /// Contexts.
    Context,
    /// Modules and libraries.
    Module,
}

impl Overhead {
    fn word(&self, part: OverheadKind) -> &AtomicU64 {
        match part {
            OverheadKind::Context => &self.context_bytes,
            OverheadKind::Module => &self.module_bytes,
        }
    }
}

impl Holdings {
    /// Is there anything to be looked at before room is given?
    #[inline(always)]
    pub(crate) fn has_chores(&self) -> bool {
        // Relaxed: only says that a look is worth while.
        self.chores.load(Ordering::Relaxed) != 0
    }

    /// Is this one of them?
    #[inline]
    pub(crate) fn has_chore(&self, chore: u32) -> bool {
        // Relaxed: only says that a look is worth while.
        self.chores.load(Ordering::Relaxed) & chore != 0
    }

    pub(crate) fn set_chore(&self, chore: u32) {
        // Relaxed: only says that a look is worth while.
        self.chores.fetch_or(chore, Ordering::Relaxed);
    }

    pub(crate) fn clear_chore(&self, chore: u32) {
        // Relaxed: only says that a look is worth while.
        self.chores.fetch_and(!chore, Ordering::Relaxed);
    }

    /// A call was left by a jump, an exception or a cancellation. The driver may have given what was
    /// asked, so the charge stays, as overhead, until a measurement says what is there.
    pub(crate) fn keep_left_behind(&self, region: &Region, charge: Charge) {
        let device = charge.device();
        if charge.is_beyond() {
            // Nothing measures managed memory.
            return region.confirm(charge, Kind::Buffer);
        }
        region.confirm(charge, Kind::Context);
        if let Some(overhead) = self.overhead.get(device) {
            // Relaxed: a sum that guards no other memory.
            overhead
                .context_bytes
                .fetch_add(charge.bytes(), Ordering::Relaxed);
            // Relaxed: as above.
            overhead
                .left_behind
                .fetch_add(charge.bytes(), Ordering::Relaxed);
            self.measure_before_next(device);
        }
    }

    /// The device's overhead is to be measured before memory of the device is given next.
    pub(crate) fn measure_before_next(&self, device: usize) {
        self.set_chore(CHORE_MEASURE << device);
    }

    /// A device of which something was left behind since it was last asked.
    pub(crate) fn take_unmeasured(&self) -> Option<usize> {
        let chores = self.chores.load(Ordering::Relaxed) / CHORE_MEASURE;
        let device = (chores != 0).then(|| chores.trailing_zeros() as usize)?;
        self.clear_chore(CHORE_MEASURE << device);
        Some(device)
    }

    /// The region was charged this much for a context or a module.
    pub(crate) fn add_overhead(&self, device: usize, part: OverheadKind, bytes: u64) {
        let Some(overhead) = self.overhead.get(device) else {
            return;
        };
        // Relaxed: a sum that guards no other memory.
        overhead.word(part).fetch_add(bytes, Ordering::Relaxed);
        // Relaxed: as above.
        match part {
            OverheadKind::Context => {
                overhead.contexts.fetch_add(1, Ordering::Relaxed);
            }
            OverheadKind::Module => {
                overhead.modules_named.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }

    /// A context that exists was charged this much more, or holds this much less.
    pub(crate) fn resize_context(&self, region: &Region, device: usize, more: u64, less: u64) {
        let Some(overhead) = self.overhead.get(device) else {
            return;
        };
        let Some(_held) = overhead.lock.hold() else {
            return;
        };
        // Relaxed: under the lock.
        let before = overhead
            .context_bytes
            .load(Ordering::Relaxed)
            .saturating_add(more);
        let less = less.min(before);
        overhead
            .context_bytes
            .store(before - less, Ordering::Relaxed);
        region.release(device, less, Kind::Context);
    }

    /// A module is gone. The overhead charge may have been settled to a measured figure since the module was loaded,
    /// so this refunds the module's proportional part of the present charge.
    pub(crate) fn drop_module(&self, region: &Region, device: usize, bytes: u64) {
        let Some(overhead) = self.overhead.get(device) else {
            return;
        };
        let Some(_held) = overhead.lock.hold() else {
            return;
        };
        // Relaxed: under the lock.
        let charged = overhead.module_bytes.load(Ordering::Relaxed);
        let named = overhead.modules_named.load(Ordering::Relaxed);
        overhead
            .modules_named
            .store(named.saturating_sub(bytes), Ordering::Relaxed);
        let gone = share_of(charged, bytes, named);
        overhead.module_bytes.fetch_sub(gone, Ordering::Relaxed);
        region.release(device, gone, Kind::Module);
    }

    /// A context was destroyed that was charged `bytes` when it was made; the contexts that stay were charged
    /// `others`. The last one takes the whole charge with it. Where contexts were measured since, or a jump left
    /// something, what is left is to be measured again.
    pub(crate) fn drop_context(&self, region: &Region, device: usize, bytes: u64, others: u64) {
        let Some(overhead) = self.overhead.get(device) else {
            return;
        };
        let Some(_held) = overhead.lock.hold() else {
            return;
        };
        // Relaxed: under the lock, as all below.
        let charged = overhead.context_bytes.load(Ordering::Relaxed);
        let contexts = overhead.contexts.load(Ordering::Relaxed);
        overhead
            .contexts
            .store(contexts.saturating_sub(1), Ordering::Relaxed);
        let gone = if contexts <= 1 {
            overhead.left_behind.store(0, Ordering::Relaxed);
            charged
        } else {
            let left = overhead.left_behind.load(Ordering::Relaxed);
            context_goes(charged, bytes, others.saturating_add(left))
        };
        overhead.context_bytes.fetch_sub(gone, Ordering::Relaxed);
        region.release(device, gone, Kind::Context);
        if contexts > 1 && charged - gone != others {
            self.measure_before_next(device);
        }
    }

    /// The host measured what contexts and modules take of each device: the charges follow when the
    /// figure has changed. (Between two measurements, estimates are added to it.)
    pub(crate) fn settle_overhead(
        &self,
        region: &Region,
        measured: &[u64; MAX_DEVICES],
        learn: Learn,
        is_loading: impl Fn(usize) -> bool,
    ) {
        let now = lock::milliseconds().unsigned_abs();
        for (device, (overhead, &bytes)) in self.overhead.iter().zip(measured).enumerate() {
            if bytes == 0 {
                continue;
            }
            // Relaxed here and below: guard no other memory.
            let awaited = overhead.awaited_ms.load(Ordering::Relaxed);
            let is_awaited = awaited != 0 && now.saturating_sub(awaited) >= HOST_LOOKS_MS;
            if overhead.measured_bytes.swap(bytes, Ordering::Relaxed) == bytes && !is_awaited {
                continue;
            }
            let here = overhead.measured_here_ms.load(Ordering::Relaxed);
            let is_fresh = here != 0 && now.saturating_sub(here) < HOST_LAG_MS;
            // Less than what was measured here is older than that; and while a runtime loads, what
            // is kept for it must not flicker.
            if (is_fresh || is_loading(device)) && bytes < self.overhead_bytes(device) {
                continue;
            }
            self.settle_device(region, device, bytes, learn);
            if is_awaited {
                overhead.awaited_ms.store(0, Ordering::Relaxed);
                region.loaded(device);
            }
        }
    }

    /// The host is to say what a runtime has loaded: NVML does not know this process here.
    pub(crate) fn await_host(&self, device: usize) {
        if let Some(overhead) = self.overhead.get(device) {
            let now = lock::milliseconds().unsigned_abs().max(1);
            // Relaxed: guards no other memory.
            overhead.awaited_ms.store(now, Ordering::Relaxed);
        }
    }

    /// A measurement is wanted from now on.
    pub(crate) fn want_measurement(&self, device: usize) {
        if let Some(overhead) = self.overhead.get(device) {
            let now = lock::milliseconds().unsigned_abs().max(1);
            // Relaxed: guards no other memory.
            overhead.wanted_ms.store(now, Ordering::Relaxed);
        }
    }

    /// When a measurement was asked for, and when one was last made for that, milliseconds.
    pub(crate) fn measurement_wanted(&self, device: usize) -> (u64, u64) {
        self.overhead.get(device).map_or((0, 0), |overhead| {
            // Relaxed: as above.
            let asked = overhead.wanted_ms.load(Ordering::Relaxed);
            (asked, overhead.wanted_measured_ms.load(Ordering::Relaxed))
        })
    }

    /// Notes that a measurement was made.
    pub(crate) fn measured_at(&self, device: usize, now_ms: u64) {
        if let Some(overhead) = self.overhead.get(device) {
            // Relaxed: as above.
            overhead.wanted_measured_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Does the charge of modules cover what they load at their first use?
    pub(crate) fn covers_first_use(&self, device: usize) -> bool {
        self.overhead.get(device).is_some_and(|overhead| {
            // Relaxed: as above.
            overhead.is_lowered.load(Ordering::Relaxed) == 0
        })
    }

    /// Records a charge for module memory that the driver may take only at the module's first use.
    pub(crate) fn charged_in_advance(&self, device: usize, bytes: u64) {
        if let Some(overhead) = self.overhead.get(device) {
            // Relaxed: guards no other memory.
            overhead.not_taken.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The charge for modules that the driver has not taken yet, bytes.
    pub(crate) fn in_advance(&self, device: usize) -> u64 {
        // Relaxed: as above.
        let bytes = |overhead: &Overhead| overhead.not_taken.load(Ordering::Relaxed);
        self.overhead.get(device).map_or(0, bytes)
    }

    /// Records that the driver has taken `bytes` of what was charged in advance, or never will because the module is
    /// gone. Returns the part that was not charged in advance.
    pub(crate) fn take_in_advance(&self, device: usize, bytes: u64) -> u64 {
        let Some(overhead) = self.overhead.get(device) else {
            return bytes;
        };
        let less = |charged: u64| Some(charged.saturating_sub(bytes));
        // Relaxed: as above.
        let charged = overhead
            .not_taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .unwrap_or(0);
        bytes.saturating_sub(charged)
    }

    /// The memory in use beyond the charges when a context was made, bytes; gone after this.
    pub(crate) fn take_baseline(&self, device: usize) -> Option<u64> {
        // Relaxed: as above.
        let overhead = self.overhead.get(device)?;
        overhead.baseline.swap(0, Ordering::Relaxed).checked_sub(1)
    }

    /// Remembers the memory in use beyond the charges at the time a context is made, bytes.
    pub(crate) fn set_baseline(&self, device: usize, bytes: u64) {
        if let Some(overhead) = self.overhead.get(device) {
            // Relaxed: as above.
            overhead
                .baseline
                .store(bytes.saturating_add(1), Ordering::Relaxed);
        }
    }

    /// This process has measured by itself what its contexts and modules take of one device.
    pub(crate) fn measured_here(&self, region: &Region, device: usize, bytes: u64, learn: Learn) {
        self.measured_now(device);
        self.settle_device(region, device, bytes, learn);
    }

    /// This process has measured: figures of the host from before this are old.
    pub(crate) fn measured_now(&self, device: usize) {
        if let Some(overhead) = self.overhead.get(device) {
            let now = lock::milliseconds().unsigned_abs().max(1);
            // Relaxed: guards no other memory.
            overhead.measured_here_ms.store(now, Ordering::Relaxed);
        }
    }

    /// Has this process a context on the device?
    pub(crate) fn has_context(&self, device: usize) -> bool {
        // Relaxed: guards no other memory.
        let contexts = |overhead: &Overhead| overhead.contexts.load(Ordering::Relaxed);
        self.overhead.get(device).map_or(0, contexts) != 0
    }

    /// The contexts and modules of one device take this much.
    fn settle_device(&self, region: &Region, device: usize, bytes: u64, learn: Learn) {
        let Some(overhead) = self.overhead.get(device) else {
            return;
        };
        let Some(_held) = overhead.lock.hold() else {
            return;
        };
        // Relaxed: under the lock, as all below.
        let contexts = overhead.contexts.load(Ordering::Relaxed);
        if contexts == 0 {
            return;
        }
        let modules = overhead.module_bytes.load(Ordering::Relaxed);
        let was = overhead.context_bytes.load(Ordering::Relaxed);
        let (is, modules_are) = divided(bytes, was, modules);
        overhead.context_bytes.store(is, Ordering::Relaxed);
        if modules_are < modules {
            overhead.module_bytes.store(modules_are, Ordering::Relaxed);
            overhead.not_taken.store(0, Ordering::Relaxed);
            overhead.is_lowered.store(1, Ordering::Relaxed);
        }
        region.adjust(device, Kind::Context, was, is);
        region.adjust(device, Kind::Module, modules, modules_are);
        match learn {
            Learn::Context if contexts == 1 && is > 0 => {
                region.learn_context_bytes(device, is);
            }
            Learn::Runtime if contexts == 1 => region.learn_runtime_bytes(device, bytes),
            Learn::Context | Learn::Runtime | Learn::Nothing => {}
        }
    }

    fn primary_word(&self, ordinal: i32) -> Option<&AtomicU64> {
        self.primaries.get(usize::try_from(ordinal).ok()?)
    }

    /// Remembers the primary context of a device of the driver (its handle; 0: none); gives the one
    /// before.
    pub(crate) fn swap_primary(&self, ordinal: i32, context: u64) -> u64 {
        // Relaxed: a handle guards no memory of the library.
        self.primary_word(ordinal)
            .map_or(0, |word| word.swap(context, Ordering::Relaxed))
    }

    /// The primary context of a device of the driver, as far as it is known; 0: none.
    pub(crate) fn primary(&self, ordinal: i32) -> u64 {
        // Relaxed: a handle guards no memory of the library.
        self.primary_word(ordinal)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The charge of this process's contexts and modules on a device, bytes.
    pub(crate) fn overhead_bytes(&self, device: usize) -> u64 {
        self.overhead.get(device).map_or(0, |overhead| {
            // Relaxed: a figure of the moment.
            overhead.context_bytes.load(Ordering::Relaxed)
                + overhead.module_bytes.load(Ordering::Relaxed)
        })
    }
}

/// The sizes of contexts and modules when `bytes` were measured for both: a surplus over their
/// charges belongs to the context, and a deficit to modules, whose images declare more than the driver takes.
fn divided(bytes: u64, contexts: u64, modules: u64) -> (u64, u64) {
    let modules = modules.min(bytes.saturating_sub(contexts));
    (bytes - modules, modules)
}

/// The part of the charge of all contexts that ends with the context that was charged `bytes`. The rest (other
/// contexts, and charges that jumps left) keeps its charge, since it is not known which of them was measured to be
/// smaller.
fn context_goes(charged: u64, bytes: u64, others: u64) -> u64 {
    bytes.min(charged.saturating_sub(others))
}

/// The share of one module in what all are charged; all of it with the last one.
fn share_of(charged: u64, bytes: u64, named: u64) -> u64 {
    if bytes >= named {
        return charged;
    }
    let share = u128::from(charged) * u128::from(bytes) / u128::from(named);
    u64::try_from(share).unwrap_or(charged).min(charged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurement_is_divided_among_contexts_and_modules() {
        for (bytes, contexts, modules, divided_into) in [
            (100, 30, 60, (40, 60)),
            (90, 30, 60, (30, 60)),
            (50, 30, 60, (30, 20)),
            (30, 30, 60, (30, 0)),
            (10, 30, 60, (10, 0)),
            (0, 0, 0, (0, 0)),
            (u64::MAX, u64::MAX, u64::MAX, (u64::MAX, 0)),
        ] {
            assert_eq!(divided(bytes, contexts, modules), divided_into, "{bytes}");
        }
    }

    #[test]
    fn a_context_takes_nothing_of_others_along() {
        for (charged, bytes, others, gone) in [
            (48, 16, 32, 16),
            // Measured: one of them, or each, is smaller.
            (40, 16, 32, 8),
            (24, 16, 32, 0),
            // The rest that a jump left is among the others.
            (38, 16, 30, 8),
            (u64::MAX, u64::MAX, 1, u64::MAX - 1),
        ] {
            assert_eq!(context_goes(charged, bytes, others), gone, "{charged}");
        }
    }

    #[test]
    fn a_module_takes_its_share_along() {
        assert_eq!(share_of(60, 20, 60), 20);
        assert_eq!(share_of(6, 20, 60), 2);
        assert_eq!(share_of(6, 60, 60), 6);
        assert_eq!(share_of(6, 70, 60), 6);
        assert_eq!(share_of(0, 1, 2), 0);
        assert_eq!(share_of(u64::MAX, u64::MAX - 1, u64::MAX), u64::MAX - 1);
    }
}
