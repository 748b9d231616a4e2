//! Finds the smallest change that makes a pod fit. Does not make the change.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

use crate::advice::{Advice, Change, Rule, allow_model};
use crate::cluster::{Among, Cluster, MOST_CHOICES, Question};
use crate::fit;
use crate::inventory::Vendor;
use crate::misfit::NodeMisfit;
use crate::node::{DeviceState, NodeState};
use crate::plan::Plan;
use crate::request::{Ask, Compute, Memory, Request};
use crate::reservation::{Load, Placement, Reservation};

mod trial;

use trial::{
    MIB, Relax, Trial, ask_mut, greatest, least, narrow, relax, wants_unused, widened, without,
};

/// The number of sets of pods that are tried for the smallest one. After that a small set is accepted that may not be
/// the smallest.
const MOST_SETS: u32 = 5_000;

/// The cost limit of one search, about a second of work: checking a node costs 1, changing or trying a node costs
/// [`TRIED`]. A pod of hundreds of containers gets the advice found until then.
const MOST_COST: u64 = 20_000_000;

/// The cost of changing or trying a node, for each container. See [`MOST_COST`].
const TRIED: u64 = 20;

/// The cost of a choice that fails. See [`MOST_COST`].
const CHOSEN: u64 = 10;

/// The cost after which the caller is asked whether to continue.
const ASKED_EVERY: u64 = 10_000;

/// The most kinds of changes that are tried together.
const MOST_TOGETHER: usize = 3;

/// Why a pod fits nowhere, and what would help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// For each node in question, by name, why the pod does not fit there.
    pub misfits: Vec<NodeMisfit>,
    /// Pieces of advice, each enough by itself. Empty if no change helps.
    pub advice: Vec<Advice>,
}

impl Cluster {
    /// Why the pod fits nowhere, and the smallest changes that would make it fit. There is one piece of advice for
    /// each kind of change that is enough by itself; if there is none, the advice combines the fewest kinds that are
    /// enough together.
    ///
    /// # Errors
    ///
    /// The placement, if the pod fits.
    pub fn explain(&self, request: &Request, among: Among<'_>) -> Result<Explanation, Placement> {
        self.explain_while(request, among, &|| true)
    }

    /// As [`Cluster::explain`], for as long as `go_on` returns true. Advice that was not found until then is missing.
    ///
    /// # Errors
    ///
    /// The placement, if the pod fits.
    pub fn explain_while(
        &self,
        request: &Request,
        among: Among<'_>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Explanation, Placement> {
        let misfits = match self.place(request, among) {
            Ok(placement) => return Err(placement),
            Err(misfits) => misfits,
        };
        if request.any.is_some() {
            // Advice for one vendor's request is valid for the request for any vendor.
            let advice = self
                .requests_of_any(request)
                .into_iter()
                .filter_map(|one| self.explain_while(&one, among, go_on).ok())
                .map(|explanation| explanation.advice)
                .find(|advice| !advice.is_empty())
                .unwrap_or_default();
            return Ok(Explanation { misfits, advice });
        }
        let question = Question::new(self, request);
        let mut nodes: Vec<&NodeState> = self
            .in_question(among)
            .filter_map(|(_, node)| question.node(node?))
            .collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        nodes.dedup_by(|a, b| a.name == b.name);
        let search = AdviceSearch {
            cluster: self,
            request,
            nodes: nodes.into_iter().map(Cow::Borrowed).collect(),
            left: Cell::new(MOST_COST),
            go_on,
        };
        Ok(Explanation {
            misfits,
            advice: search.advice(),
        })
    }
}

struct AdviceSearch<'a> {
    cluster: &'a Cluster,
    request: &'a Request,
    /// Without the request's own reservation, by name.
    nodes: Vec<Cow<'a, NodeState>>,
    /// The remaining cost. At 0 every check fails, so an unfinished search yields no advice.
    left: Cell<u64>,
    go_on: &'a dyn Fn() -> bool,
}

