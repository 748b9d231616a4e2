//! Programs that would get more than their cap where the library or the arbiter believed them: launches far longer than
//! any window, costs that one short launch taught, work whose end cannot be seen, kernels that never end, rings and
//! figures without work behind them. Alone, and beside a neighbour that is owed the rest.

use std::mem::offset_of;

use vgpu_abi::layout::{ComputeUse, DeviceUse, SlotHead};

use crate::boards::{self, Board, PLAIN};
use crate::lab::{Asks, Container, Curve, LOOK_NS, Lab, MS, Program};
use crate::together::offered;

/// The share of one program alone under a cap of 10, over this many milliseconds.
fn under_ten(words: &str, ms: u64) -> f64 {
    let lab = Lab::new();
    let container = lab.container("greedy", Asks::cap(10));
    let program = container.start(&format!("{words} for={}", ms + 100));
    let curves = lab.pass(ms, &[&[&program]]);
    let share = curves[0].share(0, ms);
    println!(
        "{words}: {share:.2} in {ms} ms: {}",
        curves[0].shape(ms, ms / 20)
    );
    share
}

#[test]
fn launches_of_half_a_second_keep_a_cap() {
    let share = under_ten("steady ns=500000000", 60_000);
    assert!((9.0..=12.0).contains(&share), "{share}");
}

#[test]
fn launches_of_two_seconds_keep_a_cap() {
    // The last one may have just begun: two seconds of a hundred and fifty.
    let share = under_ten("steady ns=2000000000", 150_000);
    assert!((8.5..=12.0).contains(&share), "{share}");
}

#[test]
fn one_short_launch_teaches_no_cost() {
    let share = under_ten("taught short=10000 ns=100000000", 40_000);
    assert!((9.0..=12.0).contains(&share), "{share}");
}

#[test]
fn launches_to_streams_that_are_destroyed_are_measured() {
    for (words, ms) in [("fresh ns=20000000", 20_000), ("fresh ns=1000000", 5_000)] {
        let share = under_ten(words, ms);
        assert!((8.5..=11.5).contains(&share), "{words}: {share}");
    }
}

/// Another shape, another function, another graph: none tells what the next one costs.
const NOVEL: [&str; 3] = [
    "novel way=0 ns=5000000",
    "novel way=1 ns=5000000",
    "novel way=2 ns=5000000",
];

#[test]
fn launches_that_all_look_new_keep_a_cap() {
    for words in NOVEL {
        let share = under_ten(words, 10_000);
        assert!((8.0..=11.5).contains(&share), "{words}: {share}");
    }
}

/// Programs exist for this long before their first launch.
const KNOWN_MS: u64 = 300;

/// Kernels take another time at each launch, and launches take some.
const LIFE: &str = "kernel k__1000000ns 1ms ±10%
call cuLaunchKernel 3us
";

