//! Names of annotations and labels that belong to no single vendor.

/// Node that the pod's devices lie on; annotation and label.
pub const VGPU_NODE: &str = "hami.io/vgpu-node";
/// When the devices were chosen, in seconds since 1970.
pub const VGPU_TIME: &str = "hami.io/vgpu-time";
