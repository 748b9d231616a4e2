//! Memory that is created, mapped, exported and bound separately: after each call our charges equal the driver's
//! memory.

use cuda_sim::Config;

use crate::support::{CONTEXT, MIB, Running, World};

/// Two programs that may share 100 MiB.
pub(crate) fn two(config: &Config) -> (World, Running, Running) {
    let world = World::with_limits_on(config, &[100 * MIB + 2 * CONTEXT]);
    let mut one = world.program("sharing").linked().start();
    let mut other = world.program("sharing").linked().start();
    for program in [&mut one, &mut other] {
        program.steps("ready");
    }
    (world, one, other)
}

#[track_caller]
pub(crate) fn agree(world: &World, step: &str) {
    for gpu in 0..world.board().gpus() {
        let (booked, held) = (world.booked(gpu), world.board().used_bytes(gpu));
        assert_eq!(
            booked,
            held,
            "booked {} MiB, held {} MiB of GPU {gpu} after {step}\n{}",
            booked / MIB,
            held / MIB,
            world.log()
        );
    }
}

/// One program; after each step the charges equal the driver's memory.
#[track_caller]
fn the_books_agree(config: &Config, limits: &[u64], steps: &str) {
    let world = World::with_limits_on(config, limits);
    let mut program = world.program("sharing").linked().start();
    program.steps_and(steps, |step| agree(&world, step));
    program.end();
    agree(&world, "the end");
}

const ROOM: u64 = 100 * MIB + CONTEXT;

#[test]
fn seventy_thousand_references_of_a_handle_are_all_counted() {
    the_books_agree(
        &Config::default(),
        &[ROOM],
        "ready; create 1 60; map 2 1 60; retain_often 1 2 70000; unmap 2 60; release_often 1 70000; \
         create 3 60!; release 1; create 3 60; release 3",
    );
}

#[test]
fn mapped_memory_stays_charged_after_its_handle_is_released() {
    let config = Config {
        faults: "slow:cuMemRelease=300ms".to_owned(),
        ..Config::default()
    };
    let world = World::with_limits_on(&config, &[ROOM]);
    let mut program = world.program("sharing").linked().start();
    program.steps("ready; create 1 60; release_slowly 1");
    std::thread::sleep(std::time::Duration::from_millis(50));
    program.steps("map 2 1 60; released");

    agree(&world, "map and release");
    program.steps("create 3 60!; unmap 2 60; create 3 60");
    agree(&world, "unmap");
}

#[test]
fn a_handle_that_is_no_memory_is_not_charged() {
    let world = World::with_limits_on(&Config::default(), &[ROOM]);
    let mut program = world.program("sharing").linked().start();
    program.steps("ready");

    assert_eq!(program.step("map_number 1 12345 60"), "map_number 1");
    agree(&world, "a map of no handle");
    program.steps("create 1 100; release 1");
}

#[test]
fn a_map_of_memory_made_past_the_hooks_is_charged() {
    let world = World::with_limits_on(&Config::default(), &[ROOM]);
    let mut program = world.program("sharing").linked().start();
    program.steps("ready; create_past 1 60; map 1 1 60");
    agree(&world, "a map");

    program.steps("alloc 2 60!; create_past 2 60; map 2 2 60!");
    let record = world.snapshot().ooms.pop().expect("a refusal is recorded");
    assert_eq!(record.call, "cuMemMap");
    program.steps("release 2; unmap 1 60; release 1; alloc 2 100");
    agree(&world, "the end");
}

#[test]
fn memory_of_the_host_is_not_charged() {
    the_books_agree(
        &Config::default(),
        &[ROOM],
        "ready; create_at 1 200 2 0; map 2 1 200; unmap 2 200; release 1; create_at 1 200 3 0; release 1; \
         create_at 1 200 4 0; release 1",
    );
}

#[test]
fn imported_memory_stays_charged_after_its_creators_release() {
    let (world, mut one, mut other) = two(&Config::default());
    one.steps("create 1 60; export 1 1");
    let offered = one.step("offer 1");
    let path = offered.strip_prefix("offer 0 ").unwrap().to_owned();
    other.steps(&format!("accept 1 {path}; accept 2 {path}"));
    agree(&world, "two imports");

    one.steps("release 1");
    agree(&world, "the maker's release");
    other.steps("release 1; alloc 3 60!");
    agree(&world, "one release");
    other.steps("release 2; alloc 3 60");
    agree(&world, "the last release");
}

#[test]
fn memory_imported_from_itself_is_charged_until_both_releases() {
    the_books_agree(
        &Config::default(),
        &[ROOM],
        "ready; create 1 60; export 1 1; import 2 1; close_file 1; release 1; create 3 60!; map 3 2 60; \
         release 2; create 4 60!; unmap 3 60; create 4 60; release 4",
    );
}

#[test]
fn many_imports_of_one_object_are_all_counted() {
    let world = World::with_limits_on(&Config::default(), &[ROOM]);
    let mut program = world.program("sharing").linked().start();
    program.steps(
        "ready; create 1 60; export 1 1; import_often 2 1 300; release 1; release 2; create 3 60!",
    );
    agree(&world, "two releases");
}

#[test]
fn multicast_bindings_of_two_devices_at_one_offset_are_two() {
    let limits = [ROOM, ROOM];
    let world = World::with_limits_on(&Config::default(), &limits);
    let mut program = world.program("sharing").linked().start();
    program.steps(
        "ready; multicast 1 60 2; create_on 2 60 0; create_on 3 60 1; bind 1 2 60; bind 1 3 60",
    );
    agree(&world, "both bindings");

    // The first device's memory is still bound: a driver may keep it.
    program.steps("unbind 1 1 60; release 3; release 2");
    assert_eq!(world.booked(0), 60 * MIB + CONTEXT, "{}", world.log());
    assert_eq!(world.booked(1), 0, "{}", world.log());
    program.steps("unbind 1 0 60; create_on 2 100 0; create_on 3 100 1");
    agree(&world, "both are unbound");
}

#[test]
fn bindings_go_with_their_multicast_object() {
    let world = World::with_limits_on(&Config::default(), &[ROOM]);
    let mut program = world.program("sharing").linked().start();
    program.steps(
        "ready; multicast 1 60 1; create 2 60; bind 1 2 60; release 2; release 1; create 2 100",
    );
    agree(&world, "the multicast object's end");
}

#[test]
fn arrays_of_normalised_numbers() {
    the_books_agree(
        &Config::default(),
        &[ROOM],
        "ready; array 1 195 1 10; array_destroy 1; array 1 197 4 10; array_destroy 1; array 1 200 4 10; \
         array_destroy 1; array 1 203 4 10; array_destroy 1; array 1 194 4 10; array_destroy 1",
    );
}
