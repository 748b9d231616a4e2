//! How the time of one device is divided: claims in, shares out. Owns what caps, floors, policies
//! and priorities mean when several containers want the same device.
//!
//! Never remembers anything, never reads a clock or a file.

use vgpu_abi::limits::Policy;

/// All of a device's time, in the unit of every share here.
pub const WHOLE: u32 = 1000;
/// A container without a floor counts for at least this much where idle time is lent.
const LEAST_WEIGHT: u32 = 10;

/// The limits of one container on a device, and its demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// When its cap counts.
    pub policy: Policy,
    /// 0 is the highest.
    pub priority: u32,
    /// The most, thousandths; [`WHOLE`] is no cap.
    pub cap: u32,
    /// Floor: what it gets whenever it wants it, thousandths; 0 is none.
    pub floor: u32,
    /// It works, or waits to.
    pub active: bool,
    /// The share that it would use if it could, thousandths; [`WHOLE`] if it wants more than it gets.
    pub demand: u32,
}

/// The share of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Thousandths; 0: it waits.
    pub permille: u32,
    /// Another container works on the device.
    pub contended: bool,
    /// It has to be measured, because others depend on its use.
    pub measured: bool,
}

/// Divides a device's time.
///
/// * A cap is never passed: always under `force` and `floor`, while another container works under `default`.
/// * A floor is never missed, whatever the priority.
/// * While a container of a higher priority works, a lower one gets its floor and nothing else.
/// * Where floors count, the rest is lent in proportion to them, first to the containers that want more than
///   they have; the unused part of a floor is lent too. A container without a floor counts for its part of the
///   time that no floor promises.
/// * A container that is idle, or does not use its share, is granted a share with which it can start at once. It leaves
///   containers of a lower priority the floors that they use.
///
/// The shares of the containers that want more than they get, and what the others use, add up to the whole
/// device and not more, wherever a floor counts. Where none does, no time has to be kept free, and each
/// container has its cap.
#[must_use]
pub fn divide(claims: &[Claim]) -> Vec<Share> {
    let working = claims.iter().filter(|claim| claim.active).count();
    let top = claims.iter().filter(|c| c.active).map(|c| c.priority).min();
    let floors = floors(claims);
    let contends = |claim: &Claim| claim.active && claim.policy != Policy::Disable;
    let seats: Vec<Claimant> = claims
        .iter()
        .zip(&floors)
        .map(|(claim, floor)| Claimant {
            floor: *floor,
            cap: match claim.policy {
                Policy::Disable => WHOLE,
                Policy::Default if working == usize::from(claim.active) => WHOLE,
                _ => claim.cap.clamp(1, WHOLE).max(*floor),
            },
            demand: claim.demand.min(WHOLE),
            at_top: contends(claim) && Some(claim.priority) == top,
        })
        .collect();
    let in_play = claims
        .iter()
        .zip(&seats)
        .any(|(claim, seat)| contends(claim) && seat.floor > 0);
    let lower = claims
        .iter()
        .zip(&seats)
        .filter(|(c, seat)| contends(c) && !seat.at_top);
    let reserved: u32 = lower.map(|(_, seat)| seat.floor.min(seat.demand)).sum();
    // What a container of this priority may have beside the lower ones that work.
    let besides_lower = |priority: u32| {
        let each = claims.iter().zip(&seats);
        let lower = each.filter(|(c, _)| contends(c) && c.priority > priority);
        let kept: u32 = lower.map(|(_, seat)| seat.floor.min(seat.demand)).sum();
        WHOLE.saturating_sub(kept)
    };
    let budget = WHOLE.saturating_sub(reserved);
    let lent = lend(&seats, budget, |seat| seat.demand);
    let fair = lend(&seats, budget, |_| WHOLE);
    let guest = Guest::beside(&seats, budget);

    let share = |(index, (claim, seat)): (usize, (&Claim, &Claimant))| {
        let permille = if claim.policy == Policy::Disable {
            WHOLE
        } else if top.is_some_and(|top| claim.priority > top) {
            seat.floor
        } else if !in_play {
            seat.cap
        } else if seat.at_top {
            let lent = lent.get(index).copied().unwrap_or(0);
            let fair = fair.get(index).copied().unwrap_or(0);
            // Rounding may leave less here than in the fair part: a container that wants more than it is lent gets no more.
            let wants_more = lent < seat.demand.min(seat.cap);
            let room = if wants_more { lent } else { lent.max(fair) };
            room.max(seat.floor)
        } else if top == Some(claim.priority) {
            guest.share(seat)
        } else {
            seat.cap
                .min(besides_lower(claim.priority))
                .max(seat.floor)
                .max(1)
        };
        // Limited containers and their neighbours: the share of one follows from what the other does.
        let limited = |claim: &Claim| claim.floor > 0 || claim.cap < WHOLE;
        let decides = |(other, that): (usize, &Claim)| {
            let counts = that.policy != Policy::Disable;
            let matters = limited(claim) || limited(that) || that.priority < claim.priority;
            other != index && counts && matters
        };
        Share {
            permille,
            contended: working > usize::from(claim.active),
            measured: claims.iter().enumerate().any(decides),
        }
    };
    claims.iter().zip(&seats).enumerate().map(share).collect()
}

