//! The charges of modules and libraries, by context, and what a first use adds to them.

use crate::base::map::Then;
use crate::holdings::locate;
use crate::holdings::measure::{self, Look};
use crate::state::accounts::{Accounts, Destination};
use crate::state::entries::{Library, LibraryCopy, Loaded, Module};

/// The charge of a context for a module or a library.
pub(crate) fn loaded(accounts: &Accounts, number: u64, context: u64) -> Option<Loaded> {
    let map = &accounts.holdings().map;
    if let Some(Module(loaded)) = map.get(number) {
        return Some(loaded);
    }
    let LibraryCopy(loaded) = map.get(copy_of(accounts, number, context))?;
    Some(loaded)
}

/// The number of a library's copy in a context. An unknown library has number 0: a context's copies of such libraries
/// also end with the context.
fn copy_of(accounts: &Accounts, library: u64, context: u64) -> u64 {
    let library = accounts.holdings().map.get::<Library>(library);
    copy_number(library.map_or(0, |library| library.number), context)
}

/// Charges the memory taken since `before`, whose charge ends with its module, or with the copy of its library; 0
/// is none that is known.
pub(crate) fn charge_first_use(
    accounts: &Accounts,
    call: &str,
    device: usize,
    before: Option<Look>,
    module: u64,
) {
    if before.is_none() {
        return;
    }
    let taken = measure::taken(accounts, device, before, 0);
    let more = accounts.holdings().take_in_advance(device, taken.beyond);
    if more == 0 {
        return;
    }
    measure::charge_loaded(accounts, call, device, more);
    let owner = match locate::here(accounts) {
        Destination::Device { owner, .. } => owner,
        Destination::Elsewhere | Destination::Denied => 0,
    };
    let grow = |loaded: &mut Loaded| {
        loaded.bytes = loaded.bytes.saturating_add(more);
        (Then::Keep, ())
    };
    let map = &accounts.holdings().map;
    if map.change(module, |Module(loaded)| grow(loaded)).is_some() {
        return;
    }
    let copy = copy_of(accounts, module, owner);
    if map
        .change(copy, |LibraryCopy(loaded)| grow(loaded))
        .is_none()
    {
        let loaded = Loaded {
            bytes: more,
            context: owner,
            steps_in_advance: 0,
            device: u8::try_from(device).unwrap_or(u8::MAX),
            is_whole: false,
        };
        map.put(copy, LibraryCopy(loaded));
    }
}

/// The number of a library's copy in a context, by our numbers of both.
pub(crate) fn copy_number(library: u64, context: u64) -> u64 {
    library << 32 | context & u64::from(u32::MAX)
}
