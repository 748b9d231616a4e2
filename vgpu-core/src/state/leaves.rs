//! The table of what streams free: a value in the ledger. `leaving.rs` fills it and empties it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::base::growing::{self, Growing};
use crate::base::lock::Lock;

/// What was freed and may not be gone yet.
#[repr(C)]
pub(crate) struct Leaving {
    pub(crate) lock: Lock,
    pub(crate) places: Growing<Leaf>,
}

/// What one stream frees, in two parts: an event stands behind each, and the second begins while the
/// first is still on its way. So a stream that never rests gives back all the same.
#[repr(C)]
pub(crate) struct Leaf {
    pub(crate) state: AtomicU32,
    pub(crate) device: AtomicU32,
    /// 0: frees of other streams' memory are not added, since the stream is not known any more.
    pub(crate) stream: AtomicU64,
    /// Our number of the stream's context.
    pub(crate) stream_owner: AtomicU64,
    /// The stream's context.
    pub(crate) context: AtomicU64,
    /// Our number of the context that the memory dies with.
    pub(crate) owner: AtomicU64,
    pub(crate) bytes: [AtomicU64; 2],
    pub(crate) events: [AtomicU64; 2],
    pub(crate) key: [AtomicU64; 2],
}

// SAFETY: atomics only, of which zeros are values; state 0 is an unused place.
unsafe impl growing::Place for Leaf {}

/// `Leaf::state`: nothing; memory of the device; managed memory past the share; a shared object; a hold
/// of an object of this process (`objects.rs`).
pub(crate) const UNUSED: u32 = 0;

pub(crate) const PLAIN: u32 = 1;

pub(crate) const PAST: u32 = 2;

pub(crate) const SHARED: u32 = 3;

pub(crate) const HOLD: u32 = 4;

pub(crate) fn get(word: &AtomicU64) -> u64 {
    // Relaxed: under the lock of the table.
    word.load(Ordering::Relaxed)
}

pub(crate) fn set(word: &AtomicU64, value: u64) {
    // Relaxed: under the lock of the table.
    word.store(value, Ordering::Relaxed);
}

impl Leaf {
    pub(crate) fn state(&self) -> u32 {
        // Relaxed: under the lock of the table.
        self.state.load(Ordering::Relaxed)
    }

    pub(crate) fn set_state(&self, state: u32) {
        // Relaxed: under the lock of the table.
        self.state.store(state, Ordering::Relaxed);
    }
}
