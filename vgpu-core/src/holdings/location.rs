//! Where memory that a program asks for by location will be: one table for memory that is made apart,
//! for pools and for nodes of graphs. Values in, values out, except for what it asks the accounts.

use core::sync::atomic::{AtomicU32, Ordering};

use cuda_api::CuMemLocation;

use crate::base::log::line;
use crate::driver::query;
use crate::holdings::locate;
use crate::state::accounts::{Accounts, Destination};

/// The owner of the memory at a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lies {
    /// The device's with this ordinal.
    On(i32),
    /// A device's that the location does not name: the current context's.
    Here,
    /// The host's.
    OnHost,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(crate) const DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_NONE`, and of `HOST`, `HOST_NUMA` and `HOST_NUMA_CURRENT`.
const NONE: u32 = 0;
const HOST: core::ops::RangeInclusive<u32> = 2..=4;
/// `CU_MEM_LOCATION_TYPE_INVISIBLE`: no process may use the memory, and the number beside it is no device.
const INVISIBLE: u32 = 5;
/// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`: the lowest byte of the number is the device, the next
/// one a part of it, and the others are not set.
const LOCALITY_DOMAIN: u32 = 6;
/// `CU_MEM_ALLOCATION_TYPE_MANAGED`.
const MANAGED: u32 = 2;

/// Where memory of this location and allocation type lies. Managed memory moves to the device that uses
/// it, wherever it begins. An unknown location type counts as memory of a device, and the number beside it is
/// ignored.
pub(crate) fn lies(at: CuMemLocation, allocation: u32) -> Lies {
    match at.kind {
        DEVICE => Lies::On(at.id),
        LOCALITY_DOMAIN => Lies::On(at.id & 0xff),
        _ if allocation == MANAGED => Lies::Here,
        kind if kind == NONE || HOST.contains(&kind) => Lies::OnHost,
        _ => Lies::Here,
    }
}

/// Is it a location type that this release does not know?
fn is_unknown(kind: u32) -> bool {
    !(matches!(kind, DEVICE | NONE | INVISIBLE | LOCALITY_DOMAIN) || HOST.contains(&kind))
}

/// Kinds of location that the log has reported, a bit each.
static TOLD: AtomicU32 = AtomicU32::new(0);

/// Says once of each unknown kind what it is counted as.
pub(crate) fn tell_if_unknown(kind: u32) {
    let bit = 1 << (kind % 32);
    // Relaxed: guards no other memory.
    if is_unknown(kind) && TOLD.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        line!(
            Warn,
            "a location of type {kind}, which is not known here: its memory is charged to the current context's device"
        );
    }
}

/// The device that memory of this location and allocation type is charged to. If the location does not name the
/// device, it is the current context's; without a context it is the first device that has a limit.
pub(crate) fn place(accounts: &Accounts, at: CuMemLocation, allocation: u32) -> Destination {
    tell_if_unknown(at.kind);
    match lies(at, allocation) {
        Lies::OnHost => Destination::Elsewhere,
        Lies::On(ordinal) => accounts.of_ordinal(ordinal),
        Lies::Here if query::current_context().is_some() => locate::here(accounts),
        Lies::Here => first_limited(accounts),
    }
}

fn first_limited(accounts: &Accounts) -> Destination {
    let all = 0..query::device_count().unwrap_or(0);
    all.map(|ordinal| accounts.of_ordinal(ordinal))
        .find(|place| matches!(place, Destination::Device { .. }))
        .unwrap_or(Destination::Elsewhere)
}

/// The ordinal that a location names and that no device has: the driver refuses it itself.
pub(crate) fn names_no_device(at: CuMemLocation, allocation: u32) -> bool {
    matches!(lies(at, allocation), Lies::On(ordinal) if query::device_uuids(ordinal).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PINNED: u32 = 1;

    #[track_caller]
    fn check(kind: u32, id: i32, allocation: u32, expected: Lies) {
        let found = lies(CuMemLocation { kind, id }, allocation);
        assert_eq!(found, expected, "kind {kind}, number {id}");
    }

    #[test]
    fn a_device_is_named_by_its_ordinal() {
        check(DEVICE, 3, PINNED, Lies::On(3));
        check(DEVICE, 3, MANAGED, Lies::On(3));
        check(DEVICE, -1, PINNED, Lies::On(-1));
    }

    #[test]
    fn memory_is_the_hosts_only_where_the_location_says_so() {
        for kind in [NONE, 2, 3, 4] {
            check(kind, 1, PINNED, Lies::OnHost);
        }
    }

    #[test]
    fn managed_memory_without_a_device_is_the_current_contexts() {
        for kind in [NONE, 2, 3, 4, 5, 7, u32::MAX] {
            check(kind, 1, MANAGED, Lies::Here);
        }
    }

    #[test]
    fn a_locality_domain_names_its_device_in_one_byte() {
        // Device 2, domain 3 of it; then with bytes that nothing has set.
        check(LOCALITY_DOMAIN, 0x0302, PINNED, Lies::On(2));
        check(LOCALITY_DOMAIN, 0x7fff_0302, PINNED, Lies::On(2));
        check(LOCALITY_DOMAIN, -1, MANAGED, Lies::On(0xff));
    }

    #[test]
    fn an_unknown_kind_is_the_current_contexts_device() {
        for kind in [INVISIBLE, 7, 1000, u32::MAX] {
            for id in [-2, 0, 1, 0x0302, i32::MAX] {
                check(kind, id, PINNED, Lies::Here);
            }
        }
        assert!(is_unknown(7) && is_unknown(u32::MAX));
        assert!((0..=6).all(|kind| !is_unknown(kind)));
    }
}
