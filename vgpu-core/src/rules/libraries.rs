//! Rules: libraries. A library belongs to no context: each context gets a copy of its own when something of the
//! library is first used there, and the copy ends with the context. The memory of a copy is reserved before it is
//! loaded, and compared with the memory that the driver took, as for a module.

use core::sync::atomic::Ordering;

use cuda_api::{CuFunction, CuKernel, CuLibrary, CuResult};

use crate::driver::query;
use crate::figures::image::Declared;
use crate::guest::border::{Address, Image, OutPtr};
use crate::guest::manners::{self, Verdict};
use crate::holdings::module_charges::copy_number;
use crate::holdings::{locate, measure};
use crate::rules::first_use;
use crate::rules::modules::{self, LookingUp};
use crate::state::accounts::{Accounts, Destination};
use crate::state::entries::{Library, LibraryCopy};
use crate::state::standing::{self, accounts};

/// A library about to be loaded.
#[derive(Clone, Copy)]
pub(crate) struct LibraryLoad {
    declared: Declared,
    /// The copy of the current context; `None` where there is none.
    copy: Option<modules::ModuleLoad>,
}

/// A library about to go.
#[derive(Clone, Copy)]
pub(crate) struct LibraryUnload {
    library: u64,
    entry: Library,
}

/// Something of a library about to be used in the current context.
#[derive(Clone, Copy)]
pub(crate) struct Using {
    library: u64,
    how: How,
}

#[derive(Clone, Copy)]
enum How {
    /// The context has a copy, or the library does not know whether it has.
    Known(LookingUp),
    /// The context gets its copy, by this number.
    First(modules::ModuleLoad, u64),
}

pub(crate) fn before_load(call: &'static str, image: Image) -> Verdict<LibraryLoad> {
    let accounts = accounts!(Context);
    let Some(declared) = manners::uncancelled(|| image.declared()) else {
        return Verdict::Pass;
    };
    // The current context is the one that most likely uses the library, or gets its copy at once; so its
    // copy is reserved.
    let copy = match locate::here(&accounts) {
        Destination::Elsewhere => None,
        destination => match modules::reserve_at(&accounts, call, destination, declared) {
            Ok(copy) => Some(copy),
            Err(result) => return Verdict::Refuse(result),
        },
    };
    Verdict::Call(LibraryLoad { declared, copy })
}

pub(crate) fn after_load(
    loading: LibraryLoad,
    result: CuResult,
    out: OutPtr<CuLibrary>,
) -> Option<CuResult> {
    let accounts = standing::opened()?;
    let Some(library) = out.read().filter(|_| result == CuResult::SUCCESS) else {
        if let Some(copy) = loading.copy {
            modules::refund(&accounts, copy);
        }
        return None;
    };
    let library = library.number();
    let holdings = accounts.holdings();
    // Relaxed: only has to differ from all others.
    let number = holdings.libraries_numbered.fetch_add(1, Ordering::Relaxed);
    let entry = Library {
        number: u64::from(number) + 1,
        declared: loading.declared.bytes,
        is_whole: loading.declared.is_whole,
    };
    let mut answer = None;
    if let Some(copy) = loading.copy {
        let unload = || query::unload_library(library);
        let (loaded, told) = modules::loaded(&accounts, copy, unload);
        answer = told;
        let Some(loaded) = loaded else {
            out.write(core::ptr::null_mut());
            return answer;
        };
        let number = copy_number(entry.number, copy.owner);
        holdings.map.put(number, LibraryCopy(loaded));
    }
    let (before, _) = holdings.map.put(library, entry);
    if let Some(before) = before {
        // A library that was unloaded past the hooks.
        copies_gone(&accounts, &before);
    }
    answer
}

pub(crate) fn before_unload(library: CuLibrary) -> Verdict<LibraryUnload> {
    let accounts = accounts!(Context);
    let library = library.number();
    match accounts.holdings().map.take(library) {
        Some(entry) => Verdict::Call(LibraryUnload { library, entry }),
        None => Verdict::Pass,
    }
}

