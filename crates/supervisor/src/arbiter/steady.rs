//! Whether containers that have shared a device for a while get a longer period than the usual ones. Some drivers leave a
//! long time slice to a process that has run out of work. Then the device is idle for some milliseconds at each change from
//! one container to the next, and even with the longest usual period a share is off by more than the arbiter promises.
//! With fewer changes containers that keep using the device lose less. Containers that come and go keep the usual periods,
//! in which each of them has its share in every fifth of a second.
//!
//! Values in, values out.

use vgpu_abi::period::{PERIODS_MS, part};

/// The longer period, milliseconds.
const LONG_MS: u16 = 500;
/// For this long the same containers have wanted all of their intervals before the period becomes longer, and for as long
/// the longer one is tried, nanoseconds.
const LOOKED_NS: u64 = 1_000_000_000;
/// The longer period is tried if at least this part of the intervals is lost, thousandths. On the simulated board that keeps
/// slices of 6 ms, containers that always have work lose 19 to 50, and on others 0 to 34.
const LOST_SOME: u64 = 20;
/// From this loss on it is tried only if at least [`LOST_SOME`] of it is due to changes from one container to the next,
/// thousandths. The loss with the shortest period shows that: it has four times as many changes. Programs that wait for each
/// of their small kernels lose 56 to 130 with any period.
const LOST_MUCH: u64 = 50;
/// From this loss on it is not tried, thousandths.
const LOST_MOST: u64 = 150;
/// The period becomes longer without a trial if the figures of the containers hide at least this loss, thousandths: a fourth
/// of what was lost with the shortest period, less what seems to be lost with the longest usual one. Programs that launch
/// kernels of many lengths by chance measure their neighbours' turns as their own at each change, and their figures show the
/// loss only while changes are many. On the simulated board that keeps slices of 6 ms such programs hide 10 to 37, on others
/// 0 to 8.
const HIDDEN_PERMILLE: u64 = 9;
/// Figures can hide a loss only if work is on the device for longer than the intervals by more than this part, thousandths.
/// Launches by chance are by 62 to 108 on all boards. Those of one length are by 0 to 22, and by 41 if they take 5 ms.
const OVER_PERMILLE: u64 = 50;
/// The longer period stays if it saves this much of all intervals, or [`SAVED_PART_PERMILLE`] of what was lost before,
/// thousandths.
const SAVED_PERMILLE: u64 = 8;
/// See [`SAVED_PERMILLE`]. What is lost where containers change over becomes 400, and a program that waits for each of its
/// kernels of 1 ms loses 15 more of the intervals with any period.
const SAVED_PART_PERMILLE: u64 = 150;

/// The shortest and the longest usual period.
const SHORT_MS: u16 = {
    let [shortest_ms, ..] = PERIODS_MS;
    shortest_ms
};
/// See [`SHORT_MS`].
const USUAL_MS: u16 = {
    let [.., longest_ms] = PERIODS_MS;
    longest_ms
};

/// A container always wants its intervals if its launches wait for at least this part of the time in which it has none,
/// thousandths.
const WAITS_PERMILLE: u64 = 800;

/// Whether a container always wanted its intervals in a look of `passed_ns`, of which it was given `given_ns`, and in which
/// its launches waited for `waited_ns`.
#[must_use]
pub fn always_wants(passed_ns: u64, given_ns: u64, waited_ns: u64) -> bool {
    waited_ns >= part(passed_ns.saturating_sub(given_ns), WAITS_PERMILLE, 1_000)
}

/// How far the same containers have come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing is known yet.
    #[default]
    Looks,
    /// The longer period is tried; with the usual one this part was lost, thousandths.
    Tries(u64),
    /// The longer period stays.
    Long,
    /// The longer period did not help.
    Usual,
}

/// What containers did with their intervals, nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct IntervalUse {
    /// How long they were.
    pub given_ns: u64,
    /// What the containers used of them.
    pub used_ns: u64,
    /// How much longer than the intervals of a container its work was on the device: others have their turns while its last
    /// launches end.
    pub over_ns: u64,
}

impl IntervalUse {
    /// Adds the intervals of a container, which counted `busy_ns` as its own time, and had work on the device for
    /// `occupied_ns`.
    pub fn add(&mut self, given_ns: u64, busy_ns: u64, occupied_ns: u64) {
        self.add_all(Self {
            given_ns,
            used_ns: busy_ns.min(given_ns),
            over_ns: occupied_ns.saturating_sub(given_ns),
        });
    }

