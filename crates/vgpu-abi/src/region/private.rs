//! A process's knowledge about itself: its slot, its own sum of charges, its in-process locks. All
//! of it lies in memory that a forked child finds zeroed, so a child starts with nothing of its
//! parent's and no lock that a lost thread holds.
//!
//! Never shared with another process.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::layout::{MAX_DEVICES, MAX_SHARED};
use crate::map::Zeroed;
use crate::sys;

/// Bounded waits for another party end after this.
pub(super) const MOST_WAIT_NS: u64 = 100_000_000;

/// How long one request has waited, over all the things that it waits for.
pub(crate) struct Wait {
    most_ns: u64,
    deadline_ns: u64,
    rounds: u32,
    /// Whether it has been counted that this wait ran out.
    pub(super) counted: bool,
}

impl Wait {
    /// A wait that may last 100 ms. The clock is read when there is something to wait for.
    pub(super) fn new() -> Self {
        #[cfg(all(feature = "crash-points", not(loom)))]
        if let Some(most_ns) = crate::crash::most_wait_ns() {
            return Self::at_most(most_ns);
        }
        Self::at_most(MOST_WAIT_NS)
    }

    pub(super) fn at_most(most_ns: u64) -> Self {
        Self {
            most_ns,
            deadline_ns: 0,
            rounds: 0,
            counted: false,
        }
    }

    /// The time left, nanoseconds; 0 when the time is over.
    fn left_ns(&mut self) -> u64 {
        let now = sys::now_ns();
        if self.deadline_ns == 0 {
            self.deadline_ns = now.saturating_add(self.most_ns);
        }
        self.deadline_ns.saturating_sub(now)
    }

    /// Lets others go on: first the rest of a time slice, then sleeps that grow to a tenth of a
    /// millisecond. False when the time is over.
    pub(super) fn pause(&mut self) -> bool {
        let left = self.left_ns();
        if left == 0 {
            return false;
        }
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds <= 8 {
            sys::give_way();
        } else {
            let nap = 10_000_u64 << (self.rounds - 9).min(4);
            sys::sleep_ns(nap.min(100_000).min(left));
        }
        true
    }
}

/// A lock among the threads of this process: a futex word with its owner's thread id. A lock whose owner has ended,
/// or jumped out of the library's code, is taken over.
#[repr(transparent)]
pub(super) struct ThreadLock(AtomicU32);

const WAITERS: u32 = 1 << 31;

impl ThreadLock {
    /// False when the time is over.
    pub(super) fn lock(&self, wait: &mut Wait) -> bool {
        let me = sys::thread_id();
        // Acquire: sees what the last owner wrote.
        if self
            .0
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            return true;
        }
        loop {
            // Relaxed: the exchange below counts.
            let seen = self.0.load(Ordering::Relaxed);
            let owner = seen & !WAITERS;
            if owner == 0 || owner == me || !sys::thread_exists(owner) {
                let mine = me | WAITERS;
                // Acquire: as above.
                let taken =
                    self.0
                        .compare_exchange(seen, mine, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    return true;
                }
                continue;
            }
            let left = wait.left_ns();
            if left == 0 {
                return false;
            }
            let marked = owner | WAITERS;
            // Relaxed: a mark for the owner; it guards nothing.
            let mark = self
                .0
                .compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed);
            if mark.is_ok() || seen == marked {
                // Not all of it: an owner that dies asleep wakes no thread.
                sys::futex_wait(&self.0, marked, left.min(5_000_000));
            }
        }
    }

    pub(super) fn unlock(&self) {
        // Release: the next owner sees what this thread wrote.
        if self.0.swap(0, Ordering::Release) & WAITERS != 0 {
            sys::futex_wake(&self.0);
        }
    }
}

/// This process's own sum of its charges on a device, which it writes into a new slot when its old one was taken
/// away.
#[repr(C, align(64))]
pub(super) struct OwnUse {
    /// A charge word, tagged as those in the slot.
    pub(super) confirmed: AtomicU64,
    pub(super) contexts: AtomicU64,
    pub(super) modules: AtomicU64,
}

/// A shared object that this process holds, at the object's place in the table.
#[repr(C)]
pub(super) struct OwnHold {
    pub(super) key: [AtomicU64; 2],
    pub(super) bytes: AtomicU64,
    pub(super) device: AtomicU32,
    /// How often it is held; 0 is not.
    pub(super) count: AtomicU32,
}

/// All of it.
#[repr(C, align(64))]
pub(super) struct Private {
    /// The slot plus one, and from bit 11 on its generation; 0 is no slot.
    pub(super) packed: AtomicU64,
    /// When `tick` last looked.
    pub(super) ticked_ns: AtomicU64,
    /// Whether a shared object waits to be let go of.
    pub(super) sweep: AtomicU32,
    /// Whether the words below it are filled.
    pub(super) known: AtomicU32,
    pub(super) start_time: AtomicU64,
    pub(super) start_stack: AtomicU64,
    pub(super) pid_namespace: AtomicU64,
    /// Joining, reaping, ticking.
    pub(super) slot_lock: ThreadLock,
    /// The shared-object table.
    pub(super) shared_lock: ThreadLock,
    /// The descriptor.
    pub(super) descriptor_lock: ThreadLock,
    /// The slow way, by device.
    pub(super) device_locks: [ThreadLock; MAX_DEVICES],
    pub(super) own: [OwnUse; MAX_DEVICES],
    pub(super) holds: [OwnHold; MAX_SHARED],
}

#[allow(unsafe_code, reason = "the promise that zeros are a value")]
// SAFETY: the type and all types in it are `repr(C)` or transparent over atomics, for which zeros
// are a value; its alignment is 64.
unsafe impl Zeroed for Private {}

impl Private {
    /// Brings it to the state that a forked child finds where the kernel can wipe; for kernels that cannot.
    pub(super) fn reset(&self) {
        // Relaxed: a child has one thread.
        let order = Ordering::Relaxed;
        for lock in [&self.slot_lock, &self.shared_lock, &self.descriptor_lock] {
            lock.0.store(0, order);
        }
        for lock in &self.device_locks {
            lock.0.store(0, order);
        }
        for own in &self.own {
            own.confirmed.store(0, order);
            own.contexts.store(0, order);
            own.modules.store(0, order);
        }
        for hold in &self.holds {
            hold.count.store(0, order);
        }
        self.known.store(0, order);
        self.sweep.store(0, order);
        self.ticked_ns.store(0, order);
        self.packed.store(0, order);
    }
}
