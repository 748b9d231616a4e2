//! Rules: memory that graphs allocate. What a graph's memory nodes want is counted when it is made
//! executable, reserved when it is uploaded or launched, and settled to what the device's graphs hold.
//! A process without memory nodes pays one load for each launch.

use core::sync::atomic::Ordering;

use cuda_api::{
    CuDevice, CuGraph, CuGraphExec, CuGraphInstantiateParams, CuGraphNodeParams, CuResult,
};
use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::region::{Charge, Kind, Refusal, Why};

use crate::base::lock;
use crate::base::log::line;
use crate::base::map::{Entry, Space, Then};
use crate::driver::device::Device;
use crate::driver::query::{self, MemoryNode};
use crate::figures::room::{self, Launched, Moves, Want};
use crate::guest::border::{DefaultStream as _, InPtr, Legacy, OutPtr};
use crate::guest::manners::Verdict;
use crate::holdings::graph_charges::{
    self, any, figures, learn_figures, note_memory_node, relieve, settle,
};
use crate::holdings::{locate, location, requests};
use crate::rules::first_use::{self, FirstUse};
use crate::state::accounts::{Accounts, Destination};
use crate::state::holdings::GraphMemory;
use crate::state::standing::{self, accounts};

/// `cuGraphAddMemAllocNode`.
pub(crate) fn after_add_alloc(result: CuResult) {
    if result == CuResult::SUCCESS
        && let Some(accounts) = standing::opened()
    {
        note_memory_node(&accounts);
    }
}

/// `cuGraphAddNode`: of any kind.
pub(crate) fn after_add(result: CuResult, params: OutPtr<CuGraphNodeParams>) {
    if params
        .read()
        .is_some_and(|params| params.kind == query::NODE_ALLOC)
    {
        after_add_alloc(result);
    }
}

/// What a graph's memory nodes want of each device.
#[derive(Clone, Copy)]
struct Wants {
    devices: [Want; MAX_DEVICES],
    /// It allocates on a device that the container may not use.
    is_denied: bool,
    /// Something that it allocates outlives the launch.
    keeps: bool,
}

/// `Entry::what` of an executable graph: a launch may find the memory of the one before still in use.
const KEEPS: u8 = 1;

/// `Entry::what` of an executable graph's part on one device: when it got its memory there, no other
/// graph had any of it.
const IS_OWN: u8 = 1;

/// What the graph's memory nodes want. `None`: the driver does not say.
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
            map.put(Space::GraphMemory, address, Entry::default());
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

/// What an executable graph is kept under: by itself which devices it uses, and once for each of them.
fn key(exec: u64, device: usize) -> u64 {
    exec ^ (device as u64 + 1) << 57
}

/// The devices in a set of them.
fn devices(set: u32) -> impl Iterator<Item = usize> {
    (0..MAX_DEVICES).filter(move |device| set >> device & 1 != 0)
}

/// Room for what a call may take of one device.
#[derive(Clone, Copy)]
enum Room {
    /// Reserved in the container.
    Reserved(Charge),
    /// In what the driver holds for graphs already.
    Promised,
}

/// Reserves what a graph can make its device's graph memory grow by. Where the container has no room
/// for that, a graph whose memory is there since its last launch (`is_mapped`) may pass if the driver's
/// figures say so. For any other, what graphs hold and do not use is given back first.
fn reserve(
    accounts: &Accounts,
    call: &str,
    device: usize,
    (bytes, growth): (u64, u64),
    is_mapped: bool,
) -> Result<Room, CuResult> {
    let refusal = match requests::try_reserve(accounts, device, growth) {
        Ok(charge) => return Ok(Room::Reserved(charge)),
        Err(refusal) => refusal,
    };
    let may_pass = is_mapped && room::may_pass_without_growth(&refusal);
    match is_there(accounts, device, bytes, may_pass) {
        There::Yes => return Ok(Room::Promised),
        There::Unused => {
            relieve(accounts, device);
            if let Ok(charge) = requests::try_reserve(accounts, device, growth) {
                return Ok(Room::Reserved(charge));
            }
        }
        There::No => {}
    }
    Err(accounts.refuse(call, device, &refusal))
}