    fn add_all(&mut self, more: Self) {
        self.given_ns = self.given_ns.saturating_add(more.given_ns);
        self.used_ns = self.used_ns.saturating_add(more.used_ns);
        self.over_ns = self.over_ns.saturating_add(more.over_ns);
    }

    /// The part that was lost, thousandths.
    fn lost(self) -> u64 {
        let lost_ns = self.given_ns.saturating_sub(self.used_ns);
        part(lost_ns, 1_000, self.given_ns)
    }

    /// Whether launches of the containers begin in their intervals and end far outside of them. Then the containers measure
    /// others' turns as their own, and seem to lose less than they do.
    fn hides_losses(self) -> bool {
        self.over_ns > part(self.given_ns, OVER_PERMILLE, 1_000)
    }
}

/// What is known of the containers that share a device now.
#[derive(Debug, Default)]
pub struct Steady {
    stage: Stage,
    /// In all looks with the shortest period.
    with_short: IntervalUse,
    /// In this stage, in which so much time was looked at, nanoseconds.
    in_stage: IntervalUse,
    looked_ns: u64,
}

impl Steady {
    /// Takes a look into account that lasted `passed_ns` with a period of `period_ns`, at containers that wanted all of
    /// their intervals.
    pub fn look(&mut self, period_ns: u64, passed_ns: u64, seen: IntervalUse) {
        let has = |period_ms: u16| period_ns == u64::from(period_ms) * 1_000_000;
        if has(SHORT_MS) {
            self.with_short.add_all(seen);
        }
        let counts = match self.stage {
            Stage::Looks => has(USUAL_MS),
            Stage::Tries(_) => has(LONG_MS),
            Stage::Long | Stage::Usual => false,
        };
        if !counts {
            self.begin(self.stage);
            return;
        }
        self.looked_ns = self.looked_ns.saturating_add(passed_ns);
        self.in_stage.add_all(seen);
        if self.looked_ns < LOOKED_NS {
            return;
        }
        let lost = self.in_stage.lost();
        self.begin(match self.stage {
            Stage::Looks => after_usual(self.in_stage, self.with_short.lost()),
            Stage::Tries(before) if before.saturating_sub(lost) >= to_save(before) => Stage::Long,
            Stage::Tries(_) => Stage::Usual,
            stage => stage,
        });
    }

    /// The period to use in place of a usual one, milliseconds.
    #[must_use]
    pub fn period_ms(&self, usual_ms: u16) -> u16 {
        match self.stage {
            Stage::Tries(_) | Stage::Long if usual_ms == USUAL_MS => LONG_MS,
            _ => usual_ms,
        }
    }

    fn begin(&mut self, stage: Stage) {
        *self = Self {
            stage,
            with_short: self.with_short,
            ..Self::default()
        };
    }
}

/// What follows a second of the longest usual period; with the shortest one, so many thousandths were lost.
fn after_usual(usual: IntervalUse, with_short: u64) -> Stage {
    let lost = usual.lost();
    let times = u64::from(USUAL_MS / SHORT_MS);
    // The loss is a constant part (pauses of programs), and what changes lose, in inverse proportion to the period.
    let by_changes = with_short.saturating_sub(lost) / (times - 1);
    let hidden = (with_short / times).saturating_sub(lost);
    match lost {
        ..LOST_SOME if usual.hides_losses() && hidden >= HIDDEN_PERMILLE => Stage::Long,
        LOST_SOME..LOST_MUCH => Stage::Tries(lost),
        LOST_MUCH..LOST_MOST if by_changes >= LOST_SOME => Stage::Tries(lost),
        _ => Stage::Looks,
    }
}

