//! Programs whose CUDA runtime loads modules past the hooks: once one such program has been seen, the necessary
//! memory is kept free for the next.

use std::time::Duration;

use vgpu_abi::targets::{Target, TargetsFile};

use cuda_sim::Config;

use crate::support::{CONTEXT, MIB, Running, World};

/// The memory that the runtime of these programs loads.
const LOADED: u64 = 40;

fn start(world: &World) -> Running {
    world.program("runtime").linked().start()
}

/// One program of the kind comes, loads and goes.
fn teach(world: &World) {
    let mut program = start(world);
    program.steps(&format!("table; context; load {LOADED}; alloc 2"));
    program.end();
}

#[track_caller]
fn holds(world: &World, mib: u64) {
    let held = world.board().used_bytes(0);
    assert_eq!(held, mib * MIB, "{} MiB\n{}", held / MIB, world.log());
}

#[track_caller]
fn agree(world: &World) {
    let (booked, held) = (world.booked(0), world.board().used_bytes(0));
    assert_eq!(
        booked,
        held,
        "booked {} MiB, held {} MiB\n{}",
        booked / MIB,
        held / MIB,
        world.log()
    );
}

#[test]
fn memory_that_a_runtime_loads_past_the_hooks_is_charged_first() {
    let world = World::with_room(100 * MIB);
    let mut program = start(&world);

    program.steps("table; context; load 40; alloc 61!");
    agree(&world);
    program.steps("alloc 60; alloc 1!; free; alloc 60");
    agree(&world);
}

#[test]
fn context_made_past_the_hooks_is_charged_first() {
    let world = World::with_room(100 * MIB);
    let mut program = start(&world);

    program.steps("table; private_context; load 40; alloc 61!");
    agree(&world);
}

#[test]
fn room_that_one_runtime_needed_is_kept_for_the_next() {
    let world = World::with_room(100 * MIB);
    teach(&world);
    let (mut loads, mut other) = (start(&world), start(&world));

    // Its own context takes 16 MiB of the rest: 100 - 40 - 16.
    loads.steps("table; context");
    other.steps("init; context; alloc 45!; alloc 44");
    loads.steps("load 40");
    holds(&world, 100 + CONTEXT / MIB);
    loads.steps("alloc 1!");
    other.steps("free; alloc 45!");
    loads.steps("alloc 44");
    agree(&world);
}

#[test]
fn room_that_one_runtime_needed_is_kept_for_one_that_is_loading() {
    let world = World::with_room(200 * MIB);
    let (mut slow, mut quick) = (start(&world), start(&world));
    slow.steps("table; context; load 8");

    quick.steps("table; context; load 40; alloc 105!; alloc 104; alloc 1!");
    slow.steps("load 32");

    holds(&world, 200 + CONTEXT / MIB);
    slow.steps("alloc 1!");
    agree(&world);
}

#[test]
fn context_without_room_for_its_runtime_is_refused() {
    let world = World::with_room(100 * MIB);
    teach(&world);
    let (mut holder, mut next) = (start(&world), start(&world));
    holder.steps("init; context; alloc 45");

    // It is refused before it begins.
    next.steps("table!");
    let ooms = world.snapshot().ooms;

    let record = ooms.last().expect("a refusal is recorded");
    assert_eq!(record.call, "cuGetExportTable");
    assert_eq!(record.asked, LOADED * MIB + CONTEXT);
    // Nothing is kept for it, and it may try again.
    holder.steps("free; alloc 100; free");
    next.steps("table; context; load 40; alloc 44");
    agree(&world);
}

#[test]
fn a_private_context_that_would_not_fit_is_refused_at_its_table() {
    let world = World::with_room(100 * MIB);
    teach(&world);
    let (mut holder, mut next, mut other) = (start(&world), start(&world), start(&world));
    holder.steps("init; context; alloc 20");

    // Of 116 MiB, 16 and 20 are taken, and 56 are kept for the process that has its table.
    next.steps("table");
    other.steps("table!");
    holder.steps("alloc 25!");
    next.steps("private_context; load 40; alloc 2");
    agree(&world);

    next.end();
    holder.steps("alloc 80");
}

#[test]
fn runtimes_that_start_together_stay_below_the_limit() {
    let config = Config::default();
    let world = World::without_a_context_size(&config, &[100 * MIB]);
    let mut programs: Vec<_> = (0..8).map(|_| start(&world)).collect();
    let mut begun = 0;
    for program in &mut programs {
        program.tell("table");
    }
    // Each continues as soon as it has its table, and others may wait for its measurement.
    std::thread::scope(|scope| {
        let runs = programs.iter_mut().map(|program| {
            scope.spawn(move || match program.line().as_str() {
                "table 0" => {
                    program.steps("private_context; load 20");
                    program.step("alloc 2")
                }
                refused => refused.to_owned(),
            })
        });
        for run in runs.collect::<Vec<_>>() {
            match run.join().unwrap().as_str() {
                "alloc 0" => begun += 1,
                other => assert_eq!(other, "table 2", "{}", world.log()),
            }
        }
    });

    // 38 MiB each.
    assert_eq!(begun, 2, "{}", world.log());
    assert!(world.board().used_bytes(0) <= 100 * MIB);
    let ooms = world.snapshot().ooms;
    assert!(ooms.iter().all(|record| record.call == "cuGetExportTable"));
    assert_eq!(ooms.len(), 6);
}

