//! Room that was made by preemption is kept for the pod that it was made for: kube-scheduler does so for its own
//! resources only, and a small pod that comes first would have others evicted for nothing, again and again. Never keeps
//! it from a pod of higher priority.

use std::sync::Arc;

use kube_api::object::Pod;
use kube_api::request::{Defaults, request};
use placement::Request;

use super::{Ledger, LedgerEntry};

/// A pod for which others were evicted.
#[derive(Debug)]
pub(super) struct Nominated {
    /// `status.nominatedNodeName`.
    node: Arc<str>,
    priority: i32,
    request: Request,
}

impl Ledger {
    /// Notes for which node the pod is nominated, as the API server says it.
    pub(super) fn set_nominated(&mut self, pod: &Pod, uid: &str) {
        let node = pod.status.nominated_node_name.as_str();
        if node.is_empty() || pod.metadata.deletion_timestamp.is_some() {
            self.nominated.remove(uid);
            return;
        }
        if self
            .nominated
            .get(uid)
            .is_some_and(|known| *known.node == *node)
        {
            return;
        }
        // Which of several cards it would get is by the standard policies: that is good enough to keep room.
        let Ok(request) = request(pod, &self.vendors, &Defaults::default()) else {
            return;
        };
        if !request.asks_for_devices() {
            return;
        }
        let nominated = Nominated {
            node: node.into(),
            priority: pod.spec.priority.unwrap_or_default(),
            request,
        };
        self.nominated.insert(uid.into(), nominated);
    }

    /// Lets the pods that are nominated, and at least as important as this one, hold what they will get, also on cards
    /// that their victims are still leaving. Says who holds something now.
    pub(super) fn keep_room(&mut self, asking: &Request, pod: &Pod) -> Vec<Arc<str>> {
        let priority = pod.spec.priority.unwrap_or_default();
        let mut kept = Vec::new();
        for (uid, nominated) in &self.nominated {
            let holds = self.cluster.reservation(uid).is_some();
            if **uid == *asking.pod.uid || nominated.priority < priority || holds {
                continue;
            }
            let leaving: Vec<&str> = self
                .cluster
                .reservations_on(&nominated.node)
                .map(|held| held.pod.uid.as_str())
                .filter(|uid| {
                    let holder = self.holders.get(*uid);
                    matches!(holder, Some(LedgerEntry::Bound { leaving: true, .. }))
                })
                .collect();
            let placement =
                self.cluster
                    .place_without(&nominated.request, &nominated.node, &leaving);
            if let Ok(placement) = placement {
                self.cluster
                    .reserve(nominated.request.pod.clone(), placement);
                kept.push(Arc::clone(uid));
            }
        }
        kept
    }

    /// Ends what [`Ledger::keep_room`] began.
    pub(super) fn give_room_back(&mut self, kept: Vec<Arc<str>>) {
        for uid in kept {
            self.cluster.release(&uid);
        }
    }
}
