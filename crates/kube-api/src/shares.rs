//! Shares of GPUs by ResourceClaims of our own DRA driver: its names, the parameters that a claim may carry, which
//! claims can be served, and the templates that stand for a container's resources. Values in, values out.

pub mod offered;
pub mod parameters;
mod selector;
pub mod template;
pub mod written;

/// The driver's name.
pub const DRIVER: &str = "gpu.vgpu.io";
/// The DeviceClass of its whole GPUs.
pub const CLASS: &str = "gpu.vgpu.io";
/// The DeviceClass of its MIG instances.
pub const MIG_CLASS: &str = "mig.vgpu.io";
/// A device's capacity: bytes of its memory.
pub const MEMORY: &str = "memory";
/// A device's capacity: percent of its compute time.
pub const CORES: &str = "cores";
/// A device's capacity: how many claims may share it.
pub const SHARES: &str = "shares";
/// The attribute that tells GPUs apart.
pub const UUID: &str = "gpu.vgpu.io/uuid";
