//! The functions of graphs: create, add nodes, link them, read them back, user objects.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use cuda_api::driver::*;

use crate::base::border::{
    Done, Opaque, check_out, handle, invalid_if, lock, read, read_all, text, write,
};
use crate::memory::graph_memory;
use crate::streams::event;
use crate::streams::graph::{
    Body, CONDITIONS, CopyParams, GRAPHS, Graph, NEXT_ID, Node, USER_OBJECTS, UserObject, add, any,
    batch, child, create, find, find_node, host, kernel, kernel_v1, list, load_given, memcpy,
    memset, release_user_object,
};

/// Answers with the contents of a node of one kind.
macro_rules! get {
    ($node:ident, $out:ident, $body:pat => $value:expr) => {
        get($node, $out, |body| match body {
            $body => Some($value),
            _ => None,
        })
    };
}

calls! {
    cuGraphCreate(out, flags) => {
        invalid_if(flags != 0 || out.is_null())?;
        write(out, handle(create().handle()))
    };
    cuGraphDestroy(graph) => GRAPHS.end(graph.addr());
    cuGraphClone(out, original_graph) => {
        check_out(out)?;
        let copy = find(original_graph)?.copy()?;
        GRAPHS.insert(Arc::clone(&copy));
        write(out, handle(copy.handle()))
    };
    cuGraphAddKernelNode(out, graph, dependencies, count, params)
        => add(out, graph, dependencies, count, || kernel_v1(params));
    cuGraphAddKernelNode_v2(out, graph, dependencies, count, params)
        => add(out, graph, dependencies, count, || kernel(params));
    cuGraphAddMemcpyNode(out, graph, dependencies, count, copy_params, _context)
        => add(out, graph, dependencies, count, || memcpy(copy_params));
    cuGraphAddMemsetNode(out, graph, dependencies, count, memset_params, _context)
        => add(out, graph, dependencies, count, || memset(memset_params));
    cuGraphAddHostNode(out, graph, dependencies, count, params)
        => add(out, graph, dependencies, count, || host(params));
    cuGraphAddChildGraphNode(out, graph, dependencies, count, child_graph)
        => add(out, graph, dependencies, count, || child(child_graph));
    cuGraphAddEmptyNode(out, graph, dependencies, count)
        => add(out, graph, dependencies, count, || Ok(Body::Empty));
    cuGraphAddEventRecordNode(out, graph, dependencies, count, event) => {
        let make = || event::find(event).map(Body::EventRecord);
        add(out, graph, dependencies, count, make)
    };
    cuGraphAddEventWaitNode(out, graph, dependencies, count, event) => {
        let make = || event::find(event).map(Body::EventWait);
        add(out, graph, dependencies, count, make)
    };
    cuGraphAddMemAllocNode(out, graph, dependencies, count, params) => {
        let make = || graph_memory::make(params).map(Body::MemAlloc);
        add(out, graph, dependencies, count, make)
    };
    cuGraphAddMemFreeNode(out, graph, dependencies, count, ptr) => {
        let make = || graph_memory::make_free(ptr.0).map(Body::MemFree);
        add(out, graph, dependencies, count, make)
    };
    cuGraphAddBatchMemOpNode(out, graph, dependencies, count, params)
        => add(out, graph, dependencies, count, || batch(params));
    cuGraphAddNode(out, graph, dependencies, count, params)
        => add(out, graph, dependencies, count, || any(params));
    cuGraphAddNode_v2(out, graph, dependencies, _dependency_data, count, params)
        => add(out, graph, dependencies, count, || any(params));
    cuGraphNodeGetType(node, kind) => get(node, kind, |body| Some(body.kind()));
    cuGraphGetNodes(graph, nodes, count_nodes) => {
        let handles: Vec<usize> = find(graph)?.nodes().iter().map(Node::handle).collect();
        list(&handles, nodes, count_nodes)
    };
    cuGraphGetRootNodes(graph, root_nodes, count_root_nodes) => {
        let graph = find(graph)?;
        let mut roots: Vec<usize> = graph.nodes().iter().map(Node::handle).collect();
        roots.retain(|&node| graph.after(node).is_empty());
        list(&roots, root_nodes, count_root_nodes)
    };
    cuGraphGetEdges(graph, from, to, count_edges) => edges(graph, from, to, count_edges);
    cuGraphGetEdges_v2(graph, from, to, _edge_data, count_edges)
        => edges(graph, from, to, count_edges);
    cuGraphNodeGetDependencies(node, out, count) => dependencies(node, out, count);
    cuGraphNodeGetDependencies_v2(node, out, _edge_data, count) => dependencies(node, out, count);
    cuGraphNodeGetDependentNodes(node, out, count) => dependents(node, out, count);
    cuGraphNodeGetDependentNodes_v2(node, out, _edge_data, count) => dependents(node, out, count);
    cuGraphAddDependencies(graph, from, to, count) => relink(graph, from, to, count, Graph::link);
    cuGraphAddDependencies_v2(graph, from, to, _edge_data, count)
        => relink(graph, from, to, count, Graph::link);
    cuGraphRemoveDependencies(graph, from, to, count)
        => relink(graph, from, to, count, Graph::unlink);
    cuGraphRemoveDependencies_v2(graph, from, to, _edge_data, count)
        => relink(graph, from, to, count, Graph::unlink);
    cuGraphDestroyNode(node) => {
        let (node, graph) = graph_of(node)?;
        graph.remove_node(node.handle())
    };
    cuGraphKernelNodeGetParams(node, params)
        => get!(node, params, Body::Kernel(launch) => launch.as_params_v1());
    cuGraphKernelNodeGetParams_v2(node, params)
        => get!(node, params, Body::Kernel(launch) => launch.as_params());
    cuGraphKernelNodeSetParams(node, params) => set(node, || kernel_v1(params));
    cuGraphKernelNodeSetParams_v2(node, params) => set(node, || kernel(params));
    cuGraphKernelNodeSetAttribute(node, attribute, value) => {
        let words = read(value)?.words;
        match &mut *lock(&find_node(node)?.body) {
            Body::Kernel(launch) => {
                launch.set_attribute(attribute, words);
                Ok(())
            }
            _ => Err(CuResult::INVALID_VALUE),
        }
    };
    cuGraphKernelNodeGetAttribute(node, attribute, value_out) => {
        get!(node, value_out, Body::Kernel(launch) => CuLaunchAttributeValue {
            words: launch.attribute(attribute).unwrap_or([0; 8]),
        })
    };
    cuGraphMemcpyNodeGetParams(node, params) => {
        get(node, params, |body| match body {
            Body::Memcpy(copy) => Some(copy.0),
            Body::Copy { .. } => Some(CuMemcpy3D::zeroed()),
            _ => None,
        })
    };
    cuGraphMemcpyNodeSetParams(node, params) => set(node, || memcpy(params));
    cuGraphMemsetNodeGetParams(node, params)
        => get!(node, params, Body::Memset(set) => *set);
    cuGraphMemsetNodeSetParams(node, params) => set(node, || memset(params));
    cuGraphHostNodeGetParams(node, params) => {
        get!(node, params, Body::Host { function, data } => CuHostNodeParams {
            callback: Some(*function),
            data: data.0,
        })
    };
    cuGraphHostNodeSetParams(node, params) => set(node, || host(params));
    cuGraphChildGraphNodeGetGraph(node, out) => {
        let node = find_node(node)?;
        let Body::Child(child) = lock(&node.body).clone() else {
            return Err(CuResult::INVALID_VALUE);
        };
        write(out, handle(show(&child)))
    };
    cuGraphEventRecordNodeGetEvent(node, event_out)
        => get!(node, event_out, Body::EventRecord(event) => handle(Arc::as_ptr(event).addr()));
    cuGraphEventWaitNodeGetEvent(node, event_out)
        => get!(node, event_out, Body::EventWait(event) => handle(Arc::as_ptr(event).addr()));
    cuGraphEventRecordNodeSetEvent(node, event)
        => set(node, || event::find(event).map(Body::EventRecord));
    cuGraphEventWaitNodeSetEvent(node, event)
        => set(node, || event::find(event).map(Body::EventWait));
    cuGraphBatchMemOpNodeSetParams(node, params) => set(node, || batch(params));
    cuGraphMemAllocNodeGetParams(node, params_out)
        => get!(node, params_out, Body::MemAlloc(allocation) => allocation.as_params());
    cuGraphMemFreeNodeGetParams(node, dptr_out)
        => get!(node, dptr_out, Body::MemFree(address) => CuDevicePtr(*address));
    cuGraphNodeGetParams(node, params) => get_any(node, params);
    cuGraphNodeSetParams(node, params) => set(node, || any(params));
    cuGraphNodeGetLocalId(node, node_id) => write(node_id, find_node(node)?.id as u32);
    cuGraphNodeGetToolsId(node, tools_node_id) => write(tools_node_id, find_node(node)?.id);
    cuGraphNodeGetContainingGraph(node, out) => write(out, handle(graph_of(node)?.1.handle()));
    cuGraphGetId(graph, graph_id) => write(graph_id, find(graph)?.id as u32);
    cuUserObjectRetain(object, count) => {
        let found = USER_OBJECTS.find(object.addr())?;
        *lock(&found.count) += count;
        Ok(())
    };
    cuGraphReleaseUserObject(graph, object, count) => {
        let graph = find(graph)?;
        let mut users = lock(&graph.users);
        let held = users.get_mut(&object.addr()).filter(|held| **held >= count);
        *held.ok_or(CuResult::INVALID_VALUE)? -= count;
        drop(users);
        release_user_object(object.addr(), count);
        Ok(())
    };
    cuGraphNodeFindInClone(node_out, original_node, cloned_graph) => {
        let graph = find(cloned_graph)?;
        let mut nodes = graph.nodes().into_iter();
        let twin = nodes.find(|node| node.original == original_node.addr());
        write(node_out, handle(twin.ok_or(CuResult::INVALID_VALUE)?.handle()))
    };
    cuGraphConditionalHandleCreate(handle_out, graph, _context, default_launch_value, flags) => {
        invalid_if(flags > 1)?;
        find(graph)?;
        // Relaxed: only has to differ from every other.
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let value = if flags == 1 { default_launch_value } else { 0 };
        lock(&CONDITIONS).insert(id, value);
        write(handle_out, id)
    };
    cuGraphKernelNodeCopyAttributes(dst, src) => {
        let attributes = match &*lock(&find_node(src)?.body) {
            Body::Kernel(launch) => launch.attributes.clone(),
            _ => return Err(CuResult::INVALID_VALUE),
        };
        match &mut *lock(&find_node(dst)?.body) {
            Body::Kernel(launch) => launch.attributes = attributes,
            _ => return Err(CuResult::INVALID_VALUE),
        }
        Ok(())
    };
    // Writes the graph in the language of `dot`.
    cuGraphDebugDotPrint(graph, path, _flags) => {
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
    };
    cuUserObjectCreate(object_out, ptr, destroy, initial_refcount, flags) => {
        let destroy = destroy.ok_or(CuResult::INVALID_VALUE)?;
        invalid_if(initial_refcount == 0 || flags != 1 || object_out.is_null())?;
        let count = Mutex::new(initial_refcount);
        let object = Arc::new(UserObject {
            data: Opaque(ptr),
            destroy,
            count,
        });
        write(object_out, handle(USER_OBJECTS.insert(object)))
    };
    cuUserObjectRelease(object, count) => {
        USER_OBJECTS.find(object.addr())?;
        release_user_object(object.addr(), count);
        Ok(())
    };
    cuGraphRetainUserObject(graph, object, count, flags) => {
        const MOVE: u32 = 1;
        let graph = find(graph)?;
        let found = USER_OBJECTS.find(object.addr())?;
        if flags & MOVE == 0 {
            *lock(&found.count) += count;
        }
        *lock(&graph.users).entry(object.addr()).or_insert(0) += count;
        Ok(())
    };
}

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
        // A captured copy cannot be reported: only the call that made it knew its parameters.
        Body::Copy { .. } | Body::BatchMemOp(_) => return Err(CuResult::NOT_SUPPORTED),
        Body::Memset(set) => write(params.body_mut(), *set)?,
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
    invalid_if(old.kind() != body.kind())?;
    load_given(&body)?;
    *old = body;
    Ok(())
}

/// Answers with the contents of a node of some kind.
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
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for node in graph.nodes() {
        starts.extend(graph.after(node.handle()));
        ends.resize(starts.len(), node.handle());
    }
    invalid_if(from.is_null() != to.is_null())?;
    let asks = from.is_null();
    let mut room = if asks { 0 } else { read(count.cast_const())? };
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
