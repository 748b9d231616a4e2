//! What we ask the driver ourselves, as safe functions: the genuine ones only, never through a hook.
//! Answers `None` where the driver does not know. Changes nothing in the driver, and runs what could
//! disturb a capture under the relaxed capture mode.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use cuda_api::nvml::{NvmlDevice, NvmlMemory, NvmlProcessInfo, NvmlProcessInfoV1};
use cuda_api::{
    CuArray, CuArray3DDescriptor, CuArrayMemoryRequirements, CuArraySparseProperties,
    CuConditionalNodeParams, CuContext, CuDevice, CuDevicePtr, CuEvent, CuFunction, CuGraph,
    CuGraphExec, CuGraphNode, CuGraphNodeParams, CuGraphicsResource, CuKernel, CuLibrary,
    CuMemAllocNodeParams, CuMemAllocationHandle, CuMemAllocationProp, CuMemLocation, CuMemoryPool,
    CuMipmappedArray, CuModule, CuResult, CuStream, CuUuid,
};

use crate::border;
use crate::driver::{cuda, nvml};
use crate::room::Figures;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const CAPTURING: u32 = 1;

/// What a pool keeps at a synchronisation, bytes (`CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`).
const POOL_THRESHOLD: u32 = 4;
/// A pool's memory, bytes (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`, `…_USED_MEM_CURRENT`).
const POOL_RESERVED: u32 = 5;
const POOL_USED: u32 = 7;
/// What a pool is, from driver 13.1 on (`CU_MEMPOOL_ATTR_ALLOCATION_TYPE`, `…_LOCATION_ID`,
/// `…_LOCATION_TYPE`).
const POOL_KIND: u32 = 9;
const POOL_LOCATION_ID: u32 = 11;
const POOL_LOCATION: u32 = 12;
/// A device's graph memory, bytes (`CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT`, `…_RESERVED_MEM_CURRENT`).
const GRAPH_USED: u32 = 0;
const GRAPH_RESERVED: u32 = 2;

/// `CU_GRAPH_NODE_TYPE_GRAPH`.
const NODE_CHILD: u32 = 4;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
pub(crate) const NODE_ALLOC: u32 = 10;
/// `CU_GRAPH_NODE_TYPE_MEM_FREE`.
const NODE_FREE: u32 = 11;
/// `CU_GRAPH_NODE_TYPE_CONDITIONAL`.
const NODE_CONDITIONAL: u32 = 13;

fn ok(result: CuResult) -> Option<()> {
    (result == CuResult::SUCCESS).then_some(())
}

/// The version of the driver.
pub(crate) fn driver_version() -> Option<i32> {
    let mut version = 0;
    // SAFETY: one word to write to.
    ok(unsafe { cuda::cuDriverGetVersion(&raw mut version) })?;
    (version > 0).then_some(version)
}

/// The address that the driver gives for a version of a name.
pub(crate) fn proc_address(symbol: &CStr, version: i32, flags: u64) -> Option<usize> {
    let mut found: *mut c_void = core::ptr::null_mut();
    let name = symbol.as_ptr();
    let mut status = 0;
    // SAFETY: a C string, one address and one word to write to.
    let newer =
        unsafe { cuda::cuGetProcAddress_v2(name, &raw mut found, version, flags, &raw mut status) };
    if newer == CuResult::NOT_FOUND {
        // SAFETY: as above.
        ok(unsafe { cuda::cuGetProcAddress(name, &raw mut found, version, flags) })?;
    } else {
        ok(newer)?;
    }
    (!found.is_null()).then_some(found as usize)
}

/// The thread's current context.
#[inline]
pub(crate) fn current_context() -> Option<u64> {
    let mut context: CuContext = core::ptr::null_mut();
    // SAFETY: one handle to write to.
    ok(unsafe { cuda::cuCtxGetCurrent(&raw mut context) })?;
    (!context.is_null()).then_some(context as u64)
}

/// The driver's ordinal of the current context's device.
pub(crate) fn current_ordinal() -> Option<i32> {
    let mut device = CuDevice(0);
    // SAFETY: one word to write to.
    ok(unsafe { cuda::cuCtxGetDevice(&raw mut device) })?;
    Some(device.0)
}

/// The device's names as bytes: of the MIG instance if it is one, and of the card.
pub(crate) fn device_uuids(ordinal: i32) -> Option<[[u8; 16]; 2]> {
    let mut instance = CuUuid { bytes: [0; 16] };
    let mut card = CuUuid { bytes: [0; 16] };
    // SAFETY: sixteen bytes to write to.
    let by_instance = ok(unsafe { cuda::cuDeviceGetUuid_v2(&raw mut instance, CuDevice(ordinal)) });
    // SAFETY: as above.
    let by_card = ok(unsafe { cuda::cuDeviceGetUuid(&raw mut card, CuDevice(ordinal)) });
    match (by_instance, by_card) {
        (None, None) => None,
        (None, Some(())) => Some([card.bytes; 2]),
        (Some(()), None) => Some([instance.bytes; 2]),
        (Some(()), Some(())) => Some([instance.bytes, card.bytes]),
    }
}

/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
pub(crate) const CONCURRENT_MANAGED_ACCESS: u32 = 89;

/// A figure of a device; `None` where the driver does not know it.
pub(crate) fn device_attribute(ordinal: i32, attribute: u32) -> Option<i32> {
    let mut value = 0;
    // SAFETY: one word to write to.
    ok(unsafe { cuda::cuDeviceGetAttribute(&raw mut value, attribute, CuDevice(ordinal)) })?;
    Some(value)
}

/// Where the allocation begins that an address is in.
pub(crate) fn allocation_of(address: CuDevicePtr) -> Option<u64> {
    let mut base = CuDevicePtr(0);
    let mut bytes = 0usize;
    // SAFETY: two words to write to.
    let asked = unsafe { cuda::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) };
    ok(asked)?;
    Some(base.0)
}

