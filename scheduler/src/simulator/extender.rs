//! The extenders of a configuration, called over HTTP as kube-scheduler calls them: the same arguments, the same time
//! limit, the same rule for the pods that concern an extender. The loop acts on the answers.

mod connect;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use axum::http::{self, Request, StatusCode};
use kube::client::Body;
use scheduling::config;
use scheduling::cycle::{Extended, Victims};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use self::connect::SettingsError;
pub(super) use self::connect::check;

/// The most bytes of an answer that are read.
const LONGEST: usize = 64 << 20;

/// One extender.
#[derive(Clone)]
pub(super) struct Extender {
    settings: config::Extender,
    client: Result<kube::Client, SettingsError>,
    timeout: Duration,
}

/// The pods on one node that an extender allows to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) uids: Vec<String>,
    pub(super) violations: usize,
}

/// Why an extender's answer does not count.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExtenderError {
    /// Its configuration. A configuration that does not pass [`check`] is not accepted.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// It cannot be called.
    #[error("failed {verb} with extender at URL {url}/{verb}, {why}")]
    Call {
        url: String,
        verb: String,
        why: CallFailure,
    },
    /// It answers with an error.
    #[error("{0}")]
    Said(String),
    #[error("extender {url}: its answer cannot be read: {why}")]
    Unreadable { url: String, why: String },
    #[error(
        "extender {url:?} claims a filtered node {node:?} which is not found in the input node list"
    )]
    OtherNode { url: String, node: String },
    #[error("it names the node {0:?}, which does not exist")]
    NoNode(String),
    #[error("it claims to preempt the pod of uid {uid:?}, which is not on node {node:?}")]
    NoVictim { uid: String, node: String },
    #[error("expected at least one victim pod on node {0:?}")]
    NoVictims(String),
}

/// Why a call of an extender gives no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallFailure {
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Unreachable(#[from] kube::Error),
    #[error("code {}", .0.as_u16())]
    Refused(StatusCode),
    #[error(transparent)]
    BrokeOff(#[from] axum::Error),
    #[error("the answer is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    #[error("the answer is empty; expected JSON")]
    Empty,
    #[error("no answer within {} s", .0.as_secs_f64())]
    NoAnswer(Duration),
}

/// A list of nodes in an answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Nodes {
    #[serde(alias = "Items")]
    items: Option<Vec<Value>>,
}

impl std::fmt::Debug for Extender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Extender")
            .field(&self.settings.url_prefix)
            .finish()
    }
}

impl Extender {
    pub(super) fn new(settings: config::Extender) -> Self {
        let client = connect::client(&settings);
        Self {
            client,
            timeout: connect::timeout(&settings).unwrap_or_default(),
            settings,
        }
    }

    /// Its name in results.
    pub(super) fn url(&self) -> &str {
        &self.settings.url_prefix
    }

    /// Whether a pod is placed even if the extender does not answer.
    pub(super) fn is_ignorable(&self) -> bool {
        self.settings.ignorable
    }

    pub(super) fn filters(&self) -> bool {
        !self.settings.filter_verb.is_empty()
    }

    pub(super) fn prioritizes(&self) -> bool {
        !self.settings.prioritize_verb.is_empty()
    }

    pub(super) fn binds(&self) -> bool {
        !self.settings.bind_verb.is_empty()
    }

    pub(super) fn preempts(&self) -> bool {
        !self.settings.preempt_verb.is_empty()
    }

    /// Whether the pod concerns the extender: it manages all pods, or a resource that one of the pod's containers
    /// names.
    pub(super) fn is_interested(&self, pod: &Value) -> bool {
        let managed = &self.settings.managed_resources;
        let names = |resources: Option<&Value>| {
            resources.and_then(Value::as_object).is_some_and(|of| {
                managed
                    .iter()
                    .any(|resource| of.contains_key(&resource.name))
            })
        };
        let containers = ["/spec/containers", "/spec/initContainers"]
            .iter()
            .filter_map(|path| pod.pointer(path)?.as_array())
            .flatten();
        managed.is_empty()
            || containers.into_iter().any(|container| {
                names(container.pointer("/resources/requests"))
                    || names(container.pointer("/resources/limits"))
            })
    }

