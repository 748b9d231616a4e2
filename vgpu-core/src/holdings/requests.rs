//! Requests for room: pending work is done first (memory that streams freed, pools that are empty by now, wanted
//! measurements), then room is reserved, or refused with its record.

use cuda_api::CuResult;
use vgpu_abi::region::{Bounds, Charge, Refusal, Why};

use crate::base::log::line;
use crate::driver::device::Fact;
use crate::driver::query;
use crate::guest::manners;
use crate::holdings::{
    deferred_free_charges, descriptors, known_contexts, measure, patience, pool_charges,
    sparse_charges,
};
use crate::state::accounts::Accounts;
use crate::state::holdings::{CHORE_DEFERRED_FREES, CHORE_POOLS};

/// Reserves room, or returns the error for the caller.
#[inline(always)]
pub(crate) fn reserve(
    accounts: &Accounts,
    call: &str,
    device: usize,
    bytes: u64,
) -> Result<Charge, CuResult> {
    try_reserve(accounts, device, bytes)
        .or_else(|refusal| try_once_more(accounts, device, bytes, refusal))
        .map_err(|refusal| accounts.refuse(call, device, &refusal))
}

/// Settles holds that wait for the driver, or for a descriptor to be closed, and that may have ended meanwhile.
#[cold]
fn try_once_more(
    accounts: &Accounts,
    device: usize,
    bytes: u64,
    refusal: Refusal,
) -> Result<Charge, Refusal> {
    let ended = sparse_charges::poll(accounts) | descriptors::poll(accounts);
    if ended {
        try_reserve(accounts, device, bytes)
    } else {
        Err(refusal)
    }
}

/// Reserves room, without a record of a refusal.
#[inline(always)]
pub(crate) fn try_reserve(
    accounts: &Accounts,
    device: usize,
    bytes: u64,
) -> Result<Charge, Refusal> {
    if accounts.process.is_any_awaited() {
        known_contexts::loaded(accounts, device);
    }
    if accounts.holdings().has_chores() {
        return try_reserve_after_chores(accounts, device, bytes);
    }
    try_reserve_now(accounts, device, bytes)
}

/// Looks at what may have become free, and at what is to be measured, before room is given.
#[cold]
fn try_reserve_after_chores(
    accounts: &Accounts,
    device: usize,
    bytes: u64,
) -> Result<Charge, Refusal> {
    do_chores(accounts);
    let reserved = try_reserve_now(accounts, device, bytes);
    if reserved.is_ok() || !accounts.holdings().has_chore(CHORE_DEFERRED_FREES) {
        return reserved;
    }
    deferred_free_charges::wait(accounts);
    try_reserve_now(accounts, device, bytes)
}

fn do_chores(accounts: &Accounts) {
    let holdings = accounts.holdings();
    if holdings.has_chore(CHORE_DEFERRED_FREES) {
        deferred_free_charges::settle(accounts);
    }
    if holdings.has_chore(CHORE_POOLS) {
        pool_charges::finish(accounts);
    }
    while let Some(device) = holdings.take_unmeasured() {
        known_contexts::measure_again(accounts, device);
    }
}

/// Are the device's charges above its limit? Then the answer says by what.
pub(crate) fn above_limit(accounts: &Accounts, device: usize) -> Option<Refusal> {
    let region = &accounts.container.region;
    let used = region.used(device);
    let limit = accounts.process.room(accounts.container, device);
    let oversubscribed = || region.oversubscribed(device);
    let resident = accounts.process.resident_room(device);
    let (limit, used, why) = passed(used, limit, oversubscribed, resident)?;
    let refusal = Refusal {
        limit,
        used,
        asked: 0,
        unaccounted: 0,
        why,
    };
    Some(patience::with_unaccounted(accounts, device, refusal))
}

/// The bound that a container's charges on a device are above, the charges that count against it, and which bound it
/// is: the limit of all that it uses, or what of that may be memory of the device itself. A bound of 0 is none.
/// `oversubscribed` returns what is past that share, and is asked only where the limit is kept.
fn passed(
    used: u64,
    limit: u64,
    oversubscribed: impl FnOnce() -> u64,
    resident: u64,
) -> Option<(u64, u64, Why)> {
    if limit != 0 && used > limit {
        return Some((limit, used, Why::Full));
    }
    let here = used.saturating_sub(oversubscribed());
    (resident != 0 && here > resident).then_some((resident, here, Why::NotPageable))
}

/// As [`Accounts::reserve`], for what a context or a module takes: a program that asks for it may not
/// have loaded all that it brought.
pub(crate) fn reserve_overhead(
    accounts: &Accounts,
    call: &str,
    device: usize,
    bytes: u64,
) -> Result<Charge, CuResult> {
    try_reserve_now(accounts, device, bytes)
        .map_err(|refusal| accounts.refuse(call, device, &refusal))
}

/// Reserves room for the context of a process whose runtime loads past the hooks: `least`, or
/// what such processes were seen to take. Without a record of a refusal.
pub(crate) fn try_reserve_loading(
    accounts: &Accounts,
    device: usize,
    least: u64,
) -> Result<Charge, Refusal> {
    tick(accounts);
    let ask = || {
        let bounds = accounts.bounds(device);
        accounts
            .container
            .region
            .reserve_loading(device, least, bounds)
    };
    let charge = ask().or_else(|refusal| patience::ask_again(accounts, device, refusal, ask))?;
    manners::note_pending(charge);
    Ok(charge)
}

