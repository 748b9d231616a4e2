//! Makes kube-scheduler try pods again that it refused without calling the extender. Decides when and how; the caller
//! decides which pod.
//!
//! kube-scheduler tries such a pod again when a node's allocatable amounts grow, if the pod then fits by *all* of its
//! requests. That check counts the extender's own resources (`nvidia.com/gpumem`), although the filter ignores them,
//! and no node has any. So a pod that was refused for its count of slots is not tried again when slots are added. But
//! when a pod loses its nominated node, kube-scheduler tries all refused pods of that priority and below. So here a pod
//! without a node is nominated for a node, and then for none. docs/decisions/0007-a-pod-is-nominated-to-be-tried.md
//! An older kube-scheduler does not react to that, so `pods` annotates the refused pods instead.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use kube_api::object::Pod;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::pods::RefusedPods;
use super::{Announced, CALL, DELAY, count, outcome_of, unanswered};

/// The pauses between nudges while the pod has no node: kube-scheduler's watch of the node may lag behind ours, and
/// then it judges the pod by the old state of the node.
const AGAIN: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(8)];

/// The least time between any two nudges, because each makes kube-scheduler try many pods.
const EVERY: Duration = Duration::from_secs(1);

/// The longest pause after calls that failed.
const MOST_PAUSE: Duration = Duration::from_secs(30);

/// A pod to nudge.
#[derive(Debug, Clone)]
struct Nudge {
    pod: placement::Pod,
    node: String,
    at: Instant,
    /// How many times it has been nudged.
    done: usize,
}

/// The state shared by the ledger and the task.
#[derive(Debug, Default)]
pub(super) struct Nudges {
    next: Mutex<Option<Nudge>>,
    news: Notify,
}

impl Nudges {
    /// Asks for a nudge of the pod, because the node has more slots. Replaces a pod that waits: one nudge makes
    /// kube-scheduler try all of them.
    pub(super) fn want(&self, node: &str, pod: &placement::Pod) {
        let mut next = self.next.lock();
        let waiting = next.as_ref().map(|waiting| (waiting.at, waiting.done));
        let at = due(waiting, Instant::now() + DELAY);
        *next = Some(Nudge {
            pod: pod.clone(),
            node: node.to_owned(),
            at,
            done: 0,
        });
        drop(next);
        self.news.notify_one();
    }
}

/// When the next nudge is due that was asked for just now and would be due at `at`. `waiting`: when the waiting one is
/// due, and how many times it was done. The time of a first nudge that waits stays, so that frequent news cannot postpone
/// it for ever. One that is only repeated says nothing about the news.
fn due(waiting: Option<(Instant, usize)>, at: Instant) -> Instant {
    match waiting {
        Some((waiting_at, 0)) => waiting_at.min(at),
        _ => at,
    }
}

/// Whether the pod is still the one that was refused, and no node was found for it or is kept for it.
fn needs_nudge(pod: &Pod, uid: &str) -> bool {
    let is_refused = pod
        .status
        .conditions
        .iter()
        .any(|one| one.kind == "PodScheduled" && one.status == "False");
    pod.metadata.uid.as_deref() == Some(uid)
        && pod.metadata.deletion_timestamp.is_none()
        && is_refused
        && pod.spec.node_name.is_empty()
        && pod.status.nominated_node_name.is_empty()
}

/// Runs until it is dropped.
pub(super) async fn run(
    client: kube::Client,
    nudges: Arc<Nudges>,
    refused: Arc<RefusedPods>,
    woken: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
) {
    // While the answer is not known, the ledger has to list the refused pods at each change. One that fails is repeated
    // when there is something to announce.
    drop(refused.reacts(&client).await);
    let mut earliest = Instant::now();
    let mut pause = EVERY;
    loop {
        let Some(due) = nudges
            .next
            .lock()
            .as_ref()
            .map(|next| next.at.max(earliest))
        else {
            nudges.news.notified().await;
            continue;
        };
        if due > Instant::now() {
            tokio::select! {
                () = sleep_until(due) => {}
                () = nudges.news.notified() => {}
            }
            continue;
        }
        let Some(nudge) = nudges.next.lock().take() else {
            continue;
        };
        let outcome = match refused.reacts(&client).await {
            Ok(reacts) if reacts.to_nominations => nudge_pod(&client, &nudge).await,
            Ok(_) => refused.announce(&client).await,
            Err(outcome) => outcome,
        };
        earliest = Instant::now() + EVERY;
        let later = match outcome {
            Announced::Done => {
                count(&woken);
                pause = EVERY;
                AGAIN.get(nudge.done).map(|after| (*after, nudge.done + 1))
            }
            Announced::Needless => None,
            Announced::Failed(reason) => {
                count(&failed);
                tracing::debug!(pod = %nudge.pod.name, %reason, "refused pods not tried again yet");
                pause = (pause * 2).min(MOST_PAUSE);
                Some((pause, nudge.done))
            }
        };
        if let Some((after, done)) = later {
            let at = Instant::now() + after;
            nudges
                .next
                .lock()
                .get_or_insert(Nudge { at, done, ..nudge });
        }
    }
}

