//! The functions of events. An event can be handed to another process, which sees the same one.

use std::sync::{Arc, Mutex};

use cuda_api::driver::*;
use cuda_sim::exec::EventId;

use crate::base::border::{Done, handle, invalid_if, read, refuse_if, write};
use crate::memory::context;
use crate::process::work::{exec, process, refused};
use crate::streams::capturing;
use crate::streams::event::{EVENTS, Event, Last, find};
use crate::streams::recording::{record, wait};
use crate::streams::stream;

calls! {
    cuEventCreate(out, flags) => create(flags, out);
    cuEventDestroy, cuEventDestroy_v2(event) => destroy(event);
    cuEventRecord(event, stream) => record(&*stream::find(stream)?, event, 0);
    cuEventRecordWithFlags(event, stream, flags) => record(&*stream::find(stream)?, event, flags);
    cuEventElapsedTime, cuEventElapsedTime_v2(milliseconds, start, end)
        => elapsed(milliseconds, start, end);
    cuCtxRecordEvent(ctx, event) => {
        // In the context's default stream, which comes after all its others.
        let context = context::find_or_current(ctx)?;
        record(&*stream::legacy(context)?, event, 0)
    };
    cuCtxWaitEvent(ctx, event) => {
        for stream in stream::of_context(context::find_or_current(ctx)?) {
            wait(&stream, event, 0)?;
        }
        Ok(())
    };
    cuEventQuery(event) => {
        let record = find(event)?.record_to_query()?;
        capturing::unsafe_call()?;
        let is_done = record.number == 0 || exec()?.record_time_ns(record).is_some();
        refuse_if(!is_done, CuResult::NOT_READY)
    };
    cuEventSynchronize(event) => {
        let record = find(event)?.record_to_query()?;
        capturing::unsafe_call()?;
        if record.number != 0 {
            exec()?.wait_record(record);
        }
        Ok(())
    };
    cuIpcGetEventHandle(out, event) => {
        let event = find(event)?;
        refuse_if(event.flags & INTERPROCESS == 0 || event.opened, CuResult::INVALID_HANDLE)?;
        let EventId { index, generation } = event.id;
        let shared = HandleContents {
            magic: MAGIC,
            index,
            generation,
            flags: event.flags,
            rest: [0; 11],
        };
        write(out.cast::<HandleContents>(), shared)
    };
    cuIpcOpenEventHandle(out, event_handle) => {
        let shared = read((&raw const event_handle).cast::<HandleContents>())?;
        refuse_if(shared.magic != MAGIC, CuResult::INVALID_HANDLE)?;
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
    };
}

const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

fn create(flags: u32, out: *mut CuEvent) -> Done {
    invalid_if(
        flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0
            || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0)
            || out.is_null(),
    )?;
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

fn destroy(event: CuEvent) -> Done {
    EVENTS.end(event.addr())
}

fn elapsed(out: *mut f32, start: CuEvent, end: CuEvent) -> Done {
    let (start, end) = (find(start)?, find(end)?);
    refuse_if(
        (start.flags | end.flags) & DISABLE_TIMING != 0,
        CuResult::INVALID_HANDLE,
    )?;
    let mut times = [0; 2];
    for (time, event) in times.iter_mut().zip([&start, &end]) {
        let record = event.record_to_query()?;
        refuse_if(record.number == 0, CuResult::INVALID_HANDLE)?;
        *time = exec()?.record_time_ns(record).ok_or(CuResult::NOT_READY)?;
    }
    let step = crate::process::choices::event_step_ns();
    let [start, end] = times.map(|time| time / step * step);
    write(out, ((end as f64 - start as f64) / 1e6) as f32)
}

/// The contents of an event's handle for other processes.
#[repr(C)]
#[derive(Clone, Copy)]
struct HandleContents {
    magic: u64,
    index: u32,
    generation: u32,
    flags: u32,
    rest: [u32; 11],
}

const MAGIC: u64 = u64::from_le_bytes(*b"simevent");
