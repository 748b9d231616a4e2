//! Every variable that we read, once. Says what a container may use and where its files are, or why
//! that was not understood; opens nothing and changes nothing. (`VGPU_DEEPBIND_KEEP` is read by
//! `linker.rs` at each `dlopen` that it is about, since that comes before any set-up.)

use core::ffi::CStr;
use core::fmt;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::limits::Policy;
use vgpu_abi::size::{self, SizeError};

use crate::base::log::Level;

/// The file that counts above all: the node agent mounts it.
pub(crate) const HOST_LIMITS: &str = "/etc/vgpu/limits";
const HOST_TARGETS: &str = "/etc/vgpu/targets";
const HOST_REGION: &str = "/run/vgpu/region";

/// All settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Where the limits come from.
    pub(crate) source: Source,
    /// Where log lines go; `None`: nowhere.
    pub(crate) log: Option<(CString, Level)>,
}

/// Where the limits come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nobody set any: the library changes nothing.
    None,
    /// From files that the host wrote.
    Files {
        /// The limits.
        limits: PathBuf,
        /// The targets, which need not exist.
        targets: PathBuf,
        /// The usage region.
        region: PathBuf,
    },
    /// From the peers' variables.
    Peers(Box<PeerLimits>),
}

/// What the peers' variables say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerLimits {
    /// Memory by device, bytes; 0 is no cap.
    pub(crate) memory_bytes: [u64; MAX_DEVICES],
    /// Compute time by device, percent; 0 and 100 are no cap.
    pub(crate) core_percent: [u32; MAX_DEVICES],
    /// Priority, 0 is the highest.
    pub(crate) priority: u32,
    /// When the compute limit counts.
    pub(crate) policy: Policy,
    /// `CUDA_OVERSUBSCRIBE`: a device plugin gave out more memory than the cards have. It names no
    /// share of the card, and changes nothing.
    pub(crate) is_oversubscribed: bool,
    /// The usage region, made by whoever comes first.
    pub(crate) region: PathBuf,
    /// It was not named: it is this user's own, in a directory that all users share.
    pub(crate) is_own_region: bool,
    /// This user's own, which serves where the named one cannot be used.
    pub(crate) own_region: PathBuf,
}

/// A setting that was not understood. Nothing runs with a limit that was not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SettingError {
    /// A variable that wants a size.
    Size {
        /// The variable.
        name: String,
        /// What is wrong with it.
        error: SizeError,
    },
    /// A variable that wants something else.
    Value {
        /// The variable.
        name: String,
        /// What was read.
        read: String,
        /// What is accepted.
        accepted: &'static str,
    },
    /// `VGPU_LIMITS` without `VGPU_REGION`.
    NoRegion,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { name, error } => write!(f, "{name}: {error}"),
            Self::Value {
                name,
                read,
                accepted,
            } => {
                write!(f, "{name} is {read:?}; accepted: {accepted}")
            }
            Self::NoRegion => {
                write!(
                    f,
                    "VGPU_LIMITS is set without VGPU_REGION; accepted: both or none"
                )
            }
        }
    }
}

/// What the settings are read from.
pub(crate) trait Surroundings {
    /// A variable of the environment.
    fn variable(&self, name: &CStr) -> Option<Vec<u8>>;
    /// Is there a file?
    fn exists(&self, path: &Path) -> bool;
    /// The user that this process acts for.
    fn user(&self) -> u32;
    /// Did the kernel give this program more rights than whoever started it has?
    fn is_privileged(&self) -> bool;
}

/// This process.
pub(crate) struct Process;

