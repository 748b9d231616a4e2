//! Which share of a device counts for this container: what its limits say, and what the arbiter grants
//! while it lives. Decides that and nothing else.

use vgpu_abi::interval::Interval;
use vgpu_abi::limits::Policy;
use vgpu_abi::targets::{Ahead, Grant};
use vgpu_abi::waits::WaitCause;

use crate::base::clock;
use crate::holdings::mps;
use crate::state::accounts::Accounts;
use crate::state::launches::costs::estimate::{self, Beside};
use crate::state::launches::roster::RosterState;

/// An arbiter that has not written for this long does not count.
const FRESH_NS: u64 = 300_000_000;
/// The time of the last write in targets that no arbiter has written yet.
const NEVER_NS: u64 = 0;

/// Which rate counts for this container on a device now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    /// Thousandths of the device.
    pub(super) permille: u32,
    /// The weight of a nanosecond of the container's own time, in parts of [`Grant::ONE`].
    pub(super) scale: u32,
    /// The other work on the device.
    pub(super) beside: Beside,
    /// The container is measured and bounded although no cap holds.
    is_measured: bool,
    /// The arbiter grants less than the container's cap.
    is_below_cap: bool,
    /// The first launch after each publication of the targets rings the doorbell.
    pub(super) rings: bool,
    /// How much may be in flight.
    pub(super) ahead: Ahead,
    /// The part of each period in which its launches are admitted; `None` if they are at any time.
    pub(super) interval: Option<Interval>,
    /// An arbiter decides about the device, or no container's time counts there.
    pub(super) has_arbiter: bool,
}

impl Rate {
    const FREE: Self = Self {
        permille: 1000,
        scale: Grant::ONE as u32,
        beside: Beside::NOTHING,
        is_measured: false,
        is_below_cap: false,
        rings: false,
        ahead: Ahead::Usual,
        interval: None,
        has_arbiter: true,
    };

    pub(super) fn is_free(&self) -> bool {
        self.permille >= 1000 && !self.is_measured
    }

    /// Whether other containers have the device, too, at work or not.
    pub(super) fn is_shared(&self) -> bool {
        self.is_measured && self.ahead != Ahead::Much
    }

    /// Whether much may be in flight: no cap, and no other container that has to have the device at once.
    pub(super) fn is_roomy(&self) -> bool {
        matches!(self.ahead, Ahead::Much | Ahead::Any) && !self.has_cap()
    }

    pub(super) fn has_cap(&self) -> bool {
        self.permille < 1000
    }

    /// Its cap, percent; 0 for none.
    pub(super) fn percent(&self) -> u32 {
        if self.has_cap() {
            self.permille / 10
        } else {
            0
        }
    }

    /// The charge to the account for a nanosecond of its own time, in parts of [`Grant::ONE`]: 0 in its intervals.
    pub(super) fn charged(&self) -> u32 {
        if self.interval.is_some() {
            0
        } else {
            self.scale
        }
    }

    /// The cause for which a launch without credit waits.
    pub(super) fn bound_by(&self) -> WaitCause {
        if self.is_below_cap {
            WaitCause::Grant
        } else {
            WaitCause::Cap
        }
    }

    /// Nanoseconds of its own time as the account counts.
    pub(super) fn counted(&self, ns: u64) -> u64 {
        ns.saturating_mul(u64::from(self.scale)) / u64::from(Grant::ONE)
    }

    /// How long work of `ns` nanoseconds takes on a shared device, including the time slices of other processes.
    pub(super) fn with_turns(&self, ns: u64) -> u64 {
        estimate::scale(ns, estimate::WHOLE, self.beside.own_part)
    }
}

/// The rule: what the limits say, and what the arbiter grants while it lives.
fn rate_of(
    policy: Policy,
    core_percent: u32,
    grant: Option<Grant>,
    interval: Option<Interval>,
) -> Rate {
    let cap = match core_percent {
        0 | 100.. => 1000,
        percent => percent * 10,
    };
    if policy == Policy::Disable {
        return Rate::FREE;
    }
    let Some(grant) = grant else {
        return Rate {
            permille: cap,
            ..Rate::FREE
        };
    };
    let granted = u32::from(grant.permille);
    Rate {
        permille: if policy == Policy::Force {
            granted.min(cap)
        } else {
            granted
        },
        scale: scale_of_own(grant),
        beside: Beside {
            is_contended: grant.contended,
            own_part: u64::from(grant.own.max(1)),
            has_waiters: false,
            follows: true,
        },
        is_measured: grant.measured,
        is_below_cap: granted < cap,
        rings: grant.rings,
        ahead: grant.ahead,
        interval: interval.filter(|_| grant.measured),
        has_arbiter: true,
    }
}

