//! The pools of this process, and how the charge of each is settled to the driver's figure.

use core::sync::atomic::Ordering;

use vgpu_abi::region::Kind;

use crate::base::lock::LockGuard;
use crate::base::log::line;
use crate::driver::query;
use crate::state::accounts::Accounts;
use crate::state::holdings::{CHORE_POOLS, PoolCharge};

/// A handle that no pool has: its place is being given back.
pub(crate) const DEAD: u64 = 1;

/// `PoolCharge::device` of a pool that is not charged: memory of the host, or of a device without a limit.
pub(crate) const NO_DEVICE: u32 = u32::MAX;

/// `PoolCharge::device` of a pool whose device the library learns at the pool's first allocation: it is the device of the
/// stream.
pub(crate) const HERE: u32 = u32::MAX - 1;

/// `PoolCharge::device` of a pool on a device that the container may not use.
pub(crate) const DENIED: u32 = u32::MAX - 2;

/// `PoolCharge::device` of a pool that another process made, and that is charged there.
pub(crate) const IMPORTED: u32 = u32::MAX - 3;

pub(crate) fn region_index(device: usize) -> u32 {
    u32::try_from(device).unwrap_or(NO_DEVICE)
}

pub(crate) fn find(accounts: &Accounts, handle: u64) -> Option<&'static PoolCharge> {
    accounts
        .holdings()
        .pools
        .iter()
        // Acquire: the other words were written before the handle.
        .find(|pool| pool.handle.load(Ordering::Acquire) == handle)
}

/// The pool's place in the table, which stays its own while memory of it is named to others.
pub(crate) fn place_of(accounts: &Accounts, pool: &PoolCharge) -> u32 {
    let mut pools = accounts.holdings().pools.iter();
    let place = pools.position(|other| core::ptr::eq(other, pool));
    place
        .and_then(|place| u32::try_from(place).ok())
        .unwrap_or(u32::MAX)
}

/// See [`place_of`].
pub(crate) fn at_place(accounts: &Accounts, place: u32) -> Option<&'static PoolCharge> {
    let place = usize::try_from(place).ok()?;
    accounts.holdings().pools.iter().nth(place)
}

/// Enters a pool. `None`: there is no memory for its entry.
pub(crate) fn enter(accounts: &Accounts, handle: u64, device: u32) -> Option<&'static PoolCharge> {
    let holdings = accounts.holdings();
    let _held = holdings.pools_lock.hold()?;
    if let Some(known) = find(accounts, handle) {
        return Some(known);
    }
    let pool = match find(accounts, 0) {
        Some(free) => free,
        None if holdings.pools.grow() => find(accounts, 0)?,
        None => return None,
    };
    // Relaxed: the handle publishes them.
    pool.device.store(device, Ordering::Relaxed);
    pool.charged.store(0, Ordering::Relaxed);
    pool.offered.store(0, Ordering::Relaxed);
    pool.is_going.store(0, Ordering::Relaxed);
    // Release: a thread that sees the handle sees the rest.
    pool.handle.store(handle, Ordering::Release);
    if is_accounted(device) {
        // Relaxed: only says that a look is worth while.
        holdings.pools_in_use.fetch_add(1, Ordering::Relaxed);
    }
    Some(pool)
}

/// Is it the region's index of a device?
pub(crate) fn is_accounted(device: u32) -> bool {
    device < IMPORTED
}

/// Charges the pool what it holds now, less the part that is charged in the table of shared objects. Gives the
/// charge before this; `None`: the driver does not say what the pool holds.
pub(crate) fn settle(accounts: &Accounts, pool: &PoolCharge) -> Option<u64> {
    let held = pool.lock.hold()?;
    settle_held(accounts, pool, &held)
}

