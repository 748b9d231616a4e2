//! A node's register and score annotations, read and written. Knows no vendor.
//!
//! Two forms are read for every vendor: a JSON list, as HAMi writes it since 2.7, and comma-separated fields with a colon
//! after each device, as older releases write it.

use std::collections::BTreeMap;

use placement::{Device, MigProfile, PairScore, Span};
use serde::{Deserialize, Serialize};

use crate::fields::truth;
use crate::object::Node;
use crate::quantity::{MIB, shortened};

/// An annotation of a node that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key}: {problem}")]
pub struct Problem {
    /// The annotation.
    pub key: String,
    /// The value that was read and the values that are accepted.
    pub problem: String,
}

/// The annotation, unless it is empty.
pub(crate) fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let text = node.metadata.annotations.as_ref()?.get(key)?.trim();
    (!text.is_empty()).then_some(text)
}

/// A device in a register annotation. The JSON form leaves zero values out, as Go does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Registered {
    /// Identifier (UUID).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Position on the node; devices without one are numbered from 0.
    #[serde(skip_serializing_if = "is_none_or_zero")]
    pub index: Option<u32>,
    /// The number of containers that may share it.
    #[serde(skip_serializing_if = "is_zero")]
    pub count: u32,
    /// Memory in MiB that may be promised.
    #[serde(skip_serializing_if = "is_zero")]
    pub devmem: u32,
    /// Compute that may be promised, in the vendor's unit.
    #[serde(skip_serializing_if = "is_zero")]
    pub devcore: u32,
    /// Model as the driver names it.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// NUMA node. A system that has none says -1, which is read as 0.
    #[serde(skip_serializing_if = "is_zero", deserialize_with = "numa_node")]
    pub numa: u32,
    /// How it is shared; empty is `hami-core`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// The profiles into which a device in mode `mig` can be divided.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_empty")]
    pub mig_profiles: Vec<RegisteredProfile>,
    /// Whether it is healthy; absent means no, as in the reference.
    #[serde(skip_serializing_if = "is_false")]
    pub health: bool,
    /// Fields that only some vendors have (`NetworkID`).
    #[serde(rename = "custominfo", skip_serializing_if = "Option::is_none")]
    pub custom_info: Option<serde_json::Map<String, serde_json::Value>>,
}

/// A MIG profile as a register annotation has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RegisteredProfile {
    /// Name (`3g.40gb`).
    pub name: String,
    /// Memory in MiB.
    #[serde(rename = "memoryMB")]
    pub memory_mib: u32,
    /// Compute, in the device's unit.
    pub core: u32,
    /// Slices of compute.
    pub slice_count: u32,
    /// The placements that an instance may have.
    #[serde(deserialize_with = "or_empty")]
    pub placements: Vec<RegisteredSpan>,
}

/// A range of a device's memory slices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegisteredSpan {
    /// First slice.
    pub start: u32,
    /// Number of slices.
    pub size: u32,
}

fn or_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}

fn numa_node<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = Option::<i32>::deserialize(deserializer)?.unwrap_or_default();
    Ok(u32::try_from(number).unwrap_or(0))
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_none_or_zero(number: &Option<u32>) -> bool {
    number.unwrap_or_default() == 0
}

fn is_false(truth: &bool) -> bool {
    !truth
}

/// The mode of a device that names none.
const SHARED: &str = "hami-core";

impl Registered {
    /// The device in the form of the inventory.
    pub fn device(&self, vendor: &str) -> Device {
        let mut device = Device::new(vendor, &self.id, &self.kind, u64::from(self.devmem) * MIB);
        device.index = self.index.unwrap_or_default();
        device.slots = self.count;
        device.cores = self.devcore;
        device.numa = self.numa;
        device.healthy = self.health;
        if !self.mode.is_empty() {
            device.mode.clone_from(&self.mode);
        }
        device.mig_profiles = self
            .mig_profiles
            .iter()
            .map(|profile| MigProfile {
                name: profile.name.clone(),
                memory_bytes: u64::from(profile.memory_mib) * MIB,
                cores: profile.core,
                slices: profile.slice_count,
                placements: profile
                    .placements
                    .iter()
                    .map(|span| Span {
                        start: span.start,
                        size: span.size,
                    })
                    .collect(),
            })
            .collect();
        device
    }

    /// Whether the comma-separated form can express all of it.
    fn fits_between_commas(&self) -> bool {
        let plain = |text: &str| !text.contains([',', ':']);
        self.mig_profiles.is_empty()
            && self.custom_info.is_none()
            && plain(&self.id)
            && plain(&self.kind)
            && plain(&self.mode)
    }
}

