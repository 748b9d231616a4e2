//! The bodies that kube-scheduler and an extender exchange. Keys in any case are read, upper case is written.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::object::Pod;

/// `POST /filter` and `POST /prioritize`.
#[derive(Debug, Default)]
pub struct ExtenderArgs {
    /// The pod that looks for a node.
    pub pod: Option<Pod>,
    /// Whole nodes, each as it came; none where names are given.
    pub nodes: Option<Vec<Box<RawValue>>>,
    /// Names of nodes that the caller knows that we know.
    pub node_names: Option<Vec<String>>,
}

/// Answer to `POST /filter`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderFilterResult {
    /// `{"items": [...]}` where whole nodes were asked about.
    pub nodes: Option<NodeList>,
    /// Names where names were asked about.
    pub node_names: Option<Vec<String>>,
    /// Why not, by node; other pods leaving may cure it.
    pub failed_nodes: Option<BTreeMap<String, String>>,
    /// Why not, by node; no pod's leaving cures it.
    pub failed_and_unresolvable_nodes: Option<BTreeMap<String, String>>,
    /// Empty, or why the question could not be answered.
    pub error: String,
}

/// Whole nodes, each as it came.
#[derive(Debug, Default, Serialize)]
pub struct NodeList {
    /// The nodes.
    pub items: Vec<Box<RawValue>>,
}

/// `POST /bind`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ExtenderBindingArgs {
    /// Name of the pod.
    pub pod_name: String,
    /// Its namespace.
    pub pod_namespace: String,
    /// Its uid.
    pub pod_uid: String,
    /// The chosen node.
    pub node: String,
}

/// Answer to `POST /bind`, and to a body that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderBindingResult {
    /// Empty, or why not.
    pub error: String,
}

/// One line of the answer to `POST /prioritize`: 0 to 10, more is better.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority {
    /// Name of the node.
    pub host: String,
    /// 0 to 10.
    pub score: i64,
}

/// `POST /preempt`.
#[derive(Debug, Default)]
pub struct ExtenderPreemptionArgs {
    /// The pod that looks for a node.
    pub pod: Option<Pod>,
    /// By node, the uids of the pods that would be evicted, and how many disruption budgets that breaks. Whole pods
    /// (`NodeNameToVictims`) are read as their uids.
    pub victims: BTreeMap<String, Victims>,
}

/// Who would be evicted from a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Victims {
    /// Uids, in the order given.
    pub uids: Vec<String>,
    /// How many disruption budgets it breaks.
    pub num_pdb_violations: i64,
}
