//! The functions of graphs: create, add nodes, link them, read them back, user objects.

use cuda_api::driver::*;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::base::border::{Done, Opaque, handle, lock, read, read_all, text, write};
use crate::memory::graph_memory;
use crate::streams::event;
use crate::streams::graph::{
    Body, CONDITIONS, CopyParams, GRAPHS, Graph, NEXT_ID, Node, USER_OBJECTS, UserObject, add, any,
    batch, child, create, find, find_node, host, kernel, kernel_v1, list, memcpy, memset,
    release_user_object,
};

// --- making nodes ---------------------------------------------------------------------------

/// Answers with a node of any kind.
fn get_any(node: CuGraphNode, out: *mut CuGraphNodeParams) -> Done {
    let node = find_node(node)?;
    let body = lock(&node.body).clone();
    let mut params = CuGraphNodeParams::zeroed();
    params.kind = body.kind();
    match &body {
        Body::Kernel(launch) => write(params.body_mut(), launch.as_params())?,
        Body::Memcpy(CopyParams(copy)) => {
            let mut memcpy = CuMemcpyNodeParams::zeroed();
            memcpy.copy = *copy;
            write(params.body_mut(), memcpy)?;
        }
        // What a capture took over as it was is known to whoever gave it only.
        Body::Copy { .. } | Body::BatchMemOp(_) => return Err(CuResult::NOT_SUPPORTED),
        Body::Memset(set) => write(params.body_mut(), set.as_params())?,
        Body::Host { function, data } => {
            let host = CuHostNodeParams {
                callback: Some(*function),
                data: data.0,
            };
            write(params.body_mut(), host)?;
        }
        Body::Child(child) => {
            let mut shown = CuChildGraphNodeParams::zeroed();
            shown.graph = handle(show(child));
            write(params.body_mut(), shown)?;
        }
        Body::Empty => {}
        Body::EventRecord(event) | Body::EventWait(event) => {
            let event: CuEvent = handle(Arc::as_ptr(event).addr());
            write(params.body_mut(), event)?;
        }
        Body::MemAlloc(allocation) => write(params.body_mut(), allocation.as_params())?,
        Body::MemFree(address) => write(params.body_mut(), CuDevicePtr(*address))?,
        Body::Conditional(conditional) => {
            let mut shown = CuConditionalNodeParams::zeroed();
            shown.handle = conditional.handle;
            shown.kind = conditional.kind;
            shown.size = conditional.bodies.len() as u32;
            shown.graphs_out = handle(conditional.shown);
            write(params.body_mut(), shown)?;
        }
    }
    write(out, params)
}

/// A child graph as the program may hold it from here on; it stays its node's.
fn show(child: &Arc<Graph>) -> usize {
    let number = child.handle();
    if GRAPHS.get(number).is_none() {
        GRAPHS.insert(Arc::clone(child));
    }
    number
}

/// Takes a node's new parameters; the kind must stay.
fn set(node: CuGraphNode, make: impl FnOnce() -> Done<Body>) -> Done {
    let node = find_node(node)?;
    let body = make()?;
    let mut old = lock(&node.body);
    if old.kind() != body.kind() {
        return Err(CuResult::INVALID_VALUE);
    }
    *old = body;
    Ok(())
}

/// Answers with what a node of some kind holds.
fn get<T>(node: CuGraphNode, out: *mut T, pick: impl FnOnce(&Body) -> Option<T>) -> Done {
    let node = find_node(node)?;
    let found = pick(&lock(&node.body)).ok_or(CuResult::INVALID_VALUE)?;
    write(out, found)
}

fn graph_of(node: CuGraphNode) -> Done<(Arc<Node>, Arc<Graph>)> {
    let node = find_node(node)?;
    let graph = node.graph.upgrade().ok_or(CuResult::INVALID_VALUE)?;
    Ok((node, graph))
}

