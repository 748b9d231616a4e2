//! One object of the API server that this agent keeps. Owns its last seen state; never decides its wanted
//! state.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::Resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;
use tokio::time::timeout;

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Tries while other writers are faster.
const TRIES: u32 = 3;

/// Why the object is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failed {
    /// The API server has no such kind.
    NotInstalled,
    /// Anything else, for the log.
    Other(String),
}

/// The object as it should be.
#[derive(Debug, Clone)]
pub(super) struct WantedObject {
    /// Labels to set; others stay.
    pub(super) labels: BTreeMap<String, String>,
    /// The object that this one is deleted with.
    pub(super) owner: OwnerReference,
    /// The whole spec.
    pub(super) spec: Value,
}

/// The object of one name.
#[derive(Debug)]
pub(super) struct Object {
    api: Api<DynamicObject>,
    resource: ApiResource,
    name: String,
    stands: Option<DynamicObject>,
}

impl Object {
    /// The object of this kind and name, of which nothing is known yet.
    pub(super) fn new<K: Resource>(client: kube::Client, name: &str) -> Self {
        let kind = GroupVersionKind::gvk(K::GROUP, K::VERSION, K::KIND);
        let resource = ApiResource::from_gvk_with_plural(&kind, K::URL_PATH_SEGMENT);
        Self {
            api: Api::all_with(client, &resource),
            resource,
            name: name.to_owned(),
            stands: None,
        }
    }

    /// Makes the object what it should be. `status` gets the present status, and returns the wanted one, or
    /// `None` if the present one may stay. Returns the number of writes.
    pub(super) async fn bring(
        &mut self,
        wanted: &WantedObject,
        status: impl Fn(Option<&Value>) -> Option<Value>,
    ) -> Result<u32, Failed> {
        let mut writes = 0;
        for _ in 0..TRIES {
            match self.step(wanted, &status).await {
                Ok(WriteStep::Wrote) => writes += 1,
                Ok(WriteStep::Done) => return Ok(writes),
                // The object was changed or deleted meanwhile: it is read again.
                Ok(WriteStep::Stale) => self.stands = None,
                Err(failed) => {
                    self.stands = None;
                    return Err(failed);
                }
            }
        }
        // There are three kinds of writes: creation, spec and status.
        match self.step(wanted, &status).await? {
            WriteStep::Done => Ok(writes),
            WriteStep::Wrote => Ok(writes + 1),
            WriteStep::Stale => {
                self.stands = None;
                Err(Failed::Other(format!(
                    "{} {} is changed by others at each try",
                    self.resource.kind, self.name
                )))
            }
        }
    }

    async fn step(
        &mut self,
        wanted: &WantedObject,
        status: &impl Fn(Option<&Value>) -> Option<Value>,
    ) -> Result<WriteStep, Failed> {
        let stands = match self.stands.take() {
            Some(stands) => stands,
            None => match ended(timeout(PATIENCE, self.api.get_opt(&self.name)).await)? {
                CallAnswer::Done(Some(stands)) => stands,
                CallAnswer::Done(None) => return self.create(wanted).await,
                CallAnswer::Conflict | CallAnswer::Missing => return Ok(WriteStep::Stale),
            },
        };
        let labels = stands.metadata.labels.clone().unwrap_or_default();
        let has_labels = wanted
            .labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value));
        let params = PostParams::default();
        let answer = if stands.data.get("spec") != Some(&wanted.spec) || !has_labels {
            let mut next = stands;
            let labels = next.metadata.labels.get_or_insert_default();
            labels.extend(wanted.labels.clone());
            set(&mut next.data, "spec", wanted.spec.clone());
            self.api_call(self.api.replace(&self.name, &params, &next))
                .await?
        } else if let Some(status) = status(stands.data.get("status")) {
            let mut next = stands;
            set(&mut next.data, "status", status);
            let call = self
                .api
                .replace_subresource("status", &self.name, &params, &next);
            self.api_call(call).await?
        } else {
            self.stands = Some(stands);
            return Ok(WriteStep::Done);
        };
        Ok(match answer {
            CallAnswer::Done(next) => {
                self.stands = Some(next);
                WriteStep::Wrote
            }
            CallAnswer::Conflict | CallAnswer::Missing => WriteStep::Stale,
        })
    }

    async fn create(&mut self, wanted: &WantedObject) -> Result<WriteStep, Failed> {
        let mut fresh = DynamicObject::new(&self.name, &self.resource);
        fresh.metadata.labels = Some(wanted.labels.clone());
        fresh.metadata.owner_references = Some(vec![wanted.owner.clone()]);
        fresh.data = serde_json::json!({ "spec": wanted.spec });
        let params = PostParams::default();
        let created = self.api_call(self.api.create(&params, &fresh)).await?;
        match created {
            CallAnswer::Done(created) => {
                self.stands = Some(created);
                Ok(WriteStep::Wrote)
            }
            CallAnswer::Conflict => Ok(WriteStep::Stale),
            // A create fails like this only if the kind is not installed.
            CallAnswer::Missing => Err(Failed::NotInstalled),
        }
    }

    async fn api_call<T>(
        &self,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<CallAnswer<T>, Failed> {
        ended(timeout(PATIENCE, call).await)
    }
}

enum WriteStep {
    Wrote,
    Done,
    Stale,
}

enum CallAnswer<T> {
    Done(T),
    Conflict,
    Missing,
}

fn ended<T>(
    answer: Result<kube::Result<T>, tokio::time::error::Elapsed>,
) -> Result<CallAnswer<T>, Failed> {
    match answer {
        Ok(Ok(done)) => Ok(CallAnswer::Done(done)),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Ok(CallAnswer::Conflict),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(CallAnswer::Missing),
        Ok(Err(error)) => Err(Failed::Other(error.to_string())),
        Err(_) => Err(Failed::Other(format!(
            "no answer within {} s",
            PATIENCE.as_secs()
        ))),
    }
}

fn set(data: &mut Value, key: &str, value: Value) {
    if let Some(map) = data.as_object_mut() {
        map.insert(key.to_owned(), value);
    }
}
