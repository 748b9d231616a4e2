//! The driver's own memory limit on a control group, the second fence: it stops a program that the library does not
//! reach, and a program under the library sees the smaller of both limits.

use std::path::PathBuf;

use cuda_sim::Config;

use crate::support::{CONTEXT, MIB, Running, World, skip};

/// A driver with limits of control groups; the container may hold 100 MiB beside a context.
fn world() -> World {
    let config = Config {
        driver_version: 13_040,
        ..Config::default()
    };
    World::with_limits_on(&config, &[100 * MIB + CONTEXT])
}

/// A directory that stands for a control group.
fn group(world: &World, name: &str) -> PathBuf {
    let group = world.path(name);
    std::fs::create_dir(&group).unwrap();
    group
}

fn is_root(test: &str) -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        skip(test, "only root may set a limit");
    }
    is_root
}

/// A program in this group; without the library, as a program that links the driver's code statically.
fn start(world: &World, group: &std::path::Path, library: bool) -> Running {
    let program = world.program("fence").linked();
    let program = program.env("VGPU_SIM_CGROUP", group);
    if library {
        program.start()
    } else {
        program.native().start()
    }
}

#[test]
fn program_without_the_library_cannot_pass_the_limit_of_the_driver() {
    if !is_root("program_without_the_library_cannot_pass_the_limit_of_the_driver") {
        return;
    }
    let world = world();
    let ours = group(&world, "ours");
    let mut root = start(&world, &group(&world, "host"), false);
    let limit = 200 + CONTEXT / MIB;
    assert_eq!(
        root.step(&format!("set {} {limit}", ours.display())),
        "set 0"
    );

    let mut program = start(&world, &ours, false);

    assert_eq!(program.step("ready"), "ready 0");
    assert_eq!(program.step("alloc 201"), "alloc 2");
    assert_eq!(
        program.step("info"),
        format!("info 0: 200 of {}", 200 + CONTEXT / MIB)
    );
    assert_eq!(program.step("alloc 150"), "alloc 0");
    let full = format!("nvml 0: 50 of {limit}, used {}", 150 + CONTEXT / MIB);
    assert_eq!(program.step("nvml"), full);
    // Managed memory is the system's.
    assert_eq!(program.step("managed 300"), "managed 0");
    assert_eq!(program.step("nvml"), full);
    // Another group has the rest of the GPU, and any user reads what a group uses.
    assert_eq!(root.step("ready"), "ready 0");
    assert_eq!(root.step("alloc 201"), "alloc 0");
    assert_eq!(
        program.step(&format!("get {}", ours.display())),
        format!("get 0: {limit}, used {}", 150 + CONTEXT / MIB)
    );
}

#[test]
fn program_under_the_library_sees_the_smaller_limit() {
    if !is_root("program_under_the_library_sees_the_smaller_limit") {
        return;
    }
    let world = world();
    let (ours, whole) = (group(&world, "ours"), 100 + CONTEXT / MIB);
    let mut root = start(&world, &group(&world, "host"), false);
    let mut program = start(&world, &ours, true);
    assert_eq!(program.step("ready"), "ready 0");
    assert_eq!(program.step("alloc 10"), "alloc 0");

    // The limit of the driver has room for a context more, as the host sets it: the library's is the smaller one.
    for (driver, shown) in [(whole + 30, whole), (whole - 40, whole - 40), (0, whole)] {
        let wanted = format!("set {} {driver}", ours.display());
        assert_eq!(root.step(&wanted), "set 0");
        let left = shown - 10 - CONTEXT / MIB;
        assert_eq!(program.step("info"), format!("info 0: {left} of {shown}"));
        let used = 10 + CONTEXT / MIB;
        assert_eq!(
            program.step("nvml"),
            format!("nvml 0: {left} of {shown}, used {used}")
        );
    }
}

#[test]
fn container_sees_no_use_of_neighbours_in_a_group() {
    if !is_root("container_sees_no_use_of_neighbours_in_a_group") {
        return;
    }
    let world = world();
    let (ours, host) = (group(&world, "ours"), group(&world, "host"));
    let mut neighbour = start(&world, &host, false);
    assert_eq!(neighbour.step("ready"), "ready 0");
    assert_eq!(neighbour.step("alloc 300"), "alloc 0");
    let mut program = start(&world, &ours, true);
    assert_eq!(program.step("ready"), "ready 0");
    assert_eq!(program.step("alloc 10"), "alloc 0");

    let own = format!(
        "get 0: {}, used {}",
        100 + CONTEXT / MIB,
        10 + CONTEXT / MIB
    );
    for group in [&ours, &host] {
        assert_eq!(program.step(&format!("get {}", group.display())), own);
    }
    assert_eq!(
        program.step(&format!("set {} 500", ours.display())),
        "set 4"
    );
    assert_eq!(
        neighbour.step(&format!("get {}", ours.display())),
        format!("get 0: none, used {}", 10 + CONTEXT / MIB)
    );
}

#[test]
fn driver_refuses_limits_as_documented() {
    if !is_root("driver_refuses_limits_as_documented") {
        return;
    }
    let world = world();
    let ours = group(&world, "ours");
    let mut root = start(&world, &ours, false);
    assert_eq!(root.step("set relative 10"), "set 2");
    let missing = world.path("missing");
    assert_eq!(root.step(&format!("set {} 10", missing.display())), "set 2");
    assert_eq!(root.step("drop"), "drop 0");
    assert_eq!(root.step(&format!("set {} 10", ours.display())), "set 4");
    let old = World::with_room(100 * MIB);
    let mut root = start(&old, &ours, false);
    assert_eq!(root.step(&format!("set {} 10", ours.display())), "set 13");
}
