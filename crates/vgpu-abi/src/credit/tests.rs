use proptest::prelude::*;

use super::model::{compute_use, region_device};
use super::*;

const START_NS: u64 = 1_000_000_000;

fn packed<'a>(device: &'a RegionDevice, own: &'a ComputeUse, packed: u64) -> Compute<'a> {
    Compute {
        device,
        own,
        packed,
    }
}

#[test]
fn new_account_starts_with_a_quarter_of_the_maximum_credit() {
    let (device, own) = (region_device(), compute_use());
    let compute = packed(&device, &own, 1);

    refill(&device, START_NS, 250);
    assert_eq!(compute.credit_ns(), 1_250_000);

    refill(&device, START_NS + 1_000_000_000, 250);
    assert_eq!(compute.credit_ns(), 5_000_000);
}

#[test]
fn the_most_follows_the_rate() {
    assert_eq!(most_saved_ns(50), 1_000_000);
    assert_eq!(most_saved_ns(100), 2_000_000);
    assert_eq!(most_saved_ns(250), 5_000_000);
    assert_eq!(most_saved_ns(1000), 5_000_000);
}

#[test]
fn launch_longer_than_the_maximum_credit_is_paid_afterwards() {
    let (device, own) = (region_device(), compute_use());
    let compute = packed(&device, &own, 1);

    assert_eq!(compute.lease(50_000_000, START_NS, 100), Ok(0));
    // 0.5 ms was there, 49.5 ms are owed: at a tenth, 495 ms.
    let wait = compute.lease(1, START_NS, 100).unwrap_err();
    assert_eq!(wait, 495_000_010, "what is owed and a nanosecond more");
    assert!(compute.lease(1, START_NS + wait, 100).is_ok());
}

#[test]
fn no_rate_lets_nothing_in_and_saves_nothing() {
    let (device, own) = (region_device(), compute_use());
    let compute = packed(&device, &own, 1);
    compute.lease(5_000_000, START_NS, 500).unwrap();

    let later = START_NS + 10_000_000_000;
    assert_eq!(compute.lease(1, later, 0), Err(u64::MAX));
    // The time without a rate has earned nothing.
    assert!(compute.lease(1, later, 500).is_err());
}

#[test]
fn credit_leased_in_advance_is_bounded_over_all_threads() {
    let (device, own) = (region_device(), compute_use());
    let compute = packed(&device, &own, 1);

    let mut sum = 0;
    for round in 0..100 {
        let now_ns = START_NS + round * 100_000_000;
        sum += compute.lease(1000, now_ns, 1000).unwrap();
    }

    assert!(sum >= LEASE_NS * 4, "{sum}");
    assert!(sum < MOST_LEASED_NS + LEASE_NS, "{sum}");
}

#[test]
fn unused_lease_is_returned() {
    let (device, own) = (region_device(), compute_use());
    let compute = packed(&device, &own, 1);
    refill(&device, START_NS, 1000);
    let more = compute.lease(1000, 2 * START_NS, 1000).unwrap();
    assert_eq!(more, LEASE_NS - 1000);

    compute.end_lease(more, 50_000);

    assert_eq!(compute.credit_ns(), 5_000_000 - 150_000);
    // Relaxed: one thread.
    assert_eq!(device.leased_ns.load(Ordering::Relaxed), 0);
    assert_eq!(own.leased_ns.load(Ordering::Relaxed), 0);
}

#[test]
fn dead_process_is_counted_and_leases_no_more() {
    let (device, own) = (region_device(), compute_use());
    let compute = packed(&device, &own, 1);
    compute.lease(1000, START_NS, 1000).unwrap();
    compute.count_busy(7_000);
    // Relaxed: one thread.
    own.launches.store(3, Ordering::Relaxed);

    keep(&device, &own);

    assert_eq!(device.leased_ns.load(Ordering::Relaxed), 0);
    assert_eq!(device.past.launches.load(Ordering::Relaxed), 3);
    assert_eq!(device.past.busy_ns.load(Ordering::Relaxed), 7_000);
    assert_eq!(device.busy_ns.load(Ordering::Relaxed), 7_000);
    assert_eq!(own.launches.load(Ordering::Relaxed), 0);
}

#[test]
fn one_process_at_a_time_has_a_launch_of_unknown_cost() {
    let (device, one, other) = (region_device(), compute_use(), compute_use());
    let (one, other) = (packed(&device, &one, 1), packed(&device, &other, 2));

    assert!(one.begin_unknown(START_NS));
    assert!(!other.begin_unknown(START_NS + 5));
    assert_eq!(other.unknown_since_ns(), Some((START_NS, false)));
    other.end_unknown();
    assert_eq!(one.unknown_since_ns(), Some((START_NS, true)));
    one.end_unknown();
    assert!(other.begin_unknown(START_NS + 9));
}

#[test]
fn a_time_from_another_clock_is_not_waited_for() {
    let (device, own) = (region_device(), compute_use());
    let compute = packed(&device, &own, 1);
    compute.lease(5_000_000, 500 * START_NS, 1000).unwrap();

    // The debt of 3.75 ms stands, and is paid by this clock.
    assert_eq!(compute.lease(1, START_NS, 1000), Err(3_750_001));
    assert!(compute.lease(1, START_NS + 3_750_001, 1000).is_ok());
}

#[test]
fn debt_is_paid_from_an_eighth_of_earned_credit() {
    let (device, own) = (region_device(), compute_use());
    let compute = packed(&device, &own, 1);
    refill(&device, START_NS, 500);
    compute.settle(compute.credit_ns());
    compute.owe(300_000);

    refill(&device, START_NS + 3_200_000, 500);
    assert_eq!(compute.credit_ns(), 1_400_000);
    // A hundred thousand were left to pay, of two hundred thousand that would have gone there.
    refill(&device, START_NS + 6_400_000, 500);
    assert_eq!(compute.credit_ns(), 2_900_000);
}

proptest! {
    /// Whatever is asked for and when: no stretch of time gives more than its rate, what was saved,
    /// and one debt.
    #[test]
    fn no_stretch_of_time_gives_more_than_it_earns(
        permille in 1_u32..=1000,
        steps in proptest::collection::vec((0_u64..3_000_000, 1_u64..400_000), 1..200),
    ) {
        let (device, own) = (region_device(), compute_use());
        let compute = packed(&device, &own, 1);
        let (mut now_ns, mut given, mut largest) = (START_NS, 0_u64, 0);
        for (pause, want) in steps {
            now_ns += pause;
            if let Ok(more) = compute.lease(want, now_ns, permille) {
                given += want + more;
                largest = largest.max(want);
            }
        }
        let earned = (now_ns - START_NS) * u64::from(permille) / 1000;
        prop_assert!(given <= earned + most_saved_ns(permille) + largest);
    }

    /// A process that always asks again after the returned time gets exactly the rate.
    #[test]
    fn waiting_for_the_returned_time_gets_the_whole_rate(permille in 1_u32..=1000, want in 1_000_u64..5_000_000) {
        let (device, own) = (region_device(), compute_use());
        let compute = packed(&device, &own, 1);
        let (mut now_ns, mut given) = (START_NS, 0_u64);
        for _ in 0..2000 {
            match compute.lease(want, now_ns, permille) {
                Ok(more) => {
                    given += want;
                    compute.end_lease(more, more);
                }
                Err(wait) => now_ns += wait,
            }
        }
        let earned = (now_ns - START_NS) * u64::from(permille) / 1000;
        prop_assert!(given <= earned + most_saved_ns(permille) + want);
        prop_assert!(given + want >= earned, "{given} of {earned}");
    }
}
