//! Every call that takes or frees device memory: after each, our charges equal the driver's memory.

use crate::support::{CONTEXT, MIB, Running, World, agrees, all_contrary};

/// Runs the program's steps one after another and compares the charges with the board after each. A step is `name`,
/// or `name MIB`; it must succeed, or be refused for memory if it ends in `!`.
#[track_caller]
fn the_books_agree(room: u64, steps: &str) {
    let world = World::with_room(room * MIB);
    let mut program = world.program("memory").linked().start();
    for step in steps.split(';').map(str::trim) {
        take_step(&mut program, step);
        agree(&world, step);
    }
    program.end();
    assert_eq!(
        (world.booked(0), world.board().used_bytes(0)),
        (0, 0),
        "at the end"
    );
}

#[track_caller]
fn take_step(program: &mut Running, step: &str) {
    let (step, code) = step.strip_suffix('!').map_or((step, 0), |step| (step, 2));
    let name = step.split(' ').next().unwrap();
    assert_eq!(program.step(step), format!("{name} {code}"));
}

#[track_caller]
fn agree(world: &World, step: &str) {
    let (booked, held) = (world.booked(0), world.board().used_bytes(0));
    assert!(
        agrees(booked, held),
        "booked {} MiB, held {} MiB after {step}\n{}",
        booked / MIB,
        held / MIB,
        world.log()
    );
}

#[test]
fn plain_memory() {
    the_books_agree(
        100,
        "ready; alloc 60; free; alloc 100; free; alloc 101!; alloc 0.0001; free; alloc 0.9; free; alloc 3.3; free",
    );
}

#[test]
fn pitched_memory() {
    the_books_agree(
        100,
        "ready; pitch 60; pitch_free; pitch 120!; pitch 0.1; pitch_free",
    );
}

#[test]
fn managed_memory() {
    the_books_agree(
        100,
        "ready; managed 60; managed 60!; managed_free; managed 60; managed_free",
    );
}

#[test]
fn host_memory_is_not_charged() {
    the_books_agree(100, "ready; host 200; host_free");
}

#[test]
fn stream_ordered_memory_of_the_default_pool() {
    // A contrary pool keeps empty blocks, and 70 MiB do not fit beside 60.
    let larger = if all_contrary() {
        "async 70!"
    } else {
        "async 70; async_free; sync"
    };
    the_books_agree(
        128,
        &format!(
            "ready; async 10; async_free; sync; async 60; async_free; sync; {larger}; async 129!; async 60; async_free_plainly; sync"
        ),
    );
}

#[test]
fn pool_that_keeps_freed_memory_is_charged_until_trimmed() {
    the_books_agree(
        128,
        "ready; pool; keep 100; pool_alloc 60; pool_free; sync; alloc 90!; trim; alloc 90; free; pool_alloc 10; pool_free; sync; pool_destroy",
    );
}

#[test]
fn a_pool_that_is_destroyed_while_it_holds_memory() {
    the_books_agree(
        128,
        "ready; pool; pool_alloc 60; pool_destroy; pool_free; sync",
    );
}

#[test]
fn created_memory_stays_charged_while_it_is_mapped() {
    the_books_agree(
        100,
        "ready; create 60; map 60; release; create 60!; unmap 60; create 60; release",
    );
}

#[test]
fn retained_memory_stays_charged_after_the_first_release() {
    the_books_agree(
        100,
        "ready; create 60; map 60; retain; release; unmap 60; create 60!; release_retained; create 60; release",
    );
}

#[test]
fn arrays_volumes_and_mipmaps() {
    the_books_agree(
        100,
        "ready; array 40; array_destroy; volume 40; volume_destroy; mipmap 40; mipmap_destroy; array 140!; volume 140!; mipmap 140!",
    );
}

#[test]
fn memory_of_a_graph() {
    the_books_agree(
        128,
        "ready; graph 60; launch; graph_free; graph_trim; launch; graph_free; graph_destroy; graph_trim",
    );
}

#[test]
fn a_context_that_is_destroyed_takes_its_memory_with_it() {
    the_books_agree(
        100,
        "ready; context; alloc 60; context_destroy; alloc 60; free",
    );
}

#[test]
fn a_primary_context_that_is_reset_loses_its_memory() {
    the_books_agree(
        100,
        "ready; alloc 60; async 10; reset; ready; alloc 60; free",
    );
}

#[test]
fn modules() {
    the_books_agree(
        100,
        "ready; module; module_unload; module; module; module_unload",
    );
}

#[test]
fn program_that_ends_without_a_free_leaves_no_charge() {
    the_books_agree(
        200,
        "ready; alloc 10; pitch 10; managed 10; async 10; create 10; map 10; array 10; volume 10; mipmap 10; module",
    );
}

