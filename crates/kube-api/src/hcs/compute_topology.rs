//! ComputeTopology: how the devices of one node are connected, as the node's agent writes it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LinkType, Vendor};

/// How the devices of one node are connected to each other and to other nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComputeTopology {
    /// `hcs.io/v1alpha1`.
    #[serde(default)]
    #[schemars(skip)]
    pub api_version: String,
    /// `ComputeTopology`.
    #[serde(default)]
    #[schemars(skip)]
    pub kind: String,
    /// Name and labels. The name is that of the Kubernetes node.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// The connections. The node's agent writes them.
    pub spec: ComputeTopologySpec,
    /// When they were observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ComputeTopologyStatus>,
}

/// The connections of one node's devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComputeTopologySpec {
    /// Name of the Kubernetes node.
    pub node_name: String,
    /// The devices, of all vendors.
    #[schemars(length(max = 1024))]
    pub devices: Vec<TopologyDevice>,
    /// Connections between two devices of the node, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<TopologyLink>,
    /// Devices that all reach each other over one kind of connection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<TopologyGroup>,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyDevice {
    /// Index of the device on its node, as text; the `id` in the ComputeNode.
    pub id: String,
    /// Its vendor.
    pub vendor: Vendor,
    /// Its model.
    pub model: String,
    /// PCI address, as `0000:17:00.0`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bus_id: String,
    /// NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<i32>,
}

/// A connection between two devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopologyLink {
    /// The type of the connection.
    #[serde(rename = "type")]
    pub kind: LinkType,
    /// `id` of the device at one end.
    pub from: String,
    /// `id` of the device at the other end; of a `roce` link the network interface.
    pub to: String,
    /// How many such connections there are between the two.
    #[schemars(range(min = 1))]
    pub count: i32,
    /// Bandwidth of all of them, both directions together, as `600GB/s`; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
}

/// Devices that all reach each other over one kind of connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopologyGroup {
    /// The type of the connections.
    #[serde(rename = "type")]
    pub kind: LinkType,
    /// The `id` of each device.
    pub devices: Vec<String>,
}

/// When the connections were observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComputeTopologyStatus {
    /// When the agent last reported, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_heartbeat: Option<String>,
}
