//! Whether a launch fits into the container's interval of the timetable, by which containers work on a device one after
//! the other. A pure function of numbers.

use vgpu_abi::interval::{Interval, Moment};

/// How a launch lies in its container's interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fit {
    /// How much time of the interval is left behind it, nanoseconds.
    pub(super) left_ns: u64,
    /// How much of it lies beyond the interval, nanoseconds.
    pub(super) beyond_ns: u64,
}

/// A launch that does not fit behind the work in flight looks again within the interval if that work is estimated to
/// take at least this long, nanoseconds. Less is not worth another look.
const WORTH_A_LOOK_NS: u64 = 100_000;

/// Whether a launch that takes `ns` may go now, when what its process has in flight ends at `busy_until_ns`; or how
/// long to wait, nanoseconds.
///
/// A kernel that has begun cannot be interrupted, so the last one of an interval ends after it or leaves some of it
/// unused. A launch goes if at least half of it lies within the interval: then both happen as often, and the mean is
/// the interval's length. One that is longer than the whole interval goes at its beginning, and its container is in
/// debt afterwards.
///
/// Small launches are often all in flight long before the interval ends, and how long they take together is only believed.
/// So the launch that does not fit behind them looks again when half of it ought to be over.
pub(super) fn fits(
    interval: Interval,
    now_ns: u64,
    busy_until_ns: u64,
    ns: u64,
) -> Result<Fit, u64> {
    let left_ns = match interval.at(now_ns) {
        Moment::Open { left_ns } => left_ns,
        Moment::Closed { wait_ns } => return Err(wait_ns),
    };
    let ahead_ns = busy_until_ns.saturating_sub(now_ns);
    let free_ns = left_ns.saturating_sub(ahead_ns);
    if free_ns == 0 || free_ns < ns.min(interval.length_ns()) / 2 {
        if ahead_ns >= WORTH_A_LOOK_NS && left_ns >= ns {
            return Err(ahead_ns.min(left_ns) / 2);
        }
        let pause_ns = interval.period_ns().saturating_sub(interval.length_ns());
        return Err(left_ns.saturating_add(pause_ns));
    }
    Ok(Fit {
        left_ns: free_ns.saturating_sub(ns),
        beyond_ns: ns.saturating_sub(free_ns),
    })
}

/// How much of work that took `more_ns` more than was charged counts as done outside of the container's interval: what
/// cannot have been in it, nanoseconds.
pub(super) fn outside(interval: Interval, more_ns: i64) -> i64 {
    let length_ns = i64::try_from(interval.length_ns()).unwrap_or(i64::MAX);
    more_ns.saturating_sub(length_ns).max(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// The first 15 ms of every 50.
    const INTERVAL: Interval = Interval {
        period_ms: 50,
        from_us: 0,
        length_us: 15_000,
    };

    #[test]
    fn a_launch_goes_if_half_of_it_lies_within_the_interval() {
        for (now_ms, ahead_ms, cost_ms, answer) in [
            (0, 0, 1, Ok((14, 0))),
            (0, 10, 5, Ok((0, 0))),
            (5, 7, 5, Ok((0, 2))),
            (14, 0, 2, Ok((0, 1))),
            (14, 0, 3, Err(36 * MS)),
            // It looks again when half of what is in flight ought to be over.
            (0, 13, 5, Err(6 * MS + MS / 2)),
            (14, 1, 0, Err(MS / 2)),
            (14, 9, 1, Err(MS / 2)),
            // No look within the interval finds room for it.
            (14, 1, 3, Err(36 * MS)),
            (15, 0, 1, Err(35 * MS)),
            // Longer than the interval.
            (0, 0, 40, Ok((0, 25))),
            (7, 0, 40, Ok((0, 32))),
            (8, 0, 40, Err(42 * MS)),
        ] {
            let now_ns = now_ms * MS;
            let answered = fits(INTERVAL, now_ns, now_ns + ahead_ms * MS, cost_ms * MS);
            let answered = answered.map(|fit| (fit.left_ns / MS, fit.beyond_ns / MS));
            assert_eq!(answered, answer, "{now_ms} {ahead_ms} {cost_ms}");
        }
    }

    #[test]
    fn only_what_cannot_have_been_in_the_interval_counts_as_outside() {
        for (more_ms, outside_ms) in [(-5, 0), (0, 0), (15, 0), (16, 1), (500, 485)] {
            let more_ns = more_ms * MS.cast_signed();
            assert_eq!(outside(INTERVAL, more_ns), outside_ms * MS.cast_signed());
        }
    }

    #[test]
    fn a_launch_looks_again_until_nothing_worth_a_look_is_in_flight() {
        // Work in flight ends when it was estimated to, and fills the interval.
        let (mut now_ns, mut looks) = (0, 0);
        loop {
            let answered = fits(INTERVAL, now_ns, 15 * MS, 5_000);
            looks += 1;
            now_ns += answered.unwrap_err();
            if now_ns >= 15 * MS {
                break;
            }
        }
        assert_eq!((now_ns, looks), (50 * MS, 9));
    }

    proptest! {
        /// A launch that has slept for the returned time is admitted, if nothing is in flight at that moment.
        #[test]
        fn waiting_for_the_returned_time_is_enough(
            period_ms in 1_u16..1000,
            from_us: u32,
            part in 1_u32..1000,
            now_ns in 0_u64..1 << 60,
            ahead_ns in 0_u64..1 << 40,
            cost_ns: u64,
        ) {
            let length_us = u32::from(period_ms) * part;
            let interval = Interval { period_ms, from_us: from_us >> 8, length_us };
            if let Err(wait_ns) = fits(interval, now_ns, now_ns + ahead_ns, cost_ns) {
                prop_assert!(wait_ns <= interval.period_ns());
                prop_assert!(fits(interval, now_ns + wait_ns, 0, cost_ns).is_ok());
            }
        }
    }
}
