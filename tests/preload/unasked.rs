//! Memory that no call names: contexts and modules of unknown size, with and without NVML, memory that images
//! declare, green contexts, limits of a context. All of it is charged, and the limit holds.

use cuda_sim::Config;

use crate::support::{CONTEXT, MIB, Running, World, all_contrary};

/// The library's estimate for a context on an unknown GPU of a test's size.
const GUESS: u64 = 128;

fn start(world: &World) -> Running {
    world.program("unasked").linked().start()
}

/// The steps of [`Running::steps`]; after each of them the charges cover what the board holds.
#[track_caller]
pub(crate) fn steps(world: &World, program: &mut Running, steps: &str) {
    program.steps_and(steps, |step| {
        let (booked, held) = (world.booked(0), world.board().used_bytes(0));
        assert!(
            booked >= held,
            "booked {} MiB, held {} MiB after {step}\n{}",
            booked / MIB,
            held / MIB,
            world.log()
        );
    });
}

/// A fresh container with this many MiB that does not know a context's size, on a board whose NVML lacks this.
fn fresh(mib: u64, nvml: &str) -> World {
    let config = Config {
        nvml: nvml.to_owned(),
        ..Config::default()
    };
    World::without_a_context_size(&config, &[mib * MIB])
}

/// `count` programs make a context at the same time; returns how many get one.
fn at_once(world: &World, count: usize, before: &str, step: &str) -> usize {
    let mut programs: Vec<_> = (0..count)
        .map(|_| {
            let mut program = start(world);
            steps(world, &mut program, before);
            program
        })
        .collect();
    for program in &mut programs {
        program.tell(step);
    }
    let answers: Vec<_> = programs.iter_mut().map(Running::line).collect();
    let name = step.split(' ').next().unwrap();
    let refused = answers
        .iter()
        .filter(|&it| *it == format!("{name} 2"))
        .count();
    let got = answers
        .iter()
        .filter(|&it| *it == format!("{name} 0"))
        .count();
    assert_eq!(refused + got, count, "{answers:?}\n{}", world.log());
    let held = world.board().used_bytes(0);
    assert!(
        held <= world.limit(0),
        "{} MiB held\n{}",
        held / MIB,
        world.log()
    );
    got
}

#[track_caller]
fn contexts_count(nvml: &str) {
    let world = fresh(100, nvml);
    let mut program = start(&world);

    // 100 / 16.
    steps(
        &world,
        &mut program,
        "init; create; create; create; create; create; create; create!; destroy; create; create!",
    );

    let snapshot = world.snapshot();
    let record = snapshot.ooms.last().expect("a refusal is recorded");
    assert_eq!(record.call, "cuCtxCreate_v2");
    // A contrary driver's later contexts take half as much as the first one; without the driver's figure the library
    // charges them in full.
    let later = if all_contrary() { CONTEXT / 2 } else { CONTEXT };
    assert_eq!(world.board().used_bytes(0), CONTEXT + 5 * later);
}

#[test]
fn contexts_count_without_nvml() {
    contexts_count("absent");
}

#[test]
fn contexts_count_where_nvml_does_not_know_the_process() {
    contexts_count("no-processes");
}

#[test]
fn contexts_count_where_nvml_finds_no_device_by_its_uuid() {
    contexts_count("no-uuid");
}

#[test]
fn contexts_count_where_nvml_is_late() {
    contexts_count("late");
}

#[test]
fn contexts_of_many_processes_count_without_nvml() {
    let world = fresh(100, "absent");

    let got = at_once(&world, 1, "init", "ready") + at_once(&world, 7, "init", "ready");

    assert!((1..=7).contains(&got), "{got}");
}

#[test]
fn first_contexts_that_start_together_stay_below_the_limit() {
    for nvml in ["", "absent"] {
        let world = fresh(100, nvml);

        let got = at_once(&world, 10, "init", "ready");

        // None that fits is refused.
        assert_eq!(got, 6, "{nvml:?}\n{}", world.log());
    }
}

