//! The pods' use of their GPUs over time, in bounded memory: [`STEPS`] samples of eight bytes for each pod on each
//! GPU, for at most [`SERIES`] such pairs. Values in, values out: a step is a number, not a time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use pages::gpus::{OfGpu, Point, Total, Usage};

use super::told::Container;

/// How many samples are kept: two hours at one sample each 30 s.
pub(crate) const STEPS: usize = 240;

/// How many pairs of pod and GPU are followed; each takes about 2 KiB, so all of them 40 MiB.
pub(crate) const SERIES: usize = 20_000;

const MIB: u64 = 1 << 20;

/// A pod on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PodOnGpu {
    pub(crate) namespace: Arc<str>,
    pub(crate) pod: Arc<str>,
    pub(crate) gpu: Arc<str>,
}

/// One sample. The largest values of its fields mean "not known".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UseSample {
    memory_mib: u32,
    compute: u16,
    ooms: u16,
}

const NONE: UseSample = UseSample {
    memory_mib: u32::MAX,
    compute: u16::MAX,
    ooms: 0,
};

#[derive(Debug)]
struct Series {
    /// The uid of the pod, because names are used again.
    uid: Arc<str>,
    /// By step, modulo [`STEPS`].
    samples: Box<[UseSample]>,
    first: u64,
    last: u64,
    usage: Option<Usage>,
    ooms: u32,
}

/// A pod's use of a GPU in this step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Now {
    pub(crate) memory_bytes: u64,
    pub(crate) compute: Option<u32>,
}

/// The samples of all pods, and the sums.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The number of the current step; 0 before the first.
    step: u64,
    series: HashMap<PodOnGpu, Series>,
    /// How often each container was refused memory at its last report, and the step of that report.
    counters: HashMap<Container, (u64, u64)>,
    totals: VecDeque<Total>,
    left_out: usize,
}

impl History {
    /// Starts a step.
    pub(crate) fn begin(&mut self) {
        self.step += 1;
        let oldest = self.oldest();
        self.series.retain(|_, series| series.last >= oldest);
        self.counters.retain(|_, (_, step)| *step >= oldest);
        self.left_out = 0;
    }

    fn oldest(&self) -> u64 {
        (self.step + 1).saturating_sub(STEPS as u64)
    }

    /// How many pairs of pod and GPU were not followed in this step because there are too many.
    pub(crate) fn left_out(&self) -> usize {
        self.left_out
    }

    /// The refusals since the container's last report. A count that has shrunk belongs to a new container. A
    /// container's first count is all new where `fresh` is set, because its pod began after the history did.
    pub(crate) fn refused(&mut self, of: &Container, count: u64, fresh: bool) -> u64 {
        let before = self.counters.insert(of.clone(), (count, self.step));
        match before {
            Some((before, _)) if before <= count => count - before,
            Some(_) => count,
            None if fresh => count,
            None => 0,
        }
    }

    /// Whether the pod is followed only since the current step or the one before.
    pub(crate) fn is_fresh(&self, key: &PodOnGpu, uid: &str) -> bool {
        let known = self.series.get(key).filter(|series| *series.uid == *uid);
        // In the first step all pods look new.
        self.step > 1 && known.is_none_or(|series| series.first + 1 >= self.step)
    }

    /// Records a pod's use of a GPU in this step; `None` if no agent reported any.
    pub(crate) fn record(&mut self, key: &PodOnGpu, uid: &Arc<str>, now: Option<Now>, ooms: u64) {
        let (step, oldest) = (self.step, self.oldest());
        let same = self.series.get(key).is_some_and(|had| *had.uid == **uid);
        if !same {
            self.series.remove(key);
            if self.series.len() >= SERIES && !self.forget_one() {
                self.left_out += 1;
                return;
            }
        }
        let series = self.series.entry(key.clone()).or_insert_with(|| Series {
            uid: Arc::clone(uid),
            samples: vec![NONE; STEPS].into(),
            first: step,
            last: step,
            usage: None,
            ooms: 0,
        });
        for missed in series.last + 1..step {
            set(&mut series.samples, missed, NONE);
        }
        let sample = now.map_or(NONE, |now| UseSample {
            memory_mib: u32::try_from(now.memory_bytes.div_ceil(MIB)).unwrap_or(u32::MAX - 1),
            compute: now.compute.map_or(u16::MAX, |compute| {
                u16::try_from(compute)
                    .unwrap_or(u16::MAX - 1)
                    .min(u16::MAX - 1)
            }),
            ooms: 0,
        });
        let ooms = u16::try_from(ooms).unwrap_or(u16::MAX);
        set(&mut series.samples, step, UseSample { ooms, ..sample });
        series.last = step;
        series.sum_up(oldest, now);
    }

