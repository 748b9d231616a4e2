//! The exported series and their names: values in, series out.
//!
//! `docs/metrics.md` explains each series; a test compares its list with this one. Never reads a
//! file, a clock or a GPU.

mod detail;
mod hardware;
mod out;
mod shown;
mod workloads;

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use vgpu_abi::waits::{WAIT_BOUNDS_NS, WaitCause, Waits};

use crate::arbiter::ArbiterStatus;
pub use detail::Detail;
use out::{
    BYTES, Out, Value, container_labels, devices, gpu_labels, ids, labels, legacy_gpu_labels,
    legacy_labels, number, text,
};
pub use shown::{
    Account, Compute, Device, Gpu, Instance, Look, Shown, ShownClaim, ShownContainer, Used, Work,
};

/// Without details, only a heartbeat that is older than this is shown.
const SILENT: Duration = Duration::from_secs(1);

/// Which names are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// The present ones.
    Present,
    /// HAMi's older ones beside them.
    WithLegacy,
}

/// Writes every series.
///
/// # Errors
/// The encoder's writer fails.
pub fn encode(
    shown: &Shown,
    names: Names,
    detail: Detail,
    encoder: DescriptorEncoder<'_>,
) -> fmt::Result {
    let mut out = Out { encoder, detail };
    gpus(shown, &mut out)?;
    hardware::write(shown, &mut out)?;
    containers(shown, &mut out)?;
    build(&mut out)?;
    ours(shown, &mut out)?;
    compute(shown, &mut out)?;
    workloads::write(shown, &mut out)?;
    look(shown, &mut out)?;
    if names == Names::WithLegacy {
        // A client of HAMi's older names gets every series.
        out.detail = Detail::Full;
        legacy(shown, &mut out)?;
    }
    Ok(())
}

fn gpus(shown: &Shown, out: &mut Out<'_>) -> fmt::Result {
    out.gauge(
        "hami_host_gpu_memory_used",
        BYTES,
        "GPU memory in use by all processes and the driver, in bytes",
        shown
            .gpus
            .iter()
            .map(|gpu| (gpu_labels(Some(&shown.node), gpu), gpu.used_bytes.into())),
    )?;
    out.gauge(
        "hami_host_gpu_utilization_ratio",
        None,
        "Percentage of the driver's last sample period in which the GPU was busy (0-100)",
        shown.gpus.iter().filter_map(|gpu| {
            Some((
                gpu_labels(Some(&shown.node), gpu),
                gpu.utilization_percent?.into(),
            ))
        }),
    )?;
    out.gauge(
        "hami_host_gpu_memory_controller_utilization_ratio",
        None,
        "Percentage of the driver's last sample period in which GPU memory was read or written (0-100)",
        shown.gpus.iter().filter_map(|gpu| {
            Some((
                gpu_labels(None, gpu),
                gpu.memory_utilization_percent?.into(),
            ))
        }),
    )
}

fn containers(shown: &Shown, out: &mut Out<'_>) -> fmt::Result {
    let every = || {
        devices(shown).map(|(container, device)| (labels(&shown.node, container, device), device))
    };
    let mut bytes = |name, help, value: &dyn Fn(&Device) -> u64| {
        out.gauge(
            name,
            BYTES,
            help,
            every().map(|(labels, d)| (labels, value(d).into())),
        )
    };
    bytes(
        "hami_vgpu_memory_used",
        "Device memory charged to the container, in bytes",
        &|d| d.used_bytes,
    )?;
    bytes(
        "hami_container_device_memory",
        "Device memory charged to the container, in bytes (same value as hami_vgpu_memory_used_bytes)",
        &|d| d.used_bytes,
    )?;
    bytes(
        "hami_vgpu_memory_context",
        "Device memory charged to the container for CUDA contexts, in bytes",
        &|d| d.context_bytes,
    )?;
    bytes(
        "hami_vgpu_memory_module",
        "Device memory charged to the container for loaded modules, in bytes",
        &|d| d.module_bytes,
    )?;
    bytes(
        "hami_vgpu_memory_buffer",
        "Device memory charged to the container for buffers and for objects shared between processes, in bytes",
        &|d| d.buffer_bytes,
    )?;
    out.gauge(
        "hami_vgpu_memory_limit",
        BYTES,
        "Memory limit of the container on the device, in bytes (the device's memory where no limit is set)",
        every().filter_map(|(labels, d)| Some((labels, d.limit_bytes?.into()))),
    )?;
    out.gauge(
        "hami_container_device_utilization_ratio",
        None,
        "Device utilization by the container, in percent, summed over its processes (may exceed 100)",
        every().filter_map(|(labels, d)| Some((labels, d.utilization_percent?.into()))),
    )?;
    out.gauge(
        "hami_container_last_kernel_elapsed",
        Some(Unit::Seconds),
        "Seconds since the container's last observed launch on the device",
        every().filter_map(|(labels, d)| Some((labels, d.since_launch?.as_secs_f64().into()))),
    )?;
    out.gauge(
        "hami_mig_device_info",
        None,
        "MIG instance that the container uses as this device; always 1",
        every().filter_map(|(mut labels, d)| {
            let instance = d.instance.as_ref()?;
            let (gpu, compute) = ids(instance);
            labels.extend([
                ("mig_uuid", text(&d.uuid)),
                ("profile", text(&instance.profile)),
                ("gpu_instance_id", gpu),
                ("compute_instance_id", compute),
            ]);
            Some((labels, 1_u64.into()))
        }),
    )
}

