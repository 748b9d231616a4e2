//! Attestation's calls to the API server: finding the pod of a uid, and evicting a pod. A task of its own; no other
//! part of the agent waits for it or breaks without it.
//!
//! The API server is asked whether it would evict (a dry run of `pods/eviction`), and the pod is then deleted. An
//! eviction does not tell the API server's policies on which node its pod is, and a deletion does: so an agent's token
//! ends pods of its own node alone. A dry run checks a disruption budget, and takes nothing off it: until the budget's
//! controller has seen the deletion, another eviction is allowed by the same budget.
//!
//! A pod whose eviction the API server refuses (a disruption budget allows none, or several budgets name the pod) is
//! deleted after a grace: the author of the pod may write budgets, and would otherwise decide how long it stays.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

/// Pods by uid: namespace and name.
pub type PodNames = HashMap<String, (String, String)>;

/// A pod that is to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evict {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its uid: another pod of that name stays.
    pub uid: String,
    /// Whether the API server only checks whether it would evict.
    pub dry_run: bool,
    /// Whether it is evicted for having asked for no GPU, by this node's records. The scheduler's annotations
    /// on the pod may say otherwise: then another device plugin has given it one.
    pub never_asked: bool,
    /// How long a refused eviction is respected before the pod is deleted.
    pub grace: Duration,
    /// The time of this request.
    pub at: Instant,
}

/// The other end of the task.
#[derive(Debug, Clone, Default)]
pub struct Cluster(Option<Arc<Link>>);

#[derive(Debug)]
struct Link {
    pods: Mutex<Arc<PodNames>>,
    wanted: Notify,
    evictions: mpsc::Sender<Evict>,
}

/// At most this many evictions wait.
const WAITING: usize = 16;
/// Pods are asked for at most this often.
const EVERY: Duration = Duration::from_secs(20);
/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);
/// How long the containers of an evicted pod may take to end, in seconds. Not the pod's own time, which its author
/// writes.
const END_WITHIN_S: u32 = 30;
/// The annotation with the GPUs that the scheduler gave a pod.
const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
/// More refused evictions than this are not remembered: then their grace begins again.
const MOST_REFUSED: usize = 1024;

impl Cluster {
    /// No API server to ask.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// Starts the tasks; needs a running tokio. They end when the last end is gone.
    #[must_use]
    pub fn start(client: kube::Client, node: &str) -> Self {
        let (evictions, asked) = mpsc::channel(WAITING);
        let link = Arc::new(Link {
            pods: Mutex::default(),
            wanted: Notify::new(),
            evictions,
        });
        tokio::spawn(name(client.clone(), node.to_owned(), Arc::downgrade(&link)));
        tokio::spawn(evict(client, node.to_owned(), asked));
        Self(Some(link))
    }

    /// The pods of the node as of the last time that a caller wanted a pod that was not in the list.
    #[must_use]
    pub fn pods(&self) -> Arc<PodNames> {
        self.0
            .as_ref()
            .map(|link| Arc::clone(&link.pods.lock()))
            .unwrap_or_default()
    }

    /// A uid is not among them.
    pub fn want(&self) {
        if let Some(link) = &self.0 {
            link.wanted.notify_one();
        }
    }

    /// Whether an API server can name pods.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.is_some()
    }

    /// Asks for an eviction; false if it cannot be requested now.
    #[must_use]
    pub fn evict(&self, evict: Evict) -> bool {
        let link = self.0.as_ref();
        link.is_some_and(|link| link.evictions.try_send(evict).is_ok())
    }
}

