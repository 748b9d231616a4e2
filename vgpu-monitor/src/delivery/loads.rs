//! The given parts of each GPU, in memory: read once from the directories, kept while the agent runs. Owns the sums:
//! the sums given of a GPU never exceed what the configuration promises of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use placement::Kind;
use vgpu_abi::limits::Limits;
use vgpu_abi::size::Size;

use super::record::{ContainerRecord, RecordDevice};
use super::{DeliveryError, Name, files, place};
use crate::node_gpus::{Inventory, KnownGpu};

/// A container's delivery.
#[derive(Debug, Clone)]
pub(super) struct GivenContainer {
    pub(super) record: ContainerRecord,
    /// When it was last given, in [`GpuLoads::moment`]s.
    pub(super) touched: u64,
    /// Two sources say that its pod is gone: it counts for no GPU.
    pub(super) gone: bool,
    /// Why its record could not be read.
    broken: Option<String>,
}

/// All containers.
#[derive(Debug, Default)]
pub(super) struct GpuLoads {
    held: BTreeMap<Name, GivenContainer>,
    clock: u64,
}

impl GpuLoads {
    /// Reads the directories below the root.
    pub(super) fn read(root: &Path) -> Result<Self, DeliveryError> {
        let mut loads = Self::default();
        for text in files::names(root)? {
            let name = Name(text);
            let is_dir = std::fs::symlink_metadata(root.join(&name.0)).is_ok_and(|is| is.is_dir());
            if !is_dir || name.check().is_err() {
                continue;
            }
            let (record, broken) = match place::read(root, &name) {
                Ok(record) => (record, None),
                Err(reason) => {
                    let limits = place::read_limits(root, &name).unwrap_or_default();
                    (
                        ContainerRecord::of_limits(&name, &limits),
                        Some(format!("{reason:#}")),
                    )
                }
            };
            let held = GivenContainer {
                record,
                touched: 0,
                gone: false,
                broken,
            };
            loads.held.insert(name, held);
        }
        Ok(loads)
    }

