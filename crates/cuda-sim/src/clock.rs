//! The board's time: the machine's monotonic clock, or a word in shared memory that tests move.
//!
//! Every process on the board reads the same clock, and so can a library under test: the word lies
//! at a fixed place in the file (see [`ClockWords`]). Never sleeps longer than asked, never reads
//! the wall clock to decide anything.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::exec::Exec;

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
    /// The same for several processes and threads: moves only when every thread that takes part waits
    /// for the clock or the GPU, and then to the next moment that one of them waits for.
    Lockstep,
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
            "lockstep" => Ok(Self::Lockstep),
            other => Err(format!(
                "unknown clock {other:?}: accepted are real, virtual, jump, lockstep"
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

/// The clock as it lies in the board's `exec` file, at byte [`crate::exec::CLOCK_OFFSET`].
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
    changes: AtomicU32,
    now_ns: AtomicU64,
}

/// Where a virtual clock starts: not at zero, which some callers take for "never".
pub const START_NS: u64 = 1_000_000_000;

impl ClockWords {
    /// Sets the kind, once, before anybody else looks.
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

/// One process's view of the board's clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock<'a> {
    words: &'a ClockWords,
    exec: &'a Exec,
}

impl<'a> Clock<'a> {
    pub(crate) fn new(words: &'a ClockWords, exec: &'a Exec) -> Self {
        Self { words, exec }
    }

    /// Where this clock's time comes from.
    pub fn kind(&self) -> ClockKind {
        self.words.kind()
    }

    /// Nanoseconds since some fixed moment.
    pub fn now(&self) -> u64 {
        self.words.now()
    }

    /// Moves a clock that is not real forward by `ns` and wakes who waits; returns the new time.
    /// A real clock is left alone.
    pub fn advance(&self, ns: u64) -> u64 {
        match self.kind() {
            ClockKind::Real => self.now(),
            ClockKind::Lockstep => self.exec.move_by(ns),
            ClockKind::Virtual | ClockKind::Jump => {
                let now = self.words.now_ns.fetch_add(ns, Ordering::SeqCst) + ns;
                self.words.announce();
                now
            }
        }
    }

    /// Moves a clock that is not real forward to `ns`; never backward.
    pub fn advance_to(&self, ns: u64) {
        match self.kind() {
            ClockKind::Real => {}
            ClockKind::Lockstep => {
                self.exec.move_by(ns.saturating_sub(self.now()));
            }
            ClockKind::Virtual | ClockKind::Jump => {
                self.words.now_ns.fetch_max(ns, Ordering::SeqCst);
                self.words.announce();
            }
        }
    }

    /// The count to hand to [`Clock::wait`]: read before the condition is looked at.
    pub fn changes(&self) -> u32 {
        self.words.changes.load(Ordering::SeqCst)
    }

    /// Waits until something was announced since `seen`, or `longest` of real time has passed.
    pub fn wait(&self, seen: u32, longest: Duration) {
        futex_wait(&self.words.changes, seen, longest);
    }

    /// Waits until it is `ns` on this clock. In lockstep, a thread that has not joined takes part for
    /// that wait only.
    pub fn sleep_until(&self, ns: u64) {
        self.exec.sleep_until(ns);
    }

    /// Waits for so long on this clock.
    pub fn sleep(&self, ns: u64) {
        self.sleep_until(self.now().saturating_add(ns));
    }

    /// Lets this thread spend time on something: it waits, but on a clock that stands still until it is
    /// moved, which it moves.
    pub fn spend(&self, ns: u64) {
        match self.kind() {
            ClockKind::Virtual | ClockKind::Jump => {
                self.advance(ns);
            }
            ClockKind::Real | ClockKind::Lockstep => self.sleep(ns),
        }
    }

    /// Makes this thread one without which a clock in lockstep does not move: until the answer is
    /// dropped, in this thread. Does nothing on the other clocks.
    pub fn join_thread(&self) -> Participant<'a> {
        self.exec.take_part();
        Participant {
            exec: self.exec,
            bound: PhantomData,
        }
    }

    /// The same with a rank: of those who can go on at a moment the lowest goes first. A process has
    /// the one that `VGPU_SIM_RANK` says, the last without it.
    pub fn join_thread_as(&self, rank: u32) -> Participant<'a> {
        self.exec.take_part_as(rank);
        Participant {
            exec: self.exec,
            bound: PhantomData,
        }
    }

    /// Lets a clock in lockstep move without this thread, until the answer is dropped: for waiting for
    /// what the clock does not know, as a pipe or a child's end.
    pub fn away(&self) -> Away<'a> {
        Away {
            was_here: self.exec.go_away(),
            exec: self.exec,
            bound: PhantomData,
        }
    }

    /// Lets a clock in lockstep stand still until so many threads have joined, earlier ones included;
    /// `u32::MAX` until other is said. Threads with a rank wait for that as they join, and then go on
    /// one at a time: so a history does not depend on which process was started faster.
    pub fn expect_threads(&self, threads: u32) {
        self.exec.lockstep().expect(threads);
        self.exec.announce();
    }

    /// What a clock in lockstep has counted.
    pub fn counts(&self) -> LockstepCounts {
        let words = self.exec.lockstep();
        let (stalls, sleepers) = words.taken_for_away();
        LockstepCounts {
            joined: words.joined(),
            present: words.present(),
            moves: words.moves(),
            stalls,
            sleepers,
        }
    }
}

