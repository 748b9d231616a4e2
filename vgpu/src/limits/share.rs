//! The decision: which GPUs, and how much of each.

use anyhow::Context;
use supervisor::gpu::Gpu;
use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, Policy, Unlisted};
use vgpu_abi::size::Size;

use super::device::{cap_of, check_floor, check_memory, percent_of, set_memory};
use super::outer::{Outer, USUAL_PRIORITY};
use super::wish::{Given, Wish};
use crate::failure::Misuse;
use crate::values::GpuRef;

/// A GPU and the container's share of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    /// The GPU's number, as `nvidia-smi` counts.
    pub(crate) index: u32,
    /// Its UUID.
    pub(crate) uuid: String,
    /// Its size, bytes.
    pub(crate) physical_bytes: u64,
    /// Memory limit, bytes; 0 is no limit.
    pub(crate) bytes: u64,
    /// The part of the limit that may be memory of the GPU, bytes; 0 is all.
    pub(crate) resident_bytes: u64,
    /// Cap on compute time, percent; 0 is no cap.
    pub(crate) core_percent: u32,
    /// Guaranteed compute time, percent; 0 is none.
    pub(crate) floor_percent: u32,
}

/// A container's shares of all its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shares {
    /// By GPU, in the order in which the container sees them.
    pub(crate) gpus: Vec<Share>,
    /// When the caps apply.
    pub(crate) policy: Policy,
    /// 0 is the highest.
    pub(crate) priority: u32,
    /// The user chose these GPUs; otherwise they are all GPUs of the machine.
    pub(crate) is_choice: bool,
    /// The floors are inherited from the outer container, not requested.
    pub(crate) floors_are_inherited: bool,
}

/// One flag's values, matched with the machine's GPUs.
struct Resolved<'a> {
    given: &'a Given,
    named: Vec<(&'a Gpu, u64)>,
}

impl<'a> Resolved<'a> {
    fn of(given: &'a Given, gpus: &'a [Gpu]) -> Result<Self, Misuse> {
        let mut named: Vec<(&Gpu, u64)> = Vec::new();
        for (gpu, amount) in &given.by_gpu {
            let found = find(gpus, gpu)?;
            if named.iter().any(|(known, _)| known.uuid == found.uuid) {
                return Err(Misuse::new(format!(
                    "{} names GPU {} twice; name it once",
                    given.flag, found.index
                )));
            }
            named.push((found, *amount));
        }
        Ok(Self { given, named })
    }

    fn of_gpu(&self, gpu: &Gpu) -> Option<u64> {
        let own = self.named.iter().find(|(n, _)| n.uuid == gpu.uuid);
        own.map(|(_, amount)| *amount).or(self.given.each)
    }
}

/// Decides which GPUs the container gets, and its share of each.
pub(crate) fn share(
    gpus: &[Gpu],
    wanted: &[GpuRef],
    wish: &Wish,
    outer: Option<&Outer>,
) -> Result<Shares, Misuse> {
    wish.check_new()?;
    let memory = Resolved::of(&wish.memory, gpus)?;
    let more = Resolved::of(&wish.more, gpus)?;
    let cores = Resolved::of(&wish.cores, gpus)?;
    let floor = Resolved::of(&wish.floor, gpus)?;
    let mut chosen: Vec<&Gpu> = Vec::new();
    for gpu in wanted {
        let found = find(gpus, gpu)?;
        if chosen.iter().any(|known| known.uuid == found.uuid) {
            return Err(Misuse::new(format!(
                "--gpu names GPU {} twice; name it once",
                found.index
            )));
        }
        chosen.push(found);
    }
    // Without --gpu, the first of these flags that is given chooses the GPUs.
    let leader = [&memory, &cores, &floor]
        .into_iter()
        .find(|flag| flag.given.is_given());
    let by_leader = leader.filter(|flag| flag.given.each.is_none());
    let is_choice = !wanted.is_empty() || by_leader.is_some();
    if wanted.is_empty() {
        chosen = match by_leader {
            Some(flag) => flag.named.iter().map(|(gpu, _)| *gpu).collect(),
            None => gpus
                .iter()
                .filter(|gpu| outer.is_none_or(|outer| outer.has(gpu)))
                .collect(),
        };
    }
    for flag in [&memory, &more, &cores, &floor] {
        for (gpu, _) in &flag.named {
            if !chosen.iter().any(|c| c.uuid == gpu.uuid) {
                let chooser = match leader {
                    Some(leader) if wanted.is_empty() => leader.given.flag,
                    _ => "--gpu",
                };
                return Err(Misuse::new(format!(
                    "{name} names GPU {0}, which {chooser} leaves out; add {0} to {chooser}, or \
                     remove it from {name}",
                    gpu.index,
                    name = flag.given.flag
                )));
            }
        }
    }
    if chosen.is_empty() {
        return Err(Misuse::new("there is no GPU to limit"));
    }
    if chosen.len() > MAX_DEVICES {
        return Err(Misuse::new(format!(
            "{} GPUs are too many for one container; choose at most {MAX_DEVICES} with --gpu",
            chosen.len()
        )));
    }
    let policy = wish
        .asked_policy()
        .or(outer.map(|outer| outer.limits.policy))
        .unwrap_or_default();
    let priority = priority(wish, outer)?;
    let mut shares = Vec::new();
    for gpu in chosen {
        let without = |flag: &Resolved<'_>, what: &str, value: &str| {
            let instead = match wanted.is_empty() {
                true => "choose GPUs with --gpu",
                false => "remove it from --gpu",
            };
            Misuse::new(format!(
                "GPU {0} has no {what}; add {0}={value} to {1}, or {instead}",
                gpu.index, flag.given.flag
            ))
        };
        let bytes = memory.of_gpu(gpu);
        if bytes.is_none() && memory.given.is_given() {
            return Err(without(&memory, "limit", "SIZE"));
        }
        let cap = cores.of_gpu(gpu);
        if cap.is_none() && cores.given.is_given() {
            return Err(without(&cores, "compute limit", "PERCENT (100 is no cap)"));
        }
        let wanted = Wanted {
            bytes,
            more: more.of_gpu(gpu).unwrap_or(0),
            cap,
            floor: floor.of_gpu(gpu),
            policy,
        };
        shares.push(grant(gpu, &wanted, outer)?);
    }
    if let Some(outer) = outer {
        let uuids: Vec<_> = shares.iter().map(|share| share.uuid.as_str()).collect();
        outer.check_policy(policy, &uuids)?;
    }
    Ok(Shares {
        gpus: shares,
        policy,
        priority,
        is_choice,
        floors_are_inherited: !wish.floor.is_given(),
    })
}

