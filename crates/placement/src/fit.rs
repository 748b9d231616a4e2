//! Whether a request fits on one node, and which devices it gets there. Reads no other nodes.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::arrange::{self, DeviceTraits, Pick};
use crate::device::{Cost, Pending, check, score_of};
use crate::misfit::Reason;
use crate::node::{DeviceState, NodeState};
use crate::plan::{Plan, Step};
use crate::request::{Arrange, DevicePolicy, Key, NodePolicy};
use crate::reservation::{Grant, Granted, Load, Phases, Placement};
use crate::topology;

mod why;

pub(crate) use why::misfit;

/// The pod's use so far, in one branch of the search.
#[derive(Debug, Clone)]
struct State {
    pending: Vec<Pending>,
    /// One entry for each vendor with a quota.
    quotas: Vec<(u32, Phases)>,
    /// The only devices that the current step can get.
    only: Option<Vec<usize>>,
}

/// A device that satisfies the step.
struct Candidate {
    position: usize,
    score: f64,
}

struct Picked {
    position: usize,
    cost: Cost,
}

struct Fit<'a> {
    node: &'a NodeState,
    plan: &'a Plan<'a>,
    picks: Vec<Vec<Picked>>,
    /// The step at which the first choice failed, and the state before it.
    failed: Option<(usize, State)>,
    budget: &'a mut u32,
}

/// Places the request on the node. If a container's first choice leaves no room for another container, other choices
/// are tried. `budget` limits their number, and is shared by all nodes of one request.
pub(crate) fn place(node: &NodeState, plan: &Plan<'_>, budget: &mut u32) -> Option<Placement> {
    if !may_serve(node, plan) {
        return None;
    }
    let mut fit = Fit::new(node, plan, budget);
    let start = fit.start();
    if !fit.search(0, &start) {
        return None;
    }
    let mut containers: Vec<Granted> = plan
        .request
        .containers
        .iter()
        .map(|container| Granted {
            kind: container.kind,
            grants: Vec::new(),
        })
        .collect();
    for (step, picks) in plan.steps.iter().zip(fit.picks) {
        let Some(granted) = containers.get_mut(step.container) else {
            continue;
        };
        for picked in picks {
            let Some(device) = node.devices.get(picked.position) else {
                continue;
            };
            granted.grants.push(Grant {
                device: device.id.clone(),
                vendor: step.ask.vendor.clone(),
                slots: picked.cost.load.slots,
                memory_bytes: picked.cost.load.memory_bytes,
                cores: picked.cost.load.cores,
                instance: picked.cost.instance,
                class: step.ask.company.as_ref().map(|it| Arc::clone(&it.class)),
            });
        }
    }
    Some(Placement {
        node: Arc::clone(&node.name),
        containers,
    })
}

/// False only if the request cannot fit on the node. Checks each device once.
pub(crate) fn may_serve(node: &NodeState, plan: &Plan<'_>) -> bool {
    plan.may_hold(node) && plan.steps.iter().all(|step| serves_alone(node, step))
}

/// Whether enough devices satisfy the step if it were the pod's only one.
fn serves_alone(node: &NodeState, step: &Step<'_>) -> bool {
    let idle = Pending::default();
    let mut shares: u32 = 0;
    for device in &node.devices {
        if shares >= step.ask.count {
            break;
        }
        if Some(device.vendor) == step.vendor && check(device, &idle, step, &[]).is_ok() {
            shares = shares.saturating_add(shares_of(device, device.free_slots()));
        }
    }
    shares >= step.ask.count
}

/// How many shares of a device one ask can take: one, or on a device in MIG mode all slots.
fn shares_of(device: &DeviceState, slots: u32) -> u32 {
    if device.mig { slots } else { 1 }
}

