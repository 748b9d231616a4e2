//! One run of a comparison: its own embedded cluster and the simulator's loop, with a clock that this module sets. The
//! pods' fates are counted in a tally. Neither real time nor randomness is used, so the same world gives the same
//! figures.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use embedded_cluster::{Cluster, DeleteOptions, Options, Resource, Status, Target, Write};
use kube_api::vendor::Vendors;
use placement::{Compute, Container, Memory, Request};
use scheduling::cycle::Failed;
use scheduling::queue::PodStage;
use scheduling::snapshot::Snapshot;
use serde_json::Value;

use super::super::import::{self, Import, Merge};
use super::super::turns::{LoopClock, TurnResult, Turns};
use super::super::writes::Scheduling;
use super::super::{Refusal, Setup, Simulator};
use super::base::{Base, Facts, Happening, Typical, text};
use super::tally::{ClusterSample, Figures, Part, Tally};
use super::variant::{World, unbind};

/// How long one try of a pod takes on the simulated clock, in milliseconds.
pub(super) const TRY_MS: u64 = 10;
/// The number of times at which the cluster is sampled during a recording.
const SAMPLES: u64 = 100;
/// The most changes that are processed at once.
const BATCH: usize = 10_000;
/// How many changes of a kind the loop may lag behind.
const REMEMBERED: usize = 100_000;

/// The result of a run.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) figures: Figures,
    /// The number of objects that the cluster refused, and the first of them.
    pub(super) refused: Option<(u64, String)>,
}

struct Run<'a> {
    world: &'a World,
    facts: &'a Facts,
    vendors: &'a Vendors,
    cluster: Cluster,
    pods: Arc<Resource>,
    turns: Turns<'a>,
    clock: Arc<AtomicU64>,
    now_ms: u64,
    tally: Tally,
    /// The pods as they first appeared, by `namespace/name`, to recreate those that are evicted.
    came: HashMap<String, &'a Happening>,
    /// The pods that will end, by time.
    ends: BTreeSet<(u64, String)>,
    end_of: HashMap<String, u64>,
    /// Counts the changes after which a plugin may decide differently.
    changes: u64,
    /// The count of changes at each pod's last try.
    tried: HashMap<Arc<str>, u64>,
    tries: u64,
    next_sample: u64,
    refused: Option<(u64, String)>,
}

/// Runs a world to its end.
pub(super) async fn run(
    base: &Base,
    world: &World,
    facts: &Facts,
    setup: &Setup,
    vendors: &Arc<Vendors>,
) -> Result<Ran, Refusal> {
    let cluster = Cluster::new(Options {
        remembered_changes: REMEMBERED,
        ..Options::default()
    });
    if !base.recorded {
        let objects = world.happenings.iter();
        let objects = objects.map(|of| (of.kind, of.object.clone())).collect();
        let import = Import::of(objects, base.lenient);
        import::apply(&cluster, &import, Merge::Keep).await?;
    }
    let simulator = Simulator::new(cluster.clone(), setup.clone());
    let scheduling = Scheduling {
        vendors: Some(Arc::clone(vendors)),
        terse: true,
        ..Scheduling::default()
    };
    let clock = Arc::new(AtomicU64::new(0));
    let turns = Turns::open(
        &simulator,
        &scheduling,
        LoopClock::Given(Arc::clone(&clock)),
    )?;
    let mut run = Run {
        pods: cluster.resource("", "pods")?,
        world,
        facts,
        vendors,
        cluster,
        turns,
        clock,
        now_ms: 0,
        tally: Tally::default(),
        came: HashMap::new(),
        ends: BTreeSet::new(),
        end_of: HashMap::new(),
        changes: 0,
        tried: HashMap::new(),
        tries: 0,
        next_sample: 1,
        refused: None,
    };
    run.tally.drained(world.evicted);
    if base.recorded {
        run.make_namespaces().await?;
        run.follow(base.end_ms()).await?;
    } else {
        for happening in &world.happenings {
            if happening.is("pods") {
                run.enter(happening);
            }
        }
        if base.lenient {
            run.look_for_missing();
        }
        run.rest(None).await?;
        run.sample();
    }
    Ok(Ran {
        figures: run.tally.figures(),
        refused: run.refused,
    })
}

