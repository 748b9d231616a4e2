//! The pods of this node and what they hold: the plugin's own record, the kubelet and the API server asked
//! together, for the garbage collection and for the delivery. Never removes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use events::{About, Events};
use kube_api::vendor::Vendors;
use placement::Span;
use supervisor::instance::Labels;

use super::PluginSettings;
use super::allotments::{AllotmentStore, Opened};
use super::identity::{self, Served, is_over};
use super::metrics::PluginMetrics;
use super::pods::Lister;
use crate::collect::{LifeSources, LivingPod, SourceError};
use crate::delivery::Name;
use crate::own_pods::OwnPods;

/// The three sources. Clones share them.
#[derive(Clone)]
pub struct NodePods {
    node: String,
    served: Arc<[Served]>,
    vendors: Arc<Vendors>,
    events: Events,
    metrics: PluginMetrics,
    /// As the API server has them.
    pub(super) pods: OwnPods,
    pub(super) store: Arc<AllotmentStore>,
    pub(super) opened: Opened,
    pub(super) lister: Lister,
}

impl std::fmt::Debug for NodePods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodePods")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// The allotments and instances of living pods. Everything else may be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Living {
    /// Names of living containers' allotments, and of those of which nothing is known yet.
    pub names: BTreeSet<Name>,
    /// Names of the allotments whose pods are known, and so what those hold.
    pub given: BTreeSet<Name>,
    /// Positions of the instances that pods hold which are not over: GPU and position.
    pub instances: BTreeSet<(String, Span)>,
    /// Allotments made after this moment are not among them.
    pub as_of: Instant,
}

impl NodePods {
    /// Reads the plugin's record and starts the task that asks the kubelet. Needs a running tokio.
    pub fn open(
        settings: &PluginSettings,
        client: &kube::Client,
        vendors: &Arc<Vendors>,
        events: &Events,
        metrics: &PluginMetrics,
    ) -> Self {
        let (store, opened) = AllotmentStore::open(&settings.state.join("allotments.json"));
        let store = Arc::new(store);
        metrics.watch(Arc::clone(&store));
        Self {
            node: settings.node.clone(),
            served: settings.served.clone().into(),
            vendors: Arc::clone(vendors),
            pods: OwnPods::start(client, &settings.node),
            events: events.clone(),
            metrics: metrics.clone(),
            store,
            opened,
            lister: Lister::start(settings.pod_resources.clone(), metrics.clone()),
        }
    }

    /// The pods as the API server has them.
    pub fn watched(&self) -> OwnPods {
        self.pods.clone()
    }

    fn resources(&self) -> BTreeSet<&str> {
        self.served
            .iter()
            .map(|served| served.resource.as_str())
            .collect()
    }

    /// The pods of this node, as the API server has them.
    async fn at_server(&self) -> Result<Vec<kube_api::object::Pod>, SourceError> {
        self.pods
            .all()
            .await
            .map_err(|why| SourceError::ApiServer(why.to_string()))
    }

    /// The living pods. Both the kubelet and the API server have to say that a pod is gone, and have to answer.
    ///
    /// # Errors
    ///
    /// Which source did not answer. Nothing may be removed then.
    pub async fn living(&self) -> Result<Living, SourceError> {
        // Allotments made from here on are not among these, and count as living.
        let as_of = Instant::now();
        let all = self.store.all();
        let listed = self.lister.pods().await?;
        let pods = self.at_server().await?;
        let uids: BTreeSet<&str> = pods.iter().map(identity::uid).collect();
        let held: BTreeMap<&str, BTreeSet<String>> = self
            .resources()
            .into_iter()
            .map(|resource| {
                let holders = listed.holders(resource);
                let ids = holders
                    .into_iter()
                    .flat_map(|holder| holder.slots.into_values().flatten());
                (resource, ids.collect())
            })
            .collect();
        // A pod that is over stays in the API server for a while, and the scheduler has given its place to another.
        let over = |uid: &str| {
            pods.iter()
                .any(|pod| identity::uid(pod) == uid && is_over(pod))
        };
        let mut living = Living {
            names: BTreeSet::new(),
            given: BTreeSet::new(),
            instances: BTreeSet::new(),
            as_of,
        };
        // Which pod got a slot after the allotment that is looked at.
        let mut newer: BTreeMap<(&str, &str), Option<&str>> = BTreeMap::new();
        for lot in all.iter().rev() {
            let resource = lot.resource.as_str();
            let owner = lot
                .recipient
                .as_ref()
                .map(|recipient| recipient.uid.as_str());
            let passed_on = lot.ids.iter().all(|id| {
                let later = newer.get(&(resource, id.as_str()));
                later.is_some_and(|later| owner.is_none() || *later != owner)
            });
            let lives = match &lot.recipient {
                Some(recipient) => {
                    uids.contains(recipient.uid.as_str())
                        || (listed.has(&recipient.namespace, &recipient.pod) && !passed_on)
                }
                // The container is not known yet: the allotment lives until all its slots were allotted again.
                None => {
                    let held = held.get(resource);
                    !passed_on
                        || held.is_some_and(|held| lot.ids.iter().any(|id| held.contains(id)))
                }
            };
            if lot.recipient.is_some() {
                living.given.insert(Name(lot.name.clone()));
            }
            for id in &lot.ids {
                newer.entry((resource, id.as_str())).or_insert(owner);
            }
            if lives {
                living.names.insert(Name(lot.name.clone()));
                let recipients = lot
                    .recipient
                    .iter()
                    .filter(|recipient| !over(&recipient.uid));
                let shares = recipients.flat_map(|recipient| &recipient.shares);
                let places = shares.filter_map(|share| {
                    let cut = share.instance.as_ref()?;
                    Some((share.gpu.clone(), cut.span()))
                });
                living.instances.extend(places);
            }
        }
        Ok(living)
    }
}

impl LifeSources for NodePods {
    /// Names of the allotments whose slots the kubelet says are held.
    async fn in_use(&self) -> Result<BTreeSet<Name>, SourceError> {
        let all = self.store.all();
        let pods = self.lister.pods().await?;
        let mut names = BTreeSet::new();
        for resource in self.resources() {
            let holders = pods.holders(resource);
            let mut held: BTreeSet<&str> = holders
                .iter()
                .flat_map(|holder| holder.slots.values().flatten())
                .map(String::as_str)
                .collect();
            let of_resource = all.iter().rev().filter(|lot| lot.resource == resource);
            for lot in of_resource {
                // The newest that has a slot is the one that is held.
                if lot.ids.iter().any(|id| held.contains(id.as_str())) {
                    names.insert(Name(lot.name.clone()));
                    held.retain(|id| !lot.ids.iter().any(|of| of == id));
                }
            }
        }
        Ok(names)
    }

    /// The pods of this node that are not over.
    async fn pods(&self) -> Result<Vec<LivingPod>, SourceError> {
        let pods = self.at_server().await?;
        let living = pods.iter().filter(|pod| !is_over(pod));
        Ok(living
            .map(|pod| LivingPod {
                uid: identity::uid(pod).to_owned(),
                containers: identity::asking(pod, &self.served, &self.vendors),
            })
            .collect())
    }

    fn uncut(&self, of: Option<Labels>, reason: &str) {
        self.metrics.uncut();
        if let Some(of) = of {
            let about = About::pod(&of.namespace, &of.pod, &of.pod_uid);
            let what = format!(
                "container {} lets its usage region take up the node's disk, and it cannot be truncated: {reason}",
                of.container
            );
            let kind = events::Kind::Warning;
            self.events.pod(about, kind, "UsageRegionTooLong", what);
        }
    }
}
