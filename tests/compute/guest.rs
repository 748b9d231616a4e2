//! Programs that must not hang: kernels that wait for each other, killed processes, and programs that come and go.

use crate::lab::{Asks, Lab, MS};

const MEET: &str = "kernel meet peers 2 50us";

#[test]
fn two_ranks_with_mutually_waiting_kernels_run_under_one_cap() {
    for cap in [10, 25, 75] {
        let lab = Lab::with_script(MEET);
        let container = lab.container("ranks", Asks::cap(cap));
        let ranks = [
            container.start("ranks rounds=20"),
            container.start("ranks rounds=20"),
        ];

        let ends = ranks.map(|rank| rank.tells("met") / MS);

        println!("cap {cap}: met after {ends:?} ms");
        // Each round spins for about 200 ms until the progress rule lets the other in, and that is
        // GPU time, which is paid off at the cap.
        let longest_ms = 20 * 200 * 100 / u64::from(cap);
        assert!(
            ends.iter().all(|ms| *ms < longest_ms),
            "cap {cap}: {ends:?}, of {longest_ms}"
        );
    }
}

#[test]
fn two_ranks_in_two_containers_go_on() {
    let lab = Lab::with_script(MEET);
    let first = lab.container("first", Asks::cap(20));
    let second = lab.container("second", Asks::cap(60));
    let ranks = [
        first.start("ranks rounds=20"),
        second.start("ranks rounds=20"),
    ];

    let ends = ranks.map(|rank| rank.tells("met") / MS);

    println!("met after {ends:?} ms");
    assert!(ends.iter().all(|ms| *ms < 20_000), "{ends:?}");
}

#[test]
fn two_streams_with_mutually_waiting_kernels_run() {
    let lab = Lab::with_script(MEET);
    let container = lab.container("streams", Asks::cap(25));

    let end = container.start("ranks rounds=20 streams=2").tells("met") / MS;

    println!("met after {end} ms");
    assert!(end < 20_000, "{end}");
}

/// The share of a second program of the container after the first one was killed.
#[track_caller]
fn after_a_kill(words: &str, killed_after_ms: u64) {
    let lab = Lab::new();
    let container = lab.container("killed", Asks::cap(25));
    let victim = container.start(words);
    lab.pass(killed_after_ms, &[]);
    victim.kill();
    let next = container.start("steady ns=1000000 for=60000");

    let curve = lab.pass(2_500, &[&[&next]]).remove(0);

    // A dead process's debt is paid first: at most the work that it had in flight.
    let share = curve.share(500, 2_500);
    println!("after {words}: {share:.2}: {}", curve.shape(2_500, 100));
    assert!(
        (share - 25.0).abs() <= 1.0,
        "after {words}: {share:.2}: {}\n{}",
        curve.shape(2_500, 100),
        container.log()
    );
}

#[test]
fn a_killed_process_leaves_nothing_stuck() {
    after_a_kill("steady ns=1000000 for=60000", 500);
    after_a_kill("steady ns=20000 for=60000", 503);
    after_a_kill("threads count=4 ns=250000 for=60000", 500);
    after_a_kill("steady way=8 ns=500000 nodes=20 for=60000", 500);
}

#[test]
fn process_killed_during_its_first_launch_blocks_nothing() {
    after_a_kill("steady ns=50000000 for=60000", 5);
    after_a_kill("steady ns=50000000 streams=4 for=60000", 20);
}

#[test]
fn a_living_neighbour_goes_on_when_a_process_is_killed() {
    let lab = Lab::new();
    let container = lab.container("two", Asks::cap(25));
    let survivor = container.start("steady ns=1000000 for=60000");
    let victim = container.start("steady ns=1000000 for=60000");
    lab.pass(1_000, &[]);
    victim.kill();

    let curve = lab.pass(2_500, &[&[&survivor]]).remove(0);

    let share = curve.share(500, 2_500);
    assert!((share - 25.0).abs() <= 1.0, "{}", curve.shape(2_500, 100));
}

#[test]
fn a_container_that_was_idle_has_saved_up_no_burst() {
    for cap in [10, 25, 50] {
        let lab = Lab::new();
        let container = lab.container("idle", Asks::cap(cap));
        let program = container.start("late ns=1000000 after=30000 for=32000");

        let curve = lab.pass(32_000, &[&[&program]]).remove(0);

        let (_, high) = curve.windows(29_900, 32_000, 100);
        let asked = f64::from(cap);
        assert!(high <= asked + 5.0, "cap {cap}: {high:.1}");
        program.end();
    }
}
