//! Rules: memory of pools that processes name to each other. A named allocation has one entry in the region's table
//! of shared objects, and its pool is charged that much less. An import is found there by its name, or is charged in
//! full to the process that imports it, until that frees it.

use core::sync::atomic::Ordering;

use cuda_api::{CuDevicePtr, CuMemPoolPtrExportData, CuResult};
use vgpu_abi::region::{Family, Import, Kind, ShareError};

use crate::base::lock::LockGuard;
use crate::base::log::line;
use crate::driver::query;
use crate::figures::sizes::taken;
use crate::guest::border::OutPtr;
use crate::guest::manners::Verdict;
use crate::holdings::objects::{self, ImportOf, Objects};
use crate::holdings::pointers::Charged;
use crate::holdings::{exports, locate, pool_charges, requests};
use crate::rules::ipc;
use crate::state::accounts::{Accounts, Destination};
use crate::state::entries::{ObjectKind, ObjectName, Pointer, TableName, key_of};
use crate::state::holdings::PoolCharge;
use crate::state::standing::{self, accounts};

/// Pools give memory in steps of this many bytes. An import keeps no less than the allocation itself.
const PIECE: u64 = 512;

/// An allocation of a pool that is charged to a device of the container.
struct OfferedBlock {
    base: u64,
    pool: &'static PoolCharge,
    device: usize,
    bytes: u64,
}

fn piece(accounts: &Accounts, pointer: CuDevicePtr) -> Option<OfferedBlock> {
    let handle = query::relaxed(|| query::pool_of_pointer(pointer))?;
    let pool = pool_charges::find(accounts, handle)?;
    // Relaxed: entered before the handle.
    let device = pool.device.load(Ordering::Relaxed);
    let (base, bytes) =
        query::relaxed(|| query::allocation_of(pointer).zip(query::allocation_bytes(pointer)))?;
    Some(OfferedBlock {
        base,
        pool,
        device: pool_charges::is_accounted(device).then_some(device as usize)?,
        bytes: bytes.checked_next_multiple_of(PIECE).unwrap_or(u64::MAX),
    })
}

/// Memory that finds no place in the table of shared objects gets no name.
pub(crate) fn before_export(call: &str, pointer: CuDevicePtr) -> Verdict<()> {
    let accounts = accounts!(Memory);
    let is_known = accounts.holdings().map.get::<Pointer>(pointer.0).is_some();
    if !is_known
        && !accounts.container.region.can_share()
        && let Some(piece) = piece(&accounts, pointer)
    {
        return Verdict::Refuse(accounts.refuse_export(call, piece.device, piece.bytes));
    }
    Verdict::Call(())
}

/// Other processes may import it from now on: its charge moves to the shared table, where the last
/// holder carries it.
pub(crate) fn after_export(
    (): (),
    result: CuResult,
    call: &str,
    out: OutPtr<CuMemPoolPtrExportData>,
    pointer: CuDevicePtr,
) -> Option<CuResult> {
    let accounts = standing::opened()?;
    let name = out.read().filter(|_| result == CuResult::SUCCESS)?;
    // Memory of a pool that is not accounted for is charged by itself, and its imports are charged in full.
    let piece = piece(&accounts, pointer)?;
    let refuse = || {
        out.write(CuMemPoolPtrExportData { reserved: [0; 64] });
        Some(accounts.refuse_export(call, piece.device, piece.bytes))
    };
    let Some(held) = piece.pool.lock.hold() else {
        return refuse();
    };
    match accounts.holdings().map.get(piece.base) {
        Some(Pointer::Offered { .. }) => {
            // The driver need not write the same bytes again, and the others know the first ones.
            if let Some(first) =
                exports::known_handle(&accounts, piece.base).filter(|_| piece.base == pointer.0)
            {
                out.write(CuMemPoolPtrExportData { reserved: first });
            }
            None
        }
        Some(_) => None,
        None => match offer(&accounts, &piece, &held, &name) {
            Ok(()) => None,
            Err(error) => {
                line!(Warn, "{call}: refused: {error}");
                refuse()
            }
        },
    }
}

/// Moves the charge of an allocation from its pool, which the caller holds, to the shared table.
fn offer(
    accounts: &Accounts,
    piece: &OfferedBlock,
    held: &LockGuard<'_>,
    name: &CuMemPoolPtrExportData,
) -> Result<(), ShareError> {
    let OfferedBlock {
        base, pool, device, ..
    } = *piece;
    let _was = pool_charges::settle_held(accounts, pool, held);
    // Relaxed: under the pool's lock, as all below.
    let bytes = piece.bytes.min(pool.charged.load(Ordering::Relaxed));
    let key = Some(key_of(&name.reserved));
    let region = &accounts.container.region;
    let key = region.share_as(Family::POOL, key, device, bytes, Kind::Buffer)?;
    pool.charged.fetch_sub(bytes, Ordering::Relaxed);
    pool.offered.fetch_add(bytes, Ordering::Relaxed);
    let map = &accounts.holdings().map;
    let number = {
        let objects = Objects::lock(accounts);
        let number = objects.make_unnamed(device, bytes, ObjectKind::Exported);
        map.put(number, ObjectName(TableName::Exported(key)));
        number
    };
    let entry = Pointer::Offered {
        bytes,
        object: number,
        device: u8::try_from(device).unwrap_or(u8::MAX),
        pool: pool_charges::place_of(accounts, pool),
    };
    map.put(base, entry);
    exports::keep_handle(accounts, base, &name.reserved);
    Ok(())
}

