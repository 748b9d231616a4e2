//! How much the driver takes for what was asked: the steps that sizes are rounded up to. Calls nothing.

use core::sync::atomic::{AtomicU64, Ordering};

const SMALL_STEP: u64 = 512;
/// The step of rows of pitched memory and of arrays.
const ROW_STEP: u64 = 512;
/// The driver's granularity from 1 MiB on, and of everything that is mapped.
pub(crate) const STEP: u64 = 2 << 20;

/// The smallest granularity that a device of the driver has reported, bytes. A forked child has the same devices.
static GRANULARITY: AtomicU64 = AtomicU64::new(STEP);

/// A device's granularity is known.
pub(crate) fn note_granularity(bytes: u64) {
    // Relaxed: the word says all.
    GRANULARITY.fetch_min(bytes.max(SMALL_STEP), Ordering::Relaxed);
}

/// The smallest granularity that a device of the driver has reported, bytes.
pub(crate) fn granularity() -> u64 {
    // Relaxed: as above.
    GRANULARITY.load(Ordering::Relaxed)
}

/// The bytes that the driver takes for a plain allocation.
#[inline(always)]
pub(crate) fn taken(bytes: u64) -> u64 {
    // Relaxed: as above.
    taken_of(bytes, GRANULARITY.load(Ordering::Relaxed))
}

/// The same on a device of this granularity: steps of 2 MiB from 1 MiB on, below that the granularity's
/// steps from the granularity on, else steps of 512 bytes.
#[inline(always)]
fn taken_of(bytes: u64, granularity: u64) -> u64 {
    // A step that is known here needs no division.
    let taken = if bytes >= 1 << 20 {
        bytes.checked_next_multiple_of(STEP)
    } else if bytes >= granularity {
        bytes.checked_next_multiple_of(granularity)
    } else {
        bytes.checked_next_multiple_of(SMALL_STEP)
    };
    taken.unwrap_or(u64::MAX)
}

/// The bytes that the driver takes for mapped memory: steps of 2 MiB.
#[inline]
pub(crate) fn mapped(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(STEP).unwrap_or(u64::MAX)
}

/// A size of C as `u64`.
#[inline]
pub(crate) fn size(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The driver's step of rows.
pub(crate) fn row(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(ROW_STEP).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_takes() {
        for (asked, expected) in [
            (1, 512),
            (512, 512),
            (513, 1024),
            ((1 << 20) - 1, 1 << 20),
            (1 << 20, 2 << 20),
            ((2 << 20) + 1, 4 << 20),
            (u64::MAX, u64::MAX),
        ] {
            assert_eq!(taken_of(asked, STEP), expected, "{asked}");
        }
    }

    #[test]
    fn a_driver_of_small_steps_takes_small_memory_in_them() {
        for (asked, expected) in [
            (1, 512),
            ((64 << 10) - 1, 64 << 10),
            (64 << 10, 64 << 10),
            ((64 << 10) + 1, 128 << 10),
            ((1 << 20) - 1, 1 << 20),
            (1 << 20, 2 << 20),
            (u64::MAX, u64::MAX),
        ] {
            assert_eq!(taken_of(asked, 64 << 10), expected, "{asked}");
        }
    }
}