impl<'a> Run<'a> {
    /// Replays the recorded changes, each at its time, until all are done and no pod is being scheduled.
    async fn follow(&mut self, end_ms: u64) -> Result<(), Refusal> {
        let mut next = 0;
        while let Some(at) = self.next_ms(next, end_ms) {
            self.rest(Some((at, end_ms))).await?;
            // A pod that got its node in the meantime may end before that.
            self.pass(self.next_ms(next, end_ms).unwrap_or(at), end_ms);
            while let Some((over, key)) = self.ends.first().cloned()
                && over <= self.now_ms
            {
                self.ends.remove(&(over, key.clone()));
                self.end_of.remove(&key);
                self.delete(&key).await;
            }
            let mut taken = 0;
            while let Some(happening) = self.world.happenings.get(next)
                && happening.at_ms <= self.now_ms
            {
                next += 1;
                taken += 1;
                self.happen(happening).await;
                if taken % BATCH == 0 {
                    self.turns.catch_up()?;
                }
            }
            self.changes += 1;
        }
        self.rest(None).await?;
        while self.next_sample <= SAMPLES {
            self.sample();
            self.next_sample += 1;
        }
        Ok(())
    }

    /// The time of the next event: a recorded change, or the end of a pod.
    fn next_ms(&self, next: usize, end_ms: u64) -> Option<u64> {
        let due = self.world.happenings.get(next).map(|due| due.at_ms);
        let over = self.ends.first().map(|(at, _)| *at);
        due.into_iter().chain(over.filter(|at| *at <= end_ms)).min()
    }

    /// Gives pods their turns until no pod is ready and no pod in backoff is worth waiting for, or until the given time
    /// of a recording with this end.
    async fn rest(&mut self, until: Option<(u64, u64)>) -> Result<(), Refusal> {
        loop {
            let until = until.map(|(until, end_ms)| {
                let over = self.ends.first().map_or(u64::MAX, |(at, _)| *at);
                (until.min(over), end_ms)
            });
            if until.is_some_and(|(until, _)| self.now_ms >= until) {
                return Ok(());
            }
            if let Some(tried) = self.turns.step().await? {
                let end_ms = until.map_or(u64::MAX, |(_, end_ms)| end_ms);
                self.pass(self.now_ms + TRY_MS, end_ms);
                self.took(&tried).await?;
                self.tries += 1;
                let most = (self.came.len() as u64 + self.changes + 100) * 100;
                if self.tries > most {
                    return Err(Refusal::Impossible(format!(
                        "the run does not come to rest: {} tries of {} pods",
                        self.tries,
                        self.came.len()
                    )));
                }
                continue;
            }
            let next = self
                .turns
                .queue()
                .next_ms()
                .filter(|_| self.is_worth_waiting(until.is_some()));
            match (next, until) {
                (Some(next), None) => self.pass(next.max(self.now_ms + 1), u64::MAX),
                (Some(next), Some((until, end_ms))) if next < until => {
                    self.pass(next.max(self.now_ms + 1), end_ms);
                }
                _ => return Ok(()),
            }
        }
    }

    /// Whether a pod in backoff has not been tried since the last change. At the end of a run, pods that wait for an
    /// event do not count, because nothing more will happen.
    fn is_worth_waiting(&self, goes_on: bool) -> bool {
        let queue = self.turns.queue();
        queue.pods().any(|pod| {
            let waits = match queue.place(&pod.key) {
                Some(PodStage::Backoff { .. }) => true,
                Some(PodStage::Unschedulable) => goes_on,
                _ => false,
            };
            waits && self.tried.get(&pod.key) != Some(&self.changes)
        })
    }

