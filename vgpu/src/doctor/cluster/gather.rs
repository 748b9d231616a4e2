//! Asks the API server. Every answer is kept, and so is every no.

use std::fmt::{self, Display};
use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::Client;
use kube::client::Body;
use kube_api::resource_claims::{GROUP, VERSIONS};
use serde_json::{Map, Value, json};

use super::objects::{flag, full_name, is_agent, is_part, items, name, namespace, text};
use super::rights::{RIGHTS, Right};
use super::{Access, Answer, ClusterFacts, DryRun};
use crate::args::doctor::DoctorArgs;
use crate::doctor::node;
use crate::doctor::root::unix_now;

/// How many objects one answer holds.
const PAGE: usize = 500;
/// Agents whose metrics are asked for.
const MOST_AGENTS: usize = 5;
/// The prefix of the probe's name: a Pod that asks for a GPU.
const PROBE: &str = "vgpu-doctor-";
pub(in crate::doctor) fn gather(args: &DoctorArgs) -> anyhow::Result<ClusterFacts> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async {
        let config = kube_access::config(
            args.kubeconfig.as_deref(),
            args.context.as_deref(),
            "give --kubeconfig FILE",
        )
        .await?;
        let mut facts = ClusterFacts {
            server: config.cluster_url.to_string(),
            namespace: args.namespace.clone(),
            asked_unix: unix_now(),
            ..ClusterFacts::default()
        };
        let asker = Asker {
            client: Client::try_from(config)?,
            timeout: args.timeout,
        };
        asker.first(&mut facts).await?;
        asker.lists(&mut facts).await;
        facts.settle(args);
        asker.of_the_namespace(&mut facts).await;
        asker.certificate(&mut facts).await;
        facts.dry_run = Some(asker.dry_run(&facts).await);
        asker.rights(&mut facts).await;
        asker.agents(&mut facts).await;
        asker.slices(&mut facts).await;
        asker.optional_apis(&mut facts).await;
        facts.trim();
        Ok(facts)
    })
}

/// An answer of the API server.
struct Said {
    status: u16,
    body: Vec<u8>,
    date: Option<u64>,
}

impl Said {
    fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The text of a refusal, in one line.
    fn no(&self) -> Option<String> {
        if (200..300).contains(&self.status) {
            return None;
        }
        let said = self.value();
        let message = text(&said, "/message");
        Some(if message.is_empty() {
            format!("status {}", self.status)
        } else {
            message.to_owned()
        })
    }
}

/// A question to the API server that it did not answer.
#[derive(Debug)]
enum NoAnswer {
    /// The request could not be made.
    Unsent(String),
    /// The connection failed, with its causes.
    Broken(String),
    /// Nothing came in this time.
    Late(Duration),
    /// The server refused, in its own words.
    Refused(String),
}

impl NoAnswer {
    fn broken(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Broken(describe(&anyhow::Error::from(error)))
    }
}

impl Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsent(why) | Self::Broken(why) | Self::Refused(why) => f.write_str(why),
            Self::Late(limit) => write!(f, "no answer within {limit:?}"),
        }
    }
}

struct Asker {
    client: Client,
    timeout: Duration,
}

impl Asker {
    async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Said, NoAnswer> {
        let bytes = body.map(Value::to_string).unwrap_or_default();
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .body(Body::from(bytes.into_bytes()))
            .map_err(|error| NoAnswer::Unsent(error.to_string()))?;
        let sent = async {
            let answer = self.client.send(request).await.map_err(NoAnswer::broken)?;
            let date = answer
                .headers()
                .get("date")
                .and_then(|date| http_date(date.to_str().ok()?));
            let status = answer.status().as_u16();
            let body = answer
                .into_body()
                .collect_bytes()
                .await
                .map_err(NoAnswer::broken)?;
            Ok(Said {
                status,
                body: body.to_vec(),
                date,
            })
        };
        tokio::time::timeout(self.timeout, sent)
            .await
            .unwrap_or(Err(NoAnswer::Late(self.timeout)))
    }

    /// Whether there is a server at all, and what it is.
    async fn first(&self, facts: &mut ClusterFacts) -> anyhow::Result<()> {
        let said = self
            .ask("GET", "/version", None)
            .await
            .map_err(|error| anyhow!("cannot ask {}: {error}", facts.server))?;
        facts.server_unix = said.date;
        match said.no() {
            None => facts.version = said.value(),
            Some(no) if said.status == 401 => {
                return Err(anyhow!("{}: {no}: log in first", facts.server));
            }
            Some(no) => {
                facts.unread.insert("version".to_owned(), no);
            }
        }
        Ok(())
    }