#[test]
fn program_without_a_runtime_needs_room_only_for_its_context() {
    let world = World::with_room(100 * MIB);
    teach(&world);
    let (mut holder, mut next) = (start(&world), start(&world));
    holder.steps("init; context; alloc 84");

    next.steps("init; context");

    holds(&world, 100 + CONTEXT / MIB);
}

#[test]
fn smaller_runtime_returns_its_spare_room_with_its_first_memory() {
    let world = World::with_room(100 * MIB);
    teach(&world);
    let (mut small, mut other) = (start(&world), start(&world));
    small.steps("table; context; load 2; alloc 2");

    other.steps("init; context; alloc 80");

    holds(&world, 100 + CONTEXT / MIB);
    agree(&world);
}

#[test]
fn room_kept_for_a_runtime_is_free_after_its_process_or_context() {
    let world = World::with_room(100 * MIB);
    teach(&world);
    let (mut killed, mut reset, mut other) = (start(&world), start(&world), start(&world));
    other.steps("init; context; alloc 20");
    killed.steps("table; context");
    other.steps("alloc 30!");

    killed.kill();
    other.steps("alloc 30; free");
    reset.steps("table; context; load 40");
    other.steps("alloc 30!");
    reset.steps("reset");
    other.steps("alloc 80");
    agree(&world);
}

#[test]
fn hosts_figure_from_during_a_load_does_not_replace_a_later_one() {
    let world = World::with_room(100 * MIB);
    let mut targets = TargetsFile::create(&world.path("targets")).unwrap();
    let mut program = start(&world);
    program.steps("table; context; load 40");
    let slot = &world.snapshot().slots[0];
    let mut midst = Target {
        slot_generation: slot.generation,
        ..Target::default()
    };
    midst.overhead_bytes[0] = CONTEXT + 20 * MIB;
    targets.write(&[(slot.slot, midst)], 1).unwrap();

    // The library looks at the host's figures 50 ms after its last look.
    std::thread::sleep(Duration::from_millis(60));
    program.steps("alloc 2");

    agree(&world);
}

#[test]
fn reset_of_a_runtimes_context_refunds_its_charges() {
    let world = World::with_room(100 * MIB);
    let mut program = start(&world);
    program.steps("table; private_context; alloc 60");

    program.steps("reset");
    agree(&world);
    program.steps("private_context; alloc 60; alloc 60!");
    agree(&world);
}

/// All of them take a step at the same time; those that were refused for memory are gone afterwards.
#[track_caller]
fn together(world: &World, programs: &mut Vec<Running>, step: &str) {
    for program in programs.iter_mut() {
        program.tell(step);
    }
    let name = step.split(' ').next().unwrap();
    programs.retain_mut(|program| {
        let answer = program.line();
        assert!(
            answer == format!("{name} 0") || answer == format!("{name} 2"),
            "{answer:?}\n{}",
            world.log()
        );
        answer == format!("{name} 0")
    });
    let (held, limit) = (world.board().used_bytes(0), world.limit(0));
    assert!(
        held <= limit,
        "{} MiB of {} held after {step}\n{}",
        held / MIB,
        limit / MIB,
        world.log()
    );
}

#[test]
fn twelve_runtimes_with_large_contexts_stay_below_the_limit() {
    for nvml in ["", "absent"] {
        for context in ["context", "private_context"] {
            let config = Config {
                nvml: nvml.to_owned(),
                ..Config::default()
            };
            let world = World::with_large_contexts(&config, 1024 * MIB);
            let mut programs: Vec<_> = (0..12).map(|_| start(&world)).collect();

            together(&world, &mut programs, "table");
            together(&world, &mut programs, context);
            together(&world, &mut programs, "load 20");
            together(&world, &mut programs, "alloc 1");

            let left = programs.len();
            println!("{left} of 12 with NVML {nvml:?} and {context}");
            assert!((1..=3).contains(&left), "{left} {nvml:?} {context}");
            assert!(!world.snapshot().ooms.is_empty());
        }
    }
}

#[test]
fn twelve_programs_with_large_contexts_get_as_many_as_fit() {
    for nvml in ["", "absent"] {
        let config = Config {
            nvml: nvml.to_owned(),
            ..Config::default()
        };
        let world = World::with_large_contexts(&config, 1024 * MIB);
        let mut programs: Vec<_> = (0..12).map(|_| start(&world)).collect();

        together(&world, &mut programs, "init");
        together(&world, &mut programs, "context");
        together(&world, &mut programs, "alloc 1");

        assert_eq!(programs.len(), 3, "{nvml:?}\n{}", world.log());
    }
}

#[test]
fn pools_give_back_what_they_keep_when_modules_pass_the_limit() {
    let world = World::with_room(100 * MIB);
    let mut targets = TargetsFile::create(&world.path("targets")).unwrap();
    let mut program = start(&world);
    program.steps("table; context; alloc 2; keep 64; load 60");
    let held = world.board().used_bytes(0);
    assert!(held > world.limit(0), "{} MiB", held / MIB);

    let slot = &world.snapshot().slots[0];
    let mut measured = Target {
        slot_generation: slot.generation,
        ..Target::default()
    };
    measured.overhead_bytes[0] = CONTEXT + 60 * MIB;
    targets.write(&[(slot.slot, measured)], 1).unwrap();
    // The library looks at the host's figures 50 ms after its last look, and then at the limit.
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(60));
        program.step("alloc 1000");
    }

    program.steps("kept_nothing; alloc 38; alloc 2!");
    holds(&world, 100 + CONTEXT / MIB);
    agree(&world);
}
