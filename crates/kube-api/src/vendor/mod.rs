//! The vendors: one row for each in a table, and code only for what a row cannot say. A family is one file; what all
//! families share is in `general`. Never decides which card a pod gets.

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

/// Which vendors are looked at besides those that always are.
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
    /// Place of the row, and what the resource says, by the resource's name.
    by_resource: HashMap<String, (usize, Role)>,
    /// See [`Vendors::allocation_keys`].
    allocation_keys: Vec<String>,
    /// How requests of hcs.io are read, where they are.
    hcs: Option<Rules>,
}

/// What a resource of a vendor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// How many cards, or shares of cards.
    Count,
    /// Memory on each.
    Memory,
    /// Memory on each, in hundredths of the card.
    MemoryPercent,
    /// Compute on each.
    Cores,
    /// Priority of the task on the card.
    Priority,
}

/// One vendor.
#[derive(Debug)]
pub struct Row {
    /// The word under which the engine and the annotations know it (`NVIDIA`, `DCU`, `Ascend910B3`).
    pub word: String,
    /// Names of its resources, each with what it says; a role that the vendor does not have is absent.
    pub resources: Vec<(Role, String)>,
    /// How many MiB one unit of the memory resource is, where it is written without a binary suffix.
    pub memory_unit_mib: u64,
    /// What is taken where a container says nothing.
    pub defaults: RowDefaults,
    /// Names of its annotations.
    pub keys: Keys,
    /// What only this family does.
    family: Box<dyn Family>,
}

/// What is taken where a container asks for a vendor's cards and says nothing else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowDefaults {
    /// Memory in MiB; 0 is the whole card.
    pub memory_mib: u64,
    /// Compute in the vendor's unit.
    pub cores: u32,
    /// Most compute of one card in the vendor's unit, to which more is cut; 0 cuts nothing.
    pub most_cores: u32,
}

/// Names of a vendor's annotations. A vendor that lacks one has `None`, or an empty list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    /// On the node: its cards, in colon or JSON form. `None`: they are told from the node's capacity, or otherwise.
    pub register: Option<String>,
    /// On the node: how well cards reach each other.
    pub score: Option<String>,
    /// On the node: sign of life of the vendor's agent.
    pub handshake: Option<String>,
    /// On the node: what else the family's `devices` reads.
    pub also_read: Vec<String>,
    /// On the pod: what the agent still has to hand out.
    pub to_allocate: Option<String>,
    /// On the pod: what the pod got.
    pub allocated: Option<String>,
    /// On the pod: further keys under which the allocation is written, word for word.
    pub copies: Vec<String>,
    /// On the pod: what else only the scheduler and the agents write.
    pub also_written: Vec<String>,
    /// On the pod, by the user: only cards of these identifiers.
    pub use_ids: Vec<String>,
    /// On the pod, by the user: no cards of these identifiers.
    pub nouse_ids: Vec<String>,
    /// On the pod, by the user: only cards of these models.
    pub use_types: Vec<String>,
    /// On the pod, by the user: no cards of these models.
    pub nouse_types: Vec<String>,
}

/// What admission changes of a container for its vendor's sake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits {
    /// Limits to set, by resource name. Where the container has the name under `requests`, it is set there too.
    pub limits: BTreeMap<String, String>,
    /// Requests to set, by resource name.
    pub requests: BTreeMap<String, String>,
    /// Environment to add, where the name is not there yet.
    pub env: Vec<(String, String)>,
    /// Annotations of the pod to add, where the key is not there yet.
    pub annotations: BTreeMap<String, String>,
    /// Runtime class of the pod, where it has none.
    pub runtime_class: Option<String>,
    /// Command to run in the container once it has started, where it has none.
    pub post_start: Vec<String>,
}

/// A container that cannot be admitted: which field, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("container {container}: {field}: {problem}")]
pub struct Rejection {
    /// Name of the container.
    pub container: String,
    /// Which field or resource (`resources.limits[nvidia.com/gpumem-percentage]`).
    pub field: String,
    /// What was read, what is accepted, and what to do.
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

/// What is being written to a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writing<'a> {
    /// The pod that gets it.
    pub(crate) pod: &'a Pod,
    /// What it got.
    pub(crate) placement: &'a Placement,
    /// Where that lies.
    pub(crate) node: Option<NodeView<'a>>,
    /// When, since 1970.
    pub(crate) unix_nanoseconds: u64,
}

