//! Rules: contexts. Each takes memory that no call names: a learned size is reserved when one is made,
//! settled to what NVML or the host measures; what the driver frees with a context is refunded.

use core::sync::atomic::Ordering;

use cuda_api::{CuContext, CuDevice, CuResult};
use vgpu_abi::region::{Charge, Kind, Refusal, Why};

use crate::books::{self, Books, Place, books};
use crate::border;
use crate::compute;
use crate::container;
use crate::guest::{self, Verdict};
use crate::ledger::{Learn, Part};
use crate::log::line;
use crate::map::{Entry, Space, Then};
use crate::measure::{self, Look, NewContext};
use crate::memory;
use crate::modules;
use crate::mps;
use crate::query;

mod admission;
mod green;
mod limits;

pub(crate) use admission::{after_export_table, before_export_table};
pub(crate) use green::{
    after_from_green, after_green_create, after_green_destroy, before_green_create,
    before_green_destroy,
};
pub(crate) use limits::{after_set_limit, before_set_limit};

/// The context is the device's primary one.
const PRIMARY: u8 = 1;
/// The context is a green one's: its memory is the primary context's.
const GREEN: u8 = 2;

/// A context about to be made.
#[derive(Clone, Copy)]
pub(crate) struct Making {
    call: &'static str,
    /// `None` where nothing has to be made.
    charge: Option<Charge>,
    /// Of the charge, what the context itself is expected to take.
    bytes: u64,
    /// That is a guess: what it takes is measured.
    is_guess: bool,
    /// The rest is kept for what the runtime will load.
    loads: bool,
    /// How the device stood before.
    before: Option<Look>,
    device: usize,
    ordinal: i32,
}

impl Making {
    fn nothing(call: &'static str, device: usize, ordinal: i32) -> Self {
        Self {
            call,
            charge: None,
            bytes: 0,
            is_guess: false,
            loads: false,
            before: None,
            device,
            ordinal,
        }
    }
}

/// A context about to go.
#[derive(Clone, Copy)]
pub(crate) struct Going {
    context: u64,
    entry: Entry,
}

pub(crate) fn before_create(call: &'static str, device: CuDevice) -> Verdict<Making> {
    let books = books!(Context);
    make(&books, call, device.0)
}

fn make(books: &Books, call: &'static str, ordinal: i32) -> Verdict<Making> {
    let device = match books.of_ordinal(ordinal) {
        Place::Device { device, .. } => device,
        Place::Elsewhere => return Verdict::Pass,
        Place::Denied => return refuse_device(ordinal),
    };
    if let Some(refused) = mps::refuses(books, call, device) {
        return Verdict::Refuse(refused);
    }
    let loads = container::loads_past_us() && !books.ledger().has_context(device);
    if loads {
        // What was kept since it fetched its table is reserved from here on.
        books.container.region.loaded(device);
    }
    // A context of a size that is not known is compared with what the device had before it; so is one
    // beside another one, which takes a look only.
    let is_known = admission::known_bytes(books, device) != 0;
    let is_beside = query::current_ordinal() == Some(ordinal);
    let before = (is_beside || !is_known)
        .then(|| measure::before_context(books, device, ordinal))
        .flatten();
    match admission::reserve(books, call, device, ordinal, loads) {
        Ok(admitted) => Verdict::Call(Making {
            call,
            charge: Some(admitted.charge),
            bytes: admitted.bytes,
            is_guess: admitted.is_guess,
            loads,
            before,
            device,
            ordinal,
        }),
        Err(result) => Verdict::Refuse(result),
    }
}

/// A device that the container may not use: an ordinal that is not there, unless the driver has no
/// such device itself (then its own answer comes back).
fn refuse_device<T>(ordinal: i32) -> Verdict<T> {
    if query::device_uuids(ordinal).is_none() {
        return Verdict::Pass;
    }
    line!(Warn, "device {ordinal} is not the container's");
    Verdict::Refuse(CuResult::INVALID_DEVICE)
}

pub(crate) fn after_create(
    making: Making,
    result: CuResult,
    out: *mut CuContext,
) -> Option<CuResult> {
    // It is the thread's current one now.
    compute::context_changed(result);
    let books = books::opened()?;
    let Some(context) = border::read(out).filter(|_| result == CuResult::SUCCESS) else {
        failed(&books, making);
        return None;
    };
    let refused = made(&books, making, context as u64, 0)?;
    undo(&books, making, context as u64, refused, || {
        query::destroy_context(context as u64)
    })
    .inspect(|_| {
        border::write(out, core::ptr::null_mut());
        compute::context_changed(result);
    })
}

