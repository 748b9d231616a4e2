//! Enflame: whole devices derived from the node's capacity, and devices that are divided into profiles of slices
//! (DRS).

use std::collections::BTreeMap;

use placement::{Ask, Compute, Device, Grant, Granted, Memory, MigProfile, NodeView};
use serde::{Deserialize, Serialize};

use super::{Edits, Family, Keys, Rejection, Role, Row, RowDefaults, Writing, capacity, general};
use crate::config::{ConfigError, DeviceConfig};
use crate::fields::{self, PodRules, RequestError};
use crate::object::{Container, Node, Pod};
use crate::quantity::MIB;
use crate::quantity::shortened;
use crate::register::{self, Problem};
use crate::slots::AllocationError;

/// Memory of a whole device as the reference counts it: 100 for 100 percent, not the real MiB.
const WHOLE_MIB: u64 = 100;
/// An amount of memory above this is in MiB, otherwise in GB as profiles name it. It is twice the largest device's
/// memory.
const MOST_GB: i64 = 192;

/// On the node: its devices and the profiles into which they can be divided.
const CAPACITY: &str = "enflame.com/gcu-drs-capacity";
/// On the pod: the share of each container, for the plugin, which adds the instance.
const CONTAINERS: &str = "assigned-containers";
/// On the pod: whether the plugin has given it to the container.
const ASSIGNED: &str = "enflame.com/gcu-assigned";
/// On the pod: position of the device.
const ID: &str = "enflame.com/gcu-assigned-id";
/// On the pod: position of the device, under the newer name.
const INDEX: &str = "enflame.com/gcu-assigned-index";
/// On the pod: number of the device file.
const MINOR: &str = "enflame.com/gcu-assigned-minor";
/// On the pod: when the device was chosen, in nanoseconds.
const TIME: &str = "enflame.com/gcu-assigned-time";
/// On the pod: the number of slices.
const SIZE: &str = "enflame.com/gcu-request-size";

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let Some(enflame) = &config.enflame else {
        return Ok(Vec::new());
    };
    let use_ids = vec!["enflame.com/use-gpuuuid".to_owned()];
    let nouse_ids = vec!["enflame.com/nouse-gpuuuid".to_owned()];
    // Older configurations have another name for the slices' resource.
    let slices = [&enflame.resource_name_drs_gcu, &enflame.resource_name_vgcu]
        .into_iter()
        .find(|name| !name.is_empty())
        .cloned()
        .unwrap_or_default();
    Ok(vec![
        Row {
            word: "GCU".to_owned(),
            resources: vec![(Role::Count, enflame.resource_name_gcu.clone())],
            memory_unit_mib: 1,
            defaults: RowDefaults {
                memory_mib: WHOLE_MIB,
                cores: 100,
                most_cores: 100,
            },
            keys: Keys {
                to_allocate: Some("hami.io/enflame-gcu-devices-to-allocate".to_owned()),
                allocated: Some("hami.io/enflame-gcu-devices-allocated".to_owned()),
                use_ids: use_ids.clone(),
                nouse_ids: nouse_ids.clone(),
                ..Keys::default()
            },
            family: Box::new(EnflameWhole),
        },
        Row {
            word: "Enflame".to_owned(),
            resources: vec![
                (Role::Count, slices),
                (Role::Memory, enflame.resource_name_gcu_memory.clone()),
                (Role::Cores, enflame.resource_name_gcu_core.clone()),
            ],
            memory_unit_mib: 1024,
            defaults: RowDefaults::default(),
            keys: Keys {
                also_read: vec![CAPACITY.to_owned()],
                allocated: Some("hami.io/enflame-vgpu-devices-allocated".to_owned()),
                also_written: [CONTAINERS, ASSIGNED, ID, INDEX, MINOR, TIME, SIZE]
                    .map(str::to_owned)
                    .to_vec(),
                use_ids,
                nouse_ids,
                ..Keys::default()
            },
            family: Box::new(Slices),
        },
    ])
}

