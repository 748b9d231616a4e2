//! Turns what is known of the node into the values of a ComputeNode. Values in, values out: never a clock, a
//! driver or an API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube_api::hcs::observed::{Observed, ObservedDevice, ObservedLink, ObservedPort};
use kube_api::hcs::{LinkType, Vendor};
use kube_api::object::Pod;
use kube_api::vendor::Vendors;
use kube_api::{allocation, keys};
use placement::{Cluster, Placement};

use crate::health::score::{RECOVERS, WELL};
use crate::node_gpus::{Health, Inventory, KnownGpu, Scores, Wires};

/// The parts of the Kubernetes node that matter here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSeen {
    /// Its uid: the objects are deleted with it.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// GPUs that an operator has taken out of new placements, by identifier.
    pub cordoned_gpus: Vec<String>,
}

impl From<Node> for NodeSeen {
    fn from(node: Node) -> Self {
        let annotations = node.metadata.annotations.unwrap_or_default();
        let gpus = annotations.get(keys::CORDON).map_or("", String::as_str);
        let gpus = gpus.split(',').map(str::trim);
        Self {
            uid: node.metadata.uid.unwrap_or_default(),
            labels: node.metadata.labels.unwrap_or_default(),
            cordoned: node
                .spec
                .and_then(|spec| spec.unschedulable)
                .unwrap_or(false),
            cordoned_gpus: gpus
                .filter(|gpu| !gpu.is_empty())
                .map(str::to_owned)
                .collect(),
        }
    }
}

/// The devices that a pod of the node holds, by its annotations; `None` if it holds none or is over.
pub fn held(pod: &Pod, node: &str, vendors: &Vendors) -> Option<Placement> {
    let over = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
    if over || pod.spec.node_name != node {
        return None;
    }
    // Annotations that cannot be read count as nothing, as they do for the scheduler, which writes an event for the
    // pod.
    let mut placement = allocation::read(pod, vendors).ok().flatten()?;
    placement.node = node.into();
    Some(placement)
}

/// The devices that pods hold, by uid.
pub type Held = BTreeMap<String, Placement>;

/// Memory that pods hold of each GPU, in bytes, counted as the scheduler counts it.
fn allocated(node: &str, inventory: &Inventory, held: &Held) -> BTreeMap<String, u64> {
    let mut cluster = Cluster::new();
    let devices = inventory.gpus.iter().map(|gpu| gpu.device.clone());
    let node_of = placement::Node {
        name: node.to_owned(),
        devices: devices.collect(),
        pairs: Vec::new(),
    };
    if let Err(error) = cluster.set_node(node_of) {
        tracing::warn!(%error, "the node's GPUs cannot be counted");
        return BTreeMap::new();
    }
    for (uid, placement) in held {
        cluster.reserve(placement::Pod::named("", uid), placement.clone());
    }
    let view = cluster.node(node);
    let gpus = view.iter().flat_map(placement::NodeView::devices);
    gpus.map(|gpu| (gpu.id().to_owned(), gpu.used().memory_bytes))
        .collect()
}

/// Model and speed of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Speed {
    /// The model as the exchange table has it.
    pub model: String,
    /// GFLOPS of 16 and of 32 bits.
    pub gflops: [u64; 2],
}

/// The exchange table: the entry of a model, by the driver's name for it and its memory in bytes.
pub type Speeds = Arc<dyn Fn(&str, u64) -> Option<Speed> + Send + Sync>;

/// The values of the node's GPUs.
pub fn observed(
    node: &str,
    seen: &NodeSeen,
    inventory: &Inventory,
    health: &Health,
    scores: &Scores,
    held: &Held,
    speed: &dyn Fn(&str, u64) -> Option<Speed>,
) -> Observed {
    let allocated = allocated(node, inventory, held);
    let index: BTreeMap<&str, u32> = inventory
        .gpus
        .iter()
        .map(|gpu| (gpu.device.id.as_str(), gpu.device.index))
        .collect();
    let devices = inventory.gpus.iter().map(|gpu| {
        let id = &gpu.device.id;
        let wires = inventory.wires.iter().find(|wires| wires.gpu == *id);
        let sick = sick(gpu, health);
        let speed = speed(&gpu.device.model, gpu.physical_bytes);
        let known = speed.unwrap_or_else(|| Speed {
            model: gpu.device.model.clone(),
            gflops: gpu.device.gflops,
        });
        ObservedDevice {
            index: gpu.device.index,
            uuid: id.clone(),
            model: known.model,
            memory_bytes: gpu.physical_bytes,
            promised_bytes: gpu.device.memory_bytes,
            allocated_bytes: allocated.get(id).copied().unwrap_or(0),
            gflops: known.gflops,
            bus_id: gpu.pci_bus_id.clone(),
            numa: gpu.device.numa,
            links: wires.map_or_else(Vec::new, |wires| links(wires, &index)),
            score: match (health.get(id), &sick) {
                (Some(sick), _) if !sick.recovers => 0,
                (Some(_), _) | (None, Some(_)) => RECOVERS,
                (None, None) => scores.get(id).copied().unwrap_or(WELL),
            },
            sick,
            cordoned: gpu.device.cordoned || seen.cordoned_gpus.contains(id),
        }
    });
    Observed {
        node: node.to_owned(),
        labels: seen.labels.clone(),
        vendor: Vendor::Nvidia,
        devices: devices.collect(),
        ports: ports(inventory),
        cordoned: seen.cordoned,
        problems: inventory.problems.clone(),
        registered: false,
    }
}

/// Why the GPU may not be used: the health check's word, else the inventory's.
fn sick(gpu: &KnownGpu, health: &Health) -> Option<String> {
    match health.get(&gpu.device.id) {
        Some(sick) => Some(sick.reason.clone()),
        None if gpu.device.healthy => None,
        None => Some("the driver does not answer for it, or it is in the wrong mode".to_owned()),
    }
}

/// Every other GPU is reached over PCIe, and by NVLink those that the wires name.
fn links(wires: &Wires, index: &BTreeMap<&str, u32>) -> Vec<ObservedLink> {
    let mut links = Vec::new();
    let version = version(&wires.nvlink_version);
    for (uuid, peer) in index.iter().filter(|(uuid, _)| **uuid != wires.gpu) {
        if let Some(count) = wires.nvlinks.get(*uuid) {
            links.push(ObservedLink {
                kind: LinkType::Nvlink,
                peer: *peer,
                count: *count,
                mb_s: wires.nvlink_mb_s.saturating_mul(*count),
                version,
            });
        }
        links.push(ObservedLink {
            kind: LinkType::Pcie,
            peer: *peer,
            count: 1,
            mb_s: wires.pcie_mb_s,
            version: (0, 0),
        });
    }
    links
}

/// `4.0` as two numbers; 0.0 for any other text.
fn version(text: &str) -> (u8, u8) {
    let numbers = text.split_once('.');
    numbers
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .unwrap_or((0, 0))
}

fn ports(inventory: &Inventory) -> Vec<ObservedPort> {
    let nics = inventory.nics.iter();
    nics.map(|nic| ObservedPort {
        name: if nic.port == 1 {
            nic.name.clone()
        } else {
            format!("{}/{}", nic.name, nic.port)
        },
        numa: nic.numa,
        mb_s: nic.mb_s,
    })
    .collect()
}
