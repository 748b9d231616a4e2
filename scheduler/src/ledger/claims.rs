//! Claims: reservations of whole GPUs by label, as Leases show them. Keeps what each claim takes of its GPU besides
//! what the pod itself holds, when it ends, and the history of each GPU. No Lease is written here.
//!
//! A claim takes what its pod does not hold: the whole GPU before the pod is placed, nothing once the pod holds all of
//! it. So a GPU is never counted twice, and never free in between.
//!
//! The age of a claim counts from when this process saw it change, by its own clock. Only for a Lease that is older
//! than this process does the Lease's own time count, and the caller subtracts the possible difference of the clocks.

mod ask;
mod guards;
mod past;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube_api::assigner::{Claim, PodGpuClaim, State, lease_name, pod_claim};
use kube_api::hcs_quota::{Charge, Counted};
use kube_api::object::Pod;
use placement::{Cluster, DeviceView, Grant, Granted, Load, Placement};

use super::{Ledger, uid_of};
pub use ask::{ClaimAsk, NotClaimed};
use guards::BindingLeases;
pub use past::Past;
use past::Pasts;

/// The prefix of a claim's uid in the placement engine's accounts. No pod's uid has it.
pub const CLAIM_UID: &str = "claim:";

/// How often claims are checked for expiry.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The claims, and the pods that carry one.
#[derive(Debug, Default)]
pub(super) struct Claims {
    on: bool,
    by_gpu: BTreeMap<Arc<str>, Held>,
    guards: BindingLeases,
    /// The pods that carry a claim and have not ended, by uid.
    pods: HashMap<Arc<str>, PodGpuClaim>,
    /// How quotas count these pods.
    counted: HashMap<Arc<str>, Counted>,
    /// The claims that are known only from a question. They are forgotten together with their reservations.
    only_asked: HashSet<Arc<str>>,
    /// The uids of pods, by claim.
    carriers: HashMap<String, BTreeSet<Arc<str>>>,
    /// The node of each GPU.
    nodes: HashMap<Arc<str>, Arc<str>>,
    /// For each GPU, the latest version of a Lease that is known to be gone.
    gone: HashMap<Arc<str>, u64>,
    /// The parts of nodes' labels that cannot be read.
    problems: BTreeMap<Arc<str>, Vec<String>>,
    pasts: Pasts,
    looked: Duration,
    version: u64,
}

/// The claim of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The claim that its Lease has, or will have.
    pub claim: Claim,
    /// The time from which its age counts.
    pub since: Duration,
    /// It expired, and takes nothing any more.
    pub lapsed: bool,
    /// Its pod was seen.
    pub carried: bool,
    /// How quotas count its pod, until the pod is seen.
    pub counted: Counted,
    /// While it is not written: the expired claim before it, and the version of that claim's Lease.
    pub over: Option<(String, String)>,
}

impl Held {
    /// Whether its Lease is not known to be written.
    pub fn is_unwritten(&self) -> bool {
        self.claim.version.is_empty()
    }

    /// Its age.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }
}

impl Ledger {
    /// Turns claims on: the labels of devices on nodes are read, and claims count.
    #[must_use]
    pub fn with_claims(mut self) -> Self {
        self.claims.on = true;
        self
    }

    /// Whether claims count.
    pub fn counts_claims(&self) -> bool {
        self.claims.on
    }

    /// All claims, by GPU.
    pub fn claims(&self) -> impl Iterator<Item = (&Arc<str>, &Held)> {
        self.claims.by_gpu.iter()
    }

    /// The claim of a GPU.
    pub fn claim(&self, gpu: &str) -> Option<&Held> {
        self.claims.by_gpu.get(gpu)
    }

    /// The GPUs with this claim.
    pub fn claimed_by(&self, reservation: &str) -> Vec<&Held> {
        let held = self.claims.by_gpu.values();
        held.filter(|held| held.claim.reservation == reservation)
            .collect()
    }

