//! Reads a node's inventory from its annotations. Does not decide whether a node may be used.

use std::collections::BTreeSet;

use placement::Device;

use crate::hcs::rules::maker_of;
use crate::keys;
use crate::object::Node;
use crate::quantity::shortened;
use crate::register::annotation;
use crate::vendor::{Role, Vendors};

pub use crate::register::{
    Problem, RegisterError, RegisterFormat, Registered, RegisteredProfile, RegisteredSpan, decode,
    decode_colon, decode_json, decode_scores, encode, encode_scores,
};

/// A node's inventory, and the annotations that cannot be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Its devices, of all vendors that could be read; empty if it reports none.
    pub node: placement::Node,
    /// The errors. A vendor with an error has no devices on the node until its annotation is written again.
    pub problems: Vec<Problem>,
}

/// The most devices that are read from one node; `placement` accepts no more.
const MOST_DEVICES: usize = 1024;

/// The node's inventory.
pub fn report(node: &Node, vendors: &Vendors) -> Report {
    let mut devices: Vec<Device> = Vec::new();
    let mut pairs = Vec::new();
    let mut problems = Vec::new();
    let mut known = BTreeSet::new();
    for row in vendors.iter() {
        let read = row
            .devices(node)
            .and_then(|found| {
                let mut keys = row.keys.register.iter().chain(&row.keys.also_read);
                let read = keys.find(|key| annotation(node, key).is_some());
                let key = read.map(String::as_str).or(row.resource(Role::Count));
                let key = key.unwrap_or_default().to_owned();
                judge(found, &known, devices.len()).map_err(|unfit| Problem {
                    key,
                    problem: unfit.to_string(),
                })
            })
            .and_then(|found| Ok((row.pairs(node)?, found)));
        match read {
            Ok((scores, mut found)) => {
                rate(&mut found, &row.word, vendors);
                known.extend(found.iter().map(|device| device.id.clone()));
                devices.extend(found);
                pairs.extend(scores);
            }
            Err(problem) => problems.push(problem),
        }
    }
    Report {
        node: placement::Node {
            name: node.metadata.name.clone().unwrap_or_default(),
            devices,
            pairs,
        },
        problems,
    }
}

/// Sets the speed of known models from the exchange table, if requests of hcs.io are read.
fn rate(devices: &mut [Device], word: &str, vendors: &Vendors) {
    let Some((hcs, maker)) = vendors.hcs().zip(maker_of(word)) else {
        return;
    };
    for device in devices.iter_mut().filter(|one| one.gflops == [0, 0]) {
        if let Some(profile) = hcs.table.find(maker, &device.model, device.memory_bytes) {
            device.gflops = profile.gflops();
        }
    }
}

/// Why a vendor's devices of a node do not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Unfit {
    #[error("reports {0} devices, at most {MOST_DEVICES} are read of one node")]
    TooMany(usize),
    #[error(
        "{0:?} is no identifier of a device; it needs letters, none of , : ; and no control characters"
    )]
    Identifier(String),
    #[error("reports device {0} twice; each needs an identifier of its own")]
    Twice(String),
}

/// Refuses values for which `placement` would refuse the whole node.
fn judge(
    found: Vec<Device>,
    known: &BTreeSet<String>,
    present: usize,
) -> Result<Vec<Device>, Unfit> {
    if present + found.len() > MOST_DEVICES {
        return Err(Unfit::TooMany(found.len()));
    }
    let mut seen = BTreeSet::new();
    for device in &found {
        // Identifiers are written into annotations and NVIDIA_VISIBLE_DEVICES.
        let unfit = |c: char| matches!(c, ',' | ':' | ';') || c.is_control();
        if device.id.is_empty() || device.id.contains(unfit) {
            return Err(Unfit::Identifier(shortened(&device.id)));
        }
        if known.contains(&device.id) || !seen.insert(device.id.as_str()) {
            return Err(Unfit::Twice(shortened(&device.id)));
        }
    }
    Ok(found)
}

/// Whether [`report`] reads the same from both, so that a node's heartbeat needs no work.
pub fn same_report(one: &Node, other: &Node, vendors: &Vendors) -> bool {
    let kind = |node: &Node| {
        node.metadata
            .labels
            .as_ref()?
            .get(keys::INSTANCE_TYPE)
            .cloned()
    };
    one.metadata.name == other.metadata.name
        && kind(one) == kind(other)
        && vendors.iter().all(|row| {
            let keys = &row.keys;
            let read = keys
                .register
                .iter()
                .chain(&keys.score)
                .chain(&keys.handshake);
            read.chain(&keys.also_read)
                .all(|key| annotation(one, key) == annotation(other, key))
                && row.resources.iter().all(|(_, name)| {
                    one.status.allocatable.get(name) == other.status.allocatable.get(name)
                        && one.status.capacity.get(name) == other.status.capacity.get(name)
                })
        })
}
