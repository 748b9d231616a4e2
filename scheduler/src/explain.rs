//! Why a pod is not placed, and the smallest change with which it would be; for a placed pod, its devices. `GET
//! /explain` answers with this, and `vgpu explain` prints it. `placement` computes all fits; nothing is changed.
//!
//! The placement engine's advice uses its own terms. Here it becomes edits of the objects that people write (a
//! resource, an annotation, a quota). An edit is only shown if the edited pod reads back as the advised request, or
//! fits.

mod answer;
mod claims;
mod edits;
mod http;
mod outside;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube_api::object::{Node, Pod, ResourceQuota};
use kube_api::request::{Defaults, RequestError};
use kube_api::vendor::Vendors;
use placement::{Advice, Among, Ask, Cluster, Compute, Memory, Misfit, Placement, Reason, Request};
use serde_json::Value;

pub use answer::{
    Advised, Changed, ContainerRequest, Edit, Explained, OfDevice, OfNode, Placed, PlacedContainer,
    PlacedDevice, ReasonCount, Verdict,
};
pub use http::{PodUnread, ViewSource, routes};

use crate::ledger::{Ledger, QuotaView, identity};

const MIB: u64 = 1 << 20;

/// The data for an answer: the placement engine's view of the cluster, and facts that the engine does not use.
#[derive(Debug, Clone)]
pub struct View {
    /// All nodes with devices, and the reservations on them.
    pub cluster: Cluster,
    /// All nodes from the API server, by name, including those that report nothing.
    pub nodes: Arc<BTreeMap<String, Node>>,
    /// All quotas. Empty if quotas are not kept; advice then names no quota object.
    pub quotas: Vec<ResourceQuota>,
    /// The ComputeQuotas, without the devices that the pod in question already holds.
    pub compute_quotas: QuotaView,
    /// The vendors whose devices are placed.
    pub vendors: Arc<Vendors>,
    /// The policies of pods that name none.
    pub defaults: Defaults,
    /// The `schedulerName` that a pod must have; empty for any.
    pub scheduler_name: String,
    /// The labels that a node must have (`gpu=on`); empty for none.
    pub node_selector: String,
    /// Remarks that belong to every answer.
    pub notes: Vec<String>,
    /// The ResourceClaims of the pod's namespace; `None` if they were not read.
    pub claims: Option<Vec<Value>>,
}

impl View {
    /// The view of a scheduler that starts with these objects. Reservations of pods without a node exist only in a
    /// running scheduler, and are not in it.
    pub fn of(
        nodes: Vec<Node>,
        pods: &[Pod],
        quotas: Vec<ResourceQuota>,
        vendors: Arc<Vendors>,
        defaults: Defaults,
    ) -> Self {
        let mut ledger = Ledger::new(Arc::clone(&vendors), Duration::MAX);
        let mut by_name = BTreeMap::new();
        for node in nodes {
            ledger.set_node(node.clone());
            by_name.insert(node.metadata.name.clone().unwrap_or_default(), node);
        }
        for quota in &quotas {
            ledger.set_quota(quota);
        }
        for pod in pods {
            ledger.set_pod(pod, Duration::ZERO);
        }
        Self {
            cluster: ledger.cluster().clone(),
            nodes: Arc::new(by_name),
            quotas,
            compute_quotas: QuotaView::default(),
            vendors,
            defaults,
            scheduler_name: String::new(),
            node_selector: String::new(),
            notes: Vec::new(),
            claims: None,
        }
    }
}

/// The amount of detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerDetail {
    /// How many nodes are shown with all their devices and with advice of their own.
    pub nodes: usize,
    /// The time limit for finding advice, because a pod of sixty containers has too many combinations to try.
    pub patience: Duration,
}

impl Default for AnswerDetail {
    fn default() -> Self {
        Self {
            nodes: 5,
            patience: Duration::from_secs(2),
        }
    }
}

impl AnswerDetail {
    /// Every node.
    pub fn all() -> Self {
        Self {
            nodes: usize::MAX,
            patience: Duration::from_secs(10),
        }
    }
}

