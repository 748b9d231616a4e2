//! Which GPUs a container gets, and how much of each: what was typed, put together with the GPUs
//! that there are and with the limits that stand around us. Values in, values out, except for
//! [`outer`], which reads those limits.
//!
//! Never rounds, never clamps: a wish that cannot be granted is an error that says what can.

use std::path::{Path, PathBuf};

use anyhow::Context;
use supervisor::gpu::Gpu;
use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile, Unlisted};
use vgpu_abi::size::{self, Size};

use crate::values::{GpuMem, GpuRef};

/// A GPU with what is given of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    /// The GPU's number, as `nvidia-smi` counts.
    pub(crate) index: u32,
    /// Its UUID.
    pub(crate) uuid: String,
    /// Its size, bytes.
    pub(crate) physical_bytes: u64,
    /// What is given of it, bytes.
    pub(crate) bytes: u64,
}

/// The limits that stand around us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outer {
    /// Where they were read.
    pub(crate) source: String,
    /// The limits file, where there is one.
    pub(crate) file: Option<PathBuf>,
    /// The limits.
    pub(crate) limits: Limits,
}

/// Decides which GPUs, and how much of each.
pub(crate) fn share(
    gpus: &[Gpu],
    wanted: &[GpuRef],
    memory: &[GpuMem],
    outer: Option<&Outer>,
) -> Result<Vec<Share>, String> {
    let Memory { each, by_gpu } = merge(memory)?;
    let mut named: Vec<(&Gpu, u64)> = Vec::new();
    for (gpu, bytes) in &by_gpu {
        let found = find(gpus, gpu)?;
        if named.iter().any(|(known, _)| known.uuid == found.uuid) {
            return Err(format!(
                "--gpumem names GPU {} twice; name it once",
                found.index
            ));
        }
        named.push((found, *bytes));
    }
    let mut chosen: Vec<&Gpu> = Vec::new();
    for gpu in wanted {
        let found = find(gpus, gpu)?;
        if chosen.iter().any(|known| known.uuid == found.uuid) {
            return Err(format!(
                "--gpu names GPU {} twice; name it once",
                found.index
            ));
        }
        chosen.push(found);
    }
    if wanted.is_empty() {
        chosen = if each.is_some() {
            gpus.iter()
                .filter(|gpu| outer.is_none_or(|outer| outer.has(gpu)))
                .collect()
        } else {
            named.iter().map(|(gpu, _)| *gpu).collect()
        };
    }
    for (gpu, _) in &named {
        if !chosen.iter().any(|c| c.uuid == gpu.uuid) {
            return Err(format!(
                "--gpumem names GPU {0}, which --gpu leaves out; add {0} to --gpu, or leave it out \
                 of --gpumem",
                gpu.index
            ));
        }
    }
    if chosen.is_empty() {
        return Err(String::from("there is no GPU to give a limit on"));
    }
    if chosen.len() > MAX_DEVICES {
        return Err(format!(
            "{} GPUs are too many for one container; choose at most {MAX_DEVICES} with --gpu",
            chosen.len()
        ));
    }
    let mut shares = Vec::new();
    for gpu in chosen {
        let own = named
            .iter()
            .find(|(n, _)| n.uuid == gpu.uuid)
            .map(|(_, bytes)| *bytes);
        let Some(bytes) = own.or(each) else {
            return Err(format!(
                "GPU {0} has no limit; add {0}=SIZE to --gpumem, or leave it out of --gpu",
                gpu.index
            ));
        };
        shares.push(grant(gpu, bytes, outer)?);
    }
    Ok(shares)
}

fn grant(gpu: &Gpu, bytes: u64, outer: Option<&Outer>) -> Result<Share, String> {
    let mut physical_bytes = gpu.memory_bytes;
    if let Some(outer) = outer {
        let around = outer.device(gpu)?;
        if around.physical_bytes != 0 {
            physical_bytes = around.physical_bytes;
        }
        if around.memory_bytes != 0 && bytes > around.memory_bytes {
            return Err(format!(
                "{} of GPU {} is more than the {} that the limits around allow ({}); inside a \
                 container limits can only be lowered",
                Size(bytes),
                gpu.index,
                Size(around.memory_bytes),
                outer.source
            ));
        }
    }
    if bytes > physical_bytes {
        return Err(format!(
            "{} is more than GPU {} has: {} ({}); give at most that",
            Size(bytes),
            gpu.index,
            Size(physical_bytes),
            gpu.name
        ));
    }
    Ok(Share {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        physical_bytes,
        bytes,
    })
}

/// All `--gpumem` together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Memory {
    /// For every GPU that is not named, bytes.
    pub(crate) each: Option<u64>,
    /// For those that are named, bytes.
    pub(crate) by_gpu: Vec<(GpuRef, u64)>,
}

