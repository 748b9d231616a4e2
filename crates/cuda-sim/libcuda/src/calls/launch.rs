//! The functions of launches: every form of `cuLaunch*`, occupancy, cooperative launches, the
//! functions of CUDA 3.

use std::sync::OnceLock;

use cuda_api::driver::*;
use cuda_sim::script::LAUNCH_ATTRIBUTE_NS;

use crate::base::border::{Done, invalid_if, lock, read, read_all, refuse_if, write};
use crate::memory::context;
use crate::streams::capturing;
use crate::streams::graph::Body;
use crate::streams::launch::{
    Call, Launch, MAX_THREADS, MULTIPROCESSORS, SHARED_BYTES_OPT_IN, check, described, packed, plan,
};
use crate::streams::module::{self, Function};
use crate::streams::stream;

calls! {
    cuLaunch(function) => old_launch(function, 1, 1, std::ptr::null_mut());
    cuLaunchGrid(function, grid_width, grid_height)
        => old_launch(function, grid_width, grid_height, std::ptr::null_mut());
    cuLaunchGridAsync(function, grid_width, grid_height, stream)
        => old_launch(function, grid_width, grid_height, stream);
    cuFuncSetBlockShape(function, x, y, z) => {
        invalid_if(x <= 0 || y <= 0 || z <= 0)?;
        lock(&module::function(function)?.old_style).block = [x as u32, y as u32, z as u32];
        Ok(())
    };
    cuFuncSetSharedSize(function, bytes)
        => { lock(&module::function(function)?.old_style).shared = bytes; Ok(()) };
    cuParamSeti, cuParamSetf(function, offset, value)
        => set_parameter(function, offset, &value.to_le_bytes());
    cuParamSetv(function, offset, ptr, numbytes) => {
        let bytes = read_all(ptr.cast::<u8>().cast_const(), numbytes as usize)?;
        set_parameter(function, offset, &bytes)
    };
    cuParamSetTexRef(function, _texunit, _tex_ref) => module::function(function).map(drop);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(count_blocks, function, block_size, dynamic)
        => occupancy(count_blocks, function, block_size, dynamic);
    cuOccupancyMaxPotentialClusterSize(cluster_size, function, config)
        => { module::function(function)?; read(config)?; write(cluster_size, 8) };
    cuOccupancyMaxActiveClusters(count_clusters, function, config) => {
        let function = module::function(function)?;
        let config = read(config)?;
        let threads = config.block_x * config.block_y * config.block_z;
        let shared = config.shared_bytes as usize;
        let each = blocks_per_multiprocessor(&function, threads as i32, shared)?;
        write(count_clusters, (each * MULTIPROCESSORS / 8) as i32)
    };
    cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
        params, extra) => {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(&Call { function, grid, block, shared, stream, params, extra, attributes: &[] })
    };
    cuLaunchKernelEx(config, function, params, extra) => {
        let config = read(config)?;
        let count = config.num_attributes as usize;
        let attributes = read_all(config.attributes.cast_const(), count)?;
        let (stream, attributes) = (config.stream, &*attributes);
        launch(&described!(config: function: function, stream: stream, params: params,
            extra: extra, attributes: attributes))
    };
    cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
        shared, stream, params) => {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let extra = std::ptr::null_mut();
        cooperative(&Call { function, grid, block, shared, stream, params, extra, attributes: &[] })
    };
    cuLaunchCooperativeKernelMultiDevice(launch_params_list, count_devices, flags) => {
        invalid_if(count_devices == 0 || flags > 3)?;
        for p in read_all(launch_params_list.cast_const(), count_devices as usize)? {
            invalid_if(stream::find(p.stream)?.kind == stream::StreamKind::Legacy)?;
            cooperative(&described!(p: function: p.function, stream: p.stream, params: p.params,
                extra: std::ptr::null_mut(), attributes: &[]))?;
        }
        Ok(())
    };
    cuParamSetSize(function, numbytes) => {
        let function = module::function(function)?;
        lock(&function.old_style).parameters.resize(numbytes as usize, 0);
        Ok(())
    };
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count_blocks, function, block_size,
        dynamic, _flags) => occupancy(count_blocks, function, block_size, dynamic);
    cuOccupancyMaxPotentialBlockSize(min_grid_size, block_size, function, dynamic_of, dynamic,
        limit)
        => best_block(min_grid_size, block_size, function, dynamic_of, dynamic, limit);
    cuOccupancyMaxPotentialBlockSizeWithFlags(min_grid_size, block_size, function, dynamic_of,
        dynamic, limit, _flags)
        => best_block(min_grid_size, block_size, function, dynamic_of, dynamic, limit);
    cuOccupancyAvailableDynamicSMemPerBlock(out, function, count_blocks, block_size) => {
        let function = module::function(function)?;
        invalid_if(count_blocks <= 0 || block_size <= 0)?;
        let each = SHARED_PER_MULTIPROCESSOR / count_blocks as u32;
        let most = each.min(SHARED_BYTES_OPT_IN) as usize;
        write(out, most.saturating_sub(function.kernel.shared_bytes as usize))
    };
}

