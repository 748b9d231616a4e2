//! This process's memory of its launches: their costs, their measured times, the work under way on each
//! device, and which functions were not launched yet. Decides nothing: the rules do (`compute.rs`).

pub(crate) mod costs;
pub(crate) mod first_uses;

pub(crate) mod spans;

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use costs::Costs;
use first_uses::FirstUses;
use spans::Spans;
use vgpu_abi::layout::MAX_DEVICES;

/// So much is launched to a stream between two marks: what a mark costs (about 4 microseconds on a real
/// device) is less than half a percent of it.
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
    /// Not 0: the arbiter waits to see that this process is at rest.
    is_awaited: AtomicU32,
    /// How long launches of the container's other processes had waited when that was last asked, nanoseconds.
    pub(crate) waited_elsewhere_ns: AtomicU64,
    pub(crate) spans: Spans,
    pub(crate) costs: Costs,
}

/// The work that this process has launched to one device.
#[repr(C)]
pub(crate) struct DeviceState {
    pub(crate) in_flight_ns: AtomicI64,
    /// When work was last seen to end, or a launch was let in by the progress rule.
    pub(crate) progress_ns: AtomicU64,
    pub(crate) waiting: AtomicU32,
    /// Which overdue work launches were last let in for without credit, and how many.
    pub(crate) excuse: AtomicU64,
    pub(crate) excused: AtomicU32,
    /// Launches that were let in by the progress rule since something was last seen to end.
    pub(crate) stalls: AtomicU32,
}

impl State {
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

    /// Notes whether the arbiter waits to see that this process is at rest.
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
