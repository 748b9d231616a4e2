//! NVML's answers about one device: names, places, memory, links. The device is a made-up one for data
//! centres; what such a device does not have (a display, an encoder's licence) is answered as a real one
//! would.

use cuda_api::nvml::*;
use cuda_sim::board::GroupLimit;
use cuda_sim::groups::Groups;
use cuda_sim::pci::Address;
use cuda_sim::topology::MAX_LINKS;

use crate::border::{Answer, field, get, put, put_list, put_text, text};
use crate::gpu::{self, BoardGpu};
use crate::state::{Target, handle, ready, target, whole};

pub(crate) const MEMORY_MHZ: u32 = 1_593;
pub(crate) const POWER_LIMIT_MW: u32 = 300_000;
pub(crate) const ON: u32 = 1;
const OFF: u32 = 0;

// Which devices there are, and how to name one.

pub(crate) fn nvmlDeviceGetCount(count: *mut u32) -> Answer {
    ready()?;
    put(count, gpu::count() as u32)
}

pub(crate) fn nvmlDeviceGetCount_v2(count: *mut u32) -> Answer {
    nvmlDeviceGetCount(count)
}

pub(crate) fn nvmlDeviceGetHandleByIndex(index: u32, device: *mut NvmlDevice) -> Answer {
    ready()?;
    let gpu = BoardGpu::at(index as usize).ok_or(NvmlReturn::INVALID_ARGUMENT)?;
    if gpu.lost() {
        return Err(NvmlReturn::GPU_IS_LOST);
    }
    put(device, handle(gpu, None))
}

pub(crate) fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: *mut NvmlDevice) -> Answer {
    nvmlDeviceGetHandleByIndex(index, device)
}

/// The GPU that `is` holds for.
fn find(device: *mut NvmlDevice, is: impl Fn(BoardGpu) -> bool) -> Answer {
    ready()?;
    let gpu = BoardGpu::all()
        .find(|&gpu| is(gpu))
        .ok_or(NvmlReturn::NOT_FOUND)?;
    if gpu.lost() {
        return Err(NvmlReturn::GPU_IS_LOST);
    }
    put(device, handle(gpu, None))
}

pub(crate) fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut NvmlDevice) -> Answer {
    if gpu::lacks().uuid {
        return Err(NvmlReturn::FUNCTION_NOT_FOUND);
    }
    let uuid = text(uuid)?;
    if uuid.starts_with("MIG-") {
        ready()?;
        let (gpu, part) = gpu::instance_named(&uuid).ok_or(NvmlReturn::NOT_FOUND)?;
        return put(device, handle(gpu, Some(part.index)));
    }
    find(device, |gpu| gpu.uuid() == uuid)
}

pub(crate) fn nvmlDeviceGetHandleByUUIDV(uuid: *const NvmlUuid, device: *mut NvmlDevice) -> Answer {
    let given = get(uuid)?;
    if given.version != NvmlUuid::VERSION {
        return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
    }
    match given.kind {
        UUID_ASCII => nvmlDeviceGetHandleByUUID(given.value.as_ptr().cast(), device),
        UUID_BINARY if gpu::lacks().uuid => Err(NvmlReturn::FUNCTION_NOT_FOUND),
        UUID_BINARY => find(device, |gpu| gpu.uuid_bytes()[..] == given.value[..16]),
        _ => Err(NvmlReturn::INVALID_ARGUMENT),
    }
}

pub(crate) fn nvmlDeviceGetHandleBySerial(
    serial: *const c_char,
    device: *mut NvmlDevice,
) -> Answer {
    let serial = text(serial)?;
    find(device, |gpu| gpu.serial() == serial)
}

pub(crate) fn nvmlDeviceGetHandleByPciBusId(id: *const c_char, device: *mut NvmlDevice) -> Answer {
    let id = text(id)?;
    let place = Address::parse(&id).ok_or(NvmlReturn::INVALID_ARGUMENT)?;
    find(device, |gpu| gpu.pci() == place)
}

pub(crate) fn nvmlDeviceGetHandleByPciBusId_v2(
    id: *const c_char,
    device: *mut NvmlDevice,
) -> Answer {
    nvmlDeviceGetHandleByPciBusId(id, device)
}

