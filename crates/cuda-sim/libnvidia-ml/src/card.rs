//! One card as this library shows it, over the board. Everything that comes from `cuda_sim` comes
//! through here.

use std::time::{SystemTime, UNIX_EPOCH};

use cuda_api::nvml::{NO_INSTANCE, NvmlReturn};

pub(crate) const SM_MHZ_LEAST: u32 = 210;
pub(crate) const SM_MHZ_MOST: u32 = 1_410;

/// A process that computes on a card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Allocations, contexts and modules, in bytes.
    pub(crate) bytes: u64,
    /// MIG GPU instance that it runs on, or `NO_INSTANCE`.
    pub(crate) instance: u32,
}

/// How busy a process kept a card in one sampling period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProcessSample {
    pub(crate) pid: u32,
    /// When, in microseconds since the epoch.
    pub(crate) time_us: u64,
    /// Percent of the period in which its kernels ran.
    pub(crate) sm: u32,
    /// Percent of the period in which they used memory.
    pub(crate) memory: u32,
}

/// Opens the board, once.
pub(crate) fn open() -> Result<(), NvmlReturn> {
    Ok(())
}

/// How many cards the board has.
pub(crate) fn count() -> usize {
    2
}

/// The CUDA version that the driver reports: 1000 × major + 10 × minor.
pub(crate) fn cuda_version() -> i32 {
    12_040
}

/// What `VGPU_SIM_MIG` says.
pub(crate) fn mig_setting() -> String {
    std::env::var("VGPU_SIM_MIG").unwrap_or_default()
}

/// A card of the board.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Card(usize);

impl Card {
    /// The card with this index.
    pub(crate) fn at(index: usize) -> Option<Card> {
        (index < count()).then_some(Card(index))
    }

    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = Card> {
        (0..count()).map(Card)
    }

    pub(crate) fn index(self) -> usize {
        self.0
    }

    pub(crate) fn uuid(self) -> String {
        format!("GPU-00000000-0000-0000-0000-00000000000{}", self.0)
    }

    pub(crate) fn serial(self) -> String {
        let digits: String = self
            .uuid()
            .bytes()
            .map(|byte| char::from(b'0' + byte % 10))
            .collect();
        digits.get(4..17).unwrap_or("0").to_owned()
    }

    pub(crate) fn name(self) -> String {
        "Simulated GPU".to_owned()
    }

    pub(crate) fn total(self) -> u64 {
        16 << 30
    }

    /// Kept by driver and firmware.
    pub(crate) fn reserved(self) -> u64 {
        0
    }

    /// Used by processes, in bytes.
    pub(crate) fn used(self) -> u64 {
        0
    }

    pub(crate) fn pci_domain(self) -> u32 {
        0
    }

    pub(crate) fn pci_bus(self) -> u32 {
        self.0 as u32 + 1
    }

    pub(crate) fn capability(self) -> (i32, i32) {
        (8, 0)
    }

    pub(crate) fn multiprocessors(self) -> u32 {
        108
    }

    /// Whether it fell off the bus.
    pub(crate) fn lost(self) -> bool {
        false
    }

    /// How many faults it has had, and the XID of the last.
    pub(crate) fn faults(self) -> (u64, u64) {
        (0, 0)
    }

    /// Who computes on it.
    pub(crate) fn processes(self) -> Vec<Process> {
        let instance = if crate::mig::enabled(self) {
            1
        } else {
            NO_INSTANCE
        };
        let _ = Process {
            pid: 0,
            bytes: 0,
            instance,
        };
        Vec::new()
    }

    /// Samples of processes that are newer than `last_seen` (microseconds since the epoch).
    pub(crate) fn process_samples(self, _last_seen: u64) -> Vec<ProcessSample> {
        Vec::new()
    }

    /// When the last sample was taken and how far apart they are, in microseconds.
    pub(crate) fn sampled_us(self) -> (u64, u64) {
        const PERIOD: u64 = 166_667;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.as_micros());
        let now = now as u64;
        (now - now % PERIOD, PERIOD)
    }

    /// Percent of the last sampling period in which a kernel ran, and in which memory was used.
    pub(crate) fn utilization(self) -> (u32, u32) {
        let samples = self.process_samples(0);
        let newest = samples
            .iter()
            .map(|sample| sample.time_us)
            .max()
            .unwrap_or(0);
        let last = samples.iter().filter(|sample| sample.time_us == newest);
        let (sm, memory) = last.fold((0, 0), |(sm, memory), sample| {
            (sm + sample.sm, memory + sample.memory)
        });
        (sm.min(100), memory.min(100))
    }

    pub(crate) fn sm_mhz(self) -> u32 {
        if self.utilization().0 == 0 {
            SM_MHZ_LEAST
        } else {
            SM_MHZ_MOST
        }
    }

    pub(crate) fn celsius(self) -> u32 {
        31 + self.utilization().0 * 40 / 100
    }

    pub(crate) fn power_mw(self) -> u32 {
        52_000 + self.utilization().0 * 2_300
    }

    /// Since the machine was switched on; here, at idle power since the epoch's last full day.
    pub(crate) fn energy_mj(self) -> u64 {
        let (now, _) = self.sampled_us();
        now / 1_000_000 % 86_400 * 52_000
    }
}
