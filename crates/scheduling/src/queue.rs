//! The queue of pods to place: ready pods by priority and time, pods in backoff after a failure, unschedulable pods
//! that wait for a change, and pods with gates. The caller passes the time.
//!
//! One difference from kube-scheduler: a pod in backoff waits its whole time, even when no other pod is ready
//! (kube-scheduler 1.35 takes it early then).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::cycle::Failed;
use crate::model::Pod;
use crate::plugin::{Plugin, PluginSet};

/// An unschedulable pod is tried again after this time, even if nothing that concerns it has changed.
pub const MOST_UNSCHEDULABLE_MS: u64 = 5 * 60 * 1000;

/// A kind of change in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A node is new.
    NodeAdded,
    /// A node is gone.
    NodeRemoved,
    /// The labels of a node changed.
    NodeLabels,
    /// The taints of a node changed, or its cordon.
    NodeTaints,
    /// The allocatable amounts of a node changed.
    NodeAllocatable,
    /// The shared devices of a node changed.
    NodeDevices,
    /// A pod got a node, or was created with one.
    PodAssigned,
    /// The labels of a pod with a node changed.
    PodLabels,
    /// A pod with a node is gone or has ended.
    PodRemoved,
    /// A pod with a node lowered its requests.
    PodScaledDown,
    /// A claim is new or has changed.
    Claim,
    /// A volume is new or has changed.
    Volume,
    /// A storage class is new or has changed.
    StorageClass,
    /// The CSI drivers of a node changed.
    CsiNode,
    /// The labels of a namespace changed.
    Namespace,
    /// Any change: every pod is tried again.
    Anything,
}

/// Whether the event may change the plugin's decision. The kinds are those that kube-scheduler's plugins register;
/// every event of such a kind counts, whatever its details.
pub fn concerns(plugin: Plugin, event: Event) -> bool {
    use Event as E;
    matches!(
        (plugin, event),
        (_, E::Anything)
            | (
                Plugin::NodeUnschedulable | Plugin::TaintToleration,
                E::NodeAdded | E::NodeTaints
            )
            | (Plugin::NodeName, E::NodeAdded)
            | (Plugin::NodeAffinity, E::NodeAdded | E::NodeLabels)
            | (Plugin::NodePorts, E::NodeAdded | E::PodRemoved)
            | (
                Plugin::NodeResourcesFit,
                E::NodeAdded | E::NodeAllocatable | E::PodRemoved | E::PodScaledDown,
            )
            | (
                Plugin::VolumeRestrictions,
                E::NodeAdded | E::PodRemoved | E::Claim
            )
            | (
                Plugin::NodeVolumeLimits,
                E::CsiNode | E::PodRemoved | E::Claim
            )
            | (
                Plugin::VolumeBinding,
                E::NodeAdded | E::NodeLabels | E::Claim | E::Volume | E::StorageClass | E::CsiNode,
            )
            | (
                Plugin::VolumeZone,
                E::NodeAdded | E::NodeLabels | E::Claim | E::Volume | E::StorageClass,
            )
            | (
                Plugin::PodTopologySpread,
                E::NodeAdded
                    | E::NodeRemoved
                    | E::NodeLabels
                    | E::NodeTaints
                    | E::PodAssigned
                    | E::PodLabels
                    | E::PodRemoved,
            )
            | (
                Plugin::InterPodAffinity,
                E::NodeAdded
                    | E::NodeLabels
                    | E::PodAssigned
                    | E::PodLabels
                    | E::PodRemoved
                    | E::Namespace,
            )
            | (
                Plugin::GpuFit,
                E::NodeAdded | E::NodeDevices | E::PodRemoved
            )
    )
}

/// The part of the queue that a pod is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodStage {
    /// Ready: it is handed out when it is the first.
    Active,
    /// It waits until its backoff is over.
    Backoff {
        /// The end of the backoff, in milliseconds of the caller's clock.
        until_ms: u64,
    },
    /// It waits for a change.
    Unschedulable,
    /// It has scheduling gates.
    Gated,
    /// It was handed out, and its outcome is not known yet.
    InFlight,
}

/// A pod that was handed out.
#[derive(Debug, Clone, PartialEq)]
pub struct Popped {
    /// The pod.
    pub pod: Arc<Pod>,
    /// How often it was handed out, including this time.
    pub attempts: u32,
}

/// The order of ready pods: by priority, then by waiting time, then by name.
type Rank = (Reverse<i32>, u64, Arc<str>);