    /// The nodes that it accepts for the pod, and its answer as it came.
    pub(super) async fn filter(
        &self,
        pod: &Value,
        nodes: &[Value],
    ) -> Result<(Extended, Value), ExtenderError> {
        let answer = self
            .ask(&self.settings.filter_verb, &self.args(pod, nodes))
            .await?;
        let said: String = self.part(&answer, "Error")?;
        if !said.is_empty() {
            return Err(ExtenderError::Said(said));
        }
        let names: Option<Vec<String>> = self.part(&answer, "NodeNames")?;
        let list: Option<Nodes> = self.part(&answer, "Nodes")?;
        let fit = match names {
            Some(names) if self.settings.node_cache_capable => {
                let asked = |named: &&String| !nodes.iter().any(|node| name(node) == **named);
                if let Some(other) = names.iter().find(asked) {
                    return Err(ExtenderError::OtherNode {
                        url: self.url().to_owned(),
                        node: other.clone(),
                    });
                }
                names
            }
            _ => {
                let items = list.unwrap_or_default().items;
                let items = items.iter().flatten();
                items.map(|node| name(node).to_owned()).collect()
            }
        };
        let extended = Extended {
            fit,
            failed: self.part(&answer, "FailedNodes")?,
            unresolvable: self.part(&answer, "FailedAndUnresolvableNodes")?,
        };
        let shown = json!({
            "Nodes": field(&answer, "Nodes"),
            "NodeNames": field(&answer, "NodeNames"),
            "FailedNodes": field(&answer, "FailedNodes"),
            "FailedAndUnresolvableNodes": field(&answer, "FailedAndUnresolvableNodes"),
            "Error": said,
        });
        Ok((extended, shown))
    }

    /// Its scores of these nodes, times its weight, times ten.
    pub(super) async fn prioritize(
        &self,
        pod: &Value,
        nodes: &[Value],
    ) -> Result<BTreeMap<String, i64>, ExtenderError> {
        let answer = self
            .ask(&self.settings.prioritize_verb, &self.args(pod, nodes))
            .await?;
        let rows: Option<Vec<Value>> = self.read(&answer)?;
        let weight = self.settings.weight.saturating_mul(10);
        let mut scores = BTreeMap::new();
        for row in rows.unwrap_or_default() {
            let host: String = self.part(&row, "Host")?;
            let score: i64 = self.part(&row, "Score")?;
            scores.insert(host, score.saturating_mul(weight));
        }
        Ok(scores)
    }

    /// The candidates whose evictions it allows, by the uids of pods, and its answer as it came. `objects` are the
    /// victims of each candidate.
    pub(super) async fn preempt(
        &self,
        pod: &Value,
        candidates: &[Victims],
        objects: impl Fn(&Victims) -> Vec<Value>,
    ) -> Result<(BTreeMap<String, Agreed>, Value), ExtenderError> {
        let cached = self.settings.node_cache_capable;
        let by_node: Map<String, Value> = candidates
            .iter()
            .map(|of| {
                let pods = if cached {
                    let uids = of.pods.iter();
                    uids.map(|pod| json!({ "UID": &*pod.uid })).collect()
                } else {
                    objects(of)
                };
                let victims = json!({ "Pods": pods, "NumPDBViolations": of.violations });
                (of.node.to_string(), victims)
            })
            .collect();
        let (whole, meta) = if cached {
            (Value::Null, Value::Object(by_node))
        } else {
            (Value::Object(by_node), Value::Null)
        };
        let args = json!({ "Pod": pod, "NodeNameToVictims": whole, "NodeNameToMetaVictims": meta });
        let answer = self.ask(&self.settings.preempt_verb, &args).await?;
        let nodes: BTreeMap<String, Value> = self.part(&answer, "NodeNameToMetaVictims")?;
        let mut agreed = BTreeMap::new();
        for (node, victims) in nodes {
            let pods: Option<Vec<Value>> = self.part(&victims, "Pods")?;
            let mut uids = Vec::new();
            for pod in pods.unwrap_or_default() {
                uids.push(self.part(&pod, "UID")?);
            }
            let violations = self.part(&victims, "NumPDBViolations")?;
            agreed.insert(node, Agreed { uids, violations });
        }
        Ok((agreed, answer))
    }

