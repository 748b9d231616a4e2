//! The limits of one container: a file that one host-side writer owns and the container maps
//! read-only. Owns its meaning, its two copies and what counts as a valid one.
//!
//! Never truncates and never renames (the first kills every reader, the second is invisible
//! through a mapping), and never lets a reader see half a change.

use std::fmt;
use std::path::Path;

use crate::layout::{MAX_DEVICES, UUID_BYTES};

/// A device's UUID as text (`GPU-…`, `MIG-…`), at most 95 bytes. The empty one stands for "the
/// device at this index".
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceUuid([u8; UUID_BYTES]);

impl DeviceUuid {
    /// No text: the device at this index, whichever it is.
    pub const EMPTY: Self = Self([0; UUID_BYTES]);

    /// Takes a text.
    ///
    /// # Errors
    /// When it is longer than 95 bytes, or has a byte that is not printable ASCII.
    pub fn new(text: &str) -> Result<Self, UuidError> {
        let mut bytes = [0; UUID_BYTES];
        if text.len() >= UUID_BYTES {
            return Err(UuidError { length: text.len() });
        }
        for (to, from) in bytes.iter_mut().zip(text.bytes()) {
            if !from.is_ascii_graphic() {
                return Err(UuidError { length: text.len() });
            }
            *to = from;
        }
        Ok(Self(bytes))
    }

    /// Takes bytes out of a file: text up to the first zero, cut where it stops being printable.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; UUID_BYTES]) -> Self {
        let mut text = [0; UUID_BYTES];
        for (to, from) in text.iter_mut().zip(bytes.iter()).take(UUID_BYTES - 1) {
            if !from.is_ascii_graphic() {
                break;
            }
            *to = *from;
        }
        Self(text)
    }

    /// The zero-padded bytes, as they stand in a file.
    #[must_use]
    pub fn bytes(&self) -> &[u8; UUID_BYTES] {
        &self.0
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(UUID_BYTES);
        let text = self.0.get(..end).unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    }

    /// Whether it stands for an index only.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.first() == Some(&0)
    }
}

impl Default for DeviceUuid {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl std::str::FromStr for DeviceUuid {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Self, UuidError> {
        Self::new(text)
    }
}

/// A text that is no UUID of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UuidError {
    length: usize,
}

impl fmt::Display for UuidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "device uuid of {} bytes; accepted: at most {} printable characters without spaces",
            self.length,
            UUID_BYTES - 1
        )
    }
}

impl std::error::Error for UuidError {}

/// When the compute limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Only while another container wants the device.
    #[default]
    Default,
    /// Always.
    Force,
    /// The limit is a guaranteed share; what is idle is lent.
    Floor,
    /// Never.
    Disable,
}

/// What becomes of a device that the limits do not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unlisted {
    /// The container may not use it.
    #[default]
    Deny,
    /// The container may use it without a limit.
    Allow,
}

/// What a container may use of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceLimit {
    /// Which device; empty: the one at this index.
    pub uuid: DeviceUuid,
    /// Memory, bytes; 0 is no cap.
    pub memory_bytes: u64,
    /// Compute time, percent; 0 and 100 are no cap.
    pub core_percent: u32,
    /// Size of the device, bytes; 0 where it is not known.
    pub physical_bytes: u64,
    /// What a context is expected to take, bytes; 0 where it is not known.
    pub context_bytes: u64,
    /// What a module is expected to take, bytes; 0 where it is not known.
    pub module_bytes: u64,
}

/// The limits of one container, for the host that writes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// Raised with every change; set by [`LimitsFile::write`].
    pub generation: u64,
    /// Priority, 0 is the highest.
    pub priority: u32,
    /// When the compute limit counts.
    pub policy: Policy,
    /// What becomes of devices that are not named.
    pub unlisted: Unlisted,
    /// By container-visible index; at most [`MAX_DEVICES`].
    pub devices: Vec<DeviceLimit>,
}

