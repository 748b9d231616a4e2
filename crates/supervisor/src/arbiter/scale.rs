//! The scale of the time that a container measures. The time between two events around a long kernel includes the
//! time of another process whose turn came in between. The arbiter, outside the tenants, sees both. Owns two factors:
//! [`Meter::own`], the part of a long measurement that is the process's own (the library finds that part by itself
//! for short kernels), and in [`Meter::scale`] the correction of what the process counts.
//!
//! There are two sources. How busy the other containers are shows at once which part of a measured time was
//! theirs, if the device serves in turns all that want it; what a process says of itself has no part in it.
//! The driver's own figures (whole percents, late, sometimes missing) then correct that model slowly and
//! within bounds, so that a wrong figure changes little and a missing one nothing.
//!
//! Never reads a clock or asks the driver.

use std::collections::{HashMap, VecDeque};

/// How fast a process's busy share follows what it does, nanoseconds.
const FOLLOW_NS: f64 = 300e6;
/// A process that is busy for more than this part of the time would use more if it could.
const SATURATED: f64 = 0.9;
/// Times below this are mostly rounding, nanoseconds of GPU time in one sample.
const ASSUMED_NS: f64 = 3e6;
/// A container's time beyond its share is balanced over this time, nanoseconds.
const BALANCED_NS: f64 = 1.5e9;
/// Balancing adds or removes at most this part of the time that the container measures.
const MOST_BALANCE: f64 = 0.25;
/// The part of the difference between the driver's figure and the model's that one sample corrects.
const CORRECTION_GAIN: f64 = 0.3;
/// The driver's correction stays within these.
const LEAST_CORRECTION: f64 = 0.25;
const MOST_CORRECTION: f64 = 8.0;
/// The driver's correction moves by at most this part of itself with each sample.
const CORRECTION_STEP: f64 = 0.1;
/// A container that is charged for less than this part of its share does not wait for credit.
const ENOUGH: f64 = 0.9;
/// A process that is busy for less than this part of the time rests.
const RESTING: f64 = 0.02;
/// One that rested and is busy for more than this part of the time between two looks has begun to work: what it did before
/// says nothing about it.
const BEGINNING: f64 = 0.1;
/// Work that is settled late counts for at most so many times the time since the last look.
const MOST_SETTLED: f64 = 4.0;
/// The whole scale stays within these.
const LEAST_SCALE: f64 = 1.0 / 32.0;
const MOST_SCALE: f64 = 8.0;
/// Longest and shortest time that one sample covers, nanoseconds.
const LONGEST_SAMPLE_NS: u64 = 1_200_000_000;
const SHORTEST_SAMPLE_NS: u64 = 20_000_000;
/// Looks that are remembered: four seconds at 50 ms, so that a late sample finds its time.
const LOOKS: usize = 80;
/// The span of the share that is shown, nanoseconds.
const SHOWN_NS: u64 = 1_000_000_000;
/// The driver's figures arrive within this time, nanoseconds: a process that is not in them by then was not
/// busy.
const TOLD_WITHIN_NS: u64 = 2_500_000_000;
/// The time of the mean of a correction, nanoseconds.
const STEADY_NS: f64 = 3e9;
/// The beginning and the end of a driver's period may be off by this much, nanoseconds: the driver reports its figures
/// late, and the arbiter asks for them at intervals.
const APART_NS: f64 = 150e6;
/// A process's own part of what it measures counts as at least this part of the driver's figure.
const LEAST_OF_TOLD: f64 = 0.5;

/// A process of a container.
pub type ProcessKey = (u64, usize, u64);

/// The driver's figures of one period of a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sample {
    /// End of the period on the driver's clock, microseconds.
    pub at_us: u64,
    /// Percent of the period, by process id on the host.
    pub processes: Vec<(u32, u32)>,
    /// Percent of the period that the whole device was busy, if there are no figures for each process.
    pub device: Option<u32>,
}

/// A process at one look.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Which.
    pub key: ProcessKey,
    /// Its process id on the host.
    pub host_pid: Option<u32>,
    /// GPU time that it counts as its own so far, nanoseconds.
    pub busy_ns: u64,
    /// Time in which it had work on the device so far, other processes' turns included, nanoseconds. 0: its library
    /// does not measure the two separately, and `busy_ns` includes those turns, too.
    pub occupied_ns: u64,
}

#[derive(Debug, Default)]
struct ProcessScale {
    /// Looks at it, since it was first busy.
    looks: u32,
    busy_ns: u64,
    occupied_ns: u64,
    /// Part of the time that it is busy, as it measures.
    busy: f64,
    /// The same between the last two looks, and between the two before.
    lately: [f64; 2],
    /// The part of `busy` for which others are taken to wait: no more than the driver's figures allow.
    counted: f64,
    /// Part of its measured time that is its own, by the model.
    own: f64,
    host_pid: Option<u32>,
}