/// Puts several `--gpumem` together: at most one for every GPU, and those by GPU.
pub(crate) fn merge(memory: &[GpuMem]) -> Result<Memory, String> {
    let mut each = None;
    let mut by_gpu: Vec<(GpuRef, u64)> = Vec::new();
    for given in memory {
        match given {
            GpuMem::Each(bytes) => {
                if let Some(first) = each.replace(*bytes) {
                    return Err(format!(
                        "--gpumem gives every GPU {} and {}; give one of them, or GPU=SIZE",
                        Size(first),
                        Size(*bytes)
                    ));
                }
            }
            GpuMem::By(list) => {
                for (gpu, bytes) in list {
                    if by_gpu.iter().any(|(known, _)| known == gpu) {
                        return Err(format!("--gpumem names GPU {gpu} twice; name it once"));
                    }
                    by_gpu.push((gpu.clone(), *bytes));
                }
            }
        }
    }
    if each.is_none() && by_gpu.is_empty() {
        return Err(String::from(
            "no limit given; give one, such as --gpumem 4Gi (of every GPU) or --gpumem 0=4Gi,1=8Gi",
        ));
    }
    Ok(Memory { each, by_gpu })
}

/// The GPU of a name, or a sentence that lists those that there are.
fn find<'a>(gpus: &'a [Gpu], wanted: &GpuRef) -> Result<&'a Gpu, String> {
    let matching: Vec<&Gpu> = match wanted {
        GpuRef::Index(index) => gpus.iter().filter(|gpu| gpu.index == *index).collect(),
        GpuRef::Uuid(uuid) => gpus
            .iter()
            .filter(|gpu| gpu.uuid.starts_with(uuid))
            .collect(),
    };
    let list = || {
        let list: Vec<_> = gpus
            .iter()
            .map(|gpu| format!("{} ({}, {})", gpu.index, gpu.uuid, Size(gpu.memory_bytes)))
            .collect();
        list.join(", ")
    };
    match matching.as_slice() {
        [one] => Ok(one),
        [] => Err(format!("there is no GPU {wanted}; there are: {}", list())),
        _ => Err(format!(
            "{wanted} is the beginning of several GPUs' UUIDs: {}",
            list()
        )),
    }
}

impl Outer {
    fn position(&self, gpu: &Gpu) -> Option<&DeviceLimit> {
        let by_uuid = self
            .limits
            .devices
            .iter()
            .find(|d| d.uuid.as_str() == gpu.uuid);
        by_uuid.or_else(|| {
            let index = usize::try_from(gpu.index).ok()?;
            self.limits
                .devices
                .get(index)
                .filter(|device| device.uuid.is_empty())
        })
    }

    fn has(&self, gpu: &Gpu) -> bool {
        self.limits.unlisted == Unlisted::Allow || self.position(gpu).is_some()
    }

    fn device(&self, gpu: &Gpu) -> Result<DeviceLimit, String> {
        match self.position(gpu) {
            Some(device) => Ok(*device),
            None if self.limits.unlisted == Unlisted::Allow => Ok(DeviceLimit::default()),
            None => Err(format!(
                "GPU {} ({}) is not among the GPUs that the limits around allow ({}); choose \
                 others with --gpu",
                gpu.index, gpu.uuid, self.source
            )),
        }
    }

    /// The ceiling for a device of a container, bytes; nothing where there is none.
    pub(crate) fn ceiling(&self, uuid: &str, index: usize) -> Option<u64> {
        let by_uuid = self.limits.devices.iter().find(|d| d.uuid.as_str() == uuid);
        let device = by_uuid.or_else(|| {
            self.limits
                .devices
                .get(index)
                .filter(|device| device.uuid.is_empty())
        })?;
        (device.memory_bytes != 0).then_some(device.memory_bytes)
    }
}

/// The shares as the library reads them.
pub(crate) fn limits_of(shares: &[Share]) -> anyhow::Result<Limits> {
    let mut devices = Vec::new();
    for share in shares {
        devices.push(DeviceLimit {
            uuid: DeviceUuid::new(&share.uuid).with_context(|| {
                format!("GPU {} has a UUID that cannot be written", share.index)
            })?,
            memory_bytes: share.bytes,
            physical_bytes: share.physical_bytes,
            ..DeviceLimit::default()
        });
    }
    Ok(Limits {
        unlisted: Unlisted::Deny,
        devices,
        ..Limits::default()
    })
}

/// What the node agent mounts into a container.
pub(crate) const AGENT_LIMITS: &str = "/etc/vgpu/limits";