/// The limits of one container, for the container: a plain value that was read without allocating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsValue {
    /// Raised with every change.
    pub generation: u64,
    /// Priority, 0 is the highest.
    pub priority: u32,
    /// When the compute limit counts.
    pub policy: Policy,
    /// What becomes of devices that are not named.
    pub unlisted: Unlisted,
    pub(crate) device_count: usize,
    pub(crate) devices: [DeviceLimit; MAX_DEVICES],
}

impl LimitsValue {
    /// By container-visible index.
    #[must_use]
    pub fn devices(&self) -> &[DeviceLimit] {
        self.devices.get(..self.device_count).unwrap_or_default()
    }
}

impl From<&LimitsValue> for Limits {
    fn from(value: &LimitsValue) -> Self {
        Self {
            generation: value.generation,
            priority: value.priority,
            policy: value.policy,
            unlisted: value.unlisted,
            devices: value.devices().to_vec(),
        }
    }
}

/// Why a file that the host owns cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileError {
    /// There is no such file.
    Missing,
    /// There is one already.
    Exists,
    /// It is a directory, a link, a pipe or a device.
    NotRegular,
    /// It is too short or too long.
    WrongSize {
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// It is another kind of file.
    WrongMagic,
    /// It was never finished.
    Unfinished,
    /// A newer release wrote it.
    NewerVersion {
        /// Its version.
        found: u32,
        /// The newest version that is known here.
        known: u32,
    },
    /// Neither copy is valid.
    Corrupt,
    /// More devices than [`MAX_DEVICES`].
    TooManyDevices {
        /// Devices asked for.
        asked: usize,
    },
    /// No room on the disk.
    NoSpace,
    /// The system refused; an `errno` value.
    System {
        /// What was refused.
        call: &'static str,
        /// `errno`.
        errno: i32,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Missing => write!(f, "no such file"),
            Self::Exists => write!(f, "exists already"),
            Self::NotRegular => write!(f, "not a regular file"),
            Self::WrongSize { found, expected } => {
                write!(f, "file of {found} bytes, expected {expected}")
            }
            Self::WrongMagic => write!(f, "another kind of file"),
            Self::Unfinished => write!(f, "a file that was never finished"),
            Self::NewerVersion { found, known } => {
                write!(f, "version {found}, newest known here is {known}")
            }
            Self::Corrupt => write!(f, "neither copy in the file is valid"),
            Self::TooManyDevices { asked } => {
                write!(f, "{asked} devices, at most {MAX_DEVICES} are possible")
            }
            Self::NoSpace => write!(f, "no space left on the disk"),
            Self::System { call, errno } => {
                write!(f, "{call}: {}", std::io::Error::from_raw_os_error(errno))
            }
        }
    }
}

impl std::error::Error for FileError {}

/// The host's side: the one writer.
#[derive(Debug)]
pub struct LimitsFile {}

impl LimitsFile {
    /// Makes the file; it must not exist.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn create(_path: &Path, _limits: &Limits) -> Result<Self, FileError> {
        todo!()
    }

    /// Opens a file that exists, for reading and, where the file's mode lets us, writing.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open(_path: &Path) -> Result<Self, FileError> {
        todo!()
    }

    /// The limits as they stand.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn read(&self) -> Result<Limits, FileError> {
        todo!()
    }

    /// Replaces the limits and gives back their generation. Readers see the old ones or the new
    /// ones. `limits.generation` is not looked at. Writers in several processes take turns.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn write(&self, _limits: &Limits) -> Result<u64, FileError> {
        todo!()
    }
}

/// The container's side: a read-only mapping.
#[derive(Debug)]
pub struct LimitsMap {}

impl LimitsMap {
    /// Maps the file.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open(_path: &Path) -> Result<Self, FileError> {
        todo!()
    }

    /// A number that differs when the limits have changed: one atomic load.
    #[must_use]
    pub fn generation(&self) -> u64 {
        todo!()
    }

    /// Reads the limits; allocates nothing and makes no system call.
    ///
    /// # Errors
    /// [`FileError::Corrupt`] when neither copy is valid: the caller keeps what it has, or refuses.
    pub fn load(&self) -> Result<LimitsValue, FileError> {
        todo!()
    }
}
