//! The scheduling loop: takes pods from the queue one after the other, runs the framework, calls extenders, and carries
//! out the decision. The framework and the extenders decide.
//!
//! A turn sees everything that was written before it. If the whole state changes during a turn (an import, a reset,
//! another configuration), its result is discarded: nothing is written, and the pod is tried again.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use embedded_cluster::Status;
use scheduling::compact::{self, Draft};
use scheduling::cycle::{Cycle, Failed, Options, Outcome, Victims, choose_victims};
use scheduling::devices::Devices;
use scheduling::model::Pod;
use scheduling::plugin::{Plugin, PluginSet};
use scheduling::profile::Framework;
use scheduling::queue::{Popped, Queue};
use scheduling::snapshot::Snapshot;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::extender::{Agreed, Extender, ExtenderError};
use super::results::Drafts;
use super::view::SnapshotFeed;
use super::writes::{Scheduling, Writer};
use super::{Rest, Setup, Simulator};

/// How long the loop waits for a change before it looks again.
const IDLE: Duration = Duration::from_secs(60);

/// The loop's clock.
#[derive(Debug, Clone)]
pub(super) enum LoopClock {
    /// The machine's clock, counted from this moment.
    Machine(Instant),
    /// Milliseconds set by the caller.
    Given(Arc<AtomicU64>),
}

impl LoopClock {
    fn now_ms(&self) -> u64 {
        match self {
            Self::Machine(begun) => u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            // Relaxed: one thread sets and reads it.
            Self::Given(now) => now.load(Ordering::Relaxed),
        }
    }
}

/// A pod after its turn: it has a node, or this is why not.
#[derive(Debug)]
pub(super) struct TurnResult {
    pub(super) pod: Arc<Pod>,
    pub(super) result: Result<(), Failed>,
}

/// A run of the loop with one configuration.
pub(super) struct Turns<'a> {
    simulator: &'a Simulator,
    setup: Arc<Setup>,
    frameworks: Vec<Framework>,
    extenders: Vec<Extender>,
    view: SnapshotFeed,
    queue: Queue,
    writer: Writer,
    clock: LoopClock,
    record: bool,
    /// Where the next search for nodes starts.
    start: usize,
}

/// The answers of extenders, by their URL.
#[derive(Debug, Default)]
struct ExtenderAnswers {
    filter: BTreeMap<String, Value>,
    prioritize: BTreeMap<String, Value>,
    preempt: BTreeMap<String, Value>,
    bind: BTreeMap<String, Value>,
}

impl Simulator {
    /// Schedules pods until the future is dropped.
    pub async fn schedule(&self, scheduling: &Scheduling) {
        loop {
            let clock = LoopClock::Machine(Instant::now());
            let ended = match Turns::open(self, scheduling, clock) {
                Ok(mut turns) => turns.run().await,
                Err(status) => Err(status),
            };
            match ended {
                Ok(()) => tracing::info!("scheduling goes on by another configuration"),
                // A watch fell behind, so everything is read again.
                Err(status) => tracing::warn!(%status, "scheduling begins again"),
            }
            tokio::task::yield_now().await;
        }
    }
}

impl<'a> Turns<'a> {
    pub(super) fn open(
        simulator: &'a Simulator,
        scheduling: &Scheduling,
        clock: LoopClock,
    ) -> Result<Self, Status> {
        let setup = simulator.setup();
        let devices = match &scheduling.vendors {
            Some(vendors) => Devices::new(vendors.clone(), kube_api::request::Defaults::default()),
            None => Devices::default(),
        };
        let mut snapshot = Snapshot::with_devices(devices);
        let frameworks = Framework::all(&setup.running, snapshot.names_mut());
        let schedulers = frameworks.iter().map(|framework| framework.name().into());
        let view = SnapshotFeed::open(simulator.cluster(), snapshot, schedulers.collect())?;
        let milliseconds = |seconds: i64| u64::try_from(seconds).unwrap_or_default() * 1000;
        let queue = Queue::new(
            milliseconds(setup.running.pod_initial_backoff_seconds),
            milliseconds(setup.running.pod_max_backoff_seconds),
        );
        let extenders = setup.running.extenders.iter().cloned().map(Extender::new);
        let mut extenders: Vec<Extender> = extenders.collect();
        // As in kube-scheduler, ignorable extenders are called last.
        extenders.sort_by_key(Extender::is_ignorable);
        Ok(Self {
            simulator,
            extenders,
            frameworks,
            view,
            queue,
            writer: Writer::new(simulator.cluster(), scheduling)?,
            clock,
            record: !scheduling.terse,
            start: 0,
            setup,
        })
    }

