//! Containers whose limit exceeds their share of the GPU: past the share the driver is asked for managed memory, and
//! memory that it cannot manage is refused with a record.

use std::process::Stdio;

use cuda_sim::Config;
use vgpu_abi::limits::LimitsFile;
use vgpu_abi::region::Why;

use crate::kills::PATIENCE;
use crate::support::{CONTEXT, GPU_BYTES, MIB, Running, World, agrees};

/// A container of one program that sees `limit` MiB, of which `share` MiB are device memory, beside its context.
fn world(limit: u64, share: u64) -> World {
    let world = World::with_room(limit * MIB);
    set_share(&world, share * MIB + CONTEXT);
    world
}

fn set_share(world: &World, bytes: u64) {
    let file = LimitsFile::open(&world.path("limits")).unwrap();
    let mut limits = file.read().unwrap();
    limits.devices[0].resident_bytes = bytes;
    file.write(&limits).unwrap();
}

/// The charges of managed memory past the share, in MiB.
fn past(world: &World) -> u64 {
    let slots = world.snapshot().slots;
    let bytes = slots
        .iter()
        .map(|slot| slot.devices[0].oversubscribed_bytes);
    bytes.sum::<u64>() / MIB
}

/// A step of the program; it succeeds unless it ends in `!` (refused for memory) or `=CODE`.
#[track_caller]
fn take_step(program: &mut Running, step: &str) {
    let (step, code) = match step.split_once('=') {
        Some((step, code)) => (step, code),
        None => step
            .strip_suffix('!')
            .map_or((step, "0"), |step| (step, "2")),
    };
    let name = step.split(' ').next().unwrap();
    assert_eq!(program.step(step), format!("{name} {code}"), "{step}");
}

/// Steps with the resulting charges past the share (`step @MIB`); after each of them the charges agree with the
/// board.
#[track_caller]
fn the_books_agree(world: &World, steps: &str) -> Running {
    let mut program = world.program("oversubscribe").linked().start();
    go_through(world, &mut program, steps);
    program
}

#[track_caller]
fn go_through(world: &World, program: &mut Running, steps: &str) {
    for step in steps.split(';').map(str::trim) {
        let (step, expected) = step.split_once('@').unwrap_or((step, ""));
        take_step(program, step.trim());
        let (booked, held) = (world.booked(0), world.board().used_bytes(0));
        assert!(
            agrees(booked, held),
            "booked {booked}, held {held} after {step}\n{}",
            world.log()
        );
        if !expected.is_empty() {
            assert_eq!(past(world).to_string(), expected.trim(), "after {step}");
        }
    }
}

#[test]
fn memory_past_the_share_is_managed_memory() {
    let world = world(100, 40);

    let program = the_books_agree(
        &world,
        "ready; alloc 30 @0; is_managed=0; use; alloc 20 @20; is_managed=1; use; \
         alloc 10 @20; is_managed=0; alloc 40 @60; use; alloc 1! @60; free; free; free @0; \
         alloc 10 @0; is_managed=0; free; free @0",
    );

    drop(program);
    assert_eq!((world.booked(0), past(&world)), (0, 0));
    assert_eq!(world.board().used_bytes(0), 0);
}

#[test]
fn program_sees_its_whole_limit_even_above_the_gpus_memory() {
    let limit = GPU_BYTES / MIB * 3;
    let world = world(limit, 100);
    let mut program = the_books_agree(&world, "ready; alloc 60; alloc 60 @60");

    let context = CONTEXT / MIB;
    assert_eq!(
        program.step("nvml"),
        format!(
            "nvml 0 {} {} {}",
            limit + context,
            120 + context,
            limit - 120
        )
    );
    assert_eq!(
        program.step("info"),
        format!(
            "info 0 {} {} {}",
            limit - 120,
            limit + context,
            limit + context
        )
    );
}

#[test]
fn a_program_holds_more_than_the_gpu_has() {
    let gpu_mib = GPU_BYTES / MIB;
    let world = world(2 * gpu_mib, gpu_mib - 200);
    let mut program = world.program("oversubscribe").linked().start();

    for step in ["ready", "alloc 700", "alloc 700", "alloc 500", "create 100"] {
        take_step(&mut program, step);
    }
    assert_eq!(
        (world.booked(0), past(&world)),
        (2000 * MIB + CONTEXT, 1200)
    );
    assert!(world.board().used_bytes(0) <= GPU_BYTES);
    take_step(&mut program, "create 40!");

    for _ in 0..4 {
        take_step(&mut program, "free");
    }
    assert_eq!((world.booked(0), past(&world)), (CONTEXT, 0));
    assert_eq!(world.board().used_bytes(0), CONTEXT);
}

