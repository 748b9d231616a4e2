//! The API group `hcs.io/v1alpha1`: its four kinds, their custom resource definitions, and all its names (resources,
//! annotations, words). `placement` decides which devices a pod gets.
//!
//! The fields are those of the documented API. A field's comment states its purpose, its unit and whether it is
//! required; it is also the description in the definition.

mod compute_node;
mod compute_quota;
mod compute_task;
mod compute_topology;
pub mod crd;
pub mod keys;
pub mod observed;
pub mod results;
pub mod rules;
mod schema;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use compute_node::{
    Capacity, ComputeNode, ComputeNodeSpec, ComputeNodeStatus, Device, DeviceCompute,
    DeviceTopology, Interconnect, Link, NodeTopology, Phase,
};
pub use compute_quota::{
    Amounts, ComputeQuota, ComputeQuotaSpec, ComputeQuotaStatus, NamedScope, PriorityScope, Scope,
};
pub use compute_task::{
    ComputeTask, ComputeTaskSpec, ComputeTaskStatus, PodTemplate, TaskDevice, TaskPhase,
    TemplateMetadata,
};
pub use compute_topology::{
    ComputeTopology, ComputeTopologySpec, ComputeTopologyStatus, TopologyDevice, TopologyGroup,
    TopologyLink,
};

/// The API group.
pub const GROUP: &str = "hcs.io";
/// Its only version.
pub const VERSION: &str = "v1alpha1";
/// Group and version, as objects name them.
pub const API_VERSION: &str = "hcs.io/v1alpha1";

/// A hardware vendor, as the API names it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    /// NVIDIA.
    Nvidia,
    /// Huawei Ascend.
    Huawei,
    /// Hygon DCU.
    Hygon,
    /// Cambricon MLU.
    Cambricon,
}

impl Vendor {
    /// All vendors that the API names, in the order of the document.
    pub const ALL: [Self; 4] = [Self::Nvidia, Self::Huawei, Self::Hygon, Self::Cambricon];

    /// The word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Huawei => "huawei",
            Self::Hygon => "hygon",
            Self::Cambricon => "cambricon",
        }
    }

    /// The vendor of this word; words are in lower case.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|vendor| vendor.as_str() == word)
    }
}

impl std::fmt::Display for Vendor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The type of a connection between two devices.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum LinkType {
    /// NVIDIA NVLink.
    Nvlink,
    /// Huawei HCCS.
    Hccs,
    /// PCI Express.
    Pcie,
    /// RDMA over Converged Ethernet, between nodes.
    Roce,
}

impl LinkType {
    /// The word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nvlink => "nvlink",
            Self::Hccs => "hccs",
            Self::Pcie => "pcie",
            Self::Roce => "roce",
        }
    }
}

/// One observation about an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HcsCondition {
    /// The subject of the condition, such as `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// One word in CamelCase: why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the status last changed, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: Option<String>,
    /// The generation of the spec that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// The four condition types of a ComputeNode.
pub mod condition {
    /// The node may take pods.
    pub const READY: &str = "Ready";
    /// Every device is healthy (score of 60 or more).
    pub const HARDWARE_HEALTHY: &str = "HardwareHealthy";
    /// The node's agent has reported recently.
    pub const AGENT_CONNECTED: &str = "AgentConnected";
    /// The scheduler may place new pods on the node.
    pub const SCHEDULABLE: &str = "Schedulable";
}

/// The documented error words, as they appear in filter reasons, events, conditions and refusals.
pub mod error {
    /// No suitable device has as much memory free as each device of the request needs.
    pub const INSUFFICIENT_VRAM: &str = "InsufficientVRAM";
    /// The vendor is not one of the API's, or the cluster has no device of an accepted vendor.
    pub const VENDOR_NOT_SUPPORTED: &str = "VendorNotSupported";
    /// The node's agent does not report.
    pub const AGENT_NOT_CONNECTED: &str = "AgentNotConnected";
    /// The devices that would fit are unhealthy.
    pub const DEVICE_UNHEALTHY: &str = "DeviceUnhealthy";
}

/// A kind of the group: its names, and the traits that Kubernetes' clients need.
macro_rules! kind {
    ($kind:ident, $spec:ident, $status:ident, $name:literal, $plural:literal, $scope:ty) => {
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = API_VERSION;
            const GROUP: &'static str = GROUP;
            const KIND: &'static str = $name;
            const VERSION: &'static str = VERSION;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl k8s_openapi::Metadata for $kind {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        impl $kind {
            /// An object of this name, without a status.
            pub fn new(name: &str, spec: $spec) -> Self {
                Self {
                    api_version: API_VERSION.to_owned(),
                    kind: $name.to_owned(),
                    metadata: ObjectMeta {
                        name: Some(name.to_owned()),
                        ..ObjectMeta::default()
                    },
                    spec,
                    status: None,
                }
            }

            /// The object with this status.
            #[must_use]
            pub fn with_status(mut self, status: $status) -> Self {
                self.status = Some(status);
                self
            }
        }
    };
}

kind!(
    ComputeNode,
    ComputeNodeSpec,
    ComputeNodeStatus,
    "ComputeNode",
    "computenodes",
    k8s_openapi::ClusterResourceScope
);
kind!(
    ComputeQuota,
    ComputeQuotaSpec,
    ComputeQuotaStatus,
    "ComputeQuota",
    "computequotas",
    k8s_openapi::NamespaceResourceScope
);
kind!(
    ComputeTask,
    ComputeTaskSpec,
    ComputeTaskStatus,
    "ComputeTask",
    "computetasks",
    k8s_openapi::NamespaceResourceScope
);
kind!(
    ComputeTopology,
    ComputeTopologySpec,
    ComputeTopologyStatus,
    "ComputeTopology",
    "computetopologies",
    k8s_openapi::ClusterResourceScope
);
