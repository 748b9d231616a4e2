//! Graphs that can be launched: what a launch gives to its stream.
//!
//! Nodes that depend on nothing of each other run side by side, so a stretch of kernels and copies
//! takes as long as its longest path, and keeps the GPU busy while any kernel of it runs. A node that
//! something else has to act for (a host function, an event, a value, a kernel that spins) ends a
//! stretch: what was before it in the order of the graph is done first.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cuda_api::driver::*;
use cuda_sim::exec::{Place, Work};

use crate::border::{Done, handle, lock, read, write, write_if};
use crate::capture;
use crate::choices;
use crate::context;
use crate::event;
use crate::gpu::exec;
use crate::graph::{self, Body, Conditional, CopyParams, Graph, Memset};
use crate::helper;
use crate::memory;
use crate::memory_node;
use crate::stream::{self, Stream};
use crate::table::Table;

const AUTO_FREE: u64 = 1;
const UPLOAD: u64 = 2;
const DEVICE_LAUNCH: u64 = 4;
const NODE_PRIORITY: u64 = 8;

/// An instantiated graph.
#[derive(Debug)]
struct Exec {
    nodes: Mutex<Vec<ExecNode>>,
    flags: u64,
    id: u64,
    /// The end of its last launch: the next one comes after it, in whatever stream.
    last: Mutex<Option<Place>>,
    /// For a launch into a stream that captures; none when the graph cannot be copied.
    template: Mutex<Option<Arc<Graph>>>,
}

#[derive(Debug, Clone)]
struct ExecNode {
    /// The node that it was made from.
    origin: usize,
    body: Body,
    after: Vec<usize>,
    is_enabled: bool,
}

static EXECS: Table<Exec> = Table::new();
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn find(exec: CuGraphExec) -> Done<Arc<Exec>> {
    EXECS.get(exec.addr()).ok_or(CuResult::INVALID_VALUE)
}

fn nodes_of(graph: &Graph) -> Done<Vec<ExecNode>> {
    let ordered = graph.in_order()?;
    Ok(ordered
        .into_iter()
        .map(|(node, after)| {
            let body = lock(&node.body).clone();
            ExecNode {
                origin: node.handle(),
                body,
                after,
                is_enabled: true,
            }
        })
        .collect())
}

fn instantiate(out: *mut CuGraphExec, graph: CuGraph, flags: u64) -> Done<Arc<Exec>> {
    if out.is_null() || flags & !(AUTO_FREE | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY) != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
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

/// What a stretch of a graph does to memory, in order.
type Acts = Vec<Arc<dyn Fn() + Send + Sync>>;

/// A stretch of nodes that need nobody's help.
#[derive(Default)]
struct Stretch {
    /// Start, end, and whether a kernel runs in between (else a copy).
    spans: Vec<(u64, u64, bool)>,
    acts: Acts,
}

impl Stretch {
    /// The times as work of one channel: the GPU is taken while any kernel runs, and a copy engine
    /// while only copies do.
    fn works(&self) -> Vec<Work> {
        let mut times: Vec<u64> = self
            .spans
            .iter()
            .flat_map(|span| [span.0, span.1])
            .collect();
        times.sort_unstable();
        times.dedup();
        let mut works: Vec<Work> = Vec::new();
        for pair in times.windows(2) {
            let [from, to] = *pair else { continue };
            let within = |span: &&(u64, u64, bool)| span.0 <= from && to <= span.1;
            let mut running = self.spans.iter().filter(within).peekable();
            if running.peek().is_none() {
                continue;
            }
            let length = to - from;
            let is_kernel = running.any(|span| span.2);
            match works.last_mut() {
                Some(Work::Kernel { ns }) if is_kernel => *ns += length,
                Some(Work::Copy { ns }) if !is_kernel => *ns += length,
                _ if is_kernel => works.push(Work::Kernel { ns: length }),
                _ => works.push(Work::Copy { ns: length }),
            }
        }
        works
    }

    fn submit(&mut self, stream: &Stream) -> Done {
        let acts = std::mem::take(&mut self.acts);
        if !acts.is_empty() {
            stream::in_order(stream, move || acts.iter().for_each(|act| act()))?;
        }
        for work in self.works() {
            stream::submit(stream, work)?;
        }
        self.spans.clear();
        Ok(())
    }
}

/// Plays nodes into a stream.
struct Player<'a> {
    stream: &'a Stream,
    stretch: Stretch,
}

