//! Makes a claim ready, and takes it away: reads the claim, gives each of its parts a directory and a description for the
//! container runtime, and remembers it before the kubelet has its answer. Everything can be done twice. Different claims
//! are worked on at the same time, and one claim by one task. Never decides what a claim gives: `claim` does.
//!
//! A task takes its claim's turn first, then, where MIG instances are made or removed, the turn of the instances, then
//! the turns of the claim's directories one after the other (`delivery`), and holds each lock on values in memory for a
//! moment.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube_api::object::Pod;
use parking_lot::{Mutex, MutexGuard};
use placement::{Kind, Span};
use serde::Deserialize as _;
use serde_json::Value;
use supervisor::instance::ClaimLabel;
use tokio::task::{JoinError, spawn_blocking};

use super::api;
use super::checkpoint::{Checkpoint, Ready};
use super::claim::{self, Asked, ClaimError, Part, PartError, PodClaims, Share, Use};
use super::claim_turns::ClaimTurns;
use super::{part_name, parts_of};
use crate::api_answer::Without;
use crate::delivery::{Delivery, DeliveryError, Given, GivenDevice, GivenInstance, Name};
use crate::inventory::mig::{Mig, MigError};
use crate::node_gpus::{Healths, Inventories};
use crate::plugin::identity;

/// All that is needed to make claims ready.
#[derive(Clone)]
pub struct Parts {
    /// Name of the node, which is the pool's.
    pub node: String,
    /// The API server.
    pub client: kube::Client,
    /// Makes what containers get.
    pub delivery: Arc<Delivery>,
    /// The claims that are ready.
    pub checkpoint: Arc<Checkpoint>,
    /// The node's GPUs.
    pub inventories: Inventories,
    /// Which of them are sick.
    pub healths: Healths,
    /// The key of the pod label that names the pod's team.
    pub team_label: String,
    /// Makes and removes MIG instances.
    pub mig: Mig,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// Why a claim is not made ready. The kubelet shows the text at the pod and asks again.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The claim was deleted.
    #[error("{0} is gone: it was deleted")]
    Gone(Asked),
    /// The API server refuses to show the claim, or one of its pods.
    #[error("the API server does not show {what}: {why}")]
    NotShown {
        /// The claim or the pod.
        what: String,
        /// The API server's answer.
        why: String,
    },
    /// The API server does not answer, and there is nothing to give again.
    #[error("the API server does not answer ({why}), and {asked} was not ready before")]
    Away {
        /// The claim.
        asked: Asked,
        /// How the call ended.
        why: String,
    },
    /// The GPUs are not known yet.
    #[error("the node's GPUs have not been read yet; it is tried again")]
    GpusUnread,
    /// The claim gives nothing here.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The claim's shares cannot be divided among its containers.
    #[error("{asked}: {why}")]
    Parts {
        /// The claim.
        asked: Asked,
        /// Why not.
        why: Box<PartError>,
    },
    /// A pod of the claim is not as the API server's kinds are.
    #[error("pod {namespace}/{name} cannot be read: {why}")]
    Pod {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
        /// What is wrong.
        why: serde_json::Error,
    },
    /// The claim has no pod.
    #[error("{0} is reserved for no pod that there is: its pod was deleted")]
    NoPod(Asked),
    /// A container uses more than one claim of ours.
    #[error(
        "container {container} uses {} claims of GPUs ({}); it can have one: put its requests into one claim",
        claims.len(), claims.join(", ")
    )]
    Crowded {
        /// The container.
        container: String,
        /// The claims.
        claims: Vec<String>,
    },
    /// A GPU of the claim is sick.
    #[error("GPU {gpu} cannot be used now: {reason}")]
    Sick {
        /// The GPU.
        gpu: String,
        /// Why.
        reason: String,
    },
    /// What the claim had before cannot be taken away.
    #[error("{asked} was given other devices than those that are ready, and {why}")]
    InTheWay {
        /// The claim.
        asked: Asked,
        /// Why not.
        why: Box<DiskError>,
    },
    /// What the claim's containers get cannot be made or taken away.
    #[error("{asked}: {why}")]
    Disk {
        /// The claim.
        asked: Asked,
        /// Why not.
        why: Box<DiskError>,
    },
}