#[test]
fn a_change_of_the_limit_counts_at_the_next_call() {
    let world = World::with_room(100 * MIB);
    let mut program = world.program("memory").linked().start();
    take_step(&mut program, "ready");
    take_step(&mut program, "alloc 60");
    take_step(&mut program, "create 60!");

    world.set_limit(0, 200 * MIB);
    take_step(&mut program, "create 60");
    assert_eq!(
        program.step("info"),
        format!("info 0 {} {}", 200 * MIB - CONTEXT - 120 * MIB, 200 * MIB)
    );

    // Below the present use: nothing is taken away, and nothing is given.
    world.set_limit(0, 50 * MIB);
    assert_eq!(program.step("info"), format!("info 0 0 {}", 50 * MIB));
    take_step(&mut program, "managed 1!");
    take_step(&mut program, "release");
    take_step(&mut program, "free");
    take_step(&mut program, "alloc 1");
    agree(&world, "the last step");
}

#[test]
fn memory_of_two_processes_is_charged_once_until_both_release() {
    let world = World::with_room(100 * MIB);
    world.set_limit(0, 100 * MIB + 2 * CONTEXT);
    let mut one = world.program("memory").linked().start();
    let mut other = world.program("memory").linked().start();
    for program in [&mut one, &mut other] {
        take_step(program, "ready");
    }
    take_step(&mut one, "alloc 60");
    let exported = one.step("export");
    let name = exported
        .strip_prefix("export 0 ")
        .expect("it was exported")
        .to_owned();
    agree(&world, "export");

    take_step(&mut other, &format!("import {name}"));
    agree(&world, "import");
    take_step(&mut other, "alloc 60!");
    take_step(&mut other, "close");
    agree(&world, "close");
    take_step(&mut one, "free");
    agree(&world, "free");
    take_step(&mut other, "alloc 60");
    agree(&world, "alloc of the other");
}

#[test]
fn a_refusal_leaves_a_record_of_what_each_process_held() {
    let world = World::with_room(100 * MIB);
    world.set_limit(0, 100 * MIB + 2 * CONTEXT);
    let mut big = world.program("memory").linked().start();
    take_step(&mut big, "ready");
    take_step(&mut big, "alloc 60");
    let mut small = world.program("memory").linked().start();
    take_step(&mut small, "ready");
    take_step(&mut small, "alloc 50!");

    let snapshot = world.snapshot();
    let record = snapshot.ooms.last().expect("there is a record");

    assert_eq!(
        (record.pid, record.call.as_str()),
        (small.pid(), "cuMemAlloc_v2")
    );
    assert_eq!(
        (record.asked, record.used, record.limit),
        (50 * MIB, 60 * MIB + 2 * CONTEXT, 100 * MIB + 2 * CONTEXT)
    );
    let holders: Vec<_> = record
        .holders
        .iter()
        .map(|holder| (holder.pid, holder.bytes))
        .collect();
    assert_eq!(
        holders,
        [(big.pid(), 60 * MIB + CONTEXT), (small.pid(), CONTEXT)]
    );
}

#[test]
fn what_a_killed_process_held_is_free_for_the_next_call() {
    let world = World::with_room(100 * MIB);
    let mut victim = world.program("memory").linked().start();
    take_step(&mut victim, "ready");
    for step in ["alloc 20", "create 20", "map 20", "managed 20", "array 10"] {
        take_step(&mut victim, step);
    }
    victim.kill();

    let mut next = world.program("memory").linked().start();
    take_step(&mut next, "ready");
    take_step(&mut next, "alloc 100");
    agree(&world, "the next one's call");
}

#[test]
fn memory_passed_to_another_process_outlives_its_creator() {
    let world = World::with_room(100 * MIB);
    world.set_limit(0, 100 * MIB + 2 * CONTEXT);
    let mut one = world.program("memory").linked().start();
    let mut other = world.program("memory").linked().start();
    for program in [&mut one, &mut other] {
        take_step(program, "ready");
    }
    take_step(&mut one, "create 60");
    let offered = one.step("offer");
    let path = offered
        .strip_prefix("offer 0 ")
        .expect("it was exported")
        .to_owned();
    take_step(&mut other, &format!("accept {path}"));
    agree(&world, "accept");
    take_step(&mut other, "map 60");
    take_step(&mut other, "release");
    agree(&world, "map and release");

    one.kill();
    take_step(&mut other, "alloc 60!");
    agree(&world, "the maker's death");
    take_step(&mut other, "unmap 60");
    take_step(&mut other, "alloc 60");
    agree(&world, "unmap");
}
