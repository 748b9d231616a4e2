//! The node's GPUs as NVML reports them: which there are, their size, how busy they are, and what each
//! process holds. The only module through which the products query NVML.
//!
//! Never caches: each call asks the driver. One sick GPU never hides the others.

pub mod group_limit;
pub mod hardware;
pub mod partition;

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use group_limit::{GroupLimit, GroupLimitError};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its number, as `nvidia-smi` counts.
    pub index: u32,
    /// Its UUID (`GPU-…`).
    pub uuid: String,
    /// Its model.
    pub name: String,
    /// Its memory, bytes.
    pub memory_bytes: u64,
    /// Used memory, bytes, by all processes and the driver together.
    pub used_bytes: u64,
    /// Busy part of the last sample period, percent; `None` if NVML does not say.
    pub utilization_percent: Option<u32>,
    /// Part of the last sample period in which its memory was read or written, percent; nothing
    /// where NVML does not say.
    pub memory_utilization_percent: Option<u32>,
    /// The instances that it is split into; empty if it is whole.
    pub instances: Vec<MigInstance>,
}

/// A part of a GPU (MIG).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigInstance {
    /// Its UUID (`MIG-…`).
    pub uuid: String,
    /// Its shape, such as `1g.5gb`; empty where NVML does not say.
    pub profile: String,
    /// Ids of its GPU instance and compute instance; `None` if NVML does not say.
    pub ids: Option<(u32, u32)>,
}

/// The memory and activity of one process on one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuProcess {
    /// UUID of the GPU.
    pub uuid: String,
    /// Process id on the host.
    pub pid: u32,
    /// Memory, bytes; `None` if NVML does not say.
    pub used_bytes: Option<u64>,
    /// Its part of the GPU's busy time in the last sample period, percent; `None` if NVML does
    /// not say.
    pub utilization_percent: Option<u32>,
}

/// How busy a process was in one sample period, as the driver says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessSample {
    /// Process id on the host.
    pub pid: u32,
    /// End of the period, microseconds on the driver's clock.
    pub at_us: u64,
    /// Its part of the period, percent.
    pub percent: u32,
}

/// How busy a GPU was, as far as the driver says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Busy {
    /// Sample periods of processes.
    pub samples: Vec<ProcessSample>,
    /// Busy part of the last period, percent, by all processes together.
    pub percent: Option<u32>,
}

/// The GPUs, and those that could not be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// In order of index.
    pub gpus: Vec<Gpu>,
    /// A sentence for each GPU that did not answer.
    pub faults: Vec<String>,
}

/// Why the GPUs cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// No driver here.
    #[error("cannot load libnvidia-ml.so.1, the NVIDIA driver's management library: {0}")]
    NoLibrary(String),
    /// The library is there, and is not of the kernel module's version, or finds no device of the driver.
    #[error("nvmlInit_v2: {0}")]
    Unusable(String),
    /// A driver that does not answer.
    #[error("{call}: {reason}")]
    Call {
        /// The question.
        call: &'static str,
        /// NVML's answer.
        reason: String,
    },
}

/// A source of information about GPUs. The products use [`NvmlGpus`]; a unit test brings its own.
pub trait Gpus: Send {
    /// Which GPUs there are.
    ///
    /// # Errors
    /// Nothing can be asked at all.
    fn inventory(&self) -> Result<Inventory, GpuError>;

    /// The memory of every process on every GPU, as far as NVML says. Process ids are the host's.
    ///
    /// # Errors
    /// Nothing can be asked at all.
    fn processes(&self) -> Result<Vec<GpuProcess>, GpuError>;

    /// How busy the GPU or instance of this UUID was in the sample periods that ended after
    /// `since_us` on the driver's clock; without a figure if the driver does not say.
    fn busy(&self, uuid: &str, since_us: u64) -> Busy {
        let _nothing = (uuid, since_us);
        Busy::default()
    }

    /// Whether the driver can limit the memory of control groups.
    fn limits_groups(&self) -> bool {
        false
    }

