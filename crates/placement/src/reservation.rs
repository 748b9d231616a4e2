//! What was given to whom, and what that takes of each card. Never whether it was right to give it.

use std::sync::Arc;

use crate::inventory::{Span, Vendor};
use crate::request::{Kind, Pod};

/// Bounds on what one grant is read as, so that sums never leave their range.
const MOST_MEMORY_BYTES: u64 = 1 << 46;
const MOST_UNITS: u32 = 1 << 16;

/// What is taken of a card, or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Slots: how many containers share it.
    pub slots: u32,
    /// Compute, in the card's unit.
    pub cores: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl Load {
    /// Both together. Wraps, so that `minus` always undoes it.
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            slots: self.slots.wrapping_add(other.slots),
            cores: self.cores.wrapping_add(other.cores),
            memory_bytes: self.memory_bytes.wrapping_add(other.memory_bytes),
        }
    }

    /// What `plus` added, taken away.
    #[must_use]
    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            slots: self.slots.wrapping_sub(other.slots),
            cores: self.cores.wrapping_sub(other.cores),
            memory_bytes: self.memory_bytes.wrapping_sub(other.memory_bytes),
        }
    }

    /// The greater of both in each respect.
    #[must_use]
    pub(crate) fn peak(self, other: Self) -> Self {
        Self {
            slots: self.slots.max(other.slots),
            cores: self.cores.max(other.cores),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
        }
    }
}

/// Where a pod goes, and what each of its containers gets there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Name of the node.
    pub node: Arc<str>,
    /// One for each container of the request, in its order; empty for a container without devices.
    pub containers: Vec<Granted>,
}

/// What one container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Granted {
    /// When the container runs.
    pub kind: Kind,
    /// Its cards, in the order in which they were chosen.
    pub grants: Vec<Grant>,
}

/// A share of one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Identifier of the card.
    pub device: Arc<str>,
    /// Vendor of the card.
    pub vendor: Vendor,
    /// Slots taken: 1, or all of an exclusive card.
    pub slots: u32,
    /// Memory in bytes; of an instance: all that it has.
    pub memory_bytes: u64,
    /// Compute in the card's unit; of an instance: all that it has.
    pub cores: u32,
    /// The instance, on a card in MIG mode.
    pub instance: Option<Instance>,
    /// Of which class the container is beside others on the card; see [`crate::Company`].
    pub class: Option<Arc<str>>,
}

/// A MIG instance: what it is and where it lies.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Instance {
    /// Name of the profile.
    pub profile: Arc<str>,
    /// Where on the card.
    pub span: Span,
}

impl Grant {
    /// A share of one slot, with so much memory in bytes and compute in the card's unit.
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

/// What a pod holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The pod that holds it.
    pub pod: Pod,
    /// What it holds.
    pub placement: Placement,
    /// Whether its init containers are over, so that only what runs beside each other counts.
    pub initialised: bool,
    /// What it takes of each card: the peak over the pod's life.
    pub(crate) footprint: Vec<Footprint>,
    /// What it takes of its namespace's quota, for each vendor.
    pub(crate) charge: Vec<(Vendor, Load)>,
}

/// What a pod takes of one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Footprint {
    pub(crate) device: Arc<str>,
    pub(crate) load: Load,
    pub(crate) instances: Vec<Instance>,
    /// Some container has a share of the card without an instance.
    pub(crate) shared: bool,
    /// Of which classes its containers there are; one entry for each that has one.
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
                        // An instance of an init container can be used again by a later one.
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

    /// What it takes of its cards altogether: the peak over the pod's life, summed over the cards.
    pub fn load(&self) -> Load {
        self.footprint
            .iter()
            .fold(Load::default(), |sum, footprint| sum.plus(footprint.load))
    }

    /// The cards of which it takes something, and how much.
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

/// What a pod takes of one card in the phases of its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Phases {
    /// What the init container of the moment takes.
    pub(crate) init: Load,
    /// The greatest that an init container took together with the sidecars before it.
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

    /// What is taken in the phase in which a container of this kind starts.
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
