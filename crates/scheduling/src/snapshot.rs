//! The scheduler's view of the cluster. Every change affects one object, and a scheduling cycle borrows the snapshot:
//! nothing is copied for a cycle.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;

use crate::devices::Devices;
use crate::model::{
    self, Budget, CsiNode, HostPort, Labels, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ReadError, Resources, StorageClass, Workload,
};
use crate::names::{Names, Numbered, Symbol};

/// The index of a node in a snapshot. It stays the same until the node is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeIndex(u32);

impl NodeIndex {
    pub(crate) fn at(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// A node with its pods.
#[derive(Debug, Clone)]
pub struct NodeState {
    pub(crate) node: Arc<Node>,
    pub(crate) index: NodeIndex,
    pub(crate) pods: Vec<Arc<Pod>>,
    pub(crate) with_affinity: Vec<Arc<Pod>>,
    pub(crate) requested: Resources,
    pub(crate) non_zero: (i64, i64),
    pub(crate) ports: Vec<HostPort>,
}

impl NodeState {
    fn new(node: Arc<Node>, index: NodeIndex) -> Self {
        Self {
            node,
            index,
            pods: Vec::new(),
            with_affinity: Vec::new(),
            requested: Resources::default(),
            non_zero: (0, 0),
            ports: Vec::new(),
        }
    }

    /// The node itself.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Its index in the snapshot.
    pub fn index(&self) -> NodeIndex {
        self.index
    }

    /// The pods on it, by key.
    pub fn pods(&self) -> &[Arc<Pod>] {
        &self.pods
    }

    /// The sum of its pods' requests.
    pub fn requested(&self) -> &Resources {
        &self.requested
    }

    pub(crate) fn add(&mut self, pod: &Arc<Pod>) {
        let at = self
            .pods
            .binary_search_by(|other| other.key.cmp(&pod.key))
            .unwrap_or_else(|at| at);
        self.pods.insert(at, Arc::clone(pod));
        if pod.affinity.is_some() {
            self.with_affinity.push(Arc::clone(pod));
        }
        self.requested.add(&pod.requests);
        self.non_zero.0 = self.non_zero.0.saturating_add(pod.non_zero.0);
        self.non_zero.1 = self.non_zero.1.saturating_add(pod.non_zero.1);
        self.ports.extend(&pod.ports);
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Arc<Pod>> {
        let at = self
            .pods
            .binary_search_by(|other| (*other.key).cmp(key))
            .ok()?;
        let pod = self.pods.remove(at);
        self.with_affinity.retain(|other| *other.key != *key);
        self.requested.subtract(&pod.requests);
        self.non_zero.0 = self.non_zero.0.saturating_sub(pod.non_zero.0);
        self.non_zero.1 = self.non_zero.1.saturating_sub(pod.non_zero.1);
        for port in &pod.ports {
            if let Some(at) = self.ports.iter().position(|other| other == port) {
                self.ports.swap_remove(at);
            }
        }
        Some(pod)
    }
}

/// A kind of object that a snapshot keeps besides nodes and pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `Namespace`: its labels.
    Namespace,
    /// `PersistentVolume`.
    PersistentVolume,
    /// `PersistentVolumeClaim`.
    PersistentVolumeClaim,
    /// `StorageClass`.
    StorageClass,
    /// `PriorityClass`: priorities of pods that name it and have no number yet.
    PriorityClass,
    /// `CSINode`.
    CsiNode,
    /// `PodDisruptionBudget`.
    PodDisruptionBudget,
    /// `Service`.
    Service,
    /// `ReplicationController`.
    ReplicationController,
    /// `ReplicaSet`.
    ReplicaSet,
    /// `StatefulSet`.
    StatefulSet,
}

impl Kind {
    fn workload(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Service => Some(("v1", "Service")),
            Self::ReplicationController => Some(("v1", "ReplicationController")),
            Self::ReplicaSet => Some(("apps/v1", "ReplicaSet")),
            Self::StatefulSet => Some(("apps/v1", "StatefulSet")),
            _ => None,
        }
    }
}

#[derive(Debug, Clone)]
struct PriorityClass {
    value: i32,
    is_default: bool,
    never_preempts: bool,
}

/// The cluster. The texts of all its objects are numbered in one table, so a number of one snapshot has no meaning in
/// another. A clone is independent and shares unchanged objects.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub(crate) names: Names,
    nodes: Vec<Option<NodeState>>,
    by_name: Numbered<Symbol, NodeIndex>,
    /// Sorted by name, so that the order in which nodes were added does not matter.
    order: Vec<NodeIndex>,
    vacant: Vec<NodeIndex>,
    pods: HashMap<Arc<str>, Arc<Pod>>,
    /// Pods on nodes that are not known (yet).
    homeless: Numbered<Symbol, Vec<Arc<Pod>>>,
    with_affinity: BTreeSet<NodeIndex>,
    image_nodes: Numbered<Symbol, u32>,
    nominated: Numbered<Symbol, Vec<Arc<Pod>>>,
    namespaces: Numbered<Symbol, Labels>,
    pub(crate) volumes: Numbered<Symbol, Arc<PersistentVolume>>,
    pub(crate) claims: HashMap<(Symbol, Symbol), Arc<PersistentVolumeClaim>>,
    pub(crate) classes: Numbered<Symbol, Arc<StorageClass>>,
    pub(crate) csi_nodes: Numbered<Symbol, Arc<CsiNode>>,
    pub(crate) budgets: Vec<Arc<Budget>>,
    pub(crate) workloads: Vec<Arc<Workload>>,
    priorities: Numbered<Symbol, PriorityClass>,
    pub(crate) devices: Devices,
    /// Resources that ask for shared devices.
    pub(crate) managed: Vec<Symbol>,
}

