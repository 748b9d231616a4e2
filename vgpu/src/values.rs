//! Values that people type, from text. Owns what is accepted, and says so when something is not.
//!
//! Never guesses, and never lets a size through without a unit.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use vgpu_abi::size::{self, Size};

/// A GPU as people name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum GpuRef {
    /// By number, as `nvidia-smi` counts.
    Index(u32),
    /// By UUID, or its beginning.
    Uuid(String),
}

impl fmt::Display for GpuRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

/// One `--gpumem`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GpuMem {
    /// This many bytes of each GPU.
    Each(u64),
    /// Bytes by GPU.
    By(Vec<(GpuRef, u64)>),
}

/// A name that is safe as a file's name and on a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerName(String);

impl ContainerName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A CUDA version as the driver numbers it: 12.4 is 12040.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DriverVersion(pub(crate) u32);

/// Memory of simulated GPUs, in the words of `VGPU_SIM_MEMORY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SimMemory(pub(crate) String);

/// Longest name of a container.
pub(crate) const NAME_MOST: usize = 63;

pub(crate) fn gpu_ref(text: &str) -> Result<GpuRef, String> {
    let accepted = "accepted: a number as nvidia-smi shows it (0), or a UUID (GPU-…, MIG-…)";
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("a GPU is missing; {accepted}"));
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return match text.parse::<u32>() {
            Ok(index) if index < 4096 => Ok(GpuRef::Index(index)),
            _ => Err(format!("GPU {text:?} is too large a number; {accepted}")),
        };
    }
    let is_uuid = (text.starts_with("GPU-") || text.starts_with("MIG-"))
        && text.len() > 4
        && text.len() < 96
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'/');
    if is_uuid {
        return Ok(GpuRef::Uuid(text.to_owned()));
    }
    Err(format!("GPU {text:?} is not known; {accepted}"))
}

fn limit(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?;
    if bytes == 0 {
        return Err(format!(
            "a limit of {text:?} leaves no memory at all; leave the GPU out with --gpu instead"
        ));
    }
    Ok(bytes)
}

fn by_gpu(
    text: &str,
    value: fn(&str) -> Result<u64, String>,
) -> Result<Vec<(GpuRef, u64)>, String> {
    let mut list: Vec<(GpuRef, u64)> = Vec::new();
    for part in text.split(',') {
        let Some((gpu, bytes)) = part.split_once('=') else {
            return Err(format!(
                "{part:?} names no GPU; accepted: one SIZE for every GPU (4Gi), or a list of \
                 GPU=SIZE (0=4Gi,1=8Gi)"
            ));
        };
        let gpu = gpu_ref(gpu)?;
        if list.iter().any(|(known, _)| *known == gpu) {
            return Err(format!(
                "GPU {gpu} is named twice in {text:?}; name it once"
            ));
        }
        list.push((gpu, value(bytes)?));
    }
    Ok(list)
}

pub(crate) fn gpu_mem(text: &str) -> Result<GpuMem, String> {
    if text.contains('=') || text.contains(',') {
        return by_gpu(text, limit).map(GpuMem::By);
    }
    limit(text).map(GpuMem::Each)
}

pub(crate) fn container_name(text: &str) -> Result<ContainerName, String> {
    let fits = !text.is_empty()
        && text.len() <= NAME_MOST
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && text
            .as_bytes()
            .first()
            .is_some_and(u8::is_ascii_alphanumeric);
    if fits {
        return Ok(ContainerName(text.to_owned()));
    }
    Err(format!(
        "{text:?} is not a name; accepted: 1 to {NAME_MOST} of a-z A-Z 0-9 . _ -, the first a \
         letter or a digit"
    ))
}

/// The name of a command, made fit for a container's name.
pub(crate) fn name_of_command(command: &str) -> String {
    let base = command.rsplit('/').next().unwrap_or_default();
    let name: String = base
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '-'
            }
        })
        .collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    // Room for a dash and a number.
    let name: String = name.chars().take(NAME_MOST - 8).collect();
    if name.is_empty() {
        String::from("program")
    } else {
        name
    }
}

pub(crate) fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err(String::from(
            "the path is empty; give one, or leave the setting out",
        ));
    }
    Ok(PathBuf::from(text))
}

pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let accepted = "accepted: 100ms to 1h, as 500ms, 2s or 1.5 (seconds)";
    let text = text.trim();
    let (number, unit_ms) = if let Some(number) = text.strip_suffix("ms") {
        (number, 1.0)
    } else {
        (text.strip_suffix('s').unwrap_or(text), 1000.0)
    };
    let is_decimal = !number.is_empty()
        && number.len() < 16
        && number
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
        && number.as_bytes().first().is_some_and(u8::is_ascii_digit);
    let ms = if is_decimal {
        number.parse::<f64>().ok()
    } else {
        None
    }
    .map(|n| n * unit_ms);
    match ms {
        Some(ms) if (100.0..=3_600_000.0).contains(&ms) => Ok(Duration::from_secs_f64(ms / 1000.0)),
        Some(_) => Err(format!("interval {text:?} is out of range; {accepted}")),
        None => Err(format!("interval {text:?} is not a time; {accepted}")),
    }
}

pub(crate) fn sim_gpus(text: &str) -> Result<u32, String> {
    match text.trim().parse::<u32>() {
        Ok(count @ 1..=16) if !text.starts_with('+') => Ok(count),
        _ => Err(format!(
            "{text:?} is not a number of GPUs; accepted: 1 to 16"
        )),
    }
}

pub(crate) fn sim_memory(text: &str) -> Result<SimMemory, String> {
    fn card(text: &str) -> Result<u64, String> {
        let bytes = size::parse(text).map_err(|error| error.to_string())?;
        let (least, most) = (64 << 20, 4 << 40);
        if !(least..=most).contains(&bytes) {
            return Err(format!(
                "{text:?} is no size for a GPU; accepted: {} to {}",
                Size(least),
                Size(most)
            ));
        }
        Ok(bytes)
    }
    // The board reads whole mebibytes in any dialect; what is typed here may be 1.5Gi or 16G.
    let mib = |bytes: u64| format!("{}Mi", bytes >> 20);
    if !text.contains('=') && !text.contains(',') {
        return card(text).map(|bytes| SimMemory(mib(bytes)));
    }
    let mut parts = Vec::new();
    for (gpu, bytes) in by_gpu(text, card)? {
        match gpu {
            GpuRef::Index(index) if index < 16 => parts.push(format!("{index}={}", mib(bytes))),
            gpu => {
                return Err(format!(
                    "{gpu:?} is no number of a simulated GPU; accepted: 0 to 15",
                    gpu = gpu.to_string()
                ));
            }
        }
    }
    Ok(SimMemory(parts.join(",")))
}

pub(crate) fn driver_version(text: &str) -> Result<DriverVersion, String> {
    let parsed = text.split_once('.').and_then(|(major, minor)| {
        let digits =
            |t: &str| !t.is_empty() && t.len() < 3 && t.bytes().all(|b| b.is_ascii_digit());
        if !digits(major) || !digits(minor) {
            return None;
        }
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    });
    match parsed {
        Some((major @ 11..=13, minor @ 0..=9)) => Ok(DriverVersion(major * 1000 + minor * 10)),
        _ => Err(format!(
            "{text:?} is no CUDA version; accepted: 11.0 to 13.9, such as 12.4"
        )),
    }
}
