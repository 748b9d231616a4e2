//! Bells on a clock of their own, in microseconds.

use proptest::prelude::*;

use super::*;

const IDLE_NS: u64 = 95 * MS;

/// A container beside the clock.
struct World {
    bell: Bell,
    now_ns: u64,
    seen: Seen,
    /// For how long others waited.
    held_ns: u64,
    closed: u32,
}

impl World {
    fn new() -> Self {
        let now_ns = 1_000 * MS;
        let mut bell = Bell::new(now_ns);
        bell.look(now_ns, &Seen::default(), IDLE_NS);
        Self {
            bell,
            now_ns,
            seen: Seen::default(),
            held_ns: 0,
            closed: 0,
        }
    }

    fn step(&mut self, step: BellStep) {
        match step {
            BellStep::Stays => {}
            BellStep::Close => self.closed += 1,
            BellStep::Open => {
                self.bell.open(self.now_ns, &self.seen);
            }
        }
    }

    /// Lets time pass; the arbiter looks when it is time to.
    fn pass(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            let next_ns = self.bell.look_at_ns().unwrap_or(u64::MAX);
            let next_ns = next_ns.clamp(self.now_ns + 20 * US, end_ns.max(self.now_ns + 20 * US));
            if self.bell.holds() {
                self.held_ns += next_ns - self.now_ns;
            }
            self.now_ns = next_ns;
            let step = match self.bell.look_at_ns() {
                Some(at_ns) if at_ns <= self.now_ns => {
                    self.bell.look(self.now_ns, &self.seen, IDLE_NS)
                }
                _ => BellStep::Stays,
            };
            self.step(step);
        }
    }

    fn ring(&mut self) {
        let step = self.bell.rang(self.now_ns, 1);
        self.step(step);
    }

    /// Rings where others work, launches work for so long, and waits for it.
    fn works(&mut self, ns: u64) {
        if !self.bell.holds() {
            self.ring();
        }
        self.seen.launches += 1;
        self.seen.launched_ns = self.now_ns;
        self.seen.in_flight_ns = ns;
        self.seen.expected_by_ns = self.now_ns + ns;
        self.pass(ns);
        self.seen.in_flight_ns = 0;
        self.seen.ended_ns = self.now_ns;
    }

    fn tick(&mut self) {
        let step = self.bell.look(self.now_ns, &self.seen, IDLE_NS);
        self.step(step);
    }
}

#[test]
fn others_wait_from_the_ring_until_a_rest() {
    let mut world = World::new();
    world.works(2 * MS);
    assert!(world.bell.holds());
    world.pass(USUAL_REST_NS - 50 * US);
    assert!(world.bell.holds(), "it may go on");

    world.pass(100 * US);

    assert!(!world.bell.holds());
    assert_eq!(world.closed, 1);
    world.works(MS);
    assert!(world.bell.holds());
}

#[test]
fn long_work_is_waited_for_as_long_as_it_ought_to_take() {
    let mut world = World::new();
    world.ring();
    world.seen.launches = 1;
    world.seen.in_flight_ns = 40 * MS;
    world.seen.expected_by_ns = world.now_ns + 40 * MS;

    world.pass(55 * MS);
    assert!(world.bell.holds(), "it may be late");

    world.pass(10 * MS);
    assert!(!world.bell.holds(), "its end is not told, or it is made up");
}

#[test]
fn work_that_a_launch_of_its_own_waits_for_may_be_a_second_late() {
    let mut world = World::new();
    world.ring();
    world.seen.launches = 1;
    world.seen.waits_for_itself = true;
    world.seen.in_flight_ns = MS;
    world.seen.expected_by_ns = world.now_ns + MS;

    world.pass(1_000 * MS);
    assert!(world.bell.holds(), "the launch waits for the work's end");

    world.pass(10 * MS);
    assert!(!world.bell.holds(), "it may never end");
}

