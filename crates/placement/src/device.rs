//! Whether one device can serve one ask in addition to its present use, and the share that the ask takes. Reads no
//! other devices.

use std::sync::Arc;

use crate::inventory::MigProfile;
use crate::misfit::Reason;
use crate::node::DeviceState;
use crate::plan::Step;
use crate::request::{Ask, Compute, DevicePolicy, Kind, Memory};
use crate::reservation::{Instance, Load, Phases};
use crate::score;

const MIB: u64 = 1 << 20;

/// The part of one device that the pod being placed uses so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending {
    pub(crate) phases: Phases,
    /// Its instances, each with the kind and the position of the container that holds it.
    pub(crate) instances: Vec<(usize, Kind, Instance)>,
    /// Classes of its containers.
    pub(crate) classes: Vec<Arc<str>>,
    /// The container that first took the device.
    pub(crate) container: Option<usize>,
}

/// The cost of a share of a device.
#[derive(Debug, Clone)]
pub(crate) struct Cost {
    pub(crate) load: Load,
    pub(crate) instance: Option<Instance>,
}

pub(crate) fn score_of(
    device: &DeviceState,
    pending: &Pending,
    step: &Step<'_>,
    load: Load,
) -> f64 {
    let used = device
        .used
        .plus(pending.phases.beside(step.kind))
        .plus(load);
    score::device(used, device.total, step.ask.weights)
}

/// Memory that the step needs on this device, in bytes.
fn memory_asked(device: &DeviceState, memory: Memory) -> u64 {
    match memory {
        Memory::Bytes(bytes) => bytes,
        Memory::Percent(percent) => {
            let whole = if device.mig {
                device
                    .device
                    .mig_profiles
                    .iter()
                    .map(|profile| profile.memory_bytes)
                    .max()
                    .unwrap_or(0)
            } else {
                device.total.memory_bytes
            };
            if percent >= 100 {
                whole
            } else {
                let part =
                    whole / 100 * u64::from(percent) + whole % 100 * u64::from(percent) / 100;
                if part >= MIB { part - part % MIB } else { part }
            }
        }
    }
}

/// Compute that the step needs on this device, in its unit. For lanes, `used` is the mask of the used ones.
fn cores_asked(device: &DeviceState, compute: Compute, used: u32) -> Result<u32, Reason> {
    let total = device.total.cores;
    match compute {
        Compute::Units(units) => Ok(units),
        Compute::Unchecked => Ok(0),
        Compute::Percent(percent) => {
            if total == 0 {
                return Err(Reason::UnknownSpeed);
            }
            let part = u64::from(total) * u64::from(percent.min(100)) / 100;
            let step = u64::from(device.device.core_step.max(1));
            let stepped = part.max(1).div_ceil(step).saturating_mul(step);
            Ok(u32::try_from(stepped).unwrap_or(u32::MAX).min(total))
        }
        Compute::Lanes(lanes) => {
            let asked = lanes.min(total.count_ones()).max(1);
            let mut free = total & !used;
            let short = Reason::Cores {
                asked,
                free: free.count_ones(),
                total: total.count_ones(),
            };
            let mut taken = 0;
            for _ in 0..asked {
                if free == 0 {
                    return Err(short);
                }
                let lowest = free & free.wrapping_neg();
                taken |= lowest;
                free &= !lowest;
            }
            Ok(taken)
        }
        Compute::Gflops { fp16, fp32 } => {
            let [of_16, of_32] = device.device.gflops;
            let total = u64::from(total);
            let mut units = 0;
            for (asked, speed) in [(fp16, of_16), (fp32, of_32)] {
                if asked == 0 {
                    continue;
                }
                if speed == 0 {
                    return Err(Reason::UnknownSpeed);
                }
                units = units.max(asked.saturating_mul(total).div_ceil(speed));
            }
            Ok(u32::try_from(units).unwrap_or(u32::MAX))
        }
    }
}

