//! The scheduler's account of which pod holds which part of which device, and until when. All answers are derived from
//! it. Values in, values out: the time is an argument of each call, and changes that other parts must hear of are
//! returned as [`Notice`]s. `view` and `bind` talk to the cluster, and the placement engine decides which devices fit.
//!
//! A pod is *reserved* from its filter to its binding, and *bound* from then until it ends. A bound pod keeps its
//! devices until it ends. A reserved pod loses them when the reservation is replaced, the pod turns out to be
//! unschedulable, its binding is refused, it is deleted, or the reservation expires because there is no further call
//! for it. While the outcome of a binding is unknown, the reservation stays as if the pod were bound.

mod accounts;
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

use self::accounts::Accounts;
pub use self::accounts::{AccountKey, AccountView, Amounts};
use self::claims::Claims;
pub use self::claims::{CLAIM_UID, ClaimAsk, Held, NotClaimed, Past};
use self::compute::ComputeQuotas;
pub use self::compute::{QuotaUse, QuotaView};
use self::nominated::Nominated;
pub use self::read::{identity, named, uid_of};
use self::read::{main_reason, still_fits, unscheduled, version_of};
use self::unplaced::Unplaced;

/// How long a pod that fits nowhere is shown as waiting without another call for it. kube-scheduler calls for every
/// pending pod at least every five minutes.
const WAITING_IS_SHOWN: Duration = Duration::from_secs(900);

/// How far our watch of the API server may lag behind kube-scheduler's.
const WATCH_IS_BEHIND: Duration = Duration::from_secs(5);

const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How long after the last answer about a binding it may still happen: an API server gives up a request after 60 s.
const BINDING_MAY_LAND: Duration = Duration::from_secs(90);

/// How much longer than its last try a pod's next try may take, where a second failure would produce no event.
const TRY_MAY_VARY: Duration = Duration::from_secs(1);

/// All reservations and bound pods. Times are durations since any fixed moment, the same for all calls.
#[derive(Debug)]
pub struct Ledger {
    cluster: Cluster,
    /// Earlier answers to pending pods.
    remembered: Remembered,
    holders: HashMap<Arc<str>, LedgerEntry>,
    waiting: HashMap<Arc<str>, Waiting>,
    /// Pods for which other pods were evicted.
    nominated: BTreeMap<Arc<str>, Nominated>,
    /// Pods for which kube-scheduler has found no node.
    unplaced: HashMap<Arc<str>, Unplaced>,
    /// When a node last got more slots, and which node.
    more_slots: Option<(Duration, Arc<str>)>,
    /// The nodes as last reported, reduced to the fields that are read.
    nodes: HashMap<Arc<str>, Arc<Node>>,
    /// Pods whose annotations cannot be read or do not count, so that each is reported once.
    broken_pods: HashSet<Arc<str>>,
    /// Nodes with a report that cannot be read.
    broken_nodes: HashSet<Arc<str>>,
    /// GPUs that another driver gives out, by UUID, with the claim that has each.
    given_out: BTreeMap<String, String>,
    quotas: BTreeMap<(String, String), ResourceQuota>,
    /// Claims: reservations by label.
    claims: Claims,
    compute: ComputeQuotas,
    /// The devices that workloads hold, over time.
    accounts: Accounts,
    /// The amounts that pods are counted with. Equal amounts are stored once.
    counted: HashSet<Counted>,
    /// Pods whose last try failed after a filter had chosen a node.
    tried: HashMap<Arc<str>, Tried>,
    deadlines: BTreeSet<(Duration, Arc<str>)>,
    /// The latest time that a caller passed in.
    latest: Duration,
    /// When a pod was last refused.
    refused: Option<Duration>,
    /// When the waiting pods were last checked for calls.
    swept: Duration,
    notices: Vec<Notice>,
    vendors: Arc<Vendors>,
    reservation_timeout: Duration,
}

/// A change that other parts of the scheduler must hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A pod's annotations cannot be read, or do not count.
    PodBroken {
        /// Namespace, name and uid.
        pod: placement::Pod,
        /// The error, and its consequence.
        problem: String,
    },
    /// A node's report cannot be read.
    NodeBroken {
        /// The name of the node.
        node: String,
        /// The error, and its consequence.
        problem: String,
    },
    /// Another driver gives out a GPU that is shared here.
    GivenOut {
        /// The name of the node.
        node: String,
        /// Which GPU, to which claim, and the consequence.
        problem: String,
    },
    /// A quota has a line that cannot be read.
    QuotaBroken {
        /// Namespace of the quota.
        namespace: String,
        /// Name of the quota.
        name: String,
        /// The error.
        problem: String,
    },
    /// A reservation expired without a binding.
    Expired {
        /// The pod that held it.
        pod: placement::Pod,
        /// The node of the reservation.
        node: Arc<str>,
    },
    /// A reservation was given up because its pod could not be scheduled, or is gone.
    GivenBack,
    /// Capacity was freed without an event that kube-scheduler acts on, and pods are waiting.
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
        /// When the API server last reported it.
        since: Duration,
        /// The pod's priority: pods of a higher one may preempt it.
        priority: i32,
        /// The amounts that kube-scheduler counts for it. Equal pods share them.
        counted: Counted,
        /// Whether it is being deleted.
        leaving: bool,
    },
}