#[derive(Debug, Clone)]
struct Entry {
    pod: Arc<Pod>,
    place: PodStage,
    attempts: u32,
    /// The number of consecutive failures.
    failures: u32,
    /// When it was added or last failed.
    since_ms: u64,
    /// The plugins that refused it last.
    plugins: PluginSet,
    by_extender: bool,
    /// The changes since it was handed out.
    missed: Vec<Event>,
}

impl Entry {
    fn rank(&self) -> Rank {
        (
            Reverse(self.pod.priority),
            self.since_ms,
            Arc::clone(&self.pod.key),
        )
    }

    fn hears(&self, event: Event) -> bool {
        self.by_extender
            || event == Event::Anything
            || self.plugins.iter().any(|plugin| concerns(plugin, event))
    }
}

/// The queue.
#[derive(Debug, Clone)]
pub struct Queue {
    first_backoff_ms: u64,
    most_backoff_ms: u64,
    entries: HashMap<Arc<str>, Entry>,
    active: BTreeSet<Rank>,
    backoff: BTreeSet<(u64, Arc<str>)>,
    unschedulable: BTreeSet<(u64, Arc<str>)>,
}

impl Queue {
    /// An empty queue. A pod that fails waits `first_backoff_ms`, twice as long after each further failure, and at most
    /// `most_backoff_ms`.
    pub fn new(first_backoff_ms: u64, most_backoff_ms: u64) -> Self {
        Self {
            first_backoff_ms,
            most_backoff_ms: most_backoff_ms.max(first_backoff_ms),
            entries: HashMap::new(),
            active: BTreeSet::new(),
            backoff: BTreeSet::new(),
            unschedulable: BTreeSet::new(),
        }
    }

    /// Adds a pod. A pod with gates waits until an update removes them.
    pub fn add(&mut self, pod: Arc<Pod>, now_ms: u64) {
        self.remove(&pod.key);
        let gated = !pod.gates.is_empty();
        let key = Arc::clone(&pod.key);
        let entry = Entry {
            pod,
            place: PodStage::Gated,
            attempts: 0,
            failures: 0,
            since_ms: now_ms,
            plugins: PluginSet::default(),
            by_extender: false,
            missed: Vec::new(),
        };
        self.entries.insert(Arc::clone(&key), entry);
        if !gated {
            self.put(&key, PodStage::Active);
        }
    }