fn edges(graph: CuGraph, from: *mut CuGraphNode, to: *mut CuGraphNode, count: *mut usize) -> Done {
    let graph = find(graph)?;
    let mut pairs = Vec::new();
    for node in graph.nodes() {
        pairs.extend(
            graph
                .after(node.handle())
                .into_iter()
                .map(|before| (before, node.handle())),
        );
    }
    if from.is_null() != to.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let starts: Vec<usize> = pairs.iter().map(|pair| pair.0).collect();
    let ends: Vec<usize> = pairs.iter().map(|pair| pair.1).collect();
    let mut room = if from.is_null() {
        0
    } else {
        read(count.cast_const())?
    };
    list(&starts, from, count)?;
    if to.is_null() {
        Ok(())
    } else {
        list(&ends, to, &raw mut room)
    }
}

fn dependencies(node: CuGraphNode, out: *mut CuGraphNode, count: *mut usize) -> Done {
    let (node, graph) = graph_of(node)?;
    list(&graph.after(node.handle()), out, count)
}

fn dependents(node: CuGraphNode, out: *mut CuGraphNode, count: *mut usize) -> Done {
    let (node, graph) = graph_of(node)?;
    let own = node.handle();
    let later: Vec<usize> = graph
        .nodes()
        .iter()
        .map(Node::handle)
        .filter(|&other| graph.after(other).contains(&own))
        .collect();
    list(&later, out, count)
}

fn relink(
    graph: CuGraph,
    from: *const CuGraphNode,
    to: *const CuGraphNode,
    count: usize,
    change: impl Fn(&Graph, usize, usize) -> Done,
) -> Done {
    let graph = find(graph)?;
    for (from, to) in read_all(from, count)?.iter().zip(read_all(to, count)?) {
        change(&graph, from.addr(), to.addr())?;
    }
    Ok(())
}


pub(crate) fn cuGraphCreate(out: *mut CuGraph, flags: u32) -> Done {
    if flags != 0 || out.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    write(out, handle(create().handle()))
}

pub(crate) fn cuGraphDestroy(graph: CuGraph) -> Done {
    GRAPHS
        .remove(graph.addr())
        .map(drop)
        .ok_or(CuResult::INVALID_VALUE)
}

pub(crate) fn cuGraphClone(out: *mut CuGraph, original_graph: CuGraph) -> Done {
    if out.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let copy = find(original_graph)?.copy()?;
    GRAPHS.insert(Arc::clone(&copy));
    write(out, handle(copy.handle()))
}

pub(crate) fn cuGraphNodeFindInClone(
    node_out: *mut CuGraphNode,
    original_node: CuGraphNode,
    cloned_graph: CuGraph,
) -> Done {
    let graph = find(cloned_graph)?;
    let nodes = graph.nodes();
    let twin = nodes
        .iter()
        .find(|node| node.original == original_node.addr());
    write(
        node_out,
        handle(twin.ok_or(CuResult::INVALID_VALUE)?.handle()),
    )
}

pub(crate) fn cuGraphAddKernelNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    params: *const CuKernelNodeParamsV1,
) -> Done {
    add(out, graph, dependencies, count, || kernel_v1(params))
}

pub(crate) fn cuGraphAddKernelNode_v2(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    params: *const CuKernelNodeParams,
) -> Done {
    add(out, graph, dependencies, count, || kernel(&read(params)?))
}

pub(crate) fn cuGraphAddMemcpyNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    copy_params: *const CuMemcpy3D,
    _context: CuContext,
) -> Done {
    add(out, graph, dependencies, count, || memcpy(copy_params))
}

pub(crate) fn cuGraphAddMemsetNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    memset_params: *const CuMemsetNodeParams,
    _context: CuContext,
) -> Done {
    add(out, graph, dependencies, count, || {
        memset(&read(memset_params)?)
    })
}

pub(crate) fn cuGraphAddHostNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    params: *const CuHostNodeParams,
) -> Done {
    add(out, graph, dependencies, count, || host(params))
}

pub(crate) fn cuGraphAddChildGraphNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    child_graph: CuGraph,
) -> Done {
    add(out, graph, dependencies, count, || child(child_graph))
}

