//! A service of a higher priority beside training of a lower one: how long its requests take, and how much of the time
//! that it leaves the training gets. Hostile ones, too. The board's clock stands still while programs compute, and the
//! arbiter looks every 50 us of it, or every 100 us.

use std::mem::offset_of;

use vgpu_abi::layout::{ComputeUse, DeviceUse};

use crate::boards::{self, Board, NEWER, PLAIN};
use crate::lab::{Asks, Container, Curve, Lab, Program, US};
use crate::together::offered;

/// How often the arbiter may be woken.
const WOKEN_NS: u64 = 50 * US;
/// The same where shares are judged and not latencies: an arbiter that comes later keeps a floor less easily.
const WOKEN_LATER_NS: u64 = 100 * US;
/// Programs exist for this long before their first launch.
const KNOWN_MS: u64 = 300;
const HIGHEST: u32 = 0;
const LOWEST: u32 = 9;

/// Launches take some time, and kernels not always the same.
const LIFE: &str = "kernel k__100000ns 100us ±5%
kernel k__200000ns 200us ±5%
kernel k__500000ns 500us ±5%
kernel k__50000ns 50us ±5%
kernel k__1000000ns 1ms ±5%
kernel k__5000000ns 5ms ±5%
call cuLaunchKernel 3us
";

/// The two programs.
#[derive(Clone, Copy)]
struct Work<'a> {
    /// The kernels of a request, and how the service waits for it (`sync=` of `launch.c`).
    request: &'a str,
    training: &'a str,
    /// The longest kernel or graph of the training, nanoseconds.
    longest_ns: u64,
}

/// Ten kernels of 200 us.
const REQUEST: &str = "ns=200000 kernels=10";
/// Sixty of 50 us.
const SMALL_REQUEST: &str = "ns=50000 kernels=60";
/// Twenty kernels of 500 us in each graph.
const GRAPHS: &str = "steady way=8 ns=500000 nodes=20";

/// When the requests of a service come.
#[derive(Clone, Copy, Debug)]
enum Requests {
    /// This long after the one before has been answered, microseconds.
    After(u64),
    /// This far apart on average, microseconds, whether the one before has been answered or not.
    Every(u64),
}

/// A service. It ends within the time.
fn service(request: &str, come: Requests, ms: u64) -> String {
    let (when, apart_us) = match come {
        Requests::After(us) => {
            let apart_us = us * 11 / 10 + 5_000;
            (format!("pause={us}"), apart_us.max(us + 3_000))
        }
        Requests::Every(us) => (format!("every={us}"), us * 11 / 10),
    };
    let steps = ms * 1_000 / apart_us;
    format!("requests {request} {when} steps={steps} idle={KNOWN_MS}")
}

fn training(words: &str, ms: u64) -> String {
    format!("{words} idle={KNOWN_MS} for={}", ms + KNOWN_MS + 200)
}

/// The training has this part of what the service leaves at least, percent.
const LEFT: f64 = 80.0;

/// Both for so long: what each used, and what 99 of 100 requests do not exceed, microseconds.
struct Ran {
    service: Curve,
    training: Curve,
    p99_us: u64,
    ms: u64,
}

impl Ran {
    /// The training's part of what the service left, percent.
    fn of_left(&self) -> f64 {
        let service = self.service.share(0, self.ms);
        self.training.share(0, self.ms) * 100.0 / (100.0 - service)
    }

    /// Requests take at most this long, and the training has at least this part of what they leave, percent.
    #[track_caller]
    fn check(&self, most_us: u64, least: f64) {
        let (p99_us, left) = (self.p99_us, self.of_left());
        assert!(p99_us <= most_us, "{p99_us} us, and at most {most_us} us");
        assert!(
            left >= least,
            "{left:.1} % of what is left, at least {least}"
        );
    }
}

/// The latencies that a service printed, sorted, microseconds.
fn latencies(text: &str) -> Vec<u64> {
    let numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
    let mut all: Vec<u64> = numbers.collect();
    all.sort_unstable();
    all
}

fn p99(all: &[u64]) -> u64 {
    all[(all.len() * 99).div_ceil(100) - 1]
}

fn alone(board: &Board, request: &str, come: Requests, ms: u64) -> u64 {
    let lab = Lab::on(board, LIFE);
    let program = lab.native(&service(request, come, ms));
    lab.pass(ms, &[]);
    p99(&latencies(&program.end()))
}

