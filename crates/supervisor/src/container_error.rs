//! Why a container cannot be read or served, with the file that is the reason.

use vgpu_abi::file::FileError;

use crate::instance::InstanceError;

/// Why a container cannot be read or served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContainerError {
    /// Its directory or one of its files cannot be opened, or is not the host's.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// Its limits are invalid.
    #[error("limits: {0}")]
    Limits(FileError),
    /// Its targets are invalid, or cannot be written.
    #[error("targets: {0}")]
    Targets(FileError),
    /// Its region is invalid, or cannot be read.
    #[error("region: {0}")]
    Region(FileError),
}
