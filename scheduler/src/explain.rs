//! Why a pod is not placed, and the smallest change after which it would be; where it is, where. `GET /explain` answers
//! with it, and `vgpu explain` prints it. Asks `placement` and never computes a fit itself; never changes anything.
//!
//! The engine's advice is about its own terms. Here it becomes edits of the objects that people write (a resource, an
//! annotation, a quota), and an edit is only shown when the pod so edited reads back as what the engine advised, or fits.

mod answer;
mod edits;
mod http;
mod outside;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use kube_api::object::{Node, Pod, ResourceQuota};
use kube_api::request::{Defaults, RequestError};
use kube_api::vendor::Vendors;
use placement::{
    Among, Ask, Cluster, Compute, Explanation, Memory, Misfit, NodeMisfit, Placement, Reason,
    Request,
};

pub use answer::{
    Advised, Asked, Changed, Counted, Edit, Explained, OfDevice, OfNode, Placed, PlacedContainer,
    PlacedDevice, Verdict,
};
pub use http::{Source, routes};

use crate::ledger::{Ledger, identity, uid_of};

const MIB: u64 = 1 << 20;

/// What a question is answered from: the engine's view of the cluster, and what it does not look at.
#[derive(Debug, Clone)]
pub struct View {
    /// All nodes with devices and what is taken of them.
    pub cluster: Cluster,
    /// All nodes as the API server has them, by name; those that report nothing, too.
    pub nodes: Arc<BTreeMap<String, Node>>,
    /// All quotas; may be empty where they are not kept, then advice names no object.
    pub quotas: Vec<ResourceQuota>,
    /// The vendors that are looked at.
    pub vendors: Arc<Vendors>,
    /// What holds where the pod says nothing.
    pub defaults: Defaults,
    /// The name that a pod has to have under `schedulerName`; empty for any.
    pub scheduler_name: String,
    /// Labels that a node has to have (`gpu=on`); empty for none.
    pub node_selector: String,
    /// What the answer should not be read without.
    pub notes: Vec<String>,
}

impl View {
    /// The view that a scheduler has which starts from these objects. Reservations of pods that have no node yet live in
    /// a running scheduler only, and are not in it.
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
            vendors,
            defaults,
            scheduler_name: String::new(),
            node_selector: String::new(),
            notes: Vec::new(),
        }
    }
}

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detail {
    /// How many nodes are shown with all their devices and with advice of their own.
    pub nodes: usize,
}

impl Default for Detail {
    fn default() -> Self {
        Self { nodes: 5 }
    }
}

impl Detail {
    /// Every node.
    pub fn all() -> Self {
        Self { nodes: usize::MAX }
    }
}

/// How many names of nodes stand beside a reason.
const FIRST_NAMES: usize = 5;