fn beside(board: &Board, come: Requests, work: Work<'_>, ms: u64) -> Ran {
    let lab = Lab::on(board, LIFE);
    let mut arbiter = lab.arbiter();
    let high = lab.container("service", Asks::nothing().priority(HIGHEST));
    let low = lab.container("training", Asks::nothing().priority(LOWEST));
    let running = (
        high.start(&service(work.request, come, ms)),
        low.start(&training(work.training, ms)),
    );
    lab.watch(KNOWN_MS, &[], |_| arbiter.look());
    let groups: [&[&Program<'_>]; 2] = [&[&running.0], &[&running.1]];
    let mut curves = lab.watch_woken(WOKEN_NS, ms, &groups, &mut arbiter);
    lab.say_if_inexact();
    let all = latencies(&running.0.end());
    let (training, service) = (curves.remove(1), curves.remove(0));
    let ran = Ran {
        service,
        training,
        p99_us: p99(&all),
        ms,
    };
    println!(
        "{}: {} {come:?} us, beside {}: p99 {} us of {} requests, left {:.1} %",
        board.name,
        work.request,
        work.training,
        ran.p99_us,
        all.len(),
        ran.of_left()
    );
    ran
}

/// Of a service with a request every 20 ms, and one every 6 ms.
const PAUSES: &[Requests] = &[Requests::After(18_000), Requests::After(4_000)];
/// 30 % of the GPU. What delays one request delays those that come meanwhile, so that a second launch in front of a request
/// shows, which time slices hide from a service that waits for each answer.
const ARRIVALS: &[Requests] = &[Requests::Every(6_500)];

/// Both bounds, for services with such requests, on a GPU that takes so long to switch to another process and back.
#[track_caller]
fn bounds_hold(board: &Board, work: Work<'_>, services: &[Requests], switches_us: u64) {
    for come in services {
        let alone_us = alone(board, work.request, *come, 3_000);
        let ran = beside(board, *come, work, 3_000);
        ran.check(
            alone_us * 110 / 100 + work.longest_ns / US + switches_us,
            LEFT,
        );
    }
}

/// The same on a board with what its driver takes and leaves, for a request every 20 ms.
#[track_caller]
fn bounds_hold_on(board: &Board, work: Work<'_>) {
    let (takes_us, least) = of_the_driver(board);
    let (come, ms) = (Requests::After(18_000), 3_000);
    let alone_us = alone(board, work.request, come, 1_000);
    let ran = beside(board, come, work, ms);
    ran.check(
        alone_us * 110 / 100 + work.longest_ns / US + takes_us,
        least,
    );
}

/// The same beside training with kernels of this length.
#[track_caller]
fn bounds_hold_beside(board: &Board, kernel_ns: u64, services: &[Requests], switches_us: u64) {
    let work = Work {
        request: REQUEST,
        training: &format!("steady ns={kernel_ns}"),
        longest_ns: kernel_ns,
    };
    bounds_hold(board, work, services, switches_us);
}

#[test]
fn service_beside_short_kernels_is_as_fast_as_alone() {
    bounds_hold_beside(&PLAIN, 100_000, PAUSES, 0);
}

#[test]
fn service_beside_kernels_of_a_millisecond_waits_for_one() {
    bounds_hold_beside(&PLAIN, 1_000_000, PAUSES, 0);
}

#[test]
fn service_beside_long_kernels_waits_for_one() {
    bounds_hold_beside(&PLAIN, 5_000_000, PAUSES, 0);
}

#[test]
fn requests_that_arrive_by_themselves_wait_for_one_short_kernel() {
    bounds_hold_beside(&PLAIN, 100_000, ARRIVALS, 0);
    bounds_hold_beside(&PLAIN, 1_000_000, ARRIVALS, 0);
}

#[test]
fn requests_that_arrive_by_themselves_wait_for_one_long_kernel() {
    bounds_hold_beside(&PLAIN, 5_000_000, ARRIVALS, 0);
}

#[test]
fn requests_that_arrive_by_themselves_wait_for_one_graph() {
    let work = Work {
        request: REQUEST,
        training: GRAPHS,
        longest_ns: 10_000_000,
    };
    bounds_hold(&PLAIN, work, ARRIVALS, 0);
}

/// By asking its stream or an event, by an event, and by its context.
#[test]
fn service_is_as_fast_however_it_waits_for_its_requests() {
    for way in [2, 3, 4, 6] {
        let work = Work {
            request: &format!("{REQUEST} sync={way}"),
            training: "steady ns=1000000",
            longest_ns: 1_000_000,
        };
        bounds_hold(&NEWER, work, PAUSES, 0);
    }
}

/// Other drivers: turns of other lengths, in another order, and some that take time to switch.
#[test]
fn service_beside_training_is_fast_on_other_boards() {
    for (name, switches_us) in [
        ("slices-500us-least-run-no-figures", 0),
        ("slices-1ms-round-robin-switch-50us-wrong-figures", 100),
    ] {
        bounds_hold_beside(Board::named(name), 1_000_000, &PAUSES[..1], switches_us);
    }
}

/// What a board's driver takes beyond the longest kernel, microseconds, and what it leaves of the rest, percent: the time
/// to switch to the service and back, and a slice that is kept although its process has nothing more to run.
fn of_the_driver(board: &Board) -> (u64, f64) {
    match board.name {
        "slices-1ms-round-robin-switch-50us-wrong-figures" => (100, LEFT),
        "slices-4ms-least-run-switch-200us-rounded-figures" => (400, LEFT),
        "slices-1ms-least-run-kept-wrong-late-figures" => (1_040, LEFT),
        "slices-6ms-round-robin-kept-no-samples" => (6_000, 70.0),
        _ => (0, LEFT),
    }
}

on_every_board! {
    fn service_of_small_kernels_waits_for_one_kernel(board) {
        let work = Work { request: SMALL_REQUEST, training: "steady ns=1000000", longest_ns: 1_000_000 };
        bounds_hold_on(board, work);
    }

    fn service_beside_graphs_waits_for_one_graph(board) {
        let work = Work { request: REQUEST, training: GRAPHS, longest_ns: 10_000_000 };
        bounds_hold_on(board, work);
    }
}

/// The training's share beside a container of the highest priority, over five seconds.
fn share_beside(high: Asks, words: &str, low: Asks) -> (f64, f64) {
    let lab = Lab::on(&PLAIN, LIFE);
    let mut arbiter = lab.arbiter();
    let high = lab.container("service", high.priority(HIGHEST));
    let low = lab.container("training", low.priority(LOWEST));
    let running = (
        high.start(&format!("{words} idle={KNOWN_MS}")),
        low.start(&training("steady ns=1000000", 3_000)),
    );
    lab.watch(KNOWN_MS, &[], |_| arbiter.look());
    let groups: [&[&Program<'_>]; 2] = [&[&running.0], &[&running.1]];
    let curves = lab.watch_woken(WOKEN_NS, 3_000, &groups, &mut arbiter);
    let shares = (curves[0].share(0, 3_000), curves[1].share(0, 3_000));
    println!(
        "{words}: {:.1} %, and the training {:.1} %",
        shares.0, shares.1
    );
    shares
}

#[test]
fn capped_container_of_the_highest_priority_leaves_the_rest() {
    let (high, low) = share_beside(Asks::cap(30), "steady ns=1000000 for=4000", Asks::nothing());
    assert!((27.0..=31.5).contains(&high), "{high}");
    assert!(low >= 0.8 * (100.0 - high), "{low}");
}

#[test]
fn floor_is_kept_beside_a_greedy_container_of_the_highest_priority() {
    let (_, low) = share_beside(
        Asks::nothing(),
        "steady ns=1000000 for=4000",
        Asks::floor(30),
    );
    assert!(low >= 27.0, "{low}");
}

/// The shares of a container of the highest priority without work at first, and of one with a floor of `floor` and the
/// lowest priority that works all the time: from a second after the first one begins on, over windows of a second.
fn floor_beside(board: &Board, high: Asks, words: &str, floor: u32) -> (f64, f64) {
    const BEGINS_MS: u64 = 500;
    const ENDS_MS: u64 = 4_000;
    let lab = Lab::on(board, LIFE);
    let mut arbiter = lab.arbiter();
    let high = lab.container("greedy", high.priority(HIGHEST));
    let low = lab.container("promised", Asks::floor(floor).priority(LOWEST));
    let running = (
        high.start(&format!("{words} idle={BEGINS_MS} for={}", 2 * ENDS_MS)),
        low.start(&format!("steady ns=1000000 for={}", 2 * ENDS_MS)),
    );
    let groups: [&[&Program<'_>]; 2] = [&[&running.0], &[&running.1]];
    let curves = lab.watch_woken(WOKEN_LATER_NS, ENDS_MS, &groups, &mut arbiter);
    let share = curves[0].share(BEGINS_MS + 1_000, ENDS_MS);
    let (low, _) = curves[1].windows(BEGINS_MS + 1_000, ENDS_MS, 1_000);
    println!(
        "{}, floor {floor} beside {words}: {share:.1} and at least {low:.1}: {}; {}",
        board.name,
        curves[0].shape(ENDS_MS, 200),
        curves[1].shape(ENDS_MS, 200)
    );
    (share, low)
}

/// What a container of the highest priority may do all the time: launch one kernel after another, have few of them in
/// flight, launch all of them at once, launch graphs, and work in bursts.
const GREEDY: [&str; 5] = [
    "steady ns=1000000",
    "steady ns=1000000 sync=1",
    "flood launches=100000 ns=1000000",
    GRAPHS,
    "bursts ns=1000000 on=100 off=20",
];

on_every_board! {
    fn floor_of_80_is_kept_beside_the_highest_priority(board) {
        let offered = offered(board, &["steady ns=1000000"; 2]);
        for high in [Asks::nothing(), Asks::cap(50)] {
            for words in GREEDY {
                let (_, low) = floor_beside(board, high, words, 80);
                let owed = boards::owed(&[80, 20], offered)[0];
                assert!(low >= 0.9 * owed, "{high:?}, {words}: {low}, owed {owed}");
            }
        }
    }
}

#[test]
fn greedy_container_of_the_highest_priority_gets_all_but_that() {
    let (high, low) = share_beside(
        Asks::nothing(),
        "steady ns=1000000 for=4000",
        Asks::nothing(),
    );
    assert!(high >= 97.0 && low <= 2.0, "{high}, {low}");
}

/// The training's share beside a container of the highest priority with a cap of 20 that has no work of its own, and does
/// this at each look, from its second second on. Looks are `look_ns` apart.
fn share_beside_idle(
    board: &Board,
    low: Asks,
    look_ns: u64,
    mut does: impl FnMut(&Container<'_>),
) -> f64 {
    const SECOND_MS: u64 = 1_000;
    let lab = Lab::on(board, LIFE);
    let mut arbiter = lab.arbiter();
    let high = lab.container("hostile", Asks::cap(20).priority(HIGHEST));
    let low = lab.container("training", low.priority(LOWEST));
    let _idle = high.start("late ns=1000000 after=60000 for=60001");
    let training = low.start(&training("steady ns=1000000", 4_000));
    let mut look = |_| {
        does(&high);
        arbiter.look();
    };
    lab.watch(KNOWN_MS, &[], &mut look);
    let curves = lab.watch_every(look_ns, 3 * SECOND_MS, &[&[&training]], &mut look);
    let share = curves[0].share(SECOND_MS, 3 * SECOND_MS);
    println!("{share:.1} %: {}", curves[0].shape(3 * SECOND_MS, 250));
    share
}

/// A training without limits, and one with a floor.
fn trainings() -> [Asks; 2] {
    [Asks::nothing(), Asks::floor(30)]
}

#[test]
fn rings_without_work_cost_the_training_little() {
    for low in trainings() {
        let share = share_beside_idle(&PLAIN, low, WOKEN_NS, |hostile| hostile.ring());
        assert!(share >= 80.0, "{low:?}: {share}");
    }
}

/// What a container writes that claims to work without end.
const NEVER_RESTS: [(usize, u64); 3] = {
    let compute = offset_of!(DeviceUse, compute);
    [
        (compute + offset_of!(ComputeUse, in_flight_ns), u64::MAX),
        (compute + offset_of!(ComputeUse, expected_by_ns), u64::MAX),
        (compute + offset_of!(ComputeUse, last_launch_ns), u64::MAX),
    ]
};

on_every_board! {
    fn forged_work_holds_the_training_up_for_the_cap_and_a_fifth_of_the_rest(board) {
        for low in trainings() {
            let share = share_beside_idle(board, low, WOKEN_LATER_NS, |hostile| {
                hostile.forge(&NEVER_RESTS);
                hostile.ring();
            });
            assert!(share >= 0.8 * 80.0, "{low:?}: {share}");
        }
    }
}