pub(crate) fn after_unload(unloading: LibraryUnload, result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let LibraryUnload { library, entry } = unloading;
    if result == CuResult::SUCCESS {
        accounts.process.compute.first_uses.forget_owner(library);
        copies_gone(&accounts, &entry);
    } else {
        accounts.holdings().map.put(library, entry);
    }
}

/// A library was unloaded, in all contexts.
fn copies_gone(accounts: &Accounts, library: &Library) {
    // Relaxed: a context that is made while a library is unloaded has no copy of it.
    let contexts = accounts
        .holdings()
        .contexts_numbered
        .load(Ordering::Relaxed);
    for context in 1..=u64::from(contexts) {
        let number = copy_number(library.number, context);
        if let Some(LibraryCopy(copy)) = accounts.holdings().map.take(number) {
            modules::gone(accounts, &copy);
        }
    }
}

/// A call that gives the current context its copy, unless it has one.
pub(crate) fn before_use(call: &'static str, library: CuLibrary) -> Verdict<Using> {
    let accounts = accounts!(Context);
    use_it(&accounts, call, library.number())
}

/// The same for a kernel, which is a library's.
pub(crate) fn before_use_kernel(call: &'static str, kernel: CuKernel) -> Verdict<Using> {
    let accounts = accounts!(Context);
    let library = first_use::owner_of(&accounts, kernel).or_else(|| query::library_of(kernel));
    use_it(&accounts, call, library.unwrap_or(0))
}

fn use_it(accounts: &Accounts, call: &'static str, library: u64) -> Verdict<Using> {
    let place = locate::here(accounts);
    let map = &accounts.holdings().map;
    if let Destination::Device { owner, .. } = place
        && let Some(known) = map.get::<Library>(library)
    {
        let number = copy_number(known.number, owner);
        if map.get::<LibraryCopy>(number).is_none() {
            let declared = Declared {
                bytes: known.declared,
                is_whole: known.is_whole,
            };
            return match modules::reserve_at(accounts, call, place, declared) {
                Ok(copy) => Verdict::Call(Using {
                    library,
                    how: How::First(copy, number),
                }),
                Err(result) => Verdict::Refuse(result),
            };
        }
    }
    match modules::look_up(accounts, call, library) {
        Verdict::Call(looking_up) => Verdict::Call(Using {
            library,
            how: How::Known(looking_up),
        }),
        Verdict::Pass => Verdict::Pass,
        Verdict::Refuse(result) => Verdict::Refuse(result),
    }
}

/// The same of the function that a kernel is in the current context: its code may be loaded at its first
/// launch only.
pub(crate) fn after_use_kernel(
    using: Using,
    result: CuResult,
    out: OutPtr<CuFunction>,
    kernel: CuKernel,
) {
    after_use(using, result);
    if let (Some(accounts), CuResult::SUCCESS) = (standing::opened(), result)
        && let Some(function) = out.read()
    {
        first_use::function_found(&accounts, function, kernel, using.library);
    }
}

pub(crate) fn after_use(using: Using, result: CuResult) {
    let (copy, number) = match using.how {
        How::Known(looking_up) => return modules::after_look_up(looking_up, result),
        How::First(copy, number) => (copy, number),
    };
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result != CuResult::SUCCESS || accounts.holdings().map.get::<LibraryCopy>(number).is_some() {
        // There is no copy, or another thread was first.
        return modules::refund(&accounts, copy);
    }
    let (mut loaded, more) = modules::confirm(&accounts, copy);
    if more > 0 {
        // A copy cannot be taken back by itself, so it counts, and nothing more is given.
        measure::charge_loaded(&accounts, copy.call, usize::from(loaded.device), more);
        loaded.bytes = loaded.bytes.saturating_add(more);
    }
    let (before, _) = accounts.holdings().map.put(number, LibraryCopy(loaded));
    if let Some(LibraryCopy(before)) = before {
        modules::gone(&accounts, &before);
    }
}
