//! NVML as its callers see it: the one table of signatures. The words are in `nvml_types.rs`, the structures in
//! `nvml_structs.rs`. Nothing here calls NVML or decides anything.

pub use crate::nvml_structs::*;
pub use crate::nvml_types::*;

/// Hands each row of NVML's signatures to `$callback!`. All of them return [`NvmlReturn`]; the two
/// that do not (`nvmlErrorString`) or whose type is not public (`nvmlInternalGetExportTable`)
/// are left out. A row for every symbol that a hook or the simulated library implements; types are
/// resolved where the macro is used (`use cuda_api::nvml::*`).
#[macro_export]
macro_rules! nvml_functions {
    ($callback:ident) => {
        $callback! {
            fn nvmlComputeInstanceDestroy(compute_instance: NvmlComputeInstance);
            fn nvmlComputeInstanceGetInfo_v2(compute_instance: NvmlComputeInstance, info: *mut NvmlComputeInstanceInfo);
            fn nvmlDeviceCreateGpuInstance(device: NvmlDevice, profile_id: u32, gpu_instance: *mut NvmlGpuInstance);
            fn nvmlDeviceCreateGpuInstanceWithPlacement(device: NvmlDevice, profile_id: u32, placement: *const NvmlInstancePlacement, gpu_instance: *mut NvmlGpuInstance);
            fn nvmlDeviceGetAPIRestriction(device: NvmlDevice, api_type: u32, is_restricted: *mut u32);
            fn nvmlDeviceGetAccountingBufferSize(device: NvmlDevice, buffer_size: *mut u32);
            fn nvmlDeviceGetAccountingMode(device: NvmlDevice, mode: *mut u32);
            fn nvmlDeviceGetAccountingPids(device: NvmlDevice, count: *mut u32, pids: *mut u32);
            fn nvmlDeviceGetAccountingStats(device: NvmlDevice, pid: u32, stats: *mut NvmlAccountingStats);
            fn nvmlDeviceGetAccountingStats_v2(device: NvmlDevice, stats: *mut NvmlAccountingStatsV2);
            fn nvmlDeviceGetApplicationsClock(device: NvmlDevice, clock_type: u32, clock_mhz: *mut u32);
            fn nvmlDeviceGetArchitecture(device: NvmlDevice, arch: *mut u32);
            fn nvmlDeviceGetAttributes(device: NvmlDevice, attributes: *mut NvmlDeviceAttributes);
            fn nvmlDeviceGetAttributes_v2(device: NvmlDevice, attributes: *mut NvmlDeviceAttributes);
            fn nvmlDeviceGetAutoBoostedClocksEnabled(device: NvmlDevice, is_enabled: *mut u32, default_is_enabled: *mut u32);
            fn nvmlDeviceGetBAR1MemoryInfo(device: NvmlDevice, bar1_memory: *mut NvmlBar1Memory);
            fn nvmlDeviceGetBoardId(device: NvmlDevice, board_id: *mut u32);
            fn nvmlDeviceGetBoardPartNumber(device: NvmlDevice, part_number: *mut c_char, length: u32);
            fn nvmlDeviceGetBrand(device: NvmlDevice, kind: *mut u32);
            fn nvmlDeviceGetBusType(device: NvmlDevice, kind: *mut u32);
            fn nvmlDeviceGetClock(device: NvmlDevice, clock_type: u32, clock_id: u32, clock_mhz: *mut u32);
            fn nvmlDeviceGetClockInfo(device: NvmlDevice, kind: u32, clock: *mut u32);
            fn nvmlDeviceGetComputeInstanceId(device: NvmlDevice, id: *mut u32);
            fn nvmlDeviceGetComputeMode(device: NvmlDevice, mode: *mut u32);
            fn nvmlDeviceGetComputeRunningProcesses(device: NvmlDevice, info_count: *mut u32, infos: *mut NvmlProcessInfoV1);
            fn nvmlDeviceGetComputeRunningProcesses_v2(device: NvmlDevice, info_count: *mut u32, infos: *mut NvmlProcessInfo);
            fn nvmlDeviceGetComputeRunningProcesses_v3(device: NvmlDevice, info_count: *mut u32, infos: *mut NvmlProcessInfo);
            fn nvmlDeviceGetCount(device_count: *mut u32);
            fn nvmlDeviceGetCount_v2(device_count: *mut u32);
            fn nvmlDeviceGetCpuAffinity(device: NvmlDevice, cpu_set_size: u32, cpu_set: *mut c_ulong);
            fn nvmlDeviceGetCpuAffinityWithinScope(device: NvmlDevice, cpu_set_size: u32, cpu_set: *mut c_ulong, scope: u32);
            fn nvmlDeviceGetCudaComputeCapability(device: NvmlDevice, major: *mut i32, minor: *mut i32);
            fn nvmlDeviceGetCurrPcieLinkGeneration(device: NvmlDevice, curr_link_gen: *mut u32);
            fn nvmlDeviceGetCurrPcieLinkWidth(device: NvmlDevice, curr_link_width: *mut u32);
            fn nvmlDeviceGetCurrentClocksEventReasons(device: NvmlDevice, clocks_event_reasons: *mut u64);
            fn nvmlDeviceGetCurrentClocksThrottleReasons(device: NvmlDevice, clocks_throttle_reasons: *mut u64);
            fn nvmlDeviceGetDecoderUtilization(device: NvmlDevice, utilization: *mut u32, sampling_period_us: *mut u32);
            fn nvmlDeviceGetDefaultApplicationsClock(device: NvmlDevice, clock_type: u32, clock_mhz: *mut u32);
            fn nvmlDeviceGetDefaultEccMode(device: NvmlDevice, default_mode: *mut u32);
            fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig_device: NvmlDevice, device: *mut NvmlDevice);
            fn nvmlDeviceGetDisplayActive(device: NvmlDevice, is_active: *mut u32);
            fn nvmlDeviceGetDisplayMode(device: NvmlDevice, display: *mut u32);
            fn nvmlDeviceGetEccMode(device: NvmlDevice, current: *mut u32, pending: *mut u32);
            fn nvmlDeviceGetEncoderCapacity(device: NvmlDevice, encoder_query_type: u32, encoder_capacity: *mut u32);
            fn nvmlDeviceGetEncoderStats(device: NvmlDevice, session_count: *mut u32, average_fps: *mut u32, average_latency: *mut u32);
            fn nvmlDeviceGetEncoderUtilization(device: NvmlDevice, utilization: *mut u32, sampling_period_us: *mut u32);
            fn nvmlDeviceGetEnforcedPowerLimit(device: NvmlDevice, limit: *mut u32);
            fn nvmlDeviceGetFanSpeed(device: NvmlDevice, speed: *mut u32);
            fn nvmlDeviceGetFanSpeed_v2(device: NvmlDevice, fan: u32, speed: *mut u32);
            fn nvmlDeviceGetFieldValues(device: NvmlDevice, values_count: i32, values: *mut NvmlFieldValue);
            fn nvmlDeviceGetGpuInstanceById(device: NvmlDevice, id: u32, gpu_instance: *mut NvmlGpuInstance);
            fn nvmlDeviceGetGpuInstanceId(device: NvmlDevice, id: *mut u32);
            fn nvmlDeviceGetGpuInstancePossiblePlacements(device: NvmlDevice, profile_id: u32, placements: *mut NvmlInstancePlacement, count: *mut u32);
            fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(device: NvmlDevice, profile_id: u32, placements: *mut NvmlInstancePlacement, count: *mut u32);
            fn nvmlDeviceGetGpuInstanceProfileInfo(device: NvmlDevice, profile: u32, info: *mut NvmlGpuInstanceProfileInfo);
            fn nvmlDeviceGetGpuInstanceProfileInfoV(device: NvmlDevice, profile: u32, info: *mut NvmlGpuInstanceProfileInfoV2);
            fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: NvmlDevice, profile_id: u32, count: *mut u32);
            fn nvmlDeviceGetGpuInstances(device: NvmlDevice, profile_id: u32, gpu_instances: *mut NvmlGpuInstance, count: *mut u32);
            fn nvmlDeviceGetGpuMaxPcieLinkGeneration(device: NvmlDevice, max_link_gen_device: *mut u32);
            fn nvmlDeviceGetGraphicsRunningProcesses(device: NvmlDevice, info_count: *mut u32, infos: *mut NvmlProcessInfoV1);
            fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: NvmlDevice, info_count: *mut u32, infos: *mut NvmlProcessInfo);
            fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: NvmlDevice, info_count: *mut u32, infos: *mut NvmlProcessInfo);
            fn nvmlDeviceGetHandleByIndex(index: u32, device: *mut NvmlDevice);
            fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: *mut NvmlDevice);
            fn nvmlDeviceGetHandleByPciBusId(pci_bus_id: *const c_char, device: *mut NvmlDevice);
            fn nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id: *const c_char, device: *mut NvmlDevice);
            fn nvmlDeviceGetHandleBySerial(serial: *const c_char, device: *mut NvmlDevice);
            fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut NvmlDevice);
            fn nvmlDeviceGetHandleByUUIDV(uuid: *const NvmlUuid, device: *mut NvmlDevice);
            fn nvmlDeviceGetIndex(device: NvmlDevice, index: *mut u32);
            fn nvmlDeviceGetInforomConfigurationChecksum(device: NvmlDevice, checksum: *mut u32);
            fn nvmlDeviceGetInforomImageVersion(device: NvmlDevice, version: *mut c_char, length: u32);
            fn nvmlDeviceGetInforomVersion(device: NvmlDevice, object: u32, version: *mut c_char, length: u32);
            fn nvmlDeviceGetIrqNum(device: NvmlDevice, irq_num: *mut u32);
            fn nvmlDeviceGetJpgUtilization(device: NvmlDevice, utilization: *mut u32, sampling_period_us: *mut u32);
            fn nvmlDeviceGetMPSComputeRunningProcesses(device: NvmlDevice, info_count: *mut u32, infos: *mut NvmlProcessInfoV1);
            fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: NvmlDevice, info_count: *mut u32, infos: *mut NvmlProcessInfo);
            fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: NvmlDevice, info_count: *mut u32, infos: *mut NvmlProcessInfo);
            fn nvmlDeviceGetMaxClockInfo(device: NvmlDevice, kind: u32, clock: *mut u32);
            fn nvmlDeviceGetMaxCustomerBoostClock(device: NvmlDevice, clock_type: u32, clock_mhz: *mut u32);
            fn nvmlDeviceGetMaxMigDeviceCount(device: NvmlDevice, count: *mut u32);
            fn nvmlDeviceGetMaxPcieLinkGeneration(device: NvmlDevice, max_link_gen: *mut u32);
            fn nvmlDeviceGetMaxPcieLinkWidth(device: NvmlDevice, max_link_width: *mut u32);
            fn nvmlDeviceGetMemoryAffinity(device: NvmlDevice, node_set_size: u32, node_set: *mut c_ulong, scope: u32);
            fn nvmlDeviceGetMemoryBusWidth(device: NvmlDevice, bus_width: *mut u32);
            fn nvmlDeviceGetMemoryErrorCounter(device: NvmlDevice, error_type: u32, counter_type: u32, location_type: u32, count: *mut u64);
            fn nvmlDeviceGetMemoryInfo(device: NvmlDevice, memory: *mut NvmlMemory);
            fn nvmlDeviceGetMemoryInfo_v2(device: NvmlDevice, memory: *mut NvmlMemoryV2);
            fn nvmlDeviceGetMemoryLimits_v1(device: NvmlDevice, limits: *mut NvmlMemoryLimits);
            fn nvmlDeviceGetMigDeviceHandleByIndex(device: NvmlDevice, index: u32, mig_device: *mut NvmlDevice);
            fn nvmlDeviceGetMigMode(device: NvmlDevice, current_mode: *mut u32, pending_mode: *mut u32);
            fn nvmlDeviceGetMinMaxClockOfPState(device: NvmlDevice, kind: u32, pstate: u32, min_clock_mhz: *mut u32, max_clock_mhz: *mut u32);
            fn nvmlDeviceGetMinMaxFanSpeed(device: NvmlDevice, min_speed: *mut u32, max_speed: *mut u32);
            fn nvmlDeviceGetMinorNumber(device: NvmlDevice, minor_number: *mut u32);
            fn nvmlDeviceGetModuleId(device: NvmlDevice, module_id: *mut u32);
            fn nvmlDeviceGetMultiGpuBoard(device: NvmlDevice, multi_gpu_bool: *mut u32);
            fn nvmlDeviceGetName(device: NvmlDevice, name: *mut c_char, length: u32);
            fn nvmlDeviceGetNumFans(device: NvmlDevice, num_fans: *mut u32);
            fn nvmlDeviceGetNumGpuCores(device: NvmlDevice, num_cores: *mut u32);
            fn nvmlDeviceGetNumaNodeId(device: NvmlDevice, node: *mut u32);
            fn nvmlDeviceGetNvLinkRemoteDeviceType(device: NvmlDevice, link: u32, device_type: *mut u32);
            fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: NvmlDevice, link: u32, pci: *mut NvmlPciInfo);
            fn nvmlDeviceGetNvLinkState(device: NvmlDevice, link: u32, is_active: *mut u32);
            fn nvmlDeviceGetNvLinkVersion(device: NvmlDevice, link: u32, version: *mut u32);
            fn nvmlDeviceGetOfaUtilization(device: NvmlDevice, utilization: *mut u32, sampling_period_us: *mut u32);
            fn nvmlDeviceGetP2PStatus(device1: NvmlDevice, device2: NvmlDevice, p2p_index: u32, p2p_status: *mut u32);
            fn nvmlDeviceGetPciInfo(device: NvmlDevice, pci: *mut NvmlPciInfoV1);
            fn nvmlDeviceGetPciInfoExt(device: NvmlDevice, pci: *mut NvmlPciInfoExt);
            fn nvmlDeviceGetPciInfo_v2(device: NvmlDevice, pci: *mut NvmlPciInfoV2);
            fn nvmlDeviceGetPciInfo_v3(device: NvmlDevice, pci: *mut NvmlPciInfo);
            fn nvmlDeviceGetPcieLinkMaxSpeed(device: NvmlDevice, max_speed: *mut u32);
            fn nvmlDeviceGetPcieReplayCounter(device: NvmlDevice, value: *mut u32);
            fn nvmlDeviceGetPcieSpeed(device: NvmlDevice, pcie_speed: *mut u32);
            fn nvmlDeviceGetPcieThroughput(device: NvmlDevice, counter: u32, value: *mut u32);
            fn nvmlDeviceGetPerformanceState(device: NvmlDevice, state: *mut u32);
            fn nvmlDeviceGetPersistenceMode(device: NvmlDevice, mode: *mut u32);
            fn nvmlDeviceGetPowerManagementDefaultLimit(device: NvmlDevice, default_limit: *mut u32);
            fn nvmlDeviceGetPowerManagementLimit(device: NvmlDevice, limit: *mut u32);
            fn nvmlDeviceGetPowerManagementLimitConstraints(device: NvmlDevice, min_limit: *mut u32, max_limit: *mut u32);
            fn nvmlDeviceGetPowerManagementMode(device: NvmlDevice, mode: *mut u32);
            fn nvmlDeviceGetPowerSource(device: NvmlDevice, power_source: *mut u32);
            fn nvmlDeviceGetPowerState(device: NvmlDevice, state: *mut u32);
            fn nvmlDeviceGetPowerUsage(device: NvmlDevice, power: *mut u32);
            fn nvmlDeviceGetProcessUtilization(device: NvmlDevice, utilization: *mut NvmlProcessUtilizationSample, process_samples_count: *mut u32, last_seen_time_stamp: u64);
            fn nvmlDeviceGetProcessesUtilizationInfo(device: NvmlDevice, info: *mut NvmlProcessesUtilizationInfo);
            fn nvmlDeviceGetRemappedRows(device: NvmlDevice, corr_rows: *mut u32, unc_rows: *mut u32, is_pending: *mut u32, failure_occurred: *mut u32);
            fn nvmlDeviceGetRetiredPages(device: NvmlDevice, cause: u32, page_count: *mut u32, addresses: *mut u64);
            fn nvmlDeviceGetRetiredPagesPendingStatus(device: NvmlDevice, is_pending: *mut u32);
            fn nvmlDeviceGetRetiredPages_v2(device: NvmlDevice, cause: u32, page_count: *mut u32, addresses: *mut u64, timestamps: *mut u64);
            fn nvmlDeviceGetRowRemapperHistogram(device: NvmlDevice, values: *mut NvmlRowRemapperHistogram);
            fn nvmlDeviceGetRunningProcessDetailList(device: NvmlDevice, list: *mut NvmlProcessDetailList);
            fn nvmlDeviceGetSamples(device: NvmlDevice, kind: u32, last_seen_time_stamp: u64, sample_val_type: *mut u32, sample_count: *mut u32, samples: *mut NvmlSample);
            fn nvmlDeviceGetSerial(device: NvmlDevice, serial: *mut c_char, length: u32);
            fn nvmlDeviceGetSupportedClocksEventReasons(device: NvmlDevice, supported_clocks_event_reasons: *mut u64);
            fn nvmlDeviceGetSupportedClocksThrottleReasons(device: NvmlDevice, supported_clocks_throttle_reasons: *mut u64);
            fn nvmlDeviceGetSupportedEventTypes(device: NvmlDevice, event_types: *mut u64);
            fn nvmlDeviceGetSupportedGraphicsClocks(device: NvmlDevice, memory_clock_mhz: u32, count: *mut u32, clocks_mhz: *mut u32);
            fn nvmlDeviceGetSupportedMemoryClocks(device: NvmlDevice, count: *mut u32, clocks_mhz: *mut u32);
            fn nvmlDeviceGetSupportedPerformanceStates(device: NvmlDevice, pstates: *mut u32, size: u32);
            fn nvmlDeviceGetTargetFanSpeed(device: NvmlDevice, fan: u32, target_speed: *mut u32);
            fn nvmlDeviceGetTemperature(device: NvmlDevice, sensor_type: u32, temp: *mut u32);
            fn nvmlDeviceGetTemperatureThreshold(device: NvmlDevice, threshold_type: u32, temp: *mut u32);
            fn nvmlDeviceGetTopologyCommonAncestor(device1: NvmlDevice, device2: NvmlDevice, path_info: *mut u32);
            fn nvmlDeviceGetTopologyNearestGpus(device: NvmlDevice, level: u32, count: *mut u32, device_array: *mut NvmlDevice);
            fn nvmlDeviceGetTotalEccErrors(device: NvmlDevice, error_type: u32, counter_type: u32, ecc_counts: *mut u64);
            fn nvmlDeviceGetTotalEnergyConsumption(device: NvmlDevice, energy: *mut u64);
            fn nvmlDeviceGetUUID(device: NvmlDevice, uuid: *mut c_char, length: u32);
            fn nvmlDeviceGetUtilizationRates(device: NvmlDevice, utilization: *mut NvmlUtilization);
            fn nvmlDeviceGetVbiosVersion(device: NvmlDevice, version: *mut c_char, length: u32);
            fn nvmlDeviceGetViolationStatus(device: NvmlDevice, perf_policy_type: u32, viol_time: *mut NvmlViolationTime);
            fn nvmlDeviceGetVirtualizationMode(device: NvmlDevice, virtual_mode: *mut u32);
            fn nvmlDeviceIsMigDeviceHandle(device: NvmlDevice, is_mig_device: *mut u32);
            fn nvmlDeviceOnSameBoard(device1: NvmlDevice, device2: NvmlDevice, on_same_board: *mut i32);
            fn nvmlDeviceRegisterEvents(device: NvmlDevice, event_types: u64, set: NvmlEventSet);
            fn nvmlDeviceSetMemoryLimits_v1(device: NvmlDevice, limits: *const NvmlSetMemoryLimits);
            fn nvmlEventSetCreate(set: *mut NvmlEventSet);
            fn nvmlEventSetFree(set: NvmlEventSet);
            fn nvmlEventSetRegisterGpuOperationalEvents_v1(set: NvmlEventSet, config: *const NvmlOperationalEventConfig);
            fn nvmlEventSetWait(set: NvmlEventSet, data: *mut NvmlEventData, timeoutms: u32);
            fn nvmlEventSetWait_v2(set: NvmlEventSet, data: *mut NvmlEventData, timeoutms: u32);
            fn nvmlGetBlacklistDeviceCount(device_count: *mut u32);
            fn nvmlGetExcludedDeviceCount(device_count: *mut u32);
            fn nvmlGpmQueryDeviceSupport(device: NvmlDevice, gpm_support: *mut NvmlGpmSupport);
            fn nvmlGpmQueryIfStreamingEnabled(device: NvmlDevice, state: *mut u32);
            fn nvmlGpuInstanceCreateComputeInstance(gpu_instance: NvmlGpuInstance, profile_id: u32, compute_instance: *mut NvmlComputeInstance);
            fn nvmlGpuInstanceDestroy(gpu_instance: NvmlGpuInstance);
            fn nvmlGpuInstanceGetComputeInstanceById(gpu_instance: NvmlGpuInstance, id: u32, compute_instance: *mut NvmlComputeInstance);
            fn nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance: NvmlGpuInstance, profile: u32, engine_profile: u32, info: *mut NvmlComputeInstanceProfileInfo);
            fn nvmlGpuInstanceGetComputeInstances(gpu_instance: NvmlGpuInstance, profile_id: u32, compute_instances: *mut NvmlComputeInstance, count: *mut u32);
            fn nvmlGpuInstanceGetInfo(gpu_instance: NvmlGpuInstance, info: *mut NvmlGpuInstanceInfo);
            fn nvmlInit();
            fn nvmlInitWithFlags(flags: u32);
            fn nvmlInit_v2();
            fn nvmlShutdown();
            fn nvmlSystemGetCudaDriverVersion(cuda_driver_version: *mut i32);
            fn nvmlSystemGetCudaDriverVersion_v2(cuda_driver_version: *mut i32);
            fn nvmlSystemGetDriverVersion(version: *mut c_char, length: u32);
            fn nvmlSystemGetHicVersion(hwbc_count: *mut u32, hwbc_entries: *mut NvmlHwbcEntry);
            fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: u32);
            fn nvmlSystemGetProcessName(pid: u32, name: *mut c_char, length: u32);
            fn nvmlSystemGetTopologyGpuSet(cpu_number: u32, count: *mut u32, device_array: *mut NvmlDevice);
            fn nvmlUnitGetCount(unit_count: *mut u32);
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! names {
        ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
            const NAMES: &[&str] = &[$(stringify!($name)),*];
            // A row that names a type which does not exist, or misspells one, does not compile.
            $(const _: Option<unsafe extern "C-unwind" fn($($ty),*) -> NvmlReturn> = None;)*
        };
    }
    nvml_functions!(names);

    #[test]
    fn the_rows_are_sorted_and_each_name_stands_once() {
        assert!(NAMES.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_version_word_is_the_size_with_the_version_above() {
        assert_eq!(NvmlMemoryV2::VERSION, 0x0200_0028);
        assert_eq!(NvmlProcessDetailList::VERSION, 0x0100_0018);
    }

    #[test]
    fn an_unknown_code_keeps_its_number() {
        assert_eq!(NvmlReturn(4242).text(), None);
        assert_eq!(
            NvmlReturn::INSUFFICIENT_SIZE.text(),
            Some(c"Insufficient Size")
        );
    }
}
