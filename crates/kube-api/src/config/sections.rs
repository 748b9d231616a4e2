//! The sections of `device-config.yaml` as they are written. Never what they mean: that is `vendor`'s.

use serde::{Deserialize, Deserializer};

/// Null is the default, as in Go.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Null is this number.
fn or_number<'de, const NUMBER: u32, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<u32, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(NUMBER))
}

/// Null is 1, the factor that changes nothing.
fn or_once<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(1.0))
}

/// How the compute share of a container is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CorePolicy {
    /// Only while others want the card.
    #[default]
    Default,
    /// Always.
    Force,
    /// Never.
    Disable,
}

impl CorePolicy {
    /// The word, as it stands in the configuration and in the environment.
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
    /// How many cards.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// Memory on each.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
    /// Memory on each, in hundredths of the card.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_percentage_name: String,
    /// Compute on each, in percent.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
    /// Priority of the task: 0 is high.
    #[serde(deserialize_with = "or_default")]
    pub resource_priority_name: String,
    /// Whether containers without a card get `NVIDIA_VISIBLE_DEVICES=none`.
    #[serde(deserialize_with = "or_default")]
    pub overwrite_env: bool,
    /// Memory where the container names none, in MiB whatever the factor; 0 is the whole card.
    #[serde(deserialize_with = "or_default")]
    pub default_memory: u32,
    /// Compute where the container names none, in percent.
    #[serde(deserialize_with = "or_default")]
    pub default_cores: u32,
    /// How many cards where the container names memory or compute alone.
    #[serde(rename = "defaultGPUNum")]
    #[serde(deserialize_with = "or_number::<1, _>")]
    pub default_gpu_num: u32,
    /// How many MiB one unit of the memory resource is.
    #[serde(deserialize_with = "or_number::<1, _>")]
    pub memory_factor: u32,
    /// How many containers share a card.
    #[serde(deserialize_with = "or_number::<10, _>")]
    pub device_split_count: u32,
    /// How often a card's memory is promised.
    #[serde(deserialize_with = "or_once")]
    pub device_memory_scaling: f64,
    /// How often a card's compute is promised.
    #[serde(deserialize_with = "or_once")]
    pub device_core_scaling: f64,
    /// Memory of a card in MiB where it is not asked of the driver; 0 asks.
    #[serde(deserialize_with = "or_default")]
    pub pre_configured_device_memory: u64,
    /// Whether the plugin tells the kubelet a card's NUMA node.
    #[serde(deserialize_with = "or_default")]
    pub enable_numa_topology: bool,
    /// How the compute share is kept.
    #[serde(deserialize_with = "or_default")]
    pub gpu_core_policy: CorePolicy,
    /// How much the library in the container logs: 0 errors, 1 warnings, 3 information, 4 all.
    #[serde(deserialize_with = "or_number::<1, _>")]
    pub lib_cuda_log_level: u32,
    /// Runtime class of pods with a card that name none; empty leaves them.
    #[serde(deserialize_with = "or_default")]
    pub runtime_class_name: String,
    /// Whether no compute share is kept at all.
    #[serde(deserialize_with = "or_default")]
    pub disable_core_limit: bool,
    /// Which MIG profiles are offered, by model. No entry for a model offers all.
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
    /// How many cards.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// Memory on each, in 256 MiB.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
    /// Compute on each, in percent.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
}

/// Hygon.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Hygon {
    /// How many cards.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// Memory on each.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
    /// Compute on each, in percent.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
    /// How many MiB one unit of the memory resource is.
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
    /// How many whole cards.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// How many shares of cards.
    #[serde(rename = "resourceVCountName")]
    #[serde(deserialize_with = "or_default")]
    pub resource_v_count_name: String,
    /// Memory on each share.
    #[serde(rename = "resourceVMemoryName")]
    #[serde(deserialize_with = "or_default")]
    pub resource_v_memory_name: String,
    /// Compute on each share, in percent.
    #[serde(rename = "resourceVCoreName")]
    #[serde(deserialize_with = "or_default")]
    pub resource_v_core_name: String,
    /// Whether shares of one pod lie on cards of one link zone where they can.
    #[serde(deserialize_with = "or_default")]
    pub sgpu_topology_aware: bool,
}

