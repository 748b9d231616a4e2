//! How a launch waits for its turn: for the end of another one of unknown cost, for room in
//! flight, for credit. Every wait ends by itself, or shows in the region that it goes on. Holds no lock.

use core::sync::atomic::Ordering;

use vgpu_abi::credit::Compute;
use vgpu_abi::targets::Ahead;
use vgpu_abi::waits::WaitCause;

use super::collect;
use super::decisions::{self, Bound, Flight, Held, OVERDUE_NS, PROGRESS_NS, Turn};
use super::rate::Rate;
use super::roster;
use super::timetable::{self, Fit};
use crate::base::clock;
use crate::state::accounts::Accounts;
use crate::state::launches::costs::{Expected, Work};

/// A launch that waits until it may go.
pub(super) struct Wait<'a> {
    accounts: &'a Accounts,
    compute: &'a Compute<'a>,
    device: usize,
    /// The stream's number, where it is looked after.
    stream: Option<usize>,
    /// Since when it waits; 0: it does not.
    since_ns: u64,
    spent: Spent,
    has_mark: bool,
    rounds: u32,
}

/// The time of one wait by cause, nanoseconds. From one look to the next it waits for what the first has found.
#[derive(Debug, Default)]
struct Spent {
    ns_by_cause: [u64; WaitCause::ALL.len()],
    /// The cause for which it waits, and since when.
    last: Option<(WaitCause, u64)>,
}

impl Spent {
    /// At this look it has to wait for `cause`, or, with `None`, no longer.
    fn look(&mut self, cause: Option<WaitCause>, now_ns: u64) {
        let next = cause.map(|cause| (cause, now_ns));
        if let Some((cause, since_ns)) = core::mem::replace(&mut self.last, next)
            && let Some(ns) = self.ns_by_cause.get_mut(cause as usize)
        {
            *ns = ns.saturating_add(now_ns.saturating_sub(since_ns));
        }
    }
}

pub(super) struct Admitted {
    pub(super) charged_ns: u64,
    pub(super) more_ns: u64,
    /// The most that its thread may launch next without a look, nanoseconds.
    pub(super) most_ns: u64,
    /// How much of the container's interval is left behind it, nanoseconds.
    pub(super) left_ns: u64,
    pub(super) is_unknown: bool,
    pub(super) is_guess: bool,
    pub(super) rate: Rate,
    pub(super) now_ns: u64,
}

impl<'a> Wait<'a> {
    pub(super) fn new(
        accounts: &'a Accounts,
        compute: &'a Compute<'a>,
        device: usize,
        stream: Option<usize>,
    ) -> Self {
        Self {
            accounts,
            compute,
            device,
            stream,
            since_ns: 0,
            spent: Spent::default(),
            has_mark: false,
            rounds: 0,
        }
    }

    /// Waits for its turn, first by the rate that the caller has just found; `None` when there is nothing to wait for any
    /// more.
    pub(super) fn admit(&mut self, work: &Work, looked: (Rate, u64)) -> Option<Admitted> {
        let mut overdue_ns = 0;
        let (mut rate, mut now_ns) = looked;
        loop {
            if rate.is_free() {
                self.end(now_ns);
                if self.has_mark {
                    self.compute.end_unknown();
                }
                return None;
            }
            collect(self.accounts, now_ns);
            let expected = self.accounts.process.compute.costs.expected(work);
            if expected != Expected::Unknown && self.has_mark {
                self.has_mark = false;
                self.compute.end_unknown();
            }
            let cost_ns = decisions::charge_ns(expected, overdue_ns);
            let lease = self
                .interval(&rate, cost_ns, now_ns)
                .map_err(|wait_ns| (rate.bound_by(), wait_ns))
                .and_then(|fit| {
                    self.turn(&rate, expected, &mut overdue_ns, now_ns)
                        .map_err(|wait_ns| (WaitCause::UnknownCost, wait_ns))?;
                    let room_ns = self
                        .mark(&rate, expected, now_ns)
                        .and_then(|()| self.room(&rate, cost_ns, now_ns))
                        .map_err(|wait_ns| (WaitCause::InFlight, wait_ns))?;
                    Ok((fit, room_ns))
                })
                .and_then(|(fit, room_ns)| {
                    let wait = |wait_ns| (rate.bound_by(), wait_ns);
                    let credit = self.credit(&rate, cost_ns, fit, room_ns, now_ns);
                    let credit = credit.or_else(|wait_ns| self.behind(&rate, cost_ns, wait_ns));
                    credit.map(|lease| (lease, fit)).map_err(wait)
                });
            match lease {
                Ok(((more_ns, most_ns), fit)) => {
                    self.end(now_ns);
                    return Some(Admitted {
                        charged_ns: cost_ns,
                        more_ns,
                        most_ns,
                        left_ns: fit.map_or(u64::MAX, |fit| fit.left_ns),
                        is_unknown: self.has_mark,
                        is_guess: matches!(expected, Expected::Guessed(_)),
                        rate,
                        now_ns,
                    });
                }
                Err((cause, wait_ns)) => {
                    self.spent.look(Some(cause), now_ns);
                    if decisions::asks_others(cause, rate.has_arbiter) {
                        self.wants_more(now_ns);
                    }
                    // A launch that waits is not in flight.
                    if core::mem::take(&mut self.has_mark) {
                        self.compute.end_unknown();
                    }
                    self.sleep(rate.ahead, wait_ns, now_ns);
                    (rate, now_ns) = roster::rate_now(self.accounts, self.compute, self.device);
                }
            }
        }
    }