/// Is there something that [`reserve_pageable`] does before it reserves?
#[inline(always)]
pub(crate) fn is_any_work_due(accounts: &Accounts) -> bool {
    accounts.process.is_any_awaited()
        || accounts.holdings().has_chores()
        || accounts.process.is_tick_due()
}

/// Now and then: looks after our slot, and whether the container is above its limit.
#[inline(always)]
pub(crate) fn tick(accounts: &Accounts) {
    if accounts.process.tick(accounts.container) {
        measure::look_for_excess(accounts);
    }
}

#[inline(always)]
pub(crate) fn try_reserve_now(
    accounts: &Accounts,
    device: usize,
    bytes: u64,
) -> Result<Charge, Refusal> {
    tick(accounts);
    let bounds = accounts.bounds(device);
    let region = &accounts.container.region;
    let charge = match region.reserve_at_once(device, bytes, bounds) {
        Some(charge) => charge,
        None => reserve_patiently(accounts, device, bytes)?,
    };
    manners::note_pending(charge);
    Ok(charge)
}

/// The rest of [`try_reserve_now`] where there is no room at once.
#[cold]
#[inline(never)]
fn reserve_patiently(accounts: &Accounts, device: usize, bytes: u64) -> Result<Charge, Refusal> {
    let ask = || {
        let bounds = accounts.bounds(device);
        accounts.container.region.reserve(device, bytes, bounds)
    };
    ask().or_else(|refusal| patience::ask_again(accounts, device, refusal, ask))
}

/// Reserves room for what the driver can also give as managed memory. Where the container has a
/// share of the device that is smaller than its limit, there is room past the share, too; the
/// charge says which it is.
#[inline(always)]
pub(crate) fn reserve_pageable(
    accounts: &Accounts,
    call: &str,
    device: usize,
    bytes: u64,
) -> Result<Charge, CuResult> {
    if accounts.process.is_any_awaited() {
        known_contexts::loaded(accounts, device);
    }
    if accounts.holdings().has_chores() {
        do_chores(accounts);
    }
    tick(accounts);
    let bounds = accounts.bounds(device);
    let region = &accounts.container.region;
    let Some(charge) = region.reserve_at_once(device, bytes, bounds) else {
        return reserve_pageable_patiently(accounts, call, device, bytes);
    };
    manners::note_pending(charge);
    Ok(charge)
}

/// The rest of [`reserve_pageable`] where there is no room at once.
#[cold]
#[inline(never)]
fn reserve_pageable_patiently(
    accounts: &Accounts,
    call: &str,
    device: usize,
    bytes: u64,
) -> Result<Charge, CuResult> {
    let ask = || {
        let bounds = accounts.bounds(device);
        match bounds.resident {
            u64::MAX => accounts.container.region.reserve(device, bytes, bounds),
            _ => reserve_past(accounts, device, bytes, bounds),
        }
    };
    match ask().or_else(|refusal| patience::ask_again(accounts, device, refusal, ask)) {
        Ok(charge) => {
            manners::note_pending(charge);
            Ok(charge)
        }
        Err(refusal) => try_once_more(accounts, device, bytes, refusal)
            .map_err(|refusal| accounts.refuse(call, device, &refusal)),
    }
}

#[inline(never)]
fn reserve_past(
    accounts: &Accounts,
    device: usize,
    bytes: u64,
    bounds: Bounds,
) -> Result<Charge, Refusal> {
    let pages = accounts.process.is(device, Fact::Pages, || {
        let ordinal = accounts.ordinal_of(device)?;
        let pages = query::device_attribute(ordinal, query::CONCURRENT_MANAGED_ACCESS)?;
        if pages == 0 {
            line!(
                Warn,
                "device {device}: no memory past the share of {}: it does not page managed memory",
                bounds.resident
            );
        }
        Some(pages != 0)
    });
    let region = &accounts.container.region;
    if pages {
        region.reserve_pageable(device, bytes, bounds)
    } else {
        region.reserve(device, bytes, bounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_may_reach_a_bound_and_not_pass_it() {
        for (used, limit, oversubscribed, resident, expected) in [
            (100, 100, 0, 0, None),
            (101, 100, 0, 0, Some((100, 101, Why::Full))),
            // No limit.
            (u64::MAX, 0, 0, 0, None),
            // 60 of the device's own memory, and 40 past that share.
            (100, 100, 40, 60, None),
            (100, 100, 39, 60, Some((60, 61, Why::NotPageable))),
            (100, 0, 39, 60, Some((60, 61, Why::NotPageable))),
            // The limit is named first where both are passed.
            (101, 100, 0, 60, Some((100, 101, Why::Full))),
            // Charges that another process lowers meanwhile.
            (10, 100, 40, 60, None),
        ] {
            let found = passed(used, limit, || oversubscribed, resident);
            assert_eq!(
                found, expected,
                "{used} {limit} {oversubscribed} {resident}"
            );
        }
    }
}
