//! A node as the engine holds it: its devices, the part of each that is taken, and a summary that quickly rules out
//! requests that cannot fit. Decides nothing.

use std::sync::Arc;

use crate::arrange::DeviceTraits;
use crate::inventory::{Device, Node};
use crate::reservation::{Footprint, Instance, Load, Reservation};
use crate::score::Sum;

/// A device and the part of it that is taken.
#[derive(Debug, Clone)]
pub(crate) struct DeviceState {
    pub(crate) device: Arc<Device>,
    pub(crate) id: Arc<str>,
    /// Numbers for the identifier, the vendor and the model, assigned by the cluster.
    pub(crate) symbol: u32,
    pub(crate) vendor: u32,
    pub(crate) model: u32,
    pub(crate) mig: bool,
    // Stored next to the device's numbers, because every question reads them.
    pub(crate) healthy: bool,
    pub(crate) cordoned: bool,
    pub(crate) given_out: bool,
    pub(crate) numa: u32,
    pub(crate) index: u32,
    pub(crate) total: Load,
    pub(crate) used: Load,
    /// MIG instances that pods hold.
    pub(crate) instances: Vec<Instance>,
    /// The number of pods that hold something which contradicts the device's mode.
    pub(crate) conflicts: u32,
    /// Whether it is divided into profiles without placements.
    pub(crate) cut: bool,
    /// Classes of the containers on it.
    pub(crate) classes: Vec<Arc<str>>,
}

impl DeviceState {
    pub(crate) fn free_memory_bytes(&self) -> u64 {
        self.total
            .memory_bytes
            .saturating_sub(self.used.memory_bytes)
    }

    pub(crate) fn free_cores(&self) -> u32 {
        self.total.cores.saturating_sub(self.used.cores)
    }

    pub(crate) fn free_slots(&self) -> u32 {
        self.total.slots.saturating_sub(self.used.slots)
    }

    fn contradicts(&self, footprint: &Footprint) -> bool {
        if self.mig {
            footprint.shared
        } else {
            !footprint.instances.is_empty()
        }
    }

    fn take(&mut self, footprint: &Footprint) {
        self.used = self.used.plus(footprint.load);
        self.instances.extend(footprint.instances.iter().cloned());
        self.classes.extend(footprint.classes.iter().cloned());
        self.conflicts = self
            .conflicts
            .wrapping_add(u32::from(self.contradicts(footprint)));
    }

    fn give_back(&mut self, footprint: &Footprint) {
        self.used = self.used.minus(footprint.load);
        for instance in &footprint.instances {
            if let Some(at) = self.instances.iter().position(|held| held == instance) {
                self.instances.swap_remove(at);
            }
        }
        for class in &footprint.classes {
            if let Some(at) = self.classes.iter().position(|held| held == class) {
                self.classes.swap_remove(at);
            }
        }
        self.conflicts = self
            .conflicts
            .wrapping_sub(u32::from(self.contradicts(footprint)));
    }
}

/// A node, with its devices by index and identifier.
#[derive(Debug, Clone)]
pub(crate) struct NodeState {
    pub(crate) name: Arc<str>,
    pub(crate) devices: Vec<DeviceState>,
    /// The devices' identifiers, in the same order.
    pub(crate) ids: Arc<[Arc<str>]>,
    /// Pair scores, row by row; empty if none are known.
    pairs: Vec<i32>,
    /// Its index in the cluster.
    pub(crate) place: usize,
    /// Changes with every change of the node; 0 for a hypothetical state.
    pub(crate) version: u64,
    pub(crate) summary: Summary,
}

/// The most that a node can offer. A request that asks for more does not fit; a request that asks for less may still
/// not fit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Summary {
    /// A bit for each vendor of its open devices (the 64th bit stands for all further vendors).
    pub(crate) vendors: u64,
    /// The same for the models of its open devices.
    pub(crate) models: u64,
    /// The shares that it can give: one for each open device, and as many as slots on a device in MIG mode.
    pub(crate) places: u32,
    /// The most memory that is free on one open device.
    pub(crate) free_memory_bytes: u64,
    /// The largest free part of a device's memory, in percent, rounded up.
    pub(crate) free_percent: u32,
    /// The most compute that is free on one open device.
    pub(crate) free_cores: u32,
    pub(crate) used: Sum,
    pub(crate) total: Sum,
}

pub(crate) fn bit(number: u32) -> u64 {
    1 << number.min(63)
}