impl Surroundings for Process {
    fn variable(&self, name: &CStr) -> Option<Vec<u8>> {
        // SAFETY: a C string; nobody but the host changes its own environment.
        let value = unsafe { libc::getenv(name.as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: an environment string ends in a zero.
        Some(unsafe { CStr::from_ptr(value) }.to_bytes().to_vec())
    }

    fn exists(&self, path: &Path) -> bool {
        // A file that may not be read counts: a limit that cannot be read is not "no limit".
        !matches!(std::fs::symlink_metadata(path), Err(error) if is_absent(&error))
    }

    fn user(&self) -> u32 {
        // SAFETY: takes nothing and cannot fail.
        unsafe { libc::geteuid() }
    }

    fn is_privileged(&self) -> bool {
        // SAFETY: reads a word that the kernel gave the process.
        unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

impl Settings {
    /// Where log lines go, which is known even when the rest is not understood.
    pub(crate) fn log_of(from: &impl Surroundings) -> Option<(CString, Level)> {
        // A program with more rights than its caller writes to no file of the caller's choice.
        if from.is_privileged() {
            return None;
        }
        let path = from.variable(c"VGPU_LOG").filter(|path| !path.is_empty())?;
        let level = from
            .variable(c"VGPU_LOG_LEVEL")
            .and_then(|word| Level::from_word(&word))
            .unwrap_or(Level::Warn);
        Some((CString::new(path).ok()?, level))
    }

    /// Reads them all.
    ///
    /// # Errors
    /// What was read and what is accepted.
    pub(crate) fn read(from: &impl Surroundings) -> Result<Self, SettingError> {
        Ok(Self {
            source: Source::read(from)?,
            log: Self::log_of(from),
        })
    }
}

impl Source {
    fn read(from: &impl Surroundings) -> Result<Self, SettingError> {
        if from.exists(Path::new(HOST_LIMITS)) {
            return Ok(Self::Files {
                limits: HOST_LIMITS.into(),
                targets: HOST_TARGETS.into(),
                region: HOST_REGION.into(),
            });
        }
        if let Some(limits) = path(from, c"VGPU_LIMITS") {
            let region = path(from, c"VGPU_REGION").ok_or(SettingError::NoRegion)?;
            let targets = limits.with_file_name("targets");
            return Ok(Self::Files {
                limits,
                targets,
                region,
            });
        }
        PeerLimits::read(from).map(|peers| peers.map_or(Self::None, |it| Self::Peers(Box::new(it))))
    }
}

impl PeerLimits {
    fn read(from: &impl Surroundings) -> Result<Option<Self>, SettingError> {
        let quota = bytes(from, c"HCS_VRAM_QUOTA")?;
        let memory = bytes(from, c"CUDA_DEVICE_MEMORY_LIMIT")?;
        let cores = percent(from, c"CUDA_DEVICE_SM_LIMIT")?;
        let region = named_region(from);
        let is_own_region = region.is_none();
        let mut limits = Self {
            memory_bytes: [0; MAX_DEVICES],
            core_percent: [0; MAX_DEVICES],
            priority: priority(from)?,
            policy: policy(from)?,
            is_oversubscribed: text(from, c"CUDA_OVERSUBSCRIBE")
                .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "true" | "1")),
            region: region.unwrap_or_else(|| own_region(from)),
            is_own_region,
            own_region: own_region(from),
        };
        let mut any = quota.is_some() || memory.is_some() || cores.is_some();
        for (device, (own_memory, own_cores)) in limits
            .memory_bytes
            .iter_mut()
            .zip(&mut limits.core_percent)
            .enumerate()
        {
            let named = bytes(from, &numbered("CUDA_DEVICE_MEMORY_LIMIT", device))?;
            let shared = percent(from, &numbered("CUDA_DEVICE_SM_LIMIT", device))?;
            any |= named.is_some() || shared.is_some();
            // 0 is "no limit", so the smaller of the two families is taken among what is above 0.
            *own_memory = [named.or(memory), quota]
                .into_iter()
                .flatten()
                .filter(|&bytes| bytes > 0)
                .min()
                .unwrap_or(0);
            *own_cores = shared.or(cores).unwrap_or(0);
        }
        Ok(any.then_some(limits))
    }
}

fn numbered(name: &str, device: usize) -> CString {
    CString::new(format!("{name}_{device}")).unwrap_or_default()
}

fn path(from: &impl Surroundings, name: &CStr) -> Option<PathBuf> {
    let value = from.variable(name).filter(|value| !value.is_empty())?;
    Some(OsStr::from_bytes(&value).into())
}

fn text(from: &impl Surroundings, name: &CStr) -> Option<String> {
    Some(
        String::from_utf8_lossy(&from.variable(name)?)
            .trim()
            .to_owned(),
    )
}

fn called(name: &CStr) -> String {
    name.to_string_lossy().into_owned()
}

fn bytes(from: &impl Surroundings, name: &CStr) -> Result<Option<u64>, SettingError> {
    let Some(value) = text(from, name) else {
        return Ok(None);
    };
    size::parse_peer(&value)
        .map(Some)
        .map_err(|error| SettingError::Size {
            name: called(name),
            error,
        })
}

fn number(
    from: &impl Surroundings,
    name: &CStr,
    highest: u32,
    accepted: &'static str,
) -> Result<Option<u32>, SettingError> {
    let Some(read) = text(from, name) else {
        return Ok(None);
    };
    match read.parse() {
        Ok(number) if number <= highest => Ok(Some(number)),
        _ => Err(SettingError::Value {
            name: called(name),
            read,
            accepted,
        }),
    }
}

fn percent(from: &impl Surroundings, name: &CStr) -> Result<Option<u32>, SettingError> {
    number(from, name, 100, "a whole number from 0 to 100")
}

fn priority(from: &impl Surroundings) -> Result<u32, SettingError> {
    let read = number(
        from,
        c"CUDA_TASK_PRIORITY",
        u32::MAX,
        "a whole number, 0 is the highest",
    )?;
    Ok(read.unwrap_or(1))
}

fn policy(from: &impl Surroundings) -> Result<Policy, SettingError> {
    let name = c"GPU_CORE_UTILIZATION_POLICY";
    let Some(read) = text(from, name) else {
        return Ok(Policy::Default);
    };
    match read.to_ascii_lowercase().as_str() {
        "default" | "" => Ok(Policy::Default),
        "force" => Ok(Policy::Force),
        "disable" => Ok(Policy::Disable),
        _ => Err(SettingError::Value {
            name: called(name),
            read,
            accepted: "default, force, disable",
        }),
    }
}

fn named_region(from: &impl Surroundings) -> Option<PathBuf> {
    // A program with more rights than its caller makes no file of the caller's choice.
    if from.is_privileged() {
        return None;
    }
    path(from, c"CUDA_DEVICE_MEMORY_SHARED_CACHE")
}

fn own_region(from: &impl Surroundings) -> PathBuf {
    format!("/tmp/vgpu-{}.region", from.user()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(&'static [(&'static str, &'static str)], bool);

    impl Surroundings for Fake {
        fn variable(&self, name: &CStr) -> Option<Vec<u8>> {
            let found = self
                .0
                .iter()
                .find(|(key, _)| key.as_bytes() == name.to_bytes());
            found.map(|(_, value)| value.as_bytes().to_vec())
        }

        fn exists(&self, path: &Path) -> bool {
            self.1 && path == Path::new(HOST_LIMITS)
        }

        fn user(&self) -> u32 {
            1000
        }

        fn is_privileged(&self) -> bool {
            false
        }
    }

    fn peers(variables: &'static [(&'static str, &'static str)]) -> PeerLimits {
        match Source::read(&Fake(variables, false)).unwrap() {
            Source::Peers(limits) => *limits,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_set_is_no_limit_at_all() {
        assert_eq!(Source::read(&Fake(&[], false)), Ok(Source::None));
        assert_eq!(
            Source::read(&Fake(&[("CUDA_TASK_PRIORITY", "0")], false)),
            Ok(Source::None)
        );
    }

    #[test]
    fn the_hosts_file_counts_above_every_variable() {
        let set = &[
            ("VGPU_LIMITS", "/x/limits"),
            ("CUDA_DEVICE_MEMORY_LIMIT", "rubbish"),
        ];

        let source = Source::read(&Fake(set, true)).unwrap();

        assert!(matches!(source, Source::Files { limits, .. } if limits == Path::new(HOST_LIMITS)));
    }

    #[test]
    fn ours_count_above_the_peers() {
        let set = &[
            ("VGPU_LIMITS", "/x/limits"),
            ("VGPU_REGION", "/x/region"),
            ("HCS_VRAM_QUOTA", "1g"),
        ];

        let source = Source::read(&Fake(set, false)).unwrap();

        let Source::Files {
            limits,
            targets,
            region,
        } = source
        else {
            panic!()
        };
        assert_eq!(limits, Path::new("/x/limits"));
        assert_eq!(targets, Path::new("/x/targets"));
        assert_eq!(region, Path::new("/x/region"));
    }

    #[test]
    fn limits_without_a_region_are_not_understood() {
        let read = Source::read(&Fake(&[("VGPU_LIMITS", "/x/limits")], false));

        assert_eq!(read, Err(SettingError::NoRegion));
    }

    #[test]
    fn a_devices_own_limit_stands_before_the_common_one() {
        let limits = peers(&[
            ("CUDA_DEVICE_MEMORY_LIMIT", "4Gi"),
            ("CUDA_DEVICE_MEMORY_LIMIT_1", "100m"),
            ("CUDA_DEVICE_SM_LIMIT", "30"),
        ]);

        assert_eq!(limits.memory_bytes[..3], [4 << 30, 100 << 20, 4 << 30]);
        assert_eq!(limits.core_percent[0], 30);
        assert_eq!(limits.region, Path::new("/tmp/vgpu-1000.region"));
    }

    #[test]
    fn oversubscription_without_a_share_is_noticed_and_is_no_limit_of_its_own() {
        let set = &[("HCS_VRAM_QUOTA", "5g"), ("CUDA_OVERSUBSCRIBE", "True")];

        assert!(peers(set).is_oversubscribed);
        assert!(!peers(&[("HCS_VRAM_QUOTA", "5g")]).is_oversubscribed);
        let alone = Fake(&[("CUDA_OVERSUBSCRIBE", "true")], false);
        assert_eq!(Source::read(&alone), Ok(Source::None));
    }

    #[test]
    fn of_two_families_the_smaller_counts_and_zero_is_no_limit() {
        let limits = peers(&[
            ("CUDA_DEVICE_MEMORY_LIMIT", "4g"),
            ("CUDA_DEVICE_MEMORY_LIMIT_1", "0"),
            ("HCS_VRAM_QUOTA", "5g"),
        ]);

        assert_eq!(limits.memory_bytes[..2], [4 << 30, 5 << 30]);
    }

    #[test]
    fn what_is_not_understood_is_an_error_that_names_it() {
        for (name, value) in [
            ("CUDA_DEVICE_MEMORY_LIMIT", "4x"),
            ("CUDA_DEVICE_MEMORY_LIMIT_3", "-1"),
            ("HCS_VRAM_QUOTA", ""),
            ("CUDA_DEVICE_SM_LIMIT", "101"),
            ("CUDA_TASK_PRIORITY", "high"),
            ("GPU_CORE_UTILIZATION_POLICY", "sometimes"),
        ] {
            let set = Box::leak(Box::new([(name, value)]));

            let error = Source::read(&Fake(set, false)).unwrap_err().to_string();

            assert!(error.contains(name), "{error}");
        }
    }
}
