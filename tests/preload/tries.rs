//! For each name that takes, frees or lends device memory: a program that tries to take twice its limit by that name
//! alone. A new name in the table of classes without a recipe here does not compile.
//!
//! After each step the held memory on the simulated board is at most the limit, and at most the charges. The same
//! program also runs without the library, so that a recipe that takes nothing does not pass for a limit that holds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;

use cuda_api::{Class, PROC_ADDRESSES, symbols_of};
use cuda_sim::Config;

use crate::support::{MIB, World, all_contrary};

/// The container's limit; the program tries to take 20 pieces of 16 MiB, which is more than twice that.
const LIMIT: u64 = 144 * MIB;

/// The effect of a name on device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// Takes it: refused, with a record, and without the library not refused.
    Takes,
    /// Gives it back: makes no room before the driver has it again, and room afterwards.
    Gives,
    /// Neither, for this reason.
    Nothing(&'static str),
}

use Does::{Gives, Nothing, Takes};

/// A name, the recipe of `tries.c` that uses it, and its effect.
type Recipe = (&'static str, &'static str, Does);

#[rustfmt::skip]
const RECIPES: &[Recipe] = &[
    ("cuArray3DCreate", "array3d_v1", Takes),
    ("cuArray3DCreate_v2", "array3d", Takes),
    ("cuArrayCreate", "array_v1", Takes),
    ("cuArrayCreate_v2", "array", Takes),
    ("cuArrayDestroy", "array_destroy", Gives),
    ("cuCheckpointOperationComplete", "checkpoint_complete", Nothing("what a checkpoint gives is not to be had by the process that is checkpointed")),
    ("cuCheckpointProcessCheckpoint", "checkpoint", Nothing("what a checkpoint gives is not to be had by the process that is checkpointed")),
    ("cuCheckpointProcessRestore", "checkpoint", Nothing("a process that runs has nothing to restore")),
    ("cuCtxSetLimit", "set_limit", Takes),
    ("cuDestroyExternalMemory", "external_destroy", Gives),
    ("cuDeviceGraphMemTrim", "graph_trim", Gives),
    ("cuGraphAddMemAllocNode", "graph_alloc", Takes),
    ("cuGraphAddNode", "graph_node", Takes),
    ("cuGraphAddNode_v2", "graph_node_v2", Takes),
    ("cuGraphAddNode_v3", "graph_node_v2", Takes),
    ("cuGraphClone", "graph_clone", Takes),
    ("cuGraphDestroy", "graph_destroy", Gives),
    ("cuGraphExecDestroy", "exec_destroy", Gives),
    ("cuGraphExecUpdate", "graph_update", Takes),
    ("cuGraphExecUpdate_v2", "graph_update_v2", Takes),
    ("cuGraphMemFreeNodeGetParams", "free_node_params", Nothing("it tells a pointer")),
    ("cuGraphUpload", "graph_upload", Takes),
    ("cuGraphUpload_ptsz", "graph_upload", Takes),
    ("cuGraphicsMapResources", "graphics_map", Nothing("the simulated board has no graphics API")),
    ("cuGraphicsMapResources_ptsz", "graphics_map", Nothing("the simulated board has no graphics API")),
    ("cuGraphicsUnregisterResource", "graphics_unregister", Nothing("the simulated board has no graphics API")),
    ("cuImportExternalMemory", "external", Takes),
    ("cuIpcCloseMemHandle", "ipc_close", Gives),
    ("cuIpcOpenMemHandle", "ipc_open", Takes),
    ("cuIpcOpenMemHandle_v2", "ipc_open", Takes),
    ("cuMemAlloc", "alloc_v1", Takes),
    ("cuMemAllocAsync", "async", Takes),
    ("cuMemAllocAsync_ptsz", "async", Takes),
    ("cuMemAllocFromPoolAsync", "from_pool", Takes),
    ("cuMemAllocFromPoolAsync_ptsz", "from_pool", Takes),
    ("cuMemAllocManaged", "managed", Takes),
    ("cuMemAllocPitch", "pitch_v1", Takes),
    ("cuMemAllocPitch_v2", "pitch", Takes),
    ("cuMemAlloc_v2", "alloc", Takes),
    ("cuMemCreate", "create", Takes),
    ("cuMemFree", "free_v1", Gives),
    ("cuMemFreeAsync", "free_async", Gives),
    ("cuMemFreeAsync", "free_async_blocked", Gives),
    ("cuMemFreeAsync", "free_plain_blocked", Gives),
    ("cuMemFreeAsync_ptsz", "free_async", Gives),
    ("cuMemFreeAsync_ptsz", "free_async_blocked", Gives),
    ("cuMemFree_v2", "free", Gives),
    ("cuMemGetMemPool", "get_pool", Takes),
    ("cuMemHostRegister", "register", Nothing("the memory is the host's")),
    ("cuMemHostRegister_v2", "register", Nothing("the memory is the host's")),
    ("cuMemImportFromShareableHandle", "import", Takes),
    ("cuMemMap", "map", Takes),
    ("cuMemMapArrayAsync", "map_array", Takes),
    ("cuMemMapArrayAsync_ptsz", "map_array", Takes),
    ("cuMemPoolCreate", "pool_create", Takes),
    ("cuMemPoolDestroy", "pool_destroy", Gives),
    ("cuMemPoolImportFromShareableHandle", "pool_import", Takes),
    ("cuMemPoolImportPointer", "import_pointer", Takes),
    ("cuMemPoolSetAttribute", "pool_attribute", Takes),
    ("cuMemPoolTrimTo", "trim", Gives),
    ("cuMemPrefetchAsync", "prefetch", Takes),
    ("cuMemPrefetchAsync_ptsz", "prefetch", Takes),
    ("cuMemPrefetchAsync_v2", "prefetch_v2", Takes),
    ("cuMemPrefetchAsync_v2_ptsz", "prefetch_v2", Takes),
    ("cuMemPrefetchBatchAsync", "prefetch_batch", Takes),
    ("cuMemPrefetchBatchAsync_ptsz", "prefetch_batch", Takes),
    ("cuMemRelease", "release", Gives),
    ("cuMemRetainAllocationHandle", "retain", Takes),
    ("cuMemSetMemPool", "set_pool", Takes),
    ("cuMemUnmap", "unmap", Gives),
    ("cuMipmappedArrayCreate", "mipmap", Takes),
    ("cuMipmappedArrayDestroy", "mipmap_destroy", Gives),
    ("cuMulticastBindAddr", "bind_addr", Takes),
    ("cuMulticastBindAddr_v2", "bind_addr_v2", Takes),
    ("cuMulticastBindMem", "bind_mem", Takes),
    ("cuMulticastBindMem_v2", "bind_mem_v2", Takes),
    ("cuMulticastCreate", "multicast", Nothing("addresses of memory that others have")),
    ("cuMulticastUnbind", "unbind", Gives),
    ("cuCtxAttach", "attach", Nothing("one more reference to the current context")),
    ("cuCtxCreate", "context", Takes),
    ("cuCtxCreate_v2", "context", Takes),
    ("cuCtxCreate_v3", "context_v3", Takes),
    ("cuCtxCreate_v4", "context_v4", Takes),
    ("cuCtxDestroy", "context_destroy", Gives),
    ("cuCtxDestroy_v2", "context_destroy", Gives),
    ("cuCtxDetach", "context_destroy", Gives),
    ("cuCtxFromGreenCtx", "from_green", Takes),
    ("cuDevicePrimaryCtxRelease", "primary_release", Gives),
    ("cuDevicePrimaryCtxRelease_v2", "primary_release", Gives),
    ("cuDevicePrimaryCtxReset", "primary_release", Gives),
    ("cuDevicePrimaryCtxReset_v2", "primary_release", Gives),
    ("cuDevicePrimaryCtxRetain", "retain_primary", Takes),
    ("cuGreenCtxCreate", "green", Takes),
    ("cuGreenCtxDestroy", "green_destroy", Gives),
    ("cuLibraryLoadData", "library", Takes),
    ("cuLibraryLoadFromFile", "library_file", Takes),
    ("cuLibraryUnload", "library_unload", Gives),
    ("cuModuleLoad", "module_file", Takes),
    ("cuModuleLoadData", "module", Takes),
    ("cuModuleLoadDataEx", "module_ex", Takes),
    ("cuModuleLoadFatBinary", "module", Takes),
    ("cuModuleUnload", "module_unload", Gives),
    // Names of other classes: those that make a graph or an image take its memory, and those that choose a pool.
    ("cuDeviceGetDefaultMemPool", "default_pool", Takes),
    ("cuDeviceGetMemPool", "default_pool", Takes),
    ("cuDeviceSetMemPool", "device_set_pool", Takes),
    ("cuFuncLoad", "func_load", Takes),
    ("cuGraphAddChildGraphNode", "child_graph", Takes),
    ("cuGraphInstantiate", "instantiate", Takes),
    ("cuGraphInstantiateWithFlags", "instantiate_flags", Takes),
    ("cuGraphInstantiateWithParams", "instantiate_params", Takes),
    ("cuGraphInstantiateWithParams_ptsz", "instantiate_params", Takes),
    ("cuGraphInstantiate_v2", "instantiate", Takes),
    ("cuGraphLaunch", "graph_work", Takes),
    ("cuGraphLaunch_ptsz", "graph_work", Takes),
    ("cuGreenCtxStreamCreate", "green_stream", Takes),
    ("cuKernelGetFunction", "kernel_function", Takes),
    ("cuLaunchKernel", "launch", Takes),
    ("cuLaunchKernel_ptsz", "launch", Takes),
    ("cuLibraryGetGlobal", "library_global", Takes),
    ("cuLibraryGetKernel", "library_kernel", Takes),
    ("cuLibraryGetModule", "library_module", Takes),
    ("cuMemGetDefaultMemPool", "get_pool", Takes),
    ("cuModuleGetFunction", "get_function", Takes),
    ("cuModuleGetGlobal", "module_global_v1", Takes),
    ("cuModuleGetGlobal_v2", "module_global", Takes),
    ("cuStreamEndCapture", "end_capture", Takes),
    ("cuStreamEndCapture_ptsz", "end_capture", Takes),
];

