//! Anything may end between any two steps, and nothing is given twice.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, too"
)]

use crate::support;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube_api::allocation;
use kube_api::object::Pod;
use kube_api::request::{Defaults, request};
use kube_api::vendor::Vendors;
use placement::{Among, Placement};
use proptest::prelude::*;
use scheduler::ledger::{Begun, Filtered, Ledger, identity, uid_of};
use serde_json::{Value, json};
use support::{as_node, as_pod, node, placed, pod, vendors};

const NODES: [&str; 3] = ["n0", "n1", "n2"];
const SLOTS: u32 = 3;
const MIB: u32 = 10_000;
const TIMEOUT: Duration = Duration::from_secs(900);

/// The possible events, for the pod with this number.
#[derive(Debug, Clone)]
enum Step {
    Filter(usize, u32),
    /// A binding is asked for, and this becomes of the call.
    Bind(usize, Becomes),
    /// The answer to the binding under way comes.
    Answer(usize),
    Delete(usize),
    Unschedulable(usize),
    /// The watch delivers this many of the waiting events.
    Watch(usize),
    Wait(u64),
    /// The process ends, and another begins with a list.
    Restart,
    /// The watch breaks, and begins again with a list while the process goes on.
    Relist,
    /// Another replica has answered in between.
    Stepback,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Becomes {
    Done,
    Refused,
    /// It happens, but the answer is lost.
    Lost,
    /// It does not happen, and no error is returned.
    Nothing,
    /// It is under way until `Answer`; then it happens.
    Slow,
}

fn step() -> impl Strategy<Value = Step> {
    let pod = 0..12_usize;
    let becomes = prop_oneof![
        4 => Just(Becomes::Done),
        1 => Just(Becomes::Refused),
        1 => Just(Becomes::Lost),
        1 => Just(Becomes::Nothing),
        1 => Just(Becomes::Slow),
    ];
    prop_oneof![
        8 => (pod.clone(), 1..9000_u32).prop_map(|(pod, mib)| Step::Filter(pod, mib)),
        6 => (pod.clone(), becomes).prop_map(|(pod, becomes)| Step::Bind(pod, becomes)),
        2 => pod.clone().prop_map(Step::Answer),
        2 => pod.clone().prop_map(Step::Delete),
        1 => pod.prop_map(Step::Unschedulable),
        4 => (1..5_usize).prop_map(Step::Watch),
        1 => (1..1000_u64).prop_map(Step::Wait),
        1 => Just(Step::Restart),
        1 => Just(Step::Relist),
        1 => Just(Step::Stepback),
    ]
}

/// The API server and one scheduler's ledger of it.
struct World {
    vendors: Arc<Vendors>,
    ledger: Ledger,
    now: Duration,
    version: u64,
    /// Pods as the API server has them.
    pods: BTreeMap<String, Value>,
    /// The events that the watch has not delivered yet: a pod, or the uid of a deleted one.
    events: VecDeque<Result<Value, String>>,
    /// How often a pod of each name was deleted: the next has another uid.
    lives: BTreeMap<usize, u32>,
    /// Bindings that are on their way: pod, node and annotations.
    slow: BTreeMap<usize, (String, Value)>,
}

impl World {
    fn new(vendors: &Arc<Vendors>) -> Self {
        let mut world = Self {
            vendors: Arc::clone(vendors),
            ledger: Ledger::new(Arc::clone(vendors), TIMEOUT),
            now: Duration::from_secs(1),
            version: 1,
            pods: BTreeMap::new(),
            events: VecDeque::new(),
            lives: BTreeMap::new(),
            slow: BTreeMap::new(),
        };
        world.begin();
        world
    }

    /// The first list of a new process.
    fn begin(&mut self) {
        self.ledger = Ledger::new(Arc::clone(&self.vendors), TIMEOUT);
        for name in NODES {
            self.ledger.set_node(as_node(node(name, 1, SLOTS, MIB)));
        }
        self.list();
    }

