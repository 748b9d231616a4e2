//! Keeps the pods of each claim in the labels of its directories, where attestation reads them: the kubelet asks for a
//! claim once, and says nothing of the pods that use it later.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube_api::object::Pod;
use supervisor::instance::{ClaimLabel, Labels};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::checkpoint::{Checkpoint, Ready};
use super::{api, part_name};
use crate::delivery::Delivery;
use crate::own_pods::OwnPods;

/// Between two looks, which ask the API server only about a claim with a new pod. Attestation confirms a verdict after
/// ten seconds.
const AGAIN: Duration = Duration::from_secs(2);

/// The claims, their pods and their directories.
pub(super) struct Sharers {
    pub(super) client: kube::Client,
    pub(super) delivery: Arc<Delivery>,
    pub(super) checkpoint: Arc<Checkpoint>,
    pub(super) pods: OwnPods,
}

/// What a look at a claim comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// Its labels name all its pods.
    Nothing,
    /// Its directory has been labelled by an earlier release.
    Label(ClaimLabel),
    /// A pod names it that its labels do not: the API server says which pods it is reserved for.
    Ask,
}

/// Compares a claim's labels with the pods that name the claim.
fn next(uid: &str, ready: &Ready, labels: &Labels, pods: &[Pod]) -> Next {
    let Some(label) = &labels.claim else {
        return Next::Label(ClaimLabel {
            name: ready.name.clone(),
            uid: uid.to_owned(),
            pods: vec![labels.pod_uid.clone()],
        });
    };
    let names_it = |pod: &&Pod| {
        let claims = pod.spec.resource_claims.iter();
        let mut names = claims.filter_map(|claim| claim.resource_claim_name.as_deref());
        pod.metadata.namespace.as_deref() == Some(&ready.namespace)
            && names.any(|name| name == ready.name)
    };
    let known: BTreeSet<&str> = label.pods.iter().map(String::as_str).collect();
    let mut uids = pods
        .iter()
        .filter(names_it)
        .filter_map(|pod| pod.metadata.uid.as_deref());
    if uids.all(|uid| known.contains(uid)) {
        Next::Nothing
    } else {
        Next::Ask
    }
}

impl Sharers {
    /// Looks for as long as the task lives.
    pub(super) async fn run(self) {
        loop {
            sleep(AGAIN).await;
            self.look().await;
        }
    }

    async fn look(&self) {
        // Without the API server there are no new pods either.
        let Ok(pods) = self.pods.all().await else {
            return;
        };
        for (uid, ready) in self.checkpoint.all() {
            let names = (0..ready.parts.len()).map(|at| part_name(&uid, at));
            for name in names {
                let Some(labels) = self.delivery.labels(&name) else {
                    continue;
                };
                let label = match next(&uid, &ready, &labels, &pods) {
                    Next::Nothing => continue,
                    Next::Label(label) => label,
                    Next::Ask => match self.reserved(&uid, &ready).await {
                        Some(pods) => ClaimLabel {
                            name: ready.name.clone(),
                            uid: uid.clone(),
                            pods,
                        },
                        None => continue,
                    },
                };
                let (delivery, of) = (Arc::clone(&self.delivery), name.clone());
                let written = spawn_blocking(move || delivery.label_claim(&of, &label)).await;
                if let Ok(Err(error)) = written {
                    tracing::warn!(%name, %error, "cannot write which pods use the claim");
                }
            }
        }
    }

    /// The uids of the pods for which the API server has the claim reserved.
    async fn reserved(&self, uid: &str, ready: &Ready) -> Option<Vec<String>> {
        let claim = api::claim(&self.client, &ready.namespace, &ready.name).await;
        let claim = claim
            .ok()
            .filter(|it| it.metadata.uid.as_deref() == Some(uid))?;
        let consumers = claim.status?.reserved_for.unwrap_or_default();
        let pods = consumers.into_iter().filter(|it| it.resource == "pods");
        Some(pods.map(|it| it.uid).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, namespace: &str, claim: &str) -> Pod {
        let pod = json!({
            "metadata": {"name": uid, "namespace": namespace, "uid": uid},
            "spec": {"resourceClaims": [{"name": "share", "resourceClaimName": claim}]},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn claim_with_a_new_pod_is_asked_about_once() {
        let ready = Ready {
            namespace: String::from("default"),
            name: String::from("common"),
            parts: Vec::new(),
        };
        let mut labels = Labels {
            pod_uid: String::from("p1"),
            ..Labels::default()
        };
        let label = |pods: &[&str]| ClaimLabel {
            name: String::from("common"),
            uid: String::from("u1"),
            pods: pods.iter().map(|uid| (*uid).to_owned()).collect(),
        };
        let mut pods = vec![
            pod("p1", "default", "common"),
            pod("p3", "other", "common"),
            pod("p4", "default", "else"),
        ];
        assert_eq!(
            next("u1", &ready, &labels, &pods),
            Next::Label(label(&["p1"]))
        );
        labels.claim = Some(label(&["p1"]));
        assert_eq!(next("u1", &ready, &labels, &pods), Next::Nothing);

        pods.push(pod("p2", "default", "common"));

        assert_eq!(next("u1", &ready, &labels, &pods), Next::Ask);
        labels.claim = Some(label(&["p1", "p2"]));
        assert_eq!(next("u1", &ready, &labels, &pods), Next::Nothing);
        // A pod that has ended stays in the labels: its uid is never given again.
        pods.clear();
        assert_eq!(next("u1", &ready, &labels, &pods), Next::Nothing);
    }
}
