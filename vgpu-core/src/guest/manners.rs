//! Manners of a guest in another program's thread: the code around every rule. Keeps `errno`, contains panics, puts
//! off cancellation, and recognises a call from within the library's own code by the position of the stack. Never
//! surrounds the driver's call itself.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use vgpu_abi::region::Charge;

use crate::base::arch::stack_pointer;
use crate::guest::thread::{Thread, thread};

/// The verdict of a rule before the driver is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict<T, R = cuda_api::CuResult> {
    /// Call the driver, then hand this to the `after` rule.
    Call(T),
    /// Call the driver; no rule after it is needed.
    Pass,
    /// Do not call the driver; the caller gets this.
    Refuse(R),
}

/// The answer of an `after` rule: nothing (the driver's result is returned) or another result.
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

/// Notes a charge that is to be confirmed or refunded when the driver's call comes back.
#[inline]
pub(crate) fn note_pending(charge: Charge) {
    thread(|thread| {
        thread.pending.set(MaybeUninit::new(charge));
        thread.pending_mark.set(thread.inside.get());
    });
    watch_thread();
}

/// How far below the hook's own frame the rule before a call stands, in bytes: 48 to 432 for most hooks, 264 for an
/// allocation.
const RULE_BYTES: usize = 256;

/// The C library's number (plus one) under which it calls us when a thread ends; 0: none yet.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Asks the C library to call this when a thread ends. Once for a process and its children.
pub(crate) fn watch_threads(at_thread_end: unsafe extern "C" fn(*mut c_void)) {
    let mut key = 0;
    // SAFETY: the C library writes to the local `key` alone; the function stays, since the library is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(at_thread_end)) } == 0 {
        // Relaxed: a number guards no memory.
        KEY.store(key + 1, Ordering::Relaxed);
    }
}

/// This thread holds something that is to be given back when it ends.
#[inline]
pub(crate) fn watch_thread() {
    thread(|thread| {
        if thread.is_watched.get() == 0 {
            watch(thread);
        }
    });
}

#[cold]
fn watch(thread: &Thread) {
    // Relaxed: as above.
    if let Some(key) = KEY.load(Ordering::Relaxed).checked_sub(1) {
        // Any value but null: only the call at the thread's end matters.
        let value = core::ptr::from_ref(thread).cast();
        // SAFETY: a key that was made above.
        let done = unsafe { libc::pthread_setspecific(key, value) };
        thread.is_watched.set(u32::from(done == 0));
    }
}

/// A thread ends: no call of it is under way any more. The charge that it left behind, if it was
/// cancelled inside the driver.
pub(crate) fn thread_ended() -> Option<Charge> {
    thread(|thread| {
        thread.is_watched.set(0);
        let is_pending = thread.pending_mark.replace(0) != 0;
        // SAFETY: written before the mark was.
        is_pending.then(|| unsafe { thread.pending.get().assume_init() })
    })
}

/// The call has come back.
#[inline]
pub(crate) fn settle_pending() {
    thread(|thread| thread.pending_mark.set(0));
}

/// As [`note_pending`], from a short rule on a thread whose end the C library will report ([`is_watched`]). Calls nothing.
///
/// The mark is where that of [`note_pending`] would be: [`take_left_behind`] compares it with the place of a rule.
#[inline(always)]
pub(crate) fn note_pending_at_once(charge: Charge) {
    thread(|thread| {
        thread.pending.set(MaybeUninit::new(charge));
        thread
            .pending_mark
            .set(thread.inside.get().saturating_sub(RULE_BYTES));
    });
}

/// Will the C library report the end of this thread?
#[inline(always)]
pub(crate) fn is_watched() -> bool {
    thread(|thread| thread.is_watched.get() != 0)
}

/// Has a charge been noted that is not settled?
#[inline(always)]
pub(crate) fn is_any_pending() -> bool {
    thread(|thread| thread.pending_mark.get() != 0)
}

/// A charge whose call was left by a jump or an exception: this call is no deeper on the stack than that one was, so
/// it is not called by it. Whether the driver gave what was asked before the jump is not known, so the charge is to
/// be kept until it is measured.
#[inline(always)]
pub(crate) fn take_left_behind(keep: impl FnOnce(Charge)) {
    thread(|thread| {
        let mark = thread.pending_mark.get();
        if mark != 0 && thread.inside.get() >= mark {
            thread.pending_mark.set(0);
            // SAFETY: written before the mark was.
            keep(unsafe { thread.pending.get().assume_init() });
        }
    });
}

/// Whether this thread is within a rule, so that the call comes from the library itself.
#[inline]
pub(crate) fn is_inside() -> bool {
    thread(Thread::is_inside)
}

/// Runs the part of a hook before the driver's call, and writes its verdict; a panic leaves `verdict` as it is.
///
/// Not inlined: the hook's own frame, which an exception may leave through, is to catch nothing.
#[inline(never)]
pub(crate) fn before<T: Copy, R: Copy>(
    verdict: &mut Verdict<T, R>,
    rule: impl FnOnce() -> Verdict<T, R>,
) {
    surround(|| *verdict = rule());
}

/// Runs the part of a hook after the driver's call. After a panic the driver's result is returned. Not inlined: see
/// [`before`].
#[inline(never)]
pub(crate) fn after<A: Answer<R>, R: Copy>(result: R, rule: impl FnOnce() -> A) -> R {
    let mut answer = result;
    surround(|| answer = rule().or(result));
    answer
}