/// The rate where no arbiter lives: a cap holds, in the interval that containers have found among themselves if there is
/// one. Where there can be none, each of the others is taken to use as much of the device as this one: what is measured
/// of launches that are longer than a turn counts less then, and no container starves. Where there can be one, all that
/// is measured counts: a container that others slow down comes to its cap by that, and asks for an interval.
fn by_itself(rate: Rate, interval: Option<Interval>, others: u32) -> Rate {
    let interval = interval.filter(|_| rate.has_cap());
    let beside = match interval {
        // The neighbour whose interval is over may still have a slice: a launch that waits for its end measures that
        // slice, too. If the wait counted as own time, the loss between intervals would not show, and the period would
        // stay too short.
        Some(_) => Beside {
            is_contended: true,
            ..Beside::NOTHING
        },
        None => Beside {
            is_contended: others > 0,
            own_part: estimate::WHOLE / u64::from(others.saturating_add(1)).min(estimate::WHOLE),
            ..Beside::NOTHING
        },
    };
    Rate {
        interval,
        beside,
        has_arbiter: false,
        ..rate
    }
}

/// The factor of a grant's scale that corrects the container's own time: the rest of it takes out other
/// containers' turns.
fn scale_of_own(grant: Grant) -> u32 {
    let scale = u32::from(grant.scale.max(1)) * u32::from(Grant::ONE);
    (scale / u32::from(grant.own.max(1))).max(1)
}

/// Whether an arbiter that last wrote at `heartbeat_ns` lives; `None`: there is none.
fn is_alive(heartbeat_ns: Option<u64>, now_ns: u64) -> bool {
    heartbeat_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < FRESH_NS)
}

/// Whether an arbiter that has not written anything yet may still come: it looks for new containers at each tick.
fn may_come(heartbeat_ns: Option<u64>, first_launch_ns: impl FnOnce() -> u64, now_ns: u64) -> bool {
    heartbeat_ns == Some(NEVER_NS) && now_ns.saturating_sub(first_launch_ns()) < FRESH_NS
}

/// The rate where an arbiter lives. One that has not met this process yet will have within a tick: until then the
/// process is measured, and nothing is put on the device that could not be taken back.
fn by_arbiter(rate: Rate, has_grant: bool) -> Rate {
    Rate {
        is_measured: rate.is_measured || !has_grant,
        ..rate
    }
}

