//! Memory that was freed in the order of a stream: the driver takes it back when the stream gets there,
//! so its charge stays until an event that the library recorded after the free has completed. For pools, the driver's
//! figure is used instead (`pools.rs`). Puts nothing into a stream that captures.

use core::sync::atomic::Ordering;

use cuda_api::CuStream;
use vgpu_abi::region::{Kind, SharedKey};

use crate::base::growing::Growing;
use crate::base::lock::{self, Guard};
use crate::base::log::line;
use crate::driver::query::{self, StreamMark};
use crate::guest::manners;
use crate::holdings::objects::{self, Objects};
use crate::state::accounts::Accounts;
use crate::state::deferred_free_table::{
    DeferredFree, HOLD, PAST, PLAIN, SHARED, UNUSED, get, set,
};
use crate::state::holdings::CHORE_DEFERRED_FREES;

impl DeferredFree {
    /// The first part has been done: its memory is refunded, and the second part takes its place.
    fn release_first(&self, accounts: &Accounts) {
        self.release(accounts, 0);
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

    fn release_all(&self, accounts: &Accounts) {
        while self.state() != UNUSED {
            self.release_first(accounts);
        }
    }

    fn release(&self, accounts: &Accounts, part: usize) {
        // Relaxed: under the lock of the table.
        let device = self.device.load(Ordering::Relaxed) as usize;
        let bytes = self.bytes.get(part).map_or(0, get);
        let region = &accounts.container.region;
        match self.state() {
            PLAIN => region.release(device, bytes, Kind::Buffer),
            PAST => region.release_beyond(device, bytes, Kind::Buffer),
            SHARED => objects::unhold(accounts, SharedKey([get(&self.key[0]), get(&self.key[1])])),
            HOLD => Objects::lock(accounts).drop_hold(get(&self.key[0])),
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

/// Memory that the driver will free, and the charge that ends then.
#[derive(Clone, Copy)]
pub(crate) struct Freed {
    pub(crate) bytes: u64,
    /// Index in the region.
    pub(crate) device: u8,
    /// Our number of the context that the memory dies with; 0 for none.
    pub(crate) context: u64,
    pub(crate) charged: ChargedTo,
}

/// Where memory is charged that was freed in the order of a stream.
#[derive(Clone, Copy)]
pub(crate) enum ChargedTo {
    /// In this process's slot, within the container's share of the device.
    Slot,
    /// In this process's slot, past the share.
    SlotPastTheShare,
    /// In the region's shared table, under this name.
    Table(SharedKey),
    /// To an object of this process.
    Object(u64),
}

/// The program has asked the driver to free an allocation when the stream gets there.
pub(crate) fn enter(accounts: &Accounts, freed: Freed, of: OfStream) {
    let OfStream {
        stream,
        context,
        owner: stream_owner,
    } = of;
    let (state, key) = match freed.charged {
        ChargedTo::Slot => (PLAIN, [0; 2]),
        ChargedTo::SlotPastTheShare => (PAST, [0; 2]),
        ChargedTo::Table(SharedKey(key)) => (SHARED, key),
        ChargedTo::Object(number) => (HOLD, [number, 0]),
    };
    let Some(table) = accounts.holdings().deferred_frees.hold() else {
        // Charged until the process ends, because the library does not know the allocation.
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
            && get(&one.owner) == freed.context
            // Relaxed: under the lock.
            && one.device.load(Ordering::Relaxed) == u32::from(freed.device)
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
                get(&one.bytes[1]).saturating_add(freed.bytes),
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
            freed.bytes
        );
        return;
    };
    // Relaxed: under the lock.
    one.device.store(u32::from(freed.device), Ordering::Relaxed);
    set(&one.stream, name);
    set(&one.stream_owner, stream_owner);
    set(&one.context, context);
    set(&one.owner, freed.context);
    set(&one.bytes[0], freed.bytes.max(1));
    set(&one.bytes[1], 0);
    set(&one.events[0], mark().unwrap_or(0));
    set(&one.events[1], 0);
    for (word, value) in one.key.iter().zip(key) {
        set(word, value);
    }
    one.set_state(state);
    settle_one(accounts, one);
    accounts.holdings().set_chore(CHORE_DEFERRED_FREES);
}

fn settle_one(accounts: &Accounts, one: &DeferredFree) {
    while one.state() != UNUSED && get(&one.events[0]) != 0 {
        match query::passed(get(&one.events[0])) {
            StreamMark::Passed | StreamMark::Gone => one.release_first(accounts),
            StreamMark::Ahead | StreamMark::Unknown => return,
        }
    }
}

/// Releases what the streams have passed.
pub(crate) fn settle(accounts: &Accounts) {
    let Some(table) = accounts.holdings().deferred_frees.hold_briefly() else {
        return;
    };
    manners::uncancelled(|| {
        query::relaxed(|| {
            for one in table.iter() {
                settle_one(accounts, one);
            }
        });
    });
    tidy(accounts, &table);
}

/// The charges of this process on a device for memory that may be gone, bytes.
pub(crate) fn bytes(accounts: &Accounts, device: usize) -> u64 {
    if !accounts.holdings().has_chore(CHORE_DEFERRED_FREES) {
        return 0;
    }
    let Some(table) = accounts.holdings().deferred_frees.hold() else {
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
fn tidy(accounts: &Accounts, table: &Growing<DeferredFree>) {
    if table.iter().all(|one| one.state() == UNUSED) {
        accounts.holdings().clear_chore(CHORE_DEFERRED_FREES);
    }
}

/// Waits a little for streams to pass what was freed in them. A request that the container has no room
/// for may have it then, as it would have had on a GPU of its own.
#[cold]
pub(crate) fn wait(accounts: &Accounts) {
    const LONGEST_MS: i64 = 50;
    let deadline = lock::milliseconds() + LONGEST_MS;
    while accounts.holdings().has_chore(CHORE_DEFERRED_FREES) && lock::milliseconds() < deadline {
        lock::nap();
        settle(accounts);
    }
}

/// The program has waited for the current context, so frees in it that could not be marked have happened.
pub(crate) fn context_is_idle(accounts: &Accounts, context: u64) {
    let Some(table) = accounts.holdings().deferred_frees.hold_briefly() else {
        return;
    };
    for one in table.iter() {
        if get(&one.events[0]) == 0 && get(&one.context) == context {
            one.release_all(accounts);
        }
    }
    tidy(accounts, &table);
}

/// The table, where any free is deferred.
fn table(accounts: &Accounts) -> Option<Guard<'static, Growing<DeferredFree>>> {
    let holdings = accounts.holdings();
    holdings
        .has_chore(CHORE_DEFERRED_FREES)
        .then(|| holdings.deferred_frees.hold())
        .flatten()
}

/// A stream is about to go: another one may get its number.
pub(crate) fn stream_goes(accounts: &Accounts, stream: u64) {
    let Some(table) = table(accounts) else {
        return;
    };
    for one in table.iter() {
        if get(&one.stream) == stream {
            set(&one.stream, 0);
        }
    }
}

/// A context is about to go, with our events in it.
pub(crate) fn context_goes(accounts: &Accounts, context: u64) {
    let Some(table) = table(accounts) else {
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

/// A context was destroyed, and its memory and its streams with it.
pub(crate) fn context_gone(accounts: &Accounts, owner: u64) {
    let Some(table) = table(accounts) else {
        return;
    };
    for one in table.iter() {
        if get(&one.owner) == owner || get(&one.stream_owner) == owner {
            one.release_all(accounts);
        }
    }
    tidy(accounts, &table);
}