    /// The pod that carries a claim, if it was seen and has not ended.
    pub fn claimant(&self, claim: &Claim) -> Option<&PodGpuClaim> {
        let belongs = |pod: &&PodGpuClaim| {
            pod.namespace == claim.namespace
                && pod.reservation == claim.reservation
                && pod.gpus.contains(&claim.gpu)
        };
        if claim.state == State::Active {
            let pod = self.claims.pods.get(claim.holder.as_str());
            return pod.filter(belongs);
        }
        let uids = self.claims.carriers.get(&claim.reservation)?;
        let pods = uids.iter().filter_map(|uid| self.claims.pods.get(uid));
        // Of several pods with the claim, the one that already holds the GPU.
        pods.filter(belongs)
            .min_by_key(|pod| self.load_of(&pod.uid, &claim.gpu) == Load::default())
    }

    /// The parts of nodes' labels that cannot be read.
    pub fn label_problems(&self) -> impl Iterator<Item = (&str, &str)> {
        let problems = self.claims.problems.iter();
        problems.flat_map(|(node, texts)| texts.iter().map(move |text| (&**node, text.as_str())))
    }

    /// The history of a GPU, the oldest entry first.
    pub fn past(&self, gpu: &str) -> impl DoubleEndedIterator<Item = &Past> {
        self.claims.pasts.of(gpu)
    }

    /// Grows with every change of [`Ledger::claims`], [`Ledger::past`] or the devices' use.
    pub fn claims_version(&self) -> u64 {
        self.claims.version
    }

    /// The node of a GPU, and the placement engine's view of it.
    pub fn gpu(&self, gpu: &str) -> Option<(&Arc<str>, DeviceView<'_>)> {
        let node = self.claims.nodes.get(gpu)?;
        Some((node, self.cluster.node(node)?.device(gpu)?))
    }

    /// Takes in a Lease from the API server. `age` is the Lease's age when it was seen; none for one that was just
    /// written.
    pub fn set_claim(&mut self, claim: Claim, age: Duration, now: Duration) {
        let gpu: Arc<str> = claim.gpu.as_str().into();
        let version = number(&claim.version);
        if version.is_some() && version <= self.claims.gone.get(&gpu).copied() {
            return;
        }
        if claim.state == State::Binding {
            self.set_guard(claim, now.saturating_sub(age));
            return;
        }
        self.claims.guards.is_over(&gpu, version);
        let known = self.claims.by_gpu.get(&gpu);
        if let Some(known) = known {
            if known.is_unwritten() {
                let is_what_ran_out = |(_, over): &(String, String)| version <= number(over);
                if known.claim.reservation != claim.reservation
                    && known.over.as_ref().is_some_and(is_what_ran_out)
                {
                    return;
                }
            } else if known.claim.version == claim.version
                || (version.is_some() && version < number(&known.claim.version))
            {
                return;
            }
        }
        let same = known.filter(|known| known.claim.reservation == claim.reservation);
        let was_active = same.is_some_and(|known| known.claim.state == State::Active);
        let is_new = same.is_none();
        let counted = same.map(|known| known.counted.clone()).unwrap_or_default();
        let carried = same.is_some_and(|known| known.carried) || self.claimant(&claim).is_some();
        if is_new {
            self.note_past(&gpu, Past::proposed(&claim, now));
        }
        if claim.state == State::Active && !was_active {
            self.note_past(&gpu, Past::finalized(&claim, now));
        }
        let held = Held {
            claim,
            since: now.saturating_sub(age),
            lapsed: false,
            carried,
            counted,
            over: None,
        };
        self.claims.by_gpu.insert(Arc::clone(&gpu), held);
        self.hold_claim(&gpu);
        self.lapse_one(&gpu, now);
    }

    /// The extender binds a pod to the GPU: a claim with an older Lease is gone.
    fn set_guard(&mut self, claim: Claim, since: Duration) {
        let is_older = |held: &Held| {
            !held.is_unwritten() && number(&held.claim.version) < number(&claim.version)
        };
        let gpu = claim.gpu.clone();
        if self.claims.by_gpu.get(gpu.as_str()).is_some_and(is_older) {
            self.drop_claim(&gpu);
        }
        self.claims.guards.set(claim, since);
    }

