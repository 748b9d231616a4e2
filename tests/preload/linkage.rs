//! Every way in which programs find the driver leads to our hooks. Ways that a preload cannot intercept are here too,
//! with the mechanism that can.

use crate::support::{MIB, Program, World};

/// The output of a program whose limit leaves room for 100 MiB beside its context.
pub(crate) const LIMITED: &str = "\
ready 0
total 116
first 0
free 40 of 116
second 2
freed 0
again 0
freed 0
";

/// Its output when the library does not reach it.
pub(crate) const UNLIMITED: &str = "\
ready 0
total 1024
first 0
free 948 of 1024
second 0
freed 0
again 0
freed 0
";

#[track_caller]
pub(crate) fn is_limited(program: &Program<'_>) {
    assert_eq!(program.prints(), LIMITED);
}

pub(crate) fn world() -> World {
    World::with_room(100 * MIB)
}

#[test]
fn without_the_library_the_whole_gpu_is_there() {
    assert_eq!(
        world().program("direct").linked().native().prints(),
        UNLIMITED
    );
}

#[test]
fn a_program_that_is_linked_to_the_driver() {
    is_limited(&world().program("direct").linked());
}

#[test]
fn a_linked_program_that_asks_the_global_scope() {
    is_limited(&world().program("direct_default").linked());
}

#[test]
fn a_linked_program_that_asks_for_the_next_definition() {
    is_limited(&world().program("direct_next").linked());
}

#[test]
fn dlopen_and_dlsym() {
    is_limited(&world().program("dlopen_dlsym"));
}

#[test]
fn dlopen_by_the_unversioned_name() {
    is_limited(&world().program("dlopen_dlsym").arg("libcuda.so"));
}

#[test]
fn dlopen_by_an_absolute_path() {
    let world = world();
    is_limited(
        &world
            .program("dlopen_dlsym")
            .arg(world.path("sim/libcuda.so.1")),
    );
}

#[test]
fn dlopen_with_deepbind() {
    is_limited(&world().program("deepbind"));
}

#[test]
fn a_plugin_that_is_linked_to_the_driver() {
    let world = world();
    let plugin = world.library("plugin", true);
    is_limited(&world.program("plugin_host").arg(plugin));
}

#[test]
fn a_linked_plugin_that_is_loaded_with_deepbind() {
    let world = world();
    let plugin = world.library("plugin", true);
    is_limited(&world.program("plugin_host").arg(plugin).arg("deepbind"));
}

#[test]
fn a_plugin_that_uses_dlsym_itself_and_is_loaded_with_deepbind() {
    let world = world();
    let plugin = world.library("plugin_dlsym", false);
    is_limited(&world.program("plugin_host").arg(plugin).arg("deepbind"));
}

#[test]
fn dlsym_that_was_got_by_dlvsym() {
    let printed = world().program("dlvsym").prints();
    assert_eq!(printed, format!("by version 0\n{LIMITED}"));
}

#[test]
fn dlsym_that_was_got_by_dlsym() {
    is_limited(&world().program("dlsym_dlsym"));
}

#[test]
fn the_driver_in_a_namespace_of_its_own() {
    is_limited(&world().program("dlmopen"));
}

#[test]
fn everything_by_get_proc_address() {
    is_limited(&world().program("getprocaddress"));
}

#[test]
fn get_proc_address_that_was_got_through_itself() {
    is_limited(&world().program("getprocaddress").arg("itself"));
}

#[test]
fn everything_by_the_older_get_proc_address() {
    is_limited(&world().program("getprocaddress").arg("v1"));
}

#[test]
fn per_thread_streams_by_name_and_by_flag() {
    let printed = world().program("per_thread_stream").linked().prints();
    assert_eq!(
        printed,
        "ready 0\nasked 0\nsame 1, its own 1\nfirst 0\nsecond 2\nfreed 0\n"
    );
}

#[test]
fn interposer_in_front_of_us_calls_us_next() {
    let world = world();
    let second = world.library("interposer", false);
    let printed = world
        .program("direct")
        .linked()
        .preload_before(&second)
        .prints();
    assert_eq!(printed.replace("wrapped\n", ""), LIMITED);
    assert_eq!(printed.matches("wrapped\n").count(), 3);
}

#[test]
fn interposer_behind_us_is_not_called_and_nothing_recurses() {
    let world = world();
    let second = world.library("interposer", false);
    let printed = world
        .program("direct")
        .linked()
        .preload_after(&second)
        .prints();
    assert_eq!(printed.replace("wrapped\n", ""), LIMITED);
}

#[test]
fn only_what_is_there_is_found() {
    let printed = world()
        .program("no_driver")
        .without("LD_LIBRARY_PATH")
        .prints();
    assert_eq!(
        printed,
        "cuInit 0\nnvmlInit_v2 0\ncudnnCreate 0\nerror for it 1\nmalloc 1 1\n"
    );
}

#[test]
fn a_program_without_a_gpu_does_not_notice_us() {
    let world = world();
    let with = world.program("quiet").run();
    let without = world.program("quiet").native().run();
    assert_eq!(with, without);
    assert_eq!((with.code, with.stdout.as_str()), (Some(3), "errno 7\n"));
}

/// A static program before a small driver of its kind, under a limit of 116 MiB by a peer's variable.
pub(crate) fn static_program<'a>(world: &'a World, name: &str) -> Program<'a> {
    world.put_driver("small_driver", &[]);
    let program = world.program(name).statically();
    program
        .env("CUDA_DEVICE_MEMORY_LIMIT", "116m")
        .env("CUDA_DEVICE_MEMORY_SHARED_CACHE", world.path("shared"))
        .without("VGPU_LIMITS")
}

#[test]
fn a_static_program_is_out_of_a_preloads_reach() {
    assert_eq!(
        static_program(&world(), "static_program").prints(),
        UNLIMITED
    );
}
