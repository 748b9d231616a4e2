//! The agent's sign of life: a Lease of its own, renewed while the agent knows its GPUs. It is small and in
//! the agent's namespace, and no annotation is rewritten for it. Never decides what its age means.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;
use sha2::Digest as _;

use crate::node_gpus::Inventories;

/// How long a Lease holds, and how often it is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long it holds.
    pub duration: Duration,
    /// It is renewed about this often; each time a tenth earlier or later, so that agents do not march in step.
    pub renew: Duration,
}

impl Default for Terms {
    /// 5,000 nodes are 125 small writes a second.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(120),
            renew: Duration::from_secs(40),
        }
    }
}

/// Letters of a name that the API server takes.
const MOST_LETTERS: usize = 253;
/// Letters of a label's value.
const MOST_LABEL: usize = 63;

/// Name of the Lease of this node's agent.
pub fn name(node: &str) -> String {
    let name = format!("vgpu-agent-{node}");
    if name.len() <= MOST_LETTERS {
        return name;
    }
    let hash = sha2::Sha256::digest(node.as_bytes());
    let hash: String = hash
        .iter()
        .take(5)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let kept: String = name.chars().take(MOST_LETTERS - 11).collect();
    format!("{}-{hash}", kept.trim_end_matches(['-', '.']))
}

/// A number from 0 to 1 by which agents that started together drift apart.
pub(super) fn jitter() -> f64 {
    f64::from(Timestamp::now().subsec_nanosecond() % 1_000_000) / 1_000_000.0
}

/// Longest wait for one call: a server (or a proxy before it) may accept a request and never answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Why a call of the API server came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// It answered with an error, or cannot be reached.
    #[error("{0}")]
    Refused(kube::Error),
    /// It did not answer in time.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    NoAnswer,
}

/// The outcome of a call, or that there was no answer in time.
pub(super) async fn in_time<T>(
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(PATIENCE, call).await {
        Ok(done) => done.map_err(CallError::Refused),
        Err(_) => Err(CallError::NoAnswer),
    }
}

/// Renews the Lease for as long as the inventory thread runs; after a failure sooner than otherwise.
pub(super) async fn keep(
    client: kube::Client,
    namespace: String,
    node: String,
    terms: Terms,
    inventories: Inventories,
) {
    let leases: Api<Lease> = Api::namespaced(client, &namespace);
    let mut failed = false;
    // `has_changed` fails once the thread that keeps the GPUs is gone: then this agent is none.
    while inventories.has_changed().is_ok() {
        let known = inventories.borrow().is_some();
        let mut pause = terms.renew.mul_f64(0.9 + 0.2 * jitter());
        if known {
            match in_time(renew(&leases, &node, terms)).await {
                Ok(()) => failed = false,
                Err(error) => {
                    if !failed {
                        tracing::warn!(%node, %namespace, %error, "cannot renew the agent's Lease; tried again");
                    }
                    failed = true;
                    pause /= 4;
                }
            }
        } else {
            // The first renewal comes as soon as the GPUs are known.
            pause = pause.min(Duration::from_secs(1));
        }
        tokio::time::sleep(pause).await;
    }
}

/// By which the Leases of agents are found.
fn labels(node: &str) -> BTreeMap<&'static str, &str> {
    let mut labels = BTreeMap::from([
        ("app.kubernetes.io/name", "vgpu"),
        ("app.kubernetes.io/component", "agent"),
    ]);
    if node.len() <= MOST_LABEL {
        labels.insert("vgpu.io/node", node);
    }
    labels
}

async fn renew(leases: &Api<Lease>, node: &str, terms: Terms) -> kube::Result<()> {
    let name = name(node);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": name, "labels": labels(node) },
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": terms.duration.as_secs().max(1),
            "renewTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        },
    });
    let writing = PatchParams::apply("vgpu-monitor").force();
    leases.patch(&name, &writing, &Patch::Apply(lease)).await?;
    Ok(())
}

/// Takes the Lease away, if it is there.
pub(super) async fn remove(client: kube::Client, namespace: &str, node: &str) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    match leases.delete(&name(node), &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::codegen::http;

    #[test]
    fn lease_name_comes_from_the_node_and_long_names_stay_unique() {
        assert_eq!(name("gpu-7.example.com"), "vgpu-agent-gpu-7.example.com");
        let long = |last: char| format!("{}{last}", "n".repeat(252));
        let (one, other) = (name(&long('a')), name(&long('b')));
        assert!(one.len() <= 253 && other.len() <= 253);
        assert_ne!(one, other);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_server_fails_the_call_and_not_the_loop() {
        let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = std::sync::Arc::clone(&asked);
        let silent = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::future::pending::<
                Result<http::Response<kube::client::Body>, std::convert::Infallible>,
            >()
        });
        let client = kube::Client::new(silent, "default");
        let (_gpus, inventories) = tokio::sync::watch::channel(Some(std::sync::Arc::default()));
        let keeping = keep(
            client,
            String::from("vgpu"),
            String::from("n"),
            Terms::default(),
            inventories,
        );

        // The clock is tokio's, and goes on by itself.
        assert!(
            tokio::time::timeout(Duration::from_secs(60), keeping)
                .await
                .is_err()
        );
        assert!(asked.load(std::sync::atomic::Ordering::Relaxed) > 1);
    }
}
