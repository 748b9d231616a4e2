//! The scheduler on a cluster in this process: `--embedded STATE.json`. The file is read once and never written. A
//! change made over `/api/v1` before a question is visible to that question.

use std::sync::Arc;
use std::time::Duration;

use admission::Context;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use embedded_cluster::{
    BoxFuture, Cluster, Event, Operation, Review, Selector, Start, Status, Target, Watch,
};
use kube_api::assigner::GPU_UUID;
use kube_api::object::Pod;
use kube_api::vendor::Vendors;
use parking_lot::Mutex;
use serde_json::Value;

use crate::assigner::Assigner;
use crate::events::Events;
use crate::filter::whole_pod;
use crate::view::{KINDS, NOT_ENDED};
use crate::{Company, Scheduler, Settings};

/// The user name with which the scheduler writes to its own cluster.
const OURSELVES: &str = "system:vgpu-scheduler";

/// How long a question waits for earlier changes.
const PATIENCE: Duration = Duration::from_secs(2);

/// The cluster, and the changes in it that the ledger must know.
#[derive(Debug)]
pub(crate) struct Embedded {
    cluster: Cluster,
    fences: Mutex<[Option<Fence>; 4]>,
    selector: String,
    /// The namespace of the Leases that count; `None` if claims do not count.
    claims: Option<String>,
}

/// Watches the changes of one kind, to know the last one.
#[derive(Debug)]
struct Fence {
    watch: Watch,
    last: u64,
}

impl Embedded {
    fn new(cluster: Cluster, settings: &Settings) -> Self {
        let embedded = Self {
            cluster,
            fences: Mutex::new([None, None, None, None]),
            selector: settings.node_selector.clone(),
            claims: settings
                .claims
                .as_ref()
                .map(|claims| claims.namespace.clone()),
        };
        // Opened before anything is listed, so that no change is missed between the two.
        let _versions = embedded.needed();
        embedded
    }

    pub(crate) fn version(&self) -> u64 {
        self.cluster.resource_version()
    }

    /// For each kind, the version of its last change that an open watch will deliver.
    fn needed(&self) -> [u64; 4] {
        let mut fences = self.fences.lock();
        let mut needed = [0; 4];
        for ((fence, kind), needed) in fences.iter_mut().zip(KINDS).zip(&mut needed) {
            if fence.is_none() {
                *fence = self.fence(kind);
            }
            let Some(open) = fence else { continue };
            loop {
                match open.watch.try_next() {
                    Ok(Some(Event::Object(_, object))) => {
                        open.last = open.last.max(object.resource_version());
                    }
                    Ok(Some(Event::Started(_))) => {}
                    Ok(None) => {
                        *needed = open.last;
                        break;
                    }
                    // The watch fell behind the changes that are kept.
                    Err(_) => {
                        *fence = None;
                        break;
                    }
                }
            }
        }
        needed
    }

    fn fence(&self, kind: &str) -> Option<Fence> {
        let (group, namespace) = match kind {
            "leases" => ("coordination.k8s.io", self.claims.as_deref()?),
            _ => ("", ""),
        };
        let target = Target::collection(&self.cluster.resource(group, kind).ok()?, namespace);
        let selector = match kind {
            "leases" => Selector::parse(GPU_UUID, "").ok()?,
            "nodes" => Selector::parse(&self.selector, "").ok()?,
            "pods" => Selector::parse("", NOT_ENDED).ok()?,
            _ => Selector::default(),
        };
        let version = self.cluster.resource_version();
        let watch = self
            .cluster
            .watch(&target, selector, Start::After(version))
            .ok()?;
        Some(Fence { watch, last: 0 })
    }
}

impl Scheduler {
    /// A scheduler on this cluster. A pod's devices are written at its filter, as well as with its binding.
    pub fn embedded(
        cluster: &Cluster,
        vendors: Arc<Vendors>,
        settings: Settings,
        events: impl FnOnce(kube::Client) -> Events,
    ) -> Self {
        let client = client(cluster);
        let settings = Settings {
            write_at_filter: true,
            reads_resource_claims: false,
            ..settings
        };
        if let Some(claims) = &settings.claims {
            let namespace = serde_json::json!({ "metadata": { "name": claims.namespace } });
            let made = cluster.import(&serde_json::json!({ "namespaces": [namespace] }));
            if let Err(problem) = made {
                tracing::warn!(%problem, "the namespace of the Leases cannot be made");
            }
        }
        let embedded = Embedded::new(cluster.clone(), &settings);
        let company = Company {
            events: events(client.clone()),
            ..Company::none()
        };
        Self::build(client, vendors, settings, company, Some(embedded))
    }

    /// Waits until the ledger has all changes of the embedded cluster up to now. Does nothing for a real cluster, where
    /// changes are known when the watch delivers them.
    pub(crate) async fn catch_up(&self) {
        let Some(embedded) = &self.0.embedded else {
            return;
        };
        let needed = embedded.needed();
        let mut progress = self.0.progress.subscribe();
        let caught_up = progress.wait_for(|progress| {
            progress
                .seen
                .iter()
                .zip(&needed)
                .all(|(seen, needed)| seen >= needed)
        });
        if tokio::time::timeout(PATIENCE, caught_up).await.is_err() {
            tracing::warn!("the ledger is behind the embedded cluster");
        }
    }

