//! The class of each driver symbol for limits: every name that the driver exports or hands out is in exactly one
//! class, and a test fails for a name that is in none. No pattern decides: an engineer must read a name of a later
//! driver and assign it.

/// The class of a driver symbol for limits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// Device memory is charged or given back.
    Alloc,
    /// Reports an amount: answered as the container should see it.
    Report,
    /// Takes or gives back overhead: contexts and modules.
    Context,
    /// Gives the device work: the compute limit.
    Launch,
    /// Measurement points.
    Sync,
    /// How programs find the driver.
    Dispatch,
    /// Which devices there are.
    Visibility,
    /// Stream capture: decides which calls are legal while it lasts.
    Capture,
    /// About no limit by itself. Most have no hook. Some have one that keeps another call's account right, and passes
    /// the call on unchanged.
    Pass,
}

/// The class of a driver symbol by its exact name; each version and per-thread-stream form has its own name. `None`
/// for a name that no known driver has. Walks the tables, so it is for checks and start-up.
#[must_use]
pub fn class_of(symbol: &str) -> Option<Class> {
    let listed = |names: &[&str]| names.contains(&symbol);
    CLASSES
        .iter()
        .find(|(_, names)| listed(names))
        .map(|(class, _)| *class)
        .or_else(|| {
            PASS.iter()
                .any(|(_, names)| listed(names))
                .then_some(Class::Pass)
        })
}

/// All names of a class but `Pass`, which has too many kinds of them to be one list.
#[must_use]
pub const fn symbols_of(class: Class) -> &'static [&'static str] {
    let mut left = CLASSES;
    while let [(own, names), rest @ ..] = left {
        // As numbers: a constant function cannot compare otherwise.
        if *own as u8 == class as u8 {
            return names;
        }
        left = rest;
    }
    &[]
}

