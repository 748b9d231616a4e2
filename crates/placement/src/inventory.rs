//! What there is: nodes, their devices, and how well two devices reach each other. Never what is used.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A family of devices that one kind of request can take, as the vendor word of the allocation
/// annotations says it (`NVIDIA`, `DCU`, `Ascend910B3`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vendor(Arc<str>);

impl Vendor {
    /// The vendor of this word; words are compared as they are, in upper and lower case.
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
    /// How well pairs of them reach each other; pairs that are not named count as 0.
    pub pairs: Vec<PairScore>,
}

/// How well two devices of a node reach each other: more is better. Where both directions are given,
/// the greater counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairScore {
    /// Identifier of one device.
    pub from: String,
    /// Identifier of the other.
    pub to: String,
    /// Sum over the links between them (10 for the longest way over PCIe, 100 for each NVLink).
    pub score: i32,
}

/// A card, as its node reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Identifier (UUID), unique within the node.
    pub id: String,
    /// Position on the node.
    pub index: u32,
    /// Which requests can take it.
    pub vendor: Vendor,
    /// Model as the driver names it; what type rules look at.
    pub model: String,
    /// How many containers may share it; 0 is none.
    pub slots: u32,
    /// Memory in bytes that may be promised (above the physical where memory is overcommitted).
    pub memory_bytes: u64,
    /// Compute that may be promised, in the vendor's unit (100 = one card in percent); 0 where the
    /// vendor counts none.
    pub cores: u32,
    /// NUMA node that it is attached to.
    pub numa: u32,
    /// Cards that reach each other directly (network plane, link zone, board); `None` where unknown.
    pub group: Option<u32>,
    /// False takes the card out until it is well again.
    pub healthy: bool,
    /// True takes the card out of new placements; what runs on it stays.
    pub cordoned: bool,
    /// How the card is shared (`hami-core`, `mig`, `mps`).
    pub mode: String,
    /// Profiles that the card can be cut into. In mode `mig` each has its places; in other modes it
    /// takes as many slots as it has slices, wherever they are.
    pub mig_profiles: Vec<MigProfile>,
    /// Words that a request may require of a card.
    pub tags: Vec<String>,
    /// Speed in GFLOPS of 16 and of 32 bits, for requests in GFLOPS; 0 where unknown.
    pub gflops: [u64; 2],
    /// Piece of hardware that the card is a part of, for requests that take whole pieces only.
    pub module: Option<u32>,
    /// Compute is handed out in steps of so many units; 0 and 1 are single units.
    pub core_step: u32,
    /// What the node says of taking several of its cards; the same on all cards of a kind.
    pub appraisal: Option<Arc<Appraisal>>,
}

/// What a node says of taking so many of its cards, for requests that ask for it
/// ([`crate::Arrange::Appraised`]). Both by the number of cards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Appraisal {
    /// How well the best so many cards reach each other: more is better.
    pub scores: BTreeMap<u32, i32>,
    /// How much worse the cards reach each other that would be left: less is better.
    pub losses: BTreeMap<u32, i32>,
}

impl Device {
    /// The tag of cards that form a ring, so that a row of them may begin anywhere
    /// ([`crate::Arrange::Row`]).
    pub const RING: &str = "ring";

    /// A healthy card of ten slots and 100 % compute, shared by `hami-core`, on NUMA node 0.
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
            mode: "hami-core".to_owned(),
            mig_profiles: Vec::new(),
            tags: Vec::new(),
            gflops: [0, 0],
            module: None,
            core_step: 1,
            appraisal: None,
        }
    }

    /// Whether the card is cut into instances.
    pub fn is_mig(&self) -> bool {
        self.mode == "mig"
    }
}

/// A shape that a card in MIG mode can be cut into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigProfile {
    /// Name as the driver has it (`3g.40gb`).
    pub name: String,
    /// Memory of an instance, in bytes.
    pub memory_bytes: u64,
    /// Compute of an instance, in the device's unit.
    pub cores: u32,
    /// Slices of compute that it takes.
    pub slices: u32,
    /// Where on the card an instance may lie.
    pub placements: Vec<Span>,
}

/// A stretch of a card's memory slices: `[start, start + size)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// First slice.
    pub start: u32,
    /// Number of slices.
    pub size: u32,
}

impl Span {
    /// Whether two instances there would share a slice.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.start.saturating_add(other.size)
            && other.start < self.start.saturating_add(self.size)
    }
}

/// Why a node cannot be taken into the inventory. What was known of it before stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNode {
    /// Two of its devices have one identifier.
    #[error("node {node} reports device {device} twice")]
    DeviceTwice {
        /// The node.
        node: String,
        /// The identifier.
        device: String,
    },
    /// More devices than one node can have.
    #[error("node {node} reports {present} devices, at most 1024 are read")]
    TooManyDevices {
        /// The node.
        node: String,
        /// How many it reports.
        present: usize,
    },
}
