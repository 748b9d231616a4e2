//! The assigner's page over devices in memory, to try out: `devices [ADDRESS] [NODES]`. Each node (2 by default) has
//! eight devices, half of them assigned. `POST /try/UUID/STATE` makes a device available, pending, assigned or expired.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use pages::assigner::{
    Assignment, DeviceRow, DeviceSource, DeviceState, Happened, Happening, Inventory, router,
};
use parking_lot::Mutex;
use tokio::sync::watch;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Devices {
    inventory: Mutex<Arc<Inventory>>,
    histories: Mutex<HashMap<String, Vec<Happening>>>,
    changes: watch::Sender<u64>,
}

impl DeviceSource for Devices {
    fn inventory(&self) -> Arc<Inventory> {
        self.inventory.lock().clone()
    }

    fn history(&self, uuid: &str) -> Option<Vec<Happening>> {
        self.histories.lock().get(uuid).cloned()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(0))
}

fn assignment(device: &str, active: bool) -> Assignment {
    Assignment {
        namespace: "ml".into(),
        name: active.then(|| format!("train-{}", device.to_lowercase())),
        uid: active.then(|| format!("uid-of-{device}")),
        exists: active,
        reservation_id: format!("reservation-of-{device}"),
        active,
        since_unix_ms: now(),
    }
}

impl Devices {
    fn new(nodes: usize) -> Self {
        let mut devices = Vec::new();
        for node in 0..nodes {
            for index in 0..8 {
                let uuid = format!("GPU-{node:04}-{index}");
                let assigned = index % 2 == 1;
                let kind = if node % 2 == 0 { "a100" } else { "l40s" };
                devices.push(DeviceRow {
                    node: format!("node-{node:04}"),
                    labels: vec![
                        format!("fudo.org/gpu.{kind}"),
                        format!("fudo.org/gpu.slot-{index}"),
                    ],
                    model: format!("NVIDIA {}", kind.to_uppercase()),
                    memory_bytes: 48 << 30,
                    sharers: 0,
                    state: if assigned {
                        DeviceState::Assigned
                    } else {
                        DeviceState::Available
                    },
                    assignment: assigned.then(|| assignment(&uuid, true)),
                    uuid,
                });
            }
        }
        let inventory = Inventory {
            version: 1,
            synced: true,
            devices,
            ..Inventory::default()
        };
        Self {
            inventory: Mutex::new(Arc::new(inventory)),
            histories: Mutex::new(HashMap::new()),
            changes: watch::Sender::new(1),
        }
    }

    fn change(&self, uuid: &str, word: &str) -> StatusCode {
        let (state, held, what) = match word {
            "available" => (DeviceState::Available, None, Happened::Released),
            "pending" => (DeviceState::Pending, Some(false), Happened::Proposed),
            "assigned" => (DeviceState::Assigned, Some(true), Happened::Finalized),
            "expired" => (DeviceState::Expired, Some(false), Happened::Expired),
            _ => return StatusCode::BAD_REQUEST,
        };
        let mut kept = self.inventory.lock();
        let mut next = Inventory::clone(&kept);
        let Some(device) = next.devices.iter_mut().find(|device| device.uuid == uuid) else {
            return StatusCode::NOT_FOUND;
        };
        device.state = state;
        device.assignment = held.map(|active| assignment(uuid, active));
        let happening = Happening {
            at_unix_ms: now(),
            what,
            namespace: "ml".into(),
            pod: match what {
                Happened::Proposed => String::new(),
                _ => format!("train-{}", uuid.to_lowercase()),
            },
            reservation_id: format!("reservation-of-{uuid}"),
        };
        let mut histories = self.histories.lock();
        histories
            .entry(uuid.to_owned())
            .or_default()
            .insert(0, happening);
        next.version += 1;
        self.changes.send_replace(next.version);
        *kept = Arc::new(next);
        StatusCode::NO_CONTENT
    }
}

async fn attempt(
    State(devices): State<Arc<Devices>>,
    Path((uuid, state)): Path<(String, String)>,
) -> StatusCode {
    devices.change(&uuid, &state)
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let nodes = arguments.next().map_or(Ok(2), |nodes| nodes.parse())?;
    let devices = Arc::new(Devices::new(nodes));
    let tries = axum::Router::new()
        .route("/try/{uuid}/{state}", post(attempt))
        .with_state(devices.clone());
    let listener = tokio::net::TcpListener::bind(address).await?;
    axum::serve(listener, router(devices).merge(tries)).await?;
    Ok(())
}
