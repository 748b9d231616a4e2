//! Rules: memory that graphs allocate. What a graph's memory nodes want is counted when it is made
//! executable, reserved when it is uploaded or launched, and settled to what the device's graphs hold.
//! A process without memory nodes pays one load for each launch.

use core::sync::atomic::{AtomicU32, Ordering};

use cuda_api::{CuDevice, CuGraph, CuGraphExec, CuGraphNodeParams, CuResult};
use vgpu_abi::region::{Charge, Kind};

use crate::books::{self, Books, books};
use crate::border;
use crate::compute;
use crate::container::Device;
use crate::guest::Verdict;
use crate::map::{Entry, Space, Then};
use crate::pools;
use crate::query;

/// Has anybody in this process (or one that it was forked from) made a memory node? Stands outside
/// the wiped memory, so that a launch looks at nothing else.
static ANY: AtomicU32 = AtomicU32::new(0);

fn any() -> bool {
    // Relaxed: set by whoever made the node, before a graph with it can be launched.
    ANY.load(Ordering::Relaxed) != 0
}

/// A memory node has been made, or captured.
pub(crate) fn note_memory_node(_books: &Books) {
    // Relaxed: see `any`.
    ANY.store(1, Ordering::Relaxed);
}

/// `cuGraphAddMemAllocNode`.
pub(crate) fn after_add_alloc(result: CuResult) {
    if result == CuResult::SUCCESS
        && let Some(books) = books::opened()
    {
        note_memory_node(&books);
    }
}

/// `cuGraphAddNode`: of any kind.
pub(crate) fn after_add(result: CuResult, params: *mut CuGraphNodeParams) {
    if border::read(params).is_some_and(|params| params.kind == query::NODE_ALLOC) {
        after_add_alloc(result);
    }
}

/// What one executable graph wants of one device.
#[derive(Clone, Copy)]
struct Wanted {
    device: usize,
    ordinal: i32,
    bytes: u64,
}

/// What the graph's memory nodes want. Graphs that allocate on several devices are counted on the
/// one that comes first; the rest is settled after the launch.
fn wanted(books: &Books, graph: CuGraph) -> Option<Wanted> {
    let mut wanted: Option<Wanted> = None;
    let mut add = |ordinal: i32, bytes: u64| match &mut wanted {
        None => {
            if let Device::Limited(device) = books.process.device(books.container, ordinal) {
                wanted = Some(Wanted {
                    device,
                    ordinal,
                    bytes,
                });
            }
        }
        Some(sum) if sum.ordinal == ordinal => sum.bytes = sum.bytes.saturating_add(bytes),
        Some(_) => {}
    };
    query::relaxed(|| query::graph_allocations(graph, 0, &mut add));
    wanted
}

pub(crate) fn after_instantiate(result: CuResult, out: *mut CuGraphExec, graph: CuGraph) {
    if let Some(exec) = border::read(out).filter(|_| result == CuResult::SUCCESS) {
        compute::forget_graph(exec);
    }
    if !any() || result != CuResult::SUCCESS {
        return;
    }
    let Some(books) = books::opened() else { return };
    let Some(exec) = border::read(out) else {
        return;
    };
    let Some(wanted) = wanted(&books, graph) else {
        return;
    };
    let entry = Entry {
        bytes: wanted.bytes,
        device: u8::try_from(wanted.device).unwrap_or(u8::MAX),
        ..Entry::default()
    };
    books.ledger().map.put(Space::GraphExec, exec as u64, entry);
    if let Some(memory) = books.ledger().graphs.get(wanted.device) {
        let ordinal = wanted.ordinal.unsigned_abs() + 1;
        // Relaxed: the same value whoever writes it.
        memory.ordinal.store(ordinal, Ordering::Relaxed);
        // Some drivers take the memory now.
        settle(&books, wanted.device);
    }
}

/// A launch of a graph with memory nodes.
#[derive(Clone, Copy)]
pub(crate) struct Launching {
    charge: Option<Charge>,
    exec: u64,
    device: usize,
    trims: u32,
}

