//! Several containers on one GPU, with an arbiter: caps, floors, lent time, and priorities.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use vgpu_abi::limits::Policy;

use crate::boards::{self, Board, LEAST_PART, NEWER, PLAIN, POINTS, WINDOW_POINTS};
use crate::lab::{Asks, Curve, Lab};

/// Kernels that take another time at each launch, and launches that take some: no two programs of real
/// life beat the same time for seconds.
pub(crate) const LIFE: &str = "kernel k__5000ns 5us ±10%
kernel k__20000ns 20us ±10%
kernel k__250000ns 250us ±10%
kernel k__500000ns 500us ±10%
kernel k__1000000ns 1ms ±10%
kernel k__5000000ns 5ms ±10%
kernel k__50000000ns 50ms ±10%
call cuLaunchKernel 3us
call cuGraphLaunch 5us
";

/// Programs exist for this long before their first launch.
const KNOWN_MS: u64 = 300;

/// Runs a program in each of several containers for so long, under an arbiter. A run in which the machine held a program
/// up, so that time went on without it, says nothing and is made again.
fn side_by_side(board: &Board, programs: &[(Asks, &str)], ms: u64) -> Vec<Curve> {
    for _ in 0..4 {
        let (curves, is_exact) = run_side_by_side(board, programs, ms);
        if is_exact {
            return curves;
        }
    }
    run_side_by_side(board, programs, ms).0
}

fn run_side_by_side(board: &Board, programs: &[(Asks, &str)], ms: u64) -> (Vec<Curve>, bool) {
    let lab = Lab::on(board, LIFE);
    let mut arbiter = lab.arbiter();
    let containers: Vec<_> = programs
        .iter()
        .enumerate()
        .map(|(number, (asks, _))| lab.container(&format!("c{number}"), *asks))
        .collect();
    let running: Vec<_> = containers
        .iter()
        .zip(programs)
        .map(|(container, (_, words))| {
            container.start(&format!(
                "{words} idle={KNOWN_MS} for={}",
                ms + KNOWN_MS + 100
            ))
        })
        .collect();
    let alone: Vec<_> = running.iter().map(|program| [program]).collect();
    let groups: Vec<&[_]> = alone.iter().map(<[_; 1]>::as_slice).collect();

    // A real program takes longer from its first call to its first kernel than the arbiter takes to
    // find it.
    lab.watch(KNOWN_MS, &[], |_| arbiter.look());
    let curves = lab.watch(ms, &groups, |_| arbiter.look());

    lab.say_if_inexact();
    for (curve, (asks, words)) in curves.iter().zip(programs) {
        println!("{asks:?}, {words}: {}", curve.shape(ms, 200));
    }
    (curves, lab.is_exact())
}

