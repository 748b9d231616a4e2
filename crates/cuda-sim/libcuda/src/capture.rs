//! Stream capture, and what is not allowed while it goes on: as the driver enforces it, so that one
//! call too many spoils a capture here too.
//!
//! A capture begins in a stream and draws in every stream that waits for an event of it; work given
//! to those becomes nodes of a graph. It ends where it began, with all streams joined again. What
//! it must not meet: calls that may not wait ("unsafe" ones, by the mode of the capture and of the
//! calling thread), questions about captured streams and events, and the legacy stream.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cuda_api::driver::*;

use crate::border::{Done, handle, lock, read, read_all, write, write_if};
use crate::context::Ctx;
use crate::graph::{self, Body, Graph};
use crate::stream::{self, Kind, Stream};

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

const STATUS_NONE: u32 = 0;
const STATUS_ACTIVE: u32 = 1;
const STATUS_INVALIDATED: u32 = 2;

/// A capture that goes on.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) id: u64,
    mode: u32,
    /// The stream in which it began.
    origin: u64,
    thread: u64,
    context: usize,
    invalidated: AtomicBool,
    graph: Arc<Graph>,
    /// Where streams stood that were destroyed since: they have to be joined like the others.
    left_behind: Mutex<Vec<usize>>,
}

impl Capture {
    /// Something happened that a capture does not survive.
    pub(crate) fn invalidate(&self) {
        // SeqCst, here and below: another thread's illegal call is seen by the capturing one.
        self.invalidated.store(true, Ordering::SeqCst);
    }

    fn is_invalid(&self) -> bool {
        self.invalidated.load(Ordering::SeqCst)
    }
}

/// What a stream knows of the capture that it is part of.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) capture: Arc<Capture>,
    /// The nodes that its next one comes after.
    after: Vec<usize>,
}

static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static CAPTURES: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// The capture of a number, while it goes on.
pub(crate) fn numbered(id: u64) -> Option<Arc<Capture>> {
    let captures = lock(&CAPTURES);
    captures.iter().find(|capture| capture.id == id).cloned()
}

fn anything_captures() -> bool {
    ACTIVE.load(Ordering::SeqCst) != 0
}

// --- what is not allowed --------------------------------------------------------------------

/// A call that a capture cannot see, and that may wait for the GPU: `cuMemAlloc`, `cuEventQuery`.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED` when the capture's mode and the thread's forbid it; the capture is
/// spoilt then.
pub(crate) fn unsafe_call() -> Done {
    if !anything_captures() || MODE.get() == RELAXED {
        return Ok(());
    }
    let (thread, own_mode) = (stream::thread_number(), MODE.get());
    let mut met = false;
    for capture in lock(&CAPTURES)
        .iter()
        .filter(|capture| !capture.is_invalid())
    {
        let own = capture.thread == thread && capture.mode != RELAXED;
        let others = own_mode == GLOBAL && capture.mode == GLOBAL && capture.thread != thread;
        if own || others {
            capture.invalidate();
            met = true;
        }
    }
    if met {
        Err(CuResult::STREAM_CAPTURE_UNSUPPORTED)
    } else {
        Ok(())
    }
}

/// A question about how far a stream is, or a wait for it.
///
/// # Errors
/// When it captures, or stands for streams that do; that capture is spoilt then.
pub(crate) fn query_of_stream(stream: &Stream) -> Done {
    if !anything_captures() {
        return Ok(());
    }
    forbidden(stream)?;
    if stream.kind == Kind::Legacy {
        legacy_used(stream)?;
    }
    unsafe_call()
}

