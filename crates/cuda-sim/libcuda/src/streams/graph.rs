//! Graphs: nodes and their dependencies, as the program or a capture makes them. `execs` launches them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use cuda_api::driver::*;

use crate::base::border::{
    self, Done, Opaque, check_out, handle, invalid_if, lock, read, read_all, refuse_if, write,
};
use crate::base::table::Table;
use crate::base::values::{self, ValueOp};
use crate::memory::context;
use crate::memory::graph_memory;
use crate::process::choices;
use crate::streams::event::{self, Event};
use crate::streams::launch::{Launch, described};
use crate::streams::module;

/// One operation of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchOp(pub(crate) ValueOp);

/// A copy's description as the program passed it: addresses that the program vouches for at launch.
#[derive(Clone, Copy)]
pub(crate) struct CopyParams(pub(crate) CuMemcpy3D);

// SAFETY: addresses of the program's, read through only when the graph is launched.
unsafe impl Send for CopyParams {}

// SAFETY: a shared reference gives only a copy of the addresses; nothing reads through them before a launch.
unsafe impl Sync for CopyParams {}

/// The work of a node.
#[derive(Clone)]
pub(crate) enum Body {
    Kernel(Launch),
    Memcpy(CopyParams),
    Memset(CuMemsetNodeParams),
    /// A copy or a fill that a capture took over: the closure of the call that made it does it.
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
    MemAlloc(graph_memory::Allocation),
    MemFree(u64),
    BatchMemOp(Vec<BatchOp>),
    Conditional(Conditional),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node of type {}", self.kind())
    }
}

/// Alternative graphs, or one that repeats, selected by a value that kernels would set. Kernels do not compute here,
/// so it is the value that the handle was created with.
#[derive(Debug, Clone)]
pub(crate) struct Conditional {
    pub(crate) handle: u64,
    /// 0 if, 1 while, 2 switch.
    pub(crate) kind: u32,
    pub(crate) bodies: Vec<Arc<Graph>>,
    /// The array of graphs that the program reads.
    pub(crate) shown: usize,
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
    pub(crate) original: usize,
    pub(crate) id: u64,
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
    pub(crate) id: u64,
    pub(crate) users: Mutex<HashMap<usize, u32>>,
}

#[derive(Debug, Default)]
struct Nodes {
    /// In the order in which they were added.
    list: Vec<Arc<Node>>,
    /// The dependencies of each node.
    after: HashMap<usize, Vec<usize>>,
}

pub(crate) static GRAPHS: Table<Graph> = Table::new(CuResult::INVALID_VALUE);
static NODES: Table<Node> = Table::new(CuResult::INVALID_VALUE);
pub(crate) static NEXT_ID: AtomicU64 = AtomicU64::new(1);

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

/// Makes an empty graph without a handle.
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
    GRAPHS.find(graph.addr())
}

/// The node that a program means.
pub(crate) fn find_node(node: CuGraphNode) -> Done<Arc<Node>> {
    NODES.find(node.addr())
}

