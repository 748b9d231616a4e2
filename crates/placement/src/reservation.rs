//! Reservations: the devices that each pod was given, and the part of each device that this takes. Does not judge
//! whether it was right to give them.

use std::sync::Arc;

use crate::inventory::{Span, Vendor};
use crate::request::{Kind, Pod};

/// Upper bounds on the amounts of one grant, so that sums cannot overflow.
const MOST_MEMORY_BYTES: u64 = 1 << 46;
const MOST_UNITS: u32 = 1 << 16;

/// The part of a device, or of several, that is taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Slots: the number of containers that share it.
    pub slots: u32,
    /// Compute, in the device's unit.
    pub cores: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl Load {
    /// The sum of both. Wraps, so that `minus` always undoes it.
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            slots: self.slots.wrapping_add(other.slots),
            cores: self.cores.wrapping_add(other.cores),
            memory_bytes: self.memory_bytes.wrapping_add(other.memory_bytes),
        }
    }

    /// Undoes `plus`.
    #[must_use]
    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            slots: self.slots.wrapping_sub(other.slots),
            cores: self.cores.wrapping_sub(other.cores),
            memory_bytes: self.memory_bytes.wrapping_sub(other.memory_bytes),
        }
    }

    /// The greater of both, for each amount.
    #[must_use]
    pub(crate) fn peak(self, other: Self) -> Self {
        Self {
            slots: self.slots.max(other.slots),
            cores: self.cores.max(other.cores),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
        }
    }
}

/// The node of a pod, and the devices of each of its containers there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Name of the node.
    pub node: Arc<str>,
    /// One entry for each container of the request, in its order; empty for a container without devices.
    pub containers: Vec<Granted>,
}

/// The devices of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Granted {
    /// The phase in which the container runs.
    pub kind: Kind,
    /// Its devices, in the order in which they were chosen.
    pub grants: Vec<Grant>,
}

/// A share of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Identifier of the device.
    pub device: Arc<str>,
    /// Vendor of the device.
    pub vendor: Vendor,
    /// Slots taken: 1, or all of an exclusive device.
    pub slots: u32,
    /// Memory in bytes; for a MIG instance, all of its memory.
    pub memory_bytes: u64,
    /// Compute in the device's unit; for a MIG instance, all of its compute.
    pub cores: u32,
    /// The instance, on a device in MIG mode.
    pub instance: Option<Instance>,
    /// The container's class, for other containers on the device; see [`crate::Company`].
    pub class: Option<Arc<str>>,
}

/// A MIG instance: its profile and its placement.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Instance {
    /// Name of the profile.
    pub profile: Arc<str>,
    /// Its placement on the device.
    pub span: Span,
}

impl Grant {
    /// A share of one slot, with this memory in bytes and this compute in the device's unit.
    pub fn new(vendor: Vendor, device: &str, memory_bytes: u64, cores: u32) -> Self {
        Self {
            device: device.into(),
            vendor,
            slots: 1,
            memory_bytes,
            cores,
            instance: None,
            class: None,
        }
    }

    pub(crate) fn load(&self) -> Load {
        Load {
            slots: self.slots.min(MOST_UNITS),
            cores: self.cores.min(MOST_UNITS),
            memory_bytes: self.memory_bytes.min(MOST_MEMORY_BYTES),
        }
    }
}

/// The devices that a pod holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The pod that holds it.
    pub pod: Pod,
    /// The placement.
    pub placement: Placement,
    /// Whether its init containers have ended, so that only containers that run at the same time count.
    pub initialised: bool,
    /// The part of each device that it takes: the peak over the pod's life.
    pub(crate) footprint: Vec<Footprint>,
    /// The part of its namespace's quota that it takes, for each vendor.
    pub(crate) charge: Vec<(Vendor, Load)>,
}

/// The part of one device that a pod takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Footprint {
    pub(crate) device: Arc<str>,
    pub(crate) load: Load,
    pub(crate) instances: Vec<Instance>,
    /// Whether a container has a share of the device without an instance.
    pub(crate) shared: bool,
    /// The classes of its containers; one entry for each container that has one.
    pub(crate) classes: Vec<Arc<str>>,
}

