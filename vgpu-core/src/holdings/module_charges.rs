//! The charges of modules and libraries, by context, and what a first use adds to them.

use crate::base::map::{Entry, Space, Then};
use crate::holdings::locate;
use crate::holdings::measure::{self, Look};
use crate::state::accounts::{Accounts, Destination};

/// Where it stands what a context was charged for a module or a library. What it loads of those that are in
/// no charge goes with the context, too.
pub(crate) fn charged_to(accounts: &Accounts, number: u64, context: u64) -> (Space, u64) {
    let map = &accounts.holdings().map;
    if map.get(Space::Module, number).is_some() {
        return (Space::Module, number);
    }
    let library = map.get(Space::Library, number).unwrap_or_default();
    (Space::Copy, copy_number(&library, context))
}

/// What was taken since `before` is charged, and goes with its module, or with the copy of its library; 0
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
    let (space, number) = charged_to(accounts, module, owner);
    let grown = |entry: &mut Entry| {
        entry.bytes = entry.bytes.saturating_add(more);
        (Then::Keep, ())
    };
    let map = &accounts.holdings().map;
    if map.change(space, number, grown).is_none() {
        let copy = Entry {
            bytes: more,
            owner,
            device: u8::try_from(device).unwrap_or(u8::MAX),
            ..Entry::default()
        };
        map.put(space, number, copy);
    }
}

/// `Space::Library`: `owner` is our number of it, `bytes` what its image declares.
/// `Space::Copy`, by the numbers of library and context: `owner` is the context; the rest is as for a
/// module.
pub(crate) fn copy_number(library: &Entry, context: u64) -> u64 {
    library.owner << 32 | context & u64::from(u32::MAX)
}