/// Why the files of a claim cannot be made or taken away.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A process uses a directory that is to be removed.
    #[error("a process still uses {}; it is tried again", .0.display())]
    Used(PathBuf),
    /// A process uses a directory that is to get other devices.
    #[error("a process still uses {}, which was given other devices; it is tried again", .0.display())]
    UsedOtherwise(PathBuf),
    /// What containers get cannot be made or removed.
    #[error(transparent)]
    Delivery(#[from] DeliveryError),
    /// A claim's record cannot be written.
    #[error("cannot write the claim's record: {0}; make room on the node's disk")]
    Put(io::Error),
    /// A claim's record cannot be removed.
    #[error("cannot remove the claim's record: {0}")]
    Remove(io::Error),
    /// A MIG instance cannot be made.
    #[error(transparent)]
    Instance(#[from] MigError),
    /// The thread that writes has panicked.
    #[error("the thread that writes the disk has ended: {0}")]
    Ended(#[from] JoinError),
}

/// The preparer of this node. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Preparer(Arc<State>);

#[derive(Debug)]
struct State {
    parts: Parts,
    turns: ClaimTurns,
    /// Held from the making of a claim's instances until its record names them, and while others are removed.
    instances: Mutex<()>,
}

/// A device of a claim that is ready, as the answer to the kubelet names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyDevice {
    /// The request.
    pub request: String,
    /// The device's name in the node's pool.
    pub device: String,
    /// Which share of it.
    pub share_id: Option<String>,
    /// The CDI device that the runtime is to add, as `vendor/class=name`.
    pub cdi_device: String,
}

/// The pods for which a claim is reserved.
#[derive(Debug, Default)]
struct Reserved {
    /// Name and uid of each pod.
    pods: Vec<(String, String)>,
    /// How their containers use claims.
    uses: Vec<Use>,
    /// Workload and trace of the first.
    first: Option<Pod>,
}

impl Preparer {
    /// A preparer with these parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(State {
            parts,
            turns: ClaimTurns::default(),
            instances: Mutex::default(),
        }))
    }

    /// Makes a claim ready. `beside` are the other claims of the same call.
    ///
    /// # Errors
    /// Why it is not ready. The earlier state is unchanged.
    pub async fn prepare(
        &self,
        asked: &Asked,
        beside: &[Asked],
    ) -> Result<Vec<ReadyDevice>, PrepareError> {
        let (this, of, beside) = (self.clone(), asked.clone(), beside.to_vec());
        // A task of its own: it keeps the claim's turn until the disk is written, also if the kubelet waits no longer.
        let task = tokio::spawn(async move {
            let _turn = this.0.turns.of(&of.uid).await;
            this.made(&of, &beside).await
        });
        let done = task.await.map_err(DiskError::from);
        done.map_err(on_disk(asked))?
    }

    async fn made(
        &self,
        asked: &Asked,
        beside: &[Asked],
    ) -> Result<Vec<ReadyDevice>, PrepareError> {
        let parts = &self.0.parts;
        let before = parts.checkpoint.get(&asked.uid);
        let claim = match api::claim(&parts.client, &asked.namespace, &asked.name).await {
            Ok(claim) => claim,
            Err(Without::Gone) => {
                return Err(PrepareError::Gone(asked.clone()));
            }
            Err(Without::Refused(why)) => {
                let what = asked.to_string();
                return Err(PrepareError::NotShown { what, why });
            }
            Err(Without::Away(why)) => {
                let Some(before) = before else {
                    let asked = asked.clone();
                    return Err(PrepareError::Away { asked, why });
                };
                tracing::info!(claim = %asked, "the API server is away: giving again what is remembered");
                return self.again(asked, &before).await;
            }
        };
        let inventory = parts.inventories.borrow().clone();
        let inventory = inventory.ok_or(PrepareError::GpusUnread)?;
        let shares = claim::shares(&claim, asked, &parts.node, &inventory)?;
        let before = before.map(|before| (holds(&before, &shares), before));
        if let Some((true, before)) = &before {
            return self.again(asked, before).await;
        }
        let reserved = self.reserved(asked, &claim).await?;
        if before.is_some() {
            self.make_way(asked).await?;
        }
        self.is_alone(asked, beside, &reserved.uses)?;
        self.are_well(&shares)?;
        let uses: Vec<Use> = reserved
            .uses
            .iter()
            .filter(|it| it.claim == asked.name)
            .cloned()
            .collect();
        let ready = Ready {
            namespace: asked.namespace.clone(),
            name: asked.name.clone(),
            parts: claim::parts(shares, &uses).map_err(|why| PrepareError::Parts {
                asked: asked.clone(),
                why: Box::new(why),
            })?,
        };
        self.make(asked, ready, &reserved).await
    }

    /// Gives every part again, as it was: makes again what is missing.
    async fn again(&self, asked: &Asked, ready: &Ready) -> Result<Vec<ReadyDevice>, PrepareError> {
        let (this, asked_for, parts) = (self.clone(), asked.clone(), ready.parts.clone());
        let given = spawn_blocking(move || {
            let delivery = &this.0.parts.delivery;
            let turn = this.turn_of_instances(&parts);
            parts.iter().enumerate().try_for_each(|(at, part)| {
                let name = part_name(&asked_for.uid, at);
                // Labels stay as they are on the disk.
                let mut given = delivery
                    .given(&name)
                    .unwrap_or_else(|| given(part, &Reserved::default(), &asked_for, ""));
                // A reboot takes instances away, and the next one has another name.
                this.make_instances(&mut given, turn.as_ref(), &places(&parts))?;
                delivery.give(&name, &given).map_err(DiskError::from)
            })
        });
        let given = given.await.map_err(DiskError::from);
        given.flatten().map_err(on_disk(asked))?;
        Ok(devices(&asked.uid, ready))
    }

    /// The claim was given other devices than before. Nothing that runs loses what it has.
    async fn make_way(&self, asked: &Asked) -> Result<(), PrepareError> {
        let taken = self.take_away(&asked.uid).await;
        taken.map_err(|why| PrepareError::InTheWay {
            asked: asked.clone(),
            why: Box::new(why),
        })
    }

    /// Reads the pods for which the claim is reserved.
    async fn reserved(
        &self,
        asked: &Asked,
        claim: &ResourceClaim,
    ) -> Result<Reserved, PrepareError> {
        let mut reserved = Reserved::default();
        let consumers = claim
            .status
            .as_ref()
            .and_then(|it| it.reserved_for.as_ref());
        for consumer in consumers.map(Vec::as_slice).unwrap_or_default() {
            if consumer.resource != "pods" {
                continue;
            }
            let client = &self.0.parts.client;
            let pod = match api::pod(client, &asked.namespace, &consumer.name).await {
                Ok(pod) => pod,
                // Another pod of the claim may have ended a moment ago.
                Err(Without::Gone) => continue,
                Err(Without::Refused(why) | Without::Away(why)) => {
                    return Err(PrepareError::NotShown {
                        what: format!("pod {}/{}", asked.namespace, consumer.name),
                        why,
                    });
                }
            };
            if pod.pointer("/metadata/uid").and_then(Value::as_str) != Some(&consumer.uid) {
                continue;
            }
            let claims = PodClaims::deserialize(&pod).map_err(|why| PrepareError::Pod {
                namespace: asked.namespace.clone(),
                name: consumer.name.clone(),
                why,
            })?;
            reserved.uses.extend(claims.uses(&consumer.name));
            if reserved.first.is_none() {
                reserved.first = Pod::deserialize(&pod).ok();
            }
            reserved
                .pods
                .push((consumer.name.clone(), consumer.uid.clone()));
        }
        if reserved.pods.is_empty() {
            return Err(PrepareError::NoPod(asked.clone()));
        }
        Ok(reserved)
    }

    /// A container has room for one claim: two would be mounted over each other.
    fn is_alone(&self, asked: &Asked, beside: &[Asked], uses: &[Use]) -> Result<(), PrepareError> {
        let known = self.0.parts.checkpoint.names_in(&asked.namespace);
        let known = known.iter().map(String::as_str);
        let beside = beside.iter().map(|asked| asked.name.as_str());
        let ours: BTreeSet<&str> = known.chain(beside).chain([asked.name.as_str()]).collect();
        match claim::crowded(uses, |name| ours.contains(name)) {
            Some((container, claims)) if claims.contains(&asked.name) => {
                Err(PrepareError::Crowded { container, claims })
            }
            _ => Ok(()),
        }
    }

    fn are_well(&self, shares: &[Share]) -> Result<(), PrepareError> {
        let health = self.0.parts.healths.borrow().clone();
        for share in shares {
            if let Some(sick) = health.get(&share.gpu) {
                return Err(PrepareError::Sick {
                    gpu: share.gpu.clone(),
                    reason: sick.reason.clone(),
                });
            }
        }
        Ok(())
    }

    /// Makes all parts, or none.
    async fn make(
        &self,
        asked: &Asked,
        ready: Ready,
        reserved: &Reserved,
    ) -> Result<Vec<ReadyDevice>, PrepareError> {
        let all: Vec<(Name, Given)> = ready
            .parts
            .iter()
            .enumerate()
            .map(|(at, part)| {
                let given = given(part, reserved, asked, &self.0.parts.team_label);
                (part_name(&asked.uid, at), given)
            })
            .collect();
        let (this, uid, kept) = (self.clone(), asked.uid.clone(), ready.clone());
        let made = spawn_blocking(move || {
            let Parts {
                delivery,
                checkpoint,
                ..
            } = &this.0.parts;
            let turn = this.turn_of_instances(&kept.parts);
            let mut all = all;
            for (_, given) in &mut all {
                let made = this.make_instances(given, turn.as_ref(), &places(&kept.parts));
                if made.is_err() {
                    this.remove_instances(turn.as_ref(), BTreeSet::new());
                }
                made?;
            }
            // The record of claims may have been lost while containers run.
            let known = delivery.known()?;
            let changed = |(name, given): &&(Name, Given)| {
                let before = delivery.given(name);
                before.is_some_and(|before| before.devices != given.devices)
                    && delivery.is_used(name)
            };
            if let Some((name, _)) = all.iter().find(changed) {
                return Err(DiskError::UsedOtherwise(delivery.root().join(&name.0)));
            }
            let made = all
                .iter()
                .try_for_each(|(name, given)| delivery.give(name, given))
                .map_err(DiskError::from);
            let made = made.and_then(|()| checkpoint.put(&uid, kept).map_err(DiskError::Put));
            if made.is_err() {
                // No container has been started with what is new. A rest is removed at the next try.
                let fresh = all.iter().filter(|(name, _)| !known.contains(name));
                for (name, _) in fresh {
                    drop(delivery.remove(name));
                }
                this.remove_instances(turn.as_ref(), BTreeSet::new());
            }
            made
        });
        let made = made.await.map_err(DiskError::from);
        made.flatten().map_err(on_disk(asked))?;
        tracing::info!(claim = %asked, uid = asked.uid, parts = ready.parts.len(), "the claim is ready");
        Ok(devices(&asked.uid, &ready))
    }

    /// Takes a claim away; one that is not known is away already.
    ///
    /// # Errors
    /// A process still uses it, or the disk does not let it go.
    pub async fn unprepare(&self, asked: &Asked) -> Result<(), PrepareError> {
        let (this, of) = (self.clone(), asked.clone());
        let task = tokio::spawn(async move {
            let _turn = this.0.turns.of(&of.uid).await;
            let taken = this.take_away(&of.uid).await;
            taken.map_err(on_disk(&of))
        });
        let done = task.await.map_err(DiskError::from);
        done.map_err(on_disk(asked))?
    }

    /// Forgets each claim that has no directory any more and that the API server does not have allocated: its directories
    /// were cleared, or the driver was killed between the last directory and the record. What cannot be forgotten now is
    /// tried again at the next call.
    pub async fn forget_gone(&self) {
        let Parts {
            client,
            delivery,
            checkpoint,
            ..
        } = &self.0.parts;
        let is_without_directory = |uid: &str| {
            let known = delivery.known().unwrap_or_default();
            parts_of(uid, known).is_empty()
        };
        for (uid, ready) in checkpoint.all() {
            if !is_without_directory(&uid) {
                continue;
            }
            // The one that has the claim's turn makes its directories again.
            let Some(_turn) = self.0.turns.free(&uid) else {
                continue;
            };
            let given = api::is_given(client, &ready.namespace, &ready.name, &uid).await;
            if !matches!(given, Ok(false)) || !is_without_directory(&uid) {
                continue;
            }
            let (store, of) = (Arc::clone(checkpoint), uid.clone());
            let removed = spawn_blocking(move || store.remove(&of).map_err(DiskError::Remove));
            let Ready {
                namespace, name, ..
            } = ready;
            match removed.await.map_err(DiskError::from).flatten() {
                Ok(()) => tracing::info!(
                    namespace,
                    claim = name,
                    uid,
                    "the claim is gone, and the kubelet has not said so"
                ),
                Err(error) => {
                    tracing::warn!(namespace, claim = name, uid, %error, "the claim's record stays")
                }
            }
        }
    }

    async fn take_away(&self, uid: &str) -> Result<(), DiskError> {
        let (this, uid) = (self.clone(), uid.to_owned());
        let taken = spawn_blocking(move || {
            let Parts {
                delivery,
                checkpoint,
                ..
            } = &this.0.parts;
            let before = checkpoint.get(&uid).map(|ready| ready.parts);
            let turn = this.turn_of_instances(&before.unwrap_or_default());
            let names: Vec<Name> = parts_of(&uid, delivery.known()?);
            if let Some(name) = names.iter().find(|name| delivery.is_used(name)) {
                return Err(DiskError::Used(delivery.root().join(&name.0)));
            }
            for name in &names {
                delivery.remove(name)?;
            }
            checkpoint.remove(&uid).map_err(DiskError::Remove)?;
            this.remove_instances(turn.as_ref(), BTreeSet::new());
            Ok(())
        });
        taken.await?
    }

    /// Removes the MIG instances that no claim has: those of claims whose directories were cleared, and those that were
    /// left when the driver was killed.
    pub async fn clear_instances(&self) {
        let this = self.clone();
        let cleared = spawn_blocking(move || {
            let turn = this.0.instances.lock();
            this.remove_instances(Some(&turn), BTreeSet::new());
        });
        if let Err(error) = cleared.await {
            tracing::error!(%error, "the thread that removes MIG instances has ended");
        }
    }

    /// The turn of the instances, where these parts have any.
    fn turn_of_instances(&self, parts: &[Part]) -> Option<MutexGuard<'_, ()>> {
        let mut shares = parts.iter().flat_map(|part| &part.shares);
        let has_any = shares.any(|share| share.instance.is_some());
        has_any.then(|| self.0.instances.lock())
    }

    /// Makes each instance of a part, or finds the one that is there, and writes down what the driver calls it. The caller
    /// has the turn; `own` are the places of all instances of the claim.
    fn make_instances(
        &self,
        given: &mut Given,
        turn: Option<&MutexGuard<'_, ()>>,
        own: &BTreeSet<(String, Span)>,
    ) -> Result<(), MigError> {
        for device in &mut given.devices {
            let Some(instance) = &mut device.instance else {
                continue;
            };
            let GivenInstance {
                gpu, profile, span, ..
            } = &*instance;
            let mig = &self.0.parts.mig;
            let mut made = mig.make(gpu, profile, *span);
            if let Err(MigError::Occupied { .. }) = &made {
                // It may be of a claim that has ended and whose instance could not be removed then.
                self.remove_instances(turn, own.clone());
                made = mig.make(gpu, profile, *span);
            }
            let made = made?;
            device.uuid = made.uuid;
            instance.gpu_instance = made.gpu_instance;
            instance.compute_instance = made.compute_instance;
        }
        Ok(())
    }

    /// Removes the instances that were made here, lie in none of these places, and that neither a record nor a directory
    /// has. One that a process uses stays, and is tried again at the next call. Without the turn nothing is done: no
    /// instance is concerned.
    fn remove_instances(
        &self,
        turn: Option<&MutexGuard<'_, ()>>,
        mut held: BTreeSet<(String, Span)>,
    ) {
        if turn.is_none() {
            return;
        }
        let Parts {
            delivery,
            checkpoint,
            mig,
            ..
        } = &self.0.parts;
        held.extend(delivery.instances_but(&BTreeSet::new()));
        for ready in checkpoint.all().values() {
            held.extend(places(&ready.parts));
        }
        let left = mig.keep_only(&held, Instant::now());
        for error in left.unwrap_or_else(|error| vec![error]) {
            tracing::warn!(%error, "cannot remove a MIG instance that no claim has; it is tried again");
        }
    }

    /// Where claims have their directories.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.0.parts.delivery.root().to_owned()
    }
}

