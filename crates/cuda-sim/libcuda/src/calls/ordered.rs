//! Allocation in stream order: from pools, or as nodes of the graph that a stream captures.

use cuda_api::driver::*;

use crate::base::border::{Done, check_out, invalid_if, write};
use crate::memory::blocks::{self, Block, BlockKind};
use crate::memory::graph_memory;
use crate::memory::pool;
use crate::streams::capturing;
use crate::streams::graph::Body;
use crate::streams::queue;
use crate::streams::stream;

calls! {
    cuMemAllocAsync(out, bytes, stream) => alloc(out, bytes, None, stream);
    cuMemAllocFromPoolAsync(out, bytes, pool, stream) => alloc(out, bytes, Some(pool), stream);
    cuMemFreeAsync(ptr, stream) => {
        let found = stream::find(stream)?;
        let node = || graph_memory::make_free(ptr.0).map(Body::MemFree);
        if capturing::takes(&found, node)? {
            return Ok(());
        }
        if graph_memory::is_graphs(ptr.0) {
            invalid_if(!graph_memory::is_live(ptr.0))?;
            return queue::free_in_order(&found, move || {
                graph_memory::free(ptr.0);
            });
        }
        // Plain memory may be freed like this too.
        let own =
            |block: &Block| matches!(block.kind, BlockKind::Pool(_) | BlockKind::Device | BlockKind::Managed);
        let block = blocks::remove(ptr.0, own).ok_or(CuResult::INVALID_VALUE)?;
        queue::free_in_order(&found, move || blocks::end(ptr.0, &block))
    };
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
    let is_node = capturing::takes(&found, || {
        let node = graph_memory::reserve_for(pool.gpu, bytes as u64)?;
        base = node.address();
        Ok(Body::MemAlloc(node))
    })?;
    if !is_node {
        base = pool.allocate(bytes as u64)?;
    }
    write(out, CuDevicePtr(base))
}
