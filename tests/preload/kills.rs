//! Death at any moment: processes that share a limit are killed while they allocate, and afterwards the charges equal
//! the simulated driver's memory.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::races::{CALLS, Race, race};
use crate::support::{CONTEXT, MIB, World, all_contrary, skip};

const PROCESSES: u32 = 4;
const KILLS: u32 = 210;
/// The processes wait so long for each other: a living one gives a lock back in that time on any machine, a dead one
/// never.
pub(crate) const PATIENCE: (&str, &str) = ("VGPU_CRASH_WAIT_MS", "30000");

#[test]
fn after_many_kills_the_books_say_what_the_driver_holds() {
    let world = World::with_room(0);
    // Room for most of their requests, so that some but not all are refused.
    let limit = 200 * MIB + u64::from(PROCESSES) * CONTEXT;
    world.set_limit(0, limit);
    let program = world.program("kills").linked().env(PATIENCE.0, PATIENCE.1);
    program.build();
    let start = |seed: u32| -> Child {
        let mut child = program
            .command()
            .arg(seed.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "up\n", "{:?}\n{}", child.wait(), world.log());
        child
    };
    let mut children: Vec<Child> = (0..PROCESSES).map(start).collect();
    let board = world.board();

    // Contrary boards do not report which process has freed its memory, so each charge of a dead one stays for two
    // seconds (docs/decisions/0010), and the next process waits for its room.
    let kills = if all_contrary() { KILLS / 7 } else { KILLS };
    let mut most = 0;
    for kill in 0..kills {
        // Not a timing of the test: it only spreads the kills over the calls.
        std::thread::sleep(Duration::from_micros(u64::from(kill * 7919 % 5000)));
        most = most.max(board.used_bytes(0));
        let victim = (kill * 31 % PROCESSES) as usize;
        let child = &mut children[victim];
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "it ended by itself\n{}",
            world.log()
        );
        child.kill().unwrap();
        child.wait().unwrap();
        children[victim] = start(PROCESSES + kill);
    }
    assert!(most <= limit, "{most} held of {limit}");

    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(board.used_bytes(0), 0);

    // The next process finds all of it free: its first call reaps the charges of the dead.
    let next = world.program("memory").linked();
    let mut next = next.env(PATIENCE.0, PATIENCE.1).start();
    assert_eq!(next.step("ready"), "ready 0");
    assert_eq!(
        next.step(&format!("alloc {}", (limit - CONTEXT) / MIB)),
        "alloc 0"
    );
    assert_eq!(world.booked(0), board.used_bytes(0));
    let counters = world.snapshot().counters;
    println!("{kills} kills, {counters:?}");
    // The library that ships waits for a tenth of a second, which a busy machine may take from a living process.
    if std::env::var_os("VGPU_TEST_LIBRARY").is_none() {
        assert_eq!(counters.waits_ran_out, 0);
    }
}

/// Every place in the shared files' code at which a death could leave something half done, under the
/// library and on the simulated driver. A dead process's memory must be free to the last byte.
#[test]
fn killed_at_a_labelled_step_a_process_leaves_nothing_behind() {
    const TEST: &str = "killed_at_a_labelled_step_a_process_leaves_nothing_behind";
    if std::env::var_os("VGPU_TEST_LIBRARY").is_some() {
        return skip(TEST, "the library that ships has no labelled steps");
    }
    let world = World::with_room(0);
    world.set_limit(0, 60 * MIB + 2 * CONTEXT);
    let holder = world.program("memory").linked();
    let mut holder = holder.env(PATIENCE.0, PATIENCE.1).start();
    assert_eq!(holder.step("ready"), "ready 0");
    assert_eq!(holder.step("alloc 40"), "alloc 0");
    let board = world.board();

    let mut reached = Vec::new();
    for point in vgpu_abi::CRASH_POINTS {
        for nth in [1, 3] {
            let victim = world
                .program("kills")
                .linked()
                .env(PATIENCE.0, PATIENCE.1)
                .env("VGPU_CRASH_AT", format!("{point}:{nth}"));
            victim.build();
            let mut child = victim.command().stdout(Stdio::null()).spawn().unwrap();
            let begun = Instant::now();
            let mut ended = child.try_wait().unwrap();
            while ended.is_none() && begun.elapsed() < Duration::from_millis(200) {
                std::thread::sleep(Duration::from_millis(1));
                ended = child.try_wait().unwrap();
            }
            if let Some(status) = ended {
                assert_eq!(
                    status.signal(),
                    Some(9),
                    "{point}: {status}\n{}",
                    world.log()
                );
                reached.push(*point);
            } else {
                // It did not reach the point, and dies wherever it is.
                child.kill().unwrap();
                child.wait().unwrap();
            }

            // All that the victim may have had, and not a byte more.
            assert_eq!(holder.step("alloc 36"), "alloc 0", "after {point}:{nth}");
            assert_eq!(world.booked(0), board.used_bytes(0), "after {point}:{nth}");
            assert_eq!(holder.step("alloc 1"), "alloc 2", "after {point}:{nth}");
            assert_eq!(holder.step("free"), "free 0");
        }
    }
    reached.dedup();
    assert_eq!(world.snapshot().counters.waits_ran_out, 0);
    println!(
        "died at {} of {} labels: {reached:?}",
        reached.len(),
        vgpu_abi::CRASH_POINTS.len()
    );
    assert!(reached.len() >= 30, "{reached:?}");
}

#[test]
fn a_killed_process_gives_its_memory_to_one_that_waits_for_it() {
    let world = World::with_room(100 * MIB);
    world.set_limit(0, 100 * MIB + 2 * CONTEXT);
    let mut waiting = world.program("memory").linked().start();
    assert_eq!(waiting.step("ready"), "ready 0");
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let mut holder = world.program("memory").linked().start();
        assert_eq!(holder.step("ready"), "ready 0");
        assert_eq!(holder.step("alloc 100"), "alloc 0");
        assert_eq!(waiting.step("alloc 100"), "alloc 2");

        holder.kill();
        let killed = Instant::now();
        assert_eq!(waiting.step("alloc 100"), "alloc 0");
        slowest = slowest.max(killed.elapsed());
        assert_eq!(waiting.step("free"), "free 0");
    }
    println!("free at the first call after the kill, {slowest:?} at most");
}

#[test]
fn of_processes_racing_for_the_same_room_exactly_one_gets_it() {
    for (call, name) in CALLS {
        assert_eq!(race(call, 4, 500), Race { over: 0, none: 0 }, "{name}");
    }
}
