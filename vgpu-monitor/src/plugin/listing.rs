//! Keeps the lists that the kubelet watches: rebuilt when GPUs, their health or the pods that hold slots
//! change. Never decides which GPU is sick.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::slots::{self, Slots};
use super::{Plugin, PluginState};
use crate::durable;
use crate::proto::device_plugin::{Device, ListAndWatchResponse, NumaNode, TopologyInfo};

/// A pod can go without a notification.
const LOOK: Duration = Duration::from_secs(10);
/// Changes within this time are reported together.
const TOGETHER: Duration = Duration::from_millis(50);

/// Runs as long as the plugin lives.
pub(super) async fn run(shared: Weak<PluginState>) {
    let Some(plugin) = shared.upgrade().map(Plugin) else {
        return;
    };
    let mut inventories = plugin.0.parts.inventories.clone();
    let mut healths = plugin.0.parts.healths.clone();
    let path = plugin.0.settings.state.join("slots.json");
    let mut last = last_known(&path);
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    take_in(&plugin, &path, &mut last).await;
    drop(plugin);
    loop {
        let Some(plugin) = shared.upgrade().map(Plugin) else {
            return;
        };
        tokio::select! {
            changed = inventories.changed() => {
                if changed.is_err() {
                    // The inventory thread has ended: the agent stops.
                    sleep(LOOK).await;
                }
            }
            changed = healths.changed() => {
                if changed.is_err() {
                    sleep(LOOK).await;
                }
            }
            () = plugin.0.changed.notified() => sleep(TOGETHER).await,
            _ = look.tick() => {
                let store = Arc::clone(&plugin.0.store);
                drop(spawn_blocking(move || store.catch_up()).await);
            }
        }
        take_in(&plugin, &path, &mut last).await;
    }
}

/// Slots are reported to the kubelet only after they are saved, so an agent that ends right after the report knows
/// them when it runs again.
async fn take_in(plugin: &Plugin, path: &Path, last: &mut SlotCounts) {
    let known = count(plugin);
    if !known.is_empty() && known != *last {
        *last = known;
        remember(path.to_owned(), last.clone()).await;
    }
    refresh(plugin, last).await;
}

type SlotCounts = BTreeMap<String, usize>;

/// The slots of each resource as the driver has them; empty until it has said so.
fn count(plugin: &Plugin) -> SlotCounts {
    let Some(inventory) = plugin.0.parts.inventories.borrow().clone() else {
        return SlotCounts::new();
    };
    let health = plugin.0.parts.healths.borrow().clone();
    let served = plugin.0.settings.served.iter();
    served
        .map(|served| {
            let slots = slots::count(&inventory, &health, &served.vendor);
            (served.resource.clone(), slots.all)
        })
        .collect()
}

/// The slots when the agent last ran: a kubelet that knows no slots kills pods that hold some, and a driver
/// may take half a minute to list its GPUs.
fn last_known(path: &PathBuf) -> SlotCounts {
    let text = std::fs::read(path).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

async fn remember(path: PathBuf, known: SlotCounts) {
    let written = spawn_blocking(move || {
        let text = serde_json::to_string(&known).map_err(std::io::Error::other)?;
        durable::replace(&path, text.as_bytes(), 0o644)
    });
    if let Ok(Err(error)) = written.await {
        tracing::warn!(%error, "cannot save the number of slots");
    }
}

async fn refresh(plugin: &Plugin, last: &SlotCounts) {
    let inventory = plugin.0.parts.inventories.borrow().clone();
    let health = plugin.0.parts.healths.borrow().clone();
    for served in &plugin.0.settings.served {
        let Some(list) = plugin.0.lists.get(&served.resource) else {
            continue;
        };
        let slots = match &inventory {
            Some(inventory) => slots::count(inventory, &health, &served.vendor),
            None => match last.get(&served.resource) {
                Some(all) => Slots {
                    all: *all,
                    well: *all,
                },
                None => continue,
            },
        };
        let all = plugin.0.store.all();
        // It matters which pod holds which slot only while slots are missing.
        let mut taken: BTreeSet<String> = BTreeSet::new();
        let mut sick = BTreeSet::new();
        let beyond = |id: &String| {
            id.strip_prefix("vgpu-")
                .and_then(|number| number.parse::<usize>().ok())
                .is_none_or(|number| number >= slots.all)
        };
        let of_resource = all.iter().filter(|lot| lot.resource == served.resource);
        let missing =
            slots.well < slots.all || of_resource.clone().flat_map(|lot| &lot.ids).any(beyond);
        if missing {
            // A kubelet that has just begun does not answer, and reads this very list: then all that is remembered is
            // taken.
            let pods = plugin.0.lister.pods().await.ok();
            if let Some(pods) = &pods {
                let held = pods.holders(&served.resource).into_iter();
                taken.extend(held.flat_map(|pod| pod.slots.into_values().flatten()));
            }
            for lot in of_resource {
                let lives = pods.as_ref().is_none_or(|pods| {
                    let recipient = lot.recipient.as_ref();
                    recipient.is_none_or(|recipient| pods.has(&recipient.namespace, &recipient.pod))
                });
                if lives {
                    taken.extend(lot.ids.iter().cloned());
                }
            }
            if let Some(inventory) = &inventory {
                sick = slots::on_sick_gpus(&all, &served.resource, inventory, &health);
            }
        }
        let listed = slots::list(slots, &taken, &sick);
        let well = listed.iter().filter(|slot| slot.well).count();
        let metrics = &plugin.0.parts.metrics;
        metrics.slots(&served.resource, well, listed.len() - well);
        // The other vendors' devices are not in the inventory.
        let numa = inventory.as_ref().and_then(|inventory| inventory.numa);
        let topology = numa.map(|numa| TopologyInfo {
            nodes: vec![NumaNode { id: numa.into() }],
        });
        let devices = listed.into_iter().map(|slot| Device {
            id: slot.id,
            health: if slot.well { "Healthy" } else { "Unhealthy" }.to_owned(),
            topology: topology.clone(),
        });
        let response = ListAndWatchResponse {
            devices: devices.collect(),
        };
        list.send_if_modified(|known| {
            if known.as_ref().is_some_and(|known| **known == response) {
                return false;
            }
            tracing::info!(
                resource = served.resource,
                slots = response.devices.len(),
                well,
                "device list for the kubelet changed"
            );
            *known = Some(Arc::new(response));
            true
        });
    }
}
