//! Memory and compute of the node's GPUs in the Node's capacity, for programs that simulate a scheduler by what a node
//! reports (Cluster Autoscaler, Karpenter). Owns which amounts these are, and that they go when they are switched off.
//!
//! It never counts what pods hold: the reader of a capacity subtracts the requests of the node's pods by itself. Our own
//! kube-scheduler reads none of it (`ignoredByScheduler`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Api, Patch, PatchParams};
use kube_api::config::Nvidia;
use kube_api::keys;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::lease;
use super::pace::WritePace;
use super::rules::Rules;
use crate::follow::{Told, follow};
use crate::node_gpus::{Inventories, Inventory};

/// A node's amount of a resource that has no total (a priority): more than all pods can ask for together.
const BOUNDLESS: u64 = 2_147_483_647;
const MIB: u64 = 1 << 20;

/// Amounts by resource name.
type Amounts = BTreeMap<String, u64>;

/// The rules of this node, as they change. `None` until the configuration was read for the first time.
pub type RulesNow = watch::Receiver<Option<std::sync::Arc<Rules>>>;

/// The totals of a node by the names of its configuration. `None` if too little is known to say it; empty for a node
/// without GPUs.
///
/// A sick GPU counts like the others: a kubelet that restarts refuses running pods whose requests exceed the
/// capacity.
#[must_use]
pub fn totals(inventory: &Inventory, nvidia: &Nvidia) -> Option<Amounts> {
    if inventory.gpus.is_empty() {
        return inventory.problems.is_empty().then(Amounts::new);
    }
    let factor = u64::from(nvidia.memory_factor.max(1));
    let sum = |of: fn(&placement::Device, u64) -> u64| {
        let gpus = inventory.gpus.iter();
        gpus.fold(0_u64, |sum, gpu| {
            sum.saturating_add(of(&gpu.device, factor))
        })
    };
    let memory = sum(|gpu, factor| gpu.memory_bytes / MIB / factor);
    let cores = sum(|gpu, _| u64::from(gpu.cores));
    let percent = sum(|_, _| 100);
    let named = [
        (&nvidia.resource_memory_name, memory),
        (&nvidia.resource_memory_percentage_name, percent),
        (&nvidia.resource_core_name, cores),
        (&nvidia.resource_priority_name, BOUNDLESS),
    ];
    let named = named.into_iter().filter(|(name, _)| !name.is_empty());
    Some(named.map(|(name, amount)| (name.clone(), amount)).collect())
}

/// The Node's present capacity.
#[derive(Debug, Default, Clone, PartialEq)]
struct NodeCapacity {
    /// Resources that the agent has reported, by its note on the Node.
    noted: BTreeSet<String>,
    capacity: BTreeMap<String, Quantity>,
    allocatable: BTreeMap<String, Quantity>,
}

impl NodeCapacity {
    fn of(node: Node) -> Self {
        let noted = node
            .metadata
            .annotations
            .and_then(|mut all| all.remove(keys::REPORTED_CAPACITY))
            .unwrap_or_default();
        let noted = noted.split(',').filter(|name| !name.is_empty());
        let noted = noted.map(str::to_owned).collect();
        let status = node.status.unwrap_or_default();
        Self {
            noted,
            capacity: status.capacity.unwrap_or_default(),
            allocatable: status.allocatable.unwrap_or_default(),
        }
    }
}

/// The merge patch of the Node that makes its capacity right; `None` if it is right.
///
/// Allocatable is written, too: the kubelet copies it from the capacity, but up to 10 s later.
fn change(stands: &NodeCapacity, wanted: &Amounts) -> Option<Value> {
    let mut capacity = BTreeMap::new();
    let mut allocatable = BTreeMap::new();
    for (name, amount) in wanted {
        let right = Quantity(amount.to_string());
        for (stands, change) in [
            (&stands.capacity, &mut capacity),
            (&stands.allocatable, &mut allocatable),
        ] {
            if stands.get(name).and_then(amount_of) != Some(*amount) {
                change.insert(name.clone(), json!(right));
            }
        }
    }
    for name in stands
        .noted
        .iter()
        .filter(|name| !wanted.contains_key(*name))
    {
        for (stands, change) in [
            (&stands.capacity, &mut capacity),
            (&stands.allocatable, &mut allocatable),
        ] {
            if stands.contains_key(name) {
                change.insert(name.clone(), Value::Null);
            }
        }
    }
    let note: BTreeSet<String> = wanted.keys().cloned().collect();
    if capacity.is_empty() && allocatable.is_empty() && note == stands.noted {
        return None;
    }
    let note: Vec<String> = note.into_iter().collect();
    let note = (!note.is_empty()).then(|| note.join(","));
    Some(json!({
        "metadata": { "annotations": { keys::REPORTED_CAPACITY: note } },
        "status": { "capacity": capacity, "allocatable": allocatable },
    }))
}