    /// Does it fit into the container's interval of the timetable, if there is one?
    fn interval(&self, rate: &Rate, cost_ns: u64, now_ns: u64) -> Result<Option<Fit>, u64> {
        let Some(interval) = rate.interval else {
            return Ok(None);
        };
        let state = self.accounts.process.compute.device(self.device);
        let takes_ns = state.map_or(cost_ns, |state| state.paced(cost_ns));
        timetable::fits(interval, now_ns, self.busy_until_ns(now_ns), takes_ns).map(Some)
    }

    /// Takes what it costs from the container's account: what was taken beyond it, and the most that the thread may
    /// launch next without a look, nanoseconds. In an interval the time is the container's own, and only what reaches
    /// beyond it costs something.
    fn credit(
        &mut self,
        rate: &Rate,
        cost_ns: u64,
        fit: Option<Fit>,
        room_ns: u64,
        now_ns: u64,
    ) -> Result<(u64, u64), u64> {
        let draw = decisions::draw(cost_ns, fit, room_ns);
        if !rate.has_cap() {
            self.compute.fill(now_ns, rate.permille);
            return Ok((0, draw.most_ns));
        }
        let wanted_ns = rate.counted(draw.wanted_ns).max(1);
        let lease = self
            .compute
            .lease_at_most(wanted_ns, draw.more_ns, now_ns, rate.permille);
        lease
            .or_else(|wait_ns| self.excused(rate, wanted_ns, wait_ns, now_ns))
            .map(|more_ns| (more_ns, draw.most_ns))
    }

    /// Beside others that keep to no timetable, launches go in pairs: the second one right behind the first, without
    /// credit. One that follows another does not wait for its process's turn, so it shows how long it takes by itself.
    /// Both are paid for before the next pair.
    fn behind(&self, rate: &Rate, cost_ns: u64, wait_ns: u64) -> Result<(u64, u64), u64> {
        let Some(state) = self.accounts.process.compute.device(self.device) else {
            return Err(wait_ns);
        };
        if !decisions::goes_in_pairs(rate.has_arbiter, rate.beside.is_contended) {
            return Err(wait_ns);
        }
        let wanted_ns = rate.counted(cost_ns).max(1);
        // Relaxed: a number.
        let in_flight_ns = state.in_flight_ns.load(Ordering::Relaxed);
        if !decisions::is_second(in_flight_ns, self.compute.credit_ns(), wanted_ns) {
            return Err(wait_ns);
        }
        self.compute
            .settle(i64::try_from(wanted_ns).unwrap_or(i64::MAX));
        Ok((0, 0))
    }

    /// A launch waits for the cap: other containers are to know it.
    fn wants_more(&self, now_ns: u64) {
        if let Some(state) = self.accounts.process.compute.device(self.device) {
            state.part.wants_more(now_ns);
        }
    }

    /// When what the process has in flight ought to have ended, nanoseconds.
    fn busy_until_ns(&self, now_ns: u64) -> u64 {
        let Some(state) = self.accounts.process.compute.device(self.device) else {
            return 0;
        };
        // Relaxed throughout: numbers and times.
        let in_flight = state.in_flight_ns.load(Ordering::Relaxed);
        let in_flight_ns = u64::try_from(in_flight).unwrap_or(0);
        let ends_at_ns = state.ends_at_ns.load(Ordering::Relaxed);
        decisions::busy_until_ns(in_flight_ns, state.paced(in_flight_ns), ends_at_ns, now_ns)
    }

