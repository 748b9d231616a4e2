//! Waiting for the board: with a real clock, with one that jumps, and in lockstep.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::lockstep::{LockstepWords, Wait, Woken};
use super::{Exec, Guard, PART, ThreadSlot, lockstep};
use crate::clock::ClockKind;
use crate::clock::monotonic_ns;
use crate::process;
use crate::process::Identity;

impl Exec {
    /// A look that found the GPU busy moves a jumping clock, or a program that polls would do so
    /// for ever. In lockstep the eighth such look of a thread at one moment is a wait.
    pub(super) fn looked(&self, done: bool) {
        thread_local! {
            static LOOKS: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
        }
        if done {
            return;
        }
        match self.clock().kind() {
            ClockKind::Real | ClockKind::Virtual => {}
            ClockKind::Jump => {
                self.clock().advance(1_000);
            }
            ClockKind::Lockstep => {
                let now_ns = self.clock().now();
                let (at_ns, looks) = LOOKS.get();
                let looks = if at_ns == now_ns { looks + 1 } else { 1 };
                LOOKS.set((now_ns, looks));
                if looks >= 8 {
                    self.sleep_until(now_ns + 1_000);
                }
            }
        }
    }

    /// Lets time pass: releases the lock, then sleeps until the awaited event can have happened.
    pub(super) fn rest(&self, mut state: Guard<'_>, seen: u32, hint_ns: u64, wait: Wait) {
        let clock = self.clock();
        match clock.kind() {
            ClockKind::Real => {
                drop(state);
                self.rest_real(seen, hint_ns);
            }
            ClockKind::Virtual => {
                drop(state);
                clock.wait(seen, Duration::from_millis(20));
            }
            ClockKind::Jump => {
                let next = if state.any_process_acts() {
                    None
                } else {
                    state.next_event_ns()
                };
                drop(state);
                match next {
                    Some(next) => clock.advance_to(next),
                    None => clock.wait(seen, Duration::from_millis(1)),
                }
            }
            ClockKind::Lockstep => self.rest_in_step(state, wait, u64::MAX),
        }
    }

    pub(super) fn rest_real(&self, seen: u32, hint_ns: u64) {
        const SPIN_NS: u64 = 60_000;
        if hint_ns > SPIN_NS {
            // Woken late is slow, woken early costs a look: so the last stretch is spun.
            let sleep_ns = (hint_ns - SPIN_NS).min(20_000_000);
            self.clock().wait(seen, Duration::from_nanos(sleep_ns));
        } else if hint_ns == 0 {
            // Another process has to act, and announces it; or its turn has to end.
            self.clock().wait(seen, Duration::from_micros(50));
        } else {
            let until = monotonic_ns() + hint_ns;
            while monotonic_ns() < until {
                std::thread::yield_now();
            }
        }
    }

    pub(crate) fn lockstep(&self) -> &LockstepWords {
        &self.area().lockstep
    }

    /// The participant that this thread is, running or away.
    pub(super) fn own_part(&self) -> Option<usize> {
        let tid = process::tid();
        let part = PART.get();
        if part.board == self.map.as_ptr().addr()
            && self.lockstep().is(part.slot, tid, part.generation)
        {
            return Some(part.slot);
        }
        let slot = self.lockstep().find(tid)?;
        self.remember(slot);
        Some(slot)
    }

    pub(super) fn remember(&self, slot: usize) {
        PART.set(ThreadSlot {
            board: self.map.as_ptr().addr(),
            slot,
            generation: self.lockstep().generation(slot),
        });
    }

    /// Makes this thread a running participant; returns whether it was not one before. Does nothing, and returns
    /// false, if the clock is not in lockstep.
    #[inline]
    pub fn take_part(&self) -> bool {
        self.in_lockstep && self.take_part_in_step()
    }

    pub(super) fn take_part_in_step(&self) -> bool {
        match self.own_part() {
            Some(slot) if self.lockstep().runs(slot) => false,
            Some(slot) => {
                let _state = self.lock();
                self.lockstep().come_back(slot);
                true
            }
            None => self.take_part_as(process::rank()),
        }
    }

    /// Makes this thread a participant of that rank, unless it is one; one with a rank waits for those that are
    /// expected.
    pub(crate) fn take_part_as(&self, rank: u32) -> bool {
        if !self.in_lockstep || self.own_part().is_some() {
            return false;
        }
        let identity = Identity::own();
        let state = self.lock();
        let Some(slot) = self.lockstep().join(process::tid(), identity, rank) else {
            return false;
        };
        self.remember(slot);
        if rank != u32::MAX && self.lockstep().was_expected() {
            self.rest_in_step(state, Wait::Others, u64::MAX);
        }
        true
    }