/// The most names of nodes after a reason.
const FIRST_NAMES: usize = 5;

/// Answers for the pod. Examines every node, so it is meant for a person's question.
pub fn explain(view: &View, pod: &Pod, detail: AnswerDetail) -> Explained {
    let identity = identity(pod);
    let mut answer = Explained::of(&identity);
    answer.notes = view.notes.clone();
    let missing = outside::resources(view, pod, &mut answer.notes);
    let request = kube_api::request::request(pod, &view.vendors, &view.defaults);
    if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
        return answer.with(
            Verdict::Finished,
            format!("is over ({}): it holds nothing", pod.status.phase),
        );
    }
    let mut request = match request {
        Ok(request) => request,
        Err(error) => return unreadable(answer, &error),
    };
    request.pod = identity;
    answer.asks = asked(&request);
    if !request.asks_for_devices() {
        if let Some((verdict, summary)) = claims::explain(view, pod, &mut answer.notes) {
            return answer.with(verdict, summary);
        }
        return match missing {
            outside::Missing::Resource(name) if pod.spec.node_name.is_empty() => answer.with(
                Verdict::DoesNotFit,
                format!("does not fit: no node has {name}"),
            ),
            outside::Missing::Count(name) => answer.with(
                Verdict::Missed,
                format!("says how much of a device it wants, and not how many ({name})"),
            ),
            _ => answer.with(
                Verdict::NotOurs,
                "asks for no device that vgpu gives: kube-scheduler places it without asking here"
                    .to_owned(),
            ),
        };
    }
    let held = view.cluster.reservation(&request.pod.uid);
    if !pod.spec.node_name.is_empty() {
        let node = &pod.spec.node_name;
        let Some(held) = held else {
            answer.notes.push(format!(
                "nothing says which devices it has: it was bound by another program than this scheduler (schedulerName is {:?})",
                pod.spec.scheduler_name
            ));
            return answer.with(Verdict::Missed, format!("runs on {node} without devices"));
        };
        answer.placed = Some(placed(&held.placement, &request));
        return answer.with(Verdict::Placed, format!("is on {node}"));
    }
    if let Some(held) = held {
        let node = Arc::clone(&held.placement.node);
        answer.placed = Some(placed(&held.placement, &request));
        return answer.with(
            Verdict::Reserved,
            format!("has its devices on {node} reserved and waits to be bound"),
        );
    }
    let missed = !view.scheduler_name.is_empty()
        && !pod.spec.scheduler_name.is_empty()
        && pod.spec.scheduler_name != view.scheduler_name
        && view.vendors.any_vendor_scheduler() != Some(&pod.spec.scheduler_name);
    if missed {
        answer.notes.push(format!(
            "its schedulerName is {:?}, not {:?}: the webhook did not see it (it was away, the namespace is exempt, or the label {} is \"ignore\"), so no scheduler that knows shares of devices places it; create it again",
            pod.spec.scheduler_name, view.scheduler_name, kube_api::keys::WEBHOOK
        ));
    }
    // No advice leads to nodes that kube-scheduler does not use for new pods.
    let (open, closed): (Vec<&str>, Vec<&str>) = view
        .cluster
        .nodes()
        .map(|node| node.name())
        .partition(|name| {
            !view
                .nodes
                .get(*name)
                .is_some_and(|node| node.spec.unschedulable)
        });
    let clock = AdviceTimer {
        began: Instant::now(),
        patience: detail.patience,
    };
    let found = view
        .cluster
        .explain_while(&request, Among::Names(&open), &|| clock.goes_on());
    match found {
        Err(placement) => {
            let quotas = &view.compute_quotas;
            let (of, vendors) = (&request.pod, &view.vendors);
            if let Some(why) = quotas.exceeded(of, pod, &placement, &view.cluster, vendors) {
                answer.notes.push(
                    "it waits until pods of the namespace end, or the ComputeQuota allows more"
                        .to_owned(),
                );
                return answer.with(Verdict::DoesNotFit, format!("does not fit: {why}"));
            }
            fits(answer, view, &request, &placement, missed)
        }
        Ok(explanation) => {
            let mut refusals: Vec<RefusingNode> = explanation
                .misfits
                .into_iter()
                .map(|misfit| RefusingNode {
                    node: misfit.node,
                    misfit: Some(misfit.misfit),
                })
                .collect();
            for name in closed {
                refusals.push(RefusingNode {
                    node: name.into(),
                    misfit: view.cluster.place_on(&request, name).err(),
                });
            }
            let inquiry = Inquiry {
                subject: edits::Subject {
                    view,
                    pod,
                    request: &request,
                },
                detail,
                clock,
            };
            let answer = nowhere(answer, &inquiry, refusals, &explanation.advice);
            if missed {
                let summary = answer.summary.clone();
                answer.with(
                    Verdict::Missed,
                    format!("is not the scheduler's, and {summary}"),
                )
            } else {
                answer
            }
        }
    }
}