/// History of a process on the host, in however many slots it is.
#[derive(Debug, Default, Clone, Copy)]
struct ProcessHistory {
    /// When it first was busy, as its region reports.
    busy_since_ns: Option<u64>,
    /// When the driver last said that it was busy.
    told_busy_ns: Option<u64>,
}

/// A container's times up to a look, nanoseconds.
#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    at_ns: u64,
    /// GPU time by the model.
    own_ns: f64,
    /// The most of what it reports that can be its own: all that a library measured which does not leave out the turns of
    /// others, and the same as `own_ns` for one that does.
    most_ns: f64,
}

#[derive(Debug)]
struct ContainerScale {
    /// The driver's figure divided by the model's.
    correction: f64,
    /// Its mean of the last seconds. A driver's sample that begins before a change of what a container does and
    /// ends after it moves the correction for a moment only.
    steady_correction: f64,
    /// GPU time beyond its share that it had while it wanted all of the share, by the driver's figures,
    /// nanoseconds; negative is time that it missed.
    ahead: f64,
    /// The share that it is held to, a part of one; `None` if it does not want all of it.
    held_to: Option<f64>,
    held_since_ns: u64,
    /// Newest last.
    looks: VecDeque<Sums>,
    /// The share by the driver, of its last sample, and when it came.
    last_told: Option<(u64, f64)>,
    /// The driver's reported time beyond the model's, less the time already taken and the model's surplus,
    /// nanoseconds.
    beyond_model_ns: f64,
    /// Of that, what [`Meter::take_unreported_ns`] gives next.
    unreported_ns: f64,
}

impl Default for ContainerScale {
    fn default() -> Self {
        Self {
            correction: 1.0,
            steady_correction: 1.0,
            ahead: 0.0,
            held_to: None,
            held_since_ns: 0,
            looks: VecDeque::new(),
            last_told: None,
            beyond_model_ns: 0.0,
            unreported_ns: 0.0,
        }
    }
}

/// The time of one device, by process and container.
#[derive(Debug, Default)]
pub struct Meter {
    looked_at_ns: Option<u64>,
    processes: HashMap<ProcessKey, ProcessScale>,
    containers: HashMap<u64, ContainerScale>,
    /// From the driver's clock to ours: the least that a sample was late, nanoseconds.
    offset_ns: Option<i128>,
    told_until_us: u64,
    /// When the driver last had figures for each process.
    told_apart_ns: Option<u64>,
    /// By container and process id on the host; 0 means processes that are not visible.
    seen: HashMap<(u64, u32), ProcessHistory>,
}

impl Meter {
    /// Takes a look at all processes on the device. A process that is not in `found` is gone.
    pub fn look(&mut self, now_ns: u64, found: &[Work]) {
        let passed = self.looked_at_ns.map(|at| now_ns.saturating_sub(at));
        if passed == Some(0) {
            return;
        }
        self.looked_at_ns = Some(now_ns);
        let mut processes = HashMap::with_capacity(found.len());
        let mut spent = Vec::with_capacity(found.len());
        for work in found {
            let known = self.processes.remove(&work.key);
            let (mut process, spent_ns) = match (known, passed) {
                (Some(known), Some(passed)) => {
                    let spent_ns = work.busy_ns.saturating_sub(known.busy_ns);
                    let occupied_ns = match work.occupied_ns {
                        0 => spent_ns,
                        sum => sum.saturating_sub(known.occupied_ns),
                    };
                    let part = (real(occupied_ns) / real(passed)).min(1.0);
                    // At first, and after a rest, the mean of all there is.
                    let begins = known.busy < RESTING && part > BEGINNING;
                    let looks = if begins {
                        1
                    } else {
                        known.looks.saturating_add(1)
                    };
                    let weight = real(passed) / (FOLLOW_NS + real(passed));
                    let weight = weight.max(1.0 / f64::from(looks));
                    let busy = known.busy + (part - known.busy) * weight;
                    // Work that was settled late belongs to more than one look.
                    let spent_ns = real(spent_ns).min(MOST_SETTLED * real(passed));
                    (
                        ProcessScale {
                            busy,
                            lately: [part, known.lately[0]],
                            looks,
                            ..known
                        },
                        spent_ns,
                    )
                }
                // The first look: what it did before is unknown.
                _ => (ProcessScale::default(), 0.0),
            };
            process.busy_ns = work.busy_ns;
            process.occupied_ns = work.occupied_ns;
            process.host_pid = work.host_pid;
            spent.push(spent_ns);
            processes.insert(work.key, process);
        }
        self.processes = processes;
        self.bound(now_ns);
        self.model(now_ns);

        for work in found {
            self.containers.entry(work.key.0).or_default();
        }
        let mut sums: HashMap<u64, (f64, f64)> = HashMap::new();
        for (work, spent_ns) in found.iter().zip(spent) {
            let own = match work.occupied_ns {
                0 => self.processes.get(&work.key).map_or(1.0, |p| p.own),
                // The process has already left out the other processes' turns.
                _ => 1.0,
            };
            let (own_ns, most_ns) = sums.entry(work.key.0).or_default();
            *own_ns += spent_ns * own;
            *most_ns += spent_ns;
        }
        self.containers.retain(|id, container| {
            let more = sums.get(id).copied();
            let weight = passed.map_or(0.0, |passed| (real(passed) / STEADY_NS).min(1.0));
            let apart = container.correction - container.steady_correction;
            container.steady_correction += apart * weight;
            let last = container.looks.back().copied().unwrap_or_default();
            let (own_ns, most_ns) = more.unwrap_or_default();
            container.looks.push_back(Sums {
                at_ns: now_ns,
                own_ns: last.own_ns + own_ns,
                most_ns: last.most_ns + most_ns,
            });
            while container.looks.len() > LOOKS {
                container.looks.pop_front();
            }
            more.is_some()
        });
    }