/// There is no context: nothing is loaded into it either.
fn failed(books: &Books, making: Making) {
    refund(books, making);
    if making.loads {
        books.container.region.loaded(making.device);
    }
}

fn refund(books: &Books, making: Making) {
    if let Some(charge) = making.charge {
        books.refund(charge);
    }
}

/// What the context itself takes is confirmed. The rest is kept by the mark that stands since it was
/// reserved, less what the books have.
fn confirm(books: &Books, making: Making) {
    let Some(charge) = making.charge else { return };
    let (own, rest) = charge.split(making.bytes);
    // First: what the context does not take was never in use.
    books.refund(rest);
    books.confirm(own, Kind::Context);
    if making.loads {
        books.process.begin_loading(making.device);
    }
}

/// The driver has made a context. What it answers where the container has no room for what it turned out
/// to take.
fn made(books: &Books, making: Making, context: u64, what: u8) -> Option<CuResult> {
    let Making { device, bytes, .. } = making;
    let entry = Entry {
        bytes,
        what,
        handles: 1,
        ..named(books, device)
    };
    let (before, kept) = books.ledger().map.put(Space::Context, context, entry);
    if let Some(before) = before {
        // Another thread was first (or adopted it): its entry counts.
        books.ledger().map.put(Space::Context, context, before);
        refund(books, making);
        return None;
    }
    if !kept {
        line!(Error, "a context is not remembered: no memory");
    }
    let is_new = making.charge.is_some();
    if !is_new && container::loads_past_us() {
        mark_loading(books, device);
    }
    let is = if is_new {
        settle_new(books, making, context)
    } else {
        // It was there already, and is seen for the first time. What a runtime made past the hooks may
        // hold its modules already.
        let learn = if container::loads_past_us() {
            Learn::Runtime
        } else {
            Learn::Context
        };
        books.ledger().add_overhead(device, Part::Context, 0);
        settle_found(books, device, making.ordinal, context, learn)
    };
    let resized = |entry: &mut Entry| {
        entry.bytes = is;
        (Then::Keep, ())
    };
    books.ledger().map.change(Space::Context, context, resized);
    if making.loads {
        measure::keep_baseline(books, device, context);
    }
    // Where it is larger than what there was room for.
    let limit = books.process.memory_limit(books.container, device);
    let used = books.container.region.used(device);
    let is_over = is_new && is > bytes && limit != 0 && used > limit;
    is_over.then(|| {
        let refusal = Refusal {
            limit,
            used: used.saturating_sub(is),
            asked: is,
            why: Why::Full,
            unaccounted: 0,
        };
        books.refuse(making.call, device, &refusal)
    })
}

/// Charges a new context as what it turned out to take, which is given back. That is known before its
/// reservation ends, since others may wait for it.
fn settle_new(books: &Books, making: Making, context: u64) -> u64 {
    let Making {
        device,
        ordinal,
        bytes,
        ..
    } = making;
    let is = if making.is_guess {
        let new = NewContext {
            device,
            ordinal,
            context,
            charged: 0,
            before: making.before,
        };
        measure::new_context(books, new)
    } else {
        // It may be larger than those that were seen before.
        let more = measure::taken(books, device, making.before, bytes).beyond;
        bytes.saturating_add(more)
    };
    let reserved = making.charge.map_or(0, |charge| charge.bytes());
    let own = is.min(reserved);
    confirm(
        books,
        Making {
            bytes: own,
            ..making
        },
    );
    books.ledger().add_overhead(device, Part::Context, own);
    if is > own {
        books
            .container
            .region
            .charge(device, is - own, Kind::Context);
        books
            .ledger()
            .resize_context(books.container, device, is - own, 0);
    }
    is
}

/// Charges a context that was found, rather than made by our leave: it counts as any other one.
fn settle_found(books: &Books, device: usize, ordinal: i32, context: u64, learn: Learn) -> u64 {
    let bytes = match admission::known_bytes(books, device) {
        0 => measure::guess_for(ordinal),
        known => known,
    };
    let is_known = admission::known_bytes(books, device) != 0;
    books.container.region.charge(device, bytes, Kind::Context);
    books
        .ledger()
        .resize_context(books.container, device, bytes, 0);
    if is_known {
        measure::settle(books, device, learn);
        bytes
    } else {
        let found = NewContext {
            device,
            ordinal,
            context,
            charged: bytes,
            before: None,
        };
        measure::settle_found_context(books, found, learn)
    }
}