impl Graph {
    pub(crate) fn handle(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).expose_provenance()
    }

    /// Adds a node after others of this graph; answers its handle.
    pub(crate) fn add(&self, body: Body, after: &[usize]) -> Done<usize> {
        let mut nodes = lock(&self.nodes);
        let distinct: HashSet<usize> = after.iter().copied().collect();
        let known = distinct
            .iter()
            .filter(|before| nodes.after.contains_key(before));
        invalid_if(distinct.len() != after.len() || known.count() != after.len())?;
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
        lock(&self.nodes).after.contains_key(&node)
    }

    /// These nodes, and all nodes that they depend on.
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

    /// The nodes in an order of their dependencies, with the positions of each one's dependencies. `INVALID_VALUE` if
    /// they form a circle.
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
            invalid_if(left.len() == before)?;
        }
        Ok(ordered)
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.nodes).list.clone()
    }

    pub(crate) fn after(&self, node: usize) -> Vec<usize> {
        let after = lock(&self.nodes).after.get(&node).cloned();
        after.unwrap_or_default()
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

    pub(crate) fn remove_node(&self, node: usize) -> Done {
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

    pub(crate) fn link(&self, from: usize, to: usize) -> Done {
        invalid_if(from == to || !self.has(from) || !self.has(to))?;
        let mut nodes = lock(&self.nodes);
        let after = nodes.after.entry(to).or_default();
        invalid_if(after.contains(&from))?;
        after.push(from);
        Ok(())
    }

    pub(crate) fn unlink(&self, from: usize, to: usize) -> Done {
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

/// The nodes in a program's array.
pub(crate) fn nodes_at(nodes: *const CuGraphNode, count: usize) -> Done<Vec<usize>> {
    let nodes = read_all(nodes, count)?;
    Ok(nodes.iter().map(|node| node.addr()).collect())
}

pub(crate) fn add(
    out: *mut CuGraphNode,
    graph: CuGraph,
    after: *const CuGraphNode,
    count: usize,
    make: impl FnOnce() -> Done<Body>,
) -> Done {
    check_out(out)?;
    let graph = find(graph)?;
    let after = nodes_at(after, count)?;
    invalid_if(!after.iter().all(|&node| graph.has(node)))?;
    let body = make()?;
    load_given(&body)?;
    write(out, handle(graph.add(body, &after)?))
}

/// Loads the function that a kernel node is given, on a driver that does so at that call.
pub(crate) fn load_given(body: &Body) -> Done {
    match body {
        Body::Kernel(launch) if choices::nodes_load() => {
            module::load_for(&launch.function, context::current()?)
        }
        _ => Ok(()),
    }
}

pub(crate) fn host(params: *const CuHostNodeParams) -> Done<Body> {
    let params = read(params)?;
    let function = params.callback.ok_or(CuResult::INVALID_VALUE)?;
    Ok(Body::Host {
        function,
        data: Opaque(params.data),
    })
}

pub(crate) fn memset(params: *const CuMemsetNodeParams) -> Done<Body> {
    let set = read(params)?;
    let no_area = set.dst.0 == 0 || set.width == 0 || set.height == 0;
    invalid_if(!matches!(set.element_size, 1 | 2 | 4) || no_area)?;
    Ok(Body::Memset(set))
}

pub(crate) fn memcpy(params: *const CuMemcpy3D) -> Done<Body> {
    Ok(Body::Memcpy(CopyParams(read(params)?)))
}

pub(crate) fn child(graph: CuGraph) -> Done<Body> {
    let graph = find(graph)?;
    refuse_if(graph.has_memory_nodes(), CuResult::NOT_SUPPORTED)?;
    Ok(Body::Child(graph.copy()?))
}

pub(crate) fn batch(params: *const CuBatchMemOpNodeParams) -> Done<Body> {
    let params = read(params)?;
    let ops = values::value_ops(params.ops, params.count)?;
    Ok(Body::BatchMemOp(ops.into_iter().map(BatchOp).collect()))
}

pub(crate) fn kernel_v1(params: *const CuKernelNodeParamsV1) -> Done<Body> {
    let p = read(params)?;
    let stream = std::ptr::null_mut();
    let call = described!(p: function: p.function, params: p.params, extra: p.extra,
        stream: stream, attributes: &[]);
    Launch::read(&call).map(Body::Kernel)
}

pub(crate) fn kernel(params: *const CuKernelNodeParams) -> Done<Body> {
    let p = read(params)?;
    let is_kernel = p.function.is_null();
    let function = if is_kernel {
        p.kernel.cast()
    } else {
        p.function
    };
    let stream = std::ptr::null_mut();
    let call = described!(p: function: function, params: p.params, extra: p.extra,
        stream: stream, attributes: &[]);
    Launch::read(&call).map(Body::Kernel)
}

/// Reads the parameters that `cuGraphAddNode` and its like take, and answers in them.
pub(crate) fn any(params: *mut CuGraphNodeParams) -> Done<Body> {
    check_out(params)?;
    // SAFETY: an argument of a driver function, not null; it is the caller's to write.
    let params = unsafe { &mut *params };
    match params.kind {
        0 => kernel(params.body()),
        1 => {
            let copy = read(params.body::<CuMemcpyNodeParams>())?.copy;
            Ok(Body::Memcpy(CopyParams(copy)))
        }
        2 => memset(params.body()),
        3 => host(params.body()),
        4 => child(read(params.body::<CuChildGraphNodeParams>())?.graph),
        5 => Ok(Body::Empty),
        6 => event::find(read(params.body::<CuEvent>())?).map(Body::EventWait),
        7 => event::find(read(params.body::<CuEvent>())?).map(Body::EventRecord),
        10 => graph_memory::make(params.body_mut::<CuMemAllocNodeParams>()).map(Body::MemAlloc),
        11 => graph_memory::make_free(read(params.body::<CuDevicePtr>())?.0).map(Body::MemFree),
        12 => batch(params.body()),
        13 => conditional(params.body_mut::<CuConditionalNodeParams>()),
        _ => Err(CuResult::NOT_SUPPORTED),
    }
}

pub(crate) fn conditional(params: *mut CuConditionalNodeParams) -> Done<Body> {
    let mut p = read(params.cast_const())?;
    invalid_if(p.kind > 2 || p.size == 0 || (p.kind == 1 && p.size != 1) || p.size > 64)?;
    invalid_if(!lock(&CONDITIONS).contains_key(&p.handle))?;
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
pub(crate) static CONDITIONS: Mutex<BTreeMap<u64, u32>> = Mutex::new(BTreeMap::new());

/// The value of a conditional handle.
pub(crate) fn condition(handle: u64) -> u32 {
    lock(&CONDITIONS).get(&handle).copied().unwrap_or(0)
}

/// Copies handles into a program's array, which may be null to ask how many there are.
pub(crate) fn list<T>(handles: &[usize], out: *mut *mut T, count: *mut usize) -> Done {
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

// --- user objects ---------------------------------------------------------------------------

pub(crate) struct UserObject {
    pub(crate) data: Opaque,
    pub(crate) destroy: unsafe extern "C-unwind" fn(*mut c_void),
    pub(crate) count: Mutex<u32>,
}

pub(crate) static USER_OBJECTS: Table<UserObject> = Table::new(CuResult::INVALID_VALUE);

pub(crate) fn release_user_object(object: usize, count: u32) {
    let Some(found) = USER_OBJECTS.get(object) else {
        return;
    };
    let mut left = lock(&found.count);
    *left = left.saturating_sub(count);
    if *left == 0 {
        drop(left);
        USER_OBJECTS.remove(object);
        border::call_host(found.destroy, found.data);
    }
}
