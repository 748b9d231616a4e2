//! How much memory a container holds beyond its charges. The driver's figure for all of its processes is
//! compared with the sum of the region's charges; the difference is taken off the container's limit. So a
//! tenant that zeroes or forges its region gains nothing that lasts.
//!
//! Values in, values out: never reads a clock, a file or the driver, and never charges one process for
//! another: it treats the container as a whole.

use std::collections::VecDeque;

/// A difference is accepted once this many quiet looks in a row have found it: NVML's figures may be late,
/// and a process charges what it loads a moment after the driver has given it.
const QUIET_LOOKS: usize = 4;
/// The same number where charges changed during the looks: each look may catch a call between the driver and
/// the charge.
const LOOKS: usize = 16;

/// One comparison of the driver's figures with the charges, of one container and one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Comparison {
    /// Memory that the driver holds for the container's processes, bytes.
    pub held: u64,
    /// The charges before the driver was asked, bytes: confirmed, pending, shared once.
    pub before: u64,
    /// The charges after that, bytes.
    pub after: u64,
    /// The container's limit, bytes; 0 is none.
    pub limit: u64,
    /// No charge changed in between, and none was pending.
    pub quiet: bool,
}

impl Comparison {
    fn charges(&self) -> u64 {
        self.before.max(self.after)
    }
}

/// The last looks at one device of a container.
#[derive(Debug, Clone, Default)]
pub struct Excess {
    /// The excess over the charges that each look found, and whether it was quiet; newest last.
    looks: VecDeque<(u64, bool)>,
    /// The excess past the limit that the newest look found: no charge explains it.
    past_limit: u64,
    /// The charges are accepted up to this: nothing was admitted beyond it. The limit, or the one before it
    /// as long as the container has not shrunk.
    allowed: u64,
}

impl Excess {
    /// Takes a look. Returns the bytes that are unaccounted for.
    ///
    /// A difference counts downward at once, and upward when all of the last looks have found it. Memory
    /// that the driver holds past the limit needs no second look: whatever the charges say, no room is left.
    pub fn look(&mut self, look: &Comparison) -> u64 {
        let limit = match look.limit {
            0 => u64::MAX,
            limit => limit,
        };
        self.allowed = if look.charges() <= limit {
            limit
        } else {
            limit.max(self.allowed)
        };
        // Charges that are forged larger hide no memory past the limit.
        let beyond = look.held.saturating_sub(look.charges().min(self.allowed));
        self.looks.push_back((beyond, look.quiet));
        while self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
        self.past_limit = if look.held > self.allowed { beyond } else { 0 };
        self.bytes()
    }

    /// The bytes that are unaccounted for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let least = |looks: usize| {
            let last = self.looks.iter().rev().take(looks);
            last.map(|(bytes, _)| *bytes).min().unwrap_or(0)
        };
        let quiet = self.looks.iter().rev().take(QUIET_LOOKS);
        let quiet = quiet.filter(|(_, quiet)| *quiet).count();
        let mut believed = self.past_limit;
        if quiet == QUIET_LOOKS {
            believed = believed.max(least(QUIET_LOOKS));
        }
        if self.looks.len() == LOOKS {
            believed = believed.max(least(LOOKS));
        }
        believed
    }

    /// Whether the newest look found more than is accepted so far: another look soon decides.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        let newest = self.looks.back().map_or(0, |(bytes, _)| *bytes);
        newest > self.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    fn quiet(held: u64, charges: u64) -> Comparison {
        Comparison {
            held,
            before: charges,
            after: charges,
            limit: LIMIT,
            quiet: true,
        }
    }

    fn moved(held: u64, before: u64, after: u64) -> Comparison {
        Comparison {
            before,
            after,
            quiet: false,
            ..quiet(held, 0)
        }
    }

    /// The excess that counts after each of these looks.
    fn believed(looks: &[Comparison]) -> Vec<u64> {
        let mut excess = Excess::default();
        looks.iter().map(|look| excess.look(look)).collect()
    }

    #[test]
    fn matching_charges_leave_no_excess() {
        assert_eq!(believed(&[quiet(400, 400); 20]), [0; 20]);
        // Managed memory and estimates: the charges may be more than the driver holds.
        assert_eq!(believed(&[quiet(400, 900); 20]), [0; 20]);
    }

    #[test]
    fn zeroed_charges_count_after_four_quiet_looks() {
        assert_eq!(believed(&[quiet(400, 0); 6]), [0, 0, 0, 400, 400, 400]);
    }

    #[test]
    fn a_difference_that_ends_counts_downward_at_once() {
        let mut looks = vec![quiet(400, 0); 5];
        looks.push(quiet(400, 300));
        looks.push(quiet(400, 400));

        assert_eq!(believed(&looks)[4..], [400, 100, 0]);
    }

    #[test]
    fn memory_past_the_limit_counts_at_once() {
        assert_eq!(believed(&[quiet(1500, 0)]), [1500]);
        assert_eq!(believed(&[moved(1500, 900, 0)]), [600]);
    }

    #[test]
    fn limit_lowered_below_the_charges_makes_no_excess() {
        let before = Comparison {
            limit: 1600,
            ..quiet(1500, 1500)
        };
        let looks = [
            before,
            quiet(1500, 1500),
            quiet(1200, 1200),
            quiet(900, 900),
        ];

        assert_eq!(believed(&looks), [0; 4]);
        // A figure that is forged after the limit has shrunk is beyond the new limit.
        let mut looks = looks.to_vec();
        looks.push(quiet(1500, 1500));
        assert_eq!(believed(&looks)[4], 500);
    }

    #[test]
    fn charges_forged_larger_count_up_to_the_limit() {
        assert_eq!(believed(&[quiet(1800, u64::MAX)]), [800]);
        assert_eq!(believed(&[quiet(900, u64::MAX); 5]), [0; 5]);
        let unlimited = Comparison {
            limit: 0,
            ..quiet(1800, 100)
        };
        assert_eq!(believed(&[unlimited; 4]), [0, 0, 0, 1700]);
    }

    #[test]
    fn ever_moving_charges_hide_nothing_for_long() {
        let looks = [moved(400, 0, 10); 20];

        let believed = believed(&looks);

        assert_eq!(believed[14..17], [0, 390, 390]);
    }

    #[test]
    fn constant_alloc_and_free_makes_no_excess() {
        // The driver is asked between two looks at the charges, at any point of alloc and free.
        let cycle = [
            moved(400, 0, 400),
            moved(400, 400, 0),
            moved(0, 400, 400),
            moved(400, 0, 0),
            moved(0, 0, 400),
        ];
        let looks: Vec<Comparison> = cycle.into_iter().cycle().take(100).collect();

        assert_eq!(believed(&looks), [0; 100]);
    }

    #[test]
    fn late_driver_figures_make_no_excess() {
        // The process has freed 400; NVML shows it three looks later.
        let mut looks = vec![quiet(700, 700); 4];
        looks.extend([quiet(700, 300); 3]);
        looks.extend([quiet(300, 300); 4]);

        assert_eq!(believed(&looks), [0; 11]);
    }

    #[test]
    fn undecided_difference_asks_for_another_look() {
        let mut excess = Excess::default();
        excess.look(&quiet(400, 400));
        assert!(!excess.is_undecided());
        for _ in 0..3 {
            excess.look(&quiet(400, 0));
            assert!(excess.is_undecided());
        }
        excess.look(&quiet(400, 0));
        assert!(!excess.is_undecided());
    }
}
