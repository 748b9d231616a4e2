//! The functions of streams: create, wait, callbacks, host functions, attributes, values in memory.

use cuda_api::driver::*;
use std::sync::Arc;

use crate::base::border::{Done, Opaque, call_host, lock, read, write};
use crate::base::values::{ValueOp, value_ops};
use crate::memory::context;
use crate::memory::context::Ctx;
use crate::process::work::exec;
use crate::streams::capturing;
use crate::streams::graph::{BatchOp, Body};
use crate::streams::recording;
use crate::streams::stream::{
    PER_THREAD, STREAMS, create, drain_context, find, ordered_idle, submit_call, submit_value,
    synchronize,
};

// --- values ---------------------------------------------------------------------------------

fn value_op(stream: CuStream, op: ValueOp) -> Done {
    op.check()?;
    let stream = find(stream)?;
    if capturing::takes(&stream, || Ok(Body::BatchMemOp(vec![BatchOp(op)])))? {
        return Ok(());
    }
    submit_value(&stream, op)
}

fn batch(stream: CuStream, count: u32, ops: *mut CuStreamBatchMemOpParams, flags: u32) -> Done {
    if flags != 0 || count > 256 {
        return Err(CuResult::INVALID_VALUE);
    }
    let ops = value_ops(ops, count)?;
    let stream = find(stream)?;
    if capturing::takes(&stream, || {
        Ok(Body::BatchMemOp(ops.iter().copied().map(BatchOp).collect()))
    })? {
        return Ok(());
    }
    for op in ops {
        submit_value(&stream, op)?;
    }
    Ok(())
}


/// A stream's handle on its way to a callback.
#[derive(Clone, Copy)]
struct Handle(CuStream);

// SAFETY: a handle is a number to us.
unsafe impl Send for Handle {}

fn destroy(handle: CuStream) -> Done {
    let stream = match handle.addr() {
        0..=PER_THREAD => return Err(CuResult::INVALID_HANDLE),
        handle => STREAMS.remove(handle).ok_or(CuResult::INVALID_HANDLE)?,
    };
    capturing::stream_gone(&stream);
    exec()?.close_channel(stream.channel);
    Ok(())
}

pub(crate) fn cuStreamCreate(out: *mut CuStream, flags: u32) -> Done {
    make(out, flags, 0)
}

pub(crate) fn cuStreamCreateWithPriority(out: *mut CuStream, flags: u32, priority: i32) -> Done {
    make(out, flags, priority)
}

pub(crate) fn cuStreamDestroy(stream: CuStream) -> Done {
    destroy(stream)
}

pub(crate) fn cuStreamDestroy_v2(stream: CuStream) -> Done {
    destroy(stream)
}

pub(crate) fn cuStreamQuery(stream: CuStream) -> Done {
    let stream = find(stream)?;
    capturing::query_of_stream(&stream)?;
    if ordered_idle(&stream)? {
        Ok(())
    } else {
        Err(CuResult::NOT_READY)
    }
}

pub(crate) fn cuStreamSynchronize(stream: CuStream) -> Done {
    let stream = find(stream)?;
    capturing::query_of_stream(&stream)?;
    synchronize(&stream)?;
    crate::memory::pool::synchronized(stream.context.gpu);
    Ok(())
}

fn synchronize_context(context: Ctx) -> Done {
    capturing::query_of_context(context)?;
    drain_context(context)?;
    crate::memory::pool::synchronized(context.gpu);
    Ok(())
}

pub(crate) fn cuCtxSynchronize() -> Done {
    synchronize_context(context::current()?)
}

pub(crate) fn cuCtxSynchronize_v2(context: CuContext) -> Done {
    synchronize_context(context::find_or_current(context)?)
}

pub(crate) fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: u32) -> Done {
    let stream = find(stream)?;
    recording::wait(&stream, event, flags)
}

