//! What an API server says of the cluster: nodes, pods, what was installed, and what it answers to a few questions.
//! Owns which of it is kept.
//!
//! Never keeps what is nobody's business: of other people's pods the variables that the checks name, of Secrets the one
//! certificate.

mod checks;
mod control;
mod doors;
mod gather;
mod nodes;
mod objects;
mod pods;
mod rights;
mod tls;
mod trim;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) use checks::CHECKS;
pub(super) use gather::gather;

/// What was seen of a cluster.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ClusterFacts {
    server: String,
    /// This machine's clock when the server was first asked, seconds since 1970.
    asked_unix: u64,
    /// The server's clock then.
    server_unix: Option<u64>,
    /// `/version`.
    version: Value,
    /// Namespace of the parts.
    namespace: Option<String>,
    /// Name of the scheduler, where it was given or found.
    scheduler_name: String,
    nodes: Vec<Value>,
    pods: Vec<Value>,
    quotas: Vec<Value>,
    namespaces: Vec<Value>,
    services: Vec<Value>,
    daemonsets: Vec<Value>,
    deployments: Vec<Value>,
    leases: Vec<Value>,
    configmaps: Vec<Value>,
    mutating: Vec<Value>,
    validating: Vec<Value>,
    /// What could not be listed: kind and why.
    unread: BTreeMap<String, String>,
    /// Certificates of the webhook's CA, PEM.
    ca: Option<String>,
    ca_secret: Option<String>,
    ca_error: Option<String>,
    dry_run: Option<DryRun>,
    /// What the accounts of the parts may do.
    access: Vec<Access>,
    access_error: Option<String>,
    /// Answers of the agents.
    metrics: Vec<Answer>,
    /// Kinds of hcs.io/v1alpha1 that the server has.
    hcs_kinds: Vec<String>,
    computenodes: Vec<Value>,
    /// Whether each pod of the assigner says that it is ready.
    assigners: Vec<Answer>,
}

/// A pod that was sent as a dry run, and what came back.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct DryRun {
    /// Namespace that it was for.
    namespace: String,
    /// What the server said no with.
    error: Option<String>,
    status: u16,
    /// The scheduler that the pod came back with.
    scheduler_name: Option<String>,
}

/// A right of an account.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Access {
    /// `scheduler`, `webhook` or `agent`.
    part: String,
    account: String,
    /// `patch pods`, `create leases.coordination.k8s.io in vgpu-system`.
    right: String,
    allowed: bool,
}

/// What an agent's port answers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Answer {
    pod: String,
    port: u16,
    status: u16,
    error: Option<String>,
    ours: bool,
    sick: Vec<String>,
    /// Whether the agent sees the driver; nothing where it does not say.
    driver_up: Option<bool>,
}
