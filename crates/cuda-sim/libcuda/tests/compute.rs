//! Streams, events, launches, captures and graphs, as a C program sees them: through the exported
//! functions, on a clock that jumps, so that every time is exact and none is the machine's.
//!
//! Each test runs in a process of its own, since a process has one driver: here the one that is linked into this
//! program, where the other files load the shared object.
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "every line here is a C call with values made on the line above"
)]

use std::ffi::c_void;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda as _;
use cuda_api::driver::*;
use cuda_sim::clock::ClockKind;
use cuda_sim::{Board, Config};

macro_rules! declare {
    ($(fn $name:ident($($arg:ident: $ty:ty),*);)*) => {
        #[allow(dead_code, reason = "only a part of the driver is tested here")]
        unsafe extern "C-unwind" { $(fn $name($($arg: $ty),*) -> CuResult;)* }
    };
}
cuda_api::driver_functions!(declare);

/// Runs a test's body alone: in a new process, on a new board, which the script makes. Its lines that
/// begin with `env` are settings of the process.
fn alone(test: &str, script: &str, body: impl FnOnce()) {
    if std::env::var_os("VGPU_SIM_TEST_ALONE").is_some_and(|name| name == *test) {
        body();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script_path = directory.path().join("script");
    let (settings, lines): (Vec<&str>, Vec<&str>) =
        script.lines().partition(|line| line.starts_with("env "));
    std::fs::write(&script_path, lines.join("\n")).unwrap();
    let settings = settings
        .iter()
        .filter_map(|line| line.trim_start_matches("env ").split_once('='));
    let ran = Command::new(std::env::current_exe().unwrap())
        .args([&*format!("compute::{test}"), "--exact", "--nocapture"])
        .env("VGPU_SIM_TEST_ALONE", test)
        .env("VGPU_SIM_BOARD", directory.path().join("board"))
        .env("VGPU_SIM_CLOCK", "jump")
        .env("VGPU_SIM_SCRIPT", &script_path)
        .envs(settings)
        .output()
        .unwrap();
    assert!(
        ran.status.success() && String::from_utf8_lossy(&ran.stdout).contains("1 passed"),
        "{test} in its process: {}\n{}{}",
        ran.status,
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr)
    );
}

