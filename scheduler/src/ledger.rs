//! Who holds what, and until when: the truth that every answer is made of. Values in, values out: the time comes
//! with each call, what has to be told to others comes back as [`Notice`]s. Never talks to a cluster and never
//! decides which cards fit: the first is `view`'s and `bind`'s, the second the engine's.
//!
//! A pod is *reserved* from its filter to its binding, *bound* from then until it ends. What a bound pod holds is
//! never taken back by anything but its end; what a reserved pod holds goes back when the reservation is replaced,
//! the pod turns out to be unschedulable after all, its binding is refused, it is deleted, or nobody asks for so long
//! that the reservation expires. While it is not known what became of a binding, the reservation stands as if bound.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube_api::allocation::AllocationError;
use kube_api::node::{report, same_report};
use kube_api::object::{Container, Node, Pod, ResourceQuota};
use kube_api::vendor::Vendors;
use kube_api::{allocation, quota};
use placement::{Among, Cluster, Misfit, NodeMisfit, Placement, Request, Reservation};

/// How long a pod that fits nowhere is shown as waiting when nobody asks for it again. kube-scheduler asks for every
/// pending pod at least each five minutes.
const WAITING_IS_SHOWN: Duration = Duration::from_secs(900);

/// How many kinds of pods share what they are counted with; above, it is forgotten what was shared.
const MOST_COUNTED: usize = 1024;

/// How far our watch of the API server may be behind kube-scheduler's.
const WATCH_IS_BEHIND: Duration = Duration::from_secs(5);

const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How long after the last answer about a binding it may still happen: an API server gives up a request after 60 s.
const BINDING_MAY_LAND: Duration = Duration::from_secs(90);

/// How much longer than its last try the next try of a pod may take whose failing nobody would tell.
const TRY_MAY_VARY: Duration = Duration::from_secs(1);

/// All that is held and by whom. Times are durations since any fixed moment, the same for all calls.
#[derive(Debug)]
pub struct Ledger {
    cluster: Cluster,
    holders: HashMap<Arc<str>, Holder>,
    waiting: HashMap<Arc<str>, Waiting>,
    /// Nodes as they were last told, as far as reports are read of them.
    nodes: HashMap<Arc<str>, Arc<Node>>,
    /// Pods whose annotations cannot be read or do not count, so that each is told of once.
    broken_pods: HashSet<Arc<str>>,
    /// Nodes of which something cannot be read.
    broken_nodes: HashSet<Arc<str>>,
    quotas: BTreeMap<(String, String), ResourceQuota>,
    /// What pods are counted with, each once.
    counted: HashSet<Counted>,
    /// Pods whose last try failed after a filter had chosen a node.
    tried: HashMap<Arc<str>, Tried>,
    deadlines: BTreeSet<(Duration, Arc<str>)>,
    /// The latest time that anybody told.
    latest: Duration,
    /// When a pod was refused last.
    refused: Option<Duration>,
    /// When waiting pods were last looked at for whether anybody still asks for them.
    swept: Duration,
    notices: Vec<Notice>,
    vendors: Arc<Vendors>,
    reservation_timeout: Duration,
}

/// Something that somebody outside should hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// What a pod's annotations say cannot be read, or does not count.
    PodBroken {
        /// Namespace, name and uid.
        pod: placement::Pod,
        /// What is wrong, and what that means.
        problem: String,
    },
    /// What a node reports cannot be read.
    NodeBroken {
        /// Name of the node.
        node: String,
        /// What is wrong, and what that means.
        problem: String,
    },
    /// A quota has a line that cannot be read.
    QuotaBroken {
        /// Namespace of the quota.
        namespace: String,
        /// Name of the quota.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A reservation was given up because nobody bound it in time.
    Expired {
        /// Whose it was.
        pod: placement::Pod,
        /// Where it lay.
        node: Arc<str>,
    },
    /// A reservation was given up because its pod could not be scheduled, or is gone.
    GivenBack,
    /// Capacity came back without an event that kube-scheduler acts on, and pods wait for some.
    Freed {
        /// Name of the node.
        node: Arc<str>,
    },
}

#[derive(Debug)]
enum Holder {
    Reserved(Box<Reserved>),
    Bound {
        /// When that was said last.
        since: Duration,
        /// Who may evict it.
        priority: i32,
        /// What kube-scheduler counts of it. Pods of one kind share it.
        counted: Counted,
    },
}

/// Amounts by resource, in thousandths, as kube-scheduler counts them.
pub type Counted = Arc<[(Box<str>, i128)]>;

