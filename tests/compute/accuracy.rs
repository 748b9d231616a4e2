//! One container under a cap: how close its share is to the cap, for any pattern of launches.

use crate::lab::{Asks, Curve, Lab, MS, US};

const CAPS: [u32; 6] = [5, 10, 25, 50, 75, 90];

/// Runs a pattern under a cap for `ms` milliseconds, alone.
fn under(cap: u32, words: &str, ms: u64) -> Curve {
    let lab = Lab::new();
    let container = lab.container("alone", Asks::cap(cap));
    let program = container.start(&format!("{words} for={ms}"));

    let curve = lab.pass(ms, &[&[&program]]).remove(0);

    lab.say_if_inexact();
    program.end();
    curve
}

/// The asserted bounds of a share: points of the mean, points of each window, and the windows' length.
#[derive(Clone, Copy)]
struct Within {
    mean: f64,
    window: f64,
    window_ms: u64,
}

impl Within {
    /// The numbers to reach for kernels and graphs of this length at most.
    fn longest(ns: u64) -> Self {
        Self {
            mean: 1.0,
            window: 5.0,
            window_ms: (20 * ns / MS).max(100),
        }
    }

    #[track_caller]
    fn check(self, what: &str, cap: u32, curve: &Curve, ms: u64) {
        let asked = f64::from(cap);
        let mean = curve.share(0, ms);
        let (low, high) = curve.windows(0, ms, self.window_ms);
        println!("cap {cap}, {what}: mean {mean:.2}, windows {low:.1} to {high:.1}");
        assert!(
            (mean - asked).abs() <= self.mean
                && asked - low <= self.window
                && high - asked <= self.window,
            "cap {cap}, {what}: mean {mean:.2}, windows {low:.1} to {high:.1}: {}",
            curve.shape(ms, self.window_ms)
        );
    }
}

/// Every cap, alone.
#[track_caller]
fn keeps(words: &str, longest_ns: u64, ms: u64) {
    for cap in CAPS {
        let curve = under(cap, words, ms);
        Within::longest(longest_ns).check(words, cap, &curve, ms);
    }
}

#[test]
fn kernels_of_20_us_get_their_cap() {
    keeps("steady ns=20000", 20 * US, 2_000);
}

#[test]
fn kernels_of_250_us_get_their_cap() {
    keeps("steady ns=250000", 250 * US, 3_000);
}

#[test]
fn kernels_of_1_ms_get_their_cap() {
    keeps("steady ns=1000000", MS, 3_000);
}

#[test]
fn kernels_of_5_ms_get_their_cap() {
    keeps("steady ns=5000000", 5 * MS, 5_000);
}

#[test]
fn kernels_that_are_waited_for_get_their_cap() {
    keeps("steady ns=20000 sync=1", 20 * US, 1_000);
    keeps("steady ns=1000000 sync=1", MS, 3_000);
}

#[test]
fn graphs_of_10_ms_get_their_cap() {
    keeps("steady way=8 ns=500000 nodes=20", 10 * MS, 5_000);
}

#[test]
fn graphs_of_40_us_get_their_cap() {
    keeps("steady way=8 ns=10000 nodes=4", 40 * US, 2_000);
}

#[test]
fn streams_of_one_program_share_its_cap() {
    keeps("steady ns=250000 streams=4", 250 * US, 3_000);
}

#[test]
fn a_mixture_of_all_gets_its_cap() {
    for cap in [10, 25, 50, 75] {
        let curve = under(cap, "mixed", 6_000);
        // At first, kernels of unknown cost come on top of the saved credit.
        let within = Within {
            window: 6.0,
            ..Within::longest(5 * MS)
        };
        within.check("mixed", cap, &curve, 6_000);
    }
}

#[test]
fn one_kernel_of_50_ms_after_another_is_within_two_points() {
    for cap in CAPS {
        let ms = 40_000;
        let curve = under(cap, "steady ns=50000000", ms);
        let within = Within {
            mean: 2.0,
            window: 10.0,
            window_ms: 2_000,
        };
        within.check("kernels of 50 ms", cap, &curve, ms);
    }
}

/// GPU time in the first second, beyond one launch.
fn beyond_the_first(words: &str, one_ms: f64) -> f64 {
    let curve = under(10, words, 1_000);
    curve.used_ms(0, 1_000) - one_ms
}

#[test]
fn first_kernel_of_50_ms_is_measured_before_others_follow() {
    let beyond = beyond_the_first("steady ns=50000000", 50.0);

    assert!(beyond <= 150.0, "{beyond} ms");
}

