//! The holds that end when memory of a pool that processes named to each other is freed here.

use core::sync::atomic::Ordering;

use vgpu_abi::region::Kind;

use crate::base::map::{Entry, Space};
use crate::holdings::objects::Objects;
use crate::holdings::{exports, pool_charges};
use crate::state::accounts::Accounts;

/// Memory that was named to others is freed here. It is charged to its pool again, and others may still hold it.
pub(crate) fn freed(accounts: &Accounts, pointer: u64, entry: &Entry) {
    if accounts
        .holdings()
        .map
        .get(Space::Pointer, pointer)
        .is_none()
    {
        // Else another thread was given the address meanwhile, and has named what is there now.
        exports::forget_handle(accounts, pointer);
    }
    if let Some(pool) = pool_charges::at_place(accounts, entry.maps)
        && let Some(held) = pool.lock.hold()
    {
        // Relaxed: under the pool's lock, as all below.
        let offered = pool.offered.load(Ordering::Relaxed);
        let left = offered.saturating_sub(entry.bytes);
        pool.offered.store(left, Ordering::Relaxed);
        if pool_charges::settle_held(accounts, pool, &held).is_none() {
            // The driver does not say what the pool holds: it keeps what was freed.
            let region = &accounts.container.region;
            region.charge(usize::from(entry.device), entry.bytes, Kind::Buffer);
            pool.charged.fetch_add(entry.bytes, Ordering::Relaxed);
        }
    }
    // Last: until here the memory may be charged twice, and is never charged to nothing.
    Objects::lock(accounts).drop_hold(entry.owner);
}

/// The program has freed an import once. True: that was the last time, and the object is held no more
/// once the driver has let go of it.
pub(crate) fn is_last(accounts: &Accounts, pointer: u64, entry: &Entry) -> bool {
    if entry.bytes <= 1 {
        return true;
    }
    let less = Entry {
        bytes: entry.bytes - 1,
        ..*entry
    };
    accounts.holdings().map.put(Space::Pointer, pointer, less);
    false
}

/// The driver has let go of an import.
pub(crate) fn ended(accounts: &Accounts, pointer: u64, entry: &Entry) {
    if is_last(accounts, pointer, entry) {
        Objects::lock(accounts).drop_hold(entry.owner);
    }
}
