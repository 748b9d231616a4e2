//! The cost of one kind of launch, and the meaning of a measurement of it: pure functions of numbers.
//!
//! Two events around a launch measure its own time and the turns that other processes had in between. Which of
//! the two a measurement has in it shows when several of the same kind are compared: a launch shorter than a
//! turn is mostly not interrupted, and one that is takes a whole turn longer. So the shortest measurements of a
//! short launch are its own time. A launch that spans turns has others' time in every measurement, and the
//! arbiter's model says how much.

use vgpu_abi::targets::Grant;

/// One, in parts of which [`Beside::own_part`] is given.
pub(crate) const WHOLE: u64 = Grant::ONE as u64;
/// A launch that was measured at no more than this was not interrupted, nanoseconds: no driver gives shorter
/// turns.
const SHORTEST_TURN_NS: u64 = 400_000;
/// No driver gives longer turns, nanoseconds: a measurement that is longer than its launch by more than this for
/// each other process was not interrupted, the launch itself took longer.
const LONGEST_TURN_NS: u64 = 6_500_000;
/// Two measurements of the same launch differ by this much at most when neither was interrupted, nanoseconds: the
/// time that events and a launch's own beginning add.
const NOISE_NS: u64 = 5_000;
/// A launch that spans other processes' turns is compared with itself over this many measurements.
const WINDOW: u8 = 16;
/// This many of them have to be short, and this many long, before the short ones are its own time.
const LEAST_SHORT: u8 = 4;
const LEAST_LONG: u8 = 2;

/// A launch that takes up to this many times its fastest run is still the same work.
const SAME_WORK: u64 = 4;
/// A launch is charged at most this much more than its fastest run, if that is less than [`SAME_WORK`] allows,
/// nanoseconds. It owes the rest, so a kernel that waits for another rank's kernel is not held back at once for all
/// of it. Otherwise each of the two would wait for credit while the other waits for it, both for longer and longer.
pub(crate) const MOST_WAITING_NS: u64 = 50_000_000;
/// A launch is charged up to this much more than its fastest run in any case, nanoseconds.
pub(crate) const MOST_ODD_NS: u64 = 5_000_000;
/// The most that a launch is charged at once that was never measured before, nanoseconds.
const MOST_UNKNOWN_NS: u64 = 200_000_000;
/// After this many odd measurements in a row, a launch is not waiting for another one: it really takes that long. (Of
/// two launches that wait for each other in turns, each second one does not wait.)
const ODD_IN_A_ROW: u8 = 3;

/// Two measurements of the same launch differ by a quarter at most when neither was interrupted, beside [`NOISE_NS`].
const SAME_QUARTERS: u64 = 5;
/// An interrupted one is longer by three quarters at least, beside a whole turn of another process.
const LONGER_QUARTERS: u64 = 7;
/// A measurement that may have the wait for a turn in it moves the estimate by one part in so many.
const MAYBE_WAITED: u64 = 16;
/// A measurement moves the estimate by one part in so many at least.
const NEWEST_PART: u64 = 4;

/// So many quarters of `ns`. A quarter is rounded down first, so nothing overflows.
fn quarters(ns: u64, quarters: u64) -> u64 {
    (ns / 4).saturating_mul(quarters)
}

/// The other work on the device beside this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beside {
    /// Other containers work there.
    pub(crate) is_contended: bool,
    /// The part of a measured interval with many turns that is this process's own, in parts of [`WHOLE`].
    pub(crate) own_part: u64,
    /// Other processes of the container waited for credit meanwhile: this one's launch may have waited for theirs.
    pub(crate) has_waiters: bool,
    /// The launch followed other work in its stream without a gap. A launch that does not follow one may have waited
    /// for its process's turn, and the measurement includes that wait.
    pub(crate) follows: bool,
}

impl Beside {
    /// Nothing else works on the device.
    pub(crate) const NOTHING: Self = Self {
        is_contended: false,
        own_part: WHOLE,
        has_waiters: false,
        follows: true,
    };

    /// The part of an interval that is this process's own, nanoseconds.
    fn own(self, ns: u64) -> u64 {
        scale(ns, self.own_part.min(WHOLE), WHOLE)
    }

    /// The longest that other processes' turns hold up a launch that is interrupted once, nanoseconds.
    fn round_ns(self) -> u64 {
        let others = (WHOLE - self.own_part.min(WHOLE)).div_ceil(self.own_part.max(1));
        others.max(1).saturating_mul(LONGEST_TURN_NS)
    }
}

