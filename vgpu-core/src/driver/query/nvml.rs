//! NVML's answers about GPUs and the processes on them.

use core::ffi::CStr;

use cuda_api::CuDevice;
use cuda_api::nvml::{NvmlDevice, NvmlMemory, NvmlProcessInfo, NvmlProcessInfoV1};

use super::devices::device_uuids;
use super::ok;
use crate::driver::genuine::{cuda, nvml};

/// NVML's index of the GPU that a device is, or is a part of.
pub(crate) fn nvml_index(ordinal: i32) -> Option<usize> {
    with_nvml(|| {
        let gpu = nvml_gpu(ordinal)?;
        let mut index = 0;
        // SAFETY: NVML gave this handle just now, and writes to the local `index` alone.
        let asked = unsafe { nvml::nvmlDeviceGetIndex(gpu, &raw mut index) };
        asked.is_success().then(|| usize::try_from(index).ok())?
    })
}

/// The UUID of the GPU that a device is, or is a part of.
pub(crate) fn gpu_uuid(ordinal: i32) -> Option<[u8; 16]> {
    with_nvml(|| {
        let gpu = nvml_gpu(ordinal)?;
        let mut text = [0; 96];
        // SAFETY: 95 bytes of room, so the last one stays zero.
        let asked = unsafe { nvml::nvmlDeviceGetUUID(gpu, text.as_mut_ptr(), 95) };
        if !asked.is_success() {
            return None;
        }
        // SAFETY: ends in a zero, see above.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        parse_uuid(text.to_str().ok()?)
    })
}

/// Processes that NVML lists at most.
const MOST_PROCESSES: usize = 256;

/// All memory of the device that this process holds, as NVML says, bytes. `None` where there is no NVML,
/// or where it does not know this process by the number that it has here (in a pid namespace).
pub(crate) fn own_bytes(ordinal: i32) -> Option<u64> {
    with_nvml(|| {
        let device = nvml_gpu(ordinal)?;
        let bytes = match processes(device)? {
            ListedUse::Known(bytes) => bytes,
            ListedUse::Unknown => return None,
        };
        (bytes != cuda_api::nvml::VALUE_NOT_AVAILABLE).then_some(bytes)
    })
}

/// Memory of the device that is in use, by whichever process, bytes. Needs no context.
pub(crate) fn used_bytes(ordinal: i32) -> Option<u64> {
    with_nvml(|| {
        let device = nvml_gpu(ordinal)?;
        let mut memory = NvmlMemory {
            total: 0,
            free: 0,
            used: 0,
        };
        // SAFETY: NVML gave this handle just now, and writes to the local `memory` alone.
        let asked = unsafe { nvml::nvmlDeviceGetMemoryInfo(device, &raw mut memory) };
        asked
            .is_success()
            .then(|| memory.total.saturating_sub(memory.free))
    })
}

/// The entry of this process in a list.
enum ListedUse {
    Known(u64),
    Unknown,
}

/// Looks this process up in NVML's newest list that there is. `None`: there is no list.
fn processes(device: NvmlDevice) -> Option<ListedUse> {
    const EMPTY: NvmlProcessInfo = NvmlProcessInfo {
        pid: 0,
        used_gpu_memory: 0,
        gpu_instance_id: 0,
        compute_instance_id: 0,
    };
    let me = std::process::id();
    let found = |found: Option<u64>| Some(found.map_or(ListedUse::Unknown, ListedUse::Known));
    let mut infos = [EMPTY; MOST_PROCESSES];
    let mut count = u32::try_from(MOST_PROCESSES).ok()?;
    // SAFETY: room for as many as are asked for.
    let mut asked = unsafe {
        nvml::nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, infos.as_mut_ptr())
    };
    if !asked.is_success() {
        count = u32::try_from(MOST_PROCESSES).ok()?;
        // SAFETY: room for as many as are asked for.
        asked = unsafe {
            nvml::nvmlDeviceGetComputeRunningProcesses_v2(
                device,
                &raw mut count,
                infos.as_mut_ptr(),
            )
        };
    }
    if asked.is_success() {
        let known = infos.iter().take(usize::try_from(count).ok()?);
        let mine = known.filter(|info| info.pid == me);
        return found(mine.map(|info| info.used_gpu_memory).max());
    }
    let mut infos = [NvmlProcessInfoV1 {
        pid: 0,
        used_gpu_memory: 0,
    }; MOST_PROCESSES];
    count = u32::try_from(MOST_PROCESSES).ok()?;
    // SAFETY: room for as many as are asked for.
    let asked = unsafe {
        nvml::nvmlDeviceGetComputeRunningProcesses(device, &raw mut count, infos.as_mut_ptr())
    };
    if !asked.is_success() {
        return None;
    }
    let known = infos.iter().take(usize::try_from(count).ok()?);
    let mine = known.filter(|info| info.pid == me);
    found(mine.map(|info| info.used_gpu_memory).max())
}

