//! Locks for a guest: bounded waits, no allocation, no poison. All zeros is unlocked, so memory that a fork
//! wipes holds no lock.
//!
//! [`Guarded`] owns what it protects. [`Lock`] and [`ProcessLock`] own nothing: they order a change of words
//! that other threads read without a lock, or work that happens once.
//!
//! The program's own call of the driver is never made while one of these locks is held: an exception or a
//! jump may leave that call, and the lock would stay held. The library's own calls (`driver::query`) cannot be left
//! that way, and a lock whose doc says so is held across such calls. Other threads may then wait as long as the
//! driver takes; a wait gives up after ten seconds at most.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::base::clock;

const FREE: u32 = 0;
const HELD: u32 = 1;

/// How long a caller waits that would lose a charge or a refund by giving up. The holder is another thread
/// of this process and releases the lock as soon as it runs; the wait ends even if that thread has ended.
const LONGEST_WAIT_MS: i64 = 10_000;

/// How long a caller waits that loses nothing by giving up.
const BRIEF_WAIT_MS: i64 = 100;

/// A lock without data, mostly for sections of some tens of nanoseconds: a waiting thread spins, yields, then
/// sleeps in short steps, so a release costs one store and no system call. Lives in memory that a forked
/// child sees as zeros.
#[repr(transparent)]
pub(crate) struct Lock(AtomicU32);

/// The lock is held until this is dropped.
pub(crate) struct LockGuard<'a>(&'a Lock);

impl Lock {
    #[cfg(test)]
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Waits up to ten seconds; `None` when that was not enough.
    #[inline]
    pub(crate) fn hold(&self) -> Option<LockGuard<'_>> {
        if self.take() {
            Some(LockGuard(self))
        } else {
            self.wait(LONGEST_WAIT_MS)
        }
    }

    /// Waits up to 100 ms; `None` when that was not enough.
    pub(crate) fn hold_briefly(&self) -> Option<LockGuard<'_>> {
        if self.take() {
            Some(LockGuard(self))
        } else {
            self.wait(BRIEF_WAIT_MS)
        }
    }

    /// Does not wait; `None` when another thread holds it.
    #[inline]
    pub(crate) fn try_hold(&self) -> Option<LockGuard<'_>> {
        self.take().then(|| LockGuard(self))
    }

    #[inline]
    fn take(&self) -> bool {
        // Acquire: sees what the last holder wrote under the lock.
        self.0
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[cold]
    fn wait(&self, longest_ms: i64) -> Option<LockGuard<'_>> {
        let mut looks = 0u32;
        let mut deadline = None;
        loop {
            // Relaxed: a look, before the exchange that counts.
            if self.0.load(Ordering::Relaxed) == FREE && self.take() {
                return Some(LockGuard(self));
            }
            looks += 1;
            if looks < 200 {
                core::hint::spin_loop();
                continue;
            }
            let now = milliseconds();
            if now >= *deadline.get_or_insert(now + longest_ms) {
                return None;
            }
            pause(looks);
        }
    }
}

impl Drop for LockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: the next holder sees what we wrote.
        self.0.0.store(FREE, Ordering::Release);
    }
}

/// A value and the lock that protects it. The value is reached only through a [`Guard`]. All zeros is
/// unlocked; whether it is also a value of `T` is for `T` to say.
#[repr(C)]
pub(crate) struct Guarded<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a guard, of which the lock gives out one at a time.
unsafe impl<T: Send> Sync for Guarded<T> {}

/// The value of a [`Guarded`], whose lock is held until this is dropped.
pub(crate) struct Guard<'a, T> {
    value: &'a UnsafeCell<T>,
    _held: LockGuard<'a>,
}

impl<T> Guarded<T> {
    #[cfg(test)]
    pub(crate) const fn new(value: T) -> Self {
        Self {
            lock: Lock::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits up to ten seconds; `None` when that was not enough.
    #[inline]
    pub(crate) fn hold(&self) -> Option<Guard<'_, T>> {
        self.guard(self.lock.hold())
    }

    /// Waits up to 100 ms; `None` when that was not enough.
    #[inline]
    pub(crate) fn hold_briefly(&self) -> Option<Guard<'_, T>> {
        self.guard(self.lock.hold_briefly())
    }

    /// Does not wait; `None` when another thread holds it.
    #[inline]
    pub(crate) fn try_hold(&self) -> Option<Guard<'_, T>> {
        self.guard(self.lock.try_hold())
    }

    #[inline]
    fn guard<'a>(&'a self, held: Option<LockGuard<'a>>) -> Option<Guard<'a, T>> {
        held.map(|held| Guard {
            value: &self.value,
            _held: held,
        })
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock of this cell, and only a guard reaches into it.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock of this cell, and `&mut self` is exclusive.
        unsafe { &mut *self.value.get() }
    }
}