async fn name(client: kube::Client, node: String, link: std::sync::Weak<Link>) {
    let pods: Api<Pod> = Api::all(client);
    let of_node = ListParams::default()
        .fields(&format!("spec.nodeName={node}"))
        .match_any();
    while let Some(strong) = link.upgrade() {
        // The wait holds the link no longer than a moment, so that it ends with its last owner.
        let wanted = timeout(Duration::from_secs(5), strong.wanted.notified()).await;
        if wanted.is_err() {
            continue;
        }
        match timeout(CALL, pods.list_metadata(&of_node)).await {
            Ok(Ok(list)) => {
                let named = list.items.into_iter().filter_map(|pod| {
                    let meta = pod.metadata;
                    Some((meta.uid?, (meta.namespace?, meta.name?)))
                });
                *strong.pods.lock() = Arc::new(named.collect());
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "pods that hold GPUs have no names: cannot list this node's pods")
            }
            Err(_) => {
                tracing::warn!("pods that hold GPUs have no names: the API server does not answer")
            }
        }
        drop(strong);
        sleep(EVERY).await;
    }
}

async fn evict(client: kube::Client, node: String, mut asked: mpsc::Receiver<Evict>) {
    // When a pod's eviction was first requested, by uid; only of those that the API server refuses.
    let mut refused: HashMap<String, Instant> = HashMap::new();
    while let Some(evict) = asked.recv().await {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &evict.namespace);
        let Evict { namespace, pod, .. } = &evict;
        if evict.never_asked
            && let Some(why) = stays(&client, &node, &evict).await
        {
            tracing::warn!(%namespace, %pod, "not evicted: {why}");
            continue;
        }
        let answer = match refused.get(&evict.uid) {
            // Not asked again: a budget is respected for so long.
            Some(first) if ends(&evict, EvictionAnswer::HeldBack, *first) => {
                EvictionAnswer::HeldBack
            }
            _ => ask(&pods, &evict).await,
        };
        if answer == EvictionAnswer::HeldBack {
            remember(&mut refused, &evict);
        }
        let first = refused.get(&evict.uid).copied().unwrap_or(evict.at);
        if !ends(&evict, answer, first) {
            continue;
        }
        match timeout(CALL, pods.delete(pod, &ending(&evict))).await {
            Ok(Ok(_)) => {
                refused.remove(&evict.uid);
                if answer == EvictionAnswer::HeldBack {
                    tracing::warn!(
                        %namespace, %pod,
                        "deleted: it holds a GPU past its limits, and its eviction has been refused for {} s",
                        evict.grace.as_secs()
                    );
                } else {
                    tracing::warn!(%namespace, %pod, "evicted: it holds a GPU past its limits");
                }
            }
            Ok(Err(error)) => tracing::warn!(%namespace, %pod, %error, "not deleted"),
            Err(_) => {
                tracing::warn!(%namespace, %pod, "not deleted: the API server does not answer")
            }
        }
    }
}

/// What the API server says about an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EvictionAnswer {
    /// It would evict the pod now.
    Allowed,
    /// It does not evict the pod, and may later.
    HeldBack,
    /// There is no such pod, or this agent may not evict it.
    Refused,
}

/// Whether a pod is deleted after this answer. `first` is when its eviction was first held back.
fn ends(evict: &Evict, answer: EvictionAnswer, first: Instant) -> bool {
    let has_waited = || evict.at.saturating_duration_since(first) >= evict.grace;
    !evict.dry_run
        && match answer {
            EvictionAnswer::Allowed => true,
            EvictionAnswer::HeldBack => has_waited(),
            EvictionAnswer::Refused => false,
        }
}

/// Asks whether it would be evicted now.
async fn ask(pods: &Api<Pod>, evict: &Evict) -> EvictionAnswer {
    let Evict {
        namespace,
        pod,
        dry_run,
        ..
    } = evict;
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let body = eviction(evict);
    let asked = pods.create_subresource::<Value, Value>("eviction", pod, &parameters, &body);
    match timeout(CALL, asked).await {
        Ok(Ok(_)) => {
            if *dry_run {
                tracing::warn!(%namespace, %pod, dry_run, "would be evicted: it holds a GPU past its limits");
            }
            EvictionAnswer::Allowed
        }
        Ok(Err(error)) => {
            tracing::warn!(%namespace, %pod, dry_run, %error, "not evicted");
            if holds_back(&error) {
                EvictionAnswer::HeldBack
            } else {
                EvictionAnswer::Refused
            }
        }
        // The client tries again by itself what a budget refuses (429), for as long as the API server says.
        Err(_) => {
            tracing::warn!(
                %namespace, %pod, dry_run,
                "not evicted within {} s: by a disruption budget, or the API server does not answer",
                CALL.as_secs()
            );
            EvictionAnswer::HeldBack
        }
    }
}

