//! Programs that would get more than their cap where the library believed them: launches far longer than any window,
//! costs that one short launch taught, work whose end cannot be seen.

use crate::lab::{Asks, Lab};

/// The share of one program alone under a cap of 10, over this many milliseconds.
fn under_ten(words: &str, ms: u64) -> f64 {
    let lab = Lab::new();
    let container = lab.container("greedy", Asks::cap(10));
    let program = container.start(&format!("{words} for={}", ms + 100));
    let curves = lab.watch(ms, &[&[&program]], |_| {});
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