    /// How much of what each process measures is its own, if the device serves all that want it in
    /// turns of the same length, and each is busy independently of the others: the mean of one over
    /// one more than the number of others that are busy at a time. That mean is an integral over a
    /// product of all the others' parts, and a few points give it exactly for up to sixteen.
    fn model(&mut self, now_ns: u64) {
        // Gauss-Legendre on 0..1.
        const POINTS: [(f64, f64); 8] = [
            (0.019_855_071_751_232, 0.050_614_268_145_188),
            (0.101_666_761_293_187, 0.111_190_517_226_687),
            (0.237_233_795_041_836, 0.156_853_322_938_944),
            (0.408_282_678_752_175, 0.181_341_891_689_181),
            (0.591_717_321_247_825, 0.181_341_891_689_181),
            (0.762_766_204_958_164, 0.156_853_322_938_944),
            (0.898_333_238_706_813, 0.111_190_517_226_687),
            (0.980_144_928_248_768, 0.050_614_268_145_188),
        ];
        let factor = |busy: f64, point: f64| 1.0 - busy.min(1.0) * (1.0 - point);
        let all = POINTS.map(|(point, weight)| {
            let product: f64 = self
                .processes
                .values()
                .map(|p| factor(p.counted, point))
                .product();
            (point, weight, product)
        });
        for process in self.processes.values_mut() {
            let without = |(point, weight, product): &(f64, f64, f64)| {
                weight * product / factor(process.counted, *point).max(1e-9)
            };
            process.own = all.iter().map(without).sum::<f64>().clamp(0.0, 1.0);
        }
        self.raise_to_told(now_ns);
    }

    /// Other containers' own reports make no container's time count less than half of the driver's figure for
    /// it: the correction can make up for the rest.
    fn raise_to_told(&mut self, now_ns: u64) {
        let mut busy: HashMap<u64, f64> = HashMap::new();
        for (key, process) in &self.processes {
            *busy.entry(key.0).or_default() += process.busy;
        }
        for (key, process) in &mut self.processes {
            let told = self.containers.get(&key.0).and_then(|c| c.last_told);
            let Some((_, share)) =
                told.filter(|(at, _)| now_ns.saturating_sub(*at) < TOLD_WITHIN_NS)
            else {
                continue;
            };
            let busy = busy.get(&key.0).copied().unwrap_or(0.0).max(0.01);
            let least = (share / busy * LEAST_OF_TOLD).clamp(0.0, 1.0);
            process.own = process.own.max(least);
        }
    }

