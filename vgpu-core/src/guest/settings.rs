//! Every variable that we read, once. Reads what a container may use and where its files are, or
//! why that was not understood; opens nothing and changes nothing. (`VGPU_DEEPBIND_KEEP` is read by
//! `linker.rs` at each `dlopen` that it is about, since that comes before any set-up.)

use core::ffi::CStr;
use core::fmt;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use vgpu_abi::peers::{self, PeerError, PeerLimits};

use crate::base::environment;
use crate::base::log::Level;

/// The file that counts above all: the node agent mounts it.
pub(crate) const HOST_LIMITS: &str = "/etc/vgpu/limits";
const HOST_TARGETS: &str = "/etc/vgpu/targets";
const HOST_REGION: &str = "/run/vgpu/region";

/// All settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Where the limits come from.
    pub(crate) source: LimitsSource,
    /// Where log lines go; `None`: nowhere.
    pub(crate) log: Option<(CString, Level)>,
}

/// Where the limits come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LimitsSource {
    /// No limits are set: the library changes nothing.
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
    Peers(Box<PeerSettings>),
}

/// The values of the peers' variables, and where the usage region is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerSettings {
    /// The limits.
    pub(crate) limits: PeerLimits,
    /// `CUDA_OVERSUBSCRIBE`: a device plugin gave out more memory than the GPUs have. It names no
    /// share of the GPU, and changes nothing.
    pub(crate) is_oversubscribed: bool,
    /// The usage region, made by the first process that needs it.
    pub(crate) region: PathBuf,
    /// No variable names the region: it is this user's own, in a directory that all users share.
    pub(crate) is_own_region: bool,
    /// This user's own, which serves where the named one cannot be used.
    pub(crate) own_region: PathBuf,
}

/// A setting that was not understood. Nothing runs with a limit that was not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SettingError {
    /// One of the peers' variables.
    Peer(PeerError),
    /// `VGPU_LIMITS` without `VGPU_REGION`.
    NoRegion,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(error) => write!(f, "{error}"),
            Self::NoRegion => {
                write!(
                    f,
                    "VGPU_LIMITS is set without VGPU_REGION; accepted: both or none"
                )
            }
        }
    }
}

/// The sources of the settings.
pub(crate) trait Surroundings {
    /// A variable of the environment.
    fn variable(&self, name: &CStr) -> Option<Vec<u8>>;
    /// Is there a file?
    fn exists(&self, path: &Path) -> bool;
    /// The user that this process acts for.
    fn user(&self) -> u32;
    /// Did the kernel give this program more rights than the process that started it has?
    fn is_privileged(&self) -> bool;
}

/// This process.
pub(crate) struct ThisProcess;

impl Surroundings for ThisProcess {
    fn variable(&self, name: &CStr) -> Option<Vec<u8>> {
        environment::read(name, <[u8]>::to_vec)
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
    /// The value that was read, and the values that are accepted.
    pub(crate) fn read(from: &impl Surroundings) -> Result<Self, SettingError> {
        Ok(Self {
            source: LimitsSource::read(from)?,
            log: Self::log_of(from),
        })
    }
}

impl LimitsSource {
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
        PeerSettings::read(from)
            .map(|peers| peers.map_or(Self::None, |it| Self::Peers(Box::new(it))))
    }
}

impl PeerSettings {
    fn read(from: &impl Surroundings) -> Result<Option<Self>, SettingError> {
        let variable = |name: &str| from.variable(&CString::new(name).ok()?);
        let Some(limits) = peers::read(variable).map_err(SettingError::Peer)? else {
            return Ok(None);
        };
        let region = named_region(from);
        let is_own_region = region.is_none();
        Ok(Some(Self {
            limits,
            is_oversubscribed: text(from, c"CUDA_OVERSUBSCRIBE")
                .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "true" | "1")),
            region: region.unwrap_or_else(|| own_region(from)),
            is_own_region,
            own_region: own_region(from),
        }))
    }
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

    fn peers(variables: &'static [(&'static str, &'static str)]) -> PeerSettings {
        match LimitsSource::read(&Fake(variables, false)).unwrap() {
            LimitsSource::Peers(limits) => *limits,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_setting_means_no_limit() {
        assert_eq!(
            LimitsSource::read(&Fake(&[], false)),
            Ok(LimitsSource::None)
        );
        assert_eq!(
            LimitsSource::read(&Fake(&[("CUDA_TASK_PRIORITY", "0")], false)),
            Ok(LimitsSource::None)
        );
    }

    #[test]
    fn the_hosts_file_counts_above_every_variable() {
        let set = &[
            ("VGPU_LIMITS", "/x/limits"),
            ("CUDA_DEVICE_MEMORY_LIMIT", "rubbish"),
        ];

        let source = LimitsSource::read(&Fake(set, true)).unwrap();

        assert!(
            matches!(source, LimitsSource::Files { limits, .. } if limits == Path::new(HOST_LIMITS))
        );
    }

    #[test]
    fn ours_count_above_the_peers() {
        let set = &[
            ("VGPU_LIMITS", "/x/limits"),
            ("VGPU_REGION", "/x/region"),
            ("HCS_VRAM_QUOTA", "1g"),
        ];

        let source = LimitsSource::read(&Fake(set, false)).unwrap();

        let LimitsSource::Files {
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
        let read = LimitsSource::read(&Fake(&[("VGPU_LIMITS", "/x/limits")], false));

        assert_eq!(read, Err(SettingError::NoRegion));
    }

    #[test]
    fn peers_limits_come_with_a_region_of_this_user() {
        let peers = peers(&[("CUDA_DEVICE_MEMORY_LIMIT", "4Gi")]);

        assert_eq!(peers.limits.memory_bytes[0], 4 << 30);
        assert_eq!(peers.region, Path::new("/tmp/vgpu-1000.region"));
    }

    #[test]
    fn peers_limit_that_is_not_understood_is_an_error() {
        let read = LimitsSource::read(&Fake(&[("CUDA_DEVICE_MEMORY_LIMIT", "4x")], false));

        assert!(matches!(read, Err(SettingError::Peer(_))), "{read:?}");
    }

    #[test]
    fn oversubscription_without_a_share_sets_no_limit() {
        let set = &[("HCS_VRAM_QUOTA", "5g"), ("CUDA_OVERSUBSCRIBE", "True")];

        assert!(peers(set).is_oversubscribed);
        assert!(!peers(&[("HCS_VRAM_QUOTA", "5g")]).is_oversubscribed);
        let alone = Fake(&[("CUDA_OVERSUBSCRIBE", "true")], false);
        assert_eq!(LimitsSource::read(&alone), Ok(LimitsSource::None));
    }
}
