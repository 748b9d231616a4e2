//! Figures of a container's processes that only the host can measure: what their contexts and modules
//! really take, and memory that the region does not know of. Owns the comparison of NVML with the region;
//! the arbiter publishes it.
//!
//! Never reads or writes a file, never judges a number that moved while it was looked at.

use std::collections::{HashMap, HashSet};

use vgpu_abi::host::{SlotSnapshot, Snapshot};
use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::limits::DeviceUuid;
use vgpu_abi::targets::Target;

use crate::gpu::GpuProcess;
use crate::view::ContainerView;

/// Memory that the driver takes for each living process beyond the process's own buffers.
///
/// NVML and the region are read at different moments. So a figure counts only if the process's charges were
/// the same before and after NVML was asked, nothing was pending, the process holds no object together with
/// other processes (NVML counts such an object for one of them, but does not say which), and none of its
/// memory is managed memory beyond its container's share of the device (NVML counts at most the pages that
/// are on the device). Otherwise the earlier figure stays.
#[must_use]
pub fn measure(
    before: &Snapshot,
    held: &[GpuProcess],
    after: &Snapshot,
    uuids: &[DeviceUuid],
    known: &HashMap<(usize, u64), Target>,
) -> Vec<(usize, Target)> {
    let mut targets = Vec::new();
    // By device and slot: a region that a tenant has filled with objects costs one pass.
    let sharing: HashSet<(usize, usize)> = after
        .shared
        .iter()
        .flat_map(|object| object.holders.iter().map(|slot| (object.device, *slot)))
        .collect();
    for slot in before.slots.iter().filter(|slot| slot.alive) {
        let same = |other: &&SlotSnapshot| {
            other.slot == slot.slot && other.generation == slot.generation && other.alive
        };
        let Some(later) = after.slots.iter().find(same) else {
            continue;
        };
        let old = known.get(&(slot.slot, slot.generation)).copied();
        let mut target = old.unwrap_or_default();
        target.slot_generation = slot.generation;
        target.host_pid = slot.host_pid.unwrap_or(0);
        for (index, uuid) in uuids.iter().enumerate().take(MAX_DEVICES) {
            let (Some(was), Some(is)) = (slot.devices.get(index), later.devices.get(index)) else {
                continue;
            };
            let moved = was.confirmed_bytes != is.confirmed_bytes
                || was.buffer_bytes != is.buffer_bytes
                || was.pending_bytes != 0
                || is.pending_bytes != 0;
            let shares = sharing.contains(&(index, slot.slot));
            let Some(total) = nvml_bytes(held, slot.host_pid, uuid) else {
                continue;
            };
            let paged = was.oversubscribed_bytes != 0 || is.oversubscribed_bytes != 0;
            if moved || shares || paged {
                continue;
            }
            if let Some(overhead) = target.overhead_bytes.get_mut(index) {
                *overhead = total.saturating_sub(is.buffer_bytes);
            }
        }
        targets.push((slot.slot, target));
    }
    targets
}

fn nvml_bytes(held: &[GpuProcess], pid: Option<u32>, uuid: &DeviceUuid) -> Option<u64> {
    let pid = pid?;
    held.iter()
        .find(|p| p.pid == pid && p.uuid == uuid.as_str())?
        .used_bytes
}

