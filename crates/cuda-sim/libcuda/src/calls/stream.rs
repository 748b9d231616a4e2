//! The functions of streams: create, wait, callbacks, host functions, attributes, values in memory.

use std::sync::Arc;

use cuda_api::driver::*;

use crate::base::border::{
    Done, Opaque, call_host, check_out, handle, invalid_if, lock, read, refuse_if, write,
};
use crate::base::values::{ValueOp, value_ops};
use crate::memory::context::{self, Ctx};
use crate::process::work::exec;
use crate::streams::capturing;
use crate::streams::graph::{BatchOp, Body};
use crate::streams::recording;
use crate::streams::stream::{
    PER_THREAD, STREAMS, create, drain_context, find, ordered_idle, submit_call, submit_value,
    synchronize,
};

calls! {
    cuStreamCreate(out, flags) => make(out, flags, 0);
    cuStreamCreateWithPriority(out, flags, priority) => make(out, flags, priority);
    cuStreamDestroy, cuStreamDestroy_v2(stream) => destroy(stream);
    cuStreamWaitValue32, cuStreamWaitValue32_v2(stream, addr, value, flags)
        => value_op(stream, ValueOp::wait(addr.0, value.into(), 32, flags));
    cuStreamWaitValue64, cuStreamWaitValue64_v2(stream, addr, value, flags)
        => value_op(stream, ValueOp::wait(addr.0, value, 64, flags));
    cuStreamWriteValue32, cuStreamWriteValue32_v2(stream, addr, value, _default_or_no_barrier)
        => value_op(stream, ValueOp::write(addr.0, value.into(), 32));
    cuStreamWriteValue64, cuStreamWriteValue64_v2(stream, addr, value, _default_or_no_barrier)
        => value_op(stream, ValueOp::write(addr.0, value, 64));
    cuStreamQuery(stream) => {
        let stream = find(stream)?;
        capturing::query_of_stream(&stream)?;
        refuse_if(!ordered_idle(&stream)?, CuResult::NOT_READY)
    };
    cuStreamSynchronize(stream) => {
        let stream = find(stream)?;
        capturing::query_of_stream(&stream)?;
        synchronize(&stream)?;
        crate::memory::pool::synchronized(stream.context.gpu);
        Ok(())
    };
    cuCtxSynchronize() => synchronize_context(context::current()?);
    cuCtxSynchronize_v2(context) => synchronize_context(context::find_or_current(context)?);
    cuStreamWaitEvent(stream, event, flags) => {
        let stream = find(stream)?;
        recording::wait(&stream, event, flags)
    };
    cuLaunchHostFunc(stream, function, data) => launch_host(stream, function, data);
    cuLaunchHostFunc_v2(stream, function, data, _sync_mode) => launch_host(stream, function, data);
    cuStreamGetPriority(stream, priority) => write(priority, find(stream)?.priority);
    cuStreamGetFlags(stream, flags) => write(flags, find(stream)?.flags);
    cuStreamGetId(stream, stream_id) => write(stream_id, find(stream)?.id);
    cuStreamGetCtx(stream, out) => {
        let stream = find(stream)?;
        capturing::still_good(&stream)?;
        write(out, stream.context.as_handle())
    };
    cuStreamGetCtx_v2(stream, out, green_ctx) => {
        let stream = find(stream)?;
        let green = crate::calls::green::of_context(stream.context);
        write(green_ctx, handle(green))?;
        let own = (green == 0).then(|| stream.context.as_handle());
        write(out, own.unwrap_or(std::ptr::null_mut()))
    };
    cuStreamGetGreenCtx(stream, ctx_out) => {
        let green = crate::calls::green::of_context(find(stream)?.context);
        write(ctx_out, handle(green))
    };
    cuStreamGetDevice(stream, device) => write(device, find(stream)?.context.device);
    cuStreamGetAttribute(stream, attribute, value) => {
        let stream = find(stream)?;
        let words = lock(&stream.attributes).get(&attribute).copied();
        write(value, CuLaunchAttributeValue { words: words.unwrap_or([0; 8]) })
    };
    cuStreamSetAttribute(stream, attribute, value) => {
        let value = read(value)?;
        lock(&find(stream)?.attributes).insert(attribute, value.words);
        Ok(())
    };
    cuStreamCopyAttributes(dst, src) => {
        let attributes = lock(&find(src)?.attributes).clone();
        *lock(&find(dst)?.attributes) = attributes;
        Ok(())
    };
    cuStreamAttachMemAsync(stream, ptr, length, flags) => {
        let _unused = (ptr, length);
        invalid_if(!matches!(flags, 1 | 2 | 4))?;
        find(stream).map(drop)
    };
    cuStreamBatchMemOp, cuStreamBatchMemOp_v2(stream, count, param_array, flags)
        => batch(stream, count, param_array, flags);
    cuStreamAddCallback(stream, callback, data, flags) => {
        let callback = callback.ok_or(CuResult::INVALID_VALUE)?;
        invalid_if(flags != 0)?;
        let found = find(stream)?;
        capturing::forbidden(&found)?;
        let (stream, data) = (Handle(stream), Opaque(data));
        submit_call(&found, move || {
            let (stream, data) = (stream, data);
            // SAFETY: the program vouches for its callback and its data until it has run.
            unsafe { callback(stream.0, CuResult::SUCCESS, data.0) };
        })
    };
}

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
    invalid_if(flags != 0 || count > 256)?;
    let ops = value_ops(ops, count)?;
    let stream = find(stream)?;
    let node = || Body::BatchMemOp(ops.iter().copied().map(BatchOp).collect());
    if capturing::takes(&stream, || Ok(node()))? {
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

fn synchronize_context(context: Ctx) -> Done {
    capturing::query_of_context(context)?;
    drain_context(context)?;
    crate::memory::pool::synchronized(context.gpu);
    Ok(())
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

fn make(out: *mut CuStream, flags: u32, priority: i32) -> Done {
    let context = context::current()?;
    check_out(out)?;
    let stream = create(context, flags, priority)?;
    write(out, handle(Arc::as_ptr(&stream).expose_provenance()))
}