impl Snapshot {
    /// A cluster without nodes and without shared devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// A cluster without nodes. `devices` reads the annotations of nodes and pods.
    pub fn with_devices(devices: Devices) -> Self {
        let mut snapshot = Self {
            devices,
            ..Self::default()
        };
        let names = &mut snapshot.names;
        let resources = snapshot.devices.resources();
        snapshot.managed = resources.map(|name| names.intern(name)).collect();
        snapshot
    }

    /// The table of texts.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The table of texts, to read values with.
    pub fn names_mut(&mut self) -> &mut Names {
        &mut self.names
    }

    /// The shared devices.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// The shared devices, to reserve and release.
    pub fn devices_mut(&mut self) -> &mut Devices {
        &mut self.devices
    }

    /// Reads a node with its shared devices, without adding it.
    ///
    /// # Errors
    ///
    /// As [`Node::read`].
    pub fn read_node(&mut self, object: &Value) -> Result<Node, ReadError> {
        let mut node = Node::read(&mut self.names, object)?;
        node.devices = self.devices.read_node(object);
        Ok(node)
    }

    /// Reads a pod with its request for shared devices, and with its class's priority if it has no number, without
    /// adding it.
    ///
    /// # Errors
    ///
    /// As [`Pod::read`].
    pub fn read_pod(&mut self, object: &Value) -> Result<Pod, ReadError> {
        let mut pod = Pod::read(&mut self.names, object)?;
        let says = |field: &str| {
            object
                .get("spec")
                .and_then(|spec| spec.get(field))
                .is_some_and(|value| !value.is_null())
        };
        let class = match pod.priority_class {
            Symbol::EMPTY => self.priorities.values().find(|class| class.is_default),
            class => self.priorities.get(&class),
        };
        if let Some(class) = class {
            if !says("priority") {
                pod.priority = class.value;
            }
            if !says("preemptionPolicy") {
                pod.never_preempts = class.never_preempts;
            }
        }
        pod.devices = self.devices.read_pod(object);
        Ok(pod)
    }

