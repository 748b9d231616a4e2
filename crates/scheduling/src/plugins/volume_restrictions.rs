//! `VolumeRestrictions`: disks that a node mounts only once, and claims that only one pod may mount. One difference
//! from kube-scheduler: in a trial without some pods, claims of the same name in other namespaces do not count.

use std::sync::Arc;

use super::volumes::{claim, hopeless, no_claim};
use super::{Before, Context};
use crate::model::{Pod, Volume};
use crate::names::Symbol;
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::Rejection;

/// Claims that only this pod may mount, and how many of them are mounted.
#[derive(Debug, Clone)]
pub(crate) struct ExclusiveClaims {
    alone: Vec<Symbol>,
    conflicts: i64,
}

fn is_restricted(volume: &Volume) -> bool {
    !matches!(volume, Volume::Csi { .. })
}

pub(crate) fn pre_filter(context: &Context<'_>) -> (Before, Option<ExclusiveClaims>) {
    let pod = context.pod;
    if pod.claims.is_empty() && pod.volumes.is_empty() {
        return (Before::Skip, None);
    }
    let mut alone = Vec::new();
    for wanted in pod.claims.iter().filter(|claim| !claim.ephemeral) {
        let Some(found) = claim(context, pod.namespace, wanted) else {
            let why = no_claim(context, wanted);
            let rejection = hopeless(Plugin::VolumeRestrictions, why);
            return (Before::Refuse(rejection), None);
        };
        let mode = |mode: &Symbol| context.names().text(*mode) == "ReadWriteOncePod";
        if found.access_modes.iter().any(mode) {
            alone.push(wanted.name);
        }
    }
    alone.sort_unstable();
    alone.dedup();
    let is_mounted = |name: &&Symbol| {
        let mounts = |other: &Arc<Pod>| {
            other.namespace == pod.namespace && mounted(other, std::slice::from_ref(*name)) > 0
        };
        context
            .snapshot
            .nodes()
            .any(|node| node.pods.iter().any(mounts))
    };
    let conflicts = i64::try_from(alone.iter().filter(is_mounted).count()).unwrap_or(i64::MAX);
    if conflicts == 0 && !pod.volumes.iter().any(is_restricted) {
        return (Before::Skip, None);
    }
    (Before::Run, Some(ExclusiveClaims { alone, conflicts }))
}

fn mounted(pod: &Pod, names: &[Symbol]) -> i64 {
    let count = pod
        .claims
        .iter()
        .filter(|claim| !claim.ephemeral && names.contains(&claim.name))
        .count();
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl ExclusiveClaims {
    /// Adds a pod (1) or removes it (-1) for a trial.
    pub(crate) fn change(&mut self, context: &Context<'_>, pod: &Pod, by: i64) {
        if pod.namespace == context.pod.namespace {
            self.conflicts += by * mounted(pod, &self.alone);
        }
    }

    pub(crate) fn filter(&self, context: &Context<'_>, node: &NodeState) -> Result<(), Rejection> {
        let wanted = &context.pod.volumes;
        let taken = |volume: &Volume| {
            node.pods
                .iter()
                .flat_map(|pod| &pod.volumes)
                .any(|other| conflict(volume, other))
        };
        if wanted.iter().any(taken) {
            return Err(Rejection::unschedulable(
                Plugin::VolumeRestrictions,
                "node(s) had no available disk",
            ));
        }
        if self.conflicts > 0 {
            return Err(Rejection::unschedulable(
                Plugin::VolumeRestrictions,
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
            ));
        }
        Ok(())
    }
}

/// Whether both are the same disk and at least one of them cannot share it.
fn conflict(one: &Volume, other: &Volume) -> bool {
    match (one, other) {
        (
            Volume::GceDisk { name, read_only },
            Volume::GceDisk {
                name: other,
                read_only: also,
            },
        )
        | (
            Volume::Iscsi {
                iqn: name,
                read_only,
            },
            Volume::Iscsi {
                iqn: other,
                read_only: also,
            },
        ) => name == other && !(*read_only && *also),
        (Volume::AwsDisk { id }, Volume::AwsDisk { id: other }) => id == other,
        (
            Volume::Rbd {
                monitors,
                pool,
                image,
                read_only,
            },
            Volume::Rbd {
                monitors: others,
                pool: other_pool,
                image: other_image,
                read_only: also,
            },
        ) => {
            pool == other_pool
                && image == other_image
                && monitors.iter().any(|monitor| others.contains(monitor))
                && !(*read_only && *also)
        }
        _ => false,
    }
}