fn build(out: &mut Out<'_>) -> fmt::Result {
    // HAMi's series has go_version and compiler, and a query may group by them.
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let labels = vec![
        ("version", text(env!("CARGO_PKG_VERSION"))),
        (
            "revision",
            text(option_env!("VGPU_REVISION").unwrap_or("unknown")),
        ),
        (
            "build_date",
            text(option_env!("VGPU_BUILD_DATE").unwrap_or("unknown")),
        ),
        ("go_version", text("none")),
        ("compiler", text("rustc")),
        (
            "platform",
            format!("{}/{architecture}", std::env::consts::OS).into(),
        ),
    ];
    out.gauge(
        "hami_build_info",
        None,
        "Build information of the program; always 1",
        [(labels, 1_u64.into())],
    )
}

fn ours(shown: &Shown, out: &mut Out<'_>) -> fmt::Result {
    let whole = || {
        shown
            .containers
            .iter()
            .map(|container| (container_labels(&shown.node, container), container))
    };
    let every = || {
        devices(shown).map(|(container, device)| (labels(&shown.node, container, device), device))
    };
    out.counter(
        "vgpu_container_oom",
        "Allocations refused because the memory limit was reached, as recorded in the region",
        whole().map(|(labels, c)| (labels, c.ooms)),
    )?;
    out.counter(
        "vgpu_container_refused_calls",
        "Driver calls that the library refused instead of passing on",
        whole().map(|(labels, c)| (labels, c.refused)),
    )?;
    out.counter(
        "vgpu_container_waits_expired",
        "Waits for another process of the container that timed out (100 ms)",
        whole().map(|(labels, c)| (labels, c.waits_expired)),
    )?;
    out.counter(
        "vgpu_container_hook_calls",
        "Driver calls that the library intercepted, by group",
        whole().flat_map(|(labels, c)| {
            c.hook_calls.iter().map(move |(group, calls)| {
                let mut labels = labels.clone();
                labels.push(("group", text(group)));
                (labels, *calls)
            })
        }),
    )?;
    out.gauge(
        "vgpu_container_claim_info",
        None,
        "ResourceClaim that gave the container its devices, in the container's namespace; always 1",
        whole().filter_map(|(mut labels, c)| {
            let claim = c.claim.as_ref()?;
            labels.extend([
                ("claim", text(&claim.name)),
                ("claim_uid", text(&claim.uid)),
            ]);
            Some((labels, 1_u64.into()))
        }),
    )?;
    out.gauge(
        "vgpu_container_processes",
        None,
        "Running processes of the container that have used a device",
        whole().map(|(labels, c)| (labels, c.processes.into())),
    )?;
    out.gauge(
        "vgpu_container_unaccounted",
        BYTES,
        "Device memory that the driver reports for the container's processes and that is not charged to the container, in bytes",
        every().filter_map(|(labels, d)| Some((labels, d.unaccounted_bytes?.into()))),
    )?;
    out.gauge(
        "vgpu_container_driver_limit",
        BYTES,
        "The driver's own memory limit on the container's control group, in bytes; it counts all device memory, whole contexts too",
        every().filter_map(|(labels, d)| Some((labels, d.driver_limit_bytes?.into()))),
    )?;
    out.gauge(
        "vgpu_container_memory_fences_info",
        None,
        "Which fences keep the container to its memory limit: library, driver, both, or none; always 1",
        every()
            .filter(|(_, d)| !d.fences.is_empty())
            .map(|(mut labels, d)| {
                labels.push(("fences", text(d.fences)));
                (labels, 1_u64.into())
            }),
    )?;
    out.gauge(
        "vgpu_container_ended",
        BYTES,
        "Device memory still charged to the container for processes that have ended, in bytes",
        every().map(|(labels, d)| (labels, d.ended_bytes.into())),
    )?;
    out.gauge(
        "vgpu_container_pending_shrink",
        None,
        "1 while the container uses more memory than its limit, so that every new allocation is refused",
        every().map(|(labels, d)| (labels, u64::from(d.pending_shrink).into())),
    )
}