fn unreadable(mut answer: Explained, error: &RequestError) -> Explained {
    answer.notes.push(
        "it fits on no node until that is corrected: a pod's spec cannot be changed, so delete it and create it again"
            .to_owned(),
    );
    answer.with(
        Verdict::Unreadable,
        format!("cannot be understood: {error}"),
    )
}

fn fits(
    mut answer: Explained,
    view: &View,
    request: &Request,
    placement: &Placement,
    missed: bool,
) -> Explained {
    let node = Arc::clone(&placement.node);
    answer.placed = Some(placed(placement, request));
    if let Some(object) = view.nodes.get(&*node) {
        let keeps_away = outside::keeps_away(object);
        if !keeps_away.is_empty() {
            answer
                .notes
                .push(format!("{node}: {}", keeps_away.join("; ")));
        }
    }
    if missed {
        return answer.with(
            Verdict::Missed,
            format!("is not the scheduler's; it would fit on {node}"),
        );
    }
    answer.notes.push(
        "where it stays pending although it fits, kube-scheduler has a reason of its own (kubectl describe pod)"
            .to_owned(),
    );
    answer.with(Verdict::Fits, format!("fits: {node} would take it"))
}

/// The time limit for advice.
struct AdviceTimer {
    began: Instant,
    patience: Duration,
}

impl AdviceTimer {
    fn goes_on(&self) -> bool {
        self.began.elapsed() < self.patience
    }
}

/// A node that does not take the pod.
struct RefusingNode {
    node: Arc<str>,
    /// None: the pod would fit, but kube-scheduler leaves the node out because it is closed.
    misfit: Option<Misfit>,
}

impl RefusingNode {
    /// The order of the nodes, nearest to a fit first: a closed node, then nodes that others' leaving would help, then
    /// other devices.
    fn rank(&self) -> u32 {
        match &self.misfit {
            None => 0,
            Some(misfit @ Misfit::Devices { .. }) if misfit.is_cured_by_leaving() => 1,
            Some(Misfit::Devices { .. }) => 2,
            Some(Misfit::NoVendor | Misfit::TooFewDevices { .. }) => 3,
            Some(Misfit::UnknownNode) => 4,
        }
    }

    fn codes(&self) -> Vec<&'static str> {
        match &self.misfit {
            None => vec!["node unschedulable"],
            Some(misfit) => crate::events::codes(misfit),
        }
    }
}

/// One question: its subject, its detail, and its time limit.
struct Inquiry<'a> {
    subject: edits::Subject<'a>,
    detail: AnswerDetail,
    clock: AdviceTimer,
}

