//! The container's part in a device's timetable without an arbiter: what this process remembers of it, and the
//! decisions that follow. The numbers and the decisions; `rules/compute/roster.rs` exchanges them with other
//! containers.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vgpu_abi::interval::{Interval, Moment};
use vgpu_abi::period::{self, LEFT_OUT_NS, PERIODS_MS};
use vgpu_abi::roster::Entry;

/// Time between two looks of a process at the roster of a device, nanoseconds.
const LOOK_NS: u64 = 50_000_000;
/// The same between two of its intervals. So a process that first looked within an interval looks between them from
/// then on, when it is known what a container did in whole intervals.
const BETWEEN_NS: u64 = 25_000_000;
/// A look takes at most one part in so many of a process's time: any process that may read the roster's file can fill it
/// with locks, and each call on it then takes longer.
const SLOW: u64 = 100;
/// A container whose launches waited for its cap within this time wants more, nanoseconds.
const WANTED_NS: u64 = 200_000_000;

/// A process that had work on the device for this part of the time wants more than it gets, although none of its launches
/// waits for its cap: it waits for the turns of others. Percent.
const SATURATED_PERCENT: u64 = 90;
/// Launches that were too long for any period are tried again after this long, nanoseconds.
const TOO_LONG_NS: u64 = 10_000_000_000;

/// What this process remembers. Wiped by a fork; all zeros is the beginning.
#[repr(C)]
pub(crate) struct RosterState {
    /// When it was last looked at; the thread that moves this on looks.
    looked_ns: AtomicU64,
    /// How long the last look took, nanoseconds.
    took_ns: AtomicU64,
    /// The next look is not before so long after the last one, nanoseconds.
    pause_ns: AtomicU64,
    /// When a launch last waited for the container's cap.
    wanted_ns: AtomicU64,
    /// The GPU's number; 0: not asked for yet.
    pub(crate) gpu: AtomicU64,
    /// The container's interval as a word; 0: none.
    interval: AtomicU64,
    /// How many other containers work on the device, if there can be no timetable.
    others: AtomicU32,
    history: Cells,
}

