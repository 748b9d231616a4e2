//! A source over an embedded cluster, and clusters to show. No scheduler runs in it, so pods stay on their nodes.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "its data are its own"
)]

use std::collections::BTreeMap;

use embedded_cluster::{
    Cluster, DeleteOptions, Deleted, Event, Happened, ListOptions, Part, Selector, Start, Status,
    Target, Watch, Write,
};
use futures_util::{StreamExt as _, stream};
use pages::{Change, Changes, Compare, Comparison, Future, Kind, Refused, Run, Source, Why};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

/// The keys of an export, in order.
const KEYS: [(&str, Kind); 7] = [
    ("pods", Kind::Pods),
    ("nodes", Kind::Nodes),
    ("pvs", Kind::PersistentVolumes),
    ("pvcs", Kind::PersistentVolumeClaims),
    ("storageClasses", Kind::StorageClasses),
    ("priorityClasses", Kind::PriorityClasses),
    ("namespaces", Kind::Namespaces),
];

/// A cluster in memory, with prepared answers to why a pod waits.
pub(crate) struct Memory {
    cluster: Cluster,
    start: Value,
    configuration: Mutex<Value>,
    whys: BTreeMap<(String, String), Why>,
}

impl Memory {
    /// A cluster with these objects.
    pub(crate) fn with(state: Value) -> Self {
        let cluster = Cluster::default();
        cluster.import(&objects(&state)).unwrap();
        let configuration = state
            .get("schedulerConfig")
            .cloned()
            .unwrap_or_else(|| json!({ "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration" }));
        Self {
            cluster,
            start: state,
            configuration: Mutex::new(configuration),
            whys: BTreeMap::new(),
        }
    }

    /// Sets the answer about a pending pod.
    pub(crate) fn why(mut self, namespace: &str, name: &str, why: Why) -> Self {
        self.whys.insert((namespace.into(), name.into()), why);
        self
    }

    fn target(&self, kind: Kind, namespace: &str, name: &str) -> Target {
        let resource = self.cluster.resource(kind.group(), kind.plural()).unwrap();
        Target::object(&resource, namespace, name)
    }

    fn all(&self, kind: Kind) -> Vec<Value> {
        let listed = self
            .cluster
            .list(&self.target(kind, "", ""), &ListOptions::default())
            .unwrap();
        listed.items.iter().map(|item| item.value()).collect()
    }

    async fn clear(&self) -> Result<(), Status> {
        for (_, kind) in KEYS {
            for object in self
                .all(kind)
                .into_iter()
                .filter(|object| !is_fixed(object))
            {
                let (namespace, name) = place(&object);
                let target = self.target(kind, &namespace, &name);
                let gone = self
                    .cluster
                    .delete(&target, &DeleteOptions::default(), &write())
                    .await;
                match gone {
                    Ok(Deleted::Gone(_) | Deleted::Marked(_)) => {}
                    Err(status) if status.code == 404 => {}
                    Err(status) => return Err(status),
                }
            }
        }
        Ok(())
    }

    async fn replaced(&self, kind: Kind, object: Value) -> Result<Value, Status> {
        let (namespace, name) = place(&object);
        let target = self.target(kind, &namespace, &name);
        let whole = self
            .cluster
            .update(&target, object.clone(), &write())
            .await?;
        let mut now = whole.value();
        let status = object.get("status").filter(|status| !status.is_null());
        let Some(status) = status.filter(|status| now.get("status") != Some(status)) else {
            return Ok(now);
        };
        now["status"] = status.clone();
        let part = target.part(Part::Status);
        Ok(self.cluster.update(&part, now, &write()).await?.value())
    }
}

fn objects(state: &Value) -> Value {
    let long = BTreeMap::from([
        ("pvs", "persistentvolumes"),
        ("pvcs", "persistentvolumeclaims"),
    ]);
    let mut objects = Map::new();
    for (key, _) in KEYS {
        let to = long.get(key).unwrap_or(&key);
        objects.insert(
            (*to).to_owned(),
            state.get(key).cloned().unwrap_or_default(),
        );
    }
    Value::Object(objects)
}

fn is_fixed(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    name == "default" || name.starts_with("kube-") || name.starts_with("system-")
}

fn place(object: &Value) -> (String, String) {
    let text = |pointer| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    (
        text("/metadata/namespace").to_owned(),
        text("/metadata/name").to_owned(),
    )
}

fn write() -> Write {
    Write {
        field_manager: "simulator".into(),
        ..Write::default()
    }
}

fn refused(status: Status) -> Refused {
    Refused::new(status.code, status.message)
}

/// A message of the watch of one kind.
enum Told {
    Change(Change),
    Started,
    Lost,
}