/// The knowledge of one kind of launch. All zeros: nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Estimate {
    /// Its own time, nanoseconds; 0 where it was never measured.
    pub(crate) cost_ns: u64,
    /// How often it was measured, up to 255.
    pub(crate) times: u8,
    /// The least that it was measured at, nanoseconds: ever, or in this window while `is_spanning`.
    pub(crate) least_ns: u64,
    /// Every measurement so far may include other processes' turns.
    pub(crate) is_spanning: bool,
    /// Measurements of this window, and how many of them were short and long.
    pub(crate) window: u8,
    pub(crate) short: u8,
    pub(crate) long: u8,
    /// Odd measurements in a row.
    pub(crate) odd: u8,
}

/// The result of a measurement of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct OwnTime {
    /// Its own time that is charged at once, nanoseconds.
    pub(crate) now_ns: u64,
    /// Its own time that is owed and paid later, nanoseconds.
    pub(crate) later_ns: u64,
}

impl Estimate {
    /// The estimate after a measurement of `ns`, and the part of `ns` that is the launch's own time.
    pub(crate) fn learn(self, ns: u64, beside: Beside) -> (Self, OwnTime) {
        if !beside.is_contended {
            let next = Self {
                is_spanning: false,
                window: 0,
                short: 0,
                long: 0,
                ..self
            };
            // Nothing else worked on the device: all of the measurement is its own time.
            return next.charge(ns, ns, beside);
        }
        if self.times == 0 || self.is_spanning {
            return self.spanning(ns, beside);
        }
        if self.is_same(ns) {
            let (mut next, own) = self.charge(ns, ns, beside);
            if !beside.follows && ns > self.cost_ns {
                // Part of it may be the wait for a turn.
                next.cost_ns = self.cost_ns + (ns - self.cost_ns) / MAYBE_WAITED;
                return (next, OwnTime::now(next.cost_ns));
            }
            return (next, own);
        }
        let own_ns = beside.own(ns);
        if self.is_same(own_ns) || ns <= self.cost_ns.saturating_add(beside.round_ns()) {
            // Other processes' turns interrupted the launch, so the measurement does not show its own time.
            return (self, OwnTime::now(self.cost_ns));
        }
        self.charge(own_ns, ns, beside)
    }

    /// The estimate after a measurement that says no more than that a launch took `most_ns` or less. A first measurement may
    /// have been far too long, because the program's thread was put aside meanwhile; a program that waits for the credit of
    /// such a cost launches to idle streams, where all measurements are of this kind.
    pub(crate) fn bounded(self, most_ns: u64) -> Self {
        Self {
            cost_ns: match most_ns < self.cost_ns {
                true => follow(self.cost_ns, self.times, most_ns.max(1)),
                false => self.cost_ns,
            },
            times: self.times.saturating_add(1),
            ..self
        }
    }

    /// A launch took `own_ns` of its own time, and was measured at `ns`.
    fn charge(self, own_ns: u64, ns: u64, beside: Beside) -> (Self, OwnTime) {
        let most_ns = self.most();
        if own_ns <= most_ns {
            let next = Self { odd: 0, ..self };
            return (next.measured(own_ns, ns), OwnTime::now(own_ns));
        }
        let odd = self.odd.saturating_add(u8::from(!beside.has_waiters));
        if odd >= ODD_IN_A_ROW {
            let next = Self {
                times: 0,
                odd: 0,
                ..self
            };
            return (next.measured(own_ns, ns), OwnTime::now(own_ns));
        }
        let next = Self { odd, ..self };
        let own = OwnTime {
            now_ns: most_ns,
            later_ns: own_ns - most_ns,
        };
        (next.measured(most_ns, ns), own)
    }

    /// Every measurement so far may include other processes' turns.
    fn spanning(self, ns: u64, beside: Beside) -> (Self, OwnTime) {
        if ns <= SHORTEST_TURN_NS {
            // It is now: the earlier measurements were mostly other processes' time.
            let first = Self::default().measured(ns, ns);
            return (first, OwnTime::now(ns));
        }
        let least_ns = match self.window {
            0 => ns,
            _ => self.least_ns.min(ns),
        };
        let is_long = |ns: u64, least_ns: u64| {
            ns >= quarters(least_ns, LONGER_QUARTERS).saturating_add(SHORTEST_TURN_NS)
        };
        let is_short = |ns: u64, least_ns: u64| {
            ns <= quarters(least_ns, SAME_QUARTERS).saturating_add(NOISE_NS)
        };
        let mut next = self;
        if self.window > 0 && is_long(self.least_ns, least_ns) {
            // All before it were interrupted.
            (next.short, next.long) = (0, self.window);
        }
        next.window += 1;
        next.short += u8::from(is_short(ns, least_ns));
        next.long += u8::from(is_long(ns, least_ns));
        next.least_ns = least_ns;
        if next.short >= LEAST_SHORT && next.long >= LEAST_LONG {
            // An interruption is a whole turn, and a launch that none of the short ones interrupted is shorter
            // than a turn. Had each of them been interrupted, one more turn would not make that difference.
            let first = Self::default().measured(least_ns, least_ns);
            let own_ns = ns.min(quarters(least_ns, SAME_QUARTERS).max(least_ns));
            return (first, OwnTime::now(own_ns));
        }
        if next.window >= WINDOW {
            (next.window, next.short, next.long) = (0, 0, 0);
        }
        next.is_spanning = true;
        let (next, own) = next.charge(beside.own(ns), ns, beside);
        // Of a window, not ever.
        (Self { least_ns, ..next }, own)
    }

