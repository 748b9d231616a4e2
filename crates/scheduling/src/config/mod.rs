//! `KubeSchedulerConfiguration` of `kubescheduler.config.k8s.io/v1` as values: read strictly, completed with
//! kube-scheduler's defaults, validated, and printed. Never runs anything.

mod args;
mod plugins;
mod read;
mod validate;

use serde::{Serialize, Serializer};

pub use args::{
    Args, BalancedArgs, FitArgs, InterPodArgs, NodeAffinityArgs, PreemptionArgs, RatioShape,
    ResourceSpec, ScoringStrategy, ShapePoint, SpreadArgs, StrategyType, VolumeBindingArgs,
};
pub use plugins::{PluginEntry, PluginList, Plugins};

/// The group and version that is read and printed.
pub const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
/// The kind that is read and printed.
pub const KIND: &str = "KubeSchedulerConfiguration";

/// A configuration with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    kind: &'static str,
    api_version: &'static str,
    /// How many nodes are examined in parallel. Kept and printed; this crate runs nothing in parallel.
    pub parallelism: i32,
    /// Kept and printed.
    pub leader_election: LeaderElection,
    /// Kept and printed.
    pub client_connection: ClientConnection,
    /// Kept and printed.
    pub enable_profiling: bool,
    /// Kept and printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_contention_profiling: Option<bool>,
    /// The search ends when this percentage of all nodes fits; 0 derives it from the number of nodes.
    pub percentage_of_nodes_to_score: i32,
    /// How long a pod waits after its first failure, in seconds.
    pub pod_initial_backoff_seconds: i64,
    /// How long a pod waits at most after a failure, in seconds.
    pub pod_max_backoff_seconds: i64,
    /// The profiles. A pod names one of them in `spec.schedulerName`.
    pub profiles: Vec<Profile>,
    /// HTTP services that are called in addition to the plugins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extenders: Vec<Extender>,
    /// Kept and printed.
    #[serde(skip_serializing_if = "is_false")]
    pub delay_cache_until_active: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands the field over by reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

/// How several schedulers elect a leader. Kept and printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(
    missing_docs,
    reason = "the fields of component-base's type, as they are"
)]
pub struct LeaderElection {
    pub leader_elect: bool,
    pub lease_duration: String,
    pub renew_deadline: String,
    pub retry_period: String,
    pub resource_lock: String,
    pub resource_name: String,
    pub resource_namespace: String,
}

/// How the API server is reached. Kept and printed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(
    missing_docs,
    reason = "the fields of component-base's type, as they are"
)]
pub struct ClientConnection {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    #[serde(serialize_with = "short_float")]
    pub qps: f64,
    pub burst: i32,
}

/// Prints whole numbers without a fraction, as Go does.
fn short_float<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if number.fract() == 0.0 && number.abs() < 1e15 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a whole number below 10^15 has a place in 64 bits"
        )]
        serializer.serialize_i64(*number as i64)
    } else {
        serializer.serialize_f64(*number)
    }
}

/// A profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// The profile places pods with this `spec.schedulerName`.
    pub scheduler_name: String,
    /// As the configuration's field of the same name, for this profile alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentage_of_nodes_to_score: Option<i32>,
    /// The plugins of each extension point.
    pub plugins: Plugins,
    /// The arguments of plugins.
    pub plugin_config: Vec<PluginConfig>,
}

/// The arguments of one plugin.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PluginConfig {
    /// Name of the plugin.
    pub name: String,
    /// Its arguments.
    pub args: Args,
}

/// An HTTP service that is called in addition to the plugins. This crate's caller makes the calls.
#[derive(Debug, Clone, Default, PartialEq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Extender {
    /// The URL that its paths are appended to.
    pub url_prefix: String,
    /// Path of the call that filters nodes; empty if it does not filter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter_verb: String,
    /// Path of the call that chooses pods to evict.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub preempt_verb: String,
    /// Path of the call that scores nodes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prioritize_verb: String,
    /// Its scores are multiplied by this.
    #[serde(skip_serializing_if = "is_zero")]
    pub weight: i64,
    /// Path of the call that binds; empty if it does not bind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bind_verb: String,
    /// Whether it is called over TLS.
    #[serde(rename = "enableHTTPS", skip_serializing_if = "is_false")]
    pub enable_https: bool,
    /// The TLS settings, kept as they are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_config: Option<serde_json::Value>,
    /// How long a call may take, as Go writes durations.
    #[serde(
        rename = "httpTimeout",
        alias = "HTTPTimeout",
        skip_serializing_if = "String::is_empty"
    )]
    pub http_timeout: String,
    /// Whether it has its own cache of nodes, so that it needs only their names.
    #[serde(skip_serializing_if = "is_false")]
    pub node_cache_capable: bool,
    /// The extender is only called for pods that ask for one of these resources; for all pods if the list is empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub managed_resources: Vec<ManagedResource>,
    /// Whether a pod is placed even if the extender does not answer.
    #[serde(skip_serializing_if = "is_false")]
    pub ignorable: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands the field over by reference"
)]
fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// A resource that an extender manages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ManagedResource {
    /// Its name.
    pub name: String,
    /// Whether `NodeResourcesFit` leaves the resource to the extender.
    #[serde(skip_serializing_if = "is_false")]
    pub ignored_by_scheduler: bool,
}

/// An error in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct Problem {
    /// The path of the field, such as `profiles[0].plugins.filter.enabled[2]`.
    pub path: String,
    /// The value that was read and the values that are accepted.
    pub problem: String,
}

/// Every error in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ConfigError(pub Vec<Problem>);

impl ConfigError {
    pub(crate) fn one(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self(vec![Problem {
            path: path.into(),
            problem: problem.into(),
        }])
    }
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            kind: KIND,
            api_version: API_VERSION,
            parallelism: 16,
            leader_election: LeaderElection {
                leader_elect: true,
                lease_duration: "15s".to_owned(),
                renew_deadline: "10s".to_owned(),
                retry_period: "2s".to_owned(),
                resource_lock: "leases".to_owned(),
                resource_name: "kube-scheduler".to_owned(),
                resource_namespace: "kube-system".to_owned(),
            },
            client_connection: ClientConnection {
                kubeconfig: String::new(),
                accept_content_types: String::new(),
                content_type: "application/vnd.kubernetes.protobuf".to_owned(),
                qps: 50.0,
                burst: 100,
            },
            enable_profiling: true,
            enable_contention_profiling: Some(true),
            percentage_of_nodes_to_score: 0,
            pod_initial_backoff_seconds: 1,
            pod_max_backoff_seconds: 10,
            profiles: vec![Profile::default()],
            extenders: Vec::new(),
            delay_cache_until_active: false,
        }
    }
}

impl Default for Profile {
    fn default() -> Self {
        let mut profile = Self {
            scheduler_name: "default-scheduler".to_owned(),
            percentage_of_nodes_to_score: None,
            plugins: Plugins::default(),
            plugin_config: Vec::new(),
        };
        profile.fill_args();
        profile
    }
}

impl Profile {
    /// Adds the default arguments of every enabled plugin that takes arguments and has none yet, by name.
    pub(crate) fn fill_args(&mut self) {
        let names = self.plugins.enabled_names();
        for name in names {
            if self.plugin_config.iter().any(|config| config.name == name) {
                continue;
            }
            if let Some(args) = Args::default_of(&name) {
                self.plugin_config.push(PluginConfig { name, args });
            }
        }
    }
}
