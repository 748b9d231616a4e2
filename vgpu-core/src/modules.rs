//! Rules: modules and libraries. What one takes of the device is read from its image, reserved before it
//! is loaded, and compared with what the driver took: what went past the limit is unloaded again. What is
//! loaded at its first use only is charged then; contexts and modules together are settled to what NVML
//! or the host measures.

use core::ffi::{c_char, c_void};

use cuda_api::{CuFunction, CuKernel, CuResult};
use vgpu_abi::region::{Charge, Kind};

use crate::books::{self, Books, Place, books, mapped};
use crate::border;
use crate::guest::{self, Verdict};
use crate::image::Declared;
use crate::ledger::Part;
use crate::log::line;
use crate::map::{Entry, Space, Then};
use crate::measure::{self, Look};
use crate::memory::Address;
use crate::query;

/// All of the module's image was read: its charge covers what is loaded at its first use. (A library is
/// loaded again in each context.)
const WHOLE: u8 = 1;

/// A module about to be loaded.
#[derive(Clone, Copy)]
pub(crate) struct Loading {
    call: &'static str,
    charge: Charge,
    owner: u64,
    is_whole: bool,
    before: Option<Look>,
}

/// A module about to go.
#[derive(Clone, Copy)]
pub(crate) struct Unloading {
    number: u64,
    entry: Entry,
}

/// Something that may be loaded by a call that looks it up.
#[derive(Clone, Copy)]
pub(crate) struct LookingUp {
    call: &'static str,
    device: usize,
    before: Option<Look>,
    /// The module or library that is charged for it; 0 where it is not known.
    module: u64,
}

pub(crate) fn before_load_data(call: &'static str, image: *const c_void) -> Verdict<Loading> {
    let books = books!(Context);
    if image.is_null() {
        return Verdict::Pass;
    }
    reserve(&books, call, || border::image(image))
}

pub(crate) fn before_load_file(call: &'static str, path: *const c_char) -> Verdict<Loading> {
    let books = books!(Context);
    let Some(path) = border::text(path) else {
        return Verdict::Pass;
    };
    reserve(&books, call, || border::image_file(path))
}

fn reserve(
    books: &Books,
    call: &'static str,
    declared: impl FnOnce() -> Declared,
) -> Verdict<Loading> {
    let (device, owner) = match books.here() {
        Place::Device { device, owner } => (device, owner),
        Place::Elsewhere => return Verdict::Pass,
        Place::Denied => return Verdict::Refuse(CuResult::NOT_PERMITTED),
    };
    let declared = guest::uncancelled(declared);
    let before = measure::before(books, device);
    match books.reserve_overhead(call, device, mapped(declared.bytes.max(1))) {
        Ok(charge) => Verdict::Call(Loading {
            call,
            charge,
            owner,
            is_whole: declared.is_whole,
            before,
        }),
        Err(result) => Verdict::Refuse(result),
    }
}

pub(crate) fn after_load<A>(
    loading: Loading,
    result: CuResult,
    out: *mut *mut A,
) -> Option<CuResult> {
    loaded(loading, result, out, loading.owner, query::unload_module)
}

/// A library belongs to no context.
pub(crate) fn after_load_library<A>(
    loading: Loading,
    result: CuResult,
    out: *mut *mut A,
) -> Option<CuResult> {
    loaded(loading, result, out, 0, query::unload_library)
}