    /// All objects of a path, page by page.
    async fn list(&self, path: &str) -> Result<Vec<Value>, NoAnswer> {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let mark = if path.contains('?') { '&' } else { '?' };
            let mut asked = format!("{path}{mark}limit={PAGE}");
            if !token.is_empty() {
                asked.push_str(&format!("&continue={token}"));
            }
            let said = self.ask("GET", &asked, None).await?;
            if let Some(no) = said.no() {
                return Err(NoAnswer::Refused(no));
            }
            let mut page = said.value();
            if let Some(Value::Array(objects)) = page.get_mut("items").map(Value::take) {
                all.extend(objects);
            }
            text(&page, "/metadata/continue").clone_into(&mut token);
            if token.is_empty() {
                return Ok(all);
            }
        }
    }

    async fn keep(&self, facts: &mut ClusterFacts, kind: &str, path: &str) -> Vec<Value> {
        match self.list(path).await {
            Ok(objects) => objects,
            Err(why) => {
                facts.unread.insert(kind.to_owned(), why.to_string());
                Vec::new()
            }
        }
    }

    async fn lists(&self, facts: &mut ClusterFacts) {
        let registration = "/apis/admissionregistration.k8s.io/v1";
        let alive = "/api/v1/pods?fieldSelector=status.phase!%3DSucceeded,status.phase!%3DFailed";
        facts.nodes = self.keep(facts, "nodes", "/api/v1/nodes").await;
        facts.pods = self.keep(facts, "pods", alive).await;
        facts.quotas = self.keep(facts, "quotas", "/api/v1/resourcequotas").await;
        facts.namespaces = self.keep(facts, "namespaces", "/api/v1/namespaces").await;
        facts.services = self.keep(facts, "services", "/api/v1/services").await;
        facts.daemonsets = self
            .keep(facts, "daemonsets", "/apis/apps/v1/daemonsets")
            .await;
        facts.deployments = self
            .keep(facts, "deployments", "/apis/apps/v1/deployments")
            .await;
        facts.mutating = self
            .keep(
                facts,
                "webhooks",
                &format!("{registration}/mutatingwebhookconfigurations"),
            )
            .await;
        facts.validating = self
            .keep(
                facts,
                "webhooks",
                &format!("{registration}/validatingwebhookconfigurations"),
            )
            .await;
    }

    async fn of_the_namespace(&self, facts: &mut ClusterFacts) {
        let Some(home) = facts.namespace.clone() else {
            return;
        };
        let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{home}/leases");
        facts.leases = self.keep(facts, "leases", &leases).await;
        let maps = format!("/api/v1/namespaces/{home}/configmaps");
        facts.configmaps = self.keep(facts, "configmaps", &maps).await;
        // Without --scheduler-name, the name comes from kube-scheduler's configuration.
        if facts.scheduler_name.is_empty() {
            facts.scheduler_name = String::from("hami-scheduler");
        }
    }

    async fn certificate(&self, facts: &mut ClusterFacts) {
        let webhook = facts.pods.iter().find(|pod| is_part(pod, "webhook"));
        let (Some(home), Some(webhook)) = (&facts.namespace, webhook) else {
            return;
        };
        let secret = flag(webhook, "--secret-name")
            .unwrap_or("vgpu-webhook-ca")
            .to_owned();
        let path = format!("/api/v1/namespaces/{home}/secrets/{secret}");
        match self.ask("GET", &path, None).await {
            Err(why) => facts.ca_error = Some(why.to_string()),
            Ok(said) => match said.no() {
                Some(no) => facts.ca_error = Some(no),
                None => {
                    let value = said.value();
                    let encoded = text(&value, "/data/ca.crt");
                    facts.ca = super::tls::decoded(encoded);
                }
            },
        }
        facts.ca_secret = Some(secret);
    }

    /// A pod that asks for a GPU, created as a dry run.
    async fn dry_run(&self, facts: &ClusterFacts) -> DryRun {
        let vendors = facts.vendors();
        let nvidia = vendors.iter().find(|row| row.word == "NVIDIA");
        let mut limits = Map::new();
        if let Some(row) = nvidia.or(vendors.iter().next()) {
            for (role, resource) in &row.resources {
                use kube_api::vendor::Role;
                if matches!(role, Role::Count | Role::Memory) {
                    limits.insert(resource.clone(), json!("1"));
                }
            }
        }
        let ignored = |space: &&Value| {
            super::objects::label(space, "hami.io/webhook") != "ignore"
                && facts.namespace.as_deref() != Some(name(space))
        };
        let mut spaces = facts.namespaces.iter().filter(ignored).map(name);
        let default = spaces.clone().any(|space| space == "default");
        let space = if default || facts.namespaces.is_empty() {
            "default"
        } else {
            spaces.next().unwrap_or("default")
        };
        // Fit for a namespace of Pod Security "restricted", too.
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "generateName": PROBE, "namespace": space },
            "spec": {
                "restartPolicy": "Never",
                "securityContext": { "runAsNonRoot": true, "runAsUser": 65534, "seccompProfile": { "type": "RuntimeDefault" } },
                "containers": [{
                    "name": "probe", "image": "vgpu-doctor-dry-run",
                    "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                    "resources": { "limits": limits },
                }],
            },
        });
        let path = format!("/api/v1/namespaces/{space}/pods?dryRun=All");
        let mut found = DryRun {
            namespace: space.to_owned(),
            ..DryRun::default()
        };
        match self.ask("POST", &path, Some(&pod)).await {
            Err(why) => found.error = Some(why.to_string()),
            Ok(said) => {
                found.status = said.status;
                found.error = said.no();
                if found.error.is_none() {
                    let back = said.value();
                    found.scheduler_name = Some(text(&back, "/spec/schedulerName").to_owned());
                }
            }
        }
        found
    }

    async fn rights(&self, facts: &mut ClusterFacts) {
        let Some(home) = facts.namespace.clone() else {
            return;
        };
        let mut found = Vec::new();
        for (part, rights) in RIGHTS {
            let Some(pod) = facts.pods.iter().find(|pod| is_part(pod, part)) else {
                continue;
            };
            let account = format!(
                "system:serviceaccount:{home}:{}",
                text(pod, "/spec/serviceAccountName")
            );
            for right in rights {
                match self.may(&home, &account, right).await {
                    Ok(allowed) => found.push(Access {
                        part: part.to_owned(),
                        account: account.clone(),
                        right: right.shown(&home),
                        allowed,
                    }),
                    Err(why) => {
                        facts.access_error = Some(why.to_string());
                        return;
                    }
                }
            }
        }
        facts.access = found;
    }

    async fn may(&self, home: &str, account: &str, right: &Right) -> Result<bool, NoAnswer> {
        let (resource, subresource) = right
            .resource
            .split_once('/')
            .unwrap_or((right.resource, ""));
        let mut asked = json!({
            "group": right.group, "resource": resource, "subresource": subresource, "verb": right.verb,
        });
        if right.at_home
            && let Some(fields) = asked.as_object_mut()
        {
            fields.insert("namespace".into(), json!(home));
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": account,
                "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{home}"), "system:authenticated"],
                "resourceAttributes": asked,
            },
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let said = self.ask("POST", path, Some(&review)).await?;
        match said.no() {
            Some(no) => Err(NoAnswer::Refused(no)),
            None => {
                let allowed = said.value().pointer("/status/allowed").cloned();
                Ok(allowed == Some(Value::Bool(true)))
            }
        }
    }

    async fn agents(&self, facts: &mut ClusterFacts) {
        let mut found = Vec::new();
        let agents = facts.pods.iter().filter(|pod| is_agent(pod));
        for pod in agents.take(MOST_AGENTS) {
            let ports = items(pod, "/spec/containers")
                .flat_map(|container| items(container, "/ports"))
                .filter_map(|port| {
                    u16::try_from(super::objects::number(port, "/containerPort")).ok()
                });
            for port in ports {
                let path = format!(
                    "/api/v1/namespaces/{}/pods/{}:{port}/proxy/metrics",
                    namespace(pod),
                    name(pod)
                );
                let mut answer = Answer {
                    pod: full_name(pod),
                    port,
                    ..Answer::default()
                };
                match self.ask("GET", &path, None).await {
                    Err(why) => answer.error = Some(why.to_string()),
                    Ok(said) => {
                        answer.status = said.status;
                        answer.error = said.no();
                        let page = String::from_utf8_lossy(&said.body);
                        answer.ours = node::is_ours(&page);
                        answer.sick = node::sick(&page);
                        answer.driver_up = node::driver_up(&page);
                    }
                }
                found.push(answer);
            }
        }
        facts.metrics = found;
    }

    /// The ResourceSlices, in the best version that the API server has.
    async fn slices(&self, facts: &mut ClusterFacts) {
        for version in VERSIONS {
            let group = format!("/apis/{GROUP}/{version}");
            match self.ask("GET", &group, None).await {
                Ok(said) if said.status == 404 => {}
                Ok(said) => {
                    let lists = items(&said.value(), "/resources")
                        .any(|kind| text(kind, "/name") == "resourceslices");
                    if lists || said.no().is_some() {
                        let path = format!("{group}/resourceslices");
                        facts.slices = self.keep(facts, "resourceslices", &path).await;
                        return;
                    }
                }
                Err(why) => {
                    facts
                        .unread
                        .insert("resourceslices".to_owned(), why.to_string());
                    return;
                }
            }
        }
    }

    /// Of hcs.io which kinds there are, and ComputeNodes; of the assigner whether it is ready.
    async fn optional_apis(&self, facts: &mut ClusterFacts) {
        match self.ask("GET", "/apis/hcs.io/v1alpha1", None).await {
            // Not installed is an answer.
            Ok(said) if said.status == 404 => {}
            Ok(said) => match said.no() {
                Some(no) => drop(facts.unread.insert("hcs.io".to_owned(), no)),
                None => {
                    let resources = said.value();
                    let names = items(&resources, "/resources").map(|it| text(it, "/name"));
                    facts.hcs_kinds = names.map(str::to_owned).collect();
                }
            },
            Err(why) => drop(facts.unread.insert("hcs.io".to_owned(), why.to_string())),
        }
        if facts.hcs_kinds.iter().any(|kind| kind == "computenodes") {
            let path = "/apis/hcs.io/v1alpha1/computenodes";
            facts.computenodes = self.keep(facts, "computenodes", path).await;
        }
        let mut found = Vec::new();
        let assigners = facts.pods.iter().filter(|pod| is_part(pod, "assigner"));
        for pod in assigners.take(MOST_AGENTS) {
            let port = flag(pod, "--ui-port").and_then(|port| port.parse().ok());
            let port = port.unwrap_or(8080);
            let path = format!(
                "/api/v1/namespaces/{}/pods/{}:{port}/proxy/readyz",
                namespace(pod),
                name(pod)
            );
            let mut answer = Answer {
                pod: full_name(pod),
                port,
                ..Answer::default()
            };
            match self.ask("GET", &path, None).await {
                Err(why) => answer.error = Some(why.to_string()),
                Ok(said) => {
                    answer.status = said.status;
                    // The pod answers in plain text.
                    let text = String::from_utf8_lossy(&said.body).trim().to_owned();
                    answer.error = said.no().map(|no| if text.is_empty() { no } else { text });
                }
            }
            found.push(answer);
        }
        facts.assigners = found;
    }
}

