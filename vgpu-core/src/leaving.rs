//! Memory that was freed in the order of a stream: the driver takes it back when the stream gets there,
//! so its charge stays until an event of ours behind the free has come to pass. Pools are asked what
//! they hold instead (`pools.rs`). Puts nothing into a stream that captures.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cuda_api::{CuResult, CuStream};
use vgpu_abi::region::{Kind, SharedKey};

use crate::books::{self, Books, Place};
use crate::growing::{self, Growing};
use crate::guest;
use crate::ledger::CHORE_LEAVING;
use crate::lock::{self, Held, Lock};
use crate::log::line;
use crate::map::Entry;
use crate::memory;
use crate::objects::Objects;
use crate::query::{self, Mark};

/// What was freed and may not be gone yet.
#[repr(C)]
pub(crate) struct Leaving {
    lock: Lock,
    places: Growing<Leaf>,
}

/// What one stream frees, in two parts: an event stands behind each, and the second begins while the
/// first is still on its way. So a stream that never rests gives back all the same.
#[repr(C)]
struct Leaf {
    state: AtomicU32,
    device: AtomicU32,
    /// 0: frees of other streams' memory are not added, since the stream is not known any more.
    stream: AtomicU64,
    /// Our number of the stream's context.
    stream_owner: AtomicU64,
    /// The stream's context.
    context: AtomicU64,
    /// Our number of the context that the memory dies with.
    owner: AtomicU64,
    bytes: [AtomicU64; 2],
    events: [AtomicU64; 2],
    key: [AtomicU64; 2],
}

// SAFETY: atomics only, of which zeros are values; state 0 is an unused place.
unsafe impl growing::Place for Leaf {}

/// `Leaf::state`: nothing; memory of the device; managed memory past the share; a shared object; a hold
/// of an object of this process (`objects.rs`).
const UNUSED: u32 = 0;
const PLAIN: u32 = 1;
const PAST: u32 = 2;
const SHARED: u32 = 3;
const HOLD: u32 = 4;

fn get(word: &AtomicU64) -> u64 {
    // Relaxed: under the lock of the table.
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU64, value: u64) {
    // Relaxed: under the lock of the table.
    word.store(value, Ordering::Relaxed);
}

impl Leaf {
    fn state(&self) -> u32 {
        // Relaxed: under the lock of the table.
        self.state.load(Ordering::Relaxed)
    }

    fn set_state(&self, state: u32) {
        // Relaxed: under the lock of the table.
        self.state.store(state, Ordering::Relaxed);
    }

    /// The first part has been done: what it held is released, and the second takes its place.
    fn release_first(&self, books: &Books) {
        self.release(books, 0);
        if get(&self.events[0]) != 0 {
            query::destroy_event(get(&self.events[0]));
        }
        for part in [&self.bytes, &self.events] {
            set(&part[0], get(&part[1]));
            set(&part[1], 0);
        }
        if get(&self.bytes[0]) == 0 {
            self.set_state(UNUSED);
        }
    }

    fn release_all(&self, books: &Books) {
        while self.state() != UNUSED {
            self.release_first(books);
        }
    }

    fn release(&self, books: &Books, part: usize) {
        // Relaxed: under the lock of the table.
        let device = self.device.load(Ordering::Relaxed) as usize;
        let bytes = self.bytes.get(part).map_or(0, get);
        let region = &books.container.region;
        match self.state() {
            PLAIN => region.release(device, bytes, Kind::Buffer),
            PAST => region.release_beyond(device, bytes, Kind::Buffer),
            SHARED => memory::unhold(books, SharedKey([get(&self.key[0]), get(&self.key[1])])),
            HOLD => Objects::lock(books).drop_hold(get(&self.key[0])),
            _ => {}
        }
    }
}

/// The driver has been told to free an allocation when the stream gets there. `stream` is 2 for the
/// thread's own.
pub(crate) fn leave(books: &Books, entry: &Entry, key: Option<SharedKey>, stream: CuStream) {
    guest::uncancelled(|| query::relaxed(|| leave_now(books, entry, key, stream)));
}

