//! Keeps the lists that the kubelet watches: rebuilt when GPUs, their health or the pods that hold slots
//! change. Never decides which GPU is sick.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::allotments::Allotment;
use super::pods::Pods;
use super::slots::{self, Slot, Slots};
use super::{Plugin, PluginState};
use crate::durable;
use crate::node_gpus::{Health, Inventory};
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
    if are_news(&known, last) {
        *last = known;
        remember(path.to_owned(), last.clone()).await;
    }
    refresh(plugin, last).await;
}

type SlotCounts = BTreeMap<String, usize>;

/// Whether these counts are to be saved. Before the driver has spoken there are none, and the saved ones stay.
fn are_news(known: &SlotCounts, last: &SlotCounts) -> bool {
    !known.is_empty() && known != last
}

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
    counts_in(&std::fs::read(path).unwrap_or_default())
}

/// The counts in a file; none in a damaged one.
fn counts_in(text: &[u8]) -> SlotCounts {
    serde_json::from_slice(text).unwrap_or_default()
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

/// The slots to report: as the GPUs have them; until these are known, as many as when the agent last ran. `None`: the
/// agent has never seen the resource.
fn slots_of(
    inventory: Option<&Inventory>,
    health: &Health,
    vendor: &str,
    last: Option<usize>,
) -> Option<Slots> {
    match inventory {
        Some(inventory) => Some(slots::count(inventory, health, vendor)),
        None => last.map(|all| Slots { all, well: all }),
    }
}

/// Whether it matters which pod holds which slot: while slots are missing, or after there were more of them.
fn are_missing(slots: Slots, of_resource: &[&Allotment]) -> bool {
    let is_beyond = |id: &String| {
        id.strip_prefix("vgpu-")
            .and_then(|number| number.parse::<usize>().ok())
            .is_none_or(|number| number >= slots.all)
    };
    let mut allotted = of_resource.iter().flat_map(|lot| &lot.ids);
    slots.well < slots.all || allotted.any(is_beyond)
}

/// The slots that pods hold, by the kubelet's list of pods and by what the agent remembers. `pods` is `None` where the
/// kubelet does not answer: then everything that is remembered is taken.
fn taken_slots(
    pods: Option<&Pods>,
    resource: &str,
    of_resource: &[&Allotment],
) -> BTreeSet<String> {
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for pod in pods
        .map(|pods| pods.holders(resource))
        .into_iter()
        .flatten()
    {
        taken.extend(pod.slots.into_values().flatten());
    }
    for lot in of_resource {
        let lives = match (pods, &lot.recipient) {
            (Some(pods), Some(recipient)) => pods.has(&recipient.namespace, &recipient.pod),
            // No container is known to have it yet, or none can be asked for.
            _ => true,
        };
        if lives {
            taken.extend(lot.ids.iter().cloned());
        }
    }
    taken
}

/// The list as the kubelet reads it. `numa`: the node of all GPUs, if the agent reports it.
fn as_response(listed: Vec<Slot>, numa: Option<u32>) -> ListAndWatchResponse {
    let topology = numa.map(|numa| TopologyInfo {
        nodes: vec![NumaNode { id: numa.into() }],
    });
    let devices = listed.into_iter().map(|slot| Device {
        id: slot.id,
        health: if slot.well { "Healthy" } else { "Unhealthy" }.to_owned(),
        topology: topology.clone(),
    });
    ListAndWatchResponse {
        devices: devices.collect(),
    }
}

async fn refresh(plugin: &Plugin, last: &SlotCounts) {
    let inventory = plugin.0.parts.inventories.borrow().clone();
    let health = plugin.0.parts.healths.borrow().clone();
    for served in &plugin.0.settings.served {
        let Some(list) = plugin.0.lists.get(&served.resource) else {
            continue;
        };
        let before = last.get(&served.resource).copied();
        let counted = slots_of(inventory.as_deref(), &health, &served.vendor, before);
        let Some(slots) = counted else {
            continue;
        };
        let all = plugin.0.store.all();
        let of_resource: Vec<&Allotment> = all
            .iter()
            .filter(|lot| lot.resource == served.resource)
            .collect();
        let (mut taken, mut sick) = (BTreeSet::new(), BTreeSet::new());
        if are_missing(slots, &of_resource) {
            // A kubelet that has just begun does not answer, and reads this very list.
            let pods = plugin.0.lister.pods().await.ok();
            taken = taken_slots(pods.as_deref(), &served.resource, &of_resource);
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
        let response = as_response(listed, numa);
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::node_gpus::Sick;
    use crate::plugin::allotments::Recipient;
    use crate::proto::pod_resources::{
        ContainerDevices, ContainerResources, ListPodResourcesResponse, PodResources,
    };

    fn sick(gpu: &str) -> Health {
        let sick = Sick {
            reason: "lost".to_owned(),
            since: SystemTime::UNIX_EPOCH,
            recovers: false,
        };
        Health::from([(gpu.to_owned(), sick)])
    }

    fn lot(order: u64, ids: &[&str], pod: Option<&str>) -> Allotment {
        let holder = |pod: &str| Recipient {
            uid: format!("u-{pod}"),
            namespace: "ml".to_owned(),
            pod: pod.to_owned(),
            container: "main".to_owned(),
            kind: "app".to_owned(),
            vendor: "NVIDIA".to_owned(),
            shares: Vec::new(),
            priority: 0,
            policy: "default".to_owned(),
            workload: supervisor::instance::Workload::default(),
            traceparent: None,
            told: false,
        };
        Allotment {
            order,
            name: format!("v{order}"),
            resource: "gpu".to_owned(),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            recipient: pod.map(holder),
        }
    }

    /// The kubelet's list, where each pod holds these slots of a resource.
    fn pods(held: &[(&str, &str, &[&str])]) -> Pods {
        let pod = |(name, resource, ids): &(&str, &str, &[&str])| PodResources {
            namespace: "ml".to_owned(),
            name: (*name).to_owned(),
            containers: vec![ContainerResources {
                name: "main".to_owned(),
                devices: vec![ContainerDevices {
                    resource_name: (*resource).to_owned(),
                    device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
                }],
            }],
        };
        Pods::of(ListPodResourcesResponse {
            pod_resources: held.iter().map(pod).collect(),
        })
    }

    #[test]
    fn slots_are_the_gpus_or_until_these_are_known_the_last_ones() {
        let (seen, none) = (Inventory::of_gpus(2), Inventory::of_gpus(0));
        let of = |inventory: Option<&Inventory>, health: &Health, last| {
            slots_of(inventory, health, "NVIDIA", last)
        };
        let well = Health::new();
        let slots = |all, well| Some(Slots { all, well });
        assert_eq!(of(Some(&seen), &well, None), slots(20, 20));
        assert_eq!(of(Some(&seen), &sick("GPU-1"), Some(7)), slots(20, 10));
        // An empty list of GPUs is an answer.
        assert_eq!(of(Some(&none), &well, Some(7)), slots(0, 0));
        assert_eq!(of(None, &sick("GPU-1"), Some(7)), slots(7, 7));
        assert_eq!(of(None, &well, None), None);
    }

    #[test]
    fn holders_matter_while_slots_are_missing() {
        let [held, far, odd] = ["vgpu-3", "vgpu-4", "gpu-0"].map(|id| lot(1, &[id], None));
        let check = |all, well, lots: &[&Allotment]| are_missing(Slots { all, well }, lots);
        assert!(!check(4, 4, &[]));
        assert!(check(4, 3, &[]));
        assert!(!check(4, 4, &[&held]));
        assert!(check(4, 4, &[&held, &far]), "there were five");
        assert!(check(4, 4, &[&odd]), "a name of another release");
    }

    #[test]
    fn slots_of_pods_that_live_are_taken() {
        let lots = [
            lot(1, &["vgpu-0"], Some("lives")),
            lot(2, &["vgpu-1"], Some("gone")),
            lot(3, &["vgpu-2"], None),
        ];
        let lots: Vec<&Allotment> = lots.iter().collect();
        let known = pods(&[
            ("lives", "gpu", &["vgpu-5"]),
            ("other", "disk", &["vgpu-6"]),
        ]);
        let taken = |pods, lots| Vec::from_iter(taken_slots(pods, "gpu", lots));

        assert_eq!(taken(Some(&known), &lots), ["vgpu-0", "vgpu-2", "vgpu-5"]);
        assert_eq!(taken(Some(&known), &[]), ["vgpu-5"]);
    }

    #[test]
    fn all_that_is_remembered_is_taken_while_the_kubelet_is_silent() {
        let lots = [
            lot(1, &["vgpu-0", "vgpu-1"], Some("gone")),
            lot(2, &["vgpu-2"], None),
        ];
        let lots: Vec<&Allotment> = lots.iter().collect();

        let taken = Vec::from_iter(taken_slots(None, "gpu", &lots));

        assert_eq!(taken, ["vgpu-0", "vgpu-1", "vgpu-2"]);
    }

    #[test]
    fn kubelet_reads_health_and_numa_node_of_each_slot() {
        let slot = |id: &str, well| Slot {
            id: id.to_owned(),
            well,
        };
        let listed = || vec![slot("vgpu-0", true), slot("vgpu-1", false)];
        let said = |numa| -> Vec<(String, String, Option<Vec<i64>>)> {
            let devices = as_response(listed(), numa).devices.into_iter();
            devices
                .map(|device| {
                    let nodes = device.topology.map(|it| it.nodes);
                    let nodes = nodes.map(|nodes| nodes.iter().map(|node| node.id).collect());
                    (device.id, device.health, nodes)
                })
                .collect()
        };
        let row = |id: &str, health: &str, nodes| (id.to_owned(), health.to_owned(), nodes);
        assert_eq!(
            said(None),
            [
                row("vgpu-0", "Healthy", None),
                row("vgpu-1", "Unhealthy", None)
            ]
        );
        assert_eq!(
            said(Some(1)),
            [
                row("vgpu-0", "Healthy", Some(vec![1])),
                row("vgpu-1", "Unhealthy", Some(vec![1])),
            ]
        );
    }

    #[test]
    fn counts_are_saved_once_the_driver_has_spoken() {
        let counts = |slots: usize| SlotCounts::from([("gpu".to_owned(), slots)]);
        assert!(are_news(&counts(4), &SlotCounts::new()));
        assert!(are_news(&counts(4), &counts(5)));
        assert!(are_news(&counts(0), &counts(5)), "no GPU is news, too");
        assert!(!are_news(&counts(4), &counts(4)));
        assert!(!are_news(&SlotCounts::new(), &counts(4)));
    }

    #[test]
    fn damaged_file_holds_no_counts() {
        assert_eq!(
            counts_in(br#"{"gpu": 4}"#),
            SlotCounts::from([("gpu".to_owned(), 4)])
        );
        for text in ["", "{", "[]", r#"{"gpu": -1}"#, r#"{"gpu": "4"}"#] {
            assert_eq!(counts_in(text.as_bytes()), SlotCounts::new(), "{text}");
        }
    }
}
