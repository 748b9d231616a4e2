//! Contexts: the current one, its device, its memory.

use cuda_api::{CuContext, CuDevice, CuResult, CuStream};

use super::handle;
use super::ok;
use crate::driver::genuine::cuda;

/// The thread's current context.
#[inline]
pub(crate) fn current_context() -> Option<u64> {
    let mut context: CuContext = core::ptr::null_mut();
    // SAFETY: the driver writes to `context` alone, a local of the type in the table of signatures.
    ok(unsafe { cuda::cuCtxGetCurrent(&raw mut context) })?;
    (!context.is_null()).then_some(context as u64)
}

/// The driver's ordinal of the current context's device.
pub(crate) fn current_ordinal() -> Option<i32> {
    let mut device = CuDevice(0);
    // SAFETY: the driver writes to `device` alone, a local of the type in the table of signatures.
    ok(unsafe { cuda::cuCtxGetDevice(&raw mut device) })?;
    Some(device.0)
}

/// Is the device's primary context alive?
pub(crate) fn primary_is_active(ordinal: i32) -> Option<bool> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the driver writes to `flags` and `active` alone, locals of the types in the table of signatures.
    ok(unsafe {
        cuda::cuDevicePrimaryCtxGetState(CuDevice(ordinal), &raw mut flags, &raw mut active)
    })?;
    Some(active != 0)
}

/// The context that a stream belongs to; the legacy and per-thread streams belong to the current one.
pub(crate) fn stream_context(stream: CuStream) -> Option<u64> {
    if (stream as usize) <= 2 {
        return current_context();
    }
    let mut context: CuContext = core::ptr::null_mut();
    // SAFETY: the program passed this stream to the driver; the driver writes to the local `context` alone.
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
    // SAFETY: the driver writes to `free` and `total` alone, locals of the types in the table of signatures.
    ok(unsafe { cuda::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Some((u64::try_from(free).ok()?, u64::try_from(total).ok()?))
}

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
        // SAFETY: the same reference, under the name that drivers before 11.0 have for the call.
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
    // SAFETY: the driver writes to `context` alone, a local of the type in the table of signatures.
    ok(unsafe { cuda::cuDevicePrimaryCtxRetain(&raw mut context, CuDevice(ordinal)) })?;
    // Other references keep it alive.
    release_primary(ordinal);
    (!context.is_null()).then_some(context as u64)
}

/// A limit of the current context (`CU_LIMIT_*`), bytes.
pub(crate) fn context_limit(limit: u32) -> Option<u64> {
    let mut value = 0usize;
    // SAFETY: the driver writes to `value` alone, a local of the type in the table of signatures.
    ok(unsafe { cuda::cuCtxGetLimit(&raw mut value, limit) })?;
    u64::try_from(value).ok()
}

/// Runs `work` with this context as the thread's current one.
pub(super) fn within<T>(context: u64, work: impl FnOnce() -> Option<T>) -> Option<T> {
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
