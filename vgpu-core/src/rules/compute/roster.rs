//! How a container without an arbiter finds its part of a device's timetable: from time to time a process says in the
//! host's roster what its container wants, and reads there what the others want. Decides nothing
//! (`vgpu_abi::roster` and `state/launches/roster.rs` do).

use core::sync::atomic::Ordering;

use vgpu_abi::credit::Compute;
use vgpu_abi::interval::Moment;
use vgpu_abi::roster::{self, Place, Roster};

use super::rate::{Rate, rate};
use crate::base::{clock, loader};
use crate::driver::genuine::cuda;
use crate::driver::query;
use crate::state::accounts::Accounts;
use crate::state::launches::DeviceState;
use crate::state::launches::roster::Counts;

/// Survives a fork: a forked child has the file open as well, and takes locks of its own.
static ROSTER: Roster = Roster::new();

/// The rate as of now, and when that is, nanoseconds: by what the roster says now, if there is no arbiter and it is time
/// to look.
pub(super) fn rate_now(accounts: &Accounts, compute: &Compute<'_>, device: usize) -> (Rate, u64) {
    let now_ns = clock::now_ns();
    let known = rate(accounts, device, now_ns);
    if look(accounts, compute, device, &known, now_ns) {
        return (rate(accounts, device, now_ns), now_ns);
    }
    (known, now_ns)
}

/// Looks at the roster, if there is no arbiter and it is time to: a few system calls every 50 ms, of which none waits.
/// Whether it did.
fn look(
    accounts: &Accounts,
    compute: &Compute<'_>,
    device: usize,
    rate: &Rate,
    now_ns: u64,
) -> bool {
    if rate.has_arbiter {
        return false;
    }
    let state = accounts.process.compute.device(device);
    let is_between = rate
        .interval
        .is_some_and(|interval| matches!(interval.at(now_ns), Moment::Closed { .. }));
    let Some(state) = state.filter(|state| state.part.is_due(is_between, now_ns)) else {
        return false;
    };
    exchange(accounts, compute, state, device, rate.percent(), now_ns);
    true
}

#[cold]
fn exchange(
    accounts: &Accounts,
    compute: &Compute<'_>,
    state: &DeviceState,
    device: usize,
    percent: u32,
    now_ns: u64,
) {
    let Some(own) = place(accounts, state, device) else {
        return;
    };
    let counts = counts(compute, state, now_ns);
    let entry = state.part.begin(percent, counts, now_ns);
    let files = || [cuda::LIBRARY.file(), ourselves()].into_iter().flatten();
    let begun_ns = clock::now_ns();
    let members = ROSTER.exchange(&own, entry, now_ns, files);
    state.part.took(clock::now_ns().saturating_sub(begun_ns));
    let interval = members
        .as_ref()
        .and_then(|members| roster::interval(&own, members));
    let others = members.map_or(0, |members| members.others_without_timetable(&own));
    state.part.end(interval, others, counts, now_ns);
}

/// This process's place in the roster of a device.
fn place(accounts: &Accounts, state: &DeviceState, device: usize) -> Option<Place> {
    // Relaxed: a number that never changes.
    let gpu = match state.part.gpu.load(Ordering::Relaxed) {
        0 => {
            let ordinal = accounts.ordinal_of(device)?;
            let [name, _] = query::device_uuids(ordinal)?;
            let gpu = name
                .chunks_exact(8)
                .filter_map(|half| half.try_into().ok())
                .fold(1, |sum, half| sum ^ u64::from_ne_bytes(half));
            // Relaxed: as above.
            state.part.gpu.store(gpu, Ordering::Relaxed);
            gpu
        }
        gpu => gpu,
    };
    let region = &accounts.container.region;
    let slot = region.own_slot()?.slot;
    Some(Place::new(gpu, region.file_number(), slot as u64))
}

fn counts(compute: &Compute<'_>, state: &DeviceState, now_ns: u64) -> Counts {
    let own = compute.own();
    // Relaxed throughout: numbers and times.
    let progress_ns = state.progress_ns.load(Ordering::Relaxed);
    let is_in_flight = state.in_flight_ns.load(Ordering::Relaxed) > 0;
    let period_ns = state
        .part
        .interval()
        .map_or(0, |interval| interval.period_ns());
    Counts {
        busy_ns: compute.container_busy_ns(),
        own_busy_ns: own.busy_ns.load(Ordering::Relaxed),
        own_launches: own.launches.load(Ordering::Relaxed)
            + own.graph_launches.load(Ordering::Relaxed),
        own_occupied_ns: own.occupied_ns.load(Ordering::Relaxed),
        is_held_up: is_in_flight && now_ns.saturating_sub(progress_ns) > period_ns * 2,
    }
}

fn ourselves() -> Option<Vec<u8>> {
    loader::ourselves()?.path().map(<[u8]>::to_vec)
}
