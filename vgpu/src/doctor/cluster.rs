//! Facts of a cluster: its nodes, its pods, the installation, and the API server's answers to a few questions. Owns
//! which of them are kept.
//!
//! Never keeps private data: of other tenants' pods it keeps only the variables that the checks name, of Secrets only
//! one certificate.

mod checks;
mod control;
mod gather;
mod nodes;
mod objects;
mod optional_apis;
mod pods;
mod rights;
mod tls;
mod trim;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) use checks::CHECKS;
pub(super) use gather::gather;

/// The facts of a cluster.
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
    /// Name of the scheduler, if given or found.
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
    /// Kinds that could not be listed, with the reason.
    unread: BTreeMap<String, String>,
    /// Certificates of the webhook's CA, PEM.
    ca: Option<String>,
    ca_secret: Option<String>,
    ca_error: Option<String>,
    dry_run: Option<DryRun>,
    /// Rights of the parts' accounts.
    access: Vec<Access>,
    access_error: Option<String>,
    /// Answers of the agents.
    metrics: Vec<Answer>,
    /// Kinds of hcs.io/v1alpha1 that the server serves.
    hcs_kinds: Vec<String>,
    computenodes: Vec<Value>,
    /// The devices that drivers of dynamic resource allocation offer.
    slices: Vec<Value>,
    /// Whether each pod of the assigner reports ready.
    assigners: Vec<Answer>,
}

/// A pod that was created as a dry run, and the answer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct DryRun {
    /// The pod's namespace.
    namespace: String,
    /// The server's refusal.
    error: Option<String>,
    status: u16,
    /// The schedulerName of the returned pod.
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

/// The answer of an agent's port.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Answer {
    pod: String,
    port: u16,
    status: u16,
    error: Option<String>,
    ours: bool,
    sick: Vec<String>,
    /// Whether the agent sees the driver; `None` if it does not report it.
    driver_up: Option<bool>,
}