#[derive(Debug)]
struct EnflameWhole;

impl Family for EnflameWhole {
    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        let count = capacity::of(node, row.resource(Role::Count));
        let mut devices = capacity::devices(row, node, "GCU", count, WHOLE_MIB);
        for device in &mut devices {
            device.slots = 1;
        }
        Ok(devices)
    }
}

#[derive(Debug)]
struct Slices;

/// The node's report of its devices.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeReport {
    devices: Vec<ReportedDevice>,
    /// Identifier by name (`3g.24gb`).
    profiles: BTreeMap<String, Word>,
}

/// A device of a node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReportedDevice {
    index: Word,
    minor: Word,
    /// The number of slices.
    capacity: Word,
}

/// A text, or a number in its place.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Word {
    Text(String),
    Number(u64),
}

impl Default for Word {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl Word {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.trim().to_owned(),
            Self::Number(number) => number.to_string(),
        }
    }
}

/// A container's share, as the plugin reads it.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EnflameShare {
    allocated: bool,
    /// The number of slices.
    request: u32,
    #[serde(rename = "profileID", skip_serializing_if = "String::is_empty")]
    profile_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    profile_name: String,
}

/// Slices and GB in a profile's name (`3g.24gb`).
fn sizes(name: &str) -> Option<(u32, u32)> {
    let name = name.trim().to_lowercase();
    let (slices, memory) = name.split_once('.')?;
    let slices = slices.strip_suffix('g').unwrap_or(slices).parse().ok()?;
    let memory = memory.strip_suffix("gb").unwrap_or(memory).parse().ok()?;
    (slices > 0 && memory > 0).then_some((slices, memory))
}

/// The tag in which a device keeps a word of its node; a device has at most one of each kind.
fn tag(kind: &str, word: &str) -> String {
    format!("{kind}={word}")
}

fn tagged<'a>(device: &'a Device, kind: &str) -> Option<&'a str> {
    (device.tags.iter()).find_map(|tag| tag.strip_prefix(kind)?.strip_prefix('='))
}

const MINOR_TAG: &str = "minor";

fn profile_tag(name: &str) -> String {
    format!("profile {name}")
}

/// The profile of a grant, if the node is known.
fn profile<'a>(grant: &Grant, device: &'a Device) -> Option<&'a MigProfile> {
    (device.mig_profiles.iter())
        .find(|profile| profile.slices == grant.slots && profile.memory_bytes == grant.memory_bytes)
}

/// The request of a container that does not name slices; it has at least one of both.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    memory_mib: Option<u64>,
    /// In percent of a device.
    cores: Option<u32>,
}

impl Slices {
    /// Memory in MiB and percent of compute of a container that asks for those.
    fn share(row: &Row, container: &Container) -> Result<Option<Share>, RequestError> {
        let refused = |role, problem: &str| {
            let name = row.resource(role).unwrap_or_default();
            Err(fields::wrong_amount(
                container,
                name,
                format!("{name} {problem}"),
            ))
        };
        let memory = row.resource(Role::Memory);
        let memory_mib = match fields::amount(container, memory)? {
            None => None,
            Some(amount) => {
                let plain = amount.form == crate::quantity::Form::Decimal;
                let small = (amount.whole()).is_some_and(|whole| whole <= i128::from(MOST_GB));
                let unit = if plain && small {
                    row.memory_unit_mib
                } else {
                    1
                };
                match fields::mebibytes(container, memory, unit)? {
                    Some(mib) if mib > 0 => Some(mib),
                    _ => return refused(Role::Memory, "must be greater than 0"),
                }
            }
        };
        let cores = match fields::whole(container, row.resource(Role::Cores))? {
            None => None,
            Some(cores @ 1..=100) => u32::try_from(cores).ok(),
            Some(_) => return refused(Role::Cores, "must be in range (0,100]"),
        };
        let share = Share { memory_mib, cores };
        Ok((memory_mib.is_some() || cores.is_some()).then_some(share))
    }

