//! Why a request does not fit on a node, by card.

use super::{Fit, State, distinct, serves_alone, shares_of};
use crate::arrange::{self, CardTraits, Pick};
use crate::card::{Pending, check, score_of};
use crate::misfit::{Misfit, Reason, Reasons};
use crate::node::NodeState;
use crate::plan::{Plan, Step};
use crate::request::Arrange;
use crate::reservation::Load;

/// Why the request does not fit on the node, after `place` has found that it does not.
pub(crate) fn misfit(node: &NodeState, plan: &Plan<'_>) -> Misfit {
    // Each card is checked by itself, unless taking one card changes what the next can offer.
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

/// Why the step does not fit even if it were the pod's only one. Checks each card once.
fn misfit_alone(node: &NodeState, step: &Step<'_>) -> Misfit {
    let idle = Pending::default();
    let mut offered: u32 = 0;
    let mut if_all_left: u32 = 0;
    let mut reasons = Reasons::new(&node.ids);
    for (card, device) in node.devices.iter().enumerate() {
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
        reasons.push(card, reason);
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

/// Names the arrangement as the reason if enough cards would do one by one. For the arrangements that HAMi has, one
/// such card is enough to name it, as in HAMi.
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
    let idle: Vec<CardTraits> = (0..node.devices.len())
        .filter(|&card| {
            let device = node.devices.get(card);
            device.is_some_and(|device| Some(device.vendor) == step.vendor)
                && reasons.of(card).is_some_and(Reason::is_cured_by_leaving)
        })
        .filter_map(|card| node.traits(card, None))
        .map(|card| CardTraits { used: 0, ..card })
        .collect();
    if arrange::pick(step.ask.arrange, step.count(), &idle) == Pick::None {
        *if_all_left = 0;
    }
}

impl Fit<'_> {
    /// Why the step at `at` has no choice once `state` is taken: repeats the search and records the reasons.
    fn reasons(&self, at: usize, mut state: State) -> Misfit {
        let Some(step) = self.plan.steps.get(at) else {
            return Misfit::UnknownNode;
        };
        let mut cards: Vec<(usize, f64)> = self
            .node
            .devices
            .iter()
            .zip(&state.cards)
            .enumerate()
            .filter(|(_, (device, _))| Some(device.vendor) == step.vendor)
            .map(|(card, (device, pending))| {
                let load = check(device, pending, step, &state.quotas)
                    .map_or_else(|_| Load::default(), |cost| cost.load);
                (card, score_of(device, pending, step, load))
            })
            .collect();
        let offered: u32 = cards
            .iter()
            .filter_map(|(card, _)| self.node.devices.get(*card))
            .map(|device| shares_of(device, device.total.slots))
            .fold(0, u32::saturating_add);
        if cards.is_empty() || offered < step.ask.count {
            return Misfit::TooFewDevices {
                container: step.container,
                vendor: step.ask.vendor.clone(),
                present: cards.len(),
                asked: step.ask.count,
            };
        }
        cards.sort_by(|a, b| self.order(step, &state, *a, *b));
        if step.ask.numa_bind {
            let order = distinct(cards.iter().map(|(card, _)| self.numa(*card)));
            cards.sort_by_key(|(card, _)| order.iter().position(|numa| *numa == self.numa(*card)));
        }
        let last_numa = cards
            .iter()
            .rev()
            .find(|(card, _)| {
                let device = self.node.devices.get(*card);
                let pending = state.cards.get(*card);
                device.zip(pending).is_some_and(|(device, pending)| {
                    check(device, pending, step, &state.quotas).is_ok()
                })
            })
            .and_then(|(card, _)| self.numa(*card));
        let mut if_all_left: u32 = 0;
        let mut reasons = Reasons::new(&self.node.ids);
        let before = state.clone();
        let mut numa = None;
        for (card, _) in cards {
            if step.ask.numa_bind && numa != self.numa(card) {
                numa = self.numa(card);
                state = before.clone();
            }
            let reason = match self.take(step, card, &mut state) {
                Ok(_) if step.ask.numa_bind && self.numa(card) != last_numa => Reason::Numa,
                Ok(_) => Reason::TooFew,
                Err(reason) => reason,
            };
            if let Some(device) = self.node.devices.get(card) {
                if reason.is_cured_by_leaving() {
                    let shares = shares_of(device, device.total.slots);
                    if_all_left = if_all_left.saturating_add(shares);
                }
                reasons.push(card, reason);
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
