//! Rules: contexts. Each takes memory that no call names: a learned size is reserved when one is made,
//! settled to what NVML or the host measures; what the driver frees with a context is refunded.

use core::sync::atomic::Ordering;

use cuda_api::{CuContext, CuDevice, CuGreenCtx, CuResult, CuUuid};
use vgpu_abi::region::{Charge, Kind};

use crate::books::{self, Books, Place, books};
use crate::border;
use crate::compute;
use crate::container;
use crate::guest::{self, Verdict};
use crate::ledger::{Learn, Part};
use crate::log::line;
use crate::map::{Entry, Space, Then};
use crate::memory;
use crate::mps;
use crate::query;

/// The context is the device's primary one.
const PRIMARY: u8 = 1;
/// The context was made from a green one, which is charged for it.
const GREEN: u8 = 2;

/// The table through which a CUDA runtime makes contexts and loads modules.
const RUNTIME_TABLE: [u8; 16] = [
    0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9,
];

/// A context about to be made.
#[derive(Clone, Copy)]
pub(crate) struct Making {
    /// `None` where nothing is known of the size yet, or nothing has to be made.
    charge: Option<Charge>,
    /// Of the charge, what the context itself is expected to take.
    bytes: u64,
    /// The rest is kept for what the runtime will load.
    loads: bool,
    device: usize,
    ordinal: i32,
}