    fn list(&mut self) {
        let began = self.now;
        self.events.clear();
        let mut listed = HashSet::new();
        for pod in self.pods.values() {
            let pod = as_pod(pod.clone());
            self.ledger.set_pod(&pod, self.now);
            listed.insert(uid_of(&pod));
        }
        self.ledger.keep_pods(&listed, began);
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.version += 1;
        let Some(pod) = self.pods.get_mut(name) else {
            return;
        };
        change(pod);
        pod["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.events.push_back(Ok(pod.clone()));
    }

    /// Processes a binding as the API server does: a pod is bound once.
    fn land(&mut self, name: &str, node: &str, annotations: &Value) -> bool {
        let there = self
            .pods
            .get(name)
            .is_some_and(|pod| pod["spec"]["nodeName"].is_null());
        if there {
            self.change(name, |pod| *pod = placed(pod.clone(), node, annotations));
        }
        there
    }

    fn annotations(&self, pod: &Pod, placement: &Placement) -> Value {
        let node = self.ledger.cluster().node(&placement.node);
        let written = allocation::write(pod, placement, node, &self.vendors, 1);
        json!(written.annotations)
    }

    fn step(&mut self, step: Step) {
        self.now += Duration::from_millis(10);
        let name = |at: usize| format!("p{at}");
        let lives = self.lives.clone();
        let uid = |at: usize| format!("uid-p{at}-{}", lives.get(&at).copied().unwrap_or_default());
        match step {
            Step::Filter(at, mib) => {
                let absent = !self.pods.contains_key(&name(at));
                if absent {
                    let mut made = pod(&name(at), mib);
                    made["metadata"]["uid"] = uid(at).into();
                    self.pods.insert(name(at), made);
                    self.change(&name(at), |_| {});
                }
                let shown = &self.pods[&name(at)];
                if !shown["spec"]["nodeName"].is_null() {
                    return;
                }
                let pod = Arc::new(as_pod(shown.clone()));
                let mut request = request(&pod, &self.vendors, &Defaults::default()).unwrap();
                request.pod = identity(&pod);
                let answer = self
                    .ledger
                    .filter(&request, &pod, Among::Names(&NODES), self.now);
                assert!(!matches!(answer, Filtered::Elsewhere { .. }));
            }
            Step::Bind(at, becomes) => {
                let gone = !self.pods.contains_key(&name(at));
                if gone {
                    return;
                }
                let Some(held) = self.ledger.cluster().reservation(&uid(at)) else {
                    return;
                };
                let node = held.placement.node.to_string();
                let Begun::Go { pod, placement } =
                    self.ledger.begin_bind(&uid(at), &node, self.now)
                else {
                    return;
                };
                let annotations = self.annotations(&pod, &placement);
                match becomes {
                    Becomes::Done => {
                        if self.land(&name(at), &node, &annotations) {
                            self.ledger.bound(&uid(at), self.now);
                        } else {
                            self.conflict(at, &uid(at));
                        }
                    }
                    Becomes::Refused => self.ledger.bind_refused(&uid(at)),
                    Becomes::Lost => {
                        self.land(&name(at), &node, &annotations);
                        self.ledger.bind_in_doubt(&uid(at), self.now);
                    }
                    Becomes::Nothing => self.ledger.bind_in_doubt(&uid(at), self.now),
                    Becomes::Slow => drop(self.slow.insert(at, (node, annotations))),
                }
            }
            Step::Answer(at) => {
                let Some((node, annotations)) = self.slow.remove(&at) else {
                    return;
                };
                if self.land(&name(at), &node, &annotations) {
                    self.ledger.bound(&uid(at), self.now);
                } else {
                    self.conflict(at, &uid(at));
                }
            }
            Step::Delete(at) => {
                if self.pods.remove(&name(at)).is_some() {
                    self.events.push_back(Err(uid(at)));
                }
                // A binding of a pod that is gone is refused, and a new pod of the name has another uid.
                if self.slow.remove(&at).is_some() {
                    self.ledger.bind_refused(&uid(at));
                }
                *self.lives.entry(at).or_default() += 1;
            }
            Step::Unschedulable(at) => {
                let text = format!("at {}", self.version);
                self.change(&name(at), |pod| {
                    pod["status"] = json!({"conditions": [
                        {"type": "PodScheduled", "status": "False", "message": text}
                    ]});
                });
            }
            Step::Watch(many) => {
                for _ in 0..many {
                    match self.events.pop_front() {
                        Some(Ok(pod)) => self.ledger.set_pod(&as_pod(pod), self.now),
                        Some(Err(uid)) => self.ledger.remove_pod(&uid),
                        None => break,
                    }
                }
            }
            Step::Wait(seconds) => {
                // No call of the API server is under way for so long.
                for at in self.slow.keys().copied().collect::<Vec<_>>() {
                    self.step(Step::Answer(at));
                }
                self.now += Duration::from_secs(seconds);
                self.ledger.expire(self.now);
            }
            Step::Restart => {
                // Calls under way arrive before the next process has read its list, or never.
                for (at, (node, annotations)) in std::mem::take(&mut self.slow) {
                    if at % 2 == 0 {
                        self.land(&name(at), &node, &annotations);
                    }
                }
                self.begin();
            }
            Step::Relist => self.list(),
            Step::Stepback => {
                self.ledger.forget_unbound();
                self.list();
            }
        }
    }

    /// A binding was refused because the pod is gone or has a node: does what `bind` does then.
    fn conflict(&mut self, at: usize, uid: &str) {
        match self.pods.get(&format!("p{at}")) {
            Some(pod) if !pod["spec"]["nodeName"].is_null() => {
                let pod = as_pod(pod.clone());
                self.ledger.bound_otherwise(&pod, self.now);
            }
            _ => self.ledger.bind_refused(uid),
        }
    }

    /// Checks that no device is promised beyond its capacity, by the annotations of bound pods.
    fn check(&self, after: &Step) {
        let mut used: BTreeMap<String, (u32, u64)> = BTreeMap::new();
        for shown in self
            .pods
            .values()
            .filter(|pod| !pod["spec"]["nodeName"].is_null())
        {
            let read = allocation::read(&as_pod(shown.clone()), &self.vendors)
                .unwrap()
                .unwrap();
            for grant in read.containers.iter().flat_map(|granted| &granted.grants) {
                let (slots, bytes) = used.entry(grant.device.to_string()).or_default();
                *slots += grant.slots;
                *bytes += grant.memory_bytes;
            }
        }
        for (device, (slots, bytes)) in used {
            assert!(slots <= SLOTS, "{device}: {slots} slots after {after:?}");
            assert!(
                bytes <= u64::from(MIB) << 20,
                "{device}: {bytes} bytes after {after:?}"
            );
        }
    }

    fn holdings(ledger: &Ledger) -> BTreeMap<String, Placement> {
        ledger
            .cluster()
            .reservations()
            .map(|held| (held.pod.uid.clone(), held.placement.clone()))
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_given_twice_and_a_rebuild_is_the_ledger(steps in prop::collection::vec(step(), 1..400)) {
        let mut world = World::new(&vendors());
        for step in steps {
            world.step(step.clone());
            world.check(&step);
        }

        // All calls end, all events arrive, a list resolves the doubts, and all unbound reservations expire. What
        // remains must equal what is written.
        world.step(Step::Wait(5000));
        world.step(Step::Watch(usize::MAX));
        world.step(Step::Relist);
        world.step(Step::Wait(5000));
        let kept = World::holdings(&world.ledger);
        world.begin();
        prop_assert_eq!(kept, World::holdings(&world.ledger));
    }
}