fn remember(refused: &mut HashMap<String, Instant>, evict: &Evict) {
    if refused.len() >= MOST_REFUSED {
        refused.clear();
    }
    refused.entry(evict.uid.clone()).or_insert(evict.at);
}

/// The body of an `Eviction`. Not by `Api::evict`, whose options the API server does not know (`delete_options`): another
/// pod of that name would be evicted, and in its own time.
fn eviction(evict: &Evict) -> Value {
    let options = DeleteParams {
        dry_run: true,
        ..ending(evict)
    };
    json!({ "metadata": { "name": evict.pod }, "deleteOptions": options })
}

/// How an evicted pod ends: the pod of that uid, and soon.
fn ending(evict: &Evict) -> DeleteParams {
    DeleteParams {
        dry_run: evict.dry_run,
        grace_period_seconds: Some(END_WITHIN_S),
        preconditions: Some(Preconditions {
            uid: Some(evict.uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    }
}

/// Whether the API server refuses the eviction of a pod that exists, and that this agent may evict: by a disruption
/// budget (429), or because several budgets name the pod (500).
fn holds_back(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if !matches!(status.code, 401 | 403 | 404 | 409))
}

/// Why a pod is not evicted for having asked for no GPU: a scheduler has written on it that it was given some. Only
/// schedulers and agents may write that. A pod that cannot be read is left for the next request.
async fn stays(client: &kube::Client, node: &str, evict: &Evict) -> Option<String> {
    let pods: Api<Pod> = Api::all(client.clone());
    // By a list, because that is all that the exporter may read.
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let listed = match timeout(CALL, pods.list_metadata(&of_node)).await {
        Ok(Ok(listed)) => listed.items,
        Ok(Err(error)) => return Some(format!("its annotations cannot be read: {error}")),
        Err(_) => {
            return Some(String::from(
                "its annotations cannot be read: the API server does not answer",
            ));
        }
    };
    let mut uids = listed.into_iter().map(|pod| pod.metadata);
    let Some(pod) = uids.find(|pod| pod.uid.as_deref() == Some(evict.uid.as_str())) else {
        return Some(String::from("it is not on this node any more"));
    };
    let annotations = pod.annotations.unwrap_or_default();
    let is_given = annotations
        .get(ALLOCATED)
        .is_some_and(|devices| !devices.is_empty());
    is_given.then(|| {
        String::from(
            "its annotations say that a scheduler gave it devices, and this node's agent did not; is another device \
             plugin on this node?",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_is_deleted_when_its_eviction_is_allowed_or_its_grace_is_over() {
        let first = Instant::now();
        let after = |seconds, grace, dry_run| Evict {
            namespace: "ml".to_owned(),
            pod: "p".to_owned(),
            uid: "u".to_owned(),
            dry_run,
            never_asked: true,
            grace: Duration::from_secs(grace),
            at: first + Duration::from_secs(seconds),
        };
        for (seconds, grace, answer, expected) in [
            (0, 300, EvictionAnswer::Allowed, true),
            (0, 300, EvictionAnswer::HeldBack, false),
            (299, 300, EvictionAnswer::HeldBack, false),
            (300, 300, EvictionAnswer::HeldBack, true),
            (0, 0, EvictionAnswer::HeldBack, true),
            (300, 300, EvictionAnswer::Refused, false),
            (0, 0, EvictionAnswer::Refused, false),
        ] {
            let evict = after(seconds, grace, false);
            assert_eq!(
                ends(&evict, answer, first),
                expected,
                "{answer:?} {seconds}"
            );
            assert!(
                !ends(&after(seconds, grace, true), answer, first),
                "a dry run ends a pod"
            );
        }
    }
}
