//! `vgpu set`: another limit for a container that runs. Owns who may raise what.
//!
//! Never takes memory from a process: a limit below what is used refuses what is new.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use supervisor::instance::LIMITS;
use supervisor::view;
use vgpu_abi::limits::{Limits, LimitsFile};
use vgpu_abi::size::Size;

use crate::args::SetArgs;
use crate::board::{self, Found};
use crate::limits::{self, Outer};
use crate::values::{GpuMem, GpuRef};
use crate::{Failure, run};

pub(crate) fn run(args: &SetArgs) -> Result<ExitCode, Failure> {
    run::refuse_compute(&args.compute)?;
    limits::merge(&args.gpumem).map_err(Failure::Usage)?;
    let found = board::find(args.board.board.as_deref(), &args.name)?;
    let ceilings = ceilings(&found)?;
    let gpu_numbers = gpu_numbers(&found);
    // The descriptor that was checked stays open until the file at the same place is written.
    let _checked = found.instance.host_file(LIMITS, true)?;
    let file = LimitsFile::open(&found.instance.steady_path(LIMITS))
        .with_context(|| format!("cannot open the limits of {}", args.name))?;
    let old = file
        .read()
        .with_context(|| format!("cannot read the limits of {}", args.name))?;
    let new = change(&old, &args.gpumem, &gpu_numbers, &ceilings).map_err(Failure::Usage)?;
    file.write(&new)
        .with_context(|| format!("cannot write the limits of {}", args.name))?;
    let mut out = std::io::stdout();
    let now = view::read(&found.instance).map_err(|reason| anyhow!(reason))?;
    for (index, (was, is)) in old.devices.iter().zip(&new.devices).enumerate() {
        let gpu = gpu_numbers
            .get(index)
            .copied()
            .flatten()
            .unwrap_or(index as u64);
        let used = now.devices.get(index).map_or(0, |device| device.used_bytes);
        write!(
            out,
            "{} GPU {gpu}: limit {} -> {}, used {}",
            found.view.name,
            limit_text(was.memory_bytes),
            limit_text(is.memory_bytes),
            Size(used)
        )?;
        if is.memory_bytes != 0 && used > is.memory_bytes {
            let over = Size(used - is.memory_bytes);
            write!(
                out,
                "; pending-shrink: nothing new until {over} more is free"
            )?;
        }
        writeln!(out)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn limit_text(bytes: u64) -> String {
    if bytes == 0 {
        String::from("none")
    } else {
        Size(bytes).to_string()
    }
}

/// Limits that this change must stay under: those around us, and those around the container.
fn ceilings(found: &Found) -> Result<Vec<Outer>, Failure> {
    let mut ceilings = Vec::new();
    let labels = found.instance.labels()?;
    if let Some(path) = labels.outer_limits {
        // Where the outer container has ended, its limits ended with it.
        if path.exists() {
            let source = format!("the container around it, {}", path.display());
            ceilings.push(limits::read_outer(&path, &source)?);
        }
    }
    ceilings.extend(limits::outer()?);
    Ok(ceilings)
}

/// Numbers of the container's GPUs as `nvidia-smi` counts; nothing where NVML is not there.
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

/// The limits with the change in them.
fn change(
    old: &Limits,
    memory: &[GpuMem],
    gpu_numbers: &[Option<u64>],
    ceilings: &[Outer],
) -> Result<Limits, String> {
    let limits::Memory { each, by_gpu } = limits::merge(memory)?;
    let mut new = old.clone();
    let mut wanted: Vec<Option<u64>> = vec![each; old.devices.len()];
    for (gpu, bytes) in &by_gpu {
        let position = old
            .devices
            .iter()
            .enumerate()
            .position(|(index, device)| match gpu {
                GpuRef::Uuid(uuid) => device.uuid.as_str().starts_with(uuid),
                GpuRef::Index(number) => {
                    let known = gpu_numbers.get(index).copied().flatten();
                    known.unwrap_or(index as u64) == u64::from(*number)
                }
            });
        let Some(place) = position.and_then(|index| wanted.get_mut(index)) else {
            let list: Vec<_> = old
                .devices
                .iter()
                .enumerate()
                .map(|(index, device)| {
                    let known = gpu_numbers.get(index).copied().flatten();
                    format!("{} ({})", known.unwrap_or(index as u64), device.uuid)
                })
                .collect();
            return Err(format!(
                "the container has no GPU {gpu}; it has: {}. A GPU can only be given at the start",
                list.join(", ")
            ));
        };
        *place = Some(*bytes);
    }
    for (index, (device, wanted)) in new.devices.iter_mut().zip(wanted).enumerate() {
        let Some(bytes) = wanted else { continue };
        let number = gpu_numbers
            .get(index)
            .copied()
            .flatten()
            .unwrap_or(index as u64);
        if device.physical_bytes != 0 && bytes > device.physical_bytes {
            return Err(format!(
                "{} is more than GPU {number} has: {}; give at most that",
                Size(bytes),
                Size(device.physical_bytes)
            ));
        }
        for outer in ceilings {
            let ceiling = outer.ceiling(device.uuid.as_str(), index);
            if let Some(ceiling) = ceiling.filter(|ceiling| bytes > *ceiling) {
                return Err(format!(
                    "{} of GPU {number} is more than the {} that the limits around allow ({}); \
                     inside a container limits can only be lowered",
                    Size(bytes),
                    Size(ceiling),
                    outer.source
                ));
            }
        }
        device.memory_bytes = bytes;
    }
    Ok(new)
}