/// Whether the floors of containers of lower priorities that want them, and the shares of those at the highest priority,
/// are all of the device's time. Then nothing is left for which a priority would decide: a container of the highest
/// priority has what the floors leave, and those floors are kept while it works all the time.
pub(super) fn is_promised(claims: &[Claim], shares: &[Share]) -> bool {
    /// Less than this is left by rounding, thousandths.
    const ROUNDED: u32 = 10;
    let contends = |claim: &Claim| claim.active && claim.policy != Policy::Disable;
    let working = || claims.iter().zip(shares).filter(|(c, _)| contends(c));
    let top = working().map(|(claim, _)| claim.priority).min();
    let used: u32 = working()
        .map(|(claim, share)| share.permille.min(claim.demand))
        .sum();
    let keeps_floor = |(claim, share): (&Claim, &Share)| {
        Some(claim.priority) != top && share.permille > 0 && claim.demand >= share.permille
    };
    working().any(keeps_floor) && used + ROUNDED > WHOLE
}

/// Floors as they can be kept: no floor above the cap, and all together not above the device.
pub(super) fn floors(claims: &[Claim]) -> Vec<u32> {
    let floor = |claim: &Claim| match claim.policy {
        Policy::Disable => 0,
        _ => claim.floor.min(claim.cap).min(WHOLE),
    };
    let sum: u32 = claims.iter().map(floor).sum();
    let kept = |claim: &Claim| match floor(claim) {
        floor if sum > WHOLE => floor * WHOLE / sum,
        floor => floor,
    };
    claims.iter().map(kept).collect()
}

/// A claim as it counts at the moment.
struct Claimant {
    floor: u32,
    cap: u32,
    demand: u32,
    /// Active, and no active container has a higher priority.
    at_top: bool,
}

/// Those at the top share the budget: floors first, then by weight up to what each wants, then by
/// weight up to the caps.
fn lend(seats: &[Claimant], budget: u32, demand: impl Fn(&Claimant) -> u32) -> Vec<u32> {
    let weights = weights(seats);
    let mut shares: Vec<u32> = seats
        .iter()
        .map(|seat| {
            if seat.at_top {
                seat.floor.min(demand(seat))
            } else {
                0
            }
        })
        .collect();
    for wanted in [true, false] {
        let limit = |seat: &Claimant| {
            if wanted {
                seat.cap.min(demand(seat))
            } else {
                seat.cap
            }
        };
        let limits = seats
            .iter()
            .map(|seat| if seat.at_top { limit(seat) } else { 0 });
        fill(&mut shares, &weights, &limits.collect::<Vec<_>>(), budget);
    }
    shares
}

/// By floor; those without one share what no floor promises.
fn weights(seats: &[Claimant]) -> Vec<u32> {
    let at_top = || seats.iter().filter(|seat| seat.at_top);
    let promised: u32 = at_top().map(|seat| seat.floor).sum();
    let without = at_top().filter(|seat| seat.floor == 0).count();
    let without = u32::try_from(without).unwrap_or(WHOLE).max(1);
    let rest = (WHOLE.saturating_sub(promised) / without).max(LEAST_WEIGHT);
    let weight = |seat: &Claimant| if seat.floor > 0 { seat.floor } else { rest };
    seats.iter().map(weight).collect()
}

