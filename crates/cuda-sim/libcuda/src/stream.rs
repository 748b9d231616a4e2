//! Streams: where work goes, and in which order. The legacy default stream waits for all blocking
//! streams of its context and they for it; each thread has a default stream of its own under
//! `CU_STREAM_PER_THREAD`. Waits and writes of values, callbacks and host functions run on the
//! helper thread, in stream order.
//!
//! Time is the board's (`cuda_sim::exec`); memory belongs to the memory modules, which hand their
//! copies to [`copy_async`] and [`copy`].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cuda_api::driver::*;
use cuda_sim::exec::{ChannelId, Place, Work};

use crate::border::{Done, Opaque, lock, read, write};
use crate::capture::{self, Capture};
use crate::context;
use crate::context::Ctx;
use crate::event;
use crate::gpu::{exec, process, refused};
use crate::graph::{BatchOp, Body};
use crate::helper::{self, Action};
use crate::table::Table;

const LEGACY: usize = 1;
const PER_THREAD: usize = 2;
const NON_BLOCKING: u32 = 1;

/// Which of the kinds of stream it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The context's default stream.
    Legacy,
    /// A thread's default stream.
    PerThread,
    /// One that the program made.
    Made,
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: Ctx,
    pub(crate) channel: ChannelId,
    pub(crate) kind: Kind,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) id: u64,
    /// What this stream captures, if anything: see `capture.rs`.
    pub(crate) capture: Mutex<Option<capture::Membership>>,
    attributes: Mutex<HashMap<u32, [u64; 8]>>,
}

impl Stream {
    /// Whether it and the legacy stream wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        self.kind != Kind::Legacy && self.flags & NON_BLOCKING == 0
    }

    /// The capture that it is part of.
    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        lock(&self.capture)
            .as_ref()
            .map(|membership| Arc::clone(&membership.capture))
    }
}

#[derive(Debug, Default)]
struct Defaults {
    legacy: Option<Arc<Stream>>,
    /// By the thread's number.
    threads: HashMap<u64, Arc<Stream>>,
}

static STREAMS: Table<Stream> = Table::new();
static DEFAULTS: Mutex<Option<HashMap<usize, Defaults>>> = Mutex::new(None);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

/// A thread's number, and the end of its default streams with it.
struct Thread(u64);

impl Drop for Thread {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that is not there.
        if crate::driver::get().is_none() {
            return;
        }
        let Ok(mut defaults) = DEFAULTS.lock() else {
            return;
        };
        let mut gone = Vec::new();
        for defaults in defaults.iter_mut().flat_map(HashMap::values_mut) {
            gone.extend(defaults.threads.remove(&self.0));
        }
        drop(defaults);
        for stream in gone {
            if let Ok(exec) = exec() {
                exec.close_channel(stream.channel);
            }
        }
    }
}

thread_local! {
    static THREAD: RefCell<Option<Thread>> = const { RefCell::new(None) };
}

