//! Keeps GPUs from assigners while the extender binds a pod to them, even if both run in processes whose watches are
//! late. Does not decide which GPU a pod gets.
//!
//! The extender and the assigner both write the GPU's single Lease before they give the GPU to a pod, and the API
//! server lets only one of them create it:
//!
//! 1. The extender creates the Lease, sends the binding, and deletes the Lease when it knows the outcome of the
//!    binding.
//! 2. An assigner creates the Lease, and then reads the pods that are bound to the node.
//!
//! If the assigner creates its Lease first, the extender does not send the binding. If it creates its Lease later, the
//! binding has already happened, and the pods that it reads show the GPU in use. So it does not matter how late a watch
//! is.
//!
//! If the outcome of a binding is unknown, the Lease stays, and the assigners treat it as over once it has existed for
//! [`BINDING_LASTS`]. By then the binding has happened or never will: it is sent within [`SEND_WITHIN`], given up after
//! [`GIVE_UP_AFTER`], and an API server gives up a call after 34 s.
//!
//! [`BINDING_LASTS`]: kube_api::assigner::BINDING_LASTS

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use kube_api::assigner::{Claim, PodGpuClaim, State};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{FoundLease, Sent, Store};

/// How long after its Lease was asked for a binding may be sent.
pub const SEND_WITHIN: Duration = Duration::from_secs(10);

/// How long the extender waits for the answer to a binding at most.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// How old a Lease may be that a further binding to its GPU relies on.
const USED_AGAIN_FOR: Duration = Duration::from_secs(2);

/// How often a call is made again whose answer is not known, or that came between two others.
const MOST_TRIES: usize = 4;

/// How long a call waits before it is made again.
const PAUSE: Duration = Duration::from_millis(50);

/// Why a pod may not be bound to a GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotGuarded {
    /// The GPU is reserved by label for another pod.
    #[error("GPU {} is reserved by label for another pod; the pod is placed again", .0.gpu)]
    Reserved(Box<Claim>),
    /// A Lease that is no reservation has the name of the GPU's.
    #[error("{0}; delete the Lease")]
    InTheWay(String),
    /// The API server refuses or fails the write.
    #[error("the Lease of GPU {gpu} cannot be written: {why}")]
    NotWritten {
        /// The GPU.
        gpu: String,
        /// The API server's message.
        why: String,
    },
}

/// The pod that is bound, as far as its GPUs' Leases are concerned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guarded {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// The reservation by label that it carries.
    pub claim: Option<PodGpuClaim>,
}

/// The ledger's and the clock's knowledge about an existing Lease.
pub trait LeaseKnowledge: Send + Sync {
    /// Whether the ledger has seen this version of the reservation run out.
    fn has_run_out(&self, claim: &Claim) -> bool;
    /// The machine's clock, for the times that Leases show.
    fn wall(&self) -> Timestamp;
}

/// A pod's GPUs while it is bound to them. It has to be given back.
#[derive(Debug)]
#[must_use = "the GPUs stay kept from assigners until it is given back"]
pub struct Guard {
    gpus: Vec<String>,
    since: Instant,
    /// The pod's own reservations, as they were renewed here.
    pub renewed: Vec<Claim>,
}

impl Guard {
    /// Whether the binding may still be sent.
    pub fn holds(&self) -> bool {
        self.since.elapsed() < SEND_WITHIN
    }
}

/// The Leases of the GPUs to which one process binds pods.
pub struct Guards {
    store: Arc<dyn Store>,
    /// Tells the Leases of this process from those of others.
    process: String,
    count: AtomicU64,
    slots: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Slot>>>>,
}

/// One GPU's Lease. Several bindings may rely on it.
#[derive(Debug, Default)]
struct Slot {
    lease: Option<(Claim, Instant)>,
    users: u32,
    /// Whether a binding that relied on it may still happen, so that the Lease is left to run out.
    in_doubt: bool,
}