#[rustfmt::skip]
/// All classes but `Pass`.
const CLASSES: &[(Class, &[&str])] = &[
    (Class::Alloc, &[
        "cuArray3DCreate", "cuArray3DCreate_v2", "cuArrayCreate", "cuArrayCreate_v2",
        "cuArrayDestroy", "cuCheckpointOperationComplete", "cuCheckpointProcessCheckpoint",
        "cuCheckpointProcessRestore", "cuCtxSetLimit", "cuDestroyExternalMemory", "cuDeviceGraphMemTrim",
        "cuGraphAddMemAllocNode", "cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddNode_v3",
        "cuGraphClone", "cuGraphDestroy", "cuGraphExecDestroy", "cuGraphExecUpdate",
        "cuGraphExecUpdate_v2", "cuGraphMemFreeNodeGetParams", "cuGraphUpload",
        "cuGraphUpload_ptsz", "cuGraphicsMapResources", "cuGraphicsMapResources_ptsz",
        "cuGraphicsUnregisterResource", "cuImportExternalMemory", "cuIpcCloseMemHandle",
        "cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", "cuMemAlloc", "cuMemAllocAsync",
        "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz",
        "cuMemAllocManaged", "cuMemAllocPitch", "cuMemAllocPitch_v2", "cuMemAlloc_v2",
        "cuMemCreate", "cuMemFree", "cuMemFreeAsync", "cuMemFreeAsync_ptsz", "cuMemFree_v2",
        "cuMemGetMemPool", "cuMemHostRegister", "cuMemHostRegister_v2",
        "cuMemImportFromShareableHandle", "cuMemMap", "cuMemMapArrayAsync",
        "cuMemMapArrayAsync_ptsz", "cuMemPoolCreate", "cuMemPoolDestroy",
        "cuMemPoolImportFromShareableHandle", "cuMemPoolImportPointer", "cuMemPoolSetAttribute",
        "cuMemPoolTrimTo", "cuMemPrefetchAsync", "cuMemPrefetchAsync_ptsz",
        "cuMemPrefetchAsync_v2", "cuMemPrefetchAsync_v2_ptsz", "cuMemPrefetchBatchAsync",
        "cuMemPrefetchBatchAsync_ptsz", "cuMemRelease", "cuMemRetainAllocationHandle",
        "cuMemSetMemPool", "cuMemUnmap", "cuMipmappedArrayCreate", "cuMipmappedArrayDestroy",
        "cuMulticastBindAddr", "cuMulticastBindAddr_v2", "cuMulticastBindMem",
        "cuMulticastBindMem_v2", "cuMulticastCreate", "cuMulticastUnbind",
    ]),
    (Class::Report, &[
        "cuCtxGetDevResource", "cuDeviceGetAttribute", "cuDeviceGetDevResource",
        "cuDeviceGetGraphMemAttribute", "cuDeviceTotalMem", "cuDeviceTotalMem_v2",
        "cuMemGetInfo", "cuMemGetInfo_v2", "cuMemPoolGetAttribute",
    ]),
    (Class::Context, &[
        "cuCtxAttach", "cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4",
        "cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach", "cuCtxFromGreenCtx",
        "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset",
        "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRetain", "cuGreenCtxCreate",
        "cuGreenCtxDestroy", "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryUnload",
        "cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary",
        "cuModuleUnload",
    ]),
    (Class::Launch, &[
        "cuFabricCpyBatchAsync", "cuFabricCpyBatchAsync_ptsz", "cuGraphAddKernelNode", "cuGraphAddKernelNode_v2", "cuGraphExecKernelNodeSetParams",
        "cuGraphExecKernelNodeSetParams_v2", "cuGraphExecNodeSetParams", "cuGraphInstantiate",
        "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams",
        "cuGraphInstantiateWithParams_ptsz", "cuGraphInstantiate_v2",
        "cuGraphKernelNodeSetParams", "cuGraphKernelNodeSetParams_v2", "cuGraphLaunch",
        "cuGraphLaunch_ptsz", "cuGraphNodeSetParams", "cuGraphNodeSetParams_v2", "cuGreenCtxStreamCreate", "cuLaunch", "cuLaunchCooperativeKernel",
        "cuLaunchCooperativeKernelMultiDevice", "cuLaunchCooperativeKernel_ptsz",
        "cuLaunchGrid", "cuLaunchGridAsync", "cuLaunchHostFunc", "cuLaunchHostFunc_ptsz",
        "cuLaunchHostFunc_v2", "cuLaunchHostFunc_v2_ptsz", "cuLaunchKernel", "cuLaunchKernelEx",
        "cuLaunchKernelEx_ptsz", "cuLaunchKernel_ptsz", "cuMemBatchDecompressAsync",
        "cuMemBatchDecompressAsync_ptsz", "cuMemcpy2DAsync", "cuMemcpy2DAsync_v2",
        "cuMemcpy2DAsync_v2_ptsz", "cuMemcpy3DAsync", "cuMemcpy3DAsync_v2",
        "cuMemcpy3DAsync_v2_ptsz", "cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync_ptsz",
        "cuMemcpy3DBatchAsync_v2", "cuMemcpy3DBatchAsync_v2_ptsz", "cuMemcpy3DPeerAsync",
        "cuMemcpy3DPeerAsync_ptsz", "cuMemcpy3DWithAttributesAsync",
        "cuMemcpy3DWithAttributesAsync_ptsz", "cuMemcpyAsync", "cuMemcpyAsync_ptsz",
        "cuMemcpyAtoHAsync", "cuMemcpyAtoHAsync_v2", "cuMemcpyAtoHAsync_v2_ptsz",
        "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_ptsz", "cuMemcpyBatchAsync_v2",
        "cuMemcpyBatchAsync_v2_ptsz", "cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2",
        "cuMemcpyDtoDAsync_v2_ptsz", "cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2",
        "cuMemcpyDtoHAsync_v2_ptsz", "cuMemcpyHtoAAsync", "cuMemcpyHtoAAsync_v2",
        "cuMemcpyHtoAAsync_v2_ptsz", "cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2",
        "cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyPeerAsync", "cuMemcpyPeerAsync_ptsz",
        "cuMemcpyWithAttributesAsync", "cuMemcpyWithAttributesAsync_ptsz", "cuMemsetD16Async",
        "cuMemsetD16Async_ptsz", "cuMemsetD2D16Async", "cuMemsetD2D16Async_ptsz",
        "cuMemsetD2D32Async", "cuMemsetD2D32Async_ptsz", "cuMemsetD2D8Async",
        "cuMemsetD2D8Async_ptsz", "cuMemsetD32Async", "cuMemsetD32Async_ptsz",
        "cuMemsetD8Async", "cuMemsetD8Async_ptsz", "cuStreamAddCallback",
        "cuStreamAddCallback_ptsz", "cuStreamBatchMemOp", "cuStreamBatchMemOp_ptsz",
        "cuStreamBatchMemOp_v2", "cuStreamBatchMemOp_v2_ptsz", "cuStreamWaitValue32",
        "cuStreamWaitValue32_ptsz", "cuStreamWaitValue32_v2", "cuStreamWaitValue32_v2_ptsz",
        "cuStreamWaitValue64", "cuStreamWaitValue64_ptsz", "cuStreamWaitValue64_v2",
        "cuStreamWaitValue64_v2_ptsz", "cuStreamWriteValue32", "cuStreamWriteValue32_ptsz",
        "cuStreamWriteValue32_v2", "cuStreamWriteValue32_v2_ptsz", "cuStreamWriteValue64",
        "cuStreamWriteValue64_ptsz", "cuStreamWriteValue64_v2", "cuStreamWriteValue64_v2_ptsz",
    ]),
    (Class::Sync, &[
        "cuCtxSynchronize", "cuCtxSynchronize_v2", "cuEventQuery", "cuEventRecord",
        "cuEventRecordWithFlags", "cuEventRecordWithFlags_ptsz", "cuEventRecord_ptsz",
        "cuEventSynchronize", "cuStreamCreate", "cuStreamCreateWithPriority", "cuStreamDestroy",
        "cuStreamDestroy_v2", "cuStreamQuery", "cuStreamQuery_ptsz", "cuStreamSynchronize",
        "cuStreamSynchronize_ptsz", "cuStreamWaitEvent", "cuStreamWaitEvent_ptsz",
    ]),
    (Class::Dispatch, &[
        "cuDriverGetVersion", "cuGetExportTable", "cuGetProcAddress", "cuGetProcAddress_v2",
        "cuGetProcAddress_v2_ptsz", "cuInit",
    ]),
    (Class::Visibility, &[
        "cuDeviceGet", "cuDeviceGetByPCIBusId", "cuDeviceGetCount", "cuDeviceGetPCIBusId",
        "cuDeviceGetUuid", "cuDeviceGetUuid_v2",
    ]),
    (Class::Capture, &[
        "cuStreamBeginCapture", "cuStreamBeginCaptureToCig", "cuStreamBeginCaptureToCig_ptsz",
        "cuStreamBeginCaptureToGraph", "cuStreamBeginCaptureToGraph_ptsz",
        "cuStreamBeginCapture_ptsz", "cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz",
        "cuStreamBeginRecaptureToGraph", "cuStreamBeginRecaptureToGraph_ptsz",
        "cuStreamEndCapture", "cuStreamEndCaptureToCig", "cuStreamEndCaptureToCig_ptsz",
        "cuStreamEndCapture_ptsz", "cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_ptsz",
        "cuStreamGetCaptureInfo_v2", "cuStreamGetCaptureInfo_v2_ptsz",
        "cuStreamGetCaptureInfo_v3", "cuStreamGetCaptureInfo_v3_ptsz", "cuStreamIsCapturing",
        "cuStreamIsCapturing_ptsz", "cuStreamUpdateCaptureDependencies",
        "cuStreamUpdateCaptureDependencies_ptsz", "cuStreamUpdateCaptureDependencies_v2",
        "cuStreamUpdateCaptureDependencies_v2_ptsz", "cuThreadExchangeStreamCaptureMode",
    ]),
];

