//! The figures of a service and of training: percentiles, rates and shares. Values in, values out.

use serde::Serialize;
use workload::Served;

/// All that was measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LatencyResults {
    /// Raised where a field changes its meaning.
    pub(crate) version: u32,
    /// Whether the GPU was a simulated one.
    pub(crate) simulated: bool,
    /// For how long requests arrived in each setting, seconds.
    pub(crate) seconds: f64,
    /// The mean share of the GPU that the requests need, percent.
    pub(crate) load_percent: u32,
    /// The seed of the arrivals.
    pub(crate) seed: u64,
    pub(crate) rows: Vec<LatencyRow>,
}

/// One line of the table: a service, training, or both side by side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct LatencyRow {
    pub(crate) setting: Setting,
    pub(crate) service: Option<ServiceFigures>,
    pub(crate) training: Option<TrainingFigures>,
}

/// The programs beside a program, and whether vgpu divides the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Setting {
    /// The program alone, without vgpu.
    Alone,
    /// Both programs, without vgpu.
    Beside,
    /// Both programs, with vgpu and priorities.
    Vgpu,
}

impl Setting {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Beside => "beside",
            Self::Vgpu => "vgpu",
        }
    }
}

/// The measurements of a service.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ServiceFigures {
    /// The work of each request.
    pub(crate) request: String,
    /// How the requests arrived.
    pub(crate) arrivals: String,
    /// How many requests arrived.
    pub(crate) requests: usize,
    /// How many of them the service gave up.
    pub(crate) unfinished: usize,
    #[serde(flatten)]
    pub(crate) latency: Latency,
    /// Finished requests a second.
    pub(crate) per_second: f64,
    /// GPU time, percent.
    pub(crate) share_percent: f64,
}

/// The measurements of training.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TrainingFigures {
    /// The name of its work.
    pub(crate) name: String,
    /// Kernels or graphs a second.
    pub(crate) per_second: f64,
    /// GPU time, percent.
    pub(crate) share_percent: f64,
    /// The GPU time against the GPU time of the same training alone, percent.
    pub(crate) of_alone_percent: f64,
    /// The GPU time against the GPU time that the service left, percent. `None` if the service left none, or where
    /// there is no service.
    pub(crate) of_left_percent: Option<f64>,
}

/// Percentiles of the time that requests took, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50_ms: f64,
    pub(crate) p90_ms: f64,
    pub(crate) p99_ms: f64,
}

/// The percentiles of all requests. A request that the service gave up counts with the time that it had waited, so that
/// the slowest requests are not left out. `None` if there was no request.
pub(crate) fn latency(served: &Served) -> Option<Latency> {
    let mut all_ns = [&served.finished_ns[..], &served.unfinished_ns[..]].concat();
    all_ns.sort_unstable();
    let at = |percent| percentile(&all_ns, percent).map(|ns| float(ns) / 1e6);
    Some(Latency {
        p50_ms: at(50)?,
        p90_ms: at(90)?,
        p99_ms: at(99)?,
    })
}

/// The smallest value that at least this percentage of the sorted values do not exceed (nearest rank).
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Events a second: over the time in which they could occur, or longer if they took longer.
pub(crate) fn per_second(count: usize, time_ns: u64, took_ns: u64) -> f64 {
    let ns = time_ns.max(took_ns).max(1);
    float(count as u64) / float(ns) * 1e9
}

/// How many pieces of work of this length fit a second at this share of the GPU.
pub(crate) fn pieces_per_second(share_percent: f64, piece_ns: u64) -> f64 {
    share_percent / 100.0 * 1e9 / float(piece_ns.max(1))
}

/// A part of a whole in percent. `None` if the whole is not above zero.
pub(crate) fn percent_of(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole * 100.0)
}

#[allow(
    clippy::cast_precision_loss,
    reason = "nanoseconds of a bench are far below 2^53"
)]
fn float(ns: u64) -> f64 {
    ns as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<u64> = (1..=200).collect();

        assert_eq!(percentile(&values, 50), Some(100));
        assert_eq!(percentile(&values, 90), Some(180));
        assert_eq!(percentile(&values, 99), Some(198));
        assert_eq!(percentile(&[7], 50), Some(7));
        assert_eq!(percentile(&[7, 8], 99), Some(8));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn requests_are_sorted_before_percentiles_are_taken() {
        let served = Served {
            finished_ns: vec![9 * MS, MS, 5 * MS],
            unfinished_ns: Vec::new(),
        };

        let latency = latency(&served).unwrap();

        assert!((latency.p50_ms - 5.0).abs() < 1e-9);
        assert!((latency.p99_ms - 9.0).abs() < 1e-9);
    }

    #[test]
    fn a_request_that_was_given_up_counts_with_its_wait() {
        let served = Served {
            finished_ns: vec![2 * MS; 98],
            unfinished_ns: vec![700 * MS, 900 * MS],
        };

        let latency = latency(&served).unwrap();

        assert!((latency.p90_ms - 2.0).abs() < 1e-9);
        assert!((latency.p99_ms - 700.0).abs() < 1e-9);
    }

    #[test]
    fn there_are_no_percentiles_without_requests() {
        assert_eq!(latency(&Served::default()), None);
    }

    #[test]
    fn a_service_that_ends_late_has_a_lower_rate() {
        assert!((per_second(100, 1000 * MS, 900 * MS) - 100.0).abs() < 1e-9);
        assert!((per_second(100, 1000 * MS, 2000 * MS) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn a_share_of_the_gpu_is_so_many_pieces_a_second() {
        assert!((pieces_per_second(50.0, 5 * MS) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_a_part_of_no_time_left() {
        assert_eq!(percent_of(35.0, 70.0), Some(50.0));
        assert_eq!(percent_of(1.0, 0.0), None);
        assert_eq!(percent_of(1.0, -0.5), None);
    }
}
