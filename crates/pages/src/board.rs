//! A small row for each object of a cluster, updated by the changes that its source reports. Rows hold what lists and
//! node cards need, so that a page costs as much as it shows, not as much as the cluster holds. Rows are not whole
//! objects, and the board decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube_api::config::DeviceConfig;
use kube_api::object::{Container, Node, Pod, Resources};
use kube_api::vendor::{Switches, Vendors};
use serde::Deserialize;
use serde_json::Value;

use crate::kind::Kind;
use crate::source::Change;

/// Namespace and name of a pod.
pub type PodKey = (String, String);

/// Amounts by resource, in thousandths.
pub(crate) type Amounts = BTreeMap<String, i128>;

/// The rows.
#[derive(Debug)]
pub struct Board {
    vendors: Arc<Vendors>,
    nodes: BTreeMap<String, NodeRow>,
    pods: BTreeMap<PodKey, PodRow>,
    /// Pods that hold room on a node, by the node's name. The node need not exist.
    on: BTreeMap<String, BTreeSet<PodKey>>,
    others: BTreeMap<Kind, BTreeMap<PodKey, OtherRow>>,
    versions: BTreeMap<Kind, u64>,
    listed: bool,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Its `resourceVersion`.
    pub version: String,
    /// The amounts that pods can use.
    pub allocatable: Amounts,
    /// Its GPUs, by index.
    pub gpus: Vec<NodeGpu>,
    /// Whether it is closed to new pods.
    pub unschedulable: bool,
    /// Whether its condition `Ready` is true; `None` if it has no such condition.
    pub ready: Option<bool>,
    /// Its taints as `key=value:Effect`.
    pub taints: Vec<String>,
    /// The errors in its annotations.
    pub problems: Vec<String>,
    /// Its labels as `key=value`.
    pub labels: Vec<String>,
}

/// A GPU, or another device that pods share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeGpu {
    /// Its identifier.
    pub id: String,
    /// Its position on the node.
    pub index: u32,
    /// Its model as its driver names it.
    pub model: String,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Its compute in the vendor's unit, percent for NVIDIA; 0 if the vendor counts none.
    pub cores: u32,
    /// How many containers may share it.
    pub slots: u32,
    /// False for an unhealthy GPU.
    pub healthy: bool,
    /// True for a GPU that gets no new pods.
    pub cordoned: bool,
    /// How it is shared, such as `hami-core` or `mig`.
    pub mode: String,
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodRow {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its `resourceVersion`.
    pub version: String,
    /// Its node; empty if it has none.
    pub node: String,
    /// The state of its scheduling.
    pub state: State,
    /// The amounts that it asks for.
    pub requests: Amounts,
    /// Its shares of GPUs.
    pub shares: Vec<RequestedShare>,
    /// Its priority.
    pub priority: i32,
    /// The node on which room is being made for it; empty for none.
    pub nominated: String,
    /// The scheduler's message when it found no node; empty if it wrote none.
    pub message: String,
    /// Why its allocation cannot be read; empty if it can.
    pub problem: String,
}

/// The state of a pod's scheduling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It has no node, and no attempt is recorded.
    #[default]
    Waiting,
    /// The scheduler found no node for it.
    Unschedulable,
    /// A scheduling gate holds it back.
    Gated,
    /// It has a node.
    Placed,
    /// It has ended and holds nothing.
    Finished,
}

impl State {
    /// Whether it waits for a node.
    pub fn is_pending(self) -> bool {
        matches!(self, Self::Waiting | Self::Unschedulable | Self::Gated)
    }
}

/// A pod's share of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestedShare {
    /// Identifier of the GPU.
    pub gpu: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Compute in the vendor's unit.
    pub cores: u32,
}

/// An object of another kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherRow {
    /// Its namespace; empty for kinds without one.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its `resourceVersion`.
    pub version: String,
    /// The most important facts about it, in a few words.
    pub facts: String,
}