macro_rules! test {
    ($(#[$attr:meta])* fn $name:ident() $body:block) => {
        test! { $(#[$attr])* fn $name() with "" $body }
    };
    ($(#[$attr:meta])* fn $name:ident() with $script:literal $body:block) => {
        $(#[$attr])*
        #[test]
        fn $name() {
            alone(stringify!($name), $script, || unsafe { $body });
        }
    };
}

#[track_caller]
fn ok(code: CuResult) {
    assert_eq!(code, CuResult::SUCCESS);
}

const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 table[256];
.visible .entry step__100us(.param .u64 p0) { ret; }
.visible .entry step__300us() { ret; }
.visible .entry step__1ms() { ret; }
.visible .entry wait_flag(.param .u64 p0) { ret; }
.visible .entry meet() { ret; }
.visible .entry sleep(.param .u64 p0) { ret; }
\0";

/// A context, and the kernels above.
struct Gpu {
    context: CuContext,
    module: CuModule,
}

impl Gpu {
    unsafe fn new() -> Self {
        unsafe {
            ok(cuInit(0));
            let (mut context, mut module) = (null_mut(), null_mut());
            ok(cuCtxCreate_v2(&raw mut context, 0, CuDevice(0)));
            ok(cuModuleLoadData(&raw mut module, PTX.as_ptr().cast()));
            Self { context, module }
        }
    }

    unsafe fn function(&self, name: &str) -> CuFunction {
        unsafe {
            let name = std::ffi::CString::new(name).unwrap();
            let mut function = null_mut();
            ok(cuModuleGetFunction(
                &raw mut function,
                self.module,
                name.as_ptr(),
            ));
            function
        }
    }
}

unsafe fn stream(flags: u32) -> CuStream {
    unsafe {
        let mut stream = null_mut();
        ok(cuStreamCreate(&raw mut stream, flags));
        stream
    }
}

unsafe fn event() -> CuEvent {
    unsafe {
        let mut event = null_mut();
        ok(cuEventCreate(&raw mut event, 0));
        event
    }
}

unsafe fn launch(function: CuFunction, stream: CuStream) -> CuResult {
    unsafe {
        cuLaunchKernel(
            function,
            1,
            1,
            1,
            32,
            1,
            1,
            0,
            stream,
            null_mut(),
            null_mut(),
        )
    }
}

unsafe fn launch_with(function: CuFunction, stream: CuStream, argument: u64) -> CuResult {
    unsafe {
        let mut argument = argument;
        let mut params = [(&raw mut argument).cast::<c_void>()];
        let params = params.as_mut_ptr();
        cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params, null_mut())
    }
}

unsafe fn elapsed_us(start: CuEvent, end: CuEvent) -> f32 {
    unsafe {
        let mut milliseconds = 0.0;
        ok(cuEventElapsedTime(&raw mut milliseconds, start, end));
        (milliseconds * 1000.0).round()
    }
}

const NON_BLOCKING: u32 = 1;
const DEFAULT: CuStream = null_mut();

test! {
    fn events_around_kernels_tell_their_time() {
        let gpu = Gpu::new();
        let (start, end) = (event(), event());

        ok(cuEventRecord(start, DEFAULT));
        for _ in 0..3 {
            ok(launch(gpu.function("step__300us"), DEFAULT));
        }
        ok(cuEventRecord(end, DEFAULT));
        assert_eq!(cuEventQuery(end), CuResult::NOT_READY);
        ok(cuEventSynchronize(end));

        assert_eq!(elapsed_us(start, end), 900.0);
    }
}

test! {
    fn legacy_stream_waits_for_blocking_streams_only() {
        let gpu = Gpu::new();
        let kernel = gpu.function("step__300us");
        let (blocking, other) = (stream(0), stream(NON_BLOCKING));
        let (start, end) = (event(), event());

        ok(cuEventRecord(start, DEFAULT));
        ok(launch(kernel, blocking));
        ok(launch(kernel, other));
        ok(launch(kernel, DEFAULT));
        ok(cuEventRecord(end, DEFAULT));
        ok(cuCtxSynchronize());

        // The blocking one first, then the legacy one; the third beside them.
        assert_eq!(elapsed_us(start, end), 600.0);
        let board = Board::from_env().unwrap();
        assert_eq!(board.exec().unwrap().truth(0)[0].busy_ns, 600_000);
    }
}

test! {
    fn blocking_stream_waits_for_the_legacy_stream() {
        let gpu = Gpu::new();
        let kernel = gpu.function("step__300us");
        let (blocking, other) = (stream(0), stream(NON_BLOCKING));
        let (first, second) = (event(), event());
        let start = event();
        ok(cuEventRecord(start, other));

        ok(launch(kernel, DEFAULT));
        ok(cuEventRecord(first, blocking));
        ok(cuEventRecord(second, other));
        ok(cuCtxSynchronize());

        assert_eq!(elapsed_us(start, first), 300.0);
        assert_eq!(elapsed_us(start, second), 0.0);
    }
}

test! {
    fn per_thread_default_streams_are_their_threads_own() {
        let gpu = Gpu::new();
        let kernel = gpu.function("step__300us");
        let id = || {
            let mut id = 0;
            ok(cuStreamGetId_ptsz(null_mut(), &raw mut id));
            id
        };
        let own = id();
        let context = gpu.context as usize;
        let others = std::thread::spawn(move || {
            ok(cuCtxSetCurrent(std::ptr::with_exposed_provenance_mut(context)));
            id()
        });

        assert_eq!(own, id());
        assert_ne!(own, others.join().unwrap());
        ok(cuLaunchKernel_ptsz(kernel, 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), null_mut()));
        assert_eq!(cuStreamQuery_ptsz(null_mut()), CuResult::NOT_READY);
        ok(cuStreamSynchronize_ptsz(null_mut()));
    }
}

test! {
    fn a_stream_waits_for_another_ones_event() {
        let gpu = Gpu::new();
        let (one, two) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let (start, middle, end) = (event(), event(), event());

        ok(cuEventRecord(start, one));
        ok(launch(gpu.function("step__300us"), one));
        ok(cuEventRecord(middle, one));
        ok(cuStreamWaitEvent(two, middle, 0));
        ok(launch(gpu.function("step__100us"), two));
        ok(cuEventRecord(end, two));
        ok(cuStreamSynchronize(two));

        assert_eq!(elapsed_us(start, end), 400.0);
    }
}

static SEEN: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" fn note(data: *mut c_void) {
    // The value before it, times ten, plus its own.
    let own = data.addr() as u32;
    SEEN.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |seen| {
        Some(seen * 10 + own)
    })
    .unwrap();
}

fn number(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

test! {
    fn host_functions_and_copies_run_in_stream_order() {
        let gpu = Gpu::new();
        let own = stream(NON_BLOCKING);
        let mut device = CuDevicePtr(0);
        ok(cuMemAlloc_v2(&raw mut device, 4));
        unsafe extern "C-unwind" fn fill(data: *mut c_void) {
            unsafe { data.cast::<u32>().write(7) };
        }
        let (mut source, mut result) = (1_u32, 0_u32);
        let source = &raw mut source;

        ok(launch(gpu.function("step__100us"), own));
        ok(cuLaunchHostFunc(own, Some(note), number(1)));
        ok(cuLaunchHostFunc(own, Some(fill), source.cast()));
        ok(cuMemcpyHtoDAsync_v2(device, source.cast(), 4, own));
        ok(cuLaunchHostFunc(own, Some(note), number(2)));
        ok(cuMemcpyDtoHAsync_v2((&raw mut result).cast(), device, 4, own));
        ok(cuStreamSynchronize(own));

        assert_eq!(SEEN.load(Ordering::SeqCst), 12);
        assert_eq!(result, 7);
    }
}

test! {
    fn a_stream_waits_for_a_value_that_another_one_writes() {
        let gpu = Gpu::new();
        let (one, two) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let mut word = CuDevicePtr(0);
        ok(cuMemAlloc_v2(&raw mut word, 4));
        ok(cuMemsetD32_v2(word, 0, 1));
        let (start, end) = (event(), event());

        ok(cuEventRecord(start, one));
        ok(cuStreamWaitValue32_v2(two, word, 5, 1));
        ok(cuEventRecord(end, two));
        ok(launch(gpu.function("step__300us"), one));
        ok(cuStreamWriteValue32_v2(one, word, 5, 0));
        ok(cuStreamSynchronize(two));

        assert_eq!(elapsed_us(start, end), 300.0);
    }
}

test! {
    fn a_kernel_spins_for_a_flag_and_two_meet() with "kernel wait_flag flag 50us\nkernel meet peers 2 20us\nkernel sleep arg us" {
        let gpu = Gpu::new();
        let (one, two) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let mut word = CuDevicePtr(0);
        ok(cuMemAlloc_v2(&raw mut word, 4));
        ok(cuMemsetD32_v2(word, 0, 1));
        let (start, middle, end) = (event(), event(), event());

        ok(cuEventRecord(start, one));
        ok(launch_with(gpu.function("wait_flag"), one, word.0));
        ok(cuEventRecord(middle, one));
        ok(launch_with(gpu.function("sleep"), two, 70));
        ok(cuStreamWriteValue32_v2(two, word, 1, 0));
        ok(cuStreamSynchronize(one));
        assert_eq!(elapsed_us(start, middle), 120.0);

        ok(launch(gpu.function("meet"), one));
        ok(launch(gpu.function("meet"), two));
        ok(cuEventRecord(end, two));
        ok(cuCtxSynchronize());
        assert_eq!(elapsed_us(middle, end), 20.0);
    }
}

test! {
    fn a_launch_attribute_may_carry_the_time() {
        let gpu = Gpu::new();
        let (start, end) = (event(), event());
        let mut value = CuLaunchAttributeValue { words: [0; 8] };
        value.words[0] = 12_000;
        let id = cuda_sim::script::LAUNCH_ATTRIBUTE_NS;
        let mut attribute = CuLaunchAttribute { id, pad: [0; 4], value };
        let config = CuLaunchConfig {
            grid_x: 1, grid_y: 1, grid_z: 1, block_x: 1, block_y: 1, block_z: 1, shared_bytes: 0,
            stream: null_mut(), attributes: &raw mut attribute, num_attributes: 1,
        };

        ok(cuEventRecord(start, DEFAULT));
        ok(cuLaunchKernelEx(&raw const config, gpu.function("step__300us"), null_mut(), null_mut()));
        ok(cuEventRecord(end, DEFAULT));
        ok(cuCtxSynchronize());

        assert_eq!(elapsed_us(start, end), 12.0);
    }
}

test! {
    fn bad_launches_are_refused() {
        let gpu = Gpu::new();
        let kernel = gpu.function("step__300us");
        let with = |grid, block, shared| {
            cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, shared, DEFAULT, null_mut(), null_mut())
        };

        assert_eq!(with(0, 1, 0), CuResult::INVALID_VALUE);
        assert_eq!(with(1, 2048, 0), CuResult::INVALID_VALUE);
        assert_eq!(with(1, 1, 1 << 20), CuResult::INVALID_VALUE);
        assert_eq!(launch(null_mut(), DEFAULT), CuResult::INVALID_HANDLE);
        let mut function = null_mut();
        let missing = c"no_such_kernel".as_ptr();
        assert_eq!(cuModuleGetFunction(&raw mut function, gpu.module, missing), CuResult::NOT_FOUND);
        let mut module = null_mut();
        assert_eq!(cuModuleLoadData(&raw mut module, c"junk".as_ptr().cast()), CuResult::INVALID_PTX);
    }
}

test! {
    fn a_module_takes_memory_and_its_variables_can_be_written() {
        let gpu = Gpu::new();
        let board = Board::from_env().unwrap();
        let overhead = || board.processes(0)[0].overhead_bytes;
        let before = overhead();
        let (mut module, mut address, mut bytes) = (null_mut(), CuDevicePtr(0), 0);

        ok(cuModuleLoadData(&raw mut module, PTX.as_ptr().cast()));
        assert_eq!(overhead() - before, 2 << 20);
        ok(cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, c"table".as_ptr()));
        assert_eq!(bytes, 256);
        ok(cuMemsetD8_v2(address, 1, bytes));
        ok(cuModuleUnload(module));

        assert_eq!(overhead(), before);
        assert!(!gpu.module.is_null());
    }
}

