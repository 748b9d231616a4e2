//! Graphs: nodes and what they come after, as the program or a capture makes them. What an
//! instantiated graph does when it is launched stands in `graph_exec.rs`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use cuda_api::driver::*;

use crate::border::{Done, Opaque, handle, lock, read, read_all, text, write};
use crate::event::{self, Event};
use crate::launch::Launch;
use crate::memory_node;
use crate::stream::{self, ValueOp};
use crate::table::Table;

/// One operation of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchOp(pub(crate) ValueOp);

/// A copy's description as the program passed it: addresses that the program vouches for at launch.
#[derive(Clone, Copy)]
pub(crate) struct CopyParams(pub(crate) CuMemcpy3D);

// SAFETY: addresses of the program's, read through only when the graph is launched.
unsafe impl Send for CopyParams {}
// SAFETY: as above.
unsafe impl Sync for CopyParams {}

/// What a node does.
#[derive(Clone)]
pub(crate) enum Body {
    Kernel(Launch),
    Memcpy(CopyParams),
    Memset(Memset),
    /// A copy or a fill that a capture took over: done by whoever gave it.
    Copy {
        act: Arc<dyn Fn() + Send + Sync>,
        bytes: u64,
    },
    Host {
        function: unsafe extern "C-unwind" fn(*mut c_void),
        data: Opaque,
    },
    Child(Arc<Graph>),
    Empty,
    EventRecord(Arc<Event>),
    EventWait(Arc<Event>),
    MemAlloc(memory_node::Allocation),
    MemFree(u64),
    BatchMemOp(Vec<BatchOp>),
    Conditional(Conditional),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node of type {}", self.kind())
    }
}

/// A fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memset {
    pub(crate) dst: u64,
    pub(crate) pitch: usize,
    pub(crate) value: u32,
    pub(crate) element_size: u32,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl Memset {
    fn as_params(&self) -> CuMemsetNodeParams {
        CuMemsetNodeParams {
            dst: CuDevicePtr(self.dst),
            pitch: self.pitch,
            value: self.value,
            element_size: self.element_size,
            width: self.width,
            height: self.height,
        }
    }
}

/// Graphs of which one runs, or one that runs again, as a value says that kernels would set; kernels
/// do not compute here, so it is the value that the handle was made with.
#[derive(Debug, Clone)]
pub(crate) struct Conditional {
    pub(crate) handle: u64,
    /// 0 if, 1 while, 2 switch.
    pub(crate) kind: u32,
    pub(crate) bodies: Vec<Arc<Graph>>,
    /// The array of graphs that the program reads.
    shown: usize,
}

impl Body {
    /// The number that programs know the kind by.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::Kernel(_) => 0,
            Self::Memcpy(_) | Self::Copy { .. } => 1,
            Self::Memset(_) => 2,
            Self::Host { .. } => 3,
            Self::Child(_) => 4,
            Self::Empty => 5,
            Self::EventWait(_) => 6,
            Self::EventRecord(_) => 7,
            Self::MemAlloc(_) => 10,
            Self::MemFree(_) => 11,
            Self::BatchMemOp(_) => 12,
            Self::Conditional(_) => 13,
        }
    }
}

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) graph: Weak<Graph>,
    pub(crate) body: Mutex<Body>,
    /// In the graph that this one's graph was cloned from.
    original: usize,
    id: u64,
}

impl Node {
    pub(crate) fn handle(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).expose_provenance()
    }
}

/// A graph.
#[derive(Debug)]
pub(crate) struct Graph {
    nodes: Mutex<Nodes>,
    own: OnceLock<Weak<Self>>,
    id: u64,
    users: Mutex<HashMap<usize, u32>>,
}

#[derive(Debug, Default)]
struct Nodes {
    /// In the order in which they were added.
    list: Vec<Arc<Node>>,
    /// What each comes after.
    after: HashMap<usize, Vec<usize>>,
}

static GRAPHS: Table<Graph> = Table::new();
static NODES: Table<Node> = Table::new();
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Drop for Graph {
    fn drop(&mut self) {
        for node in &lock(&self.nodes).list {
            NODES.remove(node.handle());
        }
        for (object, count) in lock(&self.users).drain() {
            release_user_object(object, count);
        }
    }
}

/// Makes an empty graph that nobody holds yet.
fn fresh() -> Arc<Graph> {
    let graph = Arc::new(Graph {
        nodes: Mutex::new(Nodes::default()),
        own: OnceLock::new(),
        // Relaxed: only has to differ from every other.
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        users: Mutex::new(HashMap::new()),
    });
    let weak = Arc::downgrade(&graph);
    graph.own.get_or_init(|| weak);
    graph
}