impl NodeState {
    /// The node, with nothing taken. `number` returns the numbers of identifier, vendor and model.
    pub(crate) fn new(node: Node, mut number: impl FnMut(&Device) -> (u32, u32, u32)) -> Self {
        let mut devices: Vec<DeviceState> = node
            .devices
            .into_iter()
            .map(|device| {
                let (symbol, vendor, model) = number(&device);
                DeviceState {
                    id: device.id.as_str().into(),
                    symbol,
                    vendor,
                    model,
                    mig: device.is_mig(),
                    healthy: device.healthy,
                    cordoned: device.cordoned,
                    given_out: device.given_out,
                    numa: device.numa,
                    index: device.index,
                    total: Load {
                        slots: device.slots.min(1 << 20),
                        cores: device.cores.min(1 << 20),
                        memory_bytes: device.memory_bytes.min(1 << 50),
                    },
                    used: Load::default(),
                    instances: Vec::new(),
                    conflicts: 0,
                    cut: !device.is_mig() && !device.mig_profiles.is_empty(),
                    classes: Vec::new(),
                    device: Arc::new(device),
                }
            })
            .collect();
        devices.sort_by(|a, b| (a.index, &a.id).cmp(&(b.index, &b.id)));
        let mut pairs = Vec::new();
        if !node.pairs.is_empty() {
            let position = |id: &str| devices.iter().position(|device| *device.id == *id);
            pairs = vec![None::<i32>; devices.len() * devices.len()];
            for pair in &node.pairs {
                let (Some(from), Some(to)) = (position(&pair.from), position(&pair.to)) else {
                    continue;
                };
                for at in [from * devices.len() + to, to * devices.len() + from] {
                    if let Some(score) = pairs.get_mut(at) {
                        *score = Some(score.map_or(pair.score, |before| before.max(pair.score)));
                    }
                }
            }
        }
        let mut state = Self {
            name: node.name.as_str().into(),
            ids: devices
                .iter()
                .map(|device| Arc::clone(&device.id))
                .collect(),
            devices,
            pairs: pairs
                .into_iter()
                .map(|score| score.unwrap_or_default())
                .collect(),
            place: 0,
            version: 0,
            summary: Summary::default(),
        };
        state.summarise();
        state
    }

    /// How well two devices are connected.
    pub(crate) fn pair(&self, one: usize, other: usize) -> i64 {
        self.pairs
            .get(one * self.devices.len() + other)
            .copied()
            .map_or(0, i64::from)
    }

    /// The properties of a device that arrangements use; `class` is the ask's class.
    pub(crate) fn traits(&self, position: usize, class: Option<&str>) -> Option<DeviceTraits> {
        let state = self.devices.get(position)?;
        let own = (state.classes.iter())
            .filter(|held| Some(&***held) == class)
            .count();
        let module = state.device.module;
        let module_size = module.map_or(0, |_| {
            (self.devices.iter())
                .filter(|other| other.vendor == state.vendor && other.device.module == module)
                .count()
        });
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Some(DeviceTraits {
            index: state.index,
            group: state.device.group,
            module,
            module_size,
            ring: state.device.tags.iter().any(|tag| tag == Device::RING),
            used: state.used.slots,
            own: count(own),
            others: count(state.classes.len() - own),
        })
    }

    pub(crate) fn has_pairs(&self) -> bool {
        !self.pairs.is_empty()
    }

    pub(crate) fn take(&mut self, reservation: &Reservation) {
        self.each(reservation, DeviceState::take);
    }

    pub(crate) fn give_back(&mut self, reservation: &Reservation) {
        self.each(reservation, DeviceState::give_back);
    }

    fn each(&mut self, reservation: &Reservation, change: fn(&mut DeviceState, &Footprint)) {
        for footprint in &reservation.footprint {
            if let Some(device) = self
                .devices
                .iter_mut()
                .find(|device| device.id == footprint.device)
            {
                change(device, footprint);
            }
        }
        self.summarise();
    }

    /// Resets the node to nothing taken.
    pub(crate) fn clear(&mut self) {
        for device in &mut self.devices {
            device.used = Load::default();
            device.instances.clear();
            device.conflicts = 0;
            device.classes.clear();
        }
        self.summarise();
    }

    /// The node with these devices healthy, or uncordoned.
    pub(crate) fn repaired(
        &self,
        is_repaired: impl Fn(usize) -> bool,
        healthy: bool,
        uncordoned: bool,
    ) -> Self {
        let mut node = self.clone();
        for (at, state) in node.devices.iter_mut().enumerate() {
            if is_repaired(at) {
                state.healthy |= healthy;
                state.cordoned &= !uncordoned;
            }
        }
        node.summarise();
        node
    }

    fn summarise(&mut self) {
        let mut summary = Summary::default();
        for device in &self.devices {
            summary.used.add(device.used);
            summary.total.add(device.total);
            if !device.healthy
                || device.cordoned
                || device.given_out
                || device.conflicts > 0
                || device.free_slots() == 0
            {
                continue;
            }
            summary.vendors |= bit(device.vendor);
            summary.models |= bit(device.model);
            summary.places =
                summary
                    .places
                    .saturating_add(if device.mig { device.free_slots() } else { 1 });
            summary.free_memory_bytes = summary.free_memory_bytes.max(device.free_memory_bytes());
            let percent = if device.mig || device.total.memory_bytes == 0 {
                100
            } else {
                // A request for a percentage is rounded down to a whole MiB, so one percent more may still fit.
                device.free_memory_bytes().saturating_mul(100) / device.total.memory_bytes + 2
            };
            summary.free_percent = summary
                .free_percent
                .max(u32::try_from(percent).unwrap_or(u32::MAX));
            if device.device.memory_bytes < 100 << 20 {
                summary.free_percent = summary.free_percent.max(100);
            }
            let cores = if device.mig || device.cut {
                device.total.cores
            } else {
                device.free_cores()
            };
            summary.free_cores = summary.free_cores.max(cores);
        }
        self.summary = summary;
    }
}
