//! The remains of claims and of containers of the device plugin: the sources for the garbage collection. A claim's
//! directory is in use as long as the API server has the claim with an allocation, and a directory of either kind as
//! long as the kubelet has its pod. Never removes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use supervisor::instance::Labels;

use super::api;
use super::checkpoint::{Checkpoint, Ready};
use super::claim::Asked;
use super::part_name;
use crate::api_answer::Without;
use crate::collect::{LifeSources, LivingPod, SourceError};
use crate::delivery::{Delivery, Name};
use crate::own_pods::OwnPods;
use crate::plugin::Lister;
use crate::plugin::identity;

/// The kubelet, the API server and the record of claims.
pub(super) struct Leftovers {
    pub(super) client: kube::Client,
    pub(super) delivery: Arc<Delivery>,
    pub(super) checkpoint: Arc<Checkpoint>,
    pub(super) pods: OwnPods,
    pub(super) lister: Lister,
}

/// The claim of each part's directory.
pub(super) fn claims_by_part(claims: &BTreeMap<String, Ready>) -> BTreeMap<Name, (&str, &Ready)> {
    let parts = claims.iter().flat_map(|(uid, ready)| {
        let names = (0..ready.parts.len()).map(|at| part_name(uid, at));
        names.map(move |name| (name, (uid.as_str(), ready)))
    });
    parts.collect()
}

/// The claim of a directory: by its record, or where that was lost, by the directory's own labels.
fn claim_of(recorded: Option<(&str, &Ready)>, labels: Option<&Labels>) -> Option<Asked> {
    if let Some((uid, ready)) = recorded {
        return Some(Asked {
            namespace: ready.namespace.clone(),
            name: ready.name.clone(),
            uid: uid.to_owned(),
        });
    }
    let labels = labels?;
    let claim = labels.claim.as_ref()?;
    Some(Asked {
        namespace: labels.namespace.clone(),
        name: claim.name.clone(),
        uid: claim.uid.clone(),
    })
}

impl Leftovers {
    /// Whether the API server has the claim, given out.
    async fn is_given(&self, of: &Asked) -> Result<bool, SourceError> {
        let given = api::is_given(&self.client, &of.namespace, &of.name, &of.uid).await;
        given.map_err(|without| match without {
            Without::Gone => SourceError::ApiServer(String::from("the claim is gone")),
            Without::Refused(why) | Without::Away(why) => SourceError::ApiServer(why),
        })
    }
}

impl LifeSources for Leftovers {
    async fn in_use(&self) -> Result<BTreeSet<Name>, SourceError> {
        let listed = self.lister.pods().await?;
        let claims = self.checkpoint.all();
        let by_part = claims_by_part(&claims);
        let mut given: BTreeMap<String, bool> = BTreeMap::new();
        let mut names = BTreeSet::new();
        for name in self.delivery.holders().into_keys() {
            let labels = self.delivery.labels(&name);
            if let Some(claim) = claim_of(by_part.get(&name).copied(), labels.as_ref()) {
                let is_given = match given.get(&claim.uid) {
                    Some(known) => *known,
                    None => self.is_given(&claim).await?,
                };
                given.insert(claim.uid, is_given);
                if is_given {
                    names.insert(name);
                    continue;
                }
            }
            if labels.is_some_and(|of| listed.has(&of.namespace, &of.pod)) {
                names.insert(name);
            }
        }
        Ok(names)
    }

    async fn pods(&self) -> Result<Vec<LivingPod>, SourceError> {
        let pods = self
            .pods
            .all()
            .await
            .map_err(|why| SourceError::ApiServer(why.to_string()))?;
        let living = pods.iter().filter(|pod| !identity::is_over(pod));
        Ok(living
            .map(|pod| LivingPod {
                uid: identity::uid(pod).to_owned(),
                containers: 0,
            })
            .collect())
    }

    fn uncut(&self, of: Option<Labels>, reason: &str) {
        let of = of.unwrap_or_default();
        tracing::warn!(
            namespace = of.namespace,
            pod = of.pod,
            container = of.container,
            reason,
            "a container lets its usage region take up the node's disk, and it cannot be truncated"
        );
    }
}

#[cfg(test)]
mod tests {
    use supervisor::instance::ClaimLabel;

    use super::*;

    #[test]
    fn claim_whose_record_was_lost_is_known_by_its_directory() {
        let mut labels = Labels {
            namespace: String::from("default"),
            pod: String::from("first"),
            ..Labels::default()
        };
        // As the plugin and earlier releases label a directory.
        assert_eq!(claim_of(None, Some(&labels)), None);
        assert_eq!(claim_of(None, None), None);
        labels.claim = Some(ClaimLabel {
            name: String::from("common"),
            uid: String::from("u-common"),
            pods: vec![String::from("p1")],
        });

        let claim = claim_of(None, Some(&labels)).unwrap();

        assert_eq!(
            (claim.to_string().as_str(), claim.uid.as_str()),
            ("ResourceClaim default/common", "u-common")
        );
        let ready = Ready {
            namespace: String::from("other"),
            name: String::from("recorded"),
            parts: Vec::new(),
        };
        let claim = claim_of(Some(("u1", &ready)), Some(&labels)).unwrap();
        assert_eq!(claim.to_string(), "ResourceClaim other/recorded");
    }
}