const fn are_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

const fn has_recipe(name: &str) -> bool {
    let mut at = 0;
    while at < RECIPES.len() {
        if are_same(RECIPES[at].0, name) {
            return true;
        }
        at += 1;
    }
    false
}

/// Fails the build with the name that has no recipe.
const fn all_have_recipes(names: &[&str]) {
    let mut at = 0;
    while at < names.len() {
        if !has_recipe(names[at]) {
            panic!("{}", names[at]);
        }
        at += 1;
    }
}

const _: () = all_have_recipes(symbols_of(Class::Alloc));
const _: () = all_have_recipes(symbols_of(Class::Context));

/// The configurations in which a row counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    Both,
    Usual,
    Contrary,
}

use On::{Both, Contrary, Usual};

/// A recipe, on which driver, and why.
type Row = (On, &'static str, &'static str);

/// Recipes that take less than twice the limit (or give nothing back) without the library too, since the
/// simulated driver does not do it: that the library holds them is not shown.
#[rustfmt::skip]
const NOT_SIMULATED: &[Row] = &[
    (Both, "cuCheckpointOperationComplete by checkpoint_complete", "it came with CUDA 13.4"),
    (Contrary, "cuCtxFromGreenCtx by from_green", "a green context takes nothing"),
    (Both, "cuGraphAddChildGraphNode by child_graph", "a child graph with allocations is refused"),
    (Both, "cuGraphClone by graph_clone", "a graph with allocations is not cloned"),
    (Usual, "cuGraphExecUpdate by graph_update", "a graph with allocations is not updated"),
    (Usual, "cuGraphExecUpdate_v2 by graph_update_v2", "a graph with allocations is not updated"),
    (Contrary, "cuGreenCtxCreate by green", "a green context takes nothing"),
    (Contrary, "cuGreenCtxStreamCreate by green_stream", "a green context takes nothing"),
    (Both, "cuModuleGetGlobal by module_global_v1", "the first form of cuModuleGetGlobal is not there"),
];