fn told(kind: Kind, watch: Watch) -> impl futures_util::Stream<Item = Told> {
    stream::unfold(Some(watch), move |watch| async move {
        let mut watch = watch?;
        Some(match watch.next().await {
            Ok(Event::Object(Happened::Deleted, object)) => {
                let change = Change::Gone(kind, object.value().into());
                (Told::Change(change), Some(watch))
            }
            Ok(Event::Object(_, object)) => {
                let change = Change::Put(kind, object.value().into());
                (Told::Change(change), Some(watch))
            }
            Ok(Event::Started(_)) => (Told::Started, Some(watch)),
            Err(_) => (Told::Lost, None),
        })
    })
}

impl Source for Memory {
    fn changes(&self) -> Changes {
        let watches = Kind::ALL.map(|kind| {
            let target = self.target(kind, "", "");
            let watch = self
                .cluster
                .watch(&target, Selector::default(), Start::Now)
                .unwrap();
            Box::pin(told(kind, watch))
        });
        let mut left = watches.len();
        let changes = stream::select_all(watches)
            .take_while(|told| std::future::ready(!matches!(told, Told::Lost)))
            .filter_map(move |told| {
                std::future::ready(match told {
                    Told::Change(change) => Some(change),
                    Told::Started => {
                        left -= 1;
                        (left == 0).then_some(Change::Listed)
                    }
                    Told::Lost => None,
                })
            });
        Box::pin(stream::once(async { Change::Began }).chain(changes))
    }

    fn get<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
        name: &'a str,
    ) -> Future<'a, Result<Value, Refused>> {
        Box::pin(async move {
            let target = self.target(kind, namespace, name);
            Ok(self.cluster.get(&target).map_err(refused)?.value())
        })
    }

    fn create(&self, kind: Kind, object: Value) -> Future<'_, Result<Value, Refused>> {
        Box::pin(async move {
            let (namespace, _) = place(&object);
            let target = self.target(kind, &namespace, "");
            let made = self.cluster.create(&target, object, &write()).await;
            Ok(made.map_err(refused)?.value())
        })
    }

    fn replace(&self, kind: Kind, object: Value) -> Future<'_, Result<Value, Refused>> {
        Box::pin(async move { self.replaced(kind, object).await.map_err(refused) })
    }

    fn delete<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
        name: &'a str,
    ) -> Future<'a, Result<(), Refused>> {
        Box::pin(async move {
            let target = self.target(kind, namespace, name);
            let gone = self
                .cluster
                .delete(&target, &DeleteOptions::default(), &write())
                .await;
            gone.map(drop).map_err(refused)
        })
    }

    fn why<'a>(&'a self, namespace: &'a str, name: &'a str) -> Future<'a, Option<Why>> {
        let why = self.whys.get(&(namespace.into(), name.into())).cloned();
        Box::pin(async move { why })
    }

    fn configuration(&self) -> Future<'_, Result<Value, Refused>> {
        Box::pin(async { Ok(self.configuration.lock().clone()) })
    }

    fn configure(&self, configuration: Value) -> Future<'_, Result<(), Refused>> {
        Box::pin(async move {
            if configuration["kind"] != "KubeSchedulerConfiguration" {
                return Err(Refused::new(400, "kind is not KubeSchedulerConfiguration"));
            }
            *self.configuration.lock() = configuration;
            Ok(())
        })
    }

    fn export(&self) -> Future<'_, Result<Value, Refused>> {
        Box::pin(async {
            let mut state = Map::new();
            for (key, kind) in KEYS {
                let kept = self
                    .all(kind)
                    .into_iter()
                    .filter(|object| !is_fixed(object));
                state.insert(key.into(), kept.collect());
            }
            state.insert("schedulerConfig".into(), self.configuration.lock().clone());
            Ok(Value::Object(state))
        })
    }

    fn import(&self, state: Value, replace: bool) -> Future<'_, Result<(), Refused>> {
        Box::pin(async move {
            // Tried in a separate cluster first, so that a refusal changes nothing.
            let tried = Cluster::default();
            tried.import(&objects(&state)).map_err(refused)?;
            if replace {
                self.clear().await.map_err(refused)?;
            }
            for (key, kind) in KEYS {
                for object in state[key].as_array().into_iter().flatten() {
                    let (namespace, name) = place(object);
                    let target = self.target(kind, &namespace, &name);
                    let options = DeleteOptions::default();
                    drop(self.cluster.delete(&target, &options, &write()).await);
                }
            }
            self.cluster.import(&objects(&state)).map_err(refused)?;
            Ok(())
        })
    }

    fn reset(&self) -> Future<'_, Result<(), Refused>> {
        Box::pin(async {
            self.clear().await.map_err(refused)?;
            self.cluster
                .import(&objects(&self.start))
                .map_err(refused)?;
            Ok(())
        })
    }

    fn can_compare(&self) -> bool {
        true
    }

    /// Returns the number of pods for each question, so that a test can see which questions came.
    fn compare(&self, question: Compare) -> Future<'_, Result<Comparison, Refused>> {
        Box::pin(async move {
            let pods = self.all(Kind::Pods);
            let placed = pods
                .iter()
                .filter(|pod| pod["spec"]["nodeName"].is_string())
                .count();
            let run = |name: String| Run {
                name,
                placed: placed.try_into().unwrap(),
                pending: vec![(
                    "Insufficient cpu".into(),
                    (pods.len() - placed).try_into().unwrap(),
                )],
                memory_percent: 61.5,
                compute_percent: 40.0,
                fragmentation_percent: 12.0,
                fairness: 0.91,
                waited_p50_seconds: 3.25,
                ..Run::default()
            };
            let mut runs = vec![run("as it is".into())];
            runs.extend(
                question
                    .configurations
                    .into_iter()
                    .map(|(name, _)| run(name)),
            );
            if question.add_nodes > 0 {
                runs.push(run(format!("{} nodes more", question.add_nodes)));
            }
            Ok(Comparison {
                runs,
                notes: vec!["what else there is to know".into()],
            })
        })
    }
}