/// Whether the device can serve the step in addition to its present use and the pod's earlier containers.
pub(crate) fn check(
    device: &DeviceState,
    pending: &Pending,
    step: &Step<'_>,
    quotas: &[(u32, Phases)],
) -> Result<Cost, Reason> {
    let ask = step.ask;
    if !device.healthy {
        return Err(Reason::Unhealthy);
    }
    if device.conflicts > 0 {
        return Err(Reason::ModeConflict);
    }
    if device.cordoned {
        return Err(Reason::Cordoned);
    }
    if device.given_out {
        return Err(Reason::GivenOut);
    }
    check_selection(device, step)?;
    let profile = if device.cut {
        Some(smallest_profile(device, ask)?)
    } else {
        None
    };
    let beside = device.used.plus(pending.phases.beside(step.kind));
    if beside.slots.saturating_add(ask.slots.max(1)) > device.total.slots {
        return Err(Reason::Slots {
            slots: device.total.slots,
        });
    }
    if let Some(company) = &ask.company
        && !(device.classes.iter().chain(&pending.classes))
            .all(|class| company.accepts.contains(class))
    {
        return Err(Reason::Company);
    }
    if (ask.exclusive || ask.policy == DevicePolicy::Mutex) && beside.slots > 0 {
        return Err(Reason::InUse {
            containers: beside.slots,
        });
    }
    let slots = if ask.exclusive {
        device.total.slots
    } else {
        ask.slots.max(1)
    };
    if let Some(profile) = profile {
        let load = check_cut(device, beside, profile)?;
        check_quota(step, quotas, load)?;
        return Ok(Cost {
            load,
            instance: None,
        });
    }
    let asked_memory = memory_asked(device, ask.memory);
    let shares = u64::from(beside.slots);
    if ask.even && shares > 0 && beside.memory_bytes != asked_memory.saturating_mul(shares) {
        return Err(Reason::Company);
    }
    let asked_cores = cores_asked(device, ask.compute, beside.cores)?;
    let (load, instance) =
        match check_room(device, pending, step, beside, asked_memory, asked_cores) {
            Ok(None) => (
                Load {
                    slots,
                    cores: asked_cores,
                    memory_bytes: asked_memory,
                },
                None,
            ),
            Ok(Some((instance, load))) => (Load { slots, ..load }, Some(instance)),
            Err(reason) => {
                // The quota is checked before the device's own limits: another device would not help against it.
                let asked = Load {
                    slots,
                    cores: asked_cores,
                    memory_bytes: asked_memory,
                };
                check_quota(step, quotas, asked)?;
                return Err(reason);
            }
        };
    check_quota(step, quotas, load)?;
    Ok(Cost { load, instance })
}

fn check_selection(device: &DeviceState, step: &Step<'_>) -> Result<(), Reason> {
    if !step.models.is_empty() {
        let model = usize::try_from(device.model).unwrap_or(usize::MAX);
        if !step.models.get(model).copied().unwrap_or(false) {
            return Err(Reason::Type);
        }
    }
    let select = &step.ask.select;
    if let Some(mode) = &select.mode
        && !mode.contains(&device.device.mode)
    {
        return Err(Reason::Mode);
    }
    if !select
        .tags
        .iter()
        .all(|tag| device.device.tags.contains(tag))
    {
        return Err(Reason::Tag);
    }
    if let Some(ids) = &step.use_ids
        && !ids.contains(&device.symbol)
    {
        return Err(Reason::Id);
    }
    if step.nouse_ids.contains(&device.symbol) {
        return Err(Reason::Id);
    }
    Ok(())
}

fn check_quota(step: &Step<'_>, quotas: &[(u32, Phases)], load: Load) -> Result<(), Reason> {
    let Some((quota, others)) = step.quota else {
        return Ok(());
    };
    let own = quotas
        .iter()
        .find(|(vendor, _)| Some(*vendor) == step.vendor)
        .map(|(_, phases)| phases.beside(step.kind))
        .unwrap_or_default();
    let used = others.plus(own);
    if let Some(limit) = quota.memory_bytes {
        let left = limit.saturating_sub(used.memory_bytes);
        if load.memory_bytes > left {
            return Err(Reason::QuotaMemory {
                asked: load.memory_bytes,
                left,
            });
        }
    }
    if let Some(limit) = quota.cores {
        let left = limit.saturating_sub(used.cores);
        if load.cores > left {
            return Err(Reason::QuotaCores {
                asked: load.cores,
                left,
            });
        }
    }
    if let Some(limit) = quota.devices {
        let left = limit.saturating_sub(used.slots);
        if load.slots > left {
            return Err(Reason::QuotaDevices {
                asked: load.slots,
                left,
            });
        }
    }
    Ok(())
}

