//! This process's memory of its launches: their costs, their measured times, the work under way on each
//! device, and which functions were not launched yet. Decides nothing: the rules do (`compute.rs`).

pub(crate) mod blocked;
pub(crate) mod costs;
pub(crate) mod first_uses;

pub(crate) mod roster;

pub(crate) mod spans;

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use blocked::Blocked;
use costs::Costs;
use costs::estimate::scale;
use first_uses::FirstUses;
use roster::RosterState;
use spans::Spans;
use vgpu_abi::layout::MAX_DEVICES;

/// Work launched to a stream between two marks, nanoseconds. A mark costs about 4 microseconds on a real device, less
/// than half a percent of this.
pub(crate) const DUE_NS: u64 = 1_000_000;

/// This process's knowledge of its launches. Wiped by a fork; all zeros is the beginning.
#[repr(C)]
pub(crate) struct State {
    /// Changes whenever what threads remember may be void; see [`Gate::epoch`].
    pub(crate) epoch: AtomicU64,
    /// Streams that capture, as far as we saw them begin.
    pub(crate) captures: AtomicU32,
    /// Functions and graphs that were handed out and not launched yet.
    pub(crate) first_uses: FirstUses,
    pub(crate) devices: [DeviceState; MAX_DEVICES],
    /// The generation of the targets for which the doorbell was rung, plus one; 0: never.
    rung: AtomicU64,
    /// Not 0: the arbiter waits for this process to rest.
    is_awaited: AtomicU32,
    /// When this process first launched; 0: never. Known only where the arbiter had not written the targets by then.
    first_launch_ns: AtomicU64,
    /// How long launches of the container's other processes had waited when that was last asked, nanoseconds.
    pub(crate) waited_elsewhere_ns: AtomicU64,
    pub(crate) spans: Spans,
    pub(crate) costs: Costs,
}

/// The work that this process has launched to one device.
#[repr(C)]
pub(crate) struct DeviceState {
    pub(crate) in_flight_ns: AtomicI64,
    /// When all launched work ends, if each launch takes as long as it was charged, nanoseconds.
    pub(crate) ends_at_ns: AtomicU64,
    /// How long work keeps the device busy that is charged [`PACE_ONE`], of late: less where kernels of several streams
    /// run side by side. 0: nothing has ended yet.
    pub(crate) pace: AtomicU64,
    /// When work was last seen to end, or a launch was let in by the progress rule.
    pub(crate) progress_ns: AtomicU64,
    /// How much too late the process's threads lately woke when they waited for room beside a container of a higher
    /// priority, nanoseconds.
    pub(crate) overslept_ns: AtomicU64,
    pub(crate) waiting: AtomicU32,
    /// Which overdue work launches were last let in for without credit, and how many.
    pub(crate) excuse: AtomicU64,
    pub(crate) excused: AtomicU32,
    /// Launches that were let in by the progress rule since something was last seen to end.
    pub(crate) stalls: AtomicU32,
    /// How long the program's threads have waited for the device.
    pub(crate) blocked: Blocked,
    /// The container's part in the timetable that containers without an arbiter find by themselves.
    pub(crate) part: RosterState,
}

/// One, in parts of which [`DeviceState::pace`] is given.
const PACE_ONE: u64 = 1 << 20;
/// A pace is the mean over this much charged work, nanoseconds.
const PACED_NS: u64 = 20_000_000;

impl DeviceState {
    /// How long work keeps the device busy that is charged `ns`, nanoseconds.
    pub(crate) fn paced(&self, ns: u64) -> u64 {
        // Relaxed: a number.
        match self.pace.load(Ordering::Relaxed) {
            0 => ns,
            pace => scale(ns, pace, PACE_ONE),
        }
    }

    /// Work has ended that was charged `done_ns`, and kept the device busy for `more_ns` more (less).
    pub(crate) fn learn_pace(&self, done_ns: u64, more_ns: i64) {
        let next = |old: u64| Some(pace(old, done_ns, more_ns));
        // Relaxed: a number.
        let _old = self
            .pace
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}

/// The pace after work that was charged `done_ns` and took `more_ns` more (less): between a 16th and 4 times.
fn pace(old: u64, done_ns: u64, more_ns: i64) -> u64 {
    if done_ns == 0 {
        return old;
    }
    let took_ns = done_ns.saturating_add_signed(more_ns);
    let now = scale(took_ns, PACE_ONE, done_ns).clamp(PACE_ONE / 16, PACE_ONE * 4);
    let old = if old == 0 { PACE_ONE } else { old };
    let weight_ns = done_ns.min(PACED_NS);
    if now > old {
        old + scale(now - old, weight_ns, PACED_NS)
    } else {
        old - scale(old - now, weight_ns, PACED_NS)
    }
}

impl State {
    /// When this process first launched: now, if it had not yet.
    pub(crate) fn first_launch_ns(&self, now_ns: u64) -> u64 {
        // Relaxed: a number, which is written once.
        let first =
            self.first_launch_ns
                .compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed);
        match first {
            Ok(_) => now_ns,
            Err(first_ns) => first_ns,
        }
    }

    /// Sets the process up; `number` differs between a process and its forked child, so that what a
    /// thread remembers does not count in the child.
    pub(crate) fn set_up(&self, number: u32) {
        // Relaxed: published with the process.
        self.epoch.store(u64::from(number) << 32, Ordering::Relaxed);
    }

    pub(crate) fn forget_gates(&self) {
        // Relaxed: see `passes`.
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a launch is the first one since the targets of this generation were published, for the process.
    pub(crate) fn is_first_since(&self, generation: u64) -> bool {
        let next = generation.wrapping_add(1);
        // Relaxed: a number. Of threads that launch at the same moment, one is the first.
        self.rung.load(Ordering::Relaxed) != next && self.rung.swap(next, Ordering::Relaxed) != next
    }

    /// Notes whether the arbiter waits for this process to rest.
    pub(crate) fn set_awaited(&self, is_awaited: bool) {
        let is_awaited = u32::from(is_awaited);
        // Relaxed: a hint.
        if self.is_awaited.load(Ordering::Relaxed) != is_awaited {
            self.is_awaited.store(is_awaited, Ordering::Relaxed);
        }
    }

    /// Whether it does.
    pub(crate) fn is_awaited(&self) -> bool {
        // Relaxed: a hint.
        self.is_awaited.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn device(&self, device: usize) -> Option<&DeviceState> {
        self.devices.get(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn pace_follows_the_work_that_has_ended() {
        // Nothing has ended: work takes what it is charged.
        assert_eq!(pace(0, 0, 0), 0);
        assert_eq!(pace(0, 5 * MS, 0), PACE_ONE);
        // Four streams side by side: a quarter after as much work as a pace is the mean of.
        let side_by_side = -15 * MS.cast_signed();
        assert_eq!(pace(PACE_ONE, PACED_NS, side_by_side), PACE_ONE / 4);
        assert_eq!(
            pace(PACE_ONE, PACED_NS / 2, side_by_side / 2),
            PACE_ONE / 8 * 5
        );
        // No work, however small its parts, makes it drift.
        let small = (0..10_000).fold(PACE_ONE / 4, |old, _| pace(old, 1_000, -750));
        assert_eq!(small, PACE_ONE / 4);
    }

    #[test]
    fn pace_stays_within_its_bounds() {
        for (more_ns, bound) in [(i64::MIN, PACE_ONE / 16), (i64::MAX, PACE_ONE * 4)] {
            let paced = (0..100).fold(PACE_ONE, |old, _| pace(old, PACED_NS, more_ns));
            assert_eq!(paced, bound);
        }
    }
}