thread_local! {
    static DEFAULT_IS_PER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Runs a driver call in which stream 0 means the thread's own stream (`_ptsz`, `_ptds`), or the legacy one.
pub(crate) fn with_default<T>(per_thread: bool, body: impl FnOnce() -> T) -> T {
    let outer = DEFAULT_IS_PER_THREAD.replace(per_thread);
    let result = body();
    DEFAULT_IS_PER_THREAD.set(outer);
    result
}

fn default_is_per_thread() -> bool {
    DEFAULT_IS_PER_THREAD.get()
}

/// This thread's number, which no other has had.
pub(crate) fn thread_number() -> u64 {
    // Relaxed: only has to differ from every other.
    let new = || NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
    let number = THREAD.try_with(|thread| {
        thread
            .try_borrow_mut()
            .map(|mut thread| thread.get_or_insert_with(|| Thread(new())).0)
    });
    match number {
        Ok(Ok(number)) => number,
        _ => new(),
    }
}

fn open(context: Ctx, kind: Kind, flags: u32, priority: i32) -> Done<Arc<Stream>> {
    let channel = exec()?
        .open_channel(process()?, context.gpu)
        .map_err(refused)?;
    Ok(Arc::new(Stream {
        context,
        channel,
        kind,
        flags,
        priority,
        // Relaxed: only has to differ from every other.
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        capture: Mutex::new(None),
        attributes: Mutex::new(HashMap::new()),
    }))
}

/// Makes a stream, as `cuStreamCreateWithPriority` and green contexts do.
pub(crate) fn create(context: Ctx, flags: u32, priority: i32) -> Done<Arc<Stream>> {
    if flags & !NON_BLOCKING != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let stream = open(
        context,
        Kind::Made,
        flags,
        priority.clamp(GREATEST_PRIORITY, 0),
    )?;
    STREAMS.insert(Arc::clone(&stream));
    Ok(stream)
}

/// The stream that a program means.
pub(crate) fn find(handle: CuStream) -> Done<Arc<Stream>> {
    let handle = match handle.addr() {
        0 if default_is_per_thread() => PER_THREAD,
        0 => LEGACY,
        handle => handle,
    };
    match handle {
        LEGACY => legacy(context::current()?),
        PER_THREAD => {
            let context = context::current()?;
            let thread = thread_number();
            let mut defaults = lock(&DEFAULTS);
            let all = defaults.get_or_insert_with(HashMap::new);
            let known = all.entry(context.handle).or_default();
            if let Some(stream) = known.threads.get(&thread) {
                return Ok(Arc::clone(stream));
            }
            let stream = open(context, Kind::PerThread, 0, 0)?;
            known.threads.insert(thread, Arc::clone(&stream));
            Ok(stream)
        }
        handle => STREAMS.get(handle).ok_or(CuResult::INVALID_HANDLE),
    }
}

/// A context's default stream.
pub(crate) fn legacy(context: Ctx) -> Done<Arc<Stream>> {
    let mut defaults = lock(&DEFAULTS);
    let all = defaults.get_or_insert_with(HashMap::new);
    let known = all.entry(context.handle).or_default();
    if let Some(stream) = &known.legacy {
        return Ok(Arc::clone(stream));
    }
    let stream = open(context, Kind::Legacy, 0, 0)?;
    known.legacy = Some(Arc::clone(&stream));
    Ok(stream)
}

/// Every stream of a context, the default ones too.
pub(crate) fn of_context(context: Ctx) -> Vec<Arc<Stream>> {
    let mut streams = STREAMS.select(|stream| stream.context.handle == context.handle);
    if let Some(known) = lock(&DEFAULTS)
        .as_ref()
        .and_then(|all| all.get(&context.handle))
    {
        streams.extend(known.legacy.iter().cloned());
        streams.extend(known.threads.values().cloned());
    }
    streams
}

/// Every stream of every context.
pub(crate) fn all() -> Vec<Arc<Stream>> {
    let mut streams = STREAMS.select(|_| true);
    for known in lock(&DEFAULTS).iter().flat_map(HashMap::values) {
        streams.extend(known.legacy.iter().cloned());
        streams.extend(known.threads.values().cloned());
    }
    streams
}

/// Memory is about to go: host work that is queued may still want it.
pub(crate) fn before_free(context: Ctx) -> Done {
    if helper::anything_pending() && !helper::is_helper() {
        drain_context(context)
    } else {
        Ok(())
    }
}

/// Waits until everything that a context was given is done.
pub(crate) fn drain_context(context: Ctx) -> Done {
    let exec = exec()?;
    for stream in of_context(context) {
        exec.drain(stream.channel);
    }
    Ok(())
}

/// A context is gone, and its streams and their work with it.
pub(crate) fn context_gone(context: Ctx) {
    let context_handle = context.handle;
    let mut streams = STREAMS.take(|stream| stream.context.handle == context_handle);
    if let Some(known) = lock(&DEFAULTS)
        .as_mut()
        .and_then(|all| all.remove(&context_handle))
    {
        streams.extend(known.legacy);
        streams.extend(known.threads.into_values());
    }
    let Ok(exec) = exec() else { return };
    for stream in streams {
        exec.drop_channel(stream.channel);
    }
}

// --- giving work to a stream ----------------------------------------------------------------

/// Puts work at a stream's end, in the order that default streams ask for.
pub(crate) fn submit(stream: &Stream, work: Work) -> Done<Place> {
    let before = others_before(stream);
    exec()?
        .submit_after(stream.channel, &before, work)
        .map_err(refused)
}

/// The streams whose work comes before what a stream is given next.
fn others_before(stream: &Stream) -> Vec<ChannelId> {
    if stream.kind == Kind::Legacy {
        let others = of_context(stream.context);
        return others
            .iter()
            .filter(|o| o.is_blocking())
            .map(|other| other.channel)
            .collect();
    }
    if !stream.is_blocking() {
        return Vec::new();
    }
    let defaults = lock(&DEFAULTS);
    let known = defaults
        .as_ref()
        .and_then(|all| all.get(&stream.context.handle));
    known
        .and_then(|known| known.legacy.as_ref())
        .map(|legacy| legacy.channel)
        .into_iter()
        .collect()
}

/// Lets what a stream is given next come after what default streams ask for, without work of its own.
pub(crate) fn order(stream: &Stream) -> Done {
    let exec = exec()?;
    for other in others_before(stream) {
        exec.order(stream.channel, other).map_err(refused)?;
    }
    Ok(())
}

/// Something that the host does when the stream comes to it.
pub(crate) fn submit_call(stream: &Stream, call: impl FnOnce() + Send + 'static) -> Done {
    submit_action(stream, Action::Call(Box::new(call)), |token| Work::Host {
        token,
    })
}

/// A condition that the stream stands at until it holds.
pub(crate) fn submit_poll(
    stream: &Stream,
    holds: impl Fn() -> bool + Send + Sync + 'static,
    work: impl FnOnce(u64) -> Work,
) -> Done {
    submit_action(stream, Action::Poll(Box::new(holds)), work)
}

fn submit_action(stream: &Stream, action: Action, work: impl FnOnce(u64) -> Work) -> Done {
    let exec = exec()?;
    let token = helper::keep(exec, process()?, action);
    if let Err(error) = submit(stream, work(token)) {
        helper::forget(token);
        return Err(error);
    }
    helper::wake(exec);
    Ok(())
}

/// Does something to memory in stream order, and lets the stream's copy engine take the time for
/// that many bytes; a stream that captures gets a node instead, which does it at each launch.
///
/// What can be done at once is: kernels do not compute here, so nothing that they leave behind could
/// be missed; only other host work must not be overtaken.
pub(crate) fn copy_async(
    stream: &Stream,
    bytes: u64,
    act: impl Fn() + Send + Sync + 'static,
) -> Done {
    let act: Arc<dyn Fn() + Send + Sync> = Arc::new(act);
    if capture::takes(stream, || {
        Ok(Body::Copy {
            act: Arc::clone(&act),
            bytes,
        })
    })? {
        return Ok(());
    }
    if helper::anything_pending() {
        submit_call(stream, move || act())?;
    } else {
        act();
    }
    submit(
        stream,
        Work::Copy {
            ns: exec()?.script().copy_ns(bytes),
        },
    )?;
    Ok(())
}

/// The same, and waits until it is done: the copies whose names do not end in Async.
pub(crate) fn copy(stream: &Stream, bytes: u64, act: impl Fn() + Send + Sync + 'static) -> Done {
    capture::query_of_stream(stream)?;
    copy_async(stream, bytes, act)?;
    exec()?.drain(stream.channel);
    Ok(())
}

/// Does something that takes no time in stream order: gives memory back, for example.
pub(crate) fn in_order(stream: &Stream, act: impl FnOnce() + Send + 'static) -> Done {
    if helper::anything_pending() {
        return submit_call(stream, act);
    }
    act();
    Ok(())
}

/// The same for freeing, which a driver may put behind kernels too.
pub(crate) fn free_in_order(stream: &Stream, act: impl FnOnce() + Send + 'static) -> Done {
    if crate::choices::frees_wait_for_kernels() && !ordered_idle(stream)? {
        return submit_call(stream, act);
    }
    in_order(stream, act)
}

// --- values ---------------------------------------------------------------------------------

/// What a stream does to a word of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueOp {
    Wait {
        address: u64,
        value: u64,
        bits: u32,
        how: u32,
    },
    Write {
        address: u64,
        value: u64,
        bits: u32,
    },
}

