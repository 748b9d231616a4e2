//! Where the memory of a call goes: to the device of a context. A context that was made past the hooks is
//! discovered here.

use core::sync::atomic::Ordering;

use crate::driver::device::Device;
use crate::driver::query;
use crate::guest::thread::thread;
use crate::holdings::known_contexts;
use crate::state::accounts::{Accounts, Destination};

/// The current context's device.
#[inline]
pub(crate) fn here(accounts: &Accounts) -> Destination {
    let Some(context) = query::current_context() else {
        return Destination::Elsewhere;
    };
    of_context(accounts, context)
}

/// The current context's device, if it is the one that this thread looked up last; with our number of the context.
#[inline(always)]
pub(crate) fn here_as_before(accounts: &Accounts) -> Option<(usize, u64)> {
    let context = query::current_context()?;
    as_before(context, context_epoch(accounts))
}

/// A context's device.
#[inline]
pub(crate) fn of_context(accounts: &Accounts, context: u64) -> Destination {
    let epoch = context_epoch(accounts);
    match as_before(context, epoch) {
        Some((device, owner)) => Destination::Device { device, owner },
        None => find_context(accounts, context, epoch),
    }
}

/// The device and our number of the context, if it is the one that this thread looked up last.
#[inline(always)]
fn as_before(context: u64, epoch: u32) -> Option<(usize, u64)> {
    thread(|thread| {
        (thread.context.get() == context && thread.context_epoch.get() == epoch)
            .then(|| (thread.device.get() as usize, thread.context_number.get()))
    })
}

#[cold]
fn find_context(accounts: &Accounts, context: u64, epoch: u32) -> Destination {
    let Some(ordinal) = query::context_ordinal(context) else {
        return Destination::Elsewhere;
    };
    match accounts.process.device(accounts.container, ordinal) {
        Device::Unlimited => Destination::Elsewhere,
        Device::Denied => Destination::Denied,
        Device::Limited(device) if !known_contexts::is_allowed(accounts, context, device) => {
            Destination::Denied
        }
        Device::Limited(device) => {
            let owner = known_contexts::adopt(accounts, context, device);
            thread(|thread| {
                thread.context.set(context);
                thread.context_epoch.set(epoch);
                thread.device.set(u32::try_from(device).unwrap_or(0));
                thread.context_number.set(owner);
            });
            Destination::Device { device, owner }
        }
    }
}

/// Changes when an address may be that of another context than before.
#[inline]
fn context_epoch(accounts: &Accounts) -> u32 {
    // Relaxed: a context that is destroyed while it is used is the host's own race.
    let gone = accounts.holdings().contexts_gone.load(Ordering::Relaxed);
    accounts.process.epoch.load(Ordering::Relaxed) << 20 | gone & 0xf_ffff
}
