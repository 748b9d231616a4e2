//! Admission reviews, and the hooks that answer them: hooks in this process, and a client for webhooks.

use std::future::Future;
use std::pin::Pin;

use serde_json::{Value, json};

use crate::object::{meta, new_uid};
use crate::status::Status;
use crate::target::{Target, Write};

/// A future in a box, so that a hook can be kept as a `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The object is created.
    Create,
    /// The object is changed.
    Update,
    /// The object is deleted.
    Delete,
}

impl Operation {
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// A write that waits for the hooks.
#[derive(Debug, Clone, PartialEq)]
pub struct Review {
    /// Identifies this review.
    pub uid: String,
    /// The operation.
    pub operation: Operation,
    /// The API group; empty for the core one.
    pub group: String,
    /// `v1`.
    pub version: String,
    /// `Pod`.
    pub kind: String,
    /// `pods`.
    pub resource: String,
    /// `status`, `binding` or another; empty for the object itself.
    pub subresource: String,
    /// Empty for an object without a namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object after the write; none for a deletion.
    pub object: Option<Value>,
    /// The object before the write; none for a creation.
    pub old_object: Option<Value>,
    /// Whether the write is only tried and not stored.
    pub dry_run: bool,
    /// The user that writes.
    pub user: String,
    /// The user's groups.
    pub groups: Vec<String>,
}

/// A hook in this process.
pub trait Admission: Send + Sync {
    /// The changed object, or none to leave it as it is.
    fn mutate<'a>(&'a self, review: &'a Review) -> BoxFuture<'a, Result<Option<Value>, Status>> {
        let _ = review;
        Box::pin(async { Ok(None) })
    }

    /// Whether the write is allowed.
    fn validate<'a>(&'a self, review: &'a Review) -> BoxFuture<'a, Result<(), Status>> {
        let _ = review;
        Box::pin(async { Ok(()) })
    }
}

/// Carries a review to a webhook of a stored configuration.
pub trait WebhookClient: Send + Sync {
    /// Sends an `AdmissionReview` to the address in `webhook` (an entry of `webhooks`), within its `timeoutSeconds`,
    /// and returns the `AdmissionReview` that answers it. `None` if the webhook's `matchConditions` exclude this review.
    /// An error is a failed call; the entry's `failurePolicy` decides its effect.
    fn call<'a>(
        &'a self,
        webhook: &'a Value,
        review: Value,
    ) -> BoxFuture<'a, Result<Option<Value>, WebhookError>>;
}

/// Why a call of a webhook failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    /// The webhook was not reached, or sent no `AdmissionReview`.
    #[error("{0}")]
    NoAnswer(String),
    /// The answer has the uid of another review.
    #[error("its answer is not to this review")]
    OtherReview,
}

impl Review {
    pub(crate) fn new(
        operation: Operation,
        target: &Target,
        write: &Write,
        object: Option<Value>,
        old_object: Option<Value>,
    ) -> Self {
        let resource = &target.resource;
        Self {
            uid: new_uid(),
            operation,
            group: resource.group.clone(),
            version: target.version.clone(),
            kind: resource.kind.clone(),
            resource: resource.plural.clone(),
            subresource: target.part.subresource().to_owned(),
            namespace: if resource.is_core("namespaces") {
                target.name.clone()
            } else {
                target.namespace.clone()
            },
            name: target.name.clone(),
            object,
            old_object,
            dry_run: write.dry_run,
            user: write.user.clone(),
            groups: write.groups.clone(),
        }
    }