/// Makes an empty graph that the program will hold.
pub(crate) fn create() -> Arc<Graph> {
    let graph = fresh();
    GRAPHS.insert(Arc::clone(&graph));
    graph
}

/// The graph that a program means.
pub(crate) fn find(graph: CuGraph) -> Done<Arc<Graph>> {
    GRAPHS.get(graph.addr()).ok_or(CuResult::INVALID_VALUE)
}

/// The node that a program means.
pub(crate) fn find_node(node: CuGraphNode) -> Done<Arc<Node>> {
    NODES.get(node.addr()).ok_or(CuResult::INVALID_VALUE)
}

impl Graph {
    pub(crate) fn handle(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).expose_provenance()
    }

    /// Adds a node after others of this graph; answers its handle.
    pub(crate) fn add(&self, body: Body, after: &[usize]) -> Done<usize> {
        let mut nodes = lock(&self.nodes);
        let distinct: HashSet<usize> = after.iter().copied().collect();
        if distinct.len() != after.len()
            || !after
                .iter()
                .all(|&before| nodes.list.iter().any(|node| node.handle() == before))
        {
            return Err(CuResult::INVALID_VALUE);
        }
        let graph = self.own.get().cloned().unwrap_or_default();
        // Relaxed: only has to differ from every other.
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let node = Arc::new(Node {
            graph,
            body: Mutex::new(body),
            original: 0,
            id,
        });
        let handle = node.handle();
        NODES.insert(Arc::clone(&node));
        nodes.list.push(node);
        nodes.after.insert(handle, after.to_vec());
        Ok(handle)
    }

    pub(crate) fn has(&self, node: usize) -> bool {
        lock(&self.nodes)
            .list
            .iter()
            .any(|known| known.handle() == node)
    }

    /// Those nodes, and everything that they come after.
    pub(crate) fn ancestors(&self, nodes: &[usize]) -> HashSet<usize> {
        let known = lock(&self.nodes);
        let mut found: HashSet<usize> = HashSet::new();
        let mut left = nodes.to_vec();
        while let Some(node) = left.pop() {
            if found.insert(node) {
                left.extend(known.after.get(&node).into_iter().flatten());
            }
        }
        found
    }

    /// The nodes so that each comes after what it has to, with the places of those in the answer.
    /// `INVALID_VALUE` when they go round in a circle.
    pub(crate) fn in_order(&self) -> Done<Vec<(Arc<Node>, Vec<usize>)>> {
        let nodes = lock(&self.nodes);
        let mut places: HashMap<usize, usize> = HashMap::new();
        let mut ordered: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
        let mut left: Vec<&Arc<Node>> = nodes.list.iter().collect();
        while !left.is_empty() {
            let before = left.len();
            left.retain(|node| {
                let after = &nodes.after[&node.handle()];
                let known: Option<Vec<usize>> = after
                    .iter()
                    .map(|other| places.get(other).copied())
                    .collect();
                let Some(known) = known else { return true };
                places.insert(node.handle(), ordered.len());
                ordered.push((Arc::clone(node), known));
                false
            });
            if left.len() == before {
                return Err(CuResult::INVALID_VALUE);
            }
        }
        Ok(ordered)
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.nodes).list.clone()
    }

    fn after(&self, node: usize) -> Vec<usize> {
        lock(&self.nodes)
            .after
            .get(&node)
            .cloned()
            .unwrap_or_default()
    }

    /// A graph like this one, with nodes of its own.
    pub(crate) fn copy(self: &Arc<Self>) -> Done<Arc<Self>> {
        let copy = fresh();
        let nodes = lock(&self.nodes);
        let mut named = HashMap::new();
        {
            let mut copied = lock(&copy.nodes);
            for node in &nodes.list {
                let body = match &*lock(&node.body) {
                    Body::Child(child) => Body::Child(child.copy()?),
                    Body::MemAlloc(_) | Body::MemFree(_) => return Err(CuResult::NOT_SUPPORTED),
                    other => other.clone(),
                };
                let twin = Arc::new(Node {
                    graph: Arc::downgrade(&copy),
                    body: Mutex::new(body),
                    original: node.handle(),
                    // Relaxed: only has to differ from every other.
                    id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                });
                NODES.insert(Arc::clone(&twin));
                named.insert(node.handle(), twin.handle());
                copied.list.push(twin);
            }
            for (node, after) in &nodes.after {
                let after = after.iter().map(|other| named[other]).collect();
                copied.after.insert(named[node], after);
            }
        }
        Ok(copy)
    }

    fn remove_node(&self, node: usize) -> Done {
        let mut nodes = lock(&self.nodes);
        let place = nodes.list.iter().position(|known| known.handle() == node);
        let gone = nodes.list.remove(place.ok_or(CuResult::INVALID_VALUE)?);
        if matches!(&*lock(&gone.body), Body::MemAlloc(_) | Body::MemFree(_)) {
            nodes.list.push(gone);
            return Err(CuResult::NOT_SUPPORTED);
        }
        nodes.after.remove(&node);
        for after in nodes.after.values_mut() {
            after.retain(|&other| other != node);
        }
        NODES.remove(node);
        Ok(())
    }

    fn link(&self, from: usize, to: usize) -> Done {
        if from == to || !self.has(from) || !self.has(to) {
            return Err(CuResult::INVALID_VALUE);
        }
        let mut nodes = lock(&self.nodes);
        let after = nodes.after.entry(to).or_default();
        if after.contains(&from) {
            return Err(CuResult::INVALID_VALUE);
        }
        after.push(from);
        Ok(())
    }

    fn unlink(&self, from: usize, to: usize) -> Done {
        let mut nodes = lock(&self.nodes);
        let after = nodes.after.get_mut(&to).ok_or(CuResult::INVALID_VALUE)?;
        let place = after.iter().position(|&other| other == from);
        after.remove(place.ok_or(CuResult::INVALID_VALUE)?);
        Ok(())
    }

    /// Whether it, or a graph within it, allocates or frees memory.
    pub(crate) fn has_memory_nodes(&self) -> bool {
        self.nodes().iter().any(|node| match &*lock(&node.body) {
            Body::MemAlloc(_) | Body::MemFree(_) => true,
            Body::Child(child) => child.has_memory_nodes(),
            _ => false,
        })
    }
}