impl<'a> AdviceSearch<'a> {
    fn advice(&self) -> Vec<Advice> {
        let kinds = self.kinds();
        for together in 1..=MOST_TOGETHER {
            let mut found = Vec::new();
            let mut subset: Vec<usize> = (0..together).collect();
            while subset.last().is_some_and(|&last| last < kinds.len()) {
                let subset_kinds: Vec<&Relax> =
                    subset.iter().filter_map(|&at| kinds.get(at)).collect();
                found.extend(self.smallest(&subset_kinds));
                if self.left.get() == 0 {
                    return found;
                }
                if !fit::next_combination(&mut subset, kinds.len()) {
                    break;
                }
            }
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    /// All kinds of change that could matter.
    fn kinds(&self) -> Vec<Relax> {
        let mut kinds = Vec::new();
        for (container, spec) in self.request.containers.iter().enumerate() {
            for (at, ask) in spec.asks.iter().enumerate() {
                if ask.count == 0 {
                    continue;
                }
                kinds.push(Relax::Memory(container, at));
                if matches!(ask.compute, Compute::Units(units) if units > 0) {
                    kinds.push(Relax::Cores(container, at));
                }
                if ask.count > 1 {
                    kinds.push(Relax::Count(container, at));
                }
                let select = &ask.select;
                if !select.use_types.is_empty() || !select.nouse_types.is_empty() {
                    let alike =
                        self.alike(ask, |one| (&one.select.use_types, &one.select.nouse_types));
                    if alike.first() == Some(&(container, at)) {
                        kinds.push(Relax::Types(alike));
                    }
                }
                let mut rule = |rule: Rule| {
                    let alike = match rule {
                        Rule::Ids => {
                            self.alike(ask, |one| (&one.select.use_ids, &one.select.nouse_ids))
                        }
                        Rule::Mode => self.alike(ask, |one| &one.select.mode),
                        Rule::Tag(_) => self.alike(ask, |one| &one.select.tags),
                        Rule::NumaBind => self.alike(ask, |one| one.numa_bind),
                        Rule::Unused => self.alike(ask, wants_unused),
                    };
                    if alike.first() == Some(&(container, at)) {
                        kinds.push(Relax::Rule(alike, rule));
                    }
                };
                if !select.use_ids.is_empty() || !select.nouse_ids.is_empty() {
                    rule(Rule::Ids);
                }
                if select.mode.is_some() {
                    rule(Rule::Mode);
                }
                for tag in &select.tags {
                    rule(Rule::Tag(tag.clone()));
                }
                if ask.numa_bind {
                    rule(Rule::NumaBind);
                }
                if wants_unused(ask) {
                    rule(Rule::Unused);
                }
            }
        }
        for ask in self
            .request
            .containers
            .iter()
            .flat_map(|container| &container.asks)
        {
            let pod = &self.request.pod;
            let kind = Relax::Quota(ask.vendor.clone());
            if self.cluster.quota(pod, &ask.vendor).is_some() && !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let any_device = |is: fn(&DeviceState) -> bool| {
            self.nodes.iter().any(|node| node.devices.iter().any(is))
        };
        for (matters, kind) in [
            (
                any_device(|device| device.used != Load::default()),
                Relax::Pods,
            ),
            (any_device(|device| device.cordoned), Relax::Cordons),
            (any_device(|device| !device.healthy), Relax::Health),
        ] {
            if matters {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// Positions of the vendor's asks with the same rule.
    fn alike<'s, T: PartialEq>(
        &'s self,
        ask: &'s Ask,
        rule: impl Fn(&'s Ask) -> T,
    ) -> Vec<(usize, usize)> {
        let same =
            |one: &'s Ask| one.count > 0 && one.vendor == ask.vendor && rule(one) == rule(ask);
        let mut found = Vec::new();
        for (container, spec) in self.request.containers.iter().enumerate() {
            for (at, one) in spec.asks.iter().enumerate() {
                if same(one) {
                    found.push((container, at));
                }
            }
        }
        found
    }

    /// The smallest changes of exactly these kinds, if they are enough.
    fn smallest(&self, kinds: &[&Relax]) -> Option<Advice> {
        let containers = u64::try_from(self.request.containers.len()).unwrap_or(u64::MAX);
        self.pay(TRIED.saturating_mul(containers))?;
        let mut request = self.request.clone();
        let mut trial = Trial::default();
        for kind in kinds {
            relax(kind, &mut request, &mut trial);
        }
        let mut nodes = Cow::Borrowed(self.nodes.as_slice());
        self.fits(&request, &trial, &nodes)?;
        // Each change is reduced as far as the others, which may already be reduced, allow.
        let mut changes = Vec::new();
        for kind in kinds {
            let (change, node) = match kind {
                Relax::Types(alike) => {
                    changes.extend(self.one_model(alike, &mut request, &trial, &nodes)?);
                    continue;
                }
                Relax::Rule(alike, rule) => {
                    for (container, at) in alike {
                        let ask = ask_mut(&mut request, *container, *at)?;
                        changes.push(Change::DropRule {
                            container: *container,
                            vendor: ask.vendor.clone(),
                            rule: rule.clone(),
                        });
                    }
                    continue;
                }
                Relax::Pods => {
                    trial.empty = false;
                    let (node, leaving) = self.fewest_pods(&request, &trial, &nodes)?;
                    let pods = leaving.iter().map(|held| held.pod.clone()).collect();
                    trial.left = leaving;
                    (Change::PodsLeave { pods }, Some(node))
                }
                Relax::Cordons => {
                    trial.uncordoned = false;
                    let (node, devices) = self.fewest_repairs(&request, &trial, &nodes, false)?;
                    (Change::Uncordon { devices }, Some(node))
                }
                Relax::Health => {
                    trial.healthy = false;
                    let (node, devices) = self.fewest_repairs(&request, &trial, &nodes, true)?;
                    (Change::Recover { devices }, Some(node))
                }
                Relax::Quota(vendor) => {
                    let change = self.least_quota(&request, vendor, &mut trial, &nodes)?;
                    (change, None)
                }
                _ => (self.take_back(kind, &mut request, &trial, &nodes)?, None),
            };
            // From here on, only the node on which something was changed counts, in its changed state.
            if let Some(node) = node {
                nodes = Cow::Owned(vec![Cow::Owned(node)]);
            }
            changes.push(change);
        }
        let placement = self.fits(&request, &trial, &nodes)?;
        Some(Advice {
            node: placement.node,
            changes,
        })
    }

    /// `None` if no cost is left.
    fn pay(&self, cost: u64) -> Option<()> {
        let before = self.left.get();
        let mut left = before.checked_sub(cost);
        if left.is_some_and(|left| before / ASKED_EVERY != left / ASKED_EVERY) && !(self.go_on)() {
            left = None;
        }
        self.left.set(left.unwrap_or_default());
        left.map(|_| ())
    }

    /// The first node on which the request fits in the trial.
    fn fits(
        &self,
        request: &Request,
        trial: &Trial<'a>,
        nodes: &[Cow<'_, NodeState>],
    ) -> Option<Placement> {
        let plan = self.plan(request, trial, &[])?;
        let has_quota = plan.steps.iter().any(|step| step.quota.is_some());
        let containers = u64::try_from(request.containers.len()).unwrap_or(u64::MAX);
        let mut budget = MOST_CHOICES;
        nodes.iter().find_map(|node| {
            self.pay(1)?;
            let changed = trial.on(node);
            if changed.is_some() {
                self.pay(TRIED)?;
            }
            // Pods that leave also give back their part of a quota.
            let of_node = if trial.empty && has_quota {
                let leave: Vec<&Reservation> = self.others_on(&node.name, request).collect();
                Some(self.plan(request, trial, &leave)?)
            } else {
                None
            };
            let plan = of_node.as_ref().unwrap_or(&plan);
            let node = changed.as_ref().unwrap_or(node);
            if !plan.may_fit(&node.summary) {
                return None;
            }
            self.pay(TRIED.saturating_mul(containers))?;
            let before = budget;
            let placement = fit::place(node, plan, &mut budget);
            let chosen = u64::from(before.saturating_sub(budget));
            if placement.is_none() {
                self.pay(chosen.saturating_mul(CHOSEN))?;
            }
            placement
        })
    }

    /// The request's plan in the trial, when these pods leave as well.
    fn plan<'r>(
        &self,
        request: &'r Request,
        trial: &Trial<'a>,
        leave: &[&Reservation],
    ) -> Option<Plan<'r>> {
        let containers = u64::try_from(request.containers.len()).unwrap_or(u64::MAX);
        self.pay(TRIED.saturating_mul(containers))?;
        let own = self.cluster.reservation(&request.pod.uid);
        let gone: Vec<&Reservation> = own
            .into_iter()
            .chain(trial.left.iter().copied())
            .chain(leave.iter().copied())
            .collect();
        let mut plan = self.cluster.plan(request, &gone);
        for step in &mut plan.steps {
            let more = trial
                .quota
                .iter()
                .find(|(vendor, _)| *vendor == step.ask.vendor);
            if let (Some((quota, _)), Some((_, more))) = (&mut step.quota, more) {
                *quota = widened(*quota, *more);
            }
        }
        Some(plan)
    }

    /// The reservations of other pods on the node.
    fn others_on(&self, node: &str, request: &Request) -> impl Iterator<Item = &'a Reservation> {
        let uid = request.pod.uid.clone();
        self.cluster
            .reservations_on(node)
            .filter(move |held| held.pod.uid != uid)
    }

    /// The smallest sufficient change of this kind of request.
    fn take_back(
        &self,
        kind: &Relax,
        request: &mut Request,
        trial: &Trial<'a>,
        nodes: &[Cow<'_, NodeState>],
    ) -> Option<Change> {
        let (container, at) = kind.ask()?;
        let original = self.request.containers.get(container)?.asks.get(at)?;
        let vendor = original.vendor.clone();
        let fits = |change: &dyn Fn(&mut Ask)| -> bool {
            let mut attempt = request.clone();
            if let Some(ask) = ask_mut(&mut attempt, container, at) {
                change(ask);
            }
            self.fits(&attempt, trial, nodes).is_some()
        };
        let change = match kind {
            Relax::Memory(..) if !original.sizes.is_empty() => {
                let size = |bytes: u64| fits(&|ask| ask.memory = Memory::Bytes(bytes));
                let smaller = |size: &u64| match original.memory {
                    Memory::Bytes(bytes) => *size < bytes,
                    Memory::Percent(_) => true,
                };
                let mut sizes: Vec<u64> = original.sizes.iter().copied().filter(smaller).collect();
                sizes.sort_unstable();
                let to = sizes.into_iter().rev().find(|bytes| size(*bytes))?;
                Change::LessMemory {
                    container,
                    vendor,
                    from: original.memory,
                    to: Memory::Bytes(to),
                }
            }
            Relax::Memory(..) => {
                let unit = |units: u64| match original.memory {
                    Memory::Bytes(_) => Memory::Bytes(units * MIB),
                    Memory::Percent(_) => Memory::Percent(u32::try_from(units).unwrap_or(100)),
                };
                let below = match original.memory {
                    Memory::Bytes(bytes) => bytes.saturating_sub(1) / MIB,
                    Memory::Percent(percent) => u64::from(percent.min(100)).saturating_sub(1),
                };
                let to = greatest(1, below, |units| fits(&|ask| ask.memory = unit(units)))?;
                Change::LessMemory {
                    container,
                    vendor,
                    from: original.memory,
                    to: unit(to),
                }
            }
            Relax::Cores(..) => {
                let Compute::Units(from) = original.compute else {
                    return None;
                };
                let to = greatest(0, u64::from(from.saturating_sub(1)), |units| {
                    fits(&|ask| ask.compute = Compute::Units(narrow(units)))
                })?;
                Change::LessCores {
                    container,
                    vendor,
                    from,
                    to: narrow(to),
                }
            }
            Relax::Count(..) => {
                let below = u64::from(original.count.saturating_sub(1));
                let count = |count: u64| fits(&|ask| ask.count = narrow(count));
                let to = if original.arrange.is_strict() {
                    // An arrangement may allow four devices and not three.
                    (1..=below).rev().find(|number| count(*number))?
                } else {
                    greatest(1, below, count)?
                };
                Change::FewerDevices {
                    container,
                    vendor,
                    from: original.count,
                    to: narrow(to),
                }
            }
            _ => return None,
        };
        change.apply(request);
        Some(change)
    }

    /// The first model by name that, once allowed by the type rules of all these asks, is enough.
    fn one_model(
        &self,
        alike: &[(usize, usize)],
        request: &mut Request,
        trial: &Trial<'a>,
        nodes: &[Cow<'_, NodeState>],
    ) -> Option<Vec<Change>> {
        let mut before = request.clone();
        for (container, at) in alike {
            let original = self.request.containers.get(*container)?.asks.get(*at)?;
            let select = &mut ask_mut(&mut before, *container, *at)?.select;
            select.use_types.clone_from(&original.select.use_types);
            select.nouse_types.clone_from(&original.select.nouse_types);
        }
        let mut models: Vec<&str> = self.cluster.models().collect();
        models.sort_unstable();
        for model in models {
            let mut attempt = before.clone();
            for (container, at) in alike {
                allow_model(ask_mut(&mut attempt, *container, *at)?, model);
            }
            if self.fits(&attempt, trial, nodes).is_none() {
                continue;
            }
            let mut changes = Vec::new();
            for (container, at) in alike {
                changes.push(Change::AllowModel {
                    container: *container,
                    vendor: ask_mut(&mut attempt, *container, *at)?.vendor.clone(),
                    model: model.to_owned(),
                });
            }
            *request = attempt;
            return Some(changes);
        }
        None
    }

    /// The smallest set of pods on one node whose leaving is enough, and the node without them.
    fn fewest_pods(
        &self,
        request: &Request,
        trial: &Trial<'a>,
        nodes: &[Cow<'_, NodeState>],
    ) -> Option<(NodeState, Vec<&'a Reservation>)> {
        let all_leave = Trial {
            empty: true,
            ..trial.clone()
        };
        let hopeful: Vec<(&NodeState, Vec<&'a Reservation>)> = nodes
            .iter()
            .filter(|node| {
                self.fits(request, &all_leave, std::slice::from_ref(*node))
                    .is_some()
            })
            .map(|node| {
                let mut pods: Vec<&'a Reservation> = self.others_on(&node.name, request).collect();
                pods.sort_by(|a, b| {
                    let key = |held: &Reservation| {
                        let load = held.load();
                        (load.memory_bytes, load.cores, load.slots)
                    };
                    key(a).cmp(&key(b)).then_with(|| {
                        (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name))
                    })
                });
                (&**node, pods)
            })
            .collect();
        let most = hopeful.iter().map(|(_, pods)| pods.len()).max()?;
        let mut sets = MOST_SETS;
        for count in 1..=most {
            let mut best: Option<(u64, NodeState, Vec<&'a Reservation>)> = None;
            for (node, pods) in hopeful.iter().filter(|(_, pods)| pods.len() >= count) {
                let mut chosen: Vec<usize> = (0..count).collect();
                loop {
                    if sets == 0 {
                        return best
                            .map(|(_, node, pods)| (node, pods))
                            .or_else(|| self.few_pods(request, trial, node, pods));
                    }
                    sets -= 1;
                    let leaving: Vec<&'a Reservation> = chosen
                        .iter()
                        .filter_map(|&at| pods.get(at).copied())
                        .collect();
                    let weight = leaving.iter().fold(0_u64, |sum, held| {
                        sum.saturating_add(held.load().memory_bytes)
                    });
                    if best.as_ref().is_none_or(|(least, ..)| weight < *least) {
                        let after = without(node, &leaving);
                        if self.fits_without(request, trial, &after, &leaving) {
                            best = Some((weight, after, leaving));
                        }
                    }
                    if !fit::next_combination(&mut chosen, pods.len()) {
                        break;
                    }
                }
            }
            if let Some((_, node, pods)) = best {
                return Some((node, pods));
            }
        }
        None
    }

    /// Whether the request fits on this node without these pods.
    fn fits_without(
        &self,
        request: &Request,
        trial: &Trial<'a>,
        node: &NodeState,
        leaving: &[&'a Reservation],
    ) -> bool {
        let without = Trial {
            left: leaving.to_vec(),
            ..trial.clone()
        };
        self.fits(request, &without, &[Cow::Borrowed(node)])
            .is_some()
    }

    /// A set of pods whose leaving is enough, and of which none can stay.
    fn few_pods(
        &self,
        request: &Request,
        trial: &Trial<'a>,
        node: &NodeState,
        pods: &[&'a Reservation],
    ) -> Option<(NodeState, Vec<&'a Reservation>)> {
        let mut leaving: Vec<&'a Reservation> = pods.to_vec();
        for held in pods.iter().rev() {
            let fewer: Vec<&'a Reservation> = leaving
                .iter()
                .copied()
                .filter(|other| other.pod.uid != held.pod.uid)
                .collect();
            let after = without(node, &fewer);
            if self.fits_without(request, trial, &after, &fewer) {
                leaving = fewer;
            }
        }
        let after = without(node, &leaving);
        self.fits_without(request, trial, &after, &leaving)
            .then_some((after, leaving))
    }

    /// The fewest devices of one node that must be uncordoned (or become healthy), and the node then.
    fn fewest_repairs(
        &self,
        request: &Request,
        trial: &Trial<'a>,
        nodes: &[Cow<'_, NodeState>],
        health: bool,
    ) -> Option<(NodeState, Vec<Arc<str>>)> {
        let broken = |node: &NodeState| -> Vec<usize> {
            node.devices
                .iter()
                .enumerate()
                .filter(|(_, device)| {
                    if health {
                        !device.healthy
                    } else {
                        device.cordoned
                    }
                })
                .map(|(at, _)| at)
                .collect()
        };
        let lists: Vec<(&NodeState, Vec<usize>)> = nodes
            .iter()
            .map(|node| (&**node, broken(node)))
            .filter(|(_, broken)| !broken.is_empty())
            .collect();
        let most = lists.iter().map(|(_, broken)| broken.len()).max()?;
        let mut sets = MOST_SETS;
        for count in 1..=most {
            for (node, broken) in lists.iter().filter(|(_, broken)| broken.len() >= count) {
                let mut chosen: Vec<usize> = (0..count).collect();
                loop {
                    sets = sets.checked_sub(1)?;
                    let repaired: Vec<usize> = chosen
                        .iter()
                        .filter_map(|&at| broken.get(at).copied())
                        .collect();
                    let after = node.repaired(|at| repaired.contains(&at), health, !health);
                    if self
                        .fits(request, trial, &[Cow::Borrowed(&after)])
                        .is_some()
                    {
                        let ids = repaired
                            .iter()
                            .filter_map(|&at| node.devices.get(at))
                            .map(|device| Arc::clone(&device.id))
                            .collect();
                        return Some((after, ids));
                    }
                    if !fit::next_combination(&mut chosen, broken.len()) {
                        break;
                    }
                }
            }
        }
        None
    }

    /// The additional quota that the namespace needs for the vendor: least memory first, then least compute, then
    /// fewest devices. Leaves the trial with this quota.
    fn least_quota(
        &self,
        request: &Request,
        vendor: &Vendor,
        trial: &mut Trial<'a>,
        nodes: &[Cow<'_, NodeState>],
    ) -> Option<Change> {
        let at = trial.quota.iter().position(|(of, _)| of == vendor)?;
        let steps: [fn(&mut Load, u64); 3] = [
            |more, value| more.memory_bytes = value,
            |more, value| more.cores = narrow(value),
            |more, value| more.slots = narrow(value),
        ];
        for (step, most) in steps.into_iter().zip([u64::MAX >> 8, 1 << 30, 1 << 30]) {
            let mut attempt = trial.clone();
            let least = least(most, |value| {
                if let Some((_, more)) = attempt.quota.get_mut(at) {
                    step(more, value);
                }
                self.fits(request, &attempt, nodes).is_some()
            })?;
            if let Some((_, more)) = trial.quota.get_mut(at) {
                step(more, least);
            }
        }
        let (_, more) = trial.quota.get(at)?;
        Some(Change::MoreQuota {
            vendor: vendor.clone(),
            memory_bytes: more.memory_bytes,
            cores: more.cores,
            devices: more.slots,
        })
    }
}