pub(crate) fn cuGraphAddEmptyNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
) -> Done {
    add(out, graph, dependencies, count, || Ok(Body::Empty))
}

pub(crate) fn cuGraphAddEventRecordNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    event: CuEvent,
) -> Done {
    let make = || event::find(event).map(Body::EventRecord);
    add(out, graph, dependencies, count, make)
}

pub(crate) fn cuGraphAddEventWaitNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    event: CuEvent,
) -> Done {
    let make = || event::find(event).map(Body::EventWait);
    add(out, graph, dependencies, count, make)
}

pub(crate) fn cuGraphAddMemAllocNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    params: *mut CuMemAllocNodeParams,
) -> Done {
    let make = || graph_memory::make(params).map(Body::MemAlloc);
    add(out, graph, dependencies, count, make)
}

pub(crate) fn cuGraphAddMemFreeNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    ptr: CuDevicePtr,
) -> Done {
    let make = || graph_memory::make_free(ptr.0).map(Body::MemFree);
    add(out, graph, dependencies, count, make)
}

pub(crate) fn cuGraphAddBatchMemOpNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    params: *const CuBatchMemOpNodeParams,
) -> Done {
    add(out, graph, dependencies, count, || batch(&read(params)?))
}

pub(crate) fn cuGraphAddNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    params: *mut CuGraphNodeParams,
) -> Done {
    add(out, graph, dependencies, count, || any(params))
}

pub(crate) fn cuGraphAddNode_v2(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    _dependency_data: *const CuGraphEdgeData,
    count: usize,
    params: *mut CuGraphNodeParams,
) -> Done {
    add(out, graph, dependencies, count, || any(params))
}

pub(crate) fn cuGraphConditionalHandleCreate(
    handle_out: *mut u64,
    graph: CuGraph,
    _context: CuContext,
    default_launch_value: u32,
    flags: u32,
) -> Done {
    if flags > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    find(graph)?;
    // Relaxed: only has to differ from every other.
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let value = if flags == 1 { default_launch_value } else { 0 };
    lock(&CONDITIONS)
        .get_or_insert_with(HashMap::new)
        .insert(id, value);
    write(handle_out, id)
}

pub(crate) fn cuGraphNodeGetType(node: CuGraphNode, kind: *mut CuGraphNodeType) -> Done {
    get(node, kind, |body| Some(body.kind()))
}

pub(crate) fn cuGraphGetNodes(
    graph: CuGraph,
    nodes: *mut CuGraphNode,
    count_nodes: *mut usize,
) -> Done {
    let handles: Vec<usize> = find(graph)?.nodes().iter().map(Node::handle).collect();
    list(&handles, nodes, count_nodes)
}

pub(crate) fn cuGraphGetRootNodes(
    graph: CuGraph,
    root_nodes: *mut CuGraphNode,
    count_root_nodes: *mut usize,
) -> Done {
    let graph = find(graph)?;
    let mut roots: Vec<usize> = graph.nodes().iter().map(Node::handle).collect();
    roots.retain(|&node| graph.after(node).is_empty());
    list(&roots, root_nodes, count_root_nodes)
}

pub(crate) fn cuGraphGetEdges(
    graph: CuGraph,
    from: *mut CuGraphNode,
    to: *mut CuGraphNode,
    count_edges: *mut usize,
) -> Done {
    edges(graph, from, to, count_edges)
}

pub(crate) fn cuGraphGetEdges_v2(
    graph: CuGraph,
    from: *mut CuGraphNode,
    to: *mut CuGraphNode,
    _edge_data: *mut CuGraphEdgeData,
    count_edges: *mut usize,
) -> Done {
    edges(graph, from, to, count_edges)
}

pub(crate) fn cuGraphNodeGetDependencies(
    node: CuGraphNode,
    out: *mut CuGraphNode,
    count: *mut usize,
) -> Done {
    dependencies(node, out, count)
}