    /// The Lease of a GPU is gone. `version` is the version of its deletion, or its last one.
    pub fn remove_claim(&mut self, gpu: &str, lease_uid: &str, version: &str) {
        if let Some(version) = number(version) {
            let gone = self.claims.gone.entry(gpu.into()).or_default();
            *gone = version.max(*gone);
        }
        self.claims.guards.remove(gpu, lease_uid);
        let is_it = |held: &Held| {
            !held.is_unwritten()
                && (lease_uid.is_empty()
                    || held.claim.lease_uid.is_empty()
                    || held.claim.lease_uid == lease_uid)
        };
        if self.claims.by_gpu.get(gpu).is_some_and(is_it) {
            self.drop_claim(gpu);
        }
    }

    /// Removes a claim that was not written: another pod has the GPU, or the API server refused.
    pub fn withdraw_claim(&mut self, gpu: &str, reservation: &str) {
        let is_it = |held: &Held| held.is_unwritten() && held.claim.reservation == reservation;
        if self.claims.by_gpu.get(gpu).is_some_and(is_it) {
            self.drop_claim(gpu);
        }
    }

    /// A list of all Leases that began at `began` is complete: a GPU whose Lease is not in it has no claim.
    pub fn keep_claims(&mut self, listed: &HashSet<Arc<str>>, began: Duration) {
        self.claims.guards.keep(listed, began);
        let gone: Vec<Arc<str>> = self
            .claims
            .by_gpu
            .iter()
            .filter(|(gpu, held)| {
                !held.is_unwritten() && held.since < began && !listed.contains(&*lease_name(gpu))
            })
            .map(|(gpu, _)| Arc::clone(gpu))
            .collect();
        for gpu in gone {
            self.drop_claim(&gpu);
        }
    }

    fn drop_claim(&mut self, gpu: &str) {
        let now = self.latest;
        let Some(held) = self.claims.by_gpu.remove(gpu) else {
            return;
        };
        let past = match held.claim.state {
            State::Proposed => Past::expired(&held.claim, now),
            State::Active | State::Binding => Past::released(&held.claim, now),
        };
        if !held.lapsed {
            self.note_past(gpu, past);
        }
        self.hold_claim(gpu);
        if let Some(node) = self.claims.nodes.get(gpu).cloned() {
            self.freed(node);
        }
    }

    /// Drops the claims that have expired.
    pub(super) fn lapse(&mut self, now: Duration) {
        if now.saturating_sub(self.claims.looked) < LOOK_EVERY {
            return;
        }
        self.claims.looked = now;
        let gpus: Vec<Arc<str>> = self.claims.by_gpu.keys().cloned().collect();
        for gpu in gpus {
            self.lapse_one(&gpu, now);
        }
    }

    /// A claim expires when it was not renewed within the time of its state, and no pod carries it.
    fn lapse_one(&mut self, gpu: &str, now: Duration) {
        let Some(held) = self.claims.by_gpu.get(gpu) else {
            return;
        };
        let runs_out = held.age(now) >= held.claim.state.lasts();
        if held.lapsed || !runs_out || self.claimant(&held.claim).is_some() {
            return;
        }
        if held.is_unwritten() {
            self.drop_claim(gpu);
            return;
        }
        let past = Past::expired(&held.claim, now);
        self.note_past(gpu, past);
        if let Some(held) = self.claims.by_gpu.get_mut(gpu) {
            held.lapsed = true;
        }
        self.hold_claim(gpu);
        if let Some(node) = self.claims.nodes.get(gpu).cloned() {
            self.freed(node);
        }
    }

    /// Notes the claim of a question's pod. The pod may be gone by now: the API server's reports about it take
    /// precedence.
    pub(super) fn note_asking(&mut self, pod: &Pod) {
        let uid = uid_of(pod);
        if self.claims.on && !self.claims.pods.contains_key(&uid) {
            self.note_claimant(pod);
            if self.claims.pods.contains_key(&uid) {
                self.claims.only_asked.insert(uid);
            }
        }
    }

    /// The pod holds nothing any more: if it is known only from a question, it is forgotten.
    pub(super) fn forget_asking(&mut self, uid: &str) {
        if self.claims.only_asked.contains(uid) {
            self.forget_claimant(uid);
        }
    }

