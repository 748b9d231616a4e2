//! The functions of graphs that can be launched: instantiate, upload, launch, update, set the
//! parameters of a node.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cuda_api::driver::*;

use crate::base::border::{Done, handle, invalid_if, lock, read, refuse_if, write, write_if};
use crate::memory::graph_memory;
use crate::process::choices;
use crate::streams::capturing;
use crate::streams::event;
use crate::streams::execs::{AUTO_FREE, EXECS, Exec, allocations, find, launch, nodes_of, set};
use crate::streams::graph::{self, Body};
use crate::streams::stream;

calls! {
    cuGraphInstantiate,
    cuGraphInstantiate_v2(out, graph, error_node_out, _log_buffer, _buffer_size)
        => { write_if(error_node_out, std::ptr::null_mut()); instantiate(out, graph, 0).map(drop) };
    cuGraphInstantiateWithFlags(out, graph, flags) => instantiate(out, graph, flags).map(drop);
    cuGraphLaunch(graph, stream) => launch(graph, stream);
    cuGraphUpload(graph, stream) => {
        let made = find(graph)?;
        capturing::forbidden(&*stream::find(stream)?)?;
        upload(&made)
    };
    cuGraphExecDestroy(graph_exec)
        => EXECS.end(graph_exec.addr());
    cuGraphExecGetFlags(graph_exec, flags) => write(flags, find(graph_exec)?.flags);
    cuGraphExecGetId(graph_exec, graph_id) => write(graph_id, find(graph_exec)?.id as u32);
    cuGraphExecUpdate(graph_exec, graph, error_node_out, update_result_out) => {
        let (result, node) = update(graph_exec, graph)?;
        write_if(error_node_out, handle(node));
        write(update_result_out, result)?;
        refuse_if(result != UPDATE_SUCCESS, CuResult::GRAPH_EXEC_UPDATE_FAILURE)
    };
    cuGraphExecKernelNodeSetParams(graph_exec, node, params)
        => set(graph_exec, node, || graph::kernel_v1(params));
    cuGraphExecKernelNodeSetParams_v2(graph_exec, node, params)
        => set(graph_exec, node, || graph::kernel(params));
    cuGraphExecMemcpyNodeSetParams(graph_exec, node, copy_params, _context)
        => set(graph_exec, node, || graph::memcpy(copy_params));
    cuGraphExecMemsetNodeSetParams(graph_exec, node, memset_params, _context)
        => set(graph_exec, node, || graph::memset(memset_params));
    cuGraphExecHostNodeSetParams(graph_exec, node, params)
        => set(graph_exec, node, || graph::host(params));
    cuGraphExecChildGraphNodeSetParams(graph_exec, node, child_graph)
        => set(graph_exec, node, || graph::child(child_graph));
    cuGraphExecEventRecordNodeSetEvent(graph_exec, node, event) => {
        set(graph_exec, node, || {
            event::find(event).map(Body::EventRecord)
        })
    };
    cuGraphExecEventWaitNodeSetEvent(graph_exec, node, event)
        => set(graph_exec, node, || event::find(event).map(Body::EventWait));
    cuGraphExecBatchMemOpNodeSetParams(graph_exec, node, params)
        => set(graph_exec, node, || graph::batch(params));
    cuGraphExecNodeSetParams(graph_exec, node, params)
        => set(graph_exec, node, || graph::any(params));
    cuGraphNodeGetEnabled(graph_exec, node, is_enabled) => {
        let made = find(graph_exec)?;
        let nodes = lock(&made.nodes);
        let found = nodes.iter().find(|known| known.origin == node.addr());
        write(
            is_enabled,
            u32::from(found.ok_or(CuResult::INVALID_VALUE)?.is_enabled),
        )
    };
    cuGraphInstantiateWithParams(out, graph, instantiate_params) => {
        const SUCCESS: u32 = 0;
        const ERROR: u32 = 1;
        let mut params = read(instantiate_params.cast_const())?;
        let made = instantiate(out, graph, params.flags).and_then(|made| {
            if params.flags & UPLOAD != 0 {
                upload(&made).inspect_err(|_| {
                    EXECS.remove(Arc::as_ptr(&made).addr());
                })?;
            }
            Ok(made)
        });
        params.error_node = std::ptr::null_mut();
        params.result = if made.is_ok() { SUCCESS } else { ERROR };
        write(instantiate_params, params)?;
        made.map(drop)
    };
    cuGraphExecUpdate_v2(graph_exec, graph, result_info) => {
        let (result, node) = update(graph_exec, graph)?;
        let error_from_node = std::ptr::null_mut();
        let info = CuGraphExecUpdateResultInfo {
            result,
            error_node: handle(node),
            error_from_node,
        };
        write(result_info, info)?;
        refuse_if(result != UPDATE_SUCCESS, CuResult::GRAPH_EXEC_UPDATE_FAILURE)
    };
    cuGraphNodeSetEnabled(graph_exec, node, is_enabled) => {
        let made = find(graph_exec)?;
        let mut nodes = lock(&made.nodes);
        let found = nodes.iter_mut().find(|known| known.origin == node.addr());
        let found = found.ok_or(CuResult::INVALID_VALUE)?;
        // Kernels, copies and fills only.
        invalid_if(found.body.kind() > 2)?;
        found.is_enabled = is_enabled != 0;
        Ok(())
    };
}

