//! Plain memory that processes share by IPC: charged once, as long as any process may hold it.

use cuda_sim::Config;

use crate::support::{CONTEXT, MIB, Running, World};
use crate::vmm::{self, agree};

fn two() -> (World, Running, Running) {
    vmm::two(&Config::default())
}

#[track_caller]
fn name(program: &mut Running, offset_kib: u32) -> String {
    let named = program.step(&format!("name 1 {offset_kib}"));
    named
        .strip_prefix("name 0 ")
        .expect("it is named")
        .to_owned()
}

/// Memory that is opened by this name stays charged when its maker dies, until it is closed.
#[track_caller]
fn outlives_its_maker(offset_kib: u32, change: impl FnOnce(&mut String)) {
    let (world, mut one, mut other) = two();
    one.steps("alloc 1 60");
    let mut name = name(&mut one, offset_kib);
    change(&mut name);
    other.steps(&format!("open 1 {name}"));
    agree(&world, "open");

    one.kill();
    other.steps("alloc 2 60!");
    agree(&world, "the maker's death");
    other.steps("close 1; alloc 2 60");
    agree(&world, "close");
}

#[test]
fn memory_that_was_named_by_an_inner_pointer_outlives_its_maker() {
    outlives_its_maker(4096, |_name| {});
}

#[test]
fn a_handle_whose_unused_bytes_were_changed_holds_what_it_opens() {
    outlives_its_maker(0, |name| name.replace_range(126..128, "5a"));
}

#[test]
fn memory_that_is_named_twice_is_shared_once() {
    let (world, mut one, mut other) = two();
    one.steps("alloc 1 60");
    let first = name(&mut one, 0);
    let inner = name(&mut one, 1024);
    let again = name(&mut one, 0);
    assert_eq!(first, again);
    other.steps(&format!("open 1 {inner}; open 1 {first}"));
    agree(&world, "two opens");

    other.steps("close 1");
    one.kill();
    other.steps("alloc 2 60!");
    agree(&world, "one close and the maker's death");
    other.steps("close 1; alloc 2 60");
    agree(&world, "the last close");
}

#[test]
fn seventy_thousand_opens_are_all_counted() {
    let (world, mut one, mut other) = two();
    one.steps("alloc 1 60");
    let name = name(&mut one, 0);
    other.steps(&format!("open_often 1 {name} 70000; close_often 1 69999"));
    one.kill();

    other.steps("alloc 2 60!");
    agree(&world, "one close less than there were opens");
    other.steps("close 1; alloc 2 60");
    agree(&world, "the last close");
}

#[test]
fn named_memory_goes_with_its_context() {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + 2 * CONTEXT]);
    let mut one = world.program("sharing").linked().start();
    one.steps("ready; context; alloc 1 60");
    name(&mut one, 0);
    one.steps("alloc 2 60!; context_destroy");
    agree(&world, "the context's end");
    one.steps("alloc 2 100");
}

#[test]
fn opened_memory_is_let_go_of_with_its_context() {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + 3 * CONTEXT]);
    let mut one = world.program("sharing").linked().start();
    let mut other = world.program("sharing").linked().start();
    one.steps("ready; alloc 1 60");
    let name = name(&mut one, 0);
    other.steps(&format!("ready; context; open 1 {name}"));
    one.kill();
    other.steps("alloc 2 60!; context_destroy; alloc 2 60");
    agree(&world, "the context's end");
}

#[test]
fn what_finds_no_place_in_the_table_is_not_named() {
    let world = World::with_limits_on(&Config::default(), &[100 * MIB + 2 * CONTEXT]);
    let mut one = world.program("sharing").linked().start();
    one.steps("ready; alloc 1 2");
    world.fill_the_shared_table();

    assert!(one.step("name 1 0").starts_with("name 2 "));
    one.steps("create 1 2; export 1 1!; free 1; release 1");
    let refused = world.snapshot().ooms;
    assert_eq!(
        refused
            .iter()
            .map(|it| it.call.as_str())
            .collect::<Vec<_>>(),
        ["cuIpcGetMemHandle", "cuMemExportToShareableHandle"]
    );
}
