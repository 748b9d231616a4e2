//! The sections of `device-config.yaml` as they are written. `vendor` gives them their meaning.

use serde::{Deserialize, Deserializer};

/// Reads null as the default, as Go does.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads null as this number.
fn or_number<'de, const NUMBER: u32, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<u32, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(NUMBER))
}

/// Reads null as 1, the factor that changes nothing.
fn or_once<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(1.0))
}

/// When a container's compute share is enforced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CorePolicy {
    /// Only while other containers want the device.
    #[default]
    Default,
    /// Always.
    Force,
    /// Never.
    Disable,
}

impl CorePolicy {
    /// The word in the configuration and in the environment.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Force => "force",
            Self::Disable => "disable",
        }
    }
}

/// NVIDIA.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Nvidia {
    /// The resource for the number of devices.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// The resource for memory on each.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
    /// The resource for memory on each, in percent of the device's.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_percentage_name: String,
    /// The resource for compute on each, in percent.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
    /// The resource for the task's priority: 0 is high.
    #[serde(deserialize_with = "or_default")]
    pub resource_priority_name: String,
    /// Whether containers without a device get `NVIDIA_VISIBLE_DEVICES=none`.
    #[serde(deserialize_with = "or_default")]
    pub overwrite_env: bool,
    /// Memory of containers that name none, in MiB regardless of the factor; 0 is the whole device.
    #[serde(deserialize_with = "or_default")]
    pub default_memory: u32,
    /// Compute of containers that name none, in percent.
    #[serde(deserialize_with = "or_default")]
    pub default_cores: u32,
    /// The number of devices of containers that name only memory or compute.
    #[serde(rename = "defaultGPUNum")]
    #[serde(deserialize_with = "or_number::<1, _>")]
    pub default_gpu_num: u32,
    /// The number of MiB in one unit of the memory resource.
    #[serde(deserialize_with = "or_number::<1, _>")]
    pub memory_factor: u32,
    /// The number of containers that share a device.
    #[serde(deserialize_with = "or_number::<10, _>")]
    pub device_split_count: u32,
    /// The factor by which a device's memory is overcommitted.
    #[serde(deserialize_with = "or_once")]
    pub device_memory_scaling: f64,
    /// The factor by which a device's compute is overcommitted.
    #[serde(deserialize_with = "or_once")]
    pub device_core_scaling: f64,
    /// Memory of a device in MiB, if the driver is not asked for it; 0 asks the driver.
    #[serde(deserialize_with = "or_default")]
    pub pre_configured_device_memory: u64,
    /// Whether the plugin reports a device's NUMA node to the kubelet.
    #[serde(deserialize_with = "or_default")]
    pub enable_numa_topology: bool,
    /// When the compute share is enforced.
    #[serde(deserialize_with = "or_default")]
    pub gpu_core_policy: CorePolicy,
    /// The log level of the library in the container: 0 errors, 1 warnings, 3 information, 4 all.
    #[serde(deserialize_with = "or_number::<1, _>")]
    pub lib_cuda_log_level: u32,
    /// Runtime class of pods with a device that name none; empty leaves them unchanged.
    #[serde(deserialize_with = "or_default")]
    pub runtime_class_name: String,
    /// Whether compute shares are never enforced.
    #[serde(deserialize_with = "or_default")]
    pub disable_core_limit: bool,
    /// The offered MIG profiles, by model. All profiles of a model without an entry are offered.
    #[serde(deserialize_with = "or_default")]
    pub mig_profile_allowlist: Vec<MigAllowed>,
}

impl Default for Nvidia {
    fn default() -> Self {
        Self {
            resource_count_name: String::new(),
            resource_memory_name: String::new(),
            resource_memory_percentage_name: String::new(),
            resource_core_name: String::new(),
            resource_priority_name: String::new(),
            overwrite_env: false,
            default_memory: 0,
            default_cores: 0,
            default_gpu_num: 1,
            memory_factor: 1,
            device_split_count: 10,
            device_memory_scaling: 1.0,
            device_core_scaling: 1.0,
            pre_configured_device_memory: 0,
            enable_numa_topology: false,
            gpu_core_policy: CorePolicy::Default,
            lib_cuda_log_level: 1,
            runtime_class_name: String::new(),
            disable_core_limit: false,
            mig_profile_allowlist: Vec::new(),
        }
    }
}

