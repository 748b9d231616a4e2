//! Reads the facts that the ledger needs from pods, nodes, quotas and misfits. Values in, values out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube_api::object::{Container, Node, Pod, ResourceQuota};
pub use kube_api::request::identity;
use placement::{Cluster, Misfit, NodeMisfit, Placement};

/// The uid of a pod in the ledger; a pod without a uid gets its namespace and name.
pub fn uid_of(pod: &Pod) -> Arc<str> {
    identity(pod).uid.into()
}

/// Namespace and name of a quota.
pub fn named(quota: &ResourceQuota) -> (&str, &str) {
    (
        quota.metadata.namespace.as_deref().unwrap_or_default(),
        quota.metadata.name.as_deref().unwrap_or_default(),
    )
}

/// Whether all init containers that end have succeeded.
pub(super) fn initialised(pod: &Pod) -> bool {
    let mut ending = pod
        .spec
        .init_containers
        .iter()
        .filter(|container| !container.is_sidecar())
        .peekable();
    ending.peek().is_some()
        && ending.all(|container| {
            pod.status
                .init_container_statuses
                .iter()
                .find(|status| status.name == container.name)
                .and_then(|status| status.state.terminated.as_ref())
                .is_some_and(|ended| ended.exit_code == 0)
        })
}

/// A placement in the precision of annotations: container, device, whole MiB, compute.
pub(super) fn shares(placement: &Placement) -> Vec<(usize, &str, u64, u32)> {
    let containers = placement.containers.iter().enumerate();
    containers
        .flat_map(|(container, granted)| {
            granted.grants.iter().map(move |grant| {
                let mib = grant.memory_bytes.div_ceil(1 << 20);
                (container, &*grant.device, mib, grant.cores)
            })
        })
        .collect()
}

/// Whether every device of the placement exists, takes pods, and is not overcommitted. Another replica that answered a
/// moment ago, another scheduler, or a restored pod may have bound what was reserved here.
pub(super) fn still_fits(cluster: &Cluster, placement: &Placement) -> bool {
    let Some(node) = cluster.node(&placement.node) else {
        return false;
    };
    let grants = placement.containers.iter().flat_map(|one| &one.grants);
    grants.into_iter().all(|grant| {
        let Some(view) = node.device(&grant.device) else {
            return false;
        };
        let (device, used, instances) = (view.device(), view.used(), view.instances());
        let apart = instances.iter().enumerate().all(|(at, one)| {
            let others = instances.iter().skip(at + 1);
            others
                .into_iter()
                .all(|other| !one.span.overlaps(other.span))
        });
        device.healthy
            && !view.is_in_conflict()
            && apart
            && used.slots <= device.slots
            && used.memory_bytes <= device.memory_bytes
            && (device.is_mig() || device.cores == 0 || used.cores <= device.cores)
    })
}

/// The amounts that kube-scheduler counts for a pod: the sum of the containers that run at the same time, or the
/// largest init container, whichever is more.
pub(super) fn counted(pod: &Pod) -> Vec<(Box<str>, i128)> {
    let of = |container: &Container| -> Vec<(String, i128)> {
        let needs = &container.resources;
        let names: BTreeSet<&String> = needs.requests.keys().chain(needs.limits.keys()).collect();
        names
            .into_iter()
            .filter_map(|name| {
                let written = needs
                    .requests
                    .get(name)
                    .or_else(|| needs.limits.get(name))?;
                Some((name.clone(), written.parse().ok()?.milli()?))
            })
            .collect()
    };
    let mut sum: BTreeMap<String, i128> = BTreeMap::new();
    let sidecars = pod
        .spec
        .init_containers
        .iter()
        .filter(|one| one.is_sidecar());
    for container in pod.spec.containers.iter().chain(sidecars) {
        for (name, amount) in of(container) {
            let so_far = sum.entry(name).or_default();
            *so_far = so_far.saturating_add(amount);
        }
    }
    for container in pod
        .spec
        .init_containers
        .iter()
        .filter(|one| !one.is_sidecar())
    {
        for (name, amount) in of(container) {
            let so_far = sum.entry(name).or_default();
            *so_far = amount.max(*so_far);
        }
    }
    sum.into_iter()
        .map(|(name, amount)| (name.into_boxed_str(), amount))
        .collect()
}

pub(super) fn version_of(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_deref()?.parse().ok()
}

/// Distinguishes one "it could not be scheduled" from the next; none without such a condition.
pub(super) fn unscheduled(pod: &Pod) -> Option<u64> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let condition = pod
        .status
        .conditions
        .iter()
        .find(|condition| condition.kind == "PodScheduled" && condition.status == "False")?;
    let mut hasher = DefaultHasher::new();
    condition.reason.hash(&mut hasher);
    condition.message.hash(&mut hasher);
    condition.last_transition_time.hash(&mut hasher);
    Some(hasher.finish())
}

/// The node, reduced to the fields that are read, because thousands are kept.
pub(super) fn slim(mut node: Node) -> Node {
    node.metadata.managed_fields = None;
    node.metadata.owner_references = None;
    if let Some(annotations) = &mut node.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    node
}

/// The reason that most nodes have.
pub(super) fn main_reason(misfits: &[NodeMisfit]) -> &'static str {
    let mut counts: Vec<(&'static str, usize)> = Vec::new();
    for NodeMisfit { misfit, .. } in misfits {
        let code = match misfit {
            Misfit::UnknownNode => continue,
            Misfit::NoVendor | Misfit::TooFewDevices { .. } => "NodeInsufficientDevice",
            Misfit::Devices { reasons, .. } => reasons
                .iter()
                .next()
                .map_or("NodeInsufficientDevice", |(_, reason)| reason.code()),
        };
        match counts.iter_mut().find(|(of, _)| *of == code) {
            Some((_, count)) => *count += 1,
            None => counts.push((code, 1)),
        }
    }
    counts
        .into_iter()
        .max_by(|(a, one), (b, other)| one.cmp(other).then_with(|| b.cmp(a)))
        .map_or("NoDevices", |(code, _)| code)
}