// --- making nodes ---------------------------------------------------------------------------

fn add(
    out: *mut CuGraphNode,
    graph: CuGraph,
    after: *const CuGraphNode,
    count: usize,
    make: impl FnOnce() -> Done<Body>,
) -> Done {
    if out.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let graph = find(graph)?;
    let after: Vec<usize> = read_all(after, count)?
        .iter()
        .map(|node| node.addr())
        .collect();
    if !after.iter().all(|&node| graph.has(node)) {
        return Err(CuResult::INVALID_VALUE);
    }
    let body = make()?;
    write(out, handle(graph.add(body, &after)?))
}

pub(crate) fn host(params: *const CuHostNodeParams) -> Done<Body> {
    let params = read(params)?;
    let function = params.callback.ok_or(CuResult::INVALID_VALUE)?;
    Ok(Body::Host {
        function,
        data: Opaque(params.data),
    })
}

pub(crate) fn memset(params: &CuMemsetNodeParams) -> Done<Body> {
    let CuMemsetNodeParams {
        dst,
        pitch,
        value,
        element_size,
        width,
        height,
    } = *params;
    if !matches!(element_size, 1 | 2 | 4) || dst.0 == 0 || width == 0 || height == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(Body::Memset(Memset {
        dst: dst.0,
        pitch,
        value,
        element_size,
        width,
        height,
    }))
}

pub(crate) fn memcpy(params: *const CuMemcpy3D) -> Done<Body> {
    Ok(Body::Memcpy(CopyParams(read(params)?)))
}

pub(crate) fn child(graph: CuGraph) -> Done<Body> {
    let graph = find(graph)?;
    if graph.has_memory_nodes() {
        return Err(CuResult::NOT_SUPPORTED);
    }
    Ok(Body::Child(graph.copy()?))
}

pub(crate) fn batch(params: &CuBatchMemOpNodeParams) -> Done<Body> {
    let ops = stream::value_ops(params.ops, params.count)?;
    Ok(Body::BatchMemOp(ops.into_iter().map(BatchOp).collect()))
}

pub(crate) fn kernel_v1(params: *const CuKernelNodeParamsV1) -> Done<Body> {
    let p = read(params)?;
    let grid = [p.grid_x, p.grid_y, p.grid_z];
    let block = [p.block_x, p.block_y, p.block_z];
    Launch::read(p.function, grid, block, p.shared_bytes, p.params, p.extra).map(Body::Kernel)
}

pub(crate) fn kernel(params: &CuKernelNodeParams) -> Done<Body> {
    let p = *params;
    let function = if p.function.is_null() {
        p.kernel.cast()
    } else {
        p.function
    };
    let grid = [p.grid_x, p.grid_y, p.grid_z];
    let block = [p.block_x, p.block_y, p.block_z];
    Launch::read(function, grid, block, p.shared_bytes, p.params, p.extra).map(Body::Kernel)
}

