//! The DRA driver of this node: GPUs that Kubernetes itself shares by ResourceClaims (consumable capacity), with the
//! limits that the scheduler charged. Never chooses a GPU, and never serves a node beside the device plugin.
//!
//! ```text
//! inventory, health ─► slices ─► publish: ResourceSlices of this node's pool ─► kube-scheduler allocates a claim
//! kubelet NodePrepareResources ─► API server: the claim, its pods ─► claim: shares, and which containers use which
//!                              ─► delivery: limits, region, library, CDI file ─► checkpoint ─► answer
//! kubelet NodeUnprepareResources ─► all of that goes, unless a process still uses it
//! ```
//!
//! A claim's parts have one directory each, like a container of the device plugin: the exporter, the arbiter and
//! `vgpu top` see no difference.

pub mod args;

pub mod checkpoint;

pub mod claim;

pub mod command;

pub mod facts;

pub mod partitions;

pub mod prepare;

pub mod publish;

pub mod service;

pub mod slices;

mod api;

mod claim_turns;

mod leftovers;

mod metrics;

mod sharers;

mod sockets;

use crate::delivery::Name;

pub use kube_api::shares::{CORES, DRIVER, MEMORY, SHARES};
pub use metrics::Metrics;
pub use sockets::Sockets;

/// How the directories of claims are named.
const CLAIM: &str = "claim-";

/// The device's name of a GPU: its UUID, as a DNS label.
#[must_use]
pub fn device_name(uuid: &str) -> String {
    let plain = |char: char| {
        if char.is_ascii_alphanumeric() {
            char
        } else {
            '-'
        }
    };
    let lower = uuid.to_ascii_lowercase();
    let label: String = lower.chars().map(plain).take(63).collect();
    label.trim_matches('-').to_owned()
}

/// The name of a claim's part: of the first by the uid alone, of the others by their number, too.
#[must_use]
pub fn part_name(uid: &str, at: usize) -> Name {
    Name(match at {
        0 => format!("{CLAIM}{uid}"),
        at => format!("{CLAIM}{uid}-{at}"),
    })
}

/// Which of these names are parts of the claim.
fn parts_of(uid: &str, names: Vec<Name>) -> Vec<Name> {
    let first = part_name(uid, 0);
    let is_part = |name: &Name| {
        let rest = name.0.strip_prefix(&first.0);
        rest.is_some_and(|rest| {
            let number = rest.strip_prefix('-');
            rest.is_empty() || number.is_some_and(|it| it.parse::<usize>().is_ok())
        })
    };
    names.into_iter().filter(is_part).collect()
}

/// Whether a directory is a claim's.
fn is_claims(name: &Name) -> bool {
    name.0.starts_with(CLAIM)
}

#[cfg(test)]
mod tests;
