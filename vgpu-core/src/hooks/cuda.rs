//! The driver's functions.

#[allow(
    clippy::wildcard_imports,
    reason = "the rows name most types of the crate"
)]
use cuda_api::*;

use crate::driver::addresses::{Lookup, first_rows};
use crate::driver::hook::{hooks, index};
use crate::guest::border::DefaultStream as _;
use crate::rules::compute::{self, copies};
use crate::rules::pools;
use crate::rules::{
    arrays, checkpoint, contexts, dispatch, external, first_use, graph_launches, graphs, ipc,
    libraries, memory, modules, offers, report, sparse, virtual_memory,
};
use crate::state::launches::costs::Work;

/// `CU_MEM_ATTACH_GLOBAL`.
const ATTACH_GLOBAL: u32 = 1;

/// From what the driver's `cuGetProcAddress` gives to our hooks.
pub(crate) static LOOKUP: Lookup = Lookup::new(HOOKS, &FIRST_ROWS);
const FIRST_ROWS: [u16; 1024] = first_rows(&INDEX, NAMES);
pub(super) const INDEX: [u16; 1024] = index(NAMES);

// The name after `and` is that of the function whose default stream is the thread's own; `default` says in a row
// which of the two is called.
hooks! {
    cuda -> CuResult, default;

    // Looking up.

    /// Refused where the limits were not understood.
    fn cuInit(flags: u32) => { dispatch::before_init(), dispatch::after_init() }
    /// The driver's answer, with our hook in place of a function that has one.
    fn cuGetProcAddress(symbol: *const c_char, out: *mut *mut c_void, version: i32, flags: u64)
        => { _, dispatch::after_proc_address(&LOOKUP, symbol, out, version, flags) }
    /// The driver's answer, with our hook in place of a function that has one.
    fn cuGetProcAddress_v2(
        symbol: *const c_char, out: *mut *mut c_void, version: i32, flags: u64,
        status: *mut CuDriverProcAddressQueryResult,
    ) => { _, dispatch::after_proc_address(&LOOKUP, symbol, out, version, flags) }
    /// Refused where there is no room for such a runtime.
    fn cuGetExportTable(out: *mut *const c_void, export_table_id: *const CuUuid)
        => { contexts::before_export_table(export_table_id), contexts::after_export_table() }
    /// Without the devices that the container may not use.
    fn cuDeviceGetCount(count: *mut i32) => { _, dispatch::after_device_count(count) }
    /// By the container's numbering.
    fn cuDeviceGet(device: *mut CuDevice, ordinal: i32)
        => { _, dispatch::after_device_get(device, ordinal) }
    /// Not found when the container may not use it.
    fn cuDeviceGetByPCIBusId(device: *mut CuDevice, pci_bus_id: *const c_char)
        => { _, dispatch::after_device_named(device) }

    // Figures.

    /// The container's share and its free part.
    fn cuMemGetInfo(free: *mut u32, total: *mut u32)
        => { _, report::after_memory_info(free, total) }
    /// The container's share and its free part.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize)
        => { _, report::after_memory_info(free, total) }
    /// The container's share.
    fn cuDeviceTotalMem(bytes: *mut u32, device: CuDevice)
        => { _, report::after_total(bytes, device) }
    /// The container's share.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CuDevice)
        => { _, report::after_total(bytes, device) }

    // Plain memory.

    /// Refused once the container holds its memory limit.
    fn cuMemAlloc(ptr: *mut u32, bytes: u32)
        => { memory::before_alloc("cuMemAlloc", bytes as usize), memory::after_alloc(ptr) }
    /// Refused once the container holds its memory limit; managed memory past its share of the
    /// device.
    fn cuMemAlloc_v2(out: *mut CuDevicePtr, bytes: usize) => {
        at once memory::alloc_at_once(bytes), memory::given_at_once(out);
        memory::before_pageable("cuMemAlloc_v2", bytes), memory::after_alloc(out),
        memory::is_paged => cuMemAllocManaged(out, bytes, ATTACH_GLOBAL)
    }
    /// Charged at once, wherever its pages are.
    fn cuMemAllocManaged(out: *mut CuDevicePtr, bytes: usize, flags: u32)
        => { memory::before_managed("cuMemAllocManaged", bytes), memory::after_alloc(out) }
    /// Charged with the driver's pitch.
    fn cuMemAllocPitch(
        ptr: *mut u32, pitch: *mut u32, width_bytes: u32, height: u32, element_bytes: u32,
    ) => {
        memory::before_pitch("cuMemAllocPitch", u64::from(width_bytes), u64::from(height)),
        memory::after_pitch(ptr, pitch, u64::from(height))
    }
    /// Charged with the driver's pitch.
    fn cuMemAllocPitch_v2(
        out: *mut CuDevicePtr, pitch: *mut usize, width_bytes: usize, height: usize,
        element_bytes: u32,
    ) => {
        memory::before_pageable_pitch(
            "cuMemAllocPitch_v2", pitch, width_bytes, height, element_bytes,
        ),
        memory::after_pageable_pitch(out, pitch, width_bytes, height),
        memory::is_paged
            => cuMemAllocManaged(out, memory::pitched(width_bytes, height), ATTACH_GLOBAL)
    }
    /// Refunds the charge of the pointer.
    fn cuMemFree(ptr: u32) => { memory::before_free(ptr), memory::after_free() }
    /// Refunds the charge of the pointer.
    fn cuMemFree_v2(ptr: CuDevicePtr) => {
        at once memory::free_at_once(ptr), memory::freed_at_once();
        memory::before_free(ptr), memory::after_free()
    }

    /// Charged by its rows.
    fn cuArrayCreate(handle: *mut CuArray, desc: *const CuArrayDescriptorV1)
        => { arrays::before_array("cuArrayCreate", desc, 1), arrays::after_array(handle, desc) }
    /// Charged by its rows.
    fn cuArrayCreate_v2(handle: *mut CuArray, desc: *const CuArrayDescriptor)
        => { arrays::before_array("cuArrayCreate_v2", desc, 1), arrays::after_array(handle, desc) }
    /// Charged by its rows.
    fn cuArray3DCreate(handle: *mut CuArray, desc: *const CuArray3DDescriptorV1)
        => { arrays::before_array("cuArray3DCreate", desc, 1), arrays::after_array(handle, desc) }
    /// Charged by its rows.
    fn cuArray3DCreate_v2(handle: *mut CuArray, desc: *const CuArray3DDescriptor)
        => { arrays::before_array("cuArray3DCreate_v2", desc, 1), arrays::after_array(handle, desc) }
    /// Charged by the rows of its levels.
    fn cuMipmappedArrayCreate(
        handle: *mut CuMipmappedArray, desc: *const CuArray3DDescriptor, levels: u32,
    ) => {
        arrays::before_array("cuMipmappedArrayCreate", desc, levels),
        arrays::after_mipmapped(handle, desc)
    }
    /// Refunds it.
    fn cuArrayDestroy(array: CuArray)
        => { arrays::before_array_free(array), arrays::after_array_free() }
    /// Refunds it.
    fn cuMipmappedArrayDestroy(array: CuMipmappedArray)
        => { arrays::before_array_free(array), arrays::after_array_free() }

    /// Memory requested as device memory is reported as device memory, even if it is managed.
    fn cuPointerGetAttribute(data: *mut c_void, attribute: CuPointerAttribute, ptr: CuDevicePtr)
        => { _, memory::after_attribute(data, attribute, ptr) }
    /// Memory requested as device memory is reported as device memory, even if it is managed.
    fn cuPointerGetAttributes(
        count_attributes: u32, attributes: *mut CuPointerAttribute, data: *mut *mut c_void,
        ptr: CuDevicePtr,
    ) => { _, memory::after_attributes(count_attributes, attributes, data, ptr) }

    /// Its charge moves to the table of shared objects.
    fn cuIpcGetMemHandle(handle: *mut CuIpcMemHandle, ptr: CuDevicePtr) => {
        ipc::before_get("cuIpcGetMemHandle", ptr), ipc::after_get(handle, ptr)
    }
    /// Not charged a second time.
    fn cuIpcOpenMemHandle(out: *mut CuDevicePtr, handle: CuIpcMemHandle, flags: u32)
        => { ipc::before_open(handle), ipc::after_open("cuIpcOpenMemHandle", out) }
    /// Not charged a second time.
    fn cuIpcOpenMemHandle_v2(out: *mut CuDevicePtr, handle: CuIpcMemHandle, flags: u32)
        => { ipc::before_open(handle), ipc::after_open("cuIpcOpenMemHandle_v2", out) }
    /// The last holder takes the charge along.
    fn cuIpcCloseMemHandle(ptr: CuDevicePtr)
        => { ipc::before_close(ptr), ipc::after_close(ptr) }

    // Contexts.

    /// Reserves the known size of a context.
    fn cuCtxCreate(out: *mut CuContext, flags: u32, device: CuDevice)
        => { contexts::before_create("cuCtxCreate", device), contexts::after_create(out) }
    /// Reserves the known size of a context.
    fn cuCtxCreate_v2(out: *mut CuContext, flags: u32, device: CuDevice)
        => { contexts::before_create("cuCtxCreate_v2", device), contexts::after_create(out) }
    /// Reserves the known size of a context.
    fn cuCtxCreate_v3(
        out: *mut CuContext, affinity: *mut CuExecAffinityParam, count: i32, flags: u32,
        device: CuDevice,
    ) => { contexts::before_create("cuCtxCreate_v3", device), contexts::after_create(out) }
    /// Reserves the known size of a context.
    fn cuCtxCreate_v4(
        out: *mut CuContext, params: *mut CuCtxCreateParams, flags: u32, device: CuDevice,
    ) => { contexts::before_create("cuCtxCreate_v4", device), contexts::after_create(out) }
    /// Refunds the context and the memory that the driver frees with it.
    fn cuCtxDestroy(context: CuContext)
        => { contexts::before_destroy(context), contexts::after_destroy() }
    /// Refunds the context and the memory that the driver frees with it.
    fn cuCtxDestroy_v2(context: CuContext)
        => { contexts::before_destroy(context), contexts::after_destroy() }
    /// One more reference.
    fn cuCtxAttach(out: *mut CuContext, flags: u32) => { _, contexts::after_attach(out) }
    /// Refunds the context with its last reference.
    fn cuCtxDetach(context: CuContext)
        => { contexts::before_detach(context), contexts::after_destroy() }
    /// Reserves the known size of a context, if it is not there yet.
    fn cuDevicePrimaryCtxRetain(out: *mut CuContext, device: CuDevice) => {
        contexts::before_retain("cuDevicePrimaryCtxRetain", device),
        contexts::after_retain(out)
    }
    /// Refunds the context with its last reference.
    fn cuDevicePrimaryCtxRelease(device: CuDevice) => { contexts::before_release(device), contexts::after_release(device) }
    /// Refunds the context with its last reference.
    fn cuDevicePrimaryCtxRelease_v2(device: CuDevice) => { contexts::before_release(device), contexts::after_release(device) }
    /// Refunds the context and the memory that the driver frees with it.
    fn cuDevicePrimaryCtxReset(device: CuDevice) => { contexts::before_release(device), contexts::after_release(device) }
    /// Refunds the context and the memory that the driver frees with it.
    fn cuDevicePrimaryCtxReset_v2(device: CuDevice) => { contexts::before_release(device), contexts::after_release(device) }
    /// Makes the primary context if it is not there yet.
    fn cuGreenCtxCreate(
        out: *mut CuGreenCtx, desc: CuDevResourceDesc, device: CuDevice, flags: u32,
    ) => {
        contexts::before_green_create("cuGreenCtxCreate", device),
        contexts::after_green_create(out)
    }
    /// Refunds the memory that it made.
    fn cuGreenCtxDestroy(green: CuGreenCtx)
        => { contexts::before_green_destroy(green), contexts::after_green_destroy() }
    /// Not charged a second time.
    fn cuCtxFromGreenCtx(context: *mut CuContext, green: CuGreenCtx)
        => { _, contexts::after_from_green(context, green) }
    /// A larger heap or print buffer is memory, too.
    fn cuCtxSetLimit(limit: CuLimit, value: usize)
        => { contexts::before_set_limit("cuCtxSetLimit", limit, value), contexts::after_set_limit() }

    // Stream-ordered memory.

    /// Reserves the growth of its pool.
    fn cuMemAllocAsync(out: *mut CuDevicePtr, bytes: usize, stream: CuStream) and cuMemAllocAsync_ptsz => { pools::before_alloc("cuMemAllocAsync", bytes, None, default.handle(stream)), pools::after_alloc("cuMemAllocAsync", out, default.handle(stream)) }
    /// Reserves the growth of its pool.
    fn cuMemAllocFromPoolAsync(out: *mut CuDevicePtr, bytes: usize, pool: CuMemoryPool, stream: CuStream) and cuMemAllocFromPoolAsync_ptsz => { pools::before_alloc("cuMemAllocFromPoolAsync", bytes, Some(pool), default.handle(stream)), pools::after_alloc("cuMemAllocFromPoolAsync", out, default.handle(stream)) }
    /// Returns the memory to its pool.
    fn cuMemFreeAsync(ptr: CuDevicePtr, stream: CuStream) and cuMemFreeAsync_ptsz => {
        memory::before_free_async(ptr, default.handle(stream)), memory::after_free_async(default.handle(stream)),
        memory::is_freed_plainly => cuMemFree_v2(ptr)
    }
    /// The pool's memory is charged from here on.
    fn cuMemPoolCreate(out: *mut CuMemoryPool, properties: *const CuMemPoolProps) => { pools::before_create(properties), pools::after_create(out, properties) }
    /// Its memory stays charged until its last allocation is freed.
    fn cuMemPoolDestroy(pool: CuMemoryPool) => { pools::before_destroy(pool), pools::after_destroy(pool) }
    /// Settled to the memory that it then holds.
    fn cuMemPoolTrimTo(pool: CuMemoryPool, keep: usize) => { _, pools::after_change(pool) }
    /// Settled to the memory that it then holds.
    fn cuMemPoolSetAttribute(pool: CuMemoryPool, attribute: CuMemPoolAttribute, value: *mut c_void) => { _, pools::after_change(pool) }
    /// The memory is charged to the process that made the pool.
    fn cuMemPoolImportFromShareableHandle(out: *mut CuMemoryPool, handle: *mut c_void, kind: CuMemAllocationHandleType, flags: u64) => { _, pools::after_import(out) }
    /// Its charge moves to the table of shared objects.
    fn cuMemPoolExportPointer(out: *mut CuMemPoolPtrExportData, ptr: CuDevicePtr) => {
        offers::before_export("cuMemPoolExportPointer", ptr), offers::after_export("cuMemPoolExportPointer", out, ptr)
    }
    /// Not charged a second time; memory from outside the container is charged in full.
    fn cuMemPoolImportPointer(out: *mut CuDevicePtr, pool: CuMemoryPool, data: *mut CuMemPoolPtrExportData) => {
        offers::before_import("cuMemPoolImportPointer", data), offers::after_import("cuMemPoolImportPointer", out)
    }
    /// The pool's memory is charged from here on.
    fn cuDeviceGetDefaultMemPool(out: *mut CuMemoryPool, device: CuDevice) => { _, pools::after_get_device(out, device) }
    /// The pool's memory is charged from here on.
    fn cuDeviceGetMemPool(out: *mut CuMemoryPool, device: CuDevice) => { _, pools::after_get_device(out, device) }
    /// The pool's memory is charged from here on, unless it is the host's.
    fn cuMemGetDefaultMemPool(out: *mut CuMemoryPool, location: *mut CuMemLocation, kind: CuMemAllocationType) => { _, pools::after_get(out, location, kind) }
    /// The pool's memory is charged from here on, unless it is the host's.
    fn cuMemGetMemPool(out: *mut CuMemoryPool, location: *mut CuMemLocation, kind: CuMemAllocationType) => { _, pools::after_get(out, location, kind) }
    // Memory that is made and mapped apart.

    /// Charged to the device that it is requested on.
    fn cuMemCreate(out: *mut CuMemAllocationHandle, bytes: usize, properties: *const CuMemAllocationProp, flags: u64) => { virtual_memory::before_create("cuMemCreate", bytes, properties), virtual_memory::after_create(out) }
    /// Refunded when no mapping holds it either.
    fn cuMemRelease(handle: CuMemAllocationHandle) => { virtual_memory::before_release(handle), virtual_memory::after_release() }
    /// Holds the memory.
    fn cuMemMap(ptr: CuDevicePtr, bytes: usize, offset: usize, handle: CuMemAllocationHandle, flags: u64) => { virtual_memory::before_map("cuMemMap", handle, offset, bytes), virtual_memory::after_map(ptr, bytes, handle) }
    /// Ends a hold of the memory.
    fn cuMemUnmap(ptr: CuDevicePtr, bytes: usize) => { virtual_memory::before_unmap(ptr, bytes), virtual_memory::after_unmap(ptr, bytes) }
    /// One more reference.
    fn cuMemRetainAllocationHandle(out: *mut CuMemAllocationHandle, address: *mut c_void) => { _, virtual_memory::after_retain(out, address) }
    /// Its charge moves to the table of shared objects.
    fn cuMemExportToShareableHandle(out: *mut c_void, handle: CuMemAllocationHandle, kind: CuMemAllocationHandleType, flags: u64) => { virtual_memory::before_export("cuMemExportToShareableHandle", handle), virtual_memory::after_export(out, handle, kind) }
    /// Not charged a second time.
    fn cuMemImportFromShareableHandle(out: *mut CuMemAllocationHandle, name: *mut c_void, kind: CuMemAllocationHandleType) => { virtual_memory::before_import(name, kind), virtual_memory::after_import(out) }
    /// A sparse array holds the memory that is mapped to it.
    fn cuMemMapArrayAsync(tiles: *mut c_void, count: u32, stream: CuStream) and cuMemMapArrayAsync_ptsz => { sparse::before_map(tiles, count), sparse::after_map(tiles, count, stream) }
    /// Known from here on: it has no memory of its own.
    fn cuMulticastCreate(object: *mut CuMemAllocationHandle, properties: *const CuMulticastObjectProp) => { _, virtual_memory::after_multicast(object) }
    /// A multicast object holds the memory that is bound to it.
    fn cuMulticastBindMem(object: CuMemAllocationHandle, offset: usize, memory: CuMemAllocationHandle, memory_offset: usize, bytes: usize, flags: u64) => { virtual_memory::before_bind("cuMulticastBindMem", memory, memory_offset, bytes), virtual_memory::after_bind(object, offset, bytes) }
    /// A multicast object holds the memory that is bound to it.
    fn cuMulticastBindMem_v2(object: CuMemAllocationHandle, device: CuDevice, offset: usize, memory: CuMemAllocationHandle, memory_offset: usize, bytes: usize, flags: u64) => { virtual_memory::before_bind("cuMulticastBindMem", memory, memory_offset, bytes), virtual_memory::after_bind(object, offset, bytes) }
    /// A multicast object holds the memory that is bound to it.
    fn cuMulticastBindAddr(object: CuMemAllocationHandle, offset: usize, ptr: CuDevicePtr, bytes: usize, flags: u64) => { virtual_memory::before_bind_address(ptr), virtual_memory::after_bind(object, offset, bytes) }
    /// A multicast object holds the memory that is bound to it.
    fn cuMulticastBindAddr_v2(object: CuMemAllocationHandle, device: CuDevice, offset: usize, ptr: CuDevicePtr, bytes: usize, flags: u64) => { virtual_memory::before_bind_address(ptr), virtual_memory::after_bind(object, offset, bytes) }
    /// Ends a hold of the memory.
    fn cuMulticastUnbind(object: CuMemAllocationHandle, device: CuDevice, offset: usize, bytes: usize) => { _, virtual_memory::after_unbind(object, device, offset, bytes) }
    /// The descriptor keeps the memory after it is freed.
    fn cuMemGetHandleForAddressRange(out: *mut c_void, ptr: CuDevicePtr, bytes: usize, kind: CuMemRangeHandleType, flags: u64) => { _, external::after_range(out, ptr) }
    // Memory of other APIs.

    /// Charged as large as the program says.
    fn cuImportExternalMemory(out: *mut CuExternalMemory, description: *const CuExternalMemoryHandleDesc) => { external::before_import("cuImportExternalMemory", description), external::after_import(out) }
    /// Refunds it.
    fn cuDestroyExternalMemory(memory: CuExternalMemory) => { external::before_destroy(memory), external::after_destroy() }
    /// Charged when it is first mapped.
    fn cuGraphicsMapResources(count: u32, resources: *mut CuGraphicsResource, stream: CuStream) and cuGraphicsMapResources_ptsz => { _, external::after_map_resources(count, resources, stream, default.is_per_thread()) }
    /// Refunds it.
    fn cuGraphicsUnregisterResource(resource: CuGraphicsResource) => { external::before_unregister(resource), external::after_unregister() }
    // Checkpoints.

    /// Refunds the process's charges until it is restored.
    fn cuCheckpointProcessCheckpoint(pid: i32, arguments: *mut c_void) => { _, checkpoint::after_checkpoint(pid, arguments) }
    /// Refunds the charges of processes that are checkpointed until they are restored.
    fn cuCheckpointOperationComplete(operation: CuCheckpointOperationHandle) => { _, checkpoint::after_complete() }
    /// Refused where the process's memory has no room any more.
    fn cuCheckpointProcessRestore(pid: i32, arguments: *mut c_void) => { checkpoint::before_restore("cuCheckpointProcessRestore", pid, arguments), checkpoint::after_restore() }
    // Modules and libraries.

    /// Reserves the memory of the image in its file.
    fn cuModuleLoad(out: *mut CuModule, path: *const c_char) => { modules::before_load("cuModuleLoad", path), modules::after_load(out) }
    /// Reserves the memory of its image.
    fn cuModuleLoadData(out: *mut CuModule, image: *const c_void) => { modules::before_load("cuModuleLoadData", image), modules::after_load(out) }
    /// Reserves the memory of its image.
    fn cuModuleLoadDataEx(out: *mut CuModule, image: *const c_void, count: u32, options: *mut CuJitOption, values: *mut *mut c_void) => { modules::before_load("cuModuleLoadDataEx", image), modules::after_load(out) }
    /// Reserves the memory of its image.
    fn cuModuleLoadFatBinary(out: *mut CuModule, image: *const c_void) => { modules::before_load("cuModuleLoadFatBinary", image), modules::after_load(out) }
    /// Refunds it.
    fn cuModuleUnload(module: CuModule) => { modules::before_unload(module), modules::after_unload() }
    /// Reserves the memory of its image.
    fn cuLibraryLoadData(out: *mut CuLibrary, image: *const c_void, jit_options: *mut CuJitOption, jit_values: *mut *mut c_void, jit_count: u32, options: *mut CuLibraryOption, values: *mut *mut c_void, count: u32) => { libraries::before_load("cuLibraryLoadData", image), libraries::after_load(out) }
    /// Reserves the memory of the image in its file.
    fn cuLibraryLoadFromFile(out: *mut CuLibrary, path: *const c_char, jit_options: *mut CuJitOption, jit_values: *mut *mut c_void, jit_count: u32, options: *mut CuLibraryOption, values: *mut *mut c_void, count: u32) => { libraries::before_load("cuLibraryLoadFromFile", path), libraries::after_load(out) }
    /// Refunds it.
    fn cuLibraryUnload(library: CuLibrary) => { libraries::before_unload(library), libraries::after_unload() }
    /// Counts the code that it loads.
    fn cuModuleGetFunction(function: *mut CuFunction, module: CuModule, name: *const c_char) => { modules::before_look_up("cuModuleGetFunction", module), modules::after_get_module_function(function) }
    /// Counts the code that it loads.
    fn cuModuleEnumerateFunctions(functions: *mut CuFunction, count_functions: u32, module: CuModule) => { modules::before_look_up("cuModuleEnumerateFunctions", module), modules::after_functions(functions, count_functions) }
    /// Counts the code that it loads.
    fn cuModuleGetGlobal(ptr: *mut u32, bytes: *mut u32, module: CuModule, name: *const c_char) => { modules::before_look_up("cuModuleGetGlobal", module), modules::after_look_up() }
    /// Counts the code that it loads.
    fn cuModuleGetGlobal_v2(ptr: *mut CuDevicePtr, bytes: *mut usize, module: CuModule, name: *const c_char) => { modules::before_look_up("cuModuleGetGlobal_v2", module), modules::after_look_up() }
    /// Counts the code that it loads.
    fn cuFuncLoad(function: CuFunction) => { modules::before_load_function("cuFuncLoad", function), modules::after_load_function(function) }
    /// Counts the code that it loads.
    fn cuLibraryGetModule(module: *mut CuModule, library: CuLibrary) => { libraries::before_use("cuLibraryGetModule", library), libraries::after_use() }
    /// Counts the code that it loads.
    fn cuLibraryGetGlobal(ptr: *mut CuDevicePtr, bytes: *mut usize, library: CuLibrary, name: *const c_char) => { libraries::before_use("cuLibraryGetGlobal", library), libraries::after_use() }
    /// Counts the code that it loads.
    fn cuLibraryGetManaged(ptr: *mut CuDevicePtr, bytes: *mut usize, library: CuLibrary, name: *const c_char) => { modules::before_look_up("cuLibraryGetManaged", library), modules::after_look_up() }
    /// Counts the code that it loads.
    fn cuLibraryGetKernel(kernel: *mut CuKernel, library: CuLibrary, name: *const c_char) => { modules::before_look_up("cuLibraryGetKernel", library), modules::after_get_kernel(kernel) }
    /// Counts the code that it loads.
    fn cuLibraryEnumerateKernels(kernels: *mut CuKernel, count_kernels: u32, library: CuLibrary) => { modules::before_look_up("cuLibraryEnumerateKernels", library), modules::after_kernels(kernels, count_kernels) }
    /// Counts the code that it loads.
    fn cuLibraryGetUnifiedFunction(fptr: *mut *mut c_void, library: CuLibrary, symbol: *const c_char) => { modules::before_look_up("cuLibraryGetUnifiedFunction", library), modules::after_look_up() }
    /// Counts the code that it loads.
    fn cuKernelGetFunction(func: *mut CuFunction, kernel: CuKernel) => { libraries::before_use_kernel("cuKernelGetFunction", kernel), libraries::after_use_kernel(func, kernel) }
    // Memory of graphs.

    /// Counts the code that it loads for the node's function, as the graph's first launch does.
    fn cuGraphAddKernelNode(out: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, count: usize, params: *const CuKernelNodeParamsV1)
        => { first_use::before_exchange(params), first_use::after_add() }
    /// Counts the code that it loads for the node's function, as the graph's first launch does.
    fn cuGraphAddKernelNode_v2(out: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, count: usize, params: *const CuKernelNodeParams)
        => { first_use::before_exchange(params), first_use::after_add() }
    /// The process has a memory node: launches of graphs look for their memory from here on.
    fn cuGraphAddMemAllocNode(out: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, count: usize, params: *mut CuMemAllocNodeParams) => { _, graphs::after_add_alloc() }
    /// As `cuGraphAddMemAllocNode` or `cuGraphAddKernelNode`, if the node is of that kind.
    fn cuGraphAddNode(out: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, count: usize, params: *mut CuGraphNodeParams) => { graphs::before_node(params), graphs::after_add(params) }
    /// As `cuGraphAddMemAllocNode` or `cuGraphAddKernelNode`, if the node is of that kind.
    fn cuGraphAddNode_v2(out: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, data: *const CuGraphEdgeData, count: usize, params: *mut CuGraphNodeParams) => { graphs::before_node(params), graphs::after_add(params) }
    /// As `cuGraphAddMemAllocNode` or `cuGraphAddKernelNode`, if the node is of that kind.
    fn cuGraphAddNode_v3(out: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, data: *const CuGraphEdgeData, count: usize, params: *mut CuGraphNodeParams) => { graphs::before_node(params), graphs::after_add(params) }
    /// Counts the code that it loads for the node's new function, as the graph's first launch does.
    fn cuGraphKernelNodeSetParams(node: CuGraphNode, params: *const CuKernelNodeParamsV1)
        => { first_use::before_exchange(params), first_use::after_add() }
    /// Counts the code that it loads for the node's new function, as the graph's first launch does.
    fn cuGraphKernelNodeSetParams_v2(node: CuGraphNode, params: *const CuKernelNodeParams)
        => { first_use::before_exchange(params), first_use::after_add() }
    /// As `cuGraphKernelNodeSetParams`, if the node is a kernel.
    fn cuGraphNodeSetParams(node: CuGraphNode, params: *mut CuGraphNodeParams) => { graphs::before_node(params), graphs::after_add(params) }
    /// As `cuGraphKernelNodeSetParams`, if the node is a kernel.
    fn cuGraphNodeSetParams_v2(node: CuGraphNode, params: *mut CuGraphNodeParams) => { graphs::before_node(params), graphs::after_add(params) }
    /// Counts the memory that it will want.
    fn cuGraphInstantiate(out: *mut CuGraphExec, graph: CuGraph, error_node: *mut CuGraphNode, text: *mut c_char, length: usize) => { graphs::before_instantiate("cuGraphInstantiate", graph, 0), graphs::after_instantiate("cuGraphInstantiate", out) }
    /// Counts the memory that it will want.
    fn cuGraphInstantiate_v2(out: *mut CuGraphExec, graph: CuGraph, error_node: *mut CuGraphNode, text: *mut c_char, length: usize) => { graphs::before_instantiate("cuGraphInstantiate_v2", graph, 0), graphs::after_instantiate("cuGraphInstantiate_v2", out) }
    /// Counts the memory that it will want.
    fn cuGraphInstantiateWithFlags(out: *mut CuGraphExec, graph: CuGraph, flags: u64) => { graphs::before_instantiate("cuGraphInstantiateWithFlags", graph, flags), graphs::after_instantiate("cuGraphInstantiateWithFlags", out) }
    /// Counts the memory that it will want.
    fn cuGraphInstantiateWithParams(out: *mut CuGraphExec, graph: CuGraph, params: *mut CuGraphInstantiateParams) and cuGraphInstantiateWithParams_ptsz => { graphs::before_instantiate_with("cuGraphInstantiateWithParams", graph, params), graphs::after_instantiate("cuGraphInstantiateWithParams", out) }
    /// Reserves the memory that the graph's nodes want.
    fn cuGraphUpload(exec: CuGraphExec, stream: CuStream) and cuGraphUpload_ptsz => { graph_launches::before_upload("cuGraphUpload", exec, default.number(stream)), graph_launches::after_graph() }
    /// Waits for its share of the device, and reserves the memory that its nodes want.
    fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream) and cuGraphLaunch_ptsz => { graph_launches::before_graph("cuGraphLaunch", exec, default.number(stream)), graph_launches::after_graph() }
    /// Counts the code that it loads for the new graph's functions, and the memory that it will want as well.
    fn cuGraphExecUpdate(exec: CuGraphExec, graph: CuGraph, error_node_out: *mut CuGraphNode, update_result_out: *mut CuGraphExecUpdateResult) => { graphs::before_update(), graphs::after_update(exec, graph) }
    /// Counts the code that it loads for the new graph's functions, and the memory that it will want as well.
    fn cuGraphExecUpdate_v2(exec: CuGraphExec, graph: CuGraph, result_info: *mut CuGraphExecUpdateResultInfo) => { graphs::before_update(), graphs::after_update(exec, graph) }
    /// Counts the code that it loads for the node's new function, as the graph's next launch does.
    fn cuGraphExecKernelNodeSetParams(exec: CuGraphExec, node: CuGraphNode, params: *const CuKernelNodeParamsV1)
        => { first_use::before_exchange(params), first_use::after_exchange(exec) }
    /// Counts the code that it loads for the node's new function, as the graph's next launch does.
    fn cuGraphExecKernelNodeSetParams_v2(exec: CuGraphExec, node: CuGraphNode, params: *const CuKernelNodeParams)
        => { first_use::before_exchange(params), first_use::after_exchange(exec) }
    /// Counts the memory that the new part will want as well.
    fn cuGraphExecChildGraphNodeSetParams(exec: CuGraphExec, node: CuGraphNode, child: CuGraph) => { _, graphs::after_child(exec, child) }
    /// Counts the memory that the new part will want as well, if it is a graph.
    fn cuGraphExecNodeSetParams(exec: CuGraphExec, node: CuGraphNode, params: *mut CuGraphNodeParams) => { graphs::before_node(params), graphs::after_node(exec, params) }
    /// Settled to the memory that is left.
    fn cuGraphExecDestroy(exec: CuGraphExec) => { _, graphs::after_destroy(exec) }
    /// Settled to the memory that is left.
    fn cuGraphDestroy(graph: CuGraph) => { _, graphs::after_change() }
    /// Settled to the memory that is left.
    fn cuDeviceGraphMemTrim(device: CuDevice) => { _, graphs::after_trim(device) }
    // Launches.

    /// Waits for its share of the device.
    fn cuLaunchKernel(function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: CuStream, params: *mut *mut c_void, extra: *mut *mut c_void) and cuLaunchKernel_ptsz => { if compute::look(default.number(stream)) or compute::pays(Work::kernel(function as usize, [grid_x, grid_y, grid_z], [block_x, block_y, block_z]), default.number(stream)); compute::before(Work::kernel(function as usize, [grid_x, grid_y, grid_z], [block_x, block_y, block_z]), default.number(stream)), compute::after() }
    /// Waits for its share of the device.
    fn cuLaunchCooperativeKernel(function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: CuStream, params: *mut *mut c_void) and cuLaunchCooperativeKernel_ptsz => { if compute::look(default.number(stream)) or compute::pays(Work::kernel(function as usize, [grid_x, grid_y, grid_z], [block_x, block_y, block_z]), default.number(stream)); compute::before(Work::kernel(function as usize, [grid_x, grid_y, grid_z], [block_x, block_y, block_z]), default.number(stream)), compute::after() }
    /// Waits for its share of the device.
    fn cuLaunchKernelEx(config: *const CuLaunchConfig, function: CuFunction, params: *mut *mut c_void, extra: *mut *mut c_void) and cuLaunchKernelEx_ptsz => { if compute::look_config(config, default) or compute::pays_config(config, function as usize, default); compute::before_config(config, function as usize, default), compute::after() }
    /// Waits for its share of each device.
    fn cuLaunchCooperativeKernelMultiDevice(launch_params_list: *mut CuLaunchParams, count_devices: u32, flags: u32) => { compute::before_many(launch_params_list, count_devices), compute::after_many() }
    /// Waits for its share of the device.
    fn cuLaunch(function: CuFunction) => { compute::before(Work::kernel(function as usize, [1; 3], [1; 3]), 1), compute::after() }
    /// Waits for its share of the device.
    fn cuLaunchGrid(function: CuFunction, grid_width: i32, grid_height: i32) => { compute::before(Work::kernel(function as usize, [grid_width.unsigned_abs(), grid_height.unsigned_abs(), 1], [1; 3]), 1), compute::after() }
    /// Waits for its share of the device.
    fn cuLaunchGridAsync(function: CuFunction, grid_width: i32, grid_height: i32, stream: CuStream) => { compute::before(Work::kernel(function as usize, [grid_width.unsigned_abs(), grid_height.unsigned_abs(), 1], [1; 3]), default.number(stream)), compute::after() }
    // Other work that is put into streams.

    /// Counted, not charged.
    fn cuLaunchHostFunc(stream: CuStream, callback: CuHostFn, data: *mut c_void) and cuLaunchHostFunc_ptsz => { _, copies::after_host_function(default.number(stream)) }
    /// Counted, not charged.
    fn cuLaunchHostFunc_v2(stream: CuStream, callback: CuHostFn, data: *mut c_void, sync_mode: u32) and cuLaunchHostFunc_v2_ptsz => { _, copies::after_host_function(default.number(stream)) }
    /// Counted, not charged.
    fn cuStreamAddCallback(stream: CuStream, callback: CuStreamCallback, data: *mut c_void, flags: u32) and cuStreamAddCallback_ptsz => { _, copies::after_host_function(default.number(stream)) }
    /// Not counted as work of the stream.
    fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: u32) and cuStreamWaitEvent_ptsz => { _, copies::after_wait(default.number(stream)) }
    /// Not counted as work of the stream.
    fn cuStreamBatchMemOp(stream: CuStream, count: u32, param_array: *mut CuStreamBatchMemOpParams, flags: u32) and cuStreamBatchMemOp_ptsz => { _, copies::after_wait(default.number(stream)) }
    /// Not counted as work of the stream.
    fn cuStreamBatchMemOp_v2(stream: CuStream, count: u32, param_array: *mut CuStreamBatchMemOpParams, flags: u32) and cuStreamBatchMemOp_v2_ptsz => { _, copies::after_wait(default.number(stream)) }
    /// Not counted as work of the stream.
    fn cuStreamWaitValue32(stream: CuStream, addr: CuDevicePtr, value: u32, flags: u32) and cuStreamWaitValue32_ptsz => { _, copies::after_wait(default.number(stream)) }
    /// Not counted as work of the stream.
    fn cuStreamWaitValue32_v2(stream: CuStream, addr: CuDevicePtr, value: u32, flags: u32) and cuStreamWaitValue32_v2_ptsz => { _, copies::after_wait(default.number(stream)) }
    /// Not counted as work of the stream.
    fn cuStreamWaitValue64(stream: CuStream, addr: CuDevicePtr, value: u64, flags: u32) and cuStreamWaitValue64_ptsz => { _, copies::after_wait(default.number(stream)) }
    /// Not counted as work of the stream.
    fn cuStreamWaitValue64_v2(stream: CuStream, addr: CuDevicePtr, value: u64, flags: u32) and cuStreamWaitValue64_v2_ptsz => { _, copies::after_wait(default.number(stream)) }
    /// Counted, not charged.
    fn cuMemBatchDecompressAsync(params_array: *mut c_void, count: usize, flags: u32, error_index: *mut usize, stream: CuStream) and cuMemBatchDecompressAsync_ptsz => { _, copies::after(0_usize, count, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpy2DAsync(copy: *const CuMemcpy2DV1, stream: CuStream) => { _, copies::after_shape(copy, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpy2DAsync_v2(copy: *const CuMemcpy2D, stream: CuStream) and cuMemcpy2DAsync_v2_ptsz => { _, copies::after_shape(copy, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpy3DAsync(copy: *const CuMemcpy3DV1, stream: CuStream) => { _, copies::after_shape(copy, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpy3DAsync_v2(copy: *const CuMemcpy3D, stream: CuStream) and cuMemcpy3DAsync_v2_ptsz => { _, copies::after_shape(copy, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpy3DBatchAsync(count_ops: usize, op_list: *mut c_void, fail_idx: *mut usize, flags: u64, stream: CuStream) and cuMemcpy3DBatchAsync_ptsz => { _, copies::after(0_usize, count_ops, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpy3DBatchAsync_v2(count_ops: usize, op_list: *mut c_void, flags: u64, stream: CuStream) and cuMemcpy3DBatchAsync_v2_ptsz => { _, copies::after(0_usize, count_ops, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpy3DPeerAsync(copy: *const CuMemcpy3DPeer, stream: CuStream) and cuMemcpy3DPeerAsync_ptsz => { _, copies::after_shape(copy, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpy3DWithAttributesAsync(op: *mut c_void, flags: u64, stream: CuStream) and cuMemcpy3DWithAttributesAsync_ptsz => { _, copies::after(0_usize, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyAsync(dst: CuDevicePtr, src: CuDevicePtr, bytes: usize, stream: CuStream) and cuMemcpyAsync_ptsz => { _, copies::after(bytes, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyAtoHAsync(dst: *mut c_void, src: CuArray, src_offset: u32, bytes: u32, stream: CuStream) => { _, copies::after(bytes, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyAtoHAsync_v2(dst: *mut c_void, src: CuArray, src_offset: usize, bytes: usize, stream: CuStream) and cuMemcpyAtoHAsync_v2_ptsz => { _, copies::after(bytes, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyBatchAsync(dsts: *mut CuDevicePtr, srcs: *mut CuDevicePtr, sizes: *mut usize, count: usize, attrs: *mut CuMemcpyAttributes, attrs_idxs: *mut usize, count_attrs: usize, fail_idx: *mut usize, stream: CuStream) and cuMemcpyBatchAsync_ptsz => { _, copies::after_batch(sizes, count, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyBatchAsync_v2(dsts: *mut CuDevicePtr, srcs: *mut CuDevicePtr, sizes: *mut usize, count: usize, attrs: *mut CuMemcpyAttributes, attrs_idxs: *mut usize, count_attrs: usize, stream: CuStream) and cuMemcpyBatchAsync_v2_ptsz => { _, copies::after_batch(sizes, count, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyDtoDAsync(dst: u32, src: u32, bytes: u32, stream: CuStream) => { _, copies::after(bytes, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyDtoDAsync_v2(dst: CuDevicePtr, src: CuDevicePtr, bytes: usize, stream: CuStream) and cuMemcpyDtoDAsync_v2_ptsz => { _, copies::after(bytes, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyDtoHAsync(dst: *mut c_void, src: u32, bytes: u32, stream: CuStream) => { _, copies::after(bytes, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CuDevicePtr, bytes: usize, stream: CuStream) and cuMemcpyDtoHAsync_v2_ptsz => { _, copies::after(bytes, 1, default.number(stream)) }
    /// Counted, not charged; its bytes are in a list whose form is not published.
    fn cuFabricCpyBatchAsync(count_ops: usize, op_list: *mut c_void, flags: u64, stream: CuStream) and cuFabricCpyBatchAsync_ptsz => { _, copies::after(0_usize, count_ops, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyHtoAAsync(dst: CuArray, dst_offset: u32, src: *const c_void, bytes: u32, stream: CuStream) => { _, copies::after(bytes, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyHtoAAsync_v2(dst: CuArray, dst_offset: usize, src: *const c_void, bytes: usize, stream: CuStream) and cuMemcpyHtoAAsync_v2_ptsz => { _, copies::after(bytes, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyHtoDAsync(dst: u32, src: *const c_void, bytes: u32, stream: CuStream) => { _, copies::after(bytes, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyHtoDAsync_v2(dst: CuDevicePtr, src: *const c_void, bytes: usize, stream: CuStream) and cuMemcpyHtoDAsync_v2_ptsz => { _, copies::after(bytes, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyPeerAsync(dst: CuDevicePtr, dst_context: CuContext, src: CuDevicePtr, src_context: CuContext, bytes: usize, stream: CuStream) and cuMemcpyPeerAsync_ptsz => { _, copies::after(bytes, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemcpyWithAttributesAsync(dst: CuDevicePtr, src: CuDevicePtr, size: usize, attribute: *mut CuMemcpyAttributes, stream: CuStream) and cuMemcpyWithAttributesAsync_ptsz => { _, copies::after(size, 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemsetD16Async(dst: CuDevicePtr, value: u16, count: usize, stream: CuStream) and cuMemsetD16Async_ptsz => { _, copies::after(copies::elements(count, 2), 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemsetD2D16Async(dst: CuDevicePtr, dst_pitch: usize, value: u16, width: usize, height: usize, stream: CuStream) and cuMemsetD2D16Async_ptsz => { _, copies::after(copies::elements(width.saturating_mul(height), 2), 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemsetD2D32Async(dst: CuDevicePtr, dst_pitch: usize, value: u32, width: usize, height: usize, stream: CuStream) and cuMemsetD2D32Async_ptsz => { _, copies::after(copies::elements(width.saturating_mul(height), 4), 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemsetD2D8Async(dst: CuDevicePtr, dst_pitch: usize, value: u8, width: usize, height: usize, stream: CuStream) and cuMemsetD2D8Async_ptsz => { _, copies::after(copies::elements(width.saturating_mul(height), 1), 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemsetD32Async(dst: CuDevicePtr, value: u32, count: usize, stream: CuStream) and cuMemsetD32Async_ptsz => { _, copies::after(copies::elements(count, 4), 1, default.number(stream)) }
    /// Counted, not charged.
    fn cuMemsetD8Async(dst: CuDevicePtr, value: u8, count: usize, stream: CuStream) and cuMemsetD8Async_ptsz => { _, copies::after(copies::elements(count, 1), 1, default.number(stream)) }
    // Streams, contexts and captures.

    /// Settles the launches of the stream.
    fn cuStreamDestroy(stream: CuStream) => { compute::before_stream_destroy(stream), _ }
    /// Settles the launches of the stream.
    fn cuStreamDestroy_v2(stream: CuStream) => { compute::before_stream_destroy(stream), _ }
    /// The thread forgets the streams that it remembered.
    fn cuCtxSetCurrent(context: CuContext) => { _, compute::context_changed() }
    /// The thread forgets the streams that it remembered.
    fn cuCtxPushCurrent(context: CuContext) => { _, compute::context_changed() }
    /// The thread forgets the streams that it remembered.
    fn cuCtxPushCurrent_v2(context: CuContext) => { _, compute::context_changed() }
    /// The thread forgets the streams that it remembered.
    fn cuCtxPopCurrent(out: *mut CuContext) => { _, compute::context_changed() }
    /// The thread forgets the streams that it remembered.
    fn cuCtxPopCurrent_v2(out: *mut CuContext) => { _, compute::context_changed() }
    /// Launches into it are not launched, and not charged.
    fn cuStreamBeginCapture(stream: CuStream) and cuStreamBeginCapture_ptsz => { _, compute::after_capture_begin() }
    /// Launches into it are not launched, and not charged.
    fn cuStreamBeginCapture_v2(stream: CuStream, mode: CuStreamCaptureMode) and cuStreamBeginCapture_v2_ptsz => { _, compute::after_capture_begin() }
    /// Launches into it are not launched, and not charged.
    fn cuStreamBeginCaptureToGraph(stream: CuStream, graph: CuGraph, dependencies: *const CuGraphNode, dependency_data: *const CuGraphEdgeData, count: usize, mode: CuStreamCaptureMode) and cuStreamBeginCaptureToGraph_ptsz => { _, compute::after_capture_begin() }
    /// Launches into it are not launched, and not charged.
    fn cuStreamBeginRecaptureToGraph(stream: CuStream, mode: CuStreamCaptureMode, graph: CuGraph, callback_func: CuGraphRecaptureCallback, data: *mut c_void) and cuStreamBeginRecaptureToGraph_ptsz => { _, compute::after_capture_begin() }
    /// Launches into it are not launched, and not charged.
    fn cuStreamBeginCaptureToCig(stream: CuStream, stream_cig_capture_params: *mut c_void) and cuStreamBeginCaptureToCig_ptsz => { _, compute::after_capture_begin() }
    /// Launches count again.
    fn cuStreamEndCapture(stream: CuStream, out: *mut CuGraph) and cuStreamEndCapture_ptsz => { _, compute::after_capture_end() }
    /// Launches count again.
    fn cuStreamEndCaptureToCig(stream: CuStream) and cuStreamEndCaptureToCig_ptsz => { _, compute::after_capture_end() }
    // Waiting: pools give back then, and what has ended is settled.

    /// Settles pools to the memory that they keep.
    fn cuCtxSynchronize() => { compute::before_sync(), compute::after_context_sync(core::ptr::null_mut()) }
    /// Settles pools to the memory that they keep.
    fn cuCtxSynchronize_v2(context: CuContext) => { compute::before_sync(), compute::after_context_sync(context) }
    /// Settles pools to the memory that they keep.
    fn cuStreamSynchronize(stream: CuStream) and cuStreamSynchronize_ptsz => { compute::before_sync(), compute::after_stream_sync(default.number(stream)) }
    /// Settles pools to the memory that they keep.
    fn cuEventSynchronize(event: CuEvent) => { compute::before_sync(), compute::after_event_sync() }
    /// A program that asks again and again waits.
    fn cuStreamQuery(stream: CuStream) and cuStreamQuery_ptsz => { _, compute::after_stream_query(default.number(stream)) }
    /// A program that asks again and again waits.
    fn cuEventQuery(event: CuEvent) => { _, compute::after_event_query(event) }
}
