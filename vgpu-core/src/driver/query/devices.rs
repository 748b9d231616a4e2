//! The driver's answers about itself and its devices.

use core::ffi::{CStr, c_void};

use cuda_api::{CuDevice, CuMemAllocationProp, CuResult, CuUuid};

use super::ok;
use crate::base::environment;
use crate::driver::genuine::cuda;

/// The version of the driver.
pub(crate) fn driver_version() -> Option<i32> {
    let mut version = 0;
    // SAFETY: the driver writes to `version` alone, a local of the type in the table of signatures.
    ok(unsafe { cuda::cuDriverGetVersion(&raw mut version) })?;
    (version > 0).then_some(version)
}

/// The address that the driver gives for a version of a name.
pub(crate) fn proc_address(symbol: &CStr, version: i32, flags: u64) -> Option<usize> {
    let mut found: *mut c_void = core::ptr::null_mut();
    let name = symbol.as_ptr();
    let mut status = 0;
    // SAFETY: `name` points into a `CStr`, and the driver writes to the locals `found` and `status` alone.
    let newer =
        unsafe { cuda::cuGetProcAddress_v2(name, &raw mut found, version, flags, &raw mut status) };
    if newer == CuResult::NOT_FOUND {
        // SAFETY: `name` points into a `CStr`, and the driver writes to the local `found` alone.
        ok(unsafe { cuda::cuGetProcAddress(name, &raw mut found, version, flags) })?;
    } else {
        ok(newer)?;
    }
    (!found.is_null()).then_some(found as usize)
}

/// The device's names as bytes: of the MIG instance if it is one, and of the GPU.
pub(crate) fn device_uuids(ordinal: i32) -> Option<[[u8; 16]; 2]> {
    let mut instance = CuUuid { bytes: [0; 16] };
    let mut gpu = CuUuid { bytes: [0; 16] };
    // SAFETY: the driver writes the 16 bytes of a UUID, to the local `instance`.
    let by_instance = ok(unsafe { cuda::cuDeviceGetUuid_v2(&raw mut instance, CuDevice(ordinal)) });
    // SAFETY: the driver writes the 16 bytes of a UUID, to the local `gpu`.
    let by_gpu = ok(unsafe { cuda::cuDeviceGetUuid(&raw mut gpu, CuDevice(ordinal)) });
    match (by_instance, by_gpu) {
        (None, None) => None,
        (None, Some(())) => Some([gpu.bytes; 2]),
        (Some(()), None) => Some([instance.bytes; 2]),
        (Some(()), Some(())) => Some([instance.bytes, gpu.bytes]),
    }
}

/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
pub(crate) const CONCURRENT_MANAGED_ACCESS: u32 = 89;

/// A figure of a device; `None` where the driver does not know it.
pub(crate) fn device_attribute(ordinal: i32, attribute: u32) -> Option<i32> {
    let mut value = 0;
    // SAFETY: the driver writes to `value` alone, a local of the type in the table of signatures.
    ok(unsafe { cuda::cuDeviceGetAttribute(&raw mut value, attribute, CuDevice(ordinal)) })?;
    Some(value)
}

/// The steps that memory of these properties is made and mapped in.
pub(super) fn granularity(properties: &CuMemAllocationProp) -> Option<usize> {
    const MINIMUM: u32 = 0;
    let mut step = 0usize;
    // SAFETY: the driver writes to the local `step` and reads the structure behind the reference `properties`.
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

/// The state of a process that may be checkpointed (`CUprocessState`).
pub(crate) fn process_state(pid: i32) -> Option<u32> {
    let mut state = 0;
    // SAFETY: the driver writes to `state` alone, a local of the type in the table of signatures.
    ok(unsafe { cuda::cuCheckpointProcessGetState(pid, &raw mut state) })?;
    Some(state)
}

/// How many devices the driver shows.
pub(crate) fn device_count() -> Option<i32> {
    let mut count = 0;
    // SAFETY: the driver writes to `count` alone, a local of the type in the table of signatures.
    ok(unsafe { cuda::cuDeviceGetCount(&raw mut count) })?;
    Some(count)
}

/// All memory of a device, bytes.
pub(crate) fn total_bytes(ordinal: i32) -> Option<u64> {
    let mut bytes = 0usize;
    // SAFETY: the driver writes to `bytes` alone, a local of the type in the table of signatures.
    ok(unsafe { cuda::cuDeviceTotalMem_v2(&raw mut bytes, CuDevice(ordinal)) })?;
    u64::try_from(bytes).ok()
}

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub(crate) const MULTIPROCESSORS: u32 = 16;

/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
pub(crate) const THREADS_PER_MULTIPROCESSOR: u32 = 39;

/// `CUDA_VISIBLE_DEVICES` as it is now, if it is set.
pub(crate) fn visible_devices<T>(read: impl FnOnce(&[u8]) -> T) -> Option<T> {
    environment::read(c"CUDA_VISIBLE_DEVICES", read)
}
