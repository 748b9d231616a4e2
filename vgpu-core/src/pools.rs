//! Rules: stream-ordered memory. A pool grows in chunks and shrinks when it likes, so what is charged
//! is what the pool holds: a chunk is reserved before the call, the pool is settled after it and at
//! every synchronisation. What is captured is a graph's (`graphs.rs`). Nothing is held across the
//! driver's call.

use core::sync::atomic::Ordering;

use cuda_api::{CuDevicePtr, CuMemPoolProps, CuMemoryPool, CuResult, CuStream};
use vgpu_abi::region::{Charge, Kind};

use crate::books::{self, Books, Place, books, mapped, size};
use crate::border;
use crate::container::Device;
use crate::graphs;
use crate::guest::Verdict;
use crate::ledger::Pool;
use crate::lock::Held;
use crate::map::{Entry, Space};
use crate::memory::what;
use crate::query;

/// Pools grow by this much, or by a bigger request.
const CHUNK: u64 = 32 << 20;

/// A handle that no pool has: a destroyed one whose last allocation is still out.
const DEAD: u64 = 1;

/// A pool that is not a device's (host memory): never charged.
const NO_DEVICE: u32 = u32::MAX;

/// What a pool takes for a request that it has no room for.
pub(crate) fn grown_by(bytes: u64) -> u64 {
    if bytes <= CHUNK { CHUNK } else { mapped(bytes) }
}

/// An allocation out of a pool.
#[derive(Clone, Copy)]
pub(crate) struct Drawing {
    /// `None`: the container has no room for a chunk, but the pool has some for the request.
    charge: Option<Charge>,
    device: usize,
    /// The pool's place; `None`: there are more pools than we keep books of.
    pool: Option<usize>,
    bytes: u64,
}

pub(crate) fn before_alloc(
    call: &str,
    bytes: usize,
    pool: Option<CuMemoryPool>,
    stream: CuStream,
) -> Verdict<Drawing> {
    let books = books!(Memory);
    if bytes == 0 {
        return Verdict::Pass;
    }
    let (captured, source) = query::relaxed(|| {
        let captured = query::is_capturing(stream);
        (
            captured,
            if captured {
                Source::Nobody
            } else {
                source_of(&books, pool, stream)
            },
        )
    });
    if captured {
        graphs::note_memory_node(&books);
        return Verdict::Pass;
    }
    match source {
        Source::Nobody => Verdict::Pass,
        Source::Denied => Verdict::Refuse(CuResult::NOT_PERMITTED),
        Source::Pool { device, pool } => draw(&books, call, device, pool, size(bytes)),
    }
}

enum Source {
    Pool { device: usize, pool: Option<usize> },
    Nobody,
    Denied,
}

fn source_of(books: &Books, pool: Option<CuMemoryPool>, stream: CuStream) -> Source {
    if let Some(pool) = pool
        && let Some((place, known)) = find(books, pool as u64)
    {
        // Relaxed: written before the handle.
        return match known.device.load(Ordering::Relaxed) {
            NO_DEVICE => Source::Nobody,
            device => Source::Pool {
                device: device as usize,
                pool: Some(place),
            },
        };
    }
    let Some(context) = query::stream_context(stream) else {
        return Source::Nobody;
    };
    let device = match books.of_context(context) {
        Place::Device { device, .. } => device,
        Place::Elsewhere => return Source::Nobody,
        Place::Denied => return Source::Denied,
    };
    let handle = pool
        .map(|pool| pool as u64)
        .or_else(|| query::context_ordinal(context).and_then(query::device_pool));
    let Some(handle) = handle else {
        return Source::Pool { device, pool: None };
    };
    let pool = find(books, handle)
        .map(|(place, _)| place)
        .or_else(|| enter(books, handle, u32::try_from(device).unwrap_or(NO_DEVICE)));
    Source::Pool { device, pool }
}

