//! The scheduling loop: takes pods from the queue one after the other, runs the framework, asks extenders, and carries
//! out what was decided. It decides nothing itself.
//!
//! A turn sees everything that was written before it. What it worked out is void when the whole state was changed
//! meanwhile (an import, a reset, another configuration): then it writes nothing, and the pod is tried again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use embedded_cluster::Status;
use kube_api::vendor::Vendors;
use scheduling::annotations;
use scheduling::cycle::{Failed, Options, Outcome, Placed, Victims};
use scheduling::devices::Devices;
use scheduling::plugin::PluginSet;
use scheduling::profile::Framework;
use scheduling::snapshot::Snapshot;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::extender::Extender;
use super::queue::{Queue, Waiting};
use super::results::Prefix;
use super::view::View;
use super::writes::Writer;
use super::{Setup, Simulator};

/// How long the loop waits before it looks again where nothing announces itself.
const IDLE: Duration = Duration::from_secs(60);

/// How the loop writes what it found.
#[derive(Debug, Clone, Default)]
pub struct Scheduling {
    /// Under which prefix results are written.
    pub prefix: Prefix,
    /// What is known of shared devices; without it nothing is.
    pub vendors: Option<Arc<Vendors>>,
}

/// One run of the loop by one configuration.
struct Turns<'a> {
    simulator: &'a Simulator,
    setup: Arc<Setup>,
    frameworks: Vec<Framework>,
    extenders: Vec<Extender>,
    view: View,
    queue: Queue,
    writer: Writer,
    begun: Instant,
    /// Where the next search begins.
    start: usize,
}

/// What extenders said, by their URL.
#[derive(Debug, Default)]
struct Said {
    filter: BTreeMap<String, Value>,
    prioritize: BTreeMap<String, Value>,
    preempt: BTreeMap<String, Value>,
    bind: BTreeMap<String, Value>,
}

impl Simulator {
    /// Schedules pods until the future is dropped.
    pub async fn schedule(&self, scheduling: &Scheduling) {
        loop {
            let ended = match Turns::open(self, scheduling) {
                Ok(mut turns) => turns.run().await,
                Err(status) => Err(status),
            };
            match ended {
                Ok(()) => tracing::info!("scheduling goes on by another configuration"),
                // A watch fell behind: everything is read again.
                Err(status) => tracing::warn!(%status, "scheduling begins again"),
            }
            tokio::task::yield_now().await;
        }
    }
}

impl<'a> Turns<'a> {
    fn open(simulator: &'a Simulator, scheduling: &Scheduling) -> Result<Self, Status> {
        let setup = simulator.setup();
        let devices = match &scheduling.vendors {
            Some(vendors) => Devices::new(vendors.clone(), kube_api::request::Defaults::default()),
            None => Devices::default(),
        };
        let mut snapshot = Snapshot::with_devices(devices);
        let frameworks = Framework::all(&setup.running, snapshot.names_mut());
        let schedulers = frameworks.iter().map(|framework| framework.name().into());
        let view = View::open(simulator.cluster(), snapshot, schedulers.collect())?;
        let seconds =
            |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let queue = Queue::new(
            seconds(setup.running.pod_initial_backoff_seconds),
            seconds(setup.running.pod_max_backoff_seconds),
        );
        let extenders = setup.running.extenders.iter().cloned().map(Extender::new);
        Ok(Self {
            simulator,
            extenders: extenders.collect(),
            frameworks,
            view,
            queue,
            writer: Writer::new(simulator.cluster(), scheduling)?,
            begun: Instant::now(),
            start: 0,
            setup,
        })
    }

