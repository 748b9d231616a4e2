//! Which GPUs a container gets, and how much of each: what was typed, put together with the GPUs
//! that there are and with the limits that stand around us. Values in, values out, except for
//! [`outer`], which reads those limits.
//!
//! Never rounds, never clamps: a wish that cannot be granted is an error that says what can.

use std::path::{Path, PathBuf};

use anyhow::Context;
use supervisor::gpu::Gpu;
use supervisor::instance::INSIDE_LIMITS;
use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile, Policy, Unlisted};
use vgpu_abi::size::{self, Size};

use crate::args::ComputeArgs;
use crate::values::{GpuRef, PerGpu, policy_word};

/// A GPU with what is given of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    /// The GPU's number, as `nvidia-smi` counts.
    pub(crate) index: u32,
    /// Its UUID.
    pub(crate) uuid: String,
    /// Its size, bytes.
    pub(crate) physical_bytes: u64,
    /// What the program may have of it, bytes; 0 is no limit.
    pub(crate) bytes: u64,
    /// Of these, what may be memory of the GPU, bytes; 0 is all.
    pub(crate) resident_bytes: u64,
    /// Compute time at most, percent; 0 is no cap.
    pub(crate) core_percent: u32,
    /// Compute time that is guaranteed, percent; 0 is none.
    pub(crate) floor_percent: u32,
}

/// What a container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shares {
    /// By GPU, in the order in which the container sees them.
    pub(crate) gpus: Vec<Share>,
    /// When the caps count.
    pub(crate) policy: Policy,
    /// 0 is the highest.
    pub(crate) priority: u32,
    /// These GPUs were chosen; else they are all that there are.
    pub(crate) is_choice: bool,
    /// Nobody asked for these floors: they are what the container around has.
    pub(crate) floors_are_inherited: bool,
}

/// The priority of a container that nobody gave one: there is room above it.
pub(crate) const USUAL_PRIORITY: u32 = 1;

/// The limits that stand around us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outer {
    /// Where they were read.
    pub(crate) source: String,
    /// The limits file, where there is one.
    pub(crate) file: Option<PathBuf>,
    /// The limits.
    pub(crate) limits: Limits,
}

/// All values of one flag together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    /// The flag.
    flag: &'static str,
    /// For every GPU that is not named.
    pub(crate) each: Option<u64>,
    /// For those that are named.
    pub(crate) by_gpu: Vec<(GpuRef, u64)>,
}

impl Given {
    /// Puts several of one flag together: at most one for every GPU, and those by GPU.
    fn merge(
        flag: &'static str,
        values: &[PerGpu],
        show: fn(u64) -> String,
    ) -> Result<Self, String> {
        let mut all = Self {
            flag,
            each: None,
            by_gpu: Vec::new(),
        };
        for value in values {
            match value {
                PerGpu::Each(amount) => {
                    if let Some(first) = all.each.replace(*amount) {
                        return Err(format!(
                            "{flag} gives every GPU {} and {}; give one of them, or GPU={}",
                            show(first),
                            show(*amount),
                            if flag == FLOOR || flag == CORES {
                                "PERCENT"
                            } else {
                                "SIZE"
                            }
                        ));
                    }
                }
                PerGpu::By(list) => {
                    for (gpu, amount) in list {
                        if all.by_gpu.iter().any(|(known, _)| known == gpu) {
                            return Err(format!("{flag} names GPU {gpu} twice; name it once"));
                        }
                        all.by_gpu.push((gpu.clone(), *amount));
                    }
                }
            }
        }
        Ok(all)
    }

    /// Whether the flag was given at all.
    pub(crate) fn is_given(&self) -> bool {
        self.each.is_some() || !self.by_gpu.is_empty()
    }
}

const MEMORY: &str = "--gpumem";
const CORES: &str = "--gpucores";
const FLOOR: &str = "--floor";
const MORE: &str = "--oversubscribe";

/// What was typed of limits. Nothing in it has met a GPU yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Memory of the GPU, bytes.
    pub(crate) memory: Given,
    /// Managed memory beside it, bytes; 0 takes it away.
    pub(crate) more: Given,
    /// Compute time at most, percent.
    pub(crate) cores: Given,
    /// Compute time that is guaranteed, percent.
    pub(crate) floor: Given,
    /// When the caps count.
    pub(crate) policy: Option<Policy>,
    /// 0 is the highest.
    pub(crate) priority: Option<u32>,
}

impl Wish {
    /// Puts what was typed together.
    pub(crate) fn of(memory: &[PerGpu], compute: &ComputeArgs) -> Result<Self, String> {
        let size = |bytes: u64| Size(bytes).to_string();
        let percent = |percent: u64| format!("{percent} %");
        let wish = Self {
            memory: Given::merge(MEMORY, memory, size)?,
            more: Given::merge(MORE, &compute.oversubscribe, size)?,
            cores: Given::merge(CORES, &compute.gpucores, percent)?,
            floor: Given::merge(FLOOR, &compute.floor, percent)?,
            policy: compute.policy.map(Policy::from),
            priority: compute.priority,
        };
        match wish.policy.filter(|policy| *policy != Policy::Floor) {
            Some(policy) if wish.floor.is_given() => {
                let word = policy_word(policy);
                let why = match policy {
                    Policy::Disable => "takes no notice of shares",
                    _ => "guarantees nothing",
                };
                return Err(format!(
                    "--floor has no meaning with --policy {word}, which {why}; leave --floor out, \
                     or give --policy floor"
                ));
            }
            _ => {}
        }
        if !wish.is_any() {
            return Err(String::from(
                "no limit given; give one, such as --gpumem 4Gi (of every GPU), --gpumem \
                 0=4Gi,1=8Gi or --gpucores 30",
            ));
        }
        Ok(wish)
    }