/// `nodes` nodes with eight GPUs each, and `pods` pods that share them; the last pod waits.
pub(crate) fn shared_gpus(nodes: usize, pods: usize) -> Value {
    let node = |number: usize| {
        let gpus: Vec<Value> = (0..8)
            .map(|gpu| {
                json!({
                    "id": format!("GPU-{number}-{gpu}"), "index": gpu, "count": 10, "devmem": 81_920, "devcore": 100,
                    "type": "NVIDIA A100-SXM4-80GB", "health": !(number == 1 && gpu == 7), "mode": "hami-core",
                })
            })
            .collect();
        let amounts =
            json!({ "cpu": "96", "memory": "768Gi", "pods": "110", "nvidia.com/gpu": "80" });
        json!({
            "metadata": {
                "name": format!("gpu-{number:04}"),
                "labels": { "topology.kubernetes.io/zone": format!("zone-{}", number % 3) },
                "annotations": { "hami.io/node-nvidia-register": Value::from(gpus).to_string() },
            },
            "spec": if number % 7 == 3 { json!({ "unschedulable": true }) } else { json!({}) },
            "status": { "capacity": amounts, "allocatable": amounts, "conditions": [{ "type": "Ready", "status": "True" }] },
        })
    };
    let pod = |number: usize| {
        let on = number % nodes;
        let gpu = (number / nodes) % 8;
        let (memory, cores) = (10_000 + 5_000 * (number % 4), 15 + 10 * (number % 3));
        let waits = number + 1 == pods;
        let node = format!("gpu-{on:04}");
        let held = format!("GPU-{on}-{gpu},NVIDIA,{memory},{cores}:;");
        let score = |name: &str| format!("kube-scheduler-simulator.sigs.k8s.io/{name}");
        let annotations = if waits {
            json!({})
        } else {
            json!({
                "hami.io/vgpu-node": node,
                "hami.io/vgpu-devices-allocated": held,
                score("filter-result"): json!({ &node: { "GpuFit": "passed", "NodeResourcesFit": "passed" } }).to_string(),
                score("selected-node"): node,
            })
        };
        let mut limits = json!({ "cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "1" });
        limits["nvidia.com/gpumem"] = memory.to_string().into();
        limits["nvidia.com/gpucores"] = cores.to_string().into();
        if waits {
            limits["nvidia.com/gpumem"] = "90000".into();
        }
        let mut pod = json!({
            "metadata": { "name": format!("train-{number:05}"), "namespace": if number % 5 == 4 { "team-b" } else { "default" },
                "annotations": annotations },
            "spec": { "containers": [{ "name": "main", "image": "train", "resources": { "limits": limits, "requests": limits } }] },
            "status": { "phase": "Pending" },
        });
        if waits {
            let message = format!(
                "0/{nodes} nodes are available: {nodes} GPU of too little memory. preemption: 0/{nodes} nodes are available: {nodes} Preemption is not helpful for scheduling."
            );
            pod["status"]["conditions"] = json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message }]);
        } else {
            pod["spec"]["nodeName"] = node.into();
        }
        pod
    };
    json!({
        "nodes": (0..nodes).map(node).collect::<Vec<_>>(),
        "pods": (0..pods).map(pod).collect::<Vec<_>>(),
    })
}
