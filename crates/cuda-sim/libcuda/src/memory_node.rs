//! Memory of graphs: an allocation node has its address from the beginning, and takes memory of its
//! GPU when its graph is launched, until somebody frees it. What a GPU keeps for graphs grows in
//! chunks and is given back when it is trimmed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use cuda_api::driver::*;
use cuda_sim::board::Kind as Taken;

use crate::border::answer;
use crate::gpu::{Ctx, Done, lock, read, write};
use crate::memory::{self, Kind, STEP};
use crate::{context, driver};

/// What a GPU keeps for graphs grows by this at least.
const CHUNK: u64 = 32 << 20;

/// The memory of an allocation node; the same in the graph and in what was instantiated from it.
#[derive(Debug, Clone)]
pub(crate) struct Allocation(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    address: u64,
    bytes: u64,
    gpu: usize,
    /// Launched, and not freed since.
    is_live: Mutex<bool>,
    device: CuDevice,
}

static ALLOCATIONS: Mutex<Option<HashMap<u64, Weak<Inner>>>> = Mutex::new(None);

/// What a GPU keeps for graphs, in bytes.
#[derive(Debug, Default, Clone, Copy)]
struct Kept {
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
}

static KEPT: Mutex<Option<HashMap<usize, Kept>>> = Mutex::new(None);

fn with_kept<T>(gpu: usize, body: impl FnOnce(&mut Kept) -> T) -> T {
    body(
        lock(&KEPT)
            .get_or_insert_with(HashMap::new)
            .entry(gpu)
            .or_default(),
    )
}

fn take(gpu: usize, bytes: u64) -> Done {
    let driver = driver::the()?;
    with_kept(gpu, |kept| {
        let used = kept.used + bytes;
        if used > kept.reserved {
            let missing = (used - kept.reserved).next_multiple_of(STEP).max(CHUNK);
            driver.take(gpu, missing, Taken::Alloc)?;
            kept.reserved += missing;
            kept.reserved_high = kept.reserved_high.max(kept.reserved);
        }
        kept.used = used;
        kept.used_high = kept.used_high.max(used);
        Ok(())
    })
}

impl Inner {
    fn give_back(&self) -> bool {
        let was_live = std::mem::take(&mut *lock(&self.is_live));
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
        if let Some(all) = lock(&ALLOCATIONS).as_mut() {
            all.remove(&self.address);
        }
        let own = |block: &memory::Block| matches!(block.kind, Kind::Graph);
        if let Some(block) = memory::remove(self.address, own) {
            memory::end(self.address, &block);
        }
    }
}

/// Reads an allocation node's parameters and answers the address in them.
///
/// # Errors
/// When they are none that a graph can have.
pub(crate) fn make(params: *mut CuMemAllocNodeParams) -> Done<Allocation> {
    const PINNED: u32 = 1;
    const DEVICE: u32 = 1;
    let mut p = read(params.cast_const())?;
    // Graph memory cannot be handed to other processes.
    let refused = p.bytes == 0
        || p.pool.kind != PINNED
        || p.pool.location.kind != DEVICE
        || p.pool.handle_types != 0;
    if refused {
        return Err(CuResult::INVALID_VALUE);
    }
    let device = CuDevice(p.pool.location.id);
    let allocation = reserve_for(driver::the()?.gpu(device)?, device, p.bytes as u64)?;
    p.ptr = CuDevicePtr(allocation.0.address);
    write(params, p)?;
    Ok(allocation)
}

/// An allocation in a graph that nobody has launched: `cuMemAllocAsync` in a capture.
///
/// # Errors
/// When there are no addresses left.
pub(crate) fn reserve_for(gpu: usize, device: CuDevice, bytes: u64) -> Done<Allocation> {
    let address = memory::place(memory::block(bytes, gpu, Kind::Graph), false)?;
    let bytes = bytes
        .checked_next_multiple_of(512)
        .ok_or(CuResult::OUT_OF_MEMORY)?;
    let inner = Arc::new(Inner {
        address,
        bytes,
        gpu,
        is_live: Mutex::new(false),
        device,
    });
    lock(&ALLOCATIONS)
        .get_or_insert_with(HashMap::new)
        .insert(address, Arc::downgrade(&inner));
    Ok(Allocation(inner))
}

/// Checks what a free node is to free: an allocation of a graph.
///
/// # Errors
/// When it is none.
pub(crate) fn make_free(address: u64) -> Done<u64> {
    find(address)
        .map(|_| address)
        .ok_or(CuResult::INVALID_VALUE)
}

fn find(address: u64) -> Option<Arc<Inner>> {
    lock(&ALLOCATIONS).as_ref()?.get(&address)?.upgrade()
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
            if !free_first {
                return Err(CuResult::INVALID_VALUE);
            }
            self.0.give_back();
        }
        take(self.0.gpu, self.0.bytes)?;
        *lock(&self.0.is_live) = true;
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

/// Frees a graph's memory, as a free node does; says whether a launched graph had it.
pub(crate) fn free(address: u64) -> bool {
    find(address).is_some_and(|found| found.give_back())
}

const USED: u32 = 0;
const USED_HIGH: u32 = 1;
const RESERVED: u32 = 2;
const RESERVED_HIGH: u32 = 3;

pub(crate) unsafe fn cuDeviceGetGraphMemAttribute(
    device: CuDevice,
    attribute: CuGraphMemAttribute,
    value: *mut c_void,
) -> CuResult {
    answer(|| {
        let kept = with_kept(driver::the()?.gpu(device)?, |kept| *kept);
        let found = match attribute {
            USED => kept.used,
            USED_HIGH => kept.used_high,
            RESERVED => kept.reserved,
            RESERVED_HIGH => kept.reserved_high,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        write(value.cast::<u64>(), found)
    })
}

/// High-water marks can be set back, to zero only.
pub(crate) unsafe fn cuDeviceSetGraphMemAttribute(
    device: CuDevice,
    attribute: CuGraphMemAttribute,
    value: *mut c_void,
) -> CuResult {
    answer(|| {
        let gpu = driver::the()?.gpu(device)?;
        if read(value.cast::<u64>().cast_const())? != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        with_kept(gpu, |kept| {
            match attribute {
                USED_HIGH => kept.used_high = kept.used,
                RESERVED_HIGH => kept.reserved_high = kept.reserved,
                _ => return Err(CuResult::INVALID_VALUE),
            }
            Ok(())
        })
    })
}

fn trim(gpu: usize) -> Done {
    let driver = driver::the()?;
    with_kept(gpu, |kept| {
        let needed = kept.used.next_multiple_of(STEP).min(kept.reserved);
        driver.give(gpu, kept.reserved - needed, Taken::Alloc);
        kept.reserved = needed;
    });
    Ok(())
}

pub(crate) unsafe fn cuDeviceGraphMemTrim(device: CuDevice) -> CuResult {
    answer(|| trim(driver::the()?.gpu(device)?))
}

/// The last context of a GPU ends: what graphs held there is gone.
pub(crate) fn context_gone(context: Ctx) {
    if context::any_on(context.gpu).is_some() {
        return;
    }
    let all: Vec<_> = lock(&ALLOCATIONS)
        .iter()
        .flat_map(HashMap::values)
        .cloned()
        .collect();
    for inner in all
        .iter()
        .filter_map(Weak::upgrade)
        .filter(|inner| inner.gpu == context.gpu)
    {
        inner.give_back();
    }
    // Without a driver there is nothing to give it back to.
    trim(context.gpu).ok();
}
