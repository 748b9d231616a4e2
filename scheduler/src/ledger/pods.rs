//! Processes the API server's reports about pods, and updates their reservations.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kube_api::allocation::{self, AllocationError};
use kube_api::object::Pod;
use placement::{Placement, Reservation};

use super::read::{counted, initialised, shares, unscheduled, version_of};
use super::{Binding, Counted, Ledger, LedgerEntry, Notice, Tried, identity, uid_of};

/// How many different amounts are kept for sharing; above this number they are forgotten.
const MOST_COUNTED: usize = 1024;

impl Ledger {
    /// Takes in a pod.
    pub fn set_pod(&mut self, pod: &Pod, now: Duration) {
        let uid = uid_of(pod);
        if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            self.remove_pod(&uid);
            return;
        }
        self.note_claimant(pod);
        if pod.spec.node_name.is_empty() {
            self.set_unbound(pod, &uid, now);
        } else {
            self.set_bound(pod, &uid, now);
        }
    }

    /// A pod without a node holds only what a filter reserved, regardless of its annotations.
    fn set_unbound(&mut self, pod: &Pod, uid: &str, now: Duration) {
        self.set_nominated(pod, uid);
        self.set_unplaced(pod, uid, now);
        if pod.metadata.deletion_timestamp.is_some() {
            self.waiting.remove(uid);
        }
        let Some(LedgerEntry::Reserved(reserved)) = self.holders.get(uid) else {
            return;
        };
        if reserved.binding != Binding::NotAsked {
            return;
        }
        // The API server does not bind a pod that is being deleted.
        let leaves = pod.metadata.deletion_timestamp.is_some();
        let later = match (version_of(pod), reserved.version) {
            (Some(told), Some(asked)) => told > asked,
            _ => true,
        };
        let condition = unscheduled(pod);
        let failed = later && condition.is_some() && condition != reserved.condition;
        if failed {
            let lasted = now.saturating_sub(reserved.since);
            self.tried.insert(uid.into(), Tried { lasted, condition });
        }
        if (leaves || failed)
            && let Some(node) = self.release(uid)
        {
            self.notices.push(Notice::GivenBack);
            self.freed(node);
        }
    }

    /// The devices of a pod with a node are read once, when it is first seen there. Later changes of its annotations
    /// are ignored; otherwise a user who may write them could shrink or move what the pod holds.
    fn set_bound(&mut self, pod: &Pod, uid: &str, now: Duration) {
        self.waiting.remove(uid);
        self.nominated.remove(uid);
        self.unplaced.remove(uid);
        self.tried.remove(uid);
        let node: &str = &pod.spec.node_name;
        let said = allocation::read(pod, &self.vendors);
        if self.is_settled(uid, node) {
            self.check_unchanged(pod, uid, &said);
            self.settle(pod, uid, now);
        } else {
            match said {
                Ok(Some(mut placement)) => {
                    // The annotations may name another node than the one that the pod runs on.
                    placement.node = node.into();
                    self.drop_deadline(uid);
                    let of = identity(pod);
                    self.count_compute(&of.namespace, uid, pod, &placement);
                    let before = self.cluster.reserve(of, placement);
                    // Devices that it held by a reservation, or on another node, do not count any more.
                    self.accounts.close(uid, now);
                    self.settle_claims_of(uid);
                    if let Some(before) = before.filter(|before| *before.placement.node != *node) {
                        self.freed(before.placement.node);
                    }
                    self.settle(pod, uid, now);
                }
                Ok(None) => self.let_go(uid),
                Err(problem) => {
                    self.let_go(uid);
                    self.tell_broken(
                        pod,
                        uid,
                        &format!("{problem}; the pod counts as holding nothing"),
                    );
                }
            }
        }
        self.set_initialised(pod, uid, now);
    }

    /// Whether the pod's devices on that node are known: it was seen there before, or was bound there by this
    /// scheduler.
    fn is_settled(&self, uid: &str, node: &str) -> bool {
        let asked = match self.holders.get(uid) {
            Some(LedgerEntry::Bound { .. }) => true,
            Some(LedgerEntry::Reserved(reserved)) => reserved.binding != Binding::NotAsked,
            None => false,
        };
        asked
            && self
                .cluster
                .reservation(uid)
                .is_some_and(|held| *held.placement.node == *node)
    }

    pub(super) fn settle(&mut self, pod: &Pod, uid: &str, now: Duration) {
        self.drop_deadline(uid);
        let bound = LedgerEntry::Bound {
            since: now,
            priority: pod.spec.priority.unwrap_or_default(),
            counted: self.count(pod),
            leaving: pod.metadata.deletion_timestamp.is_some(),
        };
        match self.holders.get_mut(uid) {
            Some(holder) => *holder = bound,
            None => drop(self.holders.insert(uid.into(), bound)),
        }
        self.open_account(pod, uid, now);
    }

    fn count(&mut self, pod: &Pod) -> Counted {
        let counted = counted(pod);
        if let Some(known) = self.counted.get(&*counted) {
            return Arc::clone(known);
        }
        if self.counted.len() >= MOST_COUNTED {
            self.counted.clear();
        }
        let counted: Counted = counted.into();
        self.counted.insert(Arc::clone(&counted));
        counted
    }

    fn let_go(&mut self, uid: &str) {
        if let Some(node) = self.release(uid) {
            self.freed(node);
        }
    }

    fn check_unchanged(
        &mut self,
        pod: &Pod,
        uid: &str,
        said: &Result<Option<Placement>, AllocationError>,
    ) {
        let Some(held) = self.cluster.reservation(uid) else {
            return;
        };
        match said {
            Ok(Some(said)) if shares(said) == shares(&held.placement) => {
                self.broken_pods.remove(uid);
            }
            Ok(Some(_)) => self.tell_broken(
                pod,
                uid,
                "the annotations say something else than what the pod was given; it counts with what it was given",
            ),
            Ok(None) => self.tell_broken(
                pod,
                uid,
                "the annotations say no more what the pod was given; it counts with what it was given",
            ),
            Err(problem) => self.tell_broken(
                pod,
                uid,
                &format!("{problem}; the pod counts with what it was given"),
            ),
        }
    }

    fn tell_broken(&mut self, pod: &Pod, uid: &str, problem: &str) {
        if self.broken_pods.insert(uid.into()) {
            self.notices.push(Notice::PodBroken {
                pod: identity(pod),
                problem: problem.to_owned(),
            });
        }
    }

    fn set_initialised(&mut self, pod: &Pod, uid: &str, now: Duration) {
        let held = self.cluster.reservation(uid);
        if held.is_none_or(|held| held.initialised) || !initialised(pod) {
            return;
        }
        let load = |ledger: &Self| ledger.cluster.reservation(uid).map(Reservation::load);
        let before = load(self);
        self.cluster.initialised(uid);
        self.weigh_account(uid, now);
        self.settle_claims_of(uid);
        if load(self) != before {
            self.freed(pod.spec.node_name.as_str().into());
        }
    }

    /// The pod is gone.
    pub fn remove_pod(&mut self, uid: &str) {
        self.waiting.remove(uid);
        self.nominated.remove(uid);
        self.unplaced.remove(uid);
        self.tried.remove(uid);
        self.broken_pods.remove(uid);
        self.forget_claimant(uid);
        let reserved = matches!(self.holders.get(uid), Some(LedgerEntry::Reserved(_)));
        let Some(node) = self.release(uid) else {
            return;
        };
        if reserved {
            self.notices.push(Notice::GivenBack);
            self.freed(node);
        } else {
            self.freed_by_event(node);
        }
    }

    /// A list of all pods that began at `began` is complete: a pod that is not in it does not exist.
    pub fn keep_pods(&mut self, listed: &HashSet<Arc<str>>, began: Duration) {
        let gone: Vec<Arc<str>> = self
            .holders
            .iter()
            .filter(|(uid, _)| !listed.contains(*uid))
            .filter(|(_, holder)| match holder {
                LedgerEntry::Bound { since, .. } => *since < began,
                LedgerEntry::Reserved(reserved) => {
                    reserved.since < began && reserved.binding != Binding::UnderWay
                }
            })
            .map(|(uid, _)| Arc::clone(uid))
            .collect();
        for uid in gone {
            self.remove_pod(&uid);
        }
        self.end_doubts(began);
        self.keep_claimants(listed);
        self.waiting
            .retain(|uid, waiting| listed.contains(uid) || waiting.since >= began);
        self.tried.retain(|uid, _| listed.contains(uid));
        self.nominated.retain(|uid, _| listed.contains(uid));
        self.unplaced.retain(|uid, _| listed.contains(uid));
    }

    /// The list began after the last moment at which the bindings in doubt could happen, and shows these pods without a
    /// node. So they were not bound, and expire like any other old reservation.
    fn end_doubts(&mut self, began: Duration) {
        let over = |holder: &LedgerEntry| match holder {
            LedgerEntry::Reserved(reserved) => match reserved.binding {
                Binding::InDoubt { until } => until < began,
                _ => false,
            },
            LedgerEntry::Bound { .. } => false,
        };
        let over: Vec<Arc<str>> = self
            .holders
            .iter()
            .filter(|(_, holder)| over(holder))
            .map(|(uid, _)| Arc::clone(uid))
            .collect();
        for uid in over {
            self.drop_deadline(&uid);
            if let Some(LedgerEntry::Reserved(reserved)) = self.holders.get_mut(&uid) {
                reserved.binding = Binding::NotAsked;
                reserved.deadline = began;
                self.deadlines.insert((began, uid));
            }
        }
    }

    /// Whether anything is known of the pod.
    pub fn knows_pod(&self, uid: &str) -> bool {
        self.holders.contains_key(uid)
            || self.waiting.contains_key(uid)
            || self.nominated.contains_key(uid)
            || self.unplaced.contains_key(uid)
            || self.knows_claimant(uid)
    }
}
