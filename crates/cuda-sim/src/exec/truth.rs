//! The exact use of a board: the work of each process, and its share of a device.

use super::model::{BusyStretch, MAX_DEVICES, ProcessTruth, UtilizationSample};
use super::{Exec, busy_ns};
use crate::process::Identity;

impl Exec {
    /// The work of each process on a device, including dead processes.
    pub fn truth(&self, device: usize) -> Vec<ProcessTruth> {
        if device >= MAX_DEVICES {
            return Vec::new();
        }
        let mut state = self.now();
        state.reap(Identity::is_alive);
        state.truth(device)
    }

    /// The same without asking the kernel whether the processes live: a process that has died is shown as alive until
    /// something else on the board has found that out.
    pub fn truth_of_known(&self, device: usize) -> Vec<ProcessTruth> {
        if device >= MAX_DEVICES {
            return Vec::new();
        }
        self.now().truth(device)
    }

    /// Nanoseconds in which any kernel held the device.
    pub fn device_busy_ns(&self, device: usize) -> u64 {
        if device < MAX_DEVICES {
            self.now().device_busy_ns(device)
        } else {
            0
        }
    }

    /// Whether the kernels of all processes run side by side, as under an MPS server.
    pub fn is_mps(&self) -> bool {
        // Without the lock: written once, before the file's magic was published.
        self.area().state.is_mps()
    }

    /// Which processes held a device between two moments of the board's clock, cut at both, in the order in which
    /// each began; what is in the future is not there. `None` when the board has forgotten a part of
    /// it: it keeps the last `STRETCHES` unbroken holds of each device.
    pub fn stretches(&self, device: usize, from_ns: u64, to_ns: u64) -> Option<Vec<BusyStretch>> {
        if device >= MAX_DEVICES {
            return Some(Vec::new());
        }
        self.now().stretches(device, from_ns, to_ns)
    }

    /// Nanoseconds in which a kernel of the process held the device between two moments, exactly;
    /// `None` when the board has forgotten a part of it.
    pub fn busy_between(&self, device: usize, pid: u32, from_ns: u64, to_ns: u64) -> Option<u64> {
        let stretches = self.stretches(device, from_ns, to_ns)?;
        Some(busy_ns(&stretches, pid, from_ns, to_ns))
    }

    /// The same for each of the windows of that length that lie whole between the moments; the first
    /// begins at `from_ns`.
    pub fn busy_windows(
        &self,
        device: usize,
        pid: u32,
        from_ns: u64,
        to_ns: u64,
        window_ns: u64,
    ) -> Option<Vec<u64>> {
        let stretches = self.stretches(device, from_ns, to_ns)?;
        let window_ns = window_ns.max(1);
        let count = to_ns.saturating_sub(from_ns) / window_ns;
        let mut windows = vec![0; count as usize];
        for stretch in stretches.iter().filter(|stretch| stretch.pid == pid) {
            let mut at_ns = stretch.from_ns;
            while at_ns < stretch.to_ns {
                let index = (at_ns - from_ns) / window_ns;
                let end_ns = stretch.to_ns.min(from_ns + (index + 1) * window_ns);
                if let Some(window) = windows.get_mut(index as usize) {
                    *window += end_ns - at_ns;
                }
                at_ns = end_ns;
            }
        }
        Some(windows)
    }

    /// Samples of each process's use that ended after `since_ns` (board's clock), oldest first; as
    /// coarse and as late as NVML's.
    pub fn process_utilization(&self, device: usize, since_ns: u64) -> Vec<UtilizationSample> {
        if device >= MAX_DEVICES {
            return Vec::new();
        }
        self.now().process_utilization(device, since_ns)
    }

    /// Samples of the whole device that ended after `since_ns`, oldest first.
    pub fn device_samples(&self, device: usize, since_ns: u64) -> Vec<UtilizationSample> {
        if device >= MAX_DEVICES {
            return Vec::new();
        }
        self.now().device_samples(device, since_ns)
    }

    /// The last whole sampling period of a device.
    pub fn device_utilization(&self, device: usize) -> UtilizationSample {
        self.now().device_utilization(device.min(MAX_DEVICES - 1))
    }

    /// A moment of the board's clock as microseconds since 1970, as NVML states times.
    pub fn unix_us(&self, board_ns: u64) -> u64 {
        (self.area().unix_at_zero_ns + board_ns) / 1_000
    }

    /// The inverse: the last moment of the board's clock that is reported as this microsecond.
    pub fn board_ns(&self, unix_us: u64) -> u64 {
        let last_ns = unix_us.saturating_mul(1_000).saturating_add(999);
        last_ns.saturating_sub(self.area().unix_at_zero_ns)
    }
}
