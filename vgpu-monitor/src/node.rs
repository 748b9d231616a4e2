//! One look at the node, at the moment of a scrape: containers, GPUs, and the little that has to
//! be remembered from the look before (counts, and when a launch was last seen).
//!
//! Never remembers anything of a container that is gone.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::DescriptorEncoder;
use server::Readiness;
use supervisor::clock::monotonic_ns;
use supervisor::gpu::hardware::Hardware;

use crate::arbiter::Arbiter;
use crate::attest::Attestation;
use crate::attest::series::Picture;
use crate::exporter::{self, Detail, Gpu, Look, Names, Shown, ShownContainer};
use crate::gpu::{Asker, DriverAnswer};
use crate::hardware::HardwareWatch;
use crate::reconcile::Owners;
use crate::regions::{self, Budget, Census, Found};
use crate::usage::Usage;

/// A skipped directory is logged once for each path and reason, up to this many.
const LOGGED_MOST: usize = 1000;

/// The node that is looked at.
#[derive(Debug)]
pub struct Node {
    root: PathBuf,
    name: String,
    names: Names,
    detail: Detail,
    asker: Option<Asker>,
    hardware: Option<HardwareWatch>,
    usage: Option<Usage>,
    arbiter: Option<Arbiter>,
    attestation: Option<Attestation>,
    our_uid: u32,
    memory: Mutex<PastLooks>,
}