pub(crate) fn nvmlDeviceGetIndex(device: NvmlDevice, index: *mut u32) -> Answer {
    match target(device)? {
        Target::Gpu(gpu) => put(index, gpu.index() as u32),
        Target::Mig(_, part) => put(index, part.index),
    }
}

pub(crate) fn nvmlDeviceGetMinorNumber(device: NvmlDevice, minor: *mut u32) -> Answer {
    put(minor, target(device)?.gpu().minor())
}

pub(crate) fn nvmlDeviceGetModuleId(device: NvmlDevice, id: *mut u32) -> Answer {
    put(id, whole(device)?.index() as u32)
}

pub(crate) fn nvmlDeviceGetUUID(device: NvmlDevice, uuid: *mut c_char, length: u32) -> Answer {
    match target(device)? {
        Target::Gpu(gpu) => put_text(uuid, length, &gpu.uuid()),
        Target::Mig(gpu, part) => put_text(uuid, length, &gpu.instance_uuid(part.index)),
    }
}

pub(crate) fn nvmlDeviceGetSerial(device: NvmlDevice, serial: *mut c_char, length: u32) -> Answer {
    put_text(serial, length, &target(device)?.gpu().serial())
}

pub(crate) fn nvmlDeviceGetName(device: NvmlDevice, name: *mut c_char, length: u32) -> Answer {
    match target(device)? {
        Target::Gpu(gpu) => put_text(name, length, &gpu.name()),
        Target::Mig(gpu, part) => put_text(
            name,
            length,
            &format!("{} MIG {}", gpu.name(), part.shape()),
        ),
    }
}

// Where it sits.

const DEVICE_ID: u32 = 0x2330_10de;
const SUBSYSTEM_ID: u32 = 0x16c1_10de;

fn legacy_id<const N: usize>(gpu: BoardGpu) -> [c_char; N] {
    field(&gpu.pci().to_string())
}

fn long_id<const N: usize>(gpu: BoardGpu) -> [c_char; N] {
    field(&format!("{:#}", gpu.pci()))
}

pub(crate) fn nvmlDeviceGetPciInfo(device: NvmlDevice, pci: *mut NvmlPciInfoV1) -> Answer {
    let gpu = target(device)?.gpu();
    put(
        pci,
        NvmlPciInfoV1 {
            bus_id: legacy_id(gpu),
            domain: gpu.pci().domain,
            bus: gpu.pci().bus,
            device: gpu.pci().device,
            device_id: DEVICE_ID,
        },
    )
}

pub(crate) fn nvmlDeviceGetPciInfo_v2(device: NvmlDevice, pci: *mut NvmlPciInfoV2) -> Answer {
    let gpu = target(device)?.gpu();
    put(
        pci,
        NvmlPciInfoV2 {
            bus_id: legacy_id(gpu),
            domain: gpu.pci().domain,
            bus: gpu.pci().bus,
            device: gpu.pci().device,
            device_id: DEVICE_ID,
            subsystem_id: SUBSYSTEM_ID,
            reserved: [0; 4],
        },
    )
}

pub(crate) fn nvmlDeviceGetPciInfo_v3(device: NvmlDevice, pci: *mut NvmlPciInfo) -> Answer {
    let gpu = target(device)?.gpu();
    put(
        pci,
        NvmlPciInfo {
            bus_id_legacy: legacy_id(gpu),
            domain: gpu.pci().domain,
            bus: gpu.pci().bus,
            device: gpu.pci().device,
            device_id: DEVICE_ID,
            subsystem_id: SUBSYSTEM_ID,
            bus_id: long_id(gpu),
        },
    )
}

pub(crate) fn nvmlDeviceGetPciInfoExt(device: NvmlDevice, pci: *mut NvmlPciInfoExt) -> Answer {
    if get(pci)?.version != NvmlPciInfoExt::VERSION {
        return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
    }
    let gpu = target(device)?.gpu();
    put(
        pci,
        NvmlPciInfoExt {
            version: NvmlPciInfoExt::VERSION,
            domain: gpu.pci().domain,
            bus: gpu.pci().bus,
            device: gpu.pci().device,
            device_id: DEVICE_ID,
            subsystem_id: SUBSYSTEM_ID,
            base_class: 3,
            sub_class: 2,
            bus_id: long_id(gpu),
        },
    )
}

