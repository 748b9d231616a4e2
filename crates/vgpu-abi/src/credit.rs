//! Compute credit: one account for each container and device, in nanoseconds of GPU time. The clock
//! fills it at the container's rate up to a small maximum; launches take their expected cost from it
//! in advance, and the measured time settles the difference afterwards. Owns the arithmetic on the
//! words that all processes share.
//!
//! Never waits, reads a clock or makes a system call: it answers how long to wait. A process that is
//! killed between two of its steps loses at most what it was about to take.
//!
//! The invariants, for any number in any word (`invariants.rs` tests them):
//! * a refill adds no more than the rate times the time since the refill before, takes nothing away, and fills no
//!   account beyond [`most_saved_ns`];
//! * no moment is earned twice, and what is paid of a debt is not added to the credit;
//! * a lease takes exactly the returned credit, and only from an account above zero; if it returns a wait, it takes
//!   nothing;
//! * a process that waits for the returned time is let in, if no other process took the credit meanwhile;
//! * no sum passes the end of its range.

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::{ComputeUse, RegionDevice};

/// The credit that a thread takes at a time, so that most of its launches touch no shared word, nanoseconds.
pub const LEASE_NS: u64 = 200_000;
/// All threads of a container together hold at most this much on a device, nanoseconds: a thread that sleeps may
/// spend its lease long after.
pub const MOST_LEASED_NS: u64 = 1_000_000;
/// One part in this many of earned credit pays debt: slowly, since two processes that wait for each other's
/// launches hold each other up for as long as either waits for credit.
const OWED_PART: u64 = 8;
/// An account saves up what its rate earns in this time at most, nanoseconds.
const SAVED_TIME_NS: u64 = 20_000_000;
/// No account saves up more GPU time than this, nanoseconds.
const MOST_SAVED_NS: u64 = 5_000_000;
/// A new account has this part of what it may save up.
const FIRST_PART: u64 = 4;
/// A lease is this part of the account at most, so that the next thread finds some, too.
const LEASED_PART: u64 = 8;
/// A refill time this far in the future was written by another clock. From here on this clock counts; used time is
/// owed all the same.
const ANOTHER_CLOCK_NS: u64 = 1_000_000_000;

/// The most that is saved up at this rate (thousandths of the device), nanoseconds: enough that a
/// program below its rate never waits, and little enough that no tenth of a second shows it.
#[must_use]
pub fn most_saved_ns(permille: u32) -> u64 {
    (SAVED_TIME_NS / 1_000 * u64::from(permille)).min(MOST_SAVED_NS)
}

/// The time in which an account earns `ns` at this rate, nanoseconds, rounded up; `u64::MAX` if the rate is 0.
#[must_use]
pub fn time_to_earn_ns(ns: u64, permille: u32) -> u64 {
    if permille == 0 {
        return u64::MAX;
    }
    let time = (u128::from(ns) * 1000).div_ceil(u128::from(permille));
    u64::try_from(time).unwrap_or(u64::MAX)
}

