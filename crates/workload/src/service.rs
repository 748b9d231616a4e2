//! A service that answers requests: when the requests arrive and which kernels each one launches. Values only.
//!
//! The moments depend on the seed, the load and the length alone, so a service sees the same requests whatever runs
//! beside it.

use std::time::Duration;

use crate::chance::Chance;
use crate::numbers::{float, whole};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
/// The number of requests in a burst.
pub const BURST: usize = 8;

/// When requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// One at a time, independently of each other.
    Poisson,
    /// [`BURST`] at one moment; the bursts arrive independently of each other.
    Bursts,
}

/// The work that one request launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// 10 kernels of 200 µs, then a wait.
    Kernels,
    /// 60 kernels of 50 µs, then a wait.
    SmallModel,
    /// A prefill of 40 ms and 100 decode steps of 8 ms, in kernels of 1 ms, with a wait after each step.
    Generation,
}

impl Request {
    /// The duration of each kernel, in nanoseconds.
    #[must_use]
    pub fn kernel_ns(self) -> u64 {
        match self {
            Self::Kernels => 200 * MICROSECOND,
            Self::SmallModel => 50 * MICROSECOND,
            Self::Generation => MILLISECOND,
        }
    }

    /// The number of kernels in each step; the service waits for the GPU after each step.
    #[must_use]
    pub fn steps(self) -> Vec<u64> {
        match self {
            Self::Kernels => vec![10],
            Self::SmallModel => vec![60],
            Self::Generation => [vec![40], vec![8; 100]].concat(),
        }
    }

    /// The GPU time of a request, in nanoseconds.
    #[must_use]
    pub fn busy_ns(self) -> u64 {
        self.steps().iter().sum::<u64>() * self.kernel_ns()
    }
}

/// A service and its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// When requests arrive.
    pub arrivals: Arrivals,
    /// The work that each request launches.
    pub request: Request,
    /// The mean share of the GPU that the requests need, in percent.
    pub load_percent: u32,
    /// Another seed gives other moments.
    pub seed: u64,
}

impl Service {
    /// The moments in which requests arrive, in nanoseconds from the start, in order. The first one is 0.
    #[must_use]
    pub fn moments(&self, time: Duration) -> Vec<u64> {
        let end_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let together = match self.arrivals {
            Arrivals::Poisson => 1,
            Arrivals::Bursts => BURST,
        };
        let gap_ns =
            float(self.request.busy_ns()) * 100.0 / f64::from(self.load_percent.clamp(1, 100));
        let mean_ns = gap_ns * float(together as u64);
        let mut chance = Chance::seeded(self.seed);
        let mut moments = Vec::new();
        let mut at_ns = 0;
        while at_ns < end_ns || moments.is_empty() {
            moments.extend(std::iter::repeat_n(at_ns, together));
            at_ns = at_ns.saturating_add(whole(chance.exponential(mean_ns)).max(1));
        }
        moments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(arrivals: Arrivals, seed: u64) -> Service {
        Service {
            arrivals,
            request: Request::Kernels,
            load_percent: 20,
            seed,
        }
    }

    #[test]
    fn a_seed_gives_the_same_moments_each_time() {
        let time = Duration::from_secs(2);
        let first = service(Arrivals::Poisson, 1).moments(time);

        assert_eq!(service(Arrivals::Poisson, 1).moments(time), first);
        assert_ne!(service(Arrivals::Poisson, 2).moments(time), first);
    }

    #[test]
    fn a_longer_run_begins_with_the_same_moments() {
        let service = service(Arrivals::Poisson, 1);
        let short = service.moments(Duration::from_secs(1));
        let long = service.moments(Duration::from_secs(2));

        assert!(long.starts_with(&short) && long.len() > short.len());
    }

    #[test]
    fn both_patterns_arrive_at_the_rate_of_the_load() {
        // 20 % of the GPU in requests of 2 ms are 100 a second.
        for arrivals in [Arrivals::Poisson, Arrivals::Bursts] {
            let count = service(arrivals, 1).moments(Duration::from_secs(200)).len();

            assert!((18_000..22_000).contains(&count), "{arrivals:?}: {count}");
        }
    }

    #[test]
    fn gaps_of_poisson_arrivals_are_exponential() {
        let moments = service(Arrivals::Poisson, 1).moments(Duration::from_secs(200));
        let gaps: Vec<u64> = moments.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let longer = gaps.iter().filter(|gap| **gap > 20 * MILLISECOND).count();

        // e^-2 of them are longer than twice the mean of 10 ms.
        let percent = longer * 100 / gaps.len();
        assert!((12..=15).contains(&percent), "{percent}");
    }

    #[test]
    fn requests_of_a_burst_arrive_together() {
        let moments = service(Arrivals::Bursts, 1).moments(Duration::from_secs(5));

        assert!(moments.len() > 10 * BURST, "{}", moments.len());
        for burst in moments.chunks(BURST) {
            assert_eq!(burst, [burst[0]; BURST]);
        }
    }

    #[test]
    fn there_is_a_request_however_short_the_run_is() {
        let moments = service(Arrivals::Poisson, 1).moments(Duration::ZERO);

        assert_eq!(moments, [0]);
    }

    #[test]
    fn requests_need_the_gpu_time_that_they_say() {
        assert_eq!(Request::Kernels.busy_ns(), 2 * MILLISECOND);
        assert_eq!(Request::SmallModel.busy_ns(), 3 * MILLISECOND);
        assert_eq!(Request::Generation.busy_ns(), 840 * MILLISECOND);
    }
}