pub(crate) fn nvmlDeviceGetTopologyCommonAncestor(
    device1: NvmlDevice,
    device2: NvmlDevice,
    level: *mut u32,
) -> Answer {
    const INTERNAL: u32 = 0;
    let (one, other) = (whole(device1)?, whole(device2)?);
    let path = one.path_to(other).filter(|_| one != other);
    put(level, path.map_or(INTERNAL, |path| path.level))
}

pub(crate) fn nvmlDeviceGetTopologyNearestGpus(
    device: NvmlDevice,
    level: u32,
    count: *mut u32,
    devices: *mut NvmlDevice,
) -> Answer {
    let own = whole(device)?;
    let at_level = |gpu: BoardGpu| own.path_to(gpu).is_some_and(|path| path.level == level);
    let near: Vec<NvmlDevice> = BoardGpu::all()
        .filter(|&gpu| gpu != own && at_level(gpu))
        .map(|gpu| handle(gpu, None))
        .collect();
    if get(count)? == 0 {
        return put(count, near.len() as u32);
    }
    put_list(count, devices, &near)
}

pub(crate) fn nvmlDeviceGetP2PStatus(
    device1: NvmlDevice,
    device2: NvmlDevice,
    _index: u32,
    status: *mut u32,
) -> Answer {
    whole(device1)?;
    whole(device2)?;
    put(status, 0)
}

pub(crate) fn nvmlDeviceOnSameBoard(
    device1: NvmlDevice,
    device2: NvmlDevice,
    same: *mut i32,
) -> Answer {
    put(same, i32::from(whole(device1)? == whole(device2)?))
}