/// Where the instances of these parts lie: GPU and memory slices.
fn places(parts: &[Part]) -> BTreeSet<(String, Span)> {
    let shares = parts.iter().flat_map(|part| &part.shares);
    let places = shares.filter_map(|share| {
        let instance = share.instance.as_ref()?;
        Some((share.gpu.clone(), instance.span()))
    });
    places.collect()
}

fn on_disk(asked: &Asked) -> impl FnOnce(DiskError) -> PrepareError {
    let asked = asked.clone();
    |why| PrepareError::Disk {
        asked,
        why: Box::new(why),
    }
}

/// Whether the parts that are ready hold exactly the shares that the claim was given.
fn holds(ready: &Ready, shares: &[Share]) -> bool {
    let mut held: Vec<&Share> = ready.parts.iter().flat_map(|part| &part.shares).collect();
    let mut given: Vec<&Share> = shares.iter().collect();
    let order = |share: &&Share| {
        let id = share.share_id.clone().unwrap_or_default();
        (share.request.clone(), share.device.clone(), id)
    };
    held.sort_by_key(order);
    given.sort_by_key(order);
    held == given
}

fn devices(uid: &str, ready: &Ready) -> Vec<ReadyDevice> {
    let parts = ready.parts.iter().enumerate();
    let devices = parts.flat_map(|(at, part)| {
        let name = part_name(uid, at);
        let shares = part.shares.iter().enumerate();
        shares.map(move |(place, share)| ReadyDevice {
            request: share.request.clone(),
            device: share.device.clone(),
            share_id: share.share_id.clone(),
            cdi_device: Delivery::claim_device(&name, place),
        })
    });
    devices.collect()
}

