//! Keeps the room that preemption made for the pod that it was made for. kube-scheduler does so only for its own
//! resources. Without this, a small pod that comes first would take the room, and pods would be evicted for nothing
//! again and again. A pod of higher priority may still take it.

use std::sync::Arc;

use kube_api::object::Pod;
use kube_api::request::{Defaults, request};
use placement::Request;

use super::{Ledger, LedgerEntry};

/// A pod for which other pods were evicted.
#[derive(Debug)]
pub(super) struct Nominated {
    /// `status.nominatedNodeName`.
    node: Arc<str>,
    priority: i32,
    request: Request,
}

impl Ledger {
    /// Notes the node for which the pod is nominated, as the API server reports it.
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
        // The device is chosen by the default policies, which is good enough to keep room.
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

    /// Gives the nominated pods of at least this pod's priority the devices that they will get, also devices that their
    /// victims are still leaving. Returns the pods that hold something because of this.
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

    /// Reverses [`Ledger::keep_room`].
    pub(super) fn give_room_back(&mut self, kept: Vec<Arc<str>>) {
        for uid in kept {
            self.cluster.release(&uid);
        }
    }
}