/// Is the memory there that a graph wants?
#[derive(Clone, Copy, PartialEq, Eq)]
enum There {
    /// It is, and is promised to this call.
    Yes,
    /// Graphs hold memory that they may not use.
    Unused,
    /// It is not.
    No,
}

fn is_there(accounts: &Accounts, device: usize, bytes: u64, may_pass: bool) -> There {
    let Some(memory) = accounts.holdings().graphs.get(device) else {
        return There::No;
    };
    let Some(_held) = memory.lock.hold_briefly() else {
        return There::No;
    };
    let Some(figures) = figures(accounts, memory, device) else {
        return There::No;
    };
    let now = lock::milliseconds().unsigned_abs();
    let promised = memory.promised.bytes(now);
    // Relaxed: learned once, and stays so.
    let counts_live = memory.counts_live.load(Ordering::Relaxed) != 0;
    if may_pass && figures.have_own(bytes, promised, counts_live) {
        memory.promised.add(now, bytes);
        return There::Yes;
    }
    if promised == 0 && figures.reserved > 0 {
        There::Unused
    } else {
        There::No
    }
}

/// What was reserved for a call on its devices. Only one charge may lie on the stack; what further
/// devices need is confirmed at once, and goes when they are settled.
#[derive(Clone, Copy, Default)]
struct Taken {
    charge: Option<Charge>,
    advanced: u32,
    promised: u32,
}

impl Taken {
    fn take(
        &mut self,
        accounts: &Accounts,
        call: &str,
        device: usize,
        wanted: (u64, u64),
        is_mapped: bool,
    ) -> Result<(), CuResult> {
        match reserve(accounts, call, device, wanted, is_mapped)? {
            Room::Promised => self.promised |= 1 << device,
            Room::Reserved(charge) => {
                if let Some(before) = self.charge.replace(charge) {
                    self.advance(accounts, before);
                }
            }
        }
        Ok(())
    }

    fn advance(&mut self, accounts: &Accounts, charge: Charge) {
        let device = charge.device();
        let Some(memory) = accounts.holdings().graphs.get(device) else {
            return accounts.container.region.refund(charge);
        };
        let Some(_held) = memory.lock.hold() else {
            return accounts.container.region.refund(charge);
        };
        accounts.container.region.confirm(charge, Kind::Buffer);
        // Relaxed: under the lock.
        memory.charged.fetch_add(charge.bytes(), Ordering::Relaxed);
        let now = lock::milliseconds().unsigned_abs();
        memory.advanced.add(now, charge.bytes());
        self.advanced |= 1 << device;
    }

    /// The call has come back, or is not made. Answers the devices whose graph memory has grown by more
    /// than was reserved.
    fn give_back(self, accounts: &Accounts, set: u32, wanted: impl Fn(usize) -> (u64, u64)) -> u32 {
        let mut grown = 0;
        for device in devices(set) {
            let (bytes, growth) = wanted(device);
            let Some(memory) = accounts.holdings().graphs.get(device) else {
                continue;
            };
            if let Some(_held) = memory.lock.hold() {
                if self.promised >> device & 1 != 0 {
                    memory.promised.take_back(bytes);
                }
                if self.advanced >> device & 1 != 0 {
                    memory.advanced.take_back(growth);
                }
            }
            let before = settle(accounts, device);
            let reserved = match self.charge.filter(|charge| charge.device() == device) {
                Some(charge) if before.is_none() => {
                    // The driver does not say what it holds: it holds what was reserved.
                    accounts.confirm(charge, Kind::Buffer);
                    // Relaxed: a sum that guards no other memory.
                    memory.charged.fetch_add(charge.bytes(), Ordering::Relaxed);
                    continue;
                }
                Some(charge) => {
                    accounts.refund(charge);
                    charge.bytes()
                }
                None => 0,
            };
            // Relaxed: a figure of the moment.
            let is = memory.charged.load(Ordering::Relaxed);
            let more = before.map_or(0, |was| is.saturating_sub(was));
            learn_figures(accounts, device, more);
            if more > reserved {
                grown |= 1 << device;
            }
        }
        grown
    }
}

