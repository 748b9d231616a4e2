//! The configuration of this node: `device-config.yaml` and the node's entry in the per-node file, read as one and read
//! again when a file changes. Text in, values out; never the driver.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kube_api::config::{DeviceConfig, FilteredDevices, NodeOverrides, Nvidia, OperatingMode};

/// How GPUs in MIG mode are offered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MigStrategy {
    /// Not at all: a GPU in MIG mode is left out.
    #[default]
    None,
    /// Beside whole GPUs; instances are made as pods ask for them.
    Mixed,
}

/// No MIG strategy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StrategyError {
    /// NVIDIA's plugin has it, this agent does not.
    #[error(
        "\"single\" is not served: instances are made as pods ask for them, which is \"mixed\""
    )]
    Single,
    /// Any other text.
    #[error("{0:?} is no MIG strategy; accepted: none, mixed")]
    Unknown(String),
}

/// Why the configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// The device configuration's file does not exist.
    #[error("{path}: there is no such file; mount the device configuration there, or leave --device-config-file out",
            path = path.display())]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// A file exists and cannot be read.
    #[error("{path}: {reason}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        reason: String,
    },
    /// The device configuration is invalid.
    #[error("device configuration: {0}")]
    DeviceConfig(String),
    /// The device configuration does not mention NVIDIA.
    #[error(
        "device configuration: there is no section nvidia, so this node's GPUs cannot be offered; add one"
    )]
    NoSection,
    /// The per-node configuration is invalid.
    #[error("per-node configuration: {0}")]
    NodeConfig(String),
    /// The node's entry names a MIG strategy that is none.
    #[error("per-node configuration: migstrategy of node {node}: {problem}")]
    Strategy {
        /// Name of the node.
        node: String,
        /// The problem with it.
        problem: StrategyError,
    },
}

impl std::str::FromStr for MigStrategy {
    type Err = StrategyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            "mixed" => Ok(Self::Mixed),
            "single" => Err(StrategyError::Single),
            other => Err(StrategyError::Unknown(other.to_owned())),
        }
    }
}

/// The rules of this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// NVIDIA's section of `device-config.yaml`, with what the node's entry changes.
    pub nvidia: Nvidia,
    /// How its GPUs are shared, where the node's entry says.
    pub mode: Option<OperatingMode>,
    /// How GPUs in MIG mode are offered.
    pub strategy: MigStrategy,
    /// GPUs that are not offered.
    pub filter: FilteredDevices,
    /// Whether the kubelet's choice of slots follows the scheduler's, where the node's entry says.
    pub prefer: Option<bool>,
}

impl Rules {
    /// Reads both texts; absent ones are the standard configuration and no entry.
    ///
    /// # Errors
    /// A text cannot be parsed, or has a value that is not accepted.
    pub fn parse(
        device_config: Option<&str>,
        node_config: Option<&str>,
        node: &str,
        strategy: MigStrategy,
    ) -> Result<Self, RulesError> {
        let config = match device_config {
            Some(text) => DeviceConfig::parse(text)
                .map_err(|error| RulesError::DeviceConfig(error.to_string()))?,
            None => DeviceConfig::standard(),
        };
        let nvidia = config.nvidia.ok_or(RulesError::NoSection)?;
        let overrides = match node_config {
            Some(text) => NodeOverrides::parse(text)
                .map_err(|error| RulesError::NodeConfig(error.to_string()))?,
            None => NodeOverrides::default(),
        };
        let Some(here) = overrides.of(node) else {
            return Ok(Self {
                nvidia,
                mode: None,
                strategy,
                filter: FilteredDevices::default(),
                prefer: None,
            });
        };
        Ok(Self {
            nvidia: here.apply(&nvidia),
            mode: here.operating_mode,
            strategy: if here.mig_strategy.is_empty() {
                strategy
            } else {
                let strategy = here.mig_strategy.parse();
                strategy.map_err(|problem| RulesError::Strategy {
                    node: node.to_owned(),
                    problem,
                })?
            },
            filter: here.filter_devices.clone(),
            prefer: here.enable_get_preferred_allocation,
        })
    }
}

/// The two files, as they were read last. A ConfigMap's files are symbolic links that are swapped as one, so what
/// counts is the text and not the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Texts {
    pub(super) device: Option<String>,
    pub(super) node: Option<String>,
}

impl Texts {
    /// Reads both.
    pub(super) fn read(device: Option<&Path>, node: Option<&Path>) -> Result<Self, RulesError> {
        let read = |path: &Path| match std::fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(RulesError::Unreadable {
                path: path.to_owned(),
                reason: error.to_string(),
            }),
        };
        let missing = |path: &Path| RulesError::Missing {
            path: path.to_owned(),
        };
        Ok(Self {
            device: match device {
                Some(path) => Some(read(path)?.ok_or_else(|| missing(path))?),
                None => None,
            },
            // The reference's chart always mounts this one, and often has nothing in it.
            node: node.map(read).transpose()?.flatten(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: &str = "nvidia: {resourceCountName: nvidia.com/gpu, deviceSplitCount: 5}";

    fn parse(node_config: &str) -> Result<Rules, RulesError> {
        Rules::parse(Some(DEVICE), Some(node_config), "n1", MigStrategy::None)
    }

    #[test]
    fn only_this_nodes_entry_applies() {
        let rules = parse(
            r#"{"nodeconfig":[{"name":"n2","devicesplitcount":3},{"name":"n1","operatingmode":"mig",
               "devicememoryscaling":1.5,"migstrategy":"mixed","filterdevices":{"index":[1]}}]}"#,
        )
        .unwrap();

        assert_eq!(rules.nvidia.device_split_count, 5);
        assert!((rules.nvidia.device_memory_scaling - 1.5).abs() < 1e-9);
        assert_eq!(rules.mode, Some(OperatingMode::Mig));
        assert_eq!(rules.strategy, MigStrategy::Mixed);
        assert_eq!(rules.filter.index, [1]);
        assert_eq!(
            parse(r#"{"nodeconfig":[{"name":"n2","devicesplitcount":3}]}"#)
                .unwrap()
                .nvidia
                .device_split_count,
            5
        );
    }

    #[test]
    fn invalid_configuration_error_quotes_the_value() {
        for (text, part) in [
            ("{", "per-node configuration"),
            (
                r#"{"nodeconfig":[{"name":"n1","migstrategy":"single"}]}"#,
                "mixed",
            ),
            (
                r#"{"nodeconfig":[{"name":"n1","migstrategy":"both"}]}"#,
                "both",
            ),
            (
                r#"{"nodeconfig":[{"name":"n1","devicememoryscaling":-1}]}"#,
                "-1 is no factor",
            ),
            (
                r#"{"nodeconfig":[{"name":"n1","splitcount":1}]}"#,
                "devicesplitcount",
            ),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let error = Rules::parse(
            Some("hygon: {resourceCountName: hygon.com/dcunum}"),
            None,
            "n1",
            MigStrategy::None,
        );
        assert_eq!(error.unwrap_err(), RulesError::NoSection);
    }
}