/// The smallest sufficient profile of a device that is divided into profiles without placements.
fn smallest_profile<'a>(device: &'a DeviceState, ask: &Ask) -> Result<&'a MigProfile, Reason> {
    let memory = memory_asked(device, ask.memory);
    let cores = match ask.compute {
        Compute::Units(units) => units,
        _ => 0,
    };
    (device.device.mig_profiles.iter())
        .filter(|profile| match ask.slices {
            Some(slices) => profile.slices == slices,
            None => profile.memory_bytes >= memory && profile.cores >= cores,
        })
        .min_by_key(|profile| (profile.slices, profile.memory_bytes))
        .ok_or(Reason::NoProfile)
}

/// The profile's cost on the device. Only slices and memory are limited; compute is counted but never refused.
fn check_cut(device: &DeviceState, beside: Load, profile: &MigProfile) -> Result<Load, Reason> {
    let total = device.total;
    if beside.slots.saturating_add(profile.slices) > total.slots {
        return Err(Reason::Slots { slots: total.slots });
    }
    let free = total.memory_bytes.saturating_sub(beside.memory_bytes);
    if profile.memory_bytes > free {
        return Err(Reason::Memory {
            asked: profile.memory_bytes,
            free,
            total: total.memory_bytes,
        });
    }
    Ok(Load {
        slots: profile.slices,
        cores: profile.cores,
        memory_bytes: profile.memory_bytes,
    })
}

/// Whether the device has room; on a device in MIG mode, the MIG instance.
fn check_room(
    device: &DeviceState,
    pending: &Pending,
    step: &Step<'_>,
    beside: Load,
    asked_memory: u64,
    asked_cores: u32,
) -> Result<Option<(Instance, Load)>, Reason> {
    let total = device.total;
    let free_memory = total.memory_bytes.saturating_sub(beside.memory_bytes);
    if asked_memory > free_memory {
        return Err(Reason::Memory {
            asked: asked_memory,
            free: free_memory,
            total: total.memory_bytes,
        });
    }
    let free_cores = total.cores.saturating_sub(beside.cores);
    if !device.mig && asked_cores > free_cores {
        return Err(Reason::Cores {
            asked: asked_cores,
            free: free_cores,
            total: total.cores,
        });
    }
    // 100 of 100 percent means that the container has the device to itself.
    if total.cores == 100 && asked_cores == 100 && beside.slots > 0 {
        return Err(Reason::Exclusive {
            containers: beside.slots,
        });
    }
    if !device.mig
        && total.cores > 0
        && free_cores == 0
        && asked_cores == 0
        && step.ask.compute != Compute::Unchecked
    {
        return Err(Reason::CoresExhausted);
    }
    if !device.mig {
        return Ok(None);
    }
    free_instance(device, pending, step, asked_memory, asked_cores)
        .map(Some)
        .ok_or(Reason::NoInstance {
            asked: asked_memory,
        })
}

/// The smallest sufficient profile with a free placement, and that placement. Profiles `1g.` and `3g.` take the
/// highest placement, which leaves the low ones to larger profiles; others take the lowest.
fn free_instance(
    device: &DeviceState,
    pending: &Pending,
    step: &Step<'_>,
    memory_bytes: u64,
    cores: u32,
) -> Option<(Instance, Load)> {
    let mut profiles: Vec<_> = device
        .device
        .mig_profiles
        .iter()
        .filter(|profile| profile.memory_bytes >= memory_bytes && profile.cores >= cores)
        .collect();
    profiles.sort_by(|a, b| {
        (a.memory_bytes, a.slices, &a.name).cmp(&(b.memory_bytes, b.slices, &b.name))
    });
    for profile in profiles {
        let mut spans = profile.placements.clone();
        spans.sort_unstable();
        if profile.name.starts_with("1g.") || profile.name.starts_with("3g.") {
            spans.reverse();
        }
        for span in spans {
            let instance = Instance {
                profile: profile.name.as_str().into(),
                span,
            };
            let free = device
                .instances
                .iter()
                .all(|held| !held.span.overlaps(span))
                && pending.instances.iter().all(|(container, kind, held)| {
                    // An instance that an init container leaves can be reused in its size, but not resized.
                    let over = *kind == Kind::Init && *container != step.container;
                    !held.span.overlaps(span) || (over && *held == instance)
                });
            if free {
                let load = Load {
                    slots: 1,
                    cores: profile.cores,
                    memory_bytes: profile.memory_bytes,
                };
                return Some((instance, load));
            }
        }
    }
    None
}