    /// How busy each process counts for the others. A tenant can write anything into its region. So a host
    /// process is busy once, in however many slots it is. If the driver has figures for each process, a process that
    /// it never saw busy is not busy. As long as the driver cannot have reported yet, all such processes of a
    /// container together count as one.
    fn bound(&mut self, now_ns: u64) {
        let of = |key: &ProcessKey, process: &ProcessScale| (key.0, process.host_pid.unwrap_or(0));
        let recent =
            |at: Option<u64>| at.is_some_and(|at| now_ns.saturating_sub(at) < TOLD_WITHIN_NS);
        let told_apart = recent(self.told_apart_ns);
        let mut busy: HashMap<(u64, u32), f64> = HashMap::new();
        for (key, process) in &self.processes {
            *busy.entry(of(key, process)).or_default() += process.busy;
        }
        let mut seen = std::mem::take(&mut self.seen);
        seen.retain(|host_process, _| busy.contains_key(host_process));
        for (host_process, busy) in &busy {
            let seen = seen.entry(*host_process).or_default();
            if *busy < RESTING {
                seen.busy_since_ns = None;
            } else {
                seen.busy_since_ns.get_or_insert(now_ns);
            }
        }
        self.seen = seen;
        let is_told = |host_process: &(u64, u32)| {
            let seen = self.seen.get(host_process).copied().unwrap_or_default();
            // The driver cannot be asked about a process that is not visible.
            host_process.1 == 0 || recent(seen.told_busy_ns)
        };
        // Processes that the driver cannot have reported yet, by container.
        let mut fresh: HashMap<u64, f64> = HashMap::new();
        for (host_process, busy) in busy
            .iter()
            .filter(|(host_process, _)| !is_told(host_process))
        {
            *fresh.entry(host_process.0).or_default() += busy.min(1.0);
        }
        let part = |host_process: &(u64, u32)| {
            let sum = busy.get(host_process).copied().unwrap_or(0.0);
            let once = 1.0 / sum.max(1.0);
            if !told_apart || is_told(host_process) {
                return once;
            }
            let seen = self.seen.get(host_process).copied().unwrap_or_default();
            if !recent(seen.busy_since_ns) {
                return 0.0;
            }
            once / fresh.get(&host_process.0).copied().unwrap_or(1.0).max(1.0)
        };
        let parts: HashMap<(u64, u32), f64> = busy
            .keys()
            .map(|host_process| (*host_process, part(host_process)))
            .collect();
        for (key, process) in &mut self.processes {
            let part = parts.get(&of(key, process)).copied().unwrap_or(1.0);
            process.counted = process.busy * part;
        }
    }

    /// Takes what the driver says. A sample that was taken before counts once.
    pub fn told(&mut self, now_ns: u64, samples: &[Sample]) {
        let mut samples: Vec<&Sample> = samples
            .iter()
            .filter(|sample| sample.at_us > self.told_until_us)
            .collect();
        samples.sort_by_key(|sample| sample.at_us);
        for sample in samples {
            let at_ns = i128::from(sample.at_us) * 1000;
            let late = i128::from(now_ns) - at_ns;
            // Clocks drift apart: the smallest delay of an hour ago may no longer hold.
            let offset = self.offset_ns.map_or(late, |least| late.min(least + 5_000));
            self.offset_ns = Some(offset);
            let since_last = (sample.at_us - self.told_until_us).saturating_mul(1000);
            let is_first = self.told_until_us == 0;
            self.told_until_us = sample.at_us;
            if is_first {
                continue;
            }
            let period_ns = since_last.clamp(SHORTEST_SAMPLE_NS, LONGEST_SAMPLE_NS);
            let until_ns = u64::try_from(at_ns + offset).unwrap_or(now_ns);
            self.compare(now_ns, sample, until_ns.saturating_sub(period_ns), until_ns);
        }
    }

    fn compare(&mut self, now_ns: u64, sample: &Sample, from_ns: u64, until_ns: u64) {
        let period = real(until_ns.saturating_sub(from_ns));
        let sum: u32 = sample
            .processes
            .iter()
            .fold(0, |sum, (_, percent)| sum.saturating_add(*percent));
        // A whole percent means anything between it and the next.
        let percent = |whole: u32| match whole {
            0 | 100.. => f64::from(whole),
            whole => f64::from(whole) + 0.5,
        };
        // More than the whole device is nonsense, of which at most the proportions are true.
        let unit = 1.0 / f64::from(sum.max(100));
        let mut told: HashMap<u64, f64> = HashMap::new();
        if !sample.processes.is_empty() {
            self.told_apart_ns = Some(now_ns);
        }
        for (pid, told_percent) in &sample.processes {
            if *told_percent > 0 {
                for (host_process, seen) in &mut self.seen {
                    if host_process.1 == *pid {
                        seen.told_busy_ns = Some(now_ns);
                    }
                }
            }
            let whose = self
                .processes
                .iter()
                .find(|(_, p)| p.host_pid == Some(*pid));
            if let Some((key, _)) = whose {
                *told.entry(key.0).or_default() += percent(*told_percent) * unit * period;
            }
        }
        if let (Some(percent), true) = (sample.device, sample.processes.is_empty()) {
            // The driver does not divide this figure by process, so it corrects all processes alike. Some of the time may be
            // reported by no container: that of a kernel that never ends, or of a container that writes false figures. The
            // figure does not say which process used it, so no container is charged for it.
            let total = f64::from(percent.min(100)) / 100.0 * period;
            let between = self.containers.iter();
            let between: Vec<(u64, Sums)> = between
                .map(|(id, container)| (*id, container.between(from_ns, until_ns)))
                .collect();
            let modelled: f64 = between.iter().map(|(_, sums)| sums.own_ns).sum();
            for (id, sums) in between {
                let part = sums.own_ns / modelled.max(1.0);
                told.insert(id, (total * part).min(sums.most_ns));
            }
        }
        for (id, told_ns) in told {
            let Some(container) = self.containers.get_mut(&id) else {
                continue;
            };
            container.last_told = Some((now_ns, told_ns / period.max(1.0)));
            container.compare(told_ns, from_ns, until_ns);
            container.correct(told_ns, from_ns, until_ns);
            container.count(told_ns, from_ns, period);
        }
    }

