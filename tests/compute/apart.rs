//! Several containers on one GPU that each have only variables of their own: no host process divides the GPU, so the
//! containers divide it themselves.

use crate::boards::{self, Board, PLAIN};
use crate::lab::{Curve, Lab};
use crate::together::{LIFE, offered};

/// The allowed error of a share, points.
const POINTS: f64 = 5.0;
/// How long containers run, milliseconds of the board.
const LONG: u64 = 3_000;
/// From when on they share, milliseconds: until then they find each other.
const FOUND: u64 = 500;

/// Runs a program in each of several containers with these caps for so long. A run in which the machine held a program
/// up says nothing and is made again.
fn side_by_side(board: &Board, programs: &[(u32, &str)], ms: u64) -> Vec<Curve> {
    let mut curves = Vec::new();
    for _ in 0..4 {
        let lab = Lab::on(board, LIFE);
        let containers: Vec<_> = programs
            .iter()
            .enumerate()
            .map(|(number, (cap, _))| lab.bare(&format!("c{number}"), *cap))
            .collect();
        let running: Vec<_> = containers
            .iter()
            .zip(programs)
            .map(|(container, (_, words))| container.start(&format!("{words} for={}", ms + 100)))
            .collect();
        let alone: Vec<_> = running.iter().map(|program| [program]).collect();
        let groups: Vec<&[_]> = alone.iter().map(<[_; 1]>::as_slice).collect();

        curves = lab.pass(ms, &groups);

        lab.say_if_inexact();
        for (curve, (cap, words)) in curves.iter().zip(programs) {
            println!("{cap}, {words}: {}", curve.shape(ms, 200));
        }
        if lab.is_exact() {
            break;
        }
    }
    curves
}

/// Each container gets its cap, or its part of what the board gives.
#[track_caller]
fn caps_are_kept(test: &str, board: &Board, programs: [(u32, &str); 2]) {
    let caps = programs.map(|(cap, _)| cap);
    let owed = boards::owed(&caps, offered(board, &programs.map(|(_, words)| words)));
    shares_are_kept(test, board, programs, &owed);
}

/// The same for programs that do not ask for the GPU all the time, because they wait for their own launches.
#[track_caller]
fn caps_are_kept_with_gaps(test: &str, board: &Board, programs: [(u32, &str); 2]) {
    let caps = programs.map(|(cap, _)| cap);
    let words = programs.map(|(_, words)| words);
    let alone = words.map(|words| offered(board, &[words]));
    let owed = boards::owed_to_each(&caps, offered(board, &words), &alone);
    shares_are_kept(test, board, programs, &owed);
}

#[track_caller]
fn shares_are_kept(test: &str, board: &Board, programs: [(u32, &str); 2], owed: &[f64]) {
    let caps = programs.map(|(cap, _)| cap);
    let curves = side_by_side(board, &programs, LONG);

    let got: Vec<f64> = curves
        .iter()
        .map(|curve| curve.share(FOUND, LONG))
        .collect();
    let each = got.iter().zip(owed).zip(caps);
    let off = each
        .map(|((got, owed), cap)| boards::off(*got, *owed, cap))
        .fold(0.0, f64::max);
    let least = got.iter().zip(owed).map(|(got, owed)| got / owed);
    let least = least.fold(f64::MAX, f64::min);
    let told = format!(
        "{}, {programs:?}: got {got:.2?}, owed {owed:.2?}, off by {off:.2}, least {least:.2}",
        board.name
    );
    println!("{test} on {told}");
    assert!(off <= POINTS && least >= 0.75, "{told}");
}

on_every_board! {
    fn caps_of_10_and_90_are_kept(board) {
        caps_are_kept(TEST, board, [(10, "steady ns=1000000"), (90, "steady ns=1000000")]);
    }

    fn caps_of_10_and_90_are_kept_by_small_kernels(board) {
        caps_are_kept(TEST, board, [(10, "steady ns=20000"), (90, "steady ns=20000")]);
    }

    fn caps_of_30_and_70_are_kept_between_short_and_long_kernels(board) {
        caps_are_kept(TEST, board, [(30, "steady ns=20000"), (70, "steady ns=5000000")]);
    }

    fn caps_of_50_and_50_are_kept_beside_launches_that_are_waited_for(board) {
        let programs = ["steady ns=1000000 sync=1", "steady ns=250000 streams=4"];
        caps_are_kept(TEST, board, programs.map(|words| (50, words)));
    }

    fn caps_of_30_and_70_are_kept_by_small_launches_that_are_waited_for(board) {
        let programs = [(30, "steady ns=20000 sync=1"), (70, "steady ns=1000000 sync=1")];
        caps_are_kept_with_gaps(TEST, board, programs);
    }

    fn caps_of_30_and_70_are_kept_by_small_launches_that_are_rarely_asked_for(board) {
        let programs = [(30, "steady ns=20000 sync=2 ask=20"), (70, "steady ns=1000000 sync=1")];
        caps_are_kept_with_gaps(TEST, board, programs);
    }
}

#[test]
fn a_cap_beside_a_container_without_one_is_not_starved() {
    for words in ["steady ns=1000000", "steady ns=20000"] {
        let curves = side_by_side(&PLAIN, &[(30, words), (0, "steady ns=1000000")], LONG);

        // What launches take by themselves is learned within the first second.
        let got = curves[0].share(1_000, LONG);
        println!("{words}: {got:.2}");
        assert!((25.0..=35.0).contains(&got), "{words}: {got}");
    }
}

#[test]
fn caps_beyond_the_whole_gpu_starve_no_container() {
    let curves = side_by_side(
        &PLAIN,
        &[(80, "steady ns=1000000"), (60, "steady ns=20000")],
        LONG,
    );

    let got = [&curves[0], &curves[1]].map(|curve| curve.share(0, LONG));
    println!("{got:.2?}");
    assert!(got.iter().all(|got| *got >= 35.0), "{got:?}");
}

#[test]
fn a_container_that_asks_for_less_than_its_cap_waits_for_no_other() {
    let lab = Lab::with_script(LIFE);
    let service = lab.bare("service", 60);
    let busy = lab.bare("busy", 30);
    let _neighbour = busy.start("steady ns=20000 for=60000");
    let requests = service.start("requests ns=1000000 kernels=5 pause=50000 steps=40");

    let text = requests.end();

    let took: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
    println!("{took:?}");
    // Five kernels, each beside a turn of the neighbour.
    assert!(took.iter().all(|us| *us < 16_000), "{took:?}");
}
