//! The memory that is mapped to sparse arrays, and holds that end when a stream gets there.

use core::sync::atomic::Ordering;

use crate::base::map::{Entry, Space};
use crate::driver::query;
use crate::holdings::objects::Objects;
use crate::state::accounts::Accounts;

/// Whether any sparse array of this process has memory under it.
pub(crate) fn has_parts(accounts: &Accounts) -> bool {
    // Relaxed: only says that a look is worth while.
    accounts.holdings().sparse_parts.load(Ordering::Relaxed) != 0
}

/// An array is gone, and nothing lies under it any more.
pub(crate) fn array_gone(accounts: &Accounts, array: u64) {
    const AT_ONCE: usize = 128;
    if !has_parts(accounts) {
        return;
    }
    loop {
        let mut gone = [0u64; AT_ONCE];
        let mut count = 0;
        accounts
            .holdings()
            .map
            .sweep(|space, entry| match gone.get_mut(count) {
                Some(place) if space == Space::Sparse && entry.bytes == array => {
                    *place = entry.owner;
                    count += 1;
                    true
                }
                _ => false,
            });
        let objects = Objects::lock(accounts);
        for number in gone.iter().take(count) {
            // Relaxed: only says that a look is worth while.
            accounts
                .holdings()
                .sparse_parts
                .fetch_sub(1, Ordering::Relaxed);
            objects.drop_hold(*number);
        }
        if count < AT_ONCE {
            return;
        }
    }
}

pub(crate) fn put(accounts: &Accounts, number: u64, holds: u32, event: u64) {
    let holdings = accounts.holdings();
    let entry = Entry {
        bytes: number,
        maps: holds,
        ..Entry::default()
    };
    // Relaxed: only says that a look is worth while.
    holdings.endings.fetch_add(1, Ordering::Relaxed);
    // An event's own number: no other hold waits for it.
    holdings.map.put(
        Space::Ending,
        event,
        Entry {
            owner: event,
            ..entry
        },
    );
}

/// Ends the holds whose time has come. True: there were any.
pub(crate) fn poll(accounts: &Accounts) -> bool {
    const AT_ONCE: usize = 128;
    let holdings = accounts.holdings();
    // Relaxed: only says that a look is worth while.
    if holdings.endings.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let mut waiting = [(0u64, 0u64, 0u32); AT_ONCE];
    let mut count = 0;
    holdings
        .map
        .sweep(|space, entry| match waiting.get_mut(count) {
            Some(place) if space == Space::Ending => {
                *place = (entry.owner, entry.bytes, entry.maps);
                count += 1;
                true
            }
            _ => false,
        });
    let mut ended = false;
    for &(event, number, holds) in waiting.iter().take(count) {
        // Relaxed: as above.
        holdings.endings.fetch_sub(1, Ordering::Relaxed);
        if query::relaxed(|| query::event_is_done(event)) == Some(false) {
            put(accounts, number, holds, event);
            continue;
        }
        query::destroy_event(event);
        let objects = Objects::lock(accounts);
        for _ in 0..holds {
            objects.drop_hold(number);
        }
        ended = true;
    }
    ended
}
