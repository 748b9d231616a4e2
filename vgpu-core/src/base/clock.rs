//! Time for everything that compute control decides: the machine's monotonic clock, the same for all
//! processes of a host, and sleeps on it. Both are bare of cancellation points. Built with the feature
//! `virtual-clock` (tests only), the simulated driver's clock stands in for it, so that a test's time is
//! exact; a product has no way to another clock, since a tenant could set it.

/// Nanoseconds of a clock that only goes forward.
#[inline]
pub(crate) fn now_ns() -> u64 {
    #[cfg(feature = "virtual-clock")]
    if let Some(now) = simulated::now_ns() {
        return now;
    }
    monotonic_ns()
}

/// Sleeps so long, or a little longer, or until a signal comes.
pub(crate) fn sleep_ns(ns: u64) {
    #[cfg(feature = "virtual-clock")]
    if simulated::sleep_ns(ns) {
        return;
    }
    let nap = libc::timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    };
    // A bare system call: the C library's function is a point of cancellation.
    // SAFETY: reads one timespec; what is left of the time after a signal is of no interest.
    unsafe {
        libc::syscall(
            libc::SYS_nanosleep,
            &raw const nap,
            core::ptr::null::<libc::timespec>(),
        )
    };
}

#[inline]
fn monotonic_ns() -> u64 {
    nanoseconds(read(libc::CLOCK_MONOTONIC))
}

/// Nanoseconds since 1970, by the machine's wall clock.
pub(crate) fn unix_ns() -> u64 {
    nanoseconds(read(libc::CLOCK_REALTIME))
}

#[inline]
fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// What a clock of the system says.
#[inline]
pub(crate) fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `struct timespec` to `now`, which is one.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now
}

#[cfg(feature = "virtual-clock")]
mod simulated {
    use core::ffi::{CStr, c_void};
    use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

    use crate::base::elf;

    static NOW: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    static SLEEP_UNTIL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// 0: not looked for, 1: found.
    static STATE: AtomicU32 = AtomicU32::new(0);

    fn find() -> bool {
        // Acquire: the addresses were stored before.
        if STATE.load(Ordering::Acquire) == 1 {
            return true;
        }
        let of = |name: &CStr| elf::first(|object| object.find(name));
        let (Some(now), Some(sleep)) = (of(c"vgpuSimNow"), of(c"vgpuSimSleepUntil")) else {
            return false;
        };
        // Relaxed: the state publishes them.
        NOW.store(now, Ordering::Relaxed);
        SLEEP_UNTIL.store(sleep, Ordering::Relaxed);
        // Release: a thread that sees the state sees the addresses.
        STATE.store(1, Ordering::Release);
        true
    }

    pub(super) fn now_ns() -> Option<u64> {
        if !find() {
            return None;
        }
        // Relaxed: stored before the state.
        let now = NOW.load(Ordering::Relaxed);
        // SAFETY: the simulated driver defines it so.
        let now = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(now) };
        Some(now())
    }

    pub(super) fn sleep_ns(ns: u64) -> bool {
        let Some(now) = now_ns() else { return false };
        // Relaxed: stored before the state.
        let sleep = SLEEP_UNTIL.load(Ordering::Relaxed);
        // SAFETY: the simulated driver defines it so.
        let sleep = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn(u64)>(sleep) };
        sleep(now.saturating_add(ns));
        true
    }
}