impl ValueOp {
    fn check(self) -> Done {
        let (Self::Wait { address, bits, .. } | Self::Write { address, bits, .. }) = self;
        if address == 0 || !address.is_multiple_of(u64::from(bits / 8)) {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(())
    }
}

pub(crate) fn submit_value(stream: &Stream, op: ValueOp) -> Done {
    match op {
        ValueOp::Wait {
            address,
            value,
            bits,
            how,
        } => {
            let holds = move || {
                let mask = if bits == 32 {
                    u64::from(u32::MAX)
                } else {
                    u64::MAX
                };
                let (word, value) = (load(address, bits), value & mask);
                match how & 3 {
                    0 if bits == 32 => (word as u32).wrapping_sub(value as u32) as i32 >= 0,
                    0 => word.wrapping_sub(value) as i64 >= 0,
                    1 => word == value,
                    2 => word & value != 0,
                    _ => !(word | value) & mask != 0,
                }
            };
            submit_poll(stream, holds, |token| Work::Poll { token })
        }
        ValueOp::Write {
            address,
            value,
            bits,
        } => submit_call(stream, move || store(address, value, bits)),
    }
}

/// Reads a word that other threads, processes or streams write.
pub(crate) fn load(address: u64, bits: u32) -> u64 {
    let address = address as usize;
    if bits == 32 {
        // SAFETY: the program vouches for the address, which it has given to the driver; it is
        // aligned (checked), and read as an atomic since others write it.
        let word = unsafe {
            std::sync::atomic::AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(address))
        };
        return word.load(Ordering::SeqCst).into();
    }
    // SAFETY: as above.
    let word = unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(address)) };
    word.load(Ordering::SeqCst)
}