/// Whether NVML lists a process on the device, by its number on the machine; `None` if NVML does not answer.
pub(crate) fn lists_process(ordinal: i32, pid: u32) -> Option<bool> {
    const MOST: usize = 256;
    with_nvml(|| {
        let device = nvml_gpu(ordinal)?;
        let mut processes = [NvmlProcessInfo {
            pid: 0,
            used_gpu_memory: 0,
            gpu_instance_id: 0,
            compute_instance_id: 0,
        }; MOST];
        let mut count = u32::try_from(MOST).ok()?;
        // SAFETY: room for as many as are asked for.
        let asked = unsafe {
            nvml::nvmlDeviceGetComputeRunningProcesses_v3(
                device,
                &raw mut count,
                processes.as_mut_ptr(),
            )
        };
        let known = processes.iter().take(usize::try_from(count).ok()?);
        asked
            .is_success()
            .then(|| known.into_iter().any(|info| info.pid == pid))
    })
}

fn with_nvml<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    if !nvml::LIBRARY.ensure() {
        return None;
    }
    // SAFETY: takes nothing; NVML counts its initialisations.
    if !unsafe { nvml::nvmlInit_v2() }.is_success() {
        return None;
    }
    let answer = work();
    // SAFETY: undoes the above.
    let ended = unsafe { nvml::nvmlShutdown() };
    debug_assert!(ended.is_success());
    answer
}

/// NVML's handle of the GPU that a device is, or is a part of: by its place on the bus, which parts
/// of a GPU share with it, else by UUID. Asked for within [`with_nvml`].
fn nvml_gpu(ordinal: i32) -> Option<NvmlDevice> {
    nvml_by_bus(ordinal).or_else(|| {
        let names = device_uuids(ordinal)?;
        let gpus = names.iter().find_map(|name| nvml_by_uuid(b"GPU-", name));
        gpus.or_else(|| {
            names.iter().find_map(|name| {
                let part = nvml_by_uuid(b"MIG-", name)?;
                gpu_of(part)
            })
        })
    })
}

fn nvml_by_bus(ordinal: i32) -> Option<NvmlDevice> {
    let mut place = [0; 32];
    // SAFETY: 31 bytes of room, so the last one stays zero.
    ok(unsafe { cuda::cuDeviceGetPCIBusId(place.as_mut_ptr(), 31, CuDevice(ordinal)) })?;
    let mut device = NvmlDevice::NULL;
    // SAFETY: the last byte of `place` is a zero, see above; NVML writes to the local `device` alone.
    let asked = unsafe { nvml::nvmlDeviceGetHandleByPciBusId_v2(place.as_ptr(), &raw mut device) };
    asked.is_success().then_some(device)
}

fn nvml_by_uuid(prefix: &[u8; 4], uuid: &[u8; 16]) -> Option<NvmlDevice> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0u8; 48];
    let mut room = text.iter_mut();
    for &byte in prefix {
        *room.next()? = byte;
    }
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            *room.next()? = b'-';
        }
        for half in [byte >> 4, byte & 0xf] {
            *room.next()? = *DIGITS.get(usize::from(half))?;
        }
    }
    let mut device = NvmlDevice::NULL;
    // SAFETY: `text` has 48 bytes and at most 40 are written, so a zero follows; NVML writes to `device` alone.
    let asked = unsafe { nvml::nvmlDeviceGetHandleByUUID(text.as_ptr().cast(), &raw mut device) };
    asked.is_success().then_some(device)
}

/// The GPU of a MIG device.
pub(crate) fn gpu_of(handle: NvmlDevice) -> Option<NvmlDevice> {
    let mut gpu = NvmlDevice::NULL;
    // SAFETY: NVML checks the handle, and writes to the local `gpu` alone.
    let result =
        unsafe { nvml::nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle, &raw mut gpu) };
    (result.is_success() && gpu != handle).then_some(gpu)
}

/// The 16 bytes of a UUID (`GPU-…` or `MIG-…`).
pub(crate) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits = text.split_once('-').map_or(text, |(_, digits)| digits);
    let mut digits = digits
        .chars()
        .filter(|&digit| digit != '-')
        .map(|digit| digit.to_digit(16));
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        let value = digits.next()?? << 4 | digits.next()??;
        *byte = u8::try_from(value).ok()?;
    }
    digits.next().is_none().then_some(bytes)
}
