//! Rules: stream-ordered memory. A pool grows in chunks and shrinks when it likes, so what is charged
//! is what the driver says the pool holds: a chunk is reserved before the call, the pool is settled
//! after it and at every synchronisation. Freed memory gives room once the driver reports that the pool has it back.
//! A captured call belongs to a graph (`graphs.rs`).

use core::sync::atomic::Ordering;

use cuda_api::{
    CuDevice, CuDevicePtr, CuMemLocation, CuMemPoolProps, CuMemoryPool, CuResult, CuStream,
};
use vgpu_abi::region::{Charge, Kind, Refusal, Why};

use crate::base::lock;
use crate::base::log::line;
use crate::driver::device::Device;
use crate::driver::query;
use crate::figures::room;
use crate::figures::sizes::{self, size};
use crate::guest::border::{InPtr, OutPtr};
use crate::guest::manners::Verdict;
use crate::holdings::location::{self, Lies};
use crate::holdings::pool_charges::{
    DEAD, DENIED, HERE, IMPORTED, NO_DEVICE, enter, find, finish, is_accounted, is_empty, leave,
    region_index, settle, settle_held,
};
use crate::holdings::{deferred_free_charges, graph_charges, locate, requests};
use crate::state::accounts::{self, Accounts, Destination};
use crate::state::entries::Pointer;
use crate::state::holdings::{CHORE_DEFERRED_FREES, CHORE_POOLS, PoolCharge};
use crate::state::standing::{self, accounts};

/// An allocation out of a pool.
#[derive(Clone, Copy)]
pub(crate) struct Drawing {
    /// `None`: the container has no room for a chunk, but the pool has some for the request.
    charge: Option<Charge>,
    device: usize,
    /// `None`: the pool cannot be asked what it holds.
    pool: Option<&'static PoolCharge>,
    bytes: u64,
}

pub(crate) fn before_alloc(
    call: &str,
    bytes: usize,
    pool: Option<CuMemoryPool>,
    stream: CuStream,
) -> Verdict<Drawing> {
    let accounts = accounts!(Memory);
    if bytes == 0 {
        return Verdict::Pass;
    }
    let (captured, source) = query::relaxed(|| {
        let captured = query::is_capturing(stream);
        (
            captured,
            if captured {
                PoolSource::Uncharged
            } else {
                source_of(&accounts, pool, stream)
            },
        )
    });
    if captured {
        graph_charges::note_memory_node(&accounts);
        return Verdict::Pass;
    }
    let bytes = size(bytes);
    match source {
        PoolSource::Uncharged => Verdict::Pass,
        PoolSource::Denied => Verdict::Refuse(CuResult::NOT_PERMITTED),
        PoolSource::Gone => Verdict::Refuse(CuResult::INVALID_VALUE),
        PoolSource::Pool { device, pool } => draw(&accounts, call, device, pool, bytes),
        PoolSource::Apart(device) => draw_apart(&accounts, call, device, bytes),
        PoolSource::NoMemory(device) => {
            line!(Error, "{call}: no memory for the charges of a pool");
            let refusal = Refusal {
                limit: accounts.process.memory_limit(accounts.container, device),
                used: accounts.container.region.used(device),
                asked: bytes,
                unaccounted: 0,
                why: Why::Closed,
            };
            Verdict::Refuse(accounts.refuse(call, device, &refusal))
        }
    }
}

enum PoolSource {
    /// A pool that can be asked what it holds.
    Pool {
        device: usize,
        pool: &'static PoolCharge,
    },
    /// Memory of a pool that cannot: each allocation is charged by itself.
    Apart(usize),
    /// Memory that is not charged.
    Uncharged,
    /// A device that the container may not use.
    Denied,
    /// A pool that its owner has destroyed.
    Gone,
    /// There is no memory to account for the pool.
    NoMemory(usize),
}

