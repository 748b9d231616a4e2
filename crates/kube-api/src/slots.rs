//! The texts of allocation annotations: shares of devices, and MIG instances. Does not decide whether a pod may hold
//! them.
//!
//! An allocation is `UUID,TYPE,MiB,cores:` for each device and `;` after each container, init containers first. A
//! container without devices is an empty slot. It is always written: HAMi v2.10 omits it, which shifts all later ones.

use std::sync::Arc;

use placement::{Granted, Instance, Placement, Span};
use serde::{Deserialize, Serialize};

use crate::quantity::shortened;

/// Why a pod's allocation annotation cannot be read. The pod then counts as holding nothing, and gets an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key}: {problem}")]
pub struct AllocationError {
    /// The annotation.
    pub key: String,
    /// The value that was read and the values that are accepted.
    pub problem: String,
}

/// The most shares of devices that are read from one pod. A node has at most 1,024 devices, and every share is
/// compared with each device.
const MOST_SLOTS: usize = 4096;

/// A share of a device in an allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slot {
    /// Identifier of the device.
    pub device: String,
    /// The vendor's word, or the text that the vendor writes in its place.
    pub kind: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Compute, in the device's unit.
    pub cores: u32,
}

/// Why an allocation cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer than four fields.
    #[error("{0:?} has fewer than the four fields uuid,type,memory,cores")]
    MissingFields(String),
    /// A field is not a number of 32 bits.
    #[error("{field} of {device} is {text:?}, and no whole number up to 2147483647")]
    Number {
        /// The name of the field.
        field: &'static str,
        /// The device.
        device: String,
        /// Its value.
        text: String,
    },
    /// There are more shares than any pod holds.
    #[error("names more than {MOST_SLOTS} shares of devices, the most of one pod")]
    TooMany,
    /// A text that is not a list of MIG instances.
    #[error("no list of MIG instances: {0}")]
    Json(String),
    /// An instance is on a device that the container does not hold.
    #[error(
        "names an instance of {uuid} for device {device} of container {container}, which holds no such device"
    )]
    NoSuchCard {
        /// Position of the container.
        container: usize,
        /// Position among the container's devices.
        device: usize,
        /// The device.
        uuid: String,
    },
    /// Two instances for one share.
    #[error("names two instances for device {device} of container {container}")]
    Twice {
        /// Position of the container.
        container: usize,
        /// Position among the container's devices.
        device: usize,
    },
    /// Only some of the fields that the agent fills in.
    #[error(
        "instance {uuid} for device {device} of container {container} has only some of migUUID, gpuInstanceID and computeInstanceID; the agent writes all three or none"
    )]
    HalfMade {
        /// Position of the container.
        container: usize,
        /// Position among the container's devices.
        device: usize,
        /// The device.
        uuid: String,
    },
}

/// The text of an allocation. Characters that have a meaning in it become `-`.
pub fn encode(containers: &[Vec<Slot>]) -> String {
    let plain = |text: &str| text.replace([',', ':', ';'], "-");
    let mut text = String::new();
    for slots in containers {
        for slot in slots {
            text += &format!(
                "{},{},{},{}:",
                plain(&slot.device),
                plain(&slot.kind),
                slot.memory_mib,
                slot.cores
            );
        }
        text.push(';');
    }
    text
}

/// The shares of each container. Parts without a comma and further fields are skipped, and numbers below 0 count as 0:
/// HAMi's decoder does so, and HAMi writes negative cores.
///
/// # Errors
///
/// A part has too few fields, a field is not a number, or there are more parts or containers than any pod has.
pub fn decode(text: &str) -> Result<Vec<Vec<Slot>>, DecodeError> {
    let containers = text
        .split_terminator(';')
        .map(decode_container)
        .collect::<Result<Vec<_>, _>>()?;
    let slots: usize = containers.iter().map(Vec::len).sum();
    if containers.len().max(slots) > MOST_SLOTS {
        return Err(DecodeError::TooMany);
    }
    Ok(containers)
}

fn decode_container(text: &str) -> Result<Vec<Slot>, DecodeError> {
    text.split(':')
        .filter(|part| part.contains(','))
        .map(decode_slot)
        .collect()
}

fn decode_slot(text: &str) -> Result<Slot, DecodeError> {
    let mut fields = text.split(',').map(str::trim);
    let (Some(device), Some(kind), Some(memory), Some(cores)) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(DecodeError::MissingFields(shortened(text)));
    };
    let number = |field, text: &str| match text.parse::<i32>() {
        Ok(number) => Ok(u32::try_from(number).unwrap_or(0)),
        Err(_) => Err(DecodeError::Number {
            field,
            device: shortened(device),
            text: shortened(text),
        }),
    };
    Ok(Slot {
        device: device.to_owned(),
        kind: kind.to_owned(),
        memory_mib: u64::from(number("memory", memory)?),
        cores: number("cores", cores)?,
    })
}

