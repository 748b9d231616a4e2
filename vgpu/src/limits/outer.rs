//! The limits that already apply to this process. A new container can only lower them.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use supervisor::gpu::Gpu;
use supervisor::instance::INSIDE_LIMITS;
use vgpu_abi::limits::{DeviceLimit, Limits, LimitsFile, Policy, Unlisted};
use vgpu_abi::peers::PeerError;
use vgpu_abi::size::Size;

use super::device::{cap_of, resident_of};
use crate::failure::Misuse;
use crate::values::policy_word;

/// The default priority. It leaves room for a higher one.
pub(super) const USUAL_PRIORITY: u32 = 1;

/// The limits that already apply to this process: of an outer `vgpu run`, of the node agent, or of another stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outer {
    /// Where the limits were read, for error messages.
    pub(crate) source: String,
    /// The limits file, if there is one.
    pub(crate) file: Option<PathBuf>,
    /// The limits.
    pub(crate) limits: Limits,
}

impl Outer {
    fn position(&self, gpu: &Gpu) -> Option<&DeviceLimit> {
        self.around(&gpu.uuid, usize::try_from(gpu.index).ok()?)
    }

    pub(super) fn has(&self, gpu: &Gpu) -> bool {
        self.limits.unlisted == Unlisted::Allow || self.position(gpu).is_some()
    }

    pub(super) fn device(&self, gpu: &Gpu) -> Result<DeviceLimit, Misuse> {
        match self.position(gpu) {
            Some(device) => Ok(*device),
            None if self.limits.unlisted == Unlisted::Allow => Ok(DeviceLimit::default()),
            None => Err(Misuse::new(format!(
                "GPU {} ({}) is not among the GPUs that the outer limits allow ({}); choose others \
                 with --gpu",
                gpu.index, gpu.uuid, self.source
            ))),
        }
    }

    /// The outer limit of a device of the container; `None` if there is none.
    pub(crate) fn around(&self, uuid: &str, index: usize) -> Option<&DeviceLimit> {
        let by_uuid = self.limits.devices.iter().find(|d| d.uuid.as_str() == uuid);
        by_uuid.or_else(|| {
            self.limits
                .devices
                .get(index)
                .filter(|device| device.uuid.is_empty())
        })
    }

    /// Refuses a device limit above the outer one. Values that `was` already has are not checked
    /// again.
    pub(crate) fn check_device(
        &self,
        around: &DeviceLimit,
        was: Option<&DeviceLimit>,
        limit: &DeviceLimit,
        number: u32,
    ) -> Result<(), Misuse> {
        let source = &self.source;
        let is_new = |part: fn(&DeviceLimit) -> u64| was.is_none_or(|was| part(was) != part(limit));
        for part in [resident_of, |limit: &DeviceLimit| limit.memory_bytes] {
            let (bytes, most) = (part(limit), part(around));
            if most != 0 && (bytes == 0 || bytes > most) && is_new(part) {
                return Err(Misuse::new(format!(
                    "{} of GPU {number} is more than the outer limit of {} ({source}); inside a \
                     container limits can only be lowered",
                    Size(bytes),
                    Size(most),
                )));
            }
        }
        let (cap, most) = (cap_of(limit.core_percent), cap_of(around.core_percent));
        let is_above = most != 0 && (cap == 0 || cap > most);
        if is_above && is_new(|limit| u64::from(limit.core_percent)) {
            let cap = if cap == 0 { 100 } else { cap };
            return Err(Misuse::new(format!(
                "--gpucores {cap} of GPU {number} is more than the outer limit of {most} % \
                 ({source}); inside a container limits can only be lowered"
            )));
        }
        let (floor, most) = (limit.floor_percent, around.floor_percent);
        if floor > most && is_new(|limit| u64::from(limit.floor_percent)) {
            let guaranteed = match most {
                0 => String::from("guarantee nothing of it"),
                most => format!("guarantee {most} %"),
            };
            return Err(Misuse::new(format!(
                "--floor {floor} of GPU {number}: the outer limits {guaranteed} ({source}), and no \
                 more can be guaranteed inside. {}",
                match most {
                    0 => String::from("Leave --floor out, or give the outer container a floor"),
                    most => format!("Give at most {most}"),
                }
            )));
        }
        Ok(())
    }

