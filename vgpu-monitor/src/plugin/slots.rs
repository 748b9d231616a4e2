//! Which slots the kubelet gets, and which of them are healthy. Values in, values out. A slot is a number and
//! no GPU: the scheduler has chosen the GPU.

use std::collections::BTreeSet;

use super::allotments::Allotment;
use crate::node_gpus::{Health, Inventory};

/// A slot of the kubelet's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its identifier.
    pub id: String,
    /// Whether it can be allotted.
    pub well: bool,
}

/// How many slots GPUs of one vendor have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slots {
    /// All slots.
    pub all: usize,
    /// The slots of GPUs that can be used.
    pub well: usize,
}

/// Most slots of a node: 1,024 GPUs are read, and the kubelet's list of devices has an end at some 16 MiB.
const MOST: usize = 65_536;

/// The slots of this vendor's GPUs.
pub fn count(inventory: &Inventory, health: &Health, vendor: &str) -> Slots {
    let mut slots = Slots::default();
    for gpu in &inventory.gpus {
        if gpu.device.vendor.as_str() != vendor {
            continue;
        }
        let own = usize::try_from(gpu.device.slots).unwrap_or(usize::MAX);
        slots.all = slots.all.saturating_add(own).min(MOST);
        if gpu.device.healthy && !health.contains_key(&gpu.device.id) {
            slots.well = slots.well.saturating_add(own).min(MOST);
        }
    }
    slots
}

/// The identifier of a slot.
pub fn id(number: usize) -> String {
    format!("vgpu-{number}")
}

/// The list for the kubelet. Missing slots are taken from the free ones, from the last one on; then from
/// those on sick GPUs, then from the others. A slot that a pod holds stays in the list whatever became of the
/// GPUs: the kubelet gives up a pod whose slots are gone.
pub fn list(slots: Slots, taken: &BTreeSet<String>, on_sick_gpus: &BTreeSet<String>) -> Vec<Slot> {
    let mut ids: Vec<String> = (0..slots.all).map(id).collect();
    let known: BTreeSet<&String> = ids.iter().collect();
    let beyond: Vec<String> = taken
        .iter()
        .filter(|id| !known.contains(id))
        .cloned()
        .collect();
    ids.extend(beyond);
    let mut order: Vec<usize> = (0..ids.len()).collect();
    let rank = |id: &String| match (taken.contains(id), on_sick_gpus.contains(id)) {
        (true, false) => 0,
        (true, true) => 1,
        (false, _) => 2,
    };
    // Stable: within a rank by number.
    order.sort_by_key(|at| ids.get(*at).map(rank));
    let well: BTreeSet<usize> = order.into_iter().take(slots.well).collect();
    ids.into_iter()
        .enumerate()
        .map(|(at, id)| Slot {
            id,
            well: well.contains(&at),
        })
        .collect()
}

/// Slots whose holders were given something of a sick GPU.
pub fn on_sick_gpus(
    allotments: &[Allotment],
    resource: &str,
    inventory: &Inventory,
    health: &Health,
) -> BTreeSet<String> {
    let sick = |gpu: &str| {
        health.contains_key(gpu)
            || inventory
                .gpus
                .iter()
                .all(|known| known.device.id != gpu || !known.device.healthy)
    };
    let mut found = BTreeSet::new();
    for allotment in allotments {
        if allotment.resource != resource {
            continue;
        }
        // A later holder of the same slot counts, not an earlier one.
        for id in &allotment.ids {
            found.remove(id);
        }
        let Some(recipient) = &allotment.recipient else {
            continue;
        };
        if recipient.shares.iter().any(|share| sick(&share.gpu)) {
            found.extend(allotment.ids.iter().cloned());
        }
    }
    found
}

