//! Pointers that this process was given: what ends when the driver has taken one back.

use core::sync::atomic::{AtomicU32, Ordering};

use cuda_api::CuDevicePtr;
use vgpu_abi::region::Kind;

use crate::base::map::{Entry, Space};
use crate::driver::query;
use crate::holdings::{descriptors, export_books, offer_books};
use crate::state::books::Books;
use crate::state::entries::what;

/// Has this process (or one that it was forked from) memory that is managed in place of the device's
/// own? Stands outside the wiped memory, so that whoever asks what a pointer is looks at nothing else.
pub(crate) static ANY_PAGED: AtomicU32 = AtomicU32::new(0);

pub(crate) fn any_paged() -> bool {
    // Relaxed: set before the pointer was given to anybody.
    ANY_PAGED.load(Ordering::Relaxed) != 0
}

/// The driver has taken it back.
pub(crate) fn forget(books: &Books, number: u64, entry: &Entry) {
    let device = usize::from(entry.device);
    match entry.what {
        what::SHARED => export_books::freed(books, number),
        what::OPENED => export_books::closed(books, number),
        what::OFFERED => offer_books::freed(books, number, entry),
        what::TAKEN => offer_books::ended(books, number, entry),
        what::OWN if entry.maps > 0 => descriptors::freed(books, number, entry),
        what::PAGED | what::MANAGED => {
            let region = &books.container.region;
            region.release_beyond(device, entry.bytes, Kind::Buffer);
        }
        _ => books
            .container
            .region
            .release(device, entry.bytes, Kind::Buffer),
    }
}

/// The entry of an allocation that is managed in place of the device's own memory, by any address in
/// it.
pub(crate) fn paged(books: &Books, address: CuDevicePtr) -> Option<Entry> {
    if !any_paged() {
        return None;
    }
    let base = query::relaxed(|| query::allocation_of(address))?;
    let entry = books.ledger().map.get(Space::Pointer, base)?;
    (entry.what == what::PAGED).then_some(entry)
}
