//! Which allotment belongs to which container of a pod. Values in, values out: no kubelet, no API server, no file.
//!
//! `Allocate` is not told whose the slots are that it hands out. What is known later: the kubelet allocates one pod at
//! a time and its containers in the order of the spec, init containers first; what a plain init container got is handed
//! on to later containers of the same pod, everything else is its holder's alone while the pod lives; and the kubelet's
//! list names the slots of all containers but plain init ones.

use std::collections::{BTreeMap, BTreeSet};

use placement::Kind;

/// A container that asks for slots of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asking {
    /// Its name.
    pub container: String,
    /// When it runs.
    pub kind: Kind,
    /// How many slots.
    pub count: usize,
}

/// What was handed out in one `Allocate`, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lot<'a> {
    /// Greater is later.
    pub order: u64,
    /// The slots, sorted.
    pub ids: &'a [String],
    /// Uid and container that it was given to.
    pub owner: Option<(&'a str, &'a str)>,
}

/// Why some container's allotment is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no allotment of {count} slots is known for container {container}; it was made before this plugin's memory began. Delete the pod, so that the kubelet asks again"
)]
pub struct Unknown {
    /// The container.
    pub container: String,
    /// How many slots it asks for.
    pub count: usize,
}

/// What is known about the pod beside the allotments.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// The pod's uid.
    pub uid: &'a str,
    /// Slots by container, as the kubelet lists them (sorted); plain init containers are not in it.
    pub listed: &'a BTreeMap<String, Vec<String>>,
    /// The slots of the container that is about to start (sorted), whichever it is.
    pub called: &'a [String],
    /// Order of the allotment by container, where the kubelet's own record says it.
    pub recorded: &'a BTreeMap<String, u64>,
}

/// The order of each container's allotment, in the order of `asking`.
///
/// # Errors
///
/// When an allotment is not among `lots`.
pub fn assign(
    asking: &[Asking],
    lots: &[Lot<'_>],
    evidence: Evidence<'_>,
) -> Result<Vec<u64>, Unknown> {
    let mut pods_slots: BTreeSet<&str> = evidence
        .listed
        .values()
        .flatten()
        .chain(evidence.called)
        .map(String::as_str)
        .collect();
    let mut taken = BTreeSet::new();
    let mut found = Vec::with_capacity(asking.len());
    // Orders of later containers bound those of earlier ones, so the last goes first.
    let mut before = u64::MAX;
    for container in asking.iter().rev() {
        let free = |lot: &&Lot<'_>| {
            lot.ids.len() == container.count
                && !taken.contains(&lot.order)
                && lot
                    .owner
                    .is_none_or(|owner| owner == (evidence.uid, container.container.as_str()))
        };
        let newest = |lots: &mut dyn Iterator<Item = &Lot<'_>>| lots.map(|lot| lot.order).max();
        let listed = evidence
            .listed
            .get(&container.container)
            .filter(|_| container.kind != Kind::Init);
        let recorded = evidence.recorded.get(&container.container);
        let order = match (listed, recorded) {
            (_, Some(recorded)) => newest(
                &mut lots
                    .iter()
                    .filter(free)
                    .filter(|lot| lot.order == *recorded),
            ),
            (Some(ids), None) => {
                // An earlier init container may have had the very same slots: hers is older.
                let latest = newest(&mut lots.iter().filter(|lot| lot.ids == ids));
                newest(&mut lots.iter().filter(free).filter(|lot| lot.ids == ids))
                    .filter(|order| Some(*order) == latest)
            }
            (None, None) => newest(&mut lots.iter().filter(free).filter(|lot| {
                lot.order < before
                    && (lot.owner.is_some()
                        || lot.ids.iter().any(|id| pods_slots.contains(id.as_str())))
            })),
        };
        let lot = order.and_then(|order| lots.iter().find(|lot| lot.order == order));
        let Some(lot) = lot else {
            return Err(Unknown {
                container: container.container.clone(),
                count: container.count,
            });
        };
        pods_slots.extend(lot.ids.iter().map(String::as_str));
        taken.insert(lot.order);
        before = lot.order;
        found.push(lot.order);
    }
    found.reverse();
    Ok(found)
}

/// A pod of which the kubelet says that it holds slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its slots of one resource by container (sorted); plain init containers are not in it.
    pub slots: BTreeMap<String, Vec<String>>,
}

/// The pods that hold some of these slots. A container's slots are its pod's alone while it lives, so one that overlaps
/// is the one that asks: an init container's slots are seen at a later container of the same pod. There are several only
/// while the kubelet lists a pod that is over.
pub fn holders<'a>(pods: &'a [Holder], called: &[String]) -> Vec<&'a Holder> {
    pods.iter()
        .filter(|pod| pod.slots.values().flatten().any(|id| called.contains(id)))
        .collect()
}