/// How much a trial has to save, thousandths of all intervals.
fn to_save(before: u64) -> u64 {
    part(before, SAVED_PART_PERMILLE, 1_000).min(SAVED_PERMILLE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn seen(given_ns: u64, used_ns: u64, over_ns: u64) -> IntervalUse {
        IntervalUse {
            given_ns,
            used_ns,
            over_ns,
        }
    }

    /// Plays looks of two periods each. Of each period `lost_ns` is lost, and of what is left `used` thousandths are used.
    fn play(usual_ms: u16, ms: u64, lost_ns: u64, used: u64) -> u16 {
        let mut steady = Steady::default();
        let mut at_ms = 0;
        while at_ms < ms {
            let period_ms = steady.period_ms(usual_ms);
            let period_ns = u64::from(period_ms) * MS;
            let used_ns = (period_ns - lost_ns) * used / 1_000;
            steady.look(
                period_ns,
                2 * period_ns,
                seen(2 * period_ns, 2 * used_ns, 0),
            );
            at_ms += 2 * u64::from(period_ms);
        }
        steady.period_ms(usual_ms)
    }

    #[test]
    fn loss_at_each_change_makes_the_period_longer_after_a_second() {
        assert_eq!(play(200, 800, 8 * MS, 1_000), 200);
        assert_eq!(play(200, 1_200, 8 * MS, 1_000), 500);
        assert_eq!(play(200, 10_000, 8 * MS, 1_000), 500);
    }

    #[test]
    fn little_loss_and_shorter_periods_change_nothing() {
        assert_eq!(play(200, 10_000, 7 * MS / 2, 1_000), 200);
        assert_eq!(play(100, 10_000, 8 * MS, 1_000), 100);
        assert_eq!(play(50, 10_000, 8 * MS, 1_000), 50);
    }

    #[test]
    fn period_that_saves_nothing_is_given_up() {
        // Pauses of programs: as much is lost with any period.
        assert_eq!(play(200, 1_200, 0, 960), 500);
        assert_eq!(play(200, 10_000, 0, 960), 200);
        // More than changes can lose is not tried.
        assert_eq!(play(200, 1_200, 0, 940), 200);
    }

    #[test]
    fn programs_with_pauses_get_the_longer_period_if_changes_lose_something_too() {
        for (short, trial, found_ms) in [(300, 85, 500), (300, 95, 200), (150, 85, 200)] {
            let mut steady = Steady::default();
            for (period_ms, lost) in [(50, short), (200, 100), (500, trial)] {
                let used_ns = (1_000 - lost) * MS;
                steady.look(period_ms * MS, 1_000 * MS, seen(1_000 * MS, used_ns, 0));
            }
            assert_eq!(steady.period_ms(200), found_ms, "{short}, {trial}");
        }
    }

    #[test]
    fn loss_that_only_the_shortest_period_shows_makes_the_period_longer() {
        for (short, usual, over, found_ms) in [
            // On a board that keeps its slices, and on others by chance.
            (45, 1, 80, 500),
            (85, 10, 80, 500),
            (30, 0, 80, 200),
            // Launches that end near the end of their intervals hide nothing.
            (71, 7, 20, 200),
        ] {
            let mut steady = Steady::default();
            for (period_ms, lost) in [(50, short), (200, usual)] {
                let used_ns = (1_000 - lost) * MS;
                steady.look(
                    period_ms * MS,
                    1_000 * MS,
                    seen(1_000 * MS, used_ns, over * MS),
                );
            }
            assert_eq!(steady.period_ms(200), found_ms, "{short}, {usual}");
        }
    }

    #[test]
    fn container_that_pauses_outside_of_its_intervals_does_not_always_want_them() {
        assert!(always_wants(400 * MS, 120 * MS, 280 * MS));
        // One launch of it waits while another runs.
        assert!(always_wants(400 * MS, 120 * MS, 390 * MS));
        // It rests for 40 ms after each 60 ms.
        assert!(!always_wants(400 * MS, 120 * MS, 168 * MS));
    }

    proptest! {
        /// Whatever containers say, the period is the usual one or the long one, and the long one only in place of the
        /// longest usual one.
        #[test]
        fn period_is_one_of_the_known_ones(
            looks in proptest::collection::vec(
                (proptest::sample::select(vec![0, 50, 100, 200, 500]), any::<u64>(), any::<[u64; 3]>()), 0..40,
            ),
            usual_ms in proptest::sample::select(&PERIODS_MS[..]),
        ) {
            let mut steady = Steady::default();
            for (period_ms, passed_ns, [given_ns, used_ns, over_ns]) in looks {
                steady.look(period_ms * MS, passed_ns, seen(given_ns, used_ns, over_ns));
                let found = steady.period_ms(usual_ms);
                prop_assert!(found == usual_ms || (usual_ms == USUAL_MS && found == LONG_MS));
            }
        }
    }
}