impl ClusterFacts {
    /// Where the parts are, and what the scheduler is called.
    fn settle(&mut self, args: &DoctorArgs) {
        if self.namespace.is_none() {
            let parts = self
                .pods
                .iter()
                .chain(&self.deployments)
                .chain(&self.daemonsets);
            let found = parts
                .filter(|object| {
                    ["scheduler", "webhook", "agent", "dra"]
                        .iter()
                        .any(|part| is_part(object, part))
                })
                .map(namespace)
                .next();
            self.namespace = found.map(str::to_owned);
        }
        let scheduler = self.pods.iter().find(|pod| is_part(pod, "scheduler"));
        let named = args
            .scheduler_name
            .as_deref()
            .or_else(|| flag(scheduler?, "--scheduler-name"));
        self.scheduler_name = named.unwrap_or_default().to_owned();
    }
}

/// An error with what caused it.
fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let said = cause.to_string();
        // Layers of the client repeat what is below them.
        if !text.contains(&said) {
            push(&mut text, &said);
        }
    }
    text
}

fn push(text: &mut String, said: &dyn Display) {
    if !text.is_empty() {
        text.push_str(": ");
    }
    text.push_str(&said.to_string());
}

/// `Sun, 22 Nov 2026 00:10:00 GMT` as seconds since 1970.
fn http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let mut words = text.split_whitespace().skip(1);
    let day: u8 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let year: u16 = words.next()?.parse().ok()?;
    let time = words.next()?;
    super::objects::unix(&format!("{year:04}-{month:02}-{day:02}T{time}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_of_http_is_read() {
        assert_eq!(
            http_date("Sat, 21 Nov 2026 14:32:03 GMT"),
            Some(1_795_271_523)
        );
        assert_eq!(http_date("yesterday"), None);
    }
}
