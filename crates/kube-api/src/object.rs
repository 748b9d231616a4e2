//! Pods, nodes and quotas, with the fields that vgpu reads. Decoding is as lenient as Go's: null or absent fields are
//! empty, quantities may be numbers, unknown fields are skipped. These types never hold the whole object, so a change
//! is a patch of the original.

mod metadata;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize};

use crate::quantity::Quantity;

/// Reads null as the default, as Go does.
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
    /// Its containers and scheduling fields.
    #[serde(deserialize_with = "or_default")]
    pub spec: PodSpec,
    /// Its status.
    #[serde(deserialize_with = "or_default")]
    pub status: PodStatus,
}

/// A pod's containers and scheduling fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// The node that it runs on; empty if it has none.
    #[serde(deserialize_with = "or_default")]
    pub node_name: String,
    /// The scheduler that places it.
    #[serde(deserialize_with = "or_default")]
    pub scheduler_name: String,
    /// Its service account; empty for the namespace's own.
    #[serde(deserialize_with = "or_default")]
    pub service_account_name: String,
    /// The app containers, which run at the same time.
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<Container>,
    /// Init containers, which run one after another before them, and sidecars.
    #[serde(deserialize_with = "or_default")]
    pub init_containers: Vec<Container>,
    /// Ephemeral containers, attached for debugging.
    #[serde(deserialize_with = "or_default")]
    pub ephemeral_containers: Vec<Container>,
    /// The runtime that starts its containers.
    pub runtime_class_name: Option<String>,
    /// Its priority for eviction.
    pub priority: Option<i32>,
    /// Name of its priority class; empty for none.
    #[serde(deserialize_with = "or_default")]
    pub priority_class_name: String,
    /// The number of seconds after which it is ended.
    pub active_deadline_seconds: Option<i64>,
    /// Whether it may evict (`PreemptLowerPriority`, `Never`).
    pub preemption_policy: Option<String>,
    /// The limits and requests of the pod as a whole.
    #[serde(deserialize_with = "or_default")]
    pub resources: ResourceNeeds,
    /// The rules about other pods.
    #[serde(deserialize_with = "or_default")]
    pub affinity: Affinity,
    /// The ResourceClaims that its containers may use.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub resource_claims: Vec<PodClaim>,
}

/// A ResourceClaim of a pod: one that exists, or one that is made for it from a template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodClaim {
    /// Its name in the pod.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// The claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claim_name: Option<String>,
    /// The template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claim_template_name: Option<String>,
}

/// A pod's rules about other pods, reduced to the namespaces in which they look.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Affinity {
    /// Near which pods it runs.
    #[serde(deserialize_with = "or_default")]
    pub pod_affinity: PodAffinity,
    /// Away from which pods it runs.
    #[serde(deserialize_with = "or_default")]
    pub pod_anti_affinity: PodAffinity,
}

/// Rules about other pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodAffinity {
    /// Those that a node has to meet.
    #[serde(
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "or_default"
    )]
    pub required: Vec<AffinityTerm>,
    /// Those that a node should meet.
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "or_default"
    )]
    pub preferred: Vec<WeightedTerm>,
}

/// A rule that a node should meet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WeightedTerm {
    /// The rule.
    #[serde(deserialize_with = "or_default")]
    pub pod_affinity_term: AffinityTerm,
}

/// The namespaces in which a rule looks for pods. Without any it looks in the pod's own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AffinityTerm {
    /// By name.
    #[serde(deserialize_with = "or_default")]
    pub namespaces: Vec<String>,
    /// By label. An empty selector means all namespaces.
    pub namespace_selector: Option<serde_json::Value>,
}

/// One container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// Its name in the pod.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Its limits and requests.
    #[serde(deserialize_with = "or_default")]
    pub resources: ResourceNeeds,
    /// Its environment.
    #[serde(deserialize_with = "or_default")]
    pub env: Vec<EnvVar>,
    /// `Always` makes an init container a sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    /// Its privileges.
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

