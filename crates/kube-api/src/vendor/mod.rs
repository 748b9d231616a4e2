//! The vendors: a table with one row for each, and code only where a row is not enough. A family is one file;
//! `general` has what all families share. Does not decide which device a pod gets.

mod amd;
mod ascend;
mod aws_neuron;
mod biren;
mod cambricon;
mod capacity;
mod enflame;
pub(crate) mod general;
mod hygon;
mod iluvatar;
mod kunlun;
mod metax;
mod mthreads;
mod nvidia;
mod vastai;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use placement::{Ask, Device, Grant, Granted, NodeView, PairScore, Placement};

use crate::config::{ConfigError, DeviceConfig};
use crate::fields::{PodRules, RequestError};
use crate::hcs::keys::RESULTS;
use crate::hcs::rules::Rules;
use crate::keys;
use crate::object::{Container, Node, Pod};
use crate::quantity::shortened;
use crate::register::Problem;
use crate::slots::AllocationError;

/// The vendors that are enabled in addition to those that always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switches {
    /// Huawei Ascend.
    pub ascend: bool,
    /// Iluvatar.
    pub iluvatar: bool,
}

/// All vendors of a configuration, in a fixed order: NVIDIA first.
#[derive(Debug)]
pub struct Vendors {
    config: DeviceConfig,
    rows: Vec<Row>,
    /// The row's index, and the resource's role, by the resource's name.
    by_resource: HashMap<String, (usize, Role)>,
    /// See [`Vendors::allocation_keys`].
    allocation_keys: Vec<String>,
    /// The rules for reading requests of hcs.io, if they are read.
    hcs: Option<Rules>,
}

/// The role of a vendor's resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The number of devices, or of shares of devices.
    Count,
    /// Memory on each.
    Memory,
    /// Memory on each, in percent of the device's.
    MemoryPercent,
    /// Compute on each.
    Cores,
    /// Priority of the task on the device.
    Priority,
}

/// One vendor.
#[derive(Debug)]
pub struct Row {
    /// The word for it in the engine and the annotations (`NVIDIA`, `DCU`, `Ascend910B3`).
    pub word: String,
    /// The names of its resources, each with its role; a role that the vendor does not have is absent.
    pub resources: Vec<(Role, String)>,
    /// The number of MiB in one unit of the memory resource, if it is written without a binary suffix.
    pub memory_unit_mib: u64,
    /// The defaults for a container that asks for nothing else.
    pub defaults: RowDefaults,
    /// Names of its annotations.
    pub keys: Keys,
    /// The behaviour of this family.
    family: Box<dyn Family>,
}

/// The defaults for a container that asks for a vendor's devices and nothing else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowDefaults {
    /// Memory in MiB; 0 is the whole device.
    pub memory_mib: u64,
    /// Compute in the vendor's unit.
    pub cores: u32,
    /// The most compute of one device in the vendor's unit. More is cut to it; 0 cuts nothing.
    pub most_cores: u32,
}

/// Names of a vendor's annotations. A vendor that lacks one has `None`, or an empty list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    /// On the node: its devices, in colon or JSON form. `None`: they are derived from the node's capacity, or
    /// otherwise.
    pub register: Option<String>,
    /// On the node: how well devices are connected.
    pub score: Option<String>,
    /// On the node: heartbeat of the vendor's agent.
    pub handshake: Option<String>,
    /// On the node: other keys that the family's `devices` reads.
    pub also_read: Vec<String>,
    /// On the pod: the part of the allocation that the agent still has to give to containers.
    pub to_allocate: Option<String>,
    /// On the pod: its allocation.
    pub allocated: Option<String>,
    /// On the pod: further keys with an exact copy of the allocation.
    pub copies: Vec<String>,
    /// On the pod: other keys that only the scheduler and the agents write.
    pub also_written: Vec<String>,
    /// On the pod, by the user: only devices with these identifiers.
    pub use_ids: Vec<String>,
    /// On the pod, by the user: no devices with these identifiers.
    pub nouse_ids: Vec<String>,
    /// On the pod, by the user: only devices of these models.
    pub use_types: Vec<String>,
    /// On the pod, by the user: no devices of these models.
    pub nouse_types: Vec<String>,
}

/// Admission's changes of a container for its vendor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits {
    /// Limits to set, by resource name. If the container has the name under `requests`, it is set there too.
    pub limits: BTreeMap<String, String>,
    /// Requests to set, by resource name.
    pub requests: BTreeMap<String, String>,
    /// Environment variables to add, unless they exist.
    pub env: Vec<(String, String)>,
    /// Annotations of the pod to add, unless they exist.
    pub annotations: BTreeMap<String, String>,
    /// Runtime class of the pod, unless it has one.
    pub runtime_class: Option<String>,
    /// Command to run in the container after its start, unless it has one.
    pub post_start: Vec<String>,
}

/// A container that cannot be admitted: the field, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("container {container}: {field}: {problem}")]
pub struct Rejection {
    /// Name of the container.
    pub container: String,
    /// The field or resource (`resources.limits[nvidia.com/gpumem-percentage]`).
    pub field: String,
    /// The value that was read, the values that are accepted, and what to do.
    pub problem: String,
}

