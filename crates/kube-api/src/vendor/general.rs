//! The rules for every vendor whose family does not override them: units, encodings, selections. Knows no vendor by
//! name.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::civil::DateTime;
use placement::{Ask, Compute, Device, Grant, Granted, Kind, Memory, PairScore, Selection, Vendor};

use super::{Edits, Rejection, Role, Row, Writing};
use crate::fields::{self, PodRules, RequestError};
use crate::object::{Container, Node, Pod};
use crate::quantity::MIB;
use crate::register::{self, Problem};
use crate::slots::{self, AllocationError, Slot};

/// The number of devices that the container asks for; `None` if it asks for none. 0 and less ask for none, as in the
/// reference.
pub(crate) fn count(row: &Row, container: &Container) -> Result<Option<u32>, RequestError> {
    let resource = row.resource(Role::Count);
    match fields::whole(container, resource)? {
        Some(count) if count > 0 => match u32::try_from(count) {
            Ok(count) => Ok(Some(count)),
            Err(_) => Err(fields::wrong_amount(
                container,
                resource.unwrap_or_default(),
                format!("{count} devices are more than any node has"),
            )),
        },
        _ => Ok(None),
    }
}

/// The container's ask: its count, memory, percentage of memory and cores, else the row's defaults.
pub(crate) fn ask(
    row: &Row,
    container: &Container,
    pod: &Pod,
    rules: &PodRules,
) -> Result<Option<Ask>, RequestError> {
    let Some(count) = count(row, container)? else {
        return Ok(None);
    };
    let mut ask = Ask::new(&row.word, count, memory(row, container)?);
    ask.compute = Compute::Units(cores(row, container)?);
    ask.policy = rules.policy.clone();
    ask.weights = rules.weights;
    ask.select = select(row, pod);
    Ok(Some(ask))
}

/// Memory on each device: an amount wins over a percentage, and 0 counts as unset.
pub(crate) fn memory(row: &Row, container: &Container) -> Result<Memory, RequestError> {
    let mib = fields::mebibytes(container, row.resource(Role::Memory), row.memory_unit_mib)?;
    if let Some(mib) = mib
        && mib > 0
    {
        return Ok(Memory::Bytes(mib * MIB));
    }
    let percent = fields::whole(container, row.resource(Role::MemoryPercent))?;
    if let Some(percent) = percent
        && percent > 0
    {
        return Ok(Memory::Percent(
            u32::try_from(percent.min(100)).unwrap_or(100),
        ));
    }
    Ok(match row.defaults.memory_mib {
        0 => Memory::Percent(100),
        mib => Memory::Bytes(mib * MIB),
    })
}

/// Compute on each device; below 0 counts as 0.
pub(crate) fn cores(row: &Row, container: &Container) -> Result<u32, RequestError> {
    let cores = match fields::whole(container, row.resource(Role::Cores))? {
        Some(cores) => u32::try_from(cores.clamp(0, i64::from(u32::MAX))).unwrap_or(u32::MAX),
        None => row.defaults.cores,
    };
    Ok(match row.defaults.most_cores {
        0 => cores,
        most => cores.min(most),
    })
}

/// The devices that the pod's annotations allow.
pub(crate) fn select(row: &Row, pod: &Pod) -> Selection {
    Selection {
        use_types: fields::listed(pod, &row.keys.use_types),
        nouse_types: fields::listed(pod, &row.keys.nouse_types),
        use_ids: fields::listed(pod, &row.keys.use_ids),
        nouse_ids: fields::listed(pod, &row.keys.nouse_ids),
        ..Selection::default()
    }
}

/// Whether the node has none of this vendor's resource, although it may still have the annotation.
pub(crate) fn is_gone(row: &Row, node: &Node) -> bool {
    let allocatable = row
        .resource(Role::Count)
        .and_then(|resource| node.status.allocatable.get(resource));
    match allocatable {
        Some(quantity) => quantity.parse().is_ok_and(|amount| amount.is_zero()),
        // HAMi writes a timestamp to a node, and gives the node up if no agent answers and the kubelet offers
        // nothing.
        None => row
            .keys
            .handshake
            .as_deref()
            .and_then(|key| register::annotation(node, key))
            .is_some_and(is_stamp),
    }
}

/// Whether the text is the timestamp that HAMi's scheduler writes to a node to see whether an agent answers. The time
/// is in its own clock and zone, so it only has to parse; any other text counts as an answer in HAMi.
fn is_stamp(text: &str) -> bool {
    text.strip_prefix("Requesting_")
        .is_some_and(|time| DateTime::strptime("%Y-%m-%d %H:%M:%S", time).is_ok())
}

/// The devices in the row's register annotation.
pub(crate) fn devices(row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
    Ok(registered(row, node)?
        .iter()
        .map(|registered| registered.device(&row.word))
        .collect())
}

/// The entries of the row's register annotation; empty if the vendor's agent no longer runs.
pub(crate) fn registered(row: &Row, node: &Node) -> Result<Vec<register::Registered>, Problem> {
    let Some(key) = row.keys.register.as_deref() else {
        return Ok(Vec::new());
    };
    let Some(text) = register::annotation(node, key) else {
        return Ok(Vec::new());
    };
    if is_gone(row, node) {
        return Ok(Vec::new());
    }
    register::decode(text).map_err(|error| Problem {
        key: key.to_owned(),
        problem: error.to_string(),
    })
}

