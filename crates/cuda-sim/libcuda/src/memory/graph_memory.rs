//! Memory of graphs: an allocation node has its address from the beginning, and takes memory of its
//! GPU when its graph is launched, until it is freed. The end of the graph does not free it. The memory
//! that a GPU keeps for graphs grows in chunks and is given back when it is trimmed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use cuda_api::driver::*;
use cuda_sim::board::Kind as Taken;

use crate::base::border::{Done, invalid_if, lock, read, stepped, write};
use crate::memory::blocks::{self, BlockKind};
use crate::memory::context::{self, Ctx};
use crate::process::choices;
use crate::process::driver;
use crate::process::location;

/// The memory that a GPU keeps for graphs is freed in pieces of this size.
pub(crate) const STEP: u64 = 2 << 20;

/// The memory that a GPU keeps for graphs grows by at least this.
const CHUNK: u64 = 32 << 20;

/// The memory of an allocation node; the same in the graph and in its instances.
#[derive(Debug, Clone)]
pub(crate) struct Allocation(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    address: u64,
    pub(crate) bytes: u64,
    gpu: usize,
    /// Launched, and not freed since.
    is_live: Mutex<bool>,
    /// Launched or uploaded, and not trimmed since.
    pub(crate) is_mapped: Mutex<bool>,
    /// Its own device memory in bytes, if graphs do not share the GPU's kept memory.
    own_bytes: Mutex<u64>,
    device: CuDevice,
}

/// Memory that launches have taken and no call has freed, by address: it outlives its graph.
static LIVE: Mutex<BTreeMap<u64, Arc<Inner>>> = Mutex::new(BTreeMap::new());
static ALLOCATIONS: Mutex<BTreeMap<u64, Weak<Inner>>> = Mutex::new(BTreeMap::new());

/// The memory that a GPU keeps for graphs, in bytes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    /// The part of `reserved` that deleted nodes had.
    left_behind: u64,
}

static KEPT: Mutex<BTreeMap<usize, Kept>> = Mutex::new(BTreeMap::new());

pub(crate) fn with_kept<T>(gpu: usize, body: impl FnOnce(&mut Kept) -> T) -> T {
    body(lock(&KEPT).entry(gpu).or_default())
}

impl Kept {
    /// Takes `missing` more bytes of the GPU for graphs.
    fn grow(&mut self, gpu: usize, missing: u64) -> Done {
        driver::the()?.take(gpu, missing, Taken::Alloc)?;
        self.reserved += missing;
        self.reserved_high = self.reserved_high.max(self.reserved);
        Ok(())
    }

    /// Makes sure that `bytes` are free in addition to those in use.
    fn make_room(&mut self, gpu: usize, bytes: u64) -> Done {
        let needed = self.used.checked_add(bytes);
        match needed
            .ok_or(CuResult::OUT_OF_MEMORY)?
            .checked_sub(self.reserved)
        {
            None | Some(0) => Ok(()),
            Some(missing) => self.grow(gpu, stepped(missing, STEP)?.max(CHUNK)),
        }
    }
}

/// Takes the memory of allocation nodes that are not launched yet: their graph is uploaded.
///
/// # Errors
/// When the GPU has no room.
pub(crate) fn upload(allocations: &[Allocation]) -> Done {
    let mut needs: BTreeMap<usize, u64> = BTreeMap::new();
    for Allocation(inner) in allocations {
        *lock(&inner.is_mapped) = true;
        if choices::graph_memory_is_apart() {
            inner.take_own()?;
        } else if !*lock(&inner.is_live) {
            let need = needs.entry(inner.gpu).or_default();
            *need = need.saturating_add(inner.bytes);
        }
    }
    for (gpu, bytes) in needs {
        with_kept(gpu, |kept| kept.make_room(gpu, bytes))?;
    }
    Ok(())
}

impl Inner {
    fn take(&self) -> Done {
        if choices::graph_memory_is_apart() {
            self.take_own()?;
        } else {
            with_kept(self.gpu, |kept| kept.make_room(self.gpu, self.bytes))?;
        }
        with_kept(self.gpu, |kept| {
            kept.used += self.bytes;
            kept.used_high = kept.used_high.max(kept.used);
        });
        Ok(())
    }

    fn take_own(&self) -> Done {
        let mut own = lock(&self.own_bytes);
        if *own == 0 {
            let bytes = stepped(self.bytes, choices::granularity())?;
            with_kept(self.gpu, |kept| kept.grow(self.gpu, bytes))?;
            *own = bytes;
        }
        Ok(())
    }

    fn give_back(&self) -> bool {
        let was_live = std::mem::take(&mut *lock(&self.is_live));
        let kept = lock(&LIVE).remove(&self.address);
        // Dropped after its lock is.
        drop(kept);
        if was_live {
            with_kept(self.gpu, |kept| {
                kept.used = kept.used.saturating_sub(self.bytes)
            });
        }
        was_live
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.give_back();
        let own = *lock(&self.own_bytes);
        with_kept(self.gpu, |kept| kept.left_behind += own);
        lock(&ALLOCATIONS).remove(&self.address);
        let own = |block: &blocks::Block| matches!(block.kind, BlockKind::Graph);
        blocks::end_at(self.address, own);
    }
}

