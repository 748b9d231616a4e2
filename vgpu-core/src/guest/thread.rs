//! The state that we keep for each thread: where its stack stood, a charge under way, what it remembers of its
//! launches. It lies in room that the linker gave, begins as zeros and has no destructor.

use core::cell::Cell;
use core::ffi::c_int;
use core::mem::MaybeUninit;

use vgpu_abi::region::Charge;

use crate::base::arch::{THREAD_BYTES, stack_pointer, thread_block};

/// The state that we keep for each thread, in memory that begins as zeros. No destructor, so it works in threads
/// that are ending.
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// Where the stack stood when a rule was entered; 0 outside. A jump over us leaves it stale, and
    /// a stale mark is seen by comparing it with the stack as it is now: nothing has to be unwound.
    pub(crate) inside: Cell<usize>,
    /// Where the C library keeps this thread's `errno`; null until it was asked.
    errno: Cell<*mut c_int>,
    /// Hooked calls by group that are not yet added to the region, and how many calls there must be before they are.
    pub(crate) calls: [(Cell<u32>, Cell<u32>); 8],
    /// The context that was current when `device` was looked up, and the process epoch of then.
    pub(crate) context: Cell<u64>,
    /// See `context`.
    pub(crate) context_epoch: Cell<u32>,
    /// Region index of the device of `context`.
    pub(crate) device: Cell<u32>,
    /// Our own number of `context`.
    pub(crate) context_number: Cell<u64>,
    /// The position of the stack when `pending` was noted; 0: nothing is pending.
    pub(crate) pending_mark: Cell<usize>,
    /// A charge whose call has not come back yet.
    pub(crate) pending: Cell<MaybeUninit<Charge>>,
    /// Not 0: the C library calls us when this thread ends.
    pub(crate) is_watched: Cell<u32>,
    /// The thread's questions whether its work has ended.
    pub(crate) wait: Cell<ThreadWait>,
    /// The thread's memory of its launches.
    pub(crate) gate: Gate,
    /// The arbiter's grant that the thread has read last.
    pub(crate) grant: Cell<ReadGrant>,
}

const _: () = assert!(size_of::<Thread>() <= THREAD_BYTES);

/// Runs `f` with this thread's own state.
#[inline(always)]
pub(crate) fn thread<T>(f: impl FnOnce(&Thread) -> T) -> T {
    // SAFETY: this thread's own room, large enough and of which all zeros is a value; it lives as
    // long as the thread, and `f` cannot keep the reference.
    f(unsafe { &*thread_block().cast::<Thread>() })
}

/// This thread's memory of its launches, for the code of every launch: a closure for [`thread`] that is used in several
/// hooks would become a function that they call.
#[inline(always)]
pub(crate) fn gate() -> &'static Gate {
    // SAFETY: as above. The room lives as long as the thread, and the reference cannot leave the thread, since a `Gate` is
    // not `Sync`.
    unsafe { &(*thread_block().cast::<Thread>()).gate }
}

impl Thread {
    /// Whether this call comes from within a rule. Then the stack is below the mark.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        let mark = self.inside.get();
        mark != 0 && stack_pointer() < mark
    }

    #[inline]
    pub(crate) fn errno(&self) -> *mut c_int {
        if self.errno.get().is_null() {
            // SAFETY: the C library gives each thread an errno of its own, for as long as it lives.
            self.errno.set(unsafe { libc::__errno_location() });
        }
        self.errno.get()
    }
}

/// A thread's wait for its work by questions whether it has ended. All zeros: it does not wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadWait {
    /// The event or the stream that it asked first.
    pub(crate) what: u64,
    /// When it first and last heard that work has not ended, nanoseconds.
    pub(crate) since_ns: u64,
    pub(crate) last_ns: u64,
}

/// A grant that a thread has read, with all that it was read by: as long as that is the same, it is not read again (its
/// checksum alone takes 50 ns). All zeros: none was read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadGrant {
    /// See [`vgpu_abi::targets::TargetsMap::written`].
    pub(crate) written: (u64, u64),
    pub(crate) slot_generation: u64,
    pub(crate) slot: u16,
    /// The device plus one.
    pub(crate) device: u16,
    /// See [`vgpu_abi::targets::Grant::to_bits`].
    pub(crate) bits: u64,
}

/// A thread's memory of its launches, so that most of them look at nothing else. All zeros: no memory.
#[repr(C)]
pub(crate) struct Gate {
    /// The value of `launches::State::epoch` when the gate was opened, plus one; 0: closed.
    pub(crate) epoch: Cell<u64>,
    /// The process that opened it: a forked child's threads owe nothing.
    pub(crate) owner: Cell<u32>,
    pub(crate) limits: Cell<u64>,
    pub(crate) targets: Cell<u64>,
    /// The stream that it launched to last; `ANY` (`gate.rs`): every stream of every device is free.
    pub(crate) stream: Cell<u64>,
    /// The credit that is left for launches, nanoseconds; `FREE`: any launch may go.
    pub(crate) left_ns: Cell<u64>,
    /// The last launch and its cost, nanoseconds; looked up again on the slow way.
    pub(crate) key: Cell<u64>,
    pub(crate) cost: Cell<u64>,
    /// Launched since the slow way was last taken, nanoseconds.
    pub(crate) work_ns: Cell<u64>,
    /// The part of the lease beyond the amount that was wanted then, nanoseconds as the account counts them.
    pub(crate) more_ns: Cell<u64>,
    /// The weight of a measured nanosecond.
    pub(crate) scale: Cell<u32>,
    pub(crate) launches: Cell<u32>,
    pub(crate) untold: Cell<u32>,
    pub(crate) device: Cell<u32>,
    /// The stream's number plus one.
    pub(crate) place: Cell<u32>,
}