#[derive(Debug)]
struct PastLooks {
    devices: HashMap<(PathBuf, usize), Remembered>,
    /// By reason, since the agent started.
    skipped: [(&'static str, u64); 5],
    logged: HashSet<String>,
}

/// A container's device at the look before.
#[derive(Debug, Clone, Copy)]
struct Remembered {
    created_unix: u64,
    looked_at: Instant,
    launches: u64,
    launched_at: Option<Instant>,
    busy_ns: u64,
}

impl Node {
    /// A node whose containers are below `root`. Without an asker the driver is not asked.
    #[must_use]
    pub fn new(root: PathBuf, name: String, names: Names, asker: Option<Asker>) -> Self {
        let our_uid = nix::unistd::geteuid().as_raw();
        Self {
            root,
            name,
            names,
            detail: Detail::Full,
            asker,
            hardware: None,
            usage: None,
            arbiter: None,
            attestation: None,
            our_uid,
            memory: Mutex::new(PastLooks::new()),
        }
    }

    /// The same with the arbiter of its containers.
    #[must_use]
    pub fn with_arbiter(self, arbiter: Option<Arbiter>) -> Self {
        Self { arbiter, ..self }
    }

    /// The same with this much detail.
    #[must_use]
    pub fn with_detail(self, detail: Detail) -> Self {
        Self { detail, ..self }
    }

    /// The same with the figures of the GPUs' hardware.
    #[must_use]
    pub fn with_hardware(self, hardware: Option<HardwareWatch>) -> Self {
        Self { hardware, ..self }
    }

    /// The same with the sums of what workloads used.
    #[must_use]
    pub fn with_usage(self, usage: Option<Usage>) -> Self {
        Self { usage, ..self }
    }

    /// The same with attestation of the processes that hold its GPUs.
    #[must_use]
    pub fn with_attestation(self, attestation: Option<Attestation>) -> Self {
        Self {
            attestation,
            ..self
        }
    }

    /// The processes that hold GPUs and their verdicts; nothing without attestation.
    #[must_use]
    pub fn attested(&self) -> Option<Arc<Picture>> {
        self.attestation.as_ref().map(Attestation::picture)
    }

    /// The GPUs and the containers, without what needs two looks. No GPUs where the driver does not answer.
    #[must_use]
    pub fn placed(&self) -> (Vec<Hardware>, Vec<ShownContainer>) {
        let gpus = self.hardware.as_ref().map(HardwareWatch::figures);
        let census = regions::read(
            &self.root,
            None,
            self.our_uid,
            monotonic_ns(),
            Budget::default(),
        );
        let found = census.unwrap_or_default().found;
        let containers = found.into_iter().map(|found| found.shown);
        (gpus.unwrap_or_default(), containers.collect())
    }

    /// Looks, and says in `readiness` whether the root could be read.
    pub fn look(&self, readiness: &Readiness) -> Shown {
        let begun = Instant::now();
        // The driver first: a process that the driver names and whose slot is gone by then is harmless,
        // while one that the region names and the driver does not know would look idle.
        let answer = self.asker.as_ref().map(Asker::ask);
        let nvml_up = answer.as_ref().map(Option::is_some);
        let answer = answer.flatten();

        let attested = self.attested();
        let no_owners = Owners::new();
        let owners = attested
            .as_ref()
            .map_or(&no_owners, |picture| &picture.owners);
        let census = regions::read(
            &self.root,
            answer.as_ref().map(|answer| (answer, owners)),
            self.our_uid,
            monotonic_ns(),
            Budget::default(),
        );
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let root_readable = census.is_ok();
        match &census {
            Ok(_) => readiness.ready(),
            Err(error) => {
                readiness.not_ready(error.to_string());
                memory.log("the root cannot be read", &error.to_string());
            }
        }
        let mut census = census.unwrap_or_default();
        let faults = answer.iter().flat_map(|answer| &answer.inventory.faults);
        for fault in faults {
            memory.log("a GPU does not answer", fault);
        }
        memory.complain(&census, root_readable);
        memory.compare(&mut census.found, begun);
        let skipped = memory.skipped.to_vec();

        drop(memory);

        let answer = answer.unwrap_or_default();
        let hardware = self.hardware.as_ref().map(HardwareWatch::figures);
        let workloads = self.usage.as_ref().map(Usage::used);
        Shown {
            node: self.name.clone(),
            gpus: gpus(&answer),
            hardware: hardware.unwrap_or_default(),
            workloads: workloads.unwrap_or_default(),
            containers: census.found.into_iter().map(|found| found.shown).collect(),
            look: Look {
                root_readable,
                broken: (census.broken.len().saturating_add(census.duplicates.len())) as u64,
                skipped,
                nvml_up,
                gpu_faults: answer.inventory.faults.len() as u64,
                arbiter: self.arbiter.as_ref().map(Arbiter::status),
                took: begun.elapsed(),
            },
        }
    }
}

fn gpus(answer: &DriverAnswer) -> Vec<Gpu> {
    let shown = |gpu: &supervisor::gpu::Gpu| Gpu {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        model: gpu.name.clone(),
        used_bytes: gpu.used_bytes,
        utilization_percent: gpu.utilization_percent,
        memory_utilization_percent: gpu.memory_utilization_percent,
    };
    answer.inventory.gpus.iter().map(shown).collect()
}

impl PastLooks {
    fn new() -> Self {
        Self {
            devices: HashMap::new(),
            skipped: ["broken", "duplicate", "unreadable", "budget", "root"]
                .map(|reason| (reason, 0)),
            logged: HashSet::new(),
        }
    }

    /// Counts what was skipped and logs it once.
    fn complain(&mut self, census: &Census, root_readable: bool) {
        for broken in &census.broken {
            self.log(
                "broken",
                &format!("{}: {}", broken.path.display(), broken.reason),
            );
        }
        for path in &census.unreadable {
            self.log("may not be read", &path.display().to_string());
        }
        for path in &census.duplicates {
            self.log("has another container's name", &path.display().to_string());
        }
        if census.beyond_budget > 0 {
            self.log(
                "beyond its owner's budget",
                "one user has more containers than are shown",
            );
        }
        for (reason, sum) in &mut self.skipped {
            *sum = sum.saturating_add(match *reason {
                "broken" => census.broken.len() as u64,
                "duplicate" => census.duplicates.len() as u64,
                "unreadable" => census.unreadable.len() as u64,
                "budget" => census.beyond_budget,
                _ => u64::from(!root_readable),
            });
        }
    }

    /// Fills in the figures that need two looks, and forgets containers that are gone.
    fn compare(&mut self, found: &mut [Found], now: Instant) {
        let mut seen = HashMap::with_capacity(self.devices.len());
        for found in found {
            let devices = found.shown.devices.iter_mut().zip(&found.work).enumerate();
            for (index, (device, (launches, busy_ns))) in devices {
                let key = (found.path.clone(), index);
                // A new container under an old name starts from zero.
                let was = self
                    .devices
                    .get(&key)
                    .filter(|was| was.created_unix == found.created_unix);
                let launched = *launches > was.map_or(0, |was| was.launches);
                let launched_at = if launched {
                    Some(now)
                } else {
                    was.and_then(|w| w.launched_at)
                };
                let since_seen = launched_at.map(|at| now.saturating_duration_since(at));
                // The library's own measurement is exact, where there is one; there is none of launches that
                // the library only counts.
                let since_launch = [device.since_launch, since_seen].into_iter().flatten();
                device.since_launch = since_launch.min().filter(|_| *launches > 0);
                if device.utilization_percent.is_none() {
                    device.utilization_percent =
                        was.and_then(|was| busy_percent(was, *busy_ns, now));
                }
                seen.insert(
                    key,
                    Remembered {
                        created_unix: found.created_unix,
                        looked_at: now,
                        launches: *launches,
                        launched_at,
                        busy_ns: *busy_ns,
                    },
                );
            }
        }
        self.devices = seen;
    }

    fn log(&mut self, what: &'static str, detail: &str) {
        if self.logged.len() < LOGGED_MOST && self.logged.insert(format!("{what} {detail}")) {
            tracing::warn!(detail, "skipped: {what}");
        }
    }
}

/// Busy part of the time between two looks, by the library's own measurement; `None` if it does not measure.
fn busy_percent(was: &Remembered, busy_ns: u64, now: Instant) -> Option<f64> {
    // For a shorter interval the edges of both looks outweigh the time between them.
    const SHORTEST: Duration = Duration::from_millis(100);
    let between = now.saturating_duration_since(was.looked_at);
    if busy_ns == 0 || between < SHORTEST {
        return None;
    }
    // A process that ended took its time with it: the sum may have become smaller.
    let busy = Duration::from_nanos(busy_ns.saturating_sub(was.busy_ns));
    Some(100.0 * busy.as_secs_f64() / between.as_secs_f64())
}

/// Reads the node at each scrape and writes its series.
pub struct NodeCollector {
    node: Arc<Node>,
    readiness: Readiness,
}

impl NodeCollector {
    /// For one node.
    #[must_use]
    pub fn new(node: Arc<Node>, readiness: Readiness) -> Self {
        Self { node, readiness }
    }
}

impl fmt::Debug for NodeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector")
            .field("root", &self.node.root)
            .finish_non_exhaustive()
    }
}

