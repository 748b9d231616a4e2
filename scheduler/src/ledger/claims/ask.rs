//! A request for whole GPUs by label: returns the GPUs, or a text that says why there are none. The placement engine
//! chooses.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube_api::assigner::{Claim, LABELLED};
use kube_api::hcs_quota::Counted;
use placement::{Among, Ask, Container, DeviceView, Memory, Placement, Request};

use super::{CLAIM_UID, Held, Past};
use crate::ledger::Ledger;

/// The vendor whose GPUs can be requested by label.
const NVIDIA: &str = "NVIDIA";

/// How many labels a refusal names.
const MOST_NAMED: usize = 12;

/// A request for GPUs by label.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimAsk {
    /// The reservation to make.
    pub reservation: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// The labels that each GPU must have.
    pub labels: BTreeSet<String>,
    /// The number of GPUs, all on one node.
    pub count: u32,
    /// The allowed nodes; none for all.
    pub nodes: Option<Vec<Arc<str>>>,
    /// The allowed GPUs; empty for all.
    pub only: BTreeSet<String>,
    /// The excluded GPUs.
    pub not: BTreeSet<String>,
    /// Whether an earlier choice for it failed. The ledger then releases the reservation's remains.
    pub anew: bool,
    /// How quotas count the pod.
    pub counted: Counted,
}

/// Why no GPU is given: the text after `no GPUs with requested labels free for pod NS/NAME: `.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotClaimed {
    /// The reservation belongs to another namespace.
    #[error("reservation {0} is another pod's")]
    Another(String),
    /// A label that no device has.
    #[error("no device has the label {label}; devices have {}", listed(.known))]
    UnknownLabel {
        /// The label.
        label: String,
        /// Labels that devices have.
        known: Vec<String>,
    },
    /// No device has all of the labels.
    #[error("no device has all of the labels {}", listed(.0))]
    NoDevice(Vec<String>),
    /// No node with such devices is open to the pod.
    #[error(
        "{devices} devices match, but none is on a node that the pod's own rules, the node's taints and its state let the pod run on"
    )]
    NoNode {
        /// How many devices match.
        devices: usize,
    },
    /// A ComputeQuota of the namespace does not allow it: why.
    #[error("{0}")]
    OverQuota(String),
    /// Some match, but too few on one node are free.
    #[error("{}", busy(*.asked, *.matching, *.reserved, *.used, *.out))]
    Busy {
        /// How many are asked for.
        asked: u32,
        /// How many devices match.
        matching: usize,
        /// How many of them are reserved by label.
        reserved: usize,
        /// How many of them other pods use.
        used: usize,
        /// How many of them are sick, cordoned or cut into MIG instances.
        out: usize,
    },
}