    /// Has it bind the pod.
    pub(super) async fn bind(&self, pod: &Value, node: &str) -> Result<Value, ExtenderError> {
        let text = |path| {
            pod.pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let args = json!({
            "PodName": text("/metadata/name"),
            "PodNamespace": text("/metadata/namespace"),
            "PodUID": text("/metadata/uid"),
            "Node": node,
        });
        let answer = self.ask(&self.settings.bind_verb, &args).await?;
        let said: String = self.part(&answer, "Error")?;
        if said.is_empty() {
            Ok(answer)
        } else {
            Err(ExtenderError::Said(said))
        }
    }

    /// Passes a question of any verb on: `filter`, `prioritize`, `preempt` or `bind`.
    pub(super) async fn pass_on(
        &self,
        verb: &str,
        body: &Value,
    ) -> Option<Result<Value, ExtenderError>> {
        let path = match verb {
            "filter" => &self.settings.filter_verb,
            "prioritize" => &self.settings.prioritize_verb,
            "preempt" => &self.settings.preempt_verb,
            "bind" => &self.settings.bind_verb,
            _ => return None,
        };
        if path.is_empty() {
            return None;
        }
        Some(self.ask(path, body).await)
    }

    fn args(&self, pod: &Value, nodes: &[Value]) -> Value {
        if self.settings.node_cache_capable {
            let names: Vec<&str> = nodes.iter().map(name).collect();
            json!({ "Pod": pod, "Nodes": null, "NodeNames": names })
        } else {
            let list =
                json!({ "apiVersion": "v1", "kind": "NodeList", "metadata": {}, "items": nodes });
            json!({ "Pod": pod, "Nodes": list, "NodeNames": null })
        }
    }

    async fn ask(&self, verb: &str, args: &Value) -> Result<Value, ExtenderError> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        let call = async {
            let request = Request::post(format!("/{}", verb.trim_start_matches('/')))
                .header("Content-Type", "application/json")
                .body(Body::from(args.to_string().into_bytes()))?;
            let response = client.send(request).await?;
            let status = response.status();
            if status != StatusCode::OK {
                return Err(CallFailure::Refused(status));
            }
            let body = axum::body::to_bytes(axum::body::Body::new(response.into_body()), LONGEST);
            let body = body.await?;
            // As in kube-scheduler, only the first JSON value is read.
            let mut values = serde_json::Deserializer::from_slice(&body).into_iter();
            match values.next() {
                Some(answer) => Ok(answer?),
                None => Err(CallFailure::Empty),
            }
        };
        let why = match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(why)) => why,
            Err(_elapsed) => CallFailure::NoAnswer(self.timeout),
        };
        Err(ExtenderError::Call {
            url: self.url().trim_end_matches('/').to_owned(),
            verb: verb.to_owned(),
            why,
        })
    }

    fn unreadable(&self, why: impl Display) -> ExtenderError {
        ExtenderError::Unreadable {
            url: self.url().to_owned(),
            why: why.to_string(),
        }
    }

    /// A field of an answer, ignoring case as Go does; the type's default if it is missing or null.
    fn part<T: DeserializeOwned + Default>(
        &self,
        answer: &Value,
        name: &str,
    ) -> Result<T, ExtenderError> {
        if !(answer.is_object() || answer.is_null()) {
            return Err(self.unreadable(format_args!(
                "expected an object with {name}, read {}",
                short(answer)
            )));
        }
        match field(answer, name) {
            None | Some(Value::Null) => Ok(T::default()),
            Some(value) => {
                T::deserialize(value).map_err(|why| self.unreadable(format_args!("{name}: {why}")))
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, answer: &Value) -> Result<T, ExtenderError> {
        T::deserialize(answer).map_err(|why| self.unreadable(why))
    }
}

/// The beginning of a value, for a message.
fn short(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}

fn name(object: &Value) -> &str {
    object
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// A field in any case of its letters, as Go reads it.
fn field<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    let fields: &Map<String, Value> = object.as_object()?;
    fields.get(name).or_else(|| {
        let same = |(key, _): &(&String, &Value)| key.eq_ignore_ascii_case(name);
        fields.iter().find(same).map(|(_, value)| value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extender_looks_at_pods_that_name_its_resources() {
        let settings = config::Extender {
            url_prefix: "http://127.0.0.1:1/".into(),
            managed_resources: vec![config::ManagedResource {
                name: "example.com/gpu".into(),
                ignored_by_scheduler: false,
            }],
            ..config::Extender::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let extender = Extender::new(settings);
        let pod = |resources| json!({ "spec": { "initContainers": [{ "resources": resources }] } });

        assert!(extender.is_interested(&pod(json!({ "limits": { "example.com/gpu": "1" } }))));
        assert!(!extender.is_interested(&pod(json!({ "requests": { "cpu": "1" } }))));
        assert!(!extender.is_interested(&json!({})));
    }

    #[test]
    fn fields_are_read_in_any_case() {
        let answer = json!({ "nodenames": ["a"], "Error": "" });

        assert_eq!(field(&answer, "NodeNames"), Some(&json!(["a"])));
        assert!(field(&answer, "Nodes").is_none());
    }
}
