//! The cluster: all nodes and all reservations, and the answers to requests. A change affects one node. The cost of an
//! answer grows with the nodes in question, not with the pods placed.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

use crate::fit;
use crate::inventory::{Device, InvalidNode, Node, Vendor};
use crate::misfit::{Misfit, NodeMisfit};
use crate::node::{DeviceState, NodeState, bit};
use crate::plan::{Plan, Step};
use crate::quota::{Quota, QuotaScope, Quotas};
use crate::remember::{Refusals, Remembered};
use crate::request::{Ask, Kind, NodePolicy, Pod, Request};
use crate::reservation::{Load, Placement, Reservation};
use crate::score;

const MOST_DEVICES: usize = 1024;

/// The most choices that one request tries when a container's first choice leaves no room for another container of
/// the pod. After that the pod counts as not fitting.
pub(crate) const MOST_CHOICES: u32 = 20_000;

/// The nodes in question.
#[derive(Debug, Clone, Copy)]
pub enum Among<'a> {
    /// All nodes that report devices.
    All,
    /// The nodes with these names. Unknown names get [`Misfit::UnknownNode`].
    Names(&'a [&'a str]),
}

/// The placement of a pod, or why it fits nowhere: one entry for each node in question, by name.
pub type Outcome = Result<Placement, Vec<NodeMisfit>>;

/// All nodes, reservations and quotas. A clone is independent; nodes that do not change afterwards are
/// shared between both.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    nodes: Vec<Option<Arc<NodeState>>>,
    by_name: HashMap<Arc<str>, usize>,
    vacant: Vec<usize>,
    reservations: HashMap<Arc<str>, Arc<Reservation>>,
    /// Pods by the node on which they hold something. The node need not be known yet.
    on_node: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    quotas: Quotas,
    /// The number of changes to nodes, and the version of the last one.
    changes: u64,
    symbols: Numbers,
    vendors: Numbers,
    models: Numbers,
}

/// Texts with their numbers, in the order in which they were first seen.
#[derive(Debug, Clone, Default)]
struct Numbers {
    by_text: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
}

impl Numbers {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.by_text.get(text) {
            return *number;
        }
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        let text: Arc<str> = text.into();
        self.texts.push(Arc::clone(&text));
        self.by_text.insert(text, number);
        number
    }

    fn known(&self, text: &str) -> Option<u32> {
        self.by_text.get(text).copied()
    }
}

impl Cluster {
    /// A cluster without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the node to the inventory, or replaces its earlier report. Pods keep their reservations on it.
    ///
    /// # Errors
    ///
    /// If two of its devices have the same identifier, or if it has more than 1,024 devices. Nothing has changed
    /// then.
    pub fn set_node(&mut self, node: Node) -> Result<(), InvalidNode> {
        if node.devices.len() > MOST_DEVICES {
            return Err(InvalidNode::TooManyDevices {
                node: node.name,
                present: node.devices.len(),
            });
        }
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for device in &node.devices {
            if !seen.insert(&device.id) {
                return Err(InvalidNode::DeviceTwice {
                    node: node.name.clone(),
                    device: device.id.clone(),
                });
            }
        }
        let (symbols, vendors, models) = (&mut self.symbols, &mut self.vendors, &mut self.models);
        let mut state = NodeState::new(node, |device| {
            (
                symbols.number(&device.id),
                vendors.number(device.vendor.as_str()),
                models.number(&device.model),
            )
        });
        for uid in self.on_node.get(&state.name).into_iter().flatten() {
            if let Some(reservation) = self.reservations.get(uid) {
                state.take(reservation);
            }
        }
        let at = match self.by_name.get(&state.name) {
            Some(at) => *at,
            None => {
                let at = self.vacant.pop().unwrap_or_else(|| {
                    self.nodes.push(None);
                    self.nodes.len() - 1
                });
                self.by_name.insert(Arc::clone(&state.name), at);
                at
            }
        };
        self.changes += 1;
        (state.place, state.version) = (at, self.changes);
        if let Some(slot) = self.nodes.get_mut(at) {
            *slot = Some(Arc::new(state));
        }
        Ok(())
    }

