//! The content of `container.json`: the labels that other programs read, and what this module needs to give
//! the same again. Values; the file belongs to `place`.

use placement::{Kind, Span};
use serde::{Deserialize, Serialize};
use supervisor::instance::Labels;
use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, Policy, Unlisted};
use vgpu_abi::size::Size;

use super::cdi::{InstanceIds, Wanted};
use super::{DeliveryError, Given, GivenDevice, GivenInstance, Manner, Name};
use crate::node_gpus::Inventory;

/// A container's record. Every field may be missing, so that releases can be mixed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ContainerRecord {
    #[serde(flatten)]
    pub(super) labels: Labels,
    /// Name of the directory that has its library.
    pub(super) library: String,
    /// `cdi`, `mounts` or `claim`.
    pub(super) manner: String,
    /// `app`, `init` or `sidecar`.
    pub(super) runs: String,
    pub(super) priority: u32,
    /// Its number in the limits file.
    pub(super) policy: u32,
    /// Empty as long as nothing was given.
    pub(super) devices: Vec<RecordDevice>,
}

/// A device of a record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RecordDevice {
    pub(super) uuid: String,
    pub(super) memory_bytes: u64,
    pub(super) physical_bytes: u64,
    pub(super) cores: u32,
    /// As [`GivenDevice::floor`].
    pub(super) floor: u32,
    /// As [`GivenDevice::oversubscribe_bytes`].
    pub(super) oversubscribe_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) instance: Option<RecordInstance>,
}

/// A MIG instance of a record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RecordInstance {
    #[serde(rename = "card")]
    pub(super) gpu: String,
    pub(super) profile: String,
    pub(super) start: u32,
    pub(super) size: u32,
    pub(super) gpu_instance: u32,
    pub(super) compute_instance: u32,
}

impl ContainerRecord {
    /// The record of a container that is not known yet.
    pub(super) fn empty(name: &Name, manner: Manner, library: &str) -> Self {
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            labels: Labels {
                name: name.0.clone(),
                created_unix: created.map_or(0, |created| created.as_secs()),
                ..Labels::default()
            },
            library: library.to_owned(),
            manner: String::from(match manner {
                Manner::Cdi => "cdi",
                Manner::Mounts => "mounts",
                Manner::Claim => "claim",
            }),
            ..Self::default()
        }
    }

    /// The record for what is to be given, after a check whether it can be.
    pub(super) fn of(
        name: &Name,
        given: &Given,
        manner: Manner,
        library: &str,
        before: Option<&Self>,
    ) -> Result<Self, DeliveryError> {
        check(given)?;
        let mut record = Self::empty(name, manner, library);
        if let Some(before) = before {
            record.labels.created_unix = before.labels.created_unix;
        }
        record.labels.namespace.clone_from(&given.namespace);
        record.labels.pod.clone_from(&given.pod);
        record.labels.pod_uid.clone_from(&given.pod_uid);
        record.labels.container.clone_from(&given.container);
        record.labels.workload.clone_from(&given.workload);
        record.labels.traceparent.clone_from(&given.traceparent);
        record.labels.claim.clone_from(&given.claim);
        record.runs = String::from(match given.kind {
            Kind::App => "app",
            Kind::Init => "init",
            Kind::Sidecar => "sidecar",
        });
        record.priority = given.priority;
        record.policy = given.policy.number();
        record.devices = given.devices.iter().map(RecordDevice::from).collect();
        Ok(record)
    }

    /// The record of a directory whose record cannot be read: filled from its limits, so that it counts.
    pub(super) fn of_limits(name: &Name, limits: &Limits) -> Self {
        let device = |device: &DeviceLimit| RecordDevice {
            uuid: device.uuid.as_str().to_owned(),
            memory_bytes: device.memory_bytes,
            physical_bytes: device.physical_bytes,
            cores: device.core_percent.max(device.floor_percent),
            ..RecordDevice::default()
        };
        Self {
            labels: Labels {
                name: name.0.clone(),
                ..Labels::default()
            },
            priority: limits.priority,
            policy: limits.policy.number(),
            devices: limits.devices.iter().map(device).collect(),
            ..Self::default()
        }
    }

    /// The shares that were given; `None` until some were.
    pub(super) fn given(&self) -> Option<Given> {
        if self.devices.is_empty() {
            return None;
        }
        let device = |device: &RecordDevice| GivenDevice {
            uuid: device.uuid.clone(),
            memory_bytes: device.memory_bytes,
            physical_bytes: device.physical_bytes,
            cores: device.cores,
            floor: device.floor,
            oversubscribe_bytes: device.oversubscribe_bytes,
            instance: device.instance.as_ref().map(|instance| GivenInstance {
                gpu: instance.gpu.clone(),
                profile: instance.profile.clone(),
                span: Span {
                    start: instance.start,
                    size: instance.size,
                },
                gpu_instance: instance.gpu_instance,
                compute_instance: instance.compute_instance,
            }),
        };
        Some(Given {
            namespace: self.labels.namespace.clone(),
            pod: self.labels.pod.clone(),
            pod_uid: self.labels.pod_uid.clone(),
            container: self.labels.container.clone(),
            kind: self.kind(),
            devices: self.devices.iter().map(device).collect(),
            priority: self.priority,
            policy: Policy::of(self.policy).unwrap_or_default(),
            workload: self.labels.workload.clone(),
            traceparent: self.labels.traceparent.clone(),
            claim: self.labels.claim.clone(),
        })
    }

    pub(super) fn manner(&self) -> Manner {
        match self.manner.as_str() {
            "mounts" => Manner::Mounts,
            "claim" => Manner::Claim,
            _ => Manner::Cdi,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self.runs.as_str() {
            "init" => Kind::Init,
            "sidecar" => Kind::Sidecar,
            _ => Kind::App,
        }
    }

    /// The limits, without the scaling of the GPUs.
    pub(super) fn limits(&self) -> Result<Limits, DeliveryError> {
        let policy = Policy::of(self.policy).unwrap_or_default();
        let device = |device: &RecordDevice| {
            let uuid = DeviceUuid::new(&device.uuid);
            let uuid = uuid.map_err(|error| nonsense(format!("{}: {error}", device.uuid)))?;
            let (cap, floor) = match policy {
                Policy::Floor if device.floor == 0 => (0, device.cores),
                Policy::Floor => (device.cores, device.floor),
                _ => (device.cores, 0),
            };
            let resident_bytes = match device.oversubscribe_bytes {
                0 => 0,
                _ => device.memory_bytes,
            };
            Ok(DeviceLimit {
                uuid,
                memory_bytes: device
                    .memory_bytes
                    .saturating_add(device.oversubscribe_bytes),
                resident_bytes,
                core_percent: cap.min(100),
                floor_percent: floor.min(100),
                physical_bytes: device.physical_bytes,
                ..DeviceLimit::default()
            })
        };
        let devices: Result<_, DeliveryError> = self.devices.iter().map(device).collect();
        Ok(Limits {
            priority: self.priority,
            policy,
            unlisted: Unlisted::Deny,
            devices: devices?,
            ..Limits::default()
        })
    }

    /// The devices to find in the vendor's specification.
    pub(super) fn wanted(&self, inventory: Option<&Inventory>) -> Vec<Wanted> {
        let wanted = |device: &RecordDevice| {
            let gpu = device
                .instance
                .as_ref()
                .map_or(&device.uuid, |instance| &instance.gpu);
            let gpus = inventory.map(|inventory| inventory.gpus.as_slice());
            let mut gpus = gpus.unwrap_or_default().iter();
            let found = gpus.find(|known| known.device.id == *gpu);
            Wanted {
                uuid: device.uuid.clone(),
                gpu: gpu.clone(),
                index: found.map(|gpu| gpu.device.index),
                minor: found.map(|gpu| gpu.minor),
                instance: device.instance.as_ref().map(|instance| InstanceIds {
                    gpu_instance: instance.gpu_instance,
                    compute_instance: instance.compute_instance,
                }),
            }
        };
        self.devices.iter().map(wanted).collect()
    }
}

