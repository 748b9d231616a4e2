//! Credit that threads hold in advance: how a thread's launches are added to the region and the spans, and how its
//! lease is returned.

use core::sync::atomic::Ordering;

use vgpu_abi::credit::Compute;
use vgpu_abi::targets::Grant;

use crate::base::clock;
use crate::guest::thread::thread;
use crate::state::accounts::{Accounts, Group};

/// `Gate::left_ns`: whatever comes may be launched.
pub(crate) const FREE: u64 = u64::MAX;

/// Counts work that is launched to a device now, nanoseconds. Answers the sum that is in flight.
pub(crate) fn add_launched(
    accounts: &Accounts,
    compute: &Compute<'_>,
    device: usize,
    ns: u64,
    now_ns: u64,
) -> u64 {
    if let Some(state) = accounts.process.compute.device(device) {
        let takes_ns = state.paced(ns);
        let next = |ends_ns: u64| Some(ends_ns.max(now_ns).saturating_add(takes_ns));
        // Relaxed: a time.
        let _old = state
            .ends_at_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
    let ns = i64::try_from(ns).unwrap_or(0);
    add_in_flight(accounts, compute, device, ns)
}

/// Counts work that is in flight on a device, nanoseconds; less where it is negative. Answers the sum.
pub(crate) fn add_in_flight(
    accounts: &Accounts,
    compute: &Compute<'_>,
    device: usize,
    ns: i64,
) -> u64 {
    let Some(state) = accounts.process.compute.device(device) else {
        return 0;
    };
    // Relaxed: a number; launches that race for it pass the bound by one each.
    let sum = state.in_flight_ns.fetch_add(ns, Ordering::Relaxed) + ns;
    let sum = u64::try_from(sum).unwrap_or(0);
    compute.own().in_flight_ns.store(sum, Ordering::Relaxed);
    sum
}

/// Adds to the region and the stream what this thread has launched since, and returns its lease.
pub(crate) fn tell(accounts: &Accounts) {
    thread(|thread| {
        let gate = &thread.gate;
        gate.key.set(0);
        let launches = gate.launches.replace(0);
        let work_ns = gate.work_ns.replace(0);
        let more_ns = gate.more_ns.replace(0);
        let left_ns = gate.left_ns.replace(0);
        if launches == 0 && more_ns == 0 || gate.owner.get() != accounts.process.number() {
            return;
        }
        let device = gate.device.get() as usize;
        let Some(compute) = accounts.container.region.compute(device) else {
            return;
        };
        // Relaxed: a counter.
        compute
            .own()
            .launches
            .fetch_add(u64::from(launches), Ordering::Relaxed);
        let region = &accounts.container.region;
        region.count_hooks(Group::Launch as usize, u64::from(launches));
        if left_ns == FREE {
            return;
        }
        let scale = u64::from(gate.scale.get());
        let unused = left_ns.saturating_mul(scale) / u64::from(Grant::ONE);
        compute.end_lease(more_ns, unused);
        if work_ns > 0 {
            compute.count_busy(i64::try_from(work_ns).unwrap_or(i64::MAX));
            compute.count_occupied(i64::try_from(work_ns).unwrap_or(i64::MAX));
            let at = gate.place.get().checked_sub(1);
            let now_ns = clock::now_ns();
            let noted = at.is_some_and(|at| {
                accounts
                    .process
                    .compute
                    .spans
                    .launched(at as usize, work_ns, now_ns)
            });
            if noted {
                let in_flight_ns = add_launched(accounts, &compute, device, work_ns, now_ns);
                // Relaxed: a time.
                compute
                    .own()
                    .expected_by_ns
                    .fetch_max(now_ns.saturating_add(in_flight_ns), Ordering::Relaxed);
            }
        }
    });
}
