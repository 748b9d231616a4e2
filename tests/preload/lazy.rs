//! Code that is larger than its image says. If it takes memory when it is loaded, the load is undone if there is no
//! room for it; if it takes memory at its first use, that use is charged.

use cuda_sim::Config;

use crate::support::{CONTEXT, MIB, Running, World};
use crate::unasked::steps;

/// A container with 100 MiB beside a context, on the usual driver or the contrary one.
fn world(contrary: bool) -> World {
    world_on(&Config {
        contrary,
        ..Config::default()
    })
}

/// The same container on this board.
fn world_on(config: &Config) -> World {
    World::with_limits_on(config, &[100 * MIB + CONTEXT])
}

/// A program whose modules take their memory as they are loaded, or at their first use.
fn start(world: &World, loading: &str) -> Running {
    let program = world.program("lazy").env("CUDA_MODULE_LOADING", loading);
    program.linked().start()
}

/// A first use of 60 MiB of code counts at once; one of 60 MiB more passes the limit, which is recorded, and
/// nothing is given then.
#[track_caller]
fn check(load: &str, get: &str, first_use: &str) {
    check_on(&Config::default(), load, get, first_use);
}

/// The same on such a board, whose driver is once the usual and once the contrary one.
#[track_caller]
fn check_on(config: &Config, load: &str, get: &str, first_use: &str) {
    for contrary in [false, true] {
        let world = world_on(&Config {
            contrary,
            ..config.clone()
        });
        let mut program = start(&world, "LAZY");
        steps(&world, &mut program, &format!("ready; {load} 60; {get}"));
        let before = world.board().used_bytes(0);

        steps(&world, &mut program, first_use);

        let more = world.board().used_bytes(0) - before;
        assert!(more >= 60 * MIB, "{load}, {get}, {first_use}: {more}");
        assert!(world.snapshot().ooms.is_empty(), "{}", world.log());
        let again = format!("alloc 60!; alloc 20; free; {load} 60; {get}; {first_use}");
        steps(&world, &mut program, &again);
        let snapshot = world.snapshot();
        let record = snapshot.ooms.last().expect("what passed the limit");
        assert_ne!(record.call, "cuMemAlloc_v2", "{load}, {get}, {first_use}");
        steps(&world, &mut program, "alloc 1!");
        // Launched again, it takes nothing.
        let booked = world.booked(0);
        steps(&world, &mut program, first_use);
        assert_eq!(world.booked(0), booked, "{load}, {get}, {first_use}");
    }
}

#[test]
fn a_first_launch_counts_when_it_takes_memory() {
    check("data", "function", "launch");
    check("data_ex", "function", "cooperative");
    check("file", "function", "launch_ex");
    check("fat_binary", "function", "launch_old");
    check("linked", "functions", "launch");
}

#[test]
fn a_first_launch_of_a_kernel_of_a_library_counts() {
    check("library", "kernel", "launch");
    check("library", "kernels", "launch_ex");
    check("library", "kernel_function", "launch");
}

#[test]
fn what_loads_code_by_another_call_counts() {
    check("data", "function", "load");
    check("data", "function", "global");
}

#[test]
fn a_graphs_first_launch_counts_when_it_takes_memory() {
    check("data", "function; captured; instantiate", "graph_launch");
}

/// A kernel node is added to a graph with a function that was never launched. The usual driver loads the function when
/// the graph is launched, the contrary one at once.
#[test]
fn the_function_of_an_added_node_counts_when_it_takes_memory() {
    for graph in ["graph", "graph_old", "graph_any"] {
        let first_use = format!("{graph}; instantiate; graph_launch");
        check("data", "function", &first_use);
        check("library", "kernel", &first_use);
    }
}

/// A kernel node of a graph that is not executable yet gets another function, which was never launched. The usual driver
/// loads it when the graph is launched, the contrary one at once.
#[test]
fn the_new_function_of_a_node_counts_before_its_graph_is_instantiated() {
    for change in ["change", "change_old", "change_any"] {
        let first_use = format!("{change}; instantiate; graph_launch");
        check("data 0; function; graph; data", "function", &first_use);
        check("data 0; function; graph; library", "kernel", &first_use);
    }
}