    /// Does a measurement of this length fit what is known, with nothing else in it?
    fn is_same(&self, ns: u64) -> bool {
        ns <= quarters(self.cost_ns, SAME_QUARTERS).saturating_add(NOISE_NS)
    }

    fn measured(self, own_ns: u64, ns: u64) -> Self {
        let is_first = self.times == 0;
        Self {
            cost_ns: follow(self.cost_ns, self.times, own_ns),
            times: self.times.saturating_add(1),
            least_ns: if is_first || ns < self.least_ns {
                ns.max(1)
            } else {
                self.least_ns
            },
            ..self
        }
    }

    /// The most that it is charged, whatever was measured, nanoseconds: a kernel that runs longer than this is
    /// waiting for other work.
    fn most(&self) -> u64 {
        match self.times {
            0 => MOST_UNKNOWN_NS,
            _ => with_patience(self.least_ns),
        }
    }
}

impl OwnTime {
    fn now(ns: u64) -> Self {
        Self {
            now_ns: ns,
            later_ns: 0,
        }
    }
}

/// The longest that a launch may take whose fastest run took `ns`, and still be the same work, nanoseconds.
fn with_patience(ns: u64) -> u64 {
    let longer = ns
        .saturating_mul(SAME_WORK - 1)
        .clamp(MOST_ODD_NS, MOST_WAITING_NS);
    ns.saturating_add(longer)
}

/// The mean so far, towards the newest measurement: by a quarter at least.
fn follow(old: u64, times: u8, ns: u64) -> u64 {
    if times == 0 {
        return ns;
    }
    let weight = (u64::from(times) + 1).min(NEWEST_PART);
    if ns > old {
        old + (ns - old) / weight
    } else {
        old - (old - ns) / weight
    }
}

