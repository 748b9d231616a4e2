//! The limits that another stack's environment variables state: HAMi's device plugin, an hcs.io webhook, or a
//! person sets them. The library honours them, and `vgpu run` keeps to them when it is started within them,
//! so both read them here.
//!
//! Reads no environment: the caller says what a variable holds.

use std::fmt;

use crate::layout::MAX_DEVICES;
use crate::limits::Policy;
use crate::size::{self, SizeError};

/// The priority of a container whose variables name none.
const USUAL_PRIORITY: u32 = 1;

/// The values of the variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerLimits {
    /// Memory by device, bytes; 0 is no limit.
    pub memory_bytes: [u64; MAX_DEVICES],
    /// Compute time by device, percent; 0 and 100 are no cap.
    pub core_percent: [u32; MAX_DEVICES],
    /// Priority, 0 is the highest.
    pub priority: u32,
    /// When the cap counts.
    pub policy: Policy,
}

/// A variable that was not understood. Nothing runs with a limit that was not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerError {
    /// The variable's value is no size.
    Size {
        /// The variable.
        name: String,
        /// The fault.
        error: SizeError,
    },
    /// The variable's value is not accepted.
    Value {
        /// The variable.
        name: String,
        /// The text that was read.
        read: String,
        /// The texts that are accepted.
        accepted: &'static str,
    },
}

impl PeerError {
    /// The variable.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Size { name, .. } | Self::Value { name, .. } => name,
        }
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { name, error } => write!(f, "{name}: {error}"),
            Self::Value {
                name,
                read,
                accepted,
            } => write!(f, "{name} is {read:?}; accepted: {accepted}"),
        }
    }
}

impl std::error::Error for PeerError {}

