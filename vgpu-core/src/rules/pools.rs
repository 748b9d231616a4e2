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

/// Where a pool's memory is; `None`: on the stream's device.
fn source(known: &'static PoolCharge) -> Option<PoolSource> {
    // Relaxed: written before the handle.
    if known.is_going.load(Ordering::Relaxed) != 0 {
        return Some(PoolSource::Gone);
    }
    match known.device.load(Ordering::Relaxed) {
        NO_DEVICE => Some(PoolSource::Uncharged),
        DENIED => Some(PoolSource::Denied),
        HERE | IMPORTED => None,
        device => Some(PoolSource::Pool {
            device: device as usize,
            pool: known,
        }),
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
    let own = (0..count).find(|&ordinal| {
        query::default_pool(ordinal) == Some(handle) || query::device_pool(ordinal) == Some(handle)
    });
    own.map_or(region_index(device), |ordinal| on(accounts, ordinal))
}

/// The value of `PoolCharge::device` for a location.
fn at(accounts: &Accounts, location: CuMemLocation, kind: u32) -> u32 {
    location::tell_if_unknown(location.kind);
    match location::lies(location, kind) {
        Lies::On(ordinal) => on(accounts, ordinal),
        Lies::OnHost => NO_DEVICE,
        Lies::Here => match locate::here(accounts) {
            Destination::Device { device, .. } => region_index(device),
            Destination::Elsewhere => HERE,
            Destination::Denied => DENIED,
        },
    }
}

fn on(accounts: &Accounts, ordinal: i32) -> u32 {
    match accounts.process.device(accounts.container, ordinal) {
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
    if is.saturating_sub(was) <= reserved {
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
    if is_accounted(device) {
        // Relaxed: as above.
        if known.is_going.load(Ordering::Relaxed) != 0 {
            return Verdict::Refuse(CuResult::INVALID_VALUE);
        }
        let ordinal = accounts.ordinal_of(device as usize);
        if ordinal.is_some_and(|ordinal| query::default_pool(ordinal) == Some(handle)) {
            // The driver refuses that.
            return Verdict::Pass;
        }
        if !is_empty(&accounts, known) {
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
