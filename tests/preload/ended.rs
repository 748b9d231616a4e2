//! The memory of ended processes: the library, `vgpu top` and the metrics report the same figure, until the driver has
//! freed it.

use std::time::Duration;

use cuda_sim::Config;
use supervisor::instance::Instance;
use supervisor::view::{self, DeviceView};
use vgpu_abi::targets::{Head, Target, TargetsFile};

use crate::support::{CONTEXT, MIB, Running, World};

const LIMIT: u64 = 100 * MIB + 2 * CONTEXT;

/// A process that lives, and one that holds 80 MiB; the driver keeps a dead process's memory for so long.
fn two(release_delay_ms: u64) -> (World, Running, Running) {
    let config = Config {
        release_delay_ms,
        ..Config::default()
    };
    let world = World::with_limits_on(&config, &[LIMIT]);
    let mut one = world.program("memory").linked().start();
    let mut other = world.program("memory").linked().start();
    assert_eq!(one.step("ready"), "ready 0");
    assert_eq!(other.step("ready"), "ready 0");
    assert_eq!(other.step("alloc 80"), "alloc 0");
    (world, one, other)
}

/// The device as `vgpu top` and the metrics show it.
fn shown(world: &World) -> DeviceView {
    let instance = Instance::open(&world.path("")).unwrap();
    let container = view::read(&instance).unwrap();
    container.devices.into_iter().next().unwrap()
}

/// The used memory that the library reports to a program, at a moment when it checks the other processes.
fn told(program: &mut Running) -> u64 {
    // It looks at most every 50 ms.
    std::thread::sleep(Duration::from_millis(60));
    program.step("info");
    let info = program.step("info");
    let words: Vec<u64> = info
        .split(' ')
        .skip(1)
        .map(|word| word.parse().unwrap())
        .collect();
    assert_eq!(words[0], 0, "{info}");
    words[2] - words[1]
}

#[test]
fn memory_of_a_dead_process_is_shown_as_the_library_counts_it() {
    let (world, mut living, victim) = two(3_600_000);
    let before = shown(&world);
    assert_eq!(
        (before.used_bytes, before.ended_bytes),
        (2 * CONTEXT + 80 * MIB, 0)
    );

    victim.kill();
    // The time for the dead process may run out between two looks.
    let after = loop {
        let told_before = told(&mut living);
        let after = shown(&world);
        if told_before == told(&mut living) {
            assert_eq!(after.used_bytes, told_before);
            break after;
        }
    };

    assert_eq!(after.used_bytes, CONTEXT + after.ended_bytes);
    assert_eq!(
        after.used_bytes,
        after.buffer_bytes + after.context_bytes + after.module_bytes
    );
    // The request waits until the time for the dead process has run out.
    assert_eq!(living.step("alloc 90"), "alloc 0");
    let end = shown(&world);
    assert_eq!((end.used_bytes, end.ended_bytes), (CONTEXT + 90 * MIB, 0));
}

#[test]
fn memory_of_a_dead_parent_is_shown_as_long_as_its_child_lives() {
    let (world, mut living, mut parent) = two(0);
    let forked = parent.step("fork");
    let child: i32 = forked.strip_prefix("fork ").unwrap().parse().unwrap();

    parent.kill();
    let told_bytes = told(&mut living);
    let after = shown(&world);

    assert_eq!(after.ended_bytes, CONTEXT + 80 * MIB);
    assert_eq!(after.used_bytes, told_bytes);
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
}

#[test]
fn the_arbiter_says_when_an_ended_process_no_longer_counts() {
    let (world, _living, victim) = two(3_600_000);
    victim.kill();
    let dead = world.snapshot().slots.into_iter().find(|slot| !slot.alive);
    let dead = dead.unwrap();
    let say = |released| {
        let path = world.path("targets");
        let mut targets = match TargetsFile::open(&path) {
            Ok(targets) => targets,
            Err(_) => TargetsFile::create(&path).unwrap(),
        };
        let target = Target {
            slot_generation: dead.generation,
            released,
            ..Target::default()
        };
        targets.write(&[(dead.slot, target)], 1).unwrap();
        targets.beat(&Head {
            heartbeat_ns: u64::MAX,
            ..Head::default()
        });
    };

    say(true);
    assert_eq!(shown(&world).ended_bytes, 0);
    say(false);
    assert_eq!(shown(&world).ended_bytes, CONTEXT + 80 * MIB);
}

#[test]
fn memory_that_the_driver_freed_is_shown_free_without_a_request() {
    let (world, mut living, victim) = two(0);

    victim.kill();

    // Without an arbiter only the clock decides, after two seconds; the number of tries does not bound that.
    let mut tries = (0..500).map(|_| told(&mut living));
    assert!(tries.any(|used| used == CONTEXT), "{}", world.log());
    assert_eq!(shown(&world).used_bytes, CONTEXT);
}