fn nowhere(
    mut answer: Explained,
    inquiry: &Inquiry<'_>,
    mut refusals: Vec<RefusingNode>,
    advice: &[Advice],
) -> Explained {
    let Inquiry {
        subject,
        detail,
        clock,
    } = inquiry;
    let view = subject.view;
    let registered = refusals.len();
    for name in view.nodes.keys() {
        if view.cluster.node(name).is_none() {
            refusals.push(RefusingNode {
                node: name.as_str().into(),
                misfit: Some(Misfit::UnknownNode),
            });
        }
    }
    refusals.sort_by(|a, b| {
        let key = |refusal: &RefusingNode| refusal.rank();
        key(a).cmp(&key(b)).then_with(|| a.node.cmp(&b.node))
    });
    let nodes = refusals.len();
    answer.nodes_in_question = nodes;
    answer.reasons = counted(&refusals);
    answer.advice = advice
        .iter()
        .filter_map(|advice| subject.advised(advice))
        .collect();
    if let Some(refusal) = refusals.first().filter(|first| first.misfit.is_none()) {
        answer.advice.push(edits::opened(&refusal.node));
    }
    answer.nodes_left_out = nodes.saturating_sub(detail.nodes);
    refusals.truncate(detail.nodes);
    answer.nodes = refusals
        .iter()
        .map(|refusal| of_node(inquiry, refusal, nodes))
        .collect();
    if !clock.goes_on() {
        answer.notes.push(format!(
            "the search for advice ended after {:?}: there may be more advice than is shown",
            clock.patience
        ));
    }
    let summary = match (nodes, registered) {
        (0, _) => "does not fit: there is no node".to_owned(),
        (_, 0) => format!("does not fit: none of {nodes} nodes reports devices"),
        (1, _) => "does not fit on the only node".to_owned(),
        _ => format!("does not fit on any of {nodes} nodes"),
    };
    if answer.advice.is_empty() && registered > 0 && clock.goes_on() {
        answer.notes.push(
            "no combination of up to three changes that was tried would make it fit: compare its requests with what the nodes have"
                .to_owned(),
        );
    }
    answer.with(Verdict::DoesNotFit, summary)
}

fn of_node(inquiry: &Inquiry<'_>, refusal: &RefusingNode, nodes: usize) -> OfNode {
    let Inquiry { subject, clock, .. } = inquiry;
    let (view, request) = (subject.view, subject.request);
    let name = &refusal.node;
    let devices = match &refusal.misfit {
        Some(Misfit::Devices { reasons, .. }) => reasons
            .iter()
            .map(|(id, reason)| {
                let node = view.cluster.node(name);
                let device = node.and_then(|node| node.device(id));
                OfDevice {
                    device: id.to_owned(),
                    model: device.map_or_else(String::new, |view| view.device().model.clone()),
                    reason: reason.code().to_owned(),
                    text: in_words(&reason),
                }
            })
            .collect(),
        _ => Vec::new(),
    };
    let object = view.nodes.get(&**name);
    let mut notes = Vec::new();
    match (&refusal.misfit, object) {
        (Some(Misfit::UnknownNode), Some(object)) => {
            notes = outside::not_registered(view, object, request);
        }
        (Some(Misfit::UnknownNode), None) => notes.push("no such node is known".to_owned()),
        (
            Some(Misfit::TooFewDevices {
                vendor,
                present,
                asked,
                ..
            }),
            _,
        ) => {
            notes.push(format!("has {present} {vendor} devices, asked {asked}"));
        }
        _ => {}
    }
    if let Some(object) = object {
        if !matches!(refusal.misfit, Some(Misfit::UnknownNode)) {
            notes.extend(outside::broken(view, object));
        }
        notes.extend(outside::keeps_away(object));
    }
    // For a single node the advice is already shown at the top.
    let mut advice = Vec::new();
    if refusal.misfit.is_none() {
        advice.push(edits::opened(name));
    } else if nodes > 1
        && clock.goes_on()
        && let Ok(explanation) = view
            .cluster
            .explain_while(request, Among::Names(&[name]), &|| clock.goes_on())
    {
        let said = explanation.advice.iter();
        advice.extend(said.filter_map(|advice| subject.advised(advice)));
    }
    OfNode {
        node: name.to_string(),
        reason: refusal
            .misfit
            .as_ref()
            .map_or_else(|| "node unschedulable".to_owned(), Misfit::summary),
        devices,
        notes,
        advice,
    }
}

