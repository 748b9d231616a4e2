//! Objects of a real cluster: taken over once, or followed for as long as the simulator runs. Only reads there.
//!
//! As in the reference, pods come without their service account and owners, which do not exist here, and where a pod
//! runs is taken over with it; a pod that is changed there later keeps the node that it has here.

use futures_util::TryStreamExt;
use kube::api::{DynamicObject, ListParams};
use kube::core::Request;
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::{Map, Value};

use embedded_cluster::{DeleteOptions, Target, Write};

use super::import::{Import, put};
use super::kinds::{KINDS, Kind};
use super::{Refusal, Simulator};

/// How many objects are asked for at once.
const PAGE: u32 = 500;

/// Everything of the seven kinds with these labels, as an import.
///
/// # Errors
///
/// What the cluster answered where a list failed.
pub async fn read(client: &Client, labels: &str) -> Result<Import, Refusal> {
    let mut state = Map::new();
    for kind in KINDS {
        let mut all = Vec::new();
        let mut next = Some(ListParams::default().labels(labels).limit(PAGE));
        while let Some(asked) = next.take() {
            let failed = |error: &dyn std::fmt::Display| {
                Refusal::Impossible(format!("{} cannot be listed: {error}", kind.plural))
            };
            let request = Request::new(path(&kind))
                .list(&asked)
                .map_err(|error| failed(&error))?;
            let list: Value = client
                .request(request)
                .await
                .map_err(|error| failed(&error))?;
            let items = list.get("items").and_then(Value::as_array);
            all.extend(
                items
                    .into_iter()
                    .flatten()
                    .map(|object| adapted(&kind, object.clone())),
            );
            let token = list.pointer("/metadata/continue").and_then(Value::as_str);
            if let Some(token) = token.filter(|token| !token.is_empty()) {
                next = Some(asked.continue_token(token));
            }
        }
        state.insert(kind.key.to_owned(), all.into());
    }
    Import::read(Value::Object(state))
}

/// Where the API serves a kind.
fn path(kind: &Kind) -> String {
    if kind.group.is_empty() {
        format!("/api/v1/{}", kind.plural)
    } else {
        format!("/apis/{}/v1/{}", kind.group, kind.plural)
    }
}

/// An object of another cluster as it can be in this one.
fn adapted(kind: &Kind, mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for name in ["uid", "resourceVersion", "generation", "managedFields"] {
            metadata.remove(name);
        }
        if kind.key == "pods" {
            metadata.remove("ownerReferences");
        }
    }
    if kind.key == "pods"
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.remove("serviceAccountName");
        spec.remove("serviceAccount");
    }
    object
}

impl Simulator {
    /// Does here what happens there to objects with these labels, until the future is dropped. An object that this
    /// cluster refuses is left out, with a line in the log; a connection that breaks is made again.
    pub async fn follow(&self, client: &Client, labels: &str) {
        let each = KINDS.map(|kind| Box::pin(self.follow_kind(client.clone(), kind, labels)));
        futures_util::future::join_all(each).await;
    }

    async fn follow_kind(&self, client: Client, kind: Kind, labels: &str) {
        let Ok(resource) = kind.resource(self.cluster()) else {
            return;
        };
        let described = ApiResource {
            group: kind.group.to_owned(),
            version: "v1".to_owned(),
            api_version: resource.api_version(),
            kind: resource.kind.clone(),
            plural: kind.plural.to_owned(),
        };
        let api: Api<DynamicObject> = Api::all_with(client, &described);
        let config = watcher::Config::default().labels(labels);
        let mut events = std::pin::pin!(watcher(api, config));
        loop {
            match events.try_next().await {
                Ok(Some(Event::Apply(object) | Event::InitApply(object))) => {
                    self.mirror(&kind, &object, false).await;
                }
                Ok(Some(Event::Delete(object))) => self.mirror(&kind, &object, true).await,
                Ok(Some(Event::Init | Event::InitDone)) => {}
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(kind = kind.plural, %error, "the real cluster is not followed for a moment");
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
            }
        }
    }

    async fn mirror(&self, kind: &Kind, object: &DynamicObject, gone: bool) {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let (Ok(resource), false) = (kind.resource(self.cluster()), kind.is_given(name)) else {
            return;
        };
        let target = Target::object(&resource, namespace, name);
        let _writing = self.0.gate.read().await;
        let done = if gone {
            let (options, write) = (DeleteOptions::default(), Write::default());
            let deleted = self.cluster().delete(&target, &options, &write).await;
            deleted.map(drop)
        } else {
            let runs = object.data.pointer("/spec/nodeName").is_some();
            if kind.key == "pods" && runs && self.cluster().get(&target).is_ok() {
                return;
            }
            let value = serde_json::to_value(object).unwrap_or_default();
            put(self.cluster(), kind, &adapted(kind, value)).await
        };
        match done {
            Ok(()) => {}
            Err(status) if gone && status.code == 404 => {}
            Err(status) => {
                tracing::warn!(kind = kind.plural, namespace, name, %status, "not taken over");
            }
        }
    }
}