impl From<RequestError> for Rejection {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Amount {
                container,
                resource,
                problem,
            } => Self {
                container,
                field: format!("resources.limits[{resource}]"),
                problem,
            },
            RequestError::Annotation {
                key,
                value,
                problem,
            } => Self {
                container: String::new(),
                field: format!("metadata.annotations[{key}]"),
                problem: format!("{value:?}: {problem}"),
            },
        }
    }
}

/// The input for a pod's annotations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writing<'a> {
    /// The pod.
    pub(crate) pod: &'a Pod,
    /// Its placement.
    pub(crate) placement: &'a Placement,
    /// Its node.
    pub(crate) node: Option<NodeView<'a>>,
    /// The present time, since 1970.
    pub(crate) unix_nanoseconds: u64,
}

/// The behaviour of a family of vendors that differs from `general`. Each method's default is the general rule, and a
/// family that only adds to it calls `general` first.
pub(crate) trait Family: fmt::Debug + Send + Sync {
    /// The container's ask.
    fn ask(
        &self,
        row: &Row,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        general::ask(row, container, pod, rules)
    }

    /// The devices of the node.
    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        general::devices(row, node)
    }

    /// How well the devices of the node are connected.
    fn pairs(&self, row: &Row, node: &Node) -> Result<Vec<PairScore>, Problem> {
        general::pairs(row, node)
    }

    /// Adds the annotations in which the agent, and the scheduler after a restart, read what the pod got. Only called
    /// if the pod got something of this vendor.
    fn annotate(&self, row: &Row, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
        general::annotate(row, writing, into);
    }

    /// The second field of an allocation.
    fn type_field(&self, row: &Row, grant: &Grant, node: Option<NodeView<'_>>) -> String {
        let _ = (grant, node);
        row.word.clone()
    }

    /// The pod's allocation, by container, init containers first.
    fn granted(&self, row: &Row, pod: &Pod) -> Result<Option<Vec<Granted>>, AllocationError> {
        general::granted(row, pod)
    }

    /// Admission's changes of a container, whether it asks for this vendor or not.
    fn admit(&self, row: &Row, container: &Container, pod: &Pod) -> Result<Edits, Rejection> {
        let _ = pod;
        general::admit(row, container)
    }
}

/// The family of a row without special behaviour.
#[derive(Debug)]
pub(crate) struct Plain;

impl Family for Plain {}

impl Vendors {
    /// The table of this configuration.
    ///
    /// # Errors
    ///
    /// Two vendors claim the same resource name or word, or a template cannot be used.
    pub fn new(config: DeviceConfig, switches: Switches) -> Result<Self, ConfigError> {
        let mut rows = Vec::new();
        rows.extend(nvidia::rows(&config)?);
        rows.extend(cambricon::rows(&config)?);
        rows.extend(hygon::rows(&config)?);
        if switches.ascend {
            rows.extend(ascend::rows(&config)?);
        }
        if switches.iluvatar {
            rows.extend(iluvatar::rows(&config)?);
        }
        rows.extend(mthreads::rows(&config)?);
        rows.extend(metax::rows(&config)?);
        rows.extend(enflame::rows(&config)?);
        rows.extend(kunlun::rows(&config)?);
        rows.extend(aws_neuron::rows(&config)?);
        rows.extend(amd::rows(&config)?);
        rows.extend(vastai::rows(&config)?);
        rows.extend(biren::rows(&config)?);
        for row in &mut rows {
            row.resources.retain(|(_, name)| !name.is_empty());
        }
        rows.retain(|row| !row.resources.is_empty());
        Self::of_rows(config, rows)
    }

    fn of_rows(config: DeviceConfig, rows: Vec<Row>) -> Result<Self, ConfigError> {
        let mut by_resource: HashMap<String, (usize, Role)> = HashMap::new();
        let mut allocation_keys: Vec<String> = keys::ALLOCATION
            .iter()
            .map(|key| (*key).to_owned())
            .collect();
        for (at, row) in rows.iter().enumerate() {
            if rows.iter().take(at).any(|other| other.word == row.word) {
                return Err(ConfigError::Wrong {
                    key: row.word.clone(),
                    problem: "is the word of two vendors; give each a commonWord of its own"
                        .to_owned(),
                });
            }
            for (role, name) in &row.resources {
                if !is_extended(name) {
                    return Err(ConfigError::Wrong {
                        key: format!("{:?} of {}", shortened(name), row.word),
                        problem: "is no name of an extended resource; write a domain and a word, such as nvidia.com/gpu"
                            .to_owned(),
                    });
                }
                if let Some((other, _)) = by_resource.insert(name.clone(), (at, *role)) {
                    let other = rows.get(other).map_or("", |row| row.word.as_str());
                    return Err(ConfigError::Wrong {
                        key: name.clone(),
                        problem: format!(
                            "is a resource of {other} and of {}; give each a name of its own",
                            row.word
                        ),
                    });
                }
            }
            allocation_keys.extend(
                row.keys
                    .to_allocate
                    .iter()
                    .chain(&row.keys.allocated)
                    .chain(&row.keys.copies)
                    .chain(&row.keys.also_written)
                    .cloned(),
            );
        }
        let hcs = match &config.hcs {
            Some(section) => {
                allocation_keys.extend(RESULTS.iter().map(|key| (*key).to_owned()));
                Some(Rules {
                    table: Arc::new(section.table()?),
                    config: section.clone(),
                })
            }
            None => None,
        };
        allocation_keys.sort();
        allocation_keys.dedup();
        Ok(Self {
            config,
            rows,
            by_resource,
            allocation_keys,
            hcs,
        })
    }