fn source_of(accounts: &Accounts, pool: Option<CuMemoryPool>, stream: CuStream) -> PoolSource {
    if let Some(handle) = pool
        && let Some(known) = find(accounts, handle as u64)
        && let Some(source) = source(known)
    {
        return source;
    }
    let Some(context) = query::stream_context(stream) else {
        return PoolSource::Uncharged;
    };
    let device = match locate::of_context(accounts, context) {
        Destination::Device { device, .. } => device,
        Destination::Elsewhere => return PoolSource::Uncharged,
        Destination::Denied => return PoolSource::Denied,
    };
    let known = match pool {
        Some(handle) => {
            let handle = handle as u64;
            match find(accounts, handle) {
                Some(known) => Some(known),
                // The driver itself refuses a handle that is no pool.
                None if query::pool_reserved(handle).is_none() => return PoolSource::Uncharged,
                None => {
                    let owner = device_of(accounts, handle, device);
                    enter(accounts, handle, owner)
                }
            }
        }
        None => {
            let handle = query::context_ordinal(context).and_then(query::device_pool);
            let Some(handle) = handle else {
                return PoolSource::Apart(device);
            };
            find(accounts, handle).or_else(|| enter(accounts, handle, region_index(device)))
        }
    };
    let Some(known) = known else {
        return PoolSource::NoMemory(device);
    };
    source(known).unwrap_or_else(|| {
        settle_down(accounts, known, device);
        PoolSource::Pool {
            device,
            pool: known,
        }
    })
}

/// Where a pool's entry says that its allocations are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolPlace {
    /// To this device of the region.
    On(usize),
    /// To the stream's device.
    OfStream,
    /// Nowhere.
    Uncharged,
    /// The container may not use the device.
    Denied,
    /// The program has destroyed the pool.
    Gone,
}

/// By the words `device` and `is_going` of its entry.
fn pool_place(device: u32, is_going: bool) -> PoolPlace {
    match device {
        _ if is_going => PoolPlace::Gone,
        NO_DEVICE => PoolPlace::Uncharged,
        DENIED => PoolPlace::Denied,
        HERE | IMPORTED => PoolPlace::OfStream,
        device => PoolPlace::On(device as usize),
    }
}

/// Where a pool's memory is; `None`: on the stream's device.
fn source(known: &'static PoolCharge) -> Option<PoolSource> {
    // Relaxed: written before the handle.
    let device = known.device.load(Ordering::Relaxed);
    let is_going = known.is_going.load(Ordering::Relaxed) != 0;
    match pool_place(device, is_going) {
        PoolPlace::On(device) => Some(PoolSource::Pool {
            device,
            pool: known,
        }),
        PoolPlace::OfStream => None,
        PoolPlace::Uncharged => Some(PoolSource::Uncharged),
        PoolPlace::Denied => Some(PoolSource::Denied),
        PoolPlace::Gone => Some(PoolSource::Gone),
    }
}

