//! `vgpu oom`: refused allocations, and the processes that held the memory then. Owns the report and its JSON.

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;
use supervisor::gpu::{Gpus, Inventory, NvmlGpus};
use supervisor::view::{ContainerView, HolderView, OomView};
use vgpu_abi::region::Why;
use vgpu_abi::size::Size;

use crate::args::OomArgs;
use crate::text::utc;
use crate::{Failure, board};

pub(crate) fn run(args: &OomArgs) -> Result<ExitCode, Failure> {
    let named = args.board.board.as_deref();
    let containers = match &args.name {
        Some(name) => vec![board::find(named, name)?.view],
        None => board::read(named)?.containers,
    };
    let inventory = NvmlGpus::open()
        .and_then(|gpus| gpus.inventory())
        .unwrap_or_default();
    let mut out = std::io::stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &document(&containers, &inventory))
            .map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        out.write_all(report(&containers, &inventory).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Described in docs/command.md; fields are added and never renamed.
#[derive(Debug, Serialize)]
struct OomDocument {
    version: u32,
    records: Vec<OomRecord>,
}

#[derive(Debug, Serialize)]
struct OomRecord {
    container: String,
    owner_uid: u32,
    namespace: String,
    pod: String,
    number: u64,
    time_unix_ns: u64,
    pid: u32,
    call: String,
    device: usize,
    gpu: Option<u32>,
    uuid: Option<String>,
    asked_bytes: u64,
    limit_bytes: u64,
    used_bytes: u64,
    unaccounted_bytes: u64,
    would_fit_bytes: u64,
    reason: &'static str,
    holders: Vec<HeldMemory>,
}

#[derive(Debug, Serialize)]
struct HeldMemory {
    pid: Option<u32>,
    name: Option<String>,
    bytes: u64,
}

fn document(containers: &[ContainerView], inventory: &Inventory) -> OomDocument {
    let record = |container: &ContainerView, oom: &OomView| OomRecord {
        container: container.name.clone(),
        owner_uid: container.owner,
        namespace: container.namespace.clone(),
        pod: container.pod.clone(),
        number: oom.number,
        time_unix_ns: oom.time_unix_ns,
        pid: oom.pid,
        call: oom.call.clone(),
        device: oom.device,
        gpu: gpu_number(container, oom, inventory),
        uuid: container
            .devices
            .get(oom.device)
            .map(|device| device.uuid.clone()),
        asked_bytes: oom.asked,
        limit_bytes: oom.limit,
        used_bytes: oom.used,
        unaccounted_bytes: oom.unaccounted,
        would_fit_bytes: oom.would_fit(),
        reason: reason(oom.why).0,
        holders: oom
            .holders
            .iter()
            .map(|holder| HeldMemory {
                pid: holder.pid,
                name: holder_name(container, holder),
                bytes: holder.bytes,
            })
            .collect(),
    };
    let records = containers
        .iter()
        .flat_map(|container| container.ooms.iter().map(|oom| record(container, oom)))
        .collect();
    OomDocument {
        version: 1,
        records,
    }
}

fn report(containers: &[ContainerView], inventory: &Inventory) -> String {
    let mut out = String::new();
    for container in containers {
        let repeats = container.ooms.chunk_by(is_repeat);
        for ooms in repeats {
            describe(container, ooms, inventory, &mut out);
        }
        let kept = container.ooms.len() as u64;
        if container.oom_count > kept {
            writeln!(
                out,
                "{}: {} older refusals are no longer kept\n",
                container.name,
                container.oom_count - kept
            )
            .ok();
        }
    }
    if out.is_empty() {
        let names: Vec<_> = containers
            .iter()
            .map(|container| container.name.as_str())
            .collect();
        if names.is_empty() {
            out.push_str("No containers are running.\n");
        } else {
            writeln!(out, "Nothing was refused in: {}", names.join(", ")).ok();
        }
    }
    out
}

/// Whether a refusal repeats the one before it: a program that retries is reported once.
fn is_repeat(one: &OomView, next: &OomView) -> bool {
    let what = |oom: &OomView| {
        (
            oom.pid,
            oom.call.clone(),
            oom.device,
            oom.asked,
            oom.limit,
            (oom.used, oom.unaccounted),
        )
    };
    what(one) == what(next) && one.why == next.why && one.holders == next.holders
}

/// One refusal, or several of the same.
fn describe(container: &ContainerView, ooms: &[OomView], inventory: &Inventory, out: &mut String) {
    let (Some(oom), Some(last)) = (ooms.first(), ooms.last()) else {
        return;
    };
    let gpu = gpu_number(container, oom, inventory).map_or_else(
        || format!("device {}", oom.device),
        |gpu| format!("GPU {gpu}"),
    );
    let (_, reason) = reason(oom.why);
    writeln!(
        out,
        "{}  {}  {} of process {}: {} on {gpu}, {reason}",
        utc(oom.time_unix_ns / 1_000_000_000),
        container.name,
        oom.call,
        oom.pid,
        Size(oom.asked),
    )
    .ok();
    if ooms.len() > 1 {
        let until = utc(last.time_unix_ns / 1_000_000_000);
        writeln!(out, "  and {} more times until {until}", ooms.len() - 1).ok();
    }
    writeln!(out, "  limit {}, used {}", Size(oom.limit), Size(oom.used)).ok();
    if oom.unaccounted > 0 {
        writeln!(
            out,
            "  unaccounted {}: the driver holds it for this container, and it is not among the container's charges",
            Size(oom.unaccounted)
        )
        .ok();
    }
    let mut heading = "  held by";
    for holder in &oom.holders {
        let owner = match (holder.pid, holder_name(container, holder)) {
            (Some(pid), Some(name)) => format!("process {pid} {name}"),
            (Some(pid), None) => format!("process {pid}"),
            (None, _) => String::from("objects that several processes hold"),
        };
        writeln!(out, "{heading} {owner}: {}", Size(holder.bytes)).ok();
        heading = "         ";
    }
    describe_fit(container, oom, inventory, out);
    writeln!(out).ok();
}

/// The smallest limit that would have been enough, and the command that sets it.
fn describe_fit(container: &ContainerView, oom: &OomView, inventory: &Inventory, out: &mut String) {
    let device = container.devices.get(oom.device);
    let physical = device.map_or(0, |device| device.physical_bytes);
    let resident = device.map_or(0, |device| device.resident_bytes);
    // A container that is oversubscribed needs more managed memory, not more of the GPU.
    let is_paged = resident != 0 && oom.why != Why::NotPageable;
    let (flag, bytes) = match is_paged {
        true => ("--oversubscribe", oom.would_fit().saturating_sub(resident)),
        false => ("--gpumem", oom.would_fit()),
    };
    let fits = would_fit_text(oom.would_fit());
    if !is_paged && physical != 0 && oom.would_fit() > physical {
        writeln!(
            out,
            "  would fit with a limit of at least {fits}, which is more than the GPU has ({})",
            Size(physical)
        )
        .ok();
        return;
    }
    let name = &container.name;
    let typed = would_fit_text(bytes);
    // With several GPUs, the advice is for this one only.
    let value = match gpu_number(container, oom, inventory) {
        Some(gpu) if container.devices.len() > 1 => format!("{gpu}={typed}"),
        _ => typed,
    };
    writeln!(
        out,
        "  would fit with a limit of at least {fits}: vgpu set {name} {flag} {value}"
    )
    .ok();
}

/// A size for the command line, rounded up.
fn would_fit_text(bytes: u64) -> String {
    let mib = bytes.div_ceil(1 << 20);
    if mib.is_multiple_of(1024) {
        format!("{}Gi", mib / 1024)
    } else {
        format!("{mib}Mi")
    }
}

fn holder_name(container: &ContainerView, holder: &HolderView) -> Option<String> {
    let pid = holder.pid?;
    let process = container
        .processes
        .iter()
        .find(|process| process.pid == pid)?;
    Some(process.name.clone())
}

fn gpu_number(container: &ContainerView, oom: &OomView, inventory: &Inventory) -> Option<u32> {
    let device = container.devices.get(oom.device)?;
    inventory
        .gpus
        .iter()
        .find(|gpu| gpu.uuid == device.uuid)
        .map(|gpu| gpu.index)
}

/// The reason as the JSON document has it, and as the report prints it.
fn reason(why: Why) -> (&'static str, &'static str) {
    match why {
        Why::Full => ("full", "more than is left of the limit"),
        Why::TimedOut => ("timed-out", "waiting for another process timed out"),
        Why::Closed => ("closed", "the region could not be used"),
        Why::NotPageable => (
            "not-pageable",
            "the call needs memory of the GPU itself, and that part of the limit is full",
        ),
    }
}
