//! NVML's answers about the machine and the driver. Nothing of a single device.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use cuda_api::nvml::*;

use crate::border::{Answer, get, put, put_list, put_text};
use crate::gpu::{self, BoardGpu};
use crate::state::{handle, init, ready, shutdown};

pub(crate) fn nvmlInit() -> Answer {
    init(true)
}

pub(crate) fn nvmlInit_v2() -> Answer {
    init(true)
}

pub(crate) fn nvmlInitWithFlags(flags: u32) -> Answer {
    const NO_GPUS: u32 = 1;
    const NO_ATTACH: u32 = 2;
    if flags & !(NO_GPUS | NO_ATTACH) != 0 {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    init(flags & NO_GPUS == 0)
}

pub(crate) fn nvmlShutdown() -> Answer {
    shutdown()
}

// Version numbers are answered without nvmlInit, as the real library does.
pub(crate) fn nvmlSystemGetCudaDriverVersion(version: *mut i32) -> Answer {
    gpu::open()?;
    put(version, gpu::cuda_version())
}

pub(crate) fn nvmlSystemGetCudaDriverVersion_v2(version: *mut i32) -> Answer {
    nvmlSystemGetCudaDriverVersion(version)
}

pub(crate) fn nvmlSystemGetDriverVersion(version: *mut c_char, length: u32) -> Answer {
    ready()?;
    put_text(version, length, driver_version(gpu::cuda_version()))
}

pub(crate) fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: u32) -> Answer {
    gpu::open()?;
    let cuda = gpu::cuda_version();
    put_text(
        version,
        length,
        &format!("{}.{}", cuda / 1000, driver_version(cuda)),
    )
}

/// Driver releases, each with the newest CUDA version that it reports.
const RELEASES: &[(i32, &str)] = &[
    (11_020, "460.106.00"),
    (11_040, "470.256.02"),
    (11_070, "515.105.01"),
    (12_000, "525.147.05"),
    (12_010, "530.41.03"),
    (12_020, "535.288.01"),
    (12_030, "545.29.06"),
    (12_040, "550.163.01"),
    (12_050, "555.58.02"),
    (12_060, "560.35.05"),
    (12_070, "565.77"),
    (12_080, "570.211.01"),
    (12_090, "575.64.05"),
    (13_000, "580.126.09"),
    (13_030, "590.48.01"),
];

/// The driver release that reports this CUDA version.
fn driver_version(cuda: i32) -> &'static str {
    RELEASES
        .iter()
        .find(|(newest, _)| cuda <= *newest)
        .map_or("615.71.09", |(_, release)| release)
}

pub(crate) fn nvmlSystemGetHicVersion(count: *mut u32, entries: *mut NvmlHwbcEntry) -> Answer {
    ready()?;
    put_list(count, entries, &[])
}

pub(crate) fn nvmlUnitGetCount(count: *mut u32) -> Answer {
    ready()?;
    put(count, 0)
}

pub(crate) fn nvmlGetExcludedDeviceCount(count: *mut u32) -> Answer {
    put(count, 0)
}

pub(crate) fn nvmlGetBlacklistDeviceCount(count: *mut u32) -> Answer {
    put(count, 0)
}

pub(crate) fn nvmlSystemGetProcessName(pid: u32, name: *mut c_char, length: u32) -> Answer {
    ready()?;
    if name.is_null() || length == 0 {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NvmlReturn::NOT_FOUND)?;
    let program = line.split(|&byte| byte == 0).next().unwrap_or_default();
    let mut text = OsStr::from_bytes(program).to_string_lossy().into_owned();
    while text.len() >= length as usize {
        text.pop();
    }
    put_text(name, length, &text)
}

/// Every GPU hangs on the one CPU socket there is.
pub(crate) fn nvmlSystemGetTopologyGpuSet(
    _cpu_number: u32,
    count: *mut u32,
    device_array: *mut NvmlDevice,
) -> Answer {
    ready()?;
    let gpus: Vec<NvmlDevice> = BoardGpu::all().map(|gpu| handle(gpu, None)).collect();
    // Asked with a count of 0, NVML answers with the number alone.
    if get(count)? == 0 {
        return put(count, gpus.len() as u32);
    }
    put_list(count, device_array, &gpus)
}
