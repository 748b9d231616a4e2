//! Requests: what a pod asks for, in the form that all callers use. Does not decide where the pod goes.

use std::sync::Arc;

use crate::exchange::{Maker, Table};
use crate::inventory::Vendor;

/// The properties of a pod by which quotas choose the pods that they count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodTraits {
    /// It has a deadline after which it is ended.
    pub terminating: bool,
    /// No container asks for processors or memory of the node.
    pub best_effort: bool,
    /// Its priority class; empty for none.
    pub priority_class: String,
    /// A rule of its affinity looks at pods of other namespaces.
    pub cross_namespace_affinity: bool,
}

/// The identity of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pod {
    /// Unique for the life of the cluster; the key of the pod's reservation.
    pub uid: String,
    /// The namespace, whose quota it uses.
    pub namespace: String,
    /// For texts only.
    pub name: String,
    /// The properties by which quotas choose the pods that they count.
    pub traits: PodTraits,
}

impl Pod {
    /// A pod of this name in this namespace, with `namespace/name` as its uid.
    pub fn named(namespace: &str, name: &str) -> Self {
        Self {
            uid: format!("{namespace}/{name}"),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            traits: PodTraits::default(),
        }
    }
}

/// A pod's request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The pod. An earlier reservation of the same uid does not compete with it.
    pub pod: Pod,
    /// Its containers, in the order of the pod's spec: init containers and sidecars, then the others.
    pub containers: Vec<Container>,
    /// Which of several nodes is preferred.
    pub node_policy: NodePolicy,
    /// Containers that accept any vendor's devices; they have no asks of their own.
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
    /// Its asks: at most one for each vendor. Empty for a container without devices.
    pub asks: Vec<Ask>,
}

/// The phase in which a container runs. It decides which other containers share a device with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// At the same time as all others of its kind.
    #[default]
    App,
    /// Alone, except for sidecars started earlier; it ends before the next one starts.
    Init,
    /// From its turn among the init containers to the end of the pod.
    Sidecar,
}

/// A number of devices of one vendor, each with the same share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The vendor.
    pub vendor: Vendor,
    /// How many devices; 0 asks for nothing.
    pub count: u32,
    /// Memory on each.
    pub memory: Memory,
    /// Compute on each.
    pub compute: Compute,
    /// Only unused devices, with all their slots.
    pub exclusive: bool,
    /// All of them on one NUMA node.
    pub numa_bind: bool,
    /// All of them in one group of devices if a group has room, else anywhere.
    pub prefer_group: bool,
    /// Slots of each device.
    pub slots: u32,
    /// On a device that is divided into profiles without placements: the profile with this many slices. `None`: the
    /// smallest sufficient one.
    pub slices: Option<u32>,
    /// How several of them must be arranged.
    pub arrange: Arrange,
    /// Only devices that earlier containers of the pod got, if they got any of this vendor.
    pub together: bool,
    /// The containers that may share a device with this one.
    pub company: Option<Company>,
    /// Only devices on which all shares have the same memory.
    pub even: bool,
    /// The only amounts of memory below a whole device that the vendor gives, in bytes; empty for any. The engine
    /// places any amount that is asked for, but advises only these.
    pub sizes: Vec<u64>,
    /// Which devices are preferred.
    pub policy: DevicePolicy,
    /// The weights in a device's score.
    pub weights: Weights,
    /// Which devices are candidates.
    pub select: Selection,
}

impl Ask {
    /// An ask for `count` devices of this vendor with this memory on each, and no compute promised.
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

/// How several devices of one ask must be arranged, and the bonus that this gives a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Arrange {
    /// In the order of the device policy; all nodes get the same bonus.
    #[default]
    Anyhow,
    /// From the group with the most free devices, then from the next one. A node's bonus is `worth` times the largest
    /// share of a container's devices in one group. Only if all devices have a group.
    LargestGroups {
        /// The bonus if all devices are in one group, where 10 is one resource of the node full.
        worth: u32,
    },
    /// The same share of each device of whole modules; a node's bonus is that of `LargestGroups`.
    Modules {
        /// The bonus if all devices are in one group.
        worth: u32,
    },
    /// From the group that has enough devices and the fewest to spare, else from the smallest groups first; devices
    /// without a group last. With `weigh`, a node's bonus is greater the more pairs of a group are taken and the
    /// fewer are split.
    TightestGroup {
        /// Whether nodes get a bonus by it.
        weigh: bool,
    },
    /// Two wings of four devices, the first four by index and the others, with a link from each device of the first
    /// wing to one of the second. A request takes one, two, four or all eight, so that no wing is split without need.
    /// A node's bonus is greater the less its wings are split afterwards.
    Wings,
    /// Several unused devices with consecutive indices. In a ring (tag [`crate::Device::RING`]) they begin anywhere;
    /// elsewhere they are 4, 8 or 16 devices starting at a multiple of that number.
    Row,
    /// In the order of the device policy; a node's bonus is its own appraisal ([`crate::Device::appraisal`]).
    Appraised,
    /// Devices with the fewest containers of the same class ([`Company`]) first, and devices with only other classes
    /// last; a node's bonus is greater the fewer containers its devices have.
    Apart,
}