/// A device as an agent registers it. Memory is cut to whole MiB.
impl From<&Device> for Registered {
    fn from(device: &Device) -> Self {
        let mib = |bytes: u64| u32::try_from(bytes / MIB).unwrap_or(u32::MAX);
        Self {
            id: device.id.clone(),
            index: Some(device.index),
            count: device.slots,
            devmem: mib(device.memory_bytes),
            devcore: device.cores,
            kind: device.model.clone(),
            numa: device.numa,
            mode: device.mode.clone(),
            mig_profiles: device
                .mig_profiles
                .iter()
                .map(|profile| RegisteredProfile {
                    name: profile.name.clone(),
                    memory_mib: mib(profile.memory_bytes),
                    core: profile.cores,
                    slice_count: profile.slices,
                    placements: profile
                        .placements
                        .iter()
                        .map(|span| RegisteredSpan {
                            start: span.start,
                            size: span.size,
                        })
                        .collect(),
                })
                .collect(),
            health: device.healthy,
            custom_info: None,
        }
    }
}

/// Why a register annotation cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The fields are separated by commas, and no colon follows them.
    #[error("no device ends with a colon; write id,count,memory,cores,type,numa,health: for each")]
    NoSeparator,
    /// A device has neither 7 nor 9 fields.
    #[error(
        "device {device:?} has {fields} fields; write 7 (id,count,memory,cores,type,numa,health) or 9 (and index,mode)"
    )]
    FieldCount {
        /// The device as it was written.
        device: String,
        /// The number of its fields.
        fields: usize,
    },
    /// A field has an invalid value.
    #[error("device {device:?}: {field} is {text:?}; write {accepted}")]
    Field {
        /// Its identifier.
        device: String,
        /// The name of the field.
        field: &'static str,
        /// Its value.
        text: String,
        /// The values that it may have.
        accepted: &'static str,
    },
    /// The text is not JSON, or is other JSON.
    #[error("no list of devices: {0}")]
    Json(String),
}

/// The devices of a register annotation in either form. An empty text has none.
///
/// # Errors
///
/// If one device cannot be read, none counts, because the missing one may be in use.
pub fn decode(text: &str) -> Result<Vec<Registered>, RegisterError> {
    let text = text.trim();
    let mut devices = match text.chars().next() {
        None => return Ok(Vec::new()),
        Some('[' | '{' | '"') => decode_json(text)?,
        // Go writes null for a list that was never created.
        Some('n') if text == "null" => return Ok(Vec::new()),
        Some(_) => decode_colon(text)?,
    };
    if devices.iter().all(|device| device.index.is_none()) {
        for (at, device) in devices.iter_mut().enumerate() {
            device.index = u32::try_from(at).ok();
        }
    }
    Ok(devices)
}

/// Only the JSON form.
///
/// # Errors
///
/// The text is not a list of devices, or a number exceeds 32 bits.
pub fn decode_json(text: &str) -> Result<Vec<Registered>, RegisterError> {
    let devices: Option<Vec<Registered>> =
        serde_json::from_str(text).map_err(|error| RegisterError::Json(error.to_string()))?;
    let devices = devices.unwrap_or_default();
    for device in &devices {
        let most = u32::try_from(i32::MAX).unwrap_or(u32::MAX);
        for (field, number) in [
            ("count", device.count),
            ("devmem", device.devmem),
            ("devcore", device.devcore),
        ] {
            if number > most {
                return Err(RegisterError::Field {
                    device: shortened(&device.id),
                    field,
                    text: number.to_string(),
                    accepted: NUMBER,
                });
            }
        }
    }
    Ok(devices)
}

const NUMBER: &str = "a whole number from 0 to 2147483647";

/// Only the form with commas and colons, as the reference's decoder reads it: parts without a comma are skipped. A
/// device of 7 fields has no index.
///
/// # Errors
///
/// No device ends with a colon, or a device cannot be read.
pub fn decode_colon(text: &str) -> Result<Vec<Registered>, RegisterError> {
    if !text.contains(':') {
        return Err(RegisterError::NoSeparator);
    }
    text.split(':')
        .map(str::trim)
        .filter(|device| device.contains(','))
        .map(decode_fields)
        .collect()
}