fn find(books: &Books, handle: u64) -> Option<(usize, &'static Pool)> {
    books.ledger().pools.iter().enumerate().find(|(_, pool)| {
        // Acquire: the other words were written before the handle.
        pool.handle.load(Ordering::Acquire) == handle
    })
}

/// Begins books of a pool.
fn enter(books: &Books, handle: u64, device: u32) -> Option<usize> {
    let ledger = books.ledger();
    let _held = ledger.pools_lock.hold()?;
    if let Some((place, _)) = find(books, handle) {
        return Some(place);
    }
    let (place, pool) = find(books, 0)?;
    // Relaxed: the handle publishes them.
    pool.device.store(device, Ordering::Relaxed);
    pool.charged.store(0, Ordering::Relaxed);
    pool.given.store(0, Ordering::Relaxed);
    pool.destroyed.store(0, Ordering::Relaxed);
    // Release: whoever sees the handle sees the rest.
    pool.handle.store(handle, Ordering::Release);
    if device != NO_DEVICE {
        // Relaxed: only says that a look is worth while.
        ledger.pools_in_use.fetch_add(1, Ordering::Relaxed);
    }
    Some(place)
}

fn draw(
    books: &Books,
    call: &str,
    device: usize,
    pool: Option<usize>,
    bytes: u64,
) -> Verdict<Drawing> {
    let Some(place) = pool else {
        return match books.reserve(call, device, books::taken(bytes)) {
            Ok(charge) => Verdict::Call(Drawing {
                charge: Some(charge),
                device,
                pool,
                bytes,
            }),
            Err(result) => Verdict::Refuse(result),
        };
    };
    match books.try_reserve(device, grown_by(bytes)) {
        Ok(charge) => Verdict::Call(Drawing {
            charge: Some(charge),
            device,
            pool,
            bytes,
        }),
        Err(refusal) => {
            let room = books.ledger().pools.get(place).is_some_and(|pool| {
                // Relaxed: an estimate; the pool is settled after the call.
                let charged = pool.charged.load(Ordering::Relaxed);
                charged.saturating_sub(pool.given.load(Ordering::Relaxed)) >= bytes
            });
            if room {
                return Verdict::Call(Drawing {
                    charge: None,
                    device,
                    pool,
                    bytes,
                });
            }
            Verdict::Refuse(books.refuse(call, device, &refusal))
        }
    }
}

pub(crate) fn after_alloc(
    drawing: Drawing,
    result: CuResult,
    call: &str,
    out: *mut CuDevicePtr,
    stream: CuStream,
) -> Option<CuResult> {
    let books = books::opened()?;
    let Drawing {
        charge,
        device,
        pool,
        bytes,
    } = drawing;
    let given = border::read(out).filter(|_| result == CuResult::SUCCESS);
    let Some(pointer) = given else {
        if let Some(charge) = charge {
            books.refund(charge);
        }
        return None;
    };
    let entry = Entry {
        bytes,
        device: u8::try_from(device).unwrap_or(u8::MAX),
        ..Entry::default()
    };
    let Some((place, known)) = pool.and_then(|at| Some((at, books.ledger().pools.get(at)?))) else {
        let charge = charge?;
        books.confirm(charge, Kind::Buffer);
        let loose = Entry {
            bytes: charge.bytes(),
            what: what::LOOSE,
            ..entry
        };
        books.ledger().map.put(Space::Pointer, pointer.0, loose);
        return None;
    };
    // Relaxed: a sum that guards no other memory.
    known.given.fetch_add(bytes, Ordering::Relaxed);
    let entry = Entry {
        owner: place as u64,
        what: what::POOL,
        ..entry
    };
    books.ledger().map.put(Space::Pointer, pointer.0, entry);
    let Some(charge) = charge else {
        return keep_or_undo(&books, call, known, &entry, pointer, stream);
    };
    // What the pool grew by is charged before what was reserved for it is given back.
    settle(&books, known);
    books.refund(charge);
    None
}

