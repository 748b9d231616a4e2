//! The time between two events around launches: whether it is a launch's own time, which part of it was not counted
//! before, and how much more than its charge a stretch of a stream took. Pure functions of numbers.

use crate::state::launches::costs::estimate::{Beside, OwnTime, scale};

/// A gap of more than this part of what was measured leaves it in doubt what the launch took.
const DOUBTFUL_PART: u64 = 3;
/// A launch in doubt took at least this part of what was measured.
const LEAST_PART: u64 = 16;
/// Launches behind the last mark count as ended after this many times their own length plus [`UNMARKED_NS`], although
/// no event shows it. Turns of other processes may delay them by that much.
const UNMARKED_TIMES: u64 = 4;
const UNMARKED_NS: u64 = 2_000_000;
/// The context's base event is replaced after this long, because the driver returns the time since it as a 32-bit
/// float.
const BASE_NS: u64 = 1_000_000_000;

/// How long the stream may have idled between the event recorded at `begun_ns` and its launch, which returned at
/// `now_ns`. `had_started`: the event had happened by then, so the stream was not busy with earlier work. A driver whose
/// launches block returns only after the kernel's end, so the time until then is the kernel's own.
pub(super) fn gap_ns(had_started: bool, launches_block: bool, begun_ns: u64, now_ns: u64) -> u64 {
    match had_started && !launches_block {
        true => now_ns.saturating_sub(begun_ns),
        false => 0,
    }
}

/// How much of the time between the events around a launch may be the calls that recorded the two, nanoseconds. A driver
/// notes the time of an event at the beginning of its call or at its end, where the stream is not busy: `early_ns` long
/// was the call for the first one. The second one is `late_ns` later than the end of the launch at most. In both calls the
/// thread may have been put aside. `had_started`: see [`gap_ns`].
pub(super) fn slack_ns(
    had_started: bool,
    launches_block: bool,
    early_ns: u64,
    late_ns: u64,
) -> u64 {
    match (had_started, launches_block) {
        (true, true) => early_ns,
        (true, false) => early_ns.saturating_add(late_ns),
        (false, _) => 0,
    }
}

/// Whether nothing but one launch of `charged_ns` was submitted to the stream between two events: the work submitted
/// up to each of them shows it.
pub(super) fn is_alone(begun_submitted_ns: u64, submitted_ns: u64, charged_ns: u64) -> bool {
    submitted_ns == begun_submitted_ns + charged_ns
}

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

/// Reads the `whole_ns` between two events, of which the stream may have idled for `gap_ns`. `slack_ns` of it may be the
/// calls that recorded the events. `is_alone`: the events are around one launch only. A launch of unknown cost is a sample
/// in any case: a doubtful one is better than none.
pub(super) fn reading(
    whole_ns: u64,
    gap_ns: u64,
    slack_ns: u64,
    is_alone: bool,
    is_unknown: bool,
) -> Reading {
    // A thread that was put aside between its event and its launch, or in a call that recorded an event, has measured
    // itself.
    let is_doubtful = gap_ns.max(slack_ns) > whole_ns / DOUBTFUL_PART;
    // The calls may have taken none of it.
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

impl Reading {
    /// Whether the time since the end of the mark before may be measured: the stream was busy all the time.
    pub(super) fn is_chain(&self, is_chained: bool, has_last: bool) -> bool {
        is_chained && has_last && !self.is_doubtful
    }
}

/// A mark and the mark before it, as numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// How long the stream may have idled before the mark's launch, nanoseconds.
    pub(super) gap_ns: u64,
    /// The charge of the mark's launch, nanoseconds.
    pub(super) charged_ns: u64,
    /// The work submitted to the stream up to the end of the mark, and of the mark before, nanoseconds.
    pub(super) submitted_ns: u64,
    pub(super) last_submitted_ns: u64,
}

impl Ends {
    /// The charge of the launches that a mark measures, and the time that they took, nanoseconds. `chain_ns`: the time
    /// since the end of the mark before, during which the stream was busy; then all launches since are measured. Else
    /// the mark's own launch is, where `read` is a sample of it. `None`: the mark measures nothing.
    pub(super) fn shown(&self, chain_ns: Option<u64>, read: Reading) -> Option<(u64, u64)> {
        match chain_ns {
            Some(ns) => Some((
                self.submitted_ns.saturating_sub(self.last_submitted_ns),
                ns.saturating_sub(self.gap_ns),
            )),
            None => read.is_sample.then_some((self.charged_ns, read.alone_ns)),
        }
    }
}

/// The time of a context, as its events show it, and up to where the work of its streams was counted. All zeros is a
/// context of which nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ContextTime {
    /// The time of the base event, nanoseconds.
    pub(super) base_ns: u64,
    /// Up to here work has been counted, nanoseconds.
    pub(super) covered_ns: u64,
}

impl ContextTime {
    /// When work that took `ns` has ended: `since_base_ns` after the base event. Without one, it is taken to follow all
    /// that was counted.
    pub(super) fn end_ns(&self, since_base_ns: Option<u64>, ns: u64) -> u64 {
        match since_base_ns {
            Some(since_ns) => self.base_ns + since_ns,
            None => self.covered_ns + ns,
        }
    }

    /// Counts the `ns` up to `end_ns`: how much of it was not counted before, nanoseconds.
    pub(super) fn count(&mut self, end_ns: u64, ns: u64) -> u64 {
        let counted_ns = uncovered_ns(end_ns, ns, self.covered_ns);
        self.covered_ns = self.covered_ns.max(end_ns);
        counted_ns
    }

