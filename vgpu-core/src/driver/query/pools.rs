//! Memory pools.

use core::ffi::c_void;

use cuda_api::{CuDevice, CuMemLocation, CuMemoryPool};

use super::handle;
use super::ok;
use crate::driver::genuine::cuda;
use crate::figures::room::Figures;

/// The bytes that a pool keeps at a synchronisation (`CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`).
const POOL_THRESHOLD: u32 = 4;

/// A pool's memory, bytes (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`, `…_USED_MEM_CURRENT`).
const POOL_RESERVED: u32 = 5;

const POOL_USED: u32 = 7;

/// The properties of a pool, from driver 13.1 on (`CU_MEMPOOL_ATTR_ALLOCATION_TYPE`, `…_LOCATION_ID`,
/// `…_LOCATION_TYPE`).
const POOL_KIND: u32 = 9;

const POOL_LOCATION_ID: u32 = 11;

const POOL_LOCATION: u32 = 12;

/// The pool that `cuMemAllocAsync` takes from on this device.
pub(crate) fn device_pool(ordinal: i32) -> Option<u64> {
    let mut pool: CuMemoryPool = core::ptr::null_mut();
    // SAFETY: the driver writes to `pool` alone, a local of the type in the table of signatures.
    ok(unsafe { cuda::cuDeviceGetMemPool(&raw mut pool, CuDevice(ordinal)) })?;
    (!pool.is_null()).then_some(pool as u64)
}

/// The pool that a device has from the beginning.
pub(crate) fn default_pool(ordinal: i32) -> Option<u64> {
    let mut pool: CuMemoryPool = core::ptr::null_mut();
    // SAFETY: the driver writes to `pool` alone, a local of the type in the table of signatures.
    ok(unsafe { cuda::cuDeviceGetDefaultMemPool(&raw mut pool, CuDevice(ordinal)) })?;
    (!pool.is_null()).then_some(pool as u64)
}

/// Is it the pool of the host that the driver has from the beginning? Drivers before 13 have none.
pub(crate) fn is_host_pool(handle: u64) -> bool {
    const HOST: u32 = 2;
    const PINNED: u32 = 1;
    let mut pool: CuMemoryPool = core::ptr::null_mut();
    let mut location = CuMemLocation { kind: HOST, id: 0 };
    // SAFETY: the driver writes to `pool` and reads `location`, both locals of the types in the table of signatures.
    let asked = unsafe { cuda::cuMemGetDefaultMemPool(&raw mut pool, &raw mut location, PINNED) };
    ok(asked).is_some() && pool as u64 == handle
}

/// The value of a pool's attribute of 32 bits.
fn pool_word(pool: u64, attribute: u32) -> Option<u32> {
    // Room for a word of either width, whatever the driver takes it for.
    let mut value = [0u32; 2];
    let place: *mut c_void = value.as_mut_ptr().cast();
    // SAFETY: a pool that the driver knows, and room for a number.
    ok(unsafe { cuda::cuMemPoolGetAttribute(handle(pool), attribute, place) })?;
    value.first().copied()
}

/// Where a pool's memory lies and of which kind it is. Drivers before 13.1 do not say.
pub(crate) fn pool_location(pool: u64) -> Option<(CuMemLocation, u32)> {
    let kind = pool_word(pool, POOL_LOCATION)?;
    let id = pool_word(pool, POOL_LOCATION_ID)?.cast_signed();
    Some((CuMemLocation { kind, id }, pool_word(pool, POOL_KIND)?))
}

fn pool_bytes(pool: u64, attribute: u32) -> Option<u64> {
    let mut bytes = 0u64;
    let value: *mut c_void = (&raw mut bytes).cast();
    // SAFETY: the attribute is a 64-bit number, and there is room for one.
    ok(unsafe { cuda::cuMemPoolGetAttribute(handle(pool), attribute, value) })?;
    Some(bytes)
}

/// The memory that a pool holds of its device, bytes.
pub(crate) fn pool_reserved(pool: u64) -> Option<u64> {
    pool_bytes(pool, POOL_RESERVED)
}

/// The memory that a pool holds, and the part of it that is in use.
pub(crate) fn pool_figures(pool: u64) -> Option<Figures> {
    Some(Figures {
        used: pool_bytes(pool, POOL_USED)?,
        reserved: pool_bytes(pool, POOL_RESERVED)?,
    })
}

/// Sets a pool to keep nothing at a synchronisation.
pub(crate) fn keep_nothing(pool: u64) {
    let mut nothing = 0u64;
    let value: *mut c_void = (&raw mut nothing).cast();
    // SAFETY: the attribute is a 64-bit number, and there is one.
    let told = unsafe { cuda::cuMemPoolSetAttribute(handle(pool), POOL_THRESHOLD, value) };
    let _hint = told;
}

/// Makes a device's own pool its current one again.
pub(crate) fn use_default_pool(ordinal: i32) {
    if let Some(pool) = default_pool(ordinal) {
        // SAFETY: a pool that the driver named just now.
        let told = unsafe { cuda::cuDeviceSetMemPool(CuDevice(ordinal), handle(pool)) };
        let _hint = told;
    }
}

/// Destroys a pool that the program has destroyed.
pub(crate) fn destroy_pool(pool: u64) -> bool {
    // SAFETY: a pool of the driver, which its owner does not use any more.
    ok(unsafe { cuda::cuMemPoolDestroy(handle(pool)) }).is_some()
}

/// Trims a pool so that it keeps no more than this, bytes.
pub(crate) fn trim_pool(pool: u64, keep: u64) {
    let (Ok(pool), Ok(keep)) = (usize::try_from(pool), usize::try_from(keep)) else {
        return;
    };
    let pool: CuMemoryPool = core::ptr::with_exposed_provenance_mut(pool);
    // SAFETY: a pool of the driver.
    let trimmed = unsafe { cuda::cuMemPoolTrimTo(pool, keep) };
    let _hint = trimmed;
}