/// Raises shares by weight, none above its limit, until the budget is used or all are at their
/// limits.
fn fill(shares: &mut [u32], weights: &[u32], limits: &[u32], budget: u32) {
    let mut left = budget.saturating_sub(shares.iter().sum());
    let mut open: Vec<bool> = shares
        .iter()
        .zip(limits)
        .map(|(share, limit)| share < limit)
        .collect();
    loop {
        let seats = || open.iter().zip(weights).filter(|(open, _)| **open);
        let weight: u32 = seats().map(|(_, weight)| *weight).sum();
        if left == 0 || weight == 0 {
            return;
        }
        // A container that reaches its limit leaves the rest to the others.
        let mut closed = false;
        let each = shares.iter_mut().zip(weights).zip(limits).zip(&mut open);
        let given = left;
        for (((share, own), limit), open) in each {
            let room = limit.saturating_sub(*share);
            let part = u64::from(given) * u64::from(*own) / u64::from(weight);
            if *open && u64::from(room) <= part {
                *share = *limit;
                left = left.saturating_sub(room);
                *open = false;
                closed = true;
            }
        }
        if closed {
            continue;
        }
        let each = shares.iter_mut().zip(weights).zip(&open);
        for ((share, own), _) in each.filter(|(_, open)| **open) {
            let part = u64::from(given) * u64::from(*own) / u64::from(weight);
            let part = u32::try_from(part).unwrap_or(0);
            *share += part;
            left = left.saturating_sub(part);
        }
        // The rest that rounding left, one thousandth each.
        let each = shares.iter_mut().zip(limits).zip(&open);
        for ((share, limit), _) in each.filter(|(_, open)| **open) {
            if left > 0 && *share < *limit {
                *share += 1;
                left -= 1;
            }
        }
        return;
    }
}

/// The share of an idle container if it started.
struct Guest {
    promised: u32,
    weight: u32,
    budget: u32,
    rest: u32,
}

impl Guest {
    fn beside(seats: &[Claimant], budget: u32) -> Self {
        let weights = weights(seats);
        let at_top = || seats.iter().zip(&weights).filter(|(seat, _)| seat.at_top);
        let promised: u32 = at_top().map(|(seat, _)| seat.floor).sum();
        let without = at_top().filter(|(seat, _)| seat.floor == 0).count();
        let without = u32::try_from(without).unwrap_or(WHOLE).saturating_add(1);
        Self {
            promised,
            weight: at_top().map(|(_, weight)| *weight).sum(),
            budget,
            rest: (WHOLE.saturating_sub(promised) / without).max(LEAST_WEIGHT),
        }
    }