fn priority(wish: &Wish, outer: Option<&Outer>) -> Result<u32, Misuse> {
    let Some(outer) = outer else {
        return Ok(wish.priority.unwrap_or(USUAL_PRIORITY));
    };
    let around = outer.limits.priority;
    match wish.priority {
        Some(wanted) => outer.check_priority(wanted).map(|()| wanted),
        None => Ok(around),
    }
}

/// The request for one GPU.
struct Wanted {
    bytes: Option<u64>,
    more: u64,
    cap: Option<u64>,
    floor: Option<u64>,
    policy: Policy,
}

fn grant(gpu: &Gpu, wanted: &Wanted, outer: Option<&Outer>) -> Result<Share, Misuse> {
    let around = match outer {
        Some(outer) => outer.device(gpu)?,
        None => DeviceLimit::default(),
    };
    let physical_bytes = match around.physical_bytes {
        0 => gpu.memory_bytes,
        bytes => bytes,
    };
    let mut limit = DeviceLimit {
        physical_bytes,
        // Values that are not requested are inherited.
        ..around
    };
    if let Some(bytes) = wanted.bytes {
        set_memory(&mut limit, bytes, wanted.more);
        check_memory(&limit, gpu.index, Some(&gpu.name))?;
    }
    if let Some(percent) = wanted.cap {
        limit.core_percent = percent_of(percent);
    }
    limit.core_percent = cap_of(limit.core_percent);
    if wanted.policy != Policy::Floor {
        limit.floor_percent = 0;
    }
    if let Some(percent) = wanted.floor {
        limit.floor_percent = percent_of(percent);
    } else if limit.core_percent != 0 {
        limit.floor_percent = limit.floor_percent.min(limit.core_percent);
    }
    check_floor(&limit, gpu.index)?;
    if let Some(outer) = outer {
        outer.check_device(&around, None, &limit, gpu.index)?;
    }
    Ok(Share {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        physical_bytes,
        bytes: limit.memory_bytes,
        resident_bytes: limit.resident_bytes,
        core_percent: limit.core_percent,
        floor_percent: limit.floor_percent,
    })
}

/// The GPU of this name; the error lists the GPUs of the machine.
pub(crate) fn find<'a>(gpus: &'a [Gpu], wanted: &GpuRef) -> Result<&'a Gpu, Misuse> {
    let matching: Vec<&Gpu> = match wanted {
        GpuRef::Index(index) => gpus.iter().filter(|gpu| gpu.index == *index).collect(),
        GpuRef::Uuid(uuid) => gpus
            .iter()
            .filter(|gpu| gpu.uuid.starts_with(uuid))
            .collect(),
    };
    let list = || {
        let list: Vec<_> = gpus
            .iter()
            .map(|gpu| format!("{} ({}, {})", gpu.index, gpu.uuid, Size(gpu.memory_bytes)))
            .collect();
        list.join(", ")
    };
    match matching.as_slice() {
        [one] => Ok(one),
        [] => Err(Misuse::new(format!(
            "there is no GPU {wanted}; there are: {}",
            list()
        ))),
        _ => Err(Misuse::new(format!(
            "{wanted} is the beginning of several GPUs' UUIDs: {}",
            list()
        ))),
    }
}

/// The shares in the form of the limits file.
pub(crate) fn limits_of(shares: &Shares) -> anyhow::Result<Limits> {
    let mut devices = Vec::new();
    for share in &shares.gpus {
        devices.push(DeviceLimit {
            uuid: DeviceUuid::new(&share.uuid)
                .with_context(|| format!("GPU {} has an unusable UUID", share.index))?,
            memory_bytes: share.bytes,
            resident_bytes: share.resident_bytes,
            physical_bytes: share.physical_bytes,
            core_percent: share.core_percent,
            floor_percent: share.floor_percent,
            ..DeviceLimit::default()
        });
    }
    Ok(Limits {
        unlisted: Unlisted::Deny,
        policy: shares.policy,
        priority: shares.priority,
        devices,
        ..Limits::default()
    })
}
