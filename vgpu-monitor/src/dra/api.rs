//! Claims and pods as the API server has them. Never keeps one.

use std::time::Duration;

use axum::http::Request;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::Api;
use serde_json::Value;
use tokio::time::timeout;

use crate::api_answer::{Without, ended};

/// Longest wait for one answer: the kubelet gives a call 45 s.
const ONE: Duration = Duration::from_secs(5);

/// The claim of this name.
pub(super) async fn claim(
    client: &kube::Client,
    namespace: &str,
    name: &str,
) -> Result<ResourceClaim, Without> {
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), namespace);
    ended(timeout(ONE, api.get(name)).await)
}

/// Whether there is the claim of this uid, and it has devices.
pub(super) async fn is_given(
    client: &kube::Client,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<bool, Without> {
    match claim(client, namespace, name).await {
        Ok(claim) => {
            let is_it = claim.metadata.uid.as_deref() == Some(uid);
            let status = claim.status.unwrap_or_default();
            Ok(is_it && status.allocation.is_some())
        }
        Err(Without::Gone) => Ok(false),
        Err(other) => Err(other),
    }
}

/// The pod of this name, with all its fields.
pub(super) async fn pod(
    client: &kube::Client,
    namespace: &str,
    name: &str,
) -> Result<Value, Without> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let request = Request::get(path).body(Vec::new());
    let request = request.map_err(|error| Without::Refused(error.to_string()))?;
    ended(timeout(ONE, client.request(request)).await)
}
