//! Launches: what a program passes is checked as the driver checks it, and becomes work that takes
//! time by the board's script. A kernel never computes anything; it may read its first argument, when
//! its rule says so. Functions themselves belong to `module.rs`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cuda_api::driver::*;
use cuda_sim::clock::ClockKind;
use cuda_sim::exec::Work;
use cuda_sim::script::{Duration, LAUNCH_ATTRIBUTE_NS};

use crate::border::{Done, handle, lock, read, read_all, write};
use crate::capture;
use crate::context;
use crate::context::Ctx;
use crate::gpu::{exec, process};
use crate::graph::Body;
use crate::module::{self, Function};
use crate::stream::{self, Stream};

/// A kernel's arguments, copied, with the array of pointers that programs read them through.
#[derive(Debug)]
pub(crate) struct Arguments {
    values: Vec<u8>,
    pointers: Vec<*mut c_void>,
}

// SAFETY: the pointers point into `values`, which nobody changes.
unsafe impl Send for Arguments {}
// SAFETY: as above.
unsafe impl Sync for Arguments {}

/// A launch that is done later: a graph's node.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) function: Arc<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: Arc<Arguments>,
    pub(crate) attributes: Vec<(u32, [u64; 8])>,
}

impl Launch {
    /// Reads a launch as a program passes it, its arguments too.
    ///
    /// # Errors
    /// As the launch itself would answer.
    pub(crate) fn read(
        function: CuFunction,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Done<Self> {
        let function = module::function(function)?;
        check(&function, grid, block, shared)?;
        let arguments = Arc::new(copy_arguments(&function, params, extra)?);
        Ok(Self {
            function,
            grid,
            block,
            shared,
            arguments,
            attributes: Vec::new(),
        })
    }

    pub(crate) fn attribute(&self, id: u32) -> Option<[u64; 8]> {
        self.attributes
            .iter()
            .find(|(known, _)| *known == id)
            .map(|(_, words)| *words)
    }

    pub(crate) fn set_attribute(&mut self, id: u32, words: [u64; 8]) {
        self.attributes.retain(|(known, _)| *known != id);
        self.attributes.push((id, words));
    }

    /// What it does to the GPU.
    pub(crate) fn plan(&self) -> Done<Plan> {
        let own = self.attribute(LAUNCH_ATTRIBUTE_NS).map(|words| words[0]);
        plan(&self.function, self.grid, own, || self.arguments.first())
    }

    pub(crate) fn as_params(&self) -> CuKernelNodeParams {
        let [grid_x, grid_y, grid_z] = self.grid;
        let [block_x, block_y, block_z] = self.block;
        CuKernelNodeParams {
            function: handle(self.function.handle()),
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared_bytes: self.shared,
            params: self.arguments.as_ptr(),
            extra: std::ptr::null_mut(),
            kernel: std::ptr::null_mut(),
            context: std::ptr::null_mut(),
        }
    }

    pub(crate) fn as_params_v1(&self) -> CuKernelNodeParamsV1 {
        let p = self.as_params();
        CuKernelNodeParamsV1 {
            function: p.function,
            grid_x: p.grid_x,
            grid_y: p.grid_y,
            grid_z: p.grid_z,
            block_x: p.block_x,
            block_y: p.block_y,
            block_z: p.block_z,
            shared_bytes: p.shared_bytes,
            params: p.params,
            extra: p.extra,
        }
    }
}

impl Arguments {
    fn first(&self) -> Option<u64> {
        let bytes = self.values.get(..8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    fn as_ptr(&self) -> *mut *mut c_void {
        if self.pointers.is_empty() {
            return std::ptr::null_mut();
        }
        self.pointers.as_ptr().cast_mut()
    }
}

/// What a kernel does to the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Takes so long.
    Time { ns: u64 },
    /// Spins until that many of this key run, then takes so long.
    Meet { key: u64, parties: u32, ns: u64 },
    /// Spins until the word at this address is not zero, then takes so long.
    Flag { address: u64, ns: u64 },
}

impl Plan {
    /// How long it takes in a context, when that is known.
    ///
    /// # Errors
    /// When there is no board.
    pub(crate) fn time_in(self, context: Ctx) -> Done<Option<u64>> {
        match self {
            Self::Time { ns } => on_a_part(ns, context).map(Some),
            Self::Meet { .. } | Self::Flag { .. } => Ok(None),
        }
    }

