//! Schemas of types that are not ours, in the subset of OpenAPI that a custom resource definition may use.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::Scope;
use crate::quantity::Quantity;

/// An amount of at least 0. Kubernetes' own pattern allows a minus, but our amounts are never negative.
const AMOUNT: &str =
    r"^\+?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]+))?$";

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "pattern": AMOUNT,
            "minimum": 0,
        })
    }
}

/// A word, or an object that names a priority class. A structural schema cannot have two types in one place, so the
/// rules for texts and for objects are side by side: each applies to its own type of value.
impl JsonSchema for Scope {
    fn schema_name() -> Cow<'static, str> {
        "Scope".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-preserve-unknown-fields": true,
            "pattern": "^(PriorityClass|Terminating|NotTerminating)$",
            "required": ["priority"],
            "maxProperties": 1,
        })
    }
}

/// A Kubernetes label selector.
pub(super) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "matchLabels": {
                "type": "object",
                "additionalProperties": { "type": "string" },
            },
            "matchExpressions": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": { "type": "string" },
                        "operator": {
                            "type": "string",
                            "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                        },
                        "values": { "type": "array", "items": { "type": "string" } },
                    },
                },
            },
        },
    })
}

/// A pod's spec. The API server checks it when the pod is created.
pub(super) fn pod_spec(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "required": ["containers"],
        "properties": {
            "containers": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                },
            },
        },
        "x-kubernetes-preserve-unknown-fields": true,
    })
}
