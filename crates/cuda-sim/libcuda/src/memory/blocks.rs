//! The table of all blocks of addresses: device, managed and host memory, and the blocks of pools, mappings, arrays
//! and other processes.
//!
//! Device memory is host memory at the same address, so copies move real bytes. The device memory that a block takes
//! is rounded as the driver rounds it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_api::driver::*;
use cuda_sim::board;

use crate::base::border::{Done, invalid_if, lock, refuse_if};
use crate::base::space::{self, PAGE, Space};
use crate::memory::context::Context;
use crate::memory::physical;
use crate::memory::pool::Pool;
use crate::process::choices;
use crate::process::driver::{self, Driver};
use crate::process::files;

const SMALL_STEP: u64 = 512;

/// A block of addresses.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// As asked for.
    pub(crate) bytes: u64,
    /// The device memory that it takes; 0 if another object holds it.
    pub(crate) taken: u64,
    pub(crate) gpu: usize,
    /// The context that it ends with.
    pub(crate) context: Option<&'static Context>,
    pub(crate) kind: BlockKind,
    /// Different for every block that there ever was.
    pub(crate) id: u64,
    /// Processes hold it together, and the board carries it.
    pub(crate) shared: Option<board::SharedId>,
}

/// The kind of a block.
#[derive(Debug, Clone)]
pub(crate) enum BlockKind {
    Device,
    Managed,
    /// Variables of a module: the module's size carries them.
    Module,
    Pool(&'static Pool),
    /// An allocation node's: its graph carries it while it is launched.
    Graph,
    /// An array's contents; no pointer of the program's.
    Array,
    Host {
        flags: u32,
    },
    /// The program's own memory, made known.
    Registered,
    /// Physical memory, mapped.
    Mapped(physical::Mapping),
    /// Another process's memory, with the number of times it was opened.
    Opened {
        times: u32,
    },
    External,
}

impl BlockKind {
    pub(crate) fn is_host(&self) -> bool {
        matches!(self, Self::Host { .. } | Self::Registered)
    }

    /// What the board calls the memory of such a block.
    fn on_board(&self) -> board::Kind {
        match self {
            Self::Managed => board::Kind::Managed,
            _ => board::Kind::Alloc,
        }
    }

    /// Whether the addresses are pieces of the space.
    fn is_in_space(&self) -> bool {
        !matches!(self, Self::Registered | Self::Mapped(_))
    }
}

#[derive(Debug, Default)]
struct Blocks {
    all: BTreeMap<u64, Block>,
    space: Option<Space>,
    low: Option<Space>,
}

static BLOCKS: Mutex<Option<Blocks>> = Mutex::new(None);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Addresses below 4 GiB that there are for the first forms of driver functions.
const LOW_BYTES: u64 = 1 << 30;

fn with<T>(body: impl FnOnce(&mut Blocks) -> T) -> T {
    let mut blocks = lock(&BLOCKS);
    body(blocks.get_or_insert_with(Blocks::default))
}

/// The device memory that a plain block of this size takes.
#[must_use]
pub(crate) fn rounded(bytes: u64) -> u64 {
    let (least, big) = choices::steps();
    let step = if bytes >= least { big } else { SMALL_STEP };
    bytes.checked_next_multiple_of(step).unwrap_or(u64::MAX)
}

impl Blocks {
    /// Addresses for a block. Enough for all GPUs of a board four times over, so that pieces of odd
    /// sizes do not use them up.
    fn addresses(&mut self, bytes: u64, low: bool) -> Option<u64> {
        if low {
            if self.low.is_none() {
                self.low = Space::reserve_low(LOW_BYTES);
            }
            return self.low.as_mut()?.take(bytes);
        }
        if self.space.is_none() {
            let board = &driver::get()?.board;
            let total: u64 = (0..board.gpus()).map(|gpu| board.total_bytes(gpu)).sum();
            self.space = Space::reserve(total.saturating_mul(4).clamp(64 << 30, 16 << 40));
        }
        self.space.as_mut()?.take(bytes)
    }

