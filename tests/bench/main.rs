//! The cost that the library adds to a program's calls: every row is measured without it and with it in the same run,
//! on the simulated driver. Prints the table of docs/performance.md; never fails because of a time. With a word of
//! `calls.c` as its argument (`launch`, `alloc`, `module`, …) it prints only those rows.
//!
//!   cargo xtask dist --library
//!   VGPU_TEST_LIBRARY=target/dist/lib/vgpu/libvgpu.so cargo bench -p tests --bench calls
//!
//! Without the variable it measures cargo's own release build for tests. That build reads the simulated board's
//! clock, so it is slower than the shipped one.
#![allow(clippy::print_stdout, reason = "its table is what it is for")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a bench that cannot measure has nothing else to say"
)]

#[path = "../support/races.rs"]
mod races;
#[path = "../support/mod.rs"]
mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use races::{CALLS, race};
use support::{CONTEXT, GPU_BYTES, MIB, Program, World, compile};
use vgpu_abi::limits::{LimitsFile, Policy};

/// Rounds of each racing call: 10,000 in all.
const ROUNDS: u32 = 10_000 / 6 + 1;

/// Figures of one measurement, in nanoseconds: median, 99.9th percentile, and mean.
#[derive(Clone, Copy)]
struct Figures {
    median: f64,
    worst: f64,
    mean: f64,
}

fn main() {
    // `cargo test --benches` only wants to know that it builds and starts.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!("| what | native | with the library | added |");
    println!("|---|---|---|---|");
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_wanted = |words: &str| {
        let kind = words.split(' ').next().unwrap();
        wanted.is_empty() || wanted.iter().any(|word| word == kind)
    };
    if is_wanted("launch") {
        launches();
    }
    for (what, words, processes) in [
        ("`cuMemAlloc` + `cuMemFree`, 1 process", "alloc 200000", 1),
        ("the same, 8 processes", "alloc 20000", 8),
        ("the same, 10,000 live allocations", "alloc 100000 10000", 1),
        (
            "the same, 100,000 live allocations",
            "alloc 100000 100000",
            1,
        ),
        ("`cuMemAllocAsync` + `cuMemFreeAsync`", "pool 100000", 1),
        ("`cuMemGetInfo`", "info 200000", 1),
        ("`cuGetProcAddress`", "procaddr 200000", 1),
    ] {
        if !is_wanted(words) {
            continue;
        }
        let [native, ours] = both(words, processes);
        let added = ours.median - native.median;
        println!(
            "| {what}, p50 | {:.0} ns | {:.0} ns | {added:.0} ns |",
            native.median, ours.median
        );
        let added = ours.worst - native.worst;
        println!(
            "| {what}, p99.9 | {:.1} µs | {:.1} µs | {:.1} µs |",
            native.worst / 1e3,
            ours.worst / 1e3,
            added / 1e3
        );
    }
    for (what, words) in [
        ("with 4 entries", "module 2048 4"),
        ("with 10,000 entries, 1 MB", "module 256 10000"),
    ] {
        if !is_wanted(words) {
            continue;
        }
        let [native, ours] = both(words, 1);
        println!(
            "| `cuModuleLoadData` + `cuModuleUnload` of a text {what}, p50 | {:.1} µs | {:.1} µs | {:.1} µs |",
            native.median / 1e3,
            ours.median / 1e3,
            (ours.median - native.median) / 1e3
        );
    }
    for processes in [1, 2, 4, 8] {
        if !is_wanted("init") {
            break;
        }
        let [native, ours] = both("init 1", processes);
        println!(
            "| `cuInit` and the first context, {processes} at once | {:.2} ms | {:.2} ms | {:.2} ms |",
            native.median / 1e6,
            ours.median / 1e6,
            (ours.median - native.median) / 1e6
        );
    }
    if !is_wanted("race") {
        return;
    }
    let mut over = 0;
    let mut unserved = 0;
    for (call, _) in CALLS {
        let ended = race(call, 4, ROUNDS);
        over += ended.over;
        unserved += ended.none;
    }
    let rounds = ROUNDS * 6;
    println!("| rounds over the limit, 4 racing processes, 6 calls | – | {over} of {rounds} | |");
    println!("| rounds in which no process got what was free | – | {unserved} of {rounds} | |");
    let (median, worst) = kill_to_free();
    println!(
        "| SIGKILL to the next process's allocation, p50 | – | {:.2} ms | |",
        median.as_secs_f64() * 1e3
    );
    println!(
        "| the same, slowest of 100 | – | {:.2} ms | |",
        worst.as_secs_f64() * 1e3
    );
}

