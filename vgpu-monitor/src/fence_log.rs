//! The log lines about the driver's own memory limits, for the exporter and for `vgpu-monitor fence`.

use supervisor::fence::FenceOutcome;

/// Logs that the driver limits a container's control group as well, or why it does not.
pub(crate) fn outcome(outcome: &FenceOutcome) {
    let path = outcome.path.display();
    for device in &outcome.fence.devices {
        let (gpu, bytes) = (&device.uuid, device.limit_bytes);
        if device.reason.is_empty() {
            tracing::info!(%path, gpu, bytes, "the driver's own memory limit");
        } else {
            let reason = &device.reason;
            tracing::warn!(%path, gpu, reason, "no memory limit of the driver; the library's holds");
        }
    }
}
