//! Stream capture, and the calls that are not allowed during one: as strict as the driver, so that a forbidden call
//! invalidates a capture here too.
//!
//! A capture begins in a stream and includes every stream that waits for an event of it; work given to those becomes
//! nodes of a graph. It ends in the stream in which it began, with all streams joined again. It must not meet calls
//! that may wait ("unsafe" ones, by the mode of the capture and of the calling thread), queries of captured streams
//! and events, and the legacy stream.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_api::driver::*;

use crate::base::border::{Done, lock, refuse_if};
use crate::memory::context::Ctx;
use crate::streams::capture::{CAPTURES, Capture, GLOBAL, Membership, RELAXED, numbered};
use crate::streams::graph::Body;
use crate::streams::stream::{self, Stream, StreamKind};

pub(crate) static ACTIVE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    pub(crate) static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
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
    let met = spoil(|capture| {
        let own = capture.thread == thread && capture.mode != RELAXED;
        let others = own_mode == GLOBAL && capture.mode == GLOBAL && capture.thread != thread;
        !capture.is_invalid() && (own || others)
    });
    refuse_if(met, CuResult::STREAM_CAPTURE_UNSUPPORTED)
}

/// Invalidates the captures that a call meets; returns whether there were any.
fn spoil(meets: impl Fn(&Capture) -> bool) -> bool {
    let captures = lock(&CAPTURES);
    let met = captures.iter().filter(|capture| meets(capture));
    met.inspect(|capture| capture.invalidate()).count() > 0
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
    legacy_used(stream)?;
    unsafe_call()
}

/// Something that a capturing stream cannot do.
///
/// # Errors
/// When the stream captures; the capture is spoilt then.
pub(crate) fn forbidden(stream: &Stream) -> Done {
    spoiling(stream, CuResult::STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses with this code a call that a stream's capture does not survive.
fn spoiling(stream: &Stream, code: CuResult) -> Done {
    still_good(stream)?;
    match stream.capture() {
        Some(capture) => {
            capture.invalidate();
            Err(code)
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
    let met = spoil(|capture| capture.context == context.handle);
    refuse_if(met, CuResult::STREAM_CAPTURE_UNSUPPORTED)?;
    unsafe_call()
}

/// The legacy stream would wait for blocking streams, and a captured one has nothing to wait for.
fn legacy_used(stream: &Stream) -> Done {
    if stream.kind != StreamKind::Legacy {
        return Ok(());
    }
    let mut met = false;
    for other in stream::of_context(stream.context) {
        if other.is_blocking()
            && let Some(capture) = other.capture()
        {
            capture.invalidate();
            met = true;
        }
    }
    refuse_if(met, CuResult::STREAM_CAPTURE_IMPLICIT)
}

/// Asks a stream for something that works while it captures, but not once that is spoilt.
///
/// # Errors
/// When the stream's capture is spoilt.
pub(crate) fn still_good(stream: &Stream) -> Done {
    let is_spoilt = stream.capture().is_some_and(|capture| capture.is_invalid());
    refuse_if(is_spoilt, CuResult::STREAM_CAPTURE_INVALIDATED)
}

/// A stream is made to wait for work that is in no capture.
///
/// # Errors
/// When the stream captures; the capture is spoilt then.
pub(crate) fn waits_outside(stream: &Stream) -> Done {
    if !anything_captures() {
        return Ok(());
    }
    spoiling(stream, CuResult::STREAM_CAPTURE_ISOLATION)?;
    legacy_used(stream)
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
        return legacy_used(stream).map(|()| false);
    };
    let capture = Arc::clone(&membership.capture);
    refuse_if(capture.is_invalid(), CuResult::STREAM_CAPTURE_INVALIDATED)?;
    let added = make().and_then(|body| capture.graph.add(body, &membership.after));
    membership.after = vec![added.inspect_err(|_| capture.invalidate())?];
    Ok(true)
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
        return legacy_used(stream).map(|()| None);
    };
    refuse_if(
        membership.capture.is_invalid(),
        CuResult::STREAM_CAPTURE_INVALIDATED,
    )?;
    let capture = Arc::clone(&membership.capture);
    Ok(Some((capture, membership.after.clone())))
}

/// A stream waits for a captured event: it becomes part of that capture.
///
/// # Errors
/// When the capture is over or spoilt, when the stream is in another one (both are spoilt then), or
/// is the legacy stream.
pub(crate) fn join(stream: &Stream, capture: u64, nodes: &[usize]) -> Done {
    let capture = &numbered(capture).ok_or(CuResult::CAPTURED_EVENT)?;
    refuse_if(capture.is_invalid(), CuResult::STREAM_CAPTURE_INVALIDATED)?;
    if stream.kind == StreamKind::Legacy {
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

pub(crate) fn finish(capture: &Arc<Capture>) {
    for stream in stream::all() {
        let mut membership = lock(&stream.capture);
        membership.take_if(|own| Arc::ptr_eq(&own.capture, capture));
    }
    let mut captures = lock(&CAPTURES);
    let before = captures.len();
    captures.retain(|other| !Arc::ptr_eq(other, capture));
    ACTIVE.fetch_sub(before - captures.len(), Ordering::SeqCst);
}

/// Called at the end of a context: ends the captures of its streams.
pub(crate) fn context_gone(context: Ctx) {
    let mut gone = lock(&CAPTURES).clone();
    gone.retain(|capture| capture.context == context.handle);
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
