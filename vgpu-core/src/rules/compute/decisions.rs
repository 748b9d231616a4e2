//! The decisions about a launch: whether it is admitted at once, what it is charged, whether there is room for it in
//! flight, whether it is let in although nothing has ended, and how long it sleeps until it looks again. Pure
//! functions of numbers: no clock, no shared word, no call of the driver. `wait`, `gate` and `compute` read the
//! numbers and act.

use vgpu_abi::credit::LEASE_NS;
use vgpu_abi::targets::{Ahead, Grant};
use vgpu_abi::waits::WaitCause;

use super::timetable::Fit;
use crate::state::launches::DUE_NS;
use crate::state::launches::costs::Expected;
use crate::state::launches::costs::estimate::{MOST_WAITING_NS, scale};
use crate::state::launches::spans::MARKS;

/// Launches that a thread counts before it adds them to the region. It begins with one and doubles, so that a short
/// program is seen, too.
const MOST_UNTOLD: u32 = 256;
/// The charge of a launch of unknown cost, nanoseconds: the launch is measured, and no other one of unknown cost runs.
const UNKNOWN_NS: u64 = 100_000;

/// Work in flight on a device, of one process, beyond which launches wait: what was lent comes back as
/// soon as it is done. Nanoseconds, as all that follows.
const IN_FLIGHT_NS: u64 = 10_000_000;
/// The same of a container without a cap that is the only one on the device: what it queues before another one comes
/// delays that one for twice as long, and a program that launches ahead of itself for less is not slowed.
const MUCH_IN_FLIGHT_NS: u64 = 500_000_000;
/// The same beside a container of a higher priority, which waits for what is in flight when it starts.
const BRIEF_IN_FLIGHT_NS: u64 = 300_000;
/// The work that a thread may launch then without a look at the work in flight, nanoseconds.
const BRIEF_LEASE_NS: u64 = 50_000;
/// The bound is larger by the time that the process's threads lately woke too late, and by this at most: otherwise the
/// device would be idle for that time after each such wait.
const MOST_OVERSLEPT_NS: u64 = 200_000;
/// Beside a container of a higher priority: the work launched to a stream between two marks (recorded events),
/// nanoseconds. The marks show how much of it is still in flight.
const BRIEF_DUE_NS: u64 = 100_000;
/// At most this part of what is left of a container's interval is launched between two marks.
const DUES_BEFORE_THE_END: u64 = 4;
/// A launch that waits for a container of a higher priority looks again this often at first, and does so for this
/// long.
const BRIEF_NAP_NS: u64 = 200_000;
const BRIEF_NAPS_NS: u64 = 50_000_000;
/// The most of a long launch that may be in flight before another one.
const AHEAD_NS: u64 = 50_000_000;
/// If no work has ended for this long, a launch is let in all the same: the running work may wait for it. Twice
/// as long for the next launch, up to [`PATIENCE_DOUBLES`] times, until work ends: it may just be a long kernel.
pub(super) const PROGRESS_NS: u64 = 100_000_000;
const PATIENCE_DOUBLES: u32 = 4;
/// The least such time of a launch to the stream whose kernel runs and is all that the container's processes have in
/// flight. That kernel waits for no launch behind it in its own stream. Only a thread of the program that waits for the
/// launch may be what the kernel waits for.
const BEHIND_NS: u64 = 2_000_000_000;
/// A kernel that was expected to take longer than this counts as late from then on, nanoseconds: its estimate may be the
/// time that it waited before.
const BELIEVED_NS: u64 = 8_000_000_000;
/// Work in flight may end this much later than expected, beside the delay that its own length allows:
/// events and threads are noticed late on a busy machine.
const LATE_NS: u64 = 3_000_000;
/// Processes of a container whose work on a device is overdue at the same time, beside other containers. The work of one
/// may be waiting for a launch of the other. More of them would take from the other containers for as long as their
/// kernels run, which no credit ends.
const MOST_OVERDUE: u32 = 2;
/// Such work is overdue after this time: before the next launch that waits for it is out of patience.
pub(super) const OVERDUE_NS: u64 = PROGRESS_NS / 2;
/// Launches that are let in without credit for one state of work that is overdue.
const EXCUSES: u32 = 8;
/// A wait looks again at least this often.
const LOOK_NS: u64 = 50_000_000;
/// The same while the wait ends by another's doing: other work that ends, or a grant.
const WATCH_NS: u64 = 500_000;
/// Time between the first looks of such a wait: most launches are shorter.
const FIRST_WATCH_NS: u64 = WATCH_NS / 10;
/// After this many looks the time between two of them doubles, up to [`WATCH_DOUBLES`] times.
const WATCHES_UNTIL_RARER: u32 = 4;
const WATCH_DOUBLES: u32 = 4;
/// A look costs some microseconds, so no wait for work is shorter than this.
const LEAST_WATCH_NS: u64 = WATCH_NS / 20;
/// A thread that woke less late than estimated lowers the estimate by one part in this many.
const OVERSLEPT_FALLS: u64 = 16;

/// What held when a thread's gate was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    /// See [`opened_epoch`].
    pub(super) epoch: u64,
    /// The generations of the limits and of the targets.
    pub(super) limits: u64,
    pub(super) targets: u64,
}

/// The epoch of a gate that is opened in the process's `epoch`: that epoch plus one, or 0 (closed) while any thread
/// captures.
pub(super) fn opened_epoch(captures: u32, epoch: u64) -> u64 {
    match captures {
        0 => epoch + 1,
        _ => 0,
    }
}

/// Whether a gate is still open: the epoch and both generations are those in which it was opened. The
/// functions read a value only if those before it are right: so the hook of a launch has few values at a time.
#[inline(always)]
pub(super) fn is_open(
    opened: Opened,
    epoch: impl FnOnce() -> u64,
    limits: impl FnOnce() -> u64,
    targets: impl FnOnce() -> u64,
) -> bool {
    opened.epoch == epoch() + 1 && opened.limits == limits() && opened.targets == targets()
}

