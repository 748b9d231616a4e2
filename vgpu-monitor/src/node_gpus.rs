//! The values that the parts of the agent exchange about the node's GPUs. Nothing here asks a driver or the API
//! server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// One GPU as the agent knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownGpu {
    /// The GPU as it is registered: what is promised of it, after `deviceSplitCount` and the scalings. Its
    /// `healthy` is the driver's view; [`Sick`] is added to that.
    pub device: placement::Device,
    /// Its memory as the driver has it, in bytes.
    pub physical_bytes: u64,
    /// PCI address, as `00000000:65:00.0`.
    pub pci_bus_id: String,
    /// The number in `/dev/nvidiaN`.
    pub minor: u32,
}

/// The GPUs of the node at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// By index.
    pub gpus: Vec<KnownGpu>,
    /// The NUMA node of all of them, if there is one and the agent reports it to the kubelet.
    pub numa: Option<u32>,
    /// How well pairs of them reach each other, both ways.
    pub pairs: Vec<placement::PairScore>,
    /// By which wires each GPU reaches others.
    pub wires: Vec<Wires>,
    /// Network cards of this node that reach other nodes' memory (RoCE).
    pub nics: Vec<Nic>,
    /// Readings that failed, for events and the log.
    pub problems: Vec<String>,
}

#[cfg(test)]
impl Inventory {
    /// The GPUs `GPU-0`, `GPU-1` and so on, each with 16 GiB.
    pub(crate) fn of_gpus(gpus: u32) -> Self {
        let gpu = |index: u32| {
            let id = format!("GPU-{index}");
            let mut device = placement::Device::new("NVIDIA", &id, "NVIDIA A", 16 << 30);
            device.index = index;
            KnownGpu {
                device,
                physical_bytes: 16 << 30,
                pci_bus_id: String::new(),
                minor: index,
            }
        };
        Self {
            gpus: (0..gpus).map(gpu).collect(),
            ..Self::default()
        }
    }
}

/// By which wires a GPU reaches others. Bandwidths are both directions together, in MB/s (10^6 bytes), as vendors
/// print them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wires {
    /// UUID of the GPU.
    #[serde(rename = "card")]
    pub gpu: String,
    /// NVLinks to other GPUs: how many lead to each, by its UUID. Through a switch: as many as the one with fewer has.
    pub nvlinks: BTreeMap<String, u32>,
    /// NVLinks that work, wherever they lead.
    pub nvlink_count: u32,
    /// Version of its NVLinks, such as `4.0`; empty where the driver does not say.
    pub nvlink_version: String,
    /// Bandwidth of one NVLink; 0 where the version is not known.
    pub nvlink_mb_s: u32,
    /// Bandwidth of its PCIe slot; 0 where the driver does not say.
    pub pcie_mb_s: u32,
}

/// A port of a network card over which other nodes' memory is reached by RDMA over Ethernet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// The device as the kernel names it, such as `mlx5_0`.
    pub name: String,
    /// Its port.
    pub port: u32,
    /// NUMA node; `None` if the kernel does not report it.
    pub numa: Option<u32>,
    /// Bandwidth, both directions together, in MB/s (10^6 bytes).
    pub mb_s: u32,
}

/// Why a GPU is not to be used now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sick {
    /// The fault, for a person: the XID with its meaning, "lost", "does not answer since …".
    pub reason: String,
    /// Since when.
    pub since: SystemTime,
    /// Whether a probe may find it well again by itself.
    pub recovers: bool,
}

/// Sick GPUs by UUID.
pub type Health = BTreeMap<String, Sick>;

/// How well each GPU is, from 0 to 100, by UUID. A GPU that may be used has 60 and more.
pub type Scores = BTreeMap<String, u8>;

/// The inventory, as it changes. `None` until it was read for the first time.
pub type Inventories = watch::Receiver<Option<Arc<Inventory>>>;

/// Which GPUs are sick, as it changes.
pub type Healths = watch::Receiver<Arc<Health>>;