/// The pool was thought to have room. If it has grown all the same, and the container has no room
/// for that, the allocation goes back.
fn keep_or_undo(
    books: &Books,
    call: &str,
    pool: &Pool,
    entry: &Entry,
    pointer: CuDevicePtr,
    stream: CuStream,
) -> Option<CuResult> {
    // Relaxed: an estimate, as before.
    let charged = pool.charged.load(Ordering::Relaxed);
    let handle = pool.handle.load(Ordering::Relaxed);
    let holds = query::relaxed(|| query::pool_bytes(handle, query::POOL_RESERVED))?;
    if holds <= charged {
        settle(books, pool);
        return None;
    }
    let device = usize::from(entry.device);
    match books.reserve(call, device, holds - charged) {
        Ok(charge) => {
            settle(books, pool);
            books.refund(charge);
            None
        }
        Err(refused) => {
            books.ledger().map.take(Space::Pointer, pointer.0);
            // Relaxed: a sum that guards no other memory.
            pool.given.fetch_sub(entry.bytes, Ordering::Relaxed);
            query::relaxed(|| {
                query::free_async(pointer, stream);
                query::trim_pool(handle, charged);
            });
            settle(books, pool);
            Some(refused)
        }
    }
}

/// An allocation went back to its pool, which may keep the memory.
pub(crate) fn given_back(books: &Books, entry: &Entry) {
    let Some(pool) = usize::try_from(entry.owner)
        .ok()
        .and_then(|at| books.ledger().pools.get(at))
    else {
        return;
    };
    // Relaxed: a sum that guards no other memory.
    let before = pool.given.fetch_sub(entry.bytes, Ordering::Relaxed);
    // Acquire: see `before_destroy`.
    if pool.destroyed.load(Ordering::Acquire) != 0 && before <= entry.bytes {
        leave(books, pool);
    }
}

/// What the pool holds now is what it is charged.
pub(crate) fn settle(books: &Books, pool: &Pool) {
    if let Some(held) = pool.lock.hold() {
        settle_held(books, pool, &held);
    }
}

fn settle_held(books: &Books, pool: &Pool, _held: &Held<'_>) {
    // Acquire: as in `find`.
    let handle = pool.handle.load(Ordering::Acquire);
    // Relaxed: under the lock, as all below.
    let device = pool.device.load(Ordering::Relaxed);
    if handle <= DEAD || device == NO_DEVICE || pool.destroyed.load(Ordering::Relaxed) != 0 {
        return;
    }
    let asked = query::relaxed(|| query::pool_bytes(handle, query::POOL_RESERVED));
    let Some(holds) = asked else { return };
    let was = pool.charged.swap(holds, Ordering::Relaxed);
    if was != holds {
        books
            .container
            .region
            .adjust(device as usize, Kind::Buffer, was, holds);
    }
}

/// Settles the pools of a device.
pub(crate) fn settle_device(books: &Books, device: usize) {
    // Relaxed: only says that a look is worth while.
    if books.ledger().pools_in_use.load(Ordering::Relaxed) == 0 {
        return;
    }
    for pool in &books.ledger().pools {
        // Acquire: as in `find`.
        if pool.handle.load(Ordering::Acquire) > DEAD
            && pool.device.load(Ordering::Relaxed) as usize == device
        {
            settle(books, pool);
        }
    }
}

/// After a synchronisation: pools have given back what they do not keep.
pub(crate) fn after_sync(_result: CuResult) {
    let Some(books) = books::opened() else { return };
    books.count(books::Group::Sync);
    // Relaxed: only says that a look is worth while.
    if books.ledger().pools_in_use.load(Ordering::Relaxed) == 0 {
        return;
    }
    for pool in &books.ledger().pools {
        // Acquire: as in `find`. Relaxed: an estimate.
        match pool.handle.load(Ordering::Acquire) {
            0 | DEAD => {}
            _ if pool.charged.load(Ordering::Relaxed) > 0 => {
                // Whoever holds it settles it just now.
                if let Some(held) = pool.lock.hold_briefly() {
                    settle_held(&books, pool, &held);
                }
            }
            _ => {}
        }
    }
}