/// The object that guards a GPU.
enum Taken {
    /// A Lease of this process, asked for at that time.
    Lease(Instant),
    /// The pod's own reservation, with the Lease if it was just renewed.
    Own(Option<Box<Claim>>),
}

impl std::fmt::Debug for Guards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Guards").field(&self.process).finish()
    }
}

impl Guards {
    /// Over this API server.
    pub fn new(store: Arc<dyn Store>) -> Self {
        use std::hash::{BuildHasher, RandomState};

        Self {
            store,
            process: format!("{:016x}", RandomState::new().hash_one("process")),
            count: AtomicU64::new(0),
            slots: Mutex::default(),
        }
    }

    /// Keeps these GPUs from assigners: all of them or none.
    ///
    /// # Errors
    ///
    /// Why the pod may not be bound to one of them.
    pub async fn take(
        &self,
        gpus: &[String],
        pod: &Guarded,
        known: &dyn LeaseKnowledge,
    ) -> Result<Guard, NotGuarded> {
        let mut guard = Guard {
            gpus: Vec::new(),
            since: Instant::now(),
            renewed: Vec::new(),
        };
        let taking = gpus.iter().map(|gpu| self.take_one(gpu, pod, known));
        let mut refused = None;
        for (gpu, taken) in gpus.iter().zip(join_all(taking).await) {
            match taken {
                Ok(Taken::Lease(since)) => {
                    guard.since = guard.since.min(since);
                    guard.gpus.push(gpu.clone());
                }
                Ok(Taken::Own(renewed)) => guard.renewed.extend(renewed.map(|claim| *claim)),
                Err(why) => refused = Some(why),
            }
        }
        match refused {
            None => Ok(guard),
            Some(why) => {
                self.give_back(guard, true).await;
                Err(why)
            }
        }
    }

    /// Releases the GPUs to the assigners. `settled` says that the binding has happened or never will; otherwise the
    /// Leases expire by themselves.
    pub async fn give_back(&self, guard: Guard, settled: bool) {
        for gpu in &guard.gpus {
            let slot = self.slot(gpu);
            let mut slot = slot.lock().await;
            slot.users = slot.users.saturating_sub(1);
            slot.in_doubt |= !settled;
            if slot.users == 0
                && let Some((lease, _)) = slot.lease.take()
                && !std::mem::take(&mut slot.in_doubt)
            {
                // A Lease that cannot be deleted expires.
                drop(self.store.delete(lease).await);
            }
        }
    }

    fn slot(&self, gpu: &str) -> Arc<tokio::sync::Mutex<Slot>> {
        let mut slots = self.slots.lock();
        Arc::clone(slots.entry(gpu.to_owned()).or_default())
    }

