//! Who holds what, and until when: the truth that every answer is made of. Values in, values out: the time comes
//! with each call, what has to be told to others comes back as [`Notice`]s. Never talks to a cluster and never
//! decides which cards fit: the first is `view`'s and `bind`'s, the second the engine's.
//!
//! A pod is *reserved* from its filter to its binding, *bound* from then until it ends. What a bound pod holds is
//! never taken back by anything but its end; what a reserved pod holds goes back when the reservation is replaced,
//! the pod turns out to be unschedulable after all, its binding is refused, it is deleted, or nobody asks for so long
//! that the reservation expires. While it is not known what became of a binding, the reservation stands as if bound.

mod claims;
mod compute;
mod nodes;
mod nominated;
mod pods;
mod read;
mod unplaced;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube_api::object::{Node, Pod, ResourceQuota};
use kube_api::vendor::Vendors;
use placement::{Among, Cluster, Misfit, NodeMisfit, Placement, Remembered, Request};

use self::claims::Claims;
pub use self::claims::{CLAIM_UID, ClaimAsk, Held, NotClaimed, Past};
use self::compute::ComputeQuotas;
pub use self::compute::{QuotaUse, QuotaView};
use self::nominated::Nominated;
pub use self::read::{identity, named, uid_of};
use self::read::{main_reason, still_fits, unscheduled, version_of};
use self::unplaced::Unplaced;

/// How long a pod that fits nowhere is shown as waiting when nobody asks for it again. kube-scheduler asks for every
/// pending pod at least each five minutes.
const WAITING_IS_SHOWN: Duration = Duration::from_secs(900);

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
    /// What the pods that wait have been told already.
    remembered: Remembered,
    holders: HashMap<Arc<str>, LedgerEntry>,
    waiting: HashMap<Arc<str>, Waiting>,
    /// Pods for which room was made by preemption.
    nominated: BTreeMap<Arc<str>, Nominated>,
    /// Pods that kube-scheduler has found no node for.
    unplaced: HashMap<Arc<str>, Unplaced>,
    /// When a node last had more slots than before, and which.
    more_slots: Option<(Duration, Arc<str>)>,
    /// Nodes as they were last told, as far as reports are read of them.
    nodes: HashMap<Arc<str>, Arc<Node>>,
    /// Pods whose annotations cannot be read or do not count, so that each is told of once.
    broken_pods: HashSet<Arc<str>>,
    /// Nodes of which something cannot be read.
    broken_nodes: HashSet<Arc<str>>,
    quotas: BTreeMap<(String, String), ResourceQuota>,
    /// Reservations by label.
    claims: Claims,
    compute: ComputeQuotas,
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
    /// The kubelet counts more slots than before, and kube-scheduler has found no node for some pods.
    MoreSlots {
        /// Name of the node.
        node: Arc<str>,
    },
}