#[derive(Debug)]
struct Reserved {
    pod: Arc<Pod>,
    since: Duration,
    deadline: Duration,
    /// The version of the pod as it was asked for.
    version: Option<u64>,
    /// Its `PodScheduled` condition as it was asked for.
    condition: Option<u64>,
    binding: Binding,
}

/// A try that failed before bind, most often because a volume was not bound in time.
#[derive(Debug, Clone, Copy)]
struct Tried {
    lasted: Duration,
    /// The `PodScheduled` condition that told of it.
    condition: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binding {
    NotAsked,
    UnderWay,
    /// Nobody knows what became of it; after `until` it has not happened.
    InDoubt {
        until: Duration,
    },
}

/// A pod that was asked for and fits nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Namespace and name.
    pub pod: placement::Pod,
    /// The reason that most nodes have, in the reference's words.
    pub reason: &'static str,
    /// When it was asked for last.
    pub since: Duration,
}

/// What became of a question for a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Filtered {
    /// The pod goes here, and holds it.
    Placed(Placement),
    /// Why it fits nowhere, by name of node.
    Nowhere(Vec<NodeMisfit>),
    /// The pod is bound to that node, or may be: nothing else can be answered yet.
    Elsewhere {
        /// Name of the node.
        node: Arc<str>,
        /// Whether it is certain.
        certain: bool,
    },
}

/// Where a binding begins.
#[derive(Debug, Clone)]
pub enum Begun {
    /// This is what the pod holds: write it.
    Go {
        /// The pod as it was asked for.
        pod: Arc<Pod>,
        /// What it holds.
        placement: Placement,
    },
    /// It holds nothing on that node: it has to be fitted there first, with [`Ledger::begin_bind_anew`].
    NotReserved,
    /// Somebody binds it already.
    UnderWay,
    /// It is bound there already.
    Done,
    /// It is bound to another node.
    Elsewhere {
        /// Name of the node.
        node: Arc<str>,
    },
}

impl Ledger {
    /// Nothing is there, nobody holds anything. A reservation that nobody binds expires after `reservation_timeout`.
    pub fn new(vendors: Arc<Vendors>, reservation_timeout: Duration) -> Self {
        Self {
            cluster: Cluster::new(),
            holders: HashMap::new(),
            waiting: HashMap::new(),
            nodes: HashMap::new(),
            broken_pods: HashSet::new(),
            broken_nodes: HashSet::new(),
            quotas: BTreeMap::new(),
            counted: HashSet::new(),
            tried: HashMap::new(),
            deadlines: BTreeSet::new(),
            latest: Duration::ZERO,
            refused: None,
            swept: Duration::ZERO,
            notices: Vec::new(),
            vendors,
            reservation_timeout,
        }
    }