    fn give_addresses(&mut self, base: u64, block: &Block) {
        if !block.kind.is_in_space() {
            return;
        }
        if block.shared.is_some() || matches!(block.kind, BlockKind::External) {
            // A file is mapped over these pages; this makes them anonymous again.
            space::blank(base, block.bytes.next_multiple_of(PAGE), true);
        }
        let space = match &mut self.low {
            Some(low) if low.owns(base, LOW_BYTES) => Some(low),
            _ => self.space.as_mut(),
        };
        if let Some(space) = space {
            space.give(base, block.bytes);
        }
    }

    /// The block that contains an address.
    fn at(&self, address: u64) -> Option<(u64, &Block)> {
        let (&base, block) = self.all.range(..=address).next_back()?;
        (address - base < block.bytes.max(1)).then_some((base, block))
    }
}

/// Makes a block and takes its memory.
///
/// # Errors
/// When the GPU has no room for it.
pub(crate) fn make(
    context: &'static Context,
    bytes: u64,
    taken: u64,
    kind: BlockKind,
    low: bool,
) -> Done<u64> {
    let driver = driver::the()?;
    let taken = take(driver, context.gpu, taken, &kind)?;
    let on_board = kind.on_board();
    let block = Block {
        taken,
        context: Some(context.home()),
        ..block(bytes, context.gpu, kind)
    };
    place(block, low).inspect_err(|_| driver.give(context.gpu, taken, on_board))
}

/// Takes a block's device memory; returns the amount. Managed memory that finds no room stays on the host; other
/// memory evicts managed memory of this process.
fn take(driver: &Driver, gpu: usize, bytes: u64, kind: &BlockKind) -> Done<u64> {
    if bytes == 0 {
        return Ok(0);
    }
    match driver.take(gpu, bytes, kind.on_board()) {
        Err(CuResult::OUT_OF_MEMORY) if matches!(kind, BlockKind::Managed) => Ok(0),
        Err(CuResult::OUT_OF_MEMORY) => {
            page_out(driver, gpu);
            driver.take(gpu, bytes, kind.on_board()).map(|()| bytes)
        }
        taken => taken.map(|()| bytes),
    }
}

fn page_out(driver: &Driver, gpu: usize) {
    with(|blocks| {
        let managed = blocks
            .all
            .values_mut()
            .filter(|block| block.gpu == gpu && matches!(block.kind, BlockKind::Managed));
        for block in managed {
            driver.give(gpu, block.taken, board::Kind::Managed);
            block.taken = 0;
        }
    });
}

/// Gives a block addresses and puts it into the table.
///
/// # Errors
/// When there are no addresses left.
pub(crate) fn place(block: Block, low: bool) -> Done<u64> {
    with(|blocks| {
        let base = blocks.addresses(block.bytes, low);
        let base = base.ok_or(CuResult::OUT_OF_MEMORY)?;
        blocks.all.insert(base, block);
        Ok(base)
    })
}

/// Puts a block at addresses that the caller has chosen.
///
/// # Errors
/// When something is there already.
pub(crate) fn place_at(base: u64, block: Block) -> Done {
    with(|blocks| {
        let end = base.checked_add(block.bytes);
        let last = end.ok_or(CuResult::INVALID_VALUE)? - 1;
        let within = blocks.all.range(base..=last).next();
        let is_taken = blocks.at(base).is_some() || within.is_some();
        refuse_if(is_taken, CuResult::ALREADY_MAPPED)?;
        blocks.all.insert(base, block);
        Ok(())
    })
}

/// A block with a number of its own, not yet anywhere.
pub(crate) fn block(bytes: u64, gpu: usize, kind: BlockKind) -> Block {
    // Relaxed: only has to differ from every other.
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    Block {
        bytes,
        taken: 0,
        gpu,
        context: None,
        kind,
        id,
        shared: None,
    }
}

/// Removes a block from the table, if `wanted` accepts it.
pub(crate) fn remove(base: u64, wanted: impl FnOnce(&Block) -> bool) -> Option<Block> {
    with(|blocks| {
        if !blocks.all.get(&base).is_some_and(wanted) {
            return None;
        }
        blocks.all.remove(&base)
    })
}

/// Ends a block that was removed from the table: frees its device memory, and its addresses last, because another
/// thread may get them at once.
pub(crate) fn end(base: u64, block: &Block) {
    if let Some(driver) = driver::get() {
        give_memory(driver, block);
        if let BlockKind::Pool(pool) = block.kind {
            pool.freed(base);
        }
    }
    with(|blocks| blocks.give_addresses(base, block));
}

fn give_memory(driver: &Driver, block: &Block) {
    match block.shared {
        Some(shared) => {
            let is_gone = driver.board.let_go(driver.member, shared);
            if is_gone {
                files::forget(driver, shared);
            }
        }
        None if block.taken > 0 => driver.give(block.gpu, block.taken, block.kind.on_board()),
        None => {}
    }
}

/// The block that contains an address, with its base.
pub(crate) fn find(address: u64) -> Option<(u64, Block)> {
    with(|blocks| {
        let found = blocks.at(address);
        found.map(|(base, block)| (base, block.clone()))
    })
}

/// Changes a block in its place.
pub(crate) fn change<T>(base: u64, body: impl FnOnce(&mut Block) -> T) -> Option<T> {
    with(|blocks| blocks.all.get_mut(&base).map(body))
}

/// Bases of all blocks for which `wanted` holds, in a range of addresses.
pub(crate) fn select(
    range: std::ops::Range<u64>,
    wanted: impl Fn(&Block) -> bool,
) -> Vec<(u64, Block)> {
    with(|blocks| {
        let found = blocks.all.range(range).filter(|(_, block)| wanted(block));
        found.map(|(&base, block)| (base, block.clone())).collect()
    })
}

/// Whether `bytes` from an address on can be touched, all known to the driver.
pub(crate) fn is_reachable(address: u64, bytes: u64) -> bool {
    with(|blocks| {
        let Some(end) = address.checked_add(bytes) else {
            return false;
        };
        let mut at = address;
        loop {
            let Some((base, block)) = blocks.at(at) else {
                return false;
            };
            if let BlockKind::Mapped(mapping) = &block.kind
                && !mapping.is_accessible()
            {
                return false;
            }
            at = base + block.bytes;
            if at >= end {
                return true;
            }
        }
    })
}

/// A context ends: its blocks end with it.
pub(crate) fn context_gone(context: &'static Context) {
    end_all(|block| {
        let of = block.context;
        of.is_some_and(|other| std::ptr::eq(other, context))
    });
}

/// Ends every block for which `wanted` holds.
pub(crate) fn end_all(wanted: impl Fn(&Block) -> bool) {
    for (base, _) in select(0..u64::MAX, &wanted) {
        end_at(base, &wanted);
    }
}

/// Ends the block at a base, if `wanted` accepts it; whether it did.
pub(crate) fn end_at(base: u64, wanted: impl FnOnce(&Block) -> bool) -> bool {
    let block = remove(base, wanted);
    if let Some(block) = &block {
        end(base, block);
    }
    block.is_some()
}

/// A module's variables: addresses that live with a context and take nothing of their own.
///
/// # Errors
/// When there are no addresses left.
pub(crate) fn make_variables(context: &'static Context, bytes: u64) -> Done<u64> {
    make(context, bytes, 0, BlockKind::Module, false)
}

/// Frees the block of [`make_variables`].
pub(crate) fn drop_variables(base: u64) {
    end_at(base, |block| matches!(block.kind, BlockKind::Module));
}

/// Rows of a pitched block begin at multiples of this.
pub(crate) const PITCH: u64 = 512;

// --- managed memory: hints ------------------------------------------------------------------------

pub(crate) fn managed(address: u64, bytes: usize) -> Done {
    let (base, block) = find(address).ok_or(CuResult::INVALID_VALUE)?;
    let inside = bytes > 0 && address - base + bytes as u64 <= block.bytes.next_multiple_of(PAGE);
    invalid_if(!(matches!(block.kind, BlockKind::Managed) && inside))
}