/// The values of the variables, each asked of `variable`; `None` where none of them sets a limit.
///
/// A device's own variable counts before the one for all devices, and a memory limit of 0 is as if it was not
/// set, as HAMi reads it. Of two families of variables the smaller memory limit counts.
///
/// # Errors
/// Names the variable, what was read and what is accepted.
pub fn read(variable: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Option<PeerLimits>, PeerError> {
    let variables = Variables(variable);
    let quota = variables.size("HCS_VRAM_QUOTA")?;
    let memory = variables.size("CUDA_DEVICE_MEMORY_LIMIT")?;
    let cores = variables.percent("CUDA_DEVICE_SM_LIMIT")?;
    let mut is_any_set = quota.is_some() || memory.is_some() || cores.is_some();
    let mut limits = PeerLimits {
        memory_bytes: [0; MAX_DEVICES],
        core_percent: [0; MAX_DEVICES],
        priority: variables.priority()?,
        policy: variables.policy()?,
    };
    let devices = limits.memory_bytes.iter_mut().zip(&mut limits.core_percent);
    for (device, (bytes, percent)) in devices.enumerate() {
        let own_memory = variables.size(&format!("CUDA_DEVICE_MEMORY_LIMIT_{device}"))?;
        let own_cores = variables.percent(&format!("CUDA_DEVICE_SM_LIMIT_{device}"))?;
        is_any_set |= own_memory.is_some() || own_cores.is_some();
        *bytes = memory_limit(own_memory, memory, quota);
        *percent = own_cores.or(cores).unwrap_or(0);
    }
    Ok(is_any_set.then_some(limits))
}

/// The limit of a device, from its own variable, the one for all devices, and the quota; 0 is no limit.
fn memory_limit(own: Option<u64>, every: Option<u64>, quota: Option<u64>) -> u64 {
    let set = |bytes: &u64| *bytes > 0;
    let named = own.filter(set).or(every.filter(set));
    let smallest = [named, quota.filter(set)].into_iter().flatten().min();
    smallest.unwrap_or(0)
}

struct Variables<V>(V);

impl<V: Fn(&str) -> Option<Vec<u8>>> Variables<V> {
    fn text(&self, name: &str) -> Option<String> {
        let value = (self.0)(name)?;
        Some(String::from_utf8_lossy(&value).trim().to_owned())
    }

    fn size(&self, name: &str) -> Result<Option<u64>, PeerError> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        let bytes = size::parse_peer(&value).map_err(|error| PeerError::Size {
            name: name.to_owned(),
            error,
        })?;
        Ok(Some(bytes))
    }

    fn number(
        &self,
        name: &str,
        highest: u32,
        accepted: &'static str,
    ) -> Result<Option<u32>, PeerError> {
        let Some(read) = self.text(name) else {
            return Ok(None);
        };
        match read.parse() {
            Ok(number) if number <= highest => Ok(Some(number)),
            _ => Err(PeerError::Value {
                name: name.to_owned(),
                read,
                accepted,
            }),
        }
    }

    fn percent(&self, name: &str) -> Result<Option<u32>, PeerError> {
        self.number(name, 100, "a whole number from 0 to 100")
    }

    fn priority(&self) -> Result<u32, PeerError> {
        let accepted = "a whole number, 0 is the highest";
        let read = self.number("CUDA_TASK_PRIORITY", u32::MAX, accepted)?;
        Ok(read.unwrap_or(USUAL_PRIORITY))
    }

    fn policy(&self) -> Result<Policy, PeerError> {
        let name = "GPU_CORE_UTILIZATION_POLICY";
        let read = self.text(name).unwrap_or_default();
        match read.to_ascii_lowercase().as_str() {
            "default" | "" => Ok(Policy::Default),
            "force" => Ok(Policy::Force),
            "disable" => Ok(Policy::Disable),
            _ => Err(PeerError::Value {
                name: name.to_owned(),
                read,
                accepted: "default, force, disable",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(set: &[(&str, &str)]) -> Result<Option<PeerLimits>, PeerError> {
        read(|name| {
            let found = set.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.as_bytes().to_vec())
        })
    }

    fn limits(set: &[(&str, &str)]) -> PeerLimits {
        read_of(set).unwrap().unwrap()
    }

    #[test]
    fn no_variable_is_no_limits() {
        assert_eq!(read_of(&[]), Ok(None));
        assert_eq!(read_of(&[("CUDA_TASK_PRIORITY", "0")]), Ok(None));
    }

    #[test]
    fn own_limit_counts_before_the_common_one() {
        let limits = limits(&[
            ("CUDA_DEVICE_MEMORY_LIMIT", "4Gi"),
            ("CUDA_DEVICE_MEMORY_LIMIT_1", "100m"),
            ("CUDA_DEVICE_SM_LIMIT", "30"),
            ("CUDA_DEVICE_SM_LIMIT_1", "0"),
        ]);

        assert_eq!(limits.memory_bytes[..3], [4 << 30, 100 << 20, 4 << 30]);
        assert_eq!(limits.core_percent[..3], [30, 0, 30]);
        assert_eq!((limits.priority, limits.policy), (1, Policy::Default));
    }

    #[test]
    fn own_memory_limit_of_zero_lifts_no_common_one() {
        let limits = limits(&[
            ("CUDA_DEVICE_MEMORY_LIMIT", "4g"),
            ("CUDA_DEVICE_MEMORY_LIMIT_0", "0"),
        ]);

        assert_eq!(limits.memory_bytes[..2], [4 << 30, 4 << 30]);
    }

    #[test]
    fn smaller_of_two_families_counts() {
        for (own, every, quota, limit) in [
            (None, Some(4), Some(5), 4),
            (Some(6), Some(4), Some(5), 5),
            (Some(0), Some(4), Some(5), 4),
            (Some(0), None, Some(5), 5),
            (None, Some(4), Some(0), 4),
            (Some(0), Some(0), Some(0), 0),
            (None, None, None, 0),
        ] {
            assert_eq!(
                memory_limit(own, every, quota),
                limit,
                "{own:?} {every:?} {quota:?}"
            );
        }
    }

    #[test]
    fn error_names_the_variable() {
        for (name, value) in [
            ("CUDA_DEVICE_MEMORY_LIMIT", "4x"),
            ("CUDA_DEVICE_MEMORY_LIMIT_3", "-1"),
            ("HCS_VRAM_QUOTA", ""),
            ("CUDA_DEVICE_SM_LIMIT", "101"),
            ("CUDA_TASK_PRIORITY", "high"),
            ("GPU_CORE_UTILIZATION_POLICY", "sometimes"),
        ] {
            let error = read_of(&[(name, value)]).unwrap_err();

            assert_eq!(error.name(), name);
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
