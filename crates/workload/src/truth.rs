//! The GPU time that programs really used: by the board on a simulated GPU, by the kernels' own records on a real
//! one. Returns values and judges nothing.

use crate::driver::{DriverError, Record, Told};
use crate::numbers::{float, whole};

/// The length of a bin of [`Bins`], in nanoseconds.
pub const BIN_NS: u64 = 1_000_000;

/// The GPU time used in each millisecond, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Bins {
    /// The start of the first bin, in nanoseconds of the GPU's own clock.
    pub begin_ns: u64,
    /// The GPU time used in each bin, in nanoseconds.
    pub busy_ns: Vec<u64>,
}

/// The simulated GPU's measurements of processes.
pub struct Simulated(Told);

impl Simulated {
    /// `None` if the driver is a real one.
    ///
    /// # Errors
    /// There is no driver.
    pub fn open() -> Result<Option<Self>, DriverError> {
        Ok(Told::open()?.map(Self))
    }

    /// The total time in which a kernel of this process has held the device, in nanoseconds.
    #[must_use]
    pub fn busy_ns(&self, device: u32, pid: u32) -> u64 {
        self.0.busy_ns(device, pid)
    }

    /// The board's clock, in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulated").finish_non_exhaustive()
    }
}

/// The GPU time from the records of one process's kernels. Kernels that overlapped count once, and a kernel that took
/// longer than its rounds need shared the GPU meanwhile.
pub(crate) fn bins(mut records: Vec<Record>, round_ns: f64) -> Bins {
    records.sort_unstable();
    let Some(first) = records.first() else {
        return Bins::default();
    };
    let begin_ns = first.begin_ns;
    let mut busy: Vec<f64> = Vec::new();
    let mut done_ns = begin_ns;
    for record in records {
        let from_ns = record.begin_ns.max(done_ns);
        if from_ns >= record.end_ns {
            continue;
        }
        done_ns = record.end_ns;
        let took = float(record.end_ns - from_ns);
        let whole = float(record.end_ns - record.begin_ns);
        let density = (float(record.rounds) * round_ns / whole).min(1.0);
        spread(&mut busy, from_ns - begin_ns, took, density);
    }
    Bins {
        begin_ns,
        busy_ns: busy.into_iter().map(whole).collect(),
    }
}

/// Adds `density` for each nanosecond from `from_ns` on to the bins.
fn spread(bins: &mut Vec<f64>, from_ns: u64, took_ns: f64, density: f64) {
    let mut at = float(from_ns);
    let end = at + took_ns;
    while at < end {
        let index = whole(at) / BIN_NS;
        let until = float((index + 1) * BIN_NS).min(end);
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        if index >= MOST_BINS {
            return;
        }
        if bins.len() <= index {
            bins.resize(index + 1, 0.0);
        }
        if let Some(bin) = bins.get_mut(index) {
            *bin += (until - at) * density;
        }
        at = until;
    }
}

/// One hour. Later times are errors of a clock.
const MOST_BINS: usize = 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(begin_ns: u64, end_ns: u64, rounds: u64) -> Record {
        Record {
            begin_ns,
            end_ns,
            rounds,
        }
    }

    #[test]
    fn kernels_that_overlap_count_once() {
        let ms = 1_000_000;
        let records = vec![
            kernel(5 * ms + ms / 2, 7 * ms, 1_500_000),
            kernel(5 * ms, 6 * ms, 1_000_000),
            kernel(8 * ms, 8 * ms + 10, 10),
        ];

        let found = bins(records, 1.0);

        assert_eq!(found.begin_ns, 5 * ms);
        assert_eq!(found.busy_ns, [1_000_000, 1_000_000, 0, 10]);
    }

    #[test]
    fn a_kernel_that_took_twice_its_time_had_half_of_the_gpu() {
        let found = bins(vec![kernel(1_000_000, 3_000_000, 500_000)], 2.0);

        assert_eq!(found.busy_ns, [500_000, 500_000]);
    }
}