/// Batches of kernels of 1 µs with pauses between them, so that no launch waits for the GPU.
fn launches() {
    for (what, cap) in [("no cap", 0), ("cap 90", 90)] {
        let [native, ours] = both_under("launch 200000", 1, cap);
        for (figure, native, ours) in [
            ("p50", native.median, ours.median),
            ("mean with all measuring", native.mean, ours.mean),
        ] {
            println!(
                "| `cuLaunchKernel`, {what}, {figure} | {native:.1} ns | {ours:.1} ns | {:.1} ns |",
                ours - native
            );
        }
    }
}

/// The same measurement without and with the library: the better of three runs of each, in turn, because other work
/// on the machine only adds time.
fn both(words: &str, processes: usize) -> [Figures; 2] {
    both_under(words, processes, 0)
}

/// As `both`, under a cap of compute time in percent; 0 is none.
fn both_under(words: &str, processes: usize, cap: u32) -> [Figures; 2] {
    let world = World::with_limits(&[GPU_BYTES]);
    let file = LimitsFile::open(&world.path("limits")).unwrap();
    let mut limits = file.read().unwrap();
    limits.policy = Policy::Force;
    limits.devices[0].core_percent = cap;
    file.write(&limits).unwrap();
    compile_bench(&world);
    let program = || {
        words
            .split(' ')
            .fold(world.command(world.path("calls")), |program, word| {
                program.arg(word)
            })
    };
    let mut best = [Figures {
        median: f64::MAX,
        worst: f64::MAX,
        mean: f64::MAX,
    }; 2];
    for _ in 0..3 {
        for (best, program) in best
            .iter_mut()
            .zip([program().native(), program().without("VGPU_LOG")])
        {
            let figures = at_once(&program, processes);
            best.median = best.median.min(figures.median);
            best.worst = best.worst.min(figures.worst);
            best.mean = best.mean.min(figures.mean);
        }
    }
    best
}

fn compile_bench(world: &World) {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/calls.c");
    let mut folder = std::ffi::OsString::from("-L");
    folder.push(world.path("sim"));
    compile(
        &source,
        &world.path("calls"),
        &[
            "-O2".into(),
            "-Wl,--no-as-needed".into(),
            folder,
            "-lcuda".into(),
        ],
    );
}

/// Starts `processes` of them at once: the median of their medians, and the worst of their worst calls.
fn at_once(program: &Program<'_>, processes: usize) -> Figures {
    let start = || program.command().stdout(Stdio::piped()).spawn().unwrap();
    let children: Vec<_> = (0..processes).map(|_| start()).collect();
    let mut medians = vec![];
    let (mut worst, mut mean): (f64, f64) = (0.0, 0.0);
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{:?}", output.status);
        let printed = String::from_utf8(output.stdout).unwrap();
        let figures: Vec<f64> = printed
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect();
        medians.push(figures[0]);
        worst = worst.max(figures[1]);
        mean += figures[2] / processes as f64;
    }
    medians.sort_by(f64::total_cmp);
    Figures {
        median: medians[medians.len() / 2],
        worst,
        mean,
    }
}

/// From the kill of a process that holds everything to the end of the next one's successful call.
fn kill_to_free() -> (Duration, Duration) {
    let world = World::with_limits(&[100 * MIB + 2 * CONTEXT]);
    let mut waiting = world.program("memory").linked().start();
    assert_eq!(waiting.step("ready"), "ready 0");
    let mut times: Vec<_> = (0..100)
        .map(|_| {
            let mut holder = world.program("memory").linked().start();
            assert_eq!(holder.step("ready"), "ready 0");
            assert_eq!(holder.step("alloc 100"), "alloc 0");
            let start = Instant::now();
            holder.kill();
            while waiting.step("alloc 100") != "alloc 0" {}
            let took = start.elapsed();
            assert_eq!(waiting.step("free"), "free 0");
            took
        })
        .collect();
    times.sort();
    (times[times.len() / 2], times[times.len() - 1])
}
