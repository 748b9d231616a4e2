//! `VolumeZone`: whether the pod's volumes are in the node's zone and region, by their labels.

use super::volumes::{claim, hopeless, no_claim};
use super::{Before, Context};
use crate::model::{BindingMode, PersistentVolume};
use crate::names::Symbol;
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::Rejection;

/// Labels of zones and regions, each with the label that replaces an old one.
const LABELS: [(Symbol, Symbol); 4] = [
    (Symbol::OLD_ZONE, Symbol::ZONE),
    (Symbol::OLD_REGION, Symbol::REGION),
    (Symbol::ZONE, Symbol::ZONE),
    (Symbol::REGION, Symbol::REGION),
];

/// For each label of a volume the values that the node may have.
#[derive(Debug, Clone)]
pub(crate) struct ZoneLabels(Vec<(Symbol, Symbol, Vec<Symbol>)>);

pub(crate) fn pre_filter(context: &Context<'_>) -> (Before, Option<ZoneLabels>) {
    match prepare(context) {
        Ok(prepared) if prepared.0.is_empty() => (Before::Skip, None),
        Ok(prepared) => (Before::Run, Some(prepared)),
        Err(rejection) => (Before::Refuse(rejection), None),
    }
}

fn prepare(context: &Context<'_>) -> Result<ZoneLabels, Rejection> {
    let hopeless = |why: String| hopeless(Plugin::VolumeZone, why);
    let pod = context.pod;
    let names = context.names();
    let mut prepared = Vec::new();
    for wanted in pod.claims.iter().filter(|claim| !claim.ephemeral) {
        let found = claim(context, pod.namespace, wanted)
            .ok_or_else(|| hopeless(no_claim(context, wanted)))?;
        if found.volume != Symbol::EMPTY {
            let volume = context.snapshot.volumes.get(&found.volume).ok_or_else(|| {
                let name = names.text(found.volume);
                hopeless(format!("persistentvolume \"{name}\" not found"))
            })?;
            prepared.extend(topologies(context, volume));
            continue;
        }
        if found.class == Symbol::EMPTY {
            let why = "PersistentVolumeClaim had no pv name and storageClass name";
            return Err(Rejection::unresolvable(Plugin::VolumeZone, why));
        }
        let class = context.snapshot.classes.get(&found.class).ok_or_else(|| {
            let name = names.text(found.class);
            hopeless(format!("storageclass.storage.k8s.io \"{name}\" not found"))
        })?;
        if class.mode == BindingMode::Immediate {
            let why = "PersistentVolume had no name";
            return Err(Rejection::unresolvable(Plugin::VolumeZone, why));
        }
    }
    Ok(ZoneLabels(prepared))
}

fn topologies(
    context: &Context<'_>,
    volume: &PersistentVolume,
) -> Vec<(Symbol, Symbol, Vec<Symbol>)> {
    let names = context.names();
    LABELS
        .into_iter()
        .filter_map(|(key, instead)| {
            let text = names.text(volume.labels.get(key)?);
            // Several zones are separated by two underscores. A zone that no object names belongs to no node.
            let values = text.split("__").filter_map(|zone| names.known(zone));
            Some((key, instead, values.collect()))
        })
        .collect()
}

impl ZoneLabels {
    pub(crate) fn filter(&self, node: &NodeState) -> Result<(), Rejection> {
        let labels = &node.node.labels;
        if !LABELS.iter().any(|(key, _)| labels.get(*key).is_some()) {
            return Ok(());
        }
        for (key, instead, values) in &self.0 {
            let value = labels.get(*key).or_else(|| labels.get(*instead));
            if !value.is_some_and(|value| values.contains(&value)) {
                return Err(Rejection::unresolvable(
                    Plugin::VolumeZone,
                    "node(s) had no available volume zone",
                ));
            }
        }
        Ok(())
    }
}
