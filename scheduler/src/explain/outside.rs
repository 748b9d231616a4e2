//! Reasons that the placement engine does not know: nodes that have not registered, nodes that kube-scheduler leaves
//! out, resources that no node has.

use std::collections::BTreeSet;

use kube_api::object::{Container, Node, Pod};
use kube_api::vendor::Role;
use placement::Request;

use super::View;

/// The agent DaemonSet's default node label.
const AGENT_LABEL: (&str, &str) = ("gpu", "on");

/// The mistake in a pod that seems to ask for no device.
pub(super) enum Missing {
    /// Nothing is missing.
    Nothing,
    /// It asks for this resource, which no node has.
    Resource(String),
    /// It lacks this resource, which gives the number of devices.
    Count(String),
}

/// Adds a note for each resource that no vendor and no node has. Returns the first.
pub(super) fn resources(view: &View, pod: &Pod, notes: &mut Vec<String>) -> Missing {
    let mut first = Missing::Nothing;
    let mut told = BTreeSet::new();
    let spec = &pod.spec;
    for container in spec.init_containers.iter().chain(&spec.containers) {
        for resource in unknown(view, container) {
            if !told.insert(resource) {
                continue;
            }
            if matches!(first, Missing::Nothing) {
                first = Missing::Resource(resource.to_owned());
            }
            let nearest = view
                .vendors
                .resources()
                .map(|(known, _, _)| (distance(resource, known), known))
                .min()
                .filter(|(distance, _)| *distance <= 3);
            let hint =
                nearest.map_or_else(String::new, |(_, known)| format!("; did you mean {known}?"));
            notes.push(format!(
                "container {} asks for {resource}, which no node has{hint}",
                container.name
            ));
        }
    }
    // A share without a count asks for nothing until admission has added the count.
    for container in spec.init_containers.iter().chain(&spec.containers) {
        for row in view.vendors.iter() {
            let has = |role| {
                row.resource(role)
                    .is_some_and(|name| container.amount(name).is_some())
            };
            let share = [Role::Memory, Role::MemoryPercent, Role::Cores]
                .into_iter()
                .find(|role| has(*role));
            if let (Some(share), Some(count), false) =
                (share, row.resource(Role::Count), has(Role::Count))
            {
                if matches!(first, Missing::Nothing) {
                    first = Missing::Count(count.to_owned());
                }
                notes.push(format!(
                    "container {} has {} and no {count}: the webhook puts the count there, and has not seen this pod",
                    container.name,
                    row.resource(share).unwrap_or_default()
                ));
            }
        }
    }
    first
}

/// Resources whose names look like a vendor's, but that neither a vendor nor a node has.
fn unknown<'a>(view: &View, container: &'a Container) -> Vec<&'a str> {
    let needs = &container.resources;
    let names: BTreeSet<&str> = needs
        .limits
        .keys()
        .chain(needs.requests.keys())
        .map(String::as_str)
        .collect();
    names
        .into_iter()
        .filter(|name| name.contains('/') && !name.contains("kubernetes.io/"))
        .filter(|name| view.vendors.of_resource(name).is_none())
        .filter(|name| {
            !view.nodes.values().any(|node| {
                node.status.capacity.contains_key(*name)
                    || node.status.allocatable.contains_key(*name)
            })
        })
        .collect()
}

/// The number of different letters (Levenshtein distance).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut before = i + 1;
        if let Some(first) = row.first_mut() {
            *first = before;
        }
        for (right, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let least = (diagonal + usize::from(left != *right))
                .min(before + 1)
                .min(*cell + 1);
            diagonal = *cell;
            *cell = least;
            before = least;
        }
    }
    row.last().copied().unwrap_or_default()
}

/// Why a node reports no devices, as far as its object shows.
pub(super) fn not_registered(view: &View, node: &Node, request: &Request) -> Vec<String> {
    let mut notes = broken(view, node);
    if !notes.is_empty() {
        return notes;
    }
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let lacks: Vec<&str> = view
        .node_selector
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .filter(|part| match part.split_once('=') {
            Some((key, value)) => labels.get(key.trim()).map(String::as_str) != Some(value.trim()),
            None => !labels.contains_key(*part),
        })
        .collect();
    if !lacks.is_empty() {
        notes.push(format!(
            "lacks the label {}: the scheduler looks at no other nodes (--node-label-selector)",
            lacks.join(",")
        ));
        return notes;
    }
    let annotations = node.metadata.annotations.clone().unwrap_or_default();
    let mut vendors: Vec<&str> = Vec::new();
    for ask in request
        .containers
        .iter()
        .flat_map(|container| &container.asks)
    {
        if !vendors.contains(&ask.vendor.as_str()) {
            vendors.push(ask.vendor.as_str());
        }
    }
    for vendor in vendors {
        let Some(row) = view.vendors.get(vendor) else {
            continue;
        };
        match &row.keys.register {
            Some(key) if annotations.contains_key(key) => {
                notes.push(format!("annotation {key} names no device"));
            }
            Some(key) => notes.push(format!(
                "has no annotation {key}: no agent has reported {vendor} devices here"
            )),
            None => {
                let resource = row.resource(Role::Count).unwrap_or_default();
                notes.push(format!("its capacity has no {resource}"));
            }
        }
    }
    let (key, value) = AGENT_LABEL;
    if view.node_selector.is_empty() && labels.get(key).map(String::as_str) != Some(value) {
        notes.push(format!(
            "lacks the label {key}={value}, by which the agent is put on nodes: kubectl label node {} {key}={value}",
            node.metadata.name.as_deref().unwrap_or_default()
        ));
    }
    notes
}

/// The parts of a node's report that cannot be read.
pub(super) fn broken(view: &View, node: &Node) -> Vec<String> {
    kube_api::node::report(node, &view.vendors)
        .problems
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// Facts that kube-scheduler uses and the placement engine does not.
pub(super) fn keeps_away(node: &Node) -> Vec<String> {
    let mut notes = Vec::new();
    if node.spec.unschedulable {
        notes.push(
            "is closed for new pods (kubectl cordon): kube-scheduler leaves it out".to_owned(),
        );
    }
    for taint in &node.spec.taints {
        // `kubectl cordon` sets both.
        let cordon = node.spec.unschedulable && taint.key == "node.kubernetes.io/unschedulable";
        if taint.effect != "PreferNoSchedule" && !cordon {
            let value = if taint.value.is_empty() {
                String::new()
            } else {
                format!("={}", taint.value)
            };
            notes.push(format!(
                "has the taint {}{value}:{}: only pods that tolerate it come here",
                taint.key, taint.effect
            ));
        }
    }
    notes
}
