//! The node agent: shows what every container on this node uses of its GPUs, for Prometheus, and divides
//! their time.
//!
//! Reads when it is asked, and keeps next to nothing between two scrapes. Never maps a file that a tenant can
//! write, never decides placement, and never lets one broken container, one sick GPU or one slow client hide
//! the others.

#![forbid(unsafe_code)]

mod api_answer;
mod durable;
mod families;
mod fence_log;
mod served_socket;
mod steps;
mod watched_gpus;

pub mod agent_args;

pub mod args;

pub mod exporter;

pub mod regions;

pub mod driver_files;

pub mod follow;

pub mod own_pods;

pub mod gpu;

pub mod hardware;

pub mod usage;

pub mod dcgm;

pub mod arbiter;

pub mod node;

pub mod first_kernel;

pub mod node_gpus;

pub mod inventory;

pub mod health;

pub mod hcs;

pub mod plugin;

pub mod front;

pub mod dra;

pub mod proto;

pub mod delivery;

pub mod collect;

pub mod attest;

pub mod reconcile;

pub mod fence;

pub mod program;

use std::sync::Arc;

use axum::Router;
use prometheus_client::registry::Registry;
use server::{Readiness, Traces};

use crate::node::{AttestationCollector, Node, NodeCollector};

/// Every route of the agent.
pub fn router(node: Arc<Node>, readiness: Readiness, traces: &Traces) -> Router {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(NodeCollector::new(
        Arc::clone(&node),
        readiness.clone(),
    )));
    if node.attested().is_some() {
        registry.register_collector(Box::new(AttestationCollector::new(node)));
    }
    traces.register(&mut registry);
    server::health(readiness).merge(server::metrics(registry))
}