fn listed(labels: &[String]) -> String {
    let mut text = labels
        .iter()
        .take(MOST_NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if labels.len() > MOST_NAMED {
        write!(text, " and {} more", labels.len() - MOST_NAMED).unwrap_or_default();
    }
    if text.is_empty() {
        "none".to_owned()
    } else {
        text
    }
}

fn busy(asked: u32, matching: usize, reserved: usize, used: usize, out: usize) -> String {
    let free = matching.saturating_sub(reserved + used + out);
    let mut text = format!(
        "{matching} {} of which {reserved} reserved by label, {used} used by other pods, {out} out of service",
        if matching == 1 {
            "device matches,"
        } else {
            "devices match,"
        },
    );
    if free > 0 {
        write!(text, "; no node has {asked} that are free").unwrap_or_default();
    }
    text
}

impl Ledger {
    /// Chooses GPUs for the pod and reserves them here, as claims that are not written yet. An existing claim of the
    /// pod is returned again.
    ///
    /// # Errors
    ///
    /// Why there are none.
    pub fn propose(
        &mut self,
        ask: &ClaimAsk,
        wall: Timestamp,
        now: Duration,
    ) -> Result<Vec<Claim>, NotClaimed> {
        self.expire(now);
        let there = self.claimed_by(&ask.reservation);
        if !there.is_empty() {
            if there
                .iter()
                .any(|held| held.claim.namespace != ask.namespace)
            {
                return Err(NotClaimed::Another(ask.reservation.clone()));
            }
            let count = u32::try_from(there.len()).unwrap_or(u32::MAX);
            if !ask.anew && count == ask.count {
                return Ok(there.into_iter().map(|held| held.claim.clone()).collect());
            }
        }
        let chosen = self
            .choose(ask, NVIDIA)
            .or_else(|| self.choose(ask, LABELLED))
            .ok_or_else(|| self.why_not(ask))?;
        let granted = chosen.containers.iter().flat_map(|one| &one.grants);
        let gpus: Vec<Arc<str>> = granted.map(|grant| Arc::clone(&grant.device)).collect();
        if let Some(why) = self.claim_exceeds_compute_quota(ask, &gpus) {
            return Err(NotClaimed::OverQuota(why));
        }
        let mut claims = Vec::new();
        for gpu in gpus {
            let claim = Claim::proposed(&gpu, &ask.reservation, &ask.namespace, wall);
            let before = self.claims.by_gpu.get(&gpu);
            let over = before.map(|before| {
                let before = &before.claim;
                (before.reservation.clone(), before.version.clone())
            });
            self.note_past(&gpu, Past::proposed(&claim, now));
            let held = Held {
                claim: claim.clone(),
                since: now,
                lapsed: false,
                carried: false,
                counted: ask.counted.clone(),
                over,
            };
            self.claims.by_gpu.insert(Arc::clone(&gpu), held);
            self.hold_claim(&gpu);
            claims.push(claim);
        }
        Ok(claims)
    }

    fn choose(&self, ask: &ClaimAsk, vendor: &str) -> Option<Placement> {
        let mut asks = Ask::new(vendor, ask.count, Memory::Percent(100));
        asks.exclusive = true;
        asks.select.tags = ask.labels.iter().cloned().collect();
        asks.select.use_ids = ask.only.iter().cloned().collect();
        let bound_now = self.claims.guards.standing(self.latest);
        let bound_now = bound_now.map(|gpu| gpu.to_string());
        asks.select.nouse_ids = ask.not.iter().cloned().chain(bound_now).collect();
        // A GPU in MIG mode cannot be given to one pod as a whole.
        asks.select.mode = Some("hami-core,mps".to_owned());
        let request = Request {
            pod: placement::Pod {
                uid: format!("{CLAIM_UID}{}", ask.reservation),
                ..placement::Pod::default()
            },
            containers: vec![Container {
                asks: vec![asks],
                ..Container::default()
            }],
            ..Request::default()
        };
        let placed = match &ask.nodes {
            None => self.cluster.place(&request, Among::All),
            Some(nodes) => {
                let names: Vec<&str> = nodes.iter().map(|node| &**node).collect();
                self.cluster.place(&request, Among::Names(&names))
            }
        };
        placed.ok()
    }

    /// Why the pod gets none, from a look at all devices: a refusal is rare, and its reader wants the reason.
    fn why_not(&self, ask: &ClaimAsk) -> NotClaimed {
        let mut devices: Vec<(&str, DeviceView<'_>)> = Vec::new();
        for node in self.cluster.nodes() {
            let ours = node.devices().filter(|device| {
                let vendor = device.device().vendor.as_str();
                matches!(vendor, NVIDIA | LABELLED)
            });
            devices.extend(ours.map(|device| (node.name(), device)));
        }
        let mut known: BTreeSet<&str> = BTreeSet::new();
        for (_, device) in &devices {
            known.extend(device.device().tags.iter().map(String::as_str));
        }
        if let Some(label) = ask
            .labels
            .iter()
            .find(|label| !known.contains(label.as_str()))
        {
            return NotClaimed::UnknownLabel {
                label: label.clone(),
                known: known.into_iter().map(str::to_owned).collect(),
            };
        }
        let (mut matching, mut open, mut reserved, mut used, mut out) = (0, 0, 0, 0, 0);
        for (node, device) in devices {
            let known_device = device.device();
            if !ask
                .labels
                .iter()
                .all(|label| known_device.tags.contains(label))
            {
                continue;
            }
            matching += 1;
            let is_open = ask.nodes.as_ref();
            if !is_open.is_none_or(|nodes| nodes.iter().any(|name| **name == *node)) {
                continue;
            }
            open += 1;
            let claim = self.claims.by_gpu.get(device.id());
            let mut bound_now = self.claims.guards.standing(self.latest);
            let is_bound_now = bound_now.any(|gpu| **gpu == *device.id());
            let is_asked = ask.only.is_empty() || ask.only.contains(device.id());
            if !is_asked {
                open -= 1;
            } else if claim.is_some_and(|held| !held.lapsed) || ask.not.contains(device.id()) {
                reserved += 1;
            } else if device.used().slots > 0 || is_bound_now {
                used += 1;
            } else if !known_device.healthy || known_device.cordoned || known_device.is_mig() {
                out += 1;
            }
        }
        match (matching, open) {
            (0, _) => NotClaimed::NoDevice(ask.labels.iter().cloned().collect()),
            (_, 0) => NotClaimed::NoNode { devices: matching },
            _ => NotClaimed::Busy {
                asked: ask.count,
                matching: open,
                reserved,
                used,
                out,
            },
        }
    }
}
