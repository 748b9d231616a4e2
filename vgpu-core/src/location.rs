//! Where memory that a program asks for by location will be. Values in, values out, but for the two
//! questions to the books.

use core::sync::atomic::{AtomicU32, Ordering};

use cuda_api::CuMemLocation;

use crate::books::{Books, Place};
use crate::log::line;

/// What a `CUmemLocation` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// No device's memory: nothing, or the machine's.
    Host,
    /// Memory of the device with this ordinal.
    Device(i32),
    /// Memory of a device, by a kind of location that a later driver has; the ordinal, if the number
    /// beside it can be one.
    Later(Option<i32>),
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const DEVICE: u32 = 1;

/// What is not the machine's is a device's. Later drivers put a device (one byte) and a part of it (the
/// next byte) where the ordinal of a plain device stands.
pub(crate) fn location(of: CuMemLocation) -> Location {
    match of.kind {
        DEVICE => Location::Device(of.id),
        // `…_NONE`, `…_HOST`, `…_HOST_NUMA` and `…_HOST_NUMA_CURRENT`.
        0 | 2..=4 => Location::Host,
        _ => Location::Later((of.id >> 16 == 0).then_some(of.id & 0xff)),
    }
}

/// Kinds of location that were told of, a bit each.
static TOLD: AtomicU32 = AtomicU32::new(0);

/// The device that memory at this location is charged to. Where the location does not tell, it is the
/// current context's.
pub(crate) fn place(books: &Books, of: CuMemLocation) -> Place {
    let ordinal = match location(of) {
        Location::Host => return Place::Elsewhere,
        Location::Device(ordinal) => return books.of_ordinal(ordinal),
        Location::Later(ordinal) => ordinal,
    };
    let bit = 1 << (of.kind % 32);
    // Relaxed: guards no other memory.
    if TOLD.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        line!(
            Warn,
            "memory location of kind {}: taken for memory of a device",
            of.kind
        );
    }
    match ordinal.map(|ordinal| books.of_ordinal(ordinal)) {
        Some(place @ Place::Device { .. }) => place,
        _ => books.here(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: u32, id: i32) -> Location {
        location(CuMemLocation { kind, id })
    }

    #[test]
    fn only_the_host_is_no_device() {
        assert_eq!(of(1, 3), Location::Device(3));
        for kind in [0, 2, 3, 4] {
            assert_eq!(of(kind, 1), Location::Host, "kind {kind}");
        }
        for kind in [5, 6, 7, 1000, u32::MAX] {
            assert_eq!(of(kind, 1), Location::Later(Some(1)), "kind {kind}");
        }
    }

    #[test]
    fn a_later_location_names_its_device_in_one_byte() {
        // Device 2, part 3 of it.
        assert_eq!(of(6, 0x0302), Location::Later(Some(2)));
        // `CU_DEVICE_INVALID`.
        assert_eq!(of(5, -2), Location::Later(None));
        assert_eq!(of(5, i32::MAX), Location::Later(None));
    }
}