    /// Returns when the configuration changes, or with the error of a watch.
    async fn run(&mut self) -> Result<(), Status> {
        let mut epoch = self.simulator.0.epoch.subscribe();
        loop {
            if !Arc::ptr_eq(&self.setup, &self.simulator.setup()) {
                return Ok(());
            }
            let version = self.simulator.cluster().resource_version();
            if self.step().await?.is_some() {
                tokio::task::yield_now().await;
                continue;
            }
            let busy = self
                .queue
                .counts()
                .get("backoff")
                .is_some_and(|count| *count > 0);
            self.simulator.0.rest.send_replace(Rest { version, busy });
            let next = self.queue.next_ms().map(Duration::from_millis);
            let sleep = next.map_or(IDLE, |next| {
                next.saturating_sub(Duration::from_millis(self.clock.now_ms()))
            });
            tokio::select! {
                next = self.view.next() => {
                    let (at, event) = next?;
                    let now = self.clock.now_ms();
                    self.view.take_next(at, &event, &mut self.queue, now);
                }
                () = self.simulator.0.look.notified() => {}
                () = tokio::time::sleep(sleep) => {}
                changed = epoch.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Processes all changes and gives the next pod its turn; `None` if no pod is ready.
    pub(super) async fn step(&mut self) -> Result<Option<TurnResult>, Status> {
        self.catch_up()?;
        let Some(popped) = self.queue.pop(self.clock.now_ms()) else {
            return Ok(None);
        };
        let result = self.turn(&popped).await;
        if let Err(failed) = &result {
            let now = self.clock.now_ms();
            self.queue.failed(&popped.pod.key, failed, now);
        }
        let pod = popped.pod;
        Ok(Some(TurnResult { pod, result }))
    }

    /// Processes all changes.
    pub(super) fn catch_up(&mut self) -> Result<(), Status> {
        self.view.catch_up(&mut self.queue, self.clock.now_ms())
    }

    /// The configuration in use.
    pub(super) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The cluster as the loop last saw it.
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.view.snapshot
    }

    /// The pods that wait.
    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Schedules one pod. The error says why no node was found, or why the result could not be written.
    async fn turn(&mut self, popped: &Popped) -> Result<(), Failed> {
        let epoch = *self.simulator.0.epoch.borrow();
        let there = self.writer.pending(&popped.pod);
        let there = there.ok_or_else(|| overtaken("the pod is gone, or has a node"))?;
        // Only extenders see the results of earlier tries.
        let object = if self.extenders.is_empty() {
            there.bare()
        } else {
            there.value()
        };
        let (mut outcome, mut said) = self.decide(popped, &object).await?;
        self.start = outcome.next_start;
        match &outcome.result {
            Ok(placed) => {
                let bound = self.bind(&object, &placed.node, &mut said).await;
                let _writing = self.writing(epoch).await?;
                let results = self.results(&outcome, &said);
                let written = match bound {
                    Err(why) => Err(why.to_string()),
                    Ok(by_extender) => {
                        let devices = self.view.snapshot.devices();
                        let by_us = !by_extender;
                        let write = self.writer.bound(&there, placed, devices, &results, by_us);
                        write.await.map_err(|status| status.to_string())
                    }
                };
                let Err(why) = written else { return Ok(()) };
                tracing::warn!(pod = %popped.pod.key, why, "not bound");
                let failed = broken(&format!("binding rejected: {why}"), placed.evaluated);
                self.writer.refused(&there, &failed, None, &results).await;
                Err(failed)
            }
            Err(failed) => {
                let mut failed = failed.clone();
                let victims = self.agreed(&object, &failed, &mut said).await;
                let node = victims.as_ref().map(|victims| Arc::clone(&victims.node));
                if let Some(found) = outcome
                    .record
                    .as_mut()
                    .and_then(|record| record.post_filter.as_mut())
                {
                    found.nominated.clone_from(&node);
                }
                let _writing = self.writing(epoch).await?;
                if let Some(victims) = &victims {
                    self.writer.evict(&popped.pod, victims).await;
                }
                let results = self.results(&outcome, &said);
                self.writer
                    .refused(&there, &failed, node.as_deref(), &results)
                    .await;
                failed.preemption = victims;
                if failed.nodes == 0 && failed.reason == "Unschedulable" {
                    // kube-scheduler repeats such a try at intervals; only a change of a node can give another answer.
                    failed.plugins.insert(Plugin::NodeUnschedulable);
                }
                Err(failed)
            }
        }
    }

    /// While the guard is held, the whole state cannot change. Fails if it has changed since `epoch`.
    async fn writing(&self, epoch: u64) -> Result<tokio::sync::RwLockReadGuard<'a, ()>, Failed> {
        let simulator: &'a Simulator = self.simulator;
        let writing = simulator.0.gate.read().await;
        if epoch == *simulator.0.epoch.borrow() {
            Ok(writing)
        } else {
            Err(overtaken("the whole state was changed meanwhile"))
        }
    }

    /// Runs the framework and calls the interested extenders.
    async fn decide(
        &self,
        popped: &Popped,
        object: &Value,
    ) -> Result<(Outcome, ExtenderAnswers), Failed> {
        let pod = &popped.pod;
        let framework = self
            .frameworks
            .iter()
            .find(|of| of.name() == &*pod.scheduler);
        let framework = framework.ok_or_else(|| overtaken("no profile is the pod's"))?;
        let options = Options {
            start: self.start,
            record: self.record,
        };
        let mut said = ExtenderAnswers::default();
        let mut cycle = framework.begin(&self.view.snapshot, pod, options);
        let mut further = BTreeMap::new();
        let interested: Vec<&Extender> = self
            .extenders
            .iter()
            .filter(|extender| extender.is_interested(object))
            .collect();
        loop {
            if let Err(why) = self
                .narrow(&interested, object, &mut cycle, &mut said)
                .await
            {
                let mut outcome = cycle.finish(&further);
                outcome.result = Err(broken(&why, self.view.snapshot.node_count()));
                return Ok((outcome, said));
            }
            if !cycle.look_further() {
                break;
            }
        }
        let scoring: Vec<&&Extender> = interested
            .iter()
            .filter(|extender| extender.prioritizes())
            .collect();
        // Only an extender reads nodes in the API's form. Reading them costs more than all plugins together.
        if !scoring.is_empty() && cycle.feasible().nth(1).is_some() {
            let nodes = self
                .writer
                .nodes(cycle.feasible().map(|node| &*node.node().name));
            for extender in scoring {
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
                    // kube-scheduler also places the pod without these scores.
                    Err(why) => tracing::warn!(extender = extender.url(), %why, "no scores"),
                }
            }
        }
        Ok((cycle.finish(&further), said))
    }