/// The rest of a thread's lease and the work that it has launched since its last look, nanoseconds, after a launch
/// that costs `cost_ns`. `None`: it has less left, or its work is due to be measured.
#[inline(always)]
pub(super) fn spent(left_ns: u64, work_ns: u64, cost_ns: u64) -> Option<(u64, u64)> {
    let left_ns = left_ns.checked_sub(cost_ns)?;
    let work_ns = work_ns + cost_ns;
    (work_ns < DUE_NS).then_some((left_ns, work_ns))
}

/// How many launches a thread counts before it next adds them to the region, after it added `untold`.
pub(super) fn next_untold(untold: u32) -> u32 {
    untold.saturating_mul(2).clamp(1, MOST_UNTOLD)
}

/// Whether launches on a device with this limit (percent; 0 is none) may go without a look, if nothing else bounds them.
pub(super) fn may_be_free(percent: u32) -> bool {
    matches!(percent, 0 | 100..)
}

/// The charge of a launch in advance, nanoseconds. For `overdue_ns` it waited for one of unknown cost that did not
/// end: one that is let in beside it is charged for as long.
pub(super) fn charge_ns(expected: Expected, overdue_ns: u64) -> u64 {
    match expected {
        Expected::Known(ns) | Expected::Guessed(ns) => ns,
        Expected::Unknown => UNKNOWN_NS.max(overdue_ns),
    }
}

/// The turn of a launch of unknown cost while another one is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It waits, and looks again after this long, nanoseconds.
    Waits(u64),
    /// The other one's process shows no progress, or its launch waits for this one. The other one, which has shown no
    /// progress for this long (nanoseconds), counts no longer.
    TakesOver(u64),
}

/// The turn of a launch of unknown cost. `quiet_ns`: how long the other one has shown no progress; `None`: it has ended.
/// After `stalls` launches that were let in without progress, and `rounds` looks. `may_help` is [`may_help`] after this
/// quiet time, and asked only where it decides.
pub(super) fn turn(
    quiet_ns: Option<u64>,
    stalls: u32,
    rounds: u32,
    may_help: impl FnOnce(u64) -> bool,
) -> Turn {
    let Some(quiet_ns) = quiet_ns else {
        return Turn::Waits(0);
    };
    if quiet_ns < patience_ns(stalls) || !may_help(quiet_ns) {
        return Turn::Waits(watch_ns(rounds));
    }
    Turn::TakesOver(quiet_ns.min(MOST_WAITING_NS))
}

/// Whether a launch has to be measured before others like it go, because its cost is not well known. Not where much may be
/// in flight.
pub(super) fn is_measured_first(expected: Expected, is_roomy: bool) -> bool {
    !is_roomy && !matches!(expected, Expected::Known(_))
}

/// Whether a launch waits until its stream has room for an event, if it has to be measured. `waited_ns`: how long it has
/// waited, as in all that follows; `None`: it does not yet.
pub(super) fn waits_for_mark(is_measured: bool, has_room: bool, waited_ns: Option<u64>) -> bool {
    is_measured && !has_room && waited_ns.is_none_or(|waited_ns| waited_ns < PROGRESS_NS)
}

/// How long ago the later of two moments was, nanoseconds; 0 while one of them is to come.
pub(super) fn since_both_ns(one_ns: u64, other_ns: u64, now_ns: u64) -> u64 {
    now_ns.saturating_sub(one_ns.max(other_ns))
}

/// Whether the other containers are to know that a launch waits for this cause: without an arbiter, containers at their
/// caps ask one another for a longer interval.
pub(super) fn asks_others(cause: WaitCause, has_arbiter: bool) -> bool {
    cause == WaitCause::Cap && !has_arbiter
}

/// Whether a launch without credit has waited long enough to go all the same, if work is overdue. At a rate of nothing it
/// has not: another container has the device.
pub(super) fn may_be_excused(permille: u32, waited_ns: Option<u64>, stalls: u32) -> bool {
    permille != 0 && waited_ns.is_some_and(|waited_ns| waited_ns >= patience_ns(stalls))
}

/// Whether one more launch is admitted without credit for a state of overdue work, after `before` of them.
pub(super) fn is_excused(before: u32) -> bool {
    before < EXCUSES
}

/// Whether a launch goes without room in flight: nothing has ended for `quiet_ns`, so what is in flight may be waiting for
/// it.
pub(super) fn goes_without_an_end(
    waited_ns: Option<u64>,
    quiet_ns: u64,
    stalls: u32,
    may_help: impl FnOnce(u64) -> bool,
) -> bool {
    waited_ns.is_some_and(|waited_ns| waited_ns >= PROGRESS_NS)
        && quiet_ns >= patience_ns(stalls)
        && may_help(quiet_ns)
}

/// How long work in flight still takes that was charged `charged_ns` in all, nanoseconds: it ends when it was expected to,
/// or when all of it would have run since the last launch.
pub(super) fn left_ns(charged_ns: u64, launched_ns: u64, expected_by_ns: u64, now_ns: u64) -> u64 {
    let end_ns = expected_by_ns.min(launched_ns.saturating_add(charged_ns));
    end_ns.saturating_sub(now_ns)
}

/// When the work in flight ought to have ended: all of it keeps the device busy for `paced_ns`, and what has ended since
/// the last event is still counted in it, so no later than `ends_at_ns`. 0: nothing is in flight.
pub(super) fn busy_until_ns(in_flight_ns: u64, paced_ns: u64, ends_at_ns: u64, now_ns: u64) -> u64 {
    match in_flight_ns {
        0 => 0,
        _ => ends_at_ns.min(now_ns.saturating_add(paced_ns)),
    }
}

/// The work that ends with a launch, nanoseconds: what was in flight before it, and the least that it takes itself.
/// `in_flight_ns` has its charge.
pub(super) fn ahead_ns(in_flight_ns: u64, charged_ns: u64, least_ns: u64) -> u64 {
    in_flight_ns
        .saturating_sub(charged_ns)
        .saturating_add(least_ns)
}