/// Amounts by resource, in thousandths, as kube-scheduler counts them.
pub type Counted = Arc<[(Box<str>, i128)]>;

/// What preemption must know of a pod that holds devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The pod's priority: pods of a higher one may preempt it.
    pub priority: i32,
    /// The amounts that kube-scheduler counts for it.
    pub counted: Counted,
    /// Whether kube-scheduler certainly counts it on its node: it is bound, or its binding is under way.
    pub on_node: bool,
}

#[derive(Debug)]
struct Reserved {
    pod: Arc<Pod>,
    since: Duration,
    deadline: Duration,
    /// The resource version of the pod at the filter.
    version: Option<u64>,
    /// Its `PodScheduled` condition at the filter.
    condition: Option<u64>,
    binding: Binding,
    /// Until when an earlier binding may still happen.
    doubted_until: Option<Duration>,
}

/// A try that failed before the binding, most often because a volume was not bound in time.
#[derive(Debug, Clone, Copy)]
struct Tried {
    lasted: Duration,
    /// The `PodScheduled` condition that reported it.
    condition: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binding {
    NotAsked,
    UnderWay,
    /// The outcome is unknown. After `until` the binding cannot happen any more, but it may have happened; a list that
    /// began later shows whether it did.
    InDoubt {
        until: Duration,
    },
}

/// A pod that was filtered and fits nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Namespace and name.
    pub pod: placement::Pod,
    /// The reason that most nodes have, in HAMi's words.
    pub reason: &'static str,
    /// When it was last filtered.
    pub since: Duration,
}

/// The answer of a filter.
#[derive(Debug, Clone, PartialEq)]
pub enum Filtered {
    /// The pod is placed on this node, and holds these devices.
    Placed(Placement),
    /// The pod fits nowhere: the reason for each node.
    Nowhere(Vec<NodeMisfit>),
    /// The namespace's ComputeQuota does not allow the pod's devices: why.
    OverQuota(String),
    /// The pod is bound to that node, or may be. No other answer is possible until that is known.
    Elsewhere {
        /// Name of the node.
        node: Arc<str>,
        /// Whether it is certainly bound.
        certain: bool,
    },
}

/// The state in which a binding begins.
#[derive(Debug, Clone)]
pub enum Begun {
    /// The pod holds these devices: write them.
    Go {
        /// The pod as it was at the filter.
        pod: Arc<Pod>,
        /// Its devices.
        placement: Placement,
    },
    /// The pod holds nothing on that node; it must be fitted there first, with [`Ledger::begin_bind_anew`].
    NotReserved,
    /// An earlier call is binding it.
    UnderWay,
    /// It is already bound to this node.
    Done,
    /// The namespace's ComputeQuota does not allow the pod's devices: why.
    OverQuota(String),
    /// It is bound to another node.
    Elsewhere {
        /// Name of the node.
        node: Arc<str>,
    },
}

impl Ledger {
    /// An empty ledger. A reservation expires after `reservation_timeout` without a binding.
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
            given_out: BTreeMap::new(),
            quotas: BTreeMap::new(),
            claims: Claims::default(),
            compute: ComputeQuotas::default(),
            accounts: Accounts::default(),
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