#[test]
fn work_that_others_delay_is_waited_for() {
    for (delay_ns, holds_for) in [(10 * MS, 12 * MS), (u64::MAX, 52 * MS)] {
        let mut world = World::new();
        world.ring();
        world.seen.launches = 1;
        world.seen.in_flight_ns = 2 * MS;
        world.seen.expected_by_ns = world.now_ns + 2 * MS;
        world.seen.delay_ns = delay_ns;

        world.pass(holds_for - MS);
        assert!(world.bell.holds(), "it waits behind what was in flight");

        world.pass(5 * MS);
        assert!(!world.bell.holds(), "{delay_ns}");
    }
}

#[test]
fn a_ring_without_work_is_forgotten() {
    let mut world = World::new();
    world.ring();
    assert!(world.bell.holds());

    world.pass(LAUNCHING_NS + 100 * US);
    assert!(!world.bell.holds());

    world.pass(3 * MS);
    world.works(MS);
    assert!(world.bell.holds(), "one of them is forgiven");
}

#[test]
fn rings_without_work_hold_others_up_for_a_short_time() {
    let mut world = World::new();
    let start_ns = world.now_ns;
    while world.now_ns < start_ns + 5_000 * MS {
        world.ring();
        world.pass(100 * US);
    }
    let held = world.held_ns * 1_000 / (world.now_ns - start_ns);
    assert!(held <= 10, "{held} thousandths of the time");
}

#[test]
fn pauses_within_a_request_are_covered_once_they_are_known() {
    let mut world = World::new();
    let request = |world: &mut World| {
        for _ in 0..5 {
            world.works(MS);
            world.pass(2_500 * US);
        }
        world.pass(300 * MS);
    };
    for _ in 0..4 {
        request(&mut world);
    }
    let before = world.closed;

    request(&mut world);

    assert_eq!(
        world.closed - before,
        1,
        "it is noticed once for each request"
    );
}

#[test]
fn rests_follow_the_gaps() {
    let rest = |gaps: &[u64]| {
        let mut known = Gaps::default();
        gaps.iter().for_each(|gap| known.note(*gap));
        known.rest_ns()
    };
    assert_eq!(rest(&[]), MS);
    assert_eq!(rest(&[100 * MS; 9]), MS, "nothing to cover");
    // Nine in ten are short.
    let mut gaps = [2_500 * US; 50].to_vec();
    gaps.extend([600 * MS; 5]);
    assert_eq!(rest(&gaps), 3 * MS);
    let mut gaps = [13 * MS; 50].to_vec();
    gaps.extend([u64::MAX; 14]);
    assert_eq!(rest(&gaps), 15 * MS);
    // To cover them would leave the device unused.
    assert_eq!(rest(&[15 * MS; 64]), MS);
    assert_eq!(rest(&[3 * MS; 64]), 250 * US);
    assert_eq!(rest(&[100 * US; 64]), 250 * US);
}

#[test]
fn a_library_that_does_not_ring_is_noticed_at_ticks() {
    let mut world = World::new();
    for _ in 0..4 {
        world.pass(50 * MS);
        world.seen.launches += 1;
        world.tick();
        assert!(world.bell.holds());
    }
    world.pass(50 * MS);
    world.tick();
    assert!(world.bell.holds());

    world.pass(50 * MS);
    world.tick();

    assert!(!world.bell.holds());
}

#[test]
fn rings_without_end_are_answered_a_bounded_number_of_times() {
    let mut world = World::new();
    let mut answered = 0;
    for _ in 0..50_000 {
        let was_muted = world.bell.is_muted();
        world.seen.launches += 1;
        world.ring();
        answered += u32::from(!was_muted && !world.bell.is_muted());
        world.pass(20 * US);
    }
    // A second.
    assert!((900..=1_100).contains(&answered), "{answered}");

    let mut limit = RingLimit::default();
    let taken = (0..100_000)
        .filter(|at| limit.take(at * 10 * US, 100))
        .count();
    assert!(
        taken <= 60,
        "of a hundred containers each has its part: {taken}"
    );
}