    /// What there is and what is held of it.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The pods that were asked for and fit nowhere, in no order.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &Waiting> {
        self.waiting.values()
    }

    /// How many pods hold something without being bound.
    pub fn reserved(&self) -> usize {
        self.deadlines.len()
    }

    /// The pod as it was asked for, while it is reserved and not bound.
    pub fn reserved_pod(&self, uid: &str) -> Option<Arc<Pod>> {
        match self.holders.get(uid)? {
            Holder::Reserved(reserved) => Some(Arc::clone(&reserved.pod)),
            Holder::Bound { .. } => None,
        }
    }

    /// The priority of a pod that is bound, and what kube-scheduler counts of it.
    pub fn bound_pod(&self, uid: &str) -> Option<(i32, &Counted)> {
        match self.holders.get(uid)? {
            Holder::Bound {
                priority, counted, ..
            } => Some((*priority, counted)),
            Holder::Reserved(_) => None,
        }
    }

    /// Whether the node is known, with or without devices.
    pub fn knows_node(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    /// All nodes as they were last told, without what no report is read of.
    pub fn nodes(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Node>)> {
        self.nodes.iter()
    }

    /// The quotas that limit devices.
    pub fn quotas(&self) -> impl Iterator<Item = &ResourceQuota> {
        self.quotas.values()
    }

    /// How many nodes, and how many pods, have something that cannot be read or does not count.
    pub fn broken(&self) -> (usize, usize) {
        (self.broken_nodes.len(), self.broken_pods.len())
    }

    /// What others should hear of since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Chooses a node for the pod and lets it hold what it gets there, in place of what it held. Where it fits
    /// nowhere, it holds nothing any more.
    pub fn filter(
        &mut self,
        request: &Request,
        pod: &Arc<Pod>,
        among: Among<'_>,
        now: Duration,
    ) -> Filtered {
        self.expire(now);
        if let Some(answer) = self.settled(&request.pod.uid, among) {
            return answer;
        }
        match self.cluster.place(request, among) {
            Ok(placement) => {
                self.reserve(request, pod, placement.clone(), Binding::NotAsked, now);
                Filtered::Placed(placement)
            }
            Err(misfits) => {
                self.refuse(request, &misfits, now);
                Filtered::Nowhere(misfits)
            }
        }
    }

    /// The same answer, and nothing is held.
    pub fn consider(&self, request: &Request, among: Among<'_>) -> Filtered {
        if let Some(answer) = self.settled(&request.pod.uid, among) {
            return answer;
        }
        match self.cluster.place(request, among) {
            Ok(placement) => Filtered::Placed(placement),
            Err(misfits) => Filtered::Nowhere(misfits),
        }
    }

    /// The answer for a pod whose node is settled: it is bound, or its binding may still happen.
    fn settled(&self, uid: &str, among: Among<'_>) -> Option<Filtered> {
        let certain = match self.holders.get(uid)? {
            Holder::Bound { .. } => true,
            Holder::Reserved(reserved) if reserved.binding != Binding::NotAsked => false,
            Holder::Reserved(_) => return None,
        };
        let held = &self.cluster.reservation(uid)?.placement;
        let asked = match among {
            Among::All => true,
            Among::Names(names) => names.contains(&&*held.node),
        };
        Some(if asked {
            Filtered::Placed(held.clone())
        } else {
            Filtered::Elsewhere {
                node: Arc::clone(&held.node),
                certain,
            }
        })
    }

    fn reserve(
        &mut self,
        request: &Request,
        pod: &Arc<Pod>,
        placement: Placement,
        binding: Binding,
        now: Duration,
    ) {
        let uid: Arc<str> = request.pod.uid.as_str().into();
        self.waiting.remove(&uid);
        self.drop_deadline(&uid);
        let node = Arc::clone(&placement.node);
        let before = self.cluster.reserve(request.pod.clone(), placement);
        if let Some(before) = before.filter(|before| before.placement.node != node) {
            self.freed(before.placement.node);
        }
        let condition = unscheduled(pod);
        // kube-scheduler writes the condition when it changes: of a try that fails as the one before did, nobody hears.
        // What takes longer than that one finds out at bind whether its place is still free.
        let lasts = match self.tried.get(&uid) {
            Some(tried) if condition.is_some() && tried.condition == condition => {
                let lasts = tried.lasted.saturating_add(TRY_MAY_VARY);
                lasts.min(self.reservation_timeout)
            }
            _ => self.reservation_timeout,
        };
        let deadline = now.saturating_add(lasts);
        self.deadlines.insert((deadline, Arc::clone(&uid)));
        let reserved = Reserved {
            version: version_of(pod),
            condition,
            pod: Arc::clone(pod),
            since: now,
            deadline,
            binding,
        };
        self.holders
            .insert(uid, Holder::Reserved(Box::new(reserved)));
    }

    fn refuse(&mut self, request: &Request, misfits: &[NodeMisfit], now: Duration) {
        self.refused = Some(now);
        let waiting = Waiting {
            pod: request.pod.clone(),
            reason: main_reason(misfits),
            since: now,
        };
        let uid: Arc<str> = request.pod.uid.as_str().into();
        if let Some(node) = self.release(&uid) {
            self.freed(node);
        }
        self.waiting.insert(uid, waiting);
    }

    /// Begins to bind the pod to the node by what it holds there.
    pub fn begin_bind(&mut self, uid: &str, node: &str, now: Duration) -> Begun {
        self.expire(now);
        let held = self.cluster.reservation(uid).map(|held| &held.placement);
        match self.holders.get_mut(uid) {
            None => Begun::NotReserved,
            Some(Holder::Bound { .. }) => match held {
                Some(held) if *held.node != *node => Begun::Elsewhere {
                    node: Arc::clone(&held.node),
                },
                _ => Begun::Done,
            },
            Some(Holder::Reserved(reserved)) => match (reserved.binding, held) {
                (Binding::UnderWay, _) => Begun::UnderWay,
                // Somebody else took what was promised, or a card is no more what it was.
                (Binding::NotAsked, Some(held)) if !still_fits(&self.cluster, held) => {
                    Begun::NotReserved
                }
                (_, Some(held)) if *held.node == *node => {
                    reserved.binding = Binding::UnderWay;
                    Begun::Go {
                        pod: Arc::clone(&reserved.pod),
                        placement: held.clone(),
                    }
                }
                (Binding::InDoubt { .. }, Some(held)) => Begun::Elsewhere {
                    node: Arc::clone(&held.node),
                },
                _ => Begun::NotReserved,
            },
        }
    }

    /// Fits the pod on the node, lets it hold that, and begins to bind it.
    ///
    /// # Errors
    ///
    /// Why it does not fit there; what it held elsewhere it holds no more.
    pub fn begin_bind_anew(
        &mut self,
        request: &Request,
        pod: &Arc<Pod>,
        node: &str,
        now: Duration,
    ) -> Result<Begun, Misfit> {
        // Somebody may have been faster while the pod was read.
        match self.begin_bind(&request.pod.uid, node, now) {
            Begun::NotReserved => {}
            other => return Ok(other),
        }
        match self.cluster.place_on(request, node) {
            Ok(placement) => {
                self.reserve(request, pod, placement.clone(), Binding::UnderWay, now);
                Ok(Begun::Go {
                    pod: Arc::clone(pod),
                    placement,
                })
            }
            Err(misfit) => {
                if let Some(node) = self.release(&request.pod.uid) {
                    self.freed(node);
                }
                Err(misfit)
            }
        }
    }

    /// The binding has happened.
    pub fn bound(&mut self, uid: &str, now: Duration) {
        if let Some(Holder::Reserved(reserved)) = self.holders.get(uid) {
            let pod = Arc::clone(&reserved.pod);
            self.settle(&pod, uid, now);
        }
    }

    /// The binding was refused: what the pod held is free.
    pub fn bind_refused(&mut self, uid: &str) {
        let under_way = matches!(self.holders.get(uid), Some(Holder::Reserved(reserved)) if reserved.binding != Binding::NotAsked);
        if under_way && let Some(node) = self.release(uid) {
            self.freed(node);
        }
    }

    /// The binding was refused because the pod is bound already, as `pod` shows it: it has what is written there, not
    /// what was reserved.
    pub fn bound_otherwise(&mut self, pod: &Pod, now: Duration) {
        let uid = uid_of(pod);
        if let Some(Holder::Reserved(reserved)) = self.holders.get_mut(&uid) {
            reserved.binding = Binding::NotAsked;
        }
        self.set_pod(pod, now);
    }

    /// Nobody knows what became of the binding: the pod holds what it holds until the cluster tells, or until it is
    /// too late for it to happen.
    pub fn bind_in_doubt(&mut self, uid: &str, now: Duration) {
        if let Some(Holder::Reserved(reserved)) = self.holders.get_mut(uid) {
            reserved.binding = Binding::InDoubt {
                until: now.saturating_add(BINDING_MAY_LAND),
            };
        }
    }

    /// Takes back what a filter gave, because it could not be written down.
    pub fn undo(&mut self, uid: &str) {
        let unbound = matches!(self.holders.get(uid), Some(Holder::Reserved(reserved)) if reserved.binding == Binding::NotAsked);
        if unbound && let Some(node) = self.release(uid) {
            self.freed(node);
        }
    }

    /// Lets go of every reservation that is not being bound: another replica answers from here on.
    pub fn forget_unbound(&mut self) {
        let unbound: Vec<Arc<str>> = self
            .holders
            .iter()
            .filter(|(_, holder)| matches!(holder, Holder::Reserved(reserved) if reserved.binding == Binding::NotAsked))
            .map(|(uid, _)| Arc::clone(uid))
            .collect();
        for uid in unbound {
            self.release(&uid);
        }
        self.waiting.clear();
    }

    /// Lets go of what is held for too long, and of doubts that are over.
    pub fn expire(&mut self, now: Duration) {
        self.latest = self.latest.max(now);
        while let Some((deadline, uid)) = self.deadlines.first().cloned() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            let Some(Holder::Reserved(reserved)) = self.holders.get_mut(&uid) else {
                continue;
            };
            let again = match reserved.binding {
                Binding::NotAsked => None,
                // Whoever sent it comes back with an answer or with a doubt.
                Binding::UnderWay => Some(now.saturating_add(BINDING_MAY_LAND)),
                Binding::InDoubt { until } if until > now => Some(until),
                Binding::InDoubt { .. } => None,
            };
            match again {
                Some(again) => {
                    reserved.deadline = again;
                    self.deadlines.insert((again, uid));
                }
                None => {
                    let pod = self.cluster.reservation(&uid).map(|held| held.pod.clone());
                    if let Some(node) = self.release(&uid) {
                        if let Some(pod) = pod {
                            let node = Arc::clone(&node);
                            self.notices.push(Notice::Expired { pod, node });
                        }
                        self.freed(node);
                    }
                }
            }
        }
        if now.saturating_sub(self.swept) > SWEEP_EVERY {
            self.swept = now;
            self.waiting
                .retain(|_, waiting| now.saturating_sub(waiting.since) < WAITING_IS_SHOWN);
        }
    }

    /// A pod as the API server has it.
    pub fn set_pod(&mut self, pod: &Pod, now: Duration) {
        let uid = uid_of(pod);
        if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            self.remove_pod(&uid);
            return;
        }
        if pod.spec.node_name.is_empty() {
            self.set_unbound(pod, &uid, now);
        } else {
            self.set_bound(pod, &uid, now);
        }
    }

    /// A pod without a node holds only what a filter gave it, whatever its annotations say.
    fn set_unbound(&mut self, pod: &Pod, uid: &str, now: Duration) {
        if pod.metadata.deletion_timestamp.is_some() {
            self.waiting.remove(uid);
        }
        let Some(Holder::Reserved(reserved)) = self.holders.get(uid) else {
            return;
        };
        if reserved.binding != Binding::NotAsked {
            return;
        }
        // The API server does not bind what is being deleted.
        let leaves = pod.metadata.deletion_timestamp.is_some();
        let later = match (version_of(pod), reserved.version) {
            (Some(told), Some(asked)) => told > asked,
            _ => true,
        };
        let condition = unscheduled(pod);
        let failed = later && condition.is_some() && condition != reserved.condition;
        if failed {
            let lasted = now.saturating_sub(reserved.since);
            self.tried.insert(uid.into(), Tried { lasted, condition });
        }
        if (leaves || failed)
            && let Some(node) = self.release(uid)
        {
            self.notices.push(Notice::GivenBack);
            self.freed(node);
        }
    }

    /// What a pod with a node holds is read of it once: when it is first seen there. What its annotations say later
    /// counts no more, or whoever may write them could shrink or move what the pod holds.
    fn set_bound(&mut self, pod: &Pod, uid: &str, now: Duration) {
        self.waiting.remove(uid);
        self.tried.remove(uid);
        let node: &str = &pod.spec.node_name;
        let said = allocation::read(pod, &self.vendors);
        if self.is_settled(uid, node) {
            self.check_unchanged(pod, uid, &said);
            self.settle(pod, uid, now);
        } else {
            match said {
                Ok(Some(mut placement)) => {
                    // Its annotations may name another node than the one that it runs on.
                    placement.node = node.into();
                    self.drop_deadline(uid);
                    let before = self.cluster.reserve(identity(pod, uid), placement);
                    if let Some(before) = before.filter(|before| *before.placement.node != *node) {
                        self.freed(before.placement.node);
                    }
                    self.settle(pod, uid, now);
                }
                Ok(None) => self.let_go(uid),
                Err(problem) => {
                    self.let_go(uid);
                    self.tell_broken(
                        pod,
                        uid,
                        &format!("{problem}; the pod counts as holding nothing"),
                    );
                }
            }
        }
        self.set_initialised(pod, uid);
    }

    /// Whether it is known what the pod holds on that node: it was seen there before, or bound there from here.
    fn is_settled(&self, uid: &str, node: &str) -> bool {
        let asked = match self.holders.get(uid) {
            Some(Holder::Bound { .. }) => true,
            Some(Holder::Reserved(reserved)) => reserved.binding != Binding::NotAsked,
            None => false,
        };
        asked
            && self
                .cluster
                .reservation(uid)
                .is_some_and(|held| *held.placement.node == *node)
    }

    fn settle(&mut self, pod: &Pod, uid: &str, now: Duration) {
        self.drop_deadline(uid);
        let bound = Holder::Bound {
            since: now,
            priority: pod.spec.priority.unwrap_or_default(),
            counted: self.count(pod),
        };
        match self.holders.get_mut(uid) {
            Some(holder) => *holder = bound,
            None => drop(self.holders.insert(uid.into(), bound)),
        }
    }

    fn count(&mut self, pod: &Pod) -> Counted {
        let counted = counted(pod);
        if let Some(known) = self.counted.get(&*counted) {
            return Arc::clone(known);
        }
        if self.counted.len() >= MOST_COUNTED {
            self.counted.clear();
        }
        let counted: Counted = counted.into();
        self.counted.insert(Arc::clone(&counted));
        counted
    }

    fn let_go(&mut self, uid: &str) {
        if let Some(node) = self.release(uid) {
            self.freed(node);
        }
    }

    fn check_unchanged(
        &mut self,
        pod: &Pod,
        uid: &str,
        said: &Result<Option<Placement>, AllocationError>,
    ) {
        let Some(held) = self.cluster.reservation(uid) else {
            return;
        };
        match said {
            Ok(Some(said)) if shares(said) == shares(&held.placement) => {
                self.broken_pods.remove(uid);
            }
            Ok(Some(_)) => self.tell_broken(
                pod,
                uid,
                "the annotations say something else than what the pod was given; it counts with what it was given",
            ),
            Ok(None) => self.tell_broken(
                pod,
                uid,
                "the annotations say no more what the pod was given; it counts with what it was given",
            ),
            Err(problem) => self.tell_broken(
                pod,
                uid,
                &format!("{problem}; the pod counts with what it was given"),
            ),
        }
    }

    fn tell_broken(&mut self, pod: &Pod, uid: &str, problem: &str) {
        if self.broken_pods.insert(uid.into()) {
            self.notices.push(Notice::PodBroken {
                pod: identity(pod, uid),
                problem: problem.to_owned(),
            });
        }
    }

    fn set_initialised(&mut self, pod: &Pod, uid: &str) {
        let held = self.cluster.reservation(uid);
        if held.is_none_or(|held| held.initialised) || !initialised(pod) {
            return;
        }
        let load = |ledger: &Self| ledger.cluster.reservation(uid).map(Reservation::load);
        let before = load(self);
        self.cluster.initialised(uid);
        if load(self) != before {
            self.freed(pod.spec.node_name.as_str().into());
        }
    }

    /// The pod is gone.
    pub fn remove_pod(&mut self, uid: &str) {
        self.waiting.remove(uid);
        self.tried.remove(uid);
        self.broken_pods.remove(uid);
        let reserved = matches!(self.holders.get(uid), Some(Holder::Reserved(_)));
        let Some(node) = self.release(uid) else {
            return;
        };
        if reserved {
            self.notices.push(Notice::GivenBack);
            self.freed(node);
        } else {
            self.freed_by_event(node);
        }
    }

    /// A list of all pods is complete that began at `began`: who is not in it, is not there.
    pub fn keep_pods(&mut self, listed: &HashSet<Arc<str>>, began: Duration) {
        let gone: Vec<Arc<str>> = self
            .holders
            .iter()
            .filter(|(uid, _)| !listed.contains(*uid))
            .filter(|(_, holder)| match holder {
                Holder::Bound { since, .. } => *since < began,
                Holder::Reserved(reserved) => {
                    reserved.since < began && reserved.binding != Binding::UnderWay
                }
            })
            .map(|(uid, _)| Arc::clone(uid))
            .collect();
        for uid in gone {
            self.remove_pod(&uid);
        }
        self.waiting
            .retain(|uid, waiting| listed.contains(uid) || waiting.since >= began);
        self.tried.retain(|uid, _| listed.contains(uid));
    }

    /// Whether anything is known of the pod.
    pub fn knows_pod(&self, uid: &str) -> bool {
        self.holders.contains_key(uid) || self.waiting.contains_key(uid)
    }

    /// A node as the API server has it. One whose devices are as before costs a comparison.
    pub fn set_node(&mut self, node: Node) {
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        let node = Arc::new(slim(node));
        if let Some(before) = self.nodes.get_mut(&name)
            && same_report(before, &node, &self.vendors)
        {
            *before = node;
            return;
        }
        let said = report(&node, &self.vendors);
        let mut problems: Vec<String> = said
            .problems
            .iter()
            .map(|problem| {
                format!(
                    "{problem}; until it is written anew, the node has no devices of that vendor"
                )
            })
            .collect();
        if said.node.devices.is_empty() {
            self.cluster.remove_node(&name);
        } else if let Err(problem) = self.cluster.set_node(said.node) {
            self.cluster.remove_node(&name);
            problems.push(format!(
                "{problem}; until it is written anew, the node takes no pods that ask for devices"
            ));
        }
        if problems.is_empty() {
            self.broken_nodes.remove(&name);
        } else {
            self.broken_nodes.insert(Arc::clone(&name));
        }
        for problem in problems {
            self.notices.push(Notice::NodeBroken {
                node: name.to_string(),
                problem,
            });
        }
        self.nodes.insert(Arc::clone(&name), node);
        if self.cluster.node(&name).is_some() {
            self.freed_by_event(name);
        }
    }

    /// The node is gone. What pods hold there is held for when it returns.
    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.broken_nodes.remove(name);
        self.cluster.remove_node(name);
    }

    /// A list of all nodes is complete: which is not in it, is not there.
    pub fn keep_nodes(&mut self, listed: &HashSet<Arc<str>>) {
        let gone: Vec<Arc<str>> = self
            .nodes
            .keys()
            .filter(|name| !listed.contains(*name))
            .cloned()
            .collect();
        for name in gone {
            self.remove_node(&name);
        }
    }

    /// A quota as the API server has it.
    pub fn set_quota(&mut self, quota: &ResourceQuota) {
        let (namespace, name) = named(quota);
        let (limits, problems) = quota::limits(quota, &self.vendors);
        for problem in problems {
            self.notices.push(Notice::QuotaBroken {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                problem: format!("{problem}; the line limits nothing"),
            });
        }
        self.cluster.set_quota(namespace, name, &limits);
        if limits.is_empty() {
            self.quotas.remove(&(namespace.to_owned(), name.to_owned()));
        } else {
            let mut kept = quota.clone();
            kept.metadata.managed_fields = None;
            self.quotas
                .insert((namespace.to_owned(), name.to_owned()), kept);
        }
        self.quota_changed(namespace);
    }

    /// The quota is gone.
    pub fn remove_quota(&mut self, namespace: &str, name: &str) {
        self.cluster.remove_quota(namespace, name);
        self.quotas.remove(&(namespace.to_owned(), name.to_owned()));
        self.quota_changed(namespace);
    }

    /// kube-scheduler does not look at quotas: any node's annotation makes it ask again.
    fn quota_changed(&mut self, namespace: &str) {
        let waits = self
            .waiting
            .values()
            .any(|waiting| waiting.pod.namespace == namespace);
        if waits && let Some(node) = self.nodes.keys().min().cloned() {
            self.freed(node);
        }
    }

    /// kube-scheduler has the event, too, and asks again by itself; but it may have asked before our watch had the event,
    /// and then it has been refused and does not ask a second time.
    fn freed_by_event(&mut self, node: Arc<str>) {
        let refused = self.refused.map(|at| at.saturating_add(WATCH_IS_BEHIND));
        if refused.is_some_and(|until| until >= self.latest) {
            self.freed(node);
        }
    }

    fn freed(&mut self, node: Arc<str>) {
        if !self.waiting.is_empty() {
            self.notices.push(Notice::Freed { node });
        }
    }

    /// Takes from the pod all that it holds, and says where that was.
    fn release(&mut self, uid: &str) -> Option<Arc<str>> {
        self.drop_deadline(uid);
        self.holders.remove(uid);
        let held = self.cluster.release(uid)?;
        Some(held.placement.node)
    }

    fn drop_deadline(&mut self, uid: &str) {
        if let Some((uid, Holder::Reserved(reserved))) = self.holders.get_key_value(uid) {
            self.deadlines.remove(&(reserved.deadline, Arc::clone(uid)));
        }
    }
}