    pub(super) fn get(&self, name: &Name) -> Option<&GivenContainer> {
        self.held.get(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &GivenContainer)> {
        self.held.iter()
    }

    pub(super) fn names(&self) -> Vec<Name> {
        self.held.keys().cloned().collect()
    }

    /// The containers whose record could not be read, with the reason.
    pub(super) fn broken(&self) -> impl Iterator<Item = (&Name, &str)> {
        self.held
            .iter()
            .filter_map(|(name, held)| Some((name, held.broken.as_deref()?)))
    }

    pub(super) fn hold(&mut self, name: &Name, record: ContainerRecord) {
        self.clock += 1;
        let held = GivenContainer {
            record,
            touched: self.clock,
            gone: false,
            broken: None,
        };
        self.held.insert(name.clone(), held);
    }

    /// Counts a record that is about to be written: of each GPU the container has the most that it has before or after.
    /// A record that the container already has changes nothing.
    pub(super) fn reserve(&mut self, name: &Name, wanted: &ContainerRecord) {
        let mut record = wanted.clone();
        let before = self.held.get(name).filter(|held| !held.gone);
        for held in before.iter().flat_map(|held| &held.record.devices) {
            match record.devices.iter_mut().find(|it| it.uuid == held.uuid) {
                Some(device) => {
                    device.memory_bytes = device.memory_bytes.max(held.memory_bytes);
                    device.cores = device.cores.max(held.cores);
                }
                None => record.devices.push(held.clone()),
            }
        }
        self.hold(name, record);
    }

    /// Takes a reservation back: the container has what it had before.
    pub(super) fn put_back(&mut self, name: &Name, before: Option<GivenContainer>) {
        match before {
            Some(before) => self.held.insert(name.clone(), before),
            None => self.held.remove(name),
        };
    }

    pub(super) fn forget(&mut self, name: &Name) {
        self.held.remove(name);
    }

    /// The present moment: every later delivery has a later one.
    pub(super) fn moment(&self) -> u64 {
        self.clock
    }

    /// Marks exactly these containers as gone, except those that were given something after `moment`.
    pub(super) fn gone(&mut self, names: &BTreeSet<Name>, moment: u64) {
        for (name, held) in &mut self.held {
            if held.touched <= moment {
                held.gone = names.contains(name);
            }
        }
    }

    /// Whether the record has more of any GPU than the container has already.
    pub(super) fn has_more(&self, name: &Name, wanted: &ContainerRecord) -> bool {
        wanted.devices.iter().any(|device| !self.has(name, device))
    }

    /// Whether the container has this much of the GPU already.
    fn has(&self, name: &Name, wanted: &RecordDevice) -> bool {
        // Memory of a container that is gone has been given to others.
        let held = self.held.get(name).filter(|held| !held.gone);
        held.is_some_and(|held| {
            held.record.devices.iter().any(|device| {
                device.uuid == wanted.uuid
                    && device.memory_bytes >= wanted.memory_bytes
                    && device.cores >= wanted.cores
            })
        })
    }

    /// Refuses a record that would put more on a GPU than is promised of it.
    pub(super) fn check(
        &self,
        name: &Name,
        wanted: &ContainerRecord,
        inventory: &Inventory,
        root: &Path,
    ) -> Result<(), DeliveryError> {
        for device in wanted
            .devices
            .iter()
            .filter(|device| !self.has(name, device))
        {
            let most = Most::of(device, inventory)?;
            let (sum, holders) = self.sum(name, wanted, device, root);
            if let Some(part) = most.is_passed_by(&sum) {
                return Err(DeliveryError::Overcommitted(Box::new(Overcommit {
                    container: container_of(wanted),
                    uuid: device.uuid.clone(),
                    part,
                    asked: Load::of(device),
                    most,
                    holders,
                })));
            }
        }
        Ok(())
    }

    /// The load of a GPU with this record added, and the containers that hold it now.
    fn sum(
        &self,
        name: &Name,
        wanted: &ContainerRecord,
        device: &RecordDevice,
        root: &Path,
    ) -> (Load, Vec<(String, Load)>) {
        let before = self.held.get(name);
        let is_new = before.is_none_or(|held| held.record.devices.is_empty());
        let mut pods: BTreeMap<&str, Phases> = BTreeMap::new();
        let mut holders = Vec::new();
        for (other, held) in self
            .held
            .iter()
            .filter(|(other, held)| *other != name && !held.gone)
        {
            let mine = held
                .record
                .devices
                .iter()
                .filter(|held| held.uuid == device.uuid);
            let Some(load) = mine.map(Load::of).reduce(Load::plus) else {
                continue;
            };
            let pod = match held.record.labels.pod_uid.as_str() {
                "" => other.0.as_str(),
                uid => uid,
            };
            let kind = held.record.kind();
            let is_ours = pod == wanted.labels.pod_uid && is_new;
            // Neither source says when the init container of a running pod is over; its processes show it.
            if kind == Kind::Init && !is_ours && !place::is_used(root, other) {
                continue;
            }
            holders.push((container_of(&held.record), load));
            pods.entry(pod).or_default().add(kind, load);
        }
        let ours = pods.entry(&wanted.labels.pod_uid).or_default();
        ours.add(wanted.kind(), Load::of(device));
        let sum = pods
            .values()
            .map(Phases::peak)
            .fold(Load::default(), Load::plus);
        (sum, holders)
    }
}

fn container_of(record: &ContainerRecord) -> String {
    let labels = &record.labels;
    if labels.pod.is_empty() {
        return format!("allotment {}", labels.name);
    }
    format!(
        "{}/{} container {}",
        labels.namespace, labels.pod, labels.container
    )
}

/// A part of a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Load {
    memory_bytes: u64,
    cores: u64,
    slots: u64,
}

impl Load {
    fn of(device: &RecordDevice) -> Self {
        Self {
            memory_bytes: device.memory_bytes,
            cores: u64::from(device.cores),
            slots: 1,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            cores: self.cores.saturating_add(other.cores),
            slots: self.slots.saturating_add(other.slots),
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            cores: self.cores.max(other.cores),
            slots: self.slots.max(other.slots),
        }
    }
}

/// A pod's part of a GPU in the phases of its life, as the scheduler counts it.
#[derive(Debug, Default)]
struct Phases {
    stays: Load,
    apps: Load,
    init: Load,
}

impl Phases {
    fn add(&mut self, kind: Kind, load: Load) {
        match kind {
            Kind::App => self.apps = self.apps.plus(load),
            Kind::Sidecar => self.stays = self.stays.plus(load),
            Kind::Init => self.init = self.init.max(load),
        }
    }

    fn peak(&self) -> Load {
        self.stays.plus(self.apps.max(self.init))
    }
}

