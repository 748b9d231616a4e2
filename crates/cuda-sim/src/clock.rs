//! The board's time: the machine's monotonic clock, or a word in shared memory that tests move.
//!
//! Every process on the board reads the same clock, and so can a library under test: the word is at a fixed place in
//! the file (see [`ClockWords`]). Never sleeps longer than asked, never reads the wall clock to decide anything.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::setting::BadSetting;

/// The source of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockKind {
    /// `CLOCK_MONOTONIC`, the same for all processes of the machine.
    #[default]
    Real,
    /// Stands still until a test calls `Clock::advance`.
    Virtual,
    /// Stands still while programs compute; a process that waits for the GPU moves it to the next thing
    /// that happens on the board. So a program runs at once, and its times are exact.
    Jump,
    /// The same for several processes and threads: moves only when every thread that takes part waits
    /// for the clock or the GPU, and then to the next moment that one of them waits for.
    Lockstep,
}

impl ClockKind {
    /// Reads the value of `VGPU_SIM_CLOCK`.
    ///
    /// # Errors
    /// With what was read and what is accepted.
    pub fn parse(text: &str) -> Result<Self, BadSetting> {
        match text {
            "real" | "" => Ok(Self::Real),
            "virtual" => Ok(Self::Virtual),
            "jump" => Ok(Self::Jump),
            "lockstep" => Ok(Self::Lockstep),
            other => Err(BadSetting::value(
                "VGPU_SIM_CLOCK",
                other,
                "real, virtual, jump or lockstep",
            )),
        }
    }

    fn of(word: u32) -> Self {
        match word {
            1 => Self::Virtual,
            2 => Self::Jump,
            3 => Self::Lockstep,
            _ => Self::Real,
        }
    }

    fn word(self) -> u32 {
        match self {
            Self::Real => 0,
            Self::Virtual => 1,
            Self::Jump => 2,
            Self::Lockstep => 3,
        }
    }
}

/// The clock as it lies in the board's `exec` file, at byte `exec::CLOCK_OFFSET`.
///
/// | offset | type | meaning |
/// |---|---|---|
/// | 0 | u32 | 0 real, 1 virtual, 2 jump, 3 lockstep |
/// | 4 | u32 | counts changes of the word below; a futex that is woken at each, but in lockstep |
/// | 8 | u64 | nanoseconds, when not real |
#[repr(C)]
#[derive(Debug)]
pub struct ClockWords {
    kind: AtomicU32,
    pub(crate) changes: AtomicU32,
    pub(crate) now_ns: AtomicU64,
}

/// The start of a virtual clock: not zero, which some callers treat as "never".
pub const START_NS: u64 = 1_000_000_000;

impl ClockWords {
    /// Sets the kind, once, before another process looks.
    pub(crate) fn init(&self, kind: ClockKind) {
        self.now_ns.store(START_NS, Ordering::SeqCst);
        self.kind.store(kind.word(), Ordering::SeqCst);
    }

    pub(crate) fn kind(&self) -> ClockKind {
        // Relaxed: written once, before the file's magic was published.
        ClockKind::of(self.kind.load(Ordering::Relaxed))
    }

    pub(crate) fn now(&self) -> u64 {
        match self.kind() {
            ClockKind::Real => monotonic_ns(),
            ClockKind::Virtual | ClockKind::Jump | ClockKind::Lockstep => {
                self.now_ns.load(Ordering::SeqCst)
            }
        }
    }

    /// The word that a clock which is not real counts in.
    pub(crate) fn word(&self) -> &AtomicU64 {
        &self.now_ns
    }

    /// Says that something happened that a waiter may look at.
    pub(crate) fn announce(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        futex_wake_all(&self.changes);
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// `CLOCK_REALTIME` in nanoseconds since 1970.
pub fn wall_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

fn clock_ns(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a timespec of ours; the call only writes to it.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Sleeps for this long, or less if a signal comes; not a point at which a thread can be cancelled.
pub fn sleep_real(ns: u64) {
    let word = AtomicU32::new(0);
    futex_wait(&word, 0, Duration::from_nanos(ns));
}

/// Waits on a shared futex word while it holds `seen`. It is the raw call, because `nanosleep` and
/// `pthread_cond_wait` would be points at which the program's threads can be cancelled inside us.
pub(crate) fn futex_wait(word: &AtomicU32, seen: u32, longest: Duration) {
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(longest.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(longest.subsec_nanos()),
    };
    // SAFETY: the word outlives the call, the timeout is ours; the kernel reads both.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            seen,
            &raw const timeout,
            std::ptr::null::<u32>(),
            0_u32,
        )
    };
}

/// Wakes all threads that wait on `word`, in any process.
pub(crate) fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: the word outlives the call; a wake touches no memory.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE,
            i32::MAX,
            std::ptr::null::<libc::timespec>(),
            std::ptr::null::<u32>(),
            0_u32,
        )
    };
}
