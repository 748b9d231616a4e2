//! `/preempt`: whether evicting the pods that kube-scheduler names makes room, and which other pods have to go.
//! kube-scheduler does not know what a GPU holds, so it may name too few pods, or evict without effect. Nothing is
//! evicted here.

use std::collections::BTreeMap;

use kube_api::extender::{ExtenderPreemptionArgs, Victims};
use placement::{Cluster, Misfit, Request};

use crate::ledger::{Counted, Ledger};
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
    let others = evictable(ledger, cluster, request, priority, node, &given);
    let fits = |leaving: &[&str]| fits(leaving).is_ok();
    let going = further(&given, others, fits)?;
    let counted = |uid: &str| Some(ledger.holder(uid)?.counted);
    let staying = spared(counted, &given, &going, fits);
    let uids = given
        .iter()
        .filter(|uid| !staying.contains(uid))
        .chain(&going)
        .map(|uid| (*uid).to_owned())
        .collect();
    Some(uids)
}

/// The fewest further pods that have to go beside the named ones, as far as leaving out one after the other finds them;
/// `None` if even all of them are not enough. The pods of the lowest priority go first; among equals the one that holds
/// the most, so that few have to go.
fn further<'a>(
    named: &[&'a str],
    mut others: Vec<Other<'a>>,
    fits: impl Fn(&[&str]) -> bool,
) -> Option<Vec<&'a str>> {
    others.sort_by(|a, b| (a.priority, b.holds, a.uid).cmp(&(b.priority, a.holds, b.uid)));
    let mut going: Vec<&str> = others.iter().map(|other| other.uid).collect();
    if !fits(&[named, &going].concat()) {
        return None;
    }
    // A pod that can stay, stays, the most important one first.
    for at in (0..going.len()).rev() {
        let mut fewer = going.clone();
        fewer.remove(at);
        if fits(&[named, &fewer].concat()) {
            going = fewer;
        }
    }
    Some(going)
}

/// The named pods that can stay: their devices are not needed, and the further victims free at least as much of every
/// resource that kube-scheduler counts. (Host ports and affinities are not checked: if a pod was named for one of them,
/// kube-scheduler names it again.) `counted` returns what it counts of a pod, if the ledger knows the pod.
fn spared<'a>(
    counted: impl Fn(&str) -> Option<Counted>,
    named: &[&'a str],
    added: &[&'a str],
    fits: impl Fn(&[&str]) -> bool,
) -> Vec<&'a str> {
    let mut freed: BTreeMap<Box<str>, i128> = BTreeMap::new();
    for uid in added {
        let Some(counted) = counted(uid) else {
            return Vec::new();
        };
        for (resource, amount) in counted.iter() {
            *freed.entry(resource.clone()).or_default() += amount;
        }
    }
    let mut staying: Vec<&str> = Vec::new();
    for uid in named {
        // The ledger does not know what a pod without devices frees.
        let Some(counted) = counted(uid) else {
            continue;
        };
        let enough = counted
            .iter()
            .all(|(resource, amount)| freed.get(resource).copied().unwrap_or_default() >= *amount);
        let leaving: Vec<&str> = named
            .iter()
            .chain(added)
            .filter(|other| *other != uid && !staying.contains(other))
            .copied()
            .collect();
        if enough && fits(&leaving) {
            for (resource, amount) in counted.iter() {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn other(uid: &str, priority: i32, holds: u64) -> Other<'_> {
        Other {
            uid,
            priority,
            holds,
        }
    }

    /// The further pods that go if a request needs `needed` of what leaving pods hold.
    fn going(named: &[&'static str], needed: u64) -> Option<Vec<&'static str>> {
        const PODS: [(&str, i32, u64); 5] = [
            ("high", 9, 50),
            ("small", 1, 10),
            ("large", 1, 40),
            ("twin", 1, 10),
            ("low", 0, 5),
        ];
        let others = PODS.iter().filter(|(uid, ..)| !named.contains(uid));
        let others = others.map(|(uid, priority, holds)| other(uid, *priority, *holds));
        let fits = |leaving: &[&str]| {
            let leaves = PODS.iter().filter(|(uid, ..)| leaving.contains(uid));
            leaves.map(|(.., holds)| holds).sum::<u64>() >= needed
        };
        further(named, others.collect(), fits)
    }

    #[test]
    fn no_pod_goes_that_is_not_needed() {
        assert_eq!(going(&["high"], 50), Some(vec![]));
        assert_eq!(going(&[], 5), Some(vec!["low"]));
        // The one that is most important stays, and among equals the smaller ones.
        assert_eq!(going(&[], 40), Some(vec!["large"]));
        assert_eq!(going(&[], 45), Some(vec!["low", "large"]));
        assert_eq!(going(&[], 50), Some(vec!["large", "small"]));
        assert_eq!(going(&["small"], 50), Some(vec!["large"]));
    }

    #[test]
    fn important_pod_goes_only_if_all_others_are_not_enough() {
        assert_eq!(going(&[], 65), Some(vec!["low", "large", "small", "twin"]));
        let with_it = going(&[], 66).unwrap();
        assert!(with_it.contains(&"high"), "{with_it:?}");
        assert_eq!(going(&[], 116), None);
    }

    /// The named pods that stay. Each pod is counted with slots and with memory; `none` is not known to the ledger.
    fn staying(
        named: &[&'static str],
        added: &[&'static str],
        needed: &[&str],
    ) -> Vec<&'static str> {
        let counted = |uid: &str| -> Option<Counted> {
            let (slots, memory) = match uid {
                "one" => (1, 10),
                "two" => (2, 10),
                "memory" => (1, 30),
                "none" => return None,
                other => panic!("{other}"),
            };
            let amounts = [("slots".into(), slots), ("memory".into(), memory)];
            Some(amounts.into_iter().collect())
        };
        let fits = |leaving: &[&str]| needed.iter().all(|uid| leaving.contains(uid));
        spared(counted, named, added, fits)
    }

    #[test]
    fn named_pod_stays_if_the_further_ones_free_as_much() {
        assert_eq!(staying(&["one"], &["two"], &[]), ["one"]);
        assert_eq!(staying(&["one"], &["one"], &[]), ["one"]);
        // One resource is not enough, or its devices are needed.
        assert_eq!(staying(&["two"], &["one"], &[]), Vec::<&str>::new());
        assert_eq!(staying(&["memory"], &["two"], &[]), Vec::<&str>::new());
        assert_eq!(staying(&["one"], &["two"], &["one"]), Vec::<&str>::new());
        assert_eq!(staying(&["one"], &[], &[]), Vec::<&str>::new());
    }

    #[test]
    fn freed_amount_lets_one_pod_stay_and_not_two() {
        assert_eq!(staying(&["one", "one"], &["one"], &[]).len(), 1);
        // A pod without devices may free anything.
        assert_eq!(staying(&["none", "one"], &["two"], &[]), ["one"]);
        assert_eq!(staying(&["one"], &["two", "none"], &[]), Vec::<&str>::new());
    }
}