/// The form of `cuGraphNodeSetParams` that came with CUDA 13.4.
#[test]
fn the_new_function_of_a_node_counts_by_the_newest_call() {
    let config = Config {
        driver_version: 13_040,
        ..Config::default()
    };
    let first_use = "change_newest; instantiate; graph_launch";
    check_on(
        &config,
        "data 0; function; graph; data",
        "function",
        first_use,
    );
}

/// A kernel node of an executable graph gets another function, which was never launched. The usual driver loads it when
/// the graph is launched, the contrary one at once.
#[test]
fn the_new_function_of_a_graphs_node_counts_when_it_takes_memory() {
    let graph = "data 0; function; graph; instantiate; graph_launch";
    for exchange in ["exchange", "exchange_old", "exchange_any"] {
        let first_use = format!("{exchange}; graph_launch");
        check(&format!("{graph}; data"), "function", &first_use);
        check(&format!("{graph}; library"), "kernel", &first_use);
    }
}

/// An executable graph takes over a captured graph, whose kernel was never launched. The usual driver loads it when the
/// graph is launched, the contrary one at once.
#[test]
fn the_functions_of_a_graph_that_is_taken_over_count_when_they_take_memory() {
    let graph = "data 0; function; captured; instantiate; graph_launch";
    for update in ["update", "update_old"] {
        let first_use = format!("captured; {update}; graph_launch");
        check(&format!("{graph}; data"), "function", &first_use);
        check(&format!("{graph}; library"), "kernel", &first_use);
    }
}

#[test]
fn a_captured_launch_is_not_the_first_one() {
    let world = world(false);
    let mut program = start(&world, "LAZY");
    steps(
        &world,
        &mut program,
        "ready; data 60; function; captured; captured; launch; alloc 60!; unload; alloc 90",
    );
}

/// The charge of a first use goes with its module.
#[test]
fn an_unloaded_module_gives_its_first_use_back() {
    for contrary in [false, true] {
        let world = world(contrary);
        let mut program = start(&world, "LAZY");
        for round in 0..3 {
            let all = "data 60; function; launch; alloc 60!; unload; alloc 90; free";
            let first = if round == 0 { "ready; " } else { "" };
            steps(&world, &mut program, &format!("{first}{all}"));
        }
    }
}

/// The library unloads a module that exceeded the limit: neither memory nor a charge stays, and the program has no
/// module.
#[test]
fn a_load_that_passes_the_limit_is_undone() {
    for contrary in [false, true] {
        let world = world(contrary);
        let mut program = start(&world, "EAGER");
        steps(&world, &mut program, "ready");
        let before = (world.board().used_bytes(0), world.booked(0));

        for load in ["file", "data", "data_ex", "fat_binary", "linked", "library"] {
            steps(&world, &mut program, &format!("{load} 150!; is_none"));
            let after = (world.board().used_bytes(0), world.booked(0));
            assert_eq!(after, before, "{load}\n{}", world.log());
        }

        let records = world.snapshot().ooms;
        assert_eq!(records.len(), 6);
        steps(
            &world,
            &mut program,
            "alloc 100; free; data 60; unload; alloc 100",
        );
    }
}

/// A context that uses a lazily loaded library loads it. That is not undone, since the library has a name
/// already, but it counts, and goes with the library.
#[test]
fn memory_of_a_library_counts_when_a_context_uses_it() {
    for contrary in [false, true] {
        let world = world(contrary);
        let mut program = start(&world, "LAZY");
        steps(&world, &mut program, "ready");
        let before = (world.board().used_bytes(0), world.booked(0));

        steps(
            &world,
            &mut program,
            "library 150; kernel_function; launch; alloc 1!; library_unload",
        );

        let after = (world.board().used_bytes(0), world.booked(0));
        assert_eq!(after, before, "{}", world.log());
        assert!(!world.snapshot().ooms.is_empty());
        steps(&world, &mut program, "alloc 100");
    }
}