/// MIG profiles that some models offer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct MigAllowed {
    /// Parts of models' names.
    #[serde(deserialize_with = "or_default")]
    pub models: Vec<String>,
    /// Names of profiles (`3g.40gb`).
    #[serde(deserialize_with = "or_default")]
    pub profiles: Vec<String>,
}

/// Cambricon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Cambricon {
    /// The resource for the number of devices.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// The resource for memory on each, in units of 256 MiB.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
    /// The resource for compute on each, in percent.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
}

/// Hygon.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Hygon {
    /// The resource for the number of devices.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// The resource for memory on each.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
    /// The resource for compute on each, in percent.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
    /// The number of MiB in one unit of the memory resource.
    #[serde(deserialize_with = "or_number::<1, _>")]
    pub memory_factor: u32,
}

impl Default for Hygon {
    fn default() -> Self {
        Self {
            resource_count_name: String::new(),
            resource_memory_name: String::new(),
            resource_core_name: String::new(),
            memory_factor: 1,
        }
    }
}

/// MetaX.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Metax {
    /// The resource for the number of whole devices.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// The resource for the number of shares of devices.
    #[serde(rename = "resourceVCountName")]
    #[serde(deserialize_with = "or_default")]
    pub resource_v_count_name: String,
    /// The resource for memory on each share.
    #[serde(rename = "resourceVMemoryName")]
    #[serde(deserialize_with = "or_default")]
    pub resource_v_memory_name: String,
    /// The resource for compute on each share, in percent.
    #[serde(rename = "resourceVCoreName")]
    #[serde(deserialize_with = "or_default")]
    pub resource_v_core_name: String,
    /// Whether shares of one pod are on devices of one link zone if possible.
    #[serde(deserialize_with = "or_default")]
    pub sgpu_topology_aware: bool,
}

/// Enflame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Enflame {
    /// The resource for the number of whole devices.
    #[serde(rename = "resourceNameGCU")]
    #[serde(deserialize_with = "or_default")]
    pub resource_name_gcu: String,
    /// The resource for the number of slices of a device.
    #[serde(rename = "resourceNameDRSGCU")]
    #[serde(deserialize_with = "or_default")]
    pub resource_name_drs_gcu: String,
    /// The resource for memory, in GB.
    #[serde(rename = "resourceNameGCUMemory")]
    #[serde(deserialize_with = "or_default")]
    pub resource_name_gcu_memory: String,
    /// The resource for compute.
    #[serde(rename = "resourceNameGCUCore")]
    #[serde(deserialize_with = "or_default")]
    pub resource_name_gcu_core: String,
    /// The resource for the number of shares of a device, in older releases.
    #[serde(rename = "resourceNameVGCU")]
    #[serde(deserialize_with = "or_default")]
    pub resource_name_vgcu: String,
    /// The resource for the percentage of a device, in older releases.
    #[serde(rename = "resourceNameVGCUPercentage")]
    #[serde(deserialize_with = "or_default")]
    pub resource_name_vgcu_percentage: String,
}

/// Moore Threads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Mthreads {
    /// The resource for the number of devices.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// The resource for memory on each, in units of 512 MiB.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
    /// The resource for compute on each, in sixteenths.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
}

/// A chip of Iluvatar.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Iluvatar {
    /// Name of the chip.
    #[serde(deserialize_with = "or_default")]
    pub chip_name: String,
    /// The vendor's word in annotations.
    #[serde(deserialize_with = "or_default")]
    pub common_word: String,
    /// The resource for the number of devices.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// The resource for memory on each, in units of 256 MiB.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
    /// The resource for compute on each, in percent.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
}