    /// Removes the node from the inventory. The reservations on it stay, for when it returns. Returns whether the
    /// node was known.
    pub fn remove_node(&mut self, name: &str) -> bool {
        let Some(at) = self.by_name.remove(name) else {
            return false;
        };
        if let Some(slot) = self.nodes.get_mut(at) {
            *slot = None;
        }
        self.vacant.push(at);
        true
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<NodeView<'_>> {
        self.state(name).map(NodeView)
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = NodeView<'_>> {
        let mut nodes: Vec<&NodeState> = self.nodes.iter().flatten().map(|node| &**node).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        nodes.into_iter().map(NodeView)
    }

    /// The reservation of the pod with this uid.
    pub fn reservation(&self, uid: &str) -> Option<&Reservation> {
        self.reservations.get(uid).map(|reservation| &**reservation)
    }

    /// All reservations, in no order.
    pub fn reservations(&self) -> impl Iterator<Item = &Reservation> {
        self.reservations.values().map(|reservation| &**reservation)
    }

    /// The reservations on the node, by uid.
    pub fn reservations_on(&self, node: &str) -> impl Iterator<Item = &Reservation> {
        self.on_node
            .get(node)
            .into_iter()
            .flatten()
            .filter_map(|uid| self.reservation(uid))
    }

    /// Sets the limits of the quota of this name in the namespace, which counts the pods that meet all of these
    /// conditions. If several quotas count a pod, all of them hold.
    pub fn set_quota(
        &mut self,
        namespace: &str,
        name: &str,
        scopes: &[QuotaScope],
        limits: &[(Vendor, Quota)],
    ) {
        self.quotas.set(namespace, name, scopes, limits);
    }

    /// Removes the quota.
    pub fn remove_quota(&mut self, namespace: &str, name: &str) {
        self.quotas.remove(namespace, name);
    }

    /// The narrowest limit on the pod's use of the vendor, and the present use by the pods that it counts. Of several
    /// limits with different uses, the amounts are adjusted so that limit minus use is what the narrowest leaves.
    pub fn quota(&self, pod: &Pod, vendor: &Vendor) -> Option<(Quota, Load)> {
        self.quotas.limit(pod, vendor, &[])
    }

    /// The limit of the quota of this name and its present use; `None` if the quota does not count the pod.
    pub fn quota_named(&self, pod: &Pod, name: &str, vendor: &Vendor) -> Option<(Quota, Load)> {
        self.quotas.named(pod, name, vendor)
    }

    /// The vendor's devices that all pods of the namespace hold.
    pub fn quota_use(&self, namespace: &str, vendor: &Vendor) -> Load {
        self.quotas.used_of(namespace, vendor, &[], &[])
    }

    /// Every limit on all pods of a namespace: the namespace, the vendor, the narrowest limit, and the present use.
    pub fn quotas(&self) -> impl Iterator<Item = (&str, &Vendor, Quota, Load)> {
        self.quotas.all()
    }

    /// Chooses a node and devices. Reserves nothing. Of the nodes on which the pod fits, it chooses the best one by
    /// the request's node policy; of several best ones, the first by name.
    ///
    /// # Errors
    ///
    /// Why the pod fits nowhere: an entry for each node in question, by name.
    pub fn place(&self, request: &Request, among: Among<'_>) -> Outcome {
        self.place_by(request, among, None)
    }

    /// As [`Cluster::place`], with remembered answers: nodes that did not fit and have not changed since are not
    /// checked again.
    ///
    /// # Errors
    ///
    /// As [`Cluster::place`].
    pub fn place_again(
        &self,
        request: &Request,
        among: Among<'_>,
        remembered: &mut Remembered,
    ) -> Outcome {
        self.place_by(request, among, remembered.of(request))
    }