    /// Notes the claim that the pod carries, as the API server reports it.
    pub(super) fn note_claimant(&mut self, pod: &Pod) {
        if !self.claims.on {
            return;
        }
        let uid = uid_of(pod);
        self.claims.only_asked.remove(&uid);
        let said = pod_claim(pod);
        if self.claims.pods.get(&uid) == said.as_ref() {
            return;
        }
        self.forget_claimant(&uid);
        let Some(said) = said else { return };
        let reservation = said.reservation.clone();
        let carriers = self.claims.carriers.entry(reservation.clone()).or_default();
        carriers.insert(Arc::clone(&uid));
        let counted = Counted::new(pod, Charge::default());
        self.claims.counted.insert(Arc::clone(&uid), counted);
        self.claims.pods.insert(uid, said);
        self.settle_reservation(&reservation);
    }

    /// The pod has ended, or is gone.
    pub(super) fn forget_claimant(&mut self, uid: &str) {
        self.claims.only_asked.remove(uid);
        let Some(said) = self.claims.pods.remove(uid) else {
            return;
        };
        self.claims.counted.remove(uid);
        if let Some(carriers) = self.claims.carriers.get_mut(&said.reservation) {
            carriers.remove(uid);
            if carriers.is_empty() {
                self.claims.carriers.remove(&said.reservation);
            }
        }
        self.settle_reservation(&said.reservation);
    }

    /// A list of pods is complete: a pod with a claim that is not in it has ended.
    pub(super) fn keep_claimants(&mut self, listed: &HashSet<Arc<str>>) {
        let gone: Vec<Arc<str>> = self.claims.pods.keys().cloned().collect();
        for uid in gone.iter().filter(|uid| !listed.contains(*uid)) {
            self.forget_claimant(uid);
        }
    }

    pub(super) fn knows_claimant(&self, uid: &str) -> bool {
        self.claims.pods.contains_key(uid)
    }

    fn settle_reservation(&mut self, reservation: &str) {
        let gpus: Vec<Arc<str>> = self
            .claims
            .by_gpu
            .iter()
            .filter(|(_, held)| held.claim.reservation == reservation)
            .map(|(gpu, _)| Arc::clone(gpu))
            .collect();
        for gpu in gpus {
            let carried = (self.claims.by_gpu.get(&gpu))
                .is_some_and(|held| self.claimant(&held.claim).is_some());
            if carried && let Some(held) = self.claims.by_gpu.get_mut(&gpu) {
                held.lapsed = false;
                held.carried = true;
            }
            self.hold_claim(&gpu);
        }
    }

    /// The pod's devices have changed: its claims take the rest.
    pub(super) fn settle_claims_of(&mut self, uid: &str) {
        self.claims.version += u64::from(self.claims.on);
        if let Some(said) = self.claims.pods.get(uid) {
            let reservation = said.reservation.clone();
            self.settle_reservation(&reservation);
        }
    }

    /// Lets the pod's own claims take nothing, so that the pod can be placed on their GPUs.
    /// [`Ledger::settle_claims_of`] reverses this.
    pub(super) fn lift_claims_of(&mut self, uid: &str) {
        for gpu in self.own_claims(uid) {
            self.cluster.release(&claim_uid(&gpu));
        }
    }

