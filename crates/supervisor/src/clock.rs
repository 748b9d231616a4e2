//! The clock that regions and targets are stamped with, and that the arbiter, the library and the command compare times
//! by.

use nix::time::{ClockId, clock_gettime};

/// The monotonic clock, nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let Ok(now) = clock_gettime(ClockId::CLOCK_MONOTONIC) else {
        return 0;
    };
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(now.tv_nsec()).unwrap_or(0))
}