#[test]
fn first_graph_of_10_ms_is_measured_before_others_follow() {
    let beyond = beyond_the_first("steady way=8 ns=500000 nodes=20", 10.0);

    assert!(beyond <= 150.0, "{beyond} ms");
}

#[test]
fn many_streams_and_threads_do_not_each_get_a_first_launch() {
    for words in [
        "steady ns=50000000 streams=8",
        "threads count=8 ns=50000000",
    ] {
        let beyond = beyond_the_first(words, 50.0);
        assert!(beyond <= 150.0, "{words}: {beyond} ms");
    }
}

#[test]
fn a_day_passes_without_drift() {
    const HOUR: u64 = 3_600_000;
    const CAP: u32 = 5;
    let ms = 24 * HOUR;
    let curve = under(CAP, "steady ns=250000000", ms);

    let mean = curve.share(0, ms);
    let hours: Vec<f64> = (0..24)
        .map(|hour| curve.share(hour * HOUR, (hour + 1) * HOUR))
        .collect();
    println!("mean {mean:.3}, hours {hours:.3?}");
    let within = f64::from(CAP) / 100.0;
    assert!((mean - f64::from(CAP)).abs() <= within, "{mean}");
    assert!((hours[0] - hours[23]).abs() <= within, "{hours:?}");
}

/// A driver's calls take time of their own, those of the library's measuring too.
const CALLS: &str = "call cuLaunchKernel 2us\ncall cuEventRecord 1us\n\
    call cuEventQuery 300ns\ncall cuEventElapsedTime 300ns\ncall cuStreamSynchronize 2us\n";

/// How much longer a program takes that asks for less than its cap, percent.
fn slower(cap: u32, words: &str) -> f64 {
    let lab = Lab::with_script(CALLS);
    let native = lab.native(words).tells("took");
    let container = lab.container("sparse", Asks::cap(cap));
    let capped = container.start(words).tells("took");
    (capped as f64 / native as f64 - 1.0) * 100.0
}

#[test]
fn a_program_that_asks_for_less_than_its_cap_is_not_slowed() {
    let mut tried = 0;
    for ns in [20 * US, 200 * US, MS, 5 * MS] {
        for pause in [100 * US, MS, 10 * MS, 50 * MS] {
            let asks = ns * 100 / (ns + pause) + 1;
            let Some(cap) = CAPS.into_iter().find(|cap| u64::from(*cap) > asks) else {
                continue;
            };
            let steps = (1_000 * MS / (ns + pause)).max(20);
            let words = format!("sparse ns={ns} pause={pause} steps={steps}");
            let percent = slower(cap, &words);
            println!("{words} under {cap}: {percent:.3}% slower");
            assert!(percent <= 1.0, "{words} under {cap}: {percent}% slower");
            tried += 1;
        }
    }
    assert!(tried >= 12, "{tried}");
}

#[test]
fn program_with_two_rhythms_below_its_cap_is_not_slowed() {
    for (cap, words) in [
        (
            25,
            "sparse ns=20000 pause=100000 ns2=5000000 pause2=50000000 steps=80",
        ),
        (
            50,
            "sparse ns=5000000 pause=10000000 ns2=20000 pause2=100000 steps=160",
        ),
        (
            90,
            "sparse ns=1000000 pause=1000000 ns2=5000000 pause2=2000000 steps=200",
        ),
        (
            10,
            "sparse ns=20000 pause=50000000 ns2=1000000 pause2=12000000 steps=60",
        ),
        (25, "sparse wait=0 ns=200000 pause=1000000 steps=500"),
        (75, "sparse wait=0 ns=20000 pause=40000 steps=20000"),
        (75, "sparse wait=0 ns=5000 pause=10000 steps=50000"),
        (50, "sparse wait=0 ns=1000 pause=10000 steps=50000"),
    ] {
        let percent = slower(cap, words);
        println!("{words} under {cap}: {percent:.3}% slower");
        assert!(percent <= 1.0, "{words} under {cap}: {percent}% slower");
    }
}

#[test]
fn program_without_a_cap_may_launch_half_a_second_ahead() {
    // Steps of 0.8 s of work, and how long the program does something else after each, milliseconds. If that is longer
    // than half a second, the GPU is idle for the rest of it.
    for (pause_ms, most_percent) in [(400, 1.0), (450, 2.0), (600, 20.0)] {
        let words = format!("ahead ns=1000000 kernels=800 pause={pause_ms} steps=6 idle=300");
        let lab = Lab::with_script(CALLS);
        let native = lab.native(&words).tells("took");
        let mut arbiter = lab.arbiter();
        let container = lab.container("ahead", Asks::nothing().priority(1));
        let program = container.start(&words);
        lab.watch(10_000, &[], |_| arbiter.look());
        let took = program.tells("took");
        let percent = (took as f64 / native as f64 - 1.0) * 100.0;
        println!("{pause_ms} ms: {percent:.2} % slower");
        assert!(percent <= most_percent, "{pause_ms} ms: {percent:.2} %");
    }
}

