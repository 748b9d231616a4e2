//! Pods that wait for their turn: which one is next, how long a pod that failed waits, and which event is worth another
//! try. Values in, values out: the time is an argument.
//!
//! The rules are kube-scheduler's (`pkg/scheduler/backend/queue`, and `EventsToRegister` of each plugin): a higher
//! priority first, then the pod that waits longer; a wait that doubles with each failure; after five minutes another try
//! in any case. Of the events, what kind of object changed counts here, not which of its fields.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use scheduling::model::Pod;
use scheduling::plugin::{Plugin, PluginSet};

/// After this time a pod is tried again without an event (`podMaxInUnschedulablePodsDuration`).
const PATIENCE: Duration = Duration::from_secs(300);

/// What happened in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happening {
    /// A node came, or changed.
    Node,
    /// A pod on a node came, or changed.
    AssignedPod,
    /// A pod on a node went.
    FreedPod,
    /// A volume, a claim, a class of volumes or a driver came, changed or went.
    Volume,
}

/// A pod on its way through the queue.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) pod: Arc<Pod>,
    /// When it first came.
    since: Duration,
    /// How often it was tried.
    attempts: u32,
}

#[derive(Debug)]
struct Refused {
    waiting: Waiting,
    plugins: PluginSet,
    by_extender: bool,
    at: Duration,
}

type Rank = (Reverse<i32>, Duration, Arc<str>);

/// The queue.
#[derive(Debug)]
pub(super) struct Queue {
    initial: Duration,
    most: Duration,
    ready: BTreeSet<Rank>,
    /// By the time at which they are ready.
    later: BTreeSet<(Duration, Arc<str>)>,
    refused: HashMap<Arc<str>, Refused>,
    /// The pods in `ready` and `later`.
    waiting: BTreeMap<Arc<str>, Waiting>,
    /// Pods that wait for somebody to take their gates away.
    gated: HashMap<Arc<str>, Arc<Pod>>,
}

impl Queue {
    /// A pod that failed waits `initial`, then twice as long each time, up to `most`.
    pub(super) fn new(initial: Duration, most: Duration) -> Self {
        Self {
            initial,
            most,
            ready: BTreeSet::new(),
            later: BTreeSet::new(),
            refused: HashMap::new(),
            waiting: BTreeMap::new(),
            gated: HashMap::new(),
        }
    }

    /// A pod that is new, or changed. A change of what a plugin looks at is worth another try; others are not.
    pub(super) fn set(&mut self, pod: Arc<Pod>, now: Duration) {
        let key = pod.key.clone();
        if !pod.gates.is_empty() {
            self.remove(&key);
            self.gated.insert(key, pod);
            return;
        }
        self.gated.remove(&key);
        if let Some(refused) = self.refused.get_mut(&key) {
            let same_pod = refused.waiting.pod.uid == pod.uid;
            if same_pod && !differs(&refused.waiting.pod, &pod) {
                refused.waiting.pod = pod;
                return;
            }
            if same_pod && let Some(refused) = self.refused.remove(&key) {
                let waiting = Waiting {
                    pod,
                    ..refused.waiting
                };
                self.again(waiting, refused.at, now);
                return;
            }
        }
        match self.waiting.get_mut(&key) {
            Some(waiting) if waiting.pod.uid == pod.uid => {
                let before = rank(waiting);
                waiting.pod = pod;
                let after = rank(waiting);
                if self.ready.remove(&before) {
                    self.ready.insert(after);
                }
            }
            _ => {
                self.remove(&key);
                let waiting = Waiting {
                    pod,
                    since: now,
                    attempts: 0,
                };
                self.ready.insert(rank(&waiting));
                self.waiting.insert(key, waiting);
            }
        }
    }

    /// A pod that went, or has its node.
    pub(super) fn remove(&mut self, key: &str) {
        self.gated.remove(key);
        self.refused.remove(key);
        if let Some(waiting) = self.waiting.remove(key) {
            self.ready.remove(&rank(&waiting));
            self.later.retain(|(_, other)| **other != *key);
        }
    }

    /// The next pod. It is out of the queue until it fails or is set again.
    pub(super) fn pop(&mut self, now: Duration) -> Option<Waiting> {
        self.wake(now);
        let (_, _, key) = self.ready.pop_first()?;
        let mut waiting = self.waiting.remove(&key)?;
        waiting.attempts = waiting.attempts.saturating_add(1);
        Some(waiting)
    }