/// Takes a context back that there is no room for. Where the driver keeps it, it stays charged.
fn undo(
    books: &Books,
    making: Making,
    context: u64,
    refused: CuResult,
    destroy: impl FnOnce() -> bool,
) -> Option<CuResult> {
    compute::context_goes(books, context);
    if !guest::uncancelled(destroy) {
        line!(Error, "{}: a context past the limit stays", making.call);
        return None;
    }
    if let Some(entry) = books.ledger().map.take(Space::Context, context) {
        gone(books, &entry);
    }
    Some(refused)
}

/// A context that was made past the hooks, or is about to stand in the books as the first one of its
/// device: its runtime loads until memory is asked for.
fn mark_loading(books: &Books, device: usize) {
    if !books.ledger().has_context(device) {
        books.container.region.loading(device);
        books.process.begin_loading(device);
    }
}

/// A new entry of a context: its number stands in `owner`.
fn named(books: &Books, device: usize) -> Entry {
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
    container::load_past_us();
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

pub(crate) fn before_destroy(context: CuContext) -> Verdict<Going> {
    let books = books!(Context);
    let context = context as u64;
    let known = books.ledger().map.get(Space::Context, context);
    if known.is_some_and(|entry| entry.what == GREEN) {
        // It goes with its green context, and takes nothing with it.
        return Verdict::Pass;
    }
    match books.ledger().map.take(Space::Context, context) {
        Some(entry) => {
            compute::context_goes(&books, context);
            Verdict::Call(Going { context, entry })
        }
        None => Verdict::Pass,
    }
}

pub(crate) fn after_destroy(going: Going, result: CuResult) {
    let Some(books) = books::opened() else { return };
    if result == CuResult::SUCCESS {
        gone(&books, &going.entry);
    } else {
        books
            .ledger()
            .map
            .put(Space::Context, going.context, going.entry);
    }
}

/// The address of a context may stand for another one from here on.
fn forget_addresses(books: &Books) {
    // Relaxed: threads that use a context while it is destroyed are the host's own race.
    books.ledger().contexts_gone.fetch_add(1, Ordering::Relaxed);
}

/// The driver has freed the context and everything in it.
fn gone(books: &Books, entry: &Entry) {
    let ledger = books.ledger();
    forget_addresses(books);
    let device = usize::from(entry.device);
    let mut buffers = 0;
    let mut past_the_share = 0;
    let mut modules = 0;
    let mut in_advance = 0;
    let mut green = 0;
    let mut had_green = false;
    let mut others: u64 = 0;
    crate::ipc::context_gone(books, entry.owner);
    ledger.map.sweep(|space, held| {
        let of_it = held.owner == entry.owner;
        match space {
            Space::Pointer | Space::Array | Space::External | Space::Graphics
                if of_it && memory::dies_with_its_context(held) =>
            {
                if memory::is_past_the_share(held) {
                    past_the_share += held.bytes;
                } else {
                    buffers += held.bytes;
                }
                true
            }
            Space::Module | Space::Copy if of_it => {
                modules += held.bytes;
                in_advance += modules::in_advance(held);
                true
            }
            // The contexts of green ones, which are over this one's memory.
            Space::Context if of_it && held.what == GREEN => true,
            Space::Green if green::is_over(held, entry) => {
                green += held.bytes;
                had_green = true;
                true
            }
            Space::Context | Space::Green if held.device == entry.device => {
                others = others.saturating_add(held.bytes);
                false
            }
            _ => false,
        }
    });
    books
        .container
        .region
        .release(device, buffers, Kind::Buffer);
    if past_the_share > 0 {
        let region = &books.container.region;
        region.release_beyond(device, past_the_share, Kind::Buffer);
    }
    if modules > 0 {
        ledger.take_in_advance(device, in_advance);
        ledger.drop_module(books.container, device, modules);
    }
    if had_green {
        ledger.resize_context(books.container, device, 0, green);
        // A driver that keeps them until they are destroyed holds more than is charged.
        measure::soon(books, device);
    }
    ledger.drop_context(books.container, device, entry.bytes, others);
    if !ledger.has_context(device) {
        books.process.forget_loading(device);
        books.container.region.loaded(device);
        crate::offers::device_gone(books, device);
    }
    crate::pools::settle_device(books, device);
    crate::graphs::settle(books, device);
    crate::leaving::context_gone(books, entry.owner);
}

/// `cuCtxAttach`: one more reference to the current context.
pub(crate) fn after_attach(result: CuResult, out: *mut CuContext) {
    let Some(books) = books::opened() else { return };
    if result != CuResult::SUCCESS {
        return;
    }
    if let Some(context) = border::read(out) {
        let more = |entry: &mut Entry| {
            entry.handles = entry.handles.saturating_add(1);
            (Then::Keep, ())
        };
        books
            .ledger()
            .map
            .change(Space::Context, context as u64, more);
    }
}

/// `cuCtxDetach`: one reference less; with the last one the context goes.
pub(crate) fn before_detach(context: CuContext) -> Verdict<Going> {
    let books = books!(Context);
    let number = context as u64;
    let less = books.ledger().map.change(Space::Context, number, |entry| {
        if entry.what == GREEN {
            // It goes with its green context.
            return (Then::Keep, None);
        }
        if entry.handles == u16::MAX {
            // More references than are counted: it stays charged until it is destroyed.
            return (Then::Keep, None);
        }
        let is_last = entry.handles <= 1;
        entry.handles = entry.handles.saturating_sub(1);
        (
            if is_last { Then::Remove } else { Then::Keep },
            is_last.then_some(*entry),
        )
    });
    if less.flatten().is_some() {
        compute::context_goes(&books, number);
    }
    match less.flatten() {
        Some(entry) => Verdict::Call(Going {
            context: number,
            entry: Entry {
                handles: 1,
                ..entry
            },
        }),
        None => Verdict::Pass,
    }
}

pub(crate) fn before_retain(call: &'static str, device: CuDevice) -> Verdict<Making> {
    let books = books!(Context);
    if query::primary_is_active(device.0) == Some(true) {
        return match books.of_ordinal(device.0) {
            Place::Device { device: index, .. } => {
                Verdict::Call(Making::nothing(call, index, device.0))
            }
            Place::Elsewhere => Verdict::Pass,
            Place::Denied => refuse_device(device.0),
        };
    }
    make(&books, call, device.0)
}

pub(crate) fn after_retain(
    making: Making,
    result: CuResult,
    out: *mut CuContext,
) -> Option<CuResult> {
    let books = books::opened()?;
    let Some(context) = border::read(out).filter(|_| result == CuResult::SUCCESS) else {
        failed(&books, making);
        return None;
    };
    let context = context as u64;
    let refused = primary_is(&books, making, context)?;
    undo(&books, making, context, refused, || {
        query::release_primary(making.ordinal)
    })
    .inspect(|_| {
        books.ledger().swap_primary(making.ordinal, 0);
        border::write(out, core::ptr::null_mut());
    })
}

/// This is the device's primary context, from now on or since long.
fn primary_is(books: &Books, making: Making, context: u64) -> Option<CuResult> {
    let before = books.ledger().swap_primary(making.ordinal, context);
    if before != 0
        && before != context
        && let Some(entry) = books.ledger().map.take(Space::Context, before)
    {
        // It was destroyed and made anew while we did not look.
        gone(books, &entry);
    }
    if books.ledger().map.get(Space::Context, context).is_some() {
        refund(books, making);
        return None;
    }
    made(books, making, context, PRIMARY)
}

/// The primary context of a device of the driver, also where a runtime has made it past the hooks; 0:
/// none that is in the books.
fn known_primary(books: &Books, ordinal: i32) -> u64 {
    let known = books.ledger().primary(ordinal);
    if known != 0 {
        return known;
    }
    match query::primary_context(ordinal) {
        Some(found) if books.ledger().map.get(Space::Context, found).is_some() => {
            books.ledger().swap_primary(ordinal, found);
            found
        }
        _ => 0,
    }
}

/// The primary context may be about to go, with our events in it.
pub(crate) fn before_release(device: CuDevice) -> Verdict<()> {
    if let Some(books) = books::opened() {
        let context = known_primary(&books, device.0);
        if context != 0 {
            compute::context_goes(&books, context);
        }
    }
    Verdict::Call(())
}

/// `cuDevicePrimaryCtxRelease`: the last release frees it. `cuDevicePrimaryCtxReset`: frees it at
/// once.
pub(crate) fn after_release(_known: (), result: CuResult, device: CuDevice) {
    let Some(books) = books::opened() else { return };
    if result != CuResult::SUCCESS || query::primary_is_active(device.0) != Some(false) {
        return;
    }
    primary_gone(&books, device.0);
}

fn primary_gone(books: &Books, ordinal: i32) {
    let context = books.ledger().swap_primary(ordinal, 0);
    if context == 0 {
        return;
    }
    if let Some(entry) = books.ledger().map.take(Space::Context, context) {
        gone(books, &entry);
    }
}