/// A pool whose device was not known lies on this one from here on.
fn settle_down(accounts: &Accounts, known: &PoolCharge, device: usize) {
    // Relaxed: the word says all.
    let found = known.device.compare_exchange(
        HERE,
        region_index(device),
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
    if found.is_ok() {
        // Relaxed: only says that a look is worth while.
        accounts
            .holdings()
            .pools_in_use
            .fetch_add(1, Ordering::Relaxed);
    }
}

/// The device of a pool that the library did not see being made: as the driver reports it, else the device whose own
/// pool it is, else the stream's device.
fn device_of(accounts: &Accounts, handle: u64, device: usize) -> u32 {
    if let Some((location, kind)) = query::pool_location(handle) {
        return at(accounts, location, kind);
    }
    if query::is_host_pool(handle) {
        return NO_DEVICE;
    }
    let count = query::device_count().unwrap_or(0);
    let own = own_ordinal(count, handle, query::default_pool, query::device_pool);
    own.map_or(region_index(device), |ordinal| on(accounts, ordinal))
}

/// The device that has this pool from the beginning, or takes from it at the moment.
fn own_ordinal(
    count: i32,
    handle: u64,
    default: impl Fn(i32) -> Option<u64>,
    current: impl Fn(i32) -> Option<u64>,
) -> Option<i32> {
    (0..count).find(|&ordinal| default(ordinal) == Some(handle) || current(ordinal) == Some(handle))
}

/// The value of `PoolCharge::device` for a location.
fn at(accounts: &Accounts, location: CuMemLocation, kind: u32) -> u32 {
    location::tell_if_unknown(location.kind);
    match location::lies(location, kind) {
        Lies::On(ordinal) => on(accounts, ordinal),
        Lies::OnHost => NO_DEVICE,
        Lies::Here => word_here(locate::here(accounts)),
    }
}

fn on(accounts: &Accounts, ordinal: i32) -> u32 {
    word_on(accounts.process.device(accounts.container, ordinal))
}

/// The value of `PoolCharge::device` for the current context. Without one, the first allocation tells the device.
fn word_here(here: Destination) -> u32 {
    match here {
        Destination::Device { device, .. } => region_index(device),
        Destination::Elsewhere => HERE,
        Destination::Denied => DENIED,
    }
}

/// The value of `PoolCharge::device` for a device that was named.
fn word_on(device: Device) -> u32 {
    match device {
        Device::Limited(device) => region_index(device),
        Device::Unlimited => NO_DEVICE,
        Device::Denied => DENIED,
    }
}

fn draw(
    accounts: &Accounts,
    call: &str,
    device: usize,
    pool: &'static PoolCharge,
    bytes: u64,
) -> Verdict<Drawing> {
    let drawing = |charge| {
        Verdict::Call(Drawing {
            charge,
            device,
            pool: Some(pool),
            bytes,
        })
    };
    match requests::try_reserve(accounts, device, room::grown_by(bytes)) {
        Ok(charge) => drawing(Some(charge)),
        Err(refusal) if room::may_pass_without_growth(&refusal) && promise(pool, bytes) => {
            drawing(None)
        }
        Err(refusal) => Verdict::Refuse(accounts.refuse(call, device, &refusal)),
    }
}

/// Whether the pool has room for `bytes`, by the driver's figures and beside what was promised to other allocations.
/// Then it is promised to this call.
fn promise(pool: &PoolCharge, bytes: u64) -> bool {
    let Some(_held) = pool.lock.hold_briefly() else {
        return false;
    };
    // Acquire: as in `find`.
    let handle = pool.handle.load(Ordering::Acquire);
    let Some(figures) = query::relaxed(|| query::pool_figures(handle)) else {
        return false;
    };
    let now = lock::milliseconds().unsigned_abs();
    let bytes = sizes::taken(bytes);
    let fits = figures.have_room(bytes, pool.promised.bytes(now));
    if fits {
        pool.promised.add(now, bytes);
    }
    fits
}

/// An allocation with a charge of its own.
fn draw_apart(accounts: &Accounts, call: &str, device: usize, bytes: u64) -> Verdict<Drawing> {
    match requests::reserve(accounts, call, device, sizes::taken(bytes)) {
        Ok(charge) => Verdict::Call(Drawing {
            charge: Some(charge),
            device,
            pool: None,
            bytes,
        }),
        Err(result) => Verdict::Refuse(result),
    }
}

pub(crate) fn after_alloc(
    drawing: Drawing,
    result: CuResult,
    call: &str,
    out: OutPtr<CuDevicePtr>,
    stream: CuStream,
) -> Option<CuResult> {
    let accounts = standing::opened()?;
    let given = out.read().filter(|_| result == CuResult::SUCCESS);
    let Some(pool) = drawing.pool else {
        after_alloc_apart(&accounts, &drawing, given);
        return None;
    };
    if drawing.charge.is_none()
        && let Some(_held) = pool.lock.hold()
    {
        pool.promised.take_back(sizes::taken(drawing.bytes));
    }
    let Some(pointer) = given else {
        if let Some(charge) = drawing.charge {
            accounts.refund(charge);
        }
        return None;
    };
    // The pool's growth is charged before its reservation is given back.
    let before = settle(&accounts, pool);
    let reserved = drawing.charge.map_or(0, |charge| charge.bytes());
    match (before, drawing.charge) {
        (Some(_), Some(charge)) => accounts.refund(charge),
        (None, Some(charge)) => {
            // The driver does not say what the pool holds: it holds what was reserved.
            accounts.confirm(charge, Kind::Buffer);
            // Relaxed: a sum that guards no other memory.
            pool.charged.fetch_add(reserved, Ordering::Relaxed);
        }
        (_, None) => {}
    }
    let was = before?;
    // Relaxed: a figure of the moment.
    let is = pool.charged.load(Ordering::Relaxed);
    if !has_outgrown(was, is, reserved) {
        return None;
    }
    // The pool has grown by more than was reserved. If that passes the limit, the allocation is freed again. Behind
    // work that does not end it stays, and so does its charge.
    let over = requests::above_limit(&accounts, drawing.device)?;
    // Acquire: as in `find`.
    let handle = pool.handle.load(Ordering::Acquire);
    query::relaxed(|| {
        query::free_async(pointer, stream);
        query::trim_pool(handle, was);
    });
    settle(&accounts, pool);
    let refusal = Refusal {
        asked: drawing.bytes,
        ..over
    };
    Some(accounts.refuse(call, drawing.device, &refusal))
}

/// Whether a pool has grown by more than was reserved for it, all in bytes.
fn has_outgrown(was: u64, is: u64, reserved: u64) -> bool {
    is.saturating_sub(was) > reserved
}

fn after_alloc_apart(accounts: &Accounts, drawing: &Drawing, given: Option<CuDevicePtr>) {
    let Some(charge) = drawing.charge else { return };
    let Some(pointer) = given else {
        return accounts.refund(charge);
    };
    accounts.confirm(charge, Kind::Buffer);
    let entry = Pointer::Loose {
        bytes: charge.bytes(),
        device: u8::try_from(drawing.device).unwrap_or(u8::MAX),
    };
    accounts.holdings().map.put(pointer.0, entry);
}

/// After a synchronisation: pools have given back what they do not keep.
pub(crate) fn after_sync(_result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    accounts.count(accounts::Group::Sync);
    let holdings = accounts.holdings();
    if holdings.has_chore(CHORE_DEFERRED_FREES) {
        deferred_free_charges::settle(&accounts);
    }
    // Relaxed: only says that a look is worth while.
    if holdings.pools_in_use.load(Ordering::Relaxed) == 0 {
        return;
    }
    for pool in holdings.pools.iter() {
        // Acquire: as in `find`. Relaxed: an estimate.
        match pool.handle.load(Ordering::Acquire) {
            0 | DEAD => {}
            _ if pool.charged.load(Ordering::Relaxed) > 0 => {
                // Where another thread holds it, that one settles it.
                if let Some(held) = pool.lock.hold_briefly() {
                    settle_held(&accounts, pool, &held);
                }
            }
            _ => {}
        }
    }
    if holdings.has_chore(CHORE_POOLS) {
        finish(&accounts);
    }
}

/// A pool on a device that the container may not use is not made.
pub(crate) fn before_create(properties: InPtr<CuMemPoolProps>) -> Verdict<()> {
    let accounts = accounts!(Memory);
    let Some(properties) = properties.read() else {
        return Verdict::Pass;
    };
    if let Lies::On(ordinal) = location::lies(properties.location, properties.kind)
        && on(&accounts, ordinal) == DENIED
        && query::device_uuids(ordinal).is_some()
    {
        return Verdict::Refuse(CuResult::INVALID_DEVICE);
    }
    Verdict::Call(())
}

pub(crate) fn after_create(
    (): (),
    result: CuResult,
    out: OutPtr<CuMemoryPool>,
    properties: InPtr<CuMemPoolProps>,
) -> Option<CuResult> {
    let accounts = standing::opened()?;
    let (pool, properties) = (out.read()?, properties.read()?);
    if result != CuResult::SUCCESS {
        return None;
    }
    let device = at(&accounts, properties.location, properties.kind);
    if enter(&accounts, pool as u64, device).is_some() {
        return None;
    }
    line!(Error, "a pool is not made: no memory for its charges");
    query::destroy_pool(pool as u64);
    Some(CuResult::OUT_OF_MEMORY)
}

/// A pool of the driver's own was asked for.
pub(crate) fn after_get(
    result: CuResult,
    out: OutPtr<CuMemoryPool>,
    location: OutPtr<CuMemLocation>,
    kind: u32,
) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result == CuResult::SUCCESS
        && let (Some(pool), Some(location)) = (out.read(), location.read())
    {
        enter_unless_known(&accounts, pool as u64, location, kind);
    }
}