    /// All devices, with the reservations on them.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The pods that were filtered and fit nowhere, in no order.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &Waiting> {
        self.waiting.values()
    }

    /// The number of pods that hold devices without being bound.
    pub fn reserved(&self) -> usize {
        self.deadlines.len()
    }

    /// The pod as it was at the filter, while it is reserved and not bound.
    pub fn reserved_pod(&self, uid: &str) -> Option<Arc<Pod>> {
        match self.holders.get(uid)? {
            LedgerEntry::Reserved(reserved) => Some(Arc::clone(&reserved.pod)),
            LedgerEntry::Bound { .. } => None,
        }
    }

    /// Whether the pod is bound, as far as the ledger knows.
    pub fn is_bound(&self, uid: &str) -> bool {
        matches!(self.holders.get(uid), Some(LedgerEntry::Bound { .. }))
    }

    /// What preemption must know of a pod that holds devices. kube-scheduler counts a pod on its node from the filter
    /// on, so it may name a pod as a victim before the ledger hears that the pod is bound.
    pub fn holder(&self, uid: &str) -> Option<Holder> {
        Some(match self.holders.get(uid)? {
            LedgerEntry::Bound {
                priority, counted, ..
            } => Holder {
                priority: *priority,
                counted: Arc::clone(counted),
                on_node: true,
            },
            LedgerEntry::Reserved(reserved) => Holder {
                priority: reserved.pod.spec.priority.unwrap_or_default(),
                counted: read::counted(&reserved.pod).into(),
                on_node: reserved.binding == Binding::UnderWay,
            },
        })
    }

    /// The vendors whose devices the ledger counts.
    pub fn vendors(&self) -> &Arc<Vendors> {
        &self.vendors
    }

    /// Whether the node is known, with or without devices.
    pub fn knows_node(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    /// All nodes as last reported, reduced to the fields that are read.
    pub fn nodes(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Node>)> {
        self.nodes.iter()
    }

    /// The quotas that limit devices.
    pub fn quotas(&self) -> impl Iterator<Item = &ResourceQuota> {
        self.quotas.values()
    }

    /// The numbers of nodes and of pods with data that cannot be read or does not count.
    pub fn broken(&self) -> (usize, usize) {
        (self.broken_nodes.len(), self.broken_pods.len())
    }

    /// The notices since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Chooses a node for the pod and reserves devices there, in place of what the pod held. If the pod fits nowhere,
    /// it then holds nothing.
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

    /// The answer that [`Ledger::filter`] would give, without a reservation.
    pub fn consider(&self, request: &Request, among: Among<'_>) -> Filtered {
        if let Some(answer) = self.settled(&request.pod.uid, among) {
            return answer;
        }
        match self.cluster_for(&request.pod.uid).place(request, among) {
            Ok(placement) => Filtered::Placed(placement),
            Err(misfits) => Filtered::Nowhere(misfits),
        }
    }

    /// The answer for a pod whose node is fixed: it is bound, or its binding may still happen.
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
        // kube-scheduler writes the condition only when it changes, so a try that fails for the same reason as the one
        // before produces no event. Such a reservation ends early. A try that takes longer than that finds out at its
        // binding whether the devices are still free.
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

    /// Starts to bind the pod to the node with the devices that it holds there.
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
                // Another pod took the reserved devices, or a device has changed.
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

    /// Fits the pod on the node, reserves the devices there, and starts to bind it.
    ///
    /// # Errors
    ///
    /// Why it does not fit there. It loses what it held elsewhere.
    pub fn begin_bind_anew(
        &mut self,
        request: &Request,
        pod: &Arc<Pod>,
        node: &str,
        now: Duration,
    ) -> Result<Begun, Misfit> {
        // Another call may have started the binding while the pod was read.
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

    /// The binding was refused, or never sent: the pod's devices are free, unless an earlier binding may still happen.
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

    /// The binding was refused because the pod is already bound, as `pod` shows. It holds the devices in its
    /// annotations, not the reserved ones.
    pub fn bound_otherwise(&mut self, pod: &Pod, now: Duration) {
        let uid = uid_of(pod);
        if let Some(LedgerEntry::Reserved(reserved)) = self.holders.get_mut(&uid) {
            reserved.binding = Binding::NotAsked;
        }
        self.set_pod(pod, now);
    }

    /// The outcome of the binding is unknown: the pod keeps its devices until the cluster shows the outcome. Time alone
    /// does not decide it, because the watch may report an old change late. kube-scheduler calls again for a pod that
    /// it could not bind, and gets the same node as the answer.
    pub fn bind_in_doubt(&mut self, uid: &str, now: Duration) {
        if let Some(LedgerEntry::Reserved(reserved)) = self.holders.get_mut(uid) {
            let until = now.saturating_add(BINDING_MAY_LAND);
            reserved.binding = Binding::InDoubt { until };
            reserved.doubted_until = Some(until);
        }
    }

    /// Takes back a reservation of the filter, because it could not be written.
    pub fn undo(&mut self, uid: &str) {
        let unbound = matches!(self.holders.get(uid), Some(LedgerEntry::Reserved(reserved)) if reserved.binding == Binding::NotAsked);
        if unbound && let Some(node) = self.release(uid) {
            self.freed(node);
        }
    }

    /// Drops every reservation that is not being bound, because another replica answers from now on.
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

    /// The time has come to this, for changes that do not say when they happened.
    pub fn pass(&mut self, now: Duration) {
        self.latest = self.latest.max(now);
    }

    /// Drops reservations that have expired.
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
                // The caller of the binding will report an outcome or a doubt; a doubt ends when the cluster shows the
                // outcome.
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
            self.tend_accounts(now);
            self.waiting
                .retain(|_, waiting| now.saturating_sub(waiting.since) < WAITING_IS_SHOWN);
        }
    }

    /// kube-scheduler sees this event too, and calls again by itself. But if it called before our watch had the event,
    /// it was refused and does not call a second time.
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

    /// Takes everything from the pod, and returns its node.
    fn release(&mut self, uid: &str) -> Option<Arc<str>> {
        self.drop_deadline(uid);
        self.holders.remove(uid);
        self.accounts.close(uid, self.latest);
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