impl Player<'_> {
    fn play(&mut self, nodes: &[ExecNode]) -> Done {
        let mut ends = vec![0_u64; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            let start = node
                .after
                .iter()
                .map(|&before| ends[before])
                .max()
                .unwrap_or(0);
            ends[index] = start;
            if !node.is_enabled {
                continue;
            }
            match &node.body {
                Body::Empty | Body::MemAlloc(_) => {}
                Body::MemFree(address) => {
                    memory_node::free(*address);
                }
                Body::Kernel(launch) => {
                    let plan = launch.plan()?;
                    match plan.time_in(self.stream.context)? {
                        Some(ns) => ends[index] = self.span(start, ns, true),
                        None => {
                            self.cut(&mut ends)?;
                            plan.submit(self.stream)?;
                        }
                    }
                }
                Body::Copy { act, bytes } => {
                    ends[index] = self.copy(start, *bytes, Arc::clone(act))?;
                }
                Body::Memcpy(params) => {
                    let params = *params;
                    let bytes = params.0.width_bytes * params.0.height * params.0.depth.max(1);
                    let act = Arc::new(move || copy_now(&params));
                    ends[index] = self.copy(start, bytes as u64, act)?;
                }
                Body::Memset(set) => {
                    let set = *set;
                    let bytes = set.width * set.height * set.element_size as usize;
                    ends[index] = self.copy(start, bytes as u64, Arc::new(move || fill(&set)))?;
                }
                Body::Host { function, data } => {
                    self.cut(&mut ends)?;
                    let (function, data) = (*function, *data);
                    stream::submit_call(self.stream, move || stream::call_host(function, data))?;
                }
                Body::EventRecord(event) => {
                    self.cut(&mut ends)?;
                    event.record_in(self.stream)?;
                }
                Body::EventWait(event) => {
                    self.cut(&mut ends)?;
                    event.wait_in(self.stream)?;
                }
                Body::BatchMemOp(ops) => {
                    self.cut(&mut ends)?;
                    for op in ops {
                        stream::submit_value(self.stream, op.0)?;
                    }
                }
                Body::Child(child) => {
                    self.cut(&mut ends)?;
                    self.play(&nodes_of(child)?)?;
                    self.cut(&mut ends)?;
                }
                Body::Conditional(conditional) => {
                    self.cut(&mut ends)?;
                    if let Some(body) = chosen(conditional) {
                        let nodes = nodes_of(body)?;
                        for _ in 0..times(conditional, &nodes)? {
                            self.play(&nodes)?;
                            self.stretch.submit(self.stream)?;
                        }
                    }
                    self.cut(&mut ends)?;
                }
            }
        }
        Ok(())
    }

    fn span(&mut self, start: u64, ns: u64, is_kernel: bool) -> u64 {
        let end = start.saturating_add(ns);
        self.stretch.spans.push((start, end, is_kernel));
        end
    }

    fn copy(&mut self, start: u64, bytes: u64, act: Arc<dyn Fn() + Send + Sync>) -> Done<u64> {
        self.stretch.acts.push(act);
        Ok(self.span(start, exec()?.script().copy_ns(bytes), false))
    }

    /// Ends a stretch: what comes next starts when all of it is done.
    fn cut(&mut self, ends: &mut [u64]) -> Done {
        ends.fill(0);
        self.stretch.submit(self.stream)
    }
}

/// The body that a conditional node runs.
fn chosen(conditional: &Conditional) -> Option<&Arc<Graph>> {
    let value = graph::condition(conditional.handle) as usize;
    match conditional.kind {
        0 => conditional.bodies.get(usize::from(value == 0)),
        WHILE => conditional.bodies.first().filter(|_| value != 0),
        _ => conditional.bodies.get(value),
    }
}

