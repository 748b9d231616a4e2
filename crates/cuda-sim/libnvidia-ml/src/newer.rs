//! Names that drivers after 550 have, with the CUDA version of the driver that had each first (NVIDIA's bindings for
//! Python name them). Most of them are not simulated: they answer `NOT_SUPPORTED`, as a GPU may. Which of them this
//! library has is decided when it is loaded: those of the board's driver, no newer ones.

use cuda_api::nvml::NvmlReturn;
#[cfg(not(test))]
use cuda_sim::exports;
use cuda_sim::exports::Wanted;

macro_rules! newer {
    ($($since:literal: $($name:ident)*;)*) => {
        $($(
            /// Not simulated. The arguments are not read, so the signature does not matter.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[allow(dead_code, reason = "called by programs, by its name")]
            pub(crate) extern "C-unwind" fn $name() -> NvmlReturn {
                NvmlReturn::NOT_SUPPORTED
            }
        )*)*

        /// Name and CUDA version.
        const NEWER: &[(&str, u32)] = &[$($((stringify!($name), $since)),*),*];
    };
}

newer! {
    12050:
        nvmlDeviceGetCapabilities nvmlDeviceGetClockOffsets nvmlDeviceSetClockOffsets;
    12060:
        nvmlSystemGetDriverBranch nvmlVgpuTypeGetBAR1Info;
    12080:
        nvmlDeviceGetCoolerInfo nvmlDeviceGetCurrentClockFreqs nvmlDeviceGetDramEncryptionMode
        nvmlDeviceGetFanSpeedRPM nvmlDeviceGetMarginTemperature nvmlDeviceGetNvlinkBwMode
        nvmlDeviceGetNvlinkSupportedBwModes nvmlDeviceGetPerformanceModes nvmlDeviceGetPlatformInfo
        nvmlDeviceGetTemperatureV nvmlDevicePowerSmoothingActivatePresetProfile
        nvmlDevicePowerSmoothingSetState nvmlDevicePowerSmoothingUpdatePresetProfileParam
        nvmlDeviceReadWritePRM_v1 nvmlDeviceSetDramEncryptionMode nvmlDeviceSetNvlinkBwMode
        nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
        nvmlDeviceWorkloadPowerProfileGetCurrentProfiles
        nvmlDeviceWorkloadPowerProfileGetProfilesInfo
        nvmlDeviceWorkloadPowerProfileSetRequestedProfiles nvmlVgpuInstanceGetRuntimeStateSize;
    12090:
        nvmlGpuInstanceGetActiveVgpus nvmlGpuInstanceGetCreatableVgpus
        nvmlGpuInstanceGetVgpuHeterogeneousMode nvmlGpuInstanceGetVgpuSchedulerLog
        nvmlGpuInstanceGetVgpuSchedulerState nvmlGpuInstanceGetVgpuTypeCreatablePlacements
        nvmlGpuInstanceSetVgpuHeterogeneousMode nvmlGpuInstanceSetVgpuSchedulerState
        nvmlSystemEventSetCreate nvmlSystemEventSetFree nvmlSystemEventSetWait
        nvmlSystemRegisterEvents nvmlVgpuTypeGetMaxInstancesPerGpuInstance;
    13000:
        nvmlDeviceGetAddressingMode nvmlDeviceGetGpuInstanceProfileInfoByIdV nvmlDeviceGetHostname_v1
        nvmlDeviceGetNvLinkInfo nvmlDeviceGetPdi nvmlDeviceGetPowerMizerMode_v1
        nvmlDeviceGetRepairStatus nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts
        nvmlDeviceReadPRMCounters_v1 nvmlDeviceSetHostname_v1 nvmlDeviceSetPowerMizerMode_v1;
    13010:
        nvmlDeviceGetUnrepairableMemoryFlag_v1 nvmlDeviceSetRusdSettings_v1
        nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1;
    13020:
        nvmlDeviceGetDriverModel_v2 nvmlDeviceGetVgpuSchedulerLog_v2
        nvmlDeviceGetVgpuSchedulerState_v2 nvmlDeviceSetVgpuSchedulerState_v2
        nvmlDeviceVgpuForceGspUnload nvmlGpuInstanceGetVgpuSchedulerLog_v2
        nvmlGpuInstanceGetVgpuSchedulerState_v2 nvmlGpuInstanceSetVgpuSchedulerState_v2;
    13030:
        nvmlDeviceGetBBXTimeData_v1 nvmlDeviceGetRemappedRows_v2
        nvmlSystemGetCPER_v1;
    13040:
        nvmlDeviceGetAdaptiveTgpModeInfo_v1 nvmlDeviceGetBankRemapperStatus_v1
        nvmlDeviceGetGpuFabricInfo_v4
        nvmlDeviceGetNvLinkTelemetrySamples_v1 nvmlDevicePerfMetricsGetSamples_v1
        nvmlDeviceSetAdaptiveTgpMode_v1
        nvmlDeviceSetNvlinkBwModeAsync_v1 nvmlEventSetGetContextCount_v1
        nvmlEventSetGetContextData_v1 nvmlEventSetGetContextInfo_v1
        nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1 nvmlEventSetWait_v3;
}

