//! Memory under parts of sparse arrays: charged from the call that puts it there until the driver has taken it off.

use cuda_sim::Config;

use crate::support::{CONTEXT, MIB, Running, World};
use crate::vmm::agree;

/// One program with room for 100 MiB beside the memory of `block`.
fn begin(steps: &str) -> (World, Running) {
    let world = World::with_limits_on(&Config::default(), &[102 * MIB + CONTEXT]);
    let mut program = world.program("sharing").linked().start();
    program.steps("ready");
    each(&world, &mut program, steps);
    (world, program)
}

/// After each step the charges are at least the driver's memory. A request without room checks for ended work, and
/// after that both are equal.
#[track_caller]
fn each(world: &World, program: &mut Running, steps: &str) {
    for step in steps.split(';').map(str::trim) {
        program.steps(step);
        let (booked, held) = (world.booked(0), world.board().used_bytes(0));
        assert!(booked >= held, "{step}: {booked} booked, {held} held");
        if step.ends_with('!') {
            agree(world, step);
        }
    }
}

#[test]
fn parts_give_their_memory_back_one_by_one() {
    let (world, mut program) = begin(
        "sparse 1 64; create 1 30; create 2 30; under 1 1 0 30; under 1 2 30 30; release 1; release 2",
    );

    each(
        &world,
        &mut program,
        "create 3 60!; off 1 0 30; create 3 80!; create 3 60; release 3; off 1 30 30; create 3 110!; create 3 100",
    );
}

#[test]
fn parts_behind_a_blocked_stream_stay_charged() {
    let (world, mut program) = begin(
        "sparse 1 64; create 1 30; create 2 30; under 1 1 0 30; under 1 2 30 30; release 1; release 2; block",
    );

    each(
        &world,
        &mut program,
        "off 1 0 30; create 3 60!; off 1 30 30; create 3 60!",
    );
    program.steps("open_stream; create 3 100");
    agree(&world, "the stream has moved");
}

#[test]
fn a_part_that_gets_other_memory_gives_the_first_back() {
    let (world, mut program) =
        begin("sparse 1 64; create 1 30; create 2 30; under 1 1 0 30; release 1");

    each(
        &world,
        &mut program,
        "under 1 2 0 30; release 2; create 3 80!; create 3 70; release 3; off 1 0 30; create 3 110!; create 3 100",
    );
}

#[test]
fn parts_go_with_their_array() {
    let (world, mut program) = begin("sparse 1 64; create 1 30; under 1 1 0 30; release 1");

    each(
        &world,
        &mut program,
        "array_destroy 1; create 3 110!; create 3 100",
    );
}

#[test]
fn a_part_is_taken_off_in_pieces() {
    let (world, mut program) =
        begin("sparse 1 64; create 1 60; under 1 1 0 60; release 1; create 3 50!");

    each(
        &world,
        &mut program,
        "off 1 0 20; create 3 50!; off 1 30 30; create 3 50!; off 1 20 10; create 3 110!; create 3 100",
    );
}

#[test]
fn a_part_is_mapped_over_in_pieces() {
    let (world, mut program) =
        begin("sparse 1 64; create 1 40; create 2 40; under 1 1 0 40; release 1; under 1 2 0 20");

    each(
        &world,
        &mut program,
        "release 2; create 3 30!; off 1 20 20; create 3 70!; create 3 60",
    );
}

#[test]
fn memory_made_past_the_hooks_is_not_mapped() {
    let (world, mut program) = begin("sparse 1 64");

    assert_eq!(program.step("create_past 1 300"), "create_past 0");
    assert_eq!(program.step("under 1 1 0 60"), "under 1");
    assert_eq!(world.booked(0), CONTEXT, "{}", world.log());
}