    fn share(&self, seat: &Claimant) -> u32 {
        let own = if seat.floor > 0 {
            seat.floor
        } else {
            self.rest
        };
        let free = self
            .budget
            .saturating_sub(self.promised.saturating_add(seat.floor));
        let part =
            u64::from(free) * u64::from(own) / u64::from(self.weight.saturating_add(own).max(1));
        (seat.floor + u32::try_from(part).unwrap_or(0)).clamp(1, seat.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    /// Claims as text: `policy:cap:floor:priority:demand`, an idle one without a demand; shares as
    /// text, `c` where contended, `m` where measured.
    fn check(claims: &str, shares: &Expect) {
        let number = |text: &str| text.parse::<u32>().unwrap();
        let claims: Vec<Claim> = claims
            .split_whitespace()
            .map(|claim| {
                let parts: Vec<&str> = claim.split(':').collect();
                Claim {
                    policy: match parts[0] {
                        "force" => Policy::Force,
                        "default" => Policy::Default,
                        "floor" => Policy::Floor,
                        "disable" => Policy::Disable,
                        other => panic!("{other}"),
                    },
                    cap: number(parts[1]),
                    floor: number(parts[2]),
                    priority: number(parts[3]),
                    active: parts.len() > 4,
                    demand: parts.get(4).map_or(0, |demand| number(demand)),
                }
            })
            .collect();
        let text: Vec<String> = divide(&claims)
            .iter()
            .map(|share| {
                let contended = if share.contended { "c" } else { "" };
                let measured = if share.measured { "m" } else { "" };
                format!("{}{contended}{measured}", share.permille)
            })
            .collect();
        shares.assert_eq(&text.join(" "));
    }

    #[test]
    fn rounding_grants_no_thousandth_twice() {
        check(
            "default:414:118:2:412 default:380:98:2:368 default:109:29:2:109 default:112:30:2:112",
            &expect!["414cm 368cm 108cm 112cm"],
        );
    }

    #[test]
    fn forced_cap_holds_alone_and_beside_others() {
        check("force:300:0:0:1000", &expect!["300"]);
        check(
            "force:300:0:0:1000 force:700:0:0:1000",
            &expect!["300cm 700cm"],
        );
        check(
            "force:300:0:0:1000 force:1000:0:0:1000",
            &expect!["300cm 1000cm"],
        );
    }

    #[test]
    fn default_cap_holds_only_while_another_works() {
        check(
            "default:300:0:0:1000 force:1000:0:0",
            &expect!["1000m 1000cm"],
        );
        check(
            "default:300:0:0:1000 force:1000:0:0:1000",
            &expect!["300cm 1000cm"],
        );
        check(
            "default:300:0:0 force:1000:0:0:1000",
            &expect!["300cm 1000m"],
        );
    }

    #[test]
    fn idle_time_is_lent_in_proportion_to_floors() {
        check(
            "floor:1000:200:0:1000 floor:1000:400:0:1000 floor:1000:400:0",
            &expect!["334cm 666cm 400cm"],
        );
        check(
            "floor:1000:200:0:1000 floor:1000:400:0:1000 floor:1000:400:0:1000",
            &expect!["200cm 400cm 400cm"],
        );
        check(
            "floor:1000:200:0:1000 force:1000:0:0",
            &expect!["1000m 640cm"],
        );
    }

    #[test]
    fn unused_floor_is_lent_and_kept_as_starting_share() {
        check(
            "floor:1000:500:0:100 floor:1000:500:0:1000",
            &expect!["500cm 900cm"],
        );
        check(
            "floor:1000:500:0:100 force:1000:0:0:1000",
            &expect!["750cm 900cm"],
        );
    }

    #[test]
    fn lower_priority_waits_and_keeps_its_floor() {
        check(
            "force:1000:0:0:1000 force:1000:0:1:1000",
            &expect!["1000c 0cm"],
        );
        check(
            "force:300:0:0:50 floor:1000:200:5:1000 force:500:0:5",
            &expect!["300cm 200cm 0cm"],
        );
        check(
            "force:1000:0:0 force:1000:0:1:1000",
            &expect!["1000c 1000m"],
        );
        // The part of its floor that the lower one does not use is lent.
        check(
            "force:1000:0:0:1000 floor:1000:200:1:50",
            &expect!["950cm 200cm"],
        );
    }

    #[test]
    fn idle_container_of_a_higher_priority_starts_with_what_floors_leave() {
        check(
            "force:1000:0:0 floor:1000:800:1:1000",
            &expect!["200cm 1000m"],
        );
        check(
            "force:500:0:0 floor:1000:300:1:1000 floor:1000:500:2:1000",
            &expect!["200cm 500cm 500cm"],
        );
        // A floor counts as far as it is used, and a container never waits to start.
        check(
            "force:1000:0:0 floor:1000:800:1:100",
            &expect!["900cm 1000m"],
        );
        check(
            "force:1000:0:0 floor:1000:1000:1:1000",
            &expect!["1cm 1000m"],
        );
    }

    #[test]
    fn all_is_promised_where_lower_floors_and_the_rest_are_used() {
        let promised = |claims: [(u32, u32, u32, u32); 2]| {
            let claims = claims.map(|(cap, floor, priority, demand)| Claim {
                policy: Policy::Floor,
                priority,
                cap,
                floor,
                active: demand > 0,
                demand,
            });
            is_promised(&claims, &divide(&claims))
        };
        assert!(promised([(1000, 0, 0, 1000), (1000, 800, 1, 1000)]));
        assert!(promised([(200, 0, 0, 1000), (1000, 800, 1, 1000)]));
        // One of them wants less than that, or rests.
        assert!(!promised([(1000, 0, 0, 100), (1000, 800, 1, 1000)]));
        assert!(!promised([(1000, 0, 0, 1000), (1000, 800, 1, 100)]));
        assert!(!promised([(1000, 0, 0, 0), (1000, 800, 1, 1000)]));
        // A cap leaves something, the lower one has no floor, or it is no lower one.
        assert!(!promised([(100, 0, 0, 1000), (1000, 800, 1, 1000)]));
        assert!(!promised([(1000, 0, 0, 1000), (1000, 0, 1, 1000)]));
        assert!(!promised([(1000, 0, 1, 1000), (1000, 800, 1, 1000)]));
    }

    #[test]
    fn uncontrolled_container_never_waits_and_others_yield() {
        check(
            "disable:1000:0:3:1000 force:1000:0:5:1000 disable:300:0:9:1000",
            &expect!["1000c 0c 1000cm"],
        );
    }

    #[test]
    fn without_floors_every_container_has_its_cap() {
        check(
            "force:1000:0:0:1000 force:1000:0:0:1000 force:1000:0:0",
            &expect!["1000c 1000c 1000c"],
        );
        check("", &expect![""]);
    }

    #[test]
    fn floors_beyond_the_device_shrink_together() {
        check(
            "floor:1000:1000:0:1000 floor:1000:1000:0:1000",
            &expect!["500cm 500cm"],
        );
    }

    fn claim() -> impl Strategy<Value = Claim> {
        (
            0..4_usize,
            1..=1000_u32,
            0..=400_u32,
            0..3_u32,
            any::<bool>(),
            0..=1000_u32,
        )
            .prop_map(|(policy, cap, floor, priority, active, demand)| Claim {
                policy: [
                    Policy::Default,
                    Policy::Force,
                    Policy::Floor,
                    Policy::Disable,
                ][policy],
                priority,
                cap,
                floor: if floor > 200 { 0 } else { floor.min(cap) },
                active,
                demand,
            })
    }

    proptest! {
        #[test]
        fn random_claims_keep_the_rules(claims in proptest::collection::vec(claim(), 0..12)) {
            let shares = divide(&claims);
            prop_assert_eq!(shares.len(), claims.len());
            let top = claims.iter().filter(|c| c.active).map(|c| c.priority).min();
            let working = claims.iter().filter(|c| c.active).count();
            let sum: u32 = claims
                .iter()
                .filter(|c| c.policy != Policy::Disable)
                .map(|c| c.floor)
                .sum();
            let rules = |c: &Claim| c.policy != Policy::Disable;
            for (claim, share) in claims.iter().zip(&shares) {
                prop_assert!(share.permille <= WHOLE);
                if !rules(claim) {
                    prop_assert_eq!(share.permille, WHOLE);
                    continue;
                }
                // A floor is never missed.
                if sum <= WHOLE {
                    prop_assert!(share.permille >= claim.floor, "{claims:?} {shares:?}");
                }
                // A cap is never passed.
                let counts = claim.policy != Policy::Default || working > usize::from(claim.active);
                prop_assert!(!counts || share.permille <= claim.cap, "{claims:?} {shares:?}");
                // A lower priority waits.
                if top.is_some_and(|top| claim.priority > top) && sum <= WHOLE {
                    prop_assert_eq!(share.permille, claim.floor);
                }
                // A container that may work is never told to wait.
                if top.is_none_or(|top| claim.priority <= top) {
                    prop_assert!(share.permille > 0, "{claims:?} {shares:?}");
                }
            }
            // Where a floor counts, no time is granted twice, and no time is left idle that a permitted
            // container wants.
            let each = || claims.iter().zip(&shares).filter(|(c, _)| c.active && rules(c));
            if sum <= WHOLE && each().any(|(c, _)| c.floor > 0) {
                let used: u32 = each().map(|(c, s)| s.permille.min(c.demand)).sum();
                prop_assert!(used <= WHOLE, "{used}: {claims:?} {shares:?}");
                let wants = |(c, s): &(&Claim, &Share)| {
                    Some(c.priority) == top && s.permille < c.demand.min(c.cap)
                };
                prop_assert!(used == WHOLE || !each().any(|e| wants(&e)), "{used}: {claims:?} {shares:?}");
            }
        }
    }
}
