//! The timetable of a device: when each of several containers that all want more than they get may launch. One after
//! the other has the device for its part of a period, so each has its share whatever slices the driver gives, and what
//! a container measures in its interval is its own time.
//!
//! A container that wants less than its share needs no interval: it launches when it likes. So a timetable has at
//! least two containers that were held back. IntervalUse follow from shares alone. The containers' own figures of their
//! work decide which containers take part and how long the period is. They give no container more than its share.
//!
//! Values in, values out: never reads a clock, a file or the driver.

use std::collections::HashMap;

use vgpu_abi::interval::Interval;
use vgpu_abi::period::{self, LEFT_OUT_NS, PERIODS_MS, part};

use super::shares::WHOLE;
use super::steady::{self, IntervalUse, Steady};

/// How long a container's figures are not believed after they contradicted each other, nanoseconds. Meanwhile the container
/// has its interval, whatever its figures say.
const DISBELIEVED_NS: u64 = 10_000_000_000;

/// A container cannot use more than this part of what its credit allows without waiting, thousandths: a quarter more for
/// measurements that are not exact.
const EXCEEDS_PERMILLE: u64 = 1_250;
/// The most that a container has saved of its credit, nanoseconds.
const CREDIT_NS: u64 = 5_000_000;

/// A container that may take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub id: u64,
    /// The most of the device's time that it may have, thousandths.
    pub share: u32,
    /// No container that works has a higher priority.
    pub has_top_priority: bool,
    /// It wants more than it gets.
    pub wants_more: bool,
    /// Work of it has not begun or not ended for longer than a period: another container's kernel holds it up.
    pub is_held_up: bool,
    /// GPU time that it counts as its own so far, nanoseconds.
    pub busy_ns: u64,
    /// Time in which it had work on the device so far, or its programs waited for that work, nanoseconds; 0 if its
    /// libraries do not measure that.
    pub occupied_ns: u64,
    /// Kernels and graphs launched so far.
    pub launches: u64,
    /// Time in which launches of it waited so far, nanoseconds.
    pub waited_ns: u64,
}

/// The remembered past of a container.
#[derive(Debug, Clone, Copy, Default)]
struct History {
    /// The counts when this look at it began, and when that was.
    since_ns: u64,
    busy_ns: u64,
    occupied_ns: u64,
    launches: u64,
    waited_ns: u64,
    /// The mean length of its launches in the look before, nanoseconds; 0 is not known.
    launch_ns: u64,
    /// The time of its intervals since then, nanoseconds.
    given_ns: u64,
    /// It takes no part until then.
    left_out_until_ns: u64,
    /// Its figures are not believed until then.
    disbelieved_until_ns: u64,
    /// It was held up since then.
    was_held_up: bool,
    /// The most of the device's time that it was allowed since then, thousandths.
    most_share: u32,
    /// In the look before, its figures said that it used more than it was given without waiting.
    exceeded: bool,
}

/// The timetable of one device, from tick to tick.
#[derive(Debug, Default)]
pub struct Timetable {
    known: HashMap<u64, History>,
    /// The last timetable; empty where there is none.
    intervals: Vec<(u64, Interval)>,
    /// The shortest period to use, because shorter ones lost too much, milliseconds.
    least_ms: u16,
    /// Whether the containers that take part now get a longer period.
    steady: Steady,
    looked_at_ns: u64,
    ticked_at_ns: u64,
}

impl Timetable {
    /// The intervals of those that take part: none, or at least two. `candidates` are the containers that work on the
    /// device and may be made to wait, in any order.
    pub fn tick(&mut self, now_ns: u64, candidates: &[Candidate]) -> &[(u64, Interval)] {
        self.look(now_ns, candidates);
        let mut taking_part: Vec<Candidate> = candidates
            .iter()
            .copied()
            .filter(|candidate| self.takes_part(now_ns, candidate))
            .collect();
        taking_part.sort_by_key(|candidate| candidate.id);
        let shares = fill(&taking_part);
        let period_ms = self.period_ms(&taking_part, &shares);
        let was: Vec<u64> = self.intervals.iter().map(|(id, _)| *id).collect();
        self.intervals = match period_ms {
            Some(period_ms) if taking_part.len() >= 2 => lay_out(period_ms, &taking_part, &shares),
            _ => Vec::new(),
        };
        let is: Vec<u64> = self.intervals.iter().map(|(id, _)| *id).collect();
        if was != is {
            // Losses with other containers do not count.
            self.begin(now_ns, candidates);
        }
        &self.intervals
    }