    /// As an `AdmissionReview` of `admission.k8s.io/v1`.
    pub fn to_value(&self) -> Value {
        let (group, version) = (&self.group, &self.version);
        let kind = json!({ "group": group, "version": version, "kind": self.kind });
        let resource = json!({ "group": group, "version": version, "resource": self.resource });
        let mut request = json!({
            "uid": self.uid,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": self.name,
            "operation": self.operation.as_str(),
            "userInfo": { "username": self.user, "groups": self.groups },
            "object": self.object,
            "oldObject": self.old_object,
            "dryRun": self.dry_run,
            "options": null,
        });
        if let Some(request) = request.as_object_mut() {
            if !self.namespace.is_empty() {
                request.insert("namespace".into(), self.namespace.as_str().into());
            }
            if !self.subresource.is_empty() {
                request.insert("subResource".into(), self.subresource.as_str().into());
                request.insert(
                    "requestSubResource".into(),
                    self.subresource.as_str().into(),
                );
            }
        }
        json!({ "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request })
    }

    /// The effect of an `AdmissionReview` that answers this one: a refusal, the changed object, or none.
    pub fn answered(&self, name: &str, answer: &Value) -> Result<Option<Value>, Status> {
        let response = &answer["response"];
        if response["uid"] != self.uid {
            return Err(Status::internal(format!(
                "webhook {name}: the answer is not to uid {}",
                self.uid
            )));
        }
        if response["allowed"] != Value::Bool(true) {
            let code = response["status"]["code"]
                .as_u64()
                .and_then(|code| u16::try_from(code).ok())
                .unwrap_or(403);
            let why = response["status"]["message"]
                .as_str()
                .or(response["status"]["reason"].as_str());
            let message = match why {
                Some(why) => format!("admission webhook \"{name}\" denied the request: {why}"),
                None => {
                    format!("admission webhook \"{name}\" denied the request without explanation")
                }
            };
            return Err(Status::denied(code, message));
        }
        let (Some(patch), Some(object)) = (response["patch"].as_str(), &self.object) else {
            return Ok(None);
        };
        let broken =
            |why: String| Status::internal(format!("webhook {name}: its patch is wrong: {why}"));
        if response["patchType"] != "JSONPatch" {
            return Err(broken("patchType is not JSONPatch".into()));
        }
        let patch = decode_base64(patch).ok_or_else(|| broken("it is not base64".into()))?;
        let patch: json_patch::Patch =
            serde_json::from_slice(&patch).map_err(|error| broken(error.to_string()))?;
        let mut changed = object.clone();
        json_patch::patch(&mut changed, &patch).map_err(|error| broken(error.to_string()))?;
        Ok(Some(changed))
    }

    /// Whether a rule of a webhook configuration applies to this write.
    pub(crate) fn is_ruled_by(&self, rule: &Value) -> bool {
        let among = |name: &str, value: &str| {
            rule[name]
                .as_array()
                .into_iter()
                .flatten()
                .any(|one| one == "*" || one == value)
        };
        let resource = |one: &str| match one.split_once('/') {
            None => self.subresource.is_empty() && (one == "*" || one == self.resource),
            Some((resource, subresource)) => {
                (resource == "*" || resource == self.resource)
                    && (subresource == "*"
                        || (subresource == self.subresource && !self.subresource.is_empty()))
            }
        };
        let scope = match rule["scope"].as_str() {
            Some("Cluster") => self.namespace.is_empty() || self.resource == "namespaces",
            Some("Namespaced") => !self.namespace.is_empty() && self.resource != "namespaces",
            _ => true,
        };
        scope
            && among("operations", self.operation.as_str())
            && among("apiGroups", &self.group)
            && among("apiVersions", &self.version)
            && rule["resources"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .any(resource)
    }

    /// The objects whose labels an `objectSelector` matches: the new object and the old one.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &Value> {
        self.object.iter().chain(&self.old_object)
    }

    pub(crate) fn describe(&self) -> String {
        let object = self
            .objects()
            .next()
            .map_or("", |object| meta(object, "name"));
        format!(
            "{} {} {}/{object}",
            self.operation.as_str(),
            self.resource,
            self.namespace
        )
    }
}

pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digit = |letter: u8| match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    };
    let digits: Vec<u8> = text
        .trim_end_matches('=')
        .bytes()
        .map(digit)
        .collect::<Option<_>>()?;
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for four in digits.chunks(4) {
        let bits = four
            .iter()
            .fold(0_u32, |bits, digit| bits << 6 | u32::from(*digit))
            << (6 * (4 - four.len()));
        let [_, three @ ..] = bits.to_be_bytes();
        bytes.extend(three.iter().take(four.len().saturating_sub(1)));
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_with_and_without_padding() {
        for (encoded, text) in [
            ("", ""),
            ("YQ==", "a"),
            ("YWI=", "ab"),
            ("YWI", "ab"),
            ("YWJj", "abc"),
            ("aHVudGVyMj8=", "hunter2?"),
        ] {
            assert_eq!(decode_base64(encoded).unwrap(), text.as_bytes());
        }
        assert_eq!(decode_base64("!"), None);
    }
}
