//! Contexts that this process knows: their numbers, those that a runtime made past the hooks, and what is
//! measured when memory is asked for.

use core::sync::atomic::Ordering;

use vgpu_abi::region::Kind;

use crate::base::map::Then;
use crate::holdings::measure::{self, NewContext};
use crate::holdings::mps;
use crate::state::accounts::Accounts;
use crate::state::entries::Context;
use crate::state::holdings::{Learn, OverheadKind};
use crate::state::process;

/// Charges a context that was found, rather than made by our leave: it counts as any other one.
pub(crate) fn settle_found(
    accounts: &Accounts,
    device: usize,
    ordinal: i32,
    context: u64,
    learn: Learn,
) -> u64 {
    let bytes = known_bytes(accounts, device);
    if bytes == 0 {
        // Measured first, then charged. A guess that is charged meanwhile would refuse what others ask for, and
        // the context is there already.
        let found = NewContext {
            device,
            ordinal,
            context,
            charged: 0,
            before: None,
        };
        return measure::settle_found_context(accounts, found, learn);
    }
    accounts
        .container
        .region
        .charge(device, bytes, Kind::Context);
    accounts
        .holdings()
        .resize_context(&accounts.container.region, device, bytes, 0);
    measure::settle(accounts, device, learn);
    bytes
}

/// A context that was made past the hooks, or is about to be charged as the first one of its
/// device: its runtime loads until memory is asked for.
pub(crate) fn mark_loading(accounts: &Accounts, device: usize) {
    if !accounts.holdings().has_context(device) {
        accounts.container.region.loading(device);
        accounts.process.begin_loading(device);
    }
}

/// The entry of a context that is not known yet, with a new number.
pub(crate) fn numbered(accounts: &Accounts, device: usize, bytes: u64) -> Context {
    // Relaxed: only has to differ from all others.
    let number = accounts
        .holdings()
        .contexts_numbered
        .fetch_add(1, Ordering::Relaxed);
    Context::Own {
        number: u64::from(number) + 1,
        bytes,
        device: u8::try_from(device).unwrap_or(u8::MAX),
        references: 1,
    }
}

/// The charge of a context has turned out to be this.
pub(crate) fn recharge(accounts: &Accounts, context: u64, change: impl FnOnce(u64) -> u64) {
    let recharged = |entry: &mut Context| {
        entry.recharge(change);
        (Then::Keep, ())
    };
    accounts.holdings().map.change(context, recharged);
}

/// A call was left by a jump: measures what the device has now, so that its charge does not stay if the driver gave
/// nothing.
pub(crate) fn measure_again(accounts: &Accounts, device: usize) {
    if !measure::settle(accounts, device, Learn::Nothing) {
        // The host may know.
        accounts.holdings().await_host(device);
    }
}

/// Memory is asked for while something is awaited. For the first time since its context was made, a
/// runtime has loaded what the program brought: that is measured and charged, before
/// anything is given. And what a rule wants measured is.
#[cold]
pub(crate) fn loaded(accounts: &Accounts, device: usize) {
    if accounts.process.is_wanted(device) && !accounts.process.is_loading(device) {
        return measure::wanted(accounts, device);
    }
    if !accounts.process.is_loading(device) {
        return;
    }
    let Some(_alone) = accounts.process.loaded_lock.hold_briefly() else {
        // The room that is kept stays kept for its minute.
        return accounts.process.forget_loading(device);
    };
    if !accounts.process.is_loading(device) {
        return;
    }
    let ordinal = accounts.ordinal_of(device);
    if measure::settle(accounts, device, Learn::Runtime)
        || ordinal.is_some_and(|ordinal| measure::settle_loaded(accounts, device, ordinal))
    {
        accounts.container.region.loaded(device);
    } else {
        // In a pid namespace, where only the host can measure.
        accounts.holdings().await_host(device);
    }
    accounts.process.forget_loading(device);
}

/// Was the context made by our leave? One that was made past the hooks needs it when it is first used.
pub(crate) fn is_allowed(accounts: &Accounts, context: u64, device: usize) -> bool {
    accounts.holdings().map.get::<Context>(context).is_some()
        || mps::refuses(accounts, "a context", device).is_none()
}

/// Our number of a context, and an entry for one that was made past the hooks (an old runtime makes
/// them through its export tables).
pub(crate) fn adopt(accounts: &Accounts, context: u64, device: usize) -> u64 {
    let map = &accounts.holdings().map;
    if let Some(known) = map.get::<Context>(context) {
        return known.number();
    }
    let entry = numbered(accounts, device, 0);
    let (before, _) = map.put(context, entry);
    if let Some(before) = before {
        map.put(context, before);
        return before.number();
    }
    // A runtime that makes contexts past the hooks loads modules past them too, and may be loading now.
    process::load_past_us();
    mark_loading(accounts, device);
    accounts
        .holdings()
        .add_overhead(device, OverheadKind::Context, 0);
    let ordinal = accounts.ordinal_of(device).unwrap_or(0);
    let bytes = settle_found(accounts, device, ordinal, context, Learn::Runtime);
    recharge(accounts, context, |_| bytes);
    measure::keep_baseline(accounts, device, context);
    measure::record_excess(accounts, "a context that a runtime made", device, bytes);
    entry.number()
}

/// From now on the address of a context may be that of another context.
pub(crate) fn forget_addresses(accounts: &Accounts) {
    // Relaxed: threads that use a context while it is destroyed are the host's own race.
    accounts
        .holdings()
        .contexts_gone
        .fetch_add(1, Ordering::Relaxed);
}

/// The size of a context: as seen before, else as the limits say; 0 where it is unknown.
pub(crate) fn known_bytes(accounts: &Accounts, device: usize) -> u64 {
    match accounts.container.region.learned_context_bytes(device) {
        0 => accounts
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
