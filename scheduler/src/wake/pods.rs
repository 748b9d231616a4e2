//! Makes a kube-scheduler of an older Kubernetes try refused pods again, by an annotation of each pod. Decides by the
//! API server's version which kube-schedulers need that.
//!
//! Any change of a pod's metadata makes kube-scheduler before 1.32 try that pod again. From 1.32 on it asks its plugins
//! first, and no plugin waits for an annotation of a pod.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube_api::keys::CAPACITY_FREED;
use kube_api::object::Pod;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use super::{Announced, CALL, EVERY, outcome_of, unanswered};

/// The most pods that one announcement annotates. kube-scheduler tries the others again by itself: after 60 to 90 s where
/// the chart sets `--pod-max-in-unschedulable-pods-duration` (Kubernetes 1.24 to 1.29), and after about five minutes
/// elsewhere.
pub const MOST_PODS: usize = 100;

/// How a kube-scheduler of a version is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reacts {
    /// An annotation of a node makes it try all pods again that the extender has refused (from 1.30 on).
    pub(super) to_nodes: bool,
    /// A withdrawn nomination makes it try pods again that it refused itself (from 1.33 on); before 1.32 an annotation of
    /// the pod does. 1.32 reacts to neither.
    pub(super) to_nominations: bool,
}

impl Reacts {
    /// By the second number of the API server's version. A server that does not say a number, or does not show its version,
    /// counts as a current one.
    fn of(minor: &str) -> Self {
        let minor = kube_api::version::number(minor).unwrap_or(u32::MAX);
        Self {
            to_nodes: minor >= 30,
            to_nominations: minor >= 32,
        }
    }

    fn needs_pods(self) -> bool {
        !(self.to_nodes && self.to_nominations)
    }
}

/// The pods that kube-scheduler has refused, and how it is told.
#[derive(Debug, Default)]
pub(super) struct RefusedPods {
    pods: Mutex<Vec<placement::Pod>>,
    reacts: OnceCell<Reacts>,
    /// The last value of an annotation.
    last: AtomicI64,
    /// One announcement at a time: two tasks make them.
    announces: tokio::sync::Mutex<()>,
}

impl RefusedPods {
    /// Sets the pods, the most important first. They are asked for only where they may be needed.
    pub(super) fn set(&self, pods: impl FnOnce() -> Vec<placement::Pod>) {
        if self.reacts.get().is_none_or(|reacts| reacts.needs_pods()) {
            *self.pods.lock() = pods();
        }
    }

    /// How this cluster's kube-scheduler is told. Asks the API server until it has answered once.
    pub(super) async fn reacts(&self, client: &kube::Client) -> Result<Reacts, Announced> {
        let ask = async {
            match timeout(CALL, client.apiserver_version()).await {
                Ok(Ok(version)) => Ok(Reacts::of(&version.minor)),
                Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403 | 404) => {
                    Ok(Reacts::of(""))
                }
                Ok(Err(error)) => Err(outcome_of("the API server's version", &error)),
                Err(_elapsed) => Err(unanswered()),
            }
        };
        self.reacts.get_or_try_init(|| ask).await.copied()
    }

    /// A value that no annotation had before, also for two in one millisecond, or after the clock was set back.
    pub(super) fn next_value(&self) -> String {
        let now = Timestamp::now().as_millisecond();
        let next = |last: i64| now.max(last + 1);
        // Relaxed: the value orders no other memory.
        let last = self
            .last
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(next(last))
            });
        // The closure always gives a value.
        let value = next(last.unwrap_or_else(|last| last));
        value.to_string()
    }

    /// Annotates the pods, one after the other. Stops at the first call without an answer.
    pub(super) async fn announce(&self, client: &kube::Client) -> Announced {
        let _alone = self.announces.lock().await;
        let pods = self.pods.lock().clone();
        let mut outcome = Announced::Needless;
        for pod in pods {
            match self.annotate(client, &pod).await {
                Announced::Done => outcome = Announced::Done,
                Announced::Needless => {}
                failed @ Announced::Failed(_) => return failed,
            }
            sleep(EVERY).await;
        }
        outcome
    }

    async fn annotate(&self, client: &kube::Client, pod: &placement::Pod) -> Announced {
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
        // The uid: another pod of this name is left alone.
        let patch = Patch::Merge(json!({
            "metadata": { "uid": pod.uid, "annotations": { CAPACITY_FREED: self.next_value() } }
        }));
        let params = PatchParams::default();
        match timeout(CALL, api.patch_metadata(&pod.name, &params, &patch)).await {
            Ok(Ok(_)) => Announced::Done,
            // Another pod has the name, or this one may not be changed: those behind it are told all the same.
            Ok(Err(kube::Error::Api(status)))
                if (400..500).contains(&status.code) && status.code != 429 =>
            {
                tracing::debug!(pod = %pod.name, reason = %status.message, "refused pod not annotated");
                Announced::Needless
            }
            Ok(Err(error)) => outcome_of(&pod.name, &error),
            Err(_elapsed) => unanswered(),
        }
    }
}

/// The longest time that an announcement of all pods takes when each call is answered at once.
const _: () = assert!(EVERY.as_millis() * MOST_PODS as u128 <= Duration::from_secs(5).as_millis());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_kube_schedulers_react_to_annotations_of_pods_alone() {
        let reacts = |minor| {
            let Reacts {
                to_nodes,
                to_nominations,
            } = Reacts::of(minor);
            (to_nodes, to_nominations)
        };
        assert_eq!(reacts("18+"), (false, false));
        assert_eq!(reacts("29"), (false, false));
        assert_eq!(reacts("30"), (true, false));
        assert_eq!(reacts("31-eks"), (true, false));
        assert_eq!(reacts("32"), (true, true));
        assert_eq!(reacts("37"), (true, true));
        assert_eq!(reacts(""), (true, true));
    }

    #[test]
    fn each_value_is_larger_than_the_one_before() {
        let refused = RefusedPods::default();
        let values: Vec<i64> = (0..1000)
            .map(|_| refused.next_value().parse().unwrap())
            .collect();
        assert!(values.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