    /// Adds a node, or replaces its earlier state. Pods on it stay.
    pub fn set_node(&mut self, node: Node) -> NodeIndex {
        self.devices.set_node(&node);
        let symbol = node.symbol;
        let node = Arc::new(node);
        if let Some(index) = self.by_name.get(&symbol).copied() {
            if let Some(Some(state)) = self.nodes.get_mut(index.at()) {
                let before = std::mem::replace(&mut state.node, node);
                let after = Arc::clone(&state.node);
                self.count_images(&before, false);
                self.count_images(&after, true);
            }
            return index;
        }
        self.count_images(&node, true);
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            NodeIndex(u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX))
        });
        let at = self
            .order
            .binary_search_by(|other| self.name_of(*other).cmp(&node.name))
            .unwrap_or_else(|at| at);
        self.order.insert(at, index);
        self.by_name.insert(symbol, index);
        if let Some(slot) = self.nodes.get_mut(index.at()) {
            *slot = Some(NodeState::new(node, index));
        }
        for pod in self.homeless.remove(&symbol).unwrap_or_default() {
            self.put(index, &pod);
        }
        index
    }

    /// Removes a node. Its pods stay known and are on the node again when it returns. Returns whether the node was
    /// known.
    pub fn remove_node(&mut self, name: &str) -> bool {
        let Some(symbol) = self.names.known(name) else {
            return false;
        };
        let Some(index) = self.by_name.remove(&symbol) else {
            return false;
        };
        self.devices.remove_node(name);
        self.order.retain(|other| *other != index);
        self.with_affinity.remove(&index);
        if let Some(state) = self.nodes.get_mut(index.at()).and_then(Option::take) {
            self.count_images(&state.node, false);
            if !state.pods.is_empty() {
                self.homeless.insert(symbol, state.pods);
            }
        }
        self.vacant.push(index);
        true
    }

    fn count_images(&mut self, node: &Node, more: bool) {
        for (image, _) in &node.images {
            let count = self.image_nodes.entry(*image).or_default();
            *count = if more {
                count.saturating_add(1)
            } else {
                count.saturating_sub(1)
            };
        }
    }

    fn name_of(&self, index: NodeIndex) -> Arc<str> {
        self.node(index)
            .map_or_else(|| "".into(), |state| Arc::clone(&state.node.name))
    }

    /// The node at this index.
    pub fn node(&self, index: NodeIndex) -> Option<&NodeState> {
        self.nodes.get(index.at()).and_then(Option::as_ref)
    }

    /// The node of this name.
    pub fn node_named(&self, name: &str) -> Option<&NodeState> {
        self.node_of(self.names.known(name)?)
    }

    pub(crate) fn node_of(&self, name: Symbol) -> Option<&NodeState> {
        self.node(*self.by_name.get(&name)?)
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeState> {
        self.order.iter().filter_map(|index| self.node(*index))
    }

    /// The indices of all nodes, by name.
    pub fn order(&self) -> &[NodeIndex] {
        &self.order
    }

    /// The number of nodes.
    pub fn node_count(&self) -> usize {
        self.order.len()
    }

    /// Nodes with pods that have affinity or anti-affinity.
    pub fn nodes_with_affinity(&self) -> impl Iterator<Item = &NodeState> {
        self.with_affinity
            .iter()
            .filter_map(|index| self.node(*index))
    }

    /// The number of nodes that have the image.
    pub(crate) fn nodes_with_image(&self, image: Symbol) -> u32 {
        self.image_nodes.get(&image).copied().unwrap_or_default()
    }

    /// Puts a pod on a node, or moves it there. This ends the pod's nomination.
    pub fn assign(&mut self, pod: Arc<Pod>, node: &str) {
        self.take_off(&pod.key);
        self.clear_nomination(&pod.key);
        let symbol = self.names.intern(node);
        let pod = if pod.node == symbol {
            pod
        } else {
            let mut moved = Arc::unwrap_or_clone(pod);
            moved.node = symbol;
            Arc::new(moved)
        };
        self.pods.insert(Arc::clone(&pod.key), Arc::clone(&pod));
        match self.by_name.get(&symbol).copied() {
            Some(index) => self.put(index, &pod),
            None => self.homeless.entry(symbol).or_default().push(pod),
        }
    }

    fn put(&mut self, index: NodeIndex, pod: &Arc<Pod>) {
        if let Some(Some(state)) = self.nodes.get_mut(index.at()) {
            state.add(pod);
            if pod.affinity.is_some() {
                self.with_affinity.insert(index);
            }
        }
    }

    /// Updates a pod from the API server's object. A pod with a node is put on the node, with the shared devices in its
    /// annotations. A pod that has ended or has no node holds nothing. A pod without a node is only read: the caller
    /// places it.
    ///
    /// # Errors
    ///
    /// As [`Pod::read`], and when its devices cannot be read. Nothing has changed then.
    pub fn observe(&mut self, object: &Value) -> Result<Arc<Pod>, ReadError> {
        let pod = Arc::new(self.read_pod(object)?);
        if pod.node == Symbol::EMPTY || pod.ended {
            self.remove_pod(&pod.key);
            return Ok(pod);
        }
        let held = self
            .devices
            .held(object)
            .map_err(|problem| ReadError::Malformed {
                object: format!("pod {}", pod.key),
                problem: problem.to_string(),
            })?;
        if let Some(held) = held {
            self.devices.reserve(&pod, held);
        }
        let node: Arc<str> = self.names.text(pod.node).into();
        self.assign(Arc::clone(&pod), &node);
        Ok(pod)
    }

    /// Removes an assigned pod from its node, with its shared devices. `key` is `namespace/name`. Returns the pod if it
    /// was known.
    pub fn remove_pod(&mut self, key: &str) -> Option<Arc<Pod>> {
        let pod = self.take_off(key)?;
        self.devices.release(&pod);
        Some(pod)
    }

    fn take_off(&mut self, key: &str) -> Option<Arc<Pod>> {
        let pod = self.pods.remove(key)?;
        match self.by_name.get(&pod.node).copied() {
            Some(index) => {
                if let Some(Some(state)) = self.nodes.get_mut(index.at()) {
                    state.remove(key);
                    if state.with_affinity.is_empty() {
                        self.with_affinity.remove(&index);
                    }
                }
            }
            None => {
                if let Some(pods) = self.homeless.get_mut(&pod.node) {
                    pods.retain(|other| *other.key != *key);
                }
            }
        }
        Some(pod)
    }

    /// The assigned pod with this key (`namespace/name`).
    pub fn pod(&self, key: &str) -> Option<&Arc<Pod>> {
        self.pods.get(key)
    }

    /// All assigned pods, in no order.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
    }

    /// Keeps room on a node for a pod that is not placed yet, after other pods were evicted for it.
    pub fn nominate(&mut self, pod: Arc<Pod>, node: &str) {
        self.clear_nomination(&pod.key);
        let node = self.names.intern(node);
        self.nominated.entry(node).or_default().push(pod);
    }

    /// Removes a nomination. `key` is `namespace/name`.
    pub fn clear_nomination(&mut self, key: &str) {
        self.nominated.retain(|_, pods| {
            pods.retain(|pod| *pod.key != *key);
            !pods.is_empty()
        });
    }

    /// Pods that are nominated for the node.
    pub fn nominated(&self, node: Symbol) -> &[Arc<Pod>] {
        if self.nominated.is_empty() {
            return &[];
        }
        self.nominated.get(&node).map_or(&[], Vec::as_slice)
    }

    /// The labels of a namespace; `None` if it is unknown.
    pub fn namespace(&self, name: Symbol) -> Option<&Labels> {
        self.namespaces.get(&name)
    }

    /// Adds an object, or replaces its earlier state.
    ///
    /// # Errors
    ///
    /// It cannot be read. Nothing has changed then.
    pub fn set_object(&mut self, kind: Kind, object: &Value) -> Result<(), ReadError> {
        let names = &mut self.names;
        match kind {
            Kind::Namespace => {
                let (name, labels) = model::namespace(names, object)?;
                self.namespaces.insert(name, labels);
            }
            Kind::PersistentVolume => {
                let volume = PersistentVolume::read(names, object)?;
                self.volumes.insert(volume.name, Arc::new(volume));
            }
            Kind::PersistentVolumeClaim => {
                let claim = PersistentVolumeClaim::read(names, object)?;
                self.claims
                    .insert((claim.namespace, claim.name), Arc::new(claim));
            }
            Kind::StorageClass => {
                let class = StorageClass::read(names, object)?;
                self.classes.insert(class.name, Arc::new(class));
            }
            Kind::PriorityClass => {
                let (name, _) = model::namespace(names, object)?;
                let class = PriorityClass {
                    value: object
                        .get("value")
                        .and_then(Value::as_i64)
                        .and_then(|value| i32::try_from(value).ok())
                        .unwrap_or_default(),
                    is_default: object.get("globalDefault").and_then(Value::as_bool) == Some(true),
                    never_preempts: object.get("preemptionPolicy").and_then(Value::as_str)
                        == Some("Never"),
                };
                self.priorities.insert(name, class);
            }
            Kind::CsiNode => {
                let node = CsiNode::read(names, object)?;
                self.csi_nodes.insert(node.name, Arc::new(node));
            }
            Kind::PodDisruptionBudget => {
                let budget = Budget::read(names, object)?;
                self.budgets.retain(|other| {
                    (other.namespace, other.name) != (budget.namespace, budget.name)
                });
                self.budgets.push(Arc::new(budget));
            }
            Kind::Service | Kind::ReplicationController | Kind::ReplicaSet | Kind::StatefulSet => {
                let (api_version, of) = kind.workload().unwrap_or_default();
                let workload = Workload::read(names, api_version, of, object)?;
                self.workloads.retain(|other| {
                    (other.kind, other.namespace, other.name)
                        != (workload.kind, workload.namespace, workload.name)
                });
                self.workloads.push(Arc::new(workload));
            }
        }
        Ok(())
    }

    /// Removes an object. Kinds without a namespace ignore `namespace`. Returns whether the object was known.
    pub fn remove_object(&mut self, kind: Kind, namespace: &str, name: &str) -> bool {
        let (Some(name), namespace) = (self.names.known(name), self.names.known(namespace)) else {
            return false;
        };
        let namespace = namespace.unwrap_or(Symbol::EMPTY);
        match kind {
            Kind::Namespace => self.namespaces.remove(&name).is_some(),
            Kind::PersistentVolume => self.volumes.remove(&name).is_some(),
            Kind::PersistentVolumeClaim => self.claims.remove(&(namespace, name)).is_some(),
            Kind::StorageClass => self.classes.remove(&name).is_some(),
            Kind::PriorityClass => self.priorities.remove(&name).is_some(),
            Kind::CsiNode => self.csi_nodes.remove(&name).is_some(),
            Kind::PodDisruptionBudget => {
                let before = self.budgets.len();
                self.budgets
                    .retain(|other| (other.namespace, other.name) != (namespace, name));
                self.budgets.len() != before
            }
            Kind::Service | Kind::ReplicationController | Kind::ReplicaSet | Kind::StatefulSet => {
                let of = kind
                    .workload()
                    .and_then(|(_, of)| self.names.known(of))
                    .unwrap_or(Symbol::EMPTY);
                let before = self.workloads.len();
                self.workloads.retain(|other| {
                    (other.kind, other.namespace, other.name) != (of, namespace, name)
                });
                self.workloads.len() != before
            }
        }
    }
}