/// The same, of a device.
pub(crate) fn after_get_device(result: CuResult, out: OutPtr<CuMemoryPool>, device: CuDevice) {
    const PINNED: u32 = 1;
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result == CuResult::SUCCESS
        && let Some(pool) = out.read()
    {
        let location = CuMemLocation {
            kind: location::DEVICE,
            id: device.0,
        };
        enter_unless_known(&accounts, pool as u64, location, PINNED);
    }
}

fn enter_unless_known(accounts: &Accounts, handle: u64, location: CuMemLocation, kind: u32) {
    if handle > DEAD && find(accounts, handle).is_none() {
        // Where there is no memory for it, an allocation tries again, and is refused.
        enter(accounts, handle, at(accounts, location, kind));
    }
}

/// An imported pool is memory of the process that made it: allocations that are imported out of it are charged on
/// their own (`offers.rs`).
pub(crate) fn after_import(result: CuResult, out: OutPtr<CuMemoryPool>) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if let Some(pool) = out.read().filter(|_| result == CuResult::SUCCESS) {
        enter(&accounts, pool as u64, IMPORTED);
    }
}

/// What becomes of a pool that the program destroys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destroying {
    /// The driver destroys it.
    Now,
    /// The library has it destroyed once it is empty.
    Later,
    /// It was destroyed before.
    Gone,
    /// The driver refuses: a device keeps the pool that it has from the beginning.
    Kept,
}

