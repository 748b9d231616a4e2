//! Memory that was freed in the order of a stream: the driver takes it back when the stream gets there,
//! so its charge stays until an event of ours behind the free has come to pass. Pools are asked what
//! they hold instead (`pools.rs`). Puts nothing into a stream that captures.

use core::sync::atomic::Ordering;

use cuda_api::CuStream;
use vgpu_abi::region::{Kind, SharedKey};

use crate::base::growing::Growing;
use crate::base::lock::{self, Guard};
use crate::base::log::line;
use crate::base::map::Entry;
use crate::driver::query::{self, Mark};
use crate::guest::manners;
use crate::holdings::objects::{self, Objects};
use crate::state::books::Books;
use crate::state::deferred_frees::{DeferredFree, HOLD, PAST, PLAIN, SHARED, UNUSED, get, set};
use crate::state::entries;
use crate::state::ledger::CHORE_DEFERRED_FREES;

impl DeferredFree {
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
    let Some(table) = books.ledger().deferred_frees.hold() else {
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
    let found = table.iter().find(|one| {
        one.state() == state
            && matches!(state, PLAIN | PAST)
            && name != 0
            && get(&one.stream) == name
            && get(&one.context) == context
            && get(&one.owner) == owner
            // Relaxed: under the lock.
            && one.device.load(Ordering::Relaxed) == u32::from(entry.device)
            && get(&one.events[0]) != 0
    });
    if let Some(one) = found {
        let event = get(&one.events[1]);
        let event = match (may_mark, event) {
            (false, _) => None,
            (true, 0) => query::mark(context, stream, 0),
            (true, event) => query::mark(context, stream, event),
        };
        if let Some(event) = event {
            set(&one.events[1], event);
            set(
                &one.bytes[1],
                get(&one.bytes[1]).saturating_add(entry.bytes),
            );
            return;
        }
    }
    let mut free = table.iter().find(|one| one.state() == UNUSED);
    if free.is_none() && table.grow() {
        free = table.iter().find(|one| one.state() == UNUSED);
    }
    let Some(one) = free else {
        line!(
            Error,
            "{} bytes stay charged until the end: no memory to remember them in",
            entry.bytes
        );
        return;
    };
    // Relaxed: under the lock.
    one.device.store(u32::from(entry.device), Ordering::Relaxed);
    set(&one.stream, name);
    set(&one.stream_owner, stream_owner);
    set(&one.context, context);
    set(&one.owner, owner);
    set(&one.bytes[0], entry.bytes.max(1));
    set(&one.bytes[1], 0);
    set(&one.events[0], mark().unwrap_or(0));
    set(&one.events[1], 0);
    let key = key.map_or([hold.unwrap_or(0), 0], |key| key.0);
    for (word, value) in one.key.iter().zip(key) {
        set(word, value);
    }
    one.set_state(state);
    settle_one(books, one);
    books.ledger().set_chore(CHORE_DEFERRED_FREES);
}

fn settle_one(books: &Books, one: &DeferredFree) {
    while one.state() != UNUSED && get(&one.events[0]) != 0 {
        match query::passed(get(&one.events[0])) {
            Mark::Passed | Mark::Gone => one.release_first(books),
            Mark::Ahead | Mark::Unknown => return,
        }
    }
}

/// Releases what the streams have passed.
pub(crate) fn settle(books: &Books) {
    let Some(table) = books.ledger().deferred_frees.hold_briefly() else {
        return;
    };
    manners::uncancelled(|| {
        query::relaxed(|| {
            for one in table.iter() {
                settle_one(books, one);
            }
        });
    });
    tidy(books, &table);
}

/// What is charged on a device of this process for memory that may be gone, bytes.
pub(crate) fn bytes(books: &Books, device: usize) -> u64 {
    if !books.ledger().has_chore(CHORE_DEFERRED_FREES) {
        return 0;
    }
    let Some(table) = books.ledger().deferred_frees.hold() else {
        return 0;
    };
    let of_it = |one: &&DeferredFree| {
        // Relaxed: under the lock.
        one.state() == PLAIN && one.device.load(Ordering::Relaxed) as usize == device
    };
    let words = table.iter().filter(of_it).flat_map(|one| &one.bytes);
    words.fold(0, |sum: u64, word| sum.saturating_add(get(word)))
}

/// Clears the chore when no free is deferred any more.
fn tidy(books: &Books, table: &Growing<DeferredFree>) {
    if table.iter().all(|one| one.state() == UNUSED) {
        books.ledger().clear_chore(CHORE_DEFERRED_FREES);
    }
}

/// Waits a little for streams to pass what was freed in them. A request that the container has no room
/// for may have it then, as it would have had on a card of its own.
#[cold]
pub(crate) fn wait(books: &Books) {
    const LONGEST_MS: i64 = 50;
    let deadline = lock::milliseconds() + LONGEST_MS;
    while books.ledger().has_chore(CHORE_DEFERRED_FREES) && lock::milliseconds() < deadline {
        lock::nap();
        settle(books);
    }
}

/// The current context has been waited for: what could not be marked in it is gone.
pub(crate) fn context_is_idle(books: &Books, context: u64) {
    let Some(table) = books.ledger().deferred_frees.hold_briefly() else {
        return;
    };
    for one in table.iter() {
        if get(&one.events[0]) == 0 && get(&one.context) == context {
            one.release_all(books);
        }
    }
    tidy(books, &table);
}

/// The table, where any free is deferred.
fn table(books: &Books) -> Option<Guard<'static, Growing<DeferredFree>>> {
    let ledger = books.ledger();
    ledger
        .has_chore(CHORE_DEFERRED_FREES)
        .then(|| ledger.deferred_frees.hold())
        .flatten()
}

/// A stream is about to go: another one may get its number.
pub(crate) fn stream_goes(books: &Books, stream: u64) {
    let Some(table) = table(books) else {
        return;
    };
    for one in table.iter() {
        if get(&one.stream) == stream {
            set(&one.stream, 0);
        }
    }
}

/// A context is about to go, with our events in it.
pub(crate) fn context_goes(books: &Books, context: u64) {
    let Some(table) = table(books) else {
        return;
    };
    for one in table.iter() {
        if one.state() == UNUSED || get(&one.context) != context {
            continue;
        }
        for event in &one.events {
            if get(event) != 0 {
                query::destroy_event(get(event));
                set(event, 0);
            }
        }
        set(
            &one.bytes[0],
            get(&one.bytes[0]).saturating_add(get(&one.bytes[1])),
        );
        set(&one.bytes[1], 0);
        set(&one.stream, 0);
    }
}

/// A context is gone, with its memory and its streams.
pub(crate) fn context_gone(books: &Books, owner: u64) {
    let Some(table) = table(books) else {
        return;
    };
    for one in table.iter() {
        if get(&one.owner) == owner || get(&one.stream_owner) == owner {
            one.release_all(books);
        }
    }
    tidy(books, &table);
}