/// The containers that may share a device with this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Company {
    /// The container's own class, which its grants carry.
    pub class: Arc<str>,
    /// Classes that may be on the device. A container without a class may always be there.
    pub accepts: Vec<Arc<str>>,
}

/// An amount of a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// This number of bytes.
    Bytes(u64),
    /// A percentage of the device's memory, rounded down to a whole MiB; more than 100 counts as 100. On a device in
    /// MIG mode it is a percentage of the largest profile's memory.
    Percent(u32),
}

/// An amount of a device's compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// This amount in the device's own unit; 0 promises none.
    Units(u32),
    /// A percentage of the device's compute, rounded down to a whole unit but at least one, and then up to a whole
    /// step of the device.
    Percent(u32),
    /// This number of the device's lanes; more than it has means all. `cores` of such a device, and of a grant on it,
    /// is a set of bits, one for each lane; the lowest free lanes are taken.
    Lanes(u32),
    /// Promises none, and accepts a device whose compute is all promised to others.
    Unchecked,
    /// GFLOPS for 16 and for 32 bits: the number of units that gives both, rounded up. A device of unknown speed
    /// cannot give any.
    Gflops {
        /// For 16 bits.
        fp16: u64,
        /// For 32 bits.
        fp32: u64,
    },
}

/// Which of several nodes is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum NodePolicy {
    /// The fullest one, with the pod on it.
    #[default]
    Binpack,
    /// The emptiest one, with the pod on it.
    Spread,
}

/// Which of several devices are chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DevicePolicy {
    /// The emptiest first.
    #[default]
    Spread,
    /// The fullest first.
    Binpack,
    /// Only unused devices.
    Mutex,
    /// By the first key, then the second, and so on; finally by the higher index.
    Chain(Vec<Key>),
    /// For several devices: the ones that are connected best. For one device: the one that the others miss least.
    TopologyAware,
}

/// One comparison of devices.
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

/// The weights of slots, compute and memory in the score of a device.
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

/// The rules that select candidate devices. An empty list is no rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The model contains one of these, ignoring case.
    pub use_types: Vec<String>,
    /// The model contains none of these, ignoring case.
    pub nouse_types: Vec<String>,
    /// The model is exactly one of these.
    pub models: Vec<String>,
    /// The identifier is one of these.
    pub use_ids: Vec<String>,
    /// The identifier is none of these.
    pub nouse_ids: Vec<String>,
    /// The device's mode is a part of this text.
    pub mode: Option<String>,
    /// The device has all of these tags.
    pub tags: Vec<String>,
}

/// The amounts for all devices of one container together. They are split evenly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// Memory in bytes; 0 means the vendor's default, in most cases a whole device.
    pub memory_bytes: u64,
    /// GFLOPS of 16-bit floats.
    pub fp16: u64,
    /// GFLOPS of 32-bit floats.
    pub fp32: u64,
    /// The number of devices; 0 means the fewest that satisfy the demand.
    pub devices: u32,
}

/// A container of the request that accepts any vendor's devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// Position of the container in the request.
    pub container: usize,
    /// The demand.
    pub demand: Demand,
}

/// A family of devices that the request accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    /// The maker.
    pub maker: Maker,
    /// The placement engine's name for them.
    pub vendor: Vendor,
    /// Families of a lower tier are taken first, whatever their score.
    pub tier: u32,
    /// For each wish, the ask to this family with 1, 2, 3, ... devices, including the family's own rules.
    pub asks: Vec<Vec<Ask>>,
}

/// A request for any vendor's devices. All containers that accept any vendor get devices of the same vendor.
#[derive(Debug, Clone, PartialEq)]
pub struct AnyVendor {
    /// The containers.
    pub wishes: Vec<Wish>,
    /// The families that are accepted.
    pub families: Vec<Family>,
    /// Whether devices of one NUMA node are preferred if a container gets several.
    pub near: bool,
    /// Figures of models, for the score.
    pub table: Arc<Table>,
}

// The figures of a table are finite, so equality is reflexive.
impl Eq for AnyVendor {}
