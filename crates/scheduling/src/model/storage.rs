//! Volumes, claims, storage classes, drivers, disruption budgets, and the workloads that pods belong to. The volume
//! plugins decide which volume a pod gets.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_api::keys;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Display;

use super::selector::{Labels, NodeSelector, Selector, node_selector, selector};
use super::{ReadError, resources, wire};
use crate::names::{Names, Symbol};

/// When a claim gets its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindingMode {
    /// At once, before any pod uses it.
    Immediate,
    /// When a pod that uses it is placed.
    WaitForFirstConsumer,
}

/// One place where a provisioner can make volumes: labels, each with the values that the node may have. All of them
/// must match.
pub type TopologyTerm = Box<[(Symbol, Box<[Symbol]>)]>;

/// A storage class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageClass {
    /// Its name.
    pub name: Symbol,
    /// The provisioner of its volumes; `kubernetes.io/no-provisioner` for none.
    pub provisioner: Symbol,
    /// When claims get their volume.
    pub mode: BindingMode,
    /// Where volumes can be made; everywhere if empty.
    pub topologies: Box<[TopologyTerm]>,
    /// Whether claims without a class get this class.
    pub is_default: bool,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistentVolume {
    /// Its name.
    pub name: Symbol,
    /// Its labels.
    pub labels: Labels,
    /// Its size in bytes.
    pub bytes: i64,
    /// The ways in which it can be mounted.
    pub access_modes: Box<[Symbol]>,
    /// Its class; empty for none.
    pub class: Symbol,
    /// Whether it is a raw block device.
    pub block: bool,
    /// The nodes that reach it; all nodes if absent.
    pub nodes: Option<NodeSelector>,
    /// Namespace and name of the claim that it is reserved for, and that claim's uid (empty if it is not bound yet).
    pub claim: Option<(Symbol, Symbol, Symbol)>,
    /// Driver and handle of a CSI volume.
    pub csi: Option<(Symbol, Symbol)>,
    /// Whether it can be given to a claim (`Available`, or no phase yet).
    pub available: bool,
    /// Class of its attributes; empty for none.
    pub attributes_class: Symbol,
}

/// A claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistentVolumeClaim {
    /// Its namespace.
    pub namespace: Symbol,
    /// Its name.
    pub name: Symbol,
    /// Its uid.
    pub uid: Symbol,
    /// The number of bytes that it asks for.
    pub bytes: i64,
    /// The ways in which it wants to mount.
    pub access_modes: Box<[Symbol]>,
    /// Its class; empty for none.
    pub class: Symbol,
    /// Whether it wants a raw block device.
    pub block: bool,
    /// Its volume; empty for none.
    pub volume: Symbol,
    /// Whether the binding of claim and volume is complete.
    pub bound: bool,
    /// Selects the volumes that it accepts; all volumes if absent.
    pub selector: Option<Selector>,
    /// Whether its volume is lost (`status.phase` is `Lost`).
    pub lost: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// The node for which the provisioner has to make the volume; empty for none.
    pub selected_node: Symbol,
    /// The uid of the pod that it was made for, from a template; empty for none.
    pub owner: Symbol,
    /// Class of the attributes that it asks for; empty for none.
    pub attributes_class: Symbol,
}

/// A CSI driver of a node, with the number of volumes that the node supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsiDriver {
    /// The driver.
    pub name: Symbol,
    /// The number of volumes; `None` if there is no limit.
    pub most: Option<i64>,
}

/// The CSI drivers of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsiNode {
    /// Name of the node.
    pub name: Symbol,
    /// The drivers on it.
    pub drivers: Box<[CsiDriver]>,
}

/// A pod disruption budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Its namespace.
    pub namespace: Symbol,
    /// Its name.
    pub name: Symbol,
    /// Selects the pods that it protects.
    pub selector: Selector,
    /// How many of them may be evicted now.
    pub allowed: i64,
    /// Names of pods whose eviction is already counted.
    pub disrupted: Box<[Symbol]>,
}

/// A service or a controller of pods. The default constraints of topology spread use its selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// API version: `v1`, `apps/v1`.
    pub api_version: Symbol,
    /// Its kind: `Service`, `ReplicationController`, `ReplicaSet`, `StatefulSet`.
    pub kind: Symbol,
    /// Its namespace.
    pub namespace: Symbol,
    /// Its name.
    pub name: Symbol,
    /// Selects the pods that belong to it.
    pub selector: Selector,
}

fn decode<T: DeserializeOwned>(kind: &str, object: &Value) -> Result<T, ReadError> {
    T::deserialize(object).map_err(|error| ReadError::Malformed {
        object: wire::named(kind, object),
        problem: error.to_string(),
    })
}

fn symbol_of(
    names: &mut Names,
    kind: &'static str,
    metadata: &wire::Metadata,
) -> Result<Symbol, ReadError> {
    if metadata.name.is_empty() {
        return Err(ReadError::Nameless { kind });
    }
    Ok(names.intern(&metadata.name))
}

