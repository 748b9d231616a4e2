//! libnvidia-ml.so.1 of the simulated board: NVML over `cuda_sim`, with every name that the real
//! library of the board's driver exports. A function that is not simulated answers
//! `NVML_ERROR_NOT_SUPPORTED`, as a real GPU may. On the board the library changes only how a GPU in MIG mode is cut.
#![allow(non_snake_case, reason = "the names are the vendor's")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    reason = "small numbers of a simulator at a C border; what is indexed was bounded by `state`"
)]

mod answers;
mod border;
mod device;
mod event;
mod gpu;
mod late;
mod load;
mod mig;
mod newer;
mod process;
mod state;
mod system;

use cuda_api::nvml::*;

macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        /// See the vendor's documentation of NVML.
        ///
        /// # Safety
        /// As in C: pointers are NULL or point to what the documentation says.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> NvmlReturn {
            match state::toll(stringify!($name)).and_then(|()| answers::$name($($arg),*)) {
                Ok(()) => NvmlReturn::SUCCESS,
                Err(code) => code,
            }
        }
    )*};
}
cuda_api::nvml_functions!(exports);

macro_rules! not_supported {
    ($($name:ident)*) => {$(
        /// Not simulated. The arguments are not looked at, so the signature does not matter.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C-unwind" fn $name() -> NvmlReturn {
            NvmlReturn::NOT_SUPPORTED
        }
    )*};
}

/// Why `code` came back, as text that lives for ever.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C-unwind" fn nvmlErrorString(code: NvmlReturn) -> *const c_char {
    code.text().unwrap_or(c"Unknown Error").as_ptr()
}