/// The fields that only the pages read: conditions of a node and gates of a pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct More {
    status: MoreStatus,
    spec: MoreSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoreStatus {
    conditions: Option<Vec<kube_api::object::Condition>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoreSpec {
    #[serde(rename = "schedulingGates")]
    scheduling_gates: Option<Vec<Value>>,
    overhead: Option<Resources>,
}

impl Default for Board {
    fn default() -> Self {
        let switches = Switches {
            ascend: true,
            iluvatar: true,
        };
        let vendors = Vendors::new(DeviceConfig::standard(), switches);
        Self::new(Arc::new(
            vendors.expect("the standard configuration is a table"),
        ))
    }
}

impl Board {
    /// An empty board for the devices of these vendors.
    pub fn new(vendors: Arc<Vendors>) -> Self {
        Self {
            vendors,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            on: BTreeMap::new(),
            others: BTreeMap::new(),
            versions: BTreeMap::new(),
            listed: false,
        }
    }

    /// Applies a change.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Began => {
                self.nodes.clear();
                self.pods.clear();
                self.on.clear();
                self.others.clear();
                self.listed = false;
                for kind in Kind::ALL {
                    self.bump(kind);
                }
            }
            Change::Listed => self.listed = true,
            Change::Put(kind, object) => {
                self.put(*kind, object);
                self.bump(*kind);
            }
            Change::Gone(kind, object) => {
                self.take(*kind, object);
                self.bump(*kind);
            }
        }
    }

    fn bump(&mut self, kind: Kind) {
        *self.versions.entry(kind).or_default() += 1;
    }

    /// The number of changes to objects of this kind.
    pub fn version(&self, kind: Kind) -> u64 {
        self.versions.get(&kind).copied().unwrap_or_default()
    }

    /// The number of changes in all.
    pub fn changes(&self) -> u64 {
        self.versions.values().sum()
    }

    /// Whether the board has everything that existed when the source was first read.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// The nodes by name.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeRow> {
        self.nodes.values()
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&NodeRow> {
        self.nodes.get(name)
    }

    /// The pods by namespace and name.
    pub fn pods(&self) -> impl ExactSizeIterator<Item = &PodRow> {
        self.pods.values()
    }

    /// The pod of this namespace and name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&PodRow> {
        self.pods.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The pods that hold room on a node, by namespace and name.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &PodRow> {
        let keys = self.on.get(node).into_iter().flatten();
        keys.filter_map(|key| self.pods.get(key))
    }

    /// The objects of another kind, by namespace and name.
    pub fn others(&self, kind: Kind) -> impl Iterator<Item = &OtherRow> {
        self.others
            .get(&kind)
            .into_iter()
            .flat_map(BTreeMap::values)
    }

    /// The number of objects of this kind.
    pub fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Nodes => self.nodes.len(),
            Kind::Pods => self.pods.len(),
            other => self.others.get(&other).map_or(0, BTreeMap::len),
        }
    }

    /// Whether the board has this version of the object; false if it has another version or no such object.
    pub fn has(&self, kind: Kind, namespace: &str, name: &str, version: &str) -> bool {
        self.version_of(kind, namespace, name) == Some(version)
    }

    /// The `resourceVersion` of an object; `None` if the board has no such object.
    pub fn version_of(&self, kind: Kind, namespace: &str, name: &str) -> Option<&str> {
        match kind {
            Kind::Nodes => self.node(name).map(|row| row.version.as_str()),
            Kind::Pods => self.pod(namespace, name).map(|row| row.version.as_str()),
            other => self
                .others
                .get(&other)?
                .get(&(namespace.to_owned(), name.to_owned()))
                .map(|row| row.version.as_str()),
        }
    }

    fn put(&mut self, kind: Kind, object: &Value) {
        match kind {
            Kind::Nodes => {
                let row = node_row(object, &self.vendors);
                self.nodes.insert(row.name.clone(), row);
            }
            Kind::Pods => {
                let row = pod_row(object, &self.vendors);
                let key = (row.namespace.clone(), row.name.clone());
                self.leave(&key);
                if row.state == State::Placed {
                    let on = self.on.entry(row.node.clone()).or_default();
                    on.insert(key.clone());
                }
                self.pods.insert(key, row);
            }
            other => {
                let row = other_row(other, object);
                let key = (row.namespace.clone(), row.name.clone());
                self.others.entry(other).or_default().insert(key, row);
            }
        }
    }

    fn take(&mut self, kind: Kind, object: &Value) {
        let (namespace, name) = identity(object);
        match kind {
            Kind::Nodes => drop(self.nodes.remove(&name)),
            Kind::Pods => {
                let key = (namespace, name);
                self.leave(&key);
                self.pods.remove(&key);
            }
            other => {
                if let Some(rows) = self.others.get_mut(&other) {
                    rows.remove(&(namespace, name));
                }
            }
        }
    }

    /// Removes a pod from the node that it holds room on.
    fn leave(&mut self, key: &PodKey) {
        let Some(before) = self.pods.get(key) else {
            return;
        };
        if let Some(on) = self.on.get_mut(&before.node) {
            on.remove(key);
            if on.is_empty() {
                let node = before.node.clone();
                self.on.remove(&node);
            }
        }
    }
}

