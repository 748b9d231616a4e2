//! A container that the arbiter serves, with all that is remembered of it between two ticks: what its processes did,
//! what the driver holds for them, and which of them are dead.
//!
//! Decides no share: `device` does.

use std::collections::HashMap;

use vgpu_abi::host::Snapshot;
use vgpu_abi::layout::{CHARGE_BYTES_MASK, MAX_DEVICES};
use vgpu_abi::limits::{DeviceLimit, Policy};
use vgpu_abi::targets::{Target, Unaccounted};

use super::device::{self, Tenant};
use super::look::{self, ChargeSums, Look, ServedContainer, Use};
use super::members::{self, DeadProcesses, Members};
use super::{MEASURE_IDLE_NS, shares};
use crate::excess::{self, Excess};
use crate::gpu::GpuProcess;
use crate::view;

/// A container that has done nothing for longer than this rests, nanoseconds.
const REST_NS: u64 = 1_000_000_000;
/// A container that rests is looked at again after this, nanoseconds.
const AGAIN_NS: u64 = 95_000_000;

/// A container that is served.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) container: ServedContainer,
    pub(super) look: Look,
    /// The memory that the driver holds for its processes, by slot and generation.
    pub(super) known: HashMap<(usize, u64), Target>,
    /// The charges as they were when that was measured, and when.
    pub(super) measured: Option<(u64, Charges)>,
    /// Its processes by the kernel's locks, whatever its region says of them.
    pub(super) members: Members,
    pub(super) dead: DeadProcesses,
    /// Memory that the driver holds beyond the charges, by device: the last looks, and the accepted value.
    pub(super) excess: [Excess; MAX_DEVICES],
    pub(super) unaccounted: [Unaccounted; MAX_DEVICES],
    pub(super) looked_at_ns: u64,
    pub(super) active_at_ns: u64,
    /// When its doorbell could not be heard.
    pub(super) tried_ns: Option<u64>,
}

/// Charge words and launches, by slot, generation and device.
pub(super) type Charges = Vec<(usize, u64, Vec<([u64; 4], u64)>)>;

impl Served {
    pub(super) fn new(container: ServedContainer) -> Self {
        Self {
            container,
            look: Look::default(),
            known: HashMap::new(),
            measured: None,
            members: Members::default(),
            dead: DeadProcesses::default(),
            excess: std::array::from_fn(|_| Excess::default()),
            unaccounted: [Unaccounted::default(); MAX_DEVICES],
            looked_at_ns: 0,
            active_at_ns: 0,
            tried_ns: None,
        }
    }

    /// Whether it needs no look at this tick: it did nothing for a second, and was looked at a moment ago.
    pub(super) fn rests(&self, now_ns: u64) -> bool {
        rests(self.active_at_ns, self.looked_at_ns, now_ns)
    }

    /// Takes a look. For a process that is new here, the figures published before are used.
    pub(super) fn meet(&mut self, look: Look, now_ns: u64) {
        self.dead.meet(&self.look, &look, now_ns);
        self.look = look;
        let key = |process: &look::LivingProcess| (process.slot, process.generation);
        let mut old = std::mem::take(&mut self.known);
        for process in &self.look.processes {
            let inherited = || {
                let published = self.container.published(process.slot);
                published.filter(|target| target.slot_generation == process.generation)
            };
            let known = old.remove(&key(process)).or_else(inherited);
            self.known.insert(key(process), known.unwrap_or_default());
        }
    }

    /// Compares what the driver holds for the container's processes with the container's charges.
    pub(super) fn compare(&mut self, held: &[GpuProcess], before: Option<ChargeSums>) {
        self.dead.told(held);
        self.members
            .meet(&self.container.members(), held, members::start_time);
        let (Some(before), Ok(after)) = (before, self.container.charge_sums()) else {
            return;
        };
        let limits = &self.container.limits.devices;
        let each = limits.iter().zip(&mut self.excess);
        let each = each.zip(&mut self.unaccounted);
        let sums = before.devices.iter().zip(&after.devices);
        for (((limit, excess), unaccounted), (was, is)) in each.zip(sums) {
            let quiet = was == is && is.pending == 0;
            let bytes = excess.look(&excess::Comparison {
                held: self.members.held_bytes(held, limit.uuid.as_str()),
                before: was.used.saturating_add(was.pending),
                after: is.used.saturating_add(is.pending),
                limit: limit.memory_bytes,
                quiet,
            });
            *unaccounted = Unaccounted {
                bytes,
                beside: if bytes == 0 { 0 } else { is.used },
            };
        }
    }