pub(crate) fn cuStreamAddCallback(
    stream: CuStream,
    callback: CuStreamCallback,
    data: *mut c_void,
    flags: u32,
) -> Done {
    let callback = callback.ok_or(CuResult::INVALID_VALUE)?;
    if flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let found = find(stream)?;
    capturing::forbidden(&found)?;
    let (handle, data) = (Handle(stream), Opaque(data));
    submit_call(&found, move || {
        let (handle, data) = (handle, data);
        // SAFETY: the program vouches for its callback and its data until it has run.
        unsafe { callback(handle.0, CuResult::SUCCESS, data.0) };
    })
}

fn launch_host(stream: CuStream, function: CuHostFn, data: *mut c_void) -> Done {
    let function = function.ok_or(CuResult::INVALID_VALUE)?;
    let data = Opaque(data);
    let stream = find(stream)?;
    if capturing::takes(&stream, || Ok(Body::Host { function, data }))? {
        return Ok(());
    }
    submit_call(&stream, move || call_host(function, data))
}

pub(crate) fn cuLaunchHostFunc(stream: CuStream, function: CuHostFn, data: *mut c_void) -> Done {
    launch_host(stream, function, data)
}

pub(crate) fn cuLaunchHostFunc_v2(
    stream: CuStream,
    function: CuHostFn,
    data: *mut c_void,
    _sync_mode: u32,
) -> Done {
    launch_host(stream, function, data)
}

pub(crate) fn cuStreamGetPriority(stream: CuStream, priority: *mut i32) -> Done {
    write(priority, find(stream)?.priority)
}

pub(crate) fn cuStreamGetFlags(stream: CuStream, flags: *mut u32) -> Done {
    write(flags, find(stream)?.flags)
}

pub(crate) fn cuStreamGetId(stream: CuStream, stream_id: *mut u64) -> Done {
    write(stream_id, find(stream)?.id)
}

pub(crate) fn cuStreamGetCtx(stream: CuStream, out: *mut CuContext) -> Done {
    let stream = find(stream)?;
    capturing::still_good(&stream)?;
    write(out, stream.context.as_handle())
}

pub(crate) fn cuStreamGetCtx_v2(
    stream: CuStream,
    out: *mut CuContext,
    green_ctx: *mut CuGreenCtx,
) -> Done {
    let stream = find(stream)?;
    let green = crate::calls::green::of_context(stream.context);
    write(green_ctx, std::ptr::with_exposed_provenance_mut(green))?;
    if green == 0 {
        write(out, stream.context.as_handle())
    } else {
        write(out, std::ptr::null_mut())
    }
}

pub(crate) fn cuStreamGetGreenCtx(stream: CuStream, ctx_out: *mut CuGreenCtx) -> Done {
    let green = crate::calls::green::of_context(find(stream)?.context);
    write(ctx_out, std::ptr::with_exposed_provenance_mut(green))
}

pub(crate) fn cuStreamGetDevice(stream: CuStream, device: *mut CuDevice) -> Done {
    write(device, find(stream)?.context.device)
}

pub(crate) fn cuStreamGetAttribute(
    stream: CuStream,
    attribute: CuLaunchAttributeId,
    value: *mut CuLaunchAttributeValue,
) -> Done {
    let stream = find(stream)?;
    let words = lock(&stream.attributes)
        .get(&attribute)
        .copied()
        .unwrap_or([0; 8]);
    write(value, CuLaunchAttributeValue { words })
}

pub(crate) fn cuStreamSetAttribute(
    stream: CuStream,
    attribute: CuLaunchAttributeId,
    value: *const CuLaunchAttributeValue,
) -> Done {
    let value = read(value)?;
    lock(&find(stream)?.attributes).insert(attribute, value.words);
    Ok(())
}

pub(crate) fn cuStreamCopyAttributes(dst: CuStream, src: CuStream) -> Done {
    let attributes = lock(&find(src)?.attributes).clone();
    *lock(&find(dst)?.attributes) = attributes;
    Ok(())
}

