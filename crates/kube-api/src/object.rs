//! Pods, nodes and quotas, with the fields that vgpu reads. Decoding is as lenient as Go's: null or absent fields are
//! empty, quantities may be numbers, unknown fields are skipped. These types never hold the whole object, so a change is
//! a patch of the original.

mod metadata;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize};

use crate::quantity::Quantity;

/// Null is the default, as in Go.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Amounts by resource name.
pub type Resources = BTreeMap<String, Quantity>;

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pod {
    /// Name, namespace, uid, annotations, labels.
    #[serde(deserialize_with = "metadata::slim")]
    pub metadata: ObjectMeta,
    /// What it asks for.
    #[serde(deserialize_with = "or_default")]
    pub spec: PodSpec,
    /// Its status.
    #[serde(deserialize_with = "or_default")]
    pub status: PodStatus,
}

/// What a pod asks for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// The node that it runs on; empty while it has none.
    #[serde(deserialize_with = "or_default")]
    pub node_name: String,
    /// The scheduler that places it.
    #[serde(deserialize_with = "or_default")]
    pub scheduler_name: String,
    /// Its service account; empty for the namespace's own.
    #[serde(deserialize_with = "or_default")]
    pub service_account_name: String,
    /// The containers that run beside each other.
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<Container>,
    /// Init containers, which run before in order, and sidecars.
    #[serde(deserialize_with = "or_default")]
    pub init_containers: Vec<Container>,
    /// Ephemeral containers, attached for debugging.
    #[serde(deserialize_with = "or_default")]
    pub ephemeral_containers: Vec<Container>,
    /// How its containers are started.
    pub runtime_class_name: Option<String>,
    /// Its priority for eviction.
    pub priority: Option<i32>,
    /// Name of its priority class; empty for none.
    #[serde(deserialize_with = "or_default")]
    pub priority_class_name: String,
    /// After how many seconds it is ended.
    pub active_deadline_seconds: Option<i64>,
    /// Whether it may evict (`PreemptLowerPriority`, `Never`).
    pub preemption_policy: Option<String>,
}

/// One container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// Its name in the pod.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// What it may take, and what it needs.
    #[serde(deserialize_with = "or_default")]
    pub resources: ResourceNeeds,
    /// Its environment.
    #[serde(deserialize_with = "or_default")]
    pub env: Vec<EnvVar>,
    /// `Always` makes an init container a sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    /// Its rights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
}

impl Container {
    /// The amount under `limits`, else under `requests`.
    pub fn amount(&self, resource: &str) -> Option<&Quantity> {
        self.resources
            .limits
            .get(resource)
            .or_else(|| self.resources.requests.get(resource))
    }

    /// Whether it runs from its turn among the init containers to the end of the pod.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

/// What a container may take, and what it needs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceNeeds {
    /// At most.
    #[serde(deserialize_with = "or_default")]
    pub limits: Resources,
    /// At least.
    #[serde(deserialize_with = "or_default")]
    pub requests: Resources,
}

/// A variable of a container's environment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EnvVar {
    /// Its name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Its value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Where its value comes from instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<serde_json::Value>,
}

/// The rights of a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecurityContext {
    /// All rights of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub privileged: Option<bool>,
}

/// What became of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`.
    #[serde(deserialize_with = "or_default")]
    pub phase: String,
    /// `PodScheduled` and others.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
    /// The node on which room was made for it by preemption; empty for none.
    #[serde(deserialize_with = "or_default")]
    pub nominated_node_name: String,
    /// The init containers.
    #[serde(deserialize_with = "or_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// Something that holds, or does not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    /// `PodScheduled`, `Ready`.
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    /// `True`, `False`, `Unknown`.
    #[serde(deserialize_with = "or_default")]
    pub status: String,
    /// One word for why.
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    /// Why, in a sentence.
    #[serde(deserialize_with = "or_default")]
    pub message: String,
    /// When it last changed, as RFC 3339 text.
    #[serde(deserialize_with = "or_default")]
    pub last_transition_time: String,
}

/// What became of a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Its name in the pod.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Where it is in its life.
    #[serde(deserialize_with = "or_default")]
    pub state: ContainerState,
}

/// Where a container is in its life.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerState {
    /// It is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminated: Option<Terminated>,
}

/// How a container ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Terminated {
    /// 0 is well.
    #[serde(deserialize_with = "or_default")]
    pub exit_code: i32,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Node {
    /// Name, annotations, labels.
    #[serde(deserialize_with = "metadata::slim")]
    pub metadata: ObjectMeta,
    /// What keeps pods away from it.
    #[serde(deserialize_with = "or_default")]
    pub spec: NodeSpec,
    /// What it has.
    #[serde(deserialize_with = "or_default")]
    pub status: NodeStatus,
}

/// What keeps pods away from a node. kube-scheduler judges it; here it is only shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSpec {
    /// Closed for new pods (`kubectl cordon`).
    #[serde(deserialize_with = "or_default")]
    pub unschedulable: bool,
    /// What a pod has to tolerate.
    #[serde(deserialize_with = "or_default")]
    pub taints: Vec<Taint>,
}

/// What a pod has to tolerate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Taint {
    /// Its name.
    #[serde(deserialize_with = "or_default")]
    pub key: String,
    /// Its value.
    #[serde(deserialize_with = "or_default")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule`, `NoExecute`.
    #[serde(deserialize_with = "or_default")]
    pub effect: String,
}

/// What a node has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    /// What pods can take.
    #[serde(deserialize_with = "or_default")]
    pub allocatable: Resources,
    /// All there is.
    #[serde(deserialize_with = "or_default")]
    pub capacity: Resources,
}

/// A limit on a namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceQuota {
    /// Name, namespace.
    #[serde(deserialize_with = "metadata::slim")]
    pub metadata: ObjectMeta,
    /// What it allows.
    #[serde(deserialize_with = "or_default")]
    pub spec: ResourceQuotaSpec,
}

/// What a quota allows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceQuotaSpec {
    /// By `limits.<resource>` and `requests.<resource>`.
    #[serde(deserialize_with = "or_default")]
    pub hard: Resources,
}

/// Lets kube's clients and watchers carry these types.
macro_rules! resource {
    ($kind:ident, $name:literal, $plural:literal, $scope:ty) => {
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = "v1";
            const GROUP: &'static str = "";
            const KIND: &'static str = $name;
            const VERSION: &'static str = "v1";
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
    };
}

resource!(Pod, "Pod", "pods", k8s_openapi::NamespaceResourceScope);
resource!(Node, "Node", "nodes", k8s_openapi::ClusterResourceScope);
resource!(
    ResourceQuota,
    "ResourceQuota",
    "resourcequotas",
    k8s_openapi::NamespaceResourceScope
);
