//! What a thread remembers of its launches, so that most of them look at nothing that is shared: one
//! lease, one stream, and the words that say whether both still count. Owns that memory, the look at it
//! ([`passes`]) and how it is told and given back ([`tell`]). Never waits, decides no rate.

use core::cell::Cell;
use core::sync::atomic::Ordering;

use cuda_api::{CuLaunchConfig, CuStream};
use vgpu_abi::targets::Grant;

use super::costs::Work;
use super::rate::rate;
use super::spans::Target;
use super::{DUE_NS, add_in_flight};
use crate::books::{self, Books};
use crate::border;
use crate::clock;
use crate::container::{self, Process, Standing};
use crate::guest;

/// What a thread remembers, so that most of its launches look at nothing else. All zeros: nothing.
#[repr(C)]
pub(crate) struct Gate {
    /// What [`State::epoch`] was, plus one; 0: closed.
    pub(super) epoch: Cell<u64>,
    /// The process that opened it: a forked child's threads owe nothing.
    pub(super) owner: Cell<u32>,
    pub(super) limits: Cell<u64>,
    pub(super) targets: Cell<u64>,
    /// The stream that it launched to last; [`ANY`]: every stream of every device is free.
    pub(super) stream: Cell<u64>,
    /// What may still be launched, nanoseconds; [`FREE`]: whatever comes.
    pub(super) left_ns: Cell<u64>,
    /// What was launched last, and what it costs, nanoseconds; looked up again on the slow way.
    pub(super) key: Cell<u64>,
    pub(super) cost: Cell<u64>,
    /// Launched since the slow way was last taken, nanoseconds.
    pub(super) work_ns: Cell<u64>,
    /// What the lease is beyond what was wanted then, as the account counts.
    pub(super) more_ns: Cell<u64>,
    /// What a measured nanosecond counts for.
    pub(super) scale: Cell<u32>,
    pub(super) launches: Cell<u32>,
    pub(super) untold: Cell<u32>,
    pub(super) device: Cell<u32>,
    /// The stream's number plus one.
    pub(super) place: Cell<u32>,
}

const ANY: u64 = u64::MAX;
const FREE: u64 = u64::MAX;
/// Launches that a thread counts before it tells. It begins with one and doubles, so that a short
/// program is seen, too.
const UNTOLD: u32 = 256;

/// The number by which the rules know a stream: the legacy and the thread's own one are 1 and 2.
#[inline(always)]
pub(crate) fn legacy(stream: CuStream) -> u64 {
    match stream as u64 {
        0 => 1,
        handle => handle,
    }
}

/// The same for functions of per-thread default streams.
#[inline(always)]
pub(crate) fn per_thread(stream: CuStream) -> u64 {
    match stream as u64 {
        0 => 2,
        handle => handle,
    }
}

/// May this launch go at once, without a look at anything that is shared? Then it is counted.
///
/// Stands outside of every rule, since it must cost next to nothing: it neither calls nor can panic, and
/// reads words that only this thread writes, and three that hardly ever change.
#[inline(always)]
pub(crate) fn passes(work: Work, stream: u64) -> bool {
    guest::thread(|thread| {
        let gate = &thread.gate;
        let Some((container, process)) = container::known_now() else {
            return container::is_transparent_now();
        };
        // Relaxed: whoever changes the word has nothing to tell beside it.
        let is_open = gate.epoch.get() == process.compute.epoch.load(Ordering::Relaxed) + 1
            && gate.limits.get() == container.limits_generation()
            && gate.targets.get() == container.targets_generation();
        if !is_open || gate.launches.get() >= gate.untold.get() {
            return false;
        }
        // What follows the look at the table stands in a function of its own, so that the usual way calls nothing
        // and saves no register.
        if process.compute.first_uses.is_any_waiting() {
            return passes_while_any_waits(gate, process, work, stream);
        }
        has_credit(gate, process, work, stream)
    })
}

/// The same while functions that were handed out wait for their first launch.
#[cold]
#[inline(never)]
fn passes_while_any_waits(gate: &Gate, process: &Process, work: Work, stream: u64) -> bool {
    !process.compute.first_uses.waits(work.function) && has_credit(gate, process, work, stream)
}

#[inline(always)]
fn has_credit(gate: &Gate, process: &Process, work: Work, stream: u64) -> bool {
    if gate.left_ns.get() == FREE && (gate.stream.get() == ANY || gate.stream.get() == stream) {
        gate.launches.set(gate.launches.get() + 1);
        return true;
    }
    if gate.stream.get() != stream {
        return false;
    }
    let cost = if gate.key.get() == work.key {
        gate.cost.get()
    } else {
        let Some(cost) = process.compute.costs.known(work.key) else {
            return false;
        };
        gate.key.set(work.key);
        gate.cost.set(cost);
        cost
    };
    let (Some(left), work_ns) = (
        gate.left_ns.get().checked_sub(cost),
        gate.work_ns.get() + cost,
    ) else {
        return false;
    };
    if work_ns >= DUE_NS {
        return false;
    }
    gate.left_ns.set(left);
    gate.work_ns.set(work_ns);
    gate.launches.set(gate.launches.get() + 1);
    true
}

