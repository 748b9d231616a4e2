//! Compares charges with the driver's figures: what each process holds by NVML, what of it is charged to its
//! container, and which processes hold memory that is not charged. Values in, values out. Never acts on it:
//! what a living slot does not charge is published to the library as that slot's overhead by the arbiter
//! (`supervisor::overhead`), and charged at its next call.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

use supervisor::gpu::GpuProcess;
use supervisor::view::ContainerView;

/// The directory of the managed container that a process belongs to, by host pid.
pub type Owners = HashMap<u32, PathBuf>;

/// Adds to a container's unaccounted memory that of processes that have no slot in its region: a process that
/// clears its slot is recognized by its files and its control group.
pub fn add_slotless(view: &mut ContainerView, held: &[GpuProcess], owners: &Owners) {
    let slots: HashSet<u32> = view.processes.iter().filter_map(|p| p.host_pid).collect();
    for process in held.iter().filter(|process| !slots.contains(&process.pid)) {
        if owners.get(&process.pid) != Some(&view.path) {
            continue;
        }
        let Some(bytes) = process.used_bytes else {
            continue;
        };
        let device = view
            .devices
            .iter_mut()
            .find(|device| device.uuid == process.uuid);
        let Some(device) = device else { continue };
        device.unaccounted_bytes = device.unaccounted_bytes.saturating_add(bytes);
        view.unaccounted_bytes = view.unaccounted_bytes.saturating_add(bytes);
    }
}

/// Whether the library reaches every process of a container that the driver names: each of them has a slot.
#[must_use]
pub fn is_reached(view: &ContainerView, held: &[GpuProcess], owners: &Owners) -> bool {
    let has_slot = |pid: u32| view.processes.iter().any(|slot| slot.host_pid == Some(pid));
    let is_ours = |process: &&GpuProcess| owners.get(&process.pid) == Some(&view.path);
    let mut ours = held.iter().filter(is_ours);
    ours.all(|process| has_slot(process.pid))
}

/// A process and its memory on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holds {
    /// Its host pid.
    pub pid: u32,
    /// Memory that it holds, as the driver says.
    pub held_bytes: u64,
    /// The charged part of it; `None` if the process has no slot.
    pub charged_bytes: Option<u64>,
}

/// Memory of a container's device that is not charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The container's directory.
    pub path: PathBuf,
    /// The container's number of the device.
    pub device: usize,
    /// UUID of the device.
    pub uuid: String,
    /// How much.
    pub bytes: u64,
    /// The container's limit, bytes; 0 is no limit.
    pub limit_bytes: u64,
    /// The processes that hold it, the largest first.
    pub holders: Vec<Holds>,
}

/// The gaps between the driver's figures and the charges of a container; `view` has been through
/// [`ContainerView::account`] and [`add_slotless`].
#[must_use]
pub fn gaps(view: &ContainerView, held: &[GpuProcess], owners: &Owners) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for device in view
        .devices
        .iter()
        .filter(|device| device.unaccounted_bytes > 0)
    {
        let mut holders = Vec::new();
        for process in held.iter().filter(|process| process.uuid == device.uuid) {
            let Some(held_bytes) = process.used_bytes else {
                continue;
            };
            let slot = view
                .processes
                .iter()
                .find(|p| p.host_pid == Some(process.pid));
            let charged_bytes = slot.map(|slot| {
                slot.devices.get(device.index).map_or(0, |used| {
                    used.confirmed_bytes.saturating_add(used.pending_bytes)
                })
            });
            let is_its = slot.is_some() || owners.get(&process.pid) == Some(&view.path);
            if is_its && held_bytes > charged_bytes.unwrap_or(0) {
                holders.push(Holds {
                    pid: process.pid,
                    held_bytes,
                    charged_bytes,
                });
            }
        }
        holders.sort_by_key(|holds| {
            std::cmp::Reverse(
                holds
                    .held_bytes
                    .saturating_sub(holds.charged_bytes.unwrap_or(0)),
            )
        });
        gaps.push(Gap {
            path: view.path.clone(),
            device: device.index,
            uuid: device.uuid.clone(),
            bytes: device.unaccounted_bytes,
            limit_bytes: device.limit_bytes,
            holders,
        });
    }
    gaps
}

/// Memory held by processes outside the managed containers, by device and pid.
#[must_use]
pub fn unmanaged<'a>(
    held: &'a [GpuProcess],
    owners: &Owners,
    slots: &HashSet<u32>,
) -> BTreeMap<(&'a str, u32), u64> {
    let mut unmanaged = BTreeMap::new();
    for process in held {
        if slots.contains(&process.pid) || owners.contains_key(&process.pid) {
            continue;
        }
        if let Some(bytes) = process.used_bytes.filter(|bytes| *bytes > 0) {
            unmanaged.insert((process.uuid.as_str(), process.pid), bytes);
        }
    }
    unmanaged
}

/// Smaller gaps are normal, bytes: contexts and modules differ by this until the host has measured them.
const LEAST_BYTES: u64 = 256 << 20;
/// A gap is reported after this many looks in a row.
const LOOKS: u32 = 3;

/// Remembers for how many looks each gap has lasted.
#[derive(Debug, Default)]
pub struct StandingGaps(HashMap<(PathBuf, usize), u32>);

impl StandingGaps {
    /// The large gaps of one look that have stood for several looks.
    pub fn take(&mut self, gaps: Vec<Gap>) -> Vec<Gap> {
        let mut before = std::mem::take(&mut self.0);
        let mut stand = Vec::new();
        for gap in gaps {
            if gap.bytes < LEAST_BYTES.max(gap.limit_bytes / 20) {
                continue;
            }
            let key = (gap.path.clone(), gap.device);
            let looks = before.remove(&key).unwrap_or(0).saturating_add(1);
            self.0.insert(key, looks);
            if looks >= LOOKS {
                stand.push(gap);
            }
        }
        stand
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(bytes: u64, limit_bytes: u64) -> Gap {
        Gap {
            path: PathBuf::from("/c/a"),
            device: 0,
            uuid: String::from("GPU-1"),
            bytes,
            limit_bytes,
            holders: Vec::new(),
        }
    }

    #[test]
    fn large_lasting_gap_is_reported() {
        const GIB: u64 = 1 << 30;
        let mut standing = StandingGaps::default();
        let mut told = |bytes: u64, limit: u64| standing.take(vec![gap(bytes, limit)]).len();

        assert_eq!([told(GIB, 0), told(GIB, 0), told(GIB, 0)], [0, 0, 1]);
        assert_eq!(told(GIB, 0), 1, "the teller knows what it has said");
        // A twentieth of the limit is no gap, and restarts the count.
        assert_eq!(told(GIB, 40 * GIB), 0);
        assert_eq!([told(GIB, 0), told(GIB, 0)], [0, 0]);
        assert_eq!(standing.take(Vec::new()), []);
        assert_eq!(standing.take(vec![gap(GIB, 0)]), []);
    }

    #[test]
    fn unmanaged_memory_is_listed_by_gpu_and_process() {
        let held = |pid, used_bytes| GpuProcess {
            uuid: String::from("GPU-1"),
            pid,
            used_bytes,
            utilization_percent: None,
        };
        let held = [
            held(1, Some(5)),
            held(2, Some(7)),
            held(3, Some(9)),
            held(4, None),
        ];
        let owners = Owners::from([(1, PathBuf::from("/c/a"))]);

        let unmanaged = unmanaged(&held, &owners, &HashSet::from([2]));

        assert_eq!(unmanaged, BTreeMap::from([(("GPU-1", 3), 9)]));
    }
}
