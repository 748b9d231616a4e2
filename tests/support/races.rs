//! Processes that ask for memory at the same moment: the test and the bench run the same race.

use std::process::Stdio;

use crate::support::{CONTEXT, MIB, World};

/// The calls that race, by the letter that `races.c` knows them by.
pub(crate) const CALLS: [(char, &str); 6] = [
    ('a', "cuMemAlloc"),
    ('m', "cuMemAllocManaged"),
    ('p', "cuMemAllocPitch"),
    ('s', "cuMemAllocAsync"),
    ('c', "cuMemCreate"),
    ('y', "cuArrayCreate"),
];

/// The result of a race: rounds in which more memory was given than existed, and rounds in which no process got any.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Race {
    pub(crate) over: u32,
    pub(crate) none: u32,
}

/// Lets `processes` ask `rounds` times for 60 MiB of 100.
pub(crate) fn race(call: char, processes: u32, rounds: u32) -> Race {
    let world = World::with_room(0);
    world.set_limit(0, 100 * MIB + u64::from(processes) * CONTEXT);
    let program = world.program("races").linked();
    program.build();
    let children: Vec<_> = (0..processes)
        .map(|number| {
            let mut command = program.command();
            command.arg(world.path("meeting"));
            command.args([number, processes, rounds].map(|value| value.to_string()));
            command.args([&call.to_string(), "60"]);
            command
                .stdout(Stdio::piped())
                .spawn()
                .expect("the program starts")
        })
        .collect();
    let mut printed = String::new();
    for child in children {
        let output = child.wait_with_output().expect("it is our child");
        assert!(
            output.status.success(),
            "{call}: {:?}\n{}",
            output.status,
            world.log()
        );
        printed.push_str(&String::from_utf8_lossy(&output.stdout));
    }
    let words: Vec<_> = printed.split_whitespace().collect();
    let number = |at: usize| {
        words
            .get(at)
            .and_then(|word| word.parse().ok())
            .expect("it counted")
    };
    assert_eq!(number(1), rounds);
    Race {
        over: number(3),
        none: number(5),
    }
}