/// Namespace and name.
pub(crate) fn identity(object: &Value) -> PodKey {
    (
        text(object, "/metadata/namespace").to_owned(),
        text(object, "/metadata/name").to_owned(),
    )
}

/// The text at this path; empty if there is none.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn amounts(resources: &Resources) -> Amounts {
    let read = resources.iter().filter_map(|(name, quantity)| {
        let milli = quantity.parse().ok()?.milli()?;
        Some((name.clone(), milli))
    });
    read.collect()
}

fn node_row(object: &Value, vendors: &Vendors) -> NodeRow {
    let (_, name) = identity(object);
    let version = text(object, "/metadata/resourceVersion").to_owned();
    let node = match Node::deserialize(object) {
        Ok(node) => node,
        Err(error) => {
            return NodeRow {
                name,
                version,
                problems: vec![format!("the node cannot be read: {error}")],
                ..NodeRow::default()
            };
        }
    };
    let more = More::deserialize(object).unwrap_or_default();
    let report = kube_api::node::report(&node, vendors);
    let mut gpus: Vec<NodeGpu> = report.node.devices.into_iter().map(node_gpu).collect();
    gpus.sort_by(|a, b| (a.index, &a.id).cmp(&(b.index, &b.id)));
    let taints = node.spec.taints.iter().map(|taint| {
        if taint.value.is_empty() {
            format!("{}:{}", taint.key, taint.effect)
        } else {
            format!("{}={}:{}", taint.key, taint.value, taint.effect)
        }
    });
    let conditions = more.status.conditions.unwrap_or_default();
    let labels = node.metadata.labels.iter().flatten();
    NodeRow {
        name,
        version,
        allocatable: amounts(&node.status.allocatable),
        gpus,
        unschedulable: node.spec.unschedulable,
        ready: conditions
            .iter()
            .find(|condition| condition.kind == "Ready")
            .map(|condition| condition.status == "True"),
        taints: taints.collect(),
        problems: report.problems.iter().map(ToString::to_string).collect(),
        labels: labels
            .map(|(key, value)| format!("{key}={value}"))
            .collect(),
    }
}

fn node_gpu(device: placement::Device) -> NodeGpu {
    NodeGpu {
        id: device.id,
        index: device.index,
        model: device.model,
        memory_bytes: device.memory_bytes,
        cores: device.cores,
        slots: device.slots,
        healthy: device.healthy,
        cordoned: device.cordoned,
        mode: device.mode,
    }
}

fn pod_row(object: &Value, vendors: &Vendors) -> PodRow {
    let (namespace, name) = identity(object);
    let version = text(object, "/metadata/resourceVersion").to_owned();
    let pod = match Pod::deserialize(object) {
        Ok(pod) => pod,
        Err(error) => {
            return PodRow {
                namespace,
                name,
                version,
                problem: format!("the pod cannot be read: {error}"),
                ..PodRow::default()
            };
        }
    };
    let more = More::deserialize(object).unwrap_or_default();
    let scheduled = pod
        .status
        .conditions
        .iter()
        .find(|condition| condition.kind == "PodScheduled" && condition.status == "False");
    let gated = more
        .spec
        .scheduling_gates
        .is_some_and(|gates| !gates.is_empty());
    let state = match (&*pod.status.phase, &*pod.spec.node_name) {
        ("Succeeded" | "Failed", _) => State::Finished,
        (_, "") if gated => State::Gated,
        (_, "") if scheduled.is_some() => State::Unschedulable,
        (_, "") => State::Waiting,
        _ => State::Placed,
    };
    // A pod without a node holds nothing, whatever its annotations say.
    let held = if state == State::Placed {
        kube_api::allocation::read(&pod, vendors)
    } else {
        Ok(None)
    };
    let (shares, problem) = match held {
        Ok(placement) => (shares(placement), String::new()),
        Err(error) => (Vec::new(), error.to_string()),
    };
    let mut requests = requests(&pod.spec.init_containers, &pod.spec.containers);
    for (resource, amount) in amounts(&more.spec.overhead.unwrap_or_default()) {
        *requests.entry(resource).or_default() += amount;
    }
    PodRow {
        namespace,
        name,
        version,
        message: scheduled.map_or_else(String::new, |condition| condition.message.clone()),
        priority: pod.spec.priority.unwrap_or_default(),
        nominated: pod.status.nominated_node_name,
        node: pod.spec.node_name,
        state,
        requests,
        shares,
        problem,
    }
}