const WHILE: u32 = 1;

/// How often a conditional node's body runs. A loop's condition is a kernel's to change, and kernels
/// compute nothing: so the script says it by the name of a kernel in the loop, else it is the
/// condition's own value.
fn times(conditional: &Conditional, body: &[ExecNode]) -> Done<u32> {
    const AT_MOST: u32 = 10_000;
    if conditional.kind != WHILE {
        return Ok(1);
    }
    let (script, draw) = (exec()?.script(), crate::launch::draw()?);
    let said = body.iter().find_map(|node| match &node.body {
        Body::Kernel(launch) => script.loops(&launch.function.name.to_string_lossy(), draw),
        _ => None,
    });
    Ok(said.unwrap_or_else(|| graph::condition(conditional.handle).min(AT_MOST)))
}

/// The allocation nodes among nodes, those of child graphs too.
fn allocations(nodes: &[ExecNode]) -> Done<Vec<memory_node::Allocation>> {
    let mut found = Vec::new();
    for node in nodes.iter().filter(|node| node.is_enabled) {
        match &node.body {
            Body::MemAlloc(allocation) => found.push(allocation.clone()),
            Body::Child(child) => found.extend(allocations(&nodes_of(child)?)?),
            _ => {}
        }
    }
    Ok(found)
}

/// Takes the memory of a graph's allocation nodes; all of it or none.
fn take_memory(nodes: &[ExecNode], free_first: bool) -> Done {
    let mut taken = Vec::new();
    for allocation in allocations(nodes)? {
        if let Err(code) = allocation.launch(free_first) {
            for address in taken {
                memory_node::free(address);
            }
            return Err(code);
        }
        taken.push(allocation.address());
    }
    Ok(())
}

/// Takes the memory that a graph's first launch needs, without launching it.
fn upload(made: &Exec) -> Done {
    let nodes = lock(&made.nodes).clone();
    memory_node::upload(&allocations(&nodes)?)
}

fn launch(graph_exec: CuGraphExec, stream: CuStream) -> Done {
    if helper::is_helper() {
        return Err(CuResult::NOT_PERMITTED);
    }
    let made = find(graph_exec)?;
    let stream = stream::find(stream)?;
    context::current()?;
    let captured = capture::takes(&stream, || {
        let template = lock(&made.template);
        let graph = template.as_ref().ok_or(CuResult::NOT_SUPPORTED)?;
        Ok(Body::Child(graph.copy()?))
    })?;
    if captured {
        return Ok(());
    }
    let nodes = lock(&made.nodes).clone();
    for node in &nodes {
        if let Body::Kernel(launch) = &node.body {
            crate::module::load_for(&launch.function, stream.context)?;
        }
    }
    take_memory(&nodes, made.flags & AUTO_FREE != 0)?;
    // Not locked over the wait for room in the stream.
    let last = *lock(&made.last);
    if let Some(place) = last {
        stream::submit(&stream, Work::WaitChannel { place })?;
    }
    let mut player = Player {
        stream: &stream,
        stretch: Stretch::default(),
    };
    player.play(&nodes)?;
    player.stretch.submit(&stream)?;
    *lock(&made.last) = exec()?.last_place(stream.channel);
    Ok(())
}

// --- memory -----------------------------------------------------------------------------------

fn fill(set: &Memset) {
    let row = set.width * set.element_size as usize;
    for line in 0..set.height {
        let start = set.dst + (line * set.pitch) as u64;
        if !memory::is_reachable(start, row as u64) {
            return;
        }
        let value = set.value.to_le_bytes();
        let unit = set.element_size as usize;
        // SAFETY: these addresses are the driver's own, as was just asked.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(crate::space::address::<u8>(start), row) };
        for element in bytes.chunks_exact_mut(unit) {
            element.copy_from_slice(&value[..unit]);
        }
    }
}

fn copy_now(params: &CopyParams) {
    // A copy that the driver would refuse at launch has been refused when the node was made.
    crate::copy::perform_3d(&params.0).ok();
}