/// A quantity as the API server writes it; it shortens round numbers (`64k`).
fn amount_of(quantity: &Quantity) -> Option<u64> {
    let amount = kube_api::quantity::Amount::parse(&quantity.0).ok()?;
    u64::try_from(amount.whole()?).ok()
}

async fn write(nodes: &Api<Node>, node: &str, change: &Value) -> kube::Result<Node> {
    let writing = PatchParams {
        field_manager: Some("vgpu-monitor".to_owned()),
        ..PatchParams::default()
    };
    let change = Patch::Merge(change);
    nodes.patch_status(node, &writing, &change).await
}

/// Keeps the Node's capacity as it should be, for ever.
pub async fn keep(
    client: kube::Client,
    node: String,
    pause: Duration,
    mut inventories: Inventories,
    mut rules: RulesNow,
) {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut watch = follow(client, nodes.clone(), &format!("metadata.name={node}"));
    let mut seen: Option<NodeCapacity> = None;
    let mut pace = WritePace::new(pause);
    loop {
        let inventory = inventories.borrow_and_update().clone();
        let rules_now = rules.borrow_and_update().clone();
        let wanted = inventory
            .zip(rules_now)
            .and_then(|(inventory, rules)| totals(&inventory, &rules.nvidia));
        let due = seen.as_ref().zip(wanted.as_ref());
        let due = due.and_then(|(seen, wanted)| change(seen, wanted));
        let at = pace.next();
        if let Some(due) = due.as_ref().filter(|_| at <= Instant::now()) {
            let written = lease::in_time(write(&nodes, &node, due)).await;
            pace.wrote(written.is_ok(), Instant::now(), lease::jitter());
            match written {
                Ok(written) => {
                    tracing::info!(
                        node,
                        ?wanted,
                        "reported memory and compute in the Node's capacity"
                    );
                    seen = Some(NodeCapacity::of(written));
                }
                Err(error) => {
                    tracing::warn!(node, %error, "cannot report memory and compute in the Node's capacity; tried again");
                }
            }
            continue;
        }
        tokio::select! {
            told = watch.recv() => match told {
                Some(Told::All(nodes)) => seen = nodes.into_iter().next().map(NodeCapacity::of),
                Some(Told::Put(node)) => seen = Some(NodeCapacity::of(node)),
                Some(Told::Gone(_)) => seen = None,
                Some(Told::Up) => {}
                Some(Told::Down(why)) => tracing::warn!(why, "cannot watch the own node"),
                None => return,
            },
            changed = inventories.changed() => if changed.is_err() { return },
            changed = rules.changed() => if changed.is_err() { return },
            () = sleep_until(at), if due.is_some() => {}
        }
    }
}

/// Takes back what an agent has reported, if any has: it is switched off now. Tries until it is done.
pub async fn take_back(client: kube::Client, node: String, pause: Duration) {
    let nodes: Api<Node> = Api::all(client);
    let mut pause = pause;
    loop {
        match lease::in_time(taken_back(&nodes, &node)).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(node, %error, "cannot take memory and compute out of the Node's capacity; tried again");
            }
        }
        sleep(pause.mul_f64(1.0 + lease::jitter() / 2.0)).await;
        pause = (pause * 2).min(Duration::from_secs(60));
    }
}