/// Something that a capturing stream cannot do.
///
/// # Errors
/// When the stream captures; the capture is spoilt then.
pub(crate) fn forbidden(stream: &Stream) -> Done {
    match stream.capture() {
        Some(capture) if capture.is_invalid() => Err(CuResult::STREAM_CAPTURE_INVALIDATED),
        Some(capture) => {
            capture.invalidate();
            Err(CuResult::STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// A wait for everything that a context was given.
///
/// # Errors
/// When one of its streams captures; that capture is spoilt then.
pub(crate) fn query_of_context(context: Ctx) -> Done {
    if !anything_captures() {
        return Ok(());
    }
    let mut met = false;
    for capture in lock(&CAPTURES)
        .iter()
        .filter(|capture| capture.context == context.handle)
    {
        capture.invalidate();
        met = true;
    }
    if met {
        return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
    }
    unsafe_call()
}

/// The legacy stream would wait for blocking streams, and a captured one has nothing to wait for.
fn legacy_used(stream: &Stream) -> Done {
    let mut met = false;
    for other in stream::of_context(stream.context) {
        if other.is_blocking()
            && let Some(capture) = other.capture()
        {
            capture.invalidate();
            met = true;
        }
    }
    if met {
        Err(CuResult::STREAM_CAPTURE_IMPLICIT)
    } else {
        Ok(())
    }
}

/// Asks a stream for something that works while it captures, but not once that is spoilt.
///
/// # Errors
/// When the stream's capture is spoilt.
pub(crate) fn still_good(stream: &Stream) -> Done {
    match stream.capture() {
        Some(capture) if capture.is_invalid() => Err(CuResult::STREAM_CAPTURE_INVALIDATED),
        _ => Ok(()),
    }
}

/// A stream is made to wait for work that is in no capture.
///
/// # Errors
/// When the stream captures; the capture is spoilt then.
pub(crate) fn waits_outside(stream: &Stream) -> Done {
    if !anything_captures() {
        return Ok(());
    }
    match stream.capture() {
        Some(capture) if capture.is_invalid() => Err(CuResult::STREAM_CAPTURE_INVALIDATED),
        Some(capture) => {
            capture.invalidate();
            Err(CuResult::STREAM_CAPTURE_ISOLATION)
        }
        None if stream.kind == Kind::Legacy => legacy_used(stream),
        None => Ok(()),
    }
}

/// The driver functions that are "unsafe" while something captures: not given to a stream, and free
/// to wait for the GPU. Sorted. Those that ask for a stream or an event stand with their own rules.
const UNSAFE: &[&str] = &[
    "cuArray3DCreate",
    "cuArray3DCreate_v2",
    "cuArrayCreate",
    "cuArrayCreate_v2",
    "cuArrayDestroy",
    "cuCtxSetLimit",
    "cuIpcCloseMemHandle",
    "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemAlloc",
    "cuMemAllocHost",
    "cuMemAllocHost_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch",
    "cuMemAllocPitch_v2",
    "cuMemAlloc_v2",
    "cuMemFree",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuModuleUnload",
];

/// Lets a driver call in, or says that something captures which it would spoil (and spoils it).
///
/// # Errors
/// As [`unsafe_call`], for the functions that are unsafe.
#[inline]
pub(crate) fn admits(name: &str) -> Done {
    if anything_captures() && UNSAFE.binary_search(&name).is_ok() {
        unsafe_call()
    } else {
        Ok(())
    }
}

// --- work that becomes nodes ----------------------------------------------------------------

/// Makes a node of work that is given to a stream, when that stream captures; says whether it did.
///
/// # Errors
/// When the capture is spoilt, or the work cannot be a node (which spoils it), or the work is for
/// the legacy stream while a blocking stream captures.
pub(crate) fn takes(stream: &Stream, make: impl FnOnce() -> Done<Body>) -> Done<bool> {
    if !anything_captures() {
        return Ok(false);
    }
    let mut membership = lock(&stream.capture);
    let Some(membership) = membership.as_mut() else {
        drop(membership);
        if stream.kind == Kind::Legacy {
            legacy_used(stream)?;
        }
        return Ok(false);
    };
    let capture = Arc::clone(&membership.capture);
    if capture.is_invalid() {
        return Err(CuResult::STREAM_CAPTURE_INVALIDATED);
    }
    let added = make().and_then(|body| capture.graph.add(body, &membership.after));
    match added {
        Ok(node) => {
            membership.after = vec![node];
            Ok(true)
        }
        Err(code) => {
            capture.invalidate();
            Err(code)
        }
    }
}

/// Where a stream stands in its capture: what an event records. `None` when it captures nothing.
///
/// # Errors
/// When the capture is spoilt, or the legacy stream is used while a blocking stream captures.
pub(crate) fn place(stream: &Stream) -> Done<Option<(Arc<Capture>, Vec<usize>)>> {
    if !anything_captures() {
        return Ok(None);
    }
    let membership = lock(&stream.capture);
    let Some(membership) = membership.as_ref() else {
        drop(membership);
        if stream.kind == Kind::Legacy {
            legacy_used(stream)?;
        }
        return Ok(None);
    };
    if membership.capture.is_invalid() {
        return Err(CuResult::STREAM_CAPTURE_INVALIDATED);
    }
    Ok(Some((
        Arc::clone(&membership.capture),
        membership.after.clone(),
    )))
}

/// A stream waits for a captured event: it becomes part of that capture.
///
/// # Errors
/// When the capture is over or spoilt, when the stream is in another one (both are spoilt then), or
/// is the legacy stream.
pub(crate) fn join(stream: &Stream, capture: u64, nodes: &[usize]) -> Done {
    let capture = &numbered(capture).ok_or(CuResult::CAPTURED_EVENT)?;
    if capture.is_invalid() {
        return Err(CuResult::STREAM_CAPTURE_INVALIDATED);
    }
    if stream.kind == Kind::Legacy {
        capture.invalidate();
        return Err(CuResult::STREAM_CAPTURE_IMPLICIT);
    }
    let mut own = lock(&stream.capture);
    match own.as_mut() {
        None => {
            *own = Some(Membership {
                capture: Arc::clone(capture),
                after: nodes.to_vec(),
            });
        }
        Some(member) if Arc::ptr_eq(&member.capture, capture) => {
            for &node in nodes {
                if !member.after.contains(&node) {
                    member.after.push(node);
                }
            }
        }
        Some(member) => {
            member.capture.invalidate();
            capture.invalidate();
            return Err(CuResult::STREAM_CAPTURE_MERGE);
        }
    }
    Ok(())
}

// --- beginning and ending -------------------------------------------------------------------

fn begin(stream: CuStream, mode: u32, graph: Option<(Arc<Graph>, Vec<usize>)>) -> Done {
    if mode > RELAXED {
        return Err(CuResult::INVALID_VALUE);
    }
    let stream = stream::find(stream)?;
    if stream.kind == Kind::Legacy {
        return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut own = lock(&stream.capture);
    if own.is_some() {
        return Err(CuResult::ILLEGAL_STATE);
    }
    let (graph, after) = graph.unwrap_or_else(|| (graph::create(), Vec::new()));
    let capture = Arc::new(Capture {
        // Relaxed: only has to differ from every other.
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        mode,
        origin: stream.id,
        thread: stream::thread_number(),
        context: stream.context.handle,
        invalidated: AtomicBool::new(false),
        graph,
        left_behind: Mutex::new(Vec::new()),
    });
    lock(&CAPTURES).push(Arc::clone(&capture));
    ACTIVE.fetch_add(1, Ordering::SeqCst);
    *own = Some(Membership { capture, after });
    Ok(())
}

fn end(stream: CuStream, out: *mut CuGraph) -> Done {
    let stream = stream::find(stream)?;
    let capture = stream.capture().ok_or(CuResult::ILLEGAL_STATE)?;
    write(out, std::ptr::null_mut())?;
    if capture.origin != stream.id {
        capture.invalidate();
        return Err(CuResult::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != stream::thread_number() {
        return Err(CuResult::STREAM_CAPTURE_WRONG_THREAD);
    }
    let joined = all_joined(&capture, &stream);
    finish(&capture);
    if capture.is_invalid() {
        return Err(CuResult::STREAM_CAPTURE_INVALIDATED);
    }
    if !joined {
        return Err(CuResult::STREAM_CAPTURE_UNJOINED);
    }
    write(out, handle(capture.graph.handle()))
}

/// Whether everything that other streams added comes before where the first stream stands.
fn all_joined(capture: &Arc<Capture>, origin: &Stream) -> bool {
    let ends = lock(&origin.capture)
        .as_ref()
        .map(|m| m.after.clone())
        .unwrap_or_default();
    let before = capture.graph.ancestors(&ends);
    if !lock(&capture.left_behind)
        .iter()
        .all(|node| before.contains(node))
    {
        return false;
    }
    stream::all().iter().all(|stream| {
        let membership = lock(&stream.capture);
        membership.as_ref().is_none_or(|membership| {
            !Arc::ptr_eq(&membership.capture, capture)
                || membership.after.iter().all(|node| before.contains(node))
        })
    })
}

fn finish(capture: &Arc<Capture>) {
    for stream in stream::all() {
        let mut membership = lock(&stream.capture);
        if membership
            .as_ref()
            .is_some_and(|m| Arc::ptr_eq(&m.capture, capture))
        {
            *membership = None;
        }
    }
    let mut captures = lock(&CAPTURES);
    let before = captures.len();
    captures.retain(|other| !Arc::ptr_eq(other, capture));
    ACTIVE.fetch_sub(before - captures.len(), Ordering::SeqCst);
}

/// A context is gone, and what its streams captured.
pub(crate) fn context_gone(context: Ctx) {
    let gone: Vec<_> = lock(&CAPTURES)
        .iter()
        .filter(|c| c.context == context.handle)
        .cloned()
        .collect();
    for capture in gone {
        capture.invalidate();
        finish(&capture);
    }
}

/// A stream is gone: a capture that began in it can never end; one that drew it in goes on.
pub(crate) fn stream_gone(stream: &Stream) {
    let Some(Membership { capture, after }) = lock(&stream.capture).take() else {
        return;
    };
    if capture.origin == stream.id {
        capture.invalidate();
        finish(&capture);
    } else {
        lock(&capture.left_behind).extend(after);
    }
}

fn status(stream: &Stream) -> u32 {
    match stream.capture() {
        None => STATUS_NONE,
        Some(capture) if capture.is_invalid() => STATUS_INVALIDATED,
        Some(_) => STATUS_ACTIVE,
    }
}

fn ask(stream: CuStream) -> Done<Arc<Stream>> {
    let stream = stream::find(stream)?;
    if stream.kind == Kind::Legacy
        && stream::of_context(stream.context)
            .iter()
            .any(|o| o.is_blocking() && o.capture().is_some())
    {
        return Err(CuResult::STREAM_CAPTURE_IMPLICIT);
    }
    Ok(stream)
}

thread_local! {
    // What cuStreamGetCaptureInfo points to: good until the next call about a capture.
    static SHOWN: Cell<*mut Vec<usize>> = const { Cell::new(std::ptr::null_mut()) };
}

/// An array that a program may read until its thread asks again.
fn shown(nodes: Vec<usize>) -> *const CuGraphNode {
    let kept = SHOWN.get();
    let kept = if kept.is_null() {
        Box::leak(Box::default())
    } else {
        kept
    };
    SHOWN.set(kept);
    // SAFETY: made above in this thread, never freed, and reached from this thread only.
    let kept = unsafe { &mut *kept };
    *kept = nodes;
    kept.as_ptr().cast()
}

fn info(
    stream: CuStream,
    status_out: *mut u32,
    id_out: *mut u64,
    graph_out: *mut CuGraph,
    nodes_out: *mut *const CuGraphNode,
    count_out: *mut usize,
) -> Done {
    let stream = ask(stream)?;
    let status = status(&stream);
    write(status_out, status)?;
    if status != STATUS_ACTIVE {
        return Ok(());
    }
    let membership = lock(&stream.capture);
    let Some(membership) = membership.as_ref() else {
        return Ok(());
    };
    write_if(id_out, membership.capture.id);
    write_if(graph_out, handle(membership.capture.graph.handle()));
    write_if(count_out, membership.after.len());
    if !nodes_out.is_null() {
        write_if(nodes_out, shown(membership.after.clone()));
    }
    Ok(())
}

fn update_dependencies(
    stream: CuStream,
    nodes: *mut CuGraphNode,
    count: usize,
    flags: u32,
) -> Done {
    const SET: u32 = 1;
    if flags > SET {
        return Err(CuResult::INVALID_VALUE);
    }
    let nodes: Vec<usize> = read_all(nodes, count)?
        .iter()
        .map(|node| node.addr())
        .collect();
    let stream = stream::find(stream)?;
    let mut membership = lock(&stream.capture);
    let membership = membership.as_mut().ok_or(CuResult::ILLEGAL_STATE)?;
    if membership.capture.is_invalid() {
        return Err(CuResult::STREAM_CAPTURE_INVALIDATED);
    }
    if !nodes.iter().all(|&node| membership.capture.graph.has(node)) {
        return Err(CuResult::INVALID_VALUE);
    }
    if flags == SET {
        membership.after.clear();
    }
    for node in nodes {
        if !membership.after.contains(&node) {
            membership.after.push(node);
        }
    }
    Ok(())
}

pub(crate) fn cuStreamBeginCapture(stream: CuStream) -> Done {
    begin(stream, GLOBAL, None)
}

pub(crate) fn cuStreamBeginCapture_v2(stream: CuStream, mode: CuStreamCaptureMode) -> Done {
    begin(stream, mode, None)
}

pub(crate) fn cuStreamBeginCaptureToGraph(
    stream: CuStream,
    graph: CuGraph,
    dependencies: *const CuGraphNode,
    _dependency_data: *const CuGraphEdgeData,
    count: usize,
    mode: CuStreamCaptureMode,
) -> Done {
    let graph = graph::find(graph)?;
    let after: Vec<usize> = read_all(dependencies, count)?
        .iter()
        .map(|node| node.addr())
        .collect();
    if !after.iter().all(|&node| graph.has(node)) {
        return Err(CuResult::INVALID_VALUE);
    }
    begin(stream, mode, Some((graph, after)))
}

pub(crate) fn cuStreamEndCapture(stream: CuStream, out: *mut CuGraph) -> Done {
    end(stream, out)
}

pub(crate) fn cuStreamIsCapturing(
    stream: CuStream,
    capture_status: *mut CuStreamCaptureStatus,
) -> Done {
    write(capture_status, status(&*ask(stream)?))
}

pub(crate) fn cuStreamGetCaptureInfo(
    stream: CuStream,
    capture_status_out: *mut CuStreamCaptureStatus,
    id_out: *mut u64,
) -> Done {
    let null = std::ptr::null_mut();
    let (graph, nodes, count) = (null, std::ptr::null_mut(), std::ptr::null_mut());
    info(stream, capture_status_out, id_out, graph, nodes, count)
}

pub(crate) fn cuStreamGetCaptureInfo_v2(
    stream: CuStream,
    capture_status_out: *mut CuStreamCaptureStatus,
    id_out: *mut u64,
    graph_out: *mut CuGraph,
    dependencies_out: *mut *const CuGraphNode,
    count_out: *mut usize,
) -> Done {
    info(
        stream,
        capture_status_out,
        id_out,
        graph_out,
        dependencies_out,
        count_out,
    )
}

pub(crate) fn cuStreamGetCaptureInfo_v3(
    stream: CuStream,
    capture_status_out: *mut CuStreamCaptureStatus,
    id_out: *mut u64,
    graph_out: *mut CuGraph,
    dependencies_out: *mut *const CuGraphNode,
    edge_data_out: *mut *const CuGraphEdgeData,
    count_out: *mut usize,
) -> Done {
    write_if(edge_data_out, std::ptr::null());
    info(
        stream,
        capture_status_out,
        id_out,
        graph_out,
        dependencies_out,
        count_out,
    )
}

pub(crate) fn cuStreamUpdateCaptureDependencies(
    stream: CuStream,
    dependencies: *mut CuGraphNode,
    count: usize,
    flags: u32,
) -> Done {
    update_dependencies(stream, dependencies, count, flags)
}

pub(crate) fn cuStreamUpdateCaptureDependencies_v2(
    stream: CuStream,
    dependencies: *mut CuGraphNode,
    _dependency_data: *const CuGraphEdgeData,
    count: usize,
    flags: u32,
) -> Done {
    update_dependencies(stream, dependencies, count, flags)
}

pub(crate) fn cuThreadExchangeStreamCaptureMode(mode: *mut CuStreamCaptureMode) -> Done {
    let wanted = read(mode)?;
    if wanted > THREAD_LOCAL.max(RELAXED) {
        return Err(CuResult::INVALID_VALUE);
    }
    write(mode, MODE.replace(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_functions_are_sorted_and_exist() {
        assert!(UNSAFE.is_sorted());
        for name in UNSAFE {
            assert!(cuda_api::DRIVER_SYMBOLS.contains(name), "{name}");
        }
    }
}
