//! ComputeTask: a pod to run with a request for compute, and what became of it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Amounts, HcsCondition, Vendor, schema};

/// A task that runs once, on devices that fit its request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComputeTask {
    /// `hcs.io/v1alpha1`.
    #[serde(default)]
    #[schemars(skip)]
    pub api_version: String,
    /// `ComputeTask`.
    #[serde(default)]
    #[schemars(skip)]
    pub kind: String,
    /// Name and namespace.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// The task to run.
    pub spec: ComputeTaskSpec,
    /// The state of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ComputeTaskStatus>,
}

/// The task to run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComputeTaskSpec {
    /// The resources of the template's first container. At least one of them.
    #[schemars(extend("minProperties" = 1))]
    pub resources: Amounts,
    /// Which vendor is preferred: `nvidia`, `huawei`, `hygon`, `cambricon` or `any`. Absent: `any`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["nvidia", "huawei", "hygon", "cambricon", "any"]))]
    pub vendor_preference: Option<String>,
    /// Whether another vendor than the preferred one will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_downgrade: Option<bool>,
    /// How several devices should lie to each other: `high-bandwidth` or `low-latency`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["high-bandwidth", "low-latency"]))]
    pub topology_preference: Option<String>,
    /// How many times a failed pod is made again. Absent: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: Option<i32>,
    /// The pod.
    pub template: PodTemplate,
}

/// The pod of a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PodTemplate {
    /// Labels and annotations of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// The pod's spec, as in a Kubernetes pod. `restartPolicy` is `Never` where it is absent.
    #[schemars(schema_with = "schema::pod_spec")]
    pub spec: Value,
}

/// Labels and annotations of a task's pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaskPhase {
    /// Its pod has no node yet.
    Pending,
    /// Its pod has a node, and no container runs yet.
    Scheduled,
    /// Its pod runs.
    Running,
    /// Its pod ended well.
    Succeeded,
    /// Its last pod failed, or could not be made.
    Failed,
}

/// One device of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskDevice {
    /// Index of the device on its node, as text.
    pub id: String,
}

/// The state of a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComputeTaskStatus {
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<TaskPhase>,
    /// Its last pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// How many pods were made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i32>,
    /// The node of its last pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The vendor of its devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<Vendor>,
    /// Its devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<TaskDevice>,
    /// One word in CamelCase: why it is where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When its first pod was made, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,
    /// When it ended, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub completion_time: Option<String>,
    /// `Scheduled` and `Complete`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<HcsCondition>,
    /// The generation of the spec that this status is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
