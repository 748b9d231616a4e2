//! Extenders of a configuration, called over HTTP as kube-scheduler calls them: the same arguments, the same time limit,
//! the same rule about which pods are an extender's business. What an answer means for the pod is the loop's to carry
//! out.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::{Request, Uri};
use kube::client::Body;
use scheduling::config;
use scheduling::cycle::{Extended, Victims};
use serde_json::{Map, Value, json};

/// How long an extender may take where its configuration says nothing (`DefaultExtenderTimeout`).
const TIMEOUT: Duration = Duration::from_secs(5);
/// Of an answer, bytes that are read.
const LONGEST: usize = 64 << 20;

/// One extender.
#[derive(Clone)]
pub(super) struct Extender {
    settings: config::Extender,
    client: Result<kube::Client, String>,
    timeout: Duration,
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
        let asked = crate::args::duration(&settings.http_timeout).unwrap_or_default();
        let timeout = if asked.is_zero() { TIMEOUT } else { asked };
        Self {
            client: client(&settings, timeout),
            settings,
            timeout,
        }
    }

    /// Its name in results.
    pub(super) fn url(&self) -> &str {
        &self.settings.url_prefix
    }

    /// Whether a pod is placed also when the extender does not answer.
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

    /// Whether the pod is its business: it manages all pods, or a resource that one of the pod's containers names.
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

    /// Which of these nodes it takes the pod on, and its answer as it came.
    pub(super) async fn filter(
        &self,
        pod: &Value,
        nodes: &[Value],
    ) -> Result<(Extended, Value), String> {
        let answer = self
            .ask(&self.settings.filter_verb, &self.args(pod, nodes))
            .await?;
        let said = field(&answer, "Error")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !said.is_empty() {
            return Err(said.to_owned());
        }
        let fit = if self.settings.node_cache_capable && !is_null(field(&answer, "NodeNames")) {
            texts(field(&answer, "NodeNames"))
        } else {
            let items = field(&answer, "Nodes").and_then(|nodes| field(nodes, "items"));
            let items = items.and_then(Value::as_array).into_iter().flatten();
            items.map(|node| name(node).to_owned()).collect()
        };
        let reasons = |key: &str| -> BTreeMap<String, String> {
            let reasons = field(&answer, key)
                .and_then(Value::as_object)
                .into_iter()
                .flatten();
            reasons
                .map(|(node, why)| (node.clone(), why.as_str().unwrap_or_default().to_owned()))
                .collect()
        };
        let extended = Extended {
            fit,
            failed: reasons("FailedNodes"),
            unresolvable: reasons("FailedAndUnresolvableNodes"),
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

    /// What these nodes are worth to it: its scores, times its weight, times ten.
    pub(super) async fn prioritize(
        &self,
        pod: &Value,
        nodes: &[Value],
    ) -> Result<BTreeMap<String, i64>, String> {
        let answer = self
            .ask(&self.settings.prioritize_verb, &self.args(pod, nodes))
            .await?;
        let rows = answer.as_array().into_iter().flatten();
        let weight = self.settings.weight.saturating_mul(10);
        let scores = rows.filter_map(|row| {
            let host = field(row, "Host")?.as_str()?.to_owned();
            Some((host, field(row, "Score")?.as_i64()?.saturating_mul(weight)))
        });
        Ok(scores.collect())
    }

    /// Whether it agrees that these pods are evicted, and its answer as it came.
    pub(super) async fn preempt(
        &self,
        pod: &Value,
        victims: &Victims,
        objects: &[Value],
    ) -> Result<(bool, Value), String> {
        let uids = victims
            .pods
            .iter()
            .map(|victim| json!({ "UID": &*victim.uid }));
        let uids: Vec<Value> = uids.collect();
        let count = victims.violations;
        let (whole, meta) = if self.settings.node_cache_capable {
            let meta = json!({ &*victims.node: { "Pods": uids, "NumPDBViolations": count } });
            (Value::Null, meta)
        } else {
            let whole = json!({ &*victims.node: { "Pods": objects, "NumPDBViolations": count } });
            (whole, Value::Null)
        };
        let args = json!({ "Pod": pod, "NodeNameToVictims": whole, "NodeNameToMetaVictims": meta });
        let answer = self.ask(&self.settings.preempt_verb, &args).await?;
        let nodes = field(&answer, "NodeNameToMetaVictims").and_then(Value::as_object);
        let agreed = nodes.is_some_and(|nodes| nodes.contains_key(&*victims.node));
        Ok((agreed, answer))
    }

    /// Lets it bind the pod.
    pub(super) async fn bind(&self, pod: &Value, node: &str) -> Result<Value, String> {
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
        match field(&answer, "Error").and_then(Value::as_str) {
            Some(said) if !said.is_empty() => Err(said.to_owned()),
            _ => Ok(answer),
        }
    }

    /// Passes any question on: `filter`, `prioritize`, `preempt` or `bind`.
    pub(super) async fn pass_on(&self, verb: &str, body: &Value) -> Option<Result<Value, String>> {
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

    async fn ask(&self, verb: &str, args: &Value) -> Result<Value, String> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        let request = Request::post(format!("/{}", verb.trim_start_matches('/')))
            .header("Content-Type", "application/json")
            .body(Body::from(args.to_string().into_bytes()))
            .map_err(|error| format!("{verb}: {error}"))?;
        let call = async {
            let response = client
                .send(request)
                .await
                .map_err(|error| error.to_string())?;
            let status = response.status();
            let body = axum::body::to_bytes(axum::body::Body::new(response.into_body()), LONGEST);
            let body = body.await.map_err(|error| error.to_string())?;
            if !status.is_success() {
                return Err(format!(
                    "failed {verb} with extender at URL {}, code {}",
                    self.url(),
                    status.as_u16()
                ));
            }
            serde_json::from_slice(&body)
                .map_err(|error| format!("{verb}: the answer is not JSON: {error}"))
        };
        match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(why)) => Err(format!("extender {}: {why}", self.url())),
            Err(_) => Err(format!(
                "extender {}: no answer to {verb} within {} s",
                self.url(),
                self.timeout.as_secs_f64()
            )),
        }
    }
}

fn client(settings: &config::Extender, timeout: Duration) -> Result<kube::Client, String> {
    let url: Uri = settings
        .url_prefix
        .trim_end_matches('/')
        .parse()
        .map_err(|error| format!("{}: {error}", settings.url_prefix))?;
    let mut config = kube::Config::new(url);
    config.default_retry = false;
    config.connect_timeout = Some(timeout);
    config.read_timeout = Some(timeout);
    if settings.enable_https {
        let tls = settings.tls_config.as_ref();
        let tls = |name: &str| tls.and_then(|tls| tls.get(name));
        let insecure = tls("insecure").and_then(Value::as_bool).unwrap_or(false);
        config.accept_invalid_certs = insecure;
        config.tls_server_name = tls("serverName").and_then(Value::as_str).map(str::to_owned);
        config.root_cert_file = tls("caFile").and_then(Value::as_str).map(Into::into);
    }
    kube::Client::try_from(config).map_err(|error| error.to_string())
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

fn is_null(value: Option<&Value>) -> bool {
    value.is_none_or(Value::is_null)
}

fn texts(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|text| text.as_str().map(str::to_owned))
        .collect()
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

        assert_eq!(texts(field(&answer, "NodeNames")), ["a"]);
        assert!(field(&answer, "Nodes").is_none());
    }
}
