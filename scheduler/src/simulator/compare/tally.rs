//! The fate of every pod in one run, and the figures of a comparison. Values in, values out; the caller passes the
//! time.

use std::collections::BTreeMap;

use serde::Serialize;

/// The request of a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PodRequest {
    pub(super) cpu_milli: u64,
    pub(super) memory_bytes: u64,
    pub(super) gpu_memory_bytes: u64,
    /// In the GPUs' own unit.
    pub(super) gpu_cores: u64,
}

impl PodRequest {
    fn amounts(self) -> [u64; 4] {
        [
            self.cpu_milli,
            self.memory_bytes,
            self.gpu_memory_bytes,
            self.gpu_cores,
        ]
    }
}

/// The figures of a run. A figure without anything to measure is none.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// Pods that got a node, including those that have ended since.
    pub placed: u64,
    /// Pods that have no node.
    pub pending: u64,
    /// The number of these for each reason.
    pub reasons: BTreeMap<String, u64>,
    /// The used part of the nodes' resources, in percent.
    pub utilisation: Utilisation,
    /// The part of the free GPU memory that is on GPUs on which the typical request does not fit, in percent.
    pub fragmentation: Option<f64>,
    /// How evenly namespaces got what they asked for: Jain's index, 0 to 1.
    pub fairness: Option<f64>,
    /// How long pods waited for their node.
    pub waiting: WaitTimes,
    /// Pods that lost their node.
    pub evicted: Evicted,
}

/// Used parts, in percent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Utilisation {
    /// The part of the shared GPUs' memory that is promised.
    pub gpu_memory: Option<f64>,
    /// The part of the shared GPUs' compute that is promised.
    pub gpu_cores: Option<f64>,
    /// The part of the nodes' CPU that is requested.
    pub cpu: Option<f64>,
    /// The part of the nodes' memory that is requested.
    pub memory: Option<f64>,
}

/// Times in seconds of the simulated clock, over pods that got their node in the run; there are none if no pod did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitTimes {
    /// Half of the pods waited at most this long.
    pub p50_seconds: Option<f64>,
    /// 95 % of the pods waited at most this long.
    pub p95_seconds: Option<f64>,
    /// The longest wait.
    pub max_seconds: Option<f64>,
}

/// Numbers of evictions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Evicted {
    /// From nodes that were drained.
    pub drained: u64,
    /// For pods of a higher priority.
    pub preempted: u64,
}

/// An amount in use, and the total.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) used: u64,
    pub(super) total: u64,
}

impl Part {
    pub(super) fn add(&mut self, used: u64, total: u64) {
        self.used = self.used.saturating_add(used);
        self.total = self.total.saturating_add(total);
    }

    fn percent(self) -> Option<f64> {
        (self.total > 0).then(|| float(self.used) / float(self.total) * 100.0)
    }
}

/// The cluster at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ClusterSample {
    pub(super) gpu_memory: Part,
    pub(super) gpu_cores: Part,
    pub(super) cpu: Part,
    pub(super) memory: Part,
    /// The part of the free memory of the typical request's vendor that is on GPUs where the request does not fit;
    /// `None` if there is no typical request.
    pub(super) stranded: Option<Part>,
}

/// The stage of a pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waits {
        since_ms: u64,
    },
    Runs,
    /// It had a node, and is gone.
    Ended,
    /// It was removed, and never had a node.
    Left,
}

#[derive(Debug, Clone, PartialEq)]
struct Track {
    asked: PodRequest,
    stage: Stage,
    reason: String,
}

/// The fates of the pods so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pods: BTreeMap<String, Track>,
    /// Pods that are gone, and whose names have been used again; with their namespaces.
    past: Vec<(String, Track)>,
    waits_ms: Vec<u64>,
    evicted: Evicted,
    samples: Vec<ClusterSample>,
}

const LEFT: &str = "gone before it found a node";

impl Tally {
    /// A new pod waits.
    pub(super) fn waits(&mut self, key: &str, asked: PodRequest, now_ms: u64, reason: &str) {
        self.enter(key, asked, Stage::Waits { since_ms: now_ms }, reason);
    }

    /// A new pod already has a node.
    pub(super) fn runs(&mut self, key: &str, asked: PodRequest) {
        self.enter(key, asked, Stage::Runs, "");
    }

    fn enter(&mut self, key: &str, asked: PodRequest, stage: Stage, reason: &str) {
        let track = Track {
            asked,
            stage,
            reason: reason.to_owned(),
        };
        if let Some(before) = self.pods.insert(key.to_owned(), track) {
            self.past.push((namespace(key).to_owned(), before));
        }
    }

    pub(super) fn is_waiting(&self, key: &str) -> bool {
        let track = self.pods.get(key);
        track.is_some_and(|track| matches!(track.stage, Stage::Waits { .. }))
    }

    /// Records why a waiting pod has no node.
    pub(super) fn refused(&mut self, key: &str, reason: String) {
        if let Some(track) = self.pods.get_mut(key) {
            track.reason = reason;
        }
    }

