//! Manners of a guest in somebody else's thread: what surrounds every rule of ours. Keeps `errno`,
//! contains panics, puts off cancellation, and knows a call from within our own code by where the
//! stack stands. Never surrounds the driver's call itself.

use core::cell::Cell;
use core::ffi::c_int;
use core::panic::AssertUnwindSafe;

use vgpu_abi::region::Charge;

use crate::arch::stack_pointer;

/// What a rule says before the driver is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict<T, R = cuda_api::CuResult> {
    /// Call the driver, then hand this to the `after` rule.
    Call(T),
    /// Call the driver; this call is none of our business.
    Pass,
    /// Do not call the driver; the caller gets this.
    Refuse(R),
}

/// What an `after` rule answers: nothing (the driver's result stands) or another result.
pub(crate) trait Answer<R> {
    fn or(self, result: R) -> R;
}

impl<R> Answer<R> for () {
    #[inline]
    fn or(self, result: R) -> R {
        result
    }
}

impl<R> Answer<R> for Option<R> {
    #[inline]
    fn or(self, result: R) -> R {
        self.unwrap_or(result)
    }
}

/// What we keep for each thread. No destructor, so it works in threads that are ending.
pub(crate) struct Thread {
    /// Where the stack stood when a rule was entered; 0 outside. A jump over us leaves it stale, and
    /// a stale mark is seen by comparing it with the stack as it is now: nothing has to be unwound.
    inside: Cell<usize>,
    /// Hooked calls by group that the region has not been told of yet, and how many it waits for.
    pub(crate) calls: [(Cell<u32>, Cell<u32>); 8],
    /// The context that was current when `device` was looked up, and the process epoch of then.
    pub(crate) context: Cell<u64>,
    /// See `context`.
    pub(crate) context_epoch: Cell<u32>,
    /// Region index of the device of `context`.
    pub(crate) device: Cell<u32>,
    /// Our own number of `context`.
    pub(crate) context_number: Cell<u64>,
    /// A charge whose call has not come back yet, and where the stack stood.
    pending: Cell<Option<(Charge, usize)>>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: Cell::new(0),
            calls: [const { (Cell::new(0), Cell::new(0)) }; 8],
            context: Cell::new(0),
            context_epoch: Cell::new(0),
            device: Cell::new(0),
            context_number: Cell::new(0),
            pending: Cell::new(None),
        }
    };
}

/// Runs `f` with this thread's own state.
#[inline]
pub(crate) fn thread<T>(f: impl FnOnce(&Thread) -> T) -> T {
    THREAD.with(f)
}

impl Thread {
    /// Are we called from within a rule of ours? Then the stack stands below the mark.
    #[inline]
    fn is_inside(&self) -> bool {
        let mark = self.inside.get();
        mark != 0 && stack_pointer() < mark
    }
}

/// Notes a charge that is to be confirmed or refunded when the driver's call comes back.
#[inline]
pub(crate) fn note_pending(charge: Charge) {
    thread(|thread| thread.pending.set(Some((charge, thread.inside.get()))));
}

/// The call has come back.
#[inline]
pub(crate) fn settle_pending() {
    thread(|thread| thread.pending.set(None));
}

/// A charge whose call was left by a jump or an exception: this call stands no deeper on the stack
/// than that one did, so it is not called by it.
#[inline]
pub(crate) fn take_left_behind() -> Option<Charge> {
    thread(|thread| match thread.pending.get() {
        Some((charge, mark)) if thread.inside.get() >= mark => {
            thread.pending.set(None);
            Some(charge)
        }
        _ => None,
    })
}

/// Is this thread within a rule of ours (so that the call comes from our own doing)?
#[inline]
pub(crate) fn is_inside() -> bool {
    thread(Thread::is_inside)
}

/// Runs the part of a hook that stands before the driver's call. A panic lets the call through.
///
/// Not inlined: the hook's own frame, which an exception may leave through, is to catch nothing.
#[inline(never)]
pub(crate) fn before<T: Copy, R: Copy>(rule: impl FnOnce() -> Verdict<T, R>) -> Verdict<T, R> {
    surround(rule).unwrap_or(Verdict::Pass)
}

/// Runs the part of a hook that stands after the driver's call. After a panic the driver's result
/// stands. Not inlined: see [`before`].
#[inline(never)]
pub(crate) fn after<A: Answer<R>, R: Copy>(result: R, rule: impl FnOnce() -> A) -> R {
    surround(rule).map_or(result, |answer| answer.or(result))
}

/// Runs a rule with our manners; `None` when we are inside one already, or when it panicked.
#[inline]
pub(crate) fn surround<T>(rule: impl FnOnce() -> T) -> Option<T> {
    thread(|thread| {
        if thread.is_inside() {
            return None;
        }
        thread.inside.set(stack_pointer());
        // SAFETY: the C library gives each thread an errno of its own, for as long as it lives.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let kept = unsafe { errno.read() };
        let cancellation = Cancellation::put_off();
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(rule));
        cancellation.allow();
        // SAFETY: as above.
        unsafe { errno.write(kept) };
        thread.inside.set(0);
        match outcome {
            Ok(value) => Some(value),
            Err(payload) => {
                // Dropping it would run code of whoever panicked.
                core::mem::forget(payload);
                None
            }
        }
    })
}

/// A cancelled thread unwinds from system calls; Rust's frames do not let that through.
struct Cancellation(c_int);

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, old: Option<&mut c_int>) -> c_int;
}

impl Cancellation {
    #[inline]
    fn put_off() -> Self {
        let mut old = 0;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, Some(&mut old));
        Self(old)
    }

    #[inline]
    fn allow(self) {
        if self.0 != PTHREAD_CANCEL_DISABLE {
            pthread_setcancelstate(self.0, None);
        }
    }
}

/// Makes panics of ours silent. The hook belongs to our own copy of the standard library (this is a
/// `cdylib`), so the host's own hook, if it is written in Rust, is another one.
pub(crate) fn silence_panics() {
    #[cfg(not(test))]
    std::panic::set_hook(Box::new(|_| {}));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_runs_once_and_not_within_itself() {
        let nested = surround(|| surround(|| 1));

        assert_eq!(nested, Some(None));
        assert_eq!(surround(|| 2), Some(2));
    }

    #[test]
    fn a_stale_mark_is_not_believed() {
        thread(|thread| thread.inside.set(stack_pointer() - 4096));

        assert_eq!(surround(|| 1), Some(1));
    }

    #[test]
    fn a_panic_before_lets_the_call_through_and_after_keeps_the_result() {
        let verdict = before(|| -> Verdict<(), u32> { panic!("in a rule") });
        let result = after(7, || -> () { panic!("in a rule") });

        assert_eq!(verdict, Verdict::Pass);
        assert_eq!(result, 7);
    }

    #[test]
    fn errno_is_kept() {
        // SAFETY: this thread's own errno.
        unsafe { *libc::__errno_location() = 42 };

        // SAFETY: a call that fails and sets errno.
        surround(|| unsafe { libc::close(-1) });

        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(42));
    }
}
