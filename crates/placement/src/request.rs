//! Requests: what a pod asks for, in the form that all callers use. Never decides where the pod goes.

use std::sync::Arc;

use crate::exchange::{Maker, Table};
use crate::inventory::Vendor;

/// The identity of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pod {
    /// Unique for the life of the cluster; reservations are kept under it.
    pub uid: String,
    /// The namespace, whose quota it uses.
    pub namespace: String,
    /// For texts only.
    pub name: String,
}

impl Pod {
    /// A pod of this name in this namespace, with `namespace/name` as its uid.
    pub fn named(namespace: &str, name: &str) -> Self {
        Self {
            uid: format!("{namespace}/{name}"),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// What a pod asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The pod. An earlier reservation of the same uid does not compete with it.
    pub pod: Pod,
    /// Its containers, in the order of the pod's spec: init containers and sidecars, then the others.
    pub containers: Vec<Container>,
    /// Which of several nodes it prefers.
    pub node_policy: NodePolicy,
    /// Containers that take any vendor's devices; they have no asks of their own.
    pub any: Option<Arc<AnyVendor>>,
}

impl Request {
    /// Whether any container asks for a device.
    pub fn asks_for_devices(&self) -> bool {
        self.any.is_some()
            || self
                .containers
                .iter()
                .any(|container| container.asks.iter().any(|ask| ask.count > 0))
    }
}

/// A container and what it asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    /// For texts only.
    pub name: String,
    /// When it runs.
    pub kind: Kind,
    /// What it asks for: at most one for each vendor. None for a container without devices.
    pub asks: Vec<Ask>,
}

/// When a container runs, which decides whom it shares a card with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Beside all others of its kind.
    #[default]
    App,
    /// Alone, but for sidecars started earlier; over before the next one starts.
    Init,
    /// From its turn among the init containers to the end of the pod.
    Sidecar,
}

/// A number of devices of one vendor, each with the same share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Of which vendor.
    pub vendor: Vendor,
    /// How many devices; 0 asks for nothing.
    pub count: u32,
    /// Memory on each.
    pub memory: Memory,
    /// Compute on each.
    pub compute: Compute,
    /// Only unused cards, taken with all their slots.
    pub exclusive: bool,
    /// All of them on one NUMA node.
    pub numa_bind: bool,
    /// All of them in one group of cards where some group has room, else anywhere.
    pub prefer_group: bool,
    /// Slots of each card.
    pub slots: u32,
    /// On a card that is cut into profiles without places: the profile of so many slices. `None`:
    /// the smallest that is large enough.
    pub slices: Option<u32>,
    /// How several of them have to lie to each other.
    pub arrange: Arrange,
    /// Only cards that earlier containers of the pod got, where they got any of this vendor.
    pub together: bool,
    /// The containers that may share a card with this one.
    pub company: Option<Company>,
    /// Only cards on which all shares have the same memory.
    pub even: bool,
    /// The only amounts of memory below a whole card that the vendor hands out, in bytes; empty for any. The engine
    /// takes what is asked for as it is, and advises nothing else.
    pub sizes: Vec<u64>,
    /// Which cards come first.
    pub policy: DevicePolicy,
    /// What counts how much in a card's score.
    pub weights: Weights,
    /// Which cards come into question.
    pub select: Selection,
}

impl Ask {
    /// So many cards of this vendor with so much memory on each, and no compute promised.
    pub fn new(vendor: &str, count: u32, memory: Memory) -> Self {
        Self {
            vendor: Vendor::new(vendor),
            count,
            memory,
            compute: Compute::Units(0),
            exclusive: false,
            numa_bind: false,
            prefer_group: false,
            slots: 1,
            slices: None,
            arrange: Arrange::Anyhow,
            together: false,
            company: None,
            even: false,
            sizes: Vec::new(),
            policy: DevicePolicy::default(),
            weights: Weights::default(),
            select: Selection::default(),
        }
    }
}

/// How several cards of one ask must be arranged, and the bonus that this gives a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Arrange {
    /// As the device policy has it; every node is worth the same.
    #[default]
    Anyhow,
    /// From the group that has most free cards, then from the next. A node is worth `worth` times the
    /// largest share of a container's cards that is of one group. Only where all cards have a group.
    LargestGroups {
        /// What all cards in one group are worth, as 10 is one resource of the node full.
        worth: u32,
    },
    /// The same share of each card of whole modules; a node's worth is that of `LargestGroups`.
    Modules {
        /// What all cards in one group are worth.
        worth: u32,
    },
    /// From the group that has enough and least to spare, else from the smallest groups first; cards
    /// of no group last. With `weigh`, a node is worth more the more pairs of a group are taken and
    /// the fewer are torn apart.
    TightestGroup {
        /// Whether nodes are compared by it.
        weigh: bool,
    },
    /// Two wings of four cards, the first by index and the others, with a link from each card of the
    /// first to one of the second: one, two, four or all eight, so that no wing is broken up without
    /// need. A node is worth more the less of its wings is broken up afterwards.
    Wings,
    /// Several unused cards with consecutive indices. They begin anywhere in a ring (tag
    /// [`crate::Device::RING`]); elsewhere they are 4, 8 or 16 cards starting at a multiple of that number.
    Row,
    /// As the device policy has it; a node is worth what it says itself
    /// ([`crate::Device::appraisal`]).
    Appraised,
    /// Cards with the fewest containers of the same class ([`Company`]) first, those where only other
    /// classes run last; a node is worth more the quieter its cards are.
    Apart,
}

