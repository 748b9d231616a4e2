//! The output of `vgpu top --json`: a promise to programs, described in docs/command.md. Fields are
//! added and never renamed; `version` is raised where one changes its meaning.

use serde::Serialize;
use std::collections::BTreeMap;

use supervisor::view::{ContainerView, DeviceView, ProcessView};
use vgpu_abi::host::{ComputeSnapshot, DeviceUseSnapshot};
use vgpu_abi::waits::{WAIT_BOUNDS_NS, WaitCause, Waits};

use super::Picture;
use crate::values::policy_word;

#[derive(Debug, Serialize)]
pub(super) struct TopDocument {
    version: u32,
    time_unix: u64,
    gpus: Vec<Gpu>,
    gpu_error: Option<String>,
    gpu_faults: Vec<String>,
    containers: Vec<TopContainer>,
    broken: Vec<Broken>,
    unreadable: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Gpu {
    index: u32,
    uuid: String,
    name: String,
    memory_bytes: u64,
    used_bytes: u64,
    utilization_percent: Option<u32>,
    limits_bytes: u64,
    floors_percent: u32,
}

#[derive(Debug, Serialize)]
struct TopContainer {
    name: String,
    owner_uid: u32,
    namespace: String,
    pod: String,
    container: String,
    pod_uid: String,
    claim: Option<Claim>,
    workload: TopWorkload,
    state: &'static str,
    nested: bool,
    command: Vec<String>,
    created_unix: u64,
    runner_pid: Option<u32>,
    path: String,
    limits_generation: u64,
    policy: &'static str,
    priority: u32,
    devices: Vec<Device>,
    processes: Vec<TopProcess>,
    ooms: u64,
    refused: u64,
    waits_ran_out: u64,
    hook_calls: BTreeMap<&'static str, u64>,
    unaccounted_bytes: u64,
}

/// The workload under which metrics sum up the container's use.
#[derive(Debug, Serialize)]
struct TopWorkload {
    kind: String,
    name: String,
    team: String,
}

/// The ResourceClaim that gave the container its devices, in the container's namespace.
#[derive(Debug, Serialize)]
struct Claim {
    name: String,
    uid: String,
}

#[derive(Debug, Serialize)]
struct Device {
    index: usize,
    gpu: Option<u32>,
    uuid: String,
    limit_bytes: u64,
    physical_bytes: u64,
    used_bytes: u64,
    ended_bytes: u64,
    buffer_bytes: u64,
    context_bytes: u64,
    module_bytes: u64,
    shared_bytes: u64,
    pending_bytes: u64,
    pending_shrink: bool,
    unaccounted_bytes: u64,
    driver_limit_bytes: u64,
    driver_limit_reason: String,
    fences: &'static str,
    utilization_percent: Option<u32>,
    resident_bytes: u64,
    oversubscribed_bytes: u64,
    cap_percent: Option<u32>,
    floor_percent: u32,
    granted_percent: Option<f64>,
    used_percent: Option<f64>,
    throttled_percent: f64,
    waited_ns: BTreeMap<&'static str, u64>,
    waits_by_length: Vec<WaitsOfLength>,
    contended: bool,
    waits_for_turn: bool,
    credit_ns: i64,
    #[serde(flatten)]
    compute: Compute,
}

/// Waits at the gate that were longer than those of the entry before, and at most this long.
#[derive(Debug, Serialize)]
struct WaitsOfLength {
    /// `None` in the last one.
    at_most_ns: Option<u64>,
    waits: u64,
}

/// The launches of a container or of one of its processes.
#[derive(Debug, Serialize)]
struct Compute {
    launches: u64,
    graph_launches: u64,
    unknown_launches: u64,
    copies: u64,
    copy_bytes: u64,
    host_functions: u64,
    busy_ns: u64,
    throttled_ns: u64,
    waits: u64,
    waiting: bool,
    last_launch_ago_ns: Option<u64>,
    overdue_ns: Option<u64>,
}

#[derive(Debug, Serialize)]
struct TopProcess {
    pid: u32,
    host_pid: Option<u32>,
    name: String,
    joined_unix: u64,
    devices: Vec<ProcessDevice>,
}

#[derive(Debug, Serialize)]
struct ProcessDevice {
    index: usize,
    used_bytes: u64,
    buffer_bytes: u64,
    context_bytes: u64,
    module_bytes: u64,
    pending_bytes: u64,
    oversubscribed_bytes: u64,
    utilization_percent: Option<u32>,
    #[serde(flatten)]
    compute: Compute,
}

#[derive(Debug, Serialize)]
struct Broken {
    path: String,
    reason: String,
}

pub(super) fn document(picture: &Picture) -> TopDocument {
    TopDocument {
        version: 1,
        time_unix: picture.time_unix,
        gpus: picture
            .inventory
            .gpus
            .iter()
            .map(|gpu| Gpu {
                index: gpu.index,
                uuid: gpu.uuid.clone(),
                name: gpu.name.clone(),
                memory_bytes: gpu.memory_bytes,
                used_bytes: gpu.used_bytes,
                utilization_percent: gpu.utilization_percent,
                limits_bytes: picture.views.limits_bytes(&gpu.uuid),
                floors_percent: picture.floors_percent(&gpu.uuid),
            })
            .collect(),
        gpu_error: picture.gpu_error.clone(),
        gpu_faults: picture.inventory.faults.clone(),
        containers: picture
            .views
            .containers
            .iter()
            .map(|c| container(picture, c))
            .collect(),
        broken: picture
            .views
            .broken
            .iter()
            .map(|broken| Broken {
                path: broken.path.display().to_string(),
                reason: broken.reason.clone(),
            })
            .collect(),
        unreadable: picture
            .views
            .unreadable
            .iter()
            .map(|p| p.display().to_string())
            .collect(),
    }
}

fn container(picture: &Picture, view: &ContainerView) -> TopContainer {
    TopContainer {
        name: view.name.clone(),
        owner_uid: view.owner,
        namespace: view.namespace.clone(),
        pod: view.pod.clone(),
        container: view.container.clone(),
        pod_uid: view.pod_uid.clone(),
        claim: view.claim.as_ref().map(|claim| Claim {
            name: claim.name.clone(),
            uid: claim.uid.clone(),
        }),
        workload: TopWorkload {
            kind: view.workload.kind.clone(),
            name: view.workload.name.clone(),
            team: view.workload.team.clone(),
        },
        state: super::state(view),
        nested: view.outer_limits.is_some(),
        command: view.command.clone(),
        created_unix: view.created_unix,
        runner_pid: (view.runner_alive == Some(true)).then_some(view.runner_pid),
        path: view.path.display().to_string(),
        limits_generation: view.limits_generation,
        policy: policy_word(view.policy),
        priority: view.priority,
        devices: view
            .devices
            .iter()
            .map(|d| device(picture, view, d))
            .collect(),
        processes: view
            .processes
            .iter()
            .map(|p| process(picture, view, p))
            .collect(),
        ooms: view.oom_count,
        refused: view.refused,
        waits_ran_out: view.waits_ran_out,
        hook_calls: view.hook_calls.iter().copied().collect(),
        unaccounted_bytes: view.unaccounted_bytes,
    }
}

fn device(picture: &Picture, view: &ContainerView, device: &DeviceView) -> Device {
    let seen = picture.seen(view, device);
    let percent = |permille: u32| f64::from(permille) / 10.0;
    // The use of ended processes is included.
    let compute = ComputeSnapshot {
        busy_ns: device.busy_ns.max(device.compute.busy_ns),
        ..device.compute
    };
    Device {
        index: device.index,
        gpu: picture.gpu_number(&device.uuid),
        uuid: device.uuid.clone(),
        limit_bytes: device.limit_bytes,
        physical_bytes: device.physical_bytes,
        used_bytes: device.used_bytes,
        ended_bytes: device.ended_bytes,
        buffer_bytes: device.buffer_bytes,
        context_bytes: device.context_bytes,
        module_bytes: device.module_bytes,
        shared_bytes: device.shared_bytes,
        pending_bytes: device.pending_bytes,
        pending_shrink: device.pending_shrink,
        unaccounted_bytes: device.unaccounted_bytes,
        driver_limit_bytes: device.driver_limit_bytes,
        driver_limit_reason: device.driver_limit_reason.clone(),
        fences: device.fences(true),
        utilization_percent: picture.container_busy(&device.uuid, view),
        resident_bytes: device.resident_bytes,
        oversubscribed_bytes: device.oversubscribed_bytes,
        cap_percent: (1..100)
            .contains(&device.core_percent)
            .then_some(device.core_percent),
        floor_percent: device.floor_percent,
        granted_percent: seen.granted_permille.map(u32::from).map(percent),
        used_percent: picture.used_permille(view, device).map(percent),
        throttled_percent: percent(u32::from(seen.throttled_permille)),
        waited_ns: waited_ns(&device.waits),
        waits_by_length: waits_by_length(&device.waits),
        contended: seen.contended,
        waits_for_turn: seen.waits_for_turn,
        credit_ns: device.credit_ns,
        compute: compute_of(picture, &compute),
    }
}

fn waited_ns(waits: &Waits) -> BTreeMap<&'static str, u64> {
    let causes = WaitCause::ALL.into_iter().map(WaitCause::name);
    causes.zip(waits.ns_by_cause).collect()
}