    /// Advances the clock. In a recording, the cluster is sampled at the moments in between.
    fn pass(&mut self, to_ms: u64, end_ms: u64) {
        if end_ms < u64::MAX {
            while self.next_sample <= SAMPLES && end_ms * self.next_sample / SAMPLES < to_ms {
                self.sample();
                self.next_sample += 1;
            }
        }
        self.now_ms = self.now_ms.max(to_ms);
        // Relaxed: one thread sets and reads it.
        self.clock.store(self.now_ms, Ordering::Relaxed);
    }

    /// Processes the outcome of a pod's turn.
    async fn took(&mut self, tried: &TurnResult) -> Result<(), Refusal> {
        let key = &*tried.pod.key;
        let changes = self.changes;
        match &tried.result {
            Ok(()) => {
                self.changes += 1;
                self.tried.remove(key);
                self.tally.placed(key, self.now_ms);
                let lasts = self.came.get(key).and_then(|came| came.lasts_ms);
                self.ends_in(key, lasts);
            }
            Err(failed) => {
                self.tally.refused(key, reason(failed));
                let victims = failed.preemption.iter().flat_map(|victims| &victims.pods);
                for victim in victims {
                    if self.cluster.get(&self.target(&victim.key)).is_err() {
                        self.evicted(&victim.key).await?;
                    }
                }
                // An eviction makes another try worthwhile.
                self.tried.insert(Arc::clone(&tried.pod.key), changes);
            }
        }
        Ok(())
    }

    fn ends_in(&mut self, key: &str, lasts_ms: Option<u64>) {
        let Some(lasts_ms) = lasts_ms else { return };
        let at = self.now_ms.saturating_add(lasts_ms);
        self.end_of.insert(key.to_owned(), at);
        self.ends.insert((at, key.to_owned()));
    }

    /// Recreates a preempted pod, as its controller would do.
    async fn evicted(&mut self, key: &str) -> Result<(), Refusal> {
        self.changes += 1;
        if let Some(at) = self.end_of.remove(key) {
            self.ends.remove(&(at, key.to_owned()));
        }
        self.tally.preempted(key, self.now_ms);
        if let Some(came) = self.came.get(key) {
            let mut object = came.object.clone();
            unbind(&mut object, self.vendors);
            import::put(&self.cluster, &came.kind, &object).await?;
        }
        Ok(())
    }

    /// A pod appears.
    fn enter(&mut self, happening: &'a Happening) {
        let key = happening.key();
        let Ok(there) = self.cluster.get(&self.target(&key)) else {
            return;
        };
        let asked = self.facts.asked.get(&key).copied().unwrap_or_default();
        if happening.node().is_empty() {
            let reason = untried(&there.value(), self.turns.setup());
            self.tally.waits(&key, asked, self.now_ms, &reason);
        } else {
            self.tally.runs(&key, asked);
            self.ends_in(&key, happening.lasts_ms);
        }
        self.came.insert(key, happening);
    }

    /// Replays one recorded change.
    async fn happen(&mut self, happening: &'a Happening) {
        let is_pod = happening.is("pods");
        let key = if is_pod {
            happening.key()
        } else {
            String::new()
        };
        let new = is_pod && self.cluster.get(&self.target(&key)).is_err();
        if happening.gone {
            if is_pod {
                return self.delete(&key).await;
            }
            let name = happening.name();
            let Ok(resource) = happening.kind.resource(&self.cluster) else {
                return;
            };
            if happening.kind.is_given(name) {
                return;
            }
            let namespace = text(&happening.object, "/metadata/namespace");
            let target = Target::object(&resource, namespace, name);
            let (options, write) = (DeleteOptions::default(), Write::default());
            if let Err(status) = self.cluster.delete(&target, &options, &write).await
                && status.code != 404
            {
                self.refuse(happening, &status);
            }
            return;
        }
        if happening.kind.is_given(happening.name()) {
            return;
        }
        if is_pod && !new && !self.tally.is_waiting(&key) {
            // After the pod has its node, this run decides its fate.
            return;
        }
        match import::put(&self.cluster, &happening.kind, &happening.object).await {
            Ok(()) if new => self.enter(happening),
            Ok(()) => {}
            Err(status) => self.refuse(happening, &status),
        }
    }