    /// There is no timetable now.
    pub fn clear(&mut self) {
        self.intervals.clear();
        self.known.clear();
        self.least_ms = 0;
        self.steady = Steady::default();
    }

    /// How long its period is, nanoseconds; 0 where there is none.
    #[must_use]
    pub fn period_ns(&self) -> u64 {
        self.intervals.first().map_or(0, |(_, at)| at.period_ns())
    }

    /// Whether a container takes part.
    #[must_use]
    pub fn has(&self, id: u64) -> bool {
        self.interval(id).is_some()
    }

    /// A container's interval.
    #[must_use]
    pub fn interval(&self, id: u64) -> Option<Interval> {
        let mut each = self.intervals.iter();
        each.find(|(of, _)| *of == id)
            .map(|(_, interval)| *interval)
    }

    fn takes_part(&self, now_ns: u64, candidate: &Candidate) -> bool {
        let known = self.known.get(&candidate.id).copied().unwrap_or_default();
        let was_in = self.has(candidate.id);
        let wants = candidate.wants_more || was_in || now_ns < known.disbelieved_until_ns;
        now_ns >= known.left_out_until_ns && wants && candidate.share > 0
    }

    /// Begins to look at what containers do.
    fn begin(&mut self, now_ns: u64, candidates: &[Candidate]) {
        self.looked_at_ns = now_ns;
        self.least_ms = 0;
        self.steady = Steady::default();
        for candidate in candidates {
            if let Some(known) = self.known.get_mut(&candidate.id) {
                known.since_ns = now_ns;
                known.busy_ns = candidate.busy_ns;
                known.occupied_ns = candidate.occupied_ns;
                known.launches = candidate.launches;
                known.waited_ns = candidate.waited_ns;
                known.given_ns = 0;
            }
        }
    }