    fn is_any(&self) -> bool {
        let given = [&self.memory, &self.more, &self.cores, &self.floor];
        given.iter().any(|given| given.is_given())
            || self.policy.is_some()
            || self.priority.is_some()
    }

    /// Whether it says anything of compute time.
    pub(crate) fn is_of_compute(&self) -> bool {
        self.cores.is_given() || self.floor.is_given() || self.policy.is_some()
    }

    /// What only a container that exists can be told.
    pub(crate) fn check_new(&self) -> Result<(), String> {
        let takes_away = self.more.each == Some(0) || self.more.by_gpu.iter().any(|(_, b)| *b == 0);
        if takes_away {
            return Err(String::from(
                "--oversubscribe none takes away what a running container has; at the start leave \
                 it out",
            ));
        }
        if self.more.is_given() && !self.memory.is_given() {
            return Err(String::from(
                "--oversubscribe says how much more than --gpumem the program may have, and there \
                 is no --gpumem; add it, such as --gpumem 4Gi",
            ));
        }
        match self.policy {
            Some(Policy::Floor) if !self.floor.is_given() => Err(String::from(
                "--policy floor guarantees the share that --floor names, and there is none; add \
                 --floor, such as --floor 20",
            )),
            Some(policy) if !self.cores.is_given() && !self.floor.is_given() => Err(format!(
                "--policy {} says when the cap of --gpucores holds, and there is none; add \
                 --gpucores, such as --gpucores 30",
                policy_word(policy)
            )),
            _ => Ok(()),
        }
    }

    /// The policy that was asked for, in words or by the other flags.
    fn asked_policy(&self) -> Option<Policy> {
        let by_floor = self.floor.is_given().then_some(Policy::Floor);
        let by_cap = self.cores.is_given().then_some(Policy::Force);
        self.policy.or(by_floor).or(by_cap)
    }
}

/// One flag's values, by the GPUs that there are.
struct Resolved<'a> {
    given: &'a Given,
    named: Vec<(&'a Gpu, u64)>,
}

impl<'a> Resolved<'a> {
    fn of(given: &'a Given, gpus: &'a [Gpu]) -> Result<Self, String> {
        let mut named: Vec<(&Gpu, u64)> = Vec::new();
        for (gpu, amount) in &given.by_gpu {
            let found = find(gpus, gpu)?;
            if named.iter().any(|(known, _)| known.uuid == found.uuid) {
                return Err(format!(
                    "{} names GPU {} twice; name it once",
                    given.flag, found.index
                ));
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

/// Decides which GPUs, and how much of each.
pub(crate) fn share(
    gpus: &[Gpu],
    wanted: &[GpuRef],
    wish: &Wish,
    outer: Option<&Outer>,
) -> Result<Shares, String> {
    wish.check_new()?;
    let memory = Resolved::of(&wish.memory, gpus)?;
    let more = Resolved::of(&wish.more, gpus)?;
    let cores = Resolved::of(&wish.cores, gpus)?;
    let floor = Resolved::of(&wish.floor, gpus)?;
    let mut chosen: Vec<&Gpu> = Vec::new();
    for gpu in wanted {
        let found = find(gpus, gpu)?;
        if chosen.iter().any(|known| known.uuid == found.uuid) {
            return Err(format!(
                "--gpu names GPU {} twice; name it once",
                found.index
            ));
        }
        chosen.push(found);
    }
    // The first of them that was given chooses, where --gpu does not.
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
                return Err(format!(
                    "{name} names GPU {0}, which {chooser} leaves out; add {0} to {chooser}, or \
                     leave it out of {name}",
                    gpu.index,
                    name = flag.given.flag
                ));
            }
        }
    }
    if chosen.is_empty() {
        return Err(String::from("there is no GPU to give a limit on"));
    }
    if chosen.len() > MAX_DEVICES {
        return Err(format!(
            "{} GPUs are too many for one container; choose at most {MAX_DEVICES} with --gpu",
            chosen.len()
        ));
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
                false => "leave it out of --gpu",
            };
            format!(
                "GPU {0} has no {what}; add {0}={value} to {1}, or {instead}",
                gpu.index, flag.given.flag
            )
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

fn priority(wish: &Wish, outer: Option<&Outer>) -> Result<u32, String> {
    let Some(outer) = outer else {
        return Ok(wish.priority.unwrap_or(USUAL_PRIORITY));
    };
    let around = outer.limits.priority;
    match wish.priority {
        Some(wanted) => outer.check_priority(wanted).map(|()| wanted),
        None => Ok(around),
    }
}

/// What is wanted of one GPU.
struct Wanted {
    bytes: Option<u64>,
    more: u64,
    cap: Option<u64>,
    floor: Option<u64>,
    policy: Policy,
}

fn grant(gpu: &Gpu, wanted: &Wanted, outer: Option<&Outer>) -> Result<Share, String> {
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
        // What nobody speaks of stays as it is around.
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

/// Percent that were typed: at most 100.
pub(crate) fn percent_of(percent: u64) -> u32 {
    u32::try_from(percent).unwrap_or(100)
}

/// A cap of the whole GPU is none.
pub(crate) fn cap_of(percent: u32) -> u32 {
    if percent >= 100 { 0 } else { percent }
}

/// What the program may have: so much of the GPU, and so much more.
pub(crate) fn set_memory(limit: &mut DeviceLimit, bytes: u64, more: u64) {
    limit.memory_bytes = bytes.saturating_add(more);
    limit.resident_bytes = if more == 0 { 0 } else { bytes };
}

/// Of a limit, what may be memory of the GPU, bytes; 0 is no limit.
pub(crate) fn resident_of(limit: &DeviceLimit) -> u64 {
    match limit.resident_bytes {
        0 => limit.memory_bytes,
        bytes => bytes,
    }
}

/// More than this the accounts cannot count.
const MEMORY_MOST: u64 = 8 << 40;

pub(crate) fn check_memory(
    limit: &DeviceLimit,
    number: u32,
    model: Option<&str>,
) -> Result<(), String> {
    let bytes = resident_of(limit);
    if limit.physical_bytes != 0 && bytes > limit.physical_bytes {
        let model = model.map_or_else(String::new, |model| format!(" ({model})"));
        return Err(format!(
            "{} is more than GPU {number} has: {}{model}; give at most that",
            Size(bytes),
            Size(limit.physical_bytes),
        ));
    }
    if limit.memory_bytes > MEMORY_MOST {
        return Err(format!(
            "--oversubscribe makes it {} on GPU {number}; give at most {} together",
            Size(limit.memory_bytes),
            Size(MEMORY_MOST)
        ));
    }
    Ok(())
}

pub(crate) fn check_floor(limit: &DeviceLimit, number: u32) -> Result<(), String> {
    let (floor, cap) = (limit.floor_percent, cap_of(limit.core_percent));
    if cap != 0 && floor > cap {
        return Err(format!(
            "the floor of {floor} % of GPU {number} is above its cap of {cap} %: no more can be \
             guaranteed than is allowed; give --floor {cap} or less, or --gpucores {floor} or more"
        ));
    }
    Ok(())
}

/// The GPU of a name, or a sentence that lists those that there are.
fn find<'a>(gpus: &'a [Gpu], wanted: &GpuRef) -> Result<&'a Gpu, String> {
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
        [] => Err(format!("there is no GPU {wanted}; there are: {}", list())),
        _ => Err(format!(
            "{wanted} is the beginning of several GPUs' UUIDs: {}",
            list()
        )),
    }
}

