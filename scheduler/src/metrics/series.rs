//! The series of a snapshot: every device, share and quota under HAMi's names, and the scheduler's own gauges.

use std::collections::BTreeMap;
use std::fmt;

use kube_api::vendor::Role;
use placement::{DeviceView, Reservation};
use server::Format;

use super::page::{LabelWriter, Page, Piece};
use super::{Choice, Detail, InstanceAt, Snapshot};
use crate::ledger::{AccountView, CLAIM_UID};

/// The labels of a device's series besides its node, UUID and index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum More {
    Nothing,
    Type,
    TypeCores,
    TypeCoresMemory,
}

/// A series of each device.
struct DeviceSeries {
    standard: Standard,
    name: &'static str,
    legacy: &'static str,
    help: &'static str,
    more: More,
    value: fn(&DeviceView<'_>) -> Value,
}

/// Whether a series is one of [`Detail::Standard`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standard {
    Yes,
    /// Only other values than this one.
    Unless(u64),
    No,
}

enum Value {
    Whole(u64),
    Part(f64),
    /// No series.
    None,
}

const OF_DEVICE: [DeviceSeries; 7] = [
    DeviceSeries {
        standard: Standard::Yes,
        name: "hami_gpu_memory_limit_bytes",
        legacy: "GPUDeviceMemoryLimit",
        help: "Allocatable memory of the device, in bytes",
        more: More::Type,
        value: |device| Value::Whole(device.device().memory_bytes),
    },
    DeviceSeries {
        standard: Standard::Unless(100),
        name: "hami_gpu_core_limit_ratio",
        legacy: "GPUDeviceCoreLimit",
        help: "Allocatable compute of the device, in the vendor's unit (0-100 for NVIDIA)",
        more: More::Type,
        value: |device| Value::Whole(device.device().cores.into()),
    },
    DeviceSeries {
        standard: Standard::Yes,
        name: "hami_gpu_core_allocated_ratio",
        legacy: "GPUDeviceCoreAllocated",
        help: "Allocated compute of the device, in the vendor's unit (0-100 for NVIDIA)",
        more: More::Type,
        value: |device| Value::Whole(device.used().cores.into()),
    },
    DeviceSeries {
        standard: Standard::No,
        name: "hami_gpu_shared_count",
        legacy: "GPUDeviceSharedNum",
        help: "Allocated slots of the device",
        more: More::Type,
        value: |device| Value::Whole(device.used().slots.into()),
    },
    DeviceSeries {
        standard: Standard::Yes,
        name: "hami_gpu_memory_allocated_bytes",
        legacy: "GPUDeviceMemoryAllocated",
        help: "Allocated memory of the device, in bytes",
        more: More::TypeCores,
        value: |device| Value::Whole(device.used().memory_bytes),
    },
    DeviceSeries {
        standard: Standard::No,
        name: "hami_node_gpu_overview",
        legacy: "nodeGPUOverview",
        help: "Allocated memory of the device, in bytes, with its capacity as labels (device_memory_limit in MiB)",
        more: More::TypeCoresMemory,
        value: |device| Value::Whole(device.used().memory_bytes),
    },
    DeviceSeries {
        standard: Standard::No,
        name: "hami_node_gpu_memory_allocated_ratio",
        legacy: "nodeGPUMemoryPercentage",
        help: "Allocated part of the device's memory (0-1)",
        more: More::Nothing,
        value: |device| match device.device().memory_bytes {
            0 => Value::None,
            total => Value::Part(part(device.used().memory_bytes, total)),
        },
    },
];

#[allow(
    clippy::cast_precision_loss,
    reason = "a part of bytes; f64 is exact to 8 PiB"
)]
fn part(used: u64, total: u64) -> f64 {
    used as f64 / total as f64
}

/// The names of labels: the current ones, or the older ones.
struct LabelNames {
    node: &'static str,
    device: &'static str,
    index: &'static str,
    kind: &'static str,
    cores: &'static str,
    memory: &'static str,
}

