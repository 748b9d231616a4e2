//! A request prepared for placement: names are looked up once, for all nodes.

use crate::node::{NodeState, Summary, bit};
use crate::quota::Quota;
use crate::request::{Ask, Compute, DevicePolicy, Key, Kind, Memory, Request};
use crate::reservation::Load;
use crate::score::Sum;

/// A request with its names looked up, the same for all nodes.
pub(crate) struct Plan<'a> {
    pub(crate) request: &'a Request,
    pub(crate) steps: Vec<Step<'a>>,
    /// The least that the concurrently running containers use, for each vendor; empty if checking each step by itself
    /// is as strict.
    beside: Vec<(Option<u32>, Sum)>,
}

/// One container's ask. Steps are in the order in which containers start.
pub(crate) struct Step<'a> {
    pub(crate) container: usize,
    pub(crate) kind: Kind,
    /// Whether it is the container's first ask.
    pub(crate) first: bool,
    pub(crate) ask: &'a Ask,
    /// `None` if no node has such devices.
    pub(crate) vendor: Option<u32>,
    /// For each model's number, whether the type rules allow it; empty without type rules.
    pub(crate) models: Vec<bool>,
    /// The bits of the allowed models.
    pub(crate) model_bits: u64,
    /// Numbers of identifiers.
    pub(crate) use_ids: Option<Vec<u32>>,
    pub(crate) nouse_ids: Vec<u32>,
    /// The namespace's limit and the use of other pods.
    pub(crate) quota: Option<(Quota, Load)>,
}

impl Step<'_> {
    pub(crate) fn keys(&self) -> &[Key] {
        match &self.ask.policy {
            DevicePolicy::Spread | DevicePolicy::TopologyAware => &[Key::Spread, Key::Numa],
            DevicePolicy::Binpack => &[Key::Binpack, Key::Numa],
            DevicePolicy::Mutex => &[Key::FewestContainers, Key::Numa],
            DevicePolicy::Chain(keys) => keys,
        }
    }

    /// The least that it uses, on any device.
    pub(crate) fn least(&self) -> Load {
        let count = self.ask.count;
        Load {
            slots: count,
            cores: match self.ask.compute {
                Compute::Units(units) => units.saturating_mul(count),
                _ => 0,
            },
            memory_bytes: match self.ask.memory {
                Memory::Bytes(bytes) => bytes.saturating_mul(u64::from(count)),
                Memory::Percent(_) => 0,
            },
        }
    }

    pub(crate) fn count(&self) -> usize {
        usize::try_from(self.ask.count).unwrap_or(usize::MAX)
    }

    pub(crate) fn class(&self) -> Option<&str> {
        self.ask.company.as_ref().map(|company| &*company.class)
    }
}

impl<'a> Plan<'a> {
    pub(crate) fn new(request: &'a Request, steps: Vec<Step<'a>>) -> Self {
        let mut beside: Vec<(Option<u32>, Sum)> = Vec::new();
        if steps.len() > 1 {
            for step in steps.iter().filter(|step| step.kind != Kind::Init) {
                let least = step.least();
                match beside.iter_mut().find(|(vendor, _)| *vendor == step.vendor) {
                    Some((_, sum)) => sum.add(least),
                    None => {
                        let mut sum = Sum::default();
                        sum.add(least);
                        beside.push((step.vendor, sum));
                    }
                }
            }
        }
        Self {
            request,
            steps,
            beside,
        }
    }

    /// False only if all devices of the node together have less left than the pod needs at least. This reads each
    /// device once instead of trying each container.
    pub(crate) fn may_hold(&self, node: &NodeState) -> bool {
        self.beside.iter().all(|(vendor, least)| {
            let mut left = Sum::default();
            let devices = node
                .devices
                .iter()
                .filter(|device| Some(device.vendor) == *vendor);
            for device in devices {
                // An instance has its profile's amounts, not the device's.
                if device.mig || device.cut {
                    return true;
                }
                left.add(Load {
                    slots: device.free_slots(),
                    cores: device.free_cores(),
                    memory_bytes: device.free_memory_bytes(),
                });
            }
            least.slots <= left.slots
                && least.cores <= left.cores
                && least.memory_bytes <= left.memory_bytes
        })
    }
}

impl Plan<'_> {
    /// False only if the request cannot fit on a node with this summary.
    pub(crate) fn may_fit(&self, summary: &Summary) -> bool {
        self.steps.iter().all(|step| {
            step.vendor
                .is_some_and(|vendor| summary.vendors & bit(vendor) != 0)
                && summary.models & step.model_bits != 0
                && summary.places >= step.ask.count
                && match step.ask.memory {
                    Memory::Bytes(bytes) => bytes <= summary.free_memory_bytes,
                    Memory::Percent(percent) => percent.min(100) <= summary.free_percent,
                }
                && match step.ask.compute {
                    Compute::Units(units) => units <= summary.free_cores,
                    _ => true,
                }
        })
    }

    /// The largest bonus that arrangements can give a node; 0 if no container asks for one.
    pub(crate) fn most_worth(&self) -> f64 {
        self.steps
            .iter()
            .map(|step| step.ask.arrange.most_worth())
            .sum()
    }

    /// The request's addition to a node's use, estimated before devices are chosen: a percentage is taken of the
    /// node's average device.
    pub(crate) fn adds(&self, node: &NodeState) -> Sum {
        let devices = u64::try_from(node.devices.len()).unwrap_or(1).max(1);
        let mut sum = Sum::default();
        for step in &self.steps {
            if step.kind == Kind::Init {
                continue;
            }
            let count = u64::from(step.ask.count);
            let memory_bytes = match step.ask.memory {
                Memory::Bytes(bytes) => bytes,
                Memory::Percent(percent) => {
                    node.summary.total.memory_bytes / devices / 100 * u64::from(percent.min(100))
                }
            };
            let cores = match step.ask.compute {
                Compute::Units(units) => u64::from(units),
                _ => 0,
            };
            sum.slots = sum.slots.saturating_add(count);
            sum.cores = sum.cores.saturating_add(cores.saturating_mul(count));
            sum.memory_bytes = sum
                .memory_bytes
                .saturating_add(memory_bytes.saturating_mul(count));
        }
        sum
    }
}
