//! How long the periods of a timetable are, and which containers it is for. The arbiter decides by these rules for all
//! containers of a device; without an arbiter each container decides by them for itself. Pure functions of numbers.

use crate::interval::Interval;

/// The usual lengths of a period, milliseconds; the arbiter has one more, for containers that it has known for a while. A
/// fifth of a second has a whole number of each: so a container has its share in any fifth of a second, wherever that begins.
pub const PERIODS_MS: [u16; 3] = [50, 100, 200];
/// A period is at least this many times as long as the launches of any container: the last launch of an interval ends
/// up to half of its length away from the interval's end.
const LAUNCHES_A_PERIOD: u64 = 16;
/// An arbiter chooses a period that is so many times longer than it has to be, if there is one. Launches at the ends of
/// intervals then lose about half of [`LOST_PERMILLE`], and the period does not become longer later, which moves
/// intervals. Without an arbiter launches seem longer than they are, and there is no such reserve.
const RESERVE: u64 = 2;
/// An interval has room for at least this many launches of its container.
const LAUNCHES_AN_INTERVAL: u64 = 2;
/// A container's behaviour is judged over this many periods, and over at least this time, nanoseconds.
const LOOKED_PERIODS: u64 = 2;
const LOOKED_NS: u64 = 190_000_000;
/// If more than this part of the intervals is lost where they change over, the period becomes so long that half of it
/// would be lost, thousandths.
const LOST_PERMILLE: u64 = 40;
/// A container that uses less than this part of its intervals wants less than its share, thousandths. It wants its share
/// all the same if its programs wait for their own work in this part of them: small launches that are each waited for
/// leave the device idle in between, and outside of a timetable they would wait for whole turns of others.
const WANTED_PERMILLE: u64 = 600;
/// How long such a container stays out of the timetable, nanoseconds.
pub const LEFT_OUT_NS: u64 = 1_000_000_000;

/// Over how long a container is looked at, nanoseconds; `period_ns` is 0 where there is no timetable.
#[must_use]
pub fn looked_ns(period_ns: u64) -> u64 {
    LOOKED_NS.max(period_ns.saturating_mul(LOOKED_PERIODS))
}

/// Whether a container wants less than its share that was given `given_ns`, used `used_ns` of it, and had work on the
/// device or waited for that work for `occupied_ns`.
#[must_use]
pub fn wants_less(given_ns: u64, used_ns: u64, occupied_ns: u64) -> bool {
    used_ns.max(occupied_ns) < part(given_ns, WANTED_PERMILLE, 1_000)
}

/// How long a period has to be at least, milliseconds, after one of `period_ns` in which containers that wanted all
/// of their intervals used `used_ns` of `given_ns`; `None` if little enough was lost.
#[must_use]
pub fn lengthened_ms(period_ns: u64, given_ns: u64, used_ns: u64) -> Option<u16> {
    let lost_ns = given_ns.saturating_sub(used_ns);
    if lost_ns <= part(given_ns, LOST_PERMILLE, 1_000) {
        return None;
    }
    // As much is lost in each period, however long it is.
    let lost_permille = part(lost_ns, 1_000, given_ns);
    let period_ms = part(period_ns, lost_permille * 2, LOST_PERMILLE * 1_000_000);
    Some(u16::try_from(period_ms).unwrap_or(u16::MAX))
}

/// How long a period has to be for launches of `launch_ns`, of a container with this share (thousandths),
/// nanoseconds.
#[must_use]
pub fn needed_ns(launch_ns: u64, share: u32) -> u64 {
    let of_interval =
        launch_ns.saturating_mul(LAUNCHES_AN_INTERVAL * 1_000) / u64::from(share.max(1));
    of_interval.max(launch_ns.saturating_mul(LAUNCHES_A_PERIOD))
}

/// The number in [`PERIODS_MS`] of the shortest period that is long enough. `least_ms` can require the longest period
/// at most. `None` if none is long enough.
#[must_use]
pub fn fitting(needed_ns: u64, least_ms: u16) -> Option<usize> {
    let [.., longest_ms] = PERIODS_MS;
    let needed_ns = needed_ns.max(u64::from(least_ms.min(longest_ms)) * 1_000_000);
    PERIODS_MS
        .iter()
        .position(|period_ms| u64::from(*period_ms) * 1_000_000 >= needed_ns)
}