    fn place_by(
        &self,
        request: &Request,
        among: Among<'_>,
        known: Option<&mut Refusals>,
    ) -> Outcome {
        if let Some(any) = &request.any {
            return self.place_any(request, any, among, &[]);
        }
        let question = Question::new(self, request);
        // The remaining quota is not part of any node's state.
        let limited = question.plan.steps.iter().any(|step| step.quota.is_some());
        let mut known = known.filter(|_| !limited);
        let mut budget = MOST_CHOICES;
        let nodes: Vec<(&str, Option<&NodeState>)> = self
            .in_question(among)
            .map(|(name, node)| (name, node.and_then(|node| question.node(node))))
            .collect();
        let mut hopeful: BinaryHeap<Hopeful<'_>> = nodes
            .iter()
            .filter_map(|(_, node)| *node)
            .filter(|node| {
                question.plan.may_fit(&node.summary)
                    && known.as_ref().is_none_or(|known| known.get(node).is_none())
            })
            .map(|node| Hopeful::new(question.key(node), node))
            .collect::<Vec<_>>()
            .into();
        let most_worth = question.plan.most_worth();
        if most_worth > 0.0
            && let Some(best) = question.place_weighed(&mut hopeful, most_worth, &mut budget)
        {
            return Ok(best);
        }
        let mut sifted = false;
        while let Some(Hopeful { node, .. }) = hopeful.pop() {
            if let Some(placement) = fit::place(node, &question.plan, &mut budget) {
                return Ok(placement);
            }
            if !sifted {
                // If the most promising node fails, many may fail: keep only the nodes worth sorting.
                sifted = true;
                hopeful = hopeful
                    .into_vec()
                    .into_iter()
                    .filter(|hope| fit::may_serve(hope.node, &question.plan))
                    .collect::<Vec<_>>()
                    .into();
            }
        }
        // A search that was given up does not prove that the pod fits nowhere.
        if budget == 0 {
            known = None;
        }
        let mut why = |node: &NodeState| {
            let Some(known) = known.as_deref_mut() else {
                return fit::misfit(node, &question.plan);
            };
            if let Some(misfit) = known.get(node) {
                return misfit.clone();
            }
            let misfit = fit::misfit(node, &question.plan);
            known.note(node, &misfit);
            misfit
        };
        let mut misfits: Vec<NodeMisfit> = nodes
            .into_iter()
            .map(|(name, node)| match node {
                Some(node) => NodeMisfit {
                    node: Arc::clone(&node.name),
                    misfit: why(node),
                },
                None => NodeMisfit {
                    node: name.into(),
                    misfit: Misfit::UnknownNode,
                },
            })
            .collect();
        misfits.sort_by(|a, b| a.node.cmp(&b.node));
        Err(misfits)
    }

    /// Chooses devices on this node. Reserves nothing.
    ///
    /// # Errors
    ///
    /// Why the pod does not fit there.
    pub fn place_on(&self, request: &Request, node: &str) -> Result<Placement, Misfit> {
        self.place_without(request, node, &[])
    }

    /// Chooses devices on this node as if the pods with these uids held nothing. Reserves nothing.
    ///
    /// # Errors
    ///
    /// Why the pod does not fit there even then.
    pub fn place_without(
        &self,
        request: &Request,
        node: &str,
        leaving: &[&str],
    ) -> Result<Placement, Misfit> {
        if let Some(any) = &request.any {
            let outcome = self.place_any(request, any, Among::Names(&[node]), leaving);
            return outcome
                .map_err(|mut misfits| misfits.pop().map_or(Misfit::UnknownNode, |of| of.misfit));
        }
        let question = Question::without(self, request, leaving);
        let Some(node) = self.state(node).and_then(|node| question.node(node)) else {
            return Err(Misfit::UnknownNode);
        };
        let mut budget = MOST_CHOICES;
        match fit::place(node, &question.plan, &mut budget) {
            Some(placement) => Ok(placement),
            None => Err(fit::misfit(node, &question.plan)),
        }
    }

