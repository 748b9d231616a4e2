//! The handles by which memory was named to other processes, and the holds that end when it is freed or closed
//! here.

use vgpu_abi::region::{Import, Kind, SharedKey};

use crate::base::map::{Entry, Space};
use crate::holdings::objects::{self, unhold};
use crate::state::accounts::Accounts;

/// A handle has four times sixteen bytes, and allocations begin at multiples of far more.
pub(crate) const PARTS: u64 = 4;

/// Remembers the bytes by which an allocation was named to other processes.
pub(crate) fn keep_handle(accounts: &Accounts, base: u64, handle: &[u8; 64]) {
    for (part, bytes) in (0..PARTS).zip(handle.chunks_exact(16)) {
        let (first, second) = bytes.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let entry = Entry {
            bytes: word(first),
            owner: word(second),
            ..Entry::default()
        };
        accounts
            .holdings()
            .map
            .put(Space::IpcHandle, base | part, entry);
    }
}

/// See [`keep_handle`].
pub(crate) fn known_handle(accounts: &Accounts, base: u64) -> Option<[u8; 64]> {
    let mut handle = [0; 64];
    for (part, to) in (0..PARTS).zip(handle.chunks_exact_mut(16)) {
        let entry = accounts.holdings().map.get(Space::IpcHandle, base | part)?;
        let bytes = [entry.bytes.to_ne_bytes(), entry.owner.to_ne_bytes()];
        to.copy_from_slice(bytes.as_flattened());
    }
    Some(handle)
}

/// The handle names nothing any more.
pub(crate) fn forget_handle(accounts: &Accounts, base: u64) {
    for part in 0..PARTS {
        accounts.holdings().map.take(Space::IpcHandle, base | part);
    }
}

/// Memory that was exported is freed here; other processes may still hold it.
pub(crate) fn freed(accounts: &Accounts, base: u64) {
    forget_handle(accounts, base);
    if let Some(key) = accounts.holdings().map.take(Space::SharedKey, base) {
        unhold(accounts, SharedKey([key.bytes, key.owner]));
    }
}

/// Memory that another process exported is closed here.
pub(crate) fn closed(accounts: &Accounts, pointer: u64) {
    if let Some(import) = objects::take_import(accounts, objects::BY_POINTER, pointer) {
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