/// Makes [`History`] and [`Cells`] of one list of words.
macro_rules! history {
    ($($(#[$meta:meta])* $word:ident,)*) => {
        /// What happened up to a look.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct History {
            $($(#[$meta])* $word: u64,)*
        }

        /// A [`History`] in shared words, which only the thread that looks writes.
        #[repr(C)]
        struct Cells {
            $($word: AtomicU64,)*
        }

        impl Cells {
            fn load(&self) -> History {
                // Relaxed: numbers; one thread at a time looks.
                History { $($word: self.$word.load(Ordering::Relaxed),)* }
            }

            fn store(&self, history: History) {
                // Relaxed: as above.
                $(self.$word.store(history.$word, Ordering::Relaxed);)*
            }
        }
    };
}

history! {
    /// Since when the container's use of its intervals is looked at, nanoseconds.
    since_ns,
    /// How much the container had used then, nanoseconds.
    busy_ns,
    /// It takes no part until then, nanoseconds.
    left_out_until_ns,
    /// The shortest period to use, because shorter ones lost too much, milliseconds.
    least_ms,
    /// GPU time that this process had used then, nanoseconds.
    own_busy_ns,
    /// For how many launches.
    own_launches,
    /// How long its launches take, nanoseconds: with turns of others, but for intervals.
    launch_ns,
    /// In intervals they were too long for any period; until then no timetable is tried again, nanoseconds.
    too_long_until_ns,
    /// The interval that the roster said at the last look, as a word.
    said,
    /// How long this process had had work on the device then, nanoseconds.
    own_occupied_ns,
    /// Not 0: it had work on the device nearly all the time, when that was last looked at.
    is_saturated,
    /// Not 0: the container used most of its cap, or of its intervals, when that was last looked at.
    uses_its_cap,
}

/// The counts at a look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// GPU time that the container has used so far, nanoseconds.
    pub(crate) busy_ns: u64,
    /// GPU time that this process has used so far, nanoseconds, and for how many launches.
    pub(crate) own_busy_ns: u64,
    pub(crate) own_launches: u64,
    /// Time in which this process had work on the device so far, turns of others included, nanoseconds.
    pub(crate) own_occupied_ns: u64,
    /// Work in flight has not ended for longer than a period.
    pub(crate) is_held_up: bool,
}

impl RosterState {
    /// Whether this thread is to look at the roster now.
    pub(crate) fn is_due(&self, is_between: bool, now_ns: u64) -> bool {
        let pause_ns = if is_between { BETWEEN_NS } else { LOOK_NS };
        // Relaxed: a time.
        let pause_ns = pause_ns.max(self.pause_ns.load(Ordering::Relaxed));
        // Relaxed: of threads that want to look at the same moment, one does.
        let looked_ns = self.looked_ns.load(Ordering::Relaxed);
        (looked_ns == 0 || now_ns.saturating_sub(looked_ns) >= pause_ns)
            && self
                .looked_ns
                .compare_exchange(
                    looked_ns,
                    now_ns.max(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// A look took so long. The shorter one of two looks counts: a single one may have been interrupted.
    pub(crate) fn took(&self, ns: u64) {
        // Relaxed: times.
        let before_ns = self.took_ns.swap(ns, Ordering::Relaxed);
        let pause_ns = before_ns.min(ns).saturating_mul(SLOW);
        self.pause_ns.store(pause_ns, Ordering::Relaxed);
    }

    /// A launch waits for the container's cap.
    pub(crate) fn wants_more(&self, now_ns: u64) {
        // Relaxed: a time.
        self.wanted_ns.store(now_ns, Ordering::Relaxed);
    }

    /// The container's interval.
    pub(crate) fn interval(&self) -> Option<Interval> {
        // Relaxed: one word.
        Interval::of(self.interval.load(Ordering::Relaxed))
    }

    /// How many other containers work on the device, if there can be no timetable.
    pub(crate) fn others(&self) -> u32 {
        // Relaxed: a hint.
        self.others.load(Ordering::Relaxed)
    }

    /// A look begins: returns the entry for a container with this cap, percent.
    pub(crate) fn begin(&self, percent: u32, counts: Counts, now_ns: u64) -> Entry {
        let interval = self.interval();
        let history = self
            .history
            .load()
            .judged(interval, percent, counts, now_ns);
        // Relaxed: a time.
        let wanted_ns = self.wanted_ns.load(Ordering::Relaxed);
        let is_wanted = wanted_ns != 0 && now_ns.saturating_sub(wanted_ns) < WANTED_NS;
        self.history.store(history);
        Entry {
            percent,
            wants_more: (interval.is_some()
                || is_wanted && history.uses_its_cap != 0
                || history.is_saturated != 0)
                && now_ns >= history.left_out_until_ns,
            period: history.period(percent, now_ns),
        }
    }

    /// A look ends: what the roster says.
    pub(crate) fn end(&self, said: Option<Interval>, others: usize, counts: Counts, now_ns: u64) {
        let old = self.interval();
        let (history, next) = self.history.load().told(old, said, counts, now_ns);
        self.history.store(history);
        // Relaxed throughout: one word each.
        self.interval
            .store(next.map_or(0, Interval::word), Ordering::Relaxed);
        let others = u32::try_from(others).unwrap_or(u32::MAX);
        self.others.store(others, Ordering::Relaxed);
    }
}

impl History {
    /// What follows from the counts: how long launches take, and whether the container used the intervals that it had.
    fn judged(self, interval: Option<Interval>, percent: u32, counts: Counts, now_ns: u64) -> Self {
        let mut next = self;
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        let enough_ns = period::looked_ns(interval.map_or(0, Interval::period_ns));
        if passed_ns < enough_ns {
            return next;
        }
        let used_ns = counts.busy_ns.saturating_sub(self.busy_ns);
        let launches = counts.own_launches.saturating_sub(self.own_launches);
        let own_ns = counts.own_busy_ns.saturating_sub(self.own_busy_ns);
        next.launch_ns = own_ns.checked_div(launches).unwrap_or(self.launch_ns);
        let occupied_ns = counts.own_occupied_ns.saturating_sub(self.own_occupied_ns);
        let saturated_ns = period::part(passed_ns, SATURATED_PERCENT, 100);
        // Nothing is known of the time before the first look.
        next.is_saturated = u64::from(self.since_ns != 0 && occupied_ns > saturated_ns);
        let Some(interval) = interval else {
            let cap_ns = period::part(passed_ns, percent.into(), 100);
            next.uses_its_cap = u64::from(!period::wants_less(cap_ns, used_ns, 0));
            return next.since(counts, now_ns);
        };
        // Whole intervals are compared with what was used, so looks between two of them say most. A container that
        // looks at no such moment is looked at all the same.
        let is_open = matches!(interval.at(now_ns), Moment::Open { .. });
        if is_open && passed_ns < enough_ns * 2 {
            return next;
        }
        let over = |at_ns| period::intervals_over(interval, at_ns);
        let given_ns = over(now_ns).saturating_sub(over(self.since_ns)) * interval.length_ns();
        next = next.since(counts, now_ns);
        if counts.is_held_up {
            return next;
        }
        if next.fitting(percent).is_none() {
            next.too_long_until_ns = now_ns.saturating_add(TOO_LONG_NS);
        }
        // Time used in an interval that is still open counts as used, but not as given.
        let lengthened = period::lengthened_ms(interval.period_ns(), given_ns, used_ns);
        if let Some(least_ms) = lengthened.filter(|_| !is_open) {
            next.least_ms = u64::from(least_ms);
        }
        let wants_less = period::wants_less(given_ns, used_ns, occupied_ns);
        if wants_less && self.uses_its_cap == 0 {
            // Twice: it was no loss between intervals that were too short.
            next.left_out_until_ns = now_ns.saturating_add(LEFT_OUT_NS);
        }
        next.uses_its_cap = u64::from(!wants_less);
        next
    }

    /// What happens from now on is looked at next.
    fn since(self, counts: Counts, now_ns: u64) -> Self {
        Self {
            since_ns: now_ns,
            busy_ns: counts.busy_ns,
            own_busy_ns: counts.own_busy_ns,
            own_launches: counts.own_launches,
            own_occupied_ns: counts.own_occupied_ns,
            ..self
        }
    }

    fn fitting(&self, percent: u32) -> Option<usize> {
        let needed_ns = period::needed_ns(self.launch_ns, percent * 10);
        let least_ms = u16::try_from(self.least_ms).unwrap_or(u16::MAX);
        period::fitting(needed_ns, least_ms)
    }

    /// The period that suits the container, as [`Entry::period`] has it. Launches look longer beside other
    /// containers' work than they are, so launches that seem too long are tried in the longest period.
    fn period(&self, percent: u32, now_ns: u64) -> usize {
        let is_too_long = now_ns < self.too_long_until_ns;
        if is_too_long {
            return PERIODS_MS.len();
        }
        self.fitting(percent).unwrap_or(PERIODS_MS.len() - 1)
    }

    /// The interval that counts from now on. One that differs counts when two looks have said it: containers come and
    /// go one by one, and others look at other moments.
    fn told(
        self,
        old: Option<Interval>,
        said: Option<Interval>,
        counts: Counts,
        now_ns: u64,
    ) -> (Self, Option<Interval>) {
        let word = |interval: Option<Interval>| interval.map_or(0, Interval::word);
        let is_out = now_ns < self.left_out_until_ns;
        let is_confirmed = old.is_none() || word(said) == self.said || is_out;
        let next = if is_confirmed { said } else { old };
        let mut history = Self {
            said: word(said),
            ..self
        };
        if word(next) != word(old) {
            history = history.since(counts, now_ns);
        }
        (history, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The first 15 ms of every 50.
    const FIRST: Interval = Interval {
        period_ms: 50,
        from_us: 0,
        length_us: 15_000,
    };
    const SECOND: Interval = Interval {
        from_us: 10_000,
        ..FIRST
    };

    fn part() -> Box<RosterState> {
        // SAFETY: numbers, for which all zeros is a value.
        unsafe { Box::<RosterState>::new_zeroed().assume_init() }
    }

    fn used(ms: u64) -> Counts {
        Counts {
            busy_ns: ms * MS,
            own_busy_ns: ms * MS,
            own_launches: ms,
            own_occupied_ns: ms * MS,
            is_held_up: false,
        }
    }

    #[test]
    fn one_look_in_so_long() {
        let part = part();
        assert!(part.is_due(false, 7));
        assert!(!part.is_due(false, 7 + LOOK_NS - 1));
        assert!(!part.is_due(true, 7 + BETWEEN_NS - 1));
        assert!(part.is_due(true, 7 + BETWEEN_NS));
        assert!(part.is_due(false, 7 + BETWEEN_NS + LOOK_NS));
    }

    #[test]
    fn slow_looks_are_rare() {
        let part = part();
        assert!(part.is_due(false, 7));
        part.took(20 * MS);
        part.took(10_000);
        assert!(part.is_due(false, 7 + LOOK_NS));
        part.took(20 * MS);
        part.took(30 * MS);

        let looked_ns = 7 + LOOK_NS;
        assert!(!part.is_due(true, looked_ns + 1_999 * MS));
        assert!(part.is_due(true, looked_ns + 2_000 * MS));
        for _ in 0..2 {
            part.took(10_000);
        }
        assert!(part.is_due(false, looked_ns + 2_050 * MS));
    }

    #[test]
    fn a_container_wants_more_while_it_uses_its_cap_and_waits_for_it() {
        for (used_ms, waited_ms, wants_more) in [
            (60, 1_190, true),
            (36, 1_001, true),
            // It uses less than most of its cap, or its launches do not wait.
            (35, 1_190, false),
            (60, 999, false),
        ] {
            let part = part();
            assert!(!part.begin(30, used(0), 1_000 * MS).wants_more);
            part.wants_more(waited_ms * MS);
            let entry = part.begin(30, used(used_ms), 1_200 * MS);
            assert_eq!(entry.wants_more, wants_more, "{used_ms} {waited_ms}");
        }
        // It keeps to the interval that it has.
        let part = part();
        part.end(Some(FIRST), 1, used(0), 1_300 * MS);
        assert!(part.begin(30, used(0), 1_350 * MS).wants_more);
        assert_eq!((part.interval(), part.others()), (Some(FIRST), 1));
    }

    #[test]
    fn a_container_that_waits_for_others_nearly_all_the_time_wants_more() {
        for (occupied_ms, wants_more) in [(171, false), (181, true), (200, true)] {
            let part = part();
            part.begin(30, used(0), 1_000 * MS);
            let counts = Counts {
                own_occupied_ns: occupied_ms * MS,
                ..used(2)
            };
            let entry = part.begin(30, counts, 1_200 * MS);
            assert_eq!(entry.wants_more, wants_more, "{occupied_ms}");
        }
    }

    /// A container that used its cap, then had its interval, and used this much of four intervals, twice.
    fn after_intervals(used_ms: [u64; 2]) -> (Box<RosterState>, Entry) {
        let part = part();
        part.begin(30, used(400), 1_010 * MS);
        part.end(Some(FIRST), 1, used(400), 1_020 * MS);
        part.begin(30, used(400 + used_ms[0]), 1_220 * MS);
        let entry = part.begin(30, used(400 + used_ms[0] + used_ms[1]), 1_420 * MS);
        (part, entry)
    }

    #[test]
    fn a_container_that_does_not_use_its_intervals_is_left_out_for_a_second() {
        for (used_ms, stays) in [
            ([60, 60], true),
            ([37, 37], true),
            ([0, 37], true),
            ([37, 0], true),
            ([35, 35], false),
            ([0, 0], false),
        ] {
            let (_, entry) = after_intervals(used_ms);
            assert_eq!(entry.wants_more, stays, "{used_ms:?}");
        }
        let (part, _) = after_intervals([0, 0]);
        part.end(None, 1, used(400), 1_420 * MS);
        assert_eq!(part.interval(), None);
        part.wants_more(2_400 * MS);
        assert!(!part.begin(30, used(800), 2_419 * MS).wants_more);
        assert!(part.begin(30, used(800), 2_421 * MS).wants_more);
    }

    #[test]
    fn a_container_that_waits_for_its_small_launches_keeps_its_interval() {
        let part = part();
        part.end(Some(FIRST), 1, used(0), 1_020 * MS);
        for looks in 1..4 {
            // Of four intervals it uses a fifth, and waits in nearly all of the rest.
            let counts = Counts {
                own_occupied_ns: looks * 58 * MS,
                ..used(looks * 12)
            };
            let entry = part.begin(30, counts, (1_020 + looks * 200) * MS);
            assert!(entry.wants_more, "{looks}");
        }
    }

    #[test]
    fn a_container_that_others_hold_up_stays() {
        let part = part();
        part.end(Some(FIRST), 1, used(0), 1_020 * MS);
        let counts = Counts {
            is_held_up: true,
            ..used(1)
        };
        for at_ms in [1_220, 1_420, 1_620] {
            assert!(part.begin(30, counts, at_ms * MS).wants_more);
        }
    }

    #[test]
    fn period_becomes_longer_if_much_is_lost_or_launches_are_long() {
        let new = part;
        let period = |used_ms, launches| {
            let part = new();
            part.end(Some(FIRST), 1, used(0), 1_020 * MS);
            let counts = Counts {
                own_launches: launches,
                ..used(used_ms)
            };
            part.begin(30, counts, 1_220 * MS).period
        };
        // Four intervals of 15 ms.
        assert_eq!(period(60, 60), 0);
        assert_eq!(period(58, 58), 0);
        assert_eq!(period(56, 56), 2);
        assert_eq!(period(60, 12), 1);
        assert_eq!(period(60, 6), 2);
        assert_eq!(period(60, 2), 3);
        // Beside others it may only seem so.
        let part = new();
        part.begin(30, used(0), 1_000 * MS);
        let counts = Counts {
            own_launches: 2,
            ..used(60)
        };
        assert_eq!(part.begin(30, counts, 1_200 * MS).period, 2);
    }

    #[test]
    fn another_interval_counts_when_it_was_said_twice() {
        let part = part();
        let mut at_ms = 1_000;
        let mut say = |said| {
            at_ms += 50;
            part.end(said, 1, used(0), at_ms * MS);
            part.interval()
        };
        assert_eq!(say(Some(FIRST)), Some(FIRST));
        assert_eq!(say(None), Some(FIRST));
        assert_eq!(say(Some(FIRST)), Some(FIRST));
        assert_eq!(say(Some(SECOND)), Some(FIRST));
        assert_eq!(say(Some(SECOND)), Some(SECOND));
        assert_eq!(say(None), Some(SECOND));
        assert_eq!(say(None), None);
    }
}