    /// The answer for each node in question, by name: its score if the pod fits, otherwise why not. The score of a
    /// request that accepts any vendor's devices is from 0 to 100, and more is better. The score of other requests is
    /// from 0 (empty) to 30 (full), with the pod on the node; the node policy says which end is better.
    pub fn rank(
        &self,
        request: &Request,
        among: Among<'_>,
    ) -> Vec<(Arc<str>, Result<f64, Misfit>)> {
        if let Some(any) = &request.any {
            return self.rank_any(request, any, among);
        }
        let question = Question::new(self, request);
        let mut budget = MOST_CHOICES;
        let mut ranked: Vec<(Arc<str>, Result<f64, Misfit>)> = self
            .in_question(among)
            .map(|(name, node)| {
                let Some(node) = node.and_then(|node| question.node(node)) else {
                    return (name.into(), Err(Misfit::UnknownNode));
                };
                let fits = question.plan.may_fit(&node.summary)
                    && fit::place(node, &question.plan, &mut budget).is_some();
                let result = if fits {
                    Ok(question.score(node))
                } else {
                    Err(fit::misfit(node, &question.plan))
                };
                (Arc::clone(&node.name), result)
            })
            .collect();
        ranked.sort_by(|a, b| a.0.cmp(&b.0));
        ranked
    }

    /// Reserves this placement for the pod, replacing its earlier reservation, which is returned. Nothing is checked,
    /// because the pod may already have the devices.
    pub fn reserve(&mut self, pod: Pod, placement: Placement) -> Option<Reservation> {
        self.hold(Reservation::new(pod, placement, false))
    }

