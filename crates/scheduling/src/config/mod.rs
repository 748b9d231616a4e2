//! `KubeSchedulerConfiguration` of `kubescheduler.config.k8s.io/v1` as values: read strictly, filled with
//! kube-scheduler's defaults, judged, and printed. Never runs anything.

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
    /// How many nodes are looked at side by side. Kept and printed; nothing here runs in parallel.
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
    /// How many percent of all nodes have to fit before the search ends; 0 lets the number of nodes decide.
    pub percentage_of_nodes_to_score: i32,
    /// How long a pod that failed waits at first, in seconds.
    pub pod_initial_backoff_seconds: i64,
    /// How long a pod that failed waits at most, in seconds.
    pub pod_max_backoff_seconds: i64,
    /// The profiles, of which a pod names one by `spec.schedulerName`.
    pub profiles: Vec<Profile>,
    /// HTTP services that are asked beside the plugins.
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

/// How several schedulers agree on one. Kept and printed.
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

/// Whole numbers without a fraction, as Go prints them.
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
    /// Pods with this `spec.schedulerName` are placed by it.
    pub scheduler_name: String,
    /// As the configuration's own, for this profile alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentage_of_nodes_to_score: Option<i32>,
    /// Which plugins work where.
    pub plugins: Plugins,
    /// Arguments of plugins.
    pub plugin_config: Vec<PluginConfig>,
}

/// Arguments of one plugin.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PluginConfig {
    /// Name of the plugin.
    pub name: String,
    /// Its arguments.
    pub args: Args,
}

/// An HTTP service that is asked beside the plugins. The call is the caller's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Extender {
    /// Where it is.
    pub url_prefix: String,
    /// Path of the question which nodes fit; empty where it is not asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter_verb: String,
    /// Path of the question which pods to evict.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub preempt_verb: String,
    /// Path of the question what nodes are worth.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prioritize_verb: String,
    /// What its scores are multiplied with.
    #[serde(skip_serializing_if = "is_zero")]
    pub weight: i64,
    /// Path of the binding; empty where it does not bind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bind_verb: String,
    /// Whether it is reached over TLS.
    #[serde(rename = "enableHTTPS", skip_serializing_if = "is_false")]
    pub enable_https: bool,
    /// How TLS is set up; kept as it is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_config: Option<serde_json::Value>,
    /// How long it may take, as Go writes durations.
    #[serde(
        rename = "httpTimeout",
        alias = "HTTPTimeout",
        skip_serializing_if = "String::is_empty"
    )]
    pub http_timeout: String,
    /// Whether it knows the nodes, so that their names suffice.
    #[serde(skip_serializing_if = "is_false")]
    pub node_cache_capable: bool,
    /// Pods that ask for none of these are not its business; all pods are where the list is empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub managed_resources: Vec<ManagedResource>,
    /// Whether a pod is placed also when it does not answer.
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

/// Something in a configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct Problem {
    /// Where it stands, such as `profiles[0].plugins.filter.enabled[2]`.
    pub path: String,
    /// What was read, what is accepted.
    pub problem: String,
}

/// Everything in a configuration that cannot be used.
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
    /// Adds the default arguments of every enabled plugin that has arguments and none yet, by name.
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