pub(crate) fn cuGraphNodeGetDependencies_v2(
    node: CuGraphNode,
    out: *mut CuGraphNode,
    _edge_data: *mut CuGraphEdgeData,
    count: *mut usize,
) -> Done {
    dependencies(node, out, count)
}

pub(crate) fn cuGraphNodeGetDependentNodes(
    node: CuGraphNode,
    out: *mut CuGraphNode,
    count: *mut usize,
) -> Done {
    dependents(node, out, count)
}

pub(crate) fn cuGraphNodeGetDependentNodes_v2(
    node: CuGraphNode,
    out: *mut CuGraphNode,
    _edge_data: *mut CuGraphEdgeData,
    count: *mut usize,
) -> Done {
    dependents(node, out, count)
}

pub(crate) fn cuGraphAddDependencies(
    graph: CuGraph,
    from: *const CuGraphNode,
    to: *const CuGraphNode,
    count: usize,
) -> Done {
    relink(graph, from, to, count, Graph::link)
}

pub(crate) fn cuGraphAddDependencies_v2(
    graph: CuGraph,
    from: *const CuGraphNode,
    to: *const CuGraphNode,
    _edge_data: *const CuGraphEdgeData,
    count: usize,
) -> Done {
    relink(graph, from, to, count, Graph::link)
}

pub(crate) fn cuGraphRemoveDependencies(
    graph: CuGraph,
    from: *const CuGraphNode,
    to: *const CuGraphNode,
    count: usize,
) -> Done {
    relink(graph, from, to, count, Graph::unlink)
}

pub(crate) fn cuGraphRemoveDependencies_v2(
    graph: CuGraph,
    from: *const CuGraphNode,
    to: *const CuGraphNode,
    _edge_data: *const CuGraphEdgeData,
    count: usize,
) -> Done {
    relink(graph, from, to, count, Graph::unlink)
}

pub(crate) fn cuGraphDestroyNode(node: CuGraphNode) -> Done {
    let (node, graph) = graph_of(node)?;
    graph.remove_node(node.handle())
}

pub(crate) fn cuGraphKernelNodeGetParams(
    node: CuGraphNode,
    params: *mut CuKernelNodeParamsV1,
) -> Done {
    get(node, params, |body| match body {
        Body::Kernel(launch) => Some(launch.as_params_v1()),
        _ => None,
    })
}

pub(crate) fn cuGraphKernelNodeGetParams_v2(
    node: CuGraphNode,
    params: *mut CuKernelNodeParams,
) -> Done {
    get(node, params, |body| match body {
        Body::Kernel(launch) => Some(launch.as_params()),
        _ => None,
    })
}

pub(crate) fn cuGraphKernelNodeSetParams(
    node: CuGraphNode,
    params: *const CuKernelNodeParamsV1,
) -> Done {
    set(node, || kernel_v1(params))
}

pub(crate) fn cuGraphKernelNodeSetParams_v2(
    node: CuGraphNode,
    params: *const CuKernelNodeParams,
) -> Done {
    set(node, || kernel(&read(params)?))
}

pub(crate) fn cuGraphKernelNodeSetAttribute(
    node: CuGraphNode,
    attribute: CuLaunchAttributeId,
    value: *const CuLaunchAttributeValue,
) -> Done {
    let words = read(value)?.words;
    match &mut *lock(&find_node(node)?.body) {
        Body::Kernel(launch) => {
            launch.set_attribute(attribute, words);
            Ok(())
        }
        _ => Err(CuResult::INVALID_VALUE),
    }
}

pub(crate) fn cuGraphKernelNodeGetAttribute(
    node: CuGraphNode,
    attribute: CuLaunchAttributeId,
    value_out: *mut CuLaunchAttributeValue,
) -> Done {
    get(node, value_out, |body| match body {
        Body::Kernel(launch) => Some(CuLaunchAttributeValue {
            words: launch.attribute(attribute).unwrap_or([0; 8]),
        }),
        _ => None,
    })
}

