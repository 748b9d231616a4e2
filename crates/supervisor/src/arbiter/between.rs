//! The arbiter's work between two ticks: it answers doorbells, and notices when the containers that rang rest again.
//! It reads the few words of those containers, and writes the shares that are others by that.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use super::bell::BellStep;
use super::device::Process;
use super::served::name_of;
use super::{Arbiter, Board, Ticked};

/// The shortest wait, nanoseconds: even if the next look is due at once, the arbiter leaves the processor for a
/// moment.
const LEAST_WAIT_NS: u64 = 20_000;
/// A doorbell that cannot be heard is tried again after this, nanoseconds.
const RETRY_NS: u64 = 2_000_000_000;

/// Ends a [`Board::pause`] early.
#[derive(Debug, Clone)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    pub(super) fn new() -> Option<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        EventFd::from_flags(flags).ok().map(|fd| Self(Arc::new(fd)))
    }

    /// Ends the pause under way, or the next one.
    pub fn wake(&self) {
        // Full: it is awake already.
        self.0.write(1).ok();
    }
}

impl Board {
    /// Makes the handle that ends a pause early; `None` if the system has no descriptor left.
    #[must_use]
    pub fn waker(&mut self) -> Option<Waker> {
        if self.waker.is_none() {
            self.waker = Waker::new();
        }
        self.waker.clone()
    }

    /// Waits until the next tick is due, and answers doorbells meanwhile. `clock` is the monotonic clock,
    /// nanoseconds. Returns early when its [`Waker`] is used.
    pub fn pause(&mut self, ticked: &Ticked, clock: impl Fn() -> u64) {
        let length_ns = u64::try_from(ticked.next.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = clock().saturating_add(length_ns);
        loop {
            let now_ns = clock();
            if now_ns >= end_ns {
                return;
            }
            let due_ns = self.answer(now_ns).unwrap_or(end_ns).min(end_ns);
            let wait_ns = due_ns.saturating_sub(clock()).max(LEAST_WAIT_NS);
            if self.wait(Duration::from_nanos(wait_ns)) {
                return;
            }
        }
    }

    /// Waits for `time`, or until something happens. Tells whether the waker woke it.
    fn wait(&self, time: Duration) -> bool {
        let mut fds = Vec::with_capacity(2);
        let waker = self.waker.as_ref();
        fds.extend(waker.map(|waker| PollFd::new(waker.0.as_fd(), PollFlags::POLLIN)));
        let rings = self.arbiter.doorbells.fd();
        fds.extend(rings.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let time = TimeSpec::from_duration(time);
        if ppoll(&mut fds, Some(time), None).is_err() {
            // A signal, or no memory: the caller looks at the clock.
            return false;
        }
        let is_woken = waker.is_some() && fds.first().and_then(PollFd::any) == Some(true);
        if let (true, Some(waker)) = (is_woken, waker) {
            waker.0.read().ok();
        }
        is_woken
    }

    /// Answers what has rung, and looks at what is due. Returns when to call this again: nanoseconds, or nothing
    /// before the next tick or ring.
    pub fn answer(&mut self, now_ns: u64) -> Option<u64> {
        self.arbiter.answer(now_ns)
    }
}

impl Arbiter {
    fn answer(&mut self, now_ns: u64) -> Option<u64> {
        let mut changed: Vec<String> = Vec::new();
        for id in self.doorbells.rung() {
            for (name, known) in &mut self.devices {
                if known.device.rang(now_ns, id) {
                    changed.push(name.clone());
                }
                if known.device.is_muted(id) {
                    self.doorbells.leave(id);
                }
            }
        }
        let mut due: Vec<(String, u64)> = Vec::new();
        for (name, known) in &self.devices {
            let looks = known.device.looks().filter(|(_, at_ns)| *at_ns <= now_ns);
            due.extend(looks.map(|(id, _)| (name.clone(), id)));
        }
        for (name, id) in due {
            if self.look_between(now_ns, &name, id) {
                changed.push(name);
            }
        }
        changed.sort_unstable();
        changed.dedup();
        for name in changed {
            self.divide_again(now_ns, &name);
        }
        let looks = self.devices.values().flat_map(|known| known.device.looks());
        looks.map(|(_, at_ns)| at_ns).min()
    }

    /// Looks at a container that holds others up. Tells whether the device is to be divided again.
    fn look_between(&mut self, now_ns: u64, name: &str, id: u64) -> bool {
        let Some(known) = self.devices.get_mut(name) else {
            return false;
        };
        let mut of_id = self.containers.iter_mut();
        let Some(served) = of_id.find(|served| served.container.id == id) else {
            return false;
        };
        let limits = &served.container.limits.devices;
        let mut each = limits.iter().enumerate();
        let Some((index, _)) = each.find(|(index, limit)| name_of(limit, *index) == name) else {
            return false;
        };
        let was_muted = known.device.is_muted(id);
        let Some(processes) = served.peek(index) else {
            known.device.look_later(now_ns, id);
            return false;
        };
        let step = known.device.look(now_ns, id, &processes);
        if was_muted
            && !known.device.is_muted(id)
            && let Ok(file) = served.container.doorbell()
        {
            self.doorbells.listen(id, &file).ok();
        }
        match step {
            BellStep::Stays => false,
            BellStep::Close => true,
            BellStep::Open => {
                // Armed first: what it launches from here on rings, and what it launched before is seen.
                if served.container.republish(now_ns, None).is_err() {
                    self.failed += 1;
                }
                let processes = served.peek(index).unwrap_or(processes);
                known.device.open(now_ns, id, &processes)
            }
        }
    }

    /// Divides a device's time again, and publishes the shares that are others by that.
    fn divide_again(&mut self, now_ns: u64, name: &str) {
        let Some(known) = self.devices.get_mut(name) else {
            return;
        };
        for (id, permille) in known.device.divide_again() {
            let mut all = self.containers.iter_mut();
            let Some(served) = all.find(|served| served.container.id == id) else {
                continue;
            };
            let mut limits = served.container.limits.devices.iter().enumerate();
            let index = limits.find(|(index, limit)| name_of(limit, *index) == name);
            let Some((index, _)) = index else {
                continue;
            };
            let share = Some((index, permille));
            if served.container.republish(now_ns, share).is_err() {
                self.failed += 1;
            }
        }
    }

    /// Hears those that are to be heard, and no others.
    pub(super) fn listen(&mut self, now_ns: u64, ringing: &[u64]) {
        self.doorbells.retain(|id| ringing.contains(&id));
        let muted = |id: u64| self.devices.values().any(|known| known.device.is_muted(id));
        for served in &mut self.containers {
            let id = served.container.id;
            let is_recent = |at: u64| now_ns.saturating_sub(at) < RETRY_NS;
            let is_due = !served.tried_ns.is_some_and(is_recent);
            if !ringing.contains(&id) || self.doorbells.hears(id) || muted(id) || !is_due {
                continue;
            }
            // One that an earlier release made has no doorbell; it is noticed at ticks.
            let heard = served
                .container
                .doorbell()
                .is_ok_and(|file| self.doorbells.listen(id, &file).is_ok());
            if !heard {
                served.tried_ns = Some(now_ns);
            }
        }
    }
}

impl super::served::Served {
    /// The present work of its processes on a device, of those that lived at the last tick.
    fn peek(&self, index: usize) -> Option<Vec<Process>> {
        let known = &self.look.processes;
        let uses = self.container.peek(known, index)?;
        let each = known.iter().zip(&uses);
        Some(
            each.map(|(process, used)| super::served::process(process, used))
                .collect(),
        )
    }
}
