//! Advice: changes of a request or of the cluster that would make a pod fit.

use std::fmt;
use std::sync::Arc;

use crate::inventory::Vendor;
use crate::request::{Ask, Compute, DevicePolicy, Memory, Pod, Request};

const MIB: u64 = 1 << 20;

/// Changes that together would make the pod fit. It is a single change if one is enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// The node on which the pod would then fit.
    pub node: Arc<str>,
    /// The changes; no smaller change of the same kind is enough.
    pub changes: Vec<Change>,
}

/// One change of the request or of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Less memory on each device: the most that fits, rounded down to a whole MiB or a whole percent.
    LessMemory {
        /// Position of the container in the request.
        container: usize,
        /// The vendor of the devices.
        vendor: Vendor,
        /// The amount in the request.
        from: Memory,
        /// The amount that would fit.
        to: Memory,
    },
    /// Less compute on each device, in its unit: the most that fits.
    LessCores {
        /// Position of the container in the request.
        container: usize,
        /// The vendor of the devices.
        vendor: Vendor,
        /// The amount in the request.
        from: u32,
        /// The amount that would fit.
        to: u32,
    },
    /// Fewer devices: as many as fit.
    FewerDevices {
        /// Position of the container in the request.
        container: usize,
        /// The vendor of the devices.
        vendor: Vendor,
        /// The number in the request.
        from: u32,
        /// The number that would fit.
        to: u32,
    },
    /// Type rules that also allow this model.
    AllowModel {
        /// Position of the container in the request.
        container: usize,
        /// The vendor of the devices.
        vendor: Vendor,
        /// The model.
        model: String,
    },
    /// One rule fewer.
    DropRule {
        /// Position of the container in the request.
        container: usize,
        /// The vendor of the devices.
        vendor: Vendor,
        /// The rule.
        rule: Rule,
    },
    /// These pods leave the node. It is the smallest number of pods, and of several such sets the one that holds the
    /// least.
    PodsLeave {
        /// The pods, by namespace and name.
        pods: Vec<Pod>,
    },
    /// The operator uncordons these devices.
    Uncordon {
        /// Their identifiers.
        devices: Vec<Arc<str>>,
    },
    /// These devices become healthy again.
    Recover {
        /// Their identifiers.
        devices: Vec<Arc<str>>,
    },
    /// The namespace's quota grows by this much.
    MoreQuota {
        /// The vendor of the devices.
        vendor: Vendor,
        /// More memory in bytes.
        memory_bytes: u64,
        /// More compute, in the vendor's unit.
        cores: u32,
        /// More shares of devices.
        devices: u32,
    },
}

/// A rule of a request that excludes devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// The identifiers.
    Ids,
    /// The sharing mode.
    Mode,
    /// A tag that the device must have.
    Tag(String),
    /// All devices on one NUMA node.
    NumaBind,
    /// Only unused devices.
    Unused,
}

impl Advice {
    /// The request with the changes that concern it. Changes of the cluster are not applied.
    pub fn applied_to(&self, request: &Request) -> Request {
        let mut request = request.clone();
        for change in &self.changes {
            change.apply(&mut request);
        }
        request
    }
}

impl Change {
    pub(crate) fn apply(&self, request: &mut Request) {
        let (container, vendor) = match self {
            Self::LessMemory {
                container, vendor, ..
            }
            | Self::LessCores {
                container, vendor, ..
            }
            | Self::FewerDevices {
                container, vendor, ..
            }
            | Self::AllowModel {
                container, vendor, ..
            }
            | Self::DropRule {
                container, vendor, ..
            } => (*container, vendor),
            Self::PodsLeave { .. }
            | Self::Uncordon { .. }
            | Self::Recover { .. }
            | Self::MoreQuota { .. } => return,
        };
        let ask = request
            .containers
            .get_mut(container)
            .and_then(|container| container.asks.iter_mut().find(|ask| ask.vendor == *vendor));
        let Some(ask) = ask else {
            return;
        };
        match self {
            Self::LessMemory { to, .. } => ask.memory = *to,
            Self::LessCores { to, .. } => ask.compute = Compute::Units(*to),
            Self::FewerDevices { to, .. } => ask.count = *to,
            Self::AllowModel { model, .. } => allow_model(ask, model),
            Self::DropRule { rule, .. } => drop_rule(ask, rule),
            _ => {}
        }
    }
}

