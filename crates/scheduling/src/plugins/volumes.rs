//! The facts about claims and volumes that the four volume plugins share. In-tree volumes are taken as they are:
//! kube-scheduler translates them to CSI volumes, this crate does not.

use std::sync::Arc;

use super::Context;
use crate::model::{Claim, PersistentVolume, PersistentVolumeClaim};
use crate::names::Symbol;
use crate::plugin::Plugin;
use crate::status::{Code, Reason, Rejection};

/// A refusal with a text made for it. Eviction cannot help.
pub(crate) fn hopeless(plugin: Plugin, text: String) -> Rejection {
    Rejection::new(plugin, Code::Unresolvable, Reason::Text(text.into()))
}

pub(crate) fn claim<'a>(
    context: &Context<'a>,
    namespace: Symbol,
    claim: &Claim,
) -> Option<&'a Arc<PersistentVolumeClaim>> {
    context.snapshot.claims.get(&(namespace, claim.name))
}

/// The API server's message about a claim that does not exist.
pub(crate) fn no_claim(context: &Context<'_>, claim: &Claim) -> String {
    let name = context.names().text(claim.name);
    format!("persistentvolumeclaim \"{name}\" not found")
}

/// Refuses a claim made from a template for another pod.
pub(crate) fn not_owned(
    context: &Context<'_>,
    claim: &Claim,
    found: &PersistentVolumeClaim,
) -> Option<String> {
    let names = context.names();
    let pod = context.pod;
    if !claim.ephemeral || names.text(found.owner) == &*pod.uid {
        return None;
    }
    let (namespace, name) = (names.text(found.namespace), names.text(found.name));
    Some(format!(
        "PVC {namespace}/{name} was not created for pod {} (pod is not owner)",
        pod.key
    ))
}

/// Whether the volume can be reached from a node with these labels.
pub(crate) fn reaches(
    context: &Context<'_>,
    volume: &PersistentVolume,
    labels: &crate::model::Labels,
) -> bool {
    volume
        .nodes
        .as_ref()
        .is_none_or(|nodes| nodes.matches(context.names(), Symbol::EMPTY, labels))
}
