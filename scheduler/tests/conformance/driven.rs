//! The results of ours at each step of a recording, as facts: the real program, driven only by HTTP.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::exposition::Sample;
use super::facts::{self, Facts, Texts, array, texts};
use super::http::{self, Answer};
use super::program::Program;
use super::{codec, steps};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

/// One recording's program, and the last observed state of its objects.
pub(crate) struct Driven<'a> {
    case: &'a Value,
    program: Option<Program>,
    /// Annotations and labels of each pod when it was first seen.
    at_first: BTreeMap<String, [Texts; 2]>,
    /// Annotations of each node when they were last read.
    nodes: BTreeMap<String, Texts>,
}

impl<'a> Driven<'a> {
    /// Starts the program as the recording was made: on its cluster, with its device configuration and its flags.
    pub(crate) fn start(case: &'a Value, folder: &Path) -> Self {
        let steps = array(&case["steps"]);
        let codecs_only = steps.iter().all(codec::is_codec);
        let program = (!codecs_only).then(|| {
            let config = folder.join(case["deviceConfigFile"].as_str().unwrap());
            Program::start(&case["cluster"], Some(&config), &flags(&case["args"]))
                .unwrap_or_else(|error| panic!("{}: {error}", case["id"]))
        });
        let mut driven = Self {
            case,
            program,
            at_first: BTreeMap::new(),
            nodes: BTreeMap::new(),
        };
        for pod in array(&case["cluster"]["pods"]) {
            driven.remember(pod);
        }
        for node in array(&case["cluster"]["nodes"]) {
            let annotations = texts(&node["metadata"]["annotations"]);
            driven.nodes.insert(steps::name(node), annotations);
        }
        driven
    }

    /// Runs every step, and returns the facts of each.
    pub(crate) fn run(&mut self) -> Vec<Facts> {
        let case = self.case;
        array(&case["steps"])
            .iter()
            .map(|step| self.step(step))
            .collect()
    }

    /// Takes one step.
    pub(crate) fn step(&mut self, step: &Value) -> Facts {
        match step["op"].as_str().unwrap() {
            "filter" => self.filter(step),
            "bind" => self.bind(&step["request"]),
            "webhook" => self.webhook(&step["request"]),
            "get" => {
                let path = step["input"].as_str().unwrap();
                let answer = self.send("GET", path, "", b"").unwrap();
                Facts::from([
                    format!("status {}", answer.status),
                    format!("body {:?}", answer.text()),
                ])
            }
            "createPod" => {
                self.create_pod(&step["pod"]);
                Facts::new()
            }
            "updatePod" => {
                self.update_pod(&step["pod"]);
                Facts::new()
            }
            "deletePod" => {
                let path = pod_path("default", step["name"].as_str().unwrap());
                self.ask("DELETE", &path, JSON, &Value::Null);
                Facts::new()
            }
            "updateNode" => {
                self.update_node(&step["node"]);
                Facts::new()
            }
            "register" => self.node_changes(),
            "nodes" => self.node_annotations(),
            "usage" => self.usage(),
            _ => codec::decode(step),
        }
    }

    /// The program; none if the recording only calls codecs.
    pub(crate) fn program(&self) -> Option<&Program> {
        self.program.as_ref()
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &[u8],
    ) -> std::io::Result<Answer> {
        let program = self.program.as_ref().unwrap();
        http::send(program.address, method, path, content_type, body)
    }

    /// A question that has to be answered with success.
    fn ask(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Value {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let answer = self
            .send(method, path, content_type, body.as_bytes())
            .unwrap();
        assert!(
            (200..300).contains(&answer.status),
            "{method} {path}: {} {}",
            answer.status,
            answer.text()
        );
        answer.json()
    }

    fn remember(&mut self, pod: &Value) {
        let both = ["annotations", "labels"].map(|key| texts(&pod["metadata"][key]));
        self.at_first.entry(steps::name(pod)).or_insert(both);
    }

    /// The pod as the API has it; none when it has none.
    fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        let answer = self
            .send("GET", &pod_path(namespace, name), "", b"")
            .unwrap();
        (answer.status == 200).then(|| answer.json())
    }

    fn create_pod(&mut self, pod: &Value) -> Value {
        let mut object = pod.clone();
        object["apiVersion"] = json!("v1");
        object["kind"] = json!("Pod");
        self.remember(pod);
        let namespace = steps::namespace(pod);
        let path = format!("/api/v1/namespaces/{namespace}");
        if self.send("GET", &path, "", b"").unwrap().status == 404 {
            let object = json!({ "metadata": { "name": namespace } });
            self.ask("POST", "/api/v1/namespaces", JSON, &object);
        }
        self.ask("POST", &format!("{path}/pods"), JSON, &object)
    }

