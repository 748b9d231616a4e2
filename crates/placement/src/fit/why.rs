//! Why a request does not fit on a node, by device.

use super::{Fit, State, distinct, serves_alone, shares_of};
use crate::arrange::{self, DeviceTraits, Pick};
use crate::device::{Pending, check, score_of};
use crate::misfit::{Misfit, Reason, Reasons};
use crate::node::NodeState;
use crate::plan::{Plan, Step};
use crate::request::Arrange;
use crate::reservation::Load;

/// Why the request does not fit on the node. Must only be called after `place` has failed.
pub(crate) fn misfit(node: &NodeState, plan: &Plan<'_>) -> Misfit {
    // Each device is checked by itself, unless taking one device changes what the next can offer.
    let in_turn =
        |step: &Step<'_>| step.ask.numa_bind || (step.quota.is_some() && step.ask.count > 1);
    match plan.steps.as_slice() {
        [step] if !in_turn(step) => return misfit_alone(node, step),
        steps => {
            let short = steps.iter().find(|step| !serves_alone(node, step));
            if let Some(step) = short.filter(|step| !in_turn(step)) {
                return misfit_alone(node, step);
            }
        }
    }
    let mut budget = 0;
    let mut fit = Fit::new(node, plan, &mut budget);
    let start = fit.start();
    fit.search(0, &start);
    match fit.failed.take() {
        Some((at, state)) => fit.reasons(at, state),
        None => Misfit::UnknownNode,
    }
}

/// Why the step does not fit even as the pod's only one. Checks each device once.
fn misfit_alone(node: &NodeState, step: &Step<'_>) -> Misfit {
    let idle = Pending::default();
    let mut offered: u32 = 0;
    let mut if_all_left: u32 = 0;
    let mut reasons = Reasons::new(&node.ids);
    for (position, device) in node.devices.iter().enumerate() {
        if Some(device.vendor) != step.vendor {
            continue;
        }
        let shares = shares_of(device, device.total.slots);
        offered = offered.saturating_add(shares);
        let reason = match check(device, &idle, step, &[]) {
            Ok(_) => Reason::TooFew,
            Err(reason) => reason,
        };
        if reason.is_cured_by_leaving() {
            if_all_left = if_all_left.saturating_add(shares);
        }
        reasons.push(position, reason);
    }
    if reasons.is_empty() || offered < step.ask.count {
        return Misfit::TooFewDevices {
            container: step.container,
            vendor: step.ask.vendor.clone(),
            present: reasons.len(),
            asked: step.ask.count,
        };
    }
    explain_arrangement(node, step, &mut reasons, &mut if_all_left);
    Misfit::Devices {
        container: step.container,
        vendor: step.ask.vendor.clone(),
        asked: step.ask.count,
        if_all_left,
        reasons,
    }
}

/// Names the arrangement as the reason if enough devices fit one by one. For the arrangements that HAMi has, one such
/// device is enough, as in HAMi.
fn explain_arrangement(
    node: &NodeState,
    step: &Step<'_>,
    reasons: &mut Reasons,
    if_all_left: &mut u32,
) {
    if !step.ask.arrange.is_strict() {
        return;
    }
    let enough = match step.ask.arrange {
        Arrange::Modules { .. } => step.count(),
        _ => 1,
    };
    if reasons.count(Reason::TooFew) >= enough {
        reasons.replace(Reason::TooFew, Reason::Arrangement);
    }
    let idle: Vec<DeviceTraits> = (0..node.devices.len())
        .filter(|&position| {
            let device = node.devices.get(position);
            device.is_some_and(|device| Some(device.vendor) == step.vendor)
                && reasons
                    .of(position)
                    .is_some_and(Reason::is_cured_by_leaving)
        })
        .filter_map(|position| node.traits(position, None))
        .map(|traits| DeviceTraits { used: 0, ..traits })
        .collect();
    if arrange::pick(step.ask.arrange, step.count(), &idle) == Pick::None {
        *if_all_left = 0;
    }
}

impl Fit<'_> {
    /// Why the step at `at` has no choice in the state `state`: repeats the search and records the reasons.
    fn reasons(&self, at: usize, mut state: State) -> Misfit {
        let Some(step) = self.plan.steps.get(at) else {
            return Misfit::UnknownNode;
        };
        let mut scored: Vec<(usize, f64)> = self
            .node
            .devices
            .iter()
            .zip(&state.pending)
            .enumerate()
            .filter(|(_, (device, _))| Some(device.vendor) == step.vendor)
            .map(|(position, (device, pending))| {
                let load = check(device, pending, step, &state.quotas)
                    .map_or_else(|_| Load::default(), |cost| cost.load);
                (position, score_of(device, pending, step, load))
            })
            .collect();
        let offered: u32 = scored
            .iter()
            .filter_map(|(position, _)| self.node.devices.get(*position))
            .map(|device| shares_of(device, device.total.slots))
            .fold(0, u32::saturating_add);
        if scored.is_empty() || offered < step.ask.count {
            return Misfit::TooFewDevices {
                container: step.container,
                vendor: step.ask.vendor.clone(),
                present: scored.len(),
                asked: step.ask.count,
            };
        }
        scored.sort_by(|a, b| self.order(step, &state, *a, *b));
        if step.ask.numa_bind {
            let order = distinct(scored.iter().map(|(position, _)| self.numa(*position)));
            scored.sort_by_key(|(position, _)| {
                order.iter().position(|numa| *numa == self.numa(*position))
            });
        }
        let last_numa = scored
            .iter()
            .rev()
            .find(|(position, _)| {
                let device = self.node.devices.get(*position);
                let pending = state.pending.get(*position);
                device.zip(pending).is_some_and(|(device, pending)| {
                    check(device, pending, step, &state.quotas).is_ok()
                })
            })
            .and_then(|(position, _)| self.numa(*position));
        let mut if_all_left: u32 = 0;
        let mut reasons = Reasons::new(&self.node.ids);
        let before = state.clone();
        let mut numa = None;
        for (position, _) in scored {
            if step.ask.numa_bind && numa != self.numa(position) {
                numa = self.numa(position);
                state = before.clone();
            }
            let reason = match self.take(step, position, &mut state) {
                Ok(_) if step.ask.numa_bind && self.numa(position) != last_numa => Reason::Numa,
                Ok(_) => Reason::TooFew,
                Err(reason) => reason,
            };
            if let Some(device) = self.node.devices.get(position) {
                if reason.is_cured_by_leaving() {
                    let shares = shares_of(device, device.total.slots);
                    if_all_left = if_all_left.saturating_add(shares);
                }
                reasons.push(position, reason);
            }
        }
        explain_arrangement(self.node, step, &mut reasons, &mut if_all_left);
        Misfit::Devices {
            container: step.container,
            vendor: step.ask.vendor.clone(),
            asked: step.ask.count,
            if_all_left,
            reasons,
        }
    }
}