    /// Whether the context needs another base event.
    pub(super) fn needs_base(&self, has_base: bool, end_ns: u64) -> bool {
        !has_base || end_ns.saturating_sub(self.base_ns) > BASE_NS
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
        let read = |whole, gap| reading(whole, gap, 0, true, false);
        assert_eq!(read(900, 300).alone_ns, 600);
        assert!(read(900, 300).is_sample);
        // More than a third of it.
        assert!(read(900, 301).is_doubtful && !read(900, 301).is_sample);
        assert_eq!(read(900, 2_000).alone_ns, 900 / 16);
        assert!(reading(900, 2_000, 0, true, true).is_sample);
        assert!(!reading(900, 0, 0, false, true).is_sample);
    }

    #[test]
    fn launch_is_not_learned_from_calls_that_took_long() {
        let read = |gap, slack| reading(900, gap, slack, true, false);
        assert!(read(300, 300).is_sample);
        assert!(!read(0, 301).is_sample && !read(301, 0).is_sample);
        // Nothing is taken off, where a sample is needed in any case.
        assert_eq!(reading(900, 0, 850, true, true).alone_ns, 900);
        assert_eq!(slack_ns(true, false, 30, 40), 70);
        assert_eq!(slack_ns(true, true, 30, 40), 30);
        // Earlier work was still running.
        assert_eq!(slack_ns(false, false, 30, 40), 0);
    }

    #[test]
    fn stream_idles_only_where_its_event_came_before_the_launch() {
        assert_eq!(gap_ns(true, false, 100, 130), 30);
        // Earlier work was still running; the driver returns at the kernel's end; the clock did not move.
        assert_eq!(gap_ns(false, false, 100, 130), 0);
        assert_eq!(gap_ns(true, true, 100, 130), 0);
        assert_eq!(gap_ns(true, false, 130, 100), 0);
    }

    #[test]
    fn mark_is_alone_if_only_its_charge_was_submitted() {
        assert!(is_alone(100, 107, 7));
        assert!(!is_alone(100, 108, 7) && !is_alone(101, 107, 7));
    }

    const CLEAR: Reading = Reading {
        alone_ns: 40,
        is_doubtful: false,
        is_sample: true,
    };

    #[test]
    fn chain_needs_a_mark_before_it_without_a_gap() {
        let doubtful = Reading {
            is_doubtful: true,
            ..CLEAR
        };
        assert!(CLEAR.is_chain(true, true));
        assert!(!CLEAR.is_chain(false, true) && !CLEAR.is_chain(true, false));
        assert!(!doubtful.is_chain(true, true));
    }

    #[test]
    fn chain_measures_all_launches_since_the_mark_before() {
        let ends = Ends {
            gap_ns: 5,
            charged_ns: 10,
            submitted_ns: 100,
            last_submitted_ns: 70,
        };
        assert_eq!(ends.shown(Some(45), CLEAR), Some((30, 40)));
        // The gap is no longer than what it is taken from.
        assert_eq!(ends.shown(Some(3), CLEAR), Some((30, 0)));
        // A single launch: its own charge, and its own time, from which the gap is already taken.
        assert_eq!(ends.shown(None, CLEAR), Some((10, 40)));
        let no_sample = Reading {
            is_sample: false,
            ..CLEAR
        };
        assert_eq!(ends.shown(None, no_sample), None);
        assert_eq!(ends.shown(Some(45), no_sample), Some((30, 40)));
    }

    #[test]
    fn context_counts_from_its_base_event() {
        let mut time = ContextTime::default();
        // Without a base event, work follows what was counted.
        assert_eq!(time.end_ns(None, 30), 30);
        assert_eq!(time.count(30, 30), 30);
        assert_eq!(time.end_ns(None, 20), 50);
        // A base event at 10: work that ended 45 after it, of which 25 had been counted.
        time.base_ns = 10;
        let end_ns = time.end_ns(Some(45), 50);
        assert_eq!(end_ns, 55);
        assert_eq!(time.count(end_ns, 50), 25);
        assert_eq!(time.covered_ns, 55);
        // Another stream's work that ended before counts nothing, and takes nothing back.
        assert_eq!(time.count(40, 20), 0);
        assert_eq!(time.covered_ns, 55);
    }

    #[test]
    fn base_event_is_replaced_after_a_second() {
        let time = ContextTime {
            base_ns: 500,
            covered_ns: 0,
        };
        assert!(time.needs_base(false, 500));
        assert!(!time.needs_base(true, 0));
        assert!(!time.needs_base(true, 1_000_000_500));
        assert!(time.needs_base(true, 1_000_000_501));
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
        fn no_launch_takes_longer_than_was_measured(whole: u64, gap: u64, slack: u64, alone: bool, unknown: bool) {
            prop_assert!(reading(whole, gap, slack, alone, unknown).alone_ns <= whole);
        }

        #[test]
        fn no_more_is_counted_than_was_measured(end: u64, ns: u64, covered: u64) {
            prop_assert!(uncovered_ns(end, ns, covered) <= ns);
        }

        /// Work of several streams, in whatever order it is counted, is never more than the time it lies in.
        #[test]
        fn streams_together_count_no_more_than_the_time_passed(
            works in proptest::collection::vec((0..1_000_u64, 0..1_000_u64), 0..8),
        ) {
            let mut time = ContextTime::default();
            let counted: u64 = works.iter().map(|&(end_ns, ns)| time.count(end_ns, ns)).sum();
            let last_ns = works.iter().map(|&(end_ns, _)| end_ns).max().unwrap_or(0);
            prop_assert!(counted <= last_ns);
            prop_assert_eq!(time.covered_ns, last_ns);
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
