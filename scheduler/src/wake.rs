//! Tells kube-scheduler about room that it cannot know of: a reservation expired or was given back, but no pod or node
//! changed. kube-scheduler tries an unschedulable pod again only when something that the pod waits for changes, or
//! after five minutes; an annotation of a node is such a change. This module decides when and how often to write one;
//! the ledger knows whether there is room. `nudge` handles pods that kube-scheduler refused without calling the
//! extender. `pods` handles kube-schedulers of older versions, which do not react to either.

mod nudge;
mod pods;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use kube_api::keys::CAPACITY_FREED;
use kube_api::object::Node;
use parking_lot::Mutex;
pub use pods::MOST_PODS;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

/// The least time between two annotations of one node.
const EVERY_OF_NODE: Duration = Duration::from_secs(1);

/// The least time between any two annotations, so that a whole cluster that becomes free does not flood the API server.
const EVERY: Duration = Duration::from_millis(50);

/// The wait before the first annotation of a node, so that several releases are announced together, and a pod that was
/// refused just before counts as waiting.
const DELAY: Duration = Duration::from_millis(100);

/// The time limit of one call.
const CALL: Duration = Duration::from_secs(5);

/// Wakes pending pods. Clones share one queue.
#[derive(Clone)]
pub struct Waker(Option<Arc<WakerTasks>>);

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waker").field(&self.woken()).finish()
    }
}