// --- updates ----------------------------------------------------------------------------------

fn set(graph_exec: CuGraphExec, node: CuGraphNode, make: impl FnOnce() -> Done<Body>) -> Done {
    let made = find(graph_exec)?;
    let body = make()?;
    let mut nodes = lock(&made.nodes);
    let found = nodes.iter_mut().find(|known| known.origin == node.addr());
    let found = found.ok_or(CuResult::INVALID_VALUE)?;
    if found.body.kind() != body.kind() {
        return Err(CuResult::INVALID_VALUE);
    }
    found.body = body;
    Ok(())
}

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
    for (old, new) in nodes.iter_mut().zip(new) {
        old.body = new.body;
    }
    *lock(&made.template) = graph::find(graph)?.copy().ok();
    Ok((UPDATE_SUCCESS, 0))
}

// --- the C border -----------------------------------------------------------------------------

pub(crate) fn cuGraphInstantiate(
    out: *mut CuGraphExec,
    graph: CuGraph,
    error_node_out: *mut CuGraphNode,
    _log_buffer: *mut c_char,
    _buffer_size: usize,
) -> Done {
    write_if(error_node_out, std::ptr::null_mut());
    instantiate(out, graph, 0).map(drop)
}

pub(crate) fn cuGraphInstantiate_v2(
    out: *mut CuGraphExec,
    graph: CuGraph,
    error_node_out: *mut CuGraphNode,
    _log_buffer: *mut c_char,
    _buffer_size: usize,
) -> Done {
    write_if(error_node_out, std::ptr::null_mut());
    instantiate(out, graph, 0).map(drop)
}

pub(crate) fn cuGraphInstantiateWithFlags(
    out: *mut CuGraphExec,
    graph: CuGraph,
    flags: u64,
) -> Done {
    instantiate(out, graph, flags).map(drop)
}

pub(crate) fn cuGraphInstantiateWithParams(
    out: *mut CuGraphExec,
    graph: CuGraph,
    instantiate_params: *mut CuGraphInstantiateParams,
) -> Done {
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
}

pub(crate) fn cuGraphLaunch(graph: CuGraphExec, stream: CuStream) -> Done {
    launch(graph, stream)
}

pub(crate) fn cuGraphUpload(graph: CuGraphExec, stream: CuStream) -> Done {
    let made = find(graph)?;
    capture::forbidden(&*stream::find(stream)?)?;
    upload(&made)
}

pub(crate) fn cuGraphExecDestroy(graph_exec: CuGraphExec) -> Done {
    EXECS
        .remove(graph_exec.addr())
        .map(drop)
        .ok_or(CuResult::INVALID_VALUE)
}

pub(crate) fn cuGraphExecGetFlags(graph_exec: CuGraphExec, flags: *mut u64) -> Done {
    write(flags, find(graph_exec)?.flags)
}

pub(crate) fn cuGraphExecGetId(graph_exec: CuGraphExec, graph_id: *mut u32) -> Done {
    write(graph_id, find(graph_exec)?.id as u32)
}

pub(crate) fn cuGraphExecUpdate(
    graph_exec: CuGraphExec,
    graph: CuGraph,
    error_node_out: *mut CuGraphNode,
    update_result_out: *mut CuGraphExecUpdateResult,
) -> Done {
    let (result, node) = update(graph_exec, graph)?;
    write_if(error_node_out, handle(node));
    write(update_result_out, result)?;
    if result == UPDATE_SUCCESS {
        Ok(())
    } else {
        Err(CuResult::GRAPH_EXEC_UPDATE_FAILURE)
    }
}

pub(crate) fn cuGraphExecUpdate_v2(
    graph_exec: CuGraphExec,
    graph: CuGraph,
    result_info: *mut CuGraphExecUpdateResultInfo,
) -> Done {
    let (result, node) = update(graph_exec, graph)?;
    let error_from_node = std::ptr::null_mut();
    let info = CuGraphExecUpdateResultInfo {
        result,
        error_node: handle(node),
        error_from_node,
    };
    write(result_info, info)?;
    if result == UPDATE_SUCCESS {
        Ok(())
    } else {
        Err(CuResult::GRAPH_EXEC_UPDATE_FAILURE)
    }
}

