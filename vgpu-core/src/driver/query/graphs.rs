//! Graphs: their memory, and their memory nodes.

use core::ffi::c_void;

use cuda_api::{
    CuConditionalNodeParams, CuDevice, CuDevicePtr, CuGraph, CuGraphExec, CuGraphNode,
    CuGraphNodeParams, CuKernelNodeParams, CuMemAllocNodeParams, CuMemLocation, CuResult,
};

use super::ok;
use crate::driver::genuine::cuda;
use crate::figures::room::Figures;

/// A device's graph memory, bytes (`CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT`, `…_RESERVED_MEM_CURRENT`).
const GRAPH_USED: u32 = 0;

const GRAPH_RESERVED: u32 = 2;

/// `CU_GRAPH_NODE_TYPE_GRAPH`.
const NODE_CHILD: u32 = 4;

/// `CU_GRAPH_NODE_TYPE_KERNEL`.
const NODE_KERNEL: u32 = 0;

/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
pub(crate) const NODE_ALLOC: u32 = 10;

/// `CU_GRAPH_NODE_TYPE_MEM_FREE`.
const NODE_FREE: u32 = 11;

/// `CU_GRAPH_NODE_TYPE_CONDITIONAL`.
const NODE_CONDITIONAL: u32 = 13;

fn graph_bytes(ordinal: i32, attribute: u32) -> Option<u64> {
    let mut bytes = 0u64;
    let value: *mut c_void = (&raw mut bytes).cast();
    // SAFETY: the attribute is a 64-bit number, and there is room for one.
    ok(unsafe { cuda::cuDeviceGetGraphMemAttribute(CuDevice(ordinal), attribute, value) })?;
    Some(bytes)
}

/// The memory that the device's graphs hold, bytes.
pub(crate) fn graph_reserved(ordinal: i32) -> Option<u64> {
    graph_bytes(ordinal, GRAPH_RESERVED)
}

/// The memory that the device's graphs hold, and the part of it that is in use.
pub(crate) fn graph_figures(ordinal: i32) -> Option<Figures> {
    Some(Figures {
        used: graph_bytes(ordinal, GRAPH_USED)?,
        reserved: graph_bytes(ordinal, GRAPH_RESERVED)?,
    })
}

/// A memory node of a graph.
#[derive(Clone, Copy)]
pub(crate) enum MemoryNode {
    /// A node that allocates.
    Alloc {
        /// Where, and of which kind.
        location: CuMemLocation,
        kind: u32,
        bytes: u64,
        address: u64,
    },
    /// A node that frees the memory of an allocation node, of this graph or another.
    Free { address: u64 },
}

/// Calls `each` with the memory nodes of a graph, of the graphs within it and of its conditional nodes' bodies.
/// `None` where the driver does not say all of them, or there is no memory to hear it in.
pub(crate) fn memory_nodes(graph: CuGraph, each: &mut impl FnMut(MemoryNode)) -> Option<()> {
    let mut graphs: Vec<CuGraph> = Vec::new();
    graphs.try_reserve(1).ok()?;
    graphs.push(graph);
    while let Some(graph) = graphs.pop() {
        for node in nodes_of(graph)? {
            let mut kind = 0;
            // SAFETY: a node that the driver named just now.
            ok(unsafe { cuda::cuGraphNodeGetType(node, &raw mut kind) })?;
            match kind {
                NODE_ALLOC => {
                    let mut params = CuMemAllocNodeParams::zeroed();
                    // SAFETY: the driver named this node just now, and writes to the local `params`.
                    ok(unsafe { cuda::cuGraphMemAllocNodeGetParams(node, &raw mut params) })?;
                    each(MemoryNode::Alloc {
                        location: params.pool.location,
                        kind: params.pool.kind,
                        bytes: u64::try_from(params.bytes).unwrap_or(u64::MAX),
                        address: params.ptr.0,
                    });
                }
                NODE_FREE => {
                    let mut address = CuDevicePtr(0);
                    // SAFETY: the driver named this node just now, and writes one address, to the local `address`.
                    ok(unsafe { cuda::cuGraphMemFreeNodeGetParams(node, &raw mut address) })?;
                    each(MemoryNode::Free { address: address.0 });
                }
                NODE_CHILD => {
                    let mut child: CuGraph = core::ptr::null_mut();
                    // SAFETY: the driver named this node just now, and writes one handle, to the local `child`.
                    ok(unsafe { cuda::cuGraphChildGraphNodeGetGraph(node, &raw mut child) })?;
                    graphs.try_reserve(1).ok()?;
                    graphs.push(child);
                }
                NODE_CONDITIONAL => bodies_of(node, &mut graphs)?,
                _ => {}
            }
        }
    }
    Some(())
}