    /// In the embedded cluster, creates the pod of a question if it does not exist. Returns the pod's uid there.
    ///
    /// # Errors
    ///
    /// Why it cannot be created.
    pub(crate) fn make_pod(&self, pod: &Pod, body: &[u8]) -> Result<Option<String>, NotCreated> {
        let Some(embedded) = &self.0.embedded else {
            return Ok(None);
        };
        let cluster = &embedded.cluster;
        let pods = cluster.resource("", "pods").map_err(NotCreated::Unread)?;
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        if name.is_empty() {
            return Ok(None);
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let namespace = if namespace.is_empty() {
            "default"
        } else {
            namespace
        };
        let target = Target::object(&pods, namespace, name);
        if cluster.get(&target).is_err()
            && let Some(whole) = whole_pod(body)
        {
            // Another request may have created it at the same time, which is just as good.
            let made = cluster.import(&serde_json::json!({ "pods": [whole] }));
            if let Err(error) = made
                && cluster.get(&target).is_err()
            {
                return Err(NotCreated::Refused(error));
            }
        }
        let there = cluster.get(&target).map_err(NotCreated::Unread)?;
        let uid = there.value();
        let uid = uid.pointer("/metadata/uid").and_then(Value::as_str);
        Ok(uid.map(str::to_owned))
    }
}

/// Why the embedded cluster does not have the pod of a question.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum NotCreated {
    /// The cluster refuses to create it.
    #[error("the pod cannot be created: {0}")]
    Refused(Status),
    /// The cluster refuses to read it.
    #[error(transparent)]
    Unread(Status),
}

/// Admission in this process, for writes to the embedded cluster: the webhook's part in a real cluster.
pub struct Admit {
    admission: Arc<admission::Admission>,
    /// Called first: its changes of a pod are admitted like the author's own text.
    assigner: Option<Assigner>,
}

impl Admit {
    /// Admission by the webhook's rules alone.
    pub fn new(admission: Arc<admission::Admission>) -> Self {
        Self {
            admission,
            assigner: None,
        }
    }

    /// Adds this assigner before the webhook's rules.
    #[must_use]
    pub fn after(self, assigner: Option<Assigner>) -> Self {
        Self { assigner, ..self }
    }

    /// The pod after the assigner's changes.
    async fn assigned(&self, review: &Review, object: &Value) -> Result<Value, Status> {
        let Some(assigner) = &self.assigner else {
            return Ok(object.clone());
        };
        if review.operation != Operation::Create || !review.subresource.is_empty() {
            return Ok(object.clone());
        }
        assigner
            .admit(object, &review.namespace, review.dry_run)
            .await
            .map_err(|(code, text)| {
                let text = format!("admission webhook \"assigner\" denied the request: {text}");
                Status::denied(code, text)
            })
    }
}

impl std::fmt::Debug for Admit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Admit")
            .field(self.admission.settings())
            .finish()
    }
}

impl embedded_cluster::Admission for Admit {
    fn mutate<'a>(&'a self, review: &'a Review) -> BoxFuture<'a, Result<Option<Value>, Status>> {
        Box::pin(async move {
            let Some((object, context)) = of_pod(review) else {
                return Ok(None);
            };
            let mut after = self.assigned(review, object).await?;
            let admitted = self
                .admission
                .admit(&after, &context)
                .map_err(|denied| refusal(&denied))?;
            json_patch::patch(&mut after, &admitted.patch)
                .map_err(|error| Status::internal(format!("admission: {error}")))?;
            Ok((after != *object).then_some(after))
        })
    }

    fn validate<'a>(&'a self, review: &'a Review) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            match of_pod(review) {
                Some((object, context)) => {
                    let valid = self.admission.validate(object, &context);
                    valid.map_err(|denied| refusal(&denied))
                }
                None => Ok(()),
            }
        })
    }
}

/// The pod of a review and the operation on it; `None` if the review is about another object, or is the scheduler's
/// own.
fn of_pod(review: &Review) -> Option<(&Value, Context<'_>)> {
    let operation = match review.operation {
        Operation::Create => admission::Operation::Create,
        Operation::Update => admission::Operation::Update,
        Operation::Delete => return None,
    };
    let about_pod = review.group.is_empty() && review.resource == "pods";
    if !about_pod || review.user == OURSELVES {
        return None;
    }
    let context = Context {
        operation,
        subresource: &review.subresource,
        namespace: &review.namespace,
        user: &review.user,
        old: review.old_object.as_ref(),
        dry_run: review.dry_run,
    };
    Some((review.object.as_ref()?, context))
}

fn refusal(denied: &admission::Denied) -> Status {
    let text = format!("admission webhook \"vgpu\" denied the request: {denied}");
    Status::denied(denied.code, text)
}

/// A client of this cluster: the same requests as over HTTP, without a connection.
pub fn client(cluster: &Cluster) -> kube::Client {
    let name = HeaderValue::from_static(OURSELVES);
    let service = cluster.router().layer(axum::middleware::from_fn(
        move |mut request: Request, next: Next| {
            request
                .headers_mut()
                .insert("impersonate-user", name.clone());
            next.run(request)
        },
    ));
    kube::Client::new(service, "default")
}