    async fn delete(&mut self, key: &str) {
        self.changes += 1;
        self.tally.gone(key);
        let (options, write) = (DeleteOptions::default(), Write::default());
        let target = self.target(key);
        if let Err(status) = self.cluster.delete(&target, &options, &write).await {
            tracing::debug!(key, %status, "a pod was gone already");
        }
    }

    fn refuse(&mut self, happening: &Happening, status: &Status) {
        let (count, _) = self.refused.get_or_insert_with(|| {
            let name = format!("{} {}", happening.kind.plural, happening.name());
            (0, format!("{name}: {status}"))
        });
        *count += 1;
    }

    /// Counts the objects that a lenient import skipped.
    fn look_for_missing(&mut self) {
        let world = self.world;
        for happening in &world.happenings {
            let name = happening.name();
            let Ok(resource) = happening.kind.resource(&self.cluster) else {
                continue;
            };
            if name.is_empty() || happening.kind.is_given(name) {
                continue;
            }
            let namespace = match text(&happening.object, "/metadata/namespace") {
                "" if resource.namespaced => "default",
                namespace => namespace,
            };
            let target = Target::object(&resource, namespace, name);
            if self.cluster.get(&target).is_err() {
                let (count, _) = self.refused.get_or_insert_with(|| {
                    let plural = happening.kind.plural;
                    (0, format!("{plural} {name} (--log warn says why)"))
                });
                *count += 1;
            }
        }
    }

    /// Creates the namespaces of the recorded objects at the start, because a recording may mention them late.
    async fn make_namespaces(&mut self) -> Result<(), Refusal> {
        let namespaces = self.cluster.resource("", "namespaces")?;
        let all = self.world.happenings.iter();
        let names: BTreeSet<&str> = all
            .map(|of| text(&of.object, "/metadata/namespace"))
            .filter(|name| !name.is_empty())
            .collect();
        for name in names {
            let target = Target::object(&namespaces, "", name);
            if self.cluster.get(&target).is_ok() {
                continue;
            }
            let object = serde_json::json!({ "metadata": { "name": name } });
            self.cluster
                .create(&target, object, &Write::default())
                .await?;
        }
        Ok(())
    }

    fn target(&self, key: &str) -> Target {
        let (namespace, name) = key.split_once('/').unwrap_or(("default", key));
        Target::object(&self.pods, namespace, name)
    }

    fn sample(&mut self) {
        let typical = self.facts.typical.as_ref();
        let sample = sample(self.turns.snapshot(), typical, &self.world.drained);
        self.tally.sample(sample);
    }
}

/// Why a pod that has not had its turn has no node.
fn untried(pod: &Value, setup: &Setup) -> String {
    let gates = pod
        .pointer("/spec/schedulingGates")
        .and_then(Value::as_array);
    if gates.is_some_and(|gates| !gates.is_empty()) {
        return "it has scheduling gates".to_owned();
    }
    let scheduler = match text(pod, "/spec/schedulerName") {
        "" => "default-scheduler",
        name => name,
    };
    let mut profiles = setup.running.profiles.iter();
    if profiles.any(|profile| profile.scheduler_name == scheduler) {
        "it had no turn before the end".to_owned()
    } else {
        format!("no profile of the configuration is named {scheduler}")
    }
}

/// Why a pod found no node, without details that differ between nodes and tries, so that pods can be grouped by it:
/// every reason of a node once, without the numbers of nodes and GPUs.
fn reason(failed: &Failed) -> String {
    let reasons: BTreeSet<String> = failed.reasons.keys().map(|text| uncounted(text)).collect();
    if reasons.is_empty() {
        return failed.message.clone();
    }
    reasons.into_iter().collect::<Vec<_>>().join("; ")
}

