//! ComputeQuota: how much the pods of a namespace may take together.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;
use crate::quantity::Quantity;

/// A limit on what the pods of a namespace hold together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComputeQuota {
    /// `hcs.io/v1alpha1`.
    #[serde(default)]
    #[schemars(skip)]
    pub api_version: String,
    /// `ComputeQuota`.
    #[serde(default)]
    #[schemars(skip)]
    pub kind: String,
    /// Name and namespace.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// The allowed amounts.
    pub spec: ComputeQuotaSpec,
    /// The used amounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ComputeQuotaStatus>,
}

/// The allowed amounts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComputeQuotaSpec {
    /// The most that the counted pods hold together.
    pub hard: Amounts,
    /// Which pods count. All scopes have to hold for a pod. Each is `PriorityClass` (the pod names a priority class),
    /// `Terminating` (the pod has `activeDeadlineSeconds`), `NotTerminating` (it has none), or an object
    /// `priority: NAME` (the pod's priority class has this name).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub scopes: Vec<Scope>,
    /// Labels of the pods that count; all pods of the namespace where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: Option<LabelSelector>,
}

/// Amounts of compute resources.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Amounts {
    /// Memory, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram: Option<Quantity>,
    /// Compute of 16-bit floats, in TFLOPS.
    #[serde(
        default,
        rename = "tflops-fp16",
        skip_serializing_if = "Option::is_none"
    )]
    pub tflops_fp16: Option<Quantity>,
    /// Compute of 32-bit floats, in TFLOPS.
    #[serde(
        default,
        rename = "tflops-fp32",
        skip_serializing_if = "Option::is_none"
    )]
    pub tflops_fp32: Option<Quantity>,
    /// Number of devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Quantity>,
}

/// Which pods a quota counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Scope {
    /// By a word.
    Named(NamedScope),
    /// By the name of the pod's priority class.
    Priority(PriorityScope),
    /// A spelling that no release of vgpu reads. The quota counts every pod, and its status says so.
    Unknown(serde_json::Value),
}

/// A scope that is one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamedScope {
    /// Pods that name a priority class.
    PriorityClass,
    /// Pods with `activeDeadlineSeconds`.
    Terminating,
    /// Pods without `activeDeadlineSeconds`.
    NotTerminating,
}

/// A scope by the name of the priority class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriorityScope {
    /// Name of the priority class.
    pub priority: String,
}

/// The used part of a quota.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComputeQuotaStatus {
    /// The amounts that the counted pods hold together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Amounts>,
    /// The limits that `used` was compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard: Option<Amounts>,
    /// The problems of fields of the spec that cannot be read, by field. Absent if all can be read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, String>,
}
