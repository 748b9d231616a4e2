//! The pods of this node as the API server has them, kept by one watch for all parts of the plugin: the garbage
//! collection, the delivery, the exporter. Never lists for a single question.
//!
//! A watch may be a moment behind. A pod that the plugin has read by its name is therefore remembered here at once, and
//! stays until the watch says that it is gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::Api;
use kube_api::object::Pod;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::follow::{Told, follow};

/// How long a question waits for the first list.
const PATIENCE: Duration = Duration::from_secs(8);
/// A list from a cache may be this much behind: a pod that was read by its name stays as long.
const BEHIND: Duration = Duration::from_secs(600);

/// Why the pods of this node are not known.
#[derive(Debug, thiserror::Error)]
pub enum PodsUnknown {
    /// The API server cannot be watched, for this reason.
    #[error("{0}")]
    Down(String),
    /// Nothing has come from the API server yet.
    #[error("no answer from the API server within {} s", .0.as_secs())]
    NoAnswer(Duration),
}

/// The pods. Clones are the same.
#[derive(Clone)]
pub struct OwnPods(Arc<OwnPodsState>);

impl std::fmt::Debug for OwnPods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnPods").finish_non_exhaustive()
    }
}

struct OwnPodsState {
    known: Mutex<KnownPods>,
    /// Whether [`KnownPods`] is what the API server has; or why not.
    standing: watch::Sender<Freshness>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Freshness {
    /// Nothing has come yet.
    Waiting,
    Fresh,
    Down(String),
}

#[derive(Debug, Default)]
struct KnownPods {
    /// By uid.
    pods: BTreeMap<String, Pod>,
    /// When pods were read by their names, by uid.
    read: BTreeMap<String, Instant>,
    /// When pods were deleted, by uid: an answer from before does not bring one back.
    gone: BTreeMap<String, Instant>,
}

impl KnownPods {
    fn take(&mut self, told: Told<Pod>, now: Instant) {
        match told {
            Told::All(pods) => {
                self.read
                    .retain(|_, at| now.saturating_duration_since(*at) < BEHIND);
                let read = &self.read;
                self.pods.retain(|uid, _| read.contains_key(uid));
                for pod in pods {
                    self.put(pod);
                }
            }
            Told::Put(pod) => self.put(pod),
            Told::Gone(pod) => {
                let uid = pod.metadata.uid.unwrap_or_default();
                self.pods.remove(&uid);
                self.read.remove(&uid);
                self.gone
                    .retain(|_, at| now.saturating_duration_since(*at) < BEHIND);
                self.gone.insert(uid, now);
            }
            Told::Up | Told::Down(_) => {}
        }
    }

    /// A pod that was read by its name.
    fn saw(&mut self, pod: Pod, now: Instant) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if !self.gone.contains_key(&uid) {
            self.put(pod);
            self.read.insert(uid, now);
        }
    }

    /// An older word on a pod changes nothing.
    fn put(&mut self, pod: Pod) {
        let version = |pod: &Pod| -> Option<u64> {
            let version = pod.metadata.resource_version.as_deref()?;
            version.parse().ok()
        };
        let Some(uid) = pod.metadata.uid.clone() else {
            return;
        };
        if let Some(known) = self.pods.get(&uid)
            && version(known) > version(&pod)
        {
            return;
        }
        self.pods.insert(uid, pod);
    }
}

impl OwnPods {
    /// Starts the watch. Needs a running tokio.
    #[must_use]
    pub fn start(client: &kube::Client, node: &str) -> Self {
        let state = Arc::new(OwnPodsState {
            known: Mutex::default(),
            standing: watch::Sender::new(Freshness::Waiting),
        });
        let api: Api<Pod> = Api::all(client.clone());
        let told = follow(client.clone(), api, &format!("spec.nodeName={node}"));
        tokio::spawn(keep(Arc::downgrade(&state), told));
        Self(state)
    }

    /// All pods of the node, those that are over among them.
    ///
    /// # Errors
    ///
    /// Why they are not known: the API server does not answer.
    pub async fn all(&self) -> Result<Vec<Pod>, PodsUnknown> {
        let mut standing = self.0.standing.subscribe();
        let known = timeout(
            PATIENCE,
            standing.wait_for(|standing| *standing != Freshness::Waiting),
        );
        match known.await.map(|known| known.map(|known| known.clone())) {
            Ok(Ok(Freshness::Fresh)) => Ok(self.0.known.lock().pods.values().cloned().collect()),
            Ok(Ok(Freshness::Down(why))) => Err(PodsUnknown::Down(why)),
            _ => Err(PodsUnknown::NoAnswer(PATIENCE)),
        }
    }

    /// The pod of this uid, if it is known.
    pub fn find(&self, uid: &str) -> Option<Pod> {
        self.0.known.lock().pods.get(uid).cloned()
    }

    /// Remembers a pod that was read by its name.
    pub fn saw(&self, pod: &Pod) {
        self.0.known.lock().saw(pod.clone(), Instant::now());
    }
}

async fn keep(state: std::sync::Weak<OwnPodsState>, mut told: mpsc::Receiver<Told<Pod>>) {
    loop {
        // The wait holds the state no longer than a moment, so that the watch ends with its last owner.
        let next = timeout(PATIENCE, told.recv()).await;
        let Some(state) = state.upgrade() else {
            return;
        };
        let Ok(next) = next else { continue };
        let Some(told) = next else { return };
        let standing = match &told {
            Told::All(_) | Told::Up => Some(Freshness::Fresh),
            Told::Down(why) => {
                tracing::warn!(why, "cannot watch the pods of this node");
                Some(Freshness::Down(why.clone()))
            }
            Told::Put(_) | Told::Gone(_) => None,
        };
        state.known.lock().take(told, Instant::now());
        if let Some(standing) = standing {
            state.standing.send_if_modified(|known| {
                let changed = *known != standing;
                *known = standing;
                changed
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, version: u64) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_owned());
        pod.metadata.resource_version = Some(version.to_string());
        pod
    }

    fn uids(known: &KnownPods) -> Vec<&str> {
        known.pods.keys().map(String::as_str).collect()
    }

    #[test]
    fn pod_that_was_read_by_its_name_outlives_an_older_list() {
        let (mut known, now) = (KnownPods::default(), Instant::now());
        known.take(Told::All(vec![pod("a", 1), pod("b", 2)]), now);
        known.saw(pod("c", 9), now);

        known.take(Told::All(vec![pod("a", 1)]), now);

        assert_eq!(uids(&known), ["a", "c"]);
        // An older event of a pod that was read since changes nothing.
        known.take(Told::Put(pod("c", 8)), now);
        assert_eq!(known.pods["c"], pod("c", 9));
        known.take(Told::All(vec![pod("a", 1)]), now + BEHIND);
        assert_eq!(uids(&known), ["a"]);
    }

    #[test]
    fn deleted_pod_is_gone_though_it_was_read() {
        let (mut known, now) = (KnownPods::default(), Instant::now());
        known.saw(pod("c", 9), now);

        known.take(Told::Gone(pod("c", 10)), now);

        assert!(uids(&known).is_empty());
        // The answer was on its way when the pod was deleted.
        known.saw(pod("c", 9), now);
        assert!(uids(&known).is_empty());
    }
}