/// The reasons in a text of the placement engine without their counts, each once: `3/4 CardInsufficientMemory (too
/// little memory is free)` loses the `3/4`.
fn uncounted(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for part in text.split(", ") {
        match (part.split_once(' '), words.last_mut()) {
            (Some((count, rest)), _) if is_count(count) => words.push(rest.to_owned()),
            // The text in brackets may contain commas too.
            (_, Some(before)) => {
                before.push_str(", ");
                before.push_str(part);
            }
            (_, None) => return text.to_owned(),
        }
    }
    words.sort_unstable();
    words.dedup();
    words.join(", ")
}

fn is_count(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once('/')
        .is_some_and(|(part, all)| digits(part) && digits(all))
}

/// The use of the nodes that are not drained, and the free memory on which the typical request still fits.
fn sample(
    snapshot: &Snapshot,
    typical: Option<&Typical>,
    drained: &BTreeSet<String>,
) -> ClusterSample {
    let mut sample = ClusterSample {
        stranded: typical.map(|_| Part::default()),
        ..ClusterSample::default()
    };
    let positive = |amount: i64| u64::try_from(amount).unwrap_or_default();
    for state in snapshot.nodes() {
        let node = state.node();
        if drained.contains(&*node.name) {
            continue;
        }
        let (used, offered) = (state.requested(), &node.allocatable);
        sample
            .cpu
            .add(positive(used.cpu_milli), positive(offered.cpu_milli));
        sample
            .memory
            .add(positive(used.memory_bytes), positive(offered.memory_bytes));
    }
    let cluster = snapshot.devices().cluster();
    for node in cluster.nodes() {
        if drained.contains(node.name()) {
            continue;
        }
        for view in node.devices() {
            let (device, used) = (view.device(), view.used());
            sample
                .gpu_memory
                .add(used.memory_bytes, device.memory_bytes);
            sample
                .gpu_cores
                .add(u64::from(used.cores), u64::from(device.cores));
            let Some((typical, stranded)) = typical.zip(sample.stranded.as_mut()) else {
                continue;
            };
            if device.vendor == typical.vendor {
                let free = device.memory_bytes.saturating_sub(used.memory_bytes);
                let fits = cluster.place_on(&question(typical, view.id()), node.name());
                stranded.add(if fits.is_ok() { 0 } else { free }, free);
            }
        }
    }
    sample
}

/// Whether the typical request fits on this GPU, as a question to the placement engine.
fn question(typical: &Typical, uuid: &str) -> Request {
    let memory = Memory::Bytes(typical.memory_bytes);
    let mut ask = placement::Ask::new(typical.vendor.as_str(), 1, memory);
    ask.compute = Compute::Units(typical.cores);
    ask.select.use_ids = vec![uuid.to_owned()];
    Request {
        pod: placement::Pod::named("", "typical request"),
        containers: vec![Container {
            name: "typical".to_owned(),
            asks: vec![ask],
            ..Container::default()
        }],
        ..Request::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_lose_their_counts_and_nothing_else() {
        for (text, wanted) in [
            ("3/4 CardInsufficientMemory", "CardInsufficientMemory"),
            (
                "1/4 CardTimeSlicingExhausted, 3/4 CardInsufficientCore",
                "CardInsufficientCore, CardTimeSlicingExhausted",
            ),
            (
                "1/2 CardNotHealth (sick, or used), 1/2 CardNotHealth (sick, or used)",
                "CardNotHealth (sick, or used)",
            ),
            ("Insufficient cpu", "Insufficient cpu"),
            ("node(s) were bad, or 1/2 so", "node(s) were bad, or 1/2 so"),
            ("a, b", "a, b"),
            ("", ""),
        ] {
            assert_eq!(uncounted(text), wanted);
        }
    }

    #[test]
    fn an_untried_pod_says_what_keeps_it() {
        let setup = Setup::defaults();
        let pod = |spec: Value| serde_json::json!({ "spec": spec });

        let said = |spec: Value| untried(&pod(spec), &setup);

        assert!(
            said(serde_json::json!({ "schedulingGates": [{ "name": "g" }] })).contains("gates")
        );
        assert!(said(serde_json::json!({ "schedulerName": "other" })).contains("named other"));
        assert!(said(serde_json::json!({})).contains("no turn"));
    }
}
