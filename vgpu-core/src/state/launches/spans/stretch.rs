//! The time between two events around launches: whether it is a launch's own time, and how much more than its charge
//! a stretch of a stream took. Pure functions of numbers.

use crate::state::launches::costs::estimate::{Beside, OwnTime, scale};

/// A gap of more than this part of what was measured leaves it in doubt what the launch took.
const DOUBTFUL_PART: u64 = 3;
/// A launch in doubt took at least this part of what was measured.
const LEAST_PART: u64 = 16;
/// Launches behind the last mark count as ended after this many times their own length plus [`UNMARKED_NS`], although
/// no event shows it. Turns of other processes may delay them by that much.
const UNMARKED_TIMES: u64 = 4;
const UNMARKED_NS: u64 = 2_000_000;

/// The time of a launch, read from the events before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// How long the launch took, nanoseconds.
    pub(super) alone_ns: u64,
    /// The launch and the gap before it cannot be separated well.
    pub(super) is_doubtful: bool,
    /// The cost of such launches can be learned from it.
    pub(super) is_sample: bool,
}

/// Reads the `whole_ns` between two events, of which the stream may have idled for `gap_ns`. `is_alone`: the events
/// are around one launch only. A launch of unknown cost is a sample in any case: a doubtful one is better than none.
pub(super) fn reading(whole_ns: u64, gap_ns: u64, is_alone: bool, is_unknown: bool) -> Reading {
    // A thread that was put aside between its event and its launch has measured itself.
    let is_doubtful = gap_ns > whole_ns / DOUBTFUL_PART;
    let less_ns = whole_ns.saturating_sub(gap_ns);
    Reading {
        alone_ns: match is_doubtful {
            // Some of it was not the gap.
            true => less_ns.max(whole_ns / LEAST_PART),
            false => less_ns,
        },
        is_doubtful,
        is_sample: is_alone && (!is_doubtful || is_unknown),
    }
}

/// Whether work of `ns` that was launched `passed_ns` ago, without a mark behind it, has ended.
pub(super) fn has_ended_unmarked(ns: u64, passed_ns: u64) -> bool {
    let longest_ns = ns.saturating_mul(UNMARKED_TIMES);
    ns > 0 && passed_ns > longest_ns.saturating_add(UNMARKED_NS)
}

/// The part of the `ns` up to `end_ns` that lies behind `covered_ns`, up to where other streams' work was counted.
pub(crate) fn uncovered_ns(end_ns: u64, ns: u64, covered_ns: u64) -> u64 {
    let start_ns = end_ns.saturating_sub(ns);
    end_ns.saturating_sub(start_ns.max(covered_ns)).min(ns)
}

/// A stretch of a stream's time, between the ends of two marks or around a single launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// How long it was, nanoseconds.
    pub(super) measured_ns: u64,
    /// The part of it that was not yet counted for another stream of the context, nanoseconds.
    pub(super) counted_ns: u64,
    /// The charge of its launches, nanoseconds.
    pub(super) charged_ns: u64,
    /// One launch of it that was measured by itself.
    pub(super) sample: Option<Sample>,
}

/// A launch that was measured by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) measured_ns: u64,
    pub(super) own: OwnTime,
    pub(super) charged_ns: u64,
}

/// The use beyond the charge, nanoseconds; below zero, less was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct More {
    pub(super) own_ns: i64,
    /// Used time that is paid for later, nanoseconds.
    pub(super) owed_ns: u64,
    pub(super) occupied_ns: i64,
}

impl Stretch {
    /// If nothing else works on the device, the stretch is the launches' own time, less the part of the sample that
    /// is not. Beside other processes, the stretch includes their turns. The launches' own time is then their charge,
    /// which was learned from samples, and the sample corrects its own part.
    pub(super) fn more(&self, beside: Beside) -> More {
        let own_ns = match self.sample {
            Some(sample) if beside.is_contended => self
                .charged_ns
                .saturating_sub(sample.charged_ns)
                .saturating_add(sample.own.now_ns),
            None if beside.is_contended => self.charged_ns,
            Some(sample) => self
                .measured_ns
                .saturating_sub(sample.measured_ns.saturating_sub(sample.own.now_ns)),
            None => self.measured_ns,
        };
        let counted = |ns: u64| scale(ns, self.counted_ns, self.measured_ns);
        More {
            own_ns: difference(counted(own_ns), self.charged_ns),
            owed_ns: counted(self.sample.map_or(0, |sample| sample.own.later_ns)),
            occupied_ns: difference(self.counted_ns, self.charged_ns),
        }
    }
}

