//! Allocation in stream order: from pools, or as nodes of the graph that a stream captures.

use cuda_api::driver::*;

use crate::border::{Done, check_out, write};
use crate::graph::Body;
use crate::memory::{self, Kind};
use crate::{capture, driver, memory_node, pool, stream};

fn device_of(gpu: usize) -> Done<CuDevice> {
    driver::the()?.ordinal(gpu).ok_or(CuResult::INVALID_DEVICE)
}

fn alloc(
    out: *mut CuDevicePtr,
    bytes: usize,
    pool: Option<CuMemoryPool>,
    stream: CuStream,
) -> Done {
    check_out(out)?;
    let found = stream::find(stream)?;
    let pool = match pool {
        Some(pool) => pool::find(pool)?,
        None => pool::current_of(found.context.gpu),
    };
    let mut base = 0;
    let is_node = capture::takes(&found, || {
        let node = memory_node::reserve_for(pool.gpu, device_of(pool.gpu)?, bytes as u64)?;
        base = node.address();
        Ok(Body::MemAlloc(node))
    })?;
    if !is_node {
        base = pool.allocate(bytes as u64)?;
    }
    write(out, CuDevicePtr(base))
}

pub(crate) fn cuMemAllocAsync(out: *mut CuDevicePtr, bytes: usize, stream: CuStream) -> Done {
    alloc(out, bytes, None, stream)
}

pub(crate) fn cuMemAllocFromPoolAsync(
    out: *mut CuDevicePtr,
    bytes: usize,
    pool: CuMemoryPool,
    stream: CuStream,
) -> Done {
    alloc(out, bytes, Some(pool), stream)
}

pub(crate) fn cuMemFreeAsync(ptr: CuDevicePtr, stream: CuStream) -> Done {
    let found = stream::find(stream)?;
    let node = || memory_node::make_free(ptr.0).map(Body::MemFree);
    if capture::takes(&found, node)? {
        return Ok(());
    }
    if memory_node::is_graphs(ptr.0) {
        if !memory_node::is_live(ptr.0) {
            return Err(CuResult::INVALID_VALUE);
        }
        return stream::free_in_order(&found, move || {
            memory_node::free(ptr.0);
        });
    }
    // Plain memory may be freed like this too.
    let own =
        |block: &memory::Block| matches!(block.kind, Kind::Pool(_) | Kind::Device | Kind::Managed);
    let block = memory::remove(ptr.0, own).ok_or(CuResult::INVALID_VALUE)?;
    stream::free_in_order(&found, move || memory::end(ptr.0, &block))
}
