//! The fields of Kubernetes objects that the model reads, as they are written. Used in this folder only.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_api::quantity::Quantity;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Reads null as the default, as Go does.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Kind and name of an object that could not be read.
pub(super) fn named(kind: &str, object: &Value) -> String {
    let text = |field: &str| {
        object
            .get("metadata")
            .and_then(|metadata| metadata.get(field))
            .and_then(Value::as_str)
    };
    match (text("namespace"), text("name")) {
        (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
        (None, Some(name)) => format!("{kind} {name}"),
        (_, None) => format!("{kind} without a name"),
    }
}

macro_rules! wire {
    ($($(#[$meta:meta])* $name:ident { $($(#[$attr:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub(super) struct $name {
            $($(#[$attr])* #[serde(deserialize_with = "or_default")] pub(super) $field: $type,)*
        }
    )*};
}

type Amounts = BTreeMap<String, Quantity>;

wire! {
    Metadata {
        name: String,
        namespace: String,
        uid: String,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        creation_timestamp: Option<String>,
        deletion_timestamp: Option<String>,
        owner_references: Vec<Owner>,
    }
    Owner {
        api_version: String,
        kind: String,
        name: String,
        uid: String,
        controller: bool,
    }
    Node { metadata: Metadata, spec: NodeSpec, status: NodeStatus, }
    NodeSpec { taints: Vec<Taint>, unschedulable: bool, }
    Taint { key: String, value: Option<String>, effect: String, }
    NodeStatus { allocatable: Amounts, capacity: Amounts, images: Vec<Image>, }
    Image { names: Vec<String>, size_bytes: i64, }
    Pod { metadata: Metadata, spec: PodSpec, status: PodStatus, }
    PodSpec {
        node_name: String,
        scheduler_name: String,
        node_selector: Option<BTreeMap<String, String>>,
        affinity: Option<core::Affinity>,
        tolerations: Vec<core::Toleration>,
        topology_spread_constraints: Vec<core::TopologySpreadConstraint>,
        containers: Vec<Container>,
        init_containers: Vec<Container>,
        overhead: Option<Amounts>,
        resources: Option<Needs>,
        priority: Option<i32>,
        priority_class_name: String,
        preemption_policy: Option<String>,
        scheduling_gates: Vec<Named>,
        volumes: Vec<Volume>,
    }
    Named { name: String, }
    Container {
        name: String,
        image: String,
        ports: Vec<Port>,
        resources: Needs,
        restart_policy: Option<String>,
    }
    Needs { requests: Amounts, limits: Amounts, }
    Port { host_port: i32, #[serde(rename = "hostIP")] host_ip: String, protocol: String, }
    PodStatus {
        phase: String,
        start_time: Option<String>,
        nominated_node_name: String,
        conditions: Vec<Condition>,
    }
    Condition { #[serde(rename = "type")] kind: String, status: String, reason: String, }
    Volume {
        name: String,
        persistent_volume_claim: Option<ClaimSource>,
        ephemeral: Option<Value>,
        gce_persistent_disk: Option<GceDisk>,
        aws_elastic_block_store: Option<AwsDisk>,
        iscsi: Option<Iscsi>,
        rbd: Option<Rbd>,
        csi: Option<InlineCsi>,
    }
    ClaimSource { claim_name: String, read_only: bool, }
    GceDisk { pd_name: String, read_only: bool, }
    AwsDisk { #[serde(rename = "volumeID")] volume_id: String, read_only: bool, }
    Iscsi { iqn: String, target_portal: String, lun: i32, read_only: bool, }
    Rbd { monitors: Vec<String>, pool: Option<String>, image: String, read_only: bool, }
    InlineCsi { driver: String, }
    PersistentVolume { metadata: Metadata, spec: PersistentVolumeSpec, status: Phase, }
    PersistentVolumeSpec {
        capacity: Amounts,
        access_modes: Vec<String>,
        claim_ref: Option<ClaimRef>,
        storage_class_name: String,
        volume_mode: Option<String>,
        node_affinity: Option<VolumeAffinity>,
        csi: Option<CsiSource>,
        volume_attributes_class_name: Option<String>,
    }
    ClaimRef { namespace: String, name: String, uid: String, }
    VolumeAffinity { required: Option<core::NodeSelector>, }
    CsiSource { driver: String, volume_handle: String, }
    Phase { phase: String, }
    PersistentVolumeClaim { metadata: Metadata, spec: ClaimSpec, status: Phase, }
    ClaimSpec {
        access_modes: Vec<String>,
        resources: Needs,
        storage_class_name: Option<String>,
        volume_mode: Option<String>,
        volume_name: String,
        selector: Option<LabelSelector>,
        volume_attributes_class_name: Option<String>,
    }
    StorageClass {
        metadata: Metadata,
        provisioner: String,
        volume_binding_mode: Option<String>,
        allowed_topologies: Vec<core::TopologySelectorTerm>,
    }
    CsiNode { metadata: Metadata, spec: CsiNodeSpec, }
    CsiNodeSpec { drivers: Vec<CsiNodeDriver>, }
    CsiNodeDriver { name: String, allocatable: Option<Limit>, }
    Limit { count: Option<i32>, }
    Budget { metadata: Metadata, spec: BudgetSpec, status: BudgetStatus, }
    BudgetSpec { selector: Option<LabelSelector>, }
    BudgetStatus { disruptions_allowed: i32, disrupted_pods: BTreeMap<String, Value>, }
    Namespace { metadata: Metadata, }
}
