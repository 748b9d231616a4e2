//! Instantiated graphs: the work that a launch gives to its stream.
//!
//! Nodes that do not depend on each other run at the same time, so a stretch of kernels and copies takes as long as
//! its longest path, and keeps the GPU busy while any of its kernels runs. A node that needs another party to act (a
//! host function, an event, a value, a kernel that spins) ends a stretch: everything before it in the order of the
//! graph is done first.

use std::sync::{Arc, Mutex};

use cuda_api::driver::*;
use cuda_sim::exec::{Position, Work};

use crate::base::border::{self, Done, invalid_if, lock, refuse_if};
use crate::base::space::address;
use crate::base::table::Table;
use crate::memory::blocks;
use crate::memory::context;
use crate::memory::graph_memory;
use crate::process::helper;
use crate::process::work::exec;
use crate::streams::capturing;
use crate::streams::graph::{self, Body, Conditional, CopyParams, Graph, load_given};
use crate::streams::module;
use crate::streams::stream::{self, Stream};

pub(crate) const AUTO_FREE: u64 = 1;

/// An instantiated graph.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) nodes: Mutex<Vec<ExecNode>>,
    pub(crate) flags: u64,
    pub(crate) id: u64,
    /// The end of its last launch: the next one comes after it, in any stream.
    pub(crate) last: Mutex<Option<Position>>,
    /// For a launch into a stream that captures; none when the graph cannot be copied.
    pub(crate) template: Mutex<Option<Arc<Graph>>>,
}

#[derive(Debug, Clone)]
pub(crate) struct ExecNode {
    /// The node that it was made from.
    pub(crate) origin: usize,
    pub(crate) body: Body,
    pub(crate) after: Vec<usize>,
    pub(crate) is_enabled: bool,
}

pub(crate) static EXECS: Table<Exec> = Table::new(CuResult::INVALID_VALUE);

pub(crate) fn find(exec: CuGraphExec) -> Done<Arc<Exec>> {
    EXECS.find(exec.addr())
}

pub(crate) fn nodes_of(graph: &Graph) -> Done<Vec<ExecNode>> {
    let ordered = graph.in_order()?.into_iter();
    let made = ordered.map(|(node, after)| ExecNode {
        origin: node.handle(),
        body: lock(&node.body).clone(),
        after,
        is_enabled: true,
    });
    Ok(made.collect())
}

// --- a launch -------------------------------------------------------------------------------

/// The memory operations of a stretch of a graph, in order.
type Acts = Vec<Arc<dyn Fn() + Send + Sync>>;

/// A stretch of nodes that the GPU alone can run.
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
        let ends = self.spans.iter().flat_map(|span| [span.0, span.1]);
        let mut times: Vec<u64> = ends.collect();
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
            let before = node.after.iter().map(|&before| ends[before]);
            let start = before.max().unwrap_or(0);
            ends[index] = start;
            if !node.is_enabled {
                continue;
            }
            match &node.body {
                Body::Empty | Body::MemAlloc(_) => {}
                Body::MemFree(address) => {
                    graph_memory::free(*address);
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
                    stream::submit_call(self.stream, move || border::call_host(function, data))?;
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

    /// Ends a stretch: the next one starts when all of it is done.
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

/// The number of times that a conditional node's body runs. Only a kernel could change a loop's condition, and
/// kernels compute nothing: so the script gives the number by the name of a kernel in the loop, otherwise it is the
/// condition's own value.
fn times(conditional: &Conditional, body: &[ExecNode]) -> Done<u32> {
    const AT_MOST: u32 = 10_000;
    if conditional.kind != WHILE {
        return Ok(1);
    }
    let (script, draw) = (exec()?.script(), crate::streams::launch::draw()?);
    let said = body.iter().find_map(|node| match &node.body {
        Body::Kernel(launch) => script.loops(&launch.function.name.to_string_lossy(), draw),
        _ => None,
    });
    Ok(said.unwrap_or_else(|| graph::condition(conditional.handle).min(AT_MOST)))
}

/// The allocation nodes among nodes, those of child graphs too.
pub(crate) fn allocations(nodes: &[ExecNode]) -> Done<Vec<graph_memory::Allocation>> {
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
                graph_memory::free(address);
            }
            return Err(code);
        }
        taken.push(allocation.address());
    }
    Ok(())
}

pub(crate) fn launch(graph_exec: CuGraphExec, stream: CuStream) -> Done {
    refuse_if(helper::is_helper(), CuResult::NOT_PERMITTED)?;
    let made = find(graph_exec)?;
    let stream = stream::find(stream)?;
    context::current()?;
    let captured = capturing::takes(&stream, || {
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
            module::load_for(&launch.function, stream.context)?;
        }
    }
    take_memory(&nodes, made.flags & AUTO_FREE != 0)?;
    // Not locked over the wait for room in the stream.
    let last = *lock(&made.last);
    if let Some(place) = last {
        stream::submit(&stream, Work::WaitChannel { place })?;
    }
    let stretch = Stretch::default();
    let mut player = Player {
        stream: &stream,
        stretch,
    };
    player.play(&nodes)?;
    player.stretch.submit(&stream)?;
    *lock(&made.last) = exec()?.last_place(stream.channel);
    Ok(())
}

// --- memory -----------------------------------------------------------------------------------

fn fill(set: &CuMemsetNodeParams) {
    let row = set.width * set.element_size as usize;
    for line in 0..set.height {
        let start = set.dst.0 + (line * set.pitch) as u64;
        if !blocks::is_reachable(start, row as u64) {
            return;
        }
        let value = set.value.to_le_bytes();
        let unit = set.element_size as usize;
        // SAFETY: these addresses are the driver's own, as was just asked.
        let bytes = unsafe { std::slice::from_raw_parts_mut(address::<u8>(start), row) };
        for element in bytes.chunks_exact_mut(unit) {
            element.copy_from_slice(&value[..unit]);
        }
    }
}

fn copy_now(params: &CopyParams) {
    // A copy that the driver would refuse at launch has been refused when the node was made.
    crate::streams::copies::perform_3d(&params.0).ok();
}

// --- updates ----------------------------------------------------------------------------------

pub(crate) fn set(
    graph_exec: CuGraphExec,
    node: CuGraphNode,
    make: impl FnOnce() -> Done<Body>,
) -> Done {
    let made = find(graph_exec)?;
    let body = make()?;
    let mut nodes = lock(&made.nodes);
    let found = nodes.iter_mut().find(|known| known.origin == node.addr());
    let found = found.ok_or(CuResult::INVALID_VALUE)?;
    invalid_if(found.body.kind() != body.kind())?;
    load_given(&body)?;
    found.body = body;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn works(spans: &[(u64, u64, bool)]) -> Vec<Work> {
        let (spans, acts) = (spans.to_vec(), Vec::new());
        Stretch { spans, acts }.works()
    }

    #[test]
    fn a_stretch_keeps_the_gpu_while_any_kernel_runs() {
        // Two branches: a kernel of 5 parallel to a copy of 8, then a kernel of 2.
        let works = works(&[(0, 5, true), (0, 8, false), (8, 10, true)]);

        let kernel = |ns| Work::Kernel { ns };
        assert_eq!(works, [kernel(5), Work::Copy { ns: 3 }, kernel(2)]);
    }

    #[test]
    fn kernels_side_by_side_take_as_long_as_the_longest() {
        let works = works(&[(0, 5, true), (0, 9, true), (9, 12, true)]);

        assert_eq!(works, [Work::Kernel { ns: 12 }]);
    }
}