/// Lets the holder run: first the rest of a time slice, then 50 µs.
fn pause(looks: u32) {
    // Bare system calls: the C library's functions are points of cancellation.
    if looks < 210 {
        // SAFETY: takes nothing.
        unsafe { libc::syscall(libc::SYS_sched_yield) };
        return;
    }
    let nap = libc::timespec {
        tv_sec: 0,
        tv_nsec: 50_000,
    };
    // SAFETY: reads one timespec; what is left of the time is of no interest.
    unsafe {
        libc::syscall(
            libc::SYS_nanosleep,
            &raw const nap,
            core::ptr::null::<libc::timespec>(),
        )
    };
}

/// Sleeps half a millisecond.
pub(crate) fn nap() {
    let nap = libc::timespec {
        tv_sec: 0,
        tv_nsec: 500_000,
    };
    // SAFETY: reads one timespec; what is left of the time is of no interest.
    unsafe {
        libc::syscall(
            libc::SYS_nanosleep,
            &raw const nap,
            core::ptr::null::<libc::timespec>(),
        )
    };
}

/// A lock for memory that no fork wipes, and for work that happens once. It names the process that holds it,
/// so a forked child recognises a lock that a thread of its parent held at the fork, and takes it over.
pub(crate) struct ProcessLock(AtomicU32);

/// The lock is held until this is dropped.
pub(crate) struct HeldByProcess<'a>(&'a ProcessLock);

impl ProcessLock {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Waits up to `longest_ms` for another thread of this process; takes it over from a process
    /// that this one was forked from.
    pub(crate) fn hold(&self, longest_ms: i64) -> Option<HeldByProcess<'_>> {
        let me = std::process::id();
        let deadline = milliseconds() + longest_ms;
        loop {
            // Acquire: sees what the last holder wrote under the lock.
            let Err(holder) =
                self.0
                    .compare_exchange(FREE, me, Ordering::Acquire, Ordering::Acquire)
            else {
                return Some(HeldByProcess(self));
            };
            if holder != me {
                // Acquire: as above; of several threads of a forked child one takes it over.
                let taken =
                    self.0
                        .compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    return Some(HeldByProcess(self));
                }
                continue;
            }
            let left = deadline - milliseconds();
            if left <= 0 {
                return None;
            }
            futex_wait(&self.0, holder, left.min(5));
        }
    }
}

impl Drop for HeldByProcess<'_> {
    fn drop(&mut self) {
        // Release: the next holder sees what we wrote.
        self.0.0.store(FREE, Ordering::Release);
        futex_wake_one(&self.0.0);
    }
}

/// Milliseconds of a clock that only goes forward.
pub(crate) fn milliseconds() -> i64 {
    let now = clock::read(libc::CLOCK_MONOTONIC_COARSE);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// Sleeps for this many milliseconds. No cancellation point.
pub(crate) fn sleep_ms(ms: u64) {
    futex_wait(&AtomicU32::new(0), 0, i64::try_from(ms).unwrap_or(0));
}

fn futex_wait(word: &AtomicU32, expected: u32, longest_ms: i64) {
    let timeout = libc::timespec {
        tv_sec: longest_ms / 1000,
        tv_nsec: longest_ms % 1000 * 1_000_000,
    };
    // SAFETY: the word lives as long as the reference; a bare system call is no cancellation point.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            &raw const timeout,
        )
    };
}

fn futex_wake_one(word: &AtomicU32) {
    // SAFETY: the word lives as long as the reference; a wake-up reads no memory and is harmless when no thread waits.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarded_value_changes_one_thread_at_a_time() {
        let sum = Guarded::new(0_u64);

        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *sum.hold().unwrap() += 1;
                    }
                });
            }
        });

        assert_eq!(*sum.hold().unwrap(), 40_000);
    }

    #[test]
    fn guard_releases_its_lock() {
        let value = Guarded::new(1);
        let held = value.try_hold();
        assert!(held.is_some() && value.try_hold().is_none());

        drop(held);

        assert!(value.try_hold().is_some());
    }

    #[test]
    fn a_wait_ends() {
        let lock = Lock::new();
        let _held = lock.hold();

        assert!(lock.hold_briefly().is_none());
    }

    #[test]
    fn a_lock_that_a_fork_left_behind_is_taken_over() {
        let lock = ProcessLock(AtomicU32::new(std::process::id() + 1));

        assert!(lock.hold(0).is_some());
    }
}
