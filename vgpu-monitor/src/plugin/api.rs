//! Pods as the API server has them. Never keeps one.

use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use kube::core::{PartialObjectMeta, Status};
use kube_api::object::Pod;
use tokio::time::timeout;

use crate::api_answer::{Without, ended};

/// Longest wait for one answer.
const ONE: Duration = Duration::from_secs(4);

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
    match timeout(ONE, api.patch_status(name, &params, &patch)).await {
        Ok(Err(kube::Error::Api(status))) if is_of_another(&status) => Err(Without::Gone),
        answer => ended(answer).map(|_| ()),
    }
}

/// Whether another pod has the name by now. A uid that is another one is a conflict; in a pod's status, an impossible
/// change of the uid.
fn is_of_another(status: &Status) -> bool {
    status.code == 409 || (status.code == 422 && status.message.contains("metadata.uid"))
}
