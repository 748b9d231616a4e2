//! Devices that a node only counts: its capacity of a resource, and the device of a grant. Decides nothing.

use std::collections::BTreeMap;

use placement::{Device, Grant, NodeView};

use super::{Row, Writing};
use crate::object::Node;
use crate::quantity::MIB;

/// One more than the engine reads from one node, so that the engine refuses an absurd count and names it.
const MOST_DEVICES: u64 = 1025;

/// The node's amount of the resource; 0 if it has none, or not a whole number.
pub(super) fn of(node: &Node, resource: Option<&str>) -> u64 {
    resource
        .and_then(|resource| node.status.capacity.get(resource))
        .and_then(|quantity| quantity.parse().ok())
        .and_then(|amount| amount.whole())
        .and_then(|whole| u64::try_from(whole).ok())
        .unwrap_or(0)
}

/// `count` healthy devices with this much memory, named after the node.
pub(super) fn devices(
    row: &Row,
    node: &Node,
    infix: &str,
    count: u64,
    memory_mib: u64,
) -> Vec<Device> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    (0..)
        .take(usize::try_from(count.min(MOST_DEVICES)).unwrap_or_default())
        .map(|index: u32| {
            let id = format!("{name}-{infix}-{index}");
            let memory_bytes = memory_mib.saturating_mul(MIB);
            let mut device = Device::new(&row.word, &id, &row.word, memory_bytes);
            device.index = index;
            device
        })
        .collect()
}

/// Position of the device on its node: from the inventory, else from the end of its name.
pub(super) fn index(grant: &Grant, node: Option<NodeView<'_>>) -> u32 {
    node.and_then(|node| node.device(&grant.device))
        .map(|device| device.device().index)
        .or_else(|| {
            let (_, number) = grant.device.rsplit_once('-')?;
            number.parse().ok()
        })
        .unwrap_or(0)
}

/// The vendor's grants of the pod, by container.
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

/// Numbers separated by commas.
pub(super) fn joined(numbers: impl Iterator<Item = u32>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    numbers.join(",")
}

/// The present time, in nanoseconds since 1970.
pub(super) fn stamp(writing: &Writing<'_>, key: &str, into: &mut BTreeMap<String, String>) {
    into.insert(key.to_owned(), writing.unix_nanoseconds.to_string());
}