/// A graph that is being made executable.
#[derive(Clone, Copy)]
pub(crate) struct Instantiating {
    wants: Wants,
    taken: Taken,
    /// Where it is uploaded.
    stream: Option<u16>,
}

/// The same, with what the driver may load for it.
#[derive(Clone, Copy)]
pub(crate) struct Making {
    memory: Option<Instantiating>,
    first: Option<FirstUse>,
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;

pub(crate) fn before_instantiate_with(
    call: &str,
    graph: CuGraph,
    params: InPtr<CuGraphInstantiateParams>,
) -> Verdict<Making> {
    let params = params.read().unwrap_or(CuGraphInstantiateParams::zeroed());
    let stream = Legacy.number(params.upload_stream);
    make_executable(call, graph, params.flags, stream)
}

/// What the graph will want is counted; where it is uploaded at once, it is reserved.
pub(crate) fn before_instantiate(call: &str, graph: CuGraph, flags: u64) -> Verdict<Making> {
    make_executable(call, graph, flags, Legacy::NUMBER)
}

fn make_executable(call: &str, graph: CuGraph, flags: u64, stream: u64) -> Verdict<Making> {
    match reserve_executable(call, graph, flags, stream) {
        Verdict::Call(memory) => Verdict::Call(Making {
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
    let mut taken = Taken::default();
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

    /// What its nodes want of a device, and what that may make the device's graph memory grow by.
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
    making: Making,
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

/// A graph that was launched or uploaded, or is about to be.
#[derive(Clone, Copy)]
struct Run {
    exec: u64,
    /// The devices that it uses.
    set: u32,
    keeps: bool,
    stream: u16,
}

/// `GraphMemory::stream`: launches came in several streams.
const IN_STREAMS: u32 = u32::MAX;

/// The graph has its memory from here on. `own`: the devices on which it got memory that no other graph
/// had. What that takes from other graphs, their next launches have to find anew.
fn mark_mapped(accounts: &Accounts, run: Run, own: u32) {
    let map = &accounts.holdings().map;
    for device in devices(run.set) {
        let Some(memory) = accounts.holdings().graphs.get(device) else {
            continue;
        };
        let number = key(run.exec, device);
        let Some(entry) = map.get(Space::GraphExec, number) else {
            continue;
        };
        let was_mapped = is_mapped(memory, &entry, run);
        let is_own = if was_mapped {
            entry.what == IS_OWN
        } else {
            own >> device & 1 != 0
        };
        let stream = u32::from(run.stream) + 1;
        // Relaxed: threads that launch at the same time find several streams, or are the host's own race.
        let streams = match memory.stream.load(Ordering::Relaxed) {
            0 => stream,
            known if known == stream => stream,
            _ => IN_STREAMS,
        };
        let launched = Launched {
            was_mapped,
            is_own,
            keeps: run.keeps,
            in_streams: streams == IN_STREAMS,
        };
        // Relaxed: both only have to differ.
        match launched.moves() {
            Moves::Nothing => memory.stream.store(streams, Ordering::Relaxed),
            Moves::Shared => {
                memory.shared_moves.fetch_add(1, Ordering::Relaxed);
                memory.stream.store(streams, Ordering::Relaxed);
            }
            Moves::All => {
                memory.moves.fetch_add(1, Ordering::Relaxed);
                memory.stream.store(stream, Ordering::Relaxed);
            }
        }
        let there = |entry: &mut Entry| {
            entry.maps = mark(memory, run.keeps, is_own);
            entry.handles = run.stream;
            entry.what = if is_own { IS_OWN } else { 0 };
            (Then::Keep, ())
        };
        map.change(Space::GraphExec, number, there);
    }
}

/// Has it its memory since its last launch? In the same stream the driver leaves it where it was.
fn is_mapped(memory: &GraphMemory, entry: &Entry, run: Run) -> bool {
    entry.maps == mark(memory, run.keeps, entry.what == IS_OWN) && entry.handles == run.stream
}

fn remember(accounts: &Accounts, exec: u64, wants: &Wants) {
    let map = &accounts.holdings().map;
    let set = wants.set();
    if set == 0 {
        return;
    }
    let head = Entry {
        maps: set,
        what: if wants.keeps { KEEPS } else { 0 },
        ..Entry::default()
    };
    map.put(Space::GraphExec, exec, head);
    for device in devices(set) {
        let (bytes, growth) = wants.of(device);
        let entry = Entry {
            bytes,
            owner: growth,
            device: u8::try_from(device).unwrap_or(u8::MAX),
            ..Entry::default()
        };
        map.put(Space::GraphExec, key(exec, device), entry);
    }
}

/// An executable graph has taken over another graph: it may want what that one wants.
pub(crate) fn after_update(result: CuResult, exec: CuGraphExec, graph: CuGraph) {
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

/// The same, of a node of any kind.
pub(crate) fn after_node(result: CuResult, exec: CuGraphExec, params: OutPtr<CuGraphNodeParams>) {
    if result == CuResult::SUCCESS {
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
    let head = map.get(Space::GraphExec, exec).unwrap_or_default();
    wants.keeps |= head.what == KEEPS;
    let before = |device| map.get(Space::GraphExec, key(exec, device));
    let known: [Option<Entry>; MAX_DEVICES] = core::array::from_fn(before);
    remember(&accounts, exec, &wants);
    let all = |entry: &mut Entry| {
        entry.maps |= head.maps;
        (Then::Keep, ())
    };
    map.change(Space::GraphExec, exec, all);
    for (device, known) in known.into_iter().enumerate() {
        let Some(known) = known else { continue };
        let (bytes, growth) = wants.of(device);
        // Its next launch gets memory anew.
        let entry = Entry {
            bytes: sum(known.bytes, bytes),
            owner: sum(known.owner, growth),
            device: known.device,
            ..Entry::default()
        };
        map.put(Space::GraphExec, key(exec, device), entry);
    }
}

/// A launch of a graph with memory nodes.
#[derive(Clone, Copy)]
pub(crate) struct Launching {
    run: Run,
    taken: Taken,
    /// The first of the devices on which it gets memory anew.
    anew: Option<Anew>,
}

/// A device on which a graph gets memory.
#[derive(Clone, Copy)]
struct Anew {
    device: usize,
    bytes: u64,
    /// What graphs used before.
    used: u64,
    /// Launches on the device that had begun and ended.
    launches: u32,
}

impl Anew {
    fn begin(accounts: &Accounts, memory: &GraphMemory, device: usize, bytes: u64) -> Self {
        Self {
            device,
            bytes,
            used: figures(accounts, memory, device).map_or(u64::MAX, |figures| figures.used),
            // Relaxed: threads that launch at the same time see that they are not alone.
            launches: memory.launches.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The launch has come back: has the graph got memory that no other graph had? The driver then says
    /// that graphs use so much more than before. Where other launches ran meanwhile, that is not known.
    fn is_own(&self, accounts: &Accounts) -> bool {
        let Some(memory) = accounts.holdings().graphs.get(self.device) else {
            return false;
        };
        // Relaxed: as above.
        let launches = memory.launches.fetch_add(1, Ordering::Relaxed);
        let is_alone = self.launches & 1 == 0 && launches == self.launches.wrapping_add(1);
        is_alone
            && self.bytes > 0
            && figures(accounts, memory, self.device)
                .is_some_and(|now| now.used.saturating_sub(self.used) >= self.bytes)
    }
}

/// What a graph was launched in, short enough to be kept beside it.
fn fold(stream: u64) -> u16 {
    let folded = stream ^ stream >> 16 ^ stream >> 32 ^ stream >> 48;
    u16::try_from(folded & 0xffff).unwrap_or(0)
}

/// Differs when a graph that was launched before may have lost its memory to others.
fn mark(memory: &GraphMemory, keeps: bool, is_own: bool) -> u32 {
    // Relaxed here and below: a trim or a launch at the same time is the host's own race, and is settled.
    let all = memory.trims.load(Ordering::Relaxed);
    let moves = memory.moves.load(Ordering::Relaxed);
    let frees = memory.frees.load(Ordering::Relaxed);
    let shared = memory.shared_moves.load(Ordering::Relaxed);
    all.wrapping_add(moves)
        .wrapping_add(if keeps { frees } else { 0 })
        .wrapping_add(if is_own { 0 } else { shared })
        .wrapping_add(1)
        .max(1)
}

/// Before a launch or an upload. A stream that captures only records it.
pub(crate) fn before_launch(call: &str, exec: CuGraphExec, stream: u64) -> Verdict<Launching> {
    if !any() {
        return Verdict::Pass;
    }
    let accounts = accounts!(Launch);
    let exec = exec as u64;
    let map = &accounts.holdings().map;
    let Some(head) = map.get(Space::GraphExec, exec) else {
        return Verdict::Pass;
    };
    if query::relaxed(|| query::is_capturing(query::stream(stream))) {
        return Verdict::Pass;
    }
    let run = Run {
        exec,
        set: head.maps,
        keeps: head.what == KEEPS,
        stream: fold(stream),
    };
    let mut launching = Launching {
        run,
        taken: Taken::default(),
        anew: None,
    };
    for device in devices(head.maps) {
        let Some(entry) = map.get(Space::GraphExec, key(exec, device)) else {
            continue;
        };
        let Some(memory) = accounts.holdings().graphs.get(device) else {
            continue;
        };
        let is_mapped = is_mapped(memory, &entry, run);
        let wanted = (entry.bytes, entry.owner);
        if let Err(result) = launching
            .taken
            .take(&accounts, call, device, wanted, is_mapped)
        {
            launching.give_back(&accounts);
            return Verdict::Refuse(result);
        }
        if !is_mapped && launching.anew.is_none() {
            launching.anew = Some(Anew::begin(&accounts, memory, device, entry.bytes));
        }
    }
    Verdict::Call(launching)
}

impl Launching {
    /// The devices whose graph memory has grown by more than was reserved, and those on which the graph
    /// has got memory that no other graph had.
    fn give_back(&self, accounts: &Accounts) -> (u32, u32) {
        let map = &accounts.holdings().map;
        let own = self.anew.filter(|anew| anew.is_own(accounts));
        let grown = self.taken.give_back(accounts, self.run.set, |device| {
            map.get(Space::GraphExec, key(self.run.exec, device))
                .map_or((0, 0), |entry| (entry.bytes, entry.owner))
        });
        (grown, own.map_or(0, |anew| 1 << anew.device))
    }
}

pub(crate) fn after_launch(launching: Launching, result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let (grown, own) = launching.give_back(&accounts);
    if result != CuResult::SUCCESS {
        return;
    }
    mark_mapped(&accounts, launching.run, own);
    for device in devices(grown) {
        if let Some(over) = requests::above_limit(&accounts, device) {
            // It cannot be undone: what graphs do not use goes back, and nothing else is given until
            // the books are within the limit.
            relieve(&accounts, device);
            let _recorded = accounts.refuse("a graph's launch", device, &over);
        }
    }
}

/// `cuDeviceGraphMemTrim`: what no graph uses goes back.
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

/// An executable graph or a graph is gone.
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
    let Some(head) = map.take(Space::GraphExec, exec) else {
        return;
    };
    for device in devices(head.maps) {
        map.take(Space::GraphExec, key(exec, device));
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
