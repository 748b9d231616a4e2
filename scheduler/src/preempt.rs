//! `/preempt`: whether evicting the pods that kube-scheduler names makes room, and which other pods have to go.
//! kube-scheduler does not know what a GPU holds, so it may name too few pods, or evict without effect. Nothing is
//! evicted here.

use std::collections::BTreeMap;

use kube_api::extender::{ExtenderPreemptionArgs, Victims};
use placement::{Cluster, Misfit, Request};

use crate::ledger::Ledger;
use crate::{QuestionError, Scheduler};

impl Scheduler {
    /// The nodes on which an eviction makes room, with the victims: the pods that kube-scheduler named, and as few
    /// further pods of lower priority as needed. A named pod that becomes needless because of the further ones stays.
    /// The number of disruption budgets that the further ones break is not known here, so kube-scheduler's count is
    /// passed on.
    ///
    /// # Errors
    ///
    /// Why the question cannot be answered.
    pub fn preempt(
        &self,
        args: ExtenderPreemptionArgs,
    ) -> Result<BTreeMap<String, Victims>, QuestionError> {
        let Some(pod) = args.pod else {
            return Err(QuestionError::NoPod);
        };
        let request = self.request(&pod)?;
        if !request.asks_for_devices() {
            return Ok(args.victims);
        }
        let priority = pod.spec.priority.unwrap_or_default();
        Ok(self.with_ledger(|ledger| {
            args.victims
                .into_iter()
                .filter_map(|(node, victims)| {
                    let uids = make_room(ledger, &request, priority, &node, victims.uids)?;
                    Some((
                        node,
                        Victims {
                            uids,
                            num_pdb_violations: victims.num_pdb_violations,
                        },
                    ))
                })
                .collect()
        }))
    }
}

/// The victims on the node; `None` if an eviction cannot help.
fn make_room(
    ledger: &Ledger,
    request: &Request,
    priority: i32,
    node: &str,
    named: Vec<String>,
) -> Option<Vec<String>> {
    let cluster = ledger.cluster();
    let fits = |leaving: &[&str]| cluster.place_without(request, node, leaving);
    let given: Vec<&str> = named.iter().map(String::as_str).collect();
    match fits(&given) {
        Ok(_) => return Some(named),
        Err(Misfit::UnknownNode) => return None,
        Err(_) => {}
    }
    let mut others = evictable(ledger, cluster, request, priority, node, &given);
    // The pods of the lowest priority go first; among equals the one that holds the most, so that few have to go.
    others.sort_by(|a, b| (a.priority, b.holds, a.uid).cmp(&(b.priority, a.holds, b.uid)));
    let all: Vec<&str> = given
        .iter()
        .copied()
        .chain(others.iter().map(|other| other.uid))
        .collect();
    fits(&all).ok()?;
    // A pod that can stay, stays, the most important one first.
    let mut going = others;
    for at in (0..going.len()).rev() {
        let without: Vec<&str> = given
            .iter()
            .copied()
            .chain(
                going
                    .iter()
                    .enumerate()
                    .filter(|(other, _)| *other != at)
                    .map(|(_, other)| other.uid),
            )
            .collect();
        if fits(&without).is_ok() {
            going.remove(at);
        }
    }
    let going: Vec<&str> = going.iter().map(|other| other.uid).collect();
    let staying = spared(ledger, &given, &going, |leaving| fits(leaving).is_ok());
    let uids = given
        .iter()
        .filter(|uid| !staying.contains(uid))
        .chain(&going)
        .map(|uid| (*uid).to_owned())
        .collect();
    Some(uids)
}

/// The named pods that can stay: their devices are not needed, and the further victims free at least as much of every
/// resource that kube-scheduler counts. (Host ports and affinities are not checked: if a pod was named for one of them,
/// kube-scheduler names it again.)
fn spared<'a>(
    ledger: &Ledger,
    named: &[&'a str],
    added: &[&'a str],
    fits: impl Fn(&[&str]) -> bool,
) -> Vec<&'a str> {
    let mut freed: BTreeMap<Box<str>, i128> = BTreeMap::new();
    for uid in added {
        let Some(holder) = ledger.holder(uid) else {
            return Vec::new();
        };
        for (resource, amount) in holder.counted.iter() {
            *freed.entry(resource.clone()).or_default() += amount;
        }
    }
    let mut staying: Vec<&str> = Vec::new();
    for uid in named {
        // The ledger does not know what a pod without devices frees.
        let Some(holder) = ledger.holder(uid) else {
            continue;
        };
        let enough = holder
            .counted
            .iter()
            .all(|(resource, amount)| freed.get(resource).copied().unwrap_or_default() >= *amount);
        let leaving: Vec<&str> = named
            .iter()
            .chain(added)
            .filter(|other| *other != uid && !staying.contains(other))
            .copied()
            .collect();
        if enough && fits(&leaving) {
            for (resource, amount) in holder.counted.iter() {
                if let Some(left) = freed.get_mut(resource) {
                    *left -= amount;
                }
            }
            staying.push(uid);
        }
    }
    staying
}

/// A pod that may have to go.
struct Other<'a> {
    uid: &'a str,
    priority: i32,
    holds: u64,
}

/// The pods on the node that hold devices, have a lower priority and are not named yet. kube-scheduler refuses the whole
/// answer if it names a pod that kube-scheduler does not count on the node.
fn evictable<'a>(
    ledger: &'a Ledger,
    cluster: &'a Cluster,
    request: &Request,
    priority: i32,
    node: &str,
    named: &[&str],
) -> Vec<Other<'a>> {
    cluster
        .reservations_on(node)
        .filter(|held| held.pod.uid != request.pod.uid && !named.contains(&held.pod.uid.as_str()))
        .filter_map(|held| {
            let holder = ledger.holder(&held.pod.uid)?;
            (holder.on_node && holder.priority < priority).then(|| Other {
                uid: &held.pod.uid,
                priority: holder.priority,
                holds: held.load().memory_bytes,
            })
        })
        .collect()
}