/// `ns × part / whole`, without overflow.
pub(crate) fn scale(ns: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(ns) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;

    /// One other process that is always busy.
    const ONE_OTHER: Beside = Beside {
        is_contended: true,
        own_part: WHOLE / 2,
        has_waiters: false,
        follows: true,
    };

    /// The measurements of launches that take `own_ns` each, on a device that gives a turn of `slice_ns` to this
    /// process and to each of `others`, and how much of them counted in all.
    fn counted(own_ns: u64, slice_ns: u64, others: u64, launches: u64) -> (Estimate, f64) {
        let beside = Beside {
            is_contended: true,
            own_part: WHOLE / (others + 1),
            has_waiters: false,
            follows: true,
        };
        let mut estimate = Estimate::default();
        // Where in its own turn the process is.
        let mut at_ns = 0;
        let mut sum_ns = 0;
        for _ in 0..launches {
            let mut measured_ns = own_ns;
            at_ns += own_ns;
            while at_ns > slice_ns {
                at_ns -= slice_ns;
                measured_ns += others * slice_ns;
            }
            let own;
            (estimate, own) = estimate.learn(measured_ns, beside);
            sum_ns += own.now_ns + own.later_ns;
        }
        (estimate, sum_ns as f64 / (own_ns * launches) as f64)
    }

    #[test]
    fn cost_that_was_measured_too_long_is_bounded_by_later_measurements() {
        let (first, _) = Estimate::default().learn(40 * US, Beside::NOTHING);
        let later = (0..20).fold(first, |estimate, _| estimate.bounded(2 * US));
        assert!((2 * US..3 * US).contains(&later.cost_ns), "{later:?}");
        assert_eq!(later.times, 21);
        // A bound above the estimate says nothing.
        assert_eq!(later.bounded(50 * US).cost_ns, later.cost_ns);
    }

    #[test]
    fn launch_without_neighbours_costs_what_it_takes() {
        let mut estimate = Estimate::default();
        for ns in [10 * US, 20 * US, 15 * US] {
            let own;
            (estimate, own) = estimate.learn(ns, Beside::NOTHING);
            assert_eq!(own, OwnTime::now(ns));
        }
        assert_eq!(estimate.cost_ns, 15 * US);
        assert_eq!(estimate.least_ns, 10 * US);
    }

    #[test]
    fn launch_that_waits_for_another_owes_most_of_its_time() {
        let (estimate, _) = Estimate::default().learn(50 * US, Beside::NOTHING);

        let (estimate, own) = estimate.learn(7_000 * MS, Beside::NOTHING);
        assert_eq!(own.now_ns, 50 * US + MOST_ODD_NS);
        assert_eq!(own.now_ns + own.later_ns, 7_000 * MS);
        let (_, own) = estimate.learn(150 * US, Beside::NOTHING);
        assert_eq!(own, OwnTime::now(150 * US));
    }

    #[test]
    fn launch_that_always_takes_long_is_charged_at_once() {
        let (mut estimate, own) = Estimate::default().learn(2_000 * MS, Beside::NOTHING);
        assert_eq!((own.now_ns, own.later_ns), (200 * MS, 1_800 * MS));
        for _ in 0..10 {
            let own;
            (estimate, own) = estimate.learn(2_000 * MS, Beside::NOTHING);
            assert_eq!(own, OwnTime::now(2_000 * MS));
        }
    }

    #[test]
    fn launch_that_others_hold_up_goes_on_owing() {
        let (mut estimate, _) = Estimate::default().learn(50 * US, Beside::NOTHING);
        let held_up = Beside {
            has_waiters: true,
            ..Beside::NOTHING
        };
        for _ in 0..10 {
            let own;
            (estimate, own) = estimate.learn(200 * MS, held_up);
            assert_eq!(own.now_ns, 50 * US + MOST_ODD_NS);
        }
    }

    #[test]
    fn one_short_launch_teaches_no_more_than_two_long_ones() {
        let (mut estimate, _) = Estimate::default().learn(10 * US, Beside::NOTHING);
        let mut later = 0;
        for _ in 0..10 {
            let own;
            (estimate, own) = estimate.learn(500 * MS, Beside::NOTHING);
            assert_eq!(own.now_ns + own.later_ns, 500 * MS);
            later += u32::from(own.later_ns > 0);
        }
        assert_eq!(later, 2);
        assert!(estimate.cost_ns > 400 * MS, "{}", estimate.cost_ns);
    }

    #[test]
    fn interruption_does_not_count_for_a_short_launch() {
        let (mut estimate, _) = Estimate::default().learn(20 * US, ONE_OTHER);
        for ns in [2_020 * US, 6_020 * US, 21 * US, 520 * US] {
            let own;
            (estimate, own) = estimate.learn(ns, ONE_OTHER);
            assert!(
                (20 * US..=21 * US).contains(&own.now_ns),
                "{ns} counted as {own:?}"
            );
        }
    }

    #[test]
    fn first_measurement_may_be_an_interrupted_one() {
        let (estimate, own) = Estimate::default().learn(2_020 * US, ONE_OTHER);
        assert_eq!(own, OwnTime::now(1_010 * US));

        let (estimate, own) = estimate.learn(20 * US, ONE_OTHER);
        assert_eq!((estimate.cost_ns, own), (20 * US, OwnTime::now(20 * US)));
    }

    #[test]
    fn launch_that_was_measured_alone_is_known_beside_neighbours() {
        let (mut estimate, _) = Estimate::default().learn(5 * MS, Beside::NOTHING);
        for ns in [9 * MS, 11 * MS, 9 * MS, 5 * MS] {
            let own;
            (estimate, own) = estimate.learn(ns, ONE_OTHER);
            assert_eq!(own, OwnTime::now(5 * MS));
        }
    }

    #[test]
    fn launch_whose_work_grew_is_charged_for_it() {
        let (mut estimate, _) = Estimate::default().learn(20 * US, Beside::NOTHING);
        let mut own = OwnTime::default();
        for _ in 0..40 {
            (estimate, own) = estimate.learn(100 * MS, ONE_OTHER);
        }
        assert_eq!(own, OwnTime::now(50 * MS));
    }

    proptest! {
        #[test]
        fn own_time_is_found_whatever_the_turns(
            own_us in 2u64..20_000, slice_us in 500u64..6_000, others in 1u64..4,
        ) {
            let (_, part) = counted(own_us * US, slice_us * US, others, 2_000);
            prop_assert!((0.9..=1.15).contains(&part), "{part:.3} of its own time counted");
        }

        #[test]
        fn counted_time_never_exceeds_what_was_measured(
            times in prop::collection::vec((1u64..u64::MAX, any::<bool>(), 1u64..=WHOLE), 1..200),
        ) {
            let mut estimate = Estimate::default();
            for (ns, is_contended, own_part) in times {
                let own;
                (estimate, own) = estimate.learn(ns, Beside { is_contended, own_part, has_waiters: false, follows: true });
                prop_assert!(own.now_ns.saturating_add(own.later_ns) <= ns);
            }
        }
    }
}
