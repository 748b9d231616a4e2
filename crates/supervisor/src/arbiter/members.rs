//! Which processes belong to a container, and which of them are dead. The kernel's locks on the region's
//! slots show it; a process that released its lock still belongs to the container as long as the driver holds
//! memory for it.
//!
//! Never trusts a region's data about a process.

use std::collections::{HashMap, HashSet};

use vgpu_abi::layout::MAX_SLOTS;

use super::look::Look;
use crate::gpu::GpuProcess;

/// A dead process is published for this long: by then the library has asked, or has stopped waiting.
const TOLD_NS: u64 = 10_000_000_000;

/// Processes that held a lock of the container, with their start times.
#[derive(Debug, Default)]
pub(super) struct Members(HashMap<u32, Option<u64>>);

impl Members {
    /// Takes those that hold a lock at the moment, and forgets those that the driver knows no more
    /// or whose number another process has. `start` returns when a process was started.
    pub(super) fn meet(
        &mut self,
        locked: &HashSet<u32>,
        held: &[GpuProcess],
        start: impl Fn(u32) -> Option<u64>,
    ) {
        let listed: HashSet<u32> = held.iter().map(|process| process.pid).collect();
        self.0.retain(|pid, at| {
            let is_same = || start(*pid).is_none_or(|now| Some(now) == *at);
            locked.contains(pid) || listed.contains(pid) && is_same()
        });
        for pid in locked {
            self.0.insert(*pid, start(*pid));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The memory that the driver holds for them on a device, bytes.
    pub(super) fn held_bytes(&self, held: &[GpuProcess], uuid: &str) -> u64 {
        held.iter()
            .filter(|process| process.uuid == uuid && self.0.contains_key(&process.pid))
            .filter_map(|process| process.used_bytes)
            .fold(0, u64::saturating_add)
    }
}

/// A process that is dead and whose slot may still have charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeadProcess {
    pub(super) host_pid: u32,
    pub(super) released: bool,
    since_ns: u64,
}

/// DeadProcess processes of a container, by slot and generation.
#[derive(Debug, Default)]
pub(super) struct DeadProcesses(HashMap<(usize, u64), DeadProcess>);

impl DeadProcesses {
    /// Compares two looks: a process that is in the first one alone is dead, or gave its lock away.
    pub(super) fn meet(&mut self, was: &Look, is: &Look, now_ns: u64) {
        let living: HashSet<usize> = is.processes.iter().map(|process| process.slot).collect();
        for process in &was.processes {
            let Some(host_pid) = process.host_pid else {
                continue;
            };
            // A tenant that renames its slots all the time fills no memory.
            if living.contains(&process.slot) || self.0.len() >= MAX_SLOTS {
                continue;
            }
            let dead = DeadProcess {
                host_pid,
                released: false,
                since_ns: now_ns,
            };
            self.0.insert((process.slot, process.generation), dead);
        }
        self.0.retain(|(slot, _), dead| {
            !living.contains(slot) && now_ns.saturating_sub(dead.since_ns) < TOLD_NS
        });
    }

    /// Takes what the driver says: it has let go of a process that it does not list any more.
    pub(super) fn told(&mut self, held: &[GpuProcess]) {
        for dead in self.0.values_mut() {
            dead.released = !held.iter().any(|process| process.pid == dead.host_pid);
        }
    }

    /// Whether the driver may still hold something for one of them.
    pub(super) fn is_waiting(&self) -> bool {
        self.0.values().any(|dead| !dead.released)
    }

    /// All of them, in order of slot.
    pub(super) fn all(&self) -> Vec<((usize, u64), DeadProcess)> {
        let mut all: Vec<_> = self.0.iter().map(|(key, dead)| (*key, *dead)).collect();
        all.sort_by_key(|(key, _)| *key);
        all
    }
}

/// When a process was started, in clock ticks since boot; `None` if there is no such process.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name in the second field may hold anything.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbiter::look::LivingProcess;

    fn held(pid: u32, bytes: u64) -> GpuProcess {
        GpuProcess {
            uuid: String::from("GPU-a"),
            pid,
            used_bytes: Some(bytes),
            utilization_percent: None,
        }
    }

    fn look(processes: &[(usize, u32)]) -> Look {
        let process = |(slot, pid): &(usize, u32)| LivingProcess {
            slot: *slot,
            generation: 7,
            host_pid: Some(*pid),
            keeps_intervals: true,
            devices: Vec::new(),
        };
        Look {
            processes: processes.iter().map(process).collect(),
            ..Look::default()
        }
    }

    #[test]
    fn process_without_lock_counts_while_the_driver_lists_it() {
        let mut members = Members::default();
        let all = [held(11, 300), held(12, 500)];
        members.meet(&HashSet::from([11]), &all, |_| Some(1));
        assert_eq!(members.held_bytes(&all, "GPU-a"), 300);
        assert_eq!(members.held_bytes(&all, "GPU-b"), 0);

        members.meet(&HashSet::new(), &all, |_| Some(1));
        assert_eq!(members.held_bytes(&all, "GPU-a"), 300);
        // The process is dead, and the driver has not released its memory yet.
        members.meet(&HashSet::new(), &all, |_| None);
        assert_eq!(members.held_bytes(&all, "GPU-a"), 300);
        // Another process has its number.
        members.meet(&HashSet::new(), &all, |_| Some(2));
        assert!(members.is_empty());
    }

    #[test]
    fn process_that_the_driver_does_not_list_is_forgotten() {
        let mut members = Members::default();
        members.meet(&HashSet::from([11]), &[], |_| Some(1));
        assert!(!members.is_empty());

        members.meet(&HashSet::new(), &[], |_| Some(1));

        assert!(members.is_empty());
    }

    #[test]
    fn dead_process_is_released_once_the_driver_drops_it() {
        let mut graves = DeadProcesses::default();
        graves.meet(&look(&[(3, 42), (4, 43)]), &look(&[(4, 43)]), 100);
        graves.told(&[held(42, 1)]);
        assert!(graves.is_waiting());

        graves.told(&[held(43, 1)]);

        assert!(!graves.is_waiting());
        let (key, dead) = graves.all()[0];
        assert_eq!((key, dead.host_pid, dead.released), ((3, 7), 42, true));
        // Another process has the slot.
        graves.meet(&look(&[]), &look(&[(3, 50)]), 200);
        assert_eq!(graves.all(), []);
    }

    #[test]
    fn dead_processes_are_published_for_ten_seconds() {
        let mut graves = DeadProcesses::default();
        graves.meet(&look(&[(3, 42)]), &look(&[]), 100);

        graves.meet(&look(&[]), &look(&[]), 100 + TOLD_NS);

        assert_eq!(graves.all(), []);
    }

    #[test]
    fn start_time_exists_only_for_a_living_process() {
        assert!(start_time(std::process::id()).is_some());
        assert_eq!(start_time(0x7fff_fff0), None);
    }
}
