//! Pods for which kube-scheduler has found no node, whether or not it called the extender. The reasons are not kept.
//!
//! kube-scheduler calls an extender only about nodes that its own plugins accept. A pod that all nodes refuse for their
//! count of slots never reaches `/filter`, so [`Ledger::waiting`] does not have it.

use std::cmp::Ordering;
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
        self.unplaced_of(scheduler)
            .filter(|one| !one.nominated)
            .min_by(|one, other| before(one, other))
            .map(|one| &one.pod)
    }

    /// At most that many of that scheduler's pods that have no node, those of the highest priority first. An empty name
    /// stands for any scheduler.
    pub fn first_refused(&self, scheduler: &str, most: usize) -> Vec<placement::Pod> {
        if most == 0 {
            return Vec::new();
        }
        let mut refused: Vec<&Unplaced> = self.unplaced_of(scheduler).collect();
        if refused.len() > most {
            refused.select_nth_unstable_by(most, |one, other| before(one, other));
            refused.truncate(most);
        }
        refused.sort_unstable_by(|one, other| before(one, other));
        refused.into_iter().map(|one| one.pod.clone()).collect()
    }

    fn unplaced_of(&self, scheduler: &str) -> impl Iterator<Item = &Unplaced> {
        let any_vendor = self.vendors.any_vendor_scheduler();
        let is_ours =
            move |name: &str| scheduler.is_empty() || name == scheduler || any_vendor == Some(name);
        self.unplaced
            .values()
            .filter(move |one| is_ours(&one.scheduler))
    }
}

/// The order in which pods are tried again: the highest priority first, then by name.
fn before(one: &Unplaced, other: &Unplaced) -> Ordering {
    let priorities = other.priority.cmp(&one.priority);
    priorities
        .then_with(|| one.pod.namespace.cmp(&other.pod.namespace))
        .then_with(|| one.pod.name.cmp(&other.pod.name))
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