fn waits_by_length(waits: &Waits) -> Vec<WaitsOfLength> {
    let bounds = WAIT_BOUNDS_NS.into_iter().map(Some).chain([None]);
    let all = bounds.zip(waits.by_length);
    all.map(|(at_most_ns, waits)| WaitsOfLength { at_most_ns, waits })
        .collect()
}

fn compute_of(picture: &Picture, compute: &ComputeSnapshot) -> Compute {
    Compute {
        launches: compute.launches,
        graph_launches: compute.graph_launches,
        unknown_launches: compute.unknown_launches,
        copies: compute.copies,
        copy_bytes: compute.copy_bytes,
        host_functions: compute.host_functions,
        busy_ns: compute.busy_ns,
        throttled_ns: picture.throttled_ns(compute),
        waits: compute.waits,
        waiting: compute.waiting_since_ns != 0,
        last_launch_ago_ns: picture.since_ns(compute),
        overdue_ns: picture.overdue_ns(compute),
    }
}

fn process(picture: &Picture, view: &ContainerView, process: &ProcessView) -> TopProcess {
    let device = |(index, used): (usize, &DeviceUseSnapshot)| ProcessDevice {
        index,
        used_bytes: used.confirmed_bytes,
        buffer_bytes: used.buffer_bytes,
        context_bytes: used.context_bytes,
        module_bytes: used.module_bytes,
        pending_bytes: used.pending_bytes,
        oversubscribed_bytes: used.oversubscribed_bytes,
        compute: compute_of(picture, &used.compute),
        utilization_percent: view
            .devices
            .get(index)
            .and_then(|device| picture.process_busy(&device.uuid, process.host_pid)),
    };
    TopProcess {
        pid: process.pid,
        host_pid: process.host_pid,
        name: process.name.clone(),
        joined_unix: process.joined_unix,
        devices: process.devices.iter().enumerate().map(device).collect(),
    }
}
