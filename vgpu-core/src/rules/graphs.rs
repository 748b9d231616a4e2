//! Rules: memory that graphs allocate. The memory that a graph's nodes want is counted when the graph is made
//! executable, reserved when it is uploaded or launched, and settled to the memory that the device's graphs hold.
//! A process without memory nodes pays one load for each launch.

mod launch;
mod taking;

use core::sync::atomic::Ordering;

use cuda_api::{
    CuDevice, CuGraph, CuGraphExec, CuGraphInstantiateParams, CuGraphNodeParams, CuResult,
};
use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::region::{Charge, Kind, Refusal, Why};

use crate::base::lock;
use crate::base::log::line;
use crate::base::map::Then;
use crate::driver::device::Device;
use crate::driver::query::{self, MemoryNode};
use crate::figures::room::{self, LaunchedGraph, Moves, Want};
use crate::guest::border::{DefaultStream as _, InPtr, Legacy, OutPtr};
use crate::guest::manners::Verdict;
use crate::holdings::graph_charges::{
    self, any, figures, learn_figures, note_memory_node, relieve, settle,
};
use crate::holdings::{locate, location, requests};
use crate::rules::first_use::{self, Exchange, FirstUse};
use crate::state::accounts::{Accounts, Destination};
use crate::state::entries::{GraphAllocation, GraphExec, GraphPart, MappedBy};
use crate::state::holdings::GraphMemory;
use crate::state::standing::{self, accounts};

use self::launch::*;
pub(crate) use self::launch::{Launching, after_launch, before_launch};
use self::taking::*;

/// `cuGraphAddMemAllocNode`.
pub(crate) fn after_add_alloc(result: CuResult) {
    if result == CuResult::SUCCESS
        && let Some(accounts) = standing::opened()
    {
        note_memory_node(&accounts);
    }
}

/// `cuGraphAddNode`, `cuGraphNodeSetParams`: of any kind.
pub(crate) fn after_add(
    exchange: Option<Exchange>,
    result: CuResult,
    params: OutPtr<CuGraphNodeParams>,
) {
    if let Some(exchange) = exchange {
        first_use::after_add(exchange, result);
    }
    if params
        .read()
        .is_some_and(|params| params.kind == query::NODE_ALLOC)
    {
        after_add_alloc(result);
    }
}

/// The memory that a graph's nodes want of each device.
#[derive(Clone, Copy)]
struct Wants {
    devices: [Want; MAX_DEVICES],
    /// The graph allocates on a device that the container may not use.
    is_denied: bool,
    /// Some memory that the graph allocates outlives the launch.
    keeps: bool,
}

/// The memory that the graph's nodes want. `None`: the driver does not say.
fn wants(accounts: &Accounts, graph: CuGraph) -> Option<Wants> {
    let mut wants = Wants {
        devices: [Want::default(); MAX_DEVICES],
        is_denied: false,
        keeps: false,
    };
    let mut made: Vec<u64> = Vec::new();
    let mut freed: Vec<u64> = Vec::new();
    let mut each = |node| match node {
        MemoryNode::Alloc {
            location,
            kind,
            bytes,
            address,
        } => {
            wants.is_denied |= !add(accounts, &mut wants.devices, location, kind, bytes);
            if made.try_reserve(1).is_ok() {
                made.push(address);
            }
        }
        MemoryNode::Free { address } => {
            if freed.try_reserve(1).is_ok() {
                freed.push(address);
            }
        }
    };
    query::relaxed(|| query::memory_nodes(graph, &mut each))?;
    freed.sort_unstable();
    for address in made {
        if freed.binary_search(&address).is_err() {
            wants.keeps = true;
            let map = &accounts.holdings().map;
            map.put(address, GraphAllocation);
        }
    }
    Some(wants)
}