fn compute(shown: &Shown, out: &mut Out<'_>) -> fmt::Result {
    let every = || {
        devices(shown).map(|(container, device)| (labels(&shown.node, container, device), device))
    };
    let mut share = |name, help, value: &dyn Fn(&Compute) -> Option<f64>| {
        let shares = every().filter_map(|(labels, d)| Some((labels, value(&d.compute)?.into())));
        out.gauge(name, None, help, shares)
    };
    share(
        "vgpu_container_compute_asked_ratio",
        "Compute cap: the largest part of the device's time that the container may use (0-1; 1 without a cap)",
        &|c| c.asked,
    )?;
    share(
        "vgpu_container_compute_floor_ratio",
        "Compute floor: the part of the device's time that is guaranteed to the container (0-1)",
        &|c| c.floor,
    )?;
    share(
        "vgpu_container_compute_granted_ratio",
        "Part of the device's time that the arbiter currently grants to the container (0-1)",
        &|c| c.granted,
    )?;
    share(
        "vgpu_container_compute_used_ratio",
        "Part of the device's time that the container used in the last second (0-1)",
        &|c| c.used,
    )?;
    share(
        "vgpu_container_compute_waiting_ratio",
        "Part of the last second in which at least one launch of the container waited for compute share (0-1)",
        &|c| c.waiting,
    )?;
    out.gauge(
        "vgpu_container_compute_waits_for_turn",
        None,
        "1 while a container with oversubscribed memory waits for its turn on the device",
        every().filter_map(|(labels, d)| {
            d.oversubscribed_bytes?;
            Some((labels, u64::from(d.compute.waits_for_turn).into()))
        }),
    )?;
    let works = every().filter_map(|(labels, d)| Some((labels, d.compute.work.as_ref()?)));
    out.counter(
        "vgpu_container_compute_busy_seconds",
        "Device time charged to the container, in seconds",
        works.map(|(labels, work)| (labels, work.busy.as_secs_f64())),
    )?;
    let only_floors = out.detail == Detail::Standard;
    let throttled = every().filter_map(|(labels, d)| {
        // Alerts compare it with the floor.
        let is_shown = !only_floors || d.compute.floor.is_some();
        let work = d.compute.work.as_ref().filter(|_| is_shown)?;
        Some((labels, work.throttled.as_secs_f64()))
    });
    out.counter(
        "vgpu_container_compute_throttled_seconds",
        "Time that the container's launches spent waiting for compute share, summed over threads, in seconds",
        throttled,
    )?;
    waited(shown, out)?;
    let mut count = |name, help, value: &dyn Fn(&Work) -> u64| {
        let works = every().filter_map(|(labels, d)| Some((labels, d.compute.work.as_ref()?)));
        out.counter(
            name,
            help,
            works.map(|(labels, work)| (labels, value(work))),
        )
    };
    count(
        "vgpu_container_compute_waits",
        "Launches of the container that had to wait for compute share",
        &|work| work.waits,
    )?;
    count(
        "vgpu_container_kernel_launches",
        "Kernels launched by the container",
        &|work| work.kernels,
    )?;
    count(
        "vgpu_container_graph_launches",
        "CUDA graphs launched by the container",
        &|work| work.graphs,
    )?;
    count(
        "vgpu_container_copies",
        "Copies and fills enqueued by the container",
        &|work| work.copies,
    )?;
    count(
        "vgpu_container_copied_bytes",
        "Bytes copied or filled by the container",
        &|work| work.copied_bytes,
    )?;
    count(
        "vgpu_container_host_functions",
        "Host functions enqueued by the container",
        &|work| work.host_functions,
    )?;
    out.gauge(
        "vgpu_container_last_launch_elapsed",
        Some(Unit::Seconds),
        "Seconds since the container's last launch on the device",
        every().filter_map(|(labels, d)| Some((labels, d.since_launch?.as_secs_f64().into()))),
    )?;
    out.gauge(
        "vgpu_container_oversubscribed",
        BYTES,
        "Managed memory of the container beyond its share of the device, which the driver pages, in bytes",
        every().filter_map(|(labels, d)| Some((labels, d.oversubscribed_bytes?.into()))),
    )?;
    let whole = || {
        shown
            .containers
            .iter()
            .map(|container| (container_labels(&shown.node, container), container))
    };
    out.gauge(
        "vgpu_container_priority",
        None,
        "Priority of the container; 0 is the highest",
        whole().map(|(labels, c)| (labels, c.priority.into())),
    )?;
    out.gauge(
        "vgpu_container_compute_policy_info",
        None,
        "Compute policy of the container: when its compute limits are enforced; always 1",
        whole()
            .filter(|(_, c)| !c.policy.is_empty())
            .map(|(mut labels, c)| {
                labels.push(("policy", text(c.policy)));
                (labels, 1_u64.into())
            }),
    )?;
    let only_old = out.detail == Detail::Standard;
    out.gauge(
        "vgpu_container_arbiter_heartbeat_age",
        Some(Unit::Seconds),
        "Seconds since the compute arbiter last served the container",
        whole().filter_map(|(labels, c)| {
            let age = c.arbiter_age?;
            let is_shown = !only_old || age >= SILENT;
            is_shown.then(|| (labels, age.as_secs_f64().into()))
        }),
    )
}