/// As [`settle`], of a pool that the caller holds.
pub(crate) fn settle_held(
    accounts: &Accounts,
    pool: &PoolCharge,
    _held: &LockGuard<'_>,
) -> Option<u64> {
    // Acquire: as in `find`.
    let handle = pool.handle.load(Ordering::Acquire);
    // Relaxed: under the lock, as all below.
    let device = pool.device.load(Ordering::Relaxed);
    if handle <= DEAD || !is_accounted(device) {
        return None;
    }
    let reserved = query::relaxed(|| query::pool_reserved(handle))?;
    let holds = reserved.saturating_sub(pool.offered.load(Ordering::Relaxed));
    let was = pool.charged.swap(holds, Ordering::Relaxed);
    if was != holds {
        accounts
            .container
            .region
            .adjust(device as usize, Kind::Buffer, was, holds);
    }
    Some(was)
}

/// Settles the pools of a device.
pub(crate) fn settle_device(accounts: &Accounts, device: usize) {
    // Relaxed: only says that a look is worth while.
    if accounts.holdings().pools_in_use.load(Ordering::Relaxed) == 0 {
        return;
    }
    for pool in accounts.holdings().pools.iter() {
        // Acquire: as in `find`.
        if pool.handle.load(Ordering::Acquire) > DEAD
            && pool.device.load(Ordering::Relaxed) as usize == device
        {
            settle(accounts, pool);
        }
    }
}

/// Pools of a device give back what they do not use. A pool that is held just now settles itself.
pub(crate) fn trim_device(accounts: &Accounts, device: usize) {
    for pool in accounts.holdings().pools.iter() {
        // Acquire: as in `find`. Relaxed: the device is entered before the handle.
        let handle = pool.handle.load(Ordering::Acquire);
        if handle > DEAD && pool.device.load(Ordering::Relaxed) as usize == device {
            query::trim_pool(handle, 0);
            if let Some(held) = pool.lock.try_hold() {
                let _holds = settle_held(accounts, pool, &held);
            }
        }
    }
}

/// Whether the pool holds nothing once it has given back what is not in use.
pub(crate) fn is_empty(accounts: &Accounts, pool: &PoolCharge) -> bool {
    // Acquire: as in `find`.
    let handle = pool.handle.load(Ordering::Acquire);
    query::relaxed(|| query::trim_pool(handle, 0));
    settle(accounts, pool);
    // Relaxed: figures of the moment.
    pool.charged.load(Ordering::Relaxed) == 0 && pool.offered.load(Ordering::Relaxed) == 0
}

/// The driver's pool was destroyed, so its place is free again.
pub(crate) fn leave(accounts: &Accounts, pool: &PoolCharge) {
    // Relaxed: the handle publishes it.
    let device = pool.device.load(Ordering::Relaxed);
    let charged = pool.charged.swap(0, Ordering::Relaxed);
    if is_accounted(device) {
        let region = &accounts.container.region;
        region.release(device as usize, charged, Kind::Buffer);
        // Relaxed: only says that a look is worth while.
        accounts
            .holdings()
            .pools_in_use
            .fetch_sub(1, Ordering::Relaxed);
    }
    // Relaxed: as above.
    pool.is_going.store(0, Ordering::Relaxed);
    // Release: the place is free again.
    pool.handle.store(0, Ordering::Release);
}

/// Destroys the pools that their owner has destroyed and that are empty by now.
pub(crate) fn finish(accounts: &Accounts) {
    let mut left = false;
    for pool in accounts.holdings().pools.iter() {
        // Relaxed: the word says all.
        if pool.is_going.load(Ordering::Relaxed) == 0 {
            continue;
        }
        if !is_empty(accounts, pool) {
            left = true;
            continue;
        }
        let Some(_held) = pool.lock.try_hold() else {
            left = true;
            continue;
        };
        // Release: as in `enter`. Another thread that was first has taken the name off already.
        let handle = pool.handle.swap(DEAD, Ordering::AcqRel);
        if handle > DEAD {
            if !query::relaxed(|| query::destroy_pool(handle)) {
                line!(Warn, "an empty pool is not destroyed by the driver");
            }
            leave(accounts, pool);
        }
    }
    if !left {
        accounts.holdings().clear_chore(CHORE_POOLS);
    }
}
