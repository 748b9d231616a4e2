//! Ways to take memory of pools and graphs past a limit: after each step the board holds at most the limit, and the
//! charges are at least the board's memory.

use crate::support::{CONTEXT, MIB, Running, World, all_contrary};

/// Room beside the context.
const ROOM: u64 = 256;

struct Trial {
    world: World,
    program: Running,
    limits: Vec<u64>,
}

impl Trial {
    fn begin(rooms: &[u64]) -> Self {
        Self::beside(0, rooms)
    }

    /// As `begin`, on a board with `others` more GPUs.
    fn beside(others: usize, rooms: &[u64]) -> Self {
        let limits: Vec<u64> = rooms.iter().map(|room| room * MIB + CONTEXT).collect();
        let world = World::with_others(others, &limits);
        let program = world.program("taking").linked().start();
        let mut trial = Self {
            world,
            program,
            limits,
        };
        trial.step("1 ready", "1 0");
        trial
    }

    /// Runs a step, checks its answer (`*` for any), and compares.
    #[track_caller]
    fn step(&mut self, step: &str, expected: &str) {
        let answer = self.program.step(step);
        let (_, answer) = answer.split_once(' ').unwrap();
        let log = || self.world.log();
        if expected != "*" {
            assert_eq!(answer, expected, "{step}\n{}", log());
        }
        for (gpu, &limit) in self.limits.iter().enumerate() {
            let held = self.world.board().used_bytes(gpu);
            let booked = self.world.booked(gpu);
            assert!(
                held <= limit && booked >= held,
                "after {step}: GPU {gpu} holds {} MiB, booked are {}, the limit is {}\n{}",
                held / MIB,
                booked / MIB,
                limit / MIB,
                log()
            );
        }
    }

    /// Ends the program; then nothing is held or booked.
    #[track_caller]
    fn end(self) {
        self.program.end();
        for gpu in 0..self.limits.len() {
            let left = (self.world.booked(gpu), self.world.board().used_bytes(gpu));
            assert_eq!(left, (0, 0), "GPU {gpu}");
        }
    }
}

#[track_caller]
fn steps(steps: &[(&str, &str)]) {
    let mut trial = Trial::begin(&[ROOM]);
    for (step, expected) in steps {
        trial.step(step, expected);
    }
    trial.end();
}

#[test]
fn graphs_that_keep_their_memory_end_at_the_limit() {
    steps(&[("20 kept_graph 64", "4 2"), ("20 kept_graph 64", "0 2")]);
}

#[test]
fn small_graphs_that_keep_their_memory_end_at_the_limit() {
    steps(&[
        ("40 kept_graph 10", "*"),
        ("40 alloc 10", "*"),
        ("1 kept_graph 10", "0 2"),
    ]);
}

#[test]
fn a_graph_that_is_uploaded_when_it_is_made_ends_at_the_limit() {
    steps(&[
        ("1 uploaded 800", "0 2"),
        ("20 uploaded 64", "*"),
        ("20 alloc 64", "*"),
    ]);
}

#[test]
fn an_upload_ends_at_the_limit() {
    steps(&[
        ("1 graph 200", "1 0"),
        ("1 graph 200", "1 0"),
        ("1 upload 0", "1 0"),
        ("1 launch 0", "1 0"),
        ("1 upload 1", "0 2"),
        ("1 launch 1", "0 2"),
    ]);
}

#[test]
fn nodes_that_grow_the_memory_in_turn_stop_at_the_limit() {
    steps(&[
        ("1 alloc 100", "1 0"),
        ("1 many_nodes 31 5", "1 0"),
        ("1 launch 0", "*"),
        ("9 kept_graph 1", "*"),
    ]);
}

#[test]
fn a_graph_that_frees_its_memory_runs_again_in_a_full_container() {
    steps(&[
        ("1 freed_graph 200", "1 0"),
        ("3 launch 0", "3 0"),
        ("1 alloc 56", "1 0"),
        ("1 alloc 1", "0 2"),
        ("5 launch 0", "5 0"),
        ("1 sync", "1 0"),
        ("5 launch 0", "5 0"),
    ]);
}

#[test]
fn a_graph_runs_not_again_where_another_one_has_its_memory() {
    steps(&[
        ("1 freed_graph 128", "1 0"),
        ("1 launch 0", "1 0"),
        ("1 sync", "1 0"),
        ("1 kept_graph 128", "1 0"),
        ("20 alloc 32", "*"),
        ("1 launch 0", "*"),
        ("1 alloc 32", "0 2"),
    ]);
}