fn difference(one: u64, other: u64) -> i64 {
    let whole = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    whole(one) - whole(other)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ONE_OTHER: Beside = Beside {
        is_contended: true,
        ..Beside::NOTHING
    };

    fn own(now_ns: u64, later_ns: u64) -> OwnTime {
        OwnTime { now_ns, later_ns }
    }

    #[test]
    fn gap_is_taken_off_what_was_measured() {
        let read = |whole, gap| reading(whole, gap, true, false);
        assert_eq!(read(900, 300).alone_ns, 600);
        assert!(read(900, 300).is_sample);
        // More than a third of it.
        assert!(read(900, 301).is_doubtful && !read(900, 301).is_sample);
        assert_eq!(read(900, 2_000).alone_ns, 900 / 16);
        assert!(reading(900, 2_000, true, true).is_sample);
        assert!(!reading(900, 0, false, true).is_sample);
    }

    #[test]
    fn unmarked_work_has_ended_after_four_times_as_long() {
        assert!(!has_ended_unmarked(1_000, 2_004_000));
        assert!(has_ended_unmarked(1_000, 2_004_001));
        assert!(!has_ended_unmarked(0, u64::MAX));
        assert!(!has_ended_unmarked(u64::MAX, u64::MAX));
    }

    #[test]
    fn time_of_several_streams_is_counted_once() {
        assert_eq!(uncovered_ns(100, 30, 0), 30);
        assert_eq!(uncovered_ns(100, 30, 80), 20);
        assert_eq!(uncovered_ns(100, 30, 100), 0);
        assert_eq!(uncovered_ns(100, 30, 200), 0);
        assert_eq!(uncovered_ns(100, 300, 0), 100);
    }

    #[test]
    fn stretch_alone_is_own_time() {
        let stretch = Stretch {
            measured_ns: 1_000,
            counted_ns: 1_000,
            charged_ns: 700,
            sample: None,
        };
        let more = |own_ns, occupied_ns| More {
            own_ns,
            owed_ns: 0,
            occupied_ns,
        };
        assert_eq!(stretch.more(Beside::NOTHING), more(300, 300));
        // Beside other processes it includes their turns, so the charge stays as it is.
        assert_eq!(stretch.more(ONE_OTHER), more(0, 300));
    }

    #[test]
    fn sample_corrects_its_own_part() {
        let stretch = Stretch {
            measured_ns: 1_000,
            counted_ns: 1_000,
            charged_ns: 700,
            sample: Some(Sample {
                measured_ns: 400,
                own: own(150, 50),
                charged_ns: 100,
            }),
        };
        // 1,000 less the 250 of the sample that were not its own now.
        assert_eq!(stretch.more(Beside::NOTHING).own_ns, 50);
        assert_eq!(stretch.more(Beside::NOTHING).owed_ns, 50);
        assert_eq!(stretch.more(ONE_OTHER).own_ns, 50);
    }

    #[test]
    fn half_that_another_stream_was_counted_for_counts_no_more() {
        let stretch = Stretch {
            measured_ns: 1_000,
            counted_ns: 500,
            charged_ns: 1_000,
            sample: None,
        };
        assert_eq!(stretch.more(Beside::NOTHING).own_ns, -500);
    }

    proptest! {
        /// No reading is longer than the time between the events.
        #[test]
        fn no_launch_takes_longer_than_was_measured(whole: u64, gap: u64, alone: bool, unknown: bool) {
            prop_assert!(reading(whole, gap, alone, unknown).alone_ns <= whole);
        }

        #[test]
        fn no_more_is_counted_than_was_measured(end: u64, ns: u64, covered: u64) {
            prop_assert!(uncovered_ns(end, ns, covered) <= ns);
        }

        /// Alone, charge and correction together are the time that was measured and counted, or less where it is owed.
        #[test]
        fn charge_and_correction_are_what_was_measured(
            measured_ns in 1..1_u64 << 40,
            counted in 0..=1_000_u64,
            charged_ns in 0..1_u64 << 40,
            sampled in 0..=1_000_u64,
            now in 0..=1_000_u64,
        ) {
            let counted_ns = scale(measured_ns, counted, 1_000);
            let sample_ns = scale(measured_ns, sampled, 1_000);
            let now_ns = scale(sample_ns, now, 1_000);
            let stretch = Stretch {
                measured_ns,
                counted_ns,
                charged_ns,
                sample: Some(Sample {
                    measured_ns: sample_ns,
                    own: own(now_ns, sample_ns - now_ns),
                    charged_ns: 0,
                }),
            };

            let more = stretch.more(Beside::NOTHING);

            let sum = i128::from(charged_ns) + i128::from(more.own_ns) + i128::from(more.owed_ns);
            // Rounded down twice.
            prop_assert!((0..=2).contains(&(i128::from(counted_ns) - sum)), "{sum} of {counted_ns}");
        }
    }
}
