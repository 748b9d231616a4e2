//! How often a clock in lockstep moves in a second, of real time and of the processors' time: one process, then several that sleep
//! in turn, then several that launch kernels and wait for them. Prints rows; never fails by the clock.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a bench: a panic is the failure, and it prints"
)]

use std::path::Path;
use std::time::Instant;

use cuda_sim::clock::ClockKind;
use cuda_sim::exec::{Exec, ExecConfig, Work};

fn main() {
    println!(
        "{:<28} {:>9} {:>12} {:>14}",
        "what", "processes", "moves/s", "moves/CPU s"
    );
    for processes in [1, 2, 4] {
        row("sleeps", processes, sleeps);
    }
    for processes in [1, 2, 4] {
        row("kernels and waits for them", processes, kernels);
    }
}

const ROUNDS: u64 = 20_000;

fn sleeps(exec: &Exec, number: u64) {
    for _ in 0..ROUNDS {
        exec.clock().sleep(1_000 + number);
    }
}

fn kernels(exec: &Exec, number: u64) {
    let process = exec.join().unwrap();
    let channel = exec.open_channel(process, number as usize).unwrap();
    for _ in 0..ROUNDS {
        let ns = 1_000 + number;
        exec.submit(channel, Work::Kernel { ns }).unwrap();
        exec.drain(channel);
    }
}

fn row(what: &str, processes: u64, body: fn(&Exec, u64)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("exec");
    let exec = open(&path);
    exec.clock().expect_threads(processes as u32);
    let begin = Instant::now();
    let used_before = children_cpu_s();
    let children: Vec<_> = (0..processes)
        .map(|number| {
            // SAFETY: a child of a program with one thread; it ends without running anything of ours.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let exec = open(&path);
                let part = exec.clock().join_thread();
                body(&exec, number);
                drop(part);
                // SAFETY: no failure, no return.
                unsafe { libc::_exit(0) };
            }
            child
        })
        .collect();
    for child in children {
        // SAFETY: our own child; nothing is asked of its status.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
    let moves = exec.clock().counts().moves as f64;
    let (real, used) = (
        begin.elapsed().as_secs_f64(),
        children_cpu_s() - used_before,
    );
    let (per_second, per_cpu_second) = (moves / real, moves / used);
    println!("{what:<28} {processes:>9} {per_second:>12.0} {per_cpu_second:>14.0}");
}

/// Processor time of the children that have ended.
fn children_cpu_s() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: writes the structure.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    // SAFETY: zeros, or what the call wrote.
    let usage = unsafe { usage.assume_init() };
    [usage.ru_utime, usage.ru_stime]
        .iter()
        .map(|time| time.tv_sec as f64 + time.tv_usec as f64 / 1e6)
        .sum()
}

fn open(path: &Path) -> Exec {
    let config = ExecConfig {
        clock: ClockKind::Lockstep,
        ..ExecConfig::default()
    };
    Exec::open(path, &config).unwrap()
}
