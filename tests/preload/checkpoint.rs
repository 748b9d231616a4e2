//! A process that another process of the container checkpoints: its charges go and come with its memory.

use cuda_sim::Config;

use crate::support::{CONTEXT, MIB, Running, World};
use crate::vmm::agree;

/// Two processes of one container; the first holds 60 MiB of the first GPU.
fn two(rooms: &[u64]) -> (World, Running, Running) {
    let config = Config {
        driver_version: 13_000,
        ..Config::default()
    };
    let limits: Vec<u64> = rooms.iter().map(|room| room * MIB + 2 * CONTEXT).collect();
    let world = World::with_limits_on(&config, &limits);
    let mut one = world.program("sharing").linked().start();
    let mut other = world.program("sharing").linked().start();
    one.steps("ready; alloc 1 60");
    other.steps("ready");
    (world, one, other)
}

#[test]
fn memory_of_a_checkpointed_process_is_free_until_restore() {
    let (world, mut one, mut other) = two(&[100]);
    let pid = one.pid();

    other.steps(&format!("alloc 1 41!; lock 0 {pid}"));
    agree(&world, "lock");
    other.steps(&format!("alloc 1 41!; checkpoint 0 {pid}; alloc 1 60"));
    agree(&world, "checkpoint");

    other.steps(&format!("restore 0 {pid}!"));
    agree(&world, "a restore without room");
    let record = world.snapshot().ooms.pop().expect("a refusal is recorded");
    assert_eq!(record.call, "cuCheckpointProcessRestore");
    assert_eq!(record.asked, 60 * MIB + CONTEXT);

    other.steps(&format!("free 1; restore 0 {pid}; unlock 0 {pid}"));
    agree(&world, "restore");
    other.steps("alloc 1 41!");
    one.steps("free 1; alloc 1 100");
    agree(&world, "the restored process allocates");
}

#[test]
fn a_checkpoint_out_of_turn_changes_no_charge() {
    let (world, mut one, mut other) = two(&[100]);
    let pid = one.pid();
    let refused = |program: &mut Running, step: &str| {
        assert_eq!(
            program.step(&format!("{step} 0 {pid}")),
            format!("{step} 401")
        );
        agree(&world, step);
    };

    for step in ["checkpoint", "restore", "unlock"] {
        refused(&mut other, step);
    }
    other.steps(&format!("lock 0 {pid}"));
    refused(&mut other, "restore");
    other.steps(&format!("checkpoint 0 {pid}"));
    refused(&mut other, "checkpoint");
    other.steps(&format!(
        "restore 0 {pid}; unlock 0 {pid}; alloc 1 41!; alloc 1 40"
    ));
    agree(&world, "the end");
    one.steps("alloc 2 1!");
}

#[test]
fn process_killed_while_checkpointed_leaves_no_charge() {
    let (world, one, mut other) = two(&[100]);
    let pid = one.pid();
    other.steps(&format!("lock 0 {pid}; checkpoint 0 {pid}"));

    one.kill();

    other.steps("alloc 1 100");
    world.bury_the_dead();
    agree(&world, "its death");
}

#[test]
fn charges_go_where_a_restore_puts_the_memory() {
    let (world, one, mut other) = two(&[100, 100]);
    let pid = one.pid();
    other.steps(&format!("lock 0 {pid}; checkpoint 0 {pid}"));

    // The simulated driver restores the memory where it was, so only the charges are checked.
    other.steps(&format!("restore_elsewhere 0 {pid}"));

    assert_eq!(world.booked(0), CONTEXT, "{}", world.log());
    assert_eq!(world.booked(1), 60 * MIB + CONTEXT, "{}", world.log());
}

#[test]
fn a_restore_is_refused_where_the_other_device_has_no_room() {
    let (world, one, mut other) = two(&[100, 20]);
    let pid = one.pid();
    other.steps(&format!("lock 0 {pid}; checkpoint 0 {pid}"));

    other.steps(&format!("restore_elsewhere 0 {pid}!"));

    assert_eq!(world.booked(0), CONTEXT);
    assert_eq!(world.booked(1), 0);
    other.steps(&format!("restore 0 {pid}; unlock 0 {pid}"));
    agree(&world, "a restore where it was");
}
