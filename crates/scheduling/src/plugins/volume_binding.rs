//! `VolumeBinding`: whether the pod's claims have volumes that the node reaches, or can get some. The capacity left
//! at a provisioner is not checked.

use std::sync::Arc;

use super::volumes::{claim, hopeless, not_owned, reaches};
use super::{Before, Context};
use crate::model::{BindingMode, PersistentVolume, PersistentVolumeClaim};
use crate::names::Symbol;
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::{Code, Reason, Reasons, Rejection};

/// The work to be done for volumes when the pod is bound.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeWork {
    /// Claims and the volumes that they get, by name in the pod's namespace.
    pub bind: Vec<(Arc<str>, Arc<str>)>,
    /// Claims for which a volume must be made, by name in the pod's namespace.
    pub provision: Vec<Arc<str>>,
}

/// The pod's claims.
#[derive(Debug, Clone)]
pub(crate) struct ClaimsToBind {
    bound: Vec<Arc<PersistentVolumeClaim>>,
    /// Claims without a volume, the smallest first.
    waiting: Vec<Arc<PersistentVolumeClaim>>,
    /// Volumes of the waiting claims' classes, by name.
    volumes: Vec<Arc<PersistentVolume>>,
}

/// Why a node cannot serve a bound claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unmet {
    /// There is no volume of the claim's.
    Missing,
    /// The node does not reach the claim's volume.
    Elsewhere,
}

impl Unmet {
    fn reason(self) -> Reason {
        Reason::Fixed(match self {
            Self::Missing => {
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
            }
            Self::Elsewhere => "node(s) didn't match PersistentVolume's node affinity",
        })
    }
}

/// A waiting claim has no volume that the node reaches.
const NONE_TO_BIND: Reason =
    Reason::Fixed("node(s) didn't find available persistent volumes to bind");

pub(crate) fn pre_filter(context: &Context<'_>) -> (Before, Option<ClaimsToBind>) {
    if context.pod.claims.is_empty() {
        return (Before::Skip, None);
    }
    match prepare(context) {
        Ok(prepared) => (Before::Run, Some(prepared)),
        Err(rejection) => (Before::Refuse(rejection), None),
    }
}

fn prepare(context: &Context<'_>) -> Result<ClaimsToBind, Rejection> {
    let hopeless = |why: String| hopeless(Plugin::VolumeBinding, why);
    let names = context.names();
    let pod = context.pod;
    let mut prepared = ClaimsToBind {
        bound: Vec::new(),
        waiting: Vec::new(),
        volumes: Vec::new(),
    };
    let mut immediate = false;
    for wanted in &pod.claims {
        let name = names.text(wanted.name);
        let Some(found) = claim(context, pod.namespace, wanted) else {
            return Err(hopeless(if wanted.ephemeral {
                format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\""
                )
            } else {
                format!("persistentvolumeclaim \"{name}\" not found")
            }));
        };
        if found.lost {
            let volume = names.text(found.volume);
            return Err(hopeless(format!(
                "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
            )));
        }
        if found.terminating {
            let why = format!("persistentvolumeclaim \"{name}\" is being deleted");
            return Err(hopeless(why));
        }
        if let Some(why) = not_owned(context, wanted, found) {
            return Err(hopeless(why));
        }
        if found.bound {
            prepared.bound.push(Arc::clone(found));
            continue;
        }
        let class = context.snapshot.classes.get(&found.class);
        let waits = class.is_some_and(|class| class.mode == BindingMode::WaitForFirstConsumer);
        if waits && found.volume == Symbol::EMPTY {
            prepared.waiting.push(Arc::clone(found));
        } else {
            immediate = true;
        }
    }
    if immediate {
        let why = "pod has unbound immediate PersistentVolumeClaims";
        return Err(Rejection::unresolvable(Plugin::VolumeBinding, why));
    }
    prepared.waiting.sort_by_key(|claim| claim.bytes);
    let wanted = |volume: &&Arc<PersistentVolume>| {
        prepared
            .waiting
            .iter()
            .any(|claim| claim.class == volume.class)
    };
    let mut volumes: Vec<Arc<PersistentVolume>> = context
        .snapshot
        .volumes
        .values()
        .filter(wanted)
        .cloned()
        .collect();
    volumes.sort_by(|one, other| names.text(one.name).cmp(names.text(other.name)));
    prepared.volumes = volumes;
    Ok(prepared)
}

/// The node's answer to the pod's claims.
#[derive(Default)]
struct Found<'a> {
    bind: Vec<(&'a PersistentVolumeClaim, &'a PersistentVolume)>,
    provision: Vec<&'a PersistentVolumeClaim>,
}

impl ClaimsToBind {
    pub(crate) fn filter(&self, context: &Context<'_>, node: &NodeState) -> Result<(), Rejection> {
        self.find(context, node).map(|_| ())
    }