#[derive(Debug)]
enum LedgerEntry {
    Reserved(Box<Reserved>),
    Bound {
        /// When that was said last.
        since: Duration,
        /// Who may evict it.
        priority: i32,
        /// What kube-scheduler counts of it. Pods of one kind share it.
        counted: Counted,
        /// Whether it is being deleted.
        leaving: bool,
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
    /// Until when an earlier binding may still happen.
    doubted_until: Option<Duration>,
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
    /// Nobody knows what became of it. After `until` it cannot happen any more, but it may have happened: a list that
    /// began later says which.
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
    /// The namespace's ComputeQuota does not allow what the pod would hold: why.
    OverQuota(String),
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
    /// The namespace's ComputeQuota does not allow what the pod would hold: why.
    OverQuota(String),
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
            remembered: Remembered::default(),
            holders: HashMap::new(),
            waiting: HashMap::new(),
            nominated: BTreeMap::new(),
            unplaced: HashMap::new(),
            more_slots: None,
            nodes: HashMap::new(),
            broken_pods: HashSet::new(),
            broken_nodes: HashSet::new(),
            quotas: BTreeMap::new(),
            claims: Claims::default(),
            compute: ComputeQuotas::default(),
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
            LedgerEntry::Reserved(reserved) => Some(Arc::clone(&reserved.pod)),
            LedgerEntry::Bound { .. } => None,
        }
    }

    /// The priority of a pod that is bound, and what kube-scheduler counts of it.
    pub fn bound_pod(&self, uid: &str) -> Option<(i32, &Counted)> {
        match self.holders.get(uid)? {
            LedgerEntry::Bound {
                priority, counted, ..
            } => Some((*priority, counted)),
            LedgerEntry::Reserved(_) => None,
        }
    }

    /// The vendors whose devices it counts.
    pub fn vendors(&self) -> &Arc<Vendors> {
        &self.vendors
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
        self.note_asking(pod);
        let kept = self.keep_room(request, pod);
        self.lift_claims_of(&request.pod.uid);
        let outcome = self
            .cluster
            .place_again(request, among, &mut self.remembered);
        self.settle_claims_of(&request.pod.uid);
        self.give_room_back(kept);
        match outcome {
            Ok(placement) => {
                let of = &request.pod;
                if let Some(why) = self.over_compute_quota(&of.namespace, &of.uid, pod, &placement)
                {
                    self.refuse(request, &[], now);
                    return Filtered::OverQuota(why);
                }
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
        match self.cluster_for(&request.pod.uid).place(request, among) {
            Ok(placement) => Filtered::Placed(placement),
            Err(misfits) => Filtered::Nowhere(misfits),
        }
    }

    /// The answer for a pod whose node is settled: it is bound, or its binding may still happen.
    fn settled(&self, uid: &str, among: Among<'_>) -> Option<Filtered> {
        let certain = match self.holders.get(uid)? {
            LedgerEntry::Bound { .. } => true,
            LedgerEntry::Reserved(reserved) if reserved.binding != Binding::NotAsked => false,
            LedgerEntry::Reserved(_) => return None,
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
        self.count_compute(&request.pod.namespace, &uid, pod, &placement);
        let before = self.cluster.reserve(request.pod.clone(), placement);
        self.settle_claims_of(&uid);
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
            doubted_until: None,
        };
        self.holders
            .insert(uid, LedgerEntry::Reserved(Box::new(reserved)));
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
            Some(LedgerEntry::Bound { .. }) => match held {
                Some(held) if *held.node != *node => Begun::Elsewhere {
                    node: Arc::clone(&held.node),
                },
                _ => Begun::Done,
            },
            Some(LedgerEntry::Reserved(reserved)) => match (reserved.binding, held) {
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
        self.note_asking(pod);
        self.lift_claims_of(&request.pod.uid);
        let outcome = self.cluster.place_on(request, node);
        self.settle_claims_of(&request.pod.uid);
        match outcome {
            Ok(placement) => {
                let of = &request.pod;
                if let Some(why) = self.over_compute_quota(&of.namespace, &of.uid, pod, &placement)
                {
                    self.refuse(request, &[], now);
                    return Ok(Begun::OverQuota(why));
                }
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
        if let Some(LedgerEntry::Reserved(reserved)) = self.holders.get(uid) {
            let pod = Arc::clone(&reserved.pod);
            self.settle(&pod, uid, now);
        }
    }

    /// The binding was refused, or never sent: what the pod held is free, unless an earlier binding may still happen.
    pub fn bind_refused(&mut self, uid: &str) {
        if let Some(LedgerEntry::Reserved(reserved)) = self.holders.get_mut(uid)
            && let Some(until) = reserved.doubted_until.filter(|until| *until > self.latest)
        {
            reserved.binding = Binding::InDoubt { until };
            return;
        }
        let under_way = matches!(self.holders.get(uid), Some(LedgerEntry::Reserved(reserved)) if reserved.binding != Binding::NotAsked);
        if under_way && let Some(node) = self.release(uid) {
            self.freed(node);
        }
    }

    /// The binding was refused because the pod is bound already, as `pod` shows it: it has what is written there, not
    /// what was reserved.
    pub fn bound_otherwise(&mut self, pod: &Pod, now: Duration) {
        let uid = uid_of(pod);
        if let Some(LedgerEntry::Reserved(reserved)) = self.holders.get_mut(&uid) {
            reserved.binding = Binding::NotAsked;
        }
        self.set_pod(pod, now);
    }

    /// Nobody knows what became of the binding: the pod holds what it holds until the cluster tells. Time alone ends no
    /// doubt, since the watch may be silent about what has long happened; kube-scheduler asks again for a pod that it
    /// could not bind, and is answered with the same node.
    pub fn bind_in_doubt(&mut self, uid: &str, now: Duration) {
        if let Some(LedgerEntry::Reserved(reserved)) = self.holders.get_mut(uid) {
            let until = now.saturating_add(BINDING_MAY_LAND);
            reserved.binding = Binding::InDoubt { until };
            reserved.doubted_until = Some(until);
        }
    }

    /// Takes back what a filter gave, because it could not be written down.
    pub fn undo(&mut self, uid: &str) {
        let unbound = matches!(self.holders.get(uid), Some(LedgerEntry::Reserved(reserved)) if reserved.binding == Binding::NotAsked);
        if unbound && let Some(node) = self.release(uid) {
            self.freed(node);
        }
    }

    /// Lets go of every reservation that is not being bound: another replica answers from here on.
    pub fn forget_unbound(&mut self) {
        let unbound: Vec<Arc<str>> = self
            .holders
            .iter()
            .filter(|(_, holder)| matches!(holder, LedgerEntry::Reserved(reserved) if reserved.binding == Binding::NotAsked))
            .map(|(uid, _)| Arc::clone(uid))
            .collect();
        for uid in unbound {
            self.release(&uid);
        }
        self.waiting.clear();
    }

    /// Lets go of what is held for too long.
    pub fn expire(&mut self, now: Duration) {
        self.latest = self.latest.max(now);
        self.lapse(now);
        while let Some((deadline, uid)) = self.deadlines.first().cloned() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            let Some(LedgerEntry::Reserved(reserved)) = self.holders.get_mut(&uid) else {
                continue;
            };
            let again = match reserved.binding {
                Binding::NotAsked => None,
                // Whoever sent it comes back with an answer or with a doubt, and a doubt ends by what the cluster
                // tells.
                Binding::UnderWay | Binding::InDoubt { .. } => {
                    Some(now.saturating_add(BINDING_MAY_LAND))
                }
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
        let held = self.cluster.release(uid);
        self.settle_claims_of(uid);
        self.forget_asking(uid);
        let held = held?;
        self.compute.forget(&held.pod.namespace, uid);
        Some(held.placement.node)
    }

    fn drop_deadline(&mut self, uid: &str) {
        if let Some((uid, LedgerEntry::Reserved(reserved))) = self.holders.get_key_value(uid) {
            self.deadlines.remove(&(reserved.deadline, Arc::clone(uid)));
        }
    }
}