/// The uid under which a pod is known; one without gets its namespace and name.
pub fn uid_of(pod: &Pod) -> Arc<str> {
    match pod.metadata.uid.as_deref() {
        Some(uid) if !uid.is_empty() => uid.into(),
        _ => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            format!("{namespace}/{name}").into()
        }
    }
}

/// Who a pod is, to the engine.
pub fn identity(pod: &Pod, uid: &str) -> placement::Pod {
    placement::Pod {
        uid: uid.to_owned(),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
    }
}

/// Namespace and name of a quota.
pub fn named(quota: &ResourceQuota) -> (&str, &str) {
    (
        quota.metadata.namespace.as_deref().unwrap_or_default(),
        quota.metadata.name.as_deref().unwrap_or_default(),
    )
}

/// Whether the init containers that end are over, all well.
fn initialised(pod: &Pod) -> bool {
    let mut ending = pod
        .spec
        .init_containers
        .iter()
        .filter(|container| !container.is_sidecar())
        .peekable();
    ending.peek().is_some()
        && ending.all(|container| {
            pod.status
                .init_container_statuses
                .iter()
                .find(|status| status.name == container.name)
                .and_then(|status| status.state.terminated.as_ref())
                .is_some_and(|ended| ended.exit_code == 0)
        })
}

