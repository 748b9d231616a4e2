//! Where the memory of a call goes: to the device of a context. A context that was made past the hooks is
//! found out here.

use core::sync::atomic::Ordering;

use crate::driver::device::Device;
use crate::driver::query;
use crate::guest::thread::thread;
use crate::holdings::known_contexts;
use crate::state::books::{Books, Place};

/// The current context's device.
#[inline]
pub(crate) fn here(books: &Books) -> Place {
    let Some(context) = query::current_context() else {
        return Place::Elsewhere;
    };
    of_context(books, context)
}

/// A context's device.
#[inline]
pub(crate) fn of_context(books: &Books, context: u64) -> Place {
    let epoch = context_epoch(books);
    let known = thread(|thread| {
        (thread.context.get() == context && thread.context_epoch.get() == epoch)
            .then(|| (thread.device.get(), thread.context_number.get()))
    });
    match known {
        Some((device, owner)) => Place::Device {
            device: device as usize,
            owner,
        },
        None => find_context(books, context, epoch),
    }
}

#[cold]
fn find_context(books: &Books, context: u64, epoch: u32) -> Place {
    let Some(ordinal) = query::context_ordinal(context) else {
        return Place::Elsewhere;
    };
    match books.process.device(books.container, ordinal) {
        Device::Unlimited => Place::Elsewhere,
        Device::Denied => Place::Denied,
        Device::Limited(device) if !known_contexts::is_allowed(books, context, device) => {
            Place::Denied
        }
        Device::Limited(device) => {
            let owner = known_contexts::adopt(books, context, device);
            thread(|thread| {
                thread.context.set(context);
                thread.context_epoch.set(epoch);
                thread.device.set(u32::try_from(device).unwrap_or(0));
                thread.context_number.set(owner);
            });
            Place::Device { device, owner }
        }
    }
}

/// Differs when an address may stand for another context than before.
#[inline]
fn context_epoch(books: &Books) -> u32 {
    // Relaxed: a context that is destroyed while it is used is the host's own race.
    let gone = books.ledger().contexts_gone.load(Ordering::Relaxed);
    books.process.epoch.load(Ordering::Relaxed) << 20 | gone & 0xf_ffff
}
