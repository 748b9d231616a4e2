//! `vgpu set`: changes the limits of a running container. Owns the rules for raising them.
//!
//! Never takes memory from a process: under a limit below the present use, only new allocations are refused.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use nix::unistd::Uid;
use supervisor::fence;
use supervisor::instance::LIMITS;
use supervisor::view;
use vgpu_abi::limits::{DeviceLimit, Limits, LimitsFile, Policy};
use vgpu_abi::size::Size;

use crate::args::SetArgs;
use crate::board::{self, BoardLock, Found};
use crate::failure::{Failure, Misuse};
use crate::floors::{AskedFloor, Floors};
use crate::limits::{self, Given, Outer, Wish};
use crate::mps;
use crate::text::asked_text;
use crate::values::{GpuRef, policy_word};

pub(crate) fn run(args: &SetArgs) -> Result<ExitCode, Failure> {
    let wish = Wish::of(&args.gpumem, &args.compute)?;
    let found = board::find(args.board.board.as_deref(), &args.name)?;
    let ceilings = ceilings(&found)?;
    let gpu_numbers = gpu_numbers(&found);
    // The descriptor that was checked stays open until the file at the same place is written.
    let _checked = found.instance.host_file(LIMITS, true)?;
    let file = LimitsFile::open(&found.instance.steady_path(LIMITS))
        .with_context(|| format!("cannot open the limits of {}", args.name))?;
    let read = || {
        file.read()
            .with_context(|| format!("cannot read the limits of {}", args.name))
    };
    let mut old = read()?;
    let mut new = change(&old, &wish, &gpu_numbers, &ceilings)?;
    // Floors change under the lock of the whole board.
    let has_floor = |limits: &Limits| limits.devices.iter().any(|d| d.floor_percent > 0);
    let board = match found.instance.path().ancestors().nth(2) {
        Some(board) if has_floor(&old) || has_floor(&new) => Some(BoardLock::take(board)?),
        _ => None,
    };
    let floors = board.as_ref().map(Floors::read).transpose()?;
    if let Some(floors) = &floors {
        // Another command may have changed the limits while this one waited for the lock.
        old = read()?;
        new = change(&old, &wish, &gpu_numbers, &ceilings)?;
        guarantee(floors, &found, &old, &new, &gpu_numbers, &ceilings)?;
    }
    // Under the file's lock: a change that another command made meanwhile is kept, and checked together
    // with this one.
    let mut judged = Ok(());
    file.update(|now| {
        old = now.unwrap_or_else(|| old.clone());
        match change(&old, &wish, &gpu_numbers, &ceilings) {
            Ok(changed) => new = changed,
            Err(error) => {
                judged = Err(error);
                new = old.clone();
            }
        }
        new.clone()
    })
    .with_context(|| format!("cannot write the limits of {}", args.name))?;
    judged?;
    if let Some(floors) = floors {
        floors.publish(found.instance.owner())?;
    }
    renew_fence(&found);
    report(&wish, &found, &old, &new, &gpu_numbers)?;
    Ok(ExitCode::SUCCESS)
}

/// Moves the container's second fence, the driver's own limit, if it has one.
fn renew_fence(found: &Found) {
    use supervisor::gpu::NvmlGpus;
    if fence::read(&found.instance).is_none() || !Uid::effective().is_root() {
        return;
    }
    let reason = match NvmlGpus::open() {
        Ok(gpus) => fence::renew(&gpus, &found.instance).map(|device| device.reason),
        Err(error) => Some(error.to_string()),
    };
    if let Some(reason) = reason {
        writeln!(
            std::io::stderr(),
            "vgpu set: the driver's own limit of {} is not changed: {reason}; the library's limit holds",
            found.view.name
        )
        .ok();
    }
}

/// Checks that every raised floor can be guaranteed.
fn guarantee(
    floors: &Floors<'_>,
    found: &Found,
    old: &Limits,
    new: &Limits,
    gpu_numbers: &[Option<u64>],
    ceilings: &[Outer],
) -> Result<(), Misuse> {
    let outer = found.view.outer_limits.as_deref().filter(|it| it.exists());
    let around = ceilings
        .iter()
        .find(|ceiling| ceiling.file.as_deref() == outer);
    for (index, (was, is)) in old.devices.iter().zip(&new.devices).enumerate() {
        if is.floor_percent <= was.floor_percent {
            continue;
        }
        let uuid = is.uuid.as_str();
        let around = around.and_then(|around| around.around(uuid, index));
        floors.check(&AskedFloor {
            path: Some(found.instance.path()),
            outer,
            uuid,
            number: number(gpu_numbers, index),
            percent: is.floor_percent,
            outer_percent: around.map_or(0, |around| around.floor_percent),
        })?;
    }
    Ok(())
}