/// The work that a thread may launch next without a look, nanoseconds of its own time: what it took from the account
/// beyond the launch, or, where nothing is charged to an account, what there is room for.
pub(super) fn thread_lease_ns(is_charged: bool, more_ns: u64, most_ns: u64, weight: u32) -> u64 {
    match is_charged {
        true => scale(more_ns, u64::from(Grant::ONE), u64::from(weight)),
        false => most_ns,
    }
}

/// A process's work in flight on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Flight {
    /// Charged work that is not known to have ended, nanoseconds.
    pub(super) charged_ns: u64,
    /// How long it still takes if it takes as long as it was believed to, nanoseconds; 0: it ought to have ended.
    pub(super) left_ns: u64,
    /// How long it was believed to take, with the turns of other processes, nanoseconds.
    pub(super) believed_ns: u64,
    /// How much later it is than that, and than the last end of work, nanoseconds.
    pub(super) late_ns: u64,
    /// An event behind some of it has not happened yet. Without one it is not known whether work has ended.
    pub(super) is_marked: bool,
}

/// How much a process may have in flight on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// At most this many nanoseconds, or one launch of any length, or two launches shorter than [`AHEAD_NS`].
    Most(u64),
    /// Little, or one launch: a container of a higher priority waits for it. The process's threads wake too late by
    /// `overslept_ns`.
    Brief {
        /// Nanoseconds.
        overslept_ns: u64,
    },
}

impl Bound {
    /// The bound that the arbiter has set.
    pub(super) fn of(ahead: Ahead, has_cap: bool, overslept_ns: u64) -> Self {
        match ahead {
            Ahead::Brief => Self::Brief { overslept_ns },
            Ahead::Much | Ahead::Any if !has_cap => Self::Most(MUCH_IN_FLIGHT_NS),
            Ahead::Usual | Ahead::Any | Ahead::Much => Self::Most(IN_FLIGHT_NS),
        }
    }
}

/// Whether there is room in flight for a launch that costs `cost_ns`: how much is left for launches that follow at once,
/// nanoseconds. After `rounds` looks.
///
/// # Errors
/// How long to wait before another look, nanoseconds.
pub(super) fn room(flight: &Flight, cost_ns: u64, bound: Bound, rounds: u32) -> Result<u64, u64> {
    if flight.is_marked && is_too_late(flight) {
        return Err(watch_ns(rounds));
    }
    match bound {
        Bound::Most(most_ns) => match too_much_in_flight(flight.charged_ns, cost_ns, most_ns) {
            Some(wait_ns) => Err(wait_ns),
            None => Ok(u64::MAX),
        },
        Bound::Brief { overslept_ns } => brief_room(flight, cost_ns, overslept_ns),
    }
}

/// Whether work in flight is so late that its estimate must be wrong. Then no launch is admitted until some of it
/// ends.
fn is_too_late(flight: &Flight) -> bool {
    let believed_ns = flight.believed_ns;
    believed_ns > 0 && flight.late_ns > believed_ns.saturating_mul(2).saturating_add(LATE_NS)
}

/// How long to wait before another look, where a launch would be too much beside the work in flight; `None`:
/// there is room. Beside nothing, every launch has room.
fn too_much_in_flight(in_flight_ns: u64, cost_ns: u64, most_ns: u64) -> Option<u64> {
    let bound_ns = most_ns.max(cost_ns.saturating_add(cost_ns.min(AHEAD_NS)));
    let sum_ns = in_flight_ns.saturating_add(cost_ns);
    if in_flight_ns == 0 || sum_ns <= bound_ns {
        return None;
    }
    // Half of it, since what is in flight may end sooner than it was charged.
    Some(((sum_ns - bound_ns) / 2).clamp(FIRST_WATCH_NS, WATCH_NS))
}

/// [`room`] beside a container of a higher priority: a little, or one launch. A thread that wakes late may launch its
/// work that much before the work in flight ends.
fn brief_room(flight: &Flight, cost_ns: u64, overslept_ns: u64) -> Result<u64, u64> {
    let overslept_ns = overslept_ns.min(MOST_OVERSLEPT_NS);
    let bound_ns = BRIEF_IN_FLIGHT_NS.max(cost_ns).saturating_add(overslept_ns);
    let sum_ns = flight.charged_ns.saturating_add(cost_ns);
    // Work that takes longer than it was believed to may take much longer.
    let is_nearly_done = flight.left_ns > 0 && flight.left_ns <= overslept_ns;
    if flight.charged_ns == 0 || is_nearly_done || sum_ns <= bound_ns {
        return Ok(bound_ns.saturating_sub(sum_ns).min(BRIEF_LEASE_NS));
    }
    let left_ns = flight.left_ns.saturating_sub(overslept_ns);
    let wait_ns = (sum_ns - bound_ns).min(left_ns);
    Err(wait_ns.clamp(LEAST_WATCH_NS, WATCH_NS))
}

/// Whether launches go in pairs: beside containers at work, where no arbiter makes a timetable.
pub(super) fn goes_in_pairs(has_arbiter: bool, is_contended: bool) -> bool {
    !has_arbiter && is_contended
}

/// Whether a launch is the second one of a pair: one is in flight, and no more is owed than that one was charged.
pub(super) fn is_second(in_flight_ns: i64, credit_ns: i64, wanted_ns: u64) -> bool {
    in_flight_ns > 0 && credit_ns > 0_i64.saturating_sub_unsigned(wanted_ns)
}

/// What a launch takes from the container's account, nanoseconds of its own time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draw {
    /// The launch waits until there is credit for this much.
    pub(super) wanted_ns: u64,
    /// At most this much is taken beyond it, where there is credit for more.
    pub(super) more_ns: u64,
    /// The thread launches at most this much next without a look.
    pub(super) most_ns: u64,
}