fn nodes_of(graph: CuGraph) -> Option<Vec<CuGraphNode>> {
    let mut count = 0usize;
    // SAFETY: the caller's own graph; asks for the number only.
    ok(unsafe { cuda::cuGraphGetNodes(graph, core::ptr::null_mut(), &raw mut count) })?;
    // The nodes come all at once; there may be many, and never on a path of an allocator.
    let mut nodes: Vec<CuGraphNode> = Vec::new();
    nodes.try_reserve_exact(count).ok()?;
    nodes.resize(count, core::ptr::null_mut());
    if count > 0 {
        // SAFETY: the caller's own graph, and room for that many nodes.
        ok(unsafe { cuda::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) })?;
    }
    nodes.truncate(count);
    Some(nodes)
}

/// The bodies of a conditional node. Drivers before 13.2 do not return them, and allow no memory node in one.
fn bodies_of(node: CuGraphNode, graphs: &mut Vec<CuGraph>) -> Option<()> {
    let mut params = CuGraphNodeParams::zeroed();
    // SAFETY: a node that the driver named just now, and room for the parameters.
    if ok(unsafe { cuda::cuGraphNodeGetParams(node, &raw mut params) }).is_none() {
        return Some(());
    }
    // SAFETY: the driver says that the node is conditional, so the words are of that structure.
    let conditional = unsafe { params.body::<CuConditionalNodeParams>().read_unaligned() };
    let count = usize::try_from(conditional.size).ok()?;
    graphs.try_reserve(count).ok()?;
    for at in 0..count {
        if conditional.graphs_out.is_null() {
            return None;
        }
        // SAFETY: not null, and the driver has just written there as many graphs as it counts.
        graphs.push(unsafe { conditional.graphs_out.wrapping_add(at).read_unaligned() });
    }
    Some(())
}

/// The graph in the parameters of a node that holds one.
pub(crate) fn child_of(params: &CuGraphNodeParams) -> Option<CuGraph> {
    if params.kind != NODE_CHILD {
        return None;
    }
    // SAFETY: the kind says that the words begin with a graph.
    let child = unsafe { params.body::<CuGraph>().read_unaligned() };
    (!child.is_null()).then_some(child)
}

/// The parameters of a kernel in those of a node that is one.
pub(crate) fn kernel_of(params: &CuGraphNodeParams) -> Option<CuKernelNodeParams> {
    if params.kind != NODE_KERNEL {
        return None;
    }
    // SAFETY: the kind says that the words are those of a kernel.
    Some(unsafe { params.body::<CuKernelNodeParams>().read_unaligned() })
}

/// Destroys an executable graph whose handle the program has not got.
pub(crate) fn destroy_graph_exec(exec: CuGraphExec) {
    // SAFETY: the driver made it just now, and the program has not got the handle.
    let destroyed = unsafe { cuda::cuGraphExecDestroy(exec) };
    debug_assert_eq!(destroyed, CuResult::SUCCESS);
}

/// Gives memory that no graph of the device uses back to the device.
pub(crate) fn trim_graphs(ordinal: i32) {
    // SAFETY: takes a number.
    let trimmed = unsafe { cuda::cuDeviceGraphMemTrim(CuDevice(ordinal)) };
    let _hint = trimmed;
}
