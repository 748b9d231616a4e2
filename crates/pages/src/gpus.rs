//! The cluster's GPU page: which pods hold and use which GPUs, over time. This file has the trait [`GpuSource`] and the
//! values that it gives; [`view`] makes from them what a page says, and [`router`] serves it. Decides nothing.
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

/// Gives what the page shows, and tells when it changed.
pub trait GpuSource: Send + Sync + 'static {
    /// How things stand now, or stood a few seconds ago.
    fn picture(&self) -> Future<'_, Arc<Picture>>;

    /// What a pod used of each of its GPUs, for as long as the source remembers; empty for a pod that it does not know.
    fn history(&self, namespace: &str, pod: &str) -> Vec<OfGpu>;

    /// Carries [`Picture::version`]. The value changes whenever the next call of [`GpuSource::picture`] may give
    /// something else.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Why a pending pod is not placed, and what would help; none where there is nothing to say.
    fn why<'a>(&'a self, namespace: &'a str, pod: &'a str) -> Future<'a, Option<Why>>;
}

/// All GPUs at one moment, who holds them, and what was used lately.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Picture {
    /// Grows with every change.
    pub version: u64,
    /// Whether all nodes and pods have been read. Before, some may be missing.
    pub synced: bool,
    /// By node, then by index.
    pub gpus: Vec<Gpu>,
    /// By namespace, then by name.
    pub holders: Vec<GpuPod>,
    /// Pods that asked for GPUs and got none, by namespace and name.
    pub pending: Vec<Pending>,
    /// The sums over all GPUs, the oldest first, one for each step.
    pub totals: Vec<Total>,
    /// Seconds between two values of a history.
    pub step_seconds: u32,
    /// How many values a history has at most.
    pub steps: u32,
    /// How the node monitors answered.
    pub monitors: Monitors,
    /// What a reader should know, such as that another replica answers kube-scheduler.
    pub notes: Vec<String>,
    /// What lists look up; nothing to fill in.
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
    /// Its memory.
    pub memory_bytes: u64,
    /// Its memory that pods hold.
    pub given_bytes: u64,
    /// Its memory that is in use, as the driver says; none where no monitor says it.
    pub used_bytes: Option<u64>,
    /// Its compute that pods hold; none where the vendor counts no compute.
    pub given_compute: Option<u32>,
    /// How busy it was in the last sample; none where no monitor says it.
    pub busy_compute: Option<u32>,
    /// How many containers may share it.
    pub slots: u32,
    /// How many do.
    pub slots_taken: u32,
    /// False for a sick GPU.
    pub healthy: bool,
    /// True for a GPU that gets nothing new.
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
    /// What it holds of each GPU, in the order of their positions.
    pub shares: Vec<Share>,
    /// How often its containers were refused memory in the time that the histories cover.
    pub ooms: u32,
}

/// What a pod holds of a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// Identifier of the GPU.
    pub gpu: Arc<str>,
    /// Memory that the pod holds.
    pub memory_bytes: u64,
    /// Compute that the pod holds; none for no share of its own.
    pub compute: Option<u32>,
    /// What the pod uses of it; none where no monitor says it.
    pub usage: Option<Usage>,
}

/// What a pod uses of a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory now.
    pub memory_bytes: u64,
    /// The most memory in the time that the history covers.
    pub most_bytes: u64,
    /// Compute now; none where nothing measures it.
    pub compute: Option<u32>,
    /// Compute on average over the time that the history covers.
    pub mean_compute: Option<u32>,
}

/// A pod that waits for GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub pod: Arc<str>,
    /// The reason that most nodes have, as the engine calls it (`CardInsufficientMemory`).
    pub reason: String,
}

/// Sums over all GPUs at one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Total {
    /// Memory of all GPUs.
    pub memory_bytes: u64,
    /// Memory that pods hold.
    pub given_bytes: u64,
    /// Memory that pods use; none where no monitor answered.
    pub used_bytes: Option<u64>,
    /// Compute of all GPUs.
    pub compute: u64,
    /// Compute that pods hold.
    pub given_compute: u64,
    /// Compute that pods use; none where no monitor answered.
    pub used_compute: Option<u64>,
}

/// How the node monitors answered last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Monitors {
    /// Whether any is to be asked.
    pub configured: bool,
    /// Whether the first round is over.
    pub asked: bool,
    /// How many there are.
    pub known: usize,
    /// How many answered in the last round.
    pub answered: usize,
    /// Why the first of the others did not; empty where all did.
    pub problem: String,
}

/// What a pod used of one GPU over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OfGpu {
    /// Identifier of the GPU.
    pub gpu: String,
    /// One value for each step, the oldest first, the last one the newest; none where nothing was told.
    pub points: Vec<Option<Point>>,
}

/// What a pod used of one GPU at one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Point {
    /// Memory.
    pub memory_bytes: u64,
    /// Compute; none where nothing measures it.
    pub compute: Option<u32>,
    /// Refusals for want of memory since the step before.
    pub ooms: u32,
}
