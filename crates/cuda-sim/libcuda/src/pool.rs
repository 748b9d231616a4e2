//! Memory pools. A pool takes memory of its GPU in chunks, and gives empty
//! ones back when somebody waits for the GPU and it keeps more than its threshold, or when trimmed.
//! Graphs' memory is not here, but in `memory_node`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_api::driver::*;
use cuda_sim::board;

use crate::border::{Done, check_out, read, write};
use crate::choices;
use crate::context::{self, Context};
use crate::location::{self, Place};
use crate::memory::{self, Kind};
use crate::{driver, ipc};

const PIECE_STEP: u64 = 512;
pub(crate) const HANDLE_NONE: u64 = 0;
pub(crate) const HANDLE_FILE_DESCRIPTOR: u64 = 1;

/// A pool. Never freed: memory that outlives its destruction still comes back to it.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) gpu: usize,
    sort: Sort,
    /// The driver's own, which cannot be destroyed.
    is_default: bool,
    handle_types: u64,
    max_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Sort {
    /// Of a device's memory.
    Device,
    /// Managed: on the device while there is room, else on the host.
    Managed,
    /// Another process's: only its pointers come in.
    Imported,
    /// Host memory, which takes nothing of a GPU.
    Host,
}

#[derive(Debug, Default)]
struct State {
    is_destroyed: bool,
    chunks: Vec<Chunk>,
    free_chunk_slots: Vec<usize>,
    pieces: HashMap<u64, Piece>,
    reserved: u64,
    used: u64,
    reserved_high: u64,
    used_high: u64,
    threshold: u64,
    reuse: [i32; 3],
    access: Vec<(i32, u32)>,
}

#[derive(Debug, Default)]
struct Chunk {
    bytes: u64,
    used: u64,
    /// What it takes of the GPU: nothing when it lies on the host.
    taken: u64,
}

/// Part of a chunk that is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    chunk: usize,
    bytes: u64,
    /// Its memory is the processes' that hold it together: it does not come back to the pool.
    is_detached: bool,
}

#[derive(Default)]
struct Pools {
    all: Vec<&'static Pool>,
    defaults: HashMap<(usize, Sort), &'static Pool>,
    current: HashMap<(usize, Sort), &'static Pool>,
}

static POOLS: Mutex<Option<Pools>> = Mutex::new(None);

fn with<T>(body: impl FnOnce(&mut Pools) -> T) -> T {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    body(pools.get_or_insert_with(Pools::default))
}

fn new(
    gpu: usize,
    sort: Sort,
    is_default: bool,
    handle_types: u64,
    max_bytes: u64,
) -> &'static Pool {
    let state = Mutex::new(State {
        reuse: [1; 3],
        ..State::default()
    });
    Box::leak(Box::new(Pool {
        gpu,
        sort,
        is_default,
        handle_types,
        max_bytes,
        state,
    }))
}

/// A GPU's own pool.
pub(crate) fn default_of(gpu: usize) -> &'static Pool {
    default_at(gpu, Sort::Device)
}

/// The driver's own pool of a sort.
fn default_at(gpu: usize, sort: Sort) -> &'static Pool {
    with(|pools| {
        if let Some(pool) = pools.defaults.get(&(gpu, sort)) {
            return *pool;
        }
        let pool = new(gpu, sort, true, HANDLE_NONE, 0);
        pools.defaults.insert((gpu, sort), pool);
        pools.all.push(pool);
        pool
    })
}

/// The pool that stream-ordered allocation on a GPU takes from.
pub(crate) fn current_of(gpu: usize) -> &'static Pool {
    current_at(gpu, Sort::Device)
}

fn current_at(gpu: usize, sort: Sort) -> &'static Pool {
    let set = with(|pools| pools.current.get(&(gpu, sort)).copied());
    set.unwrap_or_else(|| default_at(gpu, sort))
}

/// The pool of a handle.
///
/// # Errors
/// When it is none, or was destroyed.
pub(crate) fn find(handle: CuMemoryPool) -> Done<&'static Pool> {
    let wanted = handle.addr();
    with(|pools| {
        pools
            .all
            .iter()
            .copied()
            .find(|pool| pool.as_handle().addr() == wanted)
    })
    .ok_or(CuResult::INVALID_VALUE)
}

