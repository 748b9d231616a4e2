//! The settings of a board, and the environment that gives them. They are used by the process that creates the board;
//! later processes join it as it is. Opens nothing.

use std::env;
use std::path::PathBuf;

use crate::clock::ClockKind;
pub use crate::pci::MAX_GPUS;
use crate::setting::BadSetting;

/// The settings of a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Memory of each GPU, in bytes; as many GPUs as there are entries.
    pub memory_bytes: Vec<u64>,
    /// The CUDA version that the driver reports: 1000 × major + 10 × minor.
    pub driver_version: u32,
    /// The memory of a context, in bytes.
    pub context_bytes: u64,
    /// How long a dead process's memory stays taken, in milliseconds.
    pub release_delay_ms: u64,
    /// The source of time.
    pub clock: ClockKind,
    /// Text of the kernel script; empty is the default rule.
    pub script: String,
    /// Faults on demand, as text.
    pub faults: String,
    /// GPUs in MIG mode, and the instances that they begin with, as text.
    pub mig: String,
    /// How the GPUs reach each other, as text.
    pub topology: String,
    /// Whether the kernels of all processes run side by side, as under an MPS server.
    pub mps: bool,
    /// Whether the driver takes the opposite of its usual choice wherever CUDA leaves one.
    pub contrary: bool,
    /// The missing parts of NVML on this board, as text; see [`crate::lacks`].
    pub nvml: String,
    /// Names of driver and NVML functions that the libraries do not have, as text.
    pub missing: String,
    /// PCI addresses of the GPUs, as text; empty: chosen.
    pub pci: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            memory_bytes: vec![16 << 30; 2],
            driver_version: 12_040,
            context_bytes: 300 << 20,
            release_delay_ms: 0,
            clock: ClockKind::default(),
            script: String::new(),
            faults: String::new(),
            mig: String::new(),
            topology: String::new(),
            mps: false,
            contrary: false,
            nvml: String::new(),
            missing: String::new(),
            pci: String::new(),
        }
    }
}