    /// Limits the memory of a control group on the GPU of this UUID; `group` is the group's directory.
    ///
    /// # Errors
    /// The driver cannot, or this process may not.
    fn limit_group(
        &self,
        uuid: &str,
        group: &Path,
        limit: GroupLimit,
    ) -> Result<(), GroupLimitError> {
        let _nothing = (uuid, group, limit);
        Err(GroupLimitError::Missing)
    }
}

/// The driver's own answers. With the simulated driver's directory in `LD_LIBRARY_PATH`, these are
/// the simulated GPUs.
#[derive(Debug)]
pub struct NvmlGpus {
    nvml: Nvml,
}

/// Loads NVML and starts it: `library`, or the driver's own where the loader finds it.
///
/// # Errors
/// There is no NVIDIA driver here, or it does not start.
pub fn nvml(library: Option<&OsStr>) -> Result<Nvml, GpuError> {
    // The name without a version is there only where development files are installed.
    let usual = ["libnvidia-ml.so.1", "libnvidia-ml.so"].map(OsStr::new);
    let names = library
        .as_ref()
        .map_or(usual.as_slice(), std::slice::from_ref);
    let mut answer = Err(GpuError::NoLibrary(String::new()));
    for name in names {
        match Nvml::builder().lib_path(name).init() {
            Ok(nvml) => return Ok(nvml),
            Err(NvmlError::LibloadingError(error)) => {
                if matches!(&answer, Err(GpuError::NoLibrary(text)) if text.is_empty()) {
                    answer = Err(GpuError::NoLibrary(error.to_string()));
                }
            }
            Err(
                error @ (NvmlError::LibRmVersionMismatch
                | NvmlError::DriverNotLoaded
                | NvmlError::NoPermission),
            ) => return Err(GpuError::Unusable(error.to_string())),
            Err(error) => return Err(call("nvmlInit_v2")(error)),
        }
    }
    answer
}

impl NvmlGpus {
    /// Loads NVML and starts it.
    ///
    /// # Errors
    /// There is no NVIDIA driver here, or it does not start.
    pub fn open() -> Result<Self, GpuError> {
        Ok(Self { nvml: nvml(None)? })
    }

    /// The driver's release (`550.54.15`) and the CUDA version that it has (12.4 is 12040), as far as it says.
    #[must_use]
    pub fn releases(&self) -> (Option<String>, Option<i32>) {
        (
            self.nvml.sys_driver_version().ok(),
            self.nvml.sys_cuda_driver_version().ok(),
        )
    }

    /// The GPU or instance of this UUID. An NVML that cannot look a UUID up is asked for all of
    /// them.
    fn device(&self, uuid: &str) -> Option<nvml_wrapper::Device<'_>> {
        if let Ok(device) = self.nvml.device_by_uuid(uuid) {
            return Some(device);
        }
        let is_it = |device: &nvml_wrapper::Device<'_>| device.uuid().is_ok_and(|own| own == uuid);
        for index in 0..self.nvml.device_count().ok()? {
            let Ok(device) = self.nvml.device_by_index(index) else {
                continue;
            };
            if is_it(&device) {
                return Some(device);
            }
            let places = device.mig_device_count().unwrap_or(0).min(INSTANCES_MOST);
            let instance = (0..places)
                .filter_map(|place| device.mig_device_by_index(place).ok())
                .find(is_it);
            if instance.is_some() {
                return instance;
            }
        }
        None
    }

    fn gpu(&self, index: u32) -> Result<Gpu, GpuError> {
        let device = self
            .nvml
            .device_by_index(index)
            .map_err(call("nvmlDeviceGetHandleByIndex_v2"))?;
        let memory = device
            .memory_info()
            .map_err(call("nvmlDeviceGetMemoryInfo_v2"))?;
        let rates = device.utilization_rates().ok();
        Ok(Gpu {
            index,
            uuid: device.uuid().map_err(call("nvmlDeviceGetUUID"))?,
            name: device.name().unwrap_or_else(|_| String::from("unknown")),
            memory_bytes: memory.total,
            used_bytes: memory.used,
            utilization_percent: rates.as_ref().map(|rates| rates.gpu),
            memory_utilization_percent: rates.as_ref().map(|rates| rates.memory),
            instances: instances(&device),
        })
    }
}

/// A GPU has at most seven instances; a driver that says more is not believed.
const INSTANCES_MOST: u32 = 16;

