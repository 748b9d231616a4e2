//! Contexts that this process knows: their numbers, those that a runtime made past the hooks, and what is
//! measured when memory is asked for.

use core::sync::atomic::Ordering;

use vgpu_abi::region::Kind;

use crate::base::map::{Entry, Space, Then};
use crate::holdings::measure::{self, NewContext};
use crate::holdings::mps;
use crate::state::books::Books;
use crate::state::ledger::{Learn, Part};
use crate::state::process;

/// The context is the device's primary one.
pub(crate) const PRIMARY: u8 = 1;

/// The context is a green one's: its memory is the primary context's.
pub(crate) const GREEN: u8 = 2;

/// Charges a context that was found, rather than made by our leave: it counts as any other one.
pub(crate) fn settle_found(
    books: &Books,
    device: usize,
    ordinal: i32,
    context: u64,
    learn: Learn,
) -> u64 {
    let bytes = known_bytes(books, device);
    if bytes == 0 {
        // Measured first, then charged. A guess in the books for the meantime would refuse what others ask for, and
        // the context is there already.
        let found = NewContext {
            device,
            ordinal,
            context,
            charged: 0,
            before: None,
        };
        return measure::settle_found_context(books, found, learn);
    }
    books.container.region.charge(device, bytes, Kind::Context);
    books
        .ledger()
        .resize_context(&books.container.region, device, bytes, 0);
    measure::settle(books, device, learn);
    bytes
}

/// A context that was made past the hooks, or is about to stand in the books as the first one of its
/// device: its runtime loads until memory is asked for.
pub(crate) fn mark_loading(books: &Books, device: usize) {
    if !books.ledger().has_context(device) {
        books.container.region.loading(device);
        books.process.begin_loading(device);
    }
}

/// A new entry of a context: its number stands in `owner`.
pub(crate) fn named(books: &Books, device: usize) -> Entry {
    // Relaxed: only has to differ from all others.
    let number = books
        .ledger()
        .contexts_numbered
        .fetch_add(1, Ordering::Relaxed);
    Entry {
        owner: u64::from(number) + 1,
        device: u8::try_from(device).unwrap_or(u8::MAX),
        ..Entry::default()
    }
}

/// A call was left by a jump: what is there now is measured, so that its charge does not stay if the
/// driver gave nothing.
pub(crate) fn measure_again(books: &Books, device: usize) {
    if !measure::settle(books, device, Learn::Nothing) {
        // The host may know.
        books.ledger().await_host(device);
    }
}

/// Memory is asked for while something is awaited. For the first time since its context was made, a
/// runtime has loaded what the program brought: that is measured and stands in the books, before
/// anything is given. And what a rule wants measured is.
#[cold]
pub(crate) fn loaded(books: &Books, device: usize) {
    if books.process.is_wanted(device) && !books.process.is_loading(device) {
        return measure::wanted(books, device);
    }
    if !books.process.is_loading(device) {
        return;
    }
    let Some(_alone) = books.process.loaded_lock.hold_briefly() else {
        // What is kept stays so for its minute.
        return books.process.forget_loading(device);
    };
    if !books.process.is_loading(device) {
        return;
    }
    let ordinal = books.ordinal_of(device);
    if measure::settle(books, device, Learn::Runtime)
        || ordinal.is_some_and(|ordinal| measure::settle_loaded(books, device, ordinal))
    {
        books.container.region.loaded(device);
    } else {
        // In a pid namespace, where only the host can measure.
        books.ledger().await_host(device);
    }
    books.process.forget_loading(device);
}

/// Was the context made by our leave? One that was made past the hooks needs it when it is first used.
pub(crate) fn is_allowed(books: &Books, context: u64, device: usize) -> bool {
    books.ledger().map.get(Space::Context, context).is_some()
        || mps::refuses(books, "a context", device).is_none()
}

/// Our number of a context, and an entry for one that was made past the hooks (an old runtime makes
/// them through its export tables).
pub(crate) fn adopt(books: &Books, context: u64, device: usize) -> u64 {
    let map = &books.ledger().map;
    if let Some(entry) = map.get(Space::Context, context) {
        return entry.owner;
    }
    let entry = Entry {
        handles: 1,
        ..named(books, device)
    };
    let (before, _) = map.put(Space::Context, context, entry);
    if let Some(before) = before {
        map.put(Space::Context, context, before);
        return before.owner;
    }
    // Whoever makes contexts past the hooks loads modules past them too, and may be at it.
    process::load_past_us();
    mark_loading(books, device);
    books.ledger().add_overhead(device, Part::Context, 0);
    let ordinal = books.ordinal_of(device).unwrap_or(0);
    let bytes = settle_found(books, device, ordinal, context, Learn::Runtime);
    let resized = |entry: &mut Entry| {
        entry.bytes = bytes;
        (Then::Keep, ())
    };
    books.ledger().map.change(Space::Context, context, resized);
    measure::keep_baseline(books, device, context);
    measure::record_excess(books, "a context that a runtime made", device, bytes);
    entry.owner
}

/// The address of a context may stand for another one from here on.
pub(crate) fn forget_addresses(books: &Books) {
    // Relaxed: threads that use a context while it is destroyed are the host's own race.
    books.ledger().contexts_gone.fetch_add(1, Ordering::Relaxed);
}

/// What a context takes: as seen before, else as the limits say; 0 where it is unknown.
pub(crate) fn known_bytes(books: &Books, device: usize) -> u64 {
    match books.container.region.learned_context_bytes(device) {
        0 => books
            .container
            .limits()
            .and_then(|limits| {
                limits
                    .devices()
                    .get(device)
                    .map(|limit| limit.context_bytes)
            })
            .unwrap_or(0),
        learned => learned,
    }
}