/// Nominates the pod for the node, and then for none. kube-scheduler reacts only to the second change. The first
/// reserves room for the pod on the node, but only for the time between the two calls.
async fn nudge_pod(client: &kube::Client, nudge: &Nudge) -> Announced {
    let api: Api<Pod> = Api::namespaced(client.clone(), &nudge.pod.namespace);
    let pod = match timeout(CALL, api.get_opt(&nudge.pod.name)).await {
        Ok(Ok(Some(pod))) => pod,
        Ok(Ok(None)) => return Announced::Needless,
        Ok(Err(error)) => return outcome_of(&nudge.pod.name, &error),
        Err(_elapsed) => return unanswered(),
    };
    if !needs_nudge(&pod, &nudge.pod.uid) {
        return Announced::Needless;
    }
    let named = nominate(&api, &nudge.pod, json!(nudge.node), Some(&pod)).await;
    if named == Announced::Needless {
        return named;
    }
    // The nomination reserves room for the pod, so it is withdrawn even if the outcome of the first call is unknown.
    let mut pause = EVERY;
    loop {
        match nominate(&api, &nudge.pod, Value::Null, None).await {
            Announced::Failed(reason) => {
                tracing::debug!(pod = %nudge.pod.name, %reason, "nomination not withdrawn yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MOST_PAUSE);
            }
            _ => return named,
        }
    }
}

async fn nominate(
    api: &Api<Pod>,
    pod: &placement::Pod,
    node: Value,
    unchanged: Option<&Pod>,
) -> Announced {
    let version = unchanged.and_then(|pod| pod.metadata.resource_version.as_deref());
    let metadata = match version {
        Some(version) => json!({ "uid": pod.uid, "resourceVersion": version }),
        None => json!({ "uid": pod.uid }),
    };
    let patch = Patch::Merge(json!({
        "metadata": metadata,
        "status": { "nominatedNodeName": node },
    }));
    let params = PatchParams::default();
    match timeout(CALL, api.patch_status(&pod.name, &params, &patch)).await {
        Ok(Ok(_)) => Announced::Done,
        Ok(Err(error)) => outcome_of(&pod.name, &error),
        Err(_elapsed) => unanswered(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_nudge_keeps_its_time_and_a_repeated_one_gives_way() {
        let at = Instant::now();
        let (sooner, later) = (at - DELAY, at + DELAY);
        assert_eq!(due(None, at), at);
        assert_eq!(due(Some((sooner, 0)), at), sooner);
        assert_eq!(due(Some((later, 0)), at), at);
        assert_eq!(due(Some((sooner, 1)), at), at);
        assert_eq!(due(Some((later, 2)), at), at);
    }

    #[test]
    fn only_a_refused_pod_without_a_node_is_nudged() {
        let refused = json!({
            "metadata": { "name": "p", "uid": "u" },
            "status": { "conditions": [{ "type": "PodScheduled", "status": "False" }] },
        });
        let needs = |path: &str, value: Value| {
            let mut pod = refused.clone();
            if !path.is_empty() {
                let (object, key) = path.rsplit_once('/').unwrap();
                pod.pointer_mut(object).unwrap()[key] = value;
            }
            needs_nudge(&serde_json::from_value(pod).unwrap(), "u")
        };
        assert!(needs("", Value::Null));
        for (path, value) in [
            // Another pod of the same name, and one that is being deleted.
            ("/metadata/uid", json!("another")),
            ("/metadata/uid", Value::Null),
            ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            // It has a node, or one is kept for it.
            ("/spec", json!({ "nodeName": "n1" })),
            ("/status/nominatedNodeName", json!("n1")),
            // It was not refused, or not by a scheduler.
            ("/status/conditions", json!([])),
            (
                "/status/conditions",
                json!([{ "type": "PodScheduled", "status": "True" }]),
            ),
            (
                "/status/conditions",
                json!([{ "type": "Ready", "status": "False" }]),
            ),
        ] {
            assert!(!needs(path, value.clone()), "{path} {value}");
        }
    }
}