/// Runs a rule with our manners; not when we are inside one already. The rule writes its
/// answer itself: an answer that came back through `catch_unwind` would be copied on every call.
#[inline(always)]
pub(crate) fn surround(rule: impl FnOnce()) {
    thread(|thread| {
        if thread.is_inside() {
            return;
        }
        thread.inside.set(stack_pointer());
        let errno = thread.errno();
        // SAFETY: this thread's own errno.
        let kept = unsafe { errno.read() };
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(rule));
        // SAFETY: this thread's own errno.
        unsafe { errno.write(kept) };
        thread.inside.set(0);
        if let Err(payload) = outcome {
            // Dropping the payload would run code of the rule that panicked.
            core::mem::forget(payload);
        }
    });
}

/// Runs a short rule in the hook's own frame, without [`before`] or [`after`]: one that calls neither the driver nor the C
/// library (but for its clock), waits for nothing and has nothing that panics. `None`: the rule has no answer, or this
/// thread is within a rule (or a jump left its mark stale); then the long way decides.
#[inline(always)]
pub(crate) fn at_once<T>(rule: impl FnOnce() -> Option<T>) -> Option<T> {
    thread(|thread| {
        if thread.inside.get() != 0 {
            return None;
        }
        thread.inside.set(stack_pointer());
        // A signal's handler that runs meanwhile finds the mark.
        compiler_fence(Ordering::SeqCst);
        let answer = rule();
        compiler_fence(Ordering::SeqCst);
        thread.inside.set(0);
        answer
    })
}

/// As [`at_once`], for a short rule that asks the driver a question which it answers without waiting: keeps errno, too.
#[inline(always)]
pub(crate) fn ask_at_once<T>(rule: impl FnOnce() -> Option<T>) -> Option<T> {
    at_once(|| {
        let errno = thread(Thread::errno);
        // SAFETY: this thread's own errno.
        let kept = unsafe { errno.read() };
        let answer = rule();
        // SAFETY: this thread's own errno.
        unsafe { errno.write(kept) };
        answer
    })
}

/// Runs what may call the C library's points of cancellation: a cancelled thread unwinds from there,
/// and Rust's frames do not let that through. (The code that every call runs has no such point: the region and the
/// log make bare system calls.)
pub(crate) fn uncancelled<T>(work: impl FnOnce() -> T) -> T {
    const DISABLED: c_int = 1;
    let mut old = 0;
    pthread_setcancelstate(DISABLED, Some(&mut old));
    let answer = work();
    pthread_setcancelstate(old, None);
    answer
}

unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, old: Option<&mut c_int>) -> c_int;
}

/// Makes the library's panics silent. The hook belongs to our own copy of the standard library (this is a `cdylib`),
/// so the host's own hook, if it is written in Rust, is another one.
pub(crate) fn silence_panics() {
    #[cfg(not(test))]
    std::panic::set_hook(Box::new(|_| {}));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not inlined: a call within a rule comes by way of the driver, so it is deeper on the stack.
    #[inline(never)]
    fn runs() -> bool {
        let mut ran = false;
        surround(|| ran = true);
        ran
    }

    #[test]
    fn a_rule_runs_once_and_not_within_itself() {
        let mut nested = None;
        surround(|| nested = Some(runs()));

        assert_eq!(nested, Some(false));
        assert!(runs());
    }

    #[test]
    fn a_short_rule_runs_outside_of_rules_only() {
        let mut within = Some(());
        surround(|| within = at_once(|| Some(())));
        let mut nested = Some(Some(()));
        let alone = at_once(|| {
            nested = Some(at_once(|| Some(())));
            Some(runs())
        });

        assert_eq!(within, None);
        assert_eq!(nested, Some(None));
        assert_eq!(alone, Some(false));
        assert_eq!(at_once(|| Some(())), Some(()));
        assert_eq!(at_once(|| None::<()>), None);
        assert!(runs());
    }

    #[test]
    fn a_short_rule_leaves_a_stale_mark_to_the_long_way() {
        thread(|thread| thread.inside.set(stack_pointer() - 4096));

        assert_eq!(at_once(|| Some(())), None);

        assert!(runs());
        assert_eq!(at_once(|| Some(())), Some(()));
    }

    #[test]
    fn a_short_rule_that_asks_the_driver_keeps_errno() {
        let set = |value| {
            // SAFETY: this thread's own errno.
            thread(|thread| unsafe { thread.errno().write(value) });
        };
        set(42);

        let answer = ask_at_once(|| {
            set(7);
            Some(runs())
        });

        assert_eq!(answer, Some(false));
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(42));
        assert!(runs());
    }

    #[test]
    fn a_stale_mark_is_not_believed() {
        thread(|thread| thread.inside.set(stack_pointer() - 4096));

        assert!(runs());
    }

    #[test]
    fn panic_in_a_rule_changes_neither_the_call_nor_its_result() {
        let mut verdict = Verdict::<(), u32>::Pass;
        before(&mut verdict, || panic!("in a rule"));
        let result = after(7, || -> () { panic!("in a rule") });

        assert_eq!(verdict, Verdict::Pass);
        assert_eq!(result, 7);
    }

    #[test]
    fn errno_is_kept() {
        let set = |value| {
            // SAFETY: this thread's own errno.
            thread(|thread| unsafe { thread.errno().write(value) });
        };
        set(42);

        surround(|| set(7));

        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(42));
    }
}
