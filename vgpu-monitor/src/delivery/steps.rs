//! Where a killed agent may stop. In tests a process ends itself at one of these places; elsewhere they are nothing.

/// A place between two changes of the disk.
#[cfg(not(test))]
#[inline]
pub(super) fn step() {}

#[cfg(test)]
pub(super) use armed::{arm, step};

#[cfg(test)]
mod armed {
    use std::sync::atomic::{AtomicI64, Ordering};

    static LEFT: AtomicI64 = AtomicI64::new(-1);

    /// This process ends at the step of this number, counted from 0; a negative number is never.
    pub(in crate::delivery) fn arm(steps: i64) {
        LEFT.store(steps, Ordering::Relaxed);
    }

    pub(in crate::delivery) fn step() {
        if LEFT.load(Ordering::Relaxed) >= 0 && LEFT.fetch_sub(1, Ordering::Relaxed) == 0 {
            // As a kill does: nothing is cleaned up.
            std::process::abort();
        }
    }
}