/// Counts one allocation node. False: it is on a device that the container may not use.
fn add(
    accounts: &Accounts,
    devices: &mut [Want; MAX_DEVICES],
    location: cuda_api::CuMemLocation,
    kind: u32,
    bytes: u64,
) -> bool {
    let device = match location::place(accounts, location, kind) {
        Destination::Device { device, .. } => device,
        Destination::Elsewhere => return true,
        Destination::Denied => return false,
    };
    if let Some(want) = devices.get_mut(device) {
        want.add(bytes);
    }
    true
}

/// The key of an executable graph's part on a device; the graph itself is kept by its handle.
fn key(exec: u64, device: usize) -> u64 {
    exec ^ (device as u64 + 1) << 57
}

/// A graph that is being made executable.
#[derive(Clone, Copy)]
pub(crate) struct Instantiating {
    wants: Wants,
    taken: TakenForCall,
    /// Where it is uploaded.
    stream: Option<u16>,
}

/// The same, with what the driver may load for it.
#[derive(Clone, Copy)]
pub(crate) struct NewExecutable {
    memory: Option<Instantiating>,
    first: Option<FirstUse>,
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;

pub(crate) fn before_instantiate_with(
    call: &str,
    graph: CuGraph,
    params: InPtr<CuGraphInstantiateParams>,
) -> Verdict<NewExecutable> {
    let params = params.read().unwrap_or(CuGraphInstantiateParams::zeroed());
    let stream = Legacy.number(params.upload_stream);
    make_executable(call, graph, params.flags, stream)
}

/// Counts what the graph will want, and reserves it where the graph is uploaded at once.
pub(crate) fn before_instantiate(call: &str, graph: CuGraph, flags: u64) -> Verdict<NewExecutable> {
    make_executable(call, graph, flags, Legacy::NUMBER)
}

fn make_executable(call: &str, graph: CuGraph, flags: u64, stream: u64) -> Verdict<NewExecutable> {
    match reserve_executable(call, graph, flags, stream) {
        Verdict::Call(memory) => Verdict::Call(NewExecutable {
            memory,
            first: first_use::before_instantiate(),
        }),
        Verdict::Pass => Verdict::Pass,
        Verdict::Refuse(result) => Verdict::Refuse(result),
    }
}

fn reserve_executable(
    call: &str,
    graph: CuGraph,
    flags: u64,
    stream: u64,
) -> Verdict<Option<Instantiating>> {
    if !any() || graph.is_null() {
        return Verdict::Call(None);
    }
    let accounts = accounts!(Launch);
    let Some(wants) = wants(&accounts, graph) else {
        return Verdict::Refuse(refuse_unknown(&accounts, call));
    };
    if wants.is_denied {
        line!(
            Warn,
            "{call}: the graph allocates on a device that is not the container's"
        );
        return Verdict::Refuse(CuResult::NOT_PERMITTED);
    }
    let mut taken = TakenForCall::default();
    if flags & UPLOAD != 0 {
        for device in devices(wants.set()) {
            let result = taken.take(&accounts, call, device, wants.of(device), false);
            if let Err(result) = result {
                taken.give_back(&accounts, wants.set(), |device| wants.of(device));
                return Verdict::Refuse(result);
            }
        }
    }
    Verdict::Call(Some(Instantiating {
        wants,
        taken,
        stream: (flags & UPLOAD != 0).then(|| fold(stream)),
    }))
}

impl Wants {
    /// The devices that it wants something of.
    fn set(&self) -> u32 {
        let wanted = self.devices.iter().enumerate();
        wanted
            .filter(|(_, want)| !want.is_nothing())
            .fold(0, |set, (device, _)| set | 1 << device)
    }