    /// The accounts for placing this pod: without its own claims.
    pub fn cluster_for(&self, uid: &str) -> std::borrow::Cow<'_, Cluster> {
        let own = self.own_claims(uid);
        if own.is_empty() {
            return std::borrow::Cow::Borrowed(&self.cluster);
        }
        let mut cluster = self.cluster.clone();
        for gpu in own {
            cluster.release(&claim_uid(&gpu));
        }
        std::borrow::Cow::Owned(cluster)
    }

    /// The GPUs that are claimed for the pod.
    pub(super) fn own_claims(&self, uid: &str) -> Vec<Arc<str>> {
        let Some(said) = self.claims.pods.get(uid) else {
            return Vec::new();
        };
        self.claims
            .by_gpu
            .iter()
            .filter(|(_, held)| held.claim.reservation == said.reservation)
            .filter(|(_, held)| self.claimant(&held.claim).is_some_and(|pod| pod.uid == uid))
            .map(|(gpu, _)| Arc::clone(gpu))
            .collect()
    }

    /// A node's devices were reported again.
    pub(super) fn settle_claims_on(&mut self, node: &Arc<str>, problems: Vec<String>) {
        if !self.claims.on {
            return;
        }
        self.claims.version += 1;
        self.claims.nodes.retain(|_, there| there != node);
        let there: Vec<Arc<str>> = self.cluster.node(node).map_or_else(Vec::new, |node| {
            node.devices().map(|device| device.id().into()).collect()
        });
        for gpu in there {
            self.claims.nodes.insert(Arc::clone(&gpu), Arc::clone(node));
            if self.claims.by_gpu.contains_key(&gpu) {
                self.hold_claim(&gpu);
            }
        }
        if problems.is_empty() {
            self.claims.problems.remove(node);
        } else {
            self.claims.problems.insert(Arc::clone(node), problems);
        }
    }

    /// Makes the claim take the part of the GPU that its pod does not hold.
    fn hold_claim(&mut self, gpu: &str) {
        self.claims.version += 1;
        let uid = claim_uid(gpu);
        let rest = self.rest_of(gpu);
        let grant = rest.as_ref().and_then(|rest| rest.containers.first());
        let grant = grant.and_then(|container| container.grants.first());
        self.count_claim(gpu, grant);
        let Some(rest) = rest else {
            self.cluster.release(&uid);
            return;
        };
        let pod = placement::Pod {
            uid,
            name: format!("{CLAIM_UID}{gpu}"),
            ..placement::Pod::default()
        };
        self.cluster.reserve(pod, rest);
    }

    /// The part of the GPU that its claim takes; `None` if it takes nothing.
    fn rest_of(&self, gpu: &str) -> Option<Placement> {
        let held = self.claims.by_gpu.get(gpu).filter(|held| !held.lapsed)?;
        let (node, view) = self.gpu(gpu)?;
        let device = view.device();
        let taken = self
            .claimant(&held.claim)
            .map_or_else(Load::default, |pod| self.load_of(&pod.uid, gpu));
        let slots = device.slots.saturating_sub(taken.slots);
        let memory = device.memory_bytes.saturating_sub(taken.memory_bytes);
        let cores = device.cores.saturating_sub(taken.cores);
        if slots == 0 && memory == 0 && cores == 0 {
            return None;
        }
        let grant = Grant {
            slots,
            ..Grant::new(device.vendor.clone(), gpu, memory, cores)
        };
        let granted = Granted {
            grants: vec![grant],
            ..Granted::default()
        };
        Some(Placement {
            node: Arc::clone(node),
            containers: vec![granted],
        })
    }

    /// How quotas count the pod of the reservation.
    pub(super) fn counted_as(&self, held: &Held) -> Counted {
        let pod = self.claimant(&held.claim);
        let counted = pod.and_then(|pod| self.claims.counted.get(pod.uid.as_str()));
        counted.unwrap_or(&held.counted).clone()
    }

    /// The part of the GPU that the pod itself holds.
    fn load_of(&self, uid: &str, gpu: &str) -> Load {
        let held = self.cluster.reservation(uid);
        held.and_then(|held| held.devices().find(|(device, _)| *device == gpu))
            .map_or_else(Load::default, |(_, load)| load)
    }

    /// Whether other pods than the claim's hold a part of the GPU, because another way in gave it to them.
    pub fn is_taken_by_others(&self, gpu: &str) -> bool {
        let Some((_, view)) = self.gpu(gpu) else {
            return false;
        };
        let own = |uid: &str| self.load_of(uid, gpu);
        let mut ours = own(&claim_uid(gpu)).slots;
        if let Some(held) = self.claims.by_gpu.get(gpu)
            && let Some(pod) = self.claimant(&held.claim)
        {
            ours = ours.saturating_add(own(&pod.uid).slots);
        }
        view.used().slots > ours
    }

    fn note_past(&mut self, gpu: &str, past: Past) {
        self.claims.pasts.note(gpu, past);
        self.claims.version += 1;
    }
}

pub(super) fn claim_uid(gpu: &str) -> String {
    format!("{CLAIM_UID}{gpu}")
}

/// The versions of one API server are ascending numbers. Anything else counts as newer than all numbers.
fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}