/// Prints the changes, and which of them have not taken effect yet.
fn report(
    wish: &Wish,
    found: &Found,
    old: &Limits,
    new: &Limits,
    gpu_numbers: &[Option<u64>],
) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    let name = &found.view.name;
    let of_memory = wish.memory.is_given() || wish.more.is_given();
    let of_compute = wish.is_of_compute();
    let now = view::read(&found.instance).map_err(|reason| anyhow!(reason))?;
    for (index, (was, is)) in old.devices.iter().zip(&new.devices).enumerate() {
        let gpu = number(gpu_numbers, index);
        let used = now.devices.get(index).map_or(0, |device| device.used_bytes);
        if of_memory {
            write!(
                out,
                "{name} GPU {gpu}: limit {} -> {}, used {}",
                limit_text(was),
                limit_text(is),
                Size(used)
            )?;
            if is.memory_bytes != 0 && used > is.memory_bytes {
                let over = Size(used - is.memory_bytes);
                write!(
                    out,
                    "; pending-shrink: new allocations are refused until {over} is freed"
                )?;
            }
            writeln!(out)?;
        }
        if of_compute {
            writeln!(
                out,
                "{name} GPU {gpu}: compute {} -> {}",
                asked_text(old.policy, was.core_percent, was.floor_percent),
                asked_text(new.policy, is.core_percent, is.floor_percent),
            )?;
        }
    }
    if wish.priority.is_some() {
        writeln!(out, "{name}: priority {} -> {}", old.priority, new.priority)?;
    }
    if wish.cores.is_given() && mps::is_there() {
        writeln!(
            std::io::stderr(),
            "vgpu set: MPS is running here: processes that have started keep their share of the \
             multiprocessors, and a process whose share is above the new limit gets no new contexts"
        )
        .ok();
    }
    Ok(())
}

/// A device's GPU by nvidia-smi's number, else the container's number of the device.
fn number(gpu_numbers: &[Option<u64>], index: usize) -> u64 {
    let known = gpu_numbers.get(index).copied().flatten();
    known.unwrap_or(index as u64)
}

fn limit_text(limit: &DeviceLimit) -> String {
    match (limit.memory_bytes, limit.resident_bytes) {
        (0, _) => String::from("none"),
        (bytes, 0) => Size(bytes).to_string(),
        (bytes, resident) => format!("{} ({} of the GPU)", Size(bytes), Size(resident)),
    }
}

/// The limits that this change must not exceed: this process's outer limits, and the container's.
fn ceilings(found: &Found) -> Result<Vec<Outer>, Failure> {
    let mut ceilings = Vec::new();
    let labels = found.instance.labels()?;
    if let Some(path) = labels.outer_limits {
        // The limits of an outer container end with it.
        if path.exists() {
            let source = format!("the outer container, {}", path.display());
            ceilings.push(limits::read_outer(&path, &source)?);
        }
    }
    ceilings.extend(limits::outer()?);
    Ok(ceilings)
}

/// nvidia-smi's numbers of the container's GPUs; `None` without NVML.
fn gpu_numbers(found: &Found) -> Vec<Option<u64>> {
    use supervisor::gpu::{Gpus, NvmlGpus};
    let inventory = NvmlGpus::open()
        .and_then(|gpus| gpus.inventory())
        .unwrap_or_default();
    found
        .view
        .devices
        .iter()
        .map(|device| {
            let gpu = inventory.gpus.iter().find(|gpu| gpu.uuid == device.uuid);
            gpu.map(|gpu| u64::from(gpu.index))
        })
        .collect()
}

