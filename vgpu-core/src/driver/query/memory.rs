//! Memory that has an address or a handle: how large it is, and giving it back.

use core::ffi::c_void;

use cuda_api::{
    CuArray, CuArray3DDescriptor, CuArrayMemoryRequirements, CuArraySparseProperties, CuDevice,
    CuDevicePtr, CuGraphicsResource, CuMemAllocationHandle, CuMemAllocationProp, CuMipmappedArray,
    CuResult, CuStream,
};

use super::contexts::current_ordinal;
use super::devices::granularity;
use super::handle;
use super::ok;
use crate::driver::genuine::cuda;
use crate::figures::shapes;

/// Where the allocation begins that an address is in.
pub(crate) fn allocation_of(address: CuDevicePtr) -> Option<u64> {
    let mut base = CuDevicePtr(0);
    let mut bytes = 0usize;
    // SAFETY: the driver writes to `base` and `bytes` alone, locals of the types in the table of signatures.
    let asked = unsafe { cuda::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) };
    ok(asked)?;
    Some(base.0)
}

/// How many bytes the allocation has that an address is in.
pub(crate) fn allocation_bytes(address: CuDevicePtr) -> Option<u64> {
    let mut base = CuDevicePtr(0);
    let mut bytes = 0usize;
    // SAFETY: the driver writes to `base` and `bytes` alone, locals of the types in the table of signatures.
    let asked = unsafe { cuda::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) };
    ok(asked)?;
    u64::try_from(bytes).ok()
}

/// The properties that memory was made with, by its handle; `None` where the driver does not know the handle.
pub(crate) fn allocation_properties(handle: u64) -> Option<CuMemAllocationProp> {
    let mut properties = CuMemAllocationProp::zeroed();
    let handle = CuMemAllocationHandle(handle);
    // SAFETY: the caller's own handle, and room for the properties.
    let asked =
        unsafe { cuda::cuMemGetAllocationPropertiesFromHandle(&raw mut properties, handle) };
    ok(asked)?;
    Some(properties)
}

/// The size of imported memory, which no call of the driver returns: the largest range that it can be mapped to. No
/// call can reach it there, and the program does not learn the address. `None`: it cannot be mapped so.
pub(crate) fn imported_bytes(handle: u64, properties: &CuMemAllocationProp) -> Option<u64> {
    /// More than any device has.
    const MOST: usize = 1 << 42;
    let step = granularity(properties)?;
    let step = step.clamp(1 << 12, 1 << 30).next_power_of_two();
    let mut base = CuDevicePtr(0);
    // SAFETY: the driver writes to the local `base` alone; it chooses a free range, as no address is asked for (0).
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
    // SAFETY: the library's own range, where nothing is mapped any more.
    let freed = unsafe { cuda::cuMemAddressFree(base, MOST) };
    debug_assert_eq!(freed, CuResult::SUCCESS);
    u64::try_from(bytes).ok().filter(|&bytes| bytes > 0)
}

/// Releases imported memory whose handle the caller does not get.
pub(crate) fn release_memory(handle: u64) {
    // SAFETY: a reference that the driver gave just now; the program has not got it.
    let released = unsafe { cuda::cuMemRelease(CuMemAllocationHandle(handle)) };
    debug_assert_eq!(released, CuResult::SUCCESS);
}

/// As [`release_memory`], of what was opened by IPC.
pub(crate) fn close_ipc(pointer: u64) {
    // SAFETY: opened just now; the program has not got it.
    let closed = unsafe { cuda::cuIpcCloseMemHandle(CuDevicePtr(pointer)) };
    debug_assert_eq!(closed, CuResult::SUCCESS);
}

/// The memory that an array takes of the current context's device, as the driver says.
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

/// The memory that a mapped resource of a graphics API takes: a buffer, or an image's array.
pub(crate) fn resource_bytes(resource: CuGraphicsResource) -> Option<u64> {
    let mut pointer = CuDevicePtr(0);
    let mut bytes = 0usize;
    // SAFETY: the driver checks the program's resource, and writes to the locals `pointer` and `bytes`.
    let asked = unsafe {
        cuda::cuGraphicsResourceGetMappedPointer_v2(&raw mut pointer, &raw mut bytes, resource)
    };
    if ok(asked).is_some() {
        return u64::try_from(bytes).ok();
    }
    let mut array: CuArray = core::ptr::null_mut();
    // SAFETY: the program passed this resource to the driver, which checks it; it writes to the local `array`.
    ok(unsafe { cuda::cuGraphicsSubResourceGetMappedArray(&raw mut array, resource, 0, 0) })?;
    let mut description = CuArray3DDescriptor::zeroed();
    // SAFETY: an array that the driver named just now, and room for its description.
    ok(unsafe { cuda::cuArray3DGetDescriptor_v2(&raw mut description, array) })?;
    Some(shapes::bytes_of(description))
}

/// Unmaps resources of which the caller gets an error.
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
        // SAFETY: the caller's own list, mapped just now.
        unsafe { cuda::cuGraphicsUnmapResources(count, resources, stream) }
    };
    debug_assert_eq!(unmapped, CuResult::SUCCESS);
}

/// Advises the driver to keep managed memory on the device: its pages leave it only if there is no room. Only a hint,
/// so a failure is ignored.
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

/// Gives back what was allocated in stream order a moment ago.
pub(crate) fn free_async(pointer: CuDevicePtr, stream: CuStream) {
    // SAFETY: memory that the driver gave just now; the program has not got it.
    let freed = unsafe { cuda::cuMemFreeAsync(pointer, stream) };
    let _stays_in_the_pool = freed;
}