/// Each reason with its number of nodes, the most frequent first.
fn counted(refusals: &[RefusingNode]) -> Vec<ReasonCount> {
    let mut by_reason: BTreeMap<&str, (usize, Vec<String>)> = BTreeMap::new();
    for refusal in refusals {
        for code in refusal.codes() {
            let (nodes, first) = by_reason.entry(code).or_default();
            *nodes += 1;
            if first.len() < FIRST_NAMES {
                first.push(refusal.node.to_string());
            }
        }
    }
    let mut counted: Vec<ReasonCount> = by_reason
        .into_iter()
        .map(|(reason, (nodes, first))| ReasonCount {
            reason: reason.to_owned(),
            nodes,
            first,
        })
        .collect();
    counted.sort_by(|a, b| b.nodes.cmp(&a.nodes).then_with(|| a.reason.cmp(&b.reason)));
    counted
}

/// A reason with memory in MiB.
fn in_words(reason: &Reason) -> String {
    match reason {
        Reason::Memory { asked, free, total } => format!(
            "{} of {} MiB free, asked {} ({} MiB short)",
            free / MIB,
            total / MIB,
            asked.div_ceil(MIB),
            asked.saturating_sub(*free).div_ceil(MIB)
        ),
        Reason::QuotaMemory { asked, left } => format!(
            "the namespace's quota leaves {} MiB, asked {}",
            left / MIB,
            asked.div_ceil(MIB)
        ),
        Reason::NoInstance { asked } => format!(
            "no MIG profile with {} MiB has a free placement",
            asked.div_ceil(MIB)
        ),
        other => other.to_string(),
    }
}

fn asked(request: &Request) -> Vec<ContainerRequest> {
    let mut asks = Vec::new();
    for container in &request.containers {
        for ask in container.asks.iter().filter(|ask| ask.count > 0) {
            asks.push(ContainerRequest {
                container: container.name.clone(),
                vendor: ask.vendor.to_string(),
                devices: ask.count,
                memory: match ask.memory {
                    Memory::Bytes(bytes) => format!("{} MiB", bytes.div_ceil(MIB)),
                    Memory::Percent(100..) => "whole device".to_owned(),
                    Memory::Percent(percent) => format!("{percent} % of the device"),
                },
                compute: match ask.compute {
                    Compute::Units(0) => "none promised".to_owned(),
                    Compute::Units(units) => units.to_string(),
                    other => format!("{other:?}"),
                },
                rules: rules(ask),
            });
        }
    }
    asks
}

fn rules(ask: &Ask) -> Vec<String> {
    let mut rules = Vec::new();
    let select = &ask.select;
    for (name, list) in [
        ("models", &select.use_types),
        ("not models", &select.nouse_types),
        ("UUIDs", &select.use_ids),
        ("not UUIDs", &select.nouse_ids),
        ("labels", &select.tags),
    ] {
        if !list.is_empty() {
            rules.push(format!("{name} {}", list.join(", ")));
        }
    }
    if let Some(mode) = &select.mode {
        rules.push(format!("mode {mode}"));
    }
    if ask.numa_bind {
        rules.push("one NUMA node".to_owned());
    }
    if ask.exclusive || ask.policy == placement::DevicePolicy::Mutex {
        rules.push("unused devices".to_owned());
    }
    rules
}

fn placed(placement: &Placement, request: &Request) -> Placed {
    let containers = placement
        .containers
        .iter()
        .enumerate()
        .filter(|(_, granted)| !granted.grants.is_empty())
        .map(|(position, granted)| PlacedContainer {
            container: request
                .containers
                .get(position)
                .map_or_else(|| position.to_string(), |container| container.name.clone()),
            devices: granted
                .grants
                .iter()
                .map(|grant| PlacedDevice {
                    device: grant.device.to_string(),
                    memory_mib: grant.memory_bytes.div_ceil(MIB),
                    cores: grant.cores,
                    instance: grant.instance.as_ref().map(|instance| {
                        let mut text = instance.profile.to_string();
                        // Writing to a String does not fail.
                        write!(text, " at {}", instance.span.start).ok();
                        text
                    }),
                })
                .collect(),
        })
        .collect();
    Placed {
        node: placement.node.to_string(),
        containers,
    }
}
