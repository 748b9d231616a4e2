//! Whether a GPU has room for a new pod, given what living pods already hold of it. Values in, values out;
//! `placement` does the sums. Never decides which pods live: the caller passes them.

use std::collections::BTreeMap;

use placement::{Cluster, Granted, Instance, InvalidNode, Node, Placement, Pod};

use super::allotments::{Allotment, Claim};
use super::identity::listed;
use crate::node_gpus::Inventory;

/// Why there is no room.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// The node's own GPUs cannot be counted, whichever pods hold them.
    #[error("{0}")]
    Node(#[from] InvalidNode),
    /// A GPU would have to give more than it has.
    #[error("GPU {gpu} would have to give {excess}; the others there are {others}")]
    Full {
        /// The GPU.
        gpu: String,
        /// The amount, beside what the GPU has.
        excess: String,
        /// The pods that hold shares of it.
        others: String,
    },
}

/// The shares of each pod: claims by uid, in the order of their containers.
pub fn by_pod(allotments: &[Allotment]) -> BTreeMap<&str, Vec<&Claim>> {
    let mut pods: BTreeMap<&str, Vec<&Claim>> = BTreeMap::new();
    for allotment in allotments {
        if let Some(claim) = &allotment.claim {
            let claims = pods.entry(claim.uid.as_str()).or_default();
            // The kubelet asked again for this container: the newer one is it.
            claims.retain(|older| older.container != claim.container);
            claims.push(claim);
        }
    }
    pods
}

/// Whether the node has room for the claims of one pod beside those of the `others`, by uid.
///
/// # Errors
///
/// Which GPU has not enough of what, and which pods hold it.
pub fn check(
    inventory: &Inventory,
    others: &BTreeMap<&str, Vec<&Claim>>,
    own: &[&Claim],
) -> Result<(), NoRoom> {
    const NODE: &str = "this node";
    let mut cluster = Cluster::new();
    let node = Node {
        name: NODE.to_owned(),
        devices: inventory
            .gpus
            .iter()
            .map(|gpu| gpu.device.clone())
            .collect(),
        pairs: Vec::new(),
    };
    cluster.set_node(node)?;
    let mut hold = |uid: &str, claims: &[&Claim]| {
        let placement = Placement {
            node: NODE.into(),
            containers: claims.iter().map(|claim| claim.granted()).collect(),
        };
        cluster.reserve(Pod::named("", uid), placement);
    };
    for (uid, claims) in others {
        hold(uid, claims);
    }
    if let Some(first) = own.first() {
        hold(&first.uid, own);
    }
    let Some(node) = cluster.node(NODE) else {
        return Ok(());
    };
    let mine: Vec<Granted> = own.iter().map(|claim| claim.granted()).collect();
    for grant in mine.iter().flat_map(|granted| &granted.grants) {
        let Some(view) = node.device(&grant.device) else {
            continue;
        };
        let (used, device) = (view.used(), view.device());
        let excess = if used.memory_bytes > device.memory_bytes && !device.is_mig() {
            format!(
                "{} MiB of {} MiB memory",
                used.memory_bytes >> 20,
                device.memory_bytes >> 20
            )
        } else if used.cores > device.cores && !device.is_mig() {
            format!("{} of {} cores", used.cores, device.cores)
        } else if used.slots > device.slots {
            format!("{} of {} slots", used.slots, device.slots)
        } else if view.is_in_conflict() {
            "instances as well as shares in software".to_owned()
        } else if let Some(instance) = &grant.instance
            && overlaps(instance, &grant.device, others)
        {
            format!(
                "two instances in the same place ({} at slice {})",
                instance.profile, instance.span.start
            )
        } else {
            continue;
        };
        return Err(NoRoom::Full {
            gpu: grant.device.to_string(),
            excess,
            others: holders(&grant.device, others),
        });
    }
    Ok(())
}

fn overlaps(instance: &Instance, gpu: &str, others: &BTreeMap<&str, Vec<&Claim>>) -> bool {
    let claims = others.values().flatten();
    claims
        .flat_map(|claim| &claim.shares)
        .filter(|share| share.gpu == gpu)
        .filter_map(|share| share.instance.as_ref())
        .any(|cut| cut.span().overlaps(instance.span))
}

fn holders(gpu: &str, others: &BTreeMap<&str, Vec<&Claim>>) -> String {
    const MOST_NAMED: usize = 6;
    let mut names: Vec<String> = Vec::new();
    for claim in others.values().flatten() {
        let name = format!("{}/{}", claim.namespace, claim.pod);
        if claim.shares.iter().any(|share| share.gpu == gpu) && !names.contains(&name) {
            names.push(name);
        }
    }
    listed(&names, MOST_NAMED)
}