/// A placement as annotations can say it: container, device, whole MiB, compute.
fn shares(placement: &Placement) -> Vec<(usize, &str, u64, u32)> {
    let containers = placement.containers.iter().enumerate();
    containers
        .flat_map(|(container, granted)| {
            granted.grants.iter().map(move |grant| {
                let mib = grant.memory_bytes.div_ceil(1 << 20);
                (container, &*grant.device, mib, grant.cores)
            })
        })
        .collect()
}

/// Whether every card of the placement is there, takes pods, and has no more promised than it has. Another replica that
/// answered a moment ago, another scheduler, or a pod that was restored may have bound what was reserved here.
fn still_fits(cluster: &Cluster, placement: &Placement) -> bool {
    let Some(node) = cluster.node(&placement.node) else {
        return false;
    };
    let grants = placement.containers.iter().flat_map(|one| &one.grants);
    grants.into_iter().all(|grant| {
        let Some(view) = node.device(&grant.device) else {
            return false;
        };
        let (card, used, instances) = (view.device(), view.used(), view.instances());
        let apart = instances.iter().enumerate().all(|(at, one)| {
            let others = instances.iter().skip(at + 1);
            others
                .into_iter()
                .all(|other| !one.span.overlaps(other.span))
        });
        card.healthy
            && !view.is_in_conflict()
            && apart
            && used.slots <= card.slots
            && used.memory_bytes <= card.memory_bytes
            && (card.is_mig() || card.cores == 0 || used.cores <= card.cores)
    })
}

