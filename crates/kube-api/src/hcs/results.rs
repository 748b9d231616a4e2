//! The result annotations of a pod with `ai.compute/*` amounts.

use std::collections::BTreeMap;

use placement::{AnyVendor, Grant, NodeView, Placement};

use super::keys;

/// The result annotations of a placement. Devices are given by their index on the node, in the order in which
/// containers got them, each once.
pub fn annotations(
    any: &AnyVendor,
    placement: &Placement,
    node: Option<NodeView<'_>>,
    score: i32,
) -> BTreeMap<String, String> {
    let grants: Vec<&Grant> = any
        .wishes
        .iter()
        .filter_map(|wish| placement.containers.get(wish.container))
        .flat_map(|granted| &granted.grants)
        .collect();
    let maker = grants.first().and_then(|grant| {
        let family = any.families.iter().find(|one| one.vendor == grant.vendor);
        family.map(|family| family.maker)
    });
    let Some(maker) = maker else {
        return BTreeMap::new();
    };
    let mut devices: Vec<String> = Vec::new();
    for grant in grants {
        let index = node
            .and_then(|node| node.device(&grant.device))
            .map_or_else(
                || grant.device.as_ref().to_owned(),
                |device| device.device().index.to_string(),
            );
        if !devices.contains(&index) {
            devices.push(index);
        }
    }
    [
        (keys::ASSIGNED_VENDOR, maker.as_str().to_owned()),
        (keys::ASSIGNED_DEVICES, devices.join(",")),
        (keys::ASSIGNED_NODE, placement.node.to_string()),
        (keys::SCHEDULING_SCORE, score.to_string()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}
