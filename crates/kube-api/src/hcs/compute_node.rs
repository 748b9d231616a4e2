//! ComputeNode: the devices of one node and one vendor, as the node's agent writes them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{HcsCondition, LinkType, Vendor};
use crate::quantity::Quantity;

/// The compute resources and devices of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComputeNode {
    /// `hcs.io/v1alpha1`.
    #[serde(default)]
    #[schemars(skip)]
    pub api_version: String,
    /// `ComputeNode`.
    #[serde(default)]
    #[schemars(skip)]
    pub kind: String,
    /// Name and labels. The name is that of the Kubernetes node.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// The node's devices. The node's agent writes them.
    pub spec: ComputeNodeSpec,
    /// The agent's observations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ComputeNodeStatus>,
}

/// The node's devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComputeNodeSpec {
    /// Hardware vendor of all devices below.
    pub vendor: Vendor,
    /// Labels of the Kubernetes node that this object describes.
    pub node_selector: BTreeMap<String, String>,
    /// Totals over all devices.
    pub capacity: Capacity,
    /// The devices.
    #[schemars(length(max = 1024))]
    pub devices: Vec<Device>,
    /// The connections between the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<NodeTopology>,
}

/// Totals over all devices of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Capacity {
    /// Memory, in bytes.
    pub vram: Quantity,
    /// Compute of 16-bit floats, in TFLOPS.
    #[serde(rename = "tflops-fp16")]
    pub tflops_fp16: Quantity,
    /// Compute of 32-bit floats, in TFLOPS.
    #[serde(rename = "tflops-fp32")]
    pub tflops_fp32: Quantity,
}

/// One device of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Index of the device on its node, as text.
    #[schemars(length(min = 1, max = 253))]
    pub id: String,
    /// The vendor's own identifier of the device (UUID).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Model, as in the exchange table where it is known there.
    #[schemars(length(max = 253))]
    pub model: String,
    /// Memory of the device, in bytes.
    pub vram: Quantity,
    /// Memory that pods may take, in bytes.
    pub vram_allocatable: Quantity,
    /// Memory that pods have taken, in bytes.
    pub vram_allocated: Quantity,
    /// Speed of the device.
    pub compute: DeviceCompute,
    /// Where the device is and what it is connected to.
    pub topology: DeviceTopology,
    /// Health from 0 to 100. A device of 60 or more gets new pods.
    #[schemars(range(min = 0, max = 100))]
    pub health_score: i32,
}

/// Speed of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceCompute {
    /// 16-bit floats, in TFLOPS; 0 where it is not known.
    pub fp16: Quantity,
    /// 32-bit floats, in TFLOPS; 0 where it is not known.
    pub fp32: Quantity,
}

/// Where a device is and what it is connected to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceTopology {
    /// PCI address, as `0000:17:00.0`.
    pub bus_id: String,
    /// NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<i32>,
    /// Connections to other devices of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub links: Vec<Link>,
}

/// A connection of one device to others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// The type of the connection.
    #[serde(rename = "type")]
    pub kind: LinkType,
    /// The `id` of each device at the other end.
    pub peers: Vec<String>,
    /// Bandwidth to each peer, both directions together, as `600GB/s`; `unknown` where it is not known.
    pub bandwidth: String,
}

/// The connections between the devices of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeTopology {
    /// Each kind of connection that the node has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interconnects: Vec<Interconnect>,
}

/// A kind of connection that a node has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Interconnect {
    /// The type of the connection.
    #[serde(rename = "type")]
    pub kind: LinkType,
    /// Bandwidth, as `600GB/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
    /// Version of NVLink, as `4.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_version: Option<String>,
}

/// Whether a node takes pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// New pods may come.
    Ready,
    /// The agent does not report, or no device is healthy.
    NotReady,
    /// The node is cordoned: its pods stay, and no new ones come.
    Draining,
}

/// The agent's observations of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComputeNodeStatus {
    /// Whether the node takes pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// `Ready`, `HardwareHealthy`, `AgentConnected` and `Schedulable`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<HcsCondition>,
    /// When the agent last reported, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_heartbeat: Option<String>,
    /// Memory that pods have taken over all devices, in bytes: the sum of `spec.devices[].vramAllocated`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram_allocated: Option<Quantity>,
}