    /// Looks at what containers did since the last look, if that is long enough.
    fn look(&mut self, now_ns: u64, candidates: &[Candidate]) {
        let tick_ns = now_ns.saturating_sub(self.ticked_at_ns);
        self.ticked_at_ns = now_ns;
        for (id, interval) in &self.intervals {
            if let Some(known) = self.known.get_mut(id) {
                known.given_ns += part(tick_ns, interval.length_ns(), interval.period_ns());
            }
        }
        self.known
            .retain(|id, _| candidates.iter().any(|candidate| candidate.id == *id));
        for candidate in candidates {
            self.known.entry(candidate.id).or_insert_with(|| History {
                since_ns: now_ns,
                busy_ns: candidate.busy_ns,
                occupied_ns: candidate.occupied_ns,
                launches: candidate.launches,
                waited_ns: candidate.waited_ns,
                // All that it ever did.
                launch_ns: candidate.busy_ns / candidate.launches.max(1),
                ..History::default()
            });
            if let Some(known) = self.known.get_mut(&candidate.id) {
                known.was_held_up |= candidate.is_held_up;
                known.most_share = known.most_share.max(candidate.share);
            }
        }
        let passed_ns = now_ns.saturating_sub(self.looked_at_ns);
        let period_ns = self.period_ns();
        if passed_ns < period::looked_ns(period_ns) {
            return;
        }
        self.looked_at_ns = now_ns;
        // Time that a container did not want is not lost between two intervals.
        let mut is_lost = true;
        let mut always_want = true;
        let mut seen = IntervalUse::default();
        for candidate in candidates {
            let interval = self.interval(candidate.id);
            let Some(known) = self.known.get_mut(&candidate.id) else {
                continue;
            };
            let busy_ns = candidate.busy_ns.saturating_sub(known.busy_ns);
            let occupied_ns = candidate.occupied_ns.saturating_sub(known.occupied_ns);
            let launches = candidate.launches.saturating_sub(known.launches);
            let waited_ns = candidate.waited_ns.saturating_sub(known.waited_ns);
            let is_whole = known.since_ns <= now_ns.saturating_sub(passed_ns);
            let given = known.given_ns;
            let was_held_up = known.was_held_up;
            let owed_ns = part(passed_ns, known.most_share.into(), WHOLE.into());
            *known = History {
                since_ns: now_ns,
                busy_ns: candidate.busy_ns,
                occupied_ns: candidate.occupied_ns,
                launches: candidate.launches,
                waited_ns: candidate.waited_ns,
                given_ns: 0,
                was_held_up: false,
                most_share: candidate.share,
                launch_ns: match (busy_ns.checked_div(launches), interval) {
                    (None, _) => known.launch_ns,
                    // What it measures beside others contains their turns.
                    (Some(each_ns), None) if known.launch_ns > 0 => known.launch_ns.min(each_ns),
                    (Some(each_ns), _) => each_ns,
                },
                ..*known
            };
            if !is_whole {
                continue;
            }
            if interval.is_none() {
                let is_left_out = now_ns < known.left_out_until_ns;
                let denies_use = is_left_out && contradicts(passed_ns, waited_ns, owed_ns, busy_ns);
                // The first launches of a burst are charged afterwards, and those that follow wait.
                let exceeds = !candidate.wants_more && exceeds(owed_ns, busy_ns);
                let denies_waiting = exceeds && known.exceeded;
                known.exceeded = exceeds;
                if denies_use || denies_waiting {
                    known.left_out_until_ns = 0;
                    known.disbelieved_until_ns = now_ns.saturating_add(DISBELIEVED_NS);
                }
                continue;
            }
            // Beside a container of a higher priority, a floor is promised for each second, and requests do not wait for half
            // of one.
            always_want &=
                candidate.has_top_priority && steady::always_wants(passed_ns, given, waited_ns);
            if now_ns < known.disbelieved_until_ns {
                continue;
            }
            // Nor is time that a kernel without an end took from it. The others' intervals count all the same: a container
            // can say at any time that it is held up.
            if !was_held_up {
                seen.add(given, busy_ns, occupied_ns);
            }
            if period::wants_less(given, busy_ns, occupied_ns) && !candidate.is_held_up {
                known.left_out_until_ns = now_ns.saturating_add(LEFT_OUT_NS);
                is_lost = false;
            }
        }
        if !is_lost {
            return;
        }
        if always_want {
            self.steady.look(period_ns, passed_ns, seen);
        } else {
            self.steady = Steady::default();
        }
        if let Some(least_ms) = period::lengthened_ms(period_ns, seen.given_ns, seen.used_ns) {
            self.least_ms = least_ms;
        }
    }

    /// How long a period is that suits all, milliseconds; `None` if none does, because launches are too long.
    fn period_ms(&self, taking_part: &[Candidate], shares: &[u32]) -> Option<u16> {
        let needed_ns = taking_part.iter().zip(shares).map(|(candidate, share)| {
            let known = self.known.get(&candidate.id);
            period::needed_ns(known.map_or(0, |known| known.launch_ns), *share)
        });
        let needed_ns = needed_ns.max().unwrap_or(0);
        let fitting = period::fitting_with_reserve(needed_ns, self.least_ms)?;
        let usual_ms = PERIODS_MS.get(fitting).copied()?;
        Some(self.steady.period_ms(usual_ms))
    }
}

/// Whether the figures of a container without an interval contradict each other: most of the time its launches waited for
/// credit, and it had used little of the credit that it was given.
fn contradicts(passed_ns: u64, waited_ns: u64, owed_ns: u64, used_ns: u64) -> bool {
    waited_ns > passed_ns / 2 && period::wants_less(owed_ns, used_ns, 0)
}

/// Whether a container without an interval says that it used more GPU time than its credit allows. If its launches did not
/// wait meanwhile, its figures contradict each other.
fn exceeds(owed_ns: u64, used_ns: u64) -> bool {
    used_ns > part(owed_ns, EXCEEDS_PERMILLE, 1_000).saturating_add(CREDIT_NS)
}

