//! What is shown, and under which names: values in, series out.
//!
//! `docs/metrics.md` explains each series; a test compares its list with this one. Never reads a
//! file, a clock or a GPU.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, GaugeValueEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::arbiter::Status;

/// A node at one moment.
#[derive(Debug, Clone, Default)]
pub struct Shown {
    /// Name of the node.
    pub node: String,
    /// Its GPUs, in order of index.
    pub gpus: Vec<Gpu>,
    /// Its containers; no two have the same namespace, pod and container.
    pub containers: Vec<Container>,
    /// How the look at them went.
    pub look: Look,
}

/// A whole GPU.
#[derive(Debug, Clone, Default)]
pub struct Gpu {
    /// Its number on the node.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// Its model, without the vendor.
    pub model: String,
    /// Used memory, bytes, by all processes.
    pub used_bytes: u64,
    /// Busy part of the last sample period, percent.
    pub utilization_percent: Option<u32>,
    /// Part of the last sample period in which its memory was read or written, percent.
    pub memory_utilization_percent: Option<u32>,
}

/// A container.
#[derive(Debug, Clone, Default)]
pub struct Container {
    /// Kubernetes namespace; empty under `vgpu run`.
    pub namespace: String,
    /// Pod; empty under `vgpu run`.
    pub pod: String,
    /// Container; the name under `vgpu run`.
    pub container: String,
    /// Its devices, in the order in which it sees them.
    pub devices: Vec<Device>,
    /// Living processes that have touched a device.
    pub processes: u64,
    /// Refusals that left a record.
    pub ooms: u64,
    /// Refused requests.
    pub refused: u64,
    /// Bounded waits for another process that ran out.
    pub waits_expired: u64,
    /// Hooked calls by group.
    pub hook_calls: Vec<(&'static str, u64)>,
    /// Priority, 0 is the highest.
    pub priority: u32,
    /// When its compute limits count; empty where that is not known.
    pub policy: &'static str,
    /// Since the compute arbiter last said that it lives; nothing where none ever did.
    pub arbiter_age: Option<Duration>,
}

/// A device of a container.
#[derive(Debug, Clone, Default)]
pub struct Device {
    /// Its number, as the container counts.
    pub index: usize,
    /// Its UUID; empty where the limits go by index.
    pub uuid: String,
    /// Charged, bytes.
    pub used_bytes: u64,
    /// What may be used, bytes; nothing where neither a limit nor the card's size is known.
    pub limit_bytes: Option<u64>,
    /// Of the charged: contexts, bytes.
    pub context_bytes: u64,
    /// Of the charged: modules, bytes.
    pub module_bytes: u64,
    /// Of the charged: buffers, bytes.
    pub buffer_bytes: u64,
    /// Of the charged: of ended processes, bytes.
    pub ended_bytes: u64,
    /// Busy part of the last period, percent, summed over processes.
    pub utilization_percent: Option<f64>,
    /// Since a launch was last seen; nothing where none ever was.
    pub since_launch: Option<Duration>,
    /// Memory that the driver holds for the container and that is not charged, bytes; nothing if the driver
    /// was not asked.
    pub unaccounted_bytes: Option<u64>,
    /// More is used than the limit allows.
    pub pending_shrink: bool,
    /// The MIG instance that it is.
    pub instance: Option<Instance>,
    /// Its share of the device's time.
    pub compute: Compute,
    /// Charged memory past the container's share of the device, bytes; nothing where it has no
    /// such share.
    pub oversubscribed_bytes: Option<u64>,
}

/// A share of a device's time; shares are parts of one.
#[derive(Debug, Clone, Default)]
pub struct Compute {
    /// The most that it may have; one without a limit.
    pub asked: Option<f64>,
    /// What it gets whenever it wants it.
    pub floor: Option<f64>,
    /// What the arbiter grants; nothing without one.
    pub granted: Option<f64>,
    /// What it used in the last second; nothing if unknown.
    pub used: Option<f64>,
    /// It waits for its turn on a device whose memory does not hold all at once.
    pub waits_for_turn: bool,
    /// What it has done; nothing before the first time.
    pub work: Option<Work>,
}

/// What was put on a device, since the container began.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// GPU time.
    pub busy: Duration,
    /// Time that launches have waited, summed over threads.
    pub throttled: Duration,
    /// Launches that had to wait.
    pub waits: u64,
    /// Kernels launched.
    pub kernels: u64,
    /// Graphs launched.
    pub graphs: u64,
    /// Copies and fills.
    pub copies: u64,
    /// What they copied and filled, bytes.
    pub copied_bytes: u64,
    /// Host functions.
    pub host_functions: u64,
}

/// A MIG instance.
#[derive(Debug, Clone, Default)]
pub struct Instance {
    /// Its shape, such as `1g.5gb`.
    pub profile: String,
    /// Ids of its GPU instance and compute instance, where they are known.
    pub ids: Option<(u32, u32)>,
}