/// Reads an allocation node's parameters and writes the address into them.
///
/// # Errors
/// A graph cannot have such parameters.
pub(crate) fn make(params: *mut CuMemAllocNodeParams) -> Done<Allocation> {
    const PINNED: u32 = 1;
    let mut p = read(params.cast_const())?;
    // Graph memory cannot be handed to other processes.
    let refused = p.bytes == 0 || p.pool.kind != PINNED || p.pool.handle_types != 0;
    invalid_if(refused)?;
    let gpu = location::gpu_of(p.pool.location)?;
    let allocation = reserve_for(gpu, p.bytes as u64)?;
    p.ptr = CuDevicePtr(allocation.0.address);
    write(params, p)?;
    Ok(allocation)
}

/// An allocation in a graph that was not launched yet: `cuMemAllocAsync` in a capture.
///
/// # Errors
/// When there are no addresses left.
pub(crate) fn reserve_for(gpu: usize, bytes: u64) -> Done<Allocation> {
    let device = driver::the()?.ordinal(gpu);
    let device = device.ok_or(CuResult::INVALID_DEVICE)?;
    let address = blocks::place(blocks::block(bytes, gpu, BlockKind::Graph), false)?;
    let bytes = stepped(bytes, 512)?;
    let inner = Arc::new(Inner {
        address,
        bytes,
        gpu,
        is_live: Mutex::new(false),
        is_mapped: Mutex::new(false),
        own_bytes: Mutex::new(0),
        device,
    });
    lock(&ALLOCATIONS).insert(address, Arc::downgrade(&inner));
    Ok(Allocation(inner))
}

/// Checks the address of a free node: it must be an allocation of a graph.
///
/// # Errors
/// The address is of no such allocation.
pub(crate) fn make_free(address: u64) -> Done<u64> {
    invalid_if(!is_graphs(address))?;
    Ok(address)
}

fn find(address: u64) -> Option<Arc<Inner>> {
    lock(&ALLOCATIONS).get(&address)?.upgrade()
}

/// Whether the memory at an address is in use: a launched graph allocated it, and no call has freed it since.
pub(crate) fn is_live(address: u64) -> bool {
    find(address).is_some_and(|found| *lock(&found.is_live))
}

/// Whether an address is a graph's, launched or not.
pub(crate) fn is_graphs(address: u64) -> bool {
    find(address).is_some()
}

impl Allocation {
    pub(crate) fn address(&self) -> u64 {
        self.0.address
    }

    /// The node is launched.
    ///
    /// # Errors
    /// When the GPU has no room, or what the launch before took was not freed.
    pub(crate) fn launch(&self, free_first: bool) -> Done {
        if *lock(&self.0.is_live) {
            invalid_if(!free_first)?;
            self.0.give_back();
        }
        self.0.take()?;
        *lock(&self.0.is_live) = true;
        *lock(&self.0.is_mapped) = true;
        let kept = Arc::clone(&self.0);
        lock(&LIVE).insert(kept.address, kept);
        Ok(())
    }

    pub(crate) fn as_params(&self) -> CuMemAllocNodeParams {
        let mut params = CuMemAllocNodeParams::zeroed();
        params.pool.kind = 1;
        params.pool.location = CuMemLocation {
            kind: 1,
            id: self.0.device.0,
        };
        params.bytes = self.0.bytes as usize;
        params.ptr = CuDevicePtr(self.0.address);
        params
    }
}

/// Frees a graph's memory, as a free node does; returns whether a launched graph had it.
pub(crate) fn free(address: u64) -> bool {
    find(address).is_some_and(|found| found.give_back())
}

/// Every allocation node of a GPU.
pub(crate) fn all_of(gpu: usize) -> Vec<Arc<Inner>> {
    let all: Vec<_> = lock(&ALLOCATIONS).values().cloned().collect();
    let there = all.iter().filter_map(Weak::upgrade);
    there.filter(|inner| inner.gpu == gpu).collect()
}

pub(crate) fn trim(gpu: usize) -> Done {
    let driver = driver::the()?;
    for inner in all_of(gpu) {
        if !*lock(&inner.is_live) {
            *lock(&inner.is_mapped) = false;
        }
    }
    if choices::graph_memory_is_apart() {
        let mut given = with_kept(gpu, |kept| std::mem::take(&mut kept.left_behind));
        for inner in all_of(gpu) {
            if !*lock(&inner.is_live) {
                given += std::mem::take(&mut *lock(&inner.own_bytes));
            }
        }
        driver.give(gpu, given, Taken::Alloc);
        with_kept(gpu, |kept| {
            kept.reserved = kept.reserved.saturating_sub(given)
        });
        return Ok(());
    }
    with_kept(gpu, |kept| {
        let needed = kept.used.next_multiple_of(STEP).min(kept.reserved);
        driver.give(gpu, kept.reserved - needed, Taken::Alloc);
        kept.reserved = needed;
    });
    Ok(())
}

/// Called when the last context of a GPU ends: frees the graphs' memory there.
pub(crate) fn context_gone(context: Ctx) {
    if context::any_on(context.gpu).is_some() {
        return;
    }
    for inner in all_of(context.gpu) {
        inner.give_back();
    }
    // Without a driver there is nothing to give it back to.
    trim(context.gpu).ok();
}