    /// A recorded update is the whole object. Only its annotations, its status and its deletion are new.
    fn update_pod(&mut self, pod: &Value) {
        let path = pod_path(steps::namespace(pod), &steps::name(pod));
        let annotations = &pod["metadata"]["annotations"];
        if annotations.is_object() {
            let patch = json!({ "metadata": { "annotations": annotations } });
            self.ask("PATCH", &path, MERGE, &patch);
        }
        let patch = json!({ "status": pod["status"] });
        self.ask("PATCH", &format!("{path}/status"), MERGE, &patch);
        if pod["metadata"]["deletionTimestamp"].is_string() {
            // The test holds it in the place of a kubelet, which does not run here; otherwise it would be gone.
            let patch = json!({ "metadata": { "finalizers": ["example.com/held"] } });
            self.ask("PATCH", &path, MERGE, &patch);
            self.ask("DELETE", &path, JSON, &Value::Null);
        }
    }

    fn update_node(&mut self, node: &Value) {
        let name = steps::name(node);
        let path = format!("/api/v1/nodes/{name}");
        let annotations = &node["metadata"]["annotations"];
        let patch = json!({ "metadata": { "annotations": annotations } });
        self.ask("PATCH", &path, MERGE, &patch);
        let patch = json!({ "status": node["status"] });
        self.ask("PATCH", &format!("{path}/status"), MERGE, &patch);
        self.nodes.insert(name, texts(annotations));
    }

    fn filter(&mut self, step: &Value) -> Facts {
        let mut request = step["request"].clone();
        let mut asked = None;
        if let Some((key, pod)) = steps::pod_of(&step["request"]) {
            let (namespace, name) = (steps::namespace(pod).to_owned(), steps::name(pod));
            let there = match self.pod(&namespace, &name) {
                Some(there) => there,
                None => self.create_pod(pod),
            };
            // The API gives out its own; kube-scheduler would send that.
            request[key]["metadata"]["uid"] = there["metadata"]["uid"].clone();
            asked = Some((namespace, name));
        }
        let mut body = vec![b' '; usize::try_from(step["padTo"].as_u64().unwrap_or(0)).unwrap()];
        match request.as_str() {
            Some(raw) => body.extend_from_slice(raw.as_bytes()),
            None => body.extend_from_slice(request.to_string().as_bytes()),
        }
        let Ok(answer) = self.send("POST", "/filter", JSON, &body) else {
            return Facts::from(["no answer".to_owned()]);
        };
        let response = answer.json();
        for key in [
            "Nodes",
            "NodeNames",
            "FailedNodes",
            "FailedAndUnresolvableNodes",
            "Error",
        ] {
            assert!(response.get(key).is_some(), "no {key}: {}", answer.text());
        }
        let mut facts = facts::filter(answer.status, &response);
        if let Some((namespace, name)) = asked {
            self.tell_pod(&namespace, &name, &mut facts);
        }
        facts
    }

    fn bind(&mut self, request: &Value) -> Facts {
        let mut request = request.clone();
        let namespace = request["PodNamespace"].as_str().unwrap().to_owned();
        let name = request["PodName"].as_str().unwrap().to_owned();
        if let Some(pod) = self.pod(&namespace, &name) {
            request["PodUID"] = pod["metadata"]["uid"].clone();
        }
        let answer = self
            .send("POST", "/bind", JSON, request.to_string().as_bytes())
            .unwrap();
        let mut facts = Facts::from([format!("status {}", answer.status)]);
        facts::error_of(&answer.json(), &mut facts);
        if let Some(pod) = self.tell_pod(&namespace, &name, &mut facts)
            && let Some(node) = pod["spec"]["nodeName"].as_str()
        {
            facts.insert(format!("bound to {node}"));
        }
        facts.extend(self.node_changes());
        facts
    }

    /// Adds the pod's annotations since its creation.
    fn tell_pod(&self, namespace: &str, name: &str, facts: &mut Facts) -> Option<Value> {
        let pod = self.pod(namespace, name)?;
        let [annotations, labels] = self.at_first.get(name).cloned().unwrap_or_default();
        let now = ["annotations", "labels"].map(|key| texts(&pod["metadata"][key]));
        facts::carried("annotation", &now[0], &annotations, facts);
        facts::carried("label", &now[1], &labels, facts);
        Some(pod)
    }