    /// Asks extenders, one after the other, which of the fitting nodes they accept for the pod.
    async fn narrow(
        &self,
        interested: &[&Extender],
        object: &Value,
        cycle: &mut Cycle<'_>,
        said: &mut ExtenderAnswers,
    ) -> Result<(), ExtenderError> {
        for extender in interested.iter().filter(|extender| extender.filters()) {
            let nodes = self
                .writer
                .nodes(cycle.feasible().map(|node| &*node.node().name));
            if nodes.is_empty() {
                return Ok(());
            }
            match extender.filter(object, &nodes).await {
                Ok((extended, answer)) => {
                    said.filter.insert(extender.url().to_owned(), answer);
                    cycle.extend(&extended);
                }
                Err(why) if extender.is_ignorable() => {
                    tracing::warn!(
                        extender = extender.url(),
                        %why,
                        "an extender failed and is ignored"
                    );
                }
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Has an extender bind the pod, if one does so. Returns whether one has.
    async fn bind(
        &self,
        object: &Value,
        node: &str,
        said: &mut ExtenderAnswers,
    ) -> Result<bool, ExtenderError> {
        let binders = self
            .extenders
            .iter()
            .filter(|extender| extender.binds() && extender.is_interested(object));
        for extender in binders {
            match extender.bind(object, node).await {
                Ok(answer) => {
                    said.bind.insert(extender.url().to_owned(), answer);
                    return Ok(true);
                }
                Err(why) if extender.is_ignorable() => {
                    tracing::warn!(
                        extender = extender.url(),
                        %why,
                        "it binds nothing; this scheduler does"
                    );
                }
                Err(why) => return Err(why),
            }
        }
        Ok(false)
    }

    /// The best set of victims that every extender agrees to.
    async fn agreed(
        &self,
        object: &Value,
        failed: &Failed,
        said: &mut ExtenderAnswers,
    ) -> Option<Victims> {
        let mut candidates = failed.candidates.clone();
        let asked = self
            .extenders
            .iter()
            .filter(|extender| extender.preempts() && extender.is_interested(object));
        for extender in asked {
            if candidates.is_empty() {
                return None;
            }
            let objects = |victims: &Victims| self.writer.pods(victims);
            let answer = extender.preempt(object, &candidates, objects).await;
            let judged = answer.and_then(|(agreed, answer)| {
                said.preempt.insert(extender.url().to_owned(), answer);
                self.left(extender, agreed)
            });
            match judged {
                Ok(left) => candidates = left,
                Err(why) => {
                    tracing::warn!(extender = extender.url(), %why, "no answer about preemption");
                    if !extender.is_ignorable() {
                        return None;
                    }
                }
            }
        }
        choose_victims(&candidates).cloned()
    }

    /// The candidates that an extender leaves, with its choice of victims.
    fn left(
        &self,
        extender: &Extender,
        agreed: BTreeMap<String, Agreed>,
    ) -> Result<Vec<Victims>, ExtenderError> {
        let mut left = Vec::new();
        for (name, agreed) in agreed {
            let node = self.view.snapshot.node_named(&name);
            let node = node.ok_or_else(|| ExtenderError::NoNode(name.clone()))?;
            let mut pods = Vec::new();
            for uid in &agreed.uids {
                let pod = node.pods().iter().find(|pod| *pod.uid == **uid);
                let pod = pod.ok_or_else(|| ExtenderError::NoVictim {
                    uid: uid.clone(),
                    node: name.clone(),
                })?;
                pods.push(Arc::clone(pod));
            }
            if pods.is_empty() {
                if extender.is_ignorable() {
                    continue;
                }
                return Err(ExtenderError::NoVictims(name));
            }
            left.push(Victims {
                node: Arc::clone(&node.node().name),
                pods,
                violations: agreed.violations,
            });
        }
        Ok(left)
    }

    fn results<'r>(&self, outcome: &'r Outcome, said: &ExtenderAnswers) -> Drafts<'r> {
        let mut results = outcome
            .record
            .as_ref()
            .map(compact::drafts)
            .unwrap_or_default();
        if self.record && !self.extenders.is_empty() {
            for (name, answers) in [
                ("extender-bind-result", &said.bind),
                ("extender-filter-result", &said.filter),
                ("extender-preempt-result", &said.preempt),
                ("extender-prioritize-result", &said.prioritize),
            ] {
                results.insert(name, Draft::text(json!(answers).to_string()));
            }
        }
        results
    }
}

/// A try that ended in an error. It is repeated without an event.
fn broken(why: &impl Display, nodes: usize) -> Failed {
    Failed {
        reason: "SchedulerError",
        message: why.to_string(),
        plugins: PluginSet::default(),
        by_extender: false,
        preemption: None,
        candidates: Vec::new(),
        nodes,
        reasons: BTreeMap::new(),
    }
}

/// A try whose result a change of the state made invalid.
fn overtaken(why: &str) -> Failed {
    broken(&why, 0)
}
