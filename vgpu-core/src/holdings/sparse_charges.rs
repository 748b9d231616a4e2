//! The memory that is mapped to sparse arrays, and holds that end when a stream gets there.

use core::sync::atomic::Ordering;

use crate::driver::query;
use crate::holdings::objects::Objects;
use crate::state::accounts::Accounts;
use crate::state::entries::{Ending, SparsePart};

/// Whether any sparse array of this process has memory under it.
pub(crate) fn has_parts(accounts: &Accounts) -> bool {
    // Relaxed: only says that a look is worth while.
    accounts.holdings().sparse_parts.load(Ordering::Relaxed) != 0
}

/// An array was destroyed: no memory is mapped to it any more.
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
            .sweep_of(|_, part: &mut SparsePart| match gone.get_mut(count) {
                Some(place) if part.array == array => {
                    *place = part.object;
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

pub(crate) fn put(accounts: &Accounts, ending: Ending) {
    let holdings = accounts.holdings();
    // Relaxed: only says that a look is worth while.
    holdings.endings.fetch_add(1, Ordering::Relaxed);
    // An event's own number: no other hold waits for it.
    holdings.map.put(ending.event, ending);
}

/// Ends the holds whose time has come. True: there were any.
pub(crate) fn poll(accounts: &Accounts) -> bool {
    const AT_ONCE: usize = 128;
    let holdings = accounts.holdings();
    // Relaxed: only says that a look is worth while.
    if holdings.endings.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let none = Ending {
        object: 0,
        event: 0,
        holds: 0,
    };
    let mut waiting = [none; AT_ONCE];
    let mut count = 0;
    holdings
        .map
        .sweep_of(|_, ending: &mut Ending| match waiting.get_mut(count) {
            Some(place) => {
                *place = *ending;
                count += 1;
                true
            }
            None => false,
        });
    let mut ended = false;
    for &ending in waiting.iter().take(count) {
        // Relaxed: as above.
        holdings.endings.fetch_sub(1, Ordering::Relaxed);
        let Ending {
            object,
            event,
            holds,
        } = ending;
        if query::relaxed(|| query::event_is_done(event)) == Some(false) {
            put(accounts, ending);
            continue;
        }
        query::destroy_event(event);
        let objects = Objects::lock(accounts);
        for _ in 0..holds {
            objects.drop_hold(object);
        }
        ended = true;
    }
    ended
}