/// How one run went.
#[derive(Debug, Default)]
struct Run {
    most: u64,
    refused: bool,
    given: bool,
    retaken: bool,
    absent: bool,
    trouble: Vec<String>,
}

/// Runs one recipe, on a board of its own.
fn run(program: &Path, recipe: &Recipe, config: &Config, native: bool) -> Run {
    let (name, how, _) = recipe;
    let world = World::with_limits_on(config, &[LIMIT]);
    let row = PROC_ADDRESSES.iter().find(|row| row.symbol == *name);
    let (base, version, flags) = row.map_or((*name, 0, 0), |row| {
        (row.name, row.since, u8::from(row.per_thread) * 2)
    });
    let mut command = world
        .command(program)
        .arg(name)
        .arg(base)
        .arg(version.to_string())
        .arg(flags.to_string())
        .arg(how);
    if native {
        command = command.native();
    }
    let mut running = command.start();
    let board = world.board();
    let mut run = Run::default();
    loop {
        let line = running.line();
        if std::env::var_os("VGPU_TEST_TRY").is_some() {
            let (held, booked) = (board.used_bytes(0) / MIB, world.booked(0) / MIB);
            println!("{name} by {how}, {native}: {line}, {held} held, {booked} booked");
        }
        let (label, code) = line.split_once(' ').unwrap_or(("ended early", ""));
        match (label, code) {
            ("absent", _) => run.absent = true,
            ("take" | "+take", "2") => run.refused = true,
            ("give", "0") => run.given = true,
            ("retake", "0") => run.retaken = run.given,
            ("begin", code) if code != "0" => run.trouble.push(format!("no context: {code}")),
            ("ended early", _) => run.trouble.push("it ended early".to_owned()),
            _ => {}
        }
        // Memory of a process outside the container is also on the board while that process lives.
        if !label.starts_with('+') {
            let held = board.used_bytes(0);
            run.most = run.most.max(held);
            let booked = world.booked(0);
            let told = |what: &str| {
                let (held, booked) = (held / MIB, booked / MIB);
                format!("{what} after {line:?}: {held} MiB held, {booked} MiB booked")
            };
            if !native && run.trouble.is_empty() {
                if held > LIMIT {
                    run.trouble.push(told("above the limit"));
                } else if booked < held {
                    run.trouble.push(told("not booked"));
                }
            }
        }
        if label == "ended early" {
            break;
        }
        running.tell("");
        if label == "done" || label == "absent" {
            break;
        }
    }
    let code = running.end();
    if code != Some(0) && run.trouble.is_empty() {
        run.trouble.push(format!("it ended with {code:?}"));
    }
    if run.refused && !native && world.snapshot().ooms.is_empty() {
        run.trouble.push("refused without a record".to_owned());
    }
    run
}