pub(crate) fn cuStreamAttachMemAsync(
    stream: CuStream,
    ptr: CuDevicePtr,
    length: usize,
    flags: u32,
) -> Done {
    let _unused = (ptr, length);
    if !matches!(flags, 1 | 2 | 4) {
        return Err(CuResult::INVALID_VALUE);
    }
    find(stream).map(drop)
}

pub(crate) fn cuStreamBatchMemOp(
    stream: CuStream,
    count: u32,
    param_array: *mut CuStreamBatchMemOpParams,
    flags: u32,
) -> Done {
    batch(stream, count, param_array, flags)
}

pub(crate) fn cuStreamBatchMemOp_v2(
    stream: CuStream,
    count: u32,
    param_array: *mut CuStreamBatchMemOpParams,
    flags: u32,
) -> Done {
    batch(stream, count, param_array, flags)
}

pub(crate) fn cuStreamWaitValue32(
    stream: CuStream,
    addr: CuDevicePtr,
    value: u32,
    flags: u32,
) -> Done {
    value_op(
        stream,
        ValueOp::Wait {
            address: addr.0,
            value: value.into(),
            bits: 32,
            how: flags,
        },
    )
}

pub(crate) fn cuStreamWaitValue32_v2(
    stream: CuStream,
    addr: CuDevicePtr,
    value: u32,
    flags: u32,
) -> Done {
    value_op(
        stream,
        ValueOp::Wait {
            address: addr.0,
            value: value.into(),
            bits: 32,
            how: flags,
        },
    )
}

pub(crate) fn cuStreamWaitValue64(
    stream: CuStream,
    addr: CuDevicePtr,
    value: u64,
    flags: u32,
) -> Done {
    value_op(
        stream,
        ValueOp::Wait {
            address: addr.0,
            value,
            bits: 64,
            how: flags,
        },
    )
}

pub(crate) fn cuStreamWaitValue64_v2(
    stream: CuStream,
    addr: CuDevicePtr,
    value: u64,
    flags: u32,
) -> Done {
    value_op(
        stream,
        ValueOp::Wait {
            address: addr.0,
            value,
            bits: 64,
            how: flags,
        },
    )
}

pub(crate) fn cuStreamWriteValue32(
    stream: CuStream,
    addr: CuDevicePtr,
    value: u32,
    flags: u32,
) -> Done {
    let _default_or_no_barrier = flags;
    value_op(
        stream,
        ValueOp::Write {
            address: addr.0,
            value: value.into(),
            bits: 32,
        },
    )
}

pub(crate) fn cuStreamWriteValue32_v2(
    stream: CuStream,
    addr: CuDevicePtr,
    value: u32,
    flags: u32,
) -> Done {
    let _default_or_no_barrier = flags;
    value_op(
        stream,
        ValueOp::Write {
            address: addr.0,
            value: value.into(),
            bits: 32,
        },
    )
}

pub(crate) fn cuStreamWriteValue64(
    stream: CuStream,
    addr: CuDevicePtr,
    value: u64,
    flags: u32,
) -> Done {
    let _default_or_no_barrier = flags;
    value_op(
        stream,
        ValueOp::Write {
            address: addr.0,
            value,
            bits: 64,
        },
    )
}

pub(crate) fn cuStreamWriteValue64_v2(
    stream: CuStream,
    addr: CuDevicePtr,
    value: u64,
    flags: u32,
) -> Done {
    let _default_or_no_barrier = flags;
    value_op(
        stream,
        ValueOp::Write {
            address: addr.0,
            value,
            bits: 64,
        },
    )
}

#[allow(non_snake_case, reason = "the part that two exported functions share")]
fn make(out: *mut CuStream, flags: u32, priority: i32) -> Done {
    let context = context::current()?;
    if out.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let stream = create(context, flags, priority)?;
    write(
        out,
        std::ptr::with_exposed_provenance_mut(Arc::as_ptr(&stream).expose_provenance()),
    )
}
