//! What only the host knows of a container's processes: host pids, measured overhead, the compute
//! arbiter's targets. A second file that the host owns, of the same make as the limits.
//!
//! Never speaks of a process without naming the generation of its slot.

use std::path::Path;

use crate::layout::MAX_DEVICES;
use crate::limits::FileError;

/// What the host knows of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Target {
    /// Generation of the slot that is meant.
    pub slot_generation: u64,
    /// Process id on the host; 0 where it is not known.
    pub host_pid: u32,
    /// What the driver takes for the process beyond its own allocations, by device, bytes.
    pub overhead_bytes: [u64; MAX_DEVICES],
    /// Target of the compute arbiter by device, thousandths of the device; 0 is none.
    pub target_permille: [u32; MAX_DEVICES],
}

/// The host's side: the one writer.
#[derive(Debug)]
pub struct TargetsFile {}

impl TargetsFile {
    /// Makes the file, with no targets in it; it must not exist.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn create(_path: &Path) -> Result<Self, FileError> {
        todo!()
    }

    /// Opens a file that exists.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open(_path: &Path) -> Result<Self, FileError> {
        todo!()
    }

    /// Replaces all targets: pairs of slot and target. `heartbeat_ns` is the monotonic clock.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn write(
        &mut self,
        _targets: &[(usize, Target)],
        _heartbeat_ns: u64,
    ) -> Result<u64, FileError> {
        todo!()
    }

    /// The targets as they stand.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn read(&self) -> Result<Vec<(usize, Target)>, FileError> {
        todo!()
    }
}

/// The container's side: a read-only mapping.
#[derive(Debug)]
pub struct TargetsMap {}

impl TargetsMap {
    /// Maps the file.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open(_path: &Path) -> Result<Self, FileError> {
        todo!()
    }

    /// A number that differs when the targets were written again: one atomic load.
    #[must_use]
    pub fn generation(&self) -> u64 {
        todo!()
    }

    /// When the host last wrote, nanoseconds of the monotonic clock.
    #[must_use]
    pub fn heartbeat_ns(&self) -> u64 {
        todo!()
    }

    /// What the host knows of the process that has this slot in this generation; allocates
    /// nothing and makes no system call.
    #[must_use]
    pub fn target(&self, _slot: usize, _slot_generation: u64) -> Option<Target> {
        todo!()
    }
}
