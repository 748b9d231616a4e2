//! Programs with a cap of 10 that tell the library another time: by a `clock_gettime` of their own, in a time namespace,
//! or by going from one into another. The machine's clock runs here, and the board's with it, so only too large a share is
//! an error: a busy machine makes a share smaller.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::{Program, World, compile, installed, skip, source};
use vgpu_abi::limits::{LimitsFile, Policy};

/// How long a program runs before its share is measured: it begins with some credit.
const BEGINS: Duration = Duration::from_millis(500);
const LASTS: Duration = Duration::from_millis(2_500);
/// How long it may take until it has run at all.
const PATIENCE: Duration = Duration::from_secs(45);

/// A container with a cap of 10, and the program.
fn world() -> World {
    let world = World::with_room(1 << 30);
    let file = LimitsFile::open(&world.path("limits")).unwrap();
    let mut limits = file.read().unwrap();
    limits.policy = Policy::Force;
    limits.devices[0].core_percent = 10;
    file.write(&limits).unwrap();
    world
}

/// The program's share of the GPU by the board's record and the host's clock, percent; `None` if it may not do what it
/// is to do.
fn share(program: &Program<'_>) -> Option<f64> {
    let mut running = program.start();
    match running.line().as_str() {
        "ready" => {}
        "not allowed" => return None,
        other => panic!("it printed {other:?}"),
    }
    let mut look = || {
        let line = running.step("");
        let busy: f64 = line.parse().expect("it still runs");
        (Instant::now(), busy)
    };
    std::thread::sleep(BEGINS);
    let (from, before) = look();
    let (mut to, mut after) = (from, before);
    // A machine that is busy all the time may not have let it run in that time.
    while after == before && from.elapsed() < PATIENCE {
        std::thread::sleep(LASTS);
        (to, after) = look();
    }
    let share = (after - before) / (to - from).as_nanos() as f64 * 100.0;
    println!("{share:.2} %");
    Some(share)
}

#[track_caller]
fn keeps_its_cap(share: f64) {
    // It runs, and a machine that is busy all the time lets it do less.
    assert!(share > 0.0 && share <= 12.0, "{share}");
}

#[test]
fn program_with_a_clock_function_of_its_own_keeps_its_cap() {
    let world = world();
    let clock = world.path("libclock.so");
    let options = ["-shared", "-fPIC", "-DCLOCK", "-ldl"].map(OsString::from);
    compile(&source("clocks"), &clock, &options);

    let program = world.program("clocks").linked().preload_before(&clock);

    keeps_its_cap(share(&program).unwrap());
}

/// Whether this process, or one of a tenant that has a user namespace, may make time namespaces.
fn may_make_time_namespaces(test: &str) -> bool {
    let may = installed("unshare")
        && std::process::Command::new("unshare")
            .args(["--time", "--monotonic", "86400", "--fork", "true"])
            .stderr(std::process::Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
    if !may {
        skip(test, "time namespaces cannot be made here (unshare --time)");
    }
    may
}

#[test]
fn program_in_a_time_namespace_keeps_its_cap() {
    if !may_make_time_namespaces("program_in_a_time_namespace_keeps_its_cap") {
        return;
    }
    let world = world();
    // Compiles it.
    let clocks: PathBuf = world.path("clocks");
    drop(world.program("clocks").linked().command());
    let mut program = world.command("unshare");
    for word in ["--time", "--monotonic", "86400", "--fork", "--kill-child"] {
        program = program.arg(word);
    }

    keeps_its_cap(share(&program.arg(clocks)).unwrap());
}

#[test]
fn program_that_changes_its_time_namespace_keeps_its_cap() {
    let world = world();
    let program = world.program("clocks").linked().arg("leap");

    let Some(share) = share(&program) else {
        return skip(
            "program_that_changes_its_time_namespace_keeps_its_cap",
            "time namespaces cannot be made here (unshare)",
        );
    };

    keeps_its_cap(share);
}