impl Making {
    fn nothing(device: usize, ordinal: i32) -> Self {
        Self {
            charge: None,
            bytes: 0,
            loads: false,
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
    if let Some(refused) = mps::refuses(books, call, device) {
        return Verdict::Refuse(refused);
    }
    let bytes = expected_bytes(books, device);
    let loads = container::loads_past_us() && !books.ledger().has_context(device);
    let reserved = match (loads, bytes) {
        (true, _) => books.reserve_loading(call, device, bytes),
        (false, 0) => return Verdict::Call(Making::nothing(device, ordinal)),
        (false, _) => books.reserve_overhead(call, device, bytes),
    };
    match reserved {
        Ok(charge) => Verdict::Call(Making {
            charge: Some(charge),
            bytes,
            loads,
            device,
            ordinal,
        }),
        Err(result) => Verdict::Refuse(result),
    }
}

/// A runtime that has this table loads modules through it, which no hook sees.
pub(crate) fn after_export_table(result: CuResult, table: *const CuUuid) {
    if result == CuResult::SUCCESS
        && border::read(table).is_some_and(|table| table.bytes == RUNTIME_TABLE)
    {
        container::load_past_us();
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
    // It is the thread's current one now.
    compute::context_changed(result);
    let Some(books) = books::opened() else { return };
    match border::read(out) {
        Some(context) if result == CuResult::SUCCESS => {
            made(&books, making, context as u64, 0);
        }
        _ => failed(&books, making),
    }
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
    books.confirm(own, Kind::Context);
    books.refund(rest);
    if making.loads {
        books.process.begin_loading(making.device);
    }
}

fn made(books: &Books, making: Making, context: u64, what: u8) {
    let bytes = making.bytes;
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
    let is_new = making.loads || !container::loads_past_us();
    if !is_new {
        mark_loading(books, making.device);
    }
    confirm(books, making);
    books
        .ledger()
        .add_overhead(making.device, Part::Context, bytes);
    if bytes == 0 {
        // What a runtime made past the hooks may hold its modules already.
        let learn = if is_new {
            Learn::Context
        } else {
            Learn::Runtime
        };
        measure(books, making.device, making.ordinal, learn);
    }
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

/// A context that nobody measured before: NVML says what this process holds,
/// and what is not a buffer is the context. (A host process that measures comes later, and again.)
/// False where NVML does not know this process, or its figure says nothing.
fn measure(books: &Books, device: usize, ordinal: i32, learn: Learn) -> bool {
    let region = &books.container.region;
    if region.oversubscribed_by_me(device) > 0 {
        // What of managed memory NVML counts as this process's, if any, nobody can tell.
        return false;
    }
    let Some(held) = guest::uncancelled(|| query::own_bytes(ordinal)) else {
        return false;
    };
    let overhead = books.ledger().overhead_bytes(device);
    let buffers = region.used_by_me(device).saturating_sub(overhead);
    // Beside buffers the figure may be off by one that is on its way.
    let learn = if buffers == 0 { learn } else { Learn::Nothing };
    books
        .ledger()
        .measured_here(books.container, device, held.saturating_sub(buffers), learn);
    true
}

/// A call was left by a jump: what is there now is measured, so that its charge does not stay if the
/// driver gave nothing.
pub(crate) fn measure_again(books: &Books, device: usize) {
    if let Some(ordinal) = books.ordinal_of(device) {
        measure(books, device, ordinal, Learn::Nothing);
    }
}

/// The first memory that this process asks for since its context was made: its runtime has loaded
/// what the program brought. That is measured and stands in the books, before anything is given.
#[cold]
pub(crate) fn loaded(books: &Books, device: usize) {
    let Some(_alone) = books.process.loaded_lock.hold_briefly() else {
        // What is kept stays so for its minute.
        return books.process.forget_loading(device);
    };
    if !books.process.is_loading(device) {
        return;
    }
    let ordinal = books.ordinal_of(device);
    if ordinal.is_some_and(|ordinal| measure(books, device, ordinal, Learn::Runtime)) {
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
    // Whoever makes contexts past the hooks loads modules past them too, and may be at it.
    container::load_past_us();
    mark_loading(books, device);
    books.container.region.charge(device, bytes, Kind::Context);
    books.ledger().add_overhead(device, Part::Context, bytes);
    if let Some(ordinal) = books.ordinal_of(device) {
        measure(books, device, ordinal, Learn::Runtime);
    }
    entry.owner
}

pub(crate) fn before_destroy(context: CuContext) -> Verdict<Going> {
    let books = books!(Context);
    let context = context as u64;
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

/// The driver has freed the context and everything in it.
fn gone(books: &Books, entry: &Entry) {
    let ledger = books.ledger();
    // Relaxed: threads that use a context while it is destroyed are the host's own race.
    ledger.contexts_gone.fetch_add(1, Ordering::Relaxed);
    let device = usize::from(entry.device);
    let mut buffers = 0;
    let mut past_the_share = 0;
    let mut modules = 0;
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
            Space::Module if of_it => {
                modules += held.bytes;
                true
            }
            // The context that was made from a green one.
            Space::Context => of_it && held.what == GREEN,
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
        ledger.drop_overhead(books.container, device, Part::Module, modules);
    }
    if entry.what != GREEN {
        ledger.drop_overhead(books.container, device, Part::Context, entry.bytes);
        if !ledger.has_context(device) {
            books.process.forget_loading(device);
            books.container.region.loaded(device);
        }
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

pub(crate) fn before_retain(call: &str, device: CuDevice) -> Verdict<Making> {
    let books = books!(Context);
    if query::primary_is_active(device.0) == Some(true) {
        return match books.of_ordinal(device.0) {
            Place::Device { device: index, .. } => Verdict::Call(Making::nothing(index, device.0)),
            Place::Elsewhere => Verdict::Pass,
            Place::Denied => refuse_device(device.0),
        };
    }
    make(&books, call, device.0)
}

pub(crate) fn after_retain(making: Making, result: CuResult, out: *mut CuContext) {
    let Some(books) = books::opened() else { return };
    let Some(context) = border::read(out).filter(|_| result == CuResult::SUCCESS) else {
        return failed(&books, making);
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

/// The primary context may be about to go, with our events in it.
pub(crate) fn before_release(device: CuDevice) -> Verdict<()> {
    if let Some(books) = books::opened()
        && let Place::Device { device, .. } = books.of_ordinal(device.0)
    {
        let context = books.ledger().primary(device);
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

/// A green context is charged as one of its own.
pub(crate) fn after_green_create(making: Making, result: CuResult, out: *mut CuGreenCtx) {
    let Some(books) = books::opened() else { return };
    let Some(green) = border::read(out).filter(|_| result == CuResult::SUCCESS) else {
        return failed(&books, making);
    };
    let bytes = making.bytes;
    let entry = Entry {
        bytes,
        ..named(&books, making.device)
    };
    books.ledger().map.put(Space::Green, green as u64, entry);
    confirm(&books, making);
    books
        .ledger()
        .add_overhead(making.device, Part::Context, bytes);
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
    if map.get(Space::Context, context as u64).is_none() {
        map.put(
            Space::Context,
            context as u64,
            Entry {
                bytes: 0,
                what: GREEN,
                ..entry
            },
        );
    }
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
    if result == CuResult::SUCCESS {
        gone(&books, &going.entry);
    } else {
        books
            .ledger()
            .map
            .put(Space::Green, going.context, going.entry);
    }
}

/// `CU_LIMIT_PRINTF_FIFO_SIZE` and `CU_LIMIT_MALLOC_HEAP_SIZE` are bytes of the device, and their
/// defaults are part of every context.
const PRINTF: u32 = 1;
const PRINTF_BYTES: u64 = 1 << 20;
const HEAP: u32 = 2;
const HEAP_BYTES: u64 = 8 << 20;

/// A limit about to be set.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    charge: Option<Charge>,
    less: u64,
    device: usize,
    context: u64,
}

/// A larger heap or print buffer is reserved, a smaller one refunded.
pub(crate) fn before_set_limit(call: &str, limit: u32, value: usize) -> Verdict<Setting> {
    let books = books!(Context);
    if limit != PRINTF && limit != HEAP {
        return Verdict::Pass;
    }
    let Place::Device { device, .. } = books.here() else {
        return Verdict::Pass;
    };
    let Some(context) = query::current_context() else {
        return Verdict::Pass;
    };
    let (Some(printf), Some(heap)) = (query::context_limit(PRINTF), query::context_limit(HEAP))
    else {
        return Verdict::Pass;
    };
    let value = books::size(value);
    let before = beyond_defaults(printf, heap);
    let then = if limit == PRINTF {
        beyond_defaults(value, heap)
    } else {
        beyond_defaults(printf, value)
    };
    let setting = Setting {
        charge: None,
        less: before.saturating_sub(then),
        device,
        context,
    };
    if then <= before {
        return Verdict::Call(setting);
    }
    match books.reserve_overhead(call, device, then - before) {
        Ok(charge) => Verdict::Call(Setting {
            charge: Some(charge),
            ..setting
        }),
        Err(result) => Verdict::Refuse(result),
    }
}

fn beyond_defaults(printf: u64, heap: u64) -> u64 {
    let beyond = printf
        .saturating_sub(PRINTF_BYTES)
        .saturating_add(heap.saturating_sub(HEAP_BYTES));
    books::mapped(beyond)
}

pub(crate) fn after_set_limit(setting: Setting, result: CuResult) {
    let Some(books) = books::opened() else { return };
    let Setting {
        charge,
        less,
        device,
        context,
    } = setting;
    if result != CuResult::SUCCESS {
        if let Some(charge) = charge {
            books.refund(charge);
        }
        return;
    }
    let more = charge.map_or(0, |charge| charge.bytes());
    if let Some(charge) = charge {
        books.confirm(charge, Kind::Context);
    }
    books
        .ledger()
        .resize_context(books.container, device, more, less);
    let resized = |entry: &mut Entry| {
        entry.bytes = entry.bytes.saturating_add(more).saturating_sub(less);
        (Then::Keep, ())
    };
    books.ledger().map.change(Space::Context, context, resized);
}