/// One flag's values by device of the container; `None` for a device that it does not change.
fn by_device(
    given: &Given,
    old: &Limits,
    gpu_numbers: &[Option<u64>],
) -> Result<Vec<Option<u64>>, Misuse> {
    let mut wanted = vec![given.each; old.devices.len()];
    for (gpu, amount) in &given.by_gpu {
        let position = old
            .devices
            .iter()
            .enumerate()
            .position(|(index, device)| match gpu {
                GpuRef::Uuid(uuid) => device.uuid.as_str().starts_with(uuid),
                GpuRef::Index(gpu) => number(gpu_numbers, index) == u64::from(*gpu),
            });
        let Some(place) = position.and_then(|index| wanted.get_mut(index)) else {
            let list: Vec<_> = old
                .devices
                .iter()
                .enumerate()
                .map(|(index, device)| format!("{} ({})", number(gpu_numbers, index), device.uuid))
                .collect();
            return Err(Misuse::new(format!(
                "the container has no GPU {gpu}; it has: {}. GPUs can only be chosen at the start",
                list.join(", ")
            )));
        };
        *place = Some(*amount);
    }
    Ok(wanted)
}

/// The policy after the change. A policy that guarantees nothing removes the floors. The first cap of a
/// container implies the same policy as at the start.
fn new_policy(old: &Limits, wish: &Wish) -> Result<Policy, Misuse> {
    let had_cap = old
        .devices
        .iter()
        .any(|d| limits::cap_of(d.core_percent) != 0);
    let had_floor = old.devices.iter().any(|d| d.floor_percent != 0);
    let policy = match wish.policy {
        Some(policy) => policy,
        None if wish.floor.is_given() => Policy::Floor,
        None if wish.cores.is_given() && !had_cap && !had_floor => Policy::Force,
        None => old.policy,
    };
    if wish.policy.is_some() && policy == Policy::Floor && !wish.floor.is_given() && !had_floor {
        return Err(Misuse::new(
            "--policy floor guarantees the share that --floor names, and there is none; add \
             --floor, such as --floor 20",
        ));
    }
    let is_about_nothing =
        !had_cap && !had_floor && !wish.cores.is_given() && !wish.floor.is_given();
    if wish.policy.is_some() && is_about_nothing {
        return Err(Misuse::new(format!(
            "--policy {} says when the cap of --gpucores holds, and the container has none; add \
             --gpucores, such as --gpucores 30",
            policy_word(policy)
        )));
    }
    Ok(policy)
}

/// The limits after the change.
fn change(
    old: &Limits,
    wish: &Wish,
    gpu_numbers: &[Option<u64>],
    ceilings: &[Outer],
) -> Result<Limits, Misuse> {
    let memory = by_device(&wish.memory, old, gpu_numbers)?;
    let more = by_device(&wish.more, old, gpu_numbers)?;
    let cores = by_device(&wish.cores, old, gpu_numbers)?;
    let floor = by_device(&wish.floor, old, gpu_numbers)?;
    let mut new = old.clone();
    new.policy = new_policy(old, wish)?;
    let of = |wanted: &[Option<u64>], index: usize| wanted.get(index).copied().flatten();
    for (index, (was, device)) in old.devices.iter().zip(&mut new.devices).enumerate() {
        let number = u32::try_from(number(gpu_numbers, index)).unwrap_or(u32::MAX);
        if of(&memory, index).is_some() || of(&more, index).is_some() {
            let resident = limits::resident_of(device);
            let extra = device.memory_bytes.saturating_sub(resident);
            let bytes = of(&memory, index).unwrap_or(resident);
            let extra = of(&more, index).unwrap_or(extra);
            if bytes == 0 {
                return Err(Misuse::new(format!(
                    "--oversubscribe says how much more than --gpumem the program may have, and \
                     GPU {number} has no memory limit; add --gpumem, such as --gpumem 4Gi"
                )));
            }
            limits::set_memory(device, bytes, extra);
            limits::check_memory(device, number, None)?;
        }
        if let Some(percent) = of(&cores, index) {
            device.core_percent = limits::cap_of(limits::percent_of(percent));
        }
        if new.policy != Policy::Floor {
            device.floor_percent = 0;
        }
        if let Some(percent) = of(&floor, index) {
            device.floor_percent = limits::percent_of(percent);
        }
        limits::check_floor(device, number)?;
        for outer in ceilings {
            if let Some(around) = outer.around(device.uuid.as_str(), index) {
                outer.check_device(around, Some(was), device, number)?;
            }
        }
    }
    for outer in ceilings.iter().filter(|_| new.policy != old.policy) {
        let uuids: Vec<_> = new.devices.iter().map(|d| d.uuid.as_str()).collect();
        outer.check_policy(new.policy, &uuids)?;
    }
    if let Some(priority) = wish.priority {
        for outer in ceilings {
            outer.check_priority(priority)?;
        }
        new.priority = priority;
    }
    Ok(new)
}