#[test]
fn pitched_memory_past_the_share_has_the_drivers_pitch() {
    let world = world(100, 40);

    the_books_agree(
        &world,
        "ready; pitch 30 @0; pitch_is=1024; pitch 30 @30; is_managed=1; pitch_is=1024; use; \
         odd_pitch 30!; free @0; odd_pitch 1=1; free",
    );
}

#[test]
fn managed_memory_of_the_program_counts_past_the_share_too() {
    let world = world(100, 40);
    let mut program = the_books_agree(&world, "ready; managed 30 @0; managed 30 @30");

    // The program still sees the kind that it asked for.
    assert_eq!(program.step("what"), "what 2 same 1 0 0 all 0 2 same 1 0 0");
    go_through(
        &world,
        &mut program,
        "managed 50! @30; free @0; free; managed 50 @50; free @0",
    );
}

#[test]
fn a_pointer_past_the_share_is_device_memory_but_not_shareable() {
    let world = world(100, 40);
    let mut program = the_books_agree(&world, "ready; alloc 40");
    let plain = program.step("what");
    go_through(&world, &mut program, "alloc 40 @40; is_managed=1");
    let paged = program.step("what");

    assert_eq!(plain, "what 2 - 0 0 1 all 0 2 null 0 0 1");
    assert_eq!(paged, "what 2 - 0 0 0 all 0 2 null 0 0 0");
}

#[test]
fn unmanageable_memory_past_the_share_is_refused_with_a_record() {
    for (step, call, asked) in [
        ("create 20", "cuMemCreate", 20),
        ("array 20", "cuArrayCreate_v2", 20),
        ("async 20", "cuMemAllocAsync", 32),
        ("graph 20", "cuGraphLaunch", 32),
        ("old 20", "cuMemAlloc", 20),
        ("context", "cuCtxCreate_v2", CONTEXT / MIB),
        // By any address in it.
        ("export", "cuIpcGetMemHandle", 30),
        ("export 1", "cuIpcGetMemHandle", 30),
    ] {
        let world = world(100, 40);
        the_books_agree(
            &world,
            &format!("ready; alloc 30; alloc 30 @30; {step}! @30"),
        );

        let snapshot = world.snapshot();
        let record = snapshot.ooms.last().expect("there is a record");
        assert_eq!(
            (record.call.as_str(), record.why, record.asked / MIB),
            (call, Why::NotPageable, asked)
        );
        assert_eq!(
            (record.limit, record.used),
            (40 * MIB + CONTEXT, 30 * MIB + CONTEXT),
            "of the share: {call}"
        );
        assert_eq!((snapshot.ooms.len(), snapshot.counters.refused), (1, 1));
    }
}

#[test]
fn a_refusal_past_the_limit_is_of_the_limit() {
    let world = world(100, 40);
    the_books_agree(
        &world,
        "ready; alloc 30; alloc 30 @30; alloc 50!; create 50!",
    );

    let records = world.snapshot().ooms;
    for record in &records {
        assert_eq!(
            (record.why, record.limit, record.used),
            (Why::Full, 100 * MIB + CONTEXT, 60 * MIB + CONTEXT),
            "{}",
            record.call
        );
    }
    assert_eq!(records.len(), 2);
}

#[test]
fn what_is_gone_with_its_context_makes_room_again() {
    let world = world(100, 60);

    the_books_agree(
        &world,
        "ready; context; alloc 30 @0; alloc 30 @30; managed 20 @50; context_destroy @0; \
         alloc 60 @0; alloc 40 @40; reset @0; ready; alloc 60 @0; free",
    );
}

#[test]
fn stream_ordered_frees_of_plain_memory_work_past_the_share() {
    let world = world(100, 40);

    the_books_agree(
        &world,
        "ready; alloc 40; alloc 40 @40; free_async @0; alloc 40 @40",
    );
}

#[test]
fn a_free_within_a_capture_is_left_to_the_driver() {
    let world = world(100, 40);
    let mut program = the_books_agree(&world, "ready; alloc 40; alloc 40 @40");

    let answer = program.step("captured_free");

    assert_ne!(answer, "captured_free 0", "nothing was freed");
    go_through(&world, &mut program, "use @40; free @0; free");
}

#[test]
fn the_drivers_own_refusals_charge_nothing() {
    let world = world(100, 40);

    the_books_agree(
        &world,
        "ready; alloc 40; null 20=1 @0; free_null; alloc 20 @20",
    );
}