/// A MIG instance in its annotation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MigAllocation {
    /// Position of the container, init containers first.
    pub container_index: usize,
    /// Position among the container's devices.
    pub device_index: usize,
    /// The device.
    #[serde(rename = "gpuUUID")]
    pub gpu_uuid: String,
    /// Name of the profile.
    pub profile: String,
    /// Its placement on the device.
    pub placement: MigSpan,
    /// Identifier of the instance, once the agent has created it.
    #[serde(rename = "migUUID", skip_serializing_if = "Option::is_none")]
    pub mig_uuid: Option<String>,
    /// Number of the GPU instance, once the agent has created it.
    #[serde(rename = "gpuInstanceID", skip_serializing_if = "Option::is_none")]
    pub gpu_instance_id: Option<u32>,
    /// Number of the compute instance, once the agent has created it.
    #[serde(rename = "computeInstanceID", skip_serializing_if = "Option::is_none")]
    pub compute_instance_id: Option<u32>,
}

/// The placement of an instance on its device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MigSpan {
    /// First slice.
    pub start: u32,
    /// Number of slices.
    pub size: u32,
}

/// The MIG instances in an annotation.
///
/// # Errors
///
/// The text is not such a list, names two instances for one share, or names an instance with only some of its ids.
pub fn decode_instances(text: &str) -> Result<Vec<MigAllocation>, DecodeError> {
    let instances: Option<Vec<MigAllocation>> =
        serde_json::from_str(text).map_err(|error| DecodeError::Json(error.to_string()))?;
    let instances = instances.unwrap_or_default();
    if instances.len() > MOST_SLOTS {
        return Err(DecodeError::TooMany);
    }
    for (at, instance) in instances.iter().enumerate() {
        let (container, device) = (instance.container_index, instance.device_index);
        let same = |other: &MigAllocation| {
            other.container_index == container && other.device_index == device
        };
        if instances.iter().take(at).any(same) {
            return Err(DecodeError::Twice { container, device });
        }
        let made = [
            instance.mig_uuid.is_some(),
            instance.gpu_instance_id.is_some(),
            instance.compute_instance_id.is_some(),
        ];
        if made.contains(&true) && made.contains(&false) {
            return Err(DecodeError::HalfMade {
                container,
                device,
                uuid: shortened(&instance.gpu_uuid),
            });
        }
    }
    Ok(instances)
}

/// The instances of a placement on this vendor's devices; `None` if it has none.
pub(crate) fn encode_instances(vendor: &str, placement: &Placement) -> Option<String> {
    let mut instances = Vec::new();
    for (container_index, granted) in placement.containers.iter().enumerate() {
        let grants = granted.grants.iter();
        let grants = grants.filter(|grant| grant.vendor.as_str() == vendor);
        for (device_index, grant) in grants.enumerate() {
            if let Some(instance) = &grant.instance {
                instances.push(MigAllocation {
                    container_index,
                    device_index,
                    gpu_uuid: grant.device.as_ref().to_owned(),
                    profile: instance.profile.as_ref().to_owned(),
                    placement: MigSpan {
                        start: instance.span.start,
                        size: instance.span.size,
                    },
                    ..MigAllocation::default()
                });
            }
        }
    }
    if instances.is_empty() {
        return None;
    }
    serde_json::to_string(&instances).ok()
}

/// Adds the MIG instances to the containers' shares. HAMi omits empty slots and then also counts containers without
/// them, so an instance whose container does not hold its device is assigned to the container that does.
pub(crate) fn cut(granted: &mut [Granted], instances: &[MigAllocation]) -> Result<(), DecodeError> {
    for named in instances {
        let instance = Instance {
            profile: Arc::from(named.profile.as_str()),
            span: Span {
                start: named.placement.start,
                size: named.placement.size,
            },
        };
        let holds = |granted: &Granted| {
            granted
                .grants
                .get(named.device_index)
                .is_some_and(|grant| *grant.device == *named.gpu_uuid && grant.instance.is_none())
        };
        let at = match granted.get(named.container_index) {
            Some(container) if holds(container) => Some(named.container_index),
            _ => granted.iter().position(holds),
        };
        let grant = at
            .and_then(|at| granted.get_mut(at))
            .and_then(|container| container.grants.get_mut(named.device_index));
        match grant {
            Some(grant) => grant.instance = Some(instance),
            None => {
                return Err(DecodeError::NoSuchCard {
                    container: named.container_index,
                    device: named.device_index,
                    uuid: shortened(&named.gpu_uuid),
                });
            }
        }
    }
    Ok(())
}