/// The shares that the same programs get on a board together, without limits. They are measured once for each board and
/// programs: another measurement in lockstep would be the same. One in which the machine held a program up is made again.
pub(crate) fn offered(board: &Board, words: &[&str]) -> f64 {
    type Measured = HashMap<(&'static str, String), Arc<OnceLock<f64>>>;
    static MEASURED: LazyLock<Mutex<Measured>> = LazyLock::new(Mutex::default);
    let key = (board.name, words.join(", "));
    let share = Arc::clone(MEASURED.lock().unwrap().entry(key).or_default());
    *share.get_or_init(|| measure_offered(board, words))
}

fn measure_offered(board: &Board, words: &[&str]) -> f64 {
    let mut share = 0.0;
    for _ in 0..4 {
        let lab = Lab::on(board, LIFE);
        let programs: Vec<_> = words
            .iter()
            .map(|words| lab.native(&format!("{words} for=1100")))
            .collect();
        let all: Vec<_> = programs.iter().collect();
        share = lab.pass(1_000, &[&all])[0].share(200, 1_000);
        if lab.is_exact() {
            break;
        }
    }
    share
}

/// Containers under caps: each gets its own, or its part of what the board gives.
#[track_caller]
fn caps_are_kept(test: &str, board: &Board, caps: &[u32], words: &[&str], ms: u64) {
    let owed = boards::owed(caps, offered(board, words));
    shares_are_kept(test, board, caps, words, &owed, ms);
}

/// The same for programs that do not ask for the GPU all the time, because they wait for their own launches.
#[track_caller]
fn caps_are_kept_with_gaps(test: &str, board: &Board, caps: &[u32], words: &[&str], ms: u64) {
    let alone: Vec<f64> = words.iter().map(|words| offered(board, &[words])).collect();
    let owed = boards::owed_to_each(caps, offered(board, words), &alone);
    shares_are_kept(test, board, caps, words, &owed, ms);
}

#[track_caller]
fn shares_are_kept(test: &str, board: &Board, caps: &[u32], words: &[&str], owed: &[f64], ms: u64) {
    let programs: Vec<_> = caps
        .iter()
        .zip(words)
        .map(|(cap, words)| (Asks::cap(*cap), *words))
        .collect();
    let from = board.settled_ms();
    let curves = side_by_side(board, &programs, from + ms);

    let got: Vec<f64> = curves
        .iter()
        .map(|curve| curve.share(from, from + ms))
        .collect();
    let each = got.iter().zip(owed).zip(caps);
    let off = each
        .map(|((got, owed), cap)| boards::off(*got, *owed, *cap))
        .fold(0.0, f64::max);
    // To starve a container is the worst error, however small its cap.
    let least = got.iter().zip(owed).map(|(got, owed)| got / owed);
    let least = least.fold(f64::MAX, f64::min);
    let told = format!(
        "{}, {caps:?}, {words:?}: got {got:.2?}, owed {owed:.2?}, off by {off:.2}, least {least:.2}",
        board.name
    );
    println!("{test} on {told}");
    assert!(
        owed.iter().all(|owed| *owed > 1.0),
        "{told}: a program fails"
    );
    assert!(off <= POINTS, "{told}; allowed {POINTS}");
    assert!(least >= LEAST_PART, "{told}; at least {LEAST_PART}");
}

/// Containers under caps whose programs launch by chance: each gets its own, on the mean of several runs. What such a
/// program asks for differs from run to run.
#[track_caller]
fn mixtures_get_their_caps(test: &str, board: &Board, caps: [u32; 2]) {
    let runs = MIXTURES.map(|words| {
        let alone = words.map(|words| offered(board, &[words]));
        let owed = boards::owed_to_each(&caps, offered(board, &words), &alone);
        let programs = [
            (Asks::cap(caps[0]), words[0]),
            (Asks::cap(caps[1]), words[1]),
        ];
        let from = board.settled_ms();
        let curves = side_by_side(board, &programs, from + LONGER);
        let got: Vec<f64> = curves
            .iter()
            .map(|curve| curve.share(from, from + LONGER))
            .collect();
        (got, owed)
    });
    for (at, cap) in caps.into_iter().enumerate() {
        let got = runs.each_ref().map(|(got, _)| got[at]);
        let owed = runs.each_ref().map(|(_, owed)| owed[at]);
        let mean = |of: [f64; MIXTURES.len()]| of.iter().sum::<f64>() / MIXTURES.len() as f64;
        let off = boards::off(mean(got), mean(owed), cap);
        let told = format!(
            "{}, {cap}: got {got:.2?}, owed {owed:.2?}, off by {off:.2}",
            board.name
        );
        println!("{test} on {told}");
        assert!(off <= POINTS, "{told}; allowed {POINTS}");
        for (got, owed) in got.iter().zip(owed) {
            let least = got / owed;
            assert!(
                least >= LEAST_PART,
                "{told}: {least:.2}; at least {LEAST_PART}"
            );
        }
    }
}

/// A container with a floor beside one without limits: it gets what it is owed in each second.
#[track_caller]
fn floor_is_kept(test: &str, board: &Board, floor: u32, words: [&str; 2]) {
    let owed = boards::owed(&[floor, 100 - floor], offered(board, &words))[0];
    let from = board.settled_ms();
    let curves = side_by_side(
        board,
        &[(Asks::floor(floor), words[0]), (Asks::nothing(), words[1])],
        from + LONG,
    );

    let (low, _) = curves[0].windows(from, from + LONG, 1_000);
    let told = format!(
        "{}, floor {floor}, {words:?}: {low:.2} at least, owed {owed:.2}, off by {:.2}",
        board.name,
        owed - low
    );
    println!("{test} on {told}");
    assert!(
        owed - low <= POINTS,
        "{told}; allowed {POINTS}: {}",
        curves[0].shape(from + LONG, 200)
    );
}

/// Containers under caps: each gets its own in every fifth of a second, or in every half where slices are lost. From the
/// third second on: a period that becomes longer moves intervals once.
#[track_caller]
fn windows_are_kept(test: &str, board: &Board, caps: [u32; 2], words: [&str; 2]) {
    let owed = boards::owed(&caps, offered(board, &words));
    let programs = [
        (Asks::cap(caps[0]), words[0]),
        (Asks::cap(caps[1]), words[1]),
    ];
    let from = board.settled_ms().max(2_000);
    let ms = from + 2_000;
    let curves = side_by_side(board, &programs, ms);

    for ((curve, cap), owed) in curves.iter().zip(caps).zip(owed) {
        let (low, high) = curve.windows(from, ms, board.window_ms());
        let told = format!(
            "{}, {words:?}, {cap}: {low:.2} to {high:.2}, owed {owed:.2}",
            board.name
        );
        println!("{test} on {told}");
        assert!(
            low >= owed - WINDOW_POINTS && high <= f64::from(cap) + WINDOW_POINTS,
            "{told}: {}",
            curve.shape(ms, 200)
        );
    }
}

/// A container with a cap of 30 that is busy for half a second and idle for another one, beside one that always wants
/// more: it has its cap from a quarter of a second after each beginning on.
#[track_caller]
fn bursts_get_their_cap(test: &str, board: &Board) {
    let words = ["bursts on=500 off=500", "steady ns=1000000"];
    let offered = offered(board, &["steady ns=1000000 sync=1", words[1]]);
    let owed = boards::owed(&[30, 70], offered);
    let programs = [(Asks::cap(30), words[0]), (Asks::cap(70), words[1])];
    let curves = side_by_side(board, &programs, LONG);

    let shares = |curve: &Curve| -> Vec<f64> {
        let begins = (0..LONG).step_by(1_000);
        begins.map(|at| curve.share(at + 250, at + 450)).collect()
    };
    let (bursts, steady) = (shares(&curves[0]), shares(&curves[1]));
    let told = format!(
        "{}: {bursts:.2?}, beside {steady:.2?}, owed {owed:.2?}",
        board.name
    );
    println!("{test} on {told}");
    // The first burst is over before the period is as long as suits a board that keeps long slices.
    let first = board.early_part();
    for (burst, enough) in bursts
        .iter()
        .zip([first].into_iter().chain(std::iter::repeat(0.9)))
    {
        assert!(*burst >= enough * owed[0], "{told}; at least {enough}");
    }
}

/// Pairs of such programs.
const MIXTURES: [[&str; 2]; 4] = [
    ["mixed seed=1", "mixed seed=2"],
    ["mixed seed=3", "mixed seed=4"],
    ["mixed seed=5", "mixed seed=6"],
    ["mixed seed=7", "mixed seed=8"],
];
/// How long containers run side by side, milliseconds of the board; with small kernels a run costs more.
const LONG: u64 = 5_000;
/// The same with kernels of which few fit into a second.
const LONGER: u64 = 8_000;
const SMALL_LONG: u64 = 2_000;
const KERNELS: [&str; 2] = ["steady ns=1000000"; 2];
const SMALL: [&str; 2] = ["steady ns=20000"; 2];

on_every_board! {
    fn caps_of_10_and_90_are_kept_side_by_side(board) {
        caps_are_kept(TEST, board, &[10, 90], &KERNELS, LONG);
    }

    fn caps_of_30_and_70_are_kept_side_by_side(board) {
        caps_are_kept(TEST, board, &[30, 70], &KERNELS, LONG);
    }

    fn caps_of_50_and_50_are_kept_side_by_side(board) {
        caps_are_kept(TEST, board, &[50, 50], &KERNELS, LONG);
    }

    fn caps_of_10_and_90_are_kept_by_small_kernels(board) {
        caps_are_kept(TEST, board, &[10, 90], &SMALL, SMALL_LONG);
    }

    fn caps_of_30_and_70_are_kept_by_small_kernels(board) {
        caps_are_kept(TEST, board, &[30, 70], &SMALL, SMALL_LONG);
    }

    fn caps_of_50_and_50_are_kept_by_small_kernels(board) {
        caps_are_kept(TEST, board, &[50, 50], &SMALL, SMALL_LONG);
    }

    fn caps_that_leave_room_are_kept_side_by_side(board) {
        caps_are_kept(TEST, board, &[25, 25], &KERNELS, LONG);
        caps_are_kept(TEST, board, &[10, 50], &KERNELS, LONG);
    }

    fn three_containers_get_their_caps(board) {
        caps_are_kept(TEST, board, &[20, 30, 50], &["steady ns=1000000"; 3], LONG);
        caps_are_kept(TEST, board, &[20, 30, 50], &["steady ns=20000"; 3], SMALL_LONG);
    }

    fn caps_are_kept_by_long_kernels(board) {
        for caps in [[10, 90], [50, 50]] {
            caps_are_kept(TEST, board, &caps, &["steady ns=5000000"; 2], LONGER);
        }
        caps_are_kept(TEST, board, &[20, 30, 50], &["steady ns=5000000"; 3], LONGER);
    }

    fn caps_are_kept_by_mixtures(board) {
        mixtures_get_their_caps(TEST, board, [30, 70]);
    }

    fn bursts_get_their_cap_beside_a_greedy_neighbour(board) {
        bursts_get_their_cap(TEST, board);
    }

    fn caps_are_kept_by_short_bursts(board) {
        let words = ["bursts on=60 off=40", "steady ns=1000000"];
        caps_are_kept_with_gaps(TEST, board, &[30, 70], &words, LONG);
    }

    fn caps_are_kept_in_every_fifth_of_a_second(board) {
        let unlike = ["steady ns=20000", "steady ns=5000000"];
        for (caps, words) in [([30, 70], KERNELS), ([30, 70], SMALL), ([30, 70], unlike), ([10, 90], KERNELS)] {
            windows_are_kept(TEST, board, caps, words);
        }
    }

    fn caps_are_kept_between_long_and_short_kernels(board) {
        caps_are_kept(TEST, board, &[30, 70], &["steady ns=20000", "steady ns=5000000"], LONG);
    }

    fn caps_are_kept_between_graphs_and_kernels(board) {
        let words = ["steady way=8 ns=500000 nodes=20", "steady ns=1000000"];
        caps_are_kept(TEST, board, &[50, 50], &words, LONG);
    }

    fn caps_are_kept_beside_launches_that_are_waited_for(board) {
        let words = ["steady ns=1000000 sync=1", "steady ns=250000 streams=4"];
        caps_are_kept(TEST, board, &[30, 70], &words, LONG);
    }

    fn caps_are_kept_by_small_launches_that_are_waited_for(board) {
        let words = ["steady ns=20000 sync=1", "steady ns=1000000 sync=1"];
        caps_are_kept_with_gaps(TEST, board, &[30, 70], &words, SMALL_LONG);
    }

    fn caps_are_kept_by_small_launches_that_are_asked_for(board) {
        let words = ["steady ns=20000 sync=4", "steady ns=1000000 sync=4"];
        caps_are_kept_with_gaps(TEST, board, &[30, 70], &words, SMALL_LONG);
    }

    fn caps_are_kept_by_small_launches_that_are_rarely_asked_for(board) {
        for asks in ["sync=2 ask=20", "sync=4 ask=200"] {
            let words = [&format!("steady ns=20000 {asks}"), "steady ns=1000000"];
            caps_are_kept_with_gaps(TEST, board, &[30, 70], &words, SMALL_LONG);
        }
    }

    fn caps_are_kept_by_the_smallest_kernels(board) {
        // Without slices each launch is a step of its own, and shares settle at once.
        let ms = if board.has_slices() { SMALL_LONG } else { SMALL_LONG / 2 };
        for caps in [[30, 70], [10, 90], [50, 50]] {
            caps_are_kept(TEST, board, &caps, &["steady ns=5000"; 2], ms);
        }
        caps_are_kept(TEST, board, &[20, 30, 50], &["steady ns=5000"; 3], ms);
    }

    fn caps_are_kept_by_small_graphs(board) {
        let words = ["steady way=8 ns=5000 nodes=8", "steady ns=20000"];
        caps_are_kept(TEST, board, &[30, 70], &words, SMALL_LONG);
    }

    fn floor_of_30_is_kept_beside_a_greedy_neighbour(board) {
        floor_is_kept(TEST, board, 30, KERNELS);
    }

    fn floor_of_20_is_kept_by_launches_that_are_waited_for(board) {
        floor_is_kept(TEST, board, 20, ["steady ns=1000000 sync=1", "steady ns=1000000"]);
    }

    fn floor_of_50_is_kept_by_small_kernels(board) {
        floor_is_kept(TEST, board, 50, ["steady ns=20000", "steady ns=5000000 streams=4"]);
    }

    fn floor_of_70_is_kept_by_graphs(board) {
        floor_is_kept(TEST, board, 70, ["steady way=8 ns=500000 nodes=20", "steady ns=250000"]);
    }

    fn idle_time_is_lent_in_proportion_to_floors(board) {
        let owed = boards::owed(&[25, 75], offered(board, &KERNELS));
        let floors = [(Asks::floor(20), KERNELS[0]), (Asks::floor(60), KERNELS[1])];
        let from = board.settled_ms().max(1_000);
        let curves = side_by_side(board, &floors, from + LONG);

        let got = [&curves[0], &curves[1]].map(|curve| curve.share(from, from + LONG));
        let off = (owed[0] - got[0]).max(owed[1] - got[1]);
        println!("{TEST} on {}: got {got:.2?}, owed {owed:.2?}, off by {off:.2}", board.name);
        assert!(off <= POINTS, "{got:?}, owed {owed:?}");
    }
}

/// Each way in which a program may wait for its work: `sync=` of `launch.c`.
#[test]
fn caps_are_kept_by_small_launches_that_are_waited_for_in_each_way() {
    for way in 1..=6 {
        let words = [20_000, 1_000_000].map(|ns| format!("steady ns={ns} sync={way}"));
        let words = [words[0].as_str(), words[1].as_str()];
        caps_are_kept_with_gaps("each way", &NEWER, &[30, 70], &words, SMALL_LONG);
    }
}

#[test]
fn idle_time_is_lent_and_returns_within_200_ms_plus_a_kernel() {
    for (greedy, longest_ms) in [("steady ns=1000000", 1), ("steady ns=50000000", 50)] {
        let curves = side_by_side(
            &PLAIN,
            &[
                (Asks::floor(60), "late ns=1000000 after=2000"),
                (Asks::nothing(), greedy),
            ],
            5_000,
        );

        let lent = curves[1].share(200, 2_000);
        let back = curves[0].share(2_200 + longest_ms, 5_000);
        let (low, _) = curves[0].windows(2_200 + longest_ms, 5_000, 1_000);
        println!("{greedy}: lent {lent:.2}, back {back:.2}, {low:.2} at least");
        assert!(lent >= 98.0, "lent {lent:.2}");
        assert!(
            low >= 58.0,
            "back {back:.2}, {low:.2} at least: {}",
            curves[0].shape(5_000, 100)
        );
    }
}

#[test]
fn a_floor_with_a_cap_is_lent_no_more_than_the_cap() {
    let asks = Asks {
        cap: 40,
        ..Asks::floor(20)
    };
    let curves = side_by_side(&PLAIN, &[(asks, "steady ns=1000000")], 3_000);

    let mean = curves[0].share(0, 3_000);
    assert!((mean - 40.0).abs() <= 1.0, "{mean}");
}

#[test]
fn a_default_cap_holds_only_while_another_container_works() {
    let curves = side_by_side(
        &PLAIN,
        &[
            (Asks::cap(30).policy(Policy::Default), "steady ns=1000000"),
            (Asks::nothing(), "late ns=1000000 after=2000"),
        ],
        6_000,
    );

    let alone = curves[0].share(200, 2_000);
    let beside = curves[0].share(2_250, 6_000);
    println!("alone {alone:.2}, beside {beside:.2}");
    assert!(alone >= 98.0, "{alone}");
    assert!(
        (beside - 30.0).abs() <= 2.0,
        "{}",
        curves[0].shape(6_000, 200)
    );
}

#[test]
fn a_cap_that_is_disabled_is_none() {
    let curves = side_by_side(
        &PLAIN,
        &[(Asks::cap(30).policy(Policy::Disable), "steady ns=1000000")],
        1_000,
    );

    assert!(curves[0].share(0, 1_000) >= 99.0);
}

#[test]
fn lower_priority_runs_only_while_the_higher_one_is_idle() {
    let curves = side_by_side(
        &PLAIN,
        &[
            (
                Asks::nothing().priority(0),
                "bursts ns=1000000 on=1000 off=1000",
            ),
            (Asks::nothing().priority(1), "steady ns=1000000"),
        ],
        8_000,
    );

    for second in [2, 4, 6] {
        let from = second * 1_000 + 200;
        let high = curves[0].share(from, from + 700);
        let low = curves[1].share(from, from + 700);
        let resting = curves[1].share(from + 1_200, from + 1_700);
        println!("second {second}: high {high:.1}, low {low:.1}, low alone {resting:.1}");
        assert!(low <= 2.0 && high >= 97.0, "high {high}, low {low}");
        assert!(resting >= 97.0, "low alone {resting}");
    }
}

#[test]
fn a_lower_priority_keeps_its_own_floor() {
    let curves = side_by_side(
        &PLAIN,
        &[
            (Asks::nothing().priority(0), "steady ns=1000000"),
            (Asks::floor(20).priority(1), "steady ns=1000000"),
        ],
        6_000,
    );

    let (low, _) = curves[1].windows(0, 6_000, 1_000);
    assert!(low >= 18.0, "{low}: {}", curves[1].shape(6_000, 200));
}