    /// Of launches of unknown cost, one is in flight at a time.
    fn turn(
        &mut self,
        rate: &Rate,
        expected: Expected,
        overdue_ns: &mut u64,
        now_ns: u64,
    ) -> Result<(), u64> {
        if expected != Expected::Unknown || self.has_mark {
            return Ok(());
        }
        if self.compute.begin_unknown(now_ns) {
            self.has_mark = true;
            return Ok(());
        }
        let quiet_ns = self
            .compute
            .unknown_since_ns()
            .map(|(since_ns, _)| decisions::since_both_ns(since_ns, self.progress_ns(), now_ns));
        let may_help = |quiet_ns| self.may_help(rate, quiet_ns, now_ns);
        match decisions::turn(quiet_ns, self.stalls(), self.rounds, may_help) {
            Turn::Waits(wait_ns) => Err(wait_ns),
            Turn::TakesOver(quiet_ns) => {
                *overdue_ns = quiet_ns;
                self.compute.forget_unknown();
                self.made_progress(now_ns);
                Err(0)
            }
        }
    }

    /// Something runs far longer than it ever did, so it may be waiting for this very launch: then it
    /// goes without credit, and is charged. A few times for one such state, which may be another.
    fn excused(
        &mut self,
        rate: &Rate,
        wanted_ns: u64,
        wait_ns: u64,
        now_ns: u64,
    ) -> Result<u64, u64> {
        let Some(state) = self.accounts.process.compute.device(self.device) else {
            return Err(wait_ns);
        };
        let waited_ns = self.waited_ns(now_ns);
        if !decisions::may_be_excused(rate.permille, waited_ns, self.stalls()) {
            return Err(wait_ns);
        }
        let overdue = self.accounts.container.region.overdue(now_ns, PROGRESS_NS);
        if overdue == 0 || !self.may_help(rate, waited_ns.unwrap_or(0), now_ns) {
            return Err(wait_ns);
        }
        // Relaxed: a bound that threads which race pass by one each.
        if state.excuse.swap(overdue, Ordering::Relaxed) != overdue {
            state.excused.store(0, Ordering::Relaxed);
        }
        if !decisions::is_excused(state.excused.fetch_add(1, Ordering::Relaxed)) {
            return Err(wait_ns);
        }
        state.stalls.fetch_add(1, Ordering::Relaxed);
        self.compute
            .settle(i64::try_from(wanted_ns).unwrap_or(i64::MAX));
        Ok(0)
    }

    fn progress_ns(&self) -> u64 {
        let state = self.accounts.process.compute.device(self.device);
        // Relaxed: a time.
        state.map_or(0, |state| state.progress_ns.load(Ordering::Relaxed))
    }

    /// Launches that were let in since something was last seen to end.
    fn stalls(&self) -> u32 {
        let state = self.accounts.process.compute.device(self.device);
        // Relaxed: a number.
        state.map_or(0, |state| state.stalls.load(Ordering::Relaxed))
    }

    /// For how long it has waited, nanoseconds; nothing before it does.
    fn waited_ns(&self, now_ns: u64) -> Option<u64> {
        (self.since_ns != 0).then(|| now_ns.saturating_sub(self.since_ns))
    }

    /// Whether this launch may end the wait of work in flight of which nothing has ended for `quiet_ns`.
    fn may_help(&self, rate: &Rate, quiet_ns: u64, now_ns: u64) -> bool {
        let region = &self.accounts.container.region;
        let spans = &self.accounts.process.compute.spans;
        let held = Held {
            overdue_processes: match rate.is_shared() {
                true => region.overdue_processes(self.device, now_ns, OVERDUE_NS),
                false => 0,
            },
            is_in_own_stream: self.stream.is_some_and(|at| spans.is_all_behind(at))
                && !region.is_overdue_elsewhere(now_ns, OVERDUE_NS),
        };
        // Relaxed: a time.
        let expected_by_ns = self.compute.own().expected_by_ns.load(Ordering::Relaxed);
        let late_ns = decisions::late_ns(expected_by_ns, self.progress_ns(), now_ns);
        decisions::may_help(held, quiet_ns, late_ns)
    }