/// Answers for the pod. Costs a look at every node, and is meant for a person who asks.
pub fn explain(view: &View, pod: &Pod, detail: Detail) -> Explained {
    let identity = identity(pod, &uid_of(pod));
    let mut answer = Explained::of(&identity);
    answer.notes = view.notes.clone();
    outside::resources(view, pod, &mut answer.notes);
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
        let summary = if answer.notes.len() > view.notes.len() {
            "asks for no device that the scheduler knows; it asks for something that may be a slip"
        } else {
            "asks for no device of ours: kube-scheduler places it without asking here"
        };
        return answer.with(Verdict::NotOurs, summary.to_owned());
    }
    let held = view.cluster.reservation(&request.pod.uid);
    if !pod.spec.node_name.is_empty() {
        let node = &pod.spec.node_name;
        let Some(held) = held else {
            answer.notes.push(format!(
                "nothing says which devices it has: whoever bound it was not this scheduler (schedulerName is {:?})",
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
        && pod.spec.scheduler_name != view.scheduler_name;
    if missed {
        answer.notes.push(format!(
            "its schedulerName is {:?}, not {:?}: the webhook did not see it (it was away, the namespace is exempt, or the label {} is \"ignore\"), so nobody who knows shares of devices places it; create it anew",
            pod.spec.scheduler_name, view.scheduler_name, kube_api::keys::WEBHOOK
        ));
    }
    match view.cluster.explain(&request, Among::All) {
        Err(placement) => fits(answer, view, &request, &placement, missed),
        Ok(explanation) => {
            let answer = nowhere(answer, view, pod, &request, &explanation, detail);
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
        "it fits on no node until that is written anew: a pod's spec cannot be changed, so delete it and create it again"
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

fn nowhere(
    mut answer: Explained,
    view: &View,
    pod: &Pod,
    request: &Request,
    explanation: &Explanation,
    detail: Detail,
) -> Explained {
    let mut misfits: Vec<NodeMisfit> = explanation.misfits.clone();
    for name in view.nodes.keys() {
        if view.cluster.node(name).is_none() {
            misfits.push(NodeMisfit {
                node: name.as_str().into(),
                misfit: Misfit::UnknownNode,
            });
        }
    }
    answer.nodes_in_question = misfits.len();
    answer.reasons = counted(&misfits);
    // Those that come nearest first: where others' leaving would do, then where the devices are of another kind.
    let rank = |misfit: &Misfit| match misfit {
        Misfit::Devices { .. } if misfit.is_cured_by_leaving() => 0,
        Misfit::Devices { .. } => 1,
        Misfit::TooFewDevices { .. } => 2,
        Misfit::UnknownNode => 3,
    };
    misfits.sort_by(|a, b| {
        rank(&a.misfit)
            .cmp(&rank(&b.misfit))
            .then_with(|| a.node.cmp(&b.node))
    });
    answer.nodes_left_out = misfits.len().saturating_sub(detail.nodes);
    misfits.truncate(detail.nodes);
    let door = edits::Door { view, pod, request };
    answer.advice = explanation
        .advice
        .iter()
        .filter_map(|advice| door.advised(advice))
        .collect();
    answer.nodes = misfits
        .iter()
        .map(|misfit| of_node(view, request, misfit, &door, answer.nodes_in_question))
        .collect();
    let nodes = answer.nodes_in_question;
    let registered = explanation.misfits.len();
    let summary = match (nodes, registered) {
        (0, _) => "does not fit: there is no node".to_owned(),
        (_, 0) => format!("does not fit: none of {nodes} nodes reports devices"),
        (1, _) => "does not fit on the only node".to_owned(),
        _ => format!("does not fit on any of {nodes} nodes"),
    };
    if answer.advice.is_empty() {
        answer.notes.push(
            "no change of up to three things that was looked at would make it fit: compare what it asks for with what the nodes have"
                .to_owned(),
        );
    }
    answer.with(Verdict::DoesNotFit, summary)
}

fn of_node(
    view: &View,
    request: &Request,
    misfit: &NodeMisfit,
    door: &edits::Door<'_>,
    nodes: usize,
) -> OfNode {
    let name = &misfit.node;
    let view_of = view.cluster.node(name);
    let devices = match &misfit.misfit {
        Misfit::Devices { reasons, .. } => reasons
            .iter()
            .map(|(id, reason)| {
                let device = view_of.and_then(|node| node.device(id));
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
    let mut notes = match (&misfit.misfit, view.nodes.get(&**name)) {
        (Misfit::UnknownNode, Some(object)) => outside::not_registered(view, object, request),
        (Misfit::UnknownNode, None) => vec!["no such node is known".to_owned()],
        (Misfit::TooFewDevices { .. }, object) => {
            let broken = object.map_or_else(Vec::new, |object| outside::broken(view, object));
            [vec![misfit.misfit.to_string()], broken].concat()
        }
        (Misfit::Devices { .. }, object) => {
            object.map_or_else(Vec::new, |object| outside::broken(view, object))
        }
    };
    if let Some(object) = view.nodes.get(&**name) {
        notes.extend(outside::keeps_away(object));
    }
    // Of a single node the advice stands at the top already.
    let advice = if nodes > 1 {
        let names = [&**name];
        match view.cluster.explain(request, Among::Names(&names)) {
            Ok(explanation) => explanation
                .advice
                .iter()
                .filter_map(|advice| door.advised(advice))
                .collect(),
            Err(_) => Vec::new(),
        }
    } else {
        Vec::new()
    };
    OfNode {
        node: name.to_string(),
        reason: misfit.misfit.summary(),
        devices,
        notes,
        advice,
    }
}

/// Each reason, on how many nodes it stands, the most frequent first.
fn counted(misfits: &[NodeMisfit]) -> Vec<Counted> {
    let mut counted: Vec<Counted> = Vec::new();
    for node in misfits {
        for code in crate::events::codes(&node.misfit) {
            let at = match counted.iter().position(|known| known.reason == code) {
                Some(at) => at,
                None => {
                    counted.push(Counted {
                        reason: code.to_owned(),
                        nodes: 0,
                        first: Vec::new(),
                    });
                    counted.len() - 1
                }
            };
            if let Some(known) = counted.get_mut(at) {
                known.nodes += 1;
                if known.first.len() < FIRST_NAMES {
                    known.first.push(node.node.to_string());
                }
            }
        }
    }
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

fn asked(request: &Request) -> Vec<Asked> {
    let mut asks = Vec::new();
    for container in &request.containers {
        for ask in container.asks.iter().filter(|ask| ask.count > 0) {
            asks.push(Asked {
                container: container.name.clone(),
                vendor: ask.vendor.to_string(),
                devices: ask.count,
                memory: match ask.memory {
                    Memory::Bytes(bytes) => format!("{} MiB", bytes.div_ceil(MIB)),
                    Memory::Percent(100..) => "whole card".to_owned(),
                    Memory::Percent(percent) => format!("{percent} % of the card"),
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
        rules.push("cards that nobody uses".to_owned());
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