const PRESENT: LabelNames = LabelNames {
    node: "node",
    device: "device_uuid",
    index: "device_index",
    kind: "device_type",
    cores: "device_cores",
    memory: "device_memory_limit",
};

const OLDER: LabelNames = LabelNames {
    node: "nodeid",
    device: "deviceuuid",
    index: "deviceidx",
    kind: "devicetype",
    cores: "devicecores",
    memory: "devicememorylimit",
};

pub(super) fn write<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    choice: Choice,
    format: Format,
    page: &mut Page<S>,
) -> fmt::Result {
    let Choice { legacy, detail } = choice;
    replica(snapshot, page)?;
    if !snapshot.answers {
        // The replica that answers shows the cluster.
        return Ok(());
    }
    own_gauges(snapshot, format, page)?;
    quotas(snapshot, legacy, page)?;
    compute(snapshot, page)?;
    accounts(snapshot, format, page)?;
    for family in &OF_DEVICE {
        match (detail, family.standard) {
            (Detail::Full, _) | (Detail::Standard, Standard::Yes) => {
                devices(snapshot, family, family.name, &PRESENT, |_| true, page)?;
            }
            (Detail::Standard, Standard::Unless(usual)) => {
                let is_unusual =
                    |value: &Value| !matches!(value, Value::Whole(value) if *value == usual);
                devices(snapshot, family, family.name, &PRESENT, is_unusual, page)?;
            }
            (Detail::Standard, Standard::No) => {}
        }
        if legacy {
            devices(snapshot, family, family.legacy, &OLDER, |_| true, page)?;
        }
    }
    instances(snapshot, legacy, page)?;
    shares(snapshot, choice, page)
}

/// The sums of what workloads asked for and were given.
fn accounts<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    format: Format,
    page: &mut Page<S>,
) -> fmt::Result {
    type Of = fn(&AccountView) -> f64;
    let families: [(&str, &str, Of); 3] = [
        (
            "vgpu_workload_gpu_asked_seconds",
            "GPU time that the limits of the workload's pods allowed while they held GPUs, in seconds",
            |account| account.held.asked,
        ),
        (
            "vgpu_workload_gpu_granted_seconds",
            "GPU time that the workload's pods kept from other pods, in seconds: of each GPU the larger part of compute and memory",
            |account| account.held.granted,
        ),
        (
            "vgpu_workload_memory_given_gibibyte_seconds",
            "GPU memory that the workload's pods were given, in GiB times seconds",
            |account| account.held.gib,
        ),
    ];
    for (name, help, value) in families {
        page.counter(name, help, format)?;
        let name = format!("{name}_total");
        for account in &snapshot.accounts {
            page.sample(&name, value(account), |labels| {
                labels
                    .text("namespace", &account.key.namespace)
                    .text("team", &account.key.team)
                    .text("workload_type", &account.key.kind)
                    .text("workload", &account.key.workload);
            })?;
        }
    }
    Ok(())
}

fn devices<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    family: &DeviceSeries,
    name: &str,
    words: &LabelNames,
    shows: impl Fn(&Value) -> bool,
    page: &mut Page<S>,
) -> fmt::Result {
    page.family(name, family.help)?;
    for node in snapshot.cluster.nodes() {
        for view in node.devices() {
            let device = view.device();
            let labels = |labels: &mut LabelWriter<'_>| {
                labels
                    .text(words.node, node.name())
                    .text(words.device, view.id())
                    .number(words.index, device.index);
                if family.more != More::Nothing {
                    labels.text(words.kind, &device.model);
                }
                if matches!(family.more, More::TypeCores | More::TypeCoresMemory) {
                    labels.number(words.cores, device.cores);
                }
                if family.more == More::TypeCoresMemory {
                    labels.number(words.memory, device.memory_bytes >> 20);
                }
            };
            match Some((family.value)(&view))
                .filter(&shows)
                .unwrap_or(Value::None)
            {
                Value::Whole(value) => page.sample(name, value, labels)?,
                Value::Part(value) => page.sample(name, value, labels)?,
                Value::None => {}
            }
        }
    }
    Ok(())
}