/// The most that is promised of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Most(Load);

impl Most {
    fn of(device: &RecordDevice, inventory: &Inventory) -> Result<Self, DeliveryError> {
        let known = inventory
            .gpus
            .iter()
            .find(|gpu| gpu.device.id == device.uuid);
        if let Some(gpu) = known {
            return Ok(Self(Load {
                memory_bytes: gpu.device.memory_bytes,
                // A vendor that counts no cores sets no bound on them.
                cores: match gpu.device.cores {
                    0 => u64::MAX,
                    cores => u64::from(cores),
                },
                slots: u64::from(gpu.device.slots),
            }));
        }
        let gpu = device
            .instance
            .as_ref()
            .map_or(&device.uuid, |instance| &instance.gpu);
        let is_here = inventory.gpus.iter().any(|known| known.device.id == *gpu);
        if device.instance.is_some() && is_here {
            // An instance belongs to one container alone.
            return Ok(Self(Load {
                memory_bytes: device.physical_bytes,
                cores: u64::MAX,
                slots: 1,
            }));
        }
        Err(DeliveryError::UnknownGpu {
            uuid: gpu.clone(),
            known: inventory
                .gpus
                .iter()
                .map(|gpu| gpu.device.id.clone())
                .collect(),
        })
    }

    fn is_passed_by(&self, sum: &Load) -> Option<LoadPart> {
        let Self(most) = self;
        if sum.memory_bytes > most.memory_bytes {
            return Some(LoadPart::Memory);
        }
        if sum.cores > most.cores {
            return Some(LoadPart::Cores);
        }
        (sum.slots > most.slots).then_some(LoadPart::Slots)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoadPart {
    Memory,
    Cores,
    Slots,
}

impl LoadPart {
    fn of(self, load: &Load) -> String {
        match self {
            Self::Memory => Size(load.memory_bytes).to_string(),
            Self::Cores => format!("{} % of compute", load.cores),
            Self::Slots => match load.slots {
                1 => String::from("1 slot"),
                slots => format!("{slots} slots"),
            },
        }
    }
}

/// A refused record: it would put more on a GPU than the GPU has.
#[derive(Debug)]
pub struct Overcommit {
    container: String,
    uuid: String,
    part: LoadPart,
    asked: Load,
    most: Most,
    holders: Vec<(String, Load)>,
}

/// More holders are counted, not named: the text goes into an event.
const NAMED_MOST: usize = 4;

impl fmt::Display for Overcommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (part, Most(most)) = (self.part, &self.most);
        write!(
            f,
            "GPU {}: {} for {} is more than is left of its {}",
            self.uuid,
            part.of(&self.asked),
            self.container,
            part.of(most)
        )?;
        for (at, (holder, load)) in self.holders.iter().take(NAMED_MOST).enumerate() {
            let before = if at == 0 { "; held by" } else { "," };
            write!(f, "{before} {holder} ({})", part.of(load))?;
        }
        if let Some(more @ 1..) = self.holders.len().checked_sub(NAMED_MOST) {
            write!(f, " and {more} more")?;
        }
        write!(f, ". It is tried again")
    }
}

/// The limits with what the GPUs' scaling leaves of each to be memory of the device itself: where more is promised of
/// a GPU than it has, each container may have its part of what there is, and the rest as managed memory.
pub(super) fn shared_out(mut limits: Limits, inventory: &Inventory) -> Limits {
    for device in &mut limits.devices {
        let uuid = device.uuid.as_str();
        let Some(gpu) = inventory.gpus.iter().find(|gpu| gpu.device.id == uuid) else {
            continue;
        };
        // What is beyond the share is promised of no GPU.
        let of_the_gpu = match device.resident_bytes {
            0 => device.memory_bytes,
            share => share,
        };
        match resident(gpu, of_the_gpu) {
            0 => {}
            part => device.resident_bytes = part,
        }
    }
    limits
}

fn resident(gpu: &KnownGpu, bytes: u64) -> u64 {
    let (has, promised) = (gpu.physical_bytes, gpu.device.memory_bytes);
    if has == 0 || promised <= has {
        return 0;
    }
    let part = u128::from(bytes) * u128::from(has) / u128::from(promised);
    // 0 is "all of it", and the least that can be asked for is more than a byte.
    u64::try_from(part).unwrap_or(has).max(1)
}