/// A hostile container with a cap of 10 beside an honest one, under an arbiter: the programs of the first one, and the
/// tenant's own doing at each look. Returns what each container used. A run in which the machine held a program up, so
/// that time went on without it, says nothing and is made again.
fn beside(
    board: &Board,
    honest: Asks,
    words: &[&str],
    ms: u64,
    mut does: impl FnMut(&Container<'_>),
) -> [Curve; 2] {
    for _ in 0..4 {
        let (curves, is_exact) = beside_once(board, honest, words, ms, &mut does);
        if is_exact {
            return curves;
        }
    }
    beside_once(board, honest, words, ms, &mut does).0
}

fn beside_once(
    board: &Board,
    honest: Asks,
    words: &[&str],
    ms: u64,
    mut does: impl FnMut(&Container<'_>),
) -> ([Curve; 2], bool) {
    let lab = Lab::on(board, LIFE);
    let mut arbiter = lab.arbiter();
    let hostile = lab.container("hostile", Asks::cap(10));
    let honest = lab.container("honest", honest);
    let lasts = format!("idle={KNOWN_MS} for={}", ms + KNOWN_MS + 100);
    let owed = honest.start(&format!("steady ns=1000000 {lasts}"));
    let each = words.iter().map(|words| format!("{words} {lasts}"));
    let running: Vec<_> = each.map(|words| hostile.start(&words)).collect();
    let all: Vec<&Program<'_>> = running.iter().collect();
    let mut look = |_| {
        does(&hostile);
        arbiter.look();
    };
    lab.watch(KNOWN_MS, &[], &mut look);
    let mut curves = lab.watch(ms, &[&all, &[&owed]], &mut look);
    lab.say_if_inexact();
    let (owed, greedy) = (curves.remove(1), curves.remove(0));
    println!(
        "{words:?}: {:.2} and {:.2}: {}; {}",
        greedy.share(0, ms),
        owed.share(0, ms),
        greedy.shape(ms, ms / 20),
        owed.shape(ms, ms / 20)
    );
    ([greedy, owed], lab.is_exact())
}

/// A container that is hostile in this way has its cap of 10 at most, and its neighbour nearly its own of 90; a
/// neighbour with a floor of 80 has that.
#[track_caller]
fn gains_nothing(words: &str, ms: u64, does: impl FnMut(&Container<'_>)) {
    gains_nothing_on(&PLAIN, 100.0, words, ms, does);
}

/// The same on a board that gives `offered` percent to two programs without limits.
#[track_caller]
fn gains_nothing_on(
    board: &Board,
    offered: f64,
    words: &str,
    ms: u64,
    does: impl FnMut(&Container<'_>),
) {
    gains_at_most(board, 12.0, neighbours(board, offered), words, ms, does);
}

/// Neighbours of a hostile container with a cap of 10, and what each is owed at least, percent.
fn neighbours(board: &Board, offered: f64) -> [(Asks, f64); 2] {
    let capped = boards::owed(&[90, 10], offered)[0] - 5.0;
    let floor = boards::owed(&[80, 20], offered)[0] - board.early_points().max(2.0);
    [(Asks::cap(90), capped), (Asks::floor(80), floor)]
}

/// A hostile container has `most` percent at most, and each neighbour what it is owed.
#[track_caller]
fn gains_at_most(
    board: &Board,
    most: f64,
    neighbours: [(Asks, f64); 2],
    words: &str,
    ms: u64,
    mut does: impl FnMut(&Container<'_>),
) {
    for (asks, least) in neighbours {
        let [greedy, owed] = beside(board, asks, &[words], ms, &mut does);
        let (greedy, owed) = (greedy.share(0, ms), owed.share(0, ms));
        let told = format!(
            "{}: {words}: {greedy:.2}, and {owed:.2} beside it of {asks:?}, owed {least:.2}",
            board.name
        );
        println!("{told}");
        assert!(greedy <= most && owed >= least, "{told}");
    }
}

/// The priority of a container that asks for none, and the lowest one.
const USUAL_PRIORITY: u32 = 1;
const LOWEST_PRIORITY: u32 = 9;

const GREEDY: &str = "steady ns=1000000";

#[test]
fn launches_that_all_look_new_gain_nothing_beside_a_neighbour() {
    for words in NOVEL {
        gains_nothing(words, 5_000, |_| {});
    }
}

#[test]
fn a_function_that_one_short_launch_taught_gains_nothing_in_a_timetable() {
    // Once as long as four intervals of its timetable, once as long as twenty.
    for ns in [20_000_000, 100_000_000] {
        gains_nothing(&format!("taught short=10000 ns={ns}"), 20_000, |_| {});
    }
}

#[test]
fn rings_without_end_gain_nothing_in_a_timetable() {
    gains_nothing(GREEDY, 4_000, |hostile| {
        for _ in 0..20 {
            hostile.ring();
        }
    });
}

const COMPUTE: usize = offset_of!(DeviceUse, compute);

/// Words that a container writes into its region.
type Words = &'static [(usize, u64)];

/// What a container may say of its work, whatever it does, and keep its intervals.
const LIES: [(&str, Words); 2] = [
    (
        "it never rests",
        &[
            (COMPUTE + offset_of!(ComputeUse, in_flight_ns), u64::MAX),
            (COMPUTE + offset_of!(ComputeUse, expected_by_ns), u64::MAX),
            (COMPUTE + offset_of!(ComputeUse, waiting_since_ns), 1),
        ],
    ),
    (
        "its launches are long, and few",
        &[(COMPUTE + offset_of!(ComputeUse, launches), 1)],
    ),
];

/// The same for a container whose figures say that it needs less than its share, although its launches wait.
const LIES_OF_LITTLE_USE: [(&str, Words); 2] = [
    (
        "it used nothing",
        &[
            (COMPUTE + offset_of!(ComputeUse, busy_ns), 0),
            (COMPUTE + offset_of!(ComputeUse, occupied_ns), 0),
        ],
    ),
    (
        "it used all there ever was",
        &[
            (COMPUTE + offset_of!(ComputeUse, busy_ns), u64::MAX),
            (COMPUTE + offset_of!(ComputeUse, occupied_ns), u64::MAX),
        ],
    ),
];

/// The same for a container whose figures also say that its launches do not wait: they do not contradict each other.
const USED_NOTHING_AND_WAITS_FOR_NOTHING: Words = &[
    (COMPUTE + offset_of!(ComputeUse, busy_ns), 0),
    (COMPUTE + offset_of!(ComputeUse, occupied_ns), 0),
    (COMPUTE + offset_of!(ComputeUse, waiting_since_ns), 0),
    (COMPUTE + offset_of!(ComputeUse, throttled_ns), 0),
];

/// What a program without limits has beside one that launches a millisecond of work every ten, percent: on a driver that
/// keeps slices whose process has nothing more to run, each such launch takes a whole one.
fn beside_few_launches(board: &Board) -> f64 {
    let lab = Lab::on(board, LIFE);
    let _few = lab.native("sparse ns=1000000 pause=9000000 steps=1000");
    let program = lab.native("steady ns=1000000 for=3000");
    lab.pass(2_900, &[&[&program]])[0].share(500, 2_900)
}

/// The neighbours of a hostile container that looks like such a program: each is owed no more than beside one.
fn neighbours_of_few_launches(board: &Board) -> [(Asks, f64); 2] {
    let few = beside_few_launches(board);
    let offered = offered(board, &[GREEDY; 2]);
    neighbours(board, offered).map(|(asks, owed)| (asks, owed.min(few)))
}

#[test]
fn a_container_that_denies_that_it_keeps_intervals_gains_nothing() {
    let denies = [(offset_of!(SlotHead, abilities), 0)];
    gains_nothing(GREEDY, 5_000, |hostile| hostile.forge_slot(&denies));
}

/// As long as any test.
const ENDLESS: &str = "steady ns=1000000000000000";

#[test]
fn kernels_that_never_end_are_not_let_in_one_after_the_other() {
    let [_, owed] = beside(&PLAIN, Asks::floor(80), &[ENDLESS; 4], 20_000, |_| {});

    // The driver gives a kernel that runs as much as the neighbour, and only the driver could end it. A second one of the
    // container may be what the first one waits for. The other two are not let in.
    let (low, _) = owed.windows(1_000, 20_000, 1_000);
    assert!(low >= 100.0 / 3.0 - 1.0, "{low}");
    let [_, owed] = beside(&PLAIN, Asks::floor(80), &[ENDLESS], 5_000, |_| {});
    let (low, _) = owed.windows(1_000, 5_000, 1_000);
    assert!(low >= 49.0, "{low}");
}

/// What a program without limits has beside two others whose kernels never end: what the driver's turns give it, percent.
fn beside_endless_ones(board: &Board) -> f64 {
    let lab = Lab::on(board, LIFE);
    let _endless = [lab.native(ENDLESS), lab.native(ENDLESS)];
    let program = lab.native("steady ns=1000000 for=3000");
    lab.pass(2_900, &[&[&program]])[0].share(500, 2_900)
}

/// No container's limits can end a kernel that never ends. Beside two of them a container has what the driver's turns give
/// it, in each second: the arbiter takes none of that away, whatever it knows of the kernels.
#[track_caller]
fn endless_kernels_take_only_their_turns(board: &Board, honest: Asks, most: f64) {
    let least = beside_endless_ones(board).min(most) - board.early_points().max(2.0);
    let [_, owed] = beside(board, honest, &[ENDLESS; 2], 10_000, |_| {});
    let (low, _) = owed.windows(1_000, 10_000, 1_000);
    let told = format!("{}: {honest:?}: {low:.2}, owed {least:.2}", board.name);
    println!("{told}");
    assert!(low >= least, "{told}");
}

on_every_board! {
    fn endless_kernels_beside_a_floor_take_only_their_turns(board) {
        endless_kernels_take_only_their_turns(board, Asks::floor(80), 80.0);
    }

    fn endless_kernels_beside_a_cap_take_only_their_turns(board) {
        endless_kernels_take_only_their_turns(board, Asks::cap(90), 90.0);
    }

    fn forged_figures_gain_nothing(board) {
        for (lie, words) in LIES {
            println!("{lie}");
            let offered = offered(board, &[GREEDY; 2]);
            gains_nothing_on(board, offered, GREEDY, 5_000, |hostile| hostile.forge(words));
        }
    }

    fn forged_figures_of_little_use_gain_nothing(board) {
        for (lie, words) in LIES_OF_LITTLE_USE {
            println!("{lie}");
            let offered = offered(board, &[GREEDY; 2]);
            gains_nothing_on(board, offered, GREEDY, 5_000, |hostile| hostile.forge(words));
        }
    }

    /// They cost a neighbour no more than an honest program that launches little.
    fn forged_figures_of_a_light_program_take_no_more_than_few_launches(board) {
        let neighbours = neighbours_of_few_launches(board);
        gains_at_most(board, 12.0, neighbours, GREEDY, 5_000, |hostile| {
            hostile.forge(USED_NOTHING_AND_WAITS_FOR_NOTHING);
        });
    }

    /// The same with figures that say that it uses a part of its cap, or more than that, and waits for nothing.
    fn forged_figures_of_some_use_take_no_more_than_few_launches(board) {
        let neighbours = neighbours_of_few_launches(board);
        for permille in [30, 59, 100, 160] {
            println!("says that it uses {permille} thousandths of the GPU");
            let mut looks = 0;
            gains_at_most(board, 12.0, neighbours, GREEDY, 5_000, |hostile| {
                looks += 1;
                let used_ns = looks * LOOK_NS * permille / 1_000;
                hostile.forge(USED_NOTHING_AND_WAITS_FOR_NOTHING);
                hostile.forge(&[
                    (COMPUTE + offset_of!(ComputeUse, busy_ns), used_ns),
                    (COMPUTE + offset_of!(ComputeUse, occupied_ns), used_ns),
                ]);
            });
        }
    }

    fn launches_that_all_look_new_gain_nothing(board) {
        gains_nothing_on(board, offered(board, &[GREEDY; 2]), NOVEL[0], 5_000, |_| {});
    }
}

/// What was in flight before has ended ten seconds before this, milliseconds.
const LATER_MS: u64 = 30_000;

/// A container that launches 1,000 s of work within a moment, and one that comes later. `others` is a container that works
/// all the time, and what the later one has in the end at least, percent.
#[track_caller]
fn a_later_one_gets_its_time(first: Asks, others: Option<Asks>, later: Asks, least: f64) {
    let lab = Lab::on(&PLAIN, LIFE);
    let mut arbiter = lab.arbiter();
    let flood = lab.container("flood", first);
    let others = others.map(|asks| lab.container("other", asks));
    let _works = others.map(|other| other.start("steady ns=1000000 for=60000"));
    let flood = flood.start(&format!(
        "flood launches=1000 ns=1000000000 idle={KNOWN_MS} for=60000"
    ));
    lab.watch(KNOWN_MS + 500, &[], |_| arbiter.look());
    let late = lab.container("later", later);
    let late = late.start("steady ns=1000000 for=60000");

    let curves = lab.watch(LATER_MS, &[&[&flood], &[&late]], |_| arbiter.look());

    println!("{first:?}, {later:?}: {}", curves[1].shape(LATER_MS, 500));
    println!("of all: {:.1}", curves[1].share(0, LATER_MS));
    // What is in flight when it comes ends first, beside its own: a launch, and those that were let in because nothing
    // ended for 100 ms and for 200 ms more.
    let share = curves[1].share(LATER_MS - 10_000, LATER_MS);
    assert!(share >= least, "{first:?}, {later:?}: {share}");
    // Launches that were let in without credit are paid for later.
    let share = curves[1].share(0, LATER_MS);
    assert!(share >= least * 0.9, "{first:?}, {later:?}: {share} of all");
}

#[test]
fn work_that_is_queued_before_the_arbiter_has_come_is_bounded() {
    let lab = Lab::on(&PLAIN, LIFE);
    let mut arbiter = lab.arbiter();
    let flood = lab.container("flood", Asks::nothing());
    let flood = flood.start("flood launches=1000 ns=1000000000 for=60000");
    lab.pass(50, &[]);
    lab.watch(1_000, &[], |_| arbiter.look());
    let late = lab.container("later", Asks::floor(80));
    let late = late.start("steady ns=1000000 for=60000");

    let curves = lab.watch(LATER_MS, &[&[&flood], &[&late]], |_| arbiter.look());

    println!("{}", curves[1].shape(LATER_MS, 500));
    let share = curves[1].share(LATER_MS - 10_000, LATER_MS);
    assert!(share >= 77.0, "{share}");
}

#[test]
fn work_that_was_queued_before_a_container_of_a_higher_priority_came_is_bounded() {
    for priority in [USUAL_PRIORITY, LOWEST_PRIORITY] {
        let first = Asks::nothing().priority(priority);
        a_later_one_gets_its_time(first, None, Asks::nothing().priority(0), 97.0);
    }
}

#[test]
fn work_that_was_queued_before_a_container_with_a_floor_came_is_bounded() {
    let usual = |asks: Asks| asks.priority(USUAL_PRIORITY);
    a_later_one_gets_its_time(usual(Asks::nothing()), None, usual(Asks::floor(80)), 78.0);
    // Of the same priority, the highest one.
    a_later_one_gets_its_time(Asks::nothing(), None, Asks::floor(80), 78.0);
}

#[test]
fn work_that_was_queued_beside_a_capped_container_is_bounded() {
    let usual = |asks: Asks| asks.priority(USUAL_PRIORITY);
    let capped = Some(usual(Asks::cap(20)));
    a_later_one_gets_its_time(
        usual(Asks::nothing()),
        capped,
        Asks::nothing().priority(0),
        97.0,
    );
    a_later_one_gets_its_time(usual(Asks::nothing()), capped, usual(Asks::floor(80)), 78.0);
}

/// What a later container uses, where the first one has queued 1,000 s of kernels of this length.
fn beside_a_queue(ns: u64, first: Asks, others: Option<Asks>, later: Asks, ms: u64) -> Curve {
    let lab = Lab::on(&PLAIN, LIFE);
    let mut arbiter = lab.arbiter();
    let flood = lab.container("flood", first);
    let others = others.map(|asks| lab.container("other", asks));
    let _works = others.map(|other| other.start("steady ns=1000000 for=60000"));
    let launches = 1_000_000 * MS / ns;
    let _floods = flood.start(&format!(
        "flood launches={launches} ns={ns} idle={KNOWN_MS} for=60000"
    ));
    lab.watch(KNOWN_MS + 1_500, &[], |_| arbiter.look());
    let late = lab.container("later", later);
    let late = late.start("steady ns=1000000 for=60000");

    let curve = lab.watch(ms, &[&[&late]], |_| arbiter.look()).remove(0);

    println!("{ns} ns: {}", curve.shape(ms, 100));
    curve
}

/// When a later container has its time: from then on it has `least` percent in each second, milliseconds.
fn has_its_time_after(ns: u64, first: Asks, others: Option<Asks>, later: Asks, least: f64) -> u64 {
    const LONG_MS: u64 = 5_000;
    let curve = beside_a_queue(ns, first, others, later, LONG_MS);
    let has = |from_ms: &u64| curve.windows(*from_ms, LONG_MS, 1_000).0 >= least;
    (0..LONG_MS - 1_000)
        .step_by(50)
        .find(has)
        .unwrap_or(LONG_MS)
}

#[test]
fn short_kernels_that_were_queued_hold_up_a_later_container_for_a_second() {
    let usual = |asks: Asks| asks.priority(USUAL_PRIORITY);
    let capped = Some(usual(Asks::cap(20)));
    for ns in [20_000, 1_000_000, 5_000_000, 50_000_000] {
        for others in [None, capped] {
            for (later, least) in [(usual(Asks::floor(80)), 78.0), (Asks::nothing(), 97.0)] {
                let first = usual(Asks::nothing());
                let after_ms = has_its_time_after(ns, first, others, later, least);
                println!("kernels of {ns} ns, beside {others:?}, {later:?} after {after_ms} ms");
                assert!(
                    after_ms <= 1_000,
                    "{ns} ns, {others:?}, {later:?}: {after_ms} ms"
                );
            }
        }
    }
}

#[test]
fn short_kernels_that_the_highest_priority_queued_hold_up_a_floor_of_that_priority_for_a_second() {
    for ns in [20_000, 1_000_000, 5_000_000, 50_000_000] {
        let after_ms = has_its_time_after(ns, Asks::nothing(), None, Asks::floor(80), 78.0);
        println!("kernels of {ns} ns: after {after_ms} ms");
        assert!(after_ms <= 1_000, "{ns} ns: {after_ms} ms");
    }
}

#[test]
fn kernels_that_the_highest_priority_queued_above_a_lower_one_hold_up_a_later_floor_for_two_seconds()
 {
    let lower = Some(Asks::nothing().priority(LOWEST_PRIORITY));
    for ns in [20_000, 1_000_000, 5_000_000, 50_000_000] {
        // A floor, and nine tenths of one beside a container of a higher priority that always wants more.
        for (priority, least) in [(0, 78.0), (LOWEST_PRIORITY, 72.0)] {
            let later = Asks::floor(80).priority(priority);
            let after_ms = has_its_time_after(ns, Asks::nothing(), lower, later, least);
            println!("kernels of {ns} ns, {later:?}: after {after_ms} ms");
            assert!(after_ms <= 2_000, "{ns} ns, {later:?}: {after_ms} ms");
        }
    }
}

/// Of kernels that are longer than any bound, those are in flight that began before the other container came, and each
/// further one is paid before the next begins.
#[test]
fn long_kernels_that_were_queued_hold_up_a_later_floor_until_those_in_flight_have_ended() {
    let usual = |asks: Asks| asks.priority(USUAL_PRIORITY);
    let mut short = Vec::new();
    for ns in [300 * MS, 1_000 * MS, 2_000 * MS] {
        // Those in flight have ended: the driver gives them a third of the time at least.
        let from_ms = 3 * ns / MS + 1_000;
        // While one runs the driver gives it its turns, so the floor holds over the time of ten of them.
        let length_ms = 10 * ns / MS;
        // Beside a container of a higher priority its kernels come sooner again, and the floor falls short by a tenth.
        for (first, least) in [(usual(Asks::nothing()), 78.0), (Asks::nothing(), 70.0)] {
            for others in [None, Some(usual(Asks::cap(20)))] {
                let later = usual(Asks::floor(80));
                let curve = beside_a_queue(ns, first, others, later, from_ms + 2 * length_ms);
                let (low, _) = curve.windows(from_ms, from_ms + 2 * length_ms, length_ms);
                let told = format!("kernels of {ns} ns, {first:?}, {others:?}: {low:.1}");
                println!("{told}");
                if low < least {
                    short.push(told);
                }
            }
        }
    }
    assert!(short.is_empty(), "{short:#?}");
}