/// `is_charged`: its memory is charged to a device of the region.
fn destroying(
    is_charged: bool,
    is_going: bool,
    is_default: impl FnOnce() -> bool,
    is_empty: impl FnOnce() -> bool,
) -> Destroying {
    if !is_charged {
        Destroying::Now
    } else if is_going {
        Destroying::Gone
    } else if is_default() {
        Destroying::Kept
    } else if is_empty() {
        Destroying::Now
    } else {
        Destroying::Later
    }
}

/// The pool's name is taken off before the call: after it another pool may have it. A destroyed pool cannot be asked
/// how much memory it holds, so the driver's pool stays until it is empty. For the program it is destroyed.
pub(crate) fn before_destroy(pool: CuMemoryPool) -> Verdict<&'static PoolCharge> {
    let accounts = accounts!(Memory);
    let handle = pool as u64;
    let Some(known) = find(&accounts, handle) else {
        return Verdict::Pass;
    };
    // Relaxed: the word says all.
    let device = known.device.load(Ordering::Relaxed);
    let is_going = known.is_going.load(Ordering::Relaxed) != 0;
    let is_charged = is_accounted(device);
    let ordinal = is_charged
        .then(|| accounts.ordinal_of(device as usize))
        .flatten();
    let is_default = || ordinal.and_then(query::default_pool) == Some(handle);
    match destroying(is_charged, is_going, is_default, || {
        is_empty(&accounts, known)
    }) {
        Destroying::Now => {}
        Destroying::Kept => return Verdict::Pass,
        Destroying::Gone => return Verdict::Refuse(CuResult::INVALID_VALUE),
        Destroying::Later => {
            query::relaxed(|| {
                query::keep_nothing(handle);
                if let Some(ordinal) = ordinal
                    && query::device_pool(ordinal) == Some(handle)
                {
                    query::use_default_pool(ordinal);
                }
            });
            // Relaxed: the word says all.
            known.is_going.store(1, Ordering::Relaxed);
            accounts.holdings().set_chore(CHORE_POOLS);
            return Verdict::Refuse(CuResult::SUCCESS);
        }
    }
    let Some(_held) = known.lock.hold() else {
        return Verdict::Pass;
    };
    // Release: as in `enter`.
    known.handle.store(DEAD, Ordering::Release);
    Verdict::Call(known)
}