/// What a clock in lockstep has counted. A run in which the last two stay 0 is exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockstepCounts {
    /// Threads that have joined, ever.
    pub joined: u64,
    /// Threads that take part and are not away.
    pub present: usize,
    /// How often time was moved.
    pub moves: u64,
    /// Threads that were taken for away since nothing had happened for 2 s of real time.
    pub stalls: u64,
    /// Threads that were taken for away since all that ran slept in something that the clock does not
    /// know, for 250 ms of real time.
    pub sleepers: u64,
}

/// This thread takes part in a clock in lockstep.
#[derive(Debug)]
pub struct Participant<'a> {
    exec: &'a Exec,
    bound: PhantomData<*const ()>,
}

impl Drop for Participant<'_> {
    fn drop(&mut self) {
        self.exec.part();
    }
}

/// A clock in lockstep does not wait for this thread.
#[derive(Debug)]
pub struct Away<'a> {
    exec: &'a Exec,
    was_here: bool,
    bound: PhantomData<*const ()>,
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        if self.was_here {
            self.exec.take_part();
        }
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

/// Sleeps for so long, or less when a signal comes; no point where a thread can be cancelled.
pub fn sleep_real(ns: u64) {
    let word = AtomicU32::new(0);
    futex_wait(&word, 0, Duration::from_nanos(ns));
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
    use crate::exec::ExecConfig;

    fn board(kind: ClockKind) -> (tempfile::TempDir, Exec) {
        let directory = tempfile::tempdir().unwrap();
        let config = ExecConfig {
            clock: kind,
            ..ExecConfig::default()
        };
        let exec = Exec::open(&directory.path().join("exec"), &config).unwrap();
        (directory, exec)
    }

    #[test]
    fn a_virtual_clock_stands_still_until_it_is_moved() {
        let (_directory, exec) = board(ClockKind::Virtual);
        let clock = exec.clock();
        assert_eq!(clock.now(), START_NS);

        clock.advance(5);

        assert_eq!(clock.now(), START_NS + 5);
    }

    #[test]
    fn a_virtual_clock_never_goes_back() {
        let (_directory, exec) = board(ClockKind::Jump);
        let clock = exec.clock();

        clock.advance_to(START_NS - 1);

        assert_eq!(clock.now(), START_NS);
    }

    #[test]
    fn a_move_wakes_a_waiter() {
        let (_directory, exec) = board(ClockKind::Virtual);
        let clock = exec.clock();
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