/// The same for the structure of `cuLaunchKernelEx`.
#[inline(always)]
pub(crate) fn passes_config(config: *const CuLaunchConfig, function: usize, own: bool) -> bool {
    of_config(config, function, own).is_some_and(|(work, stream)| passes(work, stream))
}

#[inline(always)]
pub(super) fn of_config(
    config: *const CuLaunchConfig,
    function: usize,
    own: bool,
) -> Option<(Work, u64)> {
    let config = border::read(config)?;
    let stream = if own {
        per_thread(config.stream)
    } else {
        legacy(config.stream)
    };
    Some((
        Work::kernel(
            function,
            [config.grid_x, config.grid_y, config.grid_z],
            [config.block_x, config.block_y, config.block_z],
        ),
        stream,
    ))
}

/// Nothing stands in the way of launches to this stream, or to any.
pub(super) fn remember_free(books: &Books, target: &Target, stream: u64, now_ns: u64) {
    let devices = books.container.region.device_count();
    let all = (0..devices).all(|device| {
        device == target.device || {
            let (_, percent) = books.process.compute_limit(books.container, device);
            matches!(percent, 0 | 100..) && rate(books, device, now_ns).is_free()
        }
    });
    open_gate(books, |gate| {
        gate.stream.set(if all { ANY } else { stream });
        gate.left_ns.set(FREE);
        gate.device.set(u32::try_from(target.device).unwrap_or(0));
        gate.place.set(0);
    });
}

/// Remembers that nothing has changed up to here. Not while somebody captures.
pub(super) fn open_gate(books: &Books, set: impl FnOnce(&Gate)) {
    let state = &books.process.compute;
    guest::thread(|thread| {
        let gate = &thread.gate;
        set(gate);
        gate.limits.set(books.container.limits_generation());
        gate.targets.set(books.container.targets_generation());
        // Relaxed: see `passes`.
        let captures = state.captures.load(Ordering::Relaxed) > 0;
        let epoch = state.epoch.load(Ordering::Relaxed) + 1;
        gate.epoch.set(if captures { 0 } else { epoch });
        gate.owner.set(books.process.number());
        gate.untold.set((gate.untold.get() * 2).clamp(1, UNTOLD));
    });
}

/// Tells the region and the stream what this thread has launched since, and gives its lease back.
pub(super) fn tell(books: &Books) {
    guest::thread(|thread| {
        let gate = &thread.gate;
        gate.key.set(0);
        let launches = gate.launches.replace(0);
        let work_ns = gate.work_ns.replace(0);
        let more_ns = gate.more_ns.replace(0);
        let left_ns = gate.left_ns.replace(0);
        if launches == 0 && more_ns == 0 || gate.owner.get() != books.process.number() {
            return;
        }
        let device = gate.device.get() as usize;
        let Some(compute) = books.container.region.compute(device) else {
            return;
        };
        // Relaxed: a counter.
        compute
            .own()
            .launches
            .fetch_add(u64::from(launches), Ordering::Relaxed);
        let region = &books.container.region;
        region.count_hooks(books::Group::Launch as usize, u64::from(launches));
        if left_ns == FREE {
            return;
        }
        let scale = u64::from(gate.scale.get());
        let unused = left_ns.saturating_mul(scale) / u64::from(Grant::ONE);
        compute.end_lease(more_ns, unused);
        if work_ns > 0 {
            compute.count_busy(i64::try_from(work_ns).unwrap_or(i64::MAX));
            let at = gate.place.get().checked_sub(1);
            let now_ns = clock::now_ns();
            let noted = at.is_some_and(|at| {
                books
                    .process
                    .compute
                    .spans
                    .launched(at as usize, work_ns, now_ns)
            });
            if noted {
                let more = i64::try_from(work_ns).unwrap_or(0);
                let in_flight_ns = add_in_flight(books, &compute, device, more);
                // Relaxed: a time.
                compute
                    .own()
                    .expected_by_ns
                    .fetch_max(now_ns.saturating_add(in_flight_ns), Ordering::Relaxed);
            }
        }
    });
}

/// A thread ends: what it holds goes back.
pub(crate) fn thread_ends() {
    if let Standing::Ready(container, process) = container::standing() {
        tell(&Books { container, process });
        guest::thread(|thread| thread.gate.epoch.set(0));
    }
}