/// Reads the limits that stand around this process, if any.
pub(crate) fn outer() -> anyhow::Result<Option<Outer>> {
    if Path::new(AGENT_LIMITS).exists() {
        return read_outer(Path::new(AGENT_LIMITS), AGENT_LIMITS).map(Some);
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
    peers(&variables).map_err(anyhow::Error::msg)
}

/// Reads the limits file of a container.
pub(crate) fn read_outer(path: &Path, source: &str) -> anyhow::Result<Outer> {
    let limits = LimitsFile::open(path)
        .and_then(|file| file.read())
        .with_context(|| format!("cannot read the limits around ({source})"))?;
    Ok(Outer {
        source: source.to_owned(),
        file: Some(path.to_owned()),
        limits,
    })
}

/// Limits that another stack's variables state. The library honours them only where no `vgpu run`
/// stands between, so they are read here, or a nested run would lift them.
fn peers(variables: &[(String, String)]) -> Result<Option<Outer>, String> {
    let read = |name: &str| -> Result<Option<u64>, String> {
        let Some((_, value)) = variables.iter().find(|(known, _)| known == name) else {
            return Ok(None);
        };
        let bytes = size::parse_peer(value).map_err(|error| {
            format!("{name} in the environment: {error}. Correct it, or unset it")
        })?;
        Ok((bytes != 0).then_some(bytes))
    };
    let every = read("CUDA_DEVICE_MEMORY_LIMIT")?;
    let quota = read("HCS_VRAM_QUOTA")?;
    let smaller = |one: Option<u64>, other: Option<u64>| match (one, other) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let mut devices = Vec::new();
    for index in 0..MAX_DEVICES {
        let own = read(&format!("CUDA_DEVICE_MEMORY_LIMIT_{index}"))?;
        let memory_bytes = smaller(own.or(every), quota).unwrap_or(0);
        devices.push(DeviceLimit {
            memory_bytes,
            ..DeviceLimit::default()
        });
    }
    if devices.iter().all(|device| device.memory_bytes == 0) {
        return Ok(None);
    }
    Ok(Some(Outer {
        source: String::from("CUDA_DEVICE_MEMORY_LIMIT or HCS_VRAM_QUOTA in the environment"),
        file: None,
        limits: Limits {
            unlisted: Unlisted::Allow,
            devices,
            ..Limits::default()
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{gpu_mem, gpu_ref};
    use expect_test::{Expect, expect};

    fn gpu(index: u32, uuid: &str, gib: u64) -> Gpu {
        Gpu {
            index,
            uuid: String::from(uuid),
            name: String::from("Test GPU"),
            memory_bytes: gib << 30,
            used_bytes: 0,
            utilization_percent: None,
            memory_utilization_percent: None,
            instances: Vec::new(),
        }
    }

    fn outer_of(devices: &[(&str, u64)], unlisted: Unlisted) -> Outer {
        let devices = devices
            .iter()
            .map(|(uuid, gib)| DeviceLimit {
                uuid: DeviceUuid::new(uuid).unwrap(),
                memory_bytes: gib << 30,
                physical_bytes: if uuid.is_empty() { 0 } else { 16 << 30 },
                ..DeviceLimit::default()
            })
            .collect();
        let limits = Limits {
            unlisted,
            devices,
            ..Limits::default()
        };
        Outer {
            source: String::from("outer"),
            file: None,
            limits,
        }
    }

    /// `--gpu`, `--gpumem` … on GPUs 0 (16 GiB) and 1 (40 GiB).
    fn check(gpu_list: &str, memory: &[&str], outer: Option<&Outer>, expected: Expect) {
        let gpus = [gpu(0, "GPU-aa00", 16), gpu(1, "GPU-ab11", 40)];
        let wanted: Vec<GpuRef> = gpu_list
            .split_terminator(',')
            .map(|text| gpu_ref(text).unwrap())
            .collect();
        let memory: Vec<GpuMem> = memory.iter().map(|text| gpu_mem(text).unwrap()).collect();
        let found = match share(&gpus, &wanted, &memory, outer) {
            Ok(shares) => shares
                .iter()
                .map(|s| format!("{} {}/{}", s.index, Size(s.bytes), Size(s.physical_bytes)))
                .collect::<Vec<_>>()
                .join(", "),
            Err(error) => error,
        };
        expected.assert_eq(&found);
    }

    #[test]
    fn one_size_counts_for_every_gpu_that_was_chosen() {
        check("", &["4Gi"], None, expect!["0 4Gi/16Gi, 1 4Gi/40Gi"]);
        check("1", &["4Gi"], None, expect!["1 4Gi/40Gi"]);
        check("1,0", &["4Gi"], None, expect!["1 4Gi/40Gi, 0 4Gi/16Gi"]);
        check("GPU-ab", &["4Gi"], None, expect!["1 4Gi/40Gi"]);
        check(
            "",
            &["4Gi", "1=8Gi"],
            None,
            expect!["0 4Gi/16Gi, 1 8Gi/40Gi"],
        );
    }

    #[test]
    fn a_list_by_gpu_chooses_those_gpus() {
        check("", &["1=8Gi"], None, expect!["1 8Gi/40Gi"]);
        check(
            "",
            &["0=4Gi,1=8Gi"],
            None,
            expect!["0 4Gi/16Gi, 1 8Gi/40Gi"],
        );
        check(
            "",
            &["0=4Gi", "1=8Gi"],
            None,
            expect!["0 4Gi/16Gi, 1 8Gi/40Gi"],
        );
        check(
            "0,1",
            &["1=8Gi"],
            None,
            expect!["GPU 0 has no limit; add 0=SIZE to --gpumem, or leave it out of --gpu"],
        );
        check(
            "0",
            &["0=4Gi,1=8Gi"],
            None,
            expect![
                "--gpumem names GPU 1, which --gpu leaves out; add 1 to --gpu, or leave it out of --gpumem"
            ],
        );
    }

    #[test]
    fn what_cannot_be_granted_says_what_can() {
        check(
            "",
            &["17Gi"],
            None,
            expect!["17Gi is more than GPU 0 has: 16Gi (Test GPU); give at most that"],
        );
        check(
            "7",
            &["4Gi"],
            None,
            expect!["there is no GPU 7; there are: 0 (GPU-aa00, 16Gi), 1 (GPU-ab11, 40Gi)"],
        );
        check(
            "GPU-a",
            &["4Gi"],
            None,
            expect![
                "GPU-a is the beginning of several GPUs' UUIDs: 0 (GPU-aa00, 16Gi), 1 (GPU-ab11, 40Gi)"
            ],
        );
        check(
            "GPU-zz",
            &["4Gi"],
            None,
            expect!["there is no GPU GPU-zz; there are: 0 (GPU-aa00, 16Gi), 1 (GPU-ab11, 40Gi)"],
        );
        check(
            "0,GPU-aa00",
            &["4Gi"],
            None,
            expect!["--gpu names GPU 0 twice; name it once"],
        );
        check(
            "",
            &["0=1Gi,GPU-aa=2Gi"],
            None,
            expect!["--gpumem names GPU 0 twice; name it once"],
        );
        check(
            "",
            &[],
            None,
            expect![
                "no limit given; give one, such as --gpumem 4Gi (of every GPU) or --gpumem 0=4Gi,1=8Gi"
            ],
        );
        check(
            "0",
            &[],
            None,
            expect![
                "no limit given; give one, such as --gpumem 4Gi (of every GPU) or --gpumem 0=4Gi,1=8Gi"
            ],
        );
        check(
            "",
            &["4Gi", "8Gi"],
            None,
            expect!["--gpumem gives every GPU 4Gi and 8Gi; give one of them, or GPU=SIZE"],
        );
        check(
            "",
            &["0=4Gi", "0=8Gi"],
            None,
            expect!["--gpumem names GPU 0 twice; name it once"],
        );
    }

    #[test]
    fn inside_limits_they_can_only_be_lowered() {
        let outer = outer_of(&[("GPU-aa00", 4)], Unlisted::Deny);
        check("", &["2Gi"], Some(&outer), expect!["0 2Gi/16Gi"]);
        check("", &["4Gi"], Some(&outer), expect!["0 4Gi/16Gi"]);
        check(
            "",
            &["5Gi"],
            Some(&outer),
            expect![
                "5Gi of GPU 0 is more than the 4Gi that the limits around allow (outer); inside a container limits can only be lowered"
            ],
        );
        check(
            "1",
            &["2Gi"],
            Some(&outer),
            expect![
                "GPU 1 (GPU-ab11) is not among the GPUs that the limits around allow (outer); choose others with --gpu"
            ],
        );

        let by_index = outer_of(&[("", 4), ("", 0)], Unlisted::Allow);
        check(
            "",
            &["8Gi"],
            Some(&by_index),
            expect![
                "8Gi of GPU 0 is more than the 4Gi that the limits around allow (outer); inside a container limits can only be lowered"
            ],
        );
        check("1", &["8Gi"], Some(&by_index), expect!["1 8Gi/40Gi"]);
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
                Err(error) => error,
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
        assert_eq!(read(&[("CUDA_DEVICE_MEMORY_LIMIT", "0")]), "none");
        expect![[r#"CUDA_DEVICE_MEMORY_LIMIT in the environment: size "lots" is not a number with a unit; accepted: whole bytes, or a whole number and one of k m g in any case, with or without i, B or iB (all 1024-based), such as 4g, 4Gi or 4096MiB. Correct it, or unset it"#]].assert_eq(&read(&[("CUDA_DEVICE_MEMORY_LIMIT", "lots")]));
    }
}