    /// Makes room by forgetting a pod that has ended; false where there is none.
    fn forget_one(&mut self) -> bool {
        let ended = self
            .series
            .iter()
            .filter(|(_, series)| series.last + 1 < self.step);
        let longest = ended.min_by_key(|(_, series)| series.last);
        match longest.map(|(key, _)| key.clone()) {
            Some(key) => self.series.remove(&key).is_some(),
            None => false,
        }
    }

    /// Records the sums over all GPUs in this step.
    pub(crate) fn total(&mut self, total: Total) {
        if self.totals.len() >= STEPS {
            self.totals.pop_front();
        }
        self.totals.push_back(total);
    }

    /// The sums of all remembered steps.
    pub(crate) fn totals(&self) -> Vec<Total> {
        self.totals.iter().copied().collect()
    }

    /// A pod's use of a GPU, and how often it was refused memory. The use is none if no agent reported it in the
    /// current step or the one before.
    pub(crate) fn usage(&self, key: &PodOnGpu, uid: &str) -> (Option<Usage>, u32) {
        match self.series.get(key) {
            Some(series) if *series.uid == *uid => {
                let recent = series.last + 1 >= self.step;
                (series.usage.filter(|_| recent), series.ooms)
            }
            _ => (None, 0),
        }
    }

    /// The history of a pod on each of its GPUs.
    pub(crate) fn of_pod(&self, namespace: &str, pod: &str) -> Vec<OfGpu> {
        let of = |key: &&PodOnGpu| *key.namespace == *namespace && *key.pod == *pod;
        let mut keys: Vec<&PodOnGpu> = self.series.keys().filter(of).collect();
        keys.sort_by(|a, b| a.gpu.cmp(&b.gpu));
        keys.into_iter().map(|key| self.of_key(key)).collect()
    }

    /// The history of a pod on these GPUs, which it holds.
    pub(crate) fn of_gpus(&self, keys: &[PodOnGpu]) -> Vec<OfGpu> {
        let known = keys.iter().filter(|key| self.series.contains_key(*key));
        known.map(|key| self.of_key(key)).collect()
    }

    fn of_key(&self, key: &PodOnGpu) -> OfGpu {
        let points = self.series.get(key).map_or_else(Vec::new, |series| {
            let from = series.first.max(self.oldest());
            (from..=self.step)
                .map(|step| series.at(step).map(UseSample::point))
                .map(Option::flatten)
                .collect()
        });
        OfGpu {
            gpu: key.gpu.to_string(),
            points,
        }
    }
}

fn slot(step: u64) -> usize {
    usize::try_from(step % STEPS as u64).unwrap_or_default()
}

fn set(samples: &mut [UseSample], step: u64, sample: UseSample) {
    if let Some(place) = samples.get_mut(slot(step)) {
        *place = sample;
    }
}

impl Series {
    fn at(&self, step: u64) -> Option<UseSample> {
        if step < self.first || step > self.last {
            return None;
        }
        self.samples.get(slot(step)).copied()
    }

    /// Sums the samples up once for each step, so that pages need not.
    fn sum_up(&mut self, oldest: u64, now: Option<Now>) {
        let (mut most, mut busy, mut measured, mut ooms) = (0, 0_u64, 0_u64, 0_u32);
        for step in self.first.max(oldest)..=self.last {
            let Some(sample) = self.at(step) else {
                continue;
            };
            ooms = ooms.saturating_add(sample.ooms.into());
            let Some(point) = sample.point() else {
                continue;
            };
            most = most.max(point.memory_bytes);
            if let Some(compute) = point.compute {
                busy += u64::from(compute);
                measured += 1;
            }
        }
        self.ooms = ooms;
        let mean = busy
            .checked_div(measured)
            .and_then(|mean| u32::try_from(mean).ok());
        self.usage = now.map(|now| Usage {
            memory_bytes: now.memory_bytes,
            most_bytes: most.max(now.memory_bytes),
            compute: now.compute,
            mean_compute: mean,
        });
    }
}

