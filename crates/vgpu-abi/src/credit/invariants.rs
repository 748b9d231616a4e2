//! The invariants of [`super`]'s arithmetic, over the whole range of every word: the region is the tenant's to write,
//! so an account may hold any number.

use proptest::prelude::*;

use super::model::{compute_use, region_device};
use super::*;

/// The words of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AccountWords {
    credit_ns: i64,
    at_ns: u64,
    owed_ns: u64,
    leased_ns: u64,
}

impl AccountWords {
    fn device(self) -> RegionDevice {
        let device = region_device();
        // Relaxed, here and below: one thread.
        for (word, value) in [
            (&device.credit_ns, self.credit_ns.cast_unsigned()),
            (&device.credit_at_ns, self.at_ns),
            (&device.owed_ns, self.owed_ns),
            (&device.leased_ns, self.leased_ns),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        device
    }

    fn of(device: &RegionDevice) -> Self {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Self {
            credit_ns: read(&device.credit_ns).cast_signed(),
            at_ns: read(&device.credit_at_ns),
            owed_ns: read(&device.owed_ns),
            leased_ns: read(&device.leased_ns),
        }
    }
}

/// Any number, and often one near the ends of the range or near what accounts really hold.
fn any_ns() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => any::<u64>(),
        2 => 0_u64..20_000_000_000,
        1 => (0_u64..3).prop_map(|less| u64::MAX - less),
        1 => (0_u64..5).prop_map(|more| u64::MAX / 2 - 2 + more),
        1 => Just(0),
    ]
}

fn words() -> impl Strategy<Value = AccountWords> {
    (any_ns(), any_ns(), any_ns(), any_ns()).prop_map(|(credit, at_ns, owed_ns, leased_ns)| {
        AccountWords {
            credit_ns: credit.cast_signed(),
            at_ns,
            owed_ns,
            leased_ns,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    /// A refill takes nothing away, fills no account beyond its most, and gives no more than the time is worth.
    #[test]
    fn refill_gives_what_the_time_is_worth_at_most(
        before in words(),
        now_ns in any_ns(),
        permille in 0_u32..=1000,
    ) {
        let device = before.device();

        refill(&device, now_ns, permille);

        let after = AccountWords::of(&device);
        let most = i64::try_from(most_saved_ns(permille)).unwrap();
        prop_assert!(after.credit_ns >= before.credit_ns);
        prop_assert!(after.credit_ns <= before.credit_ns.max(most));
        prop_assert!(after.owed_ns <= before.owed_ns);
        prop_assert_eq!(after.leased_ns, before.leased_ns);
        let given = i128::from(after.credit_ns) - i128::from(before.credit_ns);
        let paid = i128::from(before.owed_ns - after.owed_ns);
        if before.at_ns == 0 {
            prop_assert!(given <= i128::from(most / 4).max(i128::from(most / 4) - i128::from(before.credit_ns)));
            prop_assert_eq!(paid, 0);
        } else {
            let passed = i128::from(now_ns.saturating_sub(before.at_ns));
            prop_assert!(given + paid <= passed * i128::from(permille) / 1000);
        }
    }

    /// The time up to which an account is filled never passes the clock, and goes back only where another clock had
    /// set it. So no moment is earned twice.
    #[test]
    fn no_moment_is_earned_twice(before in words(), now_ns in any_ns(), permille in 0_u32..=1000) {
        let device = before.device();

        refill(&device, now_ns, permille);

        let at_ns = AccountWords::of(&device).at_ns;
        let is_other_clock = before.at_ns > now_ns.saturating_add(ANOTHER_CLOCK_NS);
        prop_assert!(at_ns <= now_ns.max(1).max(before.at_ns));
        prop_assert!(is_other_clock || at_ns >= before.at_ns);
        let once = AccountWords::of(&device);
        refill(&device, now_ns, permille);
        prop_assert_eq!(AccountWords::of(&device), once, "a second refill at the same moment");
    }

    /// A lease takes from the account exactly what it says, and leaves the account alone where it says to wait.
    #[test]
    fn lease_takes_what_it_says(
        before in words(),
        now_ns in any_ns(),
        want_ns in any_ns(),
        permille in 0_u32..=1000,
    ) {
        let (device, own) = (before.device(), compute_use());
        let compute = Compute { device: &device, own: &own, packed: 1 };
        refill(&device, now_ns, permille);
        let filled = AccountWords::of(&device);

        let answer = compute.lease(want_ns, now_ns, permille);

        let after = AccountWords::of(&device);
        match answer {
            Ok(more) => {
                prop_assert!(permille > 0 && filled.credit_ns > 0);
                let all = want_ns.saturating_add(more);
                prop_assert_eq!(after.credit_ns, filled.credit_ns.saturating_sub_unsigned(all));
                // An advance for later launches is never more than the account holds.
                prop_assert!(more == 0 || after.credit_ns > 0 && all <= LEASE_NS);
            }
            Err(wait_ns) => {
                prop_assert_eq!(after, filled);
                let is_forever = permille == 0;
                // The largest debts take longer than a number of nanoseconds can say.
                let is_countable = filled.credit_ns > i64::MIN / 1000;
                prop_assert!(wait_ns == u64::MAX || !is_forever);
                prop_assert!(wait_ns < u64::MAX || is_forever || !is_countable);
            }
        }
    }

    /// A process that waits for the returned time is let in, if there is no debt and no other process took the
    /// credit.
    #[test]
    fn waiting_for_the_returned_time_is_enough(
        debt_ns in 0_i64..1 << 50,
        now_ns in 1_u64..1 << 60,
        want_ns in any_ns(),
        permille in 1_u32..=1000,
    ) {
        let before = AccountWords { credit_ns: -debt_ns, at_ns: now_ns, owed_ns: 0, leased_ns: 0 };
        let own = compute_use();
        let lease = |at_ns: u64| {
            let device = before.device();
            Compute { device: &device, own: &own, packed: 1 }.lease(want_ns, at_ns, permille)
        };

        let wait_ns = lease(now_ns).unwrap_err();

        prop_assert!(lease(now_ns + wait_ns - 1).is_err());
        prop_assert!(lease(now_ns + wait_ns).is_ok());
    }

    /// No sum passes from debt to credit, or back, by passing the end of its range.
    #[test]
    fn settling_never_wraps(before in words(), ns in any::<i64>(), unused_ns in any_ns(), more_ns in any_ns()) {
        let (device, own) = (before.device(), compute_use());
        let compute = Compute { device: &device, own: &own, packed: 1 };

        compute.settle(ns);
        let settled = compute.credit_ns();
        prop_assert_eq!(settled, before.credit_ns.saturating_add(ns.saturating_neg()));

        compute.end_lease(more_ns, unused_ns);
        let given_back = i64::try_from(unused_ns.min(more_ns)).unwrap_or(i64::MAX);
        prop_assert_eq!(compute.credit_ns(), settled.saturating_add(given_back));

        compute.owe(unused_ns);
        prop_assert_eq!(AccountWords::of(&device).owed_ns, before.owed_ns.saturating_add(unused_ns));
    }
}
