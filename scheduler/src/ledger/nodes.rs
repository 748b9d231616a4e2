//! Processes the API server's reports about nodes and quotas.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use kube_api::assigner::{DEVICE_LABELS, tag};
use kube_api::node::{report, same_report};
use kube_api::object::{Node, ResourceQuota};
use kube_api::quota;
use kube_api::quota_scopes::scopes;

use super::read::slim;
use super::unplaced::has_more_slots;
use super::{Ledger, Notice, named};

impl Ledger {
    /// Takes in a node. If its devices are unchanged this costs one comparison.
    pub fn set_node(&mut self, node: Node) {
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        let node = Arc::new(slim(node));
        let labels_count = self.counts_claims();
        if let Some(before) = self.nodes.get_mut(&name)
            && same_report(before, &node, &self.vendors)
            && (!labels_count || labels_of(before) == labels_of(&node))
        {
            *before = node;
            return;
        }
        let before = self.nodes.get(&name).map(|node| &**node);
        if has_more_slots(before, &node, &self.vendors) {
            self.note_more_slots(Arc::clone(&name));
        }
        self.take_node(name, node);
    }

    fn take_node(&mut self, name: Arc<str>, node: Arc<Node>) {
        let mut said = report(&node, &self.vendors);
        let mut label_problems = Vec::new();
        if self.counts_claims() {
            let problems = tag(&mut said.node, &node);
            label_problems.extend(problems.iter().map(ToString::to_string));
        }
        for device in &mut said.node.devices {
            device.given_out = self.given_out.contains_key(&device.id);
        }
        let told = self.given_out_on(&name);
        let mut problems: Vec<String> = said
            .problems
            .iter()
            .map(|problem| {
                format!(
                    "{problem}; until it is written again, the node has no devices of that vendor"
                )
            })
            .collect();
        if said.node.devices.is_empty() {
            self.cluster.remove_node(&name);
        } else if let Err(problem) = self.cluster.set_node(said.node) {
            self.cluster.remove_node(&name);
            problems.push(format!(
                "{problem}; until it is written again, the node takes no pods that ask for devices"
            ));
        }
        for gpu in self.given_out_on(&name).difference(&told) {
            self.tell_given_out(&name, gpu);
        }
        self.settle_claims_on(&name, label_problems.clone());
        problems.extend(label_problems);
        if problems.is_empty() {
            self.broken_nodes.remove(&name);
        } else {
            self.broken_nodes.insert(Arc::clone(&name));
        }
        for problem in problems {
            self.notices.push(Notice::NodeBroken {
                node: name.to_string(),
                problem,
            });
        }
        self.nodes.insert(Arc::clone(&name), node);
        if self.cluster.node(&name).is_some() {
            self.freed_by_event(name);
        }
    }

    /// The devices of a known node that other drivers have given out.
    fn given_out_on(&self, name: &str) -> BTreeSet<String> {
        let Some(node) = self.cluster.node(name) else {
            return BTreeSet::new();
        };
        node.devices()
            .filter(|device| device.device().given_out)
            .map(|device| device.id().to_owned())
            .collect()
    }

    /// Reports a device that another driver has given out and that was not given out before. The claims may be read before
    /// the node, and a node may come with such a device.
    fn tell_given_out(&mut self, name: &str, gpu: &str) {
        let node = self.cluster.node(name);
        let device = node.and_then(|node| node.device(gpu));
        let (Some(device), Some(claim)) = (device, self.given_out.get(gpu)) else {
            return;
        };
        let problem = is_given_out(gpu, claim, device.used().slots);
        self.notices.push(Notice::GivenOut {
            node: name.to_owned(),
            problem,
        });
    }

    /// These GPUs are given out by other drivers, each to the claim that is named; no others are.
    pub fn set_given_out(&mut self, given_out: BTreeMap<String, String>) {
        let before = std::mem::replace(&mut self.given_out, given_out);
        let changed: Vec<String> = before
            .keys()
            .chain(self.given_out.keys())
            .filter(|gpu| before.contains_key(*gpu) != self.given_out.contains_key(*gpu))
            .cloned()
            .collect();
        if changed.is_empty() {
            return;
        }
        let nodes: Vec<(Arc<str>, Arc<Node>)> = self
            .nodes
            .iter()
            .map(|(name, node)| (Arc::clone(name), Arc::clone(node)))
            .collect();
        for (name, node) in nodes {
            let Some(state) = self.cluster.node(&name) else {
                continue;
            };
            if !changed.iter().any(|gpu| state.device(gpu).is_some()) {
                continue;
            }
            self.take_node(Arc::clone(&name), node);
            // No event of the node shows this.
            self.freed(name);
        }
    }

    /// The node is gone. Pods keep their devices there, in case it returns.
    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.broken_nodes.remove(name);
        self.cluster.remove_node(name);
        self.settle_claims_on(&name.into(), Vec::new());
    }

    /// A list of all nodes is complete: a node that is not in it does not exist.
    pub fn keep_nodes(&mut self, listed: &HashSet<Arc<str>>) {
        let gone: Vec<Arc<str>> = self
            .nodes
            .keys()
            .filter(|name| !listed.contains(*name))
            .cloned()
            .collect();
        for name in gone {
            self.remove_node(&name);
        }
    }

    /// Takes in a quota.
    pub fn set_quota(&mut self, quota: &ResourceQuota) {
        let (namespace, name) = named(quota);
        let (limits, problems) = quota::limits(quota, &self.vendors);
        for problem in problems {
            self.notices.push(Notice::QuotaBroken {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                problem: format!("{problem}; the line limits nothing"),
            });
        }
        self.cluster
            .set_quota(namespace, name, &scopes(quota), &limits);
        if limits.is_empty() {
            self.quotas.remove(&(namespace.to_owned(), name.to_owned()));
        } else {
            let mut kept = quota.clone();
            kept.metadata.managed_fields = None;
            self.quotas
                .insert((namespace.to_owned(), name.to_owned()), kept);
        }
        self.quota_changed(namespace);
    }

    /// The quota is gone.
    pub fn remove_quota(&mut self, namespace: &str, name: &str) {
        self.cluster.remove_quota(namespace, name);
        self.quotas.remove(&(namespace.to_owned(), name.to_owned()));
        self.quota_changed(namespace);
    }

    /// kube-scheduler does not watch quotas; an annotation of any node makes it try again.
    fn quota_changed(&mut self, namespace: &str) {
        let waits = self
            .waiting
            .values()
            .any(|waiting| waiting.pod.namespace == namespace);
        if waits && let Some(node) = self.nodes.keys().min().cloned() {
            self.freed(node);
        }
    }
}

fn is_given_out(gpu: &str, claim: &str, containers: u32) -> String {
    let beside = match containers {
        0 => String::new(),
        1 => "; one container of vgpu holds a share of it, and both use it now".to_owned(),
        more => format!("; {more} containers of vgpu hold shares of it, and all use it now"),
    };
    format!(
        "GPU {gpu} is given out to ResourceClaim {claim}: it takes no pods until that claim is gone{beside}. Let one \
         driver give out a node's GPUs"
    )
}

fn labels_of(node: &Node) -> Option<&String> {
    node.metadata.annotations.as_ref()?.get(DEVICE_LABELS)
}
