//! Turns a written configuration into a complete one. It is as strict as kube-scheduler: an unknown field is an error
//! that names its path.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::args::Args;
use super::plugins::{PluginList, Plugins};
use super::{
    API_VERSION, ConfigError, Configuration, Extender, KIND, LeaderElection, PluginConfig, Problem,
    Profile,
};
use crate::plugin::Point;

impl Configuration {
    /// Reads a configuration, fills in every default and validates it.
    ///
    /// # Errors
    ///
    /// Every unusable part: unknown fields, values and plugins, and anything that kube-scheduler's validation
    /// refuses.
    pub fn read(written: &Value) -> Result<Self, ConfigError> {
        let configuration = Self::decode(written)?;
        configuration.validate()?;
        Ok(configuration)
    }

    /// Reads a configuration and fills in every default, without validating values.
    pub(super) fn decode(written: &Value) -> Result<Self, ConfigError> {
        let mut written = written.clone();
        strip_nulls(&mut written);
        let Value::Object(mut fields) = written else {
            return Err(ConfigError::one(
                "configuration",
                "is no object; write a KubeSchedulerConfiguration",
            ));
        };
        for (field, wanted) in [("kind", KIND), ("apiVersion", API_VERSION)] {
            if let Some(value) = fields.remove(field)
                && value.as_str() != Some(wanted)
            {
                return Err(ConfigError::one(
                    field,
                    format!("{value} cannot be used; write {wanted:?}"),
                ));
            }
        }
        let profiles = take_list(&mut fields, "profiles")?;
        let extenders = take_list(&mut fields, "extenders")?;
        let top: Top = serde_json::from_value(Value::Object(fields))
            .map_err(|error| ConfigError::one("configuration", error.to_string()))?;
        let mut problems = Vec::new();
        let mut configuration = top.filled();
        configuration.profiles = collect(profiles, "profiles", profile, &mut problems);
        configuration.extenders = collect(extenders, "extenders", extender, &mut problems);
        if configuration.profiles.is_empty() {
            configuration.profiles.push(Profile::default());
        }
        if let [only] = configuration.profiles.as_mut_slice()
            && only.scheduler_name.is_empty()
        {
            "default-scheduler".clone_into(&mut only.scheduler_name);
        }
        if problems.is_empty() {
            Ok(configuration)
        } else {
            Err(ConfigError(problems))
        }
    }
}

/// Removes nulls: a null field counts as absent.
fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(strip_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(strip_nulls),
        _ => {}
    }
}

fn take_list(fields: &mut Map<String, Value>, field: &str) -> Result<Vec<Value>, ConfigError> {
    match fields.remove(field) {
        None => Ok(Vec::new()),
        Some(Value::Array(values)) => Ok(values),
        Some(other) => Err(ConfigError::one(
            field,
            format!("{other} is no list; write a list"),
        )),
    }
}