fn leave_now(books: &Books, entry: &Entry, key: Option<SharedKey>, stream: CuStream) {
    // An import of a pool's memory is held by an object, and dies with no context.
    let hold = (entry.what == memory::what::TAKEN).then_some(entry.owner);
    let owner = if hold.is_some() { 0 } else { entry.owner };
    let state = match key {
        _ if hold.is_some() => HOLD,
        Some(_) => SHARED,
        None if memory::is_past_the_share(entry) => PAST,
        None => PLAIN,
    };
    let table = &books.ledger().leaving;
    let Some(_held) = table.lock.hold() else {
        // Charged until the end: nothing is known of it.
        return;
    };
    let number = stream as u64;
    let may_mark = query::is_out_of_captures(number);
    let context = query::stream_context(stream).unwrap_or(0);
    let stream_owner = match books.of_context(context) {
        Place::Device { owner, .. } => owner,
        Place::Elsewhere | Place::Denied => 0,
    };
    // The number of a thread's own stream is that of other threads', too.
    let name = if number == query::PER_THREAD {
        0
    } else {
        number
    };
    let mark = || may_mark.then(|| query::mark(context, stream, 0)).flatten();
    let found = table.places.iter().find(|leaf| {
        leaf.state() == state
            && matches!(state, PLAIN | PAST)
            && name != 0
            && get(&leaf.stream) == name
            && get(&leaf.context) == context
            && get(&leaf.owner) == owner
            // Relaxed: under the lock.
            && leaf.device.load(Ordering::Relaxed) == u32::from(entry.device)
            && get(&leaf.events[0]) != 0
    });
    if let Some(leaf) = found {
        let event = get(&leaf.events[1]);
        let event = match (may_mark, event) {
            (false, _) => None,
            (true, 0) => query::mark(context, stream, 0),
            (true, event) => query::mark(context, stream, event),
        };
        if let Some(event) = event {
            set(&leaf.events[1], event);
            set(
                &leaf.bytes[1],
                get(&leaf.bytes[1]).saturating_add(entry.bytes),
            );
            return;
        }
    }
    let mut free = table.places.iter().find(|leaf| leaf.state() == UNUSED);
    if free.is_none() && table.places.grow() {
        free = table.places.iter().find(|leaf| leaf.state() == UNUSED);
    }
    let Some(leaf) = free else {
        line!(
            Error,
            "{} bytes stay charged until the end: no memory to remember them in",
            entry.bytes
        );
        return;
    };
    // Relaxed: under the lock.
    leaf.device
        .store(u32::from(entry.device), Ordering::Relaxed);
    set(&leaf.stream, name);
    set(&leaf.stream_owner, stream_owner);
    set(&leaf.context, context);
    set(&leaf.owner, owner);
    set(&leaf.bytes[0], entry.bytes.max(1));
    set(&leaf.bytes[1], 0);
    set(&leaf.events[0], mark().unwrap_or(0));
    set(&leaf.events[1], 0);
    let key = key.map_or([hold.unwrap_or(0), 0], |key| key.0);
    for (word, value) in leaf.key.iter().zip(key) {
        set(word, value);
    }
    leaf.set_state(state);
    settle_leaf(books, leaf);
    books.ledger().set_chore(CHORE_LEAVING);
}

fn settle_leaf(books: &Books, leaf: &Leaf) {
    while leaf.state() != UNUSED && get(&leaf.events[0]) != 0 {
        match query::passed(get(&leaf.events[0])) {
            Mark::Passed | Mark::Gone => leaf.release_first(books),
            Mark::Ahead | Mark::Unknown => return,
        }
    }
}

/// Releases what the streams have passed.
pub(crate) fn settle(books: &Books) {
    let table = &books.ledger().leaving;
    let Some(_held) = table.lock.hold_briefly() else {
        return;
    };
    guest::uncancelled(|| {
        query::relaxed(|| {
            for leaf in table.places.iter() {
                settle_leaf(books, leaf);
            }
        });
    });
    tidy(books, table);
}