/// All processors that the machine has.
fn affinity(size: u32, set: *mut c_ulong) -> Answer {
    if set.is_null() || size == 0 {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for word in 0..size as usize {
        let bits = processors.saturating_sub(word * 64);
        let mask = if bits >= 64 {
            c_ulong::MAX
        } else {
            (1 << bits) - 1
        };
        // `word` is below the size that the caller gives its array.
        put(set.wrapping_add(word), mask)?;
    }
    Ok(())
}

pub(crate) fn nvmlDeviceGetCpuAffinity(device: NvmlDevice, size: u32, set: *mut c_ulong) -> Answer {
    whole(device)?;
    affinity(size, set)
}

pub(crate) fn nvmlDeviceGetCpuAffinityWithinScope(
    device: NvmlDevice,
    size: u32,
    set: *mut c_ulong,
    _scope: u32,
) -> Answer {
    whole(device)?;
    affinity(size, set)
}

pub(crate) fn nvmlDeviceGetMemoryAffinity(
    device: NvmlDevice,
    size: u32,
    set: *mut c_ulong,
    _scope: u32,
) -> Answer {
    whole(device)?;
    if set.is_null() || size == 0 {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    for word in 0..size as usize {
        put(set.wrapping_add(word), c_ulong::from(word == 0))?;
    }
    Ok(())
}

// Memory.

/// (total, reserved, used without the reserve) in bytes.
fn memory(device: NvmlDevice) -> Result<(u64, u64, u64), NvmlReturn> {
    Ok(match target(device)? {
        Target::Gpu(gpu) => (gpu.total(), gpu.reserved(), gpu.used()),
        Target::Mig(gpu, part) => {
            let used = gpu
                .processes()
                .iter()
                .filter(|process| process.instance == part.gpu_instance)
                .map(|process| process.bytes)
                .sum();
            (part.bytes, 0, used)
        }
    })
}

pub(crate) fn nvmlDeviceGetMemoryInfo(device: NvmlDevice, info: *mut NvmlMemory) -> Answer {
    let (total, reserved, used) = memory(device)?;
    let used = used.saturating_add(reserved).min(total);
    put(
        info,
        NvmlMemory {
            total,
            free: total - used,
            used,
        },
    )
}

pub(crate) fn nvmlDeviceGetMemoryInfo_v2(device: NvmlDevice, info: *mut NvmlMemoryV2) -> Answer {
    if get(info)?.version != NvmlMemoryV2::VERSION {
        return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
    }
    let (mut total, reserved, mut used) = memory(device)?;
    let mut free = total.saturating_sub(used).saturating_sub(reserved);
    // A limit of the driver on the caller's control group is the size that this version reports; the first version
    // reports the GPU.
    if let Target::Gpu(gpu) = target(device)?
        && let Some((limit, held)) = gpu.seen_from(&Groups::own())
    {
        (total, used) = (limit, held);
        free = free.min(limit.saturating_sub(held));
    }
    put(
        info,
        NvmlMemoryV2 {
            version: NvmlMemoryV2::VERSION,
            total,
            reserved,
            free,
            used,
        },
    )
}

/// The directory of a control group, from the caller.
fn groups(name_space: *const c_char) -> Result<Groups, NvmlReturn> {
    let path = text(name_space)?;
    Groups::of(path.as_ref()).ok_or(NvmlReturn::INVALID_ARGUMENT)
}

/// A GPU that may have limits of control groups: not one in MIG mode.
fn limitable(device: NvmlDevice) -> Result<BoardGpu, NvmlReturn> {
    match target(device)? {
        Target::Gpu(gpu) if !gpu.is_mig() => Ok(gpu),
        _ => Err(NvmlReturn::NOT_SUPPORTED),
    }
}

pub(crate) fn nvmlDeviceSetMemoryLimits_v1(
    device: NvmlDevice,
    limits: *const NvmlSetMemoryLimits,
) -> Answer {
    let gpu = limitable(device)?;
    let wanted = get(limits)?;
    // SAFETY: no argument, no failure.
    if unsafe { libc::geteuid() } != 0 {
        return Err(NvmlReturn::NO_PERMISSION);
    }
    let groups = groups(wanted.name_space)?;
    let limit = GroupLimit {
        soft: wanted.soft_limit,
        hard: wanted.hard_limit,
    };
    if limit.soft > limit.hard {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    let directory = text(wanted.name_space)?;
    if gpu.limit_group(&groups, directory.as_ref(), limit) {
        Ok(())
    } else {
        Err(NvmlReturn::INSUFFICIENT_RESOURCES)
    }
}

pub(crate) fn nvmlDeviceGetMemoryLimits_v1(
    device: NvmlDevice,
    limits: *mut NvmlMemoryLimits,
) -> Answer {
    let gpu = limitable(device)?;
    let asked = get(limits)?;
    let (limit, used) = gpu.group_limit(&groups(asked.name_space)?);
    put(
        limits,
        NvmlMemoryLimits {
            soft_limit: limit.soft,
            hard_limit: limit.hard,
            current_used: used,
            ..asked
        },
    )
}

pub(crate) fn nvmlDeviceGetBAR1MemoryInfo(device: NvmlDevice, info: *mut NvmlBar1Memory) -> Answer {
    let total = match target(device)? {
        Target::Gpu(gpu) => gpu.total().next_power_of_two(),
        Target::Mig(_, part) => part.bytes.next_power_of_two(),
    };
    let used = 2 << 20;
    put(
        info,
        NvmlBar1Memory {
            total,
            free: total.saturating_sub(used),
            used,
        },
    )
}

pub(crate) fn nvmlDeviceGetMemoryBusWidth(device: NvmlDevice, width: *mut u32) -> Answer {
    whole(device)?;
    put(width, 5120)
}

// Answers that are the same for every GPU.

macro_rules! constants {
    ($($name:ident($($arg:ident: $ty:ty),*) => { $($out:ident: $value:expr),* };)*) => {$(
        pub(crate) fn $name(device: NvmlDevice, $($arg: $ty,)* $($out: constants!(@out $out)),*) -> Answer {
            $(let _: $ty = $arg;)*
            whole(device)?;
            $(put($out, $value)?;)*
            Ok(())
        }
    )*};
    (@out long) => { *mut u64 };
    (@out $out:ident) => { *mut u32 };
}

const SPEED_MBPS: u32 = 16_000;
const MAX_SPEED_16000: u32 = 4;

constants! {
    nvmlDeviceGetAPIRestriction(_api: u32) => { restricted: OFF };
    nvmlDeviceGetAutoBoostedClocksEnabled() => { enabled: ON, default: ON };
    nvmlDeviceGetBrand() => { brand: 2 };
    nvmlDeviceGetBusType() => { bus: 2 };
    nvmlDeviceGetComputeMode() => { mode: 0 };
    nvmlDeviceGetCurrPcieLinkGeneration() => { generation: 4 };
    nvmlDeviceGetCurrPcieLinkWidth() => { width: 16 };
    nvmlDeviceGetMaxPcieLinkGeneration() => { generation: 4 };
    nvmlDeviceGetMaxPcieLinkWidth() => { width: 16 };
    nvmlDeviceGetGpuMaxPcieLinkGeneration() => { generation: 4 };
    nvmlDeviceGetPcieLinkMaxSpeed() => { speed: MAX_SPEED_16000 };
    nvmlDeviceGetPcieSpeed() => { speed: SPEED_MBPS };
    nvmlDeviceGetPcieReplayCounter() => { count: 0 };
    nvmlDeviceGetDefaultEccMode() => { mode: ON };
    nvmlDeviceGetEccMode() => { current: ON, pending: ON };
    nvmlDeviceGetDisplayActive() => { active: OFF };
    nvmlDeviceGetDisplayMode() => { mode: OFF };
    nvmlDeviceGetEncoderCapacity(_kind: u32) => { percent: 100 };
    nvmlDeviceGetEncoderStats() => { sessions: 0, fps: 0, latency: 0 };
    nvmlDeviceGetDecoderUtilization() => { percent: 0, period_us: 167_000 };
    nvmlDeviceGetEncoderUtilization() => { percent: 0, period_us: 167_000 };
    nvmlDeviceGetJpgUtilization() => { percent: 0, period_us: 167_000 };
    nvmlDeviceGetOfaUtilization() => { percent: 0, period_us: 167_000 };
    nvmlDeviceGetEnforcedPowerLimit() => { milliwatts: POWER_LIMIT_MW };
    nvmlDeviceGetPowerManagementLimit() => { milliwatts: POWER_LIMIT_MW };
    nvmlDeviceGetPowerManagementDefaultLimit() => { milliwatts: POWER_LIMIT_MW };
    nvmlDeviceGetPowerManagementLimitConstraints() => { least: 100_000, most: POWER_LIMIT_MW };
    nvmlDeviceGetPowerManagementMode() => { mode: ON };
    nvmlDeviceGetPowerSource() => { source: 0 };
    nvmlDeviceGetPersistenceMode() => { mode: ON };
    nvmlDeviceGetInforomConfigurationChecksum() => { checksum: 0x5eed };
    nvmlDeviceGetIrqNum() => { irq: 64 };
    nvmlDeviceGetMinMaxFanSpeed() => { least: 0, most: 100 };
    nvmlDeviceGetNumFans() => { fans: 1 };
    nvmlDeviceGetFanSpeed() => { percent: 30 };
    nvmlDeviceGetMultiGpuBoard() => { multi: 0 };
    nvmlDeviceGetRetiredPagesPendingStatus() => { pending: OFF };
    nvmlDeviceGetPcieThroughput(_counter: u32) => { kib_per_s: 0 };
    nvmlDeviceGetSupportedClocksEventReasons() => { long: 0x1ff };
    nvmlDeviceGetSupportedClocksThrottleReasons() => { long: 0x1ff };
    nvmlDeviceGetSupportedEventTypes() => { long: crate::event::SUPPORTED };
    nvmlDeviceGetTotalEccErrors(_error: u32, _counter: u32) => { long: 0 };
    nvmlDeviceGetMemoryErrorCounter(_error: u32, _counter: u32, _location: u32) => { long: 0 };
    nvmlDeviceGetVirtualizationMode() => { mode: 0 };
    nvmlGpmQueryIfStreamingEnabled() => { state: OFF };
}

/// The GPU at the other end of a link that works; a board without links has none to ask of.
fn link_end(device: NvmlDevice, link: u32) -> Result<Option<BoardGpu>, NvmlReturn> {
    let ends = whole(device)?.link_ends();
    if ends.is_empty() {
        return Err(NvmlReturn::NOT_SUPPORTED);
    }
    if link as usize >= MAX_LINKS {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    Ok(ends.get(link as usize).copied())
}

pub(crate) fn nvmlDeviceGetNvLinkState(device: NvmlDevice, link: u32, active: *mut u32) -> Answer {
    put(active, u32::from(link_end(device, link)?.is_some()))
}

pub(crate) fn nvmlDeviceGetNvLinkVersion(
    device: NvmlDevice,
    link: u32,
    version: *mut u32,
) -> Answer {
    link_end(device, link)?;
    put(version, 4)
}

pub(crate) fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: NvmlDevice,
    link: u32,
    pci: *mut NvmlPciInfo,
) -> Answer {
    let end = link_end(device, link)?.ok_or(NvmlReturn::NOT_SUPPORTED)?;
    nvmlDeviceGetPciInfo_v3(handle(end, None), pci)
}

pub(crate) fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: NvmlDevice,
    link: u32,
    kind: *mut u32,
) -> Answer {
    const GPU: u32 = 0;
    link_end(device, link)?.ok_or(NvmlReturn::NOT_SUPPORTED)?;
    put(kind, GPU)
}

/// The machine has one memory node, so the driver names none.
pub(crate) fn nvmlDeviceGetNumaNodeId(device: NvmlDevice, _node: *mut u32) -> Answer {
    whole(device)?;
    Err(NvmlReturn::NOT_SUPPORTED)
}

fn only_fan(device: NvmlDevice, fan: u32, speed: *mut u32) -> Answer {
    whole(device)?;
    if fan != 0 {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    put(speed, 30)
}

pub(crate) fn nvmlDeviceGetFanSpeed_v2(device: NvmlDevice, fan: u32, speed: *mut u32) -> Answer {
    only_fan(device, fan, speed)
}

pub(crate) fn nvmlDeviceGetTargetFanSpeed(device: NvmlDevice, fan: u32, speed: *mut u32) -> Answer {
    only_fan(device, fan, speed)
}

pub(crate) fn nvmlGpmQueryDeviceSupport(device: NvmlDevice, info: *mut NvmlGpmSupport) -> Answer {
    whole(device)?;
    let version = get(info)?.version;
    put(
        info,
        NvmlGpmSupport {
            version,
            is_supported: 0,
        },
    )
}

// Texts.

pub(crate) fn nvmlDeviceGetBoardPartNumber(
    device: NvmlDevice,
    part: *mut c_char,
    length: u32,
) -> Answer {
    whole(device)?;
    put_text(part, length, "900-00000-0000-000")
}

pub(crate) fn nvmlDeviceGetVbiosVersion(
    device: NvmlDevice,
    version: *mut c_char,
    length: u32,
) -> Answer {
    whole(device)?;
    put_text(version, length, "92.00.45.00.03")
}

pub(crate) fn nvmlDeviceGetInforomImageVersion(
    device: NvmlDevice,
    version: *mut c_char,
    length: u32,
) -> Answer {
    whole(device)?;
    put_text(version, length, "1001.0200.00.03")
}

pub(crate) fn nvmlDeviceGetInforomVersion(
    device: NvmlDevice,
    object: u32,
    version: *mut c_char,
    length: u32,
) -> Answer {
    whole(device)?;
    match object {
        0 => put_text(version, length, "2.0"),
        1 => put_text(version, length, "6.16"),
        2 => Err(NvmlReturn::NOT_SUPPORTED),
        _ => Err(NvmlReturn::INVALID_ARGUMENT),
    }
}

// The capabilities of a device.

pub(crate) fn nvmlDeviceGetArchitecture(device: NvmlDevice, architecture: *mut u32) -> Answer {
    put(
        architecture,
        match target(device)?.gpu().capability() {
            (3, _) => 2,
            (5, _) => 3,
            (6, _) => 4,
            (7, 0..=4) => 5,
            (7, _) => 6,
            (8, 9) => 8,
            (8, _) => 7,
            (9, _) => 9,
            (10.., _) => 10,
            _ => u32::MAX,
        },
    )
}

pub(crate) fn nvmlDeviceGetCudaComputeCapability(
    device: NvmlDevice,
    major: *mut i32,
    minor: *mut i32,
) -> Answer {
    let capability = target(device)?.gpu().capability();
    put(major, capability.0)?;
    put(minor, capability.1)
}

pub(crate) fn nvmlDeviceGetNumGpuCores(device: NvmlDevice, cores: *mut u32) -> Answer {
    put(cores, whole(device)?.multiprocessors() * 64)
}

pub(crate) fn nvmlDeviceGetBoardId(device: NvmlDevice, id: *mut u32) -> Answer {
    put(id, whole(device)?.pci().bus << 8)
}