/// The limits and requests of a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceNeeds {
    /// The most that it may use.
    #[serde(deserialize_with = "or_default")]
    pub limits: Resources,
    /// The least that it needs.
    #[serde(deserialize_with = "or_default")]
    pub requests: Resources,
    /// The claims of the pod that it uses.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<UsedClaim>,
}

/// A claim of the pod that a container uses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UsedClaim {
    /// Its name in the pod.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
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
    /// The source of its value, if it has no value of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<serde_json::Value>,
}

/// The privileges of a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecurityContext {
    /// Whether it has all privileges of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub privileged: Option<bool>,
}

/// The status of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`.
    #[serde(deserialize_with = "or_default")]
    pub phase: String,
    /// `Guaranteed`, `Burstable`, `BestEffort`; empty before the API server has written it.
    #[serde(deserialize_with = "or_default")]
    pub qos_class: String,
    /// `PodScheduled` and others.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
    /// The node on which room was made for it by preemption; empty for none.
    #[serde(deserialize_with = "or_default")]
    pub nominated_node_name: String,
    /// The init containers.
    #[serde(deserialize_with = "or_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// The claims that were made for it from templates.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub resource_claim_statuses: Vec<MadeClaim>,
}

/// A claim that was made for a pod from a template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MadeClaim {
    /// Its name in the pod.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// The claim; none if the pod needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claim_name: Option<String>,
}

/// A condition of a pod or node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    /// `PodScheduled`, `Ready`.
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    /// `True`, `False`, `Unknown`.
    #[serde(deserialize_with = "or_default")]
    pub status: String,
    /// The reason in one word.
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    /// The reason in a sentence.
    #[serde(deserialize_with = "or_default")]
    pub message: String,
    /// When it last changed, as RFC 3339 text.
    #[serde(deserialize_with = "or_default")]
    pub last_transition_time: String,
}

/// The status of a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Its name in the pod.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// The state of its life.
    #[serde(deserialize_with = "or_default")]
    pub state: ContainerState,
}

/// The state of a container's life.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerState {
    /// Present if it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminated: Option<Terminated>,
}

/// How a container ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Terminated {
    /// 0 means success.
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
    /// Whether and how it keeps pods away.
    #[serde(deserialize_with = "or_default")]
    pub spec: NodeSpec,
    /// Its resources.
    #[serde(deserialize_with = "or_default")]
    pub status: NodeStatus,
}

/// Whether and how a node keeps pods away. kube-scheduler enforces this; here it is only shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSpec {
    /// Whether it is closed to new pods (`kubectl cordon`).
    #[serde(deserialize_with = "or_default")]
    pub unschedulable: bool,
    /// The taints that a pod must tolerate.
    #[serde(deserialize_with = "or_default")]
    pub taints: Vec<Taint>,
}

/// A taint that a pod must tolerate.
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

/// The resources of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    /// The amounts that pods can use.
    #[serde(deserialize_with = "or_default")]
    pub allocatable: Resources,
    /// The amounts that the node has in all.
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
    /// Its limits.
    #[serde(deserialize_with = "or_default")]
    pub spec: ResourceQuotaSpec,
}

/// The limits of a quota.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceQuotaSpec {
    /// By `limits.<resource>` and `requests.<resource>`.
    #[serde(deserialize_with = "or_default")]
    pub hard: Resources,
    /// Conditions for a pod to count, by name.
    #[serde(deserialize_with = "or_default")]
    pub scopes: Vec<String>,
    /// Further conditions.
    #[serde(deserialize_with = "or_default")]
    pub scope_selector: ScopeSelector,
}

/// Conditions for a pod to count against a quota.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScopeSelector {
    /// The conditions; all of them must hold.
    #[serde(deserialize_with = "or_default")]
    pub match_expressions: Vec<ScopeRequirement>,
}

/// A condition for a pod to count against a quota.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScopeRequirement {
    /// The scope.
    #[serde(deserialize_with = "or_default")]
    pub scope_name: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`.
    #[serde(deserialize_with = "or_default")]
    pub operator: String,
    /// The values of `In` and `NotIn`.
    #[serde(deserialize_with = "or_default")]
    pub values: Vec<String>,
}

/// Makes these types usable with kube's clients and watchers.
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