/// How many bytes the allocation has that an address is in.
pub(crate) fn allocation_bytes(address: CuDevicePtr) -> Option<u64> {
    let mut base = CuDevicePtr(0);
    let mut bytes = 0usize;
    // SAFETY: two words to write to.
    let asked = unsafe { cuda::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) };
    ok(asked)?;
    u64::try_from(bytes).ok()
}

/// What memory was made as, by its handle; `None` where the driver does not know the handle.
pub(crate) fn allocation_properties(handle: u64) -> Option<CuMemAllocationProp> {
    let mut properties = CuMemAllocationProp::zeroed();
    let handle = CuMemAllocationHandle(handle);
    // SAFETY: the caller's own handle, and room for the properties.
    let asked =
        unsafe { cuda::cuMemGetAllocationPropertiesFromHandle(&raw mut properties, handle) };
    ok(asked)?;
    Some(properties)
}

/// The steps that memory of these properties is made and mapped in.
fn granularity(properties: &CuMemAllocationProp) -> Option<usize> {
    const MINIMUM: u32 = 0;
    let mut step = 0usize;
    // SAFETY: one word to write to, and properties to read.
    ok(unsafe { cuda::cuMemGetAllocationGranularity(&raw mut step, properties, MINIMUM) })?;
    (step > 0).then_some(step)
}