struct WakerTasks {
    shared: Arc<WakerState>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Drop for WakerTasks {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

#[derive(Default)]
struct WakerState {
    /// Nodes with room that were not yet announced to kube-scheduler, and when to announce each.
    freed: Mutex<HashMap<String, Due>>,
    news: Notify,
    waiting: AtomicUsize,
    refused: Arc<pods::RefusedPods>,
    nudges: Arc<nudge::Nudges>,
    woken: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

#[derive(Debug, Clone, Copy)]
struct Due {
    at: Instant,
    pause: Duration,
}

impl Waker {
    /// Starts the tasks that announce. Needs a running tokio.
    pub fn start(client: kube::Client) -> Self {
        let shared = Arc::new(WakerState::default());
        let nudging = nudge::run(
            client.clone(),
            Arc::clone(&shared.nudges),
            Arc::clone(&shared.refused),
            Arc::clone(&shared.woken),
            Arc::clone(&shared.failed),
        );
        let task = Task {
            client,
            shared: Arc::clone(&shared),
            told: HashMap::new(),
        };
        Self(Some(Arc::new(WakerTasks {
            shared,
            tasks: [tokio::spawn(task.run()), tokio::spawn(nudging)],
        })))
    }

    /// Wakes no pods.
    pub fn silent() -> Self {
        Self(None)
    }

    /// Sets the number of pods that asked for devices, got none, and wait. While it is 0, no pod is woken. `refused`
    /// gives the pods that kube-scheduler has refused, the most important first and at most [`MOST_PODS`]; it is called
    /// only where kube-scheduler may be of an older version. The caller must hold the lock under which it refuses and
    /// frees, so that no pod is missed between the two.
    pub fn waiting(&self, pods: usize, refused: impl FnOnce() -> Vec<placement::Pod>) {
        if let Some(handle) = &self.0 {
            // Relaxed: the task reads it again DELAY after any news.
            handle.shared.waiting.store(pods, Ordering::Relaxed);
            handle.shared.refused.set(refused);
        }
    }

    /// Announces room on the node that no watched change of a pod or node shows to kube-scheduler. Returns at once.
    pub fn freed(&self, node: &str) {
        let Some(handle) = &self.0 else { return };
        let at = Instant::now() + DELAY;
        let pause = EVERY_OF_NODE;
        handle
            .shared
            .freed
            .lock()
            .entry(node.to_owned())
            .or_insert(Due { at, pause });
        handle.shared.news.notify_one();
    }

    /// Announces that the node's kubelet counts more slots than before. `pod` was refused by kube-scheduler; it and all
    /// pods of the same or lower priority are tried again. Returns at once.
    pub fn more_slots(&self, node: &str, pod: &placement::Pod) {
        if let Some(handle) = &self.0 {
            handle.shared.nudges.want(node, pod);
        }
    }

    /// How many announcements were made since the start.
    pub fn woken(&self) -> u64 {
        let woken = |handle: &Arc<WakerTasks>| handle.shared.woken.load(Ordering::Relaxed);
        self.0.as_ref().map_or(0, woken)
    }

    /// How many announcements failed at their first try.
    pub fn failed(&self) -> u64 {
        let failed = |handle: &Arc<WakerTasks>| handle.shared.failed.load(Ordering::Relaxed);
        self.0.as_ref().map_or(0, failed)
    }
}

fn count(counter: &AtomicU64) {
    // Relaxed: the counter orders no other memory.
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The outcome of one announcement, or of one call that is a part of it.
#[derive(Debug, PartialEq, Eq)]
enum Announced {
    Done,
    /// Nothing is to be announced: the object is gone, no longer needs it, or may not be changed.
    Needless,
    /// The API server did not answer, or another writer was faster.
    Failed(String),
}

/// `object`: what was to be read or changed.
fn outcome_of(object: &str, error: &kube::Error) -> Announced {
    match error {
        // The object is gone, or the write is forbidden: a retry would not help.
        kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404 | 422) => {
            tracing::warn!(object, reason = %status.message, "refused pods not tried again");
            Announced::Needless
        }
        error => Announced::Failed(error.to_string()),
    }
}

fn unanswered() -> Announced {
    Announced::Failed(format!("no answer within {CALL:?}"))
}

struct Task {
    client: kube::Client,
    shared: Arc<WakerState>,
    /// When each node was last announced; entries older than `EVERY_OF_NODE` are removed.
    told: HashMap<String, Instant>,
}

impl Task {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            let Some((node, due)) = self.earliest() else {
                shared.news.notified().await;
                continue;
            };
            if due.at > Instant::now() {
                tokio::select! {
                    () = sleep_until(due.at) => {}
                    () = shared.news.notified() => {}
                }
                continue;
            }
            shared.freed.lock().remove(&node);
            // Relaxed: see `Waker::waiting`.
            if shared.waiting.load(Ordering::Relaxed) == 0 {
                continue;
            }
            self.tell(node, due).await;
            tokio::time::sleep(EVERY).await;
        }
    }

    /// The node that may be announced first.
    fn earliest(&mut self) -> Option<(String, Due)> {
        let now = Instant::now();
        self.told
            .retain(|_, at| now.saturating_duration_since(*at) < EVERY_OF_NODE);
        let mut freed = self.shared.freed.lock();
        for (node, due) in freed.iter_mut() {
            if let Some(told) = self.told.get(node) {
                due.at = due.at.max(*told + EVERY_OF_NODE);
            }
        }
        freed
            .iter()
            .min_by(|a, b| a.1.at.cmp(&b.1.at).then_with(|| a.0.cmp(b.0)))
            .map(|(node, due)| (node.clone(), *due))
    }

    async fn tell(&mut self, node: String, due: Due) {
        let outcome = match self.shared.refused.reacts(&self.client).await {
            Ok(reacts) if reacts.to_nodes => self.annotate(&node).await,
            Ok(_) => {
                // It is about all pods, so it stands for every node that is freed by now.
                self.shared.freed.lock().clear();
                self.shared.refused.announce(&self.client).await
            }
            Err(outcome) => outcome,
        };
        let reason = match outcome {
            Announced::Done => {
                count(&self.shared.woken);
                self.told.insert(node, Instant::now());
                return;
            }
            Announced::Needless => return,
            Announced::Failed(reason) => reason,
        };
        count(&self.shared.failed);
        tracing::debug!(%node, %reason, "pending pods not woken yet");
        let pause = (due.pause * 2).min(Duration::from_secs(30));
        let at = Instant::now() + due.pause;
        self.shared
            .freed
            .lock()
            .entry(node)
            .or_insert(Due { at, pause });
    }

    async fn annotate(&self, node: &str) -> Announced {
        let api: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({
            "metadata": { "annotations": { CAPACITY_FREED: self.shared.refused.next_value() } }
        }));
        let params = PatchParams::default();
        match timeout(CALL, api.patch_metadata(node, &params, &patch)).await {
            Ok(Ok(_)) => Announced::Done,
            Ok(Err(error)) => outcome_of(node, &error),
            Err(_elapsed) => unanswered(),
        }
    }
}