pub(crate) fn cuGraphKernelNodeCopyAttributes(dst: CuGraphNode, src: CuGraphNode) -> Done {
    let attributes = match &*lock(&find_node(src)?.body) {
        Body::Kernel(launch) => launch.attributes.clone(),
        _ => return Err(CuResult::INVALID_VALUE),
    };
    match &mut *lock(&find_node(dst)?.body) {
        Body::Kernel(launch) => launch.attributes = attributes,
        _ => return Err(CuResult::INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn cuGraphMemcpyNodeGetParams(node: CuGraphNode, params: *mut CuMemcpy3D) -> Done {
    get(node, params, |body| match body {
        Body::Memcpy(copy) => Some(copy.0),
        Body::Copy { .. } => Some(CuMemcpy3D::zeroed()),
        _ => None,
    })
}

pub(crate) fn cuGraphMemcpyNodeSetParams(node: CuGraphNode, params: *const CuMemcpy3D) -> Done {
    set(node, || memcpy(params))
}

pub(crate) fn cuGraphMemsetNodeGetParams(
    node: CuGraphNode,
    params: *mut CuMemsetNodeParams,
) -> Done {
    get(node, params, |body| match *body {
        Body::Memset(set) => Some(set.as_params()),
        _ => None,
    })
}

pub(crate) fn cuGraphMemsetNodeSetParams(
    node: CuGraphNode,
    params: *const CuMemsetNodeParams,
) -> Done {
    set(node, || memset(&read(params)?))
}

pub(crate) fn cuGraphHostNodeGetParams(node: CuGraphNode, params: *mut CuHostNodeParams) -> Done {
    get(node, params, |body| match *body {
        Body::Host { function, data } => Some(CuHostNodeParams {
            callback: Some(function),
            data: data.0,
        }),
        _ => None,
    })
}

pub(crate) fn cuGraphHostNodeSetParams(node: CuGraphNode, params: *const CuHostNodeParams) -> Done {
    set(node, || host(params))
}

pub(crate) fn cuGraphChildGraphNodeGetGraph(node: CuGraphNode, out: *mut CuGraph) -> Done {
    let node = find_node(node)?;
    let Body::Child(child) = lock(&node.body).clone() else {
        return Err(CuResult::INVALID_VALUE);
    };
    write(out, handle(show(&child)))
}

pub(crate) fn cuGraphEventRecordNodeGetEvent(node: CuGraphNode, event_out: *mut CuEvent) -> Done {
    get(node, event_out, |body| match body {
        Body::EventRecord(event) => Some(handle(Arc::as_ptr(event).addr())),
        _ => None,
    })
}

pub(crate) fn cuGraphEventWaitNodeGetEvent(node: CuGraphNode, event_out: *mut CuEvent) -> Done {
    get(node, event_out, |body| match body {
        Body::EventWait(event) => Some(handle(Arc::as_ptr(event).addr())),
        _ => None,
    })
}

pub(crate) fn cuGraphEventRecordNodeSetEvent(node: CuGraphNode, event: CuEvent) -> Done {
    set(node, || event::find(event).map(Body::EventRecord))
}

pub(crate) fn cuGraphEventWaitNodeSetEvent(node: CuGraphNode, event: CuEvent) -> Done {
    set(node, || event::find(event).map(Body::EventWait))
}

pub(crate) fn cuGraphBatchMemOpNodeSetParams(
    node: CuGraphNode,
    params: *const CuBatchMemOpNodeParams,
) -> Done {
    set(node, || batch(&read(params)?))
}

pub(crate) fn cuGraphMemAllocNodeGetParams(
    node: CuGraphNode,
    params_out: *mut CuMemAllocNodeParams,
) -> Done {
    get(node, params_out, |body| match body {
        Body::MemAlloc(allocation) => Some(allocation.as_params()),
        _ => None,
    })
}

pub(crate) fn cuGraphMemFreeNodeGetParams(node: CuGraphNode, dptr_out: *mut CuDevicePtr) -> Done {
    get(node, dptr_out, |body| match *body {
        Body::MemFree(address) => Some(CuDevicePtr(address)),
        _ => None,
    })
}

pub(crate) fn cuGraphNodeGetParams(node: CuGraphNode, params: *mut CuGraphNodeParams) -> Done {
    get_any(node, params)
}

pub(crate) fn cuGraphNodeSetParams(node: CuGraphNode, params: *mut CuGraphNodeParams) -> Done {
    set(node, || any(params))
}

pub(crate) fn cuGraphNodeGetLocalId(node: CuGraphNode, node_id: *mut u32) -> Done {
    write(node_id, find_node(node)?.id as u32)
}

pub(crate) fn cuGraphNodeGetToolsId(node: CuGraphNode, tools_node_id: *mut u64) -> Done {
    write(tools_node_id, find_node(node)?.id)
}

pub(crate) fn cuGraphNodeGetContainingGraph(node: CuGraphNode, out: *mut CuGraph) -> Done {
    write(out, handle(graph_of(node)?.1.handle()))
}

pub(crate) fn cuGraphGetId(graph: CuGraph, graph_id: *mut u32) -> Done {
    write(graph_id, find(graph)?.id as u32)
}

/// Writes the graph in the language of `dot`.
pub(crate) fn cuGraphDebugDotPrint(graph: CuGraph, path: *const c_char, _flags: u32) -> Done {
    let mut dot = "digraph dot {\n".to_owned();
    for (place, (node, after)) in find(graph)?.in_order()?.iter().enumerate() {
        let kind = lock(&node.body).kind();
        dot.push_str(&format!("n{place} [label=\"{place}: type {kind}\"];\n"));
        for before in after {
            dot.push_str(&format!("n{before} -> n{place};\n"));
        }
    }
    dot.push_str("}\n");
    std::fs::write(text(path)?, dot).map_err(|_| CuResult::OPERATING_SYSTEM)
}

pub(crate) fn cuUserObjectCreate(
    object_out: *mut CuUserObject,
    ptr: *mut c_void,
    destroy: CuHostFn,
    initial_refcount: u32,
    flags: u32,
) -> Done {
    let destroy = destroy.ok_or(CuResult::INVALID_VALUE)?;
    if initial_refcount == 0 || flags != 1 || object_out.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let count = Mutex::new(initial_refcount);
    let object = Arc::new(UserObject {
        data: Opaque(ptr),
        destroy,
        count,
    });
    write(object_out, handle(USER_OBJECTS.insert(object)))
}

pub(crate) fn cuUserObjectRetain(object: CuUserObject, count: u32) -> Done {
    let found = USER_OBJECTS
        .get(object.addr())
        .ok_or(CuResult::INVALID_VALUE)?;
    *lock(&found.count) += count;
    Ok(())
}

pub(crate) fn cuUserObjectRelease(object: CuUserObject, count: u32) -> Done {
    USER_OBJECTS
        .get(object.addr())
        .ok_or(CuResult::INVALID_VALUE)?;
    release_user_object(object.addr(), count);
    Ok(())
}

pub(crate) fn cuGraphRetainUserObject(
    graph: CuGraph,
    object: CuUserObject,
    count: u32,
    flags: u32,
) -> Done {
    const MOVE: u32 = 1;
    let graph = find(graph)?;
    let found = USER_OBJECTS
        .get(object.addr())
        .ok_or(CuResult::INVALID_VALUE)?;
    if flags & MOVE == 0 {
        *lock(&found.count) += count;
    }
    *lock(&graph.users).entry(object.addr()).or_insert(0) += count;
    Ok(())
}

pub(crate) fn cuGraphReleaseUserObject(graph: CuGraph, object: CuUserObject, count: u32) -> Done {
    let graph = find(graph)?;
    let mut users = lock(&graph.users);
    let held = users.get_mut(&object.addr()).filter(|held| **held >= count);
    *held.ok_or(CuResult::INVALID_VALUE)? -= count;
    drop(users);
    release_user_object(object.addr(), count);
    Ok(())
}
