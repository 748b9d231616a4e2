//! The device assigner: whole GPUs for pods that ask by label. It reserves GPUs in the ledger, writes the claims as
//! Leases, makes them active when their pods exist, renews them, and releases them. The placement engine decides which
//! GPU fits, and the scheduler binds the pods.
//!
//! If an answer of the API server is lost, the assigner reads the outcome of the call and does not guess: a Lease that
//! carries our reservation is ours, also after an error. Every write names the version that it is based on, so of two
//! replicas only one succeeds.

pub mod judge;
pub mod meters;
pub mod page;
pub mod review;

mod nodes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use kube_api::assigner::{Claim, Finalize, PodGpuClaim, State, pod_claim};
use tokio::sync::watch;

use crate::calls::CallError;
use crate::leases::{self, FoundLease, Sent, Store};
use crate::ledger::{ClaimAsk, Held, Ledger, NotClaimed};
use judge::{FinalizeEffect, Tend};
use meters::AssignerMeters;

/// How often GPUs are chosen again because another replica was faster.
const MOST_CHOICES: usize = 16;

/// How often a call is repeated whose outcome is unknown, or that conflicted with another.
const MOST_TRIES: usize = 4;

/// The wait before a call is repeated.
const PAUSE: Duration = Duration::from_millis(50);

/// Access to the shared ledger, and the clocks.
pub trait ClaimLedger: Send + Sync + 'static {
    /// Changes the ledger; the second argument of `change` is the ledger's current time.
    fn change(&self, change: &mut dyn FnMut(&mut Ledger, Duration));
    /// The machine's clock, for the times in Leases.
    fn wall(&self) -> Timestamp;
    /// Why the cluster is not known yet; `None` if it is.
    fn unready(&self) -> Option<String>;
    /// Waits until earlier changes in an embedded cluster are known.
    fn catch_up(&self) -> BoxFuture<'_, ()>;
    /// Carries [`Ledger::claims_version`].
    fn changes(&self) -> watch::Receiver<u64>;
}

/// How a pod is tied to its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Pin {
    /// By a required node affinity, so that the scheduler confirms the node.
    #[default]
    Affinity,
    /// By `spec.nodeName`: no scheduler handles the pod.
    #[value(name = "nodeName")]
    NodeName,
}

/// The settings of an assigner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AssignerSettings {
    /// How a pod is tied to its node.
    pub pin: Pin,
}

/// One replica of the assigner. Clones share it.
#[derive(Clone)]
pub struct Assigner(Arc<AssignerInner>);

struct AssignerInner {
    claim_ledger: Arc<dyn ClaimLedger>,
    store: Arc<dyn Store>,
    settings: AssignerSettings,
    meters: AssignerMeters,
}

impl std::fmt::Debug for Assigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Assigner").field(&self.0.settings).finish()
    }
}

/// Why GPUs are not reserved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReserved {
    /// There are no such GPUs.
    #[error(transparent)]
    None(#[from] NotClaimed),
    /// Other pods were faster every time.
    #[error("other pods took the GPUs that were free; try again")]
    Overrun,
    /// The API server refuses the write.
    #[error("the reservation cannot be written: {0}")]
    NotWritten(String),
}

/// Why a reservation is not finalized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotFinalized {
    /// There is no such reservation, or no such pod.
    #[error("{0}")]
    Unknown(String),
    /// Another reservation, namespace or pod holds the GPU.
    #[error("{0}")]
    Another(String),
    /// The outcome is unknown: the API server does not answer.
    #[error("the API server does not answer: {0}; try again")]
    Unanswered(String),
}

impl NotFinalized {
    /// The HTTP status.
    pub fn code(&self) -> u16 {
        match self {
            Self::Unknown(_) => 404,
            Self::Another(_) => 409,
            Self::Unanswered(_) => 503,
        }
    }
}

/// The outcome of writing one Lease.
enum Wrote {
    Won(Box<Claim>),
    /// Another reservation has the GPU.
    Lost(Option<Box<Claim>>),
    /// The write failed. `certain`: it surely did not happen.
    Failed {
        why: String,
        certain: bool,
    },
}