    async fn take_one(
        &self,
        gpu: &str,
        pod: &Guarded,
        known: &dyn LeaseKnowledge,
    ) -> Result<Taken, NotGuarded> {
        let slot = self.slot(gpu);
        let mut slot = slot.lock().await;
        if let Some((_, since)) = slot.lease.as_ref()
            && since.elapsed() < USED_AGAIN_FOR
        {
            let since = *since;
            slot.users = slot.users.saturating_add(1);
            return Ok(Taken::Lease(since));
        }
        let since = Instant::now();
        // Relaxed: the number only has to be another one each time.
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let id = format!("binding-{}-{count}", self.process);
        let wanted = Claim::binding(gpu, &id, &pod.namespace, known.wall());
        // For another binding to the same GPU, the existing Lease is renewed.
        let mut over = slot.lease.take().map(|(lease, _)| lease);
        let mut why = "the Lease changes all the time".to_owned();
        for _ in 0..MOST_TRIES {
            let sent = match over.take() {
                Some(over) => self.store.replace(instead_of(&over, &wanted)).await,
                None => self.store.create(wanted.clone()).await,
            };
            match sent {
                Sent::Done(written) => {
                    slot.lease = Some((written, since));
                    slot.users = slot.users.saturating_add(1);
                    return Ok(Taken::Lease(since));
                }
                Sent::Refused(why) => return Err(not_written(gpu, why)),
                Sent::Unknown(text) => {
                    why = text;
                    tokio::time::sleep(PAUSE).await;
                }
                Sent::Conflict | Sent::Gone => {}
            }
            match self.store.find(gpu).await {
                Ok(FoundLease::Nothing) => {}
                Ok(FoundLease::Foreign(text)) => return Err(NotGuarded::InTheWay(text)),
                Ok(FoundLease::Claim(there)) if there.reservation == wanted.reservation => {
                    slot.lease = Some((*there, since));
                    slot.users = slot.users.saturating_add(1);
                    return Ok(Taken::Lease(since));
                }
                Ok(FoundLease::Claim(there)) if there.state == State::Binding => {
                    // The Lease belongs to another process, or to an earlier binding of this process that may still
                    // succeed. It lasts at least as long as ours would, so no process deletes it.
                    slot.in_doubt = true;
                    over = Some(*there);
                }
                Ok(FoundLease::Claim(there)) => match self.judge(*there, pod, known).await? {
                    Judged::Own => return Ok(Taken::Own(None)),
                    Judged::Renewed(written) => return Ok(Taken::Own(Some(written))),
                    Judged::Over(there) => over = Some(*there),
                    Judged::Again(text) => {
                        if let Some(text) = text {
                            why = text;
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                },
                Err(error) => {
                    why = error.to_string();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        Err(not_written(gpu, why))
    }

    /// A reservation by label has the GPU: it is the pod's own, it has run out, or the pod cannot have the GPU.
    async fn judge(
        &self,
        there: Claim,
        pod: &Guarded,
        known: &dyn LeaseKnowledge,
    ) -> Result<Judged, NotGuarded> {
        let is_own = pod.claim.as_ref().is_some_and(|claim| {
            claim.namespace == there.namespace
                && claim.reservation == there.reservation
                && claim.gpus.contains(&there.gpu)
        });
        if is_own {
            return match there.state {
                State::Active if there.holder == pod.uid => Ok(Judged::Own),
                // Written, so that an assigner that takes it to have run out finds it changed.
                State::Proposed => {
                    let renewed = there.renewed(known.wall());
                    Ok(match self.store.replace(renewed).await {
                        Sent::Done(written) => Judged::Renewed(Box::new(written)),
                        Sent::Refused(why) => return Err(not_written(&there.gpu, why)),
                        Sent::Unknown(text) => Judged::Again(Some(text)),
                        Sent::Conflict | Sent::Gone => Judged::Again(None),
                    })
                }
                _ => Err(NotGuarded::Reserved(Box::new(there))),
            };
        }
        if !known.has_run_out(&there) {
            return Err(NotGuarded::Reserved(Box::new(there)));
        }
        match self.store.carriers(&there.namespace).await {
            Ok(pods) if pods.iter().any(|pod| pod.reservation == there.reservation) => {
                Err(NotGuarded::Reserved(Box::new(there)))
            }
            Ok(_) => Ok(Judged::Over(Box::new(there))),
            Err(error) => Ok(Judged::Again(Some(error.to_string()))),
        }
    }
}

enum Judged {
    Own,
    Renewed(Box<Claim>),
    /// It has run out: a write over it is refused if it has changed since.
    Over(Box<Claim>),
    Again(Option<String>),
}

fn instead_of(there: &Claim, wanted: &Claim) -> Claim {
    Claim {
        version: there.version.clone(),
        lease_uid: there.lease_uid.clone(),
        ..wanted.clone()
    }
}

fn not_written(gpu: &str, why: String) -> NotGuarded {
    NotGuarded::NotWritten {
        gpu: gpu.to_owned(),
        why,
    }
}
