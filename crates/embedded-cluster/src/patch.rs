//! The four patches: JSON, merge, strategic merge and apply.

use serde_json::Value;

use crate::resource::Resource;
use crate::status::Status;
use crate::strategic;

/// A patch in one of the four formats.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// `application/json-patch+json`: operations on paths.
    Json(json_patch::Patch),
    /// `application/merge-patch+json`: values to set, and nulls for fields to remove.
    Merge(Value),
    /// `application/strategic-merge-patch+json`: the same, where lists of the built-in kinds merge by key.
    Strategic(Value),
    /// `application/apply-patch+yaml`: all fields that one manager wants to set.
    Apply(Value),
}

/// The content types of [`Patch::parse`].
pub(crate) const CONTENT_TYPES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

impl Patch {
    /// A patch from a body and its content type.
    pub fn parse(content_type: &str, body: Value) -> Result<Self, Status> {
        let object = |body: Value, patch: fn(Value) -> Self| match body {
            Value::Object(_) => Ok(patch(body)),
            _ => Err(Status::bad_request("the patch is not an object")),
        };
        match content_type {
            "application/json-patch+json" => {
                let patch: json_patch::Patch = serde_json::from_value(body).map_err(|error| {
                    Status::bad_request(format!("error decoding patch: {error}"))
                })?;
                match patch.0.len() {
                    0..=10_000 => Ok(Self::Json(patch)),
                    _ => Err(Status::too_large(10_000)),
                }
            }
            "application/merge-patch+json" => object(body, Self::Merge),
            "application/strategic-merge-patch+json" => object(body, Self::Strategic),
            "application/apply-patch+yaml" | "application/apply-patch+json" => {
                object(body, Self::Apply)
            }
            other => Err(Status::unsupported_media_type(other, &CONTENT_TYPES)),
        }
    }

    /// The patched object. An apply does more than this: see `managed`.
    pub(crate) fn to(&self, resource: &Resource, old: &Value) -> Result<Value, Status> {
        let mut new = old.clone();
        match self {
            Self::Json(patch) => json_patch::patch(&mut new, patch).map_err(|error| {
                Status::denied(
                    422,
                    format!(
                        "the server rejected our request due to an error in our request: {error}"
                    ),
                )
            })?,
            Self::Merge(patch) => json_patch::merge(&mut new, patch),
            Self::Strategic(_) if resource.custom => {
                return Err(Status::unsupported_media_type(
                    "application/strategic-merge-patch+json",
                    &CONTENT_TYPES,
                ));
            }
            Self::Strategic(patch) => strategic::merge(&mut new, patch)?,
            Self::Apply(applied) => json_patch::merge(&mut new, applied),
        }
        Ok(new)
    }
}