    /// The configuration that it was made from.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// The rules for reading requests of hcs.io; `None` if they are not read.
    pub fn hcs(&self) -> Option<&Rules> {
        self.hcs.as_ref()
    }

    /// The scheduler of pods that accept devices of several vendors, if it differs from that of other pods.
    pub fn any_vendor_scheduler(&self) -> Option<&str> {
        let name = self.hcs.as_ref()?.config.any_vendor_scheduler.as_str();
        Some(name).filter(|name| !name.is_empty())
    }

    /// All vendors, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter()
    }

    /// The vendor of this word.
    pub fn get(&self, word: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.word == word)
    }

    /// The vendors whose resources the container names, in the order of the table.
    pub(crate) fn named_by(&self, container: &Container) -> impl Iterator<Item = &Row> {
        let needs = &container.resources;
        let mut places: Vec<usize> = needs
            .limits
            .keys()
            .chain(needs.requests.keys())
            .filter_map(|name| Some(self.by_resource.get(name)?.0))
            .collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().filter_map(|at| self.rows.get(at))
    }

    /// The vendor of this resource, and the resource's role.
    pub fn of_resource(&self, name: &str) -> Option<(&Row, Role)> {
        let (at, role) = self.by_resource.get(name)?;
        Some((self.rows.get(*at)?, *role))
    }

    /// Every resource name, with its vendor and role.
    pub fn resources(&self) -> impl Iterator<Item = (&str, &Row, Role)> {
        self.rows.iter().flat_map(|row| {
            row.resources
                .iter()
                .map(move |(role, name)| (name.as_str(), row, *role))
        })
    }

    /// Every pod annotation that only the scheduler and the agents write, in byte order.
    pub fn allocation_keys(&self) -> impl Iterator<Item = &str> {
        self.allocation_keys.iter().map(String::as_str)
    }
}

/// Whether Kubernetes treats this as the name of an extended resource. A name such as `cpu` would make every pod of the
/// cluster ours.
fn is_extended(name: &str) -> bool {
    let letters = |word: &str, more: &[char]| {
        let plain = |letter: char| letter.is_ascii_alphanumeric();
        word.starts_with(plain)
            && word.ends_with(plain)
            && word
                .chars()
                .all(|letter| plain(letter) || more.contains(&letter))
    };
    name.split_once('/').is_some_and(|(domain, word)| {
        letters(domain, &['-', '.'])
            && letters(word, &['-', '_', '.'])
            && domain != "kubernetes.io"
            && word.len() <= 63
            && domain.len() <= 253
    })
}

impl Row {
    /// Name of the resource with this role; `None` if the vendor has none.
    pub fn resource(&self, role: Role) -> Option<&str> {
        self.resources
            .iter()
            .find(|(of, _)| *of == role)
            .map(|(_, name)| name.as_str())
    }

    /// The container's ask to this vendor; `None` if it asks for nothing of it.
    pub(crate) fn ask(
        &self,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        self.family.ask(self, container, pod, rules)
    }

    /// The vendor's devices on the node; empty if the node reports none.
    pub(crate) fn devices(&self, node: &Node) -> Result<Vec<Device>, Problem> {
        self.family.devices(self, node)
    }

    /// How well the vendor's devices on the node are connected.
    pub(crate) fn pairs(&self, node: &Node) -> Result<Vec<PairScore>, Problem> {
        self.family.pairs(self, node)
    }

    /// Adds the annotations of the pod's allocation of this vendor.
    pub(crate) fn annotate(&self, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
        self.family.annotate(self, writing, into);
    }

    /// The second field of an allocation.
    pub(crate) fn type_field(&self, grant: &Grant, node: Option<NodeView<'_>>) -> String {
        self.family.type_field(self, grant, node)
    }

    /// The pod's allocation of this vendor by its annotations, by container (init containers first).
    pub(crate) fn granted(&self, pod: &Pod) -> Result<Option<Vec<Granted>>, AllocationError> {
        self.family.granted(self, pod)
    }

    /// Admission's changes of this container.
    ///
    /// # Errors
    ///
    /// The request cannot be met in any cluster.
    pub fn admit(&self, container: &Container, pod: &Pod) -> Result<Edits, Rejection> {
        self.family.admit(self, container, pod)
    }
}