/// How long launches waited; nothing of a container whose launches never did.
fn waited(shown: &Shown, out: &mut Out<'_>) -> fmt::Result {
    let every = || {
        devices(shown).filter_map(|(container, device)| {
            let waited = &device.compute.work.as_ref()?.waited;
            let has_waited = waited.count() > 0;
            has_waited.then(|| (labels(&shown.node, container, device), waited))
        })
    };
    out.histogram(
        "vgpu_container_compute_wait_duration",
        "How long the container's launches that had to wait for compute share waited, in seconds",
        every().map(|(labels, waited)| {
            let sum = Duration::from_nanos(waited.sum_ns()).as_secs_f64();
            (labels, sum, buckets(waited))
        }),
    )?;
    out.counter(
        "vgpu_container_compute_waited_seconds",
        "Time that the container's launches waited, by cause, summed over threads, in seconds",
        every().flat_map(|(labels, waited)| {
            let causes = WaitCause::ALL.into_iter().zip(waited.ns_by_cause);
            causes.filter(|(_, ns)| *ns > 0).map(move |(cause, ns)| {
                let cause = vec![("cause", text(cause.name()))];
                let seconds = Duration::from_nanos(ns).as_secs_f64();
                ([labels.clone(), cause].concat(), seconds)
            })
        }),
    )
}

/// Waits by their length in seconds.
fn buckets(waited: &Waits) -> Vec<(f64, u64)> {
    let bounds = WAIT_BOUNDS_NS
        .into_iter()
        .map(|ns| Duration::from_nanos(ns).as_secs_f64());
    bounds
        .chain([f64::INFINITY])
        .zip(waited.by_length)
        .collect()
}

