//! The holds that end when memory of a pool that processes named to each other is freed here.

use core::sync::atomic::Ordering;

use vgpu_abi::region::Kind;

use crate::holdings::objects::Objects;
use crate::holdings::{exports, pool_charges};
use crate::state::accounts::Accounts;
use crate::state::entries::Pointer;

/// The pool that an allocation is from.
#[derive(Clone, Copy)]
pub(crate) struct OfPool {
    /// Index in the region.
    pub(crate) device: u8,
    /// Its place in the table of pools.
    pub(crate) pool: u32,
}

/// Memory that was named to others is freed here. It is charged to its pool again, and others may still hold its
/// object.
pub(crate) fn freed(accounts: &Accounts, pointer: u64, from: OfPool, bytes: u64, object: u64) {
    if accounts.holdings().map.get::<Pointer>(pointer).is_none() {
        // Else another thread was given the address meanwhile, and has named what is there now.
        exports::forget_handle(accounts, pointer);
    }
    if let Some(pool) = pool_charges::at_place(accounts, from.pool)
        && let Some(held) = pool.lock.hold()
    {
        // Relaxed: under the pool's lock, as all below.
        let offered = pool.offered.load(Ordering::Relaxed);
        let left = offered.saturating_sub(bytes);
        pool.offered.store(left, Ordering::Relaxed);
        if pool_charges::settle_held(accounts, pool, &held).is_none() {
            // The driver does not say what the pool holds: it keeps what was freed.
            let region = &accounts.container.region;
            region.charge(usize::from(from.device), bytes, Kind::Buffer);
            pool.charged.fetch_add(bytes, Ordering::Relaxed);
        }
    }
    // Last, so that the memory may be charged twice up to here, but is never uncharged.
    ended(accounts, object);
}

/// The program has freed an import once. True if that was the last time. The hold then ends once the driver has
/// released the object.
pub(crate) fn is_last(accounts: &Accounts, pointer: u64, import: &Pointer) -> bool {
    let mut left = *import;
    match &mut left {
        Pointer::Taken { times, .. } if *times > 1 => *times -= 1,
        _ => return true,
    }
    accounts.holdings().map.put(pointer, left);
    false
}

/// The driver has released it.
pub(crate) fn ended(accounts: &Accounts, object: u64) {
    Objects::lock(accounts).drop_hold(object);
}
