//! Cards that a node only counts: what it has of a resource, and which card a grant is. Never decides.

use std::collections::BTreeMap;

use placement::{Device, Grant, NodeView};

use super::{Row, Writing};
use crate::object::Node;
use crate::quantity::MIB;

/// More than the engine reads of one node, so that a figure out of all proportion is refused there, with its number.
const MOST_CARDS: u64 = 1025;

/// How much the node has of the resource; 0 where it names none, or no whole number.
pub(super) fn of(node: &Node, resource: Option<&str>) -> u64 {
    resource
        .and_then(|resource| node.status.capacity.get(resource))
        .and_then(|quantity| quantity.parse().ok())
        .and_then(|amount| amount.whole())
        .and_then(|whole| u64::try_from(whole).ok())
        .unwrap_or(0)
}

/// So many healthy cards with this much memory, named after the node.
pub(super) fn cards(
    row: &Row,
    node: &Node,
    infix: &str,
    count: u64,
    memory_mib: u64,
) -> Vec<Device> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    (0..)
        .take(usize::try_from(count.min(MOST_CARDS)).unwrap_or_default())
        .map(|index: u32| {
            let id = format!("{name}-{infix}-{index}");
            let memory_bytes = memory_mib.saturating_mul(MIB);
            let mut device = Device::new(&row.word, &id, &row.word, memory_bytes);
            device.index = index;
            device
        })
        .collect()
}

/// Position of the card on its node: as the node has it, else as the name's end says it.
pub(super) fn index(grant: &Grant, node: Option<NodeView<'_>>) -> u32 {
    node.and_then(|node| node.device(&grant.device))
        .map(|device| device.device().index)
        .or_else(|| {
            let (_, number) = grant.device.rsplit_once('-')?;
            number.parse().ok()
        })
        .unwrap_or(0)
}

/// What the pod got of the vendor, by container.
pub(super) fn grants<'a>(
    row: &'a Row,
    writing: &Writing<'a>,
) -> impl Iterator<Item = Vec<&'a Grant>> {
    writing.placement.containers.iter().map(|granted| {
        (granted.grants.iter())
            .filter(|grant| grant.vendor.as_str() == row.word)
            .collect()
    })
}

/// Numbers with commas between them.
pub(super) fn joined(numbers: impl Iterator<Item = u32>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    numbers.join(",")
}

/// When it was written, in nanoseconds since 1970.
pub(super) fn stamp(writing: &Writing<'_>, key: &str, into: &mut BTreeMap<String, String>) {
    into.insert(key.to_owned(), writing.unix_nanoseconds.to_string());
}