#[test]
fn memory_that_idle_graphs_hold_is_given_back_for_another_graph() {
    steps(&[
        ("1 kept_graph 200", "1 0"),
        ("1 graph_free 0", "1 0"),
        ("1 sync", "1 0"),
        ("1 kept_graph 250", "1 0"),
        ("1 launch 0", "0 2"),
    ]);
}

#[test]
fn memory_of_captured_graphs_ends_at_the_limit() {
    steps(&[("20 captured 64", "4 2")]);
    steps(&[("20 captured_per_thread 64", "4 2")]);
}

#[test]
fn a_graph_that_was_destroyed_gives_its_memory_back_at_the_trim() {
    steps(&[
        ("1 freed_graph 200", "1 0"),
        ("1 launch 0", "1 0"),
        ("1 sync", "1 0"),
        ("1 graph_end 0", "1 0"),
        ("1 graph_trim", "1 0"),
        ("1 alloc 256", "1 0"),
    ]);
}

#[test]
fn graphs_on_a_second_device_end_at_its_limit() {
    let mut trial = Trial::begin(&[ROOM, 64]);
    trial.step("1 graph 100 1", "1 0");
    trial.step("1 launch 0", "0 2");
    trial.step("1 graph 60 1", "1 0");
    trial.step("1 launch 1", "*");
}

#[test]
fn a_graph_on_two_devices_ends_at_the_limit_of_each() {
    let mut trial = Trial::begin(&[ROOM, 64]);
    trial.step("1 on_both 100", "1 0");
    trial.step("1 launch 0", "0 2");
    trial.step("1 alloc 256", "1 0");
    trial.step("1 free", "1 0");
    trial.step("1 on_both 60", "1 0");
    trial.step("1 launch 1", "*");
    trial.step("1 alloc 256", "*");
    trial.end();
}

#[test]
fn a_graph_on_a_device_of_others_is_not_made() {
    let mut trial = Trial::beside(1, &[ROOM]);
    trial.step("1 graph 16 1", "0 800");
    trial.step("1 on_both 16", "0 800");
    trial.step("1 kept_graph 16", "*");
    assert_eq!(trial.world.board().used_bytes(1), 0);
}

#[test]
fn a_graph_on_no_device_is_not_made() {
    let mut trial = Trial::begin(&[ROOM]);
    let answer = trial.program.step("1 graph 16 7");
    assert!(answer.starts_with("graph 0 "), "{answer}");
    trial.step("1 alloc 256", "1 0");
    trial.end();
}

#[test]
fn memory_of_a_destroyed_graph_stays_charged_until_it_is_freed() {
    for (first, second) in [
        ("1 exec_end 0", "1 graph_only_end 0"),
        ("1 graph_only_end 0", "1 exec_end 0"),
    ] {
        for free in ["1 graph_free 0", "1 graph_free_now 0"] {
            steps(&[
                ("1 kept_graph 200", "1 0"),
                (first, "1 0"),
                (second, "1 0"),
                ("1 graph_trim", "1 0"),
                ("1 alloc 100", "0 2"),
                ("1 kept_graph 100", "0 2"),
                (free, "1 0"),
                ("1 sync", "1 0"),
                ("1 graph_trim", "1 0"),
                ("1 alloc 256", "1 0"),
            ]);
        }
    }
}

#[test]
fn memory_that_another_graph_freed_no_longer_counts_for_a_graph() {
    steps(&[
        ("1 kept_graph 128", "1 0"),
        ("1 freeing 0", "1 0"),
        ("1 launch 1", "1 0"),
        ("1 sync", "1 0"),
        ("1 kept_graph 128", "1 0"),
        ("20 alloc 32", "*"),
        ("20 alloc 1", "*"),
        ("1 launch 0", "*"),
        ("1 alloc 32", "0 2"),
    ]);
}

#[test]
fn graphs_of_two_streams_do_not_pass_on_memory_of_each_other() {
    steps(&[
        ("1 aside", "1 0"),
        ("1 freed_graph 100", "1 0"),
        ("1 launch 0", "1 0"),
        ("1 sync", "1 0"),
        ("1 freed_graph 100", "1 0"),
        ("1 launch_aside 1", "1 0"),
        ("1 kept_graph 100", "1 0"),
        ("20 alloc 10", "*"),
        ("1 launch 0", "*"),
        ("1 launch_aside 1", "*"),
        ("1 alloc 100", "0 2"),
    ]);
}