pub(crate) fn allow_model(ask: &mut Ask, model: &str) {
    let lower = model.to_lowercase();
    if !ask
        .select
        .use_types
        .iter()
        .all(|text| text.trim().is_empty())
    {
        ask.select.use_types.push(model.to_owned());
    }
    ask.select
        .nouse_types
        .retain(|text| !lower.contains(&text.trim().to_lowercase()));
}

pub(crate) fn drop_rule(ask: &mut Ask, rule: &Rule) {
    match rule {
        Rule::Ids => {
            ask.select.use_ids.clear();
            ask.select.nouse_ids.clear();
        }
        Rule::Mode => ask.select.mode = None,
        Rule::Tag(tag) => ask.select.tags.retain(|other| other != tag),
        Rule::NumaBind => ask.numa_bind = false,
        Rule::Unused => {
            ask.exclusive = false;
            if ask.policy == DevicePolicy::Mutex {
                ask.policy = DevicePolicy::Spread;
            }
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fits on {}", self.node)?;
        for (position, change) in self.changes.iter().enumerate() {
            let word = if position == 0 { "if" } else { "and" };
            write!(f, " {word} {change}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LessMemory {
                container,
                from: Memory::Bytes(from),
                to: Memory::Bytes(to),
                ..
            } => write!(
                f,
                "container {container} asks for {} MiB instead of {} MiB of memory ({} MiB less)",
                to / MIB,
                from / MIB,
                from.saturating_sub(*to).div_ceil(MIB)
            ),
            Self::LessMemory {
                container,
                from,
                to,
                ..
            } => {
                let percent = |memory: &Memory| match memory {
                    Memory::Percent(percent) => u64::from(*percent),
                    Memory::Bytes(bytes) => *bytes,
                };
                write!(
                    f,
                    "container {container} asks for {} % instead of {} % of memory",
                    percent(to),
                    percent(from)
                )
            }
            Self::LessCores {
                container,
                from,
                to,
                ..
            } => write!(
                f,
                "container {container} asks for {to} instead of {from} cores"
            ),
            Self::FewerDevices {
                container,
                vendor,
                from,
                to,
            } => write!(
                f,
                "container {container} asks for {to} instead of {from} {vendor} devices"
            ),
            Self::AllowModel {
                container, model, ..
            } => write!(f, "the type rules of container {container} allow {model}"),
            Self::DropRule {
                container, rule, ..
            } => write!(f, "container {container} does without {rule}"),
            Self::PodsLeave { pods } => {
                let names: Vec<String> = pods
                    .iter()
                    .map(|pod| format!("{}/{}", pod.namespace, pod.name))
                    .collect();
                write!(f, "{} leaves", names.join(" and "))
            }
            Self::Uncordon { devices } => write!(f, "{} is uncordoned", devices.join(" and ")),
            Self::Recover { devices } => write!(f, "{} is healthy again", devices.join(" and ")),
            Self::MoreQuota {
                memory_bytes,
                cores,
                devices,
                ..
            } => write!(
                f,
                "the quota allows {} MiB, {cores} cores and {devices} devices more",
                memory_bytes.div_ceil(MIB)
            ),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ids => f.write_str("the UUID rules"),
            Self::Mode => f.write_str("the sharing mode"),
            Self::Tag(tag) => write!(f, "the label {tag}"),
            Self::NumaBind => f.write_str("one NUMA node for all devices"),
            Self::Unused => f.write_str("unused devices"),
        }
    }
}