    /// Sets the share that a container is held to, as a part of one; `None` if it does not want all of it.
    pub fn hold(&mut self, now_ns: u64, id: u64, share: Option<f64>) {
        let Some(container) = self.containers.get_mut(&id) else {
            return;
        };
        let same = container
            .held_to
            .zip(share)
            .is_some_and(|(was, is)| (was - is).abs() < 0.005);
        if !same {
            container.held_since_ns = now_ns;
        }
        container.held_to = share;
    }

    /// The part of what this process measures that is its own, by the model: at most 1.
    #[must_use]
    pub fn own(&self, key: &ProcessKey) -> f64 {
        let own = self.processes.get(key).map_or(1.0, |process| process.own);
        own.clamp(LEAST_SCALE, 1.0)
    }

    /// The least part of what the processes of a container measure that counts as their own, if the container does not want
    /// all of its share (`share`, a part of one).
    ///
    /// Such a container is below its share even if more of the others' turns count as its own. Without this rule a tenant
    /// gains time by writing into its region that it uses little. Then it has no interval, and of each of its launches only a
    /// part counts. Where the driver has figures for each process, those correct that, and this is 0.
    #[must_use]
    pub fn least_own(&self, now_ns: u64, id: u64, share: f64) -> f64 {
        let told_apart = self.told_apart_ns;
        if told_apart.is_some_and(|at| now_ns.saturating_sub(at) < TOLD_WITHIN_NS) {
            return 0.0;
        }
        let of_container = self.processes.iter().filter(|(key, _)| key.0 == id);
        let busy: f64 = of_container.map(|(_, process)| process.busy).sum();
        (share * ENOUGH / busy.max(RESTING)).min(1.0)
    }

    /// The weight of a nanosecond that this process has measured; [`Meter::own`] is a factor of it.
    #[must_use]
    pub fn scale(&self, key: &ProcessKey) -> f64 {
        let own = self.own(key);
        let container = self.containers.get(&key.0);
        let balance = container.map_or(1.0, ContainerScale::balance);
        (own * self.correction(key.0) * balance).clamp(LEAST_SCALE, MOST_SCALE)
    }

    fn correction(&self, id: u64) -> f64 {
        self.containers
            .get(&id)
            .map_or(1.0, |container| container.correction)
    }

    /// The share of the device that a container used in the last second, thousandths; nothing before
    /// there is something to go by.
    #[must_use]
    pub fn used_permille(&self, now_ns: u64, id: u64) -> Option<u32> {
        self.used_within(now_ns, id, SHOWN_NS)
    }

    /// The same over the time since `span_ns` ago, or the last look but one.
    #[must_use]
    pub fn used_within(&self, now_ns: u64, id: u64, span_ns: u64) -> Option<u32> {
        let container = self.containers.get(&id)?;
        let newest = container.looks.back()?;
        let from_ns = now_ns.saturating_sub(span_ns);
        let earlier = container.looks.iter().rev().skip(1);
        let mut oldest = None;
        for look in earlier {
            oldest = Some(look);
            if look.at_ns <= from_ns {
                break;
            }
        }
        let oldest = oldest?;
        let passed = real(newest.at_ns.saturating_sub(oldest.at_ns)).max(1.0);
        let own = (newest.own_ns - oldest.own_ns) / passed * container.correction;
        // Work that the library does not measure is known to the driver alone.
        let told = container
            .last_told
            .filter(|(at, _)| now_ns.saturating_sub(*at) < 2 * SHOWN_NS);
        let share = if own > 0.0 {
            own
        } else {
            told.map_or(0.0, |(_, share)| share)
        };
        Some(whole(share.clamp(0.0, 1.0) * 1000.0))
    }

    /// GPU time of a container between the last two looks by the model, nanoseconds.
    #[must_use]
    pub fn got_ns(&self, id: u64) -> f64 {
        let Some(container) = self.containers.get(&id) else {
            return 0.0;
        };
        let mut newest = container.looks.iter().rev().map(|sums| sums.own_ns);
        let (last, before) = (newest.next().unwrap_or(0.0), newest.next());
        (last - before.unwrap_or(last)).max(0.0) * container.steady_correction
    }

