//! The per-node file of the reference's device plugin, `{"nodeconfig": [...]}`: the values that replace those of
//! `device-config.yaml` on one node. Does not know which node this is.

use serde::Deserialize;

use super::sections::or_default;
use super::{ConfigError, Nvidia, from_yaml};

/// The values for single nodes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeOverrides {
    /// One entry for each node.
    #[serde(rename = "nodeconfig", deserialize_with = "or_default")]
    pub nodes: Vec<NodeOverride>,
}

/// How devices are shared on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperatingMode {
    /// In software, by the library.
    HamiCore,
    /// In MIG instances.
    Mig,
    /// By NVIDIA's MPS server.
    Mps,
}

impl OperatingMode {
    /// The word in the configuration and in register annotations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HamiCore => "hami-core",
            Self::Mig => "mig",
            Self::Mps => "mps",
        }
    }
}

/// The values for one node; absent ones are as in `device-config.yaml`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeOverride {
    /// Name of the node.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// How its devices are shared.
    #[serde(rename = "operatingmode")]
    pub operating_mode: Option<OperatingMode>,
    /// The number of containers that share a device; 0 means unset.
    #[serde(rename = "devicesplitcount")]
    #[serde(deserialize_with = "or_default")]
    pub device_split_count: u32,
    /// The factor by which a device's memory is overcommitted; 0 means unset.
    #[serde(rename = "devicememoryscaling")]
    #[serde(deserialize_with = "or_default")]
    pub device_memory_scaling: f64,
    /// The factor by which a device's compute is overcommitted; 0 means unset.
    #[serde(rename = "devicecorescaling")]
    #[serde(deserialize_with = "or_default")]
    pub device_core_scaling: f64,
    /// Memory of a device in MiB, if the driver is not asked for it; 0 means unset.
    #[serde(rename = "preconfigureddevicememory")]
    #[serde(deserialize_with = "or_default")]
    pub pre_configured_device_memory: u64,
    /// The log level of the library in the container.
    #[serde(rename = "libcudaloglevel")]
    pub lib_cuda_log_level: Option<u32>,
    /// Whether the plugin reports a device's NUMA node to the kubelet.
    #[serde(rename = "enablenumatopology")]
    pub enable_numa_topology: Option<bool>,
    /// `none`, `single` or `mixed`: how the plugin offers MIG instances.
    #[serde(rename = "migstrategy")]
    #[serde(deserialize_with = "or_default")]
    pub mig_strategy: String,
    /// Devices that are not offered.
    #[serde(rename = "filterdevices", deserialize_with = "or_default")]
    pub filter_devices: FilteredDevices,
    /// Whether the kubelet's choice of slots follows the scheduler's.
    #[serde(rename = "enablegetpreferredallocation")]
    pub enable_get_preferred_allocation: Option<bool>,
}

/// Devices that are not offered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilteredDevices {
    /// By identifier.
    #[serde(deserialize_with = "or_default")]
    pub uuid: Vec<String>,
    /// By position on the node.
    #[serde(deserialize_with = "or_default")]
    pub index: Vec<u32>,
}

impl NodeOverrides {
    /// Reads the file's text, JSON or YAML.
    ///
    /// # Errors
    ///
    /// With line and column if the text is neither, has an unknown key or a value of the wrong type; if a node is
    /// listed twice, or a factor is below 0.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let overrides: Self = from_yaml::<Option<Self>>(text)?.unwrap_or_default();
        for (at, node) in overrides.nodes.iter().enumerate() {
            let wrong = |problem: String| {
                Err(ConfigError::Wrong {
                    key: format!("nodeconfig[{at}]"),
                    problem,
                })
            };
            let mut before = overrides.nodes.iter().take(at);
            if before.any(|other| other.name == node.name) {
                return wrong(format!(
                    "node {:?} stands here a second time; put what holds there into one entry",
                    node.name
                ));
            }
            for scaling in [node.device_memory_scaling, node.device_core_scaling] {
                if !(scaling.is_finite() && scaling >= 0.0) {
                    return wrong(format!("{scaling} is no factor; write 1 or more"));
                }
            }
        }
        Ok(overrides)
    }

    /// The values for this node.
    pub fn of(&self, node: &str) -> Option<&NodeOverride> {
        self.nodes.iter().find(|entry| entry.name == node)
    }
}

impl NodeOverride {
    /// NVIDIA's section with this node's values.
    pub fn apply(&self, nvidia: &Nvidia) -> Nvidia {
        let mut here = nvidia.clone();
        if self.device_split_count > 0 {
            here.device_split_count = self.device_split_count;
        }
        if self.device_memory_scaling > 0.0 {
            here.device_memory_scaling = self.device_memory_scaling;
        }
        if self.device_core_scaling > 0.0 {
            here.device_core_scaling = self.device_core_scaling;
        }
        if self.pre_configured_device_memory > 0 {
            here.pre_configured_device_memory = self.pre_configured_device_memory;
        }
        if let Some(level) = self.lib_cuda_log_level {
            here.lib_cuda_log_level = level;
        }
        if let Some(enable) = self.enable_numa_topology {
            here.enable_numa_topology = enable;
        }
        here
    }
}
