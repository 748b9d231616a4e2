//! Memory of other APIs, and memory that descriptors keep.

use cuda_sim::Config;

use crate::guest::{on_odd_driver, with_odd_driver};
use crate::support::{CONTEXT, MIB, Running, World, agrees};
use crate::vmm::agree;

#[test]
fn imported_memory_goes_with_its_context() {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + 2 * CONTEXT]);
    let mut program = world.program("sharing").linked().start();
    program.steps("ready; context; external 1 60; external 2 60!");
    // A contrary driver's second context is smaller.
    let agree = |step: &str| {
        let (booked, held) = (world.booked(0), world.board().used_bytes(0));
        assert!(agrees(booked, held), "{step}: {booked} booked, {held} held");
    };
    agree("import");

    program.steps("context_destroy; external 2 60");
    agree("the context's end");
}

#[test]
fn external_memory_is_charged_from_its_import_to_its_end() {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + CONTEXT]);
    let mut program = world.program("sharing").linked().start();
    program.steps("ready; external 1 60");
    agree(&world, "import");

    program.steps("external 2 60!; alloc 1 60!; external_destroy 1");
    agree(&world, "destroy");
    program.steps("external 1 60; alloc 1 40");
    agree(&world, "another import");
    program.end();
    agree(&world, "the end");
}

#[test]
fn an_import_that_the_driver_refuses_leaves_no_charge() {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + CONTEXT]);
    let mut program = world.program("sharing").linked().start();
    program.steps("ready");

    // All kinds but the first are of other systems here, or unknown.
    for kind in 2..12 {
        let answer = program.step(&format!("external 1 60 {kind}"));
        assert_ne!(answer, "external 0", "kind {kind}");
        agree(&world, &format!("an import of kind {kind}"));
    }
    program.steps("external_bytes 1 0!; external_bytes 1 4096!");
    agree(&world, "imports as large as a number can say");
    program.steps("alloc 1 100");
}

#[test]
fn freed_memory_stays_charged_until_its_dma_buf_is_closed() {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + CONTEXT]);
    let mut program = world.program("sharing").linked().start();
    for step in [
        "ready",
        "alloc 1 60",
        "range 1 1 60",
        "range 2 1 60",
        "free 1",
        "alloc 2 60!",
        "close_file 2",
        "alloc 2 60!",
        "close_file 1",
        "alloc 2 60",
        "free 2",
        "create 1 60",
        "map 3 1 60",
        "range 1 3 60",
        "unmap 3 60",
        "release 1",
        "alloc 2 60!",
        "close_file 1",
        "alloc 2 60",
    ] {
        program.steps(step);
        // A closed descriptor is noticed when room is asked for.
        if !step.starts_with("close_file") {
            agree(&world, step);
        }
    }
}

#[test]
fn a_dma_buf_of_memory_that_lives_costs_nothing() {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + CONTEXT]);
    let mut program = world.program("sharing").linked().start();
    program.steps("ready; alloc 1 60; range 1 1 60; close_file 1; free 1; alloc 1 100");
    agree(&world, "a descriptor that was closed first");
}

/// A program on a driver with a graphics API, with room for 100 MiB.
fn graphics() -> (World, Running) {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + CONTEXT]);
    with_odd_driver(&world);
    let mut program = on_odd_driver(&world, "graphics").start();
    program.steps("ready");
    (world, program)
}

#[test]
fn resources_of_a_graphics_api_are_charged_from_their_first_map() {
    let (world, mut program) = graphics();
    let booked = |mib: u64| assert_eq!(world.booked(0), mib * MIB + CONTEXT, "{}", world.log());

    program.steps("register 1 60; alloc 0 100; free");
    program.steps("map 1");
    booked(60);
    program.steps("unmap 1; map 1; unmap 1; alloc 0 41!");
    booked(60);
    program.steps("unregister 1; alloc 0 100");
    booked(100);
}

#[test]
fn a_resource_without_room_is_unmapped_again() {
    let (world, mut program) = graphics();
    program.steps("alloc 0 50; register 1 60; map 1!");

    assert_eq!(program.step("is_mapped 1"), "is_mapped 1");
    let record = world.snapshot().ooms.pop().expect("a refusal is recorded");
    assert_eq!(record.call, "cuGraphicsMapResources");
    program.steps("free; map 1; is_mapped 1; alloc 0 41!; alloc 0 40");
}

#[test]
fn of_several_resources_without_room_none_stays_mapped() {
    let (world, mut program) = graphics();
    program.steps("register 1 60; register 2 60; map_all 2!");

    for resource in ["is_mapped 1", "is_mapped 2"] {
        assert_eq!(program.step(resource), "is_mapped 1");
    }
    // The first one had its room, and keeps it until it is unregistered.
    assert_eq!(world.booked(0), 60 * MIB + CONTEXT);
    program.steps("unregister 1; map 2; unregister 2; alloc 0 100");
}

#[test]
fn resources_of_a_graphics_api_go_with_their_context() {
    let (world, mut program) = graphics();
    program.steps("register 1 60; map 1; reset");

    assert_eq!(world.booked(0), 0, "{}", world.log());
}
