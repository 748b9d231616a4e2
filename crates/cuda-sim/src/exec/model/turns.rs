//! Which process has its turn on each device, and which kernels run in it.

use super::{MAX_DEVICES, MAX_PROCESSES, NO_PROCESS, WorkState};
use crate::slices::{Emptied, Order, Ready, Rules, Slice};

/// The places of a word's set bits, lowest first.
pub(super) fn bits(word: u64) -> Bits {
    Bits(word)
}

/// See [`bits`].
#[derive(Debug, Clone)]
pub(super) struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

/// Which processes have kernels to run, and which one has its turn.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) waiting: [[u64; MAX_PROCESSES / 64]; MAX_DEVICES],
    pub(super) current: [u32; MAX_DEVICES],
    pub(super) copying: bool,
    pub(super) running: bool,
    /// No process waits for a turn.
    pub(super) all_run: bool,
}

impl Default for Turns {
    fn default() -> Self {
        Self::NONE
    }
}

impl Turns {
    /// No process has anything to run.
    pub(super) const NONE: Self = Self {
        waiting: [[0; MAX_PROCESSES / 64]; MAX_DEVICES],
        current: [NO_PROCESS; MAX_DEVICES],
        copying: false,
        running: false,
        all_run: false,
    };

    /// As [`Turns::NONE`], of turns of which no device but these was touched.
    pub(super) fn clear(&mut self, devices: u64) {
        for device in bits(devices) {
            self.waiting[device] = Default::default();
            self.current[device] = NO_PROCESS;
        }
        (self.copying, self.running, self.all_run) = (false, false, false);
    }

    pub(super) fn add(&mut self, device: usize, process: u32) {
        self.running = true;
        self.waiting[device][process as usize / 64] |= 1 << (process % 64);
    }

    pub(super) fn has(&self, device: usize, process: u32) -> bool {
        self.waiting[device][process as usize / 64] >> (process % 64) & 1 == 1
    }

    /// Whether a process's kernels run.
    pub(super) fn runs(&self, device: usize, process: u32) -> bool {
        self.all_run && self.has(device, process) || self.current[device] == process
    }

    /// The processes whose kernels run.
    pub(super) fn running_on(&self, device: usize) -> [u64; MAX_PROCESSES / 64] {
        if self.all_run {
            return self.waiting[device];
        }
        let mut words = [0; MAX_PROCESSES / 64];
        let current = self.current[device];
        if current != NO_PROCESS {
            words[current as usize / 64] = 1 << (current % 64);
        }
        words
    }

    pub(super) fn idle(&self) -> bool {
        !self.copying && !self.running
    }

    /// The processes with a kernel to run, lowest first.
    fn ready(&self, device: usize) -> impl Iterator<Item = usize> + Clone {
        let words = self.waiting[device].iter().enumerate();
        words.flat_map(|(word, &waiting)| bits(waiting).map(move |bit| word * 64 + bit))
    }

    /// Whether a process waits that does not have the slice.
    fn others_wait(&self, device: usize, holder: Option<u32>) -> bool {
        self.ready(device)
            .any(|process| Some(process as u32) != holder)
    }
}

impl WorkState {
    fn rules(&self) -> Rules {
        Rules {
            slice_ns: self.slice_ns,
            switch_ns: self.switch_ns,
            order: if self.least_run_first != 0 {
                Order::LeastRun
            } else {
                Order::RoundRobin
            },
            emptied: if self.keeps_slices != 0 {
                Emptied::Kept
            } else {
                Emptied::GivenUp
            },
        }
    }

    /// The slice that a device is in.
    pub(super) fn slice(&self, device: usize) -> Slice {
        let device = &self.devices[device];
        Slice {
            holder: device.holder.checked_sub(1),
            last: device.last.checked_sub(1),
            from_ns: device.slice_from_ns,
            end_ns: device.slice_end_ns,
            ran_ns: device.slice_ran_ns,
            reached_ns: device.slice_reached_ns,
        }
    }

    pub(super) fn put_slice(&mut self, device: usize, slice: Slice) {
        let device = &mut self.devices[device];
        device.holder = slice.holder.map_or(0, |process| process + 1);
        device.last = slice.last.map_or(0, |process| process + 1);
        device.slice_from_ns = slice.from_ns;
        device.slice_end_ns = slice.end_ns;
        device.slice_ran_ns = slice.ran_ns;
        device.slice_reached_ns = slice.reached_ns;
    }

    /// Gives each device the slice that it is in from now on.
    pub(super) fn take_turns(&mut self, turns: &Turns) {
        if self.is_mps() {
            return;
        }
        let rules = self.rules();
        for device in bits(self.devices_used) {
            let old = self.slice(device);
            let ready = turns.ready(device).map(|process| Ready {
                process: process as u32,
                ran_ns: self.processes[process].usage[device].ran_ns,
            });
            let new = rules.next(self.time_ns, old, ready);
            if new == old {
                continue;
            }
            self.put_slice(device, new);
            let Some(holder) = new.holder else { continue };
            if rules.order == Order::LeastRun {
                self.processes[holder as usize].usage[device].ran_ns = new.ran_ns;
            }
            if new.last != new.holder && old.holder != new.holder {
                self.credit_wrongly(device, new.last, holder);
            }
        }
    }

    /// Writes down which process has its turn on each device.
    pub(super) fn fill_current(&self, turns: &mut Turns) {
        for device in bits(self.devices_used) {
            let slice = self.slice(device);
            turns.current[device] = slice
                .holder
                .filter(|&holder| slice.runs(holder, self.time_ns) && turns.has(device, holder))
                .unwrap_or(NO_PROCESS);
        }
    }

    /// When a device's slice may change although no work has; never under MPS.
    pub(super) fn slice_changes_at(&self, device: usize, turns: &Turns) -> Option<u64> {
        if turns.all_run {
            return None;
        }
        let slice = self.slice(device);
        let others_wait = turns.others_wait(device, slice.holder);
        self.rules().changes_at(self.time_ns, slice, others_wait)
    }
}
