//! By which bytes memory was named to other processes, and what ends when it is freed or closed here.

use vgpu_abi::region::{Import, Kind, SharedKey};

use crate::base::map::{Entry, Space};
use crate::holdings::objects::{self, unhold};
use crate::state::books::Books;

/// A handle has four times sixteen bytes, and allocations begin at multiples of far more.
pub(crate) const PARTS: u64 = 4;

/// Remembers the bytes by which an allocation was named to other processes.
pub(crate) fn keep_handle(books: &Books, base: u64, handle: &[u8; 64]) {
    for (part, bytes) in (0..PARTS).zip(handle.chunks_exact(16)) {
        let (first, second) = bytes.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let entry = Entry {
            bytes: word(first),
            owner: word(second),
            ..Entry::default()
        };
        books.ledger().map.put(Space::IpcHandle, base | part, entry);
    }
}

/// See [`keep_handle`].
pub(crate) fn known_handle(books: &Books, base: u64) -> Option<[u8; 64]> {
    let mut handle = [0; 64];
    for (part, to) in (0..PARTS).zip(handle.chunks_exact_mut(16)) {
        let entry = books.ledger().map.get(Space::IpcHandle, base | part)?;
        let bytes = [entry.bytes.to_ne_bytes(), entry.owner.to_ne_bytes()];
        to.copy_from_slice(bytes.as_flattened());
    }
    Some(handle)
}

/// The handle names nothing any more.
pub(crate) fn forget_handle(books: &Books, base: u64) {
    for part in 0..PARTS {
        books.ledger().map.take(Space::IpcHandle, base | part);
    }
}

/// What was exported is freed here; others may hold it on.
pub(crate) fn freed(books: &Books, base: u64) {
    forget_handle(books, base);
    if let Some(key) = books.ledger().map.take(Space::SharedKey, base) {
        unhold(books, SharedKey([key.bytes, key.owner]));
    }
}

/// What was opened is opened no more.
pub(crate) fn closed(books: &Books, pointer: u64) {
    if let Some(import) = objects::take_import(books, objects::BY_POINTER, pointer) {
        ended(books, &import);
    }
}

pub(crate) fn ended(books: &Books, import: &Import) {
    if import.objects == 0 {
        let region = &books.container.region;
        region.release(import.first.device, import.least, Kind::Buffer);
    } else {
        objects::end_import(books, import);
    }
}
