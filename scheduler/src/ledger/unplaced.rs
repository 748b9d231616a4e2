//! Pods for which kube-scheduler has found no node, whether or not it called the extender. The reasons are not kept.
//!
//! kube-scheduler calls an extender only about nodes that its own plugins accept. A pod that all nodes refuse for their
//! count of slots never reaches `/filter`, so [`Ledger::waiting`] does not have it.

use std::sync::Arc;
use std::time::Duration;

use kube_api::object::{Node, Pod};
use kube_api::quantity::Amount;
use kube_api::request::{Defaults, request};
use kube_api::vendor::Vendors;

use super::read::{identity, unscheduled};
use super::{Ledger, Notice, WATCH_IS_BEHIND};

/// A pod whose `PodScheduled` condition is false.
#[derive(Debug)]
pub(super) struct Unplaced {
    pod: placement::Pod,
    priority: i32,
    scheduler: Box<str>,
    /// Whether it has a `status.nominatedNodeName`.
    nominated: bool,
}

impl Ledger {
    /// Notes whether the pod, which has no node, was refused. Pods that ask for no devices are ignored.
    pub(super) fn set_unplaced(&mut self, pod: &Pod, uid: &str, now: Duration) {
        if pod.metadata.deletion_timestamp.is_some() || unscheduled(pod).is_none() {
            self.unplaced.remove(uid);
            return;
        }
        let nominated = !pod.status.nominated_node_name.is_empty();
        if let Some(known) = self.unplaced.get_mut(uid) {
            known.nominated = nominated;
            return;
        }
        let asks = request(pod, &self.vendors, &Defaults::default());
        if !asks.is_ok_and(|request| request.asks_for_devices()) {
            return;
        }
        let unplaced = Unplaced {
            pod: identity(pod),
            priority: pod.spec.priority.unwrap_or_default(),
            scheduler: pod.spec.scheduler_name.as_str().into(),
            nominated,
        };
        self.unplaced.insert(uid.into(), unplaced);
        // kube-scheduler may have judged the pod by the node's old state and reported it afterwards.
        if let Some((at, node)) = self.more_slots.clone()
            && now.saturating_sub(at) <= WATCH_IS_BEHIND
        {
            self.notices.push(Notice::MoreSlots { node });
        }
    }

    /// The node has more slots of a vendor than before.
    pub(super) fn note_more_slots(&mut self, node: Arc<str>) {
        self.more_slots = Some((self.latest, Arc::clone(&node)));
        if !self.unplaced.is_empty() {
            self.notices.push(Notice::MoreSlots { node });
        }
    }

    /// The pod of the highest priority among that scheduler's pods that have no node and are nominated for none.
    pub fn first_unplaced(&self, scheduler: &str) -> Option<&placement::Pod> {
        let any_vendor = self.vendors.any_vendor_scheduler();
        let is_ours = |name: &str| name == scheduler || any_vendor == Some(name);
        self.unplaced
            .values()
            .filter(|one| !one.nominated && is_ours(&one.scheduler))
            .max_by(|one, other| {
                let names = |one: &Unplaced| (one.pod.namespace.clone(), one.pod.name.clone());
                let by_name = || names(other).cmp(&names(one));
                one.priority.cmp(&other.priority).then_with(by_name)
            })
            .map(|one| &one.pod)
    }
}

/// Whether pods can take more of a vendor's resource than before. A new node had nothing before.
pub(super) fn has_more_slots(before: Option<&Node>, node: &Node, vendors: &Vendors) -> bool {
    let amount = |node: &Node, name: &str| -> i128 {
        let written = node.status.allocatable.get(name);
        let amount = written.and_then(|written| written.parse().ok());
        amount.and_then(Amount::milli).unwrap_or_default()
    };
    vendors.resources().any(|(name, ..)| {
        let was = before.map_or(0, |before| amount(before, name));
        amount(node, name) > was
    })
}