    /// Ends this thread's part.
    pub fn part(&self) {
        if self.in_lockstep
            && let Some(slot) = self.own_part()
        {
            let state = self.lock();
            self.lockstep().leave(slot);
            self.go_on(state);
        }
    }

    /// Marks this thread as away until it takes part again; returns whether it ran.
    pub fn go_away(&self) -> bool {
        if !self.in_lockstep {
            return false;
        }
        let Some(slot) = self.own_part().filter(|&slot| self.lockstep().runs(slot)) else {
            return false;
        };
        let state = self.lock();
        self.lockstep().go_away(slot);
        self.go_on(state);
        true
    }

    /// Lets time move on if no participant runs.
    pub(super) fn go_on(&self, mut state: Guard<'_>) {
        let woken = self
            .lockstep()
            .go_on(&mut state, self.area().clock.word(), None);
        drop(state);
        self.lockstep().wake(&woken);
    }

    /// Waits as a participant; a thread that is not one becomes one for that wait.
    pub(super) fn rest_in_step(&self, mut state: Guard<'_>, wait: Wait, until_ns: u64) {
        let table = self.lockstep();
        let known = self.own_part();
        let for_now = known.is_none_or(|slot| table.is_away(slot));
        let slot = known.or_else(|| {
            let slot = table.join(process::tid(), Identity::own(), process::rank())?;
            self.remember(slot);
            Some(slot)
        });
        let Some(slot) = slot else {
            // No room for one more: it only looks again.
            drop(state);
            std::thread::yield_now();
            return;
        };
        table.block(slot, wait, until_ns);
        let woken: Woken = table.go_on(&mut state, self.area().clock.word(), Some(slot));
        drop(state);
        table.wake(&woken);
        while !table.wait(slot, Duration::from_nanos(lockstep::WATCH_NS)) {
            self.watch();
        }
        if for_now {
            let state = self.lock();
            if known.is_some() {
                table.go_away(slot);
            } else {
                table.leave(slot);
            }
            self.go_on(state);
        }
    }

    /// A waiter's look at participants that keep time standing still.
    pub(super) fn watch(&self) {
        let real_ns = monotonic_ns();
        if !self.lockstep().is_watch_due(real_ns) {
            return;
        }
        let mut state = self.lock();
        if !self.lockstep().is_watch_due(real_ns) {
            return;
        }
        let word = self.area().clock.word();
        state.advance(word.load(Ordering::SeqCst));
        state.reap(Identity::is_alive);
        let woken = self.lockstep().watch(&mut state, word, real_ns);
        drop(state);
        self.lockstep().wake(&woken);
    }

    /// Moves a clock in lockstep by hand.
    pub(crate) fn move_by(&self, ns: u64) -> u64 {
        let mut state = self.lock();
        let now_ns = self.area().clock.word().fetch_add(ns, Ordering::SeqCst) + ns;
        state.advance(now_ns);
        self.go_on(state);
        now_ns
    }

    /// See [`super::Clock::sleep_until_another_ran`].
    pub(crate) fn sleep_until_another_ran(&self, step_ns: u64, until_ns: u64) {
        let from_ns = self.clock().now();
        if self.in_lockstep && from_ns < until_ns {
            self.rest_in_step(self.lock(), Wait::Ran { from_ns, step_ns }, until_ns);
        } else {
            self.sleep_until(until_ns);
        }
    }

    /// Waits until it is that late on the board's clock.
    pub(crate) fn sleep_until(&self, ns: u64) {
        let clock = self.clock();
        loop {
            let seen = clock.changes();
            let now_ns = clock.now();
            if now_ns >= ns {
                return;
            }
            match clock.kind() {
                ClockKind::Real => crate::clock::sleep_real(ns - now_ns),
                ClockKind::Virtual => clock.wait(seen, Duration::from_millis(20)),
                ClockKind::Jump => {
                    let mut state = self.now();
                    let acts = state.any_process_acts();
                    let next = state.next_event_ns().map_or(ns, |next| next.min(ns));
                    drop(state);
                    if acts {
                        clock.wait(seen, Duration::from_millis(1));
                    } else {
                        clock.advance_to(next);
                    }
                }
                ClockKind::Lockstep => self.rest_in_step(self.lock(), Wait::Time, ns),
            }
        }
    }
}