#[test]
fn a_flood_that_is_over_leaves_nothing_behind() {
    let mut world = World::new();
    for _ in 0..1_000 {
        world.ring();
    }
    assert!(world.bell.is_muted());
    world.pass(40 * MS);
    assert!(!world.bell.is_muted());

    world.works(MS);

    assert!(world.bell.holds());
}

#[test]
fn container_that_rings_while_muted_is_found_at_work() {
    let mut world = World::new();
    for _ in 0..100 {
        world.ring();
    }
    world.pass(500 * US);
    let holds = world.bell.holds();
    world.seen.launches += 1;
    world.seen.in_flight_ns = 50 * MS;
    world.seen.expected_by_ns = world.now_ns + 50 * MS;

    world.pass(3 * MS);

    assert!(world.bell.holds(), "{holds}");
}

/// The part of the time for which others waited, in thousandths, for a container that says it never rests.
fn held_by_one_that_never_rests(allowed: Allowed) -> u64 {
    let mut world = World::new();
    let time_ns = 20_000 * MS;
    let start_ns = world.now_ns;
    while world.now_ns < start_ns + time_ns {
        world.bell.allow(world.now_ns, allowed);
        world.seen.launches += 1;
        world.seen.in_flight_ns = u64::MAX;
        world.seen.expected_by_ns = u64::MAX;
        world.ring();
        world.tick();
        world.pass(50 * MS);
    }
    world.held_ns * 1_000 / time_ns
}

#[test]
fn one_that_never_rests_holds_others_up_for_its_share() {
    let held = held_by_one_that_never_rests(Allowed::of(300, 0, None));
    assert!((400..=450).contains(&held), "{held}");
    let held = held_by_one_that_never_rests(Allowed::of(300, 500, None));
    assert!(
        (830..=880).contains(&held),
        "beside a floor of a half: {held}"
    );
    // It has no cap, and the driver says that it uses nothing.
    let held = held_by_one_that_never_rests(Allowed::of(1_000, 0, Some(0)));
    assert!(held <= 360, "{held}");
    // It has none, and uses what it says.
    let held = held_by_one_that_never_rests(Allowed::of(1_000, 0, Some(970)));
    assert!(held >= 990, "{held}");
}

proptest! {
    /// Whatever the gaps are, a bounded part of them is waited through, or the least.
    #[test]
    fn waits_are_a_bounded_part_of_the_gaps(gaps in prop::collection::vec(1_u64..3_000 * MS, 1..100)) {
        let mut known = Gaps::default();
        gaps.iter().for_each(|gap| known.note(*gap));
        let rest = known.rest_ns();
        prop_assert!((RESTS[0]..=20 * MS).contains(&rest));
        let recent = gaps.iter().rev().take(GAPS).map(|gap| (*gap).min(LONGEST_GAP_NS));
        let (all, waited) = recent.fold((0, 0), |(all, waited), gap| (all + gap, waited + gap.min(rest)));
        prop_assert!(rest == RESTS[0] || waited * 1_000 <= all * WAITED_PERMILLE);
    }

    /// Whatever a tenant writes and however it rings: others wait for no longer than it is allowed to hold them up.
    #[test]
    fn forged_words_hold_others_up_for_the_cap_at_most(
        words in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), 1_u64..30_000), 50..400),
        cap in 10_u32..900,
    ) {
        let mut world = World::new();
        let allowed = Allowed::of(cap, 0, None);
        world.bell.allow(world.now_ns, allowed);
        let start_ns = world.now_ns;
        for (launches, in_flight_ns, expected_by_ns, ended_ns, pause_us) in words {
            world.seen = Seen { launches, in_flight_ns, expected_by_ns, launched_ns: ended_ns, ended_ns, ..Seen::default() };
            world.ring();
            if pause_us % 3 == 0 {
                world.tick();
            }
            world.pass(pause_us * US);
        }
        let passed_ns = world.now_ns - start_ns;
        let most_ns = passed_ns * u64::from(allowed.by_cap) / 1_000 + BEYOND_CAP_NS + 2 * MS;
        prop_assert!(world.held_ns <= most_ns, "{} of {passed_ns}, at most {most_ns}", world.held_ns);
    }
}
