//! Pods as the API server has them. Never keeps one.

use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube_api::object::Pod;
use tokio::time::timeout;

/// Longest wait for one answer.
const ONE: Duration = Duration::from_secs(4);

/// How a question ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Without {
    /// There is no such pod, or another one under its name.
    Gone,
    /// The API server says no.
    Refused(String),
    /// No answer.
    Away(String),
}

/// The pod of this name.
pub(super) async fn pod(
    client: &kube::Client,
    namespace: &str,
    name: &str,
) -> Result<Pod, Without> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    ended(timeout(ONE, api.get(name)).await)
}

/// Changes the pod of this name, if it is the one of this uid. Through the status, which the API server lets change
/// annotations and never the spec.
pub(super) async fn patch(
    client: &kube::Client,
    namespace: &str,
    name: &str,
    patch: &serde_json::Value,
) -> Result<(), Without> {
    let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams::default();
    let patch = Patch::Merge(patch);
    ended(timeout(ONE, api.patch_status(name, &params, &patch)).await).map(|_| ())
}

fn ended<T>(answer: Result<kube::Result<T>, tokio::time::error::Elapsed>) -> Result<T, Without> {
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(match status.code {
            // A uid that is another one is a conflict; in a pod's status, an impossible change of the uid.
            404 | 409 => Without::Gone,
            422 if status.message.contains("metadata.uid") => Without::Gone,
            429 | 500.. => Without::Away(status.message.clone()),
            _ => Without::Refused(status.message.clone()),
        }),
        Ok(Err(error)) => Err(Without::Away(error.to_string())),
        Err(_) => Err(Without::Away("no answer in time".to_owned())),
    }
}