/// Reads the parameters that `cuGraphAddNode` and its like take, and answers in them.
pub(crate) fn any(params: *mut CuGraphNodeParams) -> Done<Body> {
    if params.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: an argument of a driver function, not null; it is the caller's to write.
    let params = unsafe { &mut *params };
    match params.kind {
        0 => kernel(&read(params.body::<CuKernelNodeParams>())?),
        1 => {
            let copy = read(params.body::<CuMemcpyNodeParams>())?.copy;
            Ok(Body::Memcpy(CopyParams(copy)))
        }
        2 => memset(&read(params.body::<CuMemsetNodeParams>())?),
        3 => host(params.body::<CuHostNodeParams>()),
        4 => child(read(params.body::<CuChildGraphNodeParams>())?.graph),
        5 => Ok(Body::Empty),
        6 => event::find(read(params.body::<CuEvent>())?).map(Body::EventWait),
        7 => event::find(read(params.body::<CuEvent>())?).map(Body::EventRecord),
        10 => memory_node::make(params.body_mut::<CuMemAllocNodeParams>()).map(Body::MemAlloc),
        11 => memory_node::make_free(read(params.body::<CuDevicePtr>())?.0).map(Body::MemFree),
        12 => batch(&read(params.body::<CuBatchMemOpNodeParams>())?),
        13 => conditional(params.body_mut::<CuConditionalNodeParams>()),
        _ => Err(CuResult::NOT_SUPPORTED),
    }
}

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

fn conditional(params: *mut CuConditionalNodeParams) -> Done<Body> {
    let mut p = read(params.cast_const())?;
    if p.kind > 2 || p.size == 0 || (p.kind == 1 && p.size != 1) || p.size > 64 {
        return Err(CuResult::INVALID_VALUE);
    }
    if !lock(&CONDITIONS)
        .get_or_insert_with(HashMap::new)
        .contains_key(&p.handle)
    {
        return Err(CuResult::INVALID_VALUE);
    }
    let bodies: Vec<Arc<Graph>> = (0..p.size).map(|_| create()).collect();
    // The program reads the graphs from an array that the driver keeps for it.
    let shown: Vec<CuGraph> = bodies.iter().map(|graph| handle(graph.handle())).collect();
    p.graphs_out = Box::leak(shown.into_boxed_slice()).as_mut_ptr();
    write(params, p)?;
    Ok(Body::Conditional(Conditional {
        handle: p.handle,
        kind: p.kind,
        bodies,
        shown: p.graphs_out.expose_provenance(),
    }))
}

/// Values of conditional handles, as they are at a launch's beginning.
static CONDITIONS: Mutex<Option<HashMap<u64, u32>>> = Mutex::new(None);

/// The value of a conditional handle.
pub(crate) fn condition(handle: u64) -> u32 {
    lock(&CONDITIONS)
        .as_ref()
        .and_then(|all| all.get(&handle).copied())
        .unwrap_or(0)
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

/// Copies handles into a program's array, which may be null to ask how many there are.
fn list<T>(handles: &[usize], out: *mut *mut T, count: *mut usize) -> Done {
    if out.is_null() {
        return write(count, handles.len());
    }
    let room = read(count.cast_const())?;
    for index in 0..room {
        let value = handles.get(index).copied().unwrap_or(0);
        // SAFETY: the program's array has as much room as it says.
        write(unsafe { out.add(index) }, handle(value))?;
    }
    write(count, handles.len().min(room))
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

// --- user objects ---------------------------------------------------------------------------

struct UserObject {
    data: Opaque,
    destroy: unsafe extern "C-unwind" fn(*mut c_void),
    count: Mutex<u32>,
}

static USER_OBJECTS: Table<UserObject> = Table::new();

fn release_user_object(object: usize, count: u32) {
    let Some(found) = USER_OBJECTS.get(object) else {
        return;
    };
    let mut left = lock(&found.count);
    *left = left.saturating_sub(count);
    if *left == 0 {
        drop(left);
        USER_OBJECTS.remove(object);
        stream::call_host(found.destroy, found.data);
    }
}

// --- the C border ---------------------------------------------------------------------------

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
    let make = || memory_node::make(params).map(Body::MemAlloc);
    add(out, graph, dependencies, count, make)
}

pub(crate) fn cuGraphAddMemFreeNode(
    out: *mut CuGraphNode,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    count: usize,
    ptr: CuDevicePtr,
) -> Done {
    let make = || memory_node::make_free(ptr.0).map(Body::MemFree);
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