/// One share for each GPU: the sum over all containers.
fn shares(placement: Option<placement::Placement>) -> Vec<RequestedShare> {
    let mut by_gpu: BTreeMap<String, RequestedShare> = BTreeMap::new();
    let granted = placement.into_iter().flat_map(|held| held.containers);
    for grant in granted.flat_map(|granted| granted.grants) {
        let share = by_gpu.entry(grant.device.to_string()).or_default();
        share.memory_bytes = share.memory_bytes.saturating_add(grant.memory_bytes);
        share.cores = share.cores.saturating_add(grant.cores);
    }
    let named = by_gpu
        .into_iter()
        .map(|(gpu, share)| RequestedShare { gpu, ..share });
    named.collect()
}

/// The amounts that Kubernetes counts for a pod: all containers and sidecars together, or the largest init container.
fn requests(init: &[Container], containers: &[Container]) -> Amounts {
    let asked = |container: &Container| {
        // A limit without a request is the request, as in the API server.
        let mut asked = amounts(&container.resources.limits);
        asked.extend(amounts(&container.resources.requests));
        asked
    };
    let mut sum = Amounts::new();
    let mut peak = Amounts::new();
    for container in init {
        for (resource, amount) in asked(container) {
            let before = sum.get(&resource).copied().unwrap_or_default();
            let peak = peak.entry(resource.clone()).or_default();
            *peak = (*peak).max(before + amount);
            if container.is_sidecar() {
                *sum.entry(resource).or_default() += amount;
            }
        }
    }
    for container in containers {
        for (resource, amount) in asked(container) {
            *sum.entry(resource).or_default() += amount;
        }
    }
    for (resource, amount) in peak {
        let together = sum.entry(resource).or_default();
        *together = (*together).max(amount);
    }
    sum
}

fn other_row(kind: Kind, object: &Value) -> OtherRow {
    let (namespace, name) = identity(object);
    let facts = match kind {
        Kind::PersistentVolumes | Kind::PersistentVolumeClaims => {
            let size = ["/spec/capacity/storage", "/spec/resources/requests/storage"]
                .map(|pointer| text(object, pointer));
            let phase = text(object, "/status/phase");
            let class = text(object, "/spec/storageClassName");
            words(&[&size.concat(), phase, class])
        }
        Kind::StorageClasses => words(&[
            text(object, "/provisioner"),
            text(object, "/volumeBindingMode"),
        ]),
        Kind::PriorityClasses => {
            let value = object
                .get("value")
                .map_or_else(String::new, Value::to_string);
            let default = object.get("globalDefault").and_then(Value::as_bool);
            let default = if default == Some(true) {
                "the default"
            } else {
                ""
            };
            words(&[&value, default, text(object, "/preemptionPolicy")])
        }
        _ => words(&[text(object, "/status/phase")]),
    };
    OtherRow {
        namespace,
        name,
        version: text(object, "/metadata/resourceVersion").to_owned(),
        facts,
    }
}