    /// Gives the kernel to a stream.
    pub(crate) fn submit(self, stream: &Stream) -> Done {
        match self {
            Self::Time { ns } => {
                let ns = on_a_part(ns, stream.context)?;
                stream::submit(stream, Work::Kernel { ns }).map(drop)
            }
            Self::Meet { key, parties, ns } => {
                let ns = on_a_part(ns, stream.context)?;
                stream::submit(stream, Work::Rendezvous { key, parties, ns }).map(drop)
            }
            Self::Flag { address, ns } => {
                let ns = on_a_part(ns, stream.context)?;
                let holds = move || stream::load(address, 32) != 0;
                stream::submit_poll(stream, holds, |token| Work::Spin { token, ns })
            }
        }
    }
}

fn plan(
    function: &Function,
    grid: [u32; 3],
    own_ns: Option<u64>,
    first: impl FnOnce() -> Option<u64>,
) -> Done<Plan> {
    if let Some(ns) = own_ns {
        return Ok(Plan::Time { ns });
    }
    let (duration, rule) = function.duration;
    Ok(match duration {
        Duration::Fixed {
            ns,
            ns_per_block,
            jitter_percent,
        } => {
            let blocks = grid.iter().map(|&n| u64::from(n)).product::<u64>();
            let ns = ns.saturating_add(ns_per_block.saturating_mul(blocks));
            Plan::Time {
                ns: match jitter_percent {
                    0 => ns,
                    percent => exec()?.script().jittered(ns, percent, draw()?),
                },
            }
        }
        Duration::Argument { unit_ns } => Plan::Time {
            ns: first().unwrap_or(0).saturating_mul(unit_ns),
        },
        Duration::Peers { parties, ns } => Plan::Meet {
            key: rule as u64,
            parties,
            ns,
        },
        Duration::Flag { ns } => {
            let address = first().filter(|a| *a != 0 && a.is_multiple_of(4));
            Plan::Flag {
                address: address.ok_or(CuResult::INVALID_VALUE)?,
                ns,
            }
        }
    })
}

/// A number that tells one chance of this process from every other, here and in other processes; the
/// same in each run that does the same.
pub(crate) fn draw() -> Done<u64> {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only has to differ from every other.
    let count = DRAWN.fetch_add(1, Ordering::Relaxed);
    Ok(u64::from(process()?.index()) << 48 | count)
}

/// A kernel's time where its context, or its process under MPS, has a part of the multiprocessors: as
/// much longer as the part is smaller.
fn on_a_part(ns: u64, context: Ctx) -> Done<u64> {
    let share = u64::from(crate::green::share_of(context));
    let percent = if exec()?.is_mps() {
        thread_percentage()
    } else {
        100
    };
    let scaled = u128::from(ns) * u128::from(MULTIPROCESSORS) * 100
        / (u128::from(share.max(1)) * u128::from(percent));
    Ok(u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// What MPS lets this process have of a GPU's threads, in percent; read once, as MPS does.
fn thread_percentage() -> u64 {
    static PERCENT: OnceLock<u64> = OnceLock::new();
    *PERCENT.get_or_init(|| {
        std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
            .ok()
            .and_then(|text| text.trim().parse::<f64>().ok())
            .filter(|percent| *percent > 0.0 && *percent <= 100.0)
            .map_or(100, |percent| percent.ceil() as u64)
    })
}

/// Threads of a block at most, as on every GPU since long.
pub(crate) const MAX_THREADS: u32 = 1024;
/// Shared memory of a block, without being asked for more.
const SHARED_BYTES: u32 = 48 << 10;
/// Shared memory of a block at most.
pub(crate) const SHARED_BYTES_OPT_IN: u32 = 227 << 10;
const MULTIPROCESSORS: u32 = crate::device::MULTIPROCESSORS as u32;
const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
const REGISTERS: u32 = 65_536;
const SHARED_PER_MULTIPROCESSOR: u32 = 228 << 10;

const MAX_DYNAMIC_SHARED: u32 = 8;

fn check(function: &Function, grid: [u32; 3], block: [u32; 3], shared: u32) -> Done {
    if grid.contains(&0) || block.contains(&0) {
        return Err(CuResult::INVALID_VALUE);
    }
    if grid[0] > i32::MAX as u32 || grid[1] > 65_535 || grid[2] > 65_535 || block[2] > 64 {
        return Err(CuResult::INVALID_VALUE);
    }
    let threads = block.iter().map(|&n| u64::from(n)).product::<u64>();
    if threads > u64::from(MAX_THREADS) {
        return Err(CuResult::INVALID_VALUE);
    }
    let most = function.kernel.max_threads;
    if most > 0 && threads > most as u64 {
        return Err(CuResult::LAUNCH_OUT_OF_RESOURCES);
    }
    let asked = lock(&function.attributes)
        .get(&MAX_DYNAMIC_SHARED)
        .copied()
        .unwrap_or(0);
    let room = SHARED_BYTES.max(asked as u32);
    if shared
        > room
            .saturating_sub(function.kernel.shared_bytes as u32)
            .max(asked as u32)
    {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(())
}

/// The buffer that `extra` names, when it does.
fn packed(extra: *mut *mut c_void) -> Done<Option<(*const u8, usize)>> {
    const BUFFER: usize = 1;
    const SIZE: usize = 2;
    if extra.is_null() {
        return Ok(None);
    }
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), 0);
    let mut at = 0;
    loop {
        // SAFETY: pairs of a number and a pointer, ended by a zero: the caller's contract.
        let key = unsafe { extra.add(at).read() }.addr();
        if key == 0 {
            break;
        }
        // SAFETY: as above.
        let value = unsafe { extra.add(at + 1).read() };
        match key {
            BUFFER => buffer = value.cast(),
            SIZE => size = read(value.cast::<usize>().cast_const())?,
            _ => return Err(CuResult::INVALID_VALUE),
        }
        at += 2;
    }
    Ok((!buffer.is_null()).then_some((buffer, size)))
}

fn copy_arguments(
    function: &Function,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Done<Arguments> {
    let wanted = &function.kernel.parameters;
    let length = wanted
        .iter()
        .map(|(offset, size)| offset + size)
        .max()
        .unwrap_or(0);
    let mut values = vec![0; length];
    if let Some((buffer, size)) = packed(extra)? {
        values = read_all(buffer, size.max(length))?;
    } else if !wanted.is_empty() {
        let sources = read_all(params.cast_const(), wanted.len())?;
        for (&(offset, size), source) in wanted.iter().zip(sources) {
            let bytes = read_all(source.cast::<u8>().cast_const(), size)?;
            values[offset..offset + size].copy_from_slice(&bytes);
        }
    }
    let start = values.as_mut_ptr();
    let pointers = wanted
        .iter()
        .map(|(offset, _)| start.wrapping_add(*offset).cast())
        .collect();
    Ok(Arguments { values, pointers })
}

/// The first eight bytes of a kernel's arguments.
fn first_argument(
    function: &Function,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Option<u64> {
    let size = function
        .kernel
        .parameters
        .first()
        .map_or(8, |(_, size)| *size)
        .min(8);
    let source = match packed(extra).ok()? {
        Some((buffer, _)) => buffer,
        None => read(params.cast_const()).ok()?.cast::<u8>().cast_const(),
    };
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(&read_all(source, size).ok()?);
    Some(u64::from_le_bytes(bytes))
}

/// Everything that a launch is passed.
struct Call<'a> {
    function: CuFunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: CuStream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    attributes: &'a [CuLaunchAttribute],
}

fn launch(call: &Call<'_>) -> Done {
    if crate::helper::is_helper() {
        return Err(CuResult::NOT_PERMITTED);
    }
    let function = module::function(call.function)?;
    context::current()?;
    let stream = stream::find(call.stream)?;
    check(&function, call.grid, call.block, call.shared)?;
    let captured = capture::takes(&stream, || {
        let Call {
            function,
            grid,
            block,
            shared,
            params,
            extra,
            ..
        } = *call;
        let mut launch = Launch::read(function, grid, block, shared, params, extra)?;
        for attribute in call.attributes {
            launch.set_attribute(attribute.id, attribute.value.words);
        }
        Ok(Body::Kernel(launch))
    })?;
    if captured {
        return Ok(());
    }
    let own = call
        .attributes
        .iter()
        .find(|attribute| attribute.id == LAUNCH_ATTRIBUTE_NS);
    let own_ns = own.map(|attribute| attribute.value.words[0]);
    let first = || first_argument(&function, call.params, call.extra);
    module::load_for(&function, stream.context)?;
    plan(&function, call.grid, own_ns, first)?.submit(&stream)?;
    if is_blocking() {
        stream::synchronize(&stream)?;
    }
    Ok(())
}

/// Does every launch of a kernel wait for its end? Read once, as the driver does.
fn is_blocking() -> bool {
    static BLOCKING: OnceLock<bool> = OnceLock::new();
    *BLOCKING.get_or_init(|| std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|value| value == "1"))
}

/// Takes the processor time that the board's script says a driver call costs, on the board's clock.
pub(crate) fn call_costs(name: &str) {
    let Ok(exec) = exec() else { return };
    crate::ours::take_part(exec);
    if !exec.script().has_calls() {
        return;
    }
    let ns = exec.script().call_ns(name);
    let clock = exec.clock();
    match clock.kind() {
        _ if ns == 0 => {}
        ClockKind::Real => {
            let until = clock.now() + ns;
            while clock.now() < until {
                std::hint::spin_loop();
            }
        }
        ClockKind::Virtual | ClockKind::Jump | ClockKind::Lockstep => clock.spend(ns),
    }
}

// --- occupancy --------------------------------------------------------------------------------

fn blocks_per_multiprocessor(function: &Function, block: i32, dynamic: usize) -> Done<u32> {
    if block <= 0 || block as u32 > MAX_THREADS {
        return Err(CuResult::INVALID_VALUE);
    }
    let warps = (block as u32).div_ceil(32);
    let by_threads = THREADS_PER_MULTIPROCESSOR / (warps * 32);
    let registers = function.kernel.registers.max(16) as u32;
    let by_registers = REGISTERS / (registers.next_multiple_of(8) * 32 * warps);
    let shared = function.kernel.shared_bytes as usize + dynamic;
    let by_shared = (SHARED_PER_MULTIPROCESSOR as usize)
        .checked_div(shared)
        .unwrap_or(usize::MAX);
    let by_shared = u32::try_from(by_shared).unwrap_or(u32::MAX);
    Ok(by_threads
        .min(by_registers)
        .min(by_shared)
        .min(BLOCKS_PER_MULTIPROCESSOR))
}

fn occupancy(out: *mut i32, function: CuFunction, block: i32, dynamic: usize) -> Done {
    let function = module::function(function)?;
    write(
        out,
        blocks_per_multiprocessor(&function, block, dynamic)? as i32,
    )
}

fn best_block(
    min_grid: *mut i32,
    block_out: *mut i32,
    function: CuFunction,
    dynamic_of: CuOccupancyB2DSize,
    dynamic: usize,
    limit: i32,
) -> Done {
    let function = module::function(function)?;
    let most = if limit > 0 {
        limit.min(MAX_THREADS as i32)
    } else {
        MAX_THREADS as i32
    };
    let own = function.kernel.max_threads;
    let most = if own > 0 { most.min(own) } else { most };
    let mut best = (0, 0);
    for block in (1..=most / 32).rev().map(|warps| warps * 32) {
        // SAFETY: the program's function, called as its contract says.
        let shared = dynamic_of.map_or(dynamic, |of| unsafe { of(block) });
        let blocks = blocks_per_multiprocessor(&function, block, shared)? as i32;
        if blocks * block > best.0 * best.1 {
            best = (blocks, block);
        }
    }
    write(min_grid, best.0 * MULTIPROCESSORS as i32)?;
    write(block_out, best.1)
}

// --- the C border -----------------------------------------------------------------------------

pub(crate) fn cuLaunchKernel(
    function: CuFunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: CuStream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Done {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    launch(&Call {
        function,
        grid,
        block,
        shared,
        stream,
        params,
        extra,
        attributes: &[],
    })
}

pub(crate) fn cuLaunchKernelEx(
    config: *const CuLaunchConfig,
    function: CuFunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Done {
    let config = read(config)?;
    let attributes = read_all(
        config.attributes.cast_const(),
        config.num_attributes as usize,
    )?;
    launch(&Call {
        function,
        grid: [config.grid_x, config.grid_y, config.grid_z],
        block: [config.block_x, config.block_y, config.block_z],
        shared: config.shared_bytes,
        stream: config.stream,
        params,
        extra,
        attributes: &attributes,
    })
}

fn cooperative(call: &Call<'_>) -> Done {
    let function = module::function(call.function)?;
    let threads = call.block.iter().product::<u32>() as i32;
    let each = blocks_per_multiprocessor(&function, threads, call.shared as usize)?;
    let blocks = call.grid.iter().map(|&n| u64::from(n)).product::<u64>();
    if blocks > u64::from(each) * u64::from(MULTIPROCESSORS) {
        return Err(CuResult::COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    launch(call)
}

pub(crate) fn cuLaunchCooperativeKernel(
    function: CuFunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: CuStream,
    params: *mut *mut c_void,
) -> Done {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let extra = std::ptr::null_mut();
    cooperative(&Call {
        function,
        grid,
        block,
        shared,
        stream,
        params,
        extra,
        attributes: &[],
    })
}

pub(crate) fn cuLaunchCooperativeKernelMultiDevice(
    launch_params_list: *mut CuLaunchParams,
    count_devices: u32,
    flags: u32,
) -> Done {
    if count_devices == 0 || flags > 3 {
        return Err(CuResult::INVALID_VALUE);
    }
    for p in read_all(launch_params_list.cast_const(), count_devices as usize)? {
        if stream::find(p.stream)?.kind == stream::Kind::Legacy {
            return Err(CuResult::INVALID_VALUE);
        }
        cooperative(&Call {
            function: p.function,
            grid: [p.grid_x, p.grid_y, p.grid_z],
            block: [p.block_x, p.block_y, p.block_z],
            shared: p.shared_bytes,
            stream: p.stream,
            params: p.params,
            extra: std::ptr::null_mut(),
            attributes: &[],
        })?;
    }
    Ok(())
}

/// A launch of the old kind: block, shared memory and parameters were set on the function before.
fn old_launch(function: CuFunction, width: i32, height: i32, stream: CuStream) -> Done {
    let found = module::function(function)?;
    let old = lock(&found.old_style).clone();
    if width <= 0 || height <= 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let mut size = old.parameters.len();
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(1),
        old.parameters.as_ptr().cast_mut().cast(),
        std::ptr::without_provenance_mut(2),
        (&raw mut size).cast(),
        std::ptr::null_mut(),
    ];
    launch(&Call {
        function,
        grid: [width as u32, height as u32, 1],
        block: old.block,
        shared: old.shared,
        stream,
        params: std::ptr::null_mut(),
        extra: extra.as_mut_ptr(),
        attributes: &[],
    })
}

pub(crate) fn cuLaunch(function: CuFunction) -> Done {
    old_launch(function, 1, 1, std::ptr::null_mut())
}

pub(crate) fn cuLaunchGrid(function: CuFunction, grid_width: i32, grid_height: i32) -> Done {
    old_launch(function, grid_width, grid_height, std::ptr::null_mut())
}

pub(crate) fn cuLaunchGridAsync(
    function: CuFunction,
    grid_width: i32,
    grid_height: i32,
    stream: CuStream,
) -> Done {
    old_launch(function, grid_width, grid_height, stream)
}

pub(crate) fn cuFuncSetBlockShape(function: CuFunction, x: i32, y: i32, z: i32) -> Done {
    if x <= 0 || y <= 0 || z <= 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    lock(&module::function(function)?.old_style).block = [x as u32, y as u32, z as u32];
    Ok(())
}

pub(crate) fn cuFuncSetSharedSize(function: CuFunction, bytes: u32) -> Done {
    lock(&module::function(function)?.old_style).shared = bytes;
    Ok(())
}

pub(crate) fn cuParamSetSize(function: CuFunction, numbytes: u32) -> Done {
    lock(&module::function(function)?.old_style)
        .parameters
        .resize(numbytes as usize, 0);
    Ok(())
}

fn set_parameter(function: CuFunction, offset: i32, bytes: &[u8]) -> Done {
    let function = module::function(function)?;
    let mut old = lock(&function.old_style);
    let start = usize::try_from(offset).map_err(|_| CuResult::INVALID_VALUE)?;
    let end = start + bytes.len();
    if end > 4096 {
        return Err(CuResult::INVALID_VALUE);
    }
    if old.parameters.len() < end {
        old.parameters.resize(end, 0);
    }
    old.parameters[start..end].copy_from_slice(bytes);
    Ok(())
}

pub(crate) fn cuParamSeti(function: CuFunction, offset: i32, value: u32) -> Done {
    set_parameter(function, offset, &value.to_le_bytes())
}

pub(crate) fn cuParamSetf(function: CuFunction, offset: i32, value: f32) -> Done {
    set_parameter(function, offset, &value.to_le_bytes())
}

pub(crate) fn cuParamSetv(
    function: CuFunction,
    offset: i32,
    ptr: *mut c_void,
    numbytes: u32,
) -> Done {
    let bytes = read_all(ptr.cast::<u8>().cast_const(), numbytes as usize)?;
    set_parameter(function, offset, &bytes)
}

pub(crate) fn cuParamSetTexRef(function: CuFunction, _texunit: i32, _tex_ref: CuTexref) -> Done {
    module::function(function).map(drop)
}

pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    count_blocks: *mut i32,
    function: CuFunction,
    block_size: i32,
    dynamic: usize,
) -> Done {
    occupancy(count_blocks, function, block_size, dynamic)
}

pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    count_blocks: *mut i32,
    function: CuFunction,
    block_size: i32,
    dynamic: usize,
    _flags: u32,
) -> Done {
    occupancy(count_blocks, function, block_size, dynamic)
}

pub(crate) fn cuOccupancyMaxPotentialBlockSize(
    min_grid_size: *mut i32,
    block_size: *mut i32,
    function: CuFunction,
    dynamic_of: CuOccupancyB2DSize,
    dynamic: usize,
    limit: i32,
) -> Done {
    best_block(
        min_grid_size,
        block_size,
        function,
        dynamic_of,
        dynamic,
        limit,
    )
}

pub(crate) fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    min_grid_size: *mut i32,
    block_size: *mut i32,
    function: CuFunction,
    dynamic_of: CuOccupancyB2DSize,
    dynamic: usize,
    limit: i32,
    _flags: u32,
) -> Done {
    best_block(
        min_grid_size,
        block_size,
        function,
        dynamic_of,
        dynamic,
        limit,
    )
}

pub(crate) fn cuOccupancyAvailableDynamicSMemPerBlock(
    out: *mut usize,
    function: CuFunction,
    count_blocks: i32,
    block_size: i32,
) -> Done {
    let function = module::function(function)?;
    if count_blocks <= 0 || block_size <= 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let each = SHARED_PER_MULTIPROCESSOR / count_blocks as u32;
    let most = each.min(SHARED_BYTES_OPT_IN) as usize;
    write(
        out,
        most.saturating_sub(function.kernel.shared_bytes as usize),
    )
}

pub(crate) fn cuOccupancyMaxPotentialClusterSize(
    cluster_size: *mut i32,
    function: CuFunction,
    config: *const CuLaunchConfig,
) -> Done {
    module::function(function)?;
    read(config)?;
    write(cluster_size, 8)
}

pub(crate) fn cuOccupancyMaxActiveClusters(
    count_clusters: *mut i32,
    function: CuFunction,
    config: *const CuLaunchConfig,
) -> Done {
    let function = module::function(function)?;
    let config = read(config)?;
    let threads = config.block_x * config.block_y * config.block_z;
    let shared = config.shared_bytes as usize;
    let each = blocks_per_multiprocessor(&function, threads as i32, shared)?;
    write(count_clusters, (each * MULTIPROCESSORS / 8) as i32)
}
