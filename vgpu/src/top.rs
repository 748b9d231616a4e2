//! `vgpu top`: what each container uses. Owns the table and the JSON document.
//!
//! Never changes anything, except that it removes this user's ended containers.

mod json;
mod screen;
mod table;
mod waits;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use supervisor::clock::monotonic_ns;
use supervisor::gpu::{GpuError, GpuProcess, Gpus, Inventory, NvmlGpus};
use supervisor::instance::SLURM_WORKLOAD;
use supervisor::view::{ContainerView, DeviceView, Views};
use vgpu_abi::host::ComputeSnapshot;
use vgpu_abi::targets::ComputeStatus;

use crate::args::TopArgs;
use crate::text::Paint;
use crate::{Failure, board};

/// The arbiter's measurements are shown until they are this old, nanoseconds.
const STALE_NS: u64 = 1_000_000_000;

/// Work on the GPU is shown as overdue after this time, nanoseconds. Turns of other processes, and a busy machine, make
/// work late by less.
const OVERDUE_NS: u64 = 5_000_000_000;

/// Everything that is shown, read at the same time.
#[derive(Debug, Default)]
struct Picture {
    time_unix: u64,
    /// The monotonic clock, nanoseconds.
    now_ns: u64,
    inventory: Inventory,
    held: Vec<GpuProcess>,
    views: Views,
    /// Why the GPUs are not shown.
    gpu_error: Option<String>,
}

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, Failure> {
    let named = args.board.board.as_deref();
    let gpus = NvmlGpus::open();
    let gpus = gpus.as_ref().map(|gpus| gpus as &dyn Gpus);
    let mut out = std::io::stdout();
    let is_terminal = out.is_terminal();
    let paint = Paint(is_terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()));
    if args.json {
        let picture = look(named, &gpus)?;
        serde_json::to_writer_pretty(&mut out, &json::document(&picture))
            .map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Output that is not a terminal has no width.
    let columns = || match is_terminal {
        true => terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)),
        false => None,
    };
    if args.once || !is_terminal || !std::io::stdin().is_terminal() {
        let picture = look(named, &gpus)?;
        out.write_all(table::draw(&picture, paint, columns(), args.waits).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    screen::run(args.interval, &mut || {
        let picture = look(named, &gpus)?;
        Ok(table::draw(&picture, paint, columns(), args.waits))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn look(named: Option<&Path>, gpus: &Result<&dyn Gpus, &GpuError>) -> anyhow::Result<Picture> {
    board::clear_own(named);
    let mut picture = Picture {
        time_unix: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |t| t.as_secs()),
        views: board::read(named)?,
        now_ns: monotonic_ns(),
        ..Picture::default()
    };
    match gpus {
        Ok(gpus) => {
            match gpus.inventory() {
                Ok(inventory) => picture.inventory = inventory,
                Err(error) => picture.gpu_error = Some(error.to_string()),
            }
            picture.held = gpus.processes().unwrap_or_default();
        }
        Err(error) => picture.gpu_error = Some(error.to_string()),
    }
    for container in &mut picture.views.containers {
        container.account(&picture.held);
    }
    Ok(picture)
}

/// The container's state, in one word.
fn state(container: &ContainerView) -> &'static str {
    if container.devices.iter().any(|device| device.pending_shrink) {
        return "pending-shrink";
    }
    match container.runner_alive {
        // Its runner was killed; its processes, if any, keep running under the limit.
        Some(false) => "orphaned",
        _ => "running",
    }
}

/// The GPU's number as `nvidia-smi` counts, or the container's number for it.
fn gpu_text(picture: &Picture, device: &DeviceView) -> String {
    let gpu = picture.gpu_number(&device.uuid);
    gpu.map_or_else(|| format!("#{}", device.index), |gpu| gpu.to_string())
}

/// The container's name, or the pod's names.
fn full_name(container: &ContainerView) -> String {
    if container.pod.is_empty() && container.workload.kind == SLURM_WORKLOAD {
        // All jobs are root's on the board; people look for their own.
        format!("{} ({})", container.name, container.workload.team)
    } else if container.pod.is_empty() {
        container.name.clone()
    } else {
        format!(
            "{}/{}/{}",
            container.namespace, container.pod, container.container
        )
    }
}

/// The heads of a table's columns.
fn heads(names: &[&str], paint: Paint) -> Vec<String> {
    names
        .iter()
        .map(|name| {
            if name.is_empty() {
                String::new()
            } else {
                paint.dim(name)
            }
        })
        .collect()
}

impl Picture {
    /// The number of a GPU, as `nvidia-smi` counts.
    fn gpu_number(&self, uuid: &str) -> Option<u32> {
        self.inventory
            .gpus
            .iter()
            .find(|gpu| gpu.uuid == uuid)
            .map(|gpu| gpu.index)
    }

    /// The arbiter's grant and measurements, unless they are stale.
    fn seen(&self, container: &ContainerView, device: &DeviceView) -> ComputeStatus {
        let age = self.now_ns.saturating_sub(container.arbiter_at_ns);
        if container.arbiter_at_ns == 0 || age > STALE_NS {
            return ComputeStatus::default();
        }
        device.seen
    }

    /// Share of a GPU's time that a container used in the last second, thousandths, measured by the
    /// arbiter, else by NVML; `None` if neither knows.
    fn used_permille(&self, container: &ContainerView, device: &DeviceView) -> Option<u32> {
        let by_arbiter = self.seen(container, device).used_permille.map(u32::from);
        let by_nvml = || {
            let percent = self.container_busy(&device.uuid, container)?;
            Some(percent.saturating_mul(10))
        };
        let without_processes = || container.processes.is_empty().then_some(0);
        by_arbiter.or_else(by_nvml).or_else(without_processes)
    }

    /// How long launches have waited, nanoseconds, including one that waits now.
    fn throttled_ns(&self, compute: &ComputeSnapshot) -> u64 {
        let is_known = (1..=self.now_ns).contains(&compute.waiting_since_ns);
        let waiting_ns = match is_known {
            true => self.now_ns - compute.waiting_since_ns,
            false => 0,
        };
        compute.throttled_ns.saturating_add(waiting_ns)
    }

    /// For how long work on the GPU has been overdue, nanoseconds: kernels that run far longer than such kernels did
    /// before, or never end. `None` if there is none, or it is not overdue for long.
    fn overdue_ns(&self, compute: &ComputeSnapshot) -> Option<u64> {
        let is_known = (1..=self.now_ns).contains(&compute.due_ns);
        let overdue_ns = self.now_ns.saturating_sub(compute.due_ns);
        (is_known && overdue_ns >= OVERDUE_NS).then_some(overdue_ns)
    }

    /// Time since the last launch, nanoseconds; `None` if there was none.
    fn since_ns(&self, compute: &ComputeSnapshot) -> Option<u64> {
        // Otherwise the value is from before a restart of the machine.
        let is_known = (1..=self.now_ns).contains(&compute.last_launch_ns);
        is_known.then(|| self.now_ns - compute.last_launch_ns)
    }

    /// The sum of all floors on a GPU, percent. Runs inside a container share its floor, so they are
    /// left out.
    fn floors_percent(&self, uuid: &str) -> u32 {
        let containers = self.views.containers.iter();
        containers
            .filter(|container| container.outer_limits.is_none())
            .flat_map(|container| &container.devices)
            .filter(|device| device.uuid == uuid)
            .fold(0, |sum, device| sum.saturating_add(device.floor_percent))
    }

    /// Share of a GPU's time used by one process, percent; `None` if NVML does not report it.
    fn process_busy(&self, uuid: &str, host_pid: Option<u32>) -> Option<u32> {
        let pid = host_pid?;
        self.held
            .iter()
            .find(|p| p.pid == pid && p.uuid == uuid)?
            .utilization_percent
    }

    /// Share of a GPU's time used by all processes of a container, percent.
    fn container_busy(&self, uuid: &str, container: &ContainerView) -> Option<u32> {
        let parts: Vec<u32> = container
            .processes
            .iter()
            .filter_map(|process| self.process_busy(uuid, process.host_pid))
            .collect();
        (!parts.is_empty()).then(|| {
            parts
                .iter()
                .fold(0_u32, |sum, part| sum.saturating_add(*part))
        })
    }
}
