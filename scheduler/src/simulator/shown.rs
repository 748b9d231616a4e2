//! The displayed form of a `KubeSchedulerConfiguration`: as it was written, in the order and with the zero values of
//! Go's encoding of the decoded `v1` type, and without the defaults that kube-scheduler fills in.
//!
//! `scheduling::config` checks configurations.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The answer of `GET /api/v1/schedulerconfiguration`, and `schedulerConfig` in an export.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Shown {
    #[serde(skip_serializing_if = "String::is_empty")]
    kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallelism: Option<i32>,
    leader_election: LeaderElection,
    client_connection: ClientConnection,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_profiling: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_contention_profiling: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentage_of_nodes_to_score: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_initial_backoff_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_max_backoff_seconds: Option<i64>,
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    profiles: Vec<Profile>,
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    extenders: Vec<ShownExtender>,
    #[serde(skip_serializing_if = "is_default")]
    delay_cache_until_active: bool,
}

impl Shown {
    /// Reads a configuration; unknown fields are dropped, as in Go's JSON decoder.
    ///
    /// # Errors
    ///
    /// The field that has a value of the wrong type.
    pub fn read(value: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(value)
    }

    /// As a JSON value, to be checked and filled with defaults.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaderElection {
    leader_elect: Option<bool>,
    lease_duration: String,
    renew_deadline: String,
    retry_period: String,
    resource_lock: String,
    resource_name: String,
    resource_namespace: String,
}

impl Default for LeaderElection {
    fn default() -> Self {
        let zero = || "0s".to_owned();
        Self {
            leader_elect: None,
            lease_duration: zero(),
            renew_deadline: zero(),
            retry_period: zero(),
            resource_lock: String::new(),
            resource_name: String::new(),
            resource_namespace: String::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientConnection {
    kubeconfig: String,
    accept_content_types: String,
    content_type: String,
    qps: Value,
    burst: i32,
}

impl Default for ClientConnection {
    fn default() -> Self {
        Self {
            kubeconfig: String::new(),
            accept_content_types: String::new(),
            content_type: String::new(),
            qps: 0.into(),
            burst: 0,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Profile {
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduler_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentage_of_nodes_to_score: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plugins: Option<Plugins>,
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    plugin_config: Vec<PluginConfig>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Plugins {
    pre_enqueue: PluginSet,
    queue_sort: PluginSet,
    pre_filter: PluginSet,
    filter: PluginSet,
    post_filter: PluginSet,
    pre_score: PluginSet,
    score: PluginSet,
    reserve: PluginSet,
    permit: PluginSet,
    pre_bind: PluginSet,
    bind: PluginSet,
    post_bind: PluginSet,
    multi_point: PluginSet,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct PluginSet {
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    enabled: Vec<Plugin>,
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    disabled: Vec<Plugin>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Plugin {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<i32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct PluginConfig {
    name: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ShownExtender {
    url_prefix: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    filter_verb: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    preempt_verb: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    prioritize_verb: String,
    #[serde(skip_serializing_if = "is_default")]
    weight: i64,
    #[serde(skip_serializing_if = "String::is_empty")]
    bind_verb: String,
    #[serde(rename = "enableHTTPS", skip_serializing_if = "is_default")]
    enable_https: bool,
    #[serde(rename = "tlsConfig", skip_serializing_if = "Option::is_none")]
    tls_config: Option<Map<String, Value>>,
    #[serde(rename = "httpTimeout", alias = "HTTPTimeout")]
    http_timeout: String,
    #[serde(skip_serializing_if = "is_default")]
    node_cache_capable: bool,
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    managed_resources: Vec<Value>,
    #[serde(skip_serializing_if = "is_default")]
    ignorable: bool,
}

impl Default for ShownExtender {
    fn default() -> Self {
        Self {
            url_prefix: String::new(),
            filter_verb: String::new(),
            preempt_verb: String::new(),
            prioritize_verb: String::new(),
            weight: 0,
            bind_verb: String::new(),
            enable_https: false,
            tls_config: None,
            http_timeout: "0s".to_owned(),
            node_cache_capable: false,
            managed_resources: Vec::new(),
            ignorable: false,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A list; like Go, accepts `null` for an empty one.
fn list<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(value: Value) -> String {
        serde_json::to_string(&Shown::read(&value).unwrap()).unwrap()
    }

    #[test]
    fn zero_values_are_printed_where_go_prints_them() {
        let printed = shown(json!({
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{ "plugins": { "multiPoint": { "enabled": [{ "name": "A", "weight": 2 }] } }, "later": 1 }],
            "extenders": [{ "urlPrefix": "http://e/", "weight": 1 }]
        }));

        assert!(printed.starts_with(
            r#"{"kind":"KubeSchedulerConfiguration","leaderElection":{"leaderElect":null,"leaseDuration":"0s""#
        ));
        assert!(printed.contains(r#""plugins":{"preEnqueue":{},"queueSort":{},"preFilter":{}"#));
        assert!(printed.ends_with(
            r#""extenders":[{"urlPrefix":"http://e/","weight":1,"httpTimeout":"0s"}]}"#
        ));
        assert!(!printed.contains("later"));
    }

    #[test]
    fn a_wrong_type_is_named() {
        let wrong = Shown::read(&json!({ "profiles": "x" })).unwrap_err();

        assert!(wrong.to_string().contains("expected a sequence"), "{wrong}");
    }
}