/// What kube-scheduler counts of a pod: containers that run beside each other together, of those that run before the
/// largest.
fn counted(pod: &Pod) -> Vec<(Box<str>, i128)> {
    let of = |container: &Container| -> Vec<(String, i128)> {
        let needs = &container.resources;
        let names: BTreeSet<&String> = needs.requests.keys().chain(needs.limits.keys()).collect();
        names
            .into_iter()
            .filter_map(|name| {
                let written = needs
                    .requests
                    .get(name)
                    .or_else(|| needs.limits.get(name))?;
                Some((name.clone(), written.parse().ok()?.milli()?))
            })
            .collect()
    };
    let mut sum: BTreeMap<String, i128> = BTreeMap::new();
    let sidecars = pod
        .spec
        .init_containers
        .iter()
        .filter(|one| one.is_sidecar());
    for container in pod.spec.containers.iter().chain(sidecars) {
        for (name, amount) in of(container) {
            let so_far = sum.entry(name).or_default();
            *so_far = so_far.saturating_add(amount);
        }
    }
    for container in pod
        .spec
        .init_containers
        .iter()
        .filter(|one| !one.is_sidecar())
    {
        for (name, amount) in of(container) {
            let so_far = sum.entry(name).or_default();
            *so_far = amount.max(*so_far);
        }
    }
    sum.into_iter()
        .map(|(name, amount)| (name.into_boxed_str(), amount))
        .collect()
}