fn instances<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    legacy: bool,
    page: &mut Page<S>,
) -> fmt::Result {
    for older in [false, true] {
        if older && !legacy {
            continue;
        }
        let (name, words) = if older {
            ("nodeGPUMigInstance", &OLDER)
        } else {
            ("hami_node_gpu_mig_instance_info", &PRESENT)
        };
        page.family(
            name,
            "Allocated MIG instance and its position on the GPU; always 1",
        )?;
        for node in snapshot.cluster.nodes() {
            for view in node.devices() {
                for instance in view.instances() {
                    let at = InstanceAt {
                        node: node.name().to_owned(),
                        device: view.id().to_owned(),
                        span: instance.span,
                    };
                    let names = snapshot.instances.get(&at).cloned().unwrap_or_default();
                    page.sample(name, 1, |labels| {
                        labels
                            .text(words.node, node.name())
                            .text(words.device, view.id())
                            .number(words.index, view.device().index);
                        if older {
                            // Without the agent's number, the position distinguishes two instances of one profile.
                            let migname = if names.gpu_instance.is_empty() {
                                format!("{}@{}", instance.profile, instance.span.start)
                            } else {
                                format!("{}-{}", instance.profile, names.gpu_instance)
                            };
                            labels.text("migname", &migname);
                        } else {
                            labels
                                .text("mig_uuid", &names.uuid)
                                .text("profile", &instance.profile)
                                .text("gpu_instance_id", &names.gpu_instance)
                                .text("compute_instance_id", &names.compute_instance)
                                .number("placement_start", instance.span.start)
                                .number("placement_size", instance.span.size);
                        }
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// The devices of each container. A container's number is its position in the pod's spec, init containers first, as in
/// the pod's annotations.
fn shares<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    choice: Choice,
    page: &mut Page<S>,
) -> fmt::Result {
    let pods = snapshot.cluster.reservations();
    let mut held: Vec<&Reservation> = pods
        .filter(|held| !held.pod.uid.starts_with(CLAIM_UID))
        .collect();
    held.sort_unstable_by_key(|held| key(held));
    let families = [
        ("hami_vgpu_memory_allocated_bytes", true, false),
        ("hami_vgpu_core_allocated_ratio", false, false),
        ("vGPUMemoryAllocated", true, true),
        ("vGPUCoreAllocated", false, true),
    ];
    for (name, memory, older) in families {
        let is_served = if older {
            choice.legacy
        } else {
            choice.detail == Detail::Full
        };
        if !is_served {
            continue;
        }
        page.family(
            name,
            if memory {
                "Device memory allocated to the container, in bytes"
            } else {
                "Device compute allocated to the container, in the vendor's unit (0-100 for NVIDIA)"
            },
        )?;
        let words = if older {
            [
                "podnamespace",
                "nodename",
                "podname",
                "containeridx",
                "deviceuuid",
            ]
        } else {
            ["namespace", "node", "pod", "container_index", "device_uuid"]
        };
        // A pod that ends and its successor of the same name may be on the same node; they share one series.
        for of_pod in held.chunk_by(|a, b| key(a) == key(b)) {
            let Some(first) = of_pod.first() else {
                continue;
            };
            let mut sums: BTreeMap<(usize, &str), u64> = BTreeMap::new();
            for held in of_pod {
                for (position, container) in held.placement.containers.iter().enumerate() {
                    for grant in &container.grants {
                        let value = if memory {
                            grant.memory_bytes
                        } else {
                            grant.cores.into()
                        };
                        let sum = sums.entry((position, &*grant.device)).or_default();
                        *sum = sum.saturating_add(value);
                    }
                }
            }
            for ((position, device), value) in sums {
                page.sample(name, value, |labels| {
                    labels
                        .text(words[0], &first.pod.namespace)
                        .text(words[1], &first.placement.node)
                        .text(words[2], &first.pod.name)
                        .number(words[3], u64::try_from(position).unwrap_or(u64::MAX))
                        .text(words[4], device);
                })?;
            }
        }
    }
    Ok(())
}

fn key(held: &Reservation) -> (&str, &str, &str) {
    (&held.pod.namespace, &held.pod.name, &held.placement.node)
}

fn quotas<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    legacy: bool,
    page: &mut Page<S>,
) -> fmt::Result {
    let mut lines: Vec<(&str, &str, u64, u64)> = Vec::new();
    for (namespace, vendor, quota, used) in snapshot.cluster.quotas() {
        for (resource, row, role) in snapshot.vendors.resources() {
            if row.word != vendor.as_str() {
                continue;
            }
            let (limit, used) = match role {
                Role::Memory => (
                    quota.memory_bytes.map(|bytes| bytes >> 20),
                    used.memory_bytes >> 20,
                ),
                Role::Cores => (quota.cores.map(u64::from), used.cores.into()),
                Role::Count => (quota.devices.map(u64::from), used.slots.into()),
                _ => continue,
            };
            if let Some(limit) = limit {
                lines.push((namespace, resource, limit, used));
            }
        }
    }
    lines.sort_unstable();
    page.family(
        "hami_resource_quota_limit",
        "Quota of the namespace for the resource (memory in MiB)",
    )?;
    for (namespace, resource, limit, _) in &lines {
        page.sample("hami_resource_quota_limit", *limit, |labels| {
            labels
                .text("namespace", namespace)
                .text("quota_name", resource);
        })?;
    }
    let names = [
        ("hami_resource_quota_used", "namespace", "quota_name"),
        ("QuotaUsed", "quotanamespace", "quotaName"),
    ];
    for (name, of_namespace, of_resource) in names {
        if name == "QuotaUsed" && !legacy {
            continue;
        }
        page.family(
            name,
            "Amount of the resource that the namespace's pods hold (memory in MiB)",
        )?;
        for (namespace, resource, limit, used) in &lines {
            page.sample(name, *used, |labels| {
                labels
                    .text(of_namespace, namespace)
                    .text(of_resource, resource)
                    .number("limit", *limit);
            })?;
        }
    }
    Ok(())
}

/// The limits of ComputeQuotas, and the outcomes of ComputeTasks.
fn compute<S: FnMut(Piece) -> fmt::Result>(snapshot: &Snapshot, page: &mut Page<S>) -> fmt::Result {
    if let Some(quotas) = &snapshot.compute_quotas {
        let families = [
            (
                "vgpu_compute_quota_hard",
                "What the pods of a ComputeQuota may hold: vram in bytes, TFLOPS, devices",
                true,
            ),
            (
                "vgpu_compute_quota_used",
                "What the pods of a ComputeQuota hold: vram in bytes, TFLOPS, devices",
                false,
            ),
        ];
        for (name, help, is_hard) in families {
            page.family(name, help)?;
            for quota in quotas {
                let amount = if is_hard { quota.hard } else { quota.used };
                let labels = |labels: &mut LabelWriter<'_>| {
                    labels
                        .text("namespace", &quota.namespace)
                        .text("quota", &quota.quota)
                        .text("resource", quota.resource);
                };
                if quota.resource.starts_with("tflops") {
                    page.sample(name, part(amount, 1000), labels)?;
                } else {
                    page.sample(name, amount, labels)?;
                }
            }
        }
    }
    if let Some(tasks) = &snapshot.compute_tasks {
        page.family("vgpu_compute_tasks", "ComputeTasks by phase")?;
        for (phase, tasks) in tasks {
            page.sample("vgpu_compute_tasks", tasks, |labels| {
                labels.text("phase", phase);
            })?;
        }
    }
    Ok(())
}

/// The series of every replica: its build, and whether it answers. Alerts use the scheduler's name to tell the
/// replicas of different installations apart.
fn replica<S: FnMut(Piece) -> fmt::Result>(snapshot: &Snapshot, page: &mut Page<S>) -> fmt::Result {
    page.family(
        "hami_build_info",
        "Build information of the program; always 1",
    )?;
    page.sample("hami_build_info", 1, |labels| {
        labels
            .text("version", env!("CARGO_PKG_VERSION"))
            .text(
                "revision",
                option_env!("VGPU_REVISION").unwrap_or("unknown"),
            )
            .text(
                "build_date",
                option_env!("VGPU_BUILD_DATE").unwrap_or("unknown"),
            )
            .text("go_version", "none")
            .text("compiler", "rustc")
            .text(
                "platform",
                &format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
            );
    })?;
    let gauges: [(&str, &str, bool); 2] = [
        (
            "vgpu_scheduler_answers",
            "1 if this replica answers requests",
            snapshot.answers,
        ),
        (
            "vgpu_scheduler_synced",
            "1 if all nodes and pods of the cluster have been read",
            snapshot.synced,
        ),
    ];
    for (name, help, value) in gauges {
        page.family(name, help)?;
        page.sample(name, u64::from(value), |labels| {
            labels.text("scheduler", &snapshot.scheduler);
        })?;
    }
    Ok(())
}

fn own_gauges<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    format: Format,
    page: &mut Page<S>,
) -> fmt::Result {
    let nodes = snapshot.cluster.nodes().count();
    let pods = snapshot.cluster.reservations();
    let reservations = pods
        .filter(|held| !held.pod.uid.starts_with(CLAIM_UID))
        .count();
    let count = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    let gauges: [(&str, &str, u64); 6] = [
        (
            "vgpu_scheduler_nodes",
            "Nodes that report devices",
            count(nodes),
        ),
        (
            "vgpu_scheduler_broken_nodes",
            "Nodes with an annotation that cannot be parsed",
            snapshot.broken_nodes,
        ),
        (
            "vgpu_scheduler_broken_pods",
            "Pods with an annotation that cannot be parsed",
            snapshot.broken_pods,
        ),
        (
            "vgpu_scheduler_reservations",
            "Pods that hold or have reserved devices",
            count(reservations),
        ),
        (
            "vgpu_scheduler_reservations_unconfirmed",
            "Reservations not yet confirmed by a binding",
            snapshot.unconfirmed,
        ),
        (
            "vgpu_scheduler_events_waiting",
            "Events waiting to be written",
            snapshot.events.waiting,
        ),
    ];
    for (name, help, value) in gauges {
        page.family(name, help)?;
        page.sample(name, value, |_| {})?;
    }
    page.family(
        "vgpu_scheduler_pending_pods",
        "Pending pods that requested devices and got none, by the reason that most nodes gave",
    )?;
    for (reason, pods) in &snapshot.pending {
        page.sample("vgpu_scheduler_pending_pods", pods, |labels| {
            labels.text("reason", reason);
        })?;
    }
    let events = &snapshot.events;
    let results = [
        ("sent", events.sent),
        ("merged", events.merged),
        ("dropped", events.dropped),
        ("limited", events.limited),
        ("refused", events.refused),
    ];
    page.counter(
        "vgpu_scheduler_events",
        "Events by result: sent to the API server, merged with a waiting one, dropped, limited by the object's rate, refused by the API server",
        format,
    )?;
    for (result, value) in results {
        page.sample("vgpu_scheduler_events_total", value, |labels| {
            labels.text("result", result);
        })?;
    }
    page.counter(
        "vgpu_scheduler_wakeups",
        "Times that kube-scheduler was made to retry pending pods",
        format,
    )?;
    page.sample("vgpu_scheduler_wakeups_total", snapshot.woken, |_| {})
}