    /// Refuses a policy that would lift a cap of the outer limits.
    pub(crate) fn check_policy(&self, policy: Policy, uuids: &[&str]) -> Result<(), Misuse> {
        // How strictly a cap holds.
        let strictness = |policy: Policy| match policy {
            Policy::Disable => 0,
            Policy::Default => 1,
            Policy::Floor | Policy::Force => 2,
        };
        let is_capped = uuids.iter().enumerate().any(|(index, uuid)| {
            self.around(uuid, index)
                .is_some_and(|around| cap_of(around.core_percent) != 0)
        });
        let around = self.limits.policy;
        if is_capped && strictness(policy) < strictness(around) {
            return Err(Misuse::new(format!(
                "--policy {} would lift the outer cap (policy {}, {}); inside a container limits \
                 can only be lowered: give --policy force",
                policy_word(policy),
                policy_word(around),
                self.source
            )));
        }
        Ok(())
    }

    /// Refuses a priority above the outer one.
    pub(crate) fn check_priority(&self, wanted: u32) -> Result<(), Misuse> {
        let around = self.limits.priority;
        if wanted < around {
            return Err(Misuse::new(format!(
                "--priority {wanted} is above the outer priority of {around} ({}); inside a \
                 container it can only be lowered: give {around} or a larger number",
                self.source
            )));
        }
        Ok(())
    }
}

/// Reads the limits that already apply to this process, if any.
pub(crate) fn outer() -> anyhow::Result<Option<Outer>> {
    if Path::new(INSIDE_LIMITS).exists() {
        return read_outer(Path::new(INSIDE_LIMITS), INSIDE_LIMITS).map(Some);
    }
    if let Some(path) = std::env::var_os("VGPU_LIMITS") {
        let path = PathBuf::from(path);
        let source = format!("VGPU_LIMITS={}", path.display());
        return read_outer(&path, &source).map(Some);
    }
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            Some((name, value.to_string_lossy().into_owned()))
        })
        .collect();
    Ok(peers(&variables)?)
}

/// Reads the limits file of a container.
pub(crate) fn read_outer(path: &Path, source: &str) -> anyhow::Result<Outer> {
    let limits = LimitsFile::open(path)
        .and_then(|file| file.read())
        .with_context(|| format!("cannot read the outer limits ({source})"))?;
    Ok(Outer {
        source: source.to_owned(),
        file: Some(path.to_owned()),
        limits,
    })
}

/// A variable of HAMi's or hcs.io's that is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BadVariable(PeerError);

impl fmt::Display for BadVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            PeerError::Size { name, error } => write!(f, "{name} in the environment: {error}")?,
            PeerError::Value {
                name,
                read,
                accepted,
            } => write!(
                f,
                "{name} in the environment is {read:?}; accepted: {accepted}"
            )?,
        }
        f.write_str(". Correct it, or unset it")
    }
}

impl std::error::Error for BadVariable {}

