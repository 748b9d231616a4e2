//! The per-node file of the reference's device plugin, `{"nodeconfig": [...]}`: what holds on one node instead of
//! `device-config.yaml`. Never which node this is.

use serde::Deserialize;

use super::sections::or_default;
use super::{ConfigError, Nvidia, from_yaml};

/// What holds on single nodes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeOverrides {
    /// One entry for each node.
    #[serde(rename = "nodeconfig", deserialize_with = "or_default")]
    pub nodes: Vec<NodeOverride>,
}

/// How cards are shared on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperatingMode {
    /// In software.
    HamiCore,
    /// In instances that the card itself keeps apart.
    Mig,
    /// By NVIDIA's own server.
    Mps,
}

impl OperatingMode {
    /// The word, as it stands in the configuration and in register annotations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HamiCore => "hami-core",
            Self::Mig => "mig",
            Self::Mps => "mps",
        }
    }
}

/// What holds on one node; what is absent is as in `device-config.yaml`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeOverride {
    /// Name of the node.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// How its cards are shared.
    #[serde(rename = "operatingmode")]
    pub operating_mode: Option<OperatingMode>,
    /// How many containers share a card; 0 says nothing.
    #[serde(rename = "devicesplitcount")]
    #[serde(deserialize_with = "or_default")]
    pub device_split_count: u32,
    /// How often a card's memory is promised; 0 says nothing.
    #[serde(rename = "devicememoryscaling")]
    #[serde(deserialize_with = "or_default")]
    pub device_memory_scaling: f64,
    /// How often a card's compute is promised; 0 says nothing.
    #[serde(rename = "devicecorescaling")]
    #[serde(deserialize_with = "or_default")]
    pub device_core_scaling: f64,
    /// Memory of a card in MiB where it is not asked of the driver; 0 says nothing.
    #[serde(rename = "preconfigureddevicememory")]
    #[serde(deserialize_with = "or_default")]
    pub pre_configured_device_memory: u64,
    /// How much the library in the container logs.
    #[serde(rename = "libcudaloglevel")]
    pub lib_cuda_log_level: Option<u32>,
    /// Whether the plugin tells the kubelet a card's NUMA node.
    #[serde(rename = "enablenumatopology")]
    pub enable_numa_topology: Option<bool>,
    /// `none`, `single` or `mixed`: how the plugin offers MIG instances.
    #[serde(rename = "migstrategy")]
    #[serde(deserialize_with = "or_default")]
    pub mig_strategy: String,
    /// Cards that are not offered.
    #[serde(rename = "filterdevices", deserialize_with = "or_default")]
    pub filter_devices: FilteredDevices,
    /// Whether the kubelet's choice of slots follows the scheduler's.
    #[serde(rename = "enablegetpreferredallocation")]
    pub enable_get_preferred_allocation: Option<bool>,
}

/// Cards that are not offered.
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
    /// With line and column when it is neither, has an unknown key or a value of another kind; when a node stands in
    /// it twice, or a factor is below 0.
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

    /// What holds on this node.
    pub fn of(&self, node: &str) -> Option<&NodeOverride> {
        self.nodes.iter().find(|entry| entry.name == node)
    }
}

impl NodeOverride {
    /// NVIDIA's section as it holds on this node.
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
