//! Processes of a board: which have joined, what each has done, what the dead leave.

use super::turns::bits;
use super::{
    BusyStretch, FREE, MAX_CHANNELS, MAX_DEVICES, MAX_PROCESSES, ProcessTruth, ProcessWork,
    RawStretch, STRETCHES, Usage, WorkState,
};
use crate::process::Identity;

impl WorkState {
    /// Gives a process its place; `None` when there is no room.
    pub(in crate::exec) fn join(&mut self, identity: Identity) -> Option<u32> {
        let free = (0..MAX_PROCESSES)
            .find(|&i| self.processes[i].state == 0)
            .or_else(|| (0..MAX_PROCESSES).find(|&i| self.processes[i].state == 2))?;
        let zero = Usage {
            busy_ns: 0,
            copy_ns: 0,
            sampled_busy_ns: 0,
            sampled_copy_ns: 0,
            kernels: 0,
            copies: 0,
            stretch: 0,
            ran_ns: 0,
        };
        let usage = [zero; MAX_DEVICES];
        self.processes[free] = ProcessWork {
            state: 1,
            reserved: 0,
            identity,
            usage,
        };
        self.processes_used = self.processes_used.max(free as u64 + 1);
        Some(free as u32)
    }

    /// Drops what a process has queued; what it used is remembered.
    pub(in crate::exec) fn leave(&mut self, process: u32) {
        for index in 0..MAX_CHANNELS {
            if self.channels[index].state != FREE && self.channels[index].process == process {
                self.drop_channel(index);
            }
        }
        for index in 0..self.events_used as usize {
            if self.events[index].process == process + 1 {
                self.events[index].process = 0;
            }
        }
        for device in bits(self.devices_used) {
            let slice = self.slice(device).without(process);
            self.put_slice(device, slice);
        }
        if let Some(process) = self.processes.get_mut(process as usize) {
            process.state = 2;
        }
    }

    /// Looks for processes that are gone, and lets them leave.
    pub(in crate::exec) fn reap(&mut self, is_alive: impl Fn(&Identity) -> bool) {
        for index in 0..self.processes_used as usize {
            let process = &self.processes[index];
            if process.state == 1 && !is_alive(&process.identity) {
                self.leave(index as u32);
            }
        }
    }

    /// The same, but looks only at processes that have work queued: the others hold up no work.
    pub(in crate::exec) fn reap_busy(&mut self, is_alive: impl Fn(&Identity) -> bool) {
        let mut looked_at = [0_u64; MAX_PROCESSES / 64];
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            let owner = self.channels[index].process as usize;
            if owner >= MAX_PROCESSES || looked_at[owner / 64] >> (owner % 64) & 1 == 1 {
                continue;
            }
            looked_at[owner / 64] |= 1 << (owner % 64);
            let process = &self.processes[owner];
            if !is_alive(&process.identity) {
                self.leave(owner as u32);
            }
        }
    }

    /// The work of each process on a device, including dead processes.
    pub(in crate::exec) fn truth(&self, device: usize) -> Vec<ProcessTruth> {
        let known = &self.processes[..self.processes_used as usize];
        known
            .iter()
            .filter(|process| process.state != 0)
            .map(|process| {
                let usage = &process.usage[device];
                ProcessTruth {
                    pid: process.identity.pid,
                    start_time: process.identity.start_time,
                    alive: process.state == 1,
                    busy_ns: usage.busy_ns,
                    copy_ns: usage.copy_ns,
                    kernels: usage.kernels,
                    copies: usage.copies,
                }
            })
            .collect()
    }

    /// Nanoseconds in which any kernel held the device.
    pub(in crate::exec) fn device_busy_ns(&self, device: usize) -> u64 {
        self.devices[device].busy_ns
    }

    /// Whether the kernels of all processes run side by side.
    pub(in crate::exec) fn is_mps(&self) -> bool {
        self.mps != 0
    }

    /// Which processes held the device between two moments, cut at both, in the order in which each began; `None`
    /// when that is longer ago than what is kept.
    pub(in crate::exec) fn stretches(
        &self,
        device: usize,
        from_ns: u64,
        to_ns: u64,
    ) -> Option<Vec<BusyStretch>> {
        let log = &self.logs[device];
        if from_ns < log.forgotten_until_ns {
            return None;
        }
        let first = log.count.saturating_sub(STRETCHES as u64);
        Some(
            (first..log.count)
                .map(|count| log.ring[count as usize % STRETCHES])
                .map(|raw| BusyStretch {
                    pid: raw.pid,
                    from_ns: raw.from_ns.max(from_ns),
                    to_ns: raw.to_ns.min(to_ns),
                })
                .filter(|stretch| stretch.from_ns < stretch.to_ns)
                .collect(),
        )
    }

    /// Writes down that a process has held a device from this moment to the next.
    pub(super) fn held(&mut self, device: usize, process: usize, from_ns: u64, to_ns: u64) {
        let log = &mut self.logs[device];
        let ProcessWork {
            identity, usage, ..
        } = &mut self.processes[process];
        let last = &mut usage[device].stretch;
        if *last != 0 && log.count - *last < STRETCHES as u64 {
            let raw = &mut log.ring[(*last - 1) as usize % STRETCHES];
            if raw.to_ns == from_ns && raw.process as usize == process {
                raw.to_ns = to_ns;
                return;
            }
        }
        let slot = log.count as usize % STRETCHES;
        log.forgotten_until_ns = log.forgotten_until_ns.max(log.ring[slot].to_ns);
        log.ring[slot] = RawStretch {
            from_ns,
            to_ns,
            process: process as u32,
            pid: identity.pid,
        };
        log.count += 1;
        *last = log.count;
    }
}
