use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const TICK_NS: u64 = 50 * MS;

/// A container that wants all it can get.
fn party(id: u64, floor: u32, share: u32) -> Party {
    Party {
        id,
        floor,
        cap: WHOLE,
        share,
        demand: WHOLE,
        active: true,
        waited: true,
        pays: true,
        got_ns: 0.0,
        got_late_ns: 0.0,
    }
}

/// Ticks of a device on which each gets what it was granted; but the first gets nothing while it is held back, and
/// the others have its time. One that had more than its grant stands still afterwards, as the library makes it. What
/// each got, milliseconds.
fn run(arrears: &mut Arrears, parties: &mut [Party], ticks: u64, held: u64) -> Vec<u64> {
    let mut grants: Vec<u32> = parties.iter().map(|party| party.share).collect();
    let mut sums = vec![0.0; parties.len()];
    let mut overruns = vec![0.0; parties.len()];
    let from_ns = arrears.at_ns.unwrap_or(0);
    for tick in 0..ticks {
        let rest: u32 = grants[1..].iter().sum();
        for (index, party) in parties.iter_mut().enumerate() {
            let granted_ns = part(grants[index]) * real(TICK_NS);
            party.got_ns = match index {
                0 if tick < held => 0.0,
                _ if tick < held => real(TICK_NS) * f64::from(grants[index]) / f64::from(rest),
                _ => (granted_ns - overruns[index]).max(0.0),
            };
            if index > 0 {
                overruns[index] = f64::max(overruns[index] + party.got_ns - granted_ns, 0.0);
            }
            sums[index] += party.got_ns;
        }
        grants = arrears.tick(from_ns + (tick + 1) * TICK_NS, parties);
    }
    let whole = |ns: f64| u64::from(thousandths(ns / 1e9));
    sums.into_iter().map(whole).collect()
}

fn warmed_up(parties: &mut [Party]) -> Arrears {
    let mut arrears = Arrears::default();
    run(&mut arrears, parties, 20, 0);
    arrears
}

#[test]
fn container_that_gets_its_floor_changes_nothing() {
    let mut parties = [party(1, 300, 300), party(2, 700, 700)];
    let mut arrears = warmed_up(&mut parties);

    let got = run(&mut arrears, &mut parties, 20, 0);

    assert_eq!(got, [300, 700]);
    assert_eq!(arrears.tick(3_000 * MS, &parties), [300, 700]);
}

#[test]
fn missed_time_comes_back_within_the_second() {
    for (floors, shares) in [([300, 0], [300, 700]), ([500, 500], [500, 500])] {
        let mut parties = [
            party(1, floors[0], shares[0]),
            party(2, floors[1], shares[1]),
        ];
        let mut arrears = warmed_up(&mut parties);

        let got = run(&mut arrears, &mut parties, 20, 6);
        let later = run(&mut arrears, &mut parties, 20, 0);

        assert!(got[0].abs_diff(floors[0].into()) <= 20, "{got:?}");
        assert!(got[1].abs_diff(shares[1].into()) <= 20, "{got:?}");
        assert!(later[0].abs_diff(floors[0].into()) <= 15, "{later:?}");
    }
}

#[test]
fn a_cap_is_not_passed_to_make_good() {
    let mut parties = [party(1, 300, 300), party(2, 0, 700)];
    parties[0].cap = 400;
    let mut arrears = warmed_up(&mut parties);

    run(&mut arrears, &mut parties, 6, 6);

    assert_eq!(arrears.tick(2_000 * MS, &parties)[0], 400);
}

#[test]
fn floor_of_a_container_that_had_nothing_extra_is_not_touched() {
    // The third had its floor and no more, and the second had what the first missed.
    let mut parties = [party(1, 300, 300), party(2, 300, 300), party(3, 400, 400)];
    let mut arrears = warmed_up(&mut parties);
    for tick in 21..=26 {
        parties[0].got_ns = 0.0;
        parties[1].got_ns = 0.6 * real(TICK_NS);
        parties[2].got_ns = 0.4 * real(TICK_NS);
        arrears.tick(tick * TICK_NS, &parties);
    }

    let grants = arrears.tick(27 * TICK_NS, &parties);

    // The second has to stand still until it is even: so long the first has its time.
    assert_eq!(grants, [600, 300, 400]);
}

#[test]
fn lent_time_that_came_back_late_is_given_back() {
    // The first rested, and the second had its time; now the second is late with it.
    let mut parties = [party(1, 500, 500), party(2, 500, 500)];
    let mut arrears = warmed_up(&mut parties);
    parties[1].share = 900;
    arrears.tick(21 * TICK_NS, &parties);
    parties[0].got_ns = 0.1 * real(TICK_NS);
    parties[1].got_ns = 0.9 * real(TICK_NS);
    arrears.tick(22 * TICK_NS, &parties);
    parties[1].share = 500;
    arrears.tick(23 * TICK_NS, &parties);
    parties[0].got_ns = 0.5 * real(TICK_NS);
    parties[1].got_ns = 0.5 * real(TICK_NS);

    let grants = arrears.tick(24 * TICK_NS, &parties);

    assert!(grants[0] > 600 && grants[1] < 400, "{grants:?}");
    assert_eq!(grants[0] + grants[1], WHOLE);
}