#[test]
fn without_paging_everything_past_the_share_is_refused() {
    for (faults, refused) in [
        // A driver that cannot say whether it pages.
        ("fail:cuDeviceGetAttribute=801", "alloc 20!"),
        // A driver that says it pages and does not: its own refusal.
        ("fail:cuMemAllocManaged=801", "alloc 20=801"),
    ] {
        let config = Config {
            faults: faults.to_owned(),
            ..Config::default()
        };
        let world = World::with_limits_on(&config, &[100 * MIB + CONTEXT]);
        set_share(&world, 40 * MIB + CONTEXT);

        the_books_agree(
            &world,
            &format!(
                "ready; alloc 30; {refused} @0; pitch 20{} @0; alloc 10 @0",
                &refused[8..]
            ),
        );

        let records = world.snapshot().ooms;
        let all = records.iter().all(|it| it.why == Why::NotPageable);
        assert!(all && records.len() == if refused.ends_with('!') { 2 } else { 0 });
    }
}

#[test]
fn two_processes_have_one_share_and_one_limit() {
    let world = world(100, 40);
    set_share(&world, 40 * MIB + 2 * CONTEXT);
    world.set_limit(0, 100 * MIB + 2 * CONTEXT);
    let mut parent = the_books_agree(&world, "ready; alloc 30; alloc 30 @30");
    let mut other = world.program("oversubscribe").linked().start();

    go_through(
        &world,
        &mut other,
        "ready; alloc 10 @30; is_managed=0; alloc 20 @50; is_managed=1; alloc 20! @50; create 2!",
    );
    go_through(&world, &mut parent, "free @20; free @20");
    go_through(
        &world,
        &mut other,
        "create 30 @20; free; alloc 30 @20; is_managed=0",
    );
}

#[test]
fn a_change_of_the_share_counts_at_the_next_call() {
    let world = world(100, 40);
    let mut program = the_books_agree(&world, "ready; alloc 40; create 20!; alloc 20 @20; free");

    set_share(&world, 60 * MIB + CONTEXT);
    go_through(&world, &mut program, "create 20; free; alloc 20 @0; free");

    // As much as the limit: no oversubscription. Less than is in use: nothing is taken away.
    set_share(&world, 100 * MIB + CONTEXT);
    go_through(
        &world,
        &mut program,
        "alloc 60 @0; is_managed=0; free; free",
    );
    set_share(&world, 10 * MIB + CONTEXT);
    go_through(&world, &mut program, "alloc 10 @0; alloc 20 @20; create 1!");
    set_share(&world, 0);
    go_through(
        &world,
        &mut program,
        "create 60 @20; create 20!; free; free @0",
    );
}

#[test]
fn memory_past_the_share_of_a_killed_process_is_free_again() {
    let world = world(100, 40);
    let victim = the_books_agree(&world, "ready; alloc 30; alloc 60 @60");
    victim.kill();

    let mut next = world.program("oversubscribe").linked().start();
    take_step(&mut next, "ready");
    take_step(&mut next, "alloc 40");
    take_step(&mut next, "alloc 60");

    assert_eq!(past(&world), 60);
    assert_eq!(world.booked(0), world.board().used_bytes(0));
}

#[test]
fn eight_racing_processes_stay_within_share_and_limit() {
    const PROCESSES: u64 = 8;
    const ROUNDS: u32 = 400;
    let world = World::with_room(0);
    world.set_limit(0, 200 * MIB + PROCESSES * CONTEXT);
    set_share(&world, 80 * MIB + PROCESSES * CONTEXT);
    let program = world.program("oversubscribe").linked();
    program.build();
    let start = |number: u64| {
        let mut command = program.command();
        command.arg("race").arg(world.path("truth"));
        command.args([number, PROCESSES, u64::from(ROUNDS), 80, 200].map(|it| it.to_string()));
        command.env(PATIENCE.0, PATIENCE.1);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..PROCESSES).map(start).collect();
    let mut most = (0, 0);
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{:?}\n{}",
            output.status,
            world.log()
        );
        let printed = String::from_utf8(output.stdout).unwrap();
        let numbers: Vec<u64> = printed
            .split(' ')
            .filter_map(|it| it.trim().parse().ok())
            .collect();
        assert_eq!(numbers[2], 0, "over a bound: {printed}");
        most = (most.0.max(numbers[0]), most.1.max(numbers[1]));
    }

    assert!(most.0 <= 80 && most.1 <= 200, "{most:?}");
    assert!(most.0 > 40 && most.1 > 100, "both were had: {most:?}");
    // The library that ships waits for a tenth of a second, which a busy machine may take from a living process.
    if std::env::var_os("VGPU_TEST_LIBRARY").is_none() {
        assert_eq!(world.snapshot().counters.waits_ran_out, 0);
    }
    assert_eq!((world.booked(0), past(&world)), (0, 0));
    assert_eq!(world.board().used_bytes(0), 0);
}