not_supported! {
    nvmlComputeInstanceGetInfo nvmlDeviceClearAccountingPids nvmlDeviceClearCpuAffinity
    nvmlDeviceClearEccErrorCounts nvmlDeviceClearFieldValues nvmlDeviceDiscoverGpus
    nvmlDeviceFreezeNvLinkUtilizationCounter nvmlDeviceGetActiveVgpus
    nvmlDeviceGetAdaptiveClockInfoStatus nvmlDeviceGetBridgeChipInfo nvmlDeviceGetC2cModeInfoV
    nvmlDeviceGetClkMonStatus nvmlDeviceGetConfComputeGpuAttestationReport
    nvmlDeviceGetConfComputeGpuCertificate nvmlDeviceGetConfComputeMemSizeInfo
    nvmlDeviceGetConfComputeProtectedMemoryUsage nvmlDeviceGetCreatableVgpus
    nvmlDeviceGetDetailedEccErrors nvmlDeviceGetDriverModel nvmlDeviceGetDynamicPstatesInfo
    nvmlDeviceGetEncoderSessions nvmlDeviceGetFBCSessions nvmlDeviceGetFBCStats
    nvmlDeviceGetFanControlPolicy_v2 nvmlDeviceGetGpcClkMinMaxVfOffset
    nvmlDeviceGetGpcClkVfOffset nvmlDeviceGetGpuFabricInfo nvmlDeviceGetGpuFabricInfoV
    nvmlDeviceGetGpuOperationMode nvmlDeviceGetGridLicensableFeatures
    nvmlDeviceGetGridLicensableFeatures_v2 nvmlDeviceGetGridLicensableFeatures_v3
    nvmlDeviceGetGridLicensableFeatures_v4 nvmlDeviceGetGspFirmwareMode
    nvmlDeviceGetGspFirmwareVersion nvmlDeviceGetHostVgpuMode nvmlDeviceGetLastBBXFlushTime
    nvmlDeviceGetMemClkMinMaxVfOffset nvmlDeviceGetMemClkVfOffset nvmlDeviceGetNvLinkCapability
    nvmlDeviceGetNvLinkErrorCounter nvmlDeviceGetNvLinkRemotePciInfo
    nvmlDeviceGetNvLinkUtilizationControl nvmlDeviceGetNvLinkUtilizationCounter
    nvmlDeviceGetPgpuMetadataString nvmlDeviceGetSramEccErrorStatus nvmlDeviceGetSupportedVgpus
    nvmlDeviceGetThermalSettings nvmlDeviceGetVgpuCapabilities
    nvmlDeviceGetVgpuHeterogeneousMode nvmlDeviceGetVgpuInstancesUtilizationInfo
    nvmlDeviceGetVgpuMetadata nvmlDeviceGetVgpuProcessUtilization
    nvmlDeviceGetVgpuProcessesUtilizationInfo nvmlDeviceGetVgpuSchedulerCapabilities
    nvmlDeviceGetVgpuSchedulerLog nvmlDeviceGetVgpuSchedulerState
    nvmlDeviceGetVgpuTypeCreatablePlacements nvmlDeviceGetVgpuTypeSupportedPlacements
    nvmlDeviceGetVgpuUtilization nvmlDeviceModifyDrainState nvmlDeviceQueryDrainState
    nvmlDeviceRemoveGpu nvmlDeviceRemoveGpu_v2 nvmlDeviceResetApplicationsClocks
    nvmlDeviceResetGpuLockedClocks nvmlDeviceResetMemoryLockedClocks
    nvmlDeviceResetNvLinkErrorCounters nvmlDeviceResetNvLinkUtilizationCounter
    nvmlDeviceSetAPIRestriction nvmlDeviceSetAccountingMode nvmlDeviceSetApplicationsClocks
    nvmlDeviceSetAutoBoostedClocksEnabled nvmlDeviceSetComputeMode
    nvmlDeviceSetConfComputeUnprotectedMemSize nvmlDeviceSetCpuAffinity
    nvmlDeviceSetDefaultAutoBoostedClocksEnabled nvmlDeviceSetDefaultFanSpeed_v2
    nvmlDeviceSetDriverModel nvmlDeviceSetEccMode nvmlDeviceSetFanControlPolicy
    nvmlDeviceSetFanSpeed_v2 nvmlDeviceSetGpcClkVfOffset nvmlDeviceSetGpuLockedClocks
    nvmlDeviceSetGpuOperationMode nvmlDeviceSetMemClkVfOffset nvmlDeviceSetMemoryLockedClocks
    nvmlDeviceSetMigMode nvmlDeviceSetNvLinkDeviceLowPowerThreshold
    nvmlDeviceSetNvLinkUtilizationControl nvmlDeviceSetPersistenceMode
    nvmlDeviceSetPowerManagementLimit nvmlDeviceSetPowerManagementLimit_v2
    nvmlDeviceSetTemperatureThreshold nvmlDeviceSetVgpuCapabilities
    nvmlDeviceSetVgpuHeterogeneousMode nvmlDeviceSetVgpuSchedulerState
    nvmlDeviceSetVirtualizationMode nvmlDeviceValidateInforom nvmlGetBlacklistDeviceInfoByIndex
    nvmlGetExcludedDeviceInfoByIndex nvmlGetVgpuCompatibility nvmlGetVgpuDriverCapabilities
    nvmlGetVgpuVersion nvmlGpmMetricsGet nvmlGpmMigSampleGet nvmlGpmSampleAlloc
    nvmlGpmSampleFree nvmlGpmSampleGet nvmlGpmSetStreamingEnabled
    nvmlGpuInstanceCreateComputeInstanceWithPlacement
    nvmlGpuInstanceGetComputeInstancePossiblePlacements
    nvmlGpuInstanceGetComputeInstanceProfileInfoV
    nvmlGpuInstanceGetComputeInstanceRemainingCapacity nvmlSetVgpuVersion
    nvmlSystemGetConfComputeCapabilities nvmlSystemGetConfComputeGpusReadyState
    nvmlSystemGetConfComputeKeyRotationThresholdInfo nvmlSystemGetConfComputeSettings
    nvmlSystemGetConfComputeState nvmlSystemGetNvlinkBwMode
    nvmlSystemSetConfComputeGpusReadyState nvmlSystemSetConfComputeKeyRotationThresholdInfo
    nvmlSystemSetNvlinkBwMode nvmlUnitGetDevices nvmlUnitGetFanSpeedInfo
    nvmlUnitGetHandleByIndex nvmlUnitGetLedState nvmlUnitGetPsuInfo nvmlUnitGetTemperature
    nvmlUnitGetUnitInfo nvmlUnitSetLedState nvmlVgpuInstanceClearAccountingPids
    nvmlVgpuInstanceGetAccountingMode nvmlVgpuInstanceGetAccountingPids
    nvmlVgpuInstanceGetAccountingStats nvmlVgpuInstanceGetEccMode
    nvmlVgpuInstanceGetEncoderCapacity nvmlVgpuInstanceGetEncoderSessions
    nvmlVgpuInstanceGetEncoderStats nvmlVgpuInstanceGetFBCSessions nvmlVgpuInstanceGetFBCStats
    nvmlVgpuInstanceGetFbUsage nvmlVgpuInstanceGetFrameRateLimit
    nvmlVgpuInstanceGetGpuInstanceId nvmlVgpuInstanceGetGpuPciId nvmlVgpuInstanceGetLicenseInfo
    nvmlVgpuInstanceGetLicenseInfo_v2 nvmlVgpuInstanceGetLicenseStatus
    nvmlVgpuInstanceGetMdevUUID nvmlVgpuInstanceGetMetadata nvmlVgpuInstanceGetPlacementId
    nvmlVgpuInstanceGetType nvmlVgpuInstanceGetUUID nvmlVgpuInstanceGetVmDriverVersion
    nvmlVgpuInstanceGetVmID nvmlVgpuInstanceSetEncoderCapacity nvmlVgpuTypeGetCapabilities
    nvmlVgpuTypeGetClass nvmlVgpuTypeGetDeviceID nvmlVgpuTypeGetFbReservation
    nvmlVgpuTypeGetFrameRateLimit nvmlVgpuTypeGetFramebufferSize
    nvmlVgpuTypeGetGpuInstanceProfileId nvmlVgpuTypeGetGspHeapSize nvmlVgpuTypeGetLicense
    nvmlVgpuTypeGetMaxInstances nvmlVgpuTypeGetMaxInstancesPerVm nvmlVgpuTypeGetName
    nvmlVgpuTypeGetNumDisplayHeads nvmlVgpuTypeGetResolution nvmlInternalGetExportTable
}