fn given(part: &Part, reserved: &Reserved, asked: &Asked, team_label: &str) -> Given {
    let (pod, pod_uid) = reserved.pods.first().cloned().unwrap_or_default();
    let parameters = part.shares.first().map(|share| share.parameters);
    let parameters = parameters.unwrap_or_default();
    let device = |share: &Share| GivenDevice {
        uuid: share.gpu.clone(),
        memory_bytes: share.memory_bytes,
        physical_bytes: share.physical_bytes,
        cores: share.cores,
        floor: share.parameters.floor,
        oversubscribe_bytes: share.parameters.oversubscribe_bytes,
        // The driver's names of the instance follow when it is made.
        instance: share.instance.as_ref().map(|it| GivenInstance {
            gpu: share.gpu.clone(),
            profile: it.profile.clone(),
            span: it.span(),
            gpu_instance: 0,
            compute_instance: 0,
        }),
    };
    let first = reserved.first.as_ref();
    Given {
        namespace: asked.namespace.clone(),
        pod,
        pod_uid,
        container: part.containers.join(","),
        kind: Kind::App,
        devices: part.shares.iter().map(device).collect(),
        priority: parameters.priority,
        policy: claim::policy(parameters.policy),
        workload: first
            .map(|pod| identity::workload(pod, team_label))
            .unwrap_or_default(),
        traceparent: first.and_then(identity::traceparent),
        claim: Some(ClaimLabel {
            name: asked.name.clone(),
            uid: asked.uid.clone(),
            pods: reserved.pods.iter().map(|(_, uid)| uid.clone()).collect(),
        }),
    }
}
