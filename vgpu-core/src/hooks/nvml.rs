//! NVML's functions.

use core::ffi::c_char;

use cuda_api::nvml::*;

use crate::driver::genuine::nvml as driver;
use crate::driver::hook::{hooks, index};
use crate::rules::nvml;

pub(super) const INDEX: [u16; 256] = index(NAMES);

hooks! {
    nvml -> NvmlReturn, default;

    /// Handles are looked at again afterwards.
    fn nvmlInit() => { _, nvml::after_init() }
    /// Handles are looked at again afterwards.
    fn nvmlInit_v2() => { _, nvml::after_init() }
    /// Handles are looked at again afterwards.
    fn nvmlInitWithFlags(flags: u32) => { _, nvml::after_init() }

    /// The container's share, and what it has used of it.
    fn nvmlDeviceGetMemoryInfo(device: NvmlDevice, memory: *mut NvmlMemory)
        => { _, nvml::after_memory(device, memory) }
    /// The container's share, and what it has used of it.
    fn nvmlDeviceGetMemoryInfo_v2(device: NvmlDevice, memory: *mut NvmlMemoryV2)
        => { _, nvml::after_memory_v2(device, memory) }

    /// The container's share and what it has used of it, whichever control group the caller names.
    fn nvmlDeviceGetMemoryLimits_v1(device: NvmlDevice, limits: *mut NvmlMemoryLimits)
        => { _, nvml::after_limits(device, limits) }
    /// Not permitted to a container, as to a program that is not root.
    fn nvmlDeviceSetMemoryLimits_v1(device: NvmlDevice, limits: *const NvmlSetMemoryLimits)
        => { nvml::before_set_limits(device), _ }

    /// The container's share of the window through which the CPU sees the GPU's memory.
    fn nvmlDeviceGetBAR1MemoryInfo(device: NvmlDevice, bar1_memory: *mut NvmlBar1Memory)
        => { _, nvml::after_bar1(device, bar1_memory) }

    /// The GPUs that the container sees.
    fn nvmlDeviceGetCount(device_count: *mut u32) => { _, nvml::after_count(device_count) }
    /// The GPUs that the container sees.
    fn nvmlDeviceGetCount_v2(device_count: *mut u32) => { _, nvml::after_count(device_count) }
    /// By the container's numbering.
    fn nvmlDeviceGetHandleByIndex(index: u32, device: *mut NvmlDevice)
        => { _, nvml::after_handle_by_index(index, device) }
    /// By the container's numbering.
    fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: *mut NvmlDevice)
        => { _, nvml::after_handle_by_index(index, device) }
    /// In the container's numbering.
    fn nvmlDeviceGetIndex(device: NvmlDevice, index: *mut u32)
        => { _, nvml::after_index(device, index) }
    /// Not found when the container does not see it.
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut NvmlDevice)
        => { _, nvml::after_handle(device) }
    /// Not found when the container does not see it.
    fn nvmlDeviceGetHandleByUUIDV(uuid: *const NvmlUuid, device: *mut NvmlDevice)
        => { _, nvml::after_handle(device) }
    /// Not found when the container does not see it.
    fn nvmlDeviceGetHandleBySerial(serial: *const c_char, device: *mut NvmlDevice)
        => { _, nvml::after_handle(device) }
    /// Not found when the container does not see it.
    fn nvmlDeviceGetHandleByPciBusId(pci_bus_id: *const c_char, device: *mut NvmlDevice)
        => { _, nvml::after_handle(device) }
    /// Not found when the container does not see it.
    fn nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id: *const c_char, device: *mut NvmlDevice)
        => { _, nvml::after_handle(device) }
    /// Not found when the container does not see it.
    fn nvmlDeviceGetMigDeviceHandleByIndex(
        device: NvmlDevice,
        index: u32,
        mig_device: *mut NvmlDevice,
    ) => { _, nvml::after_handle(mig_device) }

    /// Not found when the container does not see the GPU.
    fn nvmlEventSetRegisterGpuOperationalEvents_v1(
        set: NvmlEventSet,
        config: *const NvmlOperationalEventConfig,
    ) => { nvml::before_events_by_uuid(config), _ }

    /// The container's own processes.
    fn nvmlDeviceGetComputeRunningProcesses(
        device: NvmlDevice,
        info_count: *mut u32,
        infos: *mut NvmlProcessInfoV1,
    ) => { nvml::room(info_count), nvml::lists::after_compute(device, info_count, infos) }
    /// The container's own processes.
    fn nvmlDeviceGetComputeRunningProcesses_v2(
        device: NvmlDevice,
        info_count: *mut u32,
        infos: *mut NvmlProcessInfo,
    ) => { nvml::room(info_count), nvml::lists::after_compute(device, info_count, infos) }
    /// The container's own processes.
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: NvmlDevice,
        info_count: *mut u32,
        infos: *mut NvmlProcessInfo,
    ) => { nvml::room(info_count), nvml::lists::after_compute(device, info_count, infos) }
    /// The container's own processes.
    fn nvmlDeviceGetGraphicsRunningProcesses(
        device: NvmlDevice,
        info_count: *mut u32,
        infos: *mut NvmlProcessInfoV1,
    ) => {
        nvml::room(info_count),
        nvml::lists::after_others(
            device, info_count, infos, driver::nvmlDeviceGetGraphicsRunningProcesses
        )
    }
    /// The container's own processes.
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: NvmlDevice,
        info_count: *mut u32,
        infos: *mut NvmlProcessInfo,
    ) => {
        nvml::room(info_count),
        nvml::lists::after_others(
            device, info_count, infos, driver::nvmlDeviceGetGraphicsRunningProcesses_v2
        )
    }
    /// The container's own processes.
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: NvmlDevice,
        info_count: *mut u32,
        infos: *mut NvmlProcessInfo,
    ) => {
        nvml::room(info_count),
        nvml::lists::after_others(
            device, info_count, infos, driver::nvmlDeviceGetGraphicsRunningProcesses_v3
        )
    }
    /// The container's own processes.
    fn nvmlDeviceGetMPSComputeRunningProcesses(
        device: NvmlDevice,
        info_count: *mut u32,
        infos: *mut NvmlProcessInfoV1,
    ) => {
        nvml::room(info_count),
        nvml::lists::after_others(
            device, info_count, infos, driver::nvmlDeviceGetMPSComputeRunningProcesses
        )
    }
    /// The container's own processes.
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: NvmlDevice,
        info_count: *mut u32,
        infos: *mut NvmlProcessInfo,
    ) => {
        nvml::room(info_count),
        nvml::lists::after_others(
            device, info_count, infos, driver::nvmlDeviceGetMPSComputeRunningProcesses_v2
        )
    }
    /// The container's own processes.
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: NvmlDevice,
        info_count: *mut u32,
        infos: *mut NvmlProcessInfo,
    ) => {
        nvml::room(info_count),
        nvml::lists::after_others(
            device, info_count, infos, driver::nvmlDeviceGetMPSComputeRunningProcesses_v3
        )
    }
    /// The container's own processes.
    fn nvmlDeviceGetRunningProcessDetailList(device: NvmlDevice, list: *mut NvmlProcessDetailList)
        => { nvml::lists::room_of_details(list), nvml::lists::after_details(device, list) }

    /// The container's own processes.
    fn nvmlDeviceGetProcessUtilization(
        device: NvmlDevice,
        utilization: *mut NvmlProcessUtilizationSample,
        process_samples_count: *mut u32,
        last_seen_time_stamp: u64,
    ) => {
        nvml::room(process_samples_count),
        nvml::lists::after_samples(device, utilization, process_samples_count, last_seen_time_stamp)
    }
    /// The container's own processes.
    fn nvmlDeviceGetProcessesUtilizationInfo(
        device: NvmlDevice,
        info: *mut NvmlProcessesUtilizationInfo,
    ) => { nvml::lists::room_of_samples(info), nvml::lists::after_samples_info(device, info) }
    /// The share of the device that the container's own processes keep busy, if the driver has figures for each
    /// process.
    fn nvmlDeviceGetUtilizationRates(device: NvmlDevice, utilization: *mut NvmlUtilization)
        => { _, nvml::lists::after_rates(device, utilization) }

    /// The container's own processes.
    fn nvmlDeviceGetAccountingPids(device: NvmlDevice, count: *mut u32, pids: *mut u32)
        => { nvml::room(count), nvml::lists::after_accounting_pids(device, count, pids) }
    /// Of the container's own processes, by the pid that the container knows.
    fn nvmlDeviceGetAccountingStats(device: NvmlDevice, pid: u32, stats: *mut NvmlAccountingStats)
        => { _, nvml::lists::after_accounting_stats(device, pid, stats) }
    /// Of the container's own processes, by the pid that the container knows.
    fn nvmlDeviceGetAccountingStats_v2(device: NvmlDevice, stats: *mut NvmlAccountingStatsV2) => {
        nvml::lists::asked_process(stats), nvml::lists::after_accounting_stats_v2(device, stats)
    }

    /// By the pid that the container knows.
    fn nvmlSystemGetProcessName(pid: u32, name: *mut c_char, length: u32)
        => { _, nvml::names::after_process_name(pid, name, length) }
}