/// Puts into the account what was earned since it was filled last. Of several processes that do so
/// at once, one does.
pub(crate) fn refill(cells: &RegionDevice, now_ns: u64, permille: u32) {
    // Relaxed: the exchange decides; nothing but numbers is guarded.
    let mut at = cells.credit_at_ns.load(Ordering::Relaxed);
    loop {
        let is_first = at == 0;
        let is_other_clock = at > now_ns.saturating_add(ANOTHER_CLOCK_NS);
        if !is_first && !is_other_clock && at >= now_ns {
            // Another process has filled it up to here.
            return;
        }
        let earned = if is_first {
            // A quarter of it to begin with: nothing was saved yet, and launches whose cost
            // is not known come on top.
            most_saved_ns(permille) / FIRST_PART
        } else {
            let passed = u128::from(now_ns.saturating_sub(at));
            let earned = passed * u128::from(permille) / 1000;
            u64::try_from(earned).unwrap_or(u64::MAX)
        };
        // A rate of nothing still moves the time on, else the next rate would earn it all.
        if earned == 0 && permille != 0 && !is_other_clock {
            return;
        }
        // Whole nanoseconds were earned in a little less time than has passed. Rounded up, so that
        // no number of refills earns more than the time is worth.
        let paid_to = if is_first || is_other_clock || permille == 0 {
            now_ns
        } else {
            at.saturating_add(time_to_earn_ns(earned, permille))
                .min(now_ns)
        };
        let next = cells.credit_at_ns.compare_exchange(
            at,
            paid_to.max(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        match next {
            Ok(_) if is_first => return begin(&cells.credit_ns, earned),
            Ok(_) if is_other_clock => return,
            Ok(_) => {
                let rest = earned - pay(&cells.owed_ns, earned / OWED_PART);
                return earn(&cells.credit_ns, rest, most_saved_ns(permille));
            }
            Err(seen) => at = seen,
        }
    }
}

/// Adds to an account, but not beyond the most; an account that holds more already keeps it.
fn earn(credit: &AtomicU64, ns: u64, most: u64) {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let ns = i64::try_from(ns).unwrap_or(i64::MAX);
    let next = |old: u64| {
        let old = old.cast_signed();
        (old < most).then(|| old.saturating_add(ns).min(most).cast_unsigned())
    };
    // Relaxed: a number; nothing else is guarded.
    let _old = credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
}

/// Pays debt, up to `most_ns`; returns how much was paid.
fn pay(owed: &AtomicU64, most_ns: u64) -> u64 {
    // Relaxed: numbers; nothing else is guarded.
    if owed.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    let less = |old: u64| Some(old.saturating_sub(most_ns));
    // Relaxed: as above.
    let old = owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    old.unwrap_or(0).min(most_ns)
}

/// A new account.
fn begin(credit: &AtomicU64, ns: u64) {
    let ns = i64::try_from(ns).unwrap_or(i64::MAX);
    let next = |old: u64| Some(old.cast_signed().max(ns).cast_unsigned());
    // Relaxed: a number; nothing else is guarded.
    let _old = credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
}

/// Changes an account by this much; below zero is debt. Stops at the ends of the range, so that no debt turns into
/// credit.
fn change(credit: &AtomicU64, ns: i64) {
    let next = |old: u64| Some(old.cast_signed().saturating_add(ns).cast_unsigned());
    // Relaxed: a number; nothing else is guarded.
    let _old = credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
}

/// Adds to a sum that stays at zero where more is taken off than it holds.
fn add_signed(word: &AtomicU64, ns: i64) {
    let next = |old: u64| Some(old.saturating_add_signed(ns));
    // Relaxed: a number; nothing else is guarded.
    let _old = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
}

fn take_away(word: &AtomicU64, ns: u64) {
    let less = |old: u64| Some(old.saturating_sub(ns));
    // Relaxed: a number; nothing else is guarded.
    let _old = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// One process's use of the credit of its container on one device.
#[derive(Clone, Copy)]
pub struct Compute<'a> {
    pub(crate) device: &'a RegionDevice,
    pub(crate) own: &'a ComputeUse,
    /// Slot and generation, packed.
    pub(crate) packed: u64,
}

impl Compute<'_> {
    /// Takes `want_ns`, and where there is enough a little more for the launches that follow: how
    /// much more. An account above zero gives all that is wanted, and goes into debt. Otherwise returns the time
    /// until the account is above zero, nanoseconds.
    ///
    /// # Errors
    /// How long to wait, nanoseconds; `u64::MAX` at no rate.
    pub fn lease(&self, want_ns: u64, now_ns: u64, permille: u32) -> Result<u64, u64> {
        self.lease_at_most(want_ns, LEASE_NS, now_ns, permille)
    }

    /// The same with another bound on what is taken for the launches that follow, nanoseconds.
    ///
    /// # Errors
    /// As [`Compute::lease`].
    pub fn lease_at_most(
        &self,
        want_ns: u64,
        most_ns: u64,
        now_ns: u64,
        permille: u32,
    ) -> Result<u64, u64> {
        refill(self.device, now_ns, permille);
        let credit = &self.device.credit_ns;
        if permille == 0 {
            return Err(u64::MAX);
        }
        // Relaxed: a number; nothing else is guarded.
        let mut old = credit.load(Ordering::Relaxed);
        loop {
            let have = old.cast_signed();
            if have <= 0 {
                return Err(time_to_earn_ns(have.unsigned_abs() + 1, permille));
            }
            let more = (have.unsigned_abs() / LEASED_PART).min(most_ns);
            // Relaxed: a bound that may be passed by a few threads' leases at once.
            let leased = self.device.leased_ns.load(Ordering::Relaxed);
            let fits = want_ns < more && leased < MOST_LEASED_NS;
            let granted = if fits { more } else { want_ns };
            let next = have.saturating_sub_unsigned(granted).cast_unsigned();
            match credit.compare_exchange(old, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    let more = granted - want_ns;
                    // Relaxed: numbers. This process's own word first, because a reaper takes away what it holds.
                    self.own.leased_ns.fetch_add(more, Ordering::Relaxed);
                    self.device.leased_ns.fetch_add(more, Ordering::Relaxed);
                    return Ok(more);
                }
                Err(seen) => old = seen,
            }
        }
    }

    /// Puts into the account what was earned, for a launch that takes nothing from it: what its container used while
    /// no cap held is paid by the time that has passed, and no later launch is forgiven anything.
    pub fn fill(&self, now_ns: u64, permille: u32) {
        refill(self.device, now_ns, permille);
    }

    /// Ends a thread's lease: `more_ns` is what [`Compute::lease`] gave beyond the request, and `unused_ns` of it is
    /// returned to the account.
    pub fn end_lease(&self, more_ns: u64, unused_ns: u64) {
        take_away(&self.device.leased_ns, more_ns);
        take_away(&self.own.leased_ns, more_ns);
        change(
            &self.device.credit_ns,
            i64::try_from(unused_ns.min(more_ns)).unwrap_or(i64::MAX),
        );
    }

    /// Settles a charge made in advance: the work used `ns` more (or less) credit than was taken.
    pub fn settle(&self, ns: i64) {
        change(&self.device.credit_ns, ns.saturating_neg());
    }

    /// Adds `ns` of used GPU time to the debt instead of charging it at once. From now on an eighth of the earned
    /// credit pays the debt.
    pub fn owe(&self, ns: u64) {
        let more = |old: u64| Some(old.saturating_add(ns));
        let owed = &self.device.owed_ns;
        // Relaxed: a number; nothing else is guarded.
        let _old = owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// The account's credit, nanoseconds; below zero is debt.
    #[must_use]
    pub fn credit_ns(&self) -> i64 {
        // Relaxed: a number.
        self.device.credit_ns.load(Ordering::Relaxed).cast_signed()
    }

    /// GPU time that this process used (or, below zero, did not use after all), nanoseconds.
    pub fn count_busy(&self, ns: i64) {
        add_signed(&self.own.busy_ns, ns);
        add_signed(&self.device.busy_ns, ns);
    }

    /// GPU time that all processes of the container have used so far, nanoseconds.
    #[must_use]
    pub fn container_busy_ns(&self) -> u64 {
        // Relaxed: a number.
        self.device.busy_ns.load(Ordering::Relaxed)
    }

    /// Time in which this process had work on the device (or, below zero, had none after all), whether it had the
    /// device then or another process did, nanoseconds.
    pub fn count_occupied(&self, ns: i64) {
        add_signed(&self.own.occupied_ns, ns);
    }

    /// Makes this process the one that has a launch of unknown cost in flight. False while another process has:
    /// see [`Compute::unknown_since_ns`].
    #[must_use]
    pub fn begin_unknown(&self, now_ns: u64) -> bool {
        let unknown = &self.device.unknown;
        // Relaxed: a mark; nothing else is guarded.
        match unknown.compare_exchange(0, self.packed, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                // Relaxed: a number.
                self.device.unknown_at_ns.store(now_ns, Ordering::Relaxed);
                self.own.unknown_launches.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// The launch of unknown cost is over. Only the process that began it ends it.
    pub fn end_unknown(&self) {
        // Relaxed: a mark; nothing else is guarded.
        let _whose = self.device.unknown.compare_exchange(
            self.packed,
            0,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// Since when a process has had a launch of unknown cost in flight, and whether it is this process;
    /// `None` when there is no such launch.
    #[must_use]
    pub fn unknown_since_ns(&self) -> Option<(u64, bool)> {
        // Relaxed: a mark and a number.
        let owner = self.device.unknown.load(Ordering::Relaxed);
        let at_ns = self.device.unknown_at_ns.load(Ordering::Relaxed);
        (owner != 0).then_some((at_ns, owner == self.packed))
    }

    /// Takes the mark away from the process that has it, which has shown no progress for too long.
    pub fn forget_unknown(&self) {
        // Relaxed: a mark; nothing else is guarded.
        self.device.unknown.store(0, Ordering::Relaxed);
    }

    /// The words that this process counts its launches in.
    #[must_use]
    pub fn own(&self) -> &ComputeUse {
        self.own
    }
}

impl core::fmt::Debug for Compute<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Compute")
            .field("credit_ns", &self.credit_ns())
            .finish_non_exhaustive()
    }
}

/// Whether work of this process is overdue by more than `patience_ns`: it runs far longer than it ever
/// did, so it may be waiting for another launch. The answer differs from one such state to the next; 0 is
/// no.
pub(crate) fn overdue(of: &ComputeUse, now_ns: u64, patience_ns: u64) -> u64 {
    // Relaxed: numbers.
    let in_flight_ns = of.in_flight_ns.load(Ordering::Relaxed);
    let expected_by_ns = of.expected_by_ns.load(Ordering::Relaxed);
    let progress_ns = of.progress_ns.load(Ordering::Relaxed);
    let since_ns = expected_by_ns.max(progress_ns);
    let is_overdue = in_flight_ns > 0 && now_ns.saturating_sub(since_ns) > patience_ns;
    if is_overdue { since_ns.max(1) } else { 0 }
}

/// Keeps the counts of a process that has ended, and empties its words.
pub(crate) fn keep(cells: &RegionDevice, of: &ComputeUse) {
    // Relaxed throughout: numbers for reports.
    let take = |word: &AtomicU64| word.swap(0, Ordering::Relaxed);
    take_away(&cells.leased_ns, take(&of.leased_ns));
    let past = &cells.past;
    for (to, from) in [
        (&past.launches, &of.launches),
        (&past.graph_launches, &of.graph_launches),
        (&past.busy_ns, &of.busy_ns),
        (&past.throttled_ns, &of.throttled_ns),
        (&past.waits, &of.waits),
        (&past.copies, &of.copies),
        (&past.copy_bytes, &of.copy_bytes),
        (&past.host_functions, &of.host_functions),
        (&past.unknown_launches, &of.unknown_launches),
        (&past.occupied_ns, &of.occupied_ns),
    ] {
        to.fetch_add(take(from), Ordering::Relaxed);
    }
    past.last_launch_ns
        .fetch_max(take(&of.last_launch_ns), Ordering::Relaxed);
    for word in [
        &of.in_flight_ns,
        &of.waiting_since_ns,
        &of.expected_by_ns,
        &of.progress_ns,
    ] {
        word.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod model {
    use super::*;
    use crate::atomic::AtomicU8;

    fn word() -> AtomicU64 {
        AtomicU64::new(0)
    }

    pub(crate) fn compute_use() -> ComputeUse {
        ComputeUse {
            launches: word(),
            graph_launches: word(),
            busy_ns: word(),
            in_flight_ns: word(),
            last_launch_ns: word(),
            throttled_ns: word(),
            waiting_since_ns: word(),
            leased_ns: word(),
            waits: word(),
            copies: word(),
            copy_bytes: word(),
            host_functions: word(),
            unknown_launches: word(),
            occupied_ns: word(),
            expected_by_ns: word(),
            progress_ns: word(),
        }
    }

    pub(crate) fn region_device() -> RegionDevice {
        RegionDevice {
            uuid: std::array::from_fn(|_| AtomicU8::new(0)),
            reserved_0: std::array::from_fn(|_| word()),
            shared: word(),
            context_bytes: word(),
            module_bytes: word(),
            physical_bytes: word(),
            wanted_ns: word(),
            last: word(),
            runtime_bytes: word(),
            reserved_1: std::array::from_fn(|_| word()),
            credit_ns: word(),
            credit_at_ns: word(),
            busy_ns: word(),
            leased_ns: word(),
            unknown: word(),
            unknown_at_ns: word(),
            owed_ns: word(),
            reserved_2: std::array::from_fn(|_| word()),
            past: compute_use(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, not(loom)))]
mod invariants;

#[cfg(all(test, loom))]
mod loom_tests;