impl ContainerView {
    /// Compares with what NVML sees of the container's processes, and fills in what the region
    /// does not know of. An object that several processes hold counts for each of them, so the
    /// figure may be too small where memory is shared, and never too large.
    pub fn account(&mut self, held: &[GpuProcess]) {
        let mut total = 0_u64;
        for device in &mut self.devices {
            // The arbiter's figure is of all processes and of several looks.
            let published = std::mem::take(&mut device.unaccounted_bytes);
            for process in &self.processes {
                let Some(pid) = process.host_pid else {
                    continue;
                };
                let seen = held.iter().find(|p| p.pid == pid && p.uuid == device.uuid);
                let Some(seen) = seen.and_then(|p| p.used_bytes) else {
                    continue;
                };
                let charged = process.devices.get(device.index).map_or(0, |used| {
                    used.confirmed_bytes
                        .saturating_add(used.pending_bytes)
                        .saturating_add(device.shared_bytes)
                });
                device.unaccounted_bytes = device
                    .unaccounted_bytes
                    .saturating_add(seen.saturating_sub(charged));
            }
            device.unaccounted_bytes = device.unaccounted_bytes.max(published);
            total = total.saturating_add(device.unaccounted_bytes);
        }
        self.unaccounted_bytes = total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Instance;
    use crate::view;
    use vgpu_abi::host::{Counters, DeviceSnapshot, DeviceUseSnapshot, SharedSnapshot};
    use vgpu_abi::layout::HOOK_GROUPS;
    use vgpu_abi::region::SharedKey;

    const MIB: u64 = 1 << 20;

    fn uuid() -> DeviceUuid {
        DeviceUuid::new("GPU-a").unwrap()
    }

    /// A region with one process, which has got these amounts from the driver.
    fn snapshot(buffers: u64, contexts: u64, pending: u64) -> Snapshot {
        let mut devices = [DeviceUseSnapshot::default(); MAX_DEVICES];
        devices[0] = DeviceUseSnapshot {
            confirmed_bytes: (buffers + contexts) * MIB,
            buffer_bytes: buffers * MIB,
            context_bytes: contexts * MIB,
            pending_bytes: pending * MIB,
            ..DeviceUseSnapshot::default()
        };
        let slot = SlotSnapshot {
            slot: 3,
            generation: 7,
            pid: 11,
            start_time: 0,
            pid_namespace: 0,
            name: String::from("x"),
            joined_unix_ns: 0,
            alive: true,
            gone_since_ns: 0,
            has_family: false,
            host_pid: Some(42),
            devices,
            hook_calls: [0; HOOK_GROUPS],
        };
        Snapshot {
            created_unix_ns: 0,
            read_at_ns: 0,
            devices: vec![DeviceSnapshot {
                uuid: uuid(),
                physical_bytes: 0,
                shared_bytes: 0,
                context_bytes: 0,
                module_bytes: 0,
                credit_ns: 0,
                busy_ns: 0,
                past: vgpu_abi::host::ComputeSnapshot::default(),
                waits: vgpu_abi::waits::Waits::default(),
            }],
            slots: vec![slot],
            shared: Vec::new(),
            ooms: Vec::new(),
            counters: Counters::default(),
        }
    }

    fn nvml(pid: u32, mib: Option<u64>) -> Vec<GpuProcess> {
        vec![GpuProcess {
            uuid: String::from("GPU-a"),
            pid,
            used_bytes: mib.map(|mib| mib * MIB),
            utilization_percent: None,
        }]
    }

    /// Overhead in MiB, as published after these looks.
    fn overhead(before: &Snapshot, held: &[GpuProcess], after: &Snapshot, known: u64) -> u64 {
        let mut old = Target::default();
        old.overhead_bytes[0] = known * MIB;
        let known = HashMap::from([((3, 7), old)]);
        let targets = measure(before, held, after, &[uuid()], &known);
        assert_eq!(targets.len(), 1);
        let (slot, target) = targets[0];
        assert_eq!((slot, target.slot_generation, target.host_pid), (3, 7, 42));
        target.overhead_bytes[0] / MIB
    }

    #[test]
    fn overhead_is_nvml_memory_beyond_the_buffers() {
        let quiet = snapshot(100, 300, 0);

        assert_eq!(overhead(&quiet, &nvml(42, Some(450)), &quiet, 0), 350);
        assert_eq!(overhead(&quiet, &nvml(42, Some(50)), &quiet, 0), 0);
    }

    #[test]
    fn charges_that_moved_keep_the_earlier_overhead() {
        let (quiet, more) = (snapshot(100, 300, 0), snapshot(200, 300, 0));
        let asking = snapshot(100, 300, 10);
        let held = nvml(42, Some(450));

        assert_eq!(overhead(&quiet, &held, &more, 333), 333);
        assert_eq!(overhead(&asking, &held, &quiet, 333), 333);
        assert_eq!(overhead(&quiet, &held, &asking, 333), 333);
        // A process of another number, and one of which NVML says nothing.
        assert_eq!(overhead(&quiet, &nvml(43, Some(450)), &quiet, 333), 333);
        assert_eq!(overhead(&quiet, &nvml(42, None), &quiet, 333), 333);
    }

    #[test]
    fn process_with_shared_objects_is_not_measured() {
        let mut shares = snapshot(100, 300, 0);
        shares.shared.push(SharedSnapshot {
            key: SharedKey([1, 2]),
            device: 0,
            bytes: MIB,
            holders: vec![3],
        });

        assert_eq!(overhead(&shares, &nvml(42, Some(450)), &shares, 333), 333);
    }

    #[test]
    fn process_with_oversubscribed_memory_is_not_measured() {
        let mut paged = snapshot(500, 300, 0);
        paged.slots[0].devices[0].oversubscribed_bytes = 400 * MIB;

        assert_eq!(overhead(&paged, &nvml(42, Some(450)), &paged, 333), 333);
    }

    #[test]
    fn reused_slot_inherits_no_overhead() {
        let quiet = snapshot(100, 300, 0);
        let mut old = Target::default();
        old.overhead_bytes[0] = 5;
        let known = HashMap::from([((3, 6), old)]);

        let targets = measure(&quiet, &[], &quiet, &[uuid()], &known);

        assert_eq!(targets[0].1.overhead_bytes[0], 0);
        let mut gone = quiet.clone();
        gone.slots[0].alive = false;
        assert_eq!(measure(&gone, &[], &gone, &[uuid()], &known), []);
        assert_eq!(measure(&quiet, &[], &gone, &[uuid()], &known), []);
    }

    #[test]
    fn zeroed_slot_shows_as_unaccounted() {
        let dir = tempfile::tempdir().unwrap();
        let instance = Instance::open(dir.path()).unwrap();
        let limits = vgpu_abi::limits::Limits {
            devices: vec![vgpu_abi::limits::DeviceLimit {
                uuid: uuid(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let unaccounted = |snapshot: &Snapshot, held: &[GpuProcess]| {
            let mut view = view::tests::view(&instance, &limits, snapshot);
            view.account(held);
            assert_eq!(view.devices[0].unaccounted_bytes, view.unaccounted_bytes);
            view.unaccounted_bytes / MIB
        };
        let held = nvml(42, Some(400));

        assert_eq!(unaccounted(&snapshot(100, 300, 0), &held), 0);
        assert_eq!(unaccounted(&snapshot(50, 300, 50), &held), 0);
        assert_eq!(unaccounted(&snapshot(0, 0, 0), &held), 400);
        assert_eq!(unaccounted(&snapshot(0, 0, 0), &nvml(43, Some(400))), 0);
    }
}