#[test]
fn graphs_with_their_own_memory_take_turns_in_a_full_container() {
    steps(&[
        ("1 kept_graph 64", "1 0"),
        ("1 freed_graph 64", "1 0"),
        ("1 launch 1", "1 0"),
        ("1 graph_free 0", "1 0"),
        ("1 alloc 128", "1 0"),
        ("9 launch 1", "9 0"),
        ("1 sync", "1 0"),
        ("9 launch 1", "9 0"),
    ]);
}

#[test]
fn a_graph_that_takes_over_another_one_ends_at_the_limit() {
    // The usual driver does not exchange allocation nodes.
    let taken_over = if all_contrary() { "1 0" } else { "0 910" };
    let mut trial = Trial::begin(&[ROOM]);
    for (step, expected) in [
        ("1 freed_graph 64", "1 0"),
        ("1 launch 0", "1 0"),
        ("1 sync", "1 0"),
        ("1 updated 0 64", taken_over),
        ("20 alloc 10", "*"),
        ("20 alloc 1", "*"),
        ("1 launch 0", "1 0"),
        ("1 updated 0 800", taken_over),
        ("1 launch 0", "*"),
        ("1 alloc 200", "0 2"),
    ] {
        trial.step(step, expected);
    }
    // No launch went past the limit and was brought down afterwards.
    let ooms = trial.world.snapshot().ooms;
    assert!(ooms.iter().all(|record| record.call != "a graph's launch"));
    trial.end();
}

#[test]
fn a_graph_whose_nodes_are_changed_ends_at_the_limit() {
    steps(&[("20 refilled 64", "4 2"), ("1 alloc 10", "0 2")]);
}

#[test]
fn what_a_blocked_stream_frees_gives_a_pool_no_room() {
    steps(&[
        ("1 pool", "1 0"),
        ("1 block", "1 0"),
        ("50 churn 64", "*"),
        ("50 churn 64", "0 2"),
        ("50 churn 1", "*"),
        ("1 open", "1 0"),
        ("1 sync", "1 0"),
        ("1 churn 64", "1 0"),
    ]);
}

#[test]
fn what_a_blocked_stream_frees_gives_plain_memory_no_room() {
    steps(&[
        ("1 alloc 200", "1 0"),
        ("1 block", "1 0"),
        ("1 free_in_order", "1 0"),
        ("1 alloc 100", "0 2"),
        ("1 new_stream", "1 0"),
        ("1 alloc 100", "0 2"),
        ("1 open", "1 0"),
        ("1 sync", "1 0"),
        ("1 alloc 200", "1 0"),
        ("1 free", "1 0"),
    ]);
}

#[test]
fn stream_ordered_free_of_plain_memory_gives_room_when_it_runs() {
    steps(&[("30 plain_in_order 200", "30 0"), ("1 alloc 256", "1 0")]);
}

#[test]
fn plain_memory_that_a_blocked_stream_frees_ends_at_the_limit() {
    steps(&[
        ("1 block", "1 0"),
        ("50 plain_in_order 32", "*"),
        ("1 open", "1 0"),
        ("1 sync", "1 0"),
        ("1 alloc 256", "1 0"),
    ]);
}

#[test]
fn more_pools_than_a_table_holds_end_at_the_limit() {
    steps(&[
        ("100 pool", "100 0"),
        ("200 draw_from_another 20", "*"),
        ("1 alloc 250", "0 2"),
    ]);
}

#[test]
fn destroyed_pool_is_charged_until_its_streams_free_its_memory() {
    steps(&[
        ("1 pool", "1 0"),
        ("1 use_pool", "1 0"),
        ("1 draw 200", "1 0"),
        ("1 block", "1 0"),
        ("1 give", "1 0"),
        ("1 pool_end", "1 0"),
        ("1 is_default_used", "1 0"),
        ("1 pool_end", "0 1"),
        ("1 draw 1", "0 1"),
        ("1 alloc 200", "0 2"),
        ("1 open", "1 0"),
        ("1 sync", "1 0"),
        ("1 alloc 256", "1 0"),
    ]);
}

#[test]
fn a_pool_that_is_none_costs_nothing() {
    steps(&[("1 draw_from_nothing 1", "0 1"), ("1 alloc 256", "1 0")]);
}
