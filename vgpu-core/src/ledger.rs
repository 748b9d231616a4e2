//! What this process holds: of which allocation, in which context, from which pool; and what contexts
//! and modules were charged. Lives in memory that a fork wipes, so a child begins with nothing and its
//! frees refund nothing. Keeps the region's books right; decides no call.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::region::{Charge, Kind};

use crate::container::Container;
use crate::growing::{self, Growing};
use crate::leaving::Leaving;
use crate::lock::{self, Lock};
use crate::map::Map;
use crate::room::Promised;

/// A chore that waits (`Ledger::chores`): memory that was freed in the order of a stream.
pub(crate) const CHORE_LEAVING: u32 = 1;
/// A chore that waits: pools that their owner has destroyed while they held memory.
pub(crate) const CHORE_POOLS: u32 = 2;
/// A chore that waits: what a call took that was left by a jump is to be measured. From this bit on
/// there is one for each device.
const CHORE_MEASURE: u32 = 1 << 16;

/// See the module's text. All zeros is an empty one.
#[repr(C)]
pub(crate) struct Ledger {
    /// Everything that the driver gave a name.
    pub(crate) map: Map,
    /// Contexts that are gone: what was remembered of a context by its address is void.
    pub(crate) contexts_gone: AtomicU32,
    /// Numbers given to contexts so far.
    pub(crate) contexts_numbered: AtomicU32,
    /// Held while `objects.rs` changes what this process holds.
    pub(crate) objects_lock: Lock,
    /// Numbers given to objects so far.
    pub(crate) objects_numbered: AtomicU64,
    /// Holds that end when the driver has done its work.
    pub(crate) endings: AtomicU32,
    /// Descriptors that keep memory.
    pub(crate) descriptors: AtomicU32,
    /// What contexts and modules were charged, by device.
    overhead: [Overhead; MAX_DEVICES],
    /// Memory pools.
    pub(crate) pools: Growing<Pool>,
    /// Held while a pool is entered into `pools`.
    pub(crate) pools_lock: Lock,
    /// Pools that have something charged; 0 means that no synchronisation needs a look.
    pub(crate) pools_in_use: AtomicU32,
    /// Memory of graphs, by device.
    pub(crate) graphs: [GraphMemory; MAX_DEVICES],
    /// What streams free.
    pub(crate) leaving: Leaving,
    /// What is to be looked at before room is given next; 0: nothing.
    chores: AtomicU32,
}

#[repr(C)]
struct Overhead {
    lock: Lock,
    context_bytes: AtomicU64,
    module_bytes: AtomicU64,
    contexts: AtomicU32,
    /// What the host measured last.
    measured_bytes: AtomicU64,
    /// When this process measured by itself, milliseconds; 0: it has not.
    measured_here_ms: AtomicU64,
    /// Since when the host is to say what a runtime has loaded, milliseconds; 0: nobody waits.
    awaited_ms: AtomicU64,
    primary: AtomicU64,
}

/// What a measurement teaches the other processes of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learn {
    /// Nothing.
    Nothing,
    /// What a context takes.
    Context,
    /// What contexts and modules take where a runtime loads past the hooks.
    Runtime,
}

/// A figure of the host is of a moment up to this long ago.
const HOST_LAG_MS: u64 = 1_000;
/// The host has looked at least once since then.
const HOST_LOOKS_MS: u64 = 500;

/// One memory pool of the driver.
#[repr(C)]
pub(crate) struct Pool {
    /// The driver's handle; 0 is nobody's.
    pub(crate) handle: AtomicU64,
    /// Held while it is settled.
    pub(crate) lock: Lock,
    /// Region index of its device, or what else it is (`pools.rs`).
    pub(crate) device: AtomicU32,
    /// What is charged for it, bytes.
    pub(crate) charged: AtomicU64,
    /// Of the room that the driver says it has, what calls under way were promised.
    pub(crate) promised: Promised,
    /// Its owner has destroyed it, while it held memory: the driver's pool goes when it is empty.
    pub(crate) is_going: AtomicU32,
}

// SAFETY: atomics only, of which zeros are values; handle 0 is an unused place.
unsafe impl growing::Place for Pool {}

/// What the graphs of a device hold.
#[repr(C)]
pub(crate) struct GraphMemory {
    /// Held while it is settled.
    pub(crate) lock: Lock,
    /// The driver's ordinal of the device, plus one.
    pub(crate) ordinal: AtomicU32,
    /// What is charged for it, bytes. Beside what the driver holds, what launches under way have
    /// reserved in `advanced`.
    pub(crate) charged: AtomicU64,
    /// Confirmed ahead of the driver's figure, for launches under way that use several devices.
    pub(crate) advanced: Promised,
    /// Of the room that the driver says there is, what launches under way were promised.
    pub(crate) promised: Promised,
    /// Raised when memory was given back: a graph that was launched before may have none any more.
    pub(crate) trims: AtomicU32,
    /// Not 0: the driver's figure of what is in use leaves out what idle graphs have.
    pub(crate) counts_live: AtomicU32,
    /// Raised when memory of a graph was freed outside it.
    pub(crate) frees: AtomicU32,
}

/// What contexts and modules are charged as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Contexts.
    Context,
    /// Modules and libraries.
    Module,
}

impl Part {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Context => Kind::Context,
            Self::Module => Kind::Module,
        }
    }
}

impl Overhead {
    fn word(&self, part: Part) -> &AtomicU64 {
        match part {
            Part::Context => &self.context_bytes,
            Part::Module => &self.module_bytes,
        }
    }
}

