//! The device assigner's page. This file has the trait [`DeviceSource`] and the values that it gives; [`view`] makes from
//! them what a page says, and [`router`] serves it. Decides nothing.

pub mod view;
mod web;

use std::sync::Arc;

use tokio::sync::watch;

pub use web::router;

/// Gives the assigner's devices and tells when something about them changed. Cheap to ask, from any thread.
pub trait DeviceSource: Send + Sync + 'static {
    /// Every device as it is now, ordered by node and then by UUID.
    fn inventory(&self) -> Arc<Inventory>;

    /// What happened to one device, the newest first; none for a device that the source does not know. The source
    /// keeps at most [`MOST_HISTORY`] entries of a device, and forgets all of them when its process ends.
    fn history(&self, uuid: &str) -> Option<Vec<Happening>>;

    /// Carries [`Inventory::version`]. The value changes whenever the next call of [`DeviceSource::inventory`] or
    /// [`DeviceSource::history`] may give something else.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// How many entries of a device's history a source keeps.
pub const MOST_HISTORY: usize = 64;

/// Every device at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// Grows with every change.
    pub version: u64,
    /// Whether the source has read all nodes, pods and Leases from the API server. Before, devices may be missing.
    pub synced: bool,
    /// By node, then by UUID.
    pub devices: Vec<DeviceRow>,
    /// What cannot be read, each with the node that it is about.
    pub problems: Vec<NodeProblem>,
}

/// Something on a node that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeProblem {
    /// Name of the node.
    pub node: String,
    /// What was read, what is accepted, what it means for the node's devices.
    pub problem: String,
}

/// One device.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceRow {
    /// Its UUID.
    pub uuid: String,
    /// Name of its node.
    pub node: String,
    /// Labels that a pod may ask for, as whole keys (`fudo.org/gpu.a100`), sorted.
    pub labels: Vec<String>,
    /// Model as the driver names it; empty where no agent of ours registered the device.
    pub model: String,
    /// Memory in bytes; 0 where no agent of ours registered the device.
    pub memory_bytes: u64,
    /// Containers that share it by other doors (the scheduler extender), without a reservation by label.
    pub sharers: u32,
    /// What can be done with it.
    pub state: DeviceState,
    /// Who has it by label.
    pub assignment: Option<Assignment>,
}

/// What can be done with a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceState {
    /// A pod that asks by label may get it.
    Available,
    /// It is proposed to a pod, for 60 seconds.
    Pending,
    /// A pod has it.
    Assigned,
    /// Its reservation ran out and is about to be taken away.
    Expired,
    /// Pods of other doors share it; a pod that asks by label cannot get it.
    Shared,
    /// Its agent says that it is sick, or an operator has cordoned it.
    Out,
}

impl DeviceState {
    /// The word that people read.
    pub fn word(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Pending => "pending",
            Self::Assigned => "assigned",
            Self::Expired => "expired",
            Self::Shared => "shared",
            Self::Out => "out of service",
        }
    }
}

/// Who has a device by label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod; none before the pod was seen.
    pub name: Option<String>,
    /// UID of the pod; none before it was seen or finalized.
    pub uid: Option<String>,
    /// Whether the pod is in the cluster now.
    pub exists: bool,
    /// The reservation, which the pod carries as `fudo.org/gpu.reservation-id`.
    pub reservation_id: String,
    /// Whether it is finalized (`active`); else it is a `proposal`.
    pub active: bool,
    /// When the device was reserved, in milliseconds since 1970.
    pub since_unix_ms: i64,
}

/// One entry of a device's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happening {
    /// When, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// What.
    pub what: Happened,
    /// Namespace of the pod that it was about.
    pub namespace: String,
    /// Name of that pod; empty where it was not known.
    pub pod: String,
    /// The reservation; empty where another door gave the device.
    pub reservation_id: String,
}

/// What can happen to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Happened {
    /// It was proposed to a pod.
    Proposed,
    /// The reservation became active: by `/finalize`, or because the pod was seen.
    Finalized,
    /// The proposal ran out before anybody finalized it.
    Expired,
    /// The pod ended, or was deleted, and the reservation with it.
    Released,
}

impl Happened {
    /// The word that people read.
    pub fn word(self) -> &'static str {
        match self {
            Self::Proposed => "proposed",
            Self::Finalized => "finalized",
            Self::Expired => "expired",
            Self::Released => "released",
        }
    }
}
