//! The memory that graphs hold of each device, and how its charge is settled to the driver's figure.

use core::sync::atomic::{AtomicU32, Ordering};

use vgpu_abi::region::Kind;

use crate::base::lock;
use crate::driver::query;
use crate::figures::room::Figures;
use crate::state::accounts::Accounts;
use crate::state::entries::GraphAllocation;
use crate::state::holdings::GraphMemory;

/// Has this process (or one that it was forked from) made a memory node? Outside the memory that a fork wipes, so
/// that a launch reads one word only.
pub(crate) static ANY: AtomicU32 = AtomicU32::new(0);

pub(crate) fn any() -> bool {
    // Relaxed: the thread that makes the node sets it, before a graph with it can be launched.
    ANY.load(Ordering::Relaxed) != 0
}

/// A memory node has been made, or captured.
pub(crate) fn note_memory_node(_books: &Accounts) {
    // Relaxed: see `any`.
    ANY.store(1, Ordering::Relaxed);
}

/// A graph with memory nodes has just been launched, which made the device's graph memory grow by `grown` bytes:
/// learns what the driver counts as in use.
pub(crate) fn learn_figures(accounts: &Accounts, device: usize, grown: u64) {
    let Some(memory) = accounts.holdings().graphs.get(device) else {
        return;
    };
    // Relaxed: learned once, and stays so.
    if memory.counts_live.load(Ordering::Relaxed) == 0
        && let Some(figures) = figures(accounts, memory, device)
        && figures.count_live(grown)
    {
        // Relaxed: as above.
        memory.counts_live.store(1, Ordering::Relaxed);
    }
}

pub(crate) fn figures(accounts: &Accounts, memory: &GraphMemory, device: usize) -> Option<Figures> {
    let ordinal = ordinal(accounts, memory, device)?;
    query::relaxed(|| query::graph_figures(ordinal))
}

/// The driver's ordinal of the device.
pub(crate) fn ordinal(accounts: &Accounts, memory: &GraphMemory, device: usize) -> Option<i32> {
    // Relaxed: the same value in whichever thread.
    if let Some(known) = memory.ordinal.load(Ordering::Relaxed).checked_sub(1) {
        return i32::try_from(known).ok();
    }
    let found = accounts.ordinal_of(device)?;
    // Relaxed: as above.
    memory
        .ordinal
        .store(found.unsigned_abs() + 1, Ordering::Relaxed);
    Some(found)
}

/// Gives memory that the device's graphs do not use back.
pub(crate) fn relieve(accounts: &Accounts, device: usize) {
    if let Some(memory) = accounts.holdings().graphs.get(device)
        && let Some(ordinal) = ordinal(accounts, memory, device)
    {
        query::relaxed(|| query::trim_graphs(ordinal));
        // Relaxed: only has to differ.
        memory.trims.fetch_add(1, Ordering::Relaxed);
    }
    settle(accounts, device);
}

/// Charges the device's graphs what they hold now. Gives the charge before this; `None`: the driver does not say
/// what they hold.
pub(crate) fn settle(accounts: &Accounts, device: usize) -> Option<u64> {
    if !any() {
        return None;
    }
    let memory = accounts.holdings().graphs.get(device)?;
    let _held = memory.lock.hold()?;
    let ordinal = ordinal(accounts, memory, device)?;
    let holds = query::relaxed(|| query::graph_reserved(ordinal))?;
    let now = lock::milliseconds().unsigned_abs();
    let is = holds.saturating_add(memory.advanced.bytes(now));
    // Relaxed: under the lock.
    let was = memory.charged.swap(is, Ordering::Relaxed);
    if was != is {
        accounts
            .container
            .region
            .adjust(device, Kind::Buffer, was, is);
    }
    Some(was)
}

/// A pointer that we have not charged is freed. If it is a graph's, the graph's next launch takes memory
/// again.
pub(crate) fn freed_outside(accounts: &Accounts, address: u64) {
    if !any()
        || accounts
            .holdings()
            .map
            .take::<GraphAllocation>(address)
            .is_none()
    {
        return;
    }
    for memory in &accounts.holdings().graphs {
        // Relaxed: only has to differ.
        memory.frees.fetch_add(1, Ordering::Relaxed);
    }
}

/// The program has trimmed graph memory: the driver has taken back what no graph used.
pub(crate) fn trimmed(accounts: &Accounts, device: usize) {
    if !any() {
        return;
    }
    if let Some(memory) = accounts.holdings().graphs.get(device) {
        // Relaxed: only has to differ.
        memory.trims.fetch_add(1, Ordering::Relaxed);
    }
    settle(accounts, device);
}