    /// Removes the pod's reservation and returns it.
    pub fn release(&mut self, uid: &str) -> Option<Reservation> {
        let reservation = self.reservations.remove(uid)?;
        let node = &reservation.placement.node;
        if let Some(pods) = self.on_node.get_mut(node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.on_node.remove(node);
            }
        }
        self.quotas.refund(&reservation.pod, &reservation.charge);
        if let Some(state) = self.state_mut(&reservation.placement.node) {
            state.give_back(&reservation);
        }
        Some(Arc::unwrap_or_clone(reservation))
    }

    /// Records that the pod's init containers have ended: only its sidecars and other containers count from now on.
    /// Returns whether the pod holds anything.
    pub fn initialised(&mut self, uid: &str) -> bool {
        let Some(before) = self.reservation(uid) else {
            return false;
        };
        if !before.initialised {
            let after = Reservation::new(before.pod.clone(), before.placement.clone(), true);
            self.hold(after);
        }
        true
    }

    fn hold(&mut self, reservation: Reservation) -> Option<Reservation> {
        let before = self.release(&reservation.pod.uid);
        let uid: Arc<str> = reservation.pod.uid.as_str().into();
        let node = Arc::clone(&reservation.placement.node);
        if let Some(state) = self.state_mut(&node) {
            state.take(&reservation);
        }
        self.quotas.charge(&reservation.pod, &reservation.charge);
        self.on_node
            .entry(node)
            .or_default()
            .insert(Arc::clone(&uid));
        self.reservations.insert(uid, Arc::new(reservation));
        before
    }

    fn state(&self, name: &str) -> Option<&NodeState> {
        self.nodes
            .get(*self.by_name.get(name)?)
            .and_then(Option::as_deref)
    }

    fn state_mut(&mut self, name: &str) -> Option<&mut NodeState> {
        let at = *self.by_name.get(name)?;
        let state = Arc::make_mut(self.nodes.get_mut(at)?.as_mut()?);
        self.changes += 1;
        state.version = self.changes;
        Some(state)
    }

    /// The nodes in question, each with the name that the caller used.
    pub(crate) fn in_question<'a>(
        &'a self,
        among: Among<'a>,
    ) -> impl Iterator<Item = (&'a str, Option<&'a NodeState>)> {
        let (all, names): (&[Option<Arc<NodeState>>], &[&str]) = match among {
            Among::All => (&self.nodes, &[]),
            Among::Names(names) => (&[], names),
        };
        let all = all
            .iter()
            .flatten()
            .map(|node| (&*node.name, Some(&**node)));
        all.chain(names.iter().map(|name| (*name, self.state(name))))
    }

    pub(crate) fn node_state(&self, name: &str) -> Option<&NodeState> {
        self.state(name)
    }

    /// All devices of the vendor, on any node.
    pub(crate) fn devices_of<'a>(
        &'a self,
        vendor: &Vendor,
    ) -> impl Iterator<Item = &'a Device> + use<'a> {
        let number = self.vendors.known(vendor.as_str());
        let nodes = self.nodes.iter().flatten();
        nodes
            .flat_map(|node| &node.devices)
            .filter(move |device| Some(device.vendor) == number)
            .map(|device| &*device.device)
    }

    /// All models that any node has reported.
    pub(crate) fn models(&self) -> impl Iterator<Item = &str> {
        self.models.texts.iter().map(|model| &**model)
    }

    pub(crate) fn plan<'a>(&self, request: &'a Request, leaving: &[&Reservation]) -> Plan<'a> {
        let mut steps = Vec::new();
        for before_apps in [true, false] {
            for (container, spec) in request.containers.iter().enumerate() {
                if (spec.kind != Kind::App) != before_apps {
                    continue;
                }
                let mut first = true;
                for ask in spec.asks.iter().filter(|ask| ask.count > 0) {
                    let models = self.models_allowed(ask);
                    steps.push(Step {
                        container,
                        kind: spec.kind,
                        first,
                        ask,
                        vendor: self.vendors.known(ask.vendor.as_str()),
                        model_bits: if models.is_empty() {
                            u64::MAX
                        } else {
                            (0..).zip(&models).fold(0, |bits, (number, &allowed)| {
                                bits | if allowed { bit(number) } else { 0 }
                            })
                        },
                        models,
                        use_ids: if ask.select.use_ids.is_empty() {
                            None
                        } else {
                            Some(self.known(&ask.select.use_ids))
                        },
                        nouse_ids: self.known(&ask.select.nouse_ids),
                        quota: self.quotas.limit(&request.pod, &ask.vendor, leaving),
                    });
                    first = false;
                }
            }
        }
        Plan::new(request, steps)
    }

    fn known(&self, ids: &[String]) -> Vec<u32> {
        ids.iter().filter_map(|id| self.symbols.known(id)).collect()
    }

    /// For each model's number, whether the type rules allow it; empty if there are none.
    fn models_allowed(&self, ask: &Ask) -> Vec<bool> {
        let lower = |texts: &[String]| -> Vec<String> {
            texts
                .iter()
                .map(|text| text.trim().to_lowercase())
                .filter(|text| !text.is_empty())
                .collect()
        };
        let (wanted, unwanted) = (lower(&ask.select.use_types), lower(&ask.select.nouse_types));
        let exactly = &ask.select.models;
        if wanted.is_empty() && unwanted.is_empty() && exactly.is_empty() {
            return Vec::new();
        }
        self.models
            .texts
            .iter()
            .map(|model| {
                if !exactly.is_empty() && !exactly.iter().any(|only| **only == **model) {
                    return false;
                }
                let model = model.to_lowercase();
                (wanted.is_empty() || wanted.iter().any(|text| model.contains(text)))
                    && !unwanted.iter().any(|text| model.contains(text))
            })
            .collect()
    }
}

/// A request, and the cluster without the request's own reservation.
pub(crate) struct Question<'a> {
    pub(crate) plan: Plan<'a>,
    /// Nodes whose state differs from the cluster's, because a reservation is left out.
    changed: Vec<NodeState>,
}

impl<'a> Question<'a> {
    pub(crate) fn new(cluster: &Cluster, request: &'a Request) -> Self {
        Self::without(cluster, request, &[])
    }

    pub(crate) fn without(cluster: &Cluster, request: &'a Request, leaving: &[&str]) -> Self {
        let mut uids: Vec<&str> = leaving.to_vec();
        uids.push(&request.pod.uid);
        uids.sort_unstable();
        uids.dedup();
        let leaving: Vec<&Reservation> = uids
            .into_iter()
            .filter_map(|uid| cluster.reservation(uid))
            .collect();
        let mut changed: Vec<NodeState> = Vec::new();
        for reservation in &leaving {
            let name = &reservation.placement.node;
            let at = match changed.iter().position(|node| node.name == *name) {
                Some(at) => at,
                None => match cluster.state(name) {
                    Some(node) => {
                        let mut node = node.clone();
                        node.version = 0;
                        changed.push(node);
                        changed.len() - 1
                    }
                    None => continue,
                },
            };
            if let Some(node) = changed.get_mut(at) {
                node.give_back(reservation);
            }
        }
        Self {
            plan: cluster.plan(request, &leaving),
            changed,
        }
    }

