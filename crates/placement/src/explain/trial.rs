//! A changed request or cluster in which the search tries to place the pod.

use std::borrow::Cow;

use crate::advice::{Rule, drop_rule};
use crate::inventory::Vendor;
use crate::node::NodeState;
use crate::quota::Quota;
use crate::request::{Ask, Compute, DevicePolicy, Memory, Request};
use crate::reservation::{Load, Reservation};

pub(super) const MIB: u64 = 1 << 20;

/// A kind of change, without its amount.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Relax {
    Memory(usize, usize),
    Cores(usize, usize),
    Count(usize, usize),
    /// Type rules of all asks that share them, because a pod states them once for all its containers.
    Types(Vec<(usize, usize)>),
    /// As `Types`, for another rule.
    Rule(Vec<(usize, usize)>, Rule),
    Quota(Vendor),
    Pods,
    Cordons,
    Health,
}

/// A trial: changes of the cluster under which the request is placed.
#[derive(Clone, Default)]
pub(super) struct Trial<'a> {
    /// The additional quota, by vendor.
    pub(super) quota: Vec<(Vendor, Load)>,
    /// Whether all pods leave the node.
    pub(super) empty: bool,
    /// Pods that have left. The node is already without them, but their quota use must still be subtracted.
    pub(super) left: Vec<&'a Reservation>,
    pub(super) uncordoned: bool,
    pub(super) healthy: bool,
}

impl Relax {
    /// The ask whose amount it changes.
    pub(super) fn ask(&self) -> Option<(usize, usize)> {
        match self {
            Self::Memory(container, at)
            | Self::Cores(container, at)
            | Self::Count(container, at) => Some((*container, *at)),
            _ => None,
        }
    }
}

impl Trial<'_> {
    /// The node's state in the trial, if it differs.
    pub(super) fn on<'n>(&self, node: &NodeState) -> Option<Cow<'n, NodeState>> {
        if !(self.empty || self.uncordoned || self.healthy) {
            return None;
        }
        let mut node = node.repaired(|_| true, self.healthy, self.uncordoned);
        if self.empty {
            node.clear();
        }
        Some(Cow::Owned(node))
    }
}

pub(super) fn wants_unused(ask: &Ask) -> bool {
    ask.exclusive || ask.policy == DevicePolicy::Mutex
}

pub(super) fn ask_mut(request: &mut Request, container: usize, at: usize) -> Option<&mut Ask> {
    request.containers.get_mut(container)?.asks.get_mut(at)
}

/// Applies the largest change of this kind.
pub(super) fn relax(kind: &Relax, request: &mut Request, trial: &mut Trial<'_>) {
    match kind {
        Relax::Quota(vendor) => {
            let more = Load {
                slots: 1 << 30,
                cores: 1 << 30,
                memory_bytes: u64::MAX >> 8,
            };
            trial.quota.push((vendor.clone(), more));
        }
        Relax::Pods => trial.empty = true,
        Relax::Cordons => trial.uncordoned = true,
        Relax::Health => trial.healthy = true,
        Relax::Types(alike) => {
            for (container, at) in alike {
                if let Some(ask) = ask_mut(request, *container, *at) {
                    ask.select.use_types.clear();
                    ask.select.nouse_types.clear();
                }
            }
        }
        Relax::Rule(alike, rule) => {
            for (container, at) in alike {
                if let Some(ask) = ask_mut(request, *container, *at) {
                    drop_rule(ask, rule);
                }
            }
        }
        Relax::Memory(..) | Relax::Cores(..) | Relax::Count(..) => {}
    }
    let Some(ask) = kind
        .ask()
        .and_then(|(container, at)| ask_mut(request, container, at))
    else {
        return;
    };
    match kind {
        Relax::Memory(..) => {
            ask.memory = match (ask.memory, ask.sizes.iter().min()) {
                (_, Some(least)) => Memory::Bytes(*least),
                (Memory::Bytes(bytes), None) => Memory::Bytes(bytes.min(MIB)),
                (Memory::Percent(percent), None) => Memory::Percent(percent.min(1)),
            };
        }
        Relax::Cores(..) => ask.compute = Compute::Units(0),
        Relax::Count(..) => ask.count = 1,
        _ => {}
    }
}

pub(super) fn widened(quota: Quota, more: Load) -> Quota {
    Quota {
        memory_bytes: quota
            .memory_bytes
            .map(|limit| limit.saturating_add(more.memory_bytes)),
        cores: quota.cores.map(|limit| limit.saturating_add(more.cores)),
        devices: quota.devices.map(|limit| limit.saturating_add(more.slots)),
    }
}

pub(super) fn without(node: &NodeState, leaving: &[&Reservation]) -> NodeState {
    let mut after = node.clone();
    for held in leaving {
        after.give_back(held);
    }
    after
}

pub(super) fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// The greatest value from `low` to `high` for which `does` is true, given that it is true for `low`, and that after
/// a value for which it is false it stays false.
pub(super) fn greatest(low: u64, high: u64, mut does: impl FnMut(u64) -> bool) -> Option<u64> {
    if low > high || !does(low) {
        return None;
    }
    let (mut low, mut high) = (low, high);
    while low < high {
        let middle = high - (high - low) / 2;
        if does(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Some(low)
}

/// The least value up to `high` for which `does` is true, given that it is true for `high`, and that after a value
/// for which it is true it stays true.
pub(super) fn least(high: u64, mut does: impl FnMut(u64) -> bool) -> Option<u64> {
    if !does(high) {
        return None;
    }
    let (mut low, mut high) = (0, high);
    while low < high {
        let middle = low + (high - low) / 2;
        if does(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(low)
}