fn words(words: &[&str]) -> String {
    let said: Vec<&str> = words
        .iter()
        .copied()
        .filter(|word| !word.is_empty())
        .collect();
    said.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn board(objects: &[(Kind, Value)]) -> Board {
        let mut board = Board::default();
        for (kind, object) in objects {
            board.apply(&Change::Put(*kind, Arc::new(object.clone())));
        }
        board
    }

    fn placed(name: &str, node: &str) -> Value {
        json!({ "metadata": { "name": name, "namespace": "default" }, "spec": { "nodeName": node } })
    }

    #[test]
    fn a_pod_that_moves_leaves_its_former_node() {
        let mut board = board(&[(Kind::Pods, placed("a", "n1"))]);

        board.apply(&Change::Put(Kind::Pods, Arc::new(placed("a", "n2"))));

        assert_eq!(board.pods_on("n1").count(), 0);
        assert_eq!(board.pods_on("n2").count(), 1);
        board.apply(&Change::Gone(Kind::Pods, Arc::new(placed("a", "n2"))));
        assert_eq!(board.pods_on("n2").count(), 0);
        assert_eq!(board.count(Kind::Pods), 0);
    }

    #[test]
    fn shares_of_all_containers_of_a_gpu_are_added_up() {
        let pod = json!({
            "metadata": { "name": "a", "namespace": "default", "annotations": {
                "hami.io/vgpu-node": "n1",
                "hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,1000,10:GPU-1,NVIDIA,500,0:;GPU-0,NVIDIA,24,5:;",
            } },
            "spec": { "nodeName": "n1", "containers": [
                { "name": "a", "resources": { "limits": { "nvidia.com/gpu": "2" } } },
                { "name": "b", "resources": { "limits": { "nvidia.com/gpu": "1" } } },
            ] },
        });

        let board = board(&[(Kind::Pods, pod)]);

        let shares = &board.pod("default", "a").unwrap().shares;
        let told: Vec<_> = shares
            .iter()
            .map(|share| (&*share.gpu, share.memory_bytes >> 20, share.cores))
            .collect();
        assert_eq!(told, [("GPU-0", 1024, 15), ("GPU-1", 500, 0)]);
    }

    #[test]
    fn a_pod_asks_for_its_containers_or_its_largest_init_container() {
        let container =
            |cpu: &str| json!({ "name": "c", "resources": { "requests": { "cpu": cpu } } });
        let pod = json!({
            "metadata": { "name": "a", "namespace": "default" },
            "spec": {
                "initContainers": [container("3"), container("100m")],
                "containers": [container("1"), container("500m")],
                "overhead": { "cpu": "10m" },
            },
        });

        let board = board(&[(Kind::Pods, pod)]);

        assert_eq!(board.pod("default", "a").unwrap().requests["cpu"], 3010);
    }

    #[test]
    fn a_state_is_what_the_scheduler_last_wrote() {
        let of = |spec: Value, status: Value| {
            let pod = json!({ "metadata": { "name": "a", "namespace": "x" }, "spec": spec, "status": status });
            board(&[(Kind::Pods, pod)]).pod("x", "a").unwrap().state
        };
        let refused = json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "message": "no" }] });

        assert_eq!(of(json!({}), json!({})), State::Waiting);
        assert_eq!(of(json!({}), refused.clone()), State::Unschedulable);
        assert_eq!(
            of(json!({ "schedulingGates": [{ "name": "g" }] }), refused),
            State::Gated
        );
        assert_eq!(of(json!({ "nodeName": "n" }), json!({})), State::Placed);
        assert_eq!(
            of(json!({ "nodeName": "n" }), json!({ "phase": "Failed" })),
            State::Finished
        );
    }

    #[test]
    fn unreadable_object_is_shown_and_harms_no_other() {
        let broken = json!({ "metadata": { "name": "n1", "annotations": { "hami.io/node-nvidia-register": "[{" } } });
        let odd =
            json!({ "metadata": { "name": "p", "namespace": "x" }, "spec": { "containers": 3 } });

        let board = board(&[
            (Kind::Nodes, broken),
            (Kind::Nodes, json!({ "metadata": { "name": "n2" } })),
            (Kind::Pods, odd),
        ]);

        assert!(board.node("n1").unwrap().problems[0].contains("hami.io/node-nvidia-register"));
        assert_eq!(board.nodes().len(), 2);
        assert!(
            board
                .pod("x", "p")
                .unwrap()
                .problem
                .contains("cannot be read")
        );
    }

    #[test]
    fn beginning_again_forgets_what_was_there() {
        let mut board = board(&[(Kind::Nodes, json!({ "metadata": { "name": "n1" } }))]);
        let before = board.version(Kind::Nodes);

        board.apply(&Change::Began);

        assert_eq!(board.count(Kind::Nodes), 0);
        assert!(!board.is_listed() && board.version(Kind::Nodes) > before);
    }
}
