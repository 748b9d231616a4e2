//! The exact use of a board: how much memory is used, and by which process.

use super::{Board, MAX_PROCESSES, ProcessUse, instance_of};

impl Board {
    /// Frees dead processes' memory now, whatever the delay.
    pub fn reap(&self) {
        let mut state = self.lock();
        state.reap(0, &self.path);
        state.collect(&self.path);
    }

    /// Bytes of a GPU that are taken, the dead reaped first (after the release delay).
    #[must_use]
    pub fn used_bytes(&self, gpu: usize) -> u64 {
        let mut state = self.lock();
        self.look(&mut state);
        state.devices.get(gpu).map_or(0, |device| device.used)
    }

    /// Bytes that allocations shared by processes take of a GPU; part of [`Self::used_bytes`].
    #[must_use]
    pub fn shared_bytes(&self, gpu: usize) -> u64 {
        let mut state = self.lock();
        self.look(&mut state);
        state
            .shared()
            .iter()
            .filter(|shared| shared.id != 0 && shared.device as usize == gpu)
            .map(|shared| shared.bytes)
            .sum()
    }

    /// The memory that each process has taken of a GPU; processes without any are left out.
    #[must_use]
    pub fn processes(&self, gpu: usize) -> Vec<ProcessUse> {
        let mut state = self.lock();
        self.look(&mut state);
        let mut shared = vec![0; MAX_PROCESSES];
        for object in state.shared().iter().filter(|object| object.id != 0) {
            let first = object.holders.iter().find(|holder| holder.process != 0);
            if let (Some(first), true) = (first, object.device as usize == gpu) {
                shared[first.process as usize - 1] += object.bytes;
            }
        }
        (0..state.process_end())
            .filter_map(|index| {
                let process = &state.processes[index];
                let uses = process.uses.get(gpu)?;
                let taken = ProcessUse {
                    pid: process.identity.pid,
                    start_time: process.identity.start_time,
                    alloc_bytes: uses.alloc + shared[index],
                    overhead_bytes: uses.overhead,
                    instance: instance_of(process),
                };
                let any = taken.alloc_bytes + taken.overhead_bytes > 0;
                (process.generation != 0 && any).then_some(taken)
            })
            .collect()
    }
}