impl Config {
    /// Reads the `VGPU_SIM_*` variables.
    ///
    /// # Errors
    /// With what was read and what is accepted.
    pub fn from_env() -> Result<Self, BadSetting> {
        Self::from_lookup(|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// As `from_env`, from any source of values.
    ///
    /// # Errors
    /// With what was read and what is accepted.
    pub fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, BadSetting> {
        let mut config = Self::default();
        let gpus = match get("VGPU_SIM_GPUS") {
            Some(text) => text
                .parse::<usize>()
                .ok()
                .filter(|count| (1..=MAX_GPUS).contains(count))
                .ok_or_else(|| {
                    BadSetting::value("VGPU_SIM_GPUS", &text, "a number from 1 to 16")
                })?,
            None => config.memory_bytes.len(),
        };
        config.memory_bytes = vec![16 << 30; gpus];
        if let Some(text) = get("VGPU_SIM_MEMORY") {
            for part in text.split(',') {
                let (index, size) = match part.split_once('=') {
                    Some((index, size)) => (Some(index), size),
                    None => (None, part),
                };
                let bytes = size_bytes("VGPU_SIM_MEMORY", size)?;
                match index {
                    None => config.memory_bytes.fill(bytes),
                    Some(index) => {
                        let index = index.trim().parse::<usize>().ok();
                        *index
                            .and_then(|index| config.memory_bytes.get_mut(index))
                            .ok_or_else(|| {
                                let accepted =
                                    format!("an index below the {gpus} GPUs before each =");
                                BadSetting::value("VGPU_SIM_MEMORY", &text, accepted)
                            })? = bytes;
                    }
                }
            }
        }
        if let Some(text) = get("VGPU_SIM_DRIVER") {
            config.driver_version = driver_version(&text)?;
        }
        if let Some(text) = get("VGPU_SIM_CONTEXT") {
            config.context_bytes = size_bytes("VGPU_SIM_CONTEXT", &text)?;
        }
        if let Some(text) = get("VGPU_SIM_RELEASE_DELAY_MS") {
            config.release_delay_ms = text.parse().map_err(|_| {
                BadSetting::value("VGPU_SIM_RELEASE_DELAY_MS", &text, "whole milliseconds")
            })?;
        }
        if let Some(text) = get("VGPU_SIM_CLOCK") {
            config.clock = ClockKind::parse(&text)?;
        }
        if let Some(path) = get("VGPU_SIM_SCRIPT") {
            config.script = std::fs::read_to_string(&path)
                .map_err(|error| BadSetting::value("VGPU_SIM_SCRIPT", &path, error.to_string()))?;
        }
        config.faults = get("VGPU_SIM_FAULTS").unwrap_or_default();
        crate::faults::check(&config.faults)?;
        config.mig = get("VGPU_SIM_MIG").unwrap_or_default();
        crate::mig::parse(&config.mig)?;
        config.topology = get("VGPU_SIM_TOPOLOGY").unwrap_or_default();
        crate::topology::parse(&config.topology)?;
        config.mps = yes_or_no("VGPU_SIM_MPS", get("VGPU_SIM_MPS"))?;
        config.contrary = yes_or_no("VGPU_SIM_CONTRARY", get("VGPU_SIM_CONTRARY"))?;
        config.nvml = get("VGPU_SIM_NVML").unwrap_or_default();
        crate::lacks::parse(&config.nvml)?;
        config.missing = get("VGPU_SIM_MISSING").unwrap_or_default();
        config.pci = get("VGPU_SIM_PCI").unwrap_or_default();
        crate::pci::parse(&config.pci)?;
        Ok(config)
    }
}

fn yes_or_no(name: &'static str, value: Option<String>) -> Result<bool, BadSetting> {
    match value.as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(BadSetting::value(name, other, "0 or 1")),
    }
}

/// The board's path: `VGPU_SIM_BOARD`, else one for this user below `/tmp`.
#[must_use]
pub fn board_path() -> PathBuf {
    env::var_os("VGPU_SIM_BOARD")
        .filter(|path| !path.is_empty())
        .map_or_else(
            || {
                // SAFETY: no argument, no failure.
                let uid = unsafe { libc::geteuid() };
                PathBuf::from(format!("/tmp/vgpu-sim-{uid}/board"))
            },
            PathBuf::from,
        )
}

/// `12.4` or `12040`, as CUDA numbers its versions.
fn driver_version(text: &str) -> Result<u32, BadSetting> {
    let accepted = "a CUDA version such as 12.4 or 12040";
    let wrong = || BadSetting::value("VGPU_SIM_DRIVER", text, accepted);
    let version = match text.split_once('.') {
        Some((major, minor)) => {
            let major: u32 = major.parse().map_err(|_| wrong())?;
            let minor: u32 = minor.parse().map_err(|_| wrong())?;
            major * 1000 + minor * 10
        }
        None => text.parse().map_err(|_| wrong())?,
    };
    if (9_000..100_000).contains(&version) {
        Ok(version)
    } else {
        Err(wrong())
    }
}

/// `16Gi`, `512Mi`, `80G`: a whole number and a unit, Ki Mi Gi Ti 1024-based, K M G T 1000-based.
fn size_bytes(name: &'static str, text: &str) -> Result<u64, BadSetting> {
    let wrong = || BadSetting::value(name, text, "a size such as 16Gi or 512Mi");
    let text_trimmed = text.trim();
    let digits = text_trimmed
        .find(|character: char| !character.is_ascii_digit())
        .ok_or_else(wrong)?;
    let (number, unit) = text_trimmed.split_at(digits);
    let unit: u64 = match unit {
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number
        .checked_mul(unit)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Config, BadSetting> {
        Config::from_lookup(|name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn sizes_and_versions_are_read_as_written() {
        let config = read(&[
            ("VGPU_SIM_GPUS", "3"),
            ("VGPU_SIM_MEMORY", "8Gi,2=40G"),
            ("VGPU_SIM_DRIVER", "13.1"),
        ])
        .unwrap();

        assert_eq!(config.memory_bytes, [8 << 30, 8 << 30, 40_000_000_000]);
        assert_eq!(config.driver_version, 13_010);
    }

    #[test]
    fn what_is_not_understood_is_refused_with_what_was_read() {
        for (name, value) in [
            ("VGPU_SIM_GPUS", "0"),
            ("VGPU_SIM_GPUS", "17"),
            ("VGPU_SIM_MEMORY", "16"),
            ("VGPU_SIM_MEMORY", "-1Gi"),
            ("VGPU_SIM_MEMORY", "9=1Gi"),
            ("VGPU_SIM_DRIVER", "new"),
            ("VGPU_SIM_CLOCK", "sundial"),
            ("VGPU_SIM_MPS", "yes"),
            ("VGPU_SIM_CONTRARY", "yes"),
            ("VGPU_SIM_NVML", "sometimes"),
            ("VGPU_SIM_PCI", "bus 3"),
            ("VGPU_SIM_SCRIPT", "/does/not/exist"),
            ("VGPU_SIM_MIG", "0=9g"),
            ("VGPU_SIM_TOPOLOGY", "0-1=FAR"),
            ("VGPU_SIM_FAULTS", "xid:79"),
        ] {
            let error = read(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(value.trim_start_matches("9=")), "{error}");
        }
    }
}