fn decode_fields(text: &str) -> Result<Registered, RegisterError> {
    let fields: Vec<&str> = text.split(',').map(str::trim).collect();
    let (id, count, memory, cores, kind, numa, health, more) = match fields.as_slice() {
        [id, count, memory, cores, kind, numa, health] => {
            (id, count, memory, cores, kind, numa, health, None)
        }
        [id, count, memory, cores, kind, numa, health, index, mode] => (
            id,
            count,
            memory,
            cores,
            kind,
            numa,
            health,
            Some((index, mode)),
        ),
        _ => {
            return Err(RegisterError::FieldCount {
                device: shortened(text),
                fields: fields.len(),
            });
        }
    };
    let wrong = |field, text: &str, accepted| RegisterError::Field {
        device: shortened(id),
        field,
        text: shortened(text),
        accepted,
    };
    let number = |field, text: &str| {
        let number: Option<i32> = text.parse().ok();
        number
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| wrong(field, text, NUMBER))
    };
    Ok(Registered {
        id: (*id).to_owned(),
        index: match more {
            Some((index, _)) => Some(number("index", index)?),
            None => None,
        },
        count: number("count", count)?,
        devmem: number("memory", memory)?,
        devcore: number("cores", cores)?,
        kind: (*kind).to_owned(),
        numa: match *numa {
            "-1" => 0,
            numa => number("numa", numa)?,
        },
        mode: more.map_or_else(|| SHARED.to_owned(), |(_, mode)| (*mode).to_owned()),
        mig_profiles: Vec::new(),
        health: truth(health).ok_or_else(|| wrong("health", health, "true or false"))?,
        custom_info: None,
    })
}

/// The form in which register annotations are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RegisterFormat {
    /// Commas and colons, or JSON if that form cannot express a device.
    #[default]
    Auto,
    /// Commas and colons. Values that the form cannot express are left out.
    Colon,
    /// JSON.
    Json,
}

/// The register annotation of these devices.
pub fn encode(devices: &[Registered], format: RegisterFormat) -> String {
    let colon = match format {
        RegisterFormat::Auto => devices.iter().all(Registered::fits_between_commas),
        RegisterFormat::Colon => true,
        RegisterFormat::Json => false,
    };
    if colon {
        encode_colon(devices)
    } else {
        // Serialisation cannot fail: the value has only strings, numbers and booleans, with texts as keys.
        serde_json::to_string(devices).unwrap_or_else(|_| "[]".to_owned())
    }
}

/// Seven fields, or nine if the mode or index of a device would otherwise be lost.
fn encode_colon(devices: &[Registered]) -> String {
    let long = devices.iter().enumerate().any(|(at, device)| {
        let index = device.index.map(usize::try_from);
        let counted = index.is_none_or(|index| index == Ok(at));
        !counted || !(device.mode.is_empty() || device.mode == SHARED)
    });
    let plain = |text: &str| text.replace([',', ':'], "-");
    let mut text = String::new();
    for (at, device) in devices.iter().enumerate() {
        text += &format!(
            "{},{},{},{},{},{},{}",
            plain(&device.id),
            device.count,
            device.devmem,
            device.devcore,
            plain(&device.kind),
            device.numa,
            device.health
        );
        if long {
            let index = device
                .index
                .or_else(|| u32::try_from(at).ok())
                .unwrap_or_default();
            let mode = if device.mode.is_empty() {
                SHARED.to_owned()
            } else {
                plain(&device.mode)
            };
            text += &format!(",{index},{mode}");
        }
        text.push(':');
    }
    text
}

/// An entry of the score annotation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Scores {
    uuid: String,
    score: BTreeMap<String, i32>,
}

/// The scores of pairs of devices.
///
/// # Errors
///
/// The text is not such a list.
pub fn decode_scores(text: &str) -> Result<Vec<PairScore>, RegisterError> {
    let lines: Option<Vec<Scores>> =
        serde_json::from_str(text).map_err(|error| RegisterError::Json(error.to_string()))?;
    Ok(lines
        .unwrap_or_default()
        .into_iter()
        .flat_map(|line| {
            let from = line.uuid;
            line.score.into_iter().map(move |(to, score)| PairScore {
                from: from.clone(),
                to,
                score,
            })
        })
        .collect())
}

/// The score annotation of these pairs.
pub fn encode_scores(pairs: &[PairScore]) -> String {
    let mut lines: Vec<Scores> = Vec::new();
    for pair in pairs {
        let at = match lines.iter().position(|line| line.uuid == pair.from) {
            Some(at) => at,
            None => {
                lines.push(Scores {
                    uuid: pair.from.clone(),
                    score: BTreeMap::new(),
                });
                lines.len() - 1
            }
        };
        if let Some(line) = lines.get_mut(at) {
            line.score.insert(pair.to.clone(), pair.score);
        }
    }
    serde_json::to_string(&lines).unwrap_or_else(|_| "[]".to_owned())
}
