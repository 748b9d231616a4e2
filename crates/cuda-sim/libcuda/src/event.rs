//! Events: places in a stream that tell when they were reached. Their times are the board's, exact in
//! its model; an event can be handed to another process, which sees the same one.

use std::sync::{Arc, Mutex};

use cuda_api::driver::*;
use cuda_sim::exec::{EventId, Record};

use crate::border::{Done, handle, lock, read, write};
use crate::capture;
use crate::context;
use crate::context::Ctx;
use crate::gpu::{exec, process, refused};
use crate::graph::Body;
use crate::stream::{self, Stream};
use crate::table::Table;

const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
/// For `cuEventRecordWithFlags` and `cuStreamWaitEvent`: the node stands for an event outside.
const EXTERNAL: u32 = 1;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    id: EventId,
    context: Ctx,
    flags: u32,
    /// It is another process's.
    opened: bool,
    last: Mutex<Last>,
}

/// Where an event was recorded last.
#[derive(Debug, Clone)]
enum Last {
    /// Nowhere, or in another process: the board knows.
    Board,
    /// In a stream of this process.
    Recorded(Record),
    /// In a stream that captured: in the capture of this number, after these nodes.
    Captured { capture: u64, nodes: Vec<usize> },
}

static EVENTS: Table<Event> = Table::new();

impl Drop for Event {
    fn drop(&mut self) {
        if !self.opened
            && let Ok(exec) = exec()
        {
            exec.close_event(self.id);
        }
    }
}

/// The event that a program means.
pub(crate) fn find(event: CuEvent) -> Done<Arc<Event>> {
    EVENTS.get(event.addr()).ok_or(CuResult::INVALID_HANDLE)
}

/// A context is gone: its events are dropped with it.
pub(crate) fn context_gone(context: Ctx) {
    EVENTS.take(|event| event.context.handle == context.handle);
}

impl Event {
    /// Its last record on the board; `CAPTURED_EVENT` when that lies in a capture.
    fn record(&self) -> Done<Record> {
        match &*lock(&self.last) {
            Last::Recorded(record) => Ok(*record),
            Last::Board => exec()?.last_record(self.id).map_err(refused),
            Last::Captured { .. } => Err(CuResult::CAPTURED_EVENT),
        }
    }

}

impl Event {
    /// The same for a call that asks how far the GPU is: asking that of a captured event spoils the
    /// capture.
    fn record_to_query(&self) -> Done<Record> {
        if let Last::Captured { capture, .. } = &*lock(&self.last)
            && let Some(capture) = capture::numbered(*capture)
        {
            capture.invalidate();
        }
        self.record()
    }

    /// Records it in a stream, as the program's call and a graph's node do.
    pub(crate) fn record_in(&self, stream: &Stream) -> Done {
        stream::order(stream)?;
        let record = exec()?.record(stream.channel, self.id).map_err(refused)?;
        *lock(&self.last) = Last::Recorded(record);
        Ok(())
    }

    /// Lets a stream wait for its last record.
    pub(crate) fn wait_in(&self, stream: &Stream) -> Done {
        let record = self.record()?;
        stream::order(stream)?;
        exec()?
            .wait_for_record(stream.channel, record)
            .map_err(refused)
    }
}

fn create(flags: u32, out: *mut CuEvent) -> Done {
    if flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0
        || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0)
        || out.is_null()
    {
        return Err(CuResult::INVALID_VALUE);
    }
    let context = context::current()?;
    let id = exec()?.open_event(process()?).map_err(refused)?;
    let last = Mutex::new(Last::Board);
    let event = Event {
        id,
        context,
        flags,
        opened: false,
        last,
    };
    write(out, handle(EVENTS.insert(Arc::new(event))))
}

/// Records an event in a stream, or in what it captures.
pub(crate) fn record(stream: &Stream, event: CuEvent, flags: u32) -> Done {
    if flags & !EXTERNAL != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let event = find(event)?;
    if flags & EXTERNAL != 0 {
        let taken = capture::takes(stream, || Ok(Body::EventRecord(Arc::clone(&event))))?;
        return if taken {
            Ok(())
        } else {
            event.record_in(stream)
        };
    }
    if let Some((capture, nodes)) = capture::place(stream)? {
        let capture = capture.id;
        *lock(&event.last) = Last::Captured { capture, nodes };
        return Ok(());
    }
    event.record_in(stream)
}

/// Lets a stream wait for an event; a captured one draws the stream into its capture.
pub(crate) fn wait(stream: &Stream, event: CuEvent, flags: u32) -> Done {
    if flags & !EXTERNAL != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let event = find(event)?;
    if flags & EXTERNAL != 0 {
        let taken = capture::takes(stream, || Ok(Body::EventWait(Arc::clone(&event))))?;
        return if taken { Ok(()) } else { event.wait_in(stream) };
    }
    let last = lock(&event.last).clone();
    match last {
        Last::Captured { capture, nodes } => capture::join(stream, capture, &nodes),
        Last::Board | Last::Recorded(_) => {
            capture::waits_outside(stream)?;
            event.wait_in(stream)
        }
    }
}