    /// GPU time of a container that the driver has reported and the model did not have, since this was asked last,
    /// nanoseconds.
    pub fn take_unreported_ns(&mut self, id: u64) -> f64 {
        let container = self.containers.get_mut(&id);
        container.map_or(0.0, |container| {
            std::mem::take(&mut container.unreported_ns)
        })
    }

    /// The share that a container used lately by the driver's figures, thousandths; `None` if it has none for each
    /// process. A driver may take one process for another, so what all containers used beyond `others` counts, too.
    #[must_use]
    pub fn told_permille(&self, now_ns: u64, id: u64, others: u32) -> Option<u32> {
        let is_recent = |at: u64| now_ns.saturating_sub(at) < TOLD_WITHIN_NS;
        self.told_apart_ns.filter(|at| is_recent(*at))?;
        let share = |container: &ContainerScale| {
            let told = container.last_told.filter(|(at, _)| is_recent(*at));
            told.map_or(0.0, |(_, share)| share)
        };
        let own = self.containers.get(&id).map(share)?;
        let all: f64 = self.containers.values().map(share).sum();
        let told = own.max(all - f64::from(others) / 1000.0);
        Some(whole(told.clamp(0.0, 1.0) * 1000.0))
    }

    /// Whether a process of the container is busy nearly all the time, as it measures: on average, or since the last look
    /// but two. A program that comes back from a rest is not told from one that works now and then by the average.
    #[must_use]
    pub fn is_saturated(&self, id: u64) -> bool {
        let lately = |process: &ProcessScale| process.lately.iter().sum::<f64>() / 2.0;
        self.processes
            .iter()
            .any(|(key, process)| key.0 == id && process.busy.max(lately(process)) > SATURATED)
    }
}

impl ContainerScale {
    /// Its times between two moments, the first of which is in `at_ns`.
    fn between(&self, from_ns: u64, until_ns: u64) -> Sums {
        let (from, until) = (self.at(from_ns), self.at(until_ns));
        Sums {
            at_ns: from_ns,
            own_ns: (until.own_ns - from.own_ns).max(0.0),
            most_ns: (until.most_ns - from.most_ns).max(0.0),
        }
    }

    /// Its times at a moment, as if all it did between two looks was spread evenly.
    fn at(&self, ns: u64) -> Sums {
        let Some(after) = self.looks.iter().position(|look| look.at_ns >= ns) else {
            return self.looks.back().copied().unwrap_or_default();
        };
        let next = self.looks.get(after).copied().unwrap_or_default();
        let before = after.checked_sub(1).and_then(|i| self.looks.get(i));
        let Some(last) = before.copied() else {
            return next;
        };
        let passed = real(next.at_ns.saturating_sub(last.at_ns).max(1));
        let part = real(ns.saturating_sub(last.at_ns)) / passed;
        let blend = |last: f64, next: f64| last + (next - last) * part;
        Sums {
            at_ns: ns,
            own_ns: blend(last.own_ns, next.own_ns),
            most_ns: blend(last.most_ns, next.most_ns),
        }
    }

    /// Adds up what it had beyond its share. Programs can fall into step with a device's turns, so that a
    /// slightly smaller allowance changes nothing at first, and then too much.
    fn count(&mut self, told_ns: f64, from_ns: u64, period: f64) {
        let held = self.held_to.filter(|share| *share < 1.0);
        let Some(share) = held.filter(|_| self.held_since_ns <= from_ns) else {
            self.ahead /= 2.0;
            return;
        };
        let most = share * BALANCED_NS * MOST_BALANCE;
        self.ahead = (self.ahead + told_ns - share * period).clamp(-most, most);
    }

    /// Factor by which its time counts more until it has given back what it had beyond its share.
    fn balance(&self) -> f64 {
        self.held_to.map_or(1.0, |share| {
            1.0 + self.ahead / (share.max(0.01) * BALANCED_NS)
        })
    }

    /// Notes what the driver saw and the container did not report. The driver's periods and ours
    /// do not lie at the same moments, so only what adds up to more than that counts.
    fn compare(&mut self, told_ns: f64, from_ns: u64, until_ns: u64) {
        let period = real(until_ns.saturating_sub(from_ns)).max(1.0);
        let tolerated_ns = told_ns / period * APART_NS;
        let modelled_ns = self.between(from_ns, until_ns).own_ns * self.correction;
        let sum_ns = self.beyond_model_ns + told_ns - modelled_ns;
        let beyond_ns = (sum_ns - tolerated_ns).max(0.0);
        self.unreported_ns += beyond_ns;
        self.beyond_model_ns = (sum_ns - beyond_ns).max(-APART_NS);
    }

