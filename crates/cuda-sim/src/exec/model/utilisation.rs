//! Utilisation, as NVML tells it: samples of each process and each device.

use super::turns::bits;
use super::{RawSample, SAMPLES, UtilizationSample, WorkState};
use crate::figures::Rounding;

impl WorkState {
    pub(super) fn sample_after(&self, time_ns: u64) -> u64 {
        let periods = (time_ns - self.started_ns) / self.sample_ns;
        self.started_ns + (periods + 1) * self.sample_ns
    }

    pub(super) fn nothing_sampled(&self) -> bool {
        bits(self.devices_used).all(|device| {
            let device = &self.devices[device];
            device.sampled_busy_ns == 0 && device.sampled_copy_ns == 0
        })
    }

    /// Writes down the period that ends here.
    pub(super) fn sample(&mut self) {
        let (time_ns, period) = (self.time_ns, self.sample_ns);
        let rounding = Rounding::numbered(self.rounding);
        let percent = |ns: u64| rounding.percent(ns, period).min(100) as u16;
        for device in bits(self.devices_used) {
            if self.devices[device].sampled_busy_ns == 0
                && self.devices[device].sampled_copy_ns == 0
            {
                continue;
            }
            for index in 0..self.processes_used as usize {
                let process = &mut self.processes[index];
                let usage = &mut process.usage[device];
                if usage.sampled_busy_ns == 0 && usage.sampled_copy_ns == 0 {
                    continue;
                }
                let raw = RawSample {
                    time_ns,
                    pid: process.identity.pid,
                    sm_percent: percent(usage.sampled_busy_ns),
                    memory_percent: percent(usage.sampled_copy_ns),
                };
                (usage.sampled_busy_ns, usage.sampled_copy_ns) = (0, 0);
                let device = &mut self.devices[device];
                device.samples[device.sample_count as usize % SAMPLES] = raw;
                device.sample_count += 1;
            }
            let device = &mut self.devices[device];
            let raw = RawSample {
                time_ns,
                pid: 0,
                sm_percent: percent(device.sampled_busy_ns),
                memory_percent: percent(device.sampled_copy_ns),
            };
            (device.sampled_busy_ns, device.sampled_copy_ns) = (0, 0);
            (device.slice_busy_ns, device.is_credited_wrongly) = (0, 0);
            device.totals[device.total_count as usize % 128] = raw;
            device.total_count += 1;
        }
        self.next_sample_ns = self.sample_after(time_ns);
    }

    /// Credits what a process ran in the slice that has ended to the next process, once in each sampling period, on boards
    /// whose figures are wrong by a slice.
    pub(super) fn credit_wrongly(&mut self, device: usize, from: Option<u32>, to: u32) {
        let slice_busy_ns = std::mem::take(&mut self.devices[device].slice_busy_ns);
        let Some(from) = from.filter(|_| self.credits_next != 0) else {
            return;
        };
        if self.devices[device].is_credited_wrongly != 0 {
            return;
        }
        self.devices[device].is_credited_wrongly = 1;
        let told_ns = &mut self.processes[from as usize].usage[device].sampled_busy_ns;
        let moved_ns = slice_busy_ns.min(*told_ns);
        *told_ns -= moved_ns;
        self.processes[to as usize].usage[device].sampled_busy_ns += moved_ns;
    }

    /// The samples of each process that ended after `since_ns`, oldest first.
    pub(in crate::exec) fn process_utilization(
        &self,
        device: usize,
        since_ns: u64,
    ) -> Vec<UtilizationSample> {
        let device = &self.devices[device];
        let first = device.sample_count.saturating_sub(SAMPLES as u64);
        (first..device.sample_count)
            .map(|count| device.samples[count as usize % SAMPLES])
            .filter(|sample| sample.time_ns > since_ns && self.is_told(sample.time_ns))
            .map(Into::into)
            .collect()
    }

    /// The samples of the whole device that ended after `since_ns`, oldest first. A period in which
    /// nothing ran has none.
    pub(in crate::exec) fn device_samples(
        &self,
        device: usize,
        since_ns: u64,
    ) -> Vec<UtilizationSample> {
        let device = &self.devices[device];
        let first = device.total_count.saturating_sub(128);
        (first..device.total_count)
            .map(|count| device.totals[count as usize % 128])
            .filter(|sample| sample.time_ns > since_ns && self.is_told(sample.time_ns))
            .map(Into::into)
            .collect()
    }

    /// The last whole period of a device that can be read.
    pub(in crate::exec) fn device_utilization(&self, device: usize) -> UtilizationSample {
        let told_ns = self.time_ns.saturating_sub(self.lag_ns);
        let end_ns = if told_ns < self.started_ns {
            0
        } else {
            self.sample_after(told_ns).saturating_sub(self.sample_ns)
        };
        let device = &self.devices[device];
        let first = device.total_count.saturating_sub(128);
        let found = (first..device.total_count)
            .rev()
            .map(|count| device.totals[count as usize % 128])
            .find(|sample| sample.time_ns <= end_ns);
        if let Some(sample) = found.filter(|sample| sample.time_ns == end_ns && end_ns != 0) {
            return sample.into();
        }
        UtilizationSample {
            pid: 0,
            time_ns: end_ns,
            sm_percent: 0,
            memory_percent: 0,
        }
    }

    /// Whether a sample of that moment can be read.
    pub(super) fn is_told(&self, time_ns: u64) -> bool {
        time_ns.saturating_add(self.lag_ns) <= self.time_ns
    }
}