    /// The bytes that its nodes want on a device, and the growth of the device's graph memory that they may cause.
    fn of(&self, device: usize) -> (u64, u64) {
        self.devices
            .get(device)
            .map_or((0, 0), |want| (want.bytes, want.growth()))
    }
}

/// The driver does not say what a graph allocates.
fn refuse_unknown(accounts: &Accounts, call: &str) -> CuResult {
    let Destination::Device { device, .. } = locate::here(accounts) else {
        return CuResult::OUT_OF_MEMORY;
    };
    line!(
        Warn,
        "{call}: the driver does not say what the graph allocates"
    );
    let refusal = Refusal {
        limit: accounts.process.memory_limit(accounts.container, device),
        used: accounts.container.region.used(device),
        asked: 0,
        unaccounted: 0,
        why: Why::Closed,
    };
    accounts.refuse(call, device, &refusal)
}

pub(crate) fn after_instantiate(
    making: NewExecutable,
    result: CuResult,
    call: &str,
    out: OutPtr<CuGraphExec>,
) -> Option<CuResult> {
    let exec = out
        .read()
        .filter(|exec| result == CuResult::SUCCESS && !exec.is_null());
    if let Some(first) = making.first {
        first_use::after(first, result);
    }
    if let Some(exec) = exec {
        first_use::forget_graph(exec);
        first_use::graph_made(exec);
    }
    let Instantiating {
        wants,
        taken,
        stream,
    } = making.memory?;
    let accounts = standing::opened()?;
    // Some drivers take the memory now.
    let grown = taken.give_back(&accounts, wants.set(), |device| wants.of(device));
    let exec = exec?;
    let over =
        devices(grown).find_map(|device| Some((device, requests::above_limit(&accounts, device)?)));
    if let Some((device, over)) = over {
        query::relaxed(|| query::destroy_graph_exec(exec));
        out.write(core::ptr::null_mut());
        relieve(&accounts, device);
        let refusal = Refusal {
            asked: wants.of(device).1,
            ..over
        };
        return Some(accounts.refuse(call, device, &refusal));
    }
    remember(&accounts, exec as u64, &wants);
    if let Some(stream) = stream {
        let run = Run {
            exec: exec as u64,
            set: wants.set(),
            keeps: wants.keeps,
            stream,
        };
        mark_mapped(&accounts, run, 0);
    }
    None
}

fn remember(accounts: &Accounts, exec: u64, wants: &Wants) {
    let map = &accounts.holdings().map;
    let set = wants.set();
    if set == 0 {
        return;
    }
    let head = GraphExec {
        devices: set,
        keeps: wants.keeps,
    };
    map.put(exec, head);
    for device in devices(set) {
        let (bytes, growth) = wants.of(device);
        map.put(key(exec, device), GraphPart::new(bytes, growth));
    }
}

/// An executable graph is about to take over another graph, whose functions the driver may load now.
pub(crate) fn before_update() -> Verdict<Option<FirstUse>> {
    Verdict::Call(first_use::before_instantiate())
}

/// An executable graph has taken over another graph: charges what the driver loaded for it. It may want what that one
/// wants.
pub(crate) fn after_update(
    first: Option<FirstUse>,
    result: CuResult,
    exec: CuGraphExec,
    graph: CuGraph,
) {
    if let Some(first) = first {
        first_use::after(first, result);
    }
    if result == CuResult::SUCCESS {
        first_use::graph_made(exec);
    }
    grow(result, exec, graph, u64::max);
}

/// A part of it has been replaced by this graph: it may want that as well.
pub(crate) fn after_child(result: CuResult, exec: CuGraphExec, child: CuGraph) {
    if result == CuResult::SUCCESS {
        first_use::graph_made(exec);
    }
    grow(result, exec, child, u64::saturating_add);
}

/// A node of any kind is about to get new parameters: a kernel's function may be loaded.
pub(crate) fn before_node(params: InPtr<CuGraphNodeParams>) -> Verdict<Option<Exchange>> {
    let kernel = params.read().and_then(|params| query::kernel_of(&params));
    Verdict::Call(kernel.and_then(first_use::exchange))
}

/// As [`after_child`], of a node of any kind.
pub(crate) fn after_node(
    exchange: Option<Exchange>,
    result: CuResult,
    exec: CuGraphExec,
    params: OutPtr<CuGraphNodeParams>,
) {
    if let Some(exchange) = exchange {
        first_use::after_exchange(exchange, result, exec);
    } else if result == CuResult::SUCCESS {
        first_use::graph_made(exec);
    }
    if !any() {
        return;
    }
    let Some(params) = params.read() else {
        return;
    };
    if let Some(child) = query::child_of(&params) {
        after_child(result, exec, child);
    }
}

fn grow(result: CuResult, exec: CuGraphExec, graph: CuGraph, sum: fn(u64, u64) -> u64) {
    if !any() || result != CuResult::SUCCESS {
        return;
    }
    let Some(accounts) = standing::opened() else {
        return;
    };
    let Some(mut wants) = wants(&accounts, graph) else {
        line!(Warn, "the driver does not say what a graph allocates");
        return;
    };
    if wants.set() == 0 {
        return;
    }
    let exec = exec as u64;
    let map = &accounts.holdings().map;
    let head: GraphExec = map.get(exec).unwrap_or_default();
    wants.keeps |= head.keeps;
    let before = |device| map.get(key(exec, device));
    let known: [Option<GraphPart>; MAX_DEVICES] = core::array::from_fn(before);
    remember(&accounts, exec, &wants);
    let all = |entry: &mut GraphExec| {
        entry.devices |= head.devices;
        (Then::Keep, ())
    };
    map.change(exec, all);
    for (device, known) in known.into_iter().enumerate() {
        let Some(known) = known else { continue };
        let (bytes, growth) = wants.of(device);
        // Its next launch gets memory again.
        let part = GraphPart::new(sum(known.bytes, bytes), sum(known.growth, growth));
        map.put(key(exec, device), part);
    }
}

/// `cuDeviceGraphMemTrim`: the driver takes back the memory that no graph uses.
pub(crate) fn after_trim(result: CuResult, device: CuDevice) {
    if !any() || result != CuResult::SUCCESS {
        return;
    }
    let Some(accounts) = standing::opened() else {
        return;
    };
    if let Device::Limited(device) = accounts.process.device(accounts.container, device.0) {
        graph_charges::trimmed(&accounts, device);
    }
}

/// An executable graph or a graph was destroyed.
pub(crate) fn after_destroy(result: CuResult, exec: CuGraphExec) {
    first_use::forget_graph(exec);
    if !any() || result != CuResult::SUCCESS {
        return;
    }
    let Some(accounts) = standing::opened() else {
        return;
    };
    let exec = exec as u64;
    let map = &accounts.holdings().map;
    let Some(head) = map.take::<GraphExec>(exec) else {
        return;
    };
    for device in devices(head.devices) {
        map.take::<GraphPart>(key(exec, device));
        settle(&accounts, device);
    }
}

/// Settles every device whose graphs hold something.
pub(crate) fn after_change(result: CuResult) {
    if !any() || result != CuResult::SUCCESS {
        return;
    }
    let Some(accounts) = standing::opened() else {
        return;
    };
    for (device, memory) in accounts.holdings().graphs.iter().enumerate() {
        // Relaxed: an estimate.
        if memory.charged.load(Ordering::Relaxed) > 0 {
            settle(&accounts, device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_has_a_place_for_itself_and_for_each_device() {
        let exec = 0x7fff_1234_5670;
        let mut keys: Vec<u64> = (0..MAX_DEVICES).map(|device| key(exec, device)).collect();
        keys.push(exec);
        keys.sort_unstable();
        keys.dedup();

        assert_eq!(keys.len(), MAX_DEVICES + 1);
    }

    #[test]
    fn a_set_names_its_devices() {
        assert_eq!(devices(0).count(), 0);
        assert_eq!(
            devices(0b1000_0000_0000_0101).collect::<Vec<_>>(),
            [0, 2, 15]
        );
    }
}