    fn correct(&mut self, told_ns: f64, from_ns: u64, until_ns: u64) {
        // Events before the first look are unknown.
        let seen_all = self.looks.front().is_some_and(|look| look.at_ns <= from_ns);
        let modelled_ns = if seen_all {
            self.between(from_ns, until_ns).own_ns
        } else {
            0.0
        };
        // Nothing measured: there is nothing to correct, and no figure to correct it by.
        if modelled_ns <= 0.0 {
            return;
        }
        let expected_ns = self.correction * modelled_ns;
        let error = (told_ns - expected_ns) / (told_ns.max(expected_ns) + ASSUMED_NS);
        let step = (error * CORRECTION_GAIN).clamp(-CORRECTION_STEP, CORRECTION_STEP);
        let corrected = self.correction * (1.0 + step);
        self.correction = corrected.clamp(LEAST_CORRECTION, MOST_CORRECTION);
    }
}

/// Times are far below what a `f64` holds exactly.
#[expect(
    clippy::cast_precision_loss,
    reason = "52 bits of nanoseconds are 52 days, and a span is seconds"
)]
fn real(ns: u64) -> f64 {
    ns as f64
}

/// A number that was clamped before.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is within 0..=1000"
)]
fn whole(number: f64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn work(id: u64, busy_ns: u64) -> Work {
        Work {
            key: (id, 0, 1),
            host_pid: Some(u32::try_from(id).unwrap()),
            busy_ns,
            occupied_ns: 0,
        }
    }

    /// Looks every 50 ms for `ms` at processes that are busy for these percentages of the time.
    fn looked(meter: &mut Meter, from_ms: u64, ms: u64, busy: &[u64]) {
        for now in (from_ms..=from_ms + ms).step_by(50) {
            let list: Vec<Work> = busy
                .iter()
                .enumerate()
                .map(|(id, percent)| work(id as u64 + 1, now * MS * percent / 100))
                .collect();
            meter.look(now * MS, &list);
        }
    }

    fn scales(meter: &Meter, count: u64) -> Vec<u32> {
        (1..=count)
            .map(|id| whole(meter.scale(&(id, 0, 1)) * 100.0 + 0.5))
            .collect()
    }

    #[test]
    fn time_measured_alone_has_scale_one() {
        let mut meter = Meter::default();
        looked(&mut meter, 50, 5_000, &[100, 0]);

        assert_eq!(scales(&meter, 1), [100]);
        assert!(meter.used_permille(5_050 * MS, 1) >= Some(999));
        assert_eq!(meter.used_permille(5_050 * MS, 2), Some(0));
    }

    #[test]
    fn time_measured_beside_busy_neighbours_is_scaled_down() {
        let mut meter = Meter::default();
        looked(&mut meter, 50, 10_000, &[100, 100]);
        let two = scales(&meter, 2);
        let mut meter = Meter::default();
        looked(&mut meter, 50, 10_000, &[60, 100, 100, 100]);
        let four = scales(&meter, 4);

        assert_eq!(two, [50, 50]);
        assert_eq!(four, [25, 28, 28, 28]);
    }

    #[test]
    fn all_that_a_container_below_its_share_measures_is_its_own_unless_the_driver_tells_more() {
        let mut meter = Meter::default();
        looked(&mut meter, 50, 5_000, &[100, 5, 18, 0]);
        let least = |meter: &Meter, id| whole(meter.least_own(5_050 * MS, id, 0.1) * 100.0 + 0.5);

        // What the third one measures is as much as makes it wait for credit, if half of it counts.
        assert_eq!([1, 2, 3, 4].map(|id| least(&meter, id)), [9, 100, 50, 100]);
        for at_us in [4_900_000, 5_000_000] {
            let processes = vec![(1, 90), (2, 5)];
            let sample = Sample {
                at_us,
                processes,
                device: None,
            };
            meter.told(5_050 * MS, &[sample]);
        }
        assert_eq!([1, 2, 3, 4].map(|id| least(&meter, id)), [0; 4]);
    }

    #[test]
    fn process_that_comes_back_from_a_rest_is_saturated_after_two_looks() {
        let mut meter = Meter::default();
        let mut busy_ns = 0;
        let mut look = |now_ms: u64, more_ms: u64| {
            busy_ns += more_ms * MS;
            meter.look(now_ms * MS, &[work(1, busy_ns)]);
            meter.is_saturated(1)
        };

        // Busy for a second, at rest for half of one, busy.
        let worked: Vec<bool> = (0..20).map(|at| look(1_000 + at * 50, 50)).collect();
        let rested: Vec<bool> = (20..30).map(|at| look(1_000 + at * 50, 0)).collect();
        let back = [look(2_500, 50), look(2_550, 50)];

        assert!(worked[2..].iter().all(|is_saturated| *is_saturated));
        assert!(!rested[1..].iter().any(|is_saturated| *is_saturated));
        assert_eq!(back, [false, true]);
        assert!(!look(2_600, 25));
    }

    #[test]
    fn the_driver_corrects_the_model_slowly_and_within_bounds() {
        // Kernels shorter than a turn: their measured time contains none of another container's.
        let mut meter = Meter::default();
        let mut at = Vec::new();
        looked(&mut meter, 50, 4_900, &[50, 50]);
        for period in 20..=80 {
            looked(&mut meter, period * 250, 200, &[50, 50]);
            let processes = vec![(1, 50), (2, 50)];
            let sample = Sample {
                at_us: period * 250_000,
                processes,
                device: None,
            };
            meter.told((period * 250 + 200) * MS, &[sample]);
            at.push(scales(&meter, 1)[0]);
        }

        assert_eq!(at[0], 75, "by the model a third is the other's at most");
        assert!(at[1] < 90, "{at:?}");
        assert!(*at.last().unwrap() >= 97, "{at:?}");
    }

    #[test]
    fn device_utilization_corrects_all_containers_alike() {
        let mut meter = Meter::default();
        for period in 1..=60 {
            looked(&mut meter, period * 250, 200, &[50, 50]);
            let sample = Sample {
                at_us: period * 250_000,
                processes: Vec::new(),
                device: Some(100),
            };
            meter.told((period * 250 + 200) * MS, &[sample]);
        }

        assert!(
            scales(&meter, 2).iter().all(|scale| *scale >= 97),
            "{:?}",
            scales(&meter, 2)
        );
    }

    /// Scales after 15 seconds in which the device was busy all the time, by a figure that names no process.
    fn scales_beside(processes: &[Work]) -> Vec<f64> {
        let mut meter = Meter::default();
        for period in 1..=60 {
            for now in (period * 250..period * 250 + 250).step_by(50) {
                let at = |work: &Work| Work {
                    busy_ns: work.busy_ns * now * MS / 100,
                    occupied_ns: work.occupied_ns * now * MS / 100,
                    ..*work
                };
                meter.look(now * MS, &processes.iter().map(at).collect::<Vec<_>>());
            }
            let sample = Sample {
                at_us: period * 250_000,
                processes: Vec::new(),
                device: Some(100),
            };
            meter.told((period * 250 + 200) * MS, &[sample]);
        }
        let scale = |work: &Work| meter.scale(&work.key) / meter.own(&work.key);
        processes.iter().map(scale).collect()
    }

    #[test]
    fn time_that_no_container_reports_is_charged_to_none() {
        // The honest one has a third, and always work in flight; the other one's kernel never ends, or it says so.
        let honest = Work {
            occupied_ns: 100,
            ..work(1, 33)
        };
        for occupied_ns in [0, 1, 100] {
            let silent = Work {
                occupied_ns,
                ..work(2, 0)
            };
            assert_eq!(scales_beside(&[honest, silent]), [1.0, 1.0]);
        }
    }

    proptest! {
        #[test]
        fn wrong_samples_keep_the_scale_in_bounds(
            samples in proptest::collection::vec(
                (any::<bool>(), 0..2_000_u64, proptest::collection::vec((0..4_u32, any::<u32>()), 0..4), proptest::option::of(any::<u32>())),
                1..80,
            ),
            busy in proptest::collection::vec(0..=100_u64, 3),
        ) {
            let mut meter = Meter::default();
            let mut last = [1.0_f64; 3];
            for (period, (missing, late, processes, device)) in samples.into_iter().enumerate() {
                let period = period as u64 + 10;
                looked(&mut meter, period * 250, 200, &busy);
                let before = [1, 2, 3].map(|id| meter.correction(id));
                if !missing {
                    let at_us = (period * 250).saturating_sub(late) * 1000;
                    meter.told((period * 250 + 200) * MS, &[Sample { at_us, processes, device }]);
                }
                for ((id, before), last) in [1, 2, 3].into_iter().zip(before).zip(&mut last) {
                    let scale = meter.scale(&(id, 0, 1));
                    prop_assert!((LEAST_SCALE..=MOST_SCALE).contains(&scale), "{scale}");
                    let step = (meter.correction(id) - before).abs();
                    prop_assert!(step <= before * CORRECTION_STEP + 1e-9, "{step}");
                    prop_assert!((LEAST_CORRECTION..=MOST_CORRECTION).contains(&meter.correction(id)));
                    *last = scale;
                }
            }
        }

        #[test]
        fn own_claims_do_not_change_the_own_scale(own in 0..=100_u64, other in 0..=100_u64) {
            let (mut one, mut two) = (Meter::default(), Meter::default());
            looked(&mut one, 50, 3_000, &[own, other]);
            looked(&mut two, 50, 3_000, &[100 - own, other]);

            let apart = one.scale(&(1, 0, 1)) - two.scale(&(1, 0, 1));
            prop_assert!(apart.abs() < 1e-6, "{apart}");
        }
    }
}
