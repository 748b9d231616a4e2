//! Which process has its turn on each device, and which kernels run in it.

use super::{MAX_DEVICES, MAX_PROCESSES, NO_PROCESS};

/// The places of a word's set bits, lowest first.
pub(super) fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let bit = word.trailing_zeros() as usize;
        word &= word - 1;
        Some(bit)
    })
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
        Self {
            waiting: Default::default(),
            current: [NO_PROCESS; MAX_DEVICES],
            copying: false,
            running: false,
            all_run: false,
        }
    }
}

impl Turns {
    pub(super) fn add(&mut self, device: usize, process: u32) {
        self.running = true;
        self.waiting[device][process as usize / 64] |= 1 << (process % 64);
    }

    pub(super) fn any(&self, device: usize) -> bool {
        self.waiting[device].iter().any(|&word| word != 0)
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

    pub(super) fn contended(&self, device: usize) -> bool {
        if self.all_run {
            return false;
        }
        self.waiting[device]
            .iter()
            .map(|word| word.count_ones())
            .sum::<u32>()
            > 1
    }

    pub(super) fn idle(&self) -> bool {
        !self.copying && !self.running
    }

    /// The first process with work from `from` on, round robin.
    pub(super) fn after(&self, device: usize, from: u32) -> u32 {
        let all = MAX_PROCESSES as u32;
        (0..all)
            .map(|step| (from + step) % all)
            .find(|&p| self.has(device, p))
            .unwrap_or(0)
    }
}
