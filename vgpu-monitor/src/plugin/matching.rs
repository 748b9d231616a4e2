//! Which allotment belongs to which container of a pod. Values in, values out: no kubelet, no API server, no
//! file.
//!
//! `Allocate` does not name the pod of the slots. It is known, however, that the kubelet allocates one pod at
//! a time and its containers in the order of the spec, init containers first; that it passes the slots of a
//! plain init container on to later containers of the same pod, while all other slots belong to one container
//! as long as the pod lives; and that its list names the slots of all containers but plain init ones.

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

/// The slots of one `Allocate`, as far as the matching needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lot<'a> {
    /// Greater is later.
    pub order: u64,
    /// The slots, sorted.
    pub ids: &'a [String],
    /// Uid and container that it was given to.
    pub owner: Option<(&'a str, &'a str)>,
}

/// Why a container's allotment is not known.
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

/// The facts about the pod besides the allotments.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// The pod's uid.
    pub uid: &'a str,
    /// Slots by container, as the kubelet lists them (sorted); plain init containers are not in it.
    pub listed: &'a BTreeMap<String, Vec<String>>,
    /// The slots of the container that is about to start (sorted), whichever it is.
    pub called: &'a [String],
    /// Order of the allotment by container, from the kubelet's own record.
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
    let mut found: Vec<Option<u64>> = Vec::with_capacity(asking.len());
    // Containers that the kubelet names come first: they bound the others.
    for container in asking {
        let listed = evidence
            .listed
            .get(&container.container)
            .filter(|_| container.kind != Kind::Init);
        let named = match (evidence.recorded.get(&container.container), listed) {
            (Some(recorded), _) => lots.iter().find(|lot| lot.order == *recorded),
            // An earlier init container may have had the same slots: its allotment is older.
            (None, Some(ids)) => lots
                .iter()
                .filter(|lot| lot.ids == ids)
                .max_by_key(|lot| lot.order),
            (None, None) => {
                found.push(None);
                continue;
            }
        };
        match named.filter(|lot| is_for(lot, container, evidence.uid)) {
            Some(lot) if !found.contains(&Some(lot.order)) => found.push(Some(lot.order)),
            _ => return Err(unknown(container)),
        }
    }
    let mut slots: BTreeSet<&str> = evidence
        .listed
        .values()
        .flatten()
        .chain(evidence.called)
        .map(String::as_str)
        .collect();
    // The kubelet allocates one pod at a time, in the order of the spec, so a pod's allotments follow each other
    // without another pod's between them. One that is found fixes the place of its neighbour. Where none is found,
    // the newest one of the pod's slots is the last: no other pod has these slots while this one lives.
    let mut lots: Vec<&Lot<'_>> = lots.iter().collect();
    lots.sort_unstable_by_key(|lot| lot.order);
    let place = |order: u64| lots.iter().position(|lot| lot.order == order);
    for (at, container) in asking.iter().enumerate().rev() {
        if found.get(at).is_none_or(Option::is_some) {
            continue;
        }
        let fits = |lot: &&&Lot<'_>| {
            is_for(lot, container, evidence.uid)
                && (lot.owner.is_some() || lot.ids.iter().any(|id| slots.contains(id.as_str())))
        };
        let next = found.get(at + 1).copied().flatten();
        let before = found.iter().take(at).rposition(Option::is_some);
        let lot = match (next, before) {
            (Some(next), _) => place(next)
                .and_then(|place| place.checked_sub(1))
                .and_then(|place| lots.get(place))
                .filter(fits),
            (None, Some(before)) => found
                .get(before)
                .copied()
                .flatten()
                .and_then(place)
                .and_then(|place| lots.get(place + at - before))
                .filter(fits),
            (None, None) => lots.iter().rev().find(fits),
        };
        let Some(lot) = lot else {
            return Err(unknown(container));
        };
        slots.extend(lot.ids.iter().map(String::as_str));
        if let Some(found) = found.get_mut(at) {
            *found = Some(lot.order);
        }
    }
    Ok(found.into_iter().flatten().collect())
}

/// Whether the allotment can be this container's: it has as many slots, and was not given to another
/// container.
fn is_for(lot: &Lot<'_>, container: &Asking, uid: &str) -> bool {
    lot.ids.len() == container.count
        && lot
            .owner
            .is_none_or(|owner| owner == (uid, container.container.as_str()))
}

fn unknown(container: &Asking) -> Unknown {
    Unknown {
        container: container.container.clone(),
        count: container.count,
    }
}

/// A pod of which the kubelet says that it holds slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSlots {
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
pub fn holders<'a>(pods: &'a [PodSlots], called: &[String]) -> Vec<&'a PodSlots> {
    pods.iter()
        .filter(|pod| pod.slots.values().flatten().any(|id| called.contains(id)))
        .collect()
}

/// The uid of the pod to which the kubelet gave these slots, if its record shows that it is another pod than `uid`. The
/// list of the kubelet names pods without their uids, so a pod that was deleted by force and created again looks like
/// the one that holds the slots. `recorded` has the uid and the slots of each entry of the resource.
pub fn other_holder<'a>(
    recorded: impl IntoIterator<Item = (&'a str, &'a [String])>,
    called: &[String],
    uid: &str,
) -> Option<&'a str> {
    let mut other = None;
    for (holder, ids) in recorded {
        if ids.iter().any(|id| called.contains(id)) {
            if holder == uid {
                return None;
            }
            other = Some(holder);
        }
    }
    other
}

#[cfg(test)]
mod tests;