/// Kunlunxin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Kunlun {
    /// The resource for the number of whole devices.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// The resource for the number of shares of devices.
    #[serde(rename = "resourceVCountName")]
    #[serde(deserialize_with = "or_default")]
    pub resource_v_count_name: String,
    /// The resource for memory on each share, in MiB.
    #[serde(rename = "resourceVMemoryName")]
    #[serde(deserialize_with = "or_default")]
    pub resource_v_memory_name: String,
}

/// AWS Neuron.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AwsNeuron {
    /// The resource for the number of whole devices.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// The resource for the number of cores.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
}

/// AMD.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Amd {
    /// The resource for the number of devices.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// The resource for compute on each, in percent.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
    /// The resource for memory on each, in MiB.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
}

/// A vendor whose devices are only counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct CountedVendor {
    /// The resource for the number of devices.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
}

/// Huawei Ascend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Vnpus {
    /// Whether devices are shared in software on nodes that do not say.
    #[serde(deserialize_with = "or_default")]
    pub hami_vnpu_core: bool,
    /// The chips.
    #[serde(deserialize_with = "or_default")]
    pub configs: Vec<Ascend>,
}

/// A chip of Huawei Ascend.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Ascend {
    /// Name of the chip.
    #[serde(deserialize_with = "or_default")]
    pub chip_name: String,
    /// The vendor's word in annotations.
    #[serde(deserialize_with = "or_default")]
    pub common_word: String,
    /// The resource for the number of devices.
    #[serde(deserialize_with = "or_default")]
    pub resource_name: String,
    /// The resource for memory on each.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
    /// The resource for compute on each, if devices are shared in software.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
    /// Memory that can be promised, in MiB.
    #[serde(deserialize_with = "or_default")]
    pub memory_allocatable: u64,
    /// Physical memory, in MiB.
    #[serde(deserialize_with = "or_default")]
    pub memory_capacity: u64,
    /// The number of MiB in one unit of the memory resource.
    #[serde(deserialize_with = "or_number::<1, _>")]
    pub memory_factor: u32,
    /// Cores of the chip.
    #[serde(deserialize_with = "or_default")]
    pub ai_core: u32,
    /// Control processors of the chip.
    #[serde(rename = "aiCPU")]
    #[serde(deserialize_with = "or_default")]
    pub ai_cpu: u32,
    /// Runtime class of pods with a device that name none; empty leaves them unchanged.
    #[serde(deserialize_with = "or_default")]
    pub runtime_class_name: String,
    /// Whether devices are hidden from containers without one.
    #[serde(deserialize_with = "or_default")]
    pub overwrite_env: bool,
    /// Whether two dies form one module and are only given together.
    #[serde(deserialize_with = "or_default")]
    pub super_pod: bool,
    /// The templates into which a device can be divided.
    #[serde(deserialize_with = "or_default")]
    pub templates: Vec<AscendTemplate>,
}

impl Default for Ascend {
    fn default() -> Self {
        Self {
            chip_name: String::new(),
            common_word: String::new(),
            resource_name: String::new(),
            resource_memory_name: String::new(),
            resource_core_name: String::new(),
            memory_allocatable: 0,
            memory_capacity: 0,
            memory_factor: 1,
            ai_core: 0,
            ai_cpu: 0,
            runtime_class_name: String::new(),
            overwrite_env: false,
            super_pod: false,
            templates: Vec::new(),
        }
    }
}

/// A template into which a chip of Huawei Ascend can be divided.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AscendTemplate {
    /// Name, as the driver gives it (`vir05_1c_16g`).
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Memory, in MiB.
    #[serde(deserialize_with = "or_default")]
    pub memory: u64,
    /// Cores.
    #[serde(deserialize_with = "or_default")]
    pub ai_core: u32,
    /// Control processors.
    #[serde(rename = "aiCPU")]
    #[serde(deserialize_with = "or_default")]
    pub ai_cpu: u32,
}