    /// Updates a pod. If it differs from before, it is tried again when its backoff is over. An unknown pod is added.
    pub fn update(&mut self, pod: Arc<Pod>, now_ms: u64) {
        let key = Arc::clone(&pod.key);
        let Some(entry) = self.entries.get(&key) else {
            self.add(pod, now_ms);
            return;
        };
        let same = *entry.pod == *pod;
        let place = entry.place;
        self.take_out(&key);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.pod = pod;
            if place == PodStage::InFlight && !same {
                entry.missed.push(Event::Anything);
            }
        }
        let gated = self
            .entries
            .get(&key)
            .is_some_and(|entry| !entry.pod.gates.is_empty());
        let place = match place {
            PodStage::InFlight => PodStage::InFlight,
            _ if gated => PodStage::Gated,
            PodStage::Gated => PodStage::Active,
            PodStage::Unschedulable if !same => self.after_backoff(&key, now_ms),
            place => place,
        };
        self.put(&key, place);
    }

    /// Removes a pod that is gone or has its node. Returns whether it was known.
    pub fn remove(&mut self, key: &str) -> bool {
        self.take_out(key);
        self.entries.remove(key).is_some()
    }

    /// Hands out the next pod. The pod stays known until [`Queue::remove`] or [`Queue::failed`] reports its outcome.
    pub fn pop(&mut self, now_ms: u64) -> Option<Popped> {
        self.flush(now_ms);
        let (_, _, key) = self.active.pop_first()?;
        let entry = self.entries.get_mut(&key)?;
        entry.place = PodStage::InFlight;
        entry.attempts += 1;
        entry.missed.clear();
        Some(Popped {
            pod: Arc::clone(&entry.pod),
            attempts: entry.attempts,
        })
    }

    /// Takes back a pod that found no node. It waits for a change that concerns the plugins that refused it. If such a
    /// change has happened since it was handed out, or if an error was the reason, it only waits for its backoff.
    pub fn failed(&mut self, key: &str, failed: &Failed, now_ms: u64) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.failures += 1;
        entry.since_ms = now_ms;
        entry.plugins = failed.plugins;
        entry.by_extender = failed.by_extender;
        let missed = std::mem::take(&mut entry.missed);
        let unexplained = entry.plugins.is_empty() && !entry.by_extender;
        let again = unexplained || missed.iter().any(|event| entry.hears(*event));
        let gated = !entry.pod.gates.is_empty();
        self.take_out(key);
        let place = match (gated, again) {
            (true, _) => PodStage::Gated,
            (false, true) => self.after_backoff(key, now_ms),
            (false, false) => PodStage::Unschedulable,
        };
        self.put(key, place);
    }

    /// Reports a change. Pods that it may concern are tried again when their backoff is over. Returns the number of
    /// those pods.
    pub fn event(&mut self, event: Event, now_ms: u64) -> usize {
        for entry in self.entries.values_mut() {
            if entry.place == PodStage::InFlight && !entry.missed.contains(&event) {
                entry.missed.push(event);
            }
        }
        let concerned = |(_, key): &&(u64, Arc<str>)| {
            self.entries
                .get(key)
                .is_some_and(|entry| entry.hears(event))
        };
        let keys: Vec<Arc<str>> = self
            .unschedulable
            .iter()
            .filter(concerned)
            .map(|(_, key)| Arc::clone(key))
            .collect();
        for key in &keys {
            self.take_out(key);
            let place = self.after_backoff(key, now_ms);
            self.put(key, place);
        }
        keys.len()
    }

    /// When the next pod becomes ready by itself, in milliseconds of the caller's clock; `None` if a pod is ready or
    /// no pod is in backoff.
    pub fn next_ms(&self) -> Option<u64> {
        if !self.active.is_empty() {
            return None;
        }
        let backoff = self.backoff.first().map(|(until, _)| *until);
        let unschedulable = self.unschedulable.first().map(|(since, _)| since);
        let unschedulable = unschedulable.map(|since| since.saturating_add(MOST_UNSCHEDULABLE_MS));
        backoff.into_iter().chain(unschedulable).min()
    }

    /// The part of the queue that a pod is in. `key` is `namespace/name`.
    pub fn place(&self, key: &str) -> Option<PodStage> {
        self.entries.get(key).map(|entry| entry.place)
    }

    /// The number of pods in each part of the queue: active, backoff, unschedulable, gated, in flight.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for entry in self.entries.values() {
            let place = match entry.place {
                PodStage::Active => "active",
                PodStage::Backoff { .. } => "backoff",
                PodStage::Unschedulable => "unschedulable",
                PodStage::Gated => "gated",
                PodStage::InFlight => "in flight",
            };
            *counts.entry(place).or_default() += 1;
        }
        counts
    }

    /// All pods in the queue, in no order.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.entries.values().map(|entry| &entry.pod)
    }

    /// Makes the pods ready whose backoff is over.
    fn flush(&mut self, now_ms: u64) {
        while let Some((until, key)) = self.backoff.first().cloned()
            && until <= now_ms
        {
            self.take_out(&key);
            self.put(&key, PodStage::Active);
        }
        while let Some((since, key)) = self.unschedulable.first().cloned()
            && since.saturating_add(MOST_UNSCHEDULABLE_MS) <= now_ms
        {
            self.take_out(&key);
            let place = self.after_backoff(&key, now_ms);
            self.put(&key, place);
        }
    }

    fn after_backoff(&self, key: &str, now_ms: u64) -> PodStage {
        let Some(entry) = self.entries.get(key) else {
            return PodStage::Active;
        };
        let Some(doublings) = entry.failures.checked_sub(1) else {
            return PodStage::Active;
        };
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        let wait = self
            .first_backoff_ms
            .saturating_mul(factor)
            .min(self.most_backoff_ms);
        let until_ms = entry.since_ms.saturating_add(wait);
        if until_ms <= now_ms {
            PodStage::Active
        } else {
            PodStage::Backoff { until_ms }
        }
    }

    fn take_out(&mut self, key: &str) {
        let Some(entry) = self.entries.get(key) else {
            return;
        };
        match entry.place {
            PodStage::Active => {
                self.active.remove(&entry.rank());
            }
            PodStage::Backoff { until_ms } => {
                self.backoff.remove(&(until_ms, Arc::clone(&entry.pod.key)));
            }
            PodStage::Unschedulable => {
                let waits = (entry.since_ms, Arc::clone(&entry.pod.key));
                self.unschedulable.remove(&waits);
            }
            PodStage::Gated | PodStage::InFlight => {}
        }
    }

    fn put(&mut self, key: &str, place: PodStage) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.place = place;
        match place {
            PodStage::Active => {
                self.active.insert(entry.rank());
            }
            PodStage::Backoff { until_ms } => {
                self.backoff.insert((until_ms, Arc::clone(&entry.pod.key)));
            }
            PodStage::Unschedulable => {
                let waits = (entry.since_ms, Arc::clone(&entry.pod.key));
                self.unschedulable.insert(waits);
            }
            PodStage::Gated | PodStage::InFlight => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::snapshot::Snapshot;

    fn pod(name: &str, priority: i32, gates: &[&str]) -> Arc<Pod> {
        let gates: Vec<_> = gates.iter().map(|gate| json!({"name": gate})).collect();
        let object = json!({
            "metadata": {"name": name},
            "spec": {"priority": priority, "schedulingGates": gates},
        });
        Arc::new(Snapshot::new().read_pod(&object).unwrap())
    }

    fn failed(plugin: Plugin) -> Failed {
        Failed {
            reason: "Unschedulable",
            message: String::new(),
            plugins: [plugin].into_iter().collect(),
            by_extender: false,
            preemption: None,
            candidates: Vec::new(),
            nodes: 1,
            reasons: BTreeMap::new(),
        }
    }

    fn queue() -> Queue {
        Queue::new(1_000, 10_000)
    }

    fn name(popped: Option<Popped>) -> Option<String> {
        popped.map(|popped| popped.pod.key.to_string())
    }

    #[test]
    fn pods_are_handed_out_by_priority_then_by_time() {
        let mut queue = queue();
        for (at, (name, priority)) in [("late", 0), ("high", 9), ("early", 0)].iter().enumerate() {
            let at = if *name == "early" { 0 } else { at as u64 + 5 };
            queue.add(pod(name, *priority, &[]), at);
        }

        let order: Vec<String> = std::iter::from_fn(|| name(queue.pop(9))).collect();

        assert_eq!(order, ["default/high", "default/early", "default/late"]);
    }

    #[test]
    fn gated_pods_wait_until_an_update_opens_them() {
        let mut queue = queue();
        queue.add(pod("a", 0, &["hold"]), 0);

        assert_eq!(queue.pop(0), None);
        assert_eq!(queue.place("default/a"), Some(PodStage::Gated));
        queue.update(pod("a", 0, &[]), 5);
        assert_eq!(name(queue.pop(5)).as_deref(), Some("default/a"));
    }

    #[test]
    fn refused_pods_wait_for_an_event_that_concerns_them() {
        let mut queue = queue();
        queue.add(pod("a", 0, &[]), 0);
        queue.pop(0);
        queue.failed("default/a", &failed(Plugin::NodeResourcesFit), 0);

        assert_eq!(queue.event(Event::NodeLabels, 10), 0);
        assert_eq!(queue.event(Event::PodRemoved, 20), 1);
        assert_eq!(
            queue.place("default/a"),
            Some(PodStage::Backoff { until_ms: 1_000 })
        );
        assert_eq!(queue.pop(999), None);
        assert_eq!(queue.next_ms(), Some(1_000));
        assert_eq!(name(queue.pop(1_000)).as_deref(), Some("default/a"));
    }

    #[test]
    fn waiting_time_doubles_up_to_the_most() {
        let mut queue = queue();
        queue.add(pod("a", 0, &[]), 0);
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..6 {
            queue.pop(now).unwrap();
            queue.failed("default/a", &failed(Plugin::NodeName), now);
            queue.event(Event::NodeAdded, now);
            let next = queue.next_ms().unwrap();
            waits.push(next - now);
            now = next;
        }

        assert_eq!(waits, [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
    }

    #[test]
    fn events_during_an_attempt_are_not_lost() {
        let mut queue = queue();
        queue.add(pod("a", 0, &[]), 0);
        queue.pop(0);
        queue.event(Event::NodeAdded, 1);

        queue.failed("default/a", &failed(Plugin::NodeName), 2);

        assert_eq!(
            queue.place("default/a"),
            Some(PodStage::Backoff { until_ms: 1_002 })
        );
    }

    #[test]
    fn forgotten_pods_are_tried_again_after_five_minutes() {
        let mut queue = queue();
        queue.add(pod("a", 0, &[]), 0);
        queue.pop(0);
        queue.failed("default/a", &failed(Plugin::NodeName), 0);

        assert_eq!(queue.pop(MOST_UNSCHEDULABLE_MS - 1), None);
        assert!(queue.pop(MOST_UNSCHEDULABLE_MS).is_some());
    }

    #[test]
    fn removed_pods_are_not_handed_out() {
        let mut queue = queue();
        queue.add(pod("a", 0, &[]), 0);

        assert!(queue.remove("default/a"));
        assert_eq!(queue.pop(0), None);
        assert!(!queue.remove("default/a"));
    }
}
