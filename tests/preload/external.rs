//! Memory of other APIs, and memory that descriptors keep.

use cuda_sim::Config;

use crate::support::{CONTEXT, MIB, World};
use crate::vmm::{agree, take};

#[test]
fn imported_memory_goes_with_its_context() {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + 2 * CONTEXT]);
    let mut program = world.program("sharing").linked().start();
    take(
        &mut program,
        "ready; context; external 1 60; external 2 60!",
    );
    agree(&world, "import");

    take(&mut program, "context_destroy; external 2 60");
    agree(&world, "the context's end");
}

#[test]
fn external_memory_is_charged_from_its_import_to_its_end() {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + CONTEXT]);
    let mut program = world.program("sharing").linked().start();
    take(&mut program, "ready; external 1 60");
    agree(&world, "import");

    take(
        &mut program,
        "external 2 60!; alloc 1 60!; external_destroy 1",
    );
    agree(&world, "destroy");
    take(&mut program, "external 1 60; alloc 1 40");
    agree(&world, "another import");
    program.end();
    agree(&world, "the end");
}

#[test]
fn an_import_that_the_driver_refuses_leaves_no_charge() {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + CONTEXT]);
    let mut program = world.program("sharing").linked().start();
    take(&mut program, "ready");

    // All kinds but the first are of other systems here, or unknown.
    for kind in 2..12 {
        let answer = program.step(&format!("external 1 60 {kind}"));
        assert_ne!(answer, "external 0", "kind {kind}");
        agree(&world, &format!("an import of kind {kind}"));
    }
    take(&mut program, "external_bytes 1 0!; external_bytes 1 4096!");
    agree(&world, "imports as large as a number can say");
    take(&mut program, "alloc 1 100");
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
        take(&mut program, step);
        // That a descriptor was closed is seen when room is asked for.
        if !step.starts_with("close_file") {
            agree(&world, step);
        }
    }
}

#[test]
fn a_dma_buf_of_memory_that_lives_costs_nothing() {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + CONTEXT]);
    let mut program = world.program("sharing").linked().start();
    take(
        &mut program,
        "ready; alloc 1 60; range 1 1 60; close_file 1; free 1; alloc 1 100",
    );
    agree(&world, "a descriptor that was closed first");
}