fn loaded<A>(
    loading: Loading,
    result: CuResult,
    out: *mut *mut A,
    owner: u64,
    unload: fn(u64) -> bool,
) -> Option<CuResult> {
    let books = books::opened()?;
    let charge = loading.charge;
    let device = charge.device();
    let Some(module) = border::read(out).filter(|_| result == CuResult::SUCCESS) else {
        books.refund(charge);
        return None;
    };
    let taken = measure::taken(&books, device, loading.before, charge.bytes());
    let more = taken.beyond;
    books.confirm(charge, Kind::Module);
    let mut bytes = charge.bytes();
    books.ledger().add_overhead(device, Part::Module, bytes);
    let mut answer = None;
    if more > 0 {
        match books.reserve_overhead(loading.call, device, more) {
            Ok(charge) => {
                books.confirm(charge, Kind::Module);
                books.ledger().add_overhead(device, Part::Module, more);
                bytes += more;
            }
            Err(refused) if guest::uncancelled(|| unload(module.number())) => {
                border::write(out, core::ptr::null_mut());
                books
                    .ledger()
                    .drop_overhead(books.container, device, Part::Module, bytes);
                return Some(refused);
            }
            Err(refused) => {
                // The driver keeps it, so it counts, and nothing more is given.
                books.container.region.charge(device, more, Kind::Module);
                books.ledger().add_overhead(device, Part::Module, more);
                bytes = bytes.saturating_add(more);
                line!(Error, "a module past the limit cannot be unloaded");
                answer = Some(refused);
            }
        }
    }
    let is_whole = loading.is_whole && owner != 0;
    let short = if is_whole { 0 } else { taken.short };
    books.ledger().charged_in_advance(device, short);
    let entry = Entry {
        bytes,
        owner,
        device: u8::try_from(device).unwrap_or(u8::MAX),
        what: if is_whole { WHOLE } else { 0 },
        // In the driver's steps.
        maps: u32::try_from(short / books::STEP).unwrap_or(u32::MAX),
        ..Entry::default()
    };
    books
        .ledger()
        .map
        .put(Space::Module, module.number(), entry);
    answer
}

pub(crate) fn before_unload(module: impl Address) -> Verdict<Unloading> {
    let books = books!(Context);
    let number = module.number();
    match books.ledger().map.take(Space::Module, number) {
        Some(entry) => Verdict::Call(Unloading { number, entry }),
        None => Verdict::Pass,
    }
}

pub(crate) fn after_unload(unloading: Unloading, result: CuResult) {
    let Some(books) = books::opened() else { return };
    let Unloading { number, entry } = unloading;
    if result == CuResult::SUCCESS {
        let device = usize::from(entry.device);
        let short = u64::from(entry.maps).saturating_mul(books::STEP);
        books.ledger().take_in_advance(device, short);
        books
            .ledger()
            .drop_overhead(books.container, device, Part::Module, entry.bytes);
    } else {
        books.ledger().map.put(Space::Module, number, entry);
    }
}

/// A call that may load what it looks up in a module or a library: that counts, unless the whole module
/// was charged when it was loaded.
pub(crate) fn before_look_up(call: &'static str, module: impl Address) -> Verdict<LookingUp> {
    let books = books!(Context);
    look_up(&books, call, module.number())
}

/// The same for a function, which is a module's.
pub(crate) fn before_load_function(call: &'static str, function: CuFunction) -> Verdict<LookingUp> {
    let books = books!(Context);
    let module = query::module_of(function).unwrap_or(0);
    look_up(&books, call, module)
}

/// The same for a kernel, which is a library's.
pub(crate) fn before_get_function(call: &'static str, kernel: CuKernel) -> Verdict<LookingUp> {
    let books = books!(Context);
    let library = query::library_of(kernel).unwrap_or(0);
    look_up(&books, call, library)
}

fn look_up(books: &Books, call: &'static str, module: u64) -> Verdict<LookingUp> {
    let Place::Device { device, .. } = books.here() else {
        return Verdict::Pass;
    };
    let known = books.ledger().map.get(Space::Module, module);
    if known.is_some_and(|it| it.what == WHOLE) && books.ledger().covers_first_use(device) {
        return Verdict::Pass;
    }
    Verdict::Call(LookingUp {
        call,
        device,
        before: measure::before(books, device),
        module: known.map_or(0, |_| module),
    })
}

pub(crate) fn after_look_up(looking_up: LookingUp, _result: CuResult) {
    let Some(books) = books::opened() else { return };
    let LookingUp {
        call,
        device,
        before,
        module,
    } = looking_up;
    let taken = measure::taken(&books, device, before, 0);
    let more = books.ledger().take_in_advance(device, taken.beyond);
    if more == 0 {
        return;
    }
    measure::charge_loaded(&books, call, device, more);
    // It goes with its module.
    let grown = |entry: &mut Entry| {
        entry.bytes = entry.bytes.saturating_add(more);
        (Then::Keep, ())
    };
    books.ledger().map.change(Space::Module, module, grown);
}