    /// A launch is let in although nothing has ended.
    fn made_progress(&self, now_ns: u64) {
        if let Some(state) = self.accounts.process.compute.device(self.device) {
            // Relaxed: a time and a number.
            state.progress_ns.store(now_ns, Ordering::Relaxed);
            state.stalls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A launch whose cost is not well known is measured, so it waits until its stream has room for a mark.
    fn mark(&self, rate: &Rate, expected: Expected, now_ns: u64) -> Result<(), u64> {
        let spans = &self.accounts.process.compute.spans;
        let is_measured = decisions::is_measured_first(expected, rate.is_roomy());
        let has_room = self.stream.is_none_or(|at| spans.has_room(at));
        if decisions::waits_for_mark(is_measured, has_room, self.waited_ns(now_ns)) {
            return Err(decisions::watch_ns(self.rounds));
        }
        Ok(())
    }

    /// Is there room for it in flight? How much is left for launches that follow at once, nanoseconds.
    fn room(&self, rate: &Rate, cost_ns: u64, now_ns: u64) -> Result<u64, u64> {
        let Some(state) = self.accounts.process.compute.device(self.device) else {
            return Ok(u64::MAX);
        };
        // Relaxed throughout: numbers and times.
        let charged = state.in_flight_ns.load(Ordering::Relaxed);
        let charged_ns = u64::try_from(charged).unwrap_or(0);
        let expected_by_ns = self.compute.own().expected_by_ns.load(Ordering::Relaxed);
        let launched_ns = self.compute.own().last_launch_ns.load(Ordering::Relaxed);
        let spans = &self.accounts.process.compute.spans;
        let flight = Flight {
            charged_ns,
            left_ns: decisions::left_ns(charged_ns, launched_ns, expected_by_ns, now_ns),
            believed_ns: rate.with_turns(charged_ns),
            late_ns: decisions::since_both_ns(expected_by_ns, self.progress_ns(), now_ns),
            is_marked: self.stream.is_some_and(|at| spans.has_marks(at)),
        };
        let overslept_ns = state.overslept_ns.load(Ordering::Relaxed);
        let bound = Bound::of(rate.ahead, rate.has_cap(), overslept_ns);
        decisions::room(&flight, cost_ns, bound, self.rounds).or_else(|wait_ns| {
            let waited_ns = self.waited_ns(now_ns);
            let quiet_ns = now_ns.saturating_sub(self.progress_ns());
            let may_help = |quiet_ns| self.may_help(rate, quiet_ns, now_ns);
            if !decisions::goes_without_an_end(waited_ns, quiet_ns, self.stalls(), may_help) {
                return Err(wait_ns);
            }
            self.made_progress(now_ns);
            Ok(0)
        })
    }

    fn sleep(&mut self, ahead: Ahead, wait_ns: u64, now_ns: u64) {
        self.begin(now_ns);
        self.rounds += 1;
        let state = &self.accounts.process.compute;
        let waited_ns = now_ns.saturating_sub(self.since_ns);
        let ns = decisions::nap_ns(wait_ns, waited_ns, ahead, state.spans.is_anything_busy());
        if decisions::is_exact(ahead, ns) && ns > 0 {
            self.sleep_exactly(ns);
        } else if ns > 0 {
            clock::sleep_ns(ns);
        }
        // A fork's child, or a slot that was taken away, is looked after here too.
        self.accounts.process.tick(self.accounts.container);
    }

    /// Sleeps for `ns`, and remembers how much longer it slept.
    fn sleep_exactly(&self, ns: u64) {
        let from_ns = clock::now_ns();
        clock::sleep_exactly_ns(ns);
        let slept_ns = clock::now_ns().saturating_sub(from_ns);
        if let Some(state) = self.accounts.process.compute.device(self.device) {
            // Relaxed: a number. Of threads that wake at the same moment, one counts.
            let old_ns = state.overslept_ns.load(Ordering::Relaxed);
            let next_ns = decisions::oversleeping_ns(old_ns, ns, slept_ns);
            state.overslept_ns.store(next_ns, Ordering::Relaxed);
        }
    }

    fn begin(&mut self, now_ns: u64) {
        if self.since_ns != 0 {
            return;
        }
        self.since_ns = now_ns;
        let own = self.compute.own();
        // Relaxed throughout: numbers for the arbiter and for reports.
        own.waits.fetch_add(1, Ordering::Relaxed);
        if let Some(state) = self.accounts.process.compute.device(self.device)
            && state.waiting.fetch_add(1, Ordering::Relaxed) == 0
        {
            own.waiting_since_ns.store(now_ns.max(1), Ordering::Relaxed);
        }
    }

    fn end(&mut self, now_ns: u64) {
        if self.since_ns == 0 {
            return;
        }
        let own = self.compute.own();
        let waited_ns = now_ns.saturating_sub(self.since_ns);
        self.since_ns = 0;
        // Relaxed throughout: as in `begin`.
        own.throttled_ns.fetch_add(waited_ns, Ordering::Relaxed);
        self.spent.look(None, now_ns);
        let region = &self.accounts.container.region;
        region.count_wait(self.device, core::mem::take(&mut self.spent).ns_by_cause);
        if let Some(state) = self.accounts.process.compute.device(self.device)
            && state.waiting.fetch_sub(1, Ordering::Relaxed) <= 1
        {
            own.waiting_since_ns.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_two_looks_counts_for_what_the_first_found() {
        let mut spent = Spent::default();

        spent.look(Some(WaitCause::UnknownCost), 1_000);
        spent.look(Some(WaitCause::Cap), 1_100);
        spent.look(Some(WaitCause::Cap), 1_500);
        spent.look(Some(WaitCause::Grant), 2_000);
        spent.look(None, 5_000);
        // A wait that has ended counts no more.
        spent.look(None, 9_000);

        assert_eq!(spent.ns_by_cause, [900, 3_000, 0, 100]);
    }
}