/// The same with a reserve, if there is such a period.
#[must_use]
pub fn fitting_with_reserve(needed_ns: u64, least_ms: u16) -> Option<usize> {
    let reserve_ms = needed_ns.saturating_mul(RESERVE).div_ceil(1_000_000);
    let reserve_ms = u16::try_from(reserve_ms).unwrap_or(u16::MAX);
    fitting(needed_ns, least_ms.max(reserve_ms))
}

/// How many of a container's intervals were over at a moment, since the clock began.
#[must_use]
pub fn intervals_over(interval: Interval, now_ns: u64) -> u64 {
    let period_ns = interval.period_ns();
    let from_ns = u64::from(interval.from_us) * 1_000 % period_ns;
    let end_ns = from_ns.saturating_add(interval.length_ns());
    now_ns
        .checked_sub(end_ns)
        .map_or(0, |since_ns| since_ns / period_ns + 1)
}

/// `ns × part / whole`.
#[must_use]
pub fn part(ns: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(ns) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn any_interval() -> impl Strategy<Value = Interval> {
        (
            proptest::sample::select(&PERIODS_MS[..]),
            any::<u32>(),
            any::<u32>(),
        )
            .prop_map(|(period_ms, from_us, length_us)| Interval {
                period_ms,
                from_us: from_us % (u32::from(period_ms) * 1_000),
                length_us: length_us % (u32::from(period_ms) * 1_000 + 1),
            })
    }

    proptest! {
        /// A longer launch, or a smaller share of the same launch, never asks for a shorter period.
        #[test]
        fn longer_launches_and_smaller_shares_need_longer_periods(
            launch_ns: u64, more_ns: u64, share: u32, less: u32,
        ) {
            let needed = needed_ns(launch_ns, share);
            prop_assert!(needed <= needed_ns(launch_ns.saturating_add(more_ns), share));
            prop_assert!(needed <= needed_ns(launch_ns, share.saturating_sub(less)));
            prop_assert!(needed >= launch_ns);
        }

        /// The period that is chosen is long enough, and the shortest such one. Only launches, and no loss, can leave none.
        #[test]
        fn shortest_period_that_is_long_enough_is_chosen(needed_ns in 0..400 * MS, least_ms: u16) {
            let asked_ns = needed_ns.max(u64::from(least_ms.min(200)) * MS);
            match fitting(needed_ns, least_ms) {
                Some(at) => {
                    prop_assert!(u64::from(PERIODS_MS[at]) * MS >= asked_ns);
                    prop_assert!(at == 0 || u64::from(PERIODS_MS[at - 1]) * MS < asked_ns);
                }
                None => prop_assert!(needed_ns > 200 * MS),
            }
        }

        /// With a reserve a period is as long as without one at least, and there is one for the same launches.
        #[test]
        fn reserve_never_shortens_a_period_and_never_leaves_none(needed_ns: u64, least_ms: u16) {
            let without = fitting(needed_ns, least_ms);
            let with = fitting_with_reserve(needed_ns, least_ms);
            prop_assert_eq!(without.is_some(), with.is_some());
            prop_assert!(without <= with);
            let is_twice = with.is_some_and(|at| u64::from(PERIODS_MS[at]) * MS >= needed_ns.saturating_mul(2));
            prop_assert!(with.is_none() || is_twice || with == Some(PERIODS_MS.len() - 1));
        }

        /// A period grows only if more than a little was lost, and then by more the more was lost.
        #[test]
        fn more_loss_asks_for_a_longer_period(
            period_ns in 0..200 * MS, given_ns: u64, used_ns: u64, less_ns: u64,
        ) {
            let found = lengthened_ms(period_ns, given_ns, used_ns);
            prop_assert!(found.is_none() || used_ns < given_ns);
            let later = lengthened_ms(period_ns, given_ns, used_ns.saturating_sub(less_ns));
            prop_assert!(found <= later, "{:?} {:?}", found, later);
        }

        /// A container that used all of its intervals wants its share, and one that used nothing of them does not.
        #[test]
        fn whole_use_is_never_too_little(given_ns: u64, used_ns: u64, waited_ns: u64, less_ns: u64) {
            prop_assert!(!wants_less(given_ns, given_ns, 0));
            prop_assert!(!wants_less(given_ns, 0, given_ns));
            prop_assert!(wants_less(given_ns, 0, 0) == (given_ns > 1));
            let wants = !wants_less(given_ns, used_ns, waited_ns);
            prop_assert!(wants || wants_less(given_ns, used_ns.saturating_sub(less_ns), waited_ns));
            prop_assert!(wants || wants_less(given_ns, used_ns, waited_ns.saturating_sub(less_ns)));
        }

        /// Each period ends exactly one interval, wherever it begins.
        #[test]
        fn one_interval_ends_in_each_period(interval in any_interval(), now_ns in 0..1_u64 << 60) {
            let (now_ns, period_ns) = (now_ns + 2 * interval.period_ns(), interval.period_ns());
            let over = intervals_over(interval, now_ns);
            prop_assert_eq!(intervals_over(interval, now_ns + period_ns), over + 1);
            prop_assert!(intervals_over(interval, now_ns + 1) <= over + 1);
        }

        /// Without overflow, and never more than the whole.
        #[test]
        fn part_is_no_more_than_the_whole(ns: u64, of: u64, whole: u64) {
            prop_assert!(part(ns, of.min(whole), whole) <= ns);
            prop_assert!(part(ns, of, 0) == part(ns, of, 1));
        }
    }

    #[test]
    fn period_is_long_enough_for_launches_and_for_what_is_lost() {
        for (launch_ns, share, least_ms, period_ms) in [
            (0, 500, 0, Some(50)),
            (MS, 500, 0, Some(50)),
            (5 * MS, 500, 0, Some(100)),
            // Two of them need a tenth of a period.
            (5 * MS, 100, 0, Some(100)),
            (11 * MS, 100, 0, None),
            (13 * MS, 500, 0, None),
            (MS, 500, 51, Some(100)),
            // What is lost asks for no period that there is not.
            (MS, 500, 1_000, Some(200)),
        ] {
            let found = fitting(needed_ns(launch_ns, share), least_ms);
            let found = found.map(|at| PERIODS_MS[at]);
            assert_eq!(found, period_ms, "{launch_ns} {share} {least_ms}");
        }
    }

    #[test]
    fn reserve_doubles_a_period_where_it_can() {
        for (launch_ns, period_ms) in [
            (MS, Some(50)),
            (2 * MS, Some(100)),
            (5 * MS, Some(200)),
            (12 * MS, Some(200)),
            (13 * MS, None),
        ] {
            let found = fitting_with_reserve(needed_ns(launch_ns, 500), 0);
            assert_eq!(found.map(|at| PERIODS_MS[at]), period_ms, "{launch_ns}");
        }
    }

    #[test]
    fn period_becomes_longer_when_more_than_a_little_is_lost() {
        assert_eq!(lengthened_ms(50 * MS, 100 * MS, 96 * MS), None);
        assert_eq!(lengthened_ms(50 * MS, 100 * MS, 90 * MS), Some(250));
        assert_eq!(lengthened_ms(50 * MS, 100 * MS, 95 * MS), Some(125));
        assert_eq!(lengthened_ms(50 * MS, 0, 0), None);
    }

    #[test]
    fn less_than_three_fifths_is_less_than_is_given() {
        assert!(wants_less(100 * MS, 59 * MS, 59 * MS));
        assert!(!wants_less(100 * MS, 60 * MS, 0));
        // It waits for small launches, with pauses in between.
        assert!(!wants_less(100 * MS, 20 * MS, 60 * MS));
        assert!(!wants_less(0, 0, 0));
    }

    #[test]
    fn an_interval_is_over_at_its_end() {
        let interval = Interval {
            period_ms: 50,
            from_us: 10_000,
            length_us: 15_000,
        };
        for (now_ms, over) in [(0, 0), (24, 0), (25, 1), (74, 1), (75, 2), (1_030, 21)] {
            assert_eq!(intervals_over(interval, now_ms * MS), over, "{now_ms}");
        }
    }
}