pub(crate) fn after_destroy(known: &'static PoolCharge, result: CuResult, pool: CuMemoryPool) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result == CuResult::SUCCESS {
        leave(&accounts, known);
    } else {
        // Release: as in `enter`.
        known.handle.store(pool as u64, Ordering::Release);
    }
}

/// The pool was trimmed, or set to keep less.
pub(crate) fn after_change(result: CuResult, pool: CuMemoryPool) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result == CuResult::SUCCESS
        && let Some(known) = find(&accounts, pool as u64)
    {
        settle(&accounts, known);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn entry_of_a_pool_says_where_its_allocations_are_charged() {
        for (device, place) in [
            (0, PoolPlace::On(0)),
            (15, PoolPlace::On(15)),
            (HERE, PoolPlace::OfStream),
            (IMPORTED, PoolPlace::OfStream),
            (NO_DEVICE, PoolPlace::Uncharged),
            (DENIED, PoolPlace::Denied),
        ] {
            assert_eq!(pool_place(device, false), place);
            assert_eq!(pool_place(device, true), PoolPlace::Gone, "{place:?}");
        }
    }

    #[test]
    fn device_of_a_new_pool_is_the_named_one_or_the_current_contexts() {
        assert_eq!(word_on(Device::Limited(3)), 3);
        assert_eq!(word_on(Device::Unlimited), NO_DEVICE);
        assert_eq!(word_on(Device::Denied), DENIED);
        let device = Destination::Device {
            device: 3,
            owner: 1,
        };
        assert_eq!(word_here(device), 3);
        // The first allocation tells which device it is.
        assert_eq!(word_here(Destination::Elsewhere), HERE);
        assert_eq!(word_here(Destination::Denied), DENIED);
    }

    #[test]
    fn pool_that_the_library_did_not_see_belongs_to_the_device_that_has_it() {
        let of = |pools: [Option<u64>; 3]| {
            move |ordinal: i32| usize::try_from(ordinal).ok().and_then(|at| pools[at])
        };
        let default = of([Some(10), None, Some(12)]);
        let current = of([Some(10), Some(21), Some(22)]);
        let own = |handle| own_ordinal(3, handle, default, current);
        assert_eq!(own(10), Some(0));
        assert_eq!(own(21), Some(1));
        assert_eq!(own(12), Some(2));
        assert_eq!(own(22), Some(2));
        assert_eq!(own(11), None);
        assert_eq!(own_ordinal(0, 10, default, current), None);
    }

    #[test]
    fn pool_outgrows_its_reservation_by_one_byte_more() {
        assert!(!has_outgrown(100, 132, 32));
        assert!(has_outgrown(100, 133, 32));
        assert!(has_outgrown(100, 101, 0));
        assert!(!has_outgrown(100, 100, 0));
        // It has given memory back meanwhile.
        assert!(!has_outgrown(100, 40, 0));
    }

    #[test]
    fn pool_that_holds_memory_is_destroyed_later() {
        let check = |is_default: bool, is_empty: bool, expected| {
            assert_eq!(
                destroying(true, false, || is_default, || is_empty),
                expected
            );
        };
        check(false, true, Destroying::Now);
        check(false, false, Destroying::Later);
        check(true, true, Destroying::Kept);
        check(true, false, Destroying::Kept);
    }

    #[test]
    fn pool_is_destroyed_once() {
        let unasked = || unreachable!("a pool that is going is not trimmed for its owner");
        assert_eq!(destroying(true, true, unasked, unasked), Destroying::Gone);
    }

    #[test]
    fn pool_without_a_charge_is_the_drivers_business() {
        let unasked = || unreachable!("the driver is asked nothing");
        for is_going in [false, true] {
            let told = destroying(false, is_going, unasked, unasked);
            assert_eq!(told, Destroying::Now);
        }
    }

    proptest! {
        /// Every index that is no special word is charged, and only those.
        #[test]
        fn allocations_are_charged_to_the_devices_that_pools_are_accounted_on(
            device in prop_oneof![0..64_u32, IMPORTED - 2..=NO_DEVICE],
        ) {
            let place = pool_place(device, false);
            prop_assert_eq!(matches!(place, PoolPlace::On(_)), is_accounted(device));
        }
    }
}
