//! The values that are shown: a node, its GPUs, its containers and their devices, at one moment.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use supervisor::gpu::hardware::Hardware;
use vgpu_abi::waits::Waits;

use crate::arbiter::ArbiterStatus;

/// A node at one moment.
#[derive(Debug, Clone, Default)]
pub struct Shown {
    /// Name of the node.
    pub node: String,
    /// Its GPUs, in order of index.
    pub gpus: Vec<Gpu>,
    /// Their hardware, in order of index; empty if the driver has not answered.
    pub hardware: Vec<Hardware>,
    /// Its containers; no two have the same namespace, pod and container.
    pub containers: Vec<ShownContainer>,
    /// The use of its workloads, those that have ended too.
    pub workloads: Vec<Used>,
    /// How the look at them went.
    pub look: Look,
}

/// The account to which a use goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    /// Namespace of the pods.
    pub namespace: String,
    /// Their team.
    pub team: String,
    /// The kind of the workload; empty under `vgpu run`.
    pub kind: String,
    /// The workload.
    pub workload: String,
}

/// The use of a workload, as it is shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Used {
    /// Its account.
    pub key: Account,
    /// GPU time, seconds.
    pub gpu_seconds: f64,
    /// Memory over time, GiB times seconds.
    pub gib_seconds: f64,
}

/// A whole GPU.
#[derive(Debug, Clone, Default)]
pub struct Gpu {
    /// Its number on the node.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// Its model, without the vendor.
    pub model: String,
    /// Used memory, bytes, by all processes.
    pub used_bytes: u64,
    /// Busy part of the last sample period, percent.
    pub utilization_percent: Option<u32>,
    /// Part of the last sample period in which its memory was read or written, percent.
    pub memory_utilization_percent: Option<u32>,
}

/// A container.
#[derive(Debug, Clone, Default)]
pub struct ShownContainer {
    /// Kubernetes namespace; empty under `vgpu run`.
    pub namespace: String,
    /// Pod; empty under `vgpu run`.
    pub pod: String,
    /// Container; the name under `vgpu run`.
    pub container: String,
    /// The ResourceClaim that gave it; `None` without one.
    pub claim: Option<ShownClaim>,
    /// Its devices, in the order in which it sees them.
    pub devices: Vec<Device>,
    /// Living processes that have touched a device.
    pub processes: u64,
    /// Refusals that left a record.
    pub ooms: u64,
    /// Refused requests.
    pub refused: u64,
    /// Bounded waits for another process that ran out.
    pub waits_expired: u64,
    /// Hooked calls by group.
    pub hook_calls: Vec<(&'static str, u64)>,
    /// Priority, 0 is the highest.
    pub priority: u32,
    /// When its compute limits count; empty where that is not known.
    pub policy: &'static str,
    /// Time since the compute arbiter's last heartbeat; `None` if there never was one.
    pub arbiter_age: Option<Duration>,
}

/// A ResourceClaim, in the namespace of its container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShownClaim {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// A device of a container.
#[derive(Debug, Clone, Default)]
pub struct Device {
    /// Its number, as the container counts.
    pub index: usize,
    /// Its UUID; empty where the limits go by index.
    pub uuid: String,
    /// Charged, bytes.
    pub used_bytes: u64,
    /// Its limit, bytes; `None` if neither a limit nor the GPU's size is known.
    pub limit_bytes: Option<u64>,
    /// Of the charged: contexts, bytes.
    pub context_bytes: u64,
    /// Of the charged: modules, bytes.
    pub module_bytes: u64,
    /// Of the charged: buffers, bytes.
    pub buffer_bytes: u64,
    /// Of the charged: of ended processes, bytes.
    pub ended_bytes: u64,
    /// Busy part of the last period, percent, summed over processes.
    pub utilization_percent: Option<f64>,
    /// Time since a launch was last seen; `None` if none ever was.
    pub since_launch: Option<Duration>,
    /// Memory that the driver holds for the container and that is not charged, bytes; `None` if the driver
    /// was not asked.
    pub unaccounted_bytes: Option<u64>,
    /// The driver's own limit on the container's control group, bytes; `None` if there is none.
    pub driver_limit_bytes: Option<u64>,
    /// Which fences keep the container to its limit; empty where that is not known.
    pub fences: &'static str,
    /// More is used than the limit allows.
    pub pending_shrink: bool,
    /// The MIG instance that it is.
    pub instance: Option<Instance>,
    /// Its share of the device's time.
    pub compute: Compute,
    /// Charged memory past the container's share of the device, bytes; `None` if it has no
    /// such share.
    pub oversubscribed_bytes: Option<u64>,
}

/// A share of a device's time; shares are parts of one.
#[derive(Debug, Clone, Default)]
pub struct Compute {
    /// The most that it may have; one without a limit.
    pub asked: Option<f64>,
    /// The share that it gets whenever it wants it.
    pub floor: Option<f64>,
    /// The arbiter's grant; nothing without an arbiter.
    pub granted: Option<f64>,
    /// The share that it used in the last second; `None` if unknown.
    pub used: Option<f64>,
    /// Part of the last second in which at least one of its launches waited; nothing without an arbiter.
    pub waiting: Option<f64>,
    /// It waits for its turn on a device whose memory does not hold all at once.
    pub waits_for_turn: bool,
    /// Its work; nothing before its first launch.
    pub work: Option<Work>,
}

/// The work put on a device since the container began.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// GPU time.
    pub busy: Duration,
    /// Time that launches have waited, summed over threads.
    pub throttled: Duration,
    /// Launches that had to wait.
    pub waits: u64,
    /// How long those waited that wait no longer.
    pub waited: Waits,
    /// Kernels launched.
    pub kernels: u64,
    /// Graphs launched.
    pub graphs: u64,
    /// Copies and fills.
    pub copies: u64,
    /// Bytes that the copies and fills moved.
    pub copied_bytes: u64,
    /// Host functions.
    pub host_functions: u64,
}

/// A MIG instance.
#[derive(Debug, Clone, Default)]
pub struct Instance {
    /// Its shape, such as `1g.5gb`.
    pub profile: String,
    /// Ids of its GPU instance and compute instance, where they are known.
    pub ids: Option<(u32, u32)>,
}

/// How the look at the node went.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Whether the root directory could be read; one that is not there yet counts as read.
    pub root_readable: bool,
    /// Directories that look like containers and could not be shown.
    pub broken: u64,
    /// Containers left out since the agent started, by reason.
    pub skipped: Vec<(&'static str, u64)>,
    /// Whether the driver answered; `None` if it was not to be asked.
    pub nvml_up: Option<bool>,
    /// GPUs that did not answer.
    pub gpu_faults: u64,
    /// The compute arbiter of this process; `None` if it has none.
    pub arbiter: Option<ArbiterStatus>,
    /// The duration of the look.
    pub took: Duration,
}