/// How the look at the node went.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Whether the root directory could be read; one that is not there yet counts as read.
    pub root_readable: bool,
    /// Directories that look like containers and could not be shown.
    pub broken: u64,
    /// What was left out since the agent started, by reason.
    pub skipped: Vec<(&'static str, u64)>,
    /// Whether the driver answered; nothing where it was not to be asked.
    pub nvml_up: Option<bool>,
    /// GPUs that did not answer.
    pub gpu_faults: u64,
    /// The compute arbiter of this process; nothing where it has none.
    pub arbiter: Option<Status>,
    /// What the look took.
    pub took: Duration,
}

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
pub fn encode(shown: &Shown, names: Names, encoder: DescriptorEncoder<'_>) -> fmt::Result {
    let mut out = Out { encoder };
    gpus(shown, &mut out)?;
    containers(shown, &mut out)?;
    build(&mut out)?;
    ours(shown, &mut out)?;
    compute(shown, &mut out)?;
    look(shown, &mut out)?;
    if names == Names::WithLegacy {
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
    out.gauge(
        "vgpu_container_compute_waits_for_turn",
        None,
        "1 while a container with oversubscribed memory waits for its turn on the device",
        every().filter_map(|(labels, d)| {
            d.oversubscribed_bytes?;
            Some((labels, u64::from(d.compute.waits_for_turn).into()))
        }),
    )?;
    let mut seconds = |name, help, value: &dyn Fn(&Work) -> Duration| {
        let works = every().filter_map(|(labels, d)| Some((labels, d.compute.work.as_ref()?)));
        out.counter(
            name,
            help,
            works.map(|(labels, work)| (labels, value(work).as_secs_f64())),
        )
    };
    seconds(
        "vgpu_container_compute_busy_seconds",
        "Device time charged to the container, in seconds",
        &|work| work.busy,
    )?;
    seconds(
        "vgpu_container_compute_throttled_seconds",
        "Time that the container's launches spent waiting for compute share, summed over threads, in seconds",
        &|work| work.throttled,
    )?;
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
    out.gauge(
        "vgpu_container_arbiter_heartbeat_age",
        Some(Unit::Seconds),
        "Seconds since the compute arbiter last served the container",
        whole().filter_map(|(labels, c)| Some((labels, c.arbiter_age?.as_secs_f64().into()))),
    )
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
    let arbiter = |value: &dyn Fn(&Status) -> u64| {
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

const BYTES: Option<Unit> = Some(Unit::Bytes);

type Labels<'a> = Vec<(&'static str, Cow<'a, str>)>;

fn text(text: &str) -> Cow<'_, str> {
    Cow::Borrowed(text)
}

fn number<'a>(number: impl ToString) -> Cow<'a, str> {
    Cow::Owned(number.to_string())
}

/// Ids of the GPU instance and the compute instance, as labels.
fn ids<'a>(instance: &Instance) -> (Cow<'a, str>, Cow<'a, str>) {
    instance.ids.map_or((text(""), text("")), |(gpu, compute)| {
        (number(gpu), number(compute))
    })
}

fn device_type(gpu: &Gpu) -> Cow<'_, str> {
    Cow::Owned(format!("NVIDIA-{}", gpu.model))
}

fn devices(shown: &Shown) -> impl Iterator<Item = (&Container, &Device)> {
    shown
        .containers
        .iter()
        .flat_map(|c| c.devices.iter().map(move |device| (c, device)))
}

fn gpu_labels<'a>(node: Option<&'a str>, gpu: &'a Gpu) -> Labels<'a> {
    let mut labels: Labels<'a> = node.map(|node| ("node", text(node))).into_iter().collect();
    labels.extend([
        ("device_index", number(gpu.index)),
        ("device_uuid", text(&gpu.uuid)),
        ("device_type", device_type(gpu)),
    ]);
    labels
}

fn legacy_gpu_labels<'a>(node: &'a str, gpu: &'a Gpu) -> Labels<'a> {
    vec![
        ("nodeid", text(node)),
        ("deviceidx", number(gpu.index)),
        ("deviceuuid", text(&gpu.uuid)),
        ("devicetype", device_type(gpu)),
    ]
}

fn container_labels<'a>(node: &'a str, container: &'a Container) -> Labels<'a> {
    vec![
        ("node", text(node)),
        ("namespace", text(&container.namespace)),
        ("pod", text(&container.pod)),
        ("container", text(&container.container)),
    ]
}

fn labels<'a>(node: &'a str, container: &'a Container, device: &'a Device) -> Labels<'a> {
    let mut labels = container_labels(node, container);
    labels.extend([
        ("vdevice_index", number(device.index)),
        ("device_uuid", text(&device.uuid)),
    ]);
    labels
}

fn legacy_labels<'a>(container: &'a Container, device: &'a Device) -> Labels<'a> {
    vec![
        ("podnamespace", text(&container.namespace)),
        ("podname", text(&container.pod)),
        ("ctrname", text(&container.container)),
        ("vdeviceid", number(device.index)),
        ("deviceuuid", text(&device.uuid)),
    ]
}

/// A gauge's value: bytes stay whole, so that no digit is lost on the way out.
#[derive(Debug, Clone, Copy)]
enum Value {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => EncodeGaugeValue::encode(value, encoder),
            Self::Real(value) => EncodeGaugeValue::encode(value, encoder),
        }
    }
}

/// Writes families; one without a sample is left out.
struct Out<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Out<'_> {
    fn gauge<'l>(
        &mut self,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, Value)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut family =
            self.encoder
                .encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in samples {
            if labels.is_empty() {
                family.encode_gauge(&value)?;
            } else {
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    fn counter<'l, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut family = self
            .encoder
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            if labels.is_empty() {
                family.encode_counter::<NoLabelSet, V, u64>(&value, None)?;
                continue;
            }
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, V, u64>(&value, None)?;
        }
        Ok(())
    }
}