/// Holds the memory before the driver imports it: the process that made it may die during the call. A
/// name that is not in the table is that of memory which no process of the container has charged.
pub(crate) fn before_import(
    call: &str,
    data: OutPtr<CuMemPoolPtrExportData>,
) -> Verdict<Option<Import>> {
    let accounts = accounts!(Memory);
    let Some(data) = data.read() else {
        return Verdict::Pass;
    };
    let key = key_of(&data.reserved);
    match accounts
        .container
        .region
        .begin_import(Family::POOL, Some(key))
    {
        Ok(import) if import.name.is_some() => Verdict::Call(Some(import)),
        Ok(import) => {
            objects::end_import(&accounts, &import);
            Verdict::Call(None)
        }
        Err(error) => {
            line!(Warn, "{call}: refused: {error}");
            Verdict::Refuse(CuResult::OUT_OF_MEMORY)
        }
    }
}

pub(crate) fn after_import(
    import: Option<Import>,
    result: CuResult,
    call: &str,
    out: OutPtr<CuDevicePtr>,
) -> Option<CuResult> {
    let accounts = standing::opened()?;
    let Some(pointer) = out.read().filter(|_| result == CuResult::SUCCESS) else {
        if let Some(import) = import {
            objects::end_import(&accounts, &import);
        }
        return None;
    };
    let (device, number) = match import {
        Some(import) => {
            let objects = Objects::lock(&accounts);
            let device = import.first.device;
            let number = objects.make_unnamed(device, import.first.bytes, ObjectKind::Imported);
            objects::keep_import(&accounts, ImportOf::Object(number), &import);
            (device, number)
        }
        None => match charged_in_full(&accounts, call, pointer) {
            Ok(charged) => charged?,
            Err(refused) => {
                query::relaxed(|| query::free_import(pointer.0));
                out.write(CuDevicePtr(0));
                return Some(refused);
            }
        },
    };
    keep(&accounts, pointer.0, device, number);
    None
}

/// Memory that is not charged in the container. `Ok(None)`: memory of a device without a limit.
fn charged_in_full(
    accounts: &Accounts,
    call: &str,
    pointer: CuDevicePtr,
) -> Result<Option<(usize, u64)>, CuResult> {
    let (ordinal, bytes) = query::relaxed(|| {
        (
            query::ordinal_of_pointer(pointer),
            query::allocation_bytes(pointer),
        )
    });
    let place = ordinal.map_or_else(
        || locate::here(accounts),
        |ordinal| accounts.of_ordinal(ordinal),
    );
    let device = match place {
        Destination::Device { device, .. } => device,
        Destination::Elsewhere => return Ok(None),
        Destination::Denied => return Err(CuResult::INVALID_DEVICE),
    };
    let charge = requests::reserve(accounts, call, device, taken(bytes.unwrap_or(u64::MAX)))?;
    accounts.confirm(charge, Kind::Buffer);
    let number = Objects::lock(accounts).make_unnamed(device, charge.bytes(), ObjectKind::Adopted);
    Ok(Some((device, number)))
}

/// The object is held by the pointer from here on.
fn keep(accounts: &Accounts, pointer: u64, device: usize, number: u64) {
    let map = &accounts.holdings().map;
    let device = u8::try_from(device).unwrap_or(u8::MAX);
    let entry = Pointer::Taken {
        times: 1,
        object: number,
        device,
    };
    let (before, kept) = map.put(pointer, entry);
    match before {
        // At the same address: a driver that counts imports wants as many frees.
        Some(Pointer::Taken {
            times,
            object,
            device,
        }) => {
            let again = Pointer::Taken {
                times: times.saturating_add(1),
                object,
                device,
            };
            map.put(pointer, again);
            Objects::lock(accounts).drop_hold(number);
        }
        Some(before) => before.forget(accounts, pointer),
        None if !kept => line!(
            Error,
            "an import stays charged until the end: no memory to remember it in"
        ),
        None => {}
    }
}

/// The last context of a device was destroyed, and with it all memory that own and imported pools gave there.
pub(crate) fn device_gone(accounts: &Accounts, device: usize) {
    ipc::forget_all(accounts, |pointer| match *pointer {
        Pointer::Offered { device: of, .. } if usize::from(of) == device => Some(*pointer),
        Pointer::Taken {
            device: of, object, ..
        } if usize::from(of) == device => Some(Pointer::Taken {
            // However often it was imported.
            times: 1,
            object,
            device: of,
        }),
        _ => None,
    });
}