test! {
    fn a_destroyed_context_takes_its_work_and_memory_along() {
        let gpu = Gpu::new();
        let board = Board::from_env().unwrap();
        let own = stream(0);
        for _ in 0..50 {
            ok(launch(gpu.function("step__300us"), own));
        }

        ok(cuCtxDestroy_v2(gpu.context));

        assert_eq!(board.used_bytes(0), 0);
        assert_eq!(cuStreamQuery(own), CuResult::INVALID_HANDLE);
    }
}

// --- capture --------------------------------------------------------------------------------

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

unsafe fn end_capture(stream: CuStream) -> (CuResult, CuGraph) {
    unsafe {
        let mut graph = null_mut();
        (cuStreamEndCapture(stream, &raw mut graph), graph)
    }
}

unsafe fn count_nodes(graph: CuGraph) -> usize {
    unsafe {
        let mut count = 0;
        ok(cuGraphGetNodes(graph, null_mut(), &raw mut count));
        count
    }
}

test! {
    fn captured_fork_takes_as_long_as_its_longest_branch() {
        let gpu = Gpu::new();
        let (one, two) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let (fork, join, start, end) = (event(), event(), event(), event());

        ok(cuStreamBeginCapture_v2(one, GLOBAL));
        ok(cuEventRecord(fork, one));
        ok(cuStreamWaitEvent(two, fork, 0));
        ok(launch(gpu.function("step__300us"), one));
        ok(launch_with(gpu.function("step__100us"), two, 0));
        ok(cuEventRecord(join, two));
        ok(cuStreamWaitEvent(one, join, 0));
        ok(launch_with(gpu.function("step__100us"), one, 0));
        let (code, graph) = end_capture(one);
        ok(code);
        assert_eq!(count_nodes(graph), 3);

        let mut exec = null_mut();
        ok(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        ok(cuEventRecord(start, one));
        ok(cuGraphLaunch(exec, one));
        ok(cuGraphLaunch(exec, one));
        ok(cuEventRecord(end, one));
        ok(cuStreamSynchronize(one));

        assert_eq!(elapsed_us(start, end), 800.0);
        ok(cuGraphExecDestroy(exec));
        ok(cuGraphDestroy(graph));
    }
}

test! {
    fn an_allocation_or_a_query_spoils_a_capture() {
        let gpu = Gpu::new();
        let own = stream(NON_BLOCKING);
        let (outside, mut memory) = (event(), CuDevicePtr(0));
        ok(cuEventRecord(outside, DEFAULT));
        let calls: [(&str, &dyn Fn() -> CuResult); 4] = [
            ("alloc", &|| cuMemAlloc_v2((&raw const memory).cast_mut(), 64)),
            ("event query", &|| cuEventQuery(outside)),
            ("stream query", &|| cuStreamQuery(own)),
            ("context", &|| cuCtxSynchronize()),
        ];
        for (name, call) in calls {
            ok(cuStreamBeginCapture_v2(own, GLOBAL));
            assert_eq!(call(), CuResult::STREAM_CAPTURE_UNSUPPORTED, "{name}");
            let invalidated = CuResult::STREAM_CAPTURE_INVALIDATED;
            assert_eq!(launch(gpu.function("step__300us"), own), invalidated, "{name}");
            assert_eq!(end_capture(own), (invalidated, null_mut()), "{name}");
        }
        ok(cuMemAlloc_v2(&raw mut memory, 64));
    }
}

test! {
    fn another_threads_call_spoils_a_global_capture_only() {
        let gpu = Gpu::new();
        let own = stream(NON_BLOCKING);
        let context = gpu.context as usize;
        let elsewhere = |mode: Option<u32>| {
            let thread = std::thread::spawn(move || {
                ok(cuCtxSetCurrent(std::ptr::with_exposed_provenance_mut(context)));
                if let Some(mut mode) = mode {
                    ok(cuThreadExchangeStreamCaptureMode(&raw mut mode));
                    assert_eq!(mode, GLOBAL);
                }
                let mut memory = CuDevicePtr(0);
                cuMemAlloc_v2(&raw mut memory, 64)
            });
            thread.join().unwrap()
        };

        for (capture, thread, answer) in [
            (GLOBAL, None, CuResult::STREAM_CAPTURE_UNSUPPORTED),
            (GLOBAL, Some(THREAD_LOCAL), CuResult::SUCCESS),
            (GLOBAL, Some(RELAXED), CuResult::SUCCESS),
            (THREAD_LOCAL, None, CuResult::SUCCESS),
            (RELAXED, None, CuResult::SUCCESS),
        ] {
            ok(cuStreamBeginCapture_v2(own, capture));
            assert_eq!(elsewhere(thread), answer, "{capture} {thread:?}");
            let ended = end_capture(own).0;
            assert_eq!(ended == CuResult::SUCCESS, answer == CuResult::SUCCESS, "{capture} {thread:?}");
        }
    }
}

test! {
    fn relaxed_capture_allows_allocation_but_no_event_query() {
        let gpu = Gpu::new();
        let own = stream(NON_BLOCKING);
        let (captured, outside) = (event(), event());
        ok(cuEventRecord(outside, DEFAULT));
        let mut mode = RELAXED;
        let mut memory = CuDevicePtr(0);

        ok(cuStreamBeginCapture_v2(own, GLOBAL));
        ok(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        ok(cuMemAlloc_v2(&raw mut memory, 64));
        ok(cuEventSynchronize(outside));
        ok(cuEventRecord(captured, own));
        assert_eq!(cuEventQuery(captured), CuResult::CAPTURED_EVENT);
        assert_eq!(end_capture(own).0, CuResult::STREAM_CAPTURE_INVALIDATED);
        assert!(!gpu.module.is_null());
    }
}

test! {
    fn what_a_capture_cannot_be_made_of_is_named() {
        let gpu = Gpu::new();
        let (one, two, blocking) = (stream(NON_BLOCKING), stream(NON_BLOCKING), stream(0));
        let (inner, outside) = (event(), event());
        ok(cuEventRecord(outside, DEFAULT));
        let kernel = gpu.function("step__300us");

        assert_eq!(cuStreamBeginCapture_v2(DEFAULT, GLOBAL), CuResult::STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(end_capture(one).0, CuResult::ILLEGAL_STATE);
        ok(cuStreamBeginCapture_v2(one, GLOBAL));
        assert_eq!(cuStreamBeginCapture_v2(one, GLOBAL), CuResult::ILLEGAL_STATE);
        assert_eq!(cuStreamWaitEvent(one, outside, 0), CuResult::STREAM_CAPTURE_ISOLATION);
        assert_eq!(end_capture(one).0, CuResult::STREAM_CAPTURE_INVALIDATED);

        ok(cuStreamBeginCapture_v2(one, GLOBAL));
        ok(cuEventRecord(inner, one));
        ok(cuStreamWaitEvent(two, inner, 0));
        ok(launch(kernel, two));
        assert_eq!(end_capture(one).0, CuResult::STREAM_CAPTURE_UNJOINED);

        ok(cuStreamBeginCapture_v2(blocking, GLOBAL));
        assert_eq!(launch(kernel, DEFAULT), CuResult::STREAM_CAPTURE_IMPLICIT);
        assert_eq!(end_capture(blocking).0, CuResult::STREAM_CAPTURE_INVALIDATED);

        ok(cuStreamBeginCapture_v2(one, GLOBAL));
        ok(cuStreamBeginCapture_v2(two, GLOBAL));
        ok(cuEventRecord(inner, one));
        assert_eq!(cuStreamWaitEvent(two, inner, 0), CuResult::STREAM_CAPTURE_MERGE);
        assert_eq!(end_capture(one).0, CuResult::STREAM_CAPTURE_INVALIDATED);
        assert_eq!(end_capture(two).0, CuResult::STREAM_CAPTURE_INVALIDATED);
    }
}

test! {
    fn a_joined_stream_may_be_destroyed_before_its_capture_ends() {
        let gpu = Gpu::new();
        let one = stream(NON_BLOCKING);
        let fork = event();
        for (join, answer) in [(true, CuResult::SUCCESS), (false, CuResult::STREAM_CAPTURE_UNJOINED)] {
            let two = stream(NON_BLOCKING);
            ok(cuStreamBeginCapture_v2(one, GLOBAL));
            ok(cuEventRecord(fork, one));
            ok(cuStreamWaitEvent(two, fork, 0));
            ok(launch(gpu.function("step__300us"), two));
            if join {
                ok(cuEventRecord(fork, two));
                ok(cuStreamWaitEvent(one, fork, 0));
            }
            ok(cuStreamDestroy_v2(two));

            assert_eq!(end_capture(one).0, answer);
        }
    }
}

test! {
    fn captured_allocation_holds_memory_from_launch_until_trim() {
        let gpu = Gpu::new();
        let own = stream(NON_BLOCKING);
        let board = Board::from_env().unwrap();
        let alloc = || board.processes(0)[0].alloc_bytes;
        let mut memory = CuDevicePtr(0);

        ok(cuStreamBeginCapture_v2(own, GLOBAL));
        ok(cuMemAllocAsync(&raw mut memory, 1 << 20, own));
        ok(launch_with(gpu.function("step__100us"), own, memory.0));
        ok(cuMemFreeAsync(memory, own));
        let (code, graph) = end_capture(own);
        ok(code);
        assert_eq!((count_nodes(graph), alloc()), (3, 0));

        let mut exec = null_mut();
        ok(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        for _ in 0..3 {
            ok(cuGraphLaunch(exec, own));
        }
        ok(cuStreamSynchronize(own));
        let graph_memory = |attribute: u32| {
            let mut bytes = 0_u64;
            ok(cuDeviceGetGraphMemAttribute(CuDevice(0), attribute, (&raw mut bytes).cast()));
            bytes
        };
        // Mapped in steps of 2 MiB, though nothing is allocated at the moment.
        assert_eq!([0, 1, 2, 3].map(graph_memory), [2 << 20, 2 << 20, 32 << 20, 32 << 20]);
        assert_eq!(alloc(), 32 << 20);

        ok(cuDeviceGraphMemTrim(CuDevice(0)));
        assert_eq!((graph_memory(2), alloc()), (0, 0));
        ok(cuGraphExecDestroy(exec));
        ok(cuGraphDestroy(graph));
    }
}

// --- graphs ---------------------------------------------------------------------------------

unsafe fn kernel_node(graph: CuGraph, after: &[CuGraphNode], function: CuFunction) -> CuGraphNode {
    unsafe {
        let params = CuKernelNodeParams {
            function,
            grid_x: 1,
            grid_y: 1,
            grid_z: 1,
            block_x: 1,
            block_y: 1,
            block_z: 1,
            shared_bytes: 0,
            params: null_mut(),
            extra: null_mut(),
            kernel: null_mut(),
            context: null_mut(),
        };
        let mut node = null_mut();
        let added = cuGraphAddKernelNode_v2(
            &raw mut node,
            graph,
            after.as_ptr(),
            after.len(),
            &raw const params,
        );
        ok(added);
        node
    }
}

test! {
    fn a_graph_of_every_plain_kind_runs_in_its_order() {
        let gpu = Gpu::new();
        let own = stream(NON_BLOCKING);
        let (mut graph, mut memory) = (null_mut(), CuDevicePtr(0));
        ok(cuGraphCreate(&raw mut graph, 0));
        ok(cuMemAlloc_v2(&raw mut memory, 64));
        let kernel = kernel_node(graph, &[], gpu.function("step__300us"));
        let host = |after: CuGraphNode, value: usize| {
            let params = CuHostNodeParams { callback: Some(note), data: number(value) };
            let mut node = null_mut();
            ok(cuGraphAddHostNode(&raw mut node, graph, &raw const after, 1, &raw const params));
            node
        };
        let first = host(kernel, 3);
        let set = CuMemsetNodeParams { dst: memory, pitch: 0, value: 9, element_size: 1, width: 64, height: 1 };
        let mut filled = null_mut();
        ok(cuGraphAddMemsetNode(&raw mut filled, graph, &raw const first, 1, &raw const set, gpu.context));
        let last = host(filled, 4);
        let mut kinds = [9; 2];
        ok(cuGraphNodeGetType(kernel, &raw mut kinds[0]));
        ok(cuGraphNodeGetType(last, &raw mut kinds[1]));
        assert_eq!(kinds, [0, 3]);

        let mut exec = null_mut();
        ok(cuGraphInstantiate_v2(&raw mut exec, graph, null_mut(), null_mut(), 0));
        ok(cuGraphLaunch(exec, own));
        ok(cuStreamSynchronize(own));

        assert_eq!(SEEN.load(Ordering::SeqCst), 34);
        let mut bytes = [0_u8; 64];
        ok(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), memory, 64));
        assert_eq!(bytes, [9; 64]);
    }
}

test! {
    fn an_update_changes_parameters_and_refuses_another_shape() {
        let gpu = Gpu::new();
        let own = stream(NON_BLOCKING);
        let (mut graph, mut other, mut exec) = (null_mut(), null_mut(), null_mut());
        ok(cuGraphCreate(&raw mut graph, 0));
        let node = kernel_node(graph, &[], gpu.function("step__300us"));
        kernel_node(graph, &[node], gpu.function("step__300us"));
        ok(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        ok(cuGraphClone(&raw mut other, graph));
        let mut twin = null_mut();
        ok(cuGraphNodeFindInClone(&raw mut twin, node, other));
        let mut params = CuKernelNodeParams {
            function: null_mut(), grid_x: 0, grid_y: 0, grid_z: 0, block_x: 0, block_y: 0, block_z: 0,
            shared_bytes: 0, params: null_mut(), extra: null_mut(), kernel: null_mut(),
            context: null_mut(),
        };
        ok(cuGraphKernelNodeGetParams_v2(twin, &raw mut params));
        params.function = gpu.function("step__100us");
        let mut nothing = [0_u64; 2];
        let mut pointers = nothing.each_mut().map(|word| std::ptr::from_mut(word).cast::<c_void>());
        params.params = pointers.as_mut_ptr();
        ok(cuGraphKernelNodeSetParams_v2(twin, &raw const params));

        let mut result = CuGraphExecUpdateResultInfo {
            result: 9, error_node: null_mut(), error_from_node: null_mut(),
        };
        ok(cuGraphExecUpdate_v2(exec, other, &raw mut result));
        let (start, end) = (event(), event());
        ok(cuEventRecord(start, own));
        ok(cuGraphLaunch(exec, own));
        ok(cuEventRecord(end, own));
        ok(cuStreamSynchronize(own));
        assert_eq!(elapsed_us(start, end), 400.0);

        kernel_node(other, &[], gpu.function("step__300us"));
        let failed = CuResult::GRAPH_EXEC_UPDATE_FAILURE;
        assert_eq!(cuGraphExecUpdate_v2(exec, other, &raw mut result), failed);
        assert_eq!(result.result, 2);
        assert_eq!(cuGraphInstantiateWithFlags(null_mut(), graph, 0), CuResult::INVALID_VALUE);
    }
}

test! {
    fn a_green_context_has_a_share_and_streams_of_its_own() {
        let gpu = Gpu::new();
        let board = Board::from_env().unwrap();
        let before = board.used_bytes(0);
        let mut whole: CuDevResource = CuDevResource::zeroed();
        ok(cuDeviceGetDevResource(CuDevice(0), &raw mut whole, 1));
        let (mut parts, mut rest, mut count) = ([whole; 2], whole, 2);
        let result = parts.as_mut_ptr();
        ok(cuDevSmResourceSplitByCount(result, &raw mut count, &raw const whole, &raw mut rest, 0, 33));
        assert_eq!((count, parts[0].sm.sm_count, rest.sm.sm_count), (2, 40, whole.sm.sm_count - 80));

        let (mut description, mut green, mut own) = (null_mut(), null_mut(), null_mut());
        ok(cuDevResourceGenerateDesc(&raw mut description, result, 1));
        ok(cuGreenCtxCreate(&raw mut green, description, CuDevice(0), 1));
        let (mut context, mut of) = (null_mut(), null_mut());
        ok(cuCtxFromGreenCtx(&raw mut context, green));
        ok(cuCtxPushCurrent_v2(context));
        ok(cuStreamCreate(&raw mut own, NON_BLOCKING));
        ok(cuStreamGetGreenCtx(own, &raw mut of));
        assert_eq!(of, green);
        ok(launch(gpu.function("step__100us"), own));
        ok(cuStreamSynchronize(own));
        ok(cuCtxPopCurrent_v2(null_mut()));
        ok(cuGreenCtxDestroy(green));

        assert_eq!(board.used_bytes(0), before);
        assert_eq!(cuGreenCtxDestroy(green), CuResult::INVALID_HANDLE);
    }
}

test! {
    fn kernel_time_grows_as_its_green_context_shrinks() {
        let gpu = Gpu::new();
        let mut whole = std::mem::zeroed();
        ok(cuDeviceGetDevResource(CuDevice(0), &raw mut whole, 1));
        // 66 of 132 multiprocessors are no multiple of 8: 64 are the nearest.
        let (mut part, mut groups) = (std::mem::zeroed(), 1);
        ok(cuDevSmResourceSplitByCount(&raw mut part, &raw mut groups, &raw const whole, null_mut(), 0, 64));
        let (mut description, mut green, mut own) = (null_mut(), null_mut(), null_mut());
        ok(cuDevResourceGenerateDesc(&raw mut description, &raw mut part, 1));
        ok(cuGreenCtxCreate(&raw mut green, description, CuDevice(0), 1));
        let mut context = null_mut();
        ok(cuCtxFromGreenCtx(&raw mut context, green));
        ok(cuCtxPushCurrent_v2(context));
        ok(cuStreamCreate(&raw mut own, NON_BLOCKING));
        let exec = Board::from_env().unwrap().exec().unwrap();
        let begin = exec.clock().now();

        ok(launch(gpu.function("step__1ms"), own));
        ok(cuStreamSynchronize(own));

        assert_eq!(exec.clock().now() - begin, 1_000_000 * 132 / 64);
    }
}

test! {
    fn kernel_time_grows_as_its_mps_thread_percentage_shrinks() with
        "env VGPU_SIM_MPS=1\nenv CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"
    {
        let gpu = Gpu::new();
        let mut enabled = 0;
        ok(cuDeviceGetAttribute(&raw mut enabled, 133, CuDevice(0)));
        let exec = Board::from_env().unwrap().exec().unwrap();
        let begin = exec.clock().now();

        ok(launch(gpu.function("step__1ms"), DEFAULT));
        ok(cuCtxSynchronize());

        assert_eq!(enabled, 1);
        assert_eq!(exec.clock().now() - begin, 4_000_000);
    }
}

/// A graph that is one conditional node over one kernel of 100 µs, launched into a stream.
unsafe fn launch_conditional(gpu: &Gpu, kind: u32, value: u32, times: u32) -> u64 {
    unsafe {
        let (mut graph, mut condition, mut node) = (null_mut(), 0, null_mut());
        ok(cuGraphCreate(&raw mut graph, 0));
        ok(cuGraphConditionalHandleCreate(
            &raw mut condition,
            graph,
            gpu.context,
            value,
            1,
        ));
        let mut params: CuGraphNodeParams = std::mem::zeroed();
        params.kind = 13;
        let body: *mut CuConditionalNodeParams = params.body_mut();
        (*body).handle = condition;
        (*body).kind = kind;
        (*body).size = 1;
        ok(cuGraphAddNode(
            &raw mut node,
            graph,
            null_mut(),
            0,
            &raw mut params,
        ));
        let inner = *(*body).graphs_out;
        let (mut kernel, mut step) = (null_mut(), std::mem::zeroed::<CuKernelNodeParamsV1>());
        step.function = gpu.function("step__100us");
        (step.grid_x, step.grid_y, step.grid_z) = (1, 1, 1);
        (step.block_x, step.block_y, step.block_z) = (32, 1, 1);
        let mut argument = 0_u64;
        let mut arguments = [(&raw mut argument).cast::<c_void>()];
        step.params = arguments.as_mut_ptr();
        ok(cuGraphAddKernelNode(
            &raw mut kernel,
            inner,
            null_mut(),
            0,
            &raw const step,
        ));
        let (mut exec, own) = (null_mut(), stream(NON_BLOCKING));
        ok(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        let clock = Board::from_env().unwrap().exec().unwrap();
        let begin = clock.clock().now();
        for _ in 0..times {
            ok(cuGraphLaunch(exec, own));
        }
        ok(cuStreamSynchronize(own));
        clock.clock().now() - begin
    }
}

const IF: u32 = 0;
const WHILE: u32 = 1;

test! {
    fn a_condition_runs_its_graph_as_its_value_says() {
        let gpu = Gpu::new();

        assert_eq!(launch_conditional(&gpu, IF, 1, 1), 100_000);
        assert_eq!(launch_conditional(&gpu, IF, 0, 1), 0);
        assert_eq!(launch_conditional(&gpu, WHILE, 0, 1), 0);
        assert_eq!(launch_conditional(&gpu, WHILE, 3, 1), 300_000);
    }
}

test! {
    fn a_loop_runs_as_often_as_the_script_says() with "while step__100* 5" {
        let gpu = Gpu::new();

        assert_eq!(launch_conditional(&gpu, WHILE, 1, 2), 1_000_000);
    }
}

test! {
    fn a_loop_may_take_another_time_at_each_launch() with "while step__100* 1..9\nseed 3" {
        let gpu = Gpu::new();

        let mut times: Vec<_> = (0..5)
            .map(|_| launch_conditional(&gpu, WHILE, 1, 1))
            .collect();

        assert!(times.iter().all(|ns| (100_000..=900_000).contains(ns)));
        times.sort_unstable();
        times.dedup();
        assert!(times.len() > 1, "{times:?}");
    }
}

test! {
    fn a_node_of_any_kind_tells_its_parameters() with "env VGPU_SIM_DRIVER=14.0" {
        let gpu = Gpu::new();
        let (mut address, mut status) = (null_mut(), 0);
        let name = c"cuGraphNodeGetParams".as_ptr();
        ok(cuGetProcAddress_v2(name, &raw mut address, 14_000, 0, &raw mut status));
        let get_params: signature::cuGraphNodeGetParams = std::mem::transmute(address);
        let (mut graph, mut node) = (null_mut(), null_mut());
        ok(cuGraphCreate(&raw mut graph, 0));
        let mut argument = 77_u64;
        let mut arguments = [(&raw mut argument).cast::<c_void>()];
        let mut given: CuKernelNodeParamsV1 = std::mem::zeroed();
        given.function = gpu.function("step__100us");
        (given.grid_x, given.grid_y, given.grid_z) = (5, 1, 1);
        (given.block_x, given.block_y, given.block_z) = (32, 1, 1);
        given.params = arguments.as_mut_ptr();
        ok(cuGraphAddKernelNode(&raw mut node, graph, null_mut(), 0, &raw const given));

        let mut told: CuGraphNodeParams = std::mem::zeroed();
        ok(get_params(node, &raw mut told));

        assert_eq!(told.kind, 0);
        let kernel = *told.body::<CuKernelNodeParams>();
        assert_eq!((kernel.function, kernel.grid_x), (given.function, 5));
        assert_eq!(*(*kernel.params).cast::<u64>(), 77);
        assert_eq!(get_params(node, null_mut()), CuResult::INVALID_VALUE);
    }
}

test! {
    fn a_jittering_kernel_takes_another_time_at_each_launch() with "kernel step__1ms 1ms ±20%" {
        let gpu = Gpu::new();
        let kernel = gpu.function("step__1ms");
        let exec = Board::from_env().unwrap().exec().unwrap();

        let times: Vec<u64> = (0..20)
            .map(|_| {
                let begin = exec.clock().now();
                ok(launch(kernel, DEFAULT));
                ok(cuCtxSynchronize());
                exec.clock().now() - begin
            })
            .collect();

        assert!(times.iter().all(|ns| (800_000..=1_200_000).contains(ns)));
        assert!(times.windows(2).all(|pair| pair[0] != pair[1]));
    }
}

// --- several processes ------------------------------------------------------------------------

const MS: u64 = 1_000_000;

/// The child process of the next test: queues 20 kernels of 1 ms, reports that, and waits for them.
fn queue_and_wait() {
    unsafe {
        let gpu = Gpu::new();
        let own = stream(NON_BLOCKING);
        for _ in 0..20 {
            ok(launch(gpu.function("step__1ms"), own));
        }
        println!("queued");
        ok(cuStreamSynchronize(own));
    }
}

#[test]
fn two_processes_share_a_gpu_by_time_slices() {
    const NAME: &str = "two_processes_share_a_gpu_by_time_slices";
    if std::env::var_os("VGPU_SIM_TEST_ALONE").is_some() {
        queue_and_wait();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("board");
    let config = Config {
        clock: ClockKind::Virtual,
        ..Config::default()
    };
    let board = Board::create(&path, &config).unwrap();
    let exec = board.exec().unwrap();
    let mut children: Vec<_> = (0..2)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args([&*format!("compute::{NAME}"), "--exact", "--nocapture"])
                .env("VGPU_SIM_TEST_ALONE", NAME)
                .env("VGPU_SIM_BOARD", &path)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in &mut children {
        let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        assert!(
            lines
                .map(Result::unwrap)
                .any(|line| line.ends_with("queued"))
        );
    }
    let shares = || {
        exec.truth(0)
            .iter()
            .map(|truth| truth.busy_ns / MS)
            .collect::<Vec<_>>()
    };

    exec.clock().advance(12 * MS);
    assert_eq!(shares(), [6, 6]);
    // One process is killed in the middle: the other process has the GPU to itself at once.
    children[0].kill().unwrap();
    children[0].wait().unwrap();
    exec.reap();
    exec.clock().advance(10 * MS);

    let mut after = shares();
    after.sort_unstable();
    assert_eq!(after, [6, 16]);
    exec.clock().advance(4 * MS);
    assert!(children[1].wait().unwrap().success());
}

test! {
    fn free_waits_for_host_functions_queued_before_it() {
        let gpu = Gpu::new();
        let own = stream(NON_BLOCKING);
        let mut memory = CuDevicePtr(0);
        ok(cuMemAlloc_v2(&raw mut memory, 64));

        ok(launch(gpu.function("step__300us"), own));
        ok(cuLaunchHostFunc(own, Some(note), number(5)));
        ok(cuMemsetD8Async(memory, 1, 64, own));
        ok(cuMemFree_v2(memory));

        assert_eq!(SEEN.load(Ordering::SeqCst), 5);
    }
}

test! {
    fn an_event_is_the_same_in_another_process() {
        let gpu = Gpu::new();
        let own = stream(NON_BLOCKING);
        let (mut shared, mut twin, mut name) = (null_mut(), null_mut(), CuIpcEventHandle { reserved: [0; 64] });
        const INTERPROCESS_WITHOUT_TIMING: u32 = 6;
        assert_eq!(cuEventCreate(&raw mut shared, 4), CuResult::INVALID_VALUE);
        ok(cuEventCreate(&raw mut shared, INTERPROCESS_WITHOUT_TIMING));
        ok(cuIpcGetEventHandle(&raw mut name, shared));
        // As another process would use the handle.
        ok(cuIpcOpenEventHandle(&raw mut twin, name));
        ok(cuEventQuery(twin));

        ok(launch(gpu.function("step__300us"), own));
        ok(cuEventRecord(shared, own));
        assert_eq!(cuEventQuery(twin), CuResult::NOT_READY);
        ok(cuEventSynchronize(twin));

        ok(cuStreamQuery(own));
    }
}