impl Outer {
    fn position(&self, gpu: &Gpu) -> Option<&DeviceLimit> {
        self.around(&gpu.uuid, usize::try_from(gpu.index).ok()?)
    }

    fn has(&self, gpu: &Gpu) -> bool {
        self.limits.unlisted == Unlisted::Allow || self.position(gpu).is_some()
    }

    fn device(&self, gpu: &Gpu) -> Result<DeviceLimit, String> {
        match self.position(gpu) {
            Some(device) => Ok(*device),
            None if self.limits.unlisted == Unlisted::Allow => Ok(DeviceLimit::default()),
            None => Err(format!(
                "GPU {} ({}) is not among the GPUs that the limits around allow ({}); choose \
                 others with --gpu",
                gpu.index, gpu.uuid, self.source
            )),
        }
    }

    /// What stands around a device of a container; nothing where nothing does.
    pub(crate) fn around(&self, uuid: &str, index: usize) -> Option<&DeviceLimit> {
        let by_uuid = self.limits.devices.iter().find(|d| d.uuid.as_str() == uuid);
        by_uuid.or_else(|| {
            self.limits
                .devices
                .get(index)
                .filter(|device| device.uuid.is_empty())
        })
    }

    /// Refuses what is more than the limits around allow of a device. What stands already (`was`)
    /// is not asked about again.
    pub(crate) fn check_device(
        &self,
        around: &DeviceLimit,
        was: Option<&DeviceLimit>,
        limit: &DeviceLimit,
        number: u32,
    ) -> Result<(), String> {
        let source = &self.source;
        let is_new = |part: fn(&DeviceLimit) -> u64| was.is_none_or(|was| part(was) != part(limit));
        for part in [resident_of, |limit: &DeviceLimit| limit.memory_bytes] {
            let (bytes, most) = (part(limit), part(around));
            if most != 0 && (bytes == 0 || bytes > most) && is_new(part) {
                return Err(format!(
                    "{} of GPU {number} is more than the {} that the limits around allow \
                     ({source}); inside a container limits can only be lowered",
                    Size(bytes),
                    Size(most),
                ));
            }
        }
        let (cap, most) = (cap_of(limit.core_percent), cap_of(around.core_percent));
        let is_above = most != 0 && (cap == 0 || cap > most);
        if is_above && is_new(|limit| u64::from(limit.core_percent)) {
            let cap = if cap == 0 { 100 } else { cap };
            return Err(format!(
                "--gpucores {cap} of GPU {number} is more than the {most} % that the limits around \
                 allow ({source}); inside a container limits can only be lowered"
            ));
        }
        let (floor, most) = (limit.floor_percent, around.floor_percent);
        if floor > most && is_new(|limit| u64::from(limit.floor_percent)) {
            let guaranteed = match most {
                0 => String::from("guarantee nothing of it"),
                most => format!("guarantee {most} %"),
            };
            return Err(format!(
                "--floor {floor} of GPU {number}: the limits around {guaranteed} ({source}), and \
                 no more can be guaranteed inside. {}",
                match most {
                    0 => String::from("Leave --floor out, or give the container around one"),
                    most => format!("Give at most {most}"),
                }
            ));
        }
        Ok(())
    }

    /// Refuses a policy that would let go of a cap that the limits around hold.
    pub(crate) fn check_policy(&self, policy: Policy, uuids: &[&str]) -> Result<(), String> {
        // How often a cap holds.
        let strictness = |policy: Policy| match policy {
            Policy::Disable => 0,
            Policy::Default => 1,
            Policy::Floor | Policy::Force => 2,
        };
        let is_capped = uuids.iter().enumerate().any(|(index, uuid)| {
            self.around(uuid, index)
                .is_some_and(|around| cap_of(around.core_percent) != 0)
        });
        let around = self.limits.policy;
        if is_capped && strictness(policy) < strictness(around) {
            return Err(format!(
                "--policy {} lets go of the cap that the limits around hold (policy {}, {}); \
                 inside a container limits can only be lowered: give --policy force",
                policy_word(policy),
                policy_word(around),
                self.source
            ));
        }
        Ok(())
    }