/// The node's bonus for this placement, in addition to its score; more is better.
pub(crate) fn worth(node: &NodeState, plan: &Plan<'_>, placement: &Placement) -> f64 {
    let mut sum = 0.0;
    let mut appraised: Option<(&Step<'_>, u32)> = None;
    for step in &plan.steps {
        let arrange = step.ask.arrange;
        if arrange == Arrange::Anyhow {
            continue;
        }
        let traits = |taken: bool| -> Vec<DeviceTraits> {
            let grants = placement.containers.get(step.container);
            let is_taken = |device: &DeviceState| {
                grants.is_some_and(|granted| {
                    granted.grants.iter().any(|grant| grant.device == device.id)
                })
            };
            (0..node.devices.len())
                .filter(|&position| {
                    let device = node.devices.get(position);
                    device.is_some_and(|device| {
                        Some(device.vendor) == step.vendor && (!taken || is_taken(device))
                    })
                })
                .filter_map(|position| node.traits(position, step.class()))
                .collect()
        };
        if arrange == Arrange::Appraised {
            let before = appraised.map_or(0, |(_, count)| count);
            appraised = Some((step, before.saturating_add(step.ask.count)));
        } else {
            sum += arrange::worth(arrange, &traits(true), &traits(false));
        }
    }
    if let Some((step, count)) = appraised {
        let appraisal = node
            .devices
            .iter()
            .filter(|device| Some(device.vendor) == step.vendor)
            .find_map(|device| device.device.appraisal.as_ref());
        let (figures, worth): (_, fn(i32) -> f64) = match plan.request.node_policy {
            NodePolicy::Binpack => (appraisal.map(|it| &it.losses), |loss| {
                2000.0 - f64::from(loss)
            }),
            NodePolicy::Spread => (appraisal.map(|it| &it.scores), f64::from),
        };
        sum += figures
            .and_then(|figures| figures.get(&count))
            .map_or(0.0, |figure| worth(*figure));
    }
    sum
}

impl<'a> Fit<'a> {
    fn new(node: &'a NodeState, plan: &'a Plan<'a>, budget: &'a mut u32) -> Self {
        Self {
            node,
            plan,
            picks: Vec::with_capacity(plan.steps.len()),
            failed: None,
            budget,
        }
    }

    fn start(&self) -> State {
        let mut quotas: Vec<(u32, Phases)> = Vec::new();
        for step in &self.plan.steps {
            if let (Some(vendor), Some(_)) = (step.vendor, step.quota)
                && !quotas.iter().any(|(of, _)| *of == vendor)
            {
                quotas.push((vendor, Phases::default()));
            }
        }
        State {
            pending: vec![Pending::default(); self.node.devices.len()],
            quotas,
            only: None,
        }
    }

    /// Places the steps from `at` on. Tries the policy's choice first, and other choices only if it leaves no room
    /// for a later step.
    fn search(&mut self, at: usize, before: &State) -> bool {
        let plan = self.plan;
        let Some(step) = plan.steps.get(at) else {
            return true;
        };
        if self.failed.is_some() {
            // The first pass through all containers is free; each step of another pass counts.
            *self.budget = self.budget.saturating_sub(1);
        }
        let mut state = before.clone();
        if step.first {
            for pending in &mut state.pending {
                pending.phases.init = Load::default();
            }
            for (_, phases) in &mut state.quotas {
                phases.init = Load::default();
            }
        }
        state.only = self.only(step, &state);
        let candidates = self.candidates(step, &state);
        let mut chosen = state.clone();
        let Some(picks) = self.choose(step, &candidates, &mut chosen) else {
            if self.failed.is_none() {
                self.failed = Some((at, state));
            }
            return false;
        };
        let first: Vec<usize> = picks.iter().map(|picked| picked.position).collect();
        self.picks.push(picks);
        if self.search(at + 1, &chosen) {
            return true;
        }
        self.picks.pop();
        if *self.budget == 0 {
            return false;
        }
        self.search_others(at, &state, &candidates, &first)
    }

    /// The devices of the pod's earlier containers, if the step may have no others.
    fn only(&self, step: &Step<'_>, state: &State) -> Option<Vec<usize>> {
        if !step.ask.together {
            return None;
        }
        let taken: Vec<usize> = (state.pending.iter().enumerate())
            .filter(|(position, pending)| {
                let device = self.node.devices.get(*position);
                pending.container.is_some_and(|it| it != step.container)
                    && device.is_some_and(|device| Some(device.vendor) == step.vendor)
            })
            .map(|(position, _)| position)
            .collect();
        (!taken.is_empty()).then_some(taken)
    }

    /// Tries every set of shares for the step at `at`, in the order of its policy.
    fn search_others(
        &mut self,
        at: usize,
        state: &State,
        candidates: &[Candidate],
        first: &[usize],
    ) -> bool {
        let plan = self.plan;
        let Some(step) = plan.steps.get(at) else {
            return false;
        };
        let count = step.count();
        let shares = self.shares(step, state, candidates);
        if count > shares.len() || (step.ask.arrange.is_strict() && count > 1) {
            return false;
        }
        let mut chosen: Vec<usize> = (0..count).collect();
        loop {
            if *self.budget == 0 {
                return false;
            }
            *self.budget -= 1;
            if self.is_worth(step, state, &shares, &chosen)
                && !chosen
                    .iter()
                    .zip(first)
                    .all(|(&at, position)| shares.get(at) == Some(position))
            {
                let mut after = state.clone();
                if let Some(picks) = self.take_all(step, &shares, &chosen, &mut after) {
                    self.picks.push(picks);
                    if self.search(at + 1, &after) {
                        return true;
                    }
                    self.picks.pop();
                }
            }
            if !next_combination(&mut chosen, shares.len()) {
                return false;
            }
        }
    }

    /// Position of the device of each share that the step could take, in the order of its policy. A device in MIG
    /// mode is listed once for each instance that its free slots allow.
    fn shares(&self, step: &Step<'_>, state: &State, candidates: &[Candidate]) -> Vec<usize> {
        let mut shares = Vec::with_capacity(candidates.len());
        for position in candidates.iter().map(|candidate| candidate.position) {
            let device = self.node.devices.get(position);
            let pending = state.pending.get(position);
            let copies = device.zip(pending).map_or(1, |(device, pending)| {
                let beside = pending.phases.beside(step.kind).slots;
                let free = device.free_slots().saturating_sub(beside);
                shares_of(device, free).min(step.ask.count).max(1)
            });
            shares.extend(std::iter::repeat_n(
                position,
                usize::try_from(copies).unwrap_or(usize::MAX),
            ));
        }
        shares
    }

    /// Whether a set of shares satisfies the step's rules and is more than a swap of interchangeable shares in an
    /// earlier set.
    fn is_worth(&self, step: &Step<'_>, state: &State, shares: &[usize], chosen: &[usize]) -> bool {
        let device_of = |at: usize| {
            let position = *shares.get(at)?;
            Some((position, self.node.devices.get(position)?))
        };
        if step.ask.numa_bind {
            let mut numas = chosen
                .iter()
                .filter_map(|&at| device_of(at).map(|(_, device)| device.numa));
            let first = numas.next();
            if numas.any(|numa| Some(numa) != first) {
                return false;
            }
        }
        chosen.iter().all(|&at| {
            let Some(before) = at.checked_sub(1).filter(|before| !chosen.contains(before)) else {
                return true;
            };
            match (device_of(before), device_of(at)) {
                (Some((a, _)), Some((b, _))) if a == b => false,
                (Some((a, one)), Some((b, other))) => {
                    !self.are_alike(one, state.pending.get(a), other, state.pending.get(b))
                }
                _ => true,
            }
        })
    }

    /// Whether two devices are interchangeable for every step of the plan.
    fn are_alike(
        &self,
        one: &DeviceState,
        one_pending: Option<&Pending>,
        other: &DeviceState,
        other_pending: Option<&Pending>,
    ) -> bool {
        let pick_by_name = self.plan.steps.iter().any(|step| {
            step.use_ids.is_some()
                || !step.nouse_ids.is_empty()
                || !step.ask.select.tags.is_empty()
                || step.ask.arrange != Arrange::Anyhow
                || step.ask.together
                || step.ask.company.is_some()
                || step.ask.even
        });
        !pick_by_name
            && !one.mig
            && !other.mig
            && !one.cut
            && !other.cut
            && one.device.core_step == other.device.core_step
            && one.model == other.model
            && one.vendor == other.vendor
            && one.total == other.total
            && one.used == other.used
            && one.numa == other.numa
            && one.device.mode == other.device.mode
            && one.device.gflops == other.device.gflops
            && one_pending.map(|pending| pending.phases)
                == other_pending.map(|pending| pending.phases)
    }

    fn take_all(
        &self,
        step: &Step<'_>,
        shares: &[usize],
        chosen: &[usize],
        state: &mut State,
    ) -> Option<Vec<Picked>> {
        let mut picks = Vec::with_capacity(chosen.len());
        for &at in chosen {
            let position = *shares.get(at)?;
            picks.push(self.take(step, position, state).ok()?);
        }
        Some(picks)
    }

    /// Checks the device again and takes the share.
    fn take(&self, step: &Step<'_>, position: usize, state: &mut State) -> Result<Picked, Reason> {
        let device = self.node.devices.get(position).ok_or(Reason::TooFew)?;
        let pending = state.pending.get(position).ok_or(Reason::TooFew)?;
        let cost = check(device, pending, step, &state.quotas)?;
        if state
            .only
            .as_ref()
            .is_some_and(|only| !only.contains(&position))
        {
            return Err(Reason::Apart);
        }
        if let Some(pending) = state.pending.get_mut(position) {
            pending.phases.add(step.kind, cost.load);
            pending.container.get_or_insert(step.container);
            if let Some(company) = &step.ask.company {
                pending.classes.push(Arc::clone(&company.class));
            }
            if let Some(instance) = &cost.instance {
                pending
                    .instances
                    .push((step.container, step.kind, instance.clone()));
            }
        }
        if let Some((_, phases)) = state
            .quotas
            .iter_mut()
            .find(|(vendor, _)| Some(*vendor) == step.vendor)
        {
            phases.add(step.kind, cost.load);
        }
        Ok(Picked { position, cost })
    }

    /// The devices that satisfy the step, in the order of the policy.
    fn candidates(&self, step: &Step<'_>, state: &State) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for (position, (device, pending)) in
            self.node.devices.iter().zip(&state.pending).enumerate()
        {
            if Some(device.vendor) != step.vendor
                || state
                    .only
                    .as_ref()
                    .is_some_and(|only| !only.contains(&position))
            {
                continue;
            }
            if let Ok(cost) = check(device, pending, step, &state.quotas) {
                let score = score_of(device, pending, step, cost.load);
                candidates.push(Candidate { position, score });
            }
        }
        candidates
            .sort_by(|a, b| self.order(step, state, (a.position, a.score), (b.position, b.score)));
        candidates
    }

    fn order(
        &self,
        step: &Step<'_>,
        state: &State,
        (a, a_score): (usize, f64),
        (b, b_score): (usize, f64),
    ) -> Ordering {
        let (Some(one), Some(other)) = (self.node.devices.get(a), self.node.devices.get(b)) else {
            return Ordering::Equal;
        };
        let containers = |position: usize, device: &DeviceState| {
            let beside = state
                .pending
                .get(position)
                .map_or(0, |pending| pending.phases.beside(step.kind).slots);
            device.used.slots.wrapping_add(beside)
        };
        for key in step.keys() {
            let order = match key {
                Key::Binpack => b_score.total_cmp(&a_score),
                Key::Spread => a_score.total_cmp(&b_score),
                Key::Numa => other.numa.cmp(&one.numa),
                Key::FewestContainers => containers(a, one).cmp(&containers(b, other)),
                Key::LowestIndex => one.index.cmp(&other.index),
            };
            if order != Ordering::Equal {
                return order;
            }
        }
        (other.index, &other.id).cmp(&(one.index, &one.id))
    }

    /// Takes the step's shares by its policy. If that is not possible, `state` is left partly changed.
    fn choose(
        &self,
        step: &Step<'_>,
        candidates: &[Candidate],
        state: &mut State,
    ) -> Option<Vec<Picked>> {
        let count = step.count();
        if count == 0 {
            return Some(Vec::new());
        }
        if candidates.is_empty() {
            return None;
        }
        if step.ask.numa_bind {
            for numa in distinct(candidates.iter().map(|c| self.numa(c.position))) {
                let group: Vec<&Candidate> = candidates
                    .iter()
                    .filter(|c| self.numa(c.position) == numa)
                    .collect();
                let mut attempt = state.clone();
                if let Some(picks) = self.choose_among(step, &group, &mut attempt) {
                    *state = attempt;
                    return Some(picks);
                }
            }
            return None;
        }
        let all: Vec<&Candidate> = candidates.iter().collect();
        if step.ask.prefer_group && count > 1 {
            let group_of = |c: &Candidate| {
                self.node
                    .devices
                    .get(c.position)
                    .and_then(|device| device.device.group)
            };
            let mut groups: Vec<Vec<&Candidate>> = distinct(candidates.iter().map(group_of))
                .into_iter()
                .flatten()
                .map(|group| {
                    all.iter()
                        .copied()
                        .filter(|c| group_of(c) == Some(group))
                        .collect()
                })
                .collect();
            // The smallest group first. The sort is stable, so groups of equal size stay in the policy's order.
            groups.sort_by_key(Vec::len);
            for group in groups.iter().filter(|group| group.len() >= count) {
                let mut attempt = state.clone();
                if let Some(picks) = self.choose_among(step, group, &mut attempt) {
                    *state = attempt;
                    return Some(picks);
                }
            }
        }
        self.choose_among(step, &all, state)
    }

    fn numa(&self, position: usize) -> Option<u32> {
        self.node.devices.get(position).map(|device| device.numa)
    }

    fn choose_among(
        &self,
        step: &Step<'_>,
        candidates: &[&Candidate],
        state: &mut State,
    ) -> Option<Vec<Picked>> {
        let count = step.count();
        let mut order: Vec<usize> = candidates.iter().map(|c| c.position).collect();
        if step.ask.arrange != Arrange::Anyhow {
            let traits: Vec<DeviceTraits> = order
                .iter()
                .filter_map(|&position| self.node.traits(position, step.class()))
                .collect();
            match arrange::pick(step.ask.arrange, count, &traits) {
                Pick::AsOrdered => {}
                Pick::These(positions) => {
                    order = positions
                        .into_iter()
                        .filter_map(|at| order.get(at).copied())
                        .collect();
                }
                Pick::None => return None,
            }
        }
        if step.ask.policy == DevicePolicy::TopologyAware
            && self.node.has_pairs()
            && order.len() >= count
        {
            let pair = |a: usize, b: usize| match (order.get(a), order.get(b)) {
                (Some(&a), Some(&b)) => self.node.pair(a, b),
                _ => 0,
            };
            let best = if count == 1 {
                vec![topology::least_missed(order.len(), pair)]
            } else {
                topology::best_subset(order.len(), count, pair)
            };
            let mut attempt = state.clone();
            let picks: Option<Vec<Picked>> = best
                .into_iter()
                .map(|at| self.take(step, *order.get(at)?, &mut attempt).ok())
                .collect();
            if let Some(picks) = picks {
                *state = attempt;
                return Some(picks);
            }
        }
        let mut picks = Vec::with_capacity(count.min(64));
        for position in order {
            // A device in MIG mode can give several instances.
            while picks.len() < count {
                match self.take(step, position, state) {
                    Ok(picked) => picks.push(picked),
                    Err(_) => break,
                }
                if self
                    .node
                    .devices
                    .get(position)
                    .is_none_or(|device| !device.mig)
                {
                    break;
                }
            }
            if picks.len() == count {
                return Some(picks);
            }
        }
        None
    }
}

/// Advances `chosen` to the next combination of positions below `of`, in lexicographic order.
pub(crate) fn next_combination(chosen: &mut [usize], of: usize) -> bool {
    let count = chosen.len();
    for at in (0..count).rev() {
        let Some(value) = chosen.get(at).copied() else {
            return false;
        };
        if value + (count - at) < of {
            for (offset, slot) in chosen.iter_mut().skip(at).enumerate() {
                *slot = value + 1 + offset;
            }
            return true;
        }
    }
    false
}

fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen: Vec<T> = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}