    /// A waiting pod got its node.
    pub(super) fn placed(&mut self, key: &str, now_ms: u64) {
        if let Some(track) = self.pods.get_mut(key)
            && let Stage::Waits { since_ms } = track.stage
        {
            self.waits_ms.push(now_ms.saturating_sub(since_ms));
            track.stage = Stage::Runs;
        }
    }

    /// A pod lost its node to another pod, and waits again.
    pub(super) fn preempted(&mut self, key: &str, now_ms: u64) {
        self.evicted.preempted += 1;
        if let Some(track) = self.pods.get_mut(key) {
            track.stage = Stage::Waits { since_ms: now_ms };
            "preempted".clone_into(&mut track.reason);
        }
    }

    /// This many pods lost their nodes because the nodes are drained.
    pub(super) fn drained(&mut self, pods: u64) {
        self.evicted.drained += pods;
    }

    /// A pod has ended or was deleted.
    pub(super) fn gone(&mut self, key: &str) {
        if let Some(track) = self.pods.get_mut(key) {
            track.stage = match track.stage {
                Stage::Waits { .. } | Stage::Left => Stage::Left,
                Stage::Runs | Stage::Ended => Stage::Ended,
            };
        }
    }

    /// Adds the cluster's state at this moment; the samples are averaged.
    pub(super) fn sample(&mut self, sample: ClusterSample) {
        self.samples.push(sample);
    }

    /// The figures, rounded to hundredths of a percent and to milliseconds.
    pub(super) fn figures(mut self) -> Figures {
        let mut figures = Figures {
            evicted: self.evicted,
            ..Figures::default()
        };
        let mut shares: BTreeMap<String, Got> = BTreeMap::new();
        let now = std::mem::take(&mut self.pods);
        let now = now
            .into_iter()
            .map(|(key, track)| (namespace(&key).to_owned(), track));
        for (namespace, track) in self.past.drain(..).chain(now) {
            let got = matches!(track.stage, Stage::Runs | Stage::Ended);
            shares.entry(namespace).or_default().add(track.asked, got);
            if got {
                figures.placed += 1;
                continue;
            }
            figures.pending += 1;
            let reason = match track.stage {
                Stage::Left => LEFT.to_owned(),
                _ => track.reason,
            };
            *figures.reasons.entry(reason).or_insert(0) += 1;
        }
        let mean = |of: fn(&ClusterSample) -> Option<f64>| {
            let known: Vec<f64> = self.samples.iter().filter_map(of).collect();
            let count = u32::try_from(known.len()).unwrap_or(u32::MAX);
            (count > 0).then(|| rounded(known.iter().sum::<f64>() / f64::from(count), 100.0))
        };
        figures.utilisation = Utilisation {
            gpu_memory: mean(|sample| sample.gpu_memory.percent()),
            gpu_cores: mean(|sample| sample.gpu_cores.percent()),
            cpu: mean(|sample| sample.cpu.percent()),
            memory: mean(|sample| sample.memory.percent()),
        };
        figures.fragmentation = mean(|sample| {
            // Without GPUs there is nothing to measure; if all GPUs are full, no memory is fragmented.
            sample.gpu_memory.percent()?;
            Some(sample.stranded?.percent().unwrap_or_default())
        });
        let shares: Vec<f64> = shares.into_values().map(Got::share).collect();
        figures.fairness = jain(&shares).map(|index| rounded(index, 10_000.0));
        self.waits_ms.sort_unstable();
        let at = |percent| percentile(&self.waits_ms, percent).map(|ms| float(ms) / 1000.0);
        figures.waiting = WaitTimes {
            p50_seconds: at(50),
            p95_seconds: at(95),
            max_seconds: at(100),
        };
        figures
    }
}

fn namespace(key: &str) -> &str {
    key.split_once('/')
        .map_or("default", |(namespace, _)| namespace)
}

/// The requests of a namespace's pods, and the part requested by pods that got a node.
#[derive(Debug, Clone, Copy, Default)]
struct Got {
    asked: [u64; 4],
    got: [u64; 4],
    pods: Part,
}

impl Got {
    fn add(&mut self, asked: PodRequest, got: bool) {
        self.pods.add(u64::from(got), 1);
        for (at, amount) in asked.amounts().into_iter().enumerate() {
            let sums = [(&mut self.asked, true), (&mut self.got, got)];
            for (sum, counts) in sums {
                if let (Some(sum), true) = (sum.get_mut(at), counts) {
                    *sum = sum.saturating_add(amount);
                }
            }
        }
    }

    /// The mean, over the resources that the namespace requested, of the part that it got. For a namespace that
    /// requested none, the part of its pods that got a node.
    fn share(self) -> f64 {
        let parts: Vec<f64> = self
            .asked
            .into_iter()
            .zip(self.got)
            .filter(|(asked, _)| *asked > 0)
            .map(|(asked, got)| float(got) / float(asked))
            .collect();
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        if count == 0 {
            return float(self.pods.used) / float(self.pods.total.max(1));
        }
        parts.iter().sum::<f64>() / f64::from(count)
    }
}

