//! Arguments of plugins, with kube-scheduler's defaults. `validate` checks their values.

use k8s_openapi::api::core::v1 as core;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{API_VERSION, ConfigError};

/// The arguments of a plugin.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind")]
pub enum Args {
    /// For `DefaultPreemption`.
    #[serde(rename = "DefaultPreemptionArgs")]
    Preemption(Versioned<PreemptionArgs>),
    /// For `InterPodAffinity`.
    #[serde(rename = "InterPodAffinityArgs")]
    InterPod(Versioned<InterPodArgs>),
    /// For `NodeAffinity`.
    #[serde(rename = "NodeAffinityArgs")]
    NodeAffinity(Versioned<NodeAffinityArgs>),
    /// For `NodeResourcesBalancedAllocation`.
    #[serde(rename = "NodeResourcesBalancedAllocationArgs")]
    Balanced(Versioned<BalancedArgs>),
    /// For `NodeResourcesFit`.
    #[serde(rename = "NodeResourcesFitArgs")]
    Fit(Versioned<FitArgs>),
    /// For `PodTopologySpread`.
    #[serde(rename = "PodTopologySpreadArgs")]
    Spread(Versioned<SpreadArgs>),
    /// For `VolumeBinding`.
    #[serde(rename = "VolumeBindingArgs")]
    VolumeBinding(Versioned<VolumeBindingArgs>),
}

/// Arguments with the version that they are printed with.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Versioned<T> {
    api_version: Version,
    /// The arguments.
    #[serde(flatten)]
    pub args: T,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version(&'static str);

impl Default for Version {
    fn default() -> Self {
        Self(API_VERSION)
    }
}

impl Serialize for Version {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

/// How many nodes the search for pods to evict examines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PreemptionArgs {
    /// At least this percentage of the nodes.
    pub min_candidate_nodes_percentage: i32,
    /// At least this number of nodes.
    pub min_candidate_nodes_absolute: i32,
}

impl Default for PreemptionArgs {
    fn default() -> Self {
        Self {
            min_candidate_nodes_percentage: 10,
            min_candidate_nodes_absolute: 100,
        }
    }
}

/// Arguments for pod affinity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct InterPodArgs {
    /// The weight of a required term of a running pod, for a pod that the term selects.
    pub hard_pod_affinity_weight: i32,
    /// Whether preferred terms of running pods are ignored.
    pub ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for InterPodArgs {
    fn default() -> Self {
        Self {
            hard_pod_affinity_weight: 1,
            ignore_preferred_terms_of_existing_pods: false,
        }
    }
}

/// Arguments for node affinity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeAffinityArgs {
    /// Affinity that every pod of the profile has in addition to its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added_affinity: Option<core::NodeAffinity>,
}

/// A resource and its weight in a score.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceSpec {
    /// Name of the resource.
    pub name: String,
    /// Its weight; 1 if absent or 0.
    #[serde(default)]
    pub weight: i64,
}

fn default_resources() -> Vec<ResourceSpec> {
    ["cpu", "memory"]
        .map(|name| ResourceSpec {
            name: name.to_owned(),
            weight: 1,
        })
        .into()
}

/// Arguments for balanced use of resources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BalancedArgs {
    /// The resources that count.
    pub resources: Vec<ResourceSpec>,
}

impl Default for BalancedArgs {
    fn default() -> Self {
        Self {
            resources: default_resources(),
        }
    }
}

/// Arguments for the check of resources and for the score by how full a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FitArgs {
    /// Extended resources that are not checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored_resources: Vec<String>,
    /// Domains of extended resources that are not checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored_resource_groups: Vec<String>,
    /// How the fullness of a node becomes a score.
    pub scoring_strategy: ScoringStrategy,
}

impl Default for FitArgs {
    fn default() -> Self {
        Self {
            ignored_resources: Vec::new(),
            ignored_resource_groups: Vec::new(),
            scoring_strategy: ScoringStrategy {
                kind: StrategyType::LeastAllocated.name().to_owned(),
                resources: default_resources(),
                requested_to_capacity_ratio: None,
            },
        }
    }
}

/// How the fullness of a node becomes a score.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ScoringStrategy {
    /// `LeastAllocated`, `MostAllocated` or `RequestedToCapacityRatio`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The resources that count, with their weights.
    pub resources: Vec<ResourceSpec>,
    /// The curve of `RequestedToCapacityRatio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_to_capacity_ratio: Option<RatioShape>,
}

/// The strategies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrategyType {
    /// An emptier node scores higher.
    LeastAllocated,
    /// A fuller node scores higher.
    MostAllocated,
    /// The score follows a curve.
    RequestedToCapacityRatio,
}