impl Reservation {
    pub(crate) fn new(pod: Pod, placement: Placement, initialised: bool) -> Self {
        let mut by_device: Vec<(Footprint, Phases)> = Vec::new();
        let mut by_vendor: Vec<(Vendor, Phases)> = Vec::new();
        for granted in in_start_order(&placement.containers) {
            for (_, phases) in &mut by_device {
                phases.init = Load::default();
            }
            for (_, phases) in &mut by_vendor {
                phases.init = Load::default();
            }
            if initialised && granted.kind == Kind::Init {
                continue;
            }
            for grant in &granted.grants {
                let at = match by_device
                    .iter()
                    .position(|(footprint, _)| footprint.device == grant.device)
                {
                    Some(at) => at,
                    None => {
                        by_device.push((
                            Footprint {
                                device: grant.device.clone(),
                                load: Load::default(),
                                instances: Vec::new(),
                                shared: false,
                                classes: Vec::new(),
                            },
                            Phases::default(),
                        ));
                        by_device.len() - 1
                    }
                };
                if let Some((footprint, phases)) = by_device.get_mut(at) {
                    phases.add(granted.kind, grant.load());
                    footprint.classes.extend(grant.class.clone());
                    match &grant.instance {
                        // A later init container can reuse the instance of an earlier one.
                        Some(instance) if footprint.instances.contains(instance) => {}
                        Some(instance) => footprint.instances.push(instance.clone()),
                        None => footprint.shared = true,
                    }
                }
                match by_vendor
                    .iter_mut()
                    .find(|(vendor, _)| *vendor == grant.vendor)
                {
                    Some((_, phases)) => phases.add(granted.kind, grant.load()),
                    None => {
                        let mut phases = Phases::default();
                        phases.add(granted.kind, grant.load());
                        by_vendor.push((grant.vendor.clone(), phases));
                    }
                }
            }
        }
        Self {
            pod,
            placement,
            initialised,
            footprint: by_device
                .into_iter()
                .map(|(footprint, phases)| Footprint {
                    load: phases.peak(),
                    ..footprint
                })
                .collect(),
            charge: by_vendor
                .into_iter()
                .map(|(vendor, phases)| (vendor, phases.peak()))
                .collect(),
        }
    }

    /// The sum over its devices of the parts that it takes: the peak over the pod's life.
    pub fn load(&self) -> Load {
        self.footprint
            .iter()
            .fold(Load::default(), |sum, footprint| sum.plus(footprint.load))
    }

    /// The devices of which it takes a part, each with that part.
    pub fn devices(&self) -> impl Iterator<Item = (&str, Load)> {
        self.footprint
            .iter()
            .map(|footprint| (&*footprint.device, footprint.load))
    }
}

/// Init containers and sidecars in their order, then the others.
fn in_start_order(containers: &[Granted]) -> impl Iterator<Item = &Granted> {
    let (before, beside): (Vec<_>, Vec<_>) = containers
        .iter()
        .partition(|granted| granted.kind != Kind::App);
    before.into_iter().chain(beside)
}

/// The part of one device that a pod takes in each phase of its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Phases {
    /// The part of the present init container.
    pub(crate) init: Load,
    /// The greatest part that an init container took together with the sidecars before it.
    init_peak: Load,
    sidecars: Load,
    apps: Load,
}

impl Phases {
    pub(crate) fn add(&mut self, kind: Kind, load: Load) {
        match kind {
            Kind::Init => {
                self.init = self.init.plus(load);
                self.init_peak = self.init_peak.peak(self.init.plus(self.sidecars));
            }
            Kind::Sidecar => {
                self.sidecars = self.sidecars.plus(load);
                self.init_peak = self.init_peak.peak(self.sidecars);
            }
            Kind::App => self.apps = self.apps.plus(load),
        }
    }

    /// The part that is taken in the phase in which a container of this kind starts.
    pub(crate) fn beside(&self, kind: Kind) -> Load {
        match kind {
            Kind::Init => self.init.plus(self.sidecars),
            Kind::Sidecar => self.sidecars,
            Kind::App => self.apps.plus(self.sidecars),
        }
    }

    pub(crate) fn peak(&self) -> Load {
        self.init_peak.peak(self.apps.plus(self.sidecars))
    }
}
