//! One process's view of the board's clock: moving it, waiting for it, taking part in it.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Exec;
use crate::clock::{ClockKind, ClockWords, futex_wait};

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

    /// Moves a clock that is not real forward by `ns` and wakes its waiters; returns the new time.
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

    /// For a thread that others wake: waits until another thread has run, and then for the next of the moments now +
    /// n × `step_ns`, but no longer than until `until_ns`. Only a clock in lockstep knows which threads ran: on another one
    /// this waits until `until_ns`.
    pub fn sleep_until_another_ran(&self, step_ns: u64, until_ns: u64) {
        self.exec.sleep_until_another_ran(step_ns, until_ns);
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

    /// The same with a rank: of the threads that can go on at a moment the one with the lowest goes first. A process has
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

    /// Stops a clock in lockstep until this many threads have joined, earlier ones included; `u32::MAX` stops it until
    /// the next call. Threads with a rank wait for that as they join, and then go on one at a time: so a history does
    /// not depend on which process was started faster.
    pub fn expect_threads(&self, threads: u32) {
        self.exec.lockstep().expect(threads);
        self.exec.announce();
    }

    /// The counts of a lockstep clock.
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

/// The counts of a lockstep clock. A run in which the last two stay 0 is exact.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::START_NS;
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
        let error = ClockKind::parse("fast").unwrap_err().to_string();

        assert!(error.contains("\"fast\""), "{error}");
    }
}