impl From<&GivenDevice> for RecordDevice {
    fn from(device: &GivenDevice) -> Self {
        let instance = device.instance.as_ref().map(|instance| {
            let Span { start, size } = instance.span;
            RecordInstance {
                gpu: instance.gpu.clone(),
                profile: instance.profile.clone(),
                start,
                size,
                gpu_instance: instance.gpu_instance,
                compute_instance: instance.compute_instance,
            }
        });
        Self {
            uuid: device.uuid.clone(),
            memory_bytes: device.memory_bytes,
            physical_bytes: device.physical_bytes,
            cores: device.cores,
            floor: device.floor,
            oversubscribe_bytes: device.oversubscribe_bytes,
            instance,
        }
    }
}

/// More than this the accounts of a region cannot count.
const MEMORY_MOST: u64 = 8 << 40;

fn check(given: &Given) -> Result<(), DeliveryError> {
    let container = format!(
        "{}/{} container {}",
        given.namespace, given.pod, given.container
    );
    if given.devices.is_empty() {
        return Err(nonsense(format!("{container} was given no GPU")));
    }
    if given.devices.len() > MAX_DEVICES {
        let count = given.devices.len();
        return Err(nonsense(format!(
            "{container} was given {count} GPUs; a container can have {MAX_DEVICES}"
        )));
    }
    for (at, device) in given.devices.iter().enumerate() {
        let uuid = &device.uuid;
        if uuid.is_empty() || DeviceUuid::new(uuid).is_err() {
            return Err(nonsense(format!(
                "{container}: {uuid:?} is no UUID of a GPU"
            )));
        }
        if given
            .devices
            .iter()
            .take(at)
            .any(|other| other.uuid == *uuid)
        {
            return Err(nonsense(format!("{container} was given GPU {uuid} twice")));
        }
        // In a limits file 0 is "no limit".
        let (bytes, beyond) = (device.memory_bytes, device.oversubscribe_bytes);
        if bytes == 0 || bytes.saturating_add(beyond) > MEMORY_MOST {
            return Err(nonsense(format!(
                "{container} was given {bytes} bytes of GPU {uuid} and {beyond} bytes beyond it; accepted: at least 1, \
                 and together at most {}",
                Size(MEMORY_MOST)
            )));
        }
    }
    Ok(())
}

fn nonsense(problem: String) -> DeliveryError {
    DeliveryError::Nonsense { problem }
}
