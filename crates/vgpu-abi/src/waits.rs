//! How long launches waited at the gate, and for what: one table for each container and device, which outlives the
//! container's processes. Owns the bounds of the lengths, the causes and their order.
//!
//! Only a launch that has waited writes here: one that goes at once touches none of these words.

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::{GateWaits, WAIT_CAUSES, WAIT_LENGTHS};

/// The longest wait of each length but the last, which has no bound, nanoseconds.
pub const WAIT_BOUNDS_NS: [u64; WAIT_LENGTHS - 1] = [
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// The cause for which a launch waits at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitCause {
    /// Credit, at the container's own cap.
    Cap,
    /// Credit, while the arbiter grants less than the cap: other containers work, or it is another one's turn.
    Grant,
    /// Work of its own process that is in flight.
    InFlight,
    /// Another launch of unknown cost.
    UnknownCost,
}

impl WaitCause {
    /// All, in the order of the words.
    pub const ALL: [Self; WAIT_CAUSES] =
        [Self::Cap, Self::Grant, Self::InFlight, Self::UnknownCost];

    /// Its word in metrics and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cap => "cap",
            Self::Grant => "grant",
            Self::InFlight => "in_flight",
            Self::UnknownCost => "unknown_cost",
        }
    }
}

/// The waits of a container on a device, as they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    /// Waits by length, none in two of them: see [`WAIT_BOUNDS_NS`].
    pub by_length: [u64; WAIT_LENGTHS],
    /// Time waited by cause, nanoseconds, summed over threads: see [`WaitCause::ALL`].
    pub ns_by_cause: [u64; WAIT_CAUSES],
}

impl Waits {
    /// Waits of every length.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.by_length.into_iter().fold(0, u64::saturating_add)
    }

    /// Time waited for every cause, nanoseconds.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.ns_by_cause.into_iter().fold(0, u64::saturating_add)
    }
}

/// Counts a wait that has ended.
pub(crate) fn count(counters: &GateWaits, ns_by_cause: [u64; WAIT_CAUSES]) {
    // Relaxed throughout: numbers for reports; they guard nothing.
    let add = |word: &AtomicU64, more: u64| {
        word.fetch_add(more, Ordering::Relaxed);
    };
    let sum_ns = ns_by_cause.into_iter().fold(0, u64::saturating_add);
    if let Some(waits) = counters.by_length.get(length_of(sum_ns)) {
        add(waits, 1);
    }
    for (word, ns) in counters.ns_by_cause.iter().zip(ns_by_cause) {
        // Most waits have one cause.
        if ns > 0 {
            add(word, ns);
        }
    }
}

/// Which length a wait counts as.
fn length_of(ns: u64) -> usize {
    WAIT_BOUNDS_NS.partition_point(|bound| *bound < ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters() -> GateWaits {
        GateWaits {
            by_length: std::array::from_fn(|_| AtomicU64::new(0)),
            ns_by_cause: std::array::from_fn(|_| AtomicU64::new(0)),
            reserved: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    fn read(counters: &GateWaits) -> Waits {
        // Relaxed: a test of one thread.
        let all = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Waits {
            by_length: counters.by_length.each_ref().map(all),
            ns_by_cause: counters.ns_by_cause.each_ref().map(all),
        }
    }

    #[test]
    fn a_wait_counts_in_the_first_length_that_holds_it() {
        for (ns, length) in [
            (0, 0),
            (100_000, 0),
            (100_001, 1),
            (1_000_000, 1),
            (9_999_999, 2),
            (1_000_000_001, 5),
            (10_000_000_000, 5),
            (10_000_000_001, 6),
            (u64::MAX, 6),
        ] {
            assert_eq!(length_of(ns), length, "{ns}");
        }
    }

    #[test]
    fn a_wait_counts_once_and_its_time_by_cause() {
        let counters = counters();

        count(&counters, [600_000, 500_000, 0, 0]);
        count(&counters, [0, 0, 0, 40_000]);

        let read = read(&counters);
        assert_eq!(read.by_length, [1, 0, 1, 0, 0, 0, 0]);
        assert_eq!(read.ns_by_cause, [600_000, 500_000, 0, 40_000]);
        assert_eq!((read.count(), read.sum_ns()), (2, 1_140_000));
    }

    #[test]
    fn absurd_numbers_make_no_sum_overflow() {
        let waits = Waits {
            by_length: [u64::MAX; WAIT_LENGTHS],
            ns_by_cause: [u64::MAX; WAIT_CAUSES],
        };

        assert_eq!((waits.count(), waits.sum_ns()), (u64::MAX, u64::MAX));
    }
}