pub(crate) fn after_create(
    result: CuResult,
    out: *mut CuMemoryPool,
    properties: *const CuMemPoolProps,
) {
    let Some(books) = books::opened() else { return };
    let (Some(pool), Some(properties)) = (border::read(out), border::read(properties)) else {
        return;
    };
    if result != CuResult::SUCCESS {
        return;
    }
    let device = match properties.location.kind {
        query::DEVICE => match books
            .process
            .device(books.container, properties.location.id)
        {
            Device::Limited(device) => u32::try_from(device).unwrap_or(NO_DEVICE),
            Device::Unlimited | Device::Denied => NO_DEVICE,
        },
        _ => NO_DEVICE,
    };
    enter(&books, pool as u64, device);
}

/// An imported pool is memory of whoever made it.
pub(crate) fn after_import(result: CuResult, out: *mut CuMemoryPool) {
    let Some(books) = books::opened() else { return };
    if let Some(pool) = border::read(out).filter(|_| result == CuResult::SUCCESS) {
        enter(&books, pool as u64, NO_DEVICE);
    }
}

/// The pool's name is taken off before the call: after it another pool may have it.
pub(crate) fn before_destroy(pool: CuMemoryPool) -> Verdict<usize> {
    let books = books!(Memory);
    let Some((place, known)) = find(&books, pool as u64) else {
        return Verdict::Pass;
    };
    settle(&books, known);
    let Some(_held) = known.lock.hold() else {
        return Verdict::Pass;
    };
    // Release: whoever gives its last allocation back sees what was charged.
    known.destroyed.store(1, Ordering::Release);
    known.handle.store(DEAD, Ordering::Release);
    Verdict::Call(place)
}

pub(crate) fn after_destroy(place: usize, result: CuResult, pool: CuMemoryPool) {
    let Some(books) = books::opened() else { return };
    let Some(known) = books.ledger().pools.get(place) else {
        return;
    };
    if result != CuResult::SUCCESS {
        // Release: as in `enter`.
        known.destroyed.store(0, Ordering::Release);
        known.handle.store(pool as u64, Ordering::Release);
        return;
    }
    // Relaxed: whoever gives the last one back meanwhile does this, too; it happens once.
    if known.given.load(Ordering::Relaxed) == 0 {
        leave(&books, known);
    }
}

/// The pool and all that came out of it are gone.
fn leave(books: &Books, pool: &Pool) {
    let Some(_held) = pool.lock.hold() else {
        return;
    };
    // Relaxed: under the lock.
    if pool.handle.load(Ordering::Relaxed) != DEAD {
        return;
    }
    let device = pool.device.load(Ordering::Relaxed);
    let charged = pool.charged.swap(0, Ordering::Relaxed);
    if device != NO_DEVICE {
        books
            .container
            .region
            .release(device as usize, charged, Kind::Buffer);
        books.ledger().pools_in_use.fetch_sub(1, Ordering::Relaxed);
    }
    // Release: the place is free again.
    pool.handle.store(0, Ordering::Release);
}

/// Trimmed, or told to keep less.
pub(crate) fn after_change(result: CuResult, pool: CuMemoryPool) {
    let Some(books) = books::opened() else { return };
    if result == CuResult::SUCCESS
        && let Some((_, known)) = find(&books, pool as u64)
    {
        settle(&books, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_grows_by_chunks_or_by_a_bigger_request() {
        assert_eq!(grown_by(1), 32 << 20);
        assert_eq!(grown_by(32 << 20), 32 << 20);
        assert_eq!(grown_by((32 << 20) + 1), 34 << 20);
    }
}
