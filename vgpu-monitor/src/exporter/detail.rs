//! How much is shown: every series, or those that a cluster of thousands of nodes can pay for.

/// How many series are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Detail {
    /// The series that the alerts and the accounts need: three to eight of each container.
    Standard,
    /// Every series, HAMi's names among them.
    Full,
}

/// The families of [`Detail::Standard`], without the endings that encoding adds.
const STANDARD: [&str; 25] = [
    "hami_host_gpu_memory_used",
    "hami_host_gpu_utilization_ratio",
    "vgpu_gpu_power_watts",
    "vgpu_gpu_temperature",
    "vgpu_gpu_sm_clock_hertz",
    "vgpu_gpu_pcie_sent_bytes",
    "vgpu_gpu_pcie_received_bytes",
    "vgpu_gpu_pcie_sent_bytes_per_second",
    "vgpu_gpu_pcie_received_bytes_per_second",
    "vgpu_gpu_nvlink_bytes",
    "vgpu_gpu_throttled",
    "hami_vgpu_memory_used",
    "hami_vgpu_memory_limit",
    "hami_mig_device_info",
    "hami_build_info",
    "vgpu_container_claim_info",
    "vgpu_container_compute_floor_ratio",
    "vgpu_container_compute_used_ratio",
    "vgpu_container_compute_throttled_seconds",
    "vgpu_container_arbiter_heartbeat_age",
    "vgpu_workload_gpu_used_seconds",
    "vgpu_workload_memory_used_gibibyte_seconds",
    "vgpu_monitor_root_readable",
    "vgpu_monitor_nvml_up",
    "vgpu_monitor_scrape_duration",
];

/// Further families of [`Detail::Standard`], of which only values other than 0 are shown.
const UNLESS_ZERO: [&str; 14] = [
    "vgpu_gpu_ecc_errors",
    "vgpu_gpu_remapped_rows",
    "vgpu_gpu_pcie_replays",
    "vgpu_gpu_throttled_seconds",
    "vgpu_container_oom",
    "vgpu_container_waits_expired",
    "vgpu_container_unaccounted",
    "vgpu_container_pending_shrink",
    "vgpu_container_oversubscribed",
    "vgpu_monitor_broken_regions",
    "vgpu_monitor_skipped",
    "vgpu_monitor_gpu_faults",
    "vgpu_monitor_arbiter_served",
    "vgpu_monitor_arbiter_failed",
];

impl Detail {
    /// Whether a sample of the family is shown.
    pub(super) fn shows(self, family: &str, is_zero: bool) -> bool {
        self == Self::Full
            || STANDARD.contains(&family)
            || (!is_zero && UNLESS_ZERO.contains(&family))
    }
}