/// What a launch that costs `cost_ns` takes from the account, if `room_ns` of room is left in flight. `fit`: how it lies
/// in the container's interval, if there is a timetable. The time of the interval is the container's own, so only the
/// part of the launch beyond it is taken, and what follows ends with the interval.
pub(super) fn draw(cost_ns: u64, fit: Option<Fit>, room_ns: u64) -> Draw {
    let lease_ns = room_ns.min(LEASE_NS);
    match fit {
        Some(fit) => Draw {
            wanted_ns: fit.beyond_ns,
            more_ns: 0,
            most_ns: fit.left_ns.min(lease_ns),
        },
        None => Draw {
            wanted_ns: cost_ns,
            more_ns: lease_ns,
            most_ns: lease_ns,
        },
    }
}

/// Whether a launch that is charged `charged_ns` is measured, when `unmarked_ns` were launched to its stream since the
/// last measured one. `is_well_known`: its cost was measured often enough. `due_ns`: see [`due_ns`].
pub(super) fn is_measured(
    is_well_known: bool,
    unmarked_ns: u64,
    charged_ns: u64,
    due_ns: u64,
) -> bool {
    !is_well_known || unmarked_ns.saturating_add(charged_ns) >= due_ns
}

/// The work launched to a stream between two events, nanoseconds. `left_ns`: what is left of the container's interval
/// behind the launch. Launches without an event behind them count as in flight, so events stand the closer together the
/// nearer the interval's end is: otherwise its last part would be left to work that has long ended. Where much may be
/// in flight, the events that a stream may have stand evenly in it: otherwise most of it would seem to end at once. Beside
/// containers of a lower priority, which go on when the work has ended, they stand the closer together the less of it
/// is in flight (`in_flight_ns`).
pub(super) fn due_ns(ahead: Ahead, has_cap: bool, left_ns: u64, in_flight_ns: u64) -> u64 {
    const EVENLY_NS: u64 = MUCH_IN_FLIGHT_NS / MARKS as u64;
    match ahead {
        Ahead::Brief => BRIEF_DUE_NS,
        Ahead::Much if !has_cap => EVENLY_NS,
        Ahead::Any if !has_cap => in_flight_ns.clamp(DUE_NS, EVENLY_NS),
        Ahead::Usual | Ahead::Any | Ahead::Much => {
            (left_ns / DUES_BEFORE_THE_END).clamp(BRIEF_DUE_NS, DUE_NS)
        }
    }
}

/// The time without any end of work after which a launch is let in all the same, after `stalls` such launches.
pub(super) fn patience_ns(stalls: u32) -> u64 {
    PROGRESS_NS << stalls.min(PATIENCE_DOUBLES)
}

/// The work in flight that a launch waits for, where nothing has ended for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Processes of the container whose work on the device is overdue; 0 on a device that no other container uses,
    /// because no other container loses time there.
    pub(super) overdue_processes: u32,
    /// All of it is the running kernel of the launch's own stream, and work behind that.
    pub(super) is_in_own_stream: bool,
}

/// Whether a launch that is let in without credit or room may end the wait, after nothing has ended for `quiet_ns`. Not
/// where so many processes have overdue work that one more would not help. And behind work of its own stream, which
/// cannot wait for it, only when that work is late by long ([`late_ns`]).
pub(super) fn may_help(held: Held, quiet_ns: u64, late_ns: u64) -> bool {
    let is_late = quiet_ns.min(late_ns) >= BEHIND_NS;
    held.overdue_processes < MOST_OVERDUE && (!held.is_in_own_stream || is_late)
}

/// How late the work in flight is, nanoseconds, if it ought to have ended at `expected_by_ns`: a kernel of a second that
/// shares the device takes several. Where more than [`BELIEVED_NS`] were expected since some work last ended, no more than
/// that is believed.
pub(super) fn late_ns(expected_by_ns: u64, progress_ns: u64, now_ns: u64) -> u64 {
    let believed_ns = progress_ns.saturating_add(BELIEVED_NS);
    now_ns.saturating_sub(expected_by_ns.min(believed_ns).max(progress_ns))
}

/// How long a launch sleeps that waits for the end of another one: briefly at first, for short launches, then
/// up to 16 times as long.
pub(super) fn watch_ns(rounds: u32) -> u64 {
    FIRST_WATCH_NS << (rounds / WATCHES_UNTIL_RARER).min(WATCH_DOUBLES)
}

/// How long to sleep of a wait that began `waited_ns` ago. Where work is in flight, or only a grant ends the wait, no
/// longer than a millisecond: what has ended may have cost less than was charged, and a grant may come. The time that
/// a container of a higher priority leaves comes in pieces.
pub(super) fn nap_ns(wait_ns: u64, waited_ns: u64, ahead: Ahead, is_anything_busy: bool) -> u64 {
    let longest_ns = if ahead == Ahead::Brief && waited_ns < BRIEF_NAPS_NS {
        BRIEF_NAP_NS
    } else if is_anything_busy || wait_ns == u64::MAX {
        WATCH_NS * 2
    } else {
        LOOK_NS
    };
    wait_ns.min(longest_ns)
}

/// Whether a sleep of `nap_ns` has to be exact to some microseconds: beside a container of a higher priority the
/// device is idle while a launch sleeps for too long.
pub(super) fn is_exact(ahead: Ahead, nap_ns: u64) -> bool {
    ahead == Ahead::Brief && nap_ns <= WATCH_NS
}

