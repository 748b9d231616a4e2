//! Each function of the driver that matters for a limit has a hook, or is listed here with the reason why not.

use cuda_api::PROC_ADDRESSES;

use super::*;

#[test]
fn every_hook_is_found_by_its_name_and_nothing_else_is() {
    for hook in cuda::HOOKS.iter().chain(nvml::HOOKS) {
        let (_, found) = find(hook.name).unwrap();
        assert_eq!(found.name, hook.name);
    }
    for name in [
        c"cudnnCreate",
        c"cublasCreate_v2",
        c"cuMemAlloc_v3",
        c"cu",
        c"nvmlNothing",
    ] {
        assert!(find(name).is_none(), "{name:?}");
    }
}

/// Names of the classes that a memory limit is about, which have no hook all the same.
const WITHOUT_A_HOOK: [(&str, &[&str]); 5] = [
    (
        "takes nothing of the device",
        &[
            "cuMemHostRegister",
            "cuMemHostRegister_v2",
            "cuGraphMemFreeNodeGetParams",
        ],
    ),
    (
        "managed memory is charged when it is allocated, wherever its pages are",
        &[
            "cuMemPrefetchAsync",
            "cuMemPrefetchAsync_ptsz",
            "cuMemPrefetchAsync_v2",
            "cuMemPrefetchAsync_v2_ptsz",
            "cuMemPrefetchBatchAsync",
            "cuMemPrefetchBatchAsync_ptsz",
        ],
    ),
    (
        "a copy is counted when it is made executable",
        &["cuGraphClone"],
    ),
    (
        "chooses a pool, which is looked up at each allocation",
        &["cuMemSetMemPool"],
    ),
    (
        "figures of this process alone, or of multiprocessors",
        &[
            "cuCtxGetDevResource",
            "cuDeviceGetDevResource",
            "cuDeviceGetAttribute",
            "cuDeviceGetGraphMemAttribute",
            "cuMemPoolGetAttribute",
        ],
    ),
];

/// Names of the launch class that have no hook.
const NO_LAUNCH: [(&str, &[&str]); 2] = [
    (
        "a write into memory takes no time of the multiprocessors and waits for nothing",
        &[
            "cuStreamWriteValue32",
            "cuStreamWriteValue32_ptsz",
            "cuStreamWriteValue32_v2",
            "cuStreamWriteValue32_v2_ptsz",
            "cuStreamWriteValue64",
            "cuStreamWriteValue64_ptsz",
            "cuStreamWriteValue64_v2",
            "cuStreamWriteValue64_v2_ptsz",
        ],
    ),
    (
        "a stream is known from its first launch on",
        &["cuGreenCtxStreamCreate"],
    ),
];

/// Names that are about no limit by themselves, and have a hook all the same.
const PASSING: [(&str, &[&str]); 6] = [
    (
        "another context is current: what the thread remembers of the last one is void",
        &[
            "cuCtxPopCurrent",
            "cuCtxPopCurrent_v2",
            "cuCtxPushCurrent",
            "cuCtxPushCurrent_v2",
            "cuCtxSetCurrent",
        ],
    ),
    (
        "code that the call may load, or hands out to be loaded later",
        &[
            "cuFuncLoad",
            "cuKernelGetFunction",
            "cuLibraryEnumerateKernels",
            "cuLibraryGetGlobal",
            "cuLibraryGetKernel",
            "cuLibraryGetManaged",
            "cuLibraryGetModule",
            "cuLibraryGetUnifiedFunction",
            "cuModuleEnumerateFunctions",
            "cuModuleGetFunction",
            "cuModuleGetGlobal",
            "cuModuleGetGlobal_v2",
        ],
    ),
    (
        "a pool of the driver's own is known from here on",
        &[
            "cuDeviceGetDefaultMemPool",
            "cuDeviceGetMemPool",
            "cuMemGetDefaultMemPool",
        ],
    ),
    (
        "memory that another process may hold longer than this one",
        &[
            "cuIpcGetMemHandle",
            "cuMemExportToShareableHandle",
            "cuMemGetHandleForAddressRange",
            "cuMemPoolExportPointer",
        ],
    ),
    (
        "a graph wants the memory of its new part as well",
        &["cuGraphExecChildGraphNodeSetParams"],
    ),
    (
        "managed memory that stands for device memory is reported as device memory",
        &["cuPointerGetAttribute", "cuPointerGetAttributes"],
    ),
];

#[test]
fn every_hook_of_a_call_about_no_limit_has_its_reason() {
    let listed = |name: &&str| PASSING.iter().any(|(_, names)| names.contains(name));
    for name in cuda::NAMES {
        let passes = cuda_api::class_of(name) == Some(cuda_api::Class::Pass);
        assert_eq!(passes, listed(name), "{name}");
    }
    for name in PASSING.iter().flat_map(|(_, names)| *names) {
        assert!(cuda::NAMES.contains(name), "{name} has no hook");
    }
}

#[test]
fn every_launch_call_has_a_hook_or_a_reason() {
    let newer = PROC_ADDRESSES.iter().map(|row| &row.symbol);
    for name in cuda_api::DRIVER_SYMBOLS.iter().chain(newer) {
        let launches = cuda_api::class_of(name) == Some(cuda_api::Class::Launch);
        let excused = NO_LAUNCH.iter().any(|(_, names)| names.contains(name));
        assert_eq!(launches && !cuda::NAMES.contains(name), excused, "{name}");
    }
}

#[test]
fn every_memory_call_has_a_hook_or_a_reason() {
    use cuda_api::Class::{Alloc, Context, Report};
    let newer = PROC_ADDRESSES.iter().map(|row| &row.symbol);
    for name in cuda_api::DRIVER_SYMBOLS.iter().chain(newer) {
        let limited = matches!(cuda_api::class_of(name), Some(Alloc | Report | Context));
        let excused = WITHOUT_A_HOOK.iter().any(|(_, names)| names.contains(name));
        assert_eq!(limited && !cuda::NAMES.contains(name), excused, "{name}");
    }
}