#[rustfmt::skip]
/// Functions of the class `Pass`, by family.
const PASS: &[(&str, &[&str])] = &[
    ("cudbg: the debugger's entry points and variables", &[
        "cudbgApiAttach", "cudbgApiClientPid", "cudbgApiClientRevision", "cudbgApiDetach",
        "cudbgApiInit", "cudbgAttachHandlerAvailable", "cudbgDebuggerCapabilities",
        "cudbgDebuggerInitialized", "cudbgDetachSuspendedDevicesMask",
        "cudbgEnableIntegratedMemcheck", "cudbgEnableLaunchBlocking",
        "cudbgEnablePreemptionDebugging", "cudbgGetAPI", "cudbgGetAPIVersion",
        "cudbgInjectionPath", "cudbgIpcFlag", "cudbgMain", "cudbgReportDriverApiError",
        "cudbgReportDriverApiErrorFlags", "cudbgReportDriverInternalError",
        "cudbgReportedDriverApiErrorCode", "cudbgReportedDriverApiErrorFuncNameAddr",
        "cudbgReportedDriverApiErrorFuncNameSize", "cudbgReportedDriverInternalErrorCode",
        "cudbgResumeForAttachDetach", "cudbgRpcEnabled", "cudbgSessionId",
        "cudbgUseExternalDebugger",
    ]),
    ("arrays and their descriptions", &[
        "cuArray3DGetDescriptor", "cuArray3DGetDescriptor_v2", "cuArrayGetDescriptor",
        "cuArrayGetDescriptor_v2", "cuArrayGetMemoryRequirements", "cuArrayGetPlane",
        "cuArrayGetSparseProperties", "cuMipmappedArrayGetLevel",
        "cuMipmappedArrayGetMemoryRequirements", "cuMipmappedArrayGetSparseProperties",
    ]),
    ("checkpoints, core dumps, logs, profiler", &[
        "cuCheckpointProcessGetRestoreThreadId", "cuCheckpointProcessGetState",
        "cuCheckpointProcessLock", "cuCheckpointProcessUnlock",
        "cuCoredumpDeregisterCompleteCallback", "cuCoredumpDeregisterStartCallback",
        "cuCoredumpGetAttribute", "cuCoredumpGetAttributeGlobal",
        "cuCoredumpRegisterCompleteCallback", "cuCoredumpRegisterStartCallback",
        "cuCoredumpSetAttribute", "cuCoredumpSetAttributeGlobal", "cuLogsCurrent",
        "cuLogsDumpToFile", "cuLogsDumpToMemory", "cuLogsRegisterCallback",
        "cuLogsUnregisterCallback", "cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop",
    ]),
    ("device facts, and the choice of a pool", &[
        "cuDevResourceGenerateDesc", "cuDevSmResourceSplit", "cuDevSmResourceSplitByCount",
        "cuDeviceCanAccessPeer", "cuDeviceComputeCapability", "cuDeviceGetCliqueCount",
        "cuDeviceGetCliqueInfo", "cuDeviceGetDefaultMemPool", "cuDeviceGetExecAffinitySupport",
        "cuDeviceGetFabricClusterUuid", "cuDeviceGetHostAtomicCapabilities", "cuDeviceGetLuid",
        "cuDeviceGetMemPool", "cuDeviceGetName", "cuDeviceGetNvSciSyncAttributes",
        "cuDeviceGetP2PAtomicCapabilities", "cuDeviceGetP2PAttribute", "cuDeviceGetProperties",
        "cuDeviceGetTexture1DLinearMaxWidth", "cuDevicePrimaryCtxGetState",
        "cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxSetFlags_v2",
        "cuDeviceRegisterAsyncNotification", "cuDeviceSetGraphMemAttribute",
        "cuDeviceSetMemPool", "cuDeviceUnregisterAsyncNotification",
    ]),
    ("the current context: which, limits, peers, events", &[
        "cuCtxDisablePeerAccess", "cuCtxEnablePeerAccess", "cuCtxGetApiVersion",
        "cuCtxGetCacheConfig", "cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxGetDevice_v2",
        "cuCtxGetExecAffinity", "cuCtxGetFlags", "cuCtxGetId", "cuCtxGetLimit",
        "cuCtxGetSharedMemConfig", "cuCtxGetStreamPriorityRange", "cuCtxPopCurrent",
        "cuCtxPopCurrent_v2", "cuCtxPushCurrent", "cuCtxPushCurrent_v2", "cuCtxRecordEvent",
        "cuCtxResetPersistingL2Cache", "cuCtxSetCacheConfig", "cuCtxSetCurrent",
        "cuCtxSetFlags", "cuCtxSetSharedMemConfig", "cuCtxWaitEvent",
        "cuFlushGPUDirectRDMAWrites",
    ]),
    ("graphics: OpenGL, EGL, VDPAU", &[
        "cuEGLApiInit", "cuEGLStreamConsumerAcquireFrame", "cuEGLStreamConsumerConnect",
        "cuEGLStreamConsumerConnectWithFlags", "cuEGLStreamConsumerDisconnect",
        "cuEGLStreamConsumerReleaseFrame", "cuEGLStreamProducerConnect",
        "cuEGLStreamProducerDisconnect", "cuEGLStreamProducerPresentFrame",
        "cuEGLStreamProducerReturnFrame", "cuGLCtxCreate", "cuGLCtxCreate_v2", "cuGLGetDevices",
        "cuGLGetDevices_v2", "cuGLInit", "cuGLMapBufferObject", "cuGLMapBufferObjectAsync",
        "cuGLMapBufferObjectAsync_v2", "cuGLMapBufferObjectAsync_v2_ptsz",
        "cuGLMapBufferObject_v2", "cuGLMapBufferObject_v2_ptds", "cuGLRegisterBufferObject",
        "cuGLSetBufferObjectMapFlags", "cuGLUnmapBufferObject", "cuGLUnmapBufferObjectAsync",
        "cuGLUnregisterBufferObject", "cuGraphicsEGLRegisterImage",
        "cuGraphicsGLRegisterBuffer", "cuGraphicsGLRegisterImage",
        "cuGraphicsResourceGetMappedEglFrame", "cuGraphicsResourceGetMappedMipmappedArray",
        "cuGraphicsResourceGetMappedPointer", "cuGraphicsResourceGetMappedPointer_v2",
        "cuGraphicsResourceSetMapFlags", "cuGraphicsResourceSetMapFlags_v2",
        "cuGraphicsSubResourceGetMappedArray", "cuGraphicsUnmapResources",
        "cuGraphicsUnmapResources_ptsz", "cuGraphicsVDPAURegisterOutputSurface",
        "cuGraphicsVDPAURegisterVideoSurface", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2",
        "cuVDPAUGetDevice", "cuWGLGetDevice",
    ]),
    ("events: creation and time between", &[
        "cuEventCreate", "cuEventCreateFromEGLSync", "cuEventDestroy", "cuEventDestroy_v2",
        "cuEventElapsedTime", "cuEventElapsedTime_v2",
    ]),
    ("external memory and semaphores, once imported", &[
        "cuDestroyExternalSemaphore", "cuExternalMemoryGetMappedBuffer",
        "cuExternalMemoryGetMappedMipmappedArray", "cuImportExternalSemaphore",
        "cuSignalExternalSemaphoresAsync", "cuSignalExternalSemaphoresAsync_ptsz",
        "cuWaitExternalSemaphoresAsync", "cuWaitExternalSemaphoresAsync_ptsz",
    ]),
    ("functions, kernels, libraries, modules: facts and settings", &[
        "cuFuncGetAttribute", "cuFuncGetModule", "cuFuncGetName", "cuFuncGetParamCount",
        "cuFuncGetParamInfo", "cuFuncIsLoaded", "cuFuncLoad", "cuFuncSetAttribute",
        "cuFuncSetBlockShape", "cuFuncSetCacheConfig", "cuFuncSetSharedMemConfig",
        "cuFuncSetSharedSize", "cuKernelGetAttribute", "cuKernelGetFunction",
        "cuKernelGetLibrary", "cuKernelGetName", "cuKernelGetParamCount",
        "cuKernelGetParamInfo", "cuKernelSetAttribute", "cuKernelSetCacheConfig",
        "cuLibraryEnumerateKernels", "cuLibraryGetGlobal", "cuLibraryGetKernel",
        "cuLibraryGetKernelCount", "cuLibraryGetManaged", "cuLibraryGetModule",
        "cuLibraryGetUnifiedFunction", "cuModuleEnumerateFunctions", "cuModuleGetFunction",
        "cuModuleGetFunctionCount", "cuModuleGetGlobal", "cuModuleGetGlobal_v2",
        "cuModuleGetLoadingMode", "cuModuleGetSurfRef", "cuModuleGetTexRef",
        "cuOccupancyAvailableDynamicSMemPerBlock",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "cuOccupancyMaxActiveClusters",
        "cuOccupancyMaxPotentialBlockSize", "cuOccupancyMaxPotentialBlockSizeWithFlags",
        "cuOccupancyMaxPotentialClusterSize", "cuParamSetSize", "cuParamSetTexRef",
        "cuParamSetf", "cuParamSeti", "cuParamSetv",
    ]),
    ("graphs: nodes, edges, parameters", &[
        "cuGraphAddBatchMemOpNode", "cuGraphAddChildGraphNode", "cuGraphAddDependencies",
        "cuGraphAddDependencies_v2", "cuGraphAddEmptyNode", "cuGraphAddEventRecordNode",
        "cuGraphAddEventWaitNode", "cuGraphAddExternalSemaphoresSignalNode",
        "cuGraphAddExternalSemaphoresWaitNode", "cuGraphAddHostNode", "cuGraphAddMemFreeNode",
        "cuGraphAddMemcpyNode", "cuGraphAddMemsetNode", "cuGraphBatchMemOpNodeGetParams",
        "cuGraphBatchMemOpNodeSetParams", "cuGraphChildGraphNodeGetGraph",
        "cuGraphConditionalHandleCreate", "cuGraphCreate", "cuGraphDebugDotPrint",
        "cuGraphDestroyNode", "cuGraphEventRecordNodeGetEvent",
        "cuGraphEventRecordNodeSetEvent", "cuGraphEventWaitNodeGetEvent",
        "cuGraphEventWaitNodeSetEvent", "cuGraphExecBatchMemOpNodeSetParams",
        "cuGraphExecChildGraphNodeSetParams", "cuGraphExecEventRecordNodeSetEvent",
        "cuGraphExecEventWaitNodeSetEvent", "cuGraphExecExternalSemaphoresSignalNodeSetParams",
        "cuGraphExecExternalSemaphoresWaitNodeSetParams", "cuGraphExecGetFlags",
        "cuGraphExecGetId", "cuGraphExecHostNodeSetParams", "cuGraphExecMemcpyNodeSetParams",
        "cuGraphExecMemsetNodeSetParams",
        "cuGraphExternalSemaphoresSignalNodeGetParams",
        "cuGraphExternalSemaphoresSignalNodeSetParams",
        "cuGraphExternalSemaphoresWaitNodeGetParams",
        "cuGraphExternalSemaphoresWaitNodeSetParams", "cuGraphGetEdges", "cuGraphGetEdges_v2",
        "cuGraphGetId", "cuGraphGetNodes", "cuGraphGetRootNodes", "cuGraphHostNodeGetParams",
        "cuGraphHostNodeSetParams", "cuGraphKernelNodeCopyAttributes",
        "cuGraphKernelNodeGetAttribute", "cuGraphKernelNodeGetParams",
        "cuGraphKernelNodeGetParams_v2", "cuGraphKernelNodeSetAttribute",
        "cuGraphMemAllocNodeGetParams", "cuGraphMemcpyNodeGetParams",
        "cuGraphMemcpyNodeSetParams", "cuGraphMemsetNodeGetParams",
        "cuGraphMemsetNodeSetParams", "cuGraphNodeFindInClone", "cuGraphNodeGetContainingGraph",
        "cuGraphNodeGetDependencies", "cuGraphNodeGetDependencies_v2",
        "cuGraphNodeGetDependentNodes", "cuGraphNodeGetDependentNodes_v2",
        "cuGraphNodeGetEnabled", "cuGraphNodeGetLocalId", "cuGraphNodeGetParams",
        "cuGraphNodeGetToolsId", "cuGraphNodeGetType", "cuGraphNodeSetEnabled",
        "cuGraphReleaseUserObject",
        "cuGraphRemoveDependencies", "cuGraphRemoveDependencies_v2", "cuGraphRetainUserObject",
        "cuUserObjectCreate", "cuUserObjectRelease", "cuUserObjectRetain",
    ]),
    ("green contexts", &[
        "cuGreenCtxGetDevResource", "cuGreenCtxGetId", "cuGreenCtxRecordEvent",
        "cuGreenCtxWaitEvent",
    ]),
    ("IPC: names of what is already there", &[
        "cuIpcGetEventHandle", "cuIpcGetMemHandle", "cuIpcOpenEventHandle",
    ]),
    ("linker", &[
        "cuLinkAddData", "cuLinkAddData_v2", "cuLinkAddFile", "cuLinkAddFile_v2",
        "cuLinkComplete", "cuLinkCreate", "cuLinkCreate_v2", "cuLinkDestroy",
    ]),
    ("memory: address ranges, access, hints, host memory, facts", &[
        "cuMemAddressFree", "cuMemAddressReserve", "cuMemAdvise", "cuMemAdvise_v2",
        "cuMemAllocHost", "cuMemAllocHost_v2", "cuMemDiscardAndPrefetchBatchAsync",
        "cuMemDiscardAndPrefetchBatchAsync_ptsz", "cuMemDiscardBatchAsync",
        "cuMemDiscardBatchAsync_ptsz", "cuMemExportToShareableHandle", "cuMemFreeHost",
        "cuMemGetAccess", "cuMemGetAddressRange", "cuMemGetAddressRange_v2",
        "cuMemGetAllocationGranularity", "cuMemGetAllocationPropertiesFromHandle",
        "cuMemGetAttribute", "cuMemGetAttribute_v2", "cuMemGetDefaultMemPool",
        "cuMemGetHandleForAddressRange", "cuMemGetLocationInfo", "cuMemHostAlloc",
        "cuMemHostGetDevicePointer", "cuMemHostGetDevicePointer_v2", "cuMemHostGetFlags",
        "cuMemHostUnregister", "cuMemPoolExportPointer", "cuMemPoolExportToShareableHandle",
        "cuMemPoolGetAccess", "cuMemPoolSetAccess", "cuMemRangeGetAttribute",
        "cuMemRangeGetAttributes", "cuMemSetAccess",
    ]),
    ("copies and fills that wait", &[
        "cuMemcpy", "cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy2DUnaligned_v2",
        "cuMemcpy2DUnaligned_v2_ptds", "cuMemcpy2D_v2", "cuMemcpy2D_v2_ptds", "cuMemcpy3D",
        "cuMemcpy3DPeer", "cuMemcpy3DPeer_ptds", "cuMemcpy3D_v2", "cuMemcpy3D_v2_ptds",
        "cuMemcpyAtoA", "cuMemcpyAtoA_v2", "cuMemcpyAtoA_v2_ptds", "cuMemcpyAtoD",
        "cuMemcpyAtoD_v2", "cuMemcpyAtoD_v2_ptds", "cuMemcpyAtoH", "cuMemcpyAtoH_v2",
        "cuMemcpyAtoH_v2_ptds", "cuMemcpyDtoA", "cuMemcpyDtoA_v2", "cuMemcpyDtoA_v2_ptds",
        "cuMemcpyDtoD", "cuMemcpyDtoD_v2", "cuMemcpyDtoD_v2_ptds", "cuMemcpyDtoH",
        "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds", "cuMemcpyHtoA", "cuMemcpyHtoA_v2",
        "cuMemcpyHtoA_v2_ptds", "cuMemcpyHtoD", "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds",
        "cuMemcpyPeer", "cuMemcpyPeer_ptds", "cuMemcpy_ptds", "cuMemsetD16", "cuMemsetD16_v2",
        "cuMemsetD16_v2_ptds", "cuMemsetD2D16", "cuMemsetD2D16_v2", "cuMemsetD2D16_v2_ptds",
        "cuMemsetD2D32", "cuMemsetD2D32_v2", "cuMemsetD2D32_v2_ptds", "cuMemsetD2D8",
        "cuMemsetD2D8_v2", "cuMemsetD2D8_v2_ptds", "cuMemsetD32", "cuMemsetD32_v2",
        "cuMemsetD32_v2_ptds", "cuMemsetD8", "cuMemsetD8_v2", "cuMemsetD8_v2_ptds",
    ]),
    ("multicast and endpoints: no memory of their own", &[
        "cuLogicalEndpointAddDevice",
        "cuLogicalEndpointBindAddr", "cuLogicalEndpointBindMem", "cuLogicalEndpointCreate",
        "cuLogicalEndpointDestroy", "cuLogicalEndpointExport", "cuLogicalEndpointGetLimits",
        "cuLogicalEndpointIdRelease", "cuLogicalEndpointIdReserve", "cuLogicalEndpointImport",
        "cuLogicalEndpointQuery", "cuLogicalEndpointUnbind", "cuMulticastAddDevice",
        "cuMulticastGetGranularity",
    ]),
    ("pointers and error texts", &[
        "cuGetErrorName", "cuGetErrorString", "cuPointerGetAttribute", "cuPointerGetAttributes",
        "cuPointerSetAttribute",
    ]),
    ("streams: facts and settings", &[
        "cuStreamAttachMemAsync", "cuStreamAttachMemAsync_ptsz", "cuStreamCopyAttributes",
        "cuStreamCopyAttributes_ptsz", "cuStreamGetAttribute", "cuStreamGetAttribute_ptsz",
        "cuStreamGetCtx", "cuStreamGetCtx_ptsz", "cuStreamGetCtx_v2", "cuStreamGetCtx_v2_ptsz",
        "cuStreamGetDevResource", "cuStreamGetDevResource_ptsz", "cuStreamGetDevice",
        "cuStreamGetDevice_ptsz", "cuStreamGetFlags", "cuStreamGetFlags_ptsz",
        "cuStreamGetGreenCtx", "cuStreamGetId", "cuStreamGetId_ptsz", "cuStreamGetPriority",
        "cuStreamGetPriority_ptsz", "cuStreamSetAttribute", "cuStreamSetAttribute_ptsz",
    ]),
    ("textures, surfaces, tensor maps", &[
        "cuSurfObjectCreate", "cuSurfObjectDestroy", "cuSurfObjectGetResourceDesc",
        "cuSurfRefGetArray", "cuSurfRefSetArray", "cuTensorMapEncodeIm2col",
        "cuTensorMapEncodeIm2colWide", "cuTensorMapEncodeTiled", "cuTensorMapReplaceAddress",
        "cuTensorMapSetAllocationClass", "cuTexObjectCreate", "cuTexObjectDestroy",
        "cuTexObjectGetResourceDesc", "cuTexObjectGetResourceViewDesc",
        "cuTexObjectGetTextureDesc", "cuTexRefCreate", "cuTexRefDestroy", "cuTexRefGetAddress",
        "cuTexRefGetAddressMode", "cuTexRefGetAddress_v2", "cuTexRefGetArray",
        "cuTexRefGetBorderColor", "cuTexRefGetFilterMode", "cuTexRefGetFlags",
        "cuTexRefGetFormat", "cuTexRefGetMaxAnisotropy", "cuTexRefGetMipmapFilterMode",
        "cuTexRefGetMipmapLevelBias", "cuTexRefGetMipmapLevelClamp",
        "cuTexRefGetMipmappedArray", "cuTexRefSetAddress", "cuTexRefSetAddress2D",
        "cuTexRefSetAddress2D_v2", "cuTexRefSetAddress2D_v3", "cuTexRefSetAddressMode",
        "cuTexRefSetAddress_v2", "cuTexRefSetArray", "cuTexRefSetBorderColor",
        "cuTexRefSetFilterMode", "cuTexRefSetFlags", "cuTexRefSetFormat",
        "cuTexRefSetMaxAnisotropy", "cuTexRefSetMipmapFilterMode", "cuTexRefSetMipmapLevelBias",
        "cuTexRefSetMipmapLevelClamp", "cuTexRefSetMipmappedArray",
    ]),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use super::*;
    use crate::{DRIVER_SYMBOLS, PROC_ADDRESSES};

    #[test]
    fn every_name_of_a_driver_stands_in_a_class() {
        let missing: Vec<_> = DRIVER_SYMBOLS
            .iter()
            .copied()
            .chain(PROC_ADDRESSES.iter().map(|row| row.symbol))
            .filter(|name| class_of(name).is_none())
            .collect();
        assert!(missing.is_empty(), "in no class: {missing:?}");
    }

    #[test]
    fn no_name_stands_in_two_classes() {
        let mut seen = BTreeMap::new();
        for names in CLASSES
            .iter()
            .map(|(_, names)| names)
            .chain(PASS.iter().map(|(_, names)| names))
        {
            for name in *names {
                *seen.entry(*name).or_insert(0) += 1;
            }
        }
        let twice: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "twice: {twice:?}");
    }

    #[test]
    fn a_name_of_no_driver_has_no_class() {
        assert_eq!(class_of("cudnnCreate"), None);
        assert_eq!(class_of("cuMemAlloc_v9"), None);
    }

    #[test]
    fn every_row_of_the_signature_table_has_a_class() {
        macro_rules! names {
            ($(fn $name:ident($($arg:ident: $ty:ty),*);)*) => { [$(stringify!($name)),*] };
        }
        let missing: Vec<_> = crate::driver_functions!(names)
            .into_iter()
            .filter(|n| class_of(n).is_none())
            .collect();
        assert!(missing.is_empty(), "in no class: {missing:?}");
    }
}