#[test]
fn a_context_that_turns_out_too_large_is_taken_back() {
    let world = fresh(12, "");
    let mut program = start(&world);

    steps(&world, &mut program, "init; create!; create!; ready!");

    assert_eq!(world.board().used_bytes(0), 0);
    assert_eq!(world.booked(0), 0);
    assert_eq!(world.snapshot().ooms.len(), 3);
}

#[test]
fn a_guess_is_given_back_when_the_size_is_known() {
    let world = fresh(GUESS + 50, "");
    let mut program = start(&world);

    let rest = GUESS + 50 - CONTEXT / MIB;
    steps(
        &world,
        &mut program,
        &format!("ready; alloc {}!; alloc {rest}; alloc 1!", rest + 1),
    );
}

#[test]
fn a_text_is_charged_for_the_variables_that_it_declares() {
    let world = World::with_room(100 * MIB);
    let mut program = start(&world);

    steps(
        &world,
        &mut program,
        "ready; module 10000!; module 60; module 60!; function; global; alloc 60!; unload; alloc 90; free; module_file 60; module_file 60!; unload; alloc 100",
    );

    let snapshot = world.snapshot();
    let record = snapshot.ooms.first().expect("a refusal is recorded");
    assert_eq!(record.call, "cuModuleLoadData");
    assert!(record.asked >= 10_000 * MIB, "{}", record.asked);
}

#[test]
fn a_library_is_charged_for_the_variables_that_it_declares() {
    let world = World::with_room(100 * MIB);
    let mut program = start(&world);

    steps(
        &world,
        &mut program,
        "ready; library 10000!; library 60; alloc 60!; library_module; library_unload; alloc 90",
    );
}

#[test]
fn each_context_has_room_for_its_copy_of_a_library() {
    let world = World::with_room(150 * MIB);
    let mut program = start(&world);
    steps(
        &world,
        &mut program,
        "ready; create; library 60; library_module",
    );
    steps(&world, &mut program, "primary_current; library_module");
    let (booked, held) = (world.booked(0), world.board().used_bytes(0));
    assert!(held > 2 * 60 * MIB || all_contrary(), "{held}");
    assert!(booked > 2 * 60 * MIB, "{booked}");

    // A third context has no room for a copy, and its program is refused before the driver is called.
    world.set_limit(0, booked + CONTEXT + 10 * MIB);
    steps(&world, &mut program, "create; library_module!");
    let snapshot = world.snapshot();
    let record = snapshot.ooms.first().expect("a refusal is recorded");
    assert_eq!(record.call, "cuLibraryGetModule");

    // The copies go with their contexts, or with the library.
    steps(
        &world,
        &mut program,
        "destroy; destroy; primary_current; alloc 60; alloc 60!; library_unload; alloc 60",
    );
}

#[test]
fn library_loaded_without_a_context_is_charged_at_its_use() {
    let world = World::with_room(100 * MIB);
    let mut program = start(&world);

    steps(
        &world,
        &mut program,
        "init; library 60; ready; alloc 60; library_module!; free; library_module; alloc 60!; reset; ready; alloc 90",
    );
}

#[test]
fn memory_of_a_green_context_is_the_primary_contexts() {
    let world = World::with_room(200 * MIB);
    let mut program = start(&world);

    steps(
        &world,
        &mut program,
        "ready; alloc 20; green; green_current; alloc 30; primary_current; green_destroy",
    );
    let booked = world.booked(0);
    assert!(booked >= 50 * MIB + CONTEXT, "{} MiB", booked / MIB);
    steps(&world, &mut program, "alloc 170!; alloc 100; reset");
    assert_eq!(world.booked(0), 0, "{}", world.log());
}

#[test]
fn stacks_are_charged_for_all_threads_of_the_device() {
    let world = World::with_room(600 * MIB);
    let mut program = start(&world);

    // 132 multiprocessors of 2,048 threads: 264 MiB for each KiB.
    steps(
        &world,
        &mut program,
        "ready; stack 524288!; stack 2048; alloc 400!; stack 1024; alloc 500; stack 2048!; free; pending 10000000!; heap 10000!",
    );
    let snapshot = world.snapshot();
    let record = snapshot.ooms.first().expect("a refusal is recorded");
    assert_eq!(record.call, "cuCtxSetLimit");
}