    pub(crate) fn node<'n>(&'n self, node: &'n NodeState) -> Option<&'n NodeState> {
        if node.devices.is_empty() {
            return None;
        }
        self.changed
            .iter()
            .find(|changed| Arc::ptr_eq(&changed.name, &node.name))
            .or(Some(node))
    }

    /// Chooses the node with the best sum of its key and the bonus for the placement, which is at most `most_worth`.
    /// Of equal nodes it is the first by name.
    fn place_weighed(
        &self,
        hopeful: &mut BinaryHeap<Hopeful<'_>>,
        most_worth: f64,
        budget: &mut u32,
    ) -> Option<Placement> {
        let mut best: Option<(Hopeful<'_>, Placement)> = None;
        while let Some(Hopeful { key, node }) = hopeful.pop() {
            // The remaining nodes have a lower key, or the same key and a later name.
            if let Some((found, _)) = &best
                && *found >= Hopeful::new(key + most_worth, node)
            {
                break;
            }
            let Some(placement) = fit::place(node, &self.plan, budget) else {
                continue;
            };
            let worth = fit::worth(node, &self.plan, &placement);
            let weighed = Hopeful::new(key + worth, node);
            if best.as_ref().is_none_or(|(found, _)| weighed > *found) {
                best = Some((weighed, placement));
            }
        }
        best.map(|(_, placement)| placement)
    }

    pub(crate) fn score(&self, node: &NodeState) -> f64 {
        let summary = &node.summary;
        score::node(summary.used, self.plan.adds(node), summary.total)
    }

    /// Greater is better.
    fn key(&self, node: &NodeState) -> f64 {
        match self.plan.request.node_policy {
            NodePolicy::Binpack => self.score(node),
            NodePolicy::Spread => -self.score(node),
        }
    }
}

/// A node that may fit. The one with the greatest key is tried first.
struct Hopeful<'a> {
    key: f64,
    node: &'a NodeState,
}

impl<'a> Hopeful<'a> {
    fn new(key: f64, node: &'a NodeState) -> Self {
        Self { key, node }
    }
}

impl Ord for Hopeful<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key
            .total_cmp(&other.key)
            .then_with(|| other.node.name.cmp(&self.node.name))
    }
}

impl PartialOrd for Hopeful<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Hopeful<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Hopeful<'_> {}

/// A read-only view of a node.
#[derive(Debug, Clone, Copy)]
pub struct NodeView<'a>(&'a NodeState);

impl<'a> NodeView<'a> {
    /// Its name.
    pub fn name(&self) -> &'a str {
        &self.0.name
    }

    /// Its devices, by index and identifier.
    pub fn devices(&self) -> impl Iterator<Item = DeviceView<'a>> {
        self.0.devices.iter().map(DeviceView)
    }

    /// The device of this identifier.
    pub fn device(&self, id: &str) -> Option<DeviceView<'a>> {
        self.devices().find(|device| device.id() == id)
    }
}

/// A read-only view of a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceView<'a>(&'a DeviceState);

impl<'a> DeviceView<'a> {
    /// Its identifier.
    pub fn id(&self) -> &'a str {
        &self.0.id
    }

    /// As its node reports it.
    pub fn device(&self) -> &'a Device {
        &self.0.device
    }

    /// The part that pods hold.
    pub fn used(&self) -> Load {
        self.0.used
    }

    /// MIG instances on it that pods hold.
    pub fn instances(&self) -> &'a [crate::Instance] {
        &self.0.instances
    }

    /// Whether a reservation contradicts the device's mode: a share without an instance on a device in MIG mode, or
    /// an instance on another device. Such a device takes no new pods.
    pub fn is_in_conflict(&self) -> bool {
        self.0.conflicts > 0
    }
}
