//! Ten thousand random steps: two assigners and an extender, in one process or in three, over an API server that answers
//! late, twice or not at all, with clocks that differ. An oracle that sees everything says whether a GPU was handed out
//! twice, and whether one was lost.
//!
//! Time is simulated, so a run of hours takes seconds. A failure prints its seed.

mod world;

use std::time::Duration;

use world::World;

fn run(seed: u64, steps: usize, combined: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new(seed, combined);
        for _ in 0..steps {
            world.step().await;
            world.check();
        }
        world.settle().await;
        let figures = world.figures();
        // What never happens in a run is not tried by it.
        assert!(
            figures.iter().all(|(_, count)| *count > 0),
            "seed {seed}: {figures:?}"
        );
    });
}

#[test]
fn no_gpu_is_handed_out_twice_where_the_doors_share_a_process() {
    for seed in 1..=5 {
        run(seed, 1000, true);
    }
}

#[test]
fn no_gpu_is_handed_out_twice_where_each_door_is_a_process() {
    for seed in 101..=105 {
        run(seed, 1000, false);
    }
}

/// How long a proposal stands.
const PROPOSAL: Duration = Duration::from_secs(60);