fn store(address: u64, value: u64, bits: u32) {
    let address = address as usize;
    if bits == 32 {
        // SAFETY: as for `load`.
        let word = unsafe {
            std::sync::atomic::AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(address))
        };
        word.store(value as u32, Ordering::SeqCst);
        return;
    }
    // SAFETY: as for `load`.
    let word = unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(address)) };
    word.store(value, Ordering::SeqCst);
}

fn value_op(stream: CuStream, op: ValueOp) -> Done {
    op.check()?;
    let stream = find(stream)?;
    if capture::takes(&stream, || Ok(Body::BatchMemOp(vec![BatchOp(op)])))? {
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
    if capture::takes(&stream, || {
        Ok(Body::BatchMemOp(ops.iter().copied().map(BatchOp).collect()))
    })? {
        return Ok(());
    }
    for op in ops {
        submit_value(&stream, op)?;
    }
    Ok(())
}

/// Reads a batch as a program passes it.
pub(crate) fn value_ops(ops: *mut CuStreamBatchMemOpParams, count: u32) -> Done<Vec<ValueOp>> {
    let mut read_ops = Vec::new();
    for index in 0..count as usize {
        if ops.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: the program passes `count` operations.
        let op = unsafe { ops.add(index).read() };
        let (address, value, how) = (op.address.0, op.value, op.flags);
        let op = match op.operation {
            1 => ValueOp::Wait {
                address,
                value,
                bits: 32,
                how,
            },
            2 => ValueOp::Write {
                address,
                value,
                bits: 32,
            },
            4 => ValueOp::Wait {
                address,
                value,
                bits: 64,
                how,
            },
            5 => ValueOp::Write {
                address,
                value,
                bits: 64,
            },
            // Flush of remote writes, memory barrier: nothing to order here.
            3 | 6 => continue,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        op.check()?;
        read_ops.push(op);
    }
    Ok(read_ops)
}

// --- the C border ---------------------------------------------------------------------------

/// The highest priority that a stream can have; 0 is the lowest.
pub(crate) const GREATEST_PRIORITY: i32 = -5;

/// A stream's handle on its way to a callback.
#[derive(Clone, Copy)]
struct Handle(CuStream);

// SAFETY: a handle is a number to us.
unsafe impl Send for Handle {}

/// Calls a program's host function, on the helper thread.
pub(crate) fn call_host(function: unsafe extern "C-unwind" fn(*mut c_void), data: Opaque) {
    // SAFETY: the program vouches for its function and its data until it has run.
    unsafe { function(data.0) };
}

fn destroy(handle: CuStream) -> Done {
    let stream = match handle.addr() {
        0..=PER_THREAD => return Err(CuResult::INVALID_HANDLE),
        handle => STREAMS.remove(handle).ok_or(CuResult::INVALID_HANDLE)?,
    };
    capture::stream_gone(&stream);
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
    capture::query_of_stream(&stream)?;
    if ordered_idle(&stream)? {
        Ok(())
    } else {
        Err(CuResult::NOT_READY)
    }
}

pub(crate) fn cuStreamSynchronize(stream: CuStream) -> Done {
    let stream = find(stream)?;
    capture::query_of_stream(&stream)?;
    synchronize(&stream)?;
    crate::pool::synchronized(stream.context.gpu);
    Ok(())
}

fn synchronize_context(context: Ctx) -> Done {
    capture::query_of_context(context)?;
    drain_context(context)?;
    crate::pool::synchronized(context.gpu);
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
    event::wait(&stream, event, flags)
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
    capture::forbidden(&found)?;
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
    if capture::takes(&stream, || Ok(Body::Host { function, data }))? {
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
    capture::still_good(&stream)?;
    write(out, stream.context.as_handle())
}

pub(crate) fn cuStreamGetCtx_v2(
    stream: CuStream,
    out: *mut CuContext,
    green_ctx: *mut CuGreenCtx,
) -> Done {
    let stream = find(stream)?;
    let green = crate::green::of_context(stream.context);
    write(green_ctx, std::ptr::with_exposed_provenance_mut(green))?;
    if green == 0 {
        write(out, stream.context.as_handle())
    } else {
        write(out, std::ptr::null_mut())
    }
}

pub(crate) fn cuStreamGetGreenCtx(stream: CuStream, ctx_out: *mut CuGreenCtx) -> Done {
    let green = crate::green::of_context(find(stream)?.context);
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

/// Whether everything is done that a program means by a stream: the legacy stream stands for the
/// blocking streams of its context too.
fn ordered_idle(stream: &Stream) -> Done<bool> {
    let exec = exec()?;
    if stream.kind == Kind::Legacy {
        for other in of_context(stream.context) {
            if other.is_blocking() && !exec.is_idle(other.channel) {
                return Ok(false);
            }
        }
    }
    Ok(exec.is_idle(stream.channel))
}

/// Waits for everything that a program means by a stream.
pub(crate) fn synchronize(stream: &Stream) -> Done {
    let exec = exec()?;
    exec.drain(stream.channel);
    if stream.kind == Kind::Legacy {
        for other in of_context(stream.context) {
            if other.is_blocking() {
                exec.drain(other.channel);
            }
        }
    }
    Ok(())
}