    /// Refuses a priority that is above the one around.
    pub(crate) fn check_priority(&self, wanted: u32) -> Result<(), String> {
        let around = self.limits.priority;
        if wanted < around {
            return Err(format!(
                "--priority {wanted} is above the {around} of the limits around ({}); inside a \
                 container it can only be lowered: give {around} or a larger number",
                self.source
            ));
        }
        Ok(())
    }
}

/// The shares as the library reads them.
pub(crate) fn limits_of(shares: &Shares) -> anyhow::Result<Limits> {
    let mut devices = Vec::new();
    for share in &shares.gpus {
        devices.push(DeviceLimit {
            uuid: DeviceUuid::new(&share.uuid).with_context(|| {
                format!("GPU {} has a UUID that cannot be written", share.index)
            })?,
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

/// Reads the limits that stand around this process, if any.
pub(crate) fn outer() -> anyhow::Result<Option<Outer>> {
    if Path::new(INSIDE_LIMITS).exists() {
        return read_outer(Path::new(INSIDE_LIMITS), INSIDE_LIMITS).map(Some);
    }
    if let Some(path) = std::env::var_os("VGPU_LIMITS") {
        let path = PathBuf::from(path);
        let source = format!("VGPU_LIMITS={}", path.display());
        return read_outer(&path, &source).map(Some);
    }
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            Some((name, value.to_string_lossy().into_owned()))
        })
        .collect();
    peers(&variables).map_err(anyhow::Error::msg)
}

/// Reads the limits file of a container.
pub(crate) fn read_outer(path: &Path, source: &str) -> anyhow::Result<Outer> {
    let limits = LimitsFile::open(path)
        .and_then(|file| file.read())
        .with_context(|| format!("cannot read the limits around ({source})"))?;
    Ok(Outer {
        source: source.to_owned(),
        file: Some(path.to_owned()),
        limits,
    })
}

/// Limits that another stack's variables state. The library honours them only where no `vgpu run`
/// stands between, so they are read here, or a nested run would lift them.
fn peers(variables: &[(String, String)]) -> Result<Option<Outer>, String> {
    let value_of = |name: &str| {
        let found = variables.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.trim())
    };
    let bytes = |name: &str| -> Result<Option<u64>, String> {
        let Some(value) = value_of(name) else {
            return Ok(None);
        };
        let bytes = size::parse_peer(value).map_err(|error| {
            format!("{name} in the environment: {error}. Correct it, or unset it")
        })?;
        Ok((bytes != 0).then_some(bytes))
    };
    let number = |name: &str, most: u32, accepted: &str| -> Result<Option<u32>, String> {
        let Some(value) = value_of(name) else {
            return Ok(None);
        };
        match value.parse() {
            Ok(number) if number <= most => Ok(Some(number)),
            _ => Err(format!(
                "{name} in the environment is {value:?}; accepted: {accepted}. Correct it, or \
                 unset it"
            )),
        }
    };
    let percent = |name: &str| number(name, 100, "a whole number from 0 to 100");
    let every = bytes("CUDA_DEVICE_MEMORY_LIMIT")?;
    let quota = bytes("HCS_VRAM_QUOTA")?;
    let every_cap = percent("CUDA_DEVICE_SM_LIMIT")?;
    let priority = number(
        "CUDA_TASK_PRIORITY",
        u32::MAX,
        "a whole number, 0 is the highest",
    )?;
    let smaller = |one: Option<u64>, other: Option<u64>| match (one, other) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let mut devices = Vec::new();
    for index in 0..MAX_DEVICES {
        let own = bytes(&format!("CUDA_DEVICE_MEMORY_LIMIT_{index}"))?;
        let cap = percent(&format!("CUDA_DEVICE_SM_LIMIT_{index}"))?.or(every_cap);
        devices.push(DeviceLimit {
            memory_bytes: smaller(own.or(every), quota).unwrap_or(0),
            core_percent: cap_of(cap.unwrap_or(0)),
            ..DeviceLimit::default()
        });
    }
    let policy = value_of("GPU_CORE_UTILIZATION_POLICY").unwrap_or_default();
    let policy = match policy.to_ascii_lowercase().as_str() {
        "" | "default" => Policy::Default,
        "force" => Policy::Force,
        "disable" => Policy::Disable,
        _ => {
            return Err(format!(
                "GPU_CORE_UTILIZATION_POLICY in the environment is {policy:?}; accepted: default, \
                 force, disable. Correct it, or unset it"
            ));
        }
    };
    let is_free = |device: &DeviceLimit| device.memory_bytes == 0 && device.core_percent == 0;
    if devices.iter().all(is_free) {
        return Ok(None);
    }
    Ok(Some(Outer {
        source: String::from(
            "CUDA_DEVICE_MEMORY_LIMIT, CUDA_DEVICE_SM_LIMIT or HCS_VRAM_QUOTA in the environment",
        ),
        file: None,
        limits: Limits {
            unlisted: Unlisted::Allow,
            policy,
            priority: priority.unwrap_or(USUAL_PRIORITY),
            devices,
            ..Limits::default()
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;
    use expect_test::{Expect, expect};

    fn gpu(index: u32, uuid: &str, gib: u64) -> Gpu {
        Gpu {
            index,
            uuid: String::from(uuid),
            name: String::from("Test GPU"),
            memory_bytes: gib << 30,
            used_bytes: 0,
            utilization_percent: None,
            memory_utilization_percent: None,
            instances: Vec::new(),
        }
    }

    fn outer_of(devices: &[(&str, u64)], unlisted: Unlisted) -> Outer {
        let devices = devices
            .iter()
            .map(|(uuid, gib)| DeviceLimit {
                uuid: DeviceUuid::new(uuid).unwrap(),
                memory_bytes: gib << 30,
                physical_bytes: if uuid.is_empty() { 0 } else { 16 << 30 },
                ..DeviceLimit::default()
            })
            .collect();
        let limits = Limits {
            unlisted,
            devices,
            ..Limits::default()
        };
        Outer {
            source: String::from("outer"),
            file: None,
            limits,
        }
    }

    /// These flags, as they are typed, on GPUs 0 (16 GiB) and 1 (40 GiB).
    fn tried(line: &str, outer: Option<&Outer>) -> Result<Shares, String> {
        let gpus = [gpu(0, "GPU-aa00", 16), gpu(1, "GPU-ab11", 40)];
        let words = ["vgpu", "run"].into_iter().chain(line.split_whitespace());
        let args = match Args::try_parse_from(words.chain(["--", "true"])) {
            Ok(args) => args,
            Err(error) => panic!("{line}: {error}"),
        };
        let Command::Run(args) = args.command else {
            panic!("{line}")
        };
        let wish = Wish::of(&args.gpumem, &args.compute)?;
        share(&gpus, &args.gpu, &wish, outer)
    }

    fn check_flags(line: &str, outer: Option<&Outer>, expected: Expect) {
        let one = |s: &Share| {
            let memory = match (s.bytes, s.resident_bytes) {
                (0, _) => String::from("all"),
                (bytes, 0) => Size(bytes).to_string(),
                (bytes, resident) => format!("{}({})", Size(bytes), Size(resident)),
            };
            format!(
                "{} {memory}/{} {}%/{}%",
                s.index,
                Size(s.physical_bytes),
                s.core_percent,
                s.floor_percent
            )
        };
        let found = match tried(line, outer) {
            Ok(shares) => format!(
                "{}; {} {}{}",
                shares.gpus.iter().map(one).collect::<Vec<_>>().join(", "),
                policy_word(shares.policy),
                shares.priority,
                if shares.is_choice { "; chosen" } else { "" }
            ),
            Err(error) => error,
        };
        expected.assert_eq(&found);
    }

    /// `--gpu`, `--gpumem` … alone.
    fn check(gpu_list: &str, memory: &[&str], outer: Option<&Outer>, expected: Expect) {
        let mut line = String::new();
        if !gpu_list.is_empty() {
            line.push_str(&format!("--gpu {gpu_list} "));
        }
        for memory in memory {
            line.push_str(&format!("--gpumem {memory} "));
        }
        let found = match tried(&line, outer) {
            Ok(shares) => shares
                .gpus
                .iter()
                .map(|s| format!("{} {}/{}", s.index, Size(s.bytes), Size(s.physical_bytes)))
                .collect::<Vec<_>>()
                .join(", "),
            Err(error) => error,
        };
        expected.assert_eq(&found);
    }

    #[test]
    fn one_size_counts_for_every_gpu_that_was_chosen() {
        check("", &["4Gi"], None, expect!["0 4Gi/16Gi, 1 4Gi/40Gi"]);
        check("1", &["4Gi"], None, expect!["1 4Gi/40Gi"]);
        check("1,0", &["4Gi"], None, expect!["1 4Gi/40Gi, 0 4Gi/16Gi"]);
        check("GPU-ab", &["4Gi"], None, expect!["1 4Gi/40Gi"]);
        check(
            "",
            &["4Gi", "1=8Gi"],
            None,
            expect!["0 4Gi/16Gi, 1 8Gi/40Gi"],
        );
    }

    #[test]
    fn a_list_by_gpu_chooses_those_gpus() {
        check("", &["1=8Gi"], None, expect!["1 8Gi/40Gi"]);
        check(
            "",
            &["0=4Gi,1=8Gi"],
            None,
            expect!["0 4Gi/16Gi, 1 8Gi/40Gi"],
        );
        check(
            "",
            &["0=4Gi", "1=8Gi"],
            None,
            expect!["0 4Gi/16Gi, 1 8Gi/40Gi"],
        );
        check(
            "0,1",
            &["1=8Gi"],
            None,
            expect!["GPU 0 has no limit; add 0=SIZE to --gpumem, or leave it out of --gpu"],
        );
        check(
            "0",
            &["0=4Gi,1=8Gi"],
            None,
            expect![
                "--gpumem names GPU 1, which --gpu leaves out; add 1 to --gpu, or leave it out of --gpumem"
            ],
        );
    }

    #[test]
    fn what_cannot_be_granted_says_what_can() {
        check(
            "",
            &["17Gi"],
            None,
            expect!["17Gi is more than GPU 0 has: 16Gi (Test GPU); give at most that"],
        );
        check(
            "7",
            &["4Gi"],
            None,
            expect!["there is no GPU 7; there are: 0 (GPU-aa00, 16Gi), 1 (GPU-ab11, 40Gi)"],
        );
        check(
            "GPU-a",
            &["4Gi"],
            None,
            expect![
                "GPU-a is the beginning of several GPUs' UUIDs: 0 (GPU-aa00, 16Gi), 1 (GPU-ab11, 40Gi)"
            ],
        );
        check(
            "GPU-zz",
            &["4Gi"],
            None,
            expect!["there is no GPU GPU-zz; there are: 0 (GPU-aa00, 16Gi), 1 (GPU-ab11, 40Gi)"],
        );
        check(
            "0,GPU-aa00",
            &["4Gi"],
            None,
            expect!["--gpu names GPU 0 twice; name it once"],
        );
        check(
            "",
            &["0=1Gi,GPU-aa=2Gi"],
            None,
            expect!["--gpumem names GPU 0 twice; name it once"],
        );
        check(
            "",
            &[],
            None,
            expect![
                "no limit given; give one, such as --gpumem 4Gi (of every GPU), --gpumem 0=4Gi,1=8Gi or --gpucores 30"
            ],
        );
        check(
            "0",
            &[],
            None,
            expect![
                "no limit given; give one, such as --gpumem 4Gi (of every GPU), --gpumem 0=4Gi,1=8Gi or --gpucores 30"
            ],
        );
        check(
            "",
            &["4Gi", "8Gi"],
            None,
            expect!["--gpumem gives every GPU 4Gi and 8Gi; give one of them, or GPU=SIZE"],
        );
        check(
            "",
            &["0=4Gi", "0=8Gi"],
            None,
            expect!["--gpumem names GPU 0 twice; name it once"],
        );
    }

    #[test]
    fn inside_limits_they_can_only_be_lowered() {
        let outer = outer_of(&[("GPU-aa00", 4)], Unlisted::Deny);
        check("", &["2Gi"], Some(&outer), expect!["0 2Gi/16Gi"]);
        check("", &["4Gi"], Some(&outer), expect!["0 4Gi/16Gi"]);
        check(
            "",
            &["5Gi"],
            Some(&outer),
            expect![
                "5Gi of GPU 0 is more than the 4Gi that the limits around allow (outer); inside a container limits can only be lowered"
            ],
        );
        check(
            "1",
            &["2Gi"],
            Some(&outer),
            expect![
                "GPU 1 (GPU-ab11) is not among the GPUs that the limits around allow (outer); choose others with --gpu"
            ],
        );

        let by_index = outer_of(&[("", 4), ("", 0)], Unlisted::Allow);
        check(
            "",
            &["8Gi"],
            Some(&by_index),
            expect![
                "8Gi of GPU 0 is more than the 4Gi that the limits around allow (outer); inside a container limits can only be lowered"
            ],
        );
        check("1", &["8Gi"], Some(&by_index), expect!["1 8Gi/40Gi"]);
    }

    #[test]
    fn a_compute_limit_alone_leaves_memory_free_and_is_forced() {
        check_flags(
            "--gpucores 30",
            None,
            expect!["0 all/16Gi 30%/0%, 1 all/40Gi 30%/0%; force 1"],
        );
        check_flags(
            "--gpucores 0=30,1=50",
            None,
            expect!["0 all/16Gi 30%/0%, 1 all/40Gi 50%/0%; force 1; chosen"],
        );
        check_flags(
            "--gpucores 0=30",
            None,
            expect!["0 all/16Gi 30%/0%; force 1; chosen"],
        );
        check_flags(
            "--gpucores 30 --policy default",
            None,
            expect!["0 all/16Gi 30%/0%, 1 all/40Gi 30%/0%; default 1"],
        );
        check_flags(
            "--gpucores 30 --policy DISABLE",
            None,
            expect!["0 all/16Gi 30%/0%, 1 all/40Gi 30%/0%; disable 1"],
        );
        check_flags(
            "--gpucores 100 --gpumem 4Gi",
            None,
            expect!["0 4Gi/16Gi 0%/0%, 1 4Gi/40Gi 0%/0%; force 1"],
        );
        check_flags(
            "--priority 0",
            None,
            expect!["0 all/16Gi 0%/0%, 1 all/40Gi 0%/0%; default 0"],
        );
        check_flags(
            "--floor 20",
            None,
            expect!["0 all/16Gi 0%/20%, 1 all/40Gi 0%/20%; floor 1"],
        );
        check_flags(
            "--floor 1=20 --gpucores 50 --policy floor",
            None,
            expect!["0 all/16Gi 50%/0%, 1 all/40Gi 50%/20%; floor 1"],
        );
        check_flags(
            "--gpumem 0=4Gi --gpucores 30 --priority 1000",
            None,
            expect!["0 4Gi/16Gi 30%/0%; force 1000; chosen"],
        );
        check_flags(
            "--gpumem 4Gi --gpucores 30 --gpucores 1=50 --gpu 1,0",
            None,
            expect!["1 4Gi/40Gi 50%/0%, 0 4Gi/16Gi 30%/0%; force 1; chosen"],
        );
    }

    #[test]
    fn oversubscribed_memory_comes_on_top_of_the_limit() {
        check_flags(
            "--gpumem 4Gi --oversubscribe 4Gi",
            None,
            expect!["0 8Gi(4Gi)/16Gi 0%/0%, 1 8Gi(4Gi)/40Gi 0%/0%; default 1"],
        );
        check_flags(
            "--gpumem 4Gi --oversubscribe 1=40Gi",
            None,
            expect!["0 4Gi/16Gi 0%/0%, 1 44Gi(4Gi)/40Gi 0%/0%; default 1"],
        );
        check_flags(
            "--gpumem 16Gi --oversubscribe 1Ti --gpu 0",
            None,
            expect!["0 1.01Ti(16Gi)/16Gi 0%/0%; default 1; chosen"],
        );
        check_flags(
            "--oversubscribe 4Gi",
            None,
            expect![
                "--oversubscribe says how much more than --gpumem the program may have, and there is no --gpumem; add it, such as --gpumem 4Gi"
            ],
        );
        check_flags(
            "--oversubscribe 4Gi --gpucores 30",
            None,
            expect![
                "--oversubscribe says how much more than --gpumem the program may have, and there is no --gpumem; add it, such as --gpumem 4Gi"
            ],
        );
        check_flags(
            "--gpumem 4Gi --oversubscribe none",
            None,
            expect![
                "--oversubscribe none takes away what a running container has; at the start leave it out"
            ],
        );
        check_flags(
            "--gpumem 4Gi --oversubscribe 9Ti",
            None,
            expect!["--oversubscribe makes it 9Ti on GPU 0; give at most 8Ti together"],
        );
        check_flags(
            "--gpumem 0=4Gi --oversubscribe 1=4Gi",
            None,
            expect![
                "--oversubscribe names GPU 1, which --gpumem leaves out; add 1 to --gpumem, or leave it out of --oversubscribe"
            ],
        );
        check_flags(
            "--gpumem 17Gi --oversubscribe 1Gi",
            None,
            expect!["17Gi is more than GPU 0 has: 16Gi (Test GPU); give at most that"],
        );
    }

    #[test]
    fn compute_flags_that_do_not_go_together_say_what_does() {
        check_flags(
            "--floor 20 --policy force",
            None,
            expect![
                "--floor has no meaning with --policy force, which guarantees nothing; leave --floor out, or give --policy floor"
            ],
        );
        check_flags(
            "--floor 20 --policy default",
            None,
            expect![
                "--floor has no meaning with --policy default, which guarantees nothing; leave --floor out, or give --policy floor"
            ],
        );
        check_flags(
            "--floor 20 --policy disable",
            None,
            expect![
                "--floor has no meaning with --policy disable, which takes no notice of shares; leave --floor out, or give --policy floor"
            ],
        );
        check_flags(
            "--policy floor",
            None,
            expect![
                "--policy floor guarantees the share that --floor names, and there is none; add --floor, such as --floor 20"
            ],
        );
        check_flags(
            "--policy floor --gpucores 30",
            None,
            expect![
                "--policy floor guarantees the share that --floor names, and there is none; add --floor, such as --floor 20"
            ],
        );
        check_flags(
            "--policy force --gpumem 4Gi",
            None,
            expect![
                "--policy force says when the cap of --gpucores holds, and there is none; add --gpucores, such as --gpucores 30"
            ],
        );
        check_flags(
            "--gpucores 20 --floor 30",
            None,
            expect![
                "the floor of 30 % of GPU 0 is above its cap of 20 %: no more can be guaranteed than is allowed; give --floor 20 or less, or --gpucores 30 or more"
            ],
        );
        check_flags(
            "--gpucores 0=20,1=50 --floor 30",
            None,
            expect![
                "the floor of 30 % of GPU 0 is above its cap of 20 %: no more can be guaranteed than is allowed; give --floor 20 or less, or --gpucores 30 or more"
            ],
        );
        check_flags(
            "--gpucores 20 --gpucores 30",
            None,
            expect!["--gpucores gives every GPU 20 % and 30 %; give one of them, or GPU=PERCENT"],
        );
        check_flags(
            "--floor 20 --floor 30",
            None,
            expect!["--floor gives every GPU 20 % and 30 %; give one of them, or GPU=PERCENT"],
        );
        check_flags(
            "--gpucores 0=20 --gpucores 0=30",
            None,
            expect!["--gpucores names GPU 0 twice; name it once"],
        );
        check_flags(
            "--gpucores 0=20,GPU-aa=30",
            None,
            expect!["--gpucores names GPU 0 twice; name it once"],
        );
        check_flags(
            "--gpucores 7=20",
            None,
            expect!["there is no GPU 7; there are: 0 (GPU-aa00, 16Gi), 1 (GPU-ab11, 40Gi)"],
        );
        check_flags(
            "--gpumem 4Gi --gpucores 0=20",
            None,
            expect![
                "GPU 1 has no compute limit; add 1=PERCENT (100 is no cap) to --gpucores, or choose GPUs with --gpu"
            ],
        );
        check_flags(
            "--gpumem 0=4Gi --gpucores 1=20",
            None,
            expect![
                "--gpucores names GPU 1, which --gpumem leaves out; add 1 to --gpumem, or leave it out of --gpucores"
            ],
        );
        check_flags(
            "--gpu 1 --floor 0=20",
            None,
            expect![
                "--floor names GPU 0, which --gpu leaves out; add 0 to --gpu, or leave it out of --floor"
            ],
        );
    }

    #[test]
    fn inside_compute_limits_they_can_only_be_lowered() {
        let outer_of = |core_percent, floor_percent, policy| {
            let mut outer = outer_of(&[("GPU-aa00", 4)], Unlisted::Deny);
            outer.limits.policy = policy;
            outer.limits.priority = 5;
            for device in &mut outer.limits.devices {
                device.core_percent = core_percent;
                device.floor_percent = floor_percent;
            }
            outer
        };
        let forced = outer_of(30, 0, Policy::Force);
        check_flags(
            "--gpumem 2Gi",
            Some(&forced),
            expect!["0 2Gi/16Gi 30%/0%; force 5"],
        );
        check_flags(
            "--gpucores 20",
            Some(&forced),
            expect!["0 4Gi/16Gi 20%/0%; force 5"],
        );
        check_flags(
            "--gpucores 30 --priority 5",
            Some(&forced),
            expect!["0 4Gi/16Gi 30%/0%; force 5"],
        );
        check_flags(
            "--gpucores 31",
            Some(&forced),
            expect![
                "--gpucores 31 of GPU 0 is more than the 30 % that the limits around allow (outer); inside a container limits can only be lowered"
            ],
        );
        check_flags(
            "--gpucores 100",
            Some(&forced),
            expect![
                "--gpucores 100 of GPU 0 is more than the 30 % that the limits around allow (outer); inside a container limits can only be lowered"
            ],
        );
        check_flags(
            "--gpucores 20 --policy default",
            Some(&forced),
            expect![
                "--policy default lets go of the cap that the limits around hold (policy force, outer); inside a container limits can only be lowered: give --policy force"
            ],
        );
        check_flags(
            "--gpucores 20 --policy disable",
            Some(&forced),
            expect![
                "--policy disable lets go of the cap that the limits around hold (policy force, outer); inside a container limits can only be lowered: give --policy force"
            ],
        );
        check_flags(
            "--floor 10",
            Some(&forced),
            expect![
                "--floor 10 of GPU 0: the limits around guarantee nothing of it (outer), and no more can be guaranteed inside. Leave --floor out, or give the container around one"
            ],
        );
        check_flags(
            "--gpumem 2Gi --priority 4",
            Some(&forced),
            expect![
                "--priority 4 is above the 5 of the limits around (outer); inside a container it can only be lowered: give 5 or a larger number"
            ],
        );
        check_flags(
            "--priority 6",
            Some(&forced),
            expect!["0 4Gi/16Gi 30%/0%; force 6"],
        );
        let floored = outer_of(60, 40, Policy::Floor);
        check_flags(
            "--gpumem 2Gi",
            Some(&floored),
            expect!["0 2Gi/16Gi 60%/40%; floor 5"],
        );
        check_flags(
            "--gpucores 20",
            Some(&floored),
            expect!["0 4Gi/16Gi 20%/0%; force 5"],
        );
        check_flags(
            "--floor 20",
            Some(&floored),
            expect!["0 4Gi/16Gi 60%/20%; floor 5"],
        );
        check_flags(
            "--floor 41",
            Some(&floored),
            expect![
                "--floor 41 of GPU 0: the limits around guarantee 40 % (outer), and no more can be guaranteed inside. Give at most 40"
            ],
        );
        let free = outer_of(0, 0, Policy::Default);
        check_flags(
            "--gpucores 80 --policy disable",
            Some(&free),
            expect!["0 4Gi/16Gi 80%/0%; disable 5"],
        );
        let mut paged = outer_of(0, 0, Policy::Default);
        paged.limits.devices[0].resident_bytes = 1 << 30;
        check_flags(
            "--priority 9",
            Some(&paged),
            expect!["0 4Gi(1Gi)/16Gi 0%/0%; default 9"],
        );
        check_flags(
            "--gpumem 1Gi --oversubscribe 3Gi",
            Some(&paged),
            expect!["0 4Gi(1Gi)/16Gi 0%/0%; default 5"],
        );
        check_flags(
            "--gpumem 1Gi --oversubscribe 4Gi",
            Some(&paged),
            expect![
                "5Gi of GPU 0 is more than the 4Gi that the limits around allow (outer); inside a container limits can only be lowered"
            ],
        );
        check_flags(
            "--gpumem 2Gi",
            Some(&paged),
            expect![
                "2Gi of GPU 0 is more than the 1Gi that the limits around allow (outer); inside a container limits can only be lowered"
            ],
        );
    }

    #[test]
    fn compute_limits_of_another_stack_count_inside_it() {
        let read = |list: &[(&str, &str)]| {
            let list: Vec<_> = list
                .iter()
                .map(|(n, v)| (String::from(*n), String::from(*v)))
                .collect();
            match peers(&list) {
                Ok(None) => String::from("none"),
                Ok(Some(outer)) => {
                    let first = outer.limits.devices.iter().take(2);
                    let caps: Vec<_> = first.map(|d| d.core_percent.to_string()).collect();
                    let Limits {
                        policy, priority, ..
                    } = outer.limits;
                    format!("{} {} {priority}", caps.join(" "), policy_word(policy))
                }
                Err(error) => error,
            }
        };

        assert_eq!(read(&[("CUDA_DEVICE_SM_LIMIT", "30")]), "30 30 default 1");
        assert_eq!(read(&[("CUDA_DEVICE_SM_LIMIT_1", "40")]), "0 40 default 1");
        assert_eq!(read(&[("CUDA_DEVICE_SM_LIMIT", "100")]), "none");
        assert_eq!(
            read(&[
                ("CUDA_DEVICE_SM_LIMIT", "30"),
                ("CUDA_TASK_PRIORITY", "0"),
                ("GPU_CORE_UTILIZATION_POLICY", "FORCE"),
            ]),
            "30 30 force 0"
        );
        expect![[r#"CUDA_DEVICE_SM_LIMIT in the environment is "half"; accepted: a whole number from 0 to 100. Correct it, or unset it"#]].assert_eq(&read(&[("CUDA_DEVICE_SM_LIMIT", "half")]));
        expect![[r#"GPU_CORE_UTILIZATION_POLICY in the environment is "maybe"; accepted: default, force, disable. Correct it, or unset it"#]].assert_eq(&read(&[("GPU_CORE_UTILIZATION_POLICY", "maybe")]));
    }

    #[test]
    fn limits_of_another_stack_count_and_the_smaller_of_two_wins() {
        let read = |list: &[(&str, &str)]| {
            let list: Vec<_> = list
                .iter()
                .map(|(n, v)| (String::from(*n), String::from(*v)))
                .collect();
            match peers(&list) {
                Ok(None) => String::from("none"),
                Ok(Some(outer)) => {
                    let first = outer.limits.devices.iter().take(2);
                    let sizes: Vec<_> = first.map(|d| Size(d.memory_bytes).to_string()).collect();
                    sizes.join(" ")
                }
                Err(error) => error,
            }
        };

        assert_eq!(read(&[]), "none");
        assert_eq!(read(&[("CUDA_DEVICE_MEMORY_LIMIT", "4g")]), "4Gi 4Gi");
        assert_eq!(
            read(&[
                ("CUDA_DEVICE_MEMORY_LIMIT", "4g"),
                ("CUDA_DEVICE_MEMORY_LIMIT_1", "2g")
            ]),
            "4Gi 2Gi"
        );
        assert_eq!(
            read(&[
                ("CUDA_DEVICE_MEMORY_LIMIT", "4g"),
                ("HCS_VRAM_QUOTA", "3Gi")
            ]),
            "3Gi 3Gi"
        );
        assert_eq!(read(&[("CUDA_DEVICE_MEMORY_LIMIT", "0")]), "none");
        expect![[r#"CUDA_DEVICE_MEMORY_LIMIT in the environment: size "lots" is not a number with a unit; accepted: whole bytes, or a whole number and one of k m g in any case, with or without i, B or iB (all 1024-based), such as 4g, 4Gi or 4096MiB. Correct it, or unset it"#]].assert_eq(&read(&[("CUDA_DEVICE_MEMORY_LIMIT", "lots")]));
    }
}