/// The steps that a device's own memory is made and mapped in, bytes.
pub(crate) fn device_granularity(ordinal: i32) -> Option<u64> {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED` and `CU_MEM_LOCATION_TYPE_DEVICE`.
    const PINNED: u32 = 1;
    const DEVICE: u32 = 1;
    let mut properties = CuMemAllocationProp::zeroed();
    properties.kind = PINNED;
    properties.location.kind = DEVICE;
    properties.location.id = ordinal;
    u64::try_from(granularity(&properties)?).ok()
}

/// How large imported memory is, which no call of the driver tells: the largest range that it can be
/// mapped to. No call can reach it there, and the program does not learn the address. `None`: it cannot be mapped so.
pub(crate) fn imported_bytes(handle: u64, properties: &CuMemAllocationProp) -> Option<u64> {
    /// More than any device has.
    const MOST: usize = 1 << 42;
    let step = granularity(properties)?;
    let step = step.clamp(1 << 12, 1 << 30).next_power_of_two();
    let mut base = CuDevicePtr(0);
    // SAFETY: one word to write to; a range of addresses that nobody else has.
    ok(unsafe { cuda::cuMemAddressReserve(&raw mut base, MOST, 0, CuDevicePtr(0), 0) })?;
    let fits = |bytes: usize| {
        let handle = CuMemAllocationHandle(handle);
        // SAFETY: within the range of our own.
        let mapped = ok(unsafe { cuda::cuMemMap(base, bytes, 0, handle, 0) }).is_some();
        if mapped {
            // SAFETY: what was mapped just now.
            let unmapped = unsafe { cuda::cuMemUnmap(base, bytes) };
            debug_assert_eq!(unmapped, CuResult::SUCCESS);
        }
        mapped
    };
    let mut bytes = 0usize;
    let mut more = step;
    while more < MOST && fits(more) {
        bytes = more;
        more *= 2;
    }
    while more > step {
        more /= 2;
        if bytes >= step && more < bytes && fits(bytes + more) {
            bytes += more;
        }
    }
    // SAFETY: our own range, where nothing is mapped any more.
    let freed = unsafe { cuda::cuMemAddressFree(base, MOST) };
    debug_assert_eq!(freed, CuResult::SUCCESS);
    u64::try_from(bytes).ok().filter(|&bytes| bytes > 0)
}

/// Takes imported memory back from the caller, who is not told of it.
pub(crate) fn release_memory(handle: u64) {
    // SAFETY: a reference that the driver gave just now and that nobody has seen.
    let released = unsafe { cuda::cuMemRelease(CuMemAllocationHandle(handle)) };
    debug_assert_eq!(released, CuResult::SUCCESS);
}

/// As [`release_memory`], of what was opened by IPC.
pub(crate) fn close_ipc(pointer: u64) {
    // SAFETY: opened just now, and nobody has seen it.
    let closed = unsafe { cuda::cuIpcCloseMemHandle(CuDevicePtr(pointer)) };
    debug_assert_eq!(closed, CuResult::SUCCESS);
}

/// What an array takes of the current context's device, by the driver's word.
pub(crate) fn array_bytes(array: CuArray) -> Option<u64> {
    let mut needs = CuArrayMemoryRequirements::zeroed();
    let device = CuDevice(current_ordinal()?);
    // SAFETY: an array that the driver gave just now, and room for the answer.
    ok(unsafe { cuda::cuArrayGetMemoryRequirements(&raw mut needs, array, device) })?;
    u64::try_from(needs.size).ok().filter(|&bytes| bytes > 0)
}

/// As [`array_bytes`].
pub(crate) fn mipmapped_bytes(array: CuMipmappedArray) -> Option<u64> {
    let mut needs = CuArrayMemoryRequirements::zeroed();
    let device = CuDevice(current_ordinal()?);
    // SAFETY: an array that the driver gave just now, and room for the answer.
    ok(unsafe { cuda::cuMipmappedArrayGetMemoryRequirements(&raw mut needs, array, device) })?;
    u64::try_from(needs.size).ok().filter(|&bytes| bytes > 0)
}

/// How wide, high and deep the tiles of a sparse array are.
pub(crate) fn sparse_tile(array: u64, is_mipmapped: bool) -> Option<[u32; 3]> {
    let mut told = CuArraySparseProperties::zeroed();
    let asked = if is_mipmapped {
        // SAFETY: a mipmapped array that the driver took just now, and room for the answer.
        unsafe { cuda::cuMipmappedArrayGetSparseProperties(&raw mut told, handle(array)) }
    } else {
        // SAFETY: an array that the driver took just now, and room for the answer.
        unsafe { cuda::cuArrayGetSparseProperties(&raw mut told, handle(array)) }
    };
    ok(asked)?;
    Some([told.tile_width, told.tile_height, told.tile_depth])
}

/// What a mapped resource of a graphics API takes: a buffer, or an image's array.
pub(crate) fn resource_bytes(resource: CuGraphicsResource) -> Option<u64> {
    let mut pointer = CuDevicePtr(0);
    let mut bytes = 0usize;
    // SAFETY: the caller's own resource, two words to write to.
    let asked = unsafe {
        cuda::cuGraphicsResourceGetMappedPointer_v2(&raw mut pointer, &raw mut bytes, resource)
    };
    if ok(asked).is_some() {
        return u64::try_from(bytes).ok();
    }
    let mut array: CuArray = core::ptr::null_mut();
    // SAFETY: as above, one handle to write to.
    ok(unsafe { cuda::cuGraphicsSubResourceGetMappedArray(&raw mut array, resource, 0, 0) })?;
    let mut description = CuArray3DDescriptor::zeroed();
    // SAFETY: an array that the driver named just now, and room for its description.
    ok(unsafe { cuda::cuArray3DGetDescriptor_v2(&raw mut description, array) })?;
    Some(crate::arrays::bytes_of(description))
}

/// Takes resources back from the caller, who is not told of them.
pub(crate) fn unmap_resources(
    count: u32,
    resources: *mut CuGraphicsResource,
    stream: CuStream,
    per_thread: bool,
) {
    let unmapped = if per_thread {
        // SAFETY: the caller's own list, mapped just now.
        unsafe { cuda::cuGraphicsUnmapResources_ptsz(count, resources, stream) }
    } else {
        // SAFETY: as above.
        unsafe { cuda::cuGraphicsUnmapResources(count, resources, stream) }
    };
    debug_assert_eq!(unmapped, CuResult::SUCCESS);
}

/// Where a process stands that may be checkpointed (`CUprocessState`).
pub(crate) fn process_state(pid: i32) -> Option<u32> {
    let mut state = 0;
    // SAFETY: one word to write to.
    ok(unsafe { cuda::cuCheckpointProcessGetState(pid, &raw mut state) })?;
    Some(state)
}

/// Tells the driver that managed memory belongs on the device: its pages leave it for want of room
/// only. A hint: a driver that does not take it loses nothing.
pub(crate) fn prefer_device(pointer: CuDevicePtr, bytes: u64) {
    const SET_PREFERRED_LOCATION: u32 = 3;
    let (Some(ordinal), Ok(bytes)) = (current_ordinal(), usize::try_from(bytes)) else {
        return;
    };
    // SAFETY: memory that the driver gave just now; a hint that changes no content.
    let told =
        unsafe { cuda::cuMemAdvise(pointer, bytes, SET_PREFERRED_LOCATION, CuDevice(ordinal)) };
    let _hint = told;
}

/// How many devices the driver shows.
pub(crate) fn device_count() -> Option<i32> {
    let mut count = 0;
    // SAFETY: one word to write to.
    ok(unsafe { cuda::cuDeviceGetCount(&raw mut count) })?;
    Some(count)
}

/// Is the device's primary context alive?
pub(crate) fn primary_is_active(ordinal: i32) -> Option<bool> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: two words to write to.
    ok(unsafe {
        cuda::cuDevicePrimaryCtxGetState(CuDevice(ordinal), &raw mut flags, &raw mut active)
    })?;
    Some(active != 0)
}

/// Runs queries so that they break nobody's capture.
pub(crate) fn relaxed<T>(work: impl FnOnce() -> T) -> T {
    let mut mode = RELAXED;
    // SAFETY: one word to read and write; it exchanges this thread's mode.
    let exchanged = ok(unsafe { cuda::cuThreadExchangeStreamCaptureMode(&raw mut mode) });
    let answer = work();
    if exchanged.is_some() {
        // SAFETY: as above; it gives the thread its own mode back.
        let restored = unsafe { cuda::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        debug_assert_eq!(restored, CuResult::SUCCESS);
    }
    answer
}

/// Is work on this stream being captured rather than done?
pub(crate) fn is_capturing(stream: CuStream) -> bool {
    let mut status = 0;
    // SAFETY: the caller's own stream; one word to write to.
    let asked = unsafe { cuda::cuStreamIsCapturing(stream, &raw mut status) };
    ok(asked).is_some() && status == CAPTURING
}

/// May something of ours be put into this stream? Not while it captures, and not into the legacy stream
/// while a stream that waits for it does (the driver then answers with an error).
pub(crate) fn is_out_of_captures(stream: u64) -> bool {
    let mut status = 0;
    // SAFETY: the caller's own stream; one word to write to.
    let asked = unsafe { cuda::cuStreamIsCapturing(handle(stream), &raw mut status) };
    ok(asked).is_some() && status == 0
}

fn handle<T>(number: u64) -> *mut T {
    core::ptr::with_exposed_provenance_mut(usize::try_from(number).unwrap_or(0))
}

/// A stream by its number.
pub(crate) fn stream(number: u64) -> CuStream {
    handle(number)
}

/// An event that tells times, of the current context.
pub(crate) fn create_event() -> Option<u64> {
    let mut event: CuEvent = core::ptr::null_mut();
    // SAFETY: one handle to write to.
    ok(unsafe { cuda::cuEventCreate(&raw mut event, 0) })?;
    (!event.is_null()).then_some(event as u64)
}

/// Puts an event of ours into a stream.
pub(crate) fn record_event(event: u64, stream: u64) -> bool {
    // SAFETY: our own event, the caller's own stream.
    ok(unsafe { cuda::cuEventRecord(handle(event), handle(stream)) }).is_some()
}

/// Has an event of ours come to pass? `None`: the driver does not know it (any more).
pub(crate) fn event_is_done(event: u64) -> Option<bool> {
    // SAFETY: our own event.
    match unsafe { cuda::cuEventQuery(handle(event)) } {
        CuResult::SUCCESS => Some(true),
        CuResult::NOT_READY => Some(false),
        _ => None,
    }
}

/// From one event of ours to another, both done, nanoseconds.
pub(crate) fn elapsed_ns(start: u64, end: u64) -> Option<u64> {
    let mut milliseconds = 0.0_f32;
    // SAFETY: our own events, one number to write to.
    let asked =
        unsafe { cuda::cuEventElapsedTime(&raw mut milliseconds, handle(start), handle(end)) };
    ok(asked)?;
    let ns = f64::from(milliseconds) * 1e6;
    if !(0.0..=1e18).contains(&ns) {
        return None;
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 1e18"
    )]
    Some(ns.round() as u64)
}

/// Does every launch of this process wait for its end (`CUDA_LAUNCH_BLOCKING=1`, which the driver reads
/// when it starts)? Then the time that the call takes says nothing of when its work began.
pub(crate) fn launches_block() -> bool {
    const NO: u32 = 1;
    const YES: u32 = 2;
    static KNOWN: AtomicU32 = AtomicU32::new(0);
    // Relaxed: the word says all; two threads that ask find the same.
    match KNOWN.load(Ordering::Relaxed) {
        NO => false,
        YES => true,
        _ => {
            // SAFETY: a C string; nobody but the host changes its own environment.
            let value = unsafe { libc::getenv(c"CUDA_LAUNCH_BLOCKING".as_ptr()) };
            // SAFETY: an environment string ends in a zero.
            let is_one = !value.is_null() && unsafe { CStr::from_ptr(value) } == c"1";
            KNOWN.store(if is_one { YES } else { NO }, Ordering::Relaxed);
            is_one
        }
    }
}

/// An event of ours is not needed any more.
pub(crate) fn destroy_event(event: u64) {
    // SAFETY: our own event, which nobody else knows.
    let destroyed = unsafe { cuda::cuEventDestroy_v2(handle(event)) };
    // Its context may be gone already.
    let _gone = destroyed;
}

/// The context that a stream belongs to; the legacy and per-thread streams belong to the current one.
pub(crate) fn stream_context(stream: CuStream) -> Option<u64> {
    if (stream as usize) <= 2 {
        return current_context();
    }
    let mut context: CuContext = core::ptr::null_mut();
    // SAFETY: the caller's own stream; one handle to write to.
    ok(unsafe { cuda::cuStreamGetCtx(stream, &raw mut context) })?;
    (!context.is_null()).then_some(context as u64)
}

/// The ordinal of a context's device.
pub(crate) fn context_ordinal(context: u64) -> Option<i32> {
    if current_context() == Some(context) {
        return current_ordinal();
    }
    let context: CuContext = core::ptr::with_exposed_provenance_mut(usize::try_from(context).ok()?);
    // SAFETY: a context that the driver named to us just now.
    ok(unsafe { cuda::cuCtxPushCurrent_v2(context) })?;
    let ordinal = current_ordinal();
    let mut popped: CuContext = core::ptr::null_mut();
    // SAFETY: takes off what was pushed above.
    ok(unsafe { cuda::cuCtxPopCurrent_v2(&raw mut popped) })?;
    ordinal
}

/// The pool that `cuMemAllocAsync` takes from on this device.
pub(crate) fn device_pool(ordinal: i32) -> Option<u64> {
    let mut pool: CuMemoryPool = core::ptr::null_mut();
    // SAFETY: one handle to write to.
    ok(unsafe { cuda::cuDeviceGetMemPool(&raw mut pool, CuDevice(ordinal)) })?;
    (!pool.is_null()).then_some(pool as u64)
}

/// The pool that a device has from the beginning.
pub(crate) fn default_pool(ordinal: i32) -> Option<u64> {
    let mut pool: CuMemoryPool = core::ptr::null_mut();
    // SAFETY: one handle to write to.
    ok(unsafe { cuda::cuDeviceGetDefaultMemPool(&raw mut pool, CuDevice(ordinal)) })?;
    (!pool.is_null()).then_some(pool as u64)
}

/// Is it the pool of the host that the driver has from the beginning? Drivers before 13 have none.
pub(crate) fn is_host_pool(handle: u64) -> bool {
    const HOST: u32 = 2;
    const PINNED: u32 = 1;
    let mut pool: CuMemoryPool = core::ptr::null_mut();
    let mut location = CuMemLocation { kind: HOST, id: 0 };
    // SAFETY: one handle to write to, one location to read.
    let asked = unsafe { cuda::cuMemGetDefaultMemPool(&raw mut pool, &raw mut location, PINNED) };
    ok(asked).is_some() && pool as u64 == handle
}

/// What an attribute of a pool says that is a word of 32 bits.
fn pool_word(pool: u64, attribute: u32) -> Option<u32> {
    // Room for a word of either width, whatever the driver takes it for.
    let mut value = [0u32; 2];
    let place: *mut c_void = value.as_mut_ptr().cast();
    // SAFETY: a pool that the driver knows, and room for a number.
    ok(unsafe { cuda::cuMemPoolGetAttribute(handle(pool), attribute, place) })?;
    value.first().copied()
}

/// Where a pool's memory lies and of which kind it is. Drivers before 13.1 do not say.
pub(crate) fn pool_location(pool: u64) -> Option<(CuMemLocation, u32)> {
    let kind = pool_word(pool, POOL_LOCATION)?;
    let id = pool_word(pool, POOL_LOCATION_ID)?.cast_signed();
    Some((CuMemLocation { kind, id }, pool_word(pool, POOL_KIND)?))
}

fn pool_bytes(pool: u64, attribute: u32) -> Option<u64> {
    let mut bytes = 0u64;
    let value: *mut c_void = (&raw mut bytes).cast();
    // SAFETY: the attribute is a 64-bit number, and there is room for one.
    ok(unsafe { cuda::cuMemPoolGetAttribute(handle(pool), attribute, value) })?;
    Some(bytes)
}

/// What a pool holds of its device, bytes.
pub(crate) fn pool_reserved(pool: u64) -> Option<u64> {
    pool_bytes(pool, POOL_RESERVED)
}

/// What a pool holds, and what of that is in use.
pub(crate) fn pool_figures(pool: u64) -> Option<Figures> {
    Some(Figures {
        used: pool_bytes(pool, POOL_USED)?,
        reserved: pool_bytes(pool, POOL_RESERVED)?,
    })
}

fn pointer_word<T: Copy + Default>(pointer: CuDevicePtr, attribute: u32) -> Option<T> {
    let mut value = T::default();
    let place: *mut c_void = (&raw mut value).cast();
    // SAFETY: the caller names a type that the attribute fills, and there is room for one.
    ok(unsafe { cuda::cuPointerGetAttribute(place, attribute, pointer) })?;
    Some(value)
}

/// The pool that an allocation came from. `None`: from none, or the driver does not say.
pub(crate) fn pool_of_pointer(pointer: CuDevicePtr) -> Option<u64> {
    const MEMPOOL_HANDLE: u32 = 17;
    pointer_word::<u64>(pointer, MEMPOOL_HANDLE).filter(|&pool| pool != 0)
}

/// The ordinal of the device that memory lies on.
pub(crate) fn ordinal_of_pointer(pointer: CuDevicePtr) -> Option<i32> {
    const DEVICE_ORDINAL: u32 = 9;
    pointer_word::<i32>(pointer, DEVICE_ORDINAL)
}

/// Frees memory that was imported just now and that the program has not seen.
pub(crate) fn free_import(pointer: u64) {
    // SAFETY: the driver gave it just now, and nothing else knows it.
    let freed = unsafe { cuda::cuMemFree_v2(CuDevicePtr(pointer)) };
    debug_assert_eq!(freed, CuResult::SUCCESS);
}

/// Tells a pool to keep nothing at a synchronisation.
pub(crate) fn keep_nothing(pool: u64) {
    let mut nothing = 0u64;
    let value: *mut c_void = (&raw mut nothing).cast();
    // SAFETY: the attribute is a 64-bit number, and there is one.
    let told = unsafe { cuda::cuMemPoolSetAttribute(handle(pool), POOL_THRESHOLD, value) };
    let _hint = told;
}

/// Makes a device's own pool its current one again.
pub(crate) fn use_default_pool(ordinal: i32) {
    if let Some(pool) = default_pool(ordinal) {
        // SAFETY: a pool that the driver named just now.
        let told = unsafe { cuda::cuDeviceSetMemPool(CuDevice(ordinal), handle(pool)) };
        let _hint = told;
    }
}

/// Destroys a pool whose owner has destroyed it.
pub(crate) fn destroy_pool(pool: u64) -> bool {
    // SAFETY: a pool of the driver, which its owner does not use any more.
    ok(unsafe { cuda::cuMemPoolDestroy(handle(pool)) }).is_some()
}

/// Tells a pool to keep no more than this, bytes.
pub(crate) fn trim_pool(pool: u64, keep: u64) {
    let (Ok(pool), Ok(keep)) = (usize::try_from(pool), usize::try_from(keep)) else {
        return;
    };
    let pool: CuMemoryPool = core::ptr::with_exposed_provenance_mut(pool);
    // SAFETY: a pool of the driver.
    let trimmed = unsafe { cuda::cuMemPoolTrimTo(pool, keep) };
    let _hint = trimmed;
}

fn graph_bytes(ordinal: i32, attribute: u32) -> Option<u64> {
    let mut bytes = 0u64;
    let value: *mut c_void = (&raw mut bytes).cast();
    // SAFETY: the attribute is a 64-bit number, and there is room for one.
    ok(unsafe { cuda::cuDeviceGetGraphMemAttribute(CuDevice(ordinal), attribute, value) })?;
    Some(bytes)
}

/// What the device's graphs hold, bytes.
pub(crate) fn graph_reserved(ordinal: i32) -> Option<u64> {
    graph_bytes(ordinal, GRAPH_RESERVED)
}

/// What the device's graphs hold, and what of that is in use.
pub(crate) fn graph_figures(ordinal: i32) -> Option<Figures> {
    Some(Figures {
        used: graph_bytes(ordinal, GRAPH_USED)?,
        reserved: graph_bytes(ordinal, GRAPH_RESERVED)?,
    })
}

/// Memory of a context's device that is free, and all of it, bytes.
pub(crate) fn memory_info(context: u64) -> Option<(u64, u64)> {
    if current_context() == Some(context) {
        return memory_info_here();
    }
    // SAFETY: a context that the driver named to us.
    ok(unsafe { cuda::cuCtxPushCurrent_v2(handle(context)) })?;
    let info = memory_info_here();
    let mut popped: CuContext = core::ptr::null_mut();
    // SAFETY: takes off what was pushed above.
    ok(unsafe { cuda::cuCtxPopCurrent_v2(&raw mut popped) })?;
    info
}

fn memory_info_here() -> Option<(u64, u64)> {
    let (mut free, mut total) = (0usize, 0usize);
    // SAFETY: two words to write to.
    ok(unsafe { cuda::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Some((u64::try_from(free).ok()?, u64::try_from(total).ok()?))
}

/// All memory of a device, bytes.
pub(crate) fn total_bytes(ordinal: i32) -> Option<u64> {
    let mut bytes = 0usize;
    // SAFETY: one word to write to.
    ok(unsafe { cuda::cuDeviceTotalMem_v2(&raw mut bytes, CuDevice(ordinal)) })?;
    u64::try_from(bytes).ok()
}

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub(crate) const MULTIPROCESSORS: u32 = 16;
/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
pub(crate) const THREADS_PER_MULTIPROCESSOR: u32 = 39;

/// Takes back a context that was made a moment ago.
pub(crate) fn destroy_context(context: u64) -> bool {
    // SAFETY: a context that the driver gave just now and that its caller has not seen.
    ok(unsafe { cuda::cuCtxDestroy_v2(handle(context)) }).is_some()
}

/// Takes back a reference to a device's primary context.
pub(crate) fn release_primary(ordinal: i32) -> bool {
    // SAFETY: a reference that the driver gave just now and that its caller has not seen.
    let mut released = unsafe { cuda::cuDevicePrimaryCtxRelease_v2(CuDevice(ordinal)) };
    if released == CuResult::NOT_FOUND {
        // SAFETY: as above, before driver 11.0.
        released = unsafe { cuda::cuDevicePrimaryCtxRelease(CuDevice(ordinal)) };
    }
    ok(released).is_some()
}

/// Takes back a green context that was made a moment ago.
pub(crate) fn destroy_green(green: u64) -> bool {
    // SAFETY: a green context that the driver gave just now and that its caller has not seen.
    ok(unsafe { cuda::cuGreenCtxDestroy(handle(green)) }).is_some()
}

/// A device's primary context, if it is alive.
pub(crate) fn primary_context(ordinal: i32) -> Option<u64> {
    if primary_is_active(ordinal) != Some(true) {
        return None;
    }
    let mut context: CuContext = core::ptr::null_mut();
    // SAFETY: one handle to write to.
    ok(unsafe { cuda::cuDevicePrimaryCtxRetain(&raw mut context, CuDevice(ordinal)) })?;
    // Other references keep it alive.
    release_primary(ordinal);
    (!context.is_null()).then_some(context as u64)
}

/// The module that a function is of.
pub(crate) fn module_of(function: CuFunction) -> Option<u64> {
    let mut module: CuModule = core::ptr::null_mut();
    // SAFETY: the caller's own function, one handle to write to.
    ok(unsafe { cuda::cuFuncGetModule(&raw mut module, function) })?;
    (!module.is_null()).then_some(module as u64)
}

/// When the driver loads the code of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loading {
    /// With the module.
    Eager = 0,
    /// At its first use.
    Lazy = 1,
}

/// How this process's modules are loaded. A driver that does not know the question (before 11.7) has one
/// way.
pub(crate) fn loading_mode() -> Loading {
    const LAZY: u32 = 2;
    let mut mode = 0;
    // SAFETY: one word to write to.
    let asked = unsafe { cuda::cuModuleGetLoadingMode(&raw mut mode) };
    if ok(asked).is_some() && mode == LAZY {
        Loading::Lazy
    } else {
        Loading::Eager
    }
}

/// Is the code of a function loaded? `None`: the driver does not say (before 12.4).
pub(crate) fn is_loaded(function: CuFunction) -> Option<bool> {
    const LOADED: u32 = 1;
    let mut state = 0;
    // SAFETY: a function that the driver gave just now, one word to write to.
    ok(unsafe { cuda::cuFuncIsLoaded(&raw mut state, function) })?;
    Some(state == LOADED)
}

/// How many functions a module has.
pub(crate) fn function_count(module: u64) -> Option<u32> {
    let mut count = 0;
    // SAFETY: the caller's own module, one word to write to.
    ok(unsafe { cuda::cuModuleGetFunctionCount(&raw mut count, handle(module)) })?;
    Some(count)
}

/// How many kernels a library has.
pub(crate) fn kernel_count(library: u64) -> Option<u32> {
    let mut count = 0;
    // SAFETY: the caller's own library, one word to write to.
    ok(unsafe { cuda::cuLibraryGetKernelCount(&raw mut count, handle(library)) })?;
    Some(count)
}

/// The library that a kernel is of.
pub(crate) fn library_of(kernel: CuKernel) -> Option<u64> {
    let mut library: CuLibrary = core::ptr::null_mut();
    // SAFETY: the caller's own kernel, one handle to write to.
    ok(unsafe { cuda::cuKernelGetLibrary(&raw mut library, kernel) })?;
    (!library.is_null()).then_some(library as u64)
}

/// Takes back a module that was loaded a moment ago.
pub(crate) fn unload_module(module: u64) -> bool {
    // SAFETY: a module that the driver gave just now and that its caller has not seen.
    ok(unsafe { cuda::cuModuleUnload(handle(module)) }).is_some()
}

/// Takes back a library that was loaded a moment ago.
pub(crate) fn unload_library(library: u64) -> bool {
    // SAFETY: as above.
    ok(unsafe { cuda::cuLibraryUnload(handle(library)) }).is_some()
}

/// A limit of the current context (`CU_LIMIT_*`), bytes.
pub(crate) fn context_limit(limit: u32) -> Option<u64> {
    let mut value = 0usize;
    // SAFETY: one word to write to.
    ok(unsafe { cuda::cuCtxGetLimit(&raw mut value, limit) })?;
    u64::try_from(value).ok()
}

/// A memory node of a graph.
#[derive(Clone, Copy)]
pub(crate) enum MemoryNode {
    /// It allocates.
    Alloc {
        /// Where, and of which kind.
        location: CuMemLocation,
        kind: u32,
        bytes: u64,
        address: u64,
    },
    /// It frees what an allocation node made, of this graph or another.
    Free { address: u64 },
}

/// Tells the memory nodes of a graph, of the graphs within it and of its conditional nodes' bodies.
/// `None` where the driver does not say all of them, or there is no memory to hear it in.
pub(crate) fn memory_nodes(graph: CuGraph, each: &mut impl FnMut(MemoryNode)) -> Option<()> {
    let mut graphs: Vec<CuGraph> = Vec::new();
    graphs.try_reserve(1).ok()?;
    graphs.push(graph);
    while let Some(graph) = graphs.pop() {
        for node in nodes_of(graph)? {
            let mut kind = 0;
            // SAFETY: a node that the driver named just now.
            ok(unsafe { cuda::cuGraphNodeGetType(node, &raw mut kind) })?;
            match kind {
                NODE_ALLOC => {
                    let mut params = CuMemAllocNodeParams::zeroed();
                    // SAFETY: as above, and room for the parameters.
                    ok(unsafe { cuda::cuGraphMemAllocNodeGetParams(node, &raw mut params) })?;
                    each(MemoryNode::Alloc {
                        location: params.pool.location,
                        kind: params.pool.kind,
                        bytes: u64::try_from(params.bytes).unwrap_or(u64::MAX),
                        address: params.ptr.0,
                    });
                }
                NODE_FREE => {
                    let mut address = CuDevicePtr(0);
                    // SAFETY: as above, and room for one address.
                    ok(unsafe { cuda::cuGraphMemFreeNodeGetParams(node, &raw mut address) })?;
                    each(MemoryNode::Free { address: address.0 });
                }
                NODE_CHILD => {
                    let mut child: CuGraph = core::ptr::null_mut();
                    // SAFETY: as above, and room for one handle.
                    ok(unsafe { cuda::cuGraphChildGraphNodeGetGraph(node, &raw mut child) })?;
                    graphs.try_reserve(1).ok()?;
                    graphs.push(child);
                }
                NODE_CONDITIONAL => bodies_of(node, &mut graphs)?,
                _ => {}
            }
        }
    }
    Some(())
}

fn nodes_of(graph: CuGraph) -> Option<Vec<CuGraphNode>> {
    let mut count = 0usize;
    // SAFETY: the caller's own graph; asks for the number only.
    ok(unsafe { cuda::cuGraphGetNodes(graph, core::ptr::null_mut(), &raw mut count) })?;
    // The nodes come all at once; there may be many, and never on a path of an allocator.
    let mut nodes: Vec<CuGraphNode> = Vec::new();
    nodes.try_reserve_exact(count).ok()?;
    nodes.resize(count, core::ptr::null_mut());
    if count > 0 {
        // SAFETY: the caller's own graph, and room for that many nodes.
        ok(unsafe { cuda::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) })?;
    }
    nodes.truncate(count);
    Some(nodes)
}

/// The bodies of a conditional node. Drivers before 13.2 do not tell them, and let no memory node be in
/// one.
fn bodies_of(node: CuGraphNode, graphs: &mut Vec<CuGraph>) -> Option<()> {
    let mut params = CuGraphNodeParams::zeroed();
    // SAFETY: a node that the driver named just now, and room for the parameters.
    if ok(unsafe { cuda::cuGraphNodeGetParams(node, &raw mut params) }).is_none() {
        return Some(());
    }
    // SAFETY: the driver says that the node is conditional, so the words are of that structure.
    let conditional = unsafe { params.body::<CuConditionalNodeParams>().read_unaligned() };
    let count = usize::try_from(conditional.size).ok()?;
    graphs.try_reserve(count).ok()?;
    for at in 0..count {
        graphs.push(border::read(conditional.graphs_out.wrapping_add(at))?);
    }
    Some(())
}

/// The graph in the parameters of a node that holds one.
pub(crate) fn child_of(params: &CuGraphNodeParams) -> Option<CuGraph> {
    if params.kind != NODE_CHILD {
        return None;
    }
    // SAFETY: the kind says that the words begin with a graph.
    let child = unsafe { params.body::<CuGraph>().read_unaligned() };
    (!child.is_null()).then_some(child)
}

/// An executable graph that nobody has seen goes back.
pub(crate) fn destroy_graph_exec(exec: CuGraphExec) {
    // SAFETY: the driver gave it just now, and nobody else knows it.
    let destroyed = unsafe { cuda::cuGraphExecDestroy(exec) };
    debug_assert_eq!(destroyed, CuResult::SUCCESS);
}

/// What no graph of the device uses goes back to it.
pub(crate) fn trim_graphs(ordinal: i32) {
    // SAFETY: takes a number.
    let trimmed = unsafe { cuda::cuDeviceGraphMemTrim(CuDevice(ordinal)) };
    let _hint = trimmed;
}

/// The number of a thread's own stream (`CU_STREAM_PER_THREAD`).
pub(crate) const PER_THREAD: u64 = 2;

/// Has a stream passed a mark of ours?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// It has.
    Passed,
    /// It has not.
    Ahead,
    /// The mark's context is gone, and its streams with it.
    Gone,
    /// The driver does not say.
    Unknown,
}

/// Puts a mark of ours into a stream of this context: `event`, or a new one where that is 0.
pub(crate) fn mark(context: u64, stream: CuStream, event: u64) -> Option<u64> {
    const DISABLE_TIMING: u32 = 2;
    within(context, || {
        let mut made: CuEvent = handle(event);
        if event == 0 {
            // SAFETY: one handle to write to.
            ok(unsafe { cuda::cuEventCreate(&raw mut made, DISABLE_TIMING) })?;
        }
        // SAFETY: our own event, the caller's own stream.
        if ok(unsafe { cuda::cuEventRecord(made, stream) }).is_none() {
            if event == 0 {
                destroy_event(made as u64);
            }
            return None;
        }
        Some(made as u64)
    })
}

/// See [`mark`].
pub(crate) fn passed(event: u64) -> Mark {
    // SAFETY: our own event.
    match unsafe { cuda::cuEventQuery(handle(event)) } {
        CuResult::SUCCESS => Mark::Passed,
        CuResult::NOT_READY => Mark::Ahead,
        CuResult::INVALID_HANDLE | CuResult::INVALID_CONTEXT | CuResult::CONTEXT_IS_DESTROYED => {
            Mark::Gone
        }
        _ => Mark::Unknown,
    }
}

/// Runs `work` with this context as the thread's current one.
fn within<T>(context: u64, work: impl FnOnce() -> Option<T>) -> Option<T> {
    if current_context() == Some(context) {
        return work();
    }
    // SAFETY: a context that the driver named to us just now.
    ok(unsafe { cuda::cuCtxPushCurrent_v2(handle(context)) })?;
    let answer = work();
    let mut popped: CuContext = core::ptr::null_mut();
    // SAFETY: takes off what was pushed above.
    let restored = unsafe { cuda::cuCtxPopCurrent_v2(&raw mut popped) };
    debug_assert_eq!(restored, CuResult::SUCCESS);
    answer
}

/// Gives back what was allocated in stream order a moment ago.
pub(crate) fn free_async(pointer: CuDevicePtr, stream: CuStream) {
    // SAFETY: memory that the driver gave us just now and that nobody has seen.
    let freed = unsafe { cuda::cuMemFreeAsync(pointer, stream) };
    let _stays_in_the_pool = freed;
}

/// `CUDA_VISIBLE_DEVICES` as it is now, if it is set. To be read at once: the program may change it.
pub(crate) fn visible_devices() -> Option<&'static [u8]> {
    // SAFETY: a C string; nobody but the host changes its own environment.
    let list = unsafe { libc::getenv(c"CUDA_VISIBLE_DEVICES".as_ptr()) };
    if list.is_null() {
        return None;
    }
    // SAFETY: an environment string ends in a zero.
    Some(unsafe { CStr::from_ptr(list) }.to_bytes())
}

/// NVML's index of the card that a device is, or is a part of.
pub(crate) fn nvml_index(ordinal: i32) -> Option<usize> {
    with_nvml(|| {
        let card = nvml_card(ordinal)?;
        let mut index = 0;
        // SAFETY: a handle that NVML gave just now, one word to write to.
        let asked = unsafe { nvml::nvmlDeviceGetIndex(card, &raw mut index) };
        asked.is_success().then(|| usize::try_from(index).ok())?
    })
}

/// The UUID of the card that a device is, or is a part of.
pub(crate) fn card_uuid(ordinal: i32) -> Option<[u8; 16]> {
    with_nvml(|| {
        let card = nvml_card(ordinal)?;
        let mut text = [0; 96];
        // SAFETY: 95 bytes of room, so the last one stays zero.
        let asked = unsafe { nvml::nvmlDeviceGetUUID(card, text.as_mut_ptr(), 95) };
        if !asked.is_success() {
            return None;
        }
        // SAFETY: ends in a zero, see above.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        crate::cards::parse_uuid(text.to_str().ok()?)
    })
}

/// Processes that NVML lists at most.
const MOST_PROCESSES: usize = 256;

/// What NVML says that this process holds of the device in all, bytes. `None` where there is no NVML,
/// or where it does not know this process by the number that it has here (in a pid namespace).
pub(crate) fn own_bytes(ordinal: i32) -> Option<u64> {
    with_nvml(|| {
        let device = nvml_card(ordinal)?;
        let bytes = match processes(device)? {
            List::Known(bytes) => bytes,
            List::Unknown => return None,
        };
        (bytes != cuda_api::nvml::VALUE_NOT_AVAILABLE).then_some(bytes)
    })
}

/// Memory of the device that is in use, by whichever process, bytes. Needs no context.
pub(crate) fn used_bytes(ordinal: i32) -> Option<u64> {
    with_nvml(|| {
        let device = nvml_card(ordinal)?;
        let mut memory = NvmlMemory {
            total: 0,
            free: 0,
            used: 0,
        };
        // SAFETY: a handle that NVML gave just now, one structure to write to.
        let asked = unsafe { nvml::nvmlDeviceGetMemoryInfo(device, &raw mut memory) };
        asked
            .is_success()
            .then(|| memory.total.saturating_sub(memory.free))
    })
}

/// What a list says of this process.
enum List {
    Known(u64),
    Unknown,
}

/// Looks this process up in NVML's newest list that there is. `None`: there is no list.
fn processes(device: NvmlDevice) -> Option<List> {
    const EMPTY: NvmlProcessInfo = NvmlProcessInfo {
        pid: 0,
        used_gpu_memory: 0,
        gpu_instance_id: 0,
        compute_instance_id: 0,
    };
    let me = std::process::id();
    let found = |found: Option<u64>| Some(found.map_or(List::Unknown, List::Known));
    let mut infos = [EMPTY; MOST_PROCESSES];
    let mut count = u32::try_from(MOST_PROCESSES).ok()?;
    // SAFETY: room for as many as are asked for.
    let mut asked = unsafe {
        nvml::nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, infos.as_mut_ptr())
    };
    if !asked.is_success() {
        count = u32::try_from(MOST_PROCESSES).ok()?;
        // SAFETY: as above.
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

/// Whether NVML lists a process on the device, by its number on the machine; nothing where NVML does
/// not answer.
pub(crate) fn lists_process(ordinal: i32, pid: u32) -> Option<bool> {
    const MOST: usize = 256;
    with_nvml(|| {
        let device = nvml_card(ordinal)?;
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
    // SAFETY: takes nothing; the library counts who initialised it.
    if !unsafe { nvml::nvmlInit_v2() }.is_success() {
        return None;
    }
    let answer = work();
    // SAFETY: undoes the above.
    let ended = unsafe { nvml::nvmlShutdown() };
    debug_assert!(ended.is_success());
    answer
}

/// NVML's handle of the card that a device is, or is a part of: by its place on the bus, which parts
/// of a card share with it, else by UUID. Asked for within [`with_nvml`].
fn nvml_card(ordinal: i32) -> Option<NvmlDevice> {
    nvml_by_bus(ordinal).or_else(|| {
        let names = device_uuids(ordinal)?;
        let cards = names.iter().find_map(|name| nvml_by_uuid(b"GPU-", name));
        cards.or_else(|| {
            names.iter().find_map(|name| {
                let part = nvml_by_uuid(b"MIG-", name)?;
                crate::nvml::devices::card_of(part)
            })
        })
    })
}

fn nvml_by_bus(ordinal: i32) -> Option<NvmlDevice> {
    let mut place = [0; 32];
    // SAFETY: 31 bytes of room, so the last one stays zero.
    ok(unsafe { cuda::cuDeviceGetPCIBusId(place.as_mut_ptr(), 31, CuDevice(ordinal)) })?;
    let mut device = NvmlDevice::NULL;
    // SAFETY: a text that ends in a zero, one handle to write to.
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
    // SAFETY: a text that ends in a zero, one handle to write to.
    let asked = unsafe { nvml::nvmlDeviceGetHandleByUUID(text.as_ptr().cast(), &raw mut device) };
    asked.is_success().then_some(device)
}
