//! The board's time: the machine's monotonic clock, or a word in shared memory that tests move.
//!
//! Every process on the board reads the same clock, and so can a library under test: the word lies
//! at a fixed place in the file (see [`ClockWords`]). Never sleeps longer than asked, never reads
//! the wall clock to decide anything.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Where time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockKind {
    /// `CLOCK_MONOTONIC`, the same for all processes of the machine.
    #[default]
    Real,
    /// Stands still until a test calls [`Clock::advance`].
    Virtual,
    /// Stands still while programs compute; whoever waits for the GPU moves it to the next thing
    /// that happens on the board. So a program runs at once, and its times are exact.
    Jump,
}

impl ClockKind {
    /// Reads the value of `VGPU_SIM_CLOCK`.
    ///
    /// # Errors
    /// A sentence that says what was read and what is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "real" | "" => Ok(Self::Real),
            "virtual" => Ok(Self::Virtual),
            "jump" => Ok(Self::Jump),
            other => Err(format!(
                "unknown clock {other:?}: accepted are real, virtual, jump"
            )),
        }
    }

    fn of(word: u32) -> Self {
        match word {
            1 => Self::Virtual,
            2 => Self::Jump,
            _ => Self::Real,
        }
    }

    fn word(self) -> u32 {
        match self {
            Self::Real => 0,
            Self::Virtual => 1,
            Self::Jump => 2,
        }
    }
}

/// The clock as it lies in the board's `exec` file, at byte [`crate::exec::CLOCK_OFFSET`].
///
/// | offset | type | meaning |
/// |---|---|---|
/// | 0 | u32 | 0 real, 1 virtual, 2 jump |
/// | 4 | u32 | counts changes of the word below; a futex that is woken at each |
/// | 8 | u64 | nanoseconds, when not real |
#[repr(C)]
#[derive(Debug)]
pub struct ClockWords {
    kind: AtomicU32,
    changes: AtomicU32,
    now_ns: AtomicU64,
}

/// Where a virtual clock starts: not at zero, which some callers take for "never".
pub const START_NS: u64 = 1_000_000_000;

/// One process's view of the board's clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock<'a> {
    words: &'a ClockWords,
}

impl<'a> Clock<'a> {
    /// Reads the clock that lies in `words`.
    pub fn new(words: &'a ClockWords) -> Self {
        Self { words }
    }

    /// Sets the kind, once, before anybody else looks.
    pub(crate) fn init(&self, kind: ClockKind) {
        self.words.now_ns.store(START_NS, Ordering::SeqCst);
        self.words.kind.store(kind.word(), Ordering::SeqCst);
    }

    /// Where this clock's time comes from.
    pub fn kind(&self) -> ClockKind {
        // Relaxed: written once, before the file's magic was published.
        ClockKind::of(self.words.kind.load(Ordering::Relaxed))
    }

    /// Nanoseconds since some fixed moment.
    pub fn now(&self) -> u64 {
        match self.kind() {
            ClockKind::Real => monotonic_ns(),
            ClockKind::Virtual | ClockKind::Jump => self.words.now_ns.load(Ordering::SeqCst),
        }
    }

    /// Moves a clock that is not real forward by `ns` and wakes who waits; returns the new time.
    /// A real clock is left alone.
    pub fn advance(&self, ns: u64) -> u64 {
        if self.kind() == ClockKind::Real {
            return self.now();
        }
        let now = self.words.now_ns.fetch_add(ns, Ordering::SeqCst) + ns;
        self.announce();
        now
    }

    /// Moves a clock that is not real forward to `ns`; never backward.
    pub fn advance_to(&self, ns: u64) {
        if self.kind() == ClockKind::Real {
            return;
        }
        self.words.now_ns.fetch_max(ns, Ordering::SeqCst);
        self.announce();
    }

    /// The count to hand to [`Clock::wait`]: read before the condition is looked at.
    pub fn changes(&self) -> u32 {
        self.words.changes.load(Ordering::SeqCst)
    }

    /// Says that something happened that a waiter may look at.
    pub(crate) fn announce(&self) {
        self.words.changes.fetch_add(1, Ordering::SeqCst);
        futex_wake_all(&self.words.changes);
    }

    /// Waits until something was announced since `seen`, or `longest` of real time has passed.
    pub fn wait(&self, seen: u32, longest: Duration) {
        futex_wait(&self.words.changes, seen, longest);
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

/// Waits on a shared futex word while it holds `seen`. The raw call, since `nanosleep` and
/// `pthread_cond_wait` would be points where the program's threads can be cancelled inside us.
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

/// Wakes everybody who waits on `word`, in any process.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(kind: ClockKind) -> ClockWords {
        let words = ClockWords {
            kind: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            now_ns: AtomicU64::new(0),
        };
        Clock::new(&words).init(kind);
        words
    }

    #[test]
    fn a_virtual_clock_stands_still_until_it_is_moved() {
        let words = words(ClockKind::Virtual);
        let clock = Clock::new(&words);
        assert_eq!(clock.now(), START_NS);

        clock.advance(5);

        assert_eq!(clock.now(), START_NS + 5);
    }

    #[test]
    fn a_virtual_clock_never_goes_back() {
        let words = words(ClockKind::Jump);
        let clock = Clock::new(&words);

        clock.advance_to(START_NS - 1);

        assert_eq!(clock.now(), START_NS);
    }

    #[test]
    fn a_move_wakes_a_waiter() {
        let words = words(ClockKind::Virtual);
        let clock = Clock::new(&words);
        let seen = clock.changes();
        std::thread::scope(|scope| {
            scope.spawn(|| clock.advance(1));
            clock.wait(seen, Duration::from_secs(60));
        });
        assert_ne!(clock.changes(), seen);
    }

    #[test]
    fn an_unknown_clock_is_named_in_the_error() {
        assert!(ClockKind::parse("fast").unwrap_err().contains("\"fast\""));
    }
}