/// Takes back what an agent has reported on the Node, if any has.
///
/// # Errors
/// As the API server has them; a node that does not exist is none.
pub(super) async fn taken_back(nodes: &Api<Node>, node: &str) -> kube::Result<()> {
    let Some(stands) = nodes.get_opt(node).await? else {
        return Ok(());
    };
    let stands = NodeCapacity::of(stands);
    if stands.noted.is_empty() {
        return Ok(());
    }
    match change(&stands, &Amounts::new()) {
        Some(change) => write(nodes, node, &change).await.map(|_| ()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_gpus::KnownGpu;

    fn nvidia() -> Nvidia {
        let config = kube_api::config::DeviceConfig::standard();
        config.nvidia.unwrap()
    }

    fn inventory(gpus: &[(u64, u32, bool)]) -> Inventory {
        let gpu = |(index, (mib, cores, healthy)): (usize, &(u64, u32, bool))| {
            let id = format!("GPU-{index}");
            let mut device = placement::Device::new("NVIDIA", &id, "NVIDIA A", mib << 20);
            device.cores = *cores;
            device.healthy = *healthy;
            KnownGpu {
                physical_bytes: device.memory_bytes,
                device,
                pci_bus_id: String::new(),
                minor: 0,
            }
        };
        Inventory {
            gpus: gpus.iter().enumerate().map(gpu).collect(),
            ..Inventory::default()
        }
    }

    fn standing(noted: &str, capacity: Value, allocatable: Value) -> NodeCapacity {
        let node = json!({
            "metadata": { "annotations": { keys::REPORTED_CAPACITY: noted } },
            "status": { "capacity": capacity, "allocatable": allocatable },
        });
        NodeCapacity::of(serde_json::from_value(node).unwrap())
    }

    fn amounts(of: &[(&str, u64)]) -> Amounts {
        let own = |(name, amount): &(&str, u64)| ((*name).to_owned(), *amount);
        of.iter().map(own).collect()
    }

    #[test]
    fn totals_are_of_all_gpus_also_of_sick_ones() {
        let two = inventory(&[(16_384, 100, true), (8_192, 150, false)]);
        assert_eq!(
            totals(&two, &nvidia()),
            Some(amounts(&[
                ("nvidia.com/gpumem", 24_576),
                ("nvidia.com/gpumem-percentage", 200),
                ("nvidia.com/gpucores", 250),
                ("nvidia.com/priority", BOUNDLESS),
            ]))
        );
    }

    /// The node with which `scripts/test autoscaler` asks the autoscalers' simulations.
    #[test]
    fn recorded_node_of_the_autoscaler_tests_is_what_is_reported() {
        let vectors = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/vectors/autoscaler.json"
        );
        let vectors = std::fs::read_to_string(vectors).unwrap();
        let vectors: Value = serde_json::from_str(&vectors).unwrap();
        let mut recorded: BTreeMap<String, String> =
            serde_json::from_value(vectors["node"].clone()).unwrap();
        let two = inventory(&[(81_920, 100, true), (81_920, 100, true)]);
        // The slots are the kubelet's.
        assert_eq!(recorded.remove("nvidia.com/gpu").unwrap(), "20");
        let totals = totals(&two, &nvidia()).unwrap().into_iter();
        let totals: BTreeMap<_, _> = totals.map(|(name, it)| (name, it.to_string())).collect();
        assert_eq!(totals, recorded);
    }

    #[test]
    fn totals_follow_the_names_and_the_unit_of_the_configuration() {
        let named = Nvidia {
            resource_memory_name: "example.com/mem".to_owned(),
            memory_factor: 1024,
            resource_memory_percentage_name: String::new(),
            resource_core_name: String::new(),
            resource_priority_name: String::new(),
            ..nvidia()
        };
        let expected = amounts(&[("example.com/mem", 15 + 8)]);
        let two = inventory(&[(16_383, 100, true), (8_192, 100, true)]);
        assert_eq!(totals(&two, &named), Some(expected));
    }

    #[test]
    fn unknown_gpus_keep_what_is_reported_and_no_gpus_remove_it() {
        let mut none = inventory(&[]);
        assert_eq!(totals(&none, &nvidia()), Some(Amounts::new()));
        none.problems.push("the driver does not answer".to_owned());
        assert_eq!(totals(&none, &nvidia()), None);
    }

    #[test]
    fn only_wrong_amounts_are_written() {
        let wanted = amounts(&[("a/mem", 64_000), ("a/cores", 100)]);
        let there = json!({ "a/mem": "64k", "a/cores": "100", "cpu": "8" });
        let right = standing("a/cores,a/mem", there.clone(), there);
        assert_eq!(change(&right, &wanted), None);

        // A kubelet whose record of devices is lost sets all to 0.
        let zero = json!({ "a/mem": "0", "a/cores": "100" });
        let reset = standing("a/cores,a/mem", zero.clone(), zero);
        assert_eq!(
            change(&reset, &wanted).unwrap()["status"],
            json!({ "capacity": { "a/mem": "64000" }, "allocatable": { "a/mem": "64000" } })
        );
    }

    #[test]
    fn only_what_was_reported_is_removed() {
        let there = json!({ "a/mem": "1", "b/mem": "2", "cpu": "8" });
        let stands = standing("a/mem,gone", there.clone(), there);
        assert_eq!(
            change(&stands, &Amounts::new()).unwrap(),
            json!({
                "metadata": { "annotations": { keys::REPORTED_CAPACITY: null } },
                "status": { "capacity": { "a/mem": null }, "allocatable": { "a/mem": null } },
            })
        );
    }
}
