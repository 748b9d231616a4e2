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
    ($($(#[$meta:meta])* struct $name:ident { $($(#[$attr:meta])* $field:ident: $type:ty,)* })*) => {$(
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
    struct Metadata {
        name: String,
        namespace: String,
        uid: String,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        creation_timestamp: Option<String>,
        deletion_timestamp: Option<String>,
        owner_references: Vec<Owner>,
    }
    struct Owner {
        api_version: String,
        kind: String,
        name: String,
        uid: String,
        controller: bool,
    }
    struct NodeObject { metadata: Metadata, spec: NodeSpec, status: NodeStatus, }
    struct NodeSpec { taints: Vec<NodeTaint>, unschedulable: bool, }
    struct NodeTaint { key: String, value: Option<String>, effect: String, }
    struct NodeStatus { allocatable: Amounts, capacity: Amounts, images: Vec<Image>, }
    struct Image { names: Vec<String>, size_bytes: i64, }
    struct PodObject { metadata: Metadata, spec: PodSpec, status: PodStatus, }
    struct PodSpec {
        node_name: String,
        scheduler_name: String,
        node_selector: Option<BTreeMap<String, String>>,
        affinity: Option<core::Affinity>,
        tolerations: Vec<core::Toleration>,
        topology_spread_constraints: Vec<core::TopologySpreadConstraint>,
        containers: Vec<Container>,
        init_containers: Vec<Container>,
        overhead: Option<Amounts>,
        resources: Option<ResourceRequirements>,
        priority: Option<i32>,
        priority_class_name: String,
        preemption_policy: Option<String>,
        scheduling_gates: Vec<Named>,
        volumes: Vec<VolumeSource>,
    }
    struct Named { name: String, }
    struct Container {
        name: String,
        image: String,
        ports: Vec<Port>,
        resources: ResourceRequirements,
        restart_policy: Option<String>,
    }
    struct ResourceRequirements { requests: Amounts, limits: Amounts, }
    struct Port { host_port: i32, #[serde(rename = "hostIP")] host_ip: String, protocol: String, }
    struct PodStatus {
        phase: String,
        start_time: Option<String>,
        nominated_node_name: String,
        conditions: Vec<Condition>,
    }
    struct Condition { #[serde(rename = "type")] kind: String, status: String, reason: String, }
    struct VolumeSource {
        name: String,
        persistent_volume_claim: Option<ClaimSource>,
        ephemeral: Option<Value>,
        gce_persistent_disk: Option<GceDisk>,
        aws_elastic_block_store: Option<AwsDisk>,
        iscsi: Option<Iscsi>,
        rbd: Option<Rbd>,
        csi: Option<InlineCsi>,
    }
    struct ClaimSource { claim_name: String, read_only: bool, }
    struct GceDisk { pd_name: String, read_only: bool, }
    struct AwsDisk { #[serde(rename = "volumeID")] volume_id: String, read_only: bool, }
    struct Iscsi { iqn: String, target_portal: String, lun: i32, read_only: bool, }
    struct Rbd { monitors: Vec<String>, pool: Option<String>, image: String, read_only: bool, }
    struct InlineCsi { driver: String, }
    struct PersistentVolumeObject { metadata: Metadata, spec: PersistentVolumeSpec, status: Phase, }
    struct PersistentVolumeSpec {
        capacity: Amounts,
        access_modes: Vec<String>,
        claim_ref: Option<ClaimRef>,
        storage_class_name: String,
        volume_mode: Option<String>,
        node_affinity: Option<VolumeAffinity>,
        csi: Option<CsiSource>,
        volume_attributes_class_name: Option<String>,
    }
    struct ClaimRef { namespace: String, name: String, uid: String, }
    struct VolumeAffinity { required: Option<core::NodeSelector>, }
    struct CsiSource { driver: String, volume_handle: String, }
    struct Phase { phase: String, }
    struct PersistentVolumeClaimObject { metadata: Metadata, spec: ClaimSpec, status: Phase, }
    struct ClaimSpec {
        access_modes: Vec<String>,
        resources: ResourceRequirements,
        storage_class_name: Option<String>,
        volume_mode: Option<String>,
        volume_name: String,
        selector: Option<LabelSelector>,
        volume_attributes_class_name: Option<String>,
    }
    struct StorageClassObject {
        metadata: Metadata,
        provisioner: String,
        volume_binding_mode: Option<String>,
        allowed_topologies: Vec<core::TopologySelectorTerm>,
    }
    struct CsiNodeObject { metadata: Metadata, spec: CsiNodeSpec, }
    struct CsiNodeSpec { drivers: Vec<CsiNodeDriver>, }
    struct CsiNodeDriver { name: String, allocatable: Option<Limit>, }
    struct Limit { count: Option<i32>, }
    struct BudgetObject { metadata: Metadata, spec: BudgetSpec, status: BudgetStatus, }
    struct BudgetSpec { selector: Option<LabelSelector>, }
    struct BudgetStatus { disruptions_allowed: i32, disrupted_pods: BTreeMap<String, Value>, }
    struct Namespace { metadata: Metadata, }
}