    /// The charges that were looked at. For a container with objects that several processes hold, the whole
    /// region is read.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        if self.look.has_shared {
            view::snapshot_at(&self.container.path).ok()
        } else {
            Some(self.look.charges())
        }
    }

    pub(super) fn charges(&self) -> Charges {
        let of_process = |process: &look::LivingProcess| {
            let charges = process.devices.iter();
            let charges = charges.map(|used| (used.charges, used.launches)).collect();
            (process.slot, process.generation, charges)
        };
        self.look.processes.iter().map(of_process).collect()
    }

    pub(super) fn wants_measure(&self, now_ns: u64) -> bool {
        let Some((at_ns, charges)) = &self.measured else {
            return !self.look.processes.is_empty();
        };
        let age_ns = now_ns.saturating_sub(*at_ns);
        let holds = self.container.is_served()
            && (!self.look.processes.is_empty() || !self.members.is_empty());
        // Another look will soon decide which difference is accepted, or for which dead process the driver
        // still holds memory.
        let is_open = self.dead.is_waiting() || self.excess.iter().any(Excess::is_undecided);
        // Memory that no hooked call accounts for shows only in the driver's figure, and only processes that
        // launch load it.
        let mut uses = self
            .look
            .processes
            .iter()
            .flat_map(|process| &process.devices);
        let loads = uses.any(|used| used.loading);
        holds && (age_ns >= MEASURE_IDLE_NS || loads || is_open || *charges != self.charges())
    }

    pub(super) fn tenant(&self, index: usize, limit: &DeviceLimit) -> Tenant {
        let limits = &self.container.limits;
        let used =
            |process: &look::LivingProcess| process.devices.get(index).copied().unwrap_or_default();
        let sum = |part: &dyn Fn(&Use) -> u64| {
            let parts = self
                .look
                .processes
                .iter()
                .map(|process| part(&used(process)));
            parts.fold(0_u64, u64::saturating_add)
        };
        let shared = self.look.shared_bytes.get(index).copied().unwrap_or(0);
        let process = |known: &look::LivingProcess| process(known, &used(known));
        // At most what the limits allow, because a tenant can write any number into its region.
        let (most, past) = most_bytes(limit);
        Tenant {
            id: self.container.id,
            policy: limits.policy,
            priority: limits.priority,
            cap: cap_permille(limit, limits.policy),
            floor: limit.floor_percent.min(100) * 10,
            held_bytes: sum(&|used| used.held_bytes)
                .saturating_add(shared)
                .min(most),
            oversubscribed_bytes: sum(&|used| used.oversubscribed_bytes).min(past),
            keeps_intervals: self.container.is_served()
                && self
                    .look
                    .processes
                    .iter()
                    .all(|known| known.keeps_intervals),
            processes: self.look.processes.iter().map(process).collect(),
        }
    }
}

/// A process and its use of one device.
pub(super) fn process(process: &look::LivingProcess, used: &Use) -> device::Process {
    device::Process {
        slot: (process.slot, process.generation),
        host_pid: process.host_pid,
        launches: used.launches,
        busy_ns: used.busy_ns,
        occupied_ns: used.occupied_ns,
        in_flight_ns: used.in_flight_ns,
        last_launch_ns: used.last_launch_ns,
        expected_by_ns: used.expected_by_ns,
        ended_ns: used.ended_ns,
        waiting_since_ns: used.waiting_since_ns,
        throttled_ns: used.throttled_ns,
    }
}

fn rests(active_at_ns: u64, looked_at_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(active_at_ns) > REST_NS && now_ns.saturating_sub(looked_at_ns) < AGAIN_NS
}

/// The most that a container can hold of a device, and the most of that past its share of the
/// device's own memory, bytes.
fn most_bytes(limit: &DeviceLimit) -> (u64, u64) {
    let most = match (limit.memory_bytes, limit.resident_bytes) {
        (0, 0) if limit.physical_bytes != 0 => limit.physical_bytes,
        (0, _) => CHARGE_BYTES_MASK,
        (memory, _) => memory,
    };
    let past = match limit.resident_bytes {
        0 => 0,
        resident => most.saturating_sub(resident),
    };
    (most, past)
}

fn cap_permille(limit: &DeviceLimit, policy: Policy) -> u32 {
    match limit.core_percent {
        _ if policy == Policy::Disable => shares::WHOLE,
        0 | 100.. => shares::WHOLE,
        percent => percent * 10,
    }
}

/// The name that distinguishes a device: its UUID, or its index if the limits go by index.
pub(super) fn name_of(limit: &DeviceLimit, index: usize) -> String {
    if limit.uuid.is_empty() {
        format!("#{index}")
    } else {
        limit.uuid.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn container_rests_after_a_second_and_is_looked_at_now_and_then() {
        for (active_ms, looked_ms, rests_now) in [
            // Active a second ago, and longer ago.
            (9_000, 9_990, false),
            (8_999, 9_990, true),
            // Looked at 95 ms ago, and later.
            (1_000, 9_905, false),
            (1_000, 9_906, true),
            // Both are due.
            (9_500, 9_000, false),
        ] {
            let found = rests(active_ms * MS, looked_ms * MS, 10_000 * MS);
            assert_eq!(found, rests_now, "{active_ms} {looked_ms}");
        }
    }

    #[test]
    fn container_holds_at_most_what_its_limits_allow() {
        let limit = |memory_bytes, resident_bytes, physical_bytes| DeviceLimit {
            memory_bytes,
            resident_bytes,
            physical_bytes,
            ..DeviceLimit::default()
        };
        for (limit, most, past) in [
            (limit(40, 0, 80), 40, 0),
            // 30 of 40 bytes are the device's own memory.
            (limit(40, 30, 80), 40, 10),
            (limit(40, 50, 80), 40, 0),
            // Without a limit: the whole device, if its size is known and nothing may be past it.
            (limit(0, 0, 80), 80, 0),
            (limit(0, 0, 0), CHARGE_BYTES_MASK, 0),
            (limit(0, 30, 80), CHARGE_BYTES_MASK, CHARGE_BYTES_MASK - 30),
        ] {
            assert_eq!(most_bytes(&limit), (most, past), "{limit:?}");
        }
    }

    #[test]
    fn cap_is_none_at_0_and_from_100_percent_and_under_disable() {
        let cap = |core_percent, policy| {
            let limit = DeviceLimit {
                core_percent,
                ..DeviceLimit::default()
            };
            cap_permille(&limit, policy)
        };
        for policy in [Policy::Default, Policy::Force, Policy::Floor] {
            let caps = [0, 1, 99, 100, u32::MAX].map(|percent| cap(percent, policy));
            assert_eq!(caps, [1000, 10, 990, 1000, 1000], "{policy:?}");
        }
        assert_eq!(cap(30, Policy::Disable), 1000);
    }
}