/// The scores in the row's score annotation.
pub(crate) fn pairs(row: &Row, node: &Node) -> Result<Vec<PairScore>, Problem> {
    let Some(key) = row.keys.score.as_deref() else {
        return Ok(Vec::new());
    };
    match register::annotation(node, key) {
        None => Ok(Vec::new()),
        Some(text) => register::decode_scores(text).map_err(|error| Problem {
            key: key.to_owned(),
            problem: error.to_string(),
        }),
    }
}

/// Writes the allocation under the row's keys.
pub(crate) fn annotate(row: &Row, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
    let keys = &row.keys;
    let all = keys.to_allocate.iter().chain(&keys.allocated);
    let text = slots::encode(&slots(row, writing));
    for key in all.chain(&keys.copies) {
        into.insert(key.clone(), text.clone());
    }
}

/// Each container's shares of this vendor's devices, in the written form.
pub(crate) fn slots(row: &Row, writing: &Writing<'_>) -> Vec<Vec<Slot>> {
    writing
        .placement
        .containers
        .iter()
        .map(|granted| {
            granted
                .grants
                .iter()
                .filter(|grant| grant.vendor.as_str() == row.word)
                .map(|grant| Slot {
                    device: grant.device.as_ref().to_owned(),
                    kind: row.type_field(grant, writing.node),
                    memory_mib: grant.memory_bytes.div_ceil(MIB),
                    cores: grant.cores,
                })
                .collect()
        })
        .collect()
}

/// The text of the pod's allocation and its key: the allocated one, else the one to be allocated.
pub(crate) fn allocation_text<'a>(row: &'a Row, pod: &'a Pod) -> Option<(&'a str, &'a str)> {
    let annotations = pod.metadata.annotations.as_ref()?;
    let keys = &row.keys;
    keys.allocated
        .iter()
        .chain(&keys.to_allocate)
        .chain(&keys.copies)
        .find_map(|key| Some((key.as_str(), annotations.get(key)?.as_str())))
}

/// The pod's allocation, by the row's keys.
pub(crate) fn granted(row: &Row, pod: &Pod) -> Result<Option<Vec<Granted>>, AllocationError> {
    let Some((key, text)) = allocation_text(row, pod) else {
        return Ok(None);
    };
    let slots = slots::decode(text).map_err(|error| AllocationError {
        key: key.to_owned(),
        problem: error.to_string(),
    })?;
    Ok(Some(by_container(row, pod, &slots)))
}

/// Assigns each list of slots to its container. If there are fewer lists than containers, but as many as containers
/// that ask for this vendor, the writer has omitted the empty lists (HAMi v2.10 does), and they belong to those that
/// ask.
pub(crate) fn by_container(row: &Row, pod: &Pod, slots: &[Vec<Slot>]) -> Vec<Granted> {
    let containers: Vec<(&Container, Kind)> = fields::in_order(pod).collect();
    let places = places(row, &containers, slots.len());
    let vendor = Vendor::new(&row.word);
    let mut granted: Vec<Granted> = containers
        .iter()
        .map(|(_, kind)| Granted {
            kind: *kind,
            grants: Vec::new(),
        })
        .collect();
    for (place, slots) in places.into_iter().zip(slots) {
        if granted.len() <= place {
            granted.resize(place + 1, Granted::default());
        }
        if let Some(granted) = granted.get_mut(place) {
            granted.grants.extend(slots.iter().map(|slot| {
                let memory_bytes = slot.memory_mib.saturating_mul(MIB);
                Grant::new(vendor.clone(), &slot.device, memory_bytes, slot.cores)
            }));
        }
    }
    granted
}

/// The container of each of `lists` lists.
pub(crate) fn places(row: &Row, containers: &[(&Container, Kind)], lists: usize) -> Vec<usize> {
    if lists < containers.len() {
        let asking: Vec<usize> = containers
            .iter()
            .enumerate()
            .filter(|(_, (container, _))| asks(row, container))
            .map(|(at, _)| at)
            .collect();
        if asking.len() == lists {
            return asking;
        }
    }
    (0..lists).collect()
}

/// Whether the container asks for more than 0 of any of the vendor's resources.
fn asks(row: &Row, container: &Container) -> bool {
    row.resources.iter().any(|(role, name)| {
        *role != Role::Priority
            && container
                .amount(name)
                .is_some_and(|quantity| quantity.parse().is_ok_and(|amount| !amount.is_zero()))
    })
}

/// Refuses amounts that no cluster can give.
pub(crate) fn admit(row: &Row, container: &Container) -> Result<Edits, Rejection> {
    let mut named = BTreeSet::new();
    for (role, name) in &row.resources {
        if container.amount(name).is_none() || !named.insert(name) {
            continue;
        }
        match role {
            Role::Memory => {
                fields::mebibytes(container, Some(name), row.memory_unit_mib)?;
            }
            _ => {
                if let Some(amount) = fields::whole(container, Some(name))?
                    && amount < 0
                {
                    return Err(Rejection {
                        container: container.name.clone(),
                        field: format!("resources.limits[{name}]"),
                        problem: format!("{amount} is below 0; write 0 or more, or take it out"),
                    });
                }
            }
        }
    }
    Ok(Edits::default())
}
