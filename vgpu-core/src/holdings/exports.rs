//! The handles under which memory was exported to other processes, and the holds that end when it is freed or closed
//! here.

use vgpu_abi::region::{Import, Kind};

use crate::holdings::objects::{self, ImportOf, unhold};
use crate::state::accounts::Accounts;
use crate::state::entries::{IpcHandlePart, PointerName, TableName};

/// A handle has four times sixteen bytes, and allocations begin at multiples of far more.
pub(crate) const PARTS: u64 = 4;

/// Remembers the bytes by which an allocation was named to other processes.
pub(crate) fn keep_handle(accounts: &Accounts, base: u64, handle: &[u8; 64]) {
    let (parts, _) = handle.as_chunks();
    for (part, &bytes) in (0..PARTS).zip(parts) {
        accounts
            .holdings()
            .map
            .put(base | part, IpcHandlePart(bytes));
    }
}

/// See [`keep_handle`].
pub(crate) fn known_handle(accounts: &Accounts, base: u64) -> Option<[u8; 64]> {
    let mut handle = [0; 64];
    for (part, to) in (0..PARTS).zip(handle.chunks_exact_mut(16)) {
        let IpcHandlePart(bytes) = accounts.holdings().map.get(base | part)?;
        to.copy_from_slice(&bytes);
    }
    Some(handle)
}

/// The handle names nothing any more.
pub(crate) fn forget_handle(accounts: &Accounts, base: u64) {
    for part in 0..PARTS {
        accounts.holdings().map.take::<IpcHandlePart>(base | part);
    }
}

/// Memory that was exported is freed here; other processes may still hold it.
pub(crate) fn freed(accounts: &Accounts, base: u64) {
    forget_handle(accounts, base);
    if let Some(PointerName(TableName::Exported(key))) = accounts.holdings().map.take(base) {
        unhold(accounts, key);
    }
}

/// Memory that another process exported is closed here.
pub(crate) fn closed(accounts: &Accounts, pointer: u64) {
    if let Some(import) = objects::take_import(accounts, ImportOf::Pointer(pointer)) {
        ended(accounts, &import);
    }
}

pub(crate) fn ended(accounts: &Accounts, import: &Import) {
    if import.objects == 0 {
        let region = &accounts.container.region;
        region.release(import.first.device, import.least, Kind::Buffer);
    } else {
        objects::end_import(accounts, import);
    }
}