/// Enflame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Enflame {
    /// How many whole cards.
    #[serde(rename = "resourceNameGCU")]
    #[serde(deserialize_with = "or_default")]
    pub resource_name_gcu: String,
    /// How many slices of a card.
    #[serde(rename = "resourceNameDRSGCU")]
    #[serde(deserialize_with = "or_default")]
    pub resource_name_drs_gcu: String,
    /// Memory, in GB.
    #[serde(rename = "resourceNameGCUMemory")]
    #[serde(deserialize_with = "or_default")]
    pub resource_name_gcu_memory: String,
    /// Compute.
    #[serde(rename = "resourceNameGCUCore")]
    #[serde(deserialize_with = "or_default")]
    pub resource_name_gcu_core: String,
    /// How many shares of a card, in older releases.
    #[serde(rename = "resourceNameVGCU")]
    #[serde(deserialize_with = "or_default")]
    pub resource_name_vgcu: String,
    /// Hundredths of a card, in older releases.
    #[serde(rename = "resourceNameVGCUPercentage")]
    #[serde(deserialize_with = "or_default")]
    pub resource_name_vgcu_percentage: String,
}

/// Moore Threads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Mthreads {
    /// How many cards.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// Memory on each, in 512 MiB.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
    /// Compute on each, in sixteenths.
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
    /// Word of the vendor in annotations.
    #[serde(deserialize_with = "or_default")]
    pub common_word: String,
    /// How many cards.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// Memory on each, in 256 MiB.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
    /// Compute on each, in percent.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
}

/// Kunlunxin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Kunlun {
    /// How many whole cards.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// How many shares of cards.
    #[serde(rename = "resourceVCountName")]
    #[serde(deserialize_with = "or_default")]
    pub resource_v_count_name: String,
    /// Memory on each share, in MiB.
    #[serde(rename = "resourceVMemoryName")]
    #[serde(deserialize_with = "or_default")]
    pub resource_v_memory_name: String,
}

/// AWS Neuron.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AwsNeuron {
    /// How many whole devices.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// How many cores.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
}

/// AMD.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Amd {
    /// How many cards.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
    /// Compute on each, in percent.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
    /// Memory on each, in MiB.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
}

/// A vendor whose cards are only counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Counted {
    /// How many cards.
    #[serde(deserialize_with = "or_default")]
    pub resource_count_name: String,
}

/// Huawei Ascend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Vnpus {
    /// Whether cards are shared in software on nodes that do not say.
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
    /// Word of the vendor in annotations.
    #[serde(deserialize_with = "or_default")]
    pub common_word: String,
    /// How many cards.
    #[serde(deserialize_with = "or_default")]
    pub resource_name: String,
    /// Memory on each.
    #[serde(deserialize_with = "or_default")]
    pub resource_memory_name: String,
    /// Compute on each, where cards are shared in software.
    #[serde(deserialize_with = "or_default")]
    pub resource_core_name: String,
    /// Memory that can be promised, in MiB.
    #[serde(deserialize_with = "or_default")]
    pub memory_allocatable: u64,
    /// Memory that there is, in MiB.
    #[serde(deserialize_with = "or_default")]
    pub memory_capacity: u64,
    /// How many MiB one unit of the memory resource is.
    #[serde(deserialize_with = "or_number::<1, _>")]
    pub memory_factor: u32,
    /// Cores of the chip.
    #[serde(deserialize_with = "or_default")]
    pub ai_core: u32,
    /// Control processors of the chip.
    #[serde(rename = "aiCPU")]
    #[serde(deserialize_with = "or_default")]
    pub ai_cpu: u32,
    /// Runtime class of pods with a card that name none; empty leaves them.
    #[serde(deserialize_with = "or_default")]
    pub runtime_class_name: String,
    /// Whether containers without a card are kept from seeing one.
    #[serde(deserialize_with = "or_default")]
    pub overwrite_env: bool,
    /// Whether two dies make one card, which only go together.
    #[serde(deserialize_with = "or_default")]
    pub super_pod: bool,
    /// Into what a card can be cut.
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

/// Into what a chip of Huawei Ascend can be cut.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AscendTemplate {
    /// Name, as the driver has it (`vir05_1c_16g`).
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
