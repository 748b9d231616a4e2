//! Memory pools. A pool takes memory of its GPU in chunks, and gives empty ones back when a call waits
//! for the GPU and the pool keeps more than its threshold, or when it is trimmed.
//! The memory of graphs is in `graph_memory`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use cuda_api::driver::*;
use cuda_sim::board;

use crate::base::border::{Done, lock, refuse_if, stepped};
use crate::process::choices;
use crate::process::driver;

const PIECE_STEP: u64 = 512;
pub(crate) const HANDLE_NONE: u64 = 0;
pub(crate) const HANDLE_FILE_DESCRIPTOR: u64 = 1;

/// A pool. Never freed: memory that outlives its destruction still comes back to it.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) gpu: usize,
    pub(crate) sort: Sort,
    /// The driver's own, which cannot be destroyed.
    pub(crate) is_default: bool,
    pub(crate) handle_types: u64,
    max_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Sort {
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
pub(crate) struct State {
    pub(crate) is_destroyed: bool,
    chunks: Vec<Chunk>,
    free_chunk_slots: Vec<usize>,
    pub(crate) pieces: HashMap<u64, Piece>,
    reserved: u64,
    used: u64,
    reserved_high: u64,
    used_high: u64,
    pub(crate) threshold: u64,
    pub(crate) reuse: [i32; 3],
    pub(crate) access: Vec<(i32, u32)>,
}

#[derive(Debug, Default)]
struct Chunk {
    bytes: u64,
    used: u64,
    /// The device memory that it takes: 0 if it is on the host.
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
pub(crate) struct Pools {
    pub(crate) all: Vec<&'static Pool>,
    defaults: HashMap<(usize, Sort), &'static Pool>,
    pub(crate) current: HashMap<(usize, Sort), &'static Pool>,
}

static POOLS: Mutex<Option<Pools>> = Mutex::new(None);

pub(crate) fn with<T>(body: impl FnOnce(&mut Pools) -> T) -> T {
    let mut pools = lock(&POOLS);
    body(pools.get_or_insert_with(Pools::default))
}

pub(crate) fn new(
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
pub(crate) fn default_at(gpu: usize, sort: Sort) -> &'static Pool {
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

pub(crate) fn current_at(gpu: usize, sort: Sort) -> &'static Pool {
    let set = with(|pools| pools.current.get(&(gpu, sort)).copied());
    set.unwrap_or_else(|| default_at(gpu, sort))
}

/// The pool of a handle.
///
/// # Errors
/// When it is none, or was destroyed.
pub(crate) fn find(handle: CuMemoryPool) -> Done<&'static Pool> {
    let is_it = |pool: &&Pool| pool.as_handle().addr() == handle.addr();
    let found = with(|pools| pools.all.iter().copied().find(is_it));
    found.ok_or(CuResult::INVALID_VALUE)
}

/// Called after a wait for this GPU: its pools free the empty memory above their threshold.
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

impl Pool {
    pub(crate) fn as_handle(&self) -> CuMemoryPool {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    pub(crate) fn handle_types(&self) -> u64 {
        self.handle_types
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Takes a part of the pool's memory, and more of the GPU's when it has no room.
    ///
    /// # Errors
    /// When the GPU, or the pool's greatest size, has no room.
    pub(crate) fn take(&self, bytes: u64) -> Done<Piece> {
        let bytes = stepped(bytes, PIECE_STEP)?;
        let mut state = self.state();
        let mut chunks = state.chunks.iter();
        let chunk = match chunks.position(|chunk| chunk.bytes - chunk.used >= bytes) {
            Some(chunk) => chunk,
            None => {
                let chunk = choices::pool_chunk();
                let grown = stepped(bytes, choices::granularity())?.max(chunk);
                let is_full = state.reserved + grown > self.max_bytes.max(chunk);
                refuse_if(self.max_bytes != 0 && is_full, CuResult::OUT_OF_MEMORY)?;
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

    fn on_board(&self) -> board::Kind {
        match self.sort {
            Sort::Managed => board::Kind::Managed,
            _ => board::Kind::Alloc,
        }
    }

    /// Takes device memory; if there is none, first frees the empty memory of this process's pools. Returns the
    /// amount taken.
    fn grow(&self, bytes: u64) -> Done<u64> {
        if self.sort == Sort::Host {
            return Ok(0);
        }
        let driver = driver::the()?;
        let take = || driver.take(self.gpu, bytes, self.on_board());
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
            driver.give(self.gpu, given, self.on_board());
        }
    }

    /// Notes that a block of the pool has ended.
    pub(crate) fn freed(&self, base: u64) {
        let piece = self.state().pieces.remove(&base);
        if let Some(piece) = piece {
            self.give(piece);
        }
    }

    /// Takes a block's memory out of the pool, for processes to hold together. Until this process frees the block, the
    /// pool's figures still count it: exporting an allocation does not change its pool's use.
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
        let State {
            used,
            used_high,
            reserved,
            reserved_high,
            ..
        } = *state;
        [used, used_high, reserved, reserved_high]
    }

    /// Resets the high marks to the present values: that of the used bytes, that of the reserved.
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