/// Jain's index: the square of the sum, divided by n times the sum of squares. It is 1 if all values are equal (even if
/// all are 0), and 1/n if one value has everything.
fn jain(shares: &[f64]) -> Option<f64> {
    let count = u32::try_from(shares.len())
        .ok()
        .filter(|count| *count > 0)?;
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares <= 0.0 {
        return Some(1.0);
    }
    Some(sum * sum / (f64::from(count) * squares))
}

/// The smallest value that is not exceeded by `percent` % of the values. `sorted` is in ascending order.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).checked_sub(1)?;
    sorted.get(rank).copied()
}

fn rounded(value: f64, steps: f64) -> f64 {
    (value * steps).round() / steps
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a figure with a few digits is made of it"
)]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(cpu_milli: u64) -> PodRequest {
        PodRequest {
            cpu_milli,
            ..PodRequest::default()
        }
    }

    #[test]
    fn jain_is_one_when_even_and_one_nth_when_one_has_all() {
        let index = |shares: &[f64]| jain(shares).map(|index| rounded(index, 100.0));

        assert_eq!(index(&[0.5, 0.5, 0.5]), Some(1.0));
        assert_eq!(index(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(index(&[1.0, 0.5]), Some(0.9));
        assert_eq!(index(&[0.0, 0.0]), Some(1.0));
        assert_eq!(index(&[]), None);
    }

    #[test]
    fn percentiles_are_waits_that_occurred() {
        let waits: Vec<u64> = (1..=20).collect();

        let of = |percent| percentile(&waits, percent);

        assert_eq!((of(50), of(95), of(100)), (Some(10), Some(19), Some(20)));
        assert_eq!(percentile(&[7], 50), Some(7));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn placed_and_pending_pods_add_up_to_all() {
        let mut tally = Tally::default();
        tally.runs("a/stood", cpu(1000));
        tally.waits("a/fits", cpu(500), 0, "");
        tally.placed("a/fits", 20);
        tally.waits("b/large", cpu(9000), 0, "");
        tally.refused("b/large", "Insufficient cpu".to_owned());
        tally.waits("b/left", cpu(1), 0, "");
        tally.gone("b/left");
        tally.waits("a/ended", cpu(1), 10, "");
        tally.placed("a/ended", 50);
        tally.gone("a/ended");

        let figures = tally.figures();

        assert_eq!((figures.placed, figures.pending), (3, 2));
        let reasons: Vec<_> = figures.reasons.iter().collect();
        assert_eq!(
            reasons,
            [(&"Insufficient cpu".to_owned(), &1), (&LEFT.to_owned(), &1)]
        );
        // a got everything, b nothing.
        assert_eq!(figures.fairness, Some(0.5));
        assert_eq!(figures.waiting.p50_seconds, Some(0.02));
        assert_eq!(figures.waiting.max_seconds, Some(0.04));
    }

    #[test]
    fn a_preempted_pod_waits_from_its_eviction_on() {
        let mut tally = Tally::default();
        tally.runs("a/low", cpu(1));
        tally.preempted("a/low", 1_000);
        tally.placed("a/low", 4_000);

        let figures = tally.figures();

        assert_eq!((figures.placed, figures.pending), (1, 0));
        assert_eq!(figures.evicted.preempted, 1);
        assert_eq!(figures.waiting.p50_seconds, Some(3.0));
    }

    #[test]
    fn a_name_that_is_used_again_counts_twice() {
        let mut tally = Tally::default();
        tally.waits("a/p", cpu(1), 0, "");
        tally.placed("a/p", 5);
        tally.gone("a/p");
        tally.waits("a/p", cpu(1), 10, "no node");

        let figures = tally.figures();

        assert_eq!((figures.placed, figures.pending), (1, 1));
    }

    #[test]
    fn samples_are_averaged_and_nothing_to_measure_is_none() {
        let full = Part { used: 3, total: 4 };
        let mut tally = Tally::default();
        tally.sample(ClusterSample {
            cpu: full,
            ..ClusterSample::default()
        });
        tally.sample(ClusterSample {
            cpu: Part { used: 0, total: 4 },
            gpu_memory: full,
            stranded: Some(Part::default()),
            ..ClusterSample::default()
        });

        let figures = tally.figures();

        assert_eq!(figures.utilisation.cpu, Some(37.5));
        assert_eq!(figures.utilisation.gpu_memory, Some(75.0));
        assert_eq!(figures.utilisation.gpu_cores, None);
        assert_eq!(figures.fragmentation, Some(0.0));
        assert_eq!(Figures::default().fragmentation, None);
    }

    #[test]
    fn a_namespace_that_asks_for_several_things_gets_their_mean() {
        let mut got = Got::default();
        let asked = PodRequest {
            cpu_milli: 1000,
            gpu_memory_bytes: 10,
            ..PodRequest::default()
        };
        got.add(asked, true);
        got.add(cpu(1000), false);

        assert_eq!(got.share(), 0.75);
        assert_eq!(Got::default().share(), 0.0);
    }
}