/// Something of this GPU has been waited for: its pools give back what is empty and beyond their
/// threshold.
pub(crate) fn synchronized(gpu: usize) {
    if choices::pools_keep() {
        return;
    }
    let pools = with(|pools| pools.all.clone());
    for pool in pools.into_iter().filter(|pool| pool.gpu == gpu) {
        let keep = pool.state().threshold;
        pool.trim(keep);
    }
}

/// The last context of a process on a GPU is gone: so is what its pools gave out there.
pub(crate) fn context_gone(context: &'static Context) {
    if context::any_on(context.gpu).is_some() {
        return;
    }
    let own =
        |block: &memory::Block| block.gpu == context.gpu && matches!(block.kind, Kind::Pool(_));
    for (base, _) in memory::select(0..u64::MAX, own) {
        if let Some(block) = memory::remove(base, own) {
            memory::end(base, &block);
        }
    }
    for pool in with(|pools| pools.all.clone()) {
        if pool.gpu == context.gpu {
            pool.trim(0);
        }
    }
}

impl Pool {
    pub(crate) fn as_handle(&self) -> CuMemoryPool {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    pub(crate) fn handle_types(&self) -> u64 {
        self.handle_types
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a part of the pool's memory, and more of the GPU's when it has no room.
    ///
    /// # Errors
    /// When the GPU, or the pool's greatest size, has no room.
    pub(crate) fn take(&self, bytes: u64) -> Done<Piece> {
        let bytes = bytes
            .checked_next_multiple_of(PIECE_STEP)
            .ok_or(CuResult::OUT_OF_MEMORY)?;
        let mut state = self.state();
        let fitting = state
            .chunks
            .iter()
            .position(|chunk| chunk.bytes - chunk.used >= bytes);
        let chunk = match fitting {
            Some(chunk) => chunk,
            None => {
                let grown = bytes
                    .checked_next_multiple_of(choices::granularity())
                    .ok_or(CuResult::OUT_OF_MEMORY)?;
                let chunk = choices::pool_chunk();
                let grown = grown.max(chunk);
                if self.max_bytes != 0 && state.reserved + grown > self.max_bytes.max(chunk) {
                    return Err(CuResult::OUT_OF_MEMORY);
                }
                drop(state);
                let taken = self.grow(grown)?;
                state = self.state();
                let slot = state.free_chunk_slots.pop();
                let chunk = slot.unwrap_or(state.chunks.len());
                if slot.is_none() {
                    state.chunks.push(Chunk::default());
                }
                state.chunks[chunk] = Chunk {
                    bytes: grown,
                    used: 0,
                    taken,
                };
                state.reserved += grown;
                state.reserved_high = state.reserved_high.max(state.reserved);
                chunk
            }
        };
        state.chunks[chunk].used += bytes;
        state.used += bytes;
        state.used_high = state.used_high.max(state.used);
        Ok(Piece {
            chunk,
            bytes,
            is_detached: false,
        })
    }

    /// Takes memory of the GPU; when there is none, what this process's pools keep empty first. Says how much of the
    /// GPU it is.
    fn grow(&self, bytes: u64) -> Done<u64> {
        if self.sort == Sort::Host {
            return Ok(0);
        }
        let driver = driver::the()?;
        let take = || driver.take(self.gpu, bytes, board::Kind::Alloc);
        let taken = take().or_else(|_| {
            for pool in with(|pools| pools.all.clone()) {
                if pool.gpu == self.gpu {
                    pool.trim(0);
                }
            }
            take()
        });
        match taken {
            Err(_) if self.sort == Sort::Managed => Ok(0),
            taken => taken.map(|()| bytes),
        }
    }

    /// Gives a part back to the pool, which keeps it unless its memory was detached.
    pub(crate) fn give(&self, piece: Piece) {
        let mut state = self.state();
        state.used -= piece.bytes;
        state.chunks[piece.chunk].used -= piece.bytes;
        if piece.is_detached {
            state.reserved -= piece.bytes;
            state.chunks[piece.chunk].bytes -= piece.bytes;
            if state.chunks[piece.chunk].bytes == 0 {
                state.chunks[piece.chunk] = Chunk::default();
                state.free_chunk_slots.push(piece.chunk);
            }
        }
        let is_destroyed = state.is_destroyed;
        drop(state);
        if is_destroyed {
            self.trim(0);
        }
    }

    /// Gives empty chunks back to the GPU until at most `keep` bytes are left, or none is empty.
    pub(crate) fn trim(&self, keep: u64) {
        let mut state = self.state();
        let mut given = 0;
        for chunk in 0..state.chunks.len() {
            if state.reserved <= keep {
                break;
            }
            let Chunk { bytes, used, taken } = state.chunks[chunk];
            if bytes > 0 && used == 0 {
                state.chunks[chunk] = Chunk::default();
                state.free_chunk_slots.push(chunk);
                state.reserved -= bytes;
                given += taken;
            }
        }
        drop(state);
        if let Some(driver) = driver::get().filter(|_| given > 0) {
            driver.give(self.gpu, given, board::Kind::Alloc);
        }
    }

    /// One of its blocks has ended.
    pub(crate) fn freed(&self, base: u64) {
        let piece = self.state().pieces.remove(&base);
        if let Some(piece) = piece {
            self.give(piece);
        }
    }

    /// Takes a block's memory out of the pool, for processes to hold together. Until this process frees the block, the
    /// pool's figures still count it: naming an allocation to others does not change what its pool holds.
    pub(crate) fn detach(&self, base: u64) -> Option<u64> {
        let mut state = self.state();
        let piece = state.pieces.get_mut(&base).filter(|it| !it.is_detached)?;
        piece.is_detached = true;
        let Piece { chunk, bytes, .. } = *piece;
        let taken = bytes.min(state.chunks[chunk].taken);
        state.chunks[chunk].taken -= taken;
        Some(taken)
    }

    /// Bytes used, their high mark, bytes reserved, their high mark.
    pub(crate) fn figures(&self) -> [u64; 4] {
        let state = self.state();
        [
            state.used,
            state.used_high,
            state.reserved,
            state.reserved_high,
        ]
    }

    /// Sets the high marks to what there is: that of the used bytes, that of the reserved.
    pub(crate) fn reset_marks(&self, used: bool, reserved: bool) {
        let mut state = self.state();
        if used {
            state.used_high = state.used;
        }
        if reserved {
            state.reserved_high = state.reserved;
        }
    }
}

impl Pool {
    /// Allocates: a block of addresses over a part of the pool.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn allocate(&'static self, bytes: u64) -> Done<u64> {
        if bytes == 0 || self.sort == Sort::Imported {
            return Err(CuResult::INVALID_VALUE);
        }
        let piece = self.take(bytes)?;
        let block = memory::block(bytes, self.gpu, Kind::Pool(self));
        let base = memory::place(block, false).inspect_err(|_| self.give(piece))?;
        self.state().pieces.insert(base, piece);
        Ok(base)
    }
}

// --- pools ----------------------------------------------------------------------------------------

const PINNED: u32 = 1;
const MANAGED: u32 = 2;

/// The GPU and the sort that a location and a kind of memory mean.
fn sort_of(location: CuMemLocation, kind: u32) -> Done<(usize, Sort)> {
    const NOWHERE: u32 = 0;
    match kind {
        PINNED => Ok(match location::of(location)? {
            Place::Gpu(gpu) => (gpu, Sort::Device),
            Place::Host => (0, Sort::Host),
        }),
        // Managed memory comes to whoever uses it first; here that is the calling thread's GPU.
        MANAGED if location.kind == NOWHERE => {
            Ok((context::current().map_or(0, |it| it.gpu), Sort::Managed))
        }
        MANAGED => Ok(match location::of(location)? {
            Place::Gpu(gpu) => (gpu, Sort::Managed),
            Place::Host => (0, Sort::Managed),
        }),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

pub(crate) fn cuMemPoolCreate(pool: *mut CuMemoryPool, pool_props: *const CuMemPoolProps) -> Done {
    check_out(pool)?;
    let props = read(pool_props)?;
    if u64::from(props.handle_types) & !HANDLE_FILE_DESCRIPTOR != 0 {
        return Err(CuResult::NOT_SUPPORTED);
    }
    let (gpu, sort) = sort_of(props.location, props.kind)?;
    let types = props.handle_types.into();
    let made = new(gpu, sort, false, types, props.max_size as u64);
    with(|pools| pools.all.push(made));
    write(pool, made.as_handle())
}

pub(crate) fn cuMemPoolDestroy(pool: CuMemoryPool) -> Done {
    let found = find(pool)?;
    if found.is_default {
        return Err(CuResult::INVALID_VALUE);
    }
    with(|pools| {
        pools.all.retain(|other| !std::ptr::eq(*other, found));
        pools
            .current
            .retain(|_, other| !std::ptr::eq(*other, found));
    });
    found.state().is_destroyed = true;
    found.trim(0);
    Ok(())
}

pub(crate) fn cuMemPoolTrimTo(pool: CuMemoryPool, min_bytes_to_keep: usize) -> Done {
    find(pool)?.trim(min_bytes_to_keep as u64);
    Ok(())
}

/// An attribute is a 32-bit or a 64-bit number, as CUDA says for each.
pub(crate) fn cuMemPoolGetAttribute(
    pool: CuMemoryPool,
    attribute: CuMemPoolAttribute,
    value: *mut c_void,
) -> Done {
    let pool = find(pool)?;
    let [used, used_high, reserved, reserved_high] = pool.figures();
    let state = pool.state();
    let number = match attribute {
        1..=3 => {
            let set = state.reuse[attribute as usize - 1];
            return write(value.cast::<i32>(), set);
        }
        4 => state.threshold,
        5 => reserved,
        6 => reserved_high,
        7 => used,
        8 => used_high,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    write(value.cast::<u64>(), number)
}

pub(crate) fn cuMemPoolSetAttribute(
    pool: CuMemoryPool,
    attribute: CuMemPoolAttribute,
    value: *mut c_void,
) -> Done {
    let pool = find(pool)?;
    if let 1..=3 = attribute {
        // SAFETY: the caller's pointer, of the attribute's type.
        pool.state().reuse[attribute as usize - 1] = read(value.cast::<i32>())?;
        return Ok(());
    }
    let number = read(value.cast::<u64>())?;
    match attribute {
        4 => pool.state().threshold = number,
        6 | 8 if number == 0 => pool.reset_marks(attribute == 8, attribute == 6),
        _ => return Err(CuResult::INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn cuMemPoolSetAccess(
    pool: CuMemoryPool,
    map: *const CuMemAccessDesc,
    count: usize,
) -> Done {
    let pool = find(pool)?;
    for index in 0..count {
        let desc = read(map.wrapping_add(index))?;
        let gpu = location::gpu_of(desc.location)?;
        if desc.flags == 0 && gpu == pool.gpu {
            return Err(CuResult::INVALID_VALUE);
        }
        let mut state = pool.state();
        state
            .access
            .retain(|(device, _)| *device != desc.location.id);
        state.access.push((desc.location.id, desc.flags));
    }
    Ok(())
}

pub(crate) fn cuMemPoolGetAccess(
    flags: *mut CuMemAccessFlags,
    pool: CuMemoryPool,
    location: *mut CuMemLocation,
) -> Done {
    const READ_WRITE: u32 = 3;
    let pool = find(pool)?;
    let location = read(location)?;
    let gpu = driver::the()?.gpu(CuDevice(location.id))?;
    let set = pool
        .state()
        .access
        .iter()
        .find(|(device, _)| *device == location.id)
        .map(|(_, f)| *f);
    let own = if gpu == pool.gpu { READ_WRITE } else { 0 };
    write(flags, set.unwrap_or(own))
}

pub(crate) fn cuDeviceGetDefaultMemPool(pool_out: *mut CuMemoryPool, device: CuDevice) -> Done {
    let gpu = driver::the()?.gpu(device)?;
    write(pool_out, default_of(gpu).as_handle())
}

pub(crate) fn cuDeviceGetMemPool(pool: *mut CuMemoryPool, device: CuDevice) -> Done {
    let gpu = driver::the()?.gpu(device)?;
    write(pool, current_of(gpu).as_handle())
}

fn set_current(gpu: usize, sort: Sort, pool: CuMemoryPool) -> Done {
    let pool = find(pool)?;
    if pool.gpu != gpu || pool.sort != sort {
        return Err(CuResult::INVALID_VALUE);
    }
    with(|pools| pools.current.insert((gpu, sort), pool));
    Ok(())
}

pub(crate) fn cuDeviceSetMemPool(device: CuDevice, pool: CuMemoryPool) -> Done {
    set_current(driver::the()?.gpu(device)?, Sort::Device, pool)
}

/// The same in the forms of CUDA 13.
fn sort_at(location: *mut CuMemLocation, kind: u32) -> Done<(usize, Sort)> {
    sort_of(read(location)?, kind)
}

pub(crate) fn cuMemGetDefaultMemPool(
    pool_out: *mut CuMemoryPool,
    location: *mut CuMemLocation,
    kind: CuMemAllocationType,
) -> Done {
    let (gpu, sort) = sort_at(location, kind)?;
    write(pool_out, default_at(gpu, sort).as_handle())
}

pub(crate) fn cuMemGetMemPool(
    pool: *mut CuMemoryPool,
    location: *mut CuMemLocation,
    kind: CuMemAllocationType,
) -> Done {
    let (gpu, sort) = sort_at(location, kind)?;
    write(pool, current_at(gpu, sort).as_handle())
}

pub(crate) fn cuMemSetMemPool(
    location: *mut CuMemLocation,
    kind: CuMemAllocationType,
    pool: CuMemoryPool,
) -> Done {
    let (gpu, sort) = sort_at(location, kind)?;
    set_current(gpu, sort, pool)
}

// --- pools that processes share -------------------------------------------------------------------

/// What an exported pool's descriptor says.
#[repr(C)]
#[derive(Clone, Copy)]
struct PoolToken {
    magic: u64,
    gpu: u64,
    handle_types: u64,
}

const POOL_MAGIC: u64 = u64::from_le_bytes(*b"vgpupool");

pub(crate) fn cuMemPoolExportToShareableHandle(
    handle_out: *mut c_void,
    pool: CuMemoryPool,
    handle_type: CuMemAllocationHandleType,
    flags: u64,
) -> Done {
    let pool = find(pool)?;
    let wanted = u64::from(handle_type);
    if flags != 0 || wanted != HANDLE_FILE_DESCRIPTOR || pool.handle_types & wanted == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    check_out(handle_out)?;
    let token = PoolToken {
        magic: POOL_MAGIC,
        gpu: pool.gpu as u64,
        handle_types: pool.handle_types,
    };
    let length = size_of::<PoolToken>() as u64;
    let (file, number) = ipc::shareable_file(c"vgpu-sim-pool", length)?;
    ipc::write_record(&file, 0, &token)?;
    let fd = ipc::exported(&file, number)?;
    write(handle_out.cast::<i32>(), fd)
}

pub(crate) fn cuMemPoolImportFromShareableHandle(
    pool_out: *mut CuMemoryPool,
    handle: *mut c_void,
    handle_type: CuMemAllocationHandleType,
    flags: u64,
) -> Done {
    check_out(pool_out)?;
    if flags != 0 || u64::from(handle_type) != HANDLE_FILE_DESCRIPTOR {
        return Err(CuResult::INVALID_VALUE);
    }
    let (file, _) = ipc::imported(handle.addr() as i32)?;
    let token: PoolToken = ipc::read_record(&file, 0)?;
    let driver = driver::the()?;
    let gpu = token.gpu as usize;
    if token.magic != POOL_MAGIC || driver.ordinal(gpu).is_none() {
        return Err(CuResult::INVALID_VALUE);
    }
    let pool = new(gpu, Sort::Imported, false, token.handle_types, 0);
    with(|pools| pools.all.push(pool));
    write(pool_out, pool.as_handle())
}

pub(crate) fn cuMemPoolExportPointer(
    share_data_out: *mut CuMemPoolPtrExportData,
    ptr: CuDevicePtr,
) -> Done {
    check_out(share_data_out)?;
    let (base, block) = memory::find(ptr.0).ok_or(CuResult::INVALID_VALUE)?;
    let Kind::Pool(pool) = block.kind else {
        return Err(CuResult::INVALID_VALUE);
    };
    if base != ptr.0 || pool.handle_types & HANDLE_FILE_DESCRIPTOR == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let name = ipc::share(base, &block, || pool.detach(base))?;
    let mut data = CuMemPoolPtrExportData { reserved: [0; 64] };
    name.write(&mut data.reserved);
    write(share_data_out, data)
}

pub(crate) fn cuMemPoolImportPointer(
    ptr_out: *mut CuDevicePtr,
    pool: CuMemoryPool,
    share_data: *mut CuMemPoolPtrExportData,
) -> Done {
    check_out(ptr_out)?;
    let pool = find(pool)?;
    let data = read(share_data)?;
    let name = ipc::Name::read(&data.reserved).ok_or(CuResult::INVALID_VALUE)?;
    if pool.sort != Sort::Imported || name.gpu != pool.gpu as u64 {
        return Err(CuResult::INVALID_VALUE);
    }
    let base = ipc::open(&name, Kind::Pool(pool), None)?;
    write(ptr_out, CuDevicePtr(base))
}
