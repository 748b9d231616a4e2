//! Pointers that this process was given: what ends when the driver has taken one back.

use core::sync::atomic::{AtomicU32, Ordering};

use cuda_api::CuDevicePtr;
use vgpu_abi::region::Kind;

use crate::base::map::{Entry, Space};
use crate::driver::query;
use crate::holdings::{descriptors, exports, offer_charges};
use crate::state::accounts::Accounts;
use crate::state::entries::what;

/// Has this process (or one that it was forked from) memory that is managed in place of the device's
/// own? Stands outside the wiped memory, so that a question about a pointer looks at nothing else.
pub(crate) static ANY_PAGED: AtomicU32 = AtomicU32::new(0);

pub(crate) fn any_paged() -> bool {
    // Relaxed: set before the program was given the pointer.
    ANY_PAGED.load(Ordering::Relaxed) != 0
}

/// The driver has taken it back.
pub(crate) fn forget(accounts: &Accounts, number: u64, entry: &Entry) {
    let device = usize::from(entry.device);
    match entry.what {
        what::SHARED => exports::freed(accounts, number),
        what::OPENED => exports::closed(accounts, number),
        what::OFFERED => offer_charges::freed(accounts, number, entry),
        what::TAKEN => offer_charges::ended(accounts, number, entry),
        what::OWN if entry.maps > 0 => descriptors::freed(accounts, number, entry),
        what::PAGED | what::MANAGED => {
            let region = &accounts.container.region;
            region.release_beyond(device, entry.bytes, Kind::Buffer);
        }
        _ => accounts
            .container
            .region
            .release(device, entry.bytes, Kind::Buffer),
    }
}

/// The entry of an allocation that is managed in place of the device's own memory, by any address in
/// it.
pub(crate) fn paged(accounts: &Accounts, address: CuDevicePtr) -> Option<Entry> {
    if !any_paged() {
        return None;
    }
    let base = query::relaxed(|| query::allocation_of(address))?;
    let entry = accounts.holdings().map.get(Space::Pointer, base)?;
    (entry.what == what::PAGED).then_some(entry)
}