/// A graph whose memory is there already asks for none.
pub(crate) fn before_launch(call: &str, exec: CuGraphExec) -> Verdict<Launching> {
    if !any() {
        return Verdict::Pass;
    }
    let books = books!(Launch);
    let exec = exec as u64;
    let Some(entry) = books.ledger().map.get(Space::GraphExec, exec) else {
        return Verdict::Pass;
    };
    let device = usize::from(entry.device);
    let Some(memory) = books.ledger().graphs.get(device) else {
        return Verdict::Pass;
    };
    // Relaxed: a trim at the same time is the host's own race, and is settled.
    let trims = memory.trims.load(Ordering::Relaxed);
    if entry.maps == trims + 1 {
        return Verdict::Pass;
    }
    let launching = Launching {
        charge: None,
        exec,
        device,
        trims,
    };
    match books.try_reserve(device, pools::grown_by(entry.bytes)) {
        Ok(charge) => Verdict::Call(Launching {
            charge: Some(charge),
            ..launching
        }),
        Err(refusal) => {
            // Graphs that do not run at the same time use the same memory: is there enough of it?
            // Relaxed: an estimate; it is settled after the call.
            if memory.charged.load(Ordering::Relaxed) >= entry.bytes {
                return Verdict::Call(launching);
            }
            Verdict::Refuse(books.refuse(call, device, &refusal))
        }
    }
}

pub(crate) fn after_launch(launching: Launching, result: CuResult) {
    let Some(books) = books::opened() else { return };
    settle(&books, launching.device);
    if let Some(charge) = launching.charge {
        books.refund(charge);
    }
    if result == CuResult::SUCCESS {
        let there = |entry: &mut Entry| {
            entry.maps = launching.trims + 1;
            (Then::Keep, ())
        };
        books
            .ledger()
            .map
            .change(Space::GraphExec, launching.exec, there);
    }
}

/// What the device's graphs hold now is what they are charged.
fn settle(books: &Books, device: usize) {
    let Some(memory) = books.ledger().graphs.get(device) else {
        return;
    };
    let Some(_held) = memory.lock.hold() else {
        return;
    };
    // Relaxed: under the lock, as below.
    let Some(ordinal) = memory.ordinal.load(Ordering::Relaxed).checked_sub(1) else {
        return;
    };
    let Ok(ordinal) = i32::try_from(ordinal) else {
        return;
    };
    let Some(holds) = query::relaxed(|| query::graph_bytes(ordinal)) else {
        return;
    };
    let was = memory.charged.swap(holds, Ordering::Relaxed);
    if was != holds {
        books
            .container
            .region
            .adjust(device, Kind::Buffer, was, holds);
    }
}

/// `cuDeviceGraphMemTrim`: what no graph uses goes back.
pub(crate) fn after_trim(result: CuResult, device: CuDevice) {
    if !any() || result != CuResult::SUCCESS {
        return;
    }
    let Some(books) = books::opened() else { return };
    let Device::Limited(device) = books.process.device(books.container, device.0) else {
        return;
    };
    if let Some(memory) = books.ledger().graphs.get(device) {
        // Relaxed: only has to differ.
        memory.trims.fetch_add(1, Ordering::Relaxed);
    }
    settle(&books, device);
}

/// An executable graph or a graph is gone.
pub(crate) fn after_destroy(result: CuResult, exec: CuGraphExec) {
    compute::forget_graph(exec);
    if !any() || result != CuResult::SUCCESS {
        return;
    }
    let Some(books) = books::opened() else { return };
    if let Some(entry) = books.ledger().map.take(Space::GraphExec, exec as u64) {
        settle(&books, usize::from(entry.device));
    }
}

/// Settles every device whose graphs hold something.
pub(crate) fn after_change(result: CuResult) {
    if !any() || result != CuResult::SUCCESS {
        return;
    }
    let Some(books) = books::opened() else { return };
    for (device, memory) in books.ledger().graphs.iter().enumerate() {
        // Relaxed: an estimate.
        if memory.charged.load(Ordering::Relaxed) > 0 {
            settle(&books, device);
        }
    }
}