    /// The pod was refused by these plugins.
    pub(super) fn failed(
        &mut self,
        waiting: Waiting,
        plugins: PluginSet,
        by_extender: bool,
        now: Duration,
    ) {
        let key = waiting.pod.key.clone();
        let refused = Refused {
            waiting,
            plugins,
            by_extender,
            at: now,
        };
        self.refused.insert(key, refused);
    }

    /// The try was cut short, not answered: the pod waits as after a failure, and needs no event.
    pub(super) fn retry(&mut self, waiting: Waiting, now: Duration) {
        self.again(waiting, now, now);
    }

    /// Something happened: pods that it concerns are tried again.
    pub(super) fn happened(&mut self, what: Happening, now: Duration) {
        let concerned: Vec<Arc<str>> = self
            .refused
            .iter()
            .filter(|(_, refused)| {
                let none = refused.plugins.is_empty();
                none || refused.by_extender || refused.plugins.iter().any(|p| concerns(p, what))
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in concerned {
            if let Some(refused) = self.refused.remove(&key) {
                self.again(refused.waiting, refused.at, now);
            }
        }
    }

    /// When there is a pod to pop at the latest; none while nothing waits for its time.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let later = self.later.first().map(|(at, _)| *at);
        let patience = self.refused.values().map(|refused| refused.at + PATIENCE);
        later.into_iter().chain(patience).min()
    }

    /// How many pods wait for an event.
    #[cfg(test)]
    fn unschedulable(&self) -> usize {
        self.refused.len()
    }

    fn wake(&mut self, now: Duration) {
        while let Some((at, _)) = self.later.first()
            && *at <= now
        {
            if let Some((_, key)) = self.later.pop_first()
                && let Some(waiting) = self.waiting.get(&key)
            {
                self.ready.insert(rank(waiting));
            }
        }
        let tired: Vec<Arc<str>> = self
            .refused
            .iter()
            .filter(|(_, refused)| refused.at + PATIENCE <= now)
            .map(|(key, _)| key.clone())
            .collect();
        for key in tired {
            if let Some(refused) = self.refused.remove(&key) {
                self.again(refused.waiting, refused.at, now);
            }
        }
    }

    /// Another try, once the wait since the failure is over.
    fn again(&mut self, waiting: Waiting, failed: Duration, now: Duration) {
        let at = failed + self.backoff(waiting.attempts);
        let key = waiting.pod.key.clone();
        if at <= now {
            self.ready.insert(rank(&waiting));
        } else {
            self.later.insert((at, key.clone()));
        }
        self.waiting.insert(key, waiting);
    }

    fn backoff(&self, attempts: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(attempts.saturating_sub(1));
        self.initial.saturating_mul(doubled).min(self.most)
    }
}

fn rank(waiting: &Waiting) -> Rank {
    let pod = &waiting.pod;
    (Reverse(pod.priority), waiting.since, pod.key.clone())
}

/// Whether what plugins look at differs; what the scheduler itself writes does not count.
fn differs(before: &Pod, after: &Pod) -> bool {
    if before.nominated == after.nominated {
        return before != after;
    }
    let mut same = before.clone();
    same.nominated = after.nominated;
    same != *after
}

/// Whether a plugin that refused a pod may answer otherwise after this.
fn concerns(plugin: Plugin, what: Happening) -> bool {
    use Happening::{AssignedPod, FreedPod, Node, Volume};
    match plugin {
        Plugin::SchedulingGates | Plugin::PrioritySort | Plugin::DefaultBinder => false,
        Plugin::NodeUnschedulable
        | Plugin::NodeName
        | Plugin::TaintToleration
        | Plugin::NodeAffinity
        | Plugin::ImageLocality => what == Node,
        Plugin::NodePorts
        | Plugin::NodeResourcesFit
        | Plugin::NodeResourcesBalancedAllocation
        | Plugin::GpuFit
        | Plugin::GpuScore => matches!(what, Node | FreedPod),
        Plugin::DefaultPreemption => what == FreedPod,
        Plugin::PodTopologySpread | Plugin::InterPodAffinity => {
            matches!(what, Node | AssignedPod | FreedPod)
        }
        Plugin::VolumeRestrictions | Plugin::NodeVolumeLimits => {
            matches!(what, Node | FreedPod | Volume)
        }
        Plugin::VolumeBinding | Plugin::VolumeZone => matches!(what, Node | Volume),
    }
}

#[cfg(test)]
mod tests {
    use scheduling::snapshot::Snapshot;
    use serde_json::json;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn queue() -> Queue {
        Queue::new(SECOND, 10 * SECOND)
    }

