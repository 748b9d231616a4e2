//! Small clusters in a few lines, and the plugins' answers about a pod in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use scheduling::config::Configuration;
use scheduling::cycle::{Options, Outcome};
use scheduling::plugin::Plugin;
use scheduling::profile::Framework;
use scheduling::record::Record;
use scheduling::snapshot::{Kind, Snapshot};
use serde_json::{Value, json};

/// A cluster and the profile that places pods in it.
pub(crate) struct World {
    pub(crate) snapshot: Snapshot,
    framework: Framework,
}

fn kind_of(name: &str) -> Option<Kind> {
    Some(match name {
        "Namespace" => Kind::Namespace,
        "PersistentVolume" => Kind::PersistentVolume,
        "PersistentVolumeClaim" => Kind::PersistentVolumeClaim,
        "StorageClass" => Kind::StorageClass,
        "PriorityClass" => Kind::PriorityClass,
        "CSINode" => Kind::CsiNode,
        "PodDisruptionBudget" => Kind::PodDisruptionBudget,
        "Service" => Kind::Service,
        "ReplicaSet" => Kind::ReplicaSet,
        _ => return None,
    })
}

impl World {
    /// Objects by `kind`; pods have `spec.nodeName`.
    pub(crate) fn of(objects: &[Value]) -> Self {
        Self::with(Snapshot::new(), objects, &json!({}))
    }

    /// With this profile.
    pub(crate) fn configured(objects: &[Value], profile: &Value) -> Self {
        Self::with(Snapshot::new(), objects, profile)
    }

    pub(crate) fn with(snapshot: Snapshot, objects: &[Value], profile: &Value) -> Self {
        let configuration = json!({"percentageOfNodesToScore": 100, "profiles": [profile]});
        Self::under(snapshot, objects, &configuration, "default-scheduler")
    }

    /// With the profile of this name in a whole configuration.
    pub(crate) fn under(
        mut snapshot: Snapshot,
        objects: &[Value],
        configuration: &Value,
        name: &str,
    ) -> Self {
        for object in objects {
            match object["kind"].as_str().unwrap() {
                "Node" => {
                    let node = snapshot.read_node(object).unwrap();
                    snapshot.set_node(node);
                }
                "Pod" => {
                    snapshot.observe(object).unwrap();
                }
                kind => snapshot.set_object(kind_of(kind).unwrap(), object).unwrap(),
            }
        }
        let configuration = Configuration::read(configuration).unwrap();
        let framework = Framework::all(&configuration, snapshot.names_mut())
            .into_iter()
            .find(|framework| framework.name() == name)
            .unwrap();
        Self {
            snapshot,
            framework,
        }
    }

    /// Runs a cycle for a pod, with a record.
    pub(crate) fn run(&mut self, pod: &Value) -> Answers {
        let pod = Arc::new(self.snapshot.read_pod(pod).unwrap());
        let options = Options {
            record: true,
            ..Options::default()
        };
        Answers(self.framework.schedule(&self.snapshot, &pod, options))
    }
}

/// The result of a cycle.
pub(crate) struct Answers(pub(crate) Outcome);

impl Answers {
    pub(crate) fn record(&self) -> &Record {
        self.0.record.as_ref().unwrap()
    }

    /// For each node `ok`, or the plugin that refused it and its message.
    pub(crate) fn filtered(&self) -> BTreeMap<String, String> {
        let record = self.record();
        let said = |(node, verdict): &(Arc<str>, scheduling::record::Verdict)| {
            let text = match verdict.refused {
                None => "ok".to_owned(),
                Some(text) => format!(
                    "{}: {}",
                    record.filters[verdict.passed as usize], record.texts[text as usize]
                ),
            };
            (node.to_string(), text)
        };
        record.nodes.iter().map(said).collect()
    }

    /// The nodes that fit, separated by spaces.
    pub(crate) fn fit(&self) -> String {
        let fit: Vec<String> = self
            .filtered()
            .into_iter()
            .filter(|(_, said)| said == "ok")
            .map(|(node, _)| node)
            .collect();
        fit.join(" ")
    }

    /// The plugin's score of each node, `raw/weighted`, by node name; empty if the plugin does not apply.
    pub(crate) fn scores(&self, plugin: Plugin) -> String {
        let Some(scored) = &self.record().scored else {
            return String::new();
        };
        let Some(at) = scored
            .plugins
            .iter()
            .position(|(other, _)| *other == plugin)
        else {
            return String::new();
        };
        let columns = scored.plugins.len();
        let mut rows: Vec<String> = scored
            .nodes
            .iter()
            .enumerate()
            .map(|(row, node)| {
                let cell = row * columns + at;
                format!("{node}:{}/{}", scored.raw[cell], scored.weighted[cell])
            })
            .collect();
        rows.sort();
        rows.join(" ")
    }

    /// Why the pod was not placed.
    pub(crate) fn message(&self) -> String {
        self.0.result.as_ref().unwrap_err().message.clone()
    }
}

/// A node with these labels (`a=b,c=d`), CPU in thousandths and memory in bytes.
pub(crate) fn node(name: &str, labels: &str, cpu_milli: u64, memory: u64) -> Value {
    json!({
        "kind": "Node",
        "metadata": {"name": name, "labels": map(labels)},
        "spec": {},
        "status": {"allocatable": {
            "cpu": format!("{cpu_milli}m"), "memory": memory.to_string(), "pods": "110",
        }},
    })
}

/// A node with room for every pod.
pub(crate) fn roomy(name: &str, labels: &str) -> Value {
    node(name, labels, 64_000, 1 << 40)
}

/// A pod on a node; a waiting pod if the node's name is empty.
pub(crate) fn pod(name: &str, labels: &str, node: &str, cpu_milli: u64, memory: u64) -> Value {
    let mut pod = json!({
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": map(labels)},
        "spec": {"containers": [{"name": "main", "image": "image", "resources": {"requests": {
            "cpu": format!("{cpu_milli}m"), "memory": memory.to_string(),
        }}}]},
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

/// A pod that asks for nothing and has these additional fields in its `spec`.
pub(crate) fn spec(more: Value) -> Value {
    let mut pod = json!({
        "kind": "Pod",
        "metadata": {"name": "new", "namespace": "default", "uid": "new", "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "main", "image": "image"}]},
    });
    let Value::Object(more) = more else {
        unreachable!("a spec is an object")
    };
    pod["spec"].as_object_mut().unwrap().extend(more);
    pod
}

/// The object with this value at this path.
pub(crate) fn set(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = match parent {
        "" => &mut object,
        parent => object.pointer_mut(parent).unwrap(),
    };
    parent[key] = value;
    object
}

pub(crate) fn map(labels: &str) -> Value {
    labels
        .split(',')
        .filter_map(|label| label.split_once('='))
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