impl UseSample {
    fn point(self) -> Option<Point> {
        let told = self.memory_mib != u32::MAX;
        (told || self.ooms > 0).then(|| Point {
            memory_bytes: if told {
                u64::from(self.memory_mib) * MIB
            } else {
                0
            },
            compute: (self.compute != u16::MAX).then(|| self.compute.into()),
            ooms: self.ooms.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn key(pod: &str) -> PodOnGpu {
        PodOnGpu {
            namespace: "ns".into(),
            pod: pod.into(),
            gpu: "gpu-0".into(),
        }
    }

    fn now(gib: u64, compute: u32) -> Option<Now> {
        Some(Now {
            memory_bytes: gib * GIB,
            compute: Some(compute),
        })
    }

    fn step(history: &mut History, pod: &str, used: Option<Now>) {
        history.begin();
        history.record(&key(pod), &"uid".into(), used, 0);
    }

    #[test]
    fn the_most_and_the_mean_are_of_the_steps_that_are_kept() {
        let mut history = History::default();
        step(&mut history, "a", now(9, 1000));
        step(&mut history, "a", now(2, 0));

        let (usage, _) = history.usage(&key("a"), "uid");
        let usage = usage.unwrap();
        assert_eq!((usage.memory_bytes, usage.most_bytes), (2 * GIB, 9 * GIB));
        assert_eq!((usage.compute, usage.mean_compute), (Some(0), Some(500)));

        for _ in 0..STEPS - 1 {
            step(&mut history, "a", now(3, 100));
        }
        let usage = history.usage(&key("a"), "uid").0.unwrap();
        assert_eq!((usage.most_bytes, usage.mean_compute), (3 * GIB, Some(99)));
        assert_eq!(history.of_pod("ns", "a")[0].points.len(), STEPS);
    }

    #[test]
    fn a_step_without_an_answer_is_a_gap() {
        let mut history = History::default();
        step(&mut history, "a", now(1, 0));
        history.begin();
        step(&mut history, "a", None);
        step(&mut history, "a", now(4, 0));

        let gaps: Vec<bool> = history.of_pod("ns", "a")[0]
            .points
            .iter()
            .map(Option::is_none)
            .collect();
        assert_eq!(gaps, [false, true, true, false]);
    }

    #[test]
    fn a_pod_that_has_ended_is_forgotten_in_the_end() {
        let mut history = History::default();
        step(&mut history, "a", now(1, 0));
        history.begin();
        history.begin();
        assert_eq!(history.usage(&key("a"), "uid").0, None);
        assert_eq!(history.of_pod("ns", "a")[0].points.len(), 3);

        for _ in 0..STEPS {
            history.begin();
        }
        assert!(history.of_pod("ns", "a").is_empty());
    }

    #[test]
    fn another_pod_of_the_same_name_starts_from_zero() {
        let mut history = History::default();
        step(&mut history, "a", now(9, 0));
        history.begin();
        history.record(&key("a"), &"other".into(), now(1, 0), 0);

        let usage = history.usage(&key("a"), "other").0.unwrap();
        assert_eq!(usage.most_bytes, GIB);
        assert_eq!(history.of_pod("ns", "a")[0].points.len(), 1);
    }

    #[test]
    fn refusals_are_counted_from_when_they_are_known() {
        let mut history = History::default();
        let of = Container::default();
        history.begin();
        assert!(!history.is_fresh(&key("a"), "uid"));
        assert_eq!(history.refused(&of, 5, false), 0);
        assert_eq!(history.refused(&of, 7, false), 2);
        assert_eq!(history.refused(&of, 1, false), 1);

        history.begin();
        assert!(history.is_fresh(&key("new"), "uid"));
        let new = Container {
            pod: "new".into(),
            ..Container::default()
        };
        assert_eq!(history.refused(&new, 4, true), 4);
        history.record(&key("new"), &"uid".into(), None, 4);
        assert_eq!(history.usage(&key("new"), "uid").1, 4);
    }

    #[test]
    fn memory_is_bounded_and_the_ended_go_first() {
        let mut history = History::default();
        history.begin();
        let uid: Arc<str> = "uid".into();
        history.record(&key("ended"), &uid, now(1, 0), 0);
        history.begin();
        history.begin();
        for pod in 0..SERIES + 2 {
            history.record(&key(&pod.to_string()), &uid, now(1, 0), 0);
        }

        assert_eq!((history.series.len(), history.left_out()), (SERIES, 2));
        assert!(history.of_pod("ns", "ended").is_empty());
        assert_eq!(size_of::<UseSample>(), 8);
    }
}
