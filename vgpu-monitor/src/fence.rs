//! The driver's own memory limit as a second fence around pods: a process of its own with the host's control groups
//! (`vgpu-monitor fence`), because the exporter, which serves HTTP, has no right to set such a limit.
//!
//! Never decides how high a limit is: `supervisor::fence` does.

pub mod args;

pub mod mounts;

pub mod pods;

pub mod command;

use supervisor::fence::Kept;

/// Logs that the driver limits a container's control group as well, or why it does not.
pub fn say(kept: &Kept) {
    let path = kept.path.display();
    for device in &kept.fence.devices {
        let (gpu, bytes) = (&device.uuid, device.limit_bytes);
        if device.reason.is_empty() {
            tracing::info!(%path, gpu, bytes, "the driver's own memory limit");
        } else {
            let reason = &device.reason;
            tracing::warn!(%path, gpu, reason, "no memory limit of the driver; the library's holds");
        }
    }
}