    /// The work to be done when the pod is bound to this node.
    pub(crate) fn work(&self, context: &Context<'_>, node: &NodeState) -> VolumeWork {
        let text = |name: Symbol| -> Arc<str> { context.names().text(name).into() };
        let found = self.find(context, node).unwrap_or_default();
        VolumeWork {
            bind: found
                .bind
                .iter()
                .map(|(claim, volume)| (text(claim.name), text(volume.name)))
                .collect(),
            provision: found
                .provision
                .iter()
                .map(|claim| text(claim.name))
                .collect(),
        }
    }

    fn find(&self, context: &Context<'_>, node: &NodeState) -> Result<Found<'_>, Rejection> {
        let unmet = self.unmet(context, node);
        let found = self.find_waiting(context, node)?;
        let reasons = match (unmet, found) {
            (None, Some(found)) => return Ok(found),
            (None, None) => vec![NONE_TO_BIND],
            (Some(unmet), Some(_)) => vec![unmet.reason()],
            // kube-scheduler's order.
            (Some(Unmet::Missing), None) => vec![NONE_TO_BIND, Unmet::Missing.reason()],
            (Some(Unmet::Elsewhere), None) => vec![Unmet::Elsewhere.reason(), NONE_TO_BIND],
        };
        Err(Rejection {
            plugin: Some(Plugin::VolumeBinding),
            code: Code::Unresolvable,
            reasons: Reasons::Several(reasons.into()),
        })
    }

    /// Why the node cannot serve the first of the bound claims that it cannot serve.
    fn unmet(&self, context: &Context<'_>, node: &NodeState) -> Option<Unmet> {
        self.bound.iter().find_map(|claim| {
            let Some(volume) = context.snapshot.volumes.get(&claim.volume) else {
                return Some(Unmet::Missing);
            };
            (!reaches(context, volume, &node.node.labels)).then_some(Unmet::Elsewhere)
        })
    }

    /// Volumes for the waiting claims, or none if the node cannot serve one of them.
    fn find_waiting(
        &self,
        context: &Context<'_>,
        node: &NodeState,
    ) -> Result<Option<Found<'_>>, Rejection> {
        let mut found = Found::default();
        let selected = |claim: &&Arc<PersistentVolumeClaim>| claim.selected_node != Symbol::EMPTY;
        for claim in self.waiting.iter().filter(selected) {
            if claim.selected_node != node.node.symbol {
                return Ok(None);
            }
            found.provision.push(claim);
        }
        for claim in self.waiting.iter().filter(|claim| !selected(claim)) {
            let taken: Vec<Symbol> = found.bind.iter().map(|(_, volume)| volume.name).collect();
            match self.volume_for(context, node, claim, &taken) {
                Some(volume) => found.bind.push((claim, volume)),
                None => found.provision.push(claim),
            }
        }
        for claim in &found.provision {
            let Some(class) = context.snapshot.classes.get(&claim.class) else {
                let class = context.names().text(claim.class);
                return Err(Rejection::new(
                    Plugin::VolumeBinding,
                    Code::Error,
                    Reason::Text(format!("failed to find storage class \"{class}\"").into()),
                ));
            };
            let provisioner = context.names().text(class.provisioner);
            if matches!(provisioner, "" | "kubernetes.io/no-provisioner") {
                return Ok(None);
            }
            let labels = &node.node.labels;
            let allowed = class.topologies.is_empty()
                || class.topologies.iter().any(|term| {
                    !term.is_empty()
                        && term.iter().all(|(key, values)| {
                            labels
                                .get(*key)
                                .is_some_and(|value| values.contains(&value))
                        })
                });
            if !allowed {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    /// The volume that is reserved for the claim, else the smallest one that suits it.
    fn volume_for(
        &self,
        context: &Context<'_>,
        node: &NodeState,
        claim: &PersistentVolumeClaim,
        taken: &[Symbol],
    ) -> Option<&PersistentVolume> {
        let names = context.names();
        let labels = &node.node.labels;
        let mut smallest: Option<&PersistentVolume> = None;
        for volume in &self.volumes {
            let meant = volume.claim.is_some_and(|(namespace, name, uid)| {
                (namespace, name) == (claim.namespace, claim.name)
                    && (uid == Symbol::EMPTY || uid == claim.uid)
            });
            if volume.class != claim.class
                || taken.contains(&volume.name)
                || (volume.claim.is_some() && !meant)
                || volume.bytes < claim.bytes
                || volume.block != claim.block
                || volume.attributes_class != claim.attributes_class
            {
                continue;
            }
            let reached = reaches(context, volume, labels);
            if meant {
                return reached.then_some(volume);
            }
            let selected = claim
                .selector
                .as_ref()
                .is_none_or(|selector| selector.matches(names, &volume.labels));
            let mounts = claim
                .access_modes
                .iter()
                .all(|mode| volume.access_modes.contains(mode));
            if volume.available
                && selected
                && reached
                && mounts
                && smallest.is_none_or(|best| volume.bytes < best.bytes)
            {
                smallest = Some(volume);
            }
        }
        smallest
    }
}