/// Kernels of 2 us, one every 7 us: the program's own time decides how long it takes. It uses 29 % of the GPU.
const LAUNCH_BOUND: &str = "sparse wait=0 ns=2000 pause=5000 steps=300000";

#[test]
fn launch_bound_program_below_its_cap_is_not_slowed() {
    for cap in [35, 50] {
        let percent = slower(cap, LAUNCH_BOUND);
        println!("under {cap}: {percent:.3}% slower");
        assert!(percent <= 3.0, "under {cap}: {percent}% slower");
    }
}

#[test]
fn launch_bound_program_beside_a_greedy_one_is_not_slowed() {
    const GREEDY: &str = "steady ns=1000000 for=20000";
    const MS_LONG: u64 = 6_000;
    // Its first launches wait, because it is not known yet what they cost. So it is taken for one that wants more, and
    // loses a tenth of a second once.
    let words = "sparse wait=0 ns=2000 pause=5000 steps=800000 idle=300";
    let native = {
        let lab = Lab::with_script(CALLS);
        let _greedy = lab.native(GREEDY);
        let program = lab.native(words);
        lab.pass(MS_LONG, &[]);
        program.tells("took")
    };
    let lab = Lab::with_script(CALLS);
    let mut arbiter = lab.arbiter();
    let (one, other) = (
        lab.container("greedy", Asks::cap(50)),
        lab.container("bound", Asks::cap(50)),
    );
    let greedy = one.start(GREEDY);
    let program = other.start(words);
    let curves = lab.watch(MS_LONG, &[&[&greedy], &[&program]], |_| arbiter.look());
    let shapes = [&curves[0], &curves[1]]
        .map(|curve| curve.shape(MS_LONG, 100))
        .join("; ");
    let took = program.tells("took");
    let percent = (took as f64 / native as f64 - 1.0) * 100.0;
    println!("{percent:.3}% slower than {native} ns: {shapes}");
    assert!(
        percent <= 3.0,
        "{percent}% slower than {native} ns: {shapes}"
    );
}

#[test]
fn four_processes_share_one_cap_of_25() {
    let lab = Lab::new();
    let container = lab.container("four", Asks::cap(25));
    let programs: Vec<_> = (0..4)
        .map(|_| container.start("steady ns=1000000 for=4000"))
        .collect();
    let all: Vec<_> = programs.iter().collect();

    let curve = lab.pass(4_000, &[&all]).remove(0);

    lab.say_if_inexact();
    Within::longest(4 * MS).check("four processes", 25, &curve, 4_000);
}

#[test]
fn a_change_of_the_cap_is_there_within_200_ms() {
    for (words, longest_ms) in [
        ("steady ns=1000000", 1),
        ("steady way=8 ns=500000 nodes=20", 10),
        ("steady ns=20000 sync=1", 1),
    ] {
        let lab = Lab::new();
        let container = lab.container("changing", Asks::cap(25));
        let program = container.start(&format!("{words} for=6000"));

        let curve = lab
            .watch(6_000, &[&[&program]], |at_ns| match at_ns / MS {
                2_000 => container.set(Asks::cap(75)),
                4_000 => container.set(Asks::cap(10)),
                _ => {}
            })
            .remove(0);

        println!("{words}: {}", curve.shape(6_000, 100));
        let window = (20 * longest_ms).max(100);
        for (from, to, asked) in [
            (200, 2_000, 25.0),
            (2_200, 4_000, 75.0),
            (4_200, 6_000, 10.0),
        ] {
            let (low, high) = curve.windows(from, to, window);
            assert!(
                low >= asked - 5.0 && high <= asked + 5.0,
                "{words}, {asked}: {low:.1} to {high:.1}: {}",
                curve.shape(6_000, 100)
            );
        }
        program.end();
    }
}

#[test]
fn a_cap_that_is_taken_away_is_gone_within_200_ms() {
    let lab = Lab::new();
    let container = lab.container("freed", Asks::cap(10));
    let program = container.start("steady ns=1000000 for=2000");

    let curve = lab
        .watch(2_000, &[&[&program]], |at_ns| {
            if at_ns / MS == 1_000 {
                container.set(Asks::nothing());
            }
        })
        .remove(0);

    let (low, _) = curve.windows(1_200, 2_000, 100);
    assert!(low > 99.0, "{}", curve.shape(2_000, 100));
}