const UPLOAD: u64 = 2;
const DEVICE_LAUNCH: u64 = 4;
const NODE_PRIORITY: u64 = 8;
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn instantiate(out: *mut CuGraphExec, graph: CuGraph, flags: u64) -> Done<Arc<Exec>> {
    invalid_if(
        out.is_null() || flags & !(AUTO_FREE | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY) != 0,
    )?;
    let graph = graph::find(graph)?;
    let made = Arc::new(Exec {
        nodes: Mutex::new(nodes_of(&graph)?),
        flags,
        // Relaxed: only has to differ from every other.
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        last: Mutex::new(None),
        template: Mutex::new(graph.copy().ok()),
    });
    write(out, handle(EXECS.insert(Arc::clone(&made))))?;
    Ok(made)
}

// --- a launch -------------------------------------------------------------------------------

/// Takes the memory that a graph's first launch needs, without launching it.
fn upload(made: &Exec) -> Done {
    let nodes = lock(&made.nodes).clone();
    graph_memory::upload(&allocations(&nodes)?)
}

// --- updates ----------------------------------------------------------------------------------

const UPDATE_SUCCESS: u32 = 0;
const UPDATE_TOPOLOGY_CHANGED: u32 = 2;
const UPDATE_TYPE_CHANGED: u32 = 3;
const UPDATE_NOT_SUPPORTED: u32 = 6;

/// Takes the parameters of a graph of the same shape; answers why not, and at which node.
fn update(graph_exec: CuGraphExec, graph: CuGraph) -> Done<(u32, usize)> {
    let made = find(graph_exec)?;
    let new = nodes_of(&*graph::find(graph)?)?;
    let mut nodes = lock(&made.nodes);
    if nodes.len() != new.len() {
        return Ok((UPDATE_TOPOLOGY_CHANGED, 0));
    }
    for (old, new) in nodes.iter().zip(&new) {
        if old.after != new.after {
            return Ok((UPDATE_TOPOLOGY_CHANGED, new.origin));
        }
        if old.body.kind() != new.body.kind() {
            return Ok((UPDATE_TYPE_CHANGED, new.origin));
        }
        let has_memory = matches!(new.body, Body::MemAlloc(_) | Body::MemFree(_));
        if has_memory && !choices::updates_memory_nodes() {
            return Ok((UPDATE_NOT_SUPPORTED, new.origin));
        }
    }
    for new in &new {
        graph::load_given(&new.body)?;
    }
    for (old, new) in nodes.iter_mut().zip(new) {
        old.body = new.body;
    }
    *lock(&made.template) = graph::find(graph)?.copy().ok();
    Ok((UPDATE_SUCCESS, 0))
}