/// What a family of vendors does otherwise than `general`. Each method has the general rule as its default, and a
/// family that only adds to it calls `general` and goes on from there.
pub(crate) trait Family: fmt::Debug + Send + Sync {
    /// What the container asks for.
    fn ask(
        &self,
        row: &Row,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        general::ask(row, container, pod, rules)
    }

    /// The cards of the node.
    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        general::devices(row, node)
    }

    /// How well the cards of the node reach each other.
    fn pairs(&self, row: &Row, node: &Node) -> Result<Vec<PairScore>, Problem> {
        general::pairs(row, node)
    }

    /// Adds what says to the agent and to the next start of the scheduler what the pod got. Is called only where the
    /// pod got something of this vendor.
    fn annotate(&self, row: &Row, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
        general::annotate(row, writing, into);
    }

    /// Second field of an allocation.
    fn type_field(&self, row: &Row, grant: &Grant, node: Option<NodeView<'_>>) -> String {
        let _ = (grant, node);
        row.word.clone()
    }

    /// What the pod got, by container, init containers first.
    fn granted(&self, row: &Row, pod: &Pod) -> Result<Option<Vec<Granted>>, AllocationError> {
        general::granted(row, pod)
    }

    /// What admission changes of a container, whether it asks for this vendor or not.
    fn admit(&self, row: &Row, container: &Container, pod: &Pod) -> Result<Edits, Rejection> {
        let _ = pod;
        general::admit(row, container)
    }
}

/// The family of a row that says it all.
#[derive(Debug)]
pub(crate) struct Plain;

impl Family for Plain {}

impl Vendors {
    /// The table of this configuration.
    ///
    /// # Errors
    ///
    /// When two vendors claim one resource name or one word, or a template cannot be used.
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

    /// The configuration that it was made of.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// How requests of hcs.io are read; none where they are not.
    pub fn hcs(&self) -> Option<&Rules> {
        self.hcs.as_ref()
    }

    /// The scheduler of pods that take devices of several vendors, where it is another one than that of the others.
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

    /// Whose resource this is, and what it says.
    pub fn of_resource(&self, name: &str) -> Option<(&Row, Role)> {
        let (at, role) = self.by_resource.get(name)?;
        Some((self.rows.get(*at)?, *role))
    }

    /// Every resource name, with its vendor and what it says.
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

/// Whether Kubernetes takes this for the name of a resource that it does not know itself. `cpu` would make every pod of
/// the cluster ours.
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
    /// Name of the resource that says this; none when the vendor has none.
    pub fn resource(&self, role: Role) -> Option<&str> {
        self.resources
            .iter()
            .find(|(of, _)| *of == role)
            .map(|(_, name)| name.as_str())
    }

    /// What the container asks of this vendor; none when it asks for nothing of it.
    pub(crate) fn ask(
        &self,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        self.family.ask(self, container, pod, rules)
    }

    /// The vendor's devices on the node; none where the node does not report any.
    pub(crate) fn devices(&self, node: &Node) -> Result<Vec<Device>, Problem> {
        self.family.devices(self, node)
    }

    /// How well the vendor's devices on the node reach each other.
    pub(crate) fn pairs(&self, node: &Node) -> Result<Vec<PairScore>, Problem> {
        self.family.pairs(self, node)
    }

    /// Adds the annotations that say what the pod got of this vendor.
    pub(crate) fn annotate(&self, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
        self.family.annotate(self, writing, into);
    }

    /// Second field of an allocation.
    pub(crate) fn type_field(&self, grant: &Grant, node: Option<NodeView<'_>>) -> String {
        self.family.type_field(self, grant, node)
    }

    /// What the pod's annotations say that it got of this vendor, by container (init containers first).
    pub(crate) fn granted(&self, pod: &Pod) -> Result<Option<Vec<Granted>>, AllocationError> {
        self.family.granted(self, pod)
    }

    /// What admission changes of this container.
    ///
    /// # Errors
    ///
    /// When what it asks for cannot be given in any cluster.
    pub fn admit(&self, container: &Container, pod: &Pod) -> Result<Edits, Rejection> {
        self.family.admit(self, container, pod)
    }
}
