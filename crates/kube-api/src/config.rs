//! `device-config.yaml`, as the reference reads it: the resources and the defaults of pods. Unknown keys are refused
//! with their line. Does not judge a pod's request.
//!
//! The names of the sections and keys are those of HAMi v2.10's `device-config.yaml`.

mod hcs;
mod nodes;
mod sections;

use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use hcs::{ANY, Hcs, HcsProfile, ImageRule};
pub use nodes::{FilteredDevices, NodeOverride, NodeOverrides, OperatingMode};
pub use sections::{
    Amd, Ascend, AscendTemplate, AwsNeuron, Cambricon, CorePolicy, CountedVendor, Enflame, Hygon,
    Iluvatar, Kunlun, Metax, MigAllowed, Mthreads, Nvidia, Vnpus,
};

/// The configuration of devices. A section that is absent or null disables its vendor.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceConfig {
    /// NVIDIA.
    pub nvidia: Option<Nvidia>,
    /// Cambricon (`MLU`).
    pub cambricon: Option<Cambricon>,
    /// Hygon (`DCU`).
    pub hygon: Option<Hygon>,
    /// MetaX, whole and shared devices.
    pub metax: Option<Metax>,
    /// Enflame, whole and sliced devices.
    pub enflame: Option<Enflame>,
    /// Moore Threads.
    pub mthreads: Option<Mthreads>,
    /// Iluvatar, one entry for each chip.
    #[serde(deserialize_with = "sections::or_default")]
    pub iluvatars: Vec<Iluvatar>,
    /// Kunlunxin, whole and shared devices.
    pub kunlun: Option<Kunlun>,
    /// AWS Neuron.
    pub awsneuron: Option<AwsNeuron>,
    /// AMD.
    pub amd: Option<Amd>,
    /// Vastai.
    pub vastai: Option<CountedVendor>,
    /// Biren.
    pub biren: Option<CountedVendor>,
    /// Huawei Ascend, one entry for each chip.
    pub vnpus: Option<Vnpus>,
    /// The rules for requests of hcs.io, over the vendors above.
    pub hcs: Option<Hcs>,
}

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not YAML, or a value has the wrong type for its key.
    #[error("line {line}, column {column}: {problem}")]
    Unreadable {
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// The error there.
        problem: String,
    },
    /// An unknown key.
    #[error(
        "line {line}, column {column}: unknown key {key}{}{}",
        hint(nearest),
        accepted(known)
    )]
    UnknownKey {
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// The key as it was written.
        key: String,
        /// The accepted key that is most similar, if there is one.
        nearest: Option<String>,
        /// All keys that are accepted there.
        known: Vec<&'static str>,
    },
    /// All sections are empty.
    #[error("no vendor is configured; write at least one section, such as nvidia")]
    Empty,
    /// A value is out of range.
    #[error("{key}: {problem}")]
    Wrong {
        /// The key.
        key: String,
        /// The value that was read and the values that are accepted.
        problem: String,
    },
}

fn hint(nearest: &Option<String>) -> String {
    nearest
        .as_ref()
        .map_or_else(String::new, |key| format!(", did you mean {key}?"))
}

fn accepted(known: &[&str]) -> String {
    format!(" (accepted: {})", known.join(", "))
}

/// The defaults without a file.
const STANDARD: &str = include_str!("config/standard.yaml");

impl DeviceConfig {
    /// Reads YAML text.
    ///
    /// # Errors
    ///
    /// With line and column if the text is not YAML, has an unknown key or a value of the wrong type; if it is empty;
    /// and if a value is out of range (a factor of 0, a share above 100).
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Option<Self> = from_yaml(text)?;
        let config = config.ok_or(ConfigError::Empty)?;
        if config == Self::default() {
            return Err(ConfigError::Empty);
        }
        config.judge()?;
        Ok(config)
    }

    /// The configuration without a file: the reference's own defaults, all vendors.
    pub fn standard() -> Self {
        Self::parse(STANDARD).expect("a test reads it")
    }
}

/// Reads YAML as any of our types.
fn from_yaml<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| explain(&error))
}

fn explain(error: &serde_saphyr::Error) -> ConfigError {
    let error = error.without_snippet();
    let (line, column) = error
        .location()
        .map_or((1, 1), |at| (at.line().max(1), at.column().max(1)));
    match error {
        serde_saphyr::Error::SerdeUnknownField {
            field, expected, ..
        } => ConfigError::UnknownKey {
            line,
            column,
            key: field.clone(),
            nearest: nearest(field, expected),
            known: expected.clone(),
        },
        other => ConfigError::Unreadable {
            line,
            column,
            problem: plain(other),
        },
    }
}

/// The first line of the error's text, without the position, which we add ourselves.
fn plain(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    let cut = first.find(" at line ").unwrap_or(first.len());
    first.get(..cut).unwrap_or(first).to_owned()
}

/// The accepted key with the fewest changed letters, if at most a third of them change.
fn nearest(written: &str, accepted: &[&str]) -> Option<String> {
    let lower = written.to_lowercase();
    accepted
        .iter()
        .map(|key| (distance(&lower, &key.to_lowercase()), key))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, key)| *distance * 3 <= key.len().max(written.len()))
        .map(|(_, key)| (*key).to_owned())
}

/// The number of letters to insert, remove or change to turn one word into the other (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, left) in from.chars().enumerate() {
        let mut diagonal = line;
        let mut before = line + 1;
        let mut next = vec![before];
        for (up, right) in row.iter().skip(1).zip(&to) {
            let cost = diagonal + usize::from(left != *right);
            before = cost.min(before + 1).min(up + 1);
            diagonal = *up;
            next.push(before);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

impl DeviceConfig {
    /// Checks for values that no pod could ever use.
    fn judge(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, problem: String| {
            Err(ConfigError::Wrong {
                key: key.to_owned(),
                problem,
            })
        };
        if let Some(hcs) = &self.hcs {
            hcs.judge()?;
        }
        if let Some(nvidia) = &self.nvidia {
            for (key, scaling) in [
                ("nvidia.deviceMemoryScaling", nvidia.device_memory_scaling),
                ("nvidia.deviceCoreScaling", nvidia.device_core_scaling),
            ] {
                if !(scaling.is_finite() && scaling > 0.0) {
                    return wrong(key, format!("{scaling} is no factor; write 1 or more"));
                }
            }
            if nvidia.default_cores > 100 {
                return wrong(
                    "nvidia.defaultCores",
                    format!("{} is above 100, a whole device", nvidia.default_cores),
                );
            }
        }
        Ok(())
    }
}
