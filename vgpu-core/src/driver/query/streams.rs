//! Streams, captures and events.

use core::sync::atomic::{AtomicU32, Ordering};

use cuda_api::{CuEvent, CuResult, CuStream};

use super::contexts::within;
use super::handle;
use super::ok;
use crate::base::environment;
use crate::driver::genuine::cuda;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;

/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const CAPTURING: u32 = 1;

/// Runs queries in the relaxed capture mode, in which they invalidate no capture.
pub(crate) fn relaxed<T>(work: impl FnOnce() -> T) -> T {
    let mut mode = RELAXED;
    // SAFETY: the driver exchanges this thread's mode with the local `mode`.
    let exchanged = ok(unsafe { cuda::cuThreadExchangeStreamCaptureMode(&raw mut mode) });
    let answer = work();
    if exchanged.is_some() {
        // SAFETY: the driver exchanges this thread's mode with the local `mode`, which holds the thread's own.
        let restored = unsafe { cuda::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        debug_assert_eq!(restored, CuResult::SUCCESS);
    }
    answer
}

/// Is work on this stream being captured rather than done?
pub(crate) fn is_capturing(stream: CuStream) -> bool {
    let mut status = 0;
    // SAFETY: the program passed this stream to the driver; the driver writes to the local `status` alone.
    let asked = unsafe { cuda::cuStreamIsCapturing(stream, &raw mut status) };
    ok(asked).is_some() && status == CAPTURING
}

/// Whether the library may put an event into this stream. Not while it captures, and not into the legacy stream while
/// a stream that waits for it does (the driver then answers with an error).
pub(crate) fn is_out_of_captures(stream: u64) -> bool {
    let mut status = 0;
    // SAFETY: the program passed this stream to the driver; the driver writes to the local `status` alone.
    let asked = unsafe { cuda::cuStreamIsCapturing(handle(stream), &raw mut status) };
    ok(asked).is_some() && status == 0
}

/// Whether all work of the caller's stream has ended. Not while it captures.
pub(crate) fn stream_has_ended(stream: u64) -> bool {
    // SAFETY: the caller's own stream; where the caller has destroyed it, the driver says that it does not know it.
    ok(unsafe { cuda::cuStreamQuery(handle(stream)) }).is_some()
}

/// A stream by its number.
pub(crate) fn stream(number: u64) -> CuStream {
    handle(number)
}

/// Makes an event with timing in the current context.
pub(crate) fn create_event() -> Option<u64> {
    let mut event: CuEvent = core::ptr::null_mut();
    // SAFETY: the driver writes to `event` alone, a local of the type in the table of signatures.
    ok(unsafe { cuda::cuEventCreate(&raw mut event, 0) })?;
    (!event.is_null()).then_some(event as u64)
}

/// Records an event of the library in a stream.
pub(crate) fn record_event(event: u64, stream: u64) -> bool {
    // SAFETY: our own event, the caller's own stream.
    ok(unsafe { cuda::cuEventRecord(handle(event), handle(stream)) }).is_some()
}

/// Whether an event of the library has happened. `None`: the driver does not know it (any more).
pub(crate) fn event_is_done(event: u64) -> Option<bool> {
    // SAFETY: our own event.
    match unsafe { cuda::cuEventQuery(handle(event)) } {
        CuResult::SUCCESS => Some(true),
        CuResult::NOT_READY => Some(false),
        _ => None,
    }
}

/// The time from one event of the library to another, both done, nanoseconds.
pub(crate) fn elapsed_ns(start: u64, end: u64) -> Option<u64> {
    let mut milliseconds = 0.0_f32;
    // SAFETY: the library made both events; the driver writes to the local `milliseconds` alone.
    let asked =
        unsafe { cuda::cuEventElapsedTime(&raw mut milliseconds, handle(start), handle(end)) };
    ok(asked)?;
    let ns = f64::from(milliseconds) * 1e6;
    if !(0.0..=1e18).contains(&ns) {
        return None;
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 1e18"
    )]
    Some(ns.round() as u64)
}

/// Does every launch of this process wait for its end (`CUDA_LAUNCH_BLOCKING=1`, which the driver reads
/// when it starts)? Then the call's own time does not show when its work began.
pub(crate) fn launches_block() -> bool {
    const NO: u32 = 1;
    const YES: u32 = 2;
    static KNOWN: AtomicU32 = AtomicU32::new(0);
    // Relaxed: the word says all; two threads that ask find the same.
    match KNOWN.load(Ordering::Relaxed) {
        NO => false,
        YES => true,
        _ => {
            let is_one = environment::read(c"CUDA_LAUNCH_BLOCKING", |value| value == b"1");
            let is_one = is_one == Some(true);
            KNOWN.store(if is_one { YES } else { NO }, Ordering::Relaxed);
            is_one
        }
    }
}

/// Destroys an event of the library.
pub(crate) fn destroy_event(event: u64) {
    // SAFETY: an event that we made and have not handed out.
    let destroyed = unsafe { cuda::cuEventDestroy_v2(handle(event)) };
    // Its context may be gone already.
    let _gone = destroyed;
}

/// The number of a thread's own stream (`CU_STREAM_PER_THREAD`).
pub(crate) const PER_THREAD: u64 = 2;

/// Whether a stream has passed a mark of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamMark {
    /// The stream has passed it.
    Passed,
    /// The stream has not reached it.
    Ahead,
    /// The mark's context was destroyed, and its streams with it.
    Gone,
    /// The driver does not say.
    Unknown,
}

/// Puts a mark into a stream of this context: `event`, or a new event if that is 0.
pub(crate) fn mark(context: u64, stream: CuStream, event: u64) -> Option<u64> {
    const DISABLE_TIMING: u32 = 2;
    within(context, || {
        let mut made: CuEvent = handle(event);
        if event == 0 {
            // SAFETY: the driver writes to `made` alone, a local of the type in the table of signatures.
            ok(unsafe { cuda::cuEventCreate(&raw mut made, DISABLE_TIMING) })?;
        }
        // SAFETY: our own event, the caller's own stream.
        if ok(unsafe { cuda::cuEventRecord(made, stream) }).is_none() {
            if event == 0 {
                destroy_event(made as u64);
            }
            return None;
        }
        Some(made as u64)
    })
}

/// See [`mark`].
pub(crate) fn passed(event: u64) -> StreamMark {
    // SAFETY: our own event.
    match unsafe { cuda::cuEventQuery(handle(event)) } {
        CuResult::SUCCESS => StreamMark::Passed,
        CuResult::NOT_READY => StreamMark::Ahead,
        CuResult::INVALID_HANDLE | CuResult::INVALID_CONTEXT | CuResult::CONTEXT_IS_DESTROYED => {
            StreamMark::Gone
        }
        _ => StreamMark::Unknown,
    }
}