impl StrategyType {
    /// All of them.
    pub const ALL: [Self; 3] = [
        Self::LeastAllocated,
        Self::MostAllocated,
        Self::RequestedToCapacityRatio,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::LeastAllocated => "LeastAllocated",
            Self::MostAllocated => "MostAllocated",
            Self::RequestedToCapacityRatio => "RequestedToCapacityRatio",
        }
    }
}

/// A curve from utilisation to score.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RatioShape {
    /// Its points, in the order of utilisation.
    pub shape: Vec<ShapePoint>,
}

/// A point of a curve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ShapePoint {
    /// In percent, 0 to 100.
    pub utilization: i32,
    /// From 0 to 10.
    pub score: i32,
}

/// Topology spread of pods that have no constraints of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SpreadArgs {
    /// Constraints without selectors; only with `defaultingType: List`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub default_constraints: Vec<core::TopologySpreadConstraint>,
    /// `System` or `List`.
    pub defaulting_type: String,
}

impl Default for SpreadArgs {
    fn default() -> Self {
        Self {
            default_constraints: Vec::new(),
            defaulting_type: "System".to_owned(),
        }
    }
}

/// Arguments for the binding of volumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct VolumeBindingArgs {
    /// How long the binding may take.
    pub bind_timeout_seconds: i64,
    /// Refused, because capacity is not scored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<ShapePoint>>,
}

impl Default for VolumeBindingArgs {
    fn default() -> Self {
        Self {
            bind_timeout_seconds: 600,
            shape: None,
        }
    }
}

fn versioned<T>(args: T) -> Versioned<T> {
    Versioned {
        api_version: Version::default(),
        args,
    }
}

fn decode<T: DeserializeOwned>(path: &str, written: Value) -> Result<Versioned<T>, ConfigError> {
    serde_json::from_value(written)
        .map(versioned)
        .map_err(|error| ConfigError::one(path, error.to_string()))
}

impl Args {
    /// The default arguments of a plugin; none for a plugin without arguments.
    pub fn default_of(plugin: &str) -> Option<Self> {
        Some(match plugin {
            "DefaultPreemption" => Self::Preemption(Versioned::default()),
            "InterPodAffinity" => Self::InterPod(Versioned::default()),
            "NodeAffinity" => Self::NodeAffinity(Versioned::default()),
            "NodeResourcesBalancedAllocation" => Self::Balanced(Versioned::default()),
            "NodeResourcesFit" => Self::Fit(Versioned::default()),
            "PodTopologySpread" => Self::Spread(Versioned::default()),
            "VolumeBinding" => Self::VolumeBinding(Versioned::default()),
            _ => return None,
        })
    }

    /// Reads a plugin's arguments and fills in the missing ones.
    pub(crate) fn read(plugin: &str, path: &str, mut written: Value) -> Result<Self, ConfigError> {
        if let Value::Object(fields) = &mut written {
            let wanted = format!("{plugin}Args");
            for (field, wanted) in [("kind", wanted.as_str()), ("apiVersion", API_VERSION)] {
                if let Some(value) = fields.remove(field)
                    && value.as_str() != Some(wanted)
                {
                    return Err(ConfigError::one(
                        format!("{path}.{field}"),
                        format!("{value} cannot be used; write {wanted:?} or leave it out"),
                    ));
                }
            }
        }
        let mut args = match plugin {
            "DefaultPreemption" => Self::Preemption(decode(path, written)?),
            "InterPodAffinity" => Self::InterPod(decode(path, written)?),
            "NodeAffinity" => Self::NodeAffinity(decode(path, written)?),
            "NodeResourcesBalancedAllocation" => Self::Balanced(decode(path, written)?),
            "NodeResourcesFit" => Self::Fit(decode(path, written)?),
            "PodTopologySpread" => Self::Spread(decode(path, written)?),
            "VolumeBinding" => Self::VolumeBinding(decode(path, written)?),
            other => {
                return Err(ConfigError::one(
                    path,
                    format!("plugin {other} takes no arguments; remove the entry"),
                ));
            }
        };
        args.fill();
        Ok(args)
    }

    fn fill(&mut self) {
        let resources = match self {
            Self::Balanced(args) => &mut args.args.resources,
            Self::Fit(args) => &mut args.args.scoring_strategy.resources,
            Self::Spread(args) => {
                if args.args.defaulting_type.is_empty() {
                    "System".clone_into(&mut args.args.defaulting_type);
                }
                return;
            }
            _ => return,
        };
        if resources.is_empty() {
            *resources = default_resources();
        }
        for resource in resources {
            if resource.weight == 0 {
                resource.weight = 1;
            }
        }
    }
}
