//! The cluster's GPU page: which pods hold and use which GPUs, over time. This file has the trait [`GpuSource`] and its
//! values; [`view`] turns them into the content of a page, and [`router`] serves it. The pages decide nothing.
//!
//! Units: memory in bytes; compute in thousandths of a GPU, so that GPUs of different vendors add up.

mod pages;
pub mod view;
mod web;

use std::sync::Arc;

use tokio::sync::watch;

use crate::source::{Future, Why};

pub use view::Index;
pub use web::router;

/// Provides the data of the page, and reports changes.
pub trait GpuSource: Send + Sync + 'static {
    /// The current state, or that of a few seconds ago.
    fn picture(&self) -> Future<'_, Arc<Picture>>;

    /// A pod's use of each of its GPUs, for as long as the source remembers it; empty for an unknown pod.
    fn history(&self, namespace: &str, pod: &str) -> Vec<OfGpu>;

    /// Carries [`Picture::version`]. The value changes whenever the next call of [`GpuSource::picture`] may give
    /// another result.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Why a pending pod is not placed, and what would help; `None` if there is no answer.
    fn why<'a>(&'a self, namespace: &'a str, pod: &'a str) -> Future<'a, Option<Why>>;
}

/// All GPUs at one moment, the pods that hold them, and their recent use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Picture {
    /// Grows with every change.
    pub version: u64,
    /// Whether all nodes and pods have been read. Before that, some may be missing.
    pub synced: bool,
    /// By node, then by index.
    pub gpus: Vec<Gpu>,
    /// By namespace, then by name.
    pub holders: Vec<GpuPod>,
    /// Pods that asked for GPUs and got none, by namespace and name.
    pub pending: Vec<GpuPendingPod>,
    /// The sums over all GPUs, the oldest first, one for each step.
    pub totals: Vec<Total>,
    /// Seconds between two values of a history.
    pub step_seconds: u32,
    /// The maximum number of values in a history.
    pub steps: u32,
    /// The node agents' answers.
    pub monitors: Monitors,
    /// Notes for the reader, such as that another replica answers kube-scheduler.
    pub notes: Vec<String>,
    /// The index that lists look GPUs up in. The source leaves it empty.
    pub index: Index,
}

/// A GPU, or another device that pods share.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// Name of its node.
    pub node: Arc<str>,
    /// Its identifier.
    pub id: Arc<str>,
    /// Its position on the node.
    pub index: u32,
    /// Its model as its driver names it.
    pub model: Arc<str>,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// The part of its memory that pods hold.
    pub given_bytes: u64,
    /// The part of its memory in use, as the driver reports it; `None` if no agent reports it.
    pub used_bytes: Option<u64>,
    /// The part of its compute that pods hold; `None` if the vendor counts no compute.
    pub given_compute: Option<u32>,
    /// How busy it was in the last sample; `None` if no agent reports it.
    pub busy_compute: Option<u32>,
    /// The most containers that may share it.
    pub slots: u32,
    /// The number of containers that share it.
    pub slots_taken: u32,
    /// False for an unhealthy GPU.
    pub healthy: bool,
    /// True for a GPU that gets no new pods.
    pub cordoned: bool,
}

/// A pod that holds GPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuPod {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub pod: Arc<str>,
    /// Its node.
    pub node: Arc<str>,
    /// Whether it is bound to its node; else its GPUs are reserved for it.
    pub bound: bool,
    /// Its share of each GPU, in the order of their positions.
    pub shares: Vec<GpuShare>,
    /// How often its containers were refused memory in the time that the histories cover.
    pub ooms: u32,
}

/// A pod's share of a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuShare {
    /// Identifier of the GPU.
    pub gpu: Arc<str>,
    /// Memory that the pod holds.
    pub memory_bytes: u64,
    /// The compute that the pod holds; none for a pod without a compute share.
    pub compute: Option<u32>,
    /// The pod's use of it; `None` if no agent reports it.
    pub usage: Option<Usage>,
}

/// A pod's use of a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory in use now.
    pub memory_bytes: u64,
    /// The most memory in the time that the history covers.
    pub most_bytes: u64,
    /// Compute in use now; `None` if it is not measured.
    pub compute: Option<u32>,
    /// Average compute over the time that the history covers.
    pub mean_compute: Option<u32>,
}

/// A pod that waits for GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPendingPod {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub pod: Arc<str>,
    /// The reason that most nodes have, by the placement engine's name (`CardInsufficientMemory`).
    pub reason: String,
}

/// Sums over all GPUs at one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Total {
    /// Memory of all GPUs.
    pub memory_bytes: u64,
    /// Memory that pods hold.
    pub given_bytes: u64,
    /// Memory that pods use; `None` if no agent answered.
    pub used_bytes: Option<u64>,
    /// Compute of all GPUs.
    pub compute: u64,
    /// Compute that pods hold.
    pub given_compute: u64,
    /// Compute that pods use; `None` if no agent answered.
    pub used_compute: Option<u64>,
}

/// The node agents' answers in the last round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Monitors {
    /// Whether any agents are configured.
    pub configured: bool,
    /// Whether the first round is over.
    pub asked: bool,
    /// The number of agents.
    pub known: usize,
    /// The number of agents that answered in the last round.
    pub answered: usize,
    /// The reason of the first agent that did not answer; empty if all did.
    pub problem: String,
}

/// A pod's use of one GPU over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OfGpu {
    /// Identifier of the GPU.
    pub gpu: String,
    /// One value for each step, the oldest first; none for a step without a report.
    pub points: Vec<Option<Point>>,
}

/// A pod's use of one GPU at one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Point {
    /// Memory.
    pub memory_bytes: u64,
    /// Compute; `None` if it is not measured.
    pub compute: Option<u32>,
    /// Memory refusals since the step before.
    pub ooms: u32,
}
