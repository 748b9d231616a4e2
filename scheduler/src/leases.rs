//! Leases and pods in the API server: the few calls that the assigner and the extender make, behind a trait, so that a
//! test can answer late, twice or not at all. The callers decide what a failed call means for a reservation. [`guards`]
//! keeps GPUs from assigners while the extender binds pods to them.

pub mod guards;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube_api::assigner::{Claim, PodGpuClaim, lease_name, pod_claim};
use kube_api::object::Pod;

use crate::calls::{CallError, within};

/// The outcome of a call that writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent<T> {
    /// It happened.
    Done(T),
    /// The object exists already, or has changed since it was read.
    Conflict,
    /// The object does not exist.
    Gone,
    /// It did not happen, for this reason.
    Refused(String),
    /// It may have happened, or may yet happen.
    Unknown(String),
}

/// The current Lease of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundLease {
    /// There is no Lease.
    Nothing,
    /// It reserves the GPU.
    Claim(Box<Claim>),
    /// A Lease of that name exists and is not a claim of the GPU.
    Foreign(String),
}

/// The calls of an API server that the assigner and the extender make. Each has a time limit.
pub trait Store: Send + Sync + 'static {
    /// Creates a Lease.
    fn create(&self, claim: Claim) -> BoxFuture<'_, Sent<Claim>>;
    /// Replaces a Lease that has not changed since it was read.
    fn replace(&self, claim: Claim) -> BoxFuture<'_, Sent<Claim>>;
    /// Deletes a Lease that has not changed since it was read.
    fn delete(&self, claim: Claim) -> BoxFuture<'_, Sent<()>>;
    /// Reads the current Lease of a GPU.
    fn find<'a>(&'a self, gpu: &'a str) -> BoxFuture<'a, Result<FoundLease, CallError>>;
    /// Reads a pod.
    fn pod<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Pod>, CallError>>;
    /// Reads the pods of a namespace that have not ended and carry a reservation.
    fn carriers<'a>(
        &'a self,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<Vec<PodGpuClaim>, CallError>>;
    /// The pods that are bound to a node and have not ended, as they are now.
    fn bound<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Vec<Pod>, CallError>>;
}

/// Whether the pod has ended, and so holds nothing any more.
pub fn has_ended(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

/// A real API server, or the embedded one.
#[derive(Clone)]
pub struct ApiServer {
    client: kube::Client,
    leases: Api<Lease>,
    namespace: Arc<str>,
    patience: Duration,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ApiServer").field(&self.namespace).finish()
    }
}

impl ApiServer {
    /// Uses Leases in this namespace. A call fails after `patience`.
    pub fn new(client: kube::Client, namespace: &str, patience: Duration) -> Self {
        Self {
            leases: Api::namespaced(client.clone(), namespace),
            client,
            namespace: namespace.into(),
            patience,
        }
    }

    async fn sent<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Result<T, Sent<T>> {
        let refused = match within(self.patience, call).await {
            Ok(value) => return Ok(value),
            Err(CallError::Failed(kube::Error::Api(status))) => status,
            Err(error) => return Err(Sent::Unknown(error.to_string())),
        };
        let missing = refused.details.as_ref().map(|of| of.kind.as_str());
        Err(match refused.code {
            409 => Sent::Conflict,
            404 if missing == Some("namespaces") => Sent::Refused(format!(
                "{}: make the namespace of the Leases, or name another one (--claims-namespace)",
                refused.message
            )),
            404 => Sent::Gone,
            408 | 429 | 500.. => Sent::Unknown(refused.message.clone()),
            _ => Sent::Refused(refused.message.clone()),
        })
    }

    async fn read<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
        within(self.patience, call).await
    }
}

/// The Lease as the API server stored it: the one that was sent, with a version and a UID.
fn written(sent: &Claim, lease: &Lease) -> Claim {
    Claim::read(lease).unwrap_or_else(|_| sent.clone())
}

impl Store for ApiServer {
    fn create(&self, claim: Claim) -> BoxFuture<'_, Sent<Claim>> {
        Box::pin(async move {
            let lease = claim.lease();
            let params = PostParams::default();
            match self.sent(self.leases.create(&params, &lease)).await {
                Ok(lease) => Sent::Done(written(&claim, &lease)),
                Err(sent) => other(sent),
            }
        })
    }

    fn replace(&self, claim: Claim) -> BoxFuture<'_, Sent<Claim>> {
        Box::pin(async move {
            let (name, lease) = (lease_name(&claim.gpu), claim.lease());
            let params = PostParams::default();
            match self.sent(self.leases.replace(&name, &params, &lease)).await {
                Ok(lease) => Sent::Done(written(&claim, &lease)),
                Err(sent) => other(sent),
            }
        })
    }

    fn delete(&self, claim: Claim) -> BoxFuture<'_, Sent<()>> {
        Box::pin(async move {
            let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    resource_version: text(&claim.version),
                    uid: text(&claim.lease_uid),
                }),
                ..DeleteParams::default()
            };
            let name = lease_name(&claim.gpu);
            match self.sent(self.leases.delete(&name, &params)).await {
                Ok(_) => Sent::Done(()),
                Err(sent) => other(sent),
            }
        })
    }

    fn find<'a>(&'a self, gpu: &'a str) -> BoxFuture<'a, Result<FoundLease, CallError>> {
        Box::pin(async move {
            let name = lease_name(gpu);
            let Some(lease) = self.read(self.leases.get_opt(&name)).await? else {
                return Ok(FoundLease::Nothing);
            };
            Ok(match Claim::read(&lease) {
                Ok(claim) if claim.gpu == gpu => FoundLease::Claim(Box::new(claim)),
                Ok(claim) => FoundLease::Foreign(format!("Lease {name} reserves {}", claim.gpu)),
                Err(problem) => FoundLease::Foreign(problem.to_string()),
            })
        })
    }

    fn pod<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Pod>, CallError>> {
        Box::pin(async move {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            self.read(pods.get_opt(name)).await
        })
    }

    fn carriers<'a>(
        &'a self,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<Vec<PodGpuClaim>, CallError>> {
        Box::pin(async move {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            let all = self.read(pods.list(&ListParams::default())).await?;
            let live = all.items.iter().filter(|pod| !has_ended(pod));
            Ok(live.filter_map(pod_claim).collect())
        })
    }

    fn bound<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Vec<Pod>, CallError>> {
        Box::pin(async move {
            let pods: Api<Pod> = Api::all(self.client.clone());
            // Without a version to start from, the answer is no older than the question.
            let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
            let mut all = self.read(pods.list(&params)).await?.items;
            all.retain(|pod| !has_ended(pod));
            Ok(all)
        })
    }
}

/// The same outcome of a call with another result type.
fn other<T, U>(sent: Sent<T>) -> Sent<U> {
    match sent {
        // Cannot be: a finished call is not a failure.
        Sent::Done(_) => Sent::Unknown("the answer was lost".to_owned()),
        Sent::Conflict => Sent::Conflict,
        Sent::Gone => Sent::Gone,
        Sent::Refused(why) => Sent::Refused(why),
        Sent::Unknown(why) => Sent::Unknown(why),
    }
}