/// What is charged on a device of this process for memory that may be gone, bytes.
pub(crate) fn bytes(books: &Books, device: usize) -> u64 {
    if !books.ledger().has_chore(CHORE_LEAVING) {
        return 0;
    }
    let table = &books.ledger().leaving;
    let Some(_held) = table.lock.hold() else {
        return 0;
    };
    let of_it = |leaf: &&Leaf| {
        // Relaxed: under the lock.
        leaf.state() == PLAIN && leaf.device.load(Ordering::Relaxed) as usize == device
    };
    let words = table
        .places
        .iter()
        .filter(of_it)
        .flat_map(|leaf| &leaf.bytes);
    words.fold(0, |sum: u64, word| sum.saturating_add(get(word)))
}

/// Clears the mark when no charge is leaving any more. The caller holds the lock.
fn tidy(books: &Books, table: &Leaving) {
    if table.places.iter().all(|leaf| leaf.state() == UNUSED) {
        books.ledger().clear_chore(CHORE_LEAVING);
    }
}

/// Waits a little for streams to pass what was freed in them. A request that the container has no room
/// for may have it then, as it would have had on a card of its own.
#[cold]
pub(crate) fn wait(books: &Books) {
    const LONGEST_MS: i64 = 50;
    let deadline = lock::milliseconds() + LONGEST_MS;
    while books.ledger().has_chore(CHORE_LEAVING) && lock::milliseconds() < deadline {
        lock::nap();
        settle(books);
    }
}

/// The current context has been waited for: what could not be marked in it is gone.
pub(crate) fn context_is_idle(books: &Books, context: u64) {
    let table = &books.ledger().leaving;
    let Some(_held) = table.lock.hold_briefly() else {
        return;
    };
    for leaf in table.places.iter() {
        if get(&leaf.events[0]) == 0 && get(&leaf.context) == context {
            leaf.release_all(books);
        }
    }
    tidy(books, table);
}

/// The table under its lock, where anything is leaving.
fn leaving(books: &Books) -> Option<(&'static Leaving, Held<'static>)> {
    let ledger = books.ledger();
    let table = &ledger.leaving;
    ledger
        .has_chore(CHORE_LEAVING)
        .then(|| table.lock.hold())
        .flatten()
        .map(|held| (table, held))
}

/// A stream is about to go: another one may get its number.
pub(crate) fn stream_goes(books: &Books, stream: u64) {
    let Some((table, _held)) = leaving(books) else {
        return;
    };
    for leaf in table.places.iter() {
        if get(&leaf.stream) == stream {
            set(&leaf.stream, 0);
        }
    }
}

/// A context is about to go, with our events in it.
pub(crate) fn context_goes(books: &Books, context: u64) {
    let Some((table, _held)) = leaving(books) else {
        return;
    };
    for leaf in table.places.iter() {
        if leaf.state() == UNUSED || get(&leaf.context) != context {
            continue;
        }
        for event in &leaf.events {
            if get(event) != 0 {
                query::destroy_event(get(event));
                set(event, 0);
            }
        }
        set(
            &leaf.bytes[0],
            get(&leaf.bytes[0]).saturating_add(get(&leaf.bytes[1])),
        );
        set(&leaf.bytes[1], 0);
        set(&leaf.stream, 0);
    }
}

/// A context is gone, with its memory and its streams.
pub(crate) fn context_gone(books: &Books, owner: u64) {
    let Some((table, _held)) = leaving(books) else {
        return;
    };
    for leaf in table.places.iter() {
        if get(&leaf.owner) == owner || get(&leaf.stream_owner) == owner {
            leaf.release_all(books);
        }
    }
    tidy(books, table);
}

/// After `cuCtxSynchronize`.
pub(crate) fn after_context_sync(result: CuResult) {
    let Some(books) = books::opened() else { return };
    if result == CuResult::SUCCESS
        && books.ledger().has_chore(CHORE_LEAVING)
        && let Some(context) = query::current_context()
    {
        context_is_idle(&books, context);
    }
}