fn look(shown: &Shown, out: &mut Out<'_>) -> fmt::Result {
    let look = &shown.look;
    let labels = || vec![("node", text(&shown.node))];
    let one = |value: Value| [(labels(), value)];
    out.gauge(
        "vgpu_monitor_root_readable",
        None,
        "1 if the directory that holds the containers' instances could be read",
        one(u64::from(look.root_readable).into()),
    )?;
    out.gauge(
        "vgpu_monitor_broken_regions",
        None,
        "Container directories that could not be shown in this scrape",
        one(look.broken.into()),
    )?;
    out.counter(
        "vgpu_monitor_skipped",
        "Containers left out of scrapes since the agent started, by reason",
        look.skipped
            .iter()
            .map(|(reason, count)| ([labels(), vec![("reason", text(reason))]].concat(), *count)),
    )?;
    out.gauge(
        "vgpu_monitor_nvml_up",
        None,
        "1 if the NVIDIA driver answered",
        look.nvml_up.map(|up| (labels(), u64::from(up).into())),
    )?;
    out.gauge(
        "vgpu_monitor_gpu_faults",
        None,
        "GPUs that did not answer although the driver did",
        look.nvml_up.map(|_| (labels(), look.gpu_faults.into())),
    )?;
    let arbiter = |value: &dyn Fn(&ArbiterStatus) -> u64| {
        let value = look.arbiter.as_ref().map(value);
        value.map(|value| (labels(), value.into()))
    };
    out.gauge(
        "vgpu_monitor_arbiter_leads",
        None,
        "1 if this agent is the node's compute arbiter",
        arbiter(&|status| status.leads.into()),
    )?;
    out.gauge(
        "vgpu_monitor_arbiter_served",
        None,
        "Containers that this agent's compute arbiter serves",
        arbiter(&|status| status.served),
    )?;
    out.gauge(
        "vgpu_monitor_arbiter_failed",
        None,
        "Containers that this agent's compute arbiter could not read or write at its last tick",
        arbiter(&|status| status.failed),
    )?;
    out.counter(
        "vgpu_monitor_arbiter_ticks",
        "Ticks of this agent's compute arbiter since the agent started",
        look.arbiter.map(|status| (labels(), status.ticks)),
    )?;
    out.gauge(
        "vgpu_monitor_scrape_duration",
        Some(Unit::Seconds),
        "Time spent reading the containers and the GPUs for this scrape, in seconds",
        one(look.took.as_secs_f64().into()),
    )
}

fn legacy(shown: &Shown, out: &mut Out<'_>) -> fmt::Result {
    out.gauge(
        "HostGPUMemoryUsage",
        None,
        "GPU device memory usage",
        shown
            .gpus
            .iter()
            .map(|gpu| (legacy_gpu_labels(&shown.node, gpu), gpu.used_bytes.into())),
    )?;
    out.gauge(
        "HostCoreUtilization",
        None,
        "GPU core utilization",
        shown.gpus.iter().filter_map(|gpu| {
            Some((
                legacy_gpu_labels(&shown.node, gpu),
                gpu.utilization_percent?.into(),
            ))
        }),
    )?;
    let every =
        || devices(shown).map(|(container, device)| (legacy_labels(container, device), device));
    out.gauge(
        "vGPU_device_memory_usage_in_bytes",
        None,
        "vGPU device usage",
        every().map(|(labels, d)| (labels, d.used_bytes.into())),
    )?;
    out.gauge(
        "vGPU_device_memory_limit_in_bytes",
        None,
        "vGPU device limit",
        every().filter_map(|(labels, d)| Some((labels, d.limit_bytes?.into()))),
    )?;
    out.gauge(
        "Device_memory_desc_of_container",
        None,
        "Container device memory description",
        every().map(|(mut labels, d)| {
            labels.extend([
                ("context", number(d.context_bytes)),
                ("module", number(d.module_bytes)),
                ("data", number(d.buffer_bytes)),
                ("offset", text("0")),
            ]);
            (labels, d.used_bytes.into())
        }),
    )?;
    out.gauge(
        "Device_utilization_desc_of_container",
        None,
        "Container device utilization description",
        every().filter_map(|(labels, d)| Some((labels, d.utilization_percent?.into()))),
    )?;
    out.gauge(
        "Device_last_kernel_of_container",
        None,
        "Container device last kernel description",
        every().filter_map(|(labels, d)| Some((labels, d.since_launch?.as_secs_f64().into()))),
    )?;
    out.gauge(
        "MigInfo",
        None,
        "Mig device information for container",
        every().filter_map(|(mut labels, d)| {
            labels.push(("instanceid", ids(d.instance.as_ref()?).0));
            Some((labels, 1_u64.into()))
        }),
    )
}
