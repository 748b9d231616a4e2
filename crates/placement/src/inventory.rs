//! The inventory: nodes, their devices, and how well two devices are connected. Does not contain their use.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A family of devices that one kind of request can take, named by its word in the allocation annotations (`NVIDIA`,
/// `DCU`, `Ascend910B3`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vendor(Arc<str>);

impl Vendor {
    /// The vendor with this word. Words are compared with their case.
    pub fn new(word: &str) -> Self {
        Self(word.into())
    }

    /// The word.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Vendor {
    fn from(word: &str) -> Self {
        Self::new(word)
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A node and the devices on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name in the cluster.
    pub name: String,
    /// Its devices, in any order; identifiers are unique within the node.
    pub devices: Vec<Device>,
    /// How well pairs of them are connected; missing pairs count as 0.
    pub pairs: Vec<PairScore>,
}

/// How well two devices of a node are connected: more is better. If both directions are given, the greater one
/// counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairScore {
    /// Identifier of one device.
    pub from: String,
    /// Identifier of the other.
    pub to: String,
    /// Sum over the links between them (10 for the longest way over PCIe, 100 for each NVLink).
    pub score: i32,
}

/// A device, as its node reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Identifier (UUID), unique within the node.
    pub id: String,
    /// Position on the node.
    pub index: u32,
    /// The requests that can take it.
    pub vendor: Vendor,
    /// Model as the driver names it; the type rules look at it.
    pub model: String,
    /// The number of containers that may share it. Devices with 0 take none.
    pub slots: u32,
    /// Memory in bytes that may be promised. It exceeds the physical memory if memory is overcommitted.
    pub memory_bytes: u64,
    /// Compute that may be promised, in the vendor's unit (100 = one whole device, in percent); 0 if the vendor
    /// counts none.
    pub cores: u32,
    /// NUMA node that it is attached to.
    pub numa: u32,
    /// The group of devices with direct connections (network plane, link zone, board); `None` if unknown.
    pub group: Option<u32>,
    /// False for a device that takes no pods until it is healthy again.
    pub healthy: bool,
    /// True for a device that takes no new pods; running pods stay on it.
    pub cordoned: bool,
    /// True for a device that another driver gives out: it takes no new pods; running pods stay on it.
    pub given_out: bool,
    /// How the device is shared (`hami-core`, `mig`, `mps`).
    pub mode: String,
    /// The profiles into which the device can be divided. In mode `mig` each profile has fixed placements; in other
    /// modes it takes as many slots as it has slices, anywhere.
    pub mig_profiles: Vec<MigProfile>,
    /// Words that a request may require of a device.
    pub tags: Vec<String>,
    /// Speed in GFLOPS for 16 and for 32 bits, for requests in GFLOPS; 0 if unknown.
    pub gflops: [u64; 2],
    /// The hardware module that the device is a part of, for requests that only take whole modules.
    pub module: Option<u32>,
    /// Compute is given in multiples of this many units; 0 and 1 mean single units.
    pub core_step: u32,
    /// The node's appraisal of taking several of its devices; the same on all devices of a kind.
    pub appraisal: Option<Arc<Appraisal>>,
}

/// A node's appraisal of taking several of its devices, for requests that ask for it ([`crate::Arrange::Appraised`]).
/// Both fields are by the number of devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Appraisal {
    /// How well the best set of this many devices is connected: more is better.
    pub scores: BTreeMap<u32, i32>,
    /// How much worse the remaining devices are then connected: less is better.
    pub losses: BTreeMap<u32, i32>,
}

impl Device {
    /// The tag of devices that form a ring, so that a row of them may begin anywhere ([`crate::Arrange::Row`]).
    pub const RING: &str = "ring";

    /// A healthy device with ten slots and 100 % compute, shared by `hami-core`, on NUMA node 0.
    pub fn new(vendor: &str, id: &str, model: &str, memory_bytes: u64) -> Self {
        Self {
            id: id.to_owned(),
            index: 0,
            vendor: Vendor::new(vendor),
            model: model.to_owned(),
            slots: 10,
            memory_bytes,
            cores: 100,
            numa: 0,
            group: None,
            healthy: true,
            cordoned: false,
            given_out: false,
            mode: "hami-core".to_owned(),
            mig_profiles: Vec::new(),
            tags: Vec::new(),
            gflops: [0, 0],
            module: None,
            core_step: 1,
            appraisal: None,
        }
    }

    /// Whether the device is divided into MIG instances.
    pub fn is_mig(&self) -> bool {
        self.mode == "mig"
    }
}

/// A profile of a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigProfile {
    /// Name as the driver gives it (`3g.40gb`).
    pub name: String,
    /// Memory of an instance, in bytes.
    pub memory_bytes: u64,
    /// Compute of an instance, in the device's unit.
    pub cores: u32,
    /// Slices of compute that it takes.
    pub slices: u32,
    /// The placements that an instance may have on the device.
    pub placements: Vec<Span>,
}

/// A range of a device's memory slices: `[start, start + size)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// First slice.
    pub start: u32,
    /// Number of slices.
    pub size: u32,
}

impl Span {
    /// Whether two instances in these ranges would share a slice.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.start.saturating_add(other.size)
            && other.start < self.start.saturating_add(self.size)
    }
}

/// Why a node cannot be added to the inventory. Its earlier report stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNode {
    /// Two of its devices have the same identifier.
    #[error("node {node} reports device {device} twice")]
    DeviceTwice {
        /// The node.
        node: String,
        /// The identifier.
        device: String,
    },
    /// The node has more devices than one node can have.
    #[error("node {node} reports {present} devices, at most 1024 are read")]
    TooManyDevices {
        /// The node.
        node: String,
        /// The number that it reports.
        present: usize,
    },
}