    fn read(row: &Row, node: &Node, text: &str) -> Result<Vec<Device>, Problem> {
        let broken = |problem: String| Problem {
            key: CAPACITY.to_owned(),
            problem,
        };
        let said: Option<NodeReport> =
            serde_json::from_str(text).map_err(|error| broken(format!("no capacity: {error}")))?;
        let said = said.unwrap_or_default();
        let sized: Vec<(&str, u32, u32)> = (said.profiles.keys())
            .filter_map(|name| sizes(name).map(|(slices, gb)| (name.as_str(), slices, gb)))
            .collect();
        let Some(most_slices) = sized.iter().map(|(_, slices, _)| *slices).max() else {
            let why = "names no profile such as 3g.24gb that a device can be cut into";
            return Err(broken(why.to_owned()));
        };
        let most_gb = sized.iter().map(|(_, _, gb)| *gb).max().unwrap_or(0);
        let mib = |gb: u32| u64::from(gb) * 1024 * MIB;
        let profiles: Vec<MigProfile> = sized
            .iter()
            .map(|(name, slices, gb)| MigProfile {
                name: (*name).to_owned(),
                memory_bytes: mib(*gb),
                cores: u32::try_from((u64::from(*slices) * 100).div_ceil(u64::from(most_slices)))
                    .unwrap_or(100),
                slices: *slices,
                placements: Vec::new(),
            })
            .collect();
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let mut devices = Vec::with_capacity(said.devices.len());
        for (at, reported) in said.devices.iter().enumerate() {
            let capacity = reported.capacity.text();
            let Some(slots) = capacity.parse().ok().filter(|slots| *slots > 0) else {
                return Err(broken(format!(
                    "device {} has a capacity of {:?}; write how many slices it has",
                    shortened(&reported.index.text()),
                    shortened(&capacity)
                )));
            };
            let position = u32::try_from(at).unwrap_or(u32::MAX);
            let index = reported.index.text().parse().unwrap_or(position);
            let id = format!("{name}-enflame-drs-{index}");
            let mut device = Device::new(&row.word, &id, &row.word, mib(most_gb));
            device.index = index;
            device.slots = slots;
            device.mode = "drs".to_owned();
            device.mig_profiles.clone_from(&profiles);
            let minor = match reported.minor.text() {
                minor if minor.is_empty() => index.to_string(),
                minor => minor,
            };
            device.tags = vec![tag(MINOR_TAG, &minor)];
            for (name, identifier) in &said.profiles {
                device
                    .tags
                    .push(tag(&profile_tag(name), &identifier.text()));
            }
            devices.push(device);
        }
        Ok(devices)
    }
}

