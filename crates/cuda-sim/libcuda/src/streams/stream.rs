//! Streams: where work goes, and in which order. The legacy default stream waits for all blocking
//! streams of its context and they for it; each thread has a default stream of its own under
//! `CU_STREAM_PER_THREAD`. Waits and writes of values, callbacks and host functions run on the
//! helper thread, in stream order.
//!
//! Time is the board's (`cuda_sim::exec`).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cuda_api::driver::*;
use cuda_sim::exec::{ChannelId, Position, Work};

use crate::base::border::{Done, invalid_if, lock};
use crate::base::table::Table;
use crate::base::values::{ValueOp, load, store};
use crate::memory::context::{self, Ctx};
use crate::process::helper::{self, Action};
use crate::process::work::{exec, process, refused};
use crate::streams::capture::{self, Capture};

const LEGACY: usize = 1;
pub(crate) const PER_THREAD: usize = 2;
const NON_BLOCKING: u32 = 1;

/// Which of the kinds of stream it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
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
    pub(crate) kind: StreamKind,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) id: u64,
    /// The capture that this stream is in, if any: see `capture.rs`.
    pub(crate) capture: Mutex<Option<capture::Membership>>,
    pub(crate) attributes: Mutex<HashMap<u32, [u64; 8]>>,
}

impl Stream {
    /// Whether it and the legacy stream wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        self.kind != StreamKind::Legacy && self.flags & NON_BLOCKING == 0
    }

    /// The capture that it is part of.
    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        let membership = lock(&self.capture);
        Some(Arc::clone(&membership.as_ref()?.capture))
    }
}

#[derive(Debug, Default)]
struct Defaults {
    legacy: Option<Arc<Stream>>,
    /// By the thread's number.
    threads: BTreeMap<u64, Arc<Stream>>,
}

impl Defaults {
    fn all(&self) -> impl Iterator<Item = Arc<Stream>> {
        self.legacy.iter().chain(self.threads.values()).cloned()
    }
}

pub(crate) static STREAMS: Table<Stream> = Table::new(CuResult::INVALID_HANDLE);
static DEFAULTS: Mutex<BTreeMap<usize, Defaults>> = Mutex::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

/// A thread's number, and the end of its default streams with it.
struct Thread(u64);