/// The failure of a recipe, if any; and whether the simulated driver shows it.
fn judge(program: &Path, recipe: &Recipe, config: &Config) -> (Option<String>, bool) {
    let limited = run(program, recipe, config, false);
    let free = run(program, recipe, config, true);
    let passes_natively = free.most > 2 * LIMIT;
    let trouble = match recipe.2 {
        _ if !free.trouble.is_empty() => Some(format!("without the library: {}", free.trouble[0])),
        _ if !limited.trouble.is_empty() => Some(limited.trouble[0].clone()),
        Takes if passes_natively && !limited.refused => Some("never refused".to_owned()),
        Gives if free.retaken && !limited.retaken => Some("no room after it was given".to_owned()),
        Nothing(_) if free.most > LIMIT => Some("it takes memory".to_owned()),
        _ => None,
    };
    let shown = match recipe.2 {
        Takes => passes_natively,
        Gives => free.retaken,
        Nothing(_) => true,
    };
    (trouble, shown && !free.absent)
}

fn every_recipe(config: &Config) {
    let tools = World::with_board(1, config);
    let program = tools.program("tries").linked();
    program.build();
    let file = tools.path("tries");
    let next = Mutex::new(RECIPES.iter());
    // One name, with all its steps, for debugging.
    let only = std::env::var("VGPU_TEST_TRY").ok();
    let wrong = Mutex::new(BTreeMap::new());
    let hidden = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let Some(recipe) = next.lock().unwrap().next() else {
                        break;
                    };
                    if only.as_ref().is_some_and(|only| only != recipe.0) {
                        continue;
                    }
                    let (trouble, shown) = judge(&file, recipe, config);
                    let title = format!("{} by {}", recipe.0, recipe.1);
                    if let Some(trouble) = trouble {
                        wrong.lock().unwrap().insert(title, trouble);
                    } else if !shown {
                        hidden.lock().unwrap().insert(title);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    let hidden = hidden.into_inner().unwrap();
    if only.is_some() {
        return println!("{wrong:#?}\n{hidden:#?}");
    }
    let mode = if config.contrary || all_contrary() {
        Contrary
    } else {
        Usual
    };
    let rows = |list: &'static [Row]| -> BTreeMap<_, _> {
        let here = list.iter().filter(|(on, ..)| *on == Both || *on == mode);
        here.map(|(_, title, reason)| (*title, *reason)).collect()
    };
    let not_simulated = rows(NOT_SIMULATED);
    let mut faults = Vec::new();
    for (title, trouble) in &wrong {
        faults.push(format!("{title}: {trouble}"));
    }
    for title in &hidden {
        if !not_simulated.contains_key(title.as_str()) {
            faults.push(format!(
                "{title}: it takes nothing without the library either"
            ));
        }
    }
    for (title, reason) in not_simulated {
        if !hidden.contains(title) && !wrong.contains_key(title) {
            faults.push(format!("{title} is simulated; its row goes ({reason})"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_name_takes_more_than_the_limit() {
    every_recipe(&Config {
        driver_version: 13_020,
        ..Config::default()
    });
}

#[test]
fn no_name_takes_more_than_the_limit_of_the_contrary_driver() {
    every_recipe(&Config {
        driver_version: 13_020,
        contrary: true,
        ..Config::default()
    });
}