impl Assigner {
    /// An assigner with this ledger and this API server.
    pub fn new(
        claim_ledger: Arc<dyn ClaimLedger>,
        store: Arc<dyn Store>,
        settings: AssignerSettings,
    ) -> Self {
        Self(Arc::new(AssignerInner {
            claim_ledger,
            store,
            settings,
            meters: AssignerMeters::default(),
        }))
    }

    /// Its settings.
    pub fn settings(&self) -> &AssignerSettings {
        &self.0.settings
    }

    /// Its counters.
    pub fn meters(&self) -> &AssignerMeters {
        &self.0.meters
    }

    /// Why it cannot answer yet; `None` if it can.
    pub fn unready(&self) -> Option<String> {
        self.0.claim_ledger.unready()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Ledger, Duration) -> T) -> T {
        let (mut change, mut result) = (Some(change), None);
        self.0.claim_ledger.change(&mut |ledger, now| {
            if let Some(change) = change.take() {
                result = Some(change(ledger, now));
            }
        });
        result.expect("the ledger calls what it is given once")
    }

    /// Reserves GPUs for a pod: in the ledger, then as Leases; all of them or none. Continues to its end even if the
    /// caller stops waiting.
    ///
    /// # Errors
    ///
    /// Why no GPUs are reserved.
    pub async fn reserve(&self, ask: ClaimAsk) -> Result<Vec<Claim>, NotReserved> {
        let assigner = self.clone();
        let task = tokio::spawn(async move { assigner.reserve_to_its_end(ask).await });
        match task.await {
            Ok(result) => result,
            Err(error) => Err(NotReserved::NotWritten(error.to_string())),
        }
    }

    async fn reserve_to_its_end(&self, mut ask: ClaimAsk) -> Result<Vec<Claim>, NotReserved> {
        for _ in 0..MOST_CHOICES {
            let wall = self.0.claim_ledger.wall();
            let proposed = self.change(|ledger, now| ledger.propose(&ask, wall, now))?;
            let mut won = Vec::new();
            let (mut failed, mut in_doubt) = (None, None);
            for claim in &proposed {
                let wrote = match claim.version.is_empty() {
                    true => self.write_new(claim).await,
                    // Requested twice: the Lease may be gone, and our watch may not have seen that yet.
                    false => self.written_before(claim).await,
                };
                match wrote {
                    Wrote::Won(written) => {
                        let claim = (*written).clone();
                        self.change(|ledger, now| ledger.set_claim(claim, Duration::ZERO, now));
                        won.push(*written);
                    }
                    Wrote::Lost(other) => {
                        failed = Some(None);
                        self.lost(claim, other.map(|other| *other));
                        ask.not.insert(claim.gpu.clone());
                        break;
                    }
                    Wrote::Failed { why, certain } => {
                        in_doubt = Some(claim.gpu.as_str()).filter(|_| !certain);
                        failed = Some(Some(why));
                        break;
                    }
                }
            }
            // A GPU that the scheduler gave away while the Leases were written is not ours.
            if failed.is_none() && self.are_ours(&won) {
                match self.used_by_others(&won).await {
                    Ok(used) if used.is_empty() => return Ok(won),
                    Ok(used) => ask.not.extend(used),
                    Err(why) => failed = Some(Some(why.to_string())),
                }
            }
            self.give_back(&proposed, &won, in_doubt).await;
            ask.anew = true;
            if let Some(Some(why)) = failed {
                return Err(NotReserved::NotWritten(why));
            }
        }
        Err(NotReserved::Overrun)
    }

    /// Whether the ledger still has these claims, and their GPUs were not given to other pods.
    fn are_ours(&self, won: &[Claim]) -> bool {
        self.change(|ledger, _| {
            won.iter().all(|claim| {
                let there = ledger.claim(&claim.gpu);
                there.is_some_and(|held| held.claim.reservation == claim.reservation)
                    && !ledger.is_taken_by_others(&claim.gpu)
            })
        })
    }

    /// Which of these GPUs, whose Leases are written, other pods hold that are bound by now, as the API server says it.
    /// Our own watch may be late; and from the Lease on, the extender binds no pod to them (see [`leases::guards`]).
    async fn used_by_others(&self, won: &[Claim]) -> Result<BTreeSet<String>, CallError> {
        let mut nodes: BTreeMap<Arc<str>, Vec<&Claim>> = BTreeMap::new();
        let mut used = BTreeSet::new();
        for claim in won {
            let node =
                self.change(|ledger, _| ledger.gpu(&claim.gpu).map(|(node, _)| node.clone()));
            match node {
                Some(node) => nodes.entry(node).or_default().push(claim),
                // The device has gone meanwhile.
                None => drop(used.insert(claim.gpu.clone())),
            }
        }
        for (node, claims) in nodes {
            let pods = self.0.store.bound(&node).await?;
            let vendors = self.change(|ledger, _| Arc::clone(ledger.vendors()));
            used.extend(judge::used(&claims, &pods, &vendors));
        }
        Ok(used)
    }

    fn withdraw(&self, claim: &Claim) {
        self.change(|ledger, _| ledger.withdraw_claim(&claim.gpu, &claim.reservation));
    }

    /// Another reservation has the GPU: notes that in the ledger at once, so that the next choice is different.
    fn lost(&self, claim: &Claim, other: Option<Claim>) {
        self.withdraw(claim);
        if let Some(other) = other {
            self.change(|ledger, now| ledger.set_claim(other, Duration::ZERO, now));
        }
    }

    /// Takes back the written part of a reservation that failed. A Lease that cannot be deleted expires. So does a
    /// Lease whose write has an unknown outcome; its GPU stays reserved here until then.
    async fn give_back(&self, proposed: &[Claim], won: &[Claim], in_doubt: Option<&str>) {
        for claim in won {
            for _ in 0..MOST_TRIES {
                match self.0.store.delete(claim.clone()).await {
                    Sent::Done(()) | Sent::Gone => {
                        self.forget(claim);
                        break;
                    }
                    // It may be gone by now; deleting it again finds out.
                    Sent::Unknown(_) => tokio::time::sleep(PAUSE).await,
                    Sent::Conflict | Sent::Refused(_) => break,
                }
            }
        }
        for claim in proposed {
            if in_doubt != Some(claim.gpu.as_str()) {
                self.withdraw(claim);
            }
        }
    }

    fn forget(&self, claim: &Claim) {
        self.change(|ledger, _| {
            ledger.remove_claim(&claim.gpu, &claim.lease_uid, &claim.version);
        });
    }

    /// Writes the Lease of a proposal.
    async fn write_new(&self, claim: &Claim) -> Wrote {
        let mut why = String::new();
        for _ in 0..MOST_TRIES {
            match self.0.store.create(claim.clone()).await {
                Sent::Done(written) => return Wrote::Won(Box::new(written)),
                Sent::Refused(why) => return Wrote::Failed { why, certain: true },
                // The Lease may exist by now; another try to create it shows that.
                Sent::Unknown(text) => {
                    why = text;
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Sent::Conflict | Sent::Gone => {}
            }
            match self.0.store.find(&claim.gpu).await {
                Ok(FoundLease::Nothing) => {}
                Ok(FoundLease::Foreign(text)) => {
                    tracing::warn!(gpu = claim.gpu, problem = text, "a Lease is in the way");
                    return Wrote::Lost(None);
                }
                Ok(FoundLease::Claim(there)) if there.reservation == claim.reservation => {
                    return Wrote::Won(there);
                }
                Ok(FoundLease::Claim(there)) => {
                    if !self.has_run_out(claim, &there).await {
                        return Wrote::Lost(Some(there));
                    }
                    let over = Claim {
                        version: there.version.clone(),
                        lease_uid: there.lease_uid.clone(),
                        ..claim.clone()
                    };
                    match self.0.store.replace(over).await {
                        Sent::Done(written) => return Wrote::Won(Box::new(written)),
                        Sent::Refused(why) => return Wrote::Failed { why, certain: true },
                        Sent::Unknown(text) => why = text,
                        Sent::Conflict | Sent::Gone => {}
                    }
                }
                Err(error) => why = error.to_string(),
            }
            tokio::time::sleep(PAUSE).await;
        }
        Wrote::Failed {
            why,
            certain: false,
        }
    }

    /// Reads from the API server the Lease of a claim that the ledger shows as written.
    async fn written_before(&self, claim: &Claim) -> Wrote {
        match self.0.store.find(&claim.gpu).await {
            Ok(FoundLease::Claim(there)) if there.reservation == claim.reservation => {
                Wrote::Won(there)
            }
            Ok(FoundLease::Claim(there)) => Wrote::Lost(Some(there)),
            Ok(FoundLease::Nothing) => {
                self.forget(claim);
                Wrote::Lost(None)
            }
            Ok(FoundLease::Foreign(_)) => Wrote::Lost(None),
            Err(why) => Wrote::Failed {
                why: why.to_string(),
                certain: false,
            },
        }
    }

    /// Whether the claim in the API server is the one that the ledger has seen expire, and has no pod.
    async fn has_run_out(&self, claim: &Claim, there: &Claim) -> bool {
        if there.state == State::Binding {
            return self.change(|ledger, now| ledger.guard_has_run_out(there, now));
        }
        let over = self.change(|ledger, _| {
            let held = ledger.claim(&claim.gpu)?;
            held.over.clone()
        });
        if over != Some((there.reservation.clone(), there.version.clone())) {
            return false;
        }
        match self.0.store.carriers(&there.namespace).await {
            Ok(pods) => !pods.iter().any(|pod| pod.reservation == there.reservation),
            Err(_) => false,
        }
    }

    /// Makes the reservation of a pod active. A repeated call gets the same answer. Continues to its end even if the
    /// caller stops waiting.
    ///
    /// # Errors
    ///
    /// Why the reservation is not active.
    pub async fn finalize(&self, asked: Finalize) -> Result<(), NotFinalized> {
        let assigner = self.clone();
        let task = tokio::spawn(async move { assigner.finalize_to_its_end(&asked).await });
        match task.await {
            Ok(result) => result,
            Err(error) => Err(NotFinalized::Unanswered(error.to_string())),
        }
    }

    async fn finalize_to_its_end(&self, asked: &Finalize) -> Result<(), NotFinalized> {
        // All GPUs of the reservation, even if the caller names only one of them.
        let mut gpus: BTreeSet<String> = asked.gpus.iter().cloned().collect();
        let reserved = self.change(|ledger, _| {
            let held = ledger.claimed_by(&asked.reservation);
            held.iter()
                .map(|held| held.claim.gpu.clone())
                .collect::<Vec<_>>()
        });
        let mut leases = HashMap::new();
        for gpu in &asked.gpus {
            let lease = self.find(gpu).await?;
            self.judge(asked, gpu, lease.as_ref())?;
            leases.insert(gpu.clone(), lease);
        }
        self.check_pod(asked).await?;
        gpus.extend(reserved);
        for gpu in gpus {
            let is_named = asked.gpus.contains(&gpu);
            let mut lease = match leases.remove(&gpu) {
                Some(lease) => lease,
                None => self.find(&gpu).await?,
            };
            let mut tries = 0;
            loop {
                match self.judge(asked, &gpu, lease.as_ref()) {
                    Ok(FinalizeEffect::Promote) => {}
                    Err(why) if is_named => return Err(why),
                    _ => break,
                }
                let Some(there) = lease.take() else { break };
                match self.promote(&there, &asked.name, &asked.uid).await {
                    Sent::Done(()) => break,
                    Sent::Refused(why) => return Err(NotFinalized::Unanswered(why)),
                    Sent::Unknown(why) if tries >= MOST_TRIES => {
                        return Err(NotFinalized::Unanswered(why));
                    }
                    _ if tries >= MOST_TRIES => {
                        let why = "the Lease changes all the time".to_owned();
                        return Err(NotFinalized::Unanswered(why));
                    }
                    _ => {}
                }
                tries += 1;
                tokio::time::sleep(PAUSE).await;
                lease = self.find(&gpu).await?;
            }
        }
        Ok(())
    }

    async fn find(&self, gpu: &str) -> Result<Option<Claim>, NotFinalized> {
        match self.0.store.find(gpu).await {
            Ok(FoundLease::Claim(claim)) => Ok(Some(*claim)),
            Ok(FoundLease::Nothing | FoundLease::Foreign(_)) => Ok(None),
            Err(why) => Err(NotFinalized::Unanswered(why.to_string())),
        }
    }

    fn judge(
        &self,
        asked: &Finalize,
        gpu: &str,
        lease: Option<&Claim>,
    ) -> Result<FinalizeEffect, NotFinalized> {
        let verdict = judge::finalize(asked, lease);
        let another = || {
            NotFinalized::Another(format!(
                "{gpu} is held by another reservation than {} of namespace {}",
                asked.reservation, asked.namespace
            ))
        };
        match verdict {
            FinalizeEffect::Done => Ok(verdict),
            FinalizeEffect::Promote => {
                // An expired proposal still counts, until another pod gets the GPU.
                let taken = self.change(|ledger, _| {
                    let held = ledger.claim(gpu);
                    held.is_some_and(|held| held.lapsed) && ledger.is_taken_by_others(gpu)
                });
                if taken { Err(another()) } else { Ok(verdict) }
            }
            FinalizeEffect::Unknown => Err(NotFinalized::Unknown(format!(
                "there is no reservation {} of {gpu}: it was never made, or it ran out",
                asked.reservation
            ))),
            FinalizeEffect::Another => Err(another()),
        }
    }

    /// Checks that the pod exists and carries the reservation, because a caller must not finalize for another pod.
    async fn check_pod(&self, asked: &Finalize) -> Result<(), NotFinalized> {
        let (namespace, name) = (asked.namespace.as_str(), asked.name.as_str());
        let pod = self.0.store.pod(namespace, name).await;
        let pod = pod.map_err(|why| NotFinalized::Unanswered(why.to_string()))?;
        let Some(pod) = pod.filter(|pod| !leases::has_ended(pod)) else {
            return Err(NotFinalized::Unknown(format!(
                "there is no pod {namespace}/{name} that runs or waits"
            )));
        };
        let Some(said) = pod_claim(&pod) else {
            return Err(NotFinalized::Another(format!(
                "pod {namespace}/{name} carries no reservation"
            )));
        };
        if said.uid != asked.uid {
            return Err(NotFinalized::Another(format!(
                "the uid of pod {namespace}/{name} is {}, not {}",
                said.uid, asked.uid
            )));
        }
        if said.reservation != asked.reservation {
            return Err(NotFinalized::Another(format!(
                "pod {namespace}/{name} carries another reservation than {}",
                asked.reservation
            )));
        }
        if let Some(gpu) = asked.gpus.iter().find(|gpu| !said.gpus.contains(gpu)) {
            return Err(NotFinalized::Another(format!(
                "pod {namespace}/{name} was not given {gpu}"
            )));
        }
        Ok(())
    }

    /// Writes that the pod holds the GPU.
    async fn promote(&self, there: &Claim, pod: &str, uid: &str) -> Sent<()> {
        let now = self.0.claim_ledger.wall();
        let active = there.activated(pod, uid, now);
        match self.0.store.replace(active).await {
            Sent::Done(written) => {
                self.change(|ledger, now| {
                    let held = ledger.claim(&written.gpu);
                    let was = held.filter(|held| held.claim.state == State::Proposed);
                    if let Some(held) = was {
                        self.0.meters.finalized(held.age(now));
                    }
                    ledger.set_claim(written, Duration::ZERO, now);
                });
                Sent::Done(())
            }
            Sent::Conflict => Sent::Conflict,
            Sent::Gone => Sent::Gone,
            Sent::Refused(why) => Sent::Refused(why),
            Sent::Unknown(why) => Sent::Unknown(why),
        }
    }

    /// Checks every claim once: makes a claim active whose pod exists, renews active claims, and releases claims whose
    /// pods are gone. A write that fails is repeated at the next check.
    pub async fn tend(&self) {
        let due: Vec<(Held, Option<PodGpuClaim>, Tend)> = self.change(|ledger, now| {
            ledger.expire(now);
            let claims = ledger.claims().map(|(_, held)| {
                let pod = ledger.claimant(&held.claim);
                (held.clone(), pod.cloned(), judge::tend(held, pod, now))
            });
            claims.filter(|(_, _, tend)| *tend != Tend::Keep).collect()
        });
        for guard in self.change(|ledger, now| ledger.guards_run_out(now)) {
            if let Sent::Done(()) | Sent::Gone = self.0.store.delete(guard.clone()).await {
                self.forget(&guard);
            }
        }
        // The pods of each namespace, read once; none where they cannot be read.
        let mut carriers: HashMap<String, Option<Vec<PodGpuClaim>>> = HashMap::new();
        for (held, pod, tend) in due {
            let claim = held.claim;
            match (tend, pod) {
                (Tend::Promote, Some(pod)) => {
                    self.promote(&claim, &pod.name, &pod.uid).await;
                }
                (Tend::Renew, _) => {
                    let renewed = claim.renewed(self.0.claim_ledger.wall());
                    if let Sent::Done(written) = self.0.store.replace(renewed).await {
                        self.change(|ledger, now| {
                            ledger.set_claim(written, Duration::ZERO, now);
                        });
                    }
                }
                (Tend::Release, _) => {
                    let namespace = claim.namespace.clone();
                    if !carriers.contains_key(&namespace) {
                        let read = self.0.store.carriers(&namespace).await;
                        carriers.insert(namespace.clone(), read.ok());
                    }
                    let is_carried = match carriers.get(&namespace) {
                        Some(Some(pods)) => pods.iter().any(|pod| carries(pod, &claim)),
                        // If the pods cannot be read, no claim is released.
                        _ => true,
                    };
                    if !is_carried {
                        self.release(&claim).await;
                    }
                }
                _ => {}
            }
        }
    }

    async fn release(&self, claim: &Claim) {
        match self.0.store.delete(claim.clone()).await {
            Sent::Done(()) | Sent::Gone => {
                self.0.meters.released(claim.state);
                tracing::info!(
                    gpu = claim.gpu,
                    namespace = claim.namespace,
                    pod = claim.pod,
                    reservation = claim.reservation,
                    state = claim.state.word(),
                    "let go"
                );
                self.forget(claim);
            }
            Sent::Conflict => {}
            Sent::Refused(why) | Sent::Unknown(why) => {
                tracing::warn!(
                    gpu = claim.gpu,
                    why,
                    "a Lease cannot be deleted; trying again"
                );
            }
        }
    }

    /// Checks the claims every `interval`, varied by up to `jitter` of it, until the future is dropped.
    pub async fn keep(&self, interval: Duration, jitter: f64) {
        let mut turn = 0_u32;
        loop {
            tokio::time::sleep(jittered(interval, jitter, turn)).await;
            turn = turn.wrapping_add(1);
            if self.unready().is_none() {
                self.tend().await;
            }
        }
    }
}

/// Whether the claim is for this pod.
fn carries(pod: &PodGpuClaim, claim: &Claim) -> bool {
    let is_holder = claim.state == State::Proposed || pod.uid == claim.holder;
    is_holder && pod.reservation == claim.reservation
}

/// The interval, varied by up to `jitter` of it, so that replicas do not write at the same moment.
fn jittered(interval: Duration, jitter: f64, turn: u32) -> Duration {
    use std::hash::{BuildHasher, RandomState};

    let random = RandomState::new().hash_one(turn);
    let random = f64::from(u32::try_from(random >> 32).unwrap_or_default()) / f64::from(u32::MAX);
    interval.mul_f64((1.0 + jitter.clamp(0.0, 1.0) * (2.0 * random - 1.0)).max(0.01))
}
