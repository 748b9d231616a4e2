//! `NodeVolumeLimits`: how many volumes of a CSI driver a node supports. VolumeAttachment objects are not read, only
//! the pods' own volumes.

use std::collections::BTreeSet;

use super::volumes::{claim, hopeless, no_claim, not_owned};
use super::{Before, Context};
use crate::model::{CsiDriver, PersistentVolumeClaim, Pod};
use crate::names::Symbol;
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::Rejection;

/// A volume: its driver, and its handle or the claim that it will be made for.
type Identity = (Symbol, Result<Symbol, (Symbol, Symbol)>);

pub(crate) fn pre_filter(context: &Context<'_>) -> Before {
    if context.pod.claims.is_empty() {
        Before::Skip
    } else {
        Before::Run
    }
}

pub(crate) fn filter(context: &Context<'_>, node: &NodeState) -> Result<(), Rejection> {
    let mut wanted = BTreeSet::new();
    collect(context, context.pod, true, &mut wanted)?;
    let limits = context.snapshot.csi_nodes.get(&node.node.symbol);
    let limited = |driver: &CsiDriver| driver.most.map(|most| (driver.name, most));
    let limits: Vec<(Symbol, i64)> = limits
        .iter()
        .flat_map(|node| &node.drivers)
        .filter_map(limited)
        .collect();
    if wanted.is_empty() || limits.is_empty() {
        return Ok(());
    }
    let mut attached = BTreeSet::new();
    for pod in &node.pods {
        collect(context, pod, false, &mut attached)?;
    }
    for (driver, most) in limits {
        let of_driver = |volume: &&Identity| volume.0 == driver;
        let new = wanted.difference(&attached).filter(of_driver).count();
        let old = attached.iter().filter(of_driver).count();
        if new > 0 && i64::try_from(new + old).unwrap_or(i64::MAX) > most {
            return Err(Rejection::unschedulable(
                Plugin::NodeVolumeLimits,
                "node(s) exceed max volume count",
            ));
        }
    }
    Ok(())
}

fn collect(
    context: &Context<'_>,
    pod: &Pod,
    is_new: bool,
    volumes: &mut BTreeSet<Identity>,
) -> Result<(), Rejection> {
    for wanted in &pod.claims {
        match claim(context, pod.namespace, wanted) {
            Some(found) => {
                if is_new && let Some(why) = not_owned(context, wanted, found) {
                    return Err(hopeless(Plugin::NodeVolumeLimits, why));
                }
                volumes.extend(identity(context, found));
            }
            None if is_new => {
                let namespace = context.names().text(pod.namespace);
                let name = context.names().text(wanted.name);
                let why = no_claim(context, wanted);
                return Err(hopeless(
                    Plugin::NodeVolumeLimits,
                    format!("looking up PVC {namespace}/{name}: {why}"),
                ));
            }
            None => {}
        }
    }
    Ok(())
}

fn identity(context: &Context<'_>, claim: &PersistentVolumeClaim) -> Option<Identity> {
    if let Some(volume) = context.snapshot.volumes.get(&claim.volume) {
        return volume.csi.map(|(driver, handle)| (driver, Ok(handle)));
    }
    let class = context.snapshot.classes.get(&claim.class)?;
    Some((class.provisioner, Err((claim.namespace, claim.name))))
}