    /// Ends when there is another configuration, or with the error of a watch.
    async fn run(&mut self) -> Result<(), Status> {
        let mut epoch = self.simulator.0.epoch.subscribe();
        loop {
            if !Arc::ptr_eq(&self.setup, &self.simulator.setup()) {
                return Ok(());
            }
            let now = self.begun.elapsed();
            self.view.catch_up(&mut self.queue, now)?;
            if let Some(waiting) = self.queue.pop(now) {
                self.turn(waiting).await;
                tokio::task::yield_now().await;
                continue;
            }
            let wake = self.queue.next_wake().unwrap_or(now + IDLE);
            tokio::select! {
                next = self.view.next() => {
                    let (at, event) = next?;
                    let now = self.begun.elapsed();
                    self.view.take_next(at, &event, &mut self.queue, now);
                }
                () = tokio::time::sleep_until(self.begun + wake) => {}
                changed = epoch.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// One pod.
    async fn turn(&mut self, waiting: Waiting) {
        let epoch = *self.simulator.0.epoch.borrow();
        let Some(there) = self.writer.pending(&waiting.pod) else {
            return;
        };
        let object = there.value();
        let (outcome, mut said) = match self.decide(&waiting, &object).await {
            Some(decided) => decided,
            None => return,
        };
        self.start = outcome.next_start;
        let results = |said: &Said| self.results(&outcome, said);
        match &outcome.result {
            Ok(placed) => {
                let binder = self
                    .extenders
                    .iter()
                    .find(|extender| extender.binds() && extender.is_interested(&object));
                let bound = match binder {
                    Some(extender) => {
                        let answer = extender.bind(&object, &placed.node).await;
                        answer.map(|answer| {
                            said.bind.insert(extender.url().to_owned(), answer);
                        })
                    }
                    None => Ok(()),
                };
                let _writing = self.simulator.0.gate.read().await;
                if epoch != *self.simulator.0.epoch.borrow() {
                    self.queue.retry(waiting, self.begun.elapsed());
                    return;
                }
                let written = match bound {
                    Err(why) => Err(why),
                    Ok(()) => {
                        let by_us = binder.is_none();
                        let devices = self.view.snapshot.devices();
                        let write =
                            self.writer
                                .bound(&there, placed, devices, results(&said), by_us);
                        write.await.map_err(|status| status.to_string())
                    }
                };
                if let Err(why) = written {
                    tracing::warn!(pod = %waiting.pod.key, why, "not bound");
                    let failed = rejected(placed, &why);
                    self.writer
                        .refused(&there, &failed, None, results(&said))
                        .await;
                    let now = self.begun.elapsed();
                    self.queue.retry(waiting, now);
                }
            }
            Err(failed) => {
                let victims = match &failed.preemption {
                    Some(victims) => self.agreed(&object, victims, &mut said).await,
                    None => None,
                };
                let _writing = self.simulator.0.gate.read().await;
                if epoch != *self.simulator.0.epoch.borrow() {
                    self.queue.retry(waiting, self.begun.elapsed());
                    return;
                }
                if let Some(victims) = victims {
                    self.writer.evict(&waiting.pod, victims).await;
                }
                let node = victims.map(|victims| &*victims.node);
                self.writer
                    .refused(&there, failed, node, results(&said))
                    .await;
                let (plugins, by_extender) = (failed.plugins, failed.by_extender);
                let now = self.begun.elapsed();
                self.queue.failed(waiting, plugins, by_extender, now);
            }
        }
    }

    /// Runs the framework and asks the extenders that have a say. Nothing where no profile is the pod's.
    async fn decide(&self, waiting: &Waiting, object: &Value) -> Option<(Outcome, Said)> {
        let pod = &waiting.pod;
        let framework = self
            .frameworks
            .iter()
            .find(|of| of.name() == &*pod.scheduler)?;
        let options = Options {
            start: self.start,
            record: true,
        };
        let mut said = Said::default();
        let mut cycle = framework.begin(&self.view.snapshot, pod, options);
        let mut further = BTreeMap::new();
        let interested: Vec<&Extender> = self
            .extenders
            .iter()
            .filter(|extender| extender.is_interested(object))
            .collect();
        for extender in interested.iter().filter(|extender| extender.filters()) {
            let nodes = self
                .writer
                .nodes(cycle.feasible().map(|node| &*node.node().name));
            if nodes.is_empty() {
                break;
            }
            match extender.filter(object, &nodes).await {
                Ok((extended, answer)) => {
                    said.filter.insert(extender.url().to_owned(), answer);
                    cycle.extend(&extended);
                }
                Err(why) if extender.is_ignorable() => {
                    tracing::warn!(extender = extender.url(), why, "an extender is passed over");
                }
                Err(why) => {
                    let mut outcome = cycle.finish(&further);
                    outcome.result = Err(broken(&why, self.view.snapshot.node_count()));
                    return Some((outcome, said));
                }
            }
        }
        let nodes = self
            .writer
            .nodes(cycle.feasible().map(|node| &*node.node().name));
        if nodes.len() > 1 {
            for extender in interested.iter().filter(|extender| extender.prioritizes()) {
                match extender.prioritize(object, &nodes).await {
                    Ok(scores) => {
                        let rows = scores.iter();
                        let rows =
                            rows.map(|(host, score)| json!({ "Host": host, "Score": score }));
                        said.prioritize
                            .insert(extender.url().to_owned(), rows.collect());
                        for (node, score) in scores {
                            *further.entry(node).or_insert(0) += score;
                        }
                    }
                    // kube-scheduler places the pod without these scores, too.
                    Err(why) => tracing::warn!(extender = extender.url(), why, "no scores"),
                }
            }
        }
        Some((cycle.finish(&further), said))
    }

    /// The victims, where every extender that is asked agrees to them.
    async fn agreed<'v>(
        &self,
        object: &Value,
        victims: &'v Victims,
        said: &mut Said,
    ) -> Option<&'v Victims> {
        let asked = self
            .extenders
            .iter()
            .filter(|extender| extender.preempts() && extender.is_interested(object));
        for extender in asked {
            let objects = self.writer.pods(victims);
            match extender.preempt(object, victims, &objects).await {
                Ok((agreed, answer)) => {
                    said.preempt.insert(extender.url().to_owned(), answer);
                    if !agreed {
                        return None;
                    }
                }
                Err(why) => {
                    tracing::warn!(extender = extender.url(), why, "no answer about preemption");
                    if !extender.is_ignorable() {
                        return None;
                    }
                }
            }
        }
        Some(victims)
    }

    fn results(&self, outcome: &Outcome, said: &Said) -> BTreeMap<&'static str, String> {
        let mut results = outcome
            .record
            .as_ref()
            .map(annotations::render)
            .unwrap_or_default();
        if !self.extenders.is_empty() {
            for (name, answers) in [
                ("extender-bind-result", &said.bind),
                ("extender-filter-result", &said.filter),
                ("extender-preempt-result", &said.preempt),
                ("extender-prioritize-result", &said.prioritize),
            ] {
                results.insert(name, json!(answers).to_string());
            }
        }
        results
    }
}

/// A try that an extender's silence, or its error, ended.
fn broken(why: &str, nodes: usize) -> Failed {
    Failed {
        reason: "SchedulerError",
        message: why.to_owned(),
        plugins: PluginSet::default(),
        by_extender: true,
        preemption: None,
        candidates: Vec::new(),
        nodes,
        reasons: BTreeMap::new(),
    }
}

/// A node was found and the binding was refused.
fn rejected(placed: &Placed, why: &str) -> Failed {
    broken(&format!("binding rejected: {why}"), placed.evaluated)
}