/// The shares of those that take part, thousandths: what each may have, or as much as the others of what there is.
fn fill(taking_part: &[Candidate]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..taking_part.len()).collect();
    let most = |at: usize| taking_part.get(at).map_or(0, |candidate| candidate.share);
    order.sort_by_key(|at| most(*at));
    let mut shares = vec![0; taking_part.len()];
    let (mut left, mut open) = (WHOLE, taking_part.len());
    for at in order {
        let even = left / u32::try_from(open.max(1)).unwrap_or(WHOLE);
        let share = most(at).min(even);
        if let Some(place) = shares.get_mut(at) {
            *place = share;
        }
        left -= share;
        open -= 1;
    }
    shares
}

/// One interval after another, from the beginning of the period. The time that no interval has is divided evenly
/// between them, so that a launch that runs past the end of its interval takes nothing from the next one.
fn lay_out(period_ms: u16, taking_part: &[Candidate], shares: &[u32]) -> Vec<(u64, Interval)> {
    let free = WHOLE.saturating_sub(shares.iter().sum());
    let intervals_count = u32::try_from(taking_part.len()).unwrap_or(u32::MAX);
    let gap_us = u32::from(period_ms) * free / intervals_count.max(1);
    let mut from_us = 0;
    let mut intervals = Vec::with_capacity(taking_part.len());
    for (candidate, share) in taking_part.iter().zip(shares) {
        // A thousandth of a millisecond is a microsecond.
        let length_us = u32::from(period_ms) * *share;
        let interval = Interval {
            period_ms,
            from_us,
            length_us,
        };
        intervals.push((candidate.id, interval));
        from_us += length_us + gap_us;
    }
    intervals
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A container that wants more than it gets, and what it does in its interval.
    #[derive(Debug, Clone, Copy)]
    struct Tenant {
        share: u32,
        launch_ns: u64,
        /// The part of its interval that it uses, thousandths.
        uses: u64,
        /// The part of it in which it has work on the device or waits for it, thousandths.
        occupies: u64,
        /// The part of all time in which its launches wait, thousandths.
        waits: u64,
        /// It says that it is held up, at every tick.
        says_held_up: bool,
        /// It says that it never used any time.
        says_unused: bool,
    }

    const GREEDY: Tenant = Tenant {
        share: 500,
        launch_ns: MS / 10,
        uses: 1_000,
        occupies: 1_000,
        waits: 600,
        says_held_up: false,
        says_unused: false,
    };

    /// Ticks every 50 ms for a while. Returns the last timetable.
    fn play(tenants: &[Tenant], ms: u64, lost_ns: u64) -> Vec<(u64, Interval)> {
        let mut timetable = Timetable::default();
        let mut spent: Vec<[u64; 2]> = tenants.iter().map(|tenant| [tenant.launch_ns; 2]).collect();
        for now_ms in (0..=ms).step_by(50) {
            for (id, tenant) in tenants.iter().enumerate() {
                let of = |permille: u64| match timetable.interval(id as u64) {
                    Some(at) => {
                        let each_ns = at.length_ns().saturating_sub(lost_ns);
                        part(50 * MS, each_ns * permille / 1_000, at.period_ns())
                    }
                    None => part(50 * MS, tenant.share.into(), 1_000),
                };
                spent[id][0] += of(tenant.uses);
                spent[id][1] += of(tenant.occupies);
            }
            let each = tenants.iter().zip(&spent).enumerate();
            let candidates: Vec<Candidate> = each
                .map(|(id, (tenant, [busy_ns, occupied_ns]))| Candidate {
                    id: id as u64,
                    share: tenant.share,
                    has_top_priority: true,
                    wants_more: true,
                    is_held_up: tenant.says_held_up,
                    busy_ns: if tenant.says_unused { 0 } else { *busy_ns },
                    occupied_ns: if tenant.says_unused { 0 } else { *occupied_ns },
                    launches: busy_ns / tenant.launch_ns,
                    waited_ns: now_ms * tenant.waits * MS / 1_000,
                })
                .collect();
            timetable.tick(now_ms * MS, &candidates);
        }
        timetable.intervals
    }

    fn lengths(intervals: &[(u64, Interval)]) -> Vec<u32> {
        intervals.iter().map(|(_, at)| at.length_us).collect()
    }

    #[test]
    fn each_has_its_share_of_a_period() {
        let tenants = [100, 900].map(|share| Tenant { share, ..GREEDY });
        assert_eq!(lengths(&play(&tenants, 2_000, 0)), [5_000, 45_000]);
        let tenants = [200, 300].map(|share| Tenant { share, ..GREEDY });
        assert_eq!(lengths(&play(&tenants, 2_000, 0)), [10_000, 15_000]);
    }

    #[test]
    fn time_that_no_container_has_is_between_the_intervals() {
        let begins = |shares: [u32; 2]| -> Vec<u32> {
            let tenants = shares.map(|share| Tenant { share, ..GREEDY });
            let intervals = play(&tenants, 2_000, 0);
            intervals.iter().map(|(_, at)| at.from_us).collect()
        };
        assert_eq!(begins([250, 250]), [0, 25_000]);
        assert_eq!(begins([200, 300]), [0, 22_500]);
        assert_eq!(begins([100, 900]), [0, 5_000]);
    }

    #[test]
    fn shares_that_do_not_fit_are_evened_out_from_above() {
        let shares = |shares: &[u32]| {
            let each = shares.iter().zip(0..);
            let taking_part: Vec<Candidate> = each
                .map(|(share, id)| Candidate {
                    id,
                    share: *share,
                    has_top_priority: true,
                    wants_more: true,
                    is_held_up: false,
                    busy_ns: 0,
                    occupied_ns: 0,
                    launches: 0,
                    waited_ns: 0,
                })
                .collect();
            fill(&taking_part)
        };
        assert_eq!(shares(&[300, 1_000]), [300, 700]);
        assert_eq!(shares(&[1_000, 300, 1_000]), [350, 300, 350]);
        assert_eq!(shares(&[800, 400]), [600, 400]);
    }

    /// Plays a second with two containers. The first one wants more. The second one has a share of 100 thousandths; by its
    /// figures it uses `uses` thousandths of the device, and its launches do not wait. Returns the length of its interval, if
    /// the arbiter gives it one.
    fn beside_one_that_denies_waiting(uses: u64) -> Option<u64> {
        let mut timetable = Timetable::default();
        for now_ms in (0..=1_000).step_by(50) {
            let candidate = |id, share, wants_more, busy_ns| Candidate {
                id,
                share,
                has_top_priority: true,
                wants_more,
                is_held_up: false,
                busy_ns,
                occupied_ns: busy_ns,
                launches: now_ms,
                waited_ns: 0,
            };
            let one = candidate(1, 900, true, now_ms * MS * 9 / 10);
            let other = candidate(2, 100, false, now_ms * MS * uses / 1_000);
            timetable.tick(now_ms * MS, &[one, other]);
        }
        timetable.interval(2).map(Interval::length_ns)
    }

    #[test]
    fn container_that_uses_more_than_its_share_and_denies_that_it_waits_has_its_interval() {
        assert_eq!(beside_one_that_denies_waiting(50), None);
        assert_eq!(beside_one_that_denies_waiting(110), None);
        assert_eq!(beside_one_that_denies_waiting(160), Some(5 * MS));
    }

    #[test]
    fn a_container_by_itself_needs_no_timetable() {
        assert_eq!(play(&[GREEDY], 2_000, 0), []);
    }

    #[test]
    fn period_is_long_enough_for_the_longest_launches() {
        let tenants = |launch_ns| {
            [
                GREEDY,
                Tenant {
                    launch_ns,
                    ..GREEDY
                },
            ]
        };
        let period = |launch_ns| {
            play(&tenants(launch_ns), 2_000, 0)
                .first()
                .map(|of| of.1.period_ms)
        };
        assert_eq!(period(MS), Some(50));
        assert_eq!(period(2 * MS), Some(100));
        assert_eq!(period(5 * MS), Some(200));
        assert_eq!(period(10 * MS), Some(200));
        assert_eq!(period(11 * MS), Some(200));
        assert_eq!(period(20 * MS), None);
    }

    #[test]
    fn period_grows_while_too_much_is_lost_between_intervals() {
        let period = |lost_ns, ms| play(&[GREEDY; 2], ms, lost_ns)[0].1.period_ms;
        assert_eq!(period(MS / 10, 5_000), 50);
        assert_eq!(period(MS / 2, 5_000), 50);
        assert_eq!(period(4 * MS, 1_000), 200);
        // The same containers lose too much for more than a second.
        assert_eq!(period(4 * MS, 5_000), 500);
    }

    #[test]
    fn no_word_of_a_container_keeps_a_period_that_loses_too_much() {
        let says = Tenant {
            says_held_up: true,
            ..GREEDY
        };
        assert_eq!(play(&[says, GREEDY], 1_000, 4 * MS)[0].1.period_ms, 200);
        assert_eq!(play(&[says, GREEDY], 5_000, 4 * MS)[0].1.period_ms, 500);
        // Where all are held up, a kernel without an end may be what takes their time.
        assert_eq!(play(&[says; 2], 5_000, 5 * MS)[0].1.period_ms, 50);
    }

    #[test]
    fn a_container_that_wants_less_than_its_share_takes_no_part() {
        let modest = Tenant {
            uses: 500,
            occupies: 590,
            ..GREEDY
        };
        assert_eq!(play(&[GREEDY, modest], 1_000, 0), []);
        assert_eq!(lengths(&play(&[GREEDY, modest, GREEDY], 1_000, 0)).len(), 2);
    }

    #[test]
    fn a_container_that_waits_for_credit_and_says_that_it_used_none_keeps_its_interval() {
        let lies = Tenant {
            says_unused: true,
            waits: 900,
            ..GREEDY
        };
        // It is left out once, and contradicted at the next look.
        for ms in [1_000, 3_000, 9_000] {
            assert_eq!(play(&[GREEDY, lies], ms, 0).len(), 2, "{ms}");
        }
        // Nor does it make the period longer.
        assert_eq!(play(&[GREEDY, lies], 5_000, 0)[0].1.period_ms, 50);
        let rests = Tenant { waits: 400, ..lies };
        assert_eq!(play(&[GREEDY, rests], 1_000, 0), []);
    }

    #[test]
    fn a_container_that_waits_for_its_small_launches_keeps_its_interval() {
        let waits = Tenant {
            share: 300,
            uses: 300,
            occupies: 950,
            ..GREEDY
        };
        let intervals = play(&[GREEDY, waits], 5_000, 0);
        let shares = intervals
            .iter()
            .map(|(_, at)| at.length_us / u32::from(at.period_ms));
        assert_eq!(shares.collect::<Vec<_>>(), [500, 300]);
    }

    proptest! {
        /// Whatever containers say of themselves: no interval begins before the one in front of it has ended, and none is
        /// longer than its share.
        #[test]
        fn no_word_of_a_container_makes_its_interval_longer(
            ticks in prop::collection::vec(
                prop::collection::vec((0_u32..=1_000, any::<bool>(), any::<[u64; 4]>()), 0..6),
                1..20,
            ),
        ) {
            let mut timetable = Timetable::default();
            for (tick, claims) in ticks.iter().enumerate() {
                let candidates: Vec<Candidate> = claims.iter().zip(0..).map(|(claim, id)| {
                    let (share, wants_more, [busy_ns, occupied_ns, launches, waited_ns]) = *claim;
                    let is_held_up = busy_ns % 3 == 0;
                    let has_top_priority = busy_ns % 2 == 0;
                    Candidate { id, share, has_top_priority, wants_more, is_held_up, busy_ns, occupied_ns, launches, waited_ns }
                }).collect();
                let intervals = timetable.tick(tick as u64 * 50 * MS, &candidates);
                prop_assert!(intervals.len() != 1);
                let mut at_us = 0;
                for (id, interval) in intervals {
                    let share = candidates[usize::try_from(*id).unwrap()].share;
                    prop_assert!(interval.from_us >= at_us);
                    prop_assert!(interval.length_us <= share * u32::from(interval.period_ms));
                    at_us = interval.from_us + interval.length_us;
                }
                let period_us = intervals.first().map_or(0, |(_, at)| u32::from(at.period_ms) * 1_000);
                prop_assert!(at_us <= period_us);
            }
        }
    }
}