impl Family for Slices {
    fn ask(
        &self,
        row: &Row,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        let slices = general::count(row, container)?;
        let share = match slices {
            Some(_) => Share::default(),
            None => match Self::share(row, container)? {
                Some(share) => share,
                None => return Ok(None),
            },
        };
        let bytes = share.memory_mib.unwrap_or(0).saturating_mul(MIB);
        let mut ask = Ask::new(&row.word, 1, Memory::Bytes(bytes));
        ask.compute = Compute::Units(share.cores.unwrap_or(0));
        ask.slices = slices;
        ask.policy = rules.policy.clone();
        ask.weights = rules.weights;
        ask.select = general::select(row, pod);
        Ok(Some(ask))
    }

    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        match register::annotation(node, CAPACITY) {
            Some(text) if !general::is_gone(row, node) => Self::read(row, node, text),
            _ => Ok(Vec::new()),
        }
    }

    fn annotate(&self, row: &Row, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
        general::annotate(row, writing, into);
        into.insert(ASSIGNED.to_owned(), "false".to_owned());
        capacity::stamp(writing, TIME, into);
        let mut assigned = BTreeMap::new();
        let containers = fields::in_order(writing.pod);
        for (grants, (container, _)) in capacity::grants(row, writing).zip(containers) {
            let Some(grant) = grants.first() else {
                continue;
            };
            let device = device_of(grant, writing.node);
            let profile = device.and_then(|device| profile(grant, device));
            let name = profile
                .map(|profile| profile.name.clone())
                .unwrap_or_default();
            let identifier = device.and_then(|device| tagged(device, &profile_tag(&name)));
            if assigned.is_empty() {
                let index = capacity::index(grant, writing.node).to_string();
                let minor = device.and_then(|device| tagged(device, MINOR_TAG));
                let minor = minor.map_or_else(|| index.clone(), str::to_owned);
                into.insert(ID.to_owned(), index.clone());
                into.insert(INDEX.to_owned(), index);
                into.insert(MINOR.to_owned(), minor);
                into.insert(SIZE.to_owned(), grant.slots.to_string());
            }
            assigned.insert(
                container.name.as_str(),
                EnflameShare {
                    allocated: false,
                    request: grant.slots,
                    profile_id: identifier.unwrap_or_default().to_owned(),
                    profile_name: name,
                },
            );
        }
        // Serialisation cannot fail: the value has only texts, numbers and booleans, with texts as keys.
        let text = serde_json::to_string(&assigned).unwrap_or_default();
        into.insert(CONTAINERS.to_owned(), text);
    }

    /// The allocation has memory and compute; the number of slices is in another annotation.
    fn granted(&self, row: &Row, pod: &Pod) -> Result<Option<Vec<Granted>>, AllocationError> {
        let Some(mut granted) = general::granted(row, pod)? else {
            return Ok(None);
        };
        let assigned: BTreeMap<String, EnflameShare> = match fields::annotation(pod, CONTAINERS) {
            None => BTreeMap::new(),
            Some(text) => serde_json::from_str(text).map_err(|error| AllocationError {
                key: CONTAINERS.to_owned(),
                problem: format!("no map of containers: {error}"),
            })?,
        };
        let size = fields::annotation(pod, SIZE).and_then(|size| size.parse().ok());
        for (granted, (container, _)) in granted.iter_mut().zip(fields::in_order(pod)) {
            let slices = assigned
                .get(&container.name)
                .map(|assigned| assigned.request);
            for grant in &mut granted.grants {
                grant.slots = slices.or(size).unwrap_or(1).max(1);
            }
        }
        Ok(Some(granted))
    }

    fn admit(&self, row: &Row, container: &Container, _pod: &Pod) -> Result<Edits, Rejection> {
        let mut edits = general::admit(row, container)?;
        let count = row.resource(Role::Count);
        let named: Vec<&str> = match fields::whole(container, count)? {
            Some(..=0) => {
                let name = count.unwrap_or_default();
                let problem = format!("{name} must be greater than 0");
                return Err(fields::wrong_amount(container, name, problem).into());
            }
            Some(_) => count.into_iter().collect(),
            None => {
                Self::share(row, container)?;
                let shares = [row.resource(Role::Memory), row.resource(Role::Cores)];
                shares.into_iter().flatten().collect()
            }
        };
        // The plugin reads one of the two, so both have the same value.
        for name in named {
            let needs = &container.resources;
            match (needs.limits.get(name), needs.requests.get(name)) {
                (Some(limit), None) => {
                    edits.requests.insert(name.to_owned(), limit.to_string());
                }
                (None, Some(request)) => {
                    edits.limits.insert(name.to_owned(), request.to_string());
                }
                _ => {}
            }
        }
        Ok(edits)
    }
}

fn device_of<'a>(grant: &Grant, node: Option<NodeView<'a>>) -> Option<&'a Device> {
    node.and_then(|node| node.device(&grant.device))
        .map(|device| device.device())
}