/// The best of the free slots for a container: those that it must have, then those whose last allotment is
/// the oldest, so that a slot of a pod that has just ended is not reused at once.
pub fn preferred(
    available: &[String],
    must: &[String],
    size: usize,
    allotments: &[Allotment],
    resource: &str,
) -> Vec<String> {
    let mut chosen: Vec<String> = Vec::new();
    for id in must {
        if !chosen.contains(id) {
            chosen.push(id.clone());
        }
    }
    let last_used = |id: &String| {
        allotments
            .iter()
            .rev()
            .find(|allotment| allotment.resource == resource && allotment.ids.contains(id))
            .map_or(0, |allotment| allotment.order)
    };
    let number = |id: &String| {
        id.rsplit('-')
            .next()
            .and_then(|number| number.parse::<usize>().ok())
            .unwrap_or(usize::MAX)
    };
    let mut rest: Vec<&String> = available.iter().filter(|id| !chosen.contains(id)).collect();
    rest.sort_by_cached_key(|id| (last_used(id), number(id), (*id).clone()));
    rest.dedup();
    let missing = size.saturating_sub(chosen.len());
    chosen.extend(rest.into_iter().take(missing).cloned());
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[usize]) -> BTreeSet<String> {
        ids.iter().map(|number| id(*number)).collect()
    }

    #[test]
    fn missing_slots_come_from_free_then_sick_then_other_gpus() {
        let check = |all, well, taken: &[usize], sick: &[usize], expected: &[usize]| {
            let listed = list(Slots { all, well }, &set(taken), &set(sick));
            let gone = listed.iter().filter(|slot| !slot.well);
            let gone: Vec<String> = gone.map(|slot| slot.id.clone()).collect();
            let expected: Vec<String> = expected.iter().map(|number| id(*number)).collect();
            assert_eq!(gone, expected, "{all} {well} {taken:?} {sick:?}");
        };
        check(6, 6, &[1], &[], &[]);
        check(6, 4, &[], &[], &[4, 5]);
        check(6, 4, &[4, 5], &[], &[2, 3]);
        check(6, 3, &[1, 4, 5], &[4], &[0, 2, 3]);
        check(6, 2, &[1, 4, 5], &[4], &[0, 2, 3, 4]);
        check(6, 1, &[1, 4, 5], &[4], &[0, 2, 3, 4, 5]);
        check(6, 0, &[1], &[1], &[0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn held_slot_stays_when_the_count_shrinks() {
        let listed = list(Slots { all: 2, well: 2 }, &set(&[7]), &BTreeSet::new());
        let ids: Vec<(&str, bool)> = listed.iter().map(|s| (s.id.as_str(), s.well)).collect();
        assert_eq!(ids, [("vgpu-0", true), ("vgpu-1", false), ("vgpu-7", true)]);
    }

    #[test]
    fn longest_unused_slots_are_preferred_and_bad_requests_answered() {
        let lot = |order: u64, number: usize| Allotment {
            order,
            name: format!("v{order}"),
            resource: "r".to_owned(),
            ids: vec![id(number)],
            recipient: None,
        };
        let lots = [lot(1, 0), lot(2, 1), lot(3, 0)];
        let ids = |numbers: &[usize]| -> Vec<String> { numbers.iter().map(|n| id(*n)).collect() };
        let free = ids(&[10, 0, 1, 2]);
        for (available, must, size, expected) in [
            (&free, ids(&[]), 2, ids(&[2, 10])),
            (&free, ids(&[]), 4, ids(&[2, 10, 1, 0])),
            (&free, ids(&[0]), 2, ids(&[0, 2])),
            (&free, ids(&[0, 0]), 1, ids(&[0])),
            (&free, ids(&[]), 9, ids(&[2, 10, 1, 0])),
            (&free, ids(&[]), 0, ids(&[])),
        ] {
            assert_eq!(preferred(available, &must, size, &lots, "r"), expected);
        }
        let odd = ["x".to_owned(), "x".to_owned(), String::new()];
        assert_eq!(preferred(&odd, &[], 3, &lots, "r"), ["", "x"]);
    }
}