impl prometheus_client::collector::Collector for NodeCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let shown = self.node.look(&self.readiness);
        exporter::encode(&shown, self.node.names, self.node.detail, encoder)
    }
}

/// Writes the verdicts of attestation at each scrape.
#[derive(Debug)]
pub struct AttestationCollector(Arc<Node>);

impl AttestationCollector {
    /// Of this node's attestation.
    #[must_use]
    pub fn new(node: Arc<Node>) -> Self {
        Self(node)
    }
}

impl prometheus_client::collector::Collector for AttestationCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let picture = self.0.attested();
        picture.map_or(Ok(()), |picture| {
            picture.encode(self.0.detail, &mut encoder)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::{Device, ShownContainer};

    fn found(created_unix: u64, launches: u64, busy_ns: u64) -> Found {
        let devices = vec![Device::default()];
        Found {
            shown: ShownContainer {
                devices,
                ..ShownContainer::default()
            },
            path: PathBuf::from("/r/a"),
            created_unix,
            work: vec![(launches, busy_ns)],
            ..Found::default()
        }
    }

    /// Looks at one container at these seconds, and gives back how long ago each look says that a
    /// launch was seen, and how busy the device was.
    fn looks(looks: &[(u64, Found)]) -> Vec<(Option<u64>, Option<f64>)> {
        let begun = Instant::now();
        let mut memory = PastLooks::new();
        let mut seen = Vec::new();
        for (second, found) in looks {
            let mut found = [found.clone()];
            memory.compare(&mut found, begun + Duration::from_secs(*second));
            let device = &found[0].shown.devices[0];
            seen.push((
                device.since_launch.map(|t| t.as_secs()),
                device.utilization_percent,
            ));
        }
        seen
    }

    #[test]
    fn last_launch_is_as_old_as_the_look_that_saw_it() {
        let seen = looks(&[
            (0, found(1, 0, 0)),
            (10, found(1, 5, 0)),
            (25, found(1, 5, 0)),
            // A process ended and took its launches with it: nothing was launched.
            (40, found(1, 2, 0)),
            (55, found(1, 3, 0)),
            // Another container in the same place.
            (70, found(2, 0, 0)),
        ]);

        let since: Vec<_> = seen.iter().map(|(since, _)| *since).collect();
        assert_eq!(since, [None, Some(0), Some(15), Some(30), Some(0), None]);
    }

    #[test]
    fn without_nvml_utilization_is_measured_by_the_library() {
        let second = 1_000_000_000;
        let seen = looks(&[
            (0, found(1, 0, 4 * second)),
            (10, found(1, 0, 9 * second)),
            (20, found(1, 0, 9 * second)),
            (30, found(1, 0, second)),
            (40, found(1, 0, 0)),
        ]);

        let busy: Vec<_> = seen.iter().map(|(_, busy)| *busy).collect();
        assert_eq!(busy, [None, Some(50.0), Some(0.0), Some(0.0), None]);
    }

    #[test]
    fn containers_that_are_gone_are_forgotten() {
        let mut memory = PastLooks::new();
        memory.compare(&mut [found(1, 1, 1)], Instant::now());
        assert_eq!(memory.devices.len(), 1);

        memory.compare(&mut [], Instant::now());
        assert!(memory.devices.is_empty());
    }
}