const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
const REGISTERS: u32 = 65_536;
const SHARED_PER_MULTIPROCESSOR: u32 = 228 << 10;

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
        .map_or(8, |(_, size)| *size);
    let size = size.min(8);
    let source = match packed(extra).ok()? {
        Some((buffer, _)) => buffer,
        None => read(params.cast_const()).ok()?.cast::<u8>().cast_const(),
    };
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(&read_all(source, size).ok()?);
    Some(u64::from_le_bytes(bytes))
}

fn launch(call: &Call<'_>) -> Done {
    refuse_if(crate::process::helper::is_helper(), CuResult::NOT_PERMITTED)?;
    let function = module::function(call.function)?;
    context::current()?;
    let stream = stream::find(call.stream)?;
    check(&function, call.grid, call.block, call.shared)?;
    let captured = capturing::takes(&stream, || Launch::read(call).map(Body::Kernel))?;
    if captured {
        return Ok(());
    }
    let mut attributes = call.attributes.iter();
    let own = attributes.find(|attribute| attribute.id == LAUNCH_ATTRIBUTE_NS);
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

// --- occupancy --------------------------------------------------------------------------------

fn blocks_per_multiprocessor(function: &Function, block: i32, dynamic: usize) -> Done<u32> {
    invalid_if(block <= 0 || block as u32 > MAX_THREADS)?;
    let warps = (block as u32).div_ceil(32);
    let by_threads = THREADS_PER_MULTIPROCESSOR / (warps * 32);
    let registers = function.kernel.registers.max(16) as u32;
    let by_registers = REGISTERS / (registers.next_multiple_of(8) * 32 * warps);
    let shared = function.kernel.shared_bytes as usize + dynamic;
    let by_shared = (SHARED_PER_MULTIPROCESSOR as usize).checked_div(shared);
    let by_shared = u32::try_from(by_shared.unwrap_or(usize::MAX)).unwrap_or(u32::MAX);
    let most = by_threads.min(by_registers).min(by_shared);
    Ok(most.min(BLOCKS_PER_MULTIPROCESSOR))
}

fn occupancy(out: *mut i32, function: CuFunction, block: i32, dynamic: usize) -> Done {
    let function = module::function(function)?;
    let blocks = blocks_per_multiprocessor(&function, block, dynamic)?;
    write(out, blocks as i32)
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
    let limits = [limit, function.kernel.max_threads]
        .into_iter()
        .filter(|most| *most > 0);
    let most = limits.fold(MAX_THREADS as i32, i32::min);
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

fn cooperative(call: &Call<'_>) -> Done {
    let function = module::function(call.function)?;
    let threads = call.block.iter().product::<u32>() as i32;
    let each = blocks_per_multiprocessor(&function, threads, call.shared as usize)?;
    let blocks = call.grid.iter().map(|&n| u64::from(n)).product::<u64>();
    let most = u64::from(each) * u64::from(MULTIPROCESSORS);
    refuse_if(blocks > most, CuResult::COOPERATIVE_LAUNCH_TOO_LARGE)?;
    launch(call)
}

/// A launch of the old kind: block, shared memory and parameters were set on the function before.
fn old_launch(function: CuFunction, width: i32, height: i32, stream: CuStream) -> Done {
    let found = module::function(function)?;
    let old = lock(&found.old_style).clone();
    invalid_if(width <= 0 || height <= 0)?;
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

fn set_parameter(function: CuFunction, offset: i32, bytes: &[u8]) -> Done {
    let function = module::function(function)?;
    let mut old = lock(&function.old_style);
    let start = usize::try_from(offset).map_err(|_| CuResult::INVALID_VALUE)?;
    let end = start + bytes.len();
    invalid_if(end > 4096)?;
    if old.parameters.len() < end {
        old.parameters.resize(end, 0);
    }
    old.parameters[start..end].copy_from_slice(bytes);
    Ok(())
}
