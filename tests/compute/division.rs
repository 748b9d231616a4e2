//! How simulated GPUs divide their time between programs without the library: each setting of slices, through the
//! driver that the tests of shares use.

use crate::lab::{Curve, Lab};

const GREEDY: &str = "steady ns=300000 for=1200";
/// Kernels of 1 ms, 4 ms apart, each waited for.
const MODEST: &str = "sparse ns=1000000 pause=4000000 steps=1000";

/// Runs programs on a board with such a script for a second: what each used, and how long each process's unbroken holds
/// of the GPU were, in microseconds, without the first and the last.
fn second_of(script: &str, programs: &[&str]) -> (Vec<Curve>, Vec<u64>) {
    let lab = Lab::with_script(script);
    let running: Vec<_> = programs.iter().map(|words| lab.native(words)).collect();
    let alone: Vec<_> = running.iter().map(|program| [program]).collect();
    let groups: Vec<&[_]> = alone.iter().map(<[_; 1]>::as_slice).collect();
    let curves = lab.pass(1_000, &groups);
    let held = lab.held(900);
    let lengths = held.iter().map(|held| (held.to_ns - held.from_ns) / 1_000);
    let mut lengths: Vec<u64> = lengths.skip(1).collect();
    lengths.pop();
    lab.say_if_inexact();
    (curves, lengths)
}

fn shares(curves: &[Curve]) -> Vec<f64> {
    let each = curves.iter().map(|curve| curve.share(100, 1_000));
    each.collect()
}

#[track_caller]
fn near(got: f64, wanted: f64) {
    assert!((got - wanted).abs() <= 1.0, "{got:.2}, not {wanted:.2}");
}

#[test]
fn slices_last_as_long_as_the_script_says() {
    for (slice, length_us) in [("500us", 500), ("2ms", 2_000), ("6ms", 6_000)] {
        let (curves, lengths) = second_of(&format!("slice {slice}"), &[GREEDY, GREEDY]);

        assert!(
            lengths.iter().all(|length| *length == length_us),
            "{slice}: {lengths:?}"
        );
        for share in shares(&curves) {
            near(share, 50.0);
        }
    }
}

#[test]
fn slice_given_up_leaves_no_time_unused() {
    let (curves, _) = second_of("slice 6ms", &[GREEDY, MODEST]);

    let got = shares(&curves);
    near(got[0] + got[1], 100.0);
    // It waits for a slice of 6 ms, runs for 1 and rests for 4, in which the next slice has begun.
    near(got[1], 100.0 / 7.0);
}

#[test]
fn kept_slice_is_time_that_no_program_gets() {
    let (curves, _) = second_of("slice 6ms\nslice empty kept", &[GREEDY, MODEST]);

    let got = shares(&curves);
    near(got[0], 50.0);
    // 1 ms, a pause of 4 and 1 ms again fit into each of its slices.
    assert!(got[1] < 20.0, "{got:?}");
}

#[test]
fn program_that_ran_least_does_not_wait_for_all_others() {
    let programs = [GREEDY, GREEDY, GREEDY, MODEST];
    let in_turn = shares(&second_of("slice 3ms", &programs).0);
    let least = shares(&second_of("slice 3ms\nslice order least-run", &programs).0);

    // In turn, it runs after three slices: a round of 10 ms.
    near(in_turn[3], 100.0 / 10.0);
    // With the least run, it is next when it is ready, which is in the second slice: a round of 7 ms.
    near(least[3], 100.0 / 7.0);
    near(least.iter().sum(), 100.0);
}

#[test]
fn each_change_of_process_costs_the_switch() {
    let (curves, lengths) = second_of("slice 2ms\nslice switch 500us", &[GREEDY, GREEDY]);

    for share in shares(&curves) {
        near(share, 40.0);
    }
    assert!(lengths.iter().all(|length| *length == 2_000), "{lengths:?}");
    let alone = shares(&second_of("slice 2ms\nslice switch 500us", &[GREEDY]).0);
    near(alone[0], 100.0);
}

on_every_board! {
    fn equal_programs_without_limits_get_equal_shares(board) {
        let lab = Lab::on(board, "");
        let programs = [lab.native(GREEDY), lab.native(GREEDY)];
        let curves = lab.pass(1_000, &[&[&programs[0]], &[&programs[1]]]);

        let got = shares(&curves);
        near(got[0], got[1]);
        if board.has_slices() {
            assert!((80.0..=100.1).contains(&(got[0] + got[1])), "{got:?}");
        } else {
            near(got[0], 100.0);
        }
    }
}