/// Names that are simulated, with the CUDA version of the driver that had each first.
const SIMULATED: &[(&str, u32)] = &[
    ("nvmlDeviceGetHandleByUUIDV", 12_090),
    ("nvmlDeviceGetAccountingStats_v2", 13_030),
    ("nvmlDeviceGetMemoryLimits_v1", 13_040),
    ("nvmlDeviceSetMemoryLimits_v1", 13_040),
    ("nvmlEventSetRegisterGpuOperationalEvents_v1", 13_040),
];

/// Whether the library of this driver has a name.
fn has(wanted: &Wanted, name: &str) -> bool {
    let by_uuid = name.starts_with("nvmlDeviceGetHandleByUUID");
    let since = NEWER
        .iter()
        .chain(SIMULATED)
        .find(|row| row.0 == name)
        .map_or(0, |row| row.1);
    since <= wanted.version && !wanted.lacks(name) && !(by_uuid && wanted.nvml.uuid)
}

/// The loader runs this before the program can look up a name of the library.
#[cfg(not(test))]
extern "C" fn loaded() {
    let wanted = exports::wanted();
    // SAFETY: this library, which stays loaded while its loader runs this, before anything else of it.
    unsafe { exports::hide(loaded as *const (), &mut |name| !has(&wanted, name)) };
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

#[cfg(test)]
mod tests {
    use cuda_sim::lacks::Lacks;

    use super::*;

    #[test]
    fn page_has_a_row_for_each_newer_name() {
        let page = include_str!("../../../../docs/interception.md");
        let (_, section) = page.split_once("## NVML's newer names").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();

        let mut named: Vec<&str> = section
            .split('`')
            .filter(|it| it.starts_with("nvml"))
            .collect();
        named.retain(|it| *it != "nvmlEventSetWait_v2");
        named.sort_unstable();
        let mut known: Vec<&str> = NEWER.iter().chain(SIMULATED).map(|row| row.0).collect();
        known.sort_unstable();
        assert_eq!(named, known);
    }

    #[test]
    fn a_driver_has_its_own_names_and_no_newer_ones() {
        let mut wanted = Wanted {
            version: 13_000,
            missing: "nvmlDeviceGetName".to_owned(),
            is_contrary: false,
            nvml: Lacks::default(),
        };

        assert!(has(&wanted, "nvmlInit_v2") && has(&wanted, "nvmlDeviceGetPdi"));
        assert!(!has(&wanted, "nvmlDeviceGetMemoryLimits_v1"));
        assert!(has(&wanted, "nvmlDeviceGetHandleByUUIDV"));
        assert!(!has(&wanted, "nvmlDeviceGetName"));
        assert!(has(&wanted, "nvmlDeviceGetHandleByUUID"));
        wanted.nvml.uuid = true;
        assert!(!has(&wanted, "nvmlDeviceGetHandleByUUID"));
        assert!(!has(&wanted, "nvmlDeviceGetHandleByUUIDV"));
    }
}