/// The limits in HAMi's and hcs.io's variables. Under `vgpu run` the library ignores these variables, so
/// `vgpu run` has to honour them itself; otherwise it would lift them.
fn peers(variables: &[(String, String)]) -> Result<Option<Outer>, BadVariable> {
    let variable = |name: &str| {
        let found = variables.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone().into_bytes())
    };
    let read = vgpu_abi::peers::read(variable).map_err(BadVariable)?;
    let Some(read) = read else {
        return Ok(None);
    };
    let each = read.memory_bytes.into_iter().zip(read.core_percent);
    let devices: Vec<_> = each
        .map(|(memory_bytes, percent)| DeviceLimit {
            memory_bytes,
            core_percent: cap_of(percent),
            ..DeviceLimit::default()
        })
        .collect();
    let is_free = |device: &DeviceLimit| device.memory_bytes == 0 && device.core_percent == 0;
    if devices.iter().all(is_free) {
        return Ok(None);
    }
    Ok(Some(Outer {
        source: String::from(
            "CUDA_DEVICE_MEMORY_LIMIT, CUDA_DEVICE_SM_LIMIT or HCS_VRAM_QUOTA in the environment",
        ),
        file: None,
        limits: Limits {
            unlisted: Unlisted::Allow,
            policy: read.policy,
            priority: read.priority,
            devices,
            ..Limits::default()
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn compute_limits_of_another_stack_count_inside_it() {
        let read = |list: &[(&str, &str)]| {
            let list: Vec<_> = list
                .iter()
                .map(|(n, v)| (String::from(*n), String::from(*v)))
                .collect();
            match peers(&list) {
                Ok(None) => String::from("none"),
                Ok(Some(outer)) => {
                    let first = outer.limits.devices.iter().take(2);
                    let caps: Vec<_> = first.map(|d| d.core_percent.to_string()).collect();
                    let Limits {
                        policy, priority, ..
                    } = outer.limits;
                    format!("{} {} {priority}", caps.join(" "), policy_word(policy))
                }
                Err(error) => error.to_string(),
            }
        };

        assert_eq!(read(&[("CUDA_DEVICE_SM_LIMIT", "30")]), "30 30 default 1");
        assert_eq!(read(&[("CUDA_DEVICE_SM_LIMIT_1", "40")]), "0 40 default 1");
        assert_eq!(read(&[("CUDA_DEVICE_SM_LIMIT", "100")]), "none");
        assert_eq!(
            read(&[
                ("CUDA_DEVICE_SM_LIMIT", "30"),
                ("CUDA_TASK_PRIORITY", "0"),
                ("GPU_CORE_UTILIZATION_POLICY", "FORCE"),
            ]),
            "30 30 force 0"
        );
        expect![[r#"CUDA_DEVICE_SM_LIMIT in the environment is "half"; accepted: a whole number from 0 to 100. Correct it, or unset it"#]].assert_eq(&read(&[("CUDA_DEVICE_SM_LIMIT", "half")]));
        expect![[r#"GPU_CORE_UTILIZATION_POLICY in the environment is "maybe"; accepted: default, force, disable. Correct it, or unset it"#]].assert_eq(&read(&[("GPU_CORE_UTILIZATION_POLICY", "maybe")]));
    }

    #[test]
    fn limits_of_another_stack_count_and_the_smaller_of_two_wins() {
        let read = |list: &[(&str, &str)]| {
            let list: Vec<_> = list
                .iter()
                .map(|(n, v)| (String::from(*n), String::from(*v)))
                .collect();
            match peers(&list) {
                Ok(None) => String::from("none"),
                Ok(Some(outer)) => {
                    let first = outer.limits.devices.iter().take(2);
                    let sizes: Vec<_> = first.map(|d| Size(d.memory_bytes).to_string()).collect();
                    sizes.join(" ")
                }
                Err(error) => error.to_string(),
            }
        };

        assert_eq!(read(&[]), "none");
        assert_eq!(read(&[("CUDA_DEVICE_MEMORY_LIMIT", "4g")]), "4Gi 4Gi");
        assert_eq!(
            read(&[
                ("CUDA_DEVICE_MEMORY_LIMIT", "4g"),
                ("CUDA_DEVICE_MEMORY_LIMIT_1", "2g")
            ]),
            "4Gi 2Gi"
        );
        assert_eq!(
            read(&[
                ("CUDA_DEVICE_MEMORY_LIMIT", "4g"),
                ("HCS_VRAM_QUOTA", "3Gi")
            ]),
            "3Gi 3Gi"
        );
        assert_eq!(
            read(&[
                ("CUDA_DEVICE_MEMORY_LIMIT", "4g"),
                ("CUDA_DEVICE_MEMORY_LIMIT_0", "0")
            ]),
            "4Gi 4Gi"
        );
        assert_eq!(read(&[("CUDA_DEVICE_MEMORY_LIMIT", "0")]), "none");
        expect![[r#"CUDA_DEVICE_MEMORY_LIMIT in the environment: size "lots" is not a number with a unit; accepted: whole bytes, or a whole number and one of k m g in any case, with or without i, B or iB (all 1024-based), such as 4g, 4Gi or 4096MiB. Correct it, or unset it"#]].assert_eq(&read(&[("CUDA_DEVICE_MEMORY_LIMIT", "lots")]));
    }
}
