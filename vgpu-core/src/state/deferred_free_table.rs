//! The table of deferred frees: memory that the program freed in the order of a stream, and that the driver
//! takes back when the stream gets there. `holdings/deferred_free_charges.rs` fills and empties it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::base::growing::{self, Growing};
use crate::base::lock::Guarded;

/// Every deferred free of this process. Held while the library records, queries and destroys its own events, which
/// are calls of the driver.
pub(crate) type DeferredFreeTable = Guarded<Growing<DeferredFree>>;

/// The memory that one stream frees, in two parts: an event stands behind each, and the second part begins before the
/// stream has reached the first event. So the charge of a stream that never idles falls, too.
#[repr(C)]
pub(crate) struct DeferredFree {
    pub(crate) state: AtomicU32,
    pub(crate) device: AtomicU32,
    /// 0: the stream is not known any more, so no further free is added.
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
unsafe impl growing::Element for DeferredFree {}

/// `DeferredFree::state`: unused; memory of the device; managed memory past the share; a shared object; a
/// hold of an object of this process (`objects.rs`).
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

impl DeferredFree {
    pub(crate) fn state(&self) -> u32 {
        // Relaxed: under the lock of the table.
        self.state.load(Ordering::Relaxed)
    }

    pub(crate) fn set_state(&self, state: u32) {
        // Relaxed: under the lock of the table.
        self.state.store(state, Ordering::Relaxed);
    }
}