#[test]
fn container_that_stops_wanting_is_given_nothing_back() {
    let mut parties = [party(1, 500, 500), party(2, 0, 500)];
    let mut arrears = warmed_up(&mut parties);
    run(&mut arrears, &mut parties, 6, 6);

    parties[0].waited = false;
    parties[0].got_ns = 0.3 * real(TICK_NS);

    assert_eq!(arrears.tick(1_350 * MS, &parties), [500, 500]);
    parties[0].waited = true;
    parties[0].got_ns = 0.5 * real(TICK_NS);
    assert_eq!(arrears.tick(1_400 * MS, &parties), [500, 500]);
}

#[test]
fn time_that_only_the_driver_saw_was_not_missed() {
    let mut parties = [party(1, 500, 500), party(2, 0, 500)];
    let mut arrears = warmed_up(&mut parties);
    run(&mut arrears, &mut parties, 6, 6);

    parties[0].got_late_ns = 0.16e9;
    parties[0].got_ns = 0.5 * real(TICK_NS);

    assert_eq!(arrears.tick(1_350 * MS, &parties), [500, 500]);
}

#[test]
fn time_in_which_the_arbiter_was_away_counts_nothing() {
    let mut parties = [party(1, 500, 500), party(2, 0, 500)];
    let mut arrears = warmed_up(&mut parties);
    parties[0].got_ns = 0.0;

    assert_eq!(arrears.tick(60_000 * MS, &parties), [500, 500]);
}

fn any_party() -> impl Strategy<Value = Party> {
    let numbers = (0..=600_u32, 1..=1000_u32, 0..=1000_u32, 0..=1000_u32);
    let flags = (any::<bool>(), any::<bool>());
    let times = (0.0..2e8_f64, prop_oneof![Just(0.0), 0.0..5e7_f64]);
    (numbers, flags, times).prop_map(|((floor, cap, share, demand), flags, times)| {
        let (active, waited) = flags;
        let cap = cap.max(floor);
        Party {
            id: 0,
            floor,
            cap,
            share: share.clamp(floor, cap),
            demand: if waited { WHOLE } else { demand },
            active,
            waited: waited && active,
            pays: true,
            got_ns: times.0,
            got_late_ns: times.1,
        }
    })
}

proptest! {
    #[test]
    fn whatever_is_measured_the_bounds_hold(
        looks in proptest::collection::vec((proptest::collection::vec(any_party(), 4), 1..2_000_u64), 1..60),
    ) {
        let mut arrears = Arrears::default();
        let mut now_ns = 0;
        for (mut parties, ms) in looks {
            // Floors are promised no more than once.
            let floors: u32 = parties.iter().map(|party| party.floor).sum();
            for (id, party) in parties.iter_mut().enumerate() {
                party.id = id as u64;
                if floors > WHOLE {
                    party.floor = party.floor * WHOLE / floors;
                }
            }
            now_ns += ms * MS;

            let grants = arrears.tick(now_ns, &parties);

            let used = |party: &Party, grant: u32| if party.active { grant.min(party.demand) } else { 0 };
            // One that had too much stands still first.
            let uses = |party: &Party, share: u32| {
                super::used(&Party { share, ..*party }, &arrears.account(party))
            };
            let before: u32 = parties.iter().map(|party| uses(party, party.share)).sum();
            let after: u32 = parties.iter().zip(&grants).map(|(party, grant)| uses(party, *grant)).sum();
            prop_assert!(after <= before.max(WHOLE), "{before} {after} {parties:?} {grants:?}");
            for (party, grant) in parties.iter().zip(&grants) {
                let account = arrears.account(party);
                prop_assert!(account.arrears_ns >= 0.0 && account.surplus_ns >= 0.0);
                // At most a second's worth; nothing to a container that rests.
                prop_assert!(account.arrears_ns <= part(party.floor).max(0.6) * MOST_NS + 1.0);
                prop_assert!(party.active || account.arrears_ns == 0.0);
                // No grant above the cap, none lost by a container that rests.
                prop_assert!(*grant <= party.cap.max(party.share));
                prop_assert!(party.active || *grant == party.share);
                // No container is starved: it keeps half its floor, or a quarter of what it has without one.
                let kept = used(party, party.share);
                let least = if party.floor > 0 { kept.min(party.floor) / 2 } else { kept / 4 };
                prop_assert!(used(party, *grant) >= least, "{party:?} {grant}");
                // Only a container that had too much gives of its floor.
                let gives_floor = used(party, *grant) < kept.min(party.floor);
                prop_assert!(!gives_floor || account.surplus_ns > 0.0, "{party:?} {grant}");
            }
        }
    }
}
