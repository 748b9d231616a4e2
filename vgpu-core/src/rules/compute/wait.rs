//! How a launch waits for its turn: for the end of another one of unknown cost, for room in
//! flight, for credit. Every wait ends by itself, or shows in the region that it goes on. Holds no lock.

use core::sync::atomic::Ordering;

use vgpu_abi::credit::{Compute, LEASE_NS};
use vgpu_abi::targets::Ahead;
use vgpu_abi::waits::WaitCause;

use super::collect;
use super::rate::{self, Rate, rate};
use super::roster;
use super::timetable::{self, Fit};
use crate::base::clock;
use crate::state::accounts::Accounts;
use crate::state::launches::DUE_NS;
use crate::state::launches::costs::estimate::MOST_WAITING_NS;
use crate::state::launches::costs::{Expected, Work};

/// Work in flight on a device, of one process, beyond which launches wait: what was lent comes back as
/// soon as it is done.
const IN_FLIGHT_NS: u64 = 10_000_000;
/// The same beside a container of a higher priority, which waits for what is in flight when it starts.
const BRIEF_IN_FLIGHT_NS: u64 = 300_000;
/// What a thread may launch then without a look at what is in flight.
const BRIEF_LEASE_NS: u64 = 50_000;
/// So much is launched to a stream then between two marks: what is in flight is known by them.
const BRIEF_DUE_NS: u64 = 100_000;
/// A launch that waits for a container of a higher priority looks again so often at first, and for so long.
const BRIEF_NAP_NS: u64 = 200_000;
const BRIEF_NAPS_NS: u64 = 50_000_000;
/// The most of a long launch that may be in flight before another one.
const AHEAD_NS: u64 = 50_000_000;
/// The charge of a launch of unknown cost, nanoseconds.
const UNKNOWN_NS: u64 = 100_000;
/// If no work has ended for this long, a launch is let in all the same: the running work may wait for it. Twice
/// as long for the next launch, up to sixteen times, until work ends: it may just be a long kernel. Nanoseconds.
const PROGRESS_NS: u64 = 100_000_000;
/// Work in flight may end this much later than expected, nanoseconds, beside the delay that its own length allows:
/// events and threads are noticed late on a busy machine.
const LATE_NS: u64 = 3_000_000;
/// Launches that are let in without credit for one state of work that is overdue.
const EXCUSES: u32 = 8;
/// A wait looks again at least this often.
const LOOK_NS: u64 = 50_000_000;
/// The same while the wait ends by another's doing: other work that ends, or a grant.
const WATCH_NS: u64 = 500_000;

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

    /// Waits for its turn; `None` when there is nothing to wait for any more.
    pub(super) fn admit(&mut self, work: &Work) -> Option<Admitted> {
        let mut overdue_ns = 0;
        loop {
            let now_ns = clock::now_ns();
            let mut rate = rate(self.accounts, self.device, now_ns);
            if roster::look(self.accounts, self.compute, self.device, &rate, now_ns) {
                rate = rate::rate(self.accounts, self.device, now_ns);
            }
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
            let cost_ns = match expected {
                Expected::Known(ns) | Expected::Guessed(ns) => ns,
                Expected::Unknown => UNKNOWN_NS.max(overdue_ns),
            };
            let lease = self
                .interval(&rate, cost_ns, now_ns)
                .map_err(|wait_ns| (rate.bound_by(), wait_ns))
                .and_then(|fit| {
                    self.turn(&rate, expected, &mut overdue_ns, now_ns)
                        .map_err(|wait_ns| (WaitCause::UnknownCost, wait_ns))?;
                    self.mark(&rate, expected, now_ns)
                        .and_then(|()| self.room(&rate, cost_ns, now_ns))
                        .map_err(|wait_ns| (WaitCause::InFlight, wait_ns))?;
                    Ok(fit)
                })
                .and_then(|fit| {
                    let wait = |wait_ns| (rate.bound_by(), wait_ns);
                    let credit = self.credit(&rate, cost_ns, fit, now_ns);
                    let credit = credit.or_else(|wait_ns| self.behind(&rate, cost_ns, wait_ns));
                    credit.map_err(wait)
                });
            match lease {
                Ok((more_ns, most_ns)) => {
                    self.end(now_ns);
                    return Some(Admitted {
                        charged_ns: cost_ns,
                        more_ns,
                        most_ns,
                        is_unknown: self.has_mark,
                        is_guess: matches!(expected, Expected::Guessed(_)),
                        rate,
                        now_ns,
                    });
                }
                Err((cause, wait_ns)) => {
                    self.spent.look(Some(cause), now_ns);
                    if cause == WaitCause::Cap && !rate.has_arbiter {
                        self.wants_more(now_ns);
                    }
                    // A launch that waits is not in flight.
                    if core::mem::take(&mut self.has_mark) {
                        self.compute.end_unknown();
                    }
                    self.sleep(rate.ahead, wait_ns, now_ns);
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
        now_ns: u64,
    ) -> Result<(u64, u64), u64> {
        let lease_ns = lease_ns(rate.ahead);
        let (wanted_ns, taken_ns, most_ns) = match fit {
            Some(fit) => (fit.beyond_ns, 0, fit.left_ns.min(lease_ns)),
            None => (cost_ns, lease_ns, lease_ns),
        };
        if !rate.has_cap() {
            return Ok((0, most_ns));
        }
        let wanted_ns = rate.counted(wanted_ns).max(1);
        let lease = self
            .compute
            .lease_at_most(wanted_ns, taken_ns, now_ns, rate.permille);
        lease
            .or_else(|wait_ns| self.excused(rate, wanted_ns, wait_ns, now_ns))
            .map(|more_ns| (more_ns, most_ns))
    }

    /// Beside others that keep to no timetable, launches go in pairs: the second one right behind the first, without
    /// credit. One that follows another does not wait for its process's turn, so it shows how long it takes by itself.
    /// Both are paid for before the next pair.
    fn behind(&self, rate: &Rate, cost_ns: u64, wait_ns: u64) -> Result<(u64, u64), u64> {
        let Some(state) = self.accounts.process.compute.device(self.device) else {
            return Err(wait_ns);
        };
        if rate.has_arbiter || !rate.beside.is_contended {
            return Err(wait_ns);
        }
        let wanted_ns = rate.counted(cost_ns).max(1);
        // Relaxed: a number.
        let in_flight_ns = state.in_flight_ns.load(Ordering::Relaxed);
        if !is_second(in_flight_ns, self.compute.credit_ns(), wanted_ns) {
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
        let in_flight = u64::try_from(state.in_flight_ns.load(Ordering::Relaxed)).unwrap_or(0);
        if in_flight == 0 {
            return 0;
        }
        let ends_at_ns = state.ends_at_ns.load(Ordering::Relaxed);
        // What has ended since the last mark is still counted as in flight.
        ends_at_ns.min(now_ns.saturating_add(state.paced(in_flight)))
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
        if rate.is_unbounded() {
            return Ok(());
        }
        let Some((since_ns, _)) = self.compute.unknown_since_ns() else {
            return Err(0);
        };
        let quiet_ns = now_ns.saturating_sub(since_ns.max(self.progress_ns()));
        if quiet_ns < self.patience_ns() {
            return Err(watch_ns(self.rounds));
        }
        // The process that has the mark shows no progress, or its launch waits for this one.
        *overdue_ns = quiet_ns.min(MOST_WAITING_NS);
        self.compute.forget_unknown();
        self.made_progress(now_ns);
        Err(0)
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
        let has_waited = now_ns.saturating_sub(self.since_ns) >= self.patience_ns();
        if rate.permille == 0 || self.since_ns == 0 || !has_waited {
            return Err(wait_ns);
        }
        let overdue = self.accounts.container.region.overdue(now_ns, PROGRESS_NS);
        if overdue == 0 {
            return Err(wait_ns);
        }
        // Relaxed: a bound that threads which race pass by one each.
        if state.excuse.swap(overdue, Ordering::Relaxed) != overdue {
            state.excused.store(0, Ordering::Relaxed);
        }
        if state.excused.fetch_add(1, Ordering::Relaxed) >= EXCUSES {
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

    /// How long nothing must have ended.
    fn patience_ns(&self) -> u64 {
        let state = self.accounts.process.compute.device(self.device);
        // Relaxed: a number.
        let stalls = state.map_or(0, |state| state.stalls.load(Ordering::Relaxed));
        patience_ns(stalls)
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
        let is_known = matches!(expected, Expected::Known(_)) || rate.is_unbounded();
        let has_room = self.stream.is_none_or(|at| spans.has_room(at));
        let has_waited = self.since_ns != 0 && now_ns.saturating_sub(self.since_ns) >= PROGRESS_NS;
        if is_known || has_room || has_waited {
            return Ok(());
        }
        Err(watch_ns(self.rounds))
    }

    /// Is there room for it in flight?
    fn room(&self, rate: &Rate, cost_ns: u64, now_ns: u64) -> Result<(), u64> {
        let Some(state) = self.accounts.process.compute.device(self.device) else {
            return Ok(());
        };
        if rate.is_unbounded() {
            return Ok(());
        }
        // Relaxed: a number.
        let in_flight = u64::try_from(state.in_flight_ns.load(Ordering::Relaxed)).unwrap_or(0);
        let expected_by_ns = self.compute.own().expected_by_ns.load(Ordering::Relaxed);
        let late_ns = now_ns.saturating_sub(expected_by_ns.max(self.progress_ns()));
        // Without a mark it is not known whether work has ended.
        let spans = &self.accounts.process.compute.spans;
        let has_marks = self.stream.is_some_and(|at| spans.has_marks(at));
        let wait_ns = if has_marks && is_too_late(late_ns, rate.with_turns(in_flight)) {
            Some(watch_ns(self.rounds))
        } else if rate.ahead == Ahead::Brief {
            // Relaxed: a time.
            let launched_ns = self.compute.own().last_launch_ns.load(Ordering::Relaxed);
            let end_ns = expected_by_ns.min(launched_ns.saturating_add(in_flight));
            let left_ns = end_ns.saturating_sub(now_ns);
            too_much_beside_a_higher(in_flight, cost_ns, left_ns)
        } else {
            too_much_in_flight(in_flight, cost_ns)
        };
        let Some(wait_ns) = wait_ns else {
            return Ok(());
        };
        let quiet_ns = now_ns.saturating_sub(self.progress_ns());
        if self.since_ns != 0
            && now_ns.saturating_sub(self.since_ns) >= PROGRESS_NS
            && quiet_ns >= self.patience_ns()
        {
            self.made_progress(now_ns);
            return Ok(());
        }
        Err(wait_ns)
    }

    fn sleep(&mut self, ahead: Ahead, wait_ns: u64, now_ns: u64) {
        self.begin(now_ns);
        self.rounds += 1;
        let state = &self.accounts.process.compute;
        let mut ns = nap_ns(wait_ns, state.spans.is_anything_busy());
        if ahead == Ahead::Brief && now_ns.saturating_sub(self.since_ns) < BRIEF_NAPS_NS {
            // What a container of a higher priority leaves comes in pieces.
            ns = ns.min(BRIEF_NAP_NS);
        }
        if ns > 0 {
            clock::sleep_ns(ns);
        }
        // A fork's child, or a slot that was taken away, is looked after here too.
        self.accounts.process.tick(self.accounts.container);
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

/// The time without any end of work after which a launch is let in all the same, after `stalls` such launches.
fn patience_ns(stalls: u32) -> u64 {
    PROGRESS_NS << stalls.min(4)
}

/// How long a launch sleeps that waits for the end of another one: briefly at first, for short launches, then
/// up to 16 times as long.
fn watch_ns(rounds: u32) -> u64 {
    (WATCH_NS / 10) << (rounds / 4).min(4)
}

/// How long to wait before another look, where a launch would be too much beside the work in flight; `None`:
/// there is room. Beside nothing, every launch has room.
fn too_much_in_flight(in_flight_ns: u64, cost_ns: u64) -> Option<u64> {
    let bound_ns = IN_FLIGHT_NS.max(cost_ns.saturating_add(cost_ns.min(AHEAD_NS)));
    let sum_ns = in_flight_ns.saturating_add(cost_ns);
    if in_flight_ns == 0 || sum_ns <= bound_ns {
        return None;
    }
    Some(((sum_ns - bound_ns) / 2).clamp(WATCH_NS / 10, WATCH_NS))
}

/// The same beside a container of a higher priority: a little, or one launch. What is in flight ought to have
/// ended after `left_ns`.
fn too_much_beside_a_higher(in_flight_ns: u64, cost_ns: u64, left_ns: u64) -> Option<u64> {
    let bound_ns = BRIEF_IN_FLIGHT_NS.max(cost_ns);
    let sum_ns = in_flight_ns.saturating_add(cost_ns);
    if in_flight_ns == 0 || sum_ns <= bound_ns {
        return None;
    }
    let wait_ns = (sum_ns - bound_ns).min(left_ns);
    Some(wait_ns.clamp(WATCH_NS / 20, WATCH_NS))
}

/// Whether a launch is the second one of a pair: one is in flight, and no more is owed than that one was charged.
fn is_second(in_flight_ns: i64, credit_ns: i64, wanted_ns: u64) -> bool {
    in_flight_ns > 0 && credit_ns > 0_i64.saturating_sub_unsigned(wanted_ns)
}

/// What a thread takes at a time for the launches that follow, nanoseconds.
fn lease_ns(ahead: Ahead) -> u64 {
    match ahead {
        Ahead::Brief => BRIEF_LEASE_NS,
        Ahead::Usual | Ahead::Any => LEASE_NS,
    }
}

/// How much is launched to a stream between two marks, nanoseconds.
pub(super) fn due_ns(ahead: Ahead) -> u64 {
    match ahead {
        Ahead::Brief => BRIEF_DUE_NS,
        Ahead::Usual | Ahead::Any => DUE_NS,
    }
}

/// Whether work in flight is so late that it takes longer than was believed: nothing more is added to it until some
/// of it ends. `in_flight_ns` is how long it was believed to take, with the turns of others.
fn is_too_late(late_ns: u64, in_flight_ns: u64) -> bool {
    in_flight_ns > 0 && late_ns > in_flight_ns.saturating_mul(2).saturating_add(LATE_NS)
}

/// How long to sleep of a wait. Where work is in flight, or only a grant ends the wait, no longer than a
/// millisecond: what has ended may have cost less than was charged, and a grant may come.
fn nap_ns(wait_ns: u64, is_anything_busy: bool) -> u64 {
    let longest_ns = if is_anything_busy || wait_ns == u64::MAX {
        WATCH_NS * 2
    } else {
        LOOK_NS
    };
    wait_ns.min(longest_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn patience_doubles_four_times() {
        assert_eq!(
            [0, 1, 3, 4, 5, u32::MAX].map(patience_ns),
            [
                100 * MS,
                200 * MS,
                800 * MS,
                1600 * MS,
                1600 * MS,
                1600 * MS
            ]
        );
    }

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

    #[test]
    fn looks_become_rarer() {
        assert_eq!(
            [0, 3, 4, 8, 16, 20, u32::MAX].map(watch_ns),
            [50_000, 50_000, 100_000, 200_000, 800_000, 800_000, 800_000]
        );
    }

    #[test]
    fn launch_waits_for_room_in_flight() {
        for (in_flight, cost, wait) in [
            // Beside nothing, and up to 10 ms together.
            (0, 1000 * MS, None),
            (9 * MS, MS, None),
            (10 * MS, MS / 100, Some(50_000)),
            (20 * MS, MS, Some(500_000)),
            // A long launch goes beside as much again, up to 50 ms.
            (30 * MS, 30 * MS, None),
            (50 * MS, 200 * MS, None),
            (51 * MS, 200 * MS, Some(500_000)),
            (u64::MAX, u64::MAX, None),
        ] {
            assert_eq!(
                too_much_in_flight(in_flight, cost),
                wait,
                "{in_flight} {cost}"
            );
        }
    }

    #[test]
    fn little_is_in_flight_beside_a_higher_priority() {
        const US: u64 = 1_000;
        for (in_flight, cost, left, wait) in [
            // Beside nothing, and up to 0.3 ms together.
            (0, 1000 * MS, 0, None),
            (200 * US, 100 * US, 0, None),
            (250 * US, 100 * US, MS, Some(50 * US)),
            // A longer launch goes when nothing is in flight, and is looked at when that ought to have ended.
            (MS, MS, 300 * US, Some(300 * US)),
            (100 * MS, 100 * MS, 90 * MS, Some(500 * US)),
            (MS, MS, 0, Some(25 * US)),
            (u64::MAX, u64::MAX, u64::MAX, None),
        ] {
            let waits = too_much_beside_a_higher(in_flight, cost, left);
            assert_eq!(waits, wait, "{in_flight} {cost} {left}");
        }
    }

    #[test]
    fn one_launch_goes_behind_another_without_credit() {
        let cost = 1_000;
        assert!(is_second(1, -999, cost));
        // Nothing is in flight; or two are owed.
        assert!(!is_second(0, -999, cost));
        assert!(!is_second(1, -1_000, cost));
        assert!(!is_second(1, i64::MIN, u64::MAX));
    }

    #[test]
    fn late_work_is_not_added_to() {
        for (late, in_flight, too_late) in [
            (0, MS, false),
            (5 * MS, MS, false),
            (5 * MS + 1, MS, true),
            (100 * MS, 0, false),
            (u64::MAX, u64::MAX, false),
        ] {
            assert_eq!(is_too_late(late, in_flight), too_late, "{late} {in_flight}");
        }
    }

    #[test]
    fn nap_is_short_while_something_may_end_it() {
        assert_eq!(nap_ns(MS / 2, false), MS / 2);
        assert_eq!(nap_ns(80 * MS, false), 50 * MS);
        assert_eq!(nap_ns(80 * MS, true), MS);
        assert_eq!(nap_ns(u64::MAX, false), MS);
    }
}