fn collect<T>(
    written: Vec<Value>,
    field: &str,
    read: fn(&str, Value) -> Result<T, ConfigError>,
    problems: &mut Vec<Problem>,
) -> Vec<T> {
    let mut values = Vec::new();
    for (at, written) in written.into_iter().enumerate() {
        match read(&format!("{field}[{at}]"), written) {
            Ok(value) => values.push(value),
            Err(ConfigError(more)) => problems.extend(more),
        }
    }
    values
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Top {
    parallelism: Option<i32>,
    #[serde(default)]
    leader_election: WrittenElection,
    #[serde(default)]
    client_connection: WrittenConnection,
    health_bind_address: Option<String>,
    metrics_bind_address: Option<String>,
    enable_profiling: Option<bool>,
    enable_contention_profiling: Option<bool>,
    percentage_of_nodes_to_score: Option<i32>,
    pod_initial_backoff_seconds: Option<i64>,
    pod_max_backoff_seconds: Option<i64>,
    delay_cache_until_active: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct WrittenElection {
    leader_elect: Option<bool>,
    lease_duration: String,
    renew_deadline: String,
    retry_period: String,
    resource_lock: String,
    resource_name: String,
    resource_namespace: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct WrittenConnection {
    kubeconfig: String,
    accept_content_types: String,
    content_type: String,
    qps: f64,
    burst: i32,
}

fn or(written: String, default: String) -> String {
    // Go prints an empty duration as 0s, and replaces it with the default.
    if written.is_empty() || written == "0s" {
        default
    } else {
        written
    }
}

impl Top {
    fn filled(self) -> Configuration {
        let mut filled = Configuration::default();
        // Version 1 reads and ignores these fields, as kube-scheduler does.
        drop((self.health_bind_address, self.metrics_bind_address));
        let election = self.leader_election;
        let defaults = filled.leader_election;
        filled.leader_election = LeaderElection {
            leader_elect: election.leader_elect.unwrap_or(defaults.leader_elect),
            lease_duration: or(election.lease_duration, defaults.lease_duration),
            renew_deadline: or(election.renew_deadline, defaults.renew_deadline),
            retry_period: or(election.retry_period, defaults.retry_period),
            resource_lock: or(election.resource_lock, defaults.resource_lock),
            resource_name: or(election.resource_name, defaults.resource_name),
            resource_namespace: or(election.resource_namespace, defaults.resource_namespace),
        };
        let connection = self.client_connection;
        filled.client_connection.kubeconfig = connection.kubeconfig;
        filled.client_connection.accept_content_types = connection.accept_content_types;
        if !connection.content_type.is_empty() {
            filled.client_connection.content_type = connection.content_type;
        }
        if connection.qps != 0.0 {
            filled.client_connection.qps = connection.qps;
        }
        if connection.burst != 0 {
            filled.client_connection.burst = connection.burst;
        }
        filled.parallelism = self.parallelism.unwrap_or(filled.parallelism);
        filled.enable_profiling = self.enable_profiling.unwrap_or(true);
        filled.enable_contention_profiling = self
            .enable_contention_profiling
            .or(filled.enable_profiling.then_some(true));
        filled.percentage_of_nodes_to_score = self.percentage_of_nodes_to_score.unwrap_or_default();
        filled.pod_initial_backoff_seconds = self
            .pod_initial_backoff_seconds
            .unwrap_or(filled.pod_initial_backoff_seconds);
        filled.pod_max_backoff_seconds = self
            .pod_max_backoff_seconds
            .unwrap_or(filled.pod_max_backoff_seconds);
        filled.delay_cache_until_active = self.delay_cache_until_active.unwrap_or_default();
        filled
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenProfile {
    #[serde(default)]
    scheduler_name: String,
    percentage_of_nodes_to_score: Option<i32>,
    plugins: Option<Map<String, Value>>,
    #[serde(default)]
    plugin_config: Vec<WrittenConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenConfig {
    #[serde(default)]
    name: String,
    args: Option<Value>,
}

fn profile(path: &str, written: Value) -> Result<Profile, ConfigError> {
    let written: WrittenProfile = serde_json::from_value(written)
        .map_err(|error| ConfigError::one(path, error.to_string()))?;
    let plugins = match written.plugins {
        Some(sets) => Plugins::merged(&sets_of(path, sets)?),
        None => Plugins::default(),
    };
    let mut profile = Profile {
        scheduler_name: written.scheduler_name,
        percentage_of_nodes_to_score: written.percentage_of_nodes_to_score,
        plugins,
        plugin_config: Vec::new(),
    };
    let mut problems = Vec::new();
    for (at, config) in written.plugin_config.into_iter().enumerate() {
        let path = format!("{path}.pluginConfig[{at}]");
        if profile
            .plugin_config
            .iter()
            .any(|other| other.name == config.name)
        {
            problems.push(Problem {
                path,
                problem: format!(
                    "plugin {:?} has arguments twice; keep one entry",
                    config.name
                ),
            });
            continue;
        }
        let args = config.args.unwrap_or_else(|| Value::Object(Map::new()));
        match Args::read(&config.name, &format!("{path}.args"), args) {
            Ok(args) => profile.plugin_config.push(PluginConfig {
                name: config.name,
                args,
            }),
            Err(ConfigError(more)) => problems.extend(more),
        }
    }
    if !problems.is_empty() {
        return Err(ConfigError(problems));
    }
    profile.fill_args();
    Ok(profile)
}

fn sets_of(path: &str, sets: Map<String, Value>) -> Result<Plugins, ConfigError> {
    let mut plugins = Plugins {
        at: std::collections::BTreeMap::new(),
        multi_point: PluginList::default(),
    };
    for (key, written) in sets {
        let path = format!("{path}.plugins.{key}");
        let point = Point::ALL.into_iter().find(|point| point.key() == key);
        if point.is_none() && key != "multiPoint" {
            let known: Vec<&str> = Point::ALL.iter().map(|point| point.key()).collect();
            return Err(ConfigError::one(
                path,
                format!(
                    "is no extension point; write multiPoint or one of {}",
                    known.join(", ")
                ),
            ));
        }
        let list: PluginList = serde_json::from_value(written)
            .map_err(|error| ConfigError::one(&path, error.to_string()))?;
        match point {
            Some(point) => {
                plugins.at.insert(point, list);
            }
            None => plugins.multi_point = list,
        }
    }
    Ok(plugins)
}

fn extender(path: &str, written: Value) -> Result<Extender, ConfigError> {
    serde_json::from_value(written).map_err(|error| ConfigError::one(path, error.to_string()))
}