fn namespace_of(names: &mut Names, metadata: &wire::Metadata) -> Symbol {
    names.intern(match metadata.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    })
}

fn bytes(
    names: &mut Names,
    object: &str,
    field: &str,
    amounts: &std::collections::BTreeMap<String, kube_api::quantity::Quantity>,
) -> Result<i64, ReadError> {
    let mut exact = resources::exact(object, field, amounts)?;
    // Storage is counted as memory is: in whole bytes, rounded up.
    let storage = exact.remove("storage").unwrap_or_default();
    let (amount, _) = resources::whole(names, &[("memory".to_owned(), storage)].into());
    Ok(amount.memory_bytes)
}

impl StorageClass {
    /// Reads a storage class.
    ///
    /// # Errors
    ///
    /// When it has no name, or when a field has another type than Kubernetes gives it.
    pub fn read(names: &mut Names, object: &Value) -> Result<Self, ReadError> {
        let written: wire::StorageClassObject = decode("storage class", object)?;
        let mut topologies = Vec::new();
        for term in &written.allowed_topologies {
            let mut rules = Vec::new();
            for rule in term.match_label_expressions.iter().flatten() {
                let key = names.intern(&rule.key);
                rules.push((
                    key,
                    rule.values
                        .iter()
                        .map(|value| names.intern(value))
                        .collect(),
                ));
            }
            topologies.push(rules.into());
        }
        let annotations = &written.metadata.annotations;
        Ok(Self {
            name: symbol_of(names, "storage class", &written.metadata)?,
            provisioner: names.intern(&written.provisioner),
            mode: match written.volume_binding_mode.as_deref() {
                Some("WaitForFirstConsumer") => BindingMode::WaitForFirstConsumer,
                _ => BindingMode::Immediate,
            },
            topologies: topologies.into(),
            is_default: annotations
                .get(keys::DEFAULT_STORAGE_CLASS)
                .is_some_and(|value| value == "true"),
        })
    }
}

impl PersistentVolume {
    /// Reads a volume.
    ///
    /// # Errors
    ///
    /// When it has no name, when a field has another type than Kubernetes gives it, or when its size cannot be read.
    pub fn read(names: &mut Names, object: &Value) -> Result<Self, ReadError> {
        let written: wire::PersistentVolumeObject = decode("persistent volume", object)?;
        let spec = &written.spec;
        let name = symbol_of(names, "persistent volume", &written.metadata)?;
        let subject = format!("persistent volume {}", written.metadata.name);
        let class = match written.metadata.annotations.get(keys::OLD_STORAGE_CLASS) {
            Some(class) => class,
            None => &spec.storage_class_name,
        };
        Ok(Self {
            name,
            labels: Labels::new(
                names,
                written
                    .metadata
                    .labels
                    .iter()
                    .map(|(key, value)| (&**key, &**value)),
            ),
            bytes: bytes(names, &subject, "spec.capacity", &spec.capacity)?,
            access_modes: spec
                .access_modes
                .iter()
                .map(|mode| names.intern(mode))
                .collect(),
            class: names.intern(class),
            block: spec.volume_mode.as_deref() == Some("Block"),
            nodes: spec
                .node_affinity
                .as_ref()
                .and_then(|affinity| affinity.required.as_ref())
                .map(|required| node_selector(names, required)),
            claim: spec.claim_ref.as_ref().map(|claim| {
                (
                    names.intern(&claim.namespace),
                    names.intern(&claim.name),
                    names.intern(&claim.uid),
                )
            }),
            csi: spec
                .csi
                .as_ref()
                .map(|csi| (names.intern(&csi.driver), names.intern(&csi.volume_handle))),
            available: matches!(written.status.phase.as_str(), "" | "Available"),
            attributes_class: names.intern(
                spec.volume_attributes_class_name
                    .as_deref()
                    .unwrap_or_default(),
            ),
        })
    }
}