fn instances(device: &nvml_wrapper::Device<'_>) -> Vec<MigInstance> {
    // An error means a GPU that cannot be split, or is not.
    let places = device.mig_device_count().unwrap_or(0).min(INSTANCES_MOST);
    let mut instances = Vec::new();
    for place in 0..places {
        let Ok(instance) = device.mig_device_by_index(place) else {
            continue;
        };
        let Ok(uuid) = instance.uuid() else { continue };
        let name = instance.name().unwrap_or_default();
        let profile = name.rsplit_once("MIG ").map_or("", |(_, profile)| profile);
        instances.push(MigInstance {
            uuid,
            profile: profile.trim().to_owned(),
            ids: partition::ids(&instance).ok(),
        });
    }
    instances
}

impl Gpus for NvmlGpus {
    fn limits_groups(&self) -> bool {
        self.has_group_limits()
    }

    fn limit_group(
        &self,
        uuid: &str,
        group: &Path,
        limit: GroupLimit,
    ) -> Result<(), GroupLimitError> {
        self.set_group_limit(uuid, group, limit)
    }

    fn inventory(&self) -> Result<Inventory, GpuError> {
        let count = self
            .nvml
            .device_count()
            .map_err(call("nvmlDeviceGetCount_v2"))?;
        let mut inventory = Inventory::default();
        for index in 0..count {
            match self.gpu(index) {
                Ok(gpu) => inventory.gpus.push(gpu),
                Err(error) => inventory.faults.push(format!("GPU {index}: {error}")),
            }
        }
        Ok(inventory)
    }

    fn processes(&self) -> Result<Vec<GpuProcess>, GpuError> {
        let count = self
            .nvml
            .device_count()
            .map_err(call("nvmlDeviceGetCount_v2"))?;
        let mut all: Vec<GpuProcess> = Vec::new();
        for index in 0..count {
            // A lost GPU: `inventory` reports it, and here it has no processes.
            let Ok(device) = self.nvml.device_by_index(index) else {
                continue;
            };
            let Ok(uuid) = device.uuid() else { continue };
            // Only recent samples: a process that was busy a while ago is idle now.
            let samples = device
                .process_utilization_stats(lately_us())
                .unwrap_or_default();
            let compute = device.running_compute_processes().unwrap_or_default();
            let graphics = device.running_graphics_processes().unwrap_or_default();
            let first_of_gpu = all.len();
            for process in compute.into_iter().chain(graphics) {
                // A process with a compute and a graphics context is in both lists.
                let known = all.iter().skip(first_of_gpu).any(|p| p.pid == process.pid);
                if known {
                    continue;
                }
                let newest = samples
                    .iter()
                    .filter(|sample| sample.pid == process.pid)
                    .max_by_key(|sample| sample.timestamp);
                all.push(GpuProcess {
                    uuid: uuid.clone(),
                    pid: process.pid,
                    used_bytes: match process.used_gpu_memory {
                        UsedGpuMemory::Used(bytes) => Some(bytes),
                        UsedGpuMemory::Unavailable => None,
                    },
                    utilization_percent: newest.map(|sample| sample.sm_util),
                });
            }
        }
        Ok(all)
    }

    fn busy(&self, uuid: &str, since_us: u64) -> Busy {
        let Some(device) = self.device(uuid) else {
            return Busy::default();
        };
        let samples = device.process_utilization_stats(since_us);
        let sample = |sample: ProcessUtilizationSample| ProcessSample {
            pid: sample.pid,
            at_us: sample.timestamp,
            percent: sample.sm_util,
        };
        Busy {
            samples: samples
                .unwrap_or_default()
                .into_iter()
                .map(sample)
                .collect(),
            percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        }
    }
}

/// Two seconds ago on the driver's clock, which is the wall clock: a sample period is at most one,
/// and the driver is late.
fn lately_us() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let ago = now.saturating_sub(Duration::from_secs(2));
    u64::try_from(ago.as_micros()).unwrap_or(0)
}

fn call(call: &'static str) -> impl Fn(NvmlError) -> GpuError {
    move |error| GpuError::Call {
        call,
        reason: error.to_string(),
    }
}