pub(super) fn rate(accounts: &Accounts, device: usize, now_ns: u64) -> Rate {
    let (policy, percent) = accounts.process.compute_limit(accounts.container, device);
    if policy == Policy::Disable || mps::under_mps(accounts, device) {
        // Kernels of several processes run at the same time under MPS: its server shares.
        return Rate::FREE;
    }
    let heartbeat_ns = accounts.container.arbiter_heartbeat_ns();
    let arbiter_lives = is_alive(heartbeat_ns, now_ns);
    let grant = arbiter_lives
        .then(|| accounts.container.grant(device))
        .flatten();
    let interval = accounts.container.interval(device);
    let rate = rate_of(policy, percent, grant, interval);
    let first_launch_ns = || accounts.process.compute.first_launch_ns(now_ns);
    if may_come(heartbeat_ns, first_launch_ns, now_ns) {
        return by_arbiter(rate, false);
    }
    if heartbeat_ns.is_some() && !arbiter_lives {
        // Or this process has gone into another time namespace.
        clock::doubt();
    }
    if !arbiter_lives {
        let part = accounts.process.compute.device(device).map(|it| &it.part);
        let interval = part.and_then(RosterState::interval);
        return by_itself(rate, interval, part.map_or(0, RosterState::others));
    }
    by_arbiter(rate, grant.is_some())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn arbiter_lives_for_300_ms_after_its_heartbeat() {
        const NOW_NS: u64 = 1_000_000_000;
        assert!(!is_alive(None, NOW_NS));
        assert!(is_alive(Some(NOW_NS - 299_999_999), NOW_NS));
        assert!(!is_alive(Some(NOW_NS - 300_000_000), NOW_NS));
        // It wrote after this process had read the clock.
        assert!(is_alive(Some(NOW_NS + 1), NOW_NS));
    }

    #[test]
    fn arbiter_that_has_not_written_may_come_for_300_ms_after_the_first_launch() {
        const FIRST_NS: u64 = 1_000_000_000;
        let may_come = |heartbeat, now_ns| may_come(heartbeat, || FIRST_NS, now_ns);
        assert!(may_come(Some(0), FIRST_NS));
        assert!(may_come(Some(0), FIRST_NS + 299_999_999));
        assert!(!may_come(Some(0), FIRST_NS + 300_000_000));
        // It has come, and there is none.
        assert!(!may_come(Some(1), FIRST_NS));
        assert!(!may_come(None, FIRST_NS));
    }

    #[test]
    fn process_that_the_arbiter_has_not_met_is_measured() {
        assert!(!by_arbiter(Rate::FREE, false).is_free());
        assert!(by_arbiter(Rate::FREE, true).is_free());
        let measured = Rate {
            is_measured: true,
            ..Rate::FREE
        };
        assert_eq!(by_arbiter(measured, true), measured);
    }

    fn any_policy() -> impl Strategy<Value = Policy> {
        proptest::sample::select(vec![
            Policy::Force,
            Policy::Default,
            Policy::Floor,
            Policy::Disable,
        ])
    }

    fn any_grant() -> impl Strategy<Value = Grant> {
        let ahead =
            proptest::sample::select(vec![Ahead::Usual, Ahead::Any, Ahead::Much, Ahead::Brief]);
        (any::<(u16, u16, u16, bool, bool, bool)>(), ahead).prop_map(
            |((permille, scale, own, contended, measured, rings), ahead)| Grant {
                permille,
                scale,
                own,
                contended,
                measured,
                rings,
                ahead,
            },
        )
    }

    fn any_interval() -> impl Strategy<Value = Option<Interval>> {
        proptest::option::of(any::<(u16, u32, u32)>().prop_map(
            |(period_ms, from_us, length_us)| Interval {
                period_ms,
                from_us,
                length_us,
            },
        ))
    }

    proptest! {
        /// No grant, whatever it says, gives a container with a forced cap more than that cap.
        #[test]
        fn no_grant_passes_a_forced_cap(
            percent in 1..100_u32, grant in proptest::option::of(any_grant()), interval in any_interval(),
        ) {
            let rate = rate_of(Policy::Force, percent, grant, interval);
            prop_assert!(rate.permille <= percent * 10 && rate.has_cap() && !rate.is_free());
        }

        /// A grant counts as it is, unless the cap is forced; without one the cap counts; a container without limits is
        /// free.
        #[test]
        fn grant_counts_where_there_is_one(
            policy in any_policy(), percent: u32, grant in proptest::option::of(any_grant()),
            interval in any_interval(),
        ) {
            let rate = rate_of(policy, percent, grant, interval);
            let cap = if matches!(percent, 0 | 100..) { 1_000 } else { percent * 10 };
            match (policy, grant) {
                (Policy::Disable, _) => prop_assert!(rate.is_free()),
                (_, None) => prop_assert_eq!(rate.permille, cap),
                (Policy::Force, Some(grant)) => {
                    prop_assert_eq!(rate.permille, u32::from(grant.permille).min(cap));
                }
                (_, Some(grant)) => prop_assert_eq!(rate.permille, u32::from(grant.permille)),
            }
        }

        /// Time is never counted as nothing, however the arbiter weighs it, and only a container that is measured has an
        /// interval.
        #[test]
        fn weight_is_never_zero(
            policy in any_policy(), percent: u32, grant in any_grant(), interval in any_interval(),
        ) {
            let rate = rate_of(policy, percent, Some(grant), interval);
            prop_assert!(rate.scale > 0 && rate.beside.own_part > 0);
            prop_assert!(rate.interval.is_none() || rate.is_measured);
            prop_assert_eq!(rate.charged() == 0, rate.interval.is_some());
            // No sum passes the end of its range.
            prop_assert!(rate.counted(u64::MAX) > 0);
            prop_assert!(rate.with_turns(u64::MAX) > 0);
        }

        /// Without an arbiter a cap is what it was, and nothing is granted beyond it.
        #[test]
        fn cap_is_the_same_without_an_arbiter(
            policy in any_policy(), percent: u32, interval in any_interval(), others: u32,
        ) {
            let alone = rate_of(policy, percent, None, None);
            let rate = by_itself(alone, interval, others);
            prop_assert_eq!((rate.permille, rate.has_arbiter), (alone.permille, false));
            prop_assert!(rate.interval.is_none() || rate.has_cap());
            prop_assert!(rate.beside.own_part > 0);
        }
    }

    const GRANT: Grant = Grant {
        permille: 400,
        scale: Grant::ONE,
        own: Grant::ONE,
        contended: true,
        measured: true,
        rings: false,
        ahead: Ahead::Usual,
    };

    #[test]
    fn without_an_arbiter_the_cap_counts_whatever_the_policy() {
        for policy in [Policy::Force, Policy::Default, Policy::Floor] {
            assert_eq!(rate_of(policy, 30, None, None).permille, 300);
            assert!(rate_of(policy, 0, None, None).is_free());
            assert!(rate_of(policy, 100, None, None).is_free());
        }
        assert!(rate_of(Policy::Disable, 30, None, None).is_free());
    }

    #[test]
    fn without_an_arbiter_a_cap_holds_in_the_containers_interval() {
        let interval = Interval {
            period_ms: 50,
            from_us: 0,
            length_us: 15_000,
        };
        let by_itself = |percent, interval, others| {
            let rate = rate_of(Policy::Force, percent, None, None);
            by_itself(rate, interval, others)
        };

        let capped = by_itself(30, Some(interval), 3);
        assert_eq!((capped.interval, capped.percent()), (Some(interval), 30));
        assert_eq!(capped.charged(), 0);
        // The wait for the neighbour before it is not a launch's own time.
        assert!(capped.beside.is_contended);
        assert_eq!(capped.beside.own_part, estimate::WHOLE);
        // One without an interval, beside one other and beside none, and one without a cap.
        let beside = by_itself(30, None, 1).beside;
        assert_eq!(
            (beside.is_contended, beside.own_part),
            (true, estimate::WHOLE / 2)
        );
        assert_eq!(by_itself(30, None, 0).beside, Beside::NOTHING);
        assert!(by_itself(30, None, u32::MAX).beside.own_part > 0);
        let free = by_itself(0, Some(interval), 1);
        assert!(free.is_free() && free.interval.is_none() && free.percent() == 0);
    }

    #[test]
    fn arbiters_grant_counts_and_a_forced_cap_still_holds() {
        assert_eq!(rate_of(Policy::Force, 30, Some(GRANT), None).permille, 300);
        assert_eq!(rate_of(Policy::Force, 50, Some(GRANT), None).permille, 400);
        assert_eq!(
            rate_of(Policy::Default, 30, Some(GRANT), None).permille,
            400
        );
        assert_eq!(rate_of(Policy::Floor, 0, Some(GRANT), None).permille, 400);
        assert!(rate_of(Policy::Disable, 30, Some(GRANT), None).is_free());
    }

    #[test]
    fn measured_container_is_not_free_and_a_waiting_one_has_zero() {
        let waits = Grant {
            permille: 0,
            ..GRANT
        };
        assert_eq!(rate_of(Policy::Floor, 0, Some(waits), None).permille, 0);
        let whole = Grant {
            permille: 1000,
            ..GRANT
        };
        assert!(!rate_of(Policy::Default, 0, Some(whole), None).is_free());
        let unmeasured = Grant {
            measured: false,
            ..whole
        };
        assert!(rate_of(Policy::Default, 0, Some(unmeasured), None).is_free());
    }

    #[test]
    fn launch_without_credit_waits_for_the_lower_of_cap_and_grant() {
        let bound = |percent, grant| rate_of(Policy::Floor, percent, grant, None).bound_by();

        assert_eq!(bound(30, None), WaitCause::Cap);
        assert_eq!(bound(40, Some(GRANT)), WaitCause::Cap);
        assert_eq!(bound(41, Some(GRANT)), WaitCause::Grant);
        assert_eq!(bound(0, Some(GRANT)), WaitCause::Grant);
    }

    #[test]
    fn a_scale_turns_what_was_measured_into_what_is_counted() {
        let rate = Rate {
            scale: u32::from(Grant::ONE / 2),
            ..Rate::FREE
        };
        assert_eq!(rate.counted(1_000_000), 500_000);
    }
}