    fn webhook(&self, review: &Value) -> Facts {
        let body = match review.as_str() {
            Some(raw) => raw.to_owned(),
            None => review.to_string(),
        };
        let answer = self
            .send("POST", "/webhook", JSON, body.as_bytes())
            .unwrap();
        let response = answer.json();
        let mut pod = review["request"]["object"].clone();
        if response["response"]["patch"].is_string() {
            let patch = response["response"]["patch"].clone();
            let text: k8s_openapi::ByteString = serde_json::from_value(patch).unwrap();
            let patch: json_patch::Patch = serde_json::from_slice(&text.0).unwrap();
            json_patch::patch(&mut pod, &patch).unwrap();
        }
        facts::review(answer.status, &response, Some(&pod))
    }

    fn nodes_now(&self) -> BTreeMap<String, Texts> {
        let listed = self.ask("GET", "/api/v1/nodes", "", &Value::Null);
        array(&listed["items"])
            .iter()
            .map(|node| (steps::name(node), texts(&node["metadata"]["annotations"])))
            .collect()
    }

    /// The nodes' new annotations since they were last read.
    fn node_changes(&mut self) -> Facts {
        let mut facts = Facts::new();
        for (node, now) in self.nodes_now() {
            let before = self.nodes.insert(node.clone(), now.clone());
            let before = before.unwrap_or_default();
            for key in before.keys().filter(|key| !now.contains_key(*key)) {
                facts.insert(format!("node {node} {key} removed"));
            }
            let mut now = now;
            if let Some(lock) = now.get_mut("hami.io/mutex.lock")
                && before.get("hami.io/mutex.lock") != Some(lock)
            {
                "held".clone_into(lock);
            }
            facts::carried(&format!("node {node}"), &now, &before, &mut facts);
        }
        facts
    }

    fn node_annotations(&self) -> Facts {
        let mut facts = Facts::new();
        for (node, now) in self.nodes_now() {
            let at_first = steps::node_annotations(self.case, &node);
            facts::carried(&format!("node {node}"), &now, &at_first, &mut facts);
        }
        facts
    }

    /// The use, by the series of `/metrics`.
    fn usage(&self) -> Facts {
        // `/metrics` shows only what the watches have delivered; a question about a pod waits for all earlier writes.
        self.send("GET", "/explain?pod=default/none", "", b"")
            .unwrap();
        let scraped = self.send("GET", "/metrics", "", b"").unwrap().text();
        let mut devices: BTreeMap<(String, String), [String; 3]> = BTreeMap::new();
        let mut facts = Facts::new();
        let mut limits = BTreeMap::new();
        let mut used = BTreeMap::new();
        for sample in scraped.lines().filter_map(Sample::read) {
            let figure = match sample.name {
                "hami_gpu_shared_count" => 0,
                "hami_gpu_memory_allocated_bytes" => 1,
                "hami_gpu_core_allocated_ratio" => 2,
                "hami_resource_quota_used" => {
                    let key = (sample.label("namespace"), sample.label("quota_name"));
                    used.insert(key, sample.value);
                    continue;
                }
                "hami_resource_quota_limit" => {
                    let key = (sample.label("namespace"), sample.label("quota_name"));
                    limits.insert(key, sample.value);
                    continue;
                }
                _ => continue,
            };
            let value = if figure == 1 {
                sample.value / 1_048_576.0
            } else {
                sample.value
            };
            let key = (sample.label("node"), sample.label("device_uuid"));
            devices.entry(key).or_default()[figure] = value.to_string();
        }
        for ((node, device), [slots, memory, cores]) in devices {
            facts.insert(format!(
                "usage {node} {device} = {slots} slots {memory} MiB {cores} cores"
            ));
        }
        for ((namespace, resource), value) in used {
            let limit = limits
                .get(&(namespace.clone(), resource.clone()))
                .map_or("none".to_owned(), f64::to_string);
            facts.insert(format!("quota {namespace} {resource} = {value} of {limit}"));
        }
        facts
    }
}

fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

/// The reference's flags of a recording's `args`, on the baseline of all recordings.
fn flags(args: &Value) -> Vec<String> {
    let mut flags = vec!["--enable-ascend".to_owned(), "--enable-iluvatar".to_owned()];
    for (key, value) in args.as_object().unwrap() {
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        let flag = match key.as_str() {
            "nodeSchedulerPolicy" => "node-scheduler-policy",
            "gpuSchedulerPolicy" => "gpu-scheduler-policy",
            "forceOverwriteDefaultScheduler" => "force-overwrite-default-scheduler",
            "schedulerName" => "scheduler-name",
            other => panic!("unknown argument {other}"),
        };
        flags.push(format!("--{flag}={text}"));
    }
    flags
}