impl Ledger {
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
    pub(crate) fn keep_left_behind(&self, container: &Container, charge: Charge) {
        let device = charge.device();
        if charge.is_beyond() {
            // Nothing measures managed memory.
            return container.region.confirm(charge, Kind::Buffer);
        }
        container.region.confirm(charge, Kind::Context);
        if let Some(overhead) = self.overhead.get(device) {
            // Relaxed: a sum that guards no other memory.
            overhead
                .context_bytes
                .fetch_add(charge.bytes(), Ordering::Relaxed);
            self.set_chore(CHORE_MEASURE << device);
        }
    }

    /// A device of which something was left behind since it was last asked.
    pub(crate) fn take_unmeasured(&self) -> Option<usize> {
        let chores = self.chores.load(Ordering::Relaxed) / CHORE_MEASURE;
        let device = (chores != 0).then(|| chores.trailing_zeros() as usize)?;
        self.clear_chore(CHORE_MEASURE << device);
        Some(device)
    }

    /// The region was charged this much for a context or a module.
    pub(crate) fn add_overhead(&self, device: usize, part: Part, bytes: u64) {
        let Some(overhead) = self.overhead.get(device) else {
            return;
        };
        // Relaxed: a sum that guards no other memory.
        overhead.word(part).fetch_add(bytes, Ordering::Relaxed);
        if part == Part::Context {
            // Relaxed: as above.
            overhead.contexts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A context that exists was charged this much more, or holds this much less.
    pub(crate) fn resize_context(
        &self,
        container: &Container,
        device: usize,
        more: u64,
        less: u64,
    ) {
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
        container.region.release(device, less, Kind::Context);
    }

    /// A context or a module is gone. Its charge may have been settled to another figure meanwhile:
    /// what goes is its share of what stands, and with the last context all of it.
    pub(crate) fn drop_overhead(
        &self,
        container: &Container,
        device: usize,
        part: Part,
        bytes: u64,
    ) {
        let Some(overhead) = self.overhead.get(device) else {
            return;
        };
        let Some(_held) = overhead.lock.hold() else {
            return;
        };
        let word = overhead.word(part);
        // Relaxed: under the lock.
        let charged = word.load(Ordering::Relaxed);
        let is_last = part == Part::Context && {
            // Relaxed: as above.
            let before = overhead.contexts.load(Ordering::Relaxed);
            overhead
                .contexts
                .store(before.saturating_sub(1), Ordering::Relaxed);
            before <= 1
        };
        let gone = if is_last { charged } else { bytes.min(charged) };
        // Relaxed: as above.
        word.fetch_sub(gone, Ordering::Relaxed);
        container.region.release(device, gone, part.kind());
    }

    /// The host measured what contexts and modules take of each device: the books follow when the
    /// figure has changed. (Between two looks, estimates stand on top of it.)
    pub(crate) fn settle_overhead(
        &self,
        container: &Container,
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
            self.settle_device(container, device, bytes, learn);
            if is_awaited {
                overhead.awaited_ms.store(0, Ordering::Relaxed);
                container.region.loaded(device);
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

    /// This process has measured by itself what its contexts and modules take of one device.
    pub(crate) fn measured_here(
        &self,
        container: &Container,
        device: usize,
        bytes: u64,
        learn: Learn,
    ) {
        if let Some(overhead) = self.overhead.get(device) {
            let now = lock::milliseconds().unsigned_abs().max(1);
            // Relaxed: guards no other memory.
            overhead.measured_here_ms.store(now, Ordering::Relaxed);
        }
        self.settle_device(container, device, bytes, learn);
    }

    /// Has this process a context on the device?
    pub(crate) fn has_context(&self, device: usize) -> bool {
        // Relaxed: guards no other memory.
        let contexts = |overhead: &Overhead| overhead.contexts.load(Ordering::Relaxed);
        self.overhead.get(device).map_or(0, contexts) != 0
    }

    /// The contexts and modules of one device take this much.
    fn settle_device(&self, container: &Container, device: usize, bytes: u64, learn: Learn) {
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
        let is = bytes.saturating_sub(modules);
        overhead.context_bytes.store(is, Ordering::Relaxed);
        container.region.adjust(device, Kind::Context, was, is);
        match learn {
            Learn::Context if contexts == 1 && is > 0 => {
                container.region.learn_context_bytes(device, is);
            }
            Learn::Runtime if contexts == 1 => container.region.learn_runtime_bytes(device, bytes),
            Learn::Context | Learn::Runtime | Learn::Nothing => {}
        }
    }

    /// Remembers the primary context of a device (its handle; 0: none); gives the one before.
    pub(crate) fn swap_primary(&self, device: usize, context: u64) -> u64 {
        // Relaxed: a handle guards no memory of ours.
        self.overhead
            .get(device)
            .map_or(0, |it| it.primary.swap(context, Ordering::Relaxed))
    }

    /// The primary context of a device, as far as it is known; 0: none.
    pub(crate) fn primary(&self, device: usize) -> u64 {
        // Relaxed: a handle guards no memory of ours.
        self.overhead
            .get(device)
            .map_or(0, |it| it.primary.load(Ordering::Relaxed))
    }

    /// What contexts and modules of this process are charged on a device, bytes.
    pub(crate) fn overhead_bytes(&self, device: usize) -> u64 {
        self.overhead.get(device).map_or(0, |overhead| {
            // Relaxed: a figure of the moment.
            overhead.context_bytes.load(Ordering::Relaxed)
                + overhead.module_bytes.load(Ordering::Relaxed)
        })
    }
}
