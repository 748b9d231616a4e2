//! Images that end early or have false sizes: no crash, no charge that stays, and no way past the limit.

use crate::support::{CONTEXT, MIB, World};

#[track_caller]
fn all_pass(how: &[&str]) {
    let world = World::with_room(100 * MIB);
    let mut program = world.program("lies").linked();
    for word in how {
        program = program.arg(word);
    }
    let outcome = program.run();

    assert_eq!(
        (outcome.code, outcome.signal),
        (Some(0), None),
        "{outcome:?}"
    );
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert_eq!(lines[0], "ready 0");
    // Each is an image that this driver takes, in every way but the one for files.
    assert_eq!(lines[1..4], ["whole 4"; 3], "{outcome:?}");
    assert_eq!(lines[4], "after 100 of 116", "{outcome:?}");
}

#[test]
fn images_that_end_before_unreadable_memory_cost_nothing() {
    all_pass(&["early"]);
}

#[test]
fn images_that_end_before_noise_are_charged_for_nothing() {
    all_pass(&["early", "noise"]);
}

#[test]
fn images_with_numbers_at_every_edge_are_charged_for_nothing() {
    all_pass(&["numbers"]);
}

#[test]
fn images_with_false_sizes_leave_no_charge() {
    let world = World::with_room(100 * MIB);
    let mut program = world.program("memory").linked().start();
    assert_eq!(program.step("ready"), "ready 0");
    let outcome = world.program("lies").linked().arg("numbers").run();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");

    assert_eq!(world.booked(0), CONTEXT);
    assert_eq!(world.board().used_bytes(0), CONTEXT);
}
