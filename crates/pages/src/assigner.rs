//! The device assigner's page. This file has the trait [`DeviceSource`] and its values; [`view`] turns them into the
//! content of a page, and [`router`] serves it. The page decides nothing.

pub mod view;
mod web;

use std::sync::Arc;

use tokio::sync::watch;

pub use web::router;

/// Provides the assigner's devices, and reports changes. Cheap to call, from any thread.
pub trait DeviceSource: Send + Sync + 'static {
    /// All devices at present, ordered by node and then by UUID.
    fn inventory(&self) -> Arc<Inventory>;

    /// The history of one device, the newest entry first; none for an unknown device. The source keeps at most
    /// [`MOST_HISTORY`] entries of a device, and forgets them when its process ends.
    fn history(&self, uuid: &str) -> Option<Vec<Happening>>;

    /// Carries [`Inventory::version`]. The value changes whenever the next call of [`DeviceSource::inventory`] or
    /// [`DeviceSource::history`] may give another result.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// How many entries of a device's history a source keeps.
pub const MOST_HISTORY: usize = 64;

/// Every device at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// Grows with every change.
    pub version: u64,
    /// Whether the source has read all nodes, pods and Leases from the API server. Before that, devices may be missing.
    pub synced: bool,
    /// By node, then by UUID.
    pub devices: Vec<DeviceRow>,
    /// The reports that cannot be read, each with its node.
    pub problems: Vec<NodeProblem>,
}

/// A part of a node's report that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeProblem {
    /// Name of the node.
    pub node: String,
    /// The value that was read, the accepted values, and the consequence for the node's devices.
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
    /// Model as the driver names it; empty if no vgpu agent registered the device.
    pub model: String,
    /// Memory in bytes; 0 if no vgpu agent registered the device.
    pub memory_bytes: u64,
    /// The number of containers that share it without a reservation by label (through the scheduler extender).
    pub sharers: u32,
    /// Its state.
    pub state: DeviceState,
    /// The reservation by label, if any.
    pub assignment: Option<Assignment>,
}

/// The state of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceState {
    /// A pod that asks by label may get it.
    Available,
    /// It is proposed to a pod, for 60 seconds.
    Pending,
    /// A pod has it.
    Assigned,
    /// Its reservation expired and is about to be removed.
    Expired,
    /// Pods that were placed by the scheduler extender share it; a pod that asks by label cannot get it.
    Shared,
    /// Its agent reports it as unhealthy, or an operator has cordoned it.
    Out,
}

impl DeviceState {
    /// The word that the page shows.
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

/// The pod that has a device by label.
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
    /// The time, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// The event.
    pub what: Happened,
    /// Namespace of the pod concerned.
    pub namespace: String,
    /// Name of that pod; empty if it was not known.
    pub pod: String,
    /// The reservation; empty if the scheduler extender gave the device.
    pub reservation_id: String,
}

/// An event of a device's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Happened {
    /// It was proposed to a pod.
    Proposed,
    /// The reservation became active: by `/finalize`, or because the pod was seen.
    Finalized,
    /// The proposal expired before it was finalized.
    Expired,
    /// The pod ended or was deleted, and its reservation with it.
    Released,
}

impl Happened {
    /// The word that the page shows.
    pub fn word(self) -> &'static str {
        match self {
            Self::Proposed => "proposed",
            Self::Finalized => "finalized",
            Self::Expired => "expired",
            Self::Released => "released",
        }
    }
}