fn version_of(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_deref()?.parse().ok()
}

/// What tells one "it could not be scheduled" from the next; nothing where that is not said.
fn unscheduled(pod: &Pod) -> Option<u64> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let condition = pod
        .status
        .conditions
        .iter()
        .find(|condition| condition.kind == "PodScheduled" && condition.status == "False")?;
    let mut hasher = DefaultHasher::new();
    condition.reason.hash(&mut hasher);
    condition.message.hash(&mut hasher);
    condition.last_transition_time.hash(&mut hasher);
    Some(hasher.finish())
}

/// The node without what no report is read of: thousands are kept.
fn slim(mut node: Node) -> Node {
    node.metadata.managed_fields = None;
    node.metadata.owner_references = None;
    if let Some(annotations) = &mut node.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    node
}

/// The reason that most nodes have.
fn main_reason(misfits: &[NodeMisfit]) -> &'static str {
    let mut counts: Vec<(&'static str, usize)> = Vec::new();
    for NodeMisfit { misfit, .. } in misfits {
        let code = match misfit {
            Misfit::UnknownNode => continue,
            Misfit::TooFewDevices { .. } => "NodeInsufficientDevice",
            Misfit::Devices { reasons, .. } => reasons
                .iter()
                .next()
                .map_or("NodeInsufficientDevice", |(_, reason)| reason.code()),
        };
        match counts.iter_mut().find(|(of, _)| *of == code) {
            Some((_, count)) => *count += 1,
            None => counts.push((code, 1)),
        }
    }
    counts
        .into_iter()
        .max_by(|(a, one), (b, other)| one.cmp(other).then_with(|| b.cmp(a)))
        .map_or("NoDevices", |(code, _)| code)
}