impl Drop for Thread {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that is not there.
        if crate::process::driver::get().is_none() {
            return;
        }
        let Ok(mut defaults) = DEFAULTS.lock() else {
            return;
        };
        let mut gone = Vec::new();
        for defaults in defaults.values_mut() {
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
    static DEFAULT_IS_PER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Runs a driver call in which stream 0 means the thread's own stream (`_ptsz`, `_ptds`), or the legacy one.
pub(crate) fn with_default<T>(per_thread: bool, body: impl FnOnce() -> T) -> T {
    let outer = DEFAULT_IS_PER_THREAD.replace(per_thread);
    let result = body();
    DEFAULT_IS_PER_THREAD.set(outer);
    result
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

fn open(context: Ctx, kind: StreamKind, flags: u32, priority: i32) -> Done<Arc<Stream>> {
    let channel = exec()?.open_channel(process()?, context.gpu);
    let channel = channel.map_err(refused)?;
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
    invalid_if(flags & !NON_BLOCKING != 0)?;
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    let stream = open(context, StreamKind::Made, flags, priority)?;
    STREAMS.insert(Arc::clone(&stream));
    Ok(stream)
}

/// The stream that a program means.
pub(crate) fn find(handle: CuStream) -> Done<Arc<Stream>> {
    let handle = match handle.addr() {
        0 if DEFAULT_IS_PER_THREAD.get() => PER_THREAD,
        0 => LEGACY,
        handle => handle,
    };
    match handle {
        LEGACY => legacy(context::current()?),
        PER_THREAD => {
            let context = context::current()?;
            let thread = thread_number();
            let mut defaults = lock(&DEFAULTS);
            let known = defaults.entry(context.handle).or_default();
            if let Some(stream) = known.threads.get(&thread) {
                return Ok(Arc::clone(stream));
            }
            let stream = open(context, StreamKind::PerThread, 0, 0)?;
            known.threads.insert(thread, Arc::clone(&stream));
            Ok(stream)
        }
        handle => STREAMS.find(handle),
    }
}

/// A context's default stream.
pub(crate) fn legacy(context: Ctx) -> Done<Arc<Stream>> {
    let mut defaults = lock(&DEFAULTS);
    let known = defaults.entry(context.handle).or_default();
    if let Some(stream) = &known.legacy {
        return Ok(Arc::clone(stream));
    }
    let stream = open(context, StreamKind::Legacy, 0, 0)?;
    known.legacy = Some(Arc::clone(&stream));
    Ok(stream)
}

/// Every stream of a context, the default ones too.
pub(crate) fn of_context(context: Ctx) -> Vec<Arc<Stream>> {
    let mut streams = STREAMS.select(|stream| stream.context.handle == context.handle);
    streams.extend(
        lock(&DEFAULTS)
            .get(&context.handle)
            .into_iter()
            .flat_map(Defaults::all),
    );
    streams
}

/// Every stream of every context.
pub(crate) fn all() -> Vec<Arc<Stream>> {
    let mut streams = STREAMS.select(|_| true);
    streams.extend(lock(&DEFAULTS).values().flat_map(Defaults::all));
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
    let defaults = lock(&DEFAULTS).remove(&context_handle);
    streams.extend(defaults.iter().flat_map(Defaults::all));
    let Ok(exec) = exec() else { return };
    for stream in streams {
        exec.drop_channel(stream.channel);
    }
}

// --- giving work to a stream ----------------------------------------------------------------

/// Puts work at a stream's end, in the order that default streams ask for.
pub(crate) fn submit(stream: &Stream, work: Work) -> Done<Position> {
    let before = others_before(stream);
    let place = exec()?.submit_after(stream.channel, &before, work);
    place.map_err(refused)
}

/// The streams whose work comes before what a stream is given next.
fn others_before(stream: &Stream) -> Vec<ChannelId> {
    if stream.kind == StreamKind::Legacy {
        let others = of_context(stream.context).into_iter();
        let blocking = others.filter(|other| other.is_blocking());
        return blocking.map(|other| other.channel).collect();
    }
    if !stream.is_blocking() {
        return Vec::new();
    }
    let defaults = lock(&DEFAULTS);
    let known = defaults.get(&stream.context.handle);
    let legacy = known.and_then(|known| known.legacy.as_ref());
    legacy.map(|legacy| legacy.channel).into_iter().collect()
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
    let work = |token| Work::Host { token };
    submit_action(stream, Action::Call(Box::new(call)), work)
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
    submit(stream, work(token)).inspect_err(|_| helper::forget(token))?;
    helper::wake(exec);
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

// --- values ---------------------------------------------------------------------------------

pub(crate) fn submit_value(stream: &Stream, op: ValueOp) -> Done {
    match op {
        ValueOp::Wait {
            address,
            value,
            bits,
            how,
        } => {
            let holds = move || {
                let mask = u64::MAX >> (64 - bits);
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

/// The highest priority that a stream can have; 0 is the lowest.
pub(crate) const GREATEST_PRIORITY: i32 = -5;

/// Whether everything is done that a program means by a stream: the legacy stream stands for the
/// blocking streams of its context too.
pub(crate) fn ordered_idle(stream: &Stream) -> Done<bool> {
    let exec = exec()?;
    if stream.kind == StreamKind::Legacy {
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
    if stream.kind == StreamKind::Legacy {
        for other in of_context(stream.context) {
            if other.is_blocking() {
                exec.drain(other.channel);
            }
        }
    }
    Ok(())
}
