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
