//! Claims and pods as the API server has them. Never keeps one.

use std::time::Duration;

use axum::http::Request;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::Api;
use serde_json::Value;
use tokio::time::timeout;

/// Longest wait for one answer: the kubelet gives a call 45 s.
const ONE: Duration = Duration::from_secs(5);

/// How a question ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Without {
    /// There is none of this name.
    Gone,
    /// The API server says no.
    Refused(String),
    /// No answer.
    Away(String),
}

/// The claim of this name.
pub(super) async fn claim(
    client: &kube::Client,
    namespace: &str,
    name: &str,
) -> Result<ResourceClaim, Without> {
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), namespace);
    ended(timeout(ONE, api.get(name)).await)
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

fn ended<T>(answer: Result<kube::Result<T>, tokio::time::error::Elapsed>) -> Result<T, Without> {
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(match status.code {
            404 => Without::Gone,
            429 | 500.. => Without::Away(status.message.clone()),
            _ => Without::Refused(status.message.clone()),
        }),
        Ok(Err(error)) => Err(Without::Away(error.to_string())),
        Err(_) => Err(Without::Away(String::from("no answer in time"))),
    }
}
