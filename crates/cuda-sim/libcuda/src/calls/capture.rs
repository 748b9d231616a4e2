//! The functions of stream capture: begin, end, ask, change the dependencies.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cuda_api::driver::*;

use crate::base::border::{Done, handle, invalid_if, lock, read, refuse_if, write, write_if};
use crate::streams::capture::{CAPTURES, Capture, GLOBAL, Membership, RELAXED};
use crate::streams::capturing::{ACTIVE, MODE, finish};
use crate::streams::graph::{self, Graph};
use crate::streams::stream::{self, Stream, StreamKind};

calls! {
    cuStreamBeginCapture(stream) => begin(stream, GLOBAL, None);
    cuStreamBeginCapture_v2(stream, mode) => begin(stream, mode, None);
    cuStreamEndCapture(stream, out) => end(stream, out);
    cuStreamIsCapturing(stream, capture_status) => write(capture_status, status(&*ask(stream)?));
    cuStreamGetCaptureInfo(stream, capture_status_out, id_out) => {
        let null = std::ptr::null_mut();
        let (graph, nodes, count) = (null, std::ptr::null_mut(), std::ptr::null_mut());
        info(stream, capture_status_out, id_out, graph, nodes, count)
    };
    cuStreamUpdateCaptureDependencies(stream, dependencies, count, flags)
        => update_dependencies(stream, dependencies, count, flags);
    cuStreamUpdateCaptureDependencies_v2(stream, dependencies, _dependency_data, count, flags)
        => update_dependencies(stream, dependencies, count, flags);
    cuThreadExchangeStreamCaptureMode(mode) => {
        let wanted = read(mode)?;
        invalid_if(wanted > THREAD_LOCAL.max(RELAXED))?;
        write(mode, MODE.replace(wanted))
    };
    cuStreamBeginCaptureToGraph(stream, graph, dependencies, _dependency_data, count, mode) => {
        let graph = graph::find(graph)?;
        let after = graph::nodes_at(dependencies, count)?;
        invalid_if(!after.iter().all(|&node| graph.has(node)))?;
        begin(stream, mode, Some((graph, after)))
    };
    cuStreamGetCaptureInfo_v2(stream, capture_status_out, id_out, graph_out, dependencies_out,
        count_out)
        => info(stream, capture_status_out, id_out, graph_out, dependencies_out, count_out);
    cuStreamGetCaptureInfo_v3(stream, capture_status_out, id_out, graph_out, dependencies_out,
        edge_data_out, count_out) => {
        write_if(edge_data_out, std::ptr::null());
        info(stream, capture_status_out, id_out, graph_out, dependencies_out, count_out)
    };
}

const THREAD_LOCAL: u32 = 1;
const STATUS_NONE: u32 = 0;
const STATUS_ACTIVE: u32 = 1;
const STATUS_INVALIDATED: u32 = 2;
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

// --- beginning and ending -------------------------------------------------------------------

fn begin(stream: CuStream, mode: u32, graph: Option<(Arc<Graph>, Vec<usize>)>) -> Done {
    invalid_if(mode > RELAXED)?;
    let stream = stream::find(stream)?;
    refuse_if(
        stream.kind == StreamKind::Legacy,
        CuResult::STREAM_CAPTURE_UNSUPPORTED,
    )?;
    let mut own = lock(&stream.capture);
    refuse_if(own.is_some(), CuResult::ILLEGAL_STATE)?;
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
    let is_own = capture.mode == RELAXED || capture.thread == stream::thread_number();
    refuse_if(!is_own, CuResult::STREAM_CAPTURE_WRONG_THREAD)?;
    let joined = all_joined(&capture, &stream);
    finish(&capture);
    refuse_if(capture.is_invalid(), CuResult::STREAM_CAPTURE_INVALIDATED)?;
    refuse_if(!joined, CuResult::STREAM_CAPTURE_UNJOINED)?;
    write(out, handle(capture.graph.handle()))
}

/// Whether everything that other streams added comes before the position of the first stream.
fn all_joined(capture: &Arc<Capture>, origin: &Stream) -> bool {
    let ends = lock(&origin.capture).as_ref().map(|own| own.after.clone());
    let before = capture.graph.ancestors(&ends.unwrap_or_default());
    let all_before = |nodes: &[usize]| nodes.iter().all(|node| before.contains(node));
    if !all_before(&lock(&capture.left_behind)) {
        return false;
    }
    stream::all().iter().all(|stream| {
        let membership = lock(&stream.capture);
        membership.as_ref().is_none_or(|membership| {
            !Arc::ptr_eq(&membership.capture, capture) || all_before(&membership.after)
        })
    })
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
    if stream.kind == StreamKind::Legacy
        && stream::of_context(stream.context)
            .iter()
            .any(|o| o.is_blocking() && o.capture().is_some())
    {
        return Err(CuResult::STREAM_CAPTURE_IMPLICIT);
    }
    Ok(stream)
}

thread_local! {
    // The array that cuStreamGetCaptureInfo points to: valid until the next call about a capture.
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
    invalid_if(flags > SET)?;
    let nodes = graph::nodes_at(nodes, count)?;
    let stream = stream::find(stream)?;
    let mut membership = lock(&stream.capture);
    let membership = membership.as_mut().ok_or(CuResult::ILLEGAL_STATE)?;
    refuse_if(
        membership.capture.is_invalid(),
        CuResult::STREAM_CAPTURE_INVALIDATED,
    )?;
    invalid_if(!nodes.iter().all(|&node| membership.capture.graph.has(node)))?;
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