impl PersistentVolumeClaim {
    /// Reads a claim.
    ///
    /// # Errors
    ///
    /// When it has no name, when a field has another type than Kubernetes gives it, or when its size or its selector
    /// cannot be read.
    pub fn read(names: &mut Names, object: &Value) -> Result<Self, ReadError> {
        let written: wire::PersistentVolumeClaimObject = decode("persistent volume claim", object)?;
        let spec = &written.spec;
        let name = symbol_of(names, "persistent volume claim", &written.metadata)?;
        let subject = wire::named("persistent volume claim", object);
        let annotations = &written.metadata.annotations;
        let class = match annotations.get(keys::OLD_STORAGE_CLASS) {
            Some(class) => class,
            None => spec.storage_class_name.as_deref().unwrap_or_default(),
        };
        let selector =
            match &spec.selector {
                Some(written) => Some(selector(names, Some(written)).map_err(|problem| {
                    ReadError::Malformed {
                        object: subject.clone(),
                        problem: problem.to_string(),
                    }
                })?),
                None => None,
            };
        let owner = written
            .metadata
            .owner_references
            .iter()
            .find(|owner| owner.controller && owner.kind == "Pod");
        Ok(Self {
            namespace: namespace_of(names, &written.metadata),
            name,
            uid: names.intern(&written.metadata.uid),
            bytes: bytes(
                names,
                &subject,
                "spec.resources.requests",
                &spec.resources.requests,
            )?,
            access_modes: spec
                .access_modes
                .iter()
                .map(|mode| names.intern(mode))
                .collect(),
            class: names.intern(class),
            block: spec.volume_mode.as_deref() == Some("Block"),
            volume: names.intern(&spec.volume_name),
            bound: !spec.volume_name.is_empty()
                && (annotations.contains_key(keys::BIND_COMPLETED)
                    || written.status.phase == "Bound"),
            selector,
            lost: written.status.phase == "Lost",
            terminating: written.metadata.deletion_timestamp.is_some(),
            selected_node: names.intern(
                annotations
                    .get(keys::SELECTED_NODE)
                    .map_or("", String::as_str),
            ),
            owner: names.intern(owner.map_or("", |owner| &owner.uid)),
            attributes_class: names.intern(
                spec.volume_attributes_class_name
                    .as_deref()
                    .unwrap_or_default(),
            ),
        })
    }
}

impl CsiNode {
    /// Reads the drivers of a node.
    ///
    /// # Errors
    ///
    /// When it has no name, or when a field has another type than Kubernetes gives it.
    pub fn read(names: &mut Names, object: &Value) -> Result<Self, ReadError> {
        let written: wire::CsiNodeObject = decode("CSI node", object)?;
        Ok(Self {
            name: symbol_of(names, "CSI node", &written.metadata)?,
            drivers: written
                .spec
                .drivers
                .iter()
                .map(|driver| CsiDriver {
                    name: names.intern(&driver.name),
                    most: driver
                        .allocatable
                        .as_ref()
                        .and_then(|limit| limit.count)
                        .map(i64::from),
                })
                .collect(),
        })
    }
}

impl Budget {
    /// Reads a pod disruption budget.
    ///
    /// # Errors
    ///
    /// When it has no name, when a field has another type than Kubernetes gives it, or when its selector cannot be
    /// read.
    pub fn read(names: &mut Names, object: &Value) -> Result<Self, ReadError> {
        let written: wire::BudgetObject = decode("pod disruption budget", object)?;
        let selector = selector(names, written.spec.selector.as_ref()).map_err(|problem| {
            ReadError::Malformed {
                object: wire::named("pod disruption budget", object),
                problem: problem.to_string(),
            }
        })?;
        Ok(Self {
            namespace: namespace_of(names, &written.metadata),
            name: symbol_of(names, "pod disruption budget", &written.metadata)?,
            selector,
            allowed: i64::from(written.status.disruptions_allowed),
            disrupted: written
                .status
                .disrupted_pods
                .keys()
                .map(|name| names.intern(name))
                .collect(),
        })
    }
}

impl Workload {
    /// Reads a service or a controller of pods.
    ///
    /// # Errors
    ///
    /// When it has no name, or when its selector cannot be read.
    pub fn read(
        names: &mut Names,
        api_version: &str,
        kind: &str,
        object: &Value,
    ) -> Result<Self, ReadError> {
        let malformed = |problem: &dyn Display| ReadError::Malformed {
            object: wire::named(kind, object),
            problem: problem.to_string(),
        };
        let written: wire::Namespace = decode(kind, object)?;
        let of = object.get("spec").and_then(|spec| spec.get("selector"));
        let of = of.filter(|of| !of.is_null());
        let selector = match (kind, of) {
            (_, None) => Selector::Nothing,
            ("Service" | "ReplicationController", Some(labels)) => {
                let labels = std::collections::BTreeMap::<String, String>::deserialize(labels)
                    .map_err(|error| malformed(&error))?;
                Selector::equal(
                    labels
                        .iter()
                        .map(|(key, value)| (names.intern(key), names.intern(value)))
                        .collect::<Vec<_>>(),
                )
            }
            (_, Some(written)) => {
                let written =
                    LabelSelector::deserialize(written).map_err(|error| malformed(&error))?;
                selector(names, Some(&written)).map_err(|word| malformed(&word))?
            }
        };
        Ok(Self {
            api_version: names.intern(api_version),
            kind: names.intern(kind),
            namespace: namespace_of(names, &written.metadata),
            name: symbol_of(names, "workload", &written.metadata)?,
            selector,
        })
    }
}

/// The name and labels of a namespace.
pub(crate) fn namespace(names: &mut Names, object: &Value) -> Result<(Symbol, Labels), ReadError> {
    let written: wire::Namespace = decode("namespace", object)?;
    let name = symbol_of(names, "namespace", &written.metadata)?;
    // The API server gives every namespace its name as a label.
    let own = [(keys::NAMESPACE_NAME, written.metadata.name.as_str())];
    let labels = written.metadata.labels.iter();
    let labels = labels.map(|(key, value)| (&**key, &**value)).chain(own);
    Ok((name, Labels::new(names, labels)))
}