pub(crate) fn cuGraphExecKernelNodeSetParams(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    params: *const CuKernelNodeParamsV1,
) -> Done {
    set(graph_exec, node, || graph::kernel_v1(params))
}

pub(crate) fn cuGraphExecKernelNodeSetParams_v2(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    params: *const CuKernelNodeParams,
) -> Done {
    set(graph_exec, node, || graph::kernel(&read(params)?))
}

pub(crate) fn cuGraphExecMemcpyNodeSetParams(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    copy_params: *const CuMemcpy3D,
    _context: CuContext,
) -> Done {
    set(graph_exec, node, || graph::memcpy(copy_params))
}

pub(crate) fn cuGraphExecMemsetNodeSetParams(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    memset_params: *const CuMemsetNodeParams,
    _context: CuContext,
) -> Done {
    set(graph_exec, node, || graph::memset(&read(memset_params)?))
}

pub(crate) fn cuGraphExecHostNodeSetParams(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    params: *const CuHostNodeParams,
) -> Done {
    set(graph_exec, node, || graph::host(params))
}

pub(crate) fn cuGraphExecChildGraphNodeSetParams(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    child_graph: CuGraph,
) -> Done {
    set(graph_exec, node, || graph::child(child_graph))
}

pub(crate) fn cuGraphExecEventRecordNodeSetEvent(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    event: CuEvent,
) -> Done {
    set(graph_exec, node, || {
        event::find(event).map(Body::EventRecord)
    })
}

pub(crate) fn cuGraphExecEventWaitNodeSetEvent(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    event: CuEvent,
) -> Done {
    set(graph_exec, node, || event::find(event).map(Body::EventWait))
}

pub(crate) fn cuGraphExecBatchMemOpNodeSetParams(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    params: *const CuBatchMemOpNodeParams,
) -> Done {
    set(graph_exec, node, || graph::batch(&read(params)?))
}

pub(crate) fn cuGraphExecNodeSetParams(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    params: *mut CuGraphNodeParams,
) -> Done {
    set(graph_exec, node, || graph::any(params))
}

pub(crate) fn cuGraphNodeSetEnabled(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    is_enabled: u32,
) -> Done {
    let made = find(graph_exec)?;
    let mut nodes = lock(&made.nodes);
    let found = nodes.iter_mut().find(|known| known.origin == node.addr());
    let found = found.ok_or(CuResult::INVALID_VALUE)?;
    // Kernels, copies and fills only.
    if found.body.kind() > 2 {
        return Err(CuResult::INVALID_VALUE);
    }
    found.is_enabled = is_enabled != 0;
    Ok(())
}

pub(crate) fn cuGraphNodeGetEnabled(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    is_enabled: *mut u32,
) -> Done {
    let made = find(graph_exec)?;
    let nodes = lock(&made.nodes);
    let found = nodes.iter().find(|known| known.origin == node.addr());
    write(
        is_enabled,
        u32::from(found.ok_or(CuResult::INVALID_VALUE)?.is_enabled),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_keeps_the_gpu_while_any_kernel_runs() {
        // Two branches: a kernel of 5 beside a copy of 8, then a kernel of 2.
        let spans = vec![(0, 5, true), (0, 8, false), (8, 10, true)];
        let stretch = Stretch {
            spans,
            acts: Vec::new(),
        };

        let works = stretch.works();

        assert_eq!(
            works,
            [
                Work::Kernel { ns: 5 },
                Work::Copy { ns: 3 },
                Work::Kernel { ns: 2 }
            ]
        );
    }

    #[test]
    fn kernels_side_by_side_take_as_long_as_the_longest() {
        let stretch = Stretch {
            spans: vec![(0, 5, true), (0, 9, true), (9, 12, true)],
            acts: Vec::new(),
        };

        assert_eq!(stretch.works(), [Work::Kernel { ns: 12 }]);
    }
}
