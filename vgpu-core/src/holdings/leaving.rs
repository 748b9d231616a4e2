//! Memory that was freed in the order of a stream: the driver takes it back when the stream gets there,
//! so its charge stays until an event of ours behind the free has come to pass. Pools are asked what
//! they hold instead (`pools.rs`). Puts nothing into a stream that captures.

use core::sync::atomic::Ordering;

use cuda_api::CuStream;
use vgpu_abi::region::{Kind, SharedKey};

use crate::base::lock::{self, Held};
use crate::base::log::line;
use crate::base::map::Entry;
use crate::driver::query::{self, Mark};
use crate::guest::manners;
use crate::holdings::objects::{self, Objects};
use crate::state::books::Books;
use crate::state::entries;
use crate::state::leaves::{HOLD, Leaf, Leaving, PAST, PLAIN, SHARED, UNUSED, get, set};
use crate::state::ledger::CHORE_LEAVING;

impl Leaf {
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
            SHARED => objects::unhold(books, SharedKey([get(&self.key[0]), get(&self.key[1])])),
            HOLD => Objects::lock(books).drop_hold(get(&self.key[0])),
            _ => {}
        }
    }
}

/// The stream in whose order something is freed.
#[derive(Clone, Copy)]
pub(crate) struct OfStream {
    /// The stream; 2 for the thread's own.
    pub(crate) stream: CuStream,
    /// Its context.
    pub(crate) context: u64,
    /// Our number of the context.
    pub(crate) owner: u64,
}

/// The driver has been told to free an allocation when the stream gets there.
pub(crate) fn enter(books: &Books, entry: &Entry, key: Option<SharedKey>, of: OfStream) {
    let OfStream {
        stream,
        context,
        owner: stream_owner,
    } = of;
    // An import of a pool's memory is held by an object, and dies with no context.
    let hold = (entry.what == entries::what::TAKEN).then_some(entry.owner);
    let owner = if hold.is_some() { 0 } else { entry.owner };
    let state = match key {
        _ if hold.is_some() => HOLD,
        Some(_) => SHARED,
        None if entries::is_past_the_share(entry) => PAST,
        None => PLAIN,
    };
    let table = &books.ledger().leaving;
    let Some(_held) = table.lock.hold() else {
        // Charged until the end: nothing is known of it.
        return;
    };
    let number = stream as u64;
    let may_mark = query::is_out_of_captures(number);
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
    manners::uncancelled(|| {
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