fn destroy(event: CuEvent) -> Done {
    EVENTS
        .remove(event.addr())
        .map(drop)
        .ok_or(CuResult::INVALID_HANDLE)
}

fn elapsed(out: *mut f32, start: CuEvent, end: CuEvent) -> Done {
    let (start, end) = (find(start)?, find(end)?);
    if (start.flags | end.flags) & DISABLE_TIMING != 0 {
        return Err(CuResult::INVALID_HANDLE);
    }
    let mut times = [0; 2];
    for (time, event) in times.iter_mut().zip([&start, &end]) {
        let record = event.record_to_query()?;
        if record.number == 0 {
            return Err(CuResult::INVALID_HANDLE);
        }
        *time = exec()?.record_time_ns(record).ok_or(CuResult::NOT_READY)?;
    }
    let step = crate::choices::event_step_ns();
    let [start, end] = times.map(|time| time / step * step);
    write(out, ((end as f64 - start as f64) / 1e6) as f32)
}

pub(crate) fn cuEventCreate(out: *mut CuEvent, flags: u32) -> Done {
    create(flags, out)
}

pub(crate) fn cuEventDestroy(event: CuEvent) -> Done {
    destroy(event)
}

pub(crate) fn cuEventDestroy_v2(event: CuEvent) -> Done {
    destroy(event)
}

pub(crate) fn cuEventRecord(event: CuEvent, stream: CuStream) -> Done {
    record(&*stream::find(stream)?, event, 0)
}

pub(crate) fn cuEventRecordWithFlags(event: CuEvent, stream: CuStream, flags: u32) -> Done {
    record(&*stream::find(stream)?, event, flags)
}

pub(crate) fn cuEventQuery(event: CuEvent) -> Done {
    let record = find(event)?.record_to_query()?;
    capture::unsafe_call()?;
    if record.number == 0 || exec()?.record_time_ns(record).is_some() {
        Ok(())
    } else {
        Err(CuResult::NOT_READY)
    }
}

pub(crate) fn cuEventSynchronize(event: CuEvent) -> Done {
    let record = find(event)?.record_to_query()?;
    capture::unsafe_call()?;
    if record.number != 0 {
        exec()?.wait_record(record);
    }
    Ok(())
}

pub(crate) fn cuEventElapsedTime(milliseconds: *mut f32, start: CuEvent, end: CuEvent) -> Done {
    elapsed(milliseconds, start, end)
}

pub(crate) fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CuEvent, end: CuEvent) -> Done {
    elapsed(milliseconds, start, end)
}

pub(crate) fn cuCtxRecordEvent(ctx: CuContext, event: CuEvent) -> Done {
    // In the context's default stream, which comes after all its others.
    let context = context::find_or_current(ctx)?;
    record(&*stream::legacy(context)?, event, 0)
}

pub(crate) fn cuCtxWaitEvent(ctx: CuContext, event: CuEvent) -> Done {
    for stream in stream::of_context(context::find_or_current(ctx)?) {
        wait(&stream, event, 0)?;
    }
    Ok(())
}

/// What stands in an event's handle for other processes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shared {
    magic: u64,
    index: u32,
    generation: u32,
    flags: u32,
    rest: [u32; 11],
}

const SHARED: u64 = u64::from_le_bytes(*b"simevent");

pub(crate) fn cuIpcGetEventHandle(out: *mut CuIpcEventHandle, event: CuEvent) -> Done {
    let event = find(event)?;
    if event.flags & INTERPROCESS == 0 || event.opened {
        return Err(CuResult::INVALID_HANDLE);
    }
    let EventId { index, generation } = event.id;
    let shared = Shared {
        magic: SHARED,
        index,
        generation,
        flags: event.flags,
        rest: [0; 11],
    };
    write(out.cast::<Shared>(), shared)
}

pub(crate) fn cuIpcOpenEventHandle(out: *mut CuEvent, event_handle: CuIpcEventHandle) -> Done {
    let shared = read((&raw const event_handle).cast::<Shared>())?;
    if shared.magic != SHARED {
        return Err(CuResult::INVALID_HANDLE);
    }
    let id = EventId {
        index: shared.index,
        generation: shared.generation,
    };
    exec()?
        .last_record(id)
        .map_err(|_| CuResult::INVALID_HANDLE)?;
    let context = context::current()?;
    let last = Mutex::new(Last::Board);
    let event = Event {
        id,
        context,
        flags: shared.flags,
        opened: true,
        last,
    };
    write(out, handle(EVENTS.insert(Arc::new(event))))
}
