//! The assigner's devices for readers: the page, `GET /devices`, the metrics. Nothing is changed here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube_api::assigner::{Claim, LABELLED, State, is_request};
use pages::assigner::{
    Assignment, DeviceRow, DeviceSource, DeviceState, Happening, Inventory, NodeProblem,
};
use placement::DeviceView;
use serde::Serialize;
use serde::ser::SerializeMap;
use tokio::sync::watch;

use super::Assigner;
use crate::ledger::{Held, Ledger};

/// The vendor whose GPUs can be requested by label.
const NVIDIA: &str = "NVIDIA";

impl DeviceSource for Assigner {
    fn inventory(&self) -> Arc<Inventory> {
        let synced = self.unready().is_none();
        let inventory = self.change(|ledger, _| inventory(ledger));
        Arc::new(Inventory {
            synced,
            ..inventory
        })
    }

    fn history(&self, uuid: &str) -> Option<Vec<Happening>> {
        let wall = self.0.claim_ledger.wall();
        self.change(|ledger, now| {
            let known = ledger.gpu(uuid).is_some() || ledger.past(uuid).next().is_some();
            known.then(|| {
                let past = ledger.past(uuid).rev();
                past.map(|past| Happening {
                    at_unix_ms: unix_ms(wall, now.saturating_sub(past.at)),
                    what: past.what,
                    namespace: past.namespace.clone(),
                    pod: past.pod.clone(),
                    reservation_id: past.reservation.clone(),
                })
                .collect()
            })
        })
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.claim_ledger.changes()
    }
}

fn unix_ms(wall: Timestamp, ago: Duration) -> i64 {
    let ago = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
    wall.as_millisecond().saturating_sub(ago)
}

fn inventory(ledger: &Ledger) -> Inventory {
    let mut devices: Vec<DeviceRow> = Vec::new();
    for node in ledger.cluster().nodes() {
        for device in node.devices() {
            if matches!(device.device().vendor.as_str(), NVIDIA | LABELLED) {
                devices.push(row(ledger, node.name(), device));
            }
        }
    }
    devices.sort_by(|a, b| (&a.node, &a.uuid).cmp(&(&b.node, &b.uuid)));
    let problems = ledger.label_problems().map(|(node, problem)| NodeProblem {
        node: node.to_owned(),
        problem: problem.to_owned(),
    });
    Inventory {
        version: ledger.claims_version(),
        synced: true,
        devices,
        problems: problems.collect(),
    }
}

fn row(ledger: &Ledger, node: &str, device: DeviceView<'_>) -> DeviceRow {
    let known = device.device();
    let labels = known.tags.iter().filter(|tag| is_request(tag));
    let mut labels: Vec<String> = labels.cloned().collect();
    labels.sort_unstable();
    let held = ledger.claim(device.id());
    let sharers = match held {
        // A claim in force takes what its pod does not.
        Some(held) if !held.lapsed => 0,
        _ => device.used().slots,
    };
    let state = match held {
        Some(held) if !held.lapsed && held.claim.state == State::Active => DeviceState::Assigned,
        Some(held) if !held.lapsed => DeviceState::Pending,
        _ if !known.healthy || known.cordoned => DeviceState::Out,
        _ if sharers > 0 => DeviceState::Shared,
        Some(_) => DeviceState::Expired,
        None => DeviceState::Available,
    };
    DeviceRow {
        uuid: device.id().to_owned(),
        node: node.to_owned(),
        labels,
        model: known.model.clone(),
        memory_bytes: known.memory_bytes,
        sharers,
        state,
        assignment: held.map(|held| assignment(ledger, held)),
    }
}

fn assignment(ledger: &Ledger, held: &Held) -> Assignment {
    let claim = &held.claim;
    let pod = ledger.claimant(claim);
    let active = claim.state == State::Active;
    let named = |claim: &Claim| (!claim.pod.is_empty()).then(|| claim.pod.clone());
    Assignment {
        namespace: claim.namespace.clone(),
        name: pod.map(|pod| pod.name.clone()).or_else(|| named(claim)),
        uid: if active {
            Some(claim.holder.clone())
        } else {
            pod.map(|pod| pod.uid.clone())
        },
        exists: pod.is_some(),
        reservation_id: claim.reservation.clone(),
        active,
        since_unix_ms: claim.acquired.as_millisecond(),
    }
}

/// The body of `GET /devices`: by UUID, with the reference's field names.
#[derive(Debug)]
pub struct DevicesPage(pub Arc<Inventory>);

#[derive(Serialize)]
struct Device<'a> {
    node: &'a str,
    labels: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    assignment: Option<Assigned<'a>>,
}

#[derive(Serialize)]
struct Assigned<'a> {
    #[serde(rename = "exists?")]
    exists: bool,
    namespace: &'a str,
    /// Null while proposed.
    uid: Option<&'a str>,
    /// Only when the pod exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(rename = "reservation-id")]
    reservation_id: &'a str,
    state: &'static str,
}

impl Serialize for DevicesPage {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let by_uuid: BTreeMap<&str, &DeviceRow> = self
            .0
            .devices
            .iter()
            .map(|row| (row.uuid.as_str(), row))
            .collect();
        let mut map = serializer.serialize_map(Some(by_uuid.len()))?;
        for (uuid, row) in by_uuid {
            let shown = row.state != DeviceState::Available && row.state != DeviceState::Expired;
            let assignment = row.assignment.as_ref().filter(|_| shown);
            let device = Device {
                node: &row.node,
                labels: &row.labels,
                assignment: assignment.map(|assignment| Assigned {
                    exists: assignment.exists,
                    namespace: &assignment.namespace,
                    uid: assignment.uid.as_deref().filter(|_| assignment.active),
                    name: assignment.name.as_deref().filter(|_| assignment.exists),
                    reservation_id: &assignment.reservation_id,
                    state: if assignment.active {
                        "active"
                    } else {
                        "proposal"
                    },
                }),
            };
            map.serialize_entry(uuid, &device)?;
        }
        map.end()
    }
}
