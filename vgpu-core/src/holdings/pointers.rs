//! Pointers that the driver gave to this process, and the charges that end when the driver has taken one back.

use core::sync::atomic::{AtomicU32, Ordering};

use cuda_api::CuDevicePtr;
use vgpu_abi::region::Kind;

use crate::base::map::Kept;
use crate::driver::query;
use crate::holdings::{descriptors, exports, offer_charges};
use crate::state::accounts::Accounts;
use crate::state::entries::{Array, External, Graphics, Pointer};

/// Has this process (or one that it was forked from) memory that is managed in place of the device's
/// own? Outside the memory that a fork wipes, so that a question about a pointer reads one word only.
pub(crate) static ANY_PAGED: AtomicU32 = AtomicU32::new(0);

pub(crate) fn any_paged() -> bool {
    // Relaxed: set before the program was given the pointer.
    ANY_PAGED.load(Ordering::Relaxed) != 0
}

/// Something whose charge ends when the driver takes it back.
pub(crate) trait Charged: Kept {
    /// The driver has taken it back.
    fn forget(&self, accounts: &Accounts, number: u64);
}

impl Charged for Pointer {
    #[inline(always)]
    fn forget(&self, accounts: &Accounts, number: u64) {
        if let Self::Own {
            bytes,
            device,
            descriptors: 0,
            ..
        } = *self
        {
            let region = &accounts.container.region;
            region.release(usize::from(device), bytes, Kind::Buffer);
        } else {
            self.forget_other(accounts, number);
        }
    }
}

impl Pointer {
    /// [`Charged::forget`] of all that is not plain memory.
    #[inline(never)]
    fn forget_other(&self, accounts: &Accounts, number: u64) {
        let region = &accounts.container.region;
        match *self {
            Self::Own {
                bytes,
                device,
                descriptors: 1..,
                ..
            } => descriptors::freed(accounts, number, device, bytes),
            Self::Own { bytes, device, .. }
            | Self::Loose { bytes, device }
            | Self::ManagedHere { bytes, device, .. } => {
                region.release(usize::from(device), bytes, Kind::Buffer);
            }
            Self::Paged { bytes, device, .. } | Self::Managed { bytes, device, .. } => {
                region.release_beyond(usize::from(device), bytes, Kind::Buffer);
            }
            Self::Exported { .. } => exports::freed(accounts, number),
            Self::Opened { .. } => exports::closed(accounts, number),
            Self::Offered {
                bytes,
                object,
                device,
                pool,
            } => {
                let pool = offer_charges::OfPool { device, pool };
                offer_charges::freed(accounts, number, pool, bytes, object);
            }
            Self::Taken { object, .. } => {
                if offer_charges::is_last(accounts, number, self) {
                    offer_charges::ended(accounts, object);
                }
            }
        }
    }
}

/// For kinds that are neither exported nor managed: the charge is in this process's slot.
macro_rules! plainly_charged {
    ($($kind:ty),*) => {
        $(impl Charged for $kind {
            fn forget(&self, accounts: &Accounts, _number: u64) {
                let region = &accounts.container.region;
                region.release(usize::from(self.device), self.bytes, Kind::Buffer);
            }
        })*
    };
}

plainly_charged!(Array, External, Graphics);

/// The device and the bytes of an allocation that is managed in place of the device's own memory, by any address
/// in it.
pub(crate) fn paged(accounts: &Accounts, address: CuDevicePtr) -> Option<(usize, u64)> {
    if !any_paged() {
        return None;
    }
    let base = query::relaxed(|| query::allocation_of(address))?;
    match accounts.holdings().map.get(base)? {
        Pointer::Paged { bytes, device, .. } => Some((usize::from(device), bytes)),
        _ => None,
    }
}
