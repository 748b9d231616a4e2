//! Rules: contexts. Each takes memory that no call names: a learned size is reserved when one is made,
//! settled to what NVML or the host measures; what the driver frees with a context is refunded.

use core::sync::atomic::Ordering;

use cuda_api::{CuContext, CuDevice, CuGreenCtx, CuResult};
use vgpu_abi::region::{Charge, Kind};

use crate::books::{self, Books, Place, books};
use crate::border;
use crate::guest::Verdict;
use crate::ledger::Part;
use crate::log::line;
use crate::map::{Entry, Space, Then};
use crate::query;

/// The context is the device's primary one.
const PRIMARY: u8 = 1;
/// The context was made from a green one: it owns nothing.
const GREEN: u8 = 2;

/// A context about to be made.
#[derive(Clone, Copy)]
pub(crate) struct Making {
    /// `None` where nothing is known of the size yet, or nothing has to be made.
    charge: Option<Charge>,
    device: usize,
    ordinal: i32,
}

/// A context about to go.
#[derive(Clone, Copy)]
pub(crate) struct Going {
    context: u64,
    entry: Entry,
}

pub(crate) fn before_create(call: &str, device: CuDevice) -> Verdict<Making> {
    let books = books!(Context);
    make(&books, call, device.0)
}

fn make(books: &Books, call: &str, ordinal: i32) -> Verdict<Making> {
    let device = match books.of_ordinal(ordinal) {
        Place::Device { device, .. } => device,
        Place::Elsewhere => return Verdict::Pass,
        Place::Denied => return refuse_device(ordinal),
    };
    let bytes = expected_bytes(books, device);
    if bytes == 0 {
        return Verdict::Call(Making {
            charge: None,
            device,
            ordinal,
        });
    }
    match books.reserve(call, device, bytes) {
        Ok(charge) => Verdict::Call(Making {
            charge: Some(charge),
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

/// What a context is expected to take: as seen before, else as the limits say.
fn expected_bytes(books: &Books, device: usize) -> u64 {
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

pub(crate) fn after_create(making: Making, result: CuResult, out: *mut CuContext) {
    let Some(books) = books::opened() else { return };
    match border::read(out) {
        Some(context) if result == CuResult::SUCCESS => {
            made(&books, making, context as u64, 0);
        }
        _ => refund(&books, making),
    }
}

fn refund(books: &Books, making: Making) {
    if let Some(charge) = making.charge {
        books.container.region.refund(charge);
    }
}

fn made(books: &Books, making: Making, context: u64, what: u8) {
    let bytes = making.charge.map_or(0, |charge| charge.bytes());
    let entry = Entry {
        bytes,
        what,
        handles: 1,
        ..named(books, making.device)
    };
    let (before, kept) = books.ledger().map.put(Space::Context, context, entry);
    if let Some(before) = before {
        // Another thread was first (or adopted it): its entry counts.
        books.ledger().map.put(Space::Context, context, before);
        return refund(books, making);
    }
    if !kept {
        line!(Error, "a context is not remembered: no memory");
    }
    if let Some(charge) = making.charge {
        books.container.region.confirm(charge, Kind::Context);
    }
    books
        .ledger()
        .add_overhead(making.device, Part::Context, bytes);
    if bytes == 0 {
        measure(books, making.device, making.ordinal);
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

/// The first context of a container that nobody measured before: NVML says what this process holds,
/// and what is not a buffer is the context. (A host process that measures comes later, and again.)
fn measure(books: &Books, device: usize, ordinal: i32) {
    let region = &books.container.region;
    let Some(held) = query::own_bytes(ordinal) else {
        return;
    };
    let overhead = books.ledger().overhead_bytes(device);
    let buffers = region.used_by_me(device).saturating_sub(overhead);
    books
        .ledger()
        .settle_device(books.container, device, held.saturating_sub(buffers));
}

/// Our number of a context, and an entry for one that was made past the hooks (an old runtime makes
/// them through its export tables).
pub(crate) fn adopt(books: &Books, context: u64, device: usize) -> u64 {
    let map = &books.ledger().map;
    if let Some(entry) = map.get(Space::Context, context) {
        return entry.owner;
    }
    let bytes = expected_bytes(books, device);
    let entry = Entry {
        bytes,
        handles: 1,
        ..named(books, device)
    };
    let (before, _) = map.put(Space::Context, context, entry);
    if let Some(before) = before {
        map.put(Space::Context, context, before);
        return before.owner;
    }
    books.container.region.charge(device, bytes, Kind::Context);
    books.ledger().add_overhead(device, Part::Context, bytes);
    if bytes == 0
        && let Some(ordinal) = books.ordinal_of(device)
    {
        measure(books, device, ordinal);
    }
    entry.owner
}

pub(crate) fn before_destroy(context: CuContext) -> Verdict<Going> {
    let books = books!(Context);
    let context = context as u64;
    match books.ledger().map.take(Space::Context, context) {
        Some(entry) => Verdict::Call(Going { context, entry }),
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

/// The driver has freed the context and everything in it.
fn gone(books: &Books, entry: &Entry) {
    let ledger = books.ledger();
    // Relaxed: threads that use a context while it is destroyed are the host's own race.
    ledger.contexts_gone.fetch_add(1, Ordering::Relaxed);
    let device = usize::from(entry.device);
    let mut buffers = 0;
    let mut modules = 0;
    ledger.map.sweep(|space, held| {
        let goes = held.owner == entry.owner
            && matches!(space, Space::Pointer | Space::Array | Space::Module)
            && crate::memory::dies_with_its_context(held);
        if goes {
            match space {
                Space::Module => modules += held.bytes,
                _ => buffers += held.bytes,
            }
        }
        goes
    });
    books
        .container
        .region
        .release(device, buffers, Kind::Buffer);
    if modules > 0 {
        ledger.drop_overhead(books.container, device, Part::Module, modules);
    }
    if entry.what != GREEN {
        ledger.drop_overhead(books.container, device, Part::Context, entry.bytes);
    }
    crate::pools::settle_device(books, device);
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
        let is_last = entry.handles <= 1;
        entry.handles = entry.handles.saturating_sub(1);
        (
            if is_last { Then::Remove } else { Then::Keep },
            is_last.then_some(*entry),
        )
    });
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

pub(crate) fn before_retain(call: &str, device: CuDevice) -> Verdict<Making> {
    let books = books!(Context);
    if query::primary_is_active(device.0) == Some(true) {
        return match books.of_ordinal(device.0) {
            Place::Device { device: index, .. } => Verdict::Call(Making {
                charge: None,
                device: index,
                ordinal: device.0,
            }),
            Place::Elsewhere => Verdict::Pass,
            Place::Denied => refuse_device(device.0),
        };
    }
    make(&books, call, device.0)
}

pub(crate) fn after_retain(making: Making, result: CuResult, out: *mut CuContext) {
    let Some(books) = books::opened() else { return };
    let Some(context) = border::read(out).filter(|_| result == CuResult::SUCCESS) else {
        return refund(&books, making);
    };
    let context = context as u64;
    let before = books.ledger().swap_primary(making.device, context);
    if before != 0
        && before != context
        && let Some(entry) = books.ledger().map.take(Space::Context, before)
    {
        // It was destroyed and made anew while we did not look.
        gone(&books, &entry);
    }
    if books.ledger().map.get(Space::Context, context).is_some() {
        return refund(&books, making);
    }
    made(&books, making, context, PRIMARY);
}

/// `cuDevicePrimaryCtxRelease`: the last release frees it. `cuDevicePrimaryCtxReset`: frees it at
/// once.
pub(crate) fn after_release(result: CuResult, device: CuDevice) {
    let Some(books) = books::opened() else { return };
    if result != CuResult::SUCCESS || query::primary_is_active(device.0) != Some(false) {
        return;
    }
    primary_gone(&books, device.0);
}

fn primary_gone(books: &Books, ordinal: i32) {
    let Place::Device { device, .. } = books.of_ordinal(ordinal) else {
        return;
    };
    let context = books.ledger().swap_primary(device, 0);
    if context == 0 {
        return;
    }
    if let Some(entry) = books.ledger().map.take(Space::Context, context) {
        gone(books, &entry);
    }
}

/// `cuGreenCtxCreate` makes the primary context if it is not there yet.
pub(crate) fn after_green_create(making: Making, result: CuResult, out: *mut CuGreenCtx) {
    let Some(books) = books::opened() else { return };
    let Some(green) = border::read(out).filter(|_| result == CuResult::SUCCESS) else {
        return refund(&books, making);
    };
    let bytes = making.charge.map_or(0, |charge| charge.bytes());
    let entry = Entry {
        bytes,
        what: GREEN,
        ..named(&books, making.device)
    };
    books.ledger().map.put(Space::Green, green as u64, entry);
    if let Some(charge) = making.charge {
        books.container.region.confirm(charge, Kind::Context);
        books
            .ledger()
            .add_overhead(making.device, Part::Context, bytes);
    }
}

/// The context of a green one is known from here on: it is not charged a second time.
pub(crate) fn after_from_green(result: CuResult, out: *mut CuContext, green: CuGreenCtx) {
    let Some(books) = books::opened() else { return };
    if result != CuResult::SUCCESS {
        return;
    }
    let Some(context) = border::read(out) else {
        return;
    };
    let map = &books.ledger().map;
    let Some(entry) = map.get(Space::Green, green as u64) else {
        return;
    };
    if map.get(Space::Context, context as u64).is_some() {
        return;
    }
    // What is allocated in it belongs to the primary context.
    let primary = books.ledger().primary(usize::from(entry.device));
    let owner = map
        .get(Space::Context, primary)
        .map_or(0, |primary| primary.owner);
    map.put(
        Space::Context,
        context as u64,
        Entry {
            bytes: 0,
            owner,
            ..entry
        },
    );
    let link = |held: &mut Entry| {
        held.owner = context as u64;
        (Then::Keep, ())
    };
    map.change(Space::Green, green as u64, link);
}

pub(crate) fn before_green_destroy(green: CuGreenCtx) -> Verdict<Going> {
    let books = books!(Context);
    match books.ledger().map.take(Space::Green, green as u64) {
        Some(entry) => Verdict::Call(Going {
            context: green as u64,
            entry,
        }),
        None => Verdict::Pass,
    }
}

pub(crate) fn after_green_destroy(going: Going, result: CuResult) {
    let Some(books) = books::opened() else { return };
    let Going {
        context: green,
        entry,
    } = going;
    if result != CuResult::SUCCESS {
        books.ledger().map.put(Space::Green, green, entry);
        return;
    }
    let ledger = books.ledger();
    // Relaxed: see `gone`.
    ledger.contexts_gone.fetch_add(1, Ordering::Relaxed);
    let of_green = |held: &mut Entry| {
        (
            if held.what == GREEN {
                Then::Remove
            } else {
                Then::Keep
            },
            (),
        )
    };
    ledger.map.change(Space::Context, entry.owner, of_green);
    if entry.bytes > 0 {
        let device = usize::from(entry.device);
        ledger.drop_overhead(books.container, device, Part::Context, entry.bytes);
    }
}

/// `CU_LIMIT_PRINTF_FIFO_SIZE` and `CU_LIMIT_MALLOC_HEAP_SIZE` are bytes of the device.
fn is_sized(limit: u32) -> bool {
    matches!(limit, 1 | 2)
}

/// A limit about to be set.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    charge: Charge,
    context: u64,
}

/// A larger heap or print buffer is reserved; a smaller one stays charged until the context goes.
pub(crate) fn before_set_limit(call: &str, limit: u32, value: usize) -> Verdict<Setting> {
    let books = books!(Context);
    if !is_sized(limit) {
        return Verdict::Pass;
    }
    let Place::Device { device, .. } = books.here() else {
        return Verdict::Pass;
    };
    let Some(context) = query::current_context() else {
        return Verdict::Pass;
    };
    let Some(before) = query::context_limit(limit) else {
        return Verdict::Pass;
    };
    let more = books::size(value).saturating_sub(before);
    if more == 0 {
        return Verdict::Pass;
    }
    match books.reserve(call, device, books::mapped(more)) {
        Ok(charge) => Verdict::Call(Setting { charge, context }),
        Err(result) => Verdict::Refuse(result),
    }
}

pub(crate) fn after_set_limit(setting: Setting, result: CuResult) {
    let Some(books) = books::opened() else { return };
    let Setting { charge, context } = setting;
    if result != CuResult::SUCCESS {
        books.container.region.refund(charge);
        return;
    }
    books.container.region.confirm(charge, Kind::Context);
    books.ledger().grow_context(charge.device(), charge.bytes());
    let grown = |entry: &mut Entry| {
        entry.bytes += charge.bytes();
        (Then::Keep, ())
    };
    books.ledger().map.change(Space::Context, context, grown);
}