    fn pod(name: &str, priority: i32) -> Arc<Pod> {
        let pod = json!({ "metadata": { "name": name, "namespace": "d", "uid": name }, "spec": { "priority": priority } });
        Arc::new(Snapshot::new().read_pod(&pod).unwrap())
    }

    fn popped(queue: &mut Queue, now: Duration) -> Option<String> {
        let waiting = queue.pop(now)?;
        let key = waiting.pod.key.to_string();
        queue.failed(
            waiting,
            PluginSet::from_iter([Plugin::NodeAffinity]),
            false,
            now,
        );
        Some(key)
    }

    #[test]
    fn higher_priorities_come_first_then_older_pods() {
        let mut queue = queue();
        for (at, (name, priority)) in [("late", 0), ("high", 5), ("a-later", 0)]
            .iter()
            .enumerate()
        {
            queue.set(pod(name, *priority), SECOND * u32::try_from(at).unwrap());
        }

        let order: Vec<_> = std::iter::from_fn(|| popped(&mut queue, 3 * SECOND)).collect();

        assert_eq!(order, ["d/high", "d/late", "d/a-later"]);
    }

    #[test]
    fn a_refused_pod_waits_for_an_event_that_concerns_it() {
        let mut queue = queue();
        queue.set(pod("p", 0), Duration::ZERO);
        popped(&mut queue, Duration::ZERO).unwrap();
        let later = 60 * SECOND;

        queue.happened(Happening::FreedPod, later);
        assert_eq!(queue.pop(later).map(|_| ()), None);
        queue.happened(Happening::Node, later);
        assert_eq!(popped(&mut queue, later).as_deref(), Some("d/p"));
    }

    #[test]
    fn the_wait_doubles_up_to_its_end() {
        let mut queue = queue();
        queue.set(pod("p", 0), Duration::ZERO);
        let mut now = Duration::ZERO;
        let mut waits = Vec::new();
        popped(&mut queue, now).unwrap();
        for _ in 0..6 {
            queue.happened(Happening::Node, now);
            let wake = queue.next_wake().unwrap();
            assert!(queue.pop(wake - Duration::from_millis(1)).is_none());
            waits.push((wake - now).as_secs());
            now = wake;
            popped(&mut queue, now).unwrap();
        }

        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn five_minutes_are_enough_without_an_event() {
        let mut queue = queue();
        queue.set(pod("p", 0), Duration::ZERO);
        popped(&mut queue, Duration::ZERO).unwrap();

        assert_eq!(queue.next_wake(), Some(PATIENCE));
        assert!(queue.pop(PATIENCE - SECOND).is_none());
        assert!(queue.pop(PATIENCE).is_some());
    }

    #[test]
    fn only_a_change_that_a_plugin_sees_is_worth_a_try() {
        let mut queue = queue();
        queue.set(pod("p", 0), Duration::ZERO);
        popped(&mut queue, Duration::ZERO).unwrap();
        let now = 20 * SECOND;

        queue.set(pod("p", 0), now);
        assert_eq!(
            (queue.unschedulable(), queue.pop(now).is_some()),
            (1, false)
        );
        queue.set(pod("p", 7), now);
        assert!(queue.pop(now).is_some());
    }

    #[test]
    fn gates_keep_a_pod_out_until_they_are_gone() {
        let mut queue = queue();
        let mut gated = Pod::clone(&pod("p", 0));
        gated.gates = ["wait".into()].into();

        queue.set(Arc::new(gated), Duration::ZERO);
        assert!(queue.pop(Duration::ZERO).is_none());
        assert_eq!(queue.next_wake(), None);
        queue.set(pod("p", 0), SECOND);
        assert!(queue.pop(SECOND).is_some());
    }

    #[test]
    fn a_pod_that_went_is_not_popped() {
        let mut queue = queue();
        for name in ["ready", "refused", "later"] {
            queue.set(pod(name, 0), Duration::ZERO);
        }
        for _ in 0..2 {
            popped(&mut queue, Duration::ZERO).unwrap();
        }
        queue.happened(Happening::Node, Duration::ZERO);

        for name in ["ready", "refused", "later"] {
            queue.remove(&format!("d/{name}"));
        }

        assert!(queue.pop(1000 * SECOND).is_none());
        assert_eq!(queue.next_wake(), None);
    }
}