/// The containers that may share a card with this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Company {
    /// The container's own class, which its grants carry.
    pub class: Arc<str>,
    /// Classes that may be there. A container without a class may always be there.
    pub accepts: Vec<Arc<str>>,
}

/// How much memory of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// So many bytes.
    Bytes(u64),
    /// So many hundredths of what the card has, down to a whole MiB; more than 100 counts as 100. Of a
    /// card in MIG mode: of its largest profile.
    Percent(u32),
}

/// How much compute of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// So much in the card's own unit; 0 promises none.
    Units(u32),
    /// So many hundredths of what the card has, down to a whole unit but at least one, up to a whole
    /// step of the card.
    Percent(u32),
    /// So many lanes of the card, which more than it has means all. `cores` of such a card, and of
    /// what is granted of it, is a set of bits, one for each lane; the lowest free ones are taken.
    Lanes(u32),
    /// Promises none, and does not mind if all is promised to others.
    Unchecked,
    /// So many GFLOPS of 16 and of 32 bits: as many units as give both, up. A card whose speed is not
    /// known cannot give any.
    Gflops {
        /// Of 16 bits.
        fp16: u64,
        /// Of 32 bits.
        fp32: u64,
    },
}

/// Which of several nodes is taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum NodePolicy {
    /// The one that is fullest with the pod on it.
    #[default]
    Binpack,
    /// The one that is emptiest with the pod on it.
    Spread,
}

/// Which of several cards are taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DevicePolicy {
    /// The emptiest first.
    #[default]
    Spread,
    /// The fullest first.
    Binpack,
    /// Only unused cards.
    Mutex,
    /// By the first key, then the second, and so on; last by the higher index.
    Chain(Vec<Key>),
    /// Several cards: those that reach each other best. One card: the one that the others miss least.
    TopologyAware,
}

/// One comparison of cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// Higher score first.
    Binpack,
    /// Lower score first.
    Spread,
    /// Higher NUMA node first.
    Numa,
    /// Fewer containers first.
    FewestContainers,
    /// Lower index first.
    LowestIndex,
}

/// How much slots, compute and memory count in the score of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights {
    /// Share of slots in use.
    pub slots: u32,
    /// Share of compute promised.
    pub cores: u32,
    /// Share of memory promised.
    pub memory: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            slots: 1,
            cores: 1,
            memory: 1,
        }
    }
}

/// Which cards come into question. An empty list is no rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The model contains one of these, in any case.
    pub use_types: Vec<String>,
    /// The model contains none of these, in any case.
    pub nouse_types: Vec<String>,
    /// The model is one of these, to the letter.
    pub models: Vec<String>,
    /// The identifier is one of these.
    pub use_ids: Vec<String>,
    /// The identifier is none of these.
    pub nouse_ids: Vec<String>,
    /// The card's mode is part of this text.
    pub mode: Option<String>,
    /// The card has all of these tags.
    pub tags: Vec<String>,
}

/// What is asked for over all devices of one container. The amounts are split evenly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// Memory in bytes; 0 leaves it to the vendor's default, a whole card in most cases.
    pub memory_bytes: u64,
    /// GFLOPS of 16-bit floats.
    pub fp16: u64,
    /// GFLOPS of 32-bit floats.
    pub fp32: u64,
    /// How many devices; 0 for as few as hold the demand.
    pub devices: u32,
}

/// One container of the request that takes any vendor's devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// Position of the container in the request.
    pub container: usize,
    /// What it asks for.
    pub demand: Demand,
}

/// A family of devices that would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    /// The maker.
    pub maker: Maker,
    /// The word under which the engine knows them.
    pub vendor: Vendor,
    /// Families of a lower tier are taken first, whatever the score.
    pub tier: u32,
    /// For each wish, what is asked of this family with 1, 2, 3, ... devices, and its own rules in it.
    pub asks: Vec<Vec<Ask>>,
}

/// Devices of whichever vendor fits. All containers that take any vendor's devices get those of one vendor.
#[derive(Debug, Clone, PartialEq)]
pub struct AnyVendor {
    /// The containers.
    pub wishes: Vec<Wish>,
    /// What would do.
    pub families: Vec<Family>,
    /// Prefer devices of one NUMA node where a container gets several.
    pub near: bool,
    /// Figures of models, for the score.
    pub table: Arc<Table>,
}

// The figures of a table are finite.
impl Eq for AnyVendor {}