/// How much too late threads wake, after one that slept for `slept_ns` instead of `nap_ns`: up at once by half, and down
/// slowly, because one late thread costs more than a little more in flight.
pub(super) fn oversleeping_ns(old_ns: u64, nap_ns: u64, slept_ns: u64) -> u64 {
    let late_ns = slept_ns.saturating_sub(nap_ns).min(MOST_OVERSLEPT_NS);
    let old_ns = old_ns.min(MOST_OVERSLEPT_NS);
    if late_ns > old_ns {
        old_ns + (late_ns - old_ns).div_ceil(2)
    } else {
        old_ns - (old_ns - late_ns) / OVERSLEPT_FALLS
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;

    #[test]
    fn gate_is_open_until_something_changes() {
        let opened = Opened {
            epoch: opened_epoch(0, 4),
            limits: 7,
            targets: 9,
        };
        assert!(is_open(opened, || 4, || 7, || 9));
        for (epoch, limits, targets) in [(5, 7, 9), (3, 7, 9), (4, 8, 9), (4, 7, 10), (4, 6, 9)] {
            assert!(!is_open(opened, || epoch, || limits, || targets));
        }
    }

    #[test]
    fn gate_stays_closed_while_a_thread_captures() {
        for captures in [1, 2, u32::MAX] {
            let opened = Opened {
                epoch: opened_epoch(captures, 4),
                limits: 7,
                targets: 9,
            };
            assert!((0..6).all(|epoch| !is_open(opened, || epoch, || 7, || 9)));
        }
        // The memory of a thread that has opened no gate is zero.
        let never = Opened {
            epoch: 0,
            limits: 0,
            targets: 0,
        };
        assert!(!is_open(never, || 0, || 0, || 0));
    }

    #[test]
    fn thread_spends_its_lease_until_its_work_is_due() {
        assert_eq!(spent(100, 0, 60), Some((40, 60)));
        assert_eq!(spent(100, 0, 101), None);
        assert_eq!(
            spent(u64::MAX, DUE_NS - 10, 9),
            Some((u64::MAX - 9, DUE_NS - 1))
        );
        assert_eq!(spent(u64::MAX, DUE_NS - 10, 10), None);
        // It adds its launches to the region more and more rarely.
        let told = core::iter::successors(Some(0), |untold| Some(next_untold(*untold)));
        assert_eq!(
            told.take(11).collect::<Vec<_>>(),
            [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256]
        );
        assert_eq!(next_untold(u32::MAX), 256);
    }

    #[test]
    fn only_a_device_without_a_cap_may_be_free() {
        let free = [0, 1, 99, 100, u32::MAX].map(may_be_free);
        assert_eq!(free, [true, false, false, true, true]);
    }

    #[test]
    fn unknown_launch_is_charged_for_the_time_that_the_one_before_it_was_quiet() {
        assert_eq!(charge_ns(Expected::Known(7), MS), 7);
        assert_eq!(charge_ns(Expected::Guessed(7), MS), 7);
        assert_eq!(charge_ns(Expected::Unknown, 0), 100 * US);
        assert_eq!(charge_ns(Expected::Unknown, MS), MS);
    }

    #[test]
    fn one_launch_of_unknown_cost_is_in_flight() {
        let turn = |quiet_ns, stalls, is_stuck: bool| turn(quiet_ns, stalls, 0, |_| !is_stuck);
        // The other one has ended; it runs; it is quiet for too long.
        assert_eq!(turn(None, 0, true), Turn::Waits(0));
        assert_eq!(turn(Some(100 * MS - 1), 0, false), Turn::Waits(50 * US));
        assert_eq!(turn(Some(100 * MS), 0, false), Turn::TakesOver(50 * MS));
        // Others were let in before; two processes have overdue work.
        assert_eq!(turn(Some(100 * MS), 1, false), Turn::Waits(50 * US));
        assert_eq!(turn(Some(u64::MAX), 0, true), Turn::Waits(50 * US));
        // Before it is out of patience nothing else is asked.
        let unasked = |_| panic!("asked");
        assert_eq!(super::turn(Some(0), 0, 0, unasked), Turn::Waits(50 * US));
    }

    #[test]
    fn launch_that_is_to_be_measured_waits_for_room_for_its_event() {
        assert!(waits_for_mark(true, false, None));
        assert!(waits_for_mark(true, false, Some(100 * MS - 1)));
        assert!(!waits_for_mark(true, false, Some(100 * MS)));
        assert!(!waits_for_mark(false, false, None));
        assert!(!waits_for_mark(true, true, None));
    }

    #[test]
    fn only_a_launch_of_well_known_cost_need_not_be_measured_first() {
        assert!(is_measured_first(Expected::Unknown, false));
        assert!(is_measured_first(Expected::Guessed(7), false));
        assert!(!is_measured_first(Expected::Known(7), false));
        for expected in [Expected::Unknown, Expected::Guessed(7), Expected::Known(7)] {
            assert!(!is_measured_first(expected, true));
        }
    }

    #[test]
    fn quiet_time_begins_with_the_later_moment() {
        assert_eq!(since_both_ns(10, 40, 100), 60);
        assert_eq!(since_both_ns(40, 10, 100), 60);
        assert_eq!(since_both_ns(10, 140, 100), 0);
        assert_eq!(since_both_ns(140, 10, 100), 0);
    }

    #[test]
    fn containers_without_an_arbiter_ask_one_another_at_their_caps() {
        let asking = |has_arbiter| WaitCause::ALL.map(|cause| asks_others(cause, has_arbiter));
        for (cause, asks) in WaitCause::ALL.into_iter().zip(asking(false)) {
            assert_eq!(asks, cause == WaitCause::Cap, "{cause:?}");
        }
        assert!(!asking(true).contains(&true));
    }

    #[test]
    fn launch_outside_of_a_timetable_draws_its_cost_and_a_lease() {
        let drawn = |wanted_ns, lease_ns| Draw {
            wanted_ns,
            more_ns: lease_ns,
            most_ns: lease_ns,
        };
        assert_eq!(draw(7, None, u64::MAX), drawn(7, LEASE_NS));
        assert_eq!(draw(7, None, LEASE_NS - 1), drawn(7, LEASE_NS - 1));
        assert_eq!(draw(7, None, 0), drawn(7, 0));
    }

    #[test]
    fn launch_in_an_interval_draws_what_lies_beyond_it() {
        let fit = |left_ns, beyond_ns| Some(Fit { left_ns, beyond_ns });
        let drawn = |wanted_ns, most_ns| Draw {
            wanted_ns,
            more_ns: 0,
            most_ns,
        };
        assert_eq!(draw(7, fit(LEASE_NS, 0), u64::MAX), drawn(0, LEASE_NS));
        assert_eq!(draw(7, fit(0, 4), u64::MAX), drawn(4, 0));
        // What follows ends with the interval, and has no more than there is room for.
        assert_eq!(draw(7, fit(50, 0), 60), drawn(0, 50));
        assert_eq!(draw(7, fit(60, 0), 50), drawn(0, 50));
        assert_eq!(draw(7, fit(u64::MAX, 0), u64::MAX), drawn(0, LEASE_NS));
    }

    #[test]
    fn launches_go_in_pairs_beside_others_without_an_arbiter() {
        let pairs = [(false, true), (false, false), (true, true), (true, false)]
            .map(|(has_arbiter, is_contended)| goes_in_pairs(has_arbiter, is_contended));
        assert_eq!(pairs, [true, false, false, false]);
    }

    #[test]
    fn eight_launches_go_without_credit_after_a_long_wait() {
        assert!(!may_be_excused(100, None, 0));
        assert!(!may_be_excused(100, Some(100 * MS - 1), 0));
        assert!(may_be_excused(100, Some(100 * MS), 0));
        assert!(!may_be_excused(100, Some(100 * MS), 1));
        assert!(!may_be_excused(0, Some(u64::MAX), 0));
        assert!(is_excused(7) && !is_excused(8));
    }

    #[test]
    fn launch_without_room_goes_when_nothing_ends() {
        let goes = |waited_ns, quiet_ns, stalls| {
            goes_without_an_end(waited_ns, quiet_ns, stalls, |asked_ns| asked_ns == quiet_ns)
        };
        assert!(goes(Some(100 * MS), 100 * MS, 0));
        assert!(!goes(None, u64::MAX, 0));
        assert!(!goes(Some(100 * MS - 1), u64::MAX, 0));
        assert!(!goes(Some(u64::MAX), 199 * MS, 1));
        assert!(!goes_without_an_end(Some(u64::MAX), u64::MAX, 0, |_| false));
    }

    #[test]
    fn work_in_flight_ends_when_its_charges_say() {
        // Expected in 3 ms; all of it would have run in 2 ms; it ought to have ended.
        assert_eq!(left_ns(9 * MS, 10 * MS, 13 * MS, 10 * MS), 3 * MS);
        assert_eq!(left_ns(2 * MS, 10 * MS, 13 * MS, 10 * MS), 2 * MS);
        assert_eq!(left_ns(2 * MS, 10 * MS, 13 * MS, 12 * MS), 0);
        assert_eq!(busy_until_ns(0, 0, u64::MAX, 7), 0);
        assert_eq!(busy_until_ns(4 * MS, MS, u64::MAX, 7), MS + 7);
        assert_eq!(busy_until_ns(4 * MS, MS, 8, 7), 8);
        // A launch's own charge is replaced by the least that it takes.
        assert_eq!(ahead_ns(5 * MS, 2 * MS, MS), 4 * MS);
    }

    #[test]
    fn lease_is_worth_more_own_time_where_that_counts_less() {
        let one = u32::from(Grant::ONE);
        assert_eq!(thread_lease_ns(true, MS, 7, one), MS);
        assert_eq!(thread_lease_ns(true, MS, 7, one / 2), 2 * MS);
        assert_eq!(thread_lease_ns(false, MS, 7, one), 7);
    }

    #[test]
    fn patience_doubles_four_times() {
        let ms = [0, 1, 3, 4, 5, u32::MAX].map(|stalls| patience_ns(stalls) / MS);
        assert_eq!(ms, [100, 200, 800, 1600, 1600, 1600]);
    }

    #[test]
    fn looks_become_rarer() {
        assert_eq!(
            [0, 3, 4, 8, 16, 20, u32::MAX].map(watch_ns),
            [50_000, 50_000, 100_000, 200_000, 800_000, 800_000, 800_000]
        );
    }

    #[test]
    fn third_process_with_overdue_work_waits_where_others_have_the_device_too() {
        let helps = |overdue_processes| {
            let held = Held {
                overdue_processes,
                is_in_own_stream: false,
            };
            may_help(held, PROGRESS_NS, PROGRESS_NS)
        };
        assert!(helps(0) && helps(1));
        assert!(!helps(2));
    }

    #[test]
    fn launch_behind_the_only_running_kernel_waits_longer_and_not_for_ever() {
        for overdue_processes in [0, 1] {
            let held = Held {
                overdue_processes,
                is_in_own_stream: true,
            };
            let helps = |quiet_ns, late_ns| may_help(held, quiet_ns, late_ns);
            assert!(!helps(2_000 * MS - 1, u64::MAX) && !helps(u64::MAX, 2_000 * MS - 1));
            assert!(helps(2_000 * MS, 2_000 * MS));
        }
    }

    #[test]
    fn work_is_late_from_the_time_at_which_it_was_expected_to_end() {
        let late = |expected_by_ms, progress_ms, now_ms| {
            late_ns(expected_by_ms * MS, progress_ms * MS, now_ms * MS) / MS
        };
        assert_eq!(late(3_000, 1_000, 2_500), 0);
        assert_eq!(late(3_000, 1_000, 5_000), 2_000);
        // Some of it has ended since; more was expected than is believed.
        assert_eq!(late(3_000, 4_000, 5_000), 1_000);
        assert_eq!(late(60_000, 1_000, 10_000), 1_000);
    }

    #[test]
    fn launch_is_measured_until_its_cost_is_well_known_and_then_now_and_then() {
        let far = |known, unmarked_ns, charged_ns, ahead| {
            is_measured(
                known,
                unmarked_ns,
                charged_ns,
                due_ns(ahead, true, u64::MAX, u64::MAX),
            )
        };
        assert!(far(false, 0, 1, Ahead::Usual));
        assert!(!far(true, 500 * US, 499 * US, Ahead::Usual));
        assert!(far(true, 500 * US, 500 * US, Ahead::Any));
        assert!(!far(true, 0, 99 * US, Ahead::Brief));
        assert!(far(true, 100 * US, 100 * US, Ahead::Brief));
        assert!(far(true, u64::MAX, u64::MAX, Ahead::Much));
        assert!(far(true, 0, MS, Ahead::Much));
        // Eight events stand in all that may be in flight.
        assert_eq!(due_ns(Ahead::Much, false, u64::MAX, 0), 62_500 * US);
        let above = |in_flight_ns| due_ns(Ahead::Any, false, u64::MAX, in_flight_ns) / US;
        assert_eq!(
            [0, MS, 5 * MS, u64::MAX].map(above),
            [1_000, 1_000, 5_000, 62_500]
        );
    }

    #[test]
    fn launches_are_measured_more_often_near_the_end_of_an_interval() {
        let near = |left_ns, unmarked_ns| {
            is_measured(
                true,
                unmarked_ns,
                US,
                due_ns(Ahead::Usual, true, left_ns, 0),
            )
        };
        assert!(!near(4 * MS, 998 * US) && near(4 * MS, 999 * US));
        assert!(!near(MS, 248 * US) && near(MS, 249 * US));
        assert!(!near(0, 98 * US) && near(0, 99 * US));
    }

    #[test]
    fn bound_follows_from_the_arbiters_word() {
        let most = |ahead, has_cap| match Bound::of(ahead, has_cap, 0) {
            Bound::Most(ns) => ns / MS,
            Bound::Brief { .. } => 0,
        };
        assert_eq!(most(Ahead::Usual, false), 10);
        assert_eq!(most(Ahead::Much, false), 500);
        assert_eq!(most(Ahead::Any, false), 500);
        assert_eq!(most(Ahead::Much, true), 10);
        assert_eq!(most(Ahead::Any, true), 10);
        assert_eq!(most(Ahead::Brief, false), 0);
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
                too_much_in_flight(in_flight, cost, IN_FLIGHT_NS),
                wait,
                "{in_flight} {cost}"
            );
        }
    }

    /// Work in flight beside a container of a higher priority.
    fn flight(charged_ns: u64, left_ns: u64, is_marked: bool) -> Flight {
        Flight {
            charged_ns,
            left_ns,
            is_marked,
            ..Flight::default()
        }
    }

    #[test]
    fn little_is_in_flight_beside_a_higher_priority() {
        let brief = |charged, left, cost, overslept_ns| {
            let bound = Bound::Brief { overslept_ns };
            room(&flight(charged, left, true), cost, bound, 0)
        };
        // Beside nothing, and up to 0.3 ms together.
        assert_eq!(brief(0, 0, 1000 * MS, 0), Ok(0));
        assert_eq!(brief(200 * US, 0, 100 * US, 0), Ok(0));
        assert_eq!(brief(100 * US, 0, 20 * US, 0), Ok(50 * US));
        assert_eq!(brief(250 * US, MS, 100 * US, 0), Err(50 * US));
        // A longer launch goes when nothing is in flight, and is looked at when that ought to have ended.
        assert_eq!(brief(MS, 300 * US, MS, 0), Err(300 * US));
        assert_eq!(brief(100 * MS, 90 * MS, 100 * MS, 0), Err(500 * US));
        assert_eq!(brief(MS, 0, MS, 0), Err(25 * US));
        // Threads that wake late have that much more in flight.
        assert_eq!(brief(300 * US, MS, 100 * US, 100 * US), Ok(0));
        assert_eq!(brief(MS, 100 * US, MS, 100 * US), Ok(0));
        assert_eq!(brief(MS, 300 * US, MS, 100 * US), Err(200 * US));
        assert_eq!(brief(MS, 300 * US, MS, 10 * MS), Err(100 * US));
        // It runs for longer than it was believed to.
        assert_eq!(brief(MS, 0, MS, 100 * US), Err(25 * US));
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
        for (late_ns, believed_ns, is_late) in [
            (0, MS, false),
            (5 * MS, MS, false),
            (5 * MS + 1, MS, true),
            (100 * MS, 0, false),
            (u64::MAX, u64::MAX, false),
        ] {
            let flight = Flight {
                late_ns,
                believed_ns,
                is_marked: true,
                ..Flight::default()
            };
            assert_eq!(is_too_late(&flight), is_late, "{late_ns} {believed_ns}");
            let told = room(&flight, MS, Bound::Most(IN_FLIGHT_NS), 4);
            assert_eq!(told.is_err(), is_late);
        }
    }

    #[test]
    fn nap_is_short_while_something_may_end_it() {
        let nap = |wait_ns, is_busy| nap_ns(wait_ns, 0, Ahead::Usual, is_busy);
        assert_eq!(nap(MS / 2, false), MS / 2);
        assert_eq!(nap(80 * MS, false), 50 * MS);
        assert_eq!(nap(80 * MS, true), MS);
        assert_eq!(nap(u64::MAX, false), MS);
        // Beside a container of a higher priority, and after a long wait for it.
        assert_eq!(nap_ns(u64::MAX, 49 * MS, Ahead::Brief, false), 200 * US);
        assert_eq!(nap_ns(u64::MAX, 50 * MS, Ahead::Brief, false), MS);
    }

    #[test]
    fn oversleeping_is_believed_soon_and_forgotten_slowly() {
        let late = oversleeping_ns(0, 100 * US, 220 * US);
        assert_eq!(late, 60 * US);
        let later = (0..16).fold(late, |old, _| oversleeping_ns(old, 100 * US, 100 * US));
        assert!((15 * US..30 * US).contains(&later), "{later}");
        assert_eq!(oversleeping_ns(u64::MAX, 0, u64::MAX), MOST_OVERSLEPT_NS);
    }

    fn any_flight() -> impl Strategy<Value = Flight> {
        let ns = || prop_oneof![any::<u64>(), 0..2 * MS, Just(0)];
        (ns(), ns(), ns(), ns(), any::<bool>()).prop_map(
            |(charged_ns, left_ns, believed_ns, late_ns, is_marked)| Flight {
                charged_ns,
                left_ns,
                believed_ns,
                late_ns,
                is_marked,
            },
        )
    }

    proptest! {
        /// A launch of unknown cost that waits looks again within a bounded time, and takes over no sooner than
        /// running work has had the time to end.
        #[test]
        fn unknown_launch_waits_for_another_one_but_not_for_ever(
            quiet_ns: u64, stalls: u32, rounds: u32, is_stuck: bool,
        ) {
            match turn(Some(quiet_ns), stalls, rounds, |_| !is_stuck) {
                Turn::Waits(wait_ns) => {
                    prop_assert!(is_stuck || quiet_ns < patience_ns(stalls));
                    prop_assert!((FIRST_WATCH_NS..=2 * WATCH_NS).contains(&wait_ns));
                }
                Turn::TakesOver(overdue_ns) => {
                    prop_assert!(!is_stuck && quiet_ns >= PROGRESS_NS);
                    prop_assert!(overdue_ns <= quiet_ns);
                }
            }
        }

        /// A thread never spends more than it has, nor more than is measured at once.
        #[test]
        fn thread_spends_no_more_than_its_lease(
            left_ns: u64, work_ns in 0..DUE_NS, cost_ns in 0..4 * DUE_NS,
        ) {
            if let Some((left, work)) = spent(left_ns, work_ns, cost_ns) {
                prop_assert_eq!(left + cost_ns, left_ns);
                prop_assert!(work < DUE_NS && work == work_ns + cost_ns);
            }
        }

        /// For any numbers, work in flight is not taken to last longer than what it was charged.
        #[test]
        fn work_in_flight_lasts_no_longer_than_its_charges(
            charged_ns: u64, launched_ns: u64, expected_by_ns: u64, later_ns: u64, paced_ns: u64,
        ) {
            let now_ns = launched_ns.saturating_add(later_ns);
            prop_assert!(left_ns(charged_ns, launched_ns, expected_by_ns, now_ns) <= charged_ns);
            let until_ns = busy_until_ns(charged_ns, paced_ns, expected_by_ns, now_ns);
            prop_assert!(until_ns <= now_ns.saturating_add(paced_ns));
        }

        /// A lease of the account's time is never worth less own time than the account would give back for it.
        #[test]
        fn lease_and_what_it_counts_for_agree(more_ns in 0..u64::MAX >> 20, weight in 1..1_u32 << 20) {
            let own_ns = thread_lease_ns(true, more_ns, 0, weight);
            let counts_ns = scale(own_ns, u64::from(weight), u64::from(Grant::ONE));
            prop_assert!(counts_ns <= more_ns);
        }

        /// For any numbers, a wait has a length, and ends within a millisecond.
        #[test]
        fn every_wait_for_room_ends_soon(
            flight in any_flight(), cost_ns: u64, overslept_ns: u64, most_ns: u64, rounds: u32,
        ) {
            for bound in [Bound::Most(most_ns), Bound::Brief { overslept_ns }] {
                if let Err(wait_ns) = room(&flight, cost_ns, bound, rounds) {
                    prop_assert!((LEAST_WATCH_NS..=WATCH_NS * 2).contains(&wait_ns), "{wait_ns}");
                }
            }
        }

        /// A launch has room beside nothing, however long it is.
        #[test]
        fn launch_goes_beside_nothing(cost_ns: u64, overslept_ns: u64, most_ns: u64) {
            for bound in [Bound::Most(most_ns), Bound::Brief { overslept_ns }] {
                prop_assert!(room(&Flight::default(), cost_ns, bound, 0).is_ok());
            }
        }

        /// Beside a container of a higher priority, what is left of the work in flight and what follows at once is never
        /// more than half a millisecond, or one launch and the time by which threads wake late.
        #[test]
        fn brief_bound_is_never_passed(flight in any_flight(), cost_ns: u64, overslept_ns: u64) {
            if let Ok(room_ns) = room(&flight, cost_ns, Bound::Brief { overslept_ns }, 0) {
                let left_ns = match flight.left_ns {
                    0 => flight.charged_ns,
                    left_ns => flight.charged_ns.min(left_ns),
                };
                let sum_ns = left_ns.saturating_add(cost_ns).saturating_add(room_ns);
                let bound_ns = cost_ns.max(BRIEF_IN_FLIGHT_NS).saturating_add(MOST_OVERSLEPT_NS);
                prop_assert!(sum_ns <= bound_ns, "{sum_ns}");
            }
        }

        /// If the work in flight takes as long as estimated, a launch that waits for the returned times has room in
        /// the end, and does not wait longer than that work takes.
        #[test]
        fn waiting_for_the_returned_time_leads_to_room(
            charged_ns in 1..20 * MS, cost_ns in 1..20 * MS, overslept_ns in 0..MS, is_marked: bool,
        ) {
            let mut left_ns = charged_ns;
            loop {
                let now = flight(left_ns, left_ns, is_marked && left_ns > 0);
                match room(&now, cost_ns, Bound::Brief { overslept_ns }, 0) {
                    Ok(_) => break,
                    Err(wait_ns) => {
                        prop_assert!(wait_ns <= left_ns.max(LEAST_WATCH_NS));
                        left_ns = left_ns.saturating_sub(wait_ns);
                    }
                }
            }
        }

        /// What a thread launches without a look is never more than the room that is left, nor than its interval.
        #[test]
        fn lease_stays_within_the_room(cost_ns: u64, left_ns: u64, beyond_ns: u64, room_ns: u64) {
            let most_ns = room_ns.min(LEASE_NS);
            let inside = draw(cost_ns, Some(Fit { left_ns, beyond_ns }), room_ns);
            prop_assert!(inside.most_ns <= most_ns.min(left_ns));
            prop_assert_eq!(draw(cost_ns, None, room_ns).most_ns, most_ns);
        }
    }
}
